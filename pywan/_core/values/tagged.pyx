# Owns the tagged form: one msgpack object, with extensions for types that msgpack does not know. Structure, depth and
# sizes are done here. Objects that need a library, and users' serializers, go through the two hooks that
# pywan.serializers sets. Also owns `Encoded`, a key or value that is already encoded, and `Undecodable`, which stands
# for one that is no object in this process.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove, memset
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.datetime cimport date_new, datetime_new, import_datetime, timedelta_new
from pywan._core.c_record cimport *
from pywan._core.c_python cimport *
from pywan._core.values.column_views cimport COLUMN_BYTES, COLUMN_STR, MOMENT_BYTES_MAX, put_moment
from pywan._core.values.msgpack cimport (
    _column_put_be16, _column_put_be32, _column_put_be64, _column_put_msgpack_head, _column_put_msgpack_int,
    put_msgpack_count)
from pywan.errors import SerializationError


cdef class Undecodable:
    """Stands for a key or value, or a part of one, that is no Python object in this process. It has the form, the
    bytes, and the reason.

    It can be used as a key and put as a value: then the same form and bytes are stored and sent. `cause` is the
    exception behind the reason, or None.
    """

    def __init__(self, uint8_t form, bytes data not None, str reason not None="", cause=None):
        self.form, self.data, self.reason, self.cause = form, data, reason, cause

    def __eq__(self, other):
        return (type(other) is Undecodable and self.form == (<Undecodable>other).form
                and self.data == (<Undecodable>other).data)

    def __hash__(self):
        return hash((Undecodable, self.form, self.data))

    def __repr__(self):
        return f"<Undecodable: form {self.form}, {len(self.data)} bytes: {self.reason}>"

    def __reduce__(self):
        return Undecodable, (self.form, self.data, self.reason)


cdef class NeedsHook(Exception):
    """An object needs a hook, and the caller of `pack_closed` does not want the hook to run now."""


cdef class Encoded:
    """A key, value or callback argument that is encoded already. Its form and bytes are stored and sent as they are.
    The object is made when somebody asks for it."""

    def __init__(self, uint8_t form, bytes data not None):
        self.form, self.data = form, data

    @property
    def plain(self):
        """The object. It is an Undecodable if there is none in this process."""
        if not self.was_seen:
            self.seen = show(self.form, <const uint8_t *>PyBytes_AS_STRING(self.data),
                             <uint32_t>PyBytes_GET_SIZE(self.data))
            self.was_seen = True
        return self.seen

    def __repr__(self):
        return repr(self.plain)


cdef object refused(str why):
    return SerializationError(f"{why} (nothing was stored)")


cdef object raise_value_too_large(Py_ssize_t size):
    from pywan.errors import EventTooLargeError
    raise EventTooLargeError(f"a value of {size} bytes is over the limit of {WAN_VALUE_BYTES_MAX} bytes; split it,"
                             " nothing was stored")


cdef object show(uint8_t form, const uint8_t *data, uint32_t length):
    """The object for a form and its bytes. It is an Undecodable if there is none in this process."""
    cdef int64_t number
    cdef double real
    if form == WAN_FORM_BYTES:
        return PyBytes_FromStringAndSize(<const char *>data, length)
    if form == WAN_FORM_TEXT:
        try:
            return PyUnicode_DecodeUTF8(<const char *>data, length, NULL)
        except UnicodeDecodeError as error:
            return Undecodable(form, PyBytes_FromStringAndSize(<const char *>data, length),
                               f"it is not UTF-8: {error.reason} at {error.start}", error)
    if form == WAN_FORM_INT and length == 8:
        memcpy(&number, data, 8)
        return number
    if form == WAN_FORM_FLOAT and length == 8:
        memcpy(&real, data, 8)
        return real
    if form == WAN_FORM_NONE and length == 0:
        return None
    return unpack_tagged(form, data, length)


# Both directions

import datetime as _datetime
import_datetime()


cdef enum:
    EXTENSION_HEAD_MAX = 6
    DAYS_TO_1970 = 719163               # The ordinal of 1970-01-01 in Python.
    FIRST_DAY = -719162                 # 0001-01-01, the first day of Python's calendar.
    LAST_DAY = 2932896                  # 9999-12-31, the last one.
    SECONDS_A_DAY = 86400
    DURATION_DAYS_MAX = 999999999       # The limit of Python's timedelta, in both directions.
    STEPS_SHOWN = 8                     # An error shows so many steps to the part that it is about.

cdef object tag_hook = None     # (obj, is_key) -> (extension, content), or (None, an equal plain object)
cdef object untag_hook = None   # (extension, content) -> obj
cdef type datetime_type = _datetime.datetime
cdef type date_type = _datetime.date
cdef type timedelta_type = _datetime.timedelta
cdef object utc = _datetime.timezone.utc


cdef struct tagged_reader:
    const uint8_t *at
    const uint8_t *end
    uint32_t containers


def set_codec_hooks(tag, untag):
    """Sets the functions that write and read objects other than containers, texts, numbers and bytes.

    `tag(obj, is_key)` returns (extension, content), where content is bytes, [name, text or bytes], or (seconds,
    nanoseconds). It may return (None, object) instead, with a plain object to write. `untag(extension, content)`
    returns the object. """
    global tag_hook, untag_hook
    tag_hook, untag_hook = tag, untag


cdef int need_hooks() except -1:
    if tag_hook is None:
        import pywan.serializers  # no-cython-lint: importing it sets the hooks.
    return 0


# Writing

cdef uint8_t *tagged_room(tagged_bytes *out, size_t more) except NULL:
    """Makes room for `more` bytes, and returns where they go. The caller then raises `used`."""
    cdef size_t capacity
    cdef void *grown
    if out.capacity - out.used < more:
        if out.used + more > WAN_VALUE_BYTES_MAX + EXTENSION_HEAD_MAX:
            raise_value_too_large(out.used + more)
        capacity = 2 * out.capacity if 2 * out.capacity > out.used + more else out.used + more + 256
        grown = realloc(out.data, capacity)
        if grown == NULL:
            raise MemoryError(f"no memory for a value of {out.used + more} bytes")
        out.data, out.capacity = <uint8_t *>grown, capacity
    return out.data + out.used


cdef int pack_raw(tagged_bytes *out, const uint8_t *data, size_t length) except -1:
    if length:
        memcpy(tagged_room(out, length), data, length)
        out.used += length
    return 0


cdef int pack_text_or_bytes(tagged_bytes *out, uint8_t form, const uint8_t *data, Py_ssize_t length) except -1:
    if length > <Py_ssize_t>WAN_VALUE_BYTES_MAX:
        raise_value_too_large(length)
    cdef uint8_t *to = tagged_room(out, <size_t>length + 5)
    out.used = <size_t>(_column_put_msgpack_head(to, form, <uint32_t>length) - out.data)
    return pack_raw(out, data, <size_t>length)


cdef int pack_count(tagged_bytes *out, uint8_t few, uint8_t many, Py_ssize_t count) except -1:
    """Writes the head of an array (0x90, 0xdc) or a map (0x80, 0xde)."""
    cdef uint8_t *to = tagged_room(out, 5)
    out.used = <size_t>(put_msgpack_count(to, few, many, <uint32_t>count) - out.data)
    return 0


cdef int pack_enter(tagged_bytes *out, int depth) except -1:
    if depth >= WAN_TAGGED_DEPTH_MAX:
        raise refused(f"the object is nested deeper than {WAN_TAGGED_DEPTH_MAX} containers, or holds itself; flatten"
                      " it, or pass bytes")
    out.containers += 1
    if out.containers > WAN_TAGGED_CONTAINERS_MAX:
        raise refused(f"the object has more than {WAN_TAGGED_CONTAINERS_MAX} containers; split it, or pass"
                      " bytes")
    return 0


cdef int add_step(object error, str step) except -1:
    """Notes one step of the way from the whole object to the part that is refused. The last step comes first. A step
    is "[3]" or "['name']", or says what the part is of its container: "a key of", "an element of"."""
    if error._steps is None:
        error._steps = []
    (<list>error._steps).append(step)
    return 0


cdef str where_of(list steps, bint is_key):
    """The part to which the steps lead, such as `value['items'][3]`, or `[1] in a key of value['items']`."""
    cdef str part = "key" if is_key else "value", holder = ""
    cdef str step, whole
    if len(steps) > STEPS_SHOWN:
        steps = steps[:STEPS_SHOWN // 2] + ["[...]"] + steps[len(steps) - STEPS_SHOWN // 2:]
    for step in reversed(steps):
        if step.startswith("["):
            part += step
        else:
            whole = part + holder if part else holder.removeprefix(" in ")
            part, holder = "", f" in {step} {whole}"
    return part + holder if part else holder.removeprefix(" in ")


cdef str described(object obj):
    """`obj` as text for an error message. Not every object can be printed."""
    try:
        return f"{obj!r:.100}"
    except Exception:
        return f"a {type(obj).__qualname__} that cannot be printed"


cdef int pack_array(tagged_bytes *out, object items, Py_ssize_t count, int depth) except -1:
    cdef Py_ssize_t written = 0
    pack_count(out, 0x90, 0xdc, count)
    try:
        for item in items:
            written += 1
            if written > count:
                break
            pack_object(out, item, depth)
    except SerializationError as error:
        add_step(error, f"[{written - 1}]")
        raise
    if written != count:
        raise refused("a list changed while it was written; put a copy")
    return 0


cdef int pack_map(tagged_bytes *out, dict items, int depth) except -1:
    cdef Py_ssize_t written = 0, count = len(items)
    cdef bint is_in_value = False
    pack_count(out, 0x80, 0xde, count)
    try:
        for key, value in items.items():
            written += 1
            is_in_value = False
            pack_object(out, key, depth)
            is_in_value = True
            pack_object(out, value, depth)
    except SerializationError as error:
        add_step(error, f"[{described(key)}]" if is_in_value else "a key of")
        raise
    except RuntimeError as error:
        raise refused(f"a dict changed while it was written ({error}); put a copy") from error
    if written != count:
        raise refused("a dict changed while it was written; put a copy")
    return 0


cdef int pack_set(tagged_bytes *out, object items, int depth) except -1:
    """Writes the elements in the order of their bytes, so that equal sets have the same bytes."""
    cdef size_t start = out.used
    cdef list pieces = []
    for item in tuple(items):
        try:
            pack_object(out, item, depth)
        except SerializationError as error:
            add_step(error, "an element of")
            raise
        pieces.append(PyBytes_FromStringAndSize(<const char *>out.data + start, out.used - start))
        out.used = start
    pieces.sort()
    pack_count(out, 0x90, 0xdc, len(pieces))
    for piece in pieces:
        pack_raw(out, <const uint8_t *>PyBytes_AS_STRING(piece), PyBytes_GET_SIZE(piece))
    return 0


cdef size_t pack_extension_begin(tagged_bytes *out) except? 0:
    """Leaves room for the head of an extension, because its length is known only at its end. Returns where its content
    begins."""
    tagged_room(out, EXTENSION_HEAD_MAX)
    out.used += EXTENSION_HEAD_MAX
    return out.used


cdef void pack_extension_end(tagged_bytes *out, size_t begin, int tag) noexcept:
    cdef uint8_t *to = out.data + begin - EXTENSION_HEAD_MAX
    cdef uint8_t *end = to
    cdef size_t length = out.used - begin
    if length in (1, 2, 4, 8, 16):
        end[0] = (0xd4 if length == 1 else 0xd5 if length == 2 else 0xd6 if length == 4
                  else 0xd7 if length == 8 else 0xd8)
        end += 1
    elif length < 256:
        end[0], end[1] = 0xc7, <uint8_t>length
        end += 2
    elif length < 65536:
        end[0] = 0xc8
        _column_put_be16(end + 1, <uint16_t>length)
        end += 3
    else:
        end[0] = 0xc9
        _column_put_be32(end + 1, <uint32_t>length)
        end += 5
    end[0] = <uint8_t>tag
    memmove(end + 1, out.data + begin, length)
    out.used = <size_t>(end + 1 - out.data) + length


cdef int pack_moment(tagged_bytes *out, int tag, object seconds, object nanoseconds) except -1:
    cdef int64_t whole
    try:
        whole = seconds
    except OverflowError:
        raise refused(f"a moment or duration of {seconds} seconds is out of range") from None
    out.used += put_moment(tagged_room(out, MOMENT_BYTES_MAX), <uint8_t>tag, whole, <uint32_t>nanoseconds)
    return 0


cdef int pack_big_int(tagged_bytes *out, object number) except -1:
    cdef uint8_t *to
    cdef size_t begin
    if 0 <= number < 1 << 64:
        to = tagged_room(out, 9)
        to[0] = 0xcf
        _column_put_be64(to + 1, <uint64_t>number)
        out.used += 9
        return 0
    cdef bytes data = number.to_bytes(((~number if number < 0 else number).bit_length() + 8) // 8, "little",
                                      signed=True)
    begin = pack_extension_begin(out)
    pack_raw(out, <const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    pack_extension_end(out, begin, WAN_TAG_BIG_INT)
    return 0


cdef int pack_object(tagged_bytes *out, object obj, int depth) except -1:
    cdef type kind = type(obj)
    cdef Py_ssize_t size = 0
    cdef const uint8_t *text
    cdef uint8_t *to
    cdef int64_t number
    cdef double real
    cdef uint64_t bits
    cdef int overflow = 0
    cdef size_t begin
    if kind is str:
        try:
            text = <const uint8_t *>PyUnicode_AsUTF8AndSize(obj, &size)
        except UnicodeEncodeError as error:
            raise refused(f"the text {obj!r:.100} cannot be written as UTF-8 ({error.reason}); pass bytes"
                          " instead") from None
        pack_text_or_bytes(out, COLUMN_STR, text, size)
    elif kind is int:
        number = PyLong_AsLongLongAndOverflow(obj, &overflow)
        if overflow:
            return pack_big_int(out, obj)
        to = tagged_room(out, 9)
        out.used = <size_t>(_column_put_msgpack_int(to, number) - out.data)
    elif kind is float:
        real = obj
        memcpy(&bits, &real, 8)
        to = tagged_room(out, 9)
        to[0] = 0xcb
        _column_put_be64(to + 1, bits)
        out.used += 9
    elif obj is None or kind is bool:
        tagged_room(out, 1)[0] = 0xc0 if obj is None else 0xc3 if obj else 0xc2
        out.used += 1
    elif kind is bytes:
        pack_text_or_bytes(out, COLUMN_BYTES, <const uint8_t *>PyBytes_AS_STRING(obj), PyBytes_GET_SIZE(obj))
    elif kind is list:
        pack_enter(out, depth)
        pack_array(out, obj, len(<list>obj), depth + 1)
    elif kind is dict:
        pack_enter(out, depth)
        pack_map(out, obj, depth + 1)
    elif kind is tuple or kind is set or kind is frozenset:
        pack_enter(out, depth)
        begin = pack_extension_begin(out)
        if kind is tuple:
            pack_array(out, obj, len(<tuple>obj), depth + 1)
        else:
            pack_set(out, obj, depth + 1)
        pack_extension_end(out, begin, WAN_TAG_TUPLE if kind is tuple
                           else WAN_TAG_SET if kind is set else WAN_TAG_FROZENSET)
    elif kind is datetime_type and (obj.tzinfo is None or obj.tzinfo is utc):
        number = (obj.toordinal() - DAYS_TO_1970) * 86400 + obj.hour * 3600 + obj.minute * 60 + obj.second
        pack_moment(out, WAN_TAG_NAIVE if obj.tzinfo is None else WAN_TAG_INSTANT, number, obj.microsecond * 1000)
    elif kind is date_type:
        to = tagged_room(out, 6)
        to[0], to[1] = 0xd6, WAN_TAG_DATE
        _column_put_be32(to + 2, <uint32_t><int32_t>(obj.toordinal() - DAYS_TO_1970))
        out.used += 6
    elif kind is Encoded or kind is Undecodable:
        pack_undecodable(out, obj, depth)
    else:
        pack_by_hook(out, obj, depth)
    return 0


cdef int pack_undecodable(tagged_bytes *out, object obj, int depth) except -1:
    """Writes an Encoded or Undecodable within a container, with the bytes that it has."""
    if out.is_closed:
        raise NeedsHook         # The bytes are read, and may be those of a user's object.
    cdef uint8_t form = obj.form
    cdef const uint8_t *at
    cdef bytes data = obj.data
    cdef tagged_reader reader
    cdef size_t begin
    if form != WAN_FORM_TAGGED and form != WAN_FORM_USER:
        raise refused(f"{obj!r} cannot be within a container; put it alone")
    at = <const uint8_t *>PyBytes_AS_STRING(data)
    reader.at, reader.end, reader.containers = at, at + PyBytes_GET_SIZE(data), out.containers
    try:
        unpack_object(&reader, depth)
        if reader.at != reader.end:
            raise ValueError("bytes follow the object")
    except (ValueError, TypeError) as error:
        raise refused(f"{obj!r} cannot be within a container: {error}; put it alone") from None
    out.containers = reader.containers
    if form == WAN_FORM_TAGGED:
        return pack_raw(out, <const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    begin = pack_extension_begin(out)
    pack_raw(out, <const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    pack_extension_end(out, begin, WAN_TAG_USER)
    return 0


cdef int pack_by_hook(tagged_bytes *out, object obj, int depth) except -1:
    if out.is_closed:
        raise NeedsHook
    need_hooks()
    tag, content = tag_hook(obj, out.is_key)
    if tag is None:
        return pack_object(out, content, depth)
    return pack_content(out, tag, content)


cdef int pack_named(tagged_bytes *out, list content) except -1:
    """Writes a name, and what it names, as text or bytes."""
    pack_count(out, 0x90, 0xdc, len(content))
    for item in content:
        pack_object(out, item, WAN_TAGGED_DEPTH_MAX)
    return 0


cdef int pack_content(tagged_bytes *out, int tag, object content) except -1:
    cdef size_t begin
    if type(content) is tuple:
        return pack_moment(out, tag, content[0], content[1])
    begin = pack_extension_begin(out)
    if type(content) is list:
        pack_named(out, content)
    else:
        pack_raw(out, <const uint8_t *>PyBytes_AS_STRING(<bytes?>content), PyBytes_GET_SIZE(content))
    pack_extension_end(out, begin, tag)
    return 0


cdef bint packs_alone(type kind):
    """Whether `pack_object` needs no hook for objects of this type, or decides itself whether it does."""
    return (kind is dict or kind is list or kind is tuple or kind is set or kind is frozenset or kind is bool
            or kind is int or kind is date_type or kind is datetime_type)


cdef tuple pack_tagged(object obj, bint is_key):
    """(form, bytes) of an object that has no plain form. (None, object) if an equal plain object can stand for it."""
    cdef tagged_bytes out
    cdef int form = WAN_FORM_TAGGED
    memset(&out, 0, sizeof(out))
    out.is_key = is_key
    try:
        if packs_alone(type(obj)):
            pack_object(&out, obj, 0)
        else:
            need_hooks()
            tag, content = tag_hook(obj, is_key)
            if tag is None:
                return None, content
            if tag == WAN_TAG_USER:
                form = WAN_FORM_USER
                pack_named(&out, <list?>content)
            else:
                pack_content(&out, tag, content)
        return form, PyBytes_FromStringAndSize(<const char *>out.data, out.used)
    except SerializationError as error:
        if error._steps is not None:
            error.args = (f"{where_of(error._steps, is_key)}: {error}",)
            error._steps = None
        raise
    finally:
        free(out.data)


cdef bint pack_closed(tagged_bytes *out, object obj) except -1:
    """Writes an object as `pack_tagged` does, from the begin of `out`, if no code of users runs meanwhile. False: such
    code would run, or the object is refused, or is an int or has a plain form."""
    cdef type kind = type(obj)
    out.used, out.containers, out.is_closed = 0, 0, True
    if kind is int or not packs_alone(kind):
        return False
    try:
        pack_object(out, obj, 0)
    except Exception:
        return False
    return True


# Reading. Bytes that are not one whole object, or an object that is nested too deep, raise a ValueError. A part that is
# whole, but no object in this process, becomes an Undecodable in its place.

cdef object cut_off():
    return ValueError("it ends in the middle of an object")


cdef uint64_t take_big_endian(tagged_reader *reader, int count) except? 0xfffffffffffffffe:
    cdef uint64_t number = 0
    if reader.end - reader.at < count:
        raise cut_off()
    for _ in range(count):
        number = number << 8 | reader.at[0]
        reader.at += 1
    return number


cdef const uint8_t *take_bytes(tagged_reader *reader, uint64_t count) except NULL:
    cdef const uint8_t *at = reader.at
    if <uint64_t>(reader.end - reader.at) < count:
        raise cut_off()
    reader.at += count
    return at


cdef int unpack_enter(tagged_reader *reader, int depth, uint64_t at_least) except -1:
    if depth >= WAN_TAGGED_DEPTH_MAX:
        raise ValueError(f"it is nested deeper than {WAN_TAGGED_DEPTH_MAX} containers")
    reader.containers += 1
    if reader.containers > WAN_TAGGED_CONTAINERS_MAX:
        raise ValueError(f"it has more than {WAN_TAGGED_CONTAINERS_MAX} containers")
    if <uint64_t>(reader.end - reader.at) < at_least:
        raise cut_off()
    return 0


cdef list unpack_array(tagged_reader *reader, uint64_t count, int depth):
    cdef list items = []
    unpack_enter(reader, depth, count)
    for _ in range(count):
        items.append(unpack_object(reader, depth + 1))
    return items


cdef dict unpack_map(tagged_reader *reader, uint64_t count, int depth):
    cdef dict items = {}
    unpack_enter(reader, depth, 2 * count)
    for _ in range(count):
        key = unpack_object(reader, depth + 1)
        items[key] = unpack_object(reader, depth + 1)
    return items


cdef list unpack_inner_array(tagged_reader *reader, int depth):
    """Reads the array that is the whole content of an extension, or of a user's form."""
    cdef uint8_t code = <uint8_t>take_big_endian(reader, 1)
    cdef uint64_t count
    if 0x90 <= code <= 0x9f:
        count = code & 0x0f
    elif code == 0xdc or code == 0xdd:
        count = take_big_endian(reader, 2 if code == 0xdc else 4)
    else:
        raise ValueError("an extension does not hold an array")
    items = unpack_array(reader, count, depth)
    if reader.at != reader.end:
        raise ValueError("bytes follow the content of an extension")
    return items


cdef object unpack_text(tagged_reader *reader, uint64_t length, const uint8_t *start):
    cdef const uint8_t *at = take_bytes(reader, length)
    try:
        return PyUnicode_DecodeUTF8(<const char *>at, length, NULL)
    except UnicodeDecodeError as error:
        return undecodable_part(start, reader.at, error)


cdef Undecodable undecodable_part(const uint8_t *start, const uint8_t *end, error):
    return Undecodable(WAN_FORM_TAGGED, PyBytes_FromStringAndSize(<const char *>start, end - start), reason_of(error),
                       error)


cdef str reason_of(error):
    from pywan.errors import PywanError
    return str(error) if isinstance(error, PywanError) else f"{type(error).__name__}: {error}"


cdef object unpack_object(tagged_reader *reader, int depth):
    cdef const uint8_t *start = reader.at
    cdef uint8_t code = <uint8_t>take_big_endian(reader, 1)
    cdef uint64_t bits
    cdef uint32_t short_bits
    cdef double real
    cdef float single
    if code < 0x80:
        return code
    if code >= 0xe0:
        return <int8_t>code
    if code <= 0x8f:
        return unpack_map(reader, code & 0x0f, depth)
    if code <= 0x9f:
        return unpack_array(reader, code & 0x0f, depth)
    if code <= 0xbf:
        return unpack_text(reader, code & 0x1f, start)
    if code == 0xc0:
        return None
    if code == 0xc2 or code == 0xc3:
        return code == 0xc3
    if 0xc4 <= code <= 0xc6:
        bits = take_big_endian(reader, 1 << (code - 0xc4))
        return PyBytes_FromStringAndSize(<const char *>take_bytes(reader, bits), bits)
    if 0xc7 <= code <= 0xc9:
        return unpack_extension(reader, take_big_endian(reader, 1 << (code - 0xc7)), start, depth)
    if code == 0xca:
        short_bits = <uint32_t>take_big_endian(reader, 4)
        memcpy(&single, &short_bits, 4)
        return <double>single
    if code == 0xcb:
        bits = take_big_endian(reader, 8)
        memcpy(&real, &bits, 8)
        return real
    if 0xcc <= code <= 0xcf:
        return take_big_endian(reader, 1 << (code - 0xcc))
    if code == 0xd0:
        return <int8_t>take_big_endian(reader, 1)
    if code == 0xd1:
        return <int16_t>take_big_endian(reader, 2)
    if code == 0xd2:
        return <int32_t>take_big_endian(reader, 4)
    if code == 0xd3:
        return <int64_t>take_big_endian(reader, 8)
    if 0xd4 <= code <= 0xd8:
        return unpack_extension(reader, 1 << (code - 0xd4), start, depth)
    if 0xd9 <= code <= 0xdb:
        return unpack_text(reader, take_big_endian(reader, 1 << (code - 0xd9)), start)
    if code == 0xdc or code == 0xdd:
        return unpack_array(reader, take_big_endian(reader, 2 if code == 0xdc else 4), depth)
    if code == 0xde or code == 0xdf:
        return unpack_map(reader, take_big_endian(reader, 2 if code == 0xde else 4), depth)
    raise ValueError(f"byte {code:#x} begins no object")


cdef object unpack_extension(tagged_reader *reader, uint64_t length, const uint8_t *start, int depth):
    cdef int tag = <int8_t>take_big_endian(reader, 1)
    cdef tagged_reader inner
    inner.at, inner.containers = take_bytes(reader, length), reader.containers
    inner.end = reader.at
    if tag == WAN_TAG_TUPLE or tag == WAN_TAG_SET or tag == WAN_TAG_FROZENSET:
        items = unpack_inner_array(&inner, depth)
        reader.containers = inner.containers
        return tuple(items) if tag == WAN_TAG_TUPLE else set(items) if tag == WAN_TAG_SET else frozenset(items)
    try:
        return unpack_leaf(tag, &inner, <Py_ssize_t>length)
    except MemoryError:
        raise
    except Exception as error:
        return undecodable_part(start, reader.at, error)


cdef object unpack_leaf(int tag, tagged_reader *inner, Py_ssize_t length):
    """Reads an extension that holds no other objects."""
    cdef const uint8_t *at = inner.at
    cdef bytes data
    cdef int64_t seconds, days
    cdef uint32_t nanoseconds
    cdef int in_day, year, month, day
    if tag == WAN_TAG_INSTANT or tag == WAN_TAG_NAIVE or tag == WAN_TAG_DURATION:
        read_moment(at, length, &seconds, &nanoseconds)
        # C rounds towards zero, but a time before 1970 belongs to the day that began before it.
        days = seconds // SECONDS_A_DAY - (seconds % SECONDS_A_DAY < 0)
        in_day = <int>(seconds - days * SECONDS_A_DAY)
        if nanoseconds % 1000 == 0 and tag == WAN_TAG_DURATION and -DURATION_DAYS_MAX <= days <= DURATION_DAYS_MAX:
            return timedelta_new(<int>days, in_day, nanoseconds // 1000)
        if nanoseconds % 1000 == 0 and tag != WAN_TAG_DURATION and FIRST_DAY <= days <= LAST_DAY:
            civil_from_days(days, &year, &month, &day)
            return datetime_new(year, month, day, in_day // 3600, in_day // 60 % 60, in_day % 60, nanoseconds // 1000,
                                utc if tag == WAN_TAG_INSTANT else None)
        need_hooks()
        return untag_hook(tag, (seconds, nanoseconds))
    if tag == WAN_TAG_DATE and length == 4:
        days = <int32_t>take_big_endian(inner, 4)
        if FIRST_DAY <= days <= LAST_DAY:
            civil_from_days(days, &year, &month, &day)
            return date_new(year, month, day)
        need_hooks()
        return untag_hook(tag, days)
    if tag == WAN_TAG_BIG_INT:
        return int.from_bytes(PyBytes_FromStringAndSize(<const char *>at, length), "little", signed=True)
    need_hooks()
    if tag == WAN_TAG_USER or tag == WAN_TAG_ENUM:
        return untag_hook(tag, unpack_inner_array(inner, WAN_TAGGED_DEPTH_MAX - 1))
    data = PyBytes_FromStringAndSize(<const char *>at, length)
    return untag_hook(tag, data)


cdef void civil_from_days(int64_t days, int *year, int *month, int *day) noexcept nogil:
    """The date that is so many days after 1970-01-01, within Python's calendar."""
    # Days since 0000-03-01. In a year that begins with March, the leap day is the last day.
    cdef int64_t shifted = days + 719468
    cdef int64_t era = shifted // 146097                        # An era has 400 years.
    cdef int64_t in_era = shifted - era * 146097
    cdef int64_t year_of_era = (in_era - in_era // 1460 + in_era // 36524 - in_era // 146096) // 365
    cdef int64_t in_year = in_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    cdef int64_t shifted_month = (5 * in_year + 2) // 153       # 0 is March.
    day[0] = <int>(in_year - (153 * shifted_month + 2) // 5 + 1)
    month[0] = <int>(shifted_month + 3 if shifted_month < 10 else shifted_month - 9)
    year[0] = <int>(year_of_era + era * 400 + (month[0] <= 2))


cdef int read_moment(const uint8_t *at, Py_ssize_t length, int64_t *seconds, uint32_t *nanoseconds) except -1:
    cdef tagged_reader reader
    cdef uint64_t both
    reader.at, reader.end, reader.containers = at, at + length, 0
    nanoseconds[0] = 0
    if length == 4:
        seconds[0] = <int64_t>take_big_endian(&reader, 4)
    elif length == 8:
        both = take_big_endian(&reader, 8)
        nanoseconds[0], seconds[0] = <uint32_t>(both >> 34), <int64_t>(both & 0x3ffffffff)
    elif length == 12:
        nanoseconds[0] = <uint32_t>take_big_endian(&reader, 4)
        seconds[0] = <int64_t>take_big_endian(&reader, 8)
    else:
        raise ValueError(f"a moment of {length} bytes")
    if nanoseconds[0] >= 1000000000:
        raise ValueError(f"a moment with {nanoseconds[0]} nanoseconds")
    return 0


cdef object unpack_tagged(uint8_t form, const uint8_t *data, uint32_t length):
    """The object for the bytes of a tagged or user's form. An Undecodable with the reason if there is none here."""
    cdef tagged_reader reader
    reader.at, reader.end, reader.containers = data, data + length, 0
    try:
        if form == WAN_FORM_USER:
            need_hooks()
            return untag_hook(WAN_TAG_USER, unpack_inner_array(&reader, WAN_TAGGED_DEPTH_MAX - 1))
        if form != WAN_FORM_TAGGED:
            raise ValueError(f"{length} bytes are no object of form {form}")
        result = unpack_object(&reader, 0)
        if reader.at != reader.end:
            raise ValueError("bytes follow the object")
        return result
    except MemoryError:
        raise
    except Exception as error:
        return Undecodable(form, PyBytes_FromStringAndSize(<const char *>data, length), reason_of(error), error)
