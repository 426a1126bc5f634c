#include "replication/wan_answers.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY         16u
#define FIRST_REFUSED_CAPACITY 8u

/* Where the search for a client's slot begins. */
static uint32_t place_of(const wan_answers *answers, wan_call_identity call)
{
    const uint64_t hash = (call.caller ^ (uint64_t)call.slot << 24) * 0x9e3779b97f4a7c15ull;
    return (uint32_t)(hash >> 32) & (answers->capacity - 1);
}

static uint32_t behind(const wan_answers *answers, uint32_t place) { return (place + 1) & (answers->capacity - 1); }

void wan_answers_close(wan_answers *answers)
{
    for (uint32_t n = 0; n < answers->capacity; n++) free(answers->items[n].found);
    free(answers->items);
    free(answers->refused);
    memset(answers, 0, sizeof *answers);
}

/* Returns the item of the call's client and slot, or the free place for the item. A free place exists. */
static wan_first_answer *item_of(const wan_answers *answers, wan_call_identity call)
{
    uint32_t place = place_of(answers, call);
    while (answers->items[place].call.caller
           && (answers->items[place].call.caller != call.caller || answers->items[place].call.slot != call.slot))
        place = behind(answers, place);
    return &answers->items[place];
}

const wan_first_answer *wan_answers_find(const wan_answers *answers, wan_call_identity call)
{
    if (!answers->count) return NULL;
    const wan_first_answer *item = item_of(answers, call);
    return item->call.caller ? item : NULL;
}

int wan_answers_refuse(const wan_answers *answers, uint64_t caller)
{
    for (uint32_t n = 0; n < answers->refused_count; n++)
        if (answers->refused[n] == caller) return 1;
    return 0;
}

/* Moves the items to memory for `capacity` items. 0: no memory, and nothing changed. */
static int resize(wan_answers *answers, uint32_t capacity)
{
    wan_answers other = *answers;
    other.capacity = capacity;
    other.items = calloc(capacity, sizeof *other.items);
    if (!other.items) return 0;
    for (uint32_t n = 0; n < answers->capacity; n++)
        if (answers->items[n].call.caller) *item_of(&other, answers->items[n].call) = answers->items[n];
    free(answers->items);
    *answers = other;
    return 1;
}

wan_status wan_answers_make_room(wan_answers *answers)
{
    /* A quarter of the places stays free, so that a search is short. */
    if (WAN_UNLIKELY(answers->count >= answers->capacity / 4 * 3)
        && !resize(answers, answers->capacity ? 2 * answers->capacity : FIRST_CAPACITY))
        return WAN_FAIL(WAN_NO_MEMORY, "no memory to remember a call");
    if (WAN_UNLIKELY(answers->refused_count == answers->refused_capacity)
        && answers->refused_capacity < WAN_REFUSED_MAX) {
        const uint32_t capacity = answers->refused_capacity ? 2 * answers->refused_capacity : FIRST_REFUSED_CAPACITY;
        uint64_t *refused = realloc(answers->refused, capacity * sizeof *refused);
        if (!refused) return WAN_FAIL(WAN_NO_MEMORY, "no memory to refuse a caller");
        answers->refused = refused;
        answers->refused_capacity = capacity;
    }
    return WAN_OK;
}

static void drop_found(wan_answers *answers, wan_first_answer *item)
{
    answers->found_bytes -= item->found_length;
    free(item->found);
    item->found = NULL;
    item->found_length = 0;
}

/* Makes room for a found value. The oldest values are lost: all holders of the bucket lose the same values. */
static void make_room_for_found(wan_answers *answers, uint32_t length)
{
    while (answers->found_bytes + length > WAN_ANSWERS_BYTES_MAX) {
        wan_first_answer *oldest = NULL;
        for (uint32_t n = 0; n < answers->capacity; n++) {
            wan_first_answer *item = &answers->items[n];
            if (item->found_length && (!oldest || item->sequence < oldest->sequence)) oldest = item;
        }
        drop_found(answers, oldest);
        oldest->is_lost = 1;
    }
}

/* Puts a reply in the place of the earlier one, with a copy of its found value. */
static void put(wan_answers *answers, wan_first_answer *item, const wan_first_answer *fresh)
{
    answers->count += !item->call.caller;
    drop_found(answers, item);
    *item = *fresh;
    item->found = NULL;
    item->found_length = 0;
    if (!fresh->found_length || fresh->is_lost) return;
    item->is_lost = 1;
    if (fresh->found_length > WAN_ANSWERS_BYTES_MAX) return;
    make_room_for_found(answers, fresh->found_length);
    item->found = malloc(fresh->found_length);
    if (!item->found) return;
    memcpy(item->found, fresh->found, fresh->found_length);
    item->found_length = fresh->found_length;
    answers->found_bytes += fresh->found_length;
    item->is_lost = 0;
}

void wan_answers_add(wan_answers *answers, const wan_first_answer *fresh)
{
    wan_first_answer *item = item_of(answers, fresh->call);
    if (item->call.caller && item->call.number > fresh->call.number) return; /* No primary sends a lower number. */
    if (item->call.caller && item->call.number == fresh->call.number && fresh->rows) {
        item->sequence = fresh->sequence;
        item->rows = fresh->rows;
        item->applied++;
        return;
    }
    put(answers, item, fresh);
    item->applied = 1;
}

/* Takes out the item at a place, and moves the later items that a search would not find any more. */
static void take_out(wan_answers *answers, uint32_t place)
{
    drop_found(answers, &answers->items[place]);
    answers->count--;
    uint32_t gap = place;
    for (uint32_t next = behind(answers, gap); answers->items[next].call.caller; next = behind(answers, next)) {
        const uint32_t wanted = place_of(answers, answers->items[next].call);
        const uint32_t mask = answers->capacity - 1;
        if (((next - wanted) & mask) < ((next - gap) & mask)) continue; /* A search finds the item without the gap. */
        answers->items[gap] = answers->items[next];
        gap = next;
    }
    memset(&answers->items[gap], 0, sizeof answers->items[gap]);
}

static void refuse(wan_answers *answers, uint64_t caller)
{
    if (wan_answers_refuse(answers, caller)) return;
    if (answers->refused_count == WAN_REFUSED_MAX) {
        answers->refused_count--;
        memmove(answers->refused, answers->refused + 1, answers->refused_count * sizeof *answers->refused);
    }
    answers->refused[answers->refused_count++] = caller;
}

void wan_answers_forget(wan_answers *answers, uint64_t caller)
{
    for (uint32_t n = 0; n < answers->capacity;) /* After `take_out` another item may be at the same place. */
        if (answers->items[n].call.caller == caller) take_out(answers, n);
        else n++;
    refuse(answers, caller);
    uint32_t capacity = answers->capacity;
    while (capacity > FIRST_CAPACITY && answers->count < capacity / 8) capacity /= 2;
    if (capacity != answers->capacity) resize(answers, capacity); /* No memory: the table keeps its size. */
}

wan_status wan_answers_callers(const wan_answers *answers, wan_buffer *to)
{
    for (uint32_t n = 0; n < answers->capacity; n++) {
        const uint64_t caller = answers->items[n].call.caller;
        uint32_t known = 0;
        while (known < to->count && ((const uint64_t *)(to->bytes + to->start))[known] != caller) known++;
        if (!caller || known < to->count) continue;
        wan_status status = wan_buffer_add(to, &caller, sizeof caller);
        if (status != WAN_OK) return status;
    }
    return WAN_OK;
}

wan_status wan_answers_pack(const wan_answers *answers, wan_buffer *to, uint64_t *largest)
{
    const uint64_t items = 1 + (uint64_t)answers->count + answers->refused_count;
    wan_status status =
        wan_buffer_reserve(to, items * sizeof(wan_answer_item) + answers->count * (uint64_t)8 + answers->found_bytes);
    if (status != WAN_OK) return status;
    const wan_answer_item begin = {.kind = WAN_ITEM_BEGIN};
    wan_buffer_put(to, &begin, sizeof begin);
    for (uint32_t n = 0; n < answers->refused_count; n++) {
        const wan_answer_item item = {.kind = WAN_ITEM_REFUSED, .call.caller = answers->refused[n]};
        wan_buffer_put(to, &item, sizeof item);
    }
    if (sizeof begin > *largest) *largest = sizeof begin;
    for (uint32_t n = 0; n < answers->capacity; n++) {
        const wan_first_answer *from = &answers->items[n];
        if (!from->call.caller) continue;
        const wan_answer_item item = {
            .kind = WAN_ITEM_ANSWER,
            .call = from->call,
            .sequence = from->sequence,
            .rows = from->rows,
            .applied = from->applied,
            .found_length = from->found_length,
            .outcome = from->outcome,
            .found_form = from->found_form,
            .found = (uint8_t)((from->has_found ? WAN_ITEM_FOUND : 0) | (from->is_lost ? WAN_ITEM_LOST : 0)),
        };
        static const uint8_t zeros[8];
        const uint64_t size = wan_answer_item_size(&item);
        wan_buffer_put(to, &item, sizeof item);
        if (from->found_length) wan_buffer_put(to, from->found, from->found_length);
        wan_buffer_put(to, zeros, size - sizeof item - from->found_length);
        if (size > *largest) *largest = size;
    }
    return WAN_OK;
}

wan_status wan_answers_unpack(wan_answers *answers, const wan_answer_item *item, uint32_t count)
{
    for (uint32_t n = 0; n < count; n++) {
        if (item->kind == WAN_ITEM_BEGIN) wan_answers_close(answers);
        wan_status status = wan_answers_make_room(answers);
        if (status != WAN_OK) return status;
        if (item->kind == WAN_ITEM_REFUSED) refuse(answers, item->call.caller);
        if (item->kind == WAN_ITEM_ANSWER) {
            const wan_first_answer fresh = {
                .call = item->call,
                .sequence = item->sequence,
                .found = (uint8_t *)(item + 1),
                .found_length = item->found_length,
                .rows = item->rows,
                .applied = item->applied,
                .outcome = item->outcome,
                .found_form = item->found_form,
                .has_found = (item->found & WAN_ITEM_FOUND) != 0,
                .is_lost = (item->found & WAN_ITEM_LOST) != 0,
            };
            put(answers, item_of(answers, item->call), &fresh);
        }
        item = (const wan_answer_item *)((const uint8_t *)item + wan_answer_item_size(item));
    }
    return WAN_OK;
}
