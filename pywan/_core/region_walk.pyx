# Owns what goes through all shards of a region: sizes, scans, copies, tombstones, marks.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset
from cpython.bytes cimport PyBytes_FromStringAndSize
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.put cimport region_apply, region_log_reserve, region_log_add, way_of
from pywan._core.region_state cimport STAMPS_SAMPLED, WAY_CLOSED, attachment, region_core, tombstone_counts
from pywan._core.status cimport raise_for


cdef void sum_shards(const wan_table *table, uint64_t *used, uint64_t *tombstones, uint64_t *memory_bytes) noexcept nogil:
    """Each shard's numbers as of one moment. memory_bytes may be NULL."""
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
    """Takes the entry of a key out (WAN_LOGGED_FORGET), or its value (WAN_LOGGED_INVALID), on this member only: its version stays. The
    table and the log, both or neither. `found`: there was one, no tombstone. Takes and releases the entry lock."""
    cdef wan_shard *shard = wan_table_shard(&region.table, change.hash)
    cdef wan_entry *entry
    cdef wan_status status = WAN_OK
    wan_lock_take(&shard.lock)
    status = way_of(region.attached, True)
    if status != WAN_OK:
        found[0] = False
        wan_lock_release(&shard.lock)
        return status
    entry = wan_table_find(shard, change.hash, change.key, change.key_length, change.key_form)
    found[0] = entry != NULL and entry.state != WAN_ENTRY_TOMBSTONE
    if found[0] and not (flag == WAN_LOGGED_INVALID and entry.state == WAN_ENTRY_INVALID):
        change.stamp, change.stamp_site = entry.stamp, entry.stamp_site
        if region.log != NULL:
            wan_lock_take(&region.log.lock)
            status = region_log_reserve(region.log, change)
        if status == WAN_OK:
            if flag == WAN_LOGGED_FORGET:
                wan_table_forget(shard, change.hash, change.key, change.key_length, change.key_form)
            elif wan_table_invalidate(shard, change) == WAN_OUT_OF_MEMORY:
                status = WAN_NO_MEMORY
            if status == WAN_OK and region.log != NULL:
                region_log_add(region.log, change, flag, 0)
        if region.log != NULL:
            wan_lock_release(&region.log.lock)
    wan_lock_release(&shard.lock)
    return status


cdef void pass_entry_locks(const wan_table *table) noexcept nogil:
    """Under all entry locks in turn: after that nobody can hold what was read before."""
    for n in range(table.shard_count):
        wan_lock_take(&table.shards[n].lock)
        wan_lock_release(&table.shards[n].lock)


cdef wan_status region_copy(const region_core *region, region_core *to, uint64_t *cursor) noexcept nogil:
    """Every entry from shard `cursor` on, with its version and whatever its state, gets into another region and its log. Where that has no
    room, the same cursor goes on: what is there already is known by its version."""
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
    while cursor[0] < region.table.shard_count and status == WAN_OK:
        shard = &region.table.shards[cursor[0]]
        wan_lock_take(&shard.lock)
        for at in range(wan_shard_slots(shard)):
            entry = wan_shard_entry(shard, at)
            if entry == NULL or status != WAN_OK:
                continue
            memset(&change, 0, sizeof(change))
            change.key, change.key_length, change.key_form, change.hash = entry.bytes, entry.key_length, entry.key_form, wan_entry_hash(entry)
            change.stamp, change.stamp_site, change.operation, change.value_form = entry.stamp, entry.stamp_site, WAN_UPDATE, WAN_FORM_NONE
            if entry.state == WAN_ENTRY_TOMBSTONE:
                change.operation = WAN_DESTROY
            elif entry.state == WAN_ENTRY_LIVE:
                change.value, change.value_length, change.value_form = wan_entry_value(entry), entry.value_length, entry.value_form
            target = wan_table_shard(&to.table, change.hash)
            wan_lock_take(&target.lock)
            status = region_apply(to, target, &change, &outcome)
            wan_lock_release(&target.lock)
            if status == WAN_OK and outcome == WAN_OUT_OF_MEMORY:
                status = WAN_NO_MEMORY
            if status == WAN_OK and entry.state == WAN_ENTRY_INVALID:
                status = region_change_here(to, &change, WAN_LOGGED_INVALID, &found)
        wan_lock_release(&shard.lock)
        cursor[0] += status == WAN_OK
    return status


cdef wan_status region_scan(const wan_table *table, uint64_t *cursor, uint64_t end, uint64_t limit,
                            wan_buffer *packed) noexcept nogil:
    """Copies what is in the shards from `cursor` up to `end`, as RegionCore.scan says, until there are `limit` entries.
    Not WAN_OK: what is packed is in part."""
    cdef wan_shard *shard
    cdef wan_entry *entry
    cdef wan_status status = WAN_OK
    cdef uint8_t head[32]
    cdef uint64_t at
    cdef bint is_live
    while cursor[0] < end and packed.count < limit and status == WAN_OK:
        shard = &table.shards[cursor[0]]
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
            packed.count -= 1               # The two of them are one entry.
        wan_lock_release(&shard.lock)
        cursor[0] += 1
    return status


cdef wan_status region_raise_mark(region_core *region, uint64_t mark, uint8_t flag) noexcept nogil:
    """Destroys up to there are about to be forgotten, or let go (WAN_LOGGED_LET_GO): from now on it is known that they may have been, and once its log is
    written on the disk too."""
    cdef wan_change change
    cdef wan_status status = WAN_OK
    memset(&change, 0, sizeof(change))
    change.stamp, change.operation, change.key_form, change.value_form = mark, WAN_DESTROY, WAN_FORM_BYTES, WAN_FORM_NONE
    if region.log != NULL:
        wan_lock_take(&region.log.lock)
        status = region_log_reserve(region.log, &change)
        if status == WAN_OK:
            region_log_add(region.log, &change, WAN_LOGGED_MARK | flag, 0)
        wan_lock_release(&region.log.lock)
    if status == WAN_OK:
        wan_set(&region.let_go, max(mark, region.let_go))
        if not flag:
            wan_set(&region.mark, mark)
    return status


cdef uint64_t region_newest_to_expire(const wan_table *table, uint64_t before_ms, uint64_t below) noexcept nogil:
    """The highest stamp of the tombstones that would go; 0: none would."""
    cdef uint64_t newest = 0
    for n in range(table.shard_count):
        wan_lock_take(&table.shards[n].lock)
        newest = max(newest, wan_table_newest_to_expire(&table.shards[n], before_ms, below))
        wan_lock_release(&table.shards[n].lock)
    return newest


cdef wan_status region_sample_stamps(const wan_table *table, wan_buffer *stamps) noexcept nogil:
    """Of shrunk tombstones, shard by shard until there are enough: keys are spread over the shards by their hashes."""
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
    """Every change from now on goes by `fresh`. When it returns nobody goes by, or has in hand, what was published before, and that is freed."""
    cdef attachment *old
    wan_lock_take(&region.table.shards[0].lock)      # Several may publish at once: each frees what it replaced.
    if wan_flag_read(&region.closed):
        fresh.way = WAY_CLOSED
    old = region.attached
    region.attached = fresh
    wan_lock_release(&region.table.shards[0].lock)
    pass_entry_locks(&region.table)
    free(old)


cdef uint64_t region_lower_tombstones(const wan_table *table, uint64_t above, uint64_t to) noexcept nogil:
    """Tombstones with later stamps than `above`, also of those that shrunk, get the stamp `to`. Returns how many of the
    shrunk did."""
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


cdef bytes region_packed(const wan_table *table, uint64_t *cursor, uint64_t end, uint64_t limit, str region):
    """What `region_scan` finds, as bytes."""
    cdef wan_buffer packed
    cdef wan_status status
    memset(&packed, 0, sizeof(packed))
    with nogil:
        status = region_scan(table, cursor, end, limit, &packed)
    try:
        raise_for(status, f"scan of region {region!r}")
        return PyBytes_FromStringAndSize(<const char *>packed.bytes, packed.used)
    finally:
        wan_buffer_close(&packed)
