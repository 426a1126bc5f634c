# Owns one connection's way from bytes to the region tables. `ReceiverSession` knows no socket and no clock: bytes and
# `now` come in, bytes and the next deadline go out.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, qsort, realloc
from libc.string cimport memmove, memset
from cpython.bytes cimport PyBytes_FromStringAndSize
from pywan._core.c_base cimport *
from pywan._core.c_copies cimport *
from pywan._core.c_record cimport *
from pywan._core.c_tables cimport *
from pywan._core.c_region cimport *
from pywan._core.c_system cimport *
from pywan._core.base.clock cimport Clock
from pywan._core.calls.call_events cimport (
    EventCalls, add_to_run, drop_round, event_place, failed_event, is_applied_here, note_applied_here, shared_out,
    wait_until_counted)
from pywan._core.region.apply_event cimport (
    ASKED_ELSEWHERE, ASKED_LOST, EVENT_LOST, EVENT_NOT_TAKEN, is_event_ahead, region_apply_event)
from pywan._core.wire.lz4 cimport lz4_load, lz4_unpack
from pywan._core.region.put cimport (
    change_from_record, origin_from_record, region_change, region_is_full, region_relieve)
from pywan._core.region.region cimport RegionCore
from pywan._core.region.region_state cimport origin, region_core
from pywan._core.wire.session cimport ENDED_CLOSED, ENDED_STOPPED, ENDED_TOLD, GOES_AGAIN, GOES_ON, Session
from pywan._core.gateway.applied_slot cimport (
    FAILURES_KEPT, FAILURES_KEPT_ALL, applied_slot, first_failure, forget_applied, forget_failures, remember_failure)
from pywan._core.gateway.source_memory cimport ReceiverCounts, SourceMemory
from pywan._core.gateway.stream_memory cimport StreamMemory, begin_section, release_run, stream_run
from pywan._core.base.status cimport detail_text, end_if_strayed, report_unraisable
from pywan._core.wire.stream cimport (
    BUFFER_KEPT_BYTES, STREAM_CLOSED, buffer_close_frame, buffer_frame, buffer_open_frame, buffer_reserve, buffer_trim)


cdef enum:
    CREDIT_EVENTS = 4000000
    # Records are applied in groups. A group takes three steps: its slots are fetched, then its entries, then it is
    # applied. Three groups are on their way at once, so the ring has room for at least three. It is a power of two.
    # The slots and entries of a group are 16 lines. A processor fetches some two dozens at once, and the entry lock of
    # each record waits until they have come.
    GROUP_RECORDS = 4
    RING_RECORDS = 16
    REGION_NAME_BYTES = 1024
    STUCK_US = 30000000         # A sender that takes nothing of what it is told for so long is given up.
    # The same for silence, if the sender's queue was opened elsewhere: its heartbeat, 5 s at most, and the way of that.
    CONTESTED_US = 8000000
    # The receiver tells its progress at most so often, in the middle of a batch or while a batch is still coming.
    PROGRESS_US = 1000000
    # It looks at the clock after at most so many records, and after each one with user's Python on the way.
    PROGRESS_RECORDS = 256
    # A round of events of shared regions ends with so many events, or so many bytes that go to other members, though
    # more are here. One event may be longer; then it goes alone.
    ROUND_EVENTS = 8192
    ROUND_BYTES = 8 << 20
    FULL_SLICE_MS = 20              # A wait for memory is so long at a time.


cdef enum:
    # What became of an event. A positive number is a reason of failure. ELSEWHERE: another member leads its bucket.
    APPLIED = 0, REFUSED = -1, LOST = ASKED_LOST, ELSEWHERE = ASKED_ELSEWHERE

# What `callback_apply` returns of these.
APPLY_DONE, APPLY_LOST, APPLY_ELSEWHERE = <int>APPLIED, <int>LOST, <int>ELSEWHERE


cdef struct region_slot:
    region_core *core           # NULL: it was not found at the last look.
    uint64_t looked_batch       # The batch of this connection in which it was last looked up.
    shared_out *shared[2]       # What is shared out of it, by round. NULL: nothing was, since it was looked up.


cdef struct connection_partition:
    applied_slot *slot          # What was applied of it. NULL: no stream was named for it.
    uint64_t through            # Its last section on this connection. 0: there was none yet.
    # The stream that it is. NULL: it is an own partition of the queue, and the rest has no meaning.
    stream_run *run
    uint64_t life
    uint16_t bucket
    uint16_t region             # As records on this connection name it.
    # By round. Not 0: all events through this one were handled, and `slot` hears of it when the round has ended.
    uint64_t handled[2]


cdef struct event_round:
    # Events of shared regions that are waited for together, with all that came between them.
    wan_buffer waiting          # The partitions whose `handled` of the round is not 0, uint32_t.
    uint64_t events             # So many of them are for shared regions.
    uint64_t bytes              # Of those that go to other members.
    bint is_unacknowledged      # A batch that was handled as a whole is acknowledged with the round.
    uint64_t newest_id          # The newest one of them, when the work on it began, and the number of its last event.
    uint64_t newest_began_us
    uint64_t newest_number
    uint64_t sent_us            # When the round was sent.
    wan_receiver_counts held    # What its events add to `own` when they count.


cdef class ReceiverSession(Session):
    """One sender's connection.

    `find_region(name)` returns a RegionCore or None. `callback_apply(region, record, (partition, sequence, whether it
    may have been applied before))` is called for regions with user's Python on the way. `max_drift_ms`: stamps that are
    further ahead of our clock are refused."""
    cdef SourceMemory memory
    cdef ReceiverCounts counts
    cdef object find_region
    cdef object callback_apply
    cdef object on_floors
    cdef object on_no_memory        # Called for each event for which there was no memory.
    cdef dict names, cores
    # Events of regions that several members hold are handled in rounds (docs/decisions/0088). While one round is
    # handled, the one before is waited for: other members work on it.
    cdef event_round rounds[2]
    cdef int current                # The round that is being handled.
    cdef bint is_sent               # The other one is on its way, or waits for copies.
    cdef list shared_calls          # Two EventCalls, by round, for each such region.
    cdef wan_buffer shares[2]       # By round: the shared_out of each, a pointer.
    cdef uint64_t handled_events    # Events of this connection: numbers them in their order.
    # Regions that were replaced when batch `replaced_batch` looked them up anew. They are kept alive until the next
    # such batch.
    cdef list replaced
    cdef uint64_t replaced_batch
    cdef region_slot *regions
    cdef uint32_t region_capacity
    cdef wan_buffer unpacked
    cdef uint64_t credit_bytes
    cdef uint64_t max_drift_ms
    cdef uint64_t mount             # The mount of the sender's log.
    cdef uint64_t batch             # The number of the batch in work, from 1. It says when a region was looked up.
    cdef uint64_t expected_id       # The id of the batch that should come next on this connection.
    cdef wan_clock *clock           # The clock of the regions of this member. NULL: no region was looked up yet.
    cdef Clock clock_holder         # Keeps the clock alive.
    cdef uint64_t now_ms            # The time at the start of the batch, or at a later look.
    # Failures of the batches that are not acknowledged: at most as many as they have records.
    cdef failed_event *failures
    cdef size_t failure_count, failure_capacity
    # The partitions of this connection: first the queue's own ones, then those that streams were named for.
    cdef connection_partition *partitions
    cdef uint32_t partition_capacity
    cdef int contested_flag
    cdef uint64_t silence_us        # The sender is given up after so long without a byte; 0: it never is.
    # Records handled on this connection, and pieces of unfinished frames that came. PROGRESS tells the sender.
    cdef uint64_t steps
    cdef uint64_t told_us           # When the sender was told last.
    cdef uint32_t untold            # Records since the last look at the clock.
    cdef uint32_t born              # `wan_forks` of the process that made this session.
    cdef wan_receiver_counts own    # Counts that are not yet added to `counts`, which all connections share.
    # The region of the last event that took effect in this section, and how many events its count does not have yet.
    cdef region_core *applied_in
    cdef uint64_t applied
    # A queue of ours had no room for an event, so the connection ends without an acknowledgement.
    cdef int refused_code

    def __cinit__(self, SourceMemory memory not None, ReceiverCounts counts not None, find_region, callback_apply, *,
                  uint64_t credit_bytes=64 << 20, uint64_t max_drift_ms=300000, uint64_t mount=0, on_floors=None,
                  on_no_memory=None):
        self.mount = mount
        self.memory, self.counts, self.find_region, self.callback_apply = memory, counts, find_region, callback_apply
        self.on_floors, self.on_no_memory = on_floors, on_no_memory
        self.names, self.cores, self.replaced, self.shared_calls = {}, {}, [], []
        self.credit_bytes, self.max_drift_ms = credit_bytes, max_drift_ms
        self.speaks_last = True
        self.born = wan_forks
        self.grow_partitions(memory.partitions)
        for n in range(memory.partitions):
            self.partitions[n].slot = &memory.slots[n]
        lz4_load()

    def __dealloc__(self):
        free(self.regions)
        free(self.failures)
        for n in range(self.partition_capacity):
            if self.partitions[n].run != NULL:
                release_run(self.partitions[n].run)
        free(self.partitions)
        wan_buffer_close(&self.unpacked)
        for n in range(2):
            wan_buffer_close(&self.shares[n])
            wan_buffer_close(&self.rounds[n].waiting)

    def stop(self):
        """Makes `run` return soon, after the event in work. A batch that was not applied as a whole is not
        acknowledged."""
        wan_flag_set(&self.stop_flag, 1)

    def contest(self):
        """Notes that the sender's queue was opened elsewhere. Unless the sender says something soon, it is given up: a
        machine that lost power ends no connection."""
        wan_flag_set(&self.contested_flag, 1)

    # Regions.

    cdef int learn_region(self, const wan_frame *frame) noexcept with gil:
        cdef uint32_t number = <uint32_t>frame.id, capacity
        if frame.id > 65535:
            wan_note(WAN_CORRUPT, "region number %llu", <unsigned long long>frame.id)
            return 0
        if frame.length > REGION_NAME_BYTES:
            wan_note(WAN_CORRUPT, "region number %u has a name of %u bytes; at most %d are possible", number,
                     frame.length, REGION_NAME_BYTES)
            return 0
        try:
            name = (<const char *>(frame + 1))[:frame.length].decode()
            if number >= self.region_capacity:
                capacity = 64
                while capacity <= number:
                    capacity *= 2
                grown = realloc(self.regions, capacity * sizeof(region_slot))
                if grown == NULL:
                    wan_note(WAN_CORRUPT, "no memory for %u regions", capacity)
                    return 0
                self.regions = <region_slot *>grown
                memset(self.regions + self.region_capacity, 0, (capacity - self.region_capacity) * sizeof(region_slot))
                self.region_capacity = capacity
            self.names[number] = name
            self.regions[number].core = NULL
            self.regions[number].looked_batch = 0
            self.regions[number].shared[0] = self.regions[number].shared[1] = NULL
            return 1
        except BaseException as error:
            wan_note(WAN_CORRUPT, "region number %u has a name that is not text", number)
            return 0

    cdef int grow_partitions(self, uint32_t capacity) except -1:
        grown = realloc(self.partitions, capacity * sizeof(connection_partition))
        if grown == NULL:
            raise MemoryError()
        self.partitions = <connection_partition *>grown
        memset(self.partitions + self.partition_capacity, 0,
               (capacity - self.partition_capacity) * sizeof(connection_partition))
        self.partition_capacity = capacity
        return 0

    cdef int learn_stream(self, const wan_frame *frame) noexcept with gil:
        """Notes that the sections of a partition are of a stream from now on. 0: the connection is to be given up."""
        cdef const wan_stream *stream = <const wan_stream *>(frame + 1)
        cdef connection_partition *partition
        cdef uint32_t capacity = self.partition_capacity
        cdef stream_run *run
        if wan_stream_check(frame, self.memory.partitions) != WAN_OK:
            return 0
        if stream.region not in self.names:
            wan_note(WAN_CORRUPT, "partition %llu: a stream of region number %u, which was not named",
                     <unsigned long long>frame.id, stream.region)
            return 0
        try:
            if frame.id >= capacity:
                while capacity <= frame.id:
                    capacity *= 2
                self.grow_partitions(min(capacity, <uint32_t>WAN_WIRE_PARTITIONS))
            run = self.memory.streams.hold(self.names[stream.region], stream.buckets)
        except BaseException as error:
            text = str(error).encode("utf-8", "replace") or b"no memory for a stream"
            wan_note(WAN_CORRUPT, "%s", <const char *>text)
            return 0
        partition = &self.partitions[frame.id]
        if partition.run == run and partition.bucket == stream.bucket and partition.life >= stream.life:
            release_run(run)
            wan_note(WAN_CORRUPT, "partition %llu: life %llu of its stream is named behind life %llu",
                     <unsigned long long>frame.id, <unsigned long long>stream.life, <unsigned long long>partition.life)
            return 0
        if partition.run != NULL:
            release_run(partition.run)
        partition.run, partition.slot = run, &run.slots[stream.bucket].applied
        partition.life, partition.bucket, partition.region = stream.life, stream.bucket, stream.region
        partition.through = 0
        return 1

    cdef region_core *look_up(self, uint16_t number) noexcept with gil:
        cdef RegionCore core
        cdef StreamMemory streams
        try:
            self.regions[number].looked_batch = self.batch
            self.regions[number].shared[0] = self.regions[number].shared[1] = NULL
            found = self.find_region(self.names[number])
            if self.replaced_batch != self.batch:
                self.replaced_batch = self.batch
                self.replaced.clear()
            self.replaced.append(self.cores.get(number))    # Records of this batch may point to the old region.
            self.cores[number] = found
            core = <RegionCore?>found if found is not None else None
            self.regions[number].core = (&core.state.region if core is not None and not core.state.region.closed
                                         else NULL)
            if core is not None:
                self.clock, self.clock_holder = core.state.region.clock, core.state.clock
                self.now_ms = wan_clock_receiving_ms(self.clock)
                streams = self.memory.streams
                streams.cores = {c for c in streams.cores if not (<RegionCore>c).state.region.closed} | {core}
        except BaseException as error:
            report_unraisable("region look-up", error)
            self.regions[number].core = NULL
        return self.regions[number].core

    cdef inline region_core *region_of(self, uint16_t number) noexcept nogil:
        cdef region_core *core
        if number >= self.region_capacity:
            return NULL
        core = self.regions[number].core
        if core != NULL and not wan_flag_read(&core.closed):
            return core
        if self.regions[number].looked_batch == self.batch:
            return NULL
        if core == NULL and self.regions[number].looked_batch == 0 and not self.is_named(number):
            return NULL
        return self.look_up(number)

    cdef bint is_named(self, uint16_t number) noexcept with gil:
        return number in self.names

    # Applying.

    cdef inline bint is_ahead(self, const wan_record *record) noexcept nogil:
        """Whether the record's stamp is too far in the future. Its region was looked up before."""
        return is_event_ahead(self.clock, record, &self.now_ms, self.max_drift_ms)

    cdef int apply_one(self, region_core *core, const wan_record *record, uint64_t hash, uint32_t partition,
                       uint64_t sequence,
                       bint possible_duplicate) noexcept nogil:
        """Applies one event. Returns APPLIED, a reason of failure (> 0), or REFUSED: a queue of ours has no room, and
        nothing was changed."""
        cdef wan_change change
        cdef origin from_
        cdef wan_outcome outcome
        cdef wan_status status
        cdef int result
        if self.is_ahead(record):
            return WAN_FAILED_FUTURE_STAMP
        if core.tail != NULL:
            return self.apply_shared(core, record, hash, partition, sequence, possible_duplicate)
        if wan_flag_read(&core.durable):
            wan_flag_set(&self.memory.streams.must_wait, 1)
        change_from_record(&change, record, hash)
        origin_from_record(&from_, record, possible_duplicate)
        status = region_change(core, &change, &from_, NULL, &outcome)
        if status == WAN_SLOW:
            self.untold = PROGRESS_RECORDS
            result = self.apply_by_callbacks(record, partition, sequence, possible_duplicate)
            if result != ELSEWHERE:
                return result
            status = WAN_ELSEWHERE
        if status == WAN_CLOSED:
            return WAN_FAILED_REGION_NOT_FOUND
        if status == WAN_ELSEWHERE:     # Members share it since a moment ago.
            return self.apply_shared(core, record, hash, partition, sequence, possible_duplicate)
        if status == WAN_TOO_LARGE:     # It will never fit, so the sender must not wait for it.
            self.note_too_large()
            return WAN_FAILED_OTHER
        if status != WAN_OK:
            return REFUSED
        if outcome == WAN_LOST:
            wan_add_shared(&core.conflicts, 1)
            self.own.conflicts += 1
        elif outcome == WAN_OUT_OF_MEMORY:
            return WAN_FAILED_NO_MEMORY
        elif outcome == WAN_FORGOTTEN:
            return WAN_FAILED_FORGOTTEN
        elif outcome <= WAN_DESTROYED:
            self.note_applied(core)
        return APPLIED

    cdef int apply_shared(self, region_core *core, const wan_record *record, uint64_t hash, uint32_t partition,
                          uint64_t sequence, bint possible_duplicate) noexcept nogil:
        """Applies one event to a region that several members hold, or lets it wait for the member that leads its
        bucket. Returns as `apply_one`; APPLIED: nothing of it may be acknowledged before the round has ended."""
        cdef uint32_t bucket = wan_table_bucket(&core.table, hash).number
        cdef event_round *round = &self.rounds[self.current]
        cdef shared_out *out
        cdef event_place place
        cdef wan_change change
        cdef wan_status status = WAN_OK
        cdef bint took_effect = False
        cdef int became
        if self.regions[record.region].shared[0] == NULL and not self.begin_sharing(record.region):
            return REFUSED
        out = self.regions[record.region].shared[self.current]
        if not self.begin_to_wait(partition):
            return REFUSED
        round.events += 1
        if is_applied_here(out, self.regions[record.region].shared[self.current ^ 1], bucket):
            became = region_apply_event(core, record, hash, possible_duplicate, &change, &took_effect, &status)
            if became > 0:
                return became
            if became == EVENT_NOT_TAKEN and status == WAN_CLOSED:
                return WAN_FAILED_REGION_NOT_FOUND
            if became == EVENT_NOT_TAKEN and status == WAN_SLOW:        # A filter is asked. It counts afterwards.
                self.untold = PROGRESS_RECORDS
                became = self.apply_by_callbacks(record, partition, sequence, possible_duplicate)
                if became != ELSEWHERE:
                    return became
                became = EVENT_NOT_TAKEN
            elif became == EVENT_NOT_TAKEN and status != WAN_ELSEWHERE:
                return REFUSED
            if became != EVENT_NOT_TAKEN:
                # Read one by one: together they would be one read of two writes, which waits for both, and for all
                # writes before them.
                if not note_applied_here(out, bucket, wan_read(&change.era), wan_read(&change.sequence)):
                    return self.no_memory_to_share()
                round.held.conflicts += became == EVENT_LOST
                if took_effect:
                    self.note_applied(core)
                return APPLIED
        place.number, place.partition, place.sequence = self.handled_events, partition, sequence
        if not add_to_run(out, bucket, record, possible_duplicate, &place):
            return self.no_memory_to_share()
        round.bytes += wan_record_length(record)
        return APPLIED

    cdef int begin_sharing(self, uint16_t number) noexcept with gil:
        """Makes the region with the sender's number one that is shared out. 0: the detail says why not."""
        cdef EventCalls events
        cdef RegionCore core
        cdef shared_out *out
        try:
            core = self.cores[number]
            pair = next((each for each in self.shared_calls if (<EventCalls>each[0]).state is core.state), None)
            if pair is None:
                # What is closed is forgotten, unless some of its events wait.
                pair = EventCalls(core.state), EventCalls(core.state)
                self.shared_calls = [*(each for each in self.shared_calls if is_needed(each[0]) or is_needed(each[1])),
                                     pair]
                for n in range(2):
                    wan_buffer_empty(&self.shares[n])
                    for each in self.shared_calls:
                        out = &(<EventCalls>each[n]).out
                        if wan_buffer_add(&self.shares[n], &out, sizeof(out)) != WAN_OK:
                            raise MemoryError()
            for n in range(2):
                events = pair[n]
                self.regions[number].shared[n] = &events.out
            return 1
        except BaseException as error:
            self.refuse(error)
            return 0

    cdef inline int begin_to_wait(self, uint32_t partition) noexcept nogil:
        """Events of the partition wait for the end of this round from now on. 0: there is no memory."""
        cdef uint64_t *handled = &self.partitions[partition].handled[self.current]
        if handled[0]:
            return 1
        if wan_buffer_add(&self.rounds[self.current].waiting, &partition, sizeof(partition)) != WAN_OK:
            self.no_memory_to_share()
            return 0
        # The caller says through which sequence, when an event is handled. All before is in an earlier round.
        handled[0] = max(<uint64_t>1, self.partitions[partition].handled[self.current ^ 1])
        return 1

    cdef int no_memory_to_share(self) noexcept nogil:
        wan_note(WAN_CORRUPT, "no memory for events that wait for other members")
        return REFUSED

    cdef inline void note_applied(self, region_core *core) noexcept nogil:
        """Counts an event that took effect."""
        if core != self.applied_in:
            self.add_applied()
            self.applied_in = core
        self.applied += 1

    cdef void add_applied(self) noexcept nogil:
        """Adds the events of a section to their region's count at once: an atomic operation for each would be slow."""
        if self.applied:
            wan_add_shared(&self.applied_in.applied, self.applied)
            self.applied = 0

    cdef void note_too_large(self) noexcept with gil:
        from pywan.errors import EventTooLargeError
        report_unraisable("applying an event", EventTooLargeError(detail_text()))

    cdef int apply_by_callbacks(self, const wan_record *record, uint32_t partition, uint64_t sequence,
                                bint possible_duplicate) noexcept with gil:
        from pywan.errors import DiskError, InternalError, QueueFullError
        cdef int result
        try:
            raw = PyBytes_FromStringAndSize(<const char *>record, wan_record_length(record))
            result = self.callback_apply(self.cores[record.region], raw, (partition, sequence, possible_duplicate))
            if result == LOST:      # It lost against a later version.
                self.own.conflicts += 1
                return APPLIED
            return result
        except (QueueFullError, DiskError, InternalError) as error:
            self.refuse(error)
            return REFUSED
        except MemoryError:
            return WAN_FAILED_NO_MEMORY
        except BaseException as error:
            report_unraisable("applying an event", error)
            return WAN_FAILED_OTHER
        finally:
            end_if_strayed(self.born, "a gateway receiver")

    cdef void tell_no_memory(self) noexcept with gil:
        try:
            if self.on_no_memory is not None:
                self.on_no_memory()
        except BaseException:
            pass                    # There is no memory to say so. The sender parks the event with that reason.

    cdef int note_failure(self, uint64_t number, uint32_t partition, uint64_t sequence,
                          uint32_t reason) noexcept nogil:
        """Notes a failure for the acknowledgement. `number`: of the event, among all of this connection."""
        cdef size_t capacity
        if self.failure_count == self.failure_capacity:
            capacity = self.failure_capacity * 2 if self.failure_capacity else 64
            grown = realloc(self.failures, capacity * sizeof(failed_event))
            if grown == NULL:
                wan_note(WAN_CORRUPT, "no memory to note a failed event")
                return 0
            self.failures, self.failure_capacity = <failed_event *>grown, capacity
        self.failures[self.failure_count].number = number
        self.failures[self.failure_count].failure.partition = partition
        self.failures[self.failure_count].failure.reason = reason
        self.failures[self.failure_count].failure.sequence = sequence
        self.failure_count += 1
        return 1

    cdef int apply_section(self, const wan_section *section, const uint8_t *at) noexcept nogil:
        """Applies a section. 0: the connection is to be given up; the detail, or `refused_code`, says why."""
        cdef connection_partition *partition = NULL
        cdef applied_slot unremembered
        cdef applied_slot *slot
        cdef uint64_t expected, before
        cdef int is_applied
        if section.partition < self.partition_capacity:
            partition = &self.partitions[section.partition]
        if partition == NULL or partition.slot == NULL:
            wan_note(WAN_CORRUPT, "partition %u of a sender with %u, for which no stream was named",
                     section.partition, self.memory.partitions)
            return 0
        before = partition.through
        if before and section.first <= before:
            wan_note(WAN_CORRUPT, "partition %u: a section %llu..%llu, settled through %llu, behind one through "
                                  "%llu; sections follow each other",
                     section.partition, <unsigned long long>section.first, <unsigned long long>section.through,
                     <unsigned long long>section.settled, <unsigned long long>before)
            return 0
        # The first section of a partition on a connection may begin before what we have: then it is sent again. Each
        # later section begins where the last one ended.
        expected = max(before, section.settled) + 1 if before else NO_SEQUENCE
        partition.through = section.through
        memset(&unremembered, 0, sizeof(unremembered))
        wan_lock_take(&partition.slot.lock)
        slot = partition.slot
        if partition.run != NULL and not begin_section(&partition.run.slots[partition.bucket], partition.life):
            # It is of an earlier life of its stream, from a member that has not heard of the later one yet. The regions
            # know by the versions what they have of it.
            unremembered.last = before
            slot = &unremembered
        is_applied = self.apply_run(section, at, partition, slot, &unremembered, expected)
        wan_lock_release(&partition.slot.lock)
        forget_applied(&unremembered)
        return is_applied

    cdef int apply_run(self, const wan_section *section, const uint8_t *at, connection_partition *partition,
                       applied_slot *slot, applied_slot *unremembered, uint64_t expected) noexcept nogil:
        """Applies the records of a section that `slot` does not know, under the lock of its partition. If the run waits
        for a round, and a later life of the stream begins meanwhile, the rest goes by `unremembered`. On this
        connection the section may begin at `expected` at the latest."""
        # The records on their way, by their numbers. A core is NULL if the record is known, or if its region is not
        # here.
        cdef const wan_record *records[RING_RECORDS]
        cdef region_core *cores[RING_RECORDS]
        cdef uint64_t hashes[RING_RECORDS]
        cdef uint64_t sequences[RING_RECORDS]
        cdef const uint8_t *run = at
        cdef uint64_t sequence
        cdef uint32_t number = 0        # The number of the record in hand in its section.
        cdef bint possible_duplicate, waits
        cdef const wan_record *record
        cdef uint32_t step, begin, k
        cdef int result
        cdef wan_rewind rewind
        cdef uint64_t floor, highest = 0, durable = wan_section_durable(section)
        cdef uint8_t is_given = 0       # A caller gave the stamp `highest`.
        cdef uint64_t *handled = partition.handled
        cdef wan_receiver_counts *counts
        # The remembered failures before this one are of sequences before the record in hand.
        cdef uint32_t remembered
        if section.through > slot.last:
            wan_set(&slot.mount, self.mount)
        slot.settled = max(slot.settled, durable)
        if slot.last < section.settled:
            slot.passed_over = section.settled
            # Another member of this site acknowledged the events before it, or this member did before it lost its
            # memory. A partition that we never heard of starts behind them. A sender has all that is not settled, so
            # anything between would be lost without a word.
            wan_set(&slot.last, section.settled)
        forget_failures(slot, durable)
        expected = min(expected, max(slot.last, max(handled[0], handled[1])) + 1)
        if section.first > expected:
            rewind.partition, rewind.reserved, rewind.expected = section.partition, 0, expected
            self.own.out_of_order_batches += 1
            buffer_frame(&self.out, WAN_FRAME_REWIND, 0, 0, &rewind, sizeof(rewind))
            wan_note(WAN_CORRUPT, "partition %u: a gap before sequence %llu", section.partition,
                     <unsigned long long>section.first)
            return 0
        if section.count < section.through - section.first + 1:
            # The holes come before the records: a record behind a hole may be refused, or the connection may end, and
            # what came before stays applied.
            slot.passed_over = max(slot.passed_over, section.through)
        if section.through <= slot.last:
            self.own.duplicate_batches += 1
        if handled[self.current ^ 1] and not self.begin_to_wait(section.partition):
            return 0
        floor = slot.last
        remembered = first_failure(slot, section.first)
        at += wan_section_head_bytes(section)
        for step in range((section.count + <uint32_t>GROUP_RECORDS - 1) // <uint32_t>GROUP_RECORDS + 2):
            begin = step * <uint32_t>GROUP_RECORDS
            for number in range(begin, min(begin + <uint32_t>GROUP_RECORDS, section.count)):
                k = number % RING_RECORDS       # The slots of what is applied two steps later are fetched.
                record = <const wan_record *>at
                at += wan_record_length(record)
                records[k] = record
                sequences[k] = wan_section_sequence(section, run, number)
                cores[k] = self.region_of(record.region) if sequences[k] > floor else NULL
                if partition.run != NULL and record.region != partition.region:
                    self.note_stranger(section, sequences[k])
                    return 0
                if cores[k] != NULL:
                    hashes[k] = wan_key_hash(wan_record_key(record), record.key_length, record.key_form)
                    if (partition.run != NULL
                            and wan_hash_bucket(hashes[k], partition.run.buckets) != partition.bucket):
                        self.note_stranger(section, sequences[k])
                        return 0
                    wan_table_prefetch_slot(&cores[k].table, hashes[k])
            if step == 0:
                continue
            begin -= <uint32_t>GROUP_RECORDS
            for number in range(begin, min(begin + <uint32_t>GROUP_RECORDS, section.count)):
                k = number % RING_RECORDS       # The entries of what is applied one step later are fetched.
                if cores[k] != NULL:
                    wan_table_prefetch_entry(&cores[k].table, hashes[k],
                                             records[k].key_length + records[k].value_length)
            if step == 1:
                continue
            begin -= <uint32_t>GROUP_RECORDS
            for number in range(begin, min(begin + <uint32_t>GROUP_RECORDS, section.count)):
                k = number % RING_RECORDS
                self.untold += 1
                record = records[k]
                if self.is_round_full(wan_record_length(record)):
                    # Nobody waits for other members under the lock. Another connection may apply the same events
                    # meanwhile, or begin a later life of the stream. What counts of this life is known now.
                    if not self.turn_over_unlocked(partition):
                        return 0
                    if handled[self.current ^ 1] and not self.begin_to_wait(section.partition):
                        return 0
                    if not is_of_its_life(partition):
                        slot = unremembered
                    floor = max(floor, slot.last)
                    remembered = first_failure(slot, sequences[k])
                self.handled_events += 1
                sequence = sequences[k]
                if sequence <= floor:
                    # This record was seen before, so it is not applied again. If it failed then, the sender is told
                    # again.
                    self.own.duplicates_skipped += 1
                    while remembered < slot.failure_count and slot.failures[remembered].sequence < sequence:
                        remembered += 1
                    if remembered < slot.failure_count and slot.failures[remembered].sequence == sequence:
                        if not self.note_failure(self.handled_events, section.partition, sequence,
                                                 slot.failures[remembered].reason):
                            return 0
                    continue
                if cores[k] != NULL and record.stamp > highest and not self.is_ahead(record):
                    highest = record.stamp
                    is_given = record.flags & WAN_FLAG_GIVEN
                possible_duplicate = number < section.duplicates
                result = WAN_FAILED_REGION_NOT_FOUND
                if cores[k] != NULL:
                    result = self.apply_one(cores[k], record, hashes[k], section.partition, sequence,
                                            possible_duplicate)
                if result < APPLIED:
                    self.refused_code = 1
                    return 0
                waits = handled[self.current] != 0
                counts = &self.rounds[self.current].held if waits else &self.own
                if result > APPLIED:
                    if result == WAN_FAILED_NO_MEMORY:
                        self.tell_no_memory()
                    counts.exceptions_occurred += 1
                    if not self.note_failure(self.handled_events, section.partition, sequence, <uint32_t>result):
                        return 0
                    if not waits and not self.remember(slot, &self.failures[self.failure_count - 1]):
                        return 0
                if waits:
                    handled[self.current] = sequence
                elif sequence > slot.last:
                    wan_set(&slot.last, sequence)
                counts.events_received += 1
                if record.operation == WAN_CREATE:
                    counts.create_requests += 1
                elif record.operation == WAN_UPDATE:
                    counts.update_requests += 1
                else:
                    counts.destroy_requests += 1
                if possible_duplicate:
                    counts.possible_duplicates += 1
                self.steps += 1
                if self.untold >= PROGRESS_RECORDS and not self.tell_progress():
                    return 0
            if highest:
                wan_clock_see(self.clock, highest)
        if handled[self.current]:
            handled[self.current] = section.through
        elif section.through > slot.last:
            wan_set(&slot.last, section.through)
        if highest and not is_given:
            wan_clock_hear(self.clock, highest)
        return 1

    cdef void note_stranger(self, const wan_section *section, uint64_t sequence) noexcept nogil:
        wan_note(WAN_CORRUPT, "event %u/%llu is of another region or bucket than its stream", section.partition,
                 <unsigned long long>sequence)

    cdef int remember(self, applied_slot *slot, const failed_event *failed) noexcept nogil:
        """Remembers a failure, unless another connection has done so. Under the slot's lock. 0: if the acknowledgement
        were lost, no one would know that the event failed. So it stays unapplied and unacknowledged."""
        if failed.failure.sequence <= slot.last or remember_failure(slot, &failed.failure):
            return 1
        wan_note(WAN_CORRUPT, "more than %d failed events of a partition (%d of all) that their senders have not heard "
                              "of, or no memory for them", FAILURES_KEPT, FAILURES_KEPT_ALL)
        return 0

    # The end of a round.

    cdef inline bint is_round_full(self, uint32_t length) noexcept nogil:
        """Whether an event of this length must not go to other members with those of the round."""
        cdef uint64_t bytes = self.rounds[self.current].bytes
        return bytes != 0 and bytes + length > <uint64_t>ROUND_BYTES

    cdef inline bint has_round(self) noexcept nogil:
        """Whether the round that is being handled has anything to wait for, or to acknowledge."""
        return self.rounds[self.current].waiting.used != 0 or self.rounds[self.current].is_unacknowledged

    cdef int turn_over(self) noexcept nogil:
        """Sends the round that was being handled, when the one before has ended, and begins another one. 0: the
        connection is to be given up; the detail says why."""
        cdef event_round *round = &self.rounds[self.current]
        if self.is_sent and not self.end_round():
            return 0
        self.add_applied()
        round.sent_us = wan_monotonic_us()
        if round.bytes and not self.send_round():
            return 0
        self.is_sent = True
        self.current ^= 1
        return 1

    cdef int turn_over_unlocked(self, const connection_partition *partition) noexcept nogil:
        """The same without the lock of a partition, which the caller has: other connections use its memory."""
        cdef int is_done
        wan_lock_release(&partition.slot.lock)
        is_done = self.turn_over()
        wan_lock_take(&partition.slot.lock)
        return is_done

    cdef int send_round(self) noexcept with gil:
        """Sends the events that wait for other members: all leave before any is waited for."""
        cdef EventCalls events
        try:
            for pair in self.shared_calls:
                events = pair[self.current]
                events.send_all(self.rounds[self.current].sent_us + events.out.limit_us)
            return 1
        except BaseException as error:
            return self.give_up(error)

    cdef int wait_for_others(self) noexcept with gil:
        """Waits until other members have applied what was sent."""
        cdef uint64_t sent_us = self.rounds[self.current ^ 1].sent_us
        cdef EventCalls events
        try:
            for pair in self.shared_calls:
                events = pair[self.current ^ 1]
                if not events.finish(sent_us, sent_us + events.out.limit_us, goes_on, <void *>self):
                    return 0
            return 1
        except BaseException as error:
            return self.give_up(error)
        finally:
            end_if_strayed(self.born, "a gateway receiver")

    cdef int give_up(self, error):
        """Notes why a round cannot end. Returns 0."""
        from pywan.errors import QueueFullError
        text = str(error).encode() or type(error).__name__.encode()
        wan_note(WAN_CORRUPT, "%s", <const char *>text)
        self.refused_code = isinstance(error, QueueFullError)
        return 0

    cdef int end_round(self) noexcept nogil:
        """Waits until all events of the round that was sent count, notes in the source's memory what became of them,
        and acknowledges. 0: the connection is to be given up; the detail says why."""
        cdef int at = self.current ^ 1
        cdef event_round *round = &self.rounds[at]
        cdef shared_out **shares = <shared_out **>self.shares[at].bytes
        cdef size_t n, count = self.shares[at].used // sizeof(shared_out *)
        if round.bytes and not self.wait_for_others():
            return 0
        for n in range(count):
            if not wait_until_counted(shares[n], round.sent_us + shares[n].limit_us, goes_on, <void *>self):
                return 0
        for n in range(count):
            if not self.take_failures(round, shares[n]):
                return 0
        if self.failure_count:
            # Those that other members told come in the order of the events, too.
            qsort(self.failures, self.failure_count, sizeof(failed_event), order_of_failures)
        for n in range(self.failure_count):
            if not self.note_failed(at, &self.failures[n]):
                return 0
        for n in range(round.waiting.used // sizeof(uint32_t)):
            self.note_settled(at, (<uint32_t *>round.waiting.bytes)[n])
        self.add_held(round)
        self.is_sent = False
        if round.is_unacknowledged:
            if wan_flag_read(&self.memory.streams.must_wait) and not self.wait_durable():
                return 0
            # It says how long the newest batch took: the others came before, and waited.
            if not self.acknowledge(round.newest_id, round.newest_number, <uint32_t>min(
                    self.work_us() - round.newest_began_us, <uint64_t>0xffffffff)):
                return 0
        self.forget_round(at)
        return 1

    cdef int take_failures(self, event_round *round, shared_out *out) noexcept nogil:
        """Notes what other members say of their events."""
        cdef const failed_event *failed = <const failed_event *>out.failed.bytes
        cdef uint64_t n
        round.held.conflicts += out.conflicts
        for n in range(out.failed.used // sizeof(failed_event)):
            if failed[n].failure.reason == WAN_FAILED_NO_MEMORY:
                self.tell_no_memory()
            round.held.exceptions_occurred += 1
            if not self.note_failure(failed[n].number, failed[n].failure.partition, failed[n].failure.sequence,
                                     failed[n].failure.reason):
                return 0
        return 1

    cdef int note_failed(self, int at, const failed_event *failed) noexcept nogil:
        """Remembers a failure if it is one of the round. Others were remembered at once, or their round goes on."""
        cdef connection_partition *partition = &self.partitions[failed.failure.partition]
        cdef int is_remembered = 1
        if failed.failure.sequence > partition.handled[at]:
            return 1
        wan_lock_take(&partition.slot.lock)
        if is_of_its_life(partition):
            is_remembered = self.remember(partition.slot, failed)
            if is_remembered and failed.failure.sequence > partition.slot.last:
                wan_set(&partition.slot.last, failed.failure.sequence)
        wan_lock_release(&partition.slot.lock)
        return is_remembered

    cdef void note_settled(self, int at, uint32_t number) noexcept nogil:
        """All events of a partition that were handled in the round count, or failed. If its stream is in a later life
        by now, nothing is noted of them."""
        cdef connection_partition *partition = &self.partitions[number]
        wan_lock_take(&partition.slot.lock)
        if is_of_its_life(partition) and partition.handled[at] > partition.slot.last:
            wan_set(&partition.slot.last, partition.handled[at])
        partition.handled[at] = 0
        wan_lock_release(&partition.slot.lock)

    cdef void forget_round(self, int at) noexcept nogil:
        cdef shared_out **shares = <shared_out **>self.shares[at].bytes
        cdef event_round *round = &self.rounds[at]
        cdef size_t n
        for n in range(self.shares[at].used // sizeof(shared_out *)):
            drop_round(shares[n])
        wan_buffer_empty(&round.waiting)
        round.events = round.bytes = 0
        round.is_unacknowledged = False
        memset(&round.held, 0, sizeof(wan_receiver_counts))

    cdef void forget_rounds(self) noexcept nogil:
        """Forgets what was not acknowledged: the connection ends, and the sender sends it again."""
        if self.is_sent:
            with gil:
                for pair in self.shared_calls:
                    for each in pair:
                        (<EventCalls>each).abandon()
            self.is_sent = False
        self.forget_round(0)
        self.forget_round(1)

    cdef void add_held(self, const event_round *round) noexcept nogil:
        cdef uint64_t *own = <uint64_t *>&self.own
        cdef const uint64_t *held = <const uint64_t *>&round.held
        cdef size_t n
        for n in range(sizeof(wan_receiver_counts) // 8):
            own[n] += held[n]

    cdef int end_rounds(self) noexcept nogil:
        """Ends all that is under way. 0: as for `end_round`."""
        if self.has_round() and not self.turn_over():
            return 0
        return self.end_round() if self.is_sent else 1

    cdef int end_rounds_of(self, uint64_t partition) noexcept nogil:
        """Ends all that is under way if a partition is a stream: it is about to become another one, or a later life. An
        acknowledgement cannot tell two events of the same partition and sequence apart. 0: as for `end_round`."""
        if partition >= self.partition_capacity or self.partitions[partition].run == NULL:
            return 1
        return self.end_rounds()

    cdef int wait_for_room(self) noexcept nogil:
        """Takes no more events while this member's budget is full, or the listeners of a shared region have too much to
        hear. 0: the connection is to be given up; the detail says why."""
        cdef shared_out **shares = <shared_out **>self.shares[0].bytes
        cdef const region_core *region
        cdef uint32_t never = 0
        cdef size_t n
        for n in range(self.shares[0].used // sizeof(shared_out *)):
            region = shares[n].region
            if wan_flag_read(&region.closed) or not region_is_full(region):
                continue
            if not self.end_rounds():       # What waits is a part of what is full.
                return 0
            if region.tail.budget != NULL:
                wan_budget_note_wait(region.tail.budget)
            while region_is_full(region) and not wan_flag_read(&region.closed):
                region_relieve(<region_core *>region)
                if not self.tell_progress():
                    return 0
                if wan_budget_is_full(region.tail.budget):
                    wan_budget_wait(region.tail.budget, FULL_SLICE_MS)
                else:
                    wan_wait_change(&never, 0, 1)
        return 1

    cdef int apply_batch(self, wan_frame *frame) noexcept nogil:
        cdef uint8_t *payload = <uint8_t *>(frame + 1)
        cdef const wan_batch_head *head
        cdef const wan_section *section
        cdef const uint8_t *at
        cdef uint32_t _n
        cdef bint is_applied
        cdef wan_buffer *pack = &self.unpacked
        cdef event_round *round
        cdef uint64_t began
        if self.shares[0].used and not self.wait_for_room():
            return 0
        began = self.work_us()
        if frame.flags & WAN_FRAME_LZ4:
            pack.start = pack.used = 0
            if not buffer_reserve(pack, frame.raw_length + 8):
                wan_note(WAN_CORRUPT, "no memory to unpack a batch of %u bytes", frame.raw_length)
                return 0
            if lz4_unpack(payload, frame.length, pack.bytes, frame.raw_length) != <int>frame.raw_length:
                wan_note(WAN_CORRUPT, "batch %llu cannot be unpacked", <unsigned long long>frame.id)
                return 0
            payload = pack.bytes
        if wan_batch_check(payload, frame.raw_length, frame.count) != WAN_OK:
            return 0
        if frame.id != self.expected_id:
            self.own.out_of_order_batches += 1
            wan_note(WAN_CORRUPT, "batch %llu where %llu should come", <unsigned long long>frame.id,
                     <unsigned long long>self.expected_id)
            return 0
        self.expected_id += 1
        self.batch += 1
        self.now_ms = wan_clock_receiving_ms(self.clock) if self.clock != NULL else wan_now_ms()
        if not self.is_sent and not self.has_round():
            self.failure_count = 0
        self.own.batches_received += 1
        self.own.bytes_received += frame.length
        head = <const wan_batch_head *>payload
        section = <const wan_section *>(head + 1)
        at = <const uint8_t *>(section + head.sections)
        for _n in range(head.sections):
            is_applied = self.apply_section(section, at)
            self.add_applied()
            if not is_applied:
                return 0
            at += section.bytes
            section += 1
        buffer_trim(pack)
        if self.is_sent or self.has_round():
            round = &self.rounds[self.current]
            round.is_unacknowledged, round.newest_id, round.newest_began_us = True, frame.id, began
            round.newest_number = self.handled_events
            return self.turn_over() if round.events >= <uint64_t>ROUND_EVENTS else 1
        if wan_flag_read(&self.memory.streams.must_wait) and not self.wait_durable():
            return 0
        # This acknowledgement names whatever failed. Everything else is in the tables.
        return self.acknowledge(frame.id, self.handled_events,
                                <uint32_t>min(self.work_us() - began, <uint64_t>0xffffffff))

    cdef int wait_durable(self) noexcept with gil:
        # This waits also for a batch that was known as a whole: an old connection may have applied it and still wait.
        try:
            for core in list(self.memory.streams.cores):
                (<RegionCore>core).state.wait_written(True)
            return 1
        except BaseException as error:
            self.refuse(error)      # The batch is not acknowledged, so the sender sends it again.
            return 0

    cdef void refuse(self, object error):
        """Takes nothing more of what is on its way now, and tells the sender why."""
        text = str(error).encode() or b"out of memory: the process has none to apply it"
        wan_note(WAN_CORRUPT, "%s", <const char *>text)
        self.refused_code = 1

    cdef int tell_progress(self) noexcept nogil:
        """Tells the sender, in the middle of a batch, that we work on the batch, and of the batches done before. 0: the
        session is to end."""
        cdef uint64_t now
        self.untold = 0
        if wan_flag_read(&self.stop_flag):
            wan_note(WAN_CORRUPT, "this connection was told to stop, in the middle of a batch")
            return 0
        now = self.work_us()
        if now < self.told_us + PROGRESS_US:
            return 1
        self.told_us = now
        if not buffer_frame(&self.out, WAN_FRAME_PROGRESS, self.steps, 0, NULL, 0):
            return 0
        if self.push() == STREAM_CLOSED:
            wan_note(WAN_CORRUPT, "the sender closed the connection in the middle of a batch")
            return 0
        return 1

    cdef int acknowledge(self, uint64_t id, uint64_t number, uint32_t worked_us) noexcept nogil:
        """Acknowledges all batches up to one, whose last event has this number."""
        cdef size_t n, count = 0, failures_bytes
        cdef wan_frame *frame
        cdef wan_failure *told
        cdef wan_ack *ack
        while count < self.failure_count and self.failures[count].number <= number:
            count += 1
        failures_bytes = count * sizeof(wan_failure)
        frame = buffer_open_frame(&self.out, WAN_FRAME_ACK, id, worked_us, sizeof(wan_ack) + failures_bytes)
        if frame == NULL:
            return 0
        ack = <wan_ack *>(frame + 1)
        ack.credit_events = CREDIT_EVENTS
        ack.credit_bytes = self.credit_bytes
        ack.failures = <uint32_t>count
        told = <wan_failure *>(ack + 1)
        for n in range(count):
            told[n] = self.failures[n].failure
        buffer_close_frame(&self.out, frame)
        self.failure_count -= count
        if self.failure_count:      # Of a round that goes on.
            memmove(self.failures, self.failures + count, self.failure_count * sizeof(failed_event))
        elif failures_bytes > BUFFER_KEPT_BYTES // 32:
            free(self.failures)
            self.failures, self.failure_capacity = NULL, 0
        return 1

    cdef int take_floors(self, const wan_frame *frame) noexcept nogil:
        cdef const wan_floor *floor = <const wan_floor *>(frame + 1)
        cdef uint32_t n, count = frame.length // sizeof(wan_floor)
        if frame.length % sizeof(wan_floor) or frame.flags or count > 256:
            wan_note(WAN_CORRUPT, "a ping with %u bytes of floors", frame.length)
            return 0
        for n in range(1, count):
            if floor[n].origin <= floor[n - 1].origin:
                wan_note(WAN_CORRUPT, "a ping with the floors of its origins out of order")
                return 0
        return self.tell_floors(frame)

    cdef int tell_floors(self, const wan_frame *frame) noexcept with gil:
        try:
            if self.on_floors is not None:
                self.on_floors(PyBytes_FromStringAndSize(<const char *>(frame + 1), frame.length))
            return 1
        except BaseException as error:
            report_unraisable("a sender's floors", error)
            wan_note(WAN_CORRUPT, "the floors of a sender cannot be kept")
            return 0
        finally:
            end_if_strayed(self.born, "a gateway receiver")

    cdef void tell_counts(self) noexcept nogil:
        cdef uint64_t *own = <uint64_t *>&self.own
        cdef uint64_t *shared = <uint64_t *>&self.counts.counters
        cdef size_t n
        for n in range(sizeof(wan_receiver_counts) // 8):
            if own[n]:
                wan_add_shared(&shared[n], own[n])
        memset(&self.own, 0, sizeof(wan_receiver_counts))

    # What came, what is due, and when.

    cdef int take_frame(self, wan_frame *frame) noexcept nogil:
        if frame.type == WAN_FRAME_BATCH:
            return GOES_ON if self.apply_batch(frame) else ENDED_TOLD
        if frame.type == WAN_FRAME_REGION:
            return GOES_ON if self.learn_region(frame) else ENDED_TOLD
        if frame.type == WAN_FRAME_STREAM:
            return GOES_ON if self.end_rounds_of(frame.id) and self.learn_stream(frame) else ENDED_TOLD
        if frame.type == WAN_FRAME_PING:
            if frame.length and not self.take_floors(frame):
                return ENDED_TOLD
            return GOES_ON if buffer_frame(&self.out, WAN_FRAME_PONG, frame.id, 0, NULL, 0) else ENDED_TOLD
        if frame.type == WAN_FRAME_BYE:
            return ENDED_CLOSED
        wan_note(WAN_CORRUPT, "frame of type %u from a sender", frame.type)
        return ENDED_TOLD

    cdef void begin(self, uint64_t now_us) noexcept nogil:
        Session.begin(self, now_us)
        self.told_us = now_us

    cdef int heard(self) noexcept nogil:
        cdef int how
        wan_flag_set(&self.contested_flag, 0)
        how = self.take_frames()
        self.tell_counts()
        if how != GOES_ON:
            self.forget_rounds()
        if how == GOES_ON and self.into.start < self.into.used:
            # The rest of a frame is on its way. That takes minutes where the link is slow.
            self.steps += 1
            how = GOES_ON if self.tell_progress() else ENDED_TOLD
        return ENDED_STOPPED if how == ENDED_TOLD and wan_flag_read(&self.stop_flag) else how

    cdef int step(self, uint64_t now_us) noexcept nogil:
        cdef int is_done
        if self.waiting_us and now_us > self.waiting_us + STUCK_US:
            wan_note(WAN_CORRUPT, "the sender took nothing of what it is told for %.1f s", STUCK_US / 1e6)
            # Acknowledgements are small. If even they do not fit, the sender does not read.
            return ENDED_CLOSED
        if wan_flag_read(&self.contested_flag) and now_us > self.last_heard_us + CONTESTED_US:
            wan_note(WAN_CORRUPT, "the sender was silent for more than %d ms, and its queue has been opened elsewhere",
                     <int>(CONTESTED_US // 1000))
            return ENDED_TOLD
        if self.silence_us and now_us > self.last_heard_us + self.silence_us:
            wan_note(WAN_CORRUPT, "the sender was silent for more than maximum-time-between-pings = %llu ms",
                     <unsigned long long>(self.silence_us // 1000))
            return ENDED_TOLD
        if self.is_sent or self.has_round():
            # Nothing more is there to read. What was handled last leaves; if that has left, its end is waited for.
            is_done = self.turn_over() if self.has_round() else self.end_round()
            self.tell_counts()
            if not is_done:
                self.forget_rounds()
                if wan_flag_read(&self.stop_flag):
                    return ENDED_STOPPED
                self.say_why()
                return ENDED_TOLD
            return GOES_AGAIN
        return GOES_ON

    cdef uint64_t due_us(self, uint64_t now_us) noexcept nogil:
        cdef uint64_t due = now_us if self.is_sent or self.has_round() else NEVER
        if self.waiting_us:
            due = min(due, self.waiting_us + STUCK_US + 1)
        if wan_flag_read(&self.contested_flag):
            due = min(due, self.last_heard_us + CONTESTED_US + 1)
        if self.silence_us:
            due = min(due, self.last_heard_us + self.silence_us + 1)
        return due

    def connected(self, uint64_t now_us, int silence_ms=0):
        """Begins the connection, which is there since `now_us`; 0: since `run` begins. The sender is given up when it
        says nothing for `silence_ms`; 0: never."""
        self.silence_us = <uint64_t>max(0, silence_ms) * 1000
        self.begin(now_us)

    cdef object error_of_end(self):
        from pywan.errors import QueueFullError
        return QueueFullError(detail_text()) if self.refused_code else Session.error_of_end(self)

    def run(self, sock, int silence_ms):
        """Takes batches from a connected socket until it closes, breaks, is silent for `silence_ms`, or is told to
        stop. Returns "closed", "stopped", or why it was given up. The GIL is free meanwhile."""
        self.connected(0, silence_ms)
        try:
            return self.run_over_socket(sock)
        finally:
            self.forget_rounds()


cdef inline bint is_of_its_life(const connection_partition *partition) noexcept nogil:
    """Whether the slot of a partition is of the life that its sections are of. Under the slot's lock."""
    return partition.run == NULL or partition.run.slots[partition.bucket].life == partition.life


cdef bint is_needed(EventCalls events):
    return not events.is_gone() or events.out.touched.used != 0


cdef bint goes_on(void *owner) noexcept nogil:
    """Whether a session goes on waiting for other members. It tells its sender meanwhile that it is there."""
    return (<ReceiverSession>owner).tell_progress()


cdef int order_of_failures(const void *one, const void *other) noexcept nogil:
    cdef uint64_t first = (<const failed_event *>one).number, second = (<const failed_event *>other).number
    return (first > second) - (first < second)
