/* Runs every C test, or those whose promise contains the first argument. Owns the tests of formats and arithmetic:
 * checksum, hash, clock, record, frame. The golden values here are part of the format: with other values peers
 * disagree. */
#include <time.h>

#include "harness.h"
#include "base/wan_clock.h"
#include "base/wan_crc32c.h"
#include "base/wan_siphash.h"
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
    EXPECT_EQUAL(wan_crc32c(0, bytes, 32), 0x8a9136aa); /* RFC 3720, B.4 */
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
    /* Around the length of three streams of 1024 bytes. */
    for (size_t length = 3060; length < 3090; length++)
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
    static const struct {
        const char *key;
        uint8_t form;
        uint64_t hash;
    } golden[] = {
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
        /* AddressSanitizer stops a read behind the last byte. */
        uint8_t *key = malloc(length ? length : 1);
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

static void a_stamp_that_was_raised_moves_the_clock_only_if_it_is_not_ahead_of_the_time(void)
{
    wan_clock clock = {.set_ms = 9000000};
    const uint64_t limit_ms = 9000000 + WAN_CLOCK_AHEAD_MS;
    wan_clock_see_raised(&clock, (limit_ms + 1) << 16);
    EXPECT_EQUAL(wan_clock_last(&clock), 0);
    wan_clock_see_raised(&clock, limit_ms << 16 | 0xffff);
    EXPECT_EQUAL(wan_clock_last(&clock), limit_ms << 16 | 0xffff);
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
    /* The time that has passed has reached the wall clock. */
    EXPECT_EQUAL(wan_clock_now_ms(&clock), 9000001 + WAN_CLOCK_TRUST_MS);
    clock.set_ms = 12600000;
    EXPECT_EQUAL(wan_clock_now_ms(&clock), 9000250);
    clock.set_ms = 8000000;
    EXPECT_EQUAL(wan_clock_now_ms(&clock), 8000000);
    clock.set_ms = 12600000;
    EXPECT_EQUAL(wan_clock_now_ms(&clock), 9000250);
    wan_clock_receive(&clock, 9000250ull << 16);
    EXPECT_EQUAL(wan_clock_now_ms(&clock), 9000250);
    wan_clock_receive(&clock, 12599000ull << 16);
    EXPECT_EQUAL(wan_clock_now_ms(&clock), 12600000);
}

static void a_stamp_of_another_member_is_ahead_from_five_minutes_on_unless_our_clock_was_held(void)
{
    wan_clock clock = {.set_ms = 9000000, .set_boot_ms = 5000};
    const uint64_t limit_ms = 9000000 + WAN_CLOCK_AHEAD_MS;
    EXPECT_EQUAL(wan_clock_ahead_ms(&clock, limit_ms << 16 | 0xffff), 0);
    EXPECT_EQUAL(wan_clock_ahead_ms(&clock, (limit_ms + 1) << 16), WAN_CLOCK_AHEAD_MS + 1);
    EXPECT(wan_clock_ahead_ms(&clock, UINT64_MAX) > WAN_CLOCK_WRONG_MS);
    EXPECT_EQUAL(wan_clock_last(&clock), 0);
    clock.set_ms = 12600000; /* The clock is held, until a stamp agrees with it. */
    EXPECT_EQUAL(wan_clock_ahead_ms(&clock, 15000000ull << 16), 6000000);
    EXPECT_EQUAL(wan_clock_ahead_ms(&clock, 12601000ull << 16), 0);
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
    good_record();
    record->key_length += 600;
    EXPECT_EQUAL(wan_record_check(record_bytes, sizeof record_bytes), WAN_CORRUPT);
    good_record();
    record->value_length = UINT32_MAX;
    EXPECT_EQUAL(wan_record_check(record_bytes, sizeof record_bytes), WAN_CORRUPT);
    uint64_t length = good_record();
    record->callback_length = 65535;
    EXPECT_EQUAL(wan_record_check(record_bytes, sizeof record_bytes), WAN_CORRUPT);
    good_record();
    record->recipients_count = 255;
    EXPECT_EQUAL(wan_record_check(record_bytes, length), WAN_CORRUPT);
}

static void a_record_of_unknown_operation_or_form_is_refused(void)
{
    wan_record *record = (wan_record *)record_bytes;
    good_record();
    record->operation = WAN_OPERATION_COUNT;
    EXPECT_EQUAL(wan_record_check(record_bytes, sizeof record_bytes), WAN_CORRUPT);
    good_record();
    record->flags = WAN_FLAGS + 1;
    EXPECT_EQUAL(wan_record_check(record_bytes, sizeof record_bytes), WAN_CORRUPT);
    good_record();
    record->key_form = WAN_FORM_COUNT;
    EXPECT_EQUAL(wan_record_check(record_bytes, sizeof record_bytes), WAN_CORRUPT);
    good_record();
    record->value_form = 15;
    EXPECT_EQUAL(wan_record_check(record_bytes, sizeof record_bytes), WAN_CORRUPT);
    good_record();
    record->callback_form = WAN_FORM_COUNT;
    EXPECT_EQUAL(wan_record_check(record_bytes, sizeof record_bytes), WAN_CORRUPT);
}

static void a_record_is_laid_out_as_the_format_says(void)
{
    static const uint8_t wanted[] = "ab"
                                    "value"
                                    "cba"
                                    "\x05\x06"
                                    "\0\0\0"; /* The bytes behind the head. */
    const wan_record head = {.value_length = 5,
                             .key_length = 2,
                             .callback_length = 3,
                             .stamp = 0x1817161514131211,
                             .event_sequence = 0x2827262524232221,
                             .event_member = 0x34333231,
                             .event_thread = 0x44434241,
                             .region = 0x5251,
                             .flags = 3,
                             .recipients_count = 2,
                             .stamp_site = 7,
                             .origin_site = 8,
                             .operation = WAN_DESTROY,
                             .key_form = WAN_FORM_INT,
                             .value_form = WAN_FORM_TEXT,
                             .callback_form = WAN_FORM_USER};
    uint64_t length = wan_record_length(&head);
    EXPECT_EQUAL(length, sizeof head + 16);
    memset(record_bytes, 0xee, sizeof record_bytes);
    wan_record_write(record_bytes, length, head, (const uint8_t *)"ab", (const uint8_t *)"value",
                     (const uint8_t *)"cba", (const uint8_t *)"\x05\x06");
    /* tests/base/test_core_basics.py tests where each field lies. */
    EXPECT(memcmp(record_bytes, &head, sizeof head) == 0);
    EXPECT(memcmp(record_bytes + sizeof head, wanted, 16) == 0);
    EXPECT_EQUAL(record_bytes[length], 0xee);
    EXPECT(wan_record_recipients((const wan_record *)record_bytes)[1] == 6);
}

static void a_record_of_any_sizes_is_laid_out_as_one_plain_loop_would(void)
{
    static uint8_t parts[4][400], to[2048] __attribute__((aligned(8)));
    random_source source = {.state = 11};
    for (int part = 0; part < 4; part++)
        for (int n = 0; n < 400; n++) parts[part][n] = (uint8_t)random_next(&source) | 1;
    for (int n = 0; n < 20000; n++) {
        wan_record head = {.key_length = (uint16_t)random_below(&source, 400),
                           .value_length = random_below(&source, 400),
                           .callback_length = (uint16_t)(random_below(&source, 2) * random_below(&source, 300)),
                           .recipients_count = (uint8_t)random_below(&source, 4)};
        uint64_t length = wan_record_length(&head), at = sizeof head;
        memset(to, 0xee, sizeof to);
        wan_record_write(to, length, head, parts[0], parts[1], parts[2], parts[3]);
        int same = memcmp(to, &head, sizeof head) == 0;
        for (uint32_t k = 0; k < head.key_length; k++) same &= to[at++] == parts[0][k];
        for (uint32_t k = 0; k < head.value_length; k++) same &= to[at++] == parts[1][k];
        for (uint32_t k = 0; k < head.callback_length; k++) same &= to[at++] == parts[2][k];
        for (uint32_t k = 0; k < head.recipients_count; k++) same &= to[at++] == parts[3][k];
        while (at < length) same &= to[at++] == 0;
        EXPECT(same && to[length] == 0xee);
    }
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
    /* A reader of the log sees what the other end sent. */
    EXPECT(strstr(wan_detail, "GET ") != NULL);
    frame = good;
    frame.type = 0;
    EXPECT_EQUAL(wan_frame_check(&frame), WAN_CORRUPT);
    frame = good;
    frame.type = WAN_FRAME_TYPE_COUNT;
    EXPECT_EQUAL(wan_frame_check(&frame), WAN_CORRUPT);
    frame = good;
    frame.length = frame.raw_length = WAN_FRAME_BYTES_MAX + 1;
    EXPECT_EQUAL(wan_frame_check(&frame), WAN_CORRUPT);
    frame = good;
    frame.length = 10;
    frame.flags = WAN_FRAME_LZ4;
    frame.raw_length = UINT32_MAX;
    EXPECT_EQUAL(wan_frame_check(&frame), WAN_CORRUPT);
    frame.raw_length = 10 * WAN_LZ4_RATIO_MAX + 1;
    EXPECT_EQUAL(wan_frame_check(&frame), WAN_CORRUPT);
    frame.raw_length--;
    EXPECT_EQUAL(wan_frame_check(&frame), WAN_OK);
    frame = good;
    frame.raw_length = 65;
    EXPECT_EQUAL(wan_frame_check(&frame), WAN_CORRUPT);
    frame.flags = WAN_FRAME_LZ4;
    EXPECT_EQUAL(wan_frame_check(&frame), WAN_OK);
}

static void a_changed_bit_of_header_or_payload_changes_the_frame_checksum(void)
{
    fill_numbers(4);
    wan_frame frame = {.magic = WAN_FRAME_MAGIC, .type = WAN_FRAME_ACK, .length = 100, .raw_length = 100, .id = 5};
    uint32_t crc = wan_frame_crc(&frame, numbers, 100);
    /* The field of the checksum itself does not count. */
    frame.crc = 12345;
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

/* A batch of two partitions: three records with a hole between them, and one record. */
static uint8_t batch[2048] __attribute__((aligned(8)));

/* The sequences of its first section. */
static uint64_t *batch_sequences;

static uint64_t good_batch(void)
{
    memset(batch, 0, sizeof batch);
    wan_batch_head *head = (wan_batch_head *)batch;
    wan_section *section = (wan_section *)(head + 1);
    head->sections = 2;
    uint8_t *at = (uint8_t *)(section + 2);
    batch_sequences = (uint64_t *)at;
    memcpy(at, (uint64_t[]){11, 12, 14}, 24);
    at += 24;
    section[0].bytes = 24;
    for (int n = 0; n < 4; n++) {
        record_plan plan = {.operation = WAN_CREATE, .key = "key", .value = "four", .value_length = 4, .stamp = 1};
        uint64_t length = write_plan(at, &plan);
        section[n == 3].bytes += length;
        section[n == 3].count++;
        at += length;
    }
    section[0].partition = 0;
    section[0].first = 11;
    section[0].through = 14;
    section[0].acknowledged = 10;
    section[0].duplicates = 2;
    section[1].partition = 1;
    section[1].first = 5;
    section[1].through = 5;
    section[1].acknowledged = 0;
    return (uint64_t)(at - batch);
}

static void a_well_formed_batch_passes(void) { EXPECT_EQUAL(wan_batch_check(batch, good_batch(), 4), WAN_OK); }

static void a_batch_is_refused_for_each_lie_it_tells(void)
{
    wan_batch_head *head = (wan_batch_head *)batch;
    wan_section *section = (wan_section *)(head + 1);
    uint64_t length = good_batch();
    EXPECT_EQUAL(wan_batch_check(batch, length, 5), WAN_CORRUPT);
    EXPECT_EQUAL(wan_batch_check(batch, length + 8, 4), WAN_CORRUPT);
    for (uint64_t cut = 0; cut < length; cut++) EXPECT_EQUAL(wan_batch_check(batch, cut, 4), WAN_CORRUPT);
    good_batch();
    head->sections = UINT32_MAX;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch();
    ((wan_record *)(batch_sequences + 3))->operation = WAN_OPERATION_COUNT;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch();
    section[0].bytes = UINT32_MAX;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch();
    section[0].bytes -= 8;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch();
    section[0].first = 0;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch();
    section[0].through = 10;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch();
    section[0].acknowledged = 11;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch();
    section[0].count = 5;
    EXPECT_EQUAL(wan_batch_check(batch, length, 6), WAN_CORRUPT);
    good_batch();
    section[0].count = 2;
    section[1].count = 2;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch();
    section[1].through = 6; /* Then the run would begin with a sequence. */
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch();
    section[0].duplicates = 4;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch();
    section[0].reserved = 1;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch();
    section[0].through = UINT64_MAX - 1;
    section[0].count = UINT32_MAX;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch();
    batch_sequences[0] = 10;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch();
    batch_sequences[0] = 12; /* The same sequence twice. */
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
    good_batch();
    batch_sequences[2] = 15;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
}

static void a_batch_cannot_wrap_its_sequences_around_to_go_back(void)
{
    wan_section *section = (wan_section *)(batch + sizeof(wan_batch_head));
    uint64_t length = good_batch();
    section[0].through = UINT64_MAX;
    /* The next two are 12 and 14, which are not above it. */
    batch_sequences[0] = UINT64_MAX;
    EXPECT_EQUAL(wan_batch_check(batch, length, 4), WAN_CORRUPT);
}

/* The vectors of its authors: key 00 01 .. 0f, input 00 01 .. */
static void siphash_gives_its_golden_values(void)
{
    uint8_t bytes[64];
    uint64_t key[2];
    for (int n = 0; n < 64; n++) bytes[n] = (uint8_t)n;
    memcpy(key, bytes, 16);
    EXPECT_EQUAL(wan_siphash(key, bytes, 0), 0x726fdb47dd0e0e31u);
    EXPECT_EQUAL(wan_siphash(key, bytes, 7), 0xab0200f58b01d137u);
    EXPECT_EQUAL(wan_siphash(key, bytes, 8), 0x93f5f5799a932462u);
    EXPECT_EQUAL(wan_siphash(key, bytes, 15), 0xa129ca6149be45e5u);
    EXPECT_EQUAL(wan_siphash(key, bytes, 63), 0x958a324ceb064572u);
}

const test_case crc_and_format_tests[] = {
    {"siphash gives its golden values", siphash_gives_its_golden_values},
    {"the checksum gives the published vectors", the_checksum_gives_the_published_vectors},
    {"the checksum instruction agrees with the tables at every length",
     the_checksum_instruction_agrees_with_the_tables_at_every_length},
    {"a checksum can be continued at any place", a_checksum_can_be_continued_at_any_place},
    {"the hash of keys is part of the format", the_hash_of_keys_is_part_of_the_format},
    {"keys of different form are different keys", keys_of_different_form_are_different_keys},
    {"the hash reads no byte beyond the key", the_hash_reads_no_byte_beyond_the_key},
    {"buckets are below their count and even", buckets_are_below_their_count_and_even},
    {"the clock hands out no stamp twice while time stands or goes back",
     the_clock_hands_out_no_stamp_twice_while_time_stands_or_goes_back},
    {"a stamp that was seen is below every later one", a_stamp_that_was_seen_is_below_every_later_one},
    {"a stamp that was raised moves the clock only if it is not ahead of the time",
     a_stamp_that_was_raised_moves_the_clock_only_if_it_is_not_ahead_of_the_time},
    {"a wall clock that jumps ahead is held and followed when it is back or another site agrees",
     a_wall_clock_that_jumps_ahead_is_held_and_followed_when_it_is_back_or_another_site_agrees},
    {"a_stamp_of_another_member_is_ahead_from_five_minutes_on_unless_our_clock_was_held",
     a_stamp_of_another_member_is_ahead_from_five_minutes_on_unless_our_clock_was_held},
    {"a full counter goes on in the next millisecond", a_full_counter_goes_on_in_the_next_millisecond},
    {"a well-formed record passes with bytes behind it or none",
     a_well_formed_record_passes_with_bytes_behind_it_or_none},
    {"a record that is cut anywhere is refused", a_record_that_is_cut_anywhere_is_refused},
    {"a record whose sizes contradict each other is refused", a_record_whose_sizes_contradict_each_other_is_refused},
    {"a record of unknown operation or form is refused", a_record_of_unknown_operation_or_form_is_refused},
    {"a record is laid out as the format says", a_record_is_laid_out_as_the_format_says},
    {"a record of any sizes is laid out as one plain loop would",
     a_record_of_any_sizes_is_laid_out_as_one_plain_loop_would},
    {"small replicas copy every length", small_copies_copy_every_length},
    {"a frame header is refused for each field that cannot be",
     a_frame_header_is_refused_for_each_field_that_cannot_be},
    {"a changed bit of header or payload changes the frame checksum",
     a_changed_bit_of_header_or_payload_changes_the_frame_checksum},
    {"a well-formed batch passes", a_well_formed_batch_passes},
    {"a batch is refused for each lie it tells", a_batch_is_refused_for_each_lie_it_tells},
    {"a batch cannot wrap its sequences around to go back", a_batch_cannot_wrap_its_sequences_around_to_go_back},
    {0},
};

int main(int count, char **arguments)
{
    const test_case *all[] = {crc_and_format_tests, buffer_tests,        pages_tests,  form_tests,  store_tests,
                              queue_tests,          slab_tests,          table_tests,  log_tests,   window_tests,
                              item_set_tests,       lock_tests,          counts_tests, stage_tests, changelog_tests,
                              answer_tests,         notifications_tests, clear_tests,  call_tests,  merge_tests,
                              limit_tests,          sources_tests,       parked_tests};
    int run = 0, failed = 0;
    clock_t started = clock();
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t part = 0; part < sizeof all / sizeof *all; part++)
        for (const test_case *test = all[part]; test->promise; test++) {
            if (count > 1 && !strstr(test->promise, arguments[1])) continue;
            expectations_failed = 0; /* Some tests stop at the first failure, which is one of their own. */
            test->run();
            run++;
            if (expectations_failed) {
                failed++;
                printf("FAILED: %s\n", test->promise);
            }
        }
    printf("%d tests, %d failed, %.2f s\n", run, failed, (double)(clock() - started) / CLOCKS_PER_SEC);
    return failed != 0;
}
