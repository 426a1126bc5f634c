/* Owns the window: how many bytes may be on their way to a receiver. The window is fitted to the link. It keeps the
 * link full, however long the link is, and keeps bytes in the queue that would only wait in buffers on the way. The
 * window reads no clock. One dispatcher uses it.
 *
 * Acknowledgements come in the order of sending. So all bytes that were on their way when a batch left have arrived
 * when the acknowledgement of the batch comes. These bytes divided by the round trip are the rate. The window is twice
 * the bytes that this rate carries in the shortest round trip. */
#ifndef WAN_WINDOW_H
#define WAN_WINDOW_H
#include "base/wan_base.h"

#define WAN_WINDOW_START (2u << 20) /* It doubles with every round trip as long as the link carries more. */
#define WAN_WINDOW_FLOOR (256u << 10)
/* If the round trip is shorter than this time, the window covers this time instead. Threads may wait so long for a
 * processor. */
#define WAN_WINDOW_HICCUP_US 20000u
/* The window becomes smaller only at the end of a period, to the best window of this period and the one before. A
 * period lasts at least this long. */
#define WAN_WINDOW_PERIOD_US 1000000u
/* A period also lasts at least this many round trips, and has at least this many telling batches. */
#define WAN_WINDOW_PERIOD_TRIPS 4u
/* If no round trip came near the shortest one for so long, the shortest one is measured again: the link may be shorter
 * now. */
#define WAN_WINDOW_TRIP_AGE_US 60000000u

typedef struct {
    /* The window. Other threads may read it and the round trip by wan_read. WAN_WINDOW_FLOOR <= bytes <= limit, unless
     * the limit is lower. */
    uint64_t bytes;
    uint64_t limit;            /* The receiver's credit. */
    uint64_t round_trip_us;    /* The shortest round trip known. 0: none yet. */
    uint64_t round_trip_at_us; /* When it was measured. */
    /* The largest window that a batch of this period (`best`) and of the period before asked for. */
    uint64_t best, best_before;
    uint64_t period_at_us;    /* When this period began. */
    uint32_t telling_batches; /* Batches of this period that tell what the link carries. */
    uint8_t measuring;        /* One batch is sent alone, to measure the round trip. */
} wan_window;

/* The data that is kept of a batch on its way. */
typedef struct {
    uint64_t sent_us;
    uint64_t flight;   /* Bytes on their way when it left, with its own bytes. */
    uint8_t was_full;  /* It filled the window. */
    uint8_t was_alone; /* No other batch was on its way. */
} wan_window_sending;

/* Begins with WAN_WINDOW_START bytes, or `limit` if that is less. */
void wan_window_init(wan_window *window, uint64_t limit, uint64_t now_us);
/* Takes the newest credit of the receiver as the limit. */
void wan_window_set_limit(wan_window *window, uint64_t limit);
/* Whether another batch may leave while `flight` bytes are on their way. If there are none, one always may. */
static inline int wan_window_is_open(const wan_window *window, uint64_t flight)
{
    return flight == 0 || (!window->measuring && flight < window->bytes);
}
/* Notes a batch that leaves. `flight` includes its bytes. The caller gives the result to wan_window_acknowledged. */
wan_window_sending wan_window_sent(const wan_window *window, uint64_t flight, uint64_t bytes, uint64_t now_us);
/* Notes that the batch was acknowledged, and fits the window to the link. */
void wan_window_acknowledged(wan_window *window, const wan_window_sending *sending, uint64_t now_us);

#endif
