# Owns the log of a persistent region: each change is a record with its version, appended as it is applied (put.pxd); recovery
# applies them again under the same rule (the later version wins), so neither their order nor seeing one twice matters; but a removal
# on this member only takes out what is before it, up to its version, and a change that took the place of a later
# version (a resolver let it, or the clock was repaired) names that one and takes its place again. The log is
# shortened from its oldest segment: what is still the current version is appended again, the rest is history.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_log cimport *
from pywan._core.c_region cimport *
from pywan._core.disk_log cimport (
    FOR_EVENTS, LOG_SEGMENTS_KEPT, MOVED_SEGMENTS_MAX, WAIT_DONE, WAIT_GOES_ON, WAIT_IN_VAIN, WAIT_SLICE_US,
    disk_wait, keep_damage, lost_patience, rest_under_lock, show_log, swap_stages)
from pywan._core.put cimport change_from_record, set_bit
from pywan._core.region_state cimport UNWRITTEN_BITS, region_log
from pywan._core.region_walk cimport region_lower_tombstones


cdef enum:
    NEAR_LIMIT_SEGMENTS = 8     # With less room than for these, what lives is moved together before anything else is written:
    NEAR_LIMIT_MOVED = 16       # out of so many segments a commit, so that its price stays a multiple of what is written.


cdef disk_wait region_log_begin_wait(region_log *log, uint64_t limit_us) noexcept nogil:
    cdef disk_wait wait
    wait.what, wait.failing_since_us, wait.deadline_us = FOR_EVENTS, 0, wan_monotonic_us() + limit_us
    wan_lock_take(&log.lock)
    wait.wanted = log.staged
    wan_lock_release(&log.lock)
    return wait


cdef int region_log_wait(region_log *log, disk_wait *wait) noexcept nogil:
    """Until all that was staged is on the disk. WAIT_IN_VAIN after the deadline, or when the disk has taken nothing for long."""
    cdef uint64_t now = wan_monotonic_us(), slice_end = now + WAIT_SLICE_US
    cdef int failing
    cdef uint32_t seen
    cdef bint done
    while True:
        seen = __atomic_load_n(&log.epoch, __ATOMIC_ACQUIRE)
        wan_lock_take(&log.lock)
        done = log.durable >= wait.wanted
        failing = log.view.failing
        wan_lock_release(&log.lock)
        now = wan_monotonic_us()
        if done:
            return WAIT_DONE
        if (now >= wait.deadline_us or wan_flag_read(&log.ended) or failing == WAN_BROKEN
                or lost_patience(failing, &wait.failing_since_us, now)):
            return WAIT_IN_VAIN
        if now >= slice_end:
            return WAIT_GOES_ON
        wan_wait_change(&log.epoch, seen, <uint32_t>(WAIT_SLICE_US // 1000))


cdef wan_status region_log_write(region_log *log) noexcept nogil:
    """What is staged gets onto the disk."""
    cdef uint64_t staged
    cdef wan_status status
    if log.moved_written < log.moved.used:      # All of what is moved is before what happened since, or has to be read again.
        log.moving = 0
    wan_lock_take(&log.lock)
    if log.taken.used == 0:
        swap_stages(&log.records, &log.taken)
    staged = log.staged - log.records.count
    wan_lock_release(&log.lock)
    status = region_log_write_blocks(log, WAN_PART_RECORDS, &log.taken, &log.written)
    if status != WAN_OK:
        return status
    log.written = 0
    log.has_written = log.has_written or log.taken.used != 0
    cdef uint64_t used = log.taken.used
    wan_buffer_empty(&log.taken)
    wan_buffer_rest(&log.taken, &log.use, used, wan_monotonic_us())
    wan_lock_take(&log.lock)
    log.durable = staged
    show_log(&log.view, &log.log, WAN_OK)
    wan_lock_release(&log.lock)
    wan_signal_change(&log.epoch)
    return WAN_OK


cdef wan_status region_log_write_blocks(region_log *log, uint32_t kind, const wan_buffer *stage, uint64_t *written) noexcept nogil:
    """From `written` on, which then says how far it came. In blocks that fit into an ordinary segment: the log is shortened by segments, so
    they had better be small; smaller where every segment that cannot be filled counts."""
    cdef wan_part part
    cdef uint32_t segment
    cdef uint64_t length, block_bytes = wan_log_block_bytes(&log.log) // (4 if region_log_is_limited(log) else 1)
    cdef wan_status status
    while written[0] < stage.used:
        part.head.kind, part.head.count, part.head.length = kind, 0, 0
        part.first, part.first_length = NULL, 0
        part.bytes = stage.bytes + written[0]
        while written[0] + part.head.length < stage.used:
            length = wan_logged_length(<const wan_logged *>(part.bytes + part.head.length))
            if part.head.count and part.head.length + length > block_bytes:
                break
            part.head.length += length
            part.head.count += 1
        status = wan_log_make_room(&log.log, wan_parts_length(&part, 1), NULL, 0)
        if status == WAN_OK:
            status = wan_log_commit(&log.log, &part, 1, &segment)
        if status != WAN_OK:
            return status
        written[0] += part.head.length
    return WAN_OK


cdef inline bint region_log_is_limited(const region_log *log) noexcept nogil:
    return wan_log_room(&log.log) != NEVER


cdef uint64_t region_log_live_bytes(const region_log *log) noexcept nogil:
    cdef uint64_t total = 0
    for n in range(log.region.table.shard_count):
        total += wan_read(&log.region.table.shards[n].bytes) + wan_table_shrunk_log_bytes(&log.region.table.shards[n])
    return total


cdef inline bint region_log_has_room(const region_log *log, uint32_t segments) noexcept nogil:
    return wan_log_room(&log.log) >= segments * wan_log_segment_bytes(&log.log)


cdef wan_status region_log_commit(region_log *log) noexcept nogil:
    cdef bint late = log.taken.used != 0        # An attempt that failed had taken that; what was staged since comes behind it.
    cdef wan_status status = region_log_make_way(log) if region_log_wants_way(log) else WAN_OK      # First, while there is room.
    if status == WAN_OK:
        status = region_log_write(log)
    if status == WAN_FULL and region_log_may_shrink(log):           # Then however little there is to be had.
        status = region_log_make_way(log)
        if status == WAN_OK:
            status = region_log_write(log)
    if status == WAN_OK and late:
        status = region_log_write(log)
    if status == WAN_OK:
        region_log_shorten(log)         # Tried again after the next commit; what is durable is not less so.
    if log.moving == 0:
        wan_buffer_close(&log.moved)
        wan_buffer_close(&log.superseded)
        log.moved_written = 0
    return status


cdef void region_log_rest(region_log *log) noexcept nogil:
    """The committer's, while nothing is staged: what the stages took gets back."""
    cdef uint64_t now = wan_monotonic_us()
    wan_buffer_rest(&log.taken, &log.use, 0, now)
    rest_under_lock(&log.records, &log.use, &log.lock, now)


cdef wan_status region_log_drop_oldest(region_log *log, uint32_t most, bint alone) noexcept nogil:
    """Moves what lives out of the oldest segments, of up to `most`, and drops them. `alone`: without writing what is staged in between. Where
    it failed the next call goes on: a disk that fails again and again is not filled with copies."""
    cdef wan_status status = WAN_OK
    if log.moving == 0 or alone and not log.moves_alone:
        status = region_log_read_oldest(log, most, alone)
        if status == WAN_OK and alone:
            status = region_log_keep_superseded(log)
        if status != WAN_OK:
            log.moving = 0
    if status == WAN_OK:
        status = region_log_write_blocks(log, WAN_PART_MOVED, &log.moved, &log.moved_written)
    # What took a version's place meanwhile is on the disk before that version is gone; and behind what was moved: nothing that
    # was destroyed since may come back when the record of that is history.
    if status == WAN_OK and not log.moves_alone:
        status = region_log_write(log)
    if status == WAN_OK:
        status = wan_log_drop_first(&log.log, log.moving, NULL, 0)
    if status == WAN_OK:
        log.moving = 0
    return status


cdef wan_status region_log_read_oldest(region_log *log, uint32_t most, bint alone) noexcept nogil:
    """What lives in the oldest segments, of up to `most`, as long as that is not much."""
    cdef wan_log_reader reader
    cdef wan_status status = WAN_OK
    cdef uint32_t end = log.log.writing, n
    wan_buffer_empty(&log.moved)
    wan_buffer_empty(&log.superseded)
    log.moving = 0
    log.moved_written = 0
    log.moves_alone = alone
    memset(&reader, 0, sizeof(reader))
    reader.owner = log
    reader.part = region_log_move
    if not log.has_moved:       # A process that ended while it moved left its copies in the newest segments: they need no others.
        end = max(end, 2) - 1
        for n in range(end, log.log.writing + 1):
            if status == WAN_OK:
                status = wan_log_read_segment(&log.log, n, &reader)
        log.moved_written = log.moved.used
    while (status == WAN_OK and log.moving < most and log.moving < end
           and log.moved.used - log.moved_written < wan_log_segment_bytes(&log.log) // 2):
        status = wan_log_read_segment(&log.log, log.moving, &reader)
        log.moving += 1
    wan_item_set_empty(&log.of_moved)
    log.has_moved = log.has_moved or status == WAN_OK
    return status


cdef wan_status region_log_shorten(region_log *log) noexcept nogil:
    """While most of the log is history, and there is room to write."""
    cdef wan_status status = WAN_OK
    while (status == WAN_OK and log.log.writing >= LOG_SEGMENTS_KEPT and log.log.bytes > 3 * region_log_live_bytes(log)
           and region_log_has_room(log, NEAR_LIMIT_SEGMENTS + 2)):
        status = region_log_drop_oldest(log, MOVED_SEGMENTS_MAX, False)     # Several at once, so that more goes than comes in the meantime.
    return status


cdef bint region_log_staged_fits(region_log *log) noexcept nogil:
    """Beside what lives in the oldest segment, and leaves as much for the next one."""
    cdef uint64_t staged
    wan_lock_take(&log.lock)
    staged = log.records.used + log.taken.used - log.written
    wan_lock_release(&log.lock)
    return wan_log_room(&log.log) >= staged + 2 * wan_log_segment_bytes(&log.log)


cdef wan_status region_log_make_way(region_log *log) noexcept nogil:
    """Near the limit of the store, also where more than a third lives: once around, some of it a commit. What is staged is written here only if
    that leaves room for moving more."""
    cdef uint32_t moved = 0
    cdef wan_status status = WAN_OK
    if not wan_log_begin_way(&log.log):
        return WAN_OK
    if log.around == 0:
        log.around = log.log.segments[log.log.writing].number
        log.looked = 0
        log.has_written = False
    while (status == WAN_OK and moved < NEAR_LIMIT_MOVED and not region_log_has_room(log, NEAR_LIMIT_SEGMENTS)
           and log.log.segments[0].number < log.around):
        status = region_log_drop_oldest(log, 1, not region_log_staged_fits(log))
        moved += 1
    if log.log.segments[0].number >= log.around:
        log.around, log.settled = 0, log.log.bytes
        wan_buffer_close(&log.newest)
        wan_item_set_empty(&log.of_newest)
    wan_log_end_way(&log.log)
    return status


cdef inline bint region_log_may_shrink(region_log *log) noexcept nogil:
    """Near the limit: whether another time around could find less. Something was written since the last one began, or staged since it looked what to keep."""
    if log.log.count == 0 or region_log_has_room(log, NEAR_LIMIT_SEGMENTS):
        return False
    return log.around != 0 or log.has_written or log.looked != 0 and log.looked != region_log_staged(log)


cdef bint region_log_wants_way(region_log *log) noexcept nogil:
    """Whether others, or this log, could need what in it is history, and there may be some."""
    cdef uint64_t segment = wan_log_segment_bytes(&log.log)
    if not region_log_may_shrink(log):
        return False
    if log.around:
        return True
    # The last time around may have kept what was superseded by changes that have been written since.
    # In a small store a segment is a large part of it.
    cdef uint64_t most = min(max(segment, wan_log_record_bytes(&log.log) // 2), LOG_SEGMENTS_KEPT * segment)
    return log.log.bytes >= log.settled + max(log.settled // 8, most) or log.log.bytes > 3 * region_log_live_bytes(log) + 2 * segment


cdef uint64_t region_log_staged(region_log *log) noexcept nogil:
    cdef uint64_t staged
    wan_lock_take(&log.lock)
    staged = log.staged
    wan_lock_release(&log.lock)
    return staged


cdef wan_status region_log_keep_superseded(region_log *log) noexcept nogil:
    """Moves too, of each key that is staged and not written, the newest record on the disk, if it is in these segments: a crash could take what is to
    replace it. Behind the look at the table: whatever it found there was staged by now. The price: such a crash may bring back what was taken out on
    this member only, in a later segment."""
    cdef uint64_t at = 0
    cdef uint64_t *slot
    cdef wan_item_set chosen
    cdef const wan_logged *record
    cdef const wan_logged *other
    cdef wan_status status = WAN_OK
    memset(&chosen, 0, sizeof(chosen))
    chosen.key_of = wan_logged_item_key
    region_log_mark_unwritten(log)
    if log.looked == 0:
        status = region_log_find_newest(log)
    while at < log.superseded.used and status == WAN_OK:
        record = <const wan_logged *>(log.superseded.bytes + at)
        if is_unwritten(log, record):
            status = region_log_newest_of(log, record, &other)
            # What took its place may be in a later segment, or written since: this must not come behind it.
            if status == WAN_OK and is_restamped(log, record) and (other == NULL or log.looked_durable != log.durable):
                status = region_log_find_newest(log)
                if status == WAN_OK:
                    status = region_log_newest_of(log, record, &other)
            # Of a key that was staged later, the newest in these segments.
            if status == WAN_OK and (other == NULL or is_newest(record, other)):
                status = wan_item_set_find(&chosen, &log.superseded, record, &slot)
                if status == WAN_OK and (slot[0] == 0 or replaces_in_log(record, <const wan_logged *>(log.superseded.bytes + slot[0] - 1))):
                    wan_item_set_choose(&chosen, slot, at)
        at += wan_logged_length(record)
    at = 0
    while at < log.superseded.used and chosen.count and status == WAN_OK:     # In the order of the log: the set's own is another in each process.
        record = <const wan_logged *>(log.superseded.bytes + at)
        status = wan_item_set_find(&chosen, &log.superseded, record, &slot)
        if status == WAN_OK and slot[0] == at + 1:
            status = wan_buffer_add(&log.moved, record, wan_logged_length(record))
        at += wan_logged_length(record)
    wan_item_set_empty(&chosen)
    return status


cdef wan_status region_log_newest_of(region_log *log, const wan_logged *record,
                                     const wan_logged **newest) noexcept nogil:
    """Of the record's key, as of the last look. NULL: nothing of it was unwritten then."""
    cdef uint64_t *slot
    cdef wan_status status = wan_item_set_find(&log.of_newest, &log.newest, record, &slot)
    newest[0] = <const wan_logged *>(log.newest.bytes + slot[0] - 1) if status == WAN_OK and slot[0] else NULL
    return status


cdef wan_status region_log_find_newest(region_log *log) noexcept nogil:
    """Looks through the whole log, once in a time around, and again where something takes the place of a later version.
    What else is written later is behind the segments that this time will drop."""
    cdef wan_log_reader reader
    cdef wan_status status = WAN_OK
    cdef uint32_t n
    cdef uint64_t staged = region_log_staged(log)
    memset(&reader, 0, sizeof(reader))
    reader.owner = log
    reader.part = region_log_note_newest
    wan_buffer_empty(&log.newest)
    wan_item_set_empty(&log.of_newest)
    region_log_mark_restamped(log)
    for n in range(log.log.writing + 1):
        if status == WAN_OK:
            status = wan_log_read_segment(&log.log, n, &reader)
    if status == WAN_OK:
        log.looked, log.looked_durable = staged, log.durable
    return status


cdef wan_status region_log_note_newest(void *owner, uint32_t index, uint64_t commit, const wan_part_head *head, const uint8_t *data) noexcept nogil:
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
            set_bit(log.restamped, unwritten_bit(record))
            wan_lock_release(&log.lock)
        if not is_unwritten(log, record):
            continue
        length = wan_logged_size(record.key_length, 0)
        status = wan_item_set_find(&log.of_newest, &log.newest, record, &slot)
        if status == WAN_OK and slot[0] == 0:
            status = wan_buffer_reserve(&log.newest, length)
            if status == WAN_OK:
                wan_item_set_choose(&log.of_newest, slot, log.newest.used)
                wan_buffer_put(&log.newest, record, length)
        elif status == WAN_OK:
            other = <wan_logged *>(log.newest.bytes + slot[0] - 1)
            if other.kinds & WAN_LOGGED_FORGET or order_in_log(record, other) >= 0 or takes_place_in_log(record, other):
                memcpy(other, record, sizeof(wan_logged))
    return status


cdef inline bint is_newest(const wan_logged *record, const wan_logged *newest) noexcept nogil:
    """Whether `record` is the one that was found, or says the same of its key's last version. Of what was taken out on this member nothing is kept."""
    return not (record.kinds | newest.kinds) & WAN_LOGGED_FORGET and order_in_log(record, newest) == 0


cdef inline int order_in_log(const wan_logged *record, const wan_logged *other) noexcept nogil:
    return wan_version_order(record.stamp, record.stamp_site, other.stamp, other.stamp_site)


cdef inline bint takes_place_in_log(const wan_logged *record, const wan_logged *older) noexcept nogil:
    """Whether recovery lets `record` win against `older`, which was written first and may be the later version."""
    return record.kinds & WAN_LOGGED_RESTAMPED != 0 and record.other_stamp == older.stamp


cdef inline bint replaces_in_log(const wan_logged *record, const wan_logged *older) noexcept nogil:
    """Of two records of one key, of which `older` was written first. One that says what was done on this member only is behind what it was done to."""
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
    return log.unwritten[bit >> 6] >> (bit & 63) & 1


cdef inline bint is_restamped(region_log *log, const wan_logged *record) noexcept nogil:
    cdef uint64_t bit = unwritten_bit(record), bits
    wan_lock_take(&log.lock)
    bits = log.restamped[bit >> 6]
    wan_lock_release(&log.lock)
    return bits >> (bit & 63) & 1


cdef void region_log_mark_unwritten(region_log *log) noexcept nogil:
    memset(log.unwritten, 0, sizeof(log.unwritten))
    wan_lock_take(&log.lock)
    region_log_mark(log.unwritten, &log.records, 0, 0)
    wan_lock_release(&log.lock)
    region_log_mark(log.unwritten, &log.taken, log.written, 0)


cdef void region_log_mark_restamped(region_log *log) noexcept nogil:
    """Those that are staged; whoever calls looks through the log for the others."""
    wan_lock_take(&log.lock)
    memset(log.restamped, 0, sizeof(log.restamped))
    region_log_mark(log.restamped, &log.records, 0, WAN_LOGGED_RESTAMPED)
    region_log_mark(log.restamped, &log.taken, 0, WAN_LOGGED_RESTAMPED)
    wan_lock_release(&log.lock)


cdef bint region_log_keeps_marks(region_log *log, uint64_t stamp) noexcept nogil:
    """Whether what says which destroys are not remembered has to be moved with this stamp, though there is a newer one: that may be staged only."""
    cdef bint is_void = stamp > wan_read(&log.region.let_go), keeps
    wan_lock_take(&log.lock)
    keeps = log.moves_alone and not (is_void and log.durable >= log.reset_staged)
    wan_lock_release(&log.lock)
    return keeps


cdef void region_log_mark(uint64_t *bits, const wan_buffer *stage, uint64_t at, uint8_t flag) noexcept nogil:
    """The keys of the records from `at` on that have the flag; 0: of all."""
    cdef const wan_logged *record
    while at < stage.used:
        record = <const wan_logged *>(stage.bytes + at)
        if record.kinds & flag == flag:
            set_bit(bits, unwritten_bit(record))
        at += wan_logged_length(record)


cdef wan_status stage_once(wan_buffer *stage, wan_item_set *staged, const wan_logged *record) noexcept nogil:
    """Unless the set says that one of its key is there: where moving failed, or a crash ended it, the log has copies."""
    cdef uint64_t *slot
    cdef uint64_t at = stage.used
    cdef wan_status status = wan_item_set_find(staged, stage, record, &slot)
    if status == WAN_OK and slot[0] == 0:
        status = wan_buffer_add(stage, record, wan_logged_length(record))
        if status == WAN_OK:
            wan_item_set_choose(staged, slot, at)
    return status


cdef inline void change_from_logged(wan_change *c, const wan_logged *record, uint64_t hash) noexcept nogil:
    c.key, c.value = wan_logged_key(record), wan_logged_value(record)
    c.value_length, c.key_length = record.value_length, record.key_length
    c.key_form, c.value_form, c.operation = record.key_form, record.value_form, record.operation
    c.stamp_site, c.hash, c.stamp, c.absent_below = record.stamp_site, hash, record.stamp, 0
    c.flags = c.local = c.ask = c.keep = 0


cdef wan_status region_log_move(void *owner, uint32_t index, uint64_t commit, const wan_part_head *head, const uint8_t *data) noexcept nogil:
    cdef region_log *log = <region_log *>owner
    cdef const wan_logged *record
    cdef wan_shard *shard
    cdef wan_entry *entry
    cdef wan_change c
    cdef uint64_t at = 0
    cdef bint lives
    cdef wan_status status = WAN_OK
    while at < head.length and status == WAN_OK:
        record = <const wan_logged *>(data + at)
        at += wan_logged_length(record)
        change_from_logged(&c, record, wan_key_hash(wan_logged_key(record), record.key_length, record.key_form))
        if record.kinds & WAN_LOGGED_MARK:
            if record.kinds & WAN_LOGGED_FORGET:      # Stands where it is: behind it there are later stamps.
                continue
            # The newest of each kind; but all as long as a newer one may be staged only.
            if (region_log_keeps_marks(log, record.stamp) or record.stamp == wan_read(&log.region.mark)
                    or record.stamp == wan_read(&log.region.let_go)):
                status = wan_buffer_add(&log.moved, record, wan_logged_length(record))
            continue
        shard = wan_table_shard(&log.region.table, c.hash)
        wan_lock_take(&shard.lock)
        entry = wan_table_find(shard, c.hash, c.key, c.key_length, c.key_form)
        lives = (entry != NULL and not (record.kinds & WAN_LOGGED_FORGET) and wan_table_made_by(entry, &c)
                 and (entry.state == WAN_ENTRY_INVALID) == ((record.kinds & WAN_LOGGED_INVALID) != 0))
        if entry == NULL and record.operation == WAN_DESTROY and shard.shrunk != NULL and not record.kinds & WAN_LOGGED_FORGET:
            lives = wan_table_shrunk_stamp(shard, c.hash) == record.stamp
        wan_lock_release(&shard.lock)
        if lives:
            status = stage_once(&log.moved, &log.of_moved, record)
        elif log.moves_alone:
            status = wan_buffer_add(&log.superseded, record, wan_logged_length(record))
    return status


cdef wan_status region_log_recover(void *owner, uint32_t index, uint64_t commit, const wan_part_head *head, const uint8_t *data) noexcept nogil:
    cdef region_log *log = <region_log *>owner
    cdef const wan_logged *record
    cdef wan_change c
    cdef wan_shard *shard
    cdef wan_entry *entry
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
            at += wan_logged_length(record)         # Salvage takes what is behind it.
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
        change_from_logged(&c, record, wan_key_hash(wan_logged_key(record), record.key_length, record.key_form))
        shard = wan_table_shard(&log.region.table, c.hash)
        if record.kinds & WAN_LOGGED_FORGET:
            entry = wan_table_find(shard, c.hash, c.key, c.key_length, c.key_form)
            if entry != NULL and entry.stamp <= record.stamp:
                wan_table_forget(shard, c.hash, c.key, c.key_length, c.key_form)
            continue
        if record.kinds & WAN_LOGGED_RESTAMPED:
            entry = wan_table_find(shard, c.hash, c.key, c.key_length, c.key_form)
            if entry != NULL and entry.stamp == record.other_stamp:
                entry.stamp = 0
        if (wan_table_invalidate(shard, &c) if record.kinds & WAN_LOGGED_INVALID else wan_table_apply(shard, &c)) == WAN_OUT_OF_MEMORY:
            return WAN_NO_MEMORY
    return status


cdef void region_log_note_damaged(void *owner, const wan_damage *damage) noexcept nogil:
    keep_damage(&(<region_log *>owner).damages, damage)


cdef void region_log_loop(region_log *log) noexcept nogil:
    """The committer of a region: as `durable_loop`, without checkpoints."""
    cdef uint32_t seen
    cdef uint64_t staged, failing_since = 0
    cdef bint stopping
    while True:
        seen = __atomic_load_n(&log.work, __ATOMIC_ACQUIRE)
        stopping = wan_flag_read(&log.stop) != 0
        wan_flag_set(&log.waiting, 1)
        wan_lock_take(&log.lock)
        staged = log.records.used + log.taken.used
        wan_lock_release(&log.lock)
        if staged == 0:
            if stopping:
                wan_log_seal(&log.log, NULL, 0)     # Were it to fail, the log is as after a crash.
                return
            if region_log_wants_way(log):
                region_log_step(log)
            region_log_rest(log)
            wan_wait_change(&log.work, seen, 100)
            wan_flag_set(&log.waiting, 0)
            if not log.synchronous and __atomic_load_n(&log.work, __ATOMIC_ACQUIRE) != seen and not wan_flag_read(&log.stop):
                wan_wait_change(&log.epoch, __atomic_load_n(&log.epoch, __ATOMIC_ACQUIRE), log.flush_ms)
            continue
        wan_flag_set(&log.waiting, 0)
        if region_log_step(log) == WAN_OK:
            failing_since = 0
        elif stopping and (log.log.broken != NULL or lost_patience(1, &failing_since, wan_monotonic_us())):
            return
        else:
            wan_wait_change(&log.work, __atomic_load_n(&log.work, __ATOMIC_ACQUIRE), 100)


cdef wan_status region_log_step(region_log *log) noexcept nogil:
    """One round of the committer: what was staged when it began is on the disk. Not WAN_OK: changes are refused until the disk takes what is staged."""
    cdef wan_status status = region_log_commit(log)
    wan_lock_take(&log.lock)
    show_log(&log.view, &log.log, status)
    wan_lock_release(&log.lock)
    if status != WAN_OK:
        wan_signal_change(&log.epoch)
    return status
