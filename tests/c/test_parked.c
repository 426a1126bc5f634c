/* Owns the tests of the index of parked events, compared with a plain array. */
#include "harness.h"
#include "store/wan_parked.h"

static wan_parked parked;

/* Marks that begin their search at few places, so that they stand in each other's way. */
static wan_event_mark mark_of(uint64_t number) { return (wan_event_mark){number % 7, number * 2 + 1}; }

static wan_parked_event *add(uint64_t number)
{
    wan_event_mark mark = mark_of(number);
    EXPECT_EQUAL(wan_parked_reserve(&parked), WAN_OK);
    wan_parked_event *event = wan_parked_add(&parked, &mark);
    event->sequence = number;
    return event;
}

static wan_parked_event *find(uint64_t number)
{
    wan_event_mark mark = mark_of(number);
    return wan_parked_find(&parked, &mark);
}

static void leave(uint64_t number)
{
    wan_event_mark mark = mark_of(number);
    EXPECT_EQUAL(wan_parked_leave(&parked, &mark), WAN_OK);
}

static void the_mark_of_an_event_is_that_of_its_id_version_and_key(void)
{
    wan_record record = {.event_sequence = 5, .event_member = 1, .event_thread = 2, .stamp = 9, .stamp_site = 1};
    const wan_event_mark mark = wan_mark_of(&record, 77), same = wan_mark_of(&record, 77);
    EXPECT(mark.low == same.low && mark.high == same.high);
    record.flags = WAN_FLAG_FORCED; /* How it travels is not what it is, and neither is the number of its region. */
    record.region = 3;
    EXPECT(wan_mark_of(&record, 77).low == mark.low && wan_mark_of(&record, 77).high == mark.high);
    EXPECT(wan_mark_of(&record, 78).low != mark.low);
    record.stamp = 10;
    EXPECT(wan_mark_of(&record, 77).low != mark.low && wan_mark_of(&record, 77).high != mark.high);
}

static void events_come_change_and_go_as_in_a_plain_array(void)
{
    static uint8_t states[300];
    uint64_t random = 11;
    memset(states, 0, sizeof states);
    for (int step = 0; step < 30000; step++) {
        random = random * 6364136223846793005ULL + 1442695040888963407ULL;
        const uint64_t number = (random >> 33) % 300;
        wan_parked_event *event = find(number);
        EXPECT_EQUAL(event ? event->state : WAN_PARKED_FREE, states[number]);
        EXPECT(!event || event->state == WAN_PARKED_LEFT || event->sequence == number);
        switch ((random >> 55) % 4) {
        case 0:
            if (!event) add(number);
            if (!event) states[number] = WAN_PARKED_HERE;
            break;
        case 1:
            if (!event || event->state == WAN_PARKED_LEFT) break;
            wan_parked_set(&parked, event, WAN_PARKED_REPLAYED);
            states[number] = WAN_PARKED_REPLAYED;
            break;
        case 2:
            leave(number);
            states[number] = WAN_PARKED_LEFT;
            break;
        default:
            if (event) wan_parked_forget(&parked, event);
            states[number] = WAN_PARKED_FREE;
        }
        uint64_t counts[4] = {0};
        for (int n = 0; n < 300; n++) counts[states[n]]++;
        EXPECT(parked.here == counts[WAN_PARKED_HERE] && parked.replayed == counts[WAN_PARKED_REPLAYED]);
        EXPECT(parked.left == counts[WAN_PARKED_LEFT] && parked.used == 300 - counts[WAN_PARKED_FREE]);
    }
    wan_parked_close(&parked);
}

static void the_newest_events_that_left_are_remembered(void)
{
    const uint64_t count = WAN_PARKED_LEFT_MAX + 100;
    for (uint64_t n = 0; n < count; n++) {
        wan_event_mark mark = {n * 0x9e3779b97f4a7c15u, n * 2 + 1};
        EXPECT_EQUAL(wan_parked_leave(&parked, &mark), WAN_OK);
        EXPECT_EQUAL(wan_parked_leave(&parked, &mark), WAN_OK); /* Twice is once. */
    }
    EXPECT_EQUAL(parked.left, WAN_PARKED_LEFT_MAX);
    for (uint64_t n = 0; n < count; n++) {
        wan_event_mark mark = {n * 0x9e3779b97f4a7c15u, n * 2 + 1};
        EXPECT((wan_parked_find(&parked, &mark) != NULL) == (n >= 100));
    }
    wan_parked_close(&parked);
}

const test_case parked_tests[] = {
    {"the mark of an event is that of its id version and key", the_mark_of_an_event_is_that_of_its_id_version_and_key},
    {"events come change and go as in a plain array", events_come_change_and_go_as_in_a_plain_array},
    {"the newest events that left are remembered", the_newest_events_that_left_are_remembered},
    {0},
};
