/* Owns how a set of items finds one, and grows. */
#include "record/wan_item_set.h"

#include <stdlib.h>

#include "base/wan_hash.h"
#include "record/wan_position.h"

#define FIRST_CAPACITY 256u

static uint64_t hash_of(const wan_item_set *set, const uint8_t *item)
{
    if (set->key_of) {
        const wan_item_key key = set->key_of(item);
        return wan_secret_hash(key.key, key.length, key.form);
    }
    const wan_position *position = (const wan_position *)item;
    uint64_t mixed = (position->first ^ (uint64_t)position->partition << 48) * 0x9e3779b97f4a7c15u;
    return mixed ^ mixed >> 32;
}

static int are_alike(const wan_item_set *set, const uint8_t *a, const uint8_t *b)
{
    if (!set->key_of)
        return ((const wan_position *)a)->first == ((const wan_position *)b)->first
               && ((const wan_position *)a)->partition == ((const wan_position *)b)->partition;
    const wan_item_key one = set->key_of(a), other = set->key_of(b);
    return one.length == other.length && one.form == other.form && memcmp(one.key, other.key, one.length) == 0;
}

static uint64_t *find(const wan_item_set *set, const wan_buffer *items, const uint8_t *item)
{
    uint64_t n = hash_of(set, item) & (set->capacity - 1);
    while (set->slots[n] && !are_alike(set, items->bytes + set->slots[n] - 1, item)) n = (n + 1) & (set->capacity - 1);
    return &set->slots[n];
}

static wan_status grow(wan_item_set *set, const wan_buffer *items)
{
    wan_item_set grown = *set;
    grown.capacity = set->capacity ? 2 * set->capacity : FIRST_CAPACITY;
    grown.slots = calloc(grown.capacity, sizeof *grown.slots);
    if (!grown.slots) return WAN_FAIL(WAN_NO_MEMORY, "no memory to choose among %" PRIu64 " items", set->count);
    for (uint64_t n = 0; n < set->capacity; n++)
        if (set->slots[n]) *find(&grown, items, items->bytes + set->slots[n] - 1) = set->slots[n];
    free(set->slots);
    *set = grown;
    return WAN_OK;
}

wan_status wan_item_set_find(wan_item_set *set, const wan_buffer *items, const void *item, uint64_t **slot)
{
    wan_status status = 2 * (set->count + 1) < set->capacity ? WAN_OK : grow(set, items);
    if (status == WAN_OK) *slot = find(set, items, item);
    return status;
}

void wan_item_set_empty(wan_item_set *set)
{
    free(set->slots);
    set->slots = NULL;
    set->capacity = set->count = 0;
}
