/* Owns the partitions of one queue: for each its positions, the entries that say where its records lie, and the
 * index of conflation. Not thread-safe: the lock of the layer above guards a queue with all its partitions;
 * records between removed and peeked are neither changed nor moved, so they may be copied without it. */
#ifndef WAN_QUEUE_H
#define WAN_QUEUE_H
#include "record/wan_record.h"
#include "base/wan_buffer.h"
#include "store/wan_store.h"

/* Where a record lies, in 64 bits; 0: nothing (conflated, or refused at transmit). Length in units of 8 bytes is
 * there so that removal need not touch the record; 0 says: longer than fits, ask the record. */
typedef uint64_t wan_entry_ref;
#define WAN_REF_OFFSET_BITS 22 /* Offset / 8: segments of up to 32 MB; a longer record lies at offset 0. */
#define WAN_REF_LENGTH_BITS 18 /* Length / 8: records of up to 2 MB. */

#define WAN_BLOCK_ENTRIES 512u
#define WAN_BLOCK_BYTES   (WAN_BLOCK_ENTRIES * 8)

typedef struct {
    wan_entry_ref *entries; /* NULL: all of it were holes, and its memory was given back. */
    uint32_t segment;
    uint32_t live; /* Entries that are not 0. */
} wan_block;

/* Why an event became a hole; as it is logged. */
enum {
    WAN_HOLE_CONFLATED = 1,
    WAN_HOLE_FILTERED = 2,
    WAN_HOLE_CONFLATED_IN_BATCH = 3,
    WAN_HOLE_PARKED = 4,
    WAN_HOLE_DROPPED = 5,
    WAN_HOLE_RESTAMPED = 6
};
typedef struct {
    uint32_t partition;
    uint32_t reason;
    uint64_t sequence;
} wan_hole;

_Static_assert(sizeof(wan_hole) == 16, "a hole in a log is a format");

typedef struct {
    uint64_t hash;
    uint64_t sequence;
} wan_index_slot; /* sequence 0: free */

typedef struct {
    /* removed <= peeked <= appended, always. Sequences up to `removed` are gone for good; up to `peeked` they are in
     * a batch on its way (or were holes); `appended` is the newest. Sequences start at 1 and are never used twice. */
    uint64_t removed, peeked, appended;
    uint64_t duplicate_through; /* Sequences up to here may have been applied: sent before the last rewind. */
    uint64_t events;            /* Entries in (removed, appended] that are not holes. */
    uint64_t bytes;             /* Their record bytes. */
    uint64_t unpeeked;          /* Those of them in (peeked, appended]. */
    /* Where the queue waits for somebody, an event is peeked only once it counts: all it waits for have it. */
    uint64_t counted; /* All up to here count: the lowest of what is waited for. peeked <= counted <= appended. */
    uint64_t uncounted_events; /* Events in (counted, appended]. Both are kept only while the queue waits. */
    uint64_t durable;          /* With persistence: on the disk up to here. durable <= appended. */
    uint64_t taken; /* With persistence: up to here it is on the disk or being written. durable <= taken <= appended. */
    uint64_t replicated; /* With copies: all copies in sync have it up to here. replicated <= appended. */
    wan_block *blocks;   /* Ring of entry blocks by (sequence - 1) / WAN_BLOCK_ENTRIES; capacity a power of two. */
    uint32_t block_capacity;
    uint32_t block_count;
    uint64_t first_block;  /* Number of the oldest block held. */
    uint64_t known_holes;  /* (removed, known_holes] holds holes only; where it is behind `removed` nothing is known. */
    wan_index_slot *index; /* Conflation: key -> newest update not peeked. NULL until used. */
    uint64_t index_mask, index_used;
} wan_partition;

typedef struct {
    wan_store *store;          /* Shared, perhaps, with other queues: one record may stand in several. */
    wan_lease records, blocks; /* Where it puts them in there. */
    wan_partition *partitions;
    uint32_t partition_count;
    uint8_t conflate;
    uint8_t persistent; /* Events count once they are durable: nothing leaves that a crash could take back. */
    uint8_t
        copied; /* Events count once all copies in sync have them: nothing leaves that a lost member could take back. */
    uint64_t events, bytes;   /* Sums over the partitions. May be read without the lock: wan_read. */
    wan_buffer *holes;        /* With persistence: where holes are noted for the log. NULL otherwise. */
    uint64_t hole_bytes;      /* Of records taken out of the middle since segments were last looked at for moving. */
    uint8_t is_sweeping;      /* What lives in sparse segments is on its way out of them: */
    uint32_t sweep_partition; /* up to here it is done. */
    uint64_t sweep_sequence;
    /* With persistence: older updates (as wan_hole) that wait to be taken out until the newer one is on the disk. Else
     * a crash could leave neither: the older one passed over by a batch, or removed; the newer one not written. NULL
     * otherwise. */
    wan_buffer *superseded;
    uint64_t conflated;         /* Events replaced in the queue by a newer update, ever. */
    const wan_breakage *broken; /* Where a check of our own failed first; NULL: none did. Nothing is changed or handed
                                   out from then on. */
} wan_queue;

/* With a store of its own, */
wan_status wan_queue_init(wan_queue *queue, const wan_env *env, const char *directory, uint64_t memory_limit,
                          uint32_t partitions, int conflate);
/* or in one that others use too. */
wan_status wan_queue_init_in(wan_queue *queue, wan_store *store, uint32_t partitions, int conflate);
void wan_queue_close(wan_queue *queue);

typedef struct {
    uint8_t *at;
    uint32_t segment;
    uint32_t partition;
    uint64_t length;
    uint64_t sequence; /* Of the record, from commit on. */
    uint8_t beyond;    /* By wan_queue_reserve_beyond. */
} wan_reservation;

/* Makes room for one record of `length` bytes at the tail of a partition: record and entry. Nothing is visible
 * before commit; cancel undoes it. One reservation at a time. WAN_FULL, WAN_IO, WAN_NO_MEMORY: nothing changed. */
wan_status wan_queue_reserve(wan_queue *queue, uint32_t partition, uint64_t length, wan_reservation *reservation);
/* The same where that one found no room, for a caller who will drop older events once this one is committed, and none
 * if it is cancelled: the memory limit is passed by a segment of each kind. WAN_FULL: it is passed already, or the
 * record alone would. Nothing changed. */
wan_status wan_queue_reserve_beyond(wan_queue *queue, uint32_t partition, uint64_t length,
                                    wan_reservation *reservation);
void wan_queue_cancel(wan_queue *queue, wan_reservation *reservation);
/* The record has been written at reservation->at: it becomes the newest. With conflation an update takes out the older
 * update of its key that was not peeked. The record stays where it is until the next reservation or hole. */
void wan_queue_commit(wan_queue *queue, wan_reservation *reservation);

/* Room for an entry alone: of a record that another queue in the same store has. Cancelled as any other. */
wan_status wan_queue_reserve_reference(wan_queue *queue, uint32_t partition, wan_reservation *reservation);
/* The record at a sequence of a partition of `from`, whose lock is held too, becomes the newest here as well. It is not
 * copied: its bytes live as long as either refers to them. WAN_BROKEN: it was not committed; the caller cancels the
 * reservation. */
wan_status wan_queue_commit_reference(wan_queue *queue, wan_reservation *reservation, const wan_queue *from,
                                      uint32_t partition, uint64_t sequence);

/* A run: records written one behind the other at the end of the current segment, and made the newest together. */
typedef struct {
    uint8_t *at;
    uint64_t room;
    uint32_t segment;
} wan_run;
#define WAN_RUN_RECORD_BYTES_MAX (64u << 10) /* A longer record goes alone, by reserve and commit. */

/* Says where a run can be written: there is room for `least` bytes at least. Nothing else on the queue before append.
 */
wan_status wan_queue_open_run(wan_queue *queue, uint64_t least, wan_run *run);
/* Entries for `count` records more in a partition, a block of them at most: of a run of so many append leaves none out.
 */
wan_status wan_queue_room_for_entries(wan_queue *queue, uint32_t partition, uint32_t count);
/* The records of these lengths have been written from run->at on: they become the newest of their partitions (NULL: all
 * of the first), in this order, as commit does it. Returns how many: fewer where there is no memory for more entries;
 * the rest is as if it had never been written. 0 records end a run unused. They stay where they are, also those that a
 * later one of them takes out, until the next reservation or hole. `sequences` gets those of all that were appended;
 * NULL: nobody asks. */
uint32_t wan_queue_append_run(wan_queue *queue, const wan_run *run, const uint32_t *lengths, const uint16_t *partitions,
                              uint32_t count, uint64_t *sequences);

/* The record at a sequence of a partition, or NULL for a hole. removed < sequence <= appended. */
wan_record *wan_queue_at(const wan_queue *queue, const wan_partition *partition, uint64_t sequence);
/* The first sequence of from..through that is no hole; 0: all are. removed < from, through <= appended. Blocks of holes
 * are passed as such. */
uint64_t wan_queue_next_live(const wan_partition *partition, uint64_t from, uint64_t through);
/* The oldest event of a partition, or NULL. What was found to be holes is not looked at again. */
wan_record *wan_queue_oldest(wan_queue *queue, uint32_t partition);

/* Takes the next records that were not peeked: up to `count`, and up to `bytes`; the first one whatever its size if
 * `at_least_one`. Fills `records`, and `sequences` unless that is NULL; moves `peeked` past them and past holes (past
 * nothing if none fits). Of records in a mapped file it takes those of one such file, which the caller checks before
 * touching them (wan_queue_span). Returns how many. */
uint32_t wan_queue_peek(wan_queue *queue, uint32_t partition, uint32_t count, uint64_t bytes, int at_least_one,
                        wan_record **records, uint64_t *sequences, uint64_t *peeked_bytes);
/* The part of a mapped file that the records of from..through lie in, for wan_store_check: what one peek took lies in
 * one such file at most. removed < from, through <= appended. */
wan_store_span wan_queue_span(const wan_queue *queue, uint32_t partition, uint64_t from, uint64_t through);
/* Of a span that names a file: the lengths of its records, without touching them. */
void wan_queue_lengths(const wan_queue *queue, uint32_t partition, uint64_t from, uint64_t through, uint32_t *lengths);
/* What one peek took of a mapped file, and its lengths: copied to `to`, and `records` point there. Nothing that happens
 * to the file ends the process. WAN_IO with the file and the reason. Needs no lock. */
wan_status wan_queue_copy(const wan_queue *queue, const wan_store_span *span, wan_record **records,
                          const uint32_t *lengths, uint32_t count, uint8_t *to);
/* All of a span, as above. */
wan_status wan_queue_copy_span(const wan_queue *queue, const wan_store_span *span, uint8_t *to);
/* What the last peek took, behind `peeked`, is as if it had not been taken. */
void wan_queue_unpeek(wan_queue *queue, uint32_t partition, uint64_t peeked);
/* Drops all up to `through` (<= peeked), as acknowledged. Returns the number of events that were dropped. */
uint64_t wan_queue_remove(wan_queue *queue, uint32_t partition, uint64_t through);
/* Makes one peeked or queued event a hole: filtered or conflated in its batch. */
void wan_queue_make_hole(wan_queue *queue, uint32_t partition, uint64_t sequence, uint32_t reason);
/* What was peeked and not removed is to be sent again; it may have been applied. */
void wan_queue_rewind(wan_queue *queue, uint32_t partition);
/* With persistence: all up to `durable` is on the disk now. */
void wan_queue_made_durable(wan_queue *queue, uint32_t partition, uint64_t durable);
/* Copies in sync come to be (nothing that counts is taken back), or are no more: what was waited for then counts.
 * WAN_BROKEN: nothing was changed. */
wan_status wan_queue_set_copied(wan_queue *queue, int copied);
/* With copies: all up to `replicated` is at every copy in sync now. */
void wan_queue_made_replicated(wan_queue *queue, uint32_t partition, uint64_t replicated);
/* With persistence: what replaces these updates is on the disk; those that were not peeked meanwhile become holes. */
void wan_queue_settle_superseded(wan_queue *queue, const wan_buffer *superseded);
/* Recovery: a record at its sequence. Ahead of `appended`: what lies between becomes holes. Behind it: fills a
 * hole (or is there already: nothing happens). Only while nothing is peeked. */
wan_status wan_queue_restore(wan_queue *queue, uint32_t partition, uint64_t sequence, const wan_record *record);

/* As restore, for a record that lies in the segment that is being adopted (wan_store_adopt), and stays there. */
wan_status wan_queue_restore_here(wan_queue *queue, uint32_t segment_id, uint32_t partition, uint64_t sequence,
                                  const wan_record *record);
/* After recovery: moves what lives out of segments that are mostly dead, as far as it is worth it. */
void wan_queue_compact(wan_queue *queue);
/* Recovery: all up to `removed` is gone, and sequences go on behind `appended`. */
wan_status wan_queue_restore_positions(wan_queue *queue, uint32_t partition, uint64_t removed, uint64_t appended);

/* After recovery with `conflate` off: indexes what is queued, and conflates from now on. */
wan_status wan_queue_start_conflating(wan_queue *queue);

/* Events that can be peeked now. */
static inline uint64_t wan_partition_ready(const wan_partition *partition)
{
    return partition->unpeeked - partition->uncounted_events;
}
/* All of it is dropped. *dropped: how many events. WAN_BROKEN: nothing was changed. */
wan_status wan_queue_clear(wan_queue *queue, uint64_t *dropped);

#endif
