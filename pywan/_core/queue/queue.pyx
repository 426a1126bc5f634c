# Owns the queue of one sender as compiled code sees it: partitions under one lock, the counters of its ledger, the
# signals that wake its dispatchers, and what is pending for its log. What runs for each event is in queue.pxd, inline.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_names cimport *
from pywan._core.c_store cimport *
from pywan._core.c_system cimport *


# Counts what changes whom this process believes that events have left. Atomic.
cdef uint64_t news_of_removals = 0


cdef uint64_t removal_news() noexcept nogil:
    return wan_read(&news_of_removals)


cdef void removal_news_came() noexcept nogil:
    """There are other holders of a bucket, or a sender runs on other members."""
    wan_add_shared(&news_of_removals, 1)


cdef bint queue_is_runner(const gateway_queue *gateway, uint32_t member) noexcept nogil:
    """Whether the sender runs on this incarnation, as far as anybody said. Under the lock."""
    cdef const uint32_t *numbers = <const uint32_t *>gateway.runners.bytes
    cdef uint32_t n
    for n in range(gateway.runners.count):
        if numbers[n] == member:
            return True
    return not gateway.knows_runners


cdef wan_status queue_add_log(gateway_queue *gateway, log_committer *committer) noexcept nogil:
    """From now on events of a region with this log enter the queue. Takes and releases the queue's lock."""
    cdef fed_log fresh
    cdef wan_status status
    wan_lock_take(&gateway.lock)
    gateway.logs_added += 1
    fresh.committer, fresh.number = committer, gateway.logs_added
    status = wan_buffer_add(&gateway.logs, &fresh, sizeof(fresh))
    wan_lock_release(&gateway.lock)
    return status


cdef void queue_remove_log(gateway_queue *gateway, const log_committer *committer) noexcept nogil:
    """The region does not feed the queue any more, or its log is about to be freed."""
    cdef fed_log *logs
    cdef uint64_t n
    wan_lock_take(&gateway.lock)
    logs = <fed_log *>gateway.logs.bytes
    for n in range(gateway.logs.used // sizeof(fed_log)):
        if logs[n].committer == committer:
            gateway.logs.used -= sizeof(fed_log)
            logs[n] = logs[gateway.logs.used // sizeof(fed_log)]
            break
    wan_lock_release(&gateway.lock)


cdef void queue_refresh_ready(gateway_queue *gateway, uint32_t dispatcher) noexcept nogil:
    cdef uint64_t ready = 0
    cdef uint32_t p = dispatcher
    while p < gateway.queue.partition_count:
        ready += wan_partition_ready(&gateway.queue.partitions[p])
        p = queue_next_of_dispatcher(gateway, p)
    wan_set(&gateway.signals[dispatcher].ready, ready)


cdef uint64_t queue_drop_oldest(gateway_queue *gateway, uint32_t keeps) noexcept nogil:
    """Makes room by dropping the oldest events that are not on their way, and returns how many. From each partition it
    that this member leads it takes a sixteenth, and at least one. The newest event of partition `keeps` stays. Under
    the lock."""
    cdef wan_partition *partition
    cdef uint64_t sequence, wanted, dropped = 0, before = gateway.queue.events
    cdef uint32_t p
    for p in range(gateway.queue.partition_count):
        partition = &gateway.queue.partitions[p]
        wanted = (partition.unpeeked + 15) // 16 if partition.leads else 0
        sequence = partition.peeked
        while wanted:
            sequence = wan_queue_next_live(partition, max(sequence, partition.removed) + 1,
                                           partition.appended - (p == keeps))
            if sequence == 0:
                break
            wan_queue_make_hole(&gateway.queue, p, sequence, WAN_HOLE_DROPPED)
            wanted -= 1
    dropped = before - gateway.queue.events
    gateway.counts.dropped_oldest += dropped
    return dropped


cdef bint queue_has_unpeeked(const gateway_queue *gateway) noexcept nogil:
    for p in range(gateway.queue.partition_count):
        if gateway.queue.partitions[p].leads and gateway.queue.partitions[p].unpeeked:
            return True
    return False


cdef void queue_make_room(gateway_queue *gateway, uint32_t partition) noexcept nogil:
    """Makes room after the commit of an event beyond the limit, the newest of `partition`. It drops the oldest events,
    which lie together, until a segment is free or none can be dropped. Under the lock."""
    while wan_store_is_over(gateway.queue.store) and queue_drop_oldest(gateway, partition):
        pass
    for n in range(gateway.dispatchers):
        queue_refresh_ready(gateway, n)


cdef void queue_remove_or_keep(gateway_queue *gateway, uint32_t partition) noexcept nogil:
    """As `queue_apply_removal`. What callbacks are to hear of stays, and whoever takes it is woken. An event that does
    not count here may be another one than the event with its sequence that was sent: callbacks do not hear of it before
    it counts."""
    cdef wan_partition *at = &gateway.queue.partitions[partition]
    cdef uint64_t through = min(at.removed_through, at.stable if gateway.keeps_acknowledged else at.appended)
    if gateway.keeps_acknowledged and wan_queue_next_live(at, at.removed + 1, through):
        eventfd_write(gateway.acknowledged_file, 1)
    elif wan_queue_apply_removal(&gateway.queue, partition, through) and at.leads:
        queue_refresh_ready(gateway, queue_dispatcher(gateway, partition))


cdef void wake_dispatchers(gateway_queue *gateway) noexcept nogil:
    """Counts anew which events are ready, and wakes the dispatchers that have enough. Under the queue's lock."""
    cdef uint32_t n
    for n in range(gateway.dispatchers):
        queue_refresh_ready(gateway, n)
        if gateway.signals[n].ready >= gateway.signals[n].wake_at:
            gateway.signals[n].wake_at = DO_NOT_WAKE
            eventfd_write(gateway.signals[n].file, 1)
