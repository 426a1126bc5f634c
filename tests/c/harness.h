/* Owns how the C tests are written. A test is a function whose name is its promise. EXPECT says what must hold. A test
 * that fails names itself, the line, and the seed of anything random. */
#ifndef HARNESS_H
#define HARNESS_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/wan_env.h"
#include "base/wan_hash.h"
#include "record/wan_record.h"

typedef struct {
    const char *promise;
    void (*run)(void);
} test_case;

extern const test_case crc_and_format_tests[], buffer_tests[], pages_tests[], form_tests[], store_tests[],
    queue_tests[], merge_tests[], slab_tests[], table_tests[], log_tests[], window_tests[], item_set_tests[],
    lock_tests[], counts_tests[],
    /* Each list ends with {0}. */
    stage_tests[], sources_tests[], parked_tests[], changelog_tests[], answer_tests[], notifications_tests[],
    clear_tests[], call_tests[], limit_tests[];
extern int expectations_failed; /* Counts the failures of the running test alone. */

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            expectations_failed++;                                                                                     \
            printf("    %s:%d: %s\n", __FILE__, __LINE__, #condition);                                                 \
        }                                                                                                              \
    } while (0)
#define EXPECT_EQUAL(got, wanted)                                                                                      \
    do {                                                                                                               \
        uint64_t got_ = (uint64_t)(got), wanted_ = (uint64_t)(wanted);                                                 \
        if (got_ != wanted_) {                                                                                         \
            expectations_failed++;                                                                                     \
            printf("    %s:%d: %s is %" PRIu64 ", not %" PRIu64 "\n", __FILE__, __LINE__, #got, got_, wanted_);        \
        }                                                                                                              \
    } while (0)

/* A small generator of random numbers (splitmix64). A seed repeats a run on every machine. If libFuzzer drives the run,
 * the numbers are libFuzzer's bytes as long as there are any. So libFuzzer learns what a number does, and can change
 * that number. */
typedef struct {
    uint64_t state;
    const uint8_t *bytes;
    size_t left;
} random_source;
static inline uint64_t random_bytes(random_source *source, size_t count)
{
    uint64_t number = 0;
    if (count > source->left) count = source->left;
    if (count) memcpy(&number, source->bytes, count);
    source->bytes += count;
    source->left -= count;
    return number;
}
static inline uint64_t random_next(random_source *source)
{
    if (source->left) return random_bytes(source, 8);
    uint64_t z = source->state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
static inline uint32_t random_below(random_source *source, uint32_t limit)
{
    if (source->left) return (uint32_t)random_bytes(source, limit <= 256 ? 1 : limit <= 65536 ? 2 : 4) % limit;
    return (uint32_t)(random_next(source) % limit);
}

/* Overflow files that fail on purpose. The call with number `fail_at` (from 1) and the `fail_count - 1` calls after it
 * return `status` and leave nothing behind. Shared memory stands in for the files. */
typedef struct {
    wan_env env;
    uint32_t calls, fail_at, fail_count, live;
    uint64_t live_bytes;
    wan_status status;
} failing_disk;
void failing_disk_init(failing_disk *disk);

/* Writes a record at `to`, which is aligned to 8 and large enough. Returns its length. */
typedef struct {
    uint8_t operation, flags, stamp_site, origin_site;
    uint16_t region;
    uint64_t stamp;
    const char *key;
    const void *value;
    uint32_t value_length;
} record_plan;
uint64_t write_plan(uint8_t *to, const record_plan *plan);
static inline uint64_t plan_length(const record_plan *plan)
{
    return wan_record_size((uint32_t)strlen(plan->key), plan->value_length, 0, 0);
}

#endif
