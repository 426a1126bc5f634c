# Owns the calls of this member to itself, as primary. The calls are done like calls of other members, but without a
# connection. The calling thread waits until the content of the answers is replicated.
cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy
from cpython.exc cimport PyErr_CheckSignals
from pywan._core.c_base cimport *
from pywan._core.c_names cimport *
from pywan._core.c_region cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_session cimport *
from pywan._core.calls.pending_calls cimport SLICE_MS, call_wait, lose, say_under_replicated
from pywan._core.region.compiled_region cimport CompiledRegion
from pywan._core.region.put cimport region_is_full
from pywan._core.wire.session cimport GOES_ON
from pywan._core.wire.stream cimport buffer_reserve


@cython.no_gc_clear
cdef class OwnCalls(CallSession):
    """Calls of this member to itself: `begin_here`, then `do_here` for each call, `settle_here` once for all calls, and
    `answer_here` for each call."""

    cdef const wan_answer *serve_here(self, CompiledRegion state, wan_call *head, const void *payload, uint64_t length,
                                      uint64_t until_us) except NULL:
        """Does a call of this member to itself, without a connection. The answer is valid until the next call."""
        cdef uint64_t at
        self.begin_here(until_us)
        at = self.do_here(state, head, payload, length)
        self.settle_here()
        return self.answer_here(at)

    cdef void begin_here(self, uint64_t until_us) noexcept:
        """`until_us`: the deadline of the calls, on the monotonic clock."""
        self.until_us = until_us
        self.out.start = self.out.used = 0
        wan_buffer_empty(&self.waits)

    cdef uint64_t do_here(self, CompiledRegion state, wan_call *head, const void *payload,
                          uint64_t length) except? NO_LIMIT:
        """Does a call. Returns the start of the answer."""
        cdef int how
        cdef uint64_t whole = sizeof(wan_call) + wan_align8(length), at = self.last_answer()
        self.into.start = self.into.used = 0
        if not buffer_reserve(&self.into, whole):
            raise MemoryError(f"region {state.name!r}: no memory for a call of this member itself")
        head.magic, head.length, head.id = WAN_CALL_MAGIC, <uint32_t>length, 1
        memcpy(self.into.bytes, head, sizeof(wan_call))
        if length:
            memcpy(self.into.bytes + sizeof(wan_call), payload, length)
        state.check_open()
        if (wan_call_writes(head.kind) and state.region.changelog != NULL and wan_call_depth == 0
                and region_is_full(&state.region)):
            try:
                state.wait_for_memory(f"a change of bucket {head.bucket}", self.until_us, False)
            except Exception as error:
                if self.fail_with(head, error, 0) == NULL:
                    raise MemoryError(f"region {state.name!r}: no memory for an answer")
                return at
        if (wan_call_writes(head.kind) and state.region.changelog != NULL
                and wan_changelog_has_learner(state.region.changelog, head.bucket)):
            state.wait_for_learner(head.bucket, self.until_us)
        self.names[head.region], self.states[head.region] = state.name, state
        self.set_known(head.region, &state.region)
        with nogil:
            how = self.take_call(<const wan_call *>self.into.bytes, 0)
        if how != GOES_ON or self.last_answer() == at:
            raise MemoryError(f"region {state.name!r}: no memory for the answer to a call of this member itself")
        return at

    cdef int settle_here(self) except -1:
        """Waits until the content of all answers is replicated. An answer whose content is not replicated in time is
        changed to say so. Ctrl-C ends the wait."""
        cdef uint64_t at = 0
        while True:
            with nogil:
                self.settle(&at)
            if at == self.waits.used:
                break
            PyErr_CheckSignals()
        with nogil:
            wan_buffer_trim(&self.waits, WAN_BUFFER_KEPT_BYTES)
        return 0

    cdef const wan_answer *answer_here(self, uint64_t at) noexcept:
        """The answer that starts at `at`. It is valid until the next call."""
        return <const wan_answer *>(self.out.bytes + self.out.start + at)

    cdef void settle(self, uint64_t *at) noexcept nogil:
        """Waits for a while until the content of the answers is replicated, from the wait at *at on. *at moves behind
        the finished waits. An answer is changed to say so if the content is not replicated in time, or if this member
        cannot know the result any more."""
        cdef uint64_t slice_us = min(self.until_us, wan_monotonic_us() + SLICE_MS * 1000)
        cdef call_wait *wait
        cdef wan_status status
        while at[0] < self.waits.used:
            wait = <call_wait *>(self.waits.bytes + at[0])
            status = self.wait_stable(wait, slice_us)
            if status == WAN_EMPTY and slice_us < self.until_us:
                return
            if status != WAN_OK:
                lose(wait, <wan_answer *>(self.out.bytes + self.out.start + wait.at))
            elif wait.says_under_replicated and wait.changelog.min_isr > 1:
                say_under_replicated(wait, <wan_answer *>(self.out.bytes + self.out.start + wait.at))
            at[0] += sizeof(call_wait)

    cdef wan_status wait_stable(self, const call_wait *wait, uint64_t until_us) noexcept nogil:
        """Waits until a sequence is replicated, and for a read until no other member can be primary. WAN_EMPTY: the
        time is over. WAN_NOT_PRIMARY: this member cannot know the result any more."""
        cdef uint32_t never = 0
        cdef uint64_t now = wan_monotonic_us()
        cdef uint32_t left_ms = <uint32_t>((until_us - now) // 1000 + 1) if now < until_us else 0
        cdef wan_status status = wan_changelog_wait(wait.changelog, wait.bucket, wait.local_fence, wait.sequence,
                                                    left_ms)
        if status != WAN_OK or wait.is_change:
            return status
        while not wan_changelog_may_read(wait.changelog, wait.bucket, now):
            if wan_read(&wait.changelog.buckets[wait.bucket].local_fence) != wait.local_fence:
                return WAN_NOT_PRIMARY
            if now >= until_us:
                return WAN_EMPTY
            wan_wait_change(&never, 0, 1)
            now = wan_monotonic_us()
        return WAN_OK
