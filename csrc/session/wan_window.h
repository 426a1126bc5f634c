/* Owns the window: the number of bytes that may be in flight to a receiver. The window is fitted to the link. So the
 * link stays full, however long the link is, and bytes that would only wait in buffers on the way stay in the queue.
 * The window reads no clock. A single dispatcher uses the window.
 *
 * Acknowledgements come in the order of sending. So all bytes that were in flight when a batch left have arrived when
 * the acknowledgement of the batch comes. The number of these bytes, divided by the round trip, is the rate. The window
 * is twice the number of bytes that the rate carries in the shortest round trip. */
#ifndef WAN_WINDOW_H
#define WAN_WINDOW_H
#include "base/wan_base.h"

#define WAN_WINDOW_START (2u << 20) /* The window doubles with every round trip as long as the link carries more. */
#define WAN_WINDOW_FLOOR (256u << 10)
/* The window covers at least so much time, also if the round trip is shorter. Threads may wait so long for a
 * processor. */
#define WAN_WINDOW_HICCUP_US 20000u
/* The window shrinks only at the end of a period, to the best window of this period and of the period before. A period
 * lasts at least so long. */
#define WAN_WINDOW_PERIOD_US 1000000u
/* A period also lasts at least so many round trips, and has at least so many telling batches. */
#define WAN_WINDOW_PERIOD_TRIPS 4u
/* If no round trip came near the shortest round trip for so long, the shortest round trip is measured again: the link
 * may be shorter now. */
#define WAN_WINDOW_TRIP_AGE_US 60000000u

typedef struct {
    /* The window. All threads may read the window and the round trip by wan_read. WAN_WINDOW_FLOOR <= bytes <= limit,
     * unless the limit is lower. */
    uint64_t bytes;
    uint64_t limit;            /* The receiver's credit. */
    uint64_t round_trip_us;    /* The shortest round trip known. 0: none yet. */
    uint64_t round_trip_at_us; /* When the shortest round trip was measured. */
    /* The largest window that a batch asked for, in this period (`best`) and in the period before. */
    uint64_t best, best_before;
    uint64_t period_at_us;    /* When this period began. */
    uint32_t telling_batches; /* Batches of this period that show how much the link carries. */
    uint8_t measuring;        /* A batch is sent alone, to measure the round trip. */
} wan_window;

/* The data about a batch in flight. */
typedef struct {
    uint64_t sent_us;
    uint64_t flight;   /* Bytes in flight when the batch left, its own bytes included. */
    uint8_t was_full;  /* The batch filled the window. */
    uint8_t was_alone; /* No other batch was in flight. */
} wan_window_sending;

/* Begins with WAN_WINDOW_START bytes, or with `limit` if the limit is lower. */
void wan_window_init(wan_window *window, uint64_t limit, uint64_t now_us);
/* Takes the newest credit of the receiver as the limit. */
void wan_window_set_limit(wan_window *window, uint64_t limit);
/* Whether a further batch may leave while `flight` bytes are in flight. A batch may always leave alone. */
static inline int wan_window_is_open(const wan_window *window, uint64_t flight)
{
    return flight == 0 || (!window->measuring && flight < window->bytes);
}
/* Notes a batch that leaves. `flight` includes the batch. The caller gives the result to wan_window_acknowledged. */
wan_window_sending wan_window_sent(const wan_window *window, uint64_t flight, uint64_t bytes, uint64_t now_us);
/* Notes that the batch was acknowledged, and fits the window to the link. */
void wan_window_acknowledged(wan_window *window, const wan_window_sending *sending, uint64_t now_us);

#endif
