# Owns the serving of calls about a single key: the read, and the change, with or without a condition.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_session cimport *
from pywan._core.region.put cimport region_change, region_change_if, region_recall
from pywan._core.region.region_state cimport condition, origin, region_core


cdef class KeyCalls(CallCallbacks):
    """A session for calls about a single key. The methods return the answer, or NULL if there is no memory for an
    answer."""

    def __dealloc__(self):
        wan_buffer_close(&self.found)

    cdef wan_answer *do_get(self, region_core *region, const wan_call *call) noexcept nogil:
        cdef const uint8_t *key = <const uint8_t *>(call + 1)
        cdef uint64_t hash = wan_key_hash(key, call.length, call.form), at = self.last_answer(), sequence = 0
        cdef wan_shard *shard = wan_table_shard(&region.table, hash)
        cdef wan_entry *entry
        cdef wan_answer *answer
        cdef uint64_t local_fence = 0
        if wan_table_bucket(&region.table, hash).number != call.bucket:
            return self.say_wrong_bucket(call, 0)
        if region.changelog != NULL:
            local_fence = wan_read(&region.changelog.buckets[call.bucket].local_fence)
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
        if region.changelog != NULL:
            sequence = region.changelog.shard_last[shard - region.table.shards]
        wan_lock_release(&shard.lock)
        return answer if self.wait_for(region, call, local_fence, sequence, at, False) else NULL

    cdef wan_answer *do_change(self, region_core *region, const wan_call *call) noexcept nogil:
        cdef const wan_record *record = <const wan_record *>(call + 1)
        cdef uint32_t used = wan_record_length(record)
        cdef uint64_t at = self.last_answer()
        cdef wan_change change
        cdef origin from_
        cdef condition wanted
        cdef wan_outcome outcome = WAN_LOST
        cdef wan_shard *shard
        cdef wan_answer *answer
        cdef wan_status status
        prepare(region, record, wan_key_hash(wan_record_key(record), record.key_length, record.key_form),
                wan_clock_take(region.clock, wan_clock_now_ms(region.clock), 1), &change, &from_)
        if wan_table_bucket(&region.table, change.hash).number != call.bucket:
            return self.say_wrong_bucket(call, 0)
        attempt_of(call, &from_.attempt)
        from_.attempt.waits = self.is_alone(call)
        if call.flags & WAN_CALL_REPEAT and region.changelog == NULL:
            return self.say_not_remembered(call)
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
        if status == WAN_SLOW and region.changelog != NULL:     # The callbacks are not asked about a repeat.
            shard = wan_table_shard(&region.table, change.hash)
            wan_lock_take(&shard.lock)
            status = region_recall(region, &change, &from_, &outcome)
            wan_lock_release(&shard.lock)
            status = WAN_SLOW if status == WAN_EMPTY else status
            self.found = wanted.found if call.condition else self.found
        if status == WAN_SLOW:
            return self.change_by_callbacks(call, region, record)
        if status == WAN_NOT_PRIMARY:
            return self.say_not_primary(call, region)
        if status == WAN_OK and outcome == WAN_OUT_OF_MEMORY:
            status = WAN_NO_MEMORY
        if status != WAN_OK:
            return self.fail_status(call, status, 0)
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
        # A change without effect has seen the value of the key, as a read does.
        if not self.wait_for(region, call, change.local_fence, change.sequence, at, outcome <= WAN_DESTROYED):
            return NULL
        return answer
