# Owns making values in the tagged form from the rows of an Arrow array, nested types too. We first make a tree of the
# arrays' buffers, and then write row by row without the GIL. The bytes are the same that tagged.pyx makes of the same
# Python value.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove, memset
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_GetPointer
from pywan._core.c_arrow cimport *
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.values.column_views cimport (
    COLUMN_BYTES, COLUMN_FLOAT64, COLUMN_INT64, COLUMN_STR, COLUMN_TAGGED, MOMENT_BYTES_MAX, ColumnRows, ColumnView,
    _rows_append_null, _rows_end_row, column_row, put_moment)
from pywan._core.values.msgpack cimport (
    _column_put_be32, _column_put_be64, _column_put_bytes, _column_put_msgpack_head, _column_put_msgpack_int,
    put_msgpack_count)


cdef enum:
    HEAD_MAX = 5            # Bytes before the content of a text, of bytes, of an array or a map, at most.
    NUMBER_MAX = 9          # Bytes of a number, at most.
    EXTENSION_HEAD = 3      # Bytes before the content of a decimal, whose length takes one byte.

cdef uint64_t NANOSECONDS_A_DAY = 86400000000000


cdef object column_error(str message):
    from pywan.errors import SerializationError
    return SerializationError(message)


cdef object column_too_large(str message):
    from pywan.errors import EventTooLargeError
    return EventTooLargeError(message)


cdef str arrow_problem(int status):
    return {ARROW_OUTSIDE: "its offsets, view or index point outside; the array is damaged",
            ARROW_NO_DAY: "a date that is no whole day, or too far away; cast the column to a timestamp",
            ARROW_NO_TIME: "a time that is not within a day, or has nanoseconds; cast the column to int64 or string",
            ARROW_CONTAINERS: f"more than {WAN_TAGGED_CONTAINERS_MAX} lists and maps in one value; split it",
            ARROW_TOO_LARGE: f"more than {WAN_VALUE_BYTES_MAX} bytes; split the value"}[status]


# From an object to its buffers

cdef object unreadable_arrow(str name, bytes format):
    kind = {
        b"e": "16 bit floats: cast to float32", b"ti": "intervals: cast to string",
        b"+u": "unions: pass one of their fields", b"+r": "runs: decode them first",
        b"+v": "views of lists: cast to a list",
    }
    for start in (format, format[:2], format[:1]):
        if start in kind:
            return column_error(f"column {name!r}: Arrow type {format.decode()!r} holds {kind[start]}")
    return column_error(f"column {name!r}: Arrow type {format.decode()!r} is not known; cast to binary, string, int64"
                        " or float64")


cdef int check_arrow(object obj, str name) except -1:
    """Lets pyarrow compare the lengths of its buffers with the array's length and offset, because Arrow's C interface
    does not tell how long buffers are. More rows do not make this slower. pyarrow does not check here whether offsets
    ascend, or where indices and views point; we check that as we read."""
    if type(obj).__module__.startswith("pyarrow.") and hasattr(obj, "validate"):
        try:
            obj.validate()
        except ValueError as error:
            raise column_error(f"column {name!r}: the Arrow array is damaged: {error}") from None
    return 0


cdef ArrowSchema *take_arrow(object obj, str name, ArrowArray *array, list held) except NULL:
    """Moves the array that `__arrow_c_array__` gives into `array`, which the caller then has to release. The schema
    lives as long as the object that is added to `held`."""
    check_arrow(obj, name)
    schema_capsule, array_capsule = obj.__arrow_c_array__()
    cdef ArrowSchema *schema = <ArrowSchema *>PyCapsule_GetPointer(schema_capsule, "arrow_schema")
    cdef ArrowArray *given = <ArrowArray *>PyCapsule_GetPointer(array_capsule, "arrow_array")
    if schema.release == NULL or given.release == NULL:
        raise column_error(f"column {name!r}: its Arrow data was already consumed; export it again")
    array[0] = given[0]
    given.release = NULL   # The array was moved. The capsule releases the schema.
    held.append(schema_capsule)
    return schema


cdef bint arrow_is_value(const char *format) noexcept:
    """Whether rows of this type have to be written here, because Arrow does not hold their bytes as we store them."""
    return format[0] == b"+" or format[0] == b"d" or (format[0] == b"t" and (format[1] == b"t" or format[1] == b"D"))


cdef class ArrowValues:
    """The tree of an Arrow array's buffers. Nothing changes after the tree was read, so any thread may write rows from
    it."""

    def __cinit__(self):
        self.held = []

    def __dealloc__(self):
        _free_node(&self.root)
        if self.array.release != NULL:
            self.array.release(&self.array)

    cdef int read(self, const ArrowSchema *schema, const ArrowArray *array, str name, int depth) except -1:
        """Reads an array. If `array` is NULL, only the type is read, and there are no rows. `depth`: how many
        containers will be around each value."""
        return _read_node(&self.root, schema, array, name, depth, self.held)

    cdef int add_fields(self, list names, list columns) except -1:
        """Makes this a struct whose fields are `columns`, each an ArrowValues."""
        cdef int64_t n
        cdef ArrowValues each
        cdef arrow_node *child
        self.root.kind = ARROW_STRUCT
        self.root.children = <arrow_node *>calloc(<size_t>len(columns), sizeof(arrow_node))
        if self.root.children == NULL:
            raise MemoryError("no memory to encode rows")
        for n in range(len(columns)):
            each = columns[n]
            child = &self.root.children[n]
            child[0] = each.root
            memset(&each.root, 0, sizeof(arrow_node))       # The node is ours now, and we free it.
            self.root.child_count += 1
        self.held.extend(columns)
        return _name_fields(&self.root, names, "rows", self.held)


cdef void _free_node(arrow_node *node) noexcept:
    cdef int64_t n
    for n in range(node.child_count):
        _free_node(&node.children[n])
    free(node.children)
    memset(node, 0, sizeof(arrow_node))


cdef int _name_fields(arrow_node *node, list names, str path, list held) except -1:
    cdef uint8_t head[8]
    cdef bytes written
    cdef int64_t n, length
    if len(set(names)) != len(names):
        raise column_error(f"columns {names} of {path!r} have a name twice; rename one of them" if path != "rows"
                           else f"columns {names} have a name twice; rename one of them")
    for n in range(node.child_count):
        try:
            written = (<str>names[n]).encode()
        except UnicodeEncodeError:
            raise column_error(f"column name {names[n]!r} is not valid Unicode; rename it") from None
        length = _column_put_msgpack_head(head, COLUMN_STR, <uint32_t>len(written)) - head
        written = PyBytes_FromStringAndSize(<const char *>head, length) + written
        if n == 0:
            length = put_msgpack_count(head, 0x80, 0xde, <uint32_t>node.child_count) - head
            written = PyBytes_FromStringAndSize(<const char *>head, length) + written
        held.append(written)
        node.children[n].name = <const uint8_t *>PyBytes_AS_STRING(written)
        node.children[n].name_size = <uint32_t>PyBytes_GET_SIZE(written)
    return 0


# The tree

cdef dict _NUMBERS = {      # format: (kind, width, is signed)
    b"c": (ARROW_INT, 1, 1), b"C": (ARROW_INT, 1, 0), b"s": (ARROW_INT, 2, 1), b"S": (ARROW_INT, 2, 0),
    b"i": (ARROW_INT, 4, 1), b"I": (ARROW_INT, 4, 0), b"l": (ARROW_INT, 8, 1), b"L": (ARROW_INT, 8, 0),
    b"f": (ARROW_FLOAT, 4, 1), b"g": (ARROW_FLOAT, 8, 1),
    b"tdD": (ARROW_DATE, 4, 1), b"tdm": (ARROW_DATE, 8, 1),
    b"tts": (ARROW_TIME, 4, 1), b"ttm": (ARROW_TIME, 4, 1), b"ttu": (ARROW_TIME, 8, 1), b"ttn": (ARROW_TIME, 8, 1),
}
cdef dict _TICKS = {115: 1, 109: 1000, 117: 1000000, 110: 1000000000}       # s, m, u, n: of a second.


cdef int _read_node(arrow_node *node, const ArrowSchema *schema, const ArrowArray *array, str path, int depth,
                    list held) except -1:
    """Fills a zeroed node. `path` is its name in errors."""
    cdef bytes format = schema.format
    cdef int64_t needed = 2
    cdef bint is_dictionary = schema.dictionary != NULL
    if depth >= WAN_TAGGED_DEPTH_MAX:
        raise column_error(f"column {path[:100]!r}: its type is nested deeper than {WAN_TAGGED_DEPTH_MAX}; flatten it")
    _read_type(node, format, path)
    if is_dictionary:
        if node.kind != ARROW_INT:
            raise unreadable_arrow(path, format)
        node.kind = ARROW_DICTIONARY
    if node.kind == ARROW_NULL or node.kind == ARROW_STRUCT or node.kind == ARROW_FIXED_LIST:
        needed = 0 if node.kind == ARROW_NULL else 1
    elif node.kind == ARROW_BYTES or node.kind == ARROW_VIEW:
        needed = 3
    if array != NULL:
        _read_buffers(node, array, path, needed)
    _read_children(node, schema, array, path, depth, held)
    return 0


cdef int _read_type(arrow_node *node, bytes format, str path) except -1:
    cdef list parts
    if format in _NUMBERS:
        kind, width, is_signed = _NUMBERS[format]
        node.kind, node.width, node.is_signed = kind, width, is_signed
        if node.kind == ARROW_DATE:
            node.scale = 86400000 if node.width == 8 else 1
        elif node.kind == ARROW_TIME:
            node.scale = _TICKS[format[2]]
    elif format == b"n":
        node.kind = ARROW_NULL
    elif format == b"b":
        node.kind = ARROW_BOOL
    elif format in (b"z", b"u", b"Z", b"U"):
        node.kind, node.width = ARROW_BYTES, 4 if format in (b"z", b"u") else 8
        node.form = COLUMN_STR if format in (b"u", b"U") else COLUMN_BYTES
    elif format in (b"vz", b"vu"):
        node.kind, node.form = ARROW_VIEW, COLUMN_STR if format == b"vu" else COLUMN_BYTES
    elif format[:2] == b"w:":
        node.kind, node.form, node.scale = ARROW_FIXED_BYTES, COLUMN_BYTES, _number_in(format[2:], format, path)
    elif format[:2] == b"d:":
        parts = format[2:].split(b",")
        node.kind = ARROW_DECIMAL
        if len(parts) not in (2, 3):
            raise unreadable_arrow(path, format)
        node.scale = (-_number_in(parts[1][1:], format, path) if parts[1][:1] == b"-"
                      else _number_in(parts[1], format, path))
        bits = _number_in(parts[2], format, path) if len(parts) == 3 else 128
        if bits not in (32, 64, 128, 256):
            raise unreadable_arrow(path, format)
        node.width = bits // 8
    elif format[:2] == b"ts" and len(format) >= 4 and format[2] in _TICKS:
        node.kind, node.width, node.is_signed, node.scale = ARROW_MOMENT, 8, 1, _TICKS[format[2]]
        # If there is a zone, it stands behind the colon.
        node.tag = <uint8_t>(WAN_TAG_INSTANT if len(format) > 4 else WAN_TAG_NAIVE)
    elif format[:2] == b"tD" and len(format) == 3 and format[2] in _TICKS:
        node.kind, node.width, node.is_signed, node.scale = ARROW_MOMENT, 8, 1, _TICKS[format[2]]
        node.tag = WAN_TAG_DURATION
    elif format in (b"+l", b"+L"):
        node.kind, node.width = ARROW_LIST, 4 if format == b"+l" else 8
    elif format[:3] == b"+w:":
        node.kind, node.scale = ARROW_FIXED_LIST, _number_in(format[3:], format, path)
    elif format == b"+s":
        node.kind = ARROW_STRUCT
    elif format == b"+m":
        node.kind, node.width = ARROW_MAP, 4
    else:
        raise unreadable_arrow(path, format)
    return 0


cdef int64_t _number_in(bytes digits, bytes format, str path) except -1:
    if not digits.isdigit() or len(digits) > 10:
        raise unreadable_arrow(path, format)
    return int(digits)


cdef int _read_buffers(arrow_node *node, const ArrowArray *array, str path, int64_t needed) except -1:
    cdef int64_t end
    if array.length < 0 or array.offset < 0 or array.length > WAN_COLUMN_ROWS_MAX - array.offset:
        raise column_error(f"column {path!r}: an Arrow array of length {array.length} at offset {array.offset} is"
                           f" damaged; at most {WAN_COLUMN_ROWS_MAX} rows are possible")
    if array.n_buffers < needed or (needed and array.buffers == NULL):
        raise column_error(f"column {path!r}: an Arrow array with {array.n_buffers} buffers, expected {needed}; it is"
                           " damaged")
    node.length, node.offset = array.length, array.offset
    end = array.offset + array.length
    if ((node.kind == ARROW_FIXED_BYTES or node.kind == ARROW_FIXED_LIST)
            and node.scale > WAN_COLUMN_ROWS_MAX // max(end, 1)):
        raise column_error(f"column {path!r}: {array.length} rows of {node.scale} at offset {array.offset} are too"
                           " many; the array is damaged")
    if needed and array.null_count != 0:
        node.validity = <const uint8_t *>array.buffers[0]
    if array.length == 0 or needed < 2:
        return 0
    if array.buffers[1] == NULL and not (node.kind == ARROW_FIXED_BYTES and node.scale == 0):
        raise column_error(f"column {path!r}: an Arrow array of {array.length} rows without data is damaged")
    if node.kind == ARROW_BYTES or node.kind == ARROW_LIST or node.kind == ARROW_MAP:
        node.offsets = <const uint8_t *>array.buffers[1]
        node.data_size = _load(node.offsets + end * node.width, node.width, 1)
        if node.kind == ARROW_BYTES:
            node.data = <const uint8_t *>array.buffers[2]
            if node.data == NULL and node.data_size > 0:
                raise column_error(f"column {path!r}: an Arrow array with offsets to {node.data_size} bytes of data has"
                                   " no data; it is damaged")
            if node.data == NULL:
                node.data = wan_column_no_bytes
    else:
        node.data = <const uint8_t *>array.buffers[1] if array.buffers[1] != NULL else wan_column_no_bytes
    if node.kind == ARROW_VIEW:
        # The first two buffers are the validity and the views. The last one has the sizes of those in between.
        node.buffers = <const uint8_t **>array.buffers + 2
        node.buffer_sizes = <const int64_t *>array.buffers[array.n_buffers - 1]
        node.buffer_count = array.n_buffers - 3 if node.buffer_sizes != NULL else 0
    return 0


cdef int _read_children(arrow_node *node, const ArrowSchema *schema, const ArrowArray *array, str path, int depth,
                        list held) except -1:
    cdef int64_t n, count = 0, least = 0
    cdef list names = []
    cdef arrow_node *child
    cdef str part
    cdef const ArrowArray *inner = NULL
    if node.kind == ARROW_DICTIONARY:
        count = 1
    elif node.kind == ARROW_STRUCT:
        count = schema.n_children
    elif node.kind == ARROW_LIST or node.kind == ARROW_FIXED_LIST or node.kind == ARROW_MAP:
        count = 1
        if schema.n_children != 1:
            raise unreadable_arrow(path, schema.format)
    if count == 0:
        return 0
    if count < 0 or (node.kind != ARROW_DICTIONARY and schema.children == NULL):
        raise unreadable_arrow(path, schema.format)
    if array != NULL and (array.dictionary == NULL if node.kind == ARROW_DICTIONARY
                          else array.n_children != count or array.children == NULL):
        if node.kind == ARROW_DICTIONARY:
            raise column_error(f"column {path!r}: a dictionary-encoded array without its dictionary")
        raise column_error(f"column {path!r}: an Arrow array with {array.n_children} children, expected {count}; it is"
                           " damaged")
    node.children = <arrow_node *>calloc(<size_t>count, sizeof(arrow_node))
    if node.children == NULL:
        raise MemoryError(f"column {path!r}: no memory for {count} fields")
    node.child_count = count
    if node.kind == ARROW_DICTIONARY:
        return _read_node(&node.children[0], schema.dictionary, array.dictionary if array != NULL else NULL, path,
                          depth + 1, held)
    for n in range(count):
        if array != NULL:
            inner = array.children[n]
        part = path + "[]"
        if node.kind == ARROW_STRUCT:
            try:
                name = (<bytes>schema.children[n].name).decode() if schema.children[n].name != NULL else ""
            except UnicodeDecodeError:
                raise column_error(f"column {path!r}: the name of a field is not UTF-8; rename it") from None
            names.append(name)
            part = f"{path}.{name}"
        elif node.kind == ARROW_MAP:
            part = path
        child = &node.children[n]
        _read_node(child, schema.children[n], inner, part, depth + 1, held)
        if array == NULL:
            continue
        least = (node.offset + node.length if node.kind == ARROW_STRUCT
                 else (node.offset + node.length) * node.scale if node.kind == ARROW_FIXED_LIST else 0)
        if node.length and child.length < least:
            raise column_error(f"column {part!r}: an Arrow array of {child.length} rows, expected {least}; it is"
                               " damaged")
    if node.kind == ARROW_STRUCT:
        return _name_fields(node, names, path, held)
    if node.kind == ARROW_MAP:
        child = &node.children[0]
        if child.kind != ARROW_STRUCT or child.child_count != 2:
            raise unreadable_arrow(path, schema.format)
        child = &child.children[0]
        if child.kind == ARROW_DICTIONARY:
            child = &child.children[0]
        if child.kind in (ARROW_LIST, ARROW_FIXED_LIST, ARROW_STRUCT, ARROW_MAP):
            raise column_error(f"column {path!r}: a map whose keys are lists, structs or maps has no form: those are"
                               " no keys of a dict; use text as its keys, or a list of structs of key and value")
    return 0


# Writing rows of the tree

cdef inline int64_t _load(const uint8_t *at, uint8_t width, bint is_signed) noexcept nogil:
    """Reads a number of any width. It need not be aligned."""
    cdef int32_t four
    cdef int64_t eight
    cdef int16_t two
    if width == 8:
        memcpy(&eight, at, 8)
        return eight
    if width == 4:
        memcpy(&four, at, 4)
        return four if is_signed else <int64_t><uint32_t>four
    if width == 2:
        memcpy(&two, at, 2)
        return two if is_signed else <int64_t><uint16_t>two
    return <int8_t>at[0] if is_signed else <int64_t>at[0]


cdef inline uint8_t *_room(wan_buffer *out, uint64_t length) noexcept nogil:
    """Makes room for `length` bytes, and returns where they go. The caller then raises `used`. NULL: no memory."""
    return out.bytes + out.used if wan_buffer_reserve(out, length) == WAN_OK else NULL


cdef inline int _put_code(wan_buffer *out, uint8_t code) noexcept nogil:
    cdef uint8_t *to = _room(out, 1)
    if to == NULL:
        return ARROW_NO_MEMORY
    to[0] = code
    out.used += 1
    return ARROW_WHOLE


cdef inline int _put_text(wan_buffer *out, uint8_t form, const uint8_t *start, int64_t length) noexcept nogil:
    cdef uint8_t *to
    if length > <int64_t>WAN_VALUE_BYTES_MAX:
        return ARROW_TOO_LARGE
    to = _room(out, <uint64_t>length + HEAD_MAX)
    if to == NULL:
        return ARROW_NO_MEMORY
    to = _column_put_bytes(_column_put_msgpack_head(to, form, <uint32_t>length), start, <uint32_t>length)
    out.used = <uint64_t>(to - out.bytes)
    return ARROW_WHOLE


cdef inline int _put_int(wan_buffer *out, int64_t number, bint is_signed) noexcept nogil:
    cdef uint8_t *to = _room(out, NUMBER_MAX)
    if to == NULL:
        return ARROW_NO_MEMORY
    if number < 0 and not is_signed:
        to[0] = 0xcf
        _column_put_be64(to + 1, <uint64_t>number)
        to += 9
    else:
        to = _column_put_msgpack_int(to, number)
    out.used = <uint64_t>(to - out.bytes)
    return ARROW_WHOLE


cdef inline int _put_float(wan_buffer *out, const uint8_t *at, uint8_t width) noexcept nogil:
    cdef uint8_t *to = _room(out, NUMBER_MAX)
    cdef float single
    cdef double real
    cdef uint64_t bits
    if to == NULL:
        return ARROW_NO_MEMORY
    if width == 4:
        memcpy(&single, at, 4)
        real = single
        memcpy(&bits, &real, 8)
    else:
        memcpy(&bits, at, 8)
    to[0] = 0xcb
    _column_put_be64(to + 1, bits)
    out.used += 9
    return ARROW_WHOLE


cdef inline int _put_moment(const arrow_node *node, int64_t tick, wan_buffer *out) noexcept nogil:
    cdef uint8_t *to = _room(out, MOMENT_BYTES_MAX)
    # A division by a constant takes much less time.
    cdef int64_t seconds = tick // 1000000 if node.scale == 1000000 else tick // node.scale
    cdef uint64_t rest
    if to == NULL:
        return ARROW_NO_MEMORY
    if tick < 0 and seconds * node.scale != tick:
        seconds -= 1    # C rounds towards zero. A time before 1970 belongs to the second before it.
    rest = <uint64_t>tick - <uint64_t>seconds * <uint64_t>node.scale
    rest *= 1000 if node.scale == 1000000 else <uint64_t>(1000000000 // node.scale)
    out.used += <uint64_t>put_moment(to, node.tag, seconds, <uint32_t>rest)
    return ARROW_WHOLE


cdef int _put_date(const arrow_node *node, int64_t tick, wan_buffer *out) noexcept nogil:
    cdef uint8_t *to = _room(out, 6)
    if to == NULL:
        return ARROW_NO_MEMORY
    if tick % node.scale or tick // node.scale != <int32_t>(tick // node.scale):
        return ARROW_NO_DAY
    to[0], to[1] = 0xd6, WAN_TAG_DATE
    _column_put_be32(to + 2, <uint32_t>(tick // node.scale))
    out.used += 6
    return ARROW_WHOLE


cdef int _put_time(const arrow_node *node, int64_t tick, wan_buffer *out) noexcept nogil:
    cdef uint8_t *to = _room(out, 10)
    cdef uint64_t nanoseconds
    if to == NULL:
        return ARROW_NO_MEMORY
    if tick < 0 or tick >= 86400 * node.scale:
        return ARROW_NO_TIME
    nanoseconds = <uint64_t>tick * <uint64_t>(1000000000 // node.scale)
    if nanoseconds % 1000:
        return ARROW_NO_TIME
    to[0], to[1] = 0xd7, WAN_TAG_TIME
    _column_put_be64(to + 2, nanoseconds)
    out.used += 10
    return ARROW_WHOLE


cdef int _put_decimal(const arrow_node *node, const uint8_t *at, wan_buffer *out) noexcept nogil:
    cdef uint8_t *to = _room(out, WAN_DECIMAL_TEXT_MAX + EXTENSION_HEAD)
    cdef unsigned length
    if to == NULL:
        return ARROW_NO_MEMORY
    length = wan_decimal_write(<char *>to + EXTENSION_HEAD, at, node.width, <int32_t>node.scale)
    if length == 4 or length == 8 or length == 16:      # The content has three characters at least.
        to[0], to[1] = 0xd6 if length == 4 else 0xd7 if length == 8 else 0xd8, WAN_TAG_DECIMAL
        memmove(to + 2, to + EXTENSION_HEAD, length)
        out.used += length + 2
    else:
        to[0], to[1], to[2] = 0xc7, <uint8_t>length, WAN_TAG_DECIMAL
        out.used += length + EXTENSION_HEAD
    return ARROW_WHOLE


cdef int _put_view(const arrow_node *node, const uint8_t *view, wan_buffer *out) noexcept nogil:
    cdef int32_t length, buffer, offset
    memcpy(&length, view, 4)
    if length < 0:
        return ARROW_OUTSIDE
    if length <= 12:
        return _put_text(out, node.form, view + 4, length)
    memcpy(&buffer, view + 8, 4)
    memcpy(&offset, view + 12, 4)
    if buffer < 0 or buffer >= node.buffer_count or offset < 0 or node.buffer_sizes[buffer] - length < offset:
        return ARROW_OUTSIDE
    return _put_text(out, node.form, node.buffers[buffer] + offset, length)


cdef int _put_column(const ColumnView *view, int64_t row, wan_buffer *out) noexcept nogil:
    cdef const uint8_t *start
    cdef uint32_t length
    cdef uint8_t form
    cdef uint8_t *to
    column_row(view, row, &start, &length, &form)
    if form == COLUMN_BYTES or form == COLUMN_STR:
        return _put_text(out, form, start, length)
    if form == COLUMN_INT64:
        return _put_int(out, _load(start, 8, 1), True)
    if form == COLUMN_FLOAT64:
        return _put_float(out, start, 8)
    if form == COLUMN_TAGGED:
        to = _room(out, length)
        if to == NULL:
            return ARROW_NO_MEMORY
        _column_put_bytes(to, start, length)
        out.used += length
        return ARROW_WHOLE
    return _put_code(out, 0xc0)


cdef inline int _put_struct(const arrow_node *node, int64_t row, wan_buffer *out, uint32_t *containers) noexcept nogil:
    cdef int64_t n
    cdef int status
    cdef uint8_t *to
    cdef const arrow_node *child
    containers[0] += 1
    if node.child_count == 0:
        return _put_code(out, 0x80)
    for n in range(node.child_count):
        child = &node.children[n]
        to = _room(out, child.name_size)
        if to == NULL:
            return ARROW_NO_MEMORY
        _column_put_bytes(to, child.name, child.name_size)
        out.used += child.name_size
        status = arrow_put(child, row, out, containers)
        if status != ARROW_WHOLE:
            return status
    return ARROW_WHOLE


cdef int _put_elements(const arrow_node *node, int64_t start, int64_t end, wan_buffer *out,
                       uint32_t *containers) noexcept nogil:
    """Writes a list or a map."""
    cdef const arrow_node *child = &node.children[0]
    cdef int64_t n
    cdef int status
    cdef uint8_t *to = _room(out, HEAD_MAX)
    if to == NULL:
        return ARROW_NO_MEMORY
    if start < 0 or end < start or end > child.length:
        return ARROW_OUTSIDE
    if end - start > <int64_t>_COLUMN_UINT32_MAX:
        return ARROW_TOO_LARGE
    containers[0] += 1
    if containers[0] > WAN_TAGGED_CONTAINERS_MAX:
        return ARROW_CONTAINERS
    if node.kind == ARROW_MAP:
        to = put_msgpack_count(to, 0x80, 0xde, <uint32_t>(end - start))
    else:
        to = put_msgpack_count(to, 0x90, 0xdc, <uint32_t>(end - start))
    out.used = <uint64_t>(to - out.bytes)
    for n in range(start, end):
        if node.kind == ARROW_MAP:
            status = arrow_put(&child.children[0], child.offset + n, out, containers)
            if status == ARROW_WHOLE:
                status = arrow_put(&child.children[1], child.offset + n, out, containers)
        else:
            status = arrow_put(child, n, out, containers)
        if status != ARROW_WHOLE:
            return status
    return ARROW_WHOLE


cdef int arrow_put(const arrow_node *node, int64_t row, wan_buffer *out, uint32_t *containers) noexcept nogil:
    """Appends row `row` of the array. The row must be within it. Returns ARROW_WHOLE, or another ARROW_* number that
    `arrow_problem` explains; then a part of the row may have been appended. `containers` counts lists and maps."""
    cdef int64_t at = node.offset + row
    cdef int64_t index
    cdef uint8_t kind = node.kind
    if node.validity != NULL and not (node.validity[at >> 3] >> (at & 7)) & 1:
        return _put_code(out, 0xc0)
    if kind == ARROW_BYTES:
        row = _load(node.offsets + at * node.width, node.width, 1)
        index = _load(node.offsets + (at + 1) * node.width, node.width, 1)
        if row < 0 or index < row or index > node.data_size:
            return ARROW_OUTSIDE
        return _put_text(out, node.form, node.data + row, index - row)
    if kind == ARROW_INT:
        return _put_int(out, _load(node.data + at * node.width, node.width, node.is_signed), node.is_signed)
    if kind == ARROW_FLOAT:
        return _put_float(out, node.data + at * node.width, node.width)
    if kind == ARROW_MOMENT:
        return _put_moment(node, _load(node.data + at * 8, 8, 1), out)
    if kind == ARROW_DECIMAL:
        return _put_decimal(node, node.data + at * node.width, out)
    if kind == ARROW_BOOL:
        return _put_code(out, 0xc2 | (node.data[at >> 3] >> (at & 7)) & 1)
    if kind == ARROW_COLUMN:
        return _put_column(node.column, row, out)
    if kind == ARROW_STRUCT:
        if containers[0] >= WAN_TAGGED_CONTAINERS_MAX:
            return ARROW_CONTAINERS
        return _put_struct(node, at, out, containers)
    if kind == ARROW_LIST or kind == ARROW_MAP:
        return _put_elements(node, _load(node.offsets + at * node.width, node.width, 1),
                             _load(node.offsets + (at + 1) * node.width, node.width, 1), out, containers)
    if kind == ARROW_FIXED_LIST:
        return _put_elements(node, at * node.scale, (at + 1) * node.scale, out, containers)
    if kind == ARROW_DATE:
        return _put_date(node, _load(node.data + at * node.width, node.width, 1), out)
    if kind == ARROW_TIME:
        return _put_time(node, _load(node.data + at * node.width, node.width, 1), out)
    if kind == ARROW_DICTIONARY:
        index = _load(node.data + at * node.width, node.width, node.is_signed)
        if index < 0 or index >= node.children[0].length:
            return ARROW_OUTSIDE
        return arrow_put(&node.children[0], index, out, containers)
    if kind == ARROW_VIEW:
        return _put_view(node, node.data + at * 16, out)
    if kind == ARROW_FIXED_BYTES:
        return _put_text(out, node.form, node.data + at * node.scale, node.scale)
    return _put_code(out, 0xc0)


cdef int arrow_put_rows(const arrow_node *node, ColumnRows *rows, int64_t *bad_row) noexcept nogil:
    """Appends all rows of the array to `rows`, which has room for so many. Returns ARROW_WHOLE, ARROW_NO_MEMORY, or a
    number that `arrow_problem` explains; `bad_row` is the row that it is about."""
    cdef int64_t row, bit
    cdef uint32_t containers
    cdef int status
    cdef uint64_t before
    for row in range(node.length):
        bit = node.offset + row
        if node.validity != NULL and not (node.validity[bit >> 3] >> (bit & 7)) & 1:
            if _rows_append_null(rows) < 0:
                return ARROW_NO_MEMORY
            continue
        containers, before = 0, rows.bytes.used
        status = arrow_put(node, row, &rows.bytes, &containers)
        if status == ARROW_WHOLE and rows.bytes.used - before > WAN_VALUE_BYTES_MAX:
            status = ARROW_TOO_LARGE
        if status != ARROW_WHOLE:
            bad_row[0] = row
            return status
        _rows_end_row(rows)
    return ARROW_WHOLE
