/* Owns the ring of a partition's entry blocks, and the gaps in it. Holes that fill whole blocks need no blocks, so what
 * a queue takes follows the events that it has, and not the distance between their sequences. */
#include <stdlib.h>
#include <string.h>

#include "store/wan_queue_inner.h"

wan_block wan_queue_no_block;

/* Moves the ring to memory for `capacity` blocks, the oldest one to the place `at`. */
static wan_status lay_ring(wan_partition *partition, uint32_t capacity, uint64_t at)
{
    wan_block *blocks = calloc(capacity, sizeof *blocks);
    if (!blocks) return WAN_FAIL(WAN_NO_MEMORY, "no memory for %" PRIu32 " entry blocks", capacity);
    for (uint64_t n = 0; n < partition->block_count; n++) blocks[(at + n) & (capacity - 1)] = *nth_block(partition, n);
    free(partition->blocks);
    partition->blocks = blocks;
    partition->block_capacity = capacity;
    partition->ring_at = at;
    return WAN_OK;
}

wan_status wan_queue_block_room(wan_partition *partition)
{
    if (partition->block_count < partition->block_capacity) return WAN_OK;
    return lay_ring(partition, partition->block_capacity ? partition->block_capacity * 2 : 4, partition->ring_at);
}

/* How many blocks have lower numbers. */
static uint64_t place_of(const wan_partition *partition, uint64_t number)
{
    uint64_t low = 0, high = partition->block_count;
    if (high && nth_block(partition, high - 1)->number < number) return high; /* The usual case. */
    while (low < high) {
        const uint64_t middle = (low + high) / 2;
        if (nth_block(partition, middle)->number < number) low = middle + 1;
        else high = middle;
    }
    return low;
}

wan_block *wan_queue_find_block(const wan_partition *partition, uint64_t number)
{
    const uint64_t place = place_of(partition, number);
    if (place == partition->block_count || nth_block(partition, place)->number != number) return &wan_queue_no_block;
    return nth_block(partition, place);
}

uint64_t wan_queue_find_end(const wan_partition *partition, uint64_t sequence)
{
    const uint64_t number = (sequence - 1) / WAN_BLOCK_ENTRIES, place = place_of(partition, number);
    if (place == partition->block_count) return UINT64_MAX;
    const uint64_t next = nth_block(partition, place)->number;
    return (next == number ? number + 1 : next) * WAN_BLOCK_ENTRIES;
}

void wan_queue_put_block(wan_partition *partition, uint64_t number, uint8_t *entries, uint32_t segment)
{
    const uint64_t place = place_of(partition, number), count = partition->block_count;
    if (place == 0) {
        partition->first_block = number;
        partition->ring_at = count ? partition->ring_at - 1 : number;
    } else if (place < count / 2) {
        partition->ring_at--;
        for (uint64_t n = 0; n < place; n++) *nth_block(partition, n) = *nth_block(partition, n + 1);
    } else {
        for (uint64_t n = count; n > place; n--) *nth_block(partition, n) = *nth_block(partition, n - 1);
    }
    *nth_block(partition, place) =
        (wan_block){.entries = (wan_entry_ref *)entries, .number = number, .segment = segment};
    partition->block_count++;
    wan_queue_close_gaps(partition);
}

void wan_queue_close_gaps(wan_partition *partition)
{
    const uint64_t count = partition->block_count, first = partition->first_block, mask = partition->block_capacity - 1;
    if (WAN_LIKELY(!partition->has_gaps)) return;
    if (count && nth_block(partition, count - 1)->number - first + 1 != count) return;
    if (partition->removed < partition->appended
        && (!count || first > partition->removed / WAN_BLOCK_ENTRIES
            || (first + count) * WAN_BLOCK_ENTRIES < partition->appended))
        return;
    /* Without memory for the ring the blocks are searched for a while longer. */
    if (count && (partition->ring_at ^ first) & mask && lay_ring(partition, partition->block_capacity, first) != WAN_OK)
        return;
    partition->has_gaps = 0;
}

void wan_queue_skip_to(wan_partition *partition, uint64_t appended)
{
    if (partition->appended >= appended) return;
    const uint64_t in_block = partition->appended % WAN_BLOCK_ENTRIES;
    const wan_block *newest = partition->block_count ? nth_block(partition, partition->block_count - 1) : NULL;
    if (newest && newest->number == partition->appended / WAN_BLOCK_ENTRIES) {
        uint64_t left = WAN_BLOCK_ENTRIES - in_block;
        if (left > appended - partition->appended) left = appended - partition->appended;
        memset(newest->entries + in_block, 0, left * sizeof *newest->entries);
        partition->appended += left;
    }
    if (partition->appended == appended) return;
    partition->has_gaps = 1;
    partition->appended = appended;
}
