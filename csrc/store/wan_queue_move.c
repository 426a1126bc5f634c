/* Moving live records out of segments that are mostly dead. */
#include "store/wan_queue_inner.h"

#include <string.h>

/* The sealed record segment with the smallest part of it alive, under a half; 0: none. */
static uint32_t sparsest_segment(const wan_store *store)
{
    uint32_t best = 0;
    double best_part = 0.5;
    for (uint32_t id = 1; id < store->segment_count; id++) {
        const wan_segment *segment = &store->segments[id];
        if (!segment->base || segment->is_current || segment->is_lost || segment->holds_blocks || !segment->used) continue;
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

static int can_be_read(const wan_store *store, wan_segment *segment)
{
    for (uint32_t n = 0; n < segment->run_count && !segment->is_lost; n++) {
        uint64_t from = segment->runs[n].offset, end = from + segment->runs[n].bytes;
        for (; from < end && !segment->is_lost; from += WAN_SPAN_FETCHED_BYTES) {
            uint64_t to = end - from > WAN_SPAN_FETCHED_BYTES ? from + WAN_SPAN_FETCHED_BYTES : end;
            segment->is_lost = wan_store_check(store, &(wan_store_span){segment->file, segment->base, segment->bytes, from, to}) != WAN_OK;
        }
    }
    return !segment->is_lost;
}

/* Moves what lives out of one segment, which is freed by that. 0: it stays, since something in it is on its way. */
static int move_out(wan_queue *queue, uint32_t id)
{
    if (!can_be_read(&queue->store, &queue->store.segments[id])) return 1;     /* It stays, and is not tried again. */
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
void wan_queue_move_out_of_sparse(wan_queue *queue, uint32_t segments)
{
    queue->punched_bytes = 0;
    while (segments--) {
        if (queue->store.memory_bytes + queue->store.file_bytes + queue->store.adopted_bytes < 2 * queue->bytes + 4 * (uint64_t)WAN_SEGMENT_BYTES) return;
        uint32_t id = sparsest_segment(&queue->store);
        if (!id || !move_out(queue, id)) return;
    }
}

void wan_queue_compact(wan_queue *queue) { wan_queue_move_out_of_sparse(queue, queue->store.segment_count); }
