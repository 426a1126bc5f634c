/* Finding and growing of a choice among records. */
#include "record/wan_record_set.h"

#include <stdlib.h>

#include "base/wan_hash.h"

#define FIRST_CAPACITY 256u

static uint64_t hash_of(const wan_record_set *set, const wan_record *record)
{
    if (!set->of_events) return wan_seat_hash(wan_record_key(record), record->key_length, record->key_form);
    uint64_t mixed = (record->sequence ^ (uint64_t)record->partition << 48) * 0x9e3779b97f4a7c15u;
    return mixed ^ mixed >> 32;
}

static int are_alike(const wan_record_set *set, const wan_record *a, const wan_record *b)
{
    if (set->of_events) return a->sequence == b->sequence && a->partition == b->partition;
    return a->key_length == b->key_length && a->key_form == b->key_form && memcmp(wan_record_key(a), wan_record_key(b), a->key_length) == 0;
}

static uint64_t *find(const wan_record_set *set, const wan_stage *stage, const wan_record *record)
{
    uint64_t n = hash_of(set, record) & (set->capacity - 1);
    while (set->slots[n] && !are_alike(set, (const wan_record *)(stage->bytes + set->slots[n] - 1), record)) n = (n + 1) & (set->capacity - 1);
    return &set->slots[n];
}

static wan_status grow(wan_record_set *set, const wan_stage *stage)
{
    wan_record_set grown = *set;
    grown.capacity = set->capacity ? 2 * set->capacity : FIRST_CAPACITY;
    grown.slots = calloc(grown.capacity, sizeof *grown.slots);
    if (!grown.slots) return WAN_FAIL(WAN_NO_MEMORY, "no memory to choose among %" PRIu64 " records", set->count);
    for (uint64_t n = 0; n < set->capacity; n++)
        if (set->slots[n]) *find(&grown, stage, (const wan_record *)(stage->bytes + set->slots[n] - 1)) = set->slots[n];
    free(set->slots);
    *set = grown;
    return WAN_OK;
}

wan_status wan_record_set_find(wan_record_set *set, const wan_stage *stage, const wan_record *record, uint64_t **slot)
{
    wan_status status = 2 * (set->count + 1) < set->capacity ? WAN_OK : grow(set, stage);
    if (status == WAN_OK) *slot = find(set, stage, record);
    return status;
}

void wan_record_set_empty(wan_record_set *set)
{
    free(set->slots);
    set->slots = NULL;
    set->capacity = set->count = 0;
}
