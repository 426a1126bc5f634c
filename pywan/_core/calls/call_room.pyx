# Owns the decision whether a session takes the next call, or lets the call wait: for a place among the pending calls,
# for memory of the member or of a region's listeners, or for a learner that does not keep up. The session knows the
# time since which nothing was read, and thus the late calls.
from libc.stdint cimport uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_names cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_session cimport *
from pywan._core.region.compiled_region cimport CompiledRegion
from pywan._core.region.put cimport region_is_full, region_relieve
from pywan._core.region.region_state cimport region_core

cdef enum:
    FULL_LOOK_US = 2000         # The session checks so often whether the member's budget has room again.
    # A change that waits for a learner is checked again after so long, and is done after LEARNER_WAIT_US in any case.
    LEARNER_LOOK_US = 1000
    LEARNER_WAIT_US = 1000000


cdef class CallRoom(CallRegions):
    """A session that may take no calls for a while."""

    cdef void note_came(self) noexcept nogil:
        """Notes the arrival of the calls in `into`, after a read of more bytes."""
        self.came_us = self.stopped_us if self.stopped_us else self.last_received_us
        if self.driver is None or self.driver.took_all:     # All bytes were read.
            self.stopped_us = 0

    cdef void received_nothing(self) noexcept nogil:
        self.stopped_us = 0         # The socket is empty, so the next bytes come later than now.

    cdef void note_stopped(self) noexcept nogil:
        """Notes the time since which the session reads nothing, after the calls in `into` were examined."""
        if self.reads_nothing and self.stopped_us == 0:
            self.stopped_us = self.now_us

    cdef uint64_t room_due_us(self, uint64_t now_us) noexcept nogil:
        """The time of the next attempt to take waiting calls."""
        cdef uint64_t due = NEVER
        # The calls may wait for memory. The code does not check whether the calls still wait: the budget may have got
        # room after the step's check, and no other thread wakes the session then.
        if self.has_more and self.has_place():
            due = now_us + FULL_LOOK_US
        if self.has_more and self.held_back_until_us > now_us:
            due = min(due, self.held_back_until_us)
        return due

    cdef bint is_full(self) noexcept nogil:
        return not self.has_place() or self.waits_for_memory() or self.held_back_until_us > self.now_us

    cdef bint is_held_back(self, const wan_call *call) noexcept nogil:
        """Whether the call has to wait a moment: the region's listeners have too many pending notifications, or a
        learner of the bucket does not keep up. No call becomes late because of a learner."""
        cdef region_core *region = self.known(call.region)
        cdef bint waits = self.waits_for_room(call)
        if not waits and self.depth == 0 and wan_call_writes(call.kind) and has_changelog(region, call):
            waits = (wan_changelog_has_learner(region.changelog, call.bucket)
                     and wan_changelog_holds_back(region.changelog, call.bucket, self.now_us)
                     and self.now_us < self.came_us + wan_call_work_us(call) // 2
                     and (self.held_back_since_us == 0 or self.now_us - self.held_back_since_us <= LEARNER_WAIT_US))
        if not waits:
            self.held_back_since_us = self.held_back_until_us = 0
            return False
        if self.held_back_since_us == 0:
            self.held_back_since_us = self.now_us
        self.held_back_until_us = self.now_us + LEARNER_LOOK_US
        return True

    cdef bint is_late(self, const wan_call *call) noexcept nogil:
        """Whether the client will soon give up the call."""
        return self.now_us >= self.came_us + wan_call_work_us(call)

    cdef bint waits_for_room(self, const wan_call *call) noexcept nogil:
        """Whether the call waits for memory of the member, or of the region's listeners."""
        cdef region_core *region = self.known(call.region)
        if call.kind == WAN_CALL_REGION:
            return False
        if self.waits_for_memory():
            return True
        if self.depth or not wan_call_writes(call.kind) or not has_changelog(region, call):
            return False
        if not region_is_full(region):
            return False
        region_relieve(region)
        return region_is_full(region)

    cdef bint may_begin(self) noexcept nogil:
        """Whether the session examines the next call although the member's budget is full: the call needs no memory, is
        late, or has not arrived as a whole. So a session always has the next call, and knows until when the call
        waits."""
        cdef const wan_call *call = <const wan_call *>(self.into.bytes + self.into.start)
        cdef uint64_t length = 0
        if not self.waits_for_memory() or not self.has_place():
            return False
        if wan_call_next(self.into.bytes + self.into.start, self.into.used - self.into.start, &length) != WAN_OK:
            return True
        return call.kind == WAN_CALL_REGION or self.is_late(call)

    cdef bint say_full(self, const wan_call *call) noexcept nogil:
        """Lays out the answer to a call whose whole time passed in the wait for memory. False: no memory."""
        self.served += 1
        if self.region_of(call.region) == NULL:
            return self.no_region(call)
        with gil:
            return self.fail_with(call, self.full(call), 0) != NULL

    cdef object full(self, const wan_call *call):
        from pywan.errors import QueueFullError
        cdef CompiledRegion state = self.states[call.region]
        return QueueFullError(f"region {state.name!r}: a call waited for {wan_call_work_us(call) / 1e6:.3g} s and was"
                              f" not made: {state.why_full()}; nothing was changed")

    cdef bint waits_for_memory(self) noexcept nogil:
        """Whether the member's budget is full, so that no call is taken. Calls from callbacks are taken all the same: a
        waiting listener would keep its pending notifications, and they are a part of the budget."""
        return self.depth == 0 and wan_budget_is_full(self.budget)


cdef bint has_changelog(const region_core *region, const wan_call *call) noexcept nogil:
    """Whether several members share the region, and the region has the call's bucket."""
    return (region != NULL and not wan_flag_read(&region.closed) and region.changelog != NULL
            and call.bucket < region.changelog.bucket_count)
