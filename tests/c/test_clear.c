/* Owns the tests of clears: what they take out of the table, what the change log gets, and what a repeat is told. */
#include "harness.h"
#include "replication/wan_clear.h"

enum { BUCKETS = 4, BUCKET = 1, SITE = 3 };

static wan_table table, replica_table;
static wan_changelog changelog, replica_changelog;

static void begin(wan_table *of, wan_changelog *its, uint8_t role)
{
    EXPECT_EQUAL(wan_table_init(of, BUCKETS), WAN_OK);
    EXPECT_EQUAL(wan_changelog_init(its, of->bucket_count, of->shard_count, 1), WAN_OK);
    wan_changelog_set_role(its, BUCKET, role, 1, 5, 0);
}

static void end(void)
{
    wan_changelog_close(&changelog);
    wan_changelog_close(&replica_changelog);
    wan_table_close(&table);
    wan_table_close(&replica_table);
}

/* Puts or destroys keys of all buckets, and returns how many entries the bucket has. */
static uint64_t change(wan_table *of, uint8_t operation, uint32_t first, uint32_t count)
{
    for (uint32_t n = first; n < first + count; n++) {
        wan_change change = {.key = (uint8_t *)&n,
                             .key_length = 4,
                             .hash = wan_key_hash((uint8_t *)&n, 4, 0),
                             .value = (uint8_t *)&n,
                             .value_length = 4,
                             .operation = operation,
                             .local = 1,
                             .stamp = (uint64_t)n + 1 + ((uint64_t)operation << 32)};
        wan_shard *shard = wan_table_shard(of, change.hash);
        wan_lock_take(&shard->lock);
        EXPECT(wan_table_apply(shard, &change) <= WAN_DESTROYED);
        wan_lock_release(&shard->lock);
    }
    return wan_table_bucket_count(of, &of->buckets[BUCKET]).entries;
}

static const uint64_t caller = (uint64_t)7 << 32 | 8;

static wan_status make(uint64_t number, wan_recalled *made, uint64_t *entries)
{
    const wan_attempt attempt = {.call = {.caller = caller, .slot = 3, .number = number}};
    wan_table_bucket_take(&table, &table.buckets[BUCKET]);
    wan_status status = wan_clear_make(&table, &changelog, BUCKET, SITE, &attempt, made, entries);
    wan_table_bucket_release(&table, &table.buckets[BUCKET]);
    return status;
}

static wan_status follow(uint64_t sequence, const wan_changelog_entry *entry)
{
    wan_table_bucket_take(&replica_table, &replica_table.buckets[BUCKET]);
    wan_status status = wan_clear_follow(&replica_table, &replica_changelog, BUCKET, SITE, 1, 5, sequence, entry);
    wan_table_bucket_release(&replica_table, &replica_table.buckets[BUCKET]);
    return status;
}

static void a_clear_takes_out_the_entries_of_its_bucket_at_primary_and_replica(void)
{
    wan_recalled made, again;
    uint64_t entries = 0;
    begin(&table, &changelog, WAN_REPLICA_PRIMARY);
    begin(&replica_table, &replica_changelog, WAN_REPLICA_IN_SYNC);
    const wan_changelog_replica replica = {.repl_link = 2, .state = WAN_FOLLOWER_WAITED};
    EXPECT_EQUAL(wan_changelog_set_replicas(&changelog, BUCKET, &replica, 1), WAN_OK);
    change(&table, WAN_UPDATE, 0, 2000);
    change(&replica_table, WAN_UPDATE, 0, 2000);
    const uint64_t there = change(&table, WAN_DESTROY, 0, 500);
    EXPECT_EQUAL(change(&replica_table, WAN_DESTROY, 0, 500), there);
    const wan_bucket_counts before = wan_table_bucket_count(&table, &table.buckets[BUCKET]);
    const uint64_t others = wan_table_bucket_count(&table, &table.buckets[0]).entries;
    EXPECT_EQUAL(make(1, &made, &entries), WAN_OK);
    EXPECT_EQUAL(entries, there);
    EXPECT_EQUAL(made.sequence, 1);
    EXPECT_EQUAL(changelog.buckets[BUCKET].high_watermark, 0); /* It waits for its replica. */
    const wan_bucket_counts after = wan_table_bucket_count(&table, &table.buckets[BUCKET]);
    EXPECT_EQUAL(after.entries, 0);
    EXPECT_EQUAL(after.tombstones, before.tombstones);
    EXPECT_EQUAL(wan_table_bucket_count(&table, &table.buckets[0]).entries, others);
    const uint32_t shards = table.shard_count / BUCKETS;
    for (uint32_t n = 0; n < table.shard_count; n++)
        EXPECT_EQUAL(changelog.shard_last[n], n / shards == BUCKET); /* A read of any key waits for it. */

    const wan_changelog_entry *entry = (const wan_changelog_entry *)changelog.buckets[BUCKET].changes.bytes;
    EXPECT_EQUAL(wan_changelog_entry_check((const uint8_t *)entry, WAN_CHANGELOG_CLEAR_BYTES, 0), WAN_OK);
    EXPECT_EQUAL(wan_changelog_entry_check((const uint8_t *)entry, WAN_CHANGELOG_CLEAR_BYTES - 8, 0), WAN_CORRUPT);
    EXPECT_EQUAL(follow(2, entry), WAN_INVALID);
    EXPECT_EQUAL(follow(1, entry), WAN_OK);
    EXPECT_EQUAL(follow(1, entry), WAN_EMPTY);
    EXPECT_EQUAL(wan_table_bucket_count(&replica_table, &replica_table.buckets[BUCKET]).entries, 0);
    EXPECT_EQUAL(wan_table_bucket_count(&replica_table, &replica_table.buckets[BUCKET]).tombstones, before.tombstones);

    EXPECT(change(&table, WAN_UPDATE, 3000, 100) > 0);
    EXPECT_EQUAL(make(1, &again, &entries), WAN_OK); /* A repeat: nothing more is taken out. */
    EXPECT_EQUAL(entries, there);
    EXPECT_EQUAL(again.sequence, 1);
    EXPECT(wan_table_bucket_count(&table, &table.buckets[BUCKET]).entries > 0);
    EXPECT_EQUAL(changelog.buckets[BUCKET].log_end, 1);
    wan_buffer found = {0};
    const wan_attempt attempt = {.call = {.caller = caller, .slot = 3, .number = 1}};
    wan_changelog_set_role(&replica_changelog, BUCKET, WAN_REPLICA_PRIMARY, 1, 6,
                           0); /* The replica knows the answer too. */
    EXPECT_EQUAL(wan_changelog_cached_reply(&replica_changelog, BUCKET, &attempt, &again, &found), WAN_MADE_BEFORE);
    EXPECT_EQUAL(found.used, sizeof there);
    EXPECT(!memcmp(found.bytes, &there, sizeof there));
    wan_buffer_close(&found);
    end();
}

static void a_clear_that_its_bucket_does_not_take_changes_nothing(void)
{
    wan_recalled made;
    uint64_t entries = 0;
    begin(&table, &changelog, WAN_REPLICA_IN_SYNC);
    begin(&replica_table, &replica_changelog, WAN_REPLICA_PRIMARY);
    const uint64_t there = change(&table, WAN_UPDATE, 0, 500);
    EXPECT_EQUAL(make(1, &made, &entries), WAN_NOT_PRIMARY);
    wan_changelog_set_role(&changelog, BUCKET, WAN_REPLICA_PRIMARY, 1, 6, 0);
    changelog.min_isr = 2;
    EXPECT_EQUAL(make(1, &made, &entries), WAN_TOO_FEW);
    EXPECT_EQUAL(wan_table_bucket_count(&table, &table.buckets[BUCKET]).entries, there);
    EXPECT_EQUAL(changelog.buckets[BUCKET].log_end, 0);
    end();
}

static void listeners_receive_each_entry_that_a_clear_takes_out(void)
{
    wan_recalled made;
    wan_buffer taken = {0};
    uint64_t entries = 0, taken_count = 0;
    begin(&table, &changelog, WAN_REPLICA_PRIMARY);
    begin(&replica_table, &replica_changelog, WAN_REPLICA_IN_SYNC);
    EXPECT_EQUAL(wan_changelog_keep_notifications(&changelog, WAN_NOTIFY_REPLICAS), WAN_OK);
    change(&table, WAN_UPDATE, 0, 300);
    change(&table, WAN_DESTROY, 0, 30);
    EXPECT_EQUAL(make(1, &made, &entries), WAN_OK);
    for (; wan_notifications_next(&changelog, &taken, 0); taken_count++) {
        const wan_notification *item = (const wan_notification *)taken.bytes;
        const wan_changelog_entry *entry =
            (const wan_changelog_entry *)((const uint8_t *)(item + 1) + wan_align8(item->old_length));
        EXPECT_EQUAL(item->old_length, 4);
        EXPECT_EQUAL(entry->outcome, WAN_DESTROYED);
        EXPECT_EQUAL(wan_changelog_entry_check((const uint8_t *)entry, entry->length, 0), WAN_OK);
        const wan_record *record = wan_changelog_entry_record(entry);
        EXPECT(!memcmp(wan_record_key(record), item + 1, 4)); /* Each value is its key. */
        EXPECT_EQUAL(record->event_member, 7);
        EXPECT_EQUAL(record->event_thread, 8);
        EXPECT_EQUAL(record->event_sequence, (uint64_t)3 << 48 | 1);
        EXPECT_EQUAL(item->sequence, made.sequence);
    }
    EXPECT_EQUAL(taken_count, entries);
    EXPECT_EQUAL(wan_notifications_end(&changelog), 0);
    change(&table, WAN_UPDATE, 1000, 100);
    EXPECT_EQUAL(make(2, &made, &entries), WAN_OK); /* Nobody listens any more. */
    EXPECT_EQUAL(changelog.notifications->bytes, 0);
    wan_buffer_close(&taken);
    end();
}

const test_case clear_tests[] = {
    {"a clear takes out the entries of its bucket, at primary and replica",
     a_clear_takes_out_the_entries_of_its_bucket_at_primary_and_replica},
    {"a clear that its bucket does not take changes nothing", a_clear_that_its_bucket_does_not_take_changes_nothing},
    {"listeners receive each entry that a clear takes out", listeners_receive_each_entry_that_a_clear_takes_out},
    {0},
};
