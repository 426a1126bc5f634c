# The interface of tagged.pyx.
from libc.stdint cimport uint8_t, uint32_t

cdef class Undecodable:
    cdef readonly uint8_t form
    cdef readonly bytes data
    cdef readonly str reason
    cdef readonly object cause

cdef class Encoded:
    cdef readonly uint8_t form
    cdef readonly bytes data
    cdef object seen            # The object, if somebody asked for it before.
    cdef bint was_seen

cdef struct tagged_bytes:
    uint8_t *data
    size_t used, capacity
    uint32_t containers
    bint is_key
    bint is_closed              # Only objects that need no hook are written.

cdef object refused(str why)
cdef str described(object obj)
cdef object raise_value_too_large(Py_ssize_t size)
cdef object show(uint8_t form, const uint8_t *data, uint32_t length)
cdef tuple pack_tagged(object obj, bint is_key)
cdef bint pack_closed(tagged_bytes *out, object obj) except -1
