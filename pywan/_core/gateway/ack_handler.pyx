# Owns the effect of an acknowledgement on a queue: applied events leave the queue, failed events are parked first, and
# the user's callbacks are told both.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport bsearch, qsort
from libc.string cimport memset
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *
from pywan._core.c_names cimport *
from pywan._core.c_record cimport *
from pywan._core.c_store cimport *
from pywan._core.queue.event_queue cimport EventQueue
from pywan._core.gateway.in_flight cimport flight
from pywan._core.queue.queue cimport queue_append_copy, queue_can_read, queue_apply_removal
from pywan._core.gateway.sender_callbacks cimport SenderCallbacks
from pywan._core.queue.queue_acknowledged cimport taken_event
from pywan._core.wire.session cimport Session
from pywan._core.base.status cimport detail_text, report_unraisable


cdef enum:
    COPIED_AT_ONCE = 64 << 10   # About so many bytes of acknowledged events are copied for the filters under one lock.


cdef struct parked_copy:
    # The position of the event that is still in the queue. A later timeline of a stream uses sequences again.
    uint64_t partition, timeline, sequence


cdef int copy_order(const void *a, const void *b) noexcept nogil:
    cdef const parked_copy *one = <const parked_copy *>a
    cdef const parked_copy *other = <const parked_copy *>b
    if one.partition != other.partition:
        return -1 if one.partition < other.partition else 1
    if one.timeline != other.timeline:
        return -1 if one.timeline < other.timeline else 1
    return -1 if one.sequence < other.sequence else one.sequence > other.sequence


cdef inline wan_partition *partition_of(AckHandler self, const flight *batch, uint32_t s) noexcept nogil:
    """Returns the partition of a section. NULL: the stream has begun a new timeline since the section was sent, and has
    new events. Under the queue's lock."""
    cdef wan_partition *partition = &self.gateway.queue.partitions[batch.section[s].partition]
    cdef bint is_known = partition.timeline == batch.timelines[s] and batch.section[s].through <= partition.peeked
    return partition if is_known else NULL


cdef inline uint32_t section_of(const flight *batch, const wan_failure *failure) noexcept nogil:
    """Returns the number of the section with the failure. `batch.sections`: no section has the failure."""
    cdef uint32_t s = 0
    while s < batch.sections and not (batch.section[s].partition == failure.partition
                                      and batch.section[s].first <= failure.sequence <= batch.section[s].through):
        s += 1
    return s


cdef class AckHandler:
    """Handles the acknowledgements of one dispatcher's batches, in the dispatcher's thread. `parked` takes failed
    events."""

    def __cinit__(self, EventQueue queue not None, EventQueue parked not None, SenderCallbacks callbacks not None):
        if parked.gateway.queue.partition_count < WAN_PARK_PARTITIONS:
            raise ValueError(f"queue {parked.name!r}: {parked.gateway.queue.partition_count} partitions; one for "
                             "parked events has"
                             f" {<int>WAN_PARK_PARTITIONS}, one per reason of failure")
        self.queue, self.parked, self.gateway, self.callbacks = queue, parked, queue.gateway, callbacks

    def __dealloc__(self):
        wan_buffer_close(&self.copies)

    cdef bint acknowledge(self, Session session, const flight *batch, const wan_failure *failures,
                          uint32_t failure_count) noexcept nogil:
        """Handles an acknowledged batch with these failures. `session` is kept alive while the user's Python runs.
        False: the rest of the batch is to be sent again. Either a failed event could not be parked, and no event was
        removed; or a stream began another timeline while its events were in flight, and the events stay."""
        cdef uint32_t s
        cdef wan_section *section
        cdef wan_partition *partition
        cdef uint64_t removed = 0
        cdef bint is_acknowledged = True
        if failure_count and not park(self, batch, failures, failure_count):
            return False
        if wan_flag_read(&self.callbacks.tells_acknowledged):
            self.callbacks.begin(session)
            tell_acknowledged(self, session, batch)
            self.callbacks.end(session)
        if self.alert_threshold_ms:
            note_late(self, batch)
        wan_lock_take(&self.gateway.lock)
        for s in range(batch.sections):
            section = &batch.section[s]
            partition = &self.gateway.queue.partitions[section.partition]
            if section.through <= partition.removed or section.through > partition.peeked:
                continue
            if partition.timeline != batch.timelines[s]:
                wan_note(WAN_CORRUPT,
                         "partition %u began timeline %llu while events of timeline %llu were on their way",
                         section.partition, <unsigned long long>partition.timeline,
                         <unsigned long long>batch.timelines[s])
                is_acknowledged = False
            else:
                removed += wan_queue_remove(&self.gateway.queue, section.partition, section.through)
                queue_apply_removal(self.gateway, section.partition)
        self.gateway.counts.distributed += removed
        self.gateway.counts.acknowledgements += 1
        self.gateway.counts.bytes_distributed += batch.bytes
        if batch.events:
            self.gateway.counts.batches_distributed += 1
        wan_lock_release(&self.gateway.lock)
        return is_acknowledged


cdef void note_late(AckHandler self, const flight *batch) noexcept nogil:
    cdef uint64_t now_ms = wan_now_ms(), late = 0, sequence
    cdef wan_store_span span
    cdef uint32_t s
    cdef wan_partition *partition
    wan_lock_take(&self.gateway.lock)
    for s in range(batch.sections):
        partition = partition_of(self, batch, s)
        if partition == NULL:
            continue
        sequence = max(batch.section[s].first, partition.removed + 1) - 1
        span = wan_queue_span(&self.gateway.queue, batch.section[s].partition, sequence + 1, batch.section[s].through)
        if wan_store_check(self.gateway.queue.store, &span) != WAN_OK:
            continue
        while True:
            sequence = wan_queue_next_live(partition, sequence + 1, batch.section[s].through)
            if sequence == 0:
                break
            if wan_stamp_ms(wan_queue_at(&self.gateway.queue, partition,
                                         sequence).stamp) + self.alert_threshold_ms < now_ms:
                late += 1
    self.gateway.counts.exceeding_alert_threshold += late
    wan_lock_release(&self.gateway.lock)


cdef wan_record *failed_record(AckHandler self, const flight *batch, const wan_failure *failure) noexcept nogil:
    # Returns the record of a failure. NULL: the event is not in this batch, or is not queued any more. An earlier,
    # interrupted acknowledgement has parked the event, or the stream has begun a new timeline. Under the queue's lock.
    cdef uint32_t s = section_of(batch, failure)
    cdef const wan_partition *partition = NULL
    if s < batch.sections:
        partition = partition_of(self, batch, s)
    if partition == NULL or failure.sequence <= partition.removed:
        return NULL
    return wan_queue_at(&self.gateway.queue, partition, failure.sequence)


cdef bint park(AckHandler self, const flight *batch, const wan_failure *failures, uint32_t count) noexcept nogil:
    """Parks the failed events, and removes each event from the queue after parking. If both queues share a disk store,
    the function parks in groups, so that each group frees space for the next."""
    cdef uint64_t most = (self.parked.gateway.durable.committer.record_max // 2 if self.parked.gateway.durable != NULL
                          else NO_LIMIT)
    cdef uint32_t begin, n = 0
    self.copies_before = self.copies.count
    if self.copies_before:
        qsort(self.copies.bytes, self.copies_before, sizeof(parked_copy), copy_order)
    while n < count:
        begin = n
        if not park_copies(self, batch, failures, count, &n, most):
            return False
        if self.parked.gateway.durable != NULL and not parked_are_durable(self):
            return False
        leave_parked(self, batch, failures, begin, n)
    return True


cdef bint park_copies(AckHandler self, const flight *batch, const wan_failure *failures, uint32_t count, uint32_t *n,
                      uint64_t most) noexcept nogil:
    """Parks copies of up to `most` bytes, or of one event. *n: the number behind the last copy. False: the queue is
    full."""
    cdef uint64_t copied = 0
    cdef uint32_t length
    cdef wan_record *record
    cdef parked_copy copy
    cdef wan_event_name name
    cdef bint readable
    while n[0] < count:
        wan_lock_take(&self.gateway.lock)
        record = failed_record(self, batch, &failures[n[0]])
        readable = record == NULL or queue_can_read(self.gateway, failures[n[0]].partition, failures[n[0]].sequence)
        if record != NULL and readable:
            wan_name_event(&name, record)
        wan_lock_release(&self.gateway.lock)
        if not readable:        # The connection ends with the reason. A new attempt stops at this file too.
            return False
        if record != NULL:
            length = wan_record_length(record)
            if copied and copied + length > most:
                break
            copy.partition, copy.sequence = failures[n[0]].partition, failures[n[0]].sequence
            copy.timeline = batch.timelines[section_of(batch, &failures[n[0]])]
            if not is_copied(self, &copy):
                if (wan_buffer_reserve(&self.copies, sizeof(copy)) != WAN_OK
                        or queue_append_copy(self.parked.gateway, wan_parked_partition(failures[n[0]].reason), record,
                                             False, 0) != WAN_OK):
                    self.callbacks.tell_failure(failures[n[0]].partition, failures[n[0]].sequence, 0xffff, &name)
                    return False
                wan_buffer_put(&self.copies, &copy, sizeof(copy))
            copied += length
        n[0] += 1
    return True


cdef bint is_copied(AckHandler self, const parked_copy *wanted) noexcept nogil:
    """Returns whether an earlier attempt, which waited for the disk in vain, has parked a copy. Otherwise each attempt
    would add more copies, until the disk is full."""
    return (self.copies_before
            and bsearch(wanted, self.copies.bytes, self.copies_before, sizeof(parked_copy), copy_order) != NULL)


cdef void leave_parked(AckHandler self, const flight *batch, const wan_failure *failures, uint32_t begin,
                       uint32_t end) noexcept nogil:
    """Removes parked events from the queue. All events before the last parked event leave too: the earlier events were
    applied, or parked."""
    cdef uint32_t n, last = end
    cdef wan_record *record
    cdef wan_event_name name
    cdef const wan_partition *partition
    wan_buffer_empty(&self.copies)
    self.copies_before = 0
    for n in range(begin, end):
        wan_lock_take(&self.gateway.lock)
        record = failed_record(self, batch, &failures[n])
        if record != NULL:
            memset(&name, 0, sizeof(name))
            if queue_can_read(self.gateway, failures[n].partition, failures[n].sequence):
                wan_name_event(&name, record)
            wan_queue_make_hole(
                &self.gateway.queue, failures[n].partition, failures[n].sequence,
                # Other members with the stream keep the event too. A log has the reason alone.
                WAN_HOLE_PARKED if self.gateway.durable != NULL else
                WAN_HOLE_PARKED_FOR(wan_parked_reason(wan_parked_partition(failures[n].reason))))
            self.gateway.counts.parked += 1
            last = n
        wan_lock_release(&self.gateway.lock)
        if record != NULL:
            self.callbacks.tell_failure(failures[n].partition, failures[n].sequence, failures[n].reason, &name)
    # If the filters are told of acknowledged events, the events stay: the filters are told the whole batch at once.
    if last < end and not wan_flag_read(&self.callbacks.tells_acknowledged):
        wan_lock_take(&self.gateway.lock)
        partition = partition_of(self, batch, section_of(batch, &failures[last]))
        if partition != NULL and failures[last].sequence <= partition.peeked:
            self.gateway.counts.distributed += wan_queue_remove(&self.gateway.queue, failures[last].partition,
                                                                failures[last].sequence)
        wan_lock_release(&self.gateway.lock)


cdef bint parked_are_durable(AckHandler self) noexcept with gil:
    try:
        self.parked.wait_durable(10.0)
        return True
    except BaseException as error:
        reason = str(error).encode("utf-8", "replace")
        wan_note(WAN_CORRUPT, "the parked events do not get onto the disk: %s", <const char *>reason)
        return False


cdef wan_status copy_acknowledged(AckHandler self, const flight *batch, uint32_t s, uint64_t *sequence,
                                  wan_buffer *copied) noexcept nogil:
    """Copies events of section `s` behind `sequence`, as taken_event: all, or about COPIED_AT_ONCE bytes, so that
    others wait no longer for the lock. *sequence: the last one; 0: all were copied. The failed events were parked, and
    are holes by now. WAN_NO_MEMORY, WAN_IO: the event *sequence cannot be copied; the detail says why."""
    cdef wan_partition *partition
    cdef const wan_record *record
    cdef taken_event head
    cdef uint64_t end = copied.used + COPIED_AT_ONCE
    cdef wan_status status = WAN_OK
    memset(&head, 0, sizeof(head))
    wan_lock_take(&self.gateway.lock)
    partition = partition_of(self, batch, s)
    if partition == NULL:
        sequence[0] = 0
    while sequence[0] and copied.used < end and status == WAN_OK:
        sequence[0] = wan_queue_next_live(partition, max(sequence[0], partition.removed + 1),
                                          batch.section[s].through)
        if sequence[0] == 0:
            break
        if not queue_can_read(self.gateway, batch.section[s].partition, sequence[0]):
            status = WAN_IO
            break
        record = wan_queue_at(&self.gateway.queue, partition, sequence[0])
        head.partition, head.sequence, head.length = (batch.section[s].partition, sequence[0],
                                                      wan_record_length(record))
        head.possible_duplicate = (sequence[0] <= partition.duplicate_through
                                   or record.flags & WAN_FLAG_REPEATED != 0)
        status = wan_buffer_reserve(copied, sizeof(head) + head.length)
        if status == WAN_OK:
            wan_buffer_put(copied, &head, sizeof(head))
            wan_buffer_put(copied, record, head.length)
            sequence[0] += 1
    wan_lock_release(&self.gateway.lock)
    return status


cdef void tell_acknowledged(AckHandler self, Session session, const flight *batch) noexcept nogil:
    cdef wan_buffer copied
    cdef uint64_t sequence = 0
    cdef uint32_t s = 0
    cdef wan_status status = WAN_OK
    memset(&copied, 0, sizeof(copied))
    while s < batch.sections and status == WAN_OK:
        sequence = batch.section[s].first
        while sequence and status == WAN_OK:
            status = copy_acknowledged(self, batch, s, &sequence, &copied)
        if status == WAN_OK:
            s += 1
    if copied.used or status != WAN_OK:
        tell_copied(self, session, &copied, status, batch.section[s].partition if s < batch.sections else 0, sequence)
    wan_buffer_close(&copied)


cdef void tell_copied(AckHandler self, Session session, const wan_buffer *copied, wan_status status,
                      uint32_t partition, uint64_t sequence) noexcept with gil:
    cdef str why = detail_text() if status != WAN_OK else None
    try:
        self.callbacks.tell_acknowledged(session, copied)
        if why is not None:
            from pywan.errors import DiskError
            raise DiskError(f"not told of events from {partition}/{sequence} on: {why}")
    except BaseException as error:
        report_unraisable("after_acknowledgement", error)
