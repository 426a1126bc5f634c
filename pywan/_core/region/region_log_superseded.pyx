# Owns the choice of the old versions that are kept while a region's log is shortened near the limit of the store. The
# records that replaced an old version may be pending still, and a crash would lose the pending records.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_log cimport *
from pywan._core.c_region cimport *
from pywan._core.log.committer cimport committer_given
from pywan._core.region.put cimport set_bit
from pywan._core.region.region_state cimport UNWRITTEN_BITS, region_log


cdef inline bint is_newest(const wan_logged *record, const wan_logged *newest) noexcept nogil:
    """Whether `record` is `newest`, or says the same of its key's last version. A record of a removal on this member is
    never kept."""
    return not (record.kinds | newest.kinds) & WAN_LOGGED_FORGET and order_in_log(record, newest) == 0


cdef inline int order_in_log(const wan_logged *record, const wan_logged *other) noexcept nogil:
    """The order of the two versions: below 0, 0 or above 0."""
    return wan_version_order(record.stamp, record.stamp_site, other.stamp, other.stamp_site)


cdef inline bint takes_place_in_log(const wan_logged *record, const wan_logged *older) noexcept nogil:
    """Whether recovery lets `record` win against `older`. The record `older` was written first and may be the later
    version."""
    return record.kinds & WAN_LOGGED_RESTAMPED != 0 and record.other_stamp == older.stamp


cdef inline bint replaces_in_log(const wan_logged *record, const wan_logged *older) noexcept nogil:
    """Whether `record` wins against a record of the same key that was written first. A removal or invalidation on this
    member only stands behind the record of the removed or invalidated version."""
    cdef int order = order_in_log(record, older)
    if takes_place_in_log(record, older):
        return True
    if order == 0 and not (record.kinds | older.kinds) & (WAN_LOGGED_FORGET | WAN_LOGGED_INVALID):
        order = wan_logged_order(record, older)
    return order >= 0


cdef inline uint64_t unwritten_bit(const wan_logged *record) noexcept nogil:
    """The bit of the record's key in `keys` and `restamped`."""
    return wan_key_hash(wan_logged_key(record), record.key_length, record.key_form) >> (64 - UNWRITTEN_BITS)


cdef inline bint is_unwritten(const region_log *log, const wan_logged *record) noexcept nogil:
    """Whether the record's key had a pending record when the bits were set. A different key with the same bit gives
    true, too."""
    cdef uint64_t bit = unwritten_bit(record)
    return log.unwritten.keys[bit >> 6] >> (bit & 63) & 1


cdef bint is_restamped(region_log *log, const wan_logged *record) noexcept nogil:
    """Whether a record of this key replaced a later version. A different key with the same bit gives true, too."""
    cdef uint64_t bit = unwritten_bit(record), bits
    wan_lock_take(&log.lock)
    bits = log.unwritten.restamped[bit >> 6]
    wan_lock_release(&log.lock)
    return bits >> (bit & 63) & 1


cdef void region_log_set_bits(uint64_t *bits, const wan_buffer *records, uint64_t at, uint8_t flag) noexcept nogil:
    """Sets the bits of the records from `at` on that have the flag. If the flag is 0, sets the bits of all records from
    `at` on."""
    cdef const wan_logged *record
    while at < records.used:
        record = <const wan_logged *>(records.bytes + at)
        if record.kinds & flag == flag:
            set_bit(bits, unwritten_bit(record))
        at += wan_logged_length(record)


cdef void region_log_note_unwritten(region_log *log) noexcept nogil:
    """Sets the bits of the keys that have pending records now."""
    memset(log.unwritten.keys, 0, sizeof(log.unwritten.keys))
    wan_lock_take(&log.lock)
    region_log_set_bits(log.unwritten.keys, &log.records.pending, 0, 0)
    wan_lock_release(&log.lock)
    region_log_set_bits(log.unwritten.keys, &log.records.taken, log.written, 0)


cdef void region_log_note_restamped(region_log *log) noexcept nogil:
    """Sets the bits of the pending records. The caller looks through the log for the rest."""
    wan_lock_take(&log.lock)
    memset(log.unwritten.restamped, 0, sizeof(log.unwritten.restamped))
    region_log_set_bits(log.unwritten.restamped, &log.records.pending, 0, WAN_LOGGED_RESTAMPED)
    region_log_set_bits(log.unwritten.restamped, &log.records.taken, 0, WAN_LOGGED_RESTAMPED)
    wan_lock_release(&log.lock)


cdef wan_status region_log_newest_of(region_log *log, const wan_logged *record,
                                     const wan_logged **newest) noexcept nogil:
    """Gives the newest record of the record's key at the last look. NULL: the key had no pending record then."""
    cdef uint64_t *slot
    cdef wan_status status = wan_item_set_find(&log.unwritten.of_newest, &log.unwritten.newest, record, &slot)
    newest[0] = NULL
    if status == WAN_OK and slot[0]:
        newest[0] = <const wan_logged *>(log.unwritten.newest.bytes + slot[0] - 1)
    return status


cdef wan_status region_log_note_newest(void *owner, uint32_t index, uint64_t commit, const wan_part_head *head,
                                       const uint8_t *data) noexcept nogil:
    """Reads one part of a block, and notes the newest record of each key that has a pending record."""
    cdef region_log *log = <region_log *>owner
    cdef const wan_logged *record
    cdef wan_logged *other
    cdef uint64_t *slot
    cdef uint64_t at = 0, length
    cdef wan_status status = WAN_OK
    while at < head.length and status == WAN_OK:
        record = <const wan_logged *>(data + at)
        at += wan_logged_length(record)
        if record.kinds & WAN_LOGGED_MARK:
            continue
        if record.kinds & WAN_LOGGED_RESTAMPED:
            wan_lock_take(&log.lock)
            set_bit(log.unwritten.restamped, unwritten_bit(record))
            wan_lock_release(&log.lock)
        if not is_unwritten(log, record):
            continue
        length = wan_logged_size(record.key_length, 0)
        status = wan_item_set_find(&log.unwritten.of_newest, &log.unwritten.newest, record, &slot)
        if status == WAN_OK and slot[0] == 0:
            status = wan_buffer_reserve(&log.unwritten.newest, length)
            if status == WAN_OK:
                wan_item_set_choose(&log.unwritten.of_newest, slot, log.unwritten.newest.used)
                wan_buffer_put(&log.unwritten.newest, record, length)
        elif status == WAN_OK:
            other = <wan_logged *>(log.unwritten.newest.bytes + slot[0] - 1)
            if other.kinds & WAN_LOGGED_FORGET or order_in_log(record, other) >= 0 or takes_place_in_log(record, other):
                memcpy(other, record, sizeof(wan_logged))
    return status


cdef wan_status region_log_find_newest(region_log *log) noexcept nogil:
    """Looks through the whole log for the newest record of each key that has a pending record. The look happens once in
    a sweep, and again where a record replaces a later version. All other later records stand behind the segments that
    this sweep drops."""
    cdef wan_log_reader reader
    cdef wan_status status = WAN_OK
    cdef uint32_t n
    cdef uint64_t given = committer_given(&log.committer)
    memset(&reader, 0, sizeof(reader))
    reader.owner = log
    reader.part = region_log_note_newest
    wan_buffer_empty(&log.unwritten.newest)
    wan_item_set_empty(&log.unwritten.of_newest)
    region_log_note_restamped(log)
    for n in range(log.committer.log.writing + 1):
        if status == WAN_OK:
            status = wan_log_read_segment(&log.committer.log, n, &reader)
    if status == WAN_OK:
        log.unwritten.looked, log.unwritten.looked_written = given, log.written_count
    return status


cdef wan_status region_log_keep_superseded(region_log *log, const wan_buffer *superseded,
                                           wan_buffer *kept) noexcept nogil:
    """Adds to `kept` the records of `superseded`, in the oldest segments, that a crash could bring back: for each key
    with a pending record, the newest record on the disk. The caller has looked at the table first, so every version
    that the caller saw has been given to the log by now. The price of keeping these records: a crash may bring back a
    key whose removal on this member only stands in a later segment."""
    cdef uint64_t at = 0
    cdef uint64_t *slot
    cdef wan_item_set chosen
    cdef const wan_logged *record
    cdef const wan_logged *other
    cdef wan_status status = WAN_OK
    memset(&chosen, 0, sizeof(chosen))
    chosen.key_of = wan_logged_item_key
    region_log_note_unwritten(log)
    if log.unwritten.looked == 0:
        status = region_log_find_newest(log)
    while at < superseded.used and status == WAN_OK:
        record = <const wan_logged *>(superseded.bytes + at)
        if is_unwritten(log, record):
            status = region_log_newest_of(log, record, &other)
            # The replacing record may be in a later segment, or may have been written since. The replaced record must
            # not be written behind the replacing record.
            if (status == WAN_OK and is_restamped(log, record)
                    and (other == NULL or log.unwritten.looked_written != log.written_count)):
                status = region_log_find_newest(log)
                if status == WAN_OK:
                    status = region_log_newest_of(log, record, &other)
            # If the key had no pending record at the last look, we keep the newest record in these segments.
            if status == WAN_OK and (other == NULL or is_newest(record, other)):
                status = wan_item_set_find(&chosen, superseded, record, &slot)
                if status == WAN_OK and (
                        slot[0] == 0 or replaces_in_log(record, <const wan_logged *>(superseded.bytes + slot[0] - 1))):
                    wan_item_set_choose(&chosen, slot, at)
        at += wan_logged_length(record)
    at = 0
    # We keep the order of the log: the set's own order is different in each process.
    while at < superseded.used and chosen.count and status == WAN_OK:
        record = <const wan_logged *>(superseded.bytes + at)
        status = wan_item_set_find(&chosen, superseded, record, &slot)
        if status == WAN_OK and slot[0] == at + 1:
            status = wan_buffer_add(kept, record, wan_logged_length(record))
        at += wan_logged_length(record)
    wan_item_set_empty(&chosen)
    return status


cdef bint region_log_may_keep_less(region_log *log) noexcept nogil:
    """Whether more records became pending since the last look, so that a further look may find less to keep."""
    return log.unwritten.looked != 0 and log.unwritten.looked != committer_given(&log.committer)


cdef void region_log_forget_look(region_log *log) noexcept nogil:
    """A sweep begins. The first call that has a record to keep looks through the log again."""
    log.unwritten.looked = 0


cdef void region_log_end_look(region_log *log) noexcept nogil:
    """A sweep ends. Only the counts of the last look stay, until the next sweep."""
    wan_buffer_close(&log.unwritten.newest)
    wan_item_set_empty(&log.unwritten.of_newest)
