/* Hello from C: sends a message to a queue, hears that it was taken, gets it back and accepts it.
 *
 *     cargo build --release -p weft-c
 *     cc examples/c/hello.c -I crates/c/include -L target/release -lweft -o hello
 *     LD_LIBRARY_PATH=target/release ./hello 127.0.0.1 5672 greetings
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "weft.h"

static uint64_t now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

/* What the machine has to say leaves; then what the peer says comes in. */
static int turn(int transport, weft_client *client) {
    const uint8_t *out;
    uint8_t in[65536];
    for (size_t size; (size = weft_transmit(client, &out)) > 0;)
        if (write(transport, out, size) != (ssize_t)size) return 0;
    ssize_t size = read(transport, in, sizeof in);
    if (size <= 0) return 0;
    weft_receive(client, in, (size_t)size, now_ns());
    return 1;
}

int main(int count, char **arguments) {
    if (count != 4) return fprintf(stderr, "hello HOST PORT QUEUE\n"), 2;
    struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(arguments[2]))};
    int transport = socket(AF_INET, SOCK_STREAM, 0);
    if (inet_pton(AF_INET, arguments[1], &peer.sin_addr) != 1
        || connect(transport, (struct sockaddr *)&peer, sizeof peer) != 0)
        return perror("connect"), 1;

    weft_client *client = weft_new("hello");
    weft_start(client, arguments[1], "guest", "guest", now_ns());
    uint32_t to = weft_sender(client, arguments[3]), from = weft_receiver(client, arguments[3], 10);
    weft_send(client, to, (const uint8_t *)"hello from C", 12, 0);

    int left = 2; /* the outcome, and the message */
    weft_event event;
    while (left > 0 && turn(transport, client)) {
        while (weft_next(client, &event) != WEFT_NOTHING) {
            switch (event.kind) {
            case WEFT_OUTCOME:
                printf("%s\n", event.verdict == WEFT_ACCEPTED ? "taken" : "not taken");
                left--;
                break;
            case WEFT_MESSAGE:
                printf("%.*s\n", (int)event.size, (const char *)event.data);
                weft_settle(client, from, event.first, WEFT_ACCEPTED);
                left--;
                break;
            case WEFT_REFUSED:
            case WEFT_DETACHED:
            case WEFT_CLOSED:
                fprintf(stderr, "%s\n", event.text);
                return 1;
            }
        }
    }
    weft_close(client);
    while (turn(transport, client)) continue;
    weft_free(client);
    close(transport);
    return left > 0;
}
