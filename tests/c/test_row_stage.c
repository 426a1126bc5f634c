/* Owns the tests of row stages: the rows of tasks come back in their order, from memory and from files, within the
 * limit that all tasks share. */
#include "harness.h"
#include "store/wan_row_stage.h"

static uint64_t files, unmapped;
static int disk_is_full;

static wan_status map(const wan_env *env, const char *directory, uint64_t bytes, uint8_t **base)
{
    if (disk_is_full) return WAN_FAIL(WAN_FULL, "no room in %s", directory);
    files++;
    *base = malloc(bytes);
    return WAN_OK;
}

static void unmap(const wan_env *env, uint8_t *base, uint64_t bytes)
{
    unmapped++;
    free(base);
}

static const wan_env env = {.map_overflow = map, .unmap = unmap};

/* Writes a run of records of random sizes, whose stamps count up from *number. */
static uint64_t write_run(uint8_t *to, uint64_t room, uint64_t *number, random_source *source)
{
    static uint8_t value[70000];
    uint64_t used = 0;
    for (;;) {
        wan_record head = {.key_length = 8,
                           .value_length =
                               (uint32_t)random_below(source, random_below(source, 50) ? 300 : sizeof value),
                           .stamp = *number};
        const uint64_t length = wan_record_size(head.key_length, head.value_length, 0, 0);
        if (used + length > room) return used;
        wan_record_write(to + used, length, head, (const uint8_t *)number, value, NULL, NULL);
        used += length;
        ++*number;
    }
}

/* Whether all rows come out in order, from *number on. */
static int read_all(wan_row_stage *stage, uint64_t *number, random_source *source)
{
    const wan_record *records[100];
    uint32_t count;
    while ((count = wan_row_stage_peek(stage, 1 + (uint32_t)random_below(source, 100), records))) {
        /* Rows that are not dropped come again. */
        const uint32_t taken = (uint32_t)random_below(source, count + 1);
        for (uint32_t n = 0; n < count; n++)
            if (records[n]->stamp != *number + n || memcmp(wan_record_key(records[n]), &records[n]->stamp, 8)) return 0;
        for (uint32_t n = 0; n < taken; n++) wan_row_stage_drop(stage);
        *number += taken;
    }
    return 1;
}

static void rows_come_back_in_their_order_from_memory_and_files(void)
{
    wan_row_stage_pool pool;
    wan_row_stage stages[2];
    random_source source = {.state = 9};
    uint8_t *run = malloc(1 << 20);
    files = unmapped = 0;
    wan_row_stage_pool_init(&pool, &env, 4 * WAN_ROW_STAGE_BLOCK_BYTES, NULL);
    for (int n = 0; n < 2; n++) {
        uint64_t put[2] = {0}, got[2] = {0};
        for (int k = 0; k < 2; k++) EXPECT_EQUAL(wan_row_stage_open(&stages[k], &pool, "somewhere"), WAN_OK);
        for (int round = 0; round < 60; round++) {
            const int k = (int)random_below(&source, 2);
            const uint64_t bytes = write_run(run, 100000 + random_below(&source, 900000), &put[k], &source);
            EXPECT_EQUAL(wan_row_stage_add(&stages[k], run, bytes), WAN_OK);
            EXPECT(pool.memory <= pool.memory_limit);
        }
        EXPECT(files > 0);
        for (int k = 0; k < 2; k++)
            EXPECT(read_all(&stages[k], &got[k], &source) && got[k] == put[k] && put[k] > 10000);
        EXPECT(pool.memory == 0 && pool.kept_count > 0 && files == unmapped);
        for (int k = 0; k < 2; k++) wan_row_stage_close(&stages[k]);
        EXPECT(pool.kept_count == 0 && pool.stages == 0);
    }
    free(run);
}

static void a_record_larger_than_a_block_has_one_of_its_own(void)
{
    wan_row_stage_pool pool;
    wan_row_stage stage;
    const wan_record *record;
    const uint64_t length = wan_record_size(0, 2 * WAN_ROW_STAGE_BLOCK_BYTES, 0, 0);
    uint8_t *value = calloc(1, 2 * WAN_ROW_STAGE_BLOCK_BYTES), *run = malloc(length);
    wan_record head = {.value_length = 2 * WAN_ROW_STAGE_BLOCK_BYTES};
    wan_record_write(run, length, head, NULL, value, NULL, NULL);
    wan_row_stage_pool_init(&pool, &env, 3 * WAN_ROW_STAGE_BLOCK_BYTES, NULL);
    EXPECT_EQUAL(wan_row_stage_open(&stage, &pool, NULL), WAN_OK);
    EXPECT_EQUAL(wan_row_stage_add(&stage, run, length), WAN_OK);
    EXPECT(wan_row_stage_peek(&stage, 1, &record) == 1 && memcmp(record, run, length) == 0);
    /* There is neither memory nor a directory. */
    EXPECT_EQUAL(wan_row_stage_add(&stage, run, length), WAN_FULL);
    wan_row_stage_drop(&stage);
    EXPECT(pool.memory == 0 && wan_row_stage_peek(&stage, 1, &record) == 0);
    wan_row_stage_close(&stage);
    free(value);
    free(run);
}

static void a_full_disk_is_told_and_nothing_is_lost_of_the_memory(void)
{
    wan_row_stage_pool pool;
    wan_row_stage stage;
    random_source source = {.state = 3};
    uint64_t put = 0;
    uint8_t *run = malloc(1 << 20);
    wan_status status = WAN_OK;
    disk_is_full = 1;
    wan_row_stage_pool_init(&pool, &env, WAN_ROW_STAGE_BLOCK_BYTES, NULL);
    EXPECT_EQUAL(wan_row_stage_open(&stage, &pool, "somewhere"), WAN_OK);
    for (int n = 0; n < 5 && status == WAN_OK; n++)
        status = wan_row_stage_add(&stage, run, write_run(run, 1 << 20, &put, &source));
    EXPECT_EQUAL(status, WAN_FULL);
    wan_row_stage_close(&stage);
    EXPECT(pool.memory == 0 && pool.kept_count == 0);
    disk_is_full = 0;
    free(run);
}

static void a_member_with_little_memory_stages_rows_in_files_and_keeps_no_block(void)
{
    wan_limit limit;
    wan_row_stage_pool pool;
    wan_row_stage first, stage, nowhere;
    static uint8_t run[WAN_ROW_STAGE_BLOCK_BYTES / 2];
    random_source source = {.state = 1};
    uint64_t number = 1;
    wan_limit_init(&limit, "one", 100 << 20, 90 << 20, 80 << 20);
    wan_row_stage_pool_init(&pool, &env, 64 * WAN_ROW_STAGE_BLOCK_BYTES, &limit);
    EXPECT_EQUAL(wan_row_stage_open(&first, &pool, "there"), WAN_OK);
    EXPECT_EQUAL(wan_row_stage_open(&stage, &pool, "there"), WAN_OK);
    EXPECT_EQUAL(wan_row_stage_open(&nowhere, &pool, NULL), WAN_OK);
    const uint64_t bytes = write_run(run, sizeof run, &number, &source);
    files = unmapped = 0;
    EXPECT_EQUAL(wan_row_stage_add(&first, run, bytes), WAN_OK);
    EXPECT_EQUAL(files, 0);
    EXPECT_EQUAL(limit.counted, WAN_ROW_STAGE_BLOCK_BYTES);
    wan_limit_note(&limit, 50 << 20, 0, WAN_NO_LIMIT);
    EXPECT(!wan_limit_is_short(&limit));
    EXPECT_EQUAL(wan_row_stage_add(&stage, run, bytes), WAN_OK);
    EXPECT_EQUAL(files, 1);
    EXPECT_EQUAL(limit.counted, WAN_ROW_STAGE_BLOCK_BYTES);
    EXPECT_EQUAL(wan_row_stage_add(&nowhere, run, bytes), WAN_OK); /* Without files there is only memory. */
    EXPECT_EQUAL(limit.counted, 2 * WAN_ROW_STAGE_BLOCK_BYTES);
    wan_row_stage_close(&first);
    EXPECT_EQUAL(pool.kept_count, 0);
    EXPECT_EQUAL(limit.counted, WAN_ROW_STAGE_BLOCK_BYTES);
    wan_limit_note(&limit, 0, 0, WAN_NO_LIMIT);
    wan_row_stage_close(&nowhere);
    EXPECT_EQUAL(pool.kept_count, 1);
    EXPECT_EQUAL(limit.counted, WAN_ROW_STAGE_BLOCK_BYTES);
    number = 1;
    EXPECT(read_all(&stage, &number, &source) && number > 1);
    wan_row_stage_close(&stage); /* The last one: what was kept goes too. */
    EXPECT_EQUAL(limit.counted, 0);
    EXPECT_EQUAL(unmapped, files);
}

const test_case stage_tests[] = {
    {"rows come back in their order from memory and files", rows_come_back_in_their_order_from_memory_and_files},
    {"a record larger than a block has one of its own", a_record_larger_than_a_block_has_one_of_its_own},
    {"a full disk is told and nothing is lost of the memory", a_full_disk_is_told_and_nothing_is_lost_of_the_memory},
    {"a member with little memory stages rows in files and keeps no block",
     a_member_with_little_memory_stages_rows_in_files_and_keeps_no_block},
    {0},
};
