# The interface of call_room.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_session cimport *
from pywan._core.calls.call_regions cimport CallRegions

cdef class CallRoom(CallRegions):
    cdef readonly uint32_t depth    # Of the connection: calls from callbacks use the next depth.
    cdef bint has_more              # Whole calls wait in `into`.
    # The time since which the session has read nothing, because places or memory were short, or because of a learner.
    # The next bytes may have arrived at any time since. 0: the session has read all bytes of the socket.
    cdef uint64_t stopped_us
    cdef uint64_t came_us           # When the calls in `into` arrived, or earlier.
    # When the next call's wait for a learner or for listeners ends, and when the wait began. 0: no wait.
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
