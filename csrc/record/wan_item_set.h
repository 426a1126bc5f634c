/* Owns a choice among items that lie in a stage: records, one of each key; or positions, one of each event. Open
 * addressing over where they begin. */
#ifndef WAN_ITEM_SET_H
#define WAN_ITEM_SET_H
#include "base/wan_buffer.h"

/* The key in an item. */
typedef struct {
    const uint8_t *key;
    uint16_t length;
    uint8_t form;
} wan_item_key;

typedef struct {
    uint64_t *slots;   /* Where an item begins, plus one; 0: free. */
    uint64_t capacity; /* Of them: 0 or a power of two, and more than half are free. */
    uint64_t count;
    /* Alike are items of one key, which this finds in them. NULL: the items are wan_position of one record each, and
     * alike are those of one partition and sequence. The owner's. */
    wan_item_key (*key_of)(const uint8_t *item);
} wan_item_set;

/* *slot: where the chosen item stands that is like `item`; it holds 0 if there is none yet, and is for the caller to
 * fill, with where in `stage` his item begins plus one, by wan_item_set_choose. Good until the next call.
 * WAN_NO_MEMORY: nothing changed. */
wan_status wan_item_set_find(wan_item_set *set, const wan_buffer *stage, const void *item, uint64_t **slot);

static inline void wan_item_set_choose(wan_item_set *set, uint64_t *slot, uint64_t at)
{
    set->count += *slot == 0;
    *slot = at + 1;
}

void wan_item_set_empty(wan_item_set *set); /* Gives its memory back. */

#endif
