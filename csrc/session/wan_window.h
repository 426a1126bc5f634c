/* Owns how many bytes may be on their way to a receiver: fitted to the link, so that it is full however long it is, and
 * nothing waits in buffers on the way that could wait in the queue. Knows no clock; one dispatcher's.
 *
 * Acknowledgements come in the order of sending, so what was in flight when a batch left has arrived when its
 * acknowledgement comes: flight / round trip is the rate. The window is twice what that rate carries during the
 * shortest round trip. */
#ifndef WAN_WINDOW_H
#define WAN_WINDOW_H
#include "base/wan_base.h"

#define WAN_WINDOW_START (2u << 20) /* Doubles with every round trip while the link takes it. */
#define WAN_WINDOW_FLOOR (256u << 10)
#define WAN_WINDOW_HICCUP_US                                                                                           \
    20000u /* On a shorter round trip the window covers this: threads wait for a processor so long. */
#define WAN_WINDOW_EPOCH_US                                                                                            \
    1000000u /* A window is made smaller by what the best of so long a time shows, and of at least */
#define WAN_WINDOW_EPOCH_TRIPS 4u /* so many round trips and as many batches. */
#define WAN_WINDOW_TRIP_AGE_US                                                                                         \
    60000000u /* A round trip that nothing came near for so long is measured anew: the link may be shorter. */

typedef struct {
    uint64_t bytes; /* The window; others may wan_read it, as the round trip. WAN_WINDOW_FLOOR <= bytes <= limit, but
                       where the limit is lower. */
    uint64_t limit; /* The receiver's credit. */
    uint64_t round_trip_us;     /* The shortest one known; 0: none yet. */
    uint64_t round_trip_at_us;  /* When it was measured. */
    uint64_t best, best_before; /* The largest window that a batch of this epoch, and of the one before, asked for. */
    uint64_t epoch_at_us;       /* When it began. */
    uint32_t told;              /* Batches of this epoch that tell what the link carries. */
    uint8_t measuring;          /* One batch goes alone, to measure the round trip. */
} wan_window;

typedef struct { /* Of a batch on its way. */
    uint64_t sent_us;
    uint64_t flight;   /* Bytes on their way when it left, its own among them. */
    uint8_t was_full;  /* It filled the window. */
    uint8_t was_alone; /* Nothing else was on its way. */
} wan_window_mark;

void wan_window_init(wan_window *window, uint64_t limit, uint64_t now_us);
/* The receiver's newest credit. */
void wan_window_set_limit(wan_window *window, uint64_t limit);
/* Whether another batch may leave with `flight` bytes on their way. One always may where nothing is. */
static inline int wan_window_is_open(const wan_window *window, uint64_t flight)
{
    return flight == 0 || (!window->measuring && flight < window->bytes);
}
/* A batch leaves; `flight` counts it. */
wan_window_mark wan_window_sent(const wan_window *window, uint64_t flight, uint64_t bytes, uint64_t now_us);
void wan_window_acknowledged(wan_window *window, const wan_window_mark *mark, uint64_t now_us);

#endif
