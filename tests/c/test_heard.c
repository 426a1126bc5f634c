/* Owns the tests of the changes that wait for listeners. */
#include "harness.h"
#include "copies/wan_heard.h"

static wan_tail tail;

static wan_heard *begin(void)
{
    EXPECT_EQUAL(wan_tail_init(&tail, 1, 64, 1), WAN_OK);
    EXPECT(!wan_tail_heard(&tail));
    EXPECT_EQUAL(wan_tail_hear(&tail), WAN_OK);
    return wan_tail_heard(&tail);
}

/* An entry of `length` bytes; its record is of no matter here. */
static void hear(wan_heard *heard, uint32_t row, const char *old, uint32_t length)
{
    union {
        wan_tail_entry entry;
        uint8_t bytes[256];
    } made = {.entry = {.length = length, .row = row}};
    memset(made.bytes + sizeof made.entry, (int)row, length - sizeof made.entry);
    EXPECT_EQUAL(wan_heard_begin(heard, (const uint8_t *)old, old ? (uint32_t)strlen(old) : 0, 5, length), WAN_OK);
    wan_heard_add(heard, &made.entry);
}

static void what_was_heard_is_taken_in_its_order_with_the_value_before(void)
{
    static const char *const olds[] = {"before", NULL, "", "a longer value"};
    wan_heard *heard = begin();
    wan_buffer taken = {0};
    EXPECT(!wan_heard_take(heard, &taken, 0));
    for (uint32_t n = 0; n < 4; n++) hear(heard, n, olds[n], 64 + 8 * n);
    EXPECT_EQUAL(wan_heard_begin(heard, NULL, 0, 0, 64), WAN_OK);
    wan_heard_cancel(heard); /* A change that was not made. */
    EXPECT(wan_heard_take(heard, &taken, 0));
    EXPECT_EQUAL(heard->bytes, 0);
    uint64_t at = 0;
    for (uint32_t n = 0; n < 4; n++) {
        const wan_heard_item *item = (const wan_heard_item *)(taken.bytes + at);
        const uint8_t *old = (const uint8_t *)(item + 1);
        const wan_tail_entry *entry = (const wan_tail_entry *)(old + wan_align8(item->old_length));
        EXPECT_EQUAL(item->has_old, olds[n] != NULL);
        EXPECT_EQUAL(item->old_length, olds[n] ? strlen(olds[n]) : 0);
        if (olds[n]) EXPECT(!memcmp(old, olds[n], item->old_length));
        EXPECT_EQUAL(entry->row, n);
        EXPECT_EQUAL(entry->length, 64 + 8 * n);
        EXPECT_EQUAL(((const uint8_t *)entry)[entry->length - 1], n);
        at += item->length;
    }
    EXPECT_EQUAL(at, taken.used);
    EXPECT(!wan_heard_take(heard, &(wan_buffer){0}, 0));
    wan_buffer_close(&taken);
    wan_tail_close(&tail);
}

static void it_says_when_listeners_are_far_behind(void)
{
    wan_heard *heard = begin();
    wan_buffer taken = {0};
    while (!wan_heard_is_full(heard)) hear(heard, 1, "old", 128);
    EXPECT(heard->bytes > WAN_HEARD_BYTES_MAX && heard->bytes < WAN_HEARD_BYTES_MAX + 1024);
    EXPECT(wan_heard_take(heard, &taken, 0));
    EXPECT(!wan_heard_is_full(heard));
    wan_buffer_close(&taken);
    wan_tail_close(&tail);
}

static void after_the_end_nothing_is_kept(void)
{
    wan_heard *heard = begin();
    for (uint32_t n = 0; n < 3; n++) hear(heard, n, NULL, 64);
    EXPECT_EQUAL(wan_heard_end(heard), 3);
    hear(heard, 9, NULL, 64);
    EXPECT_EQUAL(heard->bytes, 0);
    EXPECT(!wan_heard_take(heard, &(wan_buffer){0}, 60000)); /* It does not wait either. */
    EXPECT_EQUAL(wan_tail_hear(&tail), WAN_OK);
    EXPECT(wan_tail_heard(&tail) == heard);
    wan_tail_close(&tail);
}

const test_case heard_tests[] = {
    {"what was heard is taken in its order, with the value before",
     what_was_heard_is_taken_in_its_order_with_the_value_before},
    {"it says when listeners are far behind", it_says_when_listeners_are_far_behind},
    {"after the end nothing is kept", after_the_end_nothing_is_kept},
    {0},
};
