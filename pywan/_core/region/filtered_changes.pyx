# Owns the changes of a region whose only callbacks are the filters of its senders: single changes, and rows of columns.
# The filters are called from here, under the region's callback lock, and no other lock is held meanwhile.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset
from cpython.exc cimport PyErr_CheckSignals
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_store cimport wan_source_place
from pywan._core.values.codec cimport encode, encode_key, encoded
from pywan._core.values.column_views cimport column_row
from pywan._core.values.columns cimport Column
from pywan._core.values.queue_event cimport GatewayQueueEvent, event_of_bytes
from pywan._core.values.tagged cimport Encoded, described
from pywan._core.region.compiled_region cimport CompiledRegion
from pywan._core.region.enqueue cimport ENQUEUE_ASK, decide_enqueue, enqueue_decision
from pywan._core.region.event_filters cimport EventFilters, answer_about
from pywan._core.region.put cimport absent_below, origin_local, region_change, write_record
from pywan._core.region.put_rows cimport failure_text, key_fault
from pywan._core.region.region_callbacks cimport CallbackLock
from pywan._core.region.region_state cimport MAX_ATTACHED, PATH_CALLBACKS, attachment, decision, origin, region_core
from pywan._core.base.gil cimport gil_back, gil_may_go
from pywan._core.base.status cimport raise_for

cdef enum:
    # Rows of a bulk call that are made under one hold of the callback lock, and its time: other threads wait for it.
    ROWS_TOGETHER = 100
    HOLD_US = 1000

cdef tuple _operations = ("create", "update", "destroy")


cdef class FilterPath:
    """The path of changes through the filters of a region's senders, if the region has no other callbacks: an argument
    of `RegionCore.set_callback_path`."""

    def __init__(self, change, CallbackLock lock not None, dict filters not None, park):
        """`change`: the path of changes that cannot be made here. `lock`: the CallbackLock that the attachment of the
        region changes under, too. `filters`: the EventFilters of each attached queue. `park(operation, key, value,
        callback argument, origin, version, milliseconds, queues)` parks an event whose substitution filters failed."""
        self.change, self.filters, self.park = change, filters, park
        self.lock = lock

    def __call__(self, *args, **more):
        return self.change(*args, **more)

    @property
    def __self__(self):
        """The object whose method `change` is."""
        return self.change.__self__


cdef inline FilterPath filter_path(CompiledRegion self):
    """Returns the path of changes, if filters are the only callbacks now. Otherwise None."""
    cdef object change = self.change_by_callbacks
    return change if self.region.changelog == NULL and type(change) is FilterPath else None


cdef struct asked_change:
    # The answers about a change: by attached queue.
    decision decisions[MAX_ATTACHED]
    enqueue_decision entered
    uint8_t operation           # The operation of the event, for the filters.


cdef bint look_at_change(region_core *region, const wan_change *change, const origin *from_, asked_change *asked,
                         wan_outcome *outcome) noexcept nogil:
    """Finds the operation of the change's event, and the queues whose filters are to be asked about it. False: the
    change has no effect, as *outcome says."""
    cdef wan_shard *shard = wan_table_shard(&region.table, change.hash)
    cdef const attachment *attached
    cdef wan_change copy = change[0]        # The table may give the change a later stamp.
    outcome[0] = WAN_DESTROYED if change.operation == WAN_DESTROY else WAN_UPDATED
    asked.entered.count = 0
    gil_may_go()
    wan_lock_take(&shard.lock)
    if region.stores:
        copy.absent_below = absent_below(region, change.flags)
        outcome[0] = wan_table_decide(shard, &copy)
    attached = region.attached
    if attached != NULL and attached.path == PATH_CALLBACKS and region.forwards:
        decide_enqueue(attached, from_, region.site, asked.decisions, &asked.entered)
    wan_lock_release(&shard.lock)
    gil_back()
    asked.operation = (WAN_CREATE if outcome[0] == WAN_CREATED else WAN_UPDATE if outcome[0] == WAN_UPDATED
                       else WAN_DESTROY if outcome[0] == WAN_DESTROYED else change.operation)
    # WAN_SAME: the change was applied before, and may have to be forwarded again.
    return outcome[0] <= WAN_DESTROYED or outcome[0] == WAN_SAME


cdef wan_status change_decided(region_core *region, wan_change *change, const origin *from_, asked_change *asked,
                               wan_outcome *outcome) noexcept nogil:
    """Makes a change about which the filters have been asked."""
    cdef wan_status status
    gil_may_go()
    status = region_change(region, change, from_, asked.decisions, outcome)
    gil_back()
    return status


cdef GatewayQueueEvent event_of_change(const region_core *region, const wan_change *change, const origin *from_,
                                       uint8_t operation):
    """Returns the event that filters see before a change is made."""
    cdef bint has_value = operation != WAN_DESTROY
    cdef uint32_t value_length = change.value_length if has_value else 0
    cdef uint64_t length = wan_record_size(change.key_length, value_length, from_.callback_length, 0)
    cdef bytes record = PyBytes_FromStringAndSize(NULL, length)
    write_record(<uint8_t *>PyBytes_AS_STRING(record), length, region, change, operation, from_, NULL, 0,
                 change.value if has_value else NULL, value_length,
                 change.value_form if has_value else WAN_FORM_NONE)
    return event_of_bytes(record, from_.possible_duplicate)


cdef bint ask(CompiledRegion self, FilterPath path, const wan_change *change, const origin *from_,
              asked_change *asked, list values) except -1:
    """Asks the filters of each queue that the event would enter. `values` keeps the bytes of substitutes alive. False:
    the filters of a queue are not known here."""
    cdef GatewayQueueEvent event = None
    cdef EventFilters filters
    cdef decision *decided
    cdef uint32_t n
    for n in range(asked.entered.count):
        if asked.entered.verdicts[n] != ENQUEUE_ASK:
            continue
        filters, decided = path.filters.get(self.attached_queues[n]), &asked.decisions[n]
        if filters is None:
            return False
        if event is None:
            event = event_of_change(&self.region, change, from_, asked.operation)
        answer = answer_about(filters, event)
        decided.asked = 1
        if answer is None:
            continue
        if answer is False:
            decided.filtered = 1
        elif answer is filters.withheld:
            decided.withheld = 1
        else:
            values.append(answer)
            decided.substituted, decided.value_form = 1, answer[0]
            decided.value = <const uint8_t *>PyBytes_AS_STRING(answer[1])
            decided.value_length = <uint32_t>PyBytes_GET_SIZE(answer[1])
    return True


cdef bint make(CompiledRegion self, FilterPath path, wan_change *change, origin *from_, int64_t timestamp_ms, key,
               wan_outcome *outcome) except -1:
    """Asks the filters about a change, and makes the change. The caller holds the callback lock. False: nothing was
    changed, and the change has to go through all callbacks: several members hold the region by now, for example."""
    cdef asked_change asked
    cdef wan_status status = WAN_SLOW
    cdef uint32_t n
    cdef list values = []
    memset(asked.decisions, 0, sizeof(asked.decisions))
    change.ask, from_.alone = WAN_ASK_NOBODY, 1
    change.hash = wan_key_hash(change.key, change.key_length, change.key_form)
    if change.local:
        change.stamp_site, change.flags = self.region.site, 0
        change.stamp = wan_clock_take(self.region.clock, wan_clock_now_ms(self.region.clock), 1)
        if timestamp_ms > 0 and (<uint64_t>timestamp_ms) << 16 < change.stamp:
            change.stamp, change.flags = (<uint64_t>timestamp_ms) << 16, WAN_FLAG_GIVEN
    else:
        wan_clock_see(self.region.clock, change.stamp)
    while status == WAN_SLOW:
        # A sender may have started since the last look. Its filters are asked too: the event does not enter before.
        if self.region.changelog != NULL or self.region.closed:
            return False
        has_effect = look_at_change(&self.region, change, from_, &asked, outcome)
        if not has_effect:
            return outcome[0] == WAN_MISSING
        if not ask(self, path, change, from_, &asked, values):
            return False
        status = change_decided(&self.region, change, from_, &asked, outcome)
    if status == WAN_FULL and self.full_timeout_us and change.local:
        status = self.wait_for_room(change, from_, asked.decisions, NULL, outcome)
        if status == WAN_SLOW:
            return False
    if status != WAN_OK:
        self.fail(status, f"change of key {described(key_of(change, key))}")
    if outcome[0] == WAN_OUT_OF_MEMORY:
        raise MemoryError(f"region {self.name!r}: no memory for key {described(key_of(change, key))}; nothing was "
                          "stored")
    if change.local and wan_flag_read(&self.region.durable) and outcome[0] != WAN_MISSING:
        self.wait_written(change.waits, change.logged, change.logged)
    if not change.local and outcome[0] == WAN_LOST:
        wan_add_shared(&self.region.conflicts, 1)
    elif not change.local and outcome[0] <= WAN_DESTROYED:
        wan_add_shared(&self.region.applied, 1)
    if outcome[0] <= WAN_DESTROYED or outcome[0] == WAN_SAME:
        for n in range(asked.entered.count):
            if asked.decisions[n].withheld:
                park_withheld(self, path, change, from_, timestamp_ms, &asked)
                break
    return True


cdef object key_of(const wan_change *change, key):
    return key if key is not None else Encoded(change.key_form,
                                               PyBytes_FromStringAndSize(<const char *>change.key, change.key_length))


cdef int park_withheld(CompiledRegion self, FilterPath path, const wan_change *change, const origin *from_,
                       int64_t timestamp_ms, const asked_change *asked) except -1:
    path.park(
        _operations[asked.operation], key_of(change, None),
        Encoded(change.value_form, PyBytes_FromStringAndSize(<const char *>change.value, change.value_length)),
        Encoded(from_.callback_form, PyBytes_FromStringAndSize(<const char *>from_.callback, from_.callback_length)),
        (from_.site, <bytes>from_.recipients[:from_.recipient_count],
         (from_.event_member, from_.event_thread, from_.event_sequence), from_.possible_duplicate != 0, change.flags),
        None if change.local else (change.stamp, change.stamp_site), timestamp_ms,
        [self.attached_queues[n] for n in range(asked.entered.count) if asked.decisions[n].withheld])
    return 0


cdef str change_filtered(CompiledRegion self, int operation, key, value, callback_argument, int64_t timestamp_ms):
    """Makes a change, if the region's only callbacks are filters. Returns the outcome. None: the change has to go
    through all callbacks."""
    cdef FilterPath path = filter_path(self)
    cdef encoded encoded_key, encoded_value, encoded_argument
    cdef wan_change change
    cdef origin from_
    cdef wan_outcome outcome = WAN_MISSING
    if path is None:
        return None
    _key_holder = encode_key(key, &encoded_key)
    _value_holder = encode(value, &encoded_value)
    origin_local(&from_, &self.region, wan_thread_self())
    if callback_argument is not None:
        _argument_holder = encode(callback_argument, &encoded_argument)
        if encoded_argument.length > WAN_CALLBACK_BYTES_MAX:
            return None             # Refused there.
        from_.callback, from_.callback_length = encoded_argument.data, <uint16_t>encoded_argument.length
        from_.callback_form = encoded_argument.form
    memset(&change, 0, sizeof(change))
    change.key, change.key_length, change.key_form = encoded_key.data, <uint16_t>encoded_key.length, encoded_key.form
    change.value, change.value_length = encoded_value.data, encoded_value.length
    change.value_form, change.operation, change.local = encoded_value.form, <uint8_t>operation, 1
    path.lock.enter()
    try:
        if filter_path(self) is not path or not make(self, path, &change, &from_, timestamp_ms, key, &outcome):
            return None
    finally:
        path.lock.leave()
    return ("created", "updated", "destroyed", "missing")[<int>outcome]


cdef object apply_filtered(CompiledRegion self, bytes record, bint possible_duplicate, bytes place):
    """Applies an event of a remote site, if the region's only callbacks are filters. `place`: the event's place in its
    stream, or None. Returns whether the event was applied: False if it lost against a later version. None: the event
    has to go through all callbacks."""
    cdef FilterPath path = filter_path(self)
    cdef const wan_record *head = <const wan_record *>PyBytes_AS_STRING(record)
    cdef wan_change change
    cdef origin from_
    cdef wan_outcome outcome = WAN_MISSING
    if path is None:
        return None
    raise_for(wan_record_check(<const uint8_t *>head, PyBytes_GET_SIZE(record)), "")
    memset(&change, 0, sizeof(change))
    memset(&from_, 0, sizeof(from_))
    change.key, change.key_length, change.key_form = wan_record_key(head), head.key_length, head.key_form
    change.value, change.value_length = wan_record_value(head), head.value_length
    change.value_form, change.operation, change.flags = head.value_form, head.operation, head.flags
    change.stamp, change.stamp_site = head.stamp, head.stamp_site
    from_.site, from_.possible_duplicate = head.origin_site, possible_duplicate
    from_.recipients, from_.recipient_count = wan_record_recipients(head), head.recipients_count
    from_.event_member, from_.event_thread = head.event_member, head.event_thread
    from_.event_sequence = head.event_sequence
    from_.callback, from_.callback_length = wan_record_callback(head), head.callback_length
    from_.callback_form = head.callback_form
    if place is not None:
        from_.place = <const wan_source_place *>PyBytes_AS_STRING(place)
    path.lock.enter()
    try:
        if filter_path(self) is not path or not make(self, path, &change, &from_, 0, None, &outcome):
            return None
    finally:
        path.lock.leave()
    if outcome > WAN_DESTROYED and outcome != WAN_LOST and outcome != WAN_SAME:
        return None
    return outcome != WAN_LOST


cdef int64_t put_rows_filtered(CompiledRegion self, Column keys, Column values, const uint8_t *codes,
                               const int64_t *stamps, int64_t row, list failures, int64_t *applied) except -1:
    """Puts rows from `row` on, if the region's only callbacks are filters: as many as one hold of the callback lock
    allows. Returns the row behind the last one that was made or refused. *applied grows by the rows that took
    effect."""
    cdef FilterPath path = filter_path(self)
    cdef wan_change change
    cdef origin from_
    cdef wan_outcome outcome = WAN_MISSING
    cdef uint32_t key_length
    cdef int64_t end = min(row + ROWS_TOGETHER, keys.view.length)
    cdef int wrong
    cdef uint64_t until_us
    if path is None:
        return row
    from pywan.errors import DiskError, QueueFullError, RegionNotFoundError
    try:
        path.lock.enter()
        until_us = wan_monotonic_us() + HOLD_US
        try:
            while row < end and filter_path(self) is path:
                memset(&change, 0, sizeof(change))
                column_row(&keys.view, row, &change.key, &key_length, &change.key_form)
                change.operation = codes[row] if codes != NULL else WAN_UPDATE
                change.value_form, change.local = WAN_FORM_NONE, 1
                wrong = key_fault(change.key, key_length, change.key_form, False)
                if change.operation != WAN_DESTROY and values is not None and not wrong:
                    column_row(&values.view, row, &change.value, &change.value_length, &change.value_form)
                    if change.value_length > WAN_VALUE_BYTES_MAX:
                        wrong = 3
                if wrong:
                    failures.append((row, failure_text(wrong)))
                    row += 1
                    continue
                change.key_length = <uint16_t>key_length
                origin_local(&from_, &self.region, wan_thread_self())
                if not make(self, path, &change, &from_, stamps[row] if stamps != NULL else 0, None, &outcome):
                    break
                applied[0] += outcome <= WAN_DESTROYED
                row += 1
                if wan_monotonic_us() >= until_us:
                    break
        finally:
            path.lock.leave()
    except (QueueFullError, DiskError, RegionNotFoundError) as error:
        raise type(error)(f"put_columns stopped at row {row}: {error} (the rows before were stored)") from error
    PyErr_CheckSignals()            # Filters may be compiled too.
    with nogil:
        pass
    return row
