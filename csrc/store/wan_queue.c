/* Owns how a queue appends, peeks, removes, rewinds and conflates. */
#include "store/wan_queue_append.h"

#include "base/wan_hash.h"
#include "base/wan_thread.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>

static wan_status check_partitions(uint32_t partitions)
{
    if (partitions > 0 && partitions <= WAN_PARTITIONS_MAX) return WAN_OK;
    return WAN_FAIL(WAN_INVALID, "a queue has 1 to %u partitions, not %" PRIu32, WAN_PARTITIONS_MAX, partitions);
}

wan_status wan_queue_init(wan_queue *queue, const wan_env *env, const char *directory, uint64_t memory_limit,
                          uint32_t partitions, int conflate)
{
    wan_store *store = NULL;
    memset(queue, 0, sizeof *queue);
    wan_status status = check_partitions(partitions);
    if (status == WAN_OK) status = wan_store_new(env, directory, memory_limit, &store);
    if (status != WAN_OK) return status;
    status = wan_queue_init_in(queue, store, partitions, conflate);
    wan_store_release(store); /* The queue holds it now, unless that failed. */
    return status;
}

#define PARTITIONS_BYTES (WAN_PARTITIONS_MAX * sizeof(wan_partition))

/* Gives memory to the partitions up to `count`. What had none before is zero. */
static wan_status back_partitions(wan_queue *queue, uint32_t count)
{
    if (!mprotect(queue->partitions, count * sizeof *queue->partitions, PROT_READ | PROT_WRITE)) return WAN_OK;
    return WAN_FAIL(WAN_NO_MEMORY, "no memory for %" PRIu32 " partitions", count);
}

wan_status wan_queue_init_in(wan_queue *queue, wan_store *store, uint32_t partitions, int conflate)
{
    memset(queue, 0, sizeof *queue);
    wan_status status = check_partitions(partitions);
    if (status != WAN_OK) return status;
    /* Addresses without memory, for all that may come: the partitions must not move. */
    void *place = mmap(NULL, PARTITIONS_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED) return WAN_FAIL(WAN_NO_MEMORY, "no memory for %" PRIu32 " partitions", partitions);
    queue->partitions = place;
    status = back_partitions(queue, partitions);
    if (status != WAN_OK) {
        (void)munmap(place, PARTITIONS_BYTES);
        queue->partitions = NULL;
        return status;
    }
    for (uint32_t n = 0; n < partitions; n++) queue->partitions[n].leads = 1;
    queue->store = store;
    queue->blocks.holds_blocks = 1;
    queue->own_count = queue->partition_count = partitions;
    queue->conflate = (uint8_t)(conflate != 0);
    wan_store_hold(store);
    return WAN_OK;
}

void wan_queue_keep_arrivals(wan_queue *queue) { queue->keeps_arrivals = 1; }

static void give_back(wan_queue *queue);

void wan_queue_close(wan_queue *queue)
{
    if (queue->store) wan_queue_let_go(queue, 0, 1);
    if (queue->store && !wan_store_is_own(queue->store)) give_back(queue);
    for (uint32_t n = 0; n < queue->partition_count; n++) {
        free(queue->partitions[n].blocks);
        free(queue->partitions[n].index);
        wan_queue_close_exceptions(&queue->partitions[n]);
    }
    if (queue->partitions) (void)munmap(queue->partitions, PARTITIONS_BYTES);
    free(queue->runs);
    if (queue->store) wan_store_release(queue->store);
    memset(queue, 0, sizeof *queue);
}

/* Blocks of entries: 512 entries of a partition each. */

wan_status wan_queue_add_block(wan_queue *queue, wan_partition *partition, uint64_t number)
{
    uint8_t *at;
    uint32_t segment;
    wan_status status = wan_queue_block_room(partition);
    if (status == WAN_OK) status = wan_store_take(queue->store, &queue->blocks, block_bytes(partition), &at, &segment);
    if (status != WAN_OK) return status;
    if (WAN_UNLIKELY(partition->has_gaps)) memset(at, 0, block_bytes(partition)); /* Holes may come first in it. */
    wan_queue_put_block(partition, number, at, segment);
    return WAN_OK;
}

static void give_block(wan_queue *queue, const wan_partition *partition, wan_block *block)
{
    if (block->entries) wan_store_give(queue->store, &queue->blocks, block->segment, block_bytes(partition));
    block->entries = NULL;
}

/* Gives back everything in the store that this queue refers to. Other queues go on with the store. */
static void give_back(wan_queue *queue)
{
    for (uint32_t n = 0; n < queue->partition_count; n++) {
        wan_partition *partition = &queue->partitions[n];
        for (uint64_t sequence = partition->removed;
             (sequence = wan_queue_next_live(partition, sequence + 1, partition->appended));) {
            const wan_entry_ref ref = *entry_of(partition, sequence);
            wan_store_give(queue->store, &queue->records, ref_segment(ref), ref_length(queue->store, ref));
        }
        for (uint64_t at = 0; at < partition->block_count; at++) give_block(queue, partition, nth_block(partition, at));
    }
    wan_store_end_lease(queue->store, &queue->records);
    wan_store_end_lease(queue->store, &queue->blocks);
}

static void drop_first_block(wan_queue *queue, wan_partition *partition)
{
    give_block(queue, partition, nth_block(partition, 0));
    partition->ring_at++;
    partition->block_count--;
    partition->first_block = partition->block_count ? nth_block(partition, 0)->number : partition->first_block + 1;
}

/* Drops the blocks of which everything was removed. */
static void drop_passed_blocks(wan_queue *queue, wan_partition *partition)
{
    while (partition->block_count && partition->first_block < partition->removed / WAN_BLOCK_ENTRIES)
        drop_first_block(queue, partition);
    wan_queue_close_gaps(partition);
}

static void drop_blocks(wan_queue *queue, wan_partition *partition)
{
    while (partition->block_count) drop_first_block(queue, partition);
    partition->has_gaps = 0;
}

/* An empty partition keeps its block in memory for the next event. It gives back a block that lies in a file. */
void wan_queue_unpin_file(wan_queue *queue, wan_partition *partition)
{
    if (partition->removed != partition->appended || !partition->block_count) return;
    const wan_block *block = nth_block(partition, 0);
    if (block->entries && wan_store_segment(queue->store, block->segment)->is_file) drop_first_block(queue, partition);
}

/* Conflation. The index has one slot for each key, for its newest update in the queue. The slot of an event that has
 * left is recognized when it is met, because its sequence is not above `peeked`. Growing the index drops such slots. */

static inline uint64_t conflation_hash(const wan_record *record)
{
    return wan_secret_hash(wan_record_key(record), record->key_length,
                           record->key_form | (uint64_t)record->region << 8);
}

void wan_queue_forget_index(wan_partition *partition)
{
    free(partition->index);
    partition->index = NULL;
    partition->index_mask = partition->index_used = 0;
}

wan_status wan_queue_grow_index(wan_partition *partition, uint32_t more)
{
    uint64_t valid = 0;
    /* A rewind may bring back events that were peeked, so their slots stay. */
    for (uint64_t n = 0; partition->index && n <= partition->index_mask; n++)
        valid += partition->index[n].sequence > partition->removed;
    uint64_t capacity = 64;
    /* The index is at most half full after it grew, and three quarters full before it grows. Both count the `more` keys
     * that are about to come. */
    while (capacity < (valid + more) * 2) capacity *= 2;
    wan_index_slot *index = calloc(capacity, sizeof *index);
    if (!index) return WAN_FAIL(WAN_NO_MEMORY, "no memory for a conflation index of %" PRIu64 " keys", capacity);
    for (uint64_t n = 0; partition->index && n <= partition->index_mask; n++) {
        wan_index_slot slot = partition->index[n];
        if (slot.sequence <= partition->removed) continue;
        uint64_t to = slot.hash & (capacity - 1);
        while (index[to].sequence) to = (to + 1) & (capacity - 1);
        index[to] = slot;
    }
    free(partition->index);
    partition->index = index;
    partition->index_mask = capacity - 1;
    partition->index_used = valid;
    return WAN_OK;
}

static int same_key(const wan_record *a, const wan_record *b)
{
    return a->region == b->region && a->key_length == b->key_length && a->key_form == b->key_form
           && memcmp(wan_record_key(a), wan_record_key(b), a->key_length) == 0;
}

static void make_hole(wan_queue *queue, wan_partition *partition, uint64_t sequence, uint32_t reason);
static void drop_front_holes(wan_queue *queue, wan_partition *partition);

/* Takes out the older update of the same key. Only updates take part: creates and destroys always travel. What was
 * peeked stays. An update whose key has an update of a later version behind it can go without changing the key's final
 * value. Nothing is moved here, so the caller may still read the record. */
void wan_queue_conflate_with(wan_queue *queue, wan_partition *partition, uint64_t sequence, const wan_record *record)
{
    if (record->operation != WAN_UPDATE) return;
    uint64_t hash = conflation_hash(record);
    wan_index_slot *slot;
    for (uint64_t at = hash & partition->index_mask;; at = (at + 1) & partition->index_mask) {
        slot = &partition->index[at];
        if (!slot->sequence) {
            partition->index_used++;
            break;
        }
        if (slot->hash != hash) continue;
        if (slot->sequence <= partition->peeked) break; /* That event is on its way or gone. Its slot serves again. */
        wan_entry_ref ref = *entry_of(partition, slot->sequence);
        if (!is_live(ref)) break;
        const wan_record *older = ref_record(queue->store, ref);
        if (!same_key(older, record)) continue;
        /* The older record has the later version, for instance because it was parked and replayed. It stays, and it is
         * the one that a later update replaces. */
        if (wan_record_order(older, record) > 0) return;
        if (queue->superseded && slot->sequence <= partition->taken) { /* Without memory for the note both travel. */
            (void)wan_buffer_add(
                queue->superseded,
                &(wan_hole){(uint32_t)(partition - queue->partitions), WAN_HOLE_CONFLATED, slot->sequence},
                sizeof(wan_hole));
        } else { /* The disk gets both in one block, or the newer one later. */
            partition->replaced_by = sequence;
            make_hole(queue, partition, slot->sequence, WAN_HOLE_CONFLATED);
            queue->conflated++;
        }
        break;
    }
    slot->hash = hash;
    slot->sequence = sequence;
}

/* Appending. */

/* Gives back an entry block that the failed reservation took, if the store is beyond its limit. */
static void give_unused_block(wan_queue *queue, wan_partition *partition)
{
    if (WAN_LIKELY(!wan_store_is_over(queue->store)) || !partition->block_count) return;
    wan_block *newest = nth_block(partition, partition->block_count - 1);
    if (newest->number * WAN_BLOCK_ENTRIES < partition->appended) return;
    give_block(queue, partition, newest);
    partition->block_count--;
}

void wan_queue_give_room(wan_queue *queue, wan_partition *partition)
{
    wan_queue_unpin_file(queue, partition);
    give_unused_block(queue, partition);
}

wan_status wan_queue_reserve(wan_queue *queue, uint32_t number, uint64_t length, wan_reservation *reservation)
{
    return wan_queue_reserve_inline(queue, number, length, reservation);
}

wan_status wan_queue_reserve_beyond(wan_queue *queue, uint32_t number, uint64_t sequence, uint64_t length,
                                    wan_reservation *reservation)
{
    const wan_store *store = queue->store;
    if (wan_store_is_over(store) || length > store->memory_limit)
        return WAN_FAIL(WAN_FULL,
                        "the queue is over its memory limit of %" PRIu64
                        " bytes with what is on its way, and has no more room",
                        store->memory_limit);
    queue->records.may_pass_limit = queue->blocks.may_pass_limit = 1;
    wan_status status = sequence ? wan_queue_reserve_at(queue, number, sequence, length, reservation)
                                 : wan_queue_reserve(queue, number, length, reservation);
    queue->records.may_pass_limit = queue->blocks.may_pass_limit = 0;
    if (status == WAN_OK) reservation->beyond = 1;
    return status;
}

wan_status wan_queue_reserve_at(wan_queue *queue, uint32_t number, uint64_t sequence, uint64_t length,
                                wan_reservation *reservation)
{
    wan_partition *partition = &queue->partitions[number];
    if (WAN_UNLIKELY(queue->broken != NULL)) return wan_refuse_broken(queue->broken);
    WAN_CHECK(queue, sequence > partition->appended, WAN_BROKEN);
    wan_queue_skip_to(partition, sequence - 1);
    return wan_queue_reserve_inline(queue, number, length, reservation);
}

wan_status wan_queue_reserve_reference(wan_queue *queue, uint32_t number, wan_reservation *reservation)
{
    wan_partition *partition = &queue->partitions[number];
    if (WAN_UNLIKELY(queue->broken != NULL)) return wan_refuse_broken(queue->broken);
    wan_queue_tidy(queue);
    wan_status status = entry_room(queue, partition);
    if (status != WAN_OK) {
        wan_queue_give_room(queue, partition);
        return status;
    }
    *reservation = (wan_reservation){.partition = number};
    return WAN_OK;
}

void wan_queue_cancel(wan_queue *queue, wan_reservation *reservation)
{
    if (reservation->length) wan_store_untake(queue->store, &queue->records, reservation->segment, reservation->length);
    wan_queue_give_room(queue, &queue->partitions[reservation->partition]);
}

void wan_queue_commit(wan_queue *queue, wan_reservation *reservation) { wan_queue_commit_inline(queue, reservation); }

wan_status wan_queue_commit_reference(wan_queue *queue, wan_reservation *reservation, const wan_queue *from,
                                      uint32_t number, uint64_t sequence)
{
    const wan_partition *partition = &from->partitions[number];
    if (WAN_UNLIKELY(queue->broken != NULL)) return wan_refuse_broken(queue->broken);
    WAN_CHECK(queue, queue->store == from->store, WAN_BROKEN);
    WAN_CHECK(queue, sequence > partition->removed && sequence <= partition->appended, WAN_BROKEN);
    const wan_entry_ref ref = *entry_of(partition, sequence);
    WAN_CHECK(queue, is_live(ref), WAN_BROKEN);
    const wan_record *record = ref_record(queue->store, ref);
    reservation->length = ref_length(queue->store, ref);
    wan_store_refer(queue->store, &queue->records, ref_segment(ref), reservation->length);
    wan_queue_append_entry(queue, reservation, ref, record);
    return WAN_OK;
}

/* Such a short record never stands alone in its segment. So the run can go on behind it. */
_Static_assert(2 * WAN_RUN_RECORD_BYTES_MAX <= WAN_SEGMENT_BYTES, "a run begins in a segment that is lent");

wan_status wan_queue_open_run(wan_queue *queue, uint64_t least, wan_run *run)
{
    if (WAN_UNLIKELY(queue->broken != NULL)) return wan_refuse_broken(queue->broken);
    WAN_CHECK(queue, least <= WAN_RUN_RECORD_BYTES_MAX, WAN_BROKEN);
    wan_queue_tidy(queue);
    wan_status status = wan_store_take(queue->store, &queue->records, least, &run->at, &run->segment);
    if (status != WAN_OK) return status;
    WAN_DEBUG_CHECK(run->segment == queue->records.segment);
    /* The segment stays lent even if nothing lives in it. The end of the run looks at that. */
    queue->records.used -= (uint32_t)least;
    queue->records.live -= (uint32_t)least;
    run->room = queue->records.bytes - queue->records.used;
    return WAN_OK;
}

wan_status wan_queue_room_for_entries(wan_queue *queue, uint32_t number, uint32_t count)
{
    if (WAN_UNLIKELY(queue->broken != NULL)) return wan_refuse_broken(queue->broken);
    WAN_CHECK(queue, count > 0 && count <= WAN_BLOCK_ENTRIES, WAN_BROKEN);
    wan_partition *partition = &queue->partitions[number];
    uint64_t last = (partition->appended + count - 1) / WAN_BLOCK_ENTRIES;
    wan_status status = entry_room(queue, partition);
    if (status == WAN_OK && !has_block(partition, last)) status = wan_queue_add_block(queue, partition, last);
    if (status == WAN_OK && queue->conflate && (partition->index_used + count) * 4 >= partition->index_mask * 3)
        status = wan_queue_grow_index(partition, count);
    if (status != WAN_OK) wan_queue_give_room(queue, partition);
    return status;
}

uint32_t wan_queue_append_run(wan_queue *queue, const wan_run *run, const uint32_t *lengths, const uint16_t *partitions,
                              uint32_t count, uint64_t *sequences)
{
    wan_lease *lease = &queue->records;
    const uint8_t *at = run->at;
    uint64_t offset = (uint64_t)(at - lease->base), whole = 0;
    uint32_t done = 0;
    if (WAN_UNLIKELY(queue->broken != NULL)) count = 0;
    for (uint32_t n = 0; n < count; n++) whole += lengths[n];
    WAN_DEBUG_CHECK(whole <= run->room && lease->segment == run->segment && lease->used == offset);
    /* All of it counts as live first, because the record that it conflates may be the last one that lives there. */
    lease->used += (uint32_t)whole;
    lease->live += (uint32_t)whole;
    while (done < count) {
        uint32_t number = partitions ? partitions[done] : 0;
        wan_partition *partition = &queue->partitions[number];
        if (entry_room(queue, partition) != WAN_OK) break;
        /* Takes all records that follow in the same partition and in the same block of entries. */
        uint64_t sequence = partition->appended;
        uint32_t in_block = (uint32_t)(sequence % WAN_BLOCK_ENTRIES), n = 0;
        wan_block *block = block_of(partition, sequence + 1);
        const uint8_t *first = at;
        WAN_DEBUG_CHECK(!partition->has_arrivals);
        do {
            WAN_DEBUG_CHECK(wan_record_length((const wan_record *)at) == lengths[done]);
            block->entries[in_block + n] = make_ref(run->segment, offset, lengths[done]);
            at += lengths[done];
            offset += lengths[done];
            n++;
            if (sequences) sequences[done] = sequence + n;
            done++;
        } while (done < count && in_block + n < WAN_BLOCK_ENTRIES && !queue->conflate
                 && (!partitions || partitions[done] == number));
        uint64_t bytes = (uint64_t)(at - first);
        block->live += n;
        partition->appended += n;
        partition->events += n;
        partition->unpeeked += n;
        partition->unstable_events += partition_waits(queue, partition) ? n : 0;
        partition->bytes += bytes;
        wan_add_guarded(&queue->events, n);
        wan_add_guarded(&queue->bytes, bytes);
        whole -= bytes;
        if (queue->conflate) wan_queue_conflate_with(queue, partition, sequence + 1, (const wan_record *)first);
        check_positions(partition);
    }
    wan_store_untake(queue->store, lease, run->segment, whole);
    return done;
}

wan_record *wan_queue_at(const wan_queue *queue, const wan_partition *partition, uint64_t sequence)
{
    WAN_DEBUG_CHECK(sequence > partition->removed && sequence <= partition->appended);
    wan_entry_ref ref = *entry_of(partition, sequence);
    return is_live(ref) ? ref_record(queue->store, ref) : NULL;
}

uint64_t wan_queue_next_live(const wan_partition *partition, uint64_t from, uint64_t through)
{
    while (from <= through) {
        const wan_block *block = block_of(partition, from);
        uint64_t end = block_end(partition, from);
        if (end > through) end = through;
        if (block->entries && block->live) {
            for (; from <= end; from++)
                if (is_live(block->entries[(from - 1) % WAN_BLOCK_ENTRIES])) return from;
        }
        from = end + 1;
    }
    return 0;
}

uint64_t wan_queue_count_live(const wan_partition *partition, uint64_t from, uint64_t through)
{
    uint64_t count = 0;
    while (from <= through) {
        const wan_block *block = block_of(partition, from);
        uint64_t end = block_end(partition, from);
        if (end > through) end = through;
        const int has_entries = block->entries && block->live;
        const wan_entry_ref *entry = has_entries ? &block->entries[(from - 1) % WAN_BLOCK_ENTRIES] : NULL;
        for (uint64_t n = from; entry && n <= end; n++) count += (uint64_t)is_live(*entry++);
        from = end + 1;
    }
    return count;
}

wan_record *wan_queue_oldest(wan_queue *queue, uint32_t number)
{
    wan_partition *partition = &queue->partitions[number];
    if (!partition->events) return NULL;
    uint64_t known = partition->known_holes > partition->removed ? partition->known_holes : partition->removed;
    uint64_t sequence = wan_queue_next_live(partition, known + 1, partition->appended);
    WAN_CHECK(queue, sequence, NULL);
    if (!queue->broken) partition->known_holes = sequence - 1;
    return wan_queue_at(queue, partition, sequence);
}

uint32_t wan_queue_peek(wan_queue *queue, uint32_t number, uint32_t count, uint64_t bytes, int at_least_one,
                        wan_record **records, uint64_t *sequences, uint64_t *peeked_bytes)
{
    wan_partition *partition = &queue->partitions[number];
    uint32_t taken = 0;
    uint64_t taken_bytes = 0, peeked = partition->peeked;
    const uint64_t end = partition->leads ? stable_through(queue, partition) : peeked;
    /* The mapped file that all taken records lie in. 0: they lie in none. */
    uint32_t file = 0;
    int ends = queue->broken != NULL;
    const int adopted = wan_read(&queue->store->adopted_bytes) != 0;
    while (taken < count && peeked < end && !ends) { /* One block of entries in each round. */
        uint64_t in_block = peeked % WAN_BLOCK_ENTRIES, left = block_end(partition, peeked + 1) - peeked;
        if (left > end - peeked) left = end - peeked;
        const wan_entry_ref *entries = block_of(partition, peeked + 1)->entries;
        if (!entries) {
            peeked += left;
            continue;
        }
        for (const wan_entry_ref *entry = entries + in_block; left && taken < count; left--, entry++, peeked++) {
            wan_entry_ref ref = *entry;
            if (!is_live(ref)) continue;
            if (WAN_UNLIKELY(adopted)) {
                uint32_t here = wan_store_segment(queue->store, ref_segment(ref))->is_adopted ? ref_segment(ref) : 0;
                ends = taken && here != file;
                if (ends) break;
                file = here;
            }
            uint64_t length = ref_length(queue->store, ref);
            ends = (taken || !at_least_one) && taken_bytes + length > bytes;
            if (WAN_UNLIKELY(ends)) break;
            taken_bytes += length;
            if (sequences) sequences[taken] = peeked + 1;
            records[taken++] = ref_record(queue->store, ref);
        }
    }
    /* If nothing was taken, holes alone must not move `peeked`. The receiver would miss them as a gap. */
    if (taken || !ends) partition->peeked = peeked;
    partition->unpeeked -= taken;
    *peeked_bytes = taken_bytes;
    check_positions(partition);
    return taken;
}

wan_store_span wan_queue_span(const wan_queue *queue, uint32_t number, uint64_t from, uint64_t through)
{
    const wan_partition *partition = &queue->partitions[number];
    wan_store_span span = {0};
    if (WAN_LIKELY(!wan_read(&queue->store->adopted_bytes))) return span;
    for (; (from = wan_queue_next_live(partition, from, through)); from++) {
        wan_entry_ref ref = *entry_of(partition, from);
        const wan_segment *segment = wan_store_segment(queue->store, ref_segment(ref));
        if (!segment->is_adopted) continue;
        uint64_t at = (uint64_t)((const uint8_t *)ref_record(queue->store, ref) - segment->base),
                 end = at + ref_length(queue->store, ref);
        if (!span.file) span = (wan_store_span){segment->file, segment->base, segment->bytes, at, end};
        WAN_DEBUG_CHECK(span.file == segment->file);
        if (at < span.from) span.from = at;
        if (end > span.to) span.to = end;
    }
    return span;
}

void wan_queue_lengths(const wan_queue *queue, uint32_t number, uint64_t from, uint64_t through, uint32_t *lengths)
{
    const wan_partition *partition = &queue->partitions[number];
    for (; (from = wan_queue_next_live(partition, from, through)); from++)
        *lengths++ = (uint32_t)ref_length(queue->store, *entry_of(partition, from));
}

wan_status wan_queue_copy(const wan_queue *queue, const wan_store_span *span, wan_record **records,
                          const uint32_t *lengths, uint32_t count, uint8_t *to)
{
    const wan_env *env = queue->store->env;
    struct iovec pieces[256];
    if (!env->copy) return WAN_OK;
    for (uint32_t at = 0; at < count;) {
        uint32_t used = 0, first = at;
        for (; at < count; at++) {
            if (used && (uint8_t *)pieces[used - 1].iov_base + pieces[used - 1].iov_len == (uint8_t *)records[at]) {
                pieces[used - 1].iov_len += lengths[at];
                continue;
            }
            if (used == sizeof pieces / sizeof *pieces) break;
            pieces[used++] = (struct iovec){records[at], lengths[at]};
        }
        wan_status status = env->copy(env, span->file, span->mapped, pieces, used, to);
        if (status != WAN_OK) return status;
        for (uint32_t n = first; n < at; n++) {
            records[n] = (wan_record *)to;
            to += lengths[n];
        }
    }
    return WAN_OK;
}

wan_status wan_queue_copy_span(const wan_queue *queue, const wan_store_span *span, uint8_t *to)
{
    const wan_env *env = queue->store->env;
    if (!env->copy) {
        memcpy(to, span->base + span->from, span->to - span->from);
        return WAN_OK;
    }
    return env->copy(env, span->file, span->mapped,
                     &(struct iovec){(void *)(span->base + span->from), span->to - span->from}, 1, to);
}

void wan_queue_unpeek(wan_queue *queue, uint32_t number, uint64_t peeked)
{
    wan_partition *partition = &queue->partitions[number];
    if (queue->broken) return;
    if (peeked > partition->peeked) return; /* The partition has begun anew since. */
    if (peeked < partition->removed) peeked = partition->removed;
    partition->unpeeked += wan_queue_count_live(partition, peeked + 1, partition->peeked);
    partition->peeked = peeked;
    drop_front_holes(queue, partition);
    check_positions(partition);
}

/* A block that is not the newest has no live entries any more, and gives its memory back. It keeps that while it has
 * holes for several reasons: those are near the front, and leave soon. */
static void give_dead_block(wan_queue *queue, const wan_partition *partition, wan_block *block)
{
    uint32_t reason = 0;
    if (partition->tell) {
        for (uint32_t n = 0; n < WAN_BLOCK_ENTRIES; n++) {
            const uint32_t each = (uint32_t)block->entries[n];
            if (each && reason && each != reason) return;
            if (each) reason = each;
        }
    }
    block->reason = reason;
    give_block(queue, partition, block);
}

static void forget_entry(wan_queue *queue, wan_partition *partition, uint64_t sequence, uint32_t reason)
{
    wan_entry_ref *entry = entry_of(partition, sequence);
    wan_block *block = block_of(partition, sequence);
    wan_entry_ref ref = *entry;
    uint64_t length = ref_length(queue->store, ref);
    *entry = partition->tell ? reason : 0;
    /* An old block without live entries gives its memory back. The newest block still takes entries. */
    if (--block->live == 0 && (sequence - 1) / WAN_BLOCK_ENTRIES < partition->appended / WAN_BLOCK_ENTRIES)
        give_dead_block(queue, partition, block);
    partition->events--;
    partition->bytes -= length;
    wan_add_guarded(&queue->events, -(uint64_t)1);
    wan_add_guarded(&queue->bytes, -length);
    wan_store_give(queue->store, &queue->records, ref_segment(ref), length);
}

/* Removes `count` entries of one block, or of one gap, from the sequence `first` on. Records that lie in the same
 * segment are given back together. Events through `dropped_through` leave for `reason`, and the others because they
 * were acknowledged. */
static void forget_run(wan_queue *queue, wan_partition *partition, uint64_t first, uint64_t count,
                       uint64_t dropped_through, uint32_t reason)
{
    wan_block *block = block_of(partition, first);
    if (!block->entries) {
        if (block->reason) wan_queue_note_exception(partition, first, count, block->reason);
        return;
    }
    wan_entry_ref *entry = &block->entries[(first - 1) % WAN_BLOCK_ENTRIES];
    uint64_t bytes = 0, together = 0, acknowledged = partition->acknowledged;
    uint32_t segment = 0, forgotten = 0;
    for (uint64_t n = 0; n < count; n++) {
        wan_entry_ref ref = entry[n];
        if (!ref) continue;
        if (!is_live(ref) || first + n <= dropped_through) {
            partition->acknowledged = acknowledged;
            wan_queue_note_exception(partition, first + n, 1, is_live(ref) ? reason : (uint32_t)ref);
            if (!is_live(ref)) {
                entry[n] = 0;
                continue;
            }
        } else acknowledged = first + n;
        uint64_t length = ref_length(queue->store, ref);
        if (ref_segment(ref) != segment) {
            if (together) wan_store_give(queue->store, &queue->records, segment, together);
            segment = ref_segment(ref);
            together = 0;
        }
        together += length;
        bytes += length;
        forgotten++;
        entry[n] = 0;
    }
    partition->acknowledged = acknowledged;
    if (!forgotten) return;
    wan_store_give(queue->store, &queue->records, segment, together);
    block->live -= forgotten;
    if (block->live == 0 && (first - 1) / WAN_BLOCK_ENTRIES < partition->appended / WAN_BLOCK_ENTRIES)
        give_dead_block(queue, partition, block);
    partition->events -= forgotten;
    partition->bytes -= bytes;
    wan_add_guarded(&queue->events, -(uint64_t)forgotten);
    wan_add_guarded(&queue->bytes, -bytes);
}

/* Tells that events of a stream have left. */
static inline void announce_removals(const wan_partition *partition)
{
    if (partition->tell) partition->tell(partition->teller, partition->bucket);
}

/* As wan_queue_remove. Nobody is told. Events through `dropped_through` leave for `reason`. */
static uint64_t remove_through(wan_queue *queue, wan_partition *partition, uint64_t through, uint64_t dropped_through,
                               uint32_t reason)
{
    if (queue->broken) return 0;
    WAN_CHECK(queue, through <= partition->peeked, 0);
    uint64_t before = partition->events;
    while (partition->removed < through) {
        uint64_t end = block_end(partition, partition->removed + 1);
        if (end > through) end = through;
        forget_run(queue, partition, partition->removed + 1, end - partition->removed, dropped_through, reason);
        partition->removed = end;
        drop_passed_blocks(queue, partition);
    }
    wan_queue_unpin_file(queue, partition);
    check_positions(partition);
    return before - partition->events;
}

uint64_t wan_queue_remove(wan_queue *queue, uint32_t number, uint64_t through)
{
    wan_partition *partition = &queue->partitions[number];
    const uint64_t removed = partition->removed, count = remove_through(queue, partition, through, 0, 0);
    if (partition->removed != removed) announce_removals(partition);
    drop_front_holes(queue, partition); /* The next event may have become a hole before it went again. */
    return count;
}

/* Removes holes at the very front at once, if nothing is on its way. The receiver is told that they are settled. And a
 * queue that conflates for days does not keep their entries. Where another member leads they stay: that one says when
 * they are settled, and until the replica is whole its snapshot may fill them. */
static void drop_front_holes(wan_queue *queue, wan_partition *partition)
{
    if (partition->peeked != partition->removed || !partition->leads) return;
    const uint64_t end = stable_through(queue, partition), removed = partition->removed;
    while (partition->removed < end) {
        const uint64_t first = partition->removed + 1;
        const wan_block *block = block_of(partition, first);
        const wan_entry_ref *entry = block->entries ? &block->entries[(first - 1) % WAN_BLOCK_ENTRIES] : NULL;
        if (entry && is_live(*entry)) break;
        uint64_t last = entry ? first : block_end(partition, first);
        if (last > end) last = end;
        const uint32_t reason = entry ? (uint32_t)*entry : block->reason;
        if (reason) wan_queue_note_exception(partition, first, last - partition->removed, reason);
        partition->peeked = partition->removed = last;
        drop_passed_blocks(queue, partition);
    }
    wan_queue_unpin_file(queue, partition);
    if (partition->removed != removed) announce_removals(partition);
}

static void make_hole(wan_queue *queue, wan_partition *partition, uint64_t sequence, uint32_t reason)
{
    if (queue->broken) return;
    WAN_CHECK(queue, sequence > partition->removed && sequence <= partition->appended);
    wan_entry_ref *entry = entry_of(partition, sequence);
    if (!is_live(*entry)) return;
    /* Without memory for the note, a crash brings the event back. That is an older update before its newer one, and
     * harms nothing. */
    if (queue->holes)
        (void)wan_buffer_add(queue->holes, &(wan_hole){(uint32_t)(partition - queue->partitions), reason, sequence},
                             sizeof(wan_hole));
    if (sequence > partition->peeked) partition->unpeeked--;
    if (partition_waits(queue, partition) && sequence > partition->stable) partition->unstable_events--;
    queue->hole_bytes += ref_length(queue->store, *entry);
    forget_entry(queue, partition, sequence, reason);
    if (sequence == partition->removed + 1) drop_front_holes(queue, partition);
    check_positions(partition);
}

void wan_queue_make_hole(wan_queue *queue, uint32_t number, uint64_t sequence, uint32_t reason)
{
    make_hole(queue, &queue->partitions[number], sequence, reason);
    wan_queue_tidy(queue);
}

void wan_queue_rewind(wan_queue *queue, uint32_t number)
{
    wan_partition *partition = &queue->partitions[number];
    if (queue->broken) return;
    if (partition->peeked > partition->duplicate_through) partition->duplicate_through = partition->peeked;
    partition->peeked = partition->removed;
    partition->unpeeked = partition->events;
    drop_front_holes(queue, partition);
    check_positions(partition);
}

/* Moves `counted` up to the last event that all have that the queue waits for. */
static void raise_stable(wan_queue *queue, wan_partition *partition)
{
    uint64_t end = partition->appended;
    if (queue->persistent && partition->durable < end) end = partition->durable;
    if (partition->stream) {
        const uint64_t high_watermark = __atomic_load_n(partition->stream, __ATOMIC_ACQUIRE);
        if (high_watermark < end) end = high_watermark;
    }
    if (partition->stable < end) {
        const uint64_t from = partition->stable > partition->removed ? partition->stable : partition->removed;
        partition->unstable_events -= wan_queue_count_live(partition, from + 1, end);
        partition->stable = end;
    }
    drop_front_holes(queue, partition);
    check_positions(partition);
}

void wan_queue_made_durable(wan_queue *queue, uint32_t number, uint64_t durable)
{
    wan_partition *partition = &queue->partitions[number];
    if (queue->broken) return;
    WAN_CHECK(queue, durable <= partition->appended);
    if (partition->durable < durable) partition->durable = durable;
    if (partition->taken < durable) partition->taken = durable;
    raise_stable(queue, partition);
}

static int is_empty(const wan_partition *partition)
{
    return !partition->events && partition->peeked == partition->removed;
}

/* Whether nothing feeds a run, and what it holds is of these timelines. */
static int may_go_on(const wan_queue *queue, const wan_stream_run *run, const uint64_t *timelines)
{
    for (uint32_t n = 0; n < run->buckets; n++) {
        const wan_partition *partition = &queue->partitions[run->first + n];
        if (partition->stream || (!is_empty(partition) && (!timelines || partition->timeline != timelines[n])))
            return 0;
    }
    return 1;
}

/* Makes a run at the end of the partitions. */
static wan_status make_run(wan_queue *queue, uint16_t region, uint32_t buckets, uint32_t align, uint32_t *first)
{
    const uint32_t begin = (queue->partition_count + align - 1) / align * align;
    if (begin > WAN_PARTITIONS_MAX || buckets > WAN_PARTITIONS_MAX - begin)
        return WAN_FAIL(WAN_INVALID,
                        "a queue has up to %u partitions: it has %" PRIu32 ", and a region with %" PRIu32
                        " buckets comes",
                        WAN_PARTITIONS_MAX, queue->partition_count, buckets);
    wan_stream_run *runs = realloc(queue->runs, (queue->run_count + 1ull) * sizeof *runs);
    if (!runs) return WAN_FAIL(WAN_NO_MEMORY, "no memory for %" PRIu32 " runs of streams", queue->run_count + 1);
    queue->runs = runs;
    wan_status status = back_partitions(queue, begin + buckets);
    if (status != WAN_OK) return status;
    for (uint32_t n = 0; n < buckets; n++) {
        queue->partitions[begin + n].region = region;
        queue->partitions[begin + n].bucket = n;
        queue->partitions[begin + n].has_arrivals = queue->keeps_arrivals;
    }
    runs[queue->run_count++] = (wan_stream_run){.first = begin, .buckets = buckets, .region = region};
    __atomic_store_n(&queue->partition_count, begin + buckets, __ATOMIC_RELEASE);
    *first = begin;
    return WAN_OK;
}

wan_status wan_queue_add_run(wan_queue *queue, uint16_t region, uint32_t buckets, uint32_t align,
                             const uint64_t *timelines, uint32_t *first)
{
    if (queue->broken) return wan_refuse_broken(queue->broken);
    for (uint32_t n = 0; n < queue->run_count; n++) {
        const wan_stream_run *run = &queue->runs[n];
        if (run->region != region || run->buckets != buckets || !may_go_on(queue, run, timelines)) continue;
        for (uint32_t bucket = 0; bucket < buckets; bucket++) {
            wan_partition *partition = &queue->partitions[run->first + bucket];
            if (is_empty(partition)) (void)wan_queue_begin_anew(queue, run->first + bucket, 0);
            partition->leads = 0;
        }
        *first = run->first;
        return WAN_OK;
    }
    return make_run(queue, region, buckets, align, first);
}

/* Forgets the events behind the high watermark. Their sequences are free again. If one of these events has replaced an
 * earlier one, the partition has a gap. */
static void forget_unstable(wan_queue *queue, wan_partition *partition)
{
    raise_stable(queue, partition);
    if (partition->replaced_by > partition->stable) partition->lacks = partition->stable;
    for (uint64_t sequence = partition->stable;
         (sequence = wan_queue_next_live(partition, sequence + 1, partition->appended));) {
        make_hole(queue, partition, sequence, 0);
        queue->forgotten++;
    }
    if (queue->broken || partition->stable == partition->appended) return;
    partition->appended = partition->stable;
    if (partition->explained > partition->appended) partition->explained = partition->appended;
    if (partition->duplicate_through > partition->appended) partition->duplicate_through = partition->appended;
    if (partition->known_holes > partition->appended) partition->known_holes = partition->appended;
    wan_queue_forget_index(partition); /* A slot must not seem to name a later event. */
    while (partition->block_count) {
        wan_block *newest = nth_block(partition, partition->block_count - 1);
        const uint64_t next = partition->appended / WAN_BLOCK_ENTRIES;
        if (newest->number < next || (newest->number == next && newest->entries)) break;
        /* The next event needs the entries of a block whose events are gone. */
        if (newest->number == next) partition->has_gaps = 1;
        give_block(queue, partition, newest);
        partition->block_count--;
    }
    check_positions(partition);
}

wan_status wan_queue_feed(wan_queue *queue, uint32_t number, const uint64_t *high_watermark, uint64_t timeline,
                          uint64_t last)
{
    wan_partition *partition = &queue->partitions[number];
    if (queue->broken) return wan_refuse_broken(queue->broken);
    if (!partition_waits(queue, partition)) partition->stable = partition->appended;
    if (!high_watermark && partition->stream) forget_unstable(queue, partition);
    partition->stream = high_watermark;
    if (partition->explained < partition->appended) partition->explained = partition->appended;
    if (high_watermark && !partition->appended) {
        drop_blocks(queue, partition); /* A reservation that was cancelled may have left one. */
        partition->removed = partition->peeked = partition->appended = partition->stable = partition->begun =
            partition->explained = last;
    }
    wan_queue_set_timeline(queue, number, timeline);
    raise_stable(queue, partition);
    return WAN_OK;
}

void wan_queue_send_rest(wan_queue *queue, uint32_t number, int is_whole)
{
    const wan_partition *partition = &queue->partitions[number];
    if (!is_whole || partition->lacks) (void)wan_queue_begin_anew(queue, number, partition->timeline);
    wan_queue_lead(queue, number, 1, 0);
}

void wan_queue_set_timeline(wan_queue *queue, uint32_t number, uint64_t timeline)
{
    wan_partition *partition = &queue->partitions[number];
    if (partition->timeline == timeline) return;
    partition->timeline = timeline;
    partition->removed_through = partition->unsure_through = 0;
    wan_queue_forget_exceptions(partition, 0);
    partition->explained = partition->removed;
}

void wan_queue_lead(wan_queue *queue, uint32_t number, int leads, int in_order)
{
    wan_partition *partition = &queue->partitions[number];
    leads = leads && !partition->lacks;
    if (queue->broken || partition->leads == leads) return;
    partition->leads = (uint8_t)leads;
    if (!leads) return;
    if (!in_order && partition->appended > partition->duplicate_through)
        partition->duplicate_through = partition->appended;
    drop_front_holes(queue, partition);
    check_positions(partition);
}

uint64_t wan_queue_count(wan_queue *queue, uint32_t number)
{
    wan_partition *partition = &queue->partitions[number];
    if (queue->broken || !partition->stream) return 0;
    const uint64_t before = wan_partition_ready(partition);
    raise_stable(queue, partition);
    return wan_partition_ready(partition) - before;
}

/* Drops all events through `through` <= appended that another member is done with. Nothing is on its way. Nobody knows
 * why those through `unsure_through` left. */
static uint64_t apply_removal(wan_queue *queue, wan_partition *partition, uint64_t through, uint64_t unsure_through)
{
    const uint64_t from = partition->stable > partition->peeked ? partition->stable : partition->peeked;
    if (from < through) {
        partition->unstable_events -= wan_queue_count_live(partition, from + 1, through);
        partition->stable = through;
    }
    if (partition->peeked < through) {
        partition->unpeeked -= wan_queue_count_live(partition, partition->peeked + 1, through);
        partition->peeked = through;
    }
    const uint64_t count = remove_through(queue, partition, partition->peeked, unsure_through, WAN_HOLE_UNKNOWN);
    queue->removed_by_primary += count;
    return count;
}

wan_status wan_queue_remove_through(wan_queue *queue, uint32_t number, uint64_t through)
{
    wan_partition *partition = &queue->partitions[number];
    if (queue->broken) return wan_refuse_broken(queue->broken);
    WAN_CHECK(queue, partition->peeked == partition->removed, WAN_BROKEN);
    if (partition->explained < through) partition->explained = through; /* A snapshot does not say why they left. */
    if (through > partition->appended && partition->removed == partition->appended) { /* There is nothing between. */
        drop_blocks(queue, partition);
        partition->removed = partition->peeked = partition->appended = through;
        if (partition->stable < through) partition->stable = through;
        return WAN_OK;
    }
    wan_queue_skip_to(partition, through);
    (void)apply_removal(queue, partition, through, through);
    return WAN_OK;
}

void wan_queue_announce_removals(wan_queue *queue, uint32_t number, void (*tell)(void *teller, uint32_t bucket),
                                 void *teller)
{
    queue->partitions[number].tell = tell;
    queue->partitions[number].teller = teller;
}

uint64_t wan_queue_removed_through(wan_queue *queue, uint32_t number, int *waits)
{
    wan_partition *partition = &queue->partitions[number];
    *waits = 0;
    if (queue->broken || !partition->stream) return 0;
    const uint64_t high_watermark = __atomic_load_n(partition->stream, __ATOMIC_ACQUIRE);
    const uint64_t removed = partition->removed < high_watermark ? partition->removed : high_watermark;
    for (int n = 0; n < 2; n++) {
        if (partition->telling_after <= high_watermark) partition->tellable = partition->telling;
        if (partition->tellable < partition->telling || partition->telling >= removed) break;
        partition->telling = removed;
        partition->telling_after = partition->replaced_by;
    }
    *waits = partition->tellable < partition->removed;
    return partition->tellable;
}

/* Another member says that events left its queue for this reason: those that are here leave too. */
static void leave(wan_queue *queue, uint32_t number, uint64_t first, uint64_t last, uint32_t reason)
{
    wan_partition *partition = &queue->partitions[number];
    if (last > partition->appended && last > partition->unsure_through) partition->unsure_through = last;
    for (; !queue->broken; first++) {
        if (first <= partition->removed) first = partition->removed + 1;
        first = wan_queue_next_live(partition, first, last < partition->appended ? last : partition->appended);
        if (!first) return;
        if (queue->park && WAN_HOLE_KIND(reason) == WAN_HOLE_PARKED)
            queue->park(queue->parker, number, first, WAN_HOLE_FAILURE(reason));
        if (first <= partition->peeked) wan_queue_pin(queue, number, first);
        make_hole(queue, partition, first, reason);
        queue->removed_by_primary++; /* The member that removed them counts them by their reasons. */
    }
}

void wan_queue_receive_removal(wan_queue *queue, uint32_t number, const wan_removal *said, int whole)
{
    wan_partition *partition = &queue->partitions[number];
    /* What was told of the events through here holds. */
    const uint64_t known =
        partition->removed_through > partition->removed ? partition->removed_through : partition->removed;
    /* It is told again when the queue lacks nothing. */
    if (partition->lacks || queue->broken || said->through <= known) return;
    if (known < said->after) {
        const uint64_t end = said->after < partition->appended ? said->after : partition->appended;
        if (!whole || wan_queue_next_live(partition, partition->removed + 1, end)) return;
    }
    if (said->explained > known) {
        if (!said->leads) return;
        leave(queue, number, known + 1, said->explained, WAN_HOLE_UNKNOWN);
    }
    for (uint32_t n = 0; n < said->count; n++) {
        const wan_exception *each = &said->exceptions[n];
        const uint64_t first = each->first > known ? each->first : known + 1, last = each->first + each->count - 1;
        leave(queue, number, first, last < said->through ? last : said->through, each->reason);
    }
    wan_queue_tidy(queue);
    partition->removed_through = said->through;
}

uint64_t wan_queue_apply_removal(wan_queue *queue, uint32_t number, uint64_t limit)
{
    wan_partition *partition = &queue->partitions[number];
    uint64_t through =
        partition->removed_through < partition->appended ? partition->removed_through : partition->appended;
    if (limit < through) through = limit;
    if (queue->broken || through <= partition->removed || partition->peeked != partition->removed) return 0;
    return apply_removal(queue, partition, through, partition->unsure_through);
}

void wan_queue_bound_removal(wan_queue *queue, uint32_t number, uint64_t through)
{
    wan_partition *partition = &queue->partitions[number];
    if (partition->removed_through > through) partition->removed_through = through;
    if (partition->unsure_through > through) partition->unsure_through = through;
}

uint64_t wan_queue_begin_anew(wan_queue *queue, uint32_t number, uint64_t timeline)
{
    wan_partition *partition = &queue->partitions[number];
    if (queue->broken) return 0;
    for (uint64_t sequence = partition->removed;
         (sequence = wan_queue_next_live(partition, sequence + 1, partition->peeked));)
        wan_queue_pin(queue, number, sequence);
    partition->peeked = partition->stable = partition->appended;
    partition->unpeeked = partition->unstable_events = 0;
    const uint64_t dropped = remove_through(queue, partition, partition->appended, 0, 0);
    queue->forgotten += dropped;
    drop_blocks(queue, partition);
    wan_queue_forget_index(partition); /* Sequences are given again, and a slot must not seem to name a new event. */
    partition->removed = partition->peeked = partition->appended = partition->stable = 0;
    partition->durable = partition->taken = partition->duplicate_through = partition->known_holes = 0;
    partition->removed_through = partition->unsure_through = 0;
    wan_queue_forget_exceptions(partition, 0);
    partition->tellable = partition->telling = partition->telling_after = partition->replaced_by = 0;
    partition->begun = partition->lacks = 0;
    partition->timeline = timeline;
    return dropped;
}

void wan_queue_remove_superseded(wan_queue *queue, const wan_buffer *superseded)
{
    if (queue->broken) return;
    const wan_hole *hole = (const wan_hole *)superseded->bytes;
    for (uint32_t n = 0; n < superseded->count; n++, hole++) {
        wan_partition *partition = &queue->partitions[hole->partition];
        if (hole->sequence <= partition->peeked || !is_live(*entry_of(partition, hole->sequence))) continue;
        wan_queue_make_hole(queue, hole->partition, hole->sequence, hole->reason);
        queue->conflated++;
    }
}

wan_status wan_queue_start_conflating(wan_queue *queue)
{
    if (queue->broken) return wan_refuse_broken(queue->broken);
    for (uint32_t number = 0; number < queue->partition_count; number++) {
        wan_partition *partition = &queue->partitions[number];
        for (uint64_t sequence = partition->removed;
             (sequence = wan_queue_next_live(partition, sequence + 1, partition->appended));) {
            const wan_record *record = wan_queue_at(queue, partition, sequence);
            if (partition->index_used * 4 >= partition->index_mask * 3) {
                wan_status status = wan_queue_grow_index(partition, 1);
                if (status != WAN_OK) return status;
            }
            wan_queue_conflate_with(queue, partition, sequence, record);
        }
    }
    queue->conflate = 1;
    return WAN_OK;
}

wan_status wan_queue_clear(wan_queue *queue, uint64_t *dropped)
{
    if (queue->broken) return wan_refuse_broken(queue->broken);
    *dropped = queue->events;
    for (uint32_t n = 0; n < queue->partition_count; n++) {
        wan_partition *partition = &queue->partitions[n];
        partition->peeked = partition->appended;
        partition->stable = partition->appended;
        if (queue->persistent) partition->durable = partition->appended;
        partition->unpeeked = partition->unstable_events = 0;
        const uint64_t removed = partition->removed;
        (void)remove_through(queue, partition, partition->appended, partition->appended, WAN_HOLE_CLEARED);
        if (partition->removed != removed) announce_removals(partition);
    }
    return WAN_OK;
}
