# Owns the wait before an acknowledgement leaves the process. A remote site or a task of Spark gets no acknowledgement
# of records that a log of the process could still lose. The setting `disk-synchronous` has no effect on the wait: it
# concerns callers inside the process.
from pywan._core.c_base cimport *
from pywan._core.log.committer cimport FOR_EVENTS, committer_given, committer_wake, log_committer
from pywan._core.queue.event_queue cimport EventQueue
from pywan._core.region.compiled_region cimport CompiledRegion
from pywan._core.region.region cimport RegionCore


cdef dict log_marks(cores, bint hurry):
    """Returns the present ends of the logs of the regions, and of the queues attached to the regions: by the owner of
    each log, how many records were given to the log so far. `hurry`: the committers write now, and not at the end of an
    interval."""
    cdef dict marks = {}
    cdef CompiledRegion state
    cdef EventQueue queue
    for core in cores:
        state = (<RegionCore>core).state
        for queue in state.attached_queues:
            if queue.gateway.durable != NULL and queue not in marks:
                marks[queue] = log_end(&queue.gateway.durable.committer, hurry)
        if state.region.log != NULL:
            marks[state] = log_end(&state.region.log.committer, hurry)
    return marks


cdef uint64_t log_end(log_committer *committer, bint hurry) noexcept:
    cdef uint64_t given
    with nogil:
        given = committer_given(committer)
        if hurry:
            committer_wake(committer)
    return given


cdef int wait_log_marks(dict marks) except -1:
    """Returns when each log has all records up to its mark. A regular end of the process, or a kill, loses no such
    record. DiskError if a disk does not take the records."""
    for owner, given in marks.items():
        if isinstance(owner, EventQueue):
            owner.wait_records(given)
        else:
            (<CompiledRegion>owner).wait_log(FOR_EVENTS, 0, given)
    return 0
