/* Owns the tests of a region's entries: versions, tombstones, growth, and how entries are taken out of full runs of
 * slots. */
#include "harness.h"
#include "base/wan_clock.h"
#include "region/wan_table.h"

static wan_table table;

static wan_change change_of(const char *key, uint8_t operation, const char *value, uint64_t stamp, uint8_t site)
{
    return (wan_change){.key = (const uint8_t *)key,
                        .key_length = (uint16_t)strlen(key),
                        .key_form = WAN_FORM_TEXT,
                        .value = (const uint8_t *)value,
                        .value_length = value ? (uint32_t)strlen(value) : 0,
                        .value_form = WAN_FORM_TEXT,
                        .operation = operation,
                        .stamp = stamp,
                        .stamp_site = site,
                        .hash = wan_key_hash(key, strlen(key), WAN_FORM_TEXT)};
}

static wan_outcome apply(wan_change *change) { return wan_table_apply(wan_table_shard(&table, change->hash), change); }

static wan_outcome remote(const char *key, uint8_t operation, const char *value, uint64_t stamp, uint8_t site)
{
    wan_change change = change_of(key, operation, value, stamp, site);
    return apply(&change);
}

static const wan_entry *find(const char *key)
{
    wan_change change = change_of(key, 0, NULL, 0, 0);
    return wan_table_find(wan_table_shard(&table, change.hash), change.hash, change.key, change.key_length,
                          change.key_form);
}

static int holds(const char *key, const char *value)
{
    const wan_entry *entry = find(key);
    return entry && entry->state == WAN_ENTRY_LIVE && entry->value_length == strlen(value)
           && memcmp(wan_entry_value(entry), value, strlen(value)) == 0;
}

static void the_later_version_wins_whatever_comes_last(void)
{
    wan_table_init(&table, WAN_BUCKETS_DEFAULT);
    EXPECT_EQUAL(remote("k", WAN_CREATE, "a", 10, 1), WAN_CREATED);
    EXPECT_EQUAL(remote("k", WAN_UPDATE, "b", 9, 9), WAN_LOST);
    /* The times are the same, so the higher site wins. */
    EXPECT_EQUAL(remote("k", WAN_UPDATE, "c", 10, 0), WAN_LOST);
    EXPECT(holds("k", "a"));
    EXPECT_EQUAL(remote("k", WAN_UPDATE, "e", 10, 2), WAN_UPDATED);
    EXPECT_EQUAL(remote("k", WAN_UPDATE, "f", 11, 1), WAN_UPDATED);
    EXPECT(holds("k", "f"));
    wan_table_close(&table);
}

static void of_two_contents_of_one_version_the_same_one_stays_whatever_comes_last(void)
{
    static const struct {
        uint8_t operation;
        const char *value;
    } contents[] = {{WAN_CREATE, "b"}, {WAN_UPDATE, "a"}, {WAN_UPDATE, "aa"}, {WAN_DESTROY, NULL}, {WAN_UPDATE, ""}};
    enum { COUNT = sizeof contents / sizeof *contents };
    for (unsigned n = 0; n < COUNT; n++) {
        for (unsigned k = 0; k < COUNT; k++) {
            wan_table_init(&table, WAN_BUCKETS_DEFAULT);
            remote("k", contents[n].operation, contents[n].value, 10, 1);
            wan_outcome second = remote("k", contents[k].operation, contents[k].value, 10, 1);
            EXPECT_EQUAL(remote("k", contents[k].operation, contents[k].value, 10, 1),
                         second == WAN_LOST ? WAN_LOST : WAN_SAME);
            EXPECT_EQUAL(second == WAN_SAME, n == k);
            wan_entry kept = *find("k");
            char value = kept.value_length ? (char)wan_entry_value(find("k"))[0] : 0;
            wan_table_close(&table);
            wan_table_init(&table, WAN_BUCKETS_DEFAULT);
            remote("k", contents[k].operation, contents[k].value, 10, 1);
            remote("k", contents[n].operation, contents[n].value, 10, 1);
            EXPECT(find("k")->state == kept.state && find("k")->value_length == kept.value_length);
            EXPECT(kept.state == WAN_ENTRY_TOMBSTONE || !kept.value_length
                   || (char)wan_entry_value(find("k"))[0] == value);
            wan_table_close(&table);
        }
    }
    /* An entry that lost its value here stands for all values of its version, and for no destroy. */
    wan_table_init(&table, WAN_BUCKETS_DEFAULT);
    remote("k", WAN_CREATE, "b", 10, 1);
    wan_change change = change_of("k", WAN_UPDATE, NULL, 10, 1);
    wan_table_invalidate(wan_table_shard(&table, change.hash), &change);
    EXPECT_EQUAL(remote("k", WAN_UPDATE, "zz", 10, 1), WAN_SAME);
    EXPECT_EQUAL(remote("k", WAN_DESTROY, NULL, 10, 1), WAN_DESTROYED);
    EXPECT_EQUAL(remote("k", WAN_UPDATE, "zz", 10, 1), WAN_LOST);
    wan_table_close(&table);
}

static void a_local_change_is_always_later_than_what_it_replaces(void)
{
    wan_table_init(&table, WAN_BUCKETS_DEFAULT);
    remote("k", WAN_CREATE, "future", 1000, 2);
    wan_change mine = change_of("k", WAN_UPDATE, "mine", 5, 1);
    mine.local = 1;
    EXPECT_EQUAL(apply(&mine), WAN_UPDATED);
    EXPECT_EQUAL(mine.stamp, 1001);
    EXPECT(holds("k", "mine"));
    wan_table_close(&table);
}

static void a_destroy_leaves_a_tombstone_that_refuses_older_creates(void)
{
    wan_table_init(&table, WAN_BUCKETS_DEFAULT);
    /* The destroy came before the create of what it destroys. */
    EXPECT_EQUAL(remote("k", WAN_DESTROY, NULL, 20, 1), WAN_DESTROYED);
    EXPECT_EQUAL(remote("k", WAN_CREATE, "a", 10, 1), WAN_LOST);
    EXPECT(find("k") && find("k")->state == WAN_ENTRY_TOMBSTONE);
    EXPECT_EQUAL(remote("k", WAN_CREATE, "b", 30, 1), WAN_CREATED);
    EXPECT(holds("k", "b"));
    EXPECT_EQUAL(wan_table_shard(&table, change_of("k", 0, NULL, 0, 0).hash)->tombstones, 0);
    wan_table_close(&table);
}

static void a_local_destroy_of_a_missing_key_changes_nothing(void)
{
    wan_table_init(&table, WAN_BUCKETS_DEFAULT);
    wan_change destroy = change_of("k", WAN_DESTROY, NULL, 5, 1);
    destroy.local = 1;
    EXPECT_EQUAL(apply(&destroy), WAN_MISSING);
    EXPECT(!find("k"));
    remote("k", WAN_DESTROY, NULL, 4, 1);
    EXPECT_EQUAL(apply(&destroy), WAN_MISSING);
    EXPECT_EQUAL(find("k")->stamp, 4);
    wan_table_close(&table);
}

static void a_resolver_is_asked_only_where_another_sites_live_entry_stands(void)
{
    wan_table_init(&table, WAN_BUCKETS_DEFAULT);
    wan_change change = change_of("k", WAN_UPDATE, "b", 5, 2);
    change.ask = WAN_ASK_RESOLVER;
    EXPECT_EQUAL(apply(&change), WAN_CREATED);
    change.stamp = 4;
    /* Both are of one site, so no resolver is asked. */
    EXPECT_EQUAL(apply(&change), WAN_LOST);
    change.stamp_site = 3;
    EXPECT_EQUAL(apply(&change), WAN_ASK);
    EXPECT_EQUAL(find("k")->stamp_site, 2);
    change.ask = WAN_ASK_DECIDED;
    /* The resolver's decision counts more than the time. */
    EXPECT_EQUAL(apply(&change), WAN_UPDATED);
    EXPECT_EQUAL(find("k")->stamp, 4);
    wan_table_close(&table);
}

static void judging_changes_nothing_and_foretells_applying(void)
{
    wan_table_init(&table, WAN_BUCKETS_DEFAULT);
    random_source source = {.state = 5};
    char key[8];
    for (int n = 0; n < 3000; n++) {
        snprintf(key, sizeof key, "%u", random_below(&source, 40));
        wan_change change = change_of(key, (uint8_t)random_below(&source, 3), "v", random_below(&source, 500),
                                      (uint8_t)random_below(&source, 3));
        change.local = !random_below(&source, 4);
        wan_change decided = change;
        const wan_entry *before = find(key);
        uint64_t stamp = before ? before->stamp : 0;
        wan_outcome outcome = wan_table_decide(wan_table_shard(&table, change.hash), &decided);
        EXPECT_EQUAL(find(key) ? find(key)->stamp : 0, stamp);
        EXPECT_EQUAL(apply(&change), outcome);
    }
    wan_table_close(&table);
}

static void values_grow_and_shrink_in_place_or_not_and_the_bytes_add_up(void)
{
    wan_table_init(&table, WAN_BUCKETS_DEFAULT);
    static char value[100001];
    random_source source = {.state = 6};
    wan_change change = change_of("k", WAN_UPDATE, "", 1, 1);
    const wan_shard *shard = wan_table_shard(&table, change.hash);
    for (int n = 0; n < 500; n++) {
        uint32_t length = random_below(&source, 2) ? random_below(&source, 100000) : random_below(&source, 100);
        memset(value, n & 0x7f, length);
        change.value = (const uint8_t *)value;
        change.value_length = length;
        change.stamp++;
        apply(&change);
        const wan_entry *entry = find("k");
        EXPECT(entry->value_length == length && memcmp(wan_entry_value(entry), value, length) == 0);
        EXPECT(entry->capacity <= 2 * (uint64_t)length + 64);
        EXPECT_EQUAL(shard->bytes, sizeof(wan_entry) + 1 + entry->capacity);
        EXPECT_EQUAL(shard->bytes % 16, 0);
    }
    wan_table_close(&table);
}

static void an_entry_without_its_value_keeps_its_version_and_refuses_the_event_that_brought_it(void)
{
    wan_table_init(&table, WAN_BUCKETS_DEFAULT);
    remote("k", WAN_CREATE, "value", 5, 1);
    wan_change change = change_of("k", WAN_UPDATE, "ignored", 5, 1);
    wan_shard *shard = wan_table_shard(&table, change.hash);
    EXPECT_EQUAL(wan_table_invalidate(shard, &change), WAN_UPDATED);
    EXPECT(find("k")->state == WAN_ENTRY_INVALID && find("k")->stamp == 5 && find("k")->value_length == 0);
    EXPECT_EQUAL(remote("k", WAN_CREATE, "value", 5, 1), WAN_SAME);
    EXPECT_EQUAL(wan_table_invalidate(shard, &change), WAN_SAME);
    EXPECT_EQUAL(find("k")->state, WAN_ENTRY_INVALID);
    EXPECT_EQUAL(remote("k", WAN_UPDATE, "newer", 6, 1), WAN_UPDATED);
    EXPECT_EQUAL(wan_table_invalidate(shard, &change), WAN_LOST);
    EXPECT(find("k")->state == WAN_ENTRY_LIVE && holds("k", "newer"));
    /* It comes from a log in which the record of the value is gone. */
    change = change_of("new", WAN_UPDATE, NULL, 7, 1);
    EXPECT_EQUAL(wan_table_invalidate(wan_table_shard(&table, change.hash), &change), WAN_CREATED);
    EXPECT(find("new")->state == WAN_ENTRY_INVALID && find("new")->stamp == 7);
    EXPECT_EQUAL(remote("k", WAN_DESTROY, NULL, 8, 1), WAN_DESTROYED);
    change = change_of("k", WAN_UPDATE, NULL, 6, 1);
    EXPECT_EQUAL(wan_table_invalidate(wan_table_shard(&table, change.hash), &change), WAN_LOST);
    EXPECT_EQUAL(find("k")->state, WAN_ENTRY_TOMBSTONE);
    wan_table_close(&table);
}

static void tombstones_go_below_a_stamp_shrink_and_still_speak_of_their_keys(void)
{
    wan_table_init(&table, WAN_BUCKETS_DEFAULT);
    char key[16];
    for (int n = 0; n < 5000; n++) {
        snprintf(key, sizeof key, "key-%d", n);
        remote(key, WAN_DESTROY, NULL, 100 + (uint64_t)n, 1);
    }
    uint64_t dropped = 0, bytes = 0, shrunk = 0;
    for (uint32_t n = 0; n < table.shard_count; n++) dropped += wan_table_expire(&table.shards[n], WAN_NEVER, 1100);
    EXPECT_EQUAL(dropped, 1000);
    for (uint32_t n = 0; n < table.shard_count; n++) bytes += table.shards[n].tombstone_bytes;
    EXPECT(bytes > 4000 * (sizeof(wan_entry) + 16));
    /* In the second round there is nothing to shrink. */
    for (int round = 0; round < 2; round++) {
        for (uint32_t n = 0; n < table.shard_count; n++) EXPECT_EQUAL(wan_table_shrink(&table.shards[n]), WAN_OK);
        shrunk = bytes = 0;
        for (uint32_t n = 0; n < table.shard_count; n++) {
            shrunk += wan_shard_shrunk_count(&table.shards[n]);
            bytes += table.shards[n].bytes + table.shards[n].tombstone_bytes + table.shards[n].tombstones
                     + table.shards[n].used;
        }
        EXPECT(shrunk == 4000 && bytes == 0);
    }
    /* This one was forgotten: the table knows nothing about it. */
    EXPECT_EQUAL(remote("key-999", WAN_UPDATE, "v", 50, 1), WAN_CREATED);
    EXPECT_EQUAL(remote("key-1000", WAN_UPDATE, "v", 1100, 1), WAN_FORGOTTEN);
    EXPECT_EQUAL(remote("key-1000", WAN_UPDATE, "v", 1101, 1), WAN_CREATED);
    wan_change local = change_of("key-2000", WAN_UPDATE, "mine", 5, 1);
    local.local = 1;
    EXPECT_EQUAL(apply(&local), WAN_CREATED);
    EXPECT_EQUAL(local.stamp, 2101);
    /* Destroyed again, now with its key. The older hash still counts. */
    EXPECT_EQUAL(remote("key-2000", WAN_DESTROY, NULL, 2102, 2), WAN_DESTROYED);
    EXPECT_EQUAL(remote("key-2000", WAN_UPDATE, "v", 2101, 1), WAN_LOST);
    /* The hash might be that of another key. */
    EXPECT_EQUAL(remote("key-3000", WAN_DESTROY, NULL, 70, 2), WAN_DESTROYED);
    /* It is later than that destroy, and older than the one that is known by its hash. */
    EXPECT_EQUAL(remote("key-3000", WAN_UPDATE, "v", 80, 2), WAN_FORGOTTEN);
    wan_change forced = change_of("key-3000", WAN_UPDATE, "v", 80, 2);
    forced.flags = WAN_FLAG_FORCED;
    EXPECT_EQUAL(apply(&forced), WAN_CREATED);
    wan_change marked = change_of("never heard of", WAN_UPDATE, "v", 80, 2);
    marked.absent_below = 81;
    EXPECT_EQUAL(apply(&marked), WAN_FORGOTTEN);
    marked.absent_below = 80;
    EXPECT_EQUAL(apply(&marked), WAN_CREATED);
    marked.stamp = 81, marked.absent_below = 100;
    /* The entry is there, so it was not destroyed later. */
    EXPECT_EQUAL(apply(&marked), WAN_UPDATED);
    for (uint32_t n = 0; n < table.shard_count; n++) wan_table_expire(&table.shards[n], WAN_NEVER, WAN_NO_STAMP);
    for (uint32_t n = 0; n < table.shard_count; n++)
        EXPECT(!table.shards[n].shrunk && !table.shards[n].shrunk_log_words && !table.shards[n].tombstone_bytes);
    wan_table_close(&table);
}

/* A plain model: an array by the number of the key. All keys fall into one shard, so runs of slots are long and wrap
 * around. */
enum { KEYS = 600 };
typedef struct {
    uint8_t state;
    uint64_t stamp;
    uint8_t site;
    char value[8];
} model_entry; /* state: 0 absent, 1 live, 2 tombstone */

static void random_changes_do_what_a_plain_model_says_while_entries_are_taken_out_of_full_runs(void)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        static model_entry model[KEYS];
        memset(model, 0, sizeof model);
        wan_table_init(&table, WAN_BUCKETS_DEFAULT);
        wan_shard *shard = &table.shards[0];
        random_source source = {.state = seed};
        int before = expectations_failed;
        for (int step = 0; step < 8000; step++) {
            uint32_t number = random_below(&source, KEYS);
            char key[8], value[8];
            snprintf(key, sizeof key, "%u", number);
            snprintf(value, sizeof value, "%u", random_below(&source, 99999));
            model_entry *entry = &model[number];
            wan_change change = change_of(key, random_below(&source, 3) ? WAN_UPDATE : WAN_DESTROY, value,
                                          random_below(&source, 100000), (uint8_t)random_below(&source, 3));
            /* There are few lines to begin in, so runs are long. The highest bits are zero: shard 0. */
            change.hash = number * 7 & 63;
            if (!random_below(&source, 5)) {
                EXPECT_EQUAL(wan_table_forget(shard, change.hash, change.key, change.key_length, change.key_form),
                             entry->state == 1);
                if (entry->state == 1) entry->state = 0;
            } else {
                int order =
                    !entry->state ? 1 : wan_version_order(change.stamp, change.stamp_site, entry->stamp, entry->site);
                if (!order)
                    order = wan_content_order(change.operation == WAN_DESTROY, WAN_FORM_TEXT, change.value,
                                              change.value_length, entry->state == 2, WAN_FORM_TEXT,
                                              (const uint8_t *)entry->value, (uint32_t)strlen(entry->value));
                int is_later = order > 0;
                wan_outcome expected = !order                            ? WAN_SAME
                                       : !is_later                       ? WAN_LOST
                                       : change.operation == WAN_DESTROY ? WAN_DESTROYED
                                       : entry->state == 1               ? WAN_UPDATED
                                                                         : WAN_CREATED;
                EXPECT_EQUAL(wan_table_apply(shard, &change), expected);
                if (is_later) {
                    entry->state = change.operation == WAN_DESTROY ? 2 : 1;
                    entry->stamp = change.stamp;
                    entry->site = change.stamp_site;
                    memcpy(entry->value, value, sizeof value);
                }
            }
            if (step % 1000 == 999) {
                uint32_t tombstones = 0;
                for (int n = 0; n < KEYS; n++) tombstones += model[n].state == 2;
                EXPECT_EQUAL(shard->tombstones, tombstones);
                EXPECT_EQUAL(wan_table_expire(shard, 0, WAN_NO_STAMP), 0);
                if (step % 2000 == 1999) {
                    EXPECT_EQUAL(wan_table_expire(shard, wan_now_ms() + 100000, WAN_NO_STAMP), tombstones);
                    for (int n = 0; n < KEYS; n++)
                        if (model[n].state == 2) model[n].state = 0;
                }
                uint32_t used = 0;
                for (uint32_t n = 0; n < KEYS; n++) {
                    snprintf(key, sizeof key, "%u", n);
                    const wan_entry *found =
                        wan_table_find(shard, n * 7 & 63, (const uint8_t *)key, (uint16_t)strlen(key), WAN_FORM_TEXT);
                    EXPECT_EQUAL(found != NULL, model[n].state != 0);
                    if (!found) continue;
                    used++;
                    EXPECT_EQUAL(found->stamp, model[n].stamp);
                    EXPECT_EQUAL(found->state == WAN_ENTRY_LIVE, model[n].state == 1);
                    if (model[n].state == 1)
                        EXPECT(memcmp(wan_entry_value(found), model[n].value, found->value_length) == 0);
                }
                EXPECT_EQUAL(shard->used, used);
                EXPECT((uint64_t)shard->used * 4 <= wan_shard_slots(shard) * 3);
            }
        }
        if (expectations_failed != before) printf("    seed %" PRIu64 "\n", seed);
        wan_table_close(&table);
    }
}

static void a_hundred_thousand_keys_are_all_found_and_their_bytes_are_given_back(void)
{
    wan_table_init(&table, WAN_BUCKETS_DEFAULT);
    char key[16];
    for (int n = 0; n < 100000; n++) {
        snprintf(key, sizeof key, "key-%d", n);
        remote(key, WAN_CREATE, key, (uint64_t)n + 1, 1);
    }
    uint64_t used = 0, bytes = 0;
    for (int n = 0; n < 100000; n++) {
        snprintf(key, sizeof key, "key-%d", n);
        EXPECT(holds(key, key));
    }
    for (int n = 0; n < 100000; n++) {
        snprintf(key, sizeof key, "key-%d", n);
        wan_change change = change_of(key, 0, NULL, 0, 0);
        EXPECT(wan_table_forget(wan_table_shard(&table, change.hash), change.hash, change.key, change.key_length,
                                change.key_form));
    }
    for (uint32_t n = 0; n < table.shard_count; n++) {
        used += table.shards[n].used;
        bytes += table.shards[n].bytes;
    }
    EXPECT(used == 0 && bytes == 0);
    wan_table_drop_spare(&table);
    EXPECT_EQUAL(wan_slab_bytes(&table.slab), 0);
    wan_table_close(&table);
}

/* Buckets. */

static const uint32_t bucket_counts[] = {1, 2, 7, 113, 512, 683, 1024, 1025, 4096};
enum { BUCKET_COUNTS = sizeof bucket_counts / sizeof *bucket_counts };

static void a_bucket_is_a_run_of_shards_and_a_key_is_in_the_one_its_hash_says(void)
{
    for (int k = 0; k < BUCKET_COUNTS; k++) {
        uint32_t count = bucket_counts[k], next = 0;
        EXPECT_EQUAL(wan_table_init(&table, count), WAN_OK);
        EXPECT(table.bucket_count == count && table.shard_count % count == 0);
        EXPECT(count > WAN_TABLE_SHARDS ? table.shard_count == count
                                        : table.shard_count >= 683 && table.shard_count <= 1366);
        for (uint32_t n = 0; n < count; n++) {
            EXPECT(table.buckets[n].number == n && table.buckets[n].first_shard == next
                   && table.buckets[n].role == WAN_BUCKET_PRIMARY);
            next += table.buckets[n].shard_count;
        }
        EXPECT_EQUAL(next, table.shard_count);
        random_source source = {.state = 11};
        for (int n = 0; n < 3000; n++) {
            uint64_t hash = n == 0 ? 0 : n == 1 ? UINT64_MAX : random_next(&source);
            const wan_bucket *bucket = wan_table_bucket(&table, hash);
            uint64_t shard = (uint64_t)(wan_table_shard(&table, hash) - table.shards);
            EXPECT_EQUAL(bucket->number, wan_hash_bucket(hash, count));
            EXPECT(shard >= bucket->first_shard && shard - bucket->first_shard < bucket->shard_count);
        }
        wan_table_close(&table);
    }
    EXPECT_EQUAL(wan_table_init(&table, 0), WAN_INVALID);
    EXPECT_EQUAL(wan_table_init(&table, WAN_BUCKETS_MAX + 1), WAN_INVALID);
}

typedef struct {
    uint64_t live, tombstones;
    uint32_t bucket;
} visited;

static wan_status visit(void *context, wan_shard *shard, const wan_entry *entry)
{
    visited *seen = context;
    EXPECT_EQUAL(wan_table_bucket(&table, wan_entry_hash(entry))->number, seen->bucket);
    EXPECT(wan_lock_try(&shard->lock) == 0);
    seen->live += entry->state == WAN_ENTRY_LIVE;
    seen->tombstones += entry->state == WAN_ENTRY_TOMBSTONE;
    return WAN_OK;
}

static wan_status stop(void *context, wan_shard *shard, const wan_entry *entry)
{
    (void)shard, (void)entry;
    ++*(int *)context;
    return WAN_FULL;
}

static void fill(int keys)
{
    char key[16];
    for (int n = 0; n < keys; n++) {
        snprintf(key, sizeof key, "key-%d", n);
        remote(key, n % 5 ? WAN_CREATE : WAN_DESTROY, n % 5 ? key : NULL, (uint64_t)n + 1, 1);
    }
}

static void one_bucket_is_counted_visited_and_dropped_and_the_others_stay_as_they_are(void)
{
    for (int k = 0; k < BUCKET_COUNTS; k++) {
        wan_table_init(&table, bucket_counts[k]);
        fill(5000);
        wan_bucket_counts all = {0};
        for (uint32_t n = 0; n < table.bucket_count; n++) {
            visited seen = {.bucket = n};
            EXPECT_EQUAL(wan_table_bucket_each(&table, &table.buckets[n], visit, &seen), WAN_OK);
            wan_bucket_counts counts = wan_table_bucket_count(&table, &table.buckets[n]);
            EXPECT(counts.entries == seen.live && counts.tombstones == seen.tombstones);
            all.entries += counts.entries, all.tombstones += counts.tombstones, all.bytes += counts.bytes;
        }
        EXPECT(all.entries == 4000 && all.tombstones == 1000 && all.bytes > 5000 * sizeof(wan_entry));
        uint32_t dropped = bucket_counts[k] / 2;
        int calls = 0;
        wan_bucket_counts before = wan_table_bucket_count(&table, &table.buckets[dropped]);
        EXPECT_EQUAL(wan_table_bucket_each(&table, &table.buckets[dropped], stop, &calls),
                     before.entries + before.tombstones ? WAN_FULL : WAN_OK);
        EXPECT_EQUAL(calls, before.entries + before.tombstones ? 1 : 0);
        uint64_t shrunk = 0;
        for (uint32_t n = 0; n < table.buckets[dropped].shard_count; n++)
            EXPECT_EQUAL(wan_table_shrink(&table.shards[table.buckets[dropped].first_shard + n]), WAN_OK);
        shrunk = wan_table_bucket_count(&table, &table.buckets[dropped]).shrunk;
        EXPECT_EQUAL(shrunk, before.tombstones);
        for (uint32_t n = 0; n < table.buckets[dropped].shard_count; n++) { /* As a snapshot brings them. */
            wan_shard *shard = &table.shards[table.buckets[dropped].first_shard + n];
            if (!shard->shrunk) continue;
            wan_shrunk learned[] = {shard->shrunk->items[0], shard->shrunk->items[0]};
            learned[0].stamp += 5;
            EXPECT_EQUAL(wan_table_learn_shrunk(shard, learned, 2), WAN_OK);
            EXPECT_EQUAL(wan_table_shrunk_stamp(shard, learned[0].hash), learned[0].stamp);
        }
        EXPECT_EQUAL(wan_table_bucket_count(&table, &table.buckets[dropped]).shrunk, shrunk);
        EXPECT_EQUAL(wan_table_bucket_drop(&table, &table.buckets[dropped]), before.entries + shrunk);
        wan_bucket_counts after = wan_table_bucket_count(&table, &table.buckets[dropped]);
        EXPECT(!after.entries && !after.tombstones && !after.shrunk && !after.bytes);
        for (int n = 0; n < 5000; n++) {
            char key[16];
            snprintf(key, sizeof key, "key-%d", n);
            uint64_t hash = change_of(key, 0, NULL, 0, 0).hash;
            EXPECT_EQUAL(find(key) != NULL, wan_table_bucket(&table, hash)->number != dropped);
        }
        wan_table_close(&table);
    }
}

static void a_copied_bucket_has_the_same_digest_and_keeps_what_is_later_there(void)
{
    static wan_table copy;
    wan_table_init(&table, 7);
    fill(3000);
    remote("invalid", WAN_CREATE, "v", 5, 1);
    wan_change change = change_of("invalid", WAN_UPDATE, NULL, 5, 1);
    wan_table_invalidate(wan_table_shard(&table, change.hash), &change);
    /* Some tombstones have their key, and some do not. */
    for (uint32_t n = 0; n < table.shard_count; n += 2) wan_table_shrink(&table.shards[n]);
    EXPECT_EQUAL(wan_table_init(&copy, 8), WAN_OK);
    EXPECT_EQUAL(wan_table_bucket_copy(&table, &table.buckets[0], &copy), WAN_INVALID);
    wan_table_close(&copy);
    wan_table_init(&copy, 7);
    /* Entries that are there already change nothing. */
    for (int round = 0; round < 2; round++) {
        for (uint32_t n = 0; n < 7; n++) {
            const wan_bucket *bucket = &table.buckets[n];
            EXPECT_EQUAL(wan_table_bucket_copy(&table, bucket, &copy), WAN_OK);
            wan_bucket_counts from = wan_table_bucket_count(&table, bucket),
                              to = wan_table_bucket_count(&copy, &copy.buckets[n]);
            EXPECT(from.entries == to.entries && from.tombstones == to.tombstones && from.shrunk == to.shrunk);
            EXPECT_EQUAL(wan_table_bucket_digest(&table, bucket), wan_table_bucket_digest(&copy, &copy.buckets[n]));
        }
    }
    for (uint32_t n = 0; n < table.shard_count; n++)
        for (uint64_t at = 0; at < wan_shard_slots(&table.shards[n]); at++) {
            const wan_entry *entry = wan_shard_entry(&table.shards[n], at);
            if (!entry || entry->state != WAN_ENTRY_TOMBSTONE) continue;
            const wan_entry *same = wan_table_find(&copy.shards[n], wan_entry_hash(entry), entry->bytes,
                                                   entry->key_length, entry->key_form);
            /* The replica is as old as the original. */
            EXPECT(same && memcmp(wan_entry_value(entry), wan_entry_value(same), 8) == 0);
        }
    wan_change later = change_of("key-1", WAN_UPDATE, "later", 1000000, 2);
    const wan_bucket *bucket = wan_table_bucket(&copy, later.hash);
    wan_table_apply(wan_table_shard(&copy, later.hash), &later);
    EXPECT(wan_table_bucket_digest(&table, &table.buckets[bucket->number]) != wan_table_bucket_digest(&copy, bucket));
    EXPECT_EQUAL(wan_table_bucket_copy(&table, &table.buckets[bucket->number], &copy), WAN_OK);
    EXPECT_EQUAL(
        wan_table_find(wan_table_shard(&copy, later.hash), later.hash, later.key, later.key_length, later.key_form)
            ->stamp,
        1000000);
    wan_table_close(&copy);
    wan_table_close(&table);
}

static void many_keys_of_one_hash_are_found_as_fast_as_others(void)
{
    wan_table_init(&table, 1);
    enum { SAME = 20000 };
    char key[16];
    wan_shard *shard = &table.shards[0];
    for (int round = 0; round < 2; round++) {
        for (int n = 0; n < SAME; n++) {
            snprintf(key, sizeof key, "%d", n);
            wan_change change = change_of(key, WAN_UPDATE, key, (uint64_t)n + 1, 1);
            change.hash = 5;
            if (round == 0) EXPECT_EQUAL(wan_table_apply(shard, &change), WAN_CREATED);
            else EXPECT(wan_table_forget(shard, 5, change.key, change.key_length, change.key_form));
        }
        if (round) continue;
        EXPECT(shard->layout & WAN_LAYOUT_BY_SECRET_HASH);
        uint64_t longest = 0, full = 0;
        for (uint64_t line = 0; line <= wan_layout_mask(shard->layout); line++) {
            full = wan_layout_lines(shard->layout)[line].slots[WAN_LINE_SLOTS - 1] ? full + 1 : 0;
            if (full > longest) longest = full;
        }
        EXPECT(longest < 200); /* The most lines that a search may have to pass. */
    }
    EXPECT(shard->used == 0 && shard->bytes == 0);
    wan_table_close(&table);
}

const test_case table_tests[] = {
    {"the later version wins whatever comes last", the_later_version_wins_whatever_comes_last},
    {"of two contents of one version the same one stays whatever comes last",
     of_two_contents_of_one_version_the_same_one_stays_whatever_comes_last},
    {"a local change is always later than what it replaces", a_local_change_is_always_later_than_what_it_replaces},
    {"a destroy leaves a tombstone that refuses older creates",
     a_destroy_leaves_a_tombstone_that_refuses_older_creates},
    {"a local destroy of a missing key changes nothing", a_local_destroy_of_a_missing_key_changes_nothing},
    {"a resolver is asked only where another site's live entry stands",
     a_resolver_is_asked_only_where_another_sites_live_entry_stands},
    {"judging changes nothing and foretells applying", judging_changes_nothing_and_foretells_applying},
    {"values grow and shrink in place or not and the bytes add up",
     values_grow_and_shrink_in_place_or_not_and_the_bytes_add_up},
    {"an entry without its value keeps its version and refuses the event that brought it",
     an_entry_without_its_value_keeps_its_version_and_refuses_the_event_that_brought_it},
    {"tombstones go below a stamp shrink and still speak of their keys",
     tombstones_go_below_a_stamp_shrink_and_still_speak_of_their_keys},
    {"random changes do what a plain model says while entries are taken out of full runs",
     random_changes_do_what_a_plain_model_says_while_entries_are_taken_out_of_full_runs},
    {"a hundred thousand keys are all found and their bytes are given back",
     a_hundred_thousand_keys_are_all_found_and_their_bytes_are_given_back},
    {"a bucket is a run of shards and a key is in the one its hash says",
     a_bucket_is_a_run_of_shards_and_a_key_is_in_the_one_its_hash_says},
    {"one bucket is counted visited and dropped and the others stay as they are",
     one_bucket_is_counted_visited_and_dropped_and_the_others_stay_as_they_are},
    {"a copied bucket has the same digest and keeps what is later there",
     a_copied_bucket_has_the_same_digest_and_keeps_what_is_later_there},
    {"many keys of one hash are found as fast as others", many_keys_of_one_hash_are_found_as_fast_as_others},
    {0},
};
