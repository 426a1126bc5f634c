/* Owns the tests of the change log of a bucket, without threads. The tests with threads are in test_threads.c. */
#include <unistd.h>
#include <sys/eventfd.h>

#include "harness.h"
#include "base/wan_clock.h"
#include "replication/wan_repl_link.h"
#include "replication/wan_changelog.h"
#include "region/wan_table.h"

enum { BUCKETS = 3, SHARDS = 6, BUCKET = 1, SHARD = 2, TIMELINE = 7, EPOCH = 5, REPL_LINKS = 4 };

typedef struct {
    wan_changelog changelog;
    wan_changelog_bucket *bucket; /* The bucket under test in most tests. */
    wan_repl_link_state repl_links[REPL_LINKS];
} changelogs;

static void begin(changelogs *all, uint8_t role)
{
    memset(all, 0, sizeof *all);
    EXPECT_EQUAL(wan_changelog_init(&all->changelog, BUCKETS, SHARDS, 1), WAN_OK);
    all->bucket = &all->changelog.buckets[BUCKET];
    for (uint32_t n = 0; n < REPL_LINKS; n++) {
        all->repl_links[n].wake_file = eventfd(0, EFD_NONBLOCK);
        EXPECT_EQUAL(wan_changelog_add_repl_link(&all->changelog, n, &all->repl_links[n]), WAN_OK);
    }
    wan_changelog_set_role(&all->changelog, BUCKET, role, TIMELINE, EPOCH, role == WAN_REPLICA_LEARNER);
}

static void end(changelogs *all)
{
    for (uint32_t n = 0; n < REPL_LINKS; n++) close(all->repl_links[n].wake_file);
    wan_changelog_close(&all->changelog);
}

/* Writes an entry whose content identifies the change. */
static void write_entry(uint8_t *at, uint32_t length, uint64_t content)
{
    memset(at, (int)(content * 37 & 255), length);
    *(wan_changelog_entry *)at = (wan_changelog_entry){.length = length, .found_length = (uint32_t)content};
}

static uint64_t put(changelogs *all, uint32_t length, uint64_t content)
{
    wan_changelog_reservation room;
    EXPECT_EQUAL(wan_changelog_reserve(&all->changelog, BUCKET, length, NULL, &room), WAN_OK);
    write_entry(room.at, length, content);
    return wan_changelog_commit(&all->changelog, &room, SHARD);
}

static wan_status follow(changelogs *all, uint64_t epoch, uint64_t sequence, const uint8_t *entry)
{
    wan_changelog_reservation room;
    wan_status status = wan_changelog_follow(&all->changelog, BUCKET, TIMELINE, epoch, sequence,
                                             (const wan_changelog_entry *)entry, &room);
    if (status == WAN_OK) {
        wan_changelog_followed(&all->changelog, &room, (const wan_changelog_entry *)entry, SHARD);
        wan_changelog_follow_end(&all->changelog, &room);
    }
    return status;
}

static int has_work(changelogs *all, uint32_t repl_link)
{
    uint64_t bit = (uint64_t)1 << BUCKET;
    return (__atomic_fetch_and(&all->changelog.to_send[repl_link][0], ~bit, __ATOMIC_SEQ_CST) & bit) != 0;
}

static int was_woken(changelogs *all, uint32_t repl_link)
{
    uint64_t count;
    return read(all->repl_links[repl_link].wake_file, &count, sizeof count) == sizeof count;
}

static int acknowledge(changelogs *all, uint32_t repl_link, uint64_t sequence)
{
    return wan_changelog_acknowledged(&all->changelog, BUCKET, repl_link, TIMELINE, all->bucket->epoch, sequence);
}

static void set_replicas(changelogs *all, const wan_changelog_replica *replicas, uint32_t count)
{
    EXPECT_EQUAL(wan_changelog_set_replicas(&all->changelog, BUCKET, replicas, count), WAN_OK);
}

static const wan_changelog_replica waited = {.repl_link = 0, .state = WAN_FOLLOWER_WAITED};
static const wan_changelog_replica learner = {.repl_link = 1, .state = WAN_FOLLOWER_LEARNING, .transfer = 9};

static void without_other_replicas_a_change_is_stable_at_once_and_nothing_is_kept(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_PRIMARY);
    for (uint64_t n = 1; n <= 100; n++) EXPECT_EQUAL(put(&all, 1024, n), n);
    EXPECT_EQUAL(all.bucket->high_watermark, 100);
    EXPECT_EQUAL(all.bucket->first, 101);
    EXPECT_EQUAL(all.bucket->changes.used - all.bucket->changes.start, 0);
    EXPECT_EQUAL(all.changelog.shard_last[SHARD], 100);
    EXPECT_EQUAL(all.changelog.shard_last[SHARD + 1], 0);
    EXPECT_EQUAL(wan_changelog_wait(&all.changelog, BUCKET, all.bucket->local_fence, 100, 0), WAN_OK);
    EXPECT(!has_work(&all, 0));
    end(&all);
}

static void a_change_is_replicated_when_the_last_replica_that_is_waited_for_has_it(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_PRIMARY);
    set_replicas(&all, (wan_changelog_replica[]){{.repl_link = 0, .state = 1}, {.repl_link = 2, .state = 1}, learner},
                 3);
    for (uint64_t n = 1; n <= 3; n++) put(&all, 64, n);
    EXPECT_EQUAL(acknowledge(&all, 0, 3), 0);
    EXPECT_EQUAL(acknowledge(&all, 2, 2), 1);
    EXPECT_EQUAL(all.bucket->high_watermark, 2);
    EXPECT_EQUAL(wan_changelog_wait(&all.changelog, BUCKET, all.bucket->local_fence, 3, 0), WAN_EMPTY);
    EXPECT_EQUAL(all.bucket->first, 1); /* The learner has no change. */
    EXPECT_EQUAL(acknowledge(&all, 1, 1), 0);
    EXPECT_EQUAL(all.bucket->first, 2);
    set_replicas(&all, (wan_changelog_replica[]){waited, learner}, 2); /* The primary no longer waits for replication
                                                                          link 2. */
    EXPECT_EQUAL(all.bucket->high_watermark, 3);
    EXPECT_EQUAL(all.bucket->first, 2);
    set_replicas(&all, &waited, 1);
    EXPECT_EQUAL(all.bucket->first, 4);
    EXPECT_EQUAL(all.bucket->dropped_bytes, 3 * 64);
    EXPECT_EQUAL(all.bucket->changes.used - all.bucket->changes.start, 0);
    end(&all);
}

static void a_learner_that_is_waited_for_now_keeps_what_it_acknowledged(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_PRIMARY);
    put(&all, 64, 1);
    set_replicas(&all, &learner, 1);
    EXPECT_EQUAL(all.bucket->replicas[0].acked, 1); /* Earlier changes are in the snapshot of the learner. */
    put(&all, 64, 2);
    EXPECT_EQUAL(all.bucket->high_watermark, 2);
    acknowledge(&all, 1, 2);
    put(&all, 64, 3);
    set_replicas(&all, (wan_changelog_replica[]){{.repl_link = 1, .state = WAN_FOLLOWER_WAITED, .transfer = 9}}, 1);
    EXPECT_EQUAL(all.bucket->replicas[0].acked, 2);
    EXPECT_EQUAL(all.bucket->high_watermark, 3); /* The high watermark never falls. */
    put(&all, 64, 4);
    EXPECT_EQUAL(all.bucket->high_watermark, 3);
    EXPECT_EQUAL(acknowledge(&all, 1, 4), 1);
    end(&all);
}

static void a_primary_takes_no_change_after_its_unclean_recovery_timeout_also_with_an_in_sync_replica(void)
{
    changelogs all;
    wan_changelog_reservation room;
    begin(&all, WAN_REPLICA_PRIMARY);
    set_replicas(&all, (wan_changelog_replica[]){{.repl_link = 1, .state = WAN_FOLLOWER_WAITED, .transfer = 9}}, 1);
    put(&all, 64, 1);
    EXPECT_EQUAL(acknowledge(&all, 1, 1), 1);
    wan_changelog_set_primary_until(&all.changelog, 0);
    EXPECT_EQUAL(wan_changelog_reserve(&all.changelog, BUCKET, 64, NULL, &room), WAN_NOT_PRIMARY);
    set_replicas(&all, (wan_changelog_replica[]){{.repl_link = 1, .state = WAN_FOLLOWER_WAITED}}, 1);
    EXPECT_EQUAL(wan_changelog_reserve(&all.changelog, BUCKET, 64, NULL, &room),
                 WAN_NOT_PRIMARY); /* The replica is unreachable too. */
    wan_changelog_set_primary_until(&all.changelog, WAN_NEVER);
    put(&all, 64, 2);
    end(&all);
}

static void
what_a_replica_answers_after_the_unclean_recovery_timeout_is_replicated_when_the_coordinator_has_answered_again(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_PRIMARY);
    wan_waker waker = {.wake_file = all.repl_links[3].wake_file};
    wan_pending_call call = {.owner = &waker, .local_fence = all.bucket->local_fence, .sequence = 2};
    set_replicas(&all, &waited, 1);
    put(&all, 64, 1);
    put(&all, 64, 2);
    EXPECT_EQUAL(acknowledge(&all, 0, 1), WAN_CHANGELOG_GREW);
    EXPECT_EQUAL(wan_changelog_add_pending(&all.changelog, BUCKET, &call), WAN_EMPTY);
    wan_changelog_set_primary_until(&all.changelog, 1); /* The change was made in time, but the replica answers late. */
    has_work(&all, 0);
    EXPECT_EQUAL(acknowledge(&all, 0, 2), 0);
    EXPECT_EQUAL(all.bucket->high_watermark, 1);
    EXPECT_EQUAL(wan_changelog_wait(&all.changelog, BUCKET, all.bucket->local_fence, 2, 0), WAN_EMPTY);
    EXPECT(!wan_waker_take(&waker) && !has_work(&all, 0));
    set_replicas(&all, NULL, 0); /* A smaller ISR makes the change no more replicated, */
    wan_changelog_set_role(&all.changelog, BUCKET, WAN_REPLICA_PRIMARY, TIMELINE, EPOCH, 0);
    set_replicas(&all, (wan_changelog_replica[]){{.repl_link = 0, .state = WAN_FOLLOWER_WAITED, .acked = 2}}, 1);
    wan_changelog_set_primary_until(&all.changelog, 2); /* nor does a time that has already passed. */
    EXPECT_EQUAL(all.bucket->high_watermark, 1);
    has_work(&all, 0);
    wan_changelog_set_primary_until(&all.changelog, wan_monotonic_us() + 60000000);
    EXPECT_EQUAL(all.bucket->high_watermark, 2);
    EXPECT_EQUAL(wan_changelog_wait(&all.changelog, BUCKET, all.bucket->local_fence, 2, 0), WAN_OK);
    EXPECT(wan_waker_take(&waker) == &call && has_work(&all, 0));
    EXPECT_EQUAL(all.bucket->first, 3);
    end(&all);
}

static void a_sole_replica_that_was_stopped_over_its_unclean_recovery_timeout_keeps_the_change_until_it_is_replicated(
    void)
{
    changelogs all;
    wan_changelog_reservation room;
    begin(&all, WAN_REPLICA_PRIMARY);
    put(&all, 64, 1);
    EXPECT_EQUAL(wan_changelog_reserve(&all.changelog, BUCKET, 64, NULL, &room), WAN_OK);
    all.changelog.primary_until_us = 1;
    write_entry(room.at, 64, 2);
    EXPECT_EQUAL(wan_changelog_commit(&all.changelog, &room, SHARD), 2);
    EXPECT_EQUAL(all.bucket->high_watermark, 1);
    EXPECT_EQUAL(all.bucket->first, 2);
    set_replicas(&all, &learner, 1); /* The stream of the learner includes the change that is not replicated yet. */
    EXPECT_EQUAL(all.bucket->replicas[0].acked, 1);
    set_replicas(&all, NULL, 0);
    all.changelog.primary_until_us = WAN_NEVER; /* The log still has the held change. The next change makes both
                                                   replicated. */
    EXPECT_EQUAL(put(&all, 64, 3), 3);
    EXPECT_EQUAL(all.bucket->high_watermark, 3);
    EXPECT_EQUAL(all.bucket->first, 4);
    EXPECT_EQUAL(put(&all, 64, 4), 4);
    EXPECT_EQUAL(all.bucket->high_watermark, 4);
    EXPECT_EQUAL(all.bucket->changes.used - all.bucket->changes.start, 0);
    end(&all);
}

/* Makes `count` changes under one hold; the first has this content. Returns the high watermark. */
static uint64_t put_together(changelogs *all, uint32_t count, uint64_t content)
{
    const uint64_t before = all->bucket->log_end;
    wan_changelog_reservation room;
    EXPECT_EQUAL(wan_changelog_reserve(&all->changelog, BUCKET, 64, NULL, &room), WAN_OK);
    for (uint32_t n = 0; n < count; n++) {
        if (n) EXPECT_EQUAL(wan_changelog_reserve_next(&room, 64), WAN_OK);
        EXPECT_EQUAL(room.sequence, before + n + 1);
        write_entry(room.at, 64, content + n);
        EXPECT_EQUAL(wan_changelog_commit_next(&all->changelog, &room, SHARD), before + n + 1);
        EXPECT_EQUAL(all->bucket->high_watermark, before);
    }
    return wan_changelog_commit_end(&all->changelog, &room, before);
}

static void changes_under_one_hold_are_replicated_together_and_wake_a_link_once(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_PRIMARY);
    EXPECT_EQUAL(put_together(&all, 3, 1), 3); /* No replica. */
    EXPECT_EQUAL(all.bucket->changes.used - all.bucket->changes.start, 0);
    EXPECT_EQUAL(all.bucket->first, 4);
    set_replicas(&all, &waited, 1);
    EXPECT_EQUAL(acknowledge(&all, waited.repl_link, 3), 0);
    has_work(&all, waited.repl_link);
    all.repl_links[waited.repl_link].asleep = WAN_REPL_LINK_WAITS;
    EXPECT_EQUAL(put_together(&all, 3, 4), 3);
    EXPECT(has_work(&all, waited.repl_link));
    EXPECT(was_woken(&all, waited.repl_link) && !was_woken(&all, waited.repl_link));
    EXPECT_EQUAL(all.changelog.shard_last[SHARD], 6);
    EXPECT_EQUAL(all.bucket->changes.used - all.bucket->changes.start, 3 * 64);
    EXPECT_EQUAL(acknowledge(&all, waited.repl_link, 6), WAN_CHANGELOG_GREW);
    EXPECT_EQUAL(all.bucket->high_watermark, 6);
    end(&all);
}

static void a_change_waits_for_a_replica_that_holds_the_queued_events_alone(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_PRIMARY);
    set_replicas(&all,
                 (wan_changelog_replica[]){waited, {.repl_link = 2, .state = WAN_FOLLOWER_WAITED, .queue_only = 1}}, 2);
    put(&all, 64, 1);
    EXPECT_EQUAL(acknowledge(&all, 0, 1), 0);
    EXPECT_EQUAL(all.bucket->high_watermark, 0);
    EXPECT_EQUAL(wan_changelog_wait(&all.changelog, BUCKET, all.bucket->local_fence, 1, 0), WAN_EMPTY);
    EXPECT_EQUAL(acknowledge(&all, 2, 1), WAN_CHANGELOG_GREW);
    EXPECT_EQUAL(all.bucket->high_watermark, 1);
    /* The same holds if no other member holds the bucket. */
    set_replicas(&all, &(wan_changelog_replica){.repl_link = 2, .state = WAN_FOLLOWER_WAITED, .queue_only = 1}, 1);
    EXPECT_EQUAL(put_together(&all, 2, 2), 1);
    EXPECT_EQUAL(all.bucket->changes.used - all.bucket->changes.start, 2 * 64);
    EXPECT_EQUAL(acknowledge(&all, 2, 3), WAN_CHANGELOG_GREW);
    EXPECT_EQUAL(all.bucket->high_watermark, 3);
    end(&all);
}

static void a_hold_without_a_change_leaves_nothing_and_one_with_a_change_that_is_not_made_keeps_the_others(void)
{
    changelogs all;
    wan_changelog_reservation room;
    wan_attempt attempt = {.call = {.caller = 9, .number = 1}, .is_row = 1};
    begin(&all, WAN_REPLICA_PRIMARY);
    set_replicas(&all, &waited, 1);
    has_work(&all, waited.repl_link);
    EXPECT_EQUAL(wan_changelog_reserve(&all.changelog, BUCKET, 64, NULL, &room), WAN_OK);
    EXPECT_EQUAL(wan_changelog_commit_end(&all.changelog, &room, 0), 0);
    EXPECT(!has_work(&all, waited.repl_link) && all.bucket->log_end == 0);

    EXPECT_EQUAL(wan_changelog_reserve(&all.changelog, BUCKET, 64, &attempt, &room), WAN_OK);
    memset(room.at, 0, 64);
    *(wan_changelog_entry *)room.at =
        (wan_changelog_entry){.length = 64, .flags = WAN_CHANGELOG_REMEMBERED | WAN_CHANGELOG_ROW};
    *wan_changelog_entry_call((wan_changelog_entry *)room.at) = attempt.call;
    EXPECT_EQUAL(wan_changelog_commit_next(&all.changelog, &room, SHARD), 1);
    EXPECT_EQUAL(wan_changelog_reserve_next(&room, 64), WAN_OK);
    EXPECT_EQUAL(wan_changelog_commit_end(&all.changelog, &room, 0), 0); /* That change was not made. */
    EXPECT(has_work(&all, waited.repl_link) && all.bucket->log_end == 1);
    EXPECT_EQUAL(all.bucket->changes.used - all.bucket->changes.start, 64);
    EXPECT_EQUAL(wan_changelog_reserve(&all.changelog, BUCKET, 64, &attempt, &room), WAN_MADE_BEFORE);
    attempt.row = 1;
    EXPECT_EQUAL(wan_changelog_reserve(&all.changelog, BUCKET, 64, &attempt, &room), WAN_OK);
    wan_changelog_cancel(&room);
    EXPECT_EQUAL(put(&all, 64, 2), 2);
    end(&all);
}

static void the_stream_of_a_learner_has_all_that_an_in_sync_replica_may_lack(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_PRIMARY);
    set_replicas(&all, &waited, 1);
    for (uint64_t n = 1; n <= 3; n++) put(&all, 64, n);
    acknowledge(&all, 0, 1);
    set_replicas(&all, (wan_changelog_replica[]){waited, learner}, 2);
    EXPECT_EQUAL(all.bucket->replicas[1].acked, 1);
    acknowledge(&all, 0, 3);
    EXPECT_EQUAL(all.bucket->first, 2);
    end(&all);
}

static void another_transfer_of_a_link_is_another_learner(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_PRIMARY);
    set_replicas(&all, &learner, 1);
    all.bucket->replicas[0].snapshot_shard = WAN_SNAPSHOT_DONE;
    put(&all, 64, 1);
    set_replicas(&all, (wan_changelog_replica[]){{.repl_link = 1, .state = WAN_FOLLOWER_LEARNING, .transfer = 10}}, 1);
    EXPECT_EQUAL(all.bucket->replicas[0].snapshot_shard, 0);
    EXPECT_EQUAL(all.bucket->replicas[0].acked, 1);
    end(&all);
}

static void only_a_primary_takes_changes_and_a_cancelled_one_leaves_nothing(void)
{
    changelogs all;
    wan_changelog_reservation room;
    for (uint8_t role = WAN_REPLICA_ABSENT; role < WAN_REPLICA_PRIMARY; role++) {
        begin(&all, role);
        EXPECT_EQUAL(wan_changelog_reserve(&all.changelog, BUCKET, 64, NULL, &room), WAN_NOT_PRIMARY);
        end(&all);
    }
    begin(&all, WAN_REPLICA_PRIMARY);
    set_replicas(&all, &waited, 1);
    EXPECT(has_work(&all, 0)); /* The replica needs the primary's epoch. */
    EXPECT_EQUAL(wan_changelog_reserve(&all.changelog, BUCKET, 64, NULL, &room), WAN_OK);
    wan_changelog_cancel(&room);
    EXPECT_EQUAL(all.bucket->log_end, 0);
    EXPECT(!has_work(&all, 0));
    EXPECT_EQUAL(put(&all, 64, 1), 1);
    EXPECT(has_work(&all, 0));
    end(&all);
}

static void a_bucket_with_too_few_in_sync_replicas_takes_no_change(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_PRIMARY);
    all.changelog.min_isr = 2;
    wan_changelog_reservation room;
    EXPECT_EQUAL(wan_changelog_reserve(&all.changelog, BUCKET, 64, NULL, &room), WAN_TOO_FEW);
    EXPECT(strstr(wan_detail, "bucket 1 has 1 in-sync replicas, and min-in-sync-replicas asks for 2") != NULL);
    set_replicas(&all, &(wan_changelog_replica){.repl_link = 1, .state = WAN_FOLLOWER_LEARNING, .transfer = 4}, 1);
    EXPECT_EQUAL(wan_changelog_reserve(&all.changelog, BUCKET, 64, NULL, &room), WAN_TOO_FEW);
    set_replicas(&all, &(wan_changelog_replica){.repl_link = 1, .state = WAN_FOLLOWER_WAITED, .queue_only = 1}, 1);
    EXPECT_EQUAL(wan_changelog_reserve(&all.changelog, BUCKET, 64, NULL, &room), WAN_TOO_FEW);
    set_replicas(&all, &(wan_changelog_replica){.repl_link = 1, .state = WAN_FOLLOWER_WAITED}, 1);
    EXPECT_EQUAL(put(&all, 64, 1), 1);
    set_replicas(&all, NULL, 0);
    EXPECT_EQUAL(wan_changelog_reserve(&all.changelog, BUCKET, 64, NULL, &room), WAN_TOO_FEW);
    EXPECT_EQUAL(all.bucket->log_end, 1);
    end(&all);
}

static void a_full_budget_refuses_nothing_and_has_room_again_when_replicas_acknowledge(void)
{
    changelogs all;
    wan_budget budget;
    begin(&all, WAN_REPLICA_PRIMARY);
    wan_budget_init(&budget, 1 << 20);
    all.changelog.budget = &budget;
    set_replicas(&all, &waited, 1);
    for (uint64_t n = 1; n <= 20; n++) {
        EXPECT_EQUAL(wan_budget_is_full(&budget), n > 16); /* Cached replies are charged too. */
        put(&all, 1 << 16, n);
    }
    EXPECT_EQUAL(wan_changelog_behind(&all.changelog, 0), 20 << 16);
    EXPECT_EQUAL(wan_changelog_behind(&all.changelog, 1), 0);
    acknowledge(&all, 0, 4);
    EXPECT(wan_budget_is_full(&budget));
    acknowledge(&all, 0, 5);
    EXPECT(!wan_budget_is_full(&budget));
    acknowledge(&all, 0, 20);
    EXPECT_EQUAL(budget.used[WAN_BUDGET_CHANGES], 0);
    EXPECT(all.bucket->changes.capacity <= 1 << 16); /* An empty change log gives the memory back. */
    put(&all, 1 << 16, 21);
    end(&all);
    EXPECT_EQUAL(budget.passing, 0);
    EXPECT_EQUAL(budget.used[WAN_BUDGET_REMEMBERED], 0);
}

static void a_change_log_that_becomes_short_gives_memory_back_before_it_is_empty(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_PRIMARY);
    set_replicas(&all, &waited, 1);
    for (uint64_t n = 1; n <= 4000; n++) put(&all, 1 << 10, n);
    const uint64_t most = all.bucket->changes.capacity;
    acknowledge(&all, 0, 3990);
    EXPECT(most >= 4000 << 10 && all.bucket->changes.capacity <= 1 << 16);
    EXPECT_EQUAL(((const wan_changelog_entry *)(all.bucket->changes.bytes + all.bucket->changes.start))->found_length,
                 3991);
    EXPECT_EQUAL(put(&all, 1 << 10, 4001), 4001);
    acknowledge(&all, 0, 4001);
    end(&all);
}

static void callers_wait_for_a_learner_whose_link_works_and_does_not_keep_up(void)
{
    changelogs all;
    const uint64_t now = 10 * WAN_LEARNER_AWAY_US;
    begin(&all, WAN_REPLICA_PRIMARY);
    set_replicas(&all, &(wan_changelog_replica){.state = WAN_FOLLOWER_LEARNING, .transfer = 3}, 1);
    EXPECT(wan_changelog_has_learner(&all.changelog, BUCKET) && !wan_changelog_has_learner(&all.changelog, 0));
    acknowledge(&all, 0, 0);
    all.repl_links[0].answered_us = now;
    for (uint64_t n = 1; n <= 2; n++) put(&all, WAN_LEARNER_BYTES_MAX / 2, n);
    EXPECT(!wan_changelog_holds_back(&all.changelog, BUCKET, now));
    put(&all, 64, 3);
    EXPECT(wan_changelog_holds_back(&all.changelog, BUCKET, now));
    EXPECT(!wan_changelog_holds_back(&all.changelog, BUCKET, now + WAN_LEARNER_AWAY_US)); /* The learner is
                                                                                             unreachable. */
    all.bucket->replicas[0].sent = 3;
    EXPECT(!wan_changelog_holds_back(&all.changelog, BUCKET, now));
    put(&all, WAN_LEARNER_BYTES_MAX, 4);
    EXPECT(wan_changelog_holds_back(&all.changelog, BUCKET, now));
    all.bucket->replicas[0].snapshot_shard = WAN_SNAPSHOT_DONE;
    EXPECT(wan_changelog_snapshot_acked(&all.changelog, BUCKET, 0, TIMELINE, EPOCH, 3));
    EXPECT(!wan_changelog_has_learner(&all.changelog, BUCKET)
           && !wan_changelog_holds_back(&all.changelog, BUCKET, now));
    end(&all);
}

static void callers_wait_for_a_learner_that_has_taken_nothing_yet_for_a_while_only(void)
{
    changelogs all;
    uint64_t now = 10 * WAN_LEARNER_AWAY_US;
    begin(&all, WAN_REPLICA_PRIMARY);
    set_replicas(&all, &(wan_changelog_replica){.state = WAN_FOLLOWER_LEARNING, .transfer = 3}, 1);
    all.repl_links[0].answered_us = now;
    put(&all, WAN_LEARNER_BYTES_MAX + 64, 1);
    EXPECT(wan_changelog_holds_back(&all.changelog, BUCKET, now));
    all.repl_links[0].answered_us = now += WAN_LEARNER_AWAY_US;
    EXPECT(!wan_changelog_holds_back(&all.changelog, BUCKET, now)); /* The learner has answered "later" all the time. */
    acknowledge(&all, 0, 0);
    EXPECT(wan_changelog_holds_back(&all.changelog, BUCKET, now));
    end(&all);
}

/* Compares the bytes of the bucket with the charged bytes. */
static void expect_charged(const changelogs *all, const wan_budget *budget)
{
    uint64_t changes = 0, remembered = 0;
    for (uint32_t n = 0; n < BUCKETS; n++) {
        const wan_changelog_bucket *bucket = &all->changelog.buckets[n];
        changes += bucket->changes.used - bucket->changes.start;
        remembered += wan_answers_bytes(&bucket->answers);
    }
    const uint64_t slack = 3 * WAN_BUDGET_STEP;
    EXPECT(budget->used[WAN_BUDGET_CHANGES] >= changes && budget->used[WAN_BUDGET_CHANGES] <= changes + slack);
    EXPECT(budget->used[WAN_BUDGET_REMEMBERED] >= remembered
           && budget->used[WAN_BUDGET_REMEMBERED] <= remembered + slack);
    EXPECT_EQUAL(budget->passing, budget->used[WAN_BUDGET_CHANGES]);
}

static void the_budget_counts_what_change_logs_hold_whatever_happens_to_them(void)
{
    random_source source = {.state = 11};
    for (int round = 0; round < 40; round++) {
        changelogs all;
        wan_budget budget;
        uint8_t entry[1 << 13];
        uint64_t epoch = EPOCH;
        begin(&all, WAN_REPLICA_PRIMARY);
        wan_budget_init(&budget, 1 << 16);
        all.changelog.budget = &budget;
        set_replicas(&all, &waited, 1);
        for (int n = 0; n < 400; n++) {
            const uint32_t length = 64 + 8 * (uint32_t)random_below(&source, 1000);
            const uint64_t last = all.bucket->log_end;
            const int leads = all.bucket->role == WAN_REPLICA_PRIMARY;
            const uint64_t what = random_below(&source, 40);
            if (what == 0) {
                wan_changelog_set_role(&all.changelog, BUCKET, leads ? WAN_REPLICA_IN_SYNC : WAN_REPLICA_PRIMARY,
                                       TIMELINE, ++epoch, 0);
                if (!leads)
                    set_replicas(
                        &all,
                        &(wan_changelog_replica){.state = WAN_FOLLOWER_WAITED, .acked = all.bucket->high_watermark}, 1);
            } else if (what == 1) {
                wan_changelog_set_role(&all.changelog, BUCKET, WAN_REPLICA_LEARNER, TIMELINE, ++epoch, 1 + epoch);
            } else if (what < 25 && leads) {
                put(&all, length, (uint64_t)n);
            } else if (what < 25) {
                write_entry(entry, length, (uint64_t)n);
                follow(&all, epoch, last + 1, entry);
            } else if (leads) {
                acknowledge(&all, 0, last - random_below(&source, last - all.bucket->high_watermark + 1));
            } else {
                wan_changelog_told(&all.changelog, BUCKET, TIMELINE, epoch, last - random_below(&source, 5), 0, 0);
            }
            expect_charged(&all, &budget);
        }
        end(&all);
        EXPECT_EQUAL(budget.passing, 0);
    }
}

static void a_link_that_sleeps_is_woken_once_and_one_that_works_is_not(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_PRIMARY);
    set_replicas(&all, &waited, 1);
    EXPECT(!was_woken(&all, 0));
    all.repl_links[0].asleep = 1;
    put(&all, 64, 1);
    EXPECT_EQUAL(all.repl_links[0].asleep, 0);
    EXPECT(was_woken(&all, 0));
    put(&all, 64, 2);
    EXPECT(!was_woken(&all, 0));
    EXPECT(!was_woken(&all, 1));
    wan_changelog_remove_repl_link(&all.changelog, 0);
    all.repl_links[0].asleep = 1;
    put(&all, 64, 3);
    EXPECT(!was_woken(&all, 0));
    end(&all);
}

static int takes_removals(changelogs *all, uint32_t repl_link)
{
    const uint64_t bit = (uint64_t)1 << BUCKET;
    wan_repl_link_take_removals(&all->repl_links[repl_link]);
    return (__atomic_fetch_and(&all->changelog.removals[repl_link][0], ~bit, __ATOMIC_SEQ_CST) & bit) != 0;
}

static void each_link_is_woken_once_for_removals_until_it_has_announced_them(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_IN_SYNC);
    for (uint32_t n = 0; n < REPL_LINKS; n++) all.repl_links[n].asleep = WAN_REPL_LINK_WAITS;
    wan_changelog_note_removal(&all.changelog, BUCKET);
    for (uint32_t n = 0; n < REPL_LINKS; n++)
        EXPECT(was_woken(&all, n) && wan_repl_link_has_removals(&all.repl_links[n]));
    all.repl_links[0].asleep = WAN_REPL_LINK_WAITS;
    wan_changelog_note_removal(&all.changelog, BUCKET);
    wan_changelog_note_removal(&all.changelog, BUCKET + 1); /* The replication link looks at all buckets. */
    EXPECT(!was_woken(&all, 0));
    EXPECT(takes_removals(&all, 0) && !takes_removals(&all, 0));
    wan_changelog_note_removal(&all.changelog, BUCKET);
    EXPECT(was_woken(&all, 0) && takes_removals(&all, 0) && takes_removals(&all, 1));
    wan_changelog_remove_repl_link(&all.changelog, 0);
    all.repl_links[0].asleep = WAN_REPL_LINK_WAITS;
    wan_changelog_note_removal(&all.changelog, BUCKET);
    EXPECT(!was_woken(&all, 0) && wan_repl_link_has_removals(&all.repl_links[1]));
    end(&all);
}

/* The last wait for which a replication link was run. */
static const wan_repl_link_wait *ran;
static void note_run(void *runner, const wan_repl_link_wait *wait)
{
    EXPECT(runner == &ran);
    ran = wait;
}

static void a_link_at_rest_is_run_by_the_thread_that_waits_and_woken_for_all_others(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_PRIMARY);
    const wan_changelog_replica replicas[] = {waited,
                                              {.repl_link = 1, .state = WAN_FOLLOWER_WAITED},
                                              {.repl_link = 2, .state = WAN_FOLLOWER_LEARNING, .transfer = 1}};
    set_replicas(&all, replicas, 3);
    for (uint32_t n = 0; n < 3; n++) {
        all.repl_links[n].asleep = WAN_REPL_LINK_RESTS;
        all.repl_links[n].rest_file = all.repl_links[n].wake_file;
        all.repl_links[n].run = note_run;
        all.repl_links[n].runner = &ran;
    }
    wan_changelog_reservation room;
    const wan_attempt attempt = {.waits = 1};
    EXPECT_EQUAL(wan_changelog_reserve(&all.changelog, BUCKET, 64, &attempt, &room), WAN_OK);
    write_entry(room.at, 64, 1);
    const wan_repl_link_wait wait = {.changelog = &all.changelog,
                                     .bucket = BUCKET,
                                     .other_file = -1,
                                     .local_fence = all.bucket->local_fence,
                                     .sequence = wan_changelog_commit(&all.changelog, &room, SHARD)};
    EXPECT(!was_woken(&all, 0) && !was_woken(&all, 1));
    EXPECT(was_woken(&all, 2)); /* The primary does not wait for a learner. */
    wan_changelog_run_repl_link(&wait);
    EXPECT(ran == &wait && !was_woken(&all, 0) && was_woken(&all, 1));
    EXPECT(all.repl_links[0].asleep == WAN_REPL_LINK_RUNS && all.repl_links[1].asleep == WAN_REPL_LINK_RUNS);
    /* A link at work is not run again, nor a link for a replicated change. */
    ran = NULL;
    wan_changelog_run_repl_link(&wait);
    acknowledge(&all, 0, 1);
    acknowledge(&all, 1, 1);
    all.repl_links[0].asleep = WAN_REPL_LINK_RESTS;
    wan_changelog_run_repl_link(&wait);
    EXPECT(!ran && all.repl_links[0].asleep == WAN_REPL_LINK_RESTS);
    put(&all, 64, 2);
    EXPECT(was_woken(&all, 0));
    end(&all);
}

static void whoever_waits_is_told_that_the_local_fence_is_another_one(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_PRIMARY);
    set_replicas(&all, &waited, 1);
    uint64_t local_fence = all.bucket->local_fence, sequence = put(&all, 64, 1);
    wan_changelog_set_role(&all.changelog, BUCKET, WAN_REPLICA_TAKING_OVER, TIMELINE, EPOCH + 1, 0);
    EXPECT_EQUAL(wan_changelog_wait(&all.changelog, BUCKET, local_fence, sequence, 0),
                 WAN_EMPTY); /* The change may still be replicated. */
    wan_changelog_set_role(&all.changelog, BUCKET, WAN_REPLICA_IN_SYNC, TIMELINE, EPOCH + 2, 0);
    EXPECT_EQUAL(wan_changelog_wait(&all.changelog, BUCKET, local_fence, sequence, 0), WAN_NOT_PRIMARY);
    wan_changelog_told(&all.changelog, BUCKET, TIMELINE, EPOCH + 2, 1, 0, 0);
    EXPECT_EQUAL(all.bucket->high_watermark, 1);
    EXPECT_EQUAL(wan_changelog_wait(&all.changelog, BUCKET, local_fence, sequence, 0), WAN_NOT_PRIMARY);
    EXPECT_EQUAL(wan_changelog_wait(&all.changelog, BUCKET, all.bucket->local_fence, sequence, 0), WAN_OK);
    end(&all);
}

static void a_replica_takes_the_next_change_of_its_epoch_only(void)
{
    changelogs all;
    _Alignas(8) uint8_t entry[64];
    begin(&all, WAN_REPLICA_IN_SYNC);
    write_entry(entry, 64, 1);
    EXPECT_EQUAL(follow(&all, EPOCH, 2, entry), WAN_INVALID);
    EXPECT_EQUAL(follow(&all, EPOCH - 1, 1, entry), WAN_NOT_PRIMARY);
    EXPECT_EQUAL(follow(&all, EPOCH, 1, entry), WAN_OK);
    EXPECT_EQUAL(follow(&all, EPOCH, 1, entry), WAN_EMPTY);
    EXPECT_EQUAL(follow(&all, EPOCH, 2, entry), WAN_OK);
    EXPECT_EQUAL(all.changelog.shard_last[SHARD], 2);
    EXPECT_EQUAL(all.bucket->high_watermark, 0);
    wan_changelog_told(&all.changelog, BUCKET, TIMELINE, EPOCH - 1, 2, 0, 0);
    EXPECT_EQUAL(all.bucket->high_watermark, 0);
    wan_changelog_told(&all.changelog, BUCKET, TIMELINE, EPOCH, 1, 0, 0);
    EXPECT_EQUAL(all.bucket->first, 2);
    wan_changelog_told(&all.changelog, BUCKET, TIMELINE, EPOCH, 9, 0, 0); /* The primary is ahead of the received
                                                                             changes. */
    EXPECT_EQUAL(all.bucket->high_watermark, 2);
    wan_changelog_set_role(&all.changelog, BUCKET, WAN_REPLICA_PRIMARY, TIMELINE, EPOCH + 1, 0);
    EXPECT_EQUAL(follow(&all, EPOCH + 1, 3, entry), WAN_NOT_PRIMARY);
    end(&all);
}

static void a_new_epoch_begins_the_snapshot_of_a_learner_anew(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_PRIMARY);
    set_replicas(&all, &learner, 1);
    all.bucket->replicas[0].snapshot_shard = WAN_SNAPSHOT_DONE;
    all.bucket->replicas[0].snapshot_acked = all.bucket->replicas[0].queued = 1;
    wan_changelog_set_role(&all.changelog, BUCKET, WAN_REPLICA_PRIMARY, TIMELINE, EPOCH, 0);
    EXPECT(all.bucket->replicas[0].snapshot_shard == WAN_SNAPSHOT_DONE && all.bucket->replicas[0].snapshot_acked);
    wan_changelog_set_role(&all.changelog, BUCKET, WAN_REPLICA_PRIMARY, TIMELINE, EPOCH + 1, 0);
    EXPECT(all.bucket->replicas[0].snapshot_shard == 0 && !all.bucket->replicas[0].snapshot_acked);
    EXPECT_EQUAL(all.bucket->replicas[0].queued, 0);
    end(&all);
}
static void a_snapshot_that_is_whole_before_its_primary_is_active_is_not_forgotten(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_TAKING_OVER);
    set_replicas(&all, &learner, 1);
    wan_changelog_replica *replica = &all.bucket->replicas[0];
    replica->snapshot_shard = WAN_SNAPSHOT_DONE;
    EXPECT_EQUAL(
        wan_changelog_snapshot_acked(&all.changelog, BUCKET, replica->repl_link, TIMELINE, EPOCH, replica->transfer),
        1);
    EXPECT_EQUAL(wan_changelog_acknowledged(&all.changelog, BUCKET, replica->repl_link, TIMELINE, EPOCH, 0),
                 WAN_CHANGELOG_CAUGHT_UP);
    wan_changelog_set_role(&all.changelog, BUCKET, WAN_REPLICA_PRIMARY, TIMELINE, EPOCH, 0);
    EXPECT_EQUAL(all.bucket->replicas[0].state, WAN_FOLLOWER_WAITED);
    end(&all);
}

static void a_learner_with_its_snapshot_is_waited_for_and_caught_up_when_it_has_what_is_replicated(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_PRIMARY);
    set_replicas(&all, &learner, 1);
    wan_changelog_replica *replica = &all.bucket->replicas[0];
    for (uint64_t n = 1; n <= 3; n++) put(&all, 64, n);
    EXPECT_EQUAL(all.bucket->high_watermark, 3);
    EXPECT_EQUAL(
        wan_changelog_snapshot_acked(&all.changelog, BUCKET, replica->repl_link, TIMELINE, EPOCH, replica->transfer),
        0);
    replica->snapshot_shard = WAN_SNAPSHOT_DONE;
    EXPECT_EQUAL(wan_changelog_snapshot_acked(&all.changelog, BUCKET, replica->repl_link, TIMELINE, EPOCH,
                                              replica->transfer + 1),
                 0);
    EXPECT_EQUAL(
        wan_changelog_snapshot_acked(&all.changelog, BUCKET, replica->repl_link, TIMELINE, EPOCH, replica->transfer),
        1);
    EXPECT_EQUAL(
        wan_changelog_snapshot_acked(&all.changelog, BUCKET, replica->repl_link, TIMELINE, EPOCH, replica->transfer),
        0);
    put(&all, 64, 4);
    EXPECT_EQUAL(all.bucket->high_watermark, 3); /* The fourth call waits. */
    EXPECT_EQUAL(wan_changelog_acknowledged(&all.changelog, BUCKET, replica->repl_link, TIMELINE, EPOCH, 2), 0);
    EXPECT_EQUAL(wan_changelog_acknowledged(&all.changelog, BUCKET, replica->repl_link, TIMELINE, EPOCH, 3),
                 WAN_CHANGELOG_CAUGHT_UP);
    EXPECT_EQUAL(wan_changelog_acknowledged(&all.changelog, BUCKET, replica->repl_link, TIMELINE, EPOCH, 4),
                 WAN_CHANGELOG_GREW);
    set_replicas(&all, &learner, 1); /* A metadata record about a different matter. */
    EXPECT_EQUAL(all.bucket->replicas[0].state, WAN_FOLLOWER_WAITED);
    wan_changelog_set_role(&all.changelog, BUCKET, WAN_REPLICA_PRIMARY, TIMELINE, EPOCH + 1, 0);
    EXPECT_EQUAL(all.bucket->replicas[0].state, WAN_FOLLOWER_LEARNING);
    end(&all);
}

static void a_learner_takes_a_stream_from_anywhere_and_begins_anew_with_another_snapshot(void)
{
    changelogs all;
    _Alignas(8) uint8_t entry[64];
    begin(&all, WAN_REPLICA_LEARNER);
    write_entry(entry, 64, 1);
    EXPECT_EQUAL(follow(&all, EPOCH, 41, entry), WAN_OK);
    EXPECT_EQUAL(follow(&all, EPOCH, 43, entry), WAN_INVALID);
    wan_changelog_set_role(&all.changelog, BUCKET, WAN_REPLICA_LEARNER, TIMELINE, EPOCH, 1);
    EXPECT_EQUAL(all.bucket->log_end, 41);
    wan_changelog_set_role(&all.changelog, BUCKET, WAN_REPLICA_LEARNER, TIMELINE, EPOCH, 2);
    EXPECT_EQUAL(all.bucket->log_end, 0);
    EXPECT_EQUAL(all.changelog.shard_last[SHARD], 0);
    EXPECT_EQUAL(follow(&all, EPOCH, 50, entry), WAN_OK);
    wan_changelog_set_role(&all.changelog, BUCKET, WAN_REPLICA_IN_SYNC, TIMELINE, EPOCH, 0);
    EXPECT_EQUAL(all.bucket->log_end, 50);
    end(&all);
}

static void a_primary_reads_alone_only_under_a_read_lease_of_every_replica_for_this_epoch(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_PRIMARY);
    const uint64_t now = 1000;
    EXPECT(wan_changelog_may_read(&all.changelog, BUCKET,
                                  now)); /* No unclean-recovery-timeout is set, so there is no limit. */
    all.changelog.primary_until_us = now;
    EXPECT(!wan_changelog_may_read(&all.changelog, BUCKET, now));
    EXPECT(wan_changelog_may_read(&all.changelog, BUCKET, now - 1));
    all.changelog.primary_until_us = now + 1;
    set_replicas(&all, (wan_changelog_replica[]){waited, learner}, 2);
    all.repl_links[0].read_lease_until_us = now + 1;
    all.repl_links[0].asleep = 1;
    EXPECT(!wan_changelog_may_read(&all.changelog, BUCKET, now)); /* The read lease may be older than the present
                                                                     epoch. */
    EXPECT(all.repl_links[0].wants_read_lease && was_woken(&all, 0));
    acknowledge(&all, 0, 0);
    EXPECT(wan_changelog_may_read(&all.changelog, BUCKET, now));
    all.changelog.primary_until_us =
        now; /* A read lease does not help: the replica may be cut off together with this member. */
    EXPECT(!wan_changelog_may_read(&all.changelog, BUCKET, now));
    all.changelog.primary_until_us = WAN_NEVER;
    EXPECT(!wan_changelog_may_read(&all.changelog, BUCKET, now + 1));
    wan_changelog_rewind(&all.changelog, 0);
    EXPECT(!wan_changelog_may_read(&all.changelog, BUCKET, now));
    acknowledge(&all, 0, 0);
    wan_changelog_set_role(&all.changelog, BUCKET, WAN_REPLICA_PRIMARY, TIMELINE, EPOCH + 1, 0);
    EXPECT(!wan_changelog_may_read(&all.changelog, BUCKET, now));
    wan_changelog_set_role(&all.changelog, BUCKET, WAN_REPLICA_TAKING_OVER, TIMELINE, EPOCH + 2, 0);
    all.changelog.primary_until_us = WAN_NEVER;
    EXPECT(!wan_changelog_may_read(&all.changelog, BUCKET, now));
    end(&all);
}

static void a_new_connection_goes_on_behind_what_was_acknowledged(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_PRIMARY);
    set_replicas(&all, (wan_changelog_replica[]){waited, learner}, 2);
    for (uint64_t n = 1; n <= 4; n++) put(&all, 64, n);
    acknowledge(&all, 0, 2);
    for (uint32_t n = 0; n < 2; n++) {
        all.bucket->replicas[n].sent = 4;
        all.bucket->replicas[n].snapshot_shard = n ? 2 : WAN_SNAPSHOT_DONE;
        has_work(&all, n);
        wan_changelog_rewind(&all.changelog, n);
        EXPECT(has_work(&all, n));
        EXPECT_EQUAL(all.bucket->replicas[n].sent, n ? 0 : 2);
        EXPECT_EQUAL(all.bucket->replicas[n].snapshot_shard, n ? 0 : WAN_SNAPSHOT_DONE);
    }
    end(&all);
}

/* A primary and two replicas, beside arrays with the expected content of each replica. Now and then one replica takes
 * over. */

enum { PLAYERS = 3, ENTRIES_MAX = 4000 };
typedef struct {
    changelogs players[PLAYERS];
    uint32_t leader;
    uint64_t epoch;
    uint64_t waits_for; /* A bit for each in-sync player. The replication link to a player has the player's number. */
    uint64_t last[PLAYERS];        /* The log end of each player. */
    uint64_t high_watermark;       /* No in-sync player may lose a change through this sequence. */
    uint32_t lengths[ENTRIES_MAX]; /* By sequence. */
    uint64_t contents[ENTRIES_MAX];
} play;

static void check_player(play *all, uint32_t who)
{
    const wan_changelog_bucket *bucket = all->players[who].bucket;
    EXPECT_EQUAL(bucket->log_end, all->last[who]);
    EXPECT(bucket->first <= bucket->log_end + 1 && bucket->high_watermark <= bucket->log_end);
    EXPECT(bucket->first <= bucket->high_watermark + 1);
    uint64_t at = bucket->changes.start;
    for (uint64_t n = bucket->first; n <= bucket->log_end && !expectations_failed; n++) {
        const wan_changelog_entry *entry = (const wan_changelog_entry *)(bucket->changes.bytes + at);
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
        wan_changelog_set_role(&all->players[n].changelog, BUCKET,
                               n == who ? WAN_REPLICA_TAKING_OVER : WAN_REPLICA_IN_SYNC, TIMELINE, all->epoch, 0);
}

/* Sets the replicas of the leader. */
static void name_replicas(play *all)
{
    wan_changelog_replica replicas[PLAYERS];
    uint32_t count = 0;
    for (uint32_t n = 0; n < PLAYERS; n++)
        if (n != all->leader && all->waits_for >> n & 1)
            replicas[count++] =
                (wan_changelog_replica){.repl_link = n, .state = WAN_FOLLOWER_WAITED, .acked = all->last[n]};
    set_replicas(&all->players[all->leader], replicas, count);
}

/* The new leader fetches the later entries of all players, and then accepts changes. */
static void take_over(play *all, uint32_t who)
{
    lead(all, who);
    changelogs *to = &all->players[who];
    for (uint32_t n = 0; n < PLAYERS; n++) {
        if (!(all->waits_for >> n & 1)) continue;
        const wan_changelog_bucket *from = all->players[n].bucket;
        EXPECT(from->first <= all->last[who] + 1); /* The log of `from` still has all entries that the new leader
                                                      lacks. */
        uint64_t at = from->changes.start;
        for (uint64_t k = from->first; k <= from->log_end; k++) {
            const uint8_t *entry = from->changes.bytes + at;
            EXPECT_EQUAL(follow(to, all->epoch, k, entry), k <= all->last[who] ? WAN_EMPTY : WAN_OK);
            if (k > all->last[who]) all->last[who] = k;
            at += ((const wan_changelog_entry *)entry)->length;
        }
    }
    EXPECT(all->last[who] >= all->high_watermark);
    name_replicas(all);
    wan_changelog_set_role(&to->changelog, BUCKET, WAN_REPLICA_PRIMARY, TIMELINE, all->epoch, 0);
}

/* Sends some missing entries to one replica, as a replication link would; the replica acknowledges at times. */
static void send_some(play *all, uint32_t who, random_source *source)
{
    wan_changelog_bucket *from = all->players[all->leader].bucket;
    uint64_t at = from->changes.start, count = random_below(source, 5);
    for (uint64_t n = from->first; n <= from->log_end && count; n++) {
        const wan_changelog_entry *entry = (const wan_changelog_entry *)(from->changes.bytes + at);
        at += entry->length;
        if (n <= all->last[who]) continue;
        EXPECT_EQUAL(follow(&all->players[who], all->epoch, n, (const uint8_t *)entry), WAN_OK);
        all->last[who] = n;
        count--;
    }
    wan_changelog_told(&all->players[who].changelog, BUCKET, TIMELINE, all->epoch, from->high_watermark, 0, 0);
    if (random_below(source, 2)) acknowledge(&all->players[all->leader], who, all->last[who]);
}

/* Returns a removed replica by a snapshot, omitted in this test, and the stream after the snapshot. */
static void come_back(play *all, uint32_t who, uint64_t transfer)
{
    wan_changelog_bucket *from = all->players[all->leader].bucket, *to = all->players[who].bucket;
    wan_changelog_set_role(&all->players[who].changelog, BUCKET, WAN_REPLICA_LEARNER, TIMELINE, all->epoch, transfer);
    to->log_end = to->high_watermark = from->high_watermark;
    to->first = from->high_watermark + 1;
    uint64_t at = from->changes.start;
    for (uint64_t n = from->first; n <= from->log_end; n++) {
        const wan_changelog_entry *entry = (const wan_changelog_entry *)(from->changes.bytes + at);
        EXPECT_EQUAL(follow(&all->players[who], all->epoch, n, (const uint8_t *)entry),
                     n <= from->high_watermark ? WAN_EMPTY : WAN_OK);
        at += entry->length;
    }
    wan_changelog_set_role(&all->players[who].changelog, BUCKET, WAN_REPLICA_IN_SYNC, TIMELINE, all->epoch, 0);
    all->last[who] = to->log_end;
    all->waits_for |= (uint64_t)1 << who;
    name_replicas(all);
}

static void change_logs_lose_nothing_that_was_replicated_whoever_leads(void)
{
    static play all;
    for (uint64_t seed = 1; seed <= 30 && !expectations_failed; seed++) {
        random_source source = {.state = seed};
        memset(&all, 0, sizeof all);
        for (uint32_t n = 0; n < PLAYERS; n++) begin(&all.players[n], WAN_REPLICA_IN_SYNC);
        all.epoch = EPOCH;
        all.waits_for = 7;
        take_over(&all, 0);
        for (int step = 0; step < 1500 && !expectations_failed; step++) {
            changelogs *leader = &all.players[all.leader];
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
                all.waits_for &= ~((uint64_t)1 << who); /* The player is taken out. */
                name_replicas(&all);
            } else if (what < 99 && !(all.waits_for >> who & 1)) {
                come_back(&all, who, seed + step);
            }
            leader = &all.players[all.leader];
            uint64_t high_watermark = all.last[all.leader];
            for (uint32_t n = 0; n < leader->bucket->replica_count; n++)
                if (leader->bucket->replicas[n].acked < high_watermark)
                    high_watermark = leader->bucket->replicas[n].acked;
            if (high_watermark > all.high_watermark) all.high_watermark = high_watermark;
            EXPECT_EQUAL(leader->bucket->high_watermark, all.high_watermark);
            for (uint32_t n = 0; n < PLAYERS; n++) check_player(&all, n);
        }
        if (expectations_failed) printf("    seed %" PRIu64 "\n", seed);
        for (uint32_t n = 0; n < PLAYERS; n++) end(&all.players[n]);
    }
}

static const wan_call_identity asker = {.caller = 9, .slot = 3, .number = 5};

/* Makes a change as the call `number` of a slot; as a row if `row` is not -1. Returns the status of the attempt. */
static wan_status call(changelogs *all, uint64_t number, int row, wan_changelog_reservation *room)
{
    wan_attempt attempt = {.call = asker, .is_row = row >= 0, .row = row >= 0 ? (uint32_t)row : 0};
    attempt.call.number = number;
    wan_status status = wan_changelog_reserve(&all->changelog, BUCKET, 64, &attempt, room);
    if (status != WAN_OK) return status;
    write_entry(room->at, 64, 1);
    wan_changelog_entry *entry = (wan_changelog_entry *)room->at;
    *entry = (wan_changelog_entry){.length = 64, .flags = WAN_CHANGELOG_REMEMBERED, .outcome = (uint8_t)(number % 3)};
    if (row >= 0) entry->flags |= WAN_CHANGELOG_ROW, entry->row = attempt.row;
    *wan_changelog_entry_call(entry) = attempt.call;
    wan_changelog_commit(&all->changelog, room, SHARD);
    return WAN_OK;
}

static void each_attempt_of_a_call_is_asked_what_became_of_the_call_before(void)
{
    changelogs all;
    wan_changelog_reservation room;
    wan_recalled recalled;
    begin(&all, WAN_REPLICA_PRIMARY);
    wan_attempt attempt = {.call = asker};
    EXPECT_EQUAL(wan_changelog_cached_reply(&all.changelog, BUCKET, &attempt, &recalled, NULL), WAN_EMPTY);
    put(&all, 64, 1);
    EXPECT_EQUAL(call(&all, 5, -1, &room), WAN_OK);
    EXPECT_EQUAL(call(&all, 5, -1, &room), WAN_MADE_BEFORE);
    EXPECT(room.recalled.sequence == 2 && room.recalled.local_fence == all.bucket->local_fence
           && room.recalled.outcome == 2);
    EXPECT_EQUAL(wan_changelog_cached_reply(&all.changelog, BUCKET, &attempt, &recalled, NULL), WAN_MADE_BEFORE);
    EXPECT_EQUAL(call(&all, 4, -1, &room), WAN_IN_DOUBT);
    EXPECT_EQUAL(call(&all, 7, -1, &room), WAN_OK); /* The call with number 6 was made in another bucket. */
    EXPECT_EQUAL(call(&all, 5, -1, &room), WAN_IN_DOUBT);
    EXPECT_EQUAL(wan_changelog_cached_reply(&all.changelog, BUCKET, &attempt, &recalled, NULL), WAN_IN_DOUBT);
    EXPECT_EQUAL(all.bucket->log_end, 3);
    for (int row = 0; row < 3; row++) EXPECT_EQUAL(call(&all, 8, row, &room), WAN_OK);
    for (int row = 0; row < 3; row++) EXPECT_EQUAL(call(&all, 8, row, &room), WAN_MADE_BEFORE);
    EXPECT(room.recalled.applied == 3 && room.recalled.sequence == 6);
    EXPECT_EQUAL(call(&all, 8, 3, &room), WAN_OK);
    EXPECT_EQUAL(call(&all, 7, 9, &room), WAN_IN_DOUBT);
    wan_changelog_set_role(&all.changelog, BUCKET, WAN_REPLICA_IN_SYNC, TIMELINE, EPOCH + 1, 0);
    EXPECT_EQUAL(call(&all, 8, 3, &room), WAN_NOT_PRIMARY);
    EXPECT_EQUAL(wan_changelog_cached_reply(&all.changelog, BUCKET, &attempt, &recalled, NULL), WAN_NOT_PRIMARY);
    end(&all);
}

static void a_repeat_of_a_call_from_before_the_timeline_is_in_doubt_unless_the_call_is_remembered(void)
{
    changelogs all;
    wan_recalled recalled;
    wan_changelog_reservation room;
    begin(&all, WAN_REPLICA_PRIMARY);
    wan_attempt attempt = {.call = asker, .since = TIMELINE - 1};
    EXPECT_EQUAL(wan_changelog_cached_reply(&all.changelog, BUCKET, &attempt, &recalled, NULL), WAN_IN_DOUBT);
    EXPECT_EQUAL(wan_changelog_reserve(&all.changelog, BUCKET, 64, &attempt, &room), WAN_IN_DOUBT);
    EXPECT_EQUAL(call(&all, asker.number - 1, -1, &room), WAN_OK);
    EXPECT_EQUAL(wan_changelog_cached_reply(&all.changelog, BUCKET, &attempt, &recalled, NULL), WAN_IN_DOUBT);
    attempt.since = TIMELINE;
    EXPECT_EQUAL(wan_changelog_cached_reply(&all.changelog, BUCKET, &attempt, &recalled, NULL), WAN_EMPTY);
    EXPECT_EQUAL(call(&all, asker.number, 0, &room), WAN_OK);
    attempt.since = TIMELINE - 1, attempt.is_row = 1;
    EXPECT_EQUAL(wan_changelog_cached_reply(&all.changelog, BUCKET, &attempt, &recalled, NULL), WAN_MADE_BEFORE);
    attempt.row = 1;
    EXPECT_EQUAL(wan_changelog_cached_reply(&all.changelog, BUCKET, &attempt, &recalled, NULL), WAN_IN_DOUBT);
    end(&all);
}

static void a_caller_that_is_forgotten_is_refused_at_every_holder_from_that_sequence_on(void)
{
    changelogs all, replica;
    wan_changelog_reservation room;
    begin(&all, WAN_REPLICA_PRIMARY);
    begin(&replica, WAN_REPLICA_IN_SYNC);
    set_replicas(&all, &waited, 1);
    EXPECT_EQUAL(call(&all, 5, -1, &room), WAN_OK);
    EXPECT_EQUAL(wan_changelog_forget(&all.changelog, BUCKET, asker.caller), WAN_OK);
    EXPECT_EQUAL(all.bucket->log_end, 2);
    EXPECT_EQUAL(all.changelog.shard_last[SHARD], 1); /* No read waits for the change. */
    EXPECT_EQUAL(call(&all, 6, -1, &room), WAN_GIVEN_UP);
    EXPECT_EQUAL(call(&all, 5, 0, &room), WAN_GIVEN_UP);
    const uint8_t *at = all.bucket->changes.bytes + all.bucket->changes.start;
    EXPECT_EQUAL(follow(&replica, EPOCH, 1, at), WAN_OK);
    EXPECT_EQUAL(replica.bucket->answers.count, 1);
    at += ((const wan_changelog_entry *)at)->length;
    EXPECT_EQUAL(wan_changelog_entry_check(at, 32, 0), WAN_OK);
    EXPECT_EQUAL(follow(&replica, EPOCH, 2, at), WAN_OK);
    EXPECT_EQUAL(replica.bucket->answers.count, 0);
    wan_changelog_set_role(&replica.changelog, BUCKET, WAN_REPLICA_PRIMARY, TIMELINE, EPOCH + 1, 0);
    EXPECT_EQUAL(call(&replica, 6, -1, &room), WAN_GIVEN_UP);
    EXPECT_EQUAL(wan_changelog_forget(&replica.changelog, BUCKET, 77), WAN_OK);
    wan_changelog_set_role(&replica.changelog, BUCKET, WAN_REPLICA_ABSENT, TIMELINE, EPOCH + 1, 0);
    EXPECT_EQUAL(replica.bucket->answers.refused_count, 0);
    EXPECT_EQUAL(wan_changelog_forget(&replica.changelog, BUCKET, 77), WAN_NOT_PRIMARY);
    end(&all);
    end(&replica);
}

static void an_entry_that_cannot_be_is_found(void)
{
    _Alignas(8) uint8_t bytes[256] = {0};
    const record_plan plan = {.operation = WAN_UPDATE, .key = "key", .value = "v", .value_length = 1};
    wan_changelog_entry *entry = (wan_changelog_entry *)bytes;
    const uint64_t record = plan_length(&plan), call_length = sizeof *entry + sizeof(wan_call_identity);
    const wan_changelog_entry good[] = {
        {.length = (uint32_t)(sizeof *entry + record)},
        {.length = (uint32_t)(call_length + record), .flags = WAN_CHANGELOG_REMEMBERED},
        {.length = (uint32_t)(call_length + record), .flags = WAN_CHANGELOG_REMEMBERED | WAN_CHANGELOG_ROW, .row = 7},
        {.length = (uint32_t)(call_length + record + 8),
         .flags = WAN_CHANGELOG_REMEMBERED | WAN_CHANGELOG_FOUND,
         .found_length = 3},
        {.length = (uint32_t)call_length, .kind = WAN_ENTRY_FORGET},
    };
    for (uint32_t n = 0; n < sizeof good / sizeof *good; n++) {
        memset(bytes, 0, sizeof bytes);
        *entry = good[n];
        if (wan_changelog_entry_has_call(entry)) *wan_changelog_entry_call(entry) = asker;
        if (entry->kind == WAN_ENTRY_FORGET) *wan_changelog_entry_call(entry) = (wan_call_identity){.caller = 9};
        if (entry->kind == WAN_ENTRY_CHANGE) write_plan((uint8_t *)wan_changelog_entry_record(entry), &plan);
        EXPECT_EQUAL(wan_changelog_entry_check(bytes, entry->length, 0), WAN_OK);
        EXPECT_EQUAL(wan_changelog_entry_check(bytes, entry->length - 8, 0), WAN_CORRUPT);
        entry->verdict_length = 8; /* No verdict is so short. */
        EXPECT_EQUAL(wan_changelog_entry_check(bytes, entry->length, 0), WAN_CORRUPT);
        *entry = good[n], entry->kind = WAN_ENTRY_KINDS;
        EXPECT_EQUAL(wan_changelog_entry_check(bytes, entry->length, 0), WAN_CORRUPT);
        *entry = good[n], entry->outcome = WAN_MISSING;
        EXPECT_EQUAL(wan_changelog_entry_check(bytes, entry->length, 0), WAN_CORRUPT);
        EXPECT_EQUAL(wan_changelog_entry_check(bytes, entry->length, 1) == WAN_CORRUPT, n != 0);
        entry->outcome = WAN_FORGOTTEN;
        EXPECT_EQUAL(wan_changelog_entry_check(bytes, entry->length, 1), WAN_CORRUPT);
        *entry = good[n], entry->flags ^= WAN_CHANGELOG_LEFT_OUT;
        EXPECT_EQUAL(wan_changelog_entry_check(bytes, entry->length, 0) == WAN_CORRUPT, n != 3);
        *entry = good[n];
        if (!wan_changelog_entry_has_call(entry)) continue;
        wan_changelog_entry_call(entry)->caller = 0;
        EXPECT_EQUAL(wan_changelog_entry_check(bytes, entry->length, 0), WAN_CORRUPT);
        EXPECT(strstr(wan_detail, "a call of caller 0") != NULL);
    }
}

static wan_pending_call waiting_for(changelogs *all, wan_waker *owner, uint64_t sequence)
{
    return (wan_pending_call){.owner = owner, .local_fence = all->bucket->local_fence, .sequence = sequence};
}

static void a_pending_call_is_ready_when_its_sequence_is_replicated_and_its_owner_is_woken_once(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_PRIMARY);
    wan_waker owner = {.asleep = 1, .wake_file = eventfd(0, EFD_NONBLOCK)};
    set_replicas(&all, &waited, 1);
    for (uint64_t n = 1; n <= 4; n++) put(&all, 64, n);
    const uint64_t sequences[] = {2, 4, 1, 3, 2}; /* In the order of arrival. */
    wan_pending_call pending[5];
    for (int n = 0; n < 5; n++) {
        pending[n] = waiting_for(&all, &owner, sequences[n]);
        EXPECT_EQUAL(wan_changelog_add_pending(&all.changelog, BUCKET, &pending[n]), WAN_EMPTY);
    }
    EXPECT(!wan_waker_has_ready(&owner));
    acknowledge(&all, 0, 2);
    uint64_t ready = 0;
    for (wan_pending_call *next = wan_waker_take(&owner); next; next = next->behind) ready |= 1u << (next - pending);
    EXPECT_EQUAL(ready, 1 << 0 | 1 << 2 | 1 << 4);
    uint64_t woken = 0;
    EXPECT_EQUAL(read(owner.wake_file, &woken, sizeof woken), sizeof woken);
    EXPECT_EQUAL(woken, 1);
    EXPECT_EQUAL(wan_changelog_remove_pending(&all.changelog, BUCKET, &pending[0]), 0);
    EXPECT_EQUAL(wan_changelog_remove_pending(&all.changelog, BUCKET, &pending[1]), 1);
    acknowledge(&all, 0, 4);
    EXPECT(wan_waker_take(&owner) == &pending[3] && !pending[3].behind);
    EXPECT_EQUAL(read(owner.wake_file, &woken, sizeof woken), -1); /* The owner was awake. */
    wan_pending_call stable = waiting_for(&all, &owner, 4);
    EXPECT_EQUAL(wan_changelog_add_pending(&all.changelog, BUCKET, &stable), WAN_OK);
    EXPECT_EQUAL(wan_changelog_remove_pending(&all.changelog, BUCKET, &stable), 0);
    close(owner.wake_file);
    end(&all);
}

static void a_pending_call_is_ready_when_the_local_fence_is_another_one(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_PRIMARY);
    wan_waker owner = {.wake_file = -1};
    set_replicas(&all, &waited, 1);
    put(&all, 64, 1);
    wan_pending_call first = waiting_for(&all, &owner, 1), late = first;
    EXPECT_EQUAL(wan_changelog_add_pending(&all.changelog, BUCKET, &first), WAN_EMPTY);
    wan_changelog_set_role(&all.changelog, BUCKET, WAN_REPLICA_IN_SYNC, TIMELINE, EPOCH + 1, 0);
    EXPECT(wan_waker_take(&owner) == &first && !first.behind && !wan_waker_has_ready(&owner));
    EXPECT_EQUAL(wan_changelog_add_pending(&all.changelog, BUCKET, &late), WAN_NOT_PRIMARY);
    end(&all);
}

static void what_was_replicated_before_a_handover_is_known_after_it(void)
{
    changelogs all;
    begin(&all, WAN_REPLICA_PRIMARY);
    wan_waker owner = {.wake_file = -1};
    set_replicas(&all, &waited, 1);
    put(&all, 64, 1);
    put(&all, 64, 2);
    const uint64_t local_fence = all.bucket->local_fence;
    acknowledge(&all, 0, 1);
    wan_pending_call stable = waiting_for(&all, &owner, 1), other = waiting_for(&all, &owner, 2);
    wan_changelog_set_role(&all.changelog, BUCKET, WAN_REPLICA_IN_SYNC, TIMELINE, EPOCH + 1, 0);
    EXPECT_EQUAL(wan_changelog_wait(&all.changelog, BUCKET, local_fence, 1, 0), WAN_OK);
    EXPECT_EQUAL(wan_changelog_add_pending(&all.changelog, BUCKET, &stable), WAN_OK);
    EXPECT_EQUAL(wan_changelog_wait(&all.changelog, BUCKET, local_fence, 2, 0), WAN_NOT_PRIMARY);
    EXPECT_EQUAL(wan_changelog_add_pending(&all.changelog, BUCKET, &other), WAN_NOT_PRIMARY);
    wan_changelog_set_role(&all.changelog, BUCKET, WAN_REPLICA_ABSENT, TIMELINE, EPOCH + 2, 0);
    EXPECT_EQUAL(wan_changelog_wait(&all.changelog, BUCKET, local_fence, 1, 0),
                 WAN_NOT_PRIMARY); /* Kept for one more local fence only. */
    EXPECT_EQUAL(wan_changelog_wait(&all.changelog, BUCKET, local_fence + 1, 1, 0),
                 WAN_NOT_PRIMARY); /* A replica keeps no high watermark of a local fence. */
    end(&all);
}

const test_case changelog_tests[] = {
    {"without other replicas a change is stable at once, and nothing is kept",
     without_other_replicas_a_change_is_stable_at_once_and_nothing_is_kept},
    {"a change is replicated when the last replica that is waited for has it",
     a_change_is_replicated_when_the_last_replica_that_is_waited_for_has_it},
    {"a change waits for a replica that holds the queued events alone",
     a_change_waits_for_a_replica_that_holds_the_queued_events_alone},
    {"a learner that is waited for now keeps what it acknowledged",
     a_learner_that_is_waited_for_now_keeps_what_it_acknowledged},
    {"a primary takes no change after its unclean recovery timeout, also with an in-sync replica",
     a_primary_takes_no_change_after_its_unclean_recovery_timeout_also_with_an_in_sync_replica},
    {"what a replica answers after the unclean recovery timeout is replicated when the coordinator has answered again",
     what_a_replica_answers_after_the_unclean_recovery_timeout_is_replicated_when_the_coordinator_has_answered_again},
    {"a sole replica that was stopped over its unclean recovery timeout keeps the change until it is replicated",
     a_sole_replica_that_was_stopped_over_its_unclean_recovery_timeout_keeps_the_change_until_it_is_replicated},
    {"changes under one hold are replicated together, and wake a link once",
     changes_under_one_hold_are_replicated_together_and_wake_a_link_once},
    {"a hold without a change leaves nothing, and one with a change that is not made keeps the others",
     a_hold_without_a_change_leaves_nothing_and_one_with_a_change_that_is_not_made_keeps_the_others},
    {"the stream of a learner has all that an in-sync replica may lack",
     the_stream_of_a_learner_has_all_that_an_in_sync_replica_may_lack},
    {"another transfer of a link is another learner", another_transfer_of_a_link_is_another_learner},
    {"a new epoch begins the snapshot of a learner anew", a_new_epoch_begins_the_snapshot_of_a_learner_anew},
    {"a snapshot that is whole before its primary is active is not forgotten",
     a_snapshot_that_is_whole_before_its_primary_is_active_is_not_forgotten},
    {"a learner with its snapshot is waited for, and caught up when it has what is replicated",
     a_learner_with_its_snapshot_is_waited_for_and_caught_up_when_it_has_what_is_replicated},
    {"only a primary takes changes, and a cancelled one leaves nothing",
     only_a_primary_takes_changes_and_a_cancelled_one_leaves_nothing},
    {"a bucket with too few in-sync replicas takes no change", a_bucket_with_too_few_in_sync_replicas_takes_no_change},
    {"a full budget refuses nothing, and has room again when replicas acknowledge",
     a_full_budget_refuses_nothing_and_has_room_again_when_replicas_acknowledge},
    {"a change log that becomes short gives memory back before it is empty",
     a_change_log_that_becomes_short_gives_memory_back_before_it_is_empty},
    {"callers wait for a learner whose link works and does not keep up",
     callers_wait_for_a_learner_whose_link_works_and_does_not_keep_up},
    {"callers wait for a learner that has taken nothing yet, for a while only",
     callers_wait_for_a_learner_that_has_taken_nothing_yet_for_a_while_only},
    {"the budget counts what change logs hold, whatever happens to them",
     the_budget_counts_what_change_logs_hold_whatever_happens_to_them},
    {"a link that sleeps is woken once, and one that works is not",
     a_link_that_sleeps_is_woken_once_and_one_that_works_is_not},
    {"each link is woken once for removals, until it has announced them",
     each_link_is_woken_once_for_removals_until_it_has_announced_them},
    {"a link at rest is run by the thread that waits, and woken for all others",
     a_link_at_rest_is_run_by_the_thread_that_waits_and_woken_for_all_others},
    {"what was replicated before a handover is known after it",
     what_was_replicated_before_a_handover_is_known_after_it},
    {"whoever waits is told that the local fence is another one",
     whoever_waits_is_told_that_the_local_fence_is_another_one},
    {"each attempt of a call is asked what became of the call before",
     each_attempt_of_a_call_is_asked_what_became_of_the_call_before},
    {"a repeat of a call from before the timeline is in doubt unless the call is remembered",
     a_repeat_of_a_call_from_before_the_timeline_is_in_doubt_unless_the_call_is_remembered},
    {"a caller that is forgotten is refused at every holder from that sequence on",
     a_caller_that_is_forgotten_is_refused_at_every_holder_from_that_sequence_on},
    {"an entry that cannot be is found", an_entry_that_cannot_be_is_found},
    {"a pending call is ready when its sequence is replicated and its owner is woken once",
     a_pending_call_is_ready_when_its_sequence_is_replicated_and_its_owner_is_woken_once},
    {"a pending call is ready when the local fence is another one",
     a_pending_call_is_ready_when_the_local_fence_is_another_one},
    {"a replica takes the next change of its epoch only", a_replica_takes_the_next_change_of_its_epoch_only},
    {"a learner takes a stream from anywhere, and begins anew with another snapshot",
     a_learner_takes_a_stream_from_anywhere_and_begins_anew_with_another_snapshot},
    {"a primary reads alone only under a read lease of every replica for this epoch",
     a_primary_reads_alone_only_under_a_read_lease_of_every_replica_for_this_epoch},
    {"a new connection goes on behind what was acknowledged", a_new_connection_goes_on_behind_what_was_acknowledged},
    {"change logs lose nothing that was replicated, whoever leads",
     change_logs_lose_nothing_that_was_replicated_whoever_leads},
    {0},
};
