# Owns the conversion between Python and the decision which queues an event enters: the verdicts of filters, where the
# event has been, and the form of a decision that other members can read. The decision itself is in enqueue.pxd.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.event_queue cimport EventQueue
from pywan._core.region_state cimport MAX_ATTACHED, decision, origin
from pywan._core.status cimport raise_for
from pywan._core.tagged cimport described

# What a filter's answer is for an event that must not leave the site, as its substitution filter failed.
WITHHELD = "withheld"


cdef decision *known_decisions(decisions, tuple queues, str region, key) except NULL:
    """Reads what is known of an event at these attached queues, as MAX_ATTACHED decisions, which the caller frees. They
    refer to the bytes in `decisions`, which is an argument of `RegionCore.change`."""
    cdef decision *known = <decision *>calloc(MAX_ATTACHED, sizeof(decision))
    cdef uint32_t n
    if known == NULL:
        raise MemoryError(f"region {region!r}: no memory for the decision about key {described(key)}; nothing was "
                          "stored")
    try:
        if isinstance(decisions, bytes):
            read_told(decisions, queues, known)
            return known
        for n in range(len(queues)):
            if not decisions or queues[n] not in decisions:
                continue
            item = decisions[queues[n]]
            known[n].asked = 1
            if item is False:
                known[n].filtered = 1
            elif item is WITHHELD:
                known[n].withheld = 1
            elif item is not None:
                known[n].substituted = 1
                known[n].value_form = item[0]
                known[n].value = <const uint8_t *>PyBytes_AS_STRING(item[1])
                known[n].value_length = <uint32_t>PyBytes_GET_SIZE(item[1])
    except BaseException:
        free(known)
        raise
    return known


cdef bytes told_decision(const decision *known, tuple queues):
    """Returns what was decided, in the form that `read_told` takes at another member. None: nothing was decided, since
    the event is not for queues."""
    cdef wan_buffer encoded
    cdef told_verdict head
    cdef uint32_t n
    cdef uint64_t zero = 0
    cdef EventQueue queue
    cdef wan_status status = WAN_OK
    if not queues or not known[0].is_decided:
        return None
    memset(&encoded, 0, sizeof(encoded))
    try:
        for n in range(len(queues)):
            queue = queues[n]
            memset(&head, 0, sizeof(head))
            head.sender, head.verdict = queue.gateway.sender, known[n].verdict
            if known[n].substituted and known[n].verdict == ENQUEUE_ENTERS:
                head.substituted, head.value_form, head.value_length = 1, known[n].value_form, known[n].value_length
            status = wan_buffer_add(&encoded, &head, sizeof(head))
            if status == WAN_OK and head.value_length:
                status = wan_buffer_add(&encoded, known[n].value, head.value_length)
            if status == WAN_OK and head.value_length % 8:
                status = wan_buffer_add(&encoded, &zero, 8 - head.value_length % 8)
            raise_for(status, "decision about an event")
        return PyBytes_FromStringAndSize(<const char *>encoded.bytes, encoded.used)
    finally:
        wan_buffer_close(&encoded)


cdef int read_told(bytes encoded, tuple queues, decision *known) except -1:
    """Reads what another member decided. The event enters the queues of the same senders as there. A sender that was
    not attached there does not run for this event."""
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(encoded)
    cdef uint64_t left = PyBytes_GET_SIZE(encoded), behind
    cdef told_verdict head
    cdef EventQueue queue
    cdef uint32_t n
    from pywan.errors import ConfigurationError, ProtocolError
    for n in range(len(queues)):
        known[n].given, known[n].verdict = 1, ENQUEUE_STOPPED
    while left:
        if left < sizeof(head):
            raise ProtocolError(f"a decision about an event ends within a verdict: {left} bytes")
        memcpy(&head, at, sizeof(head))
        at += sizeof(head)
        left -= sizeof(head)
        behind = wan_align8(head.value_length)
        if head.verdict > ENQUEUE_NO_ROOM or behind > left:
            raise ProtocolError(f"a decision about an event has verdict {head.verdict} and a value of "
                                f"{head.value_length} bytes, of which {left} are there")
        for n in range(len(queues)):
            queue = queues[n]
            if queue.gateway.sender == head.sender:
                known[n].verdict = head.verdict
                known[n].substituted, known[n].value_form = head.substituted, head.value_form
                known[n].value, known[n].value_length = at, head.value_length
                break
        else:
            if head.verdict == ENQUEUE_ENTERS:
                raise ConfigurationError(f"an event enters the queue of a sender that is not attached here (number "
                                         f"{head.sender:x}); attach it first")
        at += behind
        left -= behind
    return 0


cdef int read_origin(made, origin *from_, uint8_t *flags) except -1:
    """Reads `made`, an argument of `RegionCore.change`. The caller keeps it alive."""
    cdef bytes recipients = made[1]
    memset(from_, 0, sizeof(origin))
    from_.callback_form = WAN_FORM_NONE
    from_.site = made[0]
    from_.recipient_count = <uint8_t>len(recipients)
    from_.recipients = <const uint8_t *>PyBytes_AS_STRING(recipients)
    from_.event_member, from_.event_thread, from_.event_sequence = made[2]
    from_.possible_duplicate = len(made) > 3 and bool(made[3])
    flags[0] = made[4] if len(made) > 4 else 0
    if len(made) > 5 and made[5] is not None:
        caller, slot, number, row = made[5]
        from_.attempt.call.caller, from_.attempt.call.slot, from_.attempt.call.number = caller, slot, number
        from_.attempt.is_row = row is not None
        from_.attempt.row = row or 0
    return 0
