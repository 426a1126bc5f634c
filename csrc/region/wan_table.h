/* Owns a region's entries: key -> value with its version (stamp, site), under the rule that the later version wins;
 * of one version the content that is later in an order of contents, so that every site ends with the same.
 * Split into shards by the hash's high bits: each has its own lock and grows alone, so that growing a table of ten
 * million keys stalls nobody for longer than one shard's few thousand slots take. A shard's lock is the entry lock: the caller
 * holds it over apply and over appending to the queues, so queue order is version order for every key. */
#ifndef WAN_TABLE_H
#define WAN_TABLE_H
#include "base/wan_hash.h"
#include "base/wan_lock.h"
#include "record/wan_record.h"

#define WAN_TABLE_SHARDS 1024u
#define WAN_SHARD_SLOTS_MAX (1u << 31)

typedef struct {
    uint64_t stamp;
    uint32_t value_length;
    uint32_t capacity;          /* Value bytes there is room for. value_length <= capacity. */
    uint16_t key_length;
    uint8_t stamp_site;
    uint8_t key_form;
    uint8_t value_form;
    uint8_t state;              /* WAN_ENTRY_* */
    uint16_t reserved;
    uint8_t bytes[];            /* Key, then value. A tombstone keeps 8 bytes: when it was made, in milliseconds. */
} wan_entry;

enum { WAN_ENTRY_LIVE = 0, WAN_ENTRY_INVALID = 1, WAN_ENTRY_TOMBSTONE = 2 };

typedef struct { uint64_t hash; wan_entry *entry; } wan_slot;

/* A tombstone of which only this is kept: two keys with one hash share it. */
typedef struct { uint64_t hash, stamp; } wan_shrunk;

/* One cache line: a table's shards are met at random, and all of them together are to stay near. */
typedef struct {
    _Alignas(64) wan_lock lock;
    uint32_t used;              /* Slots taken: live entries and tombstones. used <= 3/4 of mask + 1. */
    uint32_t tombstones;        /* Those with their key, in slots. */
    uint32_t mask;
    uint32_t by_seat : 1;       /* Its slots are laid out by wan_seat_hash: too many keys had met in one place. Else by the hash. */
    uint32_t shrunk_count : 31;
    wan_slot *slots;            /* NULL while the shard is empty. */
    uint64_t bytes;             /* Allocated for entries. May be read without the lock: wan_read. */
    uint64_t tombstone_bytes;   /* Those of tombstones with their key, slots included. */
    wan_shrunk *shrunk;         /* Ascending by hash, each once. */
    uint32_t shrunk_log_words;  /* 8 bytes each: the records of these, as a log holds them, more or less. Read by wan_table_shrunk_log_bytes. */
    uint32_t oldest_s;          /* No tombstone with its key has a stamp of an earlier second. Of no meaning where there is none. */
} wan_shard;

_Static_assert(sizeof(wan_shard) == 64, "a shard is a cache line");

typedef struct {
    wan_shard *shards;
} wan_table;

typedef enum {
    WAN_CREATED, WAN_UPDATED, WAN_DESTROYED,
    WAN_MISSING,                /* A local destroy of a key that is not there. */
    WAN_LOST,                   /* The stored version is later, or of two contents of one version the stored one is: a conflict that lost. */
    WAN_ASK,                    /* Another site's version meets ours and a resolver is to be asked; nothing was changed. */
    WAN_OUT_OF_MEMORY,
    WAN_UNMET,                  /* What the change asks for is not there; nothing was changed. */
    WAN_SAME,                   /* The very version and value that are stored: the event has been applied before. */
    WAN_FORGOTTEN,              /* The key is not there, and may have been destroyed later: of that only a hash, or nothing, is remembered. */
} wan_outcome;

enum { WAN_ASK_NOBODY = 0, WAN_ASK_RESOLVER = 1, WAN_ASK_DECIDED = 2 };

typedef struct {
    const uint8_t *key, *value;
    uint32_t value_length;
    uint16_t key_length;
    uint8_t key_form, value_form, operation, stamp_site;
    uint64_t hash;
    uint64_t stamp;             /* In: proposed. Out: as stored (a local one is raised over what it replaces). */
    uint64_t absent_below;      /* From elsewhere: destroys with stamps below this may have been forgotten; 0: none. */
    uint8_t flags;              /* WAN_FLAG_GIVEN, WAN_FLAG_FORCED: as the event carries them. */
    uint8_t local;              /* Made here: always later than what is stored. */
    uint8_t ask;                /* WAN_ASK_*: a resolver is installed, or has decided for the change. */
    uint8_t keep;               /* Out: an entry (or tombstone) was there. */
    uint8_t waits;              /* Out of the put path: a queue took the event whose makers wait for its disk. */
    int64_t tombstone_bytes;    /* Out, where the outcome is WAN_DESTROYED: by how much the bytes of tombstones grew. */
} wan_change;

wan_status wan_table_init(wan_table *table);
void wan_table_close(wan_table *table);

static inline wan_shard *wan_table_shard(const wan_table *table, uint64_t hash)
{
    return &table->shards[hash >> 54];
}

/* All below: the caller holds the shard's lock. */
wan_outcome wan_table_apply(wan_shard *shard, wan_change *change);
/* The same with a version that has no value: what it brings is its key, and that is there. An entry that lost the value of this very version
 * does not get it back by wan_table_apply: the event has been applied before. */
wan_outcome wan_table_invalidate(wan_shard *shard, wan_change *change);
/* What apply would do, changing nothing: for callers that must reserve elsewhere first. */
wan_outcome wan_table_judge(wan_shard *shard, wan_change *change);
wan_entry *wan_table_find(const wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length, uint8_t key_form);
/* Whether the entry is what this very change made it. */
int wan_table_made_by(const wan_entry *entry, const wan_change *change);
/* Takes an entry out without a trace (local destroy). True if it was there. */
int wan_table_forget(wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length, uint8_t key_form);
/* Drops tombstones with stamps below `below`; those with their key only if they were made before `before_ms`, and where all of a shard have later stamps
 * than that, none. Returns how many. */
uint64_t wan_table_expire(wan_shard *shard, uint64_t before_ms, uint64_t below);
/* The highest stamp of those that this would drop; 0: none. */
uint64_t wan_table_newest_to_expire(const wan_shard *shard, uint64_t before_ms, uint64_t below);
/* Keeps of every tombstone its hash and stamp only. WAN_NO_MEMORY: nothing changed. */
wan_status wan_table_shrink(wan_shard *shard);
/* The bytes of shrunk ones in a log, more or less. Without the lock. */
static inline uint64_t wan_table_shrunk_log_bytes(const wan_shard *shard) { return (uint64_t)__atomic_load_n(&shard->shrunk_log_words, __ATOMIC_RELAXED) * 8; }
/* Whether that costs little for each of them: the whole shard is looked at. */
static inline int wan_table_is_worth_shrinking(const wan_shard *shard) { return shard->tombstones >= 32 && (uint64_t)shard->tombstones * 16 >= shard->used; }
/* The stamp of the shrunk tombstone with this hash; 0: there is none. */
uint64_t wan_table_shrunk_stamp(const wan_shard *shard, uint64_t hash);

/* Everything that was in a shard, to be freed without its lock. */
typedef struct { wan_slot *slots; uint64_t mask; wan_shrunk *shrunk; } wan_shard_content;
wan_shard_content wan_table_take_all(wan_shard *shard);
void wan_table_free(wan_shard_content content);

static inline const uint8_t *wan_entry_value(const wan_entry *entry) { return entry->bytes + entry->key_length; }

static inline void wan_table_prefetch_slot(const wan_table *table, uint64_t hash)
{
    const wan_shard *shard = wan_table_shard(table, hash);
    if (shard->slots) __builtin_prefetch(&shard->slots[hash & shard->mask]);
}

/* Reads a slot only to warm the cache: what it sees is not used. The slots array itself is replaced under the lock, so the
 * address is taken under it. */
static inline void wan_prefetch_entry(const wan_table *table, uint64_t hash)
{
    wan_shard *shard = wan_table_shard(table, hash);
    wan_lock_take(&shard->lock);
    if (shard->slots) {
        uint64_t at = hash & shard->mask;
        while (shard->slots[at].entry && shard->slots[at].hash != hash) at = (at + 1) & shard->mask;
        const wan_entry *entry = shard->slots[at].entry;
        if (entry) {
            __builtin_prefetch(entry);
            __builtin_prefetch((const char *)entry + 64, 1);
            __builtin_prefetch((const char *)entry + 128, 1);
        }
    }
    wan_lock_release(&shard->lock);
}

#endif
