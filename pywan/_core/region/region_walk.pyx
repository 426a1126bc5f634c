# Owns the functions that go through all shards of a region: sizes, scans, copies, tombstones, marks.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset
from cpython.bytes cimport PyBytes_FromStringAndSize
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.region.put cimport (
    check_path, region_apply, region_log_add, region_log_reserve, region_log_reserve_smaller)
from pywan._core.region.region_state cimport (
    PATH_CLOSED, STAMPS_SAMPLED, attachment, region_core, region_log, tombstone_counts)
from pywan._core.base.status cimport raise_for


cdef void sum_shards(const wan_table *table, uint64_t *used, uint64_t *tombstones,
                     uint64_t *memory_bytes) noexcept nogil:
    """Sums up the shards' numbers. The numbers of a shard are of a single moment. `memory_bytes` may be NULL."""
    cdef wan_shard *shard
    cdef uint64_t total = 0
    used[0] = tombstones[0] = 0
    for n in range(table.shard_count):
        shard = &table.shards[n]
        wan_lock_take(&shard.lock)
        used[0] += shard.used
        tombstones[0] += shard.tombstones
        total += shard.bytes
        total += wan_shard_slot_bytes(shard)
        wan_lock_release(&shard.lock)
    if memory_bytes != NULL:
        memory_bytes[0] = total


cdef wan_status region_change_here(region_core *region, wan_change *change, uint8_t flag, bint *found) noexcept nogil:
    """Takes out a key's entry (WAN_LOGGED_FORGET), or the value of the entry (WAN_LOGGED_INVALID), on this member only.
    The version stays unchanged. The change gets into the table and into the log, or into neither. `found`: the key had
    an entry that was no tombstone. Takes and releases the entry lock."""
    cdef wan_shard *shard = wan_table_shard(&region.table, change.hash)
    cdef region_log *log
    cdef wan_entry *entry
    cdef wan_status status = WAN_OK
    wan_lock_take(&shard.lock)
    log = region.log
    status = check_path(region.attached, True)
    if status != WAN_OK:
        found[0] = False
        wan_lock_release(&shard.lock)
        return status
    entry = wan_table_find(shard, change.hash, change.key, change.key_length, change.key_form)
    found[0] = entry != NULL and entry.state != WAN_ENTRY_TOMBSTONE
    if found[0] and not (flag == WAN_LOGGED_INVALID and entry.state == WAN_ENTRY_INVALID):
        change.stamp, change.stamp_site = entry.stamp, entry.stamp_site
        if log != NULL:
            wan_lock_take(&log.lock)
            status = region_log_reserve(log, change)
            if status != WAN_OK:
                status = region_log_reserve_smaller(log, change)
        if status == WAN_OK:
            if flag == WAN_LOGGED_FORGET:
                wan_table_forget(shard, change.hash, change.key, change.key_length, change.key_form)
            elif wan_table_invalidate(shard, change) == WAN_OUT_OF_MEMORY:
                status = WAN_NO_MEMORY
            if status == WAN_OK and log != NULL:
                region_log_add(log, change, flag, 0)
        if log != NULL:
            wan_lock_release(&log.lock)
    wan_lock_release(&shard.lock)
    return status


cdef void pass_entry_locks(const wan_table *table) noexcept nogil:
    """Takes and releases each entry lock. Afterwards no thread uses a pointer from an earlier read under an entry lock.
    """
    for n in range(table.shard_count):
        wan_lock_take(&table.shards[n].lock)
        wan_lock_release(&table.shards[n].lock)


cdef wan_status region_copy(const region_core *region, region_core *to, uint64_t *scan_position) noexcept nogil:
    """Copies every entry from shard `scan_position` on, with version and in any state, into a second region and into
    the log of the region. If the log has no room, repeat the call with the same position: entries that were copied
    already are known by version."""
    cdef wan_shard *shard
    cdef wan_shard *target
    cdef wan_entry *entry
    cdef wan_change change
    cdef wan_outcome outcome
    cdef uint64_t at
    cdef bint found
    cdef wan_status status = region_raise_mark(to, region.mark, 0) if region.mark > to.mark else WAN_OK
    if status == WAN_OK and region.let_go > to.let_go:
        status = region_raise_mark(to, region.let_go, WAN_LOGGED_LET_GO)
    while scan_position[0] < region.table.shard_count and status == WAN_OK:
        shard = &region.table.shards[scan_position[0]]
        wan_lock_take(&shard.lock)
        for at in range(wan_shard_slots(shard)):
            entry = wan_shard_entry(shard, at)
            if entry == NULL or status != WAN_OK:
                continue
            memset(&change, 0, sizeof(change))
            change.key, change.key_length, change.key_form = entry.bytes, entry.key_length, entry.key_form
            change.hash = wan_entry_hash(entry)
            change.stamp, change.stamp_site = entry.stamp, entry.stamp_site
            change.operation, change.value_form = WAN_UPDATE, WAN_FORM_NONE
            if entry.state == WAN_ENTRY_TOMBSTONE:
                change.operation = WAN_DESTROY
            elif entry.state == WAN_ENTRY_LIVE:
                change.value, change.value_length = wan_entry_value(entry), entry.value_length
                change.value_form = entry.value_form
            target = wan_table_shard(&to.table, change.hash)
            wan_lock_take(&target.lock)
            status = region_apply(to, target, &change, &outcome)
            wan_lock_release(&target.lock)
            if status == WAN_OK and outcome == WAN_OUT_OF_MEMORY:
                status = WAN_NO_MEMORY
            if status == WAN_OK and entry.state == WAN_ENTRY_INVALID:
                status = region_change_here(to, &change, WAN_LOGGED_INVALID, &found)
        wan_lock_release(&shard.lock)
        scan_position[0] += status == WAN_OK
    return status


cdef wan_status region_scan(const wan_table *table, uint64_t *scan_position, uint64_t end, uint64_t limit,
                            wan_buffer *packed) noexcept nogil:
    """Packs the entries of the shards from `scan_position` up to `end`, as RegionScans.scan says, until the buffer has
    `limit` entries. Any status but WAN_OK means that only a part is packed."""
    cdef wan_shard *shard
    cdef wan_entry *entry
    cdef wan_status status = WAN_OK
    cdef uint8_t head[32]
    cdef uint64_t at
    cdef bint is_live
    while scan_position[0] < end and packed.count < limit and status == WAN_OK:
        shard = &table.shards[scan_position[0]]
        wan_lock_take(&shard.lock)
        for at in range(wan_shard_slots(shard)):
            entry = wan_shard_entry(shard, at)
            if entry == NULL or entry.state == WAN_ENTRY_TOMBSTONE:
                continue
            status = wan_buffer_reserve(packed, 32 + entry.key_length)
            if status != WAN_OK:
                break
            is_live = entry.state == WAN_ENTRY_LIVE
            memset(head, 0, 32)
            (<uint16_t *>head)[0] = entry.key_length
            head[2] = entry.key_form
            head[3] = entry.value_form
            (<uint32_t *>(head + 4))[0] = entry.value_length if is_live else 0xffffffff
            (<uint64_t *>(head + 8))[0] = wan_hash(wan_entry_value(entry), entry.value_length, 0) if is_live else 0
            (<uint64_t *>(head + 16))[0] = entry.stamp
            head[24] = entry.stamp_site
            wan_buffer_put(packed, head, 32)
            wan_buffer_put(packed, entry.bytes, entry.key_length)
            packed.count -= 1               # The buffer counted two pieces, which are one entry.
        wan_lock_release(&shard.lock)
        scan_position[0] += 1
    return status


cdef wan_status region_raise_mark(region_core *region, uint64_t mark, uint8_t flag) noexcept nogil:
    """Notes that destroys up to the stamp `mark` may have been forgotten, or let go (WAN_LOGGED_LET_GO). Call the
    function before the destroys are forgotten. The region has the mark at once, and the disk has the mark when the log
    is written."""
    cdef wan_change change
    cdef wan_status status = WAN_OK
    memset(&change, 0, sizeof(change))
    change.stamp, change.operation = mark, WAN_DESTROY
    change.key_form, change.value_form = WAN_FORM_BYTES, WAN_FORM_NONE
    if region.log != NULL:
        wan_lock_take(&region.log.lock)
        status = region_log_reserve(region.log, &change)
        if status != WAN_OK:
            status = region_log_reserve_smaller(region.log, &change)
        if status == WAN_OK:
            region_log_add(region.log, &change, WAN_LOGGED_MARK | flag, 0)
        wan_lock_release(&region.log.lock)
    if status == WAN_OK:
        wan_set(&region.let_go, max(mark, region.let_go))
        if not flag:
            wan_set(&region.mark, mark)
    return status


cdef uint64_t region_newest_to_expire(const wan_table *table, uint64_t before_ms, uint64_t below) noexcept nogil:
    """The highest stamp of the tombstones that would be dropped. 0: no tombstone would be."""
    cdef uint64_t newest = 0
    for n in range(table.shard_count):
        wan_lock_take(&table.shards[n].lock)
        newest = max(newest, wan_table_newest_to_expire(&table.shards[n], before_ms, below))
        wan_lock_release(&table.shards[n].lock)
    return newest


cdef wan_status region_sample_stamps(const wan_table *table, wan_buffer *stamps) noexcept nogil:
    """Collects stamps of shrunk tombstones, shard by shard, until the sample is large enough. The sample is fair,
    because keys are spread over the shards by hash."""
    cdef wan_shard *shard
    cdef wan_status status = WAN_OK
    cdef uint64_t at
    for n in range(table.shard_count):
        shard = &table.shards[n]
        wan_lock_take(&shard.lock)
        for at in range(wan_shard_shrunk_count(shard)):
            if status == WAN_OK:
                status = wan_buffer_add(stamps, &shard.shrunk.items[at].stamp, 8)
        wan_lock_release(&shard.lock)
        if status != WAN_OK or stamps.count >= STAMPS_SAMPLED:
            break
    return status


cdef void region_tombstones(const wan_table *table, tombstone_counts *found) noexcept nogil:
    """Counts the tombstones and their bytes."""
    cdef wan_shard *shard
    memset(found, 0, sizeof(tombstone_counts))
    for n in range(table.shard_count):
        shard = &table.shards[n]
        wan_lock_take(&shard.lock)
        found.whole += shard.tombstones
        found.shrunk += wan_shard_shrunk_count(shard)
        found.bytes += shard.tombstone_bytes + wan_shard_shrunk_count(shard) * sizeof(wan_shrunk)
        wan_lock_release(&shard.lock)


cdef void attachment_publish(region_core *region, attachment *fresh) noexcept nogil:
    """Makes every change from now on use `fresh`. When the call returns, no thread uses the attachment that was
    published before, and the old attachment is freed."""
    cdef attachment *old
    wan_lock_take(&region.table.shards[0].lock)      # Threads may publish at once. Each frees the replaced attachment.
    if wan_flag_read(&region.closed):
        fresh.path = PATH_CLOSED
    old = region.attached
    region.attached = fresh
    wan_lock_release(&region.table.shards[0].lock)
    pass_entry_locks(&region.table)
    free(old)


cdef uint64_t region_lower_tombstones(const wan_table *table, uint64_t above, uint64_t to) noexcept nogil:
    """Gives the stamp `to` to all tombstones with stamps above `above`, whole or shrunk. Returns the number of shrunk
    tombstones."""
    cdef wan_shard *shard
    cdef wan_entry *entry
    cdef uint64_t at, shrunk = 0, second = wan_stamp_ms(to) // 1000
    for n in range(table.shard_count):
        shard = &table.shards[n]
        wan_lock_take(&shard.lock)
        for at in range(wan_shard_slots(shard)):
            entry = wan_shard_entry(shard, at)
            if entry != NULL and entry.state == WAN_ENTRY_TOMBSTONE and entry.stamp > above:
                entry.stamp = to
                shard.oldest_s = <uint32_t>min(<uint64_t>shard.oldest_s, second)
        for at in range(wan_shard_shrunk_count(shard)):
            if shard.shrunk.items[at].stamp > above:
                shard.shrunk.items[at].stamp = to
                shrunk += 1
        wan_lock_release(&shard.lock)
    return shrunk


cdef bytes region_packed(const wan_table *table, uint64_t *scan_position, uint64_t end, uint64_t limit, str region):
    """The entries that `region_scan` packs, as bytes."""
    cdef wan_buffer packed
    cdef wan_status status
    memset(&packed, 0, sizeof(packed))
    with nogil:
        status = region_scan(table, scan_position, end, limit, &packed)
    try:
        raise_for(status, f"scan of region {region!r}")
        return PyBytes_FromStringAndSize(<const char *>packed.bytes, packed.used)
    finally:
        wan_buffer_close(&packed)
