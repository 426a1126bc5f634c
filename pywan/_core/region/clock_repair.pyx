# Owns the repair of a member whose stamps ran ahead of the time. Entries and events that are more than `AHEAD_MS` ahead
# get new stamps of now, and are sent again. The file repairs the queues; region_repair repairs the regions. Locks are
# taken as on the put path: an entry lock first, then the lock of a queue or of the region's log.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from cpython.exc cimport PyErr_CheckSignals
from cpython.bytes cimport PyBytes_FromStringAndSize
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_store cimport *
from pywan._core.c_system cimport *
from pywan._core.base.clock cimport Clock
from pywan._core.log.committer cimport committer_wake
from pywan._core.region.enqueue cimport ENQUEUE_ASK, ENQUEUE_ENTERS, decide_enqueue, enqueue_decision
from pywan._core.queue.event_queue cimport EventQueue, check_whole
from pywan._core.queue.queue cimport (
    gateway_queue, queue_can_read, queue_commit, queue_note_copy, queue_partition_of, queue_refresh_ready,
    queue_reserve)
from pywan._core.queue.queue_committer cimport FOR_REPAIR
from pywan._core.region.region cimport RegionCore
from pywan._core.region.region_repair cimport REPAIR_PATIENCE_US, RegionRepair
from pywan._core.region.region_state cimport attachment, origin, region_core
from pywan._core.region.repair_stamps cimport note_stamp, stamp_for
from pywan._core.base.status cimport raise_for


cdef enum:
    REPAIR_EVENTS = 4096            # Events examined under one hold of a queue's lock, at most.
    REPAIR_BYTES = 4 << 20          # Copying stops for the moment when the copies have this number of bytes.


cdef struct event_position:
    uint64_t sequence
    uint32_t partition
    uint32_t stays                  # STAYS_*


# Why an event is not taken out of its queue in this round. 0: the event is taken out.
cdef enum:
    # The event has no new stamp yet, or its entry was changed meanwhile with a stamp that is ahead.
    STAYS_AHEAD = 1
    STAYS_STALE = 2                 # The entry is older than the repair, and has to be changed first.


cdef class ClockRepair(RegionRepair):
    """One repair of a member's stamps that were ahead of the time when the repair began. `regions`: the member's
    regions that are repaired together with their events. `others`: whether events of regions that the member does not
    have are repaired too. One thread at a time."""
    cdef region_core *regions[65536]    # By number.
    cdef uint8_t wanted[65536]          # Regions whose events are repaired.
    cdef object kept
    cdef wan_buffer events, positions      # Copies of events, and the event_position of each copy.

    def __cinit__(self, Clock clock not None, regions, *, int site=0, bint others=True):
        cdef RegionCore region
        self.kept = tuple(regions)
        memset(self.wanted, others, sizeof(self.wanted))
        for region in self.kept:
            self.regions[region.state.region.number] = &region.state.region
            self.wanted[region.state.region.number] = 1

    def __dealloc__(self):
        wan_buffer_close(&self.events)
        wan_buffer_close(&self.positions)

    def count_events(self, EventQueue queue not None):
        """Counts the events of the queue with stamps that are ahead, and notes the stamps. The next `give_stamps` gives
        new stamps for them."""
        cdef uint64_t found = 0, sequence
        cdef uint32_t number
        cdef wan_status status = WAN_OK
        with nogil:
            for number in range(queue.gateway.queue.partition_count):
                sequence = 0
                while status == WAN_OK:
                    wan_buffer_empty(&self.events)
                    status = look(self, queue.gateway, number, &sequence, &found, False)
                    if sequence == 0:
                        break
        raise_for(status, f"queue {queue.name!r}")
        return found

    def lower_newest(self, EventQueue queue not None):
        """Sets back the queue's newest stamp if the stamp is ahead, and returns whether it was ahead. Otherwise the
        next region that attaches the queue would raise the clock to the stamp."""
        cdef bint was_ahead
        with nogil:
            wan_lock_take(&queue.gateway.lock)
            was_ahead = queue.gateway.counts.newest_stamp > self.limit
            if was_ahead:
                wan_set(&queue.gateway.counts.newest_stamp, self.began)
            wan_lock_release(&queue.gateway.lock)
        return was_ahead

    def restamp_events(self, EventQueue source not None, EventQueue to not None, fed):
        """Takes events that are ahead out of `source`, once the events that replace them are on the disk. `source` is
        the queue `to`, or the queue of its parked events.

        `fed` names the regions whose changes all entered queue `to`. So the event of a change of the key's entry, by
        the repair or later, replaces the old event. In all other regions a copy with a new stamp replaces the old
        event. Events that are in flight, or have no new stamp yet, stay in the queue. Returns (how many were taken out,
        [(region, record)]): the list has the records whose entries have to be changed first."""
        cdef uint8_t *feeds = <uint8_t *>calloc(65536, 1)
        cdef RegionCore region
        cdef uint64_t sequence, found, taken = 0
        cdef uint32_t number, never = 0
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
            check_whole(source)         # Before any event is queued: a broken queue's events could not be taken out.
            for region in fed:
                feeds[region.state.region.number] = 1
            for number in range(source.gateway.queue.partition_count):
                sequence = 0
                while True:
                    wan_buffer_empty(&self.events)
                    wan_buffer_empty(&self.positions)
                    found = 0
                    with nogil:
                        status = look(self, source.gateway, number, &sequence, &found, True)
                    raise_for(status, f"queue {source.name!r}")
                    done, began = 0, 0
                    while True:
                        with nogil:
                            status = replace_events(self, to.gateway, feeds, source is to, &done)
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
        """Whether the region's changes get into the queue now."""
        cdef wan_shard *shard = &region.state.region.table.shards[0]
        cdef bint is_fed
        with nogil:
            wan_lock_take(&shard.lock)      # Any entry lock keeps the attachment alive.
            is_fed = takes_events(&region.state.region, queue.gateway)
            wan_lock_release(&shard.lock)
        return is_fed

    def finish_queue(self, EventQueue queue not None):
        """Ends the repair of a queue in which nothing is ahead any more. When the call returns, the queue's files have
        no stamp of the future either."""
        with nogil:
            wan_lock_take(&queue.gateway.lock)
            wan_set(&queue.gateway.counts.newest_stamp, wan_clock_last(&self.clock.clock))
            queue.gateway.counts.clock_repairs += 1
            wan_lock_release(&queue.gateway.lock)
        if queue.gateway.durable != NULL:
            committer_wake(&queue.gateway.durable.committer)
            queue.wait_for_log(FOR_REPAIR, 60.0,
                               "a restart makes the clock run ahead again; repeat it when the disk takes it")


cdef wan_status look(ClockRepair self, gateway_queue *gateway, uint32_t number, uint64_t *sequence, uint64_t *found,
                     bint copies) noexcept nogil:
    """Looks at the events of a partition behind `sequence`. Afterwards `sequence` is the position for the next call; 0:
    the last event was reached. If `copies` is not set, counts all events that are ahead, and notes their stamps. If
    `copies` is set, counts only events that are not in flight, and copies them to `events`."""
    cdef wan_partition *partition = &gateway.queue.partitions[number]
    cdef wan_record *record
    cdef event_position position
    cdef uint32_t looked = 0
    cdef wan_status status = WAN_OK
    wan_lock_take(&gateway.lock)
    sequence[0] = max(sequence[0], partition.peeked if copies else partition.removed)
    while status == WAN_OK and looked < REPAIR_EVENTS and self.events.used < REPAIR_BYTES:
        sequence[0] = wan_queue_next_live(partition, sequence[0] + 1, partition.appended)
        if sequence[0] == 0:
            break
        looked += 1
        if not queue_can_read(gateway, number, sequence[0]):
            status = WAN_IO
            break
        record = wan_queue_at(&gateway.queue, partition, sequence[0])
        if record.stamp <= self.limit or not self.wanted[record.region]:
            continue
        found[0] += 1
        if copies:
            position.sequence, position.partition, position.stays = sequence[0], number, 0
            status = wan_buffer_add(&self.positions, &position, sizeof(position))
            if status == WAN_OK:
                status = wan_buffer_add(&self.events, record, wan_record_length(record))
        else:
            status = note_stamp(self, record.stamp)
    wan_lock_release(&gateway.lock)
    return status


cdef wan_status replace_events(ClockRepair self, gateway_queue *gateway, const uint8_t *feeds,
                               bint from_queue, uint64_t *done) noexcept nogil:
    """Queues the replacements of the copied events, from number `done` on. Afterwards `done` says where to go on.

    If not `from_queue`, the events are parked. Nothing is queued here for events that a substitution filter withheld,
    since the filter would not be asked. If the region feeds the queue, the entry's new event was withheld again."""
    cdef event_position *position = <event_position *>self.positions.bytes
    cdef wan_record *record
    cdef region_core *region
    cdef wan_shard *shard
    cdef wan_entry *entry
    cdef uint64_t at = 0, n, hash
    cdef wan_status status = WAN_OK
    for n in range(self.positions.used // sizeof(event_position)):
        record = <wan_record *>(self.events.bytes + at)
        at += wan_record_length(record)
        if n < done[0]:
            continue
        region = self.regions[record.region]
        hash = wan_key_hash(wan_record_key(record), record.key_length, record.key_form)
        if not from_queue and position[n].partition == WAN_FAILED_WITHHELD:
            done[0] += 1
            continue
        if region == NULL or not region.stores:
            status = append_renamed(self, gateway, record, hash, &position[n])
        else:
            shard = wan_table_shard(&region.table, hash)
            wan_lock_take(&shard.lock)
            entry = wan_table_find(shard, hash, wan_record_key(record), record.key_length, record.key_form)
            if entry == NULL or entry.state == WAN_ENTRY_INVALID:
                status = append_renamed(self, gateway, record, hash, &position[n])
            elif entry.stamp > self.limit:
                position[n].stays = STAYS_AHEAD     # Changed meanwhile, with a stamp that is ahead.
            elif entry.stamp < self.began:
                position[n].stays = STAYS_STALE     # From before a crash, and older than the event.
            elif not feeds[record.region] or not takes_events(region, gateway):
                status = append_entry(self, gateway, record, hash, entry)
            wan_lock_release(&shard.lock)
        if status != WAN_OK:
            return status
        done[0] += 1
    return WAN_OK


cdef wan_status append_renamed(ClockRepair self, gateway_queue *gateway, wan_record *record, uint64_t hash,
                               event_position *position) noexcept nogil:
    """Appends the event unchanged, but with the new stamp in place of the old stamp."""
    cdef uint64_t stamp = stamp_for(self, record.stamp), old = record.stamp
    cdef uint8_t site = record.stamp_site, flags = record.flags
    cdef wan_status status
    if stamp == 0:
        position.stays = STAYS_AHEAD
        return WAN_OK
    record.stamp, record.stamp_site = stamp, self.site
    record.flags &= ~WAN_FLAG_GIVEN
    status = queue_append_restamped(gateway, hash, record)
    if status != WAN_OK:
        record.stamp, record.stamp_site, record.flags = old, site, flags
    return status


cdef wan_status append_entry(ClockRepair self, gateway_queue *gateway, const wan_record *record, uint64_t hash,
                             const wan_entry *entry) noexcept nogil:
    """Appends an event with the entry's present value, in place of the old event."""
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
    wan_record_write(self.scratch.bytes, length, head, wan_record_key(record), wan_entry_value(entry),
                     wan_record_callback(record), wan_record_recipients(record))
    return queue_append_restamped(gateway, hash, <const wan_record *>self.scratch.bytes)


cdef int note_stale(ClockRepair self, dict by_number, list stale) except -1:
    """Adds the events that stay because their entry has to be changed first to `stale`."""
    cdef const event_position *position = <const event_position *>self.positions.bytes
    cdef const wan_record *record
    cdef uint64_t at = 0
    for n in range(self.positions.used // sizeof(event_position)):
        record = <const wan_record *>(self.events.bytes + at)
        if position[n].stays == STAYS_STALE:
            data = PyBytes_FromStringAndSize(<const char *>record, wan_record_length(record))
            stale.append((by_number[record.region], data))
        at += wan_record_length(record)
    return 0


cdef uint64_t take_out(ClockRepair self, gateway_queue *source, gateway_queue *to) noexcept nogil:
    """Makes holes of the replaced events that are not in flight by now, and returns how many."""
    cdef const event_position *position = <const event_position *>self.positions.bytes
    cdef wan_partition *partition
    cdef uint64_t taken = 0, n
    wan_lock_take(&source.lock)
    for n in range(self.positions.used // sizeof(event_position)):
        partition = &source.queue.partitions[position[n].partition]
        if position[n].stays or position[n].sequence <= partition.peeked:
            continue
        if wan_queue_at(&source.queue, partition, position[n].sequence) == NULL:
            continue
        wan_queue_make_hole(&source.queue, position[n].partition, position[n].sequence, WAN_HOLE_RESTAMPED)
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
    """Whether a local change in the region gets into this queue, if the sender's filters let the event pass. Under an
    entry lock."""
    cdef const attachment *attached = region.attached
    cdef origin made_here
    cdef enqueue_decision decided
    if attached == NULL or not region.forwards:
        return False
    memset(&made_here, 0, sizeof(made_here))
    made_here.site = region.site
    decide_enqueue(attached, &made_here, region.site, NULL, &decided)
    for n in range(decided.count):
        if attached.queues[n] == gateway:
            return decided.verdicts[n] == ENQUEUE_ENTERS or decided.verdicts[n] == ENQUEUE_ASK
    return False


cdef wan_status queue_append_restamped(gateway_queue *gateway, uint64_t hash, const wan_record *record) noexcept nogil:
    """Appends a copy with a different stamp, as an event of its own. Takes and releases the queue's lock."""
    cdef wan_reservation reservation
    cdef int wake = -1
    cdef uint32_t length = wan_record_length(record)
    cdef uint32_t partition = queue_partition_of(gateway, record, hash)
    wan_lock_take(&gateway.lock)
    cdef wan_status status = queue_reserve(gateway, partition, 0, length, &reservation)
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
