/* The floor under every broker that is connected to: a process that gives the answers a client waits for, and does
 * nothing else.
 *
 * Owns a server process that knows nine answers of AMQP 0-9-1, looks no deeper into a frame than its method, and
 * counts publications, so that a declared queue has as many messages. Who consumes gets `count` deliveries that were
 * made before, as fast as the socket takes them. Comes in: nothing; goes out: its port and its process. It must never refuse, route, keep or check anything: whatever a broker costs above this is the broker's.
 * Rule: frames of AMQP 0-9-1, section 4.2.3. */
#define _GNU_SOURCE
#include "fast.h"
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_BYTES 65536
#define ANSWER_BYTES_MAX 4096
#define READY_MAX 64
#define DELIVER_BYTES (1 << 18)
#define FRAME_END 0xCE
#define METHOD(class_id, method_id) ((uint32_t)(class_id) << 16 | (method_id))

static uint32_t published;

static void answer(struct bytes *out, int channel, uint32_t method, const void *arguments, size_t length) {
    put(out, 1, 1);
    put(out, 2, channel);
    put(out, 4, 4 + length);
    put(out, 4, method);
    put_block(out, arguments, length);
    put(out, 1, FRAME_END);
}

/* Deliveries of `size` bytes, one like the other: what a reader of a stream gets at the most. */
static void deliver_all(int socket) {
    long count = (long)number("count") + 1, size = (long)number("size");
    uint8_t method[64], *body = allocate(size);
    struct bytes arguments = {method, 0}, out = {allocate(DELIVER_BYTES + 2 * size), 0};
    put(&arguments, 4, METHOD(60, 60));
    put_block(&arguments, "\4load", 5);
    put(&arguments, 8, 1);
    put_block(&arguments, "\0\0\4load", 7);
    size_t one = 0;
    do {
        put_frame(&out, 1, method, arguments.length);
        uint8_t header[48];
        struct bytes content = {header, 0};
        put(&content, 4, 60 << 16);
        put(&content, 8, size);
        put(&content, 2, 1 << 13); /* headers are the only property */
        put(&content, 4, 25);
        put_block(&content, "\17x-stream-offsetl", 17);
        put(&content, 8, 0);
        put_frame(&out, 2, header, content.length);
        put_frame(&out, 3, body, size);
        if (!one) one = out.length;
    } while (out.length + one <= DELIVER_BYTES);
    for (long each = out.length / one; count > 0; count -= each)
        write_all(socket, out.start, (count < each ? count : each) * one);
    free(body);
    free(out.start);
}

/* True when the peer has said its last word. */
static bool hear(struct bytes *out, int channel, uint32_t method) {
    static const uint8_t tune[] = {7, 0xFF, 0, 2, 0, 0, 0, 0}, none[4];
    uint8_t declared[10] = {1, 'q'};
    switch (method) {
    case METHOD(10, 11): answer(out, channel, METHOD(10, 30), tune, sizeof tune); break;
    case METHOD(10, 40): answer(out, channel, METHOD(10, 41), none, 1); break;
    case METHOD(10, 50): answer(out, channel, METHOD(10, 51), none, 0); return true;
    case METHOD(20, 10): answer(out, channel, METHOD(20, 11), none, 4); break;
    case METHOD(20, 40): answer(out, channel, METHOD(20, 41), none, 0); break;
    case METHOD(50, 10): {
        uint32_t count = htonl(published);
        memcpy(declared + 2, &count, sizeof count);
        answer(out, channel, METHOD(50, 11), declared, sizeof declared);
        break;
    }
    case METHOD(50, 40): answer(out, channel, METHOD(50, 41), none, 4); break;
    case METHOD(60, 10): answer(out, channel, METHOD(60, 11), none, 0); break;
    case METHOD(60, 40): published++; break;
    }
    return false;
}

/* A client in this measure waits for each answer, so what is read ends with a whole frame. */
static void serve(int socket) {
    static const uint8_t start[] = {0, 9, 0, 0, 0, 0, 0, 0, 0, 5, 'P', 'L', 'A', 'I', 'N', 0, 0, 0, 5, 'e', 'n', '_', 'U', 'S'};
    static uint8_t in[READ_BYTES], said[ANSWER_BYTES_MAX];
    struct bytes out = {said, 0};
    bool last = false;
    ssize_t got = read(socket, in, sizeof in), at = 0;
    if (got <= 0) {
        close(socket);
        return;
    }
    if (got >= 8 && !memcmp(in, "AMQP", 4)) {
        answer(&out, 0, METHOD(10, 10), start, sizeof start);
        at = 8;
    }
    for (; got - at >= 11; at += 8 + peek(in + at + 3, 4)) {
        if (in[at] != 1) continue;
        uint32_t method = (uint32_t)peek(in + at + 7, 4);
        if (method == METHOD(60, 20)) deliver_all(socket);
        last |= hear(&out, (int)peek(in + at + 1, 2), method);
    }
    if (out.length) write_all(socket, said, out.length);
    if (last) shutdown(socket, SHUT_WR);
}

static void watch(int events, int socket) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = socket};
    if (epoll_ctl(events, EPOLL_CTL_ADD, socket, &event)) fail("epoll: %s", strerror(errno));
}

static _Noreturn void serve_all(int listener) {
    int events = epoll_create1(0), one = 1;
    struct epoll_event ready[READY_MAX];
    watch(events, listener);
    for (;;) {
        int count = epoll_wait(events, ready, READY_MAX, -1);
        for (int i = 0; i < count; i++) {
            if (ready[i].data.fd != listener) {
                serve(ready[i].data.fd);
                continue;
            }
            int socket = accept(listener, NULL, NULL);
            if (socket < 0) continue;
            setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            watch(events, socket);
        }
    }
}

int start_bare(int *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (void *)&address, length) || listen(listener, SOMAXCONN) ||
        getsockname(listener, (void *)&address, &length))
        fail("listen: %s", strerror(errno));
    *port = ntohs(address.sin_port);
    pid_t pid = fork();
    if (pid < 0) fail("fork: %s", strerror(errno));
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve_all(listener);
    }
    close(listener);
    return pid;
}
