/* Entries of a region: open addressing with linear probing, versions, tombstones. */
#include "wan_table.h"

#include <stdlib.h>

#include "wan_clock.h"
#include "wan_thread.h"

#define FIRST_SLOTS 8u
#define TOMBSTONE_BYTES 8u

wan_status wan_table_init(wan_table *table)
{
    table->shards = calloc(WAN_TABLE_SHARDS, sizeof *table->shards);
    return table->shards ? WAN_OK : WAN_FAIL(WAN_NO_MEMORY, "no memory for a region's table");
}

void wan_table_close(wan_table *table)
{
    for (uint32_t n = 0; table->shards && n < WAN_TABLE_SHARDS; n++) {
        wan_shard *shard = &table->shards[n];
        for (uint64_t at = 0; shard->slots && at <= shard->mask; at++) free(shard->slots[at].entry);
        free(shard->slots);
    }
    free(table->shards);
    table->shards = NULL;
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

static wan_slot *find_slot(const wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length, uint8_t key_form)
{
    if (!shard->slots) return NULL;
    for (uint64_t at = hash & shard->mask;; at = (at + 1) & shard->mask) {
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

static int grow(wan_shard *shard)
{
    uint64_t capacity = shard->slots ? (shard->mask + 1) * 2 : FIRST_SLOTS;
    wan_slot *slots = calloc(capacity, sizeof *slots);
    if (!slots) return 0;
    for (uint64_t n = 0; shard->slots && n <= shard->mask; n++) {
        if (!shard->slots[n].entry) continue;
        uint64_t at = shard->slots[n].hash & (capacity - 1);
        while (slots[at].entry) at = (at + 1) & (capacity - 1);
        slots[at] = shard->slots[n];
    }
    free(shard->slots);
    shard->slots = slots;
    shard->mask = capacity - 1;
    return 1;
}

static inline uint64_t entry_bytes(uint16_t key_length, uint32_t capacity)
{
    return sizeof(wan_entry) + key_length + (uint64_t)capacity;
}

/* Whether the entry is what this very change made it: then the event has come before. */
static int is_same(const wan_entry *entry, const wan_change *change)
{
    if (entry->stamp != change->stamp || entry->stamp_site != change->stamp_site) return 0;
    if (change->operation == WAN_DESTROY) return entry->state == WAN_ENTRY_TOMBSTONE;
    if (entry->state == WAN_ENTRY_INVALID) return 1;
    return entry->state == WAN_ENTRY_LIVE && entry->value_form == change->value_form && entry->value_length == change->value_length
        && (change->value_length == 0 || memcmp(wan_entry_value(entry), change->value, change->value_length) == 0);
}

/* The stored version, against the proposed one: does the change take effect? */
static wan_outcome judge(const wan_entry *entry, wan_change *change)
{
    change->keep = entry != NULL;
    int is_live = entry && entry->state != WAN_ENTRY_TOMBSTONE;
    if (change->local) {
        if (change->operation == WAN_DESTROY && !is_live) return WAN_MISSING;
        if (entry && change->stamp <= entry->stamp) change->stamp = entry->stamp + 1;
    } else if (entry && is_same(entry, change)) {
        return WAN_SAME;
    } else if (entry && change->ask != WAN_ASK_DECIDED) {
        if (entry->stamp_site != change->stamp_site && change->ask && is_live) return WAN_ASK;
        if (change->stamp < entry->stamp || (change->stamp == entry->stamp && change->stamp_site < entry->stamp_site))
            return WAN_LOST;
    }
    if (change->operation == WAN_DESTROY) return WAN_DESTROYED;
    return is_live ? WAN_UPDATED : WAN_CREATED;
}

wan_outcome wan_table_judge(wan_shard *shard, wan_change *change)
{
    return judge(wan_table_find(shard, change->hash, change->key, change->key_length, change->key_form), change);
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
    wan_outcome outcome = judge(entry, change);
    if (outcome > WAN_DESTROYED) return outcome;

    /* A destroy leaves a tombstone also where nothing was: an older create may still be on its way. */
    uint64_t made_ms = outcome == WAN_DESTROYED ? wan_now_ms() : 0;
    const uint8_t *value = outcome == WAN_DESTROYED ? (const uint8_t *)&made_ms : change->value;
    uint32_t length = outcome == WAN_DESTROYED ? TOMBSTONE_BYTES : change->value_length;

    int was_tombstone = entry && entry->state == WAN_ENTRY_TOMBSTONE;
    /* In place where the value fits without wasting much more than it needs. */
    if (!entry || length > entry->capacity || (uint64_t)length * 2 + 64 < entry->capacity) {
        uint32_t capacity = length < 8 ? 8 : length;
        wan_entry *fresh = malloc(entry_bytes(change->key_length, capacity));
        if (!fresh) return WAN_OUT_OF_MEMORY;
        if (!slot) {
            if (!shard->slots || (uint64_t)(shard->used + 1) * 4 > (shard->mask + 1) * 3) {
                if (!grow(shard)) { free(fresh); return WAN_OUT_OF_MEMORY; }
            }
            uint64_t at = change->hash & shard->mask;
            while (shard->slots[at].entry) at = (at + 1) & shard->mask;
            slot = &shard->slots[at];
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
    return outcome;
}

wan_outcome wan_table_invalidate(wan_shard *shard, wan_change *change)
{
    change->operation = WAN_UPDATE;
    change->value = NULL;
    change->value_length = 0;
    change->value_form = WAN_FORM_NONE;
    wan_outcome outcome = wan_table_apply(shard, change);
    if (outcome == WAN_CREATED || outcome == WAN_UPDATED || outcome == WAN_SAME)
        wan_table_find(shard, change->hash, change->key, change->key_length, change->key_form)->state = WAN_ENTRY_INVALID;
    return outcome;
}

/* Takes a slot out and moves back what had been pushed past it. */
static void take_out(wan_shard *shard, wan_slot *slot)
{
    wan_entry *entry = slot->entry;
    wan_tally(&shard->bytes, -(entry_bytes(entry->key_length, entry->capacity)));
    shard->tombstones -= entry->state == WAN_ENTRY_TOMBSTONE;
    shard->used--;
    free(entry);
    uint64_t hole = (uint64_t)(slot - shard->slots);
    for (uint64_t at = (hole + 1) & shard->mask; shard->slots[at].entry; at = (at + 1) & shard->mask) {
        uint64_t home = shard->slots[at].hash & shard->mask;
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
    return 1;
}

uint32_t wan_table_expire(wan_shard *shard, uint64_t before_ms)
{
    uint32_t dropped = 0;
    if (!shard->tombstones) return 0;
    for (uint64_t at = 0; at <= shard->mask;) {
        wan_slot *slot = &shard->slots[at];
        uint64_t made_ms = UINT64_MAX;
        if (slot->entry && slot->entry->state == WAN_ENTRY_TOMBSTONE) memcpy(&made_ms, wan_entry_value(slot->entry), sizeof made_ms);
        if (made_ms < before_ms) { take_out(shard, slot); dropped++; }     /* What moved into its place is looked at next. */
        else at++;
    }
    return dropped;
}
