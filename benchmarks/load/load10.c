/* Load over AMQP 1.0, with the C client library that others use (Qpid Proton's proactor).
 *
 * Owns the modes below: who sends, who receives, what is counted. Comes in: options; goes out: one JSON object
 * (load.h). Each client is a proactor of its own in a thread of its own, and a role: a table of what it does on
 * credit, message and outcome. Nothing here is tuned to one broker; with fast=1 fast10.c takes the library out.
 * Links, credit and settlement: AMQP 1.0 specification, part 2. */
#define _GNU_SOURCE
#include "fast.h"
#include "load.h"

#include <proton/condition.h>
#include <proton/connection.h>
#include <proton/delivery.h>
#include <proton/event.h>
#include <proton/link.h>
#include <proton/message.h>
#include <proton/proactor.h>
#include <proton/sasl.h>
#include <proton/session.h>
#include <proton/terminus.h>
#include <proton/transport.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BITE_BYTES 65536          /* sent between two turns of the proactor, so that it can write to the socket */
#define UNWRITTEN_BYTES_MAX 262144 /* more than that waits in the library: let the socket catch up */
#define CONFIRM_SAMPLES_MAX 4000000
#define TICK_MS 100
#define OPENING_MAX 10 /* connections being opened at once: listen backlogs are short */

struct client;
struct role {
    const char *send_to, *receive_from; /* addresses of its links; NULL: no such link */
    void (*on_credit)(struct client *client);
    void (*on_message)(struct client *client);
    void (*on_outcome)(struct client *client, pn_delivery_t *delivery);
    void (*on_wake)(struct client *client); /* every TICK_MS, and when the client asked for a turn */
};
struct client {
    const struct role *role;
    pn_proactor_t *proactor;
    pn_connection_t *connection;
    pn_link_t *sender, *receiver;
    long sent, settled, rejected, opened;
    char *message; /* the last one received */
    size_t message_length, message_capacity;
    double *sent_s; /* ring of `window` send times */
    struct samples *samples;
    struct meter *meter;
    bool closing, closed;
};

static char address[256], reply_address[256];
static size_t size;
static long window, credit;
static bool settled;
static pn_rwbytes_t message;

/* ---- connections and links ---- */

static void encode(void) {
    pn_message_t *source = pn_message();
    char *body = allocate(size);
    pn_message_set_durable(source, !settled);
    pn_message_set_inferred(source, true); /* the body is one data section */
    pn_data_put_binary(pn_message_body(source), pn_bytes(size, body));
    ssize_t length = pn_message_encode2(source, &message);
    if (length < 0) fail("encode a message: %s", pn_error_text(pn_message_error(source)));
    message.size = length;
    pn_message_free(source);
}

static void dial(struct client *client) {
    static atomic_int number_of;
    char where[PN_MAX_ADDR], container[64];
    const char *user = text("user");
    pn_proactor_addr(where, sizeof where, text("host"), text("port"));
    snprintf(container, sizeof container, "load10-%d-%d", getpid(), number_of++);
    client->connection = pn_connection();
    pn_connection_set_container(client->connection, container);
    pn_connection_set_hostname(client->connection, *text("vhost") ? text("vhost") : text("host"));
    pn_transport_t *transport = pn_transport();
    if (*user) {
        pn_connection_set_user(client->connection, user);
        pn_connection_set_password(client->connection, text("password"));
    }
    pn_sasl_allowed_mechs(pn_sasl(transport), *user ? "PLAIN" : "ANONYMOUS");
    pn_sasl_set_allow_insecure_mechs(pn_sasl(transport), true);
    pn_proactor_connect2(client->proactor, client->connection, transport, where);
}

static pn_link_t *attach(pn_session_t *session, bool sends, const char *to) {
    pn_link_t *link = sends ? pn_sender(session, "out") : pn_receiver(session, "in");
    pn_terminus_set_address(sends ? pn_link_target(link) : pn_link_source(link), to);
    pn_terminus_set_address(sends ? pn_link_source(link) : pn_link_target(link), "load");
    pn_link_set_snd_settle_mode(link, settled ? PN_SND_SETTLED : PN_SND_UNSETTLED);
    pn_link_set_rcv_settle_mode(link, PN_RCV_FIRST);
    pn_link_open(link);
    if (!sends) pn_link_flow(link, credit);
    return link;
}

static void open_all(struct client *client, pn_connection_t *connection) {
    pn_session_t *session = pn_session(connection);
    pn_connection_open(connection);
    pn_session_open(session);
    if (client->role->receive_from) client->receiver = attach(session, false, client->role->receive_from);
    if (client->role->send_to) client->sender = attach(session, true, client->role->send_to);
}

static void hang_up(struct client *client) {
    if (!client->closing) pn_connection_close(client->connection);
    client->closing = true;
}

static void send_bytes(struct client *client, const char *from, size_t length) {
    long tag = ++client->sent;
    if (client->sent_s) client->sent_s[tag % window] = now_s();
    pn_delivery_t *delivery = pn_delivery(client->sender, pn_dtag((char *)&tag, sizeof tag));
    pn_link_send(client->sender, from, length);
    pn_link_advance(client->sender);
    if (settled) pn_delivery_settle(delivery);
}

/* ---- events ---- */

static void take_message(struct client *client, pn_delivery_t *delivery) {
    pn_link_t *link = pn_delivery_link(delivery);
    if (!pn_delivery_readable(delivery) || pn_delivery_partial(delivery)) return;
    client->message_length = pn_delivery_pending(delivery);
    if (client->message_length > client->message_capacity) {
        client->message_capacity = client->message_length * 2;
        client->message = allocate(client->message_capacity); /* grows once or twice a run: the old one may stay */
    }
    pn_link_recv(link, client->message, client->message_length);
    if (!pn_delivery_settled(delivery)) pn_delivery_update(delivery, PN_ACCEPTED);
    pn_delivery_settle(delivery);
    if (pn_link_credit(link) <= credit / 2) pn_link_flow(link, credit - pn_link_credit(link));
    if (client->role->on_message) client->role->on_message(client);
}

static void take_outcome(struct client *client, pn_delivery_t *delivery) {
    if (!pn_delivery_updated(delivery) || !pn_delivery_remote_state(delivery)) return;
    client->settled++;
    client->rejected += pn_delivery_remote_state(delivery) != PN_ACCEPTED;
    if (client->role->on_outcome) client->role->on_outcome(client, delivery);
    pn_delivery_settle(delivery);
}

static void check(pn_event_t *event, pn_condition_t *condition) {
    if (!condition || !pn_condition_is_set(condition)) return;
    const char *description = pn_condition_get_description(condition);
    fail("%s: %s %s", pn_event_type_name(pn_event_type(event)), pn_condition_get_name(condition),
         description ? description : "");
}

static void handle(struct client *client, pn_event_t *event) {
    const struct role *role = client->role;
    pn_delivery_t *delivery = pn_event_delivery(event);
    switch (pn_event_type(event)) {
    case PN_CONNECTION_INIT: open_all(client, pn_event_connection(event)); break;
    case PN_SESSION_REMOTE_OPEN: client->opened++; break;
    case PN_LINK_REMOTE_OPEN:
        if (pn_event_link(event) == client->receiver) flow_ready();
        break;
    case PN_LINK_FLOW:
    case PN_TRANSPORT:
        if (role->on_credit && client->sender && !client->closing && pn_link_credit(client->sender) > 0)
            role->on_credit(client);
        break;
    case PN_DELIVERY:
        if (pn_link_is_receiver(pn_delivery_link(delivery))) take_message(client, delivery);
        else take_outcome(client, delivery);
        break;
    case PN_PROACTOR_TIMEOUT:
        pn_proactor_set_timeout(client->proactor, TICK_MS);
        pn_connection_wake(client->connection); /* a connection may be touched only in a turn of its own */
        break;
    case PN_CONNECTION_WAKE:
        if (role->on_wake) role->on_wake(client);
        break;
    case PN_CONNECTION_REMOTE_CLOSE:
        check(event, pn_connection_remote_condition(pn_event_connection(event)));
        if (!client->closing) fail("the broker closed the connection");
        break;
    case PN_SESSION_REMOTE_CLOSE: check(event, pn_session_remote_condition(pn_event_session(event))); break;
    case PN_LINK_REMOTE_DETACH:
    case PN_LINK_REMOTE_CLOSE: check(event, pn_link_remote_condition(pn_event_link(event))); break;
    case PN_TRANSPORT_CLOSED:
        check(event, pn_transport_condition(pn_event_transport(event)));
        client->closed = true;
        break;
    default: break;
    }
}

static void turn(struct client *client) {
    pn_event_batch_t *batch = pn_proactor_wait(client->proactor);
    for (pn_event_t *event; !client->closed && (event = pn_event_batch_next(batch));) handle(client, event);
    pn_proactor_done(client->proactor, batch);
}

static void *run(void *argument) {
    struct client *client = argument;
    client->proactor = pn_proactor();
    if (client->role->on_wake) pn_proactor_set_timeout(client->proactor, TICK_MS);
    dial(client);
    while (!client->closed) turn(client);
    return NULL;
}

/* ---- flows: thr, reliable, backlog ---- */

static void count_message(struct client *client) {
    flow_received(flow.received + 1);
    if (flow_ended()) hang_up(client);
}

static void end_when_all_came(struct client *client) {
    if (flow_ended()) hang_up(client);
}

static bool may_send(struct client *client) {
    return pn_link_credit(client->sender) > 0 && (settled || client->sent - client->settled < window);
}

/* Sends one bite and asks for another turn; once the run is over and all is written and settled, hangs up. */
static void pump(struct client *client) {
    if (client->closing || !flow.started_s) return;
    pn_session_t *session = pn_link_session(client->sender);
    bool more = true;
    if (pn_session_outgoing_bytes(session) < UNWRITTEN_BYTES_MAX) {
        long bite = BITE_BYTES / message.size + 1;
        while (bite-- && may_send(client) && (more = flow_more(client->sent)))
            send_bytes(client, message.start, message.size);
        flow.sent = client->sent;
        if (more && may_send(client)) pn_connection_wake(client->connection);
    }
    bool all_out = (settled || client->settled == client->sent) && !pn_session_outgoing_bytes(session);
    if (!flow_more(client->sent) && all_out) {
        flow_sent(client->sent);
        hang_up(client);
    }
}

static void start_or_pump(struct client *client) {
    if (!flow.started_s) {
        *client->meter = meter_start();
        flow_start();
    }
    pump(client);
}

static void time_outcome(struct client *client, pn_delivery_t *delivery) {
    long tag;
    memcpy(&tag, pn_delivery_tag(delivery).start, sizeof tag);
    samples_add(client->samples, now_s() - client->sent_s[tag % window]);
    pump(client);
}

static const struct role sending = {
    .send_to = address, .on_credit = start_or_pump, .on_outcome = time_outcome, .on_wake = pump};
static const struct role receiving = {
    .receive_from = address, .on_message = count_message, .on_wake = end_when_all_came};

static void *receive_fast(void *unused) {
    fast10_consume(address);
    return unused;
}

static void thr_fast(void) {
    pthread_t receiver = start_thread(receive_fast, NULL);
    flow_wait_ready();
    struct meter meter = {0};
    flow_sent(fast10_publish(address, message.start, message.size, &meter));
    long depth = flow.sent - flow.received;
    pthread_join(receiver, NULL);
    meter_stop(&meter);
    report_open("thr-fast");
    report_flow(&meter, size);
    report("depth_at_end", depth);
    report_close();
}

static void flow_of(const char *mode) {
    struct meter meter = {0};
    struct samples latency = samples_new(settled ? 0 : CONFIRM_SAMPLES_MAX);
    struct client sender = {.role = &sending, .meter = &meter, .samples = &latency}, receiver = {.role = &receiving};
    sender.sent_s = allocate(window * sizeof(double));
    pthread_t thread = start_thread(run, &receiver);
    flow_wait_ready();
    run(&sender);
    long depth = flow.sent - flow.received;
    pthread_join(thread, NULL);
    meter_stop(&meter);
    report_open(mode);
    report_flow(&meter, size);
    report("depth_at_end", depth);
    if (!settled) {
        report("rejected", sender.rejected);
        report_samples("confirm_", &latency);
    }
    report_close();
}

static void thr(void) {
    if (number("fast")) thr_fast();
    else flow_of("thr");
}

static void reliable(void) { flow_of("reliable"); }

static void backlog(void) {
    struct meter meter = {0};
    struct client sender = {.role = &sending, .meter = &meter}, receiver = {.role = &receiving};
    double rss_before = broker_rss_kb();
    run(&sender); /* comes back when the broker has answered close, so it has read everything */
    meter_stop(&meter);
    nap(number("hold"));
    double rss_full = broker_rss_kb(), drain_started_s = now_s();
    report_open("backlog");
    report("size", size);
    report("count", flow.sent);
    report("fill_per_s", flow.sent / meter.wall_s);
    flow.received_s = drain_started_s;
    run(&receiver);
    report("drain_per_s", flow.received / (flow.received_s - drain_started_s));
    report("missing", flow.sent - flow.received);
    report("rss_before_kb", rss_before);
    report("rss_full_kb", rss_full);
    report("bytes_per_message", (rss_full - rss_before) * 1024 / flow.sent);
    nap(number("hold"));
    report("rss_after_kb", broker_rss_kb());
    report_meter(&meter, flow.sent);
    report_close();
}

/* ---- round trips: rtt, and conns with its before and after ---- */

static atomic_bool trips_over;

static void send_back(struct client *client) { send_bytes(client, client->message, client->message_length); }

static void stop_echo(struct client *client) {
    if (trips_over) hang_up(client);
}

static void first_trip(struct client *client) {
    if (!client->sent) send_bytes(client, message.start, message.size);
}

/* The first tenth only warms up. */
static void next_trip(struct client *client) {
    long warm_up = client->samples->count_max / 10;
    if (client->message_length < size) fail("sent %zu bytes, got %zu back", size, client->message_length);
    if (client->sent > warm_up) samples_add(client->samples, now_s() - client->sent_s[client->sent % window]);
    if (client->sent == warm_up) *client->meter = meter_start();
    if (client->samples->count == client->samples->count_max) hang_up(client);
    else send_bytes(client, message.start, message.size);
}

static const struct role echoing = {
    .send_to = reply_address, .receive_from = address, .on_message = send_back, .on_wake = stop_echo};
static const struct role calling = {
    .send_to = address, .receive_from = reply_address, .on_credit = first_trip, .on_message = next_trip};

static struct meter round_trips(struct samples *samples) {
    struct meter meter = meter_start();
    struct client echo = {.role = &echoing}, caller = {.role = &calling, .samples = samples, .meter = &meter};
    caller.sent_s = allocate(window * sizeof(double));
    trips_over = false;
    pthread_t other = start_thread(run, &echo);
    flow_wait_ready();
    run(&caller);
    flow_wait_ready(); /* the caller's own receiver has reported too */
    meter_stop(&meter);
    trips_over = true;
    pthread_join(other, NULL);
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

static const struct role idling = {0};

static void conns(void) {
    long wanted = (long)number("conns"), trips = (long)number("trips");
    struct samples before = samples_new(trips), during = samples_new(trips);
    struct client idle = {.role = &idling};
    if (trips) round_trips(&before);
    double rss_before = broker_rss_kb(), started_s = now_s();
    idle.proactor = pn_proactor();
    for (long i = 1; i <= wanted; i++) {
        dial(&idle);
        while (i - idle.opened > (i == wanted ? 0 : OPENING_MAX)) turn(&idle);
    }
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

static void send_one_and_leave(struct client *client) {
    if (client->closing) return;
    send_bytes(client, message.start, message.size);
    hang_up(client);
}

static const struct role visiting = {.send_to = address, .on_credit = send_one_and_leave};

static void *visit(void *unused) {
    double secs = number("secs");
    pn_proactor_t *proactor = pn_proactor();
    while (now_s() - flow.started_s < secs) {
        struct client visitor = {.role = &visiting, .proactor = proactor};
        dial(&visitor);
        while (!visitor.closed) turn(&visitor);
        visits++;
    }
    return unused;
}

static void churn(void) {
    int workers = (int)number("workers");
    pthread_t *threads = allocate(workers * sizeof *threads);
    struct meter meter = meter_start();
    flow_start();
    for (int i = 0; i < workers; i++) threads[i] = start_thread(visit, NULL);
    for (int i = 0; i < workers; i++) pthread_join(threads[i], NULL);
    double seconds = now_s() - flow.started_s;
    meter_stop(&meter);
    report_open("churn");
    report("workers", workers);
    report("conns", visits);
    report("conns_per_s", visits / seconds);
    report_meter(&meter, visits);
    report_close();
}

static const struct mode modes[] = {
    {"thr", thr, "pre-settled transfers (size, count or secs, credit, fast)"},
    {"reliable", reliable, "durable, unsettled, an outcome for each on both sides (window, credit)"},
    {"rtt", rtt, "client, address, echo, reply address, client; one at a time (size, count)"},
    {"churn", churn, "connect, open a session and a link, send one, close (workers, secs)"},
    {"conns", conns, "idle connections: memory of each, round trips before and with them (conns, trips, hold)"},
    {"backlog", backlog, "send with no receiver, then drain (count or secs, size, hold)"},
    {NULL, NULL, NULL}};

static struct option options[] = {
    {"host", "127.0.0.1", "where the broker listens"},
    {"port", "5672", ""},
    {"user", "guest", "authenticated with PLAIN; empty: ANONYMOUS"},
    {"password", "guest", ""},
    {"vhost", "", "hostname of open; empty: the host"},
    {"pid", "0", "the broker's process: its CPU and memory are then measured"},
    {"address", "", "where to send; the broker must make what does not exist; empty: one of this run's own"},
    {"size", "1024", "bytes of a message's body"},
    {"count", "0", "how many messages or round trips; 0: as many as fit in secs"},
    {"secs", "5", "how long to send, at most"},
    {"fast", "0", "1: encode once, write 64 KiB at a time, count frames (thr)"},
    {"window", "1000", "messages sent and not yet settled"},
    {"credit", "10000", "what a receiver grants, renewed at half"},
    {"workers", "4", "clients at once in mode churn"},
    {"conns", "5000", "connections in mode conns"},
    {"trips", "0", "round trips before, and with, the idle connections"},
    {"hold", "2", "seconds of rest before memory is read"},
    {NULL, NULL, NULL}};

static void prepare(const char *mode) {
    settled = strcmp(mode, "reliable");
    size = (size_t)number("size");
    window = (long)number("window");
    credit = (long)number("credit");
    if (window < 1 || credit < 1) fail("window and credit must be at least 1");
    if (*text("address")) snprintf(address, sizeof address, "%s", text("address"));
    else snprintf(address, sizeof address, "load.%d", getpid());
    snprintf(reply_address, sizeof reply_address, "%.200s.reply", address);
    encode();
}

int main(int argc, char **argv) { return load_main(argc, argv, "load over AMQP 1.0", prepare, modes, options); }
