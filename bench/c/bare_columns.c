/* Replicas two columns into records: no queue, no lock, no partition, no hash. */
#include "bare.h"

/* Writes rows into a ring of `capacity` records, from position `at` on. Returns the position behind the last one. */
uint64_t bare_columns(const uint8_t *keys, const uint8_t *values, uint64_t rows, uint8_t *ring, uint64_t capacity,
                      uint64_t at)
{
    for (uint64_t n = 0; n < rows; n++) {
        lay_out(ring + at * RECORD_BYTES, keys + n * KEY_BYTES, values + n * VALUE_BYTES, n + 1, n + 1);
        if (++at == capacity) at = 0;
    }
    return at;
}

uint64_t bare_record_bytes(void) { return RECORD_BYTES; }
