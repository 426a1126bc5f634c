/* Owns the partitions of one queue. Each partition has its positions, the entries that say where its records lie, and
 * the index of conflation. A queue has own partitions, and for each region that several members hold a run of stream
 * partitions, one for each bucket. It is not thread-safe: the lock of the layer above guards a queue with all its
 * partitions. Records between `removed` and `peeked` are neither changed nor moved, so a thread may copy them without
 * the lock. */
#ifndef WAN_QUEUE_H
#define WAN_QUEUE_H
#include "record/wan_record.h"
#include "base/wan_buffer.h"
#include "store/wan_store.h"

/* The place of a record, in 64 bits. 0, or the number of a reason (WAN_HOLE_*): there is no record, because the event
 * became a hole. The reason is there only if other members are told of it. The word includes the length in units of
 * 8 bytes, so that removing an event need not touch its record. Length 0 means that the length does not fit; then the
 * record itself says it. */
typedef uint64_t wan_entry_ref;
/* The offset divided by 8, for segments of up to 32 MB. A longer record lies at offset 0. */
#define WAN_REF_OFFSET_BITS 22
/* The length divided by 8, for records of up to 2 MB. */
#define WAN_REF_LENGTH_BITS 18

#define WAN_BLOCK_ENTRIES 512u
#define WAN_BLOCK_BYTES   (WAN_BLOCK_ENTRIES * 8ull)

typedef struct {
    /* NULL: all its entries are holes, and its memory was given back. In a partition that `has_arrivals` as many words
     * follow the entries: the arrival of each. */
    wan_entry_ref *entries;
    uint64_t number; /* Of its first entry's sequence: (sequence - 1) / WAN_BLOCK_ENTRIES. */
    uint32_t segment;
    uint32_t live; /* Entries that are no holes. */
    /* Why its events became holes (WAN_HOLE_*), once its memory was given back. 0: none of them has a reason. */
    uint32_t reason;
} wan_block;

/* Why an event became a hole. The numbers are in logs, and between members. */
enum {
    WAN_HOLE_CONFLATED = 1,
    WAN_HOLE_FILTERED = 2,
    WAN_HOLE_CONFLATED_IN_BATCH = 3,
    WAN_HOLE_PARKED = 4,
    WAN_HOLE_DROPPED = 5,
    WAN_HOLE_RESTAMPED = 6,
    WAN_HOLE_MOVED = 7,   /* It is in a stream now, or was in one. No log has it, and no other member is told. */
    WAN_HOLE_CLEARED = 8, /* An operator removed it. No log has it, as the next one. */
    WAN_HOLE_UNKNOWN = 9, /* Another member removed it, and nobody told why. */
    WAN_HOLE_REASONS
};
/* Why an event of a stream was parked is in the byte above WAN_HOLE_PARKED: WAN_FAILED_*, or 0 if that is not known. */
#define WAN_HOLE_PARKED_FOR(failure) (WAN_HOLE_PARKED | (uint32_t)(failure) << 8)
#define WAN_HOLE_KIND(reason)        ((uint32_t)(reason) & 0xff)
#define WAN_HOLE_FAILURE(reason)     ((uint32_t)(reason) >> 8)
typedef struct {
    uint32_t partition;
    uint32_t reason;
    uint64_t sequence;
} wan_hole;

_Static_assert(sizeof(wan_hole) == 16, "a hole in a log is a format");

/* Events of a stream that left a queue for another reason than an acknowledgement: those that this queue had of the
 * `count` sequences from `first` on. */
typedef struct {
    uint64_t first;
    uint32_t count;
    uint32_t reason; /* WAN_HOLE_*, or WAN_HOLE_PARKED_FOR */
} wan_exception;

_Static_assert(sizeof(wan_exception) == 16, "an exception is a format");

#define WAN_EXCEPTIONS_MAX 2048u /* That a partition remembers: 32 KiB. */
#define WAN_TOLD_MAX       256u  /* Members that are told of a stream. */
/* The newest exceptions of a partition, in wan_queue_inner.h. */
typedef struct wan_exceptions wan_exceptions;

typedef struct {
    uint64_t hash;
    uint64_t sequence;
} wan_index_slot; /* A sequence of 0: the slot is free. */

typedef struct {
    /* removed <= peeked <= appended, always. Events up to `removed` are gone for good. Events up to `peeked` are in a
     * batch on its way, or were holes. `appended` is the newest event. Sequences start at 1, and none is used twice. */
    uint64_t removed, peeked, appended;
    /* Events up to here may have been applied, because they were sent before the last rewind. */
    uint64_t duplicate_through;
    uint64_t events;   /* Entries in (removed, appended] that are no holes. */
    uint64_t bytes;    /* Bytes of their records. */
    uint64_t unpeeked; /* Those of these entries that are in (peeked, appended]. */
    /* A queue may wait for its disk, or for the replicas of the buckets that feed it. Then an event counts only when
     * all of them have it, and only an event that counts can be peeked. `stable` and `unstable_events` are kept only
     * while the queue waits.
     *
     * All events up to `stable` are stable. peeked <= stable <= appended. */
    uint64_t stable;
    uint64_t unstable_events; /* Events in (stable, appended]. */
    /* With persistence: the disk has all events up to here. durable <= appended. */
    uint64_t durable;
    /* With persistence: the disk has all events up to here, or they are being written. durable <= taken <= appended. */
    uint64_t taken;
    /* Fed by a bucket that several members hold: through which sequence its changes count, which is read atomically.
     * The events have the sequences of their changes. NULL: nothing feeds the partition, and all its events count. */
    const uint64_t *stream;
    /* What a stream partition is for: the bucket of a region, by its number in this process, in this timeline of the
     * bucket. With the site and the sender this names the stream at every member. region is 0 for an own partition. */
    uint64_t timeline;
    uint32_t bucket;
    uint16_t region;
    /* This member sends the events. If not, nothing can be peeked: another member sends them, and tells what is
     * settled. Always 1 for an own partition. */
    uint8_t leads;
    /* Each entry has its arrival beside it: the events of several partitions leave in the order of these numbers. */
    uint8_t has_arrivals;
    /* The remote site has everything of the stream through here, as another member says. It is removed as soon as
     * nothing of the partition is on its way. Above `removed`, or of no meaning. */
    uint64_t removed_through;
    /* Whoever is told that events of a stream have left for another reason than that. NULL: nobody. */
    void (*tell)(void *teller, uint32_t bucket);
    void *teller;
    /* What other members may be told: that all through `tellable` has left. Through `telling` it has left too, but
     * there are events among it that a newer one replaced, which may be as new as `telling_after`: it may be told when
     * that counts. `replaced_by`: the newest event that ever replaced an older one. tellable <= telling <= removed */
    uint64_t tellable, telling, telling_after, replaced_by;
    /* Events of the stream that left otherwise than by an acknowledgement, for the other members. It has all of them
     * behind `explained`. Why the events through that left is not known. NULL: it has none. */
    wan_exceptions *exceptions;
    uint64_t explained;
    uint64_t acknowledged; /* The newest event of the stream that left because it was acknowledged. */
    /* Another member told exceptions among events that are not here yet. Nobody knows why those through here left. */
    uint64_t unsure_through;
    /* The queue got events of the stream from the next sequence on: what came up to here was never here, and other
     * members may have it still. begun <= removed */
    uint64_t begun;
    /* Other members may have events of the stream through here that this queue has not, because it is fed since a later
     * moment than theirs. Until they were asked, nothing is sent from here and nothing is heard of what is settled.
     * WAN_NO_LIMIT: the moment is not known yet. 0: the queue lacks nothing. */
    uint64_t lacks;
    /* A ring of entry blocks, in the order of their numbers. Its capacity is a power of two. The oldest one is at the
     * place `ring_at`, modulo the capacity. */
    wan_block *blocks;
    uint32_t block_capacity; /* Blocks that the ring has room for. */
    uint32_t block_count;
    uint64_t first_block; /* The number of the oldest block. */
    uint64_t ring_at;     /* Equal to `first_block`, but where there are gaps. */
    /* Blocks may be missing in (removed, appended]: all their entries are holes, however many they are. A block is
     * searched for then. Otherwise each block is at the place of its number. */
    uint8_t has_gaps;
    /* (removed, known_holes] has holes only. If `known_holes` is below `removed`, nothing is known. */
    uint64_t known_holes;
    /* For conflation: the newest update of each key that was not peeked. NULL until it is needed. */
    wan_index_slot *index;
    uint64_t index_mask, index_used; /* The number of its slots minus one; its slots in use. */
} wan_partition;

/* The stream partitions of a region: the events of bucket n are in partition `first` + n. */
typedef struct {
    uint32_t first, buckets;
    uint16_t region; /* Its number in this process. */
} wan_stream_run;

#define WAN_PARTITIONS_MAX 65535u

typedef struct {
    wan_store *store;          /* Other queues may share it, and a record may stand in several queues. */
    wan_lease records, blocks; /* The segments of the store that this queue writes into. */
    /* There are addresses for WAN_PARTITIONS_MAX of them, and memory for `partition_count`. So they never move, and a
     * dispatcher may look at its partitions while runs are added. */
    wan_partition *partitions;
    uint32_t own_count;       /* The first partitions, which are no streams. Events choose one of them by their keys. */
    uint32_t partition_count; /* All partitions. It grows under the lock, and may be read without it, atomically. */
    wan_stream_run *runs;
    uint32_t run_count;
    uint8_t conflate; /* A newer update of a key replaces an older one. */
    /* Its stream partitions have arrivals. One dispatcher, the first one, sends them all (wan_queue_merge.h). */
    uint8_t keeps_arrivals;
    uint64_t arrival; /* The highest that was given. */
    /* Events count once they are durable. So no event leaves that a crash could take back. */
    uint8_t persistent;
    /* Sums over the partitions. They may be read without the lock, by wan_read. */
    uint64_t events, bytes;
    wan_buffer *holes; /* With persistence: where holes are noted for the log. Otherwise NULL. */
    /* Records that left the queue while they were on their way: their dispatcher may still read them
     * (wan_queue_let_go). Their bytes stay. */
    wan_buffer pinned;
    /* Bytes of records that became holes since the queue last looked for segments to empty. */
    uint64_t hole_bytes;
    /* The queue is moving what lives out of sparse segments. It has done so up to `sweep_sequence` of
     * `sweep_partition`. */
    uint8_t is_sweeping;
    uint32_t sweep_partition;
    uint64_t sweep_sequence;
    /* With persistence: older updates (as wan_hole) that become holes only when the newer update of their key is on the
     * disk. If they became holes at once, a crash could lose both: a batch passes over the older one, and the newer one
     * was not written. Otherwise NULL. */
    wan_buffer *superseded;
    /* Another member has parked an event that is here too: keeps a copy of it before it leaves. Under the queue's lock.
     * NULL: nobody does. */
    void (*park)(void *parker, uint32_t partition, uint64_t sequence, uint32_t failure);
    void *parker;
    uint64_t conflated; /* Events that a newer update has ever replaced in the queue. */
    uint64_t forgotten; /* Events that went because a bucket began anew here. */
    /* Events that went because another member, which sends them, was done with them. */
    uint64_t removed_by_primary;
    /* The first check of our own that failed, or NULL. From then on the queue changes nothing and hands nothing out. */
    const wan_breakage *broken;
} wan_queue;

/* Makes a queue with a store of its own. */
wan_status wan_queue_init(wan_queue *queue, const wan_env *env, const char *directory, uint64_t memory_limit,
                          uint32_t partitions, int conflate);
/* Makes a queue in a store that other queues use too. */
wan_status wan_queue_init_in(wan_queue *queue, wan_store *store, uint32_t partitions, int conflate);
/* From now on the queue keeps the order in which events reach its streams, over all of them. Called before the first
 * run is added. */
void wan_queue_keep_arrivals(wan_queue *queue);
/* Gives everything back that the queue holds in its store, and frees the rest. */
void wan_queue_close(wan_queue *queue);

typedef struct {
    uint8_t *at;
    uint32_t segment;
    uint32_t partition;
    uint64_t length;
    uint64_t sequence; /* The record's sequence, valid after commit. */
    uint8_t beyond;    /* wan_queue_reserve_beyond made it. */
} wan_reservation;

/* Makes room for one record of `length` bytes at the end of a partition: for the record and its entry. Nothing is
 * visible before wan_queue_commit, and wan_queue_cancel undoes it. A queue has one reservation at a time. WAN_FULL,
 * WAN_IO, WAN_NO_MEMORY: nothing changed. */
wan_status wan_queue_reserve(wan_queue *queue, uint32_t partition, uint64_t length, wan_reservation *reservation);
/* The same, after wan_queue_reserve found no room; `sequence` not 0: after wan_queue_reserve_at did. The caller drops
 * older events after it commits, and drops none if it cancels. The store may pass its memory limit by one segment for
 * records and one for entries. WAN_FULL: the limit is passed already, or the record alone would pass it. Nothing
 * changed. */
wan_status wan_queue_reserve_beyond(wan_queue *queue, uint32_t partition, uint64_t sequence, uint64_t length,
                                    wan_reservation *reservation);
/* The same for an event whose sequence is given: a bucket feeds the partition. Sequences that are passed over become
 * holes, which stay. WAN_BROKEN: the partition has an event behind it. */
wan_status wan_queue_reserve_at(wan_queue *queue, uint32_t partition, uint64_t sequence, uint64_t length,
                                wan_reservation *reservation);
/* Takes a reservation back, as if it had never been made. */
void wan_queue_cancel(wan_queue *queue, wan_reservation *reservation);
/* Makes the record that the caller has written at reservation->at the newest of its partition. With conflation an
 * update takes out the older update of its key that was not peeked. The record stays where it is until the next
 * reservation or hole. */
void wan_queue_commit(wan_queue *queue, wan_reservation *reservation);

/* Makes room for an entry alone, for a record that another queue in the same store has. It is cancelled like any other
 * reservation. */
wan_status wan_queue_reserve_reference(wan_queue *queue, uint32_t partition, wan_reservation *reservation);
/* Makes a record of another queue the newest record here as well. The record is at `sequence` of a partition of `from`.
 * The caller holds the locks of both queues. The record is not copied: its bytes live as long as one of the queues
 * refers to them. WAN_BROKEN: nothing was committed, and the caller cancels the reservation. */
wan_status wan_queue_commit_reference(wan_queue *queue, wan_reservation *reservation, const wan_queue *from,
                                      uint32_t partition, uint64_t sequence);

/* A run: records that the caller writes one behind the other at the end of the current segment, and that become the
 * newest ones together. */
typedef struct {
    uint8_t *at;
    uint64_t room;
    uint32_t segment;
} wan_run;
#define WAN_RUN_RECORD_BYTES_MAX (64u << 10) /* A longer record goes alone, by reserve and commit. */

/* Says where the caller can write a run: there is room for at least `least` bytes. The caller makes no other call on
 * the queue before wan_queue_append_run. */
wan_status wan_queue_open_run(wan_queue *queue, uint64_t least, wan_run *run);
/* Makes room for the entries of `count` more records in a partition; `count` is at most WAN_BLOCK_ENTRIES. Then
 * wan_queue_append_run leaves out no record of a run of that size. */
wan_status wan_queue_room_for_entries(wan_queue *queue, uint32_t partition, uint32_t count);
/* Ends a run. The caller has written records with these lengths from run->at on. They become the newest of their
 * partitions in this order, as wan_queue_commit does it. `partitions` NULL: all go to partition 0. Returns how many
 * records were appended. That is fewer than `count` if there is no memory for more entries; the rest is as if it had
 * never been written. A count of 0 ends a run unused. All records stay where they are until the next reservation or
 * hole, also those that a later record of the run takes out. `sequences` (may be NULL) gets the sequences of the
 * appended records. */
uint32_t wan_queue_append_run(wan_queue *queue, const wan_run *run, const uint32_t *lengths, const uint16_t *partitions,
                              uint32_t count, uint64_t *sequences);

/* The record at a sequence of a partition, or NULL for a hole. removed < sequence <= appended. */
wan_record *wan_queue_at(const wan_queue *queue, const wan_partition *partition, uint64_t sequence);
/* The first sequence from `from` to `through` that is no hole. 0: all are holes. removed < from, through <= appended.
 * It passes blocks of holes without a look at each entry. */
uint64_t wan_queue_next_live(const wan_partition *partition, uint64_t from, uint64_t through);
/* The oldest event of a partition, or NULL. It remembers the holes that it passed. */
wan_record *wan_queue_oldest(wan_queue *queue, uint32_t partition);

/* Takes the next records that were not peeked, up to `count` of them and up to `bytes`. With `at_least_one` it takes
 * the first record whatever its size. It fills `records`, and `sequences` unless that is NULL. It moves `peeked` past
 * the records and past holes; if no record fits, `peeked` stays. It takes records from one mapped file at most, and the
 * caller checks that file before it touches the records (wan_queue_span). Returns how many records it took. */
uint32_t wan_queue_peek(wan_queue *queue, uint32_t partition, uint32_t count, uint64_t bytes, int at_least_one,
                        wan_record **records, uint64_t *sequences, uint64_t *peeked_bytes);
/* The part of a mapped file that holds the records `from` to `through`, for wan_store_check. What one peek took lies in
 * one such file at most. removed < from, through <= appended. */
wan_store_span wan_queue_span(const wan_queue *queue, uint32_t partition, uint64_t from, uint64_t through);
/* Writes the lengths of the records of a span that names a file, without touching the records. */
void wan_queue_lengths(const wan_queue *queue, uint32_t partition, uint64_t from, uint64_t through, uint32_t *lengths);
/* Copies the records that one peek took from a mapped file, with their lengths, to `to`. `records` point there
 * afterwards. Nothing that happens to the file ends the process. WAN_IO with the file and the reason. Needs no lock. */
wan_status wan_queue_copy(const wan_queue *queue, const wan_store_span *span, wan_record **records,
                          const uint32_t *lengths, uint32_t count, uint8_t *to);
/* Copies a whole span, in the same way. */
wan_status wan_queue_copy_span(const wan_queue *queue, const wan_store_span *span, uint8_t *to);
/* Takes back the last peek, as far as it went behind `peeked`. */
void wan_queue_unpeek(wan_queue *queue, uint32_t partition, uint64_t peeked);
/* Drops all events up to `through` (<= peeked), because they were acknowledged. Returns the number of dropped
 * events. */
uint64_t wan_queue_remove(wan_queue *queue, uint32_t partition, uint64_t through);
/* Makes one event of the queue a hole, peeked or not, for the given reason. */
void wan_queue_make_hole(wan_queue *queue, uint32_t partition, uint64_t sequence, uint32_t reason);
/* The records that were peeked and not removed are to be sent again. The receiver may have applied them. */
void wan_queue_rewind(wan_queue *queue, uint32_t partition);
/* With persistence: the disk has all events up to `durable` now. */
void wan_queue_made_durable(wan_queue *queue, uint32_t partition, uint64_t durable);
/* Takes a run of stream partitions for the buckets of a region. One that the region had before goes on, if nothing
 * feeds it, and what it still holds is of these `lives` of the buckets (NULL: of none): a stream has one place, or its
 * later events would leave before its earlier ones. Otherwise it is a new one. *first: its first partition, a multiple
 * of `align`. This member leads none of them. WAN_INVALID: the queue would have more than WAN_PARTITIONS_MAX
 * partitions. WAN_NO_MEMORY, WAN_BROKEN. Nothing was changed then. */
wan_status wan_queue_add_run(wan_queue *queue, uint16_t region, uint32_t buckets, uint32_t align,
                             const uint64_t *timelines, uint32_t *first);
/* Nothing feeds a stream partition any more, so nobody decides who sends what is left of it, or tells the others when
 * it has left: whoever holds it sends it. The remote site recognises repeats. `is_whole`: the replica of the bucket is.
 * What is not whole, or lacks what others have, is forgotten: the others have all of it, and what this member says of
 * itself would make the remote site skip theirs. */
void wan_queue_send_rest(wan_queue *queue, uint32_t partition, int is_whole);
/* From now on a bucket feeds a stream partition. `high_watermark`: the bucket's, of its change log. NULL: the bucket
 * feeds the partition no more. The partition then forgets its events behind the high watermark: no client was told of
 * their changes, and a new primary may give their sequences to other changes. `timeline`: of the bucket. `last`: the
 * newest change of the bucket. A partition that never had an event begins behind `last`. WAN_BROKEN: nothing was
 * changed. */
wan_status wan_queue_feed(wan_queue *queue, uint32_t partition, const uint64_t *high_watermark, uint64_t timeline,
                          uint64_t last);
/* More changes of the bucket that feeds a partition may count now. Returns how many events more can be peeked. The
 * bucket has a whole replica here: holes at the front may leave, which a snapshot would fill. */
uint64_t wan_queue_count(wan_queue *queue, uint32_t partition);
/* Other members may have events of a stream partition through `through` that are not here. 0: they were asked. */
void wan_queue_lack(wan_queue *queue, uint32_t partition, uint64_t through);
/* Of a partition that lacks events: what came behind `after` may be put back (wan_queue_restore), though the queue
 * began later, or had removed it as settled. WAN_EMPTY: something of the partition is on its way, and the caller comes
 * again when that is over; or nothing feeds it any more. WAN_NO_MEMORY, WAN_FULL, WAN_IO, WAN_BROKEN. Nothing was
 * changed then. */
wan_status wan_queue_reach_back(wan_queue *queue, uint32_t partition, uint64_t after);
/* Says whether this member sends the events of a stream partition. One that lacks events sends none. If it begins to,
 * all that is queued may have been sent by another member. With `in_order` that one handed over: it has nothing on its
 * way. If it ends, nothing more can be peeked; what is on its way may still be removed. */
void wan_queue_lead(wan_queue *queue, uint32_t partition, int leads, int in_order);
/* The queue of the bucket's primary is done with all events of a partition through `through`: they go here too. Nothing
 * of the partition is on its way. WAN_NO_MEMORY, WAN_BROKEN: nothing was changed. */
wan_status wan_queue_remove_through(wan_queue *queue, uint32_t partition, uint64_t through);
/* A place among the own partitions. Zeros: the beginning. */
typedef struct {
    uint32_t partition;
    uint64_t sequence; /* All of the partition through here was looked at. */
} wan_queue_place;
/* Moves queued events of a run's region from own partitions into its streams, in order, and looks at `most` events at
 * most. No event of the region comes in the meantime. Each stays one event of the queue. `lowest`, by the site of
 * origin, falls to the lowest stamp of these events that no caller gave. What is on its way may have been applied when
 * it leaves again: its acknowledgement, or the end of the connection, finds nothing there. WAN_OK: all were moved.
 * WAN_EMPTY: call again with this place. WAN_NO_MEMORY, WAN_FULL, WAN_IO, WAN_BROKEN: the rest stays where it is. */
wan_status wan_queue_move_to_run(wan_queue *queue, const wan_stream_run *run, wan_queue_place *place, uint32_t most,
                                 uint64_t lowest[256]);
/* Moves queued events of a stream partition into an own one, in order, and at most `most` of them. Each stays one event
 * of the queue, and may have been sent by another member. The bucket is lost: it gives no event to the stream any more,
 * and nobody is told that these have left it, because wan_queue_begin_anew follows. `lowest`, results and what is on
 * its way: as for wan_queue_move_to_run. *moved grows by the events that were moved. */
wan_status wan_queue_move_from_run(wan_queue *queue, uint32_t partition, uint32_t most, uint64_t lowest[256],
                                   uint64_t *moved);
/* One of so many dispatchers reads no record any more that it peeked. */
void wan_queue_let_go(wan_queue *queue, uint32_t dispatcher, uint32_t dispatchers);
/* From now on `tell(teller, bucket)` is called, under the queue's lock, when events leave a stream partition that other
 * members may have: acknowledged, or dropped. NULL: nobody is told. */
void wan_queue_announce_removals(wan_queue *queue, uint32_t partition, void (*tell)(void *teller, uint32_t bucket),
                                 void *teller);
/* Through which sequence other members may be told that all events of a stream partition have left. 0: none. *waits:
 * more has left, and may be told when more changes count. */
uint64_t wan_queue_removed_through(wan_queue *queue, uint32_t partition, int *waits);
/* Through which sequence member `to` was told why events of a stream partition left, or all that can be told of. */
uint64_t wan_queue_explained(const wan_queue *queue, uint32_t partition, uint32_t to);
/* Member `to` is told of all events of a stream partition through `through`. 0: it has to be told all again. */
void wan_queue_set_told(wan_queue *queue, uint32_t partition, uint32_t to, uint64_t through);
/* Writes the exceptions of a stream partition behind `after` through `through` to `exceptions`, where there is room for
 * WAN_EXCEPTIONS_MAX. Returns how many they are. */
uint32_t wan_queue_exceptions(const wan_queue *queue, uint32_t partition, uint64_t after, uint64_t through,
                              wan_exception *exceptions);
/* What another member says of a stream partition: all events behind `after` through `through` have left its queue.
 * Those behind `explained` were acknowledged, but for the exceptions, which come in order. It says nothing about why
 * the others left. `leads`: it sends the events. */
typedef struct {
    uint64_t after, through, explained;
    const wan_exception *exceptions;
    uint32_t count;
    int leads;
} wan_removal;
/* Takes what another member says. It never had the events through `after`; so nothing happens if one of those is here
 * still, or may come. `whole`: no event through `after` comes any more, so that holes are not waited for. Events that
 * are exceptions leave at once, counted as removed by the primary; those that were parked go to `park` before. Those
 * whose reason nobody told become
 * exceptions too (WAN_HOLE_UNKNOWN). A member that does not lead is not believed where it leaves reasons out: the one
 * that leads may tell them still. The others stay until wan_queue_apply_removal takes them. */
void wan_queue_receive_removal(wan_queue *queue, uint32_t partition, const wan_removal *said, int whole);
/* Drops the events that another member said to have left its queue, up to `limit`. Nothing happens while any of the
 * partition is on its way. Returns how many events were dropped: they were acknowledged, but for those through
 * `unsure_through`. */
uint64_t wan_queue_apply_removal(wan_queue *queue, uint32_t partition, uint64_t limit);
/* Nothing can have been settled behind `through`, whatever was said. */
void wan_queue_bound_removal(wan_queue *queue, uint32_t partition, uint64_t through);
/* The bucket that feeds a partition begins anew in this timeline: all events are dropped, and sequences begin at 1
 * again. Of what is on its way, nothing can be acknowledged any more. Returns how many were dropped. */
uint64_t wan_queue_begin_anew(wan_queue *queue, uint32_t partition, uint64_t timeline);
/* The bucket that feeds a partition has this timeline. If that is another one, nothing that was said of the stream
 * holds.
 */
void wan_queue_set_timeline(wan_queue *queue, uint32_t partition, uint64_t timeline);
/* With persistence: the newer updates that replace these are on the disk. Those of these that were not peeked meanwhile
 * become holes. */
void wan_queue_remove_superseded(wan_queue *queue, const wan_buffer *superseded);
/* Recovery puts a record back at its sequence. If the sequence is further than `appended` + 1, the sequences between
 * become holes. If it is not above `appended`, the record fills a hole, or it is there already and nothing happens.
 * Only while nothing is peeked. */
wan_status wan_queue_restore(wan_queue *queue, uint32_t partition, uint64_t sequence, const wan_record *record);

/* The same for a record that lies in the segment that is being adopted (wan_store_adopt), and stays there. */
wan_status wan_queue_restore_here(wan_queue *queue, uint32_t segment_id, uint32_t partition, uint64_t sequence,
                                  const wan_record *record);
/* Moves what lives out of segments that are mostly dead, as far as that is worth it. Called after recovery. */
void wan_queue_compact(wan_queue *queue);
/* Recovery: all events up to `removed` are gone, and the next sequence is above `appended`. */
wan_status wan_queue_restore_positions(wan_queue *queue, uint32_t partition, uint64_t removed, uint64_t appended);

/* Indexes what is queued, and conflates from now on. Called after a recovery with `conflate` off. */
wan_status wan_queue_start_conflating(wan_queue *queue);

/* How many partitions there are, for a thread that has not the lock. */
static inline uint32_t wan_queue_partition_count(const wan_queue *queue)
{
    return __atomic_load_n(&queue->partition_count, __ATOMIC_ACQUIRE);
}

/* Which of so many dispatchers sends the events of a partition. */
static inline uint32_t wan_queue_dispatcher(const wan_queue *queue, uint32_t partition, uint32_t dispatchers)
{
    if (WAN_UNLIKELY(queue->keeps_arrivals) && partition >= queue->own_count) return 0;
    return dispatchers == 1 ? 0 : partition % dispatchers;
}

/* The next partition of the same dispatcher. If there is none, a number that no partition has. */
static inline uint32_t wan_queue_next_of_dispatcher(const wan_queue *queue, uint32_t partition, uint32_t dispatchers)
{
    if (WAN_LIKELY(!queue->keeps_arrivals)) return partition + dispatchers;
    if (partition >= queue->own_count) return partition + 1;
    if (partition + dispatchers < queue->own_count) return partition + dispatchers;
    return partition % dispatchers ? WAN_PARTITIONS_MAX : queue->own_count;
}

/* Events that can be peeked now. With arrivals some may have to wait all the same, for one that does not count yet. */
static inline uint64_t wan_partition_ready(const wan_partition *partition)
{
    return partition->leads ? partition->unpeeked - partition->unstable_events : 0;
}
/* Drops all events, because an operator wants that. *dropped: how many they were. WAN_BROKEN: nothing was changed. */
wan_status wan_queue_clear(wan_queue *queue, uint64_t *dropped);

#endif
