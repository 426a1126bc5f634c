# Owns the queue of one sender as compiled code sees it: partitions under one lock, the counters of its ledger, the signals that wake its
# dispatchers, what is staged for its log. What runs for each event is in queue.pxd, inline.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_store cimport *
from pywan._core.c_system cimport *


cdef void queue_refresh_ready(gateway_queue *gateway, uint32_t dispatcher) noexcept nogil:
    cdef uint64_t pending = 0
    cdef uint32_t p = dispatcher
    while p < gateway.queue.partition_count:
        pending += wan_partition_ready(&gateway.queue.partitions[p])
        p += gateway.dispatchers
    wan_set(&gateway.signals[dispatcher].ready, pending)


cdef uint64_t queue_drop_oldest(gateway_queue *gateway, uint32_t keeps) noexcept nogil:
    """Makes room by giving up the oldest events that are not on their way: of each partition a sixteenth, at least one; but of partition
    `keeps` not the newest. Under the lock. Returns how many."""
    cdef wan_partition *partition
    cdef uint64_t sequence, wanted, dropped = 0, before = gateway.queue.events
    cdef uint32_t p
    for p in range(gateway.queue.partition_count):
        partition = &gateway.queue.partitions[p]
        wanted = (partition.unpeeked + 15) // 16
        sequence = partition.peeked
        while wanted:
            sequence = wan_queue_next_live(partition, max(sequence, partition.removed) + 1, partition.appended - (p == keeps))
            if sequence == 0:
                break
            wan_queue_make_hole(&gateway.queue, p, sequence, WAN_HOLE_DROPPED)
            wanted -= 1
    dropped = before - gateway.queue.events
    gateway.counts.dropped_oldest += dropped
    return dropped


cdef bint queue_has_unpeeked(const gateway_queue *gateway) noexcept nogil:
    for p in range(gateway.queue.partition_count):
        if gateway.queue.partitions[p].unpeeked:
            return True
    return False


cdef void queue_make_room(gateway_queue *gateway, uint32_t partition) noexcept nogil:
    """After the commit of an event beyond the limit, the newest of `partition`: older ones go until a segment is free, as far as they can; what is
    oldest lies together. Under the lock."""
    while wan_store_is_over(gateway.queue.store) and queue_drop_oldest(gateway, partition):
        pass
    for n in range(gateway.dispatchers):
        queue_refresh_ready(gateway, n)


cdef void wake_dispatchers(gateway_queue *gateway) noexcept nogil:
    """Under the queue's lock: more events count."""
    cdef uint32_t n
    for n in range(gateway.dispatchers):
        queue_refresh_ready(gateway, n)
        if gateway.signals[n].ready >= gateway.signals[n].wake_at:
            gateway.signals[n].wake_at = DO_NOT_WAKE
            eventfd_write(gateway.signals[n].file, 1)
