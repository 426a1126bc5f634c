# Owns the course of a call through the user's Python: a change, a row, or an event of a remote site about which a
# callback or a filter is asked, with the identities and the deadline of the call.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy
from cpython.bytes cimport PyBytes_FromStringAndSize
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_session cimport *
from pywan._core.region.apply_event cimport ASKED_NOT_PRIMARY, ASKED_LOST, EVENT_LOST, EVENT_NOT_TAKEN
from pywan._core.region.compiled_region cimport CompiledRegion
from pywan._core.values.tagged cimport Encoded

cdef tuple NOT_MADE = ("not primary", "in doubt")     # The call goes on at the next primary.
cdef tuple CONDITIONS = ("", "absent", "value", "equal", "there")
cdef tuple OUTCOMES = ("created", "updated", "destroyed", "missing", "lost", "ask", "no memory", "unmet", "same",
                       "forgotten")


cdef class CallCallbacks(CallRoom):
    """A session with calls of callbacks."""

    cdef uint64_t deadline(self) noexcept:
        """The deadline of the present call, on the monotonic clock."""
        cdef uint64_t now = self.work_us()
        if now == 0:                # The member's own call: no driver tells the time.
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
        """Applies an event of a remote site through the callbacks of the region. Returns as `region_apply_event`, when
        the event is replicated. EVENT_NOT_TAKEN with an answer: the answer has the reason."""
        cdef CompiledRegion state = self.states[call.region]
        cdef outer_call outer = self.begin_callbacks()
        try:
            raw = PyBytes_FromStringAndSize(<const char *>record, wan_record_length(record))
            # The object with the method for local changes also has the method for events.
            became = state.change_by_callbacks.__self__.apply_record(raw, (0, 0, bool(possible_duplicate), None))
            return {ASKED_LOST: EVENT_LOST, ASKED_NOT_PRIMARY: EVENT_NOT_TAKEN}.get(became, became)
        except BaseException as error:
            answer[0] = self.fail_with(call, error, 0)
            return EVENT_NOT_TAKEN
        finally:
            end_callbacks(outer)

    cdef outer_call begin_callbacks(self) noexcept:
        """Marks the thread's calls from now on as calls of callbacks: the calls go over connections of the next depth,
        and end with the outer call. Returns the argument of `end_callbacks`."""
        global wan_call_depth, wan_deadline_us
        cdef outer_call outer
        outer.depth, outer.deadline_us = wan_call_depth, wan_deadline_us
        wan_call_depth, wan_deadline_us = self.callback_depth, self.deadline()
        return outer

    cdef wan_answer *say_not_made(self, const wan_call *call, region_core *region, str outcome,
                                  uint64_t done) noexcept:
        """The answer to a change that lost the primary on the way through the callbacks. The client repeats the change
        at the next primary."""
        if outcome == "in doubt":
            return self.answer(call, WAN_ANSWER_IN_DOUBT, 0)
        return self.say_not_primary(call, region) if done == 0 else self.answer(call, WAN_ANSWER_NOT_PRIMARY, 0)

    cdef wan_answer *row_by_callbacks(self, const wan_call *call, region_core *region, const wan_record *record,
                                      uint64_t done, int *happened) noexcept nogil:
        """Returns NULL if the row was done, otherwise the answer with the reason."""
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
        """Makes a change through the callbacks of the region, with the identities of the event and of the call. `row`:
        the number of the row, for a call of many rows. Returns the name of the outcome."""
        cdef CompiledRegion state = self.states[call.region]
        cdef const char *value = <const char *>wan_record_value(record)
        cdef const char *callback = <const char *>wan_record_callback(record)
        cdef outer_call outer = self.begin_callbacks()
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
            end_callbacks(outer)


cdef void end_callbacks(outer_call outer) noexcept:
    global wan_call_depth, wan_deadline_us
    wan_call_depth, wan_deadline_us = outer.depth, outer.deadline_us
