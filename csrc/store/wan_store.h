/* Owns segments: runs of memory, or of mapped overflow files, that hold records and entry blocks until nothing refers
 * into them. New segments are memory up to `memory_limit`, files beyond it: the newest events go to disk and the
 * oldest, next to be sent, stay in memory (LIFO overflow).
 *
 * A store is shared by the queues that refer into it, and lives as long as one of them. Its own lock guards what is
 * said below, and is taken after a queue's; it is taken when a segment comes or goes, not for each record: a queue
 * writes into segments that are lent to it (wan_lease), under its own lock, and counts there what lives of its own.
 * What lives of the others' is counted in the segment: the bytes of a record once for each queue that refers to it. */
#ifndef WAN_STORE_H
#define WAN_STORE_H
#include "base/wan_base.h"
#include "base/wan_env.h"
#include "base/wan_lock.h"
#include "base/wan_thread.h"

#define WAN_SEGMENT_BYTES       (2u << 20)   /* A memory segment: one huge page where the system gives one. */
#define WAN_BLOCK_SEGMENT_BYTES (256u << 10) /* The same for entry blocks. */
#define WAN_FILE_SEGMENT_BYTES  (8u << 20)   /* An overflow file. */
#define WAN_FILE_BLOCK_BYTES    (1u << 20)
#define WAN_ADOPTED_BYTES_MAX   (32u << 20) /* Offsets in an entry reach no further. */
#define WAN_SPARE_SEGMENTS      4           /* Kept of each kind when freed; the rest goes back to the system. */
#define WAN_SEGMENT_IDS         (1u << 24)  /* Ids in an entry reach no further. */
#define WAN_FIRST_SEGMENTS 16u /* The first page of the list of segments; each has twice as many as the one before. */
#define WAN_SEGMENT_PAGES  21u

typedef struct {
    uint32_t offset, bytes;
} wan_store_run;

typedef struct {
    uint8_t *base;
    char *file;          /* Of an adopted one: its path. NULL for others. */
    wan_store_run *runs; /* Of an adopted one: where its records lie. NULL for others: from 0 to `used`. */
    uint32_t run_count, run_capacity;
    uint32_t bytes; /* Size of the mapping. */
    uint32_t used;  /* Bytes handed out, from the front; while it is lent, its lease knows. used <= bytes. */
    uint64_t live;  /* Of these, referred to: once for each queue that does. While it is lent all of it counts once, for
                     * the queue that has it. 0: freed. Atomic: who makes it 0 frees it, and nobody raises it who does
                     * not refer to something in it. */
    uint8_t is_file;
    uint8_t is_adopted;   /* Another file than ours, for reading. */
    uint8_t is_lost;      /* An adopted one whose file could not be read: nothing is moved out of it. Atomic. */
    uint8_t is_leaving;   /* What lives in it is moved out, by each queue for its own. Atomic. */
    uint8_t is_lent;      /* A queue puts new records (or blocks) here. */
    uint8_t holds_blocks; /* Entry blocks, not records. */
} wan_segment;

/* A segment that is lent to a queue, which puts records (or blocks) there one behind the other. Its queue's lock guards
 * it. */
typedef struct {
    uint8_t *base;
    uint32_t segment; /* 0: none yet. */
    uint32_t bytes;   /* Of the segment. */
    uint32_t used;    /* Handed out, from the front. */
    uint32_t live;    /* Of these, not given back by this queue. */
    uint8_t holds_blocks;
    uint8_t may_pass_limit; /* While it is set, a segment is memory beyond the limit where nothing else is to be had. */
} wan_lease;

typedef struct {
    wan_lock lock;
    uint32_t users; /* Who shares it. */
    const wan_env *env;
    char *directory;       /* Where overflow files are made; NULL: no overflow, the limit is final. */
    uint64_t memory_limit; /* Bytes of memory segments before files are taken; at least one segment of each kind. */
    wan_segment
        *pages[WAN_SEGMENT_PAGES]; /* By id, see wan_store_segment: they stay where they are. Id 0 is never used. */
    uint32_t segment_count;        /* Ids in use or free, from 1. */
    uint32_t *free_ids;
    uint32_t free_id_count, free_id_capacity;
    uint8_t *spare_memory[WAN_SPARE_SEGMENTS];
    uint8_t *spare_files[WAN_SPARE_SEGMENTS];
    uint32_t spare_memory_count, spare_file_count;
    /* These may be read without the lock, by wan_read. */
    uint64_t memory_bytes;  /* Mapped in memory segments in use. */
    uint64_t file_bytes;    /* Mapped in overflow files in use. */
    uint64_t adopted_bytes; /* Of adopted segments. */
    uint64_t files_made;    /* Ever: entries overflowed shows up here. */
} wan_store;

/* A new store with one user, or WAN_NO_MEMORY. */
wan_status wan_store_new(const wan_env *env, const char *directory, uint64_t memory_limit, wan_store **store);
/* One more user. */
void wan_store_hold(wan_store *store);
/* One user less; the store goes with the last one. Others have given back what they referred to. */
void wan_store_release(wan_store *store);
/* Whether this user is the only one, so that nobody minds what he leaves in it. */
int wan_store_is_own(wan_store *store);

static inline wan_segment *wan_store_segment(const wan_store *store, uint32_t id)
{
    const uint32_t at = id + WAN_FIRST_SEGMENTS, page = 31u - (uint32_t)__builtin_clz(at);
    return &store->pages[page - 4][at - (1u << page)];
}

/* Another segment is lent, or one for these `bytes` alone. */
wan_status wan_store_take_slow(wan_store *store, wan_lease *lease, uint64_t bytes, uint8_t **at, uint32_t *segment_id);

/* Room for `bytes` (a multiple of 8) of a record, or of an entry block. Gives where and in which segment.
 * WAN_FULL, WAN_IO, WAN_NO_MEMORY: nothing changed. */
static inline wan_status wan_store_take(wan_store *store, wan_lease *lease, uint64_t bytes, uint8_t **at,
                                        uint32_t *segment_id)
{
    if (WAN_LIKELY(lease->bytes - lease->used >= bytes)) {
        *at = lease->base + lease->used;
        *segment_id = lease->segment;
        lease->used += (uint32_t)bytes;
        lease->live += (uint32_t)bytes;
        return WAN_OK;
    }
    return wan_store_take_slow(store, lease, bytes, at, segment_id);
}

/* Nothing of a lent segment that its queue put there lives: it is written again from its front, or goes back. */
void wan_store_lease_emptied(wan_store *store, wan_lease *lease);
/* The segment goes back; what lives in it stays. */
void wan_store_end_lease(wan_store *store, wan_lease *lease);

/* Nothing lives in it: it is freed. */
void wan_store_emptied(wan_store *store, uint32_t segment_id);

/* Gives back bytes of a segment, which is freed with its last ones. `lease`: of this queue and of that kind. */
static inline void wan_store_give(wan_store *store, wan_lease *lease, uint32_t segment_id, uint64_t bytes)
{
    if (segment_id == lease->segment) {
        WAN_DEBUG_CHECK(lease->live >= bytes);
        lease->live -= (uint32_t)bytes;
        if (WAN_UNLIKELY(lease->live == 0)) wan_store_lease_emptied(store, lease);
        return;
    }
    wan_segment *segment = wan_store_segment(store, segment_id);
    const uint64_t left = __atomic_sub_fetch(&segment->live, bytes, __ATOMIC_ACQ_REL);
    WAN_DEBUG_CHECK(left + bytes >= bytes);
    if (WAN_UNLIKELY(left == 0)) wan_store_emptied(store, segment_id);
}

/* Takes back the newest `bytes` that were taken: for a reservation that is not used. */
static inline void wan_store_untake(wan_store *store, wan_lease *lease, uint32_t segment_id, uint64_t bytes)
{
    if (segment_id == lease->segment) lease->used -= (uint32_t)bytes;
    wan_store_give(store, lease, segment_id, bytes);
}

/* One more reference to `bytes` of a segment, by a queue that `lease` is of; somebody refers to them meanwhile. */
static inline void wan_store_refer(wan_store *store, wan_lease *lease, uint32_t segment_id, uint64_t bytes)
{
    if (segment_id == lease->segment) lease->live += (uint32_t)bytes;
    else __atomic_add_fetch(&wan_store_segment(store, segment_id)->live, bytes, __ATOMIC_RELAXED);
}

/* Bytes of one mapped file, of which others may have cut something off: to be checked before they are touched. NULL
 * `file`: none. */
typedef struct {
    const char *file;
    const uint8_t *base;
    uint64_t mapped, from, to;
} wan_store_span;
#define WAN_SPAN_FETCHED_BYTES                                                                                         \
    (1u << 20) /* Of a longer span only the last page is fetched: most of it is others' records. */
/* WAN_IO with the file and the reason: touching it would end the process. Needs no lock while something in the segment
 * lives. */
wan_status wan_store_check(const wan_store *store, const wan_store_span *span);

/* A mapped file for reading becomes a segment: a log's, at recovery. It takes nothing more, and is unmapped with its
 * last live bytes. */
wan_status wan_store_adopt(wan_store *store, const char *file, const uint8_t *base, uint64_t bytes,
                           uint32_t *segment_id);
wan_status wan_store_begin_run(wan_segment *segment, uint64_t offset, uint64_t bytes);

/* Records lie in it from `offset` on, `bytes` of them: all that it is read for, and they live. In ascending order, by
 * who adopted it: until it is adopted nobody else counts what lives in it, so that needs no atomic operation. */
static inline wan_status wan_store_add_run(wan_segment *segment, uint64_t offset, uint64_t bytes)
{
    wan_store_run *last = segment->run_count ? &segment->runs[segment->run_count - 1] : NULL;
    if (WAN_UNLIKELY(!last || (uint64_t)last->offset + last->bytes != offset))
        return wan_store_begin_run(segment, offset, bytes);
    segment->used += (uint32_t)bytes;
    wan_add_guarded(&segment->live, bytes);
    last->bytes += (uint32_t)bytes;
    return WAN_OK;
}

/* What lives in it was counted: it is unmapped if nothing does. */
void wan_store_adopted(wan_store *store, uint32_t segment_id);

static inline int wan_store_is_over(const wan_store *store)
{
    return wan_read(&store->memory_bytes) > store->memory_limit;
}

#endif
