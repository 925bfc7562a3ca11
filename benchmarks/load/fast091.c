/* AMQP 0-9-1 frames by hand, for load091 with fast=1.
 *
 * Owns the encoding of basic.publish with its content, and a scanner that counts deliveries. Comes in: a socket on
 * which the library has opened a connection and channel 1; goes out: the counters of the flow (load.h). It never
 * answers the broker, but for the acks of a stream's reader: heartbeats are off and other deliveries need none. Frame
 * layout: AMQP 0-9-1 specification, sections 2.3.5 and 4.2. */
#include "fast.h"
#include "load.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FRAME_BYTES_MAX 131072
#define FRAME_OVERHEAD 8
#define READ_BYTES (1 << 18)

enum { FRAME_METHOD = 1, FRAME_HEADER = 2, FRAME_BODY = 3, FRAME_END = 0xCE };
enum { TRANSIENT = 1, PERSISTENT = 2 };
enum { NUMBER_BYTES = 8 };

long fast_out_of_order;

void put_frame(struct bytes *out, int type, const void *payload, size_t length) {
    put(out, 1, type);
    put(out, 2, 1); /* channel */
    put(out, 4, length);
    put_block(out, payload, length);
    put(out, 1, FRAME_END);
}

static void put_short_string(struct bytes *out, const char *string) {
    put(out, 1, strlen(string));
    put_block(out, string, strlen(string));
}

static void put_publish(struct bytes *out, const char *queue, const uint8_t *body, size_t size) {
    uint8_t storage[512];
    struct bytes method = {storage, 0}, header = {storage, 0};
    put(&method, 4, 60 << 16 | 40); /* basic.publish */
    put(&method, 2, 0);
    put(&method, 1, 0); /* the default exchange */
    put_short_string(&method, queue);
    put(&method, 1, 0);
    put_frame(out, FRAME_METHOD, method.start, method.length);
    put(&header, 4, 60 << 16);
    put(&header, 8, size);
    put(&header, 2, 1 << 12); /* delivery-mode is the only property */
    put(&header, 1, number("durable") ? PERSISTENT : TRANSIENT);
    put_frame(out, FRAME_HEADER, header.start, header.length);
    for (size_t done = 0; done < size;) {
        size_t part = size - done < FRAME_BYTES_MAX - FRAME_OVERHEAD ? size - done : FRAME_BYTES_MAX - FRAME_OVERHEAD;
        put_frame(out, FRAME_BODY, body + done, part);
        done += part;
    }
}

const char *fast_queue(const char *queue, long at) {
    static _Thread_local char name[256];
    if (number("queues") < 2) return queue;
    snprintf(name, sizeof name, "%.200s.%06ld", queue, at % (long)number("queues"));
    return name;
}

long fast091_publish(int socket, const char *queue, const void *body, size_t size) {
    long sent = 0, count = (long)number("count"), queues = (long)number("queues");
    size_t one_max = size + size / 1024 + 1024;
    struct bytes batch = {allocate(FAST_BATCH_BYTES + queues * one_max), 0};
    put_publish(&batch, fast_queue(queue, 0), body, size);
    size_t one = batch.length; /* names have one length */
    long per_batch = one < FAST_BATCH_BYTES ? FAST_BATCH_BYTES / one : 1;
    if (per_batch < queues) per_batch = queues;
    for (long at = 1; at < per_batch; at++) put_publish(&batch, fast_queue(queue, at), body, size);
    blocking_socket(socket, 0);
    double secs = number("secs");
    size_t place = one - 1 - size; /* of the body, if it is in one frame */
    bool numbered = size >= NUMBER_BYTES && size <= FRAME_BYTES_MAX - FRAME_OVERHEAD;
    while (count ? sent < count : now_s() - flow.started_s < secs) {
        long part = count && count - sent < per_batch ? count - sent : per_batch;
        for (long i = 0; numbered && i < part; i++) {
            struct bytes mark = {batch.start + i * one + place, 0};
            put(&mark, NUMBER_BYTES, sent + i);
        }
        write_all(socket, batch.start, part * one);
        flow.sent = sent += part;
    }
    return sent;
}

/* Steps over the whole frames in `bytes` and counts the messages they complete. Bodies are not looked at: `skip` is
 * how much of the current frame is still to come. */
struct scanner {
    size_t skip;
    uint64_t body_left, body_size;
    long messages;
};

static size_t scan(struct scanner *scanner, const uint8_t *bytes, size_t length) {
    size_t at = 0;
    for (;;) {
        size_t step = scanner->skip < length - at ? scanner->skip : length - at;
        at += step;
        scanner->skip -= step;
        const uint8_t *frame = bytes + at;
        size_t have = length - at;
        if (scanner->skip || have < 7 || (*frame == FRAME_HEADER && have < 19)) return at;
        if (*frame == FRAME_BODY && scanner->body_size >= NUMBER_BYTES && have < 7 + NUMBER_BYTES) return at;
        size_t payload = peek(frame + 3, 4);
        if (*frame == FRAME_HEADER) scanner->body_left = scanner->body_size = peek(frame + 11, 8);
        if (*frame == FRAME_BODY) {
            bool whole = payload == scanner->body_size && payload >= NUMBER_BYTES;
            if (whole && peek(frame + 7, NUMBER_BYTES) != (uint64_t)scanner->messages) fast_out_of_order++;
            scanner->body_left -= payload;
        }
        if (*frame != FRAME_METHOD && !scanner->body_left) scanner->messages++;
        scanner->skip = payload + FRAME_OVERHEAD;
    }
}

/* The library must not see the first delivery, so that none hides in its buffer: no-wait leaves consume-ok out. */
static void subscribe(int socket, const char *queue, bool stream) {
    uint8_t storage[600], frame[700];
    struct bytes method = {storage, 0}, out = {frame, 0};
    put(&method, 4, 60 << 16 | 20); /* basic.consume */
    put(&method, 2, 0);
    put_short_string(&method, queue);
    put_short_string(&method, "load");
    put(&method, 1, (stream ? 0 : 2) | 8); /* no-ack, no-wait */
    put(&method, 4, stream ? 26 : 0);
    if (stream) {
        put_short_string(&method, "x-stream-offset");
        put(&method, 1, 'S');
        put(&method, 4, 5);
        put_block(&method, "first", 5);
    }
    put_frame(&out, FRAME_METHOD, method.start, method.length);
    write_all(socket, out.start, out.length);
}

void fast091_consume(int socket, const char *queue) {
    size_t have = 0;
    uint8_t *bytes = allocate(READ_BYTES);
    struct scanner scanner = {0};
    blocking_socket(socket, FAST_POLL_MS);
    if (queue) subscribe(socket, queue, false);
    flow_ready();
    while (!flow_ended()) {
        ssize_t got = read(socket, bytes + have, READ_BYTES - have);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (got <= 0) fail("read from the broker: %s", got ? strerror(errno) : "it closed the connection");
        have += got;
        size_t used = scan(&scanner, bytes, have);
        memmove(bytes, bytes + used, have - used);
        have -= used;
        flow_received(scanner.messages);
    }
}

static void ack_all(int socket, long tag) {
    uint8_t storage[32], frame[64];
    struct bytes method = {storage, 0}, out = {frame, 0};
    put(&method, 4, 60 << 16 | 80); /* basic.ack */
    put(&method, 8, tag);
    put(&method, 1, 1); /* multiple */
    put_frame(&out, FRAME_METHOD, method.start, method.length);
    write_all(socket, out.start, out.length);
}

void fast091_read(int socket, const char *queue, long count) {
    long acked = 0, ack_every = (long)number("ack_every");
    size_t have = 0;
    uint8_t *bytes = allocate(READ_BYTES);
    struct scanner scanner = {0};
    blocking_socket(socket, 0);
    subscribe(socket, queue, true);
    while (scanner.messages < count) {
        ssize_t got = read(socket, bytes + have, READ_BYTES - have);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) fail("read from the broker: %s", got ? strerror(errno) : "it closed the connection");
        have += got;
        size_t used = scan(&scanner, bytes, have);
        memmove(bytes, bytes + used, have - used);
        have -= used;
        if (scanner.messages - acked >= ack_every) ack_all(socket, acked = scanner.messages);
    }
    free(bytes);
}
