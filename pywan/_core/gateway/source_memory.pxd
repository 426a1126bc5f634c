# The interface of source_memory.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_session cimport *
from pywan._core.gateway.applied_slot cimport applied_slot
from pywan._core.gateway.stream_memory cimport StreamMemory

cdef class SourceMemory:
    cdef applied_slot *slots
    cdef readonly uint32_t partitions
    cdef readonly StreamMemory streams
    cdef uint64_t source[2]     # The digest of the queue's name.

cdef class ReceiverCounts:
    cdef wan_receiver_counts counters
