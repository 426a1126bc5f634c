/* The bare hash table: it inserts or updates the rows of a column, with a check of versions, and fetches slots ahead in
 * groups. It has no locks, no shards and no growth. */
#include "bare.h"

#define GROUP 64

bare_table *bare_table_new(uint64_t keys)
{
    bare_table *table = malloc(sizeof *table);
    if (table && !bare_table_init(table, keys)) {
        free(table);
        return NULL;
    }
    return table;
}

void bare_table_free(bare_table *table)
{
    free(table->entries);
    free(table);
}

uint64_t bare_table_put(bare_table *table, const uint8_t *keys, const uint8_t *values, uint64_t rows, uint64_t stamp)
{
    uint64_t hashes[GROUP], applied = 0;
    for (uint64_t row = 0; row < rows; row += GROUP) {
        uint64_t count = rows - row < GROUP ? rows - row : GROUP;
        for (uint64_t n = 0; n < count; n++) {
            hashes[n] = wan_key_hash(keys + (row + n) * KEY_BYTES, KEY_BYTES, WAN_FORM_BYTES);
            bare_prefetch(table, hashes[n]);
        }
        for (uint64_t n = 0; n < count; n++)
            applied += (uint64_t)bare_upsert(table, hashes[n], keys + (row + n) * KEY_BYTES,
                                             values + (row + n) * VALUE_BYTES, stamp++);
    }
    return applied;
}

uint64_t bare_table_used(const bare_table *table) { return table->used; }
