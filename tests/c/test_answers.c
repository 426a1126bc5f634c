/* Owns the tests of what a bucket remembers of calls, beside a plain model, and of the slots of calls. */
#include "harness.h"
#include "replication/wan_answers.h"
#include "replication/wan_slots.h"

enum { CALLERS = 6, SLOTS = 40 };
#define CALLER(n) ((uint64_t)(n) + 1)

static wan_first_answer change(uint64_t caller, uint16_t slot, uint64_t number, uint64_t sequence)
{
    return (wan_first_answer){.call = {.caller = caller, .slot = slot, .number = number},
                              .sequence = sequence,
                              .outcome = (uint8_t)(number % 3)};
}

static void add(wan_answers *answers, const wan_first_answer *fresh)
{
    EXPECT_EQUAL(wan_answers_make_room(answers), WAN_OK);
    wan_answers_add(answers, fresh);
}

static void a_call_is_remembered_with_all_of_its_answer(void)
{
    wan_answers answers = {0};
    wan_first_answer fresh = change(7, 1, 5, 40);
    fresh.found = (uint8_t *)"value", fresh.found_length = 5, fresh.has_found = 1, fresh.found_form = 3;
    EXPECT(!wan_answers_find(&answers, fresh.call));
    add(&answers, &fresh);
    const wan_first_answer *kept = wan_answers_find(&answers, fresh.call);
    EXPECT(kept && kept->sequence == 40 && kept->outcome == 2 && kept->has_found && kept->found_form == 3);
    EXPECT(kept && kept->found != fresh.found && kept->found_length == 5 && !memcmp(kept->found, "value", 5));
    EXPECT(kept && !kept->is_lost && kept->applied == 1);
    for (uint32_t n = 0; n < 2; n++) {
        wan_call_identity other = fresh.call;
        if (n == 0) other.caller++;
        if (n == 1) other.slot++;
        EXPECT(!wan_answers_find(&answers, other));
    }
    wan_answers_close(&answers);
}

static void a_later_call_takes_the_place_of_the_one_before_in_its_slot(void)
{
    wan_answers answers = {0};
    for (uint64_t n = 1; n <= 10000; n++) {
        wan_first_answer fresh = change(7, n % 8, n, n);
        fresh.found = (uint8_t *)"value", fresh.found_length = n % 6, fresh.has_found = 1;
        add(&answers, &fresh);
        EXPECT_EQUAL(wan_answers_find(&answers, fresh.call)->call.number, n);
    }
    EXPECT_EQUAL(answers.count, 8);
    EXPECT(answers.capacity <= 16 && answers.found_bytes <= 40);
    wan_first_answer earlier = change(7, 1, 3, 20000);
    add(&answers, &earlier); /* No primary sends that. */
    EXPECT_EQUAL(wan_answers_find(&answers, earlier.call)->call.number, 9993);
    wan_answers_close(&answers);
}

static void the_rows_of_a_call_have_one_answer_together(void)
{
    wan_answers answers = {0};
    for (uint32_t row = 0; row < 10; row += row == 3 ? 2 : 1) { /* Row 4 changes nothing. */
        wan_first_answer fresh = change(7, 1, 100, 50 + row);
        fresh.rows = row + 1;
        add(&answers, &fresh);
    }
    EXPECT_EQUAL(answers.count, 1);
    wan_first_answer next = change(7, 1, 101, 70);
    const wan_first_answer *kept = wan_answers_find(&answers, next.call);
    EXPECT(kept && kept->rows == 10 && kept->applied == 9 && kept->sequence == 59);
    next.rows = 3;
    add(&answers, &next);
    EXPECT(kept->rows == 3 && kept->applied == 1 && kept->call.number == 101);
    wan_answers_close(&answers);
}

static void found_values_are_bounded_and_the_oldest_are_lost(void)
{
    wan_answers answers = {0};
    const uint32_t length = WAN_ANSWERS_BYTES_MAX / 4;
    uint8_t *value = calloc(1, WAN_ANSWERS_BYTES_MAX + 1);
    for (uint16_t n = 1; n <= 9; n++) {
        wan_first_answer fresh = change(7, n, 1, n);
        fresh.found = value, fresh.found_length = length, fresh.has_found = 1;
        add(&answers, &fresh);
        EXPECT(answers.found_bytes <= WAN_ANSWERS_BYTES_MAX);
    }
    EXPECT_EQUAL(answers.count, 9);
    for (uint16_t n = 1; n <= 9; n++) {
        const wan_first_answer *kept = wan_answers_find(&answers, change(7, n, 1, 0).call);
        EXPECT(kept && kept->is_lost == (n <= 5) && kept->has_found);
    }
    wan_first_answer large = change(7, 10, 1, 10);
    large.found = value, large.found_length = WAN_ANSWERS_BYTES_MAX + 1, large.has_found = 1;
    add(&answers, &large);
    EXPECT(wan_answers_find(&answers, large.call)->is_lost);
    EXPECT_EQUAL(answers.found_bytes, WAN_ANSWERS_BYTES_MAX);
    free(value);
    wan_answers_close(&answers);
}

static void of_the_refused_callers_the_oldest_fall_out(void)
{
    wan_answers answers = {0};
    for (uint64_t n = 1; n <= WAN_REFUSED_MAX + 10; n++) {
        EXPECT_EQUAL(wan_answers_make_room(&answers), WAN_OK);
        wan_answers_forget(&answers, n);
        wan_answers_forget(&answers, n);
    }
    EXPECT_EQUAL(answers.refused_count, WAN_REFUSED_MAX);
    for (uint64_t n = 1; n <= WAN_REFUSED_MAX + 10; n++) EXPECT_EQUAL(wan_answers_refuse(&answers, n), n > 10);
    wan_answers_close(&answers);
}

/* What the model knows of one slot: the newest call. */
typedef struct {
    uint64_t number, sequence;
    uint32_t rows, applied, found_length;
} known;

static void check(const wan_answers *answers, known (*model)[SLOTS], const uint8_t *refused)
{
    uint32_t count = 0, callers = 0;
    wan_buffer found = {0};
    for (uint64_t c = 0; c < CALLERS; c++) {
        uint32_t of_caller = 0;
        EXPECT_EQUAL(wan_answers_refuse(answers, CALLER(c)), refused[c]);
        for (uint16_t s = 0; s < SLOTS; s++) {
            const known *wanted = &model[c][s];
            const wan_first_answer *kept = wan_answers_find(answers, change(CALLER(c), s, 1, 0).call);
            EXPECT_EQUAL(kept != NULL, wanted->number != 0);
            if (!kept || !wanted->number) continue;
            of_caller++;
            EXPECT(kept->call.number == wanted->number && kept->sequence == wanted->sequence);
            EXPECT(kept->rows == wanted->rows && kept->applied == wanted->applied);
            EXPECT_EQUAL(kept->found_length, wanted->found_length);
            for (uint32_t n = 0; n < kept->found_length; n++) EXPECT_EQUAL(kept->found[n], (uint8_t)wanted->number);
        }
        count += of_caller;
        callers += of_caller != 0;
    }
    EXPECT_EQUAL(answers->count, count);
    EXPECT_EQUAL(wan_answers_callers(answers, &found), WAN_OK);
    EXPECT_EQUAL(found.count, callers);
    wan_buffer_close(&found);
}

/* Single changes, rows and forgotten callers in random order. Now and then a snapshot goes to another member, which
 * goes on with it. */
static void the_memory_is_the_newest_call_of_each_slot(void)
{
    for (uint64_t seed = 1; seed <= 60 && !expectations_failed; seed++) {
        random_source source = {.state = seed};
        static known model[CALLERS][SLOTS];
        uint8_t refused[CALLERS] = {0}, value[64];
        wan_answers answers = {0};
        memset(model, 0, sizeof model);
        for (uint64_t step = 1; step <= 1500 && !expectations_failed; step++) {
            const uint32_t what = random_below(&source, 200), c = random_below(&source, CALLERS);
            known *slot = &model[c][random_below(&source, SLOTS)];
            EXPECT_EQUAL(wan_answers_make_room(&answers), WAN_OK);
            if (what == 0) {
                wan_answers_forget(&answers, CALLER(c));
                refused[c] = 1;
                memset(model[c], 0, sizeof model[c]);
            } else if (what == 1) {
                wan_answers other = {0};
                wan_first_answer old = change(99, 1, 1, 1);
                add(&other, &old); /* It goes: the snapshot has all that is remembered. */
                wan_buffer packed = {0};
                uint64_t largest = 0;
                EXPECT_EQUAL(wan_answers_pack(&answers, &packed, &largest), WAN_OK);
                EXPECT_EQUAL(wan_answers_unpack(&other, (const wan_answer_item *)(packed.bytes + packed.start),
                                                packed.count ? answers.count + answers.refused_count + 1 : 0),
                             WAN_OK);
                wan_buffer_close(&packed);
                EXPECT_EQUAL(other.found_bytes, answers.found_bytes);
                wan_answers_close(&answers);
                answers = other;
            } else if (!refused[c]) { /* A primary takes nothing of a refused caller. */
                wan_first_answer fresh = change(CALLER(c), (uint16_t)(slot - model[c]), slot->number, step);
                if (slot->rows && random_below(&source, 3)) {
                    fresh.rows = slot->rows += 1 + random_below(&source, 2);
                    slot->applied++;
                } else {
                    fresh.call.number = slot->number += 1 + random_below(&source, 3);
                    slot->rows = fresh.rows = random_below(&source, 3) ? 0 : 1 + random_below(&source, 4);
                    slot->applied = 1;
                    slot->found_length = fresh.rows ? 0 : random_below(&source, sizeof value);
                    fresh.found_length = slot->found_length, fresh.has_found = !fresh.rows;
                    memset(value, (int)slot->number, sizeof value);
                    fresh.found = value;
                }
                slot->sequence = step;
                wan_answers_add(&answers, &fresh);
            }
            if (what < 20) check(&answers, model, refused);
        }
        check(&answers, model, refused);
        wan_answers_close(&answers);
        if (expectations_failed) printf("    seed %" PRIu64 "\n", seed);
    }
}

static void a_caller_that_is_forgotten_gives_its_memory_back(void)
{
    wan_answers answers = {0};
    for (uint32_t n = 0; n < 5000; n++) {
        wan_first_answer fresh = change(n < 10 ? 2 : 3, (uint16_t)n, 1, n + 1);
        add(&answers, &fresh);
    }
    EXPECT_EQUAL(wan_answers_make_room(&answers), WAN_OK);
    wan_answers_forget(&answers, 3);
    EXPECT(answers.count == 10 && answers.capacity <= 128);
    for (uint16_t n = 0; n < 10; n++) EXPECT(wan_answers_find(&answers, change(2, n, 1, 0).call) != NULL);
    wan_answers_close(&answers);
}

static void slots_are_as_many_as_calls_were_under_way_at_once(void)
{
    wan_slots slots;
    wan_slots_init(&slots, 9);
    wan_call_identity calls[5], first;
    EXPECT_EQUAL(wan_slots_take(&slots, &first), WAN_OK);
    EXPECT(first.caller == 9 && first.slot == 0 && first.number == 1);
    wan_slots_give(&slots, first);
    for (uint64_t round = 2; round <= 1000; round++) {
        for (uint32_t n = 0; n < 5; n++) {
            EXPECT_EQUAL(wan_slots_take(&slots, &calls[n]), WAN_OK);
            for (uint32_t k = 0; k < n; k++) EXPECT(calls[k].slot != calls[n].slot);
        }
        for (uint32_t n = 0; n < 5; n++) wan_slots_give(&slots, calls[(n + round) % 5]);
    }
    EXPECT_EQUAL(slots.count, 5);
    uint64_t made = 0;
    for (uint32_t n = 0; n < 5; n++) made += slots.slots[n].number;
    EXPECT_EQUAL(made, 1 + 999 * 5);
    EXPECT_EQUAL(wan_slots_rename(&slots, 8, 10), 9); /* Somebody else has done it already. */
    EXPECT_EQUAL(wan_slots_rename(&slots, 9, 10), 10);
    EXPECT_EQUAL(wan_slots_take(&slots, &first), WAN_OK);
    EXPECT(first.caller == 10 && first.number > 1);
    wan_slots_close(&slots);
}

static void more_calls_at_once_than_there_are_slots_are_refused(void)
{
    wan_slots slots;
    wan_slots_init(&slots, 9);
    wan_call_identity call = {0}, none = {0};
    for (uint32_t n = 0; n < WAN_SLOTS_MAX; n++) EXPECT_EQUAL(wan_slots_take(&slots, &call), WAN_OK);
    EXPECT_EQUAL(call.slot, WAN_SLOTS_MAX - 1);
    EXPECT_EQUAL(wan_slots_take(&slots, &none), WAN_FULL);
    EXPECT(strstr(wan_detail, "65536 calls") != NULL);
    wan_slots_give(&slots, call);
    EXPECT_EQUAL(wan_slots_take(&slots, &none), WAN_OK);
    EXPECT(none.slot == call.slot && none.number == 2);
    wan_slots_close(&slots);
}

const test_case answer_tests[] = {
    {"a call is remembered with all of its answer", a_call_is_remembered_with_all_of_its_answer},
    {"a later call takes the place of the one before in its slot",
     a_later_call_takes_the_place_of_the_one_before_in_its_slot},
    {"the rows of a call have one answer together", the_rows_of_a_call_have_one_answer_together},
    {"found values are bounded, and the oldest are lost", found_values_are_bounded_and_the_oldest_are_lost},
    {"of the refused callers the oldest fall out", of_the_refused_callers_the_oldest_fall_out},
    {"the memory is the newest call of each slot", the_memory_is_the_newest_call_of_each_slot},
    {"a caller that is forgotten gives its memory back", a_caller_that_is_forgotten_gives_its_memory_back},
    {"slots are as many as calls were under way at once", slots_are_as_many_as_calls_were_under_way_at_once},
    {"more calls at once than there are slots are refused", more_calls_at_once_than_there_are_slots_are_refused},
    {0},
};
