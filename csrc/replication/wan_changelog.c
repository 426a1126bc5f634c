#include "replication/wan_changelog.h"

#include "replication/wan_contact.h"
#include "replication/wan_notifications.h"
#include "region/wan_table.h"
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#define EMPTY_BYTES_KEPT 65536u /* An empty change log keeps at most so much memory. */

static inline uint64_t load(const uint64_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
static inline void store(uint64_t *at, uint64_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
static inline uint32_t number_of(const wan_changelog *changelog, const wan_changelog_bucket *bucket)
{
    return (uint32_t)(bucket - changelog->buckets);
}
static inline int leads(uint8_t role) { return role == WAN_REPLICA_PRIMARY || role == WAN_REPLICA_TAKING_OVER; }

static wan_status check_call(const wan_changelog_entry *entry)
{
    const wan_call_identity *call = wan_changelog_entry_call(entry);
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

wan_status wan_changelog_entry_check(const uint8_t *at, uint64_t bytes, int is_snapshot)
{
    const wan_changelog_entry *entry = (const wan_changelog_entry *)at;
    if (bytes < sizeof *entry || entry->length > bytes || entry->length % 8 || entry->kind >= WAN_ENTRY_KINDS
        || entry->length < wan_changelog_entry_head(entry))
        return WAN_FAIL(WAN_CORRUPT, "an entry of a bucket is not whole");
    const uint32_t flags = entry->flags;
    const int is_row = (flags & WAN_CHANGELOG_ROW) != 0,
              found = (flags & (WAN_CHANGELOG_FOUND | WAN_CHANGELOG_LEFT_OUT)) != 0;
    if (is_snapshot && (entry->kind || flags))
        return WAN_FAIL(WAN_CORRUPT, "an entry of a snapshot is of kind %u and has the flags %u", entry->kind, flags);
    const uint8_t last_outcome = is_snapshot ? WAN_MISSING : WAN_DESTROYED;
    if (entry->outcome > last_outcome || entry->found_form >= WAN_FORM_COUNT || flags > WAN_CHANGELOG_FLAGS
        || (is_row && flags != (WAN_CHANGELOG_REMEMBERED | WAN_CHANGELOG_ROW)) || (is_row && entry->row == UINT32_MAX)
        || (found && !(flags & WAN_CHANGELOG_REMEMBERED))
        || (flags & WAN_CHANGELOG_LEFT_OUT && !(flags & WAN_CHANGELOG_FOUND)) || entry->verdict_length % 8
        || (entry->verdict_length && entry->kind != WAN_ENTRY_CHANGE))
        return WAN_FAIL(WAN_CORRUPT,
                        "an entry of a bucket has the outcome %u, the form %u, the flags %u and %" PRIu32
                        " bytes of verdicts",
                        entry->outcome, entry->found_form, entry->flags, entry->verdict_length);
    wan_status status = wan_changelog_entry_has_call(entry) ? check_call(entry) : WAN_OK;
    if (status != WAN_OK) return status;
    const uint64_t head = wan_changelog_entry_head(entry), room = entry->length - head;
    if (entry->kind == WAN_ENTRY_FORGET)
        return room || flags || entry->outcome || entry->found_form || entry->found_length
                   ? WAN_FAIL(WAN_CORRUPT, "an entry that forgets a caller has %" PRIu64 " bytes more", room)
                   : WAN_OK;
    if (entry->kind == WAN_ENTRY_CLEAR)
        return entry->length != WAN_CHANGELOG_CLEAR_BYTES || flags != WAN_CHANGELOG_REMEMBERED || entry->found_form
                       || entry->found_length
                   ? WAN_FAIL(WAN_CORRUPT, "the clear of a bucket has %" PRIu32 " bytes and the flags %u",
                              entry->length, entry->flags)
                   : WAN_OK;
    status = wan_record_check(at + head, room);
    if (status != WAN_OK) return status;
    if (wan_record_length(wan_changelog_entry_record(entry)) + (uint64_t)entry->verdict_length
            + wan_align8(wan_changelog_entry_found_length(entry))
        != room)
        return WAN_FAIL(WAN_CORRUPT, "the parts of an entry of a bucket do not make up its length");
    return check_verdicts((const uint8_t *)wan_changelog_entry_verdicts(entry), entry->verdict_length);
}

/* The bucket holds nothing. */
static void let_go(wan_changelog *changelog, wan_changelog_bucket *bucket)
{
    if (!changelog->budget) return;
    wan_budget_let_go(changelog->budget, WAN_BUDGET_CHANGES, &bucket->held_changes);
    wan_budget_let_go(changelog->budget, WAN_BUDGET_REMEMBERED, &bucket->held_answers);
}

wan_status wan_changelog_init(wan_changelog *changelog, uint32_t buckets, uint32_t shards, uint32_t min_isr)
{
    memset(changelog, 0, sizeof *changelog);
    changelog->lease_until_us = changelog->primary_until_us = changelog->notification_limit_us = WAN_NEVER;
    changelog->buckets = calloc(buckets, sizeof *changelog->buckets);
    changelog->shard_last = calloc(shards, sizeof *changelog->shard_last);
    if (!changelog->buckets || !changelog->shard_last) {
        free(changelog->buckets);
        free(changelog->shard_last);
        changelog->buckets = NULL;
        changelog->shard_last = NULL;
        return WAN_FAIL(WAN_NO_MEMORY, "no memory for the change logs of %" PRIu32 " buckets", buckets);
    }
    changelog->bucket_count = buckets;
    changelog->shard_count = shards;
    changelog->min_isr = min_isr;
    for (uint32_t n = 0; n < buckets; n++) changelog->buckets[n].first = 1;
    return WAN_OK;
}

void wan_changelog_close(wan_changelog *changelog)
{
    for (uint32_t n = 0; n < changelog->bucket_count; n++) {
        free(changelog->buckets[n].replicas);
        free(changelog->buckets[n].under_replicated);
        free(changelog->buckets[n].holders);
        wan_buffer_close(&changelog->buckets[n].changes);
        wan_answers_close(&changelog->buckets[n].answers);
        let_go(changelog, &changelog->buckets[n]);
    }
    for (uint32_t n = 0; n < WAN_REPL_LINKS_MAX; n++) {
        free(changelog->to_send[n]);
        free(changelog->removals[n]);
    }
    wan_notifications_close(changelog->notifications, changelog->bucket_count);
    free(changelog->feeds);
    free(changelog->buckets);
    free(changelog->shard_last);
    memset(changelog, 0, sizeof *changelog);
}

/* Queues. */

/* Whether `feeds` has a queue. */
static int has_queue(const wan_feeds *feeds, const wan_queue *queue)
{
    for (uint32_t n = 0; feeds && n < feeds->count; n++)
        if (feeds->items[n].queue == queue) return 1;
    return 0;
}

_Static_assert(WAN_REPL_LINKS_MAX <= WAN_TOLD_MAX, "a queue knows what it has told each member");

static void announce_removals(void *changelog, uint32_t bucket) { wan_changelog_note_removal(changelog, bucket); }

/* Begins or ends the feeding of the queues of `feeds` that are not in `others`. */
static wan_status feed(wan_changelog *changelog, const wan_feeds *feeds, const wan_feeds *others, int begins)
{
    wan_status status = WAN_OK;
    for (uint32_t n = 0; feeds && status == WAN_OK && n < feeds->count; n++) {
        const wan_feed *item = &feeds->items[n];
        if (has_queue(others, item->queue)) continue;
        for (uint32_t number = 0; status == WAN_OK && number < changelog->bucket_count; number++) {
            wan_changelog_bucket *bucket = &changelog->buckets[number];
            wan_lock_take(&bucket->lock);
            wan_lock_take(item->lock);
            /* The snapshot of a learner includes the queued events of the changes before. */
            const uint64_t last = bucket->role == WAN_REPLICA_LEARNER ? 0 : bucket->log_end;
            status = wan_queue_feed(item->queue, item->first + number, begins ? &bucket->high_watermark : NULL,
                                    bucket->timeline, last);
            /* Events of changes made before every change finds the queue are not in the queue. A bucket without a role
             * gets all events by a snapshot. */
            if (begins && status == WAN_OK && bucket->role != WAN_REPLICA_ABSENT)
                wan_queue_lack(item->queue, item->first + number, WAN_NO_LIMIT);
            wan_queue_announce_removals(item->queue, item->first + number, begins ? announce_removals : NULL,
                                        changelog);
            if (!begins && status == WAN_OK)
                wan_queue_send_rest(item->queue, item->first + number, bucket->role != WAN_REPLICA_LEARNER);
            wan_lock_release(item->lock);
            wan_lock_release(&bucket->lock);
        }
    }
    return status;
}

wan_status wan_changelog_set_feeds(wan_changelog *changelog, const wan_feed *given, uint32_t count)
{
    wan_feeds *fresh = NULL, *old = changelog->feeds;
    if (count) {
        fresh = calloc(1, sizeof *fresh + count * sizeof *given);
        if (!fresh) return WAN_FAIL(WAN_NO_MEMORY, "no memory for the queues of a region");
        fresh->count = count;
        memcpy(fresh->items, given, count * sizeof *given);
    }
    wan_status status = feed(changelog, fresh, old, 1);
    if (status != WAN_OK) {
        free(fresh);
        return status;
    }
    __atomic_store_n(&changelog->feeds, fresh, __ATOMIC_RELEASE);
    for (uint32_t n = 0; n < changelog->bucket_count; n++) { /* The old feeds were used under these locks. */
        wan_lock_take(&changelog->buckets[n].lock);
        wan_lock_release(&changelog->buckets[n].lock);
    }
    (void)feed(changelog, old, fresh, 0); /* A broken queue is fed no more in any case. */
    free(old);
    return WAN_OK;
}

void wan_changelog_has_fed(wan_changelog *changelog, const wan_queue *queue)
{
    const wan_feeds *feeds = wan_changelog_feeds(changelog);
    for (uint32_t n = 0; feeds && n < feeds->count; n++) {
        const wan_feed *item = &feeds->items[n];
        if (item->queue != queue) continue;
        for (uint32_t number = 0; number < changelog->bucket_count; number++) {
            wan_changelog_bucket *bucket = &changelog->buckets[number];
            wan_lock_take(&bucket->lock);
            wan_lock_take(item->lock);
            wan_queue_lack(item->queue, item->first + number, bucket->role == WAN_REPLICA_ABSENT ? 0 : bucket->log_end);
            wan_lock_release(item->lock);
            wan_lock_release(&bucket->lock);
        }
    }
}

/* The bucket has another history from now on (`drops`), which begins in `timeline`; or the same history gets
 * `timeline`. The queued events of the bucket follow. Under the bucket's lock. */
static void turn_streams(wan_changelog *changelog, uint32_t number, uint64_t timeline, int drops)
{
    const wan_feeds *feeds = wan_changelog_feeds(changelog);
    for (uint32_t n = 0; feeds && n < feeds->count; n++) {
        const wan_feed *item = &feeds->items[n];
        wan_lock_take(item->lock);
        if (drops) (void)wan_queue_begin_anew(item->queue, item->first + number, timeline);
        else wan_queue_set_timeline(item->queue, item->first + number, timeline);
        wan_lock_release(item->lock);
    }
}

/* Replication links. */

static uint64_t words_of(const wan_changelog *changelog) { return (changelog->bucket_count + 63) / 64; }

wan_status wan_changelog_add_repl_link(wan_changelog *changelog, uint32_t repl_link, wan_repl_link_state *state)
{
    if (repl_link >= WAN_REPL_LINKS_MAX)
        return WAN_FAIL(WAN_INVALID, "replication link %" PRIu32 ", and there are at most %u", repl_link,
                        WAN_REPL_LINKS_MAX);
    if (!changelog->to_send[repl_link]) {
        uint64_t *bits = calloc(words_of(changelog), sizeof *bits),
                 *removals = calloc(2 * words_of(changelog), sizeof *removals);
        if (!bits || !removals) {
            free(bits);
            free(removals);
            return WAN_FAIL(WAN_NO_MEMORY, "no memory for replication link %" PRIu32, repl_link);
        }
        __atomic_store_n(&changelog->removals[repl_link], removals, __ATOMIC_RELEASE);
        __atomic_store_n(&changelog->to_send[repl_link], bits, __ATOMIC_RELEASE);
        if (repl_link >= changelog->repl_link_limit)
            __atomic_store_n(&changelog->repl_link_limit, repl_link + 1, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&changelog->repl_links[repl_link], state, __ATOMIC_RELEASE);
    return WAN_OK;
}

void wan_changelog_remove_repl_link(wan_changelog *changelog, uint32_t repl_link)
{
    if (repl_link >= WAN_REPL_LINKS_MAX) return;
    __atomic_store_n(&changelog->repl_links[repl_link], NULL, __ATOMIC_RELEASE);
    for (uint32_t n = 0; n < changelog->bucket_count;
         n++) { /* A thread that found the replication link used it under such a lock. */
        wan_lock_take(&changelog->buckets[n].lock);
        wan_lock_release(&changelog->buckets[n].lock);
    }
    wan_lock_take(&changelog->repl_links_lock);
    wan_lock_release(&changelog->repl_links_lock);
}

/* Wakes a thread that waits on its file, if `asleep` says so. */
static void wake(uint32_t *asleep, int wake_file)
{
    if (!__atomic_exchange_n(asleep, 0, __ATOMIC_SEQ_CST)) return;
    const uint64_t one = 1;
    ssize_t written = write(wake_file, &one, sizeof one);
    (void)written; /* The file is full: the thread is about to wake. */
}

void wan_repl_link_wake(wan_repl_link_state *state)
{
    const uint32_t was = __atomic_exchange_n(&state->asleep, WAN_REPL_LINK_RUNS, __ATOMIC_SEQ_CST);
    if (was == WAN_REPL_LINK_RUNS) return;
    const uint64_t one = 1;
    ssize_t written = write(was == WAN_REPL_LINK_WAITS ? state->wake_file : state->rest_file, &one, sizeof one);
    (void)written; /* The file is full: the thread is about to wake. */
}

/* Informs a replication link's thread that a change log has a bit in `removals` for the link. Under
 * `repl_links_lock`. */
static void note_repl_link(const wan_changelog *changelog, uint32_t repl_link)
{
    wan_repl_link_state *state = __atomic_load_n(&changelog->repl_links[repl_link], __ATOMIC_ACQUIRE);
    if (state && !__atomic_exchange_n(&state->has_removals, 1, __ATOMIC_SEQ_CST)) wan_repl_link_wake(state);
}

void wan_changelog_note_removal(wan_changelog *changelog, uint32_t number)
{
    const uint64_t bit = (uint64_t)1 << number % 64;
    const uint32_t limit = __atomic_load_n(&changelog->repl_link_limit, __ATOMIC_ACQUIRE);
    for (uint32_t repl_link = 0; repl_link < limit; repl_link++) {
        uint64_t *words = __atomic_load_n(&changelog->removals[repl_link], __ATOMIC_ACQUIRE);
        /* If the bit is set already, the replication link will look at the queue after this call. The thread that set
         * the bit informs the replication link. */
        if (!words || __atomic_fetch_or(&words[number / 64], bit, __ATOMIC_SEQ_CST) & bit) continue;
        wan_lock_take(&changelog->repl_links_lock);
        note_repl_link(changelog, repl_link);
        wan_lock_release(&changelog->repl_links_lock);
    }
}

static void set_removal(uint64_t *words, uint32_t number)
{
    __atomic_fetch_or(&words[number / 64], (uint64_t)1 << number % 64, __ATOMIC_SEQ_CST);
}

void wan_changelog_tell_again(wan_changelog *changelog, uint32_t number)
{
    const uint32_t limit = __atomic_load_n(&changelog->repl_link_limit, __ATOMIC_ACQUIRE);
    for (uint32_t repl_link = 0; repl_link < limit; repl_link++) {
        uint64_t *words = __atomic_load_n(&changelog->removals[repl_link], __ATOMIC_ACQUIRE);
        if (words) set_removal(words + words_of(changelog), number);
    }
    wan_changelog_note_removal(changelog, number);
}

int wan_changelog_take_again(wan_changelog *changelog, uint32_t repl_link, uint32_t number)
{
    uint64_t *words = changelog->removals[repl_link] + words_of(changelog);
    const uint64_t bit = (uint64_t)1 << number % 64;
    if (WAN_LIKELY(!(__atomic_load_n(&words[number / 64], __ATOMIC_SEQ_CST) & bit))) return 0;
    return (__atomic_fetch_and(&words[number / 64], ~bit, __ATOMIC_SEQ_CST) & bit) != 0;
}

/* Marks the bucket for a replication link. Returns whether the link exists. Under the bucket's lock. */
static int mark_repl_link(wan_changelog *changelog, uint32_t number, uint32_t repl_link)
{
    uint64_t *bits = __atomic_load_n(&changelog->to_send[repl_link], __ATOMIC_ACQUIRE);
    if (!bits) return 0;
    __atomic_fetch_or(&bits[number / 64], (uint64_t)1 << (number % 64), __ATOMIC_SEQ_CST);
    return 1;
}

/* Marks the bucket for a replication link, and wakes the replication link. `may_rest`: a resting link is not woken.
 * Under the bucket's lock. */
static void give_repl_link(wan_changelog *changelog, const wan_changelog_bucket *bucket, uint32_t repl_link,
                           int may_rest)
{
    const uint32_t number = number_of(changelog, bucket);
    const uint64_t *bits = __atomic_load_n(&changelog->to_send[repl_link], __ATOMIC_ACQUIRE);
    wan_repl_link_state *state = __atomic_load_n(&changelog->repl_links[repl_link], __ATOMIC_ACQUIRE);
    /* Among many rows only the first row writes the word that the replication link's thread writes too. A replication
     * link that runs clears the mark before taking the bucket's lock, and looks for marks before waiting. */
    if (bits && state && __atomic_load_n(&bits[number / 64], __ATOMIC_SEQ_CST) >> number % 64 & 1
        && __atomic_load_n(&state->asleep, __ATOMIC_SEQ_CST) == WAN_REPL_LINK_RUNS)
        return;
    if (!mark_repl_link(changelog, number, repl_link)) return;
    if (!state || (may_rest && __atomic_load_n(&state->asleep, __ATOMIC_SEQ_CST) == WAN_REPL_LINK_RESTS)) return;
    wan_repl_link_wake(state);
}

static void give_repl_links(wan_changelog *changelog, const wan_changelog_bucket *bucket, int may_rest)
{
    for (uint32_t n = 0; n < bucket->replica_count; n++)
        give_repl_link(changelog, bucket, bucket->replicas[n].repl_link,
                       may_rest && bucket->replicas[n].state == WAN_FOLLOWER_WAITED);
}

void wan_changelog_run_repl_link(const wan_repl_link_wait *wait)
{
    wan_changelog *changelog = wait->changelog;
    wan_changelog_bucket *bucket = &changelog->buckets[wait->bucket];
    wan_repl_link_state *taken = NULL;
    if (load(&bucket->high_watermark) >= wait->sequence) return;
    wan_lock_take(&bucket->lock); /* A replication link found in the change log stays alive under this lock. */
    for (uint32_t n = 0; n < bucket->replica_count; n++) {
        wan_repl_link_state *state =
            __atomic_load_n(&changelog->repl_links[bucket->replicas[n].repl_link], __ATOMIC_ACQUIRE);
        uint32_t rests = WAN_REPL_LINK_RESTS;
        if (!state || __atomic_load_n(&state->asleep, __ATOMIC_SEQ_CST) != WAN_REPL_LINK_RESTS) continue;
        if (taken) wan_repl_link_wake(state);
        else if (__atomic_compare_exchange_n(&state->asleep, &rests, WAN_REPL_LINK_RUNS, 0, __ATOMIC_SEQ_CST,
                                             __ATOMIC_SEQ_CST))
            taken = state;
    }
    wan_lock_release(&bucket->lock);
    if (taken) taken->run(taken->runner, wait);
}

void wan_changelog_say_notified(wan_changelog *changelog, uint32_t number, int wakes)
{
    const wan_changelog_bucket *bucket = &changelog->buckets[number];
    if (!changelog->notifications->says || !leads(bucket->role)) return;
    if (wakes) give_repl_links(changelog, bucket, 1);
    for (uint32_t n = 0; n < bucket->replica_count && !wakes; n++)
        mark_repl_link(changelog, number, bucket->replicas[n].repl_link);
}

/* Effects under a bucket's lock. */

/* The high watermark rose, or this member leads the bucket now: makes changes due, if this member has to notify
 * listeners of them. */
static inline void let_notify(wan_changelog *changelog, const wan_changelog_bucket *bucket)
{
    wan_notifications *notifications = wan_changelog_notifications(changelog);
    if (notifications && (!notifications->by_primary || bucket->role == WAN_REPLICA_PRIMARY))
        wan_notifications_count(notifications, number_of(changelog, bucket), bucket->high_watermark);
}

static void unlink_pending(wan_changelog_bucket *bucket, wan_pending_call *pending)
{
    *(pending->before ? &pending->before->behind : &bucket->first_pending) = pending->behind;
    *(pending->behind ? &pending->behind->before : &bucket->last_pending) = pending->before;
    pending->is_waiting = 0;
}

void wan_changelog_charge(wan_changelog *changelog, wan_changelog_bucket *bucket)
{
    if (!changelog->budget) return;
    wan_budget_hold(changelog->budget, WAN_BUDGET_CHANGES, &bucket->held_changes,
                    bucket->changes.used - bucket->changes.start);
    wan_budget_hold(changelog->budget, WAN_BUDGET_REMEMBERED, &bucket->held_answers,
                    wan_answers_bytes(&bucket->answers));
}

/* Gives a finished wait to its owner. */
static void make_ready(wan_changelog_bucket *bucket, wan_pending_call *pending)
{
    wan_waker *owner = pending->owner;
    unlink_pending(bucket, pending);
    /* From now on the owner may see the call and end. The owner waits for `users` first. */
    __atomic_fetch_add(&owner->users, 1, __ATOMIC_SEQ_CST);
    wan_pending_call *first = __atomic_load_n(&owner->ready, __ATOMIC_RELAXED);
    do pending->behind = first;
    while (!__atomic_compare_exchange_n(&owner->ready, &first, pending, 1, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    wake(&owner->asleep, owner->wake_file);
    __atomic_fetch_sub(&owner->users, 1, __ATOMIC_SEQ_CST);
}

static void wake_waiters(wan_changelog_bucket *bucket)
{
    /* An atomic add and no load: other threads see the change before this thread looks for waiters. */
    if (__atomic_fetch_add(&bucket->waiters, 0, __ATOMIC_SEQ_CST)) wan_signal_change(&bucket->changed);
    for (wan_pending_call *pending; (pending = bucket->first_pending);) {
        if (pending->sequence > bucket->high_watermark && pending->local_fence == bucket->local_fence) break;
        make_ready(bucket, pending);
    }
}

static void drop_all(wan_changelog_bucket *bucket)
{
    bucket->dropped_bytes += bucket->changes.used - bucket->changes.start;
    wan_buffer_trim(&bucket->changes, EMPTY_BYTES_KEPT);
    bucket->first = bucket->log_end + 1;
}

static void drop_through(wan_changelog_bucket *bucket, uint64_t sequence)
{
    wan_buffer *changes = &bucket->changes;
    if (sequence == bucket->log_end) { /* The usual case. Reading each length would bring all entries into the cache. */
        drop_all(bucket);
        return;
    }
    while (bucket->first <= sequence && changes->start < changes->used) {
        const wan_changelog_entry *entry = (const wan_changelog_entry *)(changes->bytes + changes->start);
        changes->start += entry->length;
        bucket->dropped_bytes += entry->length;
        bucket->first++;
    }
    if (changes->start == changes->used) wan_buffer_trim(changes, EMPTY_BYTES_KEPT);
    else wan_buffer_shrink(changes, EMPTY_BYTES_KEPT);
}

static void forget_replicas(wan_changelog_bucket *bucket)
{
    free(bucket->replicas);
    bucket->replicas = NULL;
    bucket->replica_count = 0;
}

/* Returns how many other replicas are in sync by the coordinator's records. A waited learner with the whole snapshot is
 * not included. */
static uint32_t in_sync_replicas(const wan_changelog_bucket *bucket)
{
    uint32_t count = 0;
    for (uint32_t n = 0; n < bucket->replica_count; n++)
        count += bucket->replicas[n].state == WAN_FOLLOWER_WAITED && !bucket->replicas[n].transfer
                 && !bucket->replicas[n].queue_only;
    return count;
}

/* Counts the learners, after roles or replicas have changed. */
static void count_learners(wan_changelog_bucket *bucket)
{
    uint32_t count = 0;
    for (uint32_t n = 0; bucket->role == WAN_REPLICA_PRIMARY && n < bucket->replica_count; n++)
        count += bucket->replicas[n].state == WAN_FOLLOWER_LEARNING;
    __atomic_store_n(&bucket->learners, count, __ATOMIC_RELAXED);
}

/* Returns how many bytes of changes were not yet sent to a replica on the present connection; more, if the number is
 * not known. */
static uint64_t unsent(const wan_changelog_bucket *bucket, const wan_changelog_replica *replica)
{
    const uint64_t all = bucket->changes.used - bucket->changes.start;
    if (replica->sent >= bucket->log_end) return 0;
    if (replica->place_sequence != replica->sent || replica->place < bucket->dropped_bytes) return all;
    const uint64_t sent = replica->place - bucket->dropped_bytes;
    return sent < all ? all - sent : 0;
}

int wan_changelog_holds_back(wan_changelog *changelog, uint32_t number, uint64_t now_us)
{
    wan_changelog_bucket *bucket = &changelog->buckets[number];
    int holds_back = 0;
    wan_lock_take(&bucket->lock);
    for (uint32_t n = 0; bucket->role == WAN_REPLICA_PRIMARY && n < bucket->replica_count; n++) {
        wan_changelog_replica *replica = &bucket->replicas[n];
        if (replica->state != WAN_FOLLOWER_LEARNING || replica->refused) continue;
        const wan_repl_link_state *state =
            __atomic_load_n(&changelog->repl_links[replica->repl_link], __ATOMIC_ACQUIRE);
        if (!state || load(&state->answered_us) + WAN_LEARNER_AWAY_US <= now_us) continue;
        if (__atomic_load_n(&state->is_short, __ATOMIC_RELAXED)) continue; /* The member has no memory. */
        if (unsent(bucket, replica) <= WAN_LEARNER_BYTES_MAX) {
            replica->behind_us = 0;
            continue;
        }
        /* Changes made before the learner takes the first change are sent before the snapshot. So callers wait for
         * these changes too, but not for a member that always answers "later". */
        if (!replica->behind_us) replica->behind_us = now_us;
        holds_back |= replica->confirmed || now_us - replica->behind_us < WAN_LEARNER_AWAY_US;
    }
    wan_lock_release(&bucket->lock);
    return holds_back;
}

/* Notes that the changes after `high_watermark` through `last` become replicated with fewer replicas than `min_isr`. */
static void note_under_replicated(wan_changelog_bucket *bucket, uint64_t last, uint32_t replicas)
{
    if (!bucket->under_replicated)
        bucket->under_replicated = calloc(WAN_UNDER_REPLICATED_MAX, sizeof *bucket->under_replicated);
    if (!bucket->under_replicated)
        return; /* The callers get no warning. The status of the bucket still shows the missing replicas. */
    bucket->under_replicated[bucket->under_replicated_count++ % WAN_UNDER_REPLICATED_MAX] =
        (wan_under_replicated){bucket->high_watermark + 1, last, replicas};
}

/* Whether a primary may answer, so long after the last contact with the coordinator. Answers of in-sync replicas are no
 * help: the replicas may be cut off together with the primary, and the bucket may begin anew at another member.
 * `now_us` 0: the function reads the clock if needed. */
static int is_in_time(const wan_changelog *changelog, uint64_t now_us)
{
    const uint64_t until_us = __atomic_load_n(&changelog->primary_until_us, __ATOMIC_SEQ_CST);
    return until_us == WAN_NEVER || (now_us ? now_us : wan_monotonic_us()) < until_us;
}

/* Whether changes may become stable now. If not, wan_changelog_set_primary_until looks at all buckets again. */
static int may_become_stable(wan_changelog *changelog)
{
    if (is_in_time(changelog, 0)) return 1;
    __atomic_store_n(&changelog->holds_back, 1, __ATOMIC_SEQ_CST);
    return is_in_time(changelog, 0); /* A thread may have set the time before it saw `holds_back`. */
}

/* Raises a primary's high watermark to the last sequence that all waited replicas have, and drops entries that no
 * replica needs any more. After a late answer of a replica the bucket may have begun anew at another member: in this
 * case the high watermark does not rise. Returns whether the high watermark rose. */
static int raise_high_watermark(wan_changelog *changelog, wan_changelog_bucket *bucket)
{
    if (bucket->role != WAN_REPLICA_PRIMARY) return 0;
    uint64_t high_watermark = bucket->log_end, needed = bucket->log_end;
    for (uint32_t n = 0; n < bucket->replica_count; n++) {
        const wan_changelog_replica *replica = &bucket->replicas[n];
        if (replica->acked < needed) needed = replica->acked;
        if (replica->state == WAN_FOLLOWER_WAITED && replica->acked < high_watermark) high_watermark = replica->acked;
    }
    int grew = high_watermark > bucket->high_watermark && may_become_stable(changelog);
    if (grew) {
        if (changelog->min_isr > 1 && in_sync_replicas(bucket) + 1 < changelog->min_isr)
            note_under_replicated(bucket, high_watermark, in_sync_replicas(bucket) + 1);
        store(&bucket->high_watermark, high_watermark);
        wake_waiters(bucket);
        let_notify(changelog, bucket);
    }
    drop_through(bucket, needed < bucket->high_watermark ? needed : bucket->high_watermark);
    wan_changelog_charge(changelog, bucket);
    return grew;
}

/* Caches the reply of an entry with a sequence. Under the bucket's lock. Room was made before. */
static void remember(wan_changelog_bucket *bucket, const wan_changelog_entry *entry, uint64_t sequence)
{
    if (!wan_changelog_entry_has_call(entry)) return;
    if (entry->kind == WAN_ENTRY_FORGET) {
        wan_answers_forget(&bucket->answers, wan_changelog_entry_call(entry)->caller);
        return;
    }
    wan_first_answer fresh = {
        .call = *wan_changelog_entry_call(entry),
        .sequence = sequence,
        .outcome = entry->outcome,
    };
    if (entry->kind == WAN_ENTRY_CLEAR) {
        fresh.has_found = 1;
        fresh.found_length = sizeof(uint64_t);
        fresh.found = (uint8_t *)wan_changelog_entry_cleared(entry);
    } else if (entry->flags & WAN_CHANGELOG_ROW) {
        fresh.rows = entry->row + 1;
    } else if (entry->flags & WAN_CHANGELOG_FOUND) {
        fresh.has_found = 1;
        fresh.is_lost = (entry->flags & WAN_CHANGELOG_LEFT_OUT) != 0;
        fresh.found_form = entry->found_form;
        fresh.found_length = entry->found_length;
        fresh.found = wan_changelog_entry_found(entry);
    }
    wan_answers_add(&bucket->answers, &fresh);
}

/* Notes the newest change of a shard, of all shards of the bucket, or of none. Under the entry locks of these shards
 * and the bucket's lock. */
static inline void note_change(wan_changelog *changelog, const wan_changelog_bucket *bucket, uint32_t shard,
                               uint64_t sequence)
{
    if (shard == WAN_NO_SHARD) return;
    if (shard != WAN_ALL_SHARDS) {
        store(&changelog->shard_last[shard], sequence);
        return;
    }
    const uint32_t shards = changelog->shard_count / changelog->bucket_count;
    for (uint32_t n = 0; n < shards; n++)
        store(&changelog->shard_last[(uint64_t)number_of(changelog, bucket) * shards + n], sequence);
}

/* The status of an attempt without a cached reply. A timeline is named by its first epoch. So an attempt under an epoch
 * below the timeline may have been made in an earlier timeline. */
static wan_status not_remembered(const wan_changelog_bucket *bucket, const wan_attempt *attempt)
{
    if (!attempt->since || attempt->since >= bucket->timeline) return WAN_EMPTY;
    return WAN_FAIL(WAN_IN_DOUBT, "the bucket was lost and began anew since the first attempt, and remembers no earlier"
                                  " change");
}

/* As wan_changelog_cached_reply, at a primary. *first: the cached reply, if any. Under the bucket's lock. */
static wan_status recall(const wan_changelog_bucket *bucket, const wan_attempt *attempt, wan_recalled *recalled,
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
    *recalled = (wan_recalled){bucket->local_fence, known->sequence,   known->applied,
                               known->outcome,      known->found_form, known->has_found};
    return WAN_MADE_BEFORE;
}

/* The primary's changes. */

/* Whether the primary may take a change now. Under the bucket's lock. */
static wan_status may_take(wan_changelog *changelog, wan_changelog_bucket *bucket)
{
    const uint32_t others = in_sync_replicas(bucket);
    if (!is_in_time(changelog, 0)) return WAN_NOT_PRIMARY;
    if (others + 1 < changelog->min_isr)
        return WAN_FAIL(WAN_TOO_FEW,
                        "bucket %" PRIu32 " has %" PRIu32
                        " in-sync replicas, and min-in-sync-replicas asks for %" PRIu32
                        "; nothing was changed. Start the members that are missing (`show coordinator` says who is"
                        " there), or lower min-in-sync-replicas",
                        number_of(changelog, bucket), others + 1, changelog->min_isr);
    return WAN_OK;
}

/* Makes room for an entry, and for its cached reply. Under the bucket's lock. */
static wan_status make_room(wan_changelog_bucket *bucket, uint64_t length, wan_changelog_reservation *room)
{
    wan_status status = wan_answers_make_room(&bucket->answers);
    if (status == WAN_OK) status = wan_buffer_make_room(&bucket->changes, length, WAN_NO_LIMIT);
    if (status != WAN_OK) return status;
    room->bucket = bucket;
    room->at = bucket->changes.bytes + bucket->changes.used;
    room->length = length;
    room->sequence = bucket->log_end + 1;
    room->is_waited_for = 0;
    return WAN_OK;
}

wan_status wan_changelog_reserve(wan_changelog *changelog, uint32_t number, uint64_t length, const wan_attempt *attempt,
                                 wan_changelog_reservation *room)
{
    wan_changelog_bucket *bucket = &changelog->buckets[number];
    const wan_first_answer *first;
    wan_lock_take(&bucket->lock);
    wan_status status = bucket->role == WAN_REPLICA_PRIMARY ? WAN_OK : WAN_NOT_PRIMARY;
    if (status == WAN_OK && attempt) {
        status = recall(bucket, attempt, &room->recalled, &first);
        if (status == WAN_EMPTY) status = WAN_OK;
    }
    if (status == WAN_OK) status = may_take(changelog, bucket);
    if (status == WAN_OK) status = make_room(bucket, length, room);
    if (status == WAN_OK && attempt) room->is_waited_for = attempt->waits;
    if (status != WAN_OK) wan_lock_release(&bucket->lock);
    return status;
}

/* The written entry becomes the newest of its bucket. Returns its sequence. */
static uint64_t add_entry(wan_changelog *changelog, const wan_changelog_reservation *room, uint32_t shard)
{
    wan_changelog_bucket *bucket = room->bucket;
    const uint64_t sequence = bucket->log_end + 1;
    store(&bucket->log_end, sequence);
    note_change(changelog, bucket, shard, sequence);
    remember(bucket, (const wan_changelog_entry *)room->at, sequence);
    return sequence;
}

uint64_t wan_changelog_commit(wan_changelog *changelog, wan_changelog_reservation *room, uint32_t shard)
{
    wan_changelog_bucket *bucket = room->bucket;
    const uint64_t sequence = add_entry(changelog, room, shard);
    if (bucket->replica_count || bucket->high_watermark != sequence - 1 || !may_become_stable(changelog)) {
        bucket->changes.used += room->length;
        /* The change is replicated at once if the primary waits for no replica. */
        if (bucket->high_watermark == sequence - 1 || !bucket->replica_count) raise_high_watermark(changelog, bucket);
        give_repl_links(changelog, bucket, room->is_waited_for);
    } else {
        bucket->dropped_bytes += room->length;
        bucket->first = sequence + 1;
        store(&bucket->high_watermark, sequence);
        let_notify(changelog, bucket);
    }
    wan_changelog_charge(changelog, bucket);
    wan_lock_release(&bucket->lock);
    return sequence;
}

wan_status wan_changelog_reserve_next(wan_changelog_reservation *room, uint64_t length)
{
    return make_room(room->bucket, length, room);
}

uint64_t wan_changelog_commit_next(wan_changelog *changelog, wan_changelog_reservation *room, uint32_t shard)
{
    room->bucket->changes.used += room->length;
    return add_entry(changelog, room, shard);
}

uint64_t wan_changelog_commit_end(wan_changelog *changelog, wan_changelog_reservation *room, uint64_t before)
{
    wan_changelog_bucket *bucket = room->bucket;
    if (bucket->log_end != before) {
        /* The changes are replicated at once if the primary waits for no replica. */
        if (bucket->high_watermark == before || !bucket->replica_count) raise_high_watermark(changelog, bucket);
        give_repl_links(changelog, bucket, 0);
        wan_changelog_charge(changelog, bucket);
    }
    const uint64_t high_watermark = bucket->high_watermark;
    wan_lock_release(&bucket->lock);
    return high_watermark;
}

void wan_changelog_cancel(wan_changelog_reservation *room) { wan_lock_release(&room->bucket->lock); }

wan_status wan_changelog_cached_reply(wan_changelog *changelog, uint32_t number, const wan_attempt *attempt,
                                      wan_recalled *recalled, wan_buffer *found)
{
    wan_changelog_bucket *bucket = &changelog->buckets[number];
    const wan_first_answer *first;
    wan_lock_take(&bucket->lock);
    wan_status status =
        bucket->role == WAN_REPLICA_PRIMARY ? recall(bucket, attempt, recalled, &first) : WAN_NOT_PRIMARY;
    if (status == WAN_MADE_BEFORE && found) {
        wan_buffer_empty(found);
        if (first->found_length && wan_buffer_add(found, first->found, first->found_length) != WAN_OK)
            status = WAN_NO_MEMORY;
    }
    wan_lock_release(&bucket->lock);
    return status;
}

wan_status wan_changelog_forget(wan_changelog *changelog, uint32_t number, uint64_t caller)
{
    const uint64_t length = sizeof(wan_changelog_entry) + sizeof(wan_call_identity);
    wan_changelog_reservation room;
    wan_status status = wan_changelog_reserve(changelog, number, length, NULL, &room);
    if (status != WAN_OK) return status;
    wan_changelog_entry *entry = (wan_changelog_entry *)room.at;
    *entry = (wan_changelog_entry){.length = (uint32_t)length, .kind = WAN_ENTRY_FORGET};
    *wan_changelog_entry_call(entry) = (wan_call_identity){.caller = caller};
    wan_changelog_commit(changelog, &room, WAN_NO_SHARD);
    return WAN_OK;
}

/* The result for a change, as wan_changelog_wait returns it. After a planned handover callers must not repeat
 * replicated changes, so the final high watermark of a local fence is kept for one more local fence. */
static wan_status became_of(const wan_changelog_bucket *bucket, uint64_t local_fence, uint64_t sequence)
{
    if (bucket->local_fence == local_fence) return bucket->high_watermark >= sequence ? WAN_OK : WAN_EMPTY;
    return bucket->local_fence == local_fence + 1 && bucket->high_watermark_before >= sequence ? WAN_OK
                                                                                               : WAN_NOT_PRIMARY;
}

wan_status wan_changelog_wait(wan_changelog *changelog, uint32_t number, uint64_t local_fence, uint64_t sequence,
                              uint32_t timeout_ms)
{
    wan_changelog_bucket *bucket = &changelog->buckets[number];
    uint64_t until = 0;
    for (;;) {
        /* The local fence is read last: a later local fence may have other changes under the same sequence. */
        uint32_t seen = __atomic_load_n(&bucket->changed, __ATOMIC_ACQUIRE);
        int is_stable = load(&bucket->high_watermark) >= sequence;
        if (load(&bucket->local_fence) != local_fence) {
            wan_lock_take(&bucket->lock);
            const wan_status status = became_of(bucket, local_fence, sequence);
            wan_lock_release(&bucket->lock);
            return status;
        }
        if (is_stable) return WAN_OK;
        uint64_t now = wan_monotonic_us();
        if (!until) until = now + (uint64_t)timeout_ms * 1000;
        if (now >= until) return WAN_EMPTY;
        __atomic_fetch_add(&bucket->waiters, 1, __ATOMIC_SEQ_CST);
        if (load(&bucket->high_watermark) < sequence && load(&bucket->local_fence) == local_fence)
            wan_wait_change(&bucket->changed, seen, (uint32_t)((until - now) / 1000 + 1));
        __atomic_fetch_sub(&bucket->waiters, 1, __ATOMIC_SEQ_CST);
    }
}

uint32_t wan_changelog_made_with(wan_changelog *changelog, uint32_t number, uint64_t sequence, int is_repeat)
{
    if (changelog->min_isr <= 1) return 0;
    wan_changelog_bucket *bucket = &changelog->buckets[number];
    uint32_t replicas = 0;
    wan_lock_take(&bucket->lock);
    if (is_repeat && in_sync_replicas(bucket) + 1 < changelog->min_isr) replicas = in_sync_replicas(bucket) + 1;
    const uint32_t kept = bucket->under_replicated_count < WAN_UNDER_REPLICATED_MAX ? bucket->under_replicated_count
                                                                                    : WAN_UNDER_REPLICATED_MAX;
    for (uint32_t n = 0; n < kept; n++)
        if (bucket->under_replicated[n].first <= sequence && sequence <= bucket->under_replicated[n].last)
            replicas = bucket->under_replicated[n].replicas;
    wan_lock_release(&bucket->lock);
    return replicas;
}

wan_status wan_changelog_add_pending(wan_changelog *changelog, uint32_t number, wan_pending_call *pending)
{
    wan_changelog_bucket *bucket = &changelog->buckets[number];
    pending->is_waiting = 0;
    wan_lock_take(&bucket->lock);
    const wan_status status = became_of(bucket, pending->local_fence, pending->sequence);
    if (status == WAN_EMPTY) { /* Most calls come in the order of their sequences, so the search begins at the end. */
        wan_pending_call *before = bucket->last_pending;
        while (before && before->sequence > pending->sequence) before = before->before;
        pending->before = before;
        pending->behind = before ? before->behind : bucket->first_pending;
        *(before ? &before->behind : &bucket->first_pending) = pending;
        *(pending->behind ? &pending->behind->before : &bucket->last_pending) = pending;
        pending->is_waiting = 1;
    }
    wan_lock_release(&bucket->lock);
    return status;
}

int wan_changelog_remove_pending(wan_changelog *changelog, uint32_t number, wan_pending_call *pending)
{
    wan_changelog_bucket *bucket = &changelog->buckets[number];
    wan_lock_take(&bucket->lock);
    const int waited = pending->is_waiting != 0;
    if (waited) unlink_pending(bucket, pending);
    wan_lock_release(&bucket->lock);
    return waited;
}

wan_pending_call *wan_waker_take(wan_waker *waker)
{
    return __atomic_exchange_n(&waker->ready, NULL, __ATOMIC_SEQ_CST);
}

void wan_waker_end(wan_waker *waker)
{
    while (__atomic_load_n(&waker->users, __ATOMIC_SEQ_CST)) sched_yield();
    waker->ready = NULL;
}

/* Roles and replicas. */

int wan_changelog_set_primary_until(wan_changelog *changelog, uint64_t until_us)
{
    int grew = 0;
    __atomic_store_n(&changelog->primary_until_us, until_us, __ATOMIC_SEQ_CST);
    if (!__atomic_exchange_n(&changelog->holds_back, 0, __ATOMIC_SEQ_CST)) return 0;
    for (uint32_t n = 0; n < changelog->bucket_count; n++) {
        wan_changelog_bucket *bucket = &changelog->buckets[n];
        wan_lock_take(&bucket->lock);
        if (raise_high_watermark(changelog, bucket)) {
            grew = 1;
            give_repl_links(changelog, bucket, 0); /* The replicas are informed. */
        }
        wan_lock_release(&bucket->lock);
    }
    return grew;
}

void wan_changelog_begin_at(wan_changelog *changelog, uint32_t number, uint64_t sequence)
{
    wan_changelog_bucket *bucket = &changelog->buckets[number];
    wan_lock_take(&bucket->lock);
    store(&bucket->log_end, sequence);
    store(&bucket->high_watermark, sequence);
    bucket->first = sequence + 1;
    wan_lock_release(&bucket->lock);
}

void wan_changelog_set_leader(wan_changelog *changelog, uint32_t number, uint32_t leader, int queue_only)
{
    wan_changelog_bucket *bucket = &changelog->buckets[number];
    wan_lock_take(&bucket->lock);
    bucket->leader = leader;
    __atomic_store_n(&bucket->queue_only, queue_only != 0, __ATOMIC_RELAXED);
    wan_lock_release(&bucket->lock);
}

void wan_changelog_set_holders(wan_changelog *changelog, uint32_t number, uint32_t *holders, uint32_t count)
{
    wan_changelog_bucket *bucket = &changelog->buckets[number];
    wan_lock_take(&bucket->lock);
    uint32_t *before = bucket->holders;
    bucket->holders = holders;
    bucket->holder_count = count;
    wan_lock_release(&bucket->lock);
    free(before);
}

/* A learner has become an in-sync replica. No member has removed events above the high watermark, and this replica has
 * all replicated changes. A received removal beyond `log_end` was never valid, and must not remove later events. */
static void bound_removal(wan_changelog *changelog, const wan_changelog_bucket *bucket)
{
    const wan_feeds *feeds = wan_changelog_feeds(changelog);
    for (uint32_t n = 0; feeds && n < feeds->count; n++) {
        wan_lock_take(feeds->items[n].lock);
        wan_queue_bound_removal(feeds->items[n].queue, feeds->items[n].first + number_of(changelog, bucket),
                                bucket->log_end);
        wan_lock_release(feeds->items[n].lock);
    }
}

void wan_changelog_set_role(wan_changelog *changelog, uint32_t number, uint8_t role, uint64_t timeline, uint64_t epoch,
                            uint64_t transfer)
{
    wan_changelog_bucket *bucket = &changelog->buckets[number];
    wan_lock_take(&bucket->lock);
    const uint8_t before = bucket->role;
    wan_notifications *notifications = wan_changelog_notifications(changelog);
    const int holds = role >= WAN_REPLICA_IN_SYNC;
    const int is_new_snapshot =
        role == WAN_REPLICA_LEARNER
        && (before != role || bucket->transfer != transfer || bucket->epoch != epoch || bucket->timeline != timeline);
    if ((!leads(role) || before == WAN_REPLICA_PRIMARY) && role != WAN_REPLICA_PRIMARY) forget_replicas(bucket);
    if (bucket->timeline != timeline || bucket->epoch != epoch)
        for (uint32_t n = 0; n < bucket->replica_count; n++) {
            wan_changelog_replica *replica = &bucket->replicas[n];
            replica->confirmed = replica->asked = 0;
            if (replica->state == WAN_FOLLOWER_WAITED && !replica->transfer) continue;
            replica->state = WAN_FOLLOWER_LEARNING;
            replica->snapshot_shard = replica->snapshot_acked = replica->caught_up = replica->queued = 0;
            replica->behind_us = 0;
        }
    if (bucket->timeline != timeline || is_new_snapshot || role == WAN_REPLICA_ABSENT
        || (leads(before) && !leads(role))) {
        bucket->high_watermark_before = leads(before) ? bucket->high_watermark : 0;
        store(&bucket->local_fence, bucket->local_fence + 1);
        if (bucket->timeline != timeline || is_new_snapshot || role == WAN_REPLICA_ABSENT)
            bucket->under_replicated_count = 0;
    }
    if (bucket->timeline != timeline || bucket->epoch != epoch) store(&bucket->contact, 0);
    const int drops = is_new_snapshot || !(holds || role == WAN_REPLICA_LEARNER),
              is_new_timeline = bucket->timeline != timeline;
    if (notifications && !leads(before) != !leads(role)) wan_notifications_turn(notifications, number);
    __atomic_store_n(&bucket->role, role, __ATOMIC_RELEASE);
    store(&bucket->timeline, timeline);
    store(&bucket->epoch, epoch);
    bucket->transfer = transfer;
    if (drops) {
        bucket->learned = 0;
        store(&bucket->high_watermark, 0);
        store(&bucket->log_end, 0);
        drop_all(bucket);
        if (notifications) wan_notifications_forget(notifications, number);
        wan_answers_close(&bucket->answers);
        uint32_t shards = changelog->shard_count / changelog->bucket_count;
        for (uint32_t n = 0; n < shards; n++) store(&changelog->shard_last[(uint64_t)number * shards + n], 0);
    }
    if (drops || is_new_timeline) turn_streams(changelog, number, timeline, drops);
    if (before == WAN_REPLICA_LEARNER && holds) bound_removal(changelog, bucket);
    if (role == WAN_REPLICA_PRIMARY) {
        raise_high_watermark(changelog, bucket);
        let_notify(changelog, bucket); /* Replicated under an earlier primary, without notification of listeners. */
        give_repl_links(changelog, bucket, 0);
    }
    count_learners(bucket);
    if (role == WAN_REPLICA_ABSENT) let_go(changelog, bucket);
    else wan_changelog_charge(changelog, bucket);
    __atomic_fetch_add(&bucket->changed, 1, __ATOMIC_SEQ_CST);
    wake_waiters(bucket);
    while (bucket->last_pending && bucket->last_pending->sequence == WAN_PENDING_UNTIL_ROLE)
        make_ready(bucket, bucket->last_pending);
    wan_lock_release(&bucket->lock);
}

static const wan_changelog_replica *find_replica(const wan_changelog_bucket *bucket, uint32_t repl_link)
{
    for (uint32_t n = 0; n < bucket->replica_count; n++)
        if (bucket->replicas[n].repl_link == repl_link) return &bucket->replicas[n];
    return NULL;
}

wan_status wan_changelog_set_replicas(wan_changelog *changelog, uint32_t number, const wan_changelog_replica *replicas,
                                      uint32_t count)
{
    wan_changelog_bucket *bucket = &changelog->buckets[number];
    wan_changelog_replica *fresh = count ? calloc(count, sizeof *fresh) : NULL;
    if (count && !fresh) return WAN_FAIL(WAN_NO_MEMORY, "no memory for the replicas of bucket %" PRIu32, number);
    wan_lock_take(&bucket->lock);
    for (uint32_t n = 0; n < count; n++) {
        const wan_changelog_replica *given = &replicas[n], *known = find_replica(bucket, given->repl_link);
        /* A learner that is in sync now has no transfer any more, and is the same replica. */
        if (known && (known->transfer == given->transfer || given->state == WAN_FOLLOWER_WAITED)) {
            fresh[n] = *known;
            fresh[n].refused = 0;
        } else {
            fresh[n].repl_link = given->repl_link;
            /* The stream of a learner includes all changes that any in-sync replica may lack: an in-sync replica may
             * have to fetch these changes from the learner. */
            uint64_t acked = given->state == WAN_FOLLOWER_WAITED ? given->acked : bucket->high_watermark;
            fresh[n].sent = fresh[n].acked = acked < bucket->log_end ? acked : bucket->log_end;
            fresh[n].snapshot_shard = given->state == WAN_FOLLOWER_WAITED ? WAN_SNAPSHOT_DONE : 0;
        }
        /* A waited learner stays waited, even before the coordinator knows about its snapshot. */
        fresh[n].state = fresh[n].snapshot_acked && given->transfer ? WAN_FOLLOWER_WAITED : given->state;
        fresh[n].transfer = given->transfer;
        fresh[n].queue_only = given->queue_only;
    }
    free(bucket->replicas);
    bucket->replicas = fresh;
    bucket->replica_count = count;
    count_learners(bucket);
    raise_high_watermark(changelog, bucket);
    give_repl_links(changelog, bucket, 0);
    wan_lock_release(&bucket->lock);
    return WAN_OK;
}

int wan_changelog_may_read(wan_changelog *changelog, uint32_t number, uint64_t now_us)
{
    wan_changelog_bucket *bucket = &changelog->buckets[number];
    wan_lock_take(&bucket->lock);
    /* During a takeover the bucket has forgotten its replicas, or has not received all of them. */
    int may = bucket->role == WAN_REPLICA_PRIMARY || bucket->role == WAN_REPLICA_IN_SYNC;
    for (uint32_t n = 0; n < bucket->replica_count; n++) {
        const wan_changelog_replica *replica = &bucket->replicas[n];
        if (replica->state != WAN_FOLLOWER_WAITED) continue;
        wan_repl_link_state *state = __atomic_load_n(&changelog->repl_links[replica->repl_link], __ATOMIC_ACQUIRE);
        if (replica->confirmed && state && load(&state->read_lease_until_us) > now_us) continue;
        may = 0;
        if (state) {
            __atomic_store_n(&state->wants_read_lease, 1, __ATOMIC_SEQ_CST);
            wan_repl_link_wake(state);
        }
    }
    may = may
          && (bucket->role == WAN_REPLICA_IN_SYNC ? load(&changelog->lease_until_us) > now_us
                                                  : is_in_time(changelog, now_us));
    wan_lock_release(&bucket->lock);
    return may;
}

/* A replica's changes. */

wan_status wan_changelog_follow(wan_changelog *changelog, uint32_t number, uint64_t timeline, uint64_t epoch,
                                uint64_t sequence, const wan_changelog_entry *entry, wan_changelog_reservation *room)
{
    wan_changelog_bucket *bucket = &changelog->buckets[number];
    wan_lock_take(&bucket->lock);
    wan_status status = WAN_OK;
    const uint8_t role = bucket->role;
    if (bucket->timeline != timeline || bucket->epoch != epoch
        || (role != WAN_REPLICA_IN_SYNC && role != WAN_REPLICA_LEARNER && role != WAN_REPLICA_TAKING_OVER))
        status = WAN_NOT_PRIMARY;
    else if (role == WAN_REPLICA_LEARNER && bucket->log_end == 0 && sequence > 0) {
        store(&bucket->log_end, sequence - 1); /* The stream of a learner begins anywhere. */
        store(&bucket->high_watermark, sequence - 1);
        bucket->first = sequence;
    }
    if (status == WAN_OK && sequence <= bucket->log_end) status = WAN_EMPTY;
    else if (status == WAN_OK && sequence != bucket->log_end + 1) status = WAN_INVALID;
    if (status == WAN_OK) status = make_room(bucket, entry->length, room);
    if (status != WAN_OK) wan_lock_release(&bucket->lock);
    return status;
}

void wan_changelog_followed(wan_changelog *changelog, wan_changelog_reservation *room, const wan_changelog_entry *entry,
                            uint32_t shard)
{
    wan_changelog_bucket *bucket = room->bucket;
    memcpy(room->at, entry, room->length);
    bucket->changes.used += room->length;
    store(&bucket->log_end, bucket->log_end + 1);
    if (!bucket->queue_only) remember(bucket, entry, bucket->log_end);
    note_change(changelog, bucket, shard, bucket->log_end);
}

void wan_changelog_follow_end(wan_changelog *changelog, wan_changelog_reservation *room)
{
    wan_changelog_charge(changelog, room->bucket);
    wan_lock_release(&room->bucket->lock);
}

void wan_changelog_told(wan_changelog *changelog, uint32_t number, uint64_t timeline, uint64_t epoch,
                        uint64_t high_watermark, uint64_t notified, uint64_t contact)
{
    wan_changelog_bucket *bucket = &changelog->buckets[number];
    wan_notifications *keeper = wan_changelog_notifications(changelog);
    wan_lock_take(&bucket->lock);
    if (bucket->timeline == timeline && bucket->epoch == epoch && !leads(bucket->role)) {
        store(&bucket->contact, contact);
        if (high_watermark > bucket->log_end) high_watermark = bucket->log_end;
        if (notified > bucket->log_end)
            notified = bucket->log_end; /* Listeners were never notified of a change that is still to come. */
        if (high_watermark > bucket->high_watermark) {
            store(&bucket->high_watermark, high_watermark);
            drop_through(bucket, high_watermark);
            wan_changelog_charge(changelog, bucket);
            wake_waiters(bucket);
            let_notify(changelog, bucket);
        }
        if (keeper) wan_notifications_pass(keeper, number, notified);
    }
    wan_lock_release(&bucket->lock);
}

int wan_changelog_replica_may_answer(const wan_changelog *changelog, uint32_t number)
{
    return wan_changelog_role(changelog, number) == WAN_REPLICA_IN_SYNC
           && !wan_changelog_is_queue_only(changelog, number) && wan_changelog_lease_runs(changelog)
           && wan_contact_is_fresh(load(&changelog->buckets[number].contact));
}

/* The primary's side of replication links. */

int wan_changelog_acknowledged(wan_changelog *changelog, uint32_t number, uint32_t repl_link, uint64_t timeline,
                               uint64_t epoch, uint64_t sequence)
{
    wan_changelog_bucket *bucket = &changelog->buckets[number];
    int became = 0;
    wan_lock_take(&bucket->lock);
    wan_changelog_replica *replica = (wan_changelog_replica *)find_replica(bucket, repl_link);
    if (replica && bucket->timeline == timeline && bucket->epoch == epoch && leads(bucket->role)) {
        if (sequence > bucket->log_end) sequence = bucket->log_end;
        if (sequence > replica->acked) replica->acked = sequence;
        if (replica->acked > replica->sent) replica->sent = replica->acked;
        replica->confirmed = 1;
        if (raise_high_watermark(changelog, bucket)) {
            became = WAN_CHANGELOG_GREW;
            give_repl_links(changelog, bucket, 0); /* The replicas are informed. */
        }
        if (replica->snapshot_acked && !replica->caught_up && replica->acked >= bucket->high_watermark) {
            replica->caught_up = 1;
            became |= WAN_CHANGELOG_CAUGHT_UP;
        }
    }
    wan_lock_release(&bucket->lock);
    return became;
}

int wan_changelog_snapshot_acked(wan_changelog *changelog, uint32_t number, uint32_t repl_link, uint64_t timeline,
                                 uint64_t epoch, uint64_t transfer)
{
    wan_changelog_bucket *bucket = &changelog->buckets[number];
    wan_lock_take(&bucket->lock);
    wan_changelog_replica *replica = (wan_changelog_replica *)find_replica(bucket, repl_link);
    /* A new primary sends to its replicas before it becomes active, so a snapshot may be whole before that. */
    const int is_news = replica && bucket->timeline == timeline && bucket->epoch == epoch && leads(bucket->role)
                        && replica->state == WAN_FOLLOWER_LEARNING && replica->transfer == transfer
                        && replica->snapshot_shard == WAN_SNAPSHOT_DONE && !replica->refused;
    if (is_news) {
        replica->snapshot_acked = 1;
        replica->state = WAN_FOLLOWER_WAITED;
        count_learners(bucket);
    }
    wan_lock_release(&bucket->lock);
    return is_news;
}

uint64_t wan_changelog_behind(wan_changelog *changelog, uint32_t repl_link)
{
    uint64_t bytes = 0;
    for (uint32_t number = 0; number < changelog->bucket_count; number++) {
        wan_changelog_bucket *bucket = &changelog->buckets[number];
        wan_lock_take(&bucket->lock);
        const wan_changelog_replica *replica = find_replica(bucket, repl_link);
        if (replica && replica->acked < bucket->log_end) bytes += bucket->changes.used - bucket->changes.start;
        wan_lock_release(&bucket->lock);
    }
    return bytes;
}

void wan_changelog_rewind(wan_changelog *changelog, uint32_t repl_link)
{
    uint64_t *removals = __atomic_load_n(&changelog->removals[repl_link], __ATOMIC_ACQUIRE);
    if (removals && wan_changelog_feeds(changelog)) {
        for (uint32_t number = 0; number < changelog->bucket_count; number++) {
            set_removal(removals + words_of(changelog), number);
            set_removal(removals, number);
        }
        wan_lock_take(&changelog->repl_links_lock);
        note_repl_link(changelog, repl_link);
        wan_lock_release(&changelog->repl_links_lock);
    }
    for (uint32_t number = 0; number < changelog->bucket_count; number++) {
        wan_changelog_bucket *bucket = &changelog->buckets[number];
        wan_lock_take(&bucket->lock);
        wan_changelog_replica *replica = (wan_changelog_replica *)find_replica(bucket, repl_link);
        if (replica) {
            replica->sent = replica->acked;
            replica->told = replica->notified = 0;
            replica->confirmed = replica->asked = replica->queued = 0;
            replica->retry_us = 0;
            if (replica->state == WAN_FOLLOWER_LEARNING) replica->snapshot_shard = 0;
            give_repl_link(changelog, bucket, repl_link, 0);
        }
        wan_lock_release(&bucket->lock);
    }
}
