# Owns a queue's part in the work of its committer: when there is something to do, and what a round does in which order.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *
from pywan._core.log.committer cimport (
    WORK_CHECKPOINT, WORK_NOW, committer_begin_wait, committer_init, disk_wait, log_owner)
from pywan._core.log.log_pending cimport pending_rest
from pywan._core.queue.queue cimport durable_log, gateway_queue, removed_sum
from pywan._core.queue.queue_checkpoint cimport CHECKPOINT_EVENTS, CHECKPOINT_US, repairs_of
from pywan._core.queue.queue_log cimport durable_commit, durable_write_block, has_taken
from pywan._core.queue.queue_log_shorten cimport durable_make_room, durable_shorten, log_is_long
from pywan._core.queue.queue_mounts cimport durable_renew


cdef void queue_committer_init(gateway_queue *gateway, uint8_t synchronous, uint32_t flush_ms) noexcept nogil:
    """Sets the committer up, before the log is opened."""
    cdef log_owner owner
    owner.itself, owner.lock = gateway, &gateway.lock
    owner.work_of, owner.round_of, owner.rest, owner.seal = work_of_queue, round_of_queue, rest_of_queue, seal_queue
    owner.write_block_of, owner.has_reached = write_block_of_queue, queue_has_reached
    committer_init(&gateway.durable.committer, &owner, synchronous, flush_ms)


cdef uint32_t work_of_queue(void *itself, bint stopping) noexcept nogil:
    """Asks for a round when something is pending, and for a checkpoint at least every second or 10,000 removed
    events."""
    cdef gateway_queue *gateway = <gateway_queue *>itself
    cdef durable_log *durable = gateway.durable
    cdef uint64_t removed, now
    cdef bint waits, checkpoint, repaired, is_long
    wan_lock_take(&gateway.lock)
    waits = (durable.records.pending.used != 0 or durable.holes.pending.used != 0
             or durable.superseded.pending.used != 0 or has_taken(durable))
    removed = removed_sum(gateway)
    repaired = gateway.counts.clock_repairs != repairs_of(&durable.state)
    wan_lock_release(&gateway.lock)
    now = wan_monotonic_us()
    is_long = log_is_long(gateway)
    checkpoint = (removed != durable.removed_at_checkpoint and (
        stopping or removed - durable.removed_at_checkpoint >= CHECKPOINT_EVENTS
        or now - durable.checkpoint_us >= CHECKPOINT_US)
        or repaired or is_long and durable.committer.log.commit != durable.shortened_commit)
    if checkpoint:
        return WORK_NOW | WORK_CHECKPOINT
    if (waits or wan_read(&durable.wanted_numbering) or durable.shorten_again_us and now >= durable.shorten_again_us
            and is_long):
        return WORK_NOW
    return 0


cdef wan_status round_of_queue(void *itself, uint32_t work) noexcept nogil:
    """Brings onto the disk what was pending when the round began, and with a checkpoint what was removed."""
    cdef gateway_queue *gateway = <gateway_queue *>itself
    cdef durable_log *durable = gateway.durable
    cdef bint checkpoint = work & WORK_CHECKPOINT != 0, late = has_taken(durable)
    # Not if much else is queued: that would use the reserve up.
    cdef bint uses_reserve = (wan_flag_read(&durable.replaying)
                              and wan_read(&gateway.queue.bytes) <= durable.committer.record_max
                              and wan_log_take_reserve(&durable.committer.log))
    cdef wan_status status = durable_renew(gateway)
    if status == WAN_OK:
        status = write_pending(gateway, checkpoint)
    # The first commit wrote what a failed attempt had taken. What became pending since then comes behind it.
    if status == WAN_OK and late:
        status = write_pending(gateway, checkpoint)
    if uses_reserve:
        wan_log_give_back_reserve(&durable.committer.log)
    if status == WAN_OK and (checkpoint or log_is_long(gateway)):
        # If the shortening failed, a later round tries again. What is durable already stays durable.
        durable.shorten_again_us = wan_monotonic_us() + CHECKPOINT_US if durable_shorten(gateway) == WAN_EMPTY else 0
        durable.shortened_commit = durable.committer.log.commit
    return status


cdef wan_status write_pending(gateway_queue *gateway, bint checkpoint) noexcept nogil:
    """Runs a commit. If the log is full, this makes room for it."""
    cdef wan_status status = durable_commit(gateway, checkpoint, NULL)
    if status == WAN_FULL and log_is_long(gateway) and durable_shorten(gateway) == WAN_OK:
        status = durable_commit(gateway, checkpoint, NULL)
    while status == WAN_FULL and durable_make_room(gateway):      # Each time at least one segment goes.
        status = durable_commit(gateway, checkpoint, NULL)
    return status


cdef wan_status write_block_of_queue(void *itself) noexcept nogil:
    return durable_write_block(<gateway_queue *>itself)


cdef void rest_of_queue(void *itself) noexcept nogil:
    cdef gateway_queue *gateway = <gateway_queue *>itself
    cdef durable_log *durable = gateway.durable
    cdef uint64_t now = wan_monotonic_us()
    wan_buffer_rest(&durable.joined[1], &durable.positions.use, 0, now)
    pending_rest(&durable.records, &gateway.lock, now)
    pending_rest(&durable.positions, &gateway.lock, now)
    pending_rest(&durable.holes, &gateway.lock, now)
    pending_rest(&durable.superseded, &gateway.lock, now)


cdef wan_status seal_queue(void *itself) noexcept nogil:
    cdef durable_log *durable = (<gateway_queue *>itself).durable
    return wan_log_seal(&durable.committer.log, durable.state.bytes, durable.state.used)


cdef bint queue_has_reached(void *itself, const disk_wait *wait) noexcept nogil:
    cdef gateway_queue *gateway = <gateway_queue *>itself
    cdef durable_log *durable = gateway.durable
    if wait.what == FOR_IDENTITY:
        return durable.wanted_numbering == 0
    if wait.what == FOR_REPAIR:
        return repairs_of(&durable.state) == gateway.counts.clock_repairs
    return durable.removed_at_checkpoint >= wait.wanted


cdef disk_wait queue_begin_wait(gateway_queue *gateway, int what, uint64_t limit_us) noexcept nogil:
    cdef disk_wait wait = committer_begin_wait(&gateway.durable.committer, what, limit_us)
    if what == FOR_REMOVALS:
        wan_lock_take(&gateway.lock)
        wait.wanted = removed_sum(gateway)
        wan_lock_release(&gateway.lock)
    return wait
