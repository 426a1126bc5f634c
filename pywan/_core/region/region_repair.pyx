# Owns the repair of a region's stamps: entries and tombstones that are ahead of the time get new stamps of now, and are
# sent again. Locks are taken as on the put path: an entry lock first, then the lock of a queue or of the region's log.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset
from cpython.exc cimport PyErr_CheckSignals
from cpython.bytes cimport PyBytes_FromStringAndSize
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.base.clock cimport AHEAD_MS
from pywan._core.values.codec cimport encode_key, encoded
from pywan._core.region.enqueue cimport known_decisions, read_origin
from pywan._core.region.put cimport origin_local, region_change_held, region_log_add, region_log_reserve
from pywan._core.region.region cimport RegionCore
from pywan._core.region.region_state cimport decision, origin, region_core
from pywan._core.region.region_walk cimport region_lower_tombstones, region_raise_mark
from pywan._core.region.repair_stamps cimport RepairStamps, note_stamp, stamp_for
from pywan._core.base.status cimport raise_for
from pywan._core.values.tagged cimport Encoded, described


cdef enum:
    REPAIR_ENTRIES = 256            # Entries that get new stamps under one hold of an entry lock, at most.


cdef class RegionRepair(RepairStamps):
    """Repairs a member's regions, one after another."""

    def __dealloc__(self):
        wan_buffer_close(&self.scratch)

    def count_entries(self, RegionCore region not None):
        """(entries, tombstones) with stamps that are ahead."""
        cdef uint64_t entries = 0, tombstones = 0, at
        cdef wan_shard *shard
        cdef wan_entry *entry
        region.state.check_open()
        with nogil:
            for n in range(region.state.region.table.shard_count):
                shard = &region.state.region.table.shards[n]
                wan_lock_take(&shard.lock)
                for at in range(wan_shard_slots(shard)):
                    entry = wan_shard_entry(shard, at)
                    if entry != NULL and entry.stamp > self.limit:
                        entries += entry.state != WAN_ENTRY_TOMBSTONE
                        tombstones += entry.state == WAN_ENTRY_TOMBSTONE
                for at in range(wan_shard_shrunk_count(shard)):
                    tombstones += shard.shrunk.items[at].stamp > self.limit
                wan_lock_release(&shard.lock)
        return entries, tombstones

    def restamp_invalid(self, RegionCore region not None):
        """Gives invalidated entries the new stamps that the events of their versions get. The entries are not sent,
        because the member does not have the values. Returns the number of invalidated entries."""
        cdef uint64_t found = 0
        cdef wan_status status = WAN_OK
        region.state.check_open()
        for wants_stamps in (True, False):
            found = 0
            with nogil:
                status = rename_invalid(self, &region.state.region, wants_stamps, &found)
            if status != WAN_OK or not found:
                break
            self.give_stamps()
        if status != WAN_OK:
            region.state.fail(status, "repair of the clock")
        return found

    def restamp_entries(self, RegionCore region not None, uint32_t shard=0):
        """Gives new stamps to entries and tombstones that are ahead, from a shard on: each entry is changed to its
        present value. A call repairs the entries of a moment. Returns (entries, tombstones, the shard where to go on,
        whether changes go through the callbacks). The shard is None when all shards are done. If changes go through the
        callbacks, the caller first gives the shard's `ahead_keys` to `restamp_key`, one by one."""
        cdef uint64_t entries = 0, tombstones = 0, at = 0, began = 0
        cdef uint32_t never = 0
        cdef wan_status status = WAN_OK
        region.state.check_open()
        while True:
            with nogil:
                while (shard < region.state.region.table.shard_count and status == WAN_OK
                       and entries + tombstones < 20000):
                    status = restamp_some(self, &region.state.region, &shard, &at, &entries, &tombstones)
            if status != WAN_FULL:
                break
            began = began or wan_monotonic_us()
            if wan_monotonic_us() - began > REPAIR_PATIENCE_US:
                break
            PyErr_CheckSignals()
            with nogil:
                wan_wait_change(&never, 0, 5)
            status = WAN_OK
        if status != WAN_OK and status != WAN_SLOW:
            region.state.fail(status, f"repair of the clock (after {entries + tombstones} entries)")
        following = shard if shard < region.state.region.table.shard_count else None
        return entries, tombstones, following, status == WAN_SLOW

    def ahead_keys(self, RegionCore region not None, uint32_t shard):
        """The keys in a shard whose entries are ahead, and for each key whether the entry is a tombstone. For regions
        whose changes go through callbacks."""
        cdef wan_shard *entries = &region.state.region.table.shards[shard]
        cdef wan_entry *entry
        cdef wan_status status = WAN_OK
        cdef uint64_t at
        cdef uint8_t head[8]
        wan_buffer_empty(&self.scratch)
        memset(head, 0, sizeof(head))
        with nogil:
            wan_lock_take(&entries.lock)
            for at in range(wan_shard_slots(entries)):
                entry = wan_shard_entry(entries, at)
                if status == WAN_OK and entry != NULL and entry.stamp > self.limit and entry.state != WAN_ENTRY_INVALID:
                    head[0], head[1] = entry.key_form, entry.state == WAN_ENTRY_TOMBSTONE
                    (<uint16_t *>(head + 2))[0] = entry.key_length
                    status = wan_buffer_reserve(&self.scratch, sizeof(head) + entry.key_length)
                    if status == WAN_OK:
                        wan_buffer_put(&self.scratch, head, sizeof(head))
                        wan_buffer_put(&self.scratch, entry.bytes, entry.key_length)
            wan_lock_release(&entries.lock)
        raise_for(status, f"region {region.state.name!r}")
        found, at = [], 0
        while at < self.scratch.used:
            length = (<uint16_t *>(self.scratch.bytes + at + 2))[0]
            data = PyBytes_FromStringAndSize(<const char *>self.scratch.bytes + at + 8, length)
            found.append((Encoded(self.scratch.bytes[at], data), bool(self.scratch.bytes[at + 1])))
            at += 8 + length
        return found

    def restamp_key(self, RegionCore region not None, key, decisions=None, origin_=None):
        """Gives one entry or tombstone a new stamp, whatever the old stamp was: the entry is changed to its present
        value. `decisions` and `origin_`: as for `RegionCore.change`. Returns False if the key is absent, or was
        invalidated. Returns None if the filters of `unasked` queues have to be asked first."""
        cdef encoded encoded_key
        cdef decision *decided
        cdef origin from_
        cdef origin *made = &from_ if origin_ is not None else NULL
        cdef uint8_t flags
        cdef wan_shard *shard
        cdef wan_entry *entry
        cdef uint64_t hash, began = wan_monotonic_us()
        cdef uint32_t never = 0
        cdef wan_status status = WAN_OK
        cdef bint found = False
        region.state.check_open()
        _key_holder = encode_key(key, &encoded_key)
        hash = wan_key_hash(encoded_key.data, encoded_key.length, encoded_key.form)
        shard = wan_table_shard(&region.state.region.table, hash)
        if origin_ is not None:
            read_origin(origin_, &from_, &flags)
        decided = known_decisions(decisions, region.state.attached_queues, region.state.name, key)
        try:
            while True:
                with nogil:
                    wan_lock_take(&shard.lock)
                    entry = wan_table_find(shard, hash, encoded_key.data, <uint16_t>encoded_key.length,
                                           encoded_key.form)
                    found = entry != NULL and entry.state != WAN_ENTRY_INVALID
                    status = WAN_OK
                    if found:
                        status = restamp_held(&region.state.region, shard, hash, entry, &self.scratch, decided, made)
                    wan_lock_release(&shard.lock)
                if status != WAN_FULL or wan_monotonic_us() - began > REPAIR_PATIENCE_US:
                    break
                PyErr_CheckSignals()
                with nogil:
                    wan_wait_change(&never, 0, 5)
        finally:
            free(decided)
        if status == WAN_SLOW:
            return None
        if status != WAN_OK:
            region.state.fail(status, f"repair of the clock: key {described(key)}")
        return found

    def finish_region(self, RegionCore region not None):
        """Ends the repair of a region in which nothing is ahead any more. A record in the region's log says that later
        stamps are history. The marks of forgotten destroys, and the shrunk tombstones, get stamps that are not ahead
        either. Do not call the method while `keep_tombstones` runs."""
        cdef wan_change change
        cdef uint64_t mark, let_go, stamp
        cdef wan_status status = WAN_OK
        cdef region_core *core = &region.state.region
        region.state.check_open()
        stamp = wan_clock_last(core.clock)
        with nogil:
            mark, let_go = min(wan_read(&core.mark), stamp), min(wan_read(&core.let_go), stamp)
            # The log knows shrunk tombstones by their old stamps only. So the mark decides about events of their keys.
            if region_lower_tombstones(&core.table, self.limit, stamp) and core.log != NULL:
                mark = let_go = stamp
            if core.log != NULL:
                memset(&change, 0, sizeof(change))
                change.stamp, change.operation = stamp, WAN_DESTROY
                change.key_form, change.value_form = WAN_FORM_BYTES, WAN_FORM_NONE
                wan_lock_take(&core.log.lock)
                status = region_log_reserve(core.log, &change)
                if status == WAN_OK:
                    region_log_add(core.log, &change, WAN_LOGGED_MARK | WAN_LOGGED_FORGET, mark)
                    core.log.reset_given = core.log.committer.given
                wan_lock_release(&core.log.lock)
            if status == WAN_OK:
                wan_set(&core.mark, mark)
                wan_set(&core.let_go, let_go)
                # The record above stays in its place in the log. The marks below are moved on with the live records.
                if mark:
                    status = region_raise_mark(core, mark, 0)
                if let_go and status == WAN_OK:
                    status = region_raise_mark(core, let_go, WAN_LOGGED_LET_GO)
        if status != WAN_OK:
            region.state.fail(status, "repair of the clock")
        region.lower_marks(stamp, let_go)
        if core.log != NULL:
            wan_set(&core.log.highest, stamp)

    def log_is_ahead(self, RegionCore region not None):
        """Whether the region's log held a stamp that is ahead when the log was opened, and so makes the clock run
        ahead."""
        return region.state.region.log != NULL and wan_read(&region.state.region.log.highest) > self.limit


cdef void note_restamping(region_core *region, const wan_change *change, uint64_t replaced) noexcept nogil:
    """Makes the log's record of `change` say: the change replaces the later version with the stamp `replaced`. A
    `change` of NULL ends the replacement. Under an entry lock."""
    if region.log != NULL:
        wan_lock_take(&region.log.lock)
        region.log.restamping, region.log.replaced = change, replaced
        wan_lock_release(&region.log.lock)


cdef wan_status restamp_held(region_core *region, wan_shard *shard, uint64_t hash, wan_entry *entry,
                             wan_buffer *scratch, decision *decisions, const origin *made) noexcept nogil:
    """Changes an entry or tombstone to its present value, with a stamp of now, and queues the event. `made`: the event
    that the filters saw; NULL: the thread makes a new event. Any status but WAN_OK leaves the entry unchanged. Under
    the entry lock."""
    cdef wan_change change
    cdef origin from_
    cdef wan_outcome outcome
    cdef uint64_t old = entry.stamp
    cdef bint destroyed = entry.state == WAN_ENTRY_TOMBSTONE
    cdef wan_status status
    wan_buffer_empty(scratch)       # We copy key and value: the change may free the entry and make a new entry.
    status = wan_buffer_reserve(scratch, <uint64_t>entry.key_length + entry.value_length)
    if status != WAN_OK:
        return status
    memset(&change, 0, sizeof(change))
    change.key = wan_buffer_put(scratch, entry.bytes, entry.key_length)
    change.key_length, change.key_form, change.hash = entry.key_length, entry.key_form, hash
    change.operation, change.value_form, change.stamp_site = WAN_DESTROY, WAN_FORM_NONE, region.site
    if not destroyed:
        change.operation, change.value_form, change.value_length = WAN_UPDATE, entry.value_form, entry.value_length
        change.value = wan_buffer_put(scratch, wan_entry_value(entry), entry.value_length)
    wan_clock_lower(region.clock, AHEAD_MS)     # A queue that was attached meanwhile may have raised the clock again.
    change.stamp = wan_clock_take(region.clock, wan_clock_now_ms(region.clock), 1)
    if made != NULL:
        from_ = made[0]
    else:
        origin_local(&from_, region, wan_thread_self())
    note_restamping(region, &change, old)
    entry.stamp = 0
    status = region_change_held(region, shard, &change, &from_, decisions, &outcome)
    note_restamping(region, NULL, 0)
    if status == WAN_OK and outcome > WAN_DESTROYED:
        status = WAN_NO_MEMORY
        wan_note(WAN_CORRUPT, "no memory to stamp an entry anew")
    if status != WAN_OK:
        entry.stamp = old
    return status


cdef wan_status rename_invalid(RegionRepair self, region_core *region, bint wants_stamps,
                               uint64_t *found) noexcept nogil:
    """Goes through the invalidated entries that are ahead. If `wants_stamps` is set, notes their old stamps; otherwise
    gives the entries the new stamps."""
    cdef wan_shard *shard
    cdef wan_entry *entry
    cdef wan_change change
    cdef uint64_t at
    cdef wan_status status = WAN_OK
    for n in range(region.table.shard_count):
        shard = &region.table.shards[n]
        wan_lock_take(&shard.lock)
        for at in range(wan_shard_slots(shard)):
            entry = wan_shard_entry(shard, at)
            if status != WAN_OK or entry == NULL or entry.stamp <= self.limit or entry.state != WAN_ENTRY_INVALID:
                continue
            if wants_stamps:
                status = note_stamp(self, entry.stamp)
                found[0] += 1
                continue
            memset(&change, 0, sizeof(change))
            change.key, change.key_length, change.key_form = entry.bytes, entry.key_length, entry.key_form
            change.hash = wan_entry_hash(entry)
            change.operation, change.value_form, change.stamp_site = WAN_UPDATE, WAN_FORM_NONE, region.site
            change.stamp = stamp_for(self, entry.stamp)
            if change.stamp == 0:
                continue
            if region.log != NULL:
                wan_lock_take(&region.log.lock)
                status = region_log_reserve(region.log, &change)
                if status == WAN_OK:
                    region_log_add(region.log, &change, WAN_LOGGED_INVALID, entry.stamp)
                wan_lock_release(&region.log.lock)
            if status == WAN_OK:
                entry.stamp, entry.stamp_site = change.stamp, change.stamp_site
                found[0] += 1
        wan_lock_release(&shard.lock)
        if status != WAN_OK:
            break
    return status


cdef wan_status restamp_some(RegionRepair self, region_core *region, uint32_t *number, uint64_t *at, uint64_t *entries,
                             uint64_t *tombstones) noexcept nogil:
    """Gives new stamps to some entries, from slot `at` of a shard on. The next shard follows when the shard is done."""
    cdef wan_shard *shard = &region.table.shards[number[0]]
    cdef wan_entry *entry
    cdef uint32_t done = 0
    cdef bint destroyed
    cdef wan_status status = WAN_OK
    wan_lock_take(&shard.lock)
    while status == WAN_OK and done < REPAIR_ENTRIES and at[0] < wan_shard_slots(shard):
        entry = wan_shard_entry(shard, at[0])
        if entry != NULL and entry.stamp > self.limit and entry.state != WAN_ENTRY_INVALID:
            destroyed = entry.state == WAN_ENTRY_TOMBSTONE
            status = restamp_held(region, shard, wan_entry_hash(entry), entry, &self.scratch, NULL, NULL)
            if status != WAN_OK:
                break
            entries[0] += not destroyed
            tombstones[0] += destroyed
            done += 1
        at[0] += 1
    # If a shard is laid out anew meanwhile, some entries may be missed. The next round looks at the shard again.
    if status == WAN_OK and at[0] >= wan_shard_slots(shard):
        number[0] += 1
        at[0] = 0
    wan_lock_release(&shard.lock)
    return status
