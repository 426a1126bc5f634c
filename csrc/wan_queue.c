/* Partitions: append, peek, remove, rewind, conflate. */
#include "wan_queue.h"

#include "wan_hash.h"
#include "wan_thread.h"

#include <stdlib.h>
#include <string.h>

static inline wan_entry_ref make_ref(uint32_t segment, uint64_t offset, uint64_t length)
{
    uint64_t units = length / 8;
    if (units >= 1u << WAN_REF_LENGTH_BITS) units = 0;
    return (uint64_t)segment << (WAN_REF_OFFSET_BITS + WAN_REF_LENGTH_BITS) | offset / 8 << WAN_REF_LENGTH_BITS | units;
}

static inline uint32_t ref_segment(wan_entry_ref ref) { return (uint32_t)(ref >> (WAN_REF_OFFSET_BITS + WAN_REF_LENGTH_BITS)); }

static inline wan_record *ref_record(const wan_store *store, wan_entry_ref ref)
{
    uint64_t offset = (ref >> WAN_REF_LENGTH_BITS & ((1u << WAN_REF_OFFSET_BITS) - 1)) * 8;
    return (wan_record *)(store->segments[ref_segment(ref)].base + offset);
}

static inline uint64_t ref_length(const wan_store *store, wan_entry_ref ref)
{
    uint64_t units = ref & ((1u << WAN_REF_LENGTH_BITS) - 1);
    return units ? units * 8 : ref_record(store, ref)->length;
}

static inline wan_block *block_of(const wan_partition *partition, uint64_t sequence)
{
    return &partition->blocks[(sequence - 1) / WAN_BLOCK_ENTRIES & (partition->block_capacity - 1)];
}

static wan_entry_ref no_entry;     /* Stands for every entry of a block of holes; never written. */

static inline wan_entry_ref *entry_of(const wan_partition *partition, uint64_t sequence)
{
    const wan_block *block = block_of(partition, sequence);
    return WAN_LIKELY(block->entries != NULL) ? &block->entries[(sequence - 1) % WAN_BLOCK_ENTRIES] : &no_entry;
}

static inline void check_positions(const wan_partition *partition)
{
    WAN_DEBUG_CHECK(partition->removed <= partition->peeked && partition->peeked <= partition->appended);
    WAN_DEBUG_CHECK(partition->unpeeked <= partition->events && partition->volatile_events <= partition->unpeeked);
    WAN_DEBUG_CHECK(partition->events <= partition->appended - partition->removed);
    (void)partition;
}

wan_status wan_queue_init(wan_queue *queue, const wan_env *env, const char *directory, uint64_t memory_limit,
                          uint32_t partitions, int conflate)
{
    memset(queue, 0, sizeof *queue);
    if (partitions == 0 || partitions > 65535)
        return WAN_FAIL(WAN_INVALID, "a queue has 1 to 65535 partitions, not %" PRIu32, partitions);
    wan_status status = wan_store_init(&queue->store, env, directory, memory_limit);
    if (status != WAN_OK) return status;
    queue->partitions = calloc(partitions, sizeof *queue->partitions);
    if (!queue->partitions) {
        wan_store_close(&queue->store);
        return WAN_FAIL(WAN_NO_MEMORY, "no memory for %" PRIu32 " partitions", partitions);
    }
    queue->partition_count = partitions;
    queue->conflate = (uint8_t)(conflate != 0);
    return WAN_OK;
}

void wan_queue_close(wan_queue *queue)
{
    for (uint32_t n = 0; n < queue->partition_count; n++) {
        free(queue->partitions[n].blocks);
        free(queue->partitions[n].index);
    }
    free(queue->partitions);
    if (queue->store.segments) wan_store_close(&queue->store);
    memset(queue, 0, sizeof *queue);
}

/* Blocks: the entries of a partition, 512 at a time. */

static wan_status grow_ring(wan_partition *partition)
{
    uint32_t capacity = partition->block_capacity ? partition->block_capacity * 2 : 4;
    wan_block *blocks = calloc(capacity, sizeof *blocks);
    if (!blocks) return WAN_FAIL(WAN_NO_MEMORY, "no memory for %" PRIu32 " entry blocks", capacity);
    for (uint64_t n = partition->first_block; n < partition->first_block + partition->block_count; n++)
        blocks[n & (capacity - 1)] = partition->blocks[n & (partition->block_capacity - 1)];
    free(partition->blocks);
    partition->blocks = blocks;
    partition->block_capacity = capacity;
    return WAN_OK;
}

static wan_status block_room(wan_partition *partition)
{
    return partition->block_count == partition->block_capacity ? grow_ring(partition) : WAN_OK;
}

/* There is room for it, and it comes behind the newest. `entries`: NULL for a block of holes. */
static void push_block(wan_partition *partition, uint64_t number, uint8_t *entries, uint32_t segment)
{
    if (partition->block_count == 0) partition->first_block = number;
    partition->blocks[number & (partition->block_capacity - 1)] = (wan_block){.entries = (wan_entry_ref *)entries, .segment = segment};
    partition->block_count++;
}

static wan_status add_block(wan_queue *queue, wan_partition *partition, uint64_t number)
{
    uint8_t *at;
    uint32_t segment;
    wan_status status = block_room(partition);
    if (status == WAN_OK) status = wan_store_take(&queue->store, &queue->store.block_segment, WAN_BLOCK_BYTES, &at, &segment);
    if (status == WAN_OK) push_block(partition, number, at, segment);
    return status;
}

static void give_block(wan_queue *queue, wan_block *block)
{
    if (block->entries) wan_store_give(&queue->store, block->segment, WAN_BLOCK_BYTES);
    block->entries = NULL;
}

static void drop_first_block(wan_queue *queue, wan_partition *partition)
{
    give_block(queue, &partition->blocks[partition->first_block & (partition->block_capacity - 1)]);
    partition->first_block++;
    partition->block_count--;
}

/* A drained partition keeps its block in memory for the next event, but pins no file. */
static void unpin_file(wan_queue *queue, wan_partition *partition)
{
    if (partition->removed != partition->appended || !partition->block_count) return;
    wan_block *block = &partition->blocks[partition->first_block & (partition->block_capacity - 1)];
    if (block->entries && queue->store.segments[block->segment].is_file) drop_first_block(queue, partition);
}

static inline int has_block(const wan_partition *partition, uint64_t number)
{
    return partition->block_count && number - partition->first_block < partition->block_count;
}

/* Conflation: one slot a key, of its newest queued update. Slots of events that have left are found out when met
 * (their sequence is not above `peeked`) and swept when the index grows. */

static inline uint64_t conflation_hash(const wan_record *record, uint64_t hash) { return hash * 31 + record->region; }

static wan_status grow_index(wan_partition *partition)
{
    uint64_t valid = 0;
    for (uint64_t n = 0; partition->index && n <= partition->index_mask; n++)
        valid += partition->index[n].sequence > partition->peeked;
    uint64_t capacity = 64;
    while (capacity < valid * 2 + 2) capacity *= 2;     /* Half full at most after growing, three quarters before. */
    wan_index_slot *index = calloc(capacity, sizeof *index);
    if (!index) return WAN_FAIL(WAN_NO_MEMORY, "no memory for a conflation index of %" PRIu64 " keys", capacity);
    for (uint64_t n = 0; partition->index && n <= partition->index_mask; n++) {
        wan_index_slot slot = partition->index[n];
        if (slot.sequence <= partition->peeked) continue;
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

static void punch(wan_queue *queue, wan_partition *partition, uint64_t sequence, uint32_t reason);

/* Only updates take part (creates and destroys always travel), and what was peeked stays. Taking out an update that
 * has one of a later version behind it never changes where the key ends. Nothing is moved: the record may still be read. */
static void conflate(wan_queue *queue, wan_partition *partition, const wan_record *record, uint64_t hash)
{
    if (record->operation != WAN_UPDATE || (record->flags & WAN_FLAG_CONFLICT)) return;
    hash = conflation_hash(record, hash);
    wan_index_slot *slot = &partition->index[hash & partition->index_mask];
    for (uint64_t at = hash & partition->index_mask;; at = (at + 1) & partition->index_mask) {
        slot = &partition->index[at];
        if (!slot->sequence) { partition->index_used++; break; }
        if (slot->hash != hash) continue;
        if (slot->sequence <= partition->peeked) break;     /* Left the queue: its slot serves again. */
        wan_entry_ref ref = *entry_of(partition, slot->sequence);
        if (!ref) break;
        const wan_record *older = ref_record(&queue->store, ref);
        if (!same_key(older, record)) continue;
        /* Replayed after it was parked, say: the newer one must not go for it, and stays the one to be replaced. */
        if (older->stamp > record->stamp || (older->stamp == record->stamp && older->stamp_site > record->stamp_site)) return;
        if (queue->superseded && slot->sequence <= partition->taken) {      /* Without memory for the note both travel. */
            (void)wan_stage_add(queue->superseded, &(wan_hole){record->partition, WAN_HOLE_CONFLATED, slot->sequence}, sizeof(wan_hole));
        } else {        /* Both reach the disk in one block, or this one later. */
            punch(queue, partition, slot->sequence, WAN_HOLE_CONFLATED);
            queue->conflated++;
        }
        break;
    }
    slot->hash = hash;
    slot->sequence = record->sequence;
}

/* Append. */

static void move_out_of_sparse(wan_queue *queue, uint32_t segments);

/* Only where nobody has a record in hand that was not peeked: it may be moved. */
static inline void tidy(wan_queue *queue)
{
    if (WAN_UNLIKELY(queue->punched_bytes >= WAN_SEGMENT_BYTES)) move_out_of_sparse(queue, 4);
}

/* The next sequence has an entry, and a slot in the index. */
static inline wan_status entry_room(wan_queue *queue, wan_partition *partition)
{
    wan_status status = WAN_OK;
    uint64_t block = partition->appended / WAN_BLOCK_ENTRIES;
    if (WAN_UNLIKELY(!has_block(partition, block))) {
        status = add_block(queue, partition, block);
        if (status != WAN_OK) return status;
    }
    if (WAN_UNLIKELY(queue->conflate && partition->index_used * 4 >= partition->index_mask * 3)) {
        status = grow_index(partition);
        if (status != WAN_OK) unpin_file(queue, partition);
    }
    return status;
}

wan_status wan_queue_reserve(wan_queue *queue, uint32_t number, uint64_t length, wan_reservation *reservation)
{
    wan_partition *partition = &queue->partitions[number];
    tidy(queue);
    wan_status status = entry_room(queue, partition);
    if (status != WAN_OK) return status;
    status = wan_store_take(&queue->store, &queue->store.record_segment, length, &reservation->at, &reservation->segment);
    if (status != WAN_OK) { unpin_file(queue, partition); return status; }  /* An entry block in memory stays for the next one. */
    reservation->partition = number;
    reservation->length = length;
    return WAN_OK;
}

void wan_queue_cancel(wan_queue *queue, wan_reservation *reservation)
{
    wan_segment *segment = &queue->store.segments[reservation->segment];
    if (segment->is_current) {
        wan_store_untake(&queue->store, reservation->segment, reservation->length);
        if (segment->live == 0) wan_store_emptied(&queue->store, reservation->segment);
    } else {
        wan_store_give(&queue->store, reservation->segment, reservation->length);
    }
    unpin_file(queue, &queue->partitions[reservation->partition]);
}

void wan_queue_commit(wan_queue *queue, wan_reservation *reservation, uint64_t hash)
{
    wan_partition *partition = &queue->partitions[reservation->partition];
    wan_record *record = (wan_record *)reservation->at;
    record->sequence = ++partition->appended;
    record->partition = (uint16_t)reservation->partition;
    *entry_of(partition, record->sequence) = make_ref(
        reservation->segment, (uint64_t)(reservation->at - queue->store.segments[reservation->segment].base), reservation->length);
    block_of(partition, record->sequence)->live++;
    partition->events++;
    partition->unpeeked++;
    partition->volatile_events += queue->persistent;
    partition->bytes += reservation->length;
    wan_tally(&queue->events, 1);
    wan_tally(&queue->bytes, reservation->length);
    /* Where the next one will be written: else the lock's release waits until these lines have come from memory. */
    for (uint64_t ahead = 0; ahead < 256; ahead += 64) __builtin_prefetch(reservation->at + reservation->length + ahead, 1);
    if (queue->conflate) conflate(queue, partition, record, hash);
    check_positions(partition);
}

wan_status wan_queue_open_run(wan_queue *queue, uint64_t least, wan_run *run)
{
    wan_store *store = &queue->store;
    WAN_CHECK(least <= WAN_RUN_RECORD_BYTES_MAX);
    tidy(queue);
    wan_status status = wan_store_take(store, &store->record_segment, least, &run->at, &run->segment);
    if (status != WAN_OK) return status;
    wan_store_untake(store, run->segment, least);
    const wan_segment *segment = &store->segments[run->segment];
    run->room = segment->bytes - segment->used;
    return WAN_OK;
}

uint32_t wan_queue_append_run(wan_queue *queue, const wan_run *run, const uint32_t *lengths, const uint16_t *partitions, const uint64_t *hashes,
                              uint32_t count)
{
    uint8_t *at = run->at;
    uint64_t offset = (uint64_t)(at - queue->store.segments[run->segment].base), whole = 0;
    uint32_t done = 0;
    for (uint32_t n = 0; n < count; n++) whole += lengths[n];
    WAN_DEBUG_CHECK(whole <= run->room && queue->store.segments[run->segment].used == offset);
    queue->store.segments[run->segment].used += (uint32_t)whole;    /* All of it first: what it conflates may be the last that lives there. */
    queue->store.segments[run->segment].live += (uint32_t)whole;
    while (done < count) {
        uint32_t number = partitions ? partitions[done] : 0;
        wan_partition *partition = &queue->partitions[number];
        if (entry_room(queue, partition) != WAN_OK) break;
        /* As many as follow in the same partition, and in the same block of entries. */
        uint64_t sequence = partition->appended;
        uint32_t in_block = (uint32_t)(sequence % WAN_BLOCK_ENTRIES), n = 0;
        wan_block *block = block_of(partition, sequence + 1);
        const uint8_t *first = at;
        do {
            wan_record *record = (wan_record *)at;
            record->sequence = sequence + n + 1;
            record->partition = (uint16_t)number;
            block->entries[in_block + n] = make_ref(run->segment, offset, lengths[done]);
            at += lengths[done];
            offset += lengths[done];
            n++;
            done++;
        } while (done < count && in_block + n < WAN_BLOCK_ENTRIES && !queue->conflate && (!partitions || partitions[done] == number));
        uint64_t bytes = (uint64_t)(at - first);
        block->live += n;
        partition->appended += n;
        partition->events += n;
        partition->unpeeked += n;
        partition->volatile_events += queue->persistent ? n : 0;
        partition->bytes += bytes;
        wan_tally(&queue->events, n);
        wan_tally(&queue->bytes, bytes);
        whole -= bytes;
        if (queue->conflate) conflate(queue, partition, (const wan_record *)first, hashes[done - 1]);
        check_positions(partition);
    }
    wan_store_untake(&queue->store, run->segment, whole);
    if (queue->store.segments[run->segment].live == 0) wan_store_emptied(&queue->store, run->segment);
    return done;
}

wan_record *wan_queue_at(const wan_queue *queue, const wan_partition *partition, uint64_t sequence)
{
    WAN_DEBUG_CHECK(sequence > partition->removed && sequence <= partition->appended);
    wan_entry_ref ref = *entry_of(partition, sequence);
    return ref ? ref_record(&queue->store, ref) : NULL;
}

uint64_t wan_queue_next_live(const wan_partition *partition, uint64_t from, uint64_t through)
{
    while (from <= through) {
        const wan_block *block = block_of(partition, from);
        uint64_t end = ((from - 1) / WAN_BLOCK_ENTRIES + 1) * WAN_BLOCK_ENTRIES;    /* Its last sequence. */
        if (end > through) end = through;
        if (block->entries && block->live) {
            for (; from <= end; from++)
                if (block->entries[(from - 1) % WAN_BLOCK_ENTRIES]) return from;
        }
        from = end + 1;
    }
    return 0;
}

wan_record *wan_queue_oldest(wan_queue *queue, uint32_t number)
{
    wan_partition *partition = &queue->partitions[number];
    if (!partition->events) return NULL;
    uint64_t known = partition->known_holes > partition->removed ? partition->known_holes : partition->removed;
    uint64_t sequence = wan_queue_next_live(partition, known + 1, partition->appended);
    WAN_CHECK(sequence);
    partition->known_holes = sequence - 1;
    return wan_queue_at(queue, partition, sequence);
}

uint32_t wan_queue_peek(wan_queue *queue, uint32_t number, uint32_t count, uint64_t bytes, int at_least_one,
                        wan_record **records, uint64_t *peeked_bytes)
{
    wan_partition *partition = &queue->partitions[number];
    uint32_t taken = 0;
    uint64_t taken_bytes = 0, start = partition->peeked;
    uint64_t end = queue->persistent ? partition->durable : partition->appended;
    while (taken < count && partition->peeked < end) {
        wan_entry_ref ref = *entry_of(partition, partition->peeked + 1);
        if (ref) {
            uint64_t length = ref_length(&queue->store, ref);
            if ((taken || !at_least_one) && taken_bytes + length > bytes) {
                if (!taken) partition->peeked = start;      /* No run is made of holes alone: it would be missed as a gap. */
                break;
            }
            taken_bytes += length;
            partition->unpeeked--;
            records[taken++] = ref_record(&queue->store, ref);
        }
        partition->peeked++;
    }
    *peeked_bytes = taken_bytes;
    check_positions(partition);
    return taken;
}

static void forget_entry(wan_queue *queue, wan_partition *partition, uint64_t sequence)
{
    wan_entry_ref *entry = entry_of(partition, sequence);
    wan_block *block = block_of(partition, sequence);
    wan_entry_ref ref = *entry;
    uint64_t length = ref_length(&queue->store, ref);
    *entry = 0;
    /* A block that is past and holds nothing gives its memory back; the newest one still takes entries. */
    if (--block->live == 0 && (sequence - 1) / WAN_BLOCK_ENTRIES < partition->appended / WAN_BLOCK_ENTRIES) give_block(queue, block);
    partition->events--;
    partition->bytes -= length;
    wan_tally(&queue->events, -(uint64_t)1);
    wan_tally(&queue->bytes, -length);
    wan_store_give(&queue->store, ref_segment(ref), length);
}

uint64_t wan_queue_remove(wan_queue *queue, uint32_t number, uint64_t through)
{
    wan_partition *partition = &queue->partitions[number];
    WAN_CHECK(through <= partition->peeked);
    uint64_t before = partition->events;
    while (partition->removed < through) {
        wan_entry_ref *entry = entry_of(partition, partition->removed + 1);
        if (*entry) forget_entry(queue, partition, partition->removed + 1);
        partition->removed++;
        if (partition->removed % WAN_BLOCK_ENTRIES == 0) drop_first_block(queue, partition);
    }
    unpin_file(queue, partition);
    check_positions(partition);
    return before - partition->events;
}

/* The sealed record segment with the smallest part of it alive, under a half; 0: none. */
static uint32_t sparsest_segment(const wan_store *store)
{
    uint32_t best = 0;
    double best_part = 0.5;
    for (uint32_t id = 1; id < store->segment_count; id++) {
        const wan_segment *segment = &store->segments[id];
        if (!segment->base || segment->is_current || segment->holds_blocks || !segment->used) continue;
        double part = (double)segment->live / segment->used;
        if (part < best_part) { best_part = part; best = id; }
    }
    return best;
}

/* The entry of a live record that lies here, or NULL: what is dead keeps its bytes until its segment goes. */
static wan_entry_ref *entry_here(wan_queue *queue, uint32_t id, const wan_record *record, uint64_t offset)
{
    wan_partition *partition = &queue->partitions[record->partition];
    if (record->sequence <= partition->removed || record->sequence > partition->appended) return NULL;
    wan_entry_ref *entry = entry_of(partition, record->sequence);
    return *entry == make_ref(id, offset, record->length) ? entry : NULL;
}

/* A walk over the records of a segment, dead ones too; 0 begins it. NULL behind the last. */
typedef struct { uint32_t run; uint64_t at, end; } segment_walk;

static const wan_record *next_record(const wan_segment *segment, segment_walk *walk)
{
    if (walk->at == walk->end) {
        if (walk->run == (segment->is_adopted ? segment->run_count : 1)) return NULL;
        walk->at = segment->is_adopted ? segment->runs[walk->run].offset : 0;
        walk->end = segment->is_adopted ? walk->at + segment->runs[walk->run].bytes : segment->used;
        walk->run++;
        if (walk->at == walk->end) return NULL;
    }
    const wan_record *record = (const wan_record *)(segment->base + walk->at);
    walk->at += record->length;
    return record;
}

/* Moves what lives out of one segment, which is freed by that. 0: it stays, since something in it is on its way. */
static int move_out(wan_queue *queue, uint32_t id)
{
    const uint8_t *base = queue->store.segments[id].base;
    const wan_record *record;
    segment_walk walk = {0};
    while ((record = next_record(&queue->store.segments[id], &walk)))
        if (entry_here(queue, id, record, (uint64_t)((const uint8_t *)record - base)) && record->sequence <= queue->partitions[record->partition].peeked) return 0;
    walk = (segment_walk){0};
    while ((record = next_record(&queue->store.segments[id], &walk))) {
        uint64_t length = record->length;
        wan_entry_ref *entry = entry_here(queue, id, record, (uint64_t)((const uint8_t *)record - base));
        if (!entry) continue;
        uint8_t *to;
        uint32_t new_id;
        if (wan_store_take(&queue->store, &queue->store.record_segment, length, &to, &new_id) != WAN_OK) return 0;
        memcpy(to, record, length);
        *entry = make_ref(new_id, (uint64_t)(to - queue->store.segments[new_id].base), length);
        int was_last = queue->store.segments[id].live == length;
        wan_store_give(&queue->store, id, length);
        if (was_last) break;    /* The segment is gone with it. */
    }
    return 1;
}

/* Conflation for days leaves segments with a few live records each. Once they hold more than twice what lives, the sparsest
 * are emptied: a segment's worth of dead bytes pays for moving less than half a segment. */
static void move_out_of_sparse(wan_queue *queue, uint32_t segments)
{
    queue->punched_bytes = 0;
    while (segments--) {
        if (queue->store.memory_bytes + queue->store.file_bytes + queue->store.adopted_bytes < 2 * queue->bytes + 4 * (uint64_t)WAN_SEGMENT_BYTES) return;
        uint32_t id = sparsest_segment(&queue->store);
        if (!id || !move_out(queue, id)) return;
    }
}

void wan_queue_compact(wan_queue *queue) { move_out_of_sparse(queue, queue->store.segment_count); }

/* Holes at the very front are gone for good at once, where nothing is on its way: the receiver is told that they are
 * settled, and a queue that conflates for days does not keep their entries. */
static void drop_front_holes(wan_queue *queue, wan_partition *partition)
{
    if (partition->peeked != partition->removed) return;
    uint64_t end = queue->persistent ? partition->durable : partition->appended;
    while (partition->removed < end && !*entry_of(partition, partition->removed + 1)) {
        partition->peeked = ++partition->removed;
        if (partition->removed % WAN_BLOCK_ENTRIES == 0) drop_first_block(queue, partition);
    }
    unpin_file(queue, partition);
}

static void punch(wan_queue *queue, wan_partition *partition, uint64_t sequence, uint32_t reason)
{
    WAN_CHECK(sequence > partition->removed && sequence <= partition->appended);
    wan_entry_ref *entry = entry_of(partition, sequence);
    if (!*entry) return;
    /* Without memory for the note a crash brings the event back: an older update before its newer one, which harms nothing. */
    if (queue->holes) (void)wan_stage_add(queue->holes, &(wan_hole){(uint32_t)(partition - queue->partitions), reason, sequence}, sizeof(wan_hole));
    if (sequence > partition->peeked) partition->unpeeked--;
    if (queue->persistent && sequence > partition->durable) partition->volatile_events--;
    queue->punched_bytes += ref_length(&queue->store, *entry);
    forget_entry(queue, partition, sequence);
    if (sequence == partition->removed + 1) drop_front_holes(queue, partition);
    check_positions(partition);
}

void wan_queue_punch(wan_queue *queue, uint32_t number, uint64_t sequence, uint32_t reason)
{
    punch(queue, &queue->partitions[number], sequence, reason);
    tidy(queue);
}

void wan_queue_rewind(wan_queue *queue, uint32_t number)
{
    wan_partition *partition = &queue->partitions[number];
    if (partition->peeked > partition->duplicate_through) partition->duplicate_through = partition->peeked;
    partition->peeked = partition->removed;
    partition->unpeeked = partition->events;
    drop_front_holes(queue, partition);
    check_positions(partition);
}

void wan_queue_made_durable(wan_queue *queue, uint32_t number, uint64_t durable)
{
    wan_partition *partition = &queue->partitions[number];
    WAN_CHECK(durable <= partition->appended);
    while (partition->durable < durable) {
        partition->durable++;
        if (partition->durable > partition->removed && *entry_of(partition, partition->durable)) partition->volatile_events--;
    }
    if (partition->taken < durable) partition->taken = durable;
    drop_front_holes(queue, partition);
    check_positions(partition);
}

void wan_queue_settle_superseded(wan_queue *queue, const wan_stage *superseded)
{
    const wan_hole *hole = (const wan_hole *)superseded->bytes;
    for (uint32_t n = 0; n < superseded->count; n++, hole++) {
        wan_partition *partition = &queue->partitions[hole->partition];
        if (hole->sequence <= partition->peeked || !*entry_of(partition, hole->sequence)) continue;
        wan_queue_punch(queue, hole->partition, hole->sequence, hole->reason);
        queue->conflated++;
    }
}

wan_status wan_queue_start_conflating(wan_queue *queue)
{
    for (uint32_t number = 0; number < queue->partition_count; number++) {
        wan_partition *partition = &queue->partitions[number];
        for (uint64_t sequence = partition->removed + 1; sequence <= partition->appended; sequence++) {
            wan_record *record = wan_queue_at(queue, partition, sequence);
            if (!record) continue;
            if (partition->index_used * 4 >= partition->index_mask * 3) {
                wan_status status = grow_index(partition);
                if (status != WAN_OK) return status;
            }
            conflate(queue, partition, record, wan_key_hash(wan_record_key(record), record->key_length, record->key_form));
        }
    }
    queue->conflate = 1;
    return WAN_OK;
}

/* Holes up to `appended`. A block of nothing else takes no memory for its entries. */
static wan_status skip_to(wan_queue *queue, wan_partition *partition, uint64_t appended)
{
    while (partition->appended < appended) {
        uint64_t block = partition->appended / WAN_BLOCK_ENTRIES;
        wan_status status = WAN_OK;
        if (partition->appended % WAN_BLOCK_ENTRIES == 0 && appended - partition->appended >= WAN_BLOCK_ENTRIES && !has_block(partition, block)) {
            status = block_room(partition);
            if (status != WAN_OK) return status;
            push_block(partition, block, NULL, 0);
            partition->appended += WAN_BLOCK_ENTRIES;
            continue;
        }
        if (!has_block(partition, block)) status = add_block(queue, partition, block);
        if (status != WAN_OK) return status;
        *entry_of(partition, ++partition->appended) = 0;
    }
    return WAN_OK;
}

/* An entry for the record: at the end, or in a hole. *known: it is there already, or removed. */
static inline wan_status restore_room(wan_queue *queue, const wan_record *record, int *known)
{
    wan_partition *partition = &queue->partitions[record->partition];
    wan_status status;
    *known = record->sequence <= partition->removed;
    if (*known) return WAN_OK;
    if (record->sequence > partition->appended) {
        status = skip_to(queue, partition, record->sequence - 1);
        return status == WAN_OK ? entry_room(queue, partition) : status;
    }
    *known = *entry_of(partition, record->sequence) != 0;
    wan_block *block = block_of(partition, record->sequence);
    if (*known || block->entries) return WAN_OK;
    uint8_t *at;
    uint32_t segment;           /* Given back when its last entry became a hole. */
    status = wan_store_take(&queue->store, &queue->store.block_segment, WAN_BLOCK_BYTES, &at, &segment);
    if (status != WAN_OK) return status;
    memset(at, 0, WAN_BLOCK_BYTES);
    block->entries = (wan_entry_ref *)at;
    block->segment = segment;
    block->live = 0;
    return WAN_OK;
}

/* The record lies in the segment, and its bytes count as live there. */
static inline void restore_entry(wan_queue *queue, const wan_record *record, uint32_t segment, uint64_t hash)
{
    wan_partition *partition = &queue->partitions[record->partition];
    int newest = record->sequence > partition->appended;
    if (newest) partition->appended = record->sequence;
    *entry_of(partition, record->sequence) = make_ref(segment, (uint64_t)((const uint8_t *)record - queue->store.segments[segment].base), record->length);
    block_of(partition, record->sequence)->live++;
    if (record->sequence <= partition->known_holes) partition->known_holes = 0;
    partition->events++;
    partition->unpeeked++;
    partition->volatile_events += queue->persistent && record->sequence > partition->durable;
    partition->bytes += record->length;
    wan_tally(&queue->events, 1);
    wan_tally(&queue->bytes, record->length);
    if (newest && queue->conflate) conflate(queue, partition, record, hash);
    check_positions(partition);
}

wan_status wan_queue_restore(wan_queue *queue, const wan_record *record, uint64_t hash)
{
    int known;
    uint8_t *at;
    uint32_t segment;
    wan_status status = restore_room(queue, record, &known);
    if (status != WAN_OK || known) return status;
    status = wan_store_take(&queue->store, &queue->store.record_segment, record->length, &at, &segment);
    if (status != WAN_OK) return status;
    memcpy(at, record, record->length);
    restore_entry(queue, (const wan_record *)at, segment, hash);
    return WAN_OK;
}

wan_status wan_queue_restore_here(wan_queue *queue, uint32_t segment_id, const wan_record *record, uint64_t hash)
{
    int known;
    wan_status status = restore_room(queue, record, &known);
    if (status != WAN_OK || known) return status;
    wan_segment *segment = &queue->store.segments[segment_id];
    status = wan_store_add_run(&queue->store, segment_id, (uint64_t)((const uint8_t *)record - segment->base), record->length);
    if (status != WAN_OK) return status;
    segment->live += record->length;
    restore_entry(queue, record, segment_id, hash);
    return WAN_OK;
}

wan_status wan_queue_restore_positions(wan_queue *queue, uint32_t number, uint64_t removed, uint64_t appended)
{
    wan_partition *partition = &queue->partitions[number];
    if (partition->appended == 0 && partition->removed == 0 && removed && removed == appended) {   /* Empty: no entries are needed. */
        partition->removed = partition->peeked = partition->appended = partition->durable = removed;
        return WAN_OK;
    }
    if (partition->appended == 0 && removed) partition->removed = partition->peeked = partition->durable = partition->appended = removed;
    wan_status status = appended > partition->appended ? skip_to(queue, partition, appended) : WAN_OK;
    if (status != WAN_OK) return status;
    if (removed > partition->removed) {
        if (queue->persistent && partition->durable < removed) wan_queue_made_durable(queue, number, removed);
        while (partition->peeked < removed) {
            if (*entry_of(partition, partition->peeked + 1)) partition->unpeeked--;
            partition->peeked++;
        }
        wan_queue_remove(queue, number, removed);
    }
    return WAN_OK;
}

uint64_t wan_queue_clear(wan_queue *queue)
{
    uint64_t dropped = queue->events;
    for (uint32_t n = 0; n < queue->partition_count; n++) {
        wan_partition *partition = &queue->partitions[n];
        partition->peeked = partition->appended;
        if (queue->persistent) partition->durable = partition->appended;
        partition->unpeeked = partition->volatile_events = 0;
        wan_queue_remove(queue, n, partition->appended);
    }
    return dropped;
}
