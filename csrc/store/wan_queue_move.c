/* Owns how a queue moves live records out of segments that are mostly dead. */
#include "store/wan_queue_inner.h"

#include <string.h>
#include <sys/uio.h>

#define SWEPT_ENTRIES 4096u        /* Entries that one step looks at. */
#define SWEPT_BYTES   (256u << 10) /* Bytes that one step moves. */

/* Whether less than half of a segment lives. Conflation for days leaves segments with a few live records each. */
static int is_sparse(const wan_segment *segment)
{
    return segment->base && !segment->is_lent && !segment->holds_blocks && segment->used
           && !__atomic_load_n(&segment->is_lost, __ATOMIC_RELAXED) && wan_read(&segment->live) * 2 < segment->used;
}

/* Marks all sparse segments if `mark` is set. Otherwise it takes all marks away. Returns whether any segment is marked
 * now. */
static int mark_sparse(wan_store *store, int mark)
{
    int any = 0;
    wan_lock_take(&store->lock);
    for (uint32_t id = 1; id < store->segment_count; id++) {
        wan_segment *segment = wan_store_segment(store, id);
        const uint8_t leaves = mark && is_sparse(segment);
        __atomic_store_n(&segment->is_leaving, leaves, __ATOMIC_RELAXED);
        any |= leaves;
    }
    wan_lock_release(&store->lock);
    return any;
}

/* Replicas one record to a new place, and lets go of the old place. The old bytes stay as long as another queue refers
 * to them. Returns 0 if there is no room. */
static int move(wan_queue *queue, wan_entry_ref *entry)
{
    wan_store *store = queue->store;
    const uint32_t id = ref_segment(*entry);
    wan_segment *segment = wan_store_segment(store, id);
    const uint64_t length = ref_length(store, *entry);
    const wan_record *record = ref_record(store, *entry);
    uint8_t *to;
    uint32_t new_id;
    if (wan_store_take(store, &queue->records, length, &to, &new_id) != WAN_OK) return 0;
    /* Others may cut off a log's file at any moment. */
    if (segment->is_adopted && store->env->copy) {
        const struct iovec piece = {(void *)(uintptr_t)record, length};
        if (store->env->copy(store->env, segment->file, segment->bytes, &piece, 1, to) != WAN_OK) {
            /* The record stays, and the segment is not tried again. */
            __atomic_store_n(&segment->is_lost, 1, __ATOMIC_RELAXED);
            __atomic_store_n(&segment->is_leaving, 0, __ATOMIC_RELAXED);
            wan_store_untake(store, &queue->records, new_id, length);
            return 1;
        }
    } else {
        memcpy(to, record, length);
    }
    *entry = make_ref(new_id, (uint64_t)(to - wan_store_segment(store, new_id)->base), length);
    wan_store_give(store, &queue->records, id, length);
    return 1;
}

static void end_sweep(wan_queue *queue)
{
    queue->is_sweeping = 0;
    (void)mark_sparse(queue->store, 0);
}

/* Goes on with a sweep, until it has looked at `entries` entries or moved `bytes` bytes. A record does not say its
 * position, so the sweep goes through the entries in order to find the records of a segment. */
static void sweep(wan_queue *queue, uint64_t entries, uint64_t bytes)
{
    while (queue->sweep_partition < queue->partition_count) {
        wan_partition *partition = &queue->partitions[queue->sweep_partition];
        /* Peeked records are on their way, and stay where they are. */
        uint64_t sequence = queue->sweep_sequence > partition->peeked ? queue->sweep_sequence : partition->peeked;
        while (entries && bytes && (sequence = wan_queue_next_live(partition, sequence + 1, partition->appended))) {
            wan_entry_ref *entry = entry_of(partition, sequence);
            queue->sweep_sequence = sequence;
            entries--;
            if (!__atomic_load_n(&wan_store_segment(queue->store, ref_segment(*entry))->is_leaving, __ATOMIC_RELAXED))
                continue;
            const uint64_t length = ref_length(queue->store, *entry);
            if (!move(queue, entry)) {
                end_sweep(queue);
                return;
            }
            bytes -= length < bytes ? length : bytes;
        }
        if (!entries || !bytes) return;
        queue->sweep_partition++;
        queue->sweep_sequence = 0;
    }
    end_sweep(queue);
}

/* Begins a sweep if the segments hold more than twice the bytes that live. Then one segment's worth of dead bytes pays
 * for moving less than half a segment. */
static void begin_sweep(wan_queue *queue)
{
    const wan_store *store = queue->store;
    queue->hole_bytes = 0;
    if (wan_read(&store->memory_bytes) + wan_read(&store->file_bytes) + wan_read(&store->adopted_bytes)
        < 2 * queue->bytes + 4 * (uint64_t)WAN_SEGMENT_BYTES)
        return;
    queue->is_sweeping = (uint8_t)mark_sparse(queue->store, 1);
    queue->sweep_partition = 0;
    queue->sweep_sequence = 0;
}

void wan_queue_sweep(wan_queue *queue)
{
    if (queue->broken) return;
    if (!queue->is_sweeping) {
        /* A sweep looks at every entry, so it has to gain enough. */
        if (queue->hole_bytes < queue->bytes / 16) return;
        begin_sweep(queue);
    }
    if (queue->is_sweeping) sweep(queue, SWEPT_ENTRIES, SWEPT_BYTES);
}

void wan_queue_compact(wan_queue *queue)
{
    if (queue->broken) return;
    begin_sweep(queue);
    while (queue->is_sweeping) sweep(queue, WAN_NO_LIMIT, WAN_NO_LIMIT);
}
