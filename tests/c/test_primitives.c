/* Runs every C test, or those whose promise contains the first argument, and owns the tests of formats and arithmetic:
 * checksum, hash, clock, record, frame. Part of the format are the golden values here: change them and peers disagree. */
#include <time.h>

#include "harness.h"
#include "base/wan_clock.h"
#include "base/wan_crc32c.h"
#include "record/wan_frame.h"

static uint8_t numbers[70000] __attribute__((aligned(8)));

static void fill_numbers(uint64_t seed)
{
    random_source source = {.state = seed};
    for (size_t n = 0; n < sizeof numbers; n++) numbers[n] = (uint8_t)random_next(&source);
}

static void the_checksum_gives_the_published_vectors(void)
{
    uint8_t bytes[32];
    EXPECT_EQUAL(wan_crc32c(0, "123456789", 9), 0xe3069283);
    EXPECT_EQUAL(wan_crc32c(0, NULL, 0), 0);
    memset(bytes, 0, 32);
    EXPECT_EQUAL(wan_crc32c(0, bytes, 32), 0x8a9136aa);     /* RFC 3720, B.4 */
    memset(bytes, 0xff, 32);
    EXPECT_EQUAL(wan_crc32c(0, bytes, 32), 0x62a8ab43);
    for (int n = 0; n < 32; n++) bytes[n] = (uint8_t)n;
    EXPECT_EQUAL(wan_crc32c(0, bytes, 32), 0x46dd794e);
    for (int n = 0; n < 32; n++) bytes[n] = (uint8_t)(31 - n);
    EXPECT_EQUAL(wan_crc32c(0, bytes, 32), 0x113fdb5c);
}

static void the_checksum_instruction_agrees_with_the_tables_at_every_length(void)
{
    fill_numbers(1);
    for (size_t length = 0; length < 200; length++)
        EXPECT_EQUAL(wan_crc32c(7, numbers + length % 8, length), wan_crc32c_portable(7, numbers + length % 8, length));
    for (size_t length = 3060; length < 3090; length++)      /* Around three streams of 1024. */
        EXPECT_EQUAL(wan_crc32c(0, numbers, length), wan_crc32c_portable(0, numbers, length));
    for (size_t length = 60000; length < 60010; length++)
        EXPECT_EQUAL(wan_crc32c(0, numbers + 3, length), wan_crc32c_portable(0, numbers + 3, length));
}

static void a_checksum_can_be_continued_at_any_place(void)
{
    fill_numbers(2);
    uint32_t whole = wan_crc32c(0, numbers, 10000);
    for (size_t cut = 0; cut <= 10000; cut += 619)
        EXPECT_EQUAL(wan_crc32c(wan_crc32c(0, numbers, cut), numbers + cut, 10000 - cut), whole);
}

static void the_hash_of_keys_is_part_of_the_format(void)
{
    static const struct { const char *key; uint8_t form; uint64_t hash; } golden[] = {
        {"", 0, 0x1fb533238b1f2874ull},
        {"k", 0, 0x9fd45185e911adc9ull},
        {"ab", 1, 0x95f82548cf42c7c9ull},
        {"abc", 1, 0x6811c7cb0ba95eb9ull},
        {"user", 1, 0x30454cf491d88b82ull},
        {"order-17", 1, 0xa96490a395f26221ull},
        {"0123456789abcdef", 0, 0xf25f6238d78ca68bull},
        {"0123456789abcdefg", 0, 0x2b8407a8a8cc0d30ull},
        {"a key of more than thirty-two bytes in all", 1, 0x5886f906096bc4d9ull},
    };
    for (size_t n = 0; n < sizeof golden / sizeof *golden; n++)
        EXPECT_EQUAL(wan_key_hash(golden[n].key, strlen(golden[n].key), golden[n].form), golden[n].hash);
}

static void keys_of_different_form_are_different_keys(void)
{
    EXPECT(wan_key_hash("k", 1, WAN_FORM_BYTES) != wan_key_hash("k", 1, WAN_FORM_TEXT));
}

static void the_hash_reads_no_byte_beyond_the_key(void)
{
    for (size_t length = 0; length <= 70; length++) {
        uint8_t *key = malloc(length ? length : 1);      /* AddressSanitizer stands behind the last byte. */
        memset(key, 0x5a, length);
        uint64_t hash = wan_hash(key, length, 0);
        if (length) {
            key[length - 1] ^= 1;
            EXPECT(wan_hash(key, length, 0) != hash);
        }
        free(key);
    }
}

static void buckets_are_below_their_count_and_even(void)
{
    uint32_t filled[113] = {0};
    for (uint64_t n = 0; n < 113000; n++) {
        uint32_t bucket = wan_hash_bucket(wan_key_hash(&n, 8, WAN_FORM_INT), 113);
        EXPECT(bucket < 113);
        filled[bucket]++;
    }
    for (int n = 0; n < 113; n++) EXPECT(filled[n] > 850 && filled[n] < 1150);
    EXPECT_EQUAL(wan_hash_bucket(UINT64_MAX, 1), 0);
    EXPECT_EQUAL(wan_hash_bucket(UINT64_MAX, 65535), 65534);
}

static void the_clock_hands_out_no_stamp_twice_while_time_stands_or_goes_back(void)
{
    wan_clock clock = {0};
    EXPECT_EQUAL(wan_clock_take(&clock, 1000, 1), 1000ull << 16);
    EXPECT_EQUAL(wan_clock_take(&clock, 1000, 5), (1000ull << 16) + 1);
    EXPECT_EQUAL(wan_clock_take(&clock, 999, 1), (1000ull << 16) + 6);
    EXPECT_EQUAL(wan_clock_take(&clock, 1001, 1), 1001ull << 16);
}

static void a_stamp_that_was_seen_is_below_every_later_one(void)
{
    wan_clock clock = {0};
    wan_clock_see(&clock, (5000ull << 16) + 9);
    wan_clock_see(&clock, 7);
    EXPECT_EQUAL(wan_clock_take(&clock, 1, 1), (5000ull << 16) + 10);
}

static void a_wall_clock_that_jumps_ahead_is_held_and_followed_when_it_is_back_or_another_site_agrees(void)
{
    wan_clock clock = {.set_ms = 9000000, .set_boot_ms = 5000};
    EXPECT_EQUAL(wan_clock_now_ms(&clock), 9000000);
    clock.set_ms = 9000000 + WAN_CLOCK_TRUST_MS;
    EXPECT_EQUAL(wan_clock_now_ms(&clock), 9000000 + WAN_CLOCK_TRUST_MS);
    clock.set_ms += 1;
    EXPECT_EQUAL(wan_clock_now_ms(&clock), 9000000);
    clock.set_boot_ms += 250;
    EXPECT_EQUAL(wan_clock_now_ms(&clock), 9000001 + WAN_CLOCK_TRUST_MS);     /* The time has come up to it. */
    clock.set_ms = 12600000;
    EXPECT_EQUAL(wan_clock_now_ms(&clock), 9000250);
    clock.set_ms = 8000000;
    EXPECT_EQUAL(wan_clock_now_ms(&clock), 8000000);
    clock.set_ms = 12600000;
    EXPECT_EQUAL(wan_clock_now_ms(&clock), 9000250);
    wan_clock_hear(&clock, 9000250ull << 16);
    EXPECT_EQUAL(wan_clock_now_ms(&clock), 9000250);
    wan_clock_hear(&clock, 12599000ull << 16);
    EXPECT_EQUAL(wan_clock_now_ms(&clock), 12600000);
}

static void a_full_counter_goes_on_in_the_next_millisecond(void)
{
    wan_clock clock = {0};
    wan_clock_take(&clock, 10, 65536);
    EXPECT_EQUAL(wan_stamp_ms(wan_clock_take(&clock, 10, 1)), 11);
}

static uint8_t record_bytes[512] __attribute__((aligned(8)));

static uint64_t good_record(void)
{
    record_plan plan = {.operation = WAN_UPDATE, .key = "order-17", .value = "value", .value_length = 5, .stamp = 99};
    return write_plan(record_bytes, &plan);
}

static void a_well_formed_record_passes_with_bytes_behind_it_or_none(void)
{
    uint64_t length = good_record();
    EXPECT_EQUAL(wan_record_check(record_bytes, length), WAN_OK);
    EXPECT_EQUAL(wan_record_check(record_bytes, sizeof record_bytes), WAN_OK);
}

static void a_record_that_is_cut_anywhere_is_refused(void)
{
    uint64_t length = good_record();
    for (uint64_t cut = 0; cut < length; cut++) EXPECT_EQUAL(wan_record_check(record_bytes, cut), WAN_CORRUPT);
}

static void a_record_whose_sizes_contradict_each_other_is_refused(void)
{
    wan_record *record = (wan_record *)record_bytes;
    good_record(); record->key_length += 100;
    EXPECT_EQUAL(wan_record_check(record_bytes, sizeof record_bytes), WAN_CORRUPT);
    good_record(); record->value_length = UINT32_MAX;
    EXPECT_EQUAL(wan_record_check(record_bytes, sizeof record_bytes), WAN_CORRUPT);
    good_record(); record->length = 0;
    EXPECT_EQUAL(wan_record_check(record_bytes, sizeof record_bytes), WAN_CORRUPT);
    good_record(); record->length += 8;
    EXPECT_EQUAL(wan_record_check(record_bytes, sizeof record_bytes), WAN_CORRUPT);
    good_record(); record->recipients_count = 255;
    EXPECT_EQUAL(wan_record_check(record_bytes, sizeof record_bytes), WAN_CORRUPT);
}

static void a_record_of_unknown_operation_or_form_is_refused(void)
{
    wan_record *record = (wan_record *)record_bytes;
    good_record(); record->operation = WAN_OPERATION_COUNT;
    EXPECT_EQUAL(wan_record_check(record_bytes, sizeof record_bytes), WAN_CORRUPT);
    good_record(); record->key_form = WAN_FORM_COUNT;
    EXPECT_EQUAL(wan_record_check(record_bytes, sizeof record_bytes), WAN_CORRUPT);
    good_record(); record->value_form = 255;
    EXPECT_EQUAL(wan_record_check(record_bytes, sizeof record_bytes), WAN_CORRUPT);
    good_record(); record->callback_form = WAN_FORM_COUNT;
    EXPECT_EQUAL(wan_record_check(record_bytes, sizeof record_bytes), WAN_CORRUPT);
}

static void small_copies_copy_every_length(void)
{
    fill_numbers(3);
    for (size_t length = 0; length < 600; length++) {
        uint8_t *to = malloc(length + 1);
        to[length] = 0xee;
        wan_copy_small(to, numbers, length);
        EXPECT(memcmp(to, numbers, length) == 0 && to[length] == 0xee);
        free(to);
    }
}

static void a_frame_header_is_refused_for_each_field_that_cannot_be(void)
{
    const wan_frame good = {.magic = WAN_FRAME_MAGIC, .type = WAN_FRAME_BATCH, .length = 64, .raw_length = 64};
    wan_frame frame = good;
    EXPECT_EQUAL(wan_frame_check(&frame), WAN_OK);
    memcpy(&frame, "GET / HT", 8);
    EXPECT_EQUAL(wan_frame_check(&frame), WAN_CORRUPT);
    EXPECT(strstr(wan_detail, "GET ") != NULL);     /* Whoever reads the log sees what spoke to us. */
    frame = good; frame.type = 0;
    EXPECT_EQUAL(wan_frame_check(&frame), WAN_CORRUPT);
    frame = good; frame.type = WAN_FRAME_TYPE_COUNT;
    EXPECT_EQUAL(wan_frame_check(&frame), WAN_CORRUPT);
    frame = good; frame.length = frame.raw_length = WAN_FRAME_BYTES_MAX + 1;
    EXPECT_EQUAL(wan_frame_check(&frame), WAN_CORRUPT);
    frame = good; frame.length = 10; frame.flags = WAN_FRAME_LZ4; frame.raw_length = UINT32_MAX;
    EXPECT_EQUAL(wan_frame_check(&frame), WAN_CORRUPT);
    frame = good; frame.raw_length = 65;
    EXPECT_EQUAL(wan_frame_check(&frame), WAN_CORRUPT);
    frame.flags = WAN_FRAME_LZ4;
    EXPECT_EQUAL(wan_frame_check(&frame), WAN_OK);
}

static void a_changed_bit_of_header_or_payload_changes_the_frame_checksum(void)
{
    fill_numbers(4);
    wan_frame frame = {.magic = WAN_FRAME_MAGIC, .type = WAN_FRAME_ACK, .length = 100, .raw_length = 100, .id = 5};
    uint32_t crc = wan_frame_crc(&frame, numbers, 100);
    frame.crc = 12345;      /* The checksum's own field does not count. */
    EXPECT_EQUAL(wan_frame_crc(&frame, numbers, 100), crc);
    for (size_t bit = 0; bit < sizeof frame * 8; bit++) {
        if (bit / 8 >= offsetof(wan_frame, crc) && bit / 8 < offsetof(wan_frame, crc) + 4) continue;
        ((uint8_t *)&frame)[bit / 8] ^= (uint8_t)(1 << bit % 8);
        EXPECT(wan_frame_crc(&frame, numbers, 100) != crc);
        ((uint8_t *)&frame)[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    numbers[57] ^= 4;
    EXPECT(wan_frame_crc(&frame, numbers, 100) != crc);
}

/* A batch of two partitions: three records and one, with a hole between. */
static uint8_t batch[2048] __attribute__((aligned(8)));

static uint64_t good_batch(void)
{
    static const uint64_t sequences[4] = {11, 12, 14, 5};
    memset(batch, 0, sizeof batch);
    wan_batch_head *head = (wan_batch_head *)batch;
    wan_section *section = (wan_section *)(head + 1);
    head->sections = 2;
    uint8_t *at = (uint8_t *)(section + 2);
    for (int n = 0; n < 4; n++) {
        record_plan plan = {.operation = WAN_CREATE, .key = "key", .value = "four", .value_length = 4, .stamp = 1};
        uint64_t length = write_plan(at, &plan);
        ((wan_record *)at)->sequence = sequences[n];
        section[n == 3].bytes += length;
        section[n == 3].count++;
        at += length;
    }
    section[0].partition = 0; section[0].first = 11; section[0].through = 14; section[0].settled = 10;
    section[1].partition = 1; section[1].first = 5; section[1].through = 6; section[1].settled = 0;
    return (uint64_t)(at - batch);
}

static void a_well_formed_batch_passes(void)
{
    EXPECT_EQUAL(wan_batch_check(batch, good_batch(), 4), WAN_OK);
}

static void a_batch_is_refused_for_each_lie_it_tells(void)
{
    wan_batch_head *head = (wan_batch_head *)batch;
    wan_section *section = (wan_section *)(head + 1);
    wan_record *record = (wan_record *)(section + 2);
    uint64_t length = good_batch();
    EXPECT_EQUAL(wan_batch_check(batch, length, 5), WAN_CORRUPT);
    EXPECT_EQUAL(wan_batch_check(batch, length + 8, 4), WAN_CORRUPT);
    for (uint64_t cut = 0; cut < length; cut++) EXPECT_EQUAL(wan_batch_check(batch, cut, 4), WAN_CORRUPT);
    good_batch(); head->sections = UINT32_MAX;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch(); section[0].bytes = UINT32_MAX;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch(); section[0].bytes -= 8;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch(); section[0].first = 0;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch(); section[0].through = 10;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch(); section[0].settled = 11;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch(); section[0].count = 5;
    EXPECT_EQUAL(wan_batch_check(batch, length, 6), WAN_CORRUPT);
    good_batch(); section[0].count = 2; section[1].count = 2;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch(); record->sequence = 10;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch(); record->sequence = 12;        /* Twice the same. */
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch(); record->sequence = 15;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
}

static void a_batch_cannot_wrap_its_sequences_around_to_go_back(void)
{
    wan_section *section = (wan_section *)(batch + sizeof(wan_batch_head));
    wan_record *record = (wan_record *)(section + 2);
    uint64_t length = good_batch();
    section[0].through = UINT64_MAX;
    record->sequence = UINT64_MAX;      /* The next two are 12 and 14: behind it. */
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
}

const test_case crc_and_format_tests[] = {
    {"the checksum gives the published vectors", the_checksum_gives_the_published_vectors},
    {"the checksum instruction agrees with the tables at every length", the_checksum_instruction_agrees_with_the_tables_at_every_length},
    {"a checksum can be continued at any place", a_checksum_can_be_continued_at_any_place},
    {"the hash of keys is part of the format", the_hash_of_keys_is_part_of_the_format},
    {"keys of different form are different keys", keys_of_different_form_are_different_keys},
    {"the hash reads no byte beyond the key", the_hash_reads_no_byte_beyond_the_key},
    {"buckets are below their count and even", buckets_are_below_their_count_and_even},
    {"the clock hands out no stamp twice while time stands or goes back", the_clock_hands_out_no_stamp_twice_while_time_stands_or_goes_back},
    {"a stamp that was seen is below every later one", a_stamp_that_was_seen_is_below_every_later_one},
    {"a wall clock that jumps ahead is held and followed when it is back or another site agrees", a_wall_clock_that_jumps_ahead_is_held_and_followed_when_it_is_back_or_another_site_agrees},
    {"a full counter goes on in the next millisecond", a_full_counter_goes_on_in_the_next_millisecond},
    {"a well-formed record passes with bytes behind it or none", a_well_formed_record_passes_with_bytes_behind_it_or_none},
    {"a record that is cut anywhere is refused", a_record_that_is_cut_anywhere_is_refused},
    {"a record whose sizes contradict each other is refused", a_record_whose_sizes_contradict_each_other_is_refused},
    {"a record of unknown operation or form is refused", a_record_of_unknown_operation_or_form_is_refused},
    {"small copies copy every length", small_copies_copy_every_length},
    {"a frame header is refused for each field that cannot be", a_frame_header_is_refused_for_each_field_that_cannot_be},
    {"a changed bit of header or payload changes the frame checksum", a_changed_bit_of_header_or_payload_changes_the_frame_checksum},
    {"a well-formed batch passes", a_well_formed_batch_passes},
    {"a batch is refused for each lie it tells", a_batch_is_refused_for_each_lie_it_tells},
    {"a batch cannot wrap its sequences around to go back", a_batch_cannot_wrap_its_sequences_around_to_go_back},
    {0},
};

int main(int count, char **arguments)
{
    const test_case *all[] = {crc_and_format_tests, form_tests, store_tests, queue_tests, slab_tests, table_tests, log_tests, window_tests, record_set_tests, lock_tests};
    int run = 0, failed = 0;
    clock_t started = clock();
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t part = 0; part < sizeof all / sizeof *all; part++)
        for (const test_case *test = all[part]; test->promise; test++) {
            if (count > 1 && !strstr(test->promise, arguments[1])) continue;
            int before = expectations_failed;
            test->run();
            run++;
            if (expectations_failed != before) { failed++; printf("FAILED: %s\n", test->promise); }
        }
    printf("%d tests, %d failed, %.2f s\n", run, failed, (double)(clock() - started) / CLOCKS_PER_SEC);
    return failed != 0;
}
