# The interface of queue_checkpoint.pyx.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *
from pywan._core.c_session cimport *
from pywan._core.c_store cimport *
from pywan._core.queue.queue cimport durable_log, gateway_queue

cdef enum:
    CHECKPOINT_EVENTS = 10000       # A checkpoint is due when so many events were removed since the last one ...
    CHECKPOINT_US = 1000000         # ... or when at least one was removed and so much time has passed.


cdef inline void note_newest_stamp(gateway_queue *gateway) noexcept nogil:
    """Notes the clock's newest stamp, before a state is taken. Under the queue's lock."""
    if gateway.clock != NULL:
        gateway.counts.newest_stamp = max(gateway.counts.newest_stamp, wan_clock_last(gateway.clock))


cdef inline bint state_is_newest(const durable_log *durable) noexcept nogil:
    return (durable.state.used != 0
            and (<const wan_queue_state *>durable.state.bytes).commit == durable.committer.log.commit)


cdef inline uint64_t *state_positions(const wan_buffer *state) noexcept nogil:
    cdef uint64_t counters = (<wan_queue_state *>state.bytes).counters
    return <uint64_t *>(state.bytes + sizeof(wan_queue_state) + counters * sizeof(wan_counter))


cdef inline void count_hole(uint64_t *conflated, wan_queue_counts *counts, uint32_t reason, int64_t by) noexcept nogil:
    if reason == WAN_HOLE_CONFLATED:
        conflated[0] += by
    elif reason == WAN_HOLE_FILTERED:
        counts.filtered_transmit += by
    elif reason == WAN_HOLE_PARKED:
        counts.parked += by
    elif reason == WAN_HOLE_DROPPED:
        counts.dropped_oldest += by
    elif reason == WAN_HOLE_RESTAMPED:
        counts.restamped += by
    elif reason == WAN_HOLE_CLEARED:
        counts.dropped_cleared += by
    else:
        counts.conflated_batch += by


cdef wan_status take_state(gateway_queue *gateway, uint64_t commit, const wan_queue_counts *counts,
                           uint64_t conflated, const wan_buffer *places) noexcept nogil
cdef void state_is_durable(gateway_queue *gateway) noexcept nogil
cdef uint64_t repairs_of(const wan_buffer *state) noexcept nogil
