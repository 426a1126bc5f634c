/* Owns the index of the parked events of a sender that several members have. */
#include "store/wan_parked.h"

#include <stdlib.h>
#include <string.h>

#include "base/wan_hash.h"

wan_event_mark wan_mark_of(const wan_record *record, uint64_t key_hash)
{
    const uint64_t words[] = {
        record->event_sequence,
        (uint64_t)record->event_member << 32 | record->event_thread,
        record->stamp,
        key_hash,
        (uint64_t)record->origin_site << 16 | (uint64_t)record->stamp_site << 8 | record->operation,
    };
    wan_event_mark mark = {WAN_HASH_B, WAN_HASH_C};
    for (size_t n = 0; n < sizeof words / sizeof *words; n++) {
        mark.low = wan_hash_fold(words[n] ^ WAN_HASH_A, mark.low);
        mark.high = wan_hash_fold(words[n] ^ WAN_HASH_B, mark.high);
    }
    mark.high |= 1;
    return mark;
}

/* Returns the place of an event, or the free place where the event would be added. */
static uint64_t place_of(const wan_parked *parked, const wan_event_mark *mark)
{
    uint64_t at = mark->low & (parked->capacity - 1);
    while (parked->events[at].state != WAN_PARKED_FREE
           && (parked->events[at].mark.low != mark->low || parked->events[at].mark.high != mark->high))
        at = (at + 1) & (parked->capacity - 1);
    return at;
}

wan_parked_event *wan_parked_find(const wan_parked *parked, const wan_event_mark *mark)
{
    if (!parked->capacity) return NULL;
    wan_parked_event *event = &parked->events[place_of(parked, mark)];
    return event->state == WAN_PARKED_FREE ? NULL : event;
}

wan_status wan_parked_reserve(wan_parked *parked)
{
    if ((parked->used + 1) * 4 <= parked->capacity * 3) return WAN_OK;
    wan_parked grown = *parked;
    grown.capacity = parked->capacity ? parked->capacity * 2 : 64;
    grown.events = calloc(grown.capacity, sizeof *grown.events);
    if (!grown.events) return WAN_FAIL(WAN_NO_MEMORY, "no memory for an index of parked events");
    for (uint64_t n = 0; n < parked->capacity; n++) {
        const wan_parked_event *event = &parked->events[n];
        if (event->state != WAN_PARKED_FREE) grown.events[place_of(&grown, &event->mark)] = *event;
    }
    free(parked->events);
    *parked = grown;
    return WAN_OK;
}

static uint64_t *count_of(wan_parked *parked, uint8_t state)
{
    return state == WAN_PARKED_HERE ? &parked->here : state == WAN_PARKED_REPLAYED ? &parked->replayed : &parked->left;
}

wan_parked_event *wan_parked_add(wan_parked *parked, const wan_event_mark *mark)
{
    wan_parked_event *event = &parked->events[place_of(parked, mark)];
    WAN_DEBUG_CHECK(event->state == WAN_PARKED_FREE && parked->used < parked->capacity);
    *event = (wan_parked_event){.mark = *mark, .state = WAN_PARKED_HERE};
    parked->used++;
    parked->here++;
    return event;
}

void wan_parked_set(wan_parked *parked, wan_parked_event *event, uint8_t state)
{
    --*count_of(parked, event->state);
    event->state = state;
    ++*count_of(parked, state);
}

/* Leaves no gap between an event and the place where the search for it begins. */
void wan_parked_forget(wan_parked *parked, wan_parked_event *event)
{
    const uint64_t mask = parked->capacity - 1;
    uint64_t gap = (uint64_t)(event - parked->events), at = gap;
    --*count_of(parked, event->state);
    parked->used--;
    for (;;) {
        at = (at + 1) & mask;
        if (parked->events[at].state == WAN_PARKED_FREE) break;
        const uint64_t home = parked->events[at].mark.low & mask;
        if (((at - home) & mask) < ((at - gap) & mask)) continue; /* Its search begins behind the gap. */
        parked->events[gap] = parked->events[at];
        gap = at;
    }
    parked->events[gap] = (wan_parked_event){0};
}

wan_status wan_parked_leave(wan_parked *parked, const wan_event_mark *mark)
{
    wan_status status = wan_parked_reserve(parked);
    if (status != WAN_OK) return status;
    if (!parked->turns) parked->turns = calloc(WAN_PARKED_LEFT_MAX, sizeof *parked->turns);
    if (!parked->turns) return WAN_FAIL(WAN_NO_MEMORY, "no memory for the parked events that have left");
    wan_parked_event *event = wan_parked_find(parked, mark);
    if (event && event->state == WAN_PARKED_LEFT) return WAN_OK;
    wan_event_mark *turn = &parked->turns[parked->turn % WAN_PARKED_LEFT_MAX];
    wan_parked_event *oldest = turn->high ? wan_parked_find(parked, turn) : NULL;
    if (oldest && oldest->state == WAN_PARKED_LEFT && oldest->sequence + WAN_PARKED_LEFT_MAX == parked->turn) {
        wan_parked_forget(parked, oldest);
        event = wan_parked_find(parked, mark); /* It may have another place. */
    }
    if (!event) event = wan_parked_add(parked, mark);
    wan_parked_set(parked, event, WAN_PARKED_LEFT);
    event->sequence = parked->turn++;
    *turn = *mark;
    return WAN_OK;
}

void wan_parked_close(wan_parked *parked)
{
    free(parked->events);
    free(parked->turns);
    memset(parked, 0, sizeof *parked);
}
