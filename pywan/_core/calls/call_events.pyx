# Owns the events of remote sites that a receiver distributes to the primaries of the buckets: the events that wait for
# a primary, the calls that carry the events, and the results.
#
# A round is everything that a session sends together. The events of a bucket keep their order: while an event waits for
# another member, the later events of the bucket wait behind, and the bucket has no second call under way.
cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_session cimport *
from pywan._core.calls.call_line cimport CallLine
from pywan._core.calls.call_route cimport MOVED, NOT_STABLE, CallPart, begin
from pywan._core.calls.own_calls cimport OwnCalls
from pywan._core.region.compiled_region cimport CompiledRegion

cdef enum:
    RUNS_KEPT_BYTES = 16 << 20  # All runs together keep so much memory between rounds, for records and for places.
    PARTS_UNDER_WAY = 256       # Calls of a round that are under way at the same time.
    SLICE_MS = 100              # A wait asks so often whether to go on.
    AIM_US = 200000             # A search for a primary asks so often whether to go on.
    LIMIT_US = 10000000         # A region without a route gives up a round after so long.
    LEARNER_WAIT_US = 1000000   # Events wait for a learner so long at most.
    LEARNER_LOOK_MS = 1


# One round, without the GIL.

cdef bint touch_bucket(shared_out *out, uint32_t bucket) noexcept nogil:
    """Notes that a bucket has events. False: no memory."""
    if wan_buffer_add(&out.touched, &bucket, sizeof(bucket)) != WAN_OK:
        return False
    out.runs[bucket].is_touched = True
    return True


cdef bint add_to_run(shared_out *out, uint32_t bucket, const wan_record *record, bint is_marked,
                     const event_place *place) noexcept nogil:
    """Adds an event to the run for the bucket's primary. False: no memory."""
    cdef event_run *run = &out.runs[bucket]
    cdef uint64_t length = wan_record_length(record), none = 0
    if not run.is_touched and not touch_bucket(out, bucket):
        return False
    if is_marked:
        while run.marks.used <= run.count // 64 * sizeof(uint64_t):
            if wan_buffer_add(&run.marks, &none, sizeof(none)) != WAN_OK:
                return False
    # The record comes last: an event is added only if the record is.
    if (wan_buffer_reserve(&run.records, length) != WAN_OK
            or wan_buffer_add(&run.places, place, sizeof(event_place)) != WAN_OK):
        return False
    wan_buffer_put(&run.records, record, length)
    if is_marked:
        (<uint64_t *>run.marks.bytes)[run.count // 64] |= <uint64_t>1 << run.count % 64
    run.count += 1
    out.bytes += length
    if out.region.changelog.budget != NULL:
        wan_budget_hold(out.region.changelog.budget, WAN_BUDGET_CALLS, &out.held_bytes, out.bytes)
    return True


cdef bint wait_until_stable(shared_out *out, uint64_t until_us, goes_on_waiting goes_on, void *owner) noexcept nogil:
    """Waits until all events that were applied at this member are replicated. False: the wait ended before; the detail
    has the reason."""
    cdef const uint32_t *touched = <const uint32_t *>out.touched.bytes
    cdef wan_changelog *changelog = out.region.changelog
    cdef const event_run *run
    cdef uint32_t never = 0
    cdef uint64_t n, now, began
    cdef wan_status status
    for n in range(out.touched.used // sizeof(uint32_t)):
        run = &out.runs[touched[n]]
        if not run.waits:
            continue
        while True:
            status = wan_changelog_wait(changelog, touched[n], run.local_fence, run.sequence, SLICE_MS)
            if status == WAN_OK:
                break
            if status == WAN_NOT_PRIMARY:
                wan_note(WAN_CORRUPT, "region %s: this member is not primary of bucket %u any more, while events were"
                                      " not at all in-sync replicas yet; send the events again",
                         wan_region_names[out.region.number].text, touched[n])
                return False
            if wan_monotonic_us() >= until_us:
                wan_note(WAN_CORRUPT, "region %s: the replicas of bucket %u did not get its events within %.3g s;"
                                      " `show coordinator` says who is there",
                         wan_region_names[out.region.number].text, touched[n], out.limit_us / 1e6)
                return False
            if not goes_on(owner):
                return False
        began = now = wan_monotonic_us()
        while (wan_changelog_has_learner(changelog, touched[n]) and now < began + LEARNER_WAIT_US
               and wan_changelog_holds_back(changelog, touched[n], now)):
            wan_wait_change(&never, 0, LEARNER_LOOK_MS)
            now = wan_monotonic_us()
    return True


cdef void drop_round(shared_out *out) noexcept nogil:
    """Forgets all events of the round."""
    cdef const uint32_t *touched = <const uint32_t *>out.touched.bytes
    cdef event_run *run
    cdef uint64_t n
    for n in range(out.touched.used // sizeof(uint32_t)):
        run = &out.runs[touched[n]]
        wan_buffer_trim(&run.records, RUNS_KEPT_BYTES // out.region.changelog.bucket_count)
        wan_buffer_trim(&run.places, RUNS_KEPT_BYTES // out.region.changelog.bucket_count)
        wan_buffer_empty(&run.marks)
        run.count, run.is_touched, run.waits = 0, False, False
    wan_buffer_empty(&out.touched)
    wan_buffer_trim(&out.failed, WAN_BUFFER_KEPT_BYTES)
    out.bytes = out.conflicts = 0
    if out.region.changelog.budget != NULL:
        wan_budget_let_go(out.region.changelog.budget, WAN_BUDGET_CALLS, &out.held_bytes)


@cython.no_gc_clear      # `__dealloc__` uses the region.
cdef class EventCalls:
    """The events of a shared region that a session sends to other members. `send_all` sends the waiting events,
    `finish` waits for the answers, and `abandon` gives up the calls. The session itself applies the events of buckets
    that this member leads."""

    def __cinit__(self, CompiledRegion state not None):
        self.state, self.route = state, state.route
        self.parts, self.slow = [], set()
        self.out.region = &state.region
        self.out.limit_us = self.route.limit_us if self.route is not None else LIMIT_US
        self.out.runs = <event_run *>calloc(state.region.changelog.bucket_count, sizeof(event_run))
        if self.out.runs == NULL:
            raise MemoryError(f"region {state.name!r}: no memory to share events out")

    def __dealloc__(self):
        if self.parts:
            self.abandon()
        if self.out.runs != NULL:
            drop_round(&self.out)
            for n in range(self.out.region.changelog.bucket_count):
                wan_buffer_close(&self.out.runs[n].records)
                wan_buffer_close(&self.out.runs[n].places)
                wan_buffer_close(&self.out.runs[n].marks)
        free(self.out.runs)
        wan_buffer_close(&self.out.touched)
        wan_buffer_close(&self.out.failed)

    cdef int send_all(self, uint64_t until_us) except -1:
        """Sends the events that wait for other members, and returns without a wait."""
        self.slow.clear()
        if self.route is not None:
            self.out.limit_us = self.route.limit_us
        self.parts = self.new_parts()
        if not self.parts:
            return 0
        if self.route is None:
            from pywan.errors import IllegalStateError
            raise IllegalStateError(f"region {self.state.name!r} does not know other members yet")
        self.state.check_process()
        self.here = OwnCalls(None)
        self.here.callback_depth = wan_call_depth
        return self.send(self.parts[:PARTS_UNDER_WAY], until_us)

    cdef bint finish(self, uint64_t began_us, uint64_t until_us, goes_on_waiting goes_on, void *owner) except *:
        """Returns when all sent events are applied and replicated. `out.failed` has the failed events. False: the wait
        was given up. ConnectivityError: the events were not replicated by `until_us`. QueueFullError and others: a
        primary takes no events now."""
        cdef list sent = self.parts[:PARTS_UNDER_WAY]
        while self.parts:
            try:
                if not self.wait_for(sent, until_us, goes_on, owner):
                    return False
                self.parts = [part for part in sent if not self.take(part)] + self.parts[len(sent):]
            except BaseException:
                if not self.is_gone():
                    raise
            if self.is_gone():          # The site destroyed the region, or this member closed it.
                self.fail_all(WAN_FAILED_REGION_NOT_FOUND)
                break
            for part in sent:
                if (<CallPart>part).trouble is None:
                    continue
                if not self.aim_again(part, began_us, until_us, goes_on, owner):
                    return False
            sent = self.parts[:PARTS_UNDER_WAY]
            self.send(sent, until_us)
        self.parts, self.here = [], None
        return True

    cdef int abandon(self) except -1:
        """Gives up the calls under way. Their events may be applied all the same."""
        cdef CallPart part
        for part in self.parts:
            part.let_go()
        self.parts, self.here = [], None
        return 0

    cdef bint is_gone(self) noexcept:
        return wan_flag_read(&self.state.region.closed) != 0

    cdef list new_parts(self):
        cdef const uint32_t *touched = <const uint32_t *>self.out.touched.bytes
        cdef CallPart part
        cdef event_run *run
        cdef uint64_t n, marks, none = 0
        parts = []
        for n in range(self.out.touched.used // sizeof(uint32_t)):
            run = &self.out.runs[touched[n]]
            if run.count == 0:
                continue
            part = CallPart()
            begin(&part.head, WAN_CALL_EVENTS, self.state, 0)
            part.head.bucket, part.head.count = touched[n], run.count
            if run.marks.used:
                part.head.flags, marks = WAN_CALL_MARKS, wan_call_marks_bytes(run.count)
                while run.marks.used < marks:
                    if wan_buffer_add(&run.marks, &none, sizeof(none)) != WAN_OK:
                        raise MemoryError(f"region {self.state.name!r}: no memory to share events out")
                if wan_buffer_add(&run.records, run.marks.bytes, marks) != WAN_OK:
                    raise MemoryError(f"region {self.state.name!r}: no memory to share events out")
            part.data, part.length = run.records.bytes + run.records.start, run.records.used - run.records.start
            parts.append(part)
        return parts

    cdef int send(self, list parts, uint64_t until_us) except -1:
        """Lays out an attempt of each part, and lets the attempts leave together."""
        cdef CallPart part
        cdef CallLine line
        cdef list lines = []
        for part in parts:
            part.payload = part.trouble = None
            part.is_here = False
            self.route.send(part, until_us, lines, self.slow)
        for line in lines:
            with nogil:
                line.flush(until_us)
        return 0

    cdef bint wait_for(self, list parts, uint64_t until_us, goes_on_waiting goes_on, void *owner) except *:
        """Returns when each attempt has ended. False: the wait was given up."""
        cdef bint still
        cdef CallPart part
        try:
            self.here.begin_here(until_us)
            for part in parts:
                if part.is_here:        # This member has become primary meanwhile.
                    part.answer_at = self.here.do_here(self.state, &part.head, part.data, part.length)
            if not self.serve(parts, goes_on, owner):
                return False
            for part in parts:
                while part.slot != NULL and part.wait(until_us):
                    with nogil:
                        still = goes_on(owner)
                    if not still:
                        return False
                    if self.route.has_moved(&part.head):
                        part.trouble = "moved", part.head.epoch, MOVED, b""
        finally:
            for part in parts:
                part.let_go()
        return True

    cdef bint serve(self, list parts, goes_on_waiting goes_on, void *owner) except *:
        """Waits until the changes of the member's own calls are replicated. False: the wait was given up."""
        cdef bint still
        cdef CallPart part
        cdef uint64_t at = 0
        while True:
            with nogil:
                self.here.settle(&at)
            if at == self.here.waits.used:
                break
            with nogil:
                still = goes_on(owner)
            if not still:
                return False
        for part in parts:
            if part.is_here:
                part.take(self.here.answer_here(part.answer_at))
        return True

    cdef bint aim_again(self, part_, uint64_t began_us, uint64_t until_us, goes_on_waiting goes_on,
                        void *owner) except *:
        """Waits until a part has a next primary, or until the part may go to the same primary again. False: the wait
        was given up."""
        cdef bint still
        cdef CallPart part = part_
        cdef uint64_t deadline = wan_deadline_us, slice_us
        global wan_deadline_us
        from pywan.errors import ConnectivityError
        while True:
            slice_us = min(until_us, wan_monotonic_us() + AIM_US)
            wan_deadline_us = slice_us
            try:
                self.route.aim(part.head.bucket, began_us, part.trouble, False, None)
                return True
            except ConnectivityError:
                if slice_us == until_us:
                    raise
            finally:
                wan_deadline_us = deadline
            with nogil:
                still = goes_on(owner)
            if not still:
                return False

    cdef bint take(self, part_) except *:
        """Notes the result for a bucket's events. False: the events have to be sent again, for the reason in
        `trouble`."""
        cdef CallPart part = part_
        cdef const wan_call_applied *became
        cdef const wan_call_failure *failures
        cdef const event_place *places = <const event_place *>self.out.runs[part.head.bucket].places.bytes
        # The epoch of the attempt.
        cdef uint64_t asked = part.got.number if part.is_here else part.head.epoch
        cdef const wan_record *record
        cdef uint32_t n, number = 0
        from pywan.errors import ProtocolError, RegionNotFoundError
        if part.payload is None:
            if part.trouble is None:        # `send` found no primary.
                part.trouble = "nobody", part.head.epoch, "no member is known to be its primary", b""
            return False
        try:
            if not self.route.is_final(&part.head, &part.got, part.payload, None):
                part.trouble = "not primary", asked, "it is not primary", part.payload
                if part.got.status == WAN_ANSWER_IN_DOUBT:
                    part.trouble = "in doubt", asked, NOT_STABLE, b""
                return False
        except RegionNotFoundError as error:        # The member ends: another member takes over.
            part.trouble = "not primary", asked, str(error), b""
            return False
        became = <const wan_call_applied *>PyBytes_AS_STRING(part.payload)
        if wan_call_applied_check(<const uint8_t *>became, PyBytes_GET_SIZE(part.payload), part.got.number,
                                  part.head.count) != WAN_OK:
            raise ProtocolError((<bytes>wan_detail).decode("utf-8", "replace"))
        self.out.conflicts += became.conflicts
        failures = <const wan_call_failure *>(became + 1)
        record = <const wan_record *>part.data
        for n in range(became.failures):        # The record numbers ascend.
            while number < failures[n].record:
                record = <const wan_record *>(<const uint8_t *>record + wan_record_length(record))
                number += 1
            self.fail(&places[number], record, failures[n].reason)
        return True

    cdef int fail_all(self, uint32_t reason) except -1:
        """Marks all events of the calls without an answer as failed, for the same reason."""
        cdef CallPart part
        cdef event_run *run
        cdef const wan_record *record
        cdef uint32_t n
        for part in self.parts:
            run = &self.out.runs[part.head.bucket]
            record = <const wan_record *>part.data
            for n in range(run.count):
                self.fail(&(<const event_place *>run.places.bytes)[n], record, reason)
                record = <const wan_record *>(<const uint8_t *>record + wan_record_length(record))
        return 0

    cdef int fail(self, const event_place *place, const wan_record *record, uint32_t reason) except -1:
        cdef failed_event failed
        failed.number = place.number
        failed.failure.partition, failed.failure.sequence = place.partition, place.sequence
        failed.failure.reason, failed.record = reason, record
        if wan_buffer_add(&self.out.failed, &failed, sizeof(failed)) != WAN_OK:
            raise MemoryError(f"region {self.state.name!r}: no memory to note failed events")
        return 0
