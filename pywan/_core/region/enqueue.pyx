# Owns the conversion of Python arguments for the decision which queues an event enters: the verdicts of filters, and
# the sites of the event. The decision is in enqueue.pxd.
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_store cimport wan_source_place
from pywan._core.region.region_state cimport MAX_ATTACHED, decision, origin
from pywan._core.values.tagged cimport described

# A filter's answer for an event that must not leave the site, as the substitution filter failed.
WITHHELD = "withheld"


cdef decision *known_decisions(decisions, tuple queues, str region, key) except NULL:
    """Reads the known answers of filters for an event at these attached queues, as MAX_ATTACHED decisions, which the
    caller frees. The decisions refer to the bytes in `decisions`, an argument of `RegionCore.change`."""
    cdef decision *known = <decision *>calloc(MAX_ATTACHED, sizeof(decision))
    cdef uint32_t n
    if known == NULL:
        raise MemoryError(f"region {region!r}: no memory for the decision about key {described(key)}; nothing was "
                          "stored")
    try:
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


cdef int read_origin(made, origin *from_, uint8_t *flags) except -1:
    """Reads `made`, an argument of `RegionCore.change`. The caller keeps `made` alive."""
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
        caller, slot, number, row, from_.attempt.since = made[5]
        from_.attempt.call.caller, from_.attempt.call.slot, from_.attempt.call.number = caller, slot, number
        from_.attempt.is_row = row is not None
        from_.attempt.row = row or 0
    if len(made) > 6 and made[6] is not None:
        from_.place = <const wan_source_place *>PyBytes_AS_STRING(made[6])
    return 0
