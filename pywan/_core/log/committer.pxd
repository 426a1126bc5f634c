# The interface of committer.pyx, and the functions that run for each event, inline.
#
# The log of a queue or region belongs to the thread that has the committer's *role*. The committer's thread takes the
# role for each look at the log, and for the round that follows. Another thread may take the role for a round of its own
# in between (`committer_take_role`).
#
# A round has these steps:
#   1. The thread takes the role. If another thread has it, the thread sleeps on `changed`, which it has read before,
#      and tries again.
#   2. The thread calls `round_of` of the owner. That takes what is pending under the owner's lock, and writes it
#      without that lock. Under the lock again it notes what is durable (`committer_made_durable`). Then it wakes the
#      callers that wait (`committer_wake_waiters`). If a round could not write something that it took, the next round
#      writes that first, whichever thread runs it.
#   3. The thread shows, under the owner's lock, what others may know of the log. After a failure, enqueues are refused
#      until a round succeeds.
#   4. The thread releases the role. That wakes the threads that wanted it.
# `committer_round` does steps 2 and 3. With SYNCHRONOUS_WRITTEN a caller that waits takes the role too. It writes all
# that is pending, if that is one block and the log takes the block as it is (`write_block_of`). It leaves everything
# else to the thread. The thread syncs the log without the role, at most `flush_ms` after a block was written. The
# thread goes first: a caller does not ask for the role when it sees that the thread asks for it.
# A thread takes the owner's lock while it has the role, never the other way round. No thread waits for the role while
# it holds the owner's lock.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *
from pywan._core.log.disk_log cimport LogBudget
from pywan._core.log.log_pending cimport log_pending

cdef enum:
    # If more bytes than this are pending, enqueues are refused (queue full) until the disk has caught up.
    PENDING_BYTES_MAX = 64 << 20
    # A log with a limit has less pending: this part of the limit, so that it fits.
    PENDING_PART_OF_LIMIT = 8
    DISK_PATIENCE_US = 5000000              # A caller stops waiting for a disk that has taken nothing for so long.
    WAIT_FOR_LOG_US = 60000000              # A caller waits no longer than this for a log.
    WAIT_SLICE_US = 100000                  # A caller that waits looks at the process's signals so often.
    IDLE_MS = 100                           # The committer sleeps at most so long, also between rounds that fail.

cdef enum:                                  # What a caller waits for before its change is done. Not 0: it waits.
    SYNCHRONOUS_NOT = 0                     # The caller does not wait. What is pending is written after `flush_ms`.
    SYNCHRONOUS_SYNCED = 1                  # The change is in the log, and the log is synced.
    # The change is in the log, so that it survives the end of the process. The log is synced after `flush_ms`.
    SYNCHRONOUS_WRITTEN = 2

# What `work_of` an owner returns: a set of these. 0: there is nothing to do.
cdef enum:
    WORK_NOW = 1                            # Something waits for the disk.
    # A round has work that is not urgent: the committer runs one between two sleeps.
    WORK_IDLE = 2
    WORK_CHECKPOINT = 4                     # The round ends with a checkpoint of what left the queue.

cdef enum:
    FOR_EVENTS = 0                          # A wait until all that was given is as durable as the log's level says.
    # A wait until all that was given is on the disk. An owner has numbers of its own.
    FOR_DISK = -1
    WAIT_DONE = 1, WAIT_IN_VAIN = 0, WAIT_GOES_ON = -1

cdef struct disk_wait:                      # One caller's wait for a log, in slices.
    int what                                # FOR_*
    uint64_t wanted
    # The numbers of the records that the caller itself gave. Only these count while others wait for room (`left`).
    uint64_t first, last
    uint64_t deadline_us
    uint64_t failing_since_us

cdef struct log_view:                       # A log as others may see it, as of the last round. Under the owner's lock.
    uint64_t bytes, commits
    uint32_t segments
    int failing                             # wan_status of the last round. Enqueues are refused while it is not WAN_OK.
    uint64_t failing_since_us               # Since when no round has returned WAN_OK.
    char reason[WAN_DETAIL_BYTES]

# The owner's part in the work of its committer. The thread that has the role calls these, without the owner's lock.
# What is to be done now: WORK_*.
ctypedef uint32_t (*work_function)(void *owner, bint stopping) noexcept nogil
# Brings onto the disk what was pending when the round began.
ctypedef wan_status (*round_function)(void *owner, uint32_t work) noexcept nogil
# Writes what is pending by one write. WAN_SLOW: one write is not enough, and nothing was done.
ctypedef wan_status (*block_function)(void *owner) noexcept nogil
# There is nothing to do: the owner gives memory back.
ctypedef void (*rest_function)(void *owner) noexcept nogil
# Ends the log: there is nothing left to write.
ctypedef wan_status (*seal_function)(void *owner) noexcept nogil
# Whether a wait of the owner's own kind has ended. Under the owner's lock.
ctypedef bint (*reached_function)(void *owner, const disk_wait *wait) noexcept nogil

cdef struct log_owner:
    void *itself
    wan_lock *lock
    work_function work_of
    round_function round_of
    block_function write_block_of
    rest_function rest
    seal_function seal
    reached_function has_reached            # NULL: the owner has no waits of its own kind.

cdef struct log_committer:
    # These are read for each event, under the owner's lock.
    # Records given to the log so far, and how many of these are as durable as the level says. A wait compares the two.
    uint64_t given, durable
    uint64_t synced                         # How many of these are certainly on the disk.
    # The store has no room for some records, and later ones passed them. Then the records up to number `passed` are on
    # the disk, but for those whose numbers are in `left`, which ascend. 0: no records were passed.
    uint64_t passed
    wan_buffer left
    # So many records were given when the last attempt to pass others began. 0: the log takes what comes.
    uint64_t tried
    uint64_t pending_max                    # Bytes of records that may be pending.
    uint64_t record_max                     # Bytes of the longest record that the log takes.
    int waiting                             # The committer sleeps, or is about to.
    int stop                                # The log takes nothing any more. Set under the owner's lock.
    log_view view
    # As the log was opened.
    log_owner owner
    uint8_t synchronous                     # SYNCHRONOUS_*
    # With SYNCHRONOUS_NOT: how long a record may wait for its round. With SYNCHRONOUS_WRITTEN: a block for its sync.
    uint32_t flush_ms
    uint32_t changed                        # Changes with every commit or failure. Callers that wait sleep on it.
    uint32_t work                           # Changes when something becomes pending. The committer sleeps on it.
    int ended                               # The committer has returned. What is pending stays where it is.
    int asked                               # A caller waits for the thread's next round.
    int goes_first                          # The thread asks for the role.
    # The thread syncs without the role. A thread that has the role may write one block that the log takes, and nothing
    # else.
    bint syncs_behind
    wan_role role
    # Only the thread that has the role uses it. Others read its id, its numbering and its limits too.
    wan_log log


cdef inline bint committer_is_behind(const log_committer *committer, const log_pending *records,
                                     uint64_t length) noexcept nogil:
    """Whether `length` bytes more have to wait until the disk has taken some of what is pending. The disk takes
    something now. Under the owner's lock."""
    return (not committer.view.failing and records.pending.used != 0
            and records.pending.used + length > committer.pending_max)


cdef wan_status committer_refuse(const log_committer *committer, const log_pending *records,
                                 uint64_t length) noexcept nogil


cdef inline wan_status committer_reserve(const log_committer *committer, log_pending *records,
                                         uint64_t length) noexcept nogil:
    """Makes sure that records of `length` bytes can become pending. Under the owner's lock."""
    if (wan_flag_read(&committer.stop) or committer.view.failing or length > committer.record_max
            or committer_is_behind(committer, records, length)):
        return committer_refuse(committer, records, length)
    return wan_buffer_reserve(&records.pending, length)


cdef inline wan_status committer_reserve_smaller(const log_committer *committer, log_pending *records,
                                                 uint64_t length) noexcept nogil:
    """The same for a record that makes the log shorter: a store that has no room for others takes it. Under the owner's
    lock."""
    if (wan_flag_read(&committer.stop) or committer.view.failing != WAN_FULL or length > committer.record_max
            or records.pending.used + length > committer.pending_max):
        return committer_refuse(committer, records, length)
    return wan_buffer_reserve(&records.pending, length)


cdef inline void committer_note_pending(log_committer *committer, uint32_t count) noexcept nogil:
    """Counts `count` records that became pending. Under the owner's lock. The first one wakes a committer that sleeps;
    the others need not."""
    committer.given += count
    if wan_flag_read(&committer.waiting):
        wan_flag_set(&committer.waiting, 0)
        wan_signal_change(&committer.work)


cdef inline void committer_wake(log_committer *committer) noexcept nogil:
    """Asks the thread for a round: for work that is not pending records, or that the caller leaves to the thread."""
    wan_flag_set(&committer.asked, 1)
    wan_signal_change(&committer.work)


cdef inline void committer_wake_waiters(log_committer *committer) noexcept nogil:
    """Wakes the callers that wait."""
    wan_signal_change(&committer.changed)


cdef inline bint committer_try_role(log_committer *committer) noexcept nogil:
    """False: another thread has the role. Its release changes `changed`. A caller that wants to sleep until then has
    read `changed` before."""
    return wan_role_take(&committer.role)


cdef inline void committer_release_role(log_committer *committer) noexcept nogil:
    wan_role_release(&committer.role, &committer.changed)


cdef void committer_init(log_committer *committer, const log_owner *owner, uint8_t synchronous,
                         uint32_t flush_ms) noexcept nogil
cdef int committer_opened(log_committer *committer, wan_status status, str whose) except -1
cdef int committer_share(log_committer *committer, LogBudget budget, uint64_t known, bint may_use_reserve) except -1
cdef void committer_take_role(log_committer *committer) noexcept nogil
cdef wan_status committer_write(log_committer *committer, const wan_part *parts, uint32_t count, bint syncs,
                                uint32_t *segment) noexcept nogil
cdef wan_status committer_round(log_committer *committer, uint32_t work) noexcept nogil
cdef wan_status committer_once(log_committer *committer, uint32_t work) noexcept nogil
cdef void committer_made_durable(log_committer *committer, uint64_t given) noexcept nogil
cdef void committer_run(log_committer *committer) noexcept nogil
cdef void committer_stop(log_committer *committer) noexcept nogil
cdef void committer_note_passed(log_committer *committer, uint64_t given, wan_buffer *left) noexcept nogil
cdef disk_wait committer_begin_wait(log_committer *committer, int what, uint64_t limit_us) noexcept nogil
cdef uint64_t committer_left(log_committer *committer) noexcept nogil
cdef wan_status committer_write_now(log_committer *committer) noexcept nogil
cdef uint8_t level_of(object synchronous) except 255
cdef object level_name(uint8_t level)
cdef int committer_wait(log_committer *committer, disk_wait *wait, str whose, str meanwhile) except -1
cdef uint64_t committer_given(log_committer *committer) noexcept nogil
cdef bint committer_has_written(log_committer *committer, uint64_t given) noexcept nogil
cdef uint64_t committer_failing_since(log_committer *committer, int but) noexcept nogil
cdef dict committer_state(log_committer *committer)
