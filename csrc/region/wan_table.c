/* Entries of a region: open addressing with linear probing, versions, tombstones. */
#include "region/wan_table.h"

#include <stdlib.h>

#include "base/wan_clock.h"
#include "base/wan_memory.h"
#include "base/wan_thread.h"

#define FIRST_SLOTS 8u
#define TOMBSTONE_BYTES 8u
#define PROBES_MAX 1024u        /* Behind one another in a shard before it is laid out by seats. By chance there are a few hundred. */

wan_status wan_table_init(wan_table *table)
{
    table->shards = aligned_alloc(_Alignof(wan_shard), WAN_TABLE_SHARDS * sizeof *table->shards);
    if (!table->shards) return WAN_FAIL(WAN_NO_MEMORY, "no memory for a region's table");
    memset(table->shards, 0, WAN_TABLE_SHARDS * sizeof *table->shards);
    return WAN_OK;
}

void wan_table_close(wan_table *table)
{
    for (uint32_t n = 0; table->shards && n < WAN_TABLE_SHARDS; n++) wan_table_free(wan_table_take_all(&table->shards[n]));
    free(table->shards);
    table->shards = NULL;
}

static inline uint32_t seconds_of(uint64_t ms) { return ms / 1000 < UINT32_MAX ? (uint32_t)(ms / 1000) : UINT32_MAX; }

static inline void set_shrunk_log(wan_shard *shard, uint64_t bytes)
{
    __atomic_store_n(&shard->shrunk_log_words, bytes / 8 < UINT32_MAX ? (uint32_t)(bytes / 8) : UINT32_MAX, __ATOMIC_RELAXED);
}

wan_shard_content wan_table_take_all(wan_shard *shard)
{
    wan_shard_content content = {shard->slots, shard->mask, shard->shrunk};
    wan_memory_note_freed(shard->bytes);
    shard->shrunk = NULL;
    set_shrunk_log(shard, 0);
    shard->tombstone_bytes = 0;
    shard->shrunk_count = 0;
    wan_set(&shard->bytes, 0);
    shard->slots = NULL;
    shard->mask = 0;
    shard->used = shard->tombstones = 0;
    shard->by_seat = 0;
    return content;
}

void wan_table_free(wan_shard_content content)
{
    free(content.shrunk);
    if (!content.slots) return;
    for (uint64_t at = 0; at <= content.mask; at++) free(content.slots[at].entry);
    wan_memory_note_freed((content.mask + 1) * sizeof *content.slots);
    free(content.slots);
}

/* Without a call for keys of the usual lengths: two words from the front, two from the back, which overlap. */
static inline int same_bytes(const uint8_t *a, const uint8_t *b, size_t length)
{
    if (length > 32 || length < 8) return memcmp(a, b, length) == 0;
    uint64_t differs = (wan_load64(a) ^ wan_load64(b)) | (wan_load64(a + length - 8) ^ wan_load64(b + length - 8));
    if (length > 16)
        differs |= (wan_load64(a + 8) ^ wan_load64(b + 8)) | (wan_load64(a + length - 16) ^ wan_load64(b + length - 16));
    return differs == 0;
}

static inline int is_key(const wan_entry *entry, const uint8_t *key, uint16_t key_length, uint8_t key_form)
{
    return entry->key_length == key_length && entry->key_form == key_form && same_bytes(entry->bytes, key, key_length);
}

/* Where a search for a key begins. */
static inline uint64_t home_of(const wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length, uint8_t key_form)
{
    return (WAN_UNLIKELY(shard->by_seat) ? wan_seat_hash(key, key_length, key_form) : hash) & shard->mask;
}

static inline uint64_t home_of_slot(const wan_shard *shard, const wan_slot *slot)
{
    return home_of(shard, slot->hash, slot->entry->bytes, slot->entry->key_length, slot->entry->key_form);
}

static inline wan_slot *find_slot(const wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length, uint8_t key_form)
{
    if (!shard->slots) return NULL;
    for (uint64_t at = home_of(shard, hash, key, key_length, key_form);; at = (at + 1) & shard->mask) {
        wan_slot *slot = &shard->slots[at];
        if (!slot->entry) return NULL;
        if (slot->hash == hash && is_key(slot->entry, key, key_length, key_form)) return slot;
    }
}

wan_entry *wan_table_find(const wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length, uint8_t key_form)
{
    wan_slot *slot = find_slot(shard, hash, key, key_length, key_form);
    return slot ? slot->entry : NULL;
}

static inline uint64_t slots_of(const wan_shard *shard) { return (uint64_t)shard->mask + 1; }

static int resize(wan_shard *shard, uint64_t capacity)
{
    wan_slot *slots = capacity <= WAN_SHARD_SLOTS_MAX ? calloc(capacity, sizeof *slots) : NULL, *before = shard->slots;
    if (!slots) return 0;
    uint64_t count = before ? slots_of(shard) : 0;
    shard->slots = slots;
    shard->mask = (uint32_t)(capacity - 1);
    for (uint64_t n = 0; n < count; n++) {
        if (!before[n].entry) continue;
        uint64_t at = home_of_slot(shard, &before[n]);
        while (slots[at].entry) at = (at + 1) & shard->mask;
        slots[at] = before[n];
    }
    free(before);
    return 1;
}

/* A free slot for a key that is not there; there is one. Where the way to it is long the shard is laid out by seats: who made these keys knows the hash.
 * Without memory for that it is tried again with the next one. */
static wan_slot *free_slot(wan_shard *shard, const wan_change *change)
{
    for (;;) {
        uint64_t at = home_of(shard, change->hash, change->key, change->key_length, change->key_form), probes = 0;
        for (; shard->slots[at].entry; at = (at + 1) & shard->mask) probes++;
        if (WAN_LIKELY(probes <= PROBES_MAX) || shard->by_seat) return &shard->slots[at];
        shard->by_seat = 1;
        if (!resize(shard, slots_of(shard))) {
            shard->by_seat = 0;
            return &shard->slots[at];
        }
    }
}

static int grow(wan_shard *shard) { return resize(shard, shard->slots ? slots_of(shard) * 2 : FIRST_SLOTS); }

/* After entries were taken out. It grows at three quarters, and shrinks at an eighth, to a quarter at most: it is not resized again soon, and what it
 * costs is paid for by what was taken out. Without memory for it the shard stays as it is. */
static void shrink(wan_shard *shard)
{
    if (!shard->slots || (uint64_t)shard->used * 8 > slots_of(shard)) return;
    if (shard->used == 0) {
        wan_memory_note_freed(slots_of(shard) * sizeof *shard->slots);
        free(shard->slots);
        shard->slots = NULL;
        shard->mask = 0;
        return;
    }
    uint64_t capacity = FIRST_SLOTS, before = slots_of(shard);
    while (capacity < (uint64_t)shard->used * 4) capacity *= 2;
    if (capacity < before && resize(shard, capacity)) wan_memory_note_freed((before - capacity) * sizeof *shard->slots);
}

static inline uint64_t entry_bytes(uint16_t key_length, uint32_t capacity)
{
    return sizeof(wan_entry) + key_length + (uint64_t)capacity;
}

static inline uint64_t tombstone_bytes_of(const wan_entry *entry)
{
    return sizeof(wan_slot) + entry_bytes(entry->key_length, entry->capacity);
}

/* The change against what is stored, by version and then by content: 0 if it is what made the entry, so that the event has come before. An entry
 * that lost its value here is taken for what any value of its version left. */
static inline int order_of(const wan_change *change, const wan_entry *entry)
{
    int order = wan_version_order(change->stamp, change->stamp_site, entry->stamp, entry->stamp_site);
    if (order) return order;
    int destroys = change->operation == WAN_DESTROY;
    if (entry->state == WAN_ENTRY_INVALID) return destroys;
    return wan_content_order(destroys, change->value_form, change->value, change->value_length,
                             entry->state == WAN_ENTRY_TOMBSTONE, entry->value_form, wan_entry_value(entry), entry->value_length);
}

int wan_table_made_by(const wan_entry *entry, const wan_change *change) { return order_of(change, entry) == 0; }

uint64_t wan_table_shrunk_stamp(const wan_shard *shard, uint64_t hash)
{
    uint64_t low = 0, high = shard->shrunk_count;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (shard->shrunk[middle].hash < hash) low = middle + 1;
        else high = middle;
    }
    return low < shard->shrunk_count && shard->shrunk[low].hash == hash ? shard->shrunk[low].stamp : 0;
}

/* Of a key that is not there: whether a later destroy of it may be known by its hash only, or not at all any more. What destroys is applied
 * all the same: were it taken for older, it could be that of another key with the same hash. */
static inline int may_be_forgotten(const wan_shard *shard, const wan_change *change)
{
    if (change->operation == WAN_DESTROY || change->flags & WAN_FLAG_FORCED) return 0;
    return change->stamp < change->absent_below || (shard->shrunk_count && change->stamp <= wan_table_shrunk_stamp(shard, change->hash));
}

/* A change made here is later than what is stored, and than a destroy that is only known by the hash. */
static inline wan_outcome judge_local(const wan_shard *shard, const wan_entry *entry, int is_live, wan_change *change)
{
    if (change->operation == WAN_DESTROY && !is_live) return WAN_MISSING;
    if (entry && change->stamp <= entry->stamp) change->stamp = entry->stamp + 1;
    if (WAN_UNLIKELY(!is_live && shard->shrunk_count)) {
        uint64_t destroyed = wan_table_shrunk_stamp(shard, change->hash);
        if (change->stamp <= destroyed) change->stamp = destroyed + 1;
    }
    return change->operation == WAN_DESTROY ? WAN_DESTROYED : is_live ? WAN_UPDATED : WAN_CREATED;
}

/* The stored version, against the proposed one: does the change take effect? */
static inline wan_outcome judge(const wan_shard *shard, const wan_entry *entry, wan_change *change)
{
    change->keep = entry != NULL;
    int is_live = entry && entry->state != WAN_ENTRY_TOMBSTONE;
    if (change->local) return judge_local(shard, entry, is_live, change);
    if (entry) {
        int order = order_of(change, entry);
        if (order == 0) return WAN_SAME;
        if (change->ask != WAN_ASK_DECIDED) {
            if (entry->stamp_site != change->stamp_site && change->ask && is_live) return WAN_ASK;
            if (order < 0) return WAN_LOST;
        }
    }
    if (!is_live && may_be_forgotten(shard, change)) return WAN_FORGOTTEN;
    if (change->operation == WAN_DESTROY) return WAN_DESTROYED;
    return is_live ? WAN_UPDATED : WAN_CREATED;
}

wan_outcome wan_table_judge(wan_shard *shard, wan_change *change)
{
    return judge(shard, wan_table_find(shard, change->hash, change->key, change->key_length, change->key_form), change);
}

static void put_value(wan_entry *entry, const wan_change *change, uint32_t length, const uint8_t *value)
{
    entry->stamp = change->stamp;
    entry->stamp_site = change->stamp_site;
    entry->value_form = change->value_form;
    entry->value_length = length;
    wan_copy_small(entry->bytes + entry->key_length, value, length);
}

wan_outcome wan_table_apply(wan_shard *shard, wan_change *change)
{
    wan_slot *slot = find_slot(shard, change->hash, change->key, change->key_length, change->key_form);
    wan_entry *entry = slot ? slot->entry : NULL;
    wan_outcome outcome = judge(shard, entry, change);
    if (outcome > WAN_DESTROYED) return outcome;

    /* A destroy leaves a tombstone also where nothing was: an older create may still be on its way. */
    uint64_t made_ms = outcome == WAN_DESTROYED ? wan_now_ms() : 0;
    const uint8_t *value = outcome == WAN_DESTROYED ? (const uint8_t *)&made_ms : change->value;
    uint32_t length = outcome == WAN_DESTROYED ? TOMBSTONE_BYTES : change->value_length;

    int was_tombstone = entry && entry->state == WAN_ENTRY_TOMBSTONE;
    uint64_t tombstone_bytes = was_tombstone ? tombstone_bytes_of(entry) : 0;
    /* In place where the value fits without wasting much more than it needs. */
    if (!entry || length > entry->capacity || (uint64_t)length * 2 + 64 < entry->capacity) {
        uint32_t capacity = length < 8 ? 8 : length;
        wan_entry *fresh = malloc(entry_bytes(change->key_length, capacity));
        if (!fresh) return WAN_OUT_OF_MEMORY;
        if (!slot) {
            if (!shard->slots || ((uint64_t)shard->used + 1) * 4 > slots_of(shard) * 3) {
                if (!grow(shard)) { free(fresh); return WAN_OUT_OF_MEMORY; }
            }
            slot = free_slot(shard, change);
            slot->hash = change->hash;
            shard->used++;
        } else {
            wan_tally(&shard->bytes, -(entry_bytes(entry->key_length, entry->capacity)));
            free(entry);
        }
        fresh->capacity = capacity;
        fresh->key_length = change->key_length;
        fresh->key_form = change->key_form;
        fresh->reserved = 0;
        wan_copy_small(fresh->bytes, change->key, change->key_length);
        wan_tally(&shard->bytes, entry_bytes(change->key_length, capacity));
        slot->entry = entry = fresh;
    }
    put_value(entry, change, length, value);
    entry->state = outcome == WAN_DESTROYED ? WAN_ENTRY_TOMBSTONE : WAN_ENTRY_LIVE;
    shard->tombstones += (uint32_t)(outcome == WAN_DESTROYED) - (uint32_t)was_tombstone;
    if (outcome == WAN_DESTROYED) {
        change->tombstone_bytes = (int64_t)(tombstone_bytes_of(entry) - tombstone_bytes);
        shard->tombstone_bytes += (uint64_t)change->tombstone_bytes;
        uint32_t second = seconds_of(change->stamp >> 16);
        if (shard->tombstones == 1 || second < shard->oldest_s) shard->oldest_s = second;
    } else {
        shard->tombstone_bytes -= tombstone_bytes;
    }
    return outcome;
}

wan_outcome wan_table_invalidate(wan_shard *shard, wan_change *change)
{
    change->operation = WAN_UPDATE;
    change->value = NULL;
    change->value_length = 0;
    change->value_form = WAN_FORM_NONE;
    uint8_t asked = change->ask;
    const wan_entry *entry = wan_table_find(shard, change->hash, change->key, change->key_length, change->key_form);
    if (entry && entry->state != WAN_ENTRY_TOMBSTONE && entry->stamp == change->stamp && entry->stamp_site == change->stamp_site)
        change->ask = WAN_ASK_DECIDED;      /* Whatever its value is, it goes. */
    wan_outcome outcome = wan_table_apply(shard, change);
    change->ask = asked;
    if (outcome == WAN_CREATED || outcome == WAN_UPDATED || outcome == WAN_SAME)
        wan_table_find(shard, change->hash, change->key, change->key_length, change->key_form)->state = WAN_ENTRY_INVALID;
    return outcome;
}

/* Takes a slot out and moves back what had been pushed past it. */
static void take_out(wan_shard *shard, wan_slot *slot)
{
    wan_entry *entry = slot->entry;
    wan_tally(&shard->bytes, -(entry_bytes(entry->key_length, entry->capacity)));
    if (entry->state == WAN_ENTRY_TOMBSTONE) {
        shard->tombstones--;
        shard->tombstone_bytes -= tombstone_bytes_of(entry);
    }
    shard->used--;
    wan_memory_note_freed(entry_bytes(entry->key_length, entry->capacity));
    free(entry);
    uint64_t hole = (uint64_t)(slot - shard->slots);
    for (uint64_t at = (hole + 1) & shard->mask; shard->slots[at].entry; at = (at + 1) & shard->mask) {
        uint64_t home = home_of_slot(shard, &shard->slots[at]);
        if (((at - home) & shard->mask) < ((at - hole) & shard->mask)) continue;
        shard->slots[hole] = shard->slots[at];
        hole = at;
    }
    shard->slots[hole].entry = NULL;
    shard->slots[hole].hash = 0;
}

int wan_table_forget(wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length, uint8_t key_form)
{
    wan_slot *slot = find_slot(shard, hash, key, key_length, key_form);
    if (!slot || slot->entry->state == WAN_ENTRY_TOMBSTONE) return 0;
    take_out(shard, slot);
    shrink(shard);
    return 1;
}

static uint64_t expire_shrunk(wan_shard *shard, uint64_t below)
{
    uint64_t kept = 0, count = shard->shrunk_count;
    for (uint64_t n = 0; n < count; n++)
        if (shard->shrunk[n].stamp >= below) shard->shrunk[kept++] = shard->shrunk[n];
    if (kept == count) return 0;
    shard->shrunk_count = (uint32_t)kept;
    set_shrunk_log(shard, wan_table_shrunk_log_bytes(shard) / count * kept);
    wan_shrunk *fitting = kept ? realloc(shard->shrunk, kept * sizeof *fitting) : NULL;
    if (!kept) free(shard->shrunk);
    if (fitting || !kept) shard->shrunk = fitting;      /* Else it stays longer than it has to be. */
    return count - kept;
}

/* Whether it is a tombstone that goes by its stamp and its age. */
static inline int is_to_expire(const wan_entry *entry, uint64_t before_ms, uint64_t below)
{
    if (!entry || entry->state != WAN_ENTRY_TOMBSTONE || entry->stamp >= below) return 0;
    uint64_t made_ms;
    memcpy(&made_ms, wan_entry_value(entry), sizeof made_ms);
    return made_ms < before_ms;
}

/* Without a look at the entries, which costs a cache miss each. */
static inline int may_have_to_expire(const wan_shard *shard, uint64_t before_ms, uint64_t below)
{
    return shard->tombstones && shard->oldest_s <= seconds_of(below >> 16) && shard->oldest_s <= seconds_of(before_ms);
}

uint64_t wan_table_newest_to_expire(const wan_shard *shard, uint64_t before_ms, uint64_t below)
{
    uint64_t newest = 0;
    for (uint64_t n = 0; n < shard->shrunk_count; n++)
        if (shard->shrunk[n].stamp < below && shard->shrunk[n].stamp > newest) newest = shard->shrunk[n].stamp;
    if (!may_have_to_expire(shard, before_ms, below)) return newest;
    for (uint64_t at = 0; at <= shard->mask; at++) {
        const wan_entry *entry = shard->slots[at].entry;
        if (is_to_expire(entry, before_ms, below) && entry->stamp > newest) newest = entry->stamp;
    }
    return newest;
}

uint64_t wan_table_expire(wan_shard *shard, uint64_t before_ms, uint64_t below)
{
    uint64_t dropped = shard->shrunk_count ? expire_shrunk(shard, below) : 0;
    if (!may_have_to_expire(shard, before_ms, below)) return dropped;
    uint32_t oldest_s = UINT32_MAX;
    for (uint64_t at = 0; at <= shard->mask;) {
        wan_slot *slot = &shard->slots[at];
        if (is_to_expire(slot->entry, before_ms, below)) { take_out(shard, slot); dropped++; continue; }    /* What moved into its place is looked at next. */
        if (slot->entry && slot->entry->state == WAN_ENTRY_TOMBSTONE) {
            uint32_t second = seconds_of(slot->entry->stamp >> 16);
            if (second < oldest_s) oldest_s = second;
        }
        at++;
    }
    shard->oldest_s = oldest_s;
    shrink(shard);
    return dropped;
}

static int shrunk_order(const void *a, const void *b)
{
    uint64_t one = ((const wan_shrunk *)a)->hash, other = ((const wan_shrunk *)b)->hash;
    return one < other ? -1 : one > other;
}

wan_status wan_table_shrink(wan_shard *shard)
{
    if (!shard->tombstones) return WAN_OK;
    uint64_t count = shard->shrunk_count;
    wan_shrunk *grown = realloc(shard->shrunk, (count + shard->tombstones) * sizeof *grown);
    if (!grown) return WAN_FAIL(WAN_NO_MEMORY, "no memory to shrink %" PRIu32 " tombstones", shard->tombstones);
    for (uint64_t at = 0; at <= shard->mask && shard->tombstones;) {
        wan_slot *slot = &shard->slots[at];
        if (!slot->entry || slot->entry->state != WAN_ENTRY_TOMBSTONE) { at++; continue; }
        grown[count++] = (wan_shrunk){slot->hash, slot->entry->stamp};
        set_shrunk_log(shard, wan_table_shrunk_log_bytes(shard) + wan_record_size(slot->entry->key_length, 0, 0, 0));
        take_out(shard, slot);
    }
    qsort(grown, count, sizeof *grown, shrunk_order);
    uint64_t kept = 0;
    for (uint64_t n = 0; n < count; n++) {
        if (!kept || grown[kept - 1].hash != grown[n].hash) grown[kept++] = grown[n];
        else if (grown[kept - 1].stamp < grown[n].stamp) grown[kept - 1].stamp = grown[n].stamp;
    }
    shard->shrunk = grown;
    shard->shrunk_count = (uint32_t)kept;
    shrink(shard);
    return WAN_OK;
}
