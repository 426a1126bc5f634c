# Owns a client's bulk way in: rows are staged at the member, and applied only when the client says that its task is
# whole. So a task that is tried again is applied once, whatever order its rows come in.
cimport cython
import os
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_names cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_store cimport *
from pywan._core.base.limit cimport MemoryLimit
from pywan._core.region.put cimport origin_of_row, region_change
from pywan._core.region.region cimport RegionCore
from pywan._core.region.compiled_region cimport OneWait
from pywan._core.region.log_marks cimport log_marks, wait_log_marks
from pywan._core.region.region_state cimport origin, region_core
from pywan._core.region.entry_locks cimport CHANGES_PER_HOLD
from pywan._core.region.step_rows cimport (
    FETCHED_TOGETHER, ROWS_PER_HOLD, can_step_rows, decoded_rows, fetch_ahead, fetch_some,
    hash_of_row, region_step_rows, rows_did, take_row_alone)
from pywan._core.base.status cimport detail_text, full_error, raise_for
from pywan._core.wire.session cimport ENDED_DONE, ENDED_STOPPED, ENDED_TOLD, GOES_ON, Session
from pywan._core.wire.stream cimport buffer_frame, stream_take
from pywan._core.values.tagged cimport Encoded


@cython.no_gc_clear      # A stage that is closed uses the member's limit.
cdef class StageBudget:
    """Limits the rows of all tasks that are staged at a member: `memory` bytes of them in memory, the others in files,
    `limit` bytes in all. `member` counts those in memory. While it has more than half of its limit, new rows go to
    files."""
    cdef readonly uint64_t limit
    cdef MemoryLimit member         # None: it has no limit.
    cdef uint64_t taken             # Atomic.
    cdef wan_row_stage_pool pool

    def __cinit__(self, uint64_t limit, uint64_t memory=256 << 20, MemoryLimit member=None):
        self.limit, self.member = limit, member
        wan_row_stage_pool_init(&self.pool, &wan_env_posix, memory, &member.limit if member is not None else NULL)

    @property
    def used(self):
        """Bytes of rows that are staged now."""
        return wan_read(&self.taken)

    cdef bint take(self, uint64_t size) noexcept nogil:
        wan_add_shared(&self.taken, size)
        if wan_read(&self.taken) <= self.limit:
            return True
        wan_add_shared(&self.taken, -size)
        wan_note(WAN_CORRUPT, "the rows that are staged at this member would take more than its limit of %llu MB; "
                              "commit fewer at once, or make tasks smaller; "
                              "nothing of this task was applied", <unsigned long long>(self.limit >> 20))
        return False


@cython.no_gc_clear      # The objects that the stage keeps alive are used when it is closed.
cdef class RowStage(Session):
    """The rows of one task at the member. They are kept as they came until the task is whole, then applied in order."""
    cdef wan_row_stage stage
    cdef readonly uint64_t rows, bytes
    cdef readonly uint64_t applied, missing
    cdef readonly object refusal    # An exception that says why the last `apply` returned False.
    cdef StageBudget budget
    cdef uint64_t charged           # Bytes charged to the budget, until the last row is given back.
    cdef uint64_t receive_timeout_us        # The client is given up after so long without a byte; 0: it never is.
    cdef uint64_t announced         # Steps that the client was told of.
    # The identity of a row is (producer, task, row). The same row of the same task has it at each attempt and each
    # member.
    cdef uint32_t producer, task

    def __cinit__(self, directory, StageBudget budget=None, *, bytes run_id=b"", uint64_t task=0):
        self.producer, self.task = <uint32_t>wan_hash(<const char *>run_id, len(run_id), 0), <uint32_t>task
        cdef bytes place = os.fsencode(directory) if directory is not None else b""
        self.budget = budget if budget is not None else StageBudget(16 << 30)
        cdef const char *path = <const char *>place if directory is not None else NULL
        cdef wan_status status
        with nogil:
            status = wan_row_stage_open(&self.stage, &self.budget.pool, path)
        if status != WAN_OK:
            raise MemoryError(detail_text())
        self.speaks_last = True

    def __dealloc__(self):
        with nogil:
            wan_row_stage_close(&self.stage)
        if self.charged:
            wan_add_shared(&self.budget.taken, -self.charged)

    def stop(self):
        wan_flag_set(&self.stop_flag, 1)

    cdef int take_batch(self, const wan_frame *frame) noexcept nogil:
        cdef const wan_section *section
        if frame.flags or wan_batch_check(<const uint8_t *>(frame + 1), frame.length, frame.count) != WAN_OK:
            return 0
        if (<const wan_batch_head *>(frame + 1)).sections != 1:
            wan_note(WAN_CORRUPT, "rows in %u sections; a client's are in one",
                     (<const wan_batch_head *>(frame + 1)).sections)
            return 0
        section = <const wan_section *>(<const uint8_t *>(frame + 1) + sizeof(wan_batch_head))
        if section.partition or section.first != self.rows + 1 or section.through != self.rows + section.count:
            wan_note(WAN_CORRUPT, "rows %llu to %llu after %llu", <unsigned long long>section.first,
                     <unsigned long long>section.through, <unsigned long long>self.rows)
            return 0
        if not self.budget.take(section.bytes):
            return 0
        self.charged += section.bytes
        if wan_row_stage_add(&self.stage, <const uint8_t *>(section + 1), section.bytes) != WAN_OK:
            return 0
        self.rows += section.count
        self.bytes += frame.length
        return 1

    def connected(self, uint64_t now_us, int receive_timeout_ms=0):
        """Begins the connection, which is there since `now_us`; 0: since `run` begins. The client is given up when it
        says nothing for `receive_timeout_ms`; 0: never."""
        self.receive_timeout_us = <uint64_t>max(0, receive_timeout_ms) * 1000
        self.begin(now_us)

    def run(self, sock, int receive_timeout_ms):
        """Takes rows from a connected socket. Returns "done" when the client says that its task is whole, "closed" when
        it went away, "stopped", or why the rows cannot be taken, which the client was told."""
        self.connected(0, receive_timeout_ms)
        return self.run_over_socket(sock)

    def tell_progress(self, uint64_t steps):
        """Lays out for the client how far its task is, if that is further than it was told."""
        if steps > self.announced:
            self.announced = steps
            if not buffer_frame(&self.out, WAN_FRAME_PROGRESS, steps, 0, NULL, 0):
                raise MemoryError(detail_text())

    cdef int take_frame(self, wan_frame *frame) noexcept nogil:
        if wan_flag_read(&self.stop_flag):
            return ENDED_STOPPED
        if frame.type == WAN_FRAME_BATCH:
            return GOES_ON if self.take_batch(frame) else ENDED_TOLD
        if frame.type == WAN_FRAME_PING:
            return GOES_ON
        if frame.type != WAN_FRAME_COMMIT:
            wan_note(WAN_CORRUPT, "frame of type %u from a client", frame.type)
            return ENDED_TOLD
        if frame.id != self.rows:
            wan_note(WAN_CORRUPT, "the client counts %llu rows, %llu arrived", <unsigned long long>frame.id,
                     <unsigned long long>self.rows)
            return ENDED_TOLD
        stream_take(&self.into, frame)
        return ENDED_DONE

    cdef int step(self, uint64_t now_us) noexcept nogil:
        if self.receive_timeout_us and now_us > self.last_received_us + self.receive_timeout_us:
            wan_note(WAN_CORRUPT, "the client was silent for more than %llu ms",
                     <unsigned long long>(self.receive_timeout_us // 1000))
            self.say_why()
            return ENDED_TOLD
        return GOES_ON

    cdef uint64_t due_us(self, uint64_t now_us) noexcept nogil:
        return self.last_received_us + self.receive_timeout_us + 1 if self.receive_timeout_us else NEVER

    def apply(self, RegionCore region not None, double within_s=1e9):
        """Applies staged rows in order, as changes made at this member, from where the last call stopped.

        Returns True when all rows are applied. False: `within_s` has passed (at least one row was applied), or a queue
        had no room, or a log takes nothing. Then `refusal` says why, and the caller calls again later. Any other reason
        is raised. In all these cases the row that was not applied, and those behind it, stay staged for the next
        call."""
        cdef bint whole
        cdef wan_status status
        cdef uint64_t until_us = self.work_us() + <uint64_t>(within_s * 1e6)
        region.state.check_open()
        check_not_shared(region)
        self.refusal = None
        with nogil:
            status = self.apply_rows(&region.state.region, until_us)
        whole = status == WAN_OK
        if status == WAN_SLOW:
            with OneWait(region.state):
                whole = self.apply_by_callbacks(region, until_us)
        elif status != WAN_OK and status != WAN_FULL and status != WAN_EMPTY:
            if status == WAN_CLOSED:
                region.state.check_open()
            check_not_shared(region)
            raise_for(status, f"region {region.state.name!r}, row {self.applied + self.missing + 1} of the task")
        elif status == WAN_FULL:
            self.refusal = full_error(detail_text())
        if whole and wan_flag_read(&region.state.region.logged):
            wait_log_marks(log_marks((region,), True))
        return whole

    cdef wan_status apply_rows(self, region_core *region, uint64_t until_us) noexcept nogil:
        """Applies rows as far as they go straight into the region. WAN_OK: all of them are applied. WAN_EMPTY: the time
        is over. Otherwise the status says why the next row is not applied."""
        cdef const wan_record *records[ROWS_PER_HOLD]
        cdef decoded_rows rows
        cdef fetch_ahead ahead
        cdef rows_did did
        cdef origin from_
        cdef wan_status status
        cdef int64_t n, taken, done
        cdef bint can_step
        rows.has_faults = rows.are_given = False
        while True:
            taken = wan_row_stage_peek(&self.stage, ROWS_PER_HOLD, records)
            if taken == 0:
                return WAN_OK
            decode_records(region, records, taken, &rows)
            ahead.next, ahead.left = 0, taken if region.stores else 0
            while ahead.left and ahead.next < CHANGES_PER_HOLD:
                fetch_some(region, &rows, &ahead)
            can_step = can_step_rows(region)
            n = 0
            while n < taken:
                origin_of_row(&from_, region, self.producer, self.task, self.applied + self.missing + 1)
                done = region_step_rows(region, &rows, n, taken - n, &from_, &ahead, &did) if can_step else 0
                if not done:
                    if n % FETCHED_TOGETHER == 0:
                        fetch_some(region, &rows, &ahead)
                    status = apply_alone(region, &rows, n, &from_, &did)
                    if status != WAN_OK:
                        return status       # The row stays: the next call begins with it.
                    done = 1
                self.applied += did.applied
                self.missing += done - did.applied
                n += done
                for _ in range(done):
                    wan_row_stage_drop(&self.stage)
            if self.work_us() >= until_us:
                return WAN_EMPTY

    cdef bint apply_by_callbacks(self, RegionCore region, uint64_t until_us) except -1:
        cdef const wan_record *record
        while wan_row_stage_peek(&self.stage, 1, &record):
            from pywan.errors import QueueFullError
            try:
                key = Encoded(record.key_form, <bytes>wan_record_key(record)[:record.key_length])
                value = Encoded(record.value_form, <bytes>wan_record_value(record)[:record.value_length])
                event_id = self.producer, self.task, self.applied + self.missing + 1
                outcome = region.state.change_by_callbacks(record.operation, key, value, None, event_id=event_id)
            except QueueFullError as error:     # The row stays, as with any other error: the next call begins with it.
                self.refusal = error
                return False
            if outcome == "missing":
                self.missing += 1
            else:
                self.applied += 1
            with nogil:
                wan_row_stage_drop(&self.stage)
            if self.work_us() >= until_us:
                return False
        return True


cdef inline void decode_records(region_core *region, const wan_record **records, int64_t count,
                                decoded_rows *rows) noexcept nogil:
    """Decodes staged rows, as `decode_rows` does for columns, and gives them stamps. The client's own do not count, nor
    do its flags."""
    cdef uint64_t stamp = wan_clock_take(region.clock, wan_clock_now_ms(region.clock), <uint32_t>count)
    cdef const wan_record *record
    cdef int64_t n
    for n in range(count):
        record = records[n]
        rows.keys[n], rows.key_lengths[n] = wan_record_key(record), record.key_length
        rows.values[n], rows.value_lengths[n] = wan_record_value(record), record.value_length
        rows.key_forms[n], rows.value_forms[n] = record.key_form, record.value_form
        rows.operations[n] = record.operation
        rows.flags[n], rows.faults[n] = 0, 0
        rows.stamps[n] = stamp + n
        if region.stores:
            rows.hashes[n] = hash_of_row(rows, n)
            wan_table_prefetch_slot(&region.table, rows.hashes[n])


cdef inline wan_status apply_alone(region_core *region, decoded_rows *rows, int64_t n, const origin *from_,
                                   rows_did *did) noexcept nogil:
    """Applies a row by the single step. WAN_OK: it is done. Otherwise the status says why it is not."""
    cdef wan_change change
    cdef wan_outcome outcome
    cdef wan_status status
    take_row_alone(&change, region, rows, n)
    status = region_change(region, &change, from_, NULL, &outcome)
    if status == WAN_OK and outcome == WAN_OUT_OF_MEMORY:
        status = WAN_NO_MEMORY
    did.applied = outcome != WAN_MISSING
    return WAN_NOT_PRIMARY if region.changelog != NULL else status


cdef int check_not_shared(RegionCore region) except -1:
    if region.state.region.changelog != NULL:
        from pywan.errors import IllegalStateError
        from pywan.limitations import Limitation
        raise IllegalStateError(f"region {region.state.name!r} is on several members:"
                                f" {Limitation.NO_ROWS_OF_CLIENTS.refusal()}")
    return 0
