/* Owns which bytes are a key: the check that the content of a key fits its form. docs/wire_format.md shows the forms
 * byte by byte. */
#ifndef WAN_FORM_H
#define WAN_FORM_H
#include <string.h>

#include "base/wan_base.h"

enum { /* The forms: how the bytes of a key, a value or a callback argument are to be read. */
       WAN_FORM_BYTES = 0,
       WAN_FORM_TEXT = 1,
       WAN_FORM_TAGGED = 2,
       WAN_FORM_NONE = 3,
       WAN_FORM_INT = 4,
       WAN_FORM_FLOAT = 5,
       WAN_FORM_USER = 6,
       WAN_FORM_COUNT = 7
};

enum { /* The extensions of msgpack in the tagged form. */
       WAN_TAG_INSTANT = -1,
       WAN_TAG_BIG_INT = 1,
       WAN_TAG_TUPLE = 2,
       WAN_TAG_DATE = 3,
       WAN_TAG_NAIVE = 4,
       WAN_TAG_FROZENSET = 5,
       WAN_TAG_DURATION = 6,
       WAN_TAG_TIME = 7,
       WAN_TAG_ZONED = 8,
       WAN_TAG_SET = 9,
       WAN_TAG_DECIMAL = 10,
       WAN_TAG_UUID = 11,
       WAN_TAG_ENUM = 12,
       WAN_TAG_USER = 13
};

#define WAN_TAGGED_DEPTH_MAX 64 /* The most containers inside one another, in keys and in values. */
/* The most containers of one value. An empty list takes one byte here, and 64 bytes in memory. */
#define WAN_TAGGED_CONTAINERS_MAX (1u << 20)
/* The most bytes of an integer that is a key. Python does not print integers of more than 4,300 digits. */
#define WAN_KEY_INT_BYTES_MAX 1024

int wan_is_utf8(const uint8_t *at, size_t length);

/* Whether all bytes are ASCII. It reads words that overlap, so that a key of a usual length needs no loop. */
static inline int wan_is_ascii(const uint8_t *at, size_t length)
{
    uint64_t first = 0, last = 0, all = 0;
    if (length < 8) {
        for (size_t n = 0; n < length; n++) all |= at[n];
        return all < 0x80;
    }
    memcpy(&first, at, 8);
    memcpy(&last, at + length - 8, 8);
    all = first | last;
    for (size_t n = 8; n + 8 < length; n += 8) {
        memcpy(&first, at + n, 8);
        all |= first;
    }
    return (all & 0x8080808080808080ull) == 0;
}

/* Whether a key is of a kind that can be checked here without a call. Most keys are. */
static inline int wan_key_is_plain(const uint8_t *key, size_t length, uint8_t form)
{
    return form == WAN_FORM_BYTES || (form == WAN_FORM_TEXT && wan_is_ascii(key, length))
           || ((form == WAN_FORM_INT || form == WAN_FORM_FLOAT) && length == 8);
}

/* Why these bytes cannot be a key, in words that continue a sentence about the key. NULL: they can. */
const char *wan_key_fault(const uint8_t *key, size_t length, uint8_t form);

/* Does the work of `wan_key_check` for all other keys. */
wan_status wan_key_check_content(const uint8_t *key, size_t length, uint8_t form);

/* Checks that the content of a key fits its form, and is written in the only way in which its object may be written. So
 * two keys are the same object only if their bytes are the same. WAN_CORRUPT with the reason otherwise. */
static inline wan_status wan_key_check(const uint8_t *key, size_t length, uint8_t form)
{
    return WAN_LIKELY(wan_key_is_plain(key, length, form)) ? WAN_OK : wan_key_check_content(key, length, form);
}

#endif
