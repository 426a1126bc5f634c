/* Owns segments: runs of memory, or of mapped overflow files, that hold records and entry blocks until nothing
 * refers into them. New segments are memory up to `memory_limit`, files beyond it: the newest events go to disk and
 * the oldest, next to be sent, stay in memory (LIFO overflow). Not thread-safe: the queue's lock guards it. */
#ifndef WAN_STORE_H
#define WAN_STORE_H
#include "base/wan_base.h"
#include "base/wan_env.h"

#define WAN_SEGMENT_BYTES (2u << 20)         /* A memory segment: one huge page where the system gives one. */
#define WAN_BLOCK_SEGMENT_BYTES (256u << 10) /* The same for entry blocks. */
#define WAN_FILE_SEGMENT_BYTES (8u << 20)    /* An overflow file. */
#define WAN_FILE_BLOCK_BYTES (1u << 20)
#define WAN_ADOPTED_BYTES_MAX (32u << 20)    /* Offsets in an entry reach no further. */
#define WAN_SPARE_SEGMENTS 4                 /* Kept of each kind when freed; the rest goes back to the system. */

typedef struct { uint32_t offset, bytes; } wan_store_run;

typedef struct {
    uint8_t *base;
    char *file;             /* Of an adopted one: its path. NULL for others. */
    wan_store_run *runs;    /* Of an adopted one: where its records lie. NULL for others: from 0 to `used`. */
    uint32_t run_count, run_capacity;
    uint32_t bytes;         /* Size of the mapping. */
    uint32_t used;          /* Bytes handed out, from the front. used <= bytes. */
    uint32_t live;          /* Bytes handed out and not given back. 0 and not current: freed. live <= used. */
    uint8_t is_file;
    uint8_t is_adopted;     /* Another file than ours, for reading. */
    uint8_t is_lost;        /* An adopted one whose file could not be read: nothing is moved out of it. */
    uint8_t is_current;     /* New records (or blocks) go here. */
    uint8_t holds_blocks;   /* Entry blocks, not records. */
} wan_segment;

typedef struct {
    const wan_env *env;
    char *directory;            /* Where overflow files are made; NULL: no overflow, the limit is final. */
    uint64_t memory_limit;      /* Bytes of memory segments before files are taken; at least one segment of each kind. */
    uint8_t may_pass_limit;     /* While it is set, a segment is memory beyond the limit where nothing else is to be had. */
    wan_segment *segments;      /* By id; id 0 is never used. */
    uint32_t segment_count;     /* Ids in use or free, from 1. */
    uint32_t segment_capacity;
    uint32_t *free_ids;
    uint32_t free_id_count;
    uint32_t record_segment;    /* Current segments; 0: none yet. */
    uint32_t block_segment;
    uint8_t *spare_memory[WAN_SPARE_SEGMENTS];
    uint8_t *spare_files[WAN_SPARE_SEGMENTS];
    uint32_t spare_memory_count, spare_file_count;
    uint64_t memory_bytes;      /* Mapped in memory segments in use. */
    uint64_t file_bytes;        /* Mapped in overflow files in use. */
    uint64_t adopted_bytes;     /* Of adopted segments. */
    uint64_t files_made;        /* Ever: entries overflowed shows up here. */
} wan_store;

wan_status wan_store_init(wan_store *store, const wan_env *env, const char *directory, uint64_t memory_limit);
void wan_store_close(wan_store *store);

/* Room for `bytes` (a multiple of 8) of a record, or of an entry block. Gives where and in which segment.
 * WAN_FULL, WAN_IO: nothing changed. */
wan_status wan_store_take_slow(wan_store *store, uint32_t *current, uint64_t bytes, uint8_t **at, uint32_t *segment_id);

static inline wan_status wan_store_take(wan_store *store, uint32_t *current, uint64_t bytes, uint8_t **at, uint32_t *segment_id)
{
    wan_segment *segment = &store->segments[*current];
    if (WAN_LIKELY(segment->bytes - segment->used >= bytes)) {
        *at = segment->base + segment->used;
        *segment_id = *current;
        segment->used += (uint32_t)bytes;
        segment->live += (uint32_t)bytes;
        return WAN_OK;
    }
    return wan_store_take_slow(store, current, bytes, at, segment_id);
}

/* Bytes of one mapped file, of which others may have cut something off: to be checked before they are touched. NULL `file`: none. */
typedef struct { const char *file; const uint8_t *base; uint64_t mapped, from, to; } wan_store_span;
#define WAN_SPAN_FETCHED_BYTES (1u << 20)   /* Of a longer span only the last page is fetched: most of it is others' records. */
/* WAN_IO with the file and the reason: touching it would end the process. Needs no lock while something in the segment lives. */
wan_status wan_store_check(const wan_store *store, const wan_store_span *span);

/* A mapped file for reading becomes a segment: a log's, at recovery. It takes nothing more, and is unmapped with its last live bytes. */
wan_status wan_store_adopt(wan_store *store, const char *file, const uint8_t *base, uint64_t bytes, uint32_t *segment_id);
wan_status wan_store_begin_run(wan_store *store, uint32_t segment_id, uint64_t offset, uint64_t bytes);

/* Records lie in it from `offset` on, `bytes` of them: all that it is read for. In ascending order. */
static inline wan_status wan_store_add_run(wan_store *store, uint32_t segment_id, uint64_t offset, uint64_t bytes)
{
    wan_segment *segment = &store->segments[segment_id];
    wan_store_run *last = segment->run_count ? &segment->runs[segment->run_count - 1] : NULL;
    if (WAN_UNLIKELY(!last || (uint64_t)last->offset + last->bytes != offset)) return wan_store_begin_run(store, segment_id, offset, bytes);
    segment->used += (uint32_t)bytes;
    last->bytes += (uint32_t)bytes;
    return WAN_OK;
}

/* What lives in it was counted: it is unmapped if nothing does. */
void wan_store_adopted(wan_store *store, uint32_t segment_id);

static inline int wan_store_is_over(const wan_store *store) { return store->memory_bytes > store->memory_limit; }

/* Takes back the newest `bytes` of a segment: for a reservation that is not used. */
static inline void wan_store_untake(wan_store *store, uint32_t segment_id, uint64_t bytes)
{
    store->segments[segment_id].used -= (uint32_t)bytes;
    store->segments[segment_id].live -= (uint32_t)bytes;
}

/* Gives back bytes; frees the segment with its last ones. */
void wan_store_emptied(wan_store *store, uint32_t segment_id);
static inline void wan_store_give(wan_store *store, uint32_t segment_id, uint64_t bytes)
{
    wan_segment *segment = &store->segments[segment_id];
    WAN_DEBUG_CHECK(segment->live >= bytes);
    segment->live -= (uint32_t)bytes;
    if (WAN_UNLIKELY(segment->live == 0)) wan_store_emptied(store, segment_id);
}

#endif
