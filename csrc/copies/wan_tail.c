#include "copies/wan_tail.h"

#include "copies/wan_contact.h"
#include "copies/wan_heard.h"
#include "region/wan_table.h"
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#define EMPTY_BYTES_KEPT 65536u /* A tail that is empty keeps so much memory. */

static inline uint64_t load(const uint64_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
static inline void store(uint64_t *at, uint64_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
static inline uint32_t number_of(const wan_tail *tail, const wan_tail_bucket *bucket)
{
    return (uint32_t)(bucket - tail->buckets);
}
static inline int leads(uint8_t role) { return role == WAN_TAIL_PRIMARY || role == WAN_TAIL_TAKING_OVER; }

static wan_status check_call(const wan_tail_entry *entry)
{
    const wan_call_identity *call = wan_tail_entry_call(entry);
    const int is_call = entry->kind != WAN_ENTRY_FORGET;
    if (!call->caller || !is_call != !call->number || (!is_call && call->slot))
        return WAN_FAIL(WAN_CORRUPT, "a call of caller %" PRIx64 ", slot %u, has the number %" PRIu64, call->caller,
                        (unsigned)call->slot, (uint64_t)call->number);
    return WAN_OK;
}

static wan_status check_verdicts(const uint8_t *at, uint64_t left)
{
    while (left) {
        const wan_verdict *verdict = (const wan_verdict *)at;
        if (left < sizeof *verdict || wan_align8(verdict->value_length) > left - sizeof *verdict)
            return WAN_FAIL(WAN_CORRUPT, "a decision about an event ends within a verdict");
        if (verdict->verdict > WAN_VERDICTS_MAX || verdict->is_substituted > 1 || verdict->value_form >= WAN_FORM_COUNT
            || verdict->reserved || (!verdict->is_substituted && (verdict->value_length || verdict->value_form)))
            return WAN_FAIL(WAN_CORRUPT,
                            "a decision about an event has the verdict %u, the form %u and a value of "
                            "%" PRIu32 " bytes",
                            verdict->verdict, verdict->value_form, verdict->value_length);
        const uint64_t length = sizeof *verdict + wan_align8(verdict->value_length);
        at += length;
        left -= length;
    }
    return WAN_OK;
}

wan_status wan_tail_entry_check(const uint8_t *at, uint64_t bytes, int is_image)
{
    const wan_tail_entry *entry = (const wan_tail_entry *)at;
    if (bytes < sizeof *entry || entry->length > bytes || entry->length % 8 || entry->kind >= WAN_ENTRY_KINDS
        || entry->length < wan_tail_entry_head(entry))
        return WAN_FAIL(WAN_CORRUPT, "an entry of a bucket is not whole");
    const uint32_t flags = entry->flags;
    const int is_row = (flags & WAN_TAIL_ROW) != 0, found = (flags & (WAN_TAIL_FOUND | WAN_TAIL_LEFT_OUT)) != 0;
    if (is_image && (entry->kind || flags))
        return WAN_FAIL(WAN_CORRUPT, "an entry of an image is of kind %u and has the flags %u", entry->kind, flags);
    const uint8_t last_outcome = is_image ? WAN_MISSING : WAN_DESTROYED;
    if (entry->outcome > last_outcome || entry->found_form >= WAN_FORM_COUNT || flags > WAN_TAIL_FLAGS
        || (is_row && flags != (WAN_TAIL_REMEMBERED | WAN_TAIL_ROW)) || (is_row && entry->row == UINT32_MAX)
        || (found && !(flags & WAN_TAIL_REMEMBERED)) || (flags & WAN_TAIL_LEFT_OUT && !(flags & WAN_TAIL_FOUND))
        || entry->verdict_length % 8 || (entry->verdict_length && entry->kind != WAN_ENTRY_CHANGE))
        return WAN_FAIL(WAN_CORRUPT,
                        "an entry of a bucket has the outcome %u, the form %u, the flags %u and %" PRIu32
                        " bytes of verdicts",
                        entry->outcome, entry->found_form, entry->flags, entry->verdict_length);
    wan_status status = wan_tail_entry_has_call(entry) ? check_call(entry) : WAN_OK;
    if (status != WAN_OK) return status;
    const uint64_t head = wan_tail_entry_head(entry), room = entry->length - head;
    if (entry->kind == WAN_ENTRY_FORGET)
        return room || flags || entry->outcome || entry->found_form || entry->found_length
                   ? WAN_FAIL(WAN_CORRUPT, "an entry that forgets a caller has %" PRIu64 " bytes more", room)
                   : WAN_OK;
    if (entry->kind == WAN_ENTRY_CLEAR)
        return entry->length != WAN_TAIL_CLEAR_BYTES || flags != WAN_TAIL_REMEMBERED || entry->found_form
                       || entry->found_length
                   ? WAN_FAIL(WAN_CORRUPT, "the clear of a bucket has %" PRIu32 " bytes and the flags %u",
                              entry->length, entry->flags)
                   : WAN_OK;
    status = wan_record_check(at + head, room);
    if (status != WAN_OK) return status;
    if (wan_record_length(wan_tail_entry_record(entry)) + (uint64_t)entry->verdict_length
            + wan_align8(wan_tail_entry_found_length(entry))
        != room)
        return WAN_FAIL(WAN_CORRUPT, "the parts of an entry of a bucket do not make up its length");
    return check_verdicts((const uint8_t *)wan_tail_entry_verdicts(entry), entry->verdict_length);
}

/* The bucket holds nothing. */
static void let_go(wan_tail *tail, wan_tail_bucket *bucket)
{
    if (!tail->budget) return;
    wan_budget_let_go(tail->budget, WAN_BUDGET_CHANGES, &bucket->held_changes);
    wan_budget_let_go(tail->budget, WAN_BUDGET_REMEMBERED, &bucket->held_answers);
}

wan_status wan_tail_init(wan_tail *tail, uint32_t buckets, uint32_t shards, uint32_t min_copies)
{
    memset(tail, 0, sizeof *tail);
    tail->lease_until_us = tail->primary_until_us = tail->heard_limit_us = WAN_NEVER;
    tail->buckets = calloc(buckets, sizeof *tail->buckets);
    tail->shard_last = calloc(shards, sizeof *tail->shard_last);
    if (!tail->buckets || !tail->shard_last) {
        free(tail->buckets);
        free(tail->shard_last);
        tail->buckets = NULL;
        tail->shard_last = NULL;
        return WAN_FAIL(WAN_NO_MEMORY, "no memory for the tails of %" PRIu32 " buckets", buckets);
    }
    tail->bucket_count = buckets;
    tail->shard_count = shards;
    tail->min_copies = min_copies;
    for (uint32_t n = 0; n < buckets; n++) tail->buckets[n].first = 1;
    return WAN_OK;
}

void wan_tail_close(wan_tail *tail)
{
    for (uint32_t n = 0; n < tail->bucket_count; n++) {
        free(tail->buckets[n].copies);
        free(tail->buckets[n].thin);
        free(tail->buckets[n].holders);
        wan_buffer_close(&tail->buckets[n].changes);
        wan_answers_close(&tail->buckets[n].answers);
        let_go(tail, &tail->buckets[n]);
    }
    for (uint32_t n = 0; n < WAN_TAIL_LANES_MAX; n++) {
        free(tail->to_send[n]);
        free(tail->settled[n]);
    }
    wan_heard_close(tail->heard, tail->bucket_count);
    free(tail->feeds);
    free(tail->buckets);
    free(tail->shard_last);
    memset(tail, 0, sizeof *tail);
}

/* Queues. */

/* Whether `feeds` has a queue. */
static int has_queue(const wan_feeds *feeds, const wan_queue *queue)
{
    for (uint32_t n = 0; feeds && n < feeds->count; n++)
        if (feeds->items[n].queue == queue) return 1;
    return 0;
}

_Static_assert(WAN_TAIL_LANES_MAX <= WAN_TOLD_MAX, "a queue knows what it has told each member");

static void tell_settled(void *tail, uint32_t bucket) { wan_tail_note_settled(tail, bucket); }

/* Begins or ends the feeding of the queues of `feeds` that `others` has not. */
static wan_status feed(wan_tail *tail, const wan_feeds *feeds, const wan_feeds *others, int begins)
{
    wan_status status = WAN_OK;
    for (uint32_t n = 0; feeds && status == WAN_OK && n < feeds->count; n++) {
        const wan_feed *item = &feeds->items[n];
        if (has_queue(others, item->queue)) continue;
        for (uint32_t number = 0; status == WAN_OK && number < tail->bucket_count; number++) {
            wan_tail_bucket *bucket = &tail->buckets[number];
            wan_lock_take(&bucket->lock);
            wan_lock_take(item->lock);
            /* The image that a learner gets brings what is queued for the changes before. */
            const uint64_t last = bucket->role == WAN_TAIL_LEARNER ? 0 : bucket->last;
            status =
                wan_queue_feed(item->queue, item->first + number, begins ? &bucket->counted : NULL, bucket->life, last);
            /* What comes until every change finds the queue is not in it. An image brings all to a bucket that has
             * no role yet. */
            if (begins && status == WAN_OK && bucket->role != WAN_TAIL_ABSENT)
                wan_queue_lack(item->queue, item->first + number, WAN_NO_LIMIT);
            wan_queue_tell_settled(item->queue, item->first + number, begins ? tell_settled : NULL, tail);
            if (!begins && status == WAN_OK)
                wan_queue_send_rest(item->queue, item->first + number, bucket->role != WAN_TAIL_LEARNER);
            wan_lock_release(item->lock);
            wan_lock_release(&bucket->lock);
        }
    }
    return status;
}

wan_status wan_tail_set_feeds(wan_tail *tail, const wan_feed *given, uint32_t count)
{
    wan_feeds *fresh = NULL, *old = tail->feeds;
    if (count) {
        fresh = calloc(1, sizeof *fresh + count * sizeof *given);
        if (!fresh) return WAN_FAIL(WAN_NO_MEMORY, "no memory for the queues of a region");
        fresh->count = count;
        memcpy(fresh->items, given, count * sizeof *given);
    }
    wan_status status = feed(tail, fresh, old, 1);
    if (status != WAN_OK) {
        free(fresh);
        return status;
    }
    __atomic_store_n(&tail->feeds, fresh, __ATOMIC_RELEASE);
    for (uint32_t n = 0; n < tail->bucket_count; n++) { /* A thread that found the old ones used them under it. */
        wan_lock_take(&tail->buckets[n].lock);
        wan_lock_release(&tail->buckets[n].lock);
    }
    (void)feed(tail, old, fresh, 0); /* A broken queue is fed no more in any case. */
    free(old);
    return WAN_OK;
}

void wan_tail_has_fed(wan_tail *tail, const wan_queue *queue)
{
    const wan_feeds *feeds = wan_tail_feeds(tail);
    for (uint32_t n = 0; feeds && n < feeds->count; n++) {
        const wan_feed *item = &feeds->items[n];
        if (item->queue != queue) continue;
        for (uint32_t number = 0; number < tail->bucket_count; number++) {
            wan_tail_bucket *bucket = &tail->buckets[number];
            wan_lock_take(&bucket->lock);
            wan_lock_take(item->lock);
            wan_queue_lack(item->queue, item->first + number, bucket->role == WAN_TAIL_ABSENT ? 0 : bucket->last);
            wan_lock_release(item->lock);
            wan_lock_release(&bucket->lock);
        }
    }
}

/* The bucket has another history from now on (`drops`), which begins in this life, or the same one has this life. So
 * have its events in the queues. Under the bucket's lock. */
static void turn_streams(wan_tail *tail, uint32_t number, uint64_t life, int drops)
{
    const wan_feeds *feeds = wan_tail_feeds(tail);
    for (uint32_t n = 0; feeds && n < feeds->count; n++) {
        const wan_feed *item = &feeds->items[n];
        wan_lock_take(item->lock);
        if (drops) (void)wan_queue_begin_anew(item->queue, item->first + number, life);
        else wan_queue_set_life(item->queue, item->first + number, life);
        wan_lock_release(item->lock);
    }
}

/* Lanes. */

static uint64_t words_of(const wan_tail *tail) { return (tail->bucket_count + 63) / 64; }

wan_status wan_tail_add_lane(wan_tail *tail, uint32_t lane, wan_lane_state *state)
{
    if (lane >= WAN_TAIL_LANES_MAX)
        return WAN_FAIL(WAN_INVALID, "lane %" PRIu32 ", and there are at most %u", lane, WAN_TAIL_LANES_MAX);
    if (!tail->to_send[lane]) {
        uint64_t *bits = calloc(words_of(tail), sizeof *bits), *settled = calloc(2 * words_of(tail), sizeof *settled);
        if (!bits || !settled) {
            free(bits);
            free(settled);
            return WAN_FAIL(WAN_NO_MEMORY, "no memory for lane %" PRIu32, lane);
        }
        __atomic_store_n(&tail->settled[lane], settled, __ATOMIC_RELEASE);
        __atomic_store_n(&tail->to_send[lane], bits, __ATOMIC_RELEASE);
        if (lane >= tail->lane_limit) __atomic_store_n(&tail->lane_limit, lane + 1, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&tail->lanes[lane], state, __ATOMIC_RELEASE);
    return WAN_OK;
}

void wan_tail_remove_lane(wan_tail *tail, uint32_t lane)
{
    if (lane >= WAN_TAIL_LANES_MAX) return;
    __atomic_store_n(&tail->lanes[lane], NULL, __ATOMIC_RELEASE);
    for (uint32_t n = 0; n < tail->bucket_count; n++) { /* A thread that found the lane used it under such a lock. */
        wan_lock_take(&tail->buckets[n].lock);
        wan_lock_release(&tail->buckets[n].lock);
    }
    wan_lock_take(&tail->lanes_lock);
    wan_lock_release(&tail->lanes_lock);
}

/* Wakes a thread that waits on its file, and has said so in `asleep`. */
static void wake(uint32_t *asleep, int wake_file)
{
    if (!__atomic_exchange_n(asleep, 0, __ATOMIC_SEQ_CST)) return;
    const uint64_t one = 1;
    ssize_t written = write(wake_file, &one, sizeof one);
    (void)written; /* It is full: the thread is about to wake. */
}

void wan_lane_wake(wan_lane_state *state)
{
    const uint32_t was = __atomic_exchange_n(&state->asleep, WAN_LANE_RUNS, __ATOMIC_SEQ_CST);
    if (was == WAN_LANE_RUNS) return;
    const uint64_t one = 1;
    ssize_t written = write(was == WAN_LANE_WAITS ? state->wake_file : state->rest_file, &one, sizeof one);
    (void)written; /* It is full: the thread is about to wake. */
}

/* Tells a lane's thread that a tail has a bit in `settled` for it. Under `lanes_lock`. */
static void note_lane(const wan_tail *tail, uint32_t lane)
{
    wan_lane_state *state = __atomic_load_n(&tail->lanes[lane], __ATOMIC_ACQUIRE);
    if (state && !__atomic_exchange_n(&state->has_settled, 1, __ATOMIC_SEQ_CST)) wan_lane_wake(state);
}

void wan_tail_note_settled(wan_tail *tail, uint32_t number)
{
    const uint64_t bit = (uint64_t)1 << number % 64;
    const uint32_t limit = __atomic_load_n(&tail->lane_limit, __ATOMIC_ACQUIRE);
    for (uint32_t lane = 0; lane < limit; lane++) {
        uint64_t *words = __atomic_load_n(&tail->settled[lane], __ATOMIC_ACQUIRE);
        /* If the bit is there, the lane will look at the queue after this. Whoever set it tells the lane. */
        if (!words || __atomic_fetch_or(&words[number / 64], bit, __ATOMIC_SEQ_CST) & bit) continue;
        wan_lock_take(&tail->lanes_lock);
        note_lane(tail, lane);
        wan_lock_release(&tail->lanes_lock);
    }
}

static void set_settled(uint64_t *words, uint32_t number)
{
    __atomic_fetch_or(&words[number / 64], (uint64_t)1 << number % 64, __ATOMIC_SEQ_CST);
}

void wan_tail_tell_again(wan_tail *tail, uint32_t number)
{
    const uint32_t limit = __atomic_load_n(&tail->lane_limit, __ATOMIC_ACQUIRE);
    for (uint32_t lane = 0; lane < limit; lane++) {
        uint64_t *words = __atomic_load_n(&tail->settled[lane], __ATOMIC_ACQUIRE);
        if (words) set_settled(words + words_of(tail), number);
    }
    wan_tail_note_settled(tail, number);
}

int wan_tail_take_again(wan_tail *tail, uint32_t lane, uint32_t number)
{
    uint64_t *words = tail->settled[lane] + words_of(tail);
    const uint64_t bit = (uint64_t)1 << number % 64;
    if (WAN_LIKELY(!(__atomic_load_n(&words[number / 64], __ATOMIC_SEQ_CST) & bit))) return 0;
    return (__atomic_fetch_and(&words[number / 64], ~bit, __ATOMIC_SEQ_CST) & bit) != 0;
}

/* Marks the bucket for a lane. Returns whether there is one. Under the bucket's lock. */
static int mark_lane(wan_tail *tail, uint32_t number, uint32_t lane)
{
    uint64_t *bits = __atomic_load_n(&tail->to_send[lane], __ATOMIC_ACQUIRE);
    if (!bits) return 0;
    __atomic_fetch_or(&bits[number / 64], (uint64_t)1 << (number % 64), __ATOMIC_SEQ_CST);
    return 1;
}

/* Marks the bucket for a lane, and wakes the lane. `may_rest`: not if it rests. Under the bucket's lock. */
static void give_lane(wan_tail *tail, const wan_tail_bucket *bucket, uint32_t lane, int may_rest)
{
    const uint32_t number = number_of(tail, bucket);
    const uint64_t *bits = __atomic_load_n(&tail->to_send[lane], __ATOMIC_ACQUIRE);
    wan_lane_state *state = __atomic_load_n(&tail->lanes[lane], __ATOMIC_ACQUIRE);
    /* Of many rows only the first writes what the lane's thread writes, too. A lane that runs takes the mark away
     * before it takes the bucket's lock, and looks for marks before it waits. */
    if (bits && state && __atomic_load_n(&bits[number / 64], __ATOMIC_SEQ_CST) >> number % 64 & 1
        && __atomic_load_n(&state->asleep, __ATOMIC_SEQ_CST) == WAN_LANE_RUNS)
        return;
    if (!mark_lane(tail, number, lane)) return;
    if (!state || (may_rest && __atomic_load_n(&state->asleep, __ATOMIC_SEQ_CST) == WAN_LANE_RESTS)) return;
    wan_lane_wake(state);
}

static void give_lanes(wan_tail *tail, const wan_tail_bucket *bucket, int may_rest)
{
    for (uint32_t n = 0; n < bucket->copy_count; n++)
        give_lane(tail, bucket, bucket->copies[n].lane, may_rest && bucket->copies[n].state == WAN_COPY_WAITED);
}

void wan_tail_run_lane(const wan_lane_wait *wait)
{
    wan_tail *tail = wait->tail;
    wan_tail_bucket *bucket = &tail->buckets[wait->bucket];
    wan_lane_state *taken = NULL;
    if (load(&bucket->counted) >= wait->sequence) return;
    wan_lock_take(&bucket->lock); /* A lane that is found in the tail lives as long. */
    for (uint32_t n = 0; n < bucket->copy_count; n++) {
        wan_lane_state *state = __atomic_load_n(&tail->lanes[bucket->copies[n].lane], __ATOMIC_ACQUIRE);
        uint32_t rests = WAN_LANE_RESTS;
        if (!state || __atomic_load_n(&state->asleep, __ATOMIC_SEQ_CST) != WAN_LANE_RESTS) continue;
        if (taken) wan_lane_wake(state);
        else if (__atomic_compare_exchange_n(&state->asleep, &rests, WAN_LANE_RUNS, 0, __ATOMIC_SEQ_CST,
                                             __ATOMIC_SEQ_CST))
            taken = state;
    }
    wan_lock_release(&bucket->lock);
    if (taken) taken->run(taken->runner, wait);
}

void wan_tail_say_heard(wan_tail *tail, uint32_t number, int wakes)
{
    const wan_tail_bucket *bucket = &tail->buckets[number];
    if (!tail->heard->says || !leads(bucket->role)) return;
    if (wakes) give_lanes(tail, bucket, 1);
    for (uint32_t n = 0; n < bucket->copy_count && !wakes; n++) mark_lane(tail, number, bucket->copies[n].lane);
}

/* What happens under a bucket's lock. */

/* More of the bucket counts, or this member leads it now: listeners are told of that, if it is for this member to do
 * so. */
static inline void let_hear(wan_tail *tail, const wan_tail_bucket *bucket)
{
    wan_heard *heard = wan_tail_heard(tail);
    if (heard && (!heard->by_primary || bucket->role == WAN_TAIL_PRIMARY))
        wan_heard_count(heard, number_of(tail, bucket), bucket->counted);
}

static void unlink_shelved(wan_tail_bucket *bucket, wan_shelved *shelved)
{
    *(shelved->before ? &shelved->before->behind : &bucket->first_shelved) = shelved->behind;
    *(shelved->behind ? &shelved->behind->before : &bucket->last_shelved) = shelved->before;
    shelved->is_waiting = 0;
}

void wan_tail_charge(wan_tail *tail, wan_tail_bucket *bucket)
{
    if (!tail->budget) return;
    wan_budget_hold(tail->budget, WAN_BUDGET_CHANGES, &bucket->held_changes,
                    bucket->changes.used - bucket->changes.start);
    wan_budget_hold(tail->budget, WAN_BUDGET_REMEMBERED, &bucket->held_answers, wan_answers_bytes(&bucket->answers));
}

/* Gives a wait that is over to its owner. */
static void make_ready(wan_tail_bucket *bucket, wan_shelved *shelved)
{
    wan_waker *owner = shelved->owner;
    unlink_shelved(bucket, shelved);
    /* From now on the owner may see it and end. It waits for us first. */
    __atomic_fetch_add(&owner->users, 1, __ATOMIC_SEQ_CST);
    wan_shelved *first = __atomic_load_n(&owner->ready, __ATOMIC_RELAXED);
    do shelved->behind = first;
    while (!__atomic_compare_exchange_n(&owner->ready, &first, shelved, 1, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    wake(&owner->asleep, owner->wake_file);
    __atomic_fetch_sub(&owner->users, 1, __ATOMIC_SEQ_CST);
}

static void wake_waiters(wan_tail_bucket *bucket)
{
    /* This is no load: others see what changed before we look for those who wait. */
    if (__atomic_fetch_add(&bucket->waiters, 0, __ATOMIC_SEQ_CST)) wan_signal_change(&bucket->changed);
    for (wan_shelved *shelved; (shelved = bucket->first_shelved);) {
        if (shelved->sequence > bucket->counted && shelved->era == bucket->era) break;
        make_ready(bucket, shelved);
    }
}

static void drop_all(wan_tail_bucket *bucket)
{
    bucket->dropped_bytes += bucket->changes.used - bucket->changes.start;
    wan_buffer_trim(&bucket->changes, EMPTY_BYTES_KEPT);
    bucket->first = bucket->last + 1;
}

static void drop_through(wan_tail_bucket *bucket, uint64_t sequence)
{
    wan_buffer *changes = &bucket->changes;
    if (sequence == bucket->last) { /* The usual case. To read each length would bring all of them into the cache. */
        drop_all(bucket);
        return;
    }
    while (bucket->first <= sequence && changes->start < changes->used) {
        const wan_tail_entry *entry = (const wan_tail_entry *)(changes->bytes + changes->start);
        changes->start += entry->length;
        bucket->dropped_bytes += entry->length;
        bucket->first++;
    }
    if (changes->start == changes->used) wan_buffer_trim(changes, EMPTY_BYTES_KEPT);
    else wan_buffer_shrink(changes, EMPTY_BYTES_KEPT);
}

static void forget_copies(wan_tail_bucket *bucket)
{
    free(bucket->copies);
    bucket->copies = NULL;
    bucket->copy_count = 0;
}

/* How many other copies are in sync, as the coordinator has decided: not a learner that is waited for, because it has
 * everything. */
static uint32_t copies_in_sync(const wan_tail_bucket *bucket)
{
    uint32_t count = 0;
    for (uint32_t n = 0; n < bucket->copy_count; n++)
        count +=
            bucket->copies[n].state == WAN_COPY_WAITED && !bucket->copies[n].transfer && !bucket->copies[n].queue_only;
    return count;
}

/* Notes how many copies learn, after roles or copies have changed. */
static void count_learners(wan_tail_bucket *bucket)
{
    uint32_t count = 0;
    for (uint32_t n = 0; bucket->role == WAN_TAIL_PRIMARY && n < bucket->copy_count; n++)
        count += bucket->copies[n].state == WAN_COPY_LEARNING;
    __atomic_store_n(&bucket->learners, count, __ATOMIC_RELAXED);
}

/* How many bytes of changes were not sent to a copy yet on the present connection; or more, if that is not known. */
static uint64_t unsent(const wan_tail_bucket *bucket, const wan_tail_copy *copy)
{
    const uint64_t all = bucket->changes.used - bucket->changes.start;
    if (copy->sent >= bucket->last) return 0;
    if (copy->place_sequence != copy->sent || copy->place < bucket->dropped_bytes) return all;
    const uint64_t sent = copy->place - bucket->dropped_bytes;
    return sent < all ? all - sent : 0;
}

int wan_tail_holds_back(wan_tail *tail, uint32_t number, uint64_t now_us)
{
    wan_tail_bucket *bucket = &tail->buckets[number];
    int holds_back = 0;
    wan_lock_take(&bucket->lock);
    for (uint32_t n = 0; bucket->role == WAN_TAIL_PRIMARY && n < bucket->copy_count; n++) {
        wan_tail_copy *copy = &bucket->copies[n];
        if (copy->state != WAN_COPY_LEARNING || copy->refused) continue;
        const wan_lane_state *state = __atomic_load_n(&tail->lanes[copy->lane], __ATOMIC_ACQUIRE);
        if (!state || load(&state->answered_us) + WAN_LEARNER_AWAY_US <= now_us) continue;
        if (__atomic_load_n(&state->is_short, __ATOMIC_RELAXED)) continue; /* It takes nothing until it has memory. */
        if (unsent(bucket, copy) <= WAN_LEARNER_BYTES_MAX) {
            copy->behind_us = 0;
            continue;
        }
        /* What is made before the learner takes the first change goes to it before its image. So callers wait for that
         * too, but not for a member that says again and again that it is not ready. */
        if (!copy->behind_us) copy->behind_us = now_us;
        holds_back |= copy->confirmed || now_us - copy->behind_us < WAN_LEARNER_AWAY_US;
    }
    wan_lock_release(&bucket->lock);
    return holds_back;
}

/* Notes that the changes behind `counted` through `last` come to count with fewer copies than there should be. */
static void note_thin(wan_tail_bucket *bucket, uint64_t last, uint32_t copies)
{
    if (!bucket->thin) bucket->thin = calloc(WAN_TAIL_THIN_MAX, sizeof *bucket->thin);
    if (!bucket->thin) return; /* Their callers hear that all is well. The status of the bucket says that it is not. */
    bucket->thin[bucket->thin_count++ % WAN_TAIL_THIN_MAX] = (wan_tail_thin){bucket->counted + 1, last, copies};
}

/* Whether a primary may answer, so long after the coordinator was heard. Copies in sync that answer it do not help:
 * they may be silent together with it, and the bucket begins anew elsewhere. `now_us` 0: the time is asked if it
 * matters. */
static int is_in_time(const wan_tail *tail, uint64_t now_us)
{
    const uint64_t until_us = __atomic_load_n(&tail->primary_until_us, __ATOMIC_SEQ_CST);
    return until_us == WAN_NEVER || (now_us ? now_us : wan_monotonic_us()) < until_us;
}

/* Whether changes may come to count now. If not, wan_tail_set_primary_until looks at all buckets again. */
static int may_count(wan_tail *tail)
{
    if (is_in_time(tail, 0)) return 1;
    __atomic_store_n(&tail->holds_back, 1, __ATOMIC_SEQ_CST);
    return is_in_time(tail, 0); /* The time was set meanwhile, perhaps by a thread that did not see the note. */
}

/* Of a primary: counts what all copies that it waits for have, and drops what nobody needs any more. A copy may have
 * answered late, when the bucket may have begun anew elsewhere: then nothing more counts. Returns whether more counts.
 */
static int recount(wan_tail *tail, wan_tail_bucket *bucket)
{
    if (bucket->role != WAN_TAIL_PRIMARY) return 0;
    uint64_t counted = bucket->last, needed = bucket->last;
    for (uint32_t n = 0; n < bucket->copy_count; n++) {
        const wan_tail_copy *copy = &bucket->copies[n];
        if (copy->acked < needed) needed = copy->acked;
        if (copy->state == WAN_COPY_WAITED && copy->acked < counted) counted = copy->acked;
    }
    int grew = counted > bucket->counted && may_count(tail);
    if (grew) {
        if (tail->min_copies > 1 && copies_in_sync(bucket) + 1 < tail->min_copies)
            note_thin(bucket, counted, copies_in_sync(bucket) + 1);
        store(&bucket->counted, counted);
        wake_waiters(bucket);
        let_hear(tail, bucket);
    }
    drop_through(bucket, needed < bucket->counted ? needed : bucket->counted);
    wan_tail_charge(tail, bucket);
    return grew;
}

/* Remembers an entry that has its sequence. Under the bucket's lock, and there is room. */
static void remember(wan_tail_bucket *bucket, const wan_tail_entry *entry, uint64_t sequence)
{
    if (!wan_tail_entry_has_call(entry)) return;
    if (entry->kind == WAN_ENTRY_FORGET) {
        wan_answers_forget(&bucket->answers, wan_tail_entry_call(entry)->caller);
        return;
    }
    wan_first_answer fresh = {
        .call = *wan_tail_entry_call(entry),
        .sequence = sequence,
        .outcome = entry->outcome,
    };
    if (entry->kind == WAN_ENTRY_CLEAR) {
        fresh.has_found = 1;
        fresh.found_length = sizeof(uint64_t);
        fresh.found = (uint8_t *)wan_tail_entry_cleared(entry);
    } else if (entry->flags & WAN_TAIL_ROW) {
        fresh.rows = entry->row + 1;
    } else if (entry->flags & WAN_TAIL_FOUND) {
        fresh.has_found = 1;
        fresh.is_lost = (entry->flags & WAN_TAIL_LEFT_OUT) != 0;
        fresh.found_form = entry->found_form;
        fresh.found_length = entry->found_length;
        fresh.found = wan_tail_entry_found(entry);
    }
    wan_answers_add(&bucket->answers, &fresh);
}

/* Notes the newest change of a shard, of all shards of the bucket, or of none. Under their entry locks and the bucket's
 * lock. */
static inline void note_change(wan_tail *tail, const wan_tail_bucket *bucket, uint32_t shard, uint64_t sequence)
{
    if (shard == WAN_NO_SHARD) return;
    if (shard != WAN_TAIL_ALL_SHARDS) {
        store(&tail->shard_last[shard], sequence);
        return;
    }
    const uint32_t shards = tail->shard_count / tail->bucket_count;
    for (uint32_t n = 0; n < shards; n++)
        store(&tail->shard_last[(uint64_t)number_of(tail, bucket) * shards + n], sequence);
}

/* What becomes of an attempt that the bucket does not remember. A life is named by the epoch under which it began. So
 * an attempt under an epoch below that may have been made in an earlier life. */
static wan_status not_remembered(const wan_tail_bucket *bucket, const wan_attempt *attempt)
{
    if (!attempt->since || attempt->since >= bucket->life) return WAN_EMPTY;
    return WAN_FAIL(WAN_IN_DOUBT, "the bucket was lost and began anew since the first attempt, and remembers no earlier"
                                  " change");
}

/* As wan_tail_recall, of a primary. *first: what is remembered, if anything. Under the bucket's lock. */
static wan_status recall(const wan_tail_bucket *bucket, const wan_attempt *attempt, wan_recalled *recalled,
                         const wan_first_answer **first)
{
    const wan_call_identity call = attempt->call;
    const wan_first_answer *known = *first = wan_answers_find(&bucket->answers, call);
    if (!known)
        return wan_answers_refuse(&bucket->answers, call.caller)
                   ? WAN_FAIL(WAN_GIVEN_UP, "the site has given up the member that asks, which was silent for too long")
                   : not_remembered(bucket, attempt);
    if (known->call.number < call.number) return not_remembered(bucket, attempt);
    if (known->call.number > call.number)
        return WAN_FAIL(WAN_IN_DOUBT, "a later call of the same caller was made since, so this one was given up");
    if (attempt->is_row && known->rows <= attempt->row) return not_remembered(bucket, attempt);
    if (known->is_lost)
        return WAN_FAIL(WAN_IN_DOUBT, "an earlier attempt made the change, and the value that it found is not"
                                      " remembered any more");
    *recalled = (wan_recalled){bucket->era,    known->sequence,   known->applied,
                               known->outcome, known->found_form, known->has_found};
    return WAN_MADE_BEFORE;
}

/* The primary's changes. */

/* Whether the primary may take a change now. Under the bucket's lock. */
static wan_status may_take(wan_tail *tail, wan_tail_bucket *bucket)
{
    const uint32_t others = copies_in_sync(bucket);
    if (!is_in_time(tail, 0)) return WAN_ELSEWHERE;
    if (others + 1 < tail->min_copies)
        return WAN_FAIL(WAN_TOO_FEW,
                        "bucket %" PRIu32 " has %" PRIu32 " copies in sync, and min-in-sync-copies asks for %" PRIu32
                        "; nothing was changed. Start the members that are missing (`show coordinator` says who is"
                        " there), or lower min-in-sync-copies",
                        number_of(tail, bucket), others + 1, tail->min_copies);
    return WAN_OK;
}

/* Makes room for an entry, and for what is remembered of it. Under the bucket's lock. */
static wan_status make_room(wan_tail_bucket *bucket, uint64_t length, wan_tail_reservation *room)
{
    wan_status status = wan_answers_make_room(&bucket->answers);
    if (status == WAN_OK) status = wan_buffer_make_room(&bucket->changes, length, WAN_NO_LIMIT);
    if (status != WAN_OK) return status;
    room->bucket = bucket;
    room->at = bucket->changes.bytes + bucket->changes.used;
    room->length = length;
    room->sequence = bucket->last + 1;
    room->is_waited_for = 0;
    return WAN_OK;
}

wan_status wan_tail_reserve(wan_tail *tail, uint32_t number, uint64_t length, const wan_attempt *attempt,
                            wan_tail_reservation *room)
{
    wan_tail_bucket *bucket = &tail->buckets[number];
    const wan_first_answer *first;
    wan_lock_take(&bucket->lock);
    wan_status status = bucket->role == WAN_TAIL_PRIMARY ? WAN_OK : WAN_ELSEWHERE;
    if (status == WAN_OK && attempt) {
        status = recall(bucket, attempt, &room->recalled, &first);
        if (status == WAN_EMPTY) status = WAN_OK;
    }
    if (status == WAN_OK) status = may_take(tail, bucket);
    if (status == WAN_OK) status = make_room(bucket, length, room);
    if (status == WAN_OK && attempt) room->is_waited_for = attempt->waits;
    if (status != WAN_OK) wan_lock_release(&bucket->lock);
    return status;
}

/* The entry that was written is the newest of its bucket. Returns its sequence. */
static uint64_t add_entry(wan_tail *tail, const wan_tail_reservation *room, uint32_t shard)
{
    wan_tail_bucket *bucket = room->bucket;
    const uint64_t sequence = bucket->last + 1;
    store(&bucket->last, sequence);
    note_change(tail, bucket, shard, sequence);
    remember(bucket, (const wan_tail_entry *)room->at, sequence);
    return sequence;
}

uint64_t wan_tail_commit(wan_tail *tail, wan_tail_reservation *room, uint32_t shard)
{
    wan_tail_bucket *bucket = room->bucket;
    const uint64_t sequence = add_entry(tail, room, shard);
    if (bucket->copy_count || bucket->counted != sequence - 1 || !may_count(tail)) {
        bucket->changes.used += room->length;
        /* It counts if nobody is waited for. */
        if (bucket->counted == sequence - 1 || !bucket->copy_count) recount(tail, bucket);
        give_lanes(tail, bucket, room->is_waited_for);
    } else {
        bucket->dropped_bytes += room->length;
        bucket->first = sequence + 1;
        store(&bucket->counted, sequence);
        let_hear(tail, bucket);
    }
    wan_tail_charge(tail, bucket);
    wan_lock_release(&bucket->lock);
    return sequence;
}

wan_status wan_tail_reserve_next(wan_tail_reservation *room, uint64_t length)
{
    return make_room(room->bucket, length, room);
}

uint64_t wan_tail_commit_next(wan_tail *tail, wan_tail_reservation *room, uint32_t shard)
{
    room->bucket->changes.used += room->length;
    return add_entry(tail, room, shard);
}

uint64_t wan_tail_commit_end(wan_tail *tail, wan_tail_reservation *room, uint64_t before)
{
    wan_tail_bucket *bucket = room->bucket;
    if (bucket->last != before) {
        /* They count if nobody is waited for. */
        if (bucket->counted == before || !bucket->copy_count) recount(tail, bucket);
        give_lanes(tail, bucket, 0);
        wan_tail_charge(tail, bucket);
    }
    const uint64_t counted = bucket->counted;
    wan_lock_release(&bucket->lock);
    return counted;
}

void wan_tail_cancel(wan_tail_reservation *room) { wan_lock_release(&room->bucket->lock); }

wan_status wan_tail_recall(wan_tail *tail, uint32_t number, const wan_attempt *attempt, wan_recalled *recalled,
                           wan_buffer *found)
{
    wan_tail_bucket *bucket = &tail->buckets[number];
    const wan_first_answer *first;
    wan_lock_take(&bucket->lock);
    wan_status status = bucket->role == WAN_TAIL_PRIMARY ? recall(bucket, attempt, recalled, &first) : WAN_ELSEWHERE;
    if (status == WAN_MADE_BEFORE && found) {
        wan_buffer_empty(found);
        if (first->found_length && wan_buffer_add(found, first->found, first->found_length) != WAN_OK)
            status = WAN_NO_MEMORY;
    }
    wan_lock_release(&bucket->lock);
    return status;
}

wan_status wan_tail_forget(wan_tail *tail, uint32_t number, uint64_t caller)
{
    const uint64_t length = sizeof(wan_tail_entry) + sizeof(wan_call_identity);
    wan_tail_reservation room;
    wan_status status = wan_tail_reserve(tail, number, length, NULL, &room);
    if (status != WAN_OK) return status;
    wan_tail_entry *entry = (wan_tail_entry *)room.at;
    *entry = (wan_tail_entry){.length = (uint32_t)length, .kind = WAN_ENTRY_FORGET};
    *wan_tail_entry_call(entry) = (wan_call_identity){.caller = caller};
    wan_tail_commit(tail, &room, WAN_NO_SHARD);
    return WAN_OK;
}

/* What became of a change, as wan_tail_wait returns it. A handover in order must not make its callers ask again, so
 * what counted before is known for one era more. */
static wan_status became_of(const wan_tail_bucket *bucket, uint64_t era, uint64_t sequence)
{
    if (bucket->era == era) return bucket->counted >= sequence ? WAN_OK : WAN_EMPTY;
    return bucket->era == era + 1 && bucket->counted_before >= sequence ? WAN_OK : WAN_ELSEWHERE;
}

wan_status wan_tail_wait(wan_tail *tail, uint32_t number, uint64_t era, uint64_t sequence, uint32_t timeout_ms)
{
    wan_tail_bucket *bucket = &tail->buckets[number];
    uint64_t until = 0;
    for (;;) {
        /* The era is read last: a later era may have other changes under the same sequence. */
        uint32_t seen = __atomic_load_n(&bucket->changed, __ATOMIC_ACQUIRE);
        int counts = load(&bucket->counted) >= sequence;
        if (load(&bucket->era) != era) {
            wan_lock_take(&bucket->lock);
            const wan_status status = became_of(bucket, era, sequence);
            wan_lock_release(&bucket->lock);
            return status;
        }
        if (counts) return WAN_OK;
        uint64_t now = wan_monotonic_us();
        if (!until) until = now + (uint64_t)timeout_ms * 1000;
        if (now >= until) return WAN_EMPTY;
        __atomic_fetch_add(&bucket->waiters, 1, __ATOMIC_SEQ_CST);
        if (load(&bucket->counted) < sequence && load(&bucket->era) == era)
            wan_wait_change(&bucket->changed, seen, (uint32_t)((until - now) / 1000 + 1));
        __atomic_fetch_sub(&bucket->waiters, 1, __ATOMIC_SEQ_CST);
    }
}

uint32_t wan_tail_made_with(wan_tail *tail, uint32_t number, uint64_t sequence, int is_repeat)
{
    if (tail->min_copies <= 1) return 0;
    wan_tail_bucket *bucket = &tail->buckets[number];
    uint32_t copies = 0;
    wan_lock_take(&bucket->lock);
    if (is_repeat && copies_in_sync(bucket) + 1 < tail->min_copies) copies = copies_in_sync(bucket) + 1;
    const uint32_t kept = bucket->thin_count < WAN_TAIL_THIN_MAX ? bucket->thin_count : WAN_TAIL_THIN_MAX;
    for (uint32_t n = 0; n < kept; n++)
        if (bucket->thin[n].first <= sequence && sequence <= bucket->thin[n].last) copies = bucket->thin[n].copies;
    wan_lock_release(&bucket->lock);
    return copies;
}

wan_status wan_tail_shelve(wan_tail *tail, uint32_t number, wan_shelved *shelved)
{
    wan_tail_bucket *bucket = &tail->buckets[number];
    shelved->is_waiting = 0;
    wan_lock_take(&bucket->lock);
    const wan_status status = became_of(bucket, shelved->era, shelved->sequence);
    if (status
        == WAN_EMPTY) { /* Most come in the order of their sequences, so the search for the place begins at the end. */
        wan_shelved *before = bucket->last_shelved;
        while (before && before->sequence > shelved->sequence) before = before->before;
        shelved->before = before;
        shelved->behind = before ? before->behind : bucket->first_shelved;
        *(before ? &before->behind : &bucket->first_shelved) = shelved;
        *(shelved->behind ? &shelved->behind->before : &bucket->last_shelved) = shelved;
        shelved->is_waiting = 1;
    }
    wan_lock_release(&bucket->lock);
    return status;
}

int wan_tail_unshelve(wan_tail *tail, uint32_t number, wan_shelved *shelved)
{
    wan_tail_bucket *bucket = &tail->buckets[number];
    wan_lock_take(&bucket->lock);
    const int waited = shelved->is_waiting != 0;
    if (waited) unlink_shelved(bucket, shelved);
    wan_lock_release(&bucket->lock);
    return waited;
}

wan_shelved *wan_waker_take(wan_waker *waker) { return __atomic_exchange_n(&waker->ready, NULL, __ATOMIC_SEQ_CST); }

void wan_waker_end(wan_waker *waker)
{
    while (__atomic_load_n(&waker->users, __ATOMIC_SEQ_CST)) sched_yield();
    waker->ready = NULL;
}

/* Roles and copies. */

int wan_tail_set_primary_until(wan_tail *tail, uint64_t until_us)
{
    int grew = 0;
    __atomic_store_n(&tail->primary_until_us, until_us, __ATOMIC_SEQ_CST);
    if (!__atomic_exchange_n(&tail->holds_back, 0, __ATOMIC_SEQ_CST)) return 0;
    for (uint32_t n = 0; n < tail->bucket_count; n++) {
        wan_tail_bucket *bucket = &tail->buckets[n];
        wan_lock_take(&bucket->lock);
        if (recount(tail, bucket)) {
            grew = 1;
            give_lanes(tail, bucket, 0); /* The copies are told. */
        }
        wan_lock_release(&bucket->lock);
    }
    return grew;
}

void wan_tail_begin_at(wan_tail *tail, uint32_t number, uint64_t sequence)
{
    wan_tail_bucket *bucket = &tail->buckets[number];
    wan_lock_take(&bucket->lock);
    store(&bucket->last, sequence);
    store(&bucket->counted, sequence);
    bucket->first = sequence + 1;
    wan_lock_release(&bucket->lock);
}

void wan_tail_set_leader(wan_tail *tail, uint32_t number, uint32_t leader, int queue_only)
{
    wan_tail_bucket *bucket = &tail->buckets[number];
    wan_lock_take(&bucket->lock);
    bucket->leader = leader;
    __atomic_store_n(&bucket->queue_only, queue_only != 0, __ATOMIC_RELAXED);
    wan_lock_release(&bucket->lock);
}

void wan_tail_set_holders(wan_tail *tail, uint32_t number, uint32_t *holders, uint32_t count)
{
    wan_tail_bucket *bucket = &tail->buckets[number];
    wan_lock_take(&bucket->lock);
    uint32_t *before = bucket->holders;
    bucket->holders = holders;
    bucket->holder_count = count;
    wan_lock_release(&bucket->lock);
    free(before);
}

/* A learner has become a copy in sync. No member has removed more events than count, and all that counts is here: what
 * was said beyond that was never true, and must not remove what is still to come. */
static void bound_settled(wan_tail *tail, const wan_tail_bucket *bucket)
{
    const wan_feeds *feeds = wan_tail_feeds(tail);
    for (uint32_t n = 0; feeds && n < feeds->count; n++) {
        wan_lock_take(feeds->items[n].lock);
        wan_queue_bound_settled(feeds->items[n].queue, feeds->items[n].first + number_of(tail, bucket), bucket->last);
        wan_lock_release(feeds->items[n].lock);
    }
}

void wan_tail_set_role(wan_tail *tail, uint32_t number, uint8_t role, uint64_t life, uint64_t epoch, uint64_t transfer)
{
    wan_tail_bucket *bucket = &tail->buckets[number];
    wan_lock_take(&bucket->lock);
    const uint8_t before = bucket->role;
    wan_heard *heard = wan_tail_heard(tail);
    const int holds = role >= WAN_TAIL_COPY;
    const int is_new_image =
        role == WAN_TAIL_LEARNER
        && (before != role || bucket->transfer != transfer || bucket->epoch != epoch || bucket->life != life);
    if ((!leads(role) || before == WAN_TAIL_PRIMARY) && role != WAN_TAIL_PRIMARY) forget_copies(bucket);
    if (bucket->life != life || bucket->epoch != epoch)
        for (uint32_t n = 0; n < bucket->copy_count; n++) {
            wan_tail_copy *copy = &bucket->copies[n];
            copy->confirmed = copy->asked = 0;
            if (copy->state == WAN_COPY_WAITED && !copy->transfer) continue;
            copy->state = WAN_COPY_LEARNING;
            copy->image_shard = copy->image_acked = copy->caught_up = copy->queued = 0;
            copy->behind_us = 0;
        }
    if (bucket->life != life || is_new_image || role == WAN_TAIL_ABSENT || (leads(before) && !leads(role))) {
        bucket->counted_before = leads(before) ? bucket->counted : 0;
        store(&bucket->era, bucket->era + 1);
        if (bucket->life != life || is_new_image || role == WAN_TAIL_ABSENT) bucket->thin_count = 0;
    }
    if (bucket->life != life || bucket->epoch != epoch) store(&bucket->contact, 0);
    const int drops = is_new_image || !(holds || role == WAN_TAIL_LEARNER), is_new_life = bucket->life != life;
    if (heard && !leads(before) != !leads(role)) wan_heard_turn(heard, number);
    __atomic_store_n(&bucket->role, role, __ATOMIC_RELEASE);
    store(&bucket->life, life);
    store(&bucket->epoch, epoch);
    bucket->transfer = transfer;
    if (drops) {
        bucket->learned = 0;
        store(&bucket->counted, 0);
        store(&bucket->last, 0);
        drop_all(bucket);
        if (heard) wan_heard_forget(heard, number);
        wan_answers_close(&bucket->answers);
        uint32_t shards = tail->shard_count / tail->bucket_count;
        for (uint32_t n = 0; n < shards; n++) store(&tail->shard_last[(uint64_t)number * shards + n], 0);
    }
    if (drops || is_new_life) turn_streams(tail, number, life, drops);
    if (before == WAN_TAIL_LEARNER && holds) bound_settled(tail, bucket);
    if (role == WAN_TAIL_PRIMARY) {
        recount(tail, bucket);
        let_hear(tail, bucket); /* What counted under an earlier primary, which did not tell it. */
        give_lanes(tail, bucket, 0);
    }
    count_learners(bucket);
    if (role == WAN_TAIL_ABSENT) let_go(tail, bucket);
    else wan_tail_charge(tail, bucket);
    __atomic_fetch_add(&bucket->changed, 1, __ATOMIC_SEQ_CST);
    wake_waiters(bucket);
    while (bucket->last_shelved && bucket->last_shelved->sequence == WAN_TAIL_HELD)
        make_ready(bucket, bucket->last_shelved);
    wan_lock_release(&bucket->lock);
}

static const wan_tail_copy *find_copy(const wan_tail_bucket *bucket, uint32_t lane)
{
    for (uint32_t n = 0; n < bucket->copy_count; n++)
        if (bucket->copies[n].lane == lane) return &bucket->copies[n];
    return NULL;
}

wan_status wan_tail_set_copies(wan_tail *tail, uint32_t number, const wan_tail_copy *copies, uint32_t count)
{
    wan_tail_bucket *bucket = &tail->buckets[number];
    wan_tail_copy *fresh = count ? calloc(count, sizeof *fresh) : NULL;
    if (count && !fresh) return WAN_FAIL(WAN_NO_MEMORY, "no memory for the copies of bucket %" PRIu32, number);
    wan_lock_take(&bucket->lock);
    for (uint32_t n = 0; n < count; n++) {
        const wan_tail_copy *given = &copies[n], *known = find_copy(bucket, given->lane);
        /* A learner that is in sync now has no transfer any more, and is the same copy. */
        if (known && (known->transfer == given->transfer || given->state == WAN_COPY_WAITED)) {
            fresh[n] = *known;
            fresh[n].refused = 0;
        } else {
            fresh[n].lane = given->lane;
            /* A learner gets in its stream what any copy in sync may lack: that copy may have to fetch it there. */
            uint64_t acked = given->state == WAN_COPY_WAITED ? given->acked : bucket->counted;
            fresh[n].sent = fresh[n].acked = acked < bucket->last ? acked : bucket->last;
            fresh[n].image_shard = given->state == WAN_COPY_WAITED ? WAN_IMAGE_DONE : 0;
        }
        /* A learner that is waited for does not know less because the coordinator has not heard of it yet. */
        fresh[n].state = fresh[n].image_acked && given->transfer ? WAN_COPY_WAITED : given->state;
        fresh[n].transfer = given->transfer;
        fresh[n].queue_only = given->queue_only;
    }
    free(bucket->copies);
    bucket->copies = fresh;
    bucket->copy_count = count;
    count_learners(bucket);
    recount(tail, bucket);
    give_lanes(tail, bucket, 0);
    wan_lock_release(&bucket->lock);
    return WAN_OK;
}

int wan_tail_may_read(wan_tail *tail, uint32_t number, uint64_t now_us)
{
    wan_tail_bucket *bucket = &tail->buckets[number];
    wan_lock_take(&bucket->lock);
    /* A bucket that is being taken over has forgotten its copies, or has not heard of all of them. */
    int may = bucket->role == WAN_TAIL_PRIMARY || bucket->role == WAN_TAIL_COPY;
    for (uint32_t n = 0; n < bucket->copy_count; n++) {
        const wan_tail_copy *copy = &bucket->copies[n];
        if (copy->state != WAN_COPY_WAITED) continue;
        wan_lane_state *state = __atomic_load_n(&tail->lanes[copy->lane], __ATOMIC_ACQUIRE);
        if (copy->confirmed && state && load(&state->promised_until_us) > now_us) continue;
        may = 0;
        if (state) {
            __atomic_store_n(&state->wants_promise, 1, __ATOMIC_SEQ_CST);
            wan_lane_wake(state);
        }
    }
    may = may && (bucket->role == WAN_TAIL_COPY ? load(&tail->lease_until_us) > now_us : is_in_time(tail, now_us));
    wan_lock_release(&bucket->lock);
    return may;
}

/* A copy's changes. */

wan_status wan_tail_follow(wan_tail *tail, uint32_t number, uint64_t life, uint64_t epoch, uint64_t sequence,
                           const wan_tail_entry *entry, wan_tail_reservation *room)
{
    wan_tail_bucket *bucket = &tail->buckets[number];
    wan_lock_take(&bucket->lock);
    wan_status status = WAN_OK;
    const uint8_t role = bucket->role;
    if (bucket->life != life || bucket->epoch != epoch
        || (role != WAN_TAIL_COPY && role != WAN_TAIL_LEARNER && role != WAN_TAIL_TAKING_OVER))
        status = WAN_ELSEWHERE;
    else if (role == WAN_TAIL_LEARNER && bucket->last == 0 && sequence > 0) {
        store(&bucket->last, sequence - 1); /* The stream of a learner begins anywhere. */
        store(&bucket->counted, sequence - 1);
        bucket->first = sequence;
    }
    if (status == WAN_OK && sequence <= bucket->last) status = WAN_EMPTY;
    else if (status == WAN_OK && sequence != bucket->last + 1) status = WAN_INVALID;
    if (status == WAN_OK) status = make_room(bucket, entry->length, room);
    if (status != WAN_OK) wan_lock_release(&bucket->lock);
    return status;
}

void wan_tail_followed(wan_tail *tail, wan_tail_reservation *room, const wan_tail_entry *entry, uint32_t shard)
{
    wan_tail_bucket *bucket = room->bucket;
    memcpy(room->at, entry, room->length);
    bucket->changes.used += room->length;
    store(&bucket->last, bucket->last + 1);
    if (!bucket->queue_only) remember(bucket, entry, bucket->last);
    note_change(tail, bucket, shard, bucket->last);
}

void wan_tail_follow_end(wan_tail *tail, wan_tail_reservation *room)
{
    wan_tail_charge(tail, room->bucket);
    wan_lock_release(&room->bucket->lock);
}

void wan_tail_told(wan_tail *tail, uint32_t number, uint64_t life, uint64_t epoch, uint64_t counted, uint64_t heard,
                   uint64_t contact)
{
    wan_tail_bucket *bucket = &tail->buckets[number];
    wan_heard *keeper = wan_tail_heard(tail);
    wan_lock_take(&bucket->lock);
    if (bucket->life == life && bucket->epoch == epoch && !leads(bucket->role)) {
        store(&bucket->contact, contact);
        if (counted > bucket->last) counted = bucket->last;
        if (heard > bucket->last) heard = bucket->last; /* Nobody was told of a change that is still to come. */
        if (counted > bucket->counted) {
            store(&bucket->counted, counted);
            drop_through(bucket, counted);
            wan_tail_charge(tail, bucket);
            wake_waiters(bucket);
            let_hear(tail, bucket);
        }
        if (keeper) wan_heard_pass(keeper, number, heard);
    }
    wan_lock_release(&bucket->lock);
}

int wan_tail_copy_may_answer(const wan_tail *tail, uint32_t number)
{
    return wan_tail_role(tail, number) == WAN_TAIL_COPY && !wan_tail_is_queue_only(tail, number)
           && wan_tail_lease_runs(tail) && wan_contact_is_fresh(load(&tail->buckets[number].contact));
}

/* What lanes send and hear. */

int wan_tail_acknowledged(wan_tail *tail, uint32_t number, uint32_t lane, uint64_t life, uint64_t epoch,
                          uint64_t sequence)
{
    wan_tail_bucket *bucket = &tail->buckets[number];
    int became = 0;
    wan_lock_take(&bucket->lock);
    wan_tail_copy *copy = (wan_tail_copy *)find_copy(bucket, lane);
    if (copy && bucket->life == life && bucket->epoch == epoch && leads(bucket->role)) {
        if (sequence > bucket->last) sequence = bucket->last;
        if (sequence > copy->acked) copy->acked = sequence;
        if (copy->acked > copy->sent) copy->sent = copy->acked;
        copy->confirmed = 1;
        if (recount(tail, bucket)) {
            became = WAN_TAIL_GREW;
            give_lanes(tail, bucket, 0); /* The copies are told. */
        }
        if (copy->image_acked && !copy->caught_up && copy->acked >= bucket->counted) {
            copy->caught_up = 1;
            became |= WAN_TAIL_CAUGHT_UP;
        }
    }
    wan_lock_release(&bucket->lock);
    return became;
}

int wan_tail_image_acked(wan_tail *tail, uint32_t number, uint32_t lane, uint64_t life, uint64_t epoch,
                         uint64_t transfer)
{
    wan_tail_bucket *bucket = &tail->buckets[number];
    wan_lock_take(&bucket->lock);
    wan_tail_copy *copy = (wan_tail_copy *)find_copy(bucket, lane);
    /* A primary that is about to be active has told its lanes already, so an image may be whole before that. */
    const int is_news = copy && bucket->life == life && bucket->epoch == epoch && leads(bucket->role)
                        && copy->state == WAN_COPY_LEARNING && copy->transfer == transfer
                        && copy->image_shard == WAN_IMAGE_DONE && !copy->refused;
    if (is_news) {
        copy->image_acked = 1;
        copy->state = WAN_COPY_WAITED;
        count_learners(bucket);
    }
    wan_lock_release(&bucket->lock);
    return is_news;
}

uint64_t wan_tail_behind(wan_tail *tail, uint32_t lane)
{
    uint64_t bytes = 0;
    for (uint32_t number = 0; number < tail->bucket_count; number++) {
        wan_tail_bucket *bucket = &tail->buckets[number];
        wan_lock_take(&bucket->lock);
        const wan_tail_copy *copy = find_copy(bucket, lane);
        if (copy && copy->acked < bucket->last) bytes += bucket->changes.used - bucket->changes.start;
        wan_lock_release(&bucket->lock);
    }
    return bytes;
}

void wan_tail_rewind(wan_tail *tail, uint32_t lane)
{
    uint64_t *settled = __atomic_load_n(&tail->settled[lane], __ATOMIC_ACQUIRE);
    if (settled && wan_tail_feeds(tail)) {
        for (uint32_t number = 0; number < tail->bucket_count; number++) {
            set_settled(settled + words_of(tail), number);
            set_settled(settled, number);
        }
        wan_lock_take(&tail->lanes_lock);
        note_lane(tail, lane);
        wan_lock_release(&tail->lanes_lock);
    }
    for (uint32_t number = 0; number < tail->bucket_count; number++) {
        wan_tail_bucket *bucket = &tail->buckets[number];
        wan_lock_take(&bucket->lock);
        wan_tail_copy *copy = (wan_tail_copy *)find_copy(bucket, lane);
        if (copy) {
            copy->sent = copy->acked;
            copy->told = copy->heard = 0;
            copy->confirmed = copy->asked = copy->queued = 0;
            copy->retry_us = 0;
            if (copy->state == WAN_COPY_LEARNING) copy->image_shard = 0;
            give_lane(tail, bucket, lane, 0);
        }
        wan_lock_release(&bucket->lock);
    }
}
