# Owns the checkpoints of a queue's log. A state says what was removed, what was counted, and the names in the log. One
# state is the newest on the disk. The next one is laid out beside it.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_session cimport *
from pywan._core.c_store cimport *
from pywan._core.log.log_pending cimport swap_buffers
from pywan._core.queue.queue cimport durable_log, gateway_queue, logged_places


cdef wan_status take_state(gateway_queue *gateway, uint64_t commit, const wan_queue_counts *counts,
                           uint64_t conflated, const wan_buffer *places) noexcept nogil:
    """Lays the queue's state out in `fresh_state`, with these counters. Under the queue's lock. `places`: those that
    come into the log with the state, each a logged_places; NULL: only what is in the log counts."""
    cdef durable_log *durable = gateway.durable
    cdef wan_queue_state head
    cdef wan_counter saved[WAN_QUEUE_COUNTERS_COUNT]
    cdef uint64_t pair[2]
    cdef const logged_places *run = <const logged_places *>(places.bytes if places != NULL else NULL)
    cdef uint64_t runs = places.used // sizeof(logged_places) if places != NULL else 0, n
    cdef wan_source_place place
    cdef uint32_t p
    cdef wan_status status
    head.commit = commit
    head.partitions = gateway.queue.partition_count
    head.counters = wan_queue_counts_save(counts, saved)
    head.conflated = conflated
    head.names_bytes = durable.dictionary.used
    head.places_bytes = durable.logged.places.used + runs * sizeof(wan_source_place)
    wan_buffer_empty(&durable.fresh_state)
    status = wan_buffer_reserve(&durable.fresh_state,
                                sizeof(head) + sizeof(saved) + head.partitions * 16ULL + head.names_bytes
                                + head.places_bytes)
    if status != WAN_OK:
        return status
    wan_buffer_put(&durable.fresh_state, &head, sizeof(head))
    if head.counters:
        wan_buffer_put(&durable.fresh_state, saved, head.counters * sizeof(wan_counter))
    for p in range(head.partitions):
        pair[0], pair[1] = gateway.queue.partitions[p].removed, gateway.queue.partitions[p].appended
        wan_buffer_put(&durable.fresh_state, pair, 16)
    if head.names_bytes:
        wan_buffer_put(&durable.fresh_state, durable.dictionary.bytes, head.names_bytes)
    if durable.logged.places.used:
        wan_buffer_put(&durable.fresh_state, durable.logged.places.bytes, durable.logged.places.used)
    for n in range(runs):
        place = run[n].first
        place.through += run[n].count - 1
        wan_buffer_put(&durable.fresh_state, &place, sizeof(place))
    return WAN_OK


cdef void state_is_durable(gateway_queue *gateway) noexcept nogil:
    """Makes the fresh state the newest one on the disk."""
    cdef durable_log *durable = gateway.durable
    cdef uint32_t p
    swap_buffers(&durable.state, &durable.fresh_state)
    durable.removed_at_checkpoint = 0
    for p in range(gateway.queue.partition_count):
        durable.removed[p] = state_positions(&durable.state)[2 * p]
        durable.removed_at_checkpoint += durable.removed[p]
    durable.checkpoint_us = wan_monotonic_us()


cdef uint64_t repairs_of(const wan_buffer *state) noexcept nogil:
    """How often the clock had been repaired when this state was taken."""
    cdef const wan_queue_state *head = <const wan_queue_state *>state.bytes
    cdef wan_queue_counts counts
    if state.used == 0 or wan_queue_counts_load(&counts, <const wan_counter *>(head + 1), head.counters) != WAN_OK:
        return 0
    return counts.clock_repairs
