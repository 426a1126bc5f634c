# The interface of region_callbacks.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from cpython.pythread cimport PyThread_type_lock
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.region.region_state cimport origin, region_core

cdef enum:
    EVENTS_TOGETHER = 1000      # The most events of one list for `after_events`.


cdef struct old_value:
    # What a key had before a change.
    uint8_t *bytes              # The value, in memory of its own. NULL: no value, or an empty one.
    uint32_t length
    uint8_t form
    uint8_t is_there            # The key was there, with or without a value.
    uint8_t has_value


cdef class EntryEvent:
    cdef object face
    cdef uint8_t own_site       # The site of the member.
    cdef uint64_t bytes         # Of the record. Both pieces of memory belong to the event, and never change.
    cdef wan_record *record
    cdef old_value old
    # The decoded parts. None: the part was not read yet, or is None.
    cdef object seen_key, seen_old, seen_new, seen_argument


cdef class CallbackLock:
    cdef readonly str region
    cdef PyThread_type_lock lock
    cdef unsigned long owner    # The thread that holds the lock, if `depth` is not 0.
    cdef uint32_t depth
    cdef wan_buffer outer       # For each depth, the callback lock that the thread held before.

    cdef int enter(self) except -1
    cdef int wait(self) except -1
    cdef void leave(self) noexcept


cdef class RegionCallbacks:
    cdef readonly CallbackLock lock
    cdef readonly object region         # The MemberRegion.
    cdef readonly uint8_t site
    # The lock guards the fields below. `listeners` may be read without the lock.
    cdef readonly tuple listeners
    cdef readonly object told           # The listener that is called now, by the latest caller.
    cdef tuple methods                  # For each operation: a listener, its method, the next listener, and so on.
    cdef tuple list_methods             # The same for `after_events`.
    cdef public object resolver
    cdef list listed                    # Events of the open list.
    cdef uint32_t lists                 # How many callers keep a list open.
    cdef bint is_telling                # `tell_listed` runs.

    cdef EntryEvent event_for(self, const wan_change *change, const origin *from_)
    cdef int tell(self, EntryEvent event) except -1
    cdef int tell_list(self, list events) except -1
    cdef int call(self, object listener, object method, object argument, EntryEvent event) except -1
    cdef int open_list(self) except -1
    cdef int tell_listed(self) except -1
    cdef int close_list(self) except -1


cdef EntryEvent new_event(object face, uint8_t own_site, uint64_t bytes)
cdef void write_event(EntryEvent event, const region_core *region, const wan_change *change, const origin *from_,
                      uint32_t operation) noexcept


cdef inline bint hears(RegionCallbacks callbacks, uint32_t operation) noexcept:
    """Whether a listener hears of changes with this operation."""
    return bool(callbacks.list_methods) or bool(callbacks.methods[operation])


cdef bint keep_old(old_value *old, const uint8_t *value, uint32_t length, uint8_t form) noexcept nogil
