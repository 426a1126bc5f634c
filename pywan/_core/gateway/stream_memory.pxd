# The interface of stream_memory.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.gateway.applied_slot cimport applied_slot

cdef struct stream_slot:
    applied_slot applied        # State of the newest timeline with a section.
    uint64_t timeline               # The newest timeline; 0: no section. Under the lock of `applied`. Only grows.

cdef struct stream_run:
    # The streams of all buckets of a region.
    uint32_t buckets
    # The owning memory, and each partition of a connection named as one of the streams. The last user frees the run.
    # Guarded by the GIL.
    uint32_t users
    stream_slot *slots
    uint64_t source[2]          # The digest of the streams' name.

cdef class StreamMemory:
    cdef object __weakref__
    cdef readonly str name      # Name of the site and the sender. "": no recognition by name.
    cdef dict runs              # (region, bucket count) to the address of a stream_run. Last named, last placed.
    cdef readonly uint64_t streams
    # Set when an applied event must be in a log before its acknowledgement. The flag stays set: no connection knows
    # whether other connections still have to wait.
    cdef int must_wait
    cdef set cores              # Regions with applied events, over all connections.

    cdef stream_run *hold(self, str region, uint32_t buckets) except NULL

cdef int source_digest(str name, uint64_t *source) except -1
cdef void release_run(stream_run *run) noexcept
cdef bint begin_section(stream_slot *stream, uint64_t timeline) noexcept nogil
