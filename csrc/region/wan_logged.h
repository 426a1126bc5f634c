/* Owns the form of a change in a region's log. It does not say who made the change and whom it reaches, as a record of
 * a queue does. It says what recovery has to know. docs/segment_format.md shows it byte by byte. */
#ifndef WAN_LOGGED_H
#define WAN_LOGGED_H
#include "record/wan_item_set.h"
#include "record/wan_record.h"

enum {
    WAN_LOGGED_FORGET = 1, /* The entry was removed on this member only. */
    /* The entry of this version has lost its value, on this member only. */
    WAN_LOGGED_INVALID = 2,
    /* No entry: destroys with stamps up to this one may have been forgotten. */
    WAN_LOGGED_MARK = 4,
    /* With MARK: they were forgotten because no known site could still send an older change. */
    WAN_LOGGED_LET_GO = 8,
    /* It replaces the version with the stamp `other_stamp`, which is later than its own. */
    WAN_LOGGED_RESTAMPED = 16,
    /* All kinds. MARK together with FORGET means: no stamp in the log before this change counts if it is above this
     * one's. `other_stamp` then says up to which stamp destroys may have been forgotten. */
    WAN_LOGGED_KINDS = 31,
    /* Only while it is pending, never on the disk: its value is shorter than the one that it replaces. */
    WAN_LOGGED_SMALLER = 32
};

typedef struct {
    uint32_t value_length;
    uint16_t key_length;
    uint8_t kinds; /* WAN_LOGGED_*. 0: an ordinary change. */
    uint8_t stamp_site;
    uint64_t stamp;
    uint64_t other_stamp;  /* `kinds` says what it is. Otherwise 0. */
    uint8_t operation : 4; /* The low half of a byte. */
    uint8_t key_form : 4;  /* The high half of the same byte. */
    uint8_t value_form;
    uint8_t reserved[6]; /* 0 */
    /* Key, value, and zeros up to a multiple of 8 follow. */
} wan_logged;

_Static_assert(sizeof(wan_logged) == 32, "what lies in a region's log is a format");

static inline uint64_t wan_logged_size(uint32_t key_length, uint32_t value_length)
{
    return wan_align8(sizeof(wan_logged) + (uint64_t)key_length + value_length);
}

/* Bytes of a logged change with its padding. */
static inline uint32_t wan_logged_length(const wan_logged *logged)
{
    return (uint32_t)wan_logged_size(logged->key_length, logged->value_length);
}

static inline uint8_t *wan_logged_key(const wan_logged *logged) { return (uint8_t *)(logged + 1); }
static inline uint8_t *wan_logged_value(const wan_logged *logged)
{
    return wan_logged_key(logged) + logged->key_length;
}

/* Writes a logged change at `to`. `length` is its size. */
static inline void wan_logged_write(uint8_t *restrict to, uint64_t length, const wan_logged head, const uint8_t *key,
                                    const uint8_t *value)
{
    const uint64_t none = 0;
    memcpy(to + length - 8, &none, 8);
    memcpy(to, &head, sizeof head);
    wan_copy_small(to + sizeof head, key, head.key_length);
    wan_copy_small(to + sizeof head + head.key_length, value, head.value_length);
}

/* Checks that a whole, well-formed logged change begins at `at`, within `bytes` bytes. WAN_CORRUPT with the reason
 * otherwise. */
static inline wan_status wan_logged_check(const uint8_t *at, uint64_t bytes)
{
    static const uint8_t zeros[6];
    const wan_logged *logged = (const wan_logged *)at;
    if (bytes < sizeof *logged || logged->value_length > WAN_VALUE_BYTES_MAX || wan_logged_length(logged) > bytes)
        return WAN_FAIL(WAN_CORRUPT, "a change in a region's log is longer than the %" PRIu64 " bytes that are left",
                        bytes);
    if (logged->kinds > WAN_LOGGED_KINDS || logged->operation >= WAN_OPERATION_COUNT
        || logged->value_form >= WAN_FORM_COUNT || memcmp(logged->reserved, zeros, sizeof zeros) != 0)
        return WAN_FAIL(WAN_CORRUPT, "a change in a region's log of unknown kind: %u/%u/%u", logged->kinds,
                        logged->operation, logged->value_form);
    return wan_key_check(wan_logged_key(logged), logged->key_length, logged->key_form);
}

/* Whether a change that did not pass the check at least says where the next one begins. */
static inline int wan_logged_has_end(const wan_logged *logged, uint64_t bytes)
{
    return bytes >= sizeof *logged && logged->value_length <= WAN_VALUE_BYTES_MAX && wan_logged_length(logged) <= bytes;
}

/* The order of two logged changes of one key: first the version, then the content. The later one stays. */
static inline int wan_logged_order(const wan_logged *a, const wan_logged *b)
{
    int order = wan_version_order(a->stamp, a->stamp_site, b->stamp, b->stamp_site);
    return order ? order
                 : wan_content_order(a->operation == WAN_DESTROY, a->value_form, wan_logged_value(a), a->value_length,
                                     b->operation == WAN_DESTROY, b->value_form, wan_logged_value(b), b->value_length);
}

/* Finds the key of a logged change for a wan_item_set, which chooses one change for each key. */
static inline wan_item_key wan_logged_item_key(const uint8_t *item)
{
    const wan_logged *logged = (const wan_logged *)item;
    return (wan_item_key){wan_logged_key(logged), logged->key_length, logged->key_form};
}

#endif
