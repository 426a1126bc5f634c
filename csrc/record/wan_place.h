/* Owns where records stand in a queue, as it is said beside them: in what is staged for a log, and in its parts. */
#ifndef WAN_PLACE_H
#define WAN_PLACE_H
#include "base/wan_base.h"

typedef struct { /* `count` records that follow each other, in a partition from the sequence `first` on. */
    uint32_t partition;
    uint32_t count;
    uint64_t first;
} wan_place;

_Static_assert(sizeof(wan_place) == 16, "a place is a format");

/* Writes `count` places to `to`, those that follow each other as one. Returns how many that makes. */
static inline uint32_t wan_places_join(wan_place *restrict to, const wan_place *restrict places, uint32_t count)
{
    uint32_t made = 0;
    for (uint32_t n = 0; n < count; n++) {
        wan_place *last = &to[made - (made > 0)];
        if (made && last->partition == places[n].partition && last->first + last->count == places[n].first
            && last->count <= UINT32_MAX - places[n].count)
            last->count += places[n].count;
        else to[made++] = places[n];
    }
    return made;
}

/* A walk over a part of a queue's log: `items` places, then their records. */
typedef struct {
    const wan_place *place, *end;
    uint32_t done;     /* Of the records of *place. */
    const uint8_t *at; /* The next record, */
    uint64_t left;     /* and how many bytes are from there on. */
} wan_place_walk;

/* WAN_CORRUPT if the part is too short for its places, or one of them is none. */
static inline wan_status wan_places_begin(wan_place_walk *walk, const uint8_t *part, uint64_t length, uint32_t items)
{
    const uint64_t head = (uint64_t)items * sizeof(wan_place);
    if (head > length)
        return WAN_FAIL(WAN_CORRUPT, "a part of %" PRIu64 " bytes cannot hold %" PRIu32 " places", length, items);
    const wan_place *places = (const wan_place *)part;
    *walk = (wan_place_walk){places, places + items, 0, part + head, length - head};
    for (uint32_t n = 0; n < items; n++)
        if (places[n].count == 0 || places[n].first == 0 || places[n].first > UINT64_MAX - places[n].count)
            return WAN_FAIL(WAN_CORRUPT, "a place of %" PRIu32 " records from sequence %" PRIu64 " on", places[n].count,
                            places[n].first);
    return WAN_OK;
}

/* Where the next record stands; 0: that was the last place. */
static inline int wan_places_next(wan_place_walk *walk, uint32_t *partition, uint64_t *sequence)
{
    if (walk->place == walk->end) return 0;
    *partition = walk->place->partition;
    *sequence = walk->place->first + walk->done;
    if (++walk->done == walk->place->count) {
        walk->place++;
        walk->done = 0;
    }
    return 1;
}

/* The record of that place was `length` bytes long. */
static inline void wan_places_pass(wan_place_walk *walk, uint64_t length)
{
    walk->at += length;
    walk->left -= length;
}

#endif
