/* Owns what a bucket remembers of the calls that changed it: who asked, and the first answer. A call that is repeated
 * after a failover is answered from here, and is not made twice. The memory is bounded: what falls out of it is
 * refused as "may have happened". The lock of the bucket guards it. */
#ifndef WAN_ANSWERS_H
#define WAN_ANSWERS_H
#include "base/wan_base.h"
#include "base/wan_buffer.h"

#define WAN_ANSWERS_MAX       2048u      /* Calls that a bucket remembers. */
#define WAN_ANSWERS_BYTES_MAX (1u << 20) /* Bytes of found values that it remembers. */
#define WAN_ANSWERS_KEPT_US   60000000ull
/* A repeat says how long ago the call was first made. It does not know how long it was on its way itself: so long. */
#define WAN_ANSWERS_MARGIN_US 10000000ull

/* Names a call: the member and thread that made it, and its number there. */
typedef struct {
    uint32_t member, thread;
    uint64_t number;
} wan_call_identity;

typedef struct {
    wan_call_identity call;
    uint64_t sequence; /* Of the change in the bucket; of the newest one, for a call of many rows. */
    uint64_t known_us; /* When it came here, by wan_monotonic_us. It took effect at its primary before. */
    uint8_t *found;    /* A copy of the value that the change found. NULL: there is none, or it is empty. */
    uint32_t found_length;
    uint32_t rows;    /* Of a call of many rows: the rows before this number are done. 0: a call of one change. */
    uint32_t applied; /* Those among them that changed something. */
    uint32_t next;    /* The next item with this hash: its place + 1. 0: none. */
    uint8_t outcome;  /* wan_outcome */
    uint8_t found_form, has_found;
} wan_first_answer;

typedef struct {
    wan_first_answer *items; /* A ring. */
    uint32_t *heads;         /* For each hash: the place of the newest item + 1. */
    uint32_t capacity;       /* Of both; a power of two, or 0. */
    uint32_t begin, count;
    uint64_t found_bytes;
    uint64_t forgotten_us; /* Nothing that came later was forgotten. 0: nothing was. */
} wan_answers;

/* A call that is remembered, as the image of a bucket carries it. The found value follows, and zeros up to a multiple
 * of
 * 8. The first item of an image is no call: its age is that of the newest call that was forgotten. */
typedef struct {
    wan_call_identity call;
    uint64_t sequence;
    uint64_t age_us; /* How long ago it came. WAN_NEVER: nothing was forgotten. */
    uint32_t rows, applied, found_length;
    uint8_t outcome, found_form, has_found;
    uint8_t is_first;
} wan_answer_item;
_Static_assert(sizeof(wan_answer_item) == 48, "an answer in an image is a format");

static inline uint64_t wan_answer_item_size(const wan_answer_item *item)
{
    return sizeof *item + (((uint64_t)item->found_length + 7) & ~(uint64_t)7);
}

void wan_answers_close(wan_answers *answers);
/* Forgets all. A call that was first made before `now_us` may have happened. */
void wan_answers_forget(wan_answers *answers, uint64_t now_us);
/* The answer that the call got. NULL: it is not remembered. */
const wan_first_answer *wan_answers_find(const wan_answers *answers, wan_call_identity call);
/* Remembers a change that took effect. `fresh` has the call, sequence, outcome and what was found, which is copied; of
 * a row, `rows` is its number + 1. Without memory it forgets instead. */
void wan_answers_add(wan_answers *answers, const wan_first_answer *fresh);
/* Adds all to a buffer, as items. *largest is raised to the bytes of the largest one. WAN_NO_MEMORY. */
wan_status wan_answers_pack(const wan_answers *answers, wan_buffer *to, uint64_t *largest);
/* Remembers items that were checked. The first item of an image takes the place of all that was remembered. */
void wan_answers_unpack(wan_answers *answers, const wan_answer_item *item, uint32_t count);
/* Whether a call that is not remembered, and that was first made at `first_us`, cannot have happened. */
int wan_answers_cover(const wan_answers *answers, uint64_t first_us);

#endif
