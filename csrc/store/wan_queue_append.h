/* Owns how one record becomes the newest of a partition. It is inline because it runs for each event. The rare steps (a
 * new block of entries, a new segment, conflation) are calls. wan_queue.h says what `wan_queue_reserve` and
 * `wan_queue_commit` promise. */
#ifndef WAN_QUEUE_APPEND_H
#define WAN_QUEUE_APPEND_H
#include "base/wan_thread.h"
#include "store/wan_queue_inner.h"

/* Moves some records if there is reason to. Only where no thread uses a record that was not peeked. */
static inline void wan_queue_tidy(wan_queue *queue)
{
    if (WAN_UNLIKELY(queue->hole_bytes >= WAN_SEGMENT_BYTES || queue->is_sweeping)) wan_queue_sweep(queue);
}

/* `wan_queue_reserve`. */
static inline wan_status wan_queue_reserve_inline(wan_queue *queue, uint32_t number, uint64_t length,
                                                  wan_reservation *reservation)
{
    wan_partition *partition = &queue->partitions[number];
    if (WAN_UNLIKELY(queue->broken != NULL)) return wan_refuse_broken(queue->broken);
    wan_queue_tidy(queue);
    wan_status status = entry_room(queue, partition);
    if (status != WAN_OK) return status;
    status = wan_store_take(queue->store, &queue->records, length, &reservation->at, &reservation->segment);
    if (WAN_UNLIKELY(status != WAN_OK)) {
        wan_queue_give_room(queue, partition);
        return status;
    }
    reservation->partition = number;
    reservation->length = length;
    reservation->beyond = 0;
    return WAN_OK;
}

/* `wan_queue_room_for_entries`, which is called only if the room is not there already. */
static inline wan_status wan_queue_entries_room(wan_queue *queue, uint32_t number, uint32_t count)
{
    const wan_partition *partition = &queue->partitions[number];
    if (WAN_LIKELY(has_block(partition, (partition->appended + count - 1) / WAN_BLOCK_ENTRIES) && !queue->conflate
                   && queue->broken == NULL))
        return WAN_OK;
    return wan_queue_room_for_entries(queue, number, count);
}

/* Makes the record the newest of its partition. There is room for its entry. */
static inline void wan_queue_append_entry(wan_queue *queue, wan_reservation *reservation, wan_entry_ref ref,
                                          const wan_record *record)
{
    wan_partition *partition = &queue->partitions[reservation->partition];
    const uint64_t sequence = reservation->sequence = ++partition->appended, length = reservation->length;
    wan_block *block = block_of(partition, sequence);
    block->entries[(sequence - 1) % WAN_BLOCK_ENTRIES] = ref;
    block->live++;
    /* The next arrival is behind all others, and not before the event's stamp, so that those of a snapshot, which have
     * their stamps, find their places among the others. */
    if (WAN_UNLIKELY(partition->has_arrivals)) {
        const uint64_t made = made_at(record);
        set_arrival(queue, partition, sequence, made > queue->arrival ? made : queue->arrival + 1);
    }
    partition->events++;
    partition->unpeeked++;
    partition->unstable_events += (uint64_t)partition_waits(queue, partition);
    partition->bytes += length;
    wan_add_guarded(&queue->events, 1);
    wan_add_guarded(&queue->bytes, length);
    /* Fetches the memory of the next record for writing. Without this the release of the lock waits until these cache
     * lines have come from memory. */
    for (uint64_t ahead = 0; ahead < 256; ahead += 64) __builtin_prefetch((const uint8_t *)record + length + ahead, 1);
    if (WAN_UNLIKELY(queue->conflate)) wan_queue_conflate_with(queue, partition, sequence, record);
    check_positions(partition);
}

/* `wan_queue_commit`. */
static inline void wan_queue_commit_inline(wan_queue *queue, wan_reservation *reservation)
{
    WAN_DEBUG_CHECK(wan_record_length((const wan_record *)reservation->at) == reservation->length);
    const uint8_t *base = WAN_LIKELY(reservation->segment == queue->records.segment)
                              ? queue->records.base
                              : wan_store_segment(queue->store, reservation->segment)->base;
    wan_queue_append_entry(queue, reservation,
                           make_ref(reservation->segment, (uint64_t)(reservation->at - base), reservation->length),
                           (const wan_record *)reservation->at);
}

#endif
