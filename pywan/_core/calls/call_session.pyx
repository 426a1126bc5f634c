# Owns the serving of calls: the requests of other members about keys of which this member is primary. A thread for each
# connection does the calls in the order of arrival. A call whose change or read is not replicated yet becomes a pending
# call with its answer. The thread goes on with the next call, and the answer leaves when the high watermark allows,
# before or after the answers of other calls.
#
# `CallSession` is put together from classes, each with a unit and state of its own. Each class is the base of the next
# class, and calls only classes before: call_answers, pending_calls, call_regions, call_room, call_callbacks, call_keys,
# call_buckets, call_groups. This unit has the order in which calls are taken.
cimport cython
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_names cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_session cimport *
from pywan._core.c_system cimport EFD_CLOEXEC, EFD_NONBLOCK, eventfd, eventfd_write
from pywan._core.base.budget cimport MemoryBudget
from pywan._core.calls.call_buckets cimport local_fence_of
from pywan._core.calls.pending_calls cimport pending_call
from pywan._core.region.region_state cimport region_core
from pywan._core.wire.session cimport ENDED_STOPPED, ENDED_TOLD, GOES_AGAIN, GOES_ON
from pywan._core.wire.stream cimport buffer_trim

cdef enum:
    ANSWERS_BYTES = 8 << 20     # After so many bytes of answers the session sends before the next call.
    # A call waits so long at most until this member is primary. A handover takes a few milliseconds. A client that
    # waits longer may miss the news that the call has to go to another member now.
    HELD_US = 250000
    # The result of `hold`.
    HELD = 1, CHANGED = 2, NO_ROOM = 3


@cython.no_gc_clear
cdef class CallSession(GroupCalls):
    """The calls of a connection. `find_region(name)` returns the RegionCore of the name, or None. `budget`: of the
    member; while the budget is full, the session takes no calls. `callers`: the numbers of the incarnations whose calls
    may come over the connection; empty: all incarnations."""

    def __cinit__(self, find_region, uint32_t depth=0, MemoryBudget budget=None, callers=()):
        for caller in callers[:CALLERS_MAX]:
            self.callers[self.caller_count] = caller
            self.caller_count += 1
        self.find_region, self.depth, self.callback_depth = find_region, depth, depth + 1
        self.owner_of_budget, self.budget = budget, &budget.budget if budget is not None else NULL
        self.wanted = sizeof(wan_call)
        self.speaks_last = True

    def run(self, sock):
        """Serves a connected socket. Returns "closed" when the client closed the connection, "stopped", or the reason
        why the connection was given up; the client got the same reason. The clients of pending calls get no answer
        then."""
        if self.wake_file < 0:
            self.wake_file = self.waker.wake_file = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
            if self.wake_file < 0:
                raise OSError("no file descriptor is left to serve another member's calls; raise the limit (ulimit -n)")
        self.socket_file = sock.fileno()
        try:
            return self.run_over_socket(sock)
        finally:
            self.socket_file = -1
            with nogil:
                self.drop_pending()

    def stop(self):
        """Makes `run` return after the present call. All threads may call `stop`."""
        wan_flag_set(&self.stop_flag, 1)
        if self.wake_file >= 0:
            eventfd_write(self.wake_file, 1)

    # The methods that each kind of session defines.

    cdef void say_why(self) noexcept nogil:
        """Does nothing: `take_calls` has laid out the last words, as an answer."""

    cdef int received(self) noexcept nogil:
        self.note_came()
        return self.take_calls()

    cdef int step(self, uint64_t now_us) noexcept nogil:
        cdef int how
        wan_waker_set_asleep(&self.waker, 0)
        if self.out.start < self.out.used:
            return GOES_ON
        if not self.collect(now_us):
            return ENDED_TOLD
        if self.has_more and (not self.is_full() or self.may_begin()):
            how = self.take_calls()
            return GOES_AGAIN if how == GOES_ON else how
        if self.out.start < self.out.used:
            return GOES_AGAIN
        # From now on a thread that makes a call ready wakes the session's thread. Calls that became ready before are
        # seen now.
        wan_waker_set_asleep(&self.waker, 1)
        return GOES_AGAIN if wan_waker_has_ready(&self.waker) else GOES_ON

    cdef uint64_t due_us(self, uint64_t now_us) noexcept nogil:
        if self.out.start < self.out.used:
            return NEVER
        return min(self.pending_due_us(now_us), self.room_due_us(now_us))

    cdef int take_calls(self) noexcept nogil:
        """Does all whole calls in `into`, and lays out the answers that may leave."""
        cdef uint64_t length = 0, begin
        cdef wan_status status
        cdef const wan_call *call
        cdef int how = GOES_ON
        cdef bint answered = False
        self.has_more = self.reads_nothing = False
        self.wanted = sizeof(wan_call)
        while how == GOES_ON:
            if self.out.used - self.out.start > ANSWERS_BYTES or (self.is_full() and not self.may_begin()):
                self.has_more = True
                self.reads_nothing = self.is_full()
                if self.waits_for_memory():
                    wan_budget_note_wait(self.budget)
                break
            status = wan_call_next(self.into.bytes + self.into.start, self.into.used - self.into.start, &length)
            if status == WAN_EMPTY:
                self.wanted = length
                break
            if status != WAN_OK:
                how = ENDED_TOLD
                break
            if wan_flag_read(&self.stop_flag):
                how = ENDED_STOPPED
                break
            begin = self.last_answer()
            call = <const wan_call *>(self.into.bytes + self.into.start)
            if self.is_late(call) and self.waits_for_room(call):
                how = GOES_ON if self.say_full(call) else ENDED_TOLD
                self.seal(begin)
            elif self.is_held_back(call):
                self.has_more = self.reads_nothing = True
                break
            else:
                how = self.do_call(call, self.now_us + HELD_US, self.came_us + wan_call_work_us(call))
            answered = answered or self.last_answer() > begin
            self.into.start += length
            if self.into.start == self.into.used:
                buffer_trim(&self.into)
        self.note_stopped()
        wan_buffer_trim(&self.waits, WAN_BUFFER_KEPT_BYTES)
        if how == ENDED_TOLD:
            # The finished answers leave all the same. The last words come behind.
            begin = self.last_answer()
            if self.fail(NULL, WAN_ANSWER_FAILED, b"ProtocolError", wan_detail, 0) != NULL:
                self.seal(begin)
        self.rounds += answered
        return how

    cdef int do_call(self, const wan_call *call, uint64_t held_until_us, uint64_t until_us) noexcept nogil:
        """Does a call. The answer is laid out if the answer may leave; otherwise the call becomes pending. `until_us`:
        when the call is given up."""
        cdef uint64_t begin = self.last_answer()
        cdef int how
        self.until_us = until_us
        wan_buffer_empty(&self.waits)
        how = self.take_call(call, held_until_us)
        if how == GOES_ON and not self.add_pending(begin):
            how = ENDED_TOLD
        self.seal(begin)
        return how

    cdef int take_call(self, const wan_call *call, uint64_t held_until_us) noexcept nogil:
        """Lays out the answer to a call, or holds the call until this member is primary. `held_until_us` 0: do not
        hold."""
        cdef region_core *region
        cdef uint64_t epoch = 0
        cdef wan_answer *answer
        cdef int how
        if call.kind == WAN_CALL_REGION:
            return GOES_ON if self.name_region(call) else ENDED_TOLD
        self.served += 1
        if self.caller_count and wan_call_changes(call.kind) and not self.is_of_opener(call):
            return GOES_ON if self.fail(call, WAN_ANSWER_GIVEN_UP, b"ConnectivityError",
                                        b"the call has the identity of another member than the one that opened the"
                                        b" connection", 0) else ENDED_TOLD
        region = self.region_of(call.region)
        if region == NULL:
            return GOES_ON if self.no_region(call) else ENDED_TOLD
        if call.bucket >= region.table.bucket_count:
            return GOES_ON if self.fail(call, WAN_ANSWER_FAILED, b"IllegalStateError",
                                        b"the region has fewer buckets at this member than the caller says", 0
                                        ) else ENDED_TOLD
        if self.work_us() > self.until_us:      # The client does not wait any more.
            return GOES_ON if self.say_not_primary(call, region) else ENDED_TOLD
        while held_until_us and may_become_primary(region, call):
            how = self.hold(region, call, min(held_until_us, self.until_us))
            if how == HELD:
                self.served -= 1        # The call is served when the session goes on with the call.
                return GOES_ON
            if how == NO_ROOM:
                return ENDED_TOLD
        if not is_primary(region, call, &epoch):
            answer = self.say_not_primary(call, region)
        elif call.kind == WAN_CALL_GET:
            answer = self.do_get(region, call)
        elif call.kind == WAN_CALL_CHANGE:
            answer = self.do_change(region, call)
        elif call.kind == WAN_CALL_ROWS:
            answer = self.do_rows(region, call)
        elif call.kind == WAN_CALL_EVENTS:
            answer = self.do_events(region, call)
        elif call.kind == WAN_CALL_COUNT:
            answer = self.do_count(region, call)
        elif call.kind == WAN_CALL_SCAN:
            answer = self.do_scan(region, call)
        elif call.kind == WAN_CALL_CLEAR:
            answer = self.do_clear(region, call)
        else:
            wan_note(WAN_CORRUPT, "a call of kind %u is unknown", call.kind)
            return ENDED_TOLD
        if answer == NULL:
            wan_note(WAN_NO_MEMORY, "no memory for the answer to a call of kind %u", call.kind)
            return ENDED_TOLD
        return GOES_ON

    cdef bint is_of_opener(self, const wan_call *call) noexcept nogil:
        """Whether the call has an identity of the member that opened the connection. So only a client's own calls can
        change what a bucket remembers of the client."""
        cdef uint32_t n
        for n in range(self.caller_count):
            if self.callers[n] == call.caller >> 32:
                return True
        return False

    # Calls that wait until this member is primary, and the end of all waits.

    cdef int hold(self, region_core *region, const wan_call *call, uint64_t until_us) noexcept nogil:
        """Keeps a call until this member's role in the call's bucket changes. CHANGED: the role has changed
        meanwhile."""
        cdef pending_call *held = self.keep(&self.held, call, sizeof(wan_call) + wan_align8(call.length), until_us)
        if held == NULL:
            return NO_ROOM
        held.wait.changelog, held.wait.bucket = region.changelog, call.bucket
        held.given_up_us = self.until_us
        held.pending.local_fence, held.pending.sequence = local_fence_of(region, call), WAN_PENDING_UNTIL_ROLE
        if wan_changelog_add_pending(region.changelog, call.bucket, &held.pending) == WAN_EMPTY:
            # A second check, since the role may have changed before the call waited. `collect` handles calls that are
            # ready.
            if may_become_primary(region, call) or not wan_changelog_remove_pending(region.changelog, call.bucket,
                                                                                    &held.pending):
                return HELD
        self.drop(held)
        return CHANGED

    cdef int go_on_with_held(self, pending_call *call, uint64_t held_until_us) noexcept nogil:
        """Does a call that was held and does not wait in a change log any more, and forgets the held call."""
        cdef uint64_t begin = self.last_answer()
        cdef int how = self.do_call(<const wan_call *>(call + 1), held_until_us, call.given_up_us)
        self.rounds += begin == 0 and self.last_answer() > 0
        self.drop(call)
        return how

    cdef bint collect(self, uint64_t now_us) noexcept nogil:
        """Lays out the answers of pending calls that may leave now, or that are given up. False: no memory."""
        cdef pending_call *call
        cdef pending_call *next_call
        cdef wan_pending_call *ready
        if not self.finish_late(now_us):
            return False
        call = self.held.first
        while call != NULL and call.until_us <= now_us:
            next_call = call.behind
            if wan_changelog_remove_pending(call.wait.changelog, call.wait.bucket, &call.pending):
                if self.go_on_with_held(call, 0) != GOES_ON:
                    return False
            call = next_call
        ready = wan_waker_take(&self.waker)
        while ready != NULL:
            call = <pending_call *>ready
            ready = ready.behind
            if call.is_held:
                if self.go_on_with_held(call, call.until_us if now_us < call.until_us else 0) != GOES_ON:
                    return False
            elif not self.go_on_with(call, now_us):
                return False
        return self.look_at_reads(now_us)


cdef bint is_primary(const region_core *region, const wan_call *call, uint64_t *epoch) noexcept nogil:
    """Whether this member is primary of the bucket, under an epoch that is not older than the client's epoch."""
    cdef wan_changelog_bucket *bucket
    if region.changelog == NULL:
        return True
    bucket = &region.changelog.buckets[call.bucket]
    epoch[0] = wan_read(&bucket.epoch)
    return wan_changelog_role(region.changelog, call.bucket) == WAN_REPLICA_PRIMARY and epoch[0] >= call.epoch


cdef bint may_become_primary(const region_core *region, const wan_call *call) noexcept nogil:
    """Whether this member is about to become primary: the member takes over, or does not know yet the epoch under which
    the client knows the member as primary."""
    cdef wan_changelog_bucket *bucket
    if region.changelog == NULL:
        return False
    bucket = &region.changelog.buckets[call.bucket]
    return wan_changelog_role(region.changelog,
                              call.bucket) == WAN_REPLICA_TAKING_OVER or wan_read(&bucket.epoch) < call.epoch
