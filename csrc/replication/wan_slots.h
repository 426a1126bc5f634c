/* Owns the slots in which a member makes its calls, and gives each call its identity. A call has a slot for as long as
 * the call is under way, so the number of slots is the highest number of calls that were ever under way at once. */
#ifndef WAN_SLOTS_H
#define WAN_SLOTS_H
#include "base/wan_lock.h"
#include "replication/wan_answers.h"

#define WAN_SLOTS_MAX 65536u

typedef struct {
    uint64_t number;    /* The number of the newest call of the slot. */
    uint32_t next_free; /* The number of the next free slot + 1. 0: none. */
} wan_caller_slot;

typedef struct {
    wan_lock lock; /* Guards all below. */
    uint64_t caller;
    wan_caller_slot *slots;
    uint32_t count, capacity;
    uint32_t first_free; /* The slot that became free last + 1: so the first slots are used most. 0: none is free. */
} wan_slots;

/* `caller` is not 0. */
void wan_slots_init(wan_slots *slots, uint64_t caller);
void wan_slots_close(wan_slots *slots);
/* Begins a call: takes a slot, and gives the call the next number of the slot. WAN_FULL: WAN_SLOTS_MAX calls are under
 * way. WAN_NO_MEMORY. */
wan_status wan_slots_take(wan_slots *slots, wan_call_identity *call);
/* The call has ended, with any result. Its number is never used again. */
void wan_slots_give(wan_slots *slots, wan_call_identity call);
/* The site has given up the client `old`: from now on calls are made as `fresh`, unless the client was renamed before.
 * Returns the client that makes the calls now. */
uint64_t wan_slots_rename(wan_slots *slots, uint64_t old, uint64_t fresh);

#endif
