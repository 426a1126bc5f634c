/* Owns the tests of a table's memory: pieces of all sizes, arrays, and what goes back to the system. */
#include "harness.h"
#include "region/wan_slab.h"

enum { HELD = 4000 };
typedef struct {
    uint8_t *at;
    uint64_t bytes;
    uint8_t fill;
    int is_array;
} held_piece;

static wan_slab slab;

static int is_filled(const held_piece *piece)
{
    for (uint64_t n = 0; n < piece->bytes; n++)
        if (piece->at[n] != piece->fill) return 0;
    return 1;
}

static void give(held_piece *piece)
{
    EXPECT(is_filled(piece));
    if (piece->is_array) wan_slab_give_array(&slab, piece->at, piece->bytes);
    else wan_slab_give(&slab, piece->at, (uint32_t)piece->bytes);
    piece->at = NULL;
}

static void what_is_taken_is_nobody_elses_until_it_is_given_back(void)
{
    static held_piece held[HELD];
    for (uint64_t seed = 1; seed <= 4; seed++) {
        memset(held, 0, sizeof held);
        EXPECT_EQUAL(wan_slab_init(&slab), WAN_OK);
        random_source source = {.state = seed};
        int before = expectations_failed;
        for (int step = 0; step < 60000; step++) {
            held_piece *piece = &held[random_below(&source, HELD)];
            if (piece->at) {
                give(piece);
                continue;
            }
            piece->is_array = !random_below(&source, 50);
            piece->fill = (uint8_t)step;
            if (piece->is_array) {
                piece->bytes = (uint64_t)64 << random_below(&source, 12);
                piece->at = wan_slab_take_array(&slab, random_below(&source, 20), piece->bytes);
                EXPECT(piece->at && ((uintptr_t)piece->at & 63) == 0);
                held_piece zeros = {.at = piece->at, .bytes = piece->bytes};
                EXPECT(is_filled(&zeros));
            } else {
                piece->bytes = 33 + random_below(&source, WAN_SLAB_SMALL_BYTES_MAX - 32);
                piece->at = wan_slab_take(&slab, random_below(&source, 20), (uint32_t)piece->bytes);
                EXPECT(piece->at && ((uintptr_t)piece->at & 15) == 0);
            }
            memset(piece->at, piece->fill, piece->bytes);
        }
        for (int n = 0; n < HELD; n++)
            if (held[n].at) give(&held[n]);
        wan_slab_drop_spare(&slab);
        EXPECT_EQUAL(wan_slab_bytes(&slab), 0);
        if (expectations_failed != before) printf("    seed %" PRIu64 "\n", seed);
        wan_slab_close(&slab);
    }
}

static void arrays_of_any_size_hold_zeros_and_their_memory_is_used_again(void)
{
    EXPECT_EQUAL(wan_slab_init(&slab), WAN_OK);
    for (int round = 0; round < 3; round++) {
        for (uint64_t bytes = 64; bytes <= 16u << 20; bytes *= 2) {
            uint8_t *one = wan_slab_take_array(&slab, 0, bytes), *other = wan_slab_take_array(&slab, 1, bytes);
            EXPECT(one && other && one[0] == 0 && one[bytes - 1] == 0 && other[bytes / 2] == 0);
            memset(one, 7, bytes);
            memset(other, 9, bytes);
            EXPECT(one[bytes - 1] == 7);
            wan_slab_give_array(&slab, one, bytes);
            wan_slab_give_array(&slab, other, bytes);
        }
        EXPECT(wan_slab_bytes(&slab) <= 4u << 20);
    }
    wan_slab_drop_spare(&slab);
    EXPECT_EQUAL(wan_slab_bytes(&slab), 0);
    wan_slab_close(&slab);
}

static void entries_cost_their_bytes_and_little_more(void)
{
    EXPECT_EQUAL(wan_slab_init(&slab), WAN_OK);
    enum { COUNT = 100000, BYTES = 144 };
    for (uint32_t n = 0; n < COUNT; n++) EXPECT(wan_slab_take(&slab, n, BYTES) != NULL);
    EXPECT(wan_slab_bytes(&slab) < (uint64_t)COUNT * BYTES * 12 / 10);
    wan_slab_close(&slab); /* All of it is still in use. */
}

static void what_was_given_back_can_still_be_read(void)
{
    EXPECT_EQUAL(wan_slab_init(&slab), WAN_OK);
    volatile uint64_t *arrays[3];
    const uint64_t sizes[3] = {2048, 1u << 20, 8u << 20};
    for (int n = 0; n < 3; n++) {
        arrays[n] = wan_slab_take_array(&slab, 0, sizes[n]);
        EXPECT(arrays[n] != NULL);
        arrays[n][sizes[n] / 8 - 1] = 5;
    }
    for (int n = 0; n < 3; n++) wan_slab_give_array(&slab, (void *)arrays[n], sizes[n]);
    wan_slab_drop_spare(&slab);
    EXPECT_EQUAL(wan_slab_bytes(&slab), 0);
    for (int n = 0; n < 3; n++) (void)arrays[n][sizes[n] / 8 - 1];
    wan_slab_close(&slab);
}

const test_case slab_tests[] = {
    {"what is taken is nobody else's until it is given back", what_is_taken_is_nobody_elses_until_it_is_given_back},
    {"arrays of any size hold zeros and their memory is used again",
     arrays_of_any_size_hold_zeros_and_their_memory_is_used_again},
    {"entries cost their bytes and little more", entries_cost_their_bytes_and_little_more},
    {"what was given back can still be read", what_was_given_back_can_still_be_read},
    {0},
};
