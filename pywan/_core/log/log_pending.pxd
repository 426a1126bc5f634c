# The interface of log_pending.pyx: the bytes that are pending for a log.
from libc.stdint cimport uint64_t
from pywan._core.c_base cimport *

cdef struct log_pending:
    wan_buffer pending      # What has happened and is in no round yet. Under the owner's lock.
    wan_buffer taken        # What a round took and has to write. Only the thread with the committer's role touches it.
    wan_buffer_use use      # How much of the two buffers is used. They take turns.


cdef inline void swap_buffers(wan_buffer *a, wan_buffer *b) noexcept nogil:
    cdef wan_buffer kept = a[0]
    a[0] = b[0]
    b[0] = kept


cdef inline void pending_take(log_pending *log) noexcept nogil:
    """Begins a round, for which nothing is left of the last one. Under the owner's lock."""
    swap_buffers(&log.pending, &log.taken)


cdef inline void pending_written(log_pending *log, uint64_t now) noexcept nogil:
    """Empties what the round took, since it has written that."""
    cdef uint64_t used = log.taken.used
    wan_buffer_empty(&log.taken)
    wan_buffer_rest(&log.taken, &log.use, used, now)


cdef void pending_rest(log_pending *log, wan_lock *lock, uint64_t now) noexcept nogil
cdef void pending_close(log_pending *log) noexcept nogil
