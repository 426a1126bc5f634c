# Owns a region's compiled state: whether the region is open, the queues of its events, and the waits of a change.
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from cpython.exc cimport PyErr_CheckSignals
from pywan._core.c_base cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_store cimport *
from pywan._core.region.call_slots cimport CallSlots
from pywan._core.base.clock cimport Clock
from pywan._core.base.gil cimport gil_back, gil_may_go
from pywan._core.base.limit cimport MemoryLimit
from pywan._core.log.committer cimport (
    FOR_DISK, FOR_EVENTS, SYNCHRONOUS_WRITTEN, WAIT_FOR_LOG_US, committer_begin_wait, committer_failing_since,
    committer_given, committer_wait, disk_wait)
from pywan._core.log.disk_log cimport LogBudget
from pywan._core.queue.event_queue cimport EventQueue
from pywan._core.values.names cimport region_number
from pywan._core.region.put cimport region_change, region_change_if, region_is_full, region_relieve
from pywan._core.queue.queue cimport SLOW_DISK_US, gateway_queue, queue_add_log, queue_remove_log, wake_dispatchers
from pywan._core.region.region_recovery cimport region_log_close
from pywan._core.region.region_state cimport (
    MAX_ATTACHED, PATH_CALLBACKS, PATH_STRAIGHT, attachment, condition, decision, origin, region_log)
from pywan._core.region.region_walk cimport attachment_publish, pass_entry_locks
from pywan._core.base.status cimport detail_text, error_of_child, full_error, log_fails, raise_for
from pywan._core.values.tagged cimport described
from pywan._core.region.changelog cimport Changelog

cdef enum:
    LEARNER_WAIT_US = 1000000   # The longest wait of a change for a learner.
    FULL_SLICE_MS = 20      # The length of one wait for memory. In between, deadlines and Ctrl-C end the wait.
    WAIT_SLICE_MS = 100     # The length of one wait for replicas. In between, Ctrl-C ends the wait.
    MOVED_TOGETHER = 4096   # Queued events moved under one hold of the queue's lock.
    FIRST_WAIT_MS = 10      # The first wait, behind the time in which the thread runs a replication link.


@cython.no_gc_clear      # The collector must not clear what __dealloc__ uses.
cdef class CompiledRegion:
    """A region's table and versions, and how changes get into the attached senders' queues. Python reaches the class
    through `RegionCore` and `RegionFace`."""

    def __cinit__(self, str name, Clock clock not None, uint8_t site, uint32_t member, bint stores, bint forwards,
                  uint32_t buckets):
        self.name = name
        self.born = wan_forks
        self.clock = clock
        self.region.clock = &clock.clock
        self.region.site = site
        self.region.member = member
        self.region.stores = stores
        self.region.forwards = forwards
        self.region.buckets = buckets
        self.region.number = <uint16_t>region_number(name)
        self.attached_queues = self.asking = ()
        cdef uint32_t bucket_count = buckets or WAN_BUCKETS_DEFAULT
        cdef wan_status status
        with nogil:
            status = wan_table_init(&self.region.table, bucket_count)
        raise_for(status, f"region {name!r}")

    def __dealloc__(self):
        if self.region.log != NULL:
            self.remove_log_from(self.attached_queues)
        with nogil:
            wan_table_close(&self.region.table)
            free(self.region.attached)
            if self.region.log != NULL:
                region_log_close(self.region.log)

    cdef int check_process(self) except -1:
        """Raises an error in a process that was forked from the process of the region."""
        if self.born != wan_forks:
            raise error_of_child(f"region {self.name!r}")
        return 0

    cdef int check_open(self) except -1:
        """Raises an error if the region was destroyed or its cache closed."""
        self.check_process()
        if self.region.closed:
            from pywan.errors import RegionNotFoundError
            raise RegionNotFoundError(f"region {self.name!r} was destroyed, or its cache closed; nothing was changed")
        return 0

    cdef int fail(self, wan_status status, str what) except -1:
        """Raises the error for a status. `what`: the name of the call."""
        if status == WAN_CLOSED:
            self.check_open()
        if status == WAN_FULL:
            remedy = "that is put right (a full disk or queue: free disk space, or raise maximum-queue-memory)"
            if wan_detail_status == WAN_LOW_MEMORY:
                remedy = ("there is memory; what needs none is taken now: destroys, clears, values that are not longer"
                          " (`status member` shows what takes it)")
            if log_fails():
                remedy = "the disk takes writes again"
                if wan_detail_status == WAN_FULL:
                    remedy = "there is room; what makes room is taken now: destroys, clears and shorter values"
                elif wan_detail_status != WAN_IO:
                    remedy = "the process has memory for it"
            raise full_error(f"region {self.name!r}: {what} refused: {detail_text()}; nothing was stored or sent -"
                             f" repeat it when {remedy}")
        return raise_for(status, f"region {self.name!r}: {what}")

    # Attachment

    cdef int attach(self, queues, callback_change, asking) except -1:
        """As `RegionCore.attach`."""
        queues = sorted(queues, key=lambda q: (<EventQueue?>q).gateway.lock_order)
        if len(queues) > MAX_ATTACHED:
            from pywan.errors import ConfigurationError
            raise ConfigurationError(f"region {self.name!r}: {len(queues)} senders, at most {MAX_ATTACHED} can be"
                                     " attached")
        cdef attachment *fresh = <attachment *>calloc(1, sizeof(attachment))
        cdef EventQueue queue
        cdef Changelog changelog
        cdef bint by_callbacks = self.seems_by_callbacks if callback_change is ... else callback_change is not None
        if fresh == NULL:
            raise MemoryError(f"region {self.name!r}: no memory to attach senders; nothing was changed")
        fresh.path = PATH_CALLBACKS if by_callbacks else PATH_STRAIGHT
        if callback_change is not ... and callback_change is not None:
            self.change_by_callbacks = callback_change
        for queue in queues:
            fresh.queues[fresh.count], fresh.asks[fresh.count] = queue.gateway, queue in asking
            fresh.count += 1
            if queue.gateway.buckets != NULL:
                queue.gateway.buckets[self.region.number] = <uint16_t>self.region.buckets
            if wan_flag_read(&queue.gateway.running) and queue.reachable and not queue.gateway.stays_here:
                for n in range(fresh.recipient_count):
                    if fresh.recipients[n] == queue.gateway.remote_site:
                        break
                else:
                    fresh.recipients[fresh.recipient_count] = queue.gateway.remote_site
                    fresh.recipient_count += 1
        old_queues = self.attached_queues
        self.choose_durable(queues)
        self.full_timeout_us = SLOW_DISK_US if self.region.log != NULL else 0
        for queue in queues:
            self.full_timeout_us = max(self.full_timeout_us, queue.gateway.full_timeout_us)
            if queue.gateway.durable != NULL:
                # The queue may hold events from before a restart, with stamps ahead of the clock. Later changes would
                # lose against these events, if the clock did not follow.
                wan_clock_see(self.region.clock, wan_read(&queue.gateway.counts.newest_stamp))
                queue.clock, queue.gateway.clock = self.clock, self.region.clock
        try:
            if self.changelog is not None:
                changelog = self.changelog
                if any(queue in changelog.fed and queue not in self.attached_queues for queue in queues):
                    self.end_feeds(True)    # Such a queue has missed changes, and begins again.
                self.feed({*queues, *changelog.fed})
                note_firsts(fresh, &(<Changelog>self.changelog).changelog)
            self.add_log_to([queue for queue in queues if queue not in self.attached_queues])
        except BaseException:
            free(fresh)
            raise
        with nogil:
            attachment_publish(&self.region, fresh)
        if self.region.log != NULL:
            self.remove_log_from([queue for queue in self.attached_queues if queue not in queues])
        self.attached_queues, self.asking, self.seems_by_callbacks = tuple(queues), tuple(asking), by_callbacks
        if self.changelog is not None:
            self.end_feeds(False)
            for queue in queues:
                if queue not in old_queues:
                    with nogil:
                        wan_changelog_has_fed(&changelog.changelog, &queue.gateway.queue)
        del old_queues
        return 0

    cdef bint end_feeds(self, bint now) except -1:
        """As `RegionCore.end_feeds`."""
        cdef EventQueue queue
        cdef Changelog changelog = self.changelog
        if changelog is None:
            return True
        for queue in changelog.fed if not now else ():
            if queue not in self.attached_queues and self.has_unstable(queue):
                return False
        if set(changelog.fed) != set(self.attached_queues):
            self.feed(self.attached_queues)
        return True

    cdef bint has_unstable(self, EventQueue queue) except -1:
        """Whether a queue has events of the region that are not replicated yet, in buckets without a gap."""
        cdef Changelog changelog = self.changelog
        cdef wan_feeds *fed = changelog.changelog.feeds
        cdef gateway_queue *gateway = queue.gateway
        cdef wan_changelog_bucket *bucket
        cdef wan_partition *partition
        cdef uint32_t number, n
        cdef bint found = False
        for n in range(fed.count if fed != NULL else 0):
            if fed.items[n].owner != gateway:
                continue
            with nogil:
                wan_lock_take(&gateway.lock)
                for number in range(changelog.changelog.bucket_count):
                    bucket = &changelog.changelog.buckets[number]
                    partition = &gateway.queue.partitions[fed.items[n].first + number]
                    if (partition.unstable_events and not partition.lacks and bucket.role != WAN_REPLICA_LEARNER
                            and wan_read(&bucket.high_watermark) < partition.appended):
                        found = True
                        break
                wan_lock_release(&gateway.lock)
        return found

    cdef int add_log_to(self, queues) except -1:
        """The events of the region leave these queues only when the region's log, if any, has the events."""
        cdef EventQueue queue
        cdef wan_status status
        for queue in queues if self.region.log != NULL else ():
            with nogil:
                status = queue_add_log(queue.gateway, &self.region.log.committer)
            raise_for(status, f"region {self.name!r}: the log for queue {queue.name!r}")
        return 0

    cdef int remove_log_from(self, queues) except -1:
        """The region does not feed these queues any more."""
        cdef EventQueue queue
        for queue in queues:
            with nogil:
                queue_remove_log(queue.gateway, &self.region.log.committer)
        return 0

    cdef int choose_durable(self, queues) except -1:
        """Notes whether a change has to wait for a disk."""
        waits = self.region.log != NULL and self.region.log.committer.synchronous != 0
        wan_flag_set(&self.region.durable, waits or any(queue.synchronous for queue in queues))
        wan_flag_set(&self.region.logged, self.region.log != NULL or any(queue.persistent for queue in queues))
        return 0

    cdef int keep_log(self, region_log *log, environment, LogBudget budget, log_wait) except -1:
        """The region is persistent from now on."""
        self.region.log, self.environment, self.budget, self.log_wait = log, environment, budget, log_wait
        self.full_timeout_us = SLOW_DISK_US
        self.add_log_to(self.attached_queues)
        return self.choose_durable(self.attached_queues)

    cdef int close(self) except -1:
        """As `RegionCore.close`."""
        cdef attachment *fresh = <attachment *>calloc(1, sizeof(attachment))
        if fresh == NULL:
            raise MemoryError(f"region {self.name!r}: no memory to close it; nothing was changed")
        wan_flag_set(&self.region.closed, 1)
        with nogil:
            attachment_publish(&self.region, fresh)
        return 0

    cdef int limit_memory(self, MemoryLimit memory) except -1:
        """As `RegionCore.limit_memory`."""
        self.memory = memory
        wan_table_set_limit(&self.region.table, &memory.limit)
        return 0

    # A region that several members hold

    cdef int share(self, Changelog changelog, route, bint reads_replicas, bint content) except -1:
        """As `RegionCore.share`."""
        self.check_open()
        from pywan.errors import IllegalStateError
        if self.region.log != NULL:
            from pywan.limitations import Limitation
            raise IllegalStateError(f"region {self.name!r} is persistent: {Limitation.ONE_MEMBER.refusal()}")
        if changelog.changelog.shard_count != self.region.table.shard_count:
            raise IllegalStateError(f"region {self.name!r} has {self.region.table.shard_count} shards, and the change"
                                    f" log {changelog.changelog.shard_count}")
        self.feed_from(changelog, self.attached_queues)
        if self.region.attached != NULL:
            note_firsts(self.region.attached, &changelog.changelog)
        self.slots = route.slots if route is not None else CallSlots(self.region.member)
        self.route, self.changelog, self.region.reads_replicas = route, changelog, reads_replicas
        with nogil:
            wan_lock_take(&self.region.table.shards[0].lock)
            self.region.changelog = &changelog.changelog
            wan_lock_release(&self.region.table.shards[0].lock)
            pass_entry_locks(&self.region.table)
            if content:             # The region takes no change until a bucket has a primary.
                move_queued(&changelog.changelog)
        return 0

    cdef int feed(self, queues) except -1:
        """The region's buckets feed these queues from now on."""
        return self.feed_from(self.changelog, queues)

    cdef int feed_from(self, Changelog changelog, queues) except -1:
        """The buckets of a change log feed these queues of the region from now on. Each queue has a run with a
        partition for each bucket. IllegalStateError: a queue is persistent."""
        cdef EventQueue queue
        cdef wan_feeds *fed = changelog.changelog.feeds
        cdef wan_feed *feeds = <wan_feed *>calloc(len(queues) + 1, sizeof(wan_feed))
        cdef uint64_t *timelines = <uint64_t *>calloc(changelog.changelog.bucket_count, sizeof(uint64_t))
        cdef uint32_t count = 0, n
        cdef wan_status status
        if feeds == NULL or timelines == NULL:
            free(feeds)
            free(timelines)
            raise MemoryError(f"region {self.name!r}: no memory for its queues")
        for n in range(changelog.changelog.bucket_count):
            timelines[n] = wan_read(&changelog.changelog.buckets[n].timeline)
        try:
            for queue in queues:
                feeds[count].queue, feeds[count].lock = &queue.gateway.queue, &queue.gateway.lock
                feeds[count].owner = queue.gateway
                for n in range(fed.count if fed != NULL else 0):
                    if fed.items[n].owner == queue.gateway:
                        feeds[count].first = fed.items[n].first
                        break
                else:
                    feeds[count].first = queue.make_run(self.region.number, changelog.changelog.bucket_count, timelines)
                count += 1
            with nogil:
                status = wan_changelog_set_feeds(&changelog.changelog, feeds, count)
            raise_for(status, f"the queues of region {self.name!r}")
        finally:
            free(feeds)
            free(timelines)
        for queue in changelog.fed:          # The rest of the queues that are fed no more may leave.
            if queue not in queues:
                with nogil:
                    wan_lock_take(&queue.gateway.lock)
                    wake_dispatchers(queue.gateway)
                    wan_lock_release(&queue.gateway.lock)
        changelog.fed = tuple(queues)        # Alive as long as the change log names the queues.
        return 0

    cdef bint is_led_by_another(self, uint64_t hash) noexcept:
        """Whether another member is primary of the bucket with this hash, as far as this member knows."""
        cdef wan_changelog *changelog = self.region.changelog
        return (changelog != NULL and
                wan_changelog_role(changelog, wan_table_bucket(&self.region.table, hash).number) != WAN_REPLICA_PRIMARY)

    cdef uint64_t epoch_of(self, uint32_t bucket) noexcept:
        """The epoch that this member has for a bucket, above 0. An attempt that begins now has this epoch or a later
        one."""
        return max(<uint64_t>1,
                   wan_read(&self.region.changelog.buckets[bucket].epoch)) if self.region.changelog != NULL else 1

    cdef uint64_t deadline(self, uint64_t began) except? 0:
        """The deadline of a call that began at `began`."""
        return wan_deadline_of(began, <uint64_t>self.route.limit_us)

    cdef int wait_for_memory(self, what, uint64_t until, bint goes_to_another) except -1:
        """Waits while the member's budget, or the region's share of the budget, is full, before a call changes
        something at this member. QueueFullError: the budget is still full at `until`, and the call is not made.
        `goes_to_another`: another member is primary, and the budget of the primary decides."""
        cdef wan_budget *budget = self.region.changelog.budget
        cdef uint64_t since = wan_monotonic_us()
        cdef uint32_t never = 0
        if goes_to_another or not region_is_full(&self.region):
            return 0
        if budget != NULL:
            wan_budget_note_wait(budget)
        while region_is_full(&self.region):
            if wan_monotonic_us() >= until:
                from pywan.errors import QueueFullError
                raise QueueFullError(
                    f"region {self.name!r}: {what} was not made within {(max(until, since) - since) / 1e6:.3g} s:"
                    f" {self.why_full()}; nothing was changed")
            PyErr_CheckSignals()        # Ctrl-C ends the wait: nothing was changed.
            with nogil:
                region_relieve(&self.region)
                if wan_budget_is_full(budget):
                    wan_budget_wait(budget, FULL_SLICE_MS)
                elif region_is_full(&self.region):
                    wan_wait_change(&never, 0, 1)
        return 0

    cdef str why_full(self):
        """Says in words why callers of the region wait, and how to help."""
        cdef wan_notifications *notifications = wan_changelog_notifications(self.region.changelog)
        if wan_budget_is_full(self.region.changelog.budget) or notifications == NULL:
            return "the member's memory for what waits is full" if self.route is None else self.route.why_full()
        megabytes = wan_read(&notifications.bytes) / 1e6
        return (f"listeners of this member are still to be told {megabytes:,.1f} MB of changes of"
                " the region. Repeat it when they have caught up (`describe region` shows it), make fewer changes at"
                " the same time, or give what they do to an asynchronous event queue")

    cdef int wait_for_learner(self, uint32_t bucket, uint64_t until) except -1:
        """Waits, before a call changes a bucket of this member, until the replication link to a learner has carried
        most of the earlier changes. A call that ends at `until` waits for half of its time at most."""
        cdef uint64_t now = wan_monotonic_us(), left = until - now if until > now else 0
        cdef uint32_t never = 0
        until = now + min(<uint64_t>LEARNER_WAIT_US, left // 2)
        while now < until and changelog_holds_back(self.region.changelog, bucket, now):
            PyErr_CheckSignals()
            with nogil:
                wan_wait_change(&never, 0, 1)
            now = wan_monotonic_us()
        return 0

    cdef wan_status wait_stable(self, uint32_t bucket, uint64_t local_fence, uint64_t sequence,
                                uint64_t began) except *:
        """Waits until a change is replicated, and all earlier changes with it. WAN_OK: the change is replicated.
        WAN_NOT_PRIMARY: this member cannot know whether the change is or will be replicated. WAN_EMPTY: the change is
        not replicated after the time of a call that began at `began`."""
        cdef uint64_t until, now
        cdef uint32_t first_ms = 0
        cdef wan_changelog *changelog = self.region.changelog
        cdef wan_repl_link_wait wait
        cdef wan_status status = changelog_look(changelog, bucket, local_fence, sequence)
        if status != WAN_EMPTY:
            return status
        until, now = self.deadline(began), wan_monotonic_us()
        if now < until:
            first_ms = min(<uint32_t>FIRST_WAIT_MS, <uint32_t>((until - now) // 1000 + 1))
        wait.changelog, wait.bucket, wait.local_fence = changelog, bucket, local_fence
        wait.sequence, wait.other_file = sequence, -1
        wait.until_us = min(until, now + WAIT_SLICE_MS * 1000)
        with nogil:
            wan_changelog_run_repl_link(&wait)
            status = wan_changelog_wait(changelog, bucket, local_fence, sequence, first_ms)
        now = wan_monotonic_us()
        while status == WAN_EMPTY and now < until:
            PyErr_CheckSignals()
            with nogil:
                status = wan_changelog_wait(changelog, bucket, local_fence, sequence,
                                            min(<uint32_t>WAIT_SLICE_MS, <uint32_t>((until - now) // 1000 + 1)))
            now = wan_monotonic_us()
        return status

    cdef int wait_for_role(self, key, uint64_t began, bint may_be_made) except -1:
        """Waits a moment, because the cluster metadata name this member as primary, but its change log is not primary
        yet or may not answer. Raises an error when the time of a call that began at `began` is over."""
        cdef uint32_t never = 0
        from pywan.errors import ConnectivityError
        if wan_monotonic_us() >= self.deadline(began):
            became = "an earlier attempt may have made the change" if may_be_made else "nothing was changed"
            error = ConnectivityError(f"region {self.name!r}: key {described(key)}: this member is primary of its"
                                      f" bucket, and may not answer for {(wan_monotonic_us() - began) / 1e6:.3g} s"
                                      " now: it does not reach the replicas, or has not heard the coordinator for the"
                                      f" unclean-recovery-timeout; {became}. `show coordinator` says who is silent")
            error.in_doubt = may_be_made
            raise error
        PyErr_CheckSignals()
        with nogil:
            wan_wait_change(&never, 0, 1)
        return 0

    cdef wan_status wait_readable(self, uint32_t bucket, uint64_t local_fence, uint64_t began) except *:
        """Waits until this member, as primary, may answer a read. WAN_NOT_PRIMARY: the member is not primary any more.
        WAN_EMPTY: the member still may not answer after the time of a call that began at `began`."""
        cdef uint64_t now = wan_monotonic_us(), until = 0
        cdef uint32_t never = 0
        cdef wan_changelog *changelog = self.region.changelog
        while not changelog_may_read(changelog, bucket, now):
            if wan_read(&changelog.buckets[bucket].local_fence) != local_fence:
                return WAN_NOT_PRIMARY
            if not until:
                until = self.deadline(began)
            if now >= until:
                return WAN_EMPTY
            PyErr_CheckSignals()
            with nogil:
                wan_wait_change(&never, 0, 1)
            now = wan_monotonic_us()
        return WAN_OK

    # Waits

    cdef wan_status wait_for_room(self, wan_change *change, const origin *from_, decision *decided,
                                  condition *wanted, wan_outcome *outcome) except *:
        """Repeats the change as long as a full queue may get room: space on the queue's disk may be freed, or its
        receiver may become reachable."""
        cdef uint64_t began = wan_monotonic_us()
        cdef uint32_t never = 0
        cdef wan_status status = WAN_FULL
        while status == WAN_FULL and self.may_wait(began):
            PyErr_CheckSignals()        # Ctrl-C ends the wait: nothing was changed.
            with nogil:
                wan_wait_change(&never, 0, 5)
                if change.local and change.stamp > wan_clock_last(self.region.clock):
                    # The clock has been set back meanwhile.
                    change.stamp = wan_clock_take(self.region.clock, wan_clock_now_ms(self.region.clock), 1)
                if wanted != NULL:
                    status = region_change_if(&self.region, change, from_, decided, wanted, outcome)
                else:
                    status = region_change(&self.region, change, from_, decided, outcome)
        return status

    cdef bint may_wait(self, uint64_t began_us) except *:
        """Whether a change that found no room at `began_us` may still wait for room. The change waits as long as the
        most patient queue allows, unless a queue or the region's own log gives up first. The log waits on for room,
        because logs of the same store may be shortened. If the disk fails for a different reason, the log waits no
        longer than the queues do, and without queues not at all. No change waits for memory of the system: the wait may
        never end."""
        cdef EventQueue queue
        cdef uint64_t now = wan_monotonic_us(), waited = now - began_us, patience = 0, since = 0
        if waited >= self.full_timeout_us or wan_detail_status == WAN_LOW_MEMORY:
            return False
        for queue in self.attached_queues:
            if queue.gives_up(waited):
                return False
            patience = max(patience, queue.gateway.block_timeout_us)
        if self.region.log != NULL and waited >= patience:
            with nogil:
                since = committer_failing_since(&self.region.log.committer, WAN_FULL)
        return since == 0 or now < since + patience

    cdef int wait_written(self, bint is_queued, uint64_t first=0, uint64_t last=0) except -1:
        """Returns when all changes and events so far are as durable as the logs' levels say. The call works for a
        region that was closed since, too. `is_queued`: whether a queue took an event. If no queue did, the call does
        not wait for the queues: a queue that drops new events may have a full disk. `first`, `last`: the numbers of the
        caller's own records in the region's log. If more records wait for room in a full store, the call waits for its
        own records only. 0: up to the newest record."""
        global wan_bulk_waits
        cdef EventQueue queue
        self.check_process()
        if wan_bulk_region == &self.region:      # A bulk call runs in this thread, and waits at its end.
            wan_bulk_waits |= WAN_BULK_CHANGED | (WAN_BULK_QUEUED if is_queued else 0)
            return 0
        for queue in self.attached_queues if is_queued else ():
            if queue.gateway.durable != NULL and queue.gateway.durable.committer.synchronous:
                queue.wait_written()
        if self.region.log != NULL and self.region.log.committer.synchronous:
            self.wait_log(FOR_EVENTS, first, last)
        return 0

    cdef uint64_t logged_before(self) noexcept:
        """The number of the newest record in the region's log. 0: no log, or no record."""
        cdef uint64_t given = 0
        if self.region.log != NULL:
            with nogil:
                given = committer_given(&self.region.log.committer)
        return given

    cdef int wait_durable(self) except -1:
        """As `wait_written`. For a log that is synced after the write, the call also waits for the sync."""
        cdef EventQueue queue
        self.check_open()
        self.wait_written(True)
        for queue in self.attached_queues:
            if queue.gateway.durable != NULL and queue.gateway.durable.committer.synchronous == SYNCHRONOUS_WRITTEN:
                queue.wait_durable()
        if self.region.log != NULL and self.region.log.committer.synchronous == SYNCHRONOUS_WRITTEN:
            self.wait_log(FOR_DISK, 0, 0)
        return 0

    cdef int wait_log(self, int what, uint64_t first, uint64_t last) except -1:
        """Waits for the region's log up to record number `last`. `what`: FOR_EVENTS or FOR_DISK. `first`, `last`: as
        for `wait_written`."""
        cdef disk_wait wait
        if self.log_wait is not None:
            self.log_wait()
            return 0
        with nogil:
            wait = committer_begin_wait(&self.region.log.committer, what, WAIT_FOR_LOG_US)
        wait.first, wait.last = first or wait.first, last or wait.last
        wait.wanted = min(wait.wanted, wait.last)
        return committer_wait(&self.region.log.committer, &wait, f"region {self.name!r}",
                              "the change is in memory and will be written when the disk takes it")


# Calls into a change log that release the GIL, for a change or read of one key.

cdef wan_status changelog_look(wan_changelog *changelog, uint32_t bucket, uint64_t local_fence,
                               uint64_t sequence) noexcept nogil:
    """As `wan_changelog_wait`, without a wait."""
    cdef wan_status status
    gil_may_go()
    status = wan_changelog_wait(changelog, bucket, local_fence, sequence, 0)
    gil_back()
    return status


cdef bint changelog_may_read(wan_changelog *changelog, uint32_t bucket, uint64_t now_us) noexcept nogil:
    cdef bint may
    gil_may_go()
    may = wan_changelog_may_read(changelog, bucket, now_us)
    gil_back()
    return may


cdef bint changelog_holds_back(wan_changelog *changelog, uint32_t bucket, uint64_t now_us) noexcept nogil:
    cdef bint holds
    gil_may_go()
    holds = wan_changelog_holds_back(changelog, bucket, now_us)
    gil_back()
    return holds


cdef void move_queued(wan_changelog *changelog) noexcept nogil:
    """Moves the region's queued events into the streams of its buckets, and lets the buckets begin behind these events.
    If memory runs out, the rest stays in place, and leaves from this member alone."""
    cdef const wan_feeds *feeds = wan_changelog_feeds(changelog)
    cdef wan_queue *queue
    cdef wan_stream_run run
    cdef wan_queue_place place
    cdef wan_status status
    cdef uint64_t newest
    cdef uint32_t n, bucket
    for n in range(feeds.count if feeds != NULL else 0):
        queue, status = feeds.items[n].queue, WAN_EMPTY
        run.first, run.buckets = feeds.items[n].first, changelog.bucket_count
        run.region = queue.partitions[run.first].region
        memset(&place, 0, sizeof(place))
        while status == WAN_EMPTY:
            wan_lock_take(feeds.items[n].lock)
            # The tombstone watermarks that the sender announces must stay below these events in their new places.
            status = wan_queue_move_to_run(queue, &run, &place, MOVED_TOGETHER,
                                           (<gateway_queue *>feeds.items[n].owner).lowest_copied)
            wan_lock_release(feeds.items[n].lock)
        wan_lock_take(feeds.items[n].lock)
        wake_dispatchers(<gateway_queue *>feeds.items[n].owner)
        wan_lock_release(feeds.items[n].lock)
    for bucket in range(changelog.bucket_count if feeds != NULL else 0):
        newest = 0
        for n in range(feeds.count):
            wan_lock_take(feeds.items[n].lock)
            newest = max(newest, feeds.items[n].queue.partitions[feeds.items[n].first + bucket].appended)
            wan_lock_release(feeds.items[n].lock)
        wan_changelog_begin_at(changelog, bucket, newest)


cdef void note_firsts(attachment *attached, const wan_changelog *changelog) noexcept:
    """Notes the first partition of the region's run in each attached queue. No change reads the note yet."""
    cdef const wan_feeds *feeds = wan_changelog_feeds(changelog)
    cdef uint32_t n, k
    for n in range(attached.count):
        for k in range(feeds.count):
            if feeds.items[k].owner == attached.queues[n]:
                attached.firsts[n] = feeds.items[k].first


cdef class OneWait:
    """A context for many changes. The changes of this thread in the region share a single wait, at the end of the
    context. The wait happens too if the call ends with an error: the error then says that the stored changes may not be
    on the disk."""

    def __cinit__(self, CompiledRegion state not None):
        self.state = state

    def __enter__(self):
        global wan_bulk_region, wan_bulk_waits
        self.outer, self.outer_waits = wan_bulk_region, wan_bulk_waits
        wan_bulk_region, wan_bulk_waits = &self.state.region, 0
        self.logged_before = self.state.logged_before()
        return self

    def __exit__(self, kind, error, trace):
        global wan_bulk_region, wan_bulk_waits
        cdef int waits = wan_bulk_waits
        wan_bulk_region, wan_bulk_waits = self.outer, self.outer_waits
        from pywan.errors import DiskError, PywanError
        if not waits or (error is not None and not isinstance(error, Exception)):   # Ctrl-C does not wait.
            return False
        try:
            self.state.wait_written(waits & WAN_BULK_QUEUED != 0, self.logged_before + 1)
        except DiskError as late:
            if error is None:
                raise
            if isinstance(error, PywanError):
                error.args = (f"{error}; of what was stored: {late}", *error.args[1:])
            else:
                error.add_note(f"of what was stored: {late}")
        return False


cdef class OneDeadline:
    """A context for a call that makes several calls in this thread. All of the calls end by its deadline."""

    def __cinit__(self, CompiledRegion state not None):
        self.state = state

    def __enter__(self):
        self.outer = enter_call(self.state)
        return self

    def __exit__(self, kind, error, trace):
        leave_call(self.outer)
        return False


cdef uint64_t enter_call(CompiledRegion self) except? 0:
    """This thread begins a call of the region, and further calls may be part of the call. Returns the argument for
    `leave_call`."""
    global wan_deadline_us
    cdef uint64_t outer = wan_deadline_us
    if self.route is not None:
        wan_deadline_us = self.deadline(wan_monotonic_us())
    return outer


cdef void leave_call(uint64_t outer) noexcept:
    global wan_deadline_us
    wan_deadline_us = outer
