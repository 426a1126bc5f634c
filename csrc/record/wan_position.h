/* Owns positions: where records stand in a queue. A position lies beside its records, in what is pending for a log and
 * in the parts of a log. */
#ifndef WAN_POSITION_H
#define WAN_POSITION_H
#include "base/wan_base.h"

/* The position of `count` records that follow each other in a partition, from the sequence `first` on. */
typedef struct {
    uint32_t partition;
    uint32_t count;
    uint64_t first;
} wan_position;

_Static_assert(sizeof(wan_position) == 16, "a position is a format");

/* Copies `count` positions to `to`, and joins those that follow each other. Returns how many positions that makes. */
static inline uint32_t wan_positions_join(wan_position *restrict to, const wan_position *restrict positions,
                                          uint32_t count)
{
    uint32_t made = 0;
    for (uint32_t n = 0; n < count; n++) {
        wan_position *last = &to[made - (made > 0)];
        if (made && last->partition == positions[n].partition && last->first + last->count == positions[n].first
            && last->count <= UINT32_MAX - positions[n].count)
            last->count += positions[n].count;
        else to[made++] = positions[n];
    }
    return made;
}

/* A walk over a part of a queue's log. The part is positions, then their records. */
typedef struct {
    const wan_position *position, *end;
    uint32_t done;     /* The records of *position that the walk has passed. */
    const uint8_t *at; /* The next record. */
    uint64_t left;     /* The bytes from there to the end of the part. */
} wan_position_walk;

/* Begins a walk over a part of `length` bytes with `items` positions. WAN_CORRUPT: the part is too short for its
 * positions, or one of them is impossible. */
static inline wan_status wan_positions_begin(wan_position_walk *walk, const uint8_t *part, uint64_t length,
                                             uint32_t items)
{
    const uint64_t head = (uint64_t)items * sizeof(wan_position);
    if (head > length)
        return WAN_FAIL(WAN_CORRUPT, "a part of %" PRIu64 " bytes cannot hold %" PRIu32 " positions", length, items);
    const wan_position *positions = (const wan_position *)part;
    *walk = (wan_position_walk){positions, positions + items, 0, part + head, length - head};
    for (uint32_t n = 0; n < items; n++)
        if (positions[n].count == 0 || positions[n].first == 0 || positions[n].first > UINT64_MAX - positions[n].count)
            return WAN_FAIL(WAN_CORRUPT, "a position of %" PRIu32 " records from sequence %" PRIu64 " on",
                            positions[n].count, positions[n].first);
    return WAN_OK;
}

/* Finds the position of the next record. Returns 0 after the last one. */
static inline int wan_positions_next(wan_position_walk *walk, uint32_t *partition, uint64_t *sequence)
{
    if (walk->position == walk->end) return 0;
    *partition = walk->position->partition;
    *sequence = walk->position->first + walk->done;
    if (++walk->done == walk->position->count) {
        walk->position++;
        walk->done = 0;
    }
    return 1;
}

/* Moves on to the next record. The record that is passed was `length` bytes long. */
static inline void wan_positions_pass(wan_position_walk *walk, uint64_t length)
{
    walk->at += length;
    walk->left -= length;
}

#endif
