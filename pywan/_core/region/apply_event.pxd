# Owns the effect of a remote site's event on a region that several members hold, at the primary of the bucket. The
# receiver applies its events by this code, and so do the calls of remote members' receivers. The code runs for each
# event.
from libc.stdint cimport uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.region.put cimport change_from_record, origin_from_record, region_change
from pywan._core.region.region_state cimport origin, region_core

cdef enum:
    # The result for an event. A positive number is a reason of failure (WAN_FAILED_*).
    EVENT_DONE = 0              # The event took effect, now or before.
    EVENT_LOST = -1             # A later version stays.
    EVENT_NOT_TAKEN = -2        # The status says why. Nothing was changed.

cdef enum:
    # Results of the user's Python for an event, beside EVENT_DONE and the reasons of failure.
    ASKED_LOST = -2             # A later version stays.
    ASKED_NOT_PRIMARY = -3        # This member does not lead the bucket. Nothing was changed.


cdef inline bint is_event_ahead(wan_clock *clock, const wan_record *record, uint64_t *now_ms,
                                uint64_t max_drift_ms) noexcept nogil:
    """Whether the record's stamp is too far in the future. `now_ms`: the time at an earlier check; gets the time of
    this check."""
    if wan_stamp_ms(record.stamp) <= now_ms[0] + max_drift_ms:
        return False
    if not record.flags & WAN_FLAG_GIVEN:
        wan_clock_receive(clock, record.stamp)         # The wrong clock may be our own.
    now_ms[0] = wan_clock_receiving_ms(clock)
    return wan_stamp_ms(record.stamp) > now_ms[0] + max_drift_ms


cdef inline int region_apply_event(region_core *region, const wan_record *record, uint64_t hash,
                                   bint possible_duplicate, wan_change *change, bint *took_effect,
                                   wan_status *status) noexcept nogil:
    """Applies an event whose stamp is acceptable. For EVENT_DONE and EVENT_LOST, `change` says which sequence has to be
    replicated before the result may leave. EVENT_NOT_TAKEN: *status is as from `region_change`; WAN_NOT_PRIMARY: this
    member is not primary of the bucket."""
    cdef origin from_
    cdef wan_outcome outcome
    change_from_event(change, record, hash)
    origin_from_record(&from_, record, possible_duplicate)
    took_effect[0] = False
    status[0] = region_change(region, change, &from_, NULL, &outcome)
    return EVENT_NOT_TAKEN if status[0] != WAN_OK else event_became(region, outcome, took_effect)


cdef inline void change_from_event(wan_change *change, const wan_record *record, uint64_t hash) noexcept nogil:
    change_from_record(change, record, hash)
    change.local_fence = change.sequence = change.recalled = 0


cdef inline int event_became(region_core *region, wan_outcome outcome, bint *took_effect) noexcept nogil:
    """The result for an event whose change had this outcome. A conflict is counted."""
    took_effect[0] = outcome <= WAN_DESTROYED
    if outcome == WAN_LOST:
        wan_add_shared(&region.conflicts, 1)
        return EVENT_LOST
    if outcome == WAN_OUT_OF_MEMORY:
        return WAN_FAILED_NO_MEMORY
    return WAN_FAILED_FORGOTTEN if outcome == WAN_FORGOTTEN else EVENT_DONE
