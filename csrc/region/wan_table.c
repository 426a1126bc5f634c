/* Owns how a region's entries lie in lines of slots, how versions are compared, and what becomes of tombstones. */
#include "region/wan_table.h"

#include <stdlib.h>

#include "base/wan_clock.h"
#include "base/wan_memory.h"
#include "base/wan_thread.h"
#include "region/wan_logged.h"

#define TOMBSTONE_BYTES 8u
/* The most full lines on the way to a free slot before a shard is laid out by the secret hash. Chance alone makes a few
 * dozens. */
#define LINES_PASSED_MAX 128u

wan_status wan_table_init(wan_table *table, uint32_t buckets)
{
    memset(table, 0, sizeof *table);
    if (buckets == 0 || buckets > WAN_BUCKETS_MAX)
        return WAN_FAIL(WAN_INVALID, "%" PRIu32 " buckets; a region has 1 to %u", buckets, WAN_BUCKETS_MAX);
    uint32_t shards = buckets < WAN_TABLE_SHARDS ? (WAN_TABLE_SHARDS + buckets / 2) / buckets : 1;
    table->bucket_count = buckets;
    table->shard_count = buckets * shards;
    table->shards = aligned_alloc(_Alignof(wan_shard), table->shard_count * sizeof *table->shards);
    table->buckets = malloc(buckets * sizeof *table->buckets);
    if (!table->shards || !table->buckets || wan_slab_init(&table->slab) != WAN_OK) {
        wan_table_close(table);
        return WAN_FAIL(WAN_NO_MEMORY, "no memory for a region's table");
    }
    memset(table->shards, 0, table->shard_count * sizeof *table->shards);
    for (uint32_t n = 0; n < table->shard_count; n++) table->shards[n].slab = &table->slab;
    for (uint32_t n = 0; n < buckets; n++)
        table->buckets[n] =
            (wan_bucket){.number = n, .first_shard = n * shards, .shard_count = shards, .role = WAN_BUCKET_PRIMARY};
    return WAN_OK;
}

void wan_table_close(wan_table *table)
{
    if (table->slab.stripes) {
        WAN_DEBUG_CHECK(table->shards);
        for (uint32_t n = 0; n < table->shard_count; n++) wan_table_free(wan_table_take_all(&table->shards[n]));
        wan_slab_close(&table->slab);
    }
    free(table->shards);
    free(table->buckets);
    table->shards = NULL;
    table->buckets = NULL;
}

uint64_t wan_table_free_bytes(wan_table *table)
{
    uint64_t taken = 0;
    for (uint32_t n = 0; n < table->shard_count; n++) {
        const uint64_t layout = __atomic_load_n(&table->shards[n].layout, __ATOMIC_RELAXED);
        taken += wan_read(&table->shards[n].bytes) + (layout ? (wan_layout_mask(layout) + 1) * sizeof(wan_line) : 0);
    }
    const uint64_t all = wan_slab_bytes(&table->slab) + wan_read(&table->slab.large_bytes);
    return all > taken ? all - taken : 0;
}

static inline uint32_t seconds_of(uint64_t ms) { return ms / 1000 < UINT32_MAX ? (uint32_t)(ms / 1000) : UINT32_MAX; }

/* Notes about how many bytes the shrunk tombstones take in a log. */
static inline void set_shrunk_log(wan_shard *shard, uint64_t bytes)
{
    __atomic_store_n(&shard->shrunk_log_words, bytes / 8 < UINT32_MAX ? (uint32_t)(bytes / 8) : UINT32_MAX,
                     __ATOMIC_RELAXED);
}

/* Neighbouring shards take their memory from different stripes. */
static inline uint32_t stripe_of(const wan_shard *shard) { return (uint32_t)((uintptr_t)shard / sizeof *shard); }

/* Entries. */

static inline uint64_t entry_bytes(uint16_t key_length, uint32_t capacity)
{
    return sizeof(wan_entry) + key_length + (uint64_t)capacity;
}

static inline uint64_t bytes_of(const wan_entry *entry) { return entry_bytes(entry->key_length, entry->capacity); }

/* Takes memory for an entry. The value can use all of it. */
static wan_entry *take_entry(wan_shard *shard, const wan_change *change, uint32_t length)
{
    uint64_t least = entry_bytes(change->key_length, length < TOMBSTONE_BYTES ? TOMBSTONE_BYTES : length);
    uint64_t bytes = (least + WAN_SLAB_STEP_BYTES - 1) / WAN_SLAB_STEP_BYTES * WAN_SLAB_STEP_BYTES;
    wan_entry *entry = bytes <= WAN_SLAB_SMALL_BYTES_MAX ? wan_slab_take(shard->slab, stripe_of(shard), (uint32_t)bytes)
                                                         : malloc(bytes);
    if (!entry) return NULL;
    if (bytes > WAN_SLAB_SMALL_BYTES_MAX) wan_slab_note_large(shard->slab, bytes, 1);
    entry->capacity = (uint32_t)(bytes - sizeof *entry - change->key_length);
    entry->key_length = change->key_length;
    entry->key_form = change->key_form;
    entry->reserved = 0;
    wan_copy_small(entry->bytes, change->key, change->key_length);
    return entry;
}

static void give_entry(wan_slab *slab, wan_entry *entry)
{
    uint64_t bytes = bytes_of(entry);
    if (bytes <= WAN_SLAB_SMALL_BYTES_MAX) {
        wan_slab_give(slab, entry, (uint32_t)bytes);
        return;
    }
    wan_slab_note_large(slab, bytes, 0);
    wan_memory_note_freed(bytes);
    free(entry);
}

/* Compares without a call for keys of the usual lengths: two words from the front and two from the back, which
 * overlap. */
static inline int same_bytes(const uint8_t *a, const uint8_t *b, size_t length)
{
    if (length > 32 || length < 8) return memcmp(a, b, length) == 0;
    uint64_t differs = (wan_load64(a) ^ wan_load64(b)) | (wan_load64(a + length - 8) ^ wan_load64(b + length - 8));
    if (length > 16)
        differs |=
            (wan_load64(a + 8) ^ wan_load64(b + 8)) | (wan_load64(a + length - 16) ^ wan_load64(b + length - 16));
    return differs == 0;
}

static inline int is_key(const wan_entry *entry, const uint8_t *key, uint16_t key_length, uint8_t key_form)
{
    return entry->key_length == key_length && entry->key_form == key_form && same_bytes(entry->bytes, key, key_length);
}

/* Lines. */

static inline wan_line *lines_of(const wan_shard *shard) { return wan_layout_lines(shard->layout); }
static inline uint64_t mask_of(const wan_shard *shard) { return wan_layout_mask(shard->layout); }
static inline int is_by_secret_hash(const wan_shard *shard) { return (shard->layout & WAN_LAYOUT_BY_SECRET_HASH) != 0; }
static inline uint64_t slot_bytes_of(uint64_t layout)
{
    return layout ? (wan_layout_mask(layout) + 1) * sizeof(wan_line) : 0;
}

static inline wan_slot slot_of(uint64_t hash, const wan_entry *entry)
{
    WAN_DEBUG_CHECK(((uintptr_t)entry & 15) == 0 && (uintptr_t)entry >> (WAN_SLOT_ENTRY_BITS + 4) == 0);
    return hash << WAN_SLOT_ENTRY_BITS | (uintptr_t)entry >> 4;
}

/* The line in which the search for a key begins. */
static inline uint64_t home_of(const wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length,
                               uint8_t key_form)
{
    return (WAN_UNLIKELY(is_by_secret_hash(shard)) ? wan_secret_hash(key, key_length, key_form) : hash)
           & mask_of(shard);
}

/* The same for the key of a slot. It does not look at the entry unless there are more lines than the slot has bits of
 * the hash. */
static inline uint64_t home_of_slot(const wan_shard *shard, wan_slot slot)
{
    uint64_t mask = mask_of(shard);
    if (WAN_LIKELY(!is_by_secret_hash(shard) && mask >> WAN_SLOT_TAG_BITS == 0))
        return slot >> WAN_SLOT_ENTRY_BITS & mask;
    const wan_entry *entry = wan_slot_entry(slot);
    return home_of(shard, wan_entry_hash(entry), entry->bytes, entry->key_length, entry->key_form);
}

/* Slots of a line that are in use. */
static inline uint32_t taken_of(const wan_line *line)
{
    uint32_t taken = 0;
    while (taken < WAN_LINE_SLOTS && line->slots[taken]) taken++;
    return taken;
}

/* Finds the slot of a key. NULL: the key is not there. */
static inline wan_slot *find_slot(const wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length,
                                  uint8_t key_form)
{
    if (WAN_UNLIKELY(!shard->layout)) return NULL;
    for (uint64_t at = home_of(shard, hash, key, key_length, key_form);; at = (at + 1) & mask_of(shard)) {
        wan_line *line = &lines_of(shard)[at];
        for (uint32_t matches = wan_line_matches(line, hash); matches; matches &= matches - 1) {
            wan_slot *slot = &line->slots[__builtin_ctz(matches)];
            if (*slot && is_key(wan_slot_entry(*slot), key, key_length, key_form)) return slot;
        }
        /* The line is not full, so no key went on from here. */
        if (!line->slots[WAN_LINE_SLOTS - 1]) return NULL;
    }
}

wan_entry *wan_table_find(const wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length,
                          uint8_t key_form)
{
    wan_slot *slot = find_slot(shard, hash, key, key_length, key_form);
    return slot ? wan_slot_entry(*slot) : NULL;
}

static inline uint64_t lines_for(uint64_t slots)
{
    uint64_t lines = 1;
    while (lines * WAN_LINE_SLOTS < slots) lines *= 2;
    return lines;
}

static inline void set_layout(wan_shard *shard, uint64_t layout)
{
    __atomic_store_n(&shard->layout, layout, __ATOMIC_RELAXED);
}

/* Stores a slot in the first line with room, from `home` on. */
static void put_slot(wan_shard *shard, uint64_t home, wan_slot slot)
{
    for (;; home = (home + 1) & mask_of(shard)) {
        wan_line *line = &lines_of(shard)[home];
        uint32_t taken = taken_of(line);
        if (taken == WAN_LINE_SLOTS) continue;
        line->slots[taken] = slot;
        return;
    }
}

/* Moves the slots of a shard into a new array of `lines` lines. Returns 0 if there is no memory; then nothing changed.
 */
static int lay_out(wan_shard *shard, uint64_t lines, int by_secret_hash)
{
    wan_line *to =
        lines <= WAN_SHARD_LINES_MAX ? wan_slab_take_array(shard->slab, stripe_of(shard), lines * sizeof *to) : NULL;
    if (!to) return 0;
    uint64_t before = shard->layout, count = before ? wan_layout_mask(before) + 1 : 0;
    set_layout(shard,
               (uintptr_t)to | (by_secret_hash ? WAN_LAYOUT_BY_SECRET_HASH : 0) | (uint64_t)__builtin_ctzll(lines));
    for (uint64_t at = 0; at < count; at++) {
        const wan_line *line = &wan_layout_lines(before)[at];
        for (unsigned n = 0; n < WAN_LINE_SLOTS && line->slots[n]; n++)
            put_slot(shard, home_of_slot(shard, line->slots[n]), line->slots[n]);
    }
    if (before) wan_slab_give_array(shard->slab, wan_layout_lines(before), slot_bytes_of(before));
    return 1;
}

/* Finds a free slot for a key that is not there; there always is one. If the way to it is long, the shard is laid out
 * by the secret hash, because somebody who knows the hash made these keys. Without memory for that, the next key tries
 * it again. */
static wan_slot *free_slot(wan_shard *shard, const wan_change *change)
{
    for (;;) {
        uint64_t at = home_of(shard, change->hash, change->key, change->key_length, change->key_form), passed = 0;
        uint32_t taken;
        while ((taken = taken_of(&lines_of(shard)[at])) == WAN_LINE_SLOTS) {
            at = (at + 1) & mask_of(shard);
            passed++;
        }
        if (WAN_LIKELY(passed <= LINES_PASSED_MAX) || is_by_secret_hash(shard)
            || !lay_out(shard, mask_of(shard) + 1, 1))
            return &lines_of(shard)[at].slots[taken];
    }
}

/* Doubles the lines of a shard. Returns 0 if there is no memory. */
static int grow(wan_shard *shard)
{
    return lay_out(shard, shard->layout ? (mask_of(shard) + 1) * 2 : 1, is_by_secret_hash(shard));
}

/* Shrinks a shard after entries were removed. A shard grows at three quarters. It shrinks at an eighth, so that at most
 * a quarter is in use. So it is not laid out again soon, and the removed entries pay for the work. Without memory for
 * it the shard stays as it is. */
static void shrink_slots(wan_shard *shard)
{
    if (!shard->layout || (uint64_t)shard->used * 8 > wan_shard_slots(shard)) return;
    if (shard->used == 0) {
        wan_line *lines = lines_of(shard);
        uint64_t bytes = slot_bytes_of(shard->layout);
        set_layout(shard, 0);
        wan_slab_give_array(shard->slab, lines, bytes);
        return;
    }
    uint64_t lines = lines_for((uint64_t)shard->used * 4);
    if (lines <= mask_of(shard)) lay_out(shard, lines, is_by_secret_hash(shard));
}

wan_shard_content wan_table_take_all(wan_shard *shard)
{
    wan_shard_content content = {shard->layout, shard->shrunk, shard->slab};
    shard->shrunk = NULL;
    set_shrunk_log(shard, 0);
    shard->tombstone_bytes = 0;
    wan_set(&shard->bytes, 0);
    set_layout(shard, 0);
    shard->used = shard->tombstones = 0;
    return content;
}

void wan_table_free(wan_shard_content content)
{
    free(content.shrunk);
    if (!content.layout) return;
    for (uint64_t at = 0; at <= wan_layout_mask(content.layout); at++) {
        const wan_line *line = &wan_layout_lines(content.layout)[at];
        for (unsigned n = 0; n < WAN_LINE_SLOTS && line->slots[n]; n++)
            give_entry(content.slab, wan_slot_entry(line->slots[n]));
    }
    wan_slab_give_array(content.slab, wan_layout_lines(content.layout), slot_bytes_of(content.layout));
}

static inline uint64_t tombstone_bytes_of(const wan_entry *entry) { return sizeof(wan_slot) + bytes_of(entry); }

/* The order of the change and of the stored entry, by version and then by content. 0: this change made the entry, so
 * the event has come before. An invalid entry is taken as made by any value of its version. */
static inline int order_of(const wan_change *change, const wan_entry *entry)
{
    int order = wan_version_order(change->stamp, change->stamp_site, entry->stamp, entry->stamp_site);
    if (order) return order;
    int destroys = change->operation == WAN_DESTROY;
    if (entry->state == WAN_ENTRY_INVALID) return destroys;
    return wan_content_order(destroys, change->value_form, change->value, change->value_length,
                             entry->state == WAN_ENTRY_TOMBSTONE, entry->value_form, wan_entry_value(entry),
                             entry->value_length);
}

int wan_table_made_by(const wan_entry *entry, const wan_change *change) { return order_of(change, entry) == 0; }

uint64_t wan_table_shrunk_stamp(const wan_shard *shard, uint64_t hash)
{
    const wan_shrunk_list *list = shard->shrunk;
    uint64_t low = 0, count = wan_shard_shrunk_count(shard), high = count;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (list->items[middle].hash < hash) low = middle + 1;
        else high = middle;
    }
    return low < count && list->items[low].hash == hash ? list->items[low].stamp : 0;
}

/* For a key that is not there: whether a later destroy of it may be known by its hash only, or not at all any more. A
 * destroy is applied in any case. If it were taken for older, the hash could be that of another key. */
static inline int may_be_forgotten(const wan_shard *shard, const wan_change *change)
{
    if (change->operation == WAN_DESTROY || change->flags & WAN_FLAG_FORCED) return 0;
    return change->stamp < change->absent_below
           || (shard->shrunk && change->stamp <= wan_table_shrunk_stamp(shard, change->hash));
}

/* A change made here is later than what is stored, and also later than a destroy that is known only by its hash. */
static inline wan_outcome decide_local(const wan_shard *shard, const wan_entry *entry, int is_live, wan_change *change)
{
    if (change->operation == WAN_DESTROY && !is_live) return WAN_MISSING;
    if (entry && change->stamp <= entry->stamp) change->stamp = entry->stamp + 1;
    if (WAN_UNLIKELY(!is_live && shard->shrunk)) {
        uint64_t destroyed = wan_table_shrunk_stamp(shard, change->hash);
        if (change->stamp <= destroyed) change->stamp = destroyed + 1;
    }
    return change->operation == WAN_DESTROY ? WAN_DESTROYED : is_live ? WAN_UPDATED : WAN_CREATED;
}

/* Decides whether the change takes effect against the stored version. */
static inline wan_outcome decide(const wan_shard *shard, const wan_entry *entry, wan_change *change)
{
    int is_live = entry && entry->state != WAN_ENTRY_TOMBSTONE;
    if (change->local) return decide_local(shard, entry, is_live, change);
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

wan_outcome wan_table_decide(wan_shard *shard, wan_change *change)
{
    return decide(shard, wan_table_find(shard, change->hash, change->key, change->key_length, change->key_form),
                  change);
}

static inline void put_value(wan_entry *entry, const wan_change *change, uint32_t length, const uint8_t *value)
{
    entry->stamp = change->stamp;
    entry->stamp_site = change->stamp_site;
    entry->value_form = change->value_form;
    entry->value_length = length;
    wan_copy_small(entry->bytes + entry->key_length, value, length);
}

/* Whether the entry can stay where it is with a value of this length: the value fits without much waste. */
static inline int fits(const wan_entry *entry, uint32_t length)
{
    return length <= entry->capacity && (uint64_t)length * 2 + 64 >= entry->capacity;
}

/* Whether the shard has to get more slots before another key can come. */
static inline int is_full(const wan_shard *shard)
{
    return !shard->layout || ((uint64_t)shard->used + 1) * 4 > wan_shard_slots(shard) * 3;
}

int wan_table_grows(wan_shard *shard, const wan_change *change, int counts_free)
{
    if (change->operation == WAN_DESTROY) return 0;
    const wan_entry *entry = wan_table_find(shard, change->hash, change->key, change->key_length, change->key_form);
    wan_change looked = *change;
    const wan_outcome outcome = decide(shard, entry, &looked);
    if (outcome != WAN_CREATED && outcome != WAN_UPDATED) return 0;
    if (entry && entry->state != WAN_ENTRY_TOMBSTONE && change->value_length <= entry->capacity) return 0;
    const uint64_t bytes = entry_bytes(change->key_length, change->value_length);
    if (!counts_free || bytes > WAN_SLAB_SMALL_BYTES_MAX || (!entry && is_full(shard))) return 1;
    return !wan_slab_has_room(shard->slab, stripe_of(shard), (uint32_t)bytes);
}

wan_outcome wan_table_apply(wan_shard *shard, wan_change *change)
{
    wan_slot *slot = find_slot(shard, change->hash, change->key, change->key_length, change->key_form);
    wan_entry *entry = slot ? wan_slot_entry(*slot) : NULL;
    wan_outcome outcome = decide(shard, entry, change);
    if (outcome > WAN_DESTROYED) return outcome;
    WAN_DEBUG_CHECK(entry || (!slot && outcome != WAN_UPDATED));
    change->replaced_length = entry && entry->state == WAN_ENTRY_LIVE ? entry->value_length : 0;
    /* Most changes give another value to an entry that stays where it is. */
    if (WAN_LIKELY(outcome == WAN_UPDATED && fits(entry, change->value_length))) {
        put_value(entry, change, change->value_length, change->value);
        entry->state = WAN_ENTRY_LIVE;
        return outcome;
    }

    /* A destroy leaves a tombstone also where there was no entry, because an older create may still be on its way. */
    uint64_t made_ms = outcome == WAN_DESTROYED ? wan_now_ms() : 0;
    const uint8_t *value = outcome == WAN_DESTROYED ? (const uint8_t *)&made_ms : change->value;
    uint32_t length = outcome == WAN_DESTROYED ? TOMBSTONE_BYTES : change->value_length;

    int was_tombstone = entry && entry->state == WAN_ENTRY_TOMBSTONE;
    uint64_t tombstone_bytes = was_tombstone ? tombstone_bytes_of(entry) : 0;
    if (!entry || !fits(entry, length)) {
        wan_entry *fresh = take_entry(shard, change, length);
        if (!fresh) return WAN_OUT_OF_MEMORY;
        if (!slot) {
            if (is_full(shard) && !grow(shard)) {
                give_entry(shard->slab, fresh);
                return WAN_OUT_OF_MEMORY;
            }
            slot = free_slot(shard, change);
            shard->used++;
        } else {
            wan_add_guarded(&shard->bytes, -bytes_of(entry));
            give_entry(shard->slab, entry);
        }
        wan_add_guarded(&shard->bytes, bytes_of(fresh));
        *slot = slot_of(change->hash, fresh);
        entry = fresh;
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
    /* The value goes, whatever it is. */
    if (entry && entry->state != WAN_ENTRY_TOMBSTONE && entry->stamp == change->stamp
        && entry->stamp_site == change->stamp_site)
        change->ask = WAN_ASK_DECIDED;
    wan_outcome outcome = wan_table_apply(shard, change);
    change->ask = asked;
    if (outcome == WAN_CREATED || outcome == WAN_UPDATED || outcome == WAN_SAME)
        wan_table_find(shard, change->hash, change->key, change->key_length, change->key_form)->state =
            WAN_ENTRY_INVALID;
    return outcome;
}

/* Frees a slot and fills it with the last slot of its line. If that line was full, a key of a line behind may have had
 * to go on from here. Then that key moves here, its slot is filled in the same way, and so on. */
static void free_again(wan_shard *shard, wan_slot *slot)
{
    wan_line *lines = lines_of(shard);
    uint64_t mask = mask_of(shard), hole = (uint64_t)((wan_line *)((uintptr_t)slot & ~(uintptr_t)63) - lines);
    for (;;) {
        wan_line *line = &lines[hole];
        uint32_t last = WAN_LINE_SLOTS - 1; /* At least `slot` is in use. */
        while (last > 0 && !line->slots[last]) last--;
        *slot = line->slots[last];
        line->slots[last] = 0;
        if (last < WAN_LINE_SLOTS - 1) return; /* No key went on from here. */
        slot = NULL;
        for (uint64_t at = (hole + 1) & mask; !slot && at != hole; at = (at + 1) & mask) {
            wan_line *behind = &lines[at];
            uint32_t count = taken_of(behind);
            for (uint32_t n = 0; n < count && !slot; n++)
                if (((at - home_of_slot(shard, behind->slots[n])) & mask) >= ((at - hole) & mask))
                    slot = &behind->slots[n];
            if (slot) {
                line->slots[WAN_LINE_SLOTS - 1] = *slot;
                hole = at;
                break;
            }
            if (count < WAN_LINE_SLOTS) return;
        }
        if (!slot) return;
    }
}

/* Removes an entry and frees its memory. */
static void take_out(wan_shard *shard, wan_slot *slot)
{
    wan_entry *entry = wan_slot_entry(*slot);
    wan_add_guarded(&shard->bytes, -bytes_of(entry));
    if (entry->state == WAN_ENTRY_TOMBSTONE) {
        shard->tombstones--;
        shard->tombstone_bytes -= tombstone_bytes_of(entry);
    }
    shard->used--;
    free_again(shard, slot);
    give_entry(shard->slab, entry);
}

int wan_table_forget(wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length, uint8_t key_form)
{
    wan_slot *slot = find_slot(shard, hash, key, key_length, key_form);
    if (!slot || wan_slot_entry(*slot)->state == WAN_ENTRY_TOMBSTONE) return 0;
    take_out(shard, slot);
    shrink_slots(shard);
    return 1;
}

static uint64_t expire_shrunk(wan_shard *shard, uint64_t below)
{
    wan_shrunk_list *list = shard->shrunk;
    uint64_t kept = 0, count = list->count;
    for (uint64_t n = 0; n < count; n++)
        if (list->items[n].stamp >= below) list->items[kept++] = list->items[n];
    if (kept == count) return 0;
    list->count = kept;
    set_shrunk_log(shard, wan_table_shrunk_log_bytes(shard) / count * kept);
    wan_shrunk_list *fitting = kept ? realloc(list, sizeof *list + kept * sizeof *list->items) : NULL;
    if (!kept) free(list);
    /* Otherwise the list stays longer than it needs to be. */
    if (fitting || !kept) shard->shrunk = fitting;
    return count - kept;
}

/* Whether the entry is a tombstone that its stamp and its age let go. */
static inline int is_to_expire(const wan_entry *entry, uint64_t before_ms, uint64_t below)
{
    if (!entry || entry->state != WAN_ENTRY_TOMBSTONE || entry->stamp >= below) return 0;
    uint64_t made_ms;
    memcpy(&made_ms, wan_entry_value(entry), sizeof made_ms);
    return made_ms < before_ms;
}

/* Whether a shard may have such tombstones. It does not look at entries, because each would cost a cache miss. */
static inline int may_have_to_expire(const wan_shard *shard, uint64_t before_ms, uint64_t below)
{
    return shard->tombstones && shard->oldest_s <= seconds_of(below >> 16) && shard->oldest_s <= seconds_of(before_ms);
}

uint64_t wan_table_newest_to_expire(const wan_shard *shard, uint64_t before_ms, uint64_t below)
{
    uint64_t newest = 0;
    for (uint64_t n = 0; n < wan_shard_shrunk_count(shard); n++) {
        uint64_t stamp = shard->shrunk->items[n].stamp;
        if (stamp < below && stamp > newest) newest = stamp;
    }
    if (!may_have_to_expire(shard, before_ms, below)) return newest;
    for (uint64_t at = 0; at < wan_shard_slots(shard); at++) {
        const wan_entry *entry = wan_shard_entry(shard, at);
        if (is_to_expire(entry, before_ms, below) && entry->stamp > newest) newest = entry->stamp;
    }
    return newest;
}

static inline wan_slot *slot_at(const wan_shard *shard, uint64_t at)
{
    return &lines_of(shard)[at / WAN_LINE_SLOTS].slots[at % WAN_LINE_SLOTS];
}

uint64_t wan_table_expire(wan_shard *shard, uint64_t before_ms, uint64_t below)
{
    uint64_t dropped = shard->shrunk ? expire_shrunk(shard, below) : 0;
    if (!may_have_to_expire(shard, before_ms, below)) return dropped;
    uint32_t oldest_s = UINT32_MAX;
    for (uint64_t at = 0; at < wan_shard_slots(shard);) {
        const wan_entry *entry = wan_shard_entry(shard, at);
        /* Another entry moved into this slot, so the slot is looked at again. */
        if (is_to_expire(entry, before_ms, below)) {
            take_out(shard, slot_at(shard, at));
            dropped++;
            continue;
        }
        if (entry && entry->state == WAN_ENTRY_TOMBSTONE) {
            uint32_t second = seconds_of(entry->stamp >> 16);
            if (second < oldest_s) oldest_s = second;
        }
        at++;
    }
    shard->oldest_s = oldest_s;
    shrink_slots(shard);
    return dropped;
}

uint64_t wan_table_clear(wan_shard *shard)
{
    const uint64_t entries = shard->used - shard->tombstones;
    if (!shard->tombstones && !shard->shrunk) {
        wan_table_free(wan_table_take_all(shard));
        return entries;
    }
    for (uint64_t at = 0; at < wan_shard_slots(shard);) {
        const wan_entry *entry = wan_shard_entry(shard, at);
        /* Another entry moves into the slot, so the slot is looked at again. */
        if (entry && entry->state != WAN_ENTRY_TOMBSTONE) take_out(shard, slot_at(shard, at));
        else at++;
    }
    shrink_slots(shard);
    return entries;
}

static int shrunk_order(const void *a, const void *b)
{
    uint64_t one = ((const wan_shrunk *)a)->hash, other = ((const wan_shrunk *)b)->hash;
    return one < other ? -1 : one > other;
}

/* Makes the first `count` items of `list` the shard's shrunk tombstones. They are in any order, and several may have
 * one hash; of these the latest one stays. */
static void set_shrunk(wan_shard *shard, wan_shrunk_list *list, uint64_t count)
{
    qsort(list->items, count, sizeof *list->items, shrunk_order);
    list->count = 0;
    for (uint64_t n = 0; n < count; n++) {
        wan_shrunk *last = list->count ? &list->items[list->count - 1] : NULL;
        if (!last || last->hash != list->items[n].hash) list->items[list->count++] = list->items[n];
        else if (last->stamp < list->items[n].stamp) last->stamp = list->items[n].stamp;
    }
    shard->shrunk = list;
}

static wan_shrunk_list *more_shrunk(const wan_shard *shard, uint64_t more)
{
    return realloc(shard->shrunk,
                   sizeof(wan_shrunk_list) + (wan_shard_shrunk_count(shard) + more) * sizeof(wan_shrunk));
}

wan_status wan_table_shrink(wan_shard *shard)
{
    if (!shard->tombstones) return WAN_OK;
    uint64_t count = wan_shard_shrunk_count(shard);
    wan_shrunk_list *grown = more_shrunk(shard, shard->tombstones);
    if (!grown) return WAN_FAIL(WAN_NO_MEMORY, "no memory to shrink %" PRIu32 " tombstones", shard->tombstones);
    for (uint64_t at = 0; at < wan_shard_slots(shard) && shard->tombstones;) {
        const wan_entry *entry = wan_shard_entry(shard, at);
        if (!entry || entry->state != WAN_ENTRY_TOMBSTONE) {
            at++;
            continue;
        }
        grown->items[count++] = (wan_shrunk){wan_entry_hash(entry), entry->stamp};
        set_shrunk_log(shard, wan_table_shrunk_log_bytes(shard) + wan_logged_size(entry->key_length, 0));
        take_out(shard, slot_at(shard, at));
    }
    set_shrunk(shard, grown, count);
    shrink_slots(shard);
    return WAN_OK;
}

wan_status wan_table_learn_shrunk(wan_shard *shard, const wan_shrunk *items, uint64_t count)
{
    const uint64_t before = wan_shard_shrunk_count(shard); /* The next call may move the list. */
    wan_shrunk_list *grown = more_shrunk(shard, count);
    if (!grown) return WAN_FAIL(WAN_NO_MEMORY, "no memory for %" PRIu64 " tombstones of a snapshot", count);
    memcpy(grown->items + before, items, count * sizeof *items);
    set_shrunk(shard, grown, before + count);
    /* Nobody knows the lengths of their keys. */
    set_shrunk_log(shard, wan_table_shrunk_log_bytes(shard) + (grown->count - before) * wan_logged_size(0, 0));
    return WAN_OK;
}

/* Buckets. */

wan_bucket_counts wan_table_bucket_count(wan_table *table, const wan_bucket *bucket)
{
    wan_bucket_counts counts = {0};
    for (uint32_t n = 0; n < bucket->shard_count; n++) {
        wan_shard *shard = &table->shards[bucket->first_shard + n];
        wan_lock_take(&shard->lock);
        counts.entries += shard->used - shard->tombstones;
        counts.tombstones += shard->tombstones;
        counts.shrunk += wan_shard_shrunk_count(shard);
        counts.bytes += shard->bytes + slot_bytes_of(shard->layout);
        wan_lock_release(&shard->lock);
    }
    return counts;
}

wan_status wan_table_bucket_each(wan_table *table, const wan_bucket *bucket, wan_entry_visit *visit, void *context)
{
    wan_status status = WAN_OK;
    for (uint32_t n = 0; n < bucket->shard_count && status == WAN_OK; n++) {
        wan_shard *shard = &table->shards[bucket->first_shard + n];
        wan_lock_take(&shard->lock);
        for (uint64_t at = 0; at < wan_shard_slots(shard) && status == WAN_OK; at++) {
            const wan_entry *entry = wan_shard_entry(shard, at);
            if (entry) status = visit(context, shard, entry);
        }
        wan_lock_release(&shard->lock);
    }
    return status;
}

static wan_status add_to_digest(void *context, wan_shard *shard, const wan_entry *entry)
{
    (void)shard;
    if (entry->state == WAN_ENTRY_TOMBSTONE) return WAN_OK;
    uint64_t words[4] = {wan_entry_hash(entry), entry->stamp, (uint64_t)entry->stamp_site << 8 | entry->state};
    if (entry->state == WAN_ENTRY_LIVE)
        words[3] = wan_hash(wan_entry_value(entry), entry->value_length, entry->value_form);
    *(uint64_t *)context += wan_hash(words, sizeof words, 0);
    return WAN_OK;
}

uint64_t wan_table_bucket_digest(wan_table *table, const wan_bucket *bucket)
{
    uint64_t digest = 0;
    (void)wan_table_bucket_each(table, bucket, add_to_digest, &digest);
    return digest;
}

static wan_status copy_entry(wan_shard *to, const wan_entry *entry)
{
    wan_change change = {
        .key = entry->bytes,
        .key_length = entry->key_length,
        .key_form = entry->key_form,
        .hash = wan_entry_hash(entry),
        .value_form = WAN_FORM_NONE,
        .operation = WAN_UPDATE,
        .stamp = entry->stamp,
        .stamp_site = entry->stamp_site,
        /* The entry is there, so its key was not destroyed later, whatever the hash of another key says. */
        .flags = WAN_FLAG_FORCED,
    };
    wan_outcome outcome;
    if (entry->state == WAN_ENTRY_INVALID) {
        outcome = wan_table_invalidate(to, &change);
    } else if (entry->state == WAN_ENTRY_LIVE) {
        change.value = wan_entry_value(entry);
        change.value_length = entry->value_length;
        change.value_form = entry->value_form;
        outcome = wan_table_apply(to, &change);
    } else {
        change.operation = WAN_DESTROY;
        outcome = wan_table_apply(to, &change);
        if (outcome == WAN_DESTROYED) {
            wan_entry *copy = wan_table_find(to, change.hash, change.key, change.key_length, change.key_form);
            memcpy(copy->bytes + copy->key_length, wan_entry_value(entry), TOMBSTONE_BYTES);
        }
    }
    return outcome == WAN_OUT_OF_MEMORY ? WAN_FAIL(WAN_NO_MEMORY, "no memory for a replica of a bucket") : WAN_OK;
}

static wan_status copy_shrunk(wan_shard *to, const wan_shard *from)
{
    uint64_t count = wan_shard_shrunk_count(to), more = wan_shard_shrunk_count(from);
    if (!more) return WAN_OK;
    wan_shrunk_list *grown = more_shrunk(to, more);
    if (!grown) return WAN_FAIL(WAN_NO_MEMORY, "no memory for %" PRIu64 " tombstones of a bucket", more);
    memcpy(grown->items + count, from->shrunk->items, more * sizeof *grown->items);
    set_shrunk(to, grown, count + more);
    set_shrunk_log(to, wan_table_shrunk_log_bytes(to) + wan_table_shrunk_log_bytes(from));
    return WAN_OK;
}

wan_status wan_table_bucket_copy(wan_table *table, const wan_bucket *bucket, wan_table *to)
{
    if (table == to) return WAN_FAIL(WAN_INVALID, "a bucket can be copied only into another table");
    if (table->bucket_count != to->bucket_count)
        return WAN_FAIL(WAN_INVALID,
                        "a bucket of a table with %" PRIu32 " buckets cannot be copied into a table with %" PRIu32,
                        table->bucket_count, to->bucket_count);
    wan_status status = WAN_OK;
    for (uint32_t n = 0; n < bucket->shard_count && status == WAN_OK; n++) {
        wan_shard *shard = &table->shards[bucket->first_shard + n], *target = &to->shards[bucket->first_shard + n];
        wan_lock_take(&shard->lock);
        wan_lock_take(&target->lock);
        for (uint64_t at = 0; at < wan_shard_slots(shard) && status == WAN_OK; at++) {
            const wan_entry *entry = wan_shard_entry(shard, at);
            if (entry) status = copy_entry(target, entry);
        }
        if (status == WAN_OK) status = copy_shrunk(target, shard);
        wan_lock_release(&target->lock);
        wan_lock_release(&shard->lock);
    }
    return status;
}

uint64_t wan_table_bucket_drop(wan_table *table, const wan_bucket *bucket)
{
    uint64_t dropped = 0;
    for (uint32_t n = 0; n < bucket->shard_count; n++) {
        wan_shard *shard = &table->shards[bucket->first_shard + n];
        wan_lock_take(&shard->lock);
        dropped += shard->used + wan_shard_shrunk_count(shard);
        wan_shard_content content = wan_table_take_all(shard);
        wan_lock_release(&shard->lock);
        wan_table_free(content);
    }
    return dropped;
}
