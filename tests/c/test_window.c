/* Owns the tests of the window, on a link in simulated time. The test knows the delay and the rate of the link, and the
 * window does not. */
#include "harness.h"
#include "session/wan_window.h"

#define BATCHES_MAX 65536u

typedef struct {
    uint64_t one_way_us;
    double bytes_per_us;
    uint64_t batch;
    uint64_t limit;
    uint64_t every_us; /* A batch is ready once in this time. 0: always. */
    uint64_t noise_us; /* Each one may come so much later. */
    /* The state of the link. */
    wan_window window;
    uint64_t now_us, flight, acknowledged, most_in_flight, next_batch_us;
    double line_free_us; /* When the line will have carried everything that it was given. */
    struct {
        wan_window_sending sending;
        uint64_t arrives_us, bytes;
    } ring[BATCHES_MAX];
    uint32_t first, count;
    random_source source;
} simulated_link;

static simulated_link the_link;

static void open_link(uint64_t round_trip_ms, double megabytes_per_s, uint64_t batch)
{
    memset(&the_link, 0, sizeof the_link);
    the_link.one_way_us = round_trip_ms * 500;
    the_link.bytes_per_us = megabytes_per_s;
    the_link.batch = batch;
    the_link.limit = 64u << 20;
    the_link.now_us = 1000000;
    the_link.source.state = 1;
    wan_window_init(&the_link.window, the_link.limit, the_link.now_us);
}

static void run_for(uint64_t us)
{
    uint64_t end = the_link.now_us + us;
    the_link.most_in_flight = the_link.acknowledged = 0;
    while (the_link.now_us < end) {
        while (wan_window_is_open(&the_link.window, the_link.flight) && the_link.count < BATCHES_MAX
               && the_link.now_us >= the_link.next_batch_us) {
            the_link.flight += the_link.batch;
            uint32_t at = (the_link.first + the_link.count++) % BATCHES_MAX;
            the_link.ring[at].sending =
                wan_window_sent(&the_link.window, the_link.flight, the_link.batch, the_link.now_us);
            the_link.ring[at].bytes = the_link.batch;
            double start = (double)(the_link.now_us + the_link.one_way_us);
            if (the_link.line_free_us > start) start = the_link.line_free_us;
            the_link.line_free_us = start + (double)the_link.batch / the_link.bytes_per_us;
            the_link.ring[at].arrives_us =
                (uint64_t)the_link.line_free_us + the_link.one_way_us
                + (the_link.noise_us ? random_below(&the_link.source, (uint32_t)the_link.noise_us) : 0);
            if (the_link.flight > the_link.most_in_flight) the_link.most_in_flight = the_link.flight;
            if (the_link.every_us) the_link.next_batch_us = the_link.now_us + the_link.every_us;
        }
        if (!the_link.count
            || (the_link.every_us && the_link.next_batch_us < the_link.ring[the_link.first].arrives_us)) {
            the_link.now_us = the_link.next_batch_us;
            continue;
        }
        if (the_link.ring[the_link.first].arrives_us > the_link.now_us)
            the_link.now_us = the_link.ring[the_link.first].arrives_us;
        wan_window_sending sending = the_link.ring[the_link.first].sending;
        the_link.flight -= the_link.ring[the_link.first].bytes;
        the_link.acknowledged += the_link.ring[the_link.first].bytes;
        the_link.first = (the_link.first + 1) % BATCHES_MAX;
        the_link.count--;
        wan_window_acknowledged(&the_link.window, &sending, the_link.now_us);
    }
}

/* The part of what the line can carry in that time, in percent. */
static uint64_t part_of_line(uint64_t us)
{
    return (uint64_t)((double)the_link.acknowledged * 100 / (the_link.bytes_per_us * (double)us));
}

static void a_link_is_full_however_long_it_is_and_little_waits_before_it(void)
{
    static const uint64_t ROUND_TRIPS_MS[] = {1, 20, 100, 300, 600};
    static const double RATES[] = {1, 12, 125};
    for (int r = 0; r < 5; r++)
        for (int w = 0; w < 3; w++)
            for (uint64_t batch = 17600; batch <= 1u << 20; batch *= 8) {
                open_link(ROUND_TRIPS_MS[r], RATES[w], batch);
                run_for(30 * 1000000ull);
                run_for(30 * 1000000ull);
                double trip_us =
                    (double)(ROUND_TRIPS_MS[r] > 20 ? ROUND_TRIPS_MS[r] * 1000 : 20000) + (double)batch / RATES[w];
                uint64_t carried = (uint64_t)(RATES[w] * trip_us),
                         most = 5 * carried / 2 + 2 * batch + WAN_WINDOW_FLOOR;
                if (most > the_link.limit + batch) most = the_link.limit + batch;
                int is_bound = 2 * RATES[w] * trip_us > 1.5 * (double)the_link.limit;
                EXPECT(is_bound || part_of_line(30 * 1000000ull) >= 97);
                EXPECT(the_link.most_in_flight <= most);
                if (expectations_failed)
                    printf("    round trip %" PRIu64 " ms, %.0f MB/s, batches of %" PRIu64 ": %" PRIu64 "%%, %" PRIu64
                           " in flight of %" PRIu64 "\n",
                           ROUND_TRIPS_MS[r], RATES[w], batch, part_of_line(30 * 1000000ull), the_link.most_in_flight,
                           most);
            }
}

static void a_long_link_is_full_after_a_few_round_trips(void)
{
    open_link(100, 125, 17600);
    run_for(600000);
    run_for(1000000);
    EXPECT(part_of_line(1000000) >= 97);
}

static void the_receivers_credit_is_never_passed_by_more_than_a_batch(void)
{
    open_link(300, 1000, 1u << 20);
    run_for(5 * 1000000ull);
    EXPECT(the_link.most_in_flight <= the_link.limit + the_link.batch);
    wan_window_set_limit(&the_link.window, 3u << 20);
    run_for(1000000);
    run_for(1000000);
    EXPECT(the_link.most_in_flight <= (3u << 20) + the_link.batch);
    wan_window_set_limit(&the_link.window, 0); /* One batch at a time. */
    run_for(1000000);
    run_for(1000000);
    EXPECT_EQUAL(the_link.most_in_flight, the_link.batch);
    wan_window_set_limit(&the_link.window, 64u << 20);
    run_for(3000000);
    run_for(1000000);
    EXPECT(the_link.most_in_flight > 32u << 20);
}

static void a_link_that_changes_is_full_again(void)
{
    static const struct {
        uint64_t round_trip_ms;
        double rate;
    } CHANGES[] = {{150, 50}, {20, 50}, {300, 50}, {300, 10}, {100, 100}, {101, 30}, {50, 5}, {50, 100}};
    open_link(50, 50, 17600);
    run_for(10 * 1000000ull);
    for (int n = 0; n < 8; n++) {
        the_link.one_way_us = CHANGES[n].round_trip_ms * 500;
        the_link.bytes_per_us = CHANGES[n].rate;
        run_for(75 * 1000000ull);
        run_for(10 * 1000000ull);
        EXPECT(part_of_line(10 * 1000000ull) >= 95);
        EXPECT(the_link.most_in_flight
               <= (uint64_t)(3 * CHANGES[n].rate * (double)CHANGES[n].round_trip_ms * 1000) + WAN_WINDOW_FLOOR);
        if (expectations_failed)
            printf("    change %d: %" PRIu64 "%%, %" PRIu64 " in flight\n", n, part_of_line(10 * 1000000ull),
                   the_link.most_in_flight);
    }
}

/* A slow receiver looks like a narrow link. Batches that it has not applied wait in the queue, and not on the way to
 * it. */
static void little_is_on_its_way_to_a_receiver_that_applies_slowly(void)
{
    open_link(1, 0.0176, 17600); /* A batch each second. */
    run_for(600 * 1000000ull);
    run_for(60 * 1000000ull);
    EXPECT(the_link.most_in_flight <= WAN_WINDOW_FLOOR + 17600);
}

static void a_sender_with_little_to_send_keeps_the_window_it_has(void)
{
    open_link(100, 125, 17600);
    run_for(5 * 1000000ull);
    uint64_t before = the_link.window.bytes;
    the_link.every_us = 50000;
    run_for(60 * 1000000ull);
    EXPECT(the_link.window.bytes >= before);
    the_link.every_us = 0;
    run_for(400000);
    run_for(1000000);
    EXPECT(part_of_line(1000000) >= 97);
}

static void delays_that_change_from_batch_to_batch_do_not_starve_a_link(void)
{
    open_link(100, 50, 17600);
    the_link.noise_us = 40000;
    run_for(30 * 1000000ull);
    run_for(30 * 1000000ull);
    EXPECT(part_of_line(30 * 1000000ull) >= 95);
}

const test_case window_tests[] = {
    {"a link is full however long it is, and little waits before it",
     a_link_is_full_however_long_it_is_and_little_waits_before_it},
    {"a long link is full after a few round trips", a_long_link_is_full_after_a_few_round_trips},
    {"the receiver's credit is never passed by more than a batch",
     the_receivers_credit_is_never_passed_by_more_than_a_batch},
    {"a link that changes is full again", a_link_that_changes_is_full_again},
    {"little is on its way to a receiver that applies slowly", little_is_on_its_way_to_a_receiver_that_applies_slowly},
    {"a sender with little to send keeps the window it has", a_sender_with_little_to_send_keeps_the_window_it_has},
    {"delays that change from batch to batch do not starve a link",
     delays_that_change_from_batch_to_batch_do_not_starve_a_link},
    {0},
};
