/* Owns the table of the reasons for which a receiver does not apply an event, a sender does not send it, or a listener
 * does not take it. The enum, the words that people read, and the table in the documents are made from its rows
 * (docs/recipes.md).
 *
 * X(number, NAME, text): the number is the one on the wire. `wan_parked_partition` is the partition of the queue of
 * parked events. */
#ifndef WAN_FAILURE_H
#define WAN_FAILURE_H

#include <stdint.h>

#define WAN_FAILURES(X)                                                                                                \
    X(1, REGION_NOT_FOUND, "the region does not exist at the remote site")                                             \
    X(2, FUTURE_STAMP, "its timestamp is too far in the future for the remote site")                                   \
    X(3, NO_MEMORY, "the remote site is out of memory")                                                                \
    X(4, LISTENER, "the listener of its asynchronous event queue failed on it (see the log here)")                     \
    X(5, OTHER, "the remote site could not apply it (see its log)")                                                    \
    X(6, FORGOTTEN,                                                                                                    \
      "it is older than destroys that the remote site does not remember any more, or by a hash only: its key may"      \
      " have been one of them")                                                                                        \
    X(7, WITHHELD, "the substitution filter of its sender failed, so it did not leave the site (see the log here)")    \
    X(8, NOT_PERMITTED, "the user of its sender may not write its region at the remote site")

enum {
#define WAN_FAILED(number, NAME, text) WAN_FAILED_##NAME = number,
    WAN_FAILURES(WAN_FAILED)
#undef WAN_FAILED
    /* The partitions of the queue of parked events, one for each reason. How many there are is part of the format on
     * the disk. */
    WAN_PARK_PARTITIONS = 8,
};

#define WAN_FAILED(number, NAME, text)                                                                                 \
    _Static_assert(number > 0 && number <= WAN_PARK_PARTITIONS, "a reason has a parked partition");
WAN_FAILURES(WAN_FAILED)
#undef WAN_FAILED

/* The partition of the events that are parked for a reason. A reason that this version does not know is "other". The
 * reasons are 1 to 8 and the partitions 0 to 7, so reason 8 has partition 0; each other one has its own number. */
static inline uint32_t wan_parked_partition(uint32_t reason)
{
    return reason > 0 && reason <= WAN_PARK_PARTITIONS ? reason % WAN_PARK_PARTITIONS : (uint32_t)WAN_FAILED_OTHER;
}

/* The reason for which the events of a partition are parked. */
static inline uint32_t wan_parked_reason(uint32_t partition)
{
    return partition ? partition : (uint32_t)WAN_PARK_PARTITIONS;
}

typedef struct {
    int number;
    const char *text;
} wan_failure_row;

static const wan_failure_row wan_failure_rows[] = {
#define WAN_FAILED(number, NAME, text) {number, text},
    WAN_FAILURES(WAN_FAILED)
#undef WAN_FAILED
};

enum { WAN_FAILURES_COUNT = sizeof wan_failure_rows / sizeof wan_failure_rows[0] };

#endif
