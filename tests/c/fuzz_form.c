/* Fuzzes the check of keys. Well-formed keys pass. Whatever else is given, no byte outside is read. What passes keeps
 * the promises that hold for every key. */
#include "fuzz.h"

const char *const fuzz_name = "fuzz_form";

void fuzz_once(random_source *source)
{
    static const uint8_t forms[] = {WAN_FORM_BYTES, WAN_FORM_TEXT,  WAN_FORM_TAGGED,
                                    WAN_FORM_INT,   WAN_FORM_FLOAT, WAN_FORM_USER};
    static uint8_t bytes[4096];
    uint8_t form = forms[random_below(source, sizeof forms)];
    size_t length = fuzz_key(source, bytes, form);
    FUZZ_CHECK(wan_key_check(bytes, length, form) == WAN_OK);
    /* Tuples in tuples, deeper than allowed; or bytes without any sense. */
    if (!random_below(source, 8)) {
        length = random_below(source, sizeof bytes);
        if (random_below(source, 2))
            for (size_t n = 0; n < length; n++) bytes[n] = (uint8_t)random_next(source);
        else
            for (size_t n = 0; n + 5 <= length; n += 5) {
                size_t rest = length - n - 4;
                memcpy(bytes + n, (uint8_t[]){0xc8, (uint8_t)(rest >> 8), (uint8_t)rest, WAN_TAG_TUPLE, 0x91}, 5);
            }
    } else {
        fuzz_mutate(source, bytes, length ? length : 1);
        if (!random_below(source, 4)) length = random_below(source, (uint32_t)length + 1);
    }
    form = (uint8_t)random_below(source, WAN_FORM_COUNT + 1);
    uint8_t *exact = fuzz_exact(bytes, length);
    if (wan_key_check(exact, length, form) == WAN_OK) {
        FUZZ_CHECK(form < WAN_FORM_COUNT && form != WAN_FORM_NONE);
        FUZZ_CHECK((form != WAN_FORM_INT && form != WAN_FORM_FLOAT) || length == 8);
        FUZZ_CHECK(form != WAN_FORM_TEXT || wan_is_utf8(exact, length));
        FUZZ_CHECK(form != WAN_FORM_TAGGED || (length && (exact[0] & 0xe0) != 0x80)); /* It is no list and no dict. */
        if (length && form == WAN_FORM_TAGGED) FUZZ_CHECK(wan_key_check(exact, length - 1, form) != WAN_OK);
    }
    free(exact);
}
