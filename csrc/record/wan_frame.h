/* Owns the frame of the data lane: 32 bytes of header, then the payload. docs/wire_format.md shows the same. */
#ifndef WAN_FRAME_H
#define WAN_FRAME_H
#include "base/wan_base.h"
#include "base/wan_crc32c.h"

#define WAN_FRAME_MAGIC     0x31445750u /* "PWD1" */
#define WAN_FRAME_BYTES_MAX (64u << 20) /* Payload, on the wire and unpacked. */
#define WAN_LZ4_RATIO_MAX   255u        /* An lz4 block becomes at most so many times longer. */
#define WAN_SECTIONS_MAX    65535u      /* Of a batch: one a partition. */

enum {
    WAN_FRAME_HELLO = 1,
    WAN_FRAME_WELCOME,
    WAN_FRAME_REGION,
    WAN_FRAME_BATCH,
    WAN_FRAME_ACK,
    WAN_FRAME_REWIND,
    WAN_FRAME_PING,
    WAN_FRAME_PONG,
    WAN_FRAME_BYE,
    WAN_FRAME_ERROR,
    WAN_FRAME_COMMIT,
    WAN_FRAME_COMMITTED,
    WAN_FRAME_KNOWN,
    WAN_FRAME_PROGRESS,
    WAN_FRAME_TYPE_COUNT
};
enum { WAN_FRAME_LZ4 = 1 };

typedef struct {
    uint32_t magic;
    uint8_t type;
    uint8_t flags;
    uint16_t reserved;
    uint32_t length;     /* Payload bytes that follow. */
    uint32_t crc;        /* CRC32C of this header with crc = 0, continued over the payload as sent. */
    uint32_t raw_length; /* Payload bytes once unpacked. */
    uint32_t count;      /* BATCH: events in it. ACK: microseconds that the receiver worked on its batch. */
    uint64_t id;         /* BATCH: batch id; ACK: last batch id that is acknowledged. */
} wan_frame;

_Static_assert(sizeof(wan_frame) == 32, "the frame header is a format");

/* One run of a partition in a batch; the payload opens with `sections` of them. It says where its records stand: they
 * have the sequences first..through; where those are more than `count`, so that there are holes (conflated, filtered),
 * the run begins with the sequence of each record, 8 bytes each. */
typedef struct {
    uint32_t partition;
    uint32_t count; /* Records of this run in the batch. */
    uint64_t first;
    uint64_t through;
    uint64_t settled;     /* All up to here was acknowledged to the sender: the receiver can forget it. */
    uint32_t bytes;       /* Bytes of this run: of its sequences, if it has them, and of its records. */
    uint32_t not_durable; /* Of the last so many that are settled the sender's disk may not know it yet: the receiver
                           * cannot forget what failed of them. */
    uint32_t duplicates;  /* The first so many of its records may have been applied before. */
    uint32_t reserved;    /* 0 */
} wan_section;

static inline int wan_section_has_holes(const wan_section *section)
{
    return section->through - section->first + 1 != section->count;
}

/* Bytes of the sequences in front of the records. */
static inline uint64_t wan_section_head_bytes(const wan_section *section)
{
    return wan_section_has_holes(section) ? (uint64_t)section->count * sizeof(uint64_t) : 0;
}

/* The sequence of record number `n` of a run that was checked and begins at `at`. */
static inline uint64_t wan_section_sequence(const wan_section *section, const uint8_t *at, uint32_t n)
{
    return wan_section_has_holes(section) ? ((const uint64_t *)at)[n] : section->first + n;
}

/* Up to here the sender's disk knows that all is settled. */
static inline uint64_t wan_section_durable(const wan_section *section)
{
    return section->not_durable < section->settled ? section->settled - section->not_durable : 0;
}

_Static_assert(sizeof(wan_section) == 48, "the section header is a format");

typedef struct {
    uint32_t sections;
    uint32_t reserved;
} wan_batch_head;

_Static_assert(sizeof(wan_batch_head) == 8, "the head of a batch is a format");

typedef struct {            /* Payload of an ACK, followed by `failures` wan_failure. */
    uint32_t credit_events; /* What the sender may have in flight. */
    uint32_t failures;
    uint64_t credit_bytes;
} wan_ack;

_Static_assert(sizeof(wan_ack) == 16, "an acknowledgement is a format");

typedef struct {    /* A PING of a sender may hold some, ascending by origin: below `stamp` it has no event of that site
                       any more. */
    uint64_t stamp; /* WAN_NO_STAMP: none of that site come through it at all. */
    uint8_t origin;
    uint8_t reserved[7];
    uint8_t reached[32]; /* A bit a site: whom these events reach without the receiver's doing. */
} wan_floor;

_Static_assert(sizeof(wan_floor) == 48, "a floor is a format");

typedef struct {
    uint32_t partition;
    uint32_t reason;
    uint64_t sequence;
} wan_failure; /* Reasons: wan_failure.h. */

_Static_assert(sizeof(wan_failure) == 16, "a failure in an acknowledgement is a format");

typedef struct {
    uint32_t partition;
    uint32_t reserved;
    uint64_t expected;
} wan_rewind; /* Payload of a REWIND. */

_Static_assert(sizeof(wan_rewind) == 16, "a rewind is a format");

static inline uint32_t wan_frame_crc(const wan_frame *frame, const void *payload, size_t length)
{
    wan_frame head = *frame;
    head.crc = 0;
    return wan_crc32c(wan_crc32c(0, &head, sizeof head), payload, length);
}

/* Checks what can be told from the header alone, before its length is believed. */
wan_status wan_frame_check(const wan_frame *frame);

/* Checks a BATCH payload (unpacked): sections, their sums, their sequences, and every record in them. */
wan_status wan_batch_check(const uint8_t *payload, uint64_t length, uint32_t count);

#endif
