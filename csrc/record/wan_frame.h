/* Owns the frame of a data connection: 32 bytes of header, then the payload. docs/wire_format.md shows the same byte by
 * byte. */
#ifndef WAN_FRAME_H
#define WAN_FRAME_H
#include "base/wan_base.h"
#include "base/wan_crc32c.h"

#define WAN_FRAME_MAGIC     0x31445750u /* "PWD1" */
#define WAN_FRAME_BYTES_MAX (64u << 20) /* The most bytes of a payload, on the wire and unpacked. */
#define WAN_LZ4_RATIO_MAX   255u        /* Unpacking makes an lz4 block at most this many times longer. */
#define WAN_SECTIONS_MAX    65535u      /* The most sections of a batch. */
#define WAN_WIRE_PARTITIONS 65536u      /* The most partitions of a connection: own ones of the queue, and streams. */
#define WAN_WIRE_BUCKETS    4096u       /* The most buckets of a region. */

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
    /* Of a replication link between two members of a site (replication/wan_repl_link.h). */
    WAN_FRAME_REPL_REGIONS,
    WAN_FRAME_REPL_CHANGES,
    WAN_FRAME_REPL_SNAPSHOT,
    WAN_FRAME_REPL_ANSWER,
    WAN_FRAME_STREAM, /* Of a data connection: WAN_FRAME_REGION names a region, this one a stream. */
    WAN_FRAME_REPL_REMOVAL,
    WAN_FRAME_TYPE_COUNT
};
/* Flags of a frame: the payload is an lz4 block. */
enum { WAN_FRAME_LZ4 = 1 };

typedef struct {
    uint32_t magic;
    uint8_t type;
    uint8_t flags;
    uint16_t reserved;
    uint32_t length;     /* Bytes of the payload, which follows. */
    uint32_t crc;        /* CRC32C of this header with crc = 0, continued over the payload as it was sent. */
    uint32_t raw_length; /* Bytes of the payload after unpacking. */
    /* In a BATCH: its events. In an ACK: the microseconds that the receiver worked on its batch. */
    uint32_t count;
    uint64_t id; /* In a BATCH: its id. In an ACK: the id of the last batch that it acknowledges. */
} wan_frame;

_Static_assert(sizeof(wan_frame) == 32, "the frame header is a format");

/* A section: the run of one partition's events in a batch. The payload of a batch begins with `sections` of them. The
 * section says which sequences its records have: `first` to `through`. If these are more than `count`, there are holes
 * (conflated, filtered). Then the run begins with the sequence of each record, 8 bytes each. */
typedef struct {
    uint32_t partition;
    uint32_t count; /* Records of this run. */
    uint64_t first;
    uint64_t through;
    /* The sender has the acknowledgement of all events up to here. The receiver can forget what it remembers of
     * them. */
    uint64_t acknowledged;
    uint32_t bytes; /* Bytes of this run: its records, and their sequences if it has them. */
    /* Of the settled events, the last `not_durable` ones may be unknown to the sender's disk. The receiver must not
     * forget which of them failed. */
    uint32_t not_durable;
    uint32_t duplicates; /* The first `duplicates` of its records may have been applied before. */
    uint32_t reserved;   /* 0 */
} wan_section;

static inline int wan_section_has_holes(const wan_section *section)
{
    return section->through - section->first + 1 != section->count;
}

/* Bytes of the sequences in front of the records of a run. */
static inline uint64_t wan_section_head_bytes(const wan_section *section)
{
    return wan_section_has_holes(section) ? (uint64_t)section->count * sizeof(uint64_t) : 0;
}

/* The sequence of record number `n` of a run. The run was checked and begins at `at`. */
static inline uint64_t wan_section_sequence(const wan_section *section, const uint8_t *at, uint32_t n)
{
    return wan_section_has_holes(section) ? ((const uint64_t *)at)[n] : section->first + n;
}

/* The sender's disk knows that all events up to here are settled. */
static inline uint64_t wan_section_durable(const wan_section *section)
{
    return section->not_durable < section->acknowledged ? section->acknowledged - section->not_durable : 0;
}

_Static_assert(sizeof(wan_section) == 48, "the section header is a format");

typedef struct {
    uint32_t sections;
    uint32_t reserved;
} wan_batch_head;

_Static_assert(sizeof(wan_batch_head) == 8, "the head of a batch is a format");

/* The payload of an ACK. `failures` wan_failure follow it. */
typedef struct {
    uint32_t credit_events; /* The most events that the sender may have on their way. */
    uint32_t failures;
    uint64_t credit_bytes;
} wan_ack;

_Static_assert(sizeof(wan_ack) == 16, "an acknowledgement is a format");

/* A floor. The PING of a sender may hold some, ascending by `origin`. The sender has no event of that site any more
 * with a stamp below `stamp`. */
typedef struct {
    uint64_t stamp; /* WAN_NO_STAMP: events of that site never come from this sender. */
    uint8_t origin;
    uint8_t reserved[7];
    /* One bit for each site: the sites that these events reach without this receiver. */
    uint8_t reached[32];
} wan_floor;

_Static_assert(sizeof(wan_floor) == 48, "a floor is a format");

typedef struct {
    uint32_t partition;
    uint32_t reason;
    uint64_t sequence;
} wan_failure; /* The reasons are in wan_failure.h. */

_Static_assert(sizeof(wan_failure) == 16, "a failure in an acknowledgement is a format");

typedef struct {
    uint32_t partition;
    uint32_t reserved;
    uint64_t expected;
} wan_rewind; /* The payload of a REWIND. */

_Static_assert(sizeof(wan_rewind) == 16, "a rewind is a format");

/* The payload of a STREAM. From then on, sections of the partition that the frame has as `id` hold events of this
 * stream: the changes of one bucket of a region, in their order, under sequences that are the same at every member of
 * the sender's site. */
typedef struct {
    uint16_t region; /* Its number, which a REGION frame has named. */
    uint16_t bucket;
    uint16_t buckets; /* How many the region has at the sender's site. */
    uint16_t reserved;
    uint64_t timeline; /* Sequences begin at 1 in each timeline of the bucket. A later timeline has a higher number. */
} wan_stream;

_Static_assert(sizeof(wan_stream) == 16, "the name of a stream is a format");

static inline uint32_t wan_frame_crc(const wan_frame *frame, const void *payload, size_t length)
{
    wan_frame head = *frame;
    head.crc = 0;
    return wan_crc32c(wan_crc32c(0, &head, sizeof head), payload, length);
}

/* Checks what the header alone can tell, before anybody uses its length. */
wan_status wan_frame_check(const wan_frame *frame);

/* Checks a whole STREAM frame of a sender whose queue has `own_partitions` partitions besides its streams. Whether the
 * region was named is the caller's to check. */
wan_status wan_stream_check(const wan_frame *frame, uint32_t own_partitions);

/* Checks the unpacked payload of a BATCH: its sections, their sums, their sequences, and every record. */
wan_status wan_batch_check(const uint8_t *payload, uint64_t length, uint32_t count);

#endif
