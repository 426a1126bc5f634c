# The interface of stream_memory.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.gateway.applied_slot cimport applied_slot

cdef struct stream_slot:
    applied_slot applied        # Of the newest life that a section came of.
    uint64_t life               # That life; 0: none came. Under the lock of `applied`. It only grows.

cdef struct stream_run:
    # The streams of all buckets of a region.
    uint32_t buckets
    # The memory that has it, and each partition of a connection that was named as one of these streams. The last one
    # frees it. With the GIL.
    uint32_t users
    stream_slot *slots
    uint64_t source[2]          # The digest of the streams' name.

cdef class StreamMemory:
    cdef object __weakref__
    cdef readonly str name      # Of the site and the sender. "": nothing is recognised by it.
    cdef dict runs              # (region, its buckets) to the address of a stream_run. The one named last comes last.
    cdef readonly uint64_t streams
    # Something was applied that a log has to have before it is acknowledged. This stays set: no connection can tell for
    # the others that there is nothing left to wait for.
    cdef int must_wait
    cdef set cores              # Regions that something was applied to, over all connections.

    cdef stream_run *hold(self, str region, uint32_t buckets) except NULL

cdef int source_digest(str name, uint64_t *source) except -1
cdef void release_run(stream_run *run) noexcept
cdef bint begin_section(stream_slot *stream, uint64_t life) noexcept nogil
