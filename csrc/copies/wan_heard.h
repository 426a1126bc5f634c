/* Owns the changes of a region of which listeners are still to be told: for each bucket, in the order of its sequences.
 * They are memory only.
 *
 * A change is kept where it is made or followed. It is *due* when it counts, and this member tells it. One thread takes
 * what is due, one change after the other (wan_heard_next), and goes round among the buckets that have something. So a
 * bucket whose changes do not count yet holds up no other one, and the work does not grow with the number of buckets.
 *
 * Where each member tells its own listeners, all that counts is due. Where the primary's member tells
 * (`by_primary`), only a primary's changes become due. A copy keeps its changes until the primary says through which
 * sequence listeners were told, and a member that becomes primary tells the rest. What was due once is told by this
 * member in any case, also when it leads the bucket no more: another one may have no listener.
 *
 * Members of a region may differ in that. A member that tells all to its own listeners also says, of the buckets that
 * it leads, how far it is (`says`). Copies whose members tell only what they lead need that after a takeover.
 *
 * Example: bucket 17 has `counted` 40 at its primary, which keeps 39, 40 and 41. 39 and 40 are due. While the listener
 * hears 39, the primary says that listeners were told through 38, and the copies keep 39, 40 and 41. If the primary
 * dies now, the member that takes over tells 39 and 40 as possible repeats, and 41 too when it counts. */
#ifndef WAN_HEARD_H
#define WAN_HEARD_H

#include <stdint.h>

#include "base/wan_base.h"
#include "base/wan_budget.h"
#include "base/wan_buffer.h"
#include "base/wan_lock.h"
#include "copies/wan_tail.h"

/* The share of one region in the member's budget. With more bytes than this callers of the region wait, until listeners
 * were told or stand still for too long. */
#define WAN_HEARD_BYTES_MAX (64u << 20)
/* Changes that are made for listeners do not wait, as they may be what frees the memory. With so many bytes they are
 * refused. */
#define WAN_HEARD_BYTES_REFUSED (2ull * WAN_HEARD_BYTES_MAX)
/* A listener stands still for too long: the oldest changes are dropped until no more than this is left. */
#define WAN_HEARD_BYTES_LEFT (WAN_HEARD_BYTES_MAX - WAN_HEARD_BYTES_MAX / 8)

/* One change. The value before it follows, at a multiple of 8 bytes, and then the wan_tail_entry. */
typedef struct {
    uint64_t length;   /* Of all: a multiple of 8. */
    uint64_t sequence; /* Of the change in its bucket. All destroys of a clear have the same one. */
    uint64_t order;    /* In which changes of all buckets came to this member, from 1. It grows within a bucket. */
    uint32_t old_length;
    uint8_t has_old, old_form;
    uint8_t may_repeat; /* In a change that was taken: another member may have told it too. Otherwise 0. */
    uint8_t reserved;
} wan_heard_item;
_Static_assert(sizeof(wan_heard_item) % 8 == 0, "an entry behind an item is aligned");

/* What is kept of one bucket. The bucket's lock guards it. */
typedef struct {
    wan_buffer items;  /* wan_heard_item after wan_heard_item, by their sequences. `count` is how many. */
    uint64_t due;      /* Bytes at the front of `items` that are due. */
    uint64_t older;    /* Of these, bytes of an earlier history of the bucket: their sequences mean nothing now. */
    uint64_t repeats;  /* The `order` through which another member may have told the changes too. */
    uint64_t passed;   /* Another member has told through this sequence. Noted while something is due here. */
    uint64_t moved_us; /* When the last change was told, or the first one came. */
    uint32_t next;     /* In the list of ready buckets: the number of the next one, plus 1. 0: it is the last one. */
    uint8_t is_listed; /* It is in that list. The lock of the wan_heard guards these two. */
    uint8_t is_told;   /* A listener hears the first item now. */
} wan_heard_kept;

/* What people are shown. */
typedef struct {
    uint64_t bytes;       /* Of all that is kept. */
    uint64_t dropped;     /* Changes that were dropped because a listener stood still for too long. */
    uint64_t forgotten;   /* Changes of other members' buckets that were dropped: they are not told after a takeover. */
    uint64_t standing_us; /* How long the listeners have been at one change. 0: they are at none. */
    uint64_t stood_us;    /* How long that was when changes were dropped last. */
} wan_heard_state;

struct wan_heard {
    wan_budget *budget;    /* The member's, which counts `bytes` too. NULL: nobody does. */
    wan_lock lock;         /* Guards the list of ready buckets and `sleeps`. It is the last lock that a change takes. */
    uint32_t first, last;  /* Of the list: a number plus 1. 0: the list is empty. */
    uint32_t sleeps;       /* The thread that tells waits for `changed`. */
    uint32_t changed;      /* A futex: a bucket is ready, or the end has come. */
    uint32_t ended;        /* Atomic. Nothing is kept any more. */
    uint32_t relieving;    /* Atomic. A thread drops changes now. */
    uint8_t by_primary;    /* The member of the primary tells. Set before the first change, and never changed. */
    uint8_t says;          /* As primary it says how far it has told. As `by_primary`, which implies it. */
    uint64_t bytes, order; /* Atomic: of all items; the newest item's. */
    uint64_t dropped, forgotten; /* Atomic: see wan_heard_state. */
    uint64_t told_since_us;      /* Atomic. When the change that is being told was taken. 0: there is none. */
    uint64_t stood_us;           /* Atomic: see wan_heard_state. */
    uint32_t told;         /* The bucket whose change is being told, plus 1. Only the thread that tells uses it. */
    wan_heard_kept kept[]; /* One for each bucket of the tail. */
};

/* Which changes a member tells its listeners. */
typedef enum {
    WAN_HEARS_COPIES,  /* All of the buckets of which it has a copy, as each other member does. */
    WAN_HEARS_LED,     /* Those of the buckets that it leads. */
    WAN_HEARS_AND_SAYS /* All of its copies; others may tell only what they lead, so it says how far it is. */
} wan_hears;

/* From now on changes of the region wait for listeners. A second call changes nothing. WAN_NO_MEMORY: they do not
 * wait. */
wan_status wan_tail_hear(wan_tail *tail, wan_hears which);
void wan_heard_close(wan_heard *heard, uint32_t buckets);

/* Where bytes of kept changes are charged and released. */
static inline void wan_heard_charge(wan_heard *heard, uint64_t bytes)
{
    __atomic_fetch_add(&heard->bytes, bytes, __ATOMIC_RELAXED);
    if (heard->budget) wan_budget_charge(heard->budget, WAN_BUDGET_HEARD, bytes);
}
static inline void wan_heard_release(wan_heard *heard, uint64_t bytes)
{
    __atomic_fetch_sub(&heard->bytes, bytes, __ATOMIC_RELAXED);
    if (heard->budget && bytes) wan_budget_release(heard->budget, WAN_BUDGET_HEARD, bytes);
}
static inline int wan_heard_is_full(const wan_heard *heard)
{
    return __atomic_load_n(&heard->bytes, __ATOMIC_RELAXED) > WAN_HEARD_BYTES_MAX;
}
static inline int wan_heard_refuses(const wan_heard *heard)
{
    return __atomic_load_n(&heard->bytes, __ATOMIC_RELAXED) > WAN_HEARD_BYTES_REFUSED;
}
/* Whether callers wait for what is kept here, or may: the region has its share, or the member's budget is full. */
static inline int wan_heard_is_waited_for(const wan_heard *heard)
{
    return wan_heard_is_full(heard)
           || (wan_budget_is_full(heard->budget) && __atomic_load_n(&heard->bytes, __ATOMIC_RELAXED));
}
/* Drops the oldest changes of those who have not moved for `heard_limit_us` of the tail, if callers wait: of what this
 * member tells, while its listener stands still; and of what it keeps for another primary whose listener does. The
 * caller holds no lock of a bucket. */
void wan_heard_relieve(wan_tail *tail);

/* Changes come. The caller holds the bucket's lock. */

/* Makes room for a change that will have this sequence and an entry of `entry_length` bytes. `old` is the value before
 * it; NULL: there is none. WAN_NO_MEMORY: there is no room. */
wan_status wan_heard_begin(wan_heard *heard, uint32_t bucket, uint64_t sequence, const uint8_t *old,
                           uint32_t old_length, uint8_t old_form, uint64_t entry_length);
/* The change for which room was made is made. */
void wan_heard_add(wan_heard *heard, uint32_t bucket, const wan_tail_entry *entry);
/* Makes room for changes of one sequence that have `bytes` bytes together (wan_heard_size). */
wan_status wan_heard_begin_many(wan_heard *heard, uint32_t bucket, uint64_t bytes);
/* Adds one of them. Returns where its wan_tail_entry goes. */
uint8_t *wan_heard_place(wan_heard *heard, uint32_t bucket, uint64_t sequence, const uint8_t *old, uint32_t old_length,
                         uint8_t old_form, uint64_t entry_length);
/* The bytes of a change. */
static inline uint64_t wan_heard_size(uint32_t old_length, uint64_t entry_length)
{
    return sizeof(wan_heard_item) + wan_align8(old_length) + entry_length;
}

/* What becomes of a bucket. The caller holds its lock. */

/* Changes through `counted` count, and this member tells them. */
void wan_heard_count(wan_heard *heard, uint32_t bucket, uint64_t counted);
/* The primary says that listeners were told through this sequence. */
void wan_heard_pass(wan_heard *heard, uint32_t bucket, uint64_t through);
/* The member leads the bucket from now on, or does not any more. */
void wan_heard_turn(wan_heard *heard, uint32_t bucket);
/* The bucket's history is dropped here: what is not due will never be. */
void wan_heard_forget(wan_heard *heard, uint32_t bucket);
/* Through which sequence listeners were told, if the member is primary of the bucket, where `counted` counts. */
uint64_t wan_heard_through(const wan_heard *heard, uint32_t bucket, uint64_t counted);

/* The thread that tells. */

/* The listeners have heard the change that was taken before. Copies the next one to `to`, whose content goes. Waits up
 * to `timeout_ms` for it. Returns whether there is one. WAN_NO_MEMORY for the copy: as if there was none. */
int wan_heard_next(wan_tail *tail, wan_buffer *to, uint32_t timeout_ms);
/* Nobody will take anything: what is kept is dropped, and what comes is not kept. Returns how many changes were due
 * and were not taken. */
uint64_t wan_heard_end(wan_tail *tail);
void wan_heard_look(const wan_heard *heard, wan_heard_state *state);

#endif
