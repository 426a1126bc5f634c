# Applies the records of a section to the tables of regions, in the order of their sequences. The unit recognises known
# records and gaps, and notes the result of every record.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from cpython.bytes cimport PyBytes_FromStringAndSize
from pywan._core.c_base cimport *
from pywan._core.c_python cimport PyGILState_Ensure, PyGILState_Release
from pywan._core.c_names cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_session cimport *
from pywan._core.c_store cimport wan_source_place
from pywan._core.base.status cimport detail_text, end_if_strayed, report_unraisable
from pywan._core.calls.call_events cimport add_to_run, event_place, is_applied_here, note_applied_here, shared_out
from pywan._core.gateway.applied_slot cimport applied_slot, first_failure, forget_applied, forget_failures
from pywan._core.gateway.receiver_regions cimport is_ahead, region_of, region_slot, slot_of, why_absent
from pywan._core.gateway.receiver_report cimport PROGRESS_RECORDS, note_applied
from pywan._core.gateway.receiver_rounds cimport begin_to_wait, event_round, is_round_full
from pywan._core.gateway.receiver_streams cimport connection_partition, is_of_its_timeline, partition_at
from pywan._core.gateway.stream_memory cimport begin_section
from pywan._core.region.apply_event cimport (
    ASKED_NOT_PRIMARY, ASKED_LOST, EVENT_LOST, EVENT_NOT_TAKEN, region_apply_event)
from pywan._core.region.put cimport change_from_record, origin_from_record, region_change
from pywan._core.region.region_callbacks cimport RegionCallbacks
from pywan._core.region.region_state cimport origin, region_core
from pywan._core.region.region cimport RegionCore
from pywan._core.region.told_changes cimport apply_and_tell, callbacks_of
from pywan._core.wire.stream cimport buffer_frame

cdef enum:
    # Records are applied in groups. A group takes three steps: fetch the slots, fetch the entries, apply. Three groups
    # are under way at once, so the ring must hold at least three groups. The ring size is a power of two. The slots and
    # entries of a group are 16 cache lines. A processor fetches some two dozen lines at once, and the entry lock of
    # each record waits for the fetched lines.
    GROUP_RECORDS = 4
    RING_RECORDS = 16
    # So many events meet callbacks before the thread lets other threads have the GIL.
    HELD_EVENTS = 1000


cdef enum:
    NO_PLACE = 0        # No event has this sequence.

cdef enum:
    # The result of an event. A positive number is a reason of failure. NOT_PRIMARY: another member leads the bucket.
    APPLIED = 0, REFUSED = -1, LOST = ASKED_LOST, NOT_PRIMARY = ASKED_NOT_PRIMARY

# Results that `callback_apply` returns.
APPLY_DONE, APPLY_LOST, APPLY_NOT_PRIMARY = <int>APPLIED, <int>LOST, <int>NOT_PRIMARY


cdef inline bint is_looked_up(ReceiverApply session, uint16_t number) noexcept nogil:
    """Whether `region_of` may look for the region, which may wait for locks."""
    cdef region_slot *slot = slot_of(session, number)
    return slot == NULL or slot.core == NULL or wan_flag_read(&slot.core.closed)


cdef object place_bytes(const wan_source_place *place):
    return None if place == NULL else PyBytes_FromStringAndSize(<const char *>place, sizeof(wan_source_place))


cdef class ReceiverApply(ReceiverRounds):
    """A session that applies events."""

    cdef int apply_one(self, region_core *core, const wan_record *record, uint64_t hash, uint32_t partition,
                       uint64_t sequence,
                       bint possible_duplicate) noexcept nogil:
        """Applies one event. Returns APPLIED, a reason of failure (> 0), or REFUSED: a queue of ours is full, and the
        event had no effect."""
        cdef wan_change change
        cdef origin from_
        cdef wan_outcome outcome
        cdef wan_status status
        cdef int result
        if is_ahead(self, record):
            return WAN_FAILED_FUTURE_STAMP
        if core.changelog != NULL:
            if self.holds_gil:
                self.end_callbacks()
            return self.apply_shared(core, record, hash, partition, sequence, possible_duplicate)
        if wan_flag_read(&core.logged):
            wan_flag_set(&self.memory.streams.must_wait, 1)
            self.rounds[self.current].events += 1
        change_from_record(&change, record, hash)
        origin_from_record(&from_, record, possible_duplicate)
        from_.place = self.place_of(partition, sequence)
        status = WAN_SLOW
        if core != self.told_core:
            if self.holds_gil:
                self.end_callbacks()
            status = region_change(core, &change, &from_, NULL, &outcome)
        if status == WAN_SLOW:
            self.untold = PROGRESS_RECORDS
            self.begin_callbacks()
            status = self.apply_told(core, record.region, &change, &from_, &outcome)
        if status == WAN_SLOW or (status == WAN_OK and outcome == WAN_ASK):
            self.untold = PROGRESS_RECORDS
            if self.holds_gil and core.changelog != NULL:
                self.end_callbacks()        # The change waits for replicas, and other changes go on meanwhile.
            result = self.apply_by_callbacks(record, partition, sequence, possible_duplicate)
            if result != NOT_PRIMARY:
                return result
            status = WAN_NOT_PRIMARY
        if status == WAN_CLOSED:
            return WAN_FAILED_REGION_NOT_FOUND
        if status == WAN_NOT_PRIMARY:     # Members share the region since a moment ago.
            if self.holds_gil:
                self.end_callbacks()
            return self.apply_shared(core, record, hash, partition, sequence, possible_duplicate)
        if status == WAN_TOO_LARGE:     # The event will never fit, so the sender must not wait.
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
            note_applied(self, core)
        return APPLIED

    # The callbacks of a section. The thread takes the GIL once for many events, and not for each event.

    cdef void begin_callbacks(self) noexcept nogil:
        """The thread has the GIL until `end_callbacks`. It gives the GIL to other threads after many events, and Python
        does so while a listener runs."""
        self.held_events += 1
        if self.holds_gil and self.held_events > HELD_EVENTS:
            self.end_callbacks()
        if not self.holds_gil:
            self.gil, self.holds_gil, self.held_events = PyGILState_Ensure(), True, 1

    cdef void end_callbacks(self) noexcept nogil:
        """The thread gives back the GIL. Before everything that waits."""
        self.end_list()
        self.holds_gil = False
        PyGILState_Release(self.gil)

    cdef void end_list(self) noexcept with gil:
        """Hands the events of the open list to their listeners."""
        cdef RegionCallbacks told = self.told
        self.told, self.told_core = None, NULL
        try:
            if self.has_list:
                self.has_list = False
                try:
                    told.close_list()
                finally:
                    told.lock.leave()
        except BaseException as error:
            report_unraisable("a listener", error)
        finally:
            end_if_strayed(self.born, "a gateway receiver")

    cdef bint begin_region(self, region_core *core, uint16_t region) except -1:
        """The next events are those of a region. If it has listeners with `after_events`, they get lists from now on,
        and the callback lock is held until `end_list`, so that no other change comes between. False: changes of the
        region go through Python."""
        if self.told_core != NULL:
            self.end_list()
        self.told = callbacks_of((<RegionCore?>self.cores[region]).state)
        if self.told is None:
            return False
        if self.told.list_methods:
            self.told.lock.enter()
            if core.changelog != NULL:      # Shared by now: changes wait for replicas, and no lock is held meanwhile.
                self.told.lock.leave()
                self.told = None
                return False
            self.told.open_list()
            self.has_list = True
        self.told_core = core
        return True

    cdef wan_status apply_told(self, region_core *core, uint16_t region, wan_change *change, origin *from_,
                               wan_outcome *outcome) noexcept with gil:
        """Applies an event with the listeners of its region, in a section. As `apply_and_tell`."""
        outcome[0] = WAN_ASK                # An error before the change: Python tries again, and reports.
        try:
            if core != self.told_core and not self.begin_region(core, region):
                return WAN_SLOW
            return apply_and_tell(core, self.told, change, from_, outcome)
        except BaseException as error:
            report_unraisable("applying an event", error)
        finally:
            end_if_strayed(self.born, "a gateway receiver")
        return WAN_OK

    cdef const wan_source_place *place_of(self, uint32_t partition, uint64_t sequence) noexcept nogil:
        """Returns the place of an event in its stream. NULL: the sender has no name, or the event is applied out of
        order."""
        cdef wan_source_place *place = &partition_at(self, partition).place
        place.through = sequence
        return place if sequence != NO_PLACE and place.source[0] | place.source[1] else NULL

    cdef int apply_shared(self, region_core *core, const wan_record *record, uint64_t hash, uint32_t partition,
                          uint64_t sequence, bint possible_duplicate) noexcept nogil:
        """Applies one event to a region that several members hold, or lets the event wait for the primary of the
        bucket. Returns as `apply_one`. APPLIED: the event must not be acknowledged before the end of the round."""
        cdef uint32_t bucket = wan_table_bucket(&core.table, hash).number
        cdef event_round *round = &self.rounds[self.current]
        cdef shared_out *out
        cdef event_place place
        cdef wan_change change
        cdef wan_status status = WAN_OK
        cdef bint took_effect = False
        cdef int became
        cdef region_slot *slot = slot_of(self, record.region)
        if slot.shared[0] == NULL and not self.begin_sharing(record.region):
            return REFUSED
        out = slot.shared[self.current]
        if not begin_to_wait(self, partition):
            return REFUSED
        round.events += 1
        if is_applied_here(out, slot.shared[self.current ^ 1], bucket):
            became = region_apply_event(core, record, hash, possible_duplicate, &change, &took_effect, &status)
            if became > 0:
                return became
            if became == EVENT_NOT_TAKEN and status == WAN_CLOSED:
                return WAN_FAILED_REGION_NOT_FOUND
            if became == EVENT_NOT_TAKEN and status == WAN_SLOW:        # Asks filters, returns when replicated.
                self.untold = PROGRESS_RECORDS
                became = self.apply_by_callbacks(record, partition, sequence, possible_duplicate)
                if became != NOT_PRIMARY:
                    return became
                became = EVENT_NOT_TAKEN
            elif became == EVENT_NOT_TAKEN and status != WAN_NOT_PRIMARY:
                return REFUSED
            if became != EVENT_NOT_TAKEN:
                # Two separate reads: one combined read of two writes would wait for both writes, and for all earlier
                # writes.
                if not note_applied_here(out, bucket, wan_read(&change.local_fence), wan_read(&change.sequence)):
                    self.no_memory_to_share()
                    return REFUSED
                round.held.conflicts += became == EVENT_LOST
                if took_effect:
                    note_applied(self, core)
                return APPLIED
        place.number, place.partition, place.sequence = self.handled_events, partition, sequence
        if not add_to_run(out, bucket, record, possible_duplicate, &place):
            self.no_memory_to_share()
            return REFUSED
        round.bytes += wan_record_length(record)
        return APPLIED

    cdef void note_too_large(self) noexcept with gil:
        from pywan.errors import EventTooLargeError
        report_unraisable("applying an event", EventTooLargeError(detail_text()))

    cdef int apply_by_callbacks(self, const wan_record *record, uint32_t partition, uint64_t sequence,
                                bint possible_duplicate) noexcept with gil:
        from pywan.errors import DiskError, InternalError, QueueFullError
        cdef int result
        try:
            raw = PyBytes_FromStringAndSize(<const char *>record, wan_record_length(record))
            result = self.callback_apply(
                self.cores[record.region], raw,
                (partition, sequence, possible_duplicate, place_bytes(self.place_of(partition, sequence))))
            if result == LOST:      # The event lost against a later version.
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

    cdef int apply_section(self, const wan_section *section, const uint8_t *at) noexcept nogil:
        """Applies a section. 0: the connection is to be given up; the detail, or `refused_code`, has the reason."""
        cdef connection_partition *partition = partition_at(self, section.partition)
        cdef applied_slot unremembered
        cdef applied_slot *slot
        cdef uint64_t expected, before
        cdef int is_applied
        if partition == NULL or partition.slot == NULL:
            wan_note(WAN_CORRUPT, "partition %u of a sender with %u, for which no stream was named",
                     section.partition, self.memory.partitions)
            return 0
        before = partition.through
        if before and section.first <= before:
            wan_note(WAN_CORRUPT, "partition %u: a section %llu..%llu, acknowledged through %llu, behind one through "
                                  "%llu; sections follow each other",
                     section.partition, <unsigned long long>section.first, <unsigned long long>section.through,
                     <unsigned long long>section.acknowledged, <unsigned long long>before)
            return 0
        # The first section of a partition on a connection may begin before the known end: then events are sent again.
        # Each later section begins at the end of the section before.
        expected = max(before, section.acknowledged) + 1 if before else NO_SEQUENCE
        partition.through = section.through
        memset(&unremembered, 0, sizeof(unremembered))
        wan_lock_take(&partition.slot.lock)
        slot = partition.slot
        if partition.run != NULL and not begin_section(&partition.run.slots[partition.bucket], partition.timeline):
            # The section belongs to an earlier timeline of its stream, from a member that does not know the later
            # timeline yet. The regions recognise known events by their versions.
            unremembered.last = before
            slot = &unremembered
        is_applied = self.apply_run(section, at, partition, slot, &unremembered, expected)
        if self.holds_gil:
            self.end_callbacks()
        wan_lock_release(&partition.slot.lock)
        forget_applied(&unremembered)
        return is_applied

    cdef int apply_run(self, const wan_section *section, const uint8_t *at, connection_partition *partition,
                       applied_slot *slot, applied_slot *unremembered, uint64_t expected) noexcept nogil:
        """Applies the records of a section that `slot` does not know, under the lock of the partition. If the run waits
        for a round, and a later timeline of the stream begins meanwhile, the rest uses `unremembered`. On this
        connection the section may begin at `expected` at the latest."""
        # The records under way, by their numbers. A core is NULL if the record is known, or if the region is missing.
        cdef const wan_record *records[RING_RECORDS]
        cdef region_core *cores[RING_RECORDS]
        cdef uint64_t hashes[RING_RECORDS]
        cdef uint64_t sequences[RING_RECORDS]
        cdef const uint8_t *run = at
        cdef uint64_t sequence
        cdef uint32_t number = 0        # Number of the record in hand in the section.
        cdef bint possible_duplicate, waits
        cdef const wan_record *record
        cdef uint32_t step, begin, k
        cdef int result
        cdef wan_rewind rewind
        cdef uint64_t floor, highest = 0, durable = wan_section_durable(section)
        cdef uint8_t is_given = 0       # A caller gave the stamp `highest`.
        cdef uint64_t *handled = partition.handled
        cdef wan_receiver_counts *counts
        # The remembered failures before this index have sequences before the record in hand.
        cdef uint32_t remembered
        if section.through > slot.last:
            wan_set(&slot.mount, self.mount)
        slot.acknowledged = max(slot.acknowledged, durable)
        if slot.last < section.acknowledged:
            slot.passed_over = section.acknowledged
            # Another member of this site acknowledged the earlier events, or this member did before the loss of its
            # memory. An unknown partition starts behind these events. A sender has all events that are not
            # acknowledged, so any event between would be lost silently.
            wan_set(&slot.last, section.acknowledged)
        forget_failures(slot, durable, partition.run != NULL)
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
            # the earlier records stay applied.
            slot.passed_over = max(slot.passed_over, section.through)
        if section.through <= slot.last:
            self.own.duplicate_batches += 1
        if handled[self.current ^ 1] and not begin_to_wait(self, section.partition):
            return 0
        floor = slot.last
        remembered = first_failure(slot, section.first)
        at += wan_section_head_bytes(section)
        for step in range((section.count + <uint32_t>GROUP_RECORDS - 1) // <uint32_t>GROUP_RECORDS + 2):
            begin = step * <uint32_t>GROUP_RECORDS
            for number in range(begin, min(begin + <uint32_t>GROUP_RECORDS, section.count)):
                k = number % RING_RECORDS       # Fetch the slots of the records applied two steps later.
                record = <const wan_record *>at
                at += wan_record_length(record)
                records[k] = record
                sequences[k] = wan_section_sequence(section, run, number)
                if self.holds_gil and is_looked_up(self, record.region):
                    self.end_callbacks()
                cores[k] = region_of(self, record.region) if sequences[k] > floor else NULL
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
                k = number % RING_RECORDS       # Fetch the entries of the records applied one step later.
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
                if is_round_full(self, wan_record_length(record)):
                    # No thread waits for other members under the lock. Meanwhile another connection may apply the same
                    # events, or begin a later timeline of the stream. The replicated part of this timeline is known
                    # now.
                    if self.holds_gil:
                        self.end_callbacks()
                    if not self.turn_over_unlocked(partition):
                        return 0
                    if handled[self.current ^ 1] and not begin_to_wait(self, section.partition):
                        return 0
                    if not is_of_its_timeline(partition):
                        slot = unremembered
                    floor = max(floor, slot.last)
                    remembered = first_failure(slot, sequences[k])
                self.handled_events += 1
                sequence = sequences[k]
                if sequence <= floor:
                    # A record seen before is not applied again. If the record failed then, the sender is told the
                    # failure again.
                    self.own.duplicates_skipped += 1
                    while remembered < slot.failure_count and slot.failures[remembered].sequence < sequence:
                        remembered += 1
                    if remembered < slot.failure_count and slot.failures[remembered].sequence == sequence:
                        if not self.note_failure(self.handled_events, section.partition, sequence,
                                                 slot.failures[remembered].reason):
                            return 0
                    continue
                if cores[k] != NULL and record.stamp > highest and not is_ahead(self, record):
                    highest = record.stamp
                    is_given = record.flags & WAN_FLAG_GIVEN
                possible_duplicate = number < section.duplicates or record.flags & WAN_FLAG_REPEATED
                if cores[k] != NULL:
                    result = self.apply_one(cores[k], record, hashes[k], section.partition, sequence,
                                            possible_duplicate)
                else:
                    result = why_absent(self, record.region)
                if result < APPLIED:
                    self.refused_code = 1
                    return 0
                waits = handled[self.current] != 0
                counts = &self.rounds[self.current].held if waits else &self.own
                if result > APPLIED:
                    self.note_refused(record, <uint32_t>result, NULL)
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
            wan_clock_receive(self.clock, highest)
        return 1

    cdef void apply_destroys(self, const wan_section *section, const uint8_t *at, uint32_t count) noexcept nogil:
        """Applies the destroys in `count` sections with a refused event: destroys free space where the event waits for
        space. All the destroys come again, and are recognised by their versions then. Queues here must not conclude
        from a destroy that all earlier events of the stream came, so the destroys have no place."""
        cdef connection_partition *partition
        cdef const wan_record *record
        cdef const uint8_t *run
        cdef region_core *core
        cdef uint64_t sequence
        cdef uint32_t number
        cdef char detail[WAN_DETAIL_BYTES]
        memcpy(detail, wan_detail, WAN_DETAIL_BYTES)      # The detail has the reason of the refusal.
        for _ in range(count):
            partition = partition_at(self, section.partition)
            run = at
            at += section.bytes
            if partition != NULL and partition.slot != NULL and partition.run == NULL:
                wan_lock_take(&partition.slot.lock)
                if section.first <= partition.slot.last + 1:
                    record = <const wan_record *>(run + wan_section_head_bytes(section))
                    for number in range(section.count):
                        sequence = wan_section_sequence(section, run, number)
                        if record.operation == WAN_DESTROY and sequence > partition.slot.last:
                            core = region_of(self, record.region)
                            if core != NULL and core.changelog == NULL:
                                self.apply_one(core, record,
                                               wan_key_hash(wan_record_key(record), record.key_length, record.key_form),
                                               section.partition, NO_PLACE,
                                               number < section.duplicates or record.flags & WAN_FLAG_REPEATED)
                        record = <const wan_record *>(<const uint8_t *>record + wan_record_length(record))
                if self.holds_gil:
                    self.end_callbacks()
                wan_lock_release(&partition.slot.lock)
            section += 1
        self.add_applied()
        wan_note(WAN_CORRUPT, "%s", <const char *>detail)

    cdef void note_stranger(self, const wan_section *section, uint64_t sequence) noexcept nogil:
        wan_note(WAN_CORRUPT, "event %u/%llu is of another region or bucket than its stream", section.partition,
                 <unsigned long long>sequence)
