/* Owns the tests of pending notifications. */
#include "harness.h"
#include "replication/wan_notifications.h"

#define TIMELINE    1
#define EPOCH       5
#define BUCKETS     3
#define ENTRY_BYTES 128u
#define LIMIT_US    5000000u

static wan_changelog changelog;
static wan_buffer taken;
static uint64_t now_us;

/* Begins a change log whose member leads the buckets, or has replicas of the buckets. */
static wan_notifications *begin(uint8_t role, wan_notify which)
{
    now_us = wan_simulated_us = 1000000;
    EXPECT_EQUAL(wan_changelog_init(&changelog, BUCKETS, 3 * BUCKETS, 1), WAN_OK);
    for (uint32_t n = 0; n < BUCKETS; n++) wan_changelog_set_role(&changelog, n, role, TIMELINE, EPOCH, 0);
    EXPECT(!wan_changelog_notifications(&changelog));
    EXPECT_EQUAL(wan_changelog_keep_notifications(&changelog, which), WAN_OK);
    changelog.notification_limit_us = LIMIT_US;
    EXPECT(!wan_notifications_next(&changelog, &taken, 0)); /* The thread has begun. */
    return wan_changelog_notifications(&changelog);
}

static void end(void)
{
    wan_buffer_close(&taken);
    wan_changelog_close(&changelog);
    wan_simulated_us = 0;
}

static void pass(uint64_t us) { __atomic_store_n(&wan_simulated_us, now_us += us, __ATOMIC_RELAXED); }

/* Adds a replica to the bucket. */
static void add_replica(uint32_t bucket)
{
    const wan_changelog_replica given = {.repl_link = 0, .state = WAN_FOLLOWER_WAITED};
    EXPECT_EQUAL(wan_changelog_set_replicas(&changelog, bucket, &given, 1), WAN_OK);
}
static void acknowledge(uint32_t bucket, uint64_t sequence)
{
    wan_changelog_acknowledged(&changelog, bucket, 0, TIMELINE, EPOCH, sequence);
}

static wan_changelog_entry *entry_of(uint32_t row, uint32_t length)
{
    static union {
        wan_changelog_entry entry;
        uint8_t bytes[2 << 20];
    } made;
    made.entry = (wan_changelog_entry){.length = length, .row = row};
    memset(made.bytes + sizeof made.entry, (int)row, length - sizeof made.entry);
    wan_changelog_entry_record(&made.entry)->flags = 0; /* Not sent again by a remote site. */
    return &made.entry;
}

/* Makes a change at the primary. The content of the record does not matter. */
static uint64_t make_large(uint32_t bucket, uint32_t row, const char *old, uint32_t length)
{
    const wan_changelog_entry *entry = entry_of(row, length);
    wan_changelog_reservation room;
    EXPECT_EQUAL(wan_changelog_reserve(&changelog, bucket, entry->length, NULL, &room), WAN_OK);
    EXPECT_EQUAL(wan_notifications_begin(changelog.notifications, bucket, room.sequence, (const uint8_t *)old,
                                         old ? (uint32_t)strlen(old) : 0, 5, entry->length),
                 WAN_OK);
    memcpy(room.at, entry, entry->length);
    wan_notifications_add(changelog.notifications, bucket, entry);
    return wan_changelog_commit(&changelog, &room, WAN_NO_SHARD);
}
static uint64_t make(uint32_t bucket, uint32_t row) { return make_large(bucket, row, NULL, ENTRY_BYTES); }

/* Applies a change of the primary at the replica. */
static void follow(uint32_t bucket, uint64_t sequence, uint32_t row)
{
    const wan_changelog_entry *entry = entry_of(row, ENTRY_BYTES);
    wan_changelog_reservation room;
    EXPECT_EQUAL(
        wan_changelog_follow(&changelog, bucket, TIMELINE, changelog.buckets[bucket].epoch, sequence, entry, &room),
        WAN_OK);
    EXPECT_EQUAL(wan_notifications_begin(changelog.notifications, bucket, sequence, NULL, 0, 0, entry->length), WAN_OK);
    wan_notifications_add(changelog.notifications, bucket, entry);
    wan_changelog_followed(&changelog, &room, entry, WAN_NO_SHARD);
    wan_changelog_follow_end(&changelog, &room);
}

static void told(uint32_t bucket, uint64_t high_watermark, uint64_t notified)
{
    wan_changelog_told(&changelog, bucket, TIMELINE, changelog.buckets[bucket].epoch, high_watermark, notified, 0);
}

#define NOTHING UINT32_MAX
/* Takes the next change for listeners. Returns its row. */
static uint32_t next(void)
{
    if (!wan_notifications_next(&changelog, &taken, 0)) return NOTHING;
    const wan_notification *item = (const wan_notification *)taken.bytes;
    const uint8_t *old = (const uint8_t *)(item + 1);
    const wan_changelog_entry *entry = (const wan_changelog_entry *)(old + wan_align8(item->old_length));
    EXPECT_EQUAL(((const uint8_t *)entry)[entry->length - 1], (uint8_t)entry->row);
    EXPECT_EQUAL(item->length, wan_notification_size(item->old_length, entry->length));
    return entry->row;
}
static int may_repeat(void) { return ((const wan_notification *)taken.bytes)->may_repeat; }
static uint64_t through(uint32_t bucket)
{
    return wan_notifications_through(changelog.notifications, bucket, changelog.buckets[bucket].high_watermark);
}

static void a_bucket_is_told_in_its_order_with_the_values_before(void)
{
    static const char *const olds[] = {"before", NULL, "", "a longer value"};
    wan_notifications *notifications = begin(WAN_REPLICA_PRIMARY, WAN_NOTIFY_REPLICAS);
    for (uint32_t n = 0; n < 4; n++) make_large(1, n, olds[n], 64 + 8 * n);
    for (uint32_t n = 0; n < 4; n++) {
        EXPECT_EQUAL(next(), n);
        const wan_notification *item = (const wan_notification *)taken.bytes;
        EXPECT_EQUAL(item->has_old, olds[n] != NULL);
        EXPECT_EQUAL(item->old_length, olds[n] ? strlen(olds[n]) : 0);
        if (olds[n]) EXPECT(!memcmp(item + 1, olds[n], item->old_length));
        EXPECT_EQUAL(item->sequence, n + 1);
        EXPECT(!may_repeat());
    }
    EXPECT(notifications->bytes); /* The last change is still with the listener. */
    EXPECT_EQUAL(next(), NOTHING);
    EXPECT_EQUAL(notifications->bytes, 0);
    end();
}

static void a_change_is_told_when_it_is_replicated_and_holds_up_no_other_bucket(void)
{
    begin(WAN_REPLICA_PRIMARY, WAN_NOTIFY_REPLICAS);
    add_replica(0);
    make(0, 1);
    make(0, 2);
    make(1, 3);
    make(2, 4);
    EXPECT_EQUAL(next(), 3);
    EXPECT_EQUAL(next(), 4);
    EXPECT_EQUAL(next(), NOTHING);
    acknowledge(0, 1);
    EXPECT_EQUAL(next(), 1);
    EXPECT_EQUAL(next(), NOTHING);
    acknowledge(0, 2);
    EXPECT_EQUAL(next(), 2);
    EXPECT_EQUAL(next(), NOTHING);
    end();
}

static void a_change_that_is_never_replicated_is_never_told(void)
{
    wan_notifications *notifications = begin(WAN_REPLICA_PRIMARY, WAN_NOTIFY_REPLICAS);
    add_replica(0);
    make(0, 1);
    make(0, 2);
    acknowledge(0, 1);
    wan_changelog_set_role(&changelog, 0, WAN_REPLICA_LEARNER, TIMELINE, EPOCH + 1,
                           7); /* The other replicas went on without the second change. */
    EXPECT_EQUAL(next(), 1);   /* The change is replicated. */
    EXPECT_EQUAL(next(), NOTHING);
    EXPECT_EQUAL(notifications->bytes, 0);
    follow(0, 2, 9);
    told(0, 2, 0);
    EXPECT_EQUAL(next(), 9);
    EXPECT_EQUAL(next(), NOTHING);
    end();
}

static void buckets_take_turns(void)
{
    begin(WAN_REPLICA_PRIMARY, WAN_NOTIFY_REPLICAS);
    for (uint32_t n = 0; n < 3; n++) make(0, n);
    make(1, 10);
    EXPECT_EQUAL(next(), 0);
    EXPECT_EQUAL(next(), 10);
    EXPECT_EQUAL(next(), 1);
    EXPECT_EQUAL(next(), 2);
    EXPECT_EQUAL(next(), NOTHING);
    end();
}

static void a_primary_says_what_was_told_and_not_what_is_being_told(void)
{
    begin(WAN_REPLICA_PRIMARY, WAN_NOTIFY_LED);
    EXPECT_EQUAL(through(0), 0);
    make(0, 1);
    make(0, 2);
    EXPECT_EQUAL(through(0), 0);
    EXPECT_EQUAL(next(), 1);
    EXPECT_EQUAL(through(0), 0);
    EXPECT_EQUAL(next(), 2);
    EXPECT_EQUAL(through(0), 1);
    EXPECT_EQUAL(next(), NOTHING);
    EXPECT_EQUAL(through(0), 2);
    EXPECT_EQUAL(wan_notifications_through(NULL, 0, 2), 2); /* Without listeners, notification is complete through the
                                                               high watermark. */
    end();
}

static void a_replica_keeps_what_was_not_told_and_tells_it_when_it_leads(void)
{
    wan_notifications *notifications = begin(WAN_REPLICA_IN_SYNC, WAN_NOTIFY_LED);
    for (uint64_t n = 1; n <= 4; n++) follow(0, n, (uint32_t)n);
    told(0, 3, 1);
    EXPECT_EQUAL(next(), NOTHING);
    EXPECT_EQUAL(notifications->kept[0].items.count, 3);
    wan_changelog_set_role(&changelog, 0, WAN_REPLICA_TAKING_OVER, TIMELINE, EPOCH + 1, 0);
    EXPECT_EQUAL(next(), NOTHING); /* The member does not lead yet. */
    follow(0, 5, 5);               /* Another replica had the change. The change is not replicated yet, so no listener
                                      was notified. */
    wan_changelog_set_role(&changelog, 0, WAN_REPLICA_PRIMARY, TIMELINE, EPOCH + 1, 0);
    for (uint32_t n = 2; n <= 5; n++) {
        EXPECT_EQUAL(next(), n);
        EXPECT_EQUAL(may_repeat(), n < 5);
    }
    make(0, 6);
    EXPECT_EQUAL(next(), 6);
    EXPECT(!may_repeat());
    EXPECT_EQUAL(next(), NOTHING);
    end();
}

static void a_member_that_tells_all_its_replicas_says_of_what_it_leads_how_far_it_is(void)
{
    wan_notifications *notifications = begin(WAN_REPLICA_IN_SYNC, WAN_NOTIFY_AND_SAY);
    for (uint64_t n = 1; n <= 3; n++) follow(0, n, (uint32_t)n);
    told(0, 2, 2); /* The primary's own listeners were notified. Listeners of this member are notified too. */
    EXPECT_EQUAL(next(), 1);
    wan_changelog_set_role(&changelog, 0, WAN_REPLICA_TAKING_OVER, TIMELINE, EPOCH + 1, 0);
    wan_changelog_set_role(&changelog, 0, WAN_REPLICA_PRIMARY, TIMELINE, EPOCH + 1, 0);
    EXPECT_EQUAL(through(0), 0);
    EXPECT_EQUAL(next(), 2);
    EXPECT(!may_repeat()); /* Only this member notifies its listeners. */
    EXPECT_EQUAL(through(0), 1);
    EXPECT_EQUAL(next(), 3);
    EXPECT(!may_repeat());
    EXPECT_EQUAL(next(), NOTHING);
    EXPECT_EQUAL(through(0), 3);
    EXPECT_EQUAL(notifications->bytes, 0);
    end();
}

static void a_primary_that_is_deposed_tells_what_was_due(void)
{
    wan_notifications *notifications = begin(WAN_REPLICA_PRIMARY, WAN_NOTIFY_LED);
    for (uint32_t n = 1; n <= 3; n++) make(0, n);
    EXPECT_EQUAL(next(), 1);
    wan_changelog_set_role(&changelog, 0, WAN_REPLICA_IN_SYNC, TIMELINE, EPOCH + 1, 0);
    follow(0, 4, 4);
    told(0, 4, 4); /* The new primary's member has no listeners, or was faster. */
    EXPECT_EQUAL(next(), 2);
    EXPECT(may_repeat());
    EXPECT_EQUAL(next(), 3);
    EXPECT_EQUAL(next(), NOTHING);
    EXPECT_EQUAL(notifications->bytes, 0); /* Changes notified by the new primary are not kept. */
    end();
}

static void what_was_due_in_an_earlier_history_is_not_taken_for_a_sequence_of_the_new_one(void)
{
    begin(WAN_REPLICA_PRIMARY, WAN_NOTIFY_LED);
    for (uint32_t n = 1; n <= 3; n++) make(0, n);
    wan_changelog_set_role(&changelog, 0, WAN_REPLICA_ABSENT, 0, 0, 0);
    wan_changelog_set_role(&changelog, 0, WAN_REPLICA_PRIMARY, TIMELINE + 1, EPOCH + 1, 0);
    make(0, 9);
    EXPECT_EQUAL(through(0), 0);
    for (uint32_t n = 1; n <= 3; n++) EXPECT_EQUAL(next(), n);
    EXPECT_EQUAL(next(), 9);
    EXPECT_EQUAL(through(0), 0);
    EXPECT_EQUAL(next(), NOTHING);
    EXPECT_EQUAL(through(0), 1);
    end();
}

static void while_a_listener_stands_still_the_oldest_changes_are_dropped_after_the_limit(void)
{
    wan_notifications *notifications = begin(WAN_REPLICA_PRIMARY, WAN_NOTIFY_LED);
    wan_notifications_state state;
    uint32_t made = 0, told_again = 0, last = 0;
    make(0, made++);
    EXPECT_EQUAL(next(), 0); /* The listener stands still at this change. */
    while (!wan_notifications_are_full(notifications)) make_large(made % BUCKETS, made, "old", 1 << 20), made++;
    wan_notifications_relieve(&changelog);
    wan_notifications_look(notifications, &state);
    EXPECT_EQUAL(state.dropped, 0);
    EXPECT(wan_notifications_are_full(notifications));
    pass(LIMIT_US + 1);
    wan_notifications_relieve(&changelog);
    wan_notifications_look(notifications, &state);
    EXPECT(state.dropped > 0 && state.dropped <= made / 4);
    EXPECT_EQUAL(state.standing_us, LIMIT_US + 1);
    EXPECT(notifications->bytes <= WAN_NOTIFICATIONS_BYTES_LEFT);
    EXPECT_EQUAL(through(0), 0); /* The change with the listener is still kept. */
    for (uint32_t row = 0; (row = next()) != NOTHING; last = row, told_again++)
        EXPECT(row > state.dropped); /* The oldest changes of all buckets were dropped. */
    EXPECT_EQUAL(told_again, made - 1 - state.dropped);
    EXPECT_EQUAL(last, made - 1);
    EXPECT_EQUAL(notifications->bytes, 0);
    EXPECT_EQUAL(through(0), changelog.buckets[0].high_watermark);
    end();
}

static void a_listener_that_goes_on_loses_nothing_however_slow_it_is(void)
{
    wan_notifications *notifications = begin(WAN_REPLICA_PRIMARY, WAN_NOTIFY_REPLICAS);
    uint32_t made = 0;
    while (!wan_notifications_are_full(notifications)) make_large(0, made++, NULL, 1 << 20);
    for (uint32_t n = 0; n < made; n++) {
        EXPECT_EQUAL(next(), n);
        pass(LIMIT_US - 1);
        wan_notifications_relieve(&changelog);
    }
    EXPECT_EQUAL(notifications->dropped, 0);
    end();
}

static void a_replica_forgets_what_the_listener_of_another_member_does_not_receive(void)
{
    wan_notifications *notifications = begin(WAN_REPLICA_IN_SYNC, WAN_NOTIFY_LED);
    uint64_t made = 0;
    while (!wan_notifications_are_full(notifications)) {
        for (uint32_t n = 0; n < 1000; n++) follow(0, ++made, 1);
        told(0, made, 0);
    }
    follow(1, 1, 1);
    told(1, 1, 0);
    wan_notifications_relieve(&changelog);
    EXPECT_EQUAL(notifications->forgotten, 0);
    pass(LIMIT_US + 1);
    wan_notifications_relieve(&changelog);
    EXPECT(notifications->forgotten > 0);
    EXPECT_EQUAL(notifications->dropped, 0);
    EXPECT(notifications->bytes <= WAN_NOTIFICATIONS_BYTES_LEFT);
    told(0, made, made);
    told(1, 1, 1);
    EXPECT_EQUAL(notifications->bytes, 0);
    end();
}

static void after_the_end_nothing_is_kept(void)
{
    wan_notifications *notifications = begin(WAN_REPLICA_PRIMARY, WAN_NOTIFY_REPLICAS);
    add_replica(2);
    for (uint32_t n = 0; n < 4; n++) make(0, n);
    make(2, 9); /* The change is not replicated. */
    EXPECT_EQUAL(next(), 0);
    EXPECT_EQUAL(wan_notifications_end(&changelog), 3);
    make(1, 9);
    EXPECT_EQUAL(notifications->bytes, 0);
    EXPECT(!wan_notifications_next(&changelog, &taken, 60000)); /* The function does not wait either. */
    EXPECT_EQUAL(wan_changelog_keep_notifications(&changelog, WAN_NOTIFY_REPLICAS), WAN_OK);
    EXPECT(wan_changelog_notifications(&changelog) == notifications);
    end();
}

const test_case notifications_tests[] = {
    {"a bucket is told in its order, with the values before", a_bucket_is_told_in_its_order_with_the_values_before},
    {"a change is told when it is replicated, and holds up no other bucket",
     a_change_is_told_when_it_is_replicated_and_holds_up_no_other_bucket},
    {"a change that is never replicated is never told", a_change_that_is_never_replicated_is_never_told},
    {"buckets take turns", buckets_take_turns},
    {"a primary says what was told, and not what is being told",
     a_primary_says_what_was_told_and_not_what_is_being_told},
    {"a replica keeps what was not told, and tells it when it leads",
     a_replica_keeps_what_was_not_told_and_tells_it_when_it_leads},
    {"a member that tells all its replicas says of what it leads how far it is",
     a_member_that_tells_all_its_replicas_says_of_what_it_leads_how_far_it_is},
    {"a primary that is deposed tells what was due", a_primary_that_is_deposed_tells_what_was_due},
    {"what was due in an earlier history is not taken for a sequence of the new one",
     what_was_due_in_an_earlier_history_is_not_taken_for_a_sequence_of_the_new_one},
    {"while a listener stands still, the oldest changes are dropped after the limit",
     while_a_listener_stands_still_the_oldest_changes_are_dropped_after_the_limit},
    {"a listener that goes on loses nothing, however slow it is",
     a_listener_that_goes_on_loses_nothing_however_slow_it_is},
    {"a replica forgets what the listener of another member does not receive",
     a_replica_forgets_what_the_listener_of_another_member_does_not_receive},
    {"after the end nothing is kept", after_the_end_nothing_is_kept},
    {0},
};
