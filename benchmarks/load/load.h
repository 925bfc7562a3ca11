/* What every load generator shares: options, clock, samples, the broker's own accounts, one line of results.
 *
 * A program hands its table of modes and options to `load_main`, which reads `MODE key=value ...`, prints help and
 * refuses what it does not know. Results leave as one JSON object on standard output; anything that goes wrong
 * leaves as one line on standard error and exit code 1. Nothing here knows a messaging protocol. CPU and memory of
 * the broker are read from /proc as proc(5) describes them. */
#ifndef LOAD_H
#define LOAD_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mode {
    const char *name;
    void (*run)(void);
    const char *help;
};
struct option {
    const char *key, *value, *help; /* value: the default, until the command line replaces it */
};

/* Both tables end with an entry whose first field is NULL. */
int load_main(int argc, char **argv, const char *title, void (*prepare)(const char *mode), const struct mode *modes,
              struct option *options);
const char *text(const char *key);
double number(const char *key);
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

double now_s(void);
void nap(double seconds);
void *allocate(size_t bytes); /* zeroed; ends the program when there is none */
void open_files_limit_raise(void);
pthread_t start_thread(void *(*body)(void *), void *argument);

/* A run of messages from a publisher to a consumer, each in its thread. `total` is -1 until the publisher has
 * stopped. */
struct flow {
    atomic_long sent, received, total;
    _Atomic double started_s, sent_s, received_s;
    sem_t ready;
};
extern struct flow flow;
void flow_ready(void);                 /* consumer: from here on nothing is missed */
void flow_wait_ready(void);            /* publisher: wait for that */
void flow_start(void);                 /* publisher: the clock starts */
bool flow_more(long sent);             /* publisher: is the run of `count` messages or `secs` seconds still on? */
void flow_sent(long sent);             /* publisher: that was all */
void flow_received(long received);     /* consumer: so many have come */
double flow_first_ms(void);             /* from the start until the first had come */
bool flow_ended(void);                 /* consumer: all have come, or nothing has for ten seconds */

/* Durations, reported as percentiles. */
struct samples {
    double *seconds;
    long count, count_max;
};
struct samples samples_new(long count_max);
void samples_add(struct samples *samples, double seconds); /* beyond count_max: not kept */

/* CPU used over a span: by the broker (option pid), by this program, by everything else on the machine. */
struct meter {
    double wall_s, machine_s, self_s, broker_s;
};
struct meter meter_start(void);
void meter_stop(struct meter *meter); /* the readings become differences */
double broker_cpu_s(void);
double broker_rss_kb(void);

void report_open(const char *mode);
void report(const char *key, double value);
void report_flow(const struct meter *meter, double bytes_per_message);
void report_samples(const char *prefix, struct samples *samples);
void report_meter(const struct meter *meter, double units);
void report_close(void);

/* Big-endian bytes, for the modes that speak the protocol themselves. */
struct bytes {
    uint8_t *start;
    size_t length;
};
void put(struct bytes *bytes, int width, uint64_t value);
void put_block(struct bytes *bytes, const void *block, size_t length);
uint64_t peek(const uint8_t *from, int width);
void blocking_socket(int socket, int receive_timeout_ms);
void write_all(int socket, const uint8_t *from, size_t length);

#endif
