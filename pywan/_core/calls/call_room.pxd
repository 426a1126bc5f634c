# The interface of call_room.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_session cimport *
from pywan._core.calls.call_regions cimport CallRegions

cdef class CallRoom(CallRegions):
    cdef readonly uint32_t depth    # Of the connection: calls that callbacks of such calls make go one deeper.
    cdef bint has_more              # Whole calls wait in `into`.
    # Since when the session has read nothing: for want of a place or of memory, or because of a learner. What it reads
    # next may have come at any time since. 0: it has read all that lay there.
    cdef uint64_t stopped_us
    cdef uint64_t came_us           # When the calls in `into` came, or earlier.
    # The next call waits for a learner, or for listeners, until then, and has waited since then. 0: it does not.
    cdef uint64_t held_back_until_us, held_back_since_us

    cdef void note_came(self) noexcept nogil
    cdef void note_stopped(self) noexcept nogil
    cdef uint64_t room_due_us(self, uint64_t now_us) noexcept nogil
    cdef bint is_full(self) noexcept nogil
    cdef bint is_held_back(self, const wan_call *call) noexcept nogil
    cdef bint is_late(self, const wan_call *call) noexcept nogil
    cdef bint waits_for_room(self, const wan_call *call) noexcept nogil
    cdef bint may_begin(self) noexcept nogil
    cdef bint say_full(self, const wan_call *call) noexcept nogil
    cdef object full(self, const wan_call *call)
    cdef bint waits_for_memory(self) noexcept nogil
