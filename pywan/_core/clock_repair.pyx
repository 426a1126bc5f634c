# Owns the repair of a member whose stamps ran ahead of the time: what is more than `AHEAD_MS` ahead, in regions and in
# queues, gets stamps of now, and is sent again. This file has the queues. Locks are taken as on the put path: an entry
# lock first, then a queue's or the region log's.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from cpython.exc cimport PyErr_CheckSignals
from cpython.bytes cimport PyBytes_FromStringAndSize
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_store cimport *
from pywan._core.c_region cimport *
from pywan._core.c_system cimport *
from pywan._core.clock cimport Clock
from pywan._core.committer cimport committer_wake
from pywan._core.enqueue cimport ENQUEUE_ASK, ENQUEUE_ENTERS, decide_enqueue, enqueue_decision
from pywan._core.event_queue cimport EventQueue, check_whole
from pywan._core.queue cimport (
    gateway_queue, queue_can_read, queue_commit, queue_note_copy, queue_partition_of, queue_refresh_ready,
    queue_reserve)
from pywan._core.queue_committer cimport FOR_REPAIR
from pywan._core.region cimport RegionCore
from pywan._core.region_repair cimport REPAIR_PATIENCE_US, RegionRepair
from pywan._core.region_state cimport origin, region_core
from pywan._core.repair_stamps cimport note_stamp, stamp_for
from pywan._core.status cimport raise_for


cdef enum:
    REPAIR_EVENTS = 4096            # Looked at under one hold of a queue's lock;
    REPAIR_BYTES = 4 << 20          # copied out of it in one go.


cdef struct event_place:
    uint64_t sequence
    uint32_t partition
    # It is not taken out: what is to take its place is not in the queue. 2: the entry has to be changed first.
    uint32_t stays


cdef class ClockRepair(RegionRepair):
    """One repair of a member's stamps: what is ahead of the time as of its beginning. `regions`: those of the member
    that are repaired, with the events of theirs; `others`: whether events of any region that the member does not have
    are, too. One thread at a time."""
    cdef region_core *regions[65536]    # By number.
    cdef uint8_t wanted[65536]          # Regions whose events are repaired.
    cdef object kept
    cdef wan_buffer events, places      # Copies of events, and for each its event_place.

    def __cinit__(self, Clock clock not None, regions, *, int site=0, bint others=True):
        cdef RegionCore region
        self.kept = tuple(regions)
        memset(self.wanted, others, sizeof(self.wanted))
        for region in self.kept:
            self.regions[region.state.region.number] = &region.state.region
            self.wanted[region.state.region.number] = 1

    def __dealloc__(self):
        wan_buffer_close(&self.events)
        wan_buffer_close(&self.places)

    def count_events(self, EventQueue queue not None):
        """How many events of the queue have stamps that are ahead. They have places among the new stamps from now
        on."""
        cdef uint64_t found = 0, sequence
        cdef uint32_t p
        cdef wan_status status = WAN_OK
        with nogil:
            for p in range(queue.gateway.queue.partition_count):
                sequence = 0
                while status == WAN_OK:
                    wan_buffer_empty(&self.events)
                    status = look(self, queue.gateway, p, &sequence, &found, False)
                    if sequence == 0:
                        break
        raise_for(status, f"queue {queue.name!r}")
        return found

    def lower_newest(self, EventQueue queue not None):
        """Regions that are attached from now on do not take the queue's newest stamp for the time. Returns whether that
        was ahead."""
        cdef bint was_ahead
        wan_lock_take(&queue.gateway.lock)
        was_ahead = queue.gateway.counts.newest_stamp > self.limit
        if was_ahead:
            wan_set(&queue.gateway.counts.newest_stamp, self.began)
        wan_lock_release(&queue.gateway.lock)
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
            by_number[region.state.region.number] = region
        stale = []
        try:
            check_whole(source)         # What takes the place of its events is queued before they are taken out.
            for region in fed:
                feeds[region.state.region.number] = 1
            for p in range(source.gateway.queue.partition_count):
                sequence = 0
                while True:
                    wan_buffer_empty(&self.events)
                    wan_buffer_empty(&self.places)
                    found = 0
                    with nogil:
                        status = look(self, source.gateway, p, &sequence, &found, True)
                    raise_for(status, f"queue {source.name!r}")
                    done, began = 0, 0
                    while True:
                        with nogil:
                            status = replace_events(self, to.gateway, feeds, &done)
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
                        note_stale(self, by_number, stale)
                        with nogil:
                            taken += take_out(self, source.gateway, to.gateway)
                    if sequence == 0:
                        break
        finally:
            free(feeds)
        return taken, stale

    def is_fed(self, EventQueue queue not None, RegionCore region not None):
        """Whether what is changed in the region gets into the queue now."""
        cdef wan_shard *shard = &region.state.region.table.shards[0]
        wan_lock_take(&shard.lock)      # Any entry lock: it keeps the attachment alive.
        is_fed = takes_events(&region.state.region, queue.gateway)
        wan_lock_release(&shard.lock)
        return is_fed

    def settle_queue(self, EventQueue queue not None):
        """Nothing is ahead in the queue any more: on the disk, too, it has no stamp of the future."""
        wan_lock_take(&queue.gateway.lock)
        wan_set(&queue.gateway.counts.newest_stamp, wan_clock_last(&self.clock.clock))
        queue.gateway.counts.clock_repairs += 1
        wan_lock_release(&queue.gateway.lock)
        if queue.gateway.durable != NULL:
            committer_wake(&queue.gateway.durable.committer)
            queue.wait_for_log(FOR_REPAIR, 60.0,
                               "a restart makes the clock run ahead again; repeat it when the disk takes it")


cdef wan_status look(ClockRepair self, gateway_queue *gateway, uint32_t p, uint64_t *sequence, uint64_t *found,
                     bint copies) noexcept nogil:
    """At events of a partition behind `sequence`, which is then where to go on; 0: that was the last one. Counts
    those that are ahead, and notes their stamps; with `copies` copies those that are not on their way to `events`,
    and leaves the others out of what it counts."""
    cdef wan_partition *partition = &gateway.queue.partitions[p]
    cdef wan_record *record
    cdef event_place place
    cdef uint32_t looked = 0
    cdef wan_status status = WAN_OK
    wan_lock_take(&gateway.lock)
    sequence[0] = max(sequence[0], partition.peeked if copies else partition.removed)
    while status == WAN_OK and looked < REPAIR_EVENTS and self.events.used < REPAIR_BYTES:
        sequence[0] = wan_queue_next_live(partition, sequence[0] + 1, partition.appended)
        if sequence[0] == 0:
            break
        looked += 1
        if not queue_can_read(gateway, p, sequence[0]):
            status = WAN_IO
            break
        record = wan_queue_at(&gateway.queue, partition, sequence[0])
        if record.stamp <= self.limit or not self.wanted[record.region]:
            continue
        found[0] += 1
        if copies:
            place.sequence, place.partition, place.stays = sequence[0], p, 0
            status = wan_buffer_add(&self.places, &place, sizeof(place))
            if status == WAN_OK:
                status = wan_buffer_add(&self.events, record, wan_record_length(record))
        else:
            status = note_stamp(self, record.stamp)
    wan_lock_release(&gateway.lock)
    return status


cdef wan_status replace_events(ClockRepair self, gateway_queue *gateway, const uint8_t *feeds, uint64_t *done) noexcept nogil:
    """From event number `done` of those that were copied on, which is then where to go on."""
    cdef event_place *place = <event_place *>self.places.bytes
    cdef wan_record *record
    cdef region_core *region
    cdef wan_shard *shard
    cdef wan_entry *entry
    cdef uint64_t at = 0, n, hash
    cdef wan_status status = WAN_OK
    for n in range(self.places.used // sizeof(event_place)):
        record = <wan_record *>(self.events.bytes + at)
        at += wan_record_length(record)
        if n < done[0]:
            continue
        region = self.regions[record.region]
        hash = wan_key_hash(wan_record_key(record), record.key_length, record.key_form)
        if region == NULL or not region.stores:
            status = append_renamed(self, gateway, record, hash, &place[n])
        else:
            shard = wan_table_shard(&region.table, hash)
            wan_lock_take(&shard.lock)
            entry = wan_table_find(shard, hash, wan_record_key(record), record.key_length, record.key_form)
            if entry == NULL or entry.state == WAN_ENTRY_INVALID:
                status = append_renamed(self, gateway, record, hash, &place[n])
            elif entry.stamp > self.limit:
                place[n].stays = 1          # It was changed meanwhile, with a stamp that is ahead.
            elif entry.stamp < self.began:
                place[n].stays = 2          # Of before a crash: it has to be made later than the event.
            elif not feeds[record.region] or not takes_events(region, gateway):
                status = append_entry(self, gateway, record, hash, entry)
            wan_lock_release(&shard.lock)
        if status != WAN_OK:
            return status
        done[0] += 1
    return WAN_OK


cdef wan_status append_renamed(ClockRepair self, gateway_queue *gateway, wan_record *record, uint64_t hash,
                               event_place *place) noexcept nogil:
    """The event as it is, with the new stamp of its old one."""
    cdef uint64_t stamp = stamp_for(self, record.stamp), old = record.stamp
    cdef uint8_t site = record.stamp_site, flags = record.flags
    cdef wan_status status
    if stamp == 0:
        place.stays = 1
        return WAN_OK
    record.stamp, record.stamp_site = stamp, self.site
    record.flags &= ~WAN_FLAG_GIVEN
    status = queue_append_restamped(gateway, hash, record)
    if status != WAN_OK:
        record.stamp, record.stamp_site, record.flags = old, site, flags
    return status


cdef wan_status append_entry(ClockRepair self, gateway_queue *gateway, const wan_record *record, uint64_t hash,
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
    return queue_append_restamped(gateway, hash, <const wan_record *>self.scratch.bytes)


cdef int note_stale(ClockRepair self, dict by_number, list stale) except -1:
    cdef const event_place *place = <const event_place *>self.places.bytes
    cdef const wan_record *record
    cdef uint64_t at = 0
    for n in range(self.places.used // sizeof(event_place)):
        record = <const wan_record *>(self.events.bytes + at)
        if place[n].stays == 2:
            stale.append((by_number[record.region], PyBytes_FromStringAndSize(<const char *>record, wan_record_length(record))))
        at += wan_record_length(record)
    return 0


cdef uint64_t take_out(ClockRepair self, gateway_queue *source, gateway_queue *to) noexcept nogil:
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
        wan_queue_make_hole(&source.queue, place[n].partition, place[n].sequence, WAN_HOLE_RESTAMPED)
        taken += 1
    source.counts.restamped += taken
    for n in range(source.dispatchers):
        queue_refresh_ready(source, <uint32_t>n)
    wan_lock_release(&source.lock)
    if source != to:
        wan_lock_take(&to.lock)
        n = min(taken, to.counts.parked)
        to.counts.parked -= n
        to.counts.restamped += n
        wan_lock_release(&to.lock)
    return taken


cdef bint takes_events(const region_core *region, const gateway_queue *gateway) noexcept nogil:
    """Under an entry lock: what is changed here in the region gets into this queue, if its sender's filters let it."""
    cdef origin made_here
    cdef enqueue_decision decided
    if region.attached == NULL or not region.forwards:
        return False
    memset(&made_here, 0, sizeof(made_here))
    made_here.site = region.site
    decide_enqueue(region.attached, &made_here, region.site, NULL, &decided)
    for n in range(decided.count):
        if region.attached.queues[n] == gateway:
            return decided.verdicts[n] == ENQUEUE_ENTERS or decided.verdicts[n] == ENQUEUE_ASK
    return False


cdef wan_status queue_append_restamped(gateway_queue *gateway, uint64_t hash, const wan_record *record) noexcept nogil:
    """A copy with another stamp: an event of its own. Takes and releases the lock."""
    cdef wan_reservation reservation
    cdef int wake = -1
    cdef uint32_t length = wan_record_length(record)
    cdef uint32_t partition = queue_partition_of(gateway, record, hash)
    wan_lock_take(&gateway.lock)
    cdef wan_status status = queue_reserve(gateway, partition, length, &reservation)
    if status == WAN_OK:
        memcpy(reservation.at, record, length)
        queue_note_copy(gateway, record)
        wake = queue_commit(gateway, &reservation)
        gateway.counts.queued += 1
        gateway.counts.received += 1
    wan_lock_release(&gateway.lock)
    if wake >= 0:
        eventfd_write(wake, 1)
    return status
