# The interface of committer.pyx, and what runs for each event, inline.
#
# The log of a queue or region belongs to whoever has the committer's *role*. The committer's thread takes it for each look at the log and
# for the round that follows; another thread may take it for a round of its own in between (`committer_take_role`).
#
# A round is run so:
#   1. Take the role. A thread that finds it taken sleeps on `epoch`, which it has read before, and asks again.
#   2. `round_of` the owner: under the owner's lock it takes what is staged, writes it without that lock, and under the lock again it tells
#      what is durable (`committer_made_durable`). Callers that wait are woken then (`committer_tell`). What a round took and could not
#      write stays taken, and the next round writes it first, whoever runs that.
#   3. Show under the owner's lock what others may know of the log. After a failure enqueues are refused, until a round succeeds.
#   4. Release the role; those who asked for it in vain are woken.
# `committer_round` does 2 and 3. With SYNCHRONOUS_WRITTEN a caller that waits takes the role too, and writes all that is staged, if that
# is one block which the log takes as it is (`write_block_of`); everything else it leaves to the thread. The thread syncs the log without
# the role, at most `flush_ms` after a block was written. It goes first: a caller that sees it ask for the role does not.
# The owner's lock is taken under the role, never the other way round; nobody waits for the role with it.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *
from pywan._core.disk_log cimport LogBudget
from pywan._core.log_pending cimport log_pending

cdef enum:
    PENDING_BYTES_MAX = 64 << 20             # More than this waiting for the disk: enqueues are refused (queue full) until it caught up.
    PENDING_PART_OF_LIMIT = 8                # Less where the log may not be large: what waits has to fit into it.
    DISK_PATIENCE_US = 5000000              # Who waits for a disk that takes nothing is told after so long.
    WAIT_SLICE_US = 100000                  # After so long a caller that waits looks at the process's signals.
    IDLE_MS = 100                           # So long the committer sleeps at most, also between rounds that fail.

cdef enum:                                  # What a caller waits for before its change is done. Not 0: it waits.
    SYNCHRONOUS_NOT = 0                     # For nothing; what is staged is written after `flush_ms`.
    SYNCHRONOUS_SYNCED = 1                  # The log has it and is synced.
    SYNCHRONOUS_WRITTEN = 2                 # The log has it, which survives the end of the process; it is synced after `flush_ms`.

cdef enum:                                  # What `work_of` an owner finds: a set of these. 0: nothing is to be done.
    WORK_NOW = 1                            # Something waits for the disk.
    WORK_IDLE = 2                           # A round has something to do that can wait: one of them between two sleeps.
    WORK_CHECKPOINT = 4                     # The round ends with a checkpoint of what left the queue.

cdef enum:
    FOR_EVENTS = 0                          # Somebody waits until all that was staged is as durable as the log's level says;
    FOR_DISK = -1                           # or on the disk, whatever it says. Other numbers are the owner's.
    WAIT_DONE = 1, WAIT_IN_VAIN = 0, WAIT_GOES_ON = -1

cdef struct disk_wait:                      # One caller's wait for a log, in slices.
    int what                                # FOR_*
    uint64_t wanted
    uint64_t deadline_us
    uint64_t failing_since_us

cdef struct log_view:                       # A log as others may see it, as of the last round. Under the owner's lock.
    uint64_t bytes, commits
    uint32_t segments
    int failing                             # wan_status of the last round; enqueues are refused while it is not WAN_OK.
    uint64_t failing_since_us               # Since when no round was WAN_OK.
    char reason[512]

# What is the owner's in the work of its committer. All are called by who has the role, without the owner's lock.
ctypedef uint32_t (*work_function)(void *owner, bint stopping) noexcept nogil       # What is to be done now: WORK_*.
ctypedef wan_status (*round_function)(void *owner, uint32_t work) noexcept nogil    # What was staged when this began is on the disk.
# What is staged is written by one write. WAN_SLOW: it would take more, and nothing was done.
ctypedef wan_status (*block_function)(void *owner) noexcept nogil
ctypedef void (*rest_function)(void *owner) noexcept nogil                          # Nothing is to be done: memory goes back.
ctypedef wan_status (*seal_function)(void *owner) noexcept nogil                    # The log ends with nothing left to write.
ctypedef bint (*reached_function)(void *owner, const disk_wait *wait) noexcept nogil    # A wait of the owner's own. Under its lock.

cdef struct log_owner:
    void *itself
    wan_lock *lock
    work_function work_of
    round_function round_of
    block_function write_block_of
    rest_function rest
    seal_function seal
    reached_function has_reached            # NULL: there are no waits but FOR_EVENTS.

cdef struct log_committer:
    # Looked at for each event, under the owner's lock.
    # Records given to the log so far, and of these how many are as durable as the level says. A wait compares the two.
    uint64_t given, durable
    uint64_t synced                         # Of those certainly on the disk.
    uint64_t pending_max                     # Bytes of records that may be staged.
    uint64_t record_max                     # Bytes of the longest record that the log takes.
    int waiting                             # The committer sleeps, or is about to.
    int stop                                # Nothing is staged any more. Set under the owner's lock.
    log_view view
    # As opened.
    log_owner owner
    uint8_t synchronous                     # SYNCHRONOUS_*
    uint32_t flush_ms                       # With SYNCHRONOUS_NOT: how long a record may wait for its round; with _WRITTEN: a block for its sync.
    uint32_t epoch                          # Changes with every commit, or failure: what waiters sleep on.
    uint32_t work                           # Changes when something is staged: what the committer sleeps on.
    int ended                               # The committer has returned: what is staged stays where it is.
    int asked                               # Somebody waits for the thread's next round.
    int goes_first                          # The thread asks for the role.
    bint syncs_behind                       # The thread syncs without the role: who has it may write a block that the log takes, and nothing else.
    wan_role role
    wan_log log                             # Of who has the role. Its id, the incarnation in it and its limits are read by others too.


cdef inline bint committer_is_behind(const log_committer *committer, const log_pending *records, uint64_t length) noexcept nogil:
    """Under the owner's lock: so many bytes more have to wait until the disk has taken some of what is staged, which it does."""
    return not committer.view.failing and records.pending.used != 0 and records.pending.used + length > committer.pending_max


cdef wan_status committer_refuse(const log_committer *committer, const log_pending *records, uint64_t length) noexcept nogil


cdef inline wan_status committer_reserve(const log_committer *committer, log_pending *records, uint64_t length) noexcept nogil:
    """Under the owner's lock: records of `length` bytes can be staged afterwards."""
    if wan_flag_read(&committer.stop) or committer.view.failing or length > committer.record_max or committer_is_behind(committer, records, length):
        return committer_refuse(committer, records, length)
    return wan_buffer_reserve(&records.pending, length)


cdef inline void committer_note_pending(log_committer *committer, uint32_t count) noexcept nogil:
    """Under the owner's lock: so many records more are staged. The first one wakes a committer that sleeps; the others need not."""
    committer.given += count
    if wan_flag_read(&committer.waiting):
        wan_flag_set(&committer.waiting, 0)
        wan_signal_change(&committer.work)


cdef inline void committer_wake(log_committer *committer) noexcept nogil:
    """Something is to be done that is not staged, or that its maker leaves to the thread."""
    wan_flag_set(&committer.asked, 1)
    wan_signal_change(&committer.work)


cdef inline void committer_tell(log_committer *committer) noexcept nogil:
    """Wakes those who wait."""
    wan_signal_change(&committer.epoch)


cdef inline bint committer_try_role(log_committer *committer) noexcept nogil:
    """False: another thread has the role. Its release changes `epoch`; who wants to sleep until then has read that before."""
    return wan_role_take(&committer.role)


cdef inline void committer_release_role(log_committer *committer) noexcept nogil:
    wan_role_release(&committer.role, &committer.epoch)


cdef void committer_init(log_committer *committer, const log_owner *owner, uint8_t synchronous, uint32_t flush_ms) noexcept nogil
cdef int committer_opened(log_committer *committer, wan_status status, str whose) except -1
cdef int committer_share(log_committer *committer, LogBudget budget, uint64_t known, bint may_use_reserve) except -1
cdef void committer_take_role(log_committer *committer) noexcept nogil
cdef wan_status committer_write(log_committer *committer, const wan_part *parts, uint32_t count, bint syncs, uint32_t *segment) noexcept nogil
cdef wan_status committer_round(log_committer *committer, uint32_t work) noexcept nogil
cdef wan_status committer_once(log_committer *committer, uint32_t work) noexcept nogil
cdef void committer_made_durable(log_committer *committer, uint64_t staged) noexcept nogil
cdef void committer_run(log_committer *committer) noexcept nogil
cdef void committer_stop(log_committer *committer) noexcept nogil
cdef disk_wait committer_begin_wait(log_committer *committer, int what, uint64_t limit_us) noexcept nogil
cdef wan_status committer_write_now(log_committer *committer) noexcept nogil
cdef uint8_t level_of(object synchronous) except 255
cdef object level_name(uint8_t level)
cdef int committer_wait(log_committer *committer, disk_wait *wait, str whose, str meanwhile) except -1
cdef uint64_t committer_given(log_committer *committer) noexcept nogil
cdef bint committer_has_written(log_committer *committer, uint64_t staged) noexcept nogil
cdef uint64_t committer_failing_since(log_committer *committer, int but) noexcept nogil
cdef dict committer_state(log_committer *committer)
