/* Owns the tests of the tail of a bucket, without threads. test_threads.c has those with threads. */
#include <unistd.h>
#include <sys/eventfd.h>

#include "harness.h"
#include "base/wan_clock.h"
#include "copies/wan_lane.h"
#include "copies/wan_tail.h"
#include "region/wan_table.h"

enum { BUCKETS = 3, SHARDS = 6, BUCKET = 1, SHARD = 2, LIFE = 7, EPOCH = 5, LANES = 4 };

typedef struct {
    wan_tail tail;
    wan_tail_bucket *bucket; /* The one that most tests are about. */
    wan_lane_state lanes[LANES];
} tails;

static void begin(tails *all, uint8_t role)
{
    memset(all, 0, sizeof *all);
    EXPECT_EQUAL(wan_tail_init(&all->tail, BUCKETS, SHARDS, 1), WAN_OK);
    all->bucket = &all->tail.buckets[BUCKET];
    for (uint32_t n = 0; n < LANES; n++) {
        all->lanes[n].wake_file = eventfd(0, EFD_NONBLOCK);
        EXPECT_EQUAL(wan_tail_add_lane(&all->tail, n, &all->lanes[n]), WAN_OK);
    }
    wan_tail_set_role(&all->tail, BUCKET, role, LIFE, EPOCH, role == WAN_TAIL_LEARNER);
}

static void end(tails *all)
{
    for (uint32_t n = 0; n < LANES; n++) close(all->lanes[n].wake_file);
    wan_tail_close(&all->tail);
}

/* An entry whose content says which change it is. */
static void write_entry(uint8_t *at, uint32_t length, uint64_t content)
{
    memset(at, (int)(content * 37 & 255), length);
    *(wan_tail_entry *)at = (wan_tail_entry){.length = length, .found_length = (uint32_t)content};
}

static uint64_t put(tails *all, uint32_t length, uint64_t content)
{
    wan_tail_reservation room;
    EXPECT_EQUAL(wan_tail_reserve(&all->tail, BUCKET, length, NULL, &room), WAN_OK);
    write_entry(room.at, length, content);
    return wan_tail_commit(&all->tail, &room, SHARD);
}

static wan_status follow(tails *all, uint64_t epoch, uint64_t sequence, const uint8_t *entry)
{
    wan_tail_reservation room;
    wan_status status =
        wan_tail_follow(&all->tail, BUCKET, LIFE, epoch, sequence, (const wan_tail_entry *)entry, &room);
    if (status == WAN_OK) {
        wan_tail_followed(&all->tail, &room, (const wan_tail_entry *)entry, SHARD);
        wan_tail_follow_end(&all->tail, &room);
    }
    return status;
}

static int has_work(tails *all, uint32_t lane)
{
    uint64_t bit = (uint64_t)1 << BUCKET;
    return (__atomic_fetch_and(&all->tail.to_send[lane][0], ~bit, __ATOMIC_SEQ_CST) & bit) != 0;
}

static int was_woken(tails *all, uint32_t lane)
{
    uint64_t count;
    return read(all->lanes[lane].wake_file, &count, sizeof count) == sizeof count;
}

static int acknowledge(tails *all, uint32_t lane, uint64_t sequence)
{
    return wan_tail_acknowledged(&all->tail, BUCKET, lane, LIFE, all->bucket->epoch, sequence);
}

static void set_copies(tails *all, const wan_tail_copy *copies, uint32_t count)
{
    EXPECT_EQUAL(wan_tail_set_copies(&all->tail, BUCKET, copies, count), WAN_OK);
}

static const wan_tail_copy waited = {.lane = 0, .state = WAN_COPY_WAITED};
static const wan_tail_copy learner = {.lane = 1, .state = WAN_COPY_LEARNING, .transfer = 9};

static void without_copies_a_change_counts_at_once_and_nothing_is_kept(void)
{
    tails all;
    begin(&all, WAN_TAIL_PRIMARY);
    for (uint64_t n = 1; n <= 100; n++) EXPECT_EQUAL(put(&all, 1024, n), n);
    EXPECT_EQUAL(all.bucket->counted, 100);
    EXPECT_EQUAL(all.bucket->first, 101);
    EXPECT_EQUAL(all.bucket->changes.used - all.bucket->changes.start, 0);
    EXPECT_EQUAL(all.tail.shard_last[SHARD], 100);
    EXPECT_EQUAL(all.tail.shard_last[SHARD + 1], 0);
    EXPECT_EQUAL(wan_tail_wait(&all.tail, BUCKET, all.bucket->era, 100, 0), WAN_OK);
    EXPECT(!has_work(&all, 0));
    end(&all);
}

static void a_change_counts_when_the_last_copy_that_is_waited_for_has_it(void)
{
    tails all;
    begin(&all, WAN_TAIL_PRIMARY);
    set_copies(&all, (wan_tail_copy[]){{.lane = 0, .state = 1}, {.lane = 2, .state = 1}, learner}, 3);
    for (uint64_t n = 1; n <= 3; n++) put(&all, 64, n);
    EXPECT_EQUAL(acknowledge(&all, 0, 3), 0);
    EXPECT_EQUAL(acknowledge(&all, 2, 2), 1);
    EXPECT_EQUAL(all.bucket->counted, 2);
    EXPECT_EQUAL(wan_tail_wait(&all.tail, BUCKET, all.bucket->era, 3, 0), WAN_EMPTY);
    EXPECT_EQUAL(all.bucket->first, 1); /* The learner has none of them. */
    EXPECT_EQUAL(acknowledge(&all, 1, 1), 0);
    EXPECT_EQUAL(all.bucket->first, 2);
    set_copies(&all, (wan_tail_copy[]){waited, learner}, 2); /* Lane 2 is waited for no longer. */
    EXPECT_EQUAL(all.bucket->counted, 3);
    EXPECT_EQUAL(all.bucket->first, 2);
    set_copies(&all, &waited, 1);
    EXPECT_EQUAL(all.bucket->first, 4);
    EXPECT_EQUAL(all.bucket->dropped_bytes, 3 * 64);
    EXPECT_EQUAL(all.bucket->changes.used - all.bucket->changes.start, 0);
    end(&all);
}

static void a_learner_that_is_waited_for_now_keeps_what_it_acknowledged(void)
{
    tails all;
    begin(&all, WAN_TAIL_PRIMARY);
    put(&all, 64, 1);
    set_copies(&all, &learner, 1);
    EXPECT_EQUAL(all.bucket->copies[0].acked, 1); /* What is older is in its image. */
    put(&all, 64, 2);
    EXPECT_EQUAL(all.bucket->counted, 2);
    acknowledge(&all, 1, 2);
    put(&all, 64, 3);
    set_copies(&all, (wan_tail_copy[]){{.lane = 1, .state = WAN_COPY_WAITED, .transfer = 9}}, 1);
    EXPECT_EQUAL(all.bucket->copies[0].acked, 2);
    EXPECT_EQUAL(all.bucket->counted, 3); /* It never falls. */
    put(&all, 64, 4);
    EXPECT_EQUAL(all.bucket->counted, 3);
    EXPECT_EQUAL(acknowledge(&all, 1, 4), 1);
    end(&all);
}

static void a_primary_takes_no_change_after_its_silence_limit_also_with_a_copy_in_sync(void)
{
    tails all;
    wan_tail_reservation room;
    begin(&all, WAN_TAIL_PRIMARY);
    set_copies(&all, (wan_tail_copy[]){{.lane = 1, .state = WAN_COPY_WAITED, .transfer = 9}}, 1);
    put(&all, 64, 1);
    EXPECT_EQUAL(acknowledge(&all, 1, 1), 1);
    wan_tail_set_primary_until(&all.tail, 0);
    EXPECT_EQUAL(wan_tail_reserve(&all.tail, BUCKET, 64, NULL, &room), WAN_ELSEWHERE);
    set_copies(&all, (wan_tail_copy[]){{.lane = 1, .state = WAN_COPY_WAITED}}, 1);
    EXPECT_EQUAL(wan_tail_reserve(&all.tail, BUCKET, 64, NULL, &room), WAN_ELSEWHERE); /* The copy is silent, too. */
    wan_tail_set_primary_until(&all.tail, WAN_NEVER);
    put(&all, 64, 2);
    end(&all);
}

static void what_a_copy_answers_after_the_silence_limit_counts_when_the_coordinator_was_heard_again(void)
{
    tails all;
    begin(&all, WAN_TAIL_PRIMARY);
    wan_waker waker = {.wake_file = all.lanes[3].wake_file};
    wan_shelved call = {.owner = &waker, .era = all.bucket->era, .sequence = 2};
    set_copies(&all, &waited, 1);
    put(&all, 64, 1);
    put(&all, 64, 2);
    EXPECT_EQUAL(acknowledge(&all, 0, 1), WAN_TAIL_GREW);
    EXPECT_EQUAL(wan_tail_shelve(&all.tail, BUCKET, &call), WAN_EMPTY);
    wan_tail_set_primary_until(&all.tail, 1); /* It was taken in time, and the copy answers late. */
    has_work(&all, 0);
    EXPECT_EQUAL(acknowledge(&all, 0, 2), 0);
    EXPECT_EQUAL(all.bucket->counted, 1);
    EXPECT_EQUAL(wan_tail_wait(&all.tail, BUCKET, all.bucket->era, 2, 0), WAN_EMPTY);
    EXPECT(!wan_waker_take(&waker) && !has_work(&all, 0));
    set_copies(&all, NULL, 0); /* Nor does it count because the copy is waited for no longer, */
    wan_tail_set_role(&all.tail, BUCKET, WAN_TAIL_PRIMARY, LIFE, EPOCH, 0);
    set_copies(&all, (wan_tail_copy[]){{.lane = 0, .state = WAN_COPY_WAITED, .acked = 2}}, 1);
    wan_tail_set_primary_until(&all.tail, 2); /* or because a time is set that is over, too. */
    EXPECT_EQUAL(all.bucket->counted, 1);
    has_work(&all, 0);
    wan_tail_set_primary_until(&all.tail, wan_monotonic_us() + 60000000);
    EXPECT_EQUAL(all.bucket->counted, 2);
    EXPECT_EQUAL(wan_tail_wait(&all.tail, BUCKET, all.bucket->era, 2, 0), WAN_OK);
    EXPECT(wan_waker_take(&waker) == &call && has_work(&all, 0));
    EXPECT_EQUAL(all.bucket->first, 3);
    end(&all);
}

static void a_sole_copy_that_was_stopped_over_its_silence_limit_keeps_the_change_until_it_counts(void)
{
    tails all;
    wan_tail_reservation room;
    begin(&all, WAN_TAIL_PRIMARY);
    put(&all, 64, 1);
    EXPECT_EQUAL(wan_tail_reserve(&all.tail, BUCKET, 64, NULL, &room), WAN_OK);
    all.tail.primary_until_us = 1;
    write_entry(room.at, 64, 2);
    EXPECT_EQUAL(wan_tail_commit(&all.tail, &room, SHARD), 2);
    EXPECT_EQUAL(all.bucket->counted, 1);
    EXPECT_EQUAL(all.bucket->first, 2);
    set_copies(&all, &learner, 1); /* It gets in its stream what does not count yet. */
    EXPECT_EQUAL(all.bucket->copies[0].acked, 1);
    set_copies(&all, NULL, 0);
    all.tail.primary_until_us = WAN_NEVER; /* The next change finds it there, and both count. */
    EXPECT_EQUAL(put(&all, 64, 3), 3);
    EXPECT_EQUAL(all.bucket->counted, 3);
    EXPECT_EQUAL(all.bucket->first, 4);
    EXPECT_EQUAL(put(&all, 64, 4), 4);
    EXPECT_EQUAL(all.bucket->counted, 4);
    EXPECT_EQUAL(all.bucket->changes.used - all.bucket->changes.start, 0);
    end(&all);
}

/* Makes `count` changes under one hold, the first of which has this content. Returns through which sequence changes
 * count. */
static uint64_t put_together(tails *all, uint32_t count, uint64_t content)
{
    const uint64_t before = all->bucket->last;
    wan_tail_reservation room;
    EXPECT_EQUAL(wan_tail_reserve(&all->tail, BUCKET, 64, NULL, &room), WAN_OK);
    for (uint32_t n = 0; n < count; n++) {
        if (n) EXPECT_EQUAL(wan_tail_reserve_next(&room, 64), WAN_OK);
        EXPECT_EQUAL(room.sequence, before + n + 1);
        write_entry(room.at, 64, content + n);
        EXPECT_EQUAL(wan_tail_commit_next(&all->tail, &room, SHARD), before + n + 1);
        EXPECT_EQUAL(all->bucket->counted, before);
    }
    return wan_tail_commit_end(&all->tail, &room, before);
}

static void changes_under_one_hold_count_together_and_wake_a_lane_once(void)
{
    tails all;
    begin(&all, WAN_TAIL_PRIMARY);
    EXPECT_EQUAL(put_together(&all, 3, 1), 3); /* There is no copy. */
    EXPECT_EQUAL(all.bucket->changes.used - all.bucket->changes.start, 0);
    EXPECT_EQUAL(all.bucket->first, 4);
    set_copies(&all, &waited, 1);
    EXPECT_EQUAL(acknowledge(&all, waited.lane, 3), 0);
    has_work(&all, waited.lane);
    all.lanes[waited.lane].asleep = WAN_LANE_WAITS;
    EXPECT_EQUAL(put_together(&all, 3, 4), 3);
    EXPECT(has_work(&all, waited.lane));
    EXPECT(was_woken(&all, waited.lane) && !was_woken(&all, waited.lane));
    EXPECT_EQUAL(all.tail.shard_last[SHARD], 6);
    EXPECT_EQUAL(all.bucket->changes.used - all.bucket->changes.start, 3 * 64);
    EXPECT_EQUAL(acknowledge(&all, waited.lane, 6), WAN_TAIL_GREW);
    EXPECT_EQUAL(all.bucket->counted, 6);
    end(&all);
}

static void a_change_waits_for_a_replica_that_holds_the_queued_events_alone(void)
{
    tails all;
    begin(&all, WAN_TAIL_PRIMARY);
    set_copies(&all, (wan_tail_copy[]){waited, {.lane = 2, .state = WAN_COPY_WAITED, .queue_only = 1}}, 2);
    put(&all, 64, 1);
    EXPECT_EQUAL(acknowledge(&all, 0, 1), 0);
    EXPECT_EQUAL(all.bucket->counted, 0);
    EXPECT_EQUAL(wan_tail_wait(&all.tail, BUCKET, all.bucket->era, 1, 0), WAN_EMPTY);
    EXPECT_EQUAL(acknowledge(&all, 2, 1), WAN_TAIL_GREW);
    EXPECT_EQUAL(all.bucket->counted, 1);
    /* So it does where nobody else holds the bucket. */
    set_copies(&all, &(wan_tail_copy){.lane = 2, .state = WAN_COPY_WAITED, .queue_only = 1}, 1);
    EXPECT_EQUAL(put_together(&all, 2, 2), 1);
    EXPECT_EQUAL(all.bucket->changes.used - all.bucket->changes.start, 2 * 64);
    EXPECT_EQUAL(acknowledge(&all, 2, 3), WAN_TAIL_GREW);
    EXPECT_EQUAL(all.bucket->counted, 3);
    end(&all);
}

static void a_hold_without_a_change_leaves_nothing_and_one_with_a_change_that_is_not_made_keeps_the_others(void)
{
    tails all;
    wan_tail_reservation room;
    wan_attempt attempt = {.call = {.caller = 9, .number = 1}, .is_row = 1};
    begin(&all, WAN_TAIL_PRIMARY);
    set_copies(&all, &waited, 1);
    has_work(&all, waited.lane);
    EXPECT_EQUAL(wan_tail_reserve(&all.tail, BUCKET, 64, NULL, &room), WAN_OK);
    EXPECT_EQUAL(wan_tail_commit_end(&all.tail, &room, 0), 0);
    EXPECT(!has_work(&all, waited.lane) && all.bucket->last == 0);

    EXPECT_EQUAL(wan_tail_reserve(&all.tail, BUCKET, 64, &attempt, &room), WAN_OK);
    memset(room.at, 0, 64);
    *(wan_tail_entry *)room.at = (wan_tail_entry){.length = 64, .flags = WAN_TAIL_REMEMBERED | WAN_TAIL_ROW};
    *wan_tail_entry_call((wan_tail_entry *)room.at) = attempt.call;
    EXPECT_EQUAL(wan_tail_commit_next(&all.tail, &room, SHARD), 1);
    EXPECT_EQUAL(wan_tail_reserve_next(&room, 64), WAN_OK);
    EXPECT_EQUAL(wan_tail_commit_end(&all.tail, &room, 0), 0); /* That one was not made. */
    EXPECT(has_work(&all, waited.lane) && all.bucket->last == 1);
    EXPECT_EQUAL(all.bucket->changes.used - all.bucket->changes.start, 64);
    EXPECT_EQUAL(wan_tail_reserve(&all.tail, BUCKET, 64, &attempt, &room), WAN_MADE_BEFORE);
    attempt.row = 1;
    EXPECT_EQUAL(wan_tail_reserve(&all.tail, BUCKET, 64, &attempt, &room), WAN_OK);
    wan_tail_cancel(&room);
    EXPECT_EQUAL(put(&all, 64, 2), 2);
    end(&all);
}

static void the_stream_of_a_learner_has_all_that_a_copy_in_sync_may_lack(void)
{
    tails all;
    begin(&all, WAN_TAIL_PRIMARY);
    set_copies(&all, &waited, 1);
    for (uint64_t n = 1; n <= 3; n++) put(&all, 64, n);
    acknowledge(&all, 0, 1);
    set_copies(&all, (wan_tail_copy[]){waited, learner}, 2);
    EXPECT_EQUAL(all.bucket->copies[1].acked, 1);
    acknowledge(&all, 0, 3);
    EXPECT_EQUAL(all.bucket->first, 2);
    end(&all);
}

static void another_transfer_of_a_lane_is_another_learner(void)
{
    tails all;
    begin(&all, WAN_TAIL_PRIMARY);
    set_copies(&all, &learner, 1);
    all.bucket->copies[0].image_shard = WAN_IMAGE_DONE;
    put(&all, 64, 1);
    set_copies(&all, (wan_tail_copy[]){{.lane = 1, .state = WAN_COPY_LEARNING, .transfer = 10}}, 1);
    EXPECT_EQUAL(all.bucket->copies[0].image_shard, 0);
    EXPECT_EQUAL(all.bucket->copies[0].acked, 1);
    end(&all);
}

static void only_a_primary_takes_changes_and_a_cancelled_one_leaves_nothing(void)
{
    tails all;
    wan_tail_reservation room;
    for (uint8_t role = WAN_TAIL_ABSENT; role < WAN_TAIL_PRIMARY; role++) {
        begin(&all, role);
        EXPECT_EQUAL(wan_tail_reserve(&all.tail, BUCKET, 64, NULL, &room), WAN_ELSEWHERE);
        end(&all);
    }
    begin(&all, WAN_TAIL_PRIMARY);
    set_copies(&all, &waited, 1);
    EXPECT(has_work(&all, 0)); /* It is to be told of this primary. */
    EXPECT_EQUAL(wan_tail_reserve(&all.tail, BUCKET, 64, NULL, &room), WAN_OK);
    wan_tail_cancel(&room);
    EXPECT_EQUAL(all.bucket->last, 0);
    EXPECT(!has_work(&all, 0));
    EXPECT_EQUAL(put(&all, 64, 1), 1);
    EXPECT(has_work(&all, 0));
    end(&all);
}

static void a_bucket_with_too_few_copies_in_sync_takes_no_change(void)
{
    tails all;
    begin(&all, WAN_TAIL_PRIMARY);
    all.tail.min_copies = 2;
    wan_tail_reservation room;
    EXPECT_EQUAL(wan_tail_reserve(&all.tail, BUCKET, 64, NULL, &room), WAN_TOO_FEW);
    EXPECT(strstr(wan_detail, "bucket 1 has 1 copies in sync, and min-in-sync-copies asks for 2") != NULL);
    set_copies(&all, &(wan_tail_copy){.lane = 1, .state = WAN_COPY_LEARNING, .transfer = 4}, 1);
    EXPECT_EQUAL(wan_tail_reserve(&all.tail, BUCKET, 64, NULL, &room), WAN_TOO_FEW);
    set_copies(&all, &(wan_tail_copy){.lane = 1, .state = WAN_COPY_WAITED, .queue_only = 1}, 1);
    EXPECT_EQUAL(wan_tail_reserve(&all.tail, BUCKET, 64, NULL, &room), WAN_TOO_FEW);
    set_copies(&all, &(wan_tail_copy){.lane = 1, .state = WAN_COPY_WAITED}, 1);
    EXPECT_EQUAL(put(&all, 64, 1), 1);
    set_copies(&all, NULL, 0);
    EXPECT_EQUAL(wan_tail_reserve(&all.tail, BUCKET, 64, NULL, &room), WAN_TOO_FEW);
    EXPECT_EQUAL(all.bucket->last, 1);
    end(&all);
}

static void a_full_budget_refuses_nothing_and_has_room_again_when_copies_acknowledge(void)
{
    tails all;
    wan_budget budget;
    begin(&all, WAN_TAIL_PRIMARY);
    wan_budget_init(&budget, 1 << 20);
    all.tail.budget = &budget;
    set_copies(&all, &waited, 1);
    for (uint64_t n = 1; n <= 20; n++) {
        EXPECT_EQUAL(wan_budget_is_full(&budget), n > 16); /* What is remembered of calls counts too. */
        put(&all, 1 << 16, n);
    }
    EXPECT_EQUAL(wan_tail_behind(&all.tail, 0), 20 << 16);
    EXPECT_EQUAL(wan_tail_behind(&all.tail, 1), 0);
    acknowledge(&all, 0, 4);
    EXPECT(wan_budget_is_full(&budget));
    acknowledge(&all, 0, 5);
    EXPECT(!wan_budget_is_full(&budget));
    acknowledge(&all, 0, 20);
    EXPECT_EQUAL(budget.used[WAN_BUDGET_CHANGES], 0);
    EXPECT(all.bucket->changes.capacity <= 1 << 16); /* It gave the memory back when it was empty. */
    put(&all, 1 << 16, 21);
    end(&all);
    EXPECT_EQUAL(budget.passing, 0);
    EXPECT_EQUAL(budget.used[WAN_BUDGET_REMEMBERED], 0);
}

static void a_tail_that_becomes_short_gives_memory_back_before_it_is_empty(void)
{
    tails all;
    begin(&all, WAN_TAIL_PRIMARY);
    set_copies(&all, &waited, 1);
    for (uint64_t n = 1; n <= 4000; n++) put(&all, 1 << 10, n);
    const uint64_t most = all.bucket->changes.capacity;
    acknowledge(&all, 0, 3990);
    EXPECT(most >= 4000 << 10 && all.bucket->changes.capacity <= 1 << 16);
    EXPECT_EQUAL(((const wan_tail_entry *)(all.bucket->changes.bytes + all.bucket->changes.start))->found_length, 3991);
    EXPECT_EQUAL(put(&all, 1 << 10, 4001), 4001);
    acknowledge(&all, 0, 4001);
    end(&all);
}

static void callers_wait_for_a_learner_whose_lane_works_and_does_not_keep_up(void)
{
    tails all;
    const uint64_t now = 10 * WAN_LEARNER_AWAY_US;
    begin(&all, WAN_TAIL_PRIMARY);
    set_copies(&all, &(wan_tail_copy){.state = WAN_COPY_LEARNING, .transfer = 3}, 1);
    EXPECT(wan_tail_has_learner(&all.tail, BUCKET) && !wan_tail_has_learner(&all.tail, 0));
    acknowledge(&all, 0, 0);
    all.lanes[0].answered_us = now;
    for (uint64_t n = 1; n <= 2; n++) put(&all, WAN_LEARNER_BYTES_MAX / 2, n);
    EXPECT(!wan_tail_holds_back(&all.tail, BUCKET, now));
    put(&all, 64, 3);
    EXPECT(wan_tail_holds_back(&all.tail, BUCKET, now));
    EXPECT(!wan_tail_holds_back(&all.tail, BUCKET, now + WAN_LEARNER_AWAY_US)); /* It is silent. */
    all.bucket->copies[0].sent = 3;
    EXPECT(!wan_tail_holds_back(&all.tail, BUCKET, now));
    put(&all, WAN_LEARNER_BYTES_MAX, 4);
    EXPECT(wan_tail_holds_back(&all.tail, BUCKET, now));
    all.bucket->copies[0].image_shard = WAN_IMAGE_DONE;
    EXPECT(wan_tail_image_acked(&all.tail, BUCKET, 0, LIFE, EPOCH, 3));
    EXPECT(!wan_tail_has_learner(&all.tail, BUCKET) && !wan_tail_holds_back(&all.tail, BUCKET, now));
    end(&all);
}

static void callers_wait_for_a_learner_that_has_taken_nothing_yet_for_a_while_only(void)
{
    tails all;
    uint64_t now = 10 * WAN_LEARNER_AWAY_US;
    begin(&all, WAN_TAIL_PRIMARY);
    set_copies(&all, &(wan_tail_copy){.state = WAN_COPY_LEARNING, .transfer = 3}, 1);
    all.lanes[0].answered_us = now;
    put(&all, WAN_LEARNER_BYTES_MAX + 64, 1);
    EXPECT(wan_tail_holds_back(&all.tail, BUCKET, now));
    all.lanes[0].answered_us = now += WAN_LEARNER_AWAY_US;
    EXPECT(!wan_tail_holds_back(&all.tail, BUCKET, now)); /* It has said all the time that it is not ready. */
    acknowledge(&all, 0, 0);
    EXPECT(wan_tail_holds_back(&all.tail, BUCKET, now));
    end(&all);
}

/* What the bucket has, against what it has charged. */
static void expect_charged(const tails *all, const wan_budget *budget)
{
    uint64_t changes = 0, remembered = 0;
    for (uint32_t n = 0; n < BUCKETS; n++) {
        const wan_tail_bucket *bucket = &all->tail.buckets[n];
        changes += bucket->changes.used - bucket->changes.start;
        remembered += wan_answers_bytes(&bucket->answers);
    }
    const uint64_t slack = 3 * WAN_BUDGET_STEP;
    EXPECT(budget->used[WAN_BUDGET_CHANGES] >= changes && budget->used[WAN_BUDGET_CHANGES] <= changes + slack);
    EXPECT(budget->used[WAN_BUDGET_REMEMBERED] >= remembered
           && budget->used[WAN_BUDGET_REMEMBERED] <= remembered + slack);
    EXPECT_EQUAL(budget->passing, budget->used[WAN_BUDGET_CHANGES]);
}

static void the_budget_counts_what_tails_hold_whatever_happens_to_them(void)
{
    random_source source = {.state = 11};
    for (int round = 0; round < 40; round++) {
        tails all;
        wan_budget budget;
        uint8_t entry[1 << 13];
        uint64_t epoch = EPOCH;
        begin(&all, WAN_TAIL_PRIMARY);
        wan_budget_init(&budget, 1 << 16);
        all.tail.budget = &budget;
        set_copies(&all, &waited, 1);
        for (int n = 0; n < 400; n++) {
            const uint32_t length = 64 + 8 * (uint32_t)random_below(&source, 1000);
            const uint64_t last = all.bucket->last;
            const int leads = all.bucket->role == WAN_TAIL_PRIMARY;
            const uint64_t what = random_below(&source, 40);
            if (what == 0) {
                wan_tail_set_role(&all.tail, BUCKET, leads ? WAN_TAIL_COPY : WAN_TAIL_PRIMARY, LIFE, ++epoch, 0);
                if (!leads)
                    set_copies(&all, &(wan_tail_copy){.state = WAN_COPY_WAITED, .acked = all.bucket->counted}, 1);
            } else if (what == 1) {
                wan_tail_set_role(&all.tail, BUCKET, WAN_TAIL_LEARNER, LIFE, ++epoch, 1 + epoch);
            } else if (what < 25 && leads) {
                put(&all, length, (uint64_t)n);
            } else if (what < 25) {
                write_entry(entry, length, (uint64_t)n);
                follow(&all, epoch, last + 1, entry);
            } else if (leads) {
                acknowledge(&all, 0, last - random_below(&source, last - all.bucket->counted + 1));
            } else {
                wan_tail_told(&all.tail, BUCKET, LIFE, epoch, last - random_below(&source, 5), 0, 0);
            }
            expect_charged(&all, &budget);
        }
        end(&all);
        EXPECT_EQUAL(budget.passing, 0);
    }
}

static void a_lane_that_sleeps_is_woken_once_and_one_that_works_is_not(void)
{
    tails all;
    begin(&all, WAN_TAIL_PRIMARY);
    set_copies(&all, &waited, 1);
    EXPECT(!was_woken(&all, 0));
    all.lanes[0].asleep = 1;
    put(&all, 64, 1);
    EXPECT_EQUAL(all.lanes[0].asleep, 0);
    EXPECT(was_woken(&all, 0));
    put(&all, 64, 2);
    EXPECT(!was_woken(&all, 0));
    EXPECT(!was_woken(&all, 1));
    wan_tail_remove_lane(&all.tail, 0);
    all.lanes[0].asleep = 1;
    put(&all, 64, 3);
    EXPECT(!was_woken(&all, 0));
    end(&all);
}

static int takes_settled(tails *all, uint32_t lane)
{
    const uint64_t bit = (uint64_t)1 << BUCKET;
    wan_lane_take_settled(&all->lanes[lane]);
    return (__atomic_fetch_and(&all->tail.settled[lane][0], ~bit, __ATOMIC_SEQ_CST) & bit) != 0;
}

static void each_lane_is_woken_once_for_what_is_settled_until_it_has_told_that(void)
{
    tails all;
    begin(&all, WAN_TAIL_COPY);
    for (uint32_t n = 0; n < LANES; n++) all.lanes[n].asleep = WAN_LANE_WAITS;
    wan_tail_note_settled(&all.tail, BUCKET);
    for (uint32_t n = 0; n < LANES; n++) EXPECT(was_woken(&all, n) && wan_lane_has_settled(&all.lanes[n]));
    all.lanes[0].asleep = WAN_LANE_WAITS;
    wan_tail_note_settled(&all.tail, BUCKET);
    wan_tail_note_settled(&all.tail, BUCKET + 1); /* The lane looks at all buckets. */
    EXPECT(!was_woken(&all, 0));
    EXPECT(takes_settled(&all, 0) && !takes_settled(&all, 0));
    wan_tail_note_settled(&all.tail, BUCKET);
    EXPECT(was_woken(&all, 0) && takes_settled(&all, 0) && takes_settled(&all, 1));
    wan_tail_remove_lane(&all.tail, 0);
    all.lanes[0].asleep = WAN_LANE_WAITS;
    wan_tail_note_settled(&all.tail, BUCKET);
    EXPECT(!was_woken(&all, 0) && wan_lane_has_settled(&all.lanes[1]));
    end(&all);
}

/* What a lane was run for. */
static const wan_lane_wait *ran;
static void note_run(void *runner, const wan_lane_wait *wait)
{
    EXPECT(runner == &ran);
    ran = wait;
}

static void a_lane_at_rest_is_run_by_the_thread_that_waits_and_woken_for_all_others(void)
{
    tails all;
    begin(&all, WAN_TAIL_PRIMARY);
    const wan_tail_copy copies[] = {
        waited, {.lane = 1, .state = WAN_COPY_WAITED}, {.lane = 2, .state = WAN_COPY_LEARNING, .transfer = 1}};
    set_copies(&all, copies, 3);
    for (uint32_t n = 0; n < 3; n++) {
        all.lanes[n].asleep = WAN_LANE_RESTS;
        all.lanes[n].rest_file = all.lanes[n].wake_file;
        all.lanes[n].run = note_run;
        all.lanes[n].runner = &ran;
    }
    wan_tail_reservation room;
    const wan_attempt attempt = {.waits = 1};
    EXPECT_EQUAL(wan_tail_reserve(&all.tail, BUCKET, 64, &attempt, &room), WAN_OK);
    write_entry(room.at, 64, 1);
    const wan_lane_wait wait = {.tail = &all.tail,
                                .bucket = BUCKET,
                                .other_file = -1,
                                .era = all.bucket->era,
                                .sequence = wan_tail_commit(&all.tail, &room, SHARD)};
    EXPECT(!was_woken(&all, 0) && !was_woken(&all, 1));
    EXPECT(was_woken(&all, 2)); /* Nobody waits for a learner. */
    wan_tail_run_lane(&wait);
    EXPECT(ran == &wait && !was_woken(&all, 0) && was_woken(&all, 1));
    EXPECT(all.lanes[0].asleep == WAN_LANE_RUNS && all.lanes[1].asleep == WAN_LANE_RUNS);
    /* Nobody runs a lane that works, or one for what counts. */
    ran = NULL;
    wan_tail_run_lane(&wait);
    acknowledge(&all, 0, 1);
    acknowledge(&all, 1, 1);
    all.lanes[0].asleep = WAN_LANE_RESTS;
    wan_tail_run_lane(&wait);
    EXPECT(!ran && all.lanes[0].asleep == WAN_LANE_RESTS);
    put(&all, 64, 2);
    EXPECT(was_woken(&all, 0));
    end(&all);
}

static void whoever_waits_hears_that_the_era_is_another_one(void)
{
    tails all;
    begin(&all, WAN_TAIL_PRIMARY);
    set_copies(&all, &waited, 1);
    uint64_t era = all.bucket->era, sequence = put(&all, 64, 1);
    wan_tail_set_role(&all.tail, BUCKET, WAN_TAIL_TAKING_OVER, LIFE, EPOCH + 1, 0);
    EXPECT_EQUAL(wan_tail_wait(&all.tail, BUCKET, era, sequence, 0), WAN_EMPTY); /* It may count yet. */
    wan_tail_set_role(&all.tail, BUCKET, WAN_TAIL_COPY, LIFE, EPOCH + 2, 0);
    EXPECT_EQUAL(wan_tail_wait(&all.tail, BUCKET, era, sequence, 0), WAN_ELSEWHERE);
    wan_tail_told(&all.tail, BUCKET, LIFE, EPOCH + 2, 1, 0, 0);
    EXPECT_EQUAL(all.bucket->counted, 1);
    EXPECT_EQUAL(wan_tail_wait(&all.tail, BUCKET, era, sequence, 0), WAN_ELSEWHERE);
    EXPECT_EQUAL(wan_tail_wait(&all.tail, BUCKET, all.bucket->era, sequence, 0), WAN_OK);
    end(&all);
}

static void a_copy_takes_the_next_change_of_its_epoch_only(void)
{
    tails all;
    _Alignas(8) uint8_t entry[64];
    begin(&all, WAN_TAIL_COPY);
    write_entry(entry, 64, 1);
    EXPECT_EQUAL(follow(&all, EPOCH, 2, entry), WAN_INVALID);
    EXPECT_EQUAL(follow(&all, EPOCH - 1, 1, entry), WAN_ELSEWHERE);
    EXPECT_EQUAL(follow(&all, EPOCH, 1, entry), WAN_OK);
    EXPECT_EQUAL(follow(&all, EPOCH, 1, entry), WAN_EMPTY);
    EXPECT_EQUAL(follow(&all, EPOCH, 2, entry), WAN_OK);
    EXPECT_EQUAL(all.tail.shard_last[SHARD], 2);
    EXPECT_EQUAL(all.bucket->counted, 0);
    wan_tail_told(&all.tail, BUCKET, LIFE, EPOCH - 1, 2, 0, 0);
    EXPECT_EQUAL(all.bucket->counted, 0);
    wan_tail_told(&all.tail, BUCKET, LIFE, EPOCH, 1, 0, 0);
    EXPECT_EQUAL(all.bucket->first, 2);
    wan_tail_told(&all.tail, BUCKET, LIFE, EPOCH, 9, 0, 0); /* The primary is ahead of what has come. */
    EXPECT_EQUAL(all.bucket->counted, 2);
    wan_tail_set_role(&all.tail, BUCKET, WAN_TAIL_PRIMARY, LIFE, EPOCH + 1, 0);
    EXPECT_EQUAL(follow(&all, EPOCH + 1, 3, entry), WAN_ELSEWHERE);
    end(&all);
}

static void a_new_epoch_begins_the_image_of_a_learner_anew(void)
{
    tails all;
    begin(&all, WAN_TAIL_PRIMARY);
    set_copies(&all, &learner, 1);
    all.bucket->copies[0].image_shard = WAN_IMAGE_DONE;
    all.bucket->copies[0].image_acked = all.bucket->copies[0].queued = 1;
    wan_tail_set_role(&all.tail, BUCKET, WAN_TAIL_PRIMARY, LIFE, EPOCH, 0);
    EXPECT(all.bucket->copies[0].image_shard == WAN_IMAGE_DONE && all.bucket->copies[0].image_acked);
    wan_tail_set_role(&all.tail, BUCKET, WAN_TAIL_PRIMARY, LIFE, EPOCH + 1, 0);
    EXPECT(all.bucket->copies[0].image_shard == 0 && !all.bucket->copies[0].image_acked);
    EXPECT_EQUAL(all.bucket->copies[0].queued, 0);
    end(&all);
}
static void an_image_that_is_whole_before_its_primary_is_active_is_not_forgotten(void)
{
    tails all;
    begin(&all, WAN_TAIL_TAKING_OVER);
    set_copies(&all, &learner, 1);
    wan_tail_copy *copy = &all.bucket->copies[0];
    copy->image_shard = WAN_IMAGE_DONE;
    EXPECT_EQUAL(wan_tail_image_acked(&all.tail, BUCKET, copy->lane, LIFE, EPOCH, copy->transfer), 1);
    EXPECT_EQUAL(wan_tail_acknowledged(&all.tail, BUCKET, copy->lane, LIFE, EPOCH, 0), WAN_TAIL_CAUGHT_UP);
    wan_tail_set_role(&all.tail, BUCKET, WAN_TAIL_PRIMARY, LIFE, EPOCH, 0);
    EXPECT_EQUAL(all.bucket->copies[0].state, WAN_COPY_WAITED);
    end(&all);
}

static void a_learner_with_its_image_is_waited_for_and_caught_up_when_it_has_what_counts(void)
{
    tails all;
    begin(&all, WAN_TAIL_PRIMARY);
    set_copies(&all, &learner, 1);
    wan_tail_copy *copy = &all.bucket->copies[0];
    for (uint64_t n = 1; n <= 3; n++) put(&all, 64, n);
    EXPECT_EQUAL(all.bucket->counted, 3);
    EXPECT_EQUAL(wan_tail_image_acked(&all.tail, BUCKET, copy->lane, LIFE, EPOCH, copy->transfer), 0);
    copy->image_shard = WAN_IMAGE_DONE;
    EXPECT_EQUAL(wan_tail_image_acked(&all.tail, BUCKET, copy->lane, LIFE, EPOCH, copy->transfer + 1), 0);
    EXPECT_EQUAL(wan_tail_image_acked(&all.tail, BUCKET, copy->lane, LIFE, EPOCH, copy->transfer), 1);
    EXPECT_EQUAL(wan_tail_image_acked(&all.tail, BUCKET, copy->lane, LIFE, EPOCH, copy->transfer), 0);
    put(&all, 64, 4);
    EXPECT_EQUAL(all.bucket->counted, 3); /* The fourth one waits. */
    EXPECT_EQUAL(wan_tail_acknowledged(&all.tail, BUCKET, copy->lane, LIFE, EPOCH, 2), 0);
    EXPECT_EQUAL(wan_tail_acknowledged(&all.tail, BUCKET, copy->lane, LIFE, EPOCH, 3), WAN_TAIL_CAUGHT_UP);
    EXPECT_EQUAL(wan_tail_acknowledged(&all.tail, BUCKET, copy->lane, LIFE, EPOCH, 4), WAN_TAIL_GREW);
    set_copies(&all, &learner, 1); /* A decision about something else. */
    EXPECT_EQUAL(all.bucket->copies[0].state, WAN_COPY_WAITED);
    wan_tail_set_role(&all.tail, BUCKET, WAN_TAIL_PRIMARY, LIFE, EPOCH + 1, 0);
    EXPECT_EQUAL(all.bucket->copies[0].state, WAN_COPY_LEARNING);
    end(&all);
}

static void a_learner_takes_a_stream_from_anywhere_and_begins_anew_with_another_image(void)
{
    tails all;
    _Alignas(8) uint8_t entry[64];
    begin(&all, WAN_TAIL_LEARNER);
    write_entry(entry, 64, 1);
    EXPECT_EQUAL(follow(&all, EPOCH, 41, entry), WAN_OK);
    EXPECT_EQUAL(follow(&all, EPOCH, 43, entry), WAN_INVALID);
    wan_tail_set_role(&all.tail, BUCKET, WAN_TAIL_LEARNER, LIFE, EPOCH, 1);
    EXPECT_EQUAL(all.bucket->last, 41);
    wan_tail_set_role(&all.tail, BUCKET, WAN_TAIL_LEARNER, LIFE, EPOCH, 2);
    EXPECT_EQUAL(all.bucket->last, 0);
    EXPECT_EQUAL(all.tail.shard_last[SHARD], 0);
    EXPECT_EQUAL(follow(&all, EPOCH, 50, entry), WAN_OK);
    wan_tail_set_role(&all.tail, BUCKET, WAN_TAIL_COPY, LIFE, EPOCH, 0);
    EXPECT_EQUAL(all.bucket->last, 50);
    end(&all);
}

static void a_primary_reads_alone_only_under_a_promise_of_every_copy_for_this_epoch(void)
{
    tails all;
    begin(&all, WAN_TAIL_PRIMARY);
    const uint64_t now = 1000;
    EXPECT(wan_tail_may_read(&all.tail, BUCKET, now)); /* Nobody has set a silence-limit: there is none. */
    all.tail.primary_until_us = now;
    EXPECT(!wan_tail_may_read(&all.tail, BUCKET, now));
    EXPECT(wan_tail_may_read(&all.tail, BUCKET, now - 1));
    all.tail.primary_until_us = now + 1;
    set_copies(&all, (wan_tail_copy[]){waited, learner}, 2);
    all.lanes[0].promised_until_us = now + 1;
    all.lanes[0].asleep = 1;
    EXPECT(!wan_tail_may_read(&all.tail, BUCKET, now)); /* The promise may be older than this epoch. */
    EXPECT(all.lanes[0].wants_promise && was_woken(&all, 0));
    acknowledge(&all, 0, 0);
    EXPECT(wan_tail_may_read(&all.tail, BUCKET, now));
    all.tail.primary_until_us = now; /* A promise does not help: the copy may be silent together with this member. */
    EXPECT(!wan_tail_may_read(&all.tail, BUCKET, now));
    all.tail.primary_until_us = WAN_NEVER;
    EXPECT(!wan_tail_may_read(&all.tail, BUCKET, now + 1));
    wan_tail_rewind(&all.tail, 0);
    EXPECT(!wan_tail_may_read(&all.tail, BUCKET, now));
    acknowledge(&all, 0, 0);
    wan_tail_set_role(&all.tail, BUCKET, WAN_TAIL_PRIMARY, LIFE, EPOCH + 1, 0);
    EXPECT(!wan_tail_may_read(&all.tail, BUCKET, now));
    wan_tail_set_role(&all.tail, BUCKET, WAN_TAIL_TAKING_OVER, LIFE, EPOCH + 2, 0);
    all.tail.primary_until_us = WAN_NEVER;
    EXPECT(!wan_tail_may_read(&all.tail, BUCKET, now));
    end(&all);
}

static void a_new_connection_goes_on_behind_what_was_acknowledged(void)
{
    tails all;
    begin(&all, WAN_TAIL_PRIMARY);
    set_copies(&all, (wan_tail_copy[]){waited, learner}, 2);
    for (uint64_t n = 1; n <= 4; n++) put(&all, 64, n);
    acknowledge(&all, 0, 2);
    for (uint32_t n = 0; n < 2; n++) {
        all.bucket->copies[n].sent = 4;
        all.bucket->copies[n].image_shard = n ? 2 : WAN_IMAGE_DONE;
        has_work(&all, n);
        wan_tail_rewind(&all.tail, n);
        EXPECT(has_work(&all, n));
        EXPECT_EQUAL(all.bucket->copies[n].sent, n ? 0 : 2);
        EXPECT_EQUAL(all.bucket->copies[n].image_shard, n ? 0 : WAN_IMAGE_DONE);
    }
    end(&all);
}

/* A primary and two copies, beside arrays that say what each of them must have. One of the copies takes over now and
 * then. */

enum { PLAYERS = 3, ENTRIES_MAX = 4000 };
typedef struct {
    tails players[PLAYERS];
    uint32_t leader;
    uint64_t epoch;
    uint64_t waits_for;            /* A bit for each player in the set. The lane to a player has the player's number. */
    uint64_t last[PLAYERS];        /* What each player has. */
    uint64_t counted;              /* No player in the set may lose anything of this. */
    uint32_t lengths[ENTRIES_MAX]; /* By sequence. */
    uint64_t contents[ENTRIES_MAX];
} play;

static void check_player(play *all, uint32_t who)
{
    const wan_tail_bucket *bucket = all->players[who].bucket;
    EXPECT_EQUAL(bucket->last, all->last[who]);
    EXPECT(bucket->first <= bucket->last + 1 && bucket->counted <= bucket->last);
    EXPECT(bucket->first <= bucket->counted + 1);
    uint64_t at = bucket->changes.start;
    for (uint64_t n = bucket->first; n <= bucket->last && !expectations_failed; n++) {
        const wan_tail_entry *entry = (const wan_tail_entry *)(bucket->changes.bytes + at);
        EXPECT_EQUAL(entry->length, all->lengths[n]);
        EXPECT_EQUAL(entry->found_length, all->contents[n]);
        EXPECT_EQUAL(((const uint8_t *)entry)[entry->length - 1], all->contents[n] * 37 & 255);
        at += entry->length;
    }
    EXPECT_EQUAL(at, bucket->changes.used);
}

static void lead(play *all, uint32_t who)
{
    all->leader = who;
    all->epoch++;
    for (uint32_t n = 0; n < PLAYERS; n++)
        wan_tail_set_role(&all->players[n].tail, BUCKET, n == who ? WAN_TAIL_TAKING_OVER : WAN_TAIL_COPY, LIFE,
                          all->epoch, 0);
}

/* What the leader says of its copies. */
static void name_copies(play *all)
{
    wan_tail_copy copies[PLAYERS];
    uint32_t count = 0;
    for (uint32_t n = 0; n < PLAYERS; n++)
        if (n != all->leader && all->waits_for >> n & 1)
            copies[count++] = (wan_tail_copy){.lane = n, .state = WAN_COPY_WAITED, .acked = all->last[n]};
    set_copies(&all->players[all->leader], copies, count);
}

/* The new leader gets what the others have beyond its own, and then accepts changes. */
static void take_over(play *all, uint32_t who)
{
    lead(all, who);
    tails *to = &all->players[who];
    for (uint32_t n = 0; n < PLAYERS; n++) {
        if (!(all->waits_for >> n & 1)) continue;
        const wan_tail_bucket *from = all->players[n].bucket;
        EXPECT(from->first <= all->last[who] + 1); /* What the new leader lacks is still there. */
        uint64_t at = from->changes.start;
        for (uint64_t k = from->first; k <= from->last; k++) {
            const uint8_t *entry = from->changes.bytes + at;
            EXPECT_EQUAL(follow(to, all->epoch, k, entry), k <= all->last[who] ? WAN_EMPTY : WAN_OK);
            if (k > all->last[who]) all->last[who] = k;
            at += ((const wan_tail_entry *)entry)->length;
        }
    }
    EXPECT(all->last[who] >= all->counted);
    name_copies(all);
    wan_tail_set_role(&to->tail, BUCKET, WAN_TAIL_PRIMARY, LIFE, all->epoch, 0);
}

/* One copy gets some of what it lacks, as a lane would send it, and perhaps acknowledges. */
static void send_some(play *all, uint32_t who, random_source *source)
{
    wan_tail_bucket *from = all->players[all->leader].bucket;
    uint64_t at = from->changes.start, count = random_below(source, 5);
    for (uint64_t n = from->first; n <= from->last && count; n++) {
        const wan_tail_entry *entry = (const wan_tail_entry *)(from->changes.bytes + at);
        at += entry->length;
        if (n <= all->last[who]) continue;
        EXPECT_EQUAL(follow(&all->players[who], all->epoch, n, (const uint8_t *)entry), WAN_OK);
        all->last[who] = n;
        count--;
    }
    wan_tail_told(&all->players[who].tail, BUCKET, LIFE, all->epoch, from->counted, 0, 0);
    if (random_below(source, 2)) acknowledge(&all->players[all->leader], who, all->last[who]);
}

/* A copy that was taken out gets an image, which is left out here, and the stream that belongs to it. */
static void come_back(play *all, uint32_t who, uint64_t transfer)
{
    wan_tail_bucket *from = all->players[all->leader].bucket, *to = all->players[who].bucket;
    wan_tail_set_role(&all->players[who].tail, BUCKET, WAN_TAIL_LEARNER, LIFE, all->epoch, transfer);
    to->last = to->counted = from->counted;
    to->first = from->counted + 1;
    uint64_t at = from->changes.start;
    for (uint64_t n = from->first; n <= from->last; n++) {
        const wan_tail_entry *entry = (const wan_tail_entry *)(from->changes.bytes + at);
        EXPECT_EQUAL(follow(&all->players[who], all->epoch, n, (const uint8_t *)entry),
                     n <= from->counted ? WAN_EMPTY : WAN_OK);
        at += entry->length;
    }
    wan_tail_set_role(&all->players[who].tail, BUCKET, WAN_TAIL_COPY, LIFE, all->epoch, 0);
    all->last[who] = to->last;
    all->waits_for |= (uint64_t)1 << who;
    name_copies(all);
}

static void tails_lose_nothing_that_counted_whoever_leads(void)
{
    static play all;
    for (uint64_t seed = 1; seed <= 30 && !expectations_failed; seed++) {
        random_source source = {.state = seed};
        memset(&all, 0, sizeof all);
        for (uint32_t n = 0; n < PLAYERS; n++) begin(&all.players[n], WAN_TAIL_COPY);
        all.epoch = EPOCH;
        all.waits_for = 7;
        take_over(&all, 0);
        for (int step = 0; step < 1500 && !expectations_failed; step++) {
            tails *leader = &all.players[all.leader];
            uint32_t who = random_below(&source, PLAYERS), what = random_below(&source, 100);
            uint64_t sequence = all.last[all.leader] + 1;
            if (what < 45 && sequence < ENTRIES_MAX) {
                all.lengths[sequence] = 24 + 8 * random_below(&source, random_below(&source, 20) ? 20 : 3000);
                all.contents[sequence] = random_below(&source, 1u << 30);
                EXPECT_EQUAL(put(leader, all.lengths[sequence], all.contents[sequence]), sequence);
                all.last[all.leader] = sequence;
            } else if (what < 95 && who != all.leader && all.waits_for >> who & 1) {
                send_some(&all, who, &source);
            } else if (what < 97) {
                if (all.waits_for >> who & 1) take_over(&all, who);
            } else if (what < 98 && who != all.leader) {
                all.waits_for &= ~((uint64_t)1 << who); /* It is taken out. */
                name_copies(&all);
            } else if (what < 99 && !(all.waits_for >> who & 1)) {
                come_back(&all, who, seed + step);
            }
            leader = &all.players[all.leader];
            uint64_t counted = all.last[all.leader];
            for (uint32_t n = 0; n < leader->bucket->copy_count; n++)
                if (leader->bucket->copies[n].acked < counted) counted = leader->bucket->copies[n].acked;
            if (counted > all.counted) all.counted = counted;
            EXPECT_EQUAL(leader->bucket->counted, all.counted);
            for (uint32_t n = 0; n < PLAYERS; n++) check_player(&all, n);
        }
        if (expectations_failed) printf("    seed %" PRIu64 "\n", seed);
        for (uint32_t n = 0; n < PLAYERS; n++) end(&all.players[n]);
    }
}

static const wan_call_identity asker = {.caller = 9, .slot = 3, .number = 5};

/* Makes a change as the call `number` of a slot; as a row if `row` is not -1. Returns the status of the attempt. */
static wan_status call(tails *all, uint64_t number, int row, wan_tail_reservation *room)
{
    wan_attempt attempt = {.call = asker, .is_row = row >= 0, .row = row >= 0 ? (uint32_t)row : 0};
    attempt.call.number = number;
    wan_status status = wan_tail_reserve(&all->tail, BUCKET, 64, &attempt, room);
    if (status != WAN_OK) return status;
    write_entry(room->at, 64, 1);
    wan_tail_entry *entry = (wan_tail_entry *)room->at;
    *entry = (wan_tail_entry){.length = 64, .flags = WAN_TAIL_REMEMBERED, .outcome = (uint8_t)(number % 3)};
    if (row >= 0) entry->flags |= WAN_TAIL_ROW, entry->row = attempt.row;
    *wan_tail_entry_call(entry) = attempt.call;
    wan_tail_commit(&all->tail, room, SHARD);
    return WAN_OK;
}

static void each_attempt_of_a_call_is_asked_what_became_of_the_call_before(void)
{
    tails all;
    wan_tail_reservation room;
    wan_recalled recalled;
    begin(&all, WAN_TAIL_PRIMARY);
    wan_attempt attempt = {.call = asker};
    EXPECT_EQUAL(wan_tail_recall(&all.tail, BUCKET, &attempt, &recalled, NULL), WAN_EMPTY);
    put(&all, 64, 1);
    EXPECT_EQUAL(call(&all, 5, -1, &room), WAN_OK);
    EXPECT_EQUAL(call(&all, 5, -1, &room), WAN_MADE_BEFORE);
    EXPECT(room.recalled.sequence == 2 && room.recalled.era == all.bucket->era && room.recalled.outcome == 2);
    EXPECT_EQUAL(wan_tail_recall(&all.tail, BUCKET, &attempt, &recalled, NULL), WAN_MADE_BEFORE);
    EXPECT_EQUAL(call(&all, 4, -1, &room), WAN_IN_DOUBT);
    EXPECT_EQUAL(call(&all, 7, -1, &room), WAN_OK); /* Number 6 was made in another bucket. */
    EXPECT_EQUAL(call(&all, 5, -1, &room), WAN_IN_DOUBT);
    EXPECT_EQUAL(wan_tail_recall(&all.tail, BUCKET, &attempt, &recalled, NULL), WAN_IN_DOUBT);
    EXPECT_EQUAL(all.bucket->last, 3);
    for (int row = 0; row < 3; row++) EXPECT_EQUAL(call(&all, 8, row, &room), WAN_OK);
    for (int row = 0; row < 3; row++) EXPECT_EQUAL(call(&all, 8, row, &room), WAN_MADE_BEFORE);
    EXPECT(room.recalled.applied == 3 && room.recalled.sequence == 6);
    EXPECT_EQUAL(call(&all, 8, 3, &room), WAN_OK);
    EXPECT_EQUAL(call(&all, 7, 9, &room), WAN_IN_DOUBT);
    wan_tail_set_role(&all.tail, BUCKET, WAN_TAIL_COPY, LIFE, EPOCH + 1, 0);
    EXPECT_EQUAL(call(&all, 8, 3, &room), WAN_ELSEWHERE);
    EXPECT_EQUAL(wan_tail_recall(&all.tail, BUCKET, &attempt, &recalled, NULL), WAN_ELSEWHERE);
    end(&all);
}

static void a_repeat_of_a_call_from_before_the_life_is_in_doubt_unless_the_call_is_remembered(void)
{
    tails all;
    wan_recalled recalled;
    wan_tail_reservation room;
    begin(&all, WAN_TAIL_PRIMARY);
    wan_attempt attempt = {.call = asker, .since = LIFE - 1};
    EXPECT_EQUAL(wan_tail_recall(&all.tail, BUCKET, &attempt, &recalled, NULL), WAN_IN_DOUBT);
    EXPECT_EQUAL(wan_tail_reserve(&all.tail, BUCKET, 64, &attempt, &room), WAN_IN_DOUBT);
    EXPECT_EQUAL(call(&all, asker.number - 1, -1, &room), WAN_OK);
    EXPECT_EQUAL(wan_tail_recall(&all.tail, BUCKET, &attempt, &recalled, NULL), WAN_IN_DOUBT);
    attempt.since = LIFE;
    EXPECT_EQUAL(wan_tail_recall(&all.tail, BUCKET, &attempt, &recalled, NULL), WAN_EMPTY);
    EXPECT_EQUAL(call(&all, asker.number, 0, &room), WAN_OK);
    attempt.since = LIFE - 1, attempt.is_row = 1;
    EXPECT_EQUAL(wan_tail_recall(&all.tail, BUCKET, &attempt, &recalled, NULL), WAN_MADE_BEFORE);
    attempt.row = 1;
    EXPECT_EQUAL(wan_tail_recall(&all.tail, BUCKET, &attempt, &recalled, NULL), WAN_IN_DOUBT);
    end(&all);
}

static void a_caller_that_is_forgotten_is_refused_at_every_holder_from_that_sequence_on(void)
{
    tails all, copy;
    wan_tail_reservation room;
    begin(&all, WAN_TAIL_PRIMARY);
    begin(&copy, WAN_TAIL_COPY);
    set_copies(&all, &waited, 1);
    EXPECT_EQUAL(call(&all, 5, -1, &room), WAN_OK);
    EXPECT_EQUAL(wan_tail_forget(&all.tail, BUCKET, asker.caller), WAN_OK);
    EXPECT_EQUAL(all.bucket->last, 2);
    EXPECT_EQUAL(all.tail.shard_last[SHARD], 1); /* No read waits for it. */
    EXPECT_EQUAL(call(&all, 6, -1, &room), WAN_GIVEN_UP);
    EXPECT_EQUAL(call(&all, 5, 0, &room), WAN_GIVEN_UP);
    const uint8_t *at = all.bucket->changes.bytes + all.bucket->changes.start;
    EXPECT_EQUAL(follow(&copy, EPOCH, 1, at), WAN_OK);
    EXPECT_EQUAL(copy.bucket->answers.count, 1);
    at += ((const wan_tail_entry *)at)->length;
    EXPECT_EQUAL(wan_tail_entry_check(at, 32, 0), WAN_OK);
    EXPECT_EQUAL(follow(&copy, EPOCH, 2, at), WAN_OK);
    EXPECT_EQUAL(copy.bucket->answers.count, 0);
    wan_tail_set_role(&copy.tail, BUCKET, WAN_TAIL_PRIMARY, LIFE, EPOCH + 1, 0);
    EXPECT_EQUAL(call(&copy, 6, -1, &room), WAN_GIVEN_UP);
    EXPECT_EQUAL(wan_tail_forget(&copy.tail, BUCKET, 77), WAN_OK);
    wan_tail_set_role(&copy.tail, BUCKET, WAN_TAIL_ABSENT, LIFE, EPOCH + 1, 0);
    EXPECT_EQUAL(copy.bucket->answers.refused_count, 0);
    EXPECT_EQUAL(wan_tail_forget(&copy.tail, BUCKET, 77), WAN_ELSEWHERE);
    end(&all);
    end(&copy);
}

static void an_entry_that_cannot_be_is_found(void)
{
    _Alignas(8) uint8_t bytes[256] = {0};
    const record_plan plan = {.operation = WAN_UPDATE, .key = "key", .value = "v", .value_length = 1};
    wan_tail_entry *entry = (wan_tail_entry *)bytes;
    const uint64_t record = plan_length(&plan), call_length = sizeof *entry + sizeof(wan_call_identity);
    const wan_tail_entry good[] = {
        {.length = (uint32_t)(sizeof *entry + record)},
        {.length = (uint32_t)(call_length + record), .flags = WAN_TAIL_REMEMBERED},
        {.length = (uint32_t)(call_length + record), .flags = WAN_TAIL_REMEMBERED | WAN_TAIL_ROW, .row = 7},
        {.length = (uint32_t)(call_length + record + 8),
         .flags = WAN_TAIL_REMEMBERED | WAN_TAIL_FOUND,
         .found_length = 3},
        {.length = (uint32_t)call_length, .kind = WAN_ENTRY_FORGET},
    };
    for (uint32_t n = 0; n < sizeof good / sizeof *good; n++) {
        memset(bytes, 0, sizeof bytes);
        *entry = good[n];
        if (wan_tail_entry_has_call(entry)) *wan_tail_entry_call(entry) = asker;
        if (entry->kind == WAN_ENTRY_FORGET) *wan_tail_entry_call(entry) = (wan_call_identity){.caller = 9};
        if (entry->kind == WAN_ENTRY_CHANGE) write_plan((uint8_t *)wan_tail_entry_record(entry), &plan);
        EXPECT_EQUAL(wan_tail_entry_check(bytes, entry->length, 0), WAN_OK);
        EXPECT_EQUAL(wan_tail_entry_check(bytes, entry->length - 8, 0), WAN_CORRUPT);
        entry->verdict_length = 8; /* No verdict is so short. */
        EXPECT_EQUAL(wan_tail_entry_check(bytes, entry->length, 0), WAN_CORRUPT);
        *entry = good[n], entry->kind = WAN_ENTRY_KINDS;
        EXPECT_EQUAL(wan_tail_entry_check(bytes, entry->length, 0), WAN_CORRUPT);
        *entry = good[n], entry->outcome = WAN_MISSING;
        EXPECT_EQUAL(wan_tail_entry_check(bytes, entry->length, 0), WAN_CORRUPT);
        EXPECT_EQUAL(wan_tail_entry_check(bytes, entry->length, 1) == WAN_CORRUPT, n != 0);
        entry->outcome = WAN_FORGOTTEN;
        EXPECT_EQUAL(wan_tail_entry_check(bytes, entry->length, 1), WAN_CORRUPT);
        *entry = good[n], entry->flags ^= WAN_TAIL_LEFT_OUT;
        EXPECT_EQUAL(wan_tail_entry_check(bytes, entry->length, 0) == WAN_CORRUPT, n != 3);
        *entry = good[n];
        if (!wan_tail_entry_has_call(entry)) continue;
        wan_tail_entry_call(entry)->caller = 0;
        EXPECT_EQUAL(wan_tail_entry_check(bytes, entry->length, 0), WAN_CORRUPT);
        EXPECT(strstr(wan_detail, "a call of caller 0") != NULL);
    }
}

static wan_shelved waiting_for(tails *all, wan_waker *owner, uint64_t sequence)
{
    return (wan_shelved){.owner = owner, .era = all->bucket->era, .sequence = sequence};
}

static void what_is_shelved_is_ready_when_its_sequence_counts_and_its_owner_is_woken_once(void)
{
    tails all;
    begin(&all, WAN_TAIL_PRIMARY);
    wan_waker owner = {.asleep = 1, .wake_file = eventfd(0, EFD_NONBLOCK)};
    set_copies(&all, &waited, 1);
    for (uint64_t n = 1; n <= 4; n++) put(&all, 64, n);
    const uint64_t sequences[] = {2, 4, 1, 3, 2}; /* In the order in which they come. */
    wan_shelved shelved[5];
    for (int n = 0; n < 5; n++) {
        shelved[n] = waiting_for(&all, &owner, sequences[n]);
        EXPECT_EQUAL(wan_tail_shelve(&all.tail, BUCKET, &shelved[n]), WAN_EMPTY);
    }
    EXPECT(!wan_waker_has_ready(&owner));
    acknowledge(&all, 0, 2);
    uint64_t ready = 0;
    for (wan_shelved *next = wan_waker_take(&owner); next; next = next->behind) ready |= 1u << (next - shelved);
    EXPECT_EQUAL(ready, 1 << 0 | 1 << 2 | 1 << 4);
    uint64_t woken = 0;
    EXPECT_EQUAL(read(owner.wake_file, &woken, sizeof woken), sizeof woken);
    EXPECT_EQUAL(woken, 1);
    EXPECT_EQUAL(wan_tail_unshelve(&all.tail, BUCKET, &shelved[0]), 0);
    EXPECT_EQUAL(wan_tail_unshelve(&all.tail, BUCKET, &shelved[1]), 1);
    acknowledge(&all, 0, 4);
    EXPECT(wan_waker_take(&owner) == &shelved[3] && !shelved[3].behind);
    EXPECT_EQUAL(read(owner.wake_file, &woken, sizeof woken), -1); /* It was awake. */
    wan_shelved counts = waiting_for(&all, &owner, 4);
    EXPECT_EQUAL(wan_tail_shelve(&all.tail, BUCKET, &counts), WAN_OK);
    EXPECT_EQUAL(wan_tail_unshelve(&all.tail, BUCKET, &counts), 0);
    close(owner.wake_file);
    end(&all);
}

static void what_is_shelved_is_ready_when_the_era_is_another_one(void)
{
    tails all;
    begin(&all, WAN_TAIL_PRIMARY);
    wan_waker owner = {.wake_file = -1};
    set_copies(&all, &waited, 1);
    put(&all, 64, 1);
    wan_shelved first = waiting_for(&all, &owner, 1), late = first;
    EXPECT_EQUAL(wan_tail_shelve(&all.tail, BUCKET, &first), WAN_EMPTY);
    wan_tail_set_role(&all.tail, BUCKET, WAN_TAIL_COPY, LIFE, EPOCH + 1, 0);
    EXPECT(wan_waker_take(&owner) == &first && !first.behind && !wan_waker_has_ready(&owner));
    EXPECT_EQUAL(wan_tail_shelve(&all.tail, BUCKET, &late), WAN_ELSEWHERE);
    end(&all);
}

static void what_counted_before_a_handover_is_known_after_it(void)
{
    tails all;
    begin(&all, WAN_TAIL_PRIMARY);
    wan_waker owner = {.wake_file = -1};
    set_copies(&all, &waited, 1);
    put(&all, 64, 1);
    put(&all, 64, 2);
    const uint64_t era = all.bucket->era;
    acknowledge(&all, 0, 1);
    wan_shelved counted = waiting_for(&all, &owner, 1), other = waiting_for(&all, &owner, 2);
    wan_tail_set_role(&all.tail, BUCKET, WAN_TAIL_COPY, LIFE, EPOCH + 1, 0);
    EXPECT_EQUAL(wan_tail_wait(&all.tail, BUCKET, era, 1, 0), WAN_OK);
    EXPECT_EQUAL(wan_tail_shelve(&all.tail, BUCKET, &counted), WAN_OK);
    EXPECT_EQUAL(wan_tail_wait(&all.tail, BUCKET, era, 2, 0), WAN_ELSEWHERE);
    EXPECT_EQUAL(wan_tail_shelve(&all.tail, BUCKET, &other), WAN_ELSEWHERE);
    wan_tail_set_role(&all.tail, BUCKET, WAN_TAIL_ABSENT, LIFE, EPOCH + 2, 0);
    EXPECT_EQUAL(wan_tail_wait(&all.tail, BUCKET, era, 1, 0), WAN_ELSEWHERE);     /* It is too long ago. */
    EXPECT_EQUAL(wan_tail_wait(&all.tail, BUCKET, era + 1, 1, 0), WAN_ELSEWHERE); /* Of a copy nothing is kept. */
    end(&all);
}

const test_case tail_tests[] = {
    {"without copies a change counts at once, and nothing is kept",
     without_copies_a_change_counts_at_once_and_nothing_is_kept},
    {"a change counts when the last copy that is waited for has it",
     a_change_counts_when_the_last_copy_that_is_waited_for_has_it},
    {"a change waits for a replica that holds the queued events alone",
     a_change_waits_for_a_replica_that_holds_the_queued_events_alone},
    {"a learner that is waited for now keeps what it acknowledged",
     a_learner_that_is_waited_for_now_keeps_what_it_acknowledged},
    {"a primary takes no change after its silence limit, also with a copy in sync",
     a_primary_takes_no_change_after_its_silence_limit_also_with_a_copy_in_sync},
    {"what a copy answers after the silence limit counts when the coordinator was heard again",
     what_a_copy_answers_after_the_silence_limit_counts_when_the_coordinator_was_heard_again},
    {"a sole copy that was stopped over its silence limit keeps the change until it counts",
     a_sole_copy_that_was_stopped_over_its_silence_limit_keeps_the_change_until_it_counts},
    {"changes under one hold count together, and wake a lane once",
     changes_under_one_hold_count_together_and_wake_a_lane_once},
    {"a hold without a change leaves nothing, and one with a change that is not made keeps the others",
     a_hold_without_a_change_leaves_nothing_and_one_with_a_change_that_is_not_made_keeps_the_others},
    {"the stream of a learner has all that a copy in sync may lack",
     the_stream_of_a_learner_has_all_that_a_copy_in_sync_may_lack},
    {"another transfer of a lane is another learner", another_transfer_of_a_lane_is_another_learner},
    {"a new epoch begins the image of a learner anew", a_new_epoch_begins_the_image_of_a_learner_anew},
    {"an image that is whole before its primary is active is not forgotten",
     an_image_that_is_whole_before_its_primary_is_active_is_not_forgotten},
    {"a learner with its image is waited for, and caught up when it has what counts",
     a_learner_with_its_image_is_waited_for_and_caught_up_when_it_has_what_counts},
    {"only a primary takes changes, and a cancelled one leaves nothing",
     only_a_primary_takes_changes_and_a_cancelled_one_leaves_nothing},
    {"a bucket with too few copies in sync takes no change", a_bucket_with_too_few_copies_in_sync_takes_no_change},
    {"a full budget refuses nothing, and has room again when copies acknowledge",
     a_full_budget_refuses_nothing_and_has_room_again_when_copies_acknowledge},
    {"a tail that becomes short gives memory back before it is empty",
     a_tail_that_becomes_short_gives_memory_back_before_it_is_empty},
    {"callers wait for a learner whose lane works and does not keep up",
     callers_wait_for_a_learner_whose_lane_works_and_does_not_keep_up},
    {"callers wait for a learner that has taken nothing yet, for a while only",
     callers_wait_for_a_learner_that_has_taken_nothing_yet_for_a_while_only},
    {"the budget counts what tails hold, whatever happens to them",
     the_budget_counts_what_tails_hold_whatever_happens_to_them},
    {"a lane that sleeps is woken once, and one that works is not",
     a_lane_that_sleeps_is_woken_once_and_one_that_works_is_not},
    {"each lane is woken once for what is settled, until it has told that",
     each_lane_is_woken_once_for_what_is_settled_until_it_has_told_that},
    {"a lane at rest is run by the thread that waits, and woken for all others",
     a_lane_at_rest_is_run_by_the_thread_that_waits_and_woken_for_all_others},
    {"what counted before a handover is known after it", what_counted_before_a_handover_is_known_after_it},
    {"whoever waits hears that the era is another one", whoever_waits_hears_that_the_era_is_another_one},
    {"each attempt of a call is asked what became of the call before",
     each_attempt_of_a_call_is_asked_what_became_of_the_call_before},
    {"a repeat of a call from before the life is in doubt unless the call is remembered",
     a_repeat_of_a_call_from_before_the_life_is_in_doubt_unless_the_call_is_remembered},
    {"a caller that is forgotten is refused at every holder from that sequence on",
     a_caller_that_is_forgotten_is_refused_at_every_holder_from_that_sequence_on},
    {"an entry that cannot be is found", an_entry_that_cannot_be_is_found},
    {"what is shelved is ready when its sequence counts, and its owner is woken once",
     what_is_shelved_is_ready_when_its_sequence_counts_and_its_owner_is_woken_once},
    {"what is shelved is ready when the era is another one", what_is_shelved_is_ready_when_the_era_is_another_one},
    {"a copy takes the next change of its epoch only", a_copy_takes_the_next_change_of_its_epoch_only},
    {"a learner takes a stream from anywhere, and begins anew with another image",
     a_learner_takes_a_stream_from_anywhere_and_begins_anew_with_another_image},
    {"a primary reads alone only under a promise of every copy for this epoch",
     a_primary_reads_alone_only_under_a_promise_of_every_copy_for_this_epoch},
    {"a new connection goes on behind what was acknowledged", a_new_connection_goes_on_behind_what_was_acknowledged},
    {"tails lose nothing that counted, whoever leads", tails_lose_nothing_that_counted_whoever_leads},
    {0},
};
