/* Owns which events of other sites a queue has taken. See wan_sources.h. */
#include "store/wan_sources.h"

#include <stdlib.h>

enum { FIRST_CAPACITY = 16 };

static uint64_t count_of(const wan_sources *sources) { return sources->places.used / sizeof(wan_source_place); }

static wan_source_place *place_at(const wan_sources *sources, uint32_t number)
{
    return (wan_source_place *)sources->places.bytes + (number - 1);
}

static int is_stream_of(const wan_source_place *one, const wan_source_place *other)
{
    return one->source[0] == other->source[0] && one->source[1] == other->source[1]
           && one->partition == other->partition;
}

static uint64_t hash_of(const wan_source_place *place)
{
    /* The digest is even already. The partitions of a source are spread by an odd factor. */
    return place->source[0] ^ (place->partition * 0x9e3779b97f4a7c15ULL >> 16);
}

/* The slot of the index that has this stream, or the free slot where it belongs. The index is never full. */
static uint32_t *slot_of(const wan_sources *sources, const wan_source_place *place)
{
    uint32_t slot = (uint32_t)hash_of(place) & sources->mask;
    while (sources->index[slot] && !is_stream_of(place_at(sources, sources->index[slot]), place))
        slot = (slot + 1) & sources->mask;
    return &sources->index[slot];
}

static wan_source_place *find(wan_sources *sources, const wan_source_place *place)
{
    if (sources->newest && is_stream_of(place_at(sources, sources->newest), place))
        return place_at(sources, sources->newest);
    if (!sources->index) return NULL;
    uint32_t number = *slot_of(sources, place);
    if (!number) return NULL;
    sources->newest = number;
    return place_at(sources, number);
}

int wan_sources_has(wan_sources *sources, const wan_source_place *place)
{
    const wan_source_place *known = find(sources, place);
    return known && known->timeline == place->timeline && place->through <= known->through;
}

static wan_status grow_index(wan_sources *sources)
{
    uint32_t capacity = sources->index ? 2 * (sources->mask + 1) : FIRST_CAPACITY;
    uint32_t *fresh = calloc(capacity, sizeof *fresh);
    if (!fresh) return WAN_NO_MEMORY;
    free(sources->index);
    sources->index = fresh;
    sources->mask = capacity - 1;
    for (uint32_t number = 1; number <= count_of(sources); number++)
        *slot_of(sources, place_at(sources, number)) = number;
    return WAN_OK;
}

wan_status wan_sources_reserve(wan_sources *sources)
{
    wan_status status = wan_buffer_reserve(&sources->places, sizeof(wan_source_place));
    if (status != WAN_OK) return status;
    /* At least half of the index stays free. */
    if (sources->index && 2 * (count_of(sources) + 1) <= sources->mask) return WAN_OK;
    return grow_index(sources);
}

static void forget_all(wan_sources *sources)
{
    wan_buffer_empty(&sources->places);
    memset(sources->index, 0, (sources->mask + 1ULL) * sizeof *sources->index);
    sources->newest = 0;
}

void wan_sources_note(wan_sources *sources, const wan_source_place *place)
{
    wan_source_place *known = find(sources, place);
    if (known) {
        if (known->timeline != place->timeline || known->through < place->through) *known = *place;
        return;
    }
    if (count_of(sources) >= WAN_SOURCES_MAX) forget_all(sources);
    WAN_DEBUG_CHECK(sources->places.bytes && sources->index);
    wan_buffer_put(&sources->places, place, sizeof *place);
    sources->newest = *slot_of(sources, place) = (uint32_t)count_of(sources);
}

wan_status wan_sources_load(wan_sources *sources, const uint8_t *bytes, uint64_t length)
{
    if (length % sizeof(wan_source_place))
        return WAN_FAIL(WAN_CORRUPT, "places of streams with %llu bytes", (unsigned long long)length);
    for (uint64_t at = 0; at < length; at += sizeof(wan_source_place)) {
        wan_source_place place;
        memcpy(&place, bytes + at, sizeof place);
        if (place.reserved || !(place.source[0] | place.source[1]))
            return WAN_FAIL(WAN_CORRUPT, "the place of a stream at byte %llu is damaged", (unsigned long long)at);
        wan_status status = wan_sources_reserve(sources);
        if (status != WAN_OK) return status;
        wan_sources_note(sources, &place);
    }
    return WAN_OK;
}

void wan_sources_close(wan_sources *sources)
{
    wan_buffer_close(&sources->places);
    free(sources->index);
    memset(sources, 0, sizeof *sources);
}
