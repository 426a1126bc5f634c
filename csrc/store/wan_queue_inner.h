/* Owns what the files of the queue share: how an entry is found, and the steps that both appending and recovery
 * take. */
#ifndef WAN_QUEUE_INNER_H
#define WAN_QUEUE_INNER_H
#include "store/wan_queue.h"

/* Packs where a record lies into a word, and unpacks it. */
static inline wan_entry_ref make_ref(uint32_t segment, uint64_t offset, uint64_t length)
{
    uint64_t units = length / 8;
    if (units >= 1u << WAN_REF_LENGTH_BITS) units = 0;
    return (uint64_t)segment << (WAN_REF_OFFSET_BITS + WAN_REF_LENGTH_BITS) | offset / 8 << WAN_REF_LENGTH_BITS | units;
}

static inline uint32_t ref_segment(wan_entry_ref ref)
{
    return (uint32_t)(ref >> (WAN_REF_OFFSET_BITS + WAN_REF_LENGTH_BITS));
}

static inline wan_record *ref_record(const wan_store *store, wan_entry_ref ref)
{
    uint64_t offset = (ref >> WAN_REF_LENGTH_BITS & ((1u << WAN_REF_OFFSET_BITS) - 1)) * 8;
    return (wan_record *)(wan_store_segment(store, ref_segment(ref))->base + offset);
}

static inline uint64_t ref_length(const wan_store *store, wan_entry_ref ref)
{
    uint64_t units = ref & ((1u << WAN_REF_LENGTH_BITS) - 1);
    return units ? units * 8 : wan_record_length(ref_record(store, ref));
}

/* Stands for every block that is missing in a gap. Nothing writes to it. */
extern wan_block wan_queue_no_block;
/* In wan_queue_gaps.c, of a partition with gaps. The block with this number, or wan_queue_no_block. */
wan_block *wan_queue_find_block(const wan_partition *partition, uint64_t number);
/* The last sequence of the block, or of the gap up to the next block, that has this sequence. */
uint64_t wan_queue_find_end(const wan_partition *partition, uint64_t sequence);

/* The block that has the entry of a sequence. */
static inline wan_block *block_of(const wan_partition *partition, uint64_t sequence)
{
    const uint64_t number = (sequence - 1) / WAN_BLOCK_ENTRIES;
    if (WAN_UNLIKELY(partition->has_gaps)) return wan_queue_find_block(partition, number);
    return &partition->blocks[number & (partition->block_capacity - 1)];
}

/* The last sequence for which `block_of` gives the same as for this one. */
static inline uint64_t block_end(const wan_partition *partition, uint64_t sequence)
{
    if (WAN_UNLIKELY(partition->has_gaps)) return wan_queue_find_end(partition, sequence);
    return ((sequence - 1) / WAN_BLOCK_ENTRIES + 1) * WAN_BLOCK_ENTRIES;
}

/* The block at place `n` of the ring, from 0. */
static inline wan_block *nth_block(const wan_partition *partition, uint64_t n)
{
    return &partition->blocks[(partition->ring_at + n) & (partition->block_capacity - 1)];
}

/* Whether an entry is no hole. No segment has the number 0. */
static inline int is_live(wan_entry_ref entry) { return entry >> (WAN_REF_OFFSET_BITS + WAN_REF_LENGTH_BITS) != 0; }

/* The newest exceptions of a partition, oldest first. */
struct wan_exceptions {
    wan_exception *items;
    uint32_t count, capacity;
    uint64_t told[WAN_TOLD_MAX]; /* Through which sequence each member was told of them. */
};

/* Stands for every entry of a block of holes. Nothing writes to it. */
static wan_entry_ref no_entry;

/* The entry of a sequence. It must not be written if it is the one of a block of holes. */
static inline wan_entry_ref *entry_of(const wan_partition *partition, uint64_t sequence)
{
    const wan_block *block = block_of(partition, sequence);
    return WAN_LIKELY(block->entries != NULL) ? &block->entries[(sequence - 1) % WAN_BLOCK_ENTRIES] : &no_entry;
}

/* Bytes that a block of entries of the partition takes. */
static inline uint64_t block_bytes(const wan_partition *partition)
{
    return partition->has_arrivals ? 2 * WAN_BLOCK_BYTES : WAN_BLOCK_BYTES;
}

/* The arrival of an event that is queued, in a partition that has arrivals. */
static inline uint64_t arrival_of(const wan_partition *partition, uint64_t sequence)
{
    return block_of(partition, sequence)->entries[WAN_BLOCK_ENTRIES + (sequence - 1) % WAN_BLOCK_ENTRIES];
}

static inline void set_arrival(wan_queue *queue, wan_partition *partition, uint64_t sequence, uint64_t arrival)
{
    if (arrival > queue->arrival) queue->arrival = arrival;
    block_of(partition, sequence)->entries[WAN_BLOCK_ENTRIES + (sequence - 1) % WAN_BLOCK_ENTRIES] = arrival;
}

/* What an event's stamp says of when it was made. A stamp that a caller gave says nothing. */
static inline uint64_t made_at(const wan_record *record) { return record->flags & WAN_FLAG_GIVEN ? 0 : record->stamp; }

/* Checks in debug builds that the positions and counts of a partition do not contradict each other. */
static inline void check_positions(const wan_partition *partition)
{
    WAN_DEBUG_CHECK(partition->removed <= partition->peeked && partition->peeked <= partition->appended);
    WAN_DEBUG_CHECK(partition->unpeeked <= partition->events && partition->unstable_events <= partition->unpeeked);
    WAN_DEBUG_CHECK(partition->events <= partition->appended - partition->removed);
    (void)partition;
}

/* Whether an event of the partition counts only when the disk, or the replicas of its bucket, have it too. */
static inline int partition_waits(const wan_queue *queue, const wan_partition *partition)
{
    return queue->persistent | (partition->stream != NULL);
}

/* The sequence of the last event that counts. */
static inline uint64_t stable_through(const wan_queue *queue, const wan_partition *partition)
{
    return partition_waits(queue, partition) ? partition->stable : partition->appended;
}

/* Whether the partition has the block with this number. */
static inline int has_block(const wan_partition *partition, uint64_t number)
{
    if (WAN_UNLIKELY(partition->has_gaps)) return wan_queue_find_block(partition, number) != &wan_queue_no_block;
    return partition->block_count && number - partition->first_block < partition->block_count;
}

/* The functions of wan_queue.c that other files use. */
wan_status wan_queue_add_block(wan_queue *queue, wan_partition *partition, uint64_t number);
void wan_queue_unpin_file(wan_queue *queue, wan_partition *partition);
/* After a reservation that failed or was cancelled: what was taken for its entry goes back, but for one block in memory
 * that stays for the next one. */
void wan_queue_give_room(wan_queue *queue, wan_partition *partition);
wan_status wan_queue_grow_index(wan_partition *partition, uint32_t more);
/* How many events from one sequence through another one are in the queue. */
uint64_t wan_queue_count_live(const wan_partition *partition, uint64_t from, uint64_t through);
/* Of what is queued, nothing is conflated any more: it is not in the index. */
void wan_queue_forget_index(wan_partition *partition);
void wan_queue_conflate_with(wan_queue *queue, wan_partition *partition, uint64_t sequence, const wan_record *record);
/* In wan_queue_exceptions.c: those of `count` events of a stream from `first` on that were here leave for this reason.
 * All events that left before have lower sequences. */
void wan_queue_note_exception(wan_partition *partition, uint64_t first, uint64_t count, uint32_t reason);
/* Nothing is known of events behind `after`: they may come again. */
void wan_queue_forget_exceptions(wan_partition *partition, uint64_t after);
void wan_queue_close_exceptions(wan_partition *partition);
/* In wan_queue_gaps.c. Makes room in the ring for one block more. */
wan_status wan_queue_block_room(wan_partition *partition);
/* Puts a block where its number belongs. There is room for it (wan_queue_block_room), and it is not there. */
void wan_queue_put_block(wan_partition *partition, uint64_t number, uint8_t *entries, uint32_t segment);
/* After blocks came or went: if no gap is left, blocks are not searched for any more. */
void wan_queue_close_gaps(wan_partition *partition);
/* Appends holes up to `appended`. However many they are, they take no memory and no time of their own. */
void wan_queue_skip_to(wan_partition *partition, uint64_t appended);
/* In wan_queue_streams.c: the record is about to leave the queue, and its dispatcher may still read it. */
void wan_queue_pin(wan_queue *queue, uint32_t partition, uint64_t sequence);
/* In wan_queue_move.c. One step of moving what lives out of sparse segments. The caller makes sure that no thread uses
 * a record that was not peeked. */
void wan_queue_sweep(wan_queue *queue);

/* Makes room for the entry of the next sequence, and for its slot in the index of conflation. */
static inline wan_status entry_room(wan_queue *queue, wan_partition *partition)
{
    wan_status status = WAN_OK;
    uint64_t block = partition->appended / WAN_BLOCK_ENTRIES;
    if (WAN_UNLIKELY(!has_block(partition, block))) {
        status = wan_queue_add_block(queue, partition, block);
        if (status != WAN_OK) return status;
    }
    if (WAN_UNLIKELY(queue->conflate && partition->index_used * 4 >= partition->index_mask * 3)) {
        status = wan_queue_grow_index(partition, 1);
        if (status != WAN_OK) wan_queue_unpin_file(queue, partition);
    }
    return status;
}

#endif
