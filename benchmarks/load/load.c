/* The parts that every load generator shares; what each is for stands in load.h.
 *
 * Owns the parsed options, the counters of the running flow and the result line under construction. Comes in: the
 * command line and /proc. Goes out: one JSON object, or one line of error. It must never know a protocol or a
 * broker by name. */
#define _GNU_SOURCE
#include "load.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define READY_TIMEOUT_S 30
#define SILENCE_S 10

static const char *program = "load";
static struct option *options;
struct flow flow;

/* ---- options ---- */

_Noreturn void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    flockfile(stderr);
    fprintf(stderr, "%s: ", program);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    _exit(1); /* other threads may be in the middle of anything: no handlers */
}

static struct option *find_option(const char *key, size_t length) {
    for (struct option *option = options; option->key; option++)
        if (strlen(option->key) == length && !strncmp(option->key, key, length)) return option;
    return NULL;
}

const char *text(const char *key) {
    struct option *option = find_option(key, strlen(key));
    if (!option) fail("no option is named %s", key);
    return option->value;
}

double number(const char *key) {
    char *end;
    const char *value = text(key);
    double result = strtod(value, &end);
    if (end == value || *end || !isfinite(result) || result < 0) fail("%s=%s is not a number from 0 up", key, value);
    return result;
}

static void help(const char *title, const struct mode *modes) {
    printf("%s - %s\n\n  %s MODE [key=value ...]\n\nmodes\n", program, title, program);
    for (; modes->name; modes++) printf("  %-9s %s\n", modes->name, modes->help);
    printf("\noptions (and their defaults)\n");
    for (struct option *option = options; option->key; option++) {
        char pair[64];
        snprintf(pair, sizeof pair, "%s=%s", option->key, option->value);
        printf("  %-16s %s\n", pair, option->help);
    }
    printf("\nOne JSON object is printed per run. cpu figures are microseconds per unit of work; other_cpu is how\n"
           "many cores something else kept busy meanwhile: repeat a run that was disturbed.\n");
}

int load_main(int argc, char **argv, const char *title, void (*prepare)(const char *mode), const struct mode *modes,
              struct option *table) {
    program = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    options = table;
    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        help(title, modes);
        return argc < 2 ? 2 : 0;
    }
    for (int i = 2; i < argc; i++) {
        char *equals = strchr(argv[i], '=');
        struct option *option = equals ? find_option(argv[i], equals - argv[i]) : NULL;
        if (!option) fail("unknown option %s (try %s --help)", argv[i], program);
        option->value = equals + 1;
    }
    for (; modes->name; modes++)
        if (!strcmp(modes->name, argv[1])) {
            open_files_limit_raise();
            sem_init(&flow.ready, 0, 0);
            flow.total = -1;
            prepare(modes->name);
            modes->run();
            return 0;
        }
    fail("unknown mode %s (try %s --help)", argv[1], program);
}

/* ---- the system ---- */

double now_s(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

void nap(double seconds) {
    struct timespec time = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    while (nanosleep(&time, &time) && errno == EINTR) continue;
}

void *allocate(size_t bytes) {
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory) fail("no memory for %zu bytes", bytes);
    return memory;
}

void open_files_limit_raise(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

pthread_t start_thread(void *(*body)(void *), void *argument) {
    pthread_t thread;
    int error = pthread_create(&thread, NULL, body, argument);
    if (error) fail("start a thread: %s", strerror(error));
    return thread;
}

/* ---- flow ---- */

void flow_ready(void) {
    flow.received_s = now_s();
    sem_post(&flow.ready);
}

void flow_wait_ready(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += READY_TIMEOUT_S;
    while (sem_timedwait(&flow.ready, &until))
        if (errno != EINTR) fail("the consumer was not ready after %d s", READY_TIMEOUT_S);
}

void flow_start(void) { flow.started_s = now_s(); }

bool flow_more(long sent) {
    static double count = -1, secs;
    if (count < 0) count = number("count"), secs = number("secs");
    if (count) return sent < count;
    return sent % 16 || now_s() - flow.started_s < secs; /* the clock is not worth a look per message */
}

void flow_sent(long sent) {
    flow.sent = sent;
    flow.sent_s = now_s();
    flow.total = sent;
}

static _Atomic double first_s;

double flow_first_ms(void) { return (first_s - flow.started_s) * 1e3; }

void flow_received(long received) {
    if (received && !atomic_load_explicit(&first_s, memory_order_relaxed)) first_s = now_s();
    atomic_store_explicit(&flow.received, received, memory_order_relaxed); /* once per message: no fence is needed */
    atomic_store_explicit(&flow.received_s, now_s(), memory_order_relaxed);
}

bool flow_ended(void) {
    long total = flow.total;
    return total >= 0 && (flow.received >= total || now_s() - fmax(flow.received_s, flow.sent_s) > SILENCE_S);
}

/* ---- samples ---- */

struct samples samples_new(long count_max) {
    return (struct samples){.seconds = allocate(count_max * sizeof(double)), .count_max = count_max};
}

void samples_add(struct samples *samples, double seconds) {
    if (samples->count < samples->count_max) samples->seconds[samples->count++] = seconds;
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* ---- accounts ---- */

static FILE *broker_file(long pid, const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/%s", pid, name);
    FILE *file = fopen(path, "r");
    if (!file) fail("pid=%ld: %s: %s", pid, path, strerror(errno));
    return file;
}

/* By the process's own clock: `/proc` tells ticks of 10 ms, which is a percent of a second. */
static double process_cpu_s(long pid) {
    clockid_t clock;
    struct timespec used;
    if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &used)) fail("cannot read the broker's CPU time");
    return used.tv_sec + used.tv_nsec * 1e-9;
}

/* Where messages pass several brokers, pid lists them all, with commas between. */
double broker_cpu_s(void) {
    double sum_s = 0;
    char *next = (char *)text("pid");
    for (long pid; (pid = strtol(next, &next, 10)) > 0; next += *next == ',') sum_s += process_cpu_s(pid);
    return sum_s;
}

double broker_rss_kb(void) {
    char line[256];
    long kb = 0, pid = atol(text("pid")); /* of the first */
    if (!pid) return 0;
    FILE *file = broker_file(pid, "status");
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "VmRSS: %ld", &kb) == 1) break;
    fclose(file);
    return kb;
}

static double self_cpu_s(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static double machine_cpu_s(void) {
    unsigned long user, nice, system, idle, wait, hard, soft, stolen;
    FILE *file = fopen("/proc/stat", "r");
    if (!file) return 0;
    int fields = fscanf(file, "cpu %lu %lu %lu %lu %lu %lu %lu %lu", &user, &nice, &system, &idle, &wait, &hard, &soft,
                        &stolen);
    fclose(file);
    return fields == 8 ? (double)(user + nice + system + hard + soft + stolen) / sysconf(_SC_CLK_TCK) : 0;
}

struct meter meter_start(void) {
    return (struct meter){now_s(), machine_cpu_s(), self_cpu_s(), broker_cpu_s()};
}

void meter_stop(struct meter *meter) {
    struct meter stop = meter_start();
    meter->wall_s = stop.wall_s - meter->wall_s;
    meter->machine_s = stop.machine_s - meter->machine_s;
    meter->self_s = stop.self_s - meter->self_s;
    meter->broker_s = stop.broker_s - meter->broker_s;
}

/* ---- the result line ---- */

void report_open(const char *mode) { printf("{\"tool\": \"%s\", \"mode\": \"%s\"", program, mode); }

void report(const char *key, double value) {
    if (isfinite(value)) printf(", \"%s\": %.10g", key, value);
    else printf(", \"%s\": null", key);
}

void report_flow(const struct meter *meter, double bytes_per_message) {
    double sending_s = flow.sent_s - flow.started_s, receiving_s = flow.received_s - flow.started_s;
    report("size", bytes_per_message);
    report("sent", flow.sent);
    report("missing", flow.sent - flow.received);
    report("seconds", receiving_s);
    report("sent_per_s", flow.sent / sending_s);
    report("per_s", flow.received / receiving_s);
    report_meter(meter, flow.sent);
}

void report_samples(const char *prefix, struct samples *samples) {
    static const struct { const char *name; double rank; } ranks[] = {
        {"min", 0}, {"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"max", 1}};
    char key[64];
    double sum = 0;
    long count = samples->count;
    qsort(samples->seconds, count, sizeof(double), ascending);
    for (long i = 0; i < count; i++) sum += samples->seconds[i];
    snprintf(key, sizeof key, "%scount", prefix);
    report(key, count);
    if (!count) return;
    snprintf(key, sizeof key, "%smean_us", prefix);
    report(key, round(sum / count * 1e8) / 100);
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        snprintf(key, sizeof key, "%s%s_us", prefix, ranks[i].name);
        report(key, round(samples->seconds[(long)((count - 1) * ranks[i].rank)] * 1e8) / 100);
    }
}

void report_meter(const struct meter *meter, double units) {
    bool knows_broker = atol(text("pid")) > 0;
    double other_s = meter->machine_s - meter->self_s - meter->broker_s;
    report("client_cpu_us", meter->self_s / units * 1e6);
    if (!knows_broker) return; /* without its pid the broker itself would count as a disturbance */
    report("broker_cpu_us", meter->broker_s / units * 1e6);
    report("broker_rss_kb", broker_rss_kb());
    report("other_cpu", fmax(0, other_s / meter->wall_s));
}

void report_close(void) {
    printf("}\n");
    fflush(stdout);
}

/* ---- bytes ---- */

void put(struct bytes *bytes, int width, uint64_t value) {
    while (width--) bytes->start[bytes->length++] = (uint8_t)(value >> (8 * width));
}

void put_block(struct bytes *bytes, const void *block, size_t length) {
    memcpy(bytes->start + bytes->length, block, length);
    bytes->length += length;
}

uint64_t peek(const uint8_t *from, int width) {
    uint64_t value = 0;
    while (width--) value = value << 8 | *from++;
    return value;
}

/* Reading and writing wait in the kernel, which costs the client no second system call; reads give up after the
 * timeout. */
void blocking_socket(int socket, int receive_timeout_ms) {
    struct timeval timeout = {receive_timeout_ms / 1000, receive_timeout_ms % 1000 * 1000};
    int flags = fcntl(socket, F_GETFL);
    if (flags < 0 || fcntl(socket, F_SETFL, flags & ~O_NONBLOCK) ||
        setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout))
        fail("prepare the socket: %s", strerror(errno));
}

void write_all(int socket, const uint8_t *from, size_t length) {
    while (length) {
        ssize_t written = send(socket, from, length, MSG_NOSIGNAL);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) fail("write to the broker: %s", strerror(errno));
        from += written;
        length -= written;
    }
}
