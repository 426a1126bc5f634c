/* Owns what the bare reference programs share: the sizes of an event, the record as the core writes it, memory with
 * huge pages, and a hash table with nothing around it. The sizes are constants here, which only a benchmark can afford.
 */
#ifndef BARE_H
#define BARE_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/wan_hash.h"
#include "record/wan_record.h"

#define KEY_BYTES    16
#define VALUE_BYTES  100
#define RECORD_BYTES 160 /* 40 bytes of head, the key, the value, one recipient, padding. */

_Static_assert(RECORD_BYTES == (sizeof(wan_record) + KEY_BYTES + VALUE_BYTES + 1 + 7) / 8 * 8,
               "the same bytes as the core's");

static inline double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void lay_out(uint8_t *to, const uint8_t *key, const uint8_t *value, uint64_t sequence, uint64_t stamp)
{
    wan_record *record = (wan_record *)to;
    *(uint64_t *)(to + RECORD_BYTES - 8) = 0;
    *record = (wan_record){.value_length = VALUE_BYTES,
                           .stamp = stamp,
                           .event_sequence = sequence,
                           .event_member = 1,
                           .event_thread = 1,
                           .region = 1,
                           .key_length = KEY_BYTES,
                           .operation = WAN_UPDATE,
                           .stamp_site = 1,
                           .origin_site = 1,
                           .recipients_count = 1,
                           .callback_form = WAN_FORM_NONE};
    memcpy(to + sizeof *record, key, KEY_BYTES);
    memcpy(to + sizeof *record + KEY_BYTES, value, VALUE_BYTES);
    to[sizeof *record + KEY_BYTES + VALUE_BYTES] = 2;
}

/* Memory of zeros that asks for huge pages before its first write, as the slabs of the core do. NULL: there is none. It
 * lasts until the process ends, or until `bare_give` gets the same size. */
#define HUGE_PAGE_BYTES ((size_t)2 << 20)
static inline size_t whole_pages(size_t bytes) { return (bytes + HUGE_PAGE_BYTES - 1) & ~(HUGE_PAGE_BYTES - 1); }

static inline void *bare_take(size_t bytes)
{
    size_t whole = whole_pages(bytes);
    uint8_t *at = mmap(NULL, whole + HUGE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return NULL;
    uint8_t *aligned = (uint8_t *)whole_pages((uintptr_t)at);
    if (aligned > at) munmap(at, (size_t)(aligned - at));
    if (aligned < at + HUGE_PAGE_BYTES) munmap(aligned + whole, (size_t)(at + HUGE_PAGE_BYTES - aligned));
    madvise(aligned, whole, MADV_HUGEPAGE);
    return aligned;
}

static inline void bare_give(void *at, size_t bytes) { munmap(at, whole_pages(bytes)); }

/* Rows whose entries are fetched at the same time, while those before them are stored. A processor fetches some two
 * dozens of lines at once, and an entry has three. */
#define GROUP 4

/* A hash table with open addressing. An entry is in one place. A stamp of 0: the slot is free. It is never more than
 * half full. */
typedef struct {
    uint64_t hash, stamp;
    uint8_t key[KEY_BYTES];
    uint8_t value[VALUE_BYTES];
    uint32_t value_length;
} bare_entry;
typedef struct {
    bare_entry *entries;
    uint64_t mask, used;
} bare_table;

static inline void bare_prefetch(const bare_table *table, uint64_t hash)
{
    const char *at = (const char *)&table->entries[hash & table->mask];
    __builtin_prefetch(at, 1);
    __builtin_prefetch(at + 64, 1);
    __builtin_prefetch(at + 128, 1);
}

static inline int bare_upsert(bare_table *table, uint64_t hash, const uint8_t *key, const uint8_t *value,
                              uint64_t stamp)
{
    for (uint64_t at = hash & table->mask;; at = (at + 1) & table->mask) {
        bare_entry *entry = &table->entries[at];
        if (entry->stamp == 0) {
            entry->hash = hash;
            memcpy(entry->key, key, KEY_BYTES);
            table->used++;
        } else {
            if (entry->hash != hash || memcmp(entry->key, key, KEY_BYTES) != 0) continue;
            if (stamp < entry->stamp) return 0;
        }
        entry->stamp = stamp;
        memcpy(entry->value, value, VALUE_BYTES);
        entry->value_length = VALUE_BYTES;
        return 1;
    }
}

static inline int bare_table_init(bare_table *table, uint64_t keys)
{
    uint64_t capacity = 64;
    while (capacity < keys * 4 / 3) capacity *= 2;
    table->entries = bare_take(capacity * sizeof *table->entries);
    table->mask = capacity - 1;
    table->used = 0;
    return table->entries != NULL;
}

static inline void bare_table_end(bare_table *table)
{
    bare_give(table->entries, (table->mask + 1) * sizeof *table->entries);
}

#endif
