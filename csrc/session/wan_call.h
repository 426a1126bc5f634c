/* Owns the format of a call and of an answer. A member sends a call about keys to the primary of the keys, and the
 * primary sends the answer. Both formats have a head, then a payload. docs/wire_format.md shows the formats byte by
 * byte. */
#ifndef WAN_CALL_H
#define WAN_CALL_H
#include "base/wan_base.h"
#include "base/wan_crc32c.h"
#include "record/wan_failure.h"

#define WAN_CALL_MAGIC          0x314b5750u /* "PWK1" */
#define WAN_CALL_BYTES_MAX      (64u << 20) /* The most bytes of a payload. */
#define WAN_CALL_SCAN_MAX       (4u << 20)  /* A scan ends with the shard in which the answer reaches so many bytes. */
#define WAN_CALL_ITEMS_MAX      (32u << 20) /* From so many bytes of an answer on, a scan leaves values out. */
#define WAN_CALL_WITHIN_US      10000u      /* The unit of a call's time. */
#define WAN_CALL_DEPTH_MAX      4u          /* The deepest nesting of calls that are made while a call is served. */
#define WAN_CALL_VALUE_LEFT_OUT 0xffu       /* In place of a value's form in a scan: read the value by the key. */
#define WAN_CALL_VALUE_NONE     0xfeu       /* In place of a value's form in a scan: the key has no value. */

enum {
    WAN_CALL_REGION = 1, /* Gives the name in the payload the number `region`. No answer follows. */
    WAN_CALL_GET,        /* The value of the key in the payload. */
    WAN_CALL_CHANGE,     /* Makes a single change: a record, then the value that the condition expects. */
    WAN_CALL_ROWS,       /* Makes the changes of `count` records, in order. */
    WAN_CALL_COUNT,      /* The number of entries in the bucket. */
    WAN_CALL_SCAN,       /* The keys of the bucket from the shard `shard` on, with values if asked for. */
    WAN_CALL_CLEAR,      /* Removes all entries of the bucket. */
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
    WAN_ANSWER_NOT_PRIMARY, /* Nothing was done: the member is not primary. `number`: the member's newest epoch. */
    WAN_ANSWER_FAILED,      /* Nothing was done, but for the first `done` rows. The payload has the reason. */
    WAN_ANSWER_IN_DOUBT,    /* The change may be replicated later, or may be made already. The payload says why. */
    WAN_ANSWER_GIVEN_UP,    /* Nothing was done, but for the first `done` rows: the site has given up the client. */
    WAN_ANSWER_STATUS_COUNT
};

/* Flags of an answer. */
enum {
    WAN_ANSWER_LIVE = 1,  /* The key exists, with a value or without. */
    WAN_ANSWER_VALUE = 2, /* The key has, or had, a value: the payload, unless the condition named the value. */
    WAN_ANSWER_HOLDS = 4, /* The condition of a change holds. */
    /* For a change in doubt: the change is replicated, but to fewer replicas than min-in-sync-replicas asks for.
     * `number`: how many replicas had the change, and how many are asked for << 32. */
    WAN_ANSWER_UNDER_REPLICATED = 8,
};

typedef struct {
    uint32_t magic;
    uint8_t kind; /* WAN_CALL_* */
    uint8_t flags;
    uint8_t form;      /* The form of the key in a GET, of the expected value in a CHANGE. */
    uint8_t condition; /* IF_* of a CHANGE, or 0. */
    uint32_t length;   /* Bytes of the payload behind the head. */
    uint32_t crc;      /* CRC32C of this head with crc = 0, continued over the payload. */
    uint32_t id;       /* The answer has the same id. */
    uint16_t region;   /* The number from a REGION call. */
    uint16_t within;   /* The client waits so many hundredths of a second from now on. 0: REGION. */
    uint32_t bucket;
    uint32_t count; /* Records of ROWS or EVENTS. */
    uint64_t epoch; /* The newest epoch of the bucket that the client knows, as a word (Epoch.word). */
    union {
        uint64_t shard; /* For a SCAN: the shard within the bucket. */
        /* For a REPEAT: the epoch that the client knew at the first attempt that may have made the change. Not 0. */
        uint64_t since;
    };
    /* The identity of a change: the client, the number of the call, and the slot. 0 for all reads and for EVENTS. */
    uint64_t caller;
    uint64_t number : 48, slot : 16;
} wan_call;
_Static_assert(sizeof(wan_call) == 64, "a call is a format");

/* Whether calls of this kind have an identity: they change data, and must not be made twice. */
static inline int wan_call_changes(uint8_t kind)
{
    return kind == WAN_CALL_CHANGE || kind == WAN_CALL_ROWS || kind == WAN_CALL_CLEAR;
}

/* Whether calls of this kind may change data. */
static inline int wan_call_writes(uint8_t kind) { return wan_call_changes(kind) || kind == WAN_CALL_EVENTS; }

/* The bytes of the marks of EVENTS. A mark is a bit for a record: the record may have been applied before. The lowest
 * bit of the first word is the mark of the first record. Bits without a record are 0. */
static inline uint64_t wan_call_marks_bytes(uint32_t count) { return ((uint64_t)count + 63) / 64 * sizeof(uint64_t); }

/* The field `within` of a call whose client waits `left_us` longer, and the time that a member works on a call with the
 * field. A fifth of the time remains for the way back and for a further attempt: an in-doubt answer arrives while the
 * client can still ask the next primary. */
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
    uint8_t outcome; /* wan_outcome of a CHANGE. */
    uint8_t form;    /* The form of the value in the payload. */
    uint32_t length; /* As in a call, like `crc`. */
    uint32_t crc;
    uint32_t id; /* The id of the call. 0: the last words of the member, for the connection. */
    uint8_t flags;
    uint8_t reserved[3]; /* 0 */
    /* NOT_PRIMARY: the newest epoch. UNDER_REPLICATED: replicas. COUNT, CLEAR: entries. ROWS, EVENTS: how many
     * records took effect. SCAN: the shard with which to go on, or WAN_NO_LIMIT. */
    uint64_t number;
    uint64_t done; /* For ROWS: the rows that were done before the call stopped. */
} wan_answer;
_Static_assert(sizeof(wan_answer) == 40, "an answer is a format");

/* An entry in the answer to a SCAN. The key and the value follow, then zeros up to a multiple of 8. */
typedef struct {
    uint32_t value_length;
    uint16_t key_length;
    uint8_t key_form;
    uint8_t value_form; /* Or WAN_CALL_VALUE_* */
} wan_call_item;
_Static_assert(sizeof(wan_call_item) == 8, "an item of a scan is a format");

/* The payload of the answer to EVENTS. `failures` structs wan_call_failure follow, in ascending order of records. */
typedef struct {
    uint32_t conflicts; /* Records that lost against a later version. */
    uint32_t failures;
} wan_call_applied;
_Static_assert(sizeof(wan_call_applied) == 8, "what became of events is a format");
typedef struct {
    uint32_t record; /* The number of the record in the call, from 0. */
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

/* Finds the next call in `bytes`. WAN_OK: the call is whole, the checksum is right, and the payload fits the kind.
 * *length is the size of the call with the payload and the zeros behind. WAN_EMPTY: *length more bytes are needed.
 * WAN_CORRUPT: the detail has the reason. */
wan_status wan_call_next(const uint8_t *bytes, uint64_t there, uint64_t *length);
/* The same for an answer. The caller of the function checks the payload, since only the caller knows the question. */
wan_status wan_answer_next(const uint8_t *bytes, uint64_t there, uint64_t *length);
/* Checks that the payload of an answer is a sequence of items. WAN_CORRUPT: the detail has the reason. */
wan_status wan_call_items_check(const uint8_t *payload, uint64_t length);
/* Checks that the answer to EVENTS with `count` records, of which `applied` took effect, gives a possible result for
 * the rest. WAN_CORRUPT: the detail has the reason. */
wan_status wan_call_applied_check(const uint8_t *payload, uint64_t length, uint64_t applied, uint32_t count);

static inline uint64_t wan_call_item_size(const wan_call_item *item)
{
    return wan_align8(sizeof *item + item->key_length + (uint64_t)item->value_length);
}

#endif
