/* Owns nothing. A role is something that one thread at a time has, for as long as it writes a file. No thread sleeps on
 * the role itself. A thread that finds the role taken sleeps on a word of the role's owner (wan_wait_change), which
 * also changes for other reasons. The thread reads that word before it asks for the role. So it misses no release,
 * because a release changes the word if any thread asked in vain. To take and to release the role are one atomic
 * operation each, without a system call where no other thread asks. */
#ifndef WAN_ROLE_H
#define WAN_ROLE_H
#include "base/wan_lock.h"

enum { WAN_ROLE_FREE = 0, WAN_ROLE_TAKEN, WAN_ROLE_WANTED }; /* Wanted: taken, and another thread asked in vain. */
typedef struct {
    uint32_t state;
} wan_role;

/* Takes the role. Returns 0 if another thread has it. */
static inline int wan_role_take(wan_role *role)
{
    uint32_t found = WAN_ROLE_FREE;
    while (!__atomic_compare_exchange_n(&role->state, &found, WAN_ROLE_TAKEN, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        if (found == WAN_ROLE_WANTED) return 0;
        if (found == WAN_ROLE_TAKEN
            && __atomic_compare_exchange_n(&role->state, &found, WAN_ROLE_WANTED, 0, __ATOMIC_RELAXED,
                                           __ATOMIC_RELAXED))
            return 0;
        found = WAN_ROLE_FREE; /* The other thread released it in between. */
    }
    return 1;
}

/* Releases the role. `word` is what the threads that asked in vain sleep on. */
static inline void wan_role_release(wan_role *role, uint32_t *word)
{
    if (__atomic_exchange_n(&role->state, WAN_ROLE_FREE, __ATOMIC_RELEASE) == WAN_ROLE_WANTED) wan_signal_change(word);
}

#endif
