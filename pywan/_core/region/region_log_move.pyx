# Owns the shortening of a region's log, from its oldest segment on. A record that is still the current version lives,
# and is appended again; the rest is history. Near the limit of the store a sweep goes over the whole log.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_log cimport *
from pywan._core.c_region cimport *
from pywan._core.log.disk_log cimport LOG_SEGMENTS_KEPT, MOVED_SEGMENTS_MAX
from pywan._core.region.region_log cimport region_log_write, region_log_write_blocks
from pywan._core.region.region_log_superseded cimport (
    region_log_end_look, region_log_forget_look, region_log_keep_superseded, region_log_may_keep_less)
from pywan._core.region.region_recovery cimport change_from_logged
from pywan._core.region.region_state cimport region_log


cdef enum:
    # The store is near its limit when the free bytes are less than this number of segments. Then a sweep moves the live
    # records together before any new record is written.
    NEAR_LIMIT_SEGMENTS = 8
    # A sweep moves the live records out of this number of segments in one commit, so that the price of a commit has a
    # limit.
    NEAR_LIMIT_MOVED = 16
    # While changes wait for room, a sweep may free less than a segment if this time has passed since the last sweep.
    SWEEP_AGAIN_US = 1000000


cdef uint64_t region_log_live_bytes(const region_log *log) noexcept nogil:
    """About how many bytes the live records of the log have."""
    cdef uint64_t total = 0
    for n in range(log.region.table.shard_count):
        total += wan_read(&log.region.table.shards[n].bytes) + wan_table_shrunk_log_bytes(&log.region.table.shards[n])
    return total


cdef inline bint region_log_has_room(const region_log *log, uint32_t segments) noexcept nogil:
    """Whether the log has room for this number of segments."""
    return (not log.committer.log.disk_is_full
            and wan_log_room(&log.committer.log) >= segments * wan_log_segment_bytes(&log.committer.log))


cdef wan_status add_once(wan_buffer *records, wan_item_set *added, const wan_logged *record) noexcept nogil:
    """Adds the record, unless the set has a record of its key. The log has copies of a record where a move failed, or a
    crash ended the move."""
    cdef uint64_t *slot
    cdef uint64_t at = records.used
    cdef wan_status status = wan_item_set_find(added, records, record, &slot)
    if status == WAN_OK and slot[0] == 0:
        status = wan_buffer_add(records, record, wan_logged_length(record))
        if status == WAN_OK:
            wan_item_set_choose(added, slot, at)
    return status


cdef bint region_log_keeps_marks(region_log *log, uint64_t stamp) noexcept nogil:
    """Whether a mark with this stamp has to be moved although a newer mark exists: the newer mark may be pending still.
    A mark is the stamp up to which destroys may have been forgotten."""
    cdef bint is_void = stamp > wan_read(&log.region.let_go), keeps
    wan_lock_take(&log.lock)
    keeps = log.moving.alone and not (is_void and log.committer.durable >= log.reset_given)
    wan_lock_release(&log.lock)
    return keeps


cdef wan_status region_log_move(void *owner, uint32_t index, uint64_t commit, const wan_part_head *head,
                                const uint8_t *data) noexcept nogil:
    """Reads one part of a block. Adds the live records to `moving.records`. If `moving.alone` is set, adds all other
    records to `moving.superseded`."""
    cdef region_log *log = <region_log *>owner
    cdef const wan_logged *record
    cdef wan_shard *shard
    cdef wan_entry *entry
    cdef wan_change change
    cdef uint64_t at = 0
    cdef bint lives
    cdef wan_status status = WAN_OK
    while at < head.length and status == WAN_OK:
        record = <const wan_logged *>(data + at)
        at += wan_logged_length(record)
        change_from_logged(&change, record, wan_key_hash(wan_logged_key(record), record.key_length, record.key_form))
        if record.kinds & WAN_LOGGED_MARK:
            if record.kinds & WAN_LOGGED_FORGET:      # Not moved: later parts of the log have later stamps.
                continue
            # The newest mark of each kind is moved. Older marks are moved too while a newer mark may be pending still.
            if (region_log_keeps_marks(log, record.stamp) or record.stamp == wan_read(&log.region.mark)
                    or record.stamp == wan_read(&log.region.let_go)):
                status = wan_buffer_add(&log.moving.records, record, wan_logged_length(record))
            continue
        shard = wan_table_shard(&log.region.table, change.hash)
        wan_lock_take(&shard.lock)
        entry = wan_table_find(shard, change.hash, change.key, change.key_length, change.key_form)
        lives = (entry != NULL and not (record.kinds & WAN_LOGGED_FORGET) and wan_table_made_by(entry, &change)
                 and (entry.state == WAN_ENTRY_INVALID) == ((record.kinds & WAN_LOGGED_INVALID) != 0))
        if (entry == NULL and record.operation == WAN_DESTROY and shard.shrunk != NULL
                and not record.kinds & WAN_LOGGED_FORGET):
            lives = wan_table_shrunk_stamp(shard, change.hash) == record.stamp
        wan_lock_release(&shard.lock)
        if lives:
            status = add_once(&log.moving.records, &log.moving.of_records, record)
        elif log.moving.alone:
            status = wan_buffer_add(&log.moving.superseded, record, wan_logged_length(record))
    return status


cdef wan_status region_log_read_oldest(region_log *log, uint32_t most, bint alone) noexcept nogil:
    """Reads the live records of the oldest segments into `moving.records`: up to `most` segments, and no more than
    about half a segment of bytes."""
    cdef wan_log_reader reader
    cdef wan_status status = WAN_OK
    cdef uint32_t end = log.committer.log.writing, n
    wan_buffer_empty(&log.moving.records)
    wan_buffer_empty(&log.moving.superseded)
    log.moving.segments = 0
    log.moving.written = 0
    log.moving.alone = alone
    memset(&reader, 0, sizeof(reader))
    reader.owner = log
    reader.part = region_log_move
    # A process that ended while it moved records left copies in the newest segments. These records live already, so we
    # read the newest segments first and do not move the records again.
    if not log.moving.has_moved:
        end = max(end, 2) - 1
        for n in range(end, log.committer.log.writing + 1):
            if status == WAN_OK:
                status = wan_log_read_segment(&log.committer.log, n, &reader)
        log.moving.written = log.moving.records.used
    while (status == WAN_OK and log.moving.segments < most and log.moving.segments < end
           and log.moving.records.used - log.moving.written < wan_log_segment_bytes(&log.committer.log) // 2):
        status = wan_log_read_segment(&log.committer.log, log.moving.segments, &reader)
        log.moving.segments += 1
    wan_item_set_empty(&log.moving.of_records)
    log.moving.has_moved = log.moving.has_moved or status == WAN_OK
    return status


cdef wan_status region_log_write_behind(region_log *log) noexcept nogil:
    """Writes the pending records. All moved records have to be on the disk before the pending records. If some are not,
    they have to be read again."""
    if log.moving.written < log.moving.records.used:
        log.moving.segments = 0
    return region_log_write(log, False)


cdef wan_status region_log_drop_oldest(region_log *log, uint32_t most, bint alone) noexcept nogil:
    """Moves the live records out of the oldest segments, at most `most` segments, and drops these segments. `alone`:
    the pending records are not written in between. If the move fails, the next call goes on from the failure, so a disk
    that fails again and again does not fill with copies."""
    cdef wan_status status = WAN_OK
    if log.moving.segments == 0 or (alone and not log.moving.alone):
        status = region_log_read_oldest(log, most, alone)
        if status == WAN_OK and alone:
            status = region_log_keep_superseded(log, &log.moving.superseded, &log.moving.records)
        if status != WAN_OK:
            log.moving.segments = 0
    if status == WAN_OK:
        status = region_log_write_blocks(log, WAN_PART_MOVED, &log.moving.records, &log.moving.written)
    # A pending record may have replaced a version in these segments. The pending record has to be on the disk before
    # the version goes. It also has to stand behind the moved records: a key that was destroyed meanwhile must not come
    # back once the record of the destroy is history.
    if status == WAN_OK and not log.moving.alone:
        status = region_log_write_behind(log)
    if status == WAN_OK:
        status = wan_log_drop_first(&log.committer.log, log.moving.segments, NULL, 0)
    if status == WAN_OK:
        log.moving.segments = 0
    return status


cdef wan_status region_log_shorten(region_log *log) noexcept nogil:
    """Drops the oldest segments while most of the log is history and there is room to write."""
    cdef wan_status status = WAN_OK
    while (status == WAN_OK and log.committer.log.writing >= LOG_SEGMENTS_KEPT
           and log.committer.log.bytes > 3 * region_log_live_bytes(log)
           and region_log_has_room(log, NEAR_LIMIT_SEGMENTS + 2)):
        # Several segments at once, so that the log loses more than it gains meanwhile.
        status = region_log_drop_oldest(log, MOVED_SEGMENTS_MAX, False)
    return status


cdef bint region_log_pending_fits(region_log *log) noexcept nogil:
    """Whether the log has room for the pending records beside the live records of the two oldest segments."""
    cdef uint64_t pending
    wan_lock_take(&log.lock)
    pending = log.records.pending.used + log.records.taken.used - log.written
    wan_lock_release(&log.lock)
    return (not log.committer.log.disk_is_full
            and wan_log_room(&log.committer.log) >= pending + 2 * wan_log_segment_bytes(&log.committer.log))


cdef bint region_log_may_shrink(region_log *log) noexcept nogil:
    """Whether, near the limit, a further sweep could find fewer live records: records were written since the last sweep
    began, or became pending since the sweep chose the records to keep."""
    if log.committer.log.count == 0 or region_log_has_room(log, NEAR_LIMIT_SEGMENTS):
        return False
    if log.committer.log.disk_is_full and not region_log_gains(log):
        return False
    return (log.moving.sweep_end != 0 or log.moving.sweep_written != log.written_count
            or region_log_may_keep_less(log))


cdef wan_status region_log_sweep(region_log *log) noexcept nogil:
    """Begins or continues a sweep, near the limit of the store. A sweep goes over the whole log once, a part in each
    commit, also if more than a third of the log lives. The pending records are written here only if the write leaves
    room for moving more."""
    cdef uint32_t moved = 0
    cdef wan_status status = WAN_OK
    # A log without segments has nothing to sweep: the disk was full when the log was opened.
    if log.committer.log.count == 0 or not wan_log_take_reserve(&log.committer.log):
        return WAN_OK
    if log.moving.sweep_end == 0:
        log.moving.sweep_end = log.committer.log.segments[log.committer.log.writing].number
        region_log_forget_look(log)
        log.moving.sweep_written = log.written_count
    while (status == WAN_OK and moved < NEAR_LIMIT_MOVED and not region_log_has_room(log, NEAR_LIMIT_SEGMENTS)
           and log.committer.log.segments[0].number < log.moving.sweep_end):
        status = region_log_drop_oldest(log, 1, not region_log_pending_fits(log))
        moved += 1
    if log.committer.log.segments[0].number >= log.moving.sweep_end:
        log.moving.sweep_end, log.moving.bytes_after_sweep = 0, log.committer.log.bytes
        log.moving.live_after_sweep, log.moving.swept_us = region_log_live_bytes(log), wan_monotonic_us()
        region_log_end_look(log)
    wan_log_give_back_reserve(&log.committer.log)
    return status


cdef bint region_log_wants_sweep(region_log *log) noexcept nogil:
    """Whether a sweep is worth its price: this log or a log of the same store may need room, and part of this log may
    be history."""
    cdef uint64_t segment = wan_log_segment_bytes(&log.committer.log)
    if not region_log_may_shrink(log):
        return False
    if log.moving.sweep_end:
        return True
    # The last sweep may have kept records that were superseded by changes which have been written since. The log has to
    # grow by `most` bytes at least before a sweep is worth its price; in a small store this is less than some segments.
    cdef uint64_t most = min(max(segment, wan_log_record_bytes(&log.committer.log) // 2), LOG_SEGMENTS_KEPT * segment)
    return (log.committer.log.bytes >= log.moving.bytes_after_sweep + max(log.moving.bytes_after_sweep // 8, most)
            or log.committer.log.bytes > 3 * region_log_live_bytes(log) + 2 * segment)


cdef bint region_log_gains(const region_log *log) noexcept nogil:
    """Whether a sweep is worth its price where changes wait for room: a segment of records became history since the
    last sweep ended, or that sweep was a while ago, or the log ends."""
    cdef uint64_t was = log.moving.bytes_after_sweep, live = region_log_live_bytes(log)
    cdef uint64_t segment = wan_log_segment_bytes(&log.committer.log)
    if log.moving.sweep_end or wan_flag_read(&log.committer.stop):
        return True
    if was == 0:        # No sweep has ended. On a full disk a sweep may have to write a log of any length.
        return not log.committer.log.disk_is_full or log.committer.log.bytes >= live + 2 * segment
    return (log.committer.log.bytes + log.moving.live_after_sweep >= was + live + segment
            or wan_monotonic_us() >= log.moving.swept_us + SWEEP_AGAIN_US)


cdef void region_log_end_moving(region_log *log) noexcept nogil:
    """Ends a round: frees the records that were moved, unless their segments are still to be dropped."""
    if log.moving.segments == 0:
        wan_buffer_close(&log.moving.records)
        wan_buffer_close(&log.moving.superseded)
        log.moving.written = 0
