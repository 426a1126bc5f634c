# Owns the forms of keys and values: which bytes a Python object becomes, and back. Common types are done here; what
# needs a library (tagged) or a user's serializer goes through two hooks that pywan.serializers sets.
from cpython.unicode cimport PyUnicode_DecodeUTF8
from cpython.long cimport PyLong_AsLongLongAndOverflow

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef object encode_hook = None      # obj -> (form, bytes)
cdef object decode_hook = None      # form, bytes -> obj

cdef struct encoded:
    const uint8_t *data
    uint32_t length
    uint8_t form
    int64_t number      # Storage of the bytes of an int or float; `data` points here then.
    double real


def set_codec_hooks(encode, decode):
    """How to encode what is neither bytes, str, int, float nor None, and to decode forms 2 and 6."""
    global encode_hook, decode_hook
    encode_hook, decode_hook = encode, decode


cdef object no_codec():
    import pywan.serializers  # noqa: F401 - sets the hooks
    return None


cdef object encode(object obj, encoded *out):
    """Fills `out`; the bytes live as long as the returned holder (and `out` itself) do."""
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
            from pywan.errors import SerializationError
            raise SerializationError(f"the text {obj!r} cannot be written as UTF-8 ({error}); pass bytes instead") from None
        out.form = WAN_FORM_TEXT
    elif kind is int:
        out.number = PyLong_AsLongLongAndOverflow(obj, &overflow)
        if overflow:
            return encode_other(obj, out)
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
        return encode_other(obj, out)
    if size > <Py_ssize_t>WAN_VALUE_BYTES_MAX:
        raise_value_too_large(size)
    out.length = <uint32_t>size
    return obj


cdef object encode_other(object obj, encoded *out):
    if encode_hook is None:
        no_codec()
    form, data = encode_hook(obj)
    out.data = <const uint8_t *>PyBytes_AS_STRING(data)
    if PyBytes_GET_SIZE(data) > <Py_ssize_t>WAN_VALUE_BYTES_MAX:
        raise_value_too_large(PyBytes_GET_SIZE(data))
    out.length = <uint32_t>PyBytes_GET_SIZE(data)
    out.form = form
    return data


cdef object raise_value_too_large(Py_ssize_t size):
    from pywan.errors import EventTooLargeError
    raise EventTooLargeError(f"a value of {size} bytes is over the limit of {WAN_VALUE_BYTES_MAX} bytes; split it, nothing was stored")


cdef object encode_key(object obj, encoded *out):
    if obj is None:
        from pywan.errors import SerializationError
        raise SerializationError("None cannot be a key; use bytes, str, int or another value")
    holder = encode(obj, out)
    if out.length > WAN_KEY_BYTES_MAX:
        from pywan.errors import EventTooLargeError
        raise EventTooLargeError(f"a key of {out.length} bytes is over the limit of {WAN_KEY_BYTES_MAX} bytes; nothing was stored")
    return holder


cdef object decode(uint8_t form, const uint8_t *data, uint32_t length):
    if form == WAN_FORM_BYTES:
        return PyBytes_FromStringAndSize(<const char *>data, length)
    if form == WAN_FORM_TEXT:
        return PyUnicode_DecodeUTF8(<const char *>data, length, "surrogateescape")
    if form == WAN_FORM_NONE:
        return None
    cdef int64_t number
    cdef double real
    if form == WAN_FORM_INT and length == 8:
        memcpy(&number, data, 8)
        return number
    if form == WAN_FORM_FLOAT and length == 8:
        memcpy(&real, data, 8)
        return real
    if decode_hook is None:
        no_codec()
    return decode_hook(form, PyBytes_FromStringAndSize(<const char *>data, length))


def encode_object(obj):
    """(form, bytes) of a Python object, as it is stored and travels."""
    cdef encoded out
    holder = encode(obj, &out)
    return out.form, PyBytes_FromStringAndSize(<const char *>out.data, out.length)


def decode_object(uint8_t form, bytes data):
    """The Python object behind a form and its bytes."""
    return decode(form, <const uint8_t *>PyBytes_AS_STRING(data), <uint32_t>PyBytes_GET_SIZE(data))


def key_hash(key):
    """The 64-bit hash that decides a key's bucket: part of the format."""
    cdef encoded out
    holder = encode_key(key, &out)
    return wan_key_hash(out.data, out.length, out.form)
