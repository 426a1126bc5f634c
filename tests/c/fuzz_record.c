/* Fuzzes the check of a record. What passes can be read in all its parts without leaving the given bytes. */
#include "fuzz.h"

const char *const fuzz_name = "fuzz_record";

void fuzz_once(random_source *source)
{
    static uint8_t bytes[FUZZ_RECORD_MAX] __attribute__((aligned(8)));
    uint64_t length = fuzz_record(source, bytes);
    FUZZ_CHECK(wan_record_check(bytes, length) == WAN_OK);
    fuzz_mutate(source, bytes, random_below(source, 2) ? sizeof(wan_record) : length);
    if (!random_below(source, 4)) length = random_below(source, (uint32_t)length + 1);
    uint8_t *exact = fuzz_exact(bytes, length);
    if (wan_record_check(exact, length) == WAN_OK) fuzz_touch_record(exact, length);
    free(exact);
}
