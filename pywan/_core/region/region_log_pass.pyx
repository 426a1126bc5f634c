# Owns the order of pending records while a store has no room for some records (docs/decisions/0100). Records that make
# the log shorter pass the rest, and are written. The rest waits, in order, until the store has room.
from libc.stdint cimport uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcpy, memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_log cimport *
from pywan._core.c_region cimport *
from pywan._core.log.committer cimport (
    committer_made_durable, committer_note_passed, committer_wake_waiters)
from pywan._core.region.region_log cimport region_log_write_blocks
from pywan._core.region.region_log_move cimport region_log_sweep
from pywan._core.region.region_log_superseded cimport is_restamped
from pywan._core.region.region_state cimport passed_record, region_log


cdef struct waiting_records:
    wan_buffer smaller      # Records to write now.
    wan_buffer others       # Records that wait for room.
    wan_item_set newest     # The last pending record of each key.
    wan_buffer hashes       # Hashes of the keys that have a waiting record, in ascending order.
    wan_buffer passed       # The next `log.passed`: a passed_record each.
    wan_buffer left         # Their numbers.


cdef inline uint64_t hash_of(const wan_logged *record) noexcept nogil:
    return wan_key_hash(wan_logged_key(record), record.key_length, record.key_form)


cdef inline bint is_smaller(const wan_logged *record) noexcept nogil:
    """Whether the record makes the log shorter, or at least not longer for long."""
    return (record.operation == WAN_DESTROY
            or record.kinds & (WAN_LOGGED_FORGET | WAN_LOGGED_INVALID | WAN_LOGGED_MARK | WAN_LOGGED_SMALLER) != 0)


cdef wan_status gather_pending(region_log *log, uint64_t *given) noexcept nogil:
    """Joins the records that earlier rounds took and did not write with the records that became pending since, and
    notes the numbers and keys of all records. `given`: how many records were given up to here."""
    cdef wan_buffer *taken = &log.records.taken
    cdef wan_buffer *pending = &log.records.pending
    cdef const wan_logged *record
    cdef passed_record noted
    # The numbers of records that were taken earlier are noted already, if later records passed them. The rest has
    # consecutive numbers.
    cdef uint64_t fresh = taken.used if log.passed.used else log.written, at = fresh, count = 0
    cdef wan_status status
    while at < taken.used:
        count += 1
        at += wan_logged_length(<const wan_logged *>(taken.bytes + at))
    wan_lock_take(&log.lock)
    count += pending.count
    status = wan_buffer_reserve(&log.passed, count * sizeof(noted))
    if status == WAN_OK:
        status = wan_buffer_reserve(taken, pending.used)
    if status == WAN_OK:
        wan_buffer_put(taken, pending.bytes, pending.used)
        wan_buffer_empty(pending)
        given[0] = log.committer.tried = log.committer.given
    wan_lock_release(&log.lock)
    if status != WAN_OK:
        return status
    noted.number = given[0] - count
    at = fresh
    while at < taken.used:
        record = <const wan_logged *>(taken.bytes + at)
        noted.number += 1
        noted.hash = hash_of(record)
        wan_buffer_put(&log.passed, &noted, sizeof(noted))
        at += wan_logged_length(record)
    return WAN_OK


cdef wan_status add_smaller(region_log *log, waiting_records *found, const wan_logged *record,
                            bint is_last) noexcept nogil:
    """Adds a record to the records to write now. If a later record of the key is written behind the record, the value
    is not needed. Recovery needs the rest of the record only if a record replaced a later version."""
    cdef wan_logged head
    cdef uint64_t length
    cdef wan_status status
    if is_last or is_smaller(record):
        return wan_buffer_add(&found.smaller, record, wan_logged_length(record))
    if not is_restamped(log, record):
        return WAN_OK
    head = record[0]
    head.operation, head.value_length, head.value_form = WAN_DESTROY, 0, WAN_FORM_NONE
    length = wan_logged_size(head.key_length, 0)
    status = wan_buffer_reserve(&found.smaller, length)
    if status == WAN_OK:
        wan_logged_write(found.smaller.bytes + found.smaller.used, length, head, wan_logged_key(record),
                         wan_logged_key(record))       # No bytes of a value.
        found.smaller.used += length
        found.smaller.count += 1
    return status


cdef wan_status divide(region_log *log, waiting_records *found) noexcept nogil:
    """Divides the records into records to write now and records that wait. The records of a key stay in order. A
    waiting record is the last record of its key. Earlier records of the key that would wait too are left out, because
    the last record replaces them. But if a record replaced a later version, all records of the key wait."""
    cdef const wan_buffer *taken = &log.records.taken
    cdef const wan_logged *record
    cdef const wan_logged *last
    cdef uint64_t *slot
    cdef uint64_t at = log.written
    cdef wan_status status = WAN_OK
    while at < taken.used and status == WAN_OK:
        record = <const wan_logged *>(taken.bytes + at)
        if not record.kinds & WAN_LOGGED_MARK:
            status = wan_item_set_find(&found.newest, taken, record, &slot)
            if status == WAN_OK:
                wan_item_set_choose(&found.newest, slot, at)
        at += wan_logged_length(record)
    at = log.written
    while at < taken.used and status == WAN_OK:
        record = last = <const wan_logged *>(taken.bytes + at)
        if not record.kinds & WAN_LOGGED_MARK:
            status = wan_item_set_find(&found.newest, taken, record, &slot)
            if status != WAN_OK:
                break
            last = <const wan_logged *>(taken.bytes + slot[0] - 1)
        if is_smaller(last):
            status = add_smaller(log, found, record, record == last)
        elif record == last or is_restamped(log, record):
            status = wan_buffer_add(&found.others, record, wan_logged_length(record))
        elif is_smaller(record):
            status = wan_buffer_add(&found.smaller, record, wan_logged_length(record))
        at += wan_logged_length(record)
    return status


cdef int by_value(const void *one, const void *other) noexcept nogil:
    cdef uint64_t first = (<const uint64_t *>one)[0], second = (<const uint64_t *>other)[0]
    return (first > second) - (first < second)


cdef bint has_hash(const wan_buffer *hashes, uint64_t hash) noexcept nogil:
    cdef const uint64_t *items = <const uint64_t *>hashes.bytes
    cdef uint64_t low = 0, high = hashes.used // sizeof(uint64_t), count = high, middle
    while low < high:
        middle = (low + high) // 2
        if items[middle] < hash:
            low = middle + 1
        else:
            high = middle
    return low < count and items[low] == hash


cdef wan_status add_hashes(wan_buffer *hashes, const wan_buffer *records, uint64_t at) noexcept nogil:
    """Adds the hashes of the keys of the records from the byte `at` on."""
    cdef const wan_logged *record
    cdef uint64_t hash
    cdef wan_status status = WAN_OK
    while at < records.used and status == WAN_OK:
        record = <const wan_logged *>(records.bytes + at)
        hash = hash_of(record)
        status = wan_buffer_add(hashes, &hash, sizeof(hash))
        at += wan_logged_length(record)
    return status


cdef wan_status note_left(region_log *log, waiting_records *found, uint64_t written) noexcept nogil:
    """Finds the numbers of the records that are not on the disk. The key of a missing record has a waiting record, or a
    record of `found.smaller` from the byte `written` on."""
    cdef const passed_record *passed = <const passed_record *>log.passed.bytes
    cdef uint64_t n
    cdef wan_status status = add_hashes(&found.hashes, &found.smaller, written)
    if status == WAN_OK:
        status = add_hashes(&found.hashes, &found.others, 0)
    if status == WAN_OK and found.hashes.used:
        qsort(found.hashes.bytes, found.hashes.used // sizeof(uint64_t), sizeof(uint64_t), by_value)
    for n in range(log.passed.used // sizeof(passed_record)):
        if status == WAN_OK and has_hash(&found.hashes, passed[n].hash):
            status = wan_buffer_add(&found.passed, &passed[n], sizeof(passed_record))
            if status == WAN_OK:
                status = wan_buffer_add(&found.left, &passed[n].number, sizeof(uint64_t))
    return status


cdef wan_status keep_waiting(region_log *log, waiting_records *found, uint64_t written) noexcept nogil:
    """Makes the unwritten records the beginning of the next round."""
    cdef wan_buffer rest
    cdef wan_status status
    memset(&rest, 0, sizeof(rest))
    status = wan_buffer_reserve(&rest, found.smaller.used - written + found.others.used + 1)
    if status != WAN_OK:
        return status
    wan_buffer_put(&rest, found.smaller.bytes + written, found.smaller.used - written)
    wan_buffer_put(&rest, found.others.bytes, found.others.used)
    wan_buffer_close(&log.records.taken)
    log.records.taken, log.written = rest, 0
    wan_buffer_close(&log.passed)
    log.passed = found.passed
    memset(&found.passed, 0, sizeof(wan_buffer))
    return WAN_OK


cdef wan_status write_smaller(region_log *log, wan_buffer *records, uint64_t *written) noexcept nogil:
    """Writes and syncs records that make the log shorter. The records may use the reserve of the store, except a part:
    moving records out of old segments needs the rest."""
    cdef wan_status status, synced
    if log.moving.written < log.moving.records.used:    # Moved records come first, all or none.
        log.moving.segments = 0
    wan_log_allow_reserve(&log.committer.log, True)
    status = region_log_write_blocks(log, WAN_PART_RECORDS, records, written)
    synced = wan_log_sync(&log.committer.log)
    wan_log_allow_reserve(&log.committer.log, False)
    return synced if status == WAN_OK else status


cdef wan_status region_log_pass(region_log *log) noexcept nogil:
    """Writes the pending records that make the log shorter, in a store without room for the rest. WAN_OK: no record
    waits any more. WAN_FULL: records wait for room, and the next round tries the write again. The caller has the
    committer's role."""
    cdef waiting_records found
    cdef uint64_t given = 0, written = 0
    cdef char detail[WAN_DETAIL_BYTES]
    cdef wan_status status, kept
    memcpy(detail, wan_detail, WAN_DETAIL_BYTES)      # The reason for the lack of room.
    memset(&found, 0, sizeof(found))
    found.newest.key_of = wan_logged_item_key
    status = gather_pending(log, &given)
    if status == WAN_OK:
        status = divide(log, &found)
    if status == WAN_OK and found.smaller.used:
        status = write_smaller(log, &found.smaller, &written)
        if status == WAN_FULL:
            status = region_log_sweep(log)
            if status == WAN_OK and log.records.taken.used:
                status = write_smaller(log, &found.smaller, &written)
            elif status == WAN_OK:          # The sweep made room for all records, and wrote them.
                free_waiting(&found)
                return WAN_OK
    kept = note_left(log, &found, written)
    if kept == WAN_OK:
        kept = keep_waiting(log, &found, written)
    if kept == WAN_OK:
        wan_lock_take(&log.lock)
        if found.left.used:
            committer_note_passed(&log.committer, given, &found.left)
        else:
            committer_made_durable(&log.committer, given)
        wan_lock_release(&log.lock)
        committer_wake_waiters(&log.committer)
    if status == WAN_OK:
        status = kept
    if status == WAN_OK and found.others.used:
        wan_note(WAN_FULL, "%s", <const char *>detail)
        status = WAN_FULL
    free_waiting(&found)
    return status


cdef void free_waiting(waiting_records *found) noexcept nogil:
    wan_buffer_close(&found.smaller)
    wan_buffer_close(&found.others)
    wan_buffer_close(&found.hashes)
    wan_buffer_close(&found.passed)
    wan_buffer_close(&found.left)
    wan_item_set_empty(&found.newest)
