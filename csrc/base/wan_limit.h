/* Owns the count of what the regions and queues of a member take of the process's memory, and whether the member is
 * above its limit. It is counted where memory comes from the system: blocks, arrays, segments, and entries that are too
 * large for a block. So a change costs one look at `is_short`.
 *
 * The rest of the process, and what of the counted memory is free for new entries, are told by whoever measures the
 * process now and then (wan_limit_note). In between what is counted moves the sum.
 *
 * Nothing is refused here, and whoever has to go on charges also above the limit. Any thread may call it, under any
 * lock. */
#ifndef WAN_LIMIT_H
#define WAN_LIMIT_H
#include "base/wan_base.h"

#define WAN_LIMIT_NAME_BYTES 64

/* All numbers are atomic. `name`, `limit`, `critical` and `calm` do not change. */
typedef struct {
    char name[WAN_LIMIT_NAME_BYTES]; /* Of the member, perhaps cut. */
    uint32_t is_short;               /* Changes that need memory are refused. */
    uint32_t shorts;                 /* How often it became so. */
    uint64_t limit;                  /* Bytes of the whole process. */
    uint64_t critical;               /* From so many bytes on the member is short, without what is free. */
    uint64_t calm;                   /* Below so many it is not short any more. calm <= critical <= limit */
    uint64_t counted;                /* Bytes of regions and queues. */
    int64_t other;                   /* Bytes of the rest of the process, less what is counted and was never touched. */
    uint64_t free;                   /* Bytes of the counted ones that new entries can take. */
    uint64_t left;    /* Bytes that the machine has left, if these are too few. Otherwise WAN_NO_LIMIT. */
    uint64_t refused; /* Changes that were refused. */
} wan_limit;

void wan_limit_init(wan_limit *limit, const char *name, uint64_t bytes, uint64_t critical, uint64_t calm);

/* Memory came from the system, or went back. `limit` NULL: there is none. */
void wan_limit_charge(wan_limit *limit, uint64_t bytes);
void wan_limit_release(wan_limit *limit, uint64_t bytes);

/* What was measured: the rest of the process, what is free of the counted memory, and what the machine has left if it
 * is too little (otherwise WAN_NO_LIMIT). */
void wan_limit_note(wan_limit *limit, int64_t other, uint64_t free, uint64_t left);

/* The bytes of the process, as far as it is known. */
static inline uint64_t wan_limit_used(const wan_limit *limit)
{
    const int64_t used =
        (int64_t)__atomic_load_n(&limit->counted, __ATOMIC_RELAXED) + __atomic_load_n(&limit->other, __ATOMIC_RELAXED);
    return used > 0 ? (uint64_t)used : 0;
}

/* Whether changes that need memory are refused. NULL: there is no limit. */
static inline int wan_limit_is_short(const wan_limit *limit)
{
    return limit && __atomic_load_n(&limit->is_short, __ATOMIC_RELAXED);
}

/* What a user can do about it, at the end of each refusal. */
#define WAN_LIMIT_REMEDY "destroy entries, start another member, or raise maximum-memory"

/* Notes a change that is refused because this member is short. Returns WAN_FULL; the detail has WAN_LOW_MEMORY, and
 * names the member, what it takes, its limit and the remedy. */
wan_status wan_limit_refuse(wan_limit *limit);

#endif
