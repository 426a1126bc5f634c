# Owns `CallSlots`: the identities of the calls that a member makes.
import os
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_replication cimport *
from pywan._core.base.gil cimport gil_back, gil_may_go
from pywan._core.base.status cimport raise_for


cdef class CallSlots:
    """The slots for the calls of a member, in all regions. A call has a slot while the call is under way."""

    def __cinit__(self, uint32_t member):
        self.member = member
        wan_slots_init(&self.slots, drawn_caller(member))

    def __dealloc__(self):
        wan_slots_close(&self.slots)

    @property
    def caller(self):
        """The client id that buckets keep: the member's number << 32, and a random half."""
        return wan_read(&self.slots.caller)

    @property
    def count(self):
        """The highest number of calls that were ever under way at once."""
        return self.slots.count

    def begin_anew(self, uint32_t member):
        """The member goes on as a new incarnation, with the number `member`. Calls that are under way keep their
        identities. Later calls have a new client id, and the numbers of their slots count on."""
        cdef uint64_t caller = drawn_caller(member)
        self.member = member
        with nogil:
            wan_slots_rename(&self.slots, wan_read(&self.slots.caller), caller)

    cdef int take(self, wan_call_identity *call) except -1:
        """Begins a call, and gives the call an identity. `give` ends the call."""
        return raise_for(slots_take(&self.slots, call), "a call to a region that several members hold")

    cdef void give(self, wan_call_identity call) noexcept:
        """The call is over: the slot is free for the next call."""
        slots_give(&self.slots, call)

    cdef int rename(self, wan_call_identity *call) except -1:
        """The site has given up the client id of a call: the call, and later calls, get a new client id."""
        cdef uint64_t fresh = drawn_caller(self.member)
        with nogil:
            call.caller = wan_slots_rename(&self.slots, call.caller, fresh)
        return 0


cdef wan_status slots_take(wan_slots *slots, wan_call_identity *call) noexcept nogil:
    cdef wan_status status
    gil_may_go()
    status = wan_slots_take(slots, call)
    gil_back()
    return status


cdef void slots_give(wan_slots *slots, wan_call_identity call) noexcept nogil:
    gil_may_go()
    wan_slots_give(slots, call)
    gil_back()


cdef uint64_t drawn_caller(uint32_t member) except 0:
    return (<uint64_t>member << 32 | int.from_bytes(os.urandom(4), "little")) or 1


def member_of_caller(uint64_t caller):
    """The number of the incarnation in a client id."""
    return caller >> 32
