# Owns how events leave a queue that another member of the site has sent. Those that were acknowledged, and that this
# member's callbacks are to hear of, are copied out, a few at a time. Those that were parked are parked here too.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_store cimport *
from pywan._core.c_system cimport *
from pywan._core.queue.queue cimport gateway_queue, queue_append_copy, queue_can_read, queue_refresh_ready


cdef enum:
    TAKEN_BYTES = 1 << 20       # Of the records that are taken together, but for the last one.


cdef void acknowledged_wait(gateway_queue *gateway) noexcept nogil:
    """Waits until there may be such events."""
    cdef pollfd file
    cdef uint64_t drained
    file.fd, file.events, file.revents = gateway.acknowledged_file, POLLIN, 0
    poll(&file, 1, -1)
    eventfd_read(gateway.acknowledged_file, &drained)


cdef wan_status take_of(gateway_queue *gateway, uint32_t number, uint32_t count, wan_buffer *taken) noexcept nogil:
    """Takes the events of one partition, until there are `count` or enough bytes. WAN_NO_MEMORY, WAN_IO: the last one
    that was taken is lost for the callbacks; the detail says why. Under the lock."""
    cdef wan_partition *partition = &gateway.queue.partitions[number]
    cdef uint64_t end = min(partition.removed_through, partition.stable)    # As `queue_remove_or_keep`.
    # Nobody is told of events that left for a reason that is not known.
    cdef uint64_t sequence = max(partition.removed, min(partition.unsure_through, end))
    cdef const wan_record *record
    cdef taken_event head
    cdef wan_status status = WAN_OK
    memset(&head, 0, sizeof(head))
    while status == WAN_OK and taken.count < 2 * count and taken.used < TAKEN_BYTES:
        head.sequence = wan_queue_next_live(partition, sequence + 1, end)
        if head.sequence == 0:
            sequence = end
            break
        sequence = head.sequence
        if not queue_can_read(gateway, number, sequence):
            status = WAN_IO
            break
        record = wan_queue_at(&gateway.queue, partition, sequence)
        head.partition, head.length = number, wan_record_length(record)
        head.possible_duplicate = sequence <= partition.duplicate_through or record.flags & WAN_FLAG_REPEATED
        status = wan_buffer_reserve(taken, sizeof(head) + head.length)
        if status == WAN_OK:
            wan_buffer_put(taken, &head, sizeof(head))
            wan_buffer_put(taken, record, head.length)
    wan_queue_apply_removal(&gateway.queue, number, sequence)
    return status


cdef wan_status acknowledged_take(gateway_queue *gateway, uint32_t count, wan_buffer *taken) noexcept nogil:
    """Takes up to `count` events out of the queue, as taken_event. If more may be there, the next `acknowledged_wait`
    returns at once. Not WAN_OK: one more event has left, and was not copied; the detail says why."""
    cdef wan_partition *partition
    cdef wan_status status = WAN_OK
    cdef uint32_t n
    wan_lock_take(&gateway.lock)
    for n in range(gateway.queue.own_count, gateway.queue.partition_count if gateway.keeps_acknowledged else 0):
        partition = &gateway.queue.partitions[n]
        if (min(partition.removed_through, partition.stable) <= partition.removed
                or partition.peeked != partition.removed):
            continue
        status = take_of(gateway, n, count, taken)
        if status != WAN_OK or taken.count >= 2 * count or taken.used >= TAKEN_BYTES:
            eventfd_write(gateway.acknowledged_file, 1)
            break
    for n in range(gateway.dispatchers if taken.count else 0):
        queue_refresh_ready(gateway, n)
    wan_lock_release(&gateway.lock)
    return status


cdef void removal_park(void *parker, uint32_t number, uint64_t sequence, uint32_t failure) noexcept nogil:
    """Keeps a copy of an event that another member has parked. One that does not count here may be another one than
    that member parked: it is left out, as it is without room. This member gets it from the one that leads it, when the
    two are compared. Under the queue's lock."""
    cdef gateway_queue *gateway = <gateway_queue *>parker
    cdef const wan_partition *partition = &gateway.queue.partitions[number]
    if (partition.stream != NULL and sequence > wan_read(partition.stream)
            or not queue_can_read(gateway, number, sequence)
            or queue_append_copy(gateway.parked, wan_parked_partition(failure),
                                 wan_queue_at(&gateway.queue, partition, sequence), False, 0) != WAN_OK):
        wan_add_guarded(&gateway.parked_missed, 1)
