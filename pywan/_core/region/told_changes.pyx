# Owns changes of which the listeners of a region are told: one step under the entry lock, and then the listeners, both
# under the callback lock (docs/decisions/0117). The changes of regions whose filters are asked go through Python.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset
from cpython.method cimport PyMethod_Check, PyMethod_GET_SELF
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.base.gil cimport gil_back, gil_may_go
from pywan._core.region.compiled_region cimport CompiledRegion
from pywan._core.region.filtered_changes cimport change_filtered
from pywan._core.region.put cimport check_path, condition_look, origin_local, region_change_held
from pywan._core.region.region_callbacks cimport (
    EntryEvent, RegionCallbacks, hears, keep_old, old_value, write_event)
from pywan._core.region.region_state cimport MAX_ATTACHED, condition, decision, origin, region_core
from pywan._core.values.codec cimport encode, encode_key, encoded
from pywan._core.values.tagged cimport described

# No filter has said anything. A filter that has to be asked makes the change WAN_SLOW.
cdef decision no_decisions[MAX_ATTACHED]
memset(&no_decisions[0], 0, sizeof(no_decisions))


cdef RegionCallbacks callbacks_of(CompiledRegion self):
    """The compiled half of the path of a region's changes. None: an object without such a half makes the changes, or
    the filters of a sender have to be asked."""
    path = self.change_by_callbacks
    if self.asking or not PyMethod_Check(path):
        return None
    owner = <object>PyMethod_GET_SELF(path)
    return <RegionCallbacks>owner if isinstance(owner, RegionCallbacks) else None


cdef object outcome_name(wan_outcome outcome):
    """The name of an outcome, as `RegionChanges.change` returns it."""
    return ("created", "updated", "destroyed", "missing", "lost", "ask", "no memory", "unmet", "same",
            "forgotten")[<int>outcome]


cdef object encode_callback(argument, encoded *out):
    """As `encode`, for a callback argument."""
    holder = encode(argument, out)
    if out.length > WAN_CALLBACK_BYTES_MAX:
        from pywan.errors import EventTooLargeError
        raise EventTooLargeError(f"a callback argument of {out.length} bytes is over the limit of"
                                 f" {WAN_CALLBACK_BYTES_MAX} bytes; nothing was stored")
    return holder


cdef wan_status change_with_old(region_core *region, wan_change *change, const origin *from_, condition *wanted,
                                old_value *old, wan_outcome *outcome) noexcept nogil:
    """Makes a change as `region_change` or, if `wanted` is not NULL, `region_change_if`. Copies what the key had before
    to `old`, unless `old` is NULL. WAN_SLOW: the change needs Python, or members share the region."""
    cdef wan_shard *shard = wan_table_shard(&region.table, change.hash)
    cdef const wan_entry *entry = NULL
    cdef wan_status status
    gil_may_go()
    change.waits, change.logged = 0, 0
    wan_lock_take(&shard.lock)
    status = WAN_SLOW if region.changelog != NULL else check_path(region.attached, True)
    if status == WAN_OK and (old != NULL or wanted != NULL):
        entry = wan_table_find(shard, change.hash, change.key, change.key_length, change.key_form)
    if status == WAN_OK and old != NULL and entry != NULL and entry.state != WAN_ENTRY_TOMBSTONE:
        old.is_there = True
        if (entry.state == WAN_ENTRY_LIVE
                and not keep_old(old, wan_entry_value(entry), entry.value_length, entry.value_form)):
            status = WAN_SLOW
    if status == WAN_OK and wanted != NULL:
        status = condition_look(wanted, entry)
    if status == WAN_OK:
        outcome[0] = WAN_UNMET
        if wanted == NULL or wanted.holds:
            status = region_change_held(region, shard, change, from_, &no_decisions[0], outcome)
    wan_lock_release(&shard.lock)
    gil_back()
    return status


cdef inline int tell_if_made(region_core *region, RegionCallbacks callbacks, const wan_change *change,
                             const origin *from_, EntryEvent event, wan_outcome outcome) except -1:
    """Tells the listeners of a change with this outcome. Nobody is told of a destroy of a key that was not there."""
    cdef uint32_t operation = <uint32_t>outcome
    if (event is None or outcome > WAN_DESTROYED or not hears(callbacks, operation)
            or (outcome == WAN_DESTROYED and not event.old.is_there)):
        return 0
    write_event(event, region, change, from_, operation)
    return callbacks.tell(event)


cdef str change_and_tell(CompiledRegion self, RegionCallbacks callbacks, int operation, key, value, callback_argument,
                         int64_t timestamp_ms, condition *wanted):
    """Makes a local change, and tells the listeners. Returns the outcome, as `RegionChanges.change`. None: nothing was
    changed, and the change has to go through Python."""
    cdef encoded encoded_key, encoded_value, encoded_argument
    cdef wan_change change
    cdef origin from_
    cdef wan_outcome outcome
    cdef wan_status status
    cdef EntryEvent event
    self.check_open()
    _key_holder = encode_key(key, &encoded_key)
    _value_holder = encode(value, &encoded_value)
    origin_local(&from_, &self.region, wan_thread_self())
    if callback_argument is not None:
        _argument_holder = encode_callback(callback_argument, &encoded_argument)
        from_.callback, from_.callback_length = encoded_argument.data, <uint16_t>encoded_argument.length
        from_.callback_form = encoded_argument.form
    from_.alone = True
    change.key, change.key_length, change.key_form = encoded_key.data, <uint16_t>encoded_key.length, encoded_key.form
    change.value, change.value_length = encoded_value.data, encoded_value.length
    change.value_form = encoded_value.form
    change.hash = wan_key_hash(encoded_key.data, encoded_key.length, encoded_key.form)
    change.operation, change.ask, change.local, change.flags = <uint8_t>operation, WAN_ASK_NOBODY, 1, 0
    change.stamp_site = self.region.site
    callbacks.lock.enter()
    try:
        change.stamp = wan_clock_take(self.region.clock, wan_clock_now_ms(self.region.clock), 1)
        if timestamp_ms > 0 and (<uint64_t>timestamp_ms) << 16 < change.stamp:
            change.stamp, change.flags = (<uint64_t>timestamp_ms) << 16, WAN_FLAG_GIVEN
        event = callbacks.event_for(&change, &from_)
        status = change_with_old(&self.region, &change, &from_, wanted, &event.old if event is not None else NULL,
                                 &outcome)
        if status != WAN_OK:
            return None
        if outcome == WAN_OUT_OF_MEMORY:
            raise MemoryError(f"region {self.name!r}: no memory for key {described(key)}; nothing was stored")
        if wan_flag_read(&self.region.durable) and outcome != WAN_MISSING and outcome != WAN_UNMET:
            self.wait_written(change.waits, change.logged, change.logged)
        tell_if_made(&self.region, callbacks, &change, &from_, event, outcome)
    finally:
        callbacks.lock.leave()
    return outcome_name(outcome)


cdef str change_through_path(CompiledRegion self, int operation, key, value, callback_argument, int64_t timestamp_ms,
                             condition *wanted, object condition_):
    """Takes a change through the user's callbacks on this member. `wanted` is the condition in `condition_`."""
    cdef RegionCallbacks callbacks = callbacks_of(self)
    if condition_ is None:
        outcome = change_filtered(self, operation, key, value, callback_argument, timestamp_ms)
        if outcome is not None:
            return outcome
    if callbacks is not None and self.region.changelog == NULL:
        outcome = change_and_tell(self, callbacks, operation, key, value, callback_argument, timestamp_ms, wanted)
        if outcome is not None:
            return outcome
    if condition_ is None and not timestamp_ms:
        return self.change_by_callbacks(operation, key, value, callback_argument)
    return self.change_by_callbacks(operation, key, value, callback_argument, timestamp_ms, condition_)


cdef wan_status apply_and_tell(region_core *region, RegionCallbacks callbacks, wan_change *change, origin *from_,
                               wan_outcome *outcome) except *:
    """Applies an event of a remote site, and tells the listeners. WAN_SLOW, or the outcome WAN_ASK: nothing was
    changed, and the event has to go through Python. If an error is raised, the event was applied."""
    cdef EntryEvent event
    cdef wan_status status
    callbacks.lock.enter()
    try:
        from_.alone = True
        if callbacks.resolver is not None:
            change.ask = WAN_ASK_RESOLVER
        wan_clock_see(region.clock, change.stamp)       # Stamps of the listeners' own changes are later.
        event = callbacks.event_for(change, from_)
        status = change_with_old(region, change, from_, NULL, &event.old if event is not None else NULL, outcome)
        if status == WAN_OK:
            tell_if_made(region, callbacks, change, from_, event, outcome[0])
    finally:
        callbacks.lock.leave()
    return status


cdef RegionCallbacks begin_list(CompiledRegion self):
    """The listeners with `after_events` get the next changes of this thread as lists. No other change comes between.
    Returns the argument for `end_list`. None: there is no such listener."""
    cdef RegionCallbacks callbacks = callbacks_of(self)
    if callbacks is None or not callbacks.list_methods or self.region.changelog != NULL:
        return None
    callbacks.lock.enter()
    if self.region.changelog != NULL:   # Shared while this thread waited for the lock: changes wait for replicas.
        callbacks.lock.leave()
        return None
    callbacks.open_list()
    return callbacks


cdef int end_list(RegionCallbacks callbacks) except -1:
    """Hands the open list to the listeners."""
    if callbacks is None:
        return 0
    try:
        callbacks.close_list()
    finally:
        callbacks.lock.leave()
    return 0
