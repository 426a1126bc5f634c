/* Owns the tests of a member's limit of memory: when changes are refused, for how long, in which words, and that no
 * byte of what regions and queues take is lost from the count. */
#include <pthread.h>

#include "harness.h"
#include "base/wan_limit.h"
#include "region/wan_slab.h"
#include "store/wan_queue.h"

#define MIB ((uint64_t)1 << 20)

static wan_limit limit_of(const char *name)
{
    wan_limit limit;
    wan_limit_init(&limit, name, 100 * MIB, 90 * MIB, 80 * MIB);
    return limit;
}

static void the_state_begins_at_the_critical_point_and_ends_below_the_calm_one(void)
{
    wan_limit limit = limit_of("one");
    wan_limit_charge(&limit, 90 * MIB - 1);
    EXPECT(!wan_limit_is_short(&limit));
    wan_limit_charge(&limit, 1);
    EXPECT(wan_limit_is_short(&limit));
    wan_limit_release(&limit, 10 * MIB); /* 80: the state stays, from both sides. */
    EXPECT(wan_limit_is_short(&limit));
    wan_limit_charge(&limit, 5 * MIB);
    EXPECT(wan_limit_is_short(&limit));
    wan_limit_release(&limit, 5 * MIB + 1);
    EXPECT(!wan_limit_is_short(&limit));
    wan_limit_charge(&limit, 5 * MIB); /* Between the two points nothing begins. */
    EXPECT(!wan_limit_is_short(&limit));
    EXPECT_EQUAL(limit.shorts, 1);
    wan_limit_charge(&limit, 5 * MIB + 1);
    EXPECT(wan_limit_is_short(&limit));
    EXPECT_EQUAL(limit.shorts, 2);
}

static void what_is_free_counts_as_free_below_the_limit_itself(void)
{
    wan_limit limit = limit_of("one");
    wan_limit_charge(&limit, 95 * MIB);
    EXPECT(wan_limit_is_short(&limit));
    wan_limit_note(&limit, 0, 20 * MIB, WAN_NO_LIMIT); /* 75 are in use. */
    EXPECT(!wan_limit_is_short(&limit));
    wan_limit_charge(&limit, 5 * MIB); /* 80 are in use, but the process has all of its 100. */
    EXPECT(wan_limit_is_short(&limit));
    wan_limit_release(&limit, 1); /* Below the limit. 80 MB less a byte are in use, which is calm. */
    EXPECT(!wan_limit_is_short(&limit));
    wan_limit_note(&limit, 0, 1000 * MIB, WAN_NO_LIMIT); /* More cannot be free than there is. */
    EXPECT(!wan_limit_is_short(&limit));
}

static void the_rest_of_the_process_moves_the_sum_in_both_directions(void)
{
    wan_limit limit = limit_of("one");
    wan_limit_charge(&limit, 50 * MIB);
    wan_limit_note(&limit, 40 * (int64_t)MIB, 0, WAN_NO_LIMIT);
    EXPECT_EQUAL(wan_limit_used(&limit), 90 * MIB);
    EXPECT(wan_limit_is_short(&limit));
    /* Much of the counted memory was never touched: the process has less than is counted. */
    wan_limit_note(&limit, -45 * (int64_t)MIB, 0, WAN_NO_LIMIT);
    EXPECT_EQUAL(wan_limit_used(&limit), 5 * MIB);
    EXPECT(!wan_limit_is_short(&limit));
    wan_limit_release(&limit, 10 * MIB); /* Less than nothing, until the next measurement. */
    EXPECT_EQUAL(wan_limit_used(&limit), 0);
    EXPECT(!wan_limit_is_short(&limit));
}

static void a_machine_that_has_too_little_left_refuses_whatever_the_member_takes(void)
{
    wan_limit limit = limit_of("one");
    wan_limit_note(&limit, 0, 0, 12 * MIB);
    EXPECT(wan_limit_is_short(&limit));
    EXPECT_EQUAL(wan_limit_refuse(&limit), WAN_FULL);
    EXPECT_EQUAL(wan_detail_status, WAN_LOW_MEMORY);
    EXPECT(strstr(wan_detail, "the machine of member one") && strstr(wan_detail, "only 12 MB"));
    wan_limit_release(&limit, 0);
    EXPECT(wan_limit_is_short(&limit));
    wan_limit_note(&limit, 0, 0, WAN_NO_LIMIT);
    EXPECT(!wan_limit_is_short(&limit));
}

static void a_refusal_names_member_bytes_limit_and_remedy(void)
{
    char name[2 * WAN_LIMIT_NAME_BYTES];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = 0;
    wan_limit limit = limit_of("server"), longer = limit_of(name);
    wan_limit_charge(&limit, 93 * MIB);
    wan_limit_note(&limit, 2 * (int64_t)MIB, 4 * MIB, WAN_NO_LIMIT);
    EXPECT_EQUAL(wan_limit_refuse(&limit), WAN_FULL);
    const char *const words[] = {"member server is at its limit", "has 95 MB",     "4 MB are free", "from 90 MB on",
                                 "maximum-memory is 100 MB",      WAN_LIMIT_REMEDY};
    for (size_t n = 0; n < sizeof words / sizeof *words; n++) {
        EXPECT(strstr(wan_detail, words[n]));
        if (!strstr(wan_detail, words[n])) printf("    %s is not in: %s\n", words[n], wan_detail);
    }
    EXPECT_EQUAL(limit.refused, 1);
    wan_limit_refuse(&longer);
    EXPECT(strstr(wan_detail, WAN_LIMIT_REMEDY)); /* A long name is cut, and leaves room for all of it. */
    wan_limit_charge(NULL, 1);
    wan_limit_release(NULL, 1);
    EXPECT(!wan_limit_is_short(NULL));
}

static void what_a_slab_takes_is_counted_until_it_is_closed(void)
{
    wan_limit one, other;
    wan_limit_init(&one, "one", UINT64_MAX, UINT64_MAX, UINT64_MAX);
    wan_limit_init(&other, "other", UINT64_MAX, UINT64_MAX, UINT64_MAX);
    wan_slab slab, beside;
    enum { PIECES = 5000, BYTES = 1000, ARRAYS = 8 };
    static void *pieces[PIECES];
    void *arrays[ARRAYS];
    EXPECT_EQUAL(wan_slab_init(&slab), WAN_OK);
    EXPECT_EQUAL(wan_slab_init(&beside), WAN_OK);
    wan_slab_set_limit(&slab, &one);
    wan_slab_set_limit(&beside, &other); /* Of another member in the process. */
    for (uint32_t n = 0; n < PIECES; n++) EXPECT((pieces[n] = wan_slab_take(&slab, n, BYTES)) != NULL);
    EXPECT_EQUAL(one.counted, wan_slab_bytes(&slab));
    EXPECT(one.counted >= (uint64_t)PIECES * BYTES);
    EXPECT_EQUAL(other.counted, 0);
    for (uint32_t n = 0; n < ARRAYS; n++)
        EXPECT((arrays[n] = wan_slab_take_array(&slab, n, (uint64_t)4096 << n * 2)) != NULL);
    EXPECT_EQUAL(one.counted, wan_slab_bytes(&slab));
    for (uint32_t n = 0; n < ARRAYS; n++) wan_slab_give_array(&slab, arrays[n], (uint64_t)4096 << n * 2);
    EXPECT((arrays[0] = wan_slab_take_array(&slab, 0, (uint64_t)4096 << 14)) != NULL); /* It is used again. */
    EXPECT_EQUAL(one.counted, wan_slab_bytes(&slab));
    wan_slab_note_large(&slab, 5000, 1);
    EXPECT_EQUAL(one.counted, wan_slab_bytes(&slab) + 5000);
    wan_slab_note_large(&slab, 5000, 0);
    for (uint32_t n = 0; n < PIECES; n += 2) wan_slab_give(&slab, pieces[n], BYTES);
    EXPECT_EQUAL(one.counted, wan_slab_bytes(&slab));
    EXPECT(wan_slab_take(&beside, 0, BYTES) != NULL);
    EXPECT_EQUAL(other.counted, wan_slab_bytes(&beside));
    wan_slab_drop_spare(&slab);
    wan_slab_close(&slab);
    EXPECT_EQUAL(one.counted, 0);
    EXPECT(other.counted > 0);
    wan_slab_close(&beside);
    EXPECT_EQUAL(other.counted, 0);
}

/* Puts `count` events of `bytes` bytes into a queue of one partition. */
static void enqueue(wan_queue *queue, uint32_t count, uint32_t bytes)
{
    for (uint32_t n = 0; n < count; n++) {
        wan_reservation room;
        EXPECT_EQUAL(wan_queue_reserve(queue, 0, bytes, &room), WAN_OK);
        memset(room.at, 0, bytes);
        wan_queue_cancel(queue, &room);
    }
}

static void two_queues_in_one_store_are_counted_until_the_last_one_is_closed(void)
{
    wan_limit limit;
    wan_limit_init(&limit, "one", UINT64_MAX, UINT64_MAX, UINT64_MAX);
    wan_store *store;
    wan_queue one, two;
    EXPECT_EQUAL(wan_store_new(&wan_env_posix, NULL, 256 * MIB, &store), WAN_OK);
    EXPECT_EQUAL(wan_queue_init_in(&one, store, 1, 0), WAN_OK);
    EXPECT_EQUAL(wan_queue_init_in(&two, store, 1, 0), WAN_OK);
    enqueue(&one, 1, 1000); /* There is a segment before the limit is known. */
    wan_store_set_limit(store, &limit);
    EXPECT_EQUAL(limit.counted, wan_read(&store->memory_bytes));
    enqueue(&two, 1, 1000);
    EXPECT_EQUAL(limit.counted, wan_read(&store->memory_bytes));
    wan_queue_close(&one);
    EXPECT_EQUAL(limit.counted, wan_read(&store->memory_bytes));
    wan_queue_close(&two);
    wan_store_release(store);
    EXPECT_EQUAL(limit.counted, 0);
}

enum { CREW = 4, ROUNDS = 20000 };

static void *charge_and_release(void *context)
{
    wan_limit *limit = context;
    for (uint32_t n = 0; n < ROUNDS; n++) {
        wan_limit_charge(limit, 30 * MIB);
        if (wan_limit_is_short(limit)) wan_limit_refuse(limit);
        wan_limit_release(limit, 30 * MIB);
    }
    return NULL;
}

static void *measure(void *context)
{
    for (uint32_t n = 0; n < ROUNDS; n++) wan_limit_note(context, n % 3 * (int64_t)MIB, n % 5 * MIB, WAN_NO_LIMIT);
    return NULL;
}

static void no_byte_is_lost_while_threads_charge_release_and_measure(void)
{
    wan_limit limit = limit_of("one");
    pthread_t threads[CREW + 1];
    for (int n = 0; n < CREW; n++) EXPECT_EQUAL(pthread_create(&threads[n], NULL, charge_and_release, &limit), 0);
    EXPECT_EQUAL(pthread_create(&threads[CREW], NULL, measure, &limit), 0);
    for (int n = 0; n <= CREW; n++) pthread_join(threads[n], NULL);
    EXPECT_EQUAL(limit.counted, 0);
    wan_limit_note(&limit, 0, 0, WAN_NO_LIMIT);
    EXPECT(!wan_limit_is_short(&limit));
}

const test_case limit_tests[] = {
    {"the state begins at the critical point and ends below the calm one",
     the_state_begins_at_the_critical_point_and_ends_below_the_calm_one},
    {"what is free counts as free below the limit itself", what_is_free_counts_as_free_below_the_limit_itself},
    {"the rest of the process moves the sum in both directions",
     the_rest_of_the_process_moves_the_sum_in_both_directions},
    {"a machine that has too little left refuses whatever the member takes",
     a_machine_that_has_too_little_left_refuses_whatever_the_member_takes},
    {"a refusal names member, bytes, limit and remedy", a_refusal_names_member_bytes_limit_and_remedy},
    {"what a slab takes is counted until it is closed", what_a_slab_takes_is_counted_until_it_is_closed},
    {"two queues in one store are counted until the last one is closed",
     two_queues_in_one_store_are_counted_until_the_last_one_is_closed},
    {"no byte is lost while threads charge, release and measure",
     no_byte_is_lost_while_threads_charge_release_and_measure},
    {0},
};
