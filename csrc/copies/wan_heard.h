/* Owns the changes of a region of which the listeners on this member are still to be told, in the order in which they
 * were made or followed here. Changes of one key are in the order of their bucket. They are memory only. */
#ifndef WAN_HEARD_H
#define WAN_HEARD_H

#include <stdint.h>

#include "base/wan_base.h"
#include "base/wan_buffer.h"
#include "base/wan_lock.h"
#include "copies/wan_tail.h"

/* With more bytes than this the member takes no more changes of the region until listeners were told. */
#define WAN_HEARD_BYTES_MAX (64u << 20)

/* One change. The value before it follows, at a multiple of 8 bytes, and then the wan_tail_entry. */
typedef struct {
    uint64_t length; /* Of all. */
    uint32_t old_length;
    uint8_t has_old, old_form;
    uint16_t reserved;
} wan_heard_item;

struct wan_heard {
    wan_lock lock; /* Guards `items`. It is the last lock that a change takes. */
    wan_buffer items;
    uint64_t bytes;   /* Of the items that nobody has taken. Atomic. */
    uint32_t changed; /* A futex: something was added, or the end has come. */
    uint32_t ended;
};

/* From now on changes of the region wait for listeners. WAN_NO_MEMORY: they do not. */
wan_status wan_tail_hear(wan_tail *tail);
void wan_heard_close(wan_heard *heard);

static inline int wan_heard_is_full(const wan_heard *heard)
{
    return __atomic_load_n(&heard->bytes, __ATOMIC_RELAXED) > WAN_HEARD_BYTES_MAX;
}

/* Begins a change whose entry will have `entry_length` bytes: takes the lock and keeps it when it returns WAN_OK. `old`
 * is the value before it; NULL: there is none. WAN_NO_MEMORY: nothing happened. */
wan_status wan_heard_begin(wan_heard *heard, const uint8_t *old, uint32_t old_length, uint8_t old_form,
                           uint64_t entry_length);
/* The change was made. Releases the lock, and wakes whoever waits. */
void wan_heard_add(wan_heard *heard, const wan_tail_entry *entry);
void wan_heard_cancel(wan_heard *heard); /* It was not made. */
/* Begins many changes of one step, which have `bytes` bytes together: as wan_heard_begin. For each of them,
 * wan_heard_place returns where its wan_tail_entry goes. wan_heard_add_many ends what was begun. */
wan_status wan_heard_begin_many(wan_heard *heard, uint64_t bytes);
uint8_t *wan_heard_place(wan_heard *heard, const uint8_t *old, uint32_t old_length, uint8_t old_form,
                         uint64_t entry_length);
void wan_heard_add_many(wan_heard *heard);
/* The bytes of a change. */
static inline uint64_t wan_heard_size(uint32_t old_length, uint64_t entry_length)
{
    return sizeof(wan_heard_item) + wan_align8(old_length) + entry_length;
}

/* Moves all changes to `to`, which is empty. Waits up to `timeout_ms` for the first one. Returns whether there are any.
 */
int wan_heard_take(wan_heard *heard, wan_buffer *to, uint32_t timeout_ms);
/* Nobody will take anything: what is there is dropped, and what comes is not kept. Returns how many were dropped. */
uint64_t wan_heard_end(wan_heard *heard);

#endif
