/* The fast=1 side of the load generators: clients that speak the protocol themselves.
 *
 * Messages are encoded once, written 64 KiB at a time, and counted on arrival without being looked at, so that the
 * client costs next to nothing and the broker is what is measured. Each call runs one side of a flow (load.h) to
 * its end. */
#ifndef FAST_H
#define FAST_H

#include "load.h"

#include <stddef.h>

#define FAST_BATCH_BYTES 65536
#define FAST_POLL_MS 100

/* A frame of 0-9-1 on channel 1. */
void put_frame(struct bytes *out, int type, const void *payload, size_t length);

/* On a connection that the client library has opened, with channel 1 open; returns how many were sent. */
long fast091_publish(int socket, const char *queue, const void *body, size_t size);
void fast091_consume(int socket, const char *queue); /* NULL: it is subscribed already */
const char *fast_queue(const char *queue, long at); /* with queues=N, N queues of their own names take turns */
extern long fast_out_of_order; /* messages of fast091_publish that did not come next: each carries its number */
void fast091_read(int socket, const char *queue, long count); /* a stream, from its first message on */

/* On connections of their own. */
long fast10_publish(const char *address, const void *message, size_t length, struct meter *meter);
void fast10_consume(const char *address);

/* A server that only answers, as a process of its own: its pid. */
int start_bare(int *port);

/* Modes store and fetch: what it takes to store messages, or to have them from the disk again, and nothing else. */
void store(void);
void fetch(void);

#endif
