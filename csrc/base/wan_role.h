/* Owns nothing: a role that one thread at a time has, for as long as it writes a file. It is no lock to sleep on: a
 * thread that finds the role taken sleeps on the owner's word instead (wan_wait_change), which also changes for other
 * reasons. It reads that word before it asks for the role. Then it misses no release: a release changes the word if
 * anybody asked in vain. Taking and releasing are one atomic operation each, and no system call where nobody else asks.
 */
#ifndef WAN_ROLE_H
#define WAN_ROLE_H
#include "base/wan_lock.h"

enum { WAN_ROLE_FREE = 0, WAN_ROLE_TAKEN, WAN_ROLE_WANTED }; /* Wanted: taken, and somebody asked in vain. */
typedef struct {
    uint32_t state;
} wan_role;

/* False: another thread has it. */
static inline int wan_role_take(wan_role *role)
{
    uint32_t found = WAN_ROLE_FREE;
    while (!__atomic_compare_exchange_n(&role->state, &found, WAN_ROLE_TAKEN, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        if (found == WAN_ROLE_WANTED) return 0;
        if (found == WAN_ROLE_TAKEN
            && __atomic_compare_exchange_n(&role->state, &found, WAN_ROLE_WANTED, 0, __ATOMIC_RELAXED,
                                           __ATOMIC_RELAXED))
            return 0;
        found = WAN_ROLE_FREE; /* It was released in between. */
    }
    return 1;
}

/* `word`: what the threads that asked in vain sleep on. */
static inline void wan_role_release(wan_role *role, uint32_t *word)
{
    if (__atomic_exchange_n(&role->state, WAN_ROLE_FREE, __ATOMIC_RELEASE) == WAN_ROLE_WANTED) wan_signal_change(word);
}

#endif
