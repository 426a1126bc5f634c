# The interface of call_events.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_replication cimport *
from pywan._core.calls.call_route cimport CallRoute
from pywan._core.calls.own_calls cimport OwnCalls
from pywan._core.region.compiled_region cimport CompiledRegion
from pywan._core.region.region_state cimport region_core

# Whether the owner goes on waiting. Called about ten times a second. 0: no; the detail has the reason.
ctypedef bint (*goes_on_waiting)(void *owner) noexcept nogil

cdef struct event_place:
    # The origin of an event.
    uint64_t number             # Counts all events of a round, in the order of arrival.
    uint64_t sequence
    uint32_t partition

cdef struct failed_event:
    uint64_t number             # As in the event_place.
    wan_failure failure
    const wan_record *record    # In an event_run. Known only in `failed` of a shared_out.

cdef struct event_run:
    # The events of a bucket in a round.
    wan_buffer records          # The records for the bucket's primary, in order, then the marks.
    wan_buffer places           # An event_place for every record.
    wan_buffer marks            # A uint64_t for 64 records. Empty: no record is marked.
    uint32_t count
    bint is_touched             # The bucket is in `touched`.
    # Events were applied at this member: the bucket has to be replicated through `sequence`, under `local_fence`.
    bint waits
    uint64_t local_fence, sequence

cdef struct shared_out:
    # The events of a round for a shared region. A single session uses the struct.
    region_core *region
    event_run *runs             # By bucket.
    wan_buffer touched          # The buckets with events in the round, uint32_t.
    uint64_t bytes              # Bytes of all records in `runs`.
    uint64_t held_bytes         # The bytes charged to the member's budget.
    uint64_t limit_us           # The longest duration of a round.
    wan_buffer failed           # failed_event after failed_event, in any order.
    uint64_t conflicts          # Conflicts lost by events that were sent to primaries.


cdef inline bint is_applied_here(const shared_out *out, const shared_out *before, uint32_t bucket) noexcept nogil:
    """Whether this member applies the next event of the bucket: the member is primary, and no earlier event of the
    round, or of the round before, waits."""
    return (out.runs[bucket].count == 0 and before.runs[bucket].count == 0
            and wan_changelog_role(out.region.changelog, bucket) == WAN_REPLICA_PRIMARY)


cdef bint touch_bucket(shared_out *out, uint32_t bucket) noexcept nogil


cdef inline bint note_applied_here(shared_out *out, uint32_t bucket, uint64_t local_fence,
                                   uint64_t sequence) noexcept nogil:
    """Notes the sequence of a bucket that has to be replicated. False: no memory."""
    cdef event_run *run = &out.runs[bucket]
    if not run.is_touched and not touch_bucket(out, bucket):
        return False
    if not run.waits:
        run.waits, run.local_fence, run.sequence = True, local_fence, sequence
    # The first local fence stays: if the fence changes, earlier changes may be lost.
    elif sequence > run.sequence:
        run.sequence = sequence
    return True


cdef bint add_to_run(shared_out *out, uint32_t bucket, const wan_record *record, bint is_marked,
                     const event_place *place) noexcept nogil
cdef bint wait_until_stable(shared_out *out, uint64_t until_us, goes_on_waiting goes_on, void *owner) noexcept nogil
cdef void drop_round(shared_out *out) noexcept nogil

cdef class EventCalls:
    cdef shared_out out
    cdef CompiledRegion state   # Keeps the region and the change log alive.
    cdef CallRoute route
    cdef list parts             # The calls of the round without an answer.
    cdef OwnCalls here
    cdef set slow               # Members to which the round could not connect at once.

    cdef int send_all(self, uint64_t until_us) except -1
    cdef bint finish(self, uint64_t began_us, uint64_t until_us, goes_on_waiting goes_on, void *owner) except *
    cdef int abandon(self) except -1
    cdef bint is_gone(self) noexcept
    cdef list new_parts(self)
    cdef int send(self, list parts, uint64_t until_us) except -1
    cdef bint wait_for(self, list parts, uint64_t until_us, goes_on_waiting goes_on, void *owner) except *
    cdef bint serve(self, list parts, goes_on_waiting goes_on, void *owner) except *
    cdef bint aim_again(self, part, uint64_t began_us, uint64_t until_us, goes_on_waiting goes_on,
                        void *owner) except *
    cdef bint take(self, part) except *
    cdef int fail_all(self, uint32_t reason) except -1
    cdef int fail(self, const event_place *place, const wan_record *record, uint32_t reason) except -1
