/* Owns how the stream partitions of a queue are merged in the order of arrivals. */
#include "store/wan_queue_merge.h"

#include "store/wan_queue_inner.h"

#include <stdlib.h>

wan_status wan_merge_make_room(wan_merge *merge, uint32_t partitions)
{
    if (partitions <= merge->capacity) return WAN_OK;
    wan_merge_head *heads = realloc(merge->heads, partitions * sizeof *heads);
    if (!heads) return WAN_FAIL(WAN_NO_MEMORY, "no memory to merge %" PRIu32 " partitions", partitions);
    merge->heads = heads;
    merge->capacity = partitions;
    return WAN_OK;
}

void wan_merge_close(wan_merge *merge)
{
    free(merge->heads);
    *merge = (wan_merge){0};
}

/* The sequence of the next event of a partition. 0: there is none. */
static uint64_t next_event(const wan_partition *partition)
{
    if (!partition->leads || !partition->unpeeked) return 0;
    return wan_queue_next_live(partition, partition->peeked + 1, partition->appended);
}

static inline int is_before(const wan_merge_head *one, const wan_merge_head *other)
{
    if (one->arrival != other->arrival) return one->arrival < other->arrival;
    return one->partition < other->partition;
}

/* Moves the head at place `at` down to where it belongs. */
static void sift_down(wan_merge *merge, uint32_t at)
{
    const wan_merge_head head = merge->heads[at];
    for (uint32_t below; (below = 2 * at + 1) < merge->count; at = below) {
        if (below + 1 < merge->count && is_before(&merge->heads[below + 1], &merge->heads[below])) below++;
        if (!is_before(&merge->heads[below], &head)) break;
        merge->heads[at] = merge->heads[below];
    }
    merge->heads[at] = head;
}

void wan_merge_begin(wan_merge *merge, const wan_queue *queue)
{
    WAN_DEBUG_CHECK(merge->capacity >= queue->partition_count && queue->keeps_arrivals);
    merge->count = 0;
    for (uint32_t n = queue->own_count; n < queue->partition_count; n++) {
        const uint64_t sequence = next_event(&queue->partitions[n]);
        if (sequence)
            merge->heads[merge->count++] =
                (wan_merge_head){.arrival = arrival_of(&queue->partitions[n], sequence), .partition = n};
    }
    for (uint32_t n = merge->count / 2; n--;) sift_down(merge, n);
}

/* How many events of the partition, from `sequence` on, arrived before the next event of any other one. At most
 * `count`, and none that does not count. */
static uint32_t run_length(const wan_merge *merge, const wan_partition *partition, uint64_t sequence, uint64_t end,
                           uint32_t count)
{
    const uint32_t number = merge->heads[0].partition;
    const wan_merge_head *next = merge->count > 1 ? &merge->heads[1] : NULL;
    uint32_t length = 0;
    if (merge->count > 2 && is_before(&merge->heads[2], next)) next = &merge->heads[2];
    do {
        const wan_merge_head head = {.arrival = arrival_of(partition, sequence), .partition = number};
        if (next && !is_before(&head, next)) break;
        length++;
        if (sequence == end) break;
        sequence = wan_queue_next_live(partition, sequence + 1, end);
    } while (sequence && length < count);
    return length;
}

uint32_t wan_merge_peek(wan_merge *merge, wan_queue *queue, uint32_t count, uint64_t bytes, int at_least_one,
                        wan_record **records, uint64_t *sequences, wan_merged_run *run, int *waits)
{
    *waits = 0;
    if (!merge->count || !count) return 0;
    wan_merge_head *head = &merge->heads[0];
    const wan_partition *partition = &queue->partitions[head->partition];
    const uint64_t end = stable_through(queue, partition);
    uint64_t sequence = next_event(partition);
    WAN_CHECK(queue, sequence, 0);
    if (sequence > end) {
        *waits = 1;
        return 0;
    }
    run->partition = head->partition;
    run->first = partition->peeked + 1;
    run->count = wan_queue_peek(queue, head->partition, run_length(merge, partition, sequence, end, count), bytes,
                                at_least_one, records, sequences, &run->bytes);
    if (!run->count) return 0;
    sequence = next_event(partition);
    if (sequence) head->arrival = arrival_of(partition, sequence);
    else *head = merge->heads[--merge->count];
    if (merge->count) sift_down(merge, 0);
    return run->count;
}
