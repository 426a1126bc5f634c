/* Owns what a bucket remembers of the calls that changed it: of each caller and slot the newest number, and the first
 * answer to that call. A call that is repeated after a failover is answered from here, and is not made twice. A call
 * with a lower number was given up by its caller, and is refused. So the memory is as large as what may be under way.
 * The lock of the bucket guards it. */
#ifndef WAN_ANSWERS_H
#define WAN_ANSWERS_H
#include "base/wan_base.h"
#include "base/wan_buffer.h"

#define WAN_ANSWERS_BYTES_MAX (1u << 20) /* Bytes of found values that a bucket remembers. */
/* Callers that a bucket refuses. If more are forgotten, it takes the one that was forgotten first for a new one. */
#define WAN_REFUSED_MAX     1024u
#define WAN_CALL_NUMBER_MAX (((uint64_t)1 << 48) - 1)

/* Names a call. A caller has one call under way in each of its slots. The numbers of a slot count up from 1, over all
 * buckets. It is the same at each attempt. */
typedef struct {
    uint64_t caller; /* Drawn by an incarnation of a member: its number << 32, and a random half. 0: nobody. */
    uint64_t number : 48, slot : 16;
} wan_call_identity;
_Static_assert(sizeof(wan_call_identity) == 16, "the identity of a call is a format");

typedef struct {
    wan_call_identity call; /* `caller` is 0: the place is free. */
    uint64_t sequence;      /* Of the change in the bucket; of the newest one, for a call of many rows. */
    uint8_t *found;         /* A copy of the value that the change found. NULL: there is none, or it is empty. */
    uint32_t found_length;
    uint32_t rows;    /* Of a call of many rows: the rows before this number are done. 0: a call of one change. */
    uint32_t applied; /* Those among them that changed something. */
    uint8_t outcome;  /* wan_outcome */
    uint8_t found_form, has_found;
    uint8_t is_lost; /* It had found a value that there was no room for: nobody knows the answer. */
} wan_first_answer;

typedef struct {
    wan_first_answer *items; /* At the hash of caller and slot, or behind it, with no free place in between. */
    uint32_t capacity;       /* A power of two, or 0. */
    uint32_t count;
    uint64_t found_bytes;
    uint64_t *refused; /* Callers that were forgotten, the oldest first. */
    uint32_t refused_count, refused_capacity;
} wan_answers;

/* What an item of an image says. */
enum {
    WAN_ITEM_BEGIN = 0, /* The first item of the image: what was remembered before is not true any more. */
    WAN_ITEM_ANSWER,    /* A first answer. */
    WAN_ITEM_REFUSED,   /* A caller that is refused: `call.caller`. */
    WAN_ITEM_KINDS
};

/* A part of a bucket's memory, as the image of the bucket carries it. The found value follows, and zeros up to a
 * multiple of 8. */
typedef struct {
    wan_call_identity call;
    uint64_t sequence;
    uint32_t rows, applied, found_length;
    uint8_t outcome, found_form;
    uint8_t found; /* WAN_ITEM_FOUND, WAN_ITEM_LOST, or 0. */
    uint8_t kind;  /* WAN_ITEM_* */
} wan_answer_item;
_Static_assert(sizeof(wan_answer_item) == 40, "an answer in an image is a format");
enum { WAN_ITEM_FOUND = 1, WAN_ITEM_LOST = 2 };

static inline uint64_t wan_answer_item_size(const wan_answer_item *item)
{
    return sizeof *item + (((uint64_t)item->found_length + 7) & ~(uint64_t)7);
}

/* The memory that they take, but for what the system needs to keep it. */
static inline uint64_t wan_answers_bytes(const wan_answers *answers)
{
    return answers->capacity * sizeof *answers->items + answers->refused_capacity * sizeof *answers->refused
           + answers->found_bytes;
}

void wan_answers_close(wan_answers *answers); /* Forgets all, refused callers too. It can be used again. */
/* The newest answer of the call's caller and slot, whatever its number is. NULL: there is none. */
const wan_first_answer *wan_answers_find(const wan_answers *answers, wan_call_identity call);
int wan_answers_refuse(const wan_answers *answers, uint64_t caller);
/* Makes sure that an answer can be added, and a caller forgotten. WAN_NO_MEMORY: nothing changed. */
wan_status wan_answers_make_room(wan_answers *answers);
/* Remembers a change that took effect, in the place of the earlier answer of its caller and slot. There is room.
 * `fresh` has the call, sequence, outcome and what was found, which is copied; of a row, `rows` is its number + 1. */
void wan_answers_add(wan_answers *answers, const wan_first_answer *fresh);
/* Drops all answers of a caller, and refuses the caller from now on. There is room. */
void wan_answers_forget(wan_answers *answers, uint64_t caller);
/* Adds each caller of which there are answers to a buffer, as uint64_t. WAN_NO_MEMORY. */
wan_status wan_answers_callers(const wan_answers *answers, wan_buffer *to);
/* Adds all to a buffer, as items. *largest is raised to the bytes of the largest one. WAN_NO_MEMORY. */
wan_status wan_answers_pack(const wan_answers *answers, wan_buffer *to, uint64_t *largest);
/* Remembers items that were checked. WAN_NO_MEMORY: some are missing. */
wan_status wan_answers_unpack(wan_answers *answers, const wan_answer_item *item, uint32_t count);

#endif
