# Owns nothing but names: the C primitives as Cython sees them, and the one place that turns a status into an error.
from cpython.exc cimport PyErr_CheckSignals
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport bsearch, calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

cdef extern from "base/wan_base.h" nogil:
    ctypedef enum wan_status:
        WAN_OK, WAN_EMPTY, WAN_FULL, WAN_TOO_LARGE, WAN_CORRUPT, WAN_IO, WAN_NO_MEMORY, WAN_INVALID, WAN_SLOW, WAN_CLOSED
    const char *wan_detail
    wan_status wan_detail_status
    uint64_t wan_align8(uint64_t length)

cdef extern from "base/wan_lock.h" nogil:
    ctypedef struct wan_lock:
        pass
    void wan_lock_take(wan_lock *lock)
    void wan_lock_release(wan_lock *lock)
    void wan_wait_change(uint32_t *word, uint32_t seen, uint32_t timeout_ms)
    void wan_signal_change(uint32_t *word)

cdef extern from "base/wan_clock.h" nogil:
    ctypedef struct wan_clock:
        uint64_t set_ms, set_boot_ms, base_ms, good_until_ms
    uint64_t wan_now_ms()
    uint64_t wan_monotonic_us()
    uint64_t wan_clock_now_ms(wan_clock *clock)
    uint64_t wan_clock_wall_ms(wan_clock *clock)
    uint64_t wan_clock_receiving_ms(wan_clock *clock)
    void wan_clock_hear(wan_clock *clock, uint64_t stamp)
    uint64_t wan_stamp_ms(uint64_t stamp)
    uint64_t wan_clock_take(wan_clock *clock, uint64_t now_ms, uint64_t count)
    void wan_clock_see(wan_clock *clock, uint64_t stamp)
    uint64_t wan_clock_last(wan_clock *clock)
    uint64_t wan_clock_low(wan_clock *clock)
    uint64_t wan_clock_raise_low(wan_clock *clock)
    int wan_clock_lower(wan_clock *clock, uint64_t most_ms)

cdef extern from "base/wan_thread.h" nogil:
    ctypedef struct wan_thread:
        uint64_t events
        uint32_t number
    wan_thread *wan_thread_self()
    uint32_t wan_thread_number()
    uint64_t wan_thread_next_event()
    void wan_count(uint64_t *counter, uint64_t by)
    void wan_tally(uint64_t *counter, uint64_t by)
    void wan_set(uint64_t *counter, uint64_t value)
    uint64_t wan_read(const uint64_t *counter)
    int wan_falls_short(int64_t *number, int64_t by)
    int wan_flag_read(const int *flag)
    void wan_flag_set(int *flag, int value)

cdef extern from "base/wan_fork.h" nogil:
    uint32_t wan_forks
    int wan_forks_count()

cdef extern from "base/wan_hash.h" nogil:
    uint64_t wan_hash(const void *data, size_t length, uint64_t seed)
    uint64_t wan_seat_hash(const void *data, size_t length, uint64_t form)
    uint64_t wan_key_hash(const void *key, size_t length, uint8_t form)
    uint32_t wan_hash_bucket(uint64_t hash, uint32_t count)

cdef extern from "record/wan_form.h" nogil:
    enum: WAN_FORM_BYTES, WAN_FORM_TEXT, WAN_FORM_TAGGED, WAN_FORM_NONE, WAN_FORM_INT, WAN_FORM_FLOAT, WAN_FORM_USER
    enum: WAN_TAG_INSTANT, WAN_TAG_BIG_INT, WAN_TAG_TUPLE, WAN_TAG_DATE, WAN_TAG_NAIVE, WAN_TAG_FROZENSET, WAN_TAG_SET, WAN_TAG_DURATION, WAN_TAG_ENUM, WAN_TAG_USER
    enum: WAN_TAGGED_DEPTH_MAX
    bint wan_is_ascii(const uint8_t *at, size_t length)
    wan_status wan_key_check(const uint8_t *key, size_t length, uint8_t form)

cdef extern from "record/wan_record.h" nogil:
    enum: WAN_KEY_BYTES_MAX, WAN_CALLBACK_BYTES_MAX, WAN_VALUE_BYTES_MAX
    enum: WAN_CREATE, WAN_UPDATE, WAN_DESTROY
    enum: WAN_FLAG_POSSIBLE_DUPLICATE, WAN_FLAG_FORGET, WAN_FLAG_INVALID, WAN_FLAG_GIVEN, WAN_FLAG_FORCED, WAN_FLAG_MARK, WAN_FLAG_LET_GO, WAN_FLAG_RESTAMPED
    ctypedef struct wan_record:
        uint32_t length
        uint32_t value_length
        uint64_t sequence
        uint64_t stamp
        uint64_t event_sequence
        uint32_t event_member
        uint32_t event_thread
        uint16_t region
        uint16_t partition
        uint16_t key_length
        uint16_t callback_length
        uint8_t operation
        uint8_t flags
        uint8_t stamp_site
        uint8_t origin_site
        uint8_t recipients_count
        uint8_t key_form
        uint8_t value_form
        uint8_t callback_form
    uint64_t wan_record_size(uint32_t key_length, uint32_t value_length, uint32_t callback_length, uint32_t recipients)
    uint8_t *wan_record_key(const wan_record *record)
    uint8_t *wan_record_value(const wan_record *record)
    uint8_t *wan_record_callback(const wan_record *record)
    uint8_t *wan_record_recipients(const wan_record *record)
    int wan_version_order(uint64_t stamp, uint8_t site, uint64_t other_stamp, uint8_t other_site)
    int wan_record_order(const wan_record *a, const wan_record *b)
    void wan_copy_small(uint8_t *to, const uint8_t *source, size_t length)
    wan_status wan_record_check(const uint8_t *at, uint64_t length)
    int wan_record_has_end(const wan_record *record, uint64_t length)

cdef extern from "base/wan_env.h" nogil:
    ctypedef struct wan_env:
        pass
    const wan_env wan_env_posix

cdef extern from "Python.h":
    void *PyCapsule_GetPointer(object capsule, const char *name) except NULL

cdef extern from "base/wan_stage.h" nogil:
    ctypedef struct wan_stage:
        uint8_t *bytes
        uint64_t used
        uint64_t capacity
        uint32_t count
    wan_status wan_stage_reserve(wan_stage *stage, uint64_t length)
    uint8_t *wan_stage_put(wan_stage *stage, const void *data, uint64_t length)
    wan_status wan_stage_add(wan_stage *stage, const void *data, uint64_t length)
    void wan_stage_empty(wan_stage *stage)
    void wan_stage_close(wan_stage *stage)
    enum: WAN_STAGE_LATE_US, WAN_STAGE_KEPT_BYTES
    ctypedef struct wan_stage_use:
        uint64_t began_us
    void wan_stage_rest(wan_stage *stage, wan_stage_use *use, uint64_t used, uint64_t now_us)

cdef extern from "base/wan_memory.h" nogil:
    bint wan_memory_trim(uint64_t least)

cdef extern from "record/wan_record_set.h" nogil:
    ctypedef struct wan_record_set:
        uint64_t count
        bint of_events

    wan_status wan_record_set_find(wan_record_set *chosen, const wan_stage *stage, const wan_record *record, uint64_t **slot)
    void wan_record_set_choose(wan_record_set *chosen, uint64_t *slot, uint64_t at)
    void wan_record_set_empty(wan_record_set *chosen)

cdef extern from "log/wan_log.h" nogil:
    enum: WAN_LOG_QUEUE, WAN_LOG_REGION, WAN_LOG_SEGMENT_BYTES_MIN
    enum: WAN_PART_RECORDS, WAN_PART_HOLES, WAN_PART_STATE, WAN_PART_MOVED, WAN_PART_NAMES
    ctypedef struct wan_part_head:
        uint32_t kind
        uint32_t count
        uint64_t length
    ctypedef struct wan_part:
        wan_part_head head
        const uint8_t *bytes
    ctypedef struct wan_log_segment:
        uint64_t number
        uint64_t bytes
        uint64_t used
        uint64_t *highest
    ctypedef struct wan_log:
        uint64_t id
        wan_log_segment *segments
        uint32_t count
        uint32_t writing
        uint64_t commit, next_number
        uint64_t bytes
        wan_stage identity
        uint8_t named
    ctypedef struct wan_damage:
        char file[4096]
        uint64_t offset
        char reason[200]
    ctypedef struct wan_log_reader:
        void *owner
        wan_status (*part)(void *owner, uint32_t segment_index, uint64_t commit, const wan_part_head *head, const uint8_t *data) noexcept nogil
        wan_status (*state)(void *owner, const uint8_t *data, uint64_t length) noexcept nogil
        int salvage
        int (*adopt)(void *owner, uint32_t segment_index, const char *path, const uint8_t *base, uint64_t length) noexcept nogil
        void (*adopted)(void *owner, uint32_t segment_index) noexcept nogil
        int read_ahead
        void (*damaged)(void *owner, const wan_damage *damage) noexcept nogil
    wan_status wan_log_open(wan_log *log, const wan_env *env, const char *directory, uint32_t kind, uint64_t id, uint32_t owner_slots,
                            const wan_log_reader *reader, wan_damage *damage, uint64_t *cut_bytes)
    void wan_log_close(wan_log *log)
    ctypedef struct wan_log_budget:
        uint64_t limit, used
    int wan_log_begin_way(wan_log *log)
    void wan_log_end_way(wan_log *log)
    uint64_t wan_log_way(const wan_log *log)
    uint64_t wan_log_record_bytes(const wan_log *log)
    void wan_log_share(wan_log *log, wan_log_budget *budget, uint64_t known, int may_take_kept)
    wan_status wan_log_commit(wan_log *log, const wan_part *parts, uint32_t count, uint32_t *segment)
    uint64_t wan_log_segment_bytes(const wan_log *log)
    uint64_t wan_log_room(const wan_log *log)
    uint64_t wan_parts_length(const wan_part *parts, uint32_t count)
    uint64_t wan_log_block_bytes(const wan_log *log)
    wan_status wan_log_make_room(wan_log *log, uint64_t length, const uint8_t *state, uint64_t state_bytes)
    wan_status wan_log_drop_first(wan_log *log, uint32_t drop, const uint8_t *state, uint64_t state_bytes)
    wan_status wan_log_write_identity(wan_log *log, const uint8_t *state, uint64_t state_bytes)
    wan_status wan_log_seal(wan_log *log, const uint8_t *state, uint64_t state_bytes)
    wan_status wan_log_read_segment(wan_log *log, uint32_t index, const wan_log_reader *reader)

cdef extern from *:
    """
    #define wan_prefetch(at) __builtin_prefetch(at)
    """
    void wan_prefetch(const void *at) nogil

cdef extern from "store/wan_queue.h" nogil:
    enum: WAN_HOLE_CONFLATED, WAN_HOLE_FILTERED, WAN_HOLE_CONFLATED_IN_BATCH, WAN_HOLE_PARKED, WAN_HOLE_DROPPED, WAN_HOLE_RESTAMPED
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
        uint64_t durable
        uint64_t taken
    ctypedef struct wan_queue:
        wan_store store
        wan_partition *partitions
        uint32_t partition_count
        uint8_t conflate
        uint8_t persistent
        uint64_t events
        uint64_t bytes
        uint64_t conflated
        wan_stage *holes
        wan_stage *superseded
    ctypedef struct wan_reservation:
        uint8_t *at
        uint32_t segment
        uint32_t partition
        uint64_t length
        uint8_t beyond
    wan_status wan_queue_init(wan_queue *queue, const wan_env *env, const char *directory, uint64_t memory_limit,
                              uint32_t partitions, int conflate)
    void wan_queue_close(wan_queue *queue)
    wan_status wan_queue_reserve(wan_queue *queue, uint32_t partition, uint64_t length, wan_reservation *reservation)
    wan_status wan_queue_reserve_beyond(wan_queue *queue, uint32_t partition, uint64_t length, wan_reservation *reservation)
    bint wan_store_is_over(const wan_store *store)
    void wan_queue_cancel(wan_queue *queue, wan_reservation *reservation)
    void wan_queue_commit(wan_queue *queue, wan_reservation *reservation)
    ctypedef struct wan_run:
        uint8_t *at
        uint64_t room
        uint32_t segment
    enum: WAN_RUN_RECORD_BYTES_MAX
    wan_status wan_queue_open_run(wan_queue *queue, uint64_t least, wan_run *run)
    uint32_t wan_queue_append_run(wan_queue *queue, const wan_run *run, const uint32_t *lengths, const uint16_t *partitions, uint32_t count)
    uint64_t wan_queue_next_live(const wan_partition *partition, uint64_t from_, uint64_t through)
    wan_record *wan_queue_oldest(wan_queue *queue, uint32_t partition)
    wan_record *wan_queue_at(const wan_queue *queue, const wan_partition *partition, uint64_t sequence)
    uint32_t wan_queue_peek(wan_queue *queue, uint32_t partition, uint32_t count, uint64_t length, int at_least_one,
                            wan_record **records, uint64_t *peeked_bytes)
    uint64_t wan_queue_remove(wan_queue *queue, uint32_t partition, uint64_t through)
    void wan_queue_punch(wan_queue *queue, uint32_t partition, uint64_t sequence, uint32_t reason)
    void wan_queue_settle_superseded(wan_queue *queue, const wan_stage *superseded)
    void wan_queue_made_durable(wan_queue *queue, uint32_t partition, uint64_t durable)
    ctypedef struct wan_store_span:
        const char *file
        const uint8_t *base
        uint64_t mapped
        uint64_t first "from"
        uint64_t end "to"
    wan_status wan_store_check(const wan_store *store, const wan_store_span *span)
    wan_store_span wan_queue_span(const wan_queue *queue, uint32_t partition, uint64_t first, uint64_t through)
    void wan_queue_lengths(const wan_queue *queue, uint32_t partition, uint64_t first, uint64_t through, uint32_t *lengths)
    wan_status wan_queue_copy(const wan_queue *queue, const wan_store_span *span, wan_record **records, const uint32_t *lengths, uint32_t count, uint8_t *to)
    wan_status wan_queue_copy_span(const wan_queue *queue, const wan_store_span *span, uint8_t *to)
    void wan_queue_unpeek(wan_queue *queue, uint32_t partition, uint64_t peeked)
    wan_status wan_queue_restore(wan_queue *queue, const wan_record *record)
    wan_status wan_store_adopt(wan_store *store, const char *file, const uint8_t *base, uint64_t length, uint32_t *segment_id)
    void wan_store_adopted(wan_store *store, uint32_t segment_id)
    wan_status wan_queue_restore_here(wan_queue *queue, uint32_t segment_id, const wan_record *record)
    void wan_queue_compact(wan_queue *queue)
    wan_status wan_queue_restore_positions(wan_queue *queue, uint32_t partition, uint64_t removed, uint64_t appended)
    wan_status wan_queue_start_conflating(wan_queue *queue)
    uint64_t wan_partition_ready(const wan_partition *partition)
    void wan_queue_rewind(wan_queue *queue, uint32_t partition)
    uint64_t wan_queue_clear(wan_queue *queue)

cdef extern from "region/wan_table.h" nogil:
    enum: WAN_TABLE_SHARDS
    enum: WAN_ENTRY_LIVE, WAN_ENTRY_INVALID, WAN_ENTRY_TOMBSTONE
    ctypedef struct wan_entry:
        uint64_t stamp
        uint32_t value_length
        uint16_t key_length
        uint8_t stamp_site
        uint8_t key_form
        uint8_t value_form
        uint8_t state
        uint8_t *bytes
    ctypedef struct wan_slot:
        uint64_t hash
        wan_entry *entry
    ctypedef struct wan_shrunk:
        uint64_t hash, stamp
    ctypedef struct wan_shard:
        wan_lock lock
        uint32_t used
        uint32_t tombstones
        uint32_t mask
        wan_slot *slots
        uint64_t bytes, tombstone_bytes
        wan_shrunk *shrunk
        uint32_t shrunk_count
        uint32_t oldest_s
    ctypedef struct wan_table:
        wan_shard *shards
    ctypedef enum wan_outcome:
        WAN_CREATED, WAN_UPDATED, WAN_DESTROYED, WAN_MISSING, WAN_LOST, WAN_ASK, WAN_OUT_OF_MEMORY, WAN_UNMET, WAN_SAME, WAN_FORGOTTEN
    enum: WAN_ASK_DECIDED
    ctypedef struct wan_change:
        const uint8_t *key
        const uint8_t *value
        uint32_t value_length
        uint16_t key_length
        uint8_t key_form
        uint8_t value_form
        uint8_t operation
        uint8_t stamp_site
        uint64_t hash
        uint64_t stamp
        uint64_t absent_below
        uint8_t flags
        uint8_t local
        uint8_t ask
        uint8_t keep
        uint8_t waits
        int64_t tombstone_bytes
    wan_status wan_table_init(wan_table *table)
    void wan_table_close(wan_table *table)
    wan_shard *wan_table_shard(const wan_table *table, uint64_t hash)
    wan_outcome wan_table_apply(wan_shard *shard, wan_change *change)
    wan_outcome wan_table_invalidate(wan_shard *shard, wan_change *change)
    wan_outcome wan_table_judge(wan_shard *shard, wan_change *change)
    wan_entry *wan_table_find(const wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length, uint8_t key_form)
    int wan_table_made_by(const wan_entry *entry, const wan_change *change)
    int wan_table_forget(wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length, uint8_t key_form)
    uint64_t wan_table_expire(wan_shard *shard, uint64_t before_ms, uint64_t below)
    uint64_t wan_table_newest_to_expire(const wan_shard *shard, uint64_t before_ms, uint64_t below)
    wan_status wan_table_shrink(wan_shard *shard)
    uint64_t wan_table_shrunk_log_bytes(const wan_shard *shard)
    int wan_table_is_worth_shrinking(const wan_shard *shard)
    uint64_t wan_table_shrunk_stamp(const wan_shard *shard, uint64_t hash)
    ctypedef struct wan_shard_content:
        wan_slot *slots
    wan_shard_content wan_table_take_all(wan_shard *shard)
    void wan_table_free(wan_shard_content content)
    const uint8_t *wan_entry_value(const wan_entry *entry)
    void wan_table_prefetch_slot(const wan_table *table, uint64_t hash)

cdef extern from "record/wan_frame.h" nogil:
    enum: WAN_FRAME_MAGIC, WAN_FRAME_BYTES_MAX, WAN_FRAME_LZ4, WAN_SECTIONS_MAX
    enum: WAN_FRAME_HELLO, WAN_FRAME_WELCOME, WAN_FRAME_REGION, WAN_FRAME_BATCH, WAN_FRAME_ACK, WAN_FRAME_REWIND
    enum: WAN_FRAME_PING, WAN_FRAME_PONG, WAN_FRAME_BYE, WAN_FRAME_ERROR, WAN_FRAME_COMMIT, WAN_FRAME_COMMITTED, WAN_FRAME_KNOWN, WAN_FRAME_PROGRESS
    enum: WAN_FAILED_REGION_NOT_FOUND, WAN_FAILED_FUTURE_STAMP, WAN_FAILED_NO_MEMORY, WAN_FAILED_OTHER, WAN_FAILED_FORGOTTEN
    ctypedef struct wan_frame:
        uint32_t magic
        uint8_t type
        uint8_t flags
        uint16_t reserved
        uint32_t length
        uint32_t crc
        uint32_t raw_length
        uint32_t count
        uint64_t id
    ctypedef struct wan_section:
        uint32_t partition
        uint32_t count
        uint64_t first
        uint64_t through
        uint64_t settled
        uint32_t bytes
        uint32_t unsure
    uint64_t wan_section_sure(const wan_section *section)
    ctypedef struct wan_batch_head:
        uint32_t sections
        uint32_t reserved
    ctypedef struct wan_ack:
        uint32_t credit_events
        uint32_t failures
        uint64_t credit_bytes
    ctypedef struct wan_floor:
        uint64_t stamp
        uint8_t origin
    ctypedef struct wan_failure:
        uint32_t partition
        uint32_t reason
        uint64_t sequence
    ctypedef struct wan_rewind:
        uint32_t partition
        uint32_t reserved
        uint64_t expected
    uint32_t wan_frame_crc(const wan_frame *frame, const void *payload, size_t length)
    wan_status wan_frame_check(const wan_frame *frame)
    wan_status wan_batch_check(const uint8_t *payload, uint64_t length, uint32_t count)


cdef const wan_env *environment_of(object capsule) except NULL:
    """What stands in for the operating system's files: the `wan_env` in a capsule of that name, or the real ones for None."""
    return &wan_env_posix if capsule is None else <const wan_env *>PyCapsule_GetPointer(capsule, "wan_env")


cdef object error_for(wan_status status, str during):
    """The exception for a status that is not WAN_OK, with this thread's detail."""
    from pywan import errors
    detail = (<bytes>wan_detail).decode("utf-8", "replace")
    message = f"{during}: {detail}" if during else detail
    kind = {
        WAN_TOO_LARGE: errors.EventTooLargeError, WAN_CORRUPT: errors.ProtocolError,
        WAN_IO: errors.DiskError, WAN_INVALID: errors.ConfigurationError, WAN_CLOSED: errors.IllegalStateError,
    }.get(status, errors.InternalError)
    if status == WAN_NO_MEMORY:
        return MemoryError(message)
    return full_error(message) if status == WAN_FULL else kind(message)


cdef object full_error(str message):
    """The exception of a change that found no room."""
    from pywan import errors
    return (errors.DiskAccessError if log_fails() else errors.QueueFullError)(message)


cdef inline bint log_fails() noexcept nogil:
    """Of a change that found no room: because a log is not written, and no room is to be made for it."""
    return wan_detail_status == WAN_IO or wan_detail_status == WAN_NO_MEMORY


if not wan_forks_count():
    raise MemoryError("no memory to notice forks")


def forks():
    """How often the process that loaded this module was forked until it became this one: 0 in that process itself."""
    return wan_forks


cdef object error_of_child(str what):
    """The exception for a call in a child of the process that made the object."""
    from pywan.forks import error
    return error(what)


cdef int raise_for(wan_status status, str during) except -1:
    if status != WAN_OK:
        raise error_for(status, during)
    return 0
