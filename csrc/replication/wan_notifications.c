#include "replication/wan_notifications.h"

#include <stdlib.h>
#include <string.h>

#define EMPTY_BYTES_KEPT 65536u /* An empty bucket keeps at most so much memory for notifications. */
#define RELIEF_ROUNDS    64u    /* How often all buckets are looked through for the oldest changes. */

static inline uint64_t load(const uint64_t *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
static inline int has_ended(const wan_notifications *notifications)
{
    return __atomic_load_n(&notifications->ended, __ATOMIC_ACQUIRE) != 0;
}
static inline int leads(uint8_t role) { return role == WAN_REPLICA_PRIMARY || role == WAN_REPLICA_TAKING_OVER; }

wan_status wan_changelog_keep_notifications(wan_changelog *changelog, wan_notify which)
{
    if (wan_changelog_notifications(changelog)) return WAN_OK;
    wan_notifications *none = NULL, *fresh = calloc(1, sizeof *fresh + changelog->bucket_count * sizeof *fresh->kept);
    if (!fresh) return WAN_FAIL(WAN_NO_MEMORY, "no memory for changes that wait for listeners");
    fresh->budget = changelog->budget;
    fresh->by_primary = which == WAN_NOTIFY_LED;
    fresh->says = which != WAN_NOTIFY_REPLICAS;
    fresh->told_since_us = wan_monotonic_us(); /* Until its thread has begun, the listener stands still. */
    if (!__atomic_compare_exchange_n(&changelog->notifications, &none, fresh, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        free(fresh);
    return WAN_OK;
}

void wan_notifications_close(wan_notifications *notifications, uint32_t buckets)
{
    if (!notifications) return;
    for (uint32_t n = 0; n < buckets; n++) wan_buffer_close(&notifications->kept[n].items);
    wan_notifications_release(notifications, notifications->bytes);
    free(notifications);
}

/* Items. */

static inline wan_notification *first_of(const wan_notifications_of_bucket *kept)
{
    return (wan_notification *)(kept->items.bytes + kept->items.start);
}
static inline int is_empty(const wan_notifications_of_bucket *kept) { return kept->items.start == kept->items.used; }

/* The first item leaves. */
static void drop_first(wan_notifications *notifications, wan_notifications_of_bucket *kept)
{
    const uint64_t length = first_of(kept)->length;
    kept->items.start += length;
    kept->items.count--;
    kept->due -= kept->due < length ? kept->due : length;
    kept->older -= kept->older < length ? kept->older : length;
    wan_notifications_release(notifications, length);
    if (is_empty(kept)) wan_buffer_trim(&kept->items, EMPTY_BYTES_KEPT);
}

static inline const wan_changelog_entry *entry_in(const wan_notification *item)
{
    return (const wan_changelog_entry *)((const uint8_t *)(item + 1) + wan_align8(item->old_length));
}

/* Writes an item after all other items, without its entry and without counting the item yet. Room was made before. */
static wan_notification *write_item(wan_notifications_of_bucket *kept, uint64_t sequence, const uint8_t *old,
                                    uint32_t old_length, uint8_t old_form, uint64_t entry_length)
{
    wan_notification *item = (wan_notification *)(kept->items.bytes + kept->items.used);
    *item = (wan_notification){
        .length = wan_notification_size(old ? old_length : 0, entry_length),
        .sequence = sequence,
        .old_length = old ? old_length : 0,
        .has_old = old != NULL,
        .old_form = old ? old_form : 0,
    };
    if (item->old_length) memcpy(item + 1, old, item->old_length);
    return item;
}

/* The written item becomes one of the kept items. */
static void add_item(wan_notifications *notifications, wan_notifications_of_bucket *kept, wan_notification *item)
{
    item->order = __atomic_add_fetch(&notifications->order, 1, __ATOMIC_RELAXED);
    if (is_empty(kept)) kept->moved_us = wan_monotonic_us();
    kept->items.used += item->length;
    kept->items.count++;
    wan_notifications_charge(notifications, item->length);
}

wan_status wan_notifications_begin(wan_notifications *notifications, uint32_t bucket, uint64_t sequence,
                                   const uint8_t *old, uint32_t old_length, uint8_t old_form, uint64_t entry_length)
{
    wan_notifications_of_bucket *kept = &notifications->kept[bucket];
    wan_status status =
        wan_buffer_make_room(&kept->items, wan_notification_size(old ? old_length : 0, entry_length), WAN_NO_LIMIT);
    if (status == WAN_OK) write_item(kept, sequence, old, old_length, old_form, entry_length);
    return status;
}

void wan_notifications_add(wan_notifications *notifications, uint32_t bucket, const wan_changelog_entry *entry)
{
    wan_notifications_of_bucket *kept = &notifications->kept[bucket];
    wan_notification *item = (wan_notification *)(kept->items.bytes + kept->items.used);
    if (has_ended(notifications)) return;
    memcpy((uint8_t *)(item + 1) + wan_align8(item->old_length), entry, entry->length);
    add_item(notifications, kept, item);
}

wan_status wan_notifications_begin_many(wan_notifications *notifications, uint32_t bucket, uint64_t bytes)
{
    return wan_buffer_make_room(&notifications->kept[bucket].items, bytes, WAN_NO_LIMIT);
}

uint8_t *wan_notifications_place(wan_notifications *notifications, uint32_t bucket, uint64_t sequence,
                                 const uint8_t *old, uint32_t old_length, uint8_t old_form, uint64_t entry_length)
{
    wan_notifications_of_bucket *kept = &notifications->kept[bucket];
    wan_notification *item = write_item(kept, sequence, old, old_length, old_form, entry_length);
    if (!has_ended(notifications)) add_item(notifications, kept, item);
    return (uint8_t *)item + item->length - entry_length;
}

/* Buckets with due changes. */

/* Puts a bucket at the end of the list of ready buckets, if changes are due and no listener is being notified of the
 * first item. */
static void list_bucket(wan_notifications *notifications, uint32_t bucket)
{
    wan_notifications_of_bucket *kept = &notifications->kept[bucket];
    uint32_t wakes = 0;
    if (!kept->due || kept->is_told) return;
    wan_lock_take(&notifications->lock);
    if (!kept->is_listed) {
        kept->is_listed = 1;
        kept->next = 0;
        *(notifications->last ? &notifications->kept[notifications->last - 1].next : &notifications->first) =
            bucket + 1;
        notifications->last = bucket + 1;
        wakes = notifications->sleeps;
        notifications->sleeps = 0;
    }
    wan_lock_release(&notifications->lock);
    if (wakes) wan_signal_change(&notifications->changed);
}

/* Takes the first bucket off the list. Returns its number plus 1; 0: the list is empty, and the caller is about to
 * sleep. */
static uint32_t unlist_bucket(wan_notifications *notifications)
{
    wan_lock_take(&notifications->lock);
    const uint32_t found = notifications->first;
    notifications->sleeps = !found;
    if (found) {
        wan_notifications_of_bucket *kept = &notifications->kept[found - 1];
        notifications->first = kept->next;
        if (!notifications->first) notifications->last = 0;
        kept->is_listed = 0;
    }
    wan_lock_release(&notifications->lock);
    return found;
}

void wan_notifications_count(wan_notifications *notifications, uint32_t bucket, uint64_t high_watermark)
{
    wan_notifications_of_bucket *kept = &notifications->kept[bucket];
    const uint8_t *at = kept->items.bytes + kept->items.start;
    const uint64_t bytes = kept->items.used - kept->items.start, before = kept->due;
    while (kept->due < bytes) {
        const wan_notification *item = (const wan_notification *)(at + kept->due);
        if (item->sequence > high_watermark) break;
        kept->due += item->length;
    }
    if (kept->due != before) list_bucket(notifications, bucket);
}

/* Drops the changes of which another member has notified listeners. No change is due in the bucket. */
static void drop_passed(wan_notifications *notifications, wan_notifications_of_bucket *kept, uint64_t through)
{
    const uint32_t before = kept->items.count;
    while (!is_empty(kept) && first_of(kept)->sequence <= through) drop_first(notifications, kept);
    if (kept->items.count != before) kept->moved_us = wan_monotonic_us();
}

void wan_notifications_pass(wan_notifications *notifications, uint32_t bucket, uint64_t through)
{
    wan_notifications_of_bucket *kept = &notifications->kept[bucket];
    if (!notifications->by_primary) return;
    if (!kept->due) drop_passed(notifications, kept, through);
    else if (through > kept->passed) kept->passed = through;
}

void wan_notifications_turn(wan_notifications *notifications, uint32_t bucket)
{
    if (!notifications->by_primary) return;
    notifications->kept[bucket].repeats = load(&notifications->order);
    notifications->kept[bucket].passed = 0;
}

void wan_notifications_forget(wan_notifications *notifications, uint32_t bucket)
{
    wan_notifications_of_bucket *kept = &notifications->kept[bucket];
    const uint64_t end = kept->items.start + kept->due;
    for (uint64_t at = end; at < kept->items.used; kept->items.count--)
        at += ((const wan_notification *)(kept->items.bytes + at))->length;
    wan_notifications_release(notifications, kept->items.used - end);
    kept->items.used = end;
    if (is_empty(kept)) wan_buffer_trim(&kept->items, EMPTY_BYTES_KEPT);
    kept->older = kept->due;
    kept->passed = 0;
}

uint64_t wan_notifications_through(const wan_notifications *notifications, uint32_t bucket, uint64_t high_watermark)
{
    if (!notifications || !notifications->says || has_ended(notifications)) return high_watermark;
    const wan_notifications_of_bucket *kept = &notifications->kept[bucket];
    if (kept->older) return 0;
    if (is_empty(kept)) return high_watermark;
    const uint64_t before = first_of(kept)->sequence - 1;
    return before < high_watermark ? before : high_watermark;
}

/* Too many changes. */

/* Drops the items of a bucket through `order`, but not the item of the present notification. Returns how many. Under
 * the bucket's lock. */
static uint64_t drop_old(wan_notifications *notifications, wan_notifications_of_bucket *kept, uint64_t order)
{
    wan_buffer *items = &kept->items;
    const uint64_t stays = kept->is_told ? first_of(kept)->length : 0, from = items->start + stays;
    uint64_t at = from;
    uint32_t dropped = 0;
    for (; at < items->used; dropped++) {
        const wan_notification *item = (const wan_notification *)(items->bytes + at);
        if (item->order > order) break;
        at += item->length;
    }
    if (!dropped) return 0;
    const uint64_t bytes = at - from;
    if (stays) memmove(items->bytes + at - stays, items->bytes + items->start, stays);
    items->start = at - stays;
    items->count -= dropped;
    if (kept->due > stays) kept->due -= kept->due - stays < bytes ? kept->due - stays : bytes;
    if (kept->older > stays) kept->older -= kept->older - stays < bytes ? kept->older - stays : bytes;
    wan_notifications_release(notifications, bytes);
    if (is_empty(kept)) wan_buffer_trim(items, EMPTY_BYTES_KEPT);
    return dropped;
}

/* Whether the changes of a bucket wait because a listener stands still: the listener of this member, or of the bucket's
 * primary. Under the bucket's lock. */
static int stands_still(const wan_changelog *changelog, const wan_notifications *notifications, uint32_t number,
                        uint64_t now_us)
{
    const wan_notifications_of_bucket *kept = &notifications->kept[number];
    const uint64_t limit_us = load(&changelog->notification_limit_us);
    const int is_ours = !notifications->by_primary || kept->due || leads(wan_changelog_role(changelog, number));
    const uint64_t since_us = is_ours ? load(&notifications->told_since_us) : kept->moved_us;
    return kept->items.count > kept->is_told && since_us && now_us > since_us && now_us - since_us > limit_us;
}

/* Drops changes older than `order` of all buckets that stand still. Returns how many changes. */
static uint64_t drop_round(wan_changelog *changelog, wan_notifications *notifications, uint64_t order, uint64_t now_us)
{
    uint64_t all = 0;
    for (uint32_t n = 0; n < changelog->bucket_count; n++) {
        wan_changelog_bucket *bucket = &changelog->buckets[n];
        wan_lock_take(&bucket->lock);
        if (stands_still(changelog, notifications, n, now_us)) {
            wan_notifications_of_bucket *kept = &notifications->kept[n];
            const int is_ours = !notifications->by_primary || kept->due || leads(bucket->role);
            const uint64_t dropped = drop_old(notifications, kept, order);
            const uint64_t since_us = load(&notifications->told_since_us); /* 0: the listener has just returned. */
            if (dropped && is_ours && since_us && now_us > since_us)
                __atomic_store_n(&notifications->stood_us, now_us - since_us, __ATOMIC_RELAXED);
            __atomic_fetch_add(is_ours ? &notifications->dropped : &notifications->forgotten, dropped,
                               __ATOMIC_RELAXED);
            if (dropped) wan_changelog_say_notified(changelog, n, 0);
            all += dropped;
        }
        wan_lock_release(&bucket->lock);
    }
    return all;
}

/* The order of the oldest change of all buckets that stand still. UINT64_MAX: no such change. */
static uint64_t oldest(wan_changelog *changelog, const wan_notifications *notifications, uint64_t now_us)
{
    uint64_t order = UINT64_MAX;
    for (uint32_t n = 0; n < changelog->bucket_count; n++) {
        const wan_notifications_of_bucket *kept = &notifications->kept[n];
        wan_lock_take(&changelog->buckets[n].lock);
        if (stands_still(changelog, notifications, n, now_us)) {
            const wan_notification *item = first_of(kept);
            if (kept->is_told) item = (const wan_notification *)((const uint8_t *)item + item->length);
            if (item->order < order) order = item->order;
        }
        wan_lock_release(&changelog->buckets[n].lock);
    }
    return order;
}

void wan_notifications_relieve(wan_changelog *changelog)
{
    wan_notifications *notifications = wan_changelog_notifications(changelog);
    if (!notifications || !wan_notifications_are_waited_for(notifications) || has_ended(notifications)) return;
    if (__atomic_exchange_n(&notifications->relieving, 1, __ATOMIC_ACQ_REL)) return;
    const uint64_t now_us = wan_monotonic_us(), before = load(&notifications->bytes);
    const uint64_t left = before > WAN_NOTIFICATIONS_BYTES_MAX ? WAN_NOTIFICATIONS_BYTES_LEFT : before - before / 8 - 1;
    for (uint32_t n = 0; n < RELIEF_ROUNDS && load(&notifications->bytes) > left; n++) {
        const uint64_t from = oldest(changelog, notifications, now_us), newest = load(&notifications->order);
        if (from == UINT64_MAX || !drop_round(changelog, notifications, from + (newest - from) / 8, now_us)) break;
    }
    __atomic_store_n(&notifications->relieving, 0, __ATOMIC_RELEASE);
}

/* The notifying thread. */

/* The listeners were notified of the change that was taken last. */
static void end_told(wan_changelog *changelog, wan_notifications *notifications)
{
    __atomic_store_n(&notifications->told_since_us, 0, __ATOMIC_RELAXED);
    if (!notifications->told) return;
    const uint32_t number = notifications->told - 1;
    wan_notifications_of_bucket *kept = &notifications->kept[number];
    notifications->told = 0;
    wan_lock_take(&changelog->buckets[number].lock);
    if (kept->is_told) {
        kept->is_told = 0;
        drop_first(notifications, kept);
        kept->moved_us = wan_monotonic_us();
        if (!kept->due && kept->passed) drop_passed(notifications, kept, kept->passed);
        wan_changelog_say_notified(changelog, number, !kept->due);
        list_bucket(notifications, number);
    }
    wan_lock_release(&changelog->buckets[number].lock);
}

/* Copies the first due change of a bucket. WAN_EMPTY: no change is due. WAN_NO_MEMORY: the change stays. */
static wan_status take_first(wan_changelog *changelog, wan_notifications *notifications, uint32_t number,
                             wan_buffer *to)
{
    wan_notifications_of_bucket *kept = &notifications->kept[number];
    wan_status status = WAN_EMPTY;
    wan_lock_take(&changelog->buckets[number].lock);
    if (kept->due && !kept->is_told) {
        const wan_notification *item = first_of(kept);
        status = wan_buffer_add(to, item, item->length);
        if (status == WAN_OK) {
            ((wan_notification *)to->bytes)->may_repeat =
                item->order <= kept->repeats || wan_changelog_entry_record(entry_in(item))->flags & WAN_FLAG_REPEATED;
            kept->is_told = 1;
        } else {
            list_bucket(notifications, number);
        }
    }
    wan_lock_release(&changelog->buckets[number].lock);
    return status;
}

int wan_notifications_next(wan_changelog *changelog, wan_buffer *to, uint32_t timeout_ms)
{
    wan_notifications *notifications = wan_changelog_notifications(changelog);
    if (!notifications) return 0;
    end_told(changelog, notifications);
    wan_buffer_trim(to, WAN_BUFFER_KEPT_BYTES);
    for (int waited = 0;; waited = 1) {
        const uint32_t seen = __atomic_load_n(&notifications->changed, __ATOMIC_ACQUIRE);
        wan_status status = WAN_EMPTY;
        for (uint32_t found;
             status == WAN_EMPTY && !has_ended(notifications) && (found = unlist_bucket(notifications));) {
            status = take_first(changelog, notifications, found - 1, to);
            if (status != WAN_OK) continue;
            notifications->told = found;
            __atomic_store_n(&notifications->told_since_us, wan_monotonic_us(), __ATOMIC_RELAXED);
            return 1;
        }
        if (waited || !timeout_ms || has_ended(notifications)) return 0;
        wan_wait_change(&notifications->changed, seen, timeout_ms);
    }
}

uint64_t wan_notifications_end(wan_changelog *changelog)
{
    wan_notifications *notifications = wan_changelog_notifications(changelog);
    uint64_t dropped = 0;
    if (!notifications) return 0;
    __atomic_store_n(&notifications->ended, 1, __ATOMIC_RELEASE);
    for (uint32_t n = 0; n < changelog->bucket_count; n++) {
        wan_notifications_of_bucket *kept = &notifications->kept[n];
        wan_lock_take(&changelog->buckets[n].lock);
        for (dropped -= kept->is_told; kept->due; dropped++) drop_first(notifications, kept);
        wan_notifications_release(notifications, kept->items.used - kept->items.start);
        wan_buffer_close(&kept->items);
        kept->is_told = 0;
        wan_changelog_say_notified(changelog, n, 0);
        wan_lock_release(&changelog->buckets[n].lock);
    }
    wan_signal_change(&notifications->changed);
    return dropped;
}

void wan_notifications_look(const wan_notifications *notifications, wan_notifications_state *state)
{
    const uint64_t since_us = load(&notifications->told_since_us), now_us = wan_monotonic_us();
    *state = (wan_notifications_state){
        .bytes = load(&notifications->bytes),
        .dropped = load(&notifications->dropped),
        .forgotten = load(&notifications->forgotten),
        .standing_us = since_us && now_us > since_us ? now_us - since_us : 0,
        .stood_us = load(&notifications->stood_us),
    };
}
