/* Owns how recovery puts a queue's records, holes and positions back. */
#include "store/wan_queue_inner.h"

#include <string.h>

#include "base/wan_thread.h"

/* Makes room for the entry of a sequence, at the end or in a hole. *known: the record is there already, or was
 * removed. */
static inline wan_status restore_room(wan_queue *queue, wan_partition *partition, uint64_t sequence, int *known)
{
    wan_status status;
    *known = sequence <= partition->removed;
    if (*known) return WAN_OK;
    if (sequence > partition->appended) {
        wan_queue_skip_to(partition, sequence - 1);
        return entry_room(queue, partition);
    }
    *known = is_live(*entry_of(partition, sequence));
    wan_block *block = block_of(partition, sequence);
    if (*known || block->entries) return WAN_OK;
    if (block == &wan_queue_no_block) return wan_queue_add_block(queue, partition, (sequence - 1) / WAN_BLOCK_ENTRIES);
    uint8_t *at;
    /* The block's memory was given back when its last entry became a hole. */
    uint32_t segment;
    status = wan_store_take(queue->store, &queue->blocks, block_bytes(partition), &at, &segment);
    if (status != WAN_OK) return status;
    memset(at, 0, block_bytes(partition));
    block->entries = (wan_entry_ref *)at;
    for (uint32_t n = 0; block->reason && n < WAN_BLOCK_ENTRIES; n++) block->entries[n] = block->reason;
    block->reason = 0;
    block->segment = segment;
    block->live = 0;
    return WAN_OK;
}

/* Makes an entry for a record that lies at `offset` of the segment. Its bytes count as live there already. */
static inline void restore_entry(wan_queue *queue, wan_partition *partition, uint64_t sequence,
                                 const wan_record *record, uint32_t length, uint32_t segment, uint64_t offset)
{
    int newest = sequence > partition->appended;
    if (newest) partition->appended = sequence;
    *entry_of(partition, sequence) = make_ref(segment, offset, length);
    block_of(partition, sequence)->live++;
    if (partition->has_arrivals) set_arrival(queue, partition, sequence, made_at(record));
    if (sequence <= partition->known_holes) partition->known_holes = 0;
    partition->events++;
    partition->unpeeked++;
    partition->unstable_events += partition_waits(queue, partition) && sequence > partition->stable;
    partition->bytes += length;
    wan_add_guarded(&queue->events, 1);
    wan_add_guarded(&queue->bytes, length);
    if (newest && queue->conflate) wan_queue_conflate_with(queue, partition, sequence, record);
    check_positions(partition);
}

wan_status wan_queue_restore(wan_queue *queue, uint32_t number, uint64_t sequence, const wan_record *record)
{
    if (queue->broken) return wan_refuse_broken(queue->broken);
    wan_partition *partition = &queue->partitions[number];
    int known;
    uint8_t *at;
    uint32_t segment, length = wan_record_length(record);
    wan_status status = restore_room(queue, partition, sequence, &known);
    if (status != WAN_OK || known) return status;
    status = wan_store_take(queue->store, &queue->records, length, &at, &segment);
    if (status != WAN_OK) return status;
    memcpy(at, record, length);
    restore_entry(queue, partition, sequence, (const wan_record *)at, length, segment,
                  (uint64_t)(at - wan_store_segment(queue->store, segment)->base));
    return WAN_OK;
}

wan_status wan_queue_restore_here(wan_queue *queue, uint32_t segment_id, uint32_t number, uint64_t sequence,
                                  const wan_record *record)
{
    if (queue->broken) return wan_refuse_broken(queue->broken);
    wan_partition *partition = &queue->partitions[number];
    wan_segment *segment = wan_store_segment(queue->store, segment_id);
    const uint64_t offset = (uint64_t)((const uint8_t *)record - segment->base);
    const uint32_t length = wan_record_length(record);
    int known;
    wan_status status = restore_room(queue, partition, sequence, &known);
    if (status != WAN_OK || known) return status;
    /* The entry cannot hold this length. The queue would have to read the file whenever it needs the length, so the
     * record is copied. */
    if (length / 8 >= 1u << WAN_REF_LENGTH_BITS) return wan_queue_restore(queue, number, sequence, record);
    status = wan_store_add_run(segment, offset, length);
    if (status != WAN_OK) return status;
    restore_entry(queue, partition, sequence, record, length, segment_id, offset);
    return WAN_OK;
}

wan_status wan_queue_restore_positions(wan_queue *queue, uint32_t number, uint64_t removed, uint64_t appended)
{
    if (queue->broken) return wan_refuse_broken(queue->broken);
    wan_partition *partition = &queue->partitions[number];
    /* An empty partition needs no entries. */
    if (partition->appended == 0 && partition->removed == 0 && removed && removed == appended) {
        partition->removed = partition->peeked = partition->appended = partition->durable = partition->stable = removed;
        return WAN_OK;
    }
    if (partition->appended == 0 && removed)
        partition->removed = partition->peeked = partition->durable = partition->stable = partition->appended = removed;
    wan_queue_skip_to(partition, appended);
    if (removed > partition->removed) {
        if (queue->persistent && partition->durable < removed) wan_queue_made_durable(queue, number, removed);
        if (partition->peeked < removed) {
            partition->unpeeked -= wan_queue_count_live(partition, partition->peeked + 1, removed);
            partition->peeked = removed;
        }
        wan_queue_remove(queue, number, removed);
    }
    return WAN_OK;
}
