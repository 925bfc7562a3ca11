/* The floor under everything that is stored: messages copied once and written to a file, and nothing else.
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
#include <unistd.h>

#define BATCH_BYTES (1 << 20)
#define BLOCK_BYTES 4096
#define FILE_BYTES (64 << 20)

void store(void) {
    long count = (long)number("count"), size = (long)number("size"), stored = 0;
    if (count < 1 || size < 1 || size > BATCH_BYTES) fail("mode store wants a count, and a size of at most 1 MiB");
    char path[512];
    snprintf(path, sizeof path, "%s/weft-bench-XXXXXX", text("dir"));
    int made = mkstemp(path), file = made < 0 ? -1 : open(path, O_WRONLY | O_DIRECT);
    unlink(path);
    if (file < 0 || ftruncate(file, FILE_BYTES)) fail("%s: %s", path, strerror(errno));
    void *batch;
    if (posix_memalign(&batch, BLOCK_BYTES, BATCH_BYTES)) fail("no memory");
    char *messages = allocate(BATCH_BYTES);
    struct meter meter = meter_start();
    for (off_t place = 0; stored < count; place = (place + BATCH_BYTES) % FILE_BYTES) {
        /* New blocks each time round, as a log that only grows. */
        if (!place && stored && (ftruncate(file, 0) || ftruncate(file, FILE_BYTES))) fail("cut: %s", strerror(errno));
        for (long at = 0; at + size <= BATCH_BYTES; at += size, stored++) memcpy((char *)batch + at, messages + at, size);
        if (pwrite(file, batch, BATCH_BYTES, place) != BATCH_BYTES || fdatasync(file)) fail("write: %s", strerror(errno));
    }
    meter_stop(&meter);
    close(file);
    close(made);
    report_open("store");
    report("per_s", stored / meter.wall_s);
    report_meter(&meter, stored);
    report_close();
    free(batch);
    free(messages);
}
