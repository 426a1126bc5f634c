# Owns the pending calls: finished calls whose answers must not leave before their content is replicated, and calls that
# are held until this member is primary. The session knows the time limit of each call, and charges the calls to the
# member's budget. Other threads move calls that need not wait any longer to the session's waker.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from pywan._core.c_base cimport *
from pywan._core.c_names cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_session cimport *
from pywan._core.c_system cimport close_file
from pywan._core.wire.stream cimport buffer_reserve

cdef enum:
    # If so many calls are pending, or so many bytes of answers, the session takes no more calls.
    PENDING_CALLS_MAX = 4096
    PENDING_CALLS_BYTES_MAX = 8 << 20
    READ_LOOK_US = 1000         # A read of replicated data checks so often whether this member is the only primary.


cdef class PendingCalls(CallAnswers):
    """A session with pending calls. The change logs with the pending calls have to live until `drop_pending`. The class
    that keeps the regions alive calls `drop_pending` at its own end at the latest."""

    def __cinit__(self):
        self.waker.wake_file = self.socket_file = -1

    def __dealloc__(self):
        if self.wake_file >= 0:
            close_file(self.wake_file)
        wan_buffer_close(&self.waits)

    # The waits of the answer that is being laid out.

    cdef bint wait_for(self, region_core *region, const wan_call *call, uint64_t local_fence, uint64_t sequence,
                       uint64_t at,
                       bint is_change) noexcept nogil:
        """Notes that the answer at `at` must not leave before the sequence is replicated. False: no memory."""
        cdef call_wait wait
        if region.changelog == NULL:
            return True
        wait.changelog, wait.bucket = region.changelog, call.bucket
        wait.local_fence, wait.sequence = local_fence, sequence
        wait.at, wait.is_change, wait.is_repeat = at, is_change, call.flags & WAN_CALL_REPEAT != 0
        # A replicated event is acknowledged to its site: a repeat of the event would not bring more replicas.
        wait.says_under_replicated = is_change and call.kind != WAN_CALL_EVENTS
        return wan_buffer_add(&self.waits, &wait, sizeof(call_wait)) == WAN_OK

    cdef bint wait_for_bucket(self, region_core *region, const wan_call *call, uint64_t local_fence,
                              uint64_t at) noexcept nogil:
        """As `wait_for`, for the answer at `at` that has seen the whole bucket. `local_fence` was valid before the
        answer saw anything of the bucket."""
        if region.changelog == NULL:
            return True
        return self.wait_for(region, call, local_fence, wan_read(&region.changelog.buckets[call.bucket].log_end), at,
                             False)

    # Pending calls.

    cdef bint add_pending(self, uint64_t begin) noexcept nogil:
        """Makes the last call pending if the answer, which begins at `begin`, must not leave yet. False: no memory."""
        cdef const call_wait *wait = <const call_wait *>self.waits.bytes
        cdef uint64_t length = self.last_answer() - begin
        cdef pending_call *call
        if self.waits.used == 0:
            return True
        call = self.keep(&self.done, self.out.bytes + self.out.start + begin, length, self.until_us)
        if call == NULL:
            return False
        call.wait = wait[0]
        call.pending.local_fence, call.pending.sequence = wait.local_fence, wait.sequence
        self.out.used -= length
        if wan_changelog_add_pending(wait.changelog, wait.bucket, &call.pending) == WAN_EMPTY:
            if self.socket_file >= 0 and self.pending == 1 and wait.is_change:
                self.run_repl_link(wait)
            return True
        return self.go_on_with(call, self.work_us())

    cdef bint is_alone(self, const wan_call *call) noexcept nogil:
        """Whether the session has no other call: then the thread waits for the call, and may run a replication link
        meanwhile."""
        return (self.socket_file >= 0 and self.pending == 0 and self.out.start == self.out.used
                and self.into.used - self.into.start == sizeof(wan_call) + wan_align8(call.length))

    cdef void run_repl_link(self, const call_wait *wait) noexcept nogil:
        """Runs an idle replication link until the call's change is replicated or another call comes."""
        cdef wan_repl_link_wait waits
        waits.changelog, waits.bucket, waits.other_file = wait.changelog, wait.bucket, self.socket_file
        waits.local_fence, waits.sequence = wait.local_fence, wait.sequence
        waits.until_us = min(self.until_us, self.work_us() + SLICE_MS * 1000)
        wan_changelog_run_repl_link(&waits)

    cdef pending_call *keep(self, call_list *among, const void *data, uint64_t length,
                            uint64_t until_us) noexcept nogil:
        """Adds an answer or a call to a list. NULL: no memory."""
        cdef pending_call *call = <pending_call *>malloc(sizeof(pending_call) + length)
        cdef pending_call *before = among.last
        if call == NULL:
            wan_note(WAN_NO_MEMORY, "no memory for a call that waits")
            return NULL
        memset(call, 0, sizeof(pending_call))
        memcpy(call + 1, data, length)
        call.length, call.until_us, call.is_held = length, until_us, among == &self.held
        call.pending.owner = &self.waker
        while before != NULL and before.until_us > until_us:     # Clients with more time, or calls held again.
            before = before.before
        call.before, call.behind = before, among.first if before == NULL else before.behind
        if before != NULL:
            before.behind = call
        else:
            among.first = call
        if call.behind != NULL:
            call.behind.before = call
        else:
            among.last = call
        self.pending += 1
        self.pending_bytes += length
        self.charge()
        return call

    cdef bint has_place(self) noexcept nogil:
        """Whether a further call may become pending. If not, a call that is ready or given up wakes the session."""
        return self.pending < PENDING_CALLS_MAX and self.pending_bytes <= PENDING_CALLS_BYTES_MAX

    cdef void charge(self) noexcept nogil:
        if self.budget != NULL:
            wan_budget_hold(self.budget, WAN_BUDGET_CALLS, &self.held_bytes,
                            self.pending_bytes + self.pending * sizeof(pending_call))

    cdef uint64_t pending_due_us(self, uint64_t now_us) noexcept nogil:
        """The latest time at which a pending call has to be checked."""
        cdef uint64_t due = NEVER
        if self.done.first != NULL:
            due = self.done.first.until_us
        if self.held.first != NULL:
            due = min(due, self.held.first.until_us)
        if self.reads != NULL:
            due = min(due, now_us + READ_LOOK_US)
        return due

    cdef bint finish_late(self, uint64_t now_us) noexcept nogil:
        """Lays out the answers of pending calls that are given up. False: no memory."""
        cdef pending_call *call = self.done.first
        cdef pending_call *next_call
        while call != NULL and call.until_us <= now_us:
            next_call = call.behind
            # A call that does not wait any more is ready, or is a read for `look_at_reads`.
            if wan_changelog_remove_pending(call.wait.changelog, call.wait.bucket,
                                            &call.pending) and not self.finish(call, True):
                return False
            call = next_call
        return True

    cdef bint look_at_reads(self, uint64_t now_us) noexcept nogil:
        cdef pending_call *call = self.reads
        cdef pending_call *next_call
        self.reads = NULL
        while call != NULL:
            next_call = <pending_call *>call.pending.behind
            if call.until_us <= now_us:
                if not self.finish(call, True):
                    return False
            elif not self.go_on_with(call, now_us):
                return False
            call = next_call
        return True

    cdef bint go_on_with(self, pending_call *call, uint64_t now_us) noexcept nogil:
        """Answers a call that does not wait in a change log, or lets a read wait until the answer may leave."""
        cdef wan_changelog_bucket *bucket = &call.wait.changelog.buckets[call.wait.bucket]
        cdef bint is_stable = wan_read(&bucket.high_watermark) >= call.wait.sequence
        cdef bint is_told = call.wait.is_change
        if is_stable and not is_told:
            # The time is taken after the read of the table: the process may have been stopped since the loop took the
            # time.
            is_told = wan_changelog_may_read(call.wait.changelog, call.wait.bucket, wan_monotonic_us())
        # The local fence is read last: a later local fence may have other changes under the same sequence.
        if wan_read(&bucket.local_fence) != call.wait.local_fence or not is_stable:
            return self.finish(call, True)
        if is_told:
            return self.finish(call, False)
        call.pending.behind = <wan_pending_call *>self.reads
        self.reads = call
        return True

    cdef bint finish(self, pending_call *call, bint is_lost) noexcept nogil:
        """Lays out the answer of a pending call, and forgets the call. False: no memory."""
        cdef uint64_t begin = self.last_answer()
        cdef bint has_room = buffer_reserve(&self.out, call.length)
        if has_room:
            memcpy(self.out.bytes + self.out.used, call + 1, call.length)
            self.out.used += call.length
            if is_lost:
                lose(&call.wait, <wan_answer *>(self.out.bytes + self.out.start + begin))
            elif call.wait.says_under_replicated and call.wait.changelog.min_isr > 1:
                say_under_replicated(&call.wait, <wan_answer *>(self.out.bytes + self.out.start + begin))
            self.seal(begin)
            self.rounds += begin == 0
        else:
            wan_note(WAN_NO_MEMORY, "no memory for the answer to a call that waited")
        self.drop(call)
        return has_room

    cdef void drop(self, pending_call *call) noexcept nogil:
        cdef call_list *among = &self.held if call.is_held else &self.done
        if call.before != NULL:
            call.before.behind = call.behind
        else:
            among.first = call.behind
        if call.behind != NULL:
            call.behind.before = call.before
        else:
            among.last = call.before
        self.pending -= 1
        self.pending_bytes -= call.length
        self.charge()
        free(call)

    cdef void remove_all_pending(self, pending_call *call) noexcept nogil:
        """Removes a call, and the calls behind in its list, from the change logs."""
        while call != NULL:
            wan_changelog_remove_pending(call.wait.changelog, call.wait.bucket, &call.pending)
            call = call.behind

    cdef void drop_pending(self) noexcept nogil:
        """Forgets all pending calls. Afterwards no other thread knows the session."""
        self.remove_all_pending(self.done.first)
        self.remove_all_pending(self.held.first)
        wan_waker_end(&self.waker)
        self.reads = NULL
        while self.done.first != NULL:
            self.drop(self.done.first)
        while self.held.first != NULL:
            self.drop(self.held.first)
        if self.budget != NULL:
            wan_budget_let_go(self.budget, WAN_BUDGET_CALLS, &self.held_bytes)


cdef void lose(const call_wait *wait, wan_answer *answer) noexcept nogil:
    """Makes an answer say that this member cannot know whether the content of the answer will be replicated."""
    if answer.status == WAN_ANSWER_DONE or wait.is_change:
        answer.status = WAN_ANSWER_IN_DOUBT if wait.is_change else WAN_ANSWER_NOT_PRIMARY
        answer.number = wan_read(&wait.changelog.buckets[wait.bucket].epoch)
        memset(answer + 1, 0, answer.length)        # The client has words for the error.
    if not wait.is_change:
        answer.done = 0         # Rows without effect have seen changes that may be lost: the client asks again.

cdef void say_under_replicated(const call_wait *wait, wan_answer *answer) noexcept nogil:
    """Marks the answer about a replicated change if too few replicas had the change."""
    cdef uint32_t replicas = wan_changelog_made_with(wait.changelog, wait.bucket, wait.sequence, wait.is_repeat)
    if replicas == 0:
        return
    answer.status, answer.flags = WAN_ANSWER_IN_DOUBT, WAN_ANSWER_UNDER_REPLICATED
    answer.number = replicas | <uint64_t>wait.changelog.min_isr << 32
    memset(answer + 1, 0, answer.length)        # The client has words for the error.
