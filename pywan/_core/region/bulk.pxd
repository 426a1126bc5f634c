# The interface of bulk.pyx.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.region.compiled_region cimport CompiledRegion
from pywan._core.region.put_rows cimport bulk_result
from pywan._core.region.step_rows cimport ROWS_PER_HOLD, decoded_rows
from pywan._core.values.codec cimport encoded
from pywan._core.values.tagged cimport tagged_bytes

cdef class BulkEntries:
    cdef CompiledRegion state
    cdef readonly int64_t row       # Entries that were taken so far, refused ones too.
    # No code of users runs between two entries, so some entries may wait for later ones.
    cdef bint may_wait
    cdef uint64_t gil_since         # When the thread last took the GIL, as far as the call knows. 0: not known.

    cdef wan_buffer tagged          # The tagged forms that wait.
    cdef tagged_bytes packed        # The tagged form that was made last.

    cdef bint encode_key(self, key, encoded *out, bint *is_tagged) except -1
    cdef bint keep_packed(self, encoded *out) except -1
    cdef int take(self, key, value) except -1
    cdef int take_next(self, key, value) except -1
    cdef int let_others(self) except -1
    cdef int flush(self) except -1
    cdef int take_pairs(self, entries) except -1
    cdef int take_pair(self, pair) except -1
    cdef int take_keys(self, keys) except -1

cdef struct entry_section:
    # Entries of a bulk call that wait to be made together, as rows.
    decoded_rows rows
    # For each row its key and value: the bytes of numbers. For a tagged form: the begin of the bytes in the section's
    # buffer, which may move until all rows are there.
    int64_t numbers[2 * ROWS_PER_HOLD]
    # The same for the objects. The section keeps them alive.
    void *objects[2 * ROWS_PER_HOLD]
    int64_t count

cdef class BulkChange(BulkEntries):
    cdef entry_section *section
    cdef uint8_t operation
    cdef bint packs                 # Values of the call have not needed code of users so far.
    cdef bint is_alone              # Each entry has to be made alone.
    cdef object callback_argument
    cdef bytes callback_argument_bytes
    cdef encoded callback
    cdef bulk_result result         # The result of the section.
    cdef uint64_t bytes             # The bytes of keys and values in the section.
    cdef int64_t applied
    cdef list failures              # (entry, reason)

    cdef bint encode_argument(self) except -1
    cdef bint encode_value(self, value, encoded *out, bint *is_tagged) except -1
    cdef bint wait_in_section(self, key, value) except -1
    cdef int make_section(self) except -1
    cdef int settle(self, key) except -1
    cdef int take_alone(self, key, value) except -1
    cdef int note(self, key, error) except -1
    cdef int end(self) except -1
    cdef void drop(self) noexcept

cdef enum:
    READS_TOGETHER = 32     # So many keys are read together: their entries are fetched before the first is read.

cdef class BulkRead(BulkEntries):
    cdef dict found
    cdef list others                # Keys to read at other members. `found` has the keys already, for the order.
    # The keys that wait, with their hashes. A key of a tagged form has its begin in `tagged` as its number until then.
    cdef encoded keys[READS_TOGETHER]
    cdef uint64_t hashes[READS_TOGETHER]
    cdef void *objects[READS_TOGETHER]
    cdef uint32_t count
    cdef wan_buffer value           # The value that was read last.

    cdef int read_shared(self) except -1
    cdef int read_others(self) except -1
    cdef object read_here(self, uint32_t n, uint64_t *sequence)
    cdef void drop(self) noexcept

cdef int region_put_all(CompiledRegion self, entries, more, callback_argument) except -1
cdef int64_t region_remove_all(CompiledRegion self, keys, callback_argument) except -1
cdef dict region_get_all(CompiledRegion self, keys)
