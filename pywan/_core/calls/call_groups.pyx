# Owns the serving of calls with many rows, and with many events of remote sites. The changes of a call enter the bucket
# in groups, each group under a single hold of the bucket's locks.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_session cimport *
from pywan._core.calls.call_keys cimport attempt_of, prepare
from pywan._core.region.apply_event cimport (
    EVENT_LOST, EVENT_NOT_TAKEN, change_from_event, event_became, is_event_ahead)
from pywan._core.region.entry_locks cimport CHANGES_PER_HOLD
from pywan._core.region.put cimport origin_from_record, region_change, region_recall
from pywan._core.region.region_state cimport origin, region_core
from pywan._core.region.step_group cimport (
    change_group, group_begin, records_ahead, records_begin, records_fetch, region_change_group)


cdef struct events_seen:
    # The stamps of the events that were checked.
    uint64_t now_ms             # The time, as `is_event_ahead` keeps the time.
    uint64_t highest            # The highest stamp of an event that may be applied.
    uint8_t is_given            # A caller gave the highest stamp.


cdef class GroupCalls(BucketCalls):
    """A session for calls of many changes. The methods return the answer, or NULL if there is no memory for an
    answer."""

    def __dealloc__(self):
        wan_buffer_close(&self.failed)

    cdef wan_answer *do_rows(self, region_core *region, const wan_call *call) noexcept nogil:
        cdef const wan_record *record = <const wan_record *>(call + 1)
        cdef uint64_t at = self.last_answer(), applied = 0, local_fence = 0, sequence = 0
        cdef uint32_t n, made
        cdef wan_answer *answer
        cdef wan_status status = WAN_OK
        cdef bint touched = False
        cdef int happened
        cdef records_ahead ahead
        cdef change_group group
        if call.flags & WAN_CALL_REPEAT and region.changelog == NULL:
            return self.say_not_remembered(call)
        records_begin(&ahead, record, call.count)
        group_begin(&group, 0)
        while ahead.done < call.count:
            if group.first == group.count and not take_rows(region, call, record, &ahead, &group):
                answer = self.say_wrong_bucket(call, ahead.done)
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
                elif status == WAN_NOT_PRIMARY:
                    answer = (self.say_not_primary(call, region) if ahead.done == 0
                              else self.answer(call, WAN_ANSWER_NOT_PRIMARY, 0))
                    break
                elif status != WAN_OK:
                    answer = self.fail_status(call, status, ahead.done)
                    break
                ahead.done += 1
            for n in range(group.first, group.first + made):
                record = next_record(record)
                if status == WAN_SLOW:      # The callbacks made the change, and it is replicated.
                    continue
                if group.changes[n].recalled:       # An earlier attempt made the row, and the rows before.
                    applied = group.changes[n].recalled
                else:
                    applied += group.outcomes[n] <= WAN_DESTROYED
                # A row without effect waits for the sequence that the row saw. If the local fence changes, the result
                # of the earlier rows is unknown.
                if not touched:
                    local_fence = group.changes[n].local_fence
                sequence = max(sequence, group.changes[n].sequence)
                touched = True
            group.first += made
        else:
            answer = self.answer(call, WAN_ANSWER_DONE, 0)
        if answer == NULL:
            return NULL
        answer.done = ahead.done
        if answer.status != WAN_ANSWER_NOT_PRIMARY:
            answer.number = applied
        return answer if not touched or self.wait_for(region, call, local_fence, sequence, at, applied > 0) else NULL

    cdef wan_status change_row(self, region_core *region, change_group *group) noexcept nogil:
        """Makes the next row of a group alone. WAN_SLOW: the callbacks have to be asked, since no attempt made the
        row."""
        cdef wan_change *change = &group.changes[group.first]
        cdef const origin *from_ = &group.origins[group.first]
        cdef wan_outcome *outcome = &group.outcomes[group.first]
        cdef wan_shard *shard
        cdef wan_status status = region_change(region, change, from_, NULL, outcome)
        if status == WAN_SLOW and region.changelog != NULL:
            shard = wan_table_shard(&region.table, change.hash)
            wan_lock_take(&shard.lock)
            status = region_recall(region, change, from_, outcome)
            wan_lock_release(&shard.lock)
            status = WAN_SLOW if status == WAN_EMPTY else status
        return WAN_NO_MEMORY if status == WAN_OK and outcome[0] == WAN_OUT_OF_MEMORY else status

    cdef wan_answer *do_events(self, region_core *region, const wan_call *call) noexcept nogil:
        """Applies events of remote sites. An event that cannot be applied fails alone. If another member has become
        primary, all events are applied again at that member: versions detect the events that were applied before."""
        cdef const wan_record *record = <const wan_record *>(call + 1)
        cdef const uint64_t *marks = NULL
        cdef uint64_t at = self.last_answer(), applied = 0, local_fence = 0, sequence = 0
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
                answer = self.say_wrong_bucket(call, 0)
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
            if status == WAN_SLOW:          # A filter is asked; the event is replicated when the call returns.
                answer = NULL
                became = self.event_in_python(call, record, group.origins[group.first].possible_duplicate, &answer)
                if became == EVENT_NOT_TAKEN:
                    if answer == NULL:
                        answer = self.say_not_primary(call, region)
                    break
                conflicts += became == EVENT_LOST
                if became > 0 and not self.note_failed(ahead.done - 1, <uint32_t>became):
                    return NULL
            elif status != WAN_OK:
                answer = (self.say_not_primary(call, region) if status == WAN_NOT_PRIMARY
                          else self.fail_status(call, status, 0))
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
                    local_fence, touched = wan_read(&change.local_fence), True
                sequence = max(sequence, wan_read(&change.sequence))
        else:
            answer = self.say_applied(call, applied, conflicts)
            if answer != NULL and touched and not self.wait_for(region, call, local_fence, sequence, at, True):
                answer = NULL
        if seen.highest:
            wan_clock_see(region.clock, seen.highest)
            if not seen.is_given:
                wan_clock_receive(region.clock, seen.highest)
        wan_add_shared(&region.applied, applied)
        wan_buffer_trim(&self.failed, WAN_BUFFER_KEPT_BYTES)
        return answer

    cdef bint note_failed(self, uint32_t number, uint32_t reason) noexcept nogil:
        """Notes that an event of EVENTS failed. False: no memory."""
        cdef wan_call_failure failure
        failure.record, failure.reason = number, reason
        return wan_buffer_add(&self.failed, &failure, sizeof(failure)) == WAN_OK

    cdef wan_answer *say_applied(self, const wan_call *call, uint64_t applied, uint32_t conflicts) noexcept nogil:
        """The answer to EVENTS after all events were tried. `failed` has the failed events."""
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


cdef const wan_record *next_record(const wan_record *record) noexcept nogil:
    return <const wan_record *>(<const uint8_t *>record + wan_record_length(record))


cdef bint take_rows(region_core *region, const wan_call *call, const wan_record *record, records_ahead *ahead,
                    change_group *group) noexcept nogil:
    """Moves the next rows of a call into a group, from `record` up to the first row of another bucket. False: `record`
    itself is a row of another bucket."""
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


cdef bint take_events(region_core *region, const wan_call *call, const wan_record *record, const uint64_t *marks,
                      records_ahead *ahead, events_seen *seen, change_group *group) noexcept nogil:
    """Moves the next events of a call into a group, from `record` up to the first event of another bucket, or with a
    stamp too far ahead. If the stamp of `record` is too far ahead, the group is empty. False: `record` belongs to
    another bucket."""
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
