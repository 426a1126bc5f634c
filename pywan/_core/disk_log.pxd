# The interface of disk_log.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_log cimport *

cdef class LogBudget:
    cdef wan_log_budget b

cdef enum:
    STAGED_BYTES_MAX = 64 << 20             # More than this waiting for the disk: enqueues are refused (queue full) until it caught up.
    STAGED_PART_OF_LIMIT = 8                # Less where the log may not be large: what waits has to fit into it.
    DISK_PATIENCE_US = 5000000              # Who waits for a disk that takes nothing is told after so long.
    CHECKPOINT_EVENTS = 10000
    CHECKPOINT_US = 1000000
    LOG_SEGMENTS_KEPT = 4                   # Below this many, nothing is moved to shorten the log.
    MOVED_BYTES_MAX = 16 << 20              # Moved in one go, a segment more or less; out of
    MOVED_SEGMENTS_MAX = 32                 # so many segments at most.
    DAMAGES_MAX = 10000                     # Pieces of damage that salvage tells one by one.
    MOUNT_BYTES_KEPT = 64 << 10             # A queue remembers so many bytes of mounts, and two mounts at least.
    WAIT_SLICE_US = 100000                  # After so long a caller that waits looks at the process's signals.
    EVENTS_OF_SEGMENT_MAX = 8 << 20 >> 4    # Four times what a segment has room for. One that claims to be further ahead is damage.

cdef struct log_view:                       # A log as others may see it, while it belongs to its committer: as of the last round. Under the owner's lock.
    uint64_t bytes, commits
    uint32_t segments
    int failing                             # wan_status of the last round; enqueues are refused while it is not WAN_OK.
    uint64_t failing_since_us               # Since when no round was WAN_OK.
    char reason[512]

cdef void show_log(log_view *view, const wan_log *log, wan_status status) noexcept nogil
cdef object log_failure(const log_view *view)
cdef object not_on_disk(str whose, const log_view *view, bint ended, str meanwhile)
cdef wan_status not_written(const log_view *view) noexcept nogil


cdef inline void swap_stages(wan_buffer *a, wan_buffer *b) noexcept nogil:
    cdef wan_buffer kept = a[0]
    a[0] = b[0]
    b[0] = kept


cdef inline bint lost_patience(int failing, uint64_t *failing_since, uint64_t now) noexcept nogil:
    """Whether the disk has taken nothing for longer than somebody who waits for it should."""
    if not failing:
        failing_since[0] = 0
    elif failing_since[0] == 0:
        failing_since[0] = now
    return failing_since[0] != 0 and now - failing_since[0] >= DISK_PATIENCE_US


cdef enum:
    FOR_EVENTS = 0, FOR_REMOVALS = 1, FOR_IDENTITY = 2, FOR_REPAIR = 3      # What somebody waits for.
    WAIT_DONE = 1, WAIT_IN_VAIN = 0, WAIT_GOES_ON = -1

cdef struct disk_wait:      # One caller's wait for a log, in slices.
    int what                # FOR_*, of a queue's log.
    uint64_t wanted
    uint64_t deadline_us
    uint64_t failing_since_us


cdef inline void keep_damage(wan_buffer *damages, const wan_damage *damage) noexcept nogil:
    if damages.count < DAMAGES_MAX:
        wan_buffer_add(damages, damage, sizeof(wan_damage))


cdef list damage_list(const wan_buffer *damages)
cdef void rest_under_lock(wan_buffer *stage, wan_buffer_use *use, wan_lock *lock, uint64_t now) noexcept nogil
