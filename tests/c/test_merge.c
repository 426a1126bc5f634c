/* Owns the tests of streams whose events leave in the order in which they reached the queue. */
#include "harness.h"
#include "store/wan_queue.h"
#include "store/wan_queue_merge.h"

#define BUCKETS 5u
#define MOST    4000u

static wan_queue queue;
static wan_merge merge;
static failing_disk disk;
static uint64_t high_watermark[BUCKETS]; /* Of each bucket: how many of its changes count. */
static uint64_t appended[BUCKETS];
static uint64_t stamp;
static uint32_t first; /* The partition of bucket 0. */

static void open_queue(uint32_t own)
{
    failing_disk_init(&disk);
    memset(high_watermark, 0, sizeof high_watermark);
    memset(appended, 0, sizeof appended);
    EXPECT_EQUAL(wan_queue_init(&queue, &disk.env, "nowhere", 0, own, 0), WAN_OK);
    wan_queue_keep_arrivals(&queue);
    EXPECT_EQUAL(wan_queue_add_run(&queue, 5, BUCKETS, own, NULL, &first), WAN_OK);
    EXPECT_EQUAL(wan_merge_make_room(&merge, queue.partition_count), WAN_OK);
    for (uint32_t n = 0; n < BUCKETS; n++) {
        EXPECT_EQUAL(wan_queue_feed(&queue, first + n, &high_watermark[n], 1, 0), WAN_OK);
        wan_queue_lead(&queue, first + n, 1, 1);
    }
}

static void close_queue(void)
{
    wan_merge_close(&merge);
    wan_queue_close(&queue);
    EXPECT_EQUAL(disk.live, 0);
}

/* A change of a bucket. Its value says which change of the test it is: the stamp. */
static void append_stamped(uint32_t bucket, uint64_t with_stamp, uint8_t flags)
{
    record_plan plan = {.operation = WAN_CREATE, .region = 5, .key = "k", .stamp = with_stamp};
    wan_reservation reservation;
    EXPECT_EQUAL(wan_queue_reserve_at(&queue, first + bucket, ++appended[bucket], plan_length(&plan), &reservation),
                 WAN_OK);
    write_plan(reservation.at, &plan);
    ((wan_record *)reservation.at)->flags |= flags;
    wan_queue_commit(&queue, &reservation);
}

static void append(uint32_t bucket) { append_stamped(bucket, ++stamp, 0); }

static void count_all(void)
{
    for (uint32_t n = 0; n < BUCKETS; n++) {
        high_watermark[n] = appended[n];
        wan_queue_count(&queue, first + n);
    }
}

static uint64_t taken[MOST]; /* The stamps of what was taken. */
static uint32_t runs;        /* In how many runs. */
static int waits;

/* Takes up to `most` events, one run after the other, and returns how many they were. */
static uint32_t take(uint32_t most, uint64_t bytes)
{
    wan_record *records[MOST];
    uint64_t sequences[MOST];
    uint32_t count = 0;
    wan_merged_run run;
    runs = 0;
    wan_merge_begin(&merge, &queue);
    while (count < most
           && wan_merge_peek(&merge, &queue, most - count, bytes, count == 0, records + count, sequences + count, &run,
                             &waits)) {
        EXPECT(run.count > 0 && sequences[count] >= run.first);
        EXPECT_EQUAL(sequences[count + run.count - 1], queue.partitions[run.partition].peeked);
        bytes -= run.bytes < bytes ? run.bytes : bytes;
        count += run.count;
        runs++;
    }
    for (uint32_t n = 0; n < count; n++) taken[n] = records[n]->stamp;
    return count;
}

static void the_events_of_several_streams_leave_in_the_order_in_which_they_came(void)
{
    open_queue(3);
    const uint32_t order[] = {3, 0, 0, 4, 3, 1, 0};
    for (uint32_t n = 0; n < 7; n++) append(order[n]);
    count_all();
    EXPECT_EQUAL(take(MOST, WAN_NO_LIMIT), 7);
    EXPECT_EQUAL(runs, 6); /* The two of bucket 0 are one run. */
    for (uint32_t n = 1; n < 7; n++) EXPECT(taken[n] == taken[n - 1] + 1);
    EXPECT(!waits && take(MOST, WAN_NO_LIMIT) == 0 && !waits);
    close_queue();
}

static void what_is_not_replicated_yet_holds_up_all_that_came_after_it(void)
{
    open_queue(1);
    stamp = 0;
    for (uint32_t n = 0; n < 4; n++) append(n);
    append(0);
    high_watermark[0] = 2;
    high_watermark[2] = high_watermark[3] = 1;
    for (uint32_t n = 0; n < BUCKETS; n++) wan_queue_count(&queue, first + n);
    EXPECT(take(MOST, WAN_NO_LIMIT) == 1 && taken[0] == 1 && waits);
    EXPECT(take(MOST, WAN_NO_LIMIT) == 0 && waits);
    high_watermark[1] = 1;
    EXPECT_EQUAL(wan_queue_count(&queue, first + 1), 1);
    EXPECT(take(MOST, WAN_NO_LIMIT) == 4 && taken[0] == 2 && taken[3] == 5 && !waits);
    append(2);
    append(1);
    high_watermark[1] = 2;
    wan_queue_count(&queue, first + 1);
    EXPECT(take(MOST, WAN_NO_LIMIT) == 0 && waits);
    wan_queue_lead(&queue, first + 2, 0, 1); /* Another member sends it: here nothing waits for it any more. */
    EXPECT(take(MOST, WAN_NO_LIMIT) == 1 && taken[0] == 7);
    close_queue();
}

static void an_event_that_does_not_fit_holds_up_the_later_ones(void)
{
    open_queue(1);
    stamp = 0;
    append(0);
    append(1);
    append(0);
    count_all();
    const uint64_t length = queue.bytes / 3;
    EXPECT(take(MOST, length) == 1 && taken[0] == 1);
    EXPECT(take(MOST, 2 * length) == 2 && taken[0] == 2 && taken[1] == 3);
    close_queue();
}

static void what_is_sent_again_leaves_in_the_same_order(void)
{
    open_queue(2);
    stamp = 0;
    for (uint32_t n = 0; n < 40; n++) append(n * 7 % BUCKETS);
    count_all();
    EXPECT_EQUAL(take(25, WAN_NO_LIMIT), 25);
    EXPECT_EQUAL(wan_queue_remove(&queue, first, queue.partitions[first].peeked), 5);
    for (uint32_t n = 0; n < BUCKETS; n++) wan_queue_rewind(&queue, first + n);
    EXPECT_EQUAL(take(MOST, WAN_NO_LIMIT), 35);
    for (uint32_t n = 1; n < 35; n++) EXPECT(taken[n] > taken[n - 1]);
    close_queue();
}

static void holes_are_passed_over(void)
{
    open_queue(1);
    stamp = 0;
    for (uint32_t n = 0; n < 6; n++) append(n % 2);
    wan_queue_make_hole(&queue, first + 1, 1, WAN_HOLE_DROPPED);
    wan_queue_make_hole(&queue, first, 2, WAN_HOLE_DROPPED);
    count_all();
    EXPECT_EQUAL(take(MOST, WAN_NO_LIMIT), 4);
    EXPECT(taken[0] == 1 && taken[1] == 4 && taken[2] == 5 && taken[3] == 6);
    close_queue();
}

static void the_events_of_a_snapshot_have_their_places_by_their_stamps(void)
{
    uint8_t old[512];
    open_queue(1);
    appended[0] = appended[1] = 2;
    append_stamped(0, 100, 0);
    append_stamped(1, 90, 0); /* Its clock is behind. */
    for (uint64_t n = 0; n < 4; n++) {
        const record_plan plan = {.operation = WAN_CREATE, .region = 5, .key = "k", .stamp = 10 + n};
        write_plan(old, &plan);
        EXPECT_EQUAL(wan_queue_restore(&queue, first + (uint32_t)(n % 2), 1 + n / 2, (const wan_record *)old), WAN_OK);
    }
    count_all();
    EXPECT_EQUAL(take(MOST, WAN_NO_LIMIT), 6);
    EXPECT(taken[0] == 10 && taken[1] == 11 && taken[2] == 12 && taken[3] == 13 && taken[4] == 100 && taken[5] == 90);
    close_queue();
}

static void a_stamp_that_a_caller_gave_moves_no_event(void)
{
    open_queue(1);
    append_stamped(0, 1ull << 63, WAN_FLAG_GIVEN);
    append_stamped(1, 5, 0);
    append_stamped(0, 6, 0);
    EXPECT_EQUAL(queue.arrival, 6);
    count_all();
    EXPECT_EQUAL(take(MOST, WAN_NO_LIMIT), 3);
    EXPECT(taken[1] == 5 && taken[2] == 6);
    close_queue();
}

static void one_dispatcher_has_all_streams_and_the_others_have_own_partitions(void)
{
    open_queue(3);
    EXPECT_EQUAL(first, 3);
    for (uint32_t n = 0; n < 3; n++) EXPECT_EQUAL(wan_queue_dispatcher(&queue, n, 3), n);
    for (uint32_t n = 3; n < queue.partition_count; n++) EXPECT_EQUAL(wan_queue_dispatcher(&queue, n, 3), 0);
    for (uint32_t dispatcher = 0; dispatcher < 3; dispatcher++) {
        uint32_t seen = 0;
        for (uint32_t n = dispatcher; n < queue.partition_count; n = wan_queue_next_of_dispatcher(&queue, n, 3)) {
            EXPECT_EQUAL(wan_queue_dispatcher(&queue, n, 3), dispatcher);
            seen++;
        }
        EXPECT_EQUAL(seen, dispatcher ? 1 : 1 + BUCKETS);
    }
    close_queue();
}

static void random_streams_leave_in_order_whatever_is_taken_at_once_and_sent_again(void)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        random_source source = {.state = seed};
        uint64_t sent = 0, came = 0;
        open_queue(1);
        stamp = 0;
        while (came < 3000 || queue.events) {
            const uint64_t what = random_below(&source, 10);
            if (what < 5 && came < 3000) {
                for (uint64_t n = random_below(&source, 60); n--; came++)
                    append((uint32_t)random_below(&source, BUCKETS));
            } else if (what < 7) {
                const uint32_t bucket = (uint32_t)random_below(&source, BUCKETS);
                high_watermark[bucket] = appended[bucket];
                wan_queue_count(&queue, first + bucket);
                if (came >= 3000) count_all();
            } else if (what < 9) {
                const uint32_t count = take(1 + (uint32_t)random_below(&source, 90), WAN_NO_LIMIT);
                for (uint32_t n = 0; n < count; n++) EXPECT_EQUAL(taken[n], sent + 1 + n);
                sent += count;
            } else if (random_below(&source, 2)) {
                for (uint32_t n = 0; n < BUCKETS; n++) wan_queue_rewind(&queue, first + n);
                sent = stamp - queue.events;
            } else { /* All that was sent is acknowledged. */
                for (uint32_t n = 0; n < BUCKETS; n++)
                    wan_queue_remove(&queue, first + n, queue.partitions[first + n].peeked);
            }
        }
        EXPECT_EQUAL(sent, came);
        close_queue();
    }
}

const test_case merge_tests[] = {
    {"the events of several streams leave in the order in which they came",
     the_events_of_several_streams_leave_in_the_order_in_which_they_came},
    {"what is not replicated yet holds up all that came after it",
     what_is_not_replicated_yet_holds_up_all_that_came_after_it},
    {"an event that does not fit holds up the later ones", an_event_that_does_not_fit_holds_up_the_later_ones},
    {"what is sent again leaves in the same order", what_is_sent_again_leaves_in_the_same_order},
    {"holes are passed over", holes_are_passed_over},
    {"the events of a snapshot have their places by their stamps",
     the_events_of_a_snapshot_have_their_places_by_their_stamps},
    {"a stamp that a caller gave moves no event", a_stamp_that_a_caller_gave_moves_no_event},
    {"one dispatcher has all streams, and the others have own partitions",
     one_dispatcher_has_all_streams_and_the_others_have_own_partitions},
    {"random streams leave in order, whatever is taken at once and sent again",
     random_streams_leave_in_order_whatever_is_taken_at_once_and_sent_again},
    {0},
};
