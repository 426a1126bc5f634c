/* Owns the tests of a choice among staged records, against a plain array. */
#include "harness.h"
#include "record/wan_record_set.h"

#define KEYS 1000u

static wan_stage stage;
static wan_record_set set;

static uint64_t stage_record(uint32_t key, uint8_t form, uint16_t partition, uint64_t sequence)
{
    struct { wan_record record; uint64_t key; } item = {.record = {.length = sizeof item, .key_length = 4, .key_form = form, .partition = partition, .sequence = sequence}};
    memcpy(&item.key, &key, 4);
    uint64_t at = stage.used;
    EXPECT_EQUAL(wan_stage_add(&stage, &item, sizeof item), WAN_OK);
    return at;
}

static uint64_t *slot_of(uint64_t at)
{
    uint64_t *slot = NULL;
    EXPECT_EQUAL(wan_record_set_find(&set, &stage, (const wan_record *)(stage.bytes + at), &slot), WAN_OK);
    return slot;
}

static void done(void)
{
    wan_record_set_empty(&set);
    EXPECT(set.slots == NULL && set.count == 0);
    wan_stage_close(&stage);
}

static void of_each_key_the_one_that_was_chosen_last_is_found(void)
{
    static uint64_t model[KEYS][2];
    random_source source = {.state = 3};
    memset(model, 0, sizeof model);
    set.of_events = 0;
    for (int n = 0; n < 20000; n++) {
        uint32_t key = (uint32_t)(random_next(&source) % KEYS);
        uint8_t form = (uint8_t)(random_next(&source) & 1);
        uint64_t at = stage_record(key, form, 0, 0), *slot = slot_of(at);
        EXPECT_EQUAL(*slot, model[key][form]);
        if (*slot == 0 || random_next(&source) & 1) {
            wan_record_set_choose(&set, slot, at);
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
    set.of_events = 1;
    for (uint16_t partition = 0; partition < 3; partition++)
        for (uint64_t sequence = 1; sequence < 2000; sequence++) {
            uint64_t at = stage_record(7, 1, partition, sequence), *slot = slot_of(at);
            EXPECT_EQUAL(*slot, 0);
            wan_record_set_choose(&set, slot, at);
            EXPECT_EQUAL(*slot_of(stage_record(8, 1, partition, sequence)), at + 1);
        }
    EXPECT_EQUAL(set.count, 3 * 1999);
    done();
}

const test_case record_set_tests[] = {
    {"of each key the one that was chosen last is found", of_each_key_the_one_that_was_chosen_last_is_found},
    {"events are told apart by partition and sequence", events_are_told_apart_by_partition_and_sequence},
    {0},
};
