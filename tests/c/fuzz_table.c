/* Fuzzes a region's table: random changes compared with a plain array, while buckets are copied, compared and
 * dropped. */
#include "base/wan_clock.h"
#include "fuzz.h"
#include "region/wan_table.h"

const char *const fuzz_name = "fuzz_table";

enum { KEYS = 400, VALUE_MAX = 300 };
typedef enum { ABSENT, LIVE, TOMBSTONE } state_kind;
typedef struct {
    state_kind state;
    uint64_t stamp;
    uint8_t site;
    uint32_t length;
    uint8_t value[VALUE_MAX];
} model_entry;

static model_entry model[KEYS];
static char keys[KEYS][12];

static wan_change change_of(uint32_t number)
{
    uint16_t length = (uint16_t)snprintf(keys[number], sizeof keys[number], "%u", number);
    return (wan_change){.key = (const uint8_t *)keys[number],
                        .key_length = length,
                        .key_form = WAN_FORM_TEXT,
                        .value_form = WAN_FORM_BYTES,
                        .hash = wan_key_hash(keys[number], length, WAN_FORM_TEXT)};
}

static const wan_entry *find(const wan_table *table, const wan_change *change)
{
    return wan_table_find(wan_table_shard(table, change->hash), change->hash, change->key, change->key_length,
                          change->key_form);
}

/* Applies a random change to both. It makes no change that has the stored version and another content: test_table.c
 * tests that. */
static void change_both(wan_table *table, random_source *source)
{
    uint8_t value[VALUE_MAX];
    uint32_t number = random_below(source, KEYS), length = random_below(source, VALUE_MAX + 1);
    model_entry *entry = &model[number];
    wan_change change = change_of(number);
    change.operation = random_below(source, 4) ? WAN_UPDATE : WAN_DESTROY;
    change.stamp = 1 + random_below(source, 50000);
    change.stamp_site = (uint8_t)(1 + random_below(source, 3));
    memset(value, (int)random_below(source, 256), sizeof value);
    if (change.operation == WAN_UPDATE) change.value = value, change.value_length = length;
    else change.value_form = WAN_FORM_NONE;
    int order =
        entry->state == ABSENT ? 1 : wan_version_order(change.stamp, change.stamp_site, entry->stamp, entry->site);
    if (!order) return;
    wan_shard *shard = wan_table_shard(table, change.hash);
    wan_outcome foretold = wan_table_decide(shard, &change), outcome = wan_table_apply(shard, &change);
    wan_outcome wanted = order < 0                         ? WAN_LOST
                         : change.operation == WAN_DESTROY ? WAN_DESTROYED
                         : entry->state == LIVE            ? WAN_UPDATED
                                                           : WAN_CREATED;
    FUZZ_CHECK(outcome == wanted && foretold == outcome);
    if (order < 0) return;
    *entry = (model_entry){
        change.operation == WAN_DESTROY ? TOMBSTONE : LIVE, change.stamp, change.stamp_site, change.value_length, {0}};
    memcpy(entry->value, value, change.value_length);
}

static void forget(wan_table *table, random_source *source)
{
    uint32_t number = random_below(source, KEYS);
    wan_change change = change_of(number);
    int was_there = wan_table_forget(wan_table_shard(table, change.hash), change.hash, change.key, change.key_length,
                                     change.key_form);
    FUZZ_CHECK(was_there == (model[number].state == LIVE));
    if (was_there) model[number].state = ABSENT;
}

static void expire(wan_table *table)
{
    for (uint32_t n = 0; n < table->shard_count; n++)
        wan_table_expire(&table->shards[n], wan_now_ms() + 100000, WAN_NO_STAMP);
    for (uint32_t n = 0; n < KEYS; n++)
        if (model[n].state == TOMBSTONE) model[n].state = ABSENT;
}

static void drop(wan_table *table, random_source *source)
{
    const wan_bucket *bucket = &table->buckets[random_below(source, table->bucket_count)];
    uint64_t gone = 0;
    for (uint32_t n = 0; n < KEYS; n++) {
        wan_change change = change_of(n);
        if (model[n].state == ABSENT || wan_table_bucket(table, change.hash) != bucket) continue;
        model[n].state = ABSENT;
        gone++;
    }
    FUZZ_CHECK(wan_table_bucket_drop(table, bucket) == gone);
}

static void check(wan_table *table)
{
    wan_bucket_counts all = {0};
    uint64_t live = 0, tombstones = 0;
    for (uint32_t n = 0; n < KEYS; n++) {
        wan_change change = change_of(n);
        const wan_entry *entry = find(table, &change);
        FUZZ_CHECK((entry != NULL) == (model[n].state != ABSENT));
        live += model[n].state == LIVE;
        tombstones += model[n].state == TOMBSTONE;
        if (!entry) continue;
        FUZZ_CHECK(entry->stamp == model[n].stamp && entry->stamp_site == model[n].site);
        FUZZ_CHECK((entry->state == WAN_ENTRY_LIVE) == (model[n].state == LIVE));
        if (model[n].state == LIVE)
            FUZZ_CHECK(entry->value_length == model[n].length
                       && memcmp(wan_entry_value(entry), model[n].value, model[n].length) == 0);
    }
    for (uint32_t n = 0; n < table->bucket_count; n++) {
        wan_bucket_counts counts = wan_table_bucket_count(table, &table->buckets[n]);
        all.entries += counts.entries;
        all.tombstones += counts.tombstones;
    }
    FUZZ_CHECK(all.entries == live && all.tombstones == tombstones);
}

/* Copies all buckets into an empty table, and into one that has some of the entries. The content is the same, so the
 * digests are. */
static void copy(wan_table *table, random_source *source)
{
    wan_table other;
    FUZZ_CHECK(wan_table_init(&other, table->bucket_count) == WAN_OK);
    for (int times = 0; times < 2; times++)
        for (uint32_t n = 0; n < table->bucket_count; n++)
            if (times || random_below(source, 2))
                FUZZ_CHECK(wan_table_bucket_copy(table, &table->buckets[n], &other) == WAN_OK);
    for (uint32_t n = 0; n < table->bucket_count; n++)
        FUZZ_CHECK(wan_table_bucket_digest(table, &table->buckets[n])
                   == wan_table_bucket_digest(&other, &other.buckets[n]));
    check(&other);
    wan_table_close(&other);
}

void fuzz_once(random_source *source)
{
    static const uint32_t counts[] = {1, 2, 7, 113, 1025};
    wan_table table;
    memset(model, 0, sizeof model);
    FUZZ_CHECK(wan_table_init(&table, counts[random_below(source, 5)]) == WAN_OK);
    for (uint32_t steps = 50 + random_below(source, 3000); steps; steps--) {
        uint32_t what = random_below(source, 1000);
        if (what < 100) forget(&table, source);
        else if (what < 102) expire(&table);
        else if (what < 110) drop(&table, source);
        else if (what < 112) copy(&table, source);
        else if (what < 114) check(&table);
        else change_both(&table, source);
    }
    check(&table);
    wan_table_close(&table);
}
