/* Owns segments. A segment is a piece of memory, or a mapped overflow file, that holds records or entry blocks until
 * nothing refers to them. New segments are memory up to `memory_limit`, and files beyond it. So the newest events go to
 * the disk, and the oldest ones, which are sent next, stay in memory (LIFO overflow).
 *
 * Several queues may share a store, and it lives as long as one of them. Its own lock guards everything
 * that this file does not exempt. A thread takes it after a queue's lock, and only when a segment comes or goes, not
 * for each record. A queue writes into segments that are lent to it (wan_lease), under its own lock, and counts in the
 * lease what lives of its own records. What other queues refer to there is counted in the segment: the bytes of a
 * record once for each queue that refers to it. */
#ifndef WAN_STORE_H
#define WAN_STORE_H
#include "base/wan_base.h"
#include "base/wan_env.h"
#include "base/wan_limit.h"
#include "base/wan_lock.h"
#include "base/wan_thread.h"

#define WAN_SEGMENT_BYTES       (2u << 20)   /* Bytes of a memory segment: one huge page where the system gives one. */
#define WAN_BLOCK_SEGMENT_BYTES (256u << 10) /* The same for entry blocks. */
#define WAN_FILE_SEGMENT_BYTES  (8u << 20)   /* Bytes of an overflow file. */
#define WAN_FILE_BLOCK_BYTES    (1u << 20)
/* The most bytes of an adopted file: an offset in an entry reaches no further. */
#define WAN_ADOPTED_BYTES_MAX (32u << 20)
/* Free segments of each kind that the store keeps. It gives others back to the system. */
#define WAN_SPARE_SEGMENTS 4
#define WAN_SEGMENT_IDS    (1u << 24) /* Ids in an entry reach no further. */
/* Segments in the first page of the list of segments. Each page has twice as many as the page before. */
#define WAN_FIRST_SEGMENTS 16u
#define WAN_SEGMENT_PAGES  21u

typedef struct {
    uint32_t offset, bytes;
} wan_store_run;

typedef struct {
    uint8_t *base;
    char *file;          /* The path of an adopted file. Otherwise NULL. */
    wan_store_run *runs; /* The ranges of records in an adopted file. Otherwise NULL: they lie from 0 to `used`. */
    uint32_t run_count, run_capacity;
    uint32_t bytes; /* Bytes of the mapping. */
    /* Bytes handed out, from the front. While the segment is lent, its lease has the number. used <= bytes. */
    uint32_t used;
    /* Bytes that something refers to, counted once for each queue that does. While the segment is lent, all its bytes
     * count once for the queue that has it. 0: freed. Atomic. The thread that makes it 0 frees the segment. A thread
     * raises it only while something that it may use refers to these bytes. */
    uint64_t live;
    uint8_t is_file;
    uint8_t is_adopted;   /* A file of a log, mapped for reading. */
    uint8_t is_lost;      /* An adopted file that could not be read. Nothing is moved out of it. Atomic. */
    uint8_t is_leaving;   /* Each queue moves its live records out of it. Atomic. */
    uint8_t is_lent;      /* A queue writes new records (or entry blocks) here. */
    uint8_t holds_blocks; /* It holds entry blocks, not records. */
} wan_segment;

/* A segment that is lent to a queue. The queue puts records (or entry blocks) there one behind the other. The queue's
 * lock guards the lease. */
typedef struct {
    uint8_t *base;
    uint32_t segment; /* The id of the segment. 0: none yet. */
    uint32_t bytes;   /* Bytes of the segment. */
    uint32_t used;    /* Bytes handed out, from the front. */
    uint32_t live;    /* Those of these bytes that this queue has not given back. */
    uint8_t holds_blocks;
    /* While it is set, a new segment may be memory beyond the limit if nothing else is available. */
    uint8_t may_pass_limit;
} wan_lease;

typedef struct {
    wan_lock lock;
    uint32_t users; /* Queues that share the store. */
    const wan_env *env;
    char *directory; /* The directory for overflow files. NULL: there are none, and the limit is final. */
    /* Bytes of memory segments before files are used. At least one segment of each kind. */
    uint64_t memory_limit;
    wan_limit *limit; /* Of the member. While that is short, new segments are files where there may be some. Or NULL. */
    /* The segments by their ids, see wan_store_segment. A segment never moves in this list. Id 0 is never used. */
    wan_segment *pages[WAN_SEGMENT_PAGES];
    uint32_t segment_count; /* The next id that was never given. Ids begin at 1. */
    uint32_t *free_ids;
    uint32_t free_id_count, free_id_capacity;
    uint8_t *spare_memory[WAN_SPARE_SEGMENTS];
    uint8_t *spare_files[WAN_SPARE_SEGMENTS];
    uint32_t spare_memory_count, spare_file_count;
    /* These may be read without the lock, by wan_read. */
    uint64_t memory_bytes;  /* Bytes of memory segments in use. */
    uint64_t file_bytes;    /* Bytes of overflow files in use. */
    uint64_t adopted_bytes; /* Bytes of adopted files. */
    /* Overflow files that were ever made. It shows whether events overflowed. */
    uint64_t files_made;
} wan_store;

/* Makes a new store with one user. WAN_NO_MEMORY: there is none. */
wan_status wan_store_new(const wan_env *env, const char *directory, uint64_t memory_limit, wan_store **store);
/* Counts the memory of the store for this limit from now on. */
void wan_store_set_limit(wan_store *store, wan_limit *limit);
/* Adds a user. */
void wan_store_hold(wan_store *store);
/* Takes a user away. The store is freed with the last one. If there are others, this user has given back everything
 * that it referred to. */
void wan_store_release(wan_store *store);
/* Whether there is only one user. Then it need not give back what it refers to. */
int wan_store_is_own(wan_store *store);

static inline wan_segment *wan_store_segment(const wan_store *store, uint32_t id)
{
    const uint32_t at = id + WAN_FIRST_SEGMENTS, page = 31u - (uint32_t)__builtin_clz(at);
    return &store->pages[page - 4][at - (1u << page)];
}

/* Lends the queue another segment, or takes one for these `bytes` alone. */
wan_status wan_store_take_new(wan_store *store, wan_lease *lease, uint64_t bytes, uint8_t **at, uint32_t *segment_id);

/* Makes room for `bytes` (a multiple of 8) of a record or of an entry block. *at and *segment_id say where it is.
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
    return wan_store_take_new(store, lease, bytes, at, segment_id);
}

/* Called when nothing lives that the queue put into its lent segment. The queue writes it again from the front, or it
 * goes back to the store. */
void wan_store_lease_emptied(wan_store *store, wan_lease *lease);
/* Gives a lent segment back. What lives in it stays. */
void wan_store_end_lease(wan_store *store, wan_lease *lease);

/* Frees a segment in which nothing lives. */
void wan_store_emptied(wan_store *store, uint32_t segment_id);

/* Gives back bytes of a segment, which is freed with its last bytes. `lease` is the queue's lease of that kind. */
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

/* Takes back the newest `bytes` that were taken, for a reservation that is not used. */
static inline void wan_store_untake(wan_store *store, wan_lease *lease, uint32_t segment_id, uint64_t bytes)
{
    if (segment_id == lease->segment) lease->used -= (uint32_t)bytes;
    wan_store_give(store, lease, segment_id, bytes);
}

/* Adds a reference to `bytes` of a segment, for the queue that has `lease`. Another queue refers to them during the
 * call. */
static inline void wan_store_refer(wan_store *store, wan_lease *lease, uint32_t segment_id, uint64_t bytes)
{
    if (segment_id == lease->segment) lease->live += (uint32_t)bytes;
    else __atomic_add_fetch(&wan_store_segment(store, segment_id)->live, bytes, __ATOMIC_RELAXED);
}

/* Bytes of one mapped file. Somebody may have cut the file, so they are checked before a touch. `file` NULL: there are
 * none. */
typedef struct {
    const char *file;
    const uint8_t *base;
    uint64_t mapped, from, to;
} wan_store_span;
/* If a span is longer, only its last page is fetched, because most of it is records of other partitions. */
#define WAN_SPAN_FETCHED_BYTES (1u << 20)
/* Checks a span. WAN_IO with the file and the reason: a touch would end the process. Needs no lock while something in
 * the segment lives. */
wan_status wan_store_check(const wan_store *store, const wan_store_span *span);

/* Makes a mapped file of a log a segment, at recovery. It takes no new records, and is unmapped when nothing in it
 * lives any more. */
wan_status wan_store_adopt(wan_store *store, const char *file, const uint8_t *base, uint64_t bytes,
                           uint32_t *segment_id);
wan_status wan_store_begin_run(wan_segment *segment, uint64_t offset, uint64_t bytes);

/* Notes that live records lie in an adopted segment: `bytes` bytes from `offset` on. Only noted runs are read. The
 * adopting thread calls it with ascending offsets. No other thread counts what lives there before wan_store_adopted, so
 * this needs no atomic operation. */
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

/* Ends an adoption: what lives in the segment was counted. If nothing does, the segment is unmapped. */
void wan_store_adopted(wan_store *store, uint32_t segment_id);

static inline int wan_store_is_over(const wan_store *store)
{
    return wan_read(&store->memory_bytes) > store->memory_limit;
}

#endif
