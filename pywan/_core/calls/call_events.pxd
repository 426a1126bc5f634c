# The interface of call_events.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_tables cimport wan_record
from pywan._core.calls.call_route cimport CallRoute
from pywan._core.calls.own_calls cimport OwnCalls
from pywan._core.region.compiled_region cimport CompiledRegion
from pywan._core.region.region_state cimport region_core

# Whether whoever waits goes on waiting. It is asked about ten times a second. 0: the detail says why not.
ctypedef bint (*goes_on_waiting)(void *owner) noexcept nogil

cdef struct event_place:
    # Where an event came from.
    uint64_t number             # Counts all events of one round, in the order in which they came.
    uint64_t sequence
    uint32_t partition

cdef struct failed_event:
    uint64_t number             # As in its event_place.
    wan_failure failure
    const wan_record *record    # In its event_run. It is known only in `failed` of a shared_out.

cdef struct event_run:
    # The events of one bucket in one round.
    wan_buffer records          # Those that the bucket's primary is to apply, in order; at last their marks.
    wan_buffer places           # event_place after event_place, of each record.
    wan_buffer marks            # A uint64_t for 64 records. Empty: none of them is marked.
    uint32_t count
    bint is_touched             # The bucket is in `touched`.
    # Events were applied here: the bucket has to count through `sequence` in this local fence.
    bint waits
    uint64_t local_fence, sequence

cdef struct shared_out:
    # The events of a round for one shared region. One session uses it.
    region_core *region
    event_run *runs             # By bucket.
    wan_buffer touched          # The buckets with events in this round, uint32_t.
    uint64_t bytes              # Of all records in runs.
    uint64_t held_bytes         # What is charged for them to the member's budget.
    uint64_t limit_us           # A round is given up after so long.
    wan_buffer failed           # failed_event after failed_event, in any order.
    uint64_t conflicts          # Of the events that other members have applied.


cdef inline bint is_applied_here(const shared_out *out, const shared_out *before, uint32_t bucket) noexcept nogil:
    """Whether this member applies the next event of the bucket: it is primary, and no earlier event waits, of this
    round or of the one before."""
    return (out.runs[bucket].count == 0 and before.runs[bucket].count == 0
            and wan_changelog_role(out.region.changelog, bucket) == WAN_REPLICA_PRIMARY)


cdef bint touch_bucket(shared_out *out, uint32_t bucket) noexcept nogil


cdef inline bint note_applied_here(shared_out *out, uint32_t bucket, uint64_t local_fence,
                                   uint64_t sequence) noexcept nogil:
    """Notes what has to count of a bucket. False: there is no memory."""
    cdef event_run *run = &out.runs[bucket]
    if not run.is_touched and not touch_bucket(out, bucket):
        return False
    if not run.waits:
        run.waits, run.local_fence, run.sequence = True, local_fence, sequence
    # The first local fence stays: if it is another one now, what was before may be lost.
    elif sequence > run.sequence:
        run.sequence = sequence
    return True


cdef bint add_to_run(shared_out *out, uint32_t bucket, const wan_record *record, bint is_marked,
                     const event_place *place) noexcept nogil
cdef bint wait_until_stable(shared_out *out, uint64_t until_us, goes_on_waiting goes_on, void *owner) noexcept nogil
cdef void drop_round(shared_out *out) noexcept nogil

cdef class EventCalls:
    cdef shared_out out
    cdef CompiledRegion state   # Keeps the region and its change log alive.
    cdef CallRoute route
    cdef list parts             # The calls of this round that have no answer yet.
    cdef OwnCalls here
    cdef set slow               # Members to which this round could not connect at once.

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
