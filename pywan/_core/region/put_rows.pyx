# Owns changes by rows: the conversion of rows of columns into changes, and the groups in which the changes are made.
# The entries of a region that stores are fetched into the processor's cache ahead of time.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy, memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.values.column_views cimport (
    COLUMN_BYTES, COLUMN_FLOAT64, COLUMN_INT64, COLUMN_NONE, COLUMN_STR, ColumnView, column_rows)
from pywan._core.region.put cimport origin_local, region_change, region_note_applied
from pywan._core.region.region_state cimport PATH_STRAIGHT, attachment, origin, region_core
from pywan._core.region.entry_locks cimport CHANGES_PER_HOLD
from pywan._core.region.step_rows cimport (
    FETCHED_TOGETHER, ROWS_PER_HOLD, begin_change, can_step_rows, decoded_rows, fetch_ahead, fetch_some,
    hash_of_row, region_step_rows, rows_did, take_row, take_row_alone)


cdef object failure_text(int reason):
    return {1: "the key is empty or missing (null)", 2: f"the key is over the limit of {WAN_KEY_BYTES_MAX} bytes",
            3: f"the value is over the limit of {WAN_VALUE_BYTES_MAX} bytes", 4: "no memory", 5: "no room in a queue",
            6: "the key cannot be one: its text is not UTF-8, or it is or holds a list, a dict or a set; use a"
               " tuple"}[reason]


cdef bint keys_are_plain(const ColumnView *keys, int64_t row, int64_t count) noexcept nogil:
    """Whether all rows that are not null can be keys: because of the column's form, or because the keys are ASCII text.
    A check of all rows together is much less work than a check of each row."""
    cdef int64_t begin = row * keys.width, end = (row + count) * keys.width
    if keys.form == COLUMN_BYTES:
        return True
    if keys.offsets32 != NULL:
        begin, end = keys.offsets32[row], keys.offsets32[row + count]
    elif keys.offsets64 != NULL:
        begin, end = keys.offsets64[row], keys.offsets64[row + count]
    elif keys.form == COLUMN_INT64 or keys.form == COLUMN_FLOAT64:
        return keys.width == 8
    return keys.form == COLUMN_STR and end - begin <= PLAIN_BYTES_MAX and wan_is_ascii(keys.data + begin, end - begin)


cdef inline void bulk_fail(bulk_result *result, int64_t row, uint8_t reason) noexcept nogil:
    result.failed += 1
    if result.rows == NULL:
        result.rows = <int64_t *>malloc(BULK_FAILURES_LISTED * sizeof(int64_t))
        result.reasons = <uint8_t *>malloc(BULK_FAILURES_LISTED)
    if result.rows != NULL and result.reasons != NULL and result.listed < BULK_FAILURES_LISTED:
        result.rows[result.listed] = row
        result.reasons[result.listed] = reason
        result.listed += 1


cdef inline uint32_t all_bits(const uint32_t *numbers, int64_t count) noexcept nogil:
    """The bits that are set in any of the numbers: no number is higher than the result. The compiler takes several
    numbers at once."""
    cdef uint32_t bits = 0
    cdef int64_t n
    for n in range(count):
        bits |= numbers[n]
    return bits


cdef void decode_rows(const ColumnView *keys, const ColumnView *values, const uint8_t *codes, int64_t base,
                      decoded_rows *rows, int64_t first, int64_t count) noexcept nogil:
    """Decodes `count` rows of columns from `base` on, as rows from `first` on: key, value, operation, fault."""
    cdef bint is_plain = keys_are_plain(keys, base, count)
    cdef int64_t n, end = first + count
    column_rows(keys, base, <uint32_t>count, &rows.keys[first], &rows.key_lengths[first], &rows.key_forms[first])
    memset(&rows.faults[first], 0, count)
    if not (is_plain and keys.validity == NULL and keys.form != COLUMN_NONE
            and all_bits(&rows.key_lengths[first], count) <= WAN_KEY_BYTES_MAX):
        for n in range(first, end):
            rows.faults[n] = <uint8_t>key_fault(rows.keys[n], rows.key_lengths[n], rows.key_forms[n], is_plain)
            rows.has_faults |= rows.faults[n] != 0
    if values == NULL:
        memset(&rows.values[first], 0, count * sizeof(rows.values[0]))
        memset(&rows.value_lengths[first], 0, count * sizeof(rows.value_lengths[0]))
        memset(&rows.value_forms[first], WAN_FORM_NONE, count)
    else:
        column_rows(values, base, <uint32_t>count, &rows.values[first], &rows.value_lengths[first],
                    &rows.value_forms[first])
    if codes == NULL:
        memset(&rows.operations[first], WAN_UPDATE, count)
    else:
        memcpy(&rows.operations[first], codes + base, count)
        for n in range(first, end):
            if codes[base + n - first] == WAN_DESTROY:
                rows.values[n], rows.value_lengths[n], rows.value_forms[n] = NULL, 0, WAN_FORM_NONE
    if all_bits(&rows.value_lengths[first], count) > WAN_VALUE_BYTES_MAX:
        for n in range(first, end):
            if rows.value_lengths[n] > WAN_VALUE_BYTES_MAX:
                rows.faults[n], rows.has_faults = 3, True


cdef inline void stamp_rows(region_core *region, const int64_t *stamps, decoded_rows *rows, int64_t first,
                            int64_t count) noexcept nogil:
    """Gives decoded rows their stamps, and fetches their slots. `stamps`: the caller's stamps, from row `first` on.
    NULL: the caller gave no stamps."""
    cdef uint64_t stamp = wan_clock_take(region.clock, wan_clock_now_ms(region.clock), <uint32_t>count) - first
    cdef int64_t n, end = first + count
    memset(&rows.flags[first], 0, count)
    rows.are_given = stamps != NULL
    for n in range(first, end):
        rows.stamps[n] = stamp + n
    if stamps != NULL:
        for n in range(first, end):
            if stamps[n - first] > 0 and (<uint64_t>stamps[n - first]) << 16 < rows.stamps[n]:
                rows.stamps[n], rows.flags[n] = (<uint64_t>stamps[n - first]) << 16, WAN_FLAG_GIVEN
    if region.stores:
        for n in range(first, end):
            rows.hashes[n] = hash_of_row(rows, n) if not rows.faults[n] else 0
            wan_table_prefetch_slot(&region.table, rows.hashes[n])


cdef void region_put_rows(region_core *region, const ColumnView *keys, const ColumnView *values, const uint8_t *codes,
                          const int64_t *stamps, bulk_result *result) noexcept nogil:
    # Rows of a region that stores go through a ring in groups of CHANGES_PER_HOLD. Each group is decoded, and its slots
    # are fetched, two steps before the group is stored. The entries of the group are fetched while the previous group
    # is stored. Nothing is fetched for the rows of a proxy: a group of ROWS_PER_HOLD is decoded and enqueued.
    cdef decoded_rows rows
    cdef fetch_ahead ahead
    cdef int64_t first = result.done, row = first, decoded = first, end
    cdef int64_t together = CHANGES_PER_HOLD if region.stores else ROWS_PER_HOLD
    cdef int64_t rows_ahead = 3 * CHANGES_PER_HOLD if region.stores else ROWS_PER_HOLD
    cdef int64_t at, count
    cdef bint can_step = False
    cdef wan_thread *maker = wan_thread_self()
    rows.has_faults = False
    while row < keys.length:
        while decoded < min(keys.length, row + rows_ahead):
            count = min(keys.length - decoded, together)
            at = (decoded - first) % ROWS_PER_HOLD
            decode_rows(keys, values, codes, decoded, &rows, at, count)
            stamp_rows(region, stamps + decoded if stamps != NULL else NULL, &rows, at, count)
            decoded += count
        end = min(keys.length, row + together)
        at = (row - first) % ROWS_PER_HOLD
        if region.stores and row == first:      # No earlier rows fetched these entries.
            ahead.next, ahead.left = 0, end - row
            while ahead.left:
                fetch_some(region, &rows, &ahead)
        if at == 0:
            can_step = can_step_rows(region)
        ahead.next = (end - first) % ROWS_PER_HOLD
        ahead.left = min(decoded - end, together) if region.stores else 0
        row = put_group(region, &rows, at, row, end, can_step, &ahead, maker, result)
        if result.stopped != WAN_OK:
            break
    result.done = row


cdef void region_put_decoded(region_core *region, decoded_rows *rows, int64_t count,
                             bulk_result *result) noexcept nogil:
    """Takes decoded rows, up to row `count` (at most ROWS_PER_HOLD), from row `result.done` on. Groups, stamps and
    fetches are as in `region_put_rows`."""
    cdef fetch_ahead ahead
    cdef int64_t row = result.done, stamped = row, end, n
    cdef int64_t together = CHANGES_PER_HOLD if region.stores else ROWS_PER_HOLD
    cdef int64_t rows_ahead = 3 * CHANGES_PER_HOLD if region.stores else ROWS_PER_HOLD
    cdef bint can_step = result.callback == NULL and can_step_rows(region)
    cdef wan_thread *maker = wan_thread_self()
    while row < count and result.stopped == WAN_OK:
        while stamped < min(count, row + rows_ahead):
            n = min(count - stamped, together)
            stamp_rows(region, NULL, rows, stamped, n)
            stamped += n
        end = min(count, row + together)
        if region.stores and row == result.done:    # No earlier rows fetched these entries.
            ahead.next, ahead.left = row, end - row
            while ahead.left:
                fetch_some(region, rows, &ahead)
        ahead.next, ahead.left = end, min(stamped - end, together) if region.stores else 0
        row = put_group(region, rows, row, row, end, can_step, &ahead, maker, result)
    result.done = row


cdef inline int64_t put_group(region_core *region, decoded_rows *rows, int64_t at, int64_t row, int64_t end,
                              bint can_step, fetch_ahead *ahead, wan_thread *maker,
                              bulk_result *result) noexcept nogil:
    """Takes the rows from `row` to `end`, which were decoded as rows from `at` on, and fetches the entries of `ahead`
    meanwhile. Returns the row behind the last finished or refused row: `end`, unless `result` says why the call
    stopped."""
    cdef origin from_
    cdef rows_did did
    cdef int64_t done
    while row < end:
        if rows.faults[at]:
            bulk_fail(result, row, rows.faults[at])
            row += 1
            at += 1
            continue
        origin_local(&from_, region, maker)
        if result.callback != NULL:
            from_.callback, from_.callback_length = result.callback, result.callback_length
            from_.callback_form = result.callback_form
        done = region_step_rows(region, rows, at, end - row, &from_, ahead, &did) if can_step else 0
        if done:
            maker.events += <uint64_t>done - 1        # The first row has its event already.
            result.applied += did.applied
            result.waits |= did.waits
        else:
            done = store_rows(region, rows, at, end - row, ahead, result) if not can_step else 0
            if done == 0:
                if region.stores and (end - row) % FETCHED_TOGETHER == 0:
                    fetch_some(region, rows, ahead)
                done = put_alone(region, rows, at, row, &from_, result)
        row += done
        at += done
        if result.stopped != WAN_OK:
            break
    return row


cdef inline int64_t store_rows(region_core *region, decoded_rows *rows, int64_t first, int64_t count,
                               fetch_ahead *ahead, bulk_result *result) noexcept nogil:
    """Does the work of `region_change` for rows of a region that stores, and has no senders and no log: there are no
    events. Fetches the entries of `ahead` meanwhile. Returns how many rows were done, from row `first` on. The next row
    has to take the single step."""
    cdef wan_change change
    cdef wan_outcome outcome
    cdef wan_shard *shard
    cdef const attachment *attached
    cdef int64_t n
    if not region.stores or region.log != NULL or wan_table_is_short(&region.table):
        return 0
    begin_change(&change, region)
    for n in range(count):
        if rows.faults[first + n]:
            return n
        if n % FETCHED_TOGETHER == 0:
            fetch_some(region, rows, ahead)
        take_row(&change, rows, first + n)
        shard = wan_table_shard(&region.table, change.hash)
        wan_lock_take(&shard.lock)
        attached = region.attached
        if region.changelog != NULL or (attached != NULL and (attached.path != PATH_STRAIGHT or attached.count)):
            wan_lock_release(&shard.lock)
            return n
        if change.stamp < wan_clock_low(region.clock) and not change.flags & WAN_FLAG_GIVEN:
            # As in region_change_held.
            change.stamp = rows.stamps[first + n] = wan_clock_take(region.clock, wan_clock_now_ms(region.clock), 1)
        outcome = wan_table_apply(shard, &change)
        region_note_applied(region, shard, &change, rows.stamps[first + n], outcome)
        wan_lock_release(&shard.lock)
        if outcome == WAN_OUT_OF_MEMORY:
            return n
        result.applied += outcome <= WAN_DESTROYED
    return count


cdef inline uint32_t put_alone(region_core *region, decoded_rows *rows, int64_t at, int64_t row, const origin *from_,
                               bulk_result *result) noexcept nogil:
    """Takes a row by the single step. Returns 1 if the row was done or refused. 0: `result` says why the call
    stopped."""
    cdef wan_change change
    cdef wan_outcome outcome
    cdef wan_status status
    take_row_alone(&change, region, rows, at)
    status = region_change(region, &change, from_, NULL, &outcome)
    result.waits |= change.waits
    if status == WAN_OK and outcome == WAN_OUT_OF_MEMORY and result.stops_without_memory:
        status = WAN_NO_MEMORY
    if status != WAN_OK:
        result.stopped = status
        return 0
    if change.sequence:
        result.bucket = wan_table_bucket(&region.table, change.hash).number
        result.local_fence, result.sequence = change.local_fence, change.sequence
        result.stopped = WAN_NOT_PRIMARY
    if outcome <= WAN_DESTROYED:
        result.applied += 1
    elif outcome == WAN_OUT_OF_MEMORY:
        bulk_fail(result, row, 4)
    return 1
