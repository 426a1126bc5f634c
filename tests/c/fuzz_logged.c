/* Fuzzes the check of a change in a region's log. What passes can be read in all its parts without leaving the given
 * bytes. What does not pass says only inside these bytes where the next change begins. */
#include "fuzz.h"
#include "region/wan_logged.h"

const char *const fuzz_name = "fuzz_logged";

void fuzz_once(random_source *source)
{
    static uint8_t bytes[1024] __attribute__((aligned(8))), value[512];
    uint8_t key[FUZZ_KEY_MAX];
    wan_logged head = {.kinds = (uint8_t)random_below(source, WAN_LOGGED_KINDS + 1),
                       .stamp = random_next(source),
                       .stamp_site = (uint8_t)random_next(source),
                       .operation = (uint8_t)random_below(source, WAN_OPERATION_COUNT) & 3,
                       .key_form = (uint8_t)random_below(source, 2),
                       .value_form = (uint8_t)random_below(source, WAN_FORM_COUNT)};
    head.key_length = fuzz_key(source, key, head.key_form);
    head.value_length = random_below(source, sizeof value);
    uint64_t length = wan_logged_size(head.key_length, head.value_length);
    wan_logged_write(bytes, length, head, key, value);
    FUZZ_CHECK(wan_logged_length((const wan_logged *)bytes) == length && wan_logged_check(bytes, length) == WAN_OK);
    if (random_below(source, 4)) fuzz_mutate(source, bytes, random_below(source, 2) ? sizeof head : length);
    if (!random_below(source, 4)) length = random_below(source, (uint32_t)length + 1);
    uint8_t *exact = fuzz_exact(bytes, length);
    const wan_logged *logged = (const wan_logged *)exact;
    if (wan_logged_check(exact, length) == WAN_OK) {
        FUZZ_CHECK(wan_logged_has_end(logged, length) && wan_logged_length(logged) <= length);
        FUZZ_CHECK(wan_logged_value(logged) + logged->value_length <= exact + length);
        fuzz_touch(wan_logged_key(logged), logged->key_length);
        fuzz_touch(wan_logged_value(logged), logged->value_length);
        FUZZ_CHECK(wan_logged_order(logged, logged) == 0);
    } else if (wan_logged_has_end(logged, length)) {
        FUZZ_CHECK(wan_logged_length(logged) >= sizeof head && wan_logged_length(logged) <= length);
    }
    free(exact);
}
