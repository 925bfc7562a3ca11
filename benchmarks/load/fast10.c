/* AMQP 1.0 frames by hand, for load10 with fast=1.
 *
 * Owns a client that knows just enough: SASL, open, begin, attach, flow and pre-settled transfers of one frame
 * each. Comes in: the broker's address (options) and one encoded message; goes out: the counters of the flow
 * (load.h). It keeps to the credit and to the session window that the broker grants, and grants both itself.
 * Encodings: AMQP 1.0 specification, parts 1, 2 and 5. */
#define _GNU_SOURCE
#include "fast.h"
#include "load.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FRAME_BYTES_MAX 131072
#define READ_BYTES (1 << 18)
#define WINDOW 0x7fffffff
#define TRANSFER_BYTES 64 /* what surrounds the message in its frame, at most */

enum { OPEN = 0x10, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE };
enum { MECHANISMS = 0x40, INIT = 0x41, OUTCOME = 0x44 };
enum { SOURCE = 0x28, TARGET = 0x29 };
enum { AMQP, SASL };

struct client {
    int socket;
    size_t have, used; /* bytes read, and of those already taken */
    uint8_t buffer[READ_BYTES];
};
struct frame {
    int performative;
    const uint8_t *at, *end; /* the fields, then the payload */
};

/* ---- writing ---- */

static void put_uint(struct bytes *out, uint32_t value) {
    put(out, 1, 0x70);
    put(out, 4, value);
}

static void put_text(struct bytes *out, int code, const char *value) { /* 0xa1 string, 0xa3 symbol, 0xa0 binary */
    put(out, 1, code);
    put(out, 1, strlen(value));
    put_block(out, value, strlen(value));
}

/* A described list is begun, its fields are put, and it is ended with their number; lists nest. */
static size_t begin_list(struct bytes *out, int descriptor) {
    put(out, 3, 0x5300 | descriptor);
    put(out, 1, 0xd0);
    put(out, 8, 0);
    return out->length;
}

static void end_list(struct bytes *out, size_t began, int fields) {
    struct bytes sizes = {out->start + began - 8, 0};
    put(&sizes, 4, out->length - began + 4);
    put(&sizes, 4, fields);
}

static size_t begin_frame(struct bytes *out, int type) {
    size_t began = out->length;
    put(out, 4, 0);
    put(out, 4, 0x02000000 | type << 16);
    return began;
}

static void end_frame(struct bytes *out, size_t began) {
    struct bytes length = {out->start + began, 0};
    put(&length, 4, out->length - began);
}

static void send_open(int socket) {
    uint8_t storage[1024];
    struct bytes out = {storage, 0};
    put_block(&out, "AMQP\0\1\0\0", 8);
    size_t frame = begin_frame(&out, AMQP), list = begin_list(&out, OPEN);
    char container[64];
    snprintf(container, sizeof container, "fast10-%d-%d", getpid(), socket);
    put_text(&out, 0xa1, container);
    put_text(&out, 0xa1, *text("vhost") ? text("vhost") : text("host"));
    put_uint(&out, FRAME_BYTES_MAX);
    end_list(&out, list, 3);
    end_frame(&out, frame);
    frame = begin_frame(&out, AMQP), list = begin_list(&out, BEGIN);
    put(&out, 1, 0x40); /* remote-channel: none */
    put_uint(&out, 0);  /* next-outgoing-id */
    put_uint(&out, WINDOW);
    put_uint(&out, WINDOW);
    end_list(&out, list, 4);
    end_frame(&out, frame);
    write_all(socket, out.start, out.length);
}

static void put_terminus(struct bytes *out, int descriptor, const char *address) {
    size_t list = begin_list(out, descriptor);
    put_text(out, 0xa1, address);
    end_list(out, list, 1);
}

static void send_attach(int socket, bool sends, const char *address) {
    uint8_t storage[1024];
    struct bytes out = {storage, 0};
    size_t frame = begin_frame(&out, AMQP), list = begin_list(&out, ATTACH);
    put_text(&out, 0xa1, sends ? "out" : "in");
    put(&out, 1, 0x43);                /* handle 0 */
    put(&out, 1, sends ? 0x42 : 0x41); /* role: false is the sender */
    put(&out, 2, 0x5001);              /* snd-settle-mode: settled */
    put(&out, 2, 0x5000);              /* rcv-settle-mode: first */
    put_terminus(&out, SOURCE, sends ? "load" : address);
    put_terminus(&out, TARGET, sends ? address : "load");
    if (sends) put(&out, 3, 0x404043); /* unsettled, incomplete-unsettled: null; initial-delivery-count 0 */
    end_list(&out, list, sends ? 10 : 7);
    end_frame(&out, frame);
    write_all(socket, out.start, out.length);
}

static void send_credit(int socket, uint32_t received, uint32_t credit) {
    uint8_t storage[128];
    struct bytes out = {storage, 0};
    size_t frame = begin_frame(&out, AMQP), list = begin_list(&out, FLOW);
    put_uint(&out, received); /* next-incoming-id */
    put_uint(&out, WINDOW);
    put_uint(&out, 0); /* next-outgoing-id */
    put_uint(&out, WINDOW);
    put(&out, 1, 0x43); /* handle 0 */
    put_uint(&out, received); /* delivery-count */
    put_uint(&out, credit);
    end_list(&out, list, 7);
    end_frame(&out, frame);
    write_all(socket, out.start, out.length);
}

/* ---- reading ---- */

/* More bytes into the buffer; false when none came in time (or at once, with MSG_DONTWAIT). */
static bool fill(struct client *client, int flags) {
    memmove(client->buffer, client->buffer + client->used, client->have - client->used);
    client->have -= client->used;
    client->used = 0;
    ssize_t got = recv(client->socket, client->buffer + client->have, READ_BYTES - client->have, flags);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) fail("read from the broker: %s", got ? strerror(errno) : "it closed the connection");
    client->have += got;
    return true;
}

/* Steps into a described list; the fields follow `at`. */
static void enter_list(struct frame *frame) {
    static const uint8_t header_bytes[256] = {[0x45] = 1, [0xc0] = 3, [0xd0] = 9};
    if (frame->end - frame->at < 4 || frame->at[0] != 0 || frame->at[1] != 0x53 || !header_bytes[frame->at[3]])
        fail("the broker sent a frame this client cannot read");
    frame->performative = frame->at[2];
    frame->at += 3 + header_bytes[frame->at[3]];
}

/* The next frame if it is whole; transfers are not entered, because only their number matters. */
static bool take_frame(struct client *client, struct frame *frame) {
    size_t left = client->have - client->used;
    const uint8_t *start = client->buffer + client->used;
    if (left < 8) return false;
    size_t length = peek(start, 4);
    if (length < 8 || length > READ_BYTES) fail("the broker sent a frame of %zu bytes", length);
    if (left < length) return false;
    client->used += length;
    *frame = (struct frame){0, start + start[4] * 4, start + length};
    if (frame->at < frame->end) enter_list(frame);
    if (frame->performative == CLOSE || frame->performative == DETACH || frame->performative == END)
        fail("the broker ended it: %.*s", (int)(frame->end - frame->at), frame->at);
    return true;
}

/* The next field, which must be a uint or null (then 0). */
static uint32_t take_uint(struct frame *frame) {
    static const uint8_t widths[256] = {[0x52] = 1, [0x70] = 4};
    int code = frame->at < frame->end ? *frame->at++ : 0x40, width = widths[code];
    if (frame->end - frame->at < width) fail("the broker sent a frame that ends too soon");
    frame->at += width;
    return peek(frame->at - width, width);
}

static struct frame await(struct client *client, int performative) {
    struct frame frame;
    double started_s = now_s();
    while (now_s() - started_s < 10) {
        while (take_frame(client, &frame))
            if (frame.performative == performative) return frame;
        fill(client, 0);
    }
    fail("waited 10 s for performative 0x%02x", performative);
}

static void await_header(struct client *client, const char *expected) {
    double started_s = now_s();
    while (client->have - client->used < 8 && now_s() - started_s < 10) fill(client, 0);
    if (client->have - client->used < 8 || memcmp(client->buffer + client->used, expected, 8))
        fail("the broker does not speak AMQP 1.0 with SASL here");
    client->used += 8;
}

static void log_in(struct client *client) {
    uint8_t storage[1024];
    struct bytes out = {storage, 0};
    const char *user = text("user"), *password = text("password");
    put_block(&out, "AMQP\3\1\0\0", 8);
    size_t frame = begin_frame(&out, SASL), list = begin_list(&out, INIT);
    put_text(&out, 0xa3, *user ? "PLAIN" : "ANONYMOUS");
    if (*user) {
        put(&out, 1, 0xa0);
        put(&out, 1, strlen(user) + strlen(password) + 2);
        put(&out, 1, 0);
        put_block(&out, user, strlen(user) + 1);
        put_block(&out, password, strlen(password));
    }
    end_list(&out, list, *user ? 2 : 1);
    end_frame(&out, frame);
    write_all(client->socket, out.start, out.length);
    await_header(client, "AMQP\3\1\0\0");
    struct frame outcome = await(client, OUTCOME);
    if (outcome.end - outcome.at < 2 || outcome.at[1] != 0) fail("log in: refused");
}

static struct client *dial(void) {
    struct client *client = allocate(sizeof *client);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int error = getaddrinfo(text("host"), text("port"), &hints, &found), one = 1;
    if (error) fail("%s:%s: %s", text("host"), text("port"), gai_strerror(error));
    client->socket = socket(found->ai_family, SOCK_STREAM, 0);
    if (client->socket < 0 || connect(client->socket, found->ai_addr, found->ai_addrlen))
        fail("connect to %s:%s: %s", text("host"), text("port"), strerror(errno));
    freeaddrinfo(found);
    setsockopt(client->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    blocking_socket(client->socket, FAST_POLL_MS);
    log_in(client);
    send_open(client->socket);
    await_header(client, "AMQP\0\1\0\0");
    await(client, BEGIN);
    return client;
}

/* ---- the two sides ---- */

/* What the broker has allowed, as the ids at which to stop: delivery ids and delivery-count both start at 0 and run
 * together. */
struct allowance {
    uint32_t window_end, credit_end;
};

static void take_flow(struct allowance *allowance, struct frame *frame) {
    uint32_t next_incoming_id = take_uint(frame), incoming_window = take_uint(frame);
    allowance->window_end = next_incoming_id + incoming_window;
    take_uint(frame); /* next-outgoing-id */
    take_uint(frame); /* outgoing-window */
    if (frame->at >= frame->end || *frame->at == 0x40) return; /* no handle: about the session only */
    take_uint(frame);
    uint32_t delivery_count = take_uint(frame), link_credit = take_uint(frame);
    allowance->credit_end = delivery_count + link_credit;
}

static long allowed(const struct allowance *allowance, uint32_t sent) {
    int32_t by_window = (int32_t)(allowance->window_end - sent), by_credit = (int32_t)(allowance->credit_end - sent);
    return by_window < by_credit ? by_window : by_credit;
}

/* Every transfer differs from the others only in its delivery-id and tag, which are four bytes each. */
static size_t put_transfer(struct bytes *out, const void *message, size_t length) {
    size_t frame = begin_frame(out, AMQP), list = begin_list(out, TRANSFER), id = out->length + 2;
    put(out, 1, 0x43); /* handle 0 */
    put_uint(out, 0);
    put(out, 2, 0xa004);
    put(out, 4, 0);
    put(out, 1, 0x43); /* message-format 0 */
    put(out, 1, 0x41); /* settled */
    end_list(out, list, 5);
    put_block(out, message, length);
    end_frame(out, frame);
    return id - frame;
}

long fast10_publish(const char *address, const void *message, size_t length, struct meter *meter) {
    if (length > FAST_BATCH_BYTES - TRANSFER_BYTES)
        fail("fast=1 sends messages of up to %d bytes", FAST_BATCH_BYTES - TRANSFER_BYTES);
    struct client *client = dial();
    struct bytes batch = {allocate(FAST_BATCH_BYTES), 0};
    size_t id_at = put_transfer(&batch, message, length), one = batch.length;
    long per_batch = FAST_BATCH_BYTES / one, sent = 0, count = (long)number("count");
    while (batch.length < per_batch * one) put_transfer(&batch, message, length);
    send_attach(client->socket, true, address);
    struct frame frame = await(client, FLOW);
    struct allowance allowance = {0};
    take_flow(&allowance, &frame);
    double secs = number("secs");
    *meter = meter_start();
    flow_start();
    while (count ? sent < count : now_s() - flow.started_s < secs) {
        fill(client, allowed(&allowance, (uint32_t)sent) > 0 ? MSG_DONTWAIT : 0);
        while (take_frame(client, &frame))
            if (frame.performative == FLOW) take_flow(&allowance, &frame);
        long part = allowed(&allowance, (uint32_t)sent);
        if (part <= 0) continue;
        if (part > per_batch) part = per_batch;
        if (count && count - sent < part) part = count - sent;
        for (long i = 0; i < part; i++) {
            struct bytes id = {batch.start + i * one + id_at, 0}, tag = {id.start + 6, 0};
            put(&id, 4, sent + i);
            put(&tag, 4, sent + i);
        }
        write_all(client->socket, batch.start, part * one);
        flow.sent = sent += part;
    }
    return sent;
}

void fast10_consume(const char *address) {
    struct client *client = dial();
    uint32_t credit = (uint32_t)number("credit"), renewed = 0;
    long received = 0;
    send_attach(client->socket, false, address);
    await(client, ATTACH);
    send_credit(client->socket, 0, credit);
    flow_ready();
    while (!flow_ended()) {
        struct frame frame;
        if (!fill(client, 0)) continue;
        while (take_frame(client, &frame)) received += frame.performative == TRANSFER;
        flow_received(received);
        if (received - renewed <= credit / 2) continue;
        renewed = (uint32_t)received;
        send_credit(client->socket, renewed, credit);
    }
}
