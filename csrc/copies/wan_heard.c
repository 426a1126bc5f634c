#include "copies/wan_heard.h"

#include <stdlib.h>
#include <string.h>

wan_status wan_tail_hear(wan_tail *tail)
{
    wan_heard *none = NULL, *fresh = calloc(1, sizeof *fresh);
    if (!fresh) return WAN_FAIL(WAN_NO_MEMORY, "no memory for changes that wait for listeners");
    if (!__atomic_compare_exchange_n(&tail->heard, &none, fresh, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) free(fresh);
    return WAN_OK;
}

void wan_heard_close(wan_heard *heard)
{
    if (!heard) return;
    wan_buffer_close(&heard->items);
    free(heard);
}

/* Writes an item behind all others, without its entry. There is room for it. */
static wan_heard_item *write_item(wan_heard *heard, const uint8_t *old, uint32_t old_length, uint8_t old_form,
                                  uint64_t entry_length)
{
    wan_heard_item *item = (wan_heard_item *)(heard->items.bytes + heard->items.used);
    *item = (wan_heard_item){
        .length = wan_heard_size(old ? old_length : 0, entry_length),
        .old_length = old ? old_length : 0,
        .has_old = old != NULL,
        .old_form = old ? old_form : 0,
    };
    if (item->old_length) memcpy(item + 1, old, item->old_length);
    return item;
}

wan_status wan_heard_begin(wan_heard *heard, const uint8_t *old, uint32_t old_length, uint8_t old_form,
                           uint64_t entry_length)
{
    wan_status status = wan_heard_begin_many(heard, wan_heard_size(old ? old_length : 0, entry_length));
    if (status == WAN_OK) write_item(heard, old, old_length, old_form, entry_length); /* wan_heard_add has it count. */
    return status;
}

wan_status wan_heard_begin_many(wan_heard *heard, uint64_t bytes)
{
    wan_lock_take(&heard->lock);
    wan_status status = wan_buffer_reserve(&heard->items, bytes);
    if (status != WAN_OK) wan_lock_release(&heard->lock);
    return status;
}

uint8_t *wan_heard_place(wan_heard *heard, const uint8_t *old, uint32_t old_length, uint8_t old_form,
                         uint64_t entry_length)
{
    const wan_heard_item *item = write_item(heard, old, old_length, old_form, entry_length);
    heard->items.used += item->length;
    heard->items.count++;
    return (uint8_t *)item + item->length - entry_length;
}

void wan_heard_add_many(wan_heard *heard)
{
    if (heard->ended) wan_buffer_close(&heard->items);
    __atomic_store_n(&heard->bytes, heard->items.used, __ATOMIC_RELAXED);
    wan_lock_release(&heard->lock);
    wan_signal_change(&heard->changed);
}

void wan_heard_add(wan_heard *heard, const wan_tail_entry *entry)
{
    int wakes = 0;
    if (!heard->ended) {
        uint8_t *at = heard->items.bytes + heard->items.used;
        const wan_heard_item *item = (const wan_heard_item *)at;
        memcpy(at + sizeof *item + wan_align8(item->old_length), entry, entry->length);
        wakes = heard->items.used == 0;
        heard->items.used += item->length;
        heard->items.count++;
        __atomic_store_n(&heard->bytes, heard->items.used, __ATOMIC_RELAXED);
    }
    wan_lock_release(&heard->lock);
    if (wakes) wan_signal_change(&heard->changed);
}

void wan_heard_cancel(wan_heard *heard) { wan_lock_release(&heard->lock); }

int wan_heard_take(wan_heard *heard, wan_buffer *to, uint32_t timeout_ms)
{
    for (int waited = 0;; waited = 1) {
        const uint32_t seen = __atomic_load_n(&heard->changed, __ATOMIC_ACQUIRE);
        wan_lock_take(&heard->lock);
        const int any = heard->items.used != 0, ended = (int)heard->ended;
        if (any) {
            const wan_buffer empty = *to;
            *to = heard->items;
            heard->items = empty;
            __atomic_store_n(&heard->bytes, 0, __ATOMIC_RELAXED);
        }
        wan_lock_release(&heard->lock);
        if (any || ended || waited) return any;
        wan_wait_change(&heard->changed, seen, timeout_ms);
    }
}

uint64_t wan_heard_end(wan_heard *heard)
{
    wan_lock_take(&heard->lock);
    const uint64_t dropped = heard->items.count;
    heard->ended = 1;
    wan_buffer_close(&heard->items);
    __atomic_store_n(&heard->bytes, 0, __ATOMIC_RELAXED);
    wan_lock_release(&heard->lock);
    wan_signal_change(&heard->changed);
    return dropped;
}
