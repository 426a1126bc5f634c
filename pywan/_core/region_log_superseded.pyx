# Owns what is kept of old versions while a region's log is shortened near the limit of the store. What took their place
# may be staged only, and a crash would lose it.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_log cimport *
from pywan._core.c_region cimport *
from pywan._core.committer cimport committer_given
from pywan._core.put cimport set_bit
from pywan._core.region_state cimport UNWRITTEN_BITS, region_log


cdef inline bint is_newest(const wan_logged *record, const wan_logged *newest) noexcept nogil:
    """Whether `record` is the one that was found, or says the same of its key's last version. Nothing is kept of what
    was taken out on this member."""
    return not (record.kinds | newest.kinds) & WAN_LOGGED_FORGET and order_in_log(record, newest) == 0


cdef inline int order_in_log(const wan_logged *record, const wan_logged *other) noexcept nogil:
    return wan_version_order(record.stamp, record.stamp_site, other.stamp, other.stamp_site)


cdef inline bint takes_place_in_log(const wan_logged *record, const wan_logged *older) noexcept nogil:
    """Whether recovery lets `record` win against `older`, which was written first and may be the later version."""
    return record.kinds & WAN_LOGGED_RESTAMPED != 0 and record.other_stamp == older.stamp


cdef inline bint replaces_in_log(const wan_logged *record, const wan_logged *older) noexcept nogil:
    """Whether `record` wins against another record of its key that was written first. A record of what was done on this
    member only is behind what it was done to."""
    cdef int order = order_in_log(record, older)
    if takes_place_in_log(record, older):
        return True
    if order == 0 and not (record.kinds | older.kinds) & (WAN_LOGGED_FORGET | WAN_LOGGED_INVALID):
        order = wan_logged_order(record, older)
    return order >= 0


cdef inline uint64_t unwritten_bit(const wan_logged *record) noexcept nogil:
    return wan_key_hash(wan_logged_key(record), record.key_length, record.key_form) >> (64 - UNWRITTEN_BITS)


cdef inline bint is_unwritten(const region_log *log, const wan_logged *record) noexcept nogil:
    cdef uint64_t bit = unwritten_bit(record)
    return log.unwritten.keys[bit >> 6] >> (bit & 63) & 1


cdef inline bint is_restamped(region_log *log, const wan_logged *record) noexcept nogil:
    cdef uint64_t bit = unwritten_bit(record), bits
    wan_lock_take(&log.lock)
    bits = log.unwritten.restamped[bit >> 6]
    wan_lock_release(&log.lock)
    return bits >> (bit & 63) & 1


cdef void region_log_mark(uint64_t *bits, const wan_buffer *stage, uint64_t at, uint8_t flag) noexcept nogil:
    """Sets the bits of the records from `at` on that have the flag; 0: of all."""
    cdef const wan_logged *record
    while at < stage.used:
        record = <const wan_logged *>(stage.bytes + at)
        if record.kinds & flag == flag:
            set_bit(bits, unwritten_bit(record))
        at += wan_logged_length(record)


cdef void region_log_mark_unwritten(region_log *log) noexcept nogil:
    memset(log.unwritten.keys, 0, sizeof(log.unwritten.keys))
    wan_lock_take(&log.lock)
    region_log_mark(log.unwritten.keys, &log.records.pending, 0, 0)
    wan_lock_release(&log.lock)
    region_log_mark(log.unwritten.keys, &log.records.taken, log.written, 0)


cdef void region_log_mark_restamped(region_log *log) noexcept nogil:
    """Notes the records that are staged. The caller looks through the log for the others."""
    wan_lock_take(&log.lock)
    memset(log.unwritten.restamped, 0, sizeof(log.unwritten.restamped))
    region_log_mark(log.unwritten.restamped, &log.records.pending, 0, WAN_LOGGED_RESTAMPED)
    region_log_mark(log.unwritten.restamped, &log.records.taken, 0, WAN_LOGGED_RESTAMPED)
    wan_lock_release(&log.lock)


cdef wan_status region_log_newest_of(region_log *log, const wan_logged *record,
                                     const wan_logged **newest) noexcept nogil:
    """*newest: of the record's key, as of the last look. NULL: nothing of that key was unwritten then."""
    cdef uint64_t *slot
    cdef wan_status status = wan_item_set_find(&log.unwritten.of_newest, &log.unwritten.newest, record, &slot)
    newest[0] = <const wan_logged *>(log.unwritten.newest.bytes + slot[0] - 1) if status == WAN_OK and slot[0] else NULL
    return status


cdef wan_status region_log_note_newest(void *owner, uint32_t index, uint64_t commit, const wan_part_head *head,
                                       const uint8_t *data) noexcept nogil:
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
    """Looks through the whole log, once in a time around, and again where something takes the place of a later version.
    What else is written later is behind the segments that this time will drop."""
    cdef wan_log_reader reader
    cdef wan_status status = WAN_OK
    cdef uint32_t n
    cdef uint64_t staged = committer_given(&log.committer)
    memset(&reader, 0, sizeof(reader))
    reader.owner = log
    reader.part = region_log_note_newest
    wan_buffer_empty(&log.unwritten.newest)
    wan_item_set_empty(&log.unwritten.of_newest)
    region_log_mark_restamped(log)
    for n in range(log.committer.log.writing + 1):
        if status == WAN_OK:
            status = wan_log_read_segment(&log.committer.log, n, &reader)
    if status == WAN_OK:
        log.unwritten.looked, log.unwritten.looked_durable = staged, log.committer.durable
    return status


cdef wan_status region_log_keep_superseded(region_log *log, const wan_buffer *superseded,
                                           wan_buffer *kept) noexcept nogil:
    """Of the records `superseded` in the oldest segments those are `kept` that a crash could bring back: of each key
    that is staged and not written the newest record on the disk. This comes behind the look at the table: whatever that
    found was staged by now. The price: such a crash may bring back what was taken out on this member only, in a later
    segment."""
    cdef uint64_t at = 0
    cdef uint64_t *slot
    cdef wan_item_set chosen
    cdef const wan_logged *record
    cdef const wan_logged *other
    cdef wan_status status = WAN_OK
    memset(&chosen, 0, sizeof(chosen))
    chosen.key_of = wan_logged_item_key
    region_log_mark_unwritten(log)
    if log.unwritten.looked == 0:
        status = region_log_find_newest(log)
    while at < superseded.used and status == WAN_OK:
        record = <const wan_logged *>(superseded.bytes + at)
        if is_unwritten(log, record):
            status = region_log_newest_of(log, record, &other)
            # What took its place may be in a later segment, or written since: this must not come behind it.
            if (status == WAN_OK and is_restamped(log, record)
                    and (other == NULL or log.unwritten.looked_durable != log.committer.durable)):
                status = region_log_find_newest(log)
                if status == WAN_OK:
                    status = region_log_newest_of(log, record, &other)
            # Of a key that was staged later, the newest in these segments.
            if status == WAN_OK and (other == NULL or is_newest(record, other)):
                status = wan_item_set_find(&chosen, superseded, record, &slot)
                if status == WAN_OK and (
                        slot[0] == 0 or replaces_in_log(record, <const wan_logged *>(superseded.bytes + slot[0] - 1))):
                    wan_item_set_choose(&chosen, slot, at)
        at += wan_logged_length(record)
    at = 0
    # In the order of the log: the set's own order differs by process.
    while at < superseded.used and chosen.count and status == WAN_OK:
        record = <const wan_logged *>(superseded.bytes + at)
        status = wan_item_set_find(&chosen, superseded, record, &slot)
        if status == WAN_OK and slot[0] == at + 1:
            status = wan_buffer_add(kept, record, wan_logged_length(record))
        at += wan_logged_length(record)
    wan_item_set_empty(&chosen)
    return status


cdef bint region_log_may_keep_less(region_log *log) noexcept nogil:
    """More was staged since the last look, so another one may find less that has to be kept."""
    return log.unwritten.looked != 0 and log.unwritten.looked != committer_given(&log.committer)


cdef void region_log_forget_look(region_log *log) noexcept nogil:
    """A time around begins: the first that keeps something looks again."""
    log.unwritten.looked = 0


cdef void region_log_end_look(region_log *log) noexcept nogil:
    """The time around is done. When there was a look is remembered until the next one."""
    wan_buffer_close(&log.unwritten.newest)
    wan_item_set_empty(&log.unwritten.of_newest)
