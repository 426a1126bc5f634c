/* Owns the payloads of the frames of a replication link: the connection on which a member sends the changes of its
 * buckets to one member with replicas. docs/wire_format.md shows the same byte by byte.
 *
 * CHANGES, snapshot and PING are questions: their ids count up from 1 on a connection. REPL_ANSWER and PONG answer the
 * questions in the same order. Each answer carries a read lease: the receiver adopts no later epoch for
 * WAN_READ_LEASE_US without saying so.
 *
 * REGIONS and SETTLED are no questions, and have no answer. */
#ifndef WAN_REPL_LINK_H
#define WAN_REPL_LINK_H
#include "replication/wan_changelog.h"
#include "record/wan_frame.h"

#define WAN_READ_LEASE_US 300000u /* The sender counts from the moment of sending the question. */
/* The receiver keeps its read lease a tenth longer. The clock of the receiver may be fast, and the sender's clock slow.
 * A later primary waits for the rest of the lease, and may have a fast clock too. */
#define WAN_READ_LEASE_KEPT_US  (WAN_READ_LEASE_US + WAN_READ_LEASE_US / 10)
#define WAN_REPL_REGIONS_MAX    65536u
#define WAN_REPL_SECTIONS_MAX   65535u
#define WAN_REPL_NAME_BYTES_MAX 1024u

/* A region's number on this connection. Followed by the name, padded with zeros to a multiple of 8. */
typedef struct {
    uint32_t number;
    uint32_t buckets;
    uint32_t name_length;
    uint32_t reserved; /* 0 */
} wan_repl_region;
_Static_assert(sizeof(wan_repl_region) == 16, "a region of a replication link is a format");

/* CHANGES, REPL_ANSWER and SETTLED begin with the number of their sections or items. */
typedef struct {
    uint32_t count;
    uint32_t reserved; /* 0 */
} wan_repl_head;
_Static_assert(sizeof(wan_repl_head) == 8, "the head of a replication link's frame is a format");

/* A run of one bucket's changes. The section is followed by its entries, and then by the next section. An empty section
 * (count 0) carries the high watermark, and asks whether the replica agrees with the epoch. */
typedef struct {
    uint32_t region, bucket;
    uint64_t timeline, epoch;
    uint64_t transfer;       /* Names the snapshot for the learner. 0: the replica is in sync. */
    uint64_t first;          /* The sequence of the first entry. */
    uint64_t high_watermark; /* The primary's high watermark: through this sequence the changes are replicated. */
    uint64_t notified;       /* Through this sequence the listeners of the primary's member were notified. notified <=
                                high_watermark */
    uint32_t count, bytes;
} wan_repl_section;
_Static_assert(sizeof(wan_repl_section) == 64, "a section of a replication link is a format");

/* The kinds of entries in a piece of a snapshot. */
enum {
    /* wan_changelog_entry and record, without a call: an entry of the table. A tombstone is a destroy with a found
     * value of 8 bytes: its age in milliseconds. An entry that lost its value has the outcome WAN_MISSING. */
    WAN_SNAPSHOT_ENTRIES = 0,
    WAN_SNAPSHOT_SHRUNK = 1,  /* wan_shrunk: tombstones without their keys. */
    WAN_SNAPSHOT_ANSWERS = 2, /* wan_answer_item: the cached replies of the bucket. */
    WAN_SNAPSHOT_EVENTS = 3,  /* wan_snapshot_event: queued events. The first part of a snapshot. */
    WAN_SNAPSHOT_PARTS
};

/* An event in the queue of a sender, followed by its record. For each queue, the first item has no record, and gives
 * the last removed sequence. */
typedef struct {
    uint64_t sender;   /* As in a wan_verdict. */
    uint64_t sequence; /* Of the change in its bucket. */
    uint32_t length;   /* Bytes of the record. 0: all events through `sequence` were removed from the queue. */
    uint32_t is_begin; /* 1, and length 0: no event through `sequence` was ever in the queue. Before all other items of
                          the queue. */
} wan_snapshot_event;
_Static_assert(sizeof(wan_snapshot_event) == 24, "an event of a snapshot is a format");

/* A piece of the snapshot of a bucket. The stream through `through` was sent before this piece. */
typedef struct {
    uint32_t region, bucket;
    uint64_t timeline, epoch, transfer;
    uint64_t through;
    uint32_t count, bytes;
    uint32_t shard;  /* Of the bucket's shards, from 0. */
    uint8_t part;    /* WAN_SNAPSHOT_* */
    uint8_t is_last; /* The snapshot is whole with this piece. */
    uint8_t reserved[2];
} wan_repl_snapshot;
_Static_assert(sizeof(wan_repl_snapshot) == 56, "a piece of a snapshot is a format");

enum {
    WAN_ANSWER_APPLIED = 0,  /* The replica has everything through `sequence`. */
    WAN_ANSWER_REFUSED = 1,  /* This member knows the later `timeline` and `epoch`. */
    WAN_ANSWER_LATER = 2,    /* This member does not know the region, the replica or the epoch yet. */
    WAN_ANSWER_SNAPSHOT = 3, /* The snapshot of the transfer `sequence` is whole. */
    WAN_ANSWER_KINDS
};

/* In `count` of the header of REPL_ANSWER and PONG: the member is above its limit of memory. */
#define WAN_REPL_SHORT 1u

/* The answer to one section. A REPL_ANSWER with the id 0 answers no question: this member has adopted a later epoch. */
typedef struct {
    uint32_t region, bucket;
    uint64_t timeline, epoch;
    uint64_t sequence;
    uint8_t kind;        /* WAN_ANSWER_* */
    uint8_t reserved[7]; /* 0 */
} wan_repl_answer;
_Static_assert(sizeof(wan_repl_answer) == 40, "an answer of a replication link is a format");

/* The events of one bucket that the sending member of the replication link has removed from the queue of one sender,
 * and the reasons: the remote site acknowledged all events but the exceptions. A removal is a fact about events, and
 * not a right, so the item has no epoch. A later item of the same replication link, sender, region, bucket and timeline
 * includes an earlier item, except for the exceptions through its `explained`. */
typedef struct {
    uint64_t sender; /* As in a wan_verdict. */
    uint64_t timeline;
    uint64_t after;   /* Events through this sequence were never in the queue. 0: the queue had all events. */
    uint64_t through; /* All events after `after`, through this sequence, were removed. after < through */
    /* The reasons for removals through this sequence were sent before, or are not known. after <= explained <=
     * through */
    uint64_t explained;
    uint32_t region, bucket;
    /* The number of wan_exception items that follow, for the events after `explained`, in rising sequences. All other
     * events after `explained` were acknowledged. */
    uint32_t exceptions;
    uint8_t leads; /* This member sends the events to the remote site. */
    uint8_t reserved[3];
} wan_repl_removal;
_Static_assert(sizeof(wan_repl_removal) == 56, "a removal on a replication link is a format");

/* The order of two epochs with their timelines: negative, 0 or positive. */
static inline int wan_epoch_order(uint64_t timeline, uint64_t epoch, uint64_t other_timeline, uint64_t other_epoch)
{
    if (timeline != other_timeline) return timeline < other_timeline ? -1 : 1;
    return epoch == other_epoch ? 0 : epoch < other_epoch ? -1 : 1;
}

/* Sets WAN_REPL_LINK_RUNS or WAN_REPL_LINK_WAITS. Called by the thread that runs the replication link. After setting
 * WAN_REPL_LINK_WAITS, the thread looks for work once more. A thread that adds work adds the work first, and then
 * checks `asleep`. */
static inline void wan_repl_link_set_asleep(wan_repl_link_state *state, uint32_t value)
{
    __atomic_exchange_n(&state->asleep, value, __ATOMIC_SEQ_CST);
}
/* Sets `asleep` to `now` if the value is `before`. Returns whether the value was `before`. */
static inline int wan_repl_link_change(wan_repl_link_state *state, uint32_t before, uint32_t now)
{
    return __atomic_compare_exchange_n(&state->asleep, &before, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
static inline void wan_repl_link_set_connected(wan_repl_link_state *state, uint32_t value)
{
    __atomic_store_n(&state->is_connected, value, __ATOMIC_RELEASE);
}
/* Returns whether a read waits for a read lease, and clears the wish. */
static inline uint32_t wan_repl_link_take_wish(wan_repl_link_state *state)
{
    if (!__atomic_load_n(&state->wants_read_lease, __ATOMIC_SEQ_CST)) return 0;
    return __atomic_exchange_n(&state->wants_read_lease, 0, __ATOMIC_SEQ_CST);
}
/* One word of the bits of buckets with something to send, and the change of one bit. */
static inline uint64_t wan_repl_link_bits(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }
/* Whether removals wait to be sent. The thread that sends the removals clears the flag first. */
static inline uint32_t wan_repl_link_has_removals(const wan_repl_link_state *state)
{
    return __atomic_load_n(&state->has_removals, __ATOMIC_SEQ_CST);
}
static inline void wan_repl_link_take_removals(wan_repl_link_state *state)
{
    __atomic_exchange_n(&state->has_removals, 0, __ATOMIC_SEQ_CST);
}
/* Called by the thread that runs the replication link: more removals wait. */
static inline void wan_repl_link_note_removals(wan_repl_link_state *state)
{
    __atomic_exchange_n(&state->has_removals, 1, __ATOMIC_SEQ_CST);
}
static inline void wan_repl_link_set_bit(uint64_t *words, uint32_t bucket)
{
    __atomic_fetch_or(&words[bucket / 64], (uint64_t)1 << bucket % 64, __ATOMIC_SEQ_CST);
}
static inline void wan_repl_link_clear_bit(uint64_t *words, uint32_t bucket)
{
    __atomic_fetch_and(&words[bucket / 64], ~((uint64_t)1 << bucket % 64), __ATOMIC_SEQ_CST);
}
static inline uint32_t wan_lowest_bit(uint64_t bits) { return (uint32_t)__builtin_ctzll(bits); }

/* Checks the payload of a frame of this type before any use. WAN_CORRUPT: the detail says what is wrong. The payload is
 * aligned to 8. */
wan_status wan_repl_check(uint8_t type, const uint8_t *payload, uint64_t length);

#endif
