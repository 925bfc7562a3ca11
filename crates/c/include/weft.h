/* An AMQP 1.0 client as a machine, for C and every language that can call C.
 *
 * Owns no socket, thread or clock: the caller reads from its transport and gives the bytes to weft_receive, writes
 * what weft_transmit has to its transport, and tells the time in nanoseconds of a clock that never goes back. A call
 * never waits. After a lost transport weft_start attaches every link again and sends again what has no outcome.
 *
 * Strings are UTF-8 and end with a zero byte. A client belongs to one thread at a time. Pointers in an event are good
 * until the next call of weft_next for the same client; what weft_transmit gives, until its next call.
 *
 * Link with libweft (cargo build --release -p weft-c).
 */
#ifndef WEFT_H
#define WEFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_client weft_client;

/* What happened. */
enum {
    WEFT_NOTHING = 0,  /* no more for now */
    WEFT_OPENED = 1,   /* the peer let us in; text is its name */
    WEFT_ATTACHED = 2, /* link is ready; text is the peer's address of it */
    WEFT_DETACHED = 3, /* link is gone for good; text says why */
    WEFT_OUTCOME = 4,  /* messages first to last, sent on link, have this verdict; text is the reason of a rejection */
    WEFT_MESSAGE = 5,  /* message first came on link; data is its body, or nothing if that is no plain data */
    WEFT_REFUSED = 6,  /* the login was refused; text says why */
    WEFT_CLOSED = 7    /* the connection is over, the transport is to be closed; text says why */
};

/* What became of a message, and what to make of one. */
enum { WEFT_ACCEPTED = 1, WEFT_RELEASED = 2, WEFT_REJECTED = 3, WEFT_FAILED = 4, WEFT_UNKNOWN = 5 };

typedef struct weft_event {
    uint32_t kind;
    uint32_t link;
    uint64_t first;
    uint64_t last;
    uint32_t verdict;
    const char *text;
    const uint8_t *data;
    size_t size;
    const uint8_t *message; /* all sections of a message, as they came */
    size_t message_size;
} weft_event;

/* A link or message that could not be had: the name or address is no UTF-8, or a limit is reached. */
#define WEFT_NO_LINK UINT32_MAX
#define WEFT_NO_MESSAGE UINT64_MAX
#define WEFT_NEVER UINT64_MAX

weft_client *weft_new(const char *container); /* NULL if the name is no UTF-8 */
void weft_free(weft_client *client);

/* A transport is connected. Without a user the login is ANONYMOUS, else PLAIN; the hostname may be NULL. 0 if so. */
int weft_start(weft_client *client, const char *hostname, const char *user, const char *password, uint64_t now_ns);
void weft_receive(weft_client *client, const uint8_t *data, size_t size, uint64_t now_ns);
size_t weft_transmit(weft_client *client, const uint8_t **data);
void weft_lost(weft_client *client);
void weft_close(weft_client *client);

/* When weft_advance wants to be called next: WEFT_NEVER, or a time. */
uint64_t weft_deadline(weft_client *client);
void weft_advance(weft_client *client, uint64_t now_ns);

/* Links to send to an address, and to receive from one with at most `window` unsettled messages. */
uint32_t weft_sender(weft_client *client, const char *address);
uint32_t weft_receiver(weft_client *client, const char *address, uint32_t window);
void weft_detach(weft_client *client, uint32_t link);

/* Sends a body of plain data; the number that its outcome will have. */
uint64_t weft_send(weft_client *client, uint32_t link, const uint8_t *data, size_t size, int durable);
/* Decides on a message that came. */
void weft_settle(weft_client *client, uint32_t link, uint64_t number, uint32_t verdict);

/* The next thing that happened; its kind. */
uint32_t weft_next(weft_client *client, weft_event *event);

#ifdef __cplusplus
}
#endif

#endif
