/* Owns until when the call that this thread makes or serves may take. A call of the user has one deadline. It is set
 * where the call enters, and everything that is done for the call in this thread ends by it: calls that callbacks make,
 * too. */
#ifndef WAN_DEADLINE_H
#define WAN_DEADLINE_H
#include "base/wan_base.h"

/* As wan_monotonic_us tells the time. 0: the thread is in no call that has a deadline. */
extern _Thread_local uint64_t wan_deadline_us;

/* Until when a call may take that began then and has this limit: no longer than the call around it. */
static inline uint64_t wan_deadline_of(uint64_t began_us, uint64_t limit_us)
{
    uint64_t until_us = began_us + limit_us;
    return wan_deadline_us && wan_deadline_us < until_us ? wan_deadline_us : until_us;
}

#endif
