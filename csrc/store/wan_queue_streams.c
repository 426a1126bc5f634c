/* Owns how events that are queued elsewhere get into the streams of a region: from own partitions when other members
 * come to share it, and from other members whose queues are older; how they get out of a stream whose bucket is lost;
 * and the records that left the queue while a dispatcher reads them. */
#include "store/wan_queue_inner.h"

#include <string.h>

#include "base/wan_hash.h"
#include "base/wan_thread.h"

/* Bytes of a record that left the queue, which stay until nobody reads them. */
typedef struct {
    uint64_t length;
    uint32_t segment;
    uint32_t partition; /* Where its dispatcher peeked it. */
} pinned_record;

void wan_queue_pin(wan_queue *queue, uint32_t number, uint64_t sequence)
{
    const wan_entry_ref ref = *entry_of(&queue->partitions[number], sequence);
    const pinned_record pinned = {ref_length(queue->store, ref), ref_segment(ref), number};
    wan_store_refer(queue->store, &queue->records, pinned.segment, pinned.length);
    /* Without memory for the note the bytes stay as long as the store: nobody may write where somebody reads. */
    (void)wan_buffer_add(&queue->pinned, &pinned, sizeof pinned);
}

void wan_queue_let_go(wan_queue *queue, uint32_t dispatcher, uint32_t dispatchers)
{
    wan_buffer *pinned = &queue->pinned;
    pinned_record *record = (pinned_record *)pinned->bytes;
    uint32_t kept = 0;
    if (WAN_LIKELY(!pinned->count)) return;
    for (uint32_t n = 0; n < pinned->count; n++) {
        if (wan_queue_dispatcher(queue, record[n].partition, dispatchers) != dispatcher) record[kept++] = record[n];
        else wan_store_give(queue->store, &queue->records, record[n].segment, record[n].length);
    }
    pinned->count = kept;
    pinned->used = kept * sizeof *record;
    if (!kept) wan_buffer_close(pinned);
}

/* Moves one event of partition `number` behind the newest event of partition `to`. `may_be_sent`: another member may
 * have sent it. */
static wan_status move_event(wan_queue *queue, uint32_t number, uint64_t sequence, uint32_t to, int may_be_sent)
{
    const wan_partition *from = &queue->partitions[number];
    const int is_on_its_way = sequence <= from->peeked;
    wan_reservation reservation;
    queue->blocks.may_pass_limit = 1; /* What entered the queue once is not refused now. */
    wan_status status = wan_queue_reserve_reference(queue, to, &reservation);
    queue->blocks.may_pass_limit = 0;
    if (status != WAN_OK) return status;
    status = wan_queue_commit_reference(queue, &reservation, queue, number, sequence);
    if (status != WAN_OK) {
        wan_queue_cancel(queue, &reservation);
        return status;
    }
    if (may_be_sent || is_on_its_way || sequence <= from->duplicate_through)
        queue->partitions[to].duplicate_through = reservation.sequence;
    if (is_on_its_way) wan_queue_pin(queue, number, sequence);
    wan_queue_make_hole(queue, number, sequence, WAN_HOLE_MOVED);
    return WAN_OK;
}

/* Notes the stamp of an event that gets another place: whoever waits for the old places to be passed does not see it.
 */
static void note_stamp(uint64_t lowest[256], const wan_record *record)
{
    if (!(record->flags & WAN_FLAG_GIVEN) && record->stamp < lowest[record->origin_site])
        lowest[record->origin_site] = record->stamp;
}

wan_status wan_queue_move_to_run(wan_queue *queue, const wan_stream_run *run, wan_queue_place *place, uint32_t most,
                                 uint64_t lowest[256])
{
    if (queue->broken) return wan_refuse_broken(queue->broken);
    for (; place->partition < queue->own_count; place->partition++, place->sequence = 0) {
        const wan_partition *own = &queue->partitions[place->partition];
        for (;;) {
            const uint64_t after = place->sequence > own->removed ? place->sequence : own->removed;
            const uint64_t sequence = wan_queue_next_live(own, after + 1, own->appended);
            if (!sequence) break;
            if (!most--) return WAN_EMPTY;
            const wan_record *record = wan_queue_at(queue, own, sequence);
            if (record->region == run->region) {
                const uint64_t hash = wan_key_hash(wan_record_key(record), record->key_length, record->key_form);
                const uint32_t to = run->first + wan_hash_bucket(hash, run->buckets);
                note_stamp(lowest, record);
                wan_status status = move_event(queue, place->partition, sequence, to, 0);
                if (status != WAN_OK) return status;
            }
            place->sequence = sequence;
        }
    }
    return WAN_OK;
}

wan_status wan_queue_move_from_run(wan_queue *queue, uint32_t number, uint32_t most, uint64_t lowest[256],
                                   uint64_t *moved)
{
    const wan_partition *stream = &queue->partitions[number];
    const uint32_t to = stream->bucket % queue->own_count;
    if (queue->broken) return wan_refuse_broken(queue->broken);
    for (uint64_t sequence = stream->removed;
         (sequence = wan_queue_next_live(stream, sequence + 1, stream->appended));) {
        if (!most--) return WAN_EMPTY;
        note_stamp(lowest, wan_queue_at(queue, stream, sequence));
        wan_status status = move_event(queue, number, sequence, to, 1);
        if (status != WAN_OK) return status;
        ++*moved;
    }
    return WAN_OK;
}

void wan_queue_lack(wan_queue *queue, uint32_t number, uint64_t through)
{
    wan_partition *partition = &queue->partitions[number];
    if (queue->broken) return;
    partition->lacks = through;
    if (!through) return;
    partition->leads = 0;
    partition->removed_through = 0; /* It may be about what is not here yet. */
}

wan_status wan_queue_reach_back(wan_queue *queue, uint32_t number, uint64_t after)
{
    wan_partition *partition = &queue->partitions[number];
    if (queue->broken) return wan_refuse_broken(queue->broken);
    if (after >= partition->removed) return WAN_OK;
    if (partition->peeked != partition->removed || !partition->stream) return WAN_EMPTY;
    WAN_CHECK(queue, partition->lacks, WAN_BROKEN);
    const uint64_t block = partition->removed / WAN_BLOCK_ENTRIES, left = partition->removed % WAN_BLOCK_ENTRIES;
    /* Nobody wrote the entries of this block that were never here. */
    if (left && has_block(partition, block) && block_of(partition, partition->removed)->entries)
        memset(block_of(partition, partition->removed)->entries, 0, left * sizeof(wan_entry_ref));
    partition->has_gaps = 1; /* What lies between are holes. */
    /* What comes now counts only as far as its changes do. All live events lie behind `removed`. */
    const uint64_t high_watermark = __atomic_load_n(partition->stream, __ATOMIC_ACQUIRE);
    if (high_watermark < partition->stable) partition->stable = high_watermark > after ? high_watermark : after;
    wan_queue_forget_index(partition); /* A slot must not seem to name one of these. */
    const uint64_t left_before = partition->begun < partition->removed ? partition->removed : 0;
    partition->removed = partition->peeked = partition->begun = after;
    wan_queue_close_gaps(partition);
    partition->known_holes = 0;
    wan_queue_forget_exceptions(partition, after);
    if (left_before) partition->explained = left_before; /* The reasons of these events are forgotten. */
    if (partition->telling > after) partition->telling = after;
    if (partition->tellable > after) partition->tellable = after;
    check_positions(partition);
    return WAN_OK;
}
