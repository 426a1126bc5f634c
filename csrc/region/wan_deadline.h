/* Owns until when the call that this thread makes or serves may take, and how deep that call lies within others. A call
 * of the user has one deadline. It is set where the call enters, and everything that is done for the call in this
 * thread ends by it: calls that callbacks make, too. */
#ifndef WAN_DEADLINE_H
#define WAN_DEADLINE_H
#include "base/wan_base.h"

/* As wan_monotonic_us tells the time. 0: the thread is in no call that has a deadline. */
extern _Thread_local uint64_t wan_deadline_us;

/* How many calls this thread is serving, one within the other: a call that it makes goes over connections of that
 * depth. Calls of depth 1 and more do not wait for memory, because who waits for them may be what frees it. */
extern _Thread_local uint32_t wan_call_depth;

/* Until when a call may take that began then and has this limit: no longer than the call around it. */
static inline uint64_t wan_deadline_of(uint64_t began_us, uint64_t limit_us)
{
    uint64_t until_us = began_us + limit_us;
    return wan_deadline_us && wan_deadline_us < until_us ? wan_deadline_us : until_us;
}

#endif
