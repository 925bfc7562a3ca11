/* The floor under every broker: a process that copies bytes from one socket to another and does nothing else.
 *
 * Owns a relay process and the two clients around it, so that its figures stand beside those of load091 and load10.
 * Comes in: options; goes out: one JSON object (load.h). There are no messages on the wire, only so many bytes
 * counted as one. */
#define _GNU_SOURCE
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define COPY_BYTES 65536

static size_t size;
static int front, back; /* listening sockets of the relay */
static struct sockaddr_in front_address, back_address;
static char relay_pid_text[16];

static int prompt(int socket) {
    int one = 1;
    if (socket < 0) fail("socket: %s", strerror(errno));
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return socket;
}

static int listen_anywhere(struct sockaddr_in *address) {
    socklen_t length = sizeof *address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (listener < 0 || bind(listener, (void *)address, length) || listen(listener, 1) ||
        getsockname(listener, (void *)address, &length))
        fail("listen: %s", strerror(errno));
    return listener;
}

static int dial(const struct sockaddr_in *address) {
    int connection = prompt(socket(AF_INET, SOCK_STREAM, 0));
    if (connect(connection, (const void *)address, sizeof *address)) fail("connect: %s", strerror(errno));
    return connection;
}

static bool read_all(int from, char *bytes, size_t length) {
    while (length) {
        ssize_t got = read(from, bytes, length);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        bytes += got;
        length -= got;
    }
    return true;
}

static void copy_both_ways(void) {
    static uint8_t bytes[COPY_BYTES];
    int sides[2] = {prompt(accept(front, NULL, NULL)), prompt(accept(back, NULL, NULL))};
    struct pollfd polled[2] = {{sides[0], POLLIN, 0}, {sides[1], POLLIN, 0}};
    while (poll(polled, 2, -1) > 0)
        for (int i = 0; i < 2; i++) {
            if (!polled[i].revents) continue;
            ssize_t got = read(sides[i], bytes, sizeof bytes);
            if (got <= 0) { /* pass the end on, and stay in /proc until the accounts are read */
                shutdown(sides[!i], SHUT_WR);
                pause();
            }
            write_all(sides[!i], bytes, got);
        }
}

/* A process of its own, so that its CPU is counted apart from the clients'. */
static pid_t start_relay(void) {
    pid_t pid = fork();
    if (pid < 0) fail("fork: %s", strerror(errno));
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    copy_both_ways();
    _exit(0);
}

static void *count_bytes(void *unused) {
    static char bytes[COPY_BYTES];
    int connection = dial(&back_address);
    flow_ready();
    uint64_t total = 0;
    for (ssize_t got; (got = read(connection, bytes, sizeof bytes)) > 0;) {
        total += got;
        flow_received((long)(total / size));
    }
    return unused;
}

static void thr(void) {
    pthread_t consumer = start_thread(count_bytes, NULL);
    int connection = dial(&front_address);
    flow_wait_ready();
    size_t batch = (size_t)number("batch");
    long per_write = size < batch ? batch / size : 1, sent = 0;
    uint8_t *bytes = allocate(per_write * size);
    double secs = number("secs");
    struct meter meter = meter_start();
    flow_start();
    for (; now_s() - flow.started_s < secs; sent += per_write) write_all(connection, bytes, per_write * size);
    flow_sent(sent);
    shutdown(connection, SHUT_WR);
    pthread_join(consumer, NULL);
    meter_stop(&meter);
    report_open("thr");
    report_flow(&meter, size);
    report_close();
}

static void *echo(void *unused) {
    int connection = dial(&back_address);
    char *bytes = allocate(size);
    flow_ready();
    while (read_all(connection, bytes, size)) write_all(connection, (uint8_t *)bytes, size);
    return unused;
}

static void rtt(void) {
    start_thread(echo, NULL);
    int connection = dial(&front_address);
    flow_wait_ready();
    char *bytes = allocate(size);
    struct samples samples = samples_new((long)number("count"));
    struct meter meter = {0};
    for (long trip = -(samples.count_max / 10); trip < samples.count_max; trip++) {
        if (!trip) meter = meter_start();
        double sent_s = now_s();
        write_all(connection, (uint8_t *)bytes, size);
        if (!read_all(connection, bytes, size)) fail("the relay hung up");
        if (trip >= 0) samples_add(&samples, now_s() - sent_s);
    }
    meter_stop(&meter);
    report_open("rtt");
    report("size", size);
    report_samples("", &samples);
    report_meter(&meter, samples.count);
    report_close();
}

static const struct mode modes[] = {{"thr", thr, "publisher, relay, consumer (size, batch, secs)"},
                                    {"rtt", rtt, "client, relay, echo, relay, client; one at a time (size, count)"},
                                    {NULL, NULL, NULL}};

static struct option options[] = {{"size", "1024", "bytes that count as one message"},
                                  {"batch", "65536", "bytes per write; 0: one message"},
                                  {"count", "5000", "round trips"},
                                  {"secs", "5", "how long to publish"},
                                  {"pid", relay_pid_text, "the relay's own process, known already"},
                                  {NULL, NULL, NULL}};

static void prepare(const char *mode) {
    (void)mode;
    size = (size_t)number("size");
    if (!size) fail("size=0: a message needs at least one byte");
    front = listen_anywhere(&front_address);
    back = listen_anywhere(&back_address);
    snprintf(relay_pid_text, sizeof relay_pid_text, "%d", start_relay());
}

int main(int argc, char **argv) { return load_main(argc, argv, "load through a plain relay", prepare, modes, options); }
