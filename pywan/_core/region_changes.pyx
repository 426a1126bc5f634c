# Owns what is read and changed of a region key by key: `RegionCalls`, what users call of it, and `RegionChanges`, what
# its member does besides. `put` and `get` of a face and of a core are the same.
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from cpython.exc cimport PyErr_CheckSignals
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.codec cimport (
    decode, described, encode, encode_by_type, encode_key, encode_key_by_type, encode_plain, encoded)
from pywan._core.enqueue cimport (
    ENQUEUE_ASK, decide_enqueue, enqueue_decision, known_decisions, read_origin, told_decision)
from pywan._core.event_queue cimport EventQueue
from pywan._core.put cimport absent_below, condition_look, origin_local, region_change, region_change_if
from pywan._core.queue cimport queue_note_not_queued
from pywan._core.region_base cimport RegionBase
from pywan._core.region_columns cimport region_put_columns
from pywan._core.region_state cimport (
    IF_ABSENT, IF_EQUAL, IF_THERE, IF_VALUE, MAX_ATTACHED, condition, decision, origin)
from pywan._core.region_walk cimport region_change_here, region_packed, sum_shards
from pywan._core.status cimport raise_for
from pywan._core.tagged cimport show


cdef class Condition:
    """What a change asks for, as RegionCore.change_if says, and what was there."""

    def __cinit__(self, str kind, expected=None):
        cdef encoded v
        memset(&self.wanted, 0, sizeof(condition))
        self.wanted.kind = {"absent": IF_ABSENT, "value": IF_VALUE, "equal": IF_EQUAL, "there": IF_THERE}[kind]
        if self.wanted.kind == IF_EQUAL:
            self.holder = encode(expected, &v)
            # An integer's bytes, say, lie in `v`.
            self.holder = PyBytes_FromStringAndSize(<const char *>v.data, v.length)
            self.wanted.value, self.wanted.length, self.wanted.form = <const uint8_t *>PyBytes_AS_STRING(self.holder), v.length, v.form

    def __dealloc__(self):
        wan_buffer_close(&self.wanted.found)

    cdef object found(self):
        if not self.wanted.found_value or self.wanted.kind == IF_EQUAL:
            return None
        cdef const uint8_t *data = b""
        if self.wanted.found.used:
            data = self.wanted.found.bytes
        # The change is done: the value must not get lost in an error.
        return show(self.wanted.found_form, data, <uint32_t>self.wanted.found.used)


@cython.auto_pickle(False)
cdef class RegionCalls:
    """What users call of a region."""

    @property
    def name(self):
        return self.state.name

    @property
    def is_closed(self):
        """Whether it was destroyed, or its cache closed."""
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
        """Removes `key` everywhere. KeyError if it is not there."""
        cdef RegionBase state = self.state
        state.check_open()
        outcome = "slow"
        if not state.seems_slow:
            outcome = change_one(state, WAN_DESTROY, key, None, callback_argument, None, None, None, WAN_ASK_NOBODY, 0, None, None)
        if outcome == "slow":
            outcome = state.slow_change(WAN_DESTROY, key, None, callback_argument)
        if outcome == "missing":
            raise KeyError(key)

    def local_destroy(self, key):
        """Removes the entry on this member only; nothing is sent. KeyError if it is not there."""
        change_here(self.state, key, WAN_LOGGED_FORGET)

    def invalidate(self, key):
        """Drops the value and keeps the key with its version; not sent to other sites. KeyError if the key is not
        there."""
        change_here(self.state, key, WAN_LOGGED_INVALID)

    def put_columns(self, keys, values, *, operations=None, timestamps=None):
        """Changes row by row from two columns, in one call without the GIL.

        `keys`, `values`: Arrow arrays, fixed-width numpy arrays, (offsets, data) pairs, lists of bytes or str, or
        Column. `operations`: create/update/destroy per row (default update). `timestamps`: milliseconds since 1970 per
        row. Returns the number of rows that took effect (a destroy of a key that is not there has none). BatchError
        lists the rows that were refused; all others were done. """
        return region_put_columns(self.state, keys, values, operations, timestamps)

    def wait_durable(self):
        """Returns when what has been changed and enqueued so far is on the disk, where that is synchronous."""
        self.state.wait_durable()


cdef class RegionChanges(RegionCalls):
    """What a member reads and changes, with everything said."""

    def change(self, int operation, key, value=None, callback_argument=None, decisions=None, version=None,
               origin_=None, int ask=WAN_ASK_NOBODY, int64_t timestamp_ms=0,
               Condition condition_=None, list tell=None):
        """One change with everything said: the slow path of regions with user's Python on the way.

        `decisions`: of the user's callbacks, {attached queue: verdict} of those that were asked: None (enqueue), False
        (filtered) or (form, bytes) to be sent instead of the value; or the decision of another member, in bytes. None:
        the change was not shown to the callbacks. `tell`: then gets what was decided, for other members, where the
        event is for queues. `version`: (stamp, site) of a remote change. `origin_`: (site, recipients, (member, thread,
        sequence), possible duplicate, flags), also of a local one. `condition_`: what has to be there for a local one.
        Returns "created", "updated", "destroyed", "missing", "lost", "unmet" (the condition), "same" (applied before),
        "forgotten" (it may have been destroyed later, and that is not known any more), "ask" (a resolver has to be
        asked first) or "slow" (the callbacks have to be asked first, or those of `unasked`). """
        return change_one(self.state, operation, key, value, callback_argument, decisions, version, origin_, ask,
                          timestamp_ms, condition_, tell)

    def unasked(self, origin_, decisions):
        """The queues that an event from there would enter, and whose filters have to be asked first. `decisions` as of
        `change`."""
        cdef RegionBase state = self.state
        cdef origin from_
        cdef uint8_t flags
        cdef enqueue_decision decided
        cdef decision *known
        cdef wan_shard *shard = &state.region.table.shards[0]
        if not state.asking or not state.region.forwards:
            return []
        read_origin(origin_, &from_, &flags)
        known = known_decisions(decisions, state.attached_queues, state.name, None)
        decided.count = 0
        wan_lock_take(&shard.lock)      # Any entry lock: it keeps the attachment alive.
        if state.region.attached != NULL:
            decide_enqueue(state.region.attached, &from_, state.region.site, known, &decided)
        wan_lock_release(&shard.lock)
        free(known)
        return [state.attached_queues[n] for n in range(decided.count) if decided.verdicts[n] == ENQUEUE_ASK]

    def next_event_id(self):
        """(member, thread, sequence) of an event that this thread makes now: for `change`, as part of its origin."""
        return self.state.region.member, wan_thread_number(), wan_thread_next_event()

    def decide(self, int operation, key, version=None, int ask=WAN_ASK_NOBODY, value=None, Condition condition_=None,
              uint8_t flags=0):
        """What `change` would do, changing nothing."""
        cdef encoded k, v
        cdef wan_change change
        cdef wan_outcome outcome
        self.state.check_open()
        key_holder = encode_key(key, &k)
        memset(&change, 0, sizeof(change))
        change.key, change.key_length, change.key_form = k.data, <uint16_t>k.length, k.form
        change.operation = <uint8_t>operation
        change.hash = wan_key_hash(k.data, k.length, k.form)
        change.ask = <uint8_t>ask
        change.flags = flags
        change.local = version is None
        value_holder = encode(value, &v)
        change.value, change.value_length, change.value_form = v.data, v.length, v.form
        if version is not None:
            change.stamp, change.stamp_site = version
        if not self.state.region.stores:
            return "destroyed" if operation == WAN_DESTROY else "updated"
        cdef wan_shard *shard = wan_table_shard(&self.state.region.table, change.hash)
        cdef wan_status status = WAN_OK
        wan_lock_take(&shard.lock)
        change.absent_below = absent_below(&self.state.region, flags)
        outcome = wan_table_decide(shard, &change)
        if condition_ is not None:
            status = condition_look(&condition_.wanted, wan_table_find(shard, change.hash, change.key, change.key_length, change.key_form))
            if not condition_.wanted.holds:
                outcome = WAN_UNMET
        wan_lock_release(&shard.lock)
        raise_for(status, f"region {self.state.name!r}")
        return outcome_name(outcome)

    def change_if(self, str kind, int operation, key, value=None, expected=None, callback_argument=None):
        """One local change if what is there is as `kind` says, as one step for all who change the key: "absent" (the
        key has no value; it may have been invalidated), "value" (it has one), "equal" (it has the value `expected`, in
        form and bytes), "there" (with a value or without).

        Returns (whether it was, whether there was a value, that value; not of "equal"). """
        cdef Condition wanted = Condition(kind, expected)
        self.state.check_open()
        if not self.state.region.stores:
            from pywan.errors import IllegalStateError
            raise IllegalStateError(f"region {self.state.name!r} is a proxy and holds no entries, so what key"
                                    f" {described(key)} has is not known here; nothing was changed - "
                                    "use put or destroy, or ask a region that holds entries")
        outcome = "slow" if self.state.seems_slow else change_one(self.state, operation, key, value, callback_argument, None, None, None, 0, 0, wanted, None)
        if outcome == "slow":
            outcome = self.state.slow_change(operation, key, value, callback_argument, 0, wanted)
        return outcome in ("created", "updated", "destroyed"), bool(wanted.wanted.found_value), wanted.found()

    def clear(self):
        """Removes every entry of this member's region; a region operation, so nothing is sent. Returns how many."""
        cdef RegionBase state = self.state
        cdef encoded k
        cdef bytes packed
        cdef const uint8_t *run
        cdef uint64_t at, cursor = 0, dropped = 0
        state.check_open()
        while cursor < state.region.table.shard_count:
            packed = region_packed(&state.region.table, &cursor, state.region.table.shard_count, 1, state.name)
            run, at = <const uint8_t *>PyBytes_AS_STRING(packed), 0
            # By the bytes of the key: not every key is the same once decoded and encoded again.
            while at < <uint64_t>len(packed):
                k.length, k.form, k.data = run[at] | run[at + 1] << 8, run[at + 2], run + at + 32
                dropped += change_key_here(state, &k, WAN_LOGGED_FORGET)
                at += 32 + k.length
        state.wait_written(False)
        return dropped

    def lookup(self, key):
        """(value, stamp, site, is_live) of a key, or None; tombstones show with is_live False. The value as
        `show_object` gives it."""
        cdef encoded k
        self.state.check_open()
        key_holder = encode_key(key, &k)
        cdef uint64_t hash = wan_key_hash(k.data, k.length, k.form)
        cdef wan_shard *shard = wan_table_shard(&self.state.region.table, hash)
        cdef wan_entry *entry
        cdef bytes data = None
        cdef uint8_t form = 0, state = 0, site = 0
        cdef uint64_t stamp = 0
        wan_lock_take(&shard.lock)
        try:                    # There may be no memory for the copy.
            entry = wan_table_find(shard, hash, k.data, <uint16_t>k.length, k.form)
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
        """As `get`; a value that is no object in this process is shown as Undecodable."""
        cdef uint8_t form
        cdef bint live
        cdef bytes data = find_bytes(self.state, key, &form, &live)
        if data is None:
            return default
        return show(form, <const uint8_t *>PyBytes_AS_STRING(data), <uint32_t>PyBytes_GET_SIZE(data))


# Of one key, for whoever has the state: plain calls within this unit.

cdef int put_one(RegionBase self, key, value, callback_argument) except -1:
    cdef encoded k, v, a
    cdef wan_change change
    cdef origin from_
    cdef wan_outcome outcome
    cdef wan_status status
    if self.region.closed or self.born != wan_forks:
        self.check_open()
    if self.seems_slow:
        self.slow_change(WAN_UPDATE, key, value, callback_argument)
        return 0
    if not encode_plain(key, &k, <Py_ssize_t>WAN_KEY_BYTES_MAX):
        key_holder = encode_key_by_type(key, &k)
    change.hash = wan_key_hash(k.data, k.length, k.form)
    wan_table_prefetch_slot(&self.region.table, change.hash)
    if not encode_plain(value, &v, <Py_ssize_t>WAN_VALUE_BYTES_MAX):
        value_holder = encode_by_type(value, &v, False)
    origin_local(&from_, &self.region, wan_thread_self())
    if callback_argument is not None:
        argument_holder = encode_callback(callback_argument, &a)
        from_.callback, from_.callback_length, from_.callback_form = a.data, <uint16_t>a.length, a.form
    change.key, change.key_length, change.key_form = k.data, <uint16_t>k.length, k.form
    change.value, change.value_length, change.value_form = v.data, v.length, v.form
    change.operation = WAN_UPDATE
    change.stamp_site = self.region.site
    change.stamp = wan_clock_take(self.region.clock, wan_clock_now_ms(self.region.clock), 1)
    change.flags = 0
    change.local = 1
    change.ask = WAN_ASK_NOBODY
    status = region_change(&self.region, &change, &from_, NULL, &outcome)
    if status == WAN_FULL and self.full_timeout_us:
        status = self.wait_for_room(&change, &from_, NULL, NULL, &outcome)
    if status == WAN_SLOW:
        self.slow_change(WAN_UPDATE, key, value, callback_argument)
        return 0
    if status != WAN_OK:
        self.fail(status, f"put of key {described(key)}")
    if outcome == WAN_OUT_OF_MEMORY:
        raise MemoryError(f"region {self.name!r}: no memory for key {described(key)}; nothing was stored")
    if wan_flag_read(&self.region.durable):
        self.wait_written(change.waits)
    return 0


cdef object get_one(RegionBase self, key, default):
    cdef uint8_t form
    cdef bint live
    cdef bytes data = find_bytes(self, key, &form, &live)
    if data is None:
        return default
    return decode(form, <const uint8_t *>PyBytes_AS_STRING(data), <uint32_t>PyBytes_GET_SIZE(data))


cdef bytes find_bytes(RegionBase self, key, uint8_t *form, bint *live):
    cdef encoded k
    if self.region.closed or self.born != wan_forks:
        self.check_open()
    key_holder = encode_key(key, &k)
    cdef uint64_t hash = wan_key_hash(k.data, k.length, k.form)
    cdef wan_shard *shard = wan_table_shard(&self.region.table, hash)
    cdef wan_entry *entry
    cdef bytes data = None
    live[0] = False
    wan_lock_take(&shard.lock)
    try:                    # There may be no memory for the copy.
        entry = wan_table_find(shard, hash, k.data, <uint16_t>k.length, k.form)
        if entry != NULL and entry.state != WAN_ENTRY_TOMBSTONE:
            live[0] = True
            if entry.state == WAN_ENTRY_LIVE:
                data = PyBytes_FromStringAndSize(<const char *>wan_entry_value(entry), entry.value_length)
                form[0] = entry.value_form
    finally:
        wan_lock_release(&shard.lock)
    return data


cdef str change_one(RegionBase self, int operation, key, value, callback_argument, decisions, version, origin_, int ask,
                    int64_t timestamp_ms, Condition condition_, list tell):
    """As `RegionChanges.change`."""
    cdef encoded k, v, a
    cdef wan_change change
    cdef origin from_
    cdef wan_outcome outcome
    cdef wan_status status
    cdef decision *decided = NULL
    cdef condition *wanted = &condition_.wanted if condition_ is not None else NULL
    cdef uint8_t flags = 0
    self.check_open()
    key_holder = encode_key(key, &k)
    value_holder = encode(value, &v)
    if origin_ is None:
        origin_local(&from_, &self.region, wan_thread_self())
    else:
        read_origin(origin_, &from_, &flags)
    if callback_argument is not None:
        argument_holder = encode_callback(callback_argument, &a)
        from_.callback, from_.callback_length, from_.callback_form = a.data, <uint16_t>a.length, a.form
    change.key, change.key_length, change.key_form = k.data, <uint16_t>k.length, k.form
    change.value, change.value_length, change.value_form = v.data, v.length, v.form
    change.operation = <uint8_t>operation
    change.hash = wan_key_hash(k.data, k.length, k.form)
    change.ask = <uint8_t>ask
    change.flags = flags
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
    try:
        if wanted != NULL:
            status = region_change_if(&self.region, &change, &from_, decided, wanted, &outcome)
        else:
            status = region_change(&self.region, &change, &from_, decided, &outcome)
        if status == WAN_FULL and self.full_timeout_us and version is None:
            status = self.wait_for_room(&change, &from_, decided, wanted, &outcome)
        if tell is not None and decided != NULL and status == WAN_OK:
            tell.append(told_decision(decided, self.attached_queues))
    finally:
        free(decided)
    if status == WAN_SLOW:
        return "slow"
    if status != WAN_OK:
        self.fail(status, f"change of key {described(key)}")
    if outcome == WAN_OUT_OF_MEMORY:
        raise MemoryError(f"region {self.name!r}: no memory for key {described(key)}; nothing was stored")
    if version is None and wan_flag_read(&self.region.durable):
        self.wait_written(change.waits)
    if version is not None:
        if outcome == WAN_LOST:
            wan_add_shared(&self.region.conflicts, 1)
        elif outcome <= WAN_DESTROYED:
            wan_add_shared(&self.region.applied, 1)
    return outcome_name(outcome)


cdef int change_here(RegionBase self, key, uint8_t flag) except -1:
    cdef encoded k
    cdef EventQueue queue
    self.check_open()
    key_holder = encode_key(key, &k)
    cdef bint found = change_key_here(self, &k, flag)
    for queue in self.attached_queues:
        queue_note_not_queued(queue.gateway)
    if not found:
        raise KeyError(key)
    self.wait_written(False)
    return 0


cdef int change_key_here(RegionBase self, const encoded *k, uint8_t flag) except -1:
    """1: there was an entry."""
    cdef wan_change change
    cdef bint found
    cdef uint64_t began = 0
    cdef uint32_t never = 0
    cdef wan_status status
    memset(&change, 0, sizeof(change))
    change.key, change.key_length, change.key_form, change.value_form = k.data, <uint16_t>k.length, k.form, WAN_FORM_NONE
    change.hash = wan_key_hash(k.data, k.length, k.form)
    change.operation = WAN_DESTROY if flag == WAN_LOGGED_FORGET else WAN_UPDATE
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


cdef object outcome_name(wan_outcome outcome):
    return ("created", "updated", "destroyed", "missing", "lost", "ask", "no memory", "unmet", "same", "forgotten")[<int>outcome]


cdef object encode_callback(argument, encoded *out):
    holder = encode(argument, out)
    if out.length > WAN_CALLBACK_BYTES_MAX:
        from pywan.errors import EventTooLargeError
        raise EventTooLargeError(f"a callback argument of {out.length} bytes is over the limit of"
                                 f" {WAN_CALLBACK_BYTES_MAX} bytes; nothing was stored")
    return holder
