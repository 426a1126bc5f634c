#include "replication/wan_slots.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 16u

void wan_slots_init(wan_slots *slots, uint64_t caller)
{
    memset(slots, 0, sizeof *slots);
    slots->caller = caller;
}

void wan_slots_close(wan_slots *slots)
{
    free(slots->slots);
    memset(slots, 0, sizeof *slots);
}

/* Adds a slot, and puts the slot in front of the free slots. Under the lock. */
static wan_status add_slot(wan_slots *slots)
{
    if (slots->count == WAN_SLOTS_MAX)
        return WAN_FAIL(WAN_FULL, "%u calls of this member are under way at once; make fewer at the same time",
                        WAN_SLOTS_MAX);
    if (slots->count == slots->capacity) {
        const uint32_t capacity = slots->capacity ? 2 * slots->capacity : FIRST_CAPACITY;
        wan_caller_slot *more = realloc(slots->slots, capacity * sizeof *more);
        if (!more) return WAN_FAIL(WAN_NO_MEMORY, "no memory for one more call at the same time");
        slots->slots = more;
        slots->capacity = capacity;
    }
    slots->slots[slots->count++] = (wan_caller_slot){0, 0};
    slots->first_free = slots->count;
    return WAN_OK;
}

wan_status wan_slots_take(wan_slots *slots, wan_call_identity *call)
{
    wan_lock_take(&slots->lock);
    wan_status status = slots->first_free ? WAN_OK : add_slot(slots);
    if (status == WAN_OK) {
        wan_caller_slot *slot = &slots->slots[slots->first_free - 1];
        *call = (wan_call_identity){
            .caller = slots->caller, .number = ++slot->number, .slot = (uint16_t)(slots->first_free - 1)};
        slots->first_free = slot->next_free;
    }
    wan_lock_release(&slots->lock);
    return status;
}

void wan_slots_give(wan_slots *slots, wan_call_identity call)
{
    wan_lock_take(&slots->lock);
    slots->slots[call.slot].next_free = slots->first_free;
    slots->first_free = call.slot + 1u;
    wan_lock_release(&slots->lock);
}

uint64_t wan_slots_rename(wan_slots *slots, uint64_t old, uint64_t fresh)
{
    wan_lock_take(&slots->lock);
    if (slots->caller == old) slots->caller = fresh;
    const uint64_t caller = slots->caller;
    wan_lock_release(&slots->lock);
    return caller;
}
