# Owns `RegionCore`: what Python sees of a region's compiled half.
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from cpython.exc cimport PyErr_CheckSignals
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_log cimport *
from pywan._core.c_region cimport *
from pywan._core.clock cimport Bell, Clock
from pywan._core.codec cimport decode, described, encode, encode_key, encoded
from pywan._core.column_views cimport column_row
from pywan._core.columns cimport Column
from pywan._core.committer cimport (
    SYNCHRONOUS_NOT, SYNCHRONOUS_SYNCED, WORK_NOW, committer_begin_wait, committer_failing_since,
    committer_has_written, committer_once, committer_opened, committer_run, committer_share, committer_staged_now,
    committer_state, committer_stop, committer_wait, disk_wait)
from pywan._core.disk_log cimport LogBudget, damage_list
from pywan._core.event_queue cimport EventQueue
from pywan._core.names cimport region_number
from pywan._core.put cimport absent_below, condition_look, origin_local, region_change, region_change_if
from pywan._core.put_rows cimport bulk_result, failure_text, key_fault, region_put_rows
from pywan._core.queue cimport SLOW_DISK_US, log_state, queue_note_not_queued
from pywan._core.region_committer cimport region_committer_init
from pywan._core.region_recovery cimport region_log_close, region_log_note_damaged, region_log_recover
from pywan._core.region_state cimport (
    IF_ABSENT, IF_EQUAL, IF_THERE, IF_VALUE, MAX_ATTACHED, WAY_CALLBACKS, WAY_STRAIGHT, attachment, condition,
    decision, origin, region_log, tombstone_counts)
from pywan._core.region_walk cimport (
    attachment_publish, pass_entry_locks, region_change_here, region_copy, region_newest_to_expire,
    region_raise_mark, region_sample_stamps, region_scan, region_tombstones, sum_shards)
from pywan._core.status cimport detail_text, environment_of, error_of_child, full_error, log_fails, raise_for
from pywan._core.tagged cimport Encoded, show
from pywan._core.operations import operation_codes


cdef class Condition:
    """What a change asks for, as RegionCore.change_if says, and what was there."""

    def __cinit__(self, str kind, expected=None):
        cdef encoded v
        memset(&self.c, 0, sizeof(condition))
        self.c.kind = {"absent": IF_ABSENT, "value": IF_VALUE, "equal": IF_EQUAL, "there": IF_THERE}[kind]
        if self.c.kind == IF_EQUAL:
            self.holder = encode(expected, &v)
            # An integer's bytes, say, lie in `v`.
            self.holder = PyBytes_FromStringAndSize(<const char *>v.data, v.length)
            self.c.value, self.c.length, self.c.form = <const uint8_t *>PyBytes_AS_STRING(self.holder), v.length, v.form

    def __dealloc__(self):
        wan_buffer_close(&self.c.found)

    cdef object found(self):
        if not self.c.found_value or self.c.kind == IF_EQUAL:
            return None
        cdef const uint8_t *data = b""
        if self.c.found.used:
            data = self.c.found.bytes
        return show(self.c.found_form, data, <uint32_t>self.c.found.used)      # The change is done: the value must not get lost in an error.


cdef class OneWait:
    """What this thread changes in the region while it is entered is waited for at the end, once: also when the call ends with an error, which
    then says of what was stored that it may not be on the disk."""

    def __cinit__(self, RegionCore region not None):
        self.region = region

    def __enter__(self):
        global wan_bulk_region, wan_bulk_waits
        self.outer, self.outer_waits = wan_bulk_region, wan_bulk_waits
        wan_bulk_region, wan_bulk_waits = &self.region.r, 0
        return self

    def __exit__(self, kind, error, trace):
        global wan_bulk_region, wan_bulk_waits
        cdef int waits = wan_bulk_waits
        wan_bulk_region, wan_bulk_waits = self.outer, self.outer_waits
        from pywan.errors import DiskError, PywanError
        if not waits or error is not None and not isinstance(error, Exception):     # Ctrl-C does not wait.
            return False
        try:
            self.region.wait_written(waits & WAN_BULK_QUEUED != 0)
        except DiskError as late:
            if error is None:
                raise
            if isinstance(error, PywanError):
                error.args = (f"{error}; of what was stored: {late}", *error.args[1:])
            else:
                error.add_note(f"of what was stored: {late}")
        return False


cdef object outcome_name(wan_outcome outcome):
    return ("created", "updated", "destroyed", "missing", "lost", "ask", "no memory", "unmet", "same", "forgotten")[<int>outcome]


cdef decision *make_decisions(decisions, str region, key) except NULL:
    """MAX_ATTACHED of them, to be freed; they refer to the bytes in `decisions`."""
    cdef decision *decided = <decision *>calloc(MAX_ATTACHED, sizeof(decision)) if len(decisions) <= MAX_ATTACHED else NULL
    if decided == NULL:
        raise MemoryError(f"region {region!r}: no memory for {len(decisions)} decisions about key {described(key)}; nothing was stored")
    for n, item in enumerate(decisions):
        if item is False:
            decided[n].filtered = 1
        elif item is not None:
            decided[n].substituted = 1
            decided[n].value_form = item[0]
            decided[n].value = <const uint8_t *>PyBytes_AS_STRING(item[1])
            decided[n].value_length = <uint32_t>PyBytes_GET_SIZE(item[1])
    return decided


cdef class RegionCore:
    """The compiled half of a region: table, versions, and the way into the attached senders' queues."""

    def __cinit__(self, str name, Clock clock not None, *args, int site=0, uint32_t member=0, bint stores=True, bint forwards=True,
                  uint32_t buckets=0, **kwargs):
        self.name = name
        self.born = wan_forks
        self.clock = clock
        self.r.clock = &clock.clock
        self.r.site = <uint8_t>site
        self.r.member = member
        self.r.stores = stores
        self.r.forwards = forwards
        self.r.buckets = buckets
        self.r.number = <uint16_t>region_number(name)
        wan_region_names[self.r.number].buckets = buckets
        self.attached_queues = ()
        raise_for(wan_table_init(&self.r.table, buckets or WAN_BUCKETS_DEFAULT), f"region {name!r}")

    def __dealloc__(self):
        wan_table_close(&self.r.table)
        free(self.r.attached)
        if self.r.log != NULL:
            region_log_close(self.r.log)

    # Attachment

    def attach(self, queues, slow=...):
        """Replaces the attached senders by these EventQueues, and recomputes whom new events will reach: the remote
        sites of those that run. Call it again when a sender starts or stops. `slow`: as `set_slow`, as one step with the queues; one caller
        at a time. When it returns, no change goes by what was before."""
        queues = sorted(queues, key=lambda q: (<EventQueue?>q).g.place)
        if len(queues) > MAX_ATTACHED:
            from pywan.errors import ConfigurationError
            raise ConfigurationError(f"region {self.name!r}: {len(queues)} senders, at most {MAX_ATTACHED} can be attached")
        cdef attachment *fresh = <attachment *>calloc(1, sizeof(attachment))
        cdef EventQueue queue
        cdef bint is_slow = self.seems_slow if slow is ... else slow is not None
        if fresh == NULL:
            raise MemoryError(f"region {self.name!r}: no memory to attach senders; nothing was changed")
        fresh.way = WAY_CALLBACKS if is_slow else WAY_STRAIGHT
        if slow is not ... and slow is not None:
            self.slow_change = slow
        for queue in queues:
            fresh.queues[fresh.count] = queue.g
            fresh.count += 1
            if wan_flag_read(&queue.g.running) and queue.reachable:
                for n in range(fresh.recipient_count):
                    if fresh.recipients[n] == queue.g.remote_site:
                        break
                else:
                    fresh.recipients[fresh.recipient_count] = queue.g.remote_site
                    fresh.recipient_count += 1
        old_queues = self.attached_queues
        self.choose_durable(queues)
        self.full_timeout_us = SLOW_DISK_US if self.r.log != NULL else 0
        for queue in queues:
            self.full_timeout_us = max(self.full_timeout_us, queue.g.full_timeout_us)
            if queue.g.durable != NULL:
                # From before a restart, when the clock was ahead of what it is now: later changes would lose against what is queued.
                wan_clock_see(self.r.clock, wan_read(&queue.g.counts.newest_stamp))
                queue.clock, queue.g.clock = self.clock, self.r.clock
        with nogil:
            attachment_publish(&self.r, fresh)
        self.attached_queues, self.seems_slow = tuple(queues), is_slow
        del old_queues

    @property
    def queues(self):
        """The attached queues, in the order in which `change` takes its decisions."""
        return self.attached_queues

    def set_slow(self, change):
        """`change(operation, key, value, callback_argument)`: how changes go while user's Python is on the way; None: not at all."""
        self.attach(self.attached_queues, change)

    @property
    def is_slow(self):
        return self.seems_slow

    def close(self):
        """Every operation is refused from now on; the receiver answers that the region is not there. That goes for the rest of bulk calls too,
        when it returns."""
        cdef attachment *fresh = <attachment *>calloc(1, sizeof(attachment))
        if fresh == NULL:
            raise MemoryError(f"region {self.name!r}: no memory to close it; nothing was changed")
        wan_flag_set(&self.r.closed, 1)
        with nogil:
            attachment_publish(&self.r, fresh)

    @property
    def is_closed(self):
        return bool(wan_flag_read(&self.r.closed))

    @property
    def is_inherited(self):
        """Whether another process made it, from which this one was forked."""
        return self.born != wan_forks

    cdef int check_process(self) except -1:
        if self.born != wan_forks:
            raise error_of_child(f"region {self.name!r}")
        return 0

    cdef int check_open(self) except -1:
        self.check_process()
        if self.r.closed:
            from pywan.errors import RegionNotFoundError
            raise RegionNotFoundError(f"region {self.name!r} was destroyed, or its cache closed; nothing was changed")
        return 0

    cdef int fail(self, wan_status status, str what) except -1:
        if status == WAN_CLOSED:
            self.check_open()
        if status == WAN_FULL:
            remedy = "that is put right (a full disk or queue: free disk space, or raise maximum-queue-memory)"
            if log_fails():
                remedy = "the disk takes writes again" if wan_detail_status == WAN_IO else "the process has memory for it"
            raise full_error(f"region {self.name!r}: {what} refused: {detail_text()}; nothing was stored or sent - repeat it when {remedy}")
        return raise_for(status, f"region {self.name!r}: {what}")

    cdef wan_status wait_for_room(self, wan_change *c, const origin *from_, const decision *decided, condition *wanted, wan_outcome *outcome) except *:
        """Tries again while a full queue may get room: its disk freed, or its receiver reached."""
        cdef uint64_t began = wan_monotonic_us()
        cdef uint32_t never = 0
        cdef wan_status status = WAN_FULL
        while status == WAN_FULL and self.may_wait(began):
            PyErr_CheckSignals()        # Ctrl-C ends the wait: nothing was changed.
            with nogil:
                wan_wait_change(&never, 0, 5)
                if c.local and c.stamp > wan_clock_last(self.r.clock):      # The clock has been set back meanwhile.
                    c.stamp = wan_clock_take(self.r.clock, wan_clock_now_ms(self.r.clock), 1)
                if wanted != NULL:
                    status = region_change_if(&self.r, c, from_, decided, wanted, outcome)
                else:
                    status = region_change(&self.r, c, from_, decided, outcome)
        return status

    cdef bint may_wait(self, uint64_t began_us) except *:
        """Whether what found no room at `began_us` may still wait for it: as long as the most patient queue lets it, if
        none gives up, and the region's own log does not. Room may come as other logs of its store are shortened; with a
        disk that fails for another reason it is no more patient than the queues, and without queues not at all."""
        cdef EventQueue queue
        cdef uint64_t now = wan_monotonic_us(), waited = now - began_us, patience = 0, since = 0
        if waited >= self.full_timeout_us:
            return False
        for queue in self.attached_queues:
            if queue.gives_up(waited):
                return False
            patience = max(patience, queue.g.block_timeout_us)
        if self.r.log != NULL and waited >= patience:
            since = committer_failing_since(&self.r.log.committer, WAN_FULL)
        return since == 0 or now < since + patience

    def wait_durable(self):
        """Returns when what has been changed and enqueued so far is on the disk, where that is synchronous."""
        self.check_open()
        self.wait_written()

    cpdef wait_written(self, bint is_queued=True):
        """The same for whoever has changed something: also where the region was closed since. `is_queued`: whether a
        queue took anything of it; one that drops what is new may have a disk that is full."""
        global wan_bulk_waits
        cdef EventQueue queue
        self.check_process()
        if wan_bulk_region == &self.r:      # The bulk call waits at its end.
            wan_bulk_waits |= WAN_BULK_CHANGED | (WAN_BULK_QUEUED if is_queued else 0)
            return
        for queue in self.attached_queues if is_queued else ():
            if queue.g.durable != NULL and queue.g.durable.committer.synchronous:
                queue.wait_durable()
            if queue.g.queue.copied:
                queue.wait_replicated()
        if self.r.log != NULL and self.r.log.committer.synchronous:
            self.wait_log()

    cdef int choose_durable(self, queues) except -1:
        wan_flag_set(&self.r.durable, any(queue.synchronous or queue.copied for queue in queues) or (self.r.log != NULL and self.r.log.committer.synchronous))
        return 0

    # Persistence

    def open_log(self, directory, *, uint64_t log_id, bint synchronous=True, uint32_t flush_ms=10, LogBudget log_budget=None, uint64_t log_known=0,
                 bint salvage=False, environment=None):
        """Makes the region persistent: recovers what the log in `directory` holds, and logs every change from now on.
        `commit_loop` has to run in a thread of its own. `environment` stands in for the operating system's files. Before the region is
        used. Returns what was found."""
        cdef const wan_env *env = environment_of(environment)
        cdef region_log *log = <region_log *>calloc(1, sizeof(region_log))
        cdef wan_log_reader reader
        cdef wan_damage damage
        cdef wan_status status
        cdef bytes path = str(directory).encode("utf-8", "surrogateescape")
        cdef const char *path_ = path
        if log == NULL:
            raise MemoryError()
        log.region = &self.r
        log.of_moved.key_of = log.of_newest.key_of = wan_logged_item_key
        log.around_durable = NEVER
        region_committer_init(log, SYNCHRONOUS_SYNCED if synchronous else SYNCHRONOUS_NOT, flush_ms)
        memset(&reader, 0, sizeof(reader))
        reader.owner = log
        reader.part, reader.damaged = region_log_recover, region_log_note_damaged
        reader.salvage, reader.read_ahead = salvage, env == &wan_env_posix
        with nogil:
            status = wan_log_open(&log.committer.log, env, path_, WAN_LOG_REGION, log_id, 0, &reader, &damage, &log.cut_bytes)
            wan_clock_see(self.r.clock, log.highest if status == WAN_OK else 0)
        try:
            committer_opened(&log.committer, status, f"region {self.name!r}")
        except BaseException:
            region_log_close(log)
            raise
        committer_share(&log.committer, log_budget, log_known, False)
        self.r.log, self.environment, self.budget = log, environment, log_budget
        self.let_go = self.r.let_go
        self.full_timeout_us = SLOW_DISK_US
        self.choose_durable(self.attached_queues)
        return {"records": log.recovered, "cut_bytes": log.cut_bytes, "entries": len(self), "damages": damage_list(&log.damages)}

    @property
    def persistent(self):
        return self.r.log != NULL

    def commit_loop(self):
        """Writes what is staged until `stop_log`. The GIL is free meanwhile."""
        if self.r.log != NULL:
            with nogil:
                committer_run(&self.r.log.committer)
            if self.releases_entries:
                self.free_entries()

    def commit_once(self):
        """One round of the committer, in the caller's thread, for where no `commit_loop` runs. False: the disk did not take what is
        staged, and `log_state` says why."""
        cdef wan_status status = WAN_OK
        if self.r.log != NULL:
            with nogil:
                status = committer_once(&self.r.log.committer, WORK_NOW)
        return status == WAN_OK

    def stop_log(self):
        """Makes `commit_loop` return once everything is on the disk (or cannot get there)."""
        if self.r.log != NULL:
            committer_stop(&self.r.log.committer)

    def log_state(self):
        """Sizes of the log, and why writing fails now (None: it does not)."""
        self.check_process()
        return committer_state(&self.r.log.committer) if self.r.log != NULL else {}

    cdef int wait_log(self) except -1:
        cdef disk_wait wait = committer_begin_wait(&self.r.log.committer, 60000000)
        return committer_wait(&self.r.log.committer, &wait, f"region {self.name!r}", "the change is in memory and will be written when the disk takes it")

    # Single changes

    def put(self, key, value, callback_argument=None):
        """Stores `value` under `key` and hands the event to the attached senders. Raises QueueFullError,
        EventTooLargeError or SerializationError; then nothing was stored and nothing will be sent."""
        put_one(self, key, value, callback_argument)

    def destroy(self, key, callback_argument=None):
        """Removes `key` everywhere. KeyError if it is not there."""
        self.check_open()
        outcome = "slow" if self.seems_slow else self.change(WAN_DESTROY, key, None, callback_argument)
        if outcome == "slow":
            outcome = self.slow_change(WAN_DESTROY, key, None, callback_argument)
        if outcome == "missing":
            raise KeyError(key)

    def change(self, int operation, key, value=None, callback_argument=None, decisions=None, version=None, origin_=None, int ask=0, int64_t timestamp_ms=0,
               Condition condition_=None):
        """One change with everything said: the slow path of regions with user's Python on the way.

        `decisions`: of the user's callbacks, one per attached queue, None (enqueue), False (filtered) or (form, bytes) to be sent instead of
        the value; () where all are to be enqueued. None: the change was not shown to the callbacks. `version`: (stamp, site) of a remote
        change. `origin_`: (site, recipients, (member, thread, sequence), possible duplicate, flags), also of a local one.
        `condition_`: what has to be there for a local one.
        Returns "created", "updated", "destroyed", "missing", "lost", "unmet" (the condition), "same" (applied before), "forgotten" (it may have been destroyed later, and that is not known any more), "ask" (a resolver has
        to be asked first) or "slow" (the callbacks have to be asked first).
        """
        cdef encoded k, v, a
        cdef wan_change c
        cdef origin from_
        cdef wan_outcome outcome
        cdef wan_status status
        cdef decision *decided = NULL
        cdef condition *wanted = &condition_.c if condition_ is not None else NULL
        cdef const uint8_t[::1] recipients
        cdef uint8_t flags = 0
        self.check_open()
        key_holder = encode_key(key, &k)
        value_holder = encode(value, &v)
        if origin_ is None:
            origin_local(&from_, &self.r, wan_thread_self())
        else:
            memset(&from_, 0, sizeof(from_))
            from_.callback_form = WAN_FORM_NONE
            from_.site = origin_[0]
            recipients = origin_[1]
            from_.recipient_count = <uint8_t>len(origin_[1])
            from_.recipients = &recipients[0] if from_.recipient_count else NULL
            from_.event_member, from_.event_thread, from_.event_sequence = origin_[2]
            from_.possible_duplicate = len(origin_) > 3 and bool(origin_[3])
            flags = origin_[4] if len(origin_) > 4 else 0
        if callback_argument is not None:
            argument_holder = encode_callback(callback_argument, &a)
            from_.callback, from_.callback_length, from_.callback_form = a.data, <uint16_t>a.length, a.form
        c.key, c.key_length, c.key_form = k.data, <uint16_t>k.length, k.form
        c.value, c.value_length, c.value_form = v.data, v.length, v.form
        c.operation = <uint8_t>operation
        c.hash = wan_key_hash(k.data, k.length, k.form)
        c.ask = <uint8_t>ask
        c.flags = flags
        if version is None:
            c.local = 1
            c.stamp_site = self.r.site
            c.stamp = wan_clock_take(self.r.clock, wan_clock_now_ms(self.r.clock), 1)
            if timestamp_ms > 0 and (<uint64_t>timestamp_ms) << 16 < c.stamp:
                c.stamp, c.flags = (<uint64_t>timestamp_ms) << 16, WAN_FLAG_GIVEN
        else:
            c.local = 0
            c.stamp, c.stamp_site = version
            wan_clock_see(self.r.clock, c.stamp)
        if decisions is not None:
            decided = make_decisions(decisions, self.name, key)
        try:
            if wanted != NULL:
                status = region_change_if(&self.r, &c, &from_, decided, wanted, &outcome)
            else:
                status = region_change(&self.r, &c, &from_, decided, &outcome)
            if status == WAN_FULL and self.full_timeout_us and version is None:
                status = self.wait_for_room(&c, &from_, decided, wanted, &outcome)
        finally:
            free(decided)
        if status == WAN_SLOW:
            return "slow"
        if status != WAN_OK:
            self.fail(status, f"change of key {described(key)}")
        if outcome == WAN_OUT_OF_MEMORY:
            raise MemoryError(f"region {self.name!r}: no memory for key {described(key)}; nothing was stored")
        if version is None and wan_flag_read(&self.r.durable):
            self.wait_written(c.waits)
        if version is not None:
            if outcome == WAN_LOST:
                wan_count(&self.r.conflicts, 1)
            elif outcome <= WAN_DESTROYED:
                wan_count(&self.r.applied, 1)
        return outcome_name(outcome)

    def next_event_id(self):
        """(member, thread, sequence) of an event that this thread makes now: for `change`, as part of its origin."""
        return self.r.member, wan_thread_number(), wan_thread_next_event()

    def judge(self, int operation, key, version=None, int ask=0, value=None, Condition condition_=None, uint8_t flags=0):
        """What `change` would do, changing nothing."""
        cdef encoded k, v
        cdef wan_change c
        cdef wan_outcome outcome
        self.check_open()
        key_holder = encode_key(key, &k)
        memset(&c, 0, sizeof(c))
        c.key, c.key_length, c.key_form = k.data, <uint16_t>k.length, k.form
        c.operation = <uint8_t>operation
        c.hash = wan_key_hash(k.data, k.length, k.form)
        c.ask = <uint8_t>ask
        c.flags = flags
        c.local = version is None
        value_holder = encode(value, &v)
        c.value, c.value_length, c.value_form = v.data, v.length, v.form
        if version is not None:
            c.stamp, c.stamp_site = version
        if not self.r.stores:
            return "destroyed" if operation == WAN_DESTROY else "updated"
        cdef wan_shard *shard = wan_table_shard(&self.r.table, c.hash)
        cdef wan_status status = WAN_OK
        wan_lock_take(&shard.lock)
        c.absent_below = absent_below(&self.r, flags)
        outcome = wan_table_judge(shard, &c)
        if condition_ is not None:
            status = condition_look(&condition_.c, wan_table_find(shard, c.hash, c.key, c.key_length, c.key_form))
            if not condition_.c.holds:
                outcome = WAN_UNMET
        wan_lock_release(&shard.lock)
        raise_for(status, f"region {self.name!r}")
        return outcome_name(outcome)

    def change_if(self, str kind, int operation, key, value=None, expected=None, callback_argument=None):
        """One local change if what is there is as `kind` says, as one step for all who change the key: "absent" (the key has no value; it may have
        been invalidated), "value" (it has one), "equal" (it has the value `expected`, in form and bytes), "there" (with a value or without).

        Returns (whether it was, whether there was a value, that value; not of "equal").
        """
        cdef Condition wanted = Condition(kind, expected)
        self.check_open()
        if not self.r.stores:
            from pywan.errors import IllegalStateError
            raise IllegalStateError(f"region {self.name!r} is a proxy and holds no entries, so what key {described(key)} has is not known here; nothing was changed - "
                                    "use put or destroy, or ask a region that holds entries")
        outcome = "slow" if self.seems_slow else self.change(operation, key, value, callback_argument, condition_=wanted)
        if outcome == "slow":
            outcome = self.slow_change(operation, key, value, callback_argument, 0, wanted)
        return outcome in ("created", "updated", "destroyed"), bool(wanted.c.found_value), wanted.found()

    # Reading and local changes

    def lookup(self, key):
        """(value, stamp, site, is_live) of a key, or None; tombstones show with is_live False. The value as `show_object` gives it."""
        cdef encoded k
        self.check_open()
        key_holder = encode_key(key, &k)
        cdef uint64_t hash = wan_key_hash(k.data, k.length, k.form)
        cdef wan_shard *shard = wan_table_shard(&self.r.table, hash)
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

    cdef bytes find_bytes(self, key, uint8_t *form, bint *live):
        cdef encoded k
        if self.r.closed or self.born != wan_forks:
            self.check_open()
        key_holder = encode_key(key, &k)
        cdef uint64_t hash = wan_key_hash(k.data, k.length, k.form)
        cdef wan_shard *shard = wan_table_shard(&self.r.table, hash)
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

    def get(self, key, default=None):
        """The value under `key`, or `default`. SerializationError for a value that is no object in this process."""
        return get_one(self, key, default)

    def show(self, key, default=None):
        """As `get`; a value that is no object in this process is shown as Undecodable."""
        cdef uint8_t form
        cdef bint live
        cdef bytes data = self.find_bytes(key, &form, &live)
        if data is None:
            return default
        return show(form, <const uint8_t *>PyBytes_AS_STRING(data), <uint32_t>PyBytes_GET_SIZE(data))

    def __contains__(self, key):
        cdef uint8_t form
        cdef bint live
        self.find_bytes(key, &form, &live)
        return live

    def __len__(self):
        cdef uint64_t used, tombstones
        self.check_open()
        with nogil:
            sum_shards(&self.r.table, &used, &tombstones, NULL)
        return used - tombstones

    def local_destroy(self, key):
        """Removes the entry on this member only; nothing is sent. KeyError if it is not there."""
        self.change_here(key, WAN_LOGGED_FORGET)

    def invalidate(self, key):
        """Drops the value and keeps the key with its version; not sent to other sites. KeyError if the key is not there."""
        self.change_here(key, WAN_LOGGED_INVALID)

    cdef int change_here(self, key, uint8_t flag) except -1:
        cdef encoded k
        cdef EventQueue queue
        self.check_open()
        key_holder = encode_key(key, &k)
        cdef bint found = self.change_key_here(&k, flag)
        for queue in self.attached_queues:
            queue_note_not_queued(queue.g)
        if not found:
            raise KeyError(key)
        self.wait_written(False)
        return 0

    def clear(self):
        """Removes every entry of this member's region; a region operation, so nothing is sent. Returns how many."""
        cdef encoded k
        cdef const uint8_t[::1] run
        cdef uint64_t at
        self.check_open()
        dropped, following = 0, 0
        while following is not None:
            following, packed = self.scan(following, 1)
            run, at = packed, 0
            while at < <uint64_t>len(packed):       # By the bytes of the key: not every key is the same once decoded and encoded again.
                k.length, k.form, k.data = run[at] | run[at + 1] << 8, run[at + 2], NULL
                k.data = (<const uint8_t *>PyBytes_AS_STRING(packed)) + at + 32
                dropped += self.change_key_here(&k, WAN_LOGGED_FORGET)
                at += 32 + k.length
        self.wait_written(False)
        return dropped

    cdef int change_key_here(self, const encoded *k, uint8_t flag) except -1:
        """1: there was an entry."""
        cdef wan_change c
        cdef bint found
        cdef uint64_t began = 0
        cdef uint32_t never = 0
        cdef wan_status status
        memset(&c, 0, sizeof(c))
        c.key, c.key_length, c.key_form, c.value_form = k.data, <uint16_t>k.length, k.form, WAN_FORM_NONE
        c.hash = wan_key_hash(k.data, k.length, k.form)
        c.operation = WAN_DESTROY if flag == WAN_LOGGED_FORGET else WAN_UPDATE
        status = region_change_here(&self.r, &c, flag, &found)
        if status == WAN_FULL and self.full_timeout_us:
            began = wan_monotonic_us()
            while status == WAN_FULL and self.may_wait(began):
                PyErr_CheckSignals()
                with nogil:
                    wan_wait_change(&never, 0, 5)
                    status = region_change_here(&self.r, &c, flag, &found)
        if status != WAN_OK:
            self.fail(status, "local destroy" if flag == WAN_LOGGED_FORGET else "invalidate")
        return found

    def release_entries(self):
        """Gives the memory of a closed region's entries back: whoever knows the region may do so for long. If the region has a log, that happens when
        `commit_loop` ends: until then the committer asks the table what in the log is current."""
        if not self.r.closed:
            from pywan.errors import InternalError
            raise InternalError(f"region {self.name!r} is not closed; nothing was changed")
        self.releases_entries = True        # Either this call or the end of `commit_loop` sees what the other one did.
        if self.r.log == NULL or wan_flag_read(&self.r.log.committer.ended):
            self.free_entries()

    cdef int free_entries(self) except -1:
        cdef wan_shard *shard
        cdef wan_shard_content content
        with nogil:
            for n in range(self.r.table.shard_count):
                shard = &self.r.table.shards[n]
                wan_lock_take(&shard.lock)
                content = wan_table_take_all(shard)
                wan_lock_release(&shard.lock)
                wan_table_free(content)
            wan_table_rest(&self.r.table)
        return 0

    def expire_tombstones(self, uint64_t before_ms, uint64_t below=0xffffffffffffffff):
        """Drops tombstones with stamps below `below`; those with their key only if they were made before `before_ms`. Returns (dropped, left).
        Nothing is known of them afterwards: `keep_tombstones` says first that they may be gone."""
        cdef uint64_t dropped = 0, left = 0
        cdef wan_shard *shard
        with nogil:
            for n in range(self.r.table.shard_count):
                shard = &self.r.table.shards[n]
                wan_lock_take(&shard.lock)
                if shard.tombstones or shard.shrunk != NULL:
                    dropped += wan_table_expire(shard, before_ms, below)
                    left += shard.tombstones + wan_shard_shrunk_count(shard)
                wan_lock_release(&shard.lock)
        return dropped, left

    def watch_tombstones(self, uint64_t limit, Bell bell):
        """From now on the bell rings when tombstones take more than `limit` bytes; if they do already, a sixteenth of that later. Returns whether they do."""
        cdef tombstone_counts found
        with nogil:
            region_tombstones(&self.r.table, &found)
        wan_set(<uint64_t *>&self.r.tombstone_room, limit - found.bytes if found.bytes <= limit else limit // 16)
        if bell is not self.bell:
            self.bell = bell
            self.r.bell = &bell.word
        return found.bytes > limit

    def keep_tombstones(self, uint64_t below, uint64_t before_ms, uint64_t limit):
        """Drops the tombstones that nobody needs any more: no event with a stamp below `below` can come. Where the others take more than `limit` bytes
        they shrink to hash and stamp; where these do too, the older half of them is forgotten, and up to which stamp is remembered. True: that is to be called again soon, since
        these go when the disk knows."""
        cdef tombstone_counts found
        cdef wan_status status = WAN_OK
        self.drop_needless(below, before_ms)
        if below > wan_read(&self.r.mark):
            wan_set(&self.r.mark, 0)        # Nothing older can come from who is waited for. What is let go speaks of all others.
        with nogil:
            region_tombstones(&self.r.table, &found)
            if found.bytes > limit and found.whole:
                for n in range(self.r.table.shard_count):
                    wan_lock_take(&self.r.table.shards[n].lock)
                    if status == WAN_OK:
                        status = wan_table_shrink(&self.r.table.shards[n])
                    wan_lock_release(&self.r.table.shards[n].lock)
                region_tombstones(&self.r.table, &found)
        raise_for(status, f"region {self.name!r}: tombstones")
        if found.bytes > limit and not self.forgetting:
            self.begin_forgetting(found.bytes, limit)
        if self.forgetting and self.is_on_disk(self.forgetting_staged):
            self.expire_tombstones(0, self.forgetting + 1)
            self.let_go, self.forgetting = max(self.let_go, self.forgetting), 0
        if self.bell is not None:
            self.watch_tombstones(limit, self.bell)
        return self.forgetting != 0

    cdef int drop_needless(self, uint64_t below, uint64_t before_ms) except -1:
        """When the disk knows up to which stamp destroys may not be remembered any more."""
        cdef uint64_t newest
        if self.letting_go and self.is_on_disk(self.letting_go_staged):
            self.let_go, self.letting_go = max(self.let_go, self.letting_go), 0
        with nogil:
            newest = region_newest_to_expire(&self.r.table, before_ms, below)
        if newest == 0:
            return 0
        if newest > self.r.let_go and not self.letting_go and region_raise_mark(&self.r, newest, WAN_LOGGED_LET_GO) == WAN_OK:
            if self.r.log == NULL:
                self.let_go = newest
            else:
                self.letting_go, self.letting_go_staged = newest, self.staged_now()
        if self.let_go:
            self.expire_tombstones(before_ms, min(below, self.let_go + 1))
        return 0

    cdef int begin_forgetting(self, uint64_t held, uint64_t limit) except -1:
        """Chooses up to which stamp, and says so before any of them goes."""
        cdef wan_buffer stamps
        cdef wan_status status
        cdef uint64_t mark
        memset(&stamps, 0, sizeof(stamps))
        with nogil:
            status = region_sample_stamps(&self.r.table, &stamps)
        ordered = sorted([(<uint64_t *>stamps.bytes)[n] for n in range(stamps.count)])
        wan_buffer_close(&stamps)
        if status != WAN_OK or not ordered:
            raise_for(status, f"region {self.name!r}: tombstones")
            return 0
        mark = ordered[min(len(ordered) - 1, len(ordered) - int(len(ordered) * (limit / 2) / held))]
        mark = max(mark, wan_read(&self.r.mark))
        if region_raise_mark(&self.r, mark, 0) != WAN_OK:
            return 0                        # The log has no room now. The next look tries again.
        self.forgetting, self.forgetting_staged = mark, self.staged_now()
        return 0

    cdef uint64_t staged_now(self):
        """What is staged now is on the disk once so many records are."""
        return committer_staged_now(&self.r.log.committer) if self.r.log != NULL else 0

    cdef bint is_on_disk(self, uint64_t staged):
        return self.r.log == NULL or committer_has_written(&self.r.log.committer, staged)

    def settle_stamps(self):
        """When this returns, every change made here with a stamp below the clock's `raise_low` is in the queues."""
        with nogil:
            pass_entry_locks(&self.r.table)

    @property
    def tombstone_state(self):
        """What is kept of destroyed keys: tombstones whole and shrunk, their bytes, up to which stamp others have been forgotten (0: none), and
        up to which some may not be remembered, forgotten or needless."""
        cdef tombstone_counts found
        with nogil:
            region_tombstones(&self.r.table, &found)
        return {"tombstones": found.whole, "shrunk_tombstones": found.shrunk, "tombstone_bytes": found.bytes, "forgotten_through": wan_read(&self.r.mark),
                "let_go_through": wan_read(&self.r.let_go)}

    def copy_into(self, RegionCore to not None, uint64_t cursor=0):
        """Gives every entry from `cursor` on, tombstones and invalidated ones too, with its version to another region. Returns where to go on
        when that one's disk took what it has; None: all are there."""
        cdef wan_status status
        with nogil:
            status = region_copy(&self.r, &to.r, &cursor)
        if status != WAN_OK and status != WAN_FULL:
            self.fail(status, f"copy into region {to.name!r}")
        return cursor if status == WAN_FULL else None

    @property
    def tombstones(self):
        cdef uint64_t used, tombstones
        self.check_process()
        with nogil:
            sum_shards(&self.r.table, &used, &tombstones, NULL)
        return tombstones

    @property
    def memory_bytes(self):
        """Bytes allocated for entries and slots."""
        self.check_process()
        cdef uint64_t used, tombstones, total
        with nogil:
            sum_shards(&self.r.table, &used, &tombstones, &total)
        return total

    @property
    def conflicts(self):
        """Remote changes that lost against a later version."""
        self.check_process()
        return wan_read(&self.r.conflicts)

    @property
    def applied(self):
        """Remote changes that took effect."""
        self.check_process()
        return wan_read(&self.r.applied)

    def scan_keys(self):
        """Every live key, shard by shard; what changes meanwhile may or may not be seen. A key that is no object in this process is shown as
        Undecodable, and found by that."""
        cdef uint64_t cursor = 0
        following = 0
        while following is not None:
            following, run = self.scan(following, 1)
            at = 0
            while at < len(run):
                length = run[at] | run[at + 1] << 8
                self.check_open()
                key = run[at + 32:at + 32 + length]
                yield show(run[at + 2], <const uint8_t *>PyBytes_AS_STRING(key), length)
                at += 32 + length

    def scan(self, uint64_t cursor=0, uint64_t limit=10000):
        """(next cursor or None, entries): at least one shard's live entries, packed for comparison between sites.

        Each entry: u16 key length, u8 key form, u8 value form, u32 value length, u64 hash of the value, u64 stamp,
        u8 site, 7 zeros, key; little-endian.
        """
        cdef wan_buffer packed
        cdef wan_status status
        self.check_open()
        memset(&packed, 0, sizeof(packed))
        with nogil:
            status = region_scan(&self.r.table, &cursor, self.r.table.shard_count, limit, &packed)
        try:
            raise_for(status, f"scan of region {self.name!r}")
            return (None if cursor >= self.r.table.shard_count else cursor), PyBytes_FromStringAndSize(<const char *>packed.bytes, packed.used)
        finally:
            wan_buffer_close(&packed)

    # Buckets

    cdef wan_bucket *bucket_at(self, uint32_t number) except NULL:
        if number >= self.r.table.bucket_count:
            from pywan.errors import InternalError
            raise InternalError(f"region {self.name!r}: bucket {number} of {self.r.table.bucket_count}")
        return &self.r.table.buckets[number]

    @property
    def bucket_count(self):
        return self.r.table.bucket_count

    def bucket_of(self, key):
        """The number of the bucket that a key is in, whether it is there or not."""
        cdef encoded k
        key_holder = encode_key(key, &k)
        return wan_table_bucket(&self.r.table, wan_key_hash(k.data, k.length, k.form)).number

    def bucket(self, uint32_t number):
        """What a bucket is and holds: its role, shards, entries, tombstones (whole and shrunk), and their bytes."""
        cdef const wan_bucket *bucket = self.bucket_at(number)
        cdef wan_bucket_counts counts
        self.check_open()
        with nogil:
            counts = wan_table_bucket_count(&self.r.table, bucket)
        return {"number": bucket.number, "role": "primary" if bucket.role == WAN_BUCKET_PRIMARY else "", "shards": bucket.shard_count,
                "entries": counts.entries, "tombstones": counts.tombstones, "shrunk_tombstones": counts.shrunk, "bytes": counts.bytes}

    def bucket_digest(self, uint32_t number):
        """The same number for two regions that hold the same keys, versions and contents in this bucket; tombstones do not count."""
        cdef const wan_bucket *bucket = self.bucket_at(number)
        cdef uint64_t digest
        self.check_open()
        with nogil:
            digest = wan_table_bucket_digest(&self.r.table, bucket)
        return digest

    def scan_bucket(self, uint32_t number):
        """The live entries of a bucket, packed as by `scan`."""
        cdef const wan_bucket *bucket = self.bucket_at(number)
        cdef wan_buffer packed
        cdef wan_status status
        cdef uint64_t cursor = bucket.first_shard
        self.check_open()
        memset(&packed, 0, sizeof(packed))
        with nogil:
            status = region_scan(&self.r.table, &cursor, bucket.first_shard + bucket.shard_count, NEVER, &packed)
        try:
            raise_for(status, f"scan of region {self.name!r}")
            return PyBytes_FromStringAndSize(<const char *>packed.bytes, packed.used)
        finally:
            wan_buffer_close(&packed)

    def copy_bucket(self, uint32_t number, RegionCore to not None):
        """Brings what a bucket holds into the same one of another region of as many buckets. That one is not persistent: its log
        would not know of it."""
        cdef const wan_bucket *bucket = self.bucket_at(number)
        cdef wan_status status
        self.check_open()
        to.check_memory_only()
        if to is self:
            return
        with nogil:
            status = wan_table_bucket_copy(&self.r.table, bucket, &to.r.table)
        raise_for(status, f"copy of bucket {number} of region {self.name!r}")

    def drop_bucket(self, uint32_t number):
        """Takes everything out of a bucket, tombstones too; nothing is sent. Returns how many there were. Of a region that is
        not persistent."""
        cdef const wan_bucket *bucket = self.bucket_at(number)
        cdef uint64_t dropped
        self.check_memory_only()
        with nogil:
            dropped = wan_table_bucket_drop(&self.r.table, bucket)
        return dropped

    cdef int check_memory_only(self) except -1:
        self.check_open()
        if self.r.log != NULL:
            from pywan.errors import InternalError
            raise InternalError(f"region {self.name!r} is persistent, and its log would not know of it; nothing was changed")
        return 0

    # Columns

    def put_columns(self, keys, values, *, operations=None, timestamps=None):
        """Changes row by row from two columns, in one call without the GIL.

        `keys`, `values`: Arrow arrays, fixed-width numpy arrays, (offsets, data) pairs, lists of bytes or str, or Column.
        `operations`: create/update/destroy per row (default update). `timestamps`: milliseconds since 1970 per row.
        Returns the number of rows that took effect (a destroy of a key that is not there has none).
        BatchError lists the rows that were refused; all others were done.
        """
        self.check_open()
        cdef Column k = keys if isinstance(keys, Column) else Column(keys, "keys")
        cdef Column v = None
        if values is not None:
            v = values if isinstance(values, Column) else Column(values, "values")
        cdef int64_t rows = k.view.length
        cdef const uint8_t[::1] codes = None
        cdef const uint8_t *operation_codes_ = NULL
        cdef const int64_t[::1] stamps = None
        cdef const int64_t *stamps_ = NULL
        from pywan import errors
        if v is not None and v.view.length != rows:
            raise errors.ConfigurationError(f"region {self.name!r}: put_columns got {rows} keys and {v.view.length} values; nothing was stored")
        if operations is not None:
            codes = operation_codes(operations, rows)
            if rows:
                operation_codes_ = &codes[0]
        elif v is None:
            raise errors.ConfigurationError(f"region {self.name!r}: put_columns without values needs operations")
        if timestamps is not None:
            import numpy
            stamps = numpy.ascontiguousarray(timestamps, dtype=numpy.int64)
            if stamps.shape[0] != rows:
                raise errors.ConfigurationError(f"region {self.name!r}: {rows} keys and {stamps.shape[0]} timestamps; nothing was stored")
            if rows:
                stamps_ = &stamps[0]
                worst = int(numpy.max(stamps))
                if worst >= 1 << 47:
                    raise errors.ConfigurationError(f"region {self.name!r}: a timestamp of {worst} is no number of milliseconds since 1970; nothing was stored")
        cdef bulk_result result
        cdef uint64_t began = 0
        cdef int64_t stopped_at = -1
        cdef uint32_t never = 0
        memset(&result, 0, sizeof(bulk_result))
        while True:
            with nogil:
                region_put_rows(&self.r, &k.view, &v.view if v is not None else NULL, operation_codes_, stamps_, &result)
            if result.stopped != WAN_FULL:
                break
            if result.done != stopped_at:       # Each row may wait for so long.
                began, stopped_at = wan_monotonic_us(), result.done
            if not self.may_wait(began):
                break
            try:
                PyErr_CheckSignals()        # Ctrl-C ends the wait: the rows before were stored.
            except BaseException:
                free(result.rows)
                free(result.reasons)
                raise
            result.stopped = WAN_OK         # From the row that found no room, which is not a failure yet.
            with nogil:
                wan_wait_change(&never, 0, 5)
        refusal = None
        applied, failed = result.applied, result.failed
        try:
            failures = [(result.rows[n], failure_text(result.reasons[n])) for n in range(result.listed)]
            if result.stopped == WAN_SLOW:      # Callbacks are on the way, perhaps since a moment ago: the rest goes by them.
                slow_failures = []
                with OneWait(self):
                    applied += self.put_rows_slow(k, v, operation_codes_, stamps_, result.done, slow_failures)
                failed += len(slow_failures)
                failures += slow_failures
            elif result.stopped == WAN_CLOSED and result.done:
                raise errors.RegionNotFoundError(f"put_columns stopped at row {result.done} of {rows}: region {self.name!r} was destroyed, or its cache closed"
                                                 " (the rows before were stored)")
            elif result.stopped:
                self.fail(result.stopped, f"put_columns from row {result.done} of {rows} on (the rows before were stored)")
            if failed:
                refusal = errors.BatchError(
                    f"region {self.name!r}: {failed} of {rows} rows were refused, the others were stored; first: row "
                    f"{failures[0][0]}: {failures[0][1]}", failures)
        except (errors.PywanError, MemoryError) as error:
            refusal = error
        finally:
            free(result.rows)
            free(result.reasons)
        if wan_flag_read(&self.r.durable):
            try:
                self.wait_written(result.waits)
            except errors.DiskError as error:
                if refusal is None:
                    raise
                refusal.args = (f"{refusal}; of the rows that were stored: {error}", *refusal.args[1:])
        if refusal is not None:
            raise refusal
        return applied

    cdef int64_t put_rows_slow(self, Column k, Column v, const uint8_t *codes, const int64_t *stamps, int64_t row, list failures) except -1:
        """The rows from `row` on, through the user's callbacks. Returns how many took effect."""
        cdef const uint8_t *data
        cdef const uint8_t *value_data = NULL
        cdef uint32_t length, value_length = 0
        cdef uint8_t form, value_form = WAN_FORM_NONE
        cdef int64_t applied = 0
        cdef int wrong
        from pywan.errors import DiskError, QueueFullError, RegionNotFoundError
        for row in range(row, k.view.length):
            column_row(&k.view, row, &data, &length, &form)
            operation = codes[row] if codes != NULL else WAN_UPDATE
            value = None
            wrong = key_fault(data, length, form, False)
            if operation != WAN_DESTROY and v is not None and not wrong:
                column_row(&v.view, row, &value_data, &value_length, &value_form)
                if value_length > WAN_VALUE_BYTES_MAX:
                    wrong = 3
                else:
                    value = Encoded(value_form, PyBytes_FromStringAndSize(<const char *>value_data, value_length))
            if wrong:
                failures.append((row, failure_text(wrong)))
                continue
            try:
                outcome = self.slow_change(operation, Encoded(form, PyBytes_FromStringAndSize(<const char *>data, length)), value, None, stamps[row] if stamps != NULL else 0)
            except (QueueFullError, DiskError, RegionNotFoundError) as error:
                raise type(error)(f"put_columns stopped at row {row}: {error} (the rows before were stored)") from error
            applied += outcome in ("created", "updated", "destroyed")
        return applied


# What runs for a single put or get, for whoever has the core: a plain call within this unit.

cdef int put_one(RegionCore self, key, value, callback_argument) except -1:
    cdef encoded k, v, a
    cdef wan_change c
    cdef origin from_
    cdef wan_outcome outcome
    cdef wan_status status
    if self.r.closed or self.born != wan_forks:
        self.check_open()
    if self.seems_slow:
        self.slow_change(WAN_UPDATE, key, value, callback_argument)
        return 0
    key_holder = encode_key(key, &k)
    c.hash = wan_key_hash(k.data, k.length, k.form)
    wan_table_prefetch_slot(&self.r.table, c.hash)
    value_holder = encode(value, &v)
    origin_local(&from_, &self.r, wan_thread_self())
    if callback_argument is not None:
        argument_holder = encode_callback(callback_argument, &a)
        from_.callback, from_.callback_length, from_.callback_form = a.data, <uint16_t>a.length, a.form
    c.key, c.key_length, c.key_form = k.data, <uint16_t>k.length, k.form
    c.value, c.value_length, c.value_form = v.data, v.length, v.form
    c.operation = WAN_UPDATE
    c.stamp_site = self.r.site
    c.stamp = wan_clock_take(self.r.clock, wan_clock_now_ms(self.r.clock), 1)
    c.flags = 0
    c.local = 1
    c.ask = 0
    status = region_change(&self.r, &c, &from_, NULL, &outcome)
    if status == WAN_FULL and self.full_timeout_us:
        status = self.wait_for_room(&c, &from_, NULL, NULL, &outcome)
    if status == WAN_SLOW:
        self.slow_change(WAN_UPDATE, key, value, callback_argument)
        return 0
    if status != WAN_OK:
        self.fail(status, f"put of key {described(key)}")
    if outcome == WAN_OUT_OF_MEMORY:
        raise MemoryError(f"region {self.name!r}: no memory for key {described(key)}; nothing was stored")
    if wan_flag_read(&self.r.durable):
        self.wait_written(c.waits)
    return 0


cdef object get_one(RegionCore self, key, default):
    cdef uint8_t form
    cdef bint live
    cdef bytes data = self.find_bytes(key, &form, &live)
    if data is None:
        return default
    return decode(form, <const uint8_t *>PyBytes_AS_STRING(data), <uint32_t>PyBytes_GET_SIZE(data))


@cython.auto_pickle(False)
cdef class RegionFace:
    """What users hold of a region: the calls that are compiled. All else is in Python, in `pywan.Region`."""
    cdef RegionCore core

    def __cinit__(self, RegionCore core not None):
        self.core = core

    @property
    def name(self):
        return self.core.name

    @property
    def is_closed(self):
        """Whether it was destroyed, or its cache closed."""
        return self.core.is_closed

    @property
    def applied(self):
        """Remote changes that took effect."""
        return self.core.applied

    @property
    def conflicts(self):
        """Remote changes that lost against a later version."""
        return self.core.conflicts

    @property
    def memory_bytes(self):
        """Bytes allocated for entries and slots."""
        return self.core.memory_bytes

    @property
    def tombstones(self):
        """Destroyed keys that are remembered."""
        return self.core.tombstones

    def __len__(self):
        return len(self.core)

    def __contains__(self, key):
        cdef uint8_t form
        cdef bint live
        self.core.find_bytes(key, &form, &live)
        return live

    def put(self, key, value, callback_argument=None):
        """Stores `value` under `key` and hands the event to the attached senders. Raises QueueFullError,
        EventTooLargeError or SerializationError; then nothing was stored and nothing will be sent."""
        put_one(self.core, key, value, callback_argument)

    def get(self, key, default=None):
        """The value under `key`, or `default`. SerializationError for a value that is no object in this process."""
        return get_one(self.core, key, default)

    def destroy(self, key, callback_argument=None):
        """Removes `key` everywhere. KeyError if it is not there."""
        self.core.destroy(key, callback_argument)

    def local_destroy(self, key):
        """Removes the entry on this member only; nothing is sent. KeyError if it is not there."""
        self.core.local_destroy(key)

    def invalidate(self, key):
        """Drops the value and keeps the key with its version; not sent to other sites. KeyError if the key is not there."""
        self.core.invalidate(key)

    def put_columns(self, keys, values, *, operations=None, timestamps=None):
        """Changes row by row from two columns, in one call without the GIL.

        `keys`, `values`: Arrow arrays, fixed-width numpy arrays, (offsets, data) pairs, lists of bytes or str, or Column.
        `operations`: create/update/destroy per row (default update). `timestamps`: milliseconds since 1970 per row.
        Returns the number of rows that took effect (a destroy of a key that is not there has none).
        BatchError lists the rows that were refused; all others were done.
        """
        return self.core.put_columns(keys, values, operations=operations, timestamps=timestamps)

    def wait_durable(self):
        """Returns when what has been changed and enqueued so far is on the disk, where that is synchronous."""
        self.core.wait_durable()


def core_of_face(RegionFace face not None):
    """What a region has: for the member that holds it."""
    return face.core


cdef object encode_callback(argument, encoded *out):
    holder = encode(argument, out)
    if out.length > WAN_CALLBACK_BYTES_MAX:
        from pywan.errors import EventTooLargeError
        raise EventTooLargeError(f"a callback argument of {out.length} bytes is over the limit of {WAN_CALLBACK_BYTES_MAX} bytes; nothing was stored")
    return holder


cdef class _Nothing:
    """Does nothing when called: what the benchmarks of single calls are measured against."""

    def put(self, key, value, callback_argument=None):
        pass
