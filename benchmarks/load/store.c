/* The floor under everything that is stored: messages copied once and written to a file, or read from one, and nothing
 * else.
 *
 * Owns a file that is gone at the end. Comes in: how many messages of which size; goes out: how many a second, and the
 * CPU of each. Batches of a megabyte go past the page cache and are synced one by one, as a journal does it. It must
 * never checksum, index or frame anything: whatever a broker costs above this is the broker's. Rule: open(2),
 * "O_DIRECT". */
#define _GNU_SOURCE
#include "fast.h"
#include "load.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BATCH_BYTES (1 << 20)
#define PAGE_BYTES (2 << 20)
#define FILE_BYTES (64 << 20)

/* A file past the page cache that nobody else has, and a batch to write from or read into. */
static int open_file(void **batch) {
    char path[512];
    snprintf(path, sizeof path, "%s/weft-bench-XXXXXX", text("dir"));
    int made = mkstemp(path), file = made < 0 ? -1 : open(path, O_RDWR | O_DIRECT);
    unlink(path);
    if (file < 0) fail("%s: %s", path, strerror(errno));
    close(made);
    if (posix_memalign(batch, PAGE_BYTES, PAGE_BYTES)) fail("no memory");
    /* In one piece of the machine's memory, if there is one: a disk reads into that several times as fast. */
    madvise(*batch, PAGE_BYTES, MADV_HUGEPAGE);
    memset(*batch, 1, PAGE_BYTES);
    return file;
}

static void report_done(const char *mode, struct meter *meter, long count) {
    report_open(mode);
    report("per_s", count / meter->wall_s);
    report_meter(meter, count);
}

void fetch(void) {
    long count = (long)number("count"), size = (long)number("size");
    if (count < 1 || size < 1) fail("mode fetch wants a count and a size");
    void *batch;
    int file = open_file(&batch);
    off_t bytes = ((off_t)count * size + BATCH_BYTES - 1) / BATCH_BYTES * BATCH_BYTES;
    for (off_t place = 0; place < bytes; place += BATCH_BYTES)
        if (pwrite(file, batch, BATCH_BYTES, place) != BATCH_BYTES) fail("write: %s", strerror(errno));
    if (fdatasync(file)) fail("sync: %s", strerror(errno));
    struct meter meter = meter_start();
    for (off_t place = 0; place < bytes; place += BATCH_BYTES)
        if (pread(file, batch, BATCH_BYTES, place) != BATCH_BYTES) fail("read: %s", strerror(errno));
    meter_stop(&meter);
    close(file);
    report_done("fetch", &meter, count);
    report_close();
    free(batch);
}

/* Copies as many messages as a batch holds: how many those are. What it takes is added up in `spent_s`. */
static long copy(char *batch, const char *messages, long size, double *spent_s) {
    double begun_s = now_s();
    long at = 0;
    for (; at + size <= BATCH_BYTES; at += size) memcpy(batch + at, messages + at, size);
    *spent_s += now_s() - begun_s;
    return at / size;
}

void store(void) {
    long count = (long)number("count"), size = (long)number("size"), stored = 0, alone = 0;
    if (count < 1 || size < 1 || size > BATCH_BYTES) fail("mode store wants a count, and a size of at most 1 MiB");
    void *batch;
    int file = open_file(&batch);
    if (ftruncate(file, FILE_BYTES)) fail("make room: %s", strerror(errno));
    char *messages = allocate(BATCH_BYTES), *unwritten = allocate(BATCH_BYTES);
    double copied_s = 0, alone_s = 0;
    struct meter meter = meter_start();
    for (off_t place = 0; stored < count; place = (place + BATCH_BYTES) % FILE_BYTES) {
        /* New blocks each time round, as a log that only grows. */
        if (!place && stored && (ftruncate(file, 0) || ftruncate(file, FILE_BYTES))) fail("cut: %s", strerror(errno));
        stored += copy(batch, messages, size, &copied_s);
        if (pwrite(file, batch, BATCH_BYTES, place) != BATCH_BYTES || fdatasync(file)) fail("write: %s", strerror(errno));
    }
    meter_stop(&meter);
    close(file);
    /* The same copies into memory that no disk reads: what is above that is taken by getting the memory back. */
    while (alone < count) alone += copy(unwritten, messages, size, &alone_s);
    report_done("store", &meter, stored);
    report("copy_us", copied_s * 1e6 / stored);
    report("copy_alone_us", alone_s * 1e6 / alone);
    report_close();
    free(batch);
    free(messages);
    free(unwritten);
}
