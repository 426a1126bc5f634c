/* Owns the record: one event in the form in which it waits in memory, travels, and lies on the disk.
 * docs/wire_format.md shows it byte by byte. */
#ifndef WAN_RECORD_H
#define WAN_RECORD_H
#include <string.h>

#include "base/wan_base.h"
#include "record/wan_form.h"

#define WAN_KEY_BYTES_MAX      65535u
#define WAN_CALLBACK_BYTES_MAX 65535u
#define WAN_VALUE_BYTES_MAX    (60u << 20) /* So a record fits into one frame (WAN_FRAME_BYTES_MAX). */

/* The operations of events. */
enum { WAN_CREATE = 0, WAN_UPDATE = 1, WAN_DESTROY = 2, WAN_OPERATION_COUNT = 3 };

enum {
    WAN_FLAG_GIVEN = 1, /* A caller gave the stamp. The floors of senders say nothing about such stamps. */
    /* An operator sends the event again, although its key may have been destroyed later. */
    WAN_FLAG_FORCED = 2,
    /* The event may have been told before: its sender said so when it came, or an earlier member of its way. */
    WAN_FLAG_REPEATED = 4,
    WAN_FLAGS = 7 /* All flags. */
};

/* The fields of a record's head, in their order and without gaps, least significant byte first. The struct, its
 * declaration for Cython, the names in Python and the table in docs/wire_format.md are made of the rows
 * (docs/recipes.md).
 *
 * FIELD(type, name, about)
 * HALF(name, about)            half a byte: the low half first, then the high one */
#define WAN_RECORD_FIELDS(FIELD, HALF)                                                                                 \
    FIELD(uint32_t, value_length, "length of the value, at most 62,914,560 (60 MiB)")                                  \
    FIELD(uint16_t, key_length, "length of the key")                                                                   \
    FIELD(uint16_t, callback_length, "length of the callback argument")                                                \
    FIELD(uint64_t, stamp, "hybrid logical clock: milliseconds << 16 | counter")                                       \
    FIELD(uint64_t, event_sequence, "event id: sequence at its producing thread")                                      \
    FIELD(uint32_t, event_member, "event id: member")                                                                  \
    FIELD(uint32_t, event_thread, "event id: thread")                                                                  \
    FIELD(uint16_t, region, "number of the region at the member that wrote the record: see REGION")                    \
    FIELD(uint8_t, flags, "1: a caller gave the stamp; 2: an operator forces it; 4: it may have been applied before")  \
    FIELD(uint8_t, recipients_count, "number of recipients")                                                           \
    FIELD(uint8_t, stamp_site, "site whose clock made the stamp: the second half of the version")                      \
    FIELD(uint8_t, origin_site, "site in which the event happened")                                                    \
    HALF(operation, "0 create, 1 update, 2 destroy")                                                                   \
    HALF(key_form, "form of the key")                                                                                  \
    HALF(value_form, "form of the value")                                                                              \
    HALF(callback_form, "form of the callback argument")

/* A record does not say its position. An entry of a queue, a section of a batch, or a part of a log says that beside
 * the record. So one record may stand in several queues, and its bytes are the same in memory, on the disk and on the
 * wire. Behind the head come key, value, callback argument, recipients (one byte a site), and zeros up to a multiple of
 * 8. */
typedef struct {
#define WAN_FIELD(type, name, about) type name;
#define WAN_HALF(name, about)        uint8_t name : 4;
    WAN_RECORD_FIELDS(WAN_FIELD, WAN_HALF)
#undef WAN_FIELD
#undef WAN_HALF
} wan_record;

typedef struct {
    int bits;
    const char *name, *about;
} wan_record_field;

static const wan_record_field wan_record_fields[] = {
#define WAN_FIELD(type, name, about) {8 * sizeof(type), #name, about},
#define WAN_HALF(name, about)        {4, #name, about},
    WAN_RECORD_FIELDS(WAN_FIELD, WAN_HALF)
#undef WAN_FIELD
#undef WAN_HALF
};

enum {
    WAN_RECORD_FIELDS_COUNT = sizeof wan_record_fields / sizeof wan_record_fields[0],
#define WAN_FIELD(type, name, about) +8 * sizeof(type)
#define WAN_HALF(name, about)        +4
    WAN_RECORD_FIELDS_BITS = 0 WAN_RECORD_FIELDS(WAN_FIELD, WAN_HALF)
#undef WAN_FIELD
#undef WAN_HALF
};

_Static_assert(sizeof(wan_record) * 8 == WAN_RECORD_FIELDS_BITS, "a record's head has no gap that no field names");
_Static_assert(sizeof(wan_record) % 8 == 0, "every record begins at a multiple of 8");

/* The size of a record with parts of these lengths, with its padding. */
static inline uint64_t wan_record_size(uint32_t key_length, uint32_t value_length, uint32_t callback_length,
                                       uint32_t recipients_count)
{
    return wan_align8(sizeof(wan_record) + (uint64_t)key_length + value_length + callback_length + recipients_count);
}

/* Bytes of the whole record with its padding. A multiple of 8. */
static inline uint32_t wan_record_length(const wan_record *record)
{
    return (uint32_t)wan_record_size(record->key_length, record->value_length, record->callback_length,
                                     record->recipients_count);
}

/* The addresses of the parts of a record. */
static inline uint8_t *wan_record_key(const wan_record *record) { return (uint8_t *)(record + 1); }
static inline uint8_t *wan_record_value(const wan_record *record)
{
    return wan_record_key(record) + record->key_length;
}
static inline uint8_t *wan_record_callback(const wan_record *record)
{
    return wan_record_value(record) + record->value_length;
}
static inline uint8_t *wan_record_recipients(const wan_record *record)
{
    return wan_record_callback(record) + record->callback_length;
}

/* The order of the contents of two events of one key and one version: <0, 0 (the same content), or >0. It decides which
 * content stays, so it must be the same on every site. A destroy is later than every value. Values are ordered by form,
 * then length, then bytes. A create and an update have the same effect, and a relay may turn one into the other, so
 * they do not differ here. */
static inline int wan_content_order(int destroys, uint8_t form, const uint8_t *value, uint32_t length,
                                    int other_destroys, uint8_t other_form, const uint8_t *other_value,
                                    uint32_t other_length)
{
    if (destroys || other_destroys) return destroys - other_destroys;
    if (form != other_form) return form < other_form ? -1 : 1;
    if (length != other_length) return length < other_length ? -1 : 1;
    return length ? memcmp(value, other_value, length) : 0;
}

/* The order of two versions: first the stamp, then the site. */
static inline int wan_version_order(uint64_t stamp, uint8_t site, uint64_t other_stamp, uint8_t other_site)
{
    if (stamp != other_stamp) return stamp < other_stamp ? -1 : 1;
    return (int)site - (int)other_site;
}

/* The order of two records of one key: first the version, then the content. The later one stays. */
static inline int wan_record_order(const wan_record *a, const wan_record *b)
{
    int order = wan_version_order(a->stamp, a->stamp_site, b->stamp, b->stamp_site);
    return order ? order
                 : wan_content_order(a->operation == WAN_DESTROY, a->value_form, wan_record_value(a), a->value_length,
                                     b->operation == WAN_DESTROY, b->value_form, wan_record_value(b), b->value_length);
}

/* Copies a few dozen bytes without a call or a loop. At these sizes the copy of the C library, called through the PLT,
 * costs several times as much. It copies one run at the front and one run at the end, which may overlap in the
 * middle. */
static inline void wan_copy_small(uint8_t *restrict to, const uint8_t *restrict from, size_t length)
{
    if (length > 128) {
        memcpy(to, from, length);
        return;
    }
    if (length > 64) {
        memcpy(to, from, 64);
        memcpy(to + length - 64, from + length - 64, 64);
    } else if (length > 32) {
        memcpy(to, from, 32);
        memcpy(to + length - 32, from + length - 32, 32);
    } else if (length >= 16) {
        memcpy(to, from, 16);
        memcpy(to + length - 16, from + length - 16, 16);
    } else if (length >= 8) {
        memcpy(to, from, 8);
        memcpy(to + length - 8, from + length - 8, 8);
    } else if (length >= 4) {
        memcpy(to, from, 4);
        memcpy(to + length - 4, from + length - 4, 4);
    } else if (length) {
        to[0] = from[0];
        to[length / 2] = from[length / 2];
        to[length - 1] = from[length - 1];
    }
}

/* Writes the content behind the head at `to`. The head is complete, and has the lengths. A part without bytes may be
 * NULL. */
static inline __attribute__((always_inline)) void wan_record_fill(uint8_t *restrict to, const uint8_t *key,
                                                                  const uint8_t *value, const uint8_t *callback,
                                                                  const uint8_t *recipients)
{
    const wan_record *head = (const wan_record *)to;
    const uint32_t key_length = head->key_length, value_length = head->value_length,
                   callback_length = head->callback_length;
    const uint32_t recipients_count = head->recipients_count;
    to += sizeof *head;
    wan_copy_small(to, key, key_length);
    to += key_length;
    wan_copy_small(to, value, value_length);
    to += value_length;
    if (WAN_UNLIKELY(callback_length != 0) && callback) {
        wan_copy_small(to, callback, callback_length);
        to += callback_length;
    }
    if (recipients_count == 1) *to = *recipients; /* This is the usual number. */
    else if (recipients) wan_copy_small(to, recipients, recipients_count);
}

/* A head of zeros. */
static const wan_record wan_no_head = {0};

/* Begins a record with a copy of `head`. The head should not have been written just now in small parts, because the
 * processor would wait before it can copy it at once. The caller then sets the fields that differ in the record itself;
 * with wan_no_head these are all. Then wan_record_fill writes the content. */
static inline __attribute__((always_inline)) wan_record *wan_record_begin(uint8_t *to, uint64_t length,
                                                                          const wan_record *head)
{
    const uint64_t none = 0;
    /* This clears the padding. The content is written over the bytes that are no padding. */
    memcpy(to + length - 8, &none, 8);
    memcpy(to, head, sizeof *head);
    return (wan_record *)to;
}

/* Writes a record at `to`: the head, its content, and zeros behind it. `length` is the record's size. The head says how
 * long each part is. */
static inline __attribute__((always_inline)) void wan_record_write(uint8_t *restrict to, uint64_t length,
                                                                   const wan_record head, const uint8_t *key,
                                                                   const uint8_t *value, const uint8_t *callback,
                                                                   const uint8_t *recipients)
{
    WAN_DEBUG_CHECK(length == wan_record_length(&head));
    wan_record_begin(to, length, &head);
    wan_record_fill(to, key, value, callback, recipients);
}

/* Does the work of `wan_record_check` for unusual records, one check after the other. */
wan_status wan_record_check_unusual(const uint8_t *at, uint64_t bytes);

/* Checks that a whole, well-formed record begins at `at`, within `bytes` bytes, and that its key fits its form. Bytes
 * from elsewhere go through this check before any field is used. The check does not read values and callback arguments:
 * a reader checks them itself. WAN_CORRUPT with the reason otherwise. */
static inline wan_status wan_record_check(const uint8_t *at, uint64_t bytes)
{
    const wan_record *record = (const wan_record *)at;
    if (WAN_LIKELY(bytes >= sizeof *record && record->value_length <= WAN_VALUE_BYTES_MAX
                   && wan_record_length(record) <= bytes && record->operation < WAN_OPERATION_COUNT
                   && record->value_form < WAN_FORM_COUNT && record->callback_form < WAN_FORM_COUNT
                   && record->flags <= WAN_FLAGS
                   && wan_key_is_plain(wan_record_key(record), record->key_length, record->key_form)))
        return WAN_OK;
    return wan_record_check_unusual(at, bytes);
}

/* Whether a record that did not pass the check at least says where the next record begins. */
static inline int wan_record_has_end(const wan_record *record, uint64_t bytes)
{
    return bytes >= sizeof *record && record->value_length <= WAN_VALUE_BYTES_MAX && wan_record_length(record) <= bytes;
}

#endif
