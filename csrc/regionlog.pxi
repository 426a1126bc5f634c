# Owns the log of a persistent region: each change is a record with its version, appended as it is applied; recovery
# applies them again under the same rule (the later version wins), so neither their order nor seeing one twice matters. The log is
# shortened from its oldest segment: what is still the current version is appended again, the rest is history.

cdef struct region_log:
    wan_lock lock               # Guards `records` and the numbers behind it; taken after an entry lock and queue locks.
    wan_log log                 # The committer's.
    wan_stage records           # Staged.
    uint64_t staged_max         # Bytes of them.
    wan_stage taken, moved      # The committer's.
    uint64_t written            # Bytes of `taken` that are in the log already.
    uint64_t staged, durable    # Records; waiters compare them.
    uint32_t epoch, work
    int waiting, stop
    uint8_t synchronous
    uint32_t flush_ms
    region_core *region
    uint64_t recovered, cut_bytes
    wan_stage damages           # wan_damage, in salvage.
    log_view view               # Under the lock.


cdef wan_status region_log_reserve(region_log *log, const wan_change *c) noexcept nogil:
    """Under the log's lock: the change can be staged afterwards."""
    if log.view.failing:
        set_full("%s", log.view.reason)
        return WAN_FULL
    cdef uint64_t length = wan_record_size(c.key_length, c.value_length, 0, 0)
    if length > log.staged_max and log.staged_max < STAGED_BYTES_MAX:
        set_too_large("a change of %llu bytes is over the %llu that a log of this limited size takes; give the disk store more room",
                      <unsigned long long>length, <unsigned long long>log.staged_max)
        return WAN_TOO_LARGE
    if log.records.used + length > log.staged_max and log.records.used:
        set_full("the disk is slower than the changes come; %llu bytes wait for it", <unsigned long long>log.records.used)
        return WAN_FULL
    return wan_stage_reserve(&log.records, length)


cdef void region_log_stage(region_log *log, const wan_change *c, uint8_t flags) noexcept nogil:
    cdef wan_record record
    cdef uint32_t value_length = 0 if c.operation == WAN_DESTROY else c.value_length
    cdef uint64_t length = wan_record_size(c.key_length, value_length, 0, 0)
    cdef uint8_t *to = log.records.bytes + log.records.used
    memset(&record, 0, sizeof(record))
    record.length = <uint32_t>length
    record.value_length = value_length
    record.stamp = c.stamp
    record.key_length = c.key_length
    record.operation = c.operation
    record.flags = flags
    record.stamp_site = c.stamp_site
    record.key_form, record.value_form, record.callback_form = c.key_form, c.value_form, WAN_FORM_NONE
    (<uint64_t *>(to + length - 8))[0] = 0
    memcpy(to, &record, sizeof(record))
    to += sizeof(record)
    wan_copy_small(to, c.key, c.key_length)
    if value_length:
        wan_copy_small(to + c.key_length, c.value, value_length)
    log.records.used += length
    log.records.count += 1
    log.staged += 1
    if wan_flag_read(&log.waiting):
        wan_signal_change(&log.work)


cdef bint region_log_wait(region_log *log, uint64_t limit_us) noexcept nogil:
    """Until all that is staged is on the disk. False after `limit_us`."""
    cdef uint64_t deadline = wan_monotonic_us() + limit_us, wanted
    cdef uint32_t seen
    cdef bint done
    wan_lock_take(&log.lock)
    wanted = log.staged
    wan_lock_release(&log.lock)
    while True:
        seen = __atomic_load_n(&log.epoch, __ATOMIC_ACQUIRE)
        wan_lock_take(&log.lock)
        done = log.durable >= wanted
        wan_lock_release(&log.lock)
        if done or wan_monotonic_us() >= deadline:
            return done
        wan_wait_change(&log.epoch, seen, 200)


cdef wan_status region_log_write(region_log *log) noexcept nogil:
    """What is staged gets onto the disk."""
    cdef wan_part part
    cdef uint32_t segment
    cdef uint64_t staged, length
    cdef wan_status status
    wan_lock_take(&log.lock)
    if log.taken.used == 0:
        swap_stages(&log.records, &log.taken)
    staged = log.staged - log.records.count
    wan_lock_release(&log.lock)
    # In blocks that fit into an ordinary segment: the log is shortened by segments, so they had better be small.
    while log.written < log.taken.used:
        part.head.kind, part.head.count, part.head.length = WAN_PART_RECORDS, 0, 0
        part.bytes = log.taken.bytes + log.written
        while log.written + part.head.length < log.taken.used:
            length = (<const wan_record *>(part.bytes + part.head.length)).length
            if part.head.count and part.head.length + length > wan_log_block_bytes(&log.log):
                break
            part.head.length += length
            part.head.count += 1
        status = wan_log_make_room(&log.log, wan_parts_length(&part, 1), NULL, 0)
        if status == WAN_OK:
            status = wan_log_commit(&log.log, &part, 1, &segment)
        if status != WAN_OK:
            return status
        log.written += part.head.length
    log.written = 0
    wan_stage_empty(&log.taken)
    wan_lock_take(&log.lock)
    log.durable = staged
    show_log(&log.view, &log.log, WAN_OK)
    wan_lock_release(&log.lock)
    wan_signal_change(&log.epoch)
    return WAN_OK


cdef uint64_t region_log_live_bytes(region_log *log) noexcept nogil:
    cdef uint64_t total = 0
    for n in range(WAN_TABLE_SHARDS):
        total += wan_read(&log.region.table.shards[n].bytes)
    return total


cdef wan_status region_log_commit(region_log *log) noexcept nogil:
    cdef wan_status status = region_log_write(log)
    cdef uint64_t kept = LOG_SEGMENTS_KEPT
    if status == WAN_FULL and log.log.size_limit and 2 * log.log.bytes > 3 * region_log_live_bytes(log):
        # Full of history: what makes room goes beyond the limit until the oldest segments are gone.
        log.log.over = 1
        status = region_log_shorten(log, 1, 3, log.log.segments[log.log.writing].number)     # Once around.
        log.log.over = 0
        if status == WAN_OK:
            status = region_log_write(log)
    if status == WAN_OK:
        if log.log.size_limit < 2 * LOG_SEGMENTS_KEPT * WAN_LOG_SEGMENT_BYTES_MIN and log.log.size_limit:
            kept = 1            # There will never be that many.
        region_log_shorten(log, kept, 6, NEVER)     # Tried again after the next commit; what is durable is not less so.
    return status


cdef wan_status region_log_shorten(region_log *log, uint64_t kept, uint64_t halves, uint64_t last) noexcept nogil:
    """Moves what lives out of the oldest segments and drops them, up to segment `last`, while there are `kept` before the one in
    writing and the log is longer than so many halves of what lives."""
    cdef wan_log_reader reader
    cdef wan_part part
    cdef uint32_t segment
    cdef wan_status status
    while log.log.writing >= kept and 2 * log.log.bytes > halves * region_log_live_bytes(log) and log.log.segments[0].number < last:
        wan_stage_empty(&log.moved)
        memset(&reader, 0, sizeof(reader))
        reader.owner = log
        reader.part = region_log_move
        status = wan_log_read_segment(&log.log, 0, &reader)
        if status == WAN_OK and log.moved.used:
            add_part(&part, 0, WAN_PART_MOVED, &log.moved)
            status = wan_log_make_room(&log.log, wan_parts_length(&part, 1), NULL, 0)
            if status == WAN_OK:
                status = wan_log_commit(&log.log, &part, 1, &segment)
        # What took a version's place meanwhile is on the disk before that version is gone; and behind what was moved: nothing that
        # was destroyed since may come back when the record of that is history.
        if status == WAN_OK:
            status = region_log_write(log)
        if status == WAN_OK:
            status = wan_log_drop_first(&log.log, 1, NULL, 0)
        if status != WAN_OK:
            return status
    return WAN_OK


cdef wan_status region_log_move(void *owner, uint32_t index, uint64_t commit, const wan_part_head *head, const uint8_t *data) noexcept nogil:
    cdef region_log *log = <region_log *>owner
    cdef const wan_record *record
    cdef wan_shard *shard
    cdef wan_entry *entry
    cdef uint64_t at = 0, hash
    cdef bint lives
    cdef wan_status status = WAN_OK
    while at < head.length and status == WAN_OK:
        record = <const wan_record *>(data + at)
        at += record.length
        hash = wan_key_hash(wan_record_key(record), record.key_length, record.key_form)
        shard = wan_table_shard(&log.region.table, hash)
        wan_lock_take(&shard.lock)
        entry = wan_table_find(shard, hash, wan_record_key(record), record.key_length, record.key_form)
        lives = entry != NULL and entry.stamp == record.stamp and entry.stamp_site == record.stamp_site and not (record.flags & WAN_FLAG_FORGET)
        wan_lock_release(&shard.lock)
        if lives:
            status = wan_stage_add(&log.moved, record, record.length)
    return status


cdef wan_status region_log_recover(void *owner, uint32_t index, uint64_t commit, const wan_part_head *head, const uint8_t *data) noexcept nogil:
    cdef region_log *log = <region_log *>owner
    cdef const wan_record *record
    cdef wan_change c
    cdef wan_shard *shard
    cdef wan_entry *entry
    cdef uint64_t at = 0, highest = 0
    if head.kind != WAN_PART_RECORDS and head.kind != WAN_PART_MOVED:
        return WAN_OK
    while at < head.length:
        record = <const wan_record *>(data + at)
        if wan_record_check(<const uint8_t *>record, head.length - at) != WAN_OK:
            return WAN_CORRUPT
        at += record.length
        log.recovered += 1
        if record.stamp > highest:
            highest = record.stamp
        change_from_record(&c, record, wan_key_hash(wan_record_key(record), record.key_length, record.key_form))
        shard = wan_table_shard(&log.region.table, c.hash)
        if record.flags & WAN_FLAG_FORGET:
            entry = wan_table_find(shard, c.hash, c.key, c.key_length, c.key_form)
            if entry != NULL and entry.stamp <= record.stamp:
                wan_table_forget(shard, c.hash, c.key, c.key_length, c.key_form)
            continue
        if wan_table_apply(shard, &c) == WAN_OUT_OF_MEMORY:
            return WAN_NO_MEMORY
    wan_clock_see(log.region.clock, highest)
    return WAN_OK


cdef void region_log_note_damaged(void *owner, const wan_damage *damage) noexcept nogil:
    keep_damage(&(<region_log *>owner).damages, damage)


cdef void region_log_loop(region_log *log) noexcept nogil:
    """The committer of a region: as `durable_loop`, without checkpoints."""
    cdef uint32_t seen
    cdef uint64_t staged
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
            wan_wait_change(&log.work, seen, 100)
            wan_flag_set(&log.waiting, 0)
            if not log.synchronous and __atomic_load_n(&log.work, __ATOMIC_ACQUIRE) != seen and not wan_flag_read(&log.stop):
                wan_wait_change(&log.epoch, __atomic_load_n(&log.epoch, __ATOMIC_ACQUIRE), log.flush_ms)
            continue
        wan_flag_set(&log.waiting, 0)
        if region_log_step(log) != WAN_OK:
            if stopping:
                return
            wan_wait_change(&log.work, __atomic_load_n(&log.work, __ATOMIC_ACQUIRE), 100)


cdef wan_status region_log_step(region_log *log) noexcept nogil:
    """One round of the committer. Not WAN_OK: changes are refused until the disk takes what is staged."""
    cdef wan_status status = region_log_commit(log)
    wan_lock_take(&log.lock)
    show_log(&log.view, &log.log, status)
    wan_lock_release(&log.lock)
    if status != WAN_OK:
        wan_signal_change(&log.epoch)
    return status
