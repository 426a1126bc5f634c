# Owns the bytes that are pending for a log: one buffer takes what happens while a round writes the other one.
from libc.stdint cimport uint64_t
from libc.string cimport memset
from pywan._core.c_base cimport *


cdef void pending_rest(log_pending *log, wan_lock *lock, uint64_t now) noexcept nogil:
    """Gives back the memory of both buffers that they do not need. Nothing is pending now. The memory is freed without
    the lock, since that takes milliseconds."""
    cdef wan_buffer kept
    wan_buffer_rest(&log.taken, &log.use, 0, now)
    memset(&kept, 0, sizeof(kept))
    wan_lock_take(lock)
    if log.pending.used == 0 and log.pending.capacity > WAN_BUFFER_KEPT_BYTES:
        swap_buffers(&log.pending, &kept)
    wan_lock_release(lock)
    wan_buffer_rest(&kept, &log.use, 0, now)
    wan_lock_take(lock)
    if log.pending.capacity == 0:      # The buffer is needed as it was, and no other one was begun.
        swap_buffers(&log.pending, &kept)
    wan_lock_release(lock)
    wan_buffer_close(&kept)


cdef void pending_close(log_pending *log) noexcept nogil:
    wan_buffer_close(&log.pending)
    wan_buffer_close(&log.taken)
