# Owns the forms of keys and values: which bytes a Python object becomes, and how it comes back. An object that is
# neither bytes, text, None nor a number goes through tagged.pyx.
from libc.stdint cimport uint8_t, uint32_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_python cimport *
from pywan._core.values.tagged cimport (
    Encoded, Undecodable, described, pack_tagged, raise_value_too_large, refused, show)


cdef object encode_by_type(object obj, encoded *out, bint is_key):
    """As `encode`, for objects of any type."""
    cdef Py_ssize_t size = 0
    cdef int overflow = 0
    cdef type kind = type(obj)
    if kind is bytes:
        out.data = <const uint8_t *>PyBytes_AS_STRING(obj)
        size = PyBytes_GET_SIZE(obj)
        out.form = WAN_FORM_BYTES
    elif kind is str:
        try:
            out.data = <const uint8_t *>PyUnicode_AsUTF8AndSize(obj, &size)
        except UnicodeEncodeError as error:
            raise refused(f"the text {obj!r:.100} cannot be written as UTF-8 ({error.reason}); pass bytes"
                          " instead") from None
        out.form = WAN_FORM_TEXT
    elif kind is int:
        out.number = PyLong_AsLongLongAndOverflow(obj, &overflow)
        if overflow:
            return encode_other(obj, out, is_key)
        out.data = <const uint8_t *>&out.number
        size = 8
        out.form = WAN_FORM_INT
    elif kind is float:
        out.real = obj
        out.data = <const uint8_t *>&out.real
        size = 8
        out.form = WAN_FORM_FLOAT
    elif obj is None:
        out.data = <const uint8_t *>&out.number
        out.form = WAN_FORM_NONE
    else:
        return encode_other(obj, out, is_key)
    if size > <Py_ssize_t>WAN_VALUE_BYTES_MAX:
        raise_value_too_large(size)
    out.length = <uint32_t>size
    return obj


cdef object encode_other(object obj, encoded *out, bint is_key):
    """As `encode`, for objects that are no bytes, text, number or None."""
    cdef bytes data
    if type(obj) is Encoded:
        out.form, data = (<Encoded>obj).form, (<Encoded>obj).data
    elif type(obj) is Undecodable:
        out.form, data = (<Undecodable>obj).form, (<Undecodable>obj).data
    else:
        form, found = pack_tagged(obj, is_key)
        if form is None:        # The object stands for a plain one, which is encoded instead.
            return encode_by_type(found, out, is_key)
        out.form, data = form, found
    if PyBytes_GET_SIZE(data) > <Py_ssize_t>WAN_VALUE_BYTES_MAX:
        raise_value_too_large(PyBytes_GET_SIZE(data))
    out.data = <const uint8_t *>PyBytes_AS_STRING(data)
    out.length = <uint32_t>PyBytes_GET_SIZE(data)
    return data


cdef object encode_key_by_type(object obj, encoded *out):
    """As `encode_key`, for objects of any type."""
    cdef type kind = type(obj)
    cdef const char *fault
    if obj is None:
        raise refused("None cannot be a key; use bytes, str, int or another value")
    holder = encode_by_type(obj, out, True)
    if out.length > WAN_KEY_BYTES_MAX:
        from pywan.errors import EventTooLargeError
        raise EventTooLargeError(f"a key of {out.length} bytes is over the limit of {WAN_KEY_BYTES_MAX} bytes; nothing"
                                 " was stored")
    if kind is not str:
        fault = wan_key_fault(out.data, out.length, out.form)
        if fault != NULL:
            raise refused(f"{described(obj)} of type {kind.__qualname__} cannot be a key: {fault.decode()}")
    return holder


cdef object decode(uint8_t form, const uint8_t *data, uint32_t length):
    """As `show`, but raises SerializationError if the bytes are no object in this process."""
    result = show(form, data, length)
    if type(result) is Undecodable:
        from pywan.errors import SerializationError
        raise SerializationError((<Undecodable>result).reason) from (<Undecodable>result).cause
    return result


def encode_object(obj):
    """(form, bytes) of a Python object as a value: as it is stored and sent."""
    cdef encoded out
    _holder = encode(obj, &out)
    return out.form, PyBytes_FromStringAndSize(<const char *>out.data, out.length)


def encode_key_object(obj):
    """(form, bytes) of a Python object as a key."""
    cdef encoded out
    _holder = encode_key(obj, &out)
    return out.form, PyBytes_FromStringAndSize(<const char *>out.data, out.length)


def encoded_value(obj):
    """A value or callback argument as Encoded."""
    cdef encoded out
    if type(obj) is Encoded:
        return obj
    _holder = encode(obj, &out)
    return made_of(obj, &out)


def encoded_key(obj):
    """A key as Encoded."""
    cdef encoded out
    if type(obj) is Encoded:
        return obj
    _holder = encode_key(obj, &out)
    return made_of(obj, &out)


cdef Encoded made_of(object obj, const encoded *out):
    """An Encoded with these bytes, for which `obj` is known to be the object."""
    cdef Encoded result = Encoded(out.form, PyBytes_FromStringAndSize(<const char *>out.data, out.length))
    result.seen, result.was_seen = obj, True
    return result


def decode_object(uint8_t form, bytes data):
    """The Python object for a form and its bytes. SerializationError if there is none in this process."""
    return decode(form, <const uint8_t *>PyBytes_AS_STRING(data), <uint32_t>PyBytes_GET_SIZE(data))


def show_object(uint8_t form, bytes data):
    """The Python object for a form and its bytes. An Undecodable if there is none in this process."""
    return show(form, <const uint8_t *>PyBytes_AS_STRING(data), <uint32_t>PyBytes_GET_SIZE(data))


def key_hash(key):
    """The 64-bit hash that decides a key's bucket. It is part of the format."""
    cdef encoded out
    _holder = encode_key(key, &out)
    return wan_key_hash(out.data, out.length, out.form)
