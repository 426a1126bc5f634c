/* The bare hash table: it inserts or updates the rows of a column, with a check of versions, and fetches slots ahead in
 * small groups. It has no locks, no shards and no growth. */
#include "bare.h"

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
    bare_table_end(table);
    free(table);
}

uint64_t bare_table_put(bare_table *table, const uint8_t *keys, const uint8_t *values, uint64_t rows, uint64_t stamp)
{
    uint64_t hashes[2 * GROUP], applied = 0;
    for (uint64_t begin = 0; begin < rows + GROUP; begin += GROUP) {
        for (uint64_t row = begin; row < begin + GROUP && row < rows; row++) {
            hashes[row % (2 * GROUP)] = wan_key_hash(keys + row * KEY_BYTES, KEY_BYTES, WAN_FORM_BYTES);
            bare_prefetch(table, hashes[row % (2 * GROUP)]);
        }
        for (uint64_t row = begin - GROUP; begin && row < begin && row < rows; row++)
            applied += (uint64_t)bare_upsert(table, hashes[row % (2 * GROUP)], keys + row * KEY_BYTES,
                                             values + row * VALUE_BYTES, stamp++);
    }
    return applied;
}

uint64_t bare_table_used(const bare_table *table) { return table->used; }
