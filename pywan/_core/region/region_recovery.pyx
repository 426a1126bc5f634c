# Owns the recovery of a region from its log, and the memory of the log's state.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *
from pywan._core.c_names cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.log.disk_log cimport keep_damage
from pywan._core.log.log_pending cimport pending_close
from pywan._core.region.region_state cimport region_core, region_log
from pywan._core.region.region_walk cimport region_lower_tombstones


cdef wan_status region_log_recover(void *owner, uint32_t index, uint64_t commit, const wan_part_head *head,
                                   const uint8_t *data) noexcept nogil:
    """Applies the records of one part of a block to the table. A damaged record is skipped if its end can be found."""
    cdef region_log *log = <region_log *>owner
    cdef const wan_logged *record
    cdef wan_change change
    cdef wan_shard *shard
    cdef wan_entry *entry
    cdef wan_outcome outcome
    cdef uint64_t at = 0
    cdef wan_status status = WAN_OK
    if head.kind != WAN_PART_RECORDS and head.kind != WAN_PART_MOVED:
        return WAN_OK
    while at < head.length:
        record = <const wan_logged *>(data + at)
        if wan_logged_check(<const uint8_t *>record, head.length - at) != WAN_OK:
            status = WAN_CORRUPT
            if not wan_logged_has_end(record, head.length - at):
                break
            at += wan_logged_length(record)         # Salvage takes the records behind the damage.
            continue
        at += wan_logged_length(record)
        log.recovered += 1
        if record.kinds & WAN_LOGGED_MARK and record.kinds & WAN_LOGGED_FORGET:
            log.highest = record.stamp
            wan_set(&log.region.mark, record.other_stamp)
            wan_set(&log.region.let_go, min(log.region.let_go, record.stamp))
            region_lower_tombstones(&log.region.table, record.stamp, record.stamp)
            continue
        log.highest = max(log.highest, record.stamp)
        if record.kinds & WAN_LOGGED_MARK:
            wan_set(&log.region.let_go, max(log.region.let_go, record.stamp))
            if not record.kinds & WAN_LOGGED_LET_GO:
                wan_set(&log.region.mark, max(log.region.mark, record.stamp))
            continue
        change_from_logged(&change, record, wan_key_hash(wan_logged_key(record), record.key_length, record.key_form))
        shard = wan_table_shard(&log.region.table, change.hash)
        if record.kinds & WAN_LOGGED_FORGET:
            entry = wan_table_find(shard, change.hash, change.key, change.key_length, change.key_form)
            if entry != NULL and entry.stamp <= record.stamp:
                wan_table_forget(shard, change.hash, change.key, change.key_length, change.key_form)
            continue
        if record.kinds & WAN_LOGGED_RESTAMPED:
            entry = wan_table_find(shard, change.hash, change.key, change.key_length, change.key_form)
            if entry != NULL and entry.stamp == record.other_stamp:
                entry.stamp = 0
        if record.kinds & WAN_LOGGED_INVALID:
            outcome = wan_table_invalidate(shard, &change)
        else:
            outcome = wan_table_apply(shard, &change)
        if outcome == WAN_OUT_OF_MEMORY:
            return WAN_NO_MEMORY
    return status


cdef void region_log_note_damaged(void *owner, const wan_damage *damage) noexcept nogil:
    """Notes a damage that salvage found."""
    keep_damage(&(<region_log *>owner).damages, damage)


cdef region_log *region_log_new(region_core *region) except NULL:
    """Makes the state of a log that is to be opened."""
    cdef region_log *log = <region_log *>calloc(1, sizeof(region_log))
    if log == NULL:
        raise MemoryError()
    log.region = region
    log.moving.of_records.key_of = log.unwritten.of_newest.key_of = wan_logged_item_key
    log.moving.sweep_written = NO_SWEEP
    return log


cdef void region_log_close(region_log *log) noexcept nogil:
    """Frees the log's state. The log has no writer any more, or could not be opened."""
    wan_log_close(&log.committer.log)
    pending_close(&log.records)
    wan_buffer_close(&log.moving.records)
    wan_buffer_close(&log.moving.superseded)
    wan_buffer_close(&log.unwritten.newest)
    wan_buffer_close(&log.damages)
    wan_buffer_close(&log.passed)
    wan_buffer_close(&log.committer.left)
    wan_item_set_empty(&log.moving.of_records)
    wan_item_set_empty(&log.unwritten.of_newest)
    free(log)
