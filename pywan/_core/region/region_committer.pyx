# Owns the region's part in the work of the committer: when work is due, and in which order a round does the work.
from libc.stdint cimport uint8_t, uint32_t
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *
from pywan._core.log.committer cimport WORK_IDLE, WORK_NOW, committer_init, log_owner
from pywan._core.log.log_pending cimport pending_rest
from pywan._core.region.region_log cimport region_log_write
from pywan._core.region.region_log_move cimport (
    region_log_end_moving, region_log_gains, region_log_may_shrink, region_log_shorten, region_log_sweep,
    region_log_wants_sweep, region_log_write_behind)
from pywan._core.region.region_log_pass cimport region_log_pass
from pywan._core.region.region_state cimport region_log


cdef void region_committer_init(region_log *log, uint8_t synchronous, uint32_t flush_ms) noexcept nogil:
    """Prepares the committer. Call it before the log is opened."""
    cdef log_owner owner
    owner.itself, owner.lock = log, &log.lock
    owner.work_of, owner.round_of, owner.rest, owner.seal = work_of_region, round_of_region, rest_of_region, seal_region
    owner.write_block_of, owner.has_reached = write_block_of_region, NULL
    committer_init(&log.committer, &owner, synchronous, flush_ms)


cdef uint32_t work_of_region(void *itself, bint stopping) noexcept nogil:
    """Pending records are work for now. Otherwise a sweep may be worth its price now and then: a sweep makes room for
    the log or for more logs in the store."""
    cdef region_log *log = <region_log *>itself
    cdef bint waits
    wan_lock_take(&log.lock)
    waits = log.records.pending.used != 0 or log.records.taken.used != 0
    wan_lock_release(&log.lock)
    if waits:
        return WORK_NOW
    return WORK_IDLE if not stopping and region_log_wants_sweep(log) else 0


cdef wan_status round_of_region(void *itself, uint32_t work) noexcept nogil:
    """Runs one round of the committer: a sweep if the sweep is worth the price, the pending records, and then the
    shortening of the log."""
    cdef region_log *log = <region_log *>itself
    # A round that failed took records and did not write them. Records that became pending since are written afterwards.
    cdef bint late = log.records.taken.used != 0, waits_for_room = log.committer.tried != 0
    cdef wan_status status = WAN_OK
    if waits_for_room:
        # Records that make the log shorter come first: then a sweep need not keep the replaced versions.
        status = region_log_pass(log)
        if status == WAN_FULL:
            status = WAN_OK
    if status == WAN_OK and region_log_wants_sweep(log):
        status = region_log_sweep(log)      # Before the write, while the log has room.
    if status == WAN_OK:
        status = region_log_write_behind(log)
    # The log has no room: now a sweep is worth any gain. If the log had no room before, the sweep has to be worth the
    # price.
    if status == WAN_FULL and region_log_may_shrink(log) and (not waits_for_room or region_log_gains(log)):
        status = region_log_sweep(log)
        if status == WAN_OK:
            status = region_log_write_behind(log)
    if status == WAN_FULL and not waits_for_room:
        status = region_log_pass(log)
    if status == WAN_OK and late:
        status = region_log_write_behind(log)
    if status == WAN_OK:
        # A failure here does no harm: durable records stay durable, and the next commit tries again.
        region_log_shorten(log)
    region_log_end_moving(log)
    return status


cdef wan_status write_block_of_region(void *itself) noexcept nogil:
    """Writes the pending records if one write is enough. Otherwise returns WAN_SLOW."""
    return region_log_write(<region_log *>itself, True)


cdef void rest_of_region(void *itself) noexcept nogil:
    """Gives back memory while the committer has no work."""
    cdef region_log *log = <region_log *>itself
    pending_rest(&log.records, &log.lock, wan_monotonic_us())


cdef wan_status seal_region(void *itself) noexcept nogil:
    """Ends the log. All records are written."""
    return wan_log_seal(&(<region_log *>itself).committer.log, NULL, 0)
