/* Owns the entries of a region: key -> value with its version (stamp, site). The later version wins. Of two contents
 * with one version, the content wins that is later in an order of contents, so that every site ends with the same
 * entry.
 *
 * A table is divided into buckets by the hash of the key. A bucket is a run of shards; all buckets have the same number
 * of them. So work on one bucket costs in proportion to its size. A shard has its own lock and grows alone. So growing
 * a table of ten million keys stops no thread longer than it takes to lay out one shard's few thousand slots. A shard's
 * lock is the entry lock: the caller holds it while it applies a change and appends the event to the queues. So the
 * order in the queues is the order of versions for every key.
 *
 * A slot is one word: the address of the entry, and low bits of the key's hash. Eight slots are a line, which is a
 * cache line. The slots of a line are filled from its beginning. A key whose line is full goes to the next line. */
#ifndef WAN_TABLE_H
#define WAN_TABLE_H
#include "base/wan_hash.h"
#include "base/wan_lock.h"
#include "record/wan_record.h"
#include "region/wan_slab.h"
#if defined(__SSE2__)
#    include <emmintrin.h>
#endif

#define WAN_TABLE_SHARDS    1024u /* About so many shards, or one for each bucket if there are more buckets. */
#define WAN_BUCKETS_DEFAULT 113u
#define WAN_BUCKETS_MAX     4096u
#define WAN_SHARD_LINES_MAX (1u << 28)

typedef struct {
    uint64_t stamp;
    uint32_t value_length;
    uint32_t capacity; /* Room for value bytes. value_length <= capacity. */
    uint16_t key_length;
    uint8_t stamp_site;
    uint8_t key_form;
    uint8_t value_form;
    uint8_t state; /* WAN_ENTRY_* */
    uint16_t reserved;
    /* The key, then the value. A tombstone has 8 bytes instead of a value: the time when it was made, in
     * milliseconds. */
    uint8_t bytes[];
} wan_entry;

/* An entry has a value, or it has lost its value on this member, or it was destroyed. */
enum { WAN_ENTRY_LIVE = 0, WAN_ENTRY_INVALID = 1, WAN_ENTRY_TOMBSTONE = 2 };

/* Entries lie at multiples of 16 below 2^48. */
#define WAN_SLOT_TAG_BITS   20
#define WAN_SLOT_ENTRY_BITS (64 - WAN_SLOT_TAG_BITS)
#define WAN_LINE_SLOTS      8u
typedef uint64_t wan_slot; /* 0: free, and all slots behind it in the line are free too. */
typedef struct {
    _Alignas(64) wan_slot slots[WAN_LINE_SLOTS];
} wan_line;

/* The rest of a shrunk tombstone. Two keys with one hash share it. */
typedef struct {
    uint64_t hash, stamp;
} wan_shrunk;
/* Ascending by hash, each hash once. Never empty. */
typedef struct {
    uint64_t count;
    wan_shrunk items[];
} wan_shrunk_list;

/* One cache line. Threads meet the shards of a table at random, and all shards together should stay in the cache. */
typedef struct {
    _Alignas(64) wan_lock lock;
    /* The address of its lines, which is a multiple of 64. The bits below say how many lines there are (WAN_LAYOUT_*).
     * 0: there are none. It is one word because threads without the lock read it too. */
    uint64_t layout;
    wan_slab *slab;           /* The slab of its table. */
    uint64_t bytes;           /* Bytes allocated for entries. They may be read without the lock, by wan_read. */
    uint64_t tombstone_bytes; /* Bytes of the tombstones that have their key, with their slots. */
    wan_shrunk_list *shrunk;  /* NULL: there are none. */
    uint32_t used;            /* Slots in use: live entries and tombstones. At most 3/4 of the slots. */
    uint32_t tombstones;      /* Tombstones that have their key, in slots. */
    /* About how many bytes, divided by 8, the shrunk tombstones take in a log. wan_table_shrunk_log_bytes reads it. */
    uint32_t shrunk_log_words;
    /* No tombstone that has its key has a stamp of an earlier second. Without such tombstones it means nothing. */
    uint32_t oldest_s;
} wan_shard;

_Static_assert(sizeof(wan_shard) == 64, "a shard is a cache line");

#define WAN_LAYOUT_SHIFT 31u /* The shard has 1 << this many lines. */
/* If set, wan_secret_hash says where keys lie, because too many keys had met in one place. Otherwise the key's hash
 * says it. */
#define WAN_LAYOUT_BY_SECRET_HASH 32u

enum { WAN_BUCKET_PRIMARY = 0 }; /* The bucket's changes are made on this member. */

/* A bucket: a run of the table's shards, and what the keys of these shards have in common in queues. */
typedef struct {
    /* If a queue is divided by buckets, this bucket's partition is `number` modulo the number of partitions. */
    uint32_t number;
    uint32_t first_shard, shard_count;
    uint8_t role; /* WAN_BUCKET_* */
} wan_bucket;

typedef struct {
    wan_shard *shards;
    wan_bucket *buckets;
    wan_slab slab;
    uint32_t shard_count; /* A multiple of bucket_count. */
    uint32_t bucket_count;
} wan_table;

typedef enum {
    WAN_CREATED,
    WAN_UPDATED,
    WAN_DESTROYED,
    WAN_MISSING, /* A local destroy of a key that is not there. */
    /* The change lost a conflict: the stored version is later, or has the same version and the later content. */
    WAN_LOST,
    /* The change and the stored entry come from two sites, and a resolver has to be asked. Nothing was changed. */
    WAN_ASK,
    WAN_OUT_OF_MEMORY,
    WAN_UNMET, /* The condition of the change does not hold. Nothing was changed. */
    WAN_SAME,  /* The same version and value are stored already: the event was applied before. */
    /* The key is not there. A later destroy may have removed it: the table remembers only a hash of that destroy,
     * or nothing. */
    WAN_FORGOTTEN,
} wan_outcome;

/* Whether a resolver of conflicts is asked: there is none, there is one, or it has decided for this change. */
enum { WAN_ASK_NOBODY = 0, WAN_ASK_RESOLVER = 1, WAN_ASK_DECIDED = 2 };

typedef struct {
    const uint8_t *key, *value;
    uint32_t value_length;
    uint16_t key_length;
    uint8_t key_form, value_form, operation, stamp_site;
    uint64_t hash;
    /* In: the proposed stamp. Out: the stored one. A local stamp is raised above the one that it replaces. */
    uint64_t stamp;
    /* For a change from elsewhere: destroys with stamps below this may have been forgotten. 0: none. */
    uint64_t absent_below;
    uint8_t flags; /* WAN_FLAG_GIVEN, WAN_FLAG_FORCED: the flags of the event. */
    uint8_t local; /* Made on this site: it is always later than what is stored. */
    uint8_t ask;   /* WAN_ASK_*: a resolver is installed, or has decided for the change. */
    uint8_t fault; /* In a bulk call: the number of the reason why this row is refused. 0: it is not. */
    /* Out, set by the put path: a queue took the event, and its makers wait for the queue's disk. */
    uint8_t waits;
    /* Out, if the outcome is WAN_DESTROYED: by how much the bytes of tombstones grew. */
    int64_t tombstone_bytes;
    /* Out, if the change took effect: the length of the value that it replaced. 0: there was none. */
    uint32_t replaced_length;
    /* Out, set by the put path of a persistent region: the number of its record in the log. 0: it has none. */
    uint64_t logged;
    /* Out, set by the put path of a region that several members hold: the place of the change in its bucket. Its maker
     * waits until the change counts. */
    uint64_t local_fence, sequence;
    /* Out, there too: the change is a row of a call that was made before, and so many rows of it changed something.
     * 0: it was made now. */
    uint32_t recalled;
} wan_change;

/* Makes a table with 1 to WAN_BUCKETS_MAX buckets. WAN_INVALID: another number. */
wan_status wan_table_init(wan_table *table, uint32_t buckets);
/* Frees all entries. */
void wan_table_close(wan_table *table);

/* The shard of a key's hash. */
static inline wan_shard *wan_table_shard(const wan_table *table, uint64_t hash)
{
    return &table->shards[wan_hash_bucket(hash, table->shard_count)];
}

/* The bucket of a key's hash. */
static inline wan_bucket *wan_table_bucket(const wan_table *table, uint64_t hash)
{
    return &table->buckets[wan_hash_bucket(hash, table->bucket_count)];
}

/* For all functions from here to wan_table_take_all the caller holds the shard's lock, unless they say otherwise.
 *
 * Applies a change if it is later than what is stored, and says what became of it. */
wan_outcome wan_table_apply(wan_shard *shard, wan_change *change);
/* wan_table_apply for a version without a value. The change brings only its key, and leaves an invalid entry. If an
 * entry lost the value of this very version, wan_table_apply does not give the value back, because the event counts as
 * applied before. */
wan_outcome wan_table_invalidate(wan_shard *shard, wan_change *change);
/* Whether the change would make the table larger. With `counts_free`: whether it would take memory from the system. A
 * destroy never does: its tombstone takes less than there was, or little. */
int wan_table_grows(wan_shard *shard, const wan_change *change, int counts_free);
/* Says what wan_table_apply would do, and changes nothing. It is for callers that must reserve room elsewhere first. */
wan_outcome wan_table_decide(wan_shard *shard, wan_change *change);
/* The entry or tombstone of a key. NULL: there is none. */
wan_entry *wan_table_find(const wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length,
                          uint8_t key_form);
/* Whether this very change made the entry what it is. */
int wan_table_made_by(const wan_entry *entry, const wan_change *change);
/* Removes an entry without a trace (local destroy). Returns whether it was there. */
int wan_table_forget(wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length, uint8_t key_form);
/* Removes all entries without a trace. Tombstones stay. Returns how many there were. */
uint64_t wan_table_clear(wan_shard *shard);
/* Drops tombstones with stamps below `below`. A tombstone that has its key goes only if it was also made before
 * `before_ms`. The function looks at no such tombstone if the stamps of all of them in the shard are later than that
 * time. Returns how many it dropped. */
uint64_t wan_table_expire(wan_shard *shard, uint64_t before_ms, uint64_t below);
/* The highest stamp of the tombstones that wan_table_expire would drop. 0: none. */
uint64_t wan_table_newest_to_expire(const wan_shard *shard, uint64_t before_ms, uint64_t below);
/* Shrinks every tombstone: only its hash and stamp stay. WAN_NO_MEMORY: nothing changed. */
wan_status wan_table_shrink(wan_shard *shard);
/* About how many bytes the shrunk tombstones take in a log. It needs no lock. */
static inline uint64_t wan_table_shrunk_log_bytes(const wan_shard *shard)
{
    return (uint64_t)__atomic_load_n(&shard->shrunk_log_words, __ATOMIC_RELAXED) * 8;
}
/* Adds shrunk tombstones that another member has. Of those with one hash the latest stays. WAN_NO_MEMORY: nothing
 * changed. */
wan_status wan_table_learn_shrunk(wan_shard *shard, const wan_shrunk *items, uint64_t count);
/* Whether shrinking costs little for each tombstone. It has to look at the whole shard. */
static inline int wan_table_is_worth_shrinking(const wan_shard *shard)
{
    return shard->tombstones >= 32 && (uint64_t)shard->tombstones * 16 >= shard->used;
}
/* The stamp of the shrunk tombstone with this hash. 0: there is none. */
uint64_t wan_table_shrunk_stamp(const wan_shard *shard, uint64_t hash);
static inline uint64_t wan_shard_shrunk_count(const wan_shard *shard)
{
    return shard->shrunk ? shard->shrunk->count : 0;
}

static inline wan_line *wan_layout_lines(uint64_t layout) { return (wan_line *)(uintptr_t)(layout & ~(uint64_t)63); }
static inline uint64_t wan_layout_mask(uint64_t layout) { return ((uint64_t)1 << (layout & WAN_LAYOUT_SHIFT)) - 1; }
static inline wan_entry *wan_slot_entry(wan_slot slot)
{
    return (wan_entry *)(uintptr_t)((slot & (((uint64_t)1 << WAN_SLOT_ENTRY_BITS) - 1)) << 4);
}

/* Finds the slots of a line that have these bits of the hash. The result has one bit for each slot. It works without a
 * branch, because the processor cannot foresee where the key is. Free slots may be among them. */
#if defined(__SSE2__)
static inline uint32_t wan_line_matches(const wan_line *line, uint64_t hash)
{
    const __m128 *pairs = (const __m128 *)line->slots;
    __m128i tag = _mm_set1_epi32((int)(uint32_t)(hash << WAN_SLOT_ENTRY_BITS >> 32));
    __m128i bits = _mm_set1_epi32((int)(UINT32_MAX << (32 - WAN_SLOT_TAG_BITS)));
    __m128i low = _mm_castps_si128(_mm_shuffle_ps(pairs[0], pairs[1], 0xdd)); /* The upper halves of the slots. */
    __m128i high = _mm_castps_si128(_mm_shuffle_ps(pairs[2], pairs[3], 0xdd));
    low = _mm_cmpeq_epi32(_mm_and_si128(low, bits), tag);
    high = _mm_cmpeq_epi32(_mm_and_si128(high, bits), tag);
    return (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(low)) | (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(high)) << 4;
}
#else
static inline uint32_t wan_line_matches(const wan_line *line, uint64_t hash)
{
    uint32_t found = 0;
    for (unsigned n = 0; n < WAN_LINE_SLOTS; n++)
        found |= (uint32_t)((line->slots[n] ^ hash << WAN_SLOT_ENTRY_BITS) >> WAN_SLOT_ENTRY_BITS == 0) << n;
    return found;
}
#endif

/* To look at each entry of a shard, a caller asks wan_shard_entry for 0 to wan_shard_slots - 1. NULL: there is no
 * entry. */
static inline uint64_t wan_shard_slots(const wan_shard *shard)
{
    return shard->layout ? (wan_layout_mask(shard->layout) + 1) * WAN_LINE_SLOTS : 0;
}
static inline uint64_t wan_shard_slot_bytes(const wan_shard *shard)
{
    return wan_shard_slots(shard) * sizeof(wan_slot);
}
static inline wan_entry *wan_shard_entry(const wan_shard *shard, uint64_t at)
{
    return wan_slot_entry(wan_layout_lines(shard->layout)[at / WAN_LINE_SLOTS].slots[at % WAN_LINE_SLOTS]);
}

/* Counts what the table takes for this limit from now on. Nothing was put yet. */
static inline void wan_table_set_limit(wan_table *table, wan_limit *limit) { wan_slab_set_limit(&table->slab, limit); }
/* Whether changes that need memory are refused, because the table's member is above its limit. */
static inline int wan_table_is_short(const wan_table *table) { return wan_limit_is_short(table->slab.limit); }
/* The bytes that the table has from the system, and that new entries can take. It needs no lock, and may be a little
 * wrong while others change the table. */
uint64_t wan_table_free_bytes(wan_table *table);

/* Everything that was in a shard. It can be freed without the shard's lock. */
typedef struct {
    uint64_t layout;
    wan_shrunk_list *shrunk;
    wan_slab *slab;
} wan_shard_content;
/* Empties a shard and returns what was in it. The caller holds the shard's lock. */
wan_shard_content wan_table_take_all(wan_shard *shard);
/* Frees that content. It needs no lock. */
void wan_table_free(wan_shard_content content);
/* Gives back the spare memory, which the table keeps to be faster when it needs more. */
static inline void wan_table_drop_spare(wan_table *table) { wan_slab_drop_spare(&table->slab); }

static inline const uint8_t *wan_entry_value(const wan_entry *entry) { return entry->bytes + entry->key_length; }
static inline uint64_t wan_entry_hash(const wan_entry *entry)
{
    return wan_key_hash(entry->bytes, entry->key_length, entry->key_form);
}

/* Takes all locks of a bucket's shards, in their order. Nobody else holds two locks of one table. */
static inline void wan_table_bucket_take(wan_table *table, const wan_bucket *bucket)
{
    for (uint32_t n = 0; n < bucket->shard_count; n++) wan_lock_take(&table->shards[bucket->first_shard + n].lock);
}
static inline void wan_table_bucket_release(wan_table *table, const wan_bucket *bucket)
{
    for (uint32_t n = 0; n < bucket->shard_count; n++) wan_lock_release(&table->shards[bucket->first_shard + n].lock);
}

/* Buckets. These functions take and release the locks of the bucket's shards, one after the other. None of them holds
 * two locks of one table. */

/* The numbers of things in a bucket. `bytes` are those of entries and slots. */
typedef struct {
    uint64_t entries, tombstones, shrunk, bytes;
} wan_bucket_counts;
wan_bucket_counts wan_table_bucket_count(wan_table *table, const wan_bucket *bucket);
/* Calls `visit` for each entry and tombstone, under its entry lock, until it does not return WAN_OK. */
typedef wan_status wan_entry_visit(void *context, wan_shard *shard, const wan_entry *entry);
wan_status wan_table_bucket_each(wan_table *table, const wan_bucket *bucket, wan_entry_visit *visit, void *context);
/* A number that is the same for two buckets with the same keys, versions and contents, in whatever order they came.
 * Tombstones do not count, because each member drops them at its own time. */
uint64_t wan_table_bucket_digest(wan_table *table, const wan_bucket *bucket);
/* Copies the content of a bucket into the same bucket of another table, which has as many buckets. A later version
 * there stays. Copied tombstones keep their age. WAN_NO_MEMORY: only a part was copied. */
wan_status wan_table_bucket_copy(wan_table *table, const wan_bucket *bucket, wan_table *to);
/* Drops everything in a bucket, also its tombstones. Returns how many entries there were, with tombstones of both
 * kinds. */
uint64_t wan_table_bucket_drop(wan_table *table, const wan_bucket *bucket);

/* Many changes in a row wait less for memory if the caller fetches ahead: first the slots of some dozens of changes,
 * then their entries. Both functions look at a shard without its lock. They use what they see only as an address to
 * fetch. */
static inline void wan_table_prefetch_slot(const wan_table *table, uint64_t hash)
{
    uint64_t layout = __atomic_load_n(&wan_table_shard(table, hash)->layout, __ATOMIC_RELAXED);
    if (layout) __builtin_prefetch(wan_layout_lines(layout) + (hash & wan_layout_mask(layout)));
}

/* The most bytes of an entry that are fetched. The processor fetches the rest by itself. */
#define WAN_PREFETCH_BYTES_MAX 512u

/* `bytes` are those of key and value, as far as the caller knows. An array of slots that is replaced meanwhile stays
 * mapped (wan_slab), so the read does not fault, and to fetch an address never does. Sanitizers would report this read
 * as a race, so they do not see it. */
static inline void wan_table_prefetch_entry(const wan_table *table, uint64_t hash, uint64_t bytes)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    (void)table, (void)hash, (void)bytes;
#else
    uint64_t layout = __atomic_load_n(&wan_table_shard(table, hash)->layout, __ATOMIC_RELAXED);
    if (!layout) return;
    const wan_line *line = wan_layout_lines(layout) + (hash & wan_layout_mask(layout));
    uint32_t matches = wan_line_matches(line, hash);
    const char *entry = (const char *)wan_slot_entry(line->slots[matches ? (unsigned)__builtin_ctz(matches) : 0]);
    bytes += sizeof(wan_entry);
    if (bytes > WAN_PREFETCH_BYTES_MAX) bytes = WAN_PREFETCH_BYTES_MAX;
    for (uint64_t at = 0; at < bytes; at += 64) __builtin_prefetch(entry + at, 1);
    __builtin_prefetch(entry + bytes - 1, 1);
#endif
}

/* Fetches ahead for rows that are changed one by one: the slot of a row two steps before it is changed, its entry one
 * step before. Before row n, call `wan_fetch_next` until `noted` is n + 2 * WAN_FETCH_STEP, but not beyond
 * WAN_FETCH_STEP behind the last row. */
#define WAN_FETCH_STEP 8u
#define WAN_FETCH_KEPT 32u /* The hashes of so many rows are kept, from the newest that was noted on backwards. */

typedef struct {
    uint64_t hashes[WAN_FETCH_KEPT], bytes[WAN_FETCH_KEPT];
    uint32_t noted; /* How often `wan_fetch_next` was called. */
} wan_fetch;

/* `hash` and `bytes` (of key and value) belong to row number `noted`. `is_row` 0: the rows are at their end. */
static inline void wan_fetch_next(const wan_table *table, wan_fetch *fetch, uint64_t hash, uint64_t bytes, int is_row)
{
    const uint32_t place = fetch->noted % WAN_FETCH_KEPT, before = (fetch->noted - WAN_FETCH_STEP) % WAN_FETCH_KEPT;
    if (fetch->noted >= WAN_FETCH_STEP) wan_table_prefetch_entry(table, fetch->hashes[before], fetch->bytes[before]);
    if (is_row) {
        fetch->hashes[place] = hash;
        fetch->bytes[place] = bytes;
        wan_table_prefetch_slot(table, hash);
    }
    fetch->noted++;
}

/* The hash of the key of a row that was noted, one of the last WAN_FETCH_KEPT. */
static inline uint64_t wan_fetch_hash(const wan_fetch *fetch, uint32_t row)
{
    return fetch->hashes[row % WAN_FETCH_KEPT];
}

#endif
