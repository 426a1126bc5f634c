/* Owns which events of other sites a queue has taken, by the stream that each event came by. An event that comes again
 * is recognised so, whatever became of its entry in the region meanwhile. The lock of the queue guards it. */
#ifndef WAN_SOURCES_H
#define WAN_SOURCES_H
#include <stdint.h>

#include "base/wan_buffer.h"

/* The place of an event in the stream that it came by. With `through`, all events of the stream through that sequence.
 * docs/segment_format.md shows it byte by byte. */
typedef struct {
    uint64_t source[2]; /* The digest of the stream's name: site, sender, and numbering or region. Never zeros. */
    uint64_t
        timeline; /* Sequences mean the same events only in one timeline: a mount of a queue, a timeline of a bucket. */
    uint64_t through;
    uint32_t partition; /* Of the sender's queue, or the bucket of the region. */
    uint32_t reserved;  /* 0. */
} wan_source_place;

_Static_assert(sizeof(wan_source_place) == 40, "the places of streams are a format");

/* Zeros are an empty one. A queue that was told more places than WAN_SOURCES_MAX forgets all. Events that come again
 * then enter again, as possible duplicates. */
typedef struct {
    wan_buffer places; /* Each a wan_source_place. */
    uint32_t *index;   /* By hash: the number of a place, from 1. 0: free. */
    uint32_t mask;
    uint32_t newest; /* The place that was found last, from 1. Events of a stream come together. */
} wan_sources;

enum { WAN_SOURCES_MAX = 131072 };

/* Whether the event at this place was taken. */
int wan_sources_has(wan_sources *sources, const wan_source_place *place);

/* Makes sure that the next call of `wan_sources_note` has memory. WAN_NO_MEMORY: nothing changed. */
wan_status wan_sources_reserve(wan_sources *sources);

/* Notes that the event at this place was taken, and all before it. A call of `wan_sources_reserve` came before. */
void wan_sources_note(wan_sources *sources, const wan_source_place *place);

/* The same for places that come from a log. Those of one stream come in the order in which they were written. Returns
 * WAN_CORRUPT for bytes that are no places. */
wan_status wan_sources_load(wan_sources *sources, const uint8_t *bytes, uint64_t length);

void wan_sources_close(wan_sources *sources);

#endif
