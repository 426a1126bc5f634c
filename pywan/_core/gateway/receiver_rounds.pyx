# Owns the rounds of events of shared regions (docs/decisions/0088) or regions with logs (docs/decisions/0103): events
# that wait for other members, for replicas or for logs, and the notes and acknowledgements afterwards. While one round
# is handled, other members and committers work on the previous round.
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport WAN_WIRE_PARTITIONS
from pywan._core.c_session cimport *
from pywan._core.base.status cimport end_if_strayed
from pywan._core.calls.call_events cimport EventCalls, drop_round, failed_event, shared_out, wait_until_stable
from pywan._core.gateway.receiver_report cimport ReceiverReport
from pywan._core.gateway.receiver_regions cimport slot_of
from pywan._core.gateway.receiver_streams cimport connection_partition, is_of_its_timeline, partition_at
from pywan._core.region.log_marks cimport wait_log_marks
from pywan._core.region.put cimport region_is_full, region_relieve
from pywan._core.region.region cimport RegionCore
from pywan._core.region.region_state cimport region_core

cdef enum:
    ROUND_EVENTS = 8192         # A round ends at this number of events of shared or logged regions.
    FULL_SLICE_MS = 20          # Longest single wait for memory.


cdef class ReceiverRounds(ReceiverStreams):
    """A session with events that may wait for other members."""

    def __cinit__(self):
        self.shared_calls = []
        self.marks = [None, None]

    def __dealloc__(self):
        for n in range(2):
            wan_buffer_close(&self.shares[n])
            wan_buffer_close(&self.rounds[n].waiting)

    cdef int begin_sharing(self, uint16_t number) noexcept with gil:
        """Adds the region with the sender's number to the shared regions. 0: the detail has the reason of the
        failure."""
        cdef EventCalls events
        cdef RegionCore core
        cdef shared_out *out
        try:
            core = self.cores[number]
            pair = next((each for each in self.shared_calls if (<EventCalls>each[0]).state is core.state), None)
            if pair is None:
                # Closed regions are forgotten, unless some of their events wait.
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
                slot_of(self, number).shared[n] = &events.out
            return 1
        except BaseException as error:
            self.refuse(error)
            return 0

    cdef void no_memory_to_share(self) noexcept nogil:
        wan_note(WAN_CORRUPT, "no memory for events that wait for other members")

    cdef int wait_for_room(self) noexcept nogil:
        """Takes no more events while this member's budget is full, or while the listeners of a shared region have too
        many pending notifications. 0: the connection is to be given up; the detail has the reason."""
        cdef shared_out **shares = <shared_out **>self.shares[0].bytes
        cdef const region_core *region
        cdef uint32_t never = 0
        cdef size_t n
        for n in range(self.shares[0].used // sizeof(shared_out *)):
            region = shares[n].region
            if wan_flag_read(&region.closed) or not region_is_full(region):
                continue
            if not self.end_rounds():       # The waiting events are a part of the full budget.
                return 0
            if region.changelog.budget != NULL:
                wan_budget_note_wait(region.changelog.budget)
            while region_is_full(region) and not wan_flag_read(&region.closed):
                region_relieve(<region_core *>region)
                if not self.tell_progress():
                    return 0
                if wan_budget_is_full(region.changelog.budget):
                    wan_budget_wait(region.changelog.budget, FULL_SLICE_MS)
                else:
                    wan_wait_change(&never, 0, 1)
        return 1

    # End of a round

    cdef int end_batch(self, uint64_t id, uint64_t began_us) noexcept nogil:
        """Notes a completely handled batch. The batch is acknowledged with the round. 0: as for `turn_over`."""
        cdef event_round *round = &self.rounds[self.current]
        round.is_unacknowledged, round.newest_id, round.newest_began_us = True, id, began_us
        round.newest_number = self.handled_events
        return self.turn_over() if round.events >= <uint64_t>ROUND_EVENTS else 1

    cdef int turn_over(self) noexcept nogil:
        """Sends the round in work after the end of the previous round, and begins another round. 0: the connection is
        to be given up; the detail has the reason."""
        cdef event_round *round = &self.rounds[self.current]
        if self.is_sent and not self.end_round():
            return 0
        self.add_applied()
        round.sent_us = wan_monotonic_us()
        if round.bytes and not self.send_round():
            return 0
        if wan_flag_read(&self.memory.streams.must_wait) and not self.mark_round():
            return 0
        self.is_sent = True
        self.current ^= 1
        return 1

    cdef int turn_over_unlocked(self, const connection_partition *partition) noexcept nogil:
        """Does the same without the caller's lock of a partition, because other connections use the partition's
        memory."""
        cdef int is_done
        wan_lock_release(&partition.slot.lock)
        is_done = self.turn_over()
        wan_lock_take(&partition.slot.lock)
        return is_done

    cdef int mark_round(self) noexcept with gil:
        """Notes the ends of the logs that have the events of the round. A full round does not wait for the intervals of
        the logs: more events are here already."""
        try:
            self.marks[self.current] = self.mark_logs(self.rounds[self.current].events >= <uint64_t>ROUND_EVENTS)
            return 1
        except BaseException as error:
            self.refuse(error)
            return 0

    cdef int wait_for_logs(self) noexcept with gil:
        """Waits until the logs have the events of the sent round. 0: the batches are not acknowledged, and the sender
        sends the batches again."""
        cdef dict marks = self.marks[self.current ^ 1]
        self.marks[self.current ^ 1] = None
        try:
            if marks is not None:
                wait_log_marks(marks)
            return 1
        except BaseException as error:
            self.refuse(error)
            return 0

    cdef int send_round(self) noexcept with gil:
        """Sends the events for other members: all events leave before the first wait."""
        cdef EventCalls events
        try:
            for pair in self.shared_calls:
                events = pair[self.current]
                events.send_all(self.rounds[self.current].sent_us + events.out.limit_us)
            return 1
        except BaseException as error:
            return self.give_up(error)

    cdef int wait_for_others(self) noexcept with gil:
        """Waits until other members have applied the sent events."""
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

    cdef int end_round(self) noexcept nogil:
        """Waits until all events of the sent round are replicated, notes the results in the source's memory, and
        acknowledges. 0: the connection is to be given up; the detail has the reason."""
        cdef int at = self.current ^ 1
        cdef event_round *round = &self.rounds[at]
        cdef shared_out **shares = <shared_out **>self.shares[at].bytes
        cdef size_t n, count = self.shares[at].used // sizeof(shared_out *)
        if round.bytes and not self.wait_for_others():
            return 0
        for n in range(count):
            if not wait_until_stable(shares[n], round.sent_us + shares[n].limit_us, goes_on, <void *>self):
                return 0
        for n in range(count):
            if not self.take_failures(round, shares[n]):
                return 0
        if self.failure_count:
            # Failures from other members also come in the order of the events.
            qsort(self.failures, self.failure_count, sizeof(failed_event), order_of_failures)
        for n in range(self.failure_count):
            if not self.note_failed(at, &self.failures[n]):
                return 0
        for n in range(round.waiting.used // sizeof(uint32_t)):
            self.note_handled(at, (<uint32_t *>round.waiting.bytes)[n])
        self.add_counts(&round.held)
        self.is_sent = False
        if round.is_unacknowledged:
            if wan_flag_read(&self.memory.streams.must_wait) and not self.wait_for_logs():
                return 0
            # Reports the time of the newest batch. The older batches came before, and waited.
            if not self.acknowledge(round.newest_id, round.newest_number, <uint32_t>min(
                    self.work_us() - round.newest_began_us, <uint64_t>0xffffffff)):
                return 0
        self.forget_round(at)
        return 1

    cdef int take_failures(self, event_round *round, shared_out *out) noexcept nogil:
        """Notes the results that other members report about their events."""
        cdef const failed_event *failed = <const failed_event *>out.failed.bytes
        cdef uint64_t n
        round.held.conflicts += out.conflicts
        for n in range(out.failed.used // sizeof(failed_event)):
            self.note_refused(failed[n].record, failed[n].failure.reason, out.region)
            round.held.exceptions_occurred += 1
            if not self.note_failure(failed[n].number, failed[n].failure.partition, failed[n].failure.sequence,
                                     failed[n].failure.reason):
                return 0
        return 1

    cdef int note_failed(self, int at, const failed_event *failed) noexcept nogil:
        """Remembers a failure if the event is in the round. All other failures were remembered at once, or their round
        goes on."""
        cdef connection_partition *partition = partition_at(self, failed.failure.partition)
        cdef int is_remembered = 1
        if failed.failure.sequence > partition.handled[at]:
            return 1
        wan_lock_take(&partition.slot.lock)
        if is_of_its_timeline(partition):
            is_remembered = self.remember(partition.slot, failed)
            if is_remembered and failed.failure.sequence > partition.slot.last:
                wan_set(&partition.slot.last, failed.failure.sequence)
        wan_lock_release(&partition.slot.lock)
        return is_remembered

    cdef void note_handled(self, int at, uint32_t number) noexcept nogil:
        """Notes that all events of a partition in the round are replicated, or failed. If the stream has a later
        timeline by now, the method notes no event."""
        cdef connection_partition *partition = partition_at(self, number)
        wan_lock_take(&partition.slot.lock)
        if is_of_its_timeline(partition) and partition.handled[at] > partition.slot.last:
            wan_set(&partition.slot.last, partition.handled[at])
        partition.handled[at] = 0
        wan_lock_release(&partition.slot.lock)

    cdef int end_rounds(self) noexcept nogil:
        """Ends all rounds under way. 0: as for `end_round`."""
        if has_round(self) and not self.turn_over():
            return 0
        return self.end_round() if self.is_sent else 1

    cdef int end_rounds_of(self, uint64_t partition) noexcept nogil:
        """Ends all rounds under way if a partition is a stream: the partition is about to become another stream, or a
        later timeline. An acknowledgement cannot distinguish two events with the same partition and sequence. 0: as for
        `end_round`."""
        cdef connection_partition *named = partition_at(self, <uint32_t>min(partition, <uint64_t>WAN_WIRE_PARTITIONS))
        if named == NULL or named.run == NULL:
            return 1
        return self.end_rounds()

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
        """Forgets all events without acknowledgement: the connection ends, and the sender sends the events again."""
        if self.is_sent:
            with gil:
                for pair in self.shared_calls:
                    for each in pair:
                        (<EventCalls>each).abandon()
            self.is_sent = False
        self.forget_round(0)
        self.forget_round(1)


cdef bint is_needed(EventCalls events):
    return not events.is_gone() or events.out.touched.used != 0


cdef bint goes_on(void *owner) noexcept nogil:
    """Returns whether a session goes on waiting for other members. Meanwhile the session reports its progress to the
    sender."""
    return (<ReceiverReport>owner).tell_progress()


cdef int order_of_failures(const void *one, const void *other) noexcept nogil:
    cdef uint64_t first = (<const failed_event *>one).number, second = (<const failed_event *>other).number
    return (first > second) - (first < second)
