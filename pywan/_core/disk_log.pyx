# Owns what the log of a queue and the log of a region have in common: what others see of it, who waits for it, and what the logs of a
# disk store may take together.
from libc.stdint cimport uint64_t
from libc.string cimport memset, strncpy
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *


cdef class LogBudget:
    """What several logs may take together: those in one directory of a disk store. `used` bytes there are at the beginning."""

    def __cinit__(self, uint64_t limit, uint64_t used=0):
        self.b.limit, self.b.used = limit, used

    @property
    def limit(self):
        return self.b.limit

    @property
    def used(self):
        """Bytes of all logs, open or not."""
        return wan_read(&self.b.used)

    def give(self, uint64_t count):
        """Of a log that was removed as a whole."""
        wan_count(&self.b.used, -count)


cdef void show_log(log_view *view, const wan_log *log, wan_status status) noexcept nogil:
    """Under the owner's lock; `status` with its detail, if it is not WAN_OK."""
    view.bytes, view.commits, view.segments = log.bytes, log.commit, log.count
    view.failing = <int>status
    if status == WAN_OK:
        view.failing_since_us = 0
    elif view.failing_since_us == 0:
        view.failing_since_us = wan_monotonic_us()
    if status == WAN_NO_MEMORY:     # Some say no more than that.
        strncpy(view.reason, b"out of memory while the log was written", sizeof(view.reason) - 1)
    elif status != WAN_OK:
        strncpy(view.reason, wan_detail, sizeof(view.reason) - 1)


cdef object log_failure(const log_view *view):
    """Why the disk takes nothing; None: it does."""
    return (<bytes>view.reason).decode("utf-8", "replace") if view.failing else None


cdef object not_on_disk(str whose, const log_view *view, bint ended, str meanwhile):
    """The error of a caller that waited for a log in vain."""
    from pywan.errors import DiskError, InternalError
    if view.failing == WAN_BROKEN:
        return InternalError(f"{whose}: not on the disk, and never will be: {log_failure(view)}")
    reason = log_failure(view) or ("its log was closed" if ended else "the disk did not answer")
    return DiskError(f"{whose}: not on the disk yet: {reason}; {meanwhile}")


cdef wan_status not_written(const log_view *view) noexcept nogil:
    """What a change gets whose log is failing. It may be taken later, unless our own check failed: the detail says which."""
    if view.failing == WAN_BROKEN:
        wan_tell(WAN_BROKEN, "the log is not written any more: %s", view.reason)
        return WAN_BROKEN
    wan_tell(<wan_status>view.failing if view.failing == WAN_FULL or view.failing == WAN_NO_MEMORY else WAN_IO,
                "the log is not written now: %s", view.reason)
    return WAN_FULL


cdef list damage_list(const wan_buffer *damages):
    cdef const wan_damage *damage = <const wan_damage *>damages.bytes
    return [{"file": (<bytes>damage[n].file).decode("utf-8", "surrogateescape"), "offset": damage[n].offset,
             "reason": (<bytes>damage[n].reason).decode("utf-8", "replace")} for n in range(damages.count)]


cdef void rest_under_lock(wan_buffer *stage, wan_buffer_use *use, wan_lock *lock, uint64_t now) noexcept nogil:
    """Large ones are freed when the lock is released: that takes milliseconds."""
    cdef wan_buffer kept
    memset(&kept, 0, sizeof(kept))
    wan_lock_take(lock)
    if stage.used == 0 and stage.capacity > WAN_BUFFER_KEPT_BYTES:
        swap_stages(stage, &kept)
    wan_lock_release(lock)
    wan_buffer_rest(&kept, use, 0, now)
    wan_lock_take(lock)
    if stage.capacity == 0:         # It is needed as it was, and nobody has begun another one.
        swap_stages(stage, &kept)
    wan_lock_release(lock)
    wan_buffer_close(&kept)
