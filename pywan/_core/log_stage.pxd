# The interface of log_stage.pyx: bytes on their way into a log.
from libc.stdint cimport uint64_t
from pywan._core.c_base cimport *

cdef struct log_stage:
    wan_buffer staged       # What has happened and is in no round yet. Under the owner's lock.
    wan_buffer taken        # What a round took and has to write. Who has the committer's role touches it.
    wan_buffer_use use      # Of both, which take turns.


cdef inline void swap_buffers(wan_buffer *a, wan_buffer *b) noexcept nogil:
    cdef wan_buffer kept = a[0]
    a[0] = b[0]
    b[0] = kept


cdef inline void stage_take(log_stage *stage) noexcept nogil:
    """A round begins, and nothing is left of the last one. Under the owner's lock."""
    swap_buffers(&stage.staged, &stage.taken)


cdef inline void stage_settle(log_stage *stage, uint64_t now) noexcept nogil:
    """The round has written what it took."""
    cdef uint64_t used = stage.taken.used
    wan_buffer_empty(&stage.taken)
    wan_buffer_rest(&stage.taken, &stage.use, used, now)


cdef void stage_rest(log_stage *stage, wan_lock *lock, uint64_t now) noexcept nogil
cdef void stage_close(log_stage *stage) noexcept nogil
