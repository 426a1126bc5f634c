# The interface of codec.pyx.
from libc.stdint cimport int64_t, uint8_t, uint32_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from pywan._core.c_record cimport *
from pywan._core.c_python cimport *

cdef struct encoded:
    const uint8_t *data
    uint32_t length
    uint8_t form
    # The bytes of an int or a float. `data` points to one of these then.
    int64_t number
    double real


cdef inline bint encode_plain(object obj, encoded *out, Py_ssize_t most):
    """Fills `out` if the object holds the bytes as they are: bytes and ASCII text, up to `most` bytes. False: it does
    not, or they are more."""
    cdef Py_ssize_t size
    if PyBytes_CheckExact(obj):
        size = PyBytes_GET_SIZE(obj)
        out.data, out.form = <const uint8_t *>PyBytes_AS_STRING(obj), WAN_FORM_BYTES
    elif PyUnicode_CheckExact(obj) and PyUnicode_IS_COMPACT_ASCII(obj):
        size = PyUnicode_GET_LENGTH(obj)
        out.data, out.form = <const uint8_t *>PyUnicode_DATA(obj), WAN_FORM_TEXT
    else:
        return False
    out.length = <uint32_t>size
    return size <= most


cdef inline object encode(object obj, encoded *out):
    """Fills `out`. The bytes live as long as both the returned holder and `out` itself."""
    return obj if encode_plain(obj, out, <Py_ssize_t>WAN_VALUE_BYTES_MAX) else encode_by_type(obj, out, False)


cdef object encode_by_type(object obj, encoded *out, bint is_key)


cdef inline object encode_key(object obj, encoded *out):
    """As `encode`, for a key."""
    return obj if encode_plain(obj, out, <Py_ssize_t>WAN_KEY_BYTES_MAX) else encode_key_by_type(obj, out)


cdef object encode_key_by_type(object obj, encoded *out)
cdef object decode(uint8_t form, const uint8_t *data, uint32_t length)
