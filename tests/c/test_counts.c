/* Owns the tests of counters as they lie in the state of a log, and of the order of new stamps. */
#include "harness.h"
#include "region/wan_new_stamp.h"
#include "session/wan_counts.h"

static void saved_counters_come_back_and_those_of_zero_take_no_room(void)
{
    wan_queue_counts counts = {0}, loaded;
    wan_counter saved[WAN_QUEUE_COUNTERS_COUNT];
    EXPECT_EQUAL(wan_queue_counts_save(&counts, saved), 0);
    uint64_t *field = (uint64_t *)&counts;
    for (int n = 0; n < WAN_QUEUE_COUNTERS_COUNT; n += 2) field[n] = (uint64_t)n + 1;
    EXPECT_EQUAL(wan_queue_counts_save(&counts, saved), (WAN_QUEUE_COUNTERS_COUNT + 1) / 2);
    memset(&loaded, 0xee, sizeof loaded);
    EXPECT_EQUAL(wan_queue_counts_load(&loaded, saved, (WAN_QUEUE_COUNTERS_COUNT + 1) / 2), WAN_OK);
    EXPECT(memcmp(&loaded, &counts, sizeof counts) == 0);
}

static void a_counter_that_nobody_knows_and_one_that_is_there_twice_are_refused_by_number(void)
{
    wan_queue_counts counts;
    EXPECT_EQUAL(wan_queue_counts_load(&counts, (wan_counter[]){{9999, 1}}, 1), WAN_CORRUPT);
    EXPECT(strstr(wan_detail, "9999") != NULL);
    EXPECT_EQUAL(wan_queue_counts_load(&counts, (wan_counter[]){{2, 1}, {2, 1}}, 2), WAN_CORRUPT);
    EXPECT(strstr(wan_detail, "number 2 twice") != NULL);
}

static void each_counter_has_a_name_and_a_number_of_its_own(void)
{
    for (int n = 0; n < WAN_QUEUE_COUNTERS_COUNT; n++) {
        EXPECT(wan_queue_counter_rows[n].number > 0 && wan_queue_counter_rows[n].field[0]
               && wan_queue_counter_rows[n].about[0]);
        for (int other = 0; other < n; other++) {
            EXPECT(wan_queue_counter_rows[n].number != wan_queue_counter_rows[other].number);
            EXPECT(strcmp(wan_queue_counter_rows[n].field, wan_queue_counter_rows[other].field) != 0);
        }
    }
}

static void new_stamps_ascend_by_the_old_one_and_what_is_known_comes_first(void)
{
    enum { COUNT = 2000 };
    static wan_new_stamp stamps[COUNT];
    random_source source = {.state = 3};
    uint64_t sum = 0, sorted = 0;
    for (int n = 0; n < COUNT; n++) {
        stamps[n] =
            (wan_new_stamp){random_below(&source, 500), random_below(&source, 2) ? 1 + random_below(&source, 9) : 0};
        sum += stamps[n].old * 100 + stamps[n].fresh;
    }
    wan_new_stamps_sort(stamps, COUNT);
    for (int n = 0; n < COUNT; n++) {
        sorted += stamps[n].old * 100 + stamps[n].fresh;
        if (!n) continue;
        EXPECT(stamps[n - 1].old <= stamps[n].old);
        EXPECT(stamps[n - 1].old != stamps[n].old || stamps[n - 1].fresh || !stamps[n].fresh);
    }
    EXPECT_EQUAL(sorted, sum);
}

const test_case counts_tests[] = {
    {"saved counters come back, and those of zero take no room",
     saved_counters_come_back_and_those_of_zero_take_no_room},
    {"a counter that nobody knows and one that is there twice are refused by number",
     a_counter_that_nobody_knows_and_one_that_is_there_twice_are_refused_by_number},
    {"each counter has a name and a number of its own", each_counter_has_a_name_and_a_number_of_its_own},
    {"new stamps ascend by the old one, and what is known comes first",
     new_stamps_ascend_by_the_old_one_and_what_is_known_comes_first},
    {0},
};
