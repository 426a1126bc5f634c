/* Owns the tests of the choice among items, and of the positions of records, compared with a plain array. */
#include "harness.h"
#include "record/wan_item_set.h"
#include "record/wan_position.h"

#define KEYS 1000u

static wan_buffer stage;
static wan_item_set set;

typedef struct {
    uint32_t key;
    uint8_t form;
} keyed_item;

static wan_item_key key_of(const uint8_t *item) { return (wan_item_key){item, 4, ((const keyed_item *)item)->form}; }

static uint64_t stage_item(const void *item, uint64_t length)
{
    uint64_t at = stage.used;
    EXPECT_EQUAL(wan_buffer_add(&stage, item, length), WAN_OK);
    return at;
}

static uint64_t stage_key(uint32_t key, uint8_t form)
{
    return stage_item(&(keyed_item){key, form}, sizeof(keyed_item));
}

static uint64_t stage_place(uint32_t partition, uint64_t sequence)
{
    return stage_item(&(wan_position){partition, 1, sequence}, sizeof(wan_position));
}

static uint64_t *slot_of(uint64_t at)
{
    uint64_t *slot = NULL;
    EXPECT_EQUAL(wan_item_set_find(&set, &stage, stage.bytes + at, &slot), WAN_OK);
    return slot;
}

static void done(void)
{
    wan_item_set_empty(&set);
    EXPECT(set.slots == NULL && set.count == 0);
    wan_buffer_close(&stage);
}

static void of_each_key_the_one_that_was_chosen_last_is_found(void)
{
    static uint64_t model[KEYS][2];
    random_source source = {.state = 3};
    memset(model, 0, sizeof model);
    set.key_of = key_of;
    for (int n = 0; n < 20000; n++) {
        uint32_t key = (uint32_t)(random_next(&source) % KEYS);
        uint8_t form = (uint8_t)(random_next(&source) & 1);
        uint64_t at = stage_key(key, form), *slot = slot_of(at);
        EXPECT_EQUAL(*slot, model[key][form]);
        if (*slot == 0 || random_next(&source) & 1) {
            wan_item_set_choose(&set, slot, at);
            model[key][form] = at + 1;
        }
    }
    uint64_t count = 0;
    for (uint32_t key = 0; key < KEYS; key++) count += (model[key][0] != 0) + (model[key][1] != 0);
    EXPECT_EQUAL(set.count, count);
    EXPECT(set.capacity <= 4 * count);
    done();
}

static void events_are_told_apart_by_partition_and_sequence(void)
{
    set.key_of = NULL;
    for (uint16_t partition = 0; partition < 3; partition++)
        for (uint64_t sequence = 1; sequence < 2000; sequence++) {
            uint64_t at = stage_place(partition, sequence), *slot = slot_of(at);
            EXPECT_EQUAL(*slot, 0);
            wan_item_set_choose(&set, slot, at);
            EXPECT_EQUAL(*slot_of(stage_place(partition, sequence)), at + 1);
        }
    EXPECT_EQUAL(set.count, 3 * 1999);
    done();
}

static void places_that_follow_each_other_become_one_and_are_walked_one_by_one(void)
{
    const wan_position single[] = {{1, 1, 7}, {1, 1, 8}, {1, 1, 9}, {2, 1, 10}, {2, 1, 12}, {1, 1, 10}};
    wan_position joined[6 + 1];
    EXPECT_EQUAL(wan_positions_join(joined, single, 6), 4);
    EXPECT(joined[0].partition == 1 && joined[0].count == 3 && joined[0].first == 7 && joined[3].first == 10
           && joined[3].count == 1);
    wan_position_walk walk;
    uint32_t partition, n = 0;
    uint64_t sequence;
    EXPECT_EQUAL(wan_positions_begin(&walk, (const uint8_t *)joined, 4 * sizeof(wan_position) + 48, 4), WAN_OK);
    EXPECT(walk.at == (const uint8_t *)(joined + 4) && walk.left == 48);
    for (; wan_positions_next(&walk, &partition, &sequence); n++)
        EXPECT(n < 6 && partition == single[n].partition && sequence == single[n].first);
    EXPECT_EQUAL(n, 6);
}

static void places_that_lie_are_refused(void)
{
    wan_position position = {1, 1, 7};
    wan_position_walk walk;
    EXPECT_EQUAL(wan_positions_begin(&walk, (const uint8_t *)&position, sizeof position, 2), WAN_CORRUPT);
    EXPECT_EQUAL(wan_positions_begin(&walk, (const uint8_t *)&position, sizeof position, UINT32_MAX), WAN_CORRUPT);
    position.count = 0;
    EXPECT_EQUAL(wan_positions_begin(&walk, (const uint8_t *)&position, sizeof position, 1), WAN_CORRUPT);
    position.count = 1;
    position.first = 0;
    EXPECT_EQUAL(wan_positions_begin(&walk, (const uint8_t *)&position, sizeof position, 1), WAN_CORRUPT);
    position.first = UINT64_MAX;
    EXPECT_EQUAL(wan_positions_begin(&walk, (const uint8_t *)&position, sizeof position, 1), WAN_CORRUPT);
}

const test_case item_set_tests[] = {
    {"of each key the one that was chosen last is found", of_each_key_the_one_that_was_chosen_last_is_found},
    {"events are told apart by partition and sequence", events_are_told_apart_by_partition_and_sequence},
    {"positions that follow each other become one and are walked one by one",
     places_that_follow_each_other_become_one_and_are_walked_one_by_one},
    {"positions that lie are refused", places_that_lie_are_refused},
    {0},
};
