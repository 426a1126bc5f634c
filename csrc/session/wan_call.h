/* Owns the form of a call: what one member asks another one about keys of which that is primary, and the answer. Both
 * have a head of their own, then the payload. docs/wire_format.md shows the same byte by byte. */
#ifndef WAN_CALL_H
#define WAN_CALL_H
#include "base/wan_base.h"
#include "base/wan_crc32c.h"
#include "record/wan_failure.h"

#define WAN_CALL_MAGIC          0x314b5750u /* "PWK1" */
#define WAN_CALL_BYTES_MAX      (64u << 20) /* The most bytes of a payload. */
#define WAN_CALL_SCAN_MAX       (4u << 20)  /* A scan stops at the end of the shard in which it has so many bytes. */
#define WAN_CALL_ITEMS_MAX      (32u << 20) /* From so many bytes of an answer on, a scan leaves values out. */
#define WAN_CALL_WITHIN_US      10000u      /* The unit of a call's time. */
#define WAN_CALL_DEPTH_MAX      4u          /* Calls made while a call is served, one within the other. */
#define WAN_CALL_VALUE_LEFT_OUT 0xffu /* Instead of a value's form in a scan: the value is asked for by its key. */
#define WAN_CALL_VALUE_NONE     0xfeu /* Instead of a value's form in a scan: the key has no value. */

enum {
    WAN_CALL_REGION = 1, /* Gives the name in the payload the number `region`. It has no answer. */
    WAN_CALL_GET,        /* The value of the key in the payload. */
    WAN_CALL_CHANGE,     /* Makes one change: a record, then the value that the condition expects. */
    WAN_CALL_ROWS,       /* Makes the changes of `count` records, in order. */
    WAN_CALL_COUNT,      /* How many entries the bucket has. */
    WAN_CALL_SCAN,       /* The keys of the bucket from the shard `shard` on, with their values if asked for. */
    WAN_CALL_CLEAR,      /* Takes all entries out of the bucket. */
    WAN_CALL_EVENTS, /* Applies `count` records of other sites, in order. Versions tell repeats: it has no identity. */
    WAN_CALL_ANSWER  /* A wan_answer. */
};

/* Flags of a call. */
enum {
    WAN_CALL_REPEAT = 1, /* A change that an earlier attempt may have made. */
    WAN_CALL_VALUES = 2, /* A SCAN wants values too. */
    WAN_CALL_MARKS = 4,  /* Marks stand behind the records of EVENTS. */
};

enum {
    WAN_ANSWER_DONE = 0,
    WAN_ANSWER_NOT_PRIMARY, /* Nothing was done: the member is not primary. `number` is the newest epoch that it knows.
                             */
    WAN_ANSWER_FAILED,      /* Nothing was done, but for the first `done` rows. The payload says why. */
    WAN_ANSWER_IN_DOUBT,    /* The change may count later, or may have been made before. The payload says why. */
    WAN_ANSWER_GIVEN_UP,    /* Nothing was done, but for the first `done` rows: the site has given the caller up. */
    WAN_ANSWER_STATUS_COUNT
};

/* Flags of an answer. */
enum {
    WAN_ANSWER_LIVE = 1,  /* The key is there, with a value or without. */
    WAN_ANSWER_VALUE = 2, /* The key has, or had, a value: the payload, but for a condition that named it. */
    WAN_ANSWER_HOLDS = 4, /* The condition of a change holds. */
    /* Of a change in doubt: it counts, and fewer replicas had it then than min-in-sync-replicas asks for. `number`: how
     * many had it, and how many are asked for << 32. */
    WAN_ANSWER_UNDER_REPLICATED = 8,
};

typedef struct {
    uint32_t magic;
    uint8_t kind; /* WAN_CALL_* */
    uint8_t flags;
    uint8_t form;      /* Of the key that is read; of the value that a CHANGE expects. */
    uint8_t condition; /* Of a CHANGE: IF_*, or 0. */
    uint32_t length;   /* Bytes of the payload, which follows. */
    uint32_t crc;      /* CRC32C of this head with crc = 0, continued over the payload. */
    uint32_t id;       /* Names the call in its answer. */
    uint16_t region;   /* As REGION named it. */
    uint16_t within;   /* For so many hundredths of a second the caller waits from now on. 0: REGION. */
    uint32_t bucket;
    uint32_t count; /* Of ROWS and EVENTS. */
    uint64_t epoch; /* The epoch that the caller knows of the bucket, in one word (Epoch.word). */
    union {
        uint64_t shard; /* Of a SCAN: the shard within the bucket. */
        /* Of a REPEAT: the epoch that the caller knew when it made the first attempt that may have happened. Not 0. */
        uint64_t since;
    };
    /* Of a change: who asks, the number of the call there, and its slot. 0 otherwise. */
    uint64_t caller;
    uint64_t number : 48, slot : 16;
} wan_call;
_Static_assert(sizeof(wan_call) == 64, "a call is a format");

/* Whether calls of this kind have an identity: they change something, and must not be made twice. */
static inline int wan_call_changes(uint8_t kind)
{
    return kind == WAN_CALL_CHANGE || kind == WAN_CALL_ROWS || kind == WAN_CALL_CLEAR;
}

/* Whether calls of this kind may change something. */
static inline int wan_call_writes(uint8_t kind) { return wan_call_changes(kind) || kind == WAN_CALL_EVENTS; }

/* The marks of EVENTS, one bit for each record: it may have been applied before. The lowest bit of the first word is
 * that of the first record. Bits of no record are 0. */
static inline uint64_t wan_call_marks_bytes(uint32_t count) { return ((uint64_t)count + 63) / 64 * sizeof(uint64_t); }

/* What a call says of the time that its caller waits, and for how long a member works for a call that says so. The
 * fifth that is left is for the way back, and for another attempt: an answer that the change is in doubt comes while
 * the caller can still ask the next primary. */
static inline uint16_t wan_call_within(uint64_t left_us)
{
    uint64_t within = left_us / WAN_CALL_WITHIN_US;
    return (uint16_t)(within == 0 ? 1 : within > UINT16_MAX ? UINT16_MAX : within);
}
static inline uint64_t wan_call_work_us(const wan_call *call)
{
    return (uint64_t)call->within * WAN_CALL_WITHIN_US / 5 * 4;
}

typedef struct {
    uint32_t magic;
    uint8_t kind;    /* WAN_CALL_ANSWER */
    uint8_t status;  /* WAN_ANSWER_* */
    uint8_t outcome; /* Of a CHANGE: wan_outcome. */
    uint8_t form;    /* Of the value in the payload. */
    uint32_t length; /* As in a call, and so is the next. */
    uint32_t crc;
    uint32_t id; /* Of the call. 0: these are the last words of the member, for the connection. */
    uint8_t flags;
    uint8_t reserved[3]; /* 0 */
    /* ELSEWHERE: the newest epoch. THIN: replicas. COUNT, CLEAR: entries. ROWS, EVENTS: how many took effect. SCAN: the
     * shard to go on from, or WAN_NO_LIMIT. */
    uint64_t number;
    uint64_t done; /* Of ROWS: rows that were done before the call stopped. */
} wan_answer;
_Static_assert(sizeof(wan_answer) == 40, "an answer is a format");

/* One entry in the answer to a SCAN. Behind it come the key and the value; then zeros up to a multiple of 8. */
typedef struct {
    uint32_t value_length;
    uint16_t key_length;
    uint8_t key_form;
    uint8_t value_form; /* Or WAN_CALL_VALUE_* */
} wan_call_item;
_Static_assert(sizeof(wan_call_item) == 8, "an item of a scan is a format");

/* The payload of the answer to EVENTS. `failures` wan_call_failure follow it, ascending by their records. */
typedef struct {
    uint32_t conflicts; /* Records that lost against a later version. */
    uint32_t failures;
} wan_call_applied;
_Static_assert(sizeof(wan_call_applied) == 8, "what became of events is a format");
typedef struct {
    uint32_t record; /* Its number in the call, from 0. */
    uint32_t reason; /* WAN_FAILED_* */
} wan_call_failure;
_Static_assert(sizeof(wan_call_failure) == 8, "a failed event of a call is a format");

static inline uint32_t wan_call_crc(const wan_call *call)
{
    wan_call head = *call;
    head.crc = 0;
    return wan_crc32c(wan_crc32c(0, &head, sizeof head), call + 1, call->length);
}
static inline uint32_t wan_answer_crc(const wan_answer *answer)
{
    wan_answer head = *answer;
    head.crc = 0;
    return wan_crc32c(wan_crc32c(0, &head, sizeof head), answer + 1, answer->length);
}

/* Finds the next call in `bytes`. WAN_OK: it is whole, its checksum is right, its payload is as its kind says, and it
 * takes *length bytes with its payload and the zeros behind. WAN_EMPTY: *length more bytes are needed. WAN_CORRUPT: the
 * detail says what is wrong. */
wan_status wan_call_next(const uint8_t *bytes, uint64_t there, uint64_t *length);
/* The same for an answer. The payload of an answer is checked by whom knows what was asked. */
wan_status wan_answer_next(const uint8_t *bytes, uint64_t there, uint64_t *length);
/* Whether the answer's payload is a sequence of items. WAN_CORRUPT: the detail says what is wrong. */
wan_status wan_call_items_check(const uint8_t *payload, uint64_t length);
/* Whether the answer to EVENTS with `count` records says what can have become of them, `applied` of which took effect.
 * WAN_CORRUPT: the detail says what is wrong. */
wan_status wan_call_applied_check(const uint8_t *payload, uint64_t length, uint64_t applied, uint32_t count);

static inline uint64_t wan_call_item_size(const wan_call_item *item)
{
    return wan_align8(sizeof *item + item->key_length + (uint64_t)item->value_length);
}

#endif
