# Owns how a queue gets events of a stream that are older than its feeding from the queue of another member: what is
# copied out there, and what is put back here. An event is its sequence in 8 bytes, and its record.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from pywan._core.c_base cimport *
from pywan._core.c_record cimport wan_record, wan_record_check, wan_record_length
from pywan._core.c_store cimport *
from pywan._core.queue.queue cimport gateway_queue, queue_can_read, queue_note_copy


cdef wan_status older_copy(gateway_queue *gateway, uint32_t number, uint64_t after, uint64_t most,
                           uint64_t *through, wan_buffer *events) noexcept nogil:
    """Copies the events behind `after` up to *through: about `most` bytes of them, and one at least if there is one.
    *through: the last one, if there are more. Under the lock. WAN_NO_MEMORY; WAN_IO: a file cannot be read."""
    cdef const wan_partition *partition = &gateway.queue.partitions[number]
    cdef uint64_t sequence = max(after, partition.removed), end = min(through[0], partition.appended)
    cdef const wan_record *record
    cdef uint32_t length
    while sequence < end:
        sequence = wan_queue_next_live(partition, sequence + 1, end)
        if sequence == 0:
            break
        if events.used >= most:
            through[0] = sequence - 1
            break
        if not queue_can_read(gateway, number, sequence):
            return WAN_IO
        record = wan_queue_at(&gateway.queue, partition, sequence)
        length = wan_record_length(record)
        if wan_buffer_reserve(events, sizeof(sequence) + length) != WAN_OK:
            wan_note(WAN_NO_MEMORY, "no memory for a copy of queued events")
            return WAN_NO_MEMORY
        wan_buffer_put(events, &sequence, sizeof(sequence))
        wan_buffer_put(events, record, length)
    return WAN_OK


cdef wan_status older_take(gateway_queue *gateway, uint32_t number, uint8_t *events, uint64_t bytes) noexcept nogil:
    """Puts such events into a partition that lacks them and reaches back behind them. What is known stays, and what has
    left. The records get this member's number of the region. Under the lock. Not WAN_OK: those before the one that
    failed are in the queue; WAN_CORRUPT: they are not what `older_copy` makes, or the partition does not lack them."""
    cdef wan_partition *partition = &gateway.queue.partitions[number]
    cdef wan_record *record
    cdef uint64_t sequence, at = 0, before
    cdef wan_status status = WAN_OK
    while status == WAN_OK and at < bytes:
        if bytes - at <= sizeof(sequence):
            wan_note(WAN_CORRUPT, "a queued event is cut off: %llu bytes are left", <unsigned long long>(bytes - at))
            return WAN_CORRUPT
        memcpy(&sequence, events + at, sizeof(sequence))
        at += sizeof(sequence)
        if sequence == 0 or sequence > partition.lacks:
            wan_note(WAN_CORRUPT, "a queued event has sequence %llu, and those through %llu are lacking",
                     <unsigned long long>sequence, <unsigned long long>partition.lacks)
            return WAN_CORRUPT
        status = wan_record_check(events + at, bytes - at)
        if status != WAN_OK:
            return status
        record = <wan_record *>(events + at)
        record.region = partition.region
        at += wan_record_length(record)
        before = gateway.queue.events + gateway.queue.conflated
        status = wan_queue_restore(&gateway.queue, number, sequence, record)
        if gateway.queue.events + gateway.queue.conflated > before:     # It was not known, and may replace another one.
            queue_note_copy(gateway, record)
            gateway.counts.queued += 1
            gateway.counts.received += 1
    return status
