# Owns one connection's way from bytes to the region tables. `ReceiverSession` knows no socket and no clock: bytes and
# `now` come in, bytes and the next deadline go out.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset
from cpython.bytes cimport PyBytes_FromStringAndSize
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_tables cimport *
from pywan._core.c_region cimport *
from pywan._core.c_system cimport *
from pywan._core.base.clock cimport Clock
from pywan._core.wire.lz4 cimport lz4_load, lz4_unpack
from pywan._core.region.put cimport change_from_record, origin_from_record, region_change
from pywan._core.region.region cimport RegionCore
from pywan._core.region.region_state cimport origin, region_core
from pywan._core.wire.session cimport ENDED_CLOSED, ENDED_STOPPED, ENDED_TOLD, GOES_ON, Session
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


cdef enum:
    APPLIED = 0, REFUSED = -1, LOST = -2       # What became of an event. A positive number is a reason of failure.

APPLY_DONE, APPLY_LOST = <int>APPLIED, <int>LOST       # What `callback_apply` returns of these.


cdef struct region_slot:
    region_core *core           # NULL: it was not found at the last look.
    uint64_t looked_batch       # The batch of this connection in which it was last looked up.


cdef struct connection_partition:
    applied_slot *slot          # What was applied of it. NULL: no stream was named for it.
    uint64_t through            # Its last section on this connection. 0: there was none yet.
    uint64_t batch              # The batch of that section.
    # The stream that it is. NULL: it is an own partition of the queue, and the rest has no meaning.
    stream_run *run
    uint64_t life
    uint16_t bucket
    uint16_t region             # As records on this connection name it.


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
    cdef set told_shared            # Numbers of regions that refuse events because several members hold them.
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
    cdef wan_failure *failures      # Failures of the batch in work: at most as many as it has records.
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
        self.names, self.cores, self.replaced, self.told_shared = {}, {}, [], set()
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
        partition.through = partition.batch = 0
        return 1

    cdef region_core *look_up(self, uint16_t number) noexcept with gil:
        cdef RegionCore core
        cdef StreamMemory streams
        try:
            self.regions[number].looked_batch = self.batch
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
        if wan_stamp_ms(record.stamp) <= self.now_ms + self.max_drift_ms:
            return False
        if not record.flags & WAN_FLAG_GIVEN:
            wan_clock_hear(self.clock, record.stamp)        # Our own clock may be the one that is wrong.
        self.now_ms = wan_clock_receiving_ms(self.clock)
        return wan_stamp_ms(record.stamp) > self.now_ms + self.max_drift_ms

    cdef int apply_one(self, region_core *core, const wan_record *record, uint64_t hash, uint32_t partition,
                       uint64_t sequence,
                       bint possible_duplicate) noexcept nogil:
        """Applies one event. Returns APPLIED, a reason of failure (> 0), or REFUSED: a queue of ours has no room, and
        nothing was changed."""
        cdef wan_change change
        cdef origin from_
        cdef wan_outcome outcome
        cdef wan_status status
        if self.is_ahead(record):
            return WAN_FAILED_FUTURE_STAMP
        if core.tail != NULL:
            self.note_shared(record.region)
            return WAN_FAILED_OTHER
        if wan_flag_read(&core.durable):
            wan_flag_set(&self.memory.streams.must_wait, 1)
        change_from_record(&change, record, hash)
        origin_from_record(&from_, record, possible_duplicate)
        status = region_change(core, &change, &from_, NULL, &outcome)
        if status == WAN_SLOW:
            self.untold = PROGRESS_RECORDS
            return self.apply_by_callbacks(record, partition, sequence, possible_duplicate)
        if status == WAN_CLOSED:
            return WAN_FAILED_REGION_NOT_FOUND
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
            if core != self.applied_in:
                self.add_applied()
                self.applied_in = core
            self.applied += 1
        return APPLIED

    cdef void add_applied(self) noexcept nogil:
        """Adds the events of a section to their region's count at once: an atomic operation for each would be slow."""
        if self.applied:
            wan_add_shared(&self.applied_in.applied, self.applied)
            self.applied = 0

    cdef void note_shared(self, uint16_t number) noexcept with gil:
        from pywan.errors import IllegalStateError
        if number not in self.told_shared:
            self.told_shared.add(number)
            report_unraisable("applying events", IllegalStateError(
                f"region {self.names.get(number)!r} is on several members, and such a region cannot take events of"
                " other sites in this version; its events are refused"))

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

    cdef int note_failure(self, uint32_t partition, uint64_t sequence, uint32_t reason) noexcept nogil:
        cdef size_t capacity
        if self.failure_count == self.failure_capacity:
            capacity = self.failure_capacity * 2 if self.failure_capacity else 64
            grown = realloc(self.failures, capacity * sizeof(wan_failure))
            if grown == NULL:
                wan_note(WAN_CORRUPT, "no memory to note a failed event")
                return 0
            self.failures, self.failure_capacity = <wan_failure *>grown, capacity
        self.failures[self.failure_count].partition = partition
        self.failures[self.failure_count].reason = reason
        self.failures[self.failure_count].sequence = sequence
        self.failure_count += 1
        return 1

    cdef int apply_section(self, const wan_section *section, const uint8_t *at) noexcept nogil:
        """Applies a section. 0: the connection is to be given up; the detail, or `refused_code`, says why."""
        cdef connection_partition *partition = NULL
        cdef applied_slot unremembered
        cdef uint64_t expected, before
        cdef int is_applied
        if section.partition < self.partition_capacity:
            partition = &self.partitions[section.partition]
        if partition == NULL or partition.slot == NULL:
            wan_note(WAN_CORRUPT, "partition %u of a sender with %u, for which no stream was named",
                     section.partition, self.memory.partitions)
            return 0
        before = partition.through
        if before and (partition.batch == self.batch or section.first <= before):
            wan_note(WAN_CORRUPT, "partition %u: a section %llu..%llu, settled through %llu, behind one through "
                                  "%llu%s; sections follow each other, one a batch",
                     section.partition, <unsigned long long>section.first, <unsigned long long>section.through,
                     <unsigned long long>section.settled, <unsigned long long>before,
                     <const char *>(b" of the same batch" if partition.batch == self.batch else b""))
            return 0
        # The first section of a partition on a connection may begin before what we have: then it is sent again. Each
        # later section begins where the last one ended.
        expected = max(before, section.settled) + 1 if before else NO_SEQUENCE
        partition.through, partition.batch = section.through, self.batch
        wan_lock_take(&partition.slot.lock)
        if partition.run == NULL or begin_section(&partition.run.slots[partition.bucket], partition.life):
            is_applied = self.apply_run(section, at, partition, partition.slot, expected)
        else:
            # It is of an earlier life of its stream, from a member that has not heard of the later one yet. The regions
            # know by the versions what they have of it.
            memset(&unremembered, 0, sizeof(unremembered))
            unremembered.last = before
            is_applied = self.apply_run(section, at, partition, &unremembered, expected)
            forget_applied(&unremembered)
        wan_lock_release(&partition.slot.lock)
        return is_applied

    cdef int apply_run(self, const wan_section *section, const uint8_t *at, const connection_partition *partition,
                       applied_slot *slot, uint64_t expected) noexcept nogil:
        """Applies the records of a section that `slot` does not know, under the lock of its partition. On this
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
        cdef bint possible_duplicate
        cdef const wan_record *record
        cdef uint32_t step, begin, k
        cdef int result
        cdef wan_rewind rewind
        cdef uint64_t floor, highest = 0, durable = wan_section_durable(section)
        cdef uint8_t is_given = 0       # A caller gave the stamp `highest`.
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
        expected = min(expected, slot.last + 1)
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
                sequence = sequences[k]
                if sequence <= floor:
                    # This record was seen before, so it is not applied again. If it failed then, the sender is told
                    # again.
                    self.own.duplicates_skipped += 1
                    while remembered < slot.failure_count and slot.failures[remembered].sequence < sequence:
                        remembered += 1
                    if remembered < slot.failure_count and slot.failures[remembered].sequence == sequence:
                        if not self.note_failure(section.partition, sequence, slot.failures[remembered].reason):
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
                if result > APPLIED:
                    if result == WAN_FAILED_NO_MEMORY:
                        self.tell_no_memory()
                    self.own.exceptions_occurred += 1
                    if not self.note_failure(section.partition, sequence, <uint32_t>result):
                        return 0
                    if not remember_failure(slot, &self.failures[self.failure_count - 1]):
                        # If the acknowledgement were lost, no one would know that the event failed. So it stays
                        # unapplied and unacknowledged.
                        wan_note(WAN_CORRUPT, "more than %d failed events of a partition (%d of all) that their "
                                              "senders have not heard of, or no memory for them",
                                 FAILURES_KEPT, FAILURES_KEPT_ALL)
                        return 0
                wan_set(&slot.last, sequence)
                self.own.events_received += 1
                if record.operation == WAN_CREATE:
                    self.own.create_requests += 1
                elif record.operation == WAN_UPDATE:
                    self.own.update_requests += 1
                else:
                    self.own.destroy_requests += 1
                if possible_duplicate:
                    self.own.possible_duplicates += 1
                self.steps += 1
                if self.untold >= PROGRESS_RECORDS and not self.tell_progress():
                    return 0
            if highest:
                wan_clock_see(self.clock, highest)
        if section.through > slot.last:
            wan_set(&slot.last, section.through)
        if highest and not is_given:
            wan_clock_hear(self.clock, highest)
        return 1

    cdef void note_stranger(self, const wan_section *section, uint64_t sequence) noexcept nogil:
        wan_note(WAN_CORRUPT, "event %u/%llu is of another region or bucket than its stream", section.partition,
                 <unsigned long long>sequence)

    cdef int apply_batch(self, wan_frame *frame) noexcept nogil:
        cdef uint8_t *payload = <uint8_t *>(frame + 1)
        cdef const wan_batch_head *head
        cdef const wan_section *section
        cdef const uint8_t *at
        cdef uint32_t _n
        cdef bint is_applied
        cdef wan_buffer *pack = &self.unpacked
        cdef uint64_t began = self.work_us()
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
        if wan_flag_read(&self.memory.streams.must_wait) and not self.wait_durable():
            return 0
        # This acknowledgement names whatever failed. Everything else is in the tables.
        return self.acknowledge(frame.id, <uint32_t>min(self.work_us() - began, <uint64_t>0xffffffff))

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

    cdef int acknowledge(self, uint64_t id, uint32_t worked_us) noexcept nogil:
        cdef size_t failures_bytes = self.failure_count * sizeof(wan_failure)
        cdef wan_frame *frame = buffer_open_frame(&self.out, WAN_FRAME_ACK, id, worked_us,
                                                  sizeof(wan_ack) + failures_bytes)
        cdef wan_ack *ack
        if frame == NULL:
            return 0
        ack = <wan_ack *>(frame + 1)
        ack.credit_events = CREDIT_EVENTS
        ack.credit_bytes = self.credit_bytes
        ack.failures = <uint32_t>self.failure_count
        if self.failure_count:
            memcpy(ack + 1, self.failures, failures_bytes)
        buffer_close_frame(&self.out, frame)
        if failures_bytes > BUFFER_KEPT_BYTES // 32:
            free(self.failures)
            self.failures, self.failure_capacity = NULL, 0
        self.failure_count = 0
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
            return GOES_ON if self.learn_stream(frame) else ENDED_TOLD
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
        if how == GOES_ON and self.into.start < self.into.used:
            # The rest of a frame is on its way. That takes minutes where the link is slow.
            self.steps += 1
            how = GOES_ON if self.tell_progress() else ENDED_TOLD
        return ENDED_STOPPED if how == ENDED_TOLD and wan_flag_read(&self.stop_flag) else how

    cdef int step(self, uint64_t now_us) noexcept nogil:
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
        return GOES_ON

    cdef uint64_t due_us(self, uint64_t now_us) noexcept nogil:
        cdef uint64_t due = NEVER
        if self.waiting_us:
            due = self.waiting_us + STUCK_US + 1
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

    def run(self, int file, int silence_ms):
        """Takes batches from a connected socket until it closes, breaks, is silent for `silence_ms`, or is told to
        stop. Returns "closed", "stopped", or why it was given up. The GIL is free meanwhile."""
        self.connected(0, silence_ms)
        return self.run_over_socket(file)
