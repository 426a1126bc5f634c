# Owns the repair of a member whose stamps ran ahead of the time: what is more than `AHEAD_MS` ahead, in regions and in
# queues, gets stamps of now, and is sent again. Locks are taken as on the put path: an entry lock first, then a queue's
# or the region log's.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from cpython.exc cimport PyErr_CheckSignals
from cpython.bytes cimport PyBytes_FromStringAndSize
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_store cimport *
from pywan._core.c_region cimport *
from pywan._core.c_system cimport *
from pywan._core.clock cimport AHEAD_MS, Clock
from pywan._core.codec cimport described, encode_key, encoded
from pywan._core.committer cimport committer_wake
from pywan._core.event_queue cimport EventQueue
from pywan._core.put cimport origin_local, region_change_held, region_log_reserve, region_log_stage
from pywan._core.queue cimport (
    gateway_queue, queue_can_read, queue_commit, queue_note_copy, queue_partition, queue_refresh_pending,
    queue_reserve)
from pywan._core.queue_committer cimport FOR_REPAIR
from pywan._core.region cimport RegionCore
from pywan._core.region_changes cimport make_decisions
from pywan._core.region_state cimport decision, origin, region_core
from pywan._core.region_walk cimport region_lower_tombstones, region_raise_mark
from pywan._core.status cimport raise_for
from pywan._core.tagged cimport Encoded


cdef enum:
    REPAIR_ENTRIES = 256            # Restamped under one hold of an entry lock.
    REPAIR_EVENTS = 4096            # Looked at under one hold of a queue's lock;
    REPAIR_BYTES = 4 << 20          # copied out of it in one go.
    REPAIR_PATIENCE_US = 10000000   # How long a queue may have no room.


cdef struct event_place:
    uint64_t sequence
    uint32_t partition
    # It is not taken out: what is to take its place is not in the queue. 2: the entry has to be changed first.
    uint32_t stays


cdef void note_restamping(region_core *r, const wan_change *c, uint64_t replaced) noexcept nogil:
    """Under an entry lock: the log's record of `c` says that it replaces the later version with this stamp. NULL: no
    record does any more."""
    if r.log != NULL:
        wan_lock_take(&r.log.lock)
        r.log.restamping, r.log.replaced = c, replaced
        wan_lock_release(&r.log.lock)


cdef wan_status restamp_held(region_core *r, wan_shard *shard, uint64_t hash, wan_entry *entry, wan_buffer *scratch,
                             const decision *decisions) noexcept nogil:
    """Under the entry lock: the entry, or tombstone, is changed to what it is, with a stamp of now, and queued. Not
    WAN_OK: it is as it was."""
    cdef wan_change c
    cdef origin from_
    cdef wan_outcome outcome
    cdef uint64_t old = entry.stamp
    cdef bint destroyed = entry.state == WAN_ENTRY_TOMBSTONE
    cdef wan_status status
    wan_buffer_empty(scratch)        # A copy: the entry may be made anew.
    status = wan_buffer_reserve(scratch, <uint64_t>entry.key_length + entry.value_length)
    if status != WAN_OK:
        return status
    memset(&c, 0, sizeof(c))
    c.key = wan_buffer_put(scratch, entry.bytes, entry.key_length)
    c.key_length, c.key_form, c.hash = entry.key_length, entry.key_form, hash
    c.operation, c.value_form, c.stamp_site = WAN_DESTROY, WAN_FORM_NONE, r.site
    if not destroyed:
        c.operation, c.value_form, c.value_length = WAN_UPDATE, entry.value_form, entry.value_length
        c.value = wan_buffer_put(scratch, wan_entry_value(entry), entry.value_length)
    wan_clock_lower(r.clock, AHEAD_MS)      # A change of another key with such a stamp may have raised it again.
    c.stamp = wan_clock_take(r.clock, wan_clock_now_ms(r.clock), 1)
    origin_local(&from_, r, wan_thread_self())
    note_restamping(r, &c, old)
    entry.stamp = 0
    status = region_change_held(r, shard, &c, &from_, decisions, &outcome)
    note_restamping(r, NULL, 0)
    if status == WAN_OK and outcome > WAN_DESTROYED:
        status = WAN_NO_MEMORY
        wan_tell(WAN_CORRUPT, "no memory to stamp an entry anew")
    if status != WAN_OK:
        entry.stamp = old
    return status


cdef bint takes_events(const region_core *r, const gateway_queue *g) noexcept nogil:
    """Under an entry lock: what changes in the region gets into this queue."""
    if r.attached == NULL or not r.forwards or not wan_flag_read(&g.running):
        return False
    for n in range(r.attached.count):
        if r.attached.queues[n] == g:
            return True
    return False


cdef wan_status queue_append_restamped(gateway_queue *g, uint64_t hash, const wan_record *record) noexcept nogil:
    """A copy with another stamp: an event of its own. Takes and releases the lock."""
    cdef wan_reservation reservation
    cdef int wake = -1
    cdef uint32_t length = wan_record_length(record)
    cdef uint32_t partition = queue_partition(g, wan_region_names[record.region].buckets, hash, record.event_member,
                                              record.event_thread)
    wan_lock_take(&g.lock)
    cdef wan_status status = queue_reserve(g, partition, length, &reservation)
    if status == WAN_OK:
        memcpy(reservation.at, record, length)
        queue_note_copy(g, record)
        wake = queue_commit(g, &reservation)
        g.counts.queued += 1
        g.counts.received += 1
    wan_lock_release(&g.lock)
    if wake >= 0:
        eventfd_write(wake, 1)
    return status


cdef class ClockRepair:
    """One repair of a member's stamps: what is ahead of the time as of its beginning. `regions`: those of the member
    that are repaired, with the events of theirs; `others`: whether events of any region that the member does not have
    are, too. One thread at a time."""
    cdef Clock clock
    cdef uint8_t site
    cdef readonly uint64_t limit        # Stamps above this are ahead.
    cdef readonly uint64_t began        # What the repair stamps has this stamp or a later one.
    cdef region_core *regions[65536]    # By number.
    cdef uint8_t wanted[65536]          # Regions whose events are repaired.
    cdef object kept
    # wan_new_stamp, ascending by `old`: the one that each old one of an event becomes, in whatever queue it is.
    cdef wan_buffer stamps
    cdef uint64_t stamp_count
    cdef wan_buffer events, places, scratch

    def __cinit__(self, Clock clock not None, regions, *, int site=0, bint others=True):
        cdef RegionCore region
        self.clock, self.site = clock, <uint8_t>site
        self.kept = tuple(regions)
        memset(self.wanted, others, sizeof(self.wanted))
        for region in self.kept:
            self.regions[region.state.r.number] = &region.state.r
            self.wanted[region.state.r.number] = 1
        self.limit = (wan_clock_now_ms(&clock.clock) + AHEAD_MS << 16) | 0xffff

    def __dealloc__(self):
        wan_buffer_close(&self.stamps)
        wan_buffer_close(&self.events)
        wan_buffer_close(&self.places)
        wan_buffer_close(&self.scratch)

    def begin(self):
        """Sets the clock back, if it is ahead, and returns whether it was. What is stamped from now on is above what
        this took."""
        was_ahead = bool(wan_clock_lower(&self.clock.clock, AHEAD_MS))
        if self.began == 0:
            self.began = wan_clock_take(&self.clock.clock, wan_clock_now_ms(&self.clock.clock), 1)
        return was_ahead

    # Counting

    def count_entries(self, RegionCore region not None):
        """(entries, tombstones) with stamps that are ahead."""
        cdef uint64_t entries = 0, tombstones = 0, at
        cdef wan_shard *shard
        cdef wan_entry *entry
        region.state.check_open()
        with nogil:
            for n in range(region.state.r.table.shard_count):
                shard = &region.state.r.table.shards[n]
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

    def count_events(self, EventQueue queue not None):
        """How many events of the queue have stamps that are ahead. They have places among the new stamps from now
        on."""
        cdef uint64_t found = 0, sequence
        cdef uint32_t p
        cdef wan_status status = WAN_OK
        with nogil:
            for p in range(queue.g.queue.partition_count):
                sequence = 0
                while status == WAN_OK:
                    wan_buffer_empty(&self.events)
                    status = self.look(queue.g, p, &sequence, &found, False)
                    if sequence == 0:
                        break
        raise_for(status, f"queue {queue.name!r}")
        return found

    cdef wan_status look(self, gateway_queue *g, uint32_t p, uint64_t *sequence, uint64_t *found,
                         bint copies) noexcept nogil:
        """At events of a partition behind `sequence`, which is then where to go on; 0: that was the last one. Counts
        those that are ahead, and notes their stamps; with `copies` copies those that are not on their way to `events`,
        and leaves the others out of what it counts."""
        cdef wan_partition *partition = &g.queue.partitions[p]
        cdef wan_record *record
        cdef wan_new_stamp stamp
        cdef event_place place
        cdef uint32_t looked = 0
        cdef wan_status status = WAN_OK
        wan_lock_take(&g.lock)
        sequence[0] = max(sequence[0], partition.peeked if copies else partition.removed)
        while status == WAN_OK and looked < REPAIR_EVENTS and self.events.used < REPAIR_BYTES:
            sequence[0] = wan_queue_next_live(partition, sequence[0] + 1, partition.appended)
            if sequence[0] == 0:
                break
            looked += 1
            if not queue_can_read(g, p, sequence[0]):
                status = WAN_IO
                break
            record = wan_queue_at(&g.queue, partition, sequence[0])
            if record.stamp <= self.limit or not self.wanted[record.region]:
                continue
            found[0] += 1
            if copies:
                place.sequence, place.partition, place.stays = sequence[0], p, 0
                status = wan_buffer_add(&self.places, &place, sizeof(place))
                if status == WAN_OK:
                    status = wan_buffer_add(&self.events, record, wan_record_length(record))
            else:
                stamp.old, stamp.fresh = record.stamp, 0
                status = wan_buffer_add(&self.stamps, &stamp, sizeof(stamp))
        wan_lock_release(&g.lock)
        return status

    # New stamps of events and of invalidated entries: one for each old one, in the order of the old ones, whatever
    # queues they are in.

    def give_stamps(self):
        """Those of all that was counted, that have none yet."""
        with nogil:
            self.assign()

    cdef void assign(self) noexcept nogil:
        cdef wan_new_stamp *stamps = <wan_new_stamp *>self.stamps.bytes
        cdef uint64_t n, kept = 0, fresh, wanted = 0
        if self.stamps.used == 0:
            return
        wan_new_stamps_sort(stamps, self.stamps.used // sizeof(wan_new_stamp))
        for n in range(self.stamps.used // sizeof(wan_new_stamp)):
            if kept and stamps[kept - 1].old == stamps[n].old:
                continue
            stamps[kept] = stamps[n]
            wanted += stamps[n].fresh == 0
            kept += 1
        self.stamps.used, self.stamps.count = kept * sizeof(wan_new_stamp), <uint32_t>kept
        self.stamp_count = kept
        if wanted == 0:
            return
        wan_clock_lower(&self.clock.clock, AHEAD_MS)
        fresh = wan_clock_take(&self.clock.clock, wan_clock_now_ms(&self.clock.clock), wanted)
        for n in range(kept):
            if stamps[n].fresh == 0:
                stamps[n].fresh = fresh
                fresh += 1

    cdef uint64_t stamp_for(self, uint64_t old) noexcept nogil:
        """0: it came meanwhile, and has to wait for the next round."""
        cdef const wan_new_stamp *stamps = <const wan_new_stamp *>self.stamps.bytes
        cdef uint64_t low = 0, high = self.stamp_count, middle
        while low < high:
            middle = (low + high) // 2
            if stamps[middle].old < old:
                low = middle + 1
            else:
                high = middle
        return stamps[low].fresh if low < self.stamp_count and stamps[low].old == old else 0

    # Regions

    def restamp_invalid(self, RegionCore region not None):
        """Invalidated entries get the stamps that the events of their versions get. They are not sent: their values are
        not here. Returns how many there were."""
        cdef uint64_t found = 0
        cdef wan_status status = WAN_OK
        region.state.check_open()
        for wants_stamps in (True, False):
            found = 0
            with nogil:
                status = self.rename_invalid(&region.state.r, wants_stamps, &found)
            if status != WAN_OK or not found:
                break
            self.give_stamps()
        if status != WAN_OK:
            region.state.fail(status, "repair of the clock")
        return found

    cdef wan_status rename_invalid(self, region_core *r, bint wants_stamps, uint64_t *found) noexcept nogil:
        cdef wan_shard *shard
        cdef wan_entry *entry
        cdef wan_change c
        cdef wan_new_stamp stamp
        cdef uint64_t at
        cdef wan_status status = WAN_OK
        for n in range(r.table.shard_count):
            shard = &r.table.shards[n]
            wan_lock_take(&shard.lock)
            for at in range(wan_shard_slots(shard)):
                entry = wan_shard_entry(shard, at)
                if status != WAN_OK or entry == NULL or entry.stamp <= self.limit or entry.state != WAN_ENTRY_INVALID:
                    continue
                if wants_stamps:
                    stamp.old, stamp.fresh = entry.stamp, 0
                    status = wan_buffer_add(&self.stamps, &stamp, sizeof(stamp))
                    found[0] += 1
                    continue
                memset(&c, 0, sizeof(c))
                c.key, c.key_length, c.key_form = entry.bytes, entry.key_length, entry.key_form
                c.hash = wan_entry_hash(entry)
                c.operation, c.value_form, c.stamp_site = WAN_UPDATE, WAN_FORM_NONE, r.site
                c.stamp = self.stamp_for(entry.stamp)
                if c.stamp == 0:
                    continue
                if r.log != NULL:
                    wan_lock_take(&r.log.lock)
                    status = region_log_reserve(r.log, &c)
                    if status == WAN_OK:
                        region_log_stage(r.log, &c, WAN_LOGGED_INVALID, entry.stamp)
                    wan_lock_release(&r.log.lock)
                if status == WAN_OK:
                    entry.stamp, entry.stamp_site = c.stamp, c.stamp_site
                    found[0] += 1
            wan_lock_release(&shard.lock)
            if status != WAN_OK:
                break
        return status

    def restamp_entries(self, RegionCore region not None, uint32_t shard=0):
        """Entries and tombstones that are ahead are changed to what they are, from a shard on. As many as are done in a
        moment: returns (how many of each, where to go on; None: that was all, whether the way of changes is through
        callbacks: then that shard's `ahead_keys` come first, one by one)."""
        cdef uint64_t entries = 0, tombstones = 0, at = 0, began = 0
        cdef uint32_t never = 0
        cdef wan_status status = WAN_OK
        region.state.check_open()
        while True:
            with nogil:
                while shard < region.state.r.table.shard_count and status == WAN_OK and entries + tombstones < 20000:
                    status = self.restamp_some(&region.state.r, &shard, &at, &entries, &tombstones)
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
        return entries, tombstones, shard if shard < region.state.r.table.shard_count else None, status == WAN_SLOW

    cdef wan_status restamp_some(self, region_core *r, uint32_t *number, uint64_t *at, uint64_t *entries,
                                 uint64_t *tombstones) noexcept nogil:
        """From slot `at` of a shard on; to the next shard when that one is done."""
        cdef wan_shard *shard = &r.table.shards[number[0]]
        cdef wan_entry *entry
        cdef uint32_t done = 0
        cdef bint destroyed
        cdef wan_status status = WAN_OK
        wan_lock_take(&shard.lock)
        while status == WAN_OK and done < REPAIR_ENTRIES and at[0] < wan_shard_slots(shard):
            entry = wan_shard_entry(shard, at[0])
            if entry != NULL and entry.stamp > self.limit and entry.state != WAN_ENTRY_INVALID:
                destroyed = entry.state == WAN_ENTRY_TOMBSTONE
                status = restamp_held(r, shard, wan_entry_hash(entry), entry, &self.scratch, NULL)
                if status != WAN_OK:
                    break
                entries[0] += not destroyed
                tombstones[0] += destroyed
                done += 1
            at[0] += 1
        # One that was laid out anew meanwhile is looked at again in the next round.
        if status == WAN_OK and at[0] >= wan_shard_slots(shard):
            number[0] += 1
            at[0] = 0
        wan_lock_release(&shard.lock)
        return status

    def ahead_keys(self, RegionCore region not None, uint32_t shard):
        """The keys in this shard whose entries are ahead, and whether they are tombstones. For regions with callbacks
        on the way."""
        cdef wan_shard *s = &region.state.r.table.shards[shard]
        cdef wan_entry *entry
        cdef wan_status status = WAN_OK
        cdef uint64_t at
        cdef uint8_t head[8]
        wan_buffer_empty(&self.scratch)
        memset(head, 0, sizeof(head))
        with nogil:
            wan_lock_take(&s.lock)
            for at in range(wan_shard_slots(s)):
                entry = wan_shard_entry(s, at)
                if status == WAN_OK and entry != NULL and entry.stamp > self.limit and entry.state != WAN_ENTRY_INVALID:
                    head[0], head[1] = entry.key_form, entry.state == WAN_ENTRY_TOMBSTONE
                    (<uint16_t *>(head + 2))[0] = entry.key_length
                    status = wan_buffer_reserve(&self.scratch, sizeof(head) + entry.key_length)
                    if status == WAN_OK:
                        wan_buffer_put(&self.scratch, head, sizeof(head))
                        wan_buffer_put(&self.scratch, entry.bytes, entry.key_length)
            wan_lock_release(&s.lock)
        raise_for(status, f"region {region.state.name!r}")
        found, at = [], 0
        while at < self.scratch.used:
            length = (<uint16_t *>(self.scratch.bytes + at + 2))[0]
            data = PyBytes_FromStringAndSize(<const char *>self.scratch.bytes + at + 8, length)
            found.append((Encoded(self.scratch.bytes[at], data), bool(self.scratch.bytes[at + 1])))
            at += 8 + length
        return found

    def restamp_key(self, RegionCore region not None, key, decisions=()):
        """One entry or tombstone, whatever its stamp was, is changed to what it is. `decisions` as of
        `RegionCore.change`. False: the key is not there, or was invalidated."""
        cdef encoded k
        cdef decision *decided
        cdef wan_shard *shard
        cdef wan_entry *entry
        cdef uint64_t hash, began = wan_monotonic_us()
        cdef uint32_t never = 0
        cdef wan_status status = WAN_OK
        cdef bint found = False
        region.state.check_open()
        key_holder = encode_key(key, &k)
        hash = wan_key_hash(k.data, k.length, k.form)
        shard = wan_table_shard(&region.state.r.table, hash)
        decided = make_decisions(decisions, region.state.name, key)
        try:
            while True:
                with nogil:
                    wan_lock_take(&shard.lock)
                    entry = wan_table_find(shard, hash, k.data, <uint16_t>k.length, k.form)
                    found = entry != NULL and entry.state != WAN_ENTRY_INVALID
                    status = restamp_held(&region.state.r, shard, hash, entry, &self.scratch, decided) if found else WAN_OK
                    wan_lock_release(&shard.lock)
                if status != WAN_FULL or wan_monotonic_us() - began > REPAIR_PATIENCE_US:
                    break
                PyErr_CheckSignals()
                with nogil:
                    wan_wait_change(&never, 0, 5)
        finally:
            free(decided)
        if status != WAN_OK:
            region.state.fail(status, f"repair of the clock: key {described(key)}")
        return found

    def settle_region(self, RegionCore region not None):
        """Nothing is ahead in the region any more: its log says that later stamps are history, and what is remembered
        of destroys is not of the future. Not while `keep_tombstones` runs."""
        cdef wan_change c
        cdef uint64_t mark, let_go, stamp
        cdef wan_status status = WAN_OK
        cdef region_core *r = &region.state.r
        region.state.check_open()
        stamp = wan_clock_last(r.clock)
        with nogil:
            mark, let_go = min(wan_read(&r.mark), stamp), min(wan_read(&r.let_go), stamp)
            # The log knows the shrunk ones by their old stamps only: what comes for such keys is judged by the mark.
            if region_lower_tombstones(&r.table, self.limit, stamp) and r.log != NULL:
                mark = let_go = stamp
            if r.log != NULL:
                memset(&c, 0, sizeof(c))
                c.stamp, c.operation, c.key_form, c.value_form = stamp, WAN_DESTROY, WAN_FORM_BYTES, WAN_FORM_NONE
                wan_lock_take(&r.log.lock)
                status = region_log_reserve(r.log, &c)
                if status == WAN_OK:
                    region_log_stage(r.log, &c, WAN_LOGGED_MARK | WAN_LOGGED_FORGET, mark)
                    r.log.reset_staged = r.log.committer.staged
                wan_lock_release(&r.log.lock)
            if status == WAN_OK:
                wan_set(&r.mark, mark)
                wan_set(&r.let_go, let_go)
                # That record stays where it is; these go on with what lives.
                if mark:
                    status = region_raise_mark(r, mark, 0)
                if let_go and status == WAN_OK:
                    status = region_raise_mark(r, let_go, WAN_LOGGED_LET_GO)
        if status != WAN_OK:
            region.state.fail(status, "repair of the clock")
        region.lower_marks(stamp, let_go)
        if r.log != NULL:
            wan_set(&r.log.highest, stamp)

    def log_is_ahead(self, RegionCore region not None):
        """Whether the region's log, as it was when it was opened, makes the clock run ahead."""
        return region.state.r.log != NULL and wan_read(&region.state.r.log.highest) > self.limit

    # Queues

    def lower_newest(self, EventQueue queue not None):
        """Regions that are attached from now on do not take the queue's newest stamp for the time. Returns whether that
        was ahead."""
        cdef bint was_ahead
        wan_lock_take(&queue.g.lock)
        was_ahead = queue.g.counts.newest_stamp > self.limit
        if was_ahead:
            wan_set(&queue.g.counts.newest_stamp, self.began)
        wan_lock_release(&queue.g.lock)
        return was_ahead

    def restamp_events(self, EventQueue source not None, EventQueue to not None, fed):
        """Takes events that are ahead out of `source`, once what takes their place is on the disk. `source` is the
        queue `to`, or the one of its parked events. In their place is a change of the key's entry, by this repair or a
        later one, for regions in `fed`, whose changes all got into `to`; else a copy. Events that are on their way, or
        have no new stamp yet, stay. Returns (how many went, [(region, record) of which the entry has to be changed
        first])."""
        cdef uint8_t *feeds = <uint8_t *>calloc(65536, 1)
        cdef RegionCore region
        cdef uint64_t sequence, found, taken = 0
        cdef uint32_t p, never = 0
        cdef uint64_t began
        cdef uint64_t done
        cdef wan_status status = WAN_OK
        if feeds == NULL:
            raise MemoryError()
        by_number = {}
        for region in self.kept:
            by_number[region.state.r.number] = region
        stale = []
        try:
            for region in fed:
                feeds[region.state.r.number] = 1
            for p in range(source.g.queue.partition_count):
                sequence = 0
                while True:
                    wan_buffer_empty(&self.events)
                    wan_buffer_empty(&self.places)
                    found = 0
                    with nogil:
                        status = self.look(source.g, p, &sequence, &found, True)
                    raise_for(status, f"queue {source.name!r}")
                    done, began = 0, 0
                    while True:
                        with nogil:
                            status = self.replace_events(to.g, feeds, &done)
                        if status != WAN_FULL:
                            break
                        began = began or wan_monotonic_us()
                        if wan_monotonic_us() - began > REPAIR_PATIENCE_US:
                            break
                        PyErr_CheckSignals()
                        with nogil:
                            wan_wait_change(&never, 0, 5)
                    raise_for(status, f"repair of the clock: queue {to.name!r}")
                    if found:
                        to.wait_durable()
                        self.note_stale(by_number, stale)
                        with nogil:
                            taken += self.take_out(source.g, to.g)
                    if sequence == 0:
                        break
        finally:
            free(feeds)
        return taken, stale

    cdef int note_stale(self, dict by_number, list stale) except -1:
        cdef const event_place *place = <const event_place *>self.places.bytes
        cdef const wan_record *record
        cdef uint64_t at = 0
        for n in range(self.places.used // sizeof(event_place)):
            record = <const wan_record *>(self.events.bytes + at)
            if place[n].stays == 2:
                stale.append((by_number[record.region], PyBytes_FromStringAndSize(<const char *>record, wan_record_length(record))))
            at += wan_record_length(record)
        return 0

    cdef wan_status replace_events(self, gateway_queue *g, const uint8_t *feeds, uint64_t *done) noexcept nogil:
        """From event number `done` of those that were copied on, which is then where to go on."""
        cdef event_place *place = <event_place *>self.places.bytes
        cdef wan_record *record
        cdef region_core *r
        cdef wan_shard *shard
        cdef wan_entry *entry
        cdef uint64_t at = 0, n, hash
        cdef wan_status status = WAN_OK
        for n in range(self.places.used // sizeof(event_place)):
            record = <wan_record *>(self.events.bytes + at)
            at += wan_record_length(record)
            if n < done[0]:
                continue
            r = self.regions[record.region]
            hash = wan_key_hash(wan_record_key(record), record.key_length, record.key_form)
            if r == NULL or not r.stores:
                status = self.append_renamed(g, record, hash, &place[n])
            else:
                shard = wan_table_shard(&r.table, hash)
                wan_lock_take(&shard.lock)
                entry = wan_table_find(shard, hash, wan_record_key(record), record.key_length, record.key_form)
                if entry == NULL or entry.state == WAN_ENTRY_INVALID:
                    status = self.append_renamed(g, record, hash, &place[n])
                elif entry.stamp > self.limit:
                    place[n].stays = 1          # It was changed meanwhile, with a stamp that is ahead.
                elif entry.stamp < self.began:
                    place[n].stays = 2          # Of before a crash: it has to be made later than the event.
                elif not feeds[record.region] or not takes_events(r, g):
                    status = self.append_entry(g, record, hash, entry)
                wan_lock_release(&shard.lock)
            if status != WAN_OK:
                return status
            done[0] += 1
        return WAN_OK

    cdef wan_status append_renamed(self, gateway_queue *g, wan_record *record, uint64_t hash,
                                   event_place *place) noexcept nogil:
        """The event as it is, with the new stamp of its old one."""
        cdef uint64_t stamp = self.stamp_for(record.stamp), old = record.stamp
        cdef uint8_t site = record.stamp_site, flags = record.flags
        cdef wan_status status
        if stamp == 0:
            place.stays = 1
            return WAN_OK
        record.stamp, record.stamp_site = stamp, self.site
        record.flags &= ~WAN_FLAG_GIVEN
        status = queue_append_restamped(g, hash, record)
        if status != WAN_OK:
            record.stamp, record.stamp_site, record.flags = old, site, flags
        return status

    cdef wan_status append_entry(self, gateway_queue *g, const wan_record *record, uint64_t hash,
                                 const wan_entry *entry) noexcept nogil:
        """What the entry is now, in place of the event."""
        cdef bint destroyed = entry.state == WAN_ENTRY_TOMBSTONE
        cdef uint32_t value_length = 0 if destroyed else entry.value_length
        cdef uint64_t length = wan_record_size(record.key_length, value_length, record.callback_length,
                                               record.recipients_count)
        cdef wan_record head = record[0]
        wan_buffer_empty(&self.scratch)
        cdef wan_status status = wan_buffer_reserve(&self.scratch, length)
        if status != WAN_OK:
            return status
        head.value_length, head.stamp, head.stamp_site, head.flags = value_length, entry.stamp, entry.stamp_site, 0
        head.operation = WAN_DESTROY if destroyed else WAN_UPDATE
        head.value_form = WAN_FORM_NONE if destroyed else entry.value_form
        wan_record_write(self.scratch.bytes, length, head, wan_record_key(record), wan_entry_value(entry), wan_record_callback(record),
                         wan_record_recipients(record))
        return queue_append_restamped(g, hash, <const wan_record *>self.scratch.bytes)

    cdef uint64_t take_out(self, gateway_queue *source, gateway_queue *to) noexcept nogil:
        """Those events become holes that are not on their way by now."""
        cdef const event_place *place = <const event_place *>self.places.bytes
        cdef wan_partition *partition
        cdef uint64_t taken = 0, n
        wan_lock_take(&source.lock)
        for n in range(self.places.used // sizeof(event_place)):
            partition = &source.queue.partitions[place[n].partition]
            if place[n].stays or place[n].sequence <= partition.peeked:
                continue
            if wan_queue_at(&source.queue, partition, place[n].sequence) == NULL:
                continue
            wan_queue_punch(&source.queue, place[n].partition, place[n].sequence, WAN_HOLE_RESTAMPED)
            taken += 1
        source.counts.restamped += taken
        for n in range(source.dispatchers):
            queue_refresh_pending(source, <uint32_t>n)
        wan_lock_release(&source.lock)
        if source != to:
            wan_lock_take(&to.lock)
            n = min(taken, to.counts.parked)
            to.counts.parked -= n
            to.counts.restamped += n
            wan_lock_release(&to.lock)
        return taken

    def settle_queue(self, EventQueue queue not None):
        """Nothing is ahead in the queue any more: on the disk, too, it has no stamp of the future."""
        wan_lock_take(&queue.g.lock)
        wan_set(&queue.g.counts.newest_stamp, wan_clock_last(&self.clock.clock))
        queue.g.counts.clock_repairs += 1
        wan_lock_release(&queue.g.lock)
        if queue.g.durable != NULL:
            committer_wake(&queue.g.durable.committer)
            queue.wait_for_log(FOR_REPAIR, 60.0,
                               "a restart makes the clock run ahead again; repeat it when the disk takes it")
