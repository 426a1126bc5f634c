# Owns the limit through which a dispatcher may send events of persistent regions (docs/decisions/0103). A kill of this
# process must not lose a change that another site, or a listener's database, has already. A dispatcher never waits in
# this unit: the dispatcher notes the ends of the queue and of its regions' logs, and sends through the noted end of the
# queue after the logs have reached theirs.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset
from pywan._core.c_base cimport *
from pywan._core.log.committer cimport log_committer
from pywan._core.queue.queue cimport fed_log, gateway_queue, queue_next_of_dispatcher


cdef bint gate_look(log_gate *gate, gateway_queue *gateway, uint32_t index) noexcept nogil:
    """Opens the gate as far as the logs allow. True: events wait for a log. Under the queue's lock; the caller
    allocated all partitions."""
    cdef uint32_t p = index
    cdef bint is_more = False
    if gate.marks.used and not have_reached(gate, gateway):
        return True
    if gate.marks.used:
        open_as_asked(gate, gateway, index)
    while p < gateway.queue.partition_count:
        gate.asked[p] = gateway.queue.partitions[p].appended
        is_more = is_more or gate.asked[p] > gate.open[p]
        p = queue_next_of_dispatcher(gateway, p)
    if not is_more:
        return False
    if mark_logs(gate, gateway) and not have_reached(gate, gateway):
        return True
    open_as_asked(gate, gateway, index)
    return False


cdef void open_as_asked(log_gate *gate, const gateway_queue *gateway, uint32_t index) noexcept nogil:
    cdef uint32_t p = index
    wan_buffer_empty(&gate.marks)
    while p < gateway.queue.partition_count:
        gate.open[p] = max(gate.open[p], gate.asked[p])
        p = queue_next_of_dispatcher(gateway, p)


cdef bint mark_logs(log_gate *gate, const gateway_queue *gateway) noexcept nogil:
    """Notes the present ends of the logs. False: no memory for the notes; then the gate does not wait for the logs."""
    cdef const fed_log *logs = <const fed_log *>gateway.logs.bytes
    cdef log_mark mark
    cdef uint64_t n
    wan_buffer_empty(&gate.marks)
    for n in range(gateway.logs.used // sizeof(fed_log)):
        wan_lock_take(logs[n].committer.owner.lock)
        mark.number, mark.given = logs[n].number, logs[n].committer.given
        wan_lock_release(logs[n].committer.owner.lock)
        if wan_buffer_add(&gate.marks, &mark, sizeof(mark)) != WAN_OK:
            wan_buffer_empty(&gate.marks)
            return False
    return True


cdef bint have_reached(const log_gate *gate, const gateway_queue *gateway) noexcept nogil:
    """Returns whether the logs have reached all notes. A removed log, or a log without a running thread, writes no
    more. A full log is not waited for: in a store shared with the queue, only leaving events free space."""
    cdef const fed_log *logs = <const fed_log *>gateway.logs.bytes
    cdef const log_mark *marks = <const log_mark *>gate.marks.bytes
    cdef log_committer *committer
    cdef uint64_t n, k
    cdef bint has
    for n in range(gate.marks.used // sizeof(log_mark)):
        for k in range(gateway.logs.used // sizeof(fed_log)):
            if logs[k].number != marks[n].number:
                continue
            committer = logs[k].committer
            wan_lock_take(committer.owner.lock)
            has = committer.durable >= marks[n].given or committer.view.failing == <int>WAN_FULL
            wan_lock_release(committer.owner.lock)
            if not has and not wan_flag_read(&committer.ended):
                return False
            break
    return True


cdef bint gate_grow(log_gate *gate, uint32_t partitions) noexcept nogil:
    """Allocates at least `partitions` partitions. False: no memory."""
    cdef void *grown
    if partitions <= gate.capacity:
        return True
    grown = realloc(gate.open, partitions * sizeof(uint64_t))
    if grown == NULL:
        return False
    gate.open = <uint64_t *>grown
    grown = realloc(gate.asked, partitions * sizeof(uint64_t))
    if grown == NULL:
        return False
    gate.asked = <uint64_t *>grown
    memset(gate.open + gate.capacity, 0, (partitions - gate.capacity) * sizeof(uint64_t))
    memset(gate.asked + gate.capacity, 0, (partitions - gate.capacity) * sizeof(uint64_t))
    gate.capacity = partitions
    return True


cdef void gate_close(log_gate *gate) noexcept nogil:
    free(gate.open)
    free(gate.asked)
    wan_buffer_close(&gate.marks)
