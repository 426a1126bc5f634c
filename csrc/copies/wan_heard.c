#include "copies/wan_heard.h"

#include <stdlib.h>
#include <string.h>

#define EMPTY_BYTES_KEPT 65536u /* What is kept of a bucket keeps so much memory when it is empty. */
#define RELIEF_ROUNDS    64u    /* How often all buckets are looked through for the oldest changes. */

static inline uint64_t load(const uint64_t *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
static inline int has_ended(const wan_heard *heard) { return __atomic_load_n(&heard->ended, __ATOMIC_ACQUIRE) != 0; }
static inline int leads(uint8_t role) { return role == WAN_TAIL_PRIMARY || role == WAN_TAIL_TAKING_OVER; }

wan_status wan_tail_hear(wan_tail *tail, wan_hears which)
{
    if (wan_tail_heard(tail)) return WAN_OK;
    wan_heard *none = NULL, *fresh = calloc(1, sizeof *fresh + tail->bucket_count * sizeof *fresh->kept);
    if (!fresh) return WAN_FAIL(WAN_NO_MEMORY, "no memory for changes that wait for listeners");
    fresh->budget = tail->budget;
    fresh->by_primary = which == WAN_HEARS_LED;
    fresh->says = which != WAN_HEARS_COPIES;
    fresh->told_since_us = wan_monotonic_us(); /* Until its thread has begun, the listener stands still. */
    if (!__atomic_compare_exchange_n(&tail->heard, &none, fresh, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) free(fresh);
    return WAN_OK;
}

void wan_heard_close(wan_heard *heard, uint32_t buckets)
{
    if (!heard) return;
    for (uint32_t n = 0; n < buckets; n++) wan_buffer_close(&heard->kept[n].items);
    wan_heard_release(heard, heard->bytes);
    free(heard);
}

/* Items. */

static inline wan_heard_item *first_of(const wan_heard_kept *kept)
{
    return (wan_heard_item *)(kept->items.bytes + kept->items.start);
}
static inline int is_empty(const wan_heard_kept *kept) { return kept->items.start == kept->items.used; }

/* The first item leaves. */
static void drop_first(wan_heard *heard, wan_heard_kept *kept)
{
    const uint64_t length = first_of(kept)->length;
    kept->items.start += length;
    kept->items.count--;
    kept->due -= kept->due < length ? kept->due : length;
    kept->older -= kept->older < length ? kept->older : length;
    wan_heard_release(heard, length);
    if (is_empty(kept)) wan_buffer_trim(&kept->items, EMPTY_BYTES_KEPT);
}

static inline const wan_tail_entry *entry_in(const wan_heard_item *item)
{
    return (const wan_tail_entry *)((const uint8_t *)(item + 1) + wan_align8(item->old_length));
}

/* Writes an item behind all others, without its entry, and does not count it yet. There is room for it. */
static wan_heard_item *write_item(wan_heard_kept *kept, uint64_t sequence, const uint8_t *old, uint32_t old_length,
                                  uint8_t old_form, uint64_t entry_length)
{
    wan_heard_item *item = (wan_heard_item *)(kept->items.bytes + kept->items.used);
    *item = (wan_heard_item){
        .length = wan_heard_size(old ? old_length : 0, entry_length),
        .sequence = sequence,
        .old_length = old ? old_length : 0,
        .has_old = old != NULL,
        .old_form = old ? old_form : 0,
    };
    if (item->old_length) memcpy(item + 1, old, item->old_length);
    return item;
}

/* The item that was written is one of those that are kept. */
static void add_item(wan_heard *heard, wan_heard_kept *kept, wan_heard_item *item)
{
    item->order = __atomic_add_fetch(&heard->order, 1, __ATOMIC_RELAXED);
    if (is_empty(kept)) kept->moved_us = wan_monotonic_us();
    kept->items.used += item->length;
    kept->items.count++;
    wan_heard_charge(heard, item->length);
}

wan_status wan_heard_begin(wan_heard *heard, uint32_t bucket, uint64_t sequence, const uint8_t *old,
                           uint32_t old_length, uint8_t old_form, uint64_t entry_length)
{
    wan_heard_kept *kept = &heard->kept[bucket];
    wan_status status =
        wan_buffer_make_room(&kept->items, wan_heard_size(old ? old_length : 0, entry_length), WAN_NO_LIMIT);
    if (status == WAN_OK) write_item(kept, sequence, old, old_length, old_form, entry_length);
    return status;
}

void wan_heard_add(wan_heard *heard, uint32_t bucket, const wan_tail_entry *entry)
{
    wan_heard_kept *kept = &heard->kept[bucket];
    wan_heard_item *item = (wan_heard_item *)(kept->items.bytes + kept->items.used);
    if (has_ended(heard)) return;
    memcpy((uint8_t *)(item + 1) + wan_align8(item->old_length), entry, entry->length);
    add_item(heard, kept, item);
}

wan_status wan_heard_begin_many(wan_heard *heard, uint32_t bucket, uint64_t bytes)
{
    return wan_buffer_make_room(&heard->kept[bucket].items, bytes, WAN_NO_LIMIT);
}

uint8_t *wan_heard_place(wan_heard *heard, uint32_t bucket, uint64_t sequence, const uint8_t *old, uint32_t old_length,
                         uint8_t old_form, uint64_t entry_length)
{
    wan_heard_kept *kept = &heard->kept[bucket];
    wan_heard_item *item = write_item(kept, sequence, old, old_length, old_form, entry_length);
    if (!has_ended(heard)) add_item(heard, kept, item);
    return (uint8_t *)item + item->length - entry_length;
}

/* Buckets that have something to tell. */

/* Puts a bucket behind the others that are ready, if something is due and no listener hears its first item. */
static void list_bucket(wan_heard *heard, uint32_t bucket)
{
    wan_heard_kept *kept = &heard->kept[bucket];
    uint32_t wakes = 0;
    if (!kept->due || kept->is_told) return;
    wan_lock_take(&heard->lock);
    if (!kept->is_listed) {
        kept->is_listed = 1;
        kept->next = 0;
        *(heard->last ? &heard->kept[heard->last - 1].next : &heard->first) = bucket + 1;
        heard->last = bucket + 1;
        wakes = heard->sleeps;
        heard->sleeps = 0;
    }
    wan_lock_release(&heard->lock);
    if (wakes) wan_signal_change(&heard->changed);
}

/* Takes the first bucket off the list. Returns its number plus 1; 0: there is none, and the caller is about to sleep.
 */
static uint32_t unlist_bucket(wan_heard *heard)
{
    wan_lock_take(&heard->lock);
    const uint32_t found = heard->first;
    heard->sleeps = !found;
    if (found) {
        wan_heard_kept *kept = &heard->kept[found - 1];
        heard->first = kept->next;
        if (!heard->first) heard->last = 0;
        kept->is_listed = 0;
    }
    wan_lock_release(&heard->lock);
    return found;
}

void wan_heard_count(wan_heard *heard, uint32_t bucket, uint64_t counted)
{
    wan_heard_kept *kept = &heard->kept[bucket];
    const uint8_t *at = kept->items.bytes + kept->items.start;
    const uint64_t bytes = kept->items.used - kept->items.start, before = kept->due;
    while (kept->due < bytes) {
        const wan_heard_item *item = (const wan_heard_item *)(at + kept->due);
        if (item->sequence > counted) break;
        kept->due += item->length;
    }
    if (kept->due != before) list_bucket(heard, bucket);
}

/* Drops what another member has told. Nothing is due here. */
static void drop_passed(wan_heard *heard, wan_heard_kept *kept, uint64_t through)
{
    const uint32_t before = kept->items.count;
    while (!is_empty(kept) && first_of(kept)->sequence <= through) drop_first(heard, kept);
    if (kept->items.count != before) kept->moved_us = wan_monotonic_us();
}

void wan_heard_pass(wan_heard *heard, uint32_t bucket, uint64_t through)
{
    wan_heard_kept *kept = &heard->kept[bucket];
    if (!heard->by_primary) return;
    if (!kept->due) drop_passed(heard, kept, through);
    else if (through > kept->passed) kept->passed = through;
}

void wan_heard_turn(wan_heard *heard, uint32_t bucket)
{
    if (!heard->by_primary) return;
    heard->kept[bucket].repeats = load(&heard->order);
    heard->kept[bucket].passed = 0;
}

void wan_heard_forget(wan_heard *heard, uint32_t bucket)
{
    wan_heard_kept *kept = &heard->kept[bucket];
    const uint64_t end = kept->items.start + kept->due;
    for (uint64_t at = end; at < kept->items.used; kept->items.count--)
        at += ((const wan_heard_item *)(kept->items.bytes + at))->length;
    wan_heard_release(heard, kept->items.used - end);
    kept->items.used = end;
    if (is_empty(kept)) wan_buffer_trim(&kept->items, EMPTY_BYTES_KEPT);
    kept->older = kept->due;
    kept->passed = 0;
}

uint64_t wan_heard_through(const wan_heard *heard, uint32_t bucket, uint64_t counted)
{
    if (!heard || !heard->says || has_ended(heard)) return counted;
    const wan_heard_kept *kept = &heard->kept[bucket];
    if (kept->older) return 0;
    if (is_empty(kept)) return counted;
    const uint64_t before = first_of(kept)->sequence - 1;
    return before < counted ? before : counted;
}

/* Too many changes. */

/* Drops the items of a bucket through `order`, but not the one that a listener hears now. Returns how many. Under the
 * bucket's lock. */
static uint64_t drop_old(wan_heard *heard, wan_heard_kept *kept, uint64_t order)
{
    wan_buffer *items = &kept->items;
    const uint64_t stays = kept->is_told ? first_of(kept)->length : 0, from = items->start + stays;
    uint64_t at = from;
    uint32_t dropped = 0;
    for (; at < items->used; dropped++) {
        const wan_heard_item *item = (const wan_heard_item *)(items->bytes + at);
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
    wan_heard_release(heard, bytes);
    if (is_empty(kept)) wan_buffer_trim(items, EMPTY_BYTES_KEPT);
    return dropped;
}

/* Whether what waits in a bucket does not move because a listener stands still: ours, or that of its primary. Under the
 * bucket's lock. */
static int stands_still(const wan_tail *tail, const wan_heard *heard, uint32_t number, uint64_t now_us)
{
    const wan_heard_kept *kept = &heard->kept[number];
    const uint64_t limit_us = load(&tail->heard_limit_us);
    const int is_ours = !heard->by_primary || kept->due || leads(wan_tail_role(tail, number));
    const uint64_t since_us = is_ours ? load(&heard->told_since_us) : kept->moved_us;
    return kept->items.count > kept->is_told && since_us && now_us > since_us && now_us - since_us > limit_us;
}

/* Drops what is older than `order` of all buckets that stand still. Returns how many changes. */
static uint64_t drop_round(wan_tail *tail, wan_heard *heard, uint64_t order, uint64_t now_us)
{
    uint64_t all = 0;
    for (uint32_t n = 0; n < tail->bucket_count; n++) {
        wan_tail_bucket *bucket = &tail->buckets[n];
        wan_lock_take(&bucket->lock);
        if (stands_still(tail, heard, n, now_us)) {
            wan_heard_kept *kept = &heard->kept[n];
            const int is_ours = !heard->by_primary || kept->due || leads(bucket->role);
            const uint64_t dropped = drop_old(heard, kept, order);
            const uint64_t since_us = load(&heard->told_since_us); /* 0: the listener has just returned. */
            if (dropped && is_ours && since_us && now_us > since_us)
                __atomic_store_n(&heard->stood_us, now_us - since_us, __ATOMIC_RELAXED);
            __atomic_fetch_add(is_ours ? &heard->dropped : &heard->forgotten, dropped, __ATOMIC_RELAXED);
            if (dropped) wan_tail_say_heard(tail, n, 0);
            all += dropped;
        }
        wan_lock_release(&bucket->lock);
    }
    return all;
}

/* The order of the oldest change of all buckets that stand still. UINT64_MAX: there is none. */
static uint64_t oldest(wan_tail *tail, const wan_heard *heard, uint64_t now_us)
{
    uint64_t order = UINT64_MAX;
    for (uint32_t n = 0; n < tail->bucket_count; n++) {
        const wan_heard_kept *kept = &heard->kept[n];
        wan_lock_take(&tail->buckets[n].lock);
        if (stands_still(tail, heard, n, now_us)) {
            const wan_heard_item *item = first_of(kept);
            if (kept->is_told) item = (const wan_heard_item *)((const uint8_t *)item + item->length);
            if (item->order < order) order = item->order;
        }
        wan_lock_release(&tail->buckets[n].lock);
    }
    return order;
}

void wan_heard_relieve(wan_tail *tail)
{
    wan_heard *heard = wan_tail_heard(tail);
    if (!heard || !wan_heard_is_waited_for(heard) || has_ended(heard)) return;
    if (__atomic_exchange_n(&heard->relieving, 1, __ATOMIC_ACQ_REL)) return;
    const uint64_t now_us = wan_monotonic_us(), before = load(&heard->bytes);
    const uint64_t left = before > WAN_HEARD_BYTES_MAX ? WAN_HEARD_BYTES_LEFT : before - before / 8 - 1;
    for (uint32_t n = 0; n < RELIEF_ROUNDS && load(&heard->bytes) > left; n++) {
        const uint64_t from = oldest(tail, heard, now_us), newest = load(&heard->order);
        if (from == UINT64_MAX || !drop_round(tail, heard, from + (newest - from) / 8, now_us)) break;
    }
    __atomic_store_n(&heard->relieving, 0, __ATOMIC_RELEASE);
}

/* The thread that tells. */

/* The listeners have heard the change that was taken last. */
static void end_told(wan_tail *tail, wan_heard *heard)
{
    __atomic_store_n(&heard->told_since_us, 0, __ATOMIC_RELAXED);
    if (!heard->told) return;
    const uint32_t number = heard->told - 1;
    wan_heard_kept *kept = &heard->kept[number];
    heard->told = 0;
    wan_lock_take(&tail->buckets[number].lock);
    if (kept->is_told) {
        kept->is_told = 0;
        drop_first(heard, kept);
        kept->moved_us = wan_monotonic_us();
        if (!kept->due && kept->passed) drop_passed(heard, kept, kept->passed);
        wan_tail_say_heard(tail, number, !kept->due);
        list_bucket(heard, number);
    }
    wan_lock_release(&tail->buckets[number].lock);
}

/* Copies the first change of a bucket that is due. WAN_EMPTY: there is none. WAN_NO_MEMORY: it stays. */
static wan_status take_first(wan_tail *tail, wan_heard *heard, uint32_t number, wan_buffer *to)
{
    wan_heard_kept *kept = &heard->kept[number];
    wan_status status = WAN_EMPTY;
    wan_lock_take(&tail->buckets[number].lock);
    if (kept->due && !kept->is_told) {
        const wan_heard_item *item = first_of(kept);
        status = wan_buffer_add(to, item, item->length);
        if (status == WAN_OK) {
            ((wan_heard_item *)to->bytes)->may_repeat =
                item->order <= kept->repeats || wan_tail_entry_record(entry_in(item))->flags & WAN_FLAG_REPEATED;
            kept->is_told = 1;
        } else {
            list_bucket(heard, number);
        }
    }
    wan_lock_release(&tail->buckets[number].lock);
    return status;
}

int wan_heard_next(wan_tail *tail, wan_buffer *to, uint32_t timeout_ms)
{
    wan_heard *heard = wan_tail_heard(tail);
    if (!heard) return 0;
    end_told(tail, heard);
    wan_buffer_trim(to, WAN_BUFFER_KEPT_BYTES);
    for (int waited = 0;; waited = 1) {
        const uint32_t seen = __atomic_load_n(&heard->changed, __ATOMIC_ACQUIRE);
        wan_status status = WAN_EMPTY;
        for (uint32_t found; status == WAN_EMPTY && !has_ended(heard) && (found = unlist_bucket(heard));) {
            status = take_first(tail, heard, found - 1, to);
            if (status != WAN_OK) continue;
            heard->told = found;
            __atomic_store_n(&heard->told_since_us, wan_monotonic_us(), __ATOMIC_RELAXED);
            return 1;
        }
        if (waited || !timeout_ms || has_ended(heard)) return 0;
        wan_wait_change(&heard->changed, seen, timeout_ms);
    }
}

uint64_t wan_heard_end(wan_tail *tail)
{
    wan_heard *heard = wan_tail_heard(tail);
    uint64_t dropped = 0;
    if (!heard) return 0;
    __atomic_store_n(&heard->ended, 1, __ATOMIC_RELEASE);
    for (uint32_t n = 0; n < tail->bucket_count; n++) {
        wan_heard_kept *kept = &heard->kept[n];
        wan_lock_take(&tail->buckets[n].lock);
        for (dropped -= kept->is_told; kept->due; dropped++) drop_first(heard, kept);
        wan_heard_release(heard, kept->items.used - kept->items.start);
        wan_buffer_close(&kept->items);
        kept->is_told = 0;
        wan_tail_say_heard(tail, n, 0);
        wan_lock_release(&tail->buckets[n].lock);
    }
    wan_signal_change(&heard->changed);
    return dropped;
}

void wan_heard_look(const wan_heard *heard, wan_heard_state *state)
{
    const uint64_t since_us = load(&heard->told_since_us), now_us = wan_monotonic_us();
    *state = (wan_heard_state){
        .bytes = load(&heard->bytes),
        .dropped = load(&heard->dropped),
        .forgotten = load(&heard->forgotten),
        .standing_us = since_us && now_us > since_us ? now_us - since_us : 0,
        .stood_us = load(&heard->stood_us),
    };
}
