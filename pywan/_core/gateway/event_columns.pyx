# Owns the columns of a batch: the buffers of Arrow arrays, laid out from the records without a Python object for an
# event.
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from pywan._core.c_record cimport *
from pywan._core.gateway.event_batch cimport BatchMemory, EventBatch

cdef enum:
    PART_KEY = 0, PART_VALUE = 1, PART_CALLBACK = 2
    USER_HEAD_BYTES = 6     # Head of a msgpack extension with a 32-bit length.

# The kinds of columns, by the form of the values.
cdef dict KINDS = {
    <int>WAN_FORM_BYTES: "bytes", <int>WAN_FORM_TEXT: "text", <int>WAN_FORM_TAGGED: "tagged",
    <int>WAN_FORM_INT: "int", <int>WAN_FORM_FLOAT: "float", <int>WAN_FORM_USER: "tagged",
}


cdef struct part_view:
    const uint8_t *bytes
    uint32_t length
    uint8_t form


cdef inline part_view part_of(const wan_record *record, int which) noexcept nogil:
    cdef part_view view
    if which == PART_KEY:
        view.bytes, view.length, view.form = wan_record_key(record), record.key_length, record.key_form
    elif which == PART_VALUE:
        view.bytes, view.length, view.form = wan_record_value(record), record.value_length, record.value_form
        if record.operation == WAN_DESTROY:
            view.form = WAN_FORM_NONE
    else:
        view.bytes, view.length = wan_record_callback(record), record.callback_length
        view.form = record.callback_form
    return view


cdef inline void put_user_head(uint8_t *to, uint32_t length) noexcept nogil:
    # Converts an object of a user's serializer, stored without a head in the record, to the tagged form.
    to[0], to[1], to[2] = 0xc9, <uint8_t>(length >> 24), <uint8_t>(length >> 16)
    to[3], to[4], to[5] = <uint8_t>(length >> 8), <uint8_t>length, WAN_TAG_USER


cdef bytes room(size_t length):
    return PyBytes_FromStringAndSize(NULL, length)


cdef class EventColumns:
    """The columns of a batch. A column is a `bytes` object without other owners, or a tuple with the layout."""
    cdef EventBatch batch
    cdef BatchMemory memory
    cdef uint32_t first, count

    def __cinit__(self, EventBatch batch not None):
        self.batch, self.memory, self.first, self.count = batch, batch.memory, batch.first, batch.count

    def part(self, str name):
        """Returns the column of "key", "value" or "callback".

        Returns:
            (kind, length, validity, offsets, data, nulls). `kind`: "bytes", "text" or "tagged" (with 32-bit offsets),
                "int" or "float" (8 bytes a value, no offsets), "null", or "mixed": then `data` is a list of columns,
                `offsets` the position of each event in its column (32 bits), and `validity` the number of its column (8
                bits). `validity`: one bit an event; None: no nulls.
        """
        cdef int which = {"key": PART_KEY, "value": PART_VALUE, "callback": PART_CALLBACK}[name]
        cdef uint32_t n, forms = 0
        cdef uint8_t form
        with nogil:
            for n in range(self.count):
                forms |= <uint32_t>1 << part_of(self.memory.records[self.first + n], which).form
        found = [form for form in range(WAN_FORM_COUNT) if forms >> form & 1 and form != WAN_FORM_NONE]
        if not found:
            return ("null", self.count, None, None, None, self.count)
        if len(found) == 1:
            return self.of_form(which, found[0], False)
        return self.mixed(which, [*found, *([<int>WAN_FORM_NONE] if forms >> WAN_FORM_NONE & 1 else [])])

    cdef tuple of_form(self, int which, uint8_t form, bint only):
        """Returns the events with a part of this form. All other events are null, or are left out (`only`)."""
        cdef bytes validity, offsets = None, data
        cdef uint8_t *bits
        cdef int32_t *ends = NULL
        cdef uint8_t *to
        cdef part_view view
        cdef uint32_t n, rows = 0, nulls = 0
        cdef size_t length = 0
        cdef bint fixed = form == WAN_FORM_INT or form == WAN_FORM_FLOAT
        cdef size_t head = USER_HEAD_BYTES if form == WAN_FORM_USER else 0
        for n in range(self.count):
            view = part_of(self.memory.records[self.first + n], which)
            if view.form == form:
                length += head + view.length
                rows += 1
            elif not only:
                nulls += 1
                rows += 1
        validity = room((rows + 7) // 8)
        bits = <uint8_t *>PyBytes_AS_STRING(validity)
        memset(bits, 0, (rows + 7) // 8)
        data = room(<size_t>rows * 8 if fixed else length)
        to = <uint8_t *>PyBytes_AS_STRING(data)
        if not fixed:
            offsets = room((<size_t>rows + 1) * 4)
            ends = <int32_t *>PyBytes_AS_STRING(offsets)
            ends[0] = 0
        rows, length = 0, 0
        with nogil:
            for n in range(self.count):
                view = part_of(self.memory.records[self.first + n], which)
                if view.form == form:
                    bits[rows >> 3] |= <uint8_t>(1 << (rows & 7))
                    if fixed:
                        memcpy(to + <size_t>rows * 8, view.bytes, 8)
                    else:
                        if head:
                            put_user_head(to + length, view.length)
                        wan_copy_small(to + length + head, view.bytes, view.length)
                        length += head + view.length
                elif only:
                    continue
                elif fixed:
                    memset(to + <size_t>rows * 8, 0, 8)
                rows += 1
                if not fixed:
                    ends[rows] = <int32_t>length
        return (KINDS[form], rows, validity if nulls else None, offsets, data, nulls)

    cdef tuple mixed(self, int which, list forms):
        cdef bytes kinds = room(self.count), places = room(<size_t>self.count * 4)
        cdef int8_t *kind = <int8_t *>PyBytes_AS_STRING(kinds)
        cdef int32_t *place = <int32_t *>PyBytes_AS_STRING(places)
        cdef int8_t child[WAN_FORM_COUNT]
        cdef int32_t used[WAN_FORM_COUNT]
        cdef uint32_t n
        cdef uint8_t form
        memset(used, 0, sizeof(used))
        for n, each in enumerate(forms):
            child[<int>each] = <int8_t>n
        with nogil:
            for n in range(self.count):
                form = part_of(self.memory.records[self.first + n], which).form
                kind[n], place[n] = child[form], used[form]
                used[form] += 1
        columns = [
            ("null", used[<int>each], None, None, None, used[<int>each]) if each == WAN_FORM_NONE
            else self.of_form(which, each, True)
            for each in forms
        ]
        return ("mixed", self.count, kinds, places, columns, 0)

    def regions(self):
        """Returns (the number of each event's region among `names`, 32 bits each; `names`)."""
        from pywan._core.values.names import region_name
        cdef bytes numbers = room(<size_t>self.count * 4)
        cdef int32_t *number = <int32_t *>PyBytes_AS_STRING(numbers)
        cdef uint16_t last = 0
        cdef int32_t at = -1
        cdef uint32_t n
        cdef dict seen = {}
        for n in range(self.count):
            if at < 0 or self.memory.records[self.first + n].region != last:
                last = self.memory.records[self.first + n].region
                at = seen.setdefault(last, len(seen))
            number[n] = at
        return numbers, [region_name(each) for each in seen]

    def numbers(self):
        """Returns the following columns by name: "operation" (8 bits: 0 create, 1 update, 2 destroy), "timestamp" (64
        bits, milliseconds since 1970), "stamp", "sequence", "event_sequence" (64 bits), "partition", "event_member",
        "event_thread" (32 bits), "origin_site" (8 bits), "possible_duplicate" (one bit)."""
        cdef size_t count = self.count
        cdef bytes operation = room(count), timestamp = room(count * 8), stamp = room(count * 8)
        cdef bytes sequence = room(count * 8), partition = room(count * 4), member = room(count * 4)
        cdef bytes thread = room(count * 4), number = room(count * 8), origin = room(count)
        cdef bytes repeated = room((count + 7) // 8)
        cdef uint8_t *operations = <uint8_t *>PyBytes_AS_STRING(operation)
        cdef int64_t *timestamps = <int64_t *>PyBytes_AS_STRING(timestamp)
        cdef uint64_t *stamps = <uint64_t *>PyBytes_AS_STRING(stamp)
        cdef uint32_t *members = <uint32_t *>PyBytes_AS_STRING(member)
        cdef uint32_t *threads = <uint32_t *>PyBytes_AS_STRING(thread)
        cdef uint64_t *event_numbers = <uint64_t *>PyBytes_AS_STRING(number)
        cdef uint8_t *origins = <uint8_t *>PyBytes_AS_STRING(origin)
        cdef uint8_t *repeats = <uint8_t *>PyBytes_AS_STRING(repeated)
        cdef const wan_record *record
        cdef uint32_t n
        memset(repeats, 0, (count + 7) // 8)
        with nogil:
            for n in range(self.count):
                record = self.memory.records[self.first + n]
                repeats[n >> 3] |= <uint8_t>((self.memory.repeated[self.first + n] != 0) << (n & 7))
                operations[n], origins[n] = record.operation, record.origin_site
                timestamps[n], stamps[n] = <int64_t>(record.stamp >> 16), record.stamp
                members[n], threads[n], event_numbers[n] = (record.event_member, record.event_thread,
                                                            record.event_sequence)
        memcpy(PyBytes_AS_STRING(sequence), self.memory.sequences + self.first, count * 8)
        memcpy(PyBytes_AS_STRING(partition), self.memory.partitions + self.first, count * 4)
        return {
            "operation": operation, "timestamp": timestamp, "stamp": stamp, "sequence": sequence,
            "partition": partition, "event_member": member, "event_thread": thread, "event_sequence": number,
            "origin_site": origin, "possible_duplicate": repeated,
        }
