# Owns nothing but names: the C of csrc/store as Cython sees it.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *

cdef extern from "store/wan_sources.h" nogil:
    ctypedef struct wan_source_place:
        uint64_t source[2]
        uint64_t timeline, through
        uint32_t partition, reserved
    ctypedef struct wan_sources:
        wan_buffer places
    int wan_sources_has(wan_sources *sources, const wan_source_place *place)
    wan_status wan_sources_reserve(wan_sources *sources)
    void wan_sources_note(wan_sources *sources, const wan_source_place *place)
    wan_status wan_sources_load(wan_sources *sources, const uint8_t *bytes, uint64_t length)
    void wan_sources_close(wan_sources *sources)

cdef extern from "store/wan_parked.h" nogil:
    enum: WAN_PARKED_FREE, WAN_PARKED_HERE, WAN_PARKED_REPLAYED, WAN_PARKED_LEFT
    ctypedef struct wan_event_mark:
        uint64_t low, high
    ctypedef struct wan_parked_event:
        wan_event_mark mark
        uint64_t key_hash, stamp, sequence, replayed
        uint16_t region, replayed_partition
        uint8_t partition, state, stamp_site
    ctypedef struct wan_parked:
        wan_parked_event *events
        uint64_t capacity, used, here, replayed, left
    wan_event_mark wan_mark_of(const wan_record *record, uint64_t key_hash)
    wan_parked_event *wan_parked_find(const wan_parked *parked, const wan_event_mark *mark)
    wan_status wan_parked_reserve(wan_parked *parked)
    wan_parked_event *wan_parked_add(wan_parked *parked, const wan_event_mark *mark)
    void wan_parked_set(wan_parked *parked, wan_parked_event *event, uint8_t state)
    wan_status wan_parked_leave(wan_parked *parked, const wan_event_mark *mark)
    void wan_parked_forget(wan_parked *parked, wan_parked_event *event)
    void wan_parked_close(wan_parked *parked)

cdef extern from "store/wan_queue.h" nogil:
    uint32_t WAN_HOLE_PARKED_FOR(uint32_t failure)
    uint32_t WAN_HOLE_KIND(uint32_t reason)
    enum: WAN_HOLE_CONFLATED, WAN_HOLE_FILTERED, WAN_HOLE_CONFLATED_IN_BATCH
    enum: WAN_HOLE_PARKED, WAN_HOLE_DROPPED, WAN_HOLE_RESTAMPED, WAN_HOLE_CLEARED, WAN_HOLE_REASONS
    enum: WAN_EXCEPTIONS_MAX
    ctypedef struct wan_exception:
        uint64_t first
        uint32_t count, reason
    ctypedef struct wan_removal:
        uint64_t after, through, explained
        const wan_exception *exceptions
        uint32_t count
        bint leads
    ctypedef struct wan_hole:
        uint32_t partition
        uint32_t reason
        uint64_t sequence
    ctypedef struct wan_store:
        uint64_t memory_bytes
        uint64_t file_bytes
        uint64_t files_made
    ctypedef struct wan_partition:
        uint64_t removed
        uint64_t peeked
        uint64_t appended
        uint64_t known_holes
        uint64_t duplicate_through
        uint64_t events
        uint64_t bytes
        uint64_t unpeeked
        uint64_t stable
        uint64_t unstable_events
        uint64_t durable
        uint64_t taken
        const uint64_t *stream
        uint64_t timeline
        uint32_t bucket
        uint16_t region
        uint8_t leads
        uint64_t removed_through, unsure_through, begun, lacks
    ctypedef struct wan_stream_run:
        uint32_t first, buckets
        uint16_t region
    ctypedef struct wan_queue:
        wan_store *store
        wan_partition *partitions
        uint32_t own_count, partition_count
        wan_stream_run *runs
        uint32_t run_count
        uint8_t conflate
        uint8_t keeps_arrivals
        uint8_t persistent
        uint64_t events
        uint64_t bytes
        uint64_t conflated, forgotten, removed_by_primary
        wan_buffer *holes
        wan_buffer *superseded
        void (*park)(void *parker, uint32_t partition, uint64_t sequence, uint32_t failure) noexcept nogil
        void *parker
        const wan_breakage *broken
    ctypedef struct wan_reservation:
        uint8_t *at
        uint32_t segment
        uint32_t partition
        uint64_t length
        uint64_t sequence
        uint8_t beyond
    wan_status wan_queue_init(wan_queue *queue, const wan_env *env, const char *directory, uint64_t memory_limit,
                              uint32_t partitions, int conflate)
    void wan_queue_keep_arrivals(wan_queue *queue)
    void wan_queue_close(wan_queue *queue)
    wan_status wan_queue_reserve_beyond(wan_queue *queue, uint32_t partition, uint64_t sequence, uint64_t length,
                                        wan_reservation *reservation)
    bint wan_store_is_over(const wan_store *store)
    void wan_store_set_limit(wan_store *store, wan_limit *limit)
    void wan_queue_cancel(wan_queue *queue, wan_reservation *reservation)
    ctypedef struct wan_run:
        uint8_t *at
        uint64_t room
        uint32_t segment
    wan_status wan_queue_open_run(wan_queue *queue, uint64_t least, wan_run *run)
    uint32_t wan_queue_append_run(wan_queue *queue, const wan_run *run, const uint32_t *lengths,
                                  const uint16_t *partitions, uint32_t count,
                                  uint64_t *sequences)
    uint64_t wan_queue_next_live(const wan_partition *partition, uint64_t from_, uint64_t through)
    wan_record *wan_queue_oldest(wan_queue *queue, uint32_t partition)
    wan_record *wan_queue_at(const wan_queue *queue, const wan_partition *partition, uint64_t sequence)
    uint32_t wan_queue_peek(wan_queue *queue, uint32_t partition, uint32_t count, uint64_t length, int at_least_one,
                            wan_record **records, uint64_t *sequences, uint64_t *peeked_bytes)
    uint64_t wan_queue_remove(wan_queue *queue, uint32_t partition, uint64_t through)
    void wan_queue_make_hole(wan_queue *queue, uint32_t partition, uint64_t sequence, uint32_t reason)
    void wan_queue_remove_superseded(wan_queue *queue, const wan_buffer *superseded)
    void wan_queue_made_durable(wan_queue *queue, uint32_t partition, uint64_t durable)
    uint64_t wan_queue_removed_through(wan_queue *queue, uint32_t partition, int *waits)
    uint64_t wan_queue_explained(const wan_queue *queue, uint32_t partition, uint32_t to)
    void wan_queue_set_told(wan_queue *queue, uint32_t partition, uint32_t to, uint64_t through)
    uint32_t wan_queue_exceptions(const wan_queue *queue, uint32_t partition, uint64_t after, uint64_t through,
                                  wan_exception *exceptions)
    void wan_queue_receive_removal(wan_queue *queue, uint32_t partition, const wan_removal *said, int whole)
    uint64_t wan_queue_apply_removal(wan_queue *queue, uint32_t partition, uint64_t limit)
    wan_status wan_queue_remove_through(wan_queue *queue, uint32_t partition, uint64_t through)
    uint64_t wan_queue_count(wan_queue *queue, uint32_t partition)
    wan_status wan_queue_add_run(wan_queue *queue, uint16_t region, uint32_t buckets, uint32_t align,
                                 const uint64_t *timelines, uint32_t *first)
    ctypedef struct wan_queue_place:
        uint32_t partition
        uint64_t sequence
    wan_status wan_queue_move_to_run(wan_queue *queue, const wan_stream_run *run, wan_queue_place *place, uint32_t most,
                                     uint64_t *lowest)
    wan_status wan_queue_move_from_run(wan_queue *queue, uint32_t partition, uint32_t most, uint64_t *lowest,
                                       uint64_t *moved)
    uint64_t wan_queue_begin_anew(wan_queue *queue, uint32_t partition, uint64_t timeline)
    void wan_queue_let_go(wan_queue *queue, uint32_t dispatcher, uint32_t dispatchers)
    void wan_queue_lack(wan_queue *queue, uint32_t partition, uint64_t through)
    wan_status wan_queue_reach_back(wan_queue *queue, uint32_t partition, uint64_t after)
    void wan_queue_lead(wan_queue *queue, uint32_t partition, int leads, int in_order)
    wan_status wan_queue_reserve_at(wan_queue *queue, uint32_t partition, uint64_t sequence, uint64_t length,
                                    wan_reservation *reservation)
    ctypedef struct wan_store_span:
        const char *file
        const uint8_t *base
        uint64_t mapped
        uint64_t first "from"
        uint64_t end "to"
    wan_status wan_store_check(const wan_store *store, const wan_store_span *span)
    wan_store_span wan_queue_span(const wan_queue *queue, uint32_t partition, uint64_t first, uint64_t through)
    void wan_queue_lengths(const wan_queue *queue, uint32_t partition, uint64_t first, uint64_t through,
                           uint32_t *lengths)
    wan_status wan_queue_copy(const wan_queue *queue, const wan_store_span *span, wan_record **records,
                              const uint32_t *lengths, uint32_t count, uint8_t *to)
    wan_status wan_queue_copy_span(const wan_queue *queue, const wan_store_span *span, uint8_t *to)
    void wan_queue_unpeek(wan_queue *queue, uint32_t partition, uint64_t peeked)
    wan_status wan_queue_restore(wan_queue *queue, uint32_t partition, uint64_t sequence, const wan_record *record)
    wan_status wan_store_adopt(wan_store *store, const char *file, const uint8_t *base, uint64_t length,
                               uint32_t *segment_id)
    void wan_store_adopted(wan_store *store, uint32_t segment_id)
    wan_status wan_queue_restore_here(wan_queue *queue, uint32_t segment_id, uint32_t partition, uint64_t sequence,
                                      const wan_record *record)
    void wan_queue_compact(wan_queue *queue)
    wan_status wan_queue_restore_positions(wan_queue *queue, uint32_t partition, uint64_t removed, uint64_t appended)
    wan_status wan_queue_start_conflating(wan_queue *queue)
    uint32_t wan_queue_partition_count(const wan_queue *queue)
    uint32_t wan_queue_dispatcher(const wan_queue *queue, uint32_t partition, uint32_t dispatchers)
    uint32_t wan_queue_next_of_dispatcher(const wan_queue *queue, uint32_t partition, uint32_t dispatchers)
    uint64_t wan_partition_ready(const wan_partition *partition)
    void wan_queue_rewind(wan_queue *queue, uint32_t partition)
    wan_status wan_queue_clear(wan_queue *queue, uint64_t *dropped)

cdef extern from "store/wan_queue_merge.h" nogil:
    ctypedef struct wan_merge:
        uint32_t count
    ctypedef struct wan_merged_run:
        uint32_t partition
        uint32_t count
        uint64_t first
        uint64_t bytes
    wan_status wan_merge_make_room(wan_merge *merge, uint32_t partitions)
    void wan_merge_close(wan_merge *merge)
    void wan_merge_begin(wan_merge *merge, const wan_queue *queue)
    uint32_t wan_merge_peek(wan_merge *merge, wan_queue *queue, uint32_t count, uint64_t bytes, int at_least_one,
                            wan_record **records, uint64_t *sequences, wan_merged_run *run, int *waits)

cdef extern from "store/wan_row_stage.h" nogil:
    enum: WAN_ROW_STAGE_BLOCK_BYTES
    ctypedef struct wan_row_stage_pool:
        uint64_t memory
    ctypedef struct wan_row_stage:
        wan_row_stage_pool *pool
    void wan_row_stage_pool_init(wan_row_stage_pool *pool, const wan_env *env, uint64_t memory_limit,
                                 wan_limit *limit)
    wan_status wan_row_stage_open(wan_row_stage *stage, wan_row_stage_pool *pool, const char *directory)
    void wan_row_stage_close(wan_row_stage *stage)
    wan_status wan_row_stage_add(wan_row_stage *stage, const uint8_t *records, uint64_t length)
    uint32_t wan_row_stage_peek(const wan_row_stage *stage, uint32_t most, const wan_record **records)
    void wan_row_stage_drop(wan_row_stage *stage)

cdef extern from "store/wan_queue_append.h" nogil:
    wan_status wan_queue_reserve_inline(wan_queue *queue, uint32_t partition, uint64_t length,
                                        wan_reservation *reservation)
    void wan_queue_commit_inline(wan_queue *queue, wan_reservation *reservation)
    wan_status wan_queue_entries_room(wan_queue *queue, uint32_t partition, uint32_t count)
