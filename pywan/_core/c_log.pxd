# Owns nothing but names: the C of csrc/log as Cython sees it.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *

cdef extern from "log/wan_log.h" nogil:
    enum: WAN_LOG_QUEUE, WAN_LOG_REGION
    enum: WAN_PART_RECORDS, WAN_PART_HOLES, WAN_PART_STATE, WAN_PART_MOVED, WAN_PART_NAMES, WAN_PART_PLACES
    ctypedef struct wan_part_head:
        uint32_t kind
        uint32_t count
        uint64_t length
    ctypedef struct wan_part:
        wan_part_head head
        const uint8_t *bytes
        const uint8_t *first
        uint64_t first_length
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
        uint64_t commit, synced_commit, next_number
        uint64_t bytes
        wan_buffer identity
        const wan_breakage *broken
        uint8_t has_manifest
        uint8_t disk_is_full
    ctypedef struct wan_damage:
        char file[4096]
        uint64_t offset
        char reason[200]
    ctypedef struct wan_log_reader:
        void *owner
        wan_status (*part)(void *owner, uint32_t segment_index, uint64_t commit, const wan_part_head *head,
                           const uint8_t *data) noexcept nogil
        wan_status (*state)(void *owner, const uint8_t *data, uint64_t length) noexcept nogil
        int salvage
        int (*adopt)(void *owner, uint32_t segment_index, const char *path, const uint8_t *base,
                     uint64_t length) noexcept nogil
        void (*adopted)(void *owner, uint32_t segment_index) noexcept nogil
        int read_ahead
        void (*damaged)(void *owner, const wan_damage *damage) noexcept nogil
    wan_status wan_log_open(wan_log *log, const wan_env *env, const char *directory, uint32_t kind, uint64_t id,
                            uint32_t owner_slots,
                            const wan_log_reader *reader, wan_damage *damage, uint64_t *cut_bytes)
    void wan_log_close(wan_log *log)
    ctypedef struct wan_log_budget:
        uint64_t limit, used
    int wan_log_take_reserve(wan_log *log)
    void wan_log_give_back_reserve(wan_log *log)
    void wan_log_allow_reserve(wan_log *log, int may)
    uint64_t wan_log_reserve_room(const wan_log *log)
    uint64_t wan_log_record_bytes(const wan_log *log)
    void wan_log_share(wan_log *log, wan_log_budget *budget, uint64_t known, int may_use_reserve)
    wan_status wan_log_commit(wan_log *log, const wan_part *parts, uint32_t count, uint32_t *segment)
    wan_status wan_log_write(wan_log *log, const wan_part *parts, uint32_t count, uint32_t *segment)
    bint wan_log_takes(const wan_log *log, uint64_t length)
    wan_status wan_log_sync(wan_log *log)
    ctypedef struct wan_log_syncing:
        uint64_t commit
    wan_status wan_log_begin_sync(wan_log *log, wan_log_syncing *sync)
    wan_status wan_log_run_sync(const wan_log *log, const wan_log_syncing *sync)
    wan_status wan_log_end_sync(wan_log *log, const wan_log_syncing *sync, wan_status ran)
    uint64_t wan_log_segment_bytes(const wan_log *log)
    uint64_t wan_log_room(const wan_log *log)
    uint64_t wan_parts_length(const wan_part *parts, uint32_t count)
    uint64_t wan_log_block_bytes(const wan_log *log)
    wan_status wan_log_make_room(wan_log *log, uint64_t length, const uint8_t *state, uint64_t state_bytes)
    wan_status wan_log_drop_first(wan_log *log, uint32_t drop, const uint8_t *state, uint64_t state_bytes)
    wan_status wan_log_write_identity(wan_log *log, const uint8_t *state, uint64_t state_bytes)
    wan_status wan_log_seal(wan_log *log, const uint8_t *state, uint64_t state_bytes)
    wan_status wan_log_read_segment(wan_log *log, uint32_t index, const wan_log_reader *reader)

cdef extern from "log/wan_queue_state.h" nogil:
    ctypedef struct wan_queue_identity:
        uint64_t numbering
        uint32_t mounts
        uint32_t partitions
    ctypedef struct wan_queue_state:
        uint64_t commit
        uint32_t partitions
        uint32_t counters
        uint64_t conflated
        uint64_t names_bytes, places_bytes
