/* Owns what a queue remembers of events of a stream that left it otherwise than by an acknowledgement: the other
 * members that hold the events are told (docs/decisions/0101). */
#include "store/wan_queue_inner.h"

#include <stdlib.h>
#include <string.h>

/* Makes room for one exception more. Without memory all that is known is forgotten. */
static int make_room(wan_partition *partition)
{
    wan_exceptions *known = partition->exceptions;
    if (!known) known = partition->exceptions = calloc(1, sizeof *known);
    if (!known) return 0;
    if (known->count == WAN_EXCEPTIONS_MAX) { /* The older half goes. */
        const uint32_t half = WAN_EXCEPTIONS_MAX / 2;
        WAN_DEBUG_CHECK(known->items && known->count <= known->capacity);
        const wan_exception *last = &known->items[half - 1];
        partition->explained = last->first + last->count - 1;
        memmove(known->items, known->items + half, (WAN_EXCEPTIONS_MAX - half) * sizeof *known->items);
        known->count -= half;
    }
    if (known->count < known->capacity) return 1;
    const uint32_t capacity = known->capacity ? known->capacity * 2 : 16;
    wan_exception *items = realloc(known->items, capacity * sizeof *items);
    if (!items) return 0;
    known->items = items;
    known->capacity = capacity;
    return 1;
}

void wan_queue_note_exception(wan_partition *partition, uint64_t first, uint64_t count, uint32_t reason)
{
    const uint64_t end = first + count;
    if (!partition->tell) return; /* Nobody asks. */
    wan_exceptions *known = partition->exceptions;
    wan_exception *last = known && known->count ? &known->items[known->count - 1] : NULL;
    /* What lies between was no event of this queue, so that one exception covers both. */
    if (last && last->reason == reason && partition->acknowledged < last->first && end - last->first <= UINT32_MAX) {
        last->count = (uint32_t)(end - last->first);
        return;
    }
    if (count > UINT32_MAX || !make_room(partition)) {
        partition->explained = end - 1;
        return;
    }
    known = partition->exceptions;
    WAN_DEBUG_CHECK(known->items && known->count < known->capacity);
    known->items[known->count++] = (wan_exception){.first = first, .count = (uint32_t)count, .reason = reason};
}

void wan_queue_forget_exceptions(wan_partition *partition, uint64_t after)
{
    wan_exceptions *known = partition->exceptions;
    if (partition->acknowledged > after) partition->acknowledged = after;
    if (partition->explained > after) partition->explained = after;
    if (!known) return;
    while (known->count && known->items[known->count - 1].first > after) known->count--;
    if (known->count) {
        wan_exception *last = &known->items[known->count - 1];
        if (last->first + last->count - 1 > after) last->count = (uint32_t)(after - last->first + 1);
    }
    for (uint32_t n = 0; n < WAN_TOLD_MAX; n++)
        if (known->told[n] > after) known->told[n] = after;
}

void wan_queue_close_exceptions(wan_partition *partition)
{
    if (partition->exceptions) free(partition->exceptions->items);
    free(partition->exceptions);
}

uint64_t wan_queue_explained(const wan_queue *queue, uint32_t number, uint32_t to)
{
    const wan_partition *partition = &queue->partitions[number];
    const wan_exceptions *known = partition->exceptions;
    return known && known->told[to] > partition->explained ? known->told[to] : partition->explained;
}

void wan_queue_set_told(wan_queue *queue, uint32_t number, uint32_t to, uint64_t through)
{
    wan_exceptions *known = queue->partitions[number].exceptions;
    if (known) known->told[to] = through;
}

uint32_t wan_queue_exceptions(const wan_queue *queue, uint32_t number, uint64_t after, uint64_t through,
                              wan_exception *exceptions)
{
    const wan_exceptions *known = queue->partitions[number].exceptions;
    uint32_t begin = known ? known->count : 0, count = 0;
    while (begin && known->items[begin - 1].first + known->items[begin - 1].count - 1 > after) begin--;
    for (uint32_t n = begin; known && n < known->count && known->items[n].first <= through; n++) {
        const wan_exception *each = &known->items[n];
        const uint64_t first = each->first > after ? each->first : after + 1, last = each->first + each->count - 1;
        const uint64_t end = last < through ? last : through;
        exceptions[count++] = (wan_exception){first, (uint32_t)(end - first + 1), each->reason};
    }
    return count;
}
