/* Owns a region's entries: key -> value with its version (stamp, site), under the rule that the later version wins; of
 * one version the content that is later in an order of contents, so that every site ends with the same.
 *
 * A table is divided into buckets, by the hash of the key, and each bucket into as many shards: it is a run of them, so
 * that what is done with one bucket costs in its size. A shard has its own lock and grows alone, so that growing a
 * table of ten million keys stalls nobody for longer than one shard's few thousand slots take. A shard's lock is the
 * entry lock: the caller holds it over apply and over appending to the queues, so queue order is version order for
 * every key.
 *
 * A slot is one word: where the entry lies, and low bits of the key's hash. Eight of them are a cache line, the slots
 * of a line are filled from its begin, and a key that finds its line full goes to the next one. */
#ifndef WAN_TABLE_H
#define WAN_TABLE_H
#include "base/wan_hash.h"
#include "base/wan_lock.h"
#include "record/wan_record.h"
#include "region/wan_slab.h"
#if defined(__SSE2__)
#    include <emmintrin.h>
#endif

#define WAN_TABLE_SHARDS    1024u /* About so many, or one for each bucket where these are more. */
#define WAN_BUCKETS_DEFAULT 113u
#define WAN_BUCKETS_MAX     4096u
#define WAN_SHARD_LINES_MAX (1u << 28)

typedef struct {
    uint64_t stamp;
    uint32_t value_length;
    uint32_t capacity; /* Value bytes there is room for. value_length <= capacity. */
    uint16_t key_length;
    uint8_t stamp_site;
    uint8_t key_form;
    uint8_t value_form;
    uint8_t state; /* WAN_ENTRY_* */
    uint16_t reserved;
    uint8_t bytes[]; /* Key, then value. A tombstone keeps 8 bytes: when it was made, in milliseconds. */
} wan_entry;

enum { WAN_ENTRY_LIVE = 0, WAN_ENTRY_INVALID = 1, WAN_ENTRY_TOMBSTONE = 2 };

/* Entries lie at multiples of 16 below 2^48. */
#define WAN_SLOT_TAG_BITS   20
#define WAN_SLOT_ENTRY_BITS (64 - WAN_SLOT_TAG_BITS)
#define WAN_LINE_SLOTS      8u
typedef uint64_t wan_slot; /* 0: free, as all behind it in the line are. */
typedef struct {
    _Alignas(64) wan_slot slots[WAN_LINE_SLOTS];
} wan_line;

/* A tombstone of which only this is kept: two keys with one hash share it. */
typedef struct {
    uint64_t hash, stamp;
} wan_shrunk;
/* Ascending by hash, each once. Never empty. */
typedef struct {
    uint64_t count;
    wan_shrunk items[];
} wan_shrunk_list;

/* One cache line: a table's shards are met at random, and all of them together are to stay near. */
typedef struct {
    _Alignas(64) wan_lock lock;
    uint64_t layout;          /* Where its lines are, a multiple of 64; in the bits below how many (WAN_LAYOUT_*).
                               * 0: there are none. One word, as it is read without the lock too. */
    wan_slab *slab;           /* Of its table. */
    uint64_t bytes;           /* Allocated for entries. May be read without the lock: wan_read. */
    uint64_t tombstone_bytes; /* Those of tombstones with their key, slots included. */
    wan_shrunk_list *shrunk;  /* NULL: there are none. */
    uint32_t used;            /* Slots taken: live entries and tombstones. used <= 3/4 of the slots. */
    uint32_t tombstones;      /* Those with their key, in slots. */
    /* 8 bytes each: the records of these, as a log holds them, more or less. Read by wan_table_shrunk_log_bytes. */
    uint32_t shrunk_log_words;
    /* No tombstone with its key has a stamp of an earlier second. Of no meaning where there is none. */
    uint32_t oldest_s;
} wan_shard;

_Static_assert(sizeof(wan_shard) == 64, "a shard is a cache line");

#define WAN_LAYOUT_SHIFT 31u /* The lines are 1 << so much. */
/* They are laid out by wan_secret_hash: too many keys had met in one place. Else by the hash. */
#define WAN_LAYOUT_BY_SECRET_HASH 32u

enum { WAN_BUCKET_PRIMARY = 0 }; /* Its changes are made here. */

/* A part of a region: a run of its table's shards, and what its keys have in common in its queues. */
typedef struct {
    /* Of a queue that is divided by buckets its partition is `number` modulo the partitions. */
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
    /* The stored version is later, or of two contents of one version the stored one is: a conflict that lost. */
    WAN_LOST,
    /* Another site's version meets ours and a resolver is to be asked; nothing was changed. */
    WAN_ASK,
    WAN_OUT_OF_MEMORY,
    WAN_UNMET, /* What the change asks for is not there; nothing was changed. */
    WAN_SAME,  /* The very version and value that are stored: the event has been applied before. */
    /* The key is not there, and may have been destroyed later: of that only a hash, or nothing, is remembered. */
    WAN_FORGOTTEN,
} wan_outcome;

enum { WAN_ASK_NOBODY = 0, WAN_ASK_RESOLVER = 1, WAN_ASK_DECIDED = 2 };

typedef struct {
    const uint8_t *key, *value;
    uint32_t value_length;
    uint16_t key_length;
    uint8_t key_form, value_form, operation, stamp_site;
    uint64_t hash;
    uint64_t stamp;          /* In: proposed. Out: as stored (a local one is raised over what it replaces). */
    uint64_t absent_below;   /* From elsewhere: destroys with stamps below this may have been forgotten; 0: none. */
    uint8_t flags;           /* WAN_FLAG_GIVEN, WAN_FLAG_FORCED: as the event carries them. */
    uint8_t local;           /* Made here: always later than what is stored. */
    uint8_t ask;             /* WAN_ASK_*: a resolver is installed, or has decided for the change. */
    uint8_t fault;           /* Of a row in a bulk call: the number of the reason why it is refused; 0: it is not. */
    uint8_t waits;           /* Out of the put path: a queue took the event whose makers wait for its disk. */
    int64_t tombstone_bytes; /* Out, where the outcome is WAN_DESTROYED: by how much the bytes of tombstones grew. */
} wan_change;

/* With `buckets` buckets, from 1 to WAN_BUCKETS_MAX; else WAN_INVALID. */
wan_status wan_table_init(wan_table *table, uint32_t buckets);
void wan_table_close(wan_table *table);

static inline wan_shard *wan_table_shard(const wan_table *table, uint64_t hash)
{
    return &table->shards[wan_hash_bucket(hash, table->shard_count)];
}

static inline wan_bucket *wan_table_bucket(const wan_table *table, uint64_t hash)
{
    return &table->buckets[wan_hash_bucket(hash, table->bucket_count)];
}

/* All below: the caller holds the shard's lock. */
wan_outcome wan_table_apply(wan_shard *shard, wan_change *change);
/* The same with a version that has no value: what it brings is its key, and that is there. An entry that lost the value
 * of this very version does not get it back by wan_table_apply: the event has been applied before. */
wan_outcome wan_table_invalidate(wan_shard *shard, wan_change *change);
/* What apply would do, changing nothing: for callers that must reserve elsewhere first. */
wan_outcome wan_table_decide(wan_shard *shard, wan_change *change);
wan_entry *wan_table_find(const wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length,
                          uint8_t key_form);
/* Whether the entry is what this very change made it. */
int wan_table_made_by(const wan_entry *entry, const wan_change *change);
/* Takes an entry out without a trace (local destroy). True if it was there. */
int wan_table_forget(wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length, uint8_t key_form);
/* Drops tombstones with stamps below `below`; those with their key only if they were made before `before_ms`, and where
 * all of a shard have later stamps than that, none. Returns how many. */
uint64_t wan_table_expire(wan_shard *shard, uint64_t before_ms, uint64_t below);
/* The highest stamp of those that this would drop; 0: none. */
uint64_t wan_table_newest_to_expire(const wan_shard *shard, uint64_t before_ms, uint64_t below);
/* Keeps of every tombstone its hash and stamp only. WAN_NO_MEMORY: nothing changed. */
wan_status wan_table_shrink(wan_shard *shard);
/* The bytes of shrunk ones in a log, more or less. Without the lock. */
static inline uint64_t wan_table_shrunk_log_bytes(const wan_shard *shard)
{
    return (uint64_t)__atomic_load_n(&shard->shrunk_log_words, __ATOMIC_RELAXED) * 8;
}
/* Whether that costs little for each of them: the whole shard is looked at. */
static inline int wan_table_is_worth_shrinking(const wan_shard *shard)
{
    return shard->tombstones >= 32 && (uint64_t)shard->tombstones * 16 >= shard->used;
}
/* The stamp of the shrunk tombstone with this hash; 0: there is none. */
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

/* The slots of a line whose bits of the hash are these: the bit of each, without a branch, as where the key stands
 * cannot be foreseen. Free slots may be among them. */
#if defined(__SSE2__)
static inline uint32_t wan_line_matches(const wan_line *line, uint64_t hash)
{
    const __m128 *pairs = (const __m128 *)line->slots;
    __m128i tag = _mm_set1_epi32((int)(uint32_t)(hash << WAN_SLOT_ENTRY_BITS >> 32));
    __m128i bits = _mm_set1_epi32((int)(UINT32_MAX << (32 - WAN_SLOT_TAG_BITS)));
    __m128i low = _mm_castps_si128(_mm_shuffle_ps(pairs[0], pairs[1], 0xdd)); /* The upper halves. */
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

/* To look at each entry of a shard: `wan_shard_entry` of 0 to `wan_shard_slots` - 1, NULL where there is none. */
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

/* Everything that was in a shard, to be freed without its lock. */
typedef struct {
    uint64_t layout;
    wan_shrunk_list *shrunk;
    wan_slab *slab;
} wan_shard_content;
wan_shard_content wan_table_take_all(wan_shard *shard);
void wan_table_free(wan_shard_content content);
/* A table gives back what it keeps to be fast soon. */
static inline void wan_table_rest(wan_table *table) { wan_slab_rest(&table->slab); }

static inline const uint8_t *wan_entry_value(const wan_entry *entry) { return entry->bytes + entry->key_length; }
static inline uint64_t wan_entry_hash(const wan_entry *entry)
{
    return wan_key_hash(entry->bytes, entry->key_length, entry->key_form);
}

/* Buckets. These take and release the locks of the bucket's shards, one after the other; none holds two of a table. */

/* `bytes`: of entries and slots. */
typedef struct {
    uint64_t entries, tombstones, shrunk, bytes;
} wan_bucket_counts;
wan_bucket_counts wan_table_bucket_count(wan_table *table, const wan_bucket *bucket);
/* Calls `visit` for each entry and tombstone, under its entry lock, until it returns something but WAN_OK. */
typedef wan_status wan_entry_visit(void *context, wan_shard *shard, const wan_entry *entry);
wan_status wan_table_bucket_each(wan_table *table, const wan_bucket *bucket, wan_entry_visit *visit, void *context);
/* A number that two buckets with the same keys, versions and contents have in common, in whatever order these came
 * there. Tombstones do not count: each member drops them in its own time. */
uint64_t wan_table_bucket_digest(wan_table *table, const wan_bucket *bucket);
/* Brings what is in a bucket into the same one of another table with as many buckets: where that has a later version it
 * stays. Its tombstones are as old as they were. WAN_NO_MEMORY: as far as there was memory. */
wan_status wan_table_bucket_copy(wan_table *table, const wan_bucket *bucket, wan_table *to);
/* Everything in it goes, its tombstones too. Returns how many entries there were, with tombstones of either kind. */
uint64_t wan_table_bucket_drop(wan_table *table, const wan_bucket *bucket);

/* Many changes one after the other wait less if their slots, and then their entries, are fetched ahead: of some dozens
 * first all slots, then all entries. Both look at a shard without its lock, and use nothing of what they see but as an
 * address to fetch. */
static inline void wan_table_prefetch_slot(const wan_table *table, uint64_t hash)
{
    uint64_t layout = __atomic_load_n(&wan_table_shard(table, hash)->layout, __ATOMIC_RELAXED);
    if (layout) __builtin_prefetch(wan_layout_lines(layout) + (hash & wan_layout_mask(layout)));
}

#define WAN_PREFETCH_BYTES_MAX 512u /* Of an entry; the rest follows by itself. */

/* `bytes`: of key and value, as far as the caller knows. What is replaced meanwhile stays mapped (wan_slab), so there
 * is nothing to fault on; but sanitizers look at every read, and this one is a race that they need not see. */
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

#endif
