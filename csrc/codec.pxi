# Owns the forms of keys and values: which bytes a Python object becomes, and back. What is neither bytes, text nor a number goes through
# tagged.pxi.
from cpython.unicode cimport PyUnicode_DecodeUTF8
from cpython.long cimport PyLong_AsLongLongAndOverflow

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    bint PyBytes_CheckExact(object obj)
    bint PyUnicode_CheckExact(object obj)
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    const void *PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

cdef struct encoded:
    const uint8_t *data
    uint32_t length
    uint8_t form
    int64_t number      # Storage of the bytes of an int or float; `data` points here then.
    double real


cdef class Undecodable:
    """Stands for a key or value, or a part of one, that is no Python object in this process: its form, its bytes, and the reason.

    It can be used as a key and put as a value: what goes on is the same form and bytes. `cause` is the exception behind the reason, or None.
    """
    cdef readonly uint8_t form
    cdef readonly bytes data
    cdef readonly str reason
    cdef readonly object cause

    def __init__(self, uint8_t form, bytes data not None, str reason not None="", cause=None):
        self.form, self.data, self.reason, self.cause = form, data, reason, cause

    def __eq__(self, other):
        return type(other) is Undecodable and self.form == (<Undecodable>other).form and self.data == (<Undecodable>other).data

    def __hash__(self):
        return hash((Undecodable, self.form, self.data))

    def __repr__(self):
        return f"<Undecodable: form {self.form}, {len(self.data)} bytes: {self.reason}>"

    def __reduce__(self):
        return Undecodable, (self.form, self.data, self.reason)


cdef class Encoded:
    """A key, value or callback argument on its way: its form and bytes, which go on as they are, and its object for whoever looks at it."""
    cdef readonly uint8_t form
    cdef readonly bytes data
    cdef object seen            # The object, once it was looked at.
    cdef bint was_seen

    def __init__(self, uint8_t form, bytes data not None):
        self.form, self.data = form, data

    @property
    def plain(self):
        """The object; Undecodable where there is none in this process."""
        if not self.was_seen:
            self.seen = show(self.form, <const uint8_t *>PyBytes_AS_STRING(self.data), <uint32_t>PyBytes_GET_SIZE(self.data))
            self.was_seen = True
        return self.seen

    def __repr__(self):
        return repr(self.plain)


cdef inline bint encode_plain(object obj, encoded *out, Py_ssize_t most):
    """Fills `out` if the bytes lie in the object as they are: bytes and ASCII text, up to `most` of them."""
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
    """Fills `out`; the bytes live as long as the returned holder (and `out` itself) do."""
    return obj if encode_plain(obj, out, <Py_ssize_t>WAN_VALUE_BYTES_MAX) else encode_by_type(obj, out, False)


cdef object encode_by_type(object obj, encoded *out, bint is_key):
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
            raise refused(f"the text {obj!r:.100} cannot be written as UTF-8 ({error.reason}); pass bytes instead") from None
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
    cdef bytes data
    if type(obj) is Encoded:
        out.form, data = (<Encoded>obj).form, (<Encoded>obj).data
    elif type(obj) is Undecodable:
        out.form, data = (<Undecodable>obj).form, (<Undecodable>obj).data
    else:
        form, found = pack_tagged(obj, is_key)
        if form is None:        # It is worth what a plain object is.
            return encode_by_type(found, out, is_key)
        out.form, data = form, found
    if PyBytes_GET_SIZE(data) > <Py_ssize_t>WAN_VALUE_BYTES_MAX:
        raise_value_too_large(PyBytes_GET_SIZE(data))
    out.data = <const uint8_t *>PyBytes_AS_STRING(data)
    out.length = <uint32_t>PyBytes_GET_SIZE(data)
    return data


cdef object refused(str why):
    from pywan.errors import SerializationError
    return SerializationError(f"{why} (nothing was stored)")


cdef object raise_value_too_large(Py_ssize_t size):
    from pywan.errors import EventTooLargeError
    raise EventTooLargeError(f"a value of {size} bytes is over the limit of {WAN_VALUE_BYTES_MAX} bytes; split it, nothing was stored")


cdef str described(object obj):
    """`obj` for an error; not every object can be printed."""
    try:
        return f"{obj!r:.100}"
    except Exception:
        return f"a {type(obj).__qualname__} that cannot be printed"


cdef inline object encode_key(object obj, encoded *out):
    """`encode` of what has to be a key."""
    return obj if encode_plain(obj, out, <Py_ssize_t>WAN_KEY_BYTES_MAX) else encode_key_by_type(obj, out)


cdef object encode_key_by_type(object obj, encoded *out):
    cdef type kind = type(obj)
    if obj is None:
        raise refused("None cannot be a key; use bytes, str, int or another value")
    holder = encode_by_type(obj, out, True)
    if out.length > WAN_KEY_BYTES_MAX:
        from pywan.errors import EventTooLargeError
        raise EventTooLargeError(f"a key of {out.length} bytes is over the limit of {WAN_KEY_BYTES_MAX} bytes; nothing was stored")
    if kind is not str and wan_key_check(out.data, out.length, out.form) != WAN_OK:
        raise refused(f"{described(obj)} cannot be a key: {detail_text()}")
    return holder


cdef object show(uint8_t form, const uint8_t *data, uint32_t length):
    """The object behind a form and its bytes; Undecodable where there is none in this process."""
    cdef int64_t number
    cdef double real
    if form == WAN_FORM_BYTES:
        return PyBytes_FromStringAndSize(<const char *>data, length)
    if form == WAN_FORM_TEXT:
        try:
            return PyUnicode_DecodeUTF8(<const char *>data, length, NULL)
        except UnicodeDecodeError as error:
            return Undecodable(form, PyBytes_FromStringAndSize(<const char *>data, length), f"it is not UTF-8: {error.reason} at {error.start}", error)
    if form == WAN_FORM_INT and length == 8:
        memcpy(&number, data, 8)
        return number
    if form == WAN_FORM_FLOAT and length == 8:
        memcpy(&real, data, 8)
        return real
    if form == WAN_FORM_NONE and length == 0:
        return None
    return unpack_tagged(form, data, length)


cdef object decode(uint8_t form, const uint8_t *data, uint32_t length):
    """As `show`; SerializationError where there is no object."""
    result = show(form, data, length)
    if type(result) is Undecodable:
        from pywan.errors import SerializationError
        raise SerializationError((<Undecodable>result).reason) from (<Undecodable>result).cause
    return result


def encode_object(obj):
    """(form, bytes) of a Python object, as it is stored and travels as a value."""
    cdef encoded out
    holder = encode(obj, &out)
    return out.form, PyBytes_FromStringAndSize(<const char *>out.data, out.length)


def encode_key_object(obj):
    """(form, bytes) of a Python object as a key."""
    cdef encoded out
    holder = encode_key(obj, &out)
    return out.form, PyBytes_FromStringAndSize(<const char *>out.data, out.length)


def encoded_value(obj):
    """A value or callback argument as Encoded."""
    cdef encoded out
    if type(obj) is Encoded:
        return obj
    holder = encode(obj, &out)
    return made_of(obj, &out)


def encoded_key(obj):
    """A key as Encoded."""
    cdef encoded out
    if type(obj) is Encoded:
        return obj
    holder = encode_key(obj, &out)
    return made_of(obj, &out)


cdef Encoded made_of(object obj, const encoded *out):
    cdef Encoded result = Encoded(out.form, PyBytes_FromStringAndSize(<const char *>out.data, out.length))
    result.seen, result.was_seen = obj, True
    return result


def decode_object(uint8_t form, bytes data):
    """The Python object behind a form and its bytes. SerializationError where there is none in this process."""
    return decode(form, <const uint8_t *>PyBytes_AS_STRING(data), <uint32_t>PyBytes_GET_SIZE(data))


def show_object(uint8_t form, bytes data):
    """The Python object behind a form and its bytes; Undecodable where there is none in this process."""
    return show(form, <const uint8_t *>PyBytes_AS_STRING(data), <uint32_t>PyBytes_GET_SIZE(data))


def key_hash(key):
    """The 64-bit hash that decides a key's bucket: part of the format."""
    cdef encoded out
    holder = encode_key(key, &out)
    return wan_key_hash(out.data, out.length, out.form)
