/* Owns the changes of a region of which listeners are still to be notified: for each bucket, in the order of its
 * sequences. The pending notifications are in memory only.
 *
 * A change is kept where the change is made or followed. A change is *due* as soon as the change is replicated and this
 * member has to notify listeners of the change. One thread takes due changes, one after the other
 * (wan_notifications_next), and goes round among the buckets with due changes. So a bucket without due changes delays
 * no other bucket, and the work does not grow with the number of buckets.
 *
 * If each member notifies its own listeners, all replicated changes are due. If the primary's member notifies listeners
 * (`by_primary`), only a primary's changes become due. A replica keeps its changes until the primary sends the sequence
 * through which listeners were notified. A member that becomes primary notifies listeners of the remaining changes. The
 * member notifies listeners of each change that was ever due, even after the member has stopped leading the bucket: the
 * next primary's member may have no listener.
 *
 * Members of a region may differ in this setting. A member that notifies its own listeners of all changes also
 * propagates its progress in the led buckets (`says`). Members that notify only of led buckets need the progress after
 * a takeover.
 *
 * Example: bucket 17 has `high_watermark` 40 at its primary, which keeps 39, 40 and 41. The changes 39 and 40 are due.
 * While the listener handles 39, the primary says that listeners were notified through 38, and the replicas keep 39, 40
 * and 41. If the primary dies now, the new primary notifies its listener of 39 and 40 as possible repeats, and also of
 * 41 once 41 is replicated. */
#ifndef WAN_NOTIFICATIONS_H
#define WAN_NOTIFICATIONS_H

#include <stdint.h>

#include "base/wan_base.h"
#include "base/wan_budget.h"
#include "base/wan_buffer.h"
#include "base/wan_lock.h"
#include "replication/wan_changelog.h"

/* The share of one region in the member's budget. Above this limit callers of the region wait, until listeners were
 * notified, or stand still for too long. */
#define WAN_NOTIFICATIONS_BYTES_MAX (64u << 20)
/* Changes made on behalf of listeners do not wait, because the memory may become free only through these changes. Above
 * this limit such changes are refused. */
#define WAN_NOTIFICATIONS_BYTES_REFUSED (2ull * WAN_NOTIFICATIONS_BYTES_MAX)
/* If a listener stands still for too long, the oldest changes are dropped down to this limit. */
#define WAN_NOTIFICATIONS_BYTES_LEFT (WAN_NOTIFICATIONS_BYTES_MAX - WAN_NOTIFICATIONS_BYTES_MAX / 8)

/* One change. Followed by the value before the change, at a multiple of 8 bytes, and then the wan_changelog_entry. */
typedef struct {
    uint64_t length;   /* Bytes of all parts: a multiple of 8. */
    uint64_t sequence; /* The sequence of the change in its bucket. All destroys of a clear have the same sequence. */
    uint64_t order;    /* The order of arrival at this member, over all buckets, from 1. Grows within a bucket. */
    uint32_t old_length;
    uint8_t has_old, old_form;
    uint8_t may_repeat; /* In a change that was taken: 1 if a notification by a different member is possible. Otherwise
                           0. */
    uint8_t reserved;
} wan_notification;
_Static_assert(sizeof(wan_notification) % 8 == 0, "an entry behind an item is aligned");

/* The kept changes of one bucket. Guarded by the bucket's lock. */
typedef struct {
    wan_buffer items;  /* wan_notification after wan_notification, by their sequences. `count`: the number of items. */
    uint64_t due;      /* Bytes at the front of `items` that are due. */
    uint64_t older;    /* Bytes of due items from an earlier history of the bucket: their sequences mean nothing now. */
    uint64_t repeats;  /* The `order` through which listeners may have been notified before by a different member. */
    uint64_t passed;   /* Listeners of a different member were notified through this sequence. Noted while changes are
                          due here. */
    uint64_t moved_us; /* When listeners were last notified of a change, or when the first change arrived. */
    uint32_t next;     /* In the list of ready buckets: the number of the next bucket, plus 1. 0: the last bucket. */
    uint8_t is_listed; /* The bucket is in the list of ready buckets. `next` and `is_listed` are guarded by the lock of
                          the wan_notifications. */
    uint8_t is_told;   /* A listener is being notified of the first item. */
} wan_notifications_of_bucket;

/* The state shown to users. */
typedef struct {
    uint64_t bytes;       /* Bytes of all kept changes. */
    uint64_t dropped;     /* Changes dropped because a listener stood still for too long. */
    uint64_t forgotten;   /* Dropped changes of buckets led by other members: no notification after a takeover. */
    uint64_t standing_us; /* How long the listeners have been at one change. 0: at no change. */
    uint64_t stood_us;    /* The value of `standing_us` at the last drop of changes. */
} wan_notifications_state;

struct wan_notifications {
    wan_budget *budget;          /* The budget of the member, which includes `bytes`. NULL: no budget. */
    wan_lock lock;               /* Guards the list of ready buckets and `sleeps`. The last lock in the lock order of a
                                    change. */
    uint32_t first, last;        /* Of the list: a number plus 1. 0: the list is empty. */
    uint32_t sleeps;             /* The notifying thread waits for `changed`. */
    uint32_t changed;            /* A futex: a bucket is ready, or the end has come. */
    uint32_t ended;              /* Atomic. No change is kept any more. */
    uint32_t relieving;          /* Atomic. A thread drops changes now. */
    uint8_t by_primary;          /* The primary's member notifies listeners. Set before the first change, and never
                                    changed. */
    uint8_t says;                /* As primary, the member propagates its notification progress. `by_primary` implies
                                    `says`. */
    uint64_t bytes, order;       /* Atomic: of all items; the newest item's. */
    uint64_t dropped, forgotten; /* Atomic: see wan_notifications_state. */
    uint64_t told_since_us;      /* Atomic. When the change of the present notification was taken. 0: no such change. */
    uint64_t stood_us;           /* Atomic: see wan_notifications_state. */
    uint32_t told;               /* The bucket of the present notification, plus 1. Only for the notifying thread. */
    wan_notifications_of_bucket kept[]; /* An item for each bucket of the change log. */
};

/* The changes of which a member notifies its listeners. */
typedef enum {
    WAN_NOTIFY_REPLICAS, /* All changes of the buckets with a replica at this member, as each member does. */
    WAN_NOTIFY_LED,      /* Changes of the buckets that the member leads. */
    WAN_NOTIFY_AND_SAY   /* As WAN_NOTIFY_REPLICAS. The member also propagates its progress for members with
                            WAN_NOTIFY_LED. */
} wan_notify;

/* From now on changes of the region wait for listeners. A second call changes nothing. WAN_NO_MEMORY: changes do not
 * wait. */
wan_status wan_changelog_keep_notifications(wan_changelog *changelog, wan_notify which);
void wan_notifications_close(wan_notifications *notifications, uint32_t buckets);

/* Where bytes of kept changes are charged and released. */
static inline void wan_notifications_charge(wan_notifications *notifications, uint64_t bytes)
{
    __atomic_fetch_add(&notifications->bytes, bytes, __ATOMIC_RELAXED);
    if (notifications->budget) wan_budget_charge(notifications->budget, WAN_BUDGET_NOTIFICATIONS, bytes);
}
static inline void wan_notifications_release(wan_notifications *notifications, uint64_t bytes)
{
    __atomic_fetch_sub(&notifications->bytes, bytes, __ATOMIC_RELAXED);
    if (notifications->budget && bytes) wan_budget_release(notifications->budget, WAN_BUDGET_NOTIFICATIONS, bytes);
}
static inline int wan_notifications_are_full(const wan_notifications *notifications)
{
    return __atomic_load_n(&notifications->bytes, __ATOMIC_RELAXED) > WAN_NOTIFICATIONS_BYTES_MAX;
}
static inline int wan_notifications_refuse(const wan_notifications *notifications)
{
    return __atomic_load_n(&notifications->bytes, __ATOMIC_RELAXED) > WAN_NOTIFICATIONS_BYTES_REFUSED;
}
/* Whether callers wait for the kept changes, or may have to wait: the region has used its share, or the member's budget
 * is full. */
static inline int wan_notifications_are_waited_for(const wan_notifications *notifications)
{
    return wan_notifications_are_full(notifications)
           || (wan_budget_is_full(notifications->budget) && __atomic_load_n(&notifications->bytes, __ATOMIC_RELAXED));
}
/* Drops the oldest changes of buckets that have not moved for `notification_limit_us` of the change log, if callers
 * wait. A bucket does not move while a listener stands still: the own listener, or, for changes kept for a different
 * primary, the primary's listener. The caller holds no lock of a bucket. */
void wan_notifications_relieve(wan_changelog *changelog);

/* Arriving changes. The caller holds the bucket's lock. */

/* Makes room for a change with this sequence and an entry of `entry_length` bytes. `old` is the value before the
 * change; NULL: no value. WAN_NO_MEMORY: no room. */
wan_status wan_notifications_begin(wan_notifications *notifications, uint32_t bucket, uint64_t sequence,
                                   const uint8_t *old, uint32_t old_length, uint8_t old_form, uint64_t entry_length);
/* The change for which room was made is made. */
void wan_notifications_add(wan_notifications *notifications, uint32_t bucket, const wan_changelog_entry *entry);
/* Makes room for changes of one sequence with `bytes` bytes together (wan_notification_size). */
wan_status wan_notifications_begin_many(wan_notifications *notifications, uint32_t bucket, uint64_t bytes);
/* Adds one change. Returns the place for its wan_changelog_entry. */
uint8_t *wan_notifications_place(wan_notifications *notifications, uint32_t bucket, uint64_t sequence,
                                 const uint8_t *old, uint32_t old_length, uint8_t old_form, uint64_t entry_length);
/* The bytes of a change. */
static inline uint64_t wan_notification_size(uint32_t old_length, uint64_t entry_length)
{
    return sizeof(wan_notification) + wan_align8(old_length) + entry_length;
}

/* Events in the course of a bucket. The caller holds its lock. */

/* Changes through `high_watermark` are replicated, and listeners of this member are to be notified of them. */
void wan_notifications_count(wan_notifications *notifications, uint32_t bucket, uint64_t high_watermark);
/* The primary says that listeners were notified through this sequence. */
void wan_notifications_pass(wan_notifications *notifications, uint32_t bucket, uint64_t through);
/* The member leads the bucket from now on, or leads the bucket no longer. */
void wan_notifications_turn(wan_notifications *notifications, uint32_t bucket);
/* This member drops the bucket's history: changes that are not due now never become due. */
void wan_notifications_forget(wan_notifications *notifications, uint32_t bucket);
/* Returns the sequence through which listeners were notified. The member is primary of the bucket, whose high watermark
 * is `high_watermark`. */
uint64_t wan_notifications_through(const wan_notifications *notifications, uint32_t bucket, uint64_t high_watermark);

/* The notifying thread. */

/* The listeners were notified of the change that was taken before. Copies the next due change to `to`, and discards the
 * old content of `to`. Waits up to `timeout_ms` for a change. Returns whether a change was copied. If the copy fails
 * with WAN_NO_MEMORY, the function returns as if no change was due. */
int wan_notifications_next(wan_changelog *changelog, wan_buffer *to, uint32_t timeout_ms);
/* No more changes will be taken: drops all kept changes, and keeps no later change. Returns how many changes were due
 * and were not taken. */
uint64_t wan_notifications_end(wan_changelog *changelog);
void wan_notifications_look(const wan_notifications *notifications, wan_notifications_state *state);

#endif
