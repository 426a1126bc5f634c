# The interface of put_rows.pyx.
from libc.stdint cimport int64_t, uint8_t, uint32_t
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.values.column_views cimport ColumnView
from pywan._core.region.region_state cimport region_core
from pywan._core.region.step_rows cimport decoded_rows

cdef enum:
    BULK_FAILURES_LISTED = 1000
    # The keys of a group are checked together up to this number of bytes. Longer keys are checked one by one: perhaps
    # only some rows of the group are taken now, and the remaining rows would be checked again.
    PLAIN_BYTES_MAX = 65536

cdef struct bulk_result:
    int64_t done            # Rows that were done or refused before the call stopped.
    int64_t applied
    int64_t failed
    int64_t listed
    # The reason of the stop. WAN_FULL: a queue had no room. WAN_SLOW: the rows have to go through the callbacks.
    # WAN_CLOSED: the region is closed. WAN_NOT_PRIMARY: several members hold the region since a moment ago. The rows
    # from `done` on were not stored. WAN_NO_MEMORY: there is no memory for row `done`.
    wan_status stopped
    # The place of the row before `done`, if that row is already in the change log of the region. The caller waits until
    # the row is replicated. `sequence` 0: no row is in the change log.
    uint32_t bucket
    uint64_t local_fence, sequence
    uint8_t waits           # As in wan_change, for any of the rows.
    # A row for which there is no memory stops the call, and is not stored. Otherwise the row is refused alone.
    bint stops_without_memory
    # The callback argument of all rows. NULL: none.
    const uint8_t *callback
    uint16_t callback_length
    uint8_t callback_form
    int64_t *rows
    uint8_t *reasons

cdef object failure_text(int reason)
cdef void decode_rows(const ColumnView *keys, const ColumnView *values, const uint8_t *codes, int64_t base,
                      decoded_rows *rows, int64_t first, int64_t count) noexcept nogil


cdef inline int key_fault(const uint8_t *key, uint32_t length, uint8_t form, bint is_plain) noexcept nogil:
    """The reason why the bytes of a row cannot be a key, for `failure_text`. 0: the bytes can be a key. `is_plain`:
    every row that is not null is known to be a possible key."""
    if length > WAN_KEY_BYTES_MAX:
        return 2
    if (is_plain and form != WAN_FORM_NONE) or wan_key_check(key, length, form) == WAN_OK:
        return 0
    return 1 if form == WAN_FORM_NONE else 6


cdef void region_put_rows(region_core *region, const ColumnView *keys, const ColumnView *values, const uint8_t *codes,
                          const int64_t *stamps, bulk_result *result) noexcept nogil


cdef void region_put_decoded(region_core *region, decoded_rows *rows, int64_t count, bulk_result *result) noexcept nogil
