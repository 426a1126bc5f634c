# Owns nothing but names: other names of macros, macros with arguments, and words of the compiler.
from libc.stdint cimport uint32_t, uint64_t

cdef extern from "base/wan_base.h" nogil:
    const uint64_t NEVER "WAN_NEVER"             # A time that does not come.
    const uint64_t NO_LIMIT "WAN_NO_LIMIT"       # A number of bytes or items that is not limited.
    const uint64_t NO_STAMP "WAN_NO_STAMP"       # Instead of a stamp: there is none.
    const uint64_t NO_SEQUENCE "WAN_NO_SEQUENCE"  # Instead of a sequence: none is expected.
    # Names of the same number for what the C does not know.
    const uint64_t DO_NOT_WAKE "WAN_NO_LIMIT"    # Instead of a number of events that wakes a dispatcher: none does.
    const uint64_t NO_SEGMENT "WAN_NO_LIMIT"     # Instead of the number of a segment: there is none.
    # Instead of a number of records at which a sweep began: there was none.
    const uint64_t NO_SWEEP "WAN_NO_LIMIT"
    void wan_prefetch(const void *at)

cdef extern from "store/wan_queue.h" nogil:
    uint32_t WAN_HOLE_PARKED_FOR(uint32_t failure)
    uint32_t WAN_HOLE_KIND(uint32_t reason)

cdef extern from *:
    """
    #ifdef WAN_DEBUG
    #define WAN_CHECKS_STOP 1
    #else
    #define WAN_CHECKS_STOP 0
    #endif
    """
    enum: WAN_CHECKS_STOP
    uint32_t __atomic_load_n(uint32_t *at, int order) nogil
    enum: __ATOMIC_ACQUIRE
