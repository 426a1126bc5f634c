# Owns the blocks of a persistent region's log. Each change is a record with its version. The record is given to the log
# as the change is applied to the table (put.pxd). Recovery applies the records again under the same rule: the later
# version wins. So neither the order of the records nor a duplicate matters. The rule has two exceptions. A removal on
# this member only takes out versions that stand before the removal in the log, up to the version of the removal. A
# change that replaced a later version (a resolver let it, or the clock was repaired) names the replaced version, and
# replaces that version again.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *
from pywan._core.c_names cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.log.committer cimport committer_made_durable, committer_wake_waiters, committer_write
from pywan._core.log.log_pending cimport pending_written, pending_take
from pywan._core.region.region_state cimport region_log


cdef inline uint64_t most_of_block(const region_log *log) noexcept nogil:
    """How many bytes of records a block gets, at most."""
    return wan_log_block_bytes(&log.committer.log) // (1 if wan_log_room(&log.committer.log) == NO_LIMIT else 4)


cdef wan_status region_log_write_blocks(region_log *log, uint32_t kind, const wan_buffer *records,
                                        uint64_t *written) noexcept nogil:
    """Writes the records from the byte `written` on; then `written` says where the writing ended. The blocks fit into
    an ordinary segment: the log is shortened by segments, so segments should be small. If the log has a limit, a block
    has a quarter of the usual bytes, so that little of each segment stays empty."""
    cdef wan_part part
    cdef uint32_t segment
    cdef uint8_t kinds
    cdef uint64_t length, block_bytes = most_of_block(log)
    cdef wan_status status
    while written[0] < records.used:
        part.head.kind, part.head.count, part.head.length = kind, 0, 0
        part.first, part.first_length = NULL, 0
        part.bytes = records.bytes + written[0]
        kinds = 0
        while written[0] + part.head.length < records.used:
            length = wan_logged_length(<const wan_logged *>(part.bytes + part.head.length))
            if part.head.count and part.head.length + length > block_bytes:
                break
            kinds |= (<const wan_logged *>(part.bytes + part.head.length)).kinds
            part.head.length += length
            part.head.count += 1
        status = wan_log_make_room(&log.committer.log, wan_parts_length(&part, 1), NULL, 0)
        if status == WAN_OK:
            if kinds & WAN_LOGGED_SMALLER:
                clear_smaller(<uint8_t *>part.bytes, part.head.length)
            status = committer_write(&log.committer, &part, 1, False, &segment)
        if status != WAN_OK:
            return status
        written[0] += part.head.length
        log.written_count += part.head.count
    return WAN_OK


cdef void clear_smaller(uint8_t *records, uint64_t length) noexcept nogil:
    """Clears the parts of records to write now that only this process reads."""
    cdef wan_logged *record
    cdef uint64_t at = 0
    while at < length:
        record = <wan_logged *>(records + at)
        record.kinds &= <uint8_t>~WAN_LOGGED_SMALLER
        at += wan_logged_length(record)


cdef bint is_one_write(const region_log *log) noexcept nogil:
    """Whether the pending records are one block, which the log takes unchanged. False while records are moved: the
    moved records come first. Under the log's lock."""
    cdef uint64_t length = log.records.pending.used
    if log.records.taken.used != 0 or log.moving.segments != 0 or length > most_of_block(log):
        return False
    return wan_log_takes(&log.committer.log, length + sizeof(wan_part_head))


cdef wan_status region_log_write(region_log *log, bint in_one_write) noexcept nogil:
    """Writes the pending records to the disk. The caller has the committer's role. If `in_one_write` is set, writes
    only if one write is enough; otherwise does nothing and returns WAN_SLOW."""
    cdef uint64_t given
    cdef wan_status status
    wan_lock_take(&log.lock)
    if in_one_write and not is_one_write(log):
        wan_lock_release(&log.lock)
        return WAN_SLOW
    if log.records.taken.used == 0:
        pending_take(&log.records)
    given = log.committer.given - log.records.pending.count
    wan_lock_release(&log.lock)
    status = region_log_write_blocks(log, WAN_PART_RECORDS, &log.records.taken, &log.written)
    if status != WAN_OK:
        return status
    log.written = 0
    wan_buffer_close(&log.passed)
    pending_written(&log.records, wan_monotonic_us())
    wan_lock_take(&log.lock)
    committer_made_durable(&log.committer, given)
    wan_lock_release(&log.lock)
    committer_wake_waiters(&log.committer)
    return WAN_OK
