# Owns the serving of calls: what other members ask about keys of which this member is primary. A thread for each
# connection does the calls as they come. A call whose change, or whose read, does not count yet is shelved with its
# answer: the thread goes on with the next call, and the answer leaves when it counts, before or after others.
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset, strlen
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_copies cimport *
from pywan._core.c_region cimport *
from pywan._core.c_session cimport *
from pywan._core.c_system cimport EFD_CLOEXEC, EFD_NONBLOCK, close_file, eventfd, eventfd_write
from pywan._core.c_tables cimport WAN_FAILED_FUTURE_STAMP, wan_record
from pywan._core.region.apply_event cimport (
    ASKED_ELSEWHERE, ASKED_LOST, EVENT_LOST, EVENT_NOT_TAKEN, change_from_event, event_became,
    is_event_ahead)
from pywan._core.region.entry_locks cimport CHANGES_PER_HOLD
from pywan._core.region.put cimport (
    change_from_record, check_path, origin_from_record, region_change, region_change_if, region_is_full, region_recall,
    region_relieve)
from pywan._core.region.compiled_region cimport CompiledRegion
from pywan._core.region.region_changes cimport Condition, RegionCalls
from pywan._core.region.region_state cimport condition, origin, region_core
from pywan._core.region.region_walk cimport region_change_here
from pywan._core.region.step_group cimport (
    change_group, group_begin, records_ahead, records_begin, records_fetch, region_change_group)
from pywan._core.wire.session cimport ENDED_STOPPED, ENDED_TOLD, GOES_AGAIN, GOES_ON, Session
from pywan._core.base.budget cimport MemoryBudget
from pywan._core.base.status cimport report_unraisable
from pywan._core.wire.stream cimport buffer_reserve, buffer_trim
from pywan._core.values.tagged cimport Encoded

cdef enum:
    ANSWERS_BYTES = 8 << 20     # With so many bytes of answers the session sends before it takes the next call.
    # So long a call waits until this member is primary. A handover takes a few milliseconds. A caller that waits longer
    # may miss that the call has to go elsewhere now.
    HELD_US = 250000
    SHELVED_MAX = 4096           # With so many calls shelved, or so many bytes of answers, the session takes no more.
    SHELVED_BYTES = 8 << 20
    FULL_LOOK_US = 2000         # So often the session looks whether the member's budget has room again.
    # A change that a learner holds back is looked at again after so long, and is done after so long in any case.
    LEARNER_LOOK_US = 1000
    LEARNER_WAIT_US = 1000000
    READ_LOOK_US = 1000         # A read that counts looks so often whether this member is still the only primary.
    SLICE_MS = 100              # A wait looks so often whether the session is to stop.
    # What became of a call that was to be held.
    HELD = 1, CHANGED = 2, NO_ROOM = 3


@cython.no_gc_clear
cdef class CallSession(Session):
    """The calls of one connection. `find_region(name)` returns the RegionCore of that name, or None. `budget`: the
    member's; while it is full the session takes no calls."""

    def __cinit__(self, find_region, uint32_t depth=0, MemoryBudget budget=None):
        self.find_region, self.depth, self.callback_depth = find_region, depth, depth + 1
        self.owner_of_budget, self.budget = budget, &budget.budget if budget is not None else NULL
        self.names, self.states = {}, {}
        self.regions.item_bytes = sizeof(region_core *)
        self.wanted = sizeof(wan_call)
        self.speaks_last = True
        self.waker.wake_file = self.socket_file = -1
        self.former = []

    def __dealloc__(self):
        self.drop_shelved()
        if self.wake_file >= 0:
            close_file(self.wake_file)
        wan_pages_close(&self.regions)
        wan_buffer_close(&self.waits)
        wan_buffer_close(&self.found)
        wan_buffer_close(&self.keys)
        wan_buffer_close(&self.failed)

    def run(self, sock):
        """Serves a connected socket. Returns "closed" when the caller went away, "stopped", or why the connection was
        given up, which the caller was told. The callers of shelved calls hear nothing then."""
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
                self.drop_shelved()

    def stop(self):
        """Makes `run` return after the call that it is doing. Any thread may call this."""
        wan_flag_set(&self.stop_flag, 1)
        if self.wake_file >= 0:
            eventfd_write(self.wake_file, 1)

    cdef const wan_answer *serve_here(self, CompiledRegion state, wan_call *head, const void *payload, uint64_t length,
                                      uint64_t until_us) except NULL:
        """Does a call of this member itself, without a connection. The answer is valid until the next call."""
        cdef uint64_t at
        self.begin_here(until_us)
        at = self.do_here(state, head, payload, length)
        self.settle_here()
        return self.answer_here(at)

    # Calls of this member itself: `begin_here`, `do_here` for each, `settle_here` once for all, `answer_here` for each.

    cdef void begin_here(self, uint64_t until_us) noexcept:
        """`until_us`: when the calls are given up, of the monotonic clock."""
        self.until_us = until_us
        self.out.start = self.out.used = 0
        wan_buffer_empty(&self.waits)

    cdef uint64_t do_here(self, CompiledRegion state, wan_call *head, const void *payload,
                          uint64_t length) except? NO_LIMIT:
        """Does a call. Returns where its answer begins."""
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
        if (wan_call_writes(head.kind) and state.region.tail != NULL and wan_call_depth == 0
                and region_is_full(&state.region)):
            try:
                state.wait_for_memory(f"a change of bucket {head.bucket}", self.until_us, False)
            except Exception as error:
                if self.fail_with(head, error, 0) == NULL:
                    raise MemoryError(f"region {state.name!r}: no memory for an answer")
                return at
        if (wan_call_writes(head.kind) and state.region.tail != NULL
                and wan_tail_has_learner(state.region.tail, head.bucket)):
            state.wait_for_learner(head.bucket, self.until_us)
        self.names[head.region], self.states[head.region] = state.name, state
        self.set_known(head.region, &state.region)
        with nogil:
            how = self.take_call(<const wan_call *>self.into.bytes, 0)
        if how != GOES_ON or self.last_answer() == at:
            raise MemoryError(f"region {state.name!r}: no memory for the answer to a call of this member itself")
        return at

    cdef int settle_here(self) except -1:
        """Waits until all that the answers say counts. An answer about something that does not count in time says so.
        Ctrl-C ends the wait."""
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
        """The answer that begins there. It is valid until the next call."""
        return <const wan_answer *>(self.out.bytes + self.out.start + at)

    # What a session does in its own way.

    cdef void say_why(self) noexcept nogil:
        """Does nothing: `take_calls` has laid out the last words, as an answer."""

    cdef int heard(self) noexcept nogil:
        self.came_us = self.stopped_us if self.stopped_us else self.last_heard_us
        if self.driver is None or self.driver.took_all:     # That is all that lay there.
            self.stopped_us = 0
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
        # Whoever makes a call ready from now on wakes this thread. What became ready before is seen here.
        wan_waker_set_asleep(&self.waker, 1)
        return GOES_AGAIN if wan_waker_has_ready(&self.waker) else GOES_ON

    cdef uint64_t due_us(self, uint64_t now_us) noexcept nogil:
        cdef uint64_t due = NEVER
        if self.out.start == self.out.used:
            if self.done.first != NULL:
                due = self.done.first.until_us
            if self.held.first != NULL:
                due = min(due, self.held.first.until_us)
            if self.reads != NULL:
                due = min(due, now_us + READ_LOOK_US)
            # The calls may wait for memory. Whether they still do is not asked: the budget may have got room since the
            # step looked, and nobody else wakes the session for that.
            if self.has_more and self.has_place():
                due = min(due, now_us + FULL_LOOK_US)
            if self.has_more and self.held_back_until_us > now_us:
                due = min(due, self.held_back_until_us)
        return due

    cdef int take_calls(self) noexcept nogil:
        """Does every whole call in `into`, and lays out the answers that may leave."""
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
                # The calls that lie here came with the last bytes, or before.
                how = self.do_call(call, self.now_us + HELD_US, self.last_heard_us + wan_call_work_us(call))
            answered = answered or self.last_answer() > begin
            self.into.start += length
            if self.into.start == self.into.used:
                buffer_trim(&self.into)
        if not self.reads_nothing:
            self.stopped_us = self.stopped_us if self.waits_for_memory() else 0
        elif self.stopped_us == 0:
            self.stopped_us = self.now_us
        wan_buffer_trim(&self.waits, WAN_BUFFER_KEPT_BYTES)
        if how == ENDED_TOLD:
            # The answers that are laid out leave all the same. The last words come behind.
            begin = self.last_answer()
            if self.fail(NULL, WAN_ANSWER_FAILED, b"ProtocolError", wan_detail, 0) != NULL:
                self.seal(begin)
        self.rounds += answered
        return how

    cdef int do_call(self, const wan_call *call, uint64_t held_until_us, uint64_t until_us) noexcept nogil:
        """Does a call. Its answer is laid out if it may leave; otherwise the call is shelved. `until_us`: when it is
        given up."""
        cdef uint64_t begin = self.last_answer()
        cdef int how
        self.until_us = until_us
        wan_buffer_empty(&self.waits)
        how = self.take_call(call, held_until_us)
        if how == GOES_ON and not self.shelve(begin):
            how = ENDED_TOLD
        self.seal(begin)
        return how

    cdef int take_call(self, const wan_call *call, uint64_t held_until_us) noexcept nogil:
        """Lays out the answer to a call, or holds the call. `held_until_us`: 0: it cannot be held any more."""
        cdef region_core *region
        cdef uint64_t epoch = 0
        cdef wan_answer *answer
        cdef int how
        if call.kind == WAN_CALL_REGION:
            return GOES_ON if self.name_region(call) else ENDED_TOLD
        self.served += 1
        region = self.region_of(call.region)
        if region == NULL:
            return GOES_ON if self.no_region(call) else ENDED_TOLD
        if call.bucket >= region.table.bucket_count:
            return GOES_ON if self.fail(call, WAN_ANSWER_FAILED, b"IllegalStateError",
                                        b"the region has fewer buckets at this member than the caller says", 0
                                        ) else ENDED_TOLD
        if self.work_us() > self.until_us:      # Its caller does not wait any more.
            return GOES_ON if self.say_elsewhere(call, region) else ENDED_TOLD
        while held_until_us and may_become_primary(region, call):
            how = self.hold(region, call, min(held_until_us, self.until_us))
            if how == HELD:
                self.served -= 1        # It is served when it is looked at again.
                return GOES_ON
            if how == NO_ROOM:
                return ENDED_TOLD
        if not is_primary(region, call, &epoch):
            answer = self.say_elsewhere(call, region)
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

    # Regions

    cdef region_core *known(self, uint16_t number) noexcept nogil:
        """The region with the caller's number, as it was looked up last. NULL: it was not, or was not there."""
        cdef region_core **found = <region_core **>wan_pages_find(&self.regions, number)
        return NULL if found == NULL else found[0]

    cdef int set_known(self, uint16_t number, region_core *region) except -1:
        cdef region_core **to = <region_core **>wan_pages_put(&self.regions, number)
        if to == NULL:
            raise MemoryError(f"no memory for region number {number} of a caller")
        to[0] = region
        return 0

    cdef bint name_region(self, const wan_call *call) noexcept nogil:
        with gil:
            try:
                name = (<const uint8_t *>(call + 1))[:call.length].decode("utf-8")
                self.set_known(call.region, NULL)
                self.names[call.region] = name
            except UnicodeDecodeError:
                wan_note(WAN_CORRUPT, "a region's name that is not UTF-8")
                return False
            except MemoryError:
                wan_note(WAN_NO_MEMORY, "no memory for a region's name")
                return False
        return True

    cdef region_core *region_of(self, uint16_t number) noexcept nogil:
        """The region with the caller's number. NULL: it is not there, or nobody named it."""
        cdef region_core *region = self.known(number)
        if region == NULL or wan_flag_read(&region.closed):
            with gil:
                self.look_up(number)
        return self.known(number)

    cdef int look_up(self, uint16_t number) except? -1:
        """Looks for the region of that name: it may have been created since."""
        cdef RegionCalls core
        cdef CompiledRegion state
        if self.known(number) != NULL:
            self.set_known(number, NULL)
        before = self.states.pop(number, None)
        if before is not None and self.shelved:
            self.former.append(before)
        elif self.former and not self.shelved:
            self.former.clear()
        try:
            core = self.find_region(self.names[number]) if number in self.names else None
            if core is not None and not core.state.region.closed:
                state = self.states[number] = core.state
                self.set_known(number, &state.region)
        except BaseException as error:
            report_unraisable("the search for the region of a call", error)
        return 0

    cdef bint no_region(self, const wan_call *call) noexcept nogil:
        with gil:
            return self.fail_with(call, self.not_there(call.region), 0) != NULL

    cdef object not_there(self, uint16_t number):
        from pywan.errors import RegionNotFoundError
        if number not in self.names:
            return RegionNotFoundError(f"nobody has named region number {number}")
        return RegionNotFoundError(f"region {self.names[number]!r} is not at this member, or is not open yet")

    # Answers

    cdef wan_answer *answer(self, const wan_call *call, uint8_t status, uint64_t length) noexcept nogil:
        """Lays out an answer whose payload is `length` bytes, the last 8 of them zero. NULL: there is no memory."""
        cdef wan_answer *answer
        cdef uint64_t whole = sizeof(wan_answer) + wan_align8(length)
        if not buffer_reserve(&self.out, whole):
            return NULL
        answer = <wan_answer *>(self.out.bytes + self.out.used)
        memset(answer, 0, sizeof(wan_answer))
        if length:
            memset(<uint8_t *>(answer + 1) + wan_align8(length) - 8, 0, 8)
        answer.magic, answer.kind, answer.status, answer.length = WAN_CALL_MAGIC, WAN_CALL_ANSWER, status, length
        answer.id = call.id if call != NULL else 0
        answer.form = WAN_FORM_NONE
        self.out.used += whole
        return answer

    cdef wan_answer *fail(self, const wan_call *call, uint8_t status, const char *kind, const char *words,
                          uint64_t done) noexcept nogil:
        """Lays out an answer that says in words what went wrong: "[kind of the error] words"."""
        cdef uint64_t kind_length = strlen(kind), length = strlen(words)
        cdef wan_answer *answer = self.answer(call, status, kind_length + length + 3)
        cdef uint8_t *to
        if answer == NULL:
            return NULL
        to = <uint8_t *>(answer + 1)
        to[0] = c'['
        memcpy(to + 1, kind, kind_length)
        to[kind_length + 1], to[kind_length + 2] = c']', c' '
        memcpy(to + kind_length + 3, words, length)
        answer.done = done
        return answer

    cdef wan_answer *fail_with(self, const wan_call *call, object error, uint64_t done) noexcept:
        """Lays out an answer with the words of an exception."""
        from pywan.errors import PywanError
        kind = type(error).__name__ if isinstance(error, PywanError) else (
            "OutOfMemoryError" if isinstance(error, MemoryError) else "RemoteError")
        words = str(error) if isinstance(error, (PywanError, MemoryError)) else f"{type(error).__name__}: {error}"
        status = WAN_ANSWER_IN_DOUBT if getattr(error, "in_doubt", False) else WAN_ANSWER_FAILED
        return self.fail(call, status, kind.encode(), words.encode("utf-8", "replace")[:4000], done)

    cdef wan_answer *fail_status(self, const wan_call *call, region_core *region, wan_status status,
                                 uint64_t done) noexcept nogil:
        """The answer to a change that the region did not take."""
        if status == WAN_IN_DOUBT:
            return self.fail(call, WAN_ANSWER_IN_DOUBT, b"ConnectivityError", wan_detail, done)
        if status == WAN_GIVEN_UP:
            return self.fail(call, WAN_ANSWER_GIVEN_UP, b"ConnectivityError", wan_detail, done)
        if status == WAN_CLOSED:
            return self.fail(call, WAN_ANSWER_FAILED, b"RegionNotFoundError",
                             b"the region was destroyed, or its cache closed", done)
        if status == WAN_FULL:
            return self.fail(call, WAN_ANSWER_FAILED, b"QueueFullError", wan_detail, done)
        if status == WAN_TOO_FEW:
            return self.fail(call, WAN_ANSWER_FAILED, b"ConnectivityError", wan_detail, done)
        if status == WAN_NO_MEMORY:
            return self.fail(call, WAN_ANSWER_FAILED, b"OutOfMemoryError", b"no memory for the change", done)
        return self.fail(call, WAN_ANSWER_FAILED, b"InternalError", wan_detail, done)

    cdef wan_answer *say_elsewhere(self, const wan_call *call, region_core *region) noexcept nogil:
        """The answer to a call of which nothing was done, because this member is not primary. It says who is, if that
        may be news for the caller."""
        cdef wan_answer *answer
        cdef const char *words = NULL
        cdef uint64_t length = 0
        if region.tail != NULL:
            with gil:
                told = self.known_primary(call)
                words, length = told, len(told)
                answer = self.answer(call, WAN_ANSWER_ELSEWHERE, length)
                if answer != NULL and length:
                    memcpy(answer + 1, words, length)
        else:
            answer = self.answer(call, WAN_ANSWER_ELSEWHERE, 0)
        if answer != NULL and region.tail != NULL:
            answer.number = wan_read(&region.tail.buckets[call.bucket].epoch)
        return answer

    cdef bytes known_primary(self, const wan_call *call):
        """Returns who is primary of the call's bucket, as the route encodes it. Empty: it is no news for the caller."""
        cdef CompiledRegion state = self.states[call.region]
        try:
            return b"" if state.route is None else state.route.tell_primary(call.bucket, call.epoch)
        except BaseException as error:
            report_unraisable("the search for the primary of a bucket", error)
            return b""

    # Waits

    cdef bint wait_for(self, region_core *region, const wan_call *call, uint64_t era, uint64_t sequence, uint64_t at,
                       bint is_change) noexcept nogil:
        """Notes that the answer at `at` must not leave before the sequence counts. False: there is no memory."""
        cdef call_wait wait
        if region.tail == NULL:
            return True
        wait.tail, wait.bucket, wait.era, wait.sequence = region.tail, call.bucket, era, sequence
        wait.at, wait.is_change, wait.is_repeat = at, is_change, call.flags & WAN_CALL_REPEAT != 0
        # An event that counts is acknowledged to its site: that it comes again would not bring more copies.
        wait.says_thin = is_change and call.kind != WAN_CALL_EVENTS
        return wan_buffer_add(&self.waits, &wait, sizeof(call_wait)) == WAN_OK

    cdef bint wait_for_bucket(self, region_core *region, const wan_call *call, uint64_t era,
                              uint64_t at) noexcept nogil:
        """As `wait_for`, for the answer at `at` that has seen all of a bucket. The bucket was in this era before the
        answer saw anything of it."""
        if region.tail == NULL:
            return True
        return self.wait_for(region, call, era, wan_read(&region.tail.buckets[call.bucket].last), at, False)

    cdef uint64_t last_answer(self) noexcept nogil:
        """Where the answer begins that is laid out next."""
        return self.out.used - self.out.start

    # Calls that are shelved.

    cdef bint shelve(self, uint64_t begin) noexcept nogil:
        """Shelves the call that was done last, whose answer begins there, if the answer must not leave yet. False:
        there is no memory."""
        cdef const call_wait *wait = <const call_wait *>self.waits.bytes
        cdef uint64_t length = self.last_answer() - begin
        cdef shelved_call *call
        if self.waits.used == 0:
            return True
        call = self.keep(&self.done, self.out.bytes + self.out.start + begin, length, self.until_us)
        if call == NULL:
            return False
        call.wait = wait[0]
        call.shelved.era, call.shelved.sequence = wait.era, wait.sequence
        self.out.used -= length
        if wan_tail_shelve(wait.tail, wait.bucket, &call.shelved) == WAN_EMPTY:
            if self.socket_file >= 0 and self.shelved == 1 and wait.is_change:
                self.run_lane(wait)
            return True
        return self.go_on_with(call, self.work_us())

    cdef bint is_alone(self, const wan_call *call) noexcept nogil:
        """Whether the session has no other call: then its thread waits for this one, and may run a lane meanwhile."""
        return (self.socket_file >= 0 and self.shelved == 0 and self.out.start == self.out.used
                and self.into.used - self.into.start == sizeof(wan_call) + wan_align8(call.length))

    cdef void run_lane(self, const call_wait *wait) noexcept nogil:
        """Runs a lane that rests, until the call's change counts or another call comes."""
        cdef wan_lane_wait waits
        waits.tail, waits.bucket, waits.other_file = wait.tail, wait.bucket, self.socket_file
        waits.era, waits.sequence = wait.era, wait.sequence
        waits.until_us = min(self.until_us, self.work_us() + SLICE_MS * 1000)
        wan_tail_run_lane(&waits)

    cdef shelved_call *keep(self, call_list *among, const void *data, uint64_t length,
                            uint64_t until_us) noexcept nogil:
        """Adds an answer or a call to a list. NULL: there is no memory."""
        cdef shelved_call *call = <shelved_call *>malloc(sizeof(shelved_call) + length)
        cdef shelved_call *before = among.last
        if call == NULL:
            wan_note(WAN_NO_MEMORY, "no memory for a call that waits")
            return NULL
        memset(call, 0, sizeof(shelved_call))
        memcpy(call + 1, data, length)
        call.length, call.until_us, call.is_held = length, until_us, among == &self.held
        call.shelved.owner = &self.waker
        while before != NULL and before.until_us > until_us:     # Of callers that have more time, or are held again.
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
        self.shelved += 1
        self.shelved_bytes += length
        self.charge()
        return call

    cdef int hold(self, region_core *region, const wan_call *call, uint64_t until_us) noexcept nogil:
        """Keeps a call until this member's part in the call's bucket changes. CHANGED: it has changed meanwhile."""
        cdef shelved_call *held = self.keep(&self.held, call, sizeof(wan_call) + wan_align8(call.length), until_us)
        if held == NULL:
            return NO_ROOM
        held.wait.tail, held.wait.bucket = region.tail, call.bucket
        held.given_up_us = self.until_us
        held.shelved.era, held.shelved.sequence = era_of(region, call), WAN_TAIL_HELD
        if wan_tail_shelve(region.tail, call.bucket, &held.shelved) == WAN_EMPTY:
            # Once more, as it may have changed before the call waited. What is ready already comes with `collect`.
            if may_become_primary(region, call) or not wan_tail_unshelve(region.tail, call.bucket, &held.shelved):
                return HELD
        self.drop(held)
        return CHANGED

    cdef int go_on_with_held(self, shelved_call *call, uint64_t held_until_us) noexcept nogil:
        """Does a call that was held and does not wait in its tail, and forgets that it was held."""
        cdef uint64_t begin = self.last_answer()
        cdef int how = self.do_call(<const wan_call *>(call + 1), held_until_us, call.given_up_us)
        self.rounds += begin == 0 and self.last_answer() > 0
        self.drop(call)
        return how

    cdef bint has_place(self) noexcept nogil:
        """Whether one more call may be shelved. Otherwise a call that is ready, or given up, wakes the session."""
        return self.shelved < SHELVED_MAX and self.shelved_bytes <= SHELVED_BYTES

    cdef bint is_full(self) noexcept nogil:
        return not self.has_place() or self.waits_for_memory() or self.held_back_until_us > self.now_us

    cdef bint is_held_back(self, const wan_call *call) noexcept nogil:
        """Whether the call has to wait a moment: its region's listeners have too much to hear, or a learner of its
        bucket does not keep up. No call is late because of a learner."""
        cdef region_core *region = self.known(call.region)
        cdef bint waits = self.waits_for_room(call)
        if not waits and self.depth == 0 and wan_call_writes(call.kind) and has_tail(region, call):
            waits = (wan_tail_has_learner(region.tail, call.bucket)
                     and wan_tail_holds_back(region.tail, call.bucket, self.now_us)
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
        """Whether the caller gives the call up soon."""
        return self.now_us >= self.came_us + wan_call_work_us(call)

    cdef bint waits_for_room(self, const wan_call *call) noexcept nogil:
        """Whether the call waits for memory: of the member, or of its region's listeners."""
        cdef region_core *region = self.known(call.region)
        if call.kind == WAN_CALL_REGION:
            return False
        if self.waits_for_memory():
            return True
        if self.depth or not wan_call_writes(call.kind) or not has_tail(region, call):
            return False
        if not region_is_full(region):
            return False
        region_relieve(region)
        return region_is_full(region)

    cdef bint may_begin(self) noexcept nogil:
        """Whether the next call is looked at though the member's budget is full: it needs no memory, its time is over,
        or it has not come as a whole. A session always has the next call, so that it knows until when it waits."""
        cdef const wan_call *call = <const wan_call *>(self.into.bytes + self.into.start)
        cdef uint64_t length = 0
        if not self.waits_for_memory() or not self.has_place():
            return False
        if wan_call_next(self.into.bytes + self.into.start, self.into.used - self.into.start, &length) != WAN_OK:
            return True
        return call.kind == WAN_CALL_REGION or self.is_late(call)

    cdef bint say_full(self, const wan_call *call) noexcept nogil:
        """Lays out the answer to a call that has waited for memory for all of its time. False: there is no memory."""
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
        """Whether the member's budget is full, and no call is taken for that. Calls that callbacks make are taken all
        the same: a listener that has to wait would keep what it is to be told, which is a part of the budget."""
        return self.depth == 0 and wan_budget_is_full(self.budget)

    cdef void charge(self) noexcept nogil:
        if self.budget != NULL:
            wan_budget_hold(self.budget, WAN_BUDGET_CALLS, &self.held_bytes,
                            self.shelved_bytes + self.shelved * sizeof(shelved_call))

    cdef bint collect(self, uint64_t now_us) noexcept nogil:
        """Lays out the answers of shelved calls that may leave now, or that are given up. False: there is no memory."""
        cdef shelved_call *call = self.done.first
        cdef shelved_call *next_call
        cdef wan_shelved *ready
        while call != NULL and call.until_us <= now_us:
            next_call = call.behind
            # One that does not wait any more is ready, or is a read that is looked at below.
            if wan_tail_unshelve(call.wait.tail, call.wait.bucket, &call.shelved) and not self.finish(call, True):
                return False
            call = next_call
        call = self.held.first
        while call != NULL and call.until_us <= now_us:
            next_call = call.behind
            if wan_tail_unshelve(call.wait.tail, call.wait.bucket, &call.shelved):
                if self.go_on_with_held(call, 0) != GOES_ON:
                    return False
            call = next_call
        ready = wan_waker_take(&self.waker)
        while ready != NULL:
            call = <shelved_call *>ready
            ready = ready.behind
            if call.is_held:
                if self.go_on_with_held(call, call.until_us if now_us < call.until_us else 0) != GOES_ON:
                    return False
            elif not self.go_on_with(call, now_us):
                return False
        return self.look_at_reads(now_us)

    cdef bint look_at_reads(self, uint64_t now_us) noexcept nogil:
        cdef shelved_call *call = self.reads
        cdef shelved_call *next_call
        self.reads = NULL
        while call != NULL:
            next_call = <shelved_call *>call.shelved.behind
            if call.until_us <= now_us:
                if not self.finish(call, True):
                    return False
            elif not self.go_on_with(call, now_us):
                return False
            call = next_call
        return True

    cdef bint go_on_with(self, shelved_call *call, uint64_t now_us) noexcept nogil:
        """Answers a call that does not wait in its tail, or goes on waiting until its read may be told."""
        cdef wan_tail_bucket *bucket = &call.wait.tail.buckets[call.wait.bucket]
        cdef bint counts = wan_read(&bucket.counted) >= call.wait.sequence
        cdef bint is_told = call.wait.is_change
        if counts and not is_told:
            # The time is that after the read of the table: a process may have been stopped since the loop asked for it.
            is_told = wan_tail_may_read(call.wait.tail, call.wait.bucket, wan_monotonic_us())
        # The era is read last: a later era may have other changes under the same sequence.
        if wan_read(&bucket.era) != call.wait.era or not counts:
            return self.finish(call, True)
        if is_told:
            return self.finish(call, False)
        call.shelved.behind = <wan_shelved *>self.reads
        self.reads = call
        return True

    cdef bint finish(self, shelved_call *call, bint is_lost) noexcept nogil:
        """Lays out the answer of a shelved call, and forgets the call. False: there is no memory."""
        cdef uint64_t begin = self.last_answer()
        cdef bint has_room = buffer_reserve(&self.out, call.length)
        if has_room:
            memcpy(self.out.bytes + self.out.used, call + 1, call.length)
            self.out.used += call.length
            if is_lost:
                lose(&call.wait, <wan_answer *>(self.out.bytes + self.out.start + begin))
            elif call.wait.says_thin and call.wait.tail.min_copies > 1:
                say_thin(&call.wait, <wan_answer *>(self.out.bytes + self.out.start + begin))
            self.seal(begin)
            self.rounds += begin == 0
        else:
            wan_note(WAN_NO_MEMORY, "no memory for the answer to a call that waited")
        self.drop(call)
        return has_room

    cdef void drop(self, shelved_call *call) noexcept nogil:
        cdef call_list *among = &self.held if call.is_held else &self.done
        if call.before != NULL:
            call.before.behind = call.behind
        else:
            among.first = call.behind
        if call.behind != NULL:
            call.behind.before = call.before
        else:
            among.last = call.before
        self.shelved -= 1
        self.shelved_bytes -= call.length
        self.charge()
        free(call)

    cdef void unshelve_all(self, shelved_call *call) noexcept nogil:
        """Takes a call, and those behind it in its list, out of the tails."""
        while call != NULL:
            wan_tail_unshelve(call.wait.tail, call.wait.bucket, &call.shelved)
            call = call.behind

    cdef void drop_shelved(self) noexcept nogil:
        """Forgets all shelved calls. Afterwards no other thread knows this session."""
        self.unshelve_all(self.done.first)
        self.unshelve_all(self.held.first)
        wan_waker_end(&self.waker)
        self.reads = NULL
        while self.done.first != NULL:
            self.drop(self.done.first)
        while self.held.first != NULL:
            self.drop(self.held.first)
        if self.budget != NULL:
            wan_budget_let_go(self.budget, WAN_BUDGET_CALLS, &self.held_bytes)

    # Calls of this member itself wait in their own thread.

    cdef void settle(self, uint64_t *at) noexcept nogil:
        """Waits for a while until what the answers say from the wait at *at on counts. *at is moved behind those that
        are settled. An answer about something that does not count in time, or that this member has lost track of, says
        so."""
        cdef uint64_t slice_us = min(self.until_us, wan_monotonic_us() + SLICE_MS * 1000)
        cdef call_wait *wait
        cdef wan_status status
        while at[0] < self.waits.used:
            wait = <call_wait *>(self.waits.bytes + at[0])
            status = self.counts(wait, slice_us)
            if status == WAN_EMPTY and slice_us < self.until_us:
                return
            if status != WAN_OK:
                lose(wait, <wan_answer *>(self.out.bytes + self.out.start + wait.at))
            elif wait.says_thin and wait.tail.min_copies > 1:
                say_thin(wait, <wan_answer *>(self.out.bytes + self.out.start + wait.at))
            at[0] += sizeof(call_wait)

    cdef wan_status counts(self, const call_wait *wait, uint64_t until_us) noexcept nogil:
        """Waits until a sequence counts, and for a read until no other member can be primary. WAN_EMPTY: the time is
        over. WAN_ELSEWHERE: this member has lost track of it."""
        cdef uint32_t never = 0
        cdef uint64_t now = wan_monotonic_us()
        cdef uint32_t left_ms = <uint32_t>((until_us - now) // 1000 + 1) if now < until_us else 0
        cdef wan_status status = wan_tail_wait(wait.tail, wait.bucket, wait.era, wait.sequence, left_ms)
        if status != WAN_OK or wait.is_change:
            return status
        while not wan_tail_may_read(wait.tail, wait.bucket, now):
            if wan_read(&wait.tail.buckets[wait.bucket].era) != wait.era:
                return WAN_ELSEWHERE
            if now >= until_us:
                return WAN_EMPTY
            wan_wait_change(&never, 0, 1)
            now = wan_monotonic_us()
        return WAN_OK

    cdef void seal(self, uint64_t begin) noexcept nogil:
        """Gives each answer from `begin` on its checksum."""
        cdef uint64_t at = self.out.start + begin
        cdef wan_answer *answer
        while at < self.out.used:
            answer = <wan_answer *>(self.out.bytes + at)
            answer.crc = wan_answer_crc(answer)
            at += sizeof(wan_answer) + wan_align8(answer.length)

    # The calls. Each returns its answer, or NULL if there is no memory for it.

    cdef wan_answer *do_get(self, region_core *region, const wan_call *call) noexcept nogil:
        cdef const uint8_t *key = <const uint8_t *>(call + 1)
        cdef uint64_t hash = wan_key_hash(key, call.length, call.form), at = self.last_answer(), sequence = 0
        cdef wan_shard *shard = wan_table_shard(&region.table, hash)
        cdef wan_entry *entry
        cdef wan_answer *answer
        cdef uint64_t era = 0
        if wan_table_bucket(&region.table, hash).number != call.bucket:
            return self.fail(call, WAN_ANSWER_FAILED, b"IllegalStateError", WRONG_BUCKET, 0)
        if region.tail != NULL:
            era = wan_read(&region.tail.buckets[call.bucket].era)
        wan_lock_take(&shard.lock)
        entry = wan_table_find(shard, hash, key, <uint16_t>call.length, call.form)
        if entry == NULL or entry.state == WAN_ENTRY_TOMBSTONE:
            answer = self.answer(call, WAN_ANSWER_DONE, 0)
        elif entry.state == WAN_ENTRY_LIVE:
            answer = self.answer(call, WAN_ANSWER_DONE, entry.value_length)
            if answer != NULL:
                memcpy(answer + 1, wan_entry_value(entry), entry.value_length)
                answer.form, answer.flags = entry.value_form, WAN_ANSWER_LIVE | WAN_ANSWER_VALUE
        else:
            answer = self.answer(call, WAN_ANSWER_DONE, 0)
            if answer != NULL:
                answer.flags = WAN_ANSWER_LIVE
        if region.tail != NULL:
            sequence = region.tail.shard_last[shard - region.table.shards]
        wan_lock_release(&shard.lock)
        return answer if self.wait_for(region, call, era, sequence, at, False) else NULL

    cdef wan_answer *do_change(self, region_core *region, const wan_call *call) noexcept nogil:
        cdef const wan_record *record = <const wan_record *>(call + 1)
        cdef uint32_t used = wan_record_length(record)
        cdef uint64_t at = self.last_answer()
        cdef wan_change change
        cdef origin from_
        cdef condition wanted
        cdef wan_outcome outcome = WAN_LOST
        cdef wan_answer *answer
        cdef wan_status status
        prepare(region, record, wan_key_hash(wan_record_key(record), record.key_length, record.key_form),
                wan_clock_take(region.clock, wan_clock_now_ms(region.clock), 1), &change, &from_)
        if wan_table_bucket(&region.table, change.hash).number != call.bucket:
            return self.fail(call, WAN_ANSWER_FAILED, b"IllegalStateError", WRONG_BUCKET, 0)
        attempt_of(call, &from_.attempt)
        from_.attempt.waits = self.is_alone(call)
        if call.flags & WAN_CALL_REPEAT and region.tail == NULL:
            return self.fail(call, WAN_ANSWER_IN_DOUBT, b"ConnectivityError", NOT_REMEMBERED, 0)
        if call.condition:
            from_.asked = &wanted
            memset(&wanted, 0, sizeof(condition))
            wanted.kind, wanted.form = call.condition, call.form
            wanted.value, wanted.length = <const uint8_t *>record + used, call.length - used
            wanted.found = self.found
            status = region_change_if(region, &change, &from_, NULL, &wanted, &outcome)
            self.found = wanted.found
        else:
            status = region_change(region, &change, &from_, NULL, &outcome)
        if status == WAN_SLOW and region.tail != NULL:     # The callbacks are not asked about a repeat.
            wan_lock_take(&wan_table_shard(&region.table, change.hash).lock)
            status = region_recall(region, &change, &from_, &outcome)
            wan_lock_release(&wan_table_shard(&region.table, change.hash).lock)
            status = WAN_SLOW if status == WAN_EMPTY else status
            self.found = wanted.found if call.condition else self.found
        if status == WAN_SLOW:
            return self.change_by_callbacks(call, region, record)
        if status == WAN_ELSEWHERE:
            return self.say_elsewhere(call, region)
        if status == WAN_OK and outcome == WAN_OUT_OF_MEMORY:
            status = WAN_NO_MEMORY
        if status != WAN_OK:
            return self.fail_status(call, region, status, 0)
        answer = self.answer(call, WAN_ANSWER_DONE, self.found.used if call.condition else 0)
        if answer == NULL:
            return NULL
        answer.outcome = outcome
        if call.condition:
            answer.flags = (WAN_ANSWER_HOLDS if wanted.holds else 0) | (WAN_ANSWER_VALUE if wanted.found_value else 0)
            answer.form = wanted.found_form
            if self.found.used:
                memcpy(answer + 1, self.found.bytes, self.found.used)
            wan_buffer_trim(&self.found, WAN_BUFFER_KEPT_BYTES)
        # A change that did nothing has seen what the key has, as a read does.
        if not self.wait_for(region, call, change.era, change.sequence, at, outcome <= WAN_DESTROYED):
            return NULL
        return answer

    cdef wan_answer *do_rows(self, region_core *region, const wan_call *call) noexcept nogil:
        cdef const wan_record *record = <const wan_record *>(call + 1)
        cdef uint64_t at = self.last_answer(), applied = 0, era = 0, sequence = 0
        cdef uint32_t n, made
        cdef wan_answer *answer
        cdef wan_status status = WAN_OK
        cdef bint touched = False
        cdef int happened
        cdef records_ahead ahead
        cdef change_group group
        if call.flags & WAN_CALL_REPEAT and region.tail == NULL:
            return self.fail(call, WAN_ANSWER_IN_DOUBT, b"ConnectivityError", NOT_REMEMBERED, 0)
        records_begin(&ahead, record, call.count)
        group_begin(&group, 0)
        while ahead.done < call.count:
            if group.first == group.count and not take_rows(region, call, record, &ahead, &group):
                answer = self.fail(call, WAN_ANSWER_FAILED, b"IllegalStateError", WRONG_BUCKET, ahead.done)
                break
            status = WAN_OK
            made = region_change_group(region, call.bucket, &group, &ahead)
            if made == 0:
                made = 1
                records_fetch(region, &ahead)
                status = self.change_row(region, &group)
                if status == WAN_SLOW:
                    happened = 0
                    answer = self.row_by_callbacks(call, region, record, ahead.done, &happened)
                    if answer != NULL:
                        break
                    applied += happened > 0
                elif status == WAN_ELSEWHERE:
                    answer = (self.say_elsewhere(call, region) if ahead.done == 0
                              else self.answer(call, WAN_ANSWER_ELSEWHERE, 0))
                    break
                elif status != WAN_OK:
                    answer = self.fail_status(call, region, status, ahead.done)
                    break
                ahead.done += 1
            for n in range(group.first, group.first + made):
                record = next_record(record)
                if status == WAN_SLOW:      # The callbacks have made it, and its change counts.
                    continue
                if group.changes[n].recalled:       # An earlier attempt of this call has made it, and those before.
                    applied = group.changes[n].recalled
                else:
                    applied += group.outcomes[n] <= WAN_DESTROYED
                # A row that changed nothing names what it saw. If the era changes, the rows before are lost track of.
                era, sequence = era if touched else group.changes[n].era, max(sequence, group.changes[n].sequence)
                touched = True
            group.first += made
        else:
            answer = self.answer(call, WAN_ANSWER_DONE, 0)
        if answer == NULL:
            return NULL
        answer.done = ahead.done
        if answer.status != WAN_ANSWER_ELSEWHERE:
            answer.number = applied
        return answer if not touched or self.wait_for(region, call, era, sequence, at, applied > 0) else NULL

    cdef wan_status change_row(self, region_core *region, change_group *group) noexcept nogil:
        """Makes the next row of a group alone. WAN_SLOW: the callbacks are to be asked, as no attempt made it."""
        cdef wan_change *change = &group.changes[group.first]
        cdef const origin *from_ = &group.origins[group.first]
        cdef wan_outcome *outcome = &group.outcomes[group.first]
        cdef wan_status status = region_change(region, change, from_, NULL, outcome)
        if status == WAN_SLOW and region.tail != NULL:
            wan_lock_take(&wan_table_shard(&region.table, change.hash).lock)
            status = region_recall(region, change, from_, outcome)
            wan_lock_release(&wan_table_shard(&region.table, change.hash).lock)
            status = WAN_SLOW if status == WAN_EMPTY else status
        return WAN_NO_MEMORY if status == WAN_OK and outcome[0] == WAN_OUT_OF_MEMORY else status

    cdef wan_answer *do_events(self, region_core *region, const wan_call *call) noexcept nogil:
        """Applies events of other sites. One that cannot be applied fails alone. If another member has become primary,
        all are applied there: versions tell what was applied here."""
        cdef const wan_record *record = <const wan_record *>(call + 1)
        cdef const uint64_t *marks = NULL
        cdef uint64_t at = self.last_answer(), applied = 0, era = 0, sequence = 0
        cdef uint32_t n, made, conflicts = 0
        cdef events_seen seen
        cdef wan_answer *answer
        cdef wan_status status = WAN_OK
        cdef bint touched = False, took_effect
        cdef wan_change *change
        cdef int became
        cdef records_ahead ahead
        cdef change_group group
        memset(&seen, 0, sizeof(seen))
        seen.now_ms = wan_clock_receiving_ms(region.clock)
        wan_buffer_empty(&self.failed)
        if call.flags & WAN_CALL_MARKS:
            marks = <const uint64_t *>(<const uint8_t *>record + call.length - wan_call_marks_bytes(call.count))
        records_begin(&ahead, record, call.count)
        group_begin(&group, 0)
        while ahead.done < call.count:
            if (group.first == group.count
                    and not take_events(region, call, record, marks, &ahead, &seen, &group)):
                answer = self.fail(call, WAN_ANSWER_FAILED, b"IllegalStateError", WRONG_BUCKET, 0)
                break
            if group.count == 0:
                if not self.note_failed(ahead.done, WAN_FAILED_FUTURE_STAMP):
                    return NULL
                ahead.done += 1
                record = next_record(record)
                continue
            status = WAN_OK
            made = region_change_group(region, call.bucket, &group, &ahead)
            if made == 0:
                made = 1
                records_fetch(region, &ahead)
                ahead.done += 1
                status = region_change(region, &group.changes[group.first], &group.origins[group.first], NULL,
                                       &group.outcomes[group.first])
            if status == WAN_SLOW:          # A filter is asked. It counts afterwards.
                answer = NULL
                became = self.event_in_python(call, record, group.origins[group.first].possible_duplicate, &answer)
                if became == EVENT_NOT_TAKEN:
                    if answer == NULL:
                        answer = self.say_elsewhere(call, region)
                    break
                conflicts += became == EVENT_LOST
                if became > 0 and not self.note_failed(ahead.done - 1, <uint32_t>became):
                    return NULL
            elif status != WAN_OK:
                answer = (self.say_elsewhere(call, region) if status == WAN_ELSEWHERE
                          else self.fail_status(call, region, status, 0))
                break
            for n in range(made):
                record = next_record(record)
                change = &group.changes[group.first]
                group.first += 1
                if status == WAN_SLOW:
                    continue
                became = event_became(region, group.outcomes[group.first - 1], &took_effect)
                if became > 0:
                    if not self.note_failed(ahead.done - made + n, <uint32_t>became):
                        return NULL
                    continue
                conflicts += became == EVENT_LOST
                applied += took_effect
                if not touched:
                    era, touched = wan_read(&change.era), True
                sequence = max(sequence, wan_read(&change.sequence))
        else:
            answer = self.say_applied(call, applied, conflicts)
            if answer != NULL and touched and not self.wait_for(region, call, era, sequence, at, True):
                answer = NULL
        if seen.highest:
            wan_clock_see(region.clock, seen.highest)
            if not seen.is_given:
                wan_clock_hear(region.clock, seen.highest)
        wan_add_shared(&region.applied, applied)
        wan_buffer_trim(&self.failed, WAN_BUFFER_KEPT_BYTES)
        return answer

    cdef bint note_failed(self, uint32_t number, uint32_t reason) noexcept nogil:
        """Notes that an event of EVENTS failed. False: there is no memory for that."""
        cdef wan_call_failure failure
        failure.record, failure.reason = number, reason
        return wan_buffer_add(&self.failed, &failure, sizeof(failure)) == WAN_OK

    cdef wan_answer *say_applied(self, const wan_call *call, uint64_t applied, uint32_t conflicts) noexcept nogil:
        """The answer to EVENTS that were all tried. `failed` has those that failed."""
        cdef wan_answer *answer = self.answer(call, WAN_ANSWER_DONE, sizeof(wan_call_applied) + self.failed.used)
        cdef wan_call_applied *became
        if answer == NULL:
            return NULL
        answer.number, answer.done = applied, call.count
        became = <wan_call_applied *>(answer + 1)
        became.conflicts, became.failures = conflicts, <uint32_t>(self.failed.used // sizeof(wan_call_failure))
        if self.failed.used:
            memcpy(became + 1, self.failed.bytes, self.failed.used)
        return answer

    cdef wan_answer *do_count(self, region_core *region, const wan_call *call) noexcept nogil:
        cdef uint64_t at = self.last_answer(), era = era_of(region, call)
        cdef wan_answer *answer = self.answer(call, WAN_ANSWER_DONE, 0)
        if answer == NULL:
            return NULL
        answer.number = wan_table_bucket_count(&region.table, &region.table.buckets[call.bucket]).entries
        return answer if self.wait_for_bucket(region, call, era, at) else NULL

    cdef wan_answer *do_scan(self, region_core *region, const wan_call *call) noexcept nogil:
        cdef const wan_bucket *bucket = &region.table.buckets[call.bucket]
        cdef uint64_t at = self.last_answer(), era = era_of(region, call), number = call.shard, slot, whole
        cdef wan_answer *answer = self.answer(call, WAN_ANSWER_DONE, 0)
        cdef wan_shard *shard
        cdef wan_entry *entry
        cdef wan_call_item *item
        cdef bint no_room = answer == NULL
        if no_room:
            return NULL
        while number < bucket.shard_count and self.last_answer() - at < WAN_CALL_SCAN_MAX and not no_room:
            shard = &region.table.shards[bucket.first_shard + number]
            wan_lock_take(&shard.lock)
            for slot in range(wan_shard_slots(shard)):
                entry = wan_shard_entry(shard, slot)
                if entry == NULL or entry.state == WAN_ENTRY_TOMBSTONE:
                    continue
                whole = sizeof(wan_call_item) + entry.key_length + <uint64_t>entry.value_length + 8
                no_room = (not buffer_reserve(&self.out, whole)
                           or self.last_answer() - at + sizeof(wan_call_item) + entry.key_length > WAN_CALL_BYTES_MAX)
                if no_room:
                    break
                item = <wan_call_item *>(self.out.bytes + self.out.used)
                item.key_length, item.key_form, item.value_length = entry.key_length, entry.key_form, 0
                item.value_form = WAN_CALL_VALUE_NONE
                if entry.state == WAN_ENTRY_LIVE:
                    item.value_form = WAN_CALL_VALUE_LEFT_OUT
                    if (call.flags & WAN_CALL_VALUES
                            and self.last_answer() - at + entry.value_length < WAN_CALL_ITEMS_MAX):
                        item.value_form, item.value_length = entry.value_form, entry.value_length
                whole = wan_call_item_size(item)
                memset(<uint8_t *>item + whole - 8 if whole > sizeof(wan_call_item) else <uint8_t *>(item + 1), 0, 8)
                memcpy(<uint8_t *>(item + 1), entry.bytes, entry.key_length)
                if item.value_length:
                    memcpy(<uint8_t *>(item + 1) + entry.key_length, wan_entry_value(entry), entry.value_length)
                self.out.used += whole
            wan_lock_release(&shard.lock)
            number += 1
        if no_room:
            self.out.used = self.out.start + at
            return self.fail(call, WAN_ANSWER_FAILED, b"OutOfMemoryError", b"no memory for the entries of a bucket", 0)
        # The buffer may have moved since the answer was laid out.
        answer = <wan_answer *>(self.out.bytes + self.out.start + at)
        answer.length = <uint32_t>(self.last_answer() - at - sizeof(wan_answer))
        answer.number = number if number < bucket.shard_count else NO_LIMIT
        return answer if self.wait_for_bucket(region, call, era, at) else NULL

    cdef wan_answer *do_clear(self, region_core *region, const wan_call *call) noexcept nogil:
        cdef const wan_bucket *bucket = &region.table.buckets[call.bucket]
        cdef uint64_t cleared = 0, at, slot, number
        cdef wan_shard *shard
        cdef wan_entry *entry
        cdef wan_change change
        cdef wan_call_item item
        cdef wan_status status = WAN_OK
        cdef wan_answer *answer
        cdef bint found = False
        if region.tail != NULL:
            return self.clear_shared(region, call)
        if call.flags & WAN_CALL_REPEAT:
            return self.fail(call, WAN_ANSWER_IN_DOUBT, b"ConnectivityError", NOT_REMEMBERED, 0)
        for number in range(bucket.shard_count):
            shard = &region.table.shards[bucket.first_shard + number]
            wan_buffer_empty(&self.keys)
            wan_lock_take(&shard.lock)
            for slot in range(wan_shard_slots(shard)):
                entry = wan_shard_entry(shard, slot)
                if entry == NULL or entry.state == WAN_ENTRY_TOMBSTONE:
                    continue
                memset(&item, 0, sizeof(item))
                item.key_length, item.key_form = entry.key_length, entry.key_form
                status = wan_buffer_reserve(&self.keys, sizeof(item) + entry.key_length)
                if status != WAN_OK:
                    break
                wan_buffer_put(&self.keys, &item, sizeof(item))
                wan_buffer_put(&self.keys, entry.bytes, entry.key_length)
            wan_lock_release(&shard.lock)
            at = 0
            while at < self.keys.used and status == WAN_OK:
                memcpy(&item, self.keys.bytes + at, sizeof(item))
                at += sizeof(item)
                memset(&change, 0, sizeof(change))
                change.key, change.key_length, change.key_form = self.keys.bytes + at, item.key_length, item.key_form
                change.value_form, change.operation = WAN_FORM_NONE, WAN_DESTROY
                change.hash = wan_key_hash(change.key, change.key_length, change.key_form)
                at += item.key_length
                status = region_change_here(region, &change, WAN_LOGGED_FORGET, &found)
                cleared += found
        wan_buffer_trim(&self.keys, WAN_BUFFER_KEPT_BYTES)
        if status != WAN_OK:
            return self.fail_status(call, region, status, cleared)
        answer = self.answer(call, WAN_ANSWER_DONE, 0)
        if answer != NULL:
            answer.number = cleared
        return answer

    cdef wan_answer *clear_shared(self, region_core *region, const wan_call *call) noexcept nogil:
        cdef const wan_bucket *bucket = &region.table.buckets[call.bucket]
        cdef uint64_t at = self.last_answer(), cleared = 0
        cdef wan_attempt attempt
        cdef wan_recalled made
        cdef wan_answer *answer
        cdef wan_status status
        attempt_of(call, &attempt)
        region_relieve(region)
        wan_table_bucket_take(&region.table, bucket)
        status = check_path(region.attached, True)
        if status == WAN_OK:
            status = wan_clear_make(&region.table, region.tail, call.bucket, region.site, &attempt, &made, &cleared)
        wan_table_bucket_release(&region.table, bucket)
        if status == WAN_ELSEWHERE:
            return self.say_elsewhere(call, region)
        if status != WAN_OK:
            return self.fail_status(call, region, status, 0)
        answer = self.answer(call, WAN_ANSWER_DONE, 0)
        if answer == NULL:
            return NULL
        answer.number = cleared
        return answer if self.wait_for(region, call, made.era, made.sequence, at, True) else NULL

    # Through the user's Python

    cdef uint64_t deadline(self) noexcept:
        """When the call that is being done is given up, as the monotonic clock tells it."""
        cdef uint64_t now = self.work_us()
        if now == 0:                # A call of this member itself: no driver tells the time.
            return self.until_us
        return wan_monotonic_us() + (self.until_us - now if self.until_us > now else 0)

    cdef wan_answer *change_by_callbacks(self, const wan_call *call, region_core *region,
                                         const wan_record *record) noexcept nogil:
        with gil:
            return self.change_in_python(call, region, record)

    cdef wan_answer *change_in_python(self, const wan_call *call, region_core *region,
                                      const wan_record *record) noexcept:
        cdef wan_answer *answer
        cdef Condition condition_ = None
        cdef uint32_t used = wan_record_length(record)
        cdef uint64_t found = 0
        try:
            if call.condition:
                condition_ = Condition(CONDITIONS[call.condition], Encoded(
                    call.form, PyBytes_FromStringAndSize(<const char *>record + used, call.length - used)))
            outcome = self.ask_callbacks(call, record, condition_, None)
            if outcome in NOT_MADE:
                return self.say_not_made(call, region, outcome, 0)
            if condition_ is not None:
                found = condition_.wanted.found.used
            answer = self.answer(call, WAN_ANSWER_DONE, found)
            if answer == NULL:
                return NULL
            answer.outcome = OUTCOMES.index(outcome)
            if condition_ is not None:
                answer.flags = ((WAN_ANSWER_HOLDS if condition_.wanted.holds else 0)
                                | (WAN_ANSWER_VALUE if condition_.wanted.found_value else 0))
                answer.form = condition_.wanted.found_form
                if found:
                    memcpy(answer + 1, condition_.wanted.found.bytes, found)
            return answer
        except BaseException as error:
            return self.fail_with(call, error, 0)

    cdef int event_in_python(self, const wan_call *call, const wan_record *record, bint possible_duplicate,
                             wan_answer **answer) noexcept with gil:
        """Applies an event of another site through the callbacks of its region, and returns as `region_apply_event`,
        when it counts. EVENT_NOT_TAKEN with an answer: it says why not."""
        cdef CompiledRegion state = self.states[call.region]
        try:
            raw = PyBytes_FromStringAndSize(<const char *>record, wan_record_length(record))
            # The path of local changes is a method of the object that has the path of events, too.
            became = state.change_by_callbacks.__self__.apply_record(raw, (0, 0, bool(possible_duplicate)))
            return {ASKED_LOST: EVENT_LOST, ASKED_ELSEWHERE: EVENT_NOT_TAKEN}.get(became, became)
        except BaseException as error:
            answer[0] = self.fail_with(call, error, 0)
            return EVENT_NOT_TAKEN

    cdef wan_answer *say_not_made(self, const wan_call *call, region_core *region, str outcome,
                                  uint64_t done) noexcept:
        """The answer to a change that lost its primary on its way through the callbacks. The caller makes it again at
        the next one."""
        if outcome == "in doubt":
            return self.answer(call, WAN_ANSWER_IN_DOUBT, 0)
        return self.say_elsewhere(call, region) if done == 0 else self.answer(call, WAN_ANSWER_ELSEWHERE, 0)

    cdef wan_answer *row_by_callbacks(self, const wan_call *call, region_core *region, const wan_record *record,
                                      uint64_t done, int *happened) noexcept nogil:
        """NULL: the row was done. Otherwise the answer that says why not."""
        with gil:
            return self.row_in_python(call, region, record, done, happened)

    cdef wan_answer *row_in_python(self, const wan_call *call, region_core *region, const wan_record *record,
                                   uint64_t done, int *happened) noexcept:
        try:
            outcome = self.ask_callbacks(call, record, None, done)
            if outcome in NOT_MADE:
                return self.say_not_made(call, region, outcome, done)
            happened[0] = outcome in ("created", "updated", "destroyed")
            return NULL
        except BaseException as error:
            return self.fail_with(call, error, done)

    cdef object ask_callbacks(self, const wan_call *call, const wan_record *record, Condition condition_, row):
        """Makes a change through the callbacks of its region, with the identities that its event and its call have.
        `row`: its number, of a call of many rows. Returns the outcome's name. A call that the callbacks make goes over
        connections of the next depth."""
        cdef CompiledRegion state = self.states[call.region]
        cdef const char *value = <const char *>wan_record_value(record)
        cdef const char *callback = <const char *>wan_record_callback(record)
        cdef uint32_t before = wan_call_depth
        cdef uint64_t deadline = wan_deadline_us
        global wan_call_depth, wan_deadline_us
        wan_call_depth, wan_deadline_us = self.callback_depth, self.deadline()
        try:
            return state.change_by_callbacks(
                record.operation,
                Encoded(record.key_form, PyBytes_FromStringAndSize(<const char *>wan_record_key(record),
                                                                   record.key_length)),
                Encoded(record.value_form, PyBytes_FromStringAndSize(value, record.value_length)),
                Encoded(record.callback_form, PyBytes_FromStringAndSize(callback, record.callback_length)),
                record.stamp >> 16 if record.flags & WAN_FLAG_GIVEN else 0, condition_,
                event_id=(record.event_member, record.event_thread, record.event_sequence),
                call=(call.caller, call.slot, call.number, row, call.since if call.flags & WAN_CALL_REPEAT else 0))
        finally:
            wan_call_depth, wan_deadline_us = before, deadline


cdef tuple NOT_MADE = ("elsewhere", "in doubt")     # Outcomes of a change whose call has to go on elsewhere.
cdef const char *NOT_REMEMBERED = (b"an earlier attempt may have made the change, and this member, which has the region"
                                   b" alone, remembers no calls")
cdef const char *WRONG_BUCKET = b"the key lies in another bucket here: the members differ about the number of buckets"
cdef tuple CONDITIONS = ("", "absent", "value", "equal", "there")
cdef tuple OUTCOMES = ("created", "updated", "destroyed", "missing", "lost", "ask", "no memory", "unmet", "same",
                       "forgotten")


cdef bint is_primary(const region_core *region, const wan_call *call, uint64_t *epoch) noexcept nogil:
    """Whether this member is primary of the bucket, under an epoch that is not older than the caller's."""
    cdef wan_tail_bucket *bucket
    if region.tail == NULL:
        return True
    bucket = &region.tail.buckets[call.bucket]
    epoch[0] = wan_read(&bucket.epoch)
    return wan_tail_role(region.tail, call.bucket) == WAN_TAIL_PRIMARY and epoch[0] >= call.epoch


cdef bint has_tail(const region_core *region, const wan_call *call) noexcept nogil:
    """Whether several members share the region here, and it has the call's bucket."""
    return (region != NULL and not wan_flag_read(&region.closed) and region.tail != NULL
            and call.bucket < region.tail.bucket_count)


cdef bint may_become_primary(const region_core *region, const wan_call *call) noexcept nogil:
    """Whether this member is not primary, and is about to be: it takes over, or has not heard yet of the epoch under
    which the caller knows it as primary."""
    cdef wan_tail_bucket *bucket
    if region.tail == NULL:
        return False
    bucket = &region.tail.buckets[call.bucket]
    return wan_tail_role(region.tail, call.bucket) == WAN_TAIL_TAKING_OVER or wan_read(&bucket.epoch) < call.epoch


cdef uint64_t era_of(const region_core *region, const wan_call *call) noexcept nogil:
    """The era of the call's bucket. 0: the region has no tails."""
    return wan_read(&region.tail.buckets[call.bucket].era) if region.tail != NULL else 0


cdef void lose(const call_wait *wait, wan_answer *answer) noexcept nogil:
    """Makes an answer say that nobody knows here whether what it is about will count."""
    if answer.status == WAN_ANSWER_DONE or wait.is_change:
        answer.status = WAN_ANSWER_IN_DOUBT if wait.is_change else WAN_ANSWER_ELSEWHERE
        answer.number = wan_read(&wait.tail.buckets[wait.bucket].epoch)
        memset(answer + 1, 0, answer.length)        # The caller has words for it.
    if not wait.is_change:
        answer.done = 0         # Rows that changed nothing have seen what may be lost: they are asked again.


cdef void say_thin(const call_wait *wait, wan_answer *answer) noexcept nogil:
    """Makes the answer about a change that counts say so if too few copies had it."""
    cdef uint32_t copies = wan_tail_made_with(wait.tail, wait.bucket, wait.sequence, wait.is_repeat)
    if copies == 0:
        return
    answer.status, answer.flags = WAN_ANSWER_IN_DOUBT, WAN_ANSWER_THIN
    answer.number = copies | <uint64_t>wait.tail.min_copies << 32
    memset(answer + 1, 0, answer.length)        # The caller has words for it.


cdef void attempt_of(const wan_call *call, wan_attempt *attempt) noexcept nogil:
    """Says which call asks for a change."""
    memset(attempt, 0, sizeof(wan_attempt))
    attempt.call.caller, attempt.call.slot, attempt.call.number = call.caller, call.slot, call.number
    attempt.since = call.since if call.flags & WAN_CALL_REPEAT else 0


cdef void prepare(region_core *region, const wan_record *record, uint64_t hash, uint64_t stamp, wan_change *change,
                  origin *from_) noexcept nogil:
    """What a record asks for, as a change that is made here. Its event has the identity that its caller gave it."""
    change_from_record(change, record, hash)
    change.local = 1
    change.flags = 0
    change.stamp_site = region.site
    change.stamp = stamp
    change.era = change.sequence = change.recalled = 0
    if record.flags & WAN_FLAG_GIVEN and record.stamp and record.stamp < change.stamp:
        change.stamp, change.flags = record.stamp, WAN_FLAG_GIVEN
    origin_from_record(from_, record, False)
    from_.site = region.site
    from_.recipient_count = 0


cdef const wan_record *next_record(const wan_record *record) noexcept nogil:
    return <const wan_record *>(<const uint8_t *>record + wan_record_length(record))


cdef bint take_rows(region_core *region, const wan_call *call, const wan_record *record, records_ahead *ahead,
                    change_group *group) noexcept nogil:
    """Takes the next rows of a call into a group, the first of which is `record`, up to a row of another bucket. False:
    the first one is such a row."""
    cdef uint32_t n = 0, count = min(ahead.count - ahead.done, <uint32_t>CHANGES_PER_HOLD)
    cdef uint64_t hash, stamp = wan_clock_take(region.clock, wan_clock_now_ms(region.clock), count)
    cdef wan_attempt *attempt
    records_fetch(region, ahead)
    while n < count:
        hash = wan_fetch_hash(&ahead.fetch, ahead.done + n)
        if wan_table_bucket(&region.table, hash).number != call.bucket:
            break
        prepare(region, record, hash, stamp + n, &group.changes[n], &group.origins[n])
        attempt = &group.origins[n].attempt
        attempt_of(call, attempt)
        attempt.is_row, attempt.row = 1, ahead.done + n
        record = next_record(record)
        n += 1
    group_begin(group, n)
    return n != 0


cdef struct events_seen:
    # The stamps of events that were looked at.
    uint64_t now_ms             # The time, as `is_event_ahead` keeps it.
    uint64_t highest            # The highest stamp of an event that may be applied.
    uint8_t is_given            # A caller gave that stamp.


cdef bint take_events(region_core *region, const wan_call *call, const wan_record *record, const uint64_t *marks,
                      records_ahead *ahead, events_seen *seen, change_group *group) noexcept nogil:
    """Takes the next events of a call into a group, the first of which is `record`, up to one of another bucket, or one
    whose stamp is too far ahead: if that is the first one, the group is empty. False: the first one is of another
    bucket."""
    cdef uint32_t n = 0, at, count = min(ahead.count - ahead.done, <uint32_t>CHANGES_PER_HOLD)
    cdef uint64_t hash
    records_fetch(region, ahead)
    while n < count:
        at = ahead.done + n
        hash = wan_fetch_hash(&ahead.fetch, at)
        if wan_table_bucket(&region.table, hash).number != call.bucket:
            if n == 0:
                return False
            break
        if is_event_ahead(region.clock, record, &seen.now_ms, WAN_CLOCK_AHEAD_MS):
            break
        if record.stamp > seen.highest:
            seen.highest, seen.is_given = record.stamp, record.flags & WAN_FLAG_GIVEN
        change_from_event(&group.changes[n], record, hash)
        origin_from_record(&group.origins[n], record, marks != NULL and marks[at >> 6] >> (at & 63) & 1)
        record = next_record(record)
        n += 1
    group_begin(group, n)
    return True
