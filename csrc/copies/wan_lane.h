/* Owns the payloads of the frames of a lane: the connection on which a member sends the changes of its buckets to the
 * member that has the copies. docs/wire_format.md shows the same byte by byte.
 *
 * CHANGES, IMAGE and PING are questions: their ids count up from 1 on a connection. LANE_ANSWER and PONG answer them in
 * that order. With an answer the receiver promises to adopt no later epoch for WAN_PROMISE_US without saying so.
 *
 * REGIONS and SETTLED are no questions, and have no answer. */
#ifndef WAN_LANE_H
#define WAN_LANE_H
#include "copies/wan_tail.h"
#include "record/wan_frame.h"

#define WAN_PROMISE_US 300000u /* The sender counts it from when it sent the question. */
/* The receiver keeps its promise a tenth longer: its clock may be fast, that of the sender slow, and that of a later
 * primary, which waits for the rest of the promise, fast too. */
#define WAN_PROMISE_KEPT_US     (WAN_PROMISE_US + WAN_PROMISE_US / 10)
#define WAN_LANE_REGIONS_MAX    65536u
#define WAN_LANE_SECTIONS_MAX   65535u
#define WAN_LANE_NAME_BYTES_MAX 1024u

/* A region's number on this connection. Behind it come the name, and zeros up to a multiple of 8. */
typedef struct {
    uint32_t number;
    uint32_t buckets;
    uint32_t name_length;
    uint32_t reserved; /* 0 */
} wan_lane_region;
_Static_assert(sizeof(wan_lane_region) == 16, "a region of a lane is a format");

/* CHANGES, LANE_ANSWER and SETTLED begin with the number of their sections, or items. */
typedef struct {
    uint32_t count;
    uint32_t reserved; /* 0 */
} wan_lane_head;
_Static_assert(sizeof(wan_lane_head) == 8, "the head of a lane's frame is a format");

/* A run of one bucket's changes. Its entries follow it, and then comes the next section. An empty section (count 0)
 * tells what counts, and asks whether the copy agrees with the epoch. */
typedef struct {
    uint32_t region, bucket;
    uint64_t life, epoch;
    uint64_t transfer; /* Names the image that the learner is getting. 0: the copy is in sync. */
    uint64_t first;    /* The sequence of the first entry. */
    uint64_t counted;  /* Through here the changes count. */
    uint64_t heard;    /* Through here the listeners of the primary's member were told. heard <= counted */
    uint32_t count, bytes;
} wan_lane_section;
_Static_assert(sizeof(wan_lane_section) == 64, "a section of a lane is a format");

/* What the entries of a piece of an image are. */
enum {
    /* wan_tail_entry and record, without a call: an entry of the table. A tombstone is a destroy that found 8 bytes:
     * its age in milliseconds. An entry that lost its value has the outcome WAN_MISSING. */
    WAN_IMAGE_ENTRIES = 0,
    WAN_IMAGE_SHRUNK = 1,  /* wan_shrunk: tombstones that lost their keys. */
    WAN_IMAGE_ANSWERS = 2, /* wan_answer_item: what the bucket remembers of calls. */
    WAN_IMAGE_EVENTS = 3,  /* wan_image_event: what is queued for senders. It comes first. */
    WAN_IMAGE_PARTS
};

/* An event in the queue of a sender. Its record follows. Of each queue comes first, without a record, through which
 * sequence it is done with. */
typedef struct {
    uint64_t sender;   /* As in a wan_verdict. */
    uint64_t sequence; /* Of the change in its bucket. */
    uint32_t length;   /* Of the record. 0: all events through `sequence` have left the queue. */
    uint32_t is_begin; /* 1, and length 0: none of these was ever in it. It comes before all others of the queue. */
} wan_image_event;
_Static_assert(sizeof(wan_image_event) == 24, "an event of an image is a format");

/* A piece of the image of a bucket. The stream was sent through `through` before it. */
typedef struct {
    uint32_t region, bucket;
    uint64_t life, epoch, transfer;
    uint64_t through;
    uint32_t count, bytes;
    uint32_t shard;  /* Of the bucket's shards, from 0. */
    uint8_t part;    /* WAN_IMAGE_* */
    uint8_t is_last; /* The image is whole with this piece. */
    uint8_t reserved[2];
} wan_lane_image;
_Static_assert(sizeof(wan_lane_image) == 56, "a piece of an image is a format");

enum {
    WAN_ANSWER_APPLIED = 0, /* The copy has everything through `sequence`. */
    WAN_ANSWER_REFUSED = 1, /* This member knows the later `life` and `epoch`. */
    WAN_ANSWER_LATER = 2,   /* This member does not know the region, the copy or the epoch yet. */
    WAN_ANSWER_IMAGE = 3,   /* The image of the transfer `sequence` is whole. */
    WAN_ANSWER_KINDS
};

/* In `count` of the header of LANE_ANSWER and PONG: the member is above its limit of memory. */
#define WAN_LANE_SHORT 1u

/* One section's answer. A LANE_ANSWER with the id 0 answers no question: this member has adopted a later epoch. */
typedef struct {
    uint32_t region, bucket;
    uint64_t life, epoch;
    uint64_t sequence;
    uint8_t kind;        /* WAN_ANSWER_* */
    uint8_t reserved[7]; /* 0 */
} wan_lane_answer;
_Static_assert(sizeof(wan_lane_answer) == 40, "an answer of a lane is a format");

/* The events of one bucket in the queue of one sender that the sender of the lane has removed, and why: their site of
 * destination acknowledged them, but for the exceptions. It is a fact about events, and not a right, so it has no
 * epoch. A later item of the same lane, sender, region, bucket and life says all that an earlier one said, but for the
 * exceptions through its `explained`. */
typedef struct {
    uint64_t sender; /* As in a wan_verdict. */
    uint64_t life;
    uint64_t after;   /* What came through this sequence was never in this queue. 0: it had all. */
    uint64_t through; /* All events behind that, through this sequence, were removed. after < through */
    /* Why events through here were removed was told before, or is not known. after <= explained <= through */
    uint64_t explained;
    uint32_t region, bucket;
    /* So many wan_exception follow, for the events behind `explained`. Their sequences rise. All other events behind
     * it were acknowledged. */
    uint32_t exceptions;
    uint8_t leads; /* This member sends the events. */
    uint8_t reserved[3];
} wan_lane_settled;
_Static_assert(sizeof(wan_lane_settled) == 56, "what a lane tells as settled is a format");

/* The order of two epochs with their lives: negative, 0 or positive. */
static inline int wan_epoch_order(uint64_t life, uint64_t epoch, uint64_t other_life, uint64_t other_epoch)
{
    if (life != other_life) return life < other_life ? -1 : 1;
    return epoch == other_epoch ? 0 : epoch < other_epoch ? -1 : 1;
}

/* The thread that runs the lane says WAN_LANE_RUNS or WAN_LANE_WAITS. After it said that it waits, it looks for work
 * once more: whoever gives it work does that first, and then looks whether it waits. */
static inline void wan_lane_set_asleep(wan_lane_state *state, uint32_t value)
{
    __atomic_exchange_n(&state->asleep, value, __ATOMIC_SEQ_CST);
}
/* Makes `asleep` another WAN_LANE_* if it is `before`. Returns whether it was. */
static inline int wan_lane_change(wan_lane_state *state, uint32_t before, uint32_t now)
{
    return __atomic_compare_exchange_n(&state->asleep, &before, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
static inline void wan_lane_set_connected(wan_lane_state *state, uint32_t value)
{
    __atomic_store_n(&state->is_connected, value, __ATOMIC_RELEASE);
}
/* Whether a read waits for a promise. Nobody waits any more then. */
static inline uint32_t wan_lane_take_wish(wan_lane_state *state)
{
    if (!__atomic_load_n(&state->wants_promise, __ATOMIC_SEQ_CST)) return 0;
    return __atomic_exchange_n(&state->wants_promise, 0, __ATOMIC_SEQ_CST);
}
/* One word of the buckets that have something to send, and the change of one bit of it. */
static inline uint64_t wan_lane_bits(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }
/* Whether there is something settled to tell. Whoever tells it takes that away first. */
static inline uint32_t wan_lane_has_settled(const wan_lane_state *state)
{
    return __atomic_load_n(&state->has_settled, __ATOMIC_SEQ_CST);
}
static inline void wan_lane_take_settled(wan_lane_state *state)
{
    __atomic_exchange_n(&state->has_settled, 0, __ATOMIC_SEQ_CST);
}
/* The thread that runs the lane says that there is more. */
static inline void wan_lane_note_settled(wan_lane_state *state)
{
    __atomic_exchange_n(&state->has_settled, 1, __ATOMIC_SEQ_CST);
}
static inline void wan_lane_set_bit(uint64_t *words, uint32_t bucket)
{
    __atomic_fetch_or(&words[bucket / 64], (uint64_t)1 << bucket % 64, __ATOMIC_SEQ_CST);
}
static inline void wan_lane_clear_bit(uint64_t *words, uint32_t bucket)
{
    __atomic_fetch_and(&words[bucket / 64], ~((uint64_t)1 << bucket % 64), __ATOMIC_SEQ_CST);
}
static inline uint32_t wan_lowest_bit(uint64_t bits) { return (uint32_t)__builtin_ctzll(bits); }

/* Checks the payload of a frame of this type before anybody uses it. WAN_CORRUPT: the detail says what is wrong. The
 * payload is aligned to 8. */
wan_status wan_lane_check(uint8_t type, const uint8_t *payload, uint64_t length);

#endif
