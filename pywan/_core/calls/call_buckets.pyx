# Owns the serving of calls about whole buckets: the number of entries, the scan, and the clear.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from pywan._core.c_base cimport *
from pywan._core.c_names cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_session cimport *
from pywan._core.calls.call_keys cimport attempt_of
from pywan._core.region.put cimport check_path, region_relieve
from pywan._core.region.region_state cimport region_core
from pywan._core.region.region_walk cimport region_change_here
from pywan._core.wire.stream cimport buffer_reserve


cdef class BucketCalls(KeyCalls):
    """A session for calls about whole buckets. The methods return the answer, or NULL if there is no memory for an
    answer."""

    def __dealloc__(self):
        wan_buffer_close(&self.keys)

    cdef wan_answer *do_count(self, region_core *region, const wan_call *call) noexcept nogil:
        cdef uint64_t at = self.last_answer(), local_fence = local_fence_of(region, call)
        cdef wan_answer *answer = self.answer(call, WAN_ANSWER_DONE, 0)
        if answer == NULL:
            return NULL
        answer.number = wan_table_bucket_count(&region.table, &region.table.buckets[call.bucket]).entries
        return answer if self.wait_for_bucket(region, call, local_fence, at) else NULL

    cdef wan_answer *do_scan(self, region_core *region, const wan_call *call) noexcept nogil:
        cdef const wan_bucket *bucket = &region.table.buckets[call.bucket]
        cdef uint64_t at = self.last_answer(), local_fence = local_fence_of(region,
                                                                            call), number = call.shard, slot, whole
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
        return answer if self.wait_for_bucket(region, call, local_fence, at) else NULL

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
        if region.changelog != NULL:
            return self.clear_shared(region, call)
        if call.flags & WAN_CALL_REPEAT:
            return self.say_not_remembered(call)
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
            return self.fail_status(call, status, cleared)
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
            status = wan_clear_make(&region.table, region.changelog, call.bucket, region.site, &attempt, &made,
                                    &cleared)
        wan_table_bucket_release(&region.table, bucket)
        if status == WAN_NOT_PRIMARY:
            return self.say_not_primary(call, region)
        if status != WAN_OK:
            return self.fail_status(call, status, 0)
        answer = self.answer(call, WAN_ANSWER_DONE, 0)
        if answer == NULL:
            return NULL
        answer.number = cleared
        return answer if self.wait_for(region, call, made.local_fence, made.sequence, at, True) else NULL
