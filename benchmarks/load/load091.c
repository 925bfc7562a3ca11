/* Load over AMQP 0-9-1, with the C client library that others use (librabbitmq).
 *
 * Owns the modes below: who publishes, who consumes, what is counted. Comes in: options; goes out: one JSON object
 * (load.h). Nothing here is tuned to one broker: every peer gets the same calls. With fast=1 the library only opens
 * the connection; fast091.c then speaks for it. Methods and their meaning: AMQP 0-9-1 reference, and RabbitMQ's
 * page on confirms. */
#define _GNU_SOURCE
#include "fast.h"
#include "load.h"

#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <malloc.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FRAME_BYTES_MAX 131072
#define POLL_MS 100
#define REPLY_TIMEOUT_S 10
#define CONFIRM_SAMPLES_MAX 4000000
#define CHURN_BYTES 16
#define LISTEN_BURST 1000

enum { TRANSIENT = 1, PERSISTENT = 2 };

typedef amqp_connection_state_t connection_t;

static char queue_name[256], reply_name[256], tap_name[256];
static const char *queue_type; /* x-queue-type to declare with; empty: the broker's own default */
static size_t size;
static uint8_t *body;

/* ---- the library, with its errors made into sentences ---- */

static void check(amqp_rpc_reply_t reply, const char *what) {
    if (reply.reply_type == AMQP_RESPONSE_NORMAL) return;
    if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION)
        fail("%s: %s", what, amqp_error_string2(reply.library_error));
    if (reply.reply_type != AMQP_RESPONSE_SERVER_EXCEPTION || !reply.reply.decoded) fail("%s: no answer", what);
    amqp_channel_close_t *close = reply.reply.decoded; /* connection.close begins with the same fields */
    fail("%s: the broker said %d %.*s", what, close->reply_code, (int)close->reply_text.len,
         (char *)close->reply_text.bytes);
}

static connection_t dial_to(const char *port) {
    connection_t connection = amqp_new_connection();
    amqp_socket_t *socket = connection ? amqp_tcp_socket_new(connection) : NULL;
    if (!socket) fail("no memory for a connection");
    int status = amqp_socket_open(socket, text("host"), atoi(port));
    if (status) fail("connect to %s:%s: %s", text("host"), port, amqp_error_string2(status));
    check(amqp_login(connection, text("vhost"), 0, FRAME_BYTES_MAX, 0, AMQP_SASL_METHOD_PLAIN, text("user"),
                     text("password")),
          "log in");
    amqp_channel_open(connection, 1);
    check(amqp_get_rpc_reply(connection), "open a channel");
    return connection;
}

static connection_t dial(void) { return dial_to(text("port")); }

static void hang_up(connection_t connection) {
    check(amqp_connection_close(connection, AMQP_REPLY_SUCCESS), "close the connection");
    amqp_destroy_connection(connection);
}

static long declare_as(connection_t connection, const char *name, bool durable, bool passive, const char *type,
                       const char *tap) {
    amqp_table_entry_t entries[2];
    amqp_table_t arguments = {.entries = entries};
    const char *pairs[][2] = {{"x-queue-type", type}, {"x-tap", tap}};
    for (int i = 0; i < 2; i++) {
        if (!*pairs[i][1]) continue;
        amqp_table_entry_t *entry = &entries[arguments.num_entries++];
        entry->key = amqp_cstring_bytes(pairs[i][0]);
        entry->value.kind = AMQP_FIELD_KIND_UTF8;
        entry->value.value.bytes = amqp_cstring_bytes(pairs[i][1]);
    }
    amqp_queue_declare_ok_t *ok =
        amqp_queue_declare(connection, 1, amqp_cstring_bytes(name), passive, durable, 0, 0, arguments);
    check(amqp_get_rpc_reply(connection), "declare a queue");
    return ok->message_count;
}

static long declare(connection_t connection, const char *name, bool durable, bool passive) {
    if (*tap_name) declare_as(connection, tap_name, true, false, "stream", "");
    return declare_as(connection, name, durable, passive, queue_type, tap_name);
}

static void delete_queue(connection_t connection, const char *name) {
    amqp_queue_delete(connection, 1, amqp_cstring_bytes(name), 0, 0);
    check(amqp_get_rpc_reply(connection), "delete the queue");
}

static void publish_to(connection_t connection, const char *exchange, const char *key, const void *from, size_t length,
                       int delivery_mode) {
    amqp_basic_properties_t properties = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG, .delivery_mode = delivery_mode};
    amqp_bytes_t message = {length, (void *)from};
    int status = amqp_basic_publish(connection, 1, amqp_cstring_bytes(exchange), amqp_cstring_bytes(key), 0, 0,
                                    &properties, message);
    if (status) fail("publish: %s", amqp_error_string2(status));
}

static void publish(connection_t connection, const char *key, const void *from, size_t length, int delivery_mode) {
    publish_to(connection, "", key, from, length, delivery_mode);
}

static void subscribe(connection_t connection, const char *name, bool no_ack) {
    if (!no_ack) {
        amqp_basic_qos(connection, 1, 0, (uint16_t)number("prefetch"), 0);
        check(amqp_get_rpc_reply(connection), "set the prefetch");
    }
    amqp_basic_consume(connection, 1, amqp_cstring_bytes(name), amqp_empty_bytes, 0, no_ack, 0, amqp_empty_table);
    check(amqp_get_rpc_reply(connection), "consume");
}

/* The next message, or false after POLL_MS without one. */
static bool next(connection_t connection, amqp_envelope_t *envelope) {
    struct timeval timeout = {0, POLL_MS * 1000};
    amqp_maybe_release_buffers(connection);
    amqp_rpc_reply_t reply = amqp_consume_message(connection, envelope, &timeout, 0);
    if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION && reply.library_error == AMQP_STATUS_TIMEOUT) return false;
    check(reply, "wait for a message");
    return true;
}

/* ---- flows: thr, reliable, paced, backlog ---- */

static void *consume_unconfirmed(void *unused) {
    connection_t connection = dial();
    for (long at = 0; at < number("queues"); at++)
        declare(connection, fast_queue(queue_name, at), number("durable"), false);
    if (number("fast")) {
        /* Nothing is published yet, so that the library cannot have read a delivery when it is done with many. */
        bool many = number("queues") > 1;
        for (long at = 0; many && at < number("queues"); at++)
            subscribe(connection, fast_queue(queue_name, at), true);
        fast091_consume(amqp_get_sockfd(connection), many ? NULL : queue_name);
        return unused; /* the library has not seen these frames: the socket closes with the program */
    }
    subscribe(connection, queue_name, true);
    flow_ready();
    for (long received = 0; !flow_ended();) {
        amqp_envelope_t envelope;
        if (!next(connection, &envelope)) continue;
        flow_received(++received);
        amqp_destroy_envelope(&envelope);
    }
    hang_up(connection);
    return unused;
}

static long publish_unconfirmed(connection_t connection) {
    if (number("fast")) return fast091_publish(amqp_get_sockfd(connection), queue_name, body, size);
    long sent = 0;
    for (; flow_more(sent); flow.sent = ++sent) publish(connection, queue_name, body, size, TRANSIENT);
    return sent;
}

static void thr(void) {
    pthread_t consumer = start_thread(consume_unconfirmed, NULL);
    flow_wait_ready();
    connection_t connection = dial(), control = dial();
    struct meter meter = meter_start();
    flow_start();
    flow_sent(publish_unconfirmed(connection));
    long depth = flow.sent - flow.received;
    pthread_join(consumer, NULL);
    meter_stop(&meter);
    report_open(number("fast") ? "thr-fast" : "thr");
    report_flow(&meter, size);
    report("depth_at_end", depth);
    report_close();
    for (long at = 0; at < number("queues"); at++) delete_queue(control, fast_queue(queue_name, at));
    if (*tap_name) delete_queue(control, tap_name);
}

static void *consume_confirmed(void *unused) {
    connection_t connection = dial();
    long ack_every = (long)number("ack_every");
    declare(connection, queue_name, true, false);
    subscribe(connection, queue_name, false);
    flow_ready();
    uint64_t tag = 0, acked = 0;
    for (long received = 0; !flow_ended();) {
        amqp_envelope_t envelope;
        bool got = next(connection, &envelope);
        if (got) {
            tag = envelope.delivery_tag;
            flow_received(++received);
            amqp_destroy_envelope(&envelope);
        }
        if (tag > acked && (!got || received % ack_every == 0 || flow_ended())) {
            int status = amqp_basic_ack(connection, 1, acked = tag, 1);
            if (status) fail("acknowledge: %s", amqp_error_string2(status));
        }
    }
    hang_up(connection);
    return unused;
}

/* Publishes awaiting their confirm: a ring by tag, of which every tag up to `low` is confirmed. */
struct window {
    long size, tag, low, nacks;
    double *published_s;
    bool *confirmed;
    struct samples latency;
};

static void confirm(struct window *window, const amqp_frame_t *frame) {
    if (frame->frame_type != AMQP_FRAME_METHOD) return;
    amqp_method_number_t method = frame->payload.method.id;
    if (method != AMQP_BASIC_ACK_METHOD && method != AMQP_BASIC_NACK_METHOD)
        fail("wait for a confirm: the broker sent %s", amqp_method_name(method));
    amqp_basic_ack_t *ack = frame->payload.method.decoded; /* basic.nack begins with the same fields */
    long tag = (long)ack->delivery_tag;
    if (tag <= 0 || tag > window->tag) fail("wait for a confirm: tag %ld was never published", tag);
    double now = now_s();
    window->nacks += method == AMQP_BASIC_NACK_METHOD;
    for (long i = ack->multiple ? window->low + 1 : tag; i <= tag; i++) {
        if (window->confirmed[i % window->size]) continue;
        window->confirmed[i % window->size] = true;
        samples_add(&window->latency, now - window->published_s[i % window->size]);
    }
    while (window->low < window->tag && window->confirmed[(window->low + 1) % window->size])
        window->confirmed[++window->low % window->size] = false;
}

static void publish_confirmed(connection_t connection, struct window *window) {
    for (bool more = true; more || window->low < window->tag;) {
        if (more && window->tag - window->low < window->size) {
            window->published_s[++window->tag % window->size] = now_s();
            publish(connection, queue_name, body, size, PERSISTENT);
            flow.sent = window->tag;
            more = flow_more(window->tag);
            continue;
        }
        amqp_frame_t frame;
        amqp_maybe_release_buffers(connection);
        int status = amqp_simple_wait_frame(connection, &frame);
        if (status) fail("wait for a confirm: %s", amqp_error_string2(status));
        confirm(window, &frame);
    }
}

static void reliable(void) {
    long slots = (long)number("window");
    if (slots < 1) fail("window=%ld: at least one message must be on its way", slots);
    struct window window = {.size = slots, .latency = samples_new(CONFIRM_SAMPLES_MAX)};
    window.published_s = allocate(slots * sizeof(double));
    window.confirmed = allocate(slots);
    pthread_t consumer = start_thread(consume_confirmed, NULL);
    flow_wait_ready();
    connection_t connection = dial();
    amqp_confirm_select(connection, 1);
    check(amqp_get_rpc_reply(connection), "select confirms");
    struct meter meter = meter_start();
    flow_start();
    publish_confirmed(connection, &window);
    flow_sent(window.tag);
    pthread_join(consumer, NULL);
    meter_stop(&meter);
    report_open("reliable");
    report_flow(&meter, size);
    report("nacks", window.nacks);
    report_samples("confirm_", &window.latency);
    report_close();
    delete_queue(connection, queue_name);
    if (*tap_name) delete_queue(connection, tap_name);
    hang_up(connection);
}

static struct samples one_way;

static void *consume_stamped(void *unused) {
    connection_t connection = dial();
    declare(connection, queue_name, false, false);
    subscribe(connection, queue_name, true);
    flow_ready();
    for (long received = 0; !flow_ended();) {
        amqp_envelope_t envelope;
        double stamp;
        if (!next(connection, &envelope)) continue;
        memcpy(&stamp, envelope.message.body.bytes, sizeof stamp);
        samples_add(&one_way, now_s() - stamp);
        flow_received(++received);
        amqp_destroy_envelope(&envelope);
    }
    hang_up(connection);
    return unused;
}

/* One message every 1/rate seconds, whether or not the broker keeps up. A message's age counts from when it was
 * due, so that a stall is charged to every message it delayed. */
static void paced(void) {
    double rate = number("rate"), secs = number("secs"), due;
    if (rate < 1 || size < sizeof due) fail("paced needs rate >= 1 and size >= %zu", sizeof due);
    one_way = samples_new((long)(rate * secs) + 1);
    pthread_t consumer = start_thread(consume_stamped, NULL);
    flow_wait_ready();
    connection_t connection = dial();
    struct meter meter = meter_start();
    flow_start();
    long sent = 0;
    for (; sent < rate * secs; flow.sent = ++sent) {
        due = flow.started_s + sent / rate;
        double early = due - now_s();
        if (early > 0) nap(early);
        memcpy(body, &due, sizeof due);
        publish(connection, queue_name, body, size, TRANSIENT);
    }
    flow_sent(sent);
    pthread_join(consumer, NULL);
    meter_stop(&meter);
    report_open("paced");
    report_flow(&meter, size);
    report_samples("", &one_way);
    report_close();
    delete_queue(connection, queue_name);
    hang_up(connection);
}

/* The same rate, to an exchange, and nobody takes anything. */
static void flood(void) {
    double rate = number("rate"), secs = number("secs");
    connection_t connection = dial();
    flow_start();
    long sent = 0;
    for (; sent < rate * secs; sent++) {
        double early = flow.started_s + sent / rate - now_s();
        if (early > 0) nap(early);
        publish_to(connection, text("exchange"), queue_name, body, size, TRANSIENT);
    }
    report_open("flood");
    report("sent", sent);
    report_close();
    hang_up(connection);
}

static void fence(connection_t connection);

static void backlog(void) {
    connection_t connection = dial(), control = dial();
    bool durable = number("durable");
    declare(connection, queue_name, durable, false);
    double rss_before = broker_rss_kb();
    struct meter meter = meter_start();
    flow_start();
    long sent = publish_unconfirmed(connection), depth;
    double published_s = now_s();
    while ((depth = declare(control, queue_name, durable, true)) < sent && now_s() - published_s < 120) nap(0.02);
    if (durable) fence(connection), sent++;
    meter_stop(&meter);
    nap(number("hold"));
    double rss_full = broker_rss_kb();
    report_open(number("fast") ? "backlog-fast" : "backlog");
    report("size", size);
    report("count", sent);
    report("depth", depth);
    report("fill_per_s", sent / meter.wall_s);
    report("growth_kb", rss_full - rss_before);
    report_meter(&meter, sent);
    if (number("leave")) return report_close(); /* for a run in mode drain, perhaps after a restart */
    double drain_started_s = now_s();
    flow_sent(sent);
    pthread_join(start_thread(consume_unconfirmed, NULL), NULL);
    report("drain_per_s", flow.received / (flow.received_s - drain_started_s));
    report("missing", sent - flow.received);
    report("rss_before_kb", rss_before);
    report("rss_full_kb", rss_full);
    report("bytes_per_message", (rss_full - rss_before) * 1024 / sent);
    report("out_of_order", fast_out_of_order);
    nap(number("hold"));
    report("rss_after_kb", broker_rss_kb());
    report_close();
    delete_queue(control, queue_name);
}

static void drain(void) {
    connection_t control = dial();
    bool durable = number("durable");
    long count = declare(control, queue_name, durable, true);
    double rss_before = broker_rss_kb();
    struct meter meter = meter_start();
    flow_start();
    flow_sent(count);
    pthread_join(start_thread(consume_unconfirmed, NULL), NULL);
    meter_stop(&meter);
    report_open("drain");
    report("first_ms", flow_first_ms());
    report_flow(&meter, size);
    report("out_of_order", fast_out_of_order);
    report("growth_kb", broker_rss_kb() - rss_before);
    report_close();
    delete_queue(control, queue_name);
}

/* ---- round trips: rtt, and conns with its before and after ---- */

static atomic_bool trips_over;

static void *echo(void *unused) {
    connection_t connection = dial_to(*text("echo_port") ? text("echo_port") : text("port"));
    bool made_before = number("leave");
    declare(connection, queue_name, false, made_before);
    subscribe(connection, queue_name, true);
    flow_ready();
    while (!trips_over) {
        amqp_envelope_t envelope;
        if (!next(connection, &envelope)) continue;
        amqp_bytes_t answer = envelope.message.body;
        publish_to(connection, text("reply_exchange"), reply_name, answer.bytes, answer.len, TRANSIENT);
        amqp_destroy_envelope(&envelope);
    }
    if (!made_before) delete_queue(connection, queue_name);
    hang_up(connection);
    return unused;
}

/* client -> queue -> echo -> reply queue -> client, one at a time; the first tenth only warms up. */
static struct meter round_trips(struct samples *samples) {
    struct meter meter = {0};
    trips_over = false;
    pthread_t other = start_thread(echo, NULL);
    flow_wait_ready();
    connection_t connection = dial();
    bool made_before = number("leave");
    declare(connection, reply_name, false, made_before);
    subscribe(connection, reply_name, true);
    double secs = number("secs"), started_s = now_s();
    for (long trip = -(samples->count_max / 10); trip < samples->count_max && now_s() - started_s < secs; trip++) {
        amqp_envelope_t envelope;
        if (!trip) meter = meter_start();
        double sent_s = now_s();
        publish(connection, queue_name, body, size, TRANSIENT);
        while (!next(connection, &envelope))
            if (now_s() - sent_s > REPLY_TIMEOUT_S) fail("no reply in %d s", REPLY_TIMEOUT_S);
        if (trip >= 0) samples_add(samples, now_s() - sent_s);
        if (envelope.message.body.len != size) fail("sent %zu bytes, got %zu back", size, envelope.message.body.len);
        amqp_destroy_envelope(&envelope);
    }
    meter_stop(&meter);
    trips_over = true;
    pthread_join(other, NULL);
    if (!made_before) delete_queue(connection, reply_name);
    hang_up(connection);
    if (!samples->count) fail("secs=%s was over before the warm-up was", text("secs"));
    return meter;
}

static void rtt(void) {
    struct samples samples = samples_new(number("count") ? (long)number("count") : 5000);
    struct meter meter = round_trips(&samples);
    report_open("rtt");
    report("size", size);
    report_samples("", &samples);
    report_meter(&meter, samples.count);
    report_close();
}

static void conns(void) {
    long wanted = (long)number("conns"), trips = (long)number("trips");
    struct samples before = samples_new(trips), during = samples_new(trips);
    if (trips) round_trips(&before);
    double rss_before = broker_rss_kb(), started_s = now_s();
    connection_t *open = allocate(wanted * sizeof *open);
    for (long i = 0; i < wanted; i++) open[i] = dial();
    double opening_s = now_s() - started_s;
    struct meter meter = meter_start();
    nap(number("hold"));
    meter_stop(&meter);
    double rss_open = broker_rss_kb(), idle_cpu_percent = meter.broker_s / meter.wall_s * 100;
    if (trips) meter = round_trips(&during);
    report_open("conns");
    report("conns", wanted);
    report("opened_per_s", wanted / opening_s);
    report("rss_before_kb", rss_before);
    report("rss_open_kb", rss_open);
    report("kb_per_conn", (rss_open - rss_before) / wanted);
    report("idle_broker_cpu_percent", idle_cpu_percent);
    if (trips) report_samples("before_", &before);
    if (trips) report_samples("during_", &during);
    report_meter(&meter, trips ? trips : wanted);
    report_close();
}

/* ---- churn ---- */

static atomic_long visits;

static void *visit(void *unused) {
    double secs = number("secs");
    while (now_s() - flow.started_s < secs) {
        connection_t connection = dial();
        publish(connection, queue_name, body, CHURN_BYTES, TRANSIENT);
        hang_up(connection);
        visits++;
    }
    return unused;
}

static void churn(void) {
    int workers = (int)number("workers");
    pthread_t *threads = allocate(workers * sizeof *threads);
    connection_t control = dial();
    declare(control, queue_name, false, false);
    struct meter meter = meter_start();
    flow_start();
    for (int i = 0; i < workers; i++) threads[i] = start_thread(visit, NULL);
    for (int i = 0; i < workers; i++) pthread_join(threads[i], NULL);
    double seconds = now_s() - flow.started_s, waiting_s = now_s();
    long arrived;
    while ((arrived = declare(control, queue_name, false, true)) < visits && now_s() - waiting_s < REPLY_TIMEOUT_S)
        nap(0.02);
    meter_stop(&meter);
    report_open("churn");
    report("workers", workers);
    report("conns", visits);
    report("missing", visits - arrived);
    report("conns_per_s", visits / seconds);
    report_meter(&meter, visits);
    report_close();
    delete_queue(control, queue_name);
    hang_up(control);
}

/* One confirmed message more: the broker has everything that was sent before it, where it will stay. */
static void fence(connection_t connection) {
    struct window window = {.size = 1, .latency = samples_new(1)};
    window.published_s = allocate(sizeof(double));
    window.confirmed = allocate(1);
    amqp_confirm_select(connection, 1);
    check(amqp_get_rpc_reply(connection), "select confirms");
    struct bytes mark = {body, 0};
    if (size >= 8) put(&mark, 8, flow.sent); /* the next number, as fast091_publish counts */
    publish(connection, queue_name, body, size, PERSISTENT);
    for (window.tag = 1; window.low < window.tag;) {
        amqp_frame_t frame;
        int status = amqp_simple_wait_frame(connection, &frame);
        if (status) fail("wait for a confirm: %s", amqp_error_string2(status));
        confirm(&window, &frame);
    }
}

static void stream(void) {
    long count = (long)number("count"), readers = (long)number("readers");
    if (count < 1) fail("count=%ld: how many messages shall the stream have?", count);
    connection_t connection = dial();
    declare(connection, queue_name, true, false);
    struct meter appended = meter_start();
    flow_start();
    long sent = 1 + (number("bare") ? count : publish_unconfirmed(connection));
    if (!number("bare")) fence(connection);
    meter_stop(&appended);
    struct meter read = {0};
    double first_s = 0; /* the first one has the broker fetch from its disk what the others may find in memory */
    for (long reader = 0; reader < readers; reader++) {
        connection_t own = dial();
        amqp_basic_qos(own, 1, 0, (uint16_t)number("prefetch"), 0);
        check(amqp_get_rpc_reply(own), "set the prefetch");
        struct meter one = meter_start();
        fast091_read(amqp_get_sockfd(own), queue_name, sent);
        meter_stop(&one);
        if (!reader) first_s = one.wall_s;
        read.wall_s += one.wall_s;
        read.broker_s += one.broker_s;
        read.self_s += one.self_s;
        close(amqp_get_sockfd(own)); /* the library has not seen these frames */
    }
    report_open("stream");
    if (!number("bare")) {
        report("appended_per_s", sent / appended.wall_s);
        report("append_cpu_us", appended.broker_s / sent * 1e6);
    }
    if (readers) {
        report("read_per_s", sent * readers / read.wall_s);
        report("first_read_per_s", sent / first_s);
        if (readers > 1) report("later_read_per_s", sent * (readers - 1) / (read.wall_s - first_s));
        report("read_cpu_us", read.broker_s / (sent * readers) * 1e6);
        report("reader_cpu_us", read.self_s / (sent * readers) * 1e6);
    }
    report_meter(number("bare") ? &read : &appended, sent);
    report_close();
    delete_queue(connection, queue_name);
    hang_up(connection);
}

/* Takes what an exchange gets, until standard input ends. One line says when the binding is there. */
static void listen_to(void) {
    connection_t connection = dial();
    long received = 0;
    declare(connection, queue_name, false, false);
    amqp_queue_bind(connection, 1, amqp_cstring_bytes(queue_name), amqp_cstring_bytes(text("exchange")),
                    amqp_cstring_bytes(text("key")), amqp_empty_table);
    check(amqp_get_rpc_reply(connection), "bind the queue");
    subscribe(connection, queue_name, true);
    puts("listening");
    fflush(stdout);
    for (struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN}; !poll(&input, 1, 0);) {
        amqp_envelope_t envelope;
        for (int burst = 0; burst < LISTEN_BURST && next(connection, &envelope); burst++, received++)
            amqp_destroy_envelope(&envelope);
    }
    report_open("listen");
    report("received", received);
    report_close();
    delete_queue(connection, queue_name);
    hang_up(connection);
}

static const struct mode modes[] = {
    {"thr", thr, "transient messages, no confirms, consumer without acks (size, count or secs, fast, queues)"},
    {"reliable", reliable, "durable queue, persistent, confirmed, acknowledged (window, prefetch, ack_every, qtype)"},
    {"paced", paced, "rate messages a second, whatever happens; their age on arrival (rate, secs, size)"},
    {"flood", flood, "rate messages a second to an exchange, taken by nobody (rate, secs, size, exchange, queue)"},
    {"rtt", rtt, "client, queue, echo, reply queue, client; one at a time (size, count, echo_port, reply_exchange, leave)"},
    {"churn", churn, "connect, open a channel, publish one, close (workers, secs)"},
    {"conns", conns, "idle connections: memory of each, round trips before and with them (conns, trips, hold)"},
    {"backlog", backlog, "publish with no consumer, then drain (count or secs, size, fast, hold, durable, leave)"},
    {"drain", drain, "consume what is there, to the end (queue, fast, durable)"},
    {"stream", stream, "append to a stream, then read it by one reader after the other (count, size, readers)"},
    {"store", store, "no broker: copy messages once and write them to a file, synced (count, size, dir)"},
    {"fetch", fetch, "no broker: write a file, then read it back from the disk (count, size, dir)"},
    {"listen", listen_to, "count what an exchange gives, until standard input ends (exchange, key)"},
    {NULL, NULL, NULL}};

static struct option options[] = {
    {"host", "127.0.0.1", "where the broker listens"},
    {"port", "5672", ""},
    {"user", "guest", "authenticated with PLAIN"},
    {"password", "guest", ""},
    {"vhost", "/", ""},
    {"pid", "0", "the broker's process, or several with commas: CPU and memory are then measured"},
    {"queue", "", "name of the queue; empty: one of this run's own"},
    {"exchange", "weft.events", "where mode listen is bound"},
    {"key", "#", "the key it is bound with"},
    {"tap", "0", "1: everything the queue gets is copied into a stream (thr, reliable; weft only)"},
    {"qtype", "", "x-queue-type to declare with, such as quorum"},
    {"size", "1024", "bytes of a message's body"},
    {"count", "0", "how many messages or round trips; 0: as many as fit in secs"},
    {"secs", "5", "how long to publish, at most"},
    {"fast", "0", "1: encode once, write 64 KiB at a time, count frames (thr, backlog)"},
    {"queues", "1", "so many queues take turns, all with the same consumer (thr with fast=1)"},
    {"durable", "0", "1: a durable queue, persistent messages (backlog, drain)"},
    {"leave", "0", "1: leave the messages where they are (backlog), use queues that are there (rtt)"},
    {"echo_port", "", "where the echo of rtt is, if not at the same broker; something must carry messages between"},
    {"exchange", "", "what mode flood publishes to, with the queue's name as key"},
    {"reply_exchange", "", "what the echo publishes to; the reply queue's name is the key"},
    {"window", "1000", "messages published and not yet confirmed"},
    {"prefetch", "1000", "messages delivered and not yet acknowledged"},
    {"ack_every", "100", "acknowledge so many at once"},
    {"readers", "3", "readers in mode stream"},
    {"rate", "5000", "messages a second in modes paced and flood"},
    {"workers", "4", "clients at once in mode churn"},
    {"conns", "5000", "connections in mode conns"},
    {"trips", "0", "round trips before, and with, the idle connections"},
    {"hold", "2", "seconds of rest before memory is read"},
    {"bare", "0", "1: no broker, a process of our own that only gives the answers (churn, stream: reading only)"},
    {"dir", "/tmp", "where modes store and fetch write"},
    {NULL, NULL, NULL}};

static void use_bare(void) {
    static char port_text[16], pid_text[16];
    int port;
    snprintf(pid_text, sizeof pid_text, "%d", start_bare(&port));
    snprintf(port_text, sizeof port_text, "%d", port);
    for (struct option *option = options; option->key; option++) {
        if (!strcmp(option->key, "port")) option->value = port_text;
        if (!strcmp(option->key, "pid")) option->value = pid_text;
    }
}

static void prepare(const char *mode) {
    mallopt(M_MMAP_THRESHOLD, 1 << 28); /* the library frees 128 KiB with each connection: to give them back to the */
    mallopt(M_TRIM_THRESHOLD, 1 << 28); /* kernel and get them anew is half of what a connection costs the client */
    if (number("bare")) use_bare();
    if (number("queues") < 1 || (number("queues") > 1 && (!number("fast") || strcmp(mode, "thr"))))
        fail("queues needs mode thr and fast=1");
    size = (size_t)number("size");
    queue_type = strcmp(mode, "stream") ? text("qtype") : "stream";
    body = allocate(size > CHURN_BYTES ? size : CHURN_BYTES);
    if (*text("queue")) snprintf(queue_name, sizeof queue_name, "%s", text("queue"));
    else snprintf(queue_name, sizeof queue_name, "load.%d", getpid());
    snprintf(reply_name, sizeof reply_name, "%.200s.reply", queue_name);
    if (number("tap")) snprintf(tap_name, sizeof tap_name, "%.200s.tap", queue_name);
}

int main(int argc, char **argv) {
    return load_main(argc, argv, "load over AMQP 0-9-1", prepare, modes, options);
}
