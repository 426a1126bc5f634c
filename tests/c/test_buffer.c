/* Owns the tests of the buffer that grows: as a pile of items, and as a queue of bytes. */
#include "base/wan_buffer.h"
#include "harness.h"

static void items_lie_where_they_were_put_however_it_grows(void)
{
    wan_buffer buffer = {0};
    for (uint64_t n = 0; n < 50000; n++) EXPECT_EQUAL(wan_buffer_add(&buffer, &n, sizeof n), WAN_OK);
    EXPECT(buffer.count == 50000 && buffer.used == 400000 && buffer.start == 0 && buffer.capacity < 2 * buffer.used);
    int same = 1;
    for (uint64_t n = 0; n < 50000; n++) same &= ((const uint64_t *)buffer.bytes)[n] == n;
    EXPECT(same);
    uint64_t capacity = buffer.capacity;
    wan_buffer_empty(&buffer);
    EXPECT(buffer.used == 0 && buffer.count == 0 && buffer.capacity == capacity);
    wan_buffer_close(&buffer);
    EXPECT(buffer.bytes == NULL && buffer.capacity == 0);
}

static void what_is_taken_from_the_front_makes_room_behind(void)
{
    wan_buffer buffer = {0};
    random_source source = {.state = 5};
    uint64_t put = 0, taken = 0, most = 0;
    for (int n = 0; n < 20000; n++) {
        uint64_t length = 8 * random_below(&source, 400);
        EXPECT_EQUAL(wan_buffer_make_room(&buffer, length, 1 << 20), WAN_OK);
        for (uint64_t k = 0; k < length; k += 8, put++) memcpy(buffer.bytes + buffer.used + k, &put, 8);
        buffer.used += length;
        while (buffer.start < buffer.used && (buffer.used - buffer.start > 100000 || random_below(&source, 300))) {
            uint64_t number;
            memcpy(&number, buffer.bytes + buffer.start, 8);
            if (number != taken++) {
                EXPECT(0);
                break;
            }
            buffer.start += 8;
        }
        if (buffer.capacity > most) most = buffer.capacity;
    }
    /* It goes round in the memory that it needed once. */
    EXPECT(put > 1000000 && most <= 1 << 18);
    EXPECT_EQUAL((uintptr_t)buffer.bytes % 16, 0);
    wan_buffer_close(&buffer);
}

static void more_than_the_limit_is_refused_and_changes_nothing(void)
{
    wan_buffer buffer = {0};
    EXPECT_EQUAL(wan_buffer_make_room(&buffer, 1000, 1000), WAN_OK);
    buffer.used = buffer.capacity;
    uint64_t capacity = buffer.capacity;
    EXPECT_EQUAL(wan_buffer_make_room(&buffer, 1, capacity), WAN_TOO_LARGE);
    EXPECT(buffer.capacity == capacity && buffer.used == capacity);
    EXPECT_EQUAL(wan_buffer_make_room(&buffer, UINT64_MAX, 1ull << 40), WAN_TOO_LARGE);
    buffer.start = 8;
    EXPECT_EQUAL(wan_buffer_make_room(&buffer, 8, capacity), WAN_OK);
    EXPECT(buffer.start == 0 && buffer.used == capacity - 8 && buffer.capacity == capacity);
    wan_buffer_close(&buffer);
}

static void a_large_one_gives_its_memory_back_once_it_was_used(void)
{
    wan_buffer buffer = {0};
    EXPECT_EQUAL(wan_buffer_make_room(&buffer, 1 << 20, 1 << 30), WAN_OK);
    buffer.used = 1 << 20;
    wan_buffer_trim(&buffer, 1 << 20);
    EXPECT(buffer.used == 0 && buffer.capacity == 1 << 20);
    wan_buffer_trim(&buffer, (1 << 20) - 1);
    EXPECT(buffer.bytes == NULL);
}

static void one_that_rests_keeps_what_it_needed_of_late(void)
{
    wan_buffer buffer = {0};
    wan_buffer_use use = {0};
    EXPECT_EQUAL(wan_buffer_reserve(&buffer, 16 << 20), WAN_OK);
    wan_buffer_rest(&buffer, &use, 5 << 20, 10 * WAN_BUFFER_LATE_US);
    EXPECT(buffer.capacity == 16 << 20);
    wan_buffer_rest(&buffer, &use, 0, 11 * WAN_BUFFER_LATE_US);
    /* It was in use in the period before. */
    EXPECT(buffer.capacity == 16 << 20);
    wan_buffer_rest(&buffer, &use, 0, 12 * WAN_BUFFER_LATE_US);
    EXPECT(buffer.capacity == 0);
}

const test_case buffer_tests[] = {
    {"items lie where they were put however it grows", items_lie_where_they_were_put_however_it_grows},
    {"what is taken from the front makes room behind", what_is_taken_from_the_front_makes_room_behind},
    {"more than the limit is refused and changes nothing", more_than_the_limit_is_refused_and_changes_nothing},
    {"a large one gives its memory back once it was used", a_large_one_gives_its_memory_back_once_it_was_used},
    {"one that rests keeps what it needed of late", one_that_rests_keeps_what_it_needed_of_late},
    {0},
};
