# Owns the calls of a region about keys whose primary is another member: the bytes of a call, and the meaning of an
# answer. Python code (pywan.calls) chooses the target of a call, and the wait before the next attempt.
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from pywan._core.c_base cimport *
from pywan._core.c_names cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_session cimport *
from pywan._core.calls.call_line cimport (
    CALL_ANSWERED, CALL_INTERRUPTED, CALL_LATE, CALL_NOT_SENT, CALL_UNKNOWN, CALL_WAITS, CallLine, call_slot)
from pywan._core.calls.call_callbacks cimport OUTCOMES
from pywan._core.calls.own_calls cimport OwnCalls
from pywan._core.region.call_slots cimport CallSlots
from pywan._core.values.codec cimport encode, encode_key, encoded
from pywan._core.region.compiled_region cimport CompiledRegion
from pywan._core.region.region_changes cimport Condition, RegionCalls
from pywan._core.values.tagged cimport show

cdef enum:
    SHARDS_MAX = 1 << 20    # The most shards of a bucket. A scan asks for a later shard each time, so the scan ends.
    PARTS_UNDER_WAY = 128   # Parts of a call that are under way at the same time.

# The most entries of a bucket in any accepted answer. So the sum of all buckets is a valid length in Python.
cdef uint64_t ENTRIES_MAX = <uint64_t>1 << 40


@cython.auto_pickle(False)
cdef class CallRoute:
    """The calls of a region to other members. A subclass has `aim`, the search for the primary of a bucket."""
    def __cinit__(self, RegionCalls core not None, *args, double timeout_s=10.0, **kwargs):
        self.state = core.state
        self.limit_us = <uint64_t>(timeout_s * 1e6)
        self.targets = [None] * self.state.region.table.bucket_count

    def set_limit(self, double timeout_s):
        """Sets the time limit of calls in seconds, from now on, also of the calls under way."""
        self.limit_us = <uint64_t>(timeout_s * 1e6)

    def deadline(self, uint64_t began_us):
        """The deadline of a call that began at `began_us` in the present thread, in microseconds of the monotonic
        clock."""
        return wan_deadline_of(began_us, self.limit_us)

    def aim(self, uint32_t bucket, uint64_t began_us, trouble, bint in_doubt, key):
        """Returns (CallLine, epoch word) for a call about a bucket. None: this member itself is primary. `trouble`: the
        result of the last attempt: None, or (event, epoch word of the attempt, words, the primary that the answer
        names). `aim` waits before a further attempt, and raises an error when the time is over. `key`: for the
        error."""
        raise NotImplementedError

    def tell_primary(self, uint32_t bucket, uint64_t epoch):
        """Returns the primary of a bucket, as bytes for a client that knows the epoch word `epoch`. Empty: this member
        knows nothing newer."""
        raise NotImplementedError

    def aim_now(self, uint32_t bucket, uint64_t until_us, set slow):
        """As `aim` for a first attempt, without a long wait. False: `aim` would have to wait. `until_us`: the deadline
        of the call. `slow`: the members to which the call could not connect; `aim_now` does not try these members
        again."""
        raise NotImplementedError

    def failure(self, bytes words, bint in_doubt):
        """The error for a call that the primary answered with these words."""
        raise NotImplementedError

    def too_few(self, uint32_t bucket, uint32_t made, uint32_t wanted, key):
        """The error for a change that is replicated, but to only `made` in-sync replicas when `wanted` are required.
        `key`: None for a change among many."""
        raise NotImplementedError

    def why_full(self):
        """Describes what fills the member's budget, the cause of the wait, and a remedy."""
        raise NotImplementedError

    @property
    def is_gone(self):
        """Whether the region was destroyed at this member, or the region's cache was closed."""
        return wan_flag_read(&self.state.region.closed) != 0

    @property
    def bucket_count(self):
        return self.state.region.table.bucket_count

    # Single keys

    def read(self, key, uint64_t began_us=0):
        """Returns (whether the key exists, form of the value, bytes of the value or None). None: this member has become
        primary, so the caller reads its own replica."""
        cdef encoded encoded_key
        cdef wan_call head
        cdef wan_answer got
        cdef uint64_t hash
        cdef uint64_t since = 0
        _key_holder = encode_key(key, &encoded_key)
        hash = wan_key_hash(encoded_key.data, encoded_key.length, encoded_key.form)
        begin(&head, WAN_CALL_GET, self.state, hash)
        head.form = encoded_key.form
        payload = self.exchange(&head, encoded_key.data, encoded_key.length, NULL, 0, began_us, &since,
                                key, &got, None, None)
        if payload is None:
            return None
        return read_of(&got, payload)

    def read_all(self, list keys not None):
        """Returns for each key what `read` returns; never None. All calls leave together. Raises the first error, after
        all other answers have arrived."""
        cdef encoded encoded_key
        cdef CallPart part
        cdef list parts = [], packed = []
        cdef bytes data
        for key in keys:
            _key_holder = encode_key(key, &encoded_key)
            data = PyBytes_FromStringAndSize(<const char *>encoded_key.data, encoded_key.length)
            packed.append(data)
            part = CallPart()
            begin(&part.head, WAN_CALL_GET, self.state,
                  wan_key_hash(encoded_key.data, encoded_key.length, encoded_key.form))
            part.head.form, part.data, part.length = encoded_key.form, PyBytes_AS_STRING(data), encoded_key.length
            parts.append(part)
        self.exchange_all(parts, wan_monotonic_us())
        for part in parts:
            if part.error is not None:
                raise part.error
        return [read_of(&(<CallPart>each).got, (<CallPart>each).payload) for each in parts]

    def change(self, int operation, key, value, callback_argument, event_id, Condition condition_=None,
               int64_t timestamp_ms=0, uint64_t began_us=0, uint64_t since=0, identity=None):
        """Makes a change at the primary of the key. Returns the outcome, as `RegionChanges.change` does. None: this
        member has become primary, and the caller makes the change itself. An epoch word: this member has become
        primary, and an attempt may have made the change; the caller makes the change as a repeat, with the same
        identity.

        `event_id`: (member, thread, sequence) of the event. `began_us`: when the caller began; 0: now. `since`: not 0
        if an attempt may have made the change; the bucket had the epoch `since` or a later one at the time of the
        attempt. `identity`: (caller, slot, number), the same at each attempt. None: the call gets an identity now.
        `condition_` gets the value that the primary found."""
        cdef wan_call_identity call
        if identity is not None:
            call.caller, call.slot, call.number = identity
            return self.change_as(&call, operation, key, value, callback_argument, event_id, condition_, timestamp_ms,
                                  began_us, since)
        cdef CallSlots slots = self.slots
        slots.take(&call)
        try:
            return self.change_as(&call, operation, key, value, callback_argument, event_id, condition_, timestamp_ms,
                                  began_us, since)
        finally:
            slots.give(call)

    cdef object change_as(self, const wan_call_identity *call, int operation, key, value, callback_argument, event_id,
                          Condition condition_, int64_t timestamp_ms, uint64_t began_us, uint64_t since):
        """As `change`, with an identity."""
        cdef wan_call head
        cdef wan_answer got
        cdef const void *expected = NULL
        cdef uint64_t expected_length = 0
        cdef bytes packed = self.begin_change(&head, call, operation, key, value, callback_argument, event_id,
                                              condition_, timestamp_ms)
        if condition_ is not None:
            expected, expected_length = condition_.wanted.value, condition_.wanted.length
        payload = self.exchange(&head, PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed), expected, expected_length,
                                began_us, &since, key, &got, None, None)
        if payload is None:
            return since or None
        return self.outcome_of(&got, payload, condition_)

    cdef bytes begin_change(self, wan_call *head, const wan_call_identity *call, int operation, key, value,
                            callback_argument, event_id, Condition condition_, int64_t timestamp_ms):
        """Lays out the head of a change, and returns the record."""
        cdef encoded encoded_key, encoded_value, argument
        cdef wan_record record
        cdef uint64_t length
        cdef bytes packed
        _key_holder = encode_key(key, &encoded_key)
        _value_holder = encode(value, &encoded_value)
        _argument_holder = encode(callback_argument, &argument)
        check_callback(argument.length)
        memset(&record, 0, sizeof(record))
        record.value_length, record.key_length = encoded_value.length, <uint16_t>encoded_key.length
        record.callback_length = <uint16_t>argument.length
        record.event_member, record.event_thread, record.event_sequence = event_id
        record.operation, record.key_form = <uint8_t>operation, encoded_key.form
        record.value_form, record.callback_form = encoded_value.form, argument.form
        record.origin_site = record.stamp_site = self.state.region.site
        if timestamp_ms > 0:
            record.stamp, record.flags = <uint64_t>timestamp_ms << 16, WAN_FLAG_GIVEN
        length = wan_record_length(&record)
        packed = PyBytes_FromStringAndSize(NULL, length)
        wan_record_write(<uint8_t *>PyBytes_AS_STRING(packed), length, record, encoded_key.data, encoded_value.data,
                         argument.data, encoded_key.data)
        begin(head, WAN_CALL_CHANGE, self.state,
              wan_key_hash(encoded_key.data, encoded_key.length, encoded_key.form))
        identify(head, call)
        head.form = WAN_FORM_NONE
        if condition_ is not None:
            head.condition, head.form = condition_.wanted.kind, condition_.wanted.form
        return packed

    cdef str outcome_of(self, const wan_answer *got, bytes payload, Condition condition_):
        """The outcome in the answer to a change. `condition_` gets the value that the primary found."""
        if condition_ is not None:
            condition_.wanted.holds = got.flags & WAN_ANSWER_HOLDS != 0
            condition_.wanted.found_value = got.flags & WAN_ANSWER_VALUE != 0
            condition_.wanted.found_form = got.form
            wan_buffer_empty(&condition_.wanted.found)
            if wan_buffer_add(&condition_.wanted.found, PyBytes_AS_STRING(payload),
                              PyBytes_GET_SIZE(payload)) != WAN_OK:
                raise MemoryError(f"region {self.state.name!r}: the change was made, and there is no memory for the"
                                  " value that it found")
        if got.outcome >= len(OUTCOMES):
            from pywan.errors import ProtocolError
            raise ProtocolError(f"region {self.state.name!r}: outcome {got.outcome} of a change is unknown here")
        return OUTCOMES[got.outcome]

    # Whole buckets

    def ask(self, str what, list places not None, uint64_t began_us=0):
        """Asks the primaries of buckets, all at once, this member included. `places`: (bucket, number) for each
        question. Returns a list of answers. For "count": the entries. For "keys" and "items" from shard `number` on:
        (next shard or None, items), for `unpack_items`. Raises the first error, after all other answers have
        arrived."""
        cdef CallPart part
        cdef list parts = []
        for bucket, number in places:
            part = CallPart()
            begin(&part.head, WAN_CALL_COUNT if what == "count" else WAN_CALL_SCAN, self.state, 0)
            part.head.bucket, part.head.shard = bucket, number
            part.head.flags = WAN_CALL_VALUES if what == "items" else 0
            parts.append(part)
        self.exchange_all(parts, began_us or wan_monotonic_us())
        answers = []
        for part in parts:
            if part.error is not None:
                raise part.error
            if what == "count":
                answers.append(self.number_of(part, 0, ENTRIES_MAX))
            elif part.got.number == NO_LIMIT:
                answers.append((None, part.payload))
            else:
                answers.append((self.number_of(part, part.head.shard + 1, SHARDS_MAX), part.payload))
        return answers

    def clear_buckets(self):
        """Clears all buckets at their primaries, as a single call. Returns for each bucket the number of entries that
        the bucket had, or the error if the bucket was not cleared, or if the result is unknown."""
        cdef CallPart part
        cdef list parts = []
        cdef CallSlots slots = self.slots
        cdef wan_call_identity call
        slots.take(&call)
        try:
            for bucket in range(self.bucket_count):
                part = CallPart()
                begin(&part.head, WAN_CALL_CLEAR, self.state, 0)
                part.head.bucket = bucket
                identify(&part.head, &call)
                parts.append(part)
            self.exchange_all(parts, wan_monotonic_us())
        finally:
            slots.give(call)
        return [self.cleared(part) for part in parts]

    cdef object cleared(self, CallPart part):
        if part.error is not None:
            return part.error
        try:
            return self.number_of(part, 0, ENTRIES_MAX)
        except Exception as error:
            error.in_doubt = True
            return error

    cdef object number_of(self, CallPart part, uint64_t least, uint64_t most):
        """The number in an answer. ProtocolError: the number is impossible for a bucket."""
        if least <= part.got.number <= most:
            return part.got.number
        from pywan.errors import ProtocolError
        raise ProtocolError(f"region {self.state.name!r}: the primary of bucket {part.head.bucket} answers with the"
                            f" number {part.got.number}, where it is from {least} to {most}")

    # Calls

    cdef int exchange_all(self, list parts, uint64_t began_us) except -1:
        """Makes many calls, and gives each call the answer or the error. The calls leave together. Meanwhile this
        member serves the calls about its own buckets."""
        cdef int at
        self.state.check_process()
        cdef OwnCalls here = OwnCalls(None)
        here.callback_depth = wan_call_depth
        cdef set slow = set()
        for at in range(0, len(parts), PARTS_UNDER_WAY):
            self.exchange_parts(parts[at:at + PARTS_UNDER_WAY], began_us, here, slow)
        return 0

    cdef int exchange_parts(self, list parts, uint64_t began_us, OwnCalls here, set slow) except -1:
        cdef CallPart part
        cdef CallLine line
        cdef uint64_t until = wan_deadline_of(began_us, self.limit_us)
        cdef list lines = []
        try:
            for part in parts:
                self.send(part, until, lines, slow)
            for line in lines:
                with nogil:
                    line.flush(until)
            here.begin_here(until)
            for part in parts:
                if part.is_here:
                    part.since = self.state.epoch_of(part.head.bucket) if wan_call_changes(part.head.kind) else 0
                    part.answer_at = here.do_here(self.state, &part.head, part.data, part.length)
            here.settle_here()      # A single wait for the replicas of all buckets.
            for part in parts:
                if part.is_here:
                    part.take(here.answer_here(part.answer_at))
            for part in parts:
                while part.slot != NULL and part.wait(until):
                    PyErr_CheckSignals()
                    if self.has_moved(&part.head):
                        part.trouble = "moved", part.head.epoch, MOVED, b""
        finally:
            for part in parts:
                part.let_go()
        for part in parts:
            self.finish(part, began_us, here)
        return 0

    cdef int send(self, CallPart part, uint64_t until, list lines, set slow) except -1:
        """Lays out the first attempt of a part, if no wait is needed."""
        cdef CallLine line
        cdef uint64_t epoch
        aimed = self.targets[part.head.bucket] if wan_call_depth == 0 else None
        if aimed is None:
            aimed = self.aim_now(part.head.bucket, until, slow)
        if aimed is None:
            part.is_here = True
            return 0
        if aimed is False:
            return 0        # `finish` waits for a primary, after the other parts have their answers.
        line, epoch = aimed
        part.head.epoch, part.head.within = epoch, within(until)
        if not line.enter():
            part.trouble = "broken", epoch, line.why, b""
            return 0
        part.line = line
        if line not in lines:
            lines.append(line)
        with nogil:
            part.slot = line.take_slot(0)
            if part.slot != NULL:
                part.state = line.submit(part.slot, &part.head, part.data, part.length, NULL, 0)
        if part.slot == NULL or part.state == CALL_NOT_SENT:
            part.trouble = "broken", epoch, line.why if line.broken else "too many calls are on their way", b""
        elif wan_call_changes(part.head.kind):
            part.since = max(<uint64_t>1, epoch)
        return 0

    cdef int finish(self, CallPart part, uint64_t began_us, OwnCalls here) except -1:
        """Gives a part the answer or the error, after further attempts if necessary."""
        if part.error is not None:
            return 0
        try:
            if part.payload is None or not self.is_final(&part.head, &part.got, part.payload, None):
                if part.payload is not None:
                    part.trouble = "not primary", part.head.epoch, "it is not primary", part.payload
                    if part.got.status != WAN_ANSWER_IN_DOUBT:
                        part.since = 0      # The first attempt changed nothing.
                    if part.got.status == WAN_ANSWER_GIVEN_UP:
                        part.trouble = self.rename(&part.head)
                part.payload = self.exchange(&part.head, part.data, part.length, NULL, 0, began_us, &part.since,
                                             None, &part.got, part.trouble, here)
        except Exception as error:
            part.error = error
        return 0

    cdef bytes exchange(self, wan_call *head, const void *first, uint64_t first_length, const void *second,
                        uint64_t second_length, uint64_t began_us, uint64_t *since, key, wan_answer *got,
                        object trouble, OwnCalls here):
        """Sends a call until the call is answered. Returns the payload of the answer, and its head in *got. None: this
        member itself is primary, and `here`, the session for the member's own calls, is None. A call of rows that was
        done in part ends with the answer that reports the done rows, whatever the status. `trouble`: the result
        of an earlier attempt. `since`: as for `change`."""
        cdef CallLine line
        cdef call_slot *slot
        cdef int state
        cdef uint64_t until, before, epoch
        cdef bint is_change = wan_call_changes(head.kind)
        cdef const wan_answer *answer
        cdef bytes payload
        self.state.check_process()
        began_us = began_us or wan_monotonic_us()
        until = wan_deadline_of(began_us, self.limit_us)
        while True:
            aimed = self.targets[head.bucket] if trouble is None and wan_call_depth == 0 else None
            if aimed is None or not (<CallLine?>aimed[0]).enter():
                aimed = self.aim(head.bucket, began_us, trouble, since[0] != 0, key)
                if aimed is None and here is None:
                    return None
                if aimed is not None and not (<CallLine?>aimed[0]).enter():
                    trouble = "broken", aimed[1], (<CallLine>aimed[0]).why, b""
                    continue
            before = since[0]
            mark_repeat(head, before)
            if aimed is None:
                epoch = self.state.epoch_of(head.bucket)
                head.epoch = 0
                answer = here.serve_here(self.state, head, first, first_length, until)
                got[0] = answer[0]
                payload = PyBytes_FromStringAndSize(<const char *>(answer + 1), answer.length)
                if self.is_final(head, got, payload, key):
                    return payload
                if got.status == WAN_ANSWER_GIVEN_UP:
                    trouble = self.rename(head)
                elif got.status == WAN_ANSWER_IN_DOUBT:
                    since[0] = before or epoch
                    trouble = "in doubt", got.number, NOT_STABLE, b""
                else:
                    trouble = "not primary", got.number, "it is not primary yet, or not any more", b""
                continue
            line, head.epoch = aimed
            head.within = within(until)
            slot, state = NULL, CALL_NOT_SENT
            try:
                with nogil:
                    slot = line.take_slot(until)
                    if slot != NULL:
                        state = line.submit(slot, head, first, first_length, second, second_length)
                    if state == CALL_WAITS:
                        line.flush(until)
                        state = line.wait(slot, until)
                if state != CALL_NOT_SENT and is_change:
                    since[0] = before or max(<uint64_t>1, head.epoch)
                while state == CALL_INTERRUPTED:
                    PyErr_CheckSignals()
                    if self.has_moved(head):
                        break
                    with nogil:
                        line.flush(until)
                        state = line.wait(slot, until)
                payload = None
                if state == CALL_ANSWERED:
                    answer = <const wan_answer *>slot.answer.bytes
                    got[0] = answer[0]
                    payload = PyBytes_FromStringAndSize(<const char *>(answer + 1), answer.length)
                trouble = self.judge(head, state, got, payload, line, before, since, key)
                if trouble is None:
                    return payload
            finally:
                if slot != NULL:
                    with nogil:
                        line.free(slot)
                line.leave()

    cdef bint has_moved(self, const wan_call *head) except *:
        """Whether the bucket of a waiting call has another primary by now. The old primary may be silent for long on an
        open connection, because other buckets may still wait for it. The call goes to the new primary, as after a
        broken connection."""
        return bool(self.tell_primary(head.bucket, head.epoch))

    cdef object judge(self, wan_call *head, int state, const wan_answer *got, bytes payload, CallLine line,
                      uint64_t before, uint64_t *since, key):
        """The result of an attempt. None: the call ends with the answer. Otherwise the trouble, as `aim` expects.
        *since becomes `before` again if the attempt has changed nothing."""
        if state == CALL_ANSWERED:
            if self.is_final(head, got, payload, key):
                return None
            if got.status == WAN_ANSWER_IN_DOUBT:
                return "in doubt", head.epoch, NOT_STABLE, b""
            since[0] = before
            if got.status == WAN_ANSWER_GIVEN_UP:
                return self.rename(head)
            return "not primary", head.epoch, f"it is not primary, and knows epoch {got.number:#x}", payload
        if state == CALL_LATE:
            return "late", head.epoch, "it did not answer", b""
        if state == CALL_UNKNOWN:
            return "broken", head.epoch, line.why, b""
        if state == CALL_INTERRUPTED:
            return "moved", head.epoch, MOVED, b""
        since[0] = before
        return "broken", head.epoch, line.why if line.broken else "too many calls are on their way", b""

    cdef bint is_final(self, const wan_call *head, const wan_answer *got, bytes payload, key) except *:
        """Whether a call ends with the answer. If not, a further attempt follows. Raises the error in the answer."""
        # For a repeat, an earlier attempt may have made the other rows: the repeat remains the same call.
        cdef bint goes_on = (head.flags & WAN_CALL_REPEAT
                             and (got.status == WAN_ANSWER_NOT_PRIMARY or got.status == WAN_ANSWER_GIVEN_UP))
        if head.kind == WAN_CALL_ROWS and got.done and got.status != WAN_ANSWER_IN_DOUBT and not goes_on:
            return True
        if got.status == WAN_ANSWER_IN_DOUBT and got.flags & WAN_ANSWER_UNDER_REPLICATED:
            raise self.too_few(head.bucket, <uint32_t>got.number, <uint32_t>(got.number >> 32), key)
        if got.status == WAN_ANSWER_IN_DOUBT and (not head.flags & WAN_CALL_REPEAT or not payload.strip(b"\0")):
            return False        # The next primary may know.
        if (got.status == WAN_ANSWER_FAILED or got.status == WAN_ANSWER_IN_DOUBT
                or (got.status == WAN_ANSWER_GIVEN_UP and head.flags & WAN_CALL_REPEAT)):
            raise self.failure(payload, got.status != WAN_ANSWER_FAILED)
        return got.status == WAN_ANSWER_DONE

    cdef object rename(self, wan_call *head):
        """Gives a call that has changed nothing yet the identity of a new client, because the site has given up the
        client of the call. Returns the trouble of the attempt, for `aim`."""
        cdef wan_call_identity call
        call.caller, call.slot, call.number = head.caller, head.slot, head.number
        self.slots.rename(&call)
        head.caller = call.caller
        return "given up", head.epoch, "it knows this member as one that the site has given up", b""


cdef str NOT_STABLE = "its replicas did not answer in time, or it is not primary any more"
cdef str MOVED = "it did not answer, and another member is primary now"


cdef class CallPart:
    """A call among many that are made together."""

    cdef int take(self, const wan_answer *answer) except -1:
        self.got = answer[0]
        self.payload = PyBytes_FromStringAndSize(<const char *>(answer + 1), answer.length)
        return 0

    cdef bint wait(self, uint64_t until_us) except *:
        """Waits for the answer. True: a signal may have come; wait again."""
        cdef int state
        if self.trouble is None:
            with nogil:
                self.line.flush(until_us)
                state = self.line.wait(self.slot, until_us)
            if state == CALL_INTERRUPTED:
                return True
            if state == CALL_ANSWERED:
                self.take(<const wan_answer *>self.slot.answer.bytes)
            elif state == CALL_LATE:
                self.trouble = "late", self.head.epoch, "it did not answer", b""
            else:
                self.trouble = "broken", self.head.epoch, self.line.why, b""
        self.let_go()
        return False

    cdef int let_go(self) except -1:
        """Returns the slot and the connection."""
        cdef CallLine line = self.line
        if line is None:
            return 0
        if self.slot != NULL:
            with nogil:
                line.free(self.slot)
        self.slot, self.line = NULL, None
        line.leave()
        return 0


@cython.no_gc_clear      # `__dealloc__` uses the route and the connection.
cdef class CallSteps:
    """A read (`operation` is None) or a change through a route, whose owner makes the attempts: for drivers without
    threads.

    `began_us`: when the caller began. The other arguments are as for `CallRoute.read` and `CallRoute.change`."""

    def __cinit__(self, CallRoute route not None, operation, key, value, event_id, uint64_t began_us,
                  Condition condition_=None):
        cdef encoded encoded_key
        self.route, self.condition_, self.began_us, self.key = route, condition_, began_us, key
        self.is_read = operation is None
        if self.is_read:
            _key_holder = encode_key(key, &encoded_key)
            self.packed = PyBytes_FromStringAndSize(<const char *>encoded_key.data, encoded_key.length)
            begin(&self.head, WAN_CALL_GET, route.state,
                  wan_key_hash(encoded_key.data, encoded_key.length, encoded_key.form))
            self.head.form = encoded_key.form
        else:
            route.slots.take(&self.call)
            self.packed = route.begin_change(&self.head, &self.call, operation, key, value, None, event_id, condition_,
                                             0)

    def __dealloc__(self):
        self.let_go()
        self.end()

    cdef int end(self) except -1:
        """Ends the call: the slot is free for the next call."""
        if self.call.caller:
            self.route.slots.give(self.call)
            self.call.caller = 0
        return 0

    cdef int let_go(self) except -1:
        if self.slot != NULL:
            with nogil:
                self.line.free(self.slot)
            self.slot = NULL
        return 0

    @property
    def bucket(self):
        return self.head.bucket

    @property
    def in_doubt(self):
        """Whether an attempt may have made the change."""
        return self.since != 0

    @property
    def until_us(self):
        """The deadline of the call."""
        return self.began_us + self.route.limit_us

    def send(self, CallLine line not None, uint64_t epoch, uint64_t left_us):
        """Lays out the next attempt on a connection. `epoch`: 0 if the connection leads to this member itself.
        `left_us`: the time that the caller still waits. Returns whether the attempt is under way; if not, `trouble` has
        the reason."""
        cdef const void *expected = NULL
        cdef const char *packed
        cdef uint64_t packed_length, length = 0, known = epoch or self.route.state.epoch_of(self.head.bucket)
        cdef int state = CALL_NOT_SENT
        if self.condition_ is not None:
            expected, length = self.condition_.wanted.value, self.condition_.wanted.length
        self.let_go()
        self.line, self.before, self.head.epoch = line, self.since, epoch
        self.head.within = wan_call_within(left_us)
        mark_repeat(&self.head, self.before)
        packed, packed_length = PyBytes_AS_STRING(self.packed), <uint64_t>PyBytes_GET_SIZE(self.packed)
        with nogil:
            self.slot = line.take_slot(0)
            if self.slot != NULL:
                state = line.submit(self.slot, &self.head, packed, packed_length, expected, length)
        if state == CALL_NOT_SENT:
            self.trouble = self.route.judge(&self.head, state, &self.got, None, line, self.before, &self.since,
                                            self.key)
            return False
        self.since = 0 if self.is_read else self.before or known
        return True

    def take(self):
        """Looks for the answer. True: the call has ended, with `result`. False: the attempt has ended, with `trouble`.
        None: the attempt is under way. Raises the error in the answer."""
        cdef const wan_answer *answer
        cdef int state = self.slot.state
        cdef bytes payload = None
        if state == CALL_WAITS:
            return None
        if state == CALL_ANSWERED:
            answer = <const wan_answer *>self.slot.answer.bytes
            self.got = answer[0]
            payload = PyBytes_FromStringAndSize(<const char *>(answer + 1), answer.length)
        self.let_go()
        self.trouble = self.route.judge(&self.head, state, &self.got, payload, self.line, self.before,
                                        &self.since, self.key)
        if self.trouble is not None:
            return False
        self.end()
        if self.is_read:
            self.result = read_of(&self.got, payload)
        else:
            self.result = self.route.outcome_of(&self.got, payload, self.condition_)
        return True

    @property
    def found(self):
        """The value that a conditional change found, as an object. None: the change found no value."""
        return None if self.condition_ is None else self.condition_.found()


cdef tuple read_of(const wan_answer *got, bytes payload):
    return got.flags & WAN_ANSWER_LIVE != 0, got.form, payload if got.flags & WAN_ANSWER_VALUE else None


cdef void mark_repeat(wan_call *head, uint64_t since) noexcept nogil:
    """Marks the head of a change as a repeat if an earlier attempt may have made the change since an epoch."""
    if since and wan_call_changes(head.kind):
        head.flags |= WAN_CALL_REPEAT
        head.since = since


cdef uint16_t within(uint64_t until_us) noexcept nogil:
    """The field `within` of a call that leaves now."""
    cdef uint64_t now = wan_monotonic_us()
    return wan_call_within(until_us - now if until_us > now else 0)


cdef void begin(wan_call *head, int kind, CompiledRegion state, uint64_t hash) noexcept:
    memset(head, 0, sizeof(wan_call))
    head.kind, head.region = <uint8_t>kind, state.region.number
    head.bucket = wan_table_bucket(&state.region.table, hash).number


cdef void identify(wan_call *head, const wan_call_identity *call) noexcept:
    """Writes the identity of a call into the head."""
    head.caller, head.slot, head.number = call.caller, call.slot, call.number


cdef int check_callback(uint32_t length) except -1:
    if length > WAN_CALLBACK_BYTES_MAX:
        from pywan.errors import EventTooLargeError
        raise EventTooLargeError(f"a callback argument of {length} bytes is over the limit of"
                                 f" {WAN_CALLBACK_BYTES_MAX} bytes; nothing was stored")
    return 0


def unpack_items(bytes payload not None):
    """The items in the answer to a scan: a list of (key, whether the key has a value, form, bytes of the value). The
    form is None if the answer left out the value."""
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(payload)
    cdef uint64_t at = 0, length = PyBytes_GET_SIZE(payload)
    cdef const wan_call_item *item
    if wan_call_items_check(data, length) != WAN_OK:
        from pywan.errors import ProtocolError
        raise ProtocolError((<bytes>wan_detail).decode("utf-8", "replace"))
    items = []
    while at < length:
        item = <const wan_call_item *>(data + at)
        key = show(item.key_form, data + at + sizeof(wan_call_item), item.key_length)
        if item.value_form == WAN_CALL_VALUE_NONE:
            items.append((key, False, None, None))
        elif item.value_form == WAN_CALL_VALUE_LEFT_OUT:
            items.append((key, True, None, None))
        else:
            items.append((key, True, item.value_form,
                          payload[at + sizeof(wan_call_item) + item.key_length:
                                  at + sizeof(wan_call_item) + item.key_length + item.value_length]))
        at += wan_call_item_size(item)
    return items


def call_for_listeners():
    """Marks the calls of the thread as calls of listeners from now on, as if the thread served a call. Calls of
    listeners do not wait for memory, because pending notifications are a part of the used memory."""
    global wan_call_depth
    wan_call_depth = 1


def call_depth():
    """The number of nested calls that the thread is serving."""
    return wan_call_depth


CALL_DEPTH_MAX = WAN_CALL_DEPTH_MAX
