/* Owns the tests of what a queue knows of streams, compared with a plain array. */
#include "harness.h"
#include "store/wan_sources.h"

#define SOURCES    3u
#define PARTITIONS 40u

static wan_sources sources;

static wan_source_place place_of(uint32_t source, uint32_t partition, uint64_t timeline, uint64_t through)
{
    return (wan_source_place){
        .source = {source + 1, 7}, .timeline = timeline, .through = through, .partition = partition};
}

static void note(wan_source_place place)
{
    EXPECT_EQUAL(wan_sources_reserve(&sources), WAN_OK);
    wan_sources_note(&sources, &place);
}

static int has(wan_source_place place) { return wan_sources_has(&sources, &place); }

static void what_was_noted_of_a_stream_is_known_through_its_last_event(void)
{
    EXPECT(!has(place_of(0, 0, 1, 1)));
    note(place_of(0, 0, 1, 5));
    EXPECT(has(place_of(0, 0, 1, 1)));
    EXPECT(has(place_of(0, 0, 1, 5)));
    EXPECT(!has(place_of(0, 0, 1, 6)));
    EXPECT(!has(place_of(0, 1, 1, 5)));
    EXPECT(!has(place_of(1, 0, 1, 5)));
    note(place_of(0, 0, 1, 3)); /* A late word takes nothing back. */
    EXPECT(has(place_of(0, 0, 1, 5)));
    wan_sources_close(&sources);
}

static void sequences_of_another_timeline_are_other_events(void)
{
    note(place_of(0, 0, 1, 500));
    EXPECT(!has(place_of(0, 0, 2, 1)));
    note(place_of(0, 0, 2, 1));
    EXPECT(has(place_of(0, 0, 2, 1)));
    EXPECT(!has(place_of(0, 0, 2, 2)));
    EXPECT(!has(place_of(0, 0, 1, 1)));
    wan_sources_close(&sources);
}

static void many_streams_are_known_as_a_plain_array_knows_them(void)
{
    static uint64_t through[SOURCES][PARTITIONS];
    uint64_t random = 7;
    memset(through, 0, sizeof through);
    for (int step = 0; step < 20000; step++) {
        random = random * 6364136223846793005ULL + 1442695040888963407ULL;
        uint32_t source = (uint32_t)(random >> 40) % SOURCES, partition = (uint32_t)(random >> 50) % PARTITIONS;
        uint64_t sequence = through[source][partition] + (random >> 33) % 3;
        EXPECT_EQUAL(has(place_of(source, partition, 1, sequence)),
                     through[source][partition] != 0 && sequence <= through[source][partition]);
        if (sequence) note(place_of(source, partition, 1, sequence));
        through[source][partition] = sequence;
    }
    wan_sources_close(&sources);
}

static void places_in_a_log_are_loaded_again_and_damaged_ones_are_refused(void)
{
    note(place_of(0, 0, 1, 5));
    note(place_of(2, 9, 4, 6));
    wan_sources loaded = {0};
    EXPECT_EQUAL(wan_sources_load(&loaded, sources.places.bytes, sources.places.used), WAN_OK);
    wan_source_place known = place_of(2, 9, 4, 6);
    EXPECT(wan_sources_has(&loaded, &known));
    EXPECT_EQUAL(wan_sources_load(&loaded, sources.places.bytes, 39), WAN_CORRUPT);
    ((wan_source_place *)sources.places.bytes)->reserved = 1;
    EXPECT_EQUAL(wan_sources_load(&loaded, sources.places.bytes, sizeof known), WAN_CORRUPT);
    memset(sources.places.bytes, 0, sizeof known);
    EXPECT_EQUAL(wan_sources_load(&loaded, sources.places.bytes, sizeof known), WAN_CORRUPT);
    wan_sources_close(&loaded);
    wan_sources_close(&sources);
}

static void a_queue_that_is_told_of_too_many_streams_forgets_and_goes_on(void)
{
    for (uint32_t n = 0; n <= WAN_SOURCES_MAX; n++) note(place_of(0, n, 1, 1));
    EXPECT(!has(place_of(0, 0, 1, 1)));
    EXPECT(has(place_of(0, WAN_SOURCES_MAX, 1, 1)));
    wan_sources_close(&sources);
}

const test_case sources_tests[] = {
    {"what was noted of a stream is known through its last event",
     what_was_noted_of_a_stream_is_known_through_its_last_event},
    {"sequences of another timeline are other events", sequences_of_another_timeline_are_other_events},
    {"many streams are known as a plain array knows them", many_streams_are_known_as_a_plain_array_knows_them},
    {"places in a log are loaded again and damaged ones are refused",
     places_in_a_log_are_loaded_again_and_damaged_ones_are_refused},
    {"a queue that is told of too many streams forgets and goes on",
     a_queue_that_is_told_of_too_many_streams_forgets_and_goes_on},
    {0},
};
