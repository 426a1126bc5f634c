# Owns `EventQueue`: what Python sees of the queue of one sender on one member. Producers append through queue.pxd and
# put.pxd. A dispatcher peeks, acknowledges and rewinds.
cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *
from pywan._core.c_names cimport *
from pywan._core.c_record cimport *
from pywan._core.c_session cimport *
from pywan._core.c_store cimport *
from pywan._core.c_system cimport *
from pywan._core.log.committer cimport (
    FOR_DISK, FOR_EVENTS, WAIT_FOR_LOG_US, WORK_CHECKPOINT, WORK_NOW, committer_failing_since,
    committer_once, committer_opened, committer_run, committer_share, committer_state, committer_stop, committer_wait,
    committer_wake, committer_write_now, disk_wait, level_name, level_of)
from pywan._core.log.disk_log cimport LogBudget, damage_list
from pywan._core.queue.queue cimport (
    FULL_BLOCK, FULL_DROP_NEWEST, FULL_DROP_OLDEST, FULL_REFUSE, SLOW_DISK_US, durable_log, gateway_queue,
    queue_append_copy, queue_can_read, queue_dispatcher, queue_apply_removal, queue_partition_of, dispatcher_signal,
    queue_refresh_ready, removal_news_came, wake_dispatchers)
from pywan._core.queue.queue_committer cimport FOR_IDENTITY, FOR_REMOVALS, queue_begin_wait, queue_committer_init
from pywan._core.queue.queue_mounts cimport durable_mount, is_of_this_past
from pywan._core.queue.queue_recovery cimport (
    adopt_segment, durable_log_close, durable_log_new, durable_recover, note_damaged, recover_part, recover_state,
    segment_adopted)
from pywan._core.queue.queue_older cimport older_copy, older_take
from pywan._core.queue.queue_acknowledged cimport removal_park, acknowledged_take, acknowledged_wait, taken_event
from pywan._core.base.status cimport detail_text, environment_of, raise_for, report_unraisable
from pywan._core.values.names cimport known_region_number, region_name, region_number


cdef str IN_MEMORY = "the events are queued in memory and will be written when the disk takes them"

cdef uint64_t queues_made = 0    # How many queues this process has made. Guarded by the GIL.


cdef inline wan_status health_of(gateway_queue *gateway) noexcept:
    cdef const wan_breakage *broken = wan_breakage_of(&gateway.queue.broken)
    return wan_refuse_broken(broken) if broken != NULL else WAN_OK


cdef int check_whole(EventQueue self) except -1:
    """Raises InternalError, which names the place, if a check of our own failed on this queue."""
    return raise_for(health_of(self.gateway), f"queue {self.name!r}")


@cython.no_gc_clear      # The objects that the queue keeps alive are used when it is closed.
cdef class EventQueue:
    """The events of one sender on this member, in units of order served by `dispatchers`: `partitions` own ones, and
    runs of stream partitions, one for each bucket of a region that several members hold.

    The events go to `remote_site`; None: to a listener in this process. The queue uses memory up to `memory_limit`
    bytes, then mapped files in `directory` (None: no overflow, the limit is final). With `log_directory` it is
    persistent. Then opening recovers what is there, events are logged, `commit_loop` has to run in a thread of its
    own, and `wait_durable` waits for the disk. `log_budget` bounds this log and others together, and counts
    `log_known` bytes of it already. `environment` stands in for the operating system's files.

    All methods are thread-safe. Call `close()` only when no dispatcher and no region uses the queue any more.
    """

    def __cinit__(self, str name, *, remote_site=0, uint32_t partitions=1, uint32_t dispatchers=1,
                  uint64_t memory_limit=100 << 20, directory=None, bint conflate=False, bint by_thread=False,
                  bint by_bucket=False, log_directory=None, uint64_t log_id=0, synchronous=True, uint32_t flush_ms=10,
                  LogBudget log_budget=None, uint64_t log_known=0, bint log_may_use_reserve=False, bint salvage=False,
                  environment=None, uint64_t mount=0):
        global queues_made
        cdef bytes path = b""
        cdef const wan_env *env = environment_of(environment)
        cdef const char *path_or_null = NULL
        cdef wan_status status
        if directory is not None:
            path = str(directory).encode("utf-8", "surrogateescape")
            path_or_null = path
        self.name, self.environment = name, environment
        self.reachable = True
        if dispatchers == 0 or (remote_site is not None and not 0 <= remote_site <= 255):
            from pywan.errors import ConfigurationError
            raise ConfigurationError(f"queue {name!r}: {dispatchers} dispatchers for site {remote_site}; at least "
                                     "one, and a site from 0 to 255")
        self.gateway = <gateway_queue *>calloc(1, sizeof(gateway_queue))
        if self.gateway == NULL:
            raise MemoryError(f"no memory for queue {name!r}")
        queues_made += 1
        self.gateway.lock_order = queues_made
        id_ = name.encode()
        self.gateway.sender = wan_hash(<const char *>id_, len(id_), 0)
        with nogil:
            status = wan_queue_init(&self.gateway.queue, env, path_or_null, memory_limit, partitions, conflate)
        raise_for(status, f"queue {name!r}")
        self.gateway.dispatchers = dispatchers
        self.gateway.acknowledged_file = -1
        memset(self.gateway.lowest_copied, 0xff, sizeof(self.gateway.lowest_copied))
        if remote_site is None:
            self.gateway.stays_here = True
        else:
            self.gateway.remote_site = remote_site
        self.gateway.by_thread, self.gateway.by_bucket = by_thread, by_bucket
        if by_thread:
            wan_queue_keep_arrivals(&self.gateway.queue)
        if by_bucket:
            self.gateway.buckets = <uint16_t *>calloc(WAN_REGION_NAMES, sizeof(uint16_t))
            if self.gateway.buckets == NULL:
                raise MemoryError(f"no memory for queue {name!r}")
        self.gateway.signals = <dispatcher_signal *>calloc(dispatchers, sizeof(dispatcher_signal))
        if self.gateway.signals == NULL:
            raise MemoryError(f"no memory for {dispatchers} dispatchers of queue {name!r}")
        for n in range(dispatchers):
            self.gateway.signals[n].file = -1
        for n in range(dispatchers):
            self.gateway.signals[n].wake_at = DO_NOT_WAKE
            self.gateway.signals[n].file = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
            if self.gateway.signals[n].file < 0:
                from pywan.errors import DiskError
                raise DiskError(f"queue {name!r}: no file descriptor left for dispatcher {n} (ulimit -n)")
        if log_directory is not None:
            if mount == 0:
                import secrets
                mount = secrets.randbits(62) | 1
            self.open_log(env, str(log_directory), log_id, level_of(synchronous), flush_ms, salvage, mount)
            self.gateway.full_timeout_us = self.gateway.block_timeout_us = SLOW_DISK_US
            self.budget = log_budget
            committer_share(&self.gateway.durable.committer, log_budget, log_known, log_may_use_reserve)

    def limit_memory(self, MemoryLimit memory not None):
        """Counts the queue's memory for this limit of its member. While the member is above it, new events go to
        overflow files."""
        self.memory = memory
        with nogil:
            wan_store_set_limit(self.gateway.queue.store, &memory.limit)

    cdef int open_log(self, const wan_env *env, str directory, uint64_t log_id, uint8_t synchronous, uint32_t flush_ms,
                      bint salvage, uint64_t mount) except -1:
        cdef durable_log *durable = durable_log_new(self.gateway)
        cdef wan_log_reader reader
        cdef wan_damage damage
        cdef wan_status status
        cdef uint32_t partitions = self.gateway.queue.partition_count
        cdef bytes path = directory.encode("utf-8", "surrogateescape")
        cdef const char *path_ = path
        if durable == NULL:
            raise MemoryError()
        self.gateway.durable, durable.salvage, durable.mount = durable, salvage, mount
        queue_committer_init(self.gateway, synchronous, flush_ms)
        self.gateway.queue.persistent = 1
        cdef uint8_t conflates = self.gateway.queue.conflate
        # The log says what was conflated, as holes. Recovery does not conflate a second time.
        self.gateway.queue.conflate = 0
        memset(&reader, 0, sizeof(reader))
        reader.owner = self.gateway
        reader.part, reader.state = recover_part, recover_state
        # With conflation each new event is compared with the queued ones, so these lie in memory and not in the log's
        # files.
        if not conflates:
            reader.adopt, reader.adopted = adopt_segment, segment_adopted
        reader.read_ahead = env == &wan_env_posix
        reader.salvage, reader.damaged = salvage, note_damaged
        with nogil:
            status = wan_log_open(&durable.committer.log, env, path_, WAN_LOG_QUEUE, log_id, partitions, &reader,
                                  &damage, &durable.cut_bytes)
            if status == WAN_OK:
                status = durable_recover(self.gateway)
            if status == WAN_OK and not salvage:
                status = durable_mount(self.gateway)
            self.gateway.queue.holes = &durable.holes.pending
            self.gateway.queue.superseded = &durable.superseded.pending
            if status == WAN_OK and conflates and not salvage:
                status = wan_queue_start_conflating(&self.gateway.queue)
        committer_opened(&durable.committer, status, f"queue {self.name!r}")
        return 0

    def __dealloc__(self):
        if self.gateway == NULL:
            return
        if self.gateway.signals != NULL:
            for n in range(self.gateway.dispatchers):
                if self.gateway.signals[n].file >= 0:
                    close_file(self.gateway.signals[n].file)
        if self.gateway.acknowledged_file >= 0:
            close_file(self.gateway.acknowledged_file)
        with nogil:                 # Other queues may share its store.
            wan_queue_close(&self.gateway.queue)
        if self.gateway.durable != NULL:
            durable_log_close(self.gateway.durable)
        wan_sources_close(&self.gateway.sources)
        wan_buffer_close(&self.gateway.logs)
        wan_buffer_close(&self.gateway.runners)
        free(self.gateway.signals)
        free(self.gateway.buckets)
        free(self.gateway)

    # Persistence.

    @property
    def persistent(self):
        return self.gateway.durable != NULL

    @property
    def synchronous(self):
        """Whether an enqueue is done only when it is on the disk. "written": when it is in the log, which is synced
        later."""
        return self.gateway.durable != NULL and level_name(self.gateway.durable.committer.synchronous)

    @property
    def log_id(self):
        """The id of the log, the same after a restart; 0 without persistence."""
        return self.gateway.durable.committer.log.id if self.gateway.durable != NULL else 0

    @property
    def numbering(self):
        """What receivers know the queue by, the same after a restart: the log's id, until `renew`. 0 without
        persistence."""
        return wan_read(&self.gateway.durable.numbering) if self.gateway.durable != NULL else 0

    @property
    def mount(self):
        """Identifies this opening of the log; 0 without persistence."""
        return self.gateway.durable.mount if self.gateway.durable != NULL else 0

    def is_past(self, uint64_t mount, uint32_t partition, uint64_t last, uint64_t acknowledged=0):
        """Whether this queue has or had the events that were sent in `mount`, up to `last`, under these sequences, and
        has settled those up to `settled` too. If not, another copy of its log sent them, or the log is an older
        replica."""
        cdef bint is_it
        self.check_partition(partition)
        if self.gateway.durable == NULL:
            return False
        with nogil:
            wan_lock_take(&self.gateway.lock)
            is_it = is_of_this_past(self.gateway, mount, partition, last)
            is_it = is_it and acknowledged <= self.gateway.queue.partitions[partition].removed
            wan_lock_release(&self.gateway.lock)
        return is_it

    def renew(self, uint64_t old, uint64_t numbering, double timeout=60.0):
        """Takes another numbering in place of `old`. It is on the disk when this returns. Everything queued is a
        possible duplicate from then on. Nothing happens if `old` was replaced already. DiskError as in `wait_durable`:
        then the queue takes the numbering when the disk takes it."""
        cdef durable_log *durable = self.gateway.durable
        check_whole(self)
        if durable == NULL or numbering == 0:
            from pywan.errors import ConfigurationError
            raise ConfigurationError(f"queue {self.name!r}: only a queue with a log takes another numbering, and "
                                     "none is 0")
        with nogil:
            wan_lock_take(&self.gateway.lock)
            if durable.numbering == old and durable.wanted_numbering == 0:
                wan_set(&durable.wanted_numbering, numbering)
            wan_lock_release(&self.gateway.lock)
        committer_wake(&durable.committer)
        self.wait_for_log(FOR_IDENTITY, timeout, "it sends nothing until its new identity is on the disk")

    def recovery(self):
        """What opening found: the number of records in the log, and the bytes of a torn end that were cut. In salvage
        every piece of damage too."""
        cdef durable_log *durable = self.gateway.durable
        if durable == NULL:
            return {}
        return {"records": durable.recovered_records, "cut_bytes": durable.cut_bytes,
                "damages": damage_list(&durable.damages)}

    def log_state(self):
        """Sizes of the log, why writing fails now (None: it does not), and how far each partition is on the disk."""
        cdef durable_log *durable = self.gateway.durable
        if durable == NULL:
            return {}
        cdef uint32_t p, count = self.gateway.queue.partition_count
        cdef uint64_t *through = <uint64_t *>malloc(count * sizeof(uint64_t))
        if through == NULL:
            raise MemoryError()
        found = committer_state(&durable.committer)
        with nogil:
            wan_lock_take(&self.gateway.lock)
            for p in range(count):
                through[p] = self.gateway.queue.partitions[p].durable
            wan_lock_release(&self.gateway.lock)
        found["durable"] = [through[p] for p in range(count)]
        free(through)
        return found

    def commit_loop(self):
        """Writes what is pending until `stop_log`. Run it in a thread of its own. The GIL is free meanwhile."""
        if self.gateway.durable != NULL:
            with nogil:
                committer_run(&self.gateway.durable.committer)

    def commit_once(self, bint checkpoint=True):
        """Runs one round of the committer in the caller's thread, for a queue without a `commit_loop`. It brings what
        is pending onto the disk, and with `checkpoint` what was removed too. False: the disk did not take it, and
        `log_state` says why."""
        cdef wan_status status = WAN_OK
        if self.gateway.durable != NULL:
            with nogil:
                status = committer_once(&self.gateway.durable.committer, WORK_NOW | WORK_CHECKPOINT if checkpoint
                                        else WORK_NOW)
        return status == WAN_OK

    def write_once(self):
        """Does what a waiting caller does if one write is enough. False: that is left to `commit_loop` or
        `commit_once`."""
        cdef wan_status status = WAN_EMPTY
        if self.gateway.durable != NULL:
            with nogil:
                status = committer_write_now(&self.gateway.durable.committer)
        return status == WAN_OK

    def stop_log(self):
        """Makes the log take nothing more, and `commit_loop` return once everything is on the disk (or cannot get
        there)."""
        if self.gateway.durable != NULL:
            with nogil:
                committer_stop(&self.gateway.durable.committer)

    cdef bint gives_up(self, uint64_t waited_us):
        """Whether the log has taken nothing for longer than an enqueue may wait for that. A log near its limit that
        makes room takes something now and then."""
        cdef uint64_t since = 0
        if self.gateway.durable != NULL and waited_us >= self.gateway.block_timeout_us:
            with nogil:
                since = committer_failing_since(&self.gateway.durable.committer, WAN_OK)
        return since != 0 and wan_monotonic_us() - since >= self.gateway.block_timeout_us

    def wait_durable(self, double timeout=60.0):
        """Returns when everything enqueued so far is on the disk. DiskError after `timeout` seconds, or after 5 seconds
        in which the disk took nothing: what was enqueued stays queued here and is written when the disk takes it."""
        check_whole(self)
        self.wait_for_log(FOR_DISK, timeout, IN_MEMORY)

    def wait_written(self, double timeout=60.0):
        """Returns when everything enqueued so far is as durable as `synchronous` says. It works on a broken queue too:
        what entered before still gets to the disk."""
        self.wait_for_log(FOR_EVENTS, timeout, IN_MEMORY)

    def wait_removed(self, double timeout=60.0):
        """Returns when everything removed so far is removed on the disk too. DiskError as in `wait_durable`: until the
        disk takes it, a crash brings it back."""
        check_whole(self)
        self.wait_for_log(FOR_REMOVALS, timeout, "what was removed comes back if the process ends before the disk "
                                                 "takes that")

    cdef int wait_for_log(self, int what, double timeout, str meanwhile) except -1:
        cdef disk_wait wait
        if self.gateway.durable == NULL:
            return 0
        cdef uint64_t limit_us = <uint64_t>(timeout * 1e6)
        with nogil:
            wait = queue_begin_wait(self.gateway, what, limit_us)
        return committer_wait(&self.gateway.durable.committer, &wait, f"queue {self.name!r}", meanwhile)

    def wait_records(self, uint64_t given):
        """Returns when the log has the first `given` records that it ever got, as durable as `synchronous` says."""
        cdef disk_wait wait
        if self.gateway.durable == NULL:
            return
        with nogil:
            wait = queue_begin_wait(self.gateway, FOR_EVENTS, WAIT_FOR_LOG_US)
        wait.wanted = wait.last = given
        committer_wait(&self.gateway.durable.committer, &wait, f"queue {self.name!r}", IN_MEMORY)

    def __len__(self):
        return wan_read(&self.gateway.queue.events)

    @property
    def bytes(self):
        """Bytes of the events in the queue, as laid out."""
        return wan_read(&self.gateway.queue.bytes)

    def set_full_policy(self, str policy, double timeout_ms=0.0, double slow_disk_ms=SLOW_DISK_US / 1000):
        """Says what an enqueue does if it finds no room: "block" (it waits for `timeout_ms`, then it is refused),
        "refuse", "drop-oldest" or "drop-newest" (both counted). A disk that takes events more slowly than they come is
        not a full one. Then events wait for `slow_disk_ms`, also for the oldest to leave, except with "refuse". Call
        this before regions attach."""
        check_whole(self)
        self.gateway.full_policy = {"block": FULL_BLOCK, "refuse": FULL_REFUSE, "drop-oldest": FULL_DROP_OLDEST,
                                    "drop-newest": FULL_DROP_NEWEST}[policy]
        self.gateway.full_timeout_us = <uint64_t>(timeout_ms * 1000) if policy == "block" else 0
        self.gateway.block_timeout_us = (self.gateway.full_timeout_us if policy in ("block", "refuse")
                                         else <uint64_t>(slow_disk_ms * 1000))
        if self.gateway.durable != NULL and policy != "refuse":
            self.gateway.full_timeout_us = max(self.gateway.full_timeout_us, <uint64_t>(slow_disk_ms * 1000))

    @property
    def running(self):
        """Whether the sender accepts events. If not, an event that comes is counted as dropped."""
        return bool(wan_flag_read(&self.gateway.running))

    @running.setter
    def running(self, bint value):
        wan_flag_set(&self.gateway.running, value)

    def counts(self):
        """The ledger's counters and the queue's size, taken at one moment."""
        cdef wan_queue_counts counts
        cdef uint64_t conflated, forgotten, by_primary, events, size, files, file_bytes, memory_bytes
        with nogil:
            wan_lock_take(&self.gateway.lock)
            counts = self.gateway.counts
            conflated, forgotten = self.gateway.queue.conflated, self.gateway.queue.forgotten
            by_primary = self.gateway.queue.removed_by_primary
            events = self.gateway.queue.events
            size = self.gateway.queue.bytes
            files = self.gateway.queue.store[0].files_made
            file_bytes = self.gateway.queue.store[0].file_bytes
            memory_bytes = self.gateway.queue.store[0].memory_bytes
            wan_lock_release(&self.gateway.lock)
        cdef const uint64_t *each = <const uint64_t *>&counts
        cdef dict result = {wan_queue_counter_rows[n].field.decode(): each[n]
                            for n in range(<int>WAN_QUEUE_COUNTERS_COUNT)}
        del result["newest_stamp"], result["clock_repairs"]
        result.update(conflated=conflated, forgotten=forgotten, removed_by_primary=by_primary, events=events,
                      bytes=size, overflow_files_made=files, overflow_bytes=file_bytes, memory_bytes=memory_bytes)
        return result

    def positions(self):
        """(removed, peeked, appended) of every partition, the own ones first."""
        cdef uint32_t p, count = self.partition_count()
        cdef wan_partition *copies = <wan_partition *>malloc(count * sizeof(wan_partition))
        if copies == NULL:
            raise MemoryError()
        with nogil:
            wan_lock_take(&self.gateway.lock)
            memcpy(copies, self.gateway.queue.partitions, count * sizeof(wan_partition))
            wan_lock_release(&self.gateway.lock)
        # No Python object is made under the lock: making one can start the collector, and with it anybody's code.
        found = [(copies[p].removed, copies[p].peeked, copies[p].appended) for p in range(count)]
        free(copies)
        return found

    cdef uint32_t partition_count(self) noexcept:
        """How many partitions there are, the own ones and those of streams."""
        return wan_queue_partition_count(&self.gateway.queue)

    @property
    def partitions(self):
        """How many own partitions there are. Those of streams follow them (`runs`)."""
        return self.gateway.queue.own_count

    # Streams of regions that several members hold.

    def add_run(self, str region, uint32_t buckets):
        """Makes stream partitions for the buckets of a region, or takes those that it had before if they are free.
        Returns the first one. This member leads none of them. IllegalStateError: the queue is persistent, or would have
        too many partitions."""
        check_whole(self)
        return self.make_run(<uint16_t>region_number(region), buckets, NULL)

    cdef uint32_t make_run(self, uint16_t region, uint32_t buckets, const uint64_t *timelines) except? 0:
        cdef uint32_t first = 0
        cdef wan_status status
        if self.gateway.durable != NULL:
            from pywan.errors import IllegalStateError
            from pywan.limitations import Limitation
            raise IllegalStateError(f"queue {self.name!r} is persistent: {Limitation.NO_QUEUE_OF_A_MEMBER.refusal()}")
        with nogil:
            wan_lock_take(&self.gateway.lock)
            status = wan_queue_add_run(&self.gateway.queue, region, buckets, self.gateway.dispatchers, timelines,
                                       &first)
            wan_lock_release(&self.gateway.lock)
        raise_for(status, f"queue {self.name!r}")
        return first

    def runs(self):
        """(region, first partition, number of buckets) of each run of stream partitions. A region may have several: the
        earlier ones still hold events."""
        cdef uint32_t n, count
        cdef wan_stream_run *copies
        with nogil:
            wan_lock_take(&self.gateway.lock)
            count = self.gateway.queue.run_count
            copies = <wan_stream_run *>malloc((count + 1) * sizeof(wan_stream_run))
            if copies != NULL and count:
                memcpy(copies, self.gateway.queue.runs, count * sizeof(wan_stream_run))
            wan_lock_release(&self.gateway.lock)
        if copies == NULL:
            raise MemoryError(f"queue {self.name!r}: no memory for its runs")
        found = [(region_name(copies[n].region), copies[n].first, copies[n].buckets) for n in range(count)]
        free(copies)
        return found

    def lead(self, partitions, bint leads, bint in_order=False):
        """Says whether this member sends the events of these stream partitions. When it begins to, what is queued may
        have been sent by another member; with `in_order` that one handed over, and has nothing on its way. When it
        ends, nothing more leaves from here; what is on its way may still be acknowledged."""
        cdef wan_buffer numbers
        cdef uint32_t partition, n
        memset(&numbers, 0, sizeof(numbers))
        try:
            for partition in partitions:
                self.check_partition(partition)
                if partition < self.gateway.queue.own_count:
                    from pywan.errors import ConfigurationError
                    raise ConfigurationError(f"queue {self.name!r}: partition {partition} is no stream")
                raise_for(wan_buffer_add(&numbers, &partition, sizeof(partition)), f"queue {self.name!r}")
            # All at once: what a thread put into several buckets leaves in its order if it begins to leave together.
            with nogil:
                wan_lock_take(&self.gateway.lock)
                for n in range(numbers.count):
                    wan_queue_lead(&self.gateway.queue, (<uint32_t *>numbers.bytes)[n], leads, in_order)
                wake_dispatchers(self.gateway)
                wan_lock_release(&self.gateway.lock)
        finally:
            wan_buffer_close(&numbers)

    def set_runners(self, members):
        """Sets on which incarnations, by their numbers, the sender runs, as the tables say. They alone are believed
        that events have left."""
        cdef wan_buffer numbers, before
        cdef uint32_t number
        memset(&numbers, 0, sizeof(numbers))
        try:
            for number in members:
                raise_for(wan_buffer_add(&numbers, &number, sizeof(number)), f"queue {self.name!r}")
            with nogil:
                wan_lock_take(&self.gateway.lock)
                before, self.gateway.runners = self.gateway.runners, numbers
                numbers = before
                self.gateway.knows_runners = True
                wan_lock_release(&self.gateway.lock)
                removal_news_came()
        finally:
            wan_buffer_close(&numbers)

    def run_of(self, str region):
        """The first partition of the run that a region feeds now. None: it feeds none."""
        cdef uint16_t number = <uint16_t>known_region_number(region)
        cdef wan_stream_run *run
        cdef uint32_t n, found = 0
        if number == 0:
            return None
        with nogil:
            wan_lock_take(&self.gateway.lock)
            for n in range(self.gateway.queue.run_count):
                run = &self.gateway.queue.runs[n]
                if run.region == number and self.gateway.queue.partitions[run.first].stream != NULL:
                    found = run.first
            wan_lock_release(&self.gateway.lock)
        return found or None        # The own partitions come first, and there is one at least.

    def lacking(self, uint32_t first, uint32_t count):
        """For each of `count` partitions, from `first` on: through which sequence other members may have events that
        this queue has not, as it is fed since a later moment than theirs. 0: it lacks none. None: it is being
        attached."""
        cdef uint32_t n
        cdef uint64_t *lacks
        self.check_partition(first + count - 1)
        lacks = <uint64_t *>malloc((count + 1) * sizeof(uint64_t))
        if lacks == NULL:
            raise MemoryError(f"queue {self.name!r}: no memory to say what it lacks")
        with nogil:
            wan_lock_take(&self.gateway.lock)
            for n in range(count):
                lacks[n] = self.gateway.queue.partitions[first + n].lacks
            wan_lock_release(&self.gateway.lock)
        found = [None if lacks[n] == NO_LIMIT else lacks[n] for n in range(count)]
        free(lacks)
        return found

    def older_events(self, uint32_t partition, uint64_t timeline, uint64_t after, uint64_t through, uint64_t most):
        """The events of a stream behind `after` through `through`, about `most` bytes of them and one at least, for a
        queue that lacks them: (through which sequence all have left this queue, through which sequence it lacks events
        itself, through which sequence these are all, the events). None: the stream has another timeline. DiskError: a
        file cannot be read."""
        cdef wan_buffer copies
        cdef wan_status status = WAN_OK
        cdef uint64_t removed = 0, lacks = 0, reached = through
        cdef bint is_same = False
        cdef wan_partition *at
        self.check_partition(partition)
        check_whole(self)
        memset(&copies, 0, sizeof(copies))
        try:
            with nogil:
                wan_lock_take(&self.gateway.lock)
                at = &self.gateway.queue.partitions[partition]
                is_same = at.stream != NULL and at.timeline == timeline
                if is_same:
                    removed, lacks = at.removed, at.lacks
                    status = older_copy(self.gateway, partition, after, most, &reached, &copies)
                wan_lock_release(&self.gateway.lock)
            raise_for(status, f"queue {self.name!r}")
            if not is_same:
                return None
            return (removed, None if lacks == NO_LIMIT else lacks, reached,
                    PyBytes_FromStringAndSize(<const char *>copies.bytes, <Py_ssize_t>copies.used))
        finally:
            wan_buffer_close(&copies)

    def take_older(self, uint32_t partition, uint64_t timeline, uint64_t removed, bytes events):
        """Puts the answer of another queue's `older_events` into this one, which lacks them. False: something of the
        partition is on its way, or it has another timeline; nothing was changed. QueueFullError, DiskError,
        MemoryError: a part of them may have been taken, and they may come again."""
        cdef wan_buffer copies
        cdef wan_status status
        cdef wan_partition *at
        self.check_partition(partition)
        check_whole(self)
        memset(&copies, 0, sizeof(copies))
        raise_for(wan_buffer_add(&copies, PyBytes_AS_STRING(events), len(events)), f"queue {self.name!r}")
        try:
            with nogil:
                wan_lock_take(&self.gateway.lock)
                at = &self.gateway.queue.partitions[partition]
                status = WAN_EMPTY
                if at.timeline == timeline and at.lacks and at.lacks != NO_LIMIT:
                    status = wan_queue_reach_back(&self.gateway.queue, partition, removed)
                if status == WAN_OK:
                    status = older_take(self.gateway, partition, copies.bytes, copies.used)
                wan_lock_release(&self.gateway.lock)
        finally:
            wan_buffer_close(&copies)
        if status == WAN_EMPTY:
            return False
        raise_for(status, f"queue {self.name!r}")
        return True

    def end_lacking(self, uint32_t partition, uint64_t timeline, uint64_t through):
        """All members were asked for what the partition lacks, which was all through `through`. If that is the same
        now, it may be led from now on (`lead`)."""
        self.check_partition(partition)
        check_whole(self)
        with nogil:
            wan_lock_take(&self.gateway.lock)
            if (self.gateway.queue.partitions[partition].timeline == timeline
                    and self.gateway.queue.partitions[partition].lacks == through):
                wan_queue_lack(&self.gateway.queue, partition, 0)
            wan_lock_release(&self.gateway.lock)

    def lack_events_behind(self, uint32_t partition, uint64_t timeline, uint64_t after):
        """Another queue has events of a stream behind `after`. Returns whether this queue began later. The queue then
        has a gap (`lacking`), and does not lead the partition."""
        cdef bint is_later = False
        cdef wan_partition *at
        self.check_partition(partition)
        check_whole(self)
        with nogil:
            wan_lock_take(&self.gateway.lock)
            at = &self.gateway.queue.partitions[partition]
            is_later = at.stream != NULL and at.timeline == timeline and not at.lacks and after < at.begun
            if is_later:
                wan_queue_lack(&self.gateway.queue, partition, at.begun)
            wan_lock_release(&self.gateway.lock)
        return is_later

    def run_events(self, uint32_t first, uint32_t count):
        """How many events are queued in each of `count` partitions, from `first` on."""
        cdef uint32_t n
        self.check_partition(first + count - 1)
        found = [0] * count
        for n in range(count):
            found[n] = self.gateway.queue.partitions[first + n].events
        return found

    @property
    def led_events(self):
        """How many queued events this member sends."""
        cdef uint64_t count = 0
        cdef uint32_t p
        with nogil:
            wan_lock_take(&self.gateway.lock)
            for p in range(self.gateway.queue.partition_count):
                if self.gateway.queue.partitions[p].leads:
                    count += self.gateway.queue.partitions[p].events
            wan_lock_release(&self.gateway.lock)
        return count

    def streams(self):
        """What is known of each stream partition: (partition, region, bucket, timeline, whether this member leads it,
        through which sequence another member says that it is settled)."""
        cdef uint32_t p, count = self.partition_count()
        cdef wan_partition *copies = <wan_partition *>malloc(count * sizeof(wan_partition))
        if copies == NULL:
            raise MemoryError(f"queue {self.name!r}: no memory for its streams")
        with nogil:
            wan_lock_take(&self.gateway.lock)
            memcpy(copies, self.gateway.queue.partitions, count * sizeof(wan_partition))
            wan_lock_release(&self.gateway.lock)
        found = [(p, region_name(copies[p].region), copies[p].bucket, copies[p].timeline, bool(copies[p].leads),
                  copies[p].removed_through)
                 for p in range(self.gateway.queue.own_count, count) if copies[p].region]
        free(copies)
        return found

    def oldest_ms(self):
        """Milliseconds since 1970 at which the oldest queued event was made. None: the queue is empty."""
        cdef uint64_t oldest = NEVER, at
        cdef wan_record *record
        with nogil:
            wan_lock_take(&self.gateway.lock)
            for p in range(self.gateway.queue.partition_count):
                record = wan_queue_oldest(&self.gateway.queue, p)
                # The age of an event that cannot be read is not known. Its dispatcher says why it cannot be read.
                if record != NULL and queue_can_read(self.gateway, p, self.gateway.queue.partitions[p].known_holes + 1):
                    at = wan_stamp_ms(record.stamp)
                    if at < oldest:
                        oldest = at
            wan_lock_release(&self.gateway.lock)
        return None if oldest == NEVER else oldest

    def clear(self):
        """Drops everything, counted as `dropped_cleared`, and returns how many. Call it only while no dispatcher
        runs."""
        cdef uint64_t dropped = 0
        cdef wan_status status
        with nogil:
            wan_lock_take(&self.gateway.lock)
            status = wan_queue_clear(&self.gateway.queue, &dropped)
            self.gateway.counts.dropped_cleared += dropped
            for d in range(self.gateway.dispatchers):
                queue_refresh_ready(self.gateway, d)
            wan_lock_release(&self.gateway.lock)
        raise_for(status, f"queue {self.name!r}")
        return dropped

    def wake(self):
        """Wakes every dispatcher, so that it sees what it was told."""
        for n in range(self.gateway.dispatchers):
            eventfd_write(self.gateway.signals[n].file, 1)

    def append_record(self, const uint8_t[::1] record, uint32_t partition=0):
        """Appends one record in wire form, after a check. For tests, parked events and tools."""
        self.check_partition(partition)
        raise_for(wan_record_check(&record[0], record.shape[0]), "append_record")
        cdef const wan_record *from_ = <const wan_record *>&record[0]
        cdef wan_status status
        with nogil:
            status = queue_append_copy(self.gateway, partition, from_, False, 0)
        raise_for(status, f"queue {self.name!r}")

    def records(self, uint64_t limit=100):
        """Up to `limit` queued events as (partition, sequence, record bytes), oldest first within each partition."""
        cdef uint64_t sequence, at
        cdef uint32_t p
        cdef wan_partition *partition
        cdef wan_record *record
        cdef wan_buffer copies, positions
        cdef wan_position position
        cdef bint whole = True, readable = True
        memset(&copies, 0, sizeof(copies))
        memset(&positions, 0, sizeof(positions))
        position.count = 1
        with nogil:
            wan_lock_take(&self.gateway.lock)
            for p in range(self.gateway.queue.partition_count):
                partition = &self.gateway.queue.partitions[p]
                sequence = partition.removed
                while whole and readable and copies.count < limit:
                    sequence = wan_queue_next_live(partition, sequence + 1, partition.appended)
                    if sequence == 0:
                        break
                    record = wan_queue_at(&self.gateway.queue, partition, sequence)
                    readable = queue_can_read(self.gateway, p, sequence)
                    if not readable:
                        break
                    position.partition, position.first = p, sequence
                    whole = (wan_buffer_add(&positions, &position, sizeof(position)) == WAN_OK
                             and wan_buffer_add(&copies, record, wan_record_length(record)) == WAN_OK)
            wan_lock_release(&self.gateway.lock)
        try:
            if not readable:
                raise_for(WAN_IO, f"queue {self.name!r}")
            if not whole:
                raise MemoryError(f"queue {self.name!r}: no memory for a copy of its records")
            found, at = [], 0
            for n in range(copies.count):
                position = (<const wan_position *>positions.bytes)[n]
                record = <wan_record *>(copies.bytes + at)
                found.append((position.partition, position.first,
                              PyBytes_FromStringAndSize(<char *>record, wan_record_length(record))))
                at += wan_record_length(record)
            return found
        finally:
            wan_buffer_close(&copies)
            wan_buffer_close(&positions)

    cdef int check_partition(self, uint32_t partition) except -1:
        if partition >= self.gateway.queue.partition_count:
            from pywan.errors import ConfigurationError
            raise ConfigurationError(f"queue {self.name!r} has partitions 0 to "
                                     f"{self.gateway.queue.partition_count - 1}, not {partition}")
        return check_whole(self)

    @property
    def broken(self):
        """Where a check of our own failed on this queue. None: no check failed. Its events stay where they are. Only
        calls that look at the queue or put it away still work: its sender stops, and its log is written to the end."""
        return detail_text() if health_of(self.gateway) != WAN_OK else None

    def peek(self, uint32_t partition, uint32_t count):
        """Takes up to `count` records of a partition as bytes, as a dispatcher would."""
        return self.take(partition, count, False)

    def peek_with_positions(self, uint32_t partition, uint32_t count):
        """The same, as (sequence, bytes) of each record."""
        return self.take(partition, count, True)

    cdef list take(self, uint32_t partition, uint32_t count, bint with_positions):
        self.check_partition(partition)
        cdef wan_record **records = <wan_record **>malloc(count * sizeof(wan_record *))
        cdef uint64_t *sequences = <uint64_t *>malloc(count * sizeof(uint64_t)) if with_positions else NULL
        cdef uint64_t size, before
        cdef uint32_t taken, n
        cdef wan_store_span span
        cdef wan_status status = WAN_OK
        if records == NULL or (with_positions and sequences == NULL):
            free(records)
            free(sequences)
            raise MemoryError()
        try:
            with nogil:
                wan_lock_take(&self.gateway.lock)
                wan_queue_let_go(&self.gateway.queue, queue_dispatcher(self.gateway, partition),
                                 self.gateway.dispatchers)
                before = self.gateway.queue.partitions[partition].peeked
                taken = wan_queue_peek(&self.gateway.queue, partition, count, NO_LIMIT, 1, records, sequences, &size)
                if taken:
                    span = wan_queue_span(&self.gateway.queue, partition, before + 1,
                                          self.gateway.queue.partitions[partition].peeked)
                    status = wan_store_check(self.gateway.queue.store, &span)
                if status != WAN_OK:
                    wan_queue_unpeek(&self.gateway.queue, partition, before)
                queue_refresh_ready(self.gateway, queue_dispatcher(self.gateway, partition))
                wan_lock_release(&self.gateway.lock)
            raise_for(status, f"queue {self.name!r}")
            if not with_positions:
                return [PyBytes_FromStringAndSize(<char *>records[n], wan_record_length(records[n]))
                        for n in range(taken)]
            return [(sequences[n], PyBytes_FromStringAndSize(<char *>records[n], wan_record_length(records[n])))
                    for n in range(taken)]
        finally:
            free(records)
            free(sequences)

    def remove(self, uint32_t partition, uint64_t through):
        """Drops every event up to and including `through`: the receiver has them. Returns how many."""
        self.check_partition(partition)
        cdef uint64_t removed
        with nogil:
            wan_lock_take(&self.gateway.lock)
            removed = wan_queue_remove(&self.gateway.queue, partition, through)
            queue_apply_removal(self.gateway, partition)
            self.gateway.counts.distributed += removed
            wan_lock_release(&self.gateway.lock)
        check_whole(self)
        return removed

    def make_hole(self, uint32_t partition, uint64_t sequence):
        """Makes one event a hole, as a filter would. It is counted as filtered at transmit."""
        cdef uint64_t before
        self.check_partition(partition)
        with nogil:
            wan_lock_take(&self.gateway.lock)
            if (sequence > self.gateway.queue.partitions[partition].removed
                    and sequence <= self.gateway.queue.partitions[partition].appended):
                before = self.gateway.queue.events
                wan_queue_make_hole(&self.gateway.queue, partition, sequence, WAN_HOLE_FILTERED)
                self.gateway.counts.filtered_transmit += before - self.gateway.queue.events
                queue_refresh_ready(self.gateway, queue_dispatcher(self.gateway, partition))
            wan_lock_release(&self.gateway.lock)
        check_whole(self)

    def rewind(self, uint32_t partition):
        """Makes the dispatcher send again what was peeked and not removed, as possible duplicates."""
        self.check_partition(partition)
        with nogil:
            wan_lock_take(&self.gateway.lock)
            wan_queue_rewind(&self.gateway.queue, partition)
            queue_apply_removal(self.gateway, partition)
            queue_refresh_ready(self.gateway, queue_dispatcher(self.gateway, partition))
            wan_lock_release(&self.gateway.lock)

    # What other members of the site have sent.

    def park_in(self, EventQueue parked not None):
        """From now on `parked` takes replicas of the events that another member has parked and tells of."""
        with nogil:
            wan_lock_take(&self.gateway.lock)
            self.gateway.parked = parked.gateway
            self.gateway.queue.park, self.gateway.queue.parker = removal_park, self.gateway
            wan_lock_release(&self.gateway.lock)
        self.parked = parked

    @property
    def parked_missed(self):
        """How many events that another member has parked were not put into `parked`: others have them."""
        return wan_read(&self.gateway.parked_missed)

    def keep_acknowledged(self, bint keep):
        """With `keep`, events that another member tells as settled stay until `take_acknowledged` takes them. Without,
        they go at once. Wakes `take_acknowledged`. OSError: no file descriptor is left."""
        cdef uint32_t p
        cdef int file = -1
        if keep and self.gateway.acknowledged_file < 0:
            file = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
            if file < 0:
                raise OSError(f"queue {self.name!r}: no file descriptor is left (ulimit -n)")
        with nogil:
            wan_lock_take(&self.gateway.lock)
            if file >= 0:
                self.gateway.acknowledged_file = file
            self.gateway.keeps_acknowledged = keep
            for p in range(self.gateway.queue.own_count, self.gateway.queue.partition_count):
                queue_apply_removal(self.gateway, p)
            wan_lock_release(&self.gateway.lock)
        if self.gateway.acknowledged_file >= 0:
            eventfd_write(self.gateway.acknowledged_file, 1)

    def take_acknowledged(self, uint32_t count):
        """Waits until another member tells events as settled that this one keeps (`keep_acknowledged`), or until
        `keep_acknowledged` is called. Drops up to `count` of them, and returns them as the callbacks get them:
        (record, (partition, sequence, whether it may have been applied before)). One thread at a time calls this."""
        cdef wan_buffer taken
        cdef wan_status status
        cdef const taken_event *head
        cdef uint64_t at = 0
        memset(&taken, 0, sizeof(taken))
        if self.gateway.acknowledged_file < 0:
            return []
        try:
            with nogil:
                acknowledged_wait(self.gateway)
                status = acknowledged_take(self.gateway, count, &taken)
            found = []
            while at < taken.used:
                head = <const taken_event *>(taken.bytes + at)
                found.append((PyBytes_FromStringAndSize(<const char *>(head + 1), head.length),
                              (head.partition, head.sequence, bool(head.possible_duplicate))))
                at += sizeof(taken_event) + head.length
        finally:
            wan_buffer_close(&taken)
        if status != WAN_OK:
            from pywan.errors import DiskError
            report_unraisable("after_acknowledgement", DiskError(f"not told of an event of queue {self.name!r}: "
                                                                 f"{detail_text()}"))
        return found

    def lowest_copied(self, bint until_empty=False):
        """{site of origin: the lowest stamp} of the events that were put here as replicas (recovered, parked, replayed)
        since the last call. With `until_empty`: since the queue was last empty. Stamps that callers gave are left
        out."""
        cdef uint64_t found[256]
        cdef uint32_t n
        with nogil:
            wan_lock_take(&self.gateway.lock)
            if until_empty and self.gateway.queue.events == 0:
                memset(self.gateway.lowest_copied, 0xff, sizeof(found))
            memcpy(found, self.gateway.lowest_copied, sizeof(found))
            if not until_empty:
                memset(self.gateway.lowest_copied, 0xff, sizeof(found))
            wan_lock_release(&self.gateway.lock)
        return {n: found[n] for n in range(256) if found[n] != NO_STAMP}

    def replay_into(self, EventQueue other not None, bint force=False, int stays=-1):
        """Moves every event to the end of another queue. Parked events go back to the queue that they left.

        One caller at a time may do this, and none may `clear` meanwhile. With `force` a receiver applies the events
        also where the key may have been destroyed later. The events of partition `stays` stay. Returns how many
        events moved. If the other queue has no room, it raises after moving what it could. DiskError: the other queue's
        disk did not take them in time; the last of them are in both queues."""
        cdef uint64_t moved = 0, before
        cdef wan_status status = WAN_OK
        cdef uint32_t p, count = self.gateway.queue.partition_count
        cdef durable_log *taker = other.gateway.durable
        check_whole(self)
        check_whole(other)
        cdef uint64_t *ends = <uint64_t *>calloc(2 * count, sizeof(uint64_t))
        if ends == NULL:
            raise MemoryError()
        for p in range(count):
            # An event that is parked again meanwhile waits for the next replay.
            ends[p] = 0 if <int>p == stays else self.gateway.queue.partitions[p].appended
        try:
            if taker != NULL:
                wan_flag_set(&taker.replaying, 1)
                with nogil:
                    before = committer_failing_since(&taker.committer, WAN_OK)
                if before:
                    other.wait_durable()        # The reserve may help to write it.
            while status == WAN_OK:
                before = moved
                status = self.replay_some(other, ends, ends + count, &moved, WAN_FLAG_FORCED if force else 0)
                if moved == before:
                    break
        finally:
            if taker != NULL:
                wan_flag_set(&taker.replaying, 0)
            free(ends)
        raise_for(status, f"replay into queue {other.name!r} (after {moved} events)")
        check_whole(self)
        return moved

    cdef wan_status replay_some(self, EventQueue other, const uint64_t *ends, uint64_t *through, uint64_t *moved,
                                uint8_t flags) except *:
        """Moves as many events as certainly find room, in a disk store that both queues share, before they leave here.
        `through` is scratch memory."""
        cdef uint64_t most = (wan_log_record_bytes(&other.gateway.durable.committer.log) // 2
                              if other.gateway.durable != NULL else NO_LIMIT)
        cdef uint64_t size, sequence, hash, copied = 0
        cdef wan_record *record
        cdef wan_store_span span
        cdef wan_status status = WAN_OK
        cdef uint32_t p
        cdef bint gone = True
        with nogil:
            for p in range(self.gateway.queue.partition_count):
                through[p] = 0
                while status == WAN_OK and self.gateway.queue.partitions[p].peeked < ends[p]:
                    wan_lock_take(&self.gateway.lock)
                    if not wan_queue_peek(&self.gateway.queue, p, 1, most - min(copied, most), copied == 0, &record,
                                          &sequence, &size):
                        wan_lock_release(&self.gateway.lock)
                        break
                    span = wan_queue_span(&self.gateway.queue, p, self.gateway.queue.partitions[p].peeked,
                                          self.gateway.queue.partitions[p].peeked)
                    wan_lock_release(&self.gateway.lock)
                    status = wan_store_check(self.gateway.queue.store, &span)
                    if status != WAN_OK:
                        break
                    hash = wan_key_hash(wan_record_key(record), record.key_length, record.key_form)
                    status = queue_append_copy(other.gateway, queue_partition_of(other.gateway, record, hash), record,
                                               True, flags)
                    if status == WAN_OK:
                        through[p] = sequence
                        copied += wan_record_length(record)
                        moved[0] += 1
        try:
            # The events leave this queue only when they are on the disk in the other one: either log may be written
            # first.
            if copied and other.gateway.durable != NULL:
                gone = False
                other.wait_durable()
                gone = True
        finally:
            with nogil:
                for p in range(self.gateway.queue.partition_count):
                    wan_lock_take(&self.gateway.lock)
                    if gone and through[p]:
                        wan_queue_remove(&self.gateway.queue, p, through[p])
                    wan_queue_rewind(&self.gateway.queue, p)
                    wan_lock_release(&self.gateway.lock)
        return status
