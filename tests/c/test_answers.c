/* Owns the tests of what a bucket remembers of calls, beside a plain model. */
#include "harness.h"
#include "base/wan_clock.h"
#include "copies/wan_answers.h"

enum { MANY = 3 * WAN_ANSWERS_MAX };

static wan_first_answer change(uint32_t thread, uint64_t number, uint64_t sequence)
{
    return (wan_first_answer){.call = {7, thread, number}, .sequence = sequence, .outcome = (uint8_t)(number % 3)};
}

static void a_call_is_remembered_with_all_of_its_answer(void)
{
    wan_answers answers = {0};
    wan_first_answer fresh = change(1, 5, 40);
    fresh.found = (uint8_t *)"value", fresh.found_length = 5, fresh.has_found = 1, fresh.found_form = 3;
    EXPECT(!wan_answers_find(&answers, fresh.call));
    wan_answers_add(&answers, &fresh);
    const wan_first_answer *kept = wan_answers_find(&answers, fresh.call);
    EXPECT(kept && kept->sequence == 40 && kept->outcome == 2 && kept->has_found && kept->found_form == 3);
    EXPECT(kept && kept->found != fresh.found && kept->found_length == 5 && !memcmp(kept->found, "value", 5));
    for (uint32_t n = 0; n < 3; n++) {
        wan_call_identity other = fresh.call;
        if (n == 0) other.member++;
        if (n == 1) other.thread++;
        if (n == 2) other.number++;
        EXPECT(!wan_answers_find(&answers, other));
    }
    EXPECT(wan_answers_cover(&answers, 1));
    wan_answers_close(&answers);
}

static void the_rows_of_a_call_have_one_answer_together(void)
{
    wan_answers answers = {0};
    for (uint32_t row = 0; row < 10; row += row == 3 ? 2 : 1) { /* Row 4 changes nothing. */
        wan_first_answer fresh = change(1, 100, 50 + row);
        fresh.rows = row + 1;
        wan_answers_add(&answers, &fresh);
    }
    EXPECT_EQUAL(answers.count, 1);
    const wan_first_answer *kept = wan_answers_find(&answers, (wan_call_identity){7, 1, 100});
    EXPECT(kept && kept->rows == 10 && kept->applied == 9 && kept->sequence == 59);
    wan_answers_close(&answers);
}

static void what_falls_out_is_not_covered_any_more(void)
{
    wan_answers answers = {0};
    for (uint64_t n = 1; n <= MANY; n++) {
        wan_first_answer fresh = change((uint32_t)(n % 5), n, n);
        wan_answers_add(&answers, &fresh);
        EXPECT(answers.count <= WAN_ANSWERS_MAX);
    }
    for (uint64_t n = 1; n <= MANY; n++) {
        const wan_first_answer *kept = wan_answers_find(&answers, (wan_call_identity){7, (uint32_t)(n % 5), n});
        EXPECT_EQUAL(kept != NULL, n > MANY - WAN_ANSWERS_MAX);
        if (kept) EXPECT_EQUAL(kept->sequence, n);
    }
    const uint64_t now_us = wan_monotonic_us();
    EXPECT(answers.forgotten_us > 0 && answers.forgotten_us <= now_us);
    EXPECT(!wan_answers_cover(&answers, answers.forgotten_us));
    EXPECT(!wan_answers_cover(&answers, answers.forgotten_us + WAN_ANSWERS_MARGIN_US));
    EXPECT(wan_answers_cover(&answers, answers.forgotten_us + WAN_ANSWERS_MARGIN_US + 1));
    wan_answers_forget(&answers, 0);
    EXPECT(answers.count == 0 && wan_answers_cover(&answers, 1));
    wan_answers_close(&answers);
}

static void found_values_are_bounded_and_one_that_is_too_large_is_forgotten(void)
{
    wan_answers answers = {0};
    const uint32_t length = WAN_ANSWERS_BYTES_MAX / 4;
    uint8_t *value = calloc(1, WAN_ANSWERS_BYTES_MAX + 1);
    for (uint64_t n = 1; n <= 9; n++) {
        wan_first_answer fresh = change(1, n, n);
        fresh.found = value, fresh.found_length = length, fresh.has_found = 1;
        wan_answers_add(&answers, &fresh);
        EXPECT(answers.found_bytes <= WAN_ANSWERS_BYTES_MAX);
    }
    EXPECT_EQUAL(answers.count, 4);
    EXPECT(!wan_answers_find(&answers, (wan_call_identity){7, 1, 5}));
    EXPECT(wan_answers_find(&answers, (wan_call_identity){7, 1, 6}) != NULL);
    wan_first_answer large = change(1, 10, 10);
    large.found = value, large.found_length = WAN_ANSWERS_BYTES_MAX + 1, large.has_found = 1;
    wan_answers_add(&answers, &large);
    EXPECT(!wan_answers_find(&answers, large.call));
    EXPECT(answers.found_bytes <= WAN_ANSWERS_BYTES_MAX && !wan_answers_cover(&answers, wan_monotonic_us()));
    free(value);
    wan_answers_close(&answers);
}

/* Calls in random order, singles and rows, are found exactly while the model has them. */
static void the_memory_is_a_queue_of_calls(void)
{
    for (uint64_t seed = 1; seed <= 40 && !expectations_failed; seed++) {
        random_source source = {.state = seed};
        wan_answers answers = {0};
        static uint64_t order[MANY], rows[MANY];
        uint64_t count = 0;
        memset(rows, 0, sizeof rows);
        for (uint32_t step = 0; step < 6000; step++) {
            wan_first_answer fresh = change(1, count, step);
            if (random_below(&source, 3) == 0 && count) {
                const uint64_t old = count - 1 - random_below(&source, count < 50 ? (uint32_t)count : 50);
                if (!rows[old]) continue;
                fresh = change(1, order[old], step);
                fresh.rows = (uint32_t)++rows[old];
            } else if (count < MANY) {
                order[count] = count;
                rows[count] = random_below(&source, 2);
                fresh.rows = (uint32_t)rows[count++];
            } else break;
            wan_answers_add(&answers, &fresh);
            const wan_first_answer *kept = wan_answers_find(&answers, fresh.call);
            EXPECT(kept && kept->sequence == step && kept->rows == fresh.rows);
        }
        for (uint64_t n = 0; n < count; n++) {
            const wan_first_answer *kept = wan_answers_find(&answers, (wan_call_identity){7, 1, n});
            EXPECT_EQUAL(kept != NULL, n + WAN_ANSWERS_MAX >= count);
            if (kept) EXPECT_EQUAL(kept->rows, rows[n]);
        }
        wan_answers_close(&answers);
        if (expectations_failed) printf("    seed %" PRIu64 "\n", seed);
    }
}

static void an_image_brings_the_memory_to_another_member(void)
{
    for (uint64_t count = 0; count <= MANY; count = 2 * count + 1) {
        wan_answers answers = {0}, others = {0};
        for (uint64_t n = 1; n <= count; n++) {
            wan_first_answer fresh = change(2, n, 3 * n);
            if (n % 3 == 0) fresh.rows = (uint32_t)n;
            else fresh.found = (uint8_t *)"a value", fresh.found_length = n % 8, fresh.has_found = 1;
            wan_answers_add(&answers, &fresh);
        }
        wan_first_answer old = change(9, 1, 1);
        wan_answers_add(&others, &old); /* It goes: the image has all that it knew. */
        wan_buffer packed = {0};
        uint64_t largest = 0;
        EXPECT_EQUAL(wan_answers_pack(&answers, &packed, &largest), WAN_OK);
        wan_answers_unpack(&others, (const wan_answer_item *)(packed.bytes + packed.start), answers.count + 1);
        EXPECT_EQUAL(others.count, answers.count);
        EXPECT(!wan_answers_find(&others, old.call));
        EXPECT(!others.forgotten_us == !answers.forgotten_us && others.forgotten_us >= answers.forgotten_us);
        for (uint64_t n = 1; n <= count; n++) {
            const wan_call_identity call = {7, 2, n};
            const wan_first_answer *one = wan_answers_find(&answers, call), *other = wan_answers_find(&others, call);
            EXPECT(!one == !other);
            if (!one || !other) continue;
            EXPECT(one->sequence == other->sequence && one->rows == other->rows && one->applied == other->applied);
            EXPECT(one->outcome == other->outcome && one->has_found == other->has_found);
            EXPECT(one->found_length == other->found_length && other->known_us >= one->known_us);
            EXPECT(!one->found_length || !memcmp(one->found, other->found, one->found_length));
        }
        wan_buffer_close(&packed);
        wan_answers_close(&answers);
        wan_answers_close(&others);
    }
}

const test_case answer_tests[] = {
    {"a call is remembered with all of its answer", a_call_is_remembered_with_all_of_its_answer},
    {"the rows of a call have one answer together", the_rows_of_a_call_have_one_answer_together},
    {"what falls out is not covered any more", what_falls_out_is_not_covered_any_more},
    {"found values are bounded, and one that is too large is forgotten",
     found_values_are_bounded_and_one_that_is_too_large_is_forgotten},
    {"an image brings the memory to another member", an_image_brings_the_memory_to_another_member},
    {"the memory is a queue of calls", the_memory_is_a_queue_of_calls},
    {0},
};
