# Owns what is a region's in the work of its committer: when there is something to do, and what a round does in which order.
from libc.stdint cimport uint8_t, uint32_t
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *
from pywan._core.committer cimport WORK_IDLE, WORK_NOW, committer_init, log_owner
from pywan._core.log_pending cimport pending_rest
from pywan._core.region_log cimport region_log_write
from pywan._core.region_log_move cimport (
    region_log_end_moving, region_log_make_way, region_log_may_shrink, region_log_shorten, region_log_wants_way,
    region_log_write_behind)
from pywan._core.region_state cimport region_log


cdef void region_committer_init(region_log *log, uint8_t synchronous, uint32_t flush_ms) noexcept nogil:
    """Before the log is opened."""
    cdef log_owner owner
    owner.itself, owner.lock = log, &log.lock
    owner.work_of, owner.round_of, owner.rest, owner.seal = work_of_region, round_of_region, rest_of_region, seal_region
    owner.write_block_of, owner.has_reached = write_block_of_region, NULL
    committer_init(&log.committer, &owner, synchronous, flush_ms)


cdef uint32_t work_of_region(void *itself, bint stopping) noexcept nogil:
    """A round whenever something is staged; else one that makes way for other logs, or this one, now and then."""
    cdef region_log *log = <region_log *>itself
    cdef bint waits
    wan_lock_take(&log.lock)
    waits = log.records.pending.used != 0 or log.records.taken.used != 0
    wan_lock_release(&log.lock)
    if waits:
        return WORK_NOW
    return WORK_IDLE if not stopping and region_log_wants_way(log) else 0


cdef wan_status round_of_region(void *itself, uint32_t work) noexcept nogil:
    cdef region_log *log = <region_log *>itself
    cdef bint late = log.records.taken.used != 0        # An attempt that failed had taken that; what was staged since comes behind it.
    cdef wan_status status = region_log_make_way(log) if region_log_wants_way(log) else WAN_OK      # First, while there is room.
    if status == WAN_OK:
        status = region_log_write_behind(log)
    if status == WAN_FULL and region_log_may_shrink(log):           # Then however little there is to be had.
        status = region_log_make_way(log)
        if status == WAN_OK:
            status = region_log_write_behind(log)
    if status == WAN_OK and late:
        status = region_log_write_behind(log)
    if status == WAN_OK:
        region_log_shorten(log)         # Tried again after the next commit; what is durable is not less so.
    region_log_end_moving(log)
    return status


cdef wan_status write_block_of_region(void *itself) noexcept nogil:
    return region_log_write(<region_log *>itself, True)


cdef void rest_of_region(void *itself) noexcept nogil:
    cdef region_log *log = <region_log *>itself
    pending_rest(&log.records, &log.lock, wan_monotonic_us())


cdef wan_status seal_region(void *itself) noexcept nogil:
    return wan_log_seal(&(<region_log *>itself).committer.log, NULL, 0)
