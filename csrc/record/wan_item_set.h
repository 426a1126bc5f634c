/* Owns a choice of one item among all items that are alike. The items lie in a buffer. They are records, and the set
 * chooses one for each key; or they are positions, and the set chooses one for each event. It is a hash table with open
 * addressing, over the offsets of items. */
#ifndef WAN_ITEM_SET_H
#define WAN_ITEM_SET_H
#include "base/wan_buffer.h"

/* The key of an item. */
typedef struct {
    const uint8_t *key;
    uint16_t length;
    uint8_t form;
} wan_item_key;

typedef struct {
    uint64_t *slots;   /* The offset of an item plus one. 0: the slot is free. */
    uint64_t capacity; /* The number of slots: 0 or a power of two. More than half of them are free. */
    uint64_t count;
    /* Finds the key of an item. Items with one key are alike. NULL: the items are wan_position of one record each, and
     * those with the same partition and sequence are alike. The owner sets it. */
    wan_item_key (*key_of)(const uint8_t *item);
} wan_item_set;

/* Finds the slot of the chosen item that is like `item`. *slot holds 0 if there is none yet. To choose another item,
 * the caller stores that item's offset in `items` there, by wan_item_set_choose. The slot is good until the next call.
 * WAN_NO_MEMORY: nothing changed. */
wan_status wan_item_set_find(wan_item_set *set, const wan_buffer *items, const void *item, uint64_t **slot);

static inline void wan_item_set_choose(wan_item_set *set, uint64_t *slot, uint64_t at)
{
    set->count += *slot == 0;
    *slot = at + 1;
}

/* Empties the set and gives its memory back. */
void wan_item_set_empty(wan_item_set *set);

#endif
