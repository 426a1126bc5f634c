/* Owns the deduplication table of a bucket: for each client and slot the newest request number, and the cached reply to
 * the newest call. A call repeated after a failover gets its cached reply, and is not made twice. A call with a lower
 * number was given up by its client, and is refused. So the table is as large as the number of calls that may be under
 * way. Guarded by the lock of the bucket. */
#ifndef WAN_ANSWERS_H
#define WAN_ANSWERS_H
#include "base/wan_base.h"
#include "base/wan_buffer.h"

#define WAN_ANSWERS_BYTES_MAX (1u << 20) /* Bytes of found values that a bucket caches. */
/* The number of clients that a bucket refuses. If more clients are forgotten, the bucket treats the first forgotten
 * client as a new one. */
#define WAN_REFUSED_MAX     1024u
#define WAN_CALL_NUMBER_MAX (((uint64_t)1 << 48) - 1)

/* Names a call, the same at each attempt. A client has one call under way in each of its slots. The numbers of a slot
 * count up from 1, over all buckets. */
typedef struct {
    uint64_t caller; /* Random id of a client, drawn by an incarnation of a member: the incarnation's number << 32, and
                        a random half. 0: no client. */
    uint64_t number : 48, slot : 16;
} wan_call_identity;
_Static_assert(sizeof(wan_call_identity) == 16, "the identity of a call is a format");

typedef struct {
    wan_call_identity call; /* `caller` is 0: the place is free. */
    uint64_t sequence;      /* The sequence of the change in the bucket. For a call of many rows, of the newest
                               change. */
    uint8_t *found;         /* A copy of the value that the change found. NULL: no value, or an empty value. */
    uint32_t found_length;
    uint32_t rows;    /* For a call of many rows: the rows before this number are done. 0: a call of one change. */
    uint32_t applied; /* How many of these rows changed something. */
    uint8_t outcome;  /* wan_outcome */
    uint8_t found_form, has_found;
    uint8_t is_lost; /* There was no room for the found value: the reply is unknown. */
} wan_first_answer;

typedef struct {
    wan_first_answer *items; /* An item is at the hash of client and slot, or after that place, with no free place in
                                between. */
    uint32_t capacity;       /* A power of two, or 0. */
    uint32_t count;
    uint64_t found_bytes;
    uint64_t *refused; /* Clients that were forgotten, the oldest first. */
    uint32_t refused_count, refused_capacity;
} wan_answers;

/* The kinds of items in a snapshot. */
enum {
    WAN_ITEM_BEGIN = 0, /* The first item of the snapshot: all earlier content of the table is invalid. */
    WAN_ITEM_ANSWER,    /* A cached reply. */
    WAN_ITEM_REFUSED,   /* A client that is refused: `call.caller`. */
    WAN_ITEM_KINDS
};

/* A part of a bucket's deduplication table, as the snapshot of the bucket carries the table. Followed by the found
 * value, padded with zeros to a multiple of 8. */
typedef struct {
    wan_call_identity call;
    uint64_t sequence;
    uint32_t rows, applied, found_length;
    uint8_t outcome, found_form;
    uint8_t found; /* WAN_ITEM_FOUND, WAN_ITEM_LOST, or 0. */
    uint8_t kind;  /* WAN_ITEM_* */
} wan_answer_item;
_Static_assert(sizeof(wan_answer_item) == 40, "an answer in a snapshot is a format");
enum { WAN_ITEM_FOUND = 1, WAN_ITEM_LOST = 2 };

static inline uint64_t wan_answer_item_size(const wan_answer_item *item)
{
    return sizeof *item + (((uint64_t)item->found_length + 7) & ~(uint64_t)7);
}

/* The memory of the table, without the overhead of the allocator. */
static inline uint64_t wan_answers_bytes(const wan_answers *answers)
{
    return answers->capacity * sizeof *answers->items + answers->refused_capacity * sizeof *answers->refused
           + answers->found_bytes;
}

void wan_answers_close(wan_answers *answers); /* Forgets all, also refused clients. The table can be used again. */
/* Returns the newest reply of the call's client and slot, for any number. NULL: no reply. */
const wan_first_answer *wan_answers_find(const wan_answers *answers, wan_call_identity call);
int wan_answers_refuse(const wan_answers *answers, uint64_t caller);
/* Makes sure that a reply can be added, and a client forgotten. WAN_NO_MEMORY: nothing changed. */
wan_status wan_answers_make_room(wan_answers *answers);
/* Caches the reply of a change that took effect, in the place of the earlier reply of its client and slot. Room was
 * made before. `fresh` has the call, the sequence, the outcome and the found value, which is copied; for a row, `rows`
 * is its number + 1. */
void wan_answers_add(wan_answers *answers, const wan_first_answer *fresh);
/* Drops all replies of a client, and refuses the client from now on. Room was made before. */
void wan_answers_forget(wan_answers *answers, uint64_t caller);
/* Adds each client with cached replies to a buffer, as uint64_t. WAN_NO_MEMORY. */
wan_status wan_answers_callers(const wan_answers *answers, wan_buffer *to);
/* Adds all items to a buffer. *largest is raised to the bytes of the largest item. WAN_NO_MEMORY. */
wan_status wan_answers_pack(const wan_answers *answers, wan_buffer *to, uint64_t *largest);
/* Adds items that were checked before. WAN_NO_MEMORY: some items are missing. */
wan_status wan_answers_unpack(wan_answers *answers, const wan_answer_item *item, uint32_t count);

#endif
