/* Owns the tests of the changes that wait for listeners. */
#include "harness.h"
#include "copies/wan_heard.h"

#define LIFE        1
#define EPOCH       5
#define BUCKETS     3
#define ENTRY_BYTES 128u
#define LIMIT_US    5000000u

static wan_tail tail;
static wan_buffer taken;
static uint64_t now_us;

/* A tail that leads its buckets, or has copies of them. */
static wan_heard *begin(uint8_t role, wan_hears which)
{
    now_us = wan_simulated_us = 1000000;
    EXPECT_EQUAL(wan_tail_init(&tail, BUCKETS, 3 * BUCKETS, 1), WAN_OK);
    for (uint32_t n = 0; n < BUCKETS; n++) wan_tail_set_role(&tail, n, role, LIFE, EPOCH, 0);
    EXPECT(!wan_tail_heard(&tail));
    EXPECT_EQUAL(wan_tail_hear(&tail, which), WAN_OK);
    tail.heard_limit_us = LIMIT_US;
    EXPECT(!wan_heard_next(&tail, &taken, 0)); /* The thread has begun. */
    return wan_tail_heard(&tail);
}

static void end(void)
{
    wan_buffer_close(&taken);
    wan_tail_close(&tail);
    wan_simulated_us = 0;
}

static void pass(uint64_t us) { __atomic_store_n(&wan_simulated_us, now_us += us, __ATOMIC_RELAXED); }

/* The bucket has a copy. */
static void copy(uint32_t bucket)
{
    const wan_tail_copy given = {.lane = 0, .state = WAN_COPY_WAITED};
    EXPECT_EQUAL(wan_tail_set_copies(&tail, bucket, &given, 1), WAN_OK);
}
static void acknowledge(uint32_t bucket, uint64_t sequence)
{
    wan_tail_acknowledged(&tail, bucket, 0, LIFE, EPOCH, sequence);
}

static wan_tail_entry *entry_of(uint32_t row, uint32_t length)
{
    static union {
        wan_tail_entry entry;
        uint8_t bytes[2 << 20];
    } made;
    made.entry = (wan_tail_entry){.length = length, .row = row};
    memset(made.bytes + sizeof made.entry, (int)row, length - sizeof made.entry);
    wan_tail_entry_record(&made.entry)->flags = 0; /* No site sent it again. */
    return &made.entry;
}

/* The primary makes a change. Its record is of no matter here. */
static uint64_t make_large(uint32_t bucket, uint32_t row, const char *old, uint32_t length)
{
    const wan_tail_entry *entry = entry_of(row, length);
    wan_tail_reservation room;
    EXPECT_EQUAL(wan_tail_reserve(&tail, bucket, entry->length, NULL, &room), WAN_OK);
    EXPECT_EQUAL(wan_heard_begin(tail.heard, bucket, room.sequence, (const uint8_t *)old,
                                 old ? (uint32_t)strlen(old) : 0, 5, entry->length),
                 WAN_OK);
    memcpy(room.at, entry, entry->length);
    wan_heard_add(tail.heard, bucket, entry);
    return wan_tail_commit(&tail, &room, WAN_NO_SHARD);
}
static uint64_t make(uint32_t bucket, uint32_t row) { return make_large(bucket, row, NULL, ENTRY_BYTES); }

/* The copy takes what its primary made. */
static void follow(uint32_t bucket, uint64_t sequence, uint32_t row)
{
    const wan_tail_entry *entry = entry_of(row, ENTRY_BYTES);
    wan_tail_reservation room;
    EXPECT_EQUAL(wan_tail_follow(&tail, bucket, LIFE, tail.buckets[bucket].epoch, sequence, entry, &room), WAN_OK);
    EXPECT_EQUAL(wan_heard_begin(tail.heard, bucket, sequence, NULL, 0, 0, entry->length), WAN_OK);
    wan_heard_add(tail.heard, bucket, entry);
    wan_tail_followed(&tail, &room, entry, WAN_NO_SHARD);
    wan_tail_follow_end(&tail, &room);
}

static void told(uint32_t bucket, uint64_t counted, uint64_t heard)
{
    wan_tail_told(&tail, bucket, LIFE, tail.buckets[bucket].epoch, counted, heard, 0);
}

#define NOTHING UINT32_MAX
/* Tells the next change. Returns its row. */
static uint32_t next(void)
{
    if (!wan_heard_next(&tail, &taken, 0)) return NOTHING;
    const wan_heard_item *item = (const wan_heard_item *)taken.bytes;
    const uint8_t *old = (const uint8_t *)(item + 1);
    const wan_tail_entry *entry = (const wan_tail_entry *)(old + wan_align8(item->old_length));
    EXPECT_EQUAL(((const uint8_t *)entry)[entry->length - 1], (uint8_t)entry->row);
    EXPECT_EQUAL(item->length, wan_heard_size(item->old_length, entry->length));
    return entry->row;
}
static int may_repeat(void) { return ((const wan_heard_item *)taken.bytes)->may_repeat; }
static uint64_t through(uint32_t bucket) { return wan_heard_through(tail.heard, bucket, tail.buckets[bucket].counted); }

static void a_bucket_is_told_in_its_order_with_the_values_before(void)
{
    static const char *const olds[] = {"before", NULL, "", "a longer value"};
    wan_heard *heard = begin(WAN_TAIL_PRIMARY, WAN_HEARS_COPIES);
    for (uint32_t n = 0; n < 4; n++) make_large(1, n, olds[n], 64 + 8 * n);
    for (uint32_t n = 0; n < 4; n++) {
        EXPECT_EQUAL(next(), n);
        const wan_heard_item *item = (const wan_heard_item *)taken.bytes;
        EXPECT_EQUAL(item->has_old, olds[n] != NULL);
        EXPECT_EQUAL(item->old_length, olds[n] ? strlen(olds[n]) : 0);
        if (olds[n]) EXPECT(!memcmp(item + 1, olds[n], item->old_length));
        EXPECT_EQUAL(item->sequence, n + 1);
        EXPECT(!may_repeat());
    }
    EXPECT(heard->bytes); /* The last one is being told. */
    EXPECT_EQUAL(next(), NOTHING);
    EXPECT_EQUAL(heard->bytes, 0);
    end();
}

static void a_change_is_told_when_it_counts_and_holds_up_no_other_bucket(void)
{
    begin(WAN_TAIL_PRIMARY, WAN_HEARS_COPIES);
    copy(0);
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

static void a_change_that_never_counts_is_never_told(void)
{
    wan_heard *heard = begin(WAN_TAIL_PRIMARY, WAN_HEARS_COPIES);
    copy(0);
    make(0, 1);
    make(0, 2);
    acknowledge(0, 1);
    wan_tail_set_role(&tail, 0, WAN_TAIL_LEARNER, LIFE, EPOCH + 1, 7); /* Others went on without the second one. */
    EXPECT_EQUAL(next(), 1);                                           /* It counted. */
    EXPECT_EQUAL(next(), NOTHING);
    EXPECT_EQUAL(heard->bytes, 0);
    follow(0, 2, 9);
    told(0, 2, 0);
    EXPECT_EQUAL(next(), 9);
    EXPECT_EQUAL(next(), NOTHING);
    end();
}

static void buckets_take_turns(void)
{
    begin(WAN_TAIL_PRIMARY, WAN_HEARS_COPIES);
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
    begin(WAN_TAIL_PRIMARY, WAN_HEARS_LED);
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
    EXPECT_EQUAL(wan_heard_through(NULL, 0, 2), 2); /* Without listeners all that counts was told. */
    end();
}

static void a_copy_keeps_what_was_not_told_and_tells_it_when_it_leads(void)
{
    wan_heard *heard = begin(WAN_TAIL_COPY, WAN_HEARS_LED);
    for (uint64_t n = 1; n <= 4; n++) follow(0, n, (uint32_t)n);
    told(0, 3, 1);
    EXPECT_EQUAL(next(), NOTHING);
    EXPECT_EQUAL(heard->kept[0].items.count, 3);
    wan_tail_set_role(&tail, 0, WAN_TAIL_TAKING_OVER, LIFE, EPOCH + 1, 0);
    EXPECT_EQUAL(next(), NOTHING); /* It does not lead yet. */
    follow(0, 5, 5);               /* Another copy had it. It cannot count yet, so nobody has told it. */
    wan_tail_set_role(&tail, 0, WAN_TAIL_PRIMARY, LIFE, EPOCH + 1, 0);
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

static void a_member_that_tells_all_its_copies_says_of_what_it_leads_how_far_it_is(void)
{
    wan_heard *heard = begin(WAN_TAIL_COPY, WAN_HEARS_AND_SAYS);
    for (uint64_t n = 1; n <= 3; n++) follow(0, n, (uint32_t)n);
    told(0, 2, 2); /* The primary's own listeners were told. Those of this member hear it too. */
    EXPECT_EQUAL(next(), 1);
    wan_tail_set_role(&tail, 0, WAN_TAIL_TAKING_OVER, LIFE, EPOCH + 1, 0);
    wan_tail_set_role(&tail, 0, WAN_TAIL_PRIMARY, LIFE, EPOCH + 1, 0);
    EXPECT_EQUAL(through(0), 0);
    EXPECT_EQUAL(next(), 2);
    EXPECT(!may_repeat()); /* Nobody else tells the listeners of this member. */
    EXPECT_EQUAL(through(0), 1);
    EXPECT_EQUAL(next(), 3);
    EXPECT(!may_repeat());
    EXPECT_EQUAL(next(), NOTHING);
    EXPECT_EQUAL(through(0), 3);
    EXPECT_EQUAL(heard->bytes, 0);
    end();
}

static void a_primary_that_is_deposed_tells_what_was_due(void)
{
    wan_heard *heard = begin(WAN_TAIL_PRIMARY, WAN_HEARS_LED);
    for (uint32_t n = 1; n <= 3; n++) make(0, n);
    EXPECT_EQUAL(next(), 1);
    wan_tail_set_role(&tail, 0, WAN_TAIL_COPY, LIFE, EPOCH + 1, 0);
    follow(0, 4, 4);
    told(0, 4, 4); /* The new primary's member has no listeners, or was faster. */
    EXPECT_EQUAL(next(), 2);
    EXPECT(may_repeat());
    EXPECT_EQUAL(next(), 3);
    EXPECT_EQUAL(next(), NOTHING);
    EXPECT_EQUAL(heard->bytes, 0); /* What the new primary has told is not kept either. */
    end();
}

static void what_was_due_in_an_earlier_history_is_not_taken_for_a_sequence_of_the_new_one(void)
{
    begin(WAN_TAIL_PRIMARY, WAN_HEARS_LED);
    for (uint32_t n = 1; n <= 3; n++) make(0, n);
    wan_tail_set_role(&tail, 0, WAN_TAIL_ABSENT, 0, 0, 0);
    wan_tail_set_role(&tail, 0, WAN_TAIL_PRIMARY, LIFE + 1, EPOCH + 1, 0);
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
    wan_heard *heard = begin(WAN_TAIL_PRIMARY, WAN_HEARS_LED);
    wan_heard_state state;
    uint32_t made = 0, told_again = 0, last = 0;
    make(0, made++);
    EXPECT_EQUAL(next(), 0); /* The listener stands still at this one. */
    while (!wan_heard_is_full(heard)) make_large(made % BUCKETS, made, "old", 1 << 20), made++;
    wan_heard_relieve(&tail);
    wan_heard_look(heard, &state);
    EXPECT_EQUAL(state.dropped, 0);
    EXPECT(wan_heard_is_full(heard));
    pass(LIMIT_US + 1);
    wan_heard_relieve(&tail);
    wan_heard_look(heard, &state);
    EXPECT(state.dropped > 0 && state.dropped <= made / 4);
    EXPECT_EQUAL(state.standing_us, LIMIT_US + 1);
    EXPECT(heard->bytes <= WAN_HEARD_BYTES_LEFT);
    EXPECT_EQUAL(through(0), 0); /* The change that is being told is still there. */
    for (uint32_t row = 0; (row = next()) != NOTHING; last = row, told_again++)
        EXPECT(row > state.dropped); /* The oldest of all buckets went. */
    EXPECT_EQUAL(told_again, made - 1 - state.dropped);
    EXPECT_EQUAL(last, made - 1);
    EXPECT_EQUAL(heard->bytes, 0);
    EXPECT_EQUAL(through(0), tail.buckets[0].counted);
    end();
}

static void a_listener_that_goes_on_loses_nothing_however_slow_it_is(void)
{
    wan_heard *heard = begin(WAN_TAIL_PRIMARY, WAN_HEARS_COPIES);
    uint32_t made = 0;
    while (!wan_heard_is_full(heard)) make_large(0, made++, NULL, 1 << 20);
    for (uint32_t n = 0; n < made; n++) {
        EXPECT_EQUAL(next(), n);
        pass(LIMIT_US - 1);
        wan_heard_relieve(&tail);
    }
    EXPECT_EQUAL(heard->dropped, 0);
    end();
}

static void a_copy_forgets_what_the_listener_of_another_member_does_not_hear(void)
{
    wan_heard *heard = begin(WAN_TAIL_COPY, WAN_HEARS_LED);
    uint64_t made = 0;
    while (!wan_heard_is_full(heard)) {
        for (uint32_t n = 0; n < 1000; n++) follow(0, ++made, 1);
        told(0, made, 0);
    }
    follow(1, 1, 1);
    told(1, 1, 0);
    wan_heard_relieve(&tail);
    EXPECT_EQUAL(heard->forgotten, 0);
    pass(LIMIT_US + 1);
    wan_heard_relieve(&tail);
    EXPECT(heard->forgotten > 0);
    EXPECT_EQUAL(heard->dropped, 0);
    EXPECT(heard->bytes <= WAN_HEARD_BYTES_LEFT);
    told(0, made, made);
    told(1, 1, 1);
    EXPECT_EQUAL(heard->bytes, 0);
    end();
}

static void after_the_end_nothing_is_kept(void)
{
    wan_heard *heard = begin(WAN_TAIL_PRIMARY, WAN_HEARS_COPIES);
    copy(2);
    for (uint32_t n = 0; n < 4; n++) make(0, n);
    make(2, 9); /* It does not count. */
    EXPECT_EQUAL(next(), 0);
    EXPECT_EQUAL(wan_heard_end(&tail), 3);
    make(1, 9);
    EXPECT_EQUAL(heard->bytes, 0);
    EXPECT(!wan_heard_next(&tail, &taken, 60000)); /* It does not wait either. */
    EXPECT_EQUAL(wan_tail_hear(&tail, WAN_HEARS_COPIES), WAN_OK);
    EXPECT(wan_tail_heard(&tail) == heard);
    end();
}

const test_case heard_tests[] = {
    {"a bucket is told in its order, with the values before", a_bucket_is_told_in_its_order_with_the_values_before},
    {"a change is told when it counts, and holds up no other bucket",
     a_change_is_told_when_it_counts_and_holds_up_no_other_bucket},
    {"a change that never counts is never told", a_change_that_never_counts_is_never_told},
    {"buckets take turns", buckets_take_turns},
    {"a primary says what was told, and not what is being told",
     a_primary_says_what_was_told_and_not_what_is_being_told},
    {"a copy keeps what was not told, and tells it when it leads",
     a_copy_keeps_what_was_not_told_and_tells_it_when_it_leads},
    {"a member that tells all its copies says of what it leads how far it is",
     a_member_that_tells_all_its_copies_says_of_what_it_leads_how_far_it_is},
    {"a primary that is deposed tells what was due", a_primary_that_is_deposed_tells_what_was_due},
    {"what was due in an earlier history is not taken for a sequence of the new one",
     what_was_due_in_an_earlier_history_is_not_taken_for_a_sequence_of_the_new_one},
    {"while a listener stands still, the oldest changes are dropped after the limit",
     while_a_listener_stands_still_the_oldest_changes_are_dropped_after_the_limit},
    {"a listener that goes on loses nothing, however slow it is",
     a_listener_that_goes_on_loses_nothing_however_slow_it_is},
    {"a copy forgets what the listener of another member does not hear",
     a_copy_forgets_what_the_listener_of_another_member_does_not_hear},
    {"after the end nothing is kept", after_the_end_nothing_is_kept},
    {0},
};
