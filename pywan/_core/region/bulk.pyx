# Owns the calls of users that change or read many keys: `put_all`, `remove_all` and `get_all`. Entries wait in sections
# of bounded size, and the changes of a section are made together. An entry whose encoding may run code of users, and an
# entry that a section cannot make, is made by the single call, after all earlier entries: so a bulk call does what a
# loop of single calls does.
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.ref cimport Py_DECREF, Py_INCREF
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_replication cimport *
from pywan._core.base.gil cimport gil_back, gil_may_go, lock_take_with_gil
from pywan._core.region.compiled_region cimport CompiledRegion, OneWait
from pywan._core.region.put_rows cimport bulk_result, region_put_decoded
from pywan._core.region.region_changes cimport (
    check_replicas, destroy_one, get_one, no_answer, put_one)
from pywan._core.region.region_state cimport region_core
from pywan._core.region.step_rows cimport ROWS_PER_HOLD, decoded_rows
from pywan._core.values.codec cimport decode, encode_by_type, encode_key_by_type, encode_plain, encoded
from pywan._core.values.tagged cimport pack_closed

from collections.abc import Mapping

cdef enum:
    SECTION_BYTES = 1 << 18     # So many bytes of keys and values end a section.
    OTHERS_TOGETHER = 4096      # So many keys of other members are read together.
    GIL_KEPT_US = 5000          # Other threads get the GIL after this time, as from a loop of Python.

cdef uint64_t NOT_HERE = <uint64_t>-1     # No sequence: the key was not read at this member.

# The iterators that run no code of users.
cdef frozenset PLAIN_ITERATORS = frozenset(
    type(iter(each)) for each in ([], (), {}, {}.items(), {}.values(), set(), range(0), range(1 << 70), b"", ""))


@cython.auto_pickle(False)
cdef class BulkEntries:
    """The entries of a bulk call, in the order of the caller. A subclass has `take` for an entry, and `flush` for the
    entries that wait."""

    def __dealloc__(self):
        free(self.packed.data)
        wan_buffer_close(&self.tagged)

    cdef int take(self, key, value) except -1:
        raise NotImplementedError

    cdef int flush(self) except -1:
        raise NotImplementedError

    cdef bint encode_key(self, key, encoded *out, bint *is_tagged) except -1:
        """Encodes a key if no code of users runs meanwhile. False: such code would run, or the key is refused.
        `is_tagged`: the bytes are in `tagged`, from `number` on."""
        cdef type kind = type(key)
        if encode_plain(key, out, <Py_ssize_t>WAN_KEY_BYTES_MAX):
            return True
        if kind is tuple:
            is_tagged[0] = True
            return (pack_closed(&self.packed, key) and self.packed.used <= WAN_KEY_BYTES_MAX
                    and wan_key_fault(self.packed.data, <uint32_t>self.packed.used, WAN_FORM_TAGGED) == NULL
                    and self.keep_packed(out))
        if kind is not int and kind is not str and kind is not float:
            return False
        try:
            holder = encode_key_by_type(key, out)
        except Exception:
            return False
        if out.form == WAN_FORM_FLOAT:
            memcpy(&out.number, &out.real, 8)
        return holder is key

    cdef bint keep_packed(self, encoded *out) except -1:
        """Moves the tagged form that was made last behind the others. False: no memory."""
        out.number = <int64_t>self.tagged.used
        out.data, out.length, out.form = NULL, <uint32_t>self.packed.used, WAN_FORM_TAGGED
        return wan_buffer_add(&self.tagged, self.packed.data, self.packed.used) == WAN_OK

    cdef inline int take_next(self, key, value) except -1:
        self.take(key, value)
        self.row += 1
        if self.row % ROWS_PER_HOLD == 0:
            self.let_others()
        return 0

    cdef int let_others(self) except -1:
        """Looks at signals, and lets other threads have the GIL if this thread had the GIL for long."""
        cdef uint64_t now = wan_monotonic_us()
        PyErr_CheckSignals()
        if now >= self.gil_since + GIL_KEPT_US:
            if self.gil_since:
                with nogil:
                    pass
                now = wan_monotonic_us()
            self.gil_since = now
        return 0

    cdef int take_pairs(self, entries) except -1:
        """Takes the entries of a mapping, or pairs. If the caller's iterator fails, all entries before are made."""
        cdef dict plain
        try:
            if type(entries) is dict:
                self.may_wait, plain = True, entries
                for key, value in plain.items():
                    self.take_next(key, value)
                return 0
            try:
                given = iter(entries.items() if isinstance(entries, Mapping) else entries)
            except TypeError:
                from pywan.errors import ConfigurationError
                raise ConfigurationError(f"region {self.state.name!r}: {entries!r:.80} is neither a mapping nor pairs"
                                         " of keys and values; nothing was stored") from None
            self.may_wait = type(given) in PLAIN_ITERATORS
            for pair in given:
                self.take_pair(pair)
        except Exception:
            self.flush()
            raise
        return 0

    cdef int take_pair(self, pair) except -1:
        if type(pair) is tuple and len(<tuple>pair) == 2:
            return self.take_next((<tuple>pair)[0], (<tuple>pair)[1])
        if type(pair) is not list:
            self.flush()            # The pair may run code of users.
        try:
            key, value = pair
        except (TypeError, ValueError):
            from pywan.errors import ConfigurationError
            raise ConfigurationError(f"region {self.state.name!r}: entry {self.row} is no pair of a key and a value:"
                                     f" {pair!r:.80} (the entries before it were stored)") from None
        return self.take_next(key, value)

    cdef int take_keys(self, keys) except -1:
        """As `take_pairs`, for keys without values."""
        given = iter(keys)
        self.may_wait = type(given) in PLAIN_ITERATORS
        try:
            for key in given:
                self.take_next(key, None)
        except Exception:
            self.flush()
            raise
        return 0


@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class BulkChange(BulkEntries):
    """A bulk call that changes a region."""

    def __cinit__(self, CompiledRegion state not None, uint8_t operation, callback_argument):
        self.state, self.operation, self.callback_argument = state, operation, callback_argument
        self.packs, self.failures = True, []
        memset(&self.callback, 0, sizeof(encoded))
        self.section = <entry_section *>malloc(sizeof(entry_section))
        if self.section == NULL:
            raise MemoryError(f"region {state.name!r}: no memory for a call of many entries; nothing was changed")
        self.section.count = 0
        self.section.rows.has_faults = False
        self.is_alone = callback_argument is not None and not self.encode_argument()

    def __dealloc__(self):
        if self.section != NULL:
            self.drop()
        free(self.section)

    cdef bint encode_argument(self) except -1:
        """Encodes the callback argument if no code of users runs meanwhile. False: each entry has to be made alone."""
        cdef type kind = type(self.callback_argument)
        if encode_plain(self.callback_argument, &self.callback, <Py_ssize_t>WAN_CALLBACK_BYTES_MAX):
            return True
        if kind is int or kind is float:
            return encode_by_type(self.callback_argument, &self.callback, False) is self.callback_argument
        if not pack_closed(&self.packed, self.callback_argument) or self.packed.used > WAN_CALLBACK_BYTES_MAX:
            return False
        self.callback_argument_bytes = PyBytes_FromStringAndSize(<const char *>self.packed.data, self.packed.used)
        self.callback.data = <const uint8_t *>PyBytes_AS_STRING(self.callback_argument_bytes)
        self.callback.length, self.callback.form = <uint32_t>self.packed.used, WAN_FORM_TAGGED
        return True

    cdef int take(self, key, value) except -1:
        cdef uint64_t packed
        if self.section.count == ROWS_PER_HOLD or self.bytes >= SECTION_BYTES:
            self.flush()
        packed = self.tagged.used
        # Callbacks may see what was stored before, and may change the caller's collection.
        if self.may_wait and not self.is_alone and not self.state.seems_by_callbacks:
            if self.wait_in_section(key, value):
                return 0
            self.tagged.used = packed
        self.flush()
        self.take_alone(key, value)
        return 0

    cdef bint wait_in_section(self, key, value) except -1:
        """Encodes an entry as the next row of the section. False: the entry has to be made alone."""
        cdef entry_section *section = self.section
        cdef int64_t n = section.count
        cdef encoded encoded_key, encoded_value
        cdef bint is_tagged = False
        if not encode_plain(key, &encoded_key, <Py_ssize_t>WAN_KEY_BYTES_MAX):
            if not self.encode_key(key, &encoded_key, &is_tagged):
                return False
            if encoded_key.form == WAN_FORM_INT or encoded_key.form == WAN_FORM_FLOAT or is_tagged:
                section.numbers[2 * n] = encoded_key.number
                encoded_key.data = NULL
                if not is_tagged:
                    encoded_key.data = <const uint8_t *>&section.numbers[2 * n]
        section.rows.keys[n], section.rows.key_lengths[n] = encoded_key.data, encoded_key.length
        section.rows.key_forms[n] = encoded_key.form
        if self.operation == WAN_DESTROY:
            encoded_value.data, encoded_value.length, encoded_value.form = NULL, 0, WAN_FORM_NONE
        elif not encode_plain(value, &encoded_value, <Py_ssize_t>WAN_VALUE_BYTES_MAX):
            is_tagged = False
            if not self.encode_value(value, &encoded_value, &is_tagged):
                return False
            if encoded_value.form == WAN_FORM_INT or encoded_value.form == WAN_FORM_FLOAT or is_tagged:
                section.numbers[2 * n + 1] = encoded_value.number
                encoded_value.data = NULL
                if not is_tagged:
                    encoded_value.data = <const uint8_t *>&section.numbers[2 * n + 1]
            elif encoded_value.form == WAN_FORM_NONE:
                encoded_value.data = NULL
        section.rows.values[n], section.rows.value_lengths[n] = encoded_value.data, encoded_value.length
        section.rows.value_forms[n] = encoded_value.form
        section.rows.operations[n], section.rows.faults[n] = self.operation, 0
        section.objects[2 * n], section.objects[2 * n + 1] = <void *>key, <void *>value
        Py_INCREF(key)
        Py_INCREF(value)
        section.count = n + 1
        self.bytes += encoded_key.length + encoded_value.length
        return True

    cdef bint encode_value(self, value, encoded *out, bint *is_tagged) except -1:
        """As `encode_key`, for a value that `encode_plain` does not take."""
        cdef type kind = type(value)
        if value is None or kind is str or kind is float:
            try:
                encode_by_type(value, out, False)
            except Exception:
                return False
            if kind is float:
                memcpy(&out.number, &out.real, 8)
            return True
        if kind is int:
            return encode_by_type(value, out, False) is value
        is_tagged[0] = True
        self.packs = self.packs and pack_closed(&self.packed, value)
        return self.packs and self.keep_packed(out)

    cdef int flush(self) except -1:
        """Makes the changes of the section."""
        if self.section.count:
            try:
                self.make_section()
            finally:
                self.drop()
            self.let_others()
        return 0

    cdef int make_section(self) except -1:
        cdef entry_section *section = self.section
        cdef CompiledRegion state = self.state
        cdef bulk_result *result = &self.result
        cdef int64_t n, first = self.row - section.count
        for n in range(section.count):
            if section.rows.keys[n] == NULL:
                section.rows.keys[n] = self.tagged.bytes + section.numbers[2 * n]
            if section.rows.values[n] == NULL and section.rows.value_forms[n] == WAN_FORM_TAGGED:
                section.rows.values[n] = self.tagged.bytes + section.numbers[2 * n + 1]
        memset(result, 0, sizeof(bulk_result))
        result.stops_without_memory = True
        if self.callback.data != NULL:
            result.callback, result.callback_length = self.callback.data, <uint16_t>self.callback.length
            result.callback_form = self.callback.form
        while result.done < section.count:
            if state.region.changelog == NULL and not state.seems_by_callbacks:
                make_rows(&state.region, &section.rows, section.count, result)
                if result.applied and wan_flag_read(&state.region.durable):
                    state.wait_written(result.waits)        # Only noted: the call waits at its end.
                if result.done and result.sequence:
                    self.settle(<object>section.objects[2 * result.done - 2])
                    result.sequence, result.stopped = 0, WAN_OK
                    continue
                if result.stopped == WAN_OK:
                    break
                result.stopped = WAN_OK
            self.row = first + result.done
            self.applied += result.applied
            result.applied = 0
            self.take_alone(<object>section.objects[2 * result.done], <object>section.objects[2 * result.done + 1])
            result.done += 1
        self.row = first + section.count
        self.applied += result.applied
        return 0

    cdef int settle(self, key) except -1:
        """Waits until the last row is replicated, which is in a change log: members share the region since a moment
        ago."""
        cdef bulk_result *result = &self.result
        cdef uint64_t began = wan_monotonic_us()
        if self.state.wait_stable(result.bucket, result.local_fence, result.sequence, began) != WAN_OK:
            raise no_answer(self.state, key, True, began)
        return check_replicas(self.state, key, result.bucket, result.sequence, False)

    cdef int take_alone(self, key, value) except -1:
        """Makes an entry by the single call. All earlier entries are made."""
        try:
            if self.operation == WAN_DESTROY:
                self.applied += destroy_one(self.state, key, self.callback_argument)
            else:
                put_one(self.state, key, value, self.callback_argument)
        except Exception as error:
            self.note(key, error)
        return 0

    cdef int note(self, key, error) except -1:
        """Notes that the entry at `row` was refused, or raises the error that ends the call."""
        from pywan.errors import DiskError, QueueFullError, RegionNotFoundError
        if isinstance(error, (QueueFullError, DiskError, RegionNotFoundError)):
            if self.operation == WAN_DESTROY:
                raise type(error)(f"remove_all stopped at key {key!r}: {error} ({self.applied} were destroyed before)"
                                  ) from error
            others = ""
            if self.failures:
                others = (f", but for {len(self.failures)} that were refused; first: entry {self.failures[0][0]}:"
                          f" {self.failures[0][1]}")
            raise type(error)(f"put_all stopped at entry {self.row}: {error} (the entries before it were stored"
                              f"{others})") from error
        if self.operation == WAN_DESTROY or not isinstance(error, (TypeError, ValueError)):
            raise error
        # The key or value cannot be stored.
        reason = str(error).removesuffix(" (nothing was stored)").removesuffix("; nothing was stored")
        self.failures.append((self.row, reason))
        return 0

    cdef int end(self) except -1:
        """Raises an error if entries were refused."""
        if not self.failures:
            return 0
        from pywan.errors import BatchError
        raise BatchError(f"region {self.state.name!r}: {len(self.failures)} of {self.row} entries were refused, the"
                         f" others were stored; first: entry {self.failures[0][0]}: {self.failures[0][1]}",
                         self.failures, self.row - len(self.failures))

    cdef void drop(self) noexcept:
        """Empties the section."""
        cdef entry_section *section = self.section
        cdef int64_t n, count = section.count
        section.count = 0
        self.bytes = 0
        for n in range(2 * count):
            Py_DECREF(<object>section.objects[n])
        wan_buffer_empty(&self.tagged)
        wan_buffer_trim(&self.tagged, WAN_BUFFER_KEPT_BYTES)


@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class BulkRead(BulkEntries):
    """A bulk call that reads a region."""

    def __cinit__(self, CompiledRegion state not None):
        self.state, self.found, self.others = state, {}, []

    def __dealloc__(self):
        self.drop()
        wan_buffer_close(&self.value)

    cdef int take(self, key, value) except -1:
        cdef uint32_t n
        cdef encoded got
        cdef bint is_tagged = False
        if self.count == READS_TOGETHER:
            self.flush()
        n = self.count
        if not self.may_wait or not self.encode_key(key, &got, &is_tagged):
            self.flush()
            self.found[key] = get_one(self.state, key, None)
            return 0
        if is_tagged:
            got.data = self.packed.data
        self.hashes[n] = wan_key_hash(got.data, got.length, got.form)
        wan_table_prefetch_slot(&self.state.region.table, self.hashes[n])
        self.keys[n], self.objects[n] = got, <void *>key
        if is_tagged:
            self.keys[n].data = NULL
        Py_INCREF(key)
        self.count = n + 1
        return 0

    cdef int flush(self) except -1:
        """Reads the keys of the section."""
        cdef region_core *region = &self.state.region
        cdef uint32_t n
        if self.state.region.closed or self.state.born != wan_forks:
            self.state.check_open()
        try:
            for n in range(self.count):
                wan_table_prefetch_entry(&region.table, self.hashes[n], self.keys[n].length)
                if self.keys[n].form == WAN_FORM_INT or self.keys[n].form == WAN_FORM_FLOAT:
                    self.keys[n].data = <const uint8_t *>&self.keys[n].number
                elif self.keys[n].data == NULL:
                    self.keys[n].data = self.tagged.bytes + self.keys[n].number
            if region.changelog != NULL:
                self.read_shared()
            else:
                for n in range(self.count):
                    self.found[<object>self.objects[n]] = self.read_here(n, NULL)
        finally:
            self.drop()
        return 0

    cdef int read_shared(self) except -1:
        """Reads the keys whose buckets this member leads. The rest is left for `read_others`, in a region whose
        replicas do not answer."""
        cdef wan_changelog *changelog = self.state.region.changelog
        cdef uint64_t local_fences[READS_TOGETHER]
        cdef uint64_t sequences[READS_TOGETHER]
        cdef uint64_t began = wan_monotonic_us()
        cdef uint32_t buckets[READS_TOGETHER]
        cdef uint32_t n
        cdef wan_status status
        for n in range(self.count):
            key = <object>self.objects[n]
            self.found[key] = None          # The order of the keys.
            buckets[n] = wan_table_bucket(&self.state.region.table, self.hashes[n]).number
            local_fences[n] = wan_read(&changelog.buckets[buckets[n]].local_fence)
            sequences[n] = NOT_HERE
            if wan_changelog_role(changelog, buckets[n]) == WAN_REPLICA_PRIMARY:
                self.found[key] = self.read_here(n, &sequences[n])
        for n in range(self.count):
            key, status = <object>self.objects[n], WAN_NOT_PRIMARY
            if sequences[n] != NOT_HERE:
                # As in `find_shared`: first the changes behind the value are replicated, then the read lease holds.
                status = self.state.wait_stable(buckets[n], local_fences[n], sequences[n], began)
                if status == WAN_OK:
                    status = self.state.wait_readable(buckets[n], local_fences[n], began)
            if status == WAN_EMPTY:
                raise no_answer(self.state, key, False, began)
            if status != WAN_OK and self.state.region.reads_replicas:
                self.found[key] = get_one(self.state, key, None)
            elif status != WAN_OK:
                self.others.append(key)
        if len(self.others) >= OTHERS_TOGETHER:
            self.read_others()
        return 0

    cdef int read_others(self) except -1:
        """Reads the keys at other members, all at once."""
        cdef list keys = self.others
        cdef bytes data
        if not keys:
            return 0
        self.others = []
        for key, (_, form, data) in zip(keys, self.state.route.read_all(keys)):
            self.found[key] = None if data is None else decode(
                form, <const uint8_t *>PyBytes_AS_STRING(data), <uint32_t>PyBytes_GET_SIZE(data))
        return 0

    cdef object read_here(self, uint32_t n, uint64_t *sequence):
        """The value of a key in this member's table. `sequence`: gets the sequence of the newest change of the key's
        shard, unless NULL."""
        cdef wan_shard *shard = wan_table_shard(&self.state.region.table, self.hashes[n])
        cdef wan_entry *entry
        cdef bytes data = None
        cdef uint8_t form = WAN_FORM_BYTES
        cdef bint is_copied = False
        cdef wan_status status = WAN_OK
        wan_buffer_empty(&self.value)
        lock_take_with_gil(&shard.lock)
        try:                    # There may be no memory for the copy.
            entry = wan_table_find(shard, self.hashes[n], self.keys[n].data, <uint16_t>self.keys[n].length,
                                   self.keys[n].form)
            if entry != NULL and entry.state == WAN_ENTRY_LIVE:
                form = entry.value_form
                if form == WAN_FORM_BYTES:
                    data = PyBytes_FromStringAndSize(<const char *>wan_entry_value(entry), entry.value_length)
                else:
                    is_copied = True
                    if entry.value_length:
                        status = wan_buffer_add(&self.value, wan_entry_value(entry), entry.value_length)
            if sequence != NULL:
                sequence[0] = wan_read(&self.state.region.changelog.shard_last[shard - self.state.region.table.shards])
        finally:
            wan_lock_release(&shard.lock)
        if not is_copied:
            return data
        if status != WAN_OK:
            raise MemoryError(f"region {self.state.name!r}: no memory for a value")
        if not self.value.used:
            return decode(form, <const uint8_t *>b"", 0)
        return decode(form, self.value.bytes, <uint32_t>self.value.used)

    cdef void drop(self) noexcept:
        """Empties the section."""
        cdef uint32_t n, count = self.count
        self.count = 0
        for n in range(count):
            Py_DECREF(<object>self.objects[n])
        wan_buffer_empty(&self.tagged)
        wan_buffer_trim(&self.value, WAN_BUFFER_KEPT_BYTES)


cdef void make_rows(region_core *region, decoded_rows *rows, int64_t count, bulk_result *result) noexcept nogil:
    """As `region_put_decoded`, for a caller that has the GIL."""
    gil_may_go()
    region_put_decoded(region, rows, count, result)
    gil_back()


cdef int region_put_all(CompiledRegion self, entries, more, callback_argument) except -1:
    """Puts the entries of `entries`, and then those of the dict `more`, unless None."""
    cdef BulkChange change
    self.check_open()
    if self.route is not None:
        self.route.put_all(entries, callback_argument, more)
        return 0
    change = BulkChange(self, WAN_UPDATE, callback_argument)
    with OneWait(self):         # A single wait for the disk of a synchronous region.
        change.take_pairs(entries)
        if more:
            change.take_pairs(more)
        change.flush()
    return change.end()


cdef int64_t region_remove_all(CompiledRegion self, keys, callback_argument) except -1:
    """Destroys the keys that are there, and returns how many there were."""
    cdef BulkChange change
    self.check_open()
    if self.route is not None:
        return self.route.remove_all(keys, callback_argument)
    change = BulkChange(self, WAN_DESTROY, callback_argument)
    with OneWait(self):
        change.take_keys(keys)
        change.flush()
    return change.applied


cdef dict region_get_all(CompiledRegion self, keys):
    """The values of the keys, in the order of the keys. None: the key has no value."""
    cdef BulkRead read
    self.check_open()
    read = BulkRead(self)
    read.take_keys(keys)
    read.flush()
    read.read_others()
    return read.found
