# Owns the reads and changes of a region key by key: `RegionCalls` has the calls for users, and `RegionChanges` adds the
# calls for the region's member. `put` and `get` are the same for a facade and for a core.
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset
from cpython.exc cimport PyErr_CheckSignals
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from pywan._core.c_base cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.values.codec cimport (
    decode, encode, encode_by_type, encode_key, encode_key_by_type, encode_plain, encoded)
from pywan._core.region.call_slots cimport CallSlots
from pywan._core.region.compiled_region cimport CompiledRegion, enter_call, leave_call, changelog_holds_back
from pywan._core.region.enqueue cimport (
    ENQUEUE_ASK, decide_enqueue, enqueue_decision, known_decisions, read_origin)
from pywan._core.queue.event_queue cimport EventQueue
from pywan._core.region.filtered_changes cimport apply_filtered
from pywan._core.region.put cimport (
    absent_below, condition_look, origin_local, region_change, region_change_if, region_is_full)
from pywan._core.queue.queue cimport queue_note_not_queued
from pywan._core.region.region_columns cimport region_put_columns
from pywan._core.region.region_state cimport (
    IF_ABSENT, IF_EQUAL, IF_THERE, IF_VALUE, attachment, condition, decision, origin, region_core)
from pywan._core.region.region_walk cimport region_change_here, region_packed, sum_shards
from pywan._core.region.told_changes cimport change_through_path, encode_callback, outcome_name
from pywan._core.base.gil cimport gil_back, gil_may_go, lock_take_with_gil
from pywan._core.base.status cimport detail_text, raise_for
from pywan._core.values.tagged cimport described, show


cdef enum:
    REPLICA_WAIT_MS = 50   # A read at a replica waits so long for replication, then asks the primary.


cdef class Condition:
    """The condition of a conditional change, as in RegionCore.change_if, and afterwards the value that the table
    had."""

    def __cinit__(self, str kind, expected=None):
        cdef encoded encoded_value
        memset(&self.wanted, 0, sizeof(condition))
        self.wanted.kind = {"absent": IF_ABSENT, "value": IF_VALUE, "equal": IF_EQUAL, "there": IF_THERE}[kind]
        if self.wanted.kind == IF_EQUAL:
            self.holder = encode(expected, &encoded_value)
            # An integer's bytes, say, lie in `v`.
            self.holder = PyBytes_FromStringAndSize(<const char *>encoded_value.data, encoded_value.length)
            self.wanted.value = <const uint8_t *>PyBytes_AS_STRING(self.holder)
            self.wanted.length, self.wanted.form = encoded_value.length, encoded_value.form

    def __dealloc__(self):
        wan_buffer_close(&self.wanted.found)

    cdef object found(self):
        """The value that the table had, as an object. None: there was no value, or the condition is "equal"."""
        if not self.wanted.found_value or self.wanted.kind == IF_EQUAL:
            return None
        cdef const uint8_t *data = b""
        if self.wanted.found.used:
            data = self.wanted.found.bytes
        # The change is done, so the conversion must not fail: `show` gives a value that is no object as `Undecodable`.
        return show(self.wanted.found_form, data, <uint32_t>self.wanted.found.used)


@cython.auto_pickle(False)
cdef class RegionCalls:
    """The compiled calls of a region for users."""

    @property
    def name(self):
        return self.state.name

    @property
    def is_closed(self):
        """Whether the region was destroyed, or its cache was closed."""
        return bool(wan_flag_read(&self.state.region.closed))

    @property
    def applied(self):
        """Remote changes that took effect."""
        self.state.check_process()
        return wan_read(&self.state.region.applied)

    @property
    def conflicts(self):
        """Remote changes that lost against a later version."""
        self.state.check_process()
        return wan_read(&self.state.region.conflicts)

    @property
    def memory_bytes(self):
        """Bytes allocated for entries and slots."""
        cdef uint64_t used, tombstones, total
        self.state.check_process()
        with nogil:
            sum_shards(&self.state.region.table, &used, &tombstones, &total)
        return total

    @property
    def tombstones(self):
        """Destroyed keys that are remembered."""
        cdef uint64_t used, tombstones
        self.state.check_process()
        with nogil:
            sum_shards(&self.state.region.table, &used, &tombstones, NULL)
        return tombstones

    def __len__(self):
        cdef uint64_t used, tombstones
        self.state.check_open()
        if self.state.region.changelog != NULL:
            return self.state.route.count()
        with nogil:
            sum_shards(&self.state.region.table, &used, &tombstones, NULL)
        return used - tombstones

    def __contains__(self, key):
        cdef uint8_t form
        cdef bint live
        find_bytes(self.state, key, &form, &live)
        return live

    def put(self, key, value, callback_argument=None):
        """Stores `value` under `key` and hands the event to the attached senders. Raises QueueFullError,
        EventTooLargeError or SerializationError; then nothing was stored and nothing will be sent."""
        put_one(self.state, key, value, callback_argument)

    def get(self, key, default=None):
        """The value under `key`, or `default`. SerializationError for a value that is no object in this process."""
        return get_one(self.state, key, default)

    def destroy(self, key, callback_argument=None):
        """Removes `key` everywhere. KeyError if the key is absent."""
        if not destroy_one(self.state, key, callback_argument):
            raise KeyError(key)

    def local_destroy(self, key):
        """Removes the entry on this member only; nothing is sent. KeyError if the key is absent."""
        change_here(self.state, key, WAN_LOGGED_FORGET)

    def invalidate(self, key):
        """Drops the value and keeps the key with its version. Nothing is sent to remote sites. KeyError if the key is
        absent."""
        change_here(self.state, key, WAN_LOGGED_INVALID)

    def put_columns(self, keys, values, *, operations=None, timestamps=None):
        """Changes row by row from two columns, in one call without the GIL.

        `keys`, `values`: Arrow arrays, fixed-width numpy arrays, (offsets, data) pairs, lists of bytes or str, or
        Column. `operations`: create/update/destroy per row (default update). `timestamps`: milliseconds since 1970 per
        row. Returns the number of rows that took effect (a destroy of an absent key has no effect). BatchError lists
        the refused rows; all other rows were done."""
        return region_put_columns(self.state, keys, values, operations, timestamps)

    def wait_durable(self):
        """Returns when all changes and events so far are on the disk, as far as their logs are synchronous."""
        self.state.wait_durable()


cdef class RegionChanges(RegionCalls):
    """The calls for the region's member. The caller can say everything about a change."""

    def change(self, int operation, key, value=None, callback_argument=None, decisions=None, version=None,
               origin_=None, int ask=WAN_ASK_NOBODY, int64_t timestamp_ms=0,
               Condition condition_=None, bint alone=False):
        """Makes one change. The caller can say everything about the change. Changes that go through the user's Python
        end here.

        `decisions`: the answers of the user's callbacks, {attached queue: verdict} for each queue whose filters were
        asked. A verdict is None (enqueue), False (filtered) or (form, bytes) to be sent instead of the value. None: the
        change was not shown to the callbacks. `alone`: "callbacks" if members share the region by now, so that no lock
        of the region's callbacks is held while the change waits for the members. `version`: (stamp, site) of a remote
        change. `origin_`: (site, recipients, (member, thread, sequence), possible duplicate, flags, call); a local
        change can have an origin too. `call`: (client, slot, number, row or None) of the call of a remote member that
        asks for the change. `condition_`: the condition of a local change.

        Returns "created", "updated", "destroyed", "missing", "lost", "unmet" (the condition does not hold), "same"
        (applied before), "forgotten" (the key may have been destroyed later, and no tombstone is left to tell), "ask"
        (a resolver has to be asked first) or "callbacks" (the callbacks, or the filters of `unasked` queues, have to be
        asked first). A change with a `call` can also return "not primary" (this member is not primary, and changed
        nothing) and "in doubt" (the change was made here, and the next primary may lack the change)."""
        return change_one(self.state, operation, key, value, callback_argument, decisions, version, origin_, ask,
                          timestamp_ms, condition_, alone)

    def apply_filtered(self, bytes record not None, bint possible_duplicate, bytes place):
        """Applies an event of a remote site, if filters of senders are the region's only callbacks, and no other member
        has the region. `record`: the event in wire form. `place`: its place in its stream, or None. Returns whether the
        event was applied: False if it lost against a later version. None: nothing was done, and the event has to go
        through all callbacks."""
        self.state.check_open()
        return apply_filtered(self.state, record, possible_duplicate, place)

    @property
    def entries_here(self):
        """How many entries this member holds. In a region that several members hold: the entries of the member's own
        replicas."""
        cdef uint64_t used, tombstones
        with nogil:
            sum_shards(&self.state.region.table, &used, &tombstones, NULL)
        return used - tombstones

    def unasked(self, origin_, decisions):
        """The queues that an event with this origin would enter, and whose filters have to be asked first. `decisions`
        as for `change`."""
        cdef CompiledRegion state = self.state
        cdef origin from_
        cdef uint8_t flags
        cdef enqueue_decision decided
        cdef decision *known
        cdef const attachment *attached
        cdef wan_shard *shard = &state.region.table.shards[0]
        if not state.asking or not state.region.forwards:
            return []
        read_origin(origin_, &from_, &flags)
        known = known_decisions(decisions, state.attached_queues, state.name, None)
        decided.count = 0
        with nogil:
            wan_lock_take(&shard.lock)      # Any entry lock keeps the attachment alive.
            attached = state.region.attached
            if attached != NULL:
                decide_enqueue(attached, &from_, state.region.site, known, &decided)
            wan_lock_release(&shard.lock)
        free(known)
        return [state.attached_queues[n] for n in range(decided.count) if decided.verdicts[n] == ENQUEUE_ASK]

    def next_event_id(self):
        """(member, thread, sequence) of an event that this thread makes now. The caller gives the identity to `change`
        as a part of the origin."""
        return self.state.region.member, wan_thread_number(), wan_thread_next_event()

    def decide(self, int operation, key, version=None, int ask=WAN_ASK_NOBODY, value=None, Condition condition_=None,
               uint8_t flags=0):
        """Returns what `change` would return, and changes nothing."""
        cdef encoded encoded_key, encoded_value
        cdef wan_change change
        cdef wan_outcome outcome
        self.state.check_open()
        _key_holder = encode_key(key, &encoded_key)
        memset(&change, 0, sizeof(change))
        set_key(&change, &encoded_key)
        change.operation = <uint8_t>operation
        change.hash = wan_key_hash(encoded_key.data, encoded_key.length, encoded_key.form)
        change.ask = <uint8_t>ask
        change.flags = flags
        change.local = version is None
        _value_holder = encode(value, &encoded_value)
        set_value(&change, &encoded_value)
        if version is not None:
            change.stamp, change.stamp_site = version
        if not self.state.region.stores:
            return "destroyed" if operation == WAN_DESTROY else "updated"
        cdef wan_shard *shard = wan_table_shard(&self.state.region.table, change.hash)
        cdef wan_status status = WAN_OK
        cdef condition *wanted = &condition_.wanted if condition_ is not None else NULL
        with nogil:
            wan_lock_take(&shard.lock)
            change.absent_below = absent_below(&self.state.region, flags)
            outcome = wan_table_decide(shard, &change)
            if wanted != NULL:
                status = condition_look(
                    wanted, wan_table_find(shard, change.hash, change.key, change.key_length, change.key_form))
                if not wanted.holds:
                    outcome = WAN_UNMET
            wan_lock_release(&shard.lock)
        raise_for(status, f"region {self.state.name!r}")
        return outcome_name(outcome)

    def change_if(self, str kind, int operation, key, value=None, expected=None, callback_argument=None):
        """Makes one local change if the key is as `kind` says. No second change of the key comes in between. `kind`:
        "absent" (the key has no value; the key may have been invalidated), "value" (the key has a value), "equal" (the
        key has the value `expected`, in form and bytes) or "there" (the key is known, with a value or without).

        Returns (whether the change was made, whether there was a value, the value). For "equal" the value is None."""
        cdef Condition condition_ = Condition(kind, expected)
        self.state.check_open()
        if not self.state.region.stores and self.state.region.changelog == NULL:
            from pywan.errors import IllegalStateError
            raise IllegalStateError(f"region {self.state.name!r} is a proxy and holds no entries, so what key"
                                    f" {described(key)} has is not known here; nothing was changed - "
                                    "use put or destroy, or ask a region that holds entries")
        outcome = "callbacks"
        if not self.state.seems_by_callbacks:
            outcome = change_one(self.state, operation, key, value, callback_argument, None, None, None, 0, 0,
                                 condition_, False)
        if outcome == "callbacks":
            outcome = change_by_callbacks(self.state, operation, key, value, callback_argument, 0, condition_)
        return outcome in ("created", "updated", "destroyed"), bool(condition_.wanted.found_value), condition_.found()

    def clear(self):
        """Removes every entry of the region on this member, and returns how many there were. The call is a region
        operation, so nothing is sent."""
        cdef CompiledRegion state = self.state
        cdef encoded encoded_key
        cdef bytes packed
        cdef const uint8_t *run
        cdef uint64_t at, scan_position = 0, dropped = 0, logged_before = 0
        state.check_open()
        if state.region.changelog != NULL:
            return state.route.clear()
        logged_before = state.logged_before()
        while scan_position < state.region.table.shard_count:
            packed = region_packed(&state.region.table, &scan_position, state.region.table.shard_count, 1, state.name)
            run, at = <const uint8_t *>PyBytes_AS_STRING(packed), 0
            # We use the bytes of the key: not every key has the same bytes after decoding and encoding.
            while at < <uint64_t>len(packed):
                encoded_key.length, encoded_key.form = run[at] | run[at + 1] << 8, run[at + 2]
                encoded_key.data = run + at + 32
                dropped += change_key_here(state, &encoded_key, WAN_LOGGED_FORGET)
                at += 32 + encoded_key.length
        state.wait_written(False, logged_before + 1)
        return dropped

    def lookup(self, key):
        """(value, stamp, site, is_live) of a key, or None. A tombstone has is_live False. The value is as `show_object`
        gives it."""
        cdef encoded encoded_key
        self.state.check_open()
        _key_holder = encode_key(key, &encoded_key)
        cdef uint64_t hash = wan_key_hash(encoded_key.data, encoded_key.length, encoded_key.form)
        cdef wan_shard *shard = wan_table_shard(&self.state.region.table, hash)
        cdef wan_entry *entry
        cdef bytes data = None
        cdef uint8_t form = 0, state = 0, site = 0
        cdef uint64_t stamp = 0
        lock_take_with_gil(&shard.lock)
        try:                    # There may be no memory for the copy.
            entry = wan_table_find(shard, hash, encoded_key.data, <uint16_t>encoded_key.length, encoded_key.form)
            if entry != NULL:
                data = PyBytes_FromStringAndSize(<const char *>wan_entry_value(entry), entry.value_length)
                form, state, stamp, site = entry.value_form, entry.state, entry.stamp, entry.stamp_site
        finally:
            wan_lock_release(&shard.lock)
        if data is None:
            return None
        if state == WAN_ENTRY_TOMBSTONE:
            return None, stamp, site, False
        if state == WAN_ENTRY_INVALID:
            return None, stamp, site, True
        return show(form, <const uint8_t *>PyBytes_AS_STRING(data), <uint32_t>PyBytes_GET_SIZE(data)), stamp, site, True

    def show(self, key, default=None):
        """As `get`, but a value that is no object in this process is shown as Undecodable."""
        cdef uint8_t form
        cdef bint live
        cdef bytes data = find_bytes(self.state, key, &form, &live)
        if data is None:
            return default
        return show(form, <const uint8_t *>PyBytes_AS_STRING(data), <uint32_t>PyBytes_GET_SIZE(data))


# Changes and reads of one key, for callers that have the state: plain calls within this unit.

cdef inline void set_key(wan_change *change, const encoded *key) noexcept nogil:
    change.key, change.key_length, change.key_form = key.data, <uint16_t>key.length, key.form


cdef inline void set_value(wan_change *change, const encoded *value) noexcept nogil:
    change.value, change.value_length, change.value_form = value.data, value.length, value.form


cdef inline void set_callback(origin *from_, const encoded *argument) noexcept nogil:
    from_.callback, from_.callback_length = argument.data, <uint16_t>argument.length
    from_.callback_form = argument.form


cdef int put_one(CompiledRegion self, key, value, callback_argument) except -1:
    """As `RegionCalls.put`."""
    cdef encoded encoded_key, encoded_value, encoded_argument
    cdef wan_change change
    cdef origin from_
    cdef wan_outcome outcome
    cdef wan_status status
    cdef uint64_t began
    if self.region.closed or self.born != wan_forks:
        self.check_open()
    if self.seems_by_callbacks:
        change_by_callbacks(self, WAN_UPDATE, key, value, callback_argument, 0, None)
        return 0
    if self.region.changelog != NULL:
        change_one(self, WAN_UPDATE, key, value, callback_argument, None, None, None, WAN_ASK_NOBODY, 0, None, False)
        return 0
    if not encode_plain(key, &encoded_key, <Py_ssize_t>WAN_KEY_BYTES_MAX):
        _key_holder = encode_key_by_type(key, &encoded_key)
    change.hash = wan_key_hash(encoded_key.data, encoded_key.length, encoded_key.form)
    wan_table_prefetch_slot(&self.region.table, change.hash)
    if not encode_plain(value, &encoded_value, <Py_ssize_t>WAN_VALUE_BYTES_MAX):
        _value_holder = encode_by_type(value, &encoded_value, False)
    origin_local(&from_, &self.region, wan_thread_self())
    if callback_argument is not None:
        _argument_holder = encode_callback(callback_argument, &encoded_argument)
        set_callback(&from_, &encoded_argument)
    set_key(&change, &encoded_key)
    set_value(&change, &encoded_value)
    change.operation = WAN_UPDATE
    change.stamp_site = self.region.site
    change.stamp = wan_clock_take(self.region.clock, wan_clock_now_ms(self.region.clock), 1)
    change.flags = 0
    change.local = 1
    change.ask = WAN_ASK_NOBODY
    status = change_with_gil(&self.region, &change, &from_, NULL, NULL, &outcome)
    if status == WAN_FULL and self.full_timeout_us:
        status = self.wait_for_room(&change, &from_, NULL, NULL, &outcome)
    if status == WAN_SLOW or status == WAN_NOT_PRIMARY:       # The status is new since the look above.
        if change_one(self, WAN_UPDATE, key, value, callback_argument, None, None, None, WAN_ASK_NOBODY, 0, None,
                      False) == "callbacks":
            change_by_callbacks(self, WAN_UPDATE, key, value, callback_argument, 0, None)
        return 0
    if status == WAN_OK and self.region.changelog != NULL and change.waits:      # Shared since just now.
        began = wan_monotonic_us()
        if self.wait_stable(wan_table_bucket(&self.region.table, change.hash).number, change.local_fence,
                            change.sequence,
                            began) != WAN_OK:
            raise no_answer(self, key, True, began)
        check_replicas(self, key, wan_table_bucket(&self.region.table, change.hash).number, change.sequence, False)
        return 0
    if status != WAN_OK:
        self.fail(status, f"put of key {described(key)}")
    if outcome == WAN_OUT_OF_MEMORY:
        raise MemoryError(f"region {self.name!r}: no memory for key {described(key)}; nothing was stored")
    if wan_flag_read(&self.region.durable):
        self.wait_written(change.waits, change.logged, change.logged)
    return 0


cdef bint destroy_one(CompiledRegion self, key, callback_argument) except -1:
    """As `RegionCalls.destroy`. False: the key is absent."""
    self.check_open()
    outcome = "callbacks"
    if not self.seems_by_callbacks:
        outcome = change_one(self, WAN_DESTROY, key, None, callback_argument, None, None, None, WAN_ASK_NOBODY, 0,
                             None, False)
    if outcome == "callbacks":
        outcome = change_by_callbacks(self, WAN_DESTROY, key, None, callback_argument, 0, None)
    return outcome != "missing"


cdef inline wan_status change_with_gil(region_core *region, wan_change *change, const origin *from_,
                                       decision *decided, condition *wanted, wan_outcome *outcome) noexcept nogil:
    """Makes a change, on the condition `wanted` if `wanted` is not NULL. The caller has the GIL. Keeping the GIL is
    cheaper than taking it again, so the GIL goes only if the change has to sleep for a lock."""
    cdef wan_status status
    gil_may_go()
    if wanted != NULL:
        status = region_change_if(region, change, from_, decided, wanted, outcome)
    else:
        status = region_change(region, change, from_, decided, outcome)
    gil_back()
    return status


cdef object get_one(CompiledRegion self, key, default):
    """As `RegionCalls.get`."""
    cdef uint8_t form
    cdef bint live
    cdef bytes data = find_bytes(self, key, &form, &live)
    if data is None:
        return default
    return decode(form, <const uint8_t *>PyBytes_AS_STRING(data), <uint32_t>PyBytes_GET_SIZE(data))


cdef bytes find_bytes(CompiledRegion self, key, uint8_t *form, bint *live):
    """The bytes of a key's value, and the form. None: the key has no value. `live`: the key is known, with a value or
    without."""
    cdef encoded encoded_key
    if self.region.closed or self.born != wan_forks:
        self.check_open()
    _key_holder = encode_key(key, &encoded_key)
    cdef uint64_t hash = wan_key_hash(encoded_key.data, encoded_key.length, encoded_key.form)
    if self.region.changelog != NULL:
        return find_shared(self, key, &encoded_key, hash, form, live)
    return find_here(self, &encoded_key, hash, form, live, NULL)


cdef bytes find_here(CompiledRegion self, const encoded *key, uint64_t hash, uint8_t *form, bint *live,
                     uint64_t *sequence):
    """As `find_bytes`, in this member's table. `sequence`: gets the sequence of the newest change of the key's shard,
    unless NULL."""
    cdef wan_shard *shard = wan_table_shard(&self.region.table, hash)
    cdef wan_entry *entry
    cdef bytes data = None
    live[0] = False
    lock_take_with_gil(&shard.lock)
    try:                    # There may be no memory for the copy.
        entry = wan_table_find(shard, hash, key.data, <uint16_t>key.length, key.form)
        if entry != NULL and entry.state != WAN_ENTRY_TOMBSTONE:
            live[0] = True
            if entry.state == WAN_ENTRY_LIVE:
                data = PyBytes_FromStringAndSize(<const char *>wan_entry_value(entry), entry.value_length)
                form[0] = entry.value_form
        if sequence != NULL:
            sequence[0] = wan_read(&self.region.changelog.shard_last[shard - self.region.table.shards])
    finally:
        wan_lock_release(&shard.lock)
    return data


cdef bytes find_shared(CompiledRegion self, key, const encoded *encoded_key, uint64_t hash, uint8_t *form, bint *live):
    """As `find_bytes`, in a region that several members hold. The primary answers when the changes behind the found
    value are replicated. An in-sync replica answers in the same way, where the region allows reads at replicas."""
    cdef uint32_t bucket = wan_table_bucket(&self.region.table, hash).number
    cdef wan_changelog *changelog = self.region.changelog
    cdef uint64_t local_fence, sequence = 0, began = wan_monotonic_us()
    cdef uint8_t role
    cdef bytes data
    cdef wan_status status
    while True:
        local_fence = wan_read(&changelog.buckets[bucket].local_fence)
        role = wan_changelog_role(changelog, bucket)
        if role == WAN_REPLICA_PRIMARY:
            data = find_here(self, encoded_key, hash, form, live, &sequence)
            # The read lease comes last: the lease has to hold after everything that was read is replicated.
            status = self.wait_stable(bucket, local_fence, sequence, began)
            if status == WAN_OK:
                status = self.wait_readable(bucket, local_fence, began)
            if status == WAN_OK:
                return data
            if status == WAN_EMPTY:
                raise no_answer(self, key, False, began)
        elif replica_answers(self, bucket):
            data = find_here(self, encoded_key, hash, form, live, &sequence)
            if wait_at_replica(self, bucket, local_fence, sequence, REPLICA_WAIT_MS) == WAN_OK:
                return data
        found = self.route.read(key, began)
        if found is not None:
            live[0] = found[0]
            form[0] = found[1]
            return found[2]
        self.wait_for_role(key, began, False)


cdef bint replica_answers(CompiledRegion self, uint32_t bucket) noexcept:
    """Whether a read may begin at this member's replica."""
    return self.region.reads_replicas and wan_changelog_replica_may_answer(self.region.changelog, bucket)


cdef wan_status wait_at_replica(CompiledRegion self, uint32_t bucket, uint64_t local_fence, uint64_t sequence,
                                uint32_t limit_ms) noexcept:
    """Waits until the changes behind a read at a replica are replicated. WAN_OK: the value may be returned. WAN_EMPTY:
    the time is over. WAN_NOT_PRIMARY: the primary is to be asked."""
    cdef wan_status status
    with nogil:
        status = wan_changelog_wait(self.region.changelog, bucket, local_fence, sequence, limit_ms)
    # The second check is necessary: a replica may answer only if the replica was in sync at the look into the table.
    return WAN_NOT_PRIMARY if status == WAN_OK and not wan_changelog_replica_may_answer(self.region.changelog,
                                                                                        bucket) else status


cdef class ReplicaRead:
    """A read of a key at this member's own replica, for drivers without threads. If the read has not `begun`, or ends
    without an answer, the primary is asked."""

    def __cinit__(self, RegionCalls region not None, key):
        cdef encoded encoded_key
        cdef uint64_t hash
        _key_holder = encode_key(key, &encoded_key)
        hash = wan_key_hash(encoded_key.data, encoded_key.length, encoded_key.form)
        self.state = region.state
        self.state.check_open()
        if self.state.region.changelog == NULL:
            return
        self.bucket = wan_table_bucket(&self.state.region.table, hash).number
        self.local_fence = wan_read(&self.state.region.changelog.buckets[self.bucket].local_fence)
        if replica_answers(self.state, self.bucket):
            self.data = find_here(self.state, &encoded_key, hash, &self.form, &self.live, &self.sequence)
            self.begun = True

    def take(self):
        """Checks the state of the read. True: `live`, `form` and `data` are the answer. False: the read ends without an
        answer. None: the changes behind the read are not replicated yet."""
        cdef wan_status status = wait_at_replica(self.state, self.bucket, self.local_fence, self.sequence, 0)
        return None if status == WAN_EMPTY else status == WAN_OK


cdef object no_answer(CompiledRegion self, key, bint in_doubt, uint64_t began):
    """The error for a call that began at `began`, and whose replicas did not answer in time."""
    from pywan.errors import ConnectivityError
    became = "the change may still be replicated, or be lost" if in_doubt else "nothing was changed"
    error = ConnectivityError(f"region {self.name!r}: key {described(key)}: not all replicas of its bucket answered"
                              f" within {(wan_monotonic_us() - began) / 1e6:.3g} s; {became}. Try again when the"
                              " members of the site reach each other; `show coordinator` says who is there")
    error.in_doubt = in_doubt
    return error


cdef int check_replicas(CompiledRegion self, key, uint32_t bucket, uint64_t sequence, bint is_repeat) except -1:
    """Raises an error if a replicated change was made with fewer replicas than `min-in-sync-replicas` asks for."""
    cdef uint32_t replicas = 0
    if self.region.changelog.min_isr > 1:
        with nogil:
            replicas = wan_changelog_made_with(self.region.changelog, bucket, sequence, is_repeat)
    if replicas:
        raise self.route.too_few(bucket, replicas, self.region.changelog.min_isr, key)
    return 0


cdef object nobody_knows(CompiledRegion self, key):
    """The error for a call in doubt: no member knows whether an attempt made the change. This thread's detail says
    why."""
    from pywan.errors import ConnectivityError
    error = ConnectivityError(f"region {self.name!r}: key {described(key)}: {detail_text()}; the change may have been"
                              " made. Read the key, and make the change again if it is needed")
    error.in_doubt = True
    return error


cdef str change_by_callbacks(CompiledRegion self, int operation, key, value, callback_argument, int64_t timestamp_ms,
                             Condition condition_):
    """Takes a change through the user's callbacks, at the primary of the bucket. Returns the outcome."""
    cdef encoded encoded_key
    cdef uint64_t began, outer
    cdef condition *wanted = &condition_.wanted if condition_ is not None else NULL
    if self.region.changelog == NULL:
        return change_through_path(self, operation, key, value, callback_argument, timestamp_ms, wanted, condition_)
    began = wan_monotonic_us()
    outer = enter_call(self)
    try:
        _key_holder = encode_key(key, &encoded_key)
        if self.is_led_by_another(wan_key_hash(encoded_key.data, encoded_key.length, encoded_key.form)):
            outcome = self.route.change(operation, key, value, callback_argument,
                                        (self.region.member, wan_thread_number(), wan_thread_next_event()), condition_,
                                        timestamp_ms, began)
            if outcome is not None:
                if not isinstance(outcome, str):    # The callbacks would make a second change.
                    raise no_answer(self, key, True, began)
                return outcome
        return change_through_path(self, operation, key, value, callback_argument, timestamp_ms, wanted, condition_)
    finally:
        leave_call(outer)


cdef str finish_shared(CompiledRegion self, wan_change *change, origin *from_, decision *decided,
                       Condition condition_, key, value, callback_argument, int64_t timestamp_ms, uint64_t began,
                       CallSlots slots, uint64_t epoch, wan_status *status, wan_outcome *outcome):
    """The rest of a change to a region that several members hold. The change began at `began`, under the bucket's epoch
    `epoch`, and has its identity from `slots`. The function waits until the change is replicated, or sends the change
    to the primary. Returns the outcome at a remote primary. None: the change was made here, or refused, as *status and
    *outcome say."""
    cdef uint32_t bucket = wan_table_bucket(&self.region.table, change.hash).number
    cdef condition *wanted = &condition_.wanted if condition_ is not None else NULL
    cdef wan_call_identity *call = &from_.attempt.call
    cdef wan_status stable
    event_id = from_.event_member, from_.event_thread, from_.event_sequence
    while True:
        if status[0] == WAN_OK and outcome[0] != WAN_OUT_OF_MEMORY:
            stable = wait_shared(self, bucket, change, outcome[0], began)
            if stable == WAN_OK:
                if self.region.changelog.min_isr > 1 and outcome[0] <= WAN_DESTROYED:
                    check_replicas(self, key, bucket, change.sequence, change.recalled != 0)
                return None
            if stable == WAN_EMPTY:
                raise no_answer(self, key, outcome[0] <= WAN_DESTROYED, began)
            if outcome[0] <= WAN_DESTROYED:
                from_.attempt.since = from_.attempt.since or epoch
        elif status[0] == WAN_IN_DOUBT or (status[0] == WAN_GIVEN_UP and from_.attempt.since):
            raise nobody_knows(self, key)
        elif status[0] != WAN_NOT_PRIMARY and status[0] != WAN_GIVEN_UP:
            return None
        if status[0] == WAN_GIVEN_UP:
            slots.rename(call)
        else:
            found = self.route.change(<int>change.operation, key, value, callback_argument, event_id, condition_,
                                      timestamp_ms, began, from_.attempt.since, (call.caller, call.slot, call.number))
            if isinstance(found, str):
                return found
            from_.attempt.since = found or 0        # This member is primary now.
            self.wait_for_role(key, began, from_.attempt.since != 0)
        epoch = self.epoch_of(bucket)
        change.stamp = wan_clock_take(self.region.clock, wan_clock_now_ms(self.region.clock), 1)
        status[0] = change_with_gil(&self.region, change, from_, decided, wanted, outcome)


cdef str finish_for_other(CompiledRegion self, wan_change *change, key, uint64_t began, wan_status status,
                          wan_outcome outcome):
    """As `finish_shared`, for a change that a remote call asks for. The remote client repeats the call. Returns "not
    primary" or "in doubt" if this member is not primary, and the client has to repeat."""
    cdef wan_status stable
    if status == WAN_IN_DOUBT or status == WAN_GIVEN_UP:
        raise nobody_knows(self, key)
    if status == WAN_OK and outcome != WAN_OUT_OF_MEMORY:
        stable = wait_shared(self, wan_table_bucket(&self.region.table, change.hash).number, change, outcome, began)
        if stable == WAN_EMPTY:
            raise no_answer(self, key, outcome <= WAN_DESTROYED, began)
        if stable != WAN_OK:
            return "in doubt" if outcome <= WAN_DESTROYED else "not primary"
        if self.region.changelog.min_isr > 1 and outcome <= WAN_DESTROYED:
            check_replicas(self, key, wan_table_bucket(&self.region.table, change.hash).number, change.sequence,
                           change.recalled != 0)
    return "not primary" if status == WAN_NOT_PRIMARY else None


cdef wan_status wait_shared(CompiledRegion self, uint32_t bucket, const wan_change *change, wan_outcome outcome,
                            uint64_t began) except *:
    """Waits until a change is replicated, or, for a change without an effect, the changes that the change saw. Statuses
    as `CompiledRegion.wait_stable`."""
    cdef wan_status status = self.wait_stable(bucket, change.local_fence, change.sequence, began)
    if status == WAN_OK and outcome > WAN_DESTROYED:        # The reply is a read.
        status = self.wait_readable(bucket, change.local_fence, began)
    return status


cdef str apply_shared_event(CompiledRegion self, wan_change *change, origin *from_, decision *decided, key):
    """Applies an event of a remote site to a region that several members hold: as `change_one`, with `decided` from the
    filters that were asked. Returns when the change is replicated. "not primary": this member does not lead the bucket,
    or does not lead the bucket any more."""
    cdef wan_outcome outcome = WAN_LOST
    cdef uint64_t began = wan_monotonic_us()
    cdef uint32_t bucket = wan_table_bucket(&self.region.table, change.hash).number
    cdef wan_status status
    change.local_fence = change.sequence = change.recalled = 0
    with nogil:
        status = region_change(&self.region, change, from_, decided, &outcome)
    if status == WAN_SLOW:
        return "callbacks"
    if status == WAN_NOT_PRIMARY:
        return "not primary"
    if status != WAN_OK:
        self.fail(status, f"an event of key {described(key)}")
    if outcome == WAN_OUT_OF_MEMORY:
        raise MemoryError(f"region {self.name!r}: no memory for key {described(key)}; nothing was stored")
    if outcome == WAN_LOST:
        wan_add_shared(&self.region.conflicts, 1)
    elif outcome <= WAN_DESTROYED:
        wan_add_shared(&self.region.applied, 1)
    if change.sequence and self.wait_stable(bucket, change.local_fence, change.sequence, began) != WAN_OK:
        return "not primary"      # If replicated later, the new primary knows the event.
    return outcome_name(outcome)


cdef str change_one(CompiledRegion self, int operation, key, value, callback_argument, decisions, version, origin_,
                    int ask, int64_t timestamp_ms, Condition condition_, bint alone):
    """As `RegionChanges.change`."""
    cdef encoded encoded_key, encoded_value, encoded_argument
    cdef wan_change change
    cdef origin from_
    cdef wan_outcome outcome
    cdef wan_status status
    cdef decision *decided = NULL
    cdef condition *wanted = &condition_.wanted if condition_ is not None else NULL
    cdef uint64_t began = 0, epoch = 0
    cdef uint8_t flags = 0
    cdef CallSlots slots = None         # Source of the identity. None: a remote call asks for the change.
    cdef wan_call_identity own
    self.check_open()
    _key_holder = encode_key(key, &encoded_key)
    _value_holder = encode(value, &encoded_value)
    if origin_ is None:
        origin_local(&from_, &self.region, wan_thread_self())
    else:
        read_origin(origin_, &from_, &flags)
    if callback_argument is not None:
        _argument_holder = encode_callback(callback_argument, &encoded_argument)
        set_callback(&from_, &encoded_argument)
    set_key(&change, &encoded_key)
    set_value(&change, &encoded_value)
    change.operation = <uint8_t>operation
    change.hash = wan_key_hash(encoded_key.data, encoded_key.length, encoded_key.form)
    change.ask = <uint8_t>ask
    change.flags, from_.alone = flags, alone
    if version is None:
        change.local = 1
        change.stamp_site = self.region.site
        change.stamp = wan_clock_take(self.region.clock, wan_clock_now_ms(self.region.clock), 1)
        if timestamp_ms > 0 and (<uint64_t>timestamp_ms) << 16 < change.stamp:
            change.stamp, change.flags = (<uint64_t>timestamp_ms) << 16, WAN_FLAG_GIVEN
    else:
        change.local = 0
        change.stamp, change.stamp_site = version
        wan_clock_see(self.region.clock, change.stamp)
    if decisions is not None:
        decided = known_decisions(decisions, self.attached_queues, self.name, key)
    if self.region.changelog != NULL and version is not None:
        try:
            return apply_shared_event(self, &change, &from_, decided, key)
        finally:
            free(decided)
    if self.region.changelog != NULL:
        from_.asked, began = wanted, wan_monotonic_us()
        if not from_.attempt.call.caller:
            if region_is_full(&self.region) and wan_call_depth == 0:
                self.wait_for_memory(f"a change of key {described(key)}", self.deadline(began),
                                     self.is_led_by_another(change.hash))
            if (wan_changelog_has_learner(self.region.changelog, wan_table_bucket(&self.region.table,
                change.hash).number)
                    and changelog_holds_back(self.region.changelog, wan_table_bucket(&self.region.table,
                                             change.hash).number,
                                             began)):
                self.wait_for_learner(wan_table_bucket(&self.region.table, change.hash).number, self.deadline(began))
            slots = self.slots
            slots.take(&from_.attempt.call)
            own = from_.attempt.call
            from_.attempt.waits = 1
            epoch = self.epoch_of(wan_table_bucket(&self.region.table, change.hash).number)
    try:
        status = change_with_gil(&self.region, &change, &from_, decided, wanted, &outcome)
        if status == WAN_FULL and self.full_timeout_us and version is None:
            status = self.wait_for_room(&change, &from_, decided, wanted, &outcome)
        if self.region.changelog != NULL and status != WAN_SLOW:
            if slots is None:
                not_made = finish_for_other(self, &change, key, began, status, outcome)
            else:
                not_made = finish_shared(self, &change, &from_, decided, condition_, key, value, callback_argument,
                                         timestamp_ms, began, slots, epoch, &status, &outcome)
            if not_made is not None:
                return not_made
    finally:
        free(decided)
        if slots is not None:
            slots.give(own)
    if status == WAN_SLOW:
        return "callbacks"
    if status != WAN_OK:
        self.fail(status, f"change of key {described(key)}")
    if outcome == WAN_OUT_OF_MEMORY:
        raise MemoryError(f"region {self.name!r}: no memory for key {described(key)}; nothing was stored")
    if version is None and wan_flag_read(&self.region.durable) and outcome != WAN_MISSING:
        self.wait_written(change.waits, change.logged, change.logged)
    if version is not None:
        if outcome == WAN_LOST:
            wan_add_shared(&self.region.conflicts, 1)
        elif outcome <= WAN_DESTROYED:
            wan_add_shared(&self.region.applied, 1)
    return outcome_name(outcome)


cdef int change_here(CompiledRegion self, key, uint8_t flag) except -1:
    """Removes or invalidates an entry on this member, and waits as the log's level says. KeyError if the key is
    absent."""
    cdef encoded encoded_key
    cdef EventQueue queue
    self.check_open()
    if self.region.changelog != NULL:
        from pywan.errors import IllegalStateError
        raise IllegalStateError(f"region {self.name!r} is on several members, and its entries cannot differ between"
                                " them: use destroy, or a region of type LOCAL; nothing was changed")
    _key_holder = encode_key(key, &encoded_key)
    cdef uint64_t logged_before = self.logged_before()
    cdef bint found = change_key_here(self, &encoded_key, flag)
    for queue in self.attached_queues:
        with nogil:
            queue_note_not_queued(queue.gateway)
    if not found:
        raise KeyError(key)
    self.wait_written(False, logged_before + 1)
    return 0


cdef int change_key_here(CompiledRegion self, const encoded *encoded_key, uint8_t flag) except -1:
    """Removes or invalidates the key's entry on this member, as `flag` says. 1: there was an entry; 0: there was
    none."""
    cdef wan_change change
    cdef bint found
    cdef uint64_t began = 0
    cdef uint32_t never = 0
    cdef wan_status status
    memset(&change, 0, sizeof(change))
    set_key(&change, encoded_key)
    change.value_form = WAN_FORM_NONE
    change.hash = wan_key_hash(encoded_key.data, encoded_key.length, encoded_key.form)
    change.operation = WAN_DESTROY if flag == WAN_LOGGED_FORGET else WAN_UPDATE
    with nogil:
        status = region_change_here(&self.region, &change, flag, &found)
    if status == WAN_FULL and self.full_timeout_us:
        began = wan_monotonic_us()
        while status == WAN_FULL and self.may_wait(began):
            PyErr_CheckSignals()
            with nogil:
                wan_wait_change(&never, 0, 5)
                status = region_change_here(&self.region, &change, flag, &found)
    if status != WAN_OK:
        self.fail(status, "local destroy" if flag == WAN_LOGGED_FORGET else "invalidate")
    return found
