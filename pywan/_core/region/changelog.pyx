# Owns `Changelog`, the change logs of a region that several members hold, and `ReplLinkState`, the state of a
# replication link as the change logs know the link.
cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy, memset
from pywan._core.c_base cimport *
from pywan._core.c_names cimport *
from pywan._core.c_record cimport wan_record, wan_record_length
from pywan._core.c_replication cimport *
from pywan._core.c_store cimport *
from pywan._core.c_system cimport *
from pywan._core.queue.queue cimport gateway_queue, queue_count, removal_news_came, wake_dispatchers
from pywan._core.base.budget cimport MemoryBudget
from pywan._core.base.gil cimport gil_back, gil_may_go, lock_take_with_gil
from pywan._core.base.status cimport raise_for

cdef enum:
    REPLICA_QUEUES = 2             # Added to the state of a queue-only replica.
    MOVED_TOGETHER = 4096       # Number of queued events that are moved under one hold of the queue's lock.

REPLICA_ABSENT, REPLICA_LEARNER, REPLICA_IN_SYNC = WAN_REPLICA_ABSENT, WAN_REPLICA_LEARNER, WAN_REPLICA_IN_SYNC
REPLICA_TAKING_OVER, REPLICA_PRIMARY = WAN_REPLICA_TAKING_OVER, WAN_REPLICA_PRIMARY
REPL_LINKS_MAX = WAN_REPL_LINKS_MAX
REPLICA_LEARNING, REPLICA_WAITED = WAN_FOLLOWER_LEARNING, WAN_FOLLOWER_WAITED
REPLICA_QUEUE_ONLY = REPLICA_QUEUES

cdef tuple OPERATIONS = ("create", "update", "destroy")     # By the outcome of a change.
cdef tuple ROLES = ("absent", "learner", "copy", "taking over", "primary")


cdef void changelog_ready_events(wan_changelog *changelog, uint32_t bucket) noexcept nogil:
    """Makes events of a bucket ready in the queues that the bucket feeds: the events of replicated changes, if this
    member dispatches the events. A learner has no whole queue yet."""
    cdef wan_changelog_bucket *at = &changelog.buckets[bucket]
    cdef wan_feeds *feeds
    cdef uint32_t n
    cdef int wake
    if wan_changelog_feeds(changelog) == NULL:
        return
    wan_lock_take(&at.lock)
    feeds = wan_changelog_feeds(changelog)
    if feeds != NULL and at.role >= WAN_REPLICA_IN_SYNC:
        for n in range(feeds.count):
            wake = queue_count(<gateway_queue *>feeds.items[n].owner, feeds.items[n].first + bucket)
            if wake >= 0:
                eventfd_write(wake, 1)
    wan_lock_release(&at.lock)


cdef void changelog_keep_events(wan_changelog *changelog, uint32_t bucket, uint64_t *kept,
                                uint64_t *lost) noexcept nogil:
    """As `Changelog.keep_events`. The lock of the bucket is held from the moment at which the bucket takes no more
    changes until its streams are empty. So no event is left behind, and no member is told that the events are
    removed."""
    cdef wan_changelog_bucket *at = &changelog.buckets[bucket]
    cdef wan_feeds *feeds
    cdef gateway_queue *gateway
    cdef wan_status status
    cdef uint32_t n, partition
    wan_lock_take(&at.lock)
    feeds = wan_changelog_feeds(changelog)
    wan_changelog_end_replica(at)
    for n in range(feeds.count if feeds != NULL else 0):
        gateway, status = <gateway_queue *>feeds.items[n].owner, WAN_EMPTY
        partition = feeds.items[n].first + bucket
        while status == WAN_EMPTY:
            wan_lock_take(&gateway.lock)
            status = wan_queue_move_from_run(&gateway.queue, partition, MOVED_TOGETHER, gateway.lowest_copied, kept)
            if status != WAN_EMPTY:
                lost[0] += wan_queue_begin_anew(&gateway.queue, partition, at.timeline)
                wake_dispatchers(gateway)
            wan_lock_release(&gateway.lock)
    wan_lock_release(&at.lock)


cdef class ReplLinkState:
    """The state of the replication link to one remote member, shared by the change logs of all regions. `ReplSender`
    extends the class."""

    def __cinit__(self, *arguments, **named):
        self.state.rest_file = -1
        self.state.wake_file = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.state.wake_file >= 0:
            self.state.rest_file = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.state.rest_file < 0:
            raise OSError("no file descriptor is left for a replication link; raise the limit (ulimit -n)")

    def set_read_lease(self, uint64_t until_us):
        """Sets the end of the read lease (`monotonic_us`): until then the remote member adopts no later epoch without
        telling this member."""
        wan_set(&self.state.read_lease_until_us, until_us)

    def answered(self, uint64_t at_us):
        """Notes an answer of the remote member, with its time (`monotonic_us`)."""
        wan_set(&self.state.answered_us, at_us)

    def __dealloc__(self):
        if self.state.wake_file >= 0:
            close_file(self.state.wake_file)
        if self.state.rest_file >= 0:
            close_file(self.state.rest_file)


@cython.no_gc_clear      # `__dealloc__` gives the bytes of the change log back to the budget.
cdef class Changelog:
    """The newest changes of each bucket of one region, from the first change that a replica may lack. `epoch` is one
    integer in all calls. `budget`: the member's, which counts the bytes of the change log."""

    def __cinit__(self, uint32_t buckets, uint32_t shards, uint32_t min_isr=1, MemoryBudget budget=None):
        self.repl_links, self.fed = {}, ()
        if buckets == 0 or shards == 0 or shards % buckets:
            raise ValueError(f"{shards} shards cannot be divided among {buckets} buckets")
        raise_for(wan_changelog_init(&self.changelog, buckets, shards, min_isr), "the change logs of a region")
        if budget is not None:
            self.budget, self.changelog.budget = budget, &budget.budget

    def __dealloc__(self):
        wan_changelog_close(&self.changelog)
        wan_buffer_close(&self.notifications)

    cdef int check(self, bucket) except -1:
        if not 0 <= bucket < self.changelog.bucket_count:
            raise ValueError(f"bucket {bucket}: there are {self.changelog.bucket_count}")
        return 0

    def set_role(self, uint32_t bucket, uint8_t role, uint64_t timeline, uint64_t epoch, uint64_t transfer=0,
                 uint32_t leader=0, bint queue_only=False):
        """Sets the role of this member for a bucket (REPLICA_*). The member adopts the epoch: lower epochs are refused
        from now on. `leader`: the number of the primary's incarnation; only changes from the leader's replication link
        are taken; 0: the leader is unknown. `queue_only`: as a replica or learner the member holds the queued events
        alone."""
        self.check(bucket)
        with nogil:
            wan_changelog_set_leader(&self.changelog, bucket, leader, queue_only)
            wan_changelog_set_role(&self.changelog, bucket, role, timeline, epoch, transfer)
            changelog_ready_events(&self.changelog, bucket)

    def set_holders(self, uint32_t bucket, members):
        """Sets which incarnations, by their numbers, hold the bucket in sync, or are about to leave, as the cluster
        metadata say. Only announcements of removed events from these incarnations are believed."""
        self.check(bucket)
        cdef list numbers = list(members)
        cdef uint32_t n, count = <uint32_t>len(numbers)
        cdef uint32_t *holders = <uint32_t *>malloc((count + 1) * sizeof(uint32_t))
        if holders == NULL:
            raise MemoryError("no memory for the holders of a bucket; nothing was changed")
        try:
            for n in range(count):
                holders[n] = numbers[n]
        except BaseException:
            free(holders)
            raise
        with nogil:
            wan_changelog_set_holders(&self.changelog, bucket, holders, count)
        removal_news_came()

    def keep_events(self, uint32_t bucket):
        """Keeps the queued events of a lost bucket that this member does not lead: the events move to the queues' own
        partitions and leave from these partitions. `set_role` follows. Returns how many events are kept, and how many
        are lost for want of memory."""
        self.check(bucket)
        cdef uint64_t kept = 0, lost = 0
        with nogil:
            changelog_keep_events(&self.changelog, bucket, &kept, &lost)
        return kept, lost

    def set_replicas(self, uint32_t bucket, replicas):
        """Sets the replicas to which a primary sends: (replication link, REPLICA_*, transfer, acknowledged) for each
        replica. A queue-only replica has REPLICA_QUEUE_ONLY added. The known state of a remaining replica is kept."""
        self.check(bucket)
        cdef uint32_t n, count = <uint32_t>len(replicas)
        cdef wan_changelog_replica *given = <wan_changelog_replica *>calloc(count + 1, sizeof(wan_changelog_replica))
        cdef wan_status status
        if given == NULL:
            raise MemoryError("no memory for the replicas of a bucket; nothing was changed")
        try:
            for n in range(count):
                given[n].repl_link, given[n].state, given[n].transfer, given[n].acked = replicas[n]
                given[n].queue_only = given[n].state & REPLICA_QUEUES
                given[n].state &= ~<uint8_t>REPLICA_QUEUES
            with nogil:
                status = wan_changelog_set_replicas(&self.changelog, bucket, given, count)
                if status == WAN_OK:
                    changelog_ready_events(&self.changelog, bucket)
            raise_for(status, f"the replicas of bucket {bucket}")
        finally:
            free(given)

    def keep_notifications(self, bint by_primary=False, bint says=False):
        """From now on, changes that this member makes or follows are kept as pending notifications
        (`next_notification`). `by_primary`: the primary of a bucket notifies listeners, and not each member with a
        replica. `says`: each member with a replica notifies its listeners, and the primary announces the progress, as
        some members may not notify for followed changes."""
        cdef wan_notify which = WAN_NOTIFY_LED if by_primary else WAN_NOTIFY_AND_SAY if says else WAN_NOTIFY_REPLICAS
        raise_for(wan_changelog_keep_notifications(&self.changelog, which), "the changes that wait for listeners")

    def set_notification_limit(self, uint64_t limit_us):
        """Sets how long a listener may stand still before its pending notifications are dropped. The limit holds as
        soon as 64 MiB of notifications are pending."""
        wan_set(&self.changelog.notification_limit_us, limit_us)

    def next_notification(self, uint32_t timeout_ms):
        """Returns the next replicated change for the listeners: (operation, the value before, the record, whether a
        remote member may have notified listeners too). The call confirms the notification of the previously returned
        change. The operation is "create", "update" or "destroy"; the value is (form, bytes), or None for no value.
        Waits up to `timeout_ms`. None: no change is pending. Only one thread may call this method."""
        cdef const wan_notification *item
        cdef const wan_changelog_entry *entry
        cdef const uint8_t *old
        cdef const uint8_t *record
        cdef bint found
        if wan_changelog_notifications(&self.changelog) == NULL:
            return None
        found = notification_next(&self.changelog, &self.notifications)
        if not found and timeout_ms:
            with nogil:
                found = wan_notifications_next(&self.changelog, &self.notifications, timeout_ms)
        if not found:
            return None
        item = <const wan_notification *>self.notifications.bytes
        old = <const uint8_t *>(item + 1)
        entry = <const wan_changelog_entry *>(old + wan_align8(item.old_length))
        record = <const uint8_t *>wan_changelog_entry_record(entry)
        return (OPERATIONS[entry.outcome], (item.old_form, <bytes>old[:item.old_length]) if item.has_old else None,
                <bytes>record[:wan_record_length(<const wan_record *>record)], bool(item.may_repeat))

    def notifications_state(self):
        """The state of the pending notifications. `bytes`: the size of the pending changes. `dropped`: number of
        changes dropped because a listener stood still for too long. `forgotten`: number of followed changes of remote
        primaries, dropped for the same reason; a takeover does not bring their notifications back. `standing_us`: the
        time that the listeners have spent at one change; `stood_us`: the same time at the last drop."""
        cdef wan_notifications_state state
        memset(&state, 0, sizeof(state))
        if wan_changelog_notifications(&self.changelog) != NULL:
            wan_notifications_look(self.changelog.notifications, &state)
        return {"bytes": state.bytes, "dropped": state.dropped, "forgotten": state.forgotten,
                "standing_us": state.standing_us, "stood_us": state.stood_us}

    def relieve(self):
        """Drops the oldest pending notifications of a listener that stands still, if callers wait for the memory."""
        with nogil:
            wan_notifications_relieve(&self.changelog)

    @property
    def notifications_dropped(self):
        """The number of changes that were dropped because listeners stood still, at this member or a remote one."""
        cdef wan_notifications *notifications = wan_changelog_notifications(&self.changelog)
        return wan_read(&notifications.dropped) + wan_read(&notifications.forgotten) if notifications != NULL else 0

    def heard_waits(self, uint32_t bucket, uint64_t after=0):
        """Returns the pending notifications of a bucket: their sequences in order, and the records behind sequence
        `after`. For simulations that check each change."""
        cdef const wan_buffer *items
        cdef const wan_notification *item
        cdef const uint8_t *record
        cdef uint64_t at
        cdef list sequences = [], records = []
        self.check(bucket)
        if wan_changelog_notifications(&self.changelog) == NULL:
            return sequences, records
        lock_take_with_gil(&self.changelog.buckets[bucket].lock)
        try:                    # There may be no memory for the records.
            items = &self.changelog.notifications.kept[bucket].items
            at = items.start
            while at < items.used:
                item = <const wan_notification *>(items.bytes + at)
                sequences.append(item.sequence)
                if item.sequence > after:
                    record = <const uint8_t *>wan_changelog_entry_record(
                        <const wan_changelog_entry *>(<const uint8_t *>(item + 1) + wan_align8(item.old_length)))
                    records.append(<bytes>record[:wan_record_length(<const wan_record *>record)])
                at += item.length
        finally:
            wan_lock_release(&self.changelog.buckets[bucket].lock)
        return sequences, records

    def end_notifications(self):
        """Ends the notifications. Returns the number of pending notifications that this member should have
        delivered."""
        cdef uint64_t dropped = 0
        with nogil:
            if wan_changelog_notifications(&self.changelog) != NULL:
                dropped = wan_notifications_end(&self.changelog)
        return dropped

    def log_end(self, uint32_t bucket):
        """The sequence of the newest change of a bucket. 0: the bucket has no change."""
        self.check(bucket)
        return wan_read(&self.changelog.buckets[bucket].log_end)

    def fetch(self, uint32_t bucket, uint64_t after):
        """The changes of a bucket behind sequence `after`, as replication links carry them. The first change has the
        sequence `after` + 1; ValueError if the change log has dropped that change."""
        self.check(bucket)
        cdef wan_changelog_bucket *held = &self.changelog.buckets[bucket]
        cdef uint64_t sequence, start, length
        cdef bytes found
        lock_take_with_gil(&held.lock)
        try:                    # There may be no memory for the copy.
            start, sequence = held.changes.start, held.first
            while sequence <= after and start < held.changes.used:
                start += (<const wan_changelog_entry *>(held.changes.bytes + start)).length
                sequence += 1
            length = held.changes.used - start
            found = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>length) if held.first <= after + 1 else None
            if found:
                memcpy(PyBytes_AS_STRING(found), held.changes.bytes + start, length)
        finally:
            wan_lock_release(&held.lock)
        if found is None:
            raise ValueError(f"bucket {bucket}: the changes behind {after} are not here any more")
        return found

    def state(self, uint32_t bucket):
        """The member's state of a bucket, with the state of the replicas if the member leads the bucket."""
        self.check(bucket)
        cdef wan_changelog_bucket *held = &self.changelog.buckets[bucket]
        cdef wan_changelog_replica *replicas
        cdef wan_changelog_replica replica
        cdef uint32_t n, count, refused, kept_answers, waiters
        cdef uint64_t timeline, epoch, transfer, log_end, high_watermark, waits
        cdef uint8_t role
        with nogil:
            wan_lock_take(&held.lock)
            count = held.replica_count
            replicas = <wan_changelog_replica *>calloc(count + 1, sizeof(wan_changelog_replica))
            if replicas != NULL and count:
                memcpy(replicas, held.replicas, count * sizeof(wan_changelog_replica))
            role, timeline, epoch, transfer = held.role, held.timeline, held.epoch, held.transfer
            log_end, high_watermark, waits = held.log_end, held.high_watermark, held.changes.used - held.changes.start
            waiters = held.waiters
            kept_answers, refused = held.answers.count, held.answers.refused_count
            wan_lock_release(&held.lock)
        if replicas == NULL:
            raise MemoryError("no memory for the state of a bucket")
        told = []
        for n in range(count):
            replica = replicas[n]
            told.append({"repl_link": replica.repl_link, "waited": replica.state == WAN_FOLLOWER_WAITED,
                         "transfer": replica.transfer,
                         "sent": replica.sent, "acked": replica.acked, "confirmed": bool(replica.confirmed),
                         "queue_only": bool(replica.queue_only)})
        free(replicas)
        return {"role": ROLES[role], "timeline": timeline, "epoch": epoch, "transfer": transfer, "log_end": log_end,
                "high_watermark": high_watermark, "bytes": waits, "answers": kept_answers, "refused": refused,
                "waiters": waiters, "copies": told}

    def callers(self, uint32_t bucket):
        """The clients (`client_id`) in the deduplication table of a bucket, as a set."""
        self.check(bucket)
        cdef wan_changelog_bucket *held = &self.changelog.buckets[bucket]
        cdef wan_buffer found
        cdef uint32_t n
        cdef wan_status status
        memset(&found, 0, sizeof(found))
        with nogil:
            wan_lock_take(&held.lock)
            status = wan_answers_callers(&held.answers, &found)
            wan_lock_release(&held.lock)
        try:
            raise_for(status, f"the callers of bucket {bucket}")
            return {(<uint64_t *>found.bytes)[n] for n in range(found.count)}
        finally:
            wan_buffer_close(&found)

    def forget(self, uint32_t bucket, uint64_t caller):
        """Forgets the calls of a departed client, and refuses the client from now on, at this member and all replicas.
        Returns whether the entry is under way: this member must be primary, and may have no room now."""
        self.check(bucket)
        cdef wan_status status
        with nogil:
            status = wan_changelog_forget(&self.changelog, bucket, caller)
        return status == WAN_OK

    def states(self):
        """The state of each bucket that this member has, by number."""
        return {n: self.state(n) for n in range(self.changelog.bucket_count)
                if self.changelog.buckets[n].role != WAN_REPLICA_ABSENT}

    def acknowledged(self, uint32_t bucket, uint32_t repl_link, uint64_t timeline, uint64_t epoch, uint64_t sequence):
        """The replica at the end of a replication link has all changes of the bucket through `sequence`. Returns
        whether the high watermark has grown."""
        self.check(bucket)
        cdef bint grew
        with nogil:
            grew = wan_changelog_acknowledged(&self.changelog, bucket, repl_link, timeline, epoch,
                                              sequence) & WAN_CHANGELOG_GREW
            if grew:
                changelog_ready_events(&self.changelog, bucket)
        return grew

    def told(self, uint32_t bucket, uint64_t timeline, uint64_t epoch, uint64_t high_watermark, uint64_t notified=0):
        """Adopts the primary's high watermark of the bucket, and the sequence through which listeners are notified. The
        call also counts as contact with the primary now. For drivers without replication links."""
        self.check(bucket)
        self.contact = self.contact or wan_contact_begin()
        wan_contact_received(self.contact, wan_monotonic_us())
        with nogil:
            wan_changelog_told(&self.changelog, bucket, timeline, epoch, high_watermark, notified, self.contact)
            changelog_ready_events(&self.changelog, bucket)

    def announce_removals(self, uint32_t bucket):
        """Announces once more, on all replication links, the events that have left the queues of the bucket, with the
        reasons. A new holder of the bucket has ignored earlier announcements."""
        self.check(bucket)
        with nogil:
            wan_changelog_tell_again(&self.changelog, bucket)

    def notified_through(self, uint32_t bucket):
        """The sequence through which listeners were notified at this member, the primary of a bucket."""
        self.check(bucket)
        cdef wan_changelog_bucket *held = &self.changelog.buckets[bucket]
        cdef uint64_t through
        with nogil:
            wan_lock_take(&held.lock)
            through = wan_notifications_through(wan_changelog_notifications(&self.changelog), bucket,
                                                held.high_watermark)
            wan_lock_release(&held.lock)
        return through

    def behind(self):
        """By replication link: how many bytes of changes the replica at the end of the link has yet to acknowledge.
        Replicas that have everything are left out."""
        cdef uint32_t number
        cdef uint64_t bytes
        found = {}
        for number in self.repl_links:
            with nogil:
                bytes = wan_changelog_behind(&self.changelog, number)
            if bytes:
                found[number] = bytes
        return found

    def may_read(self, uint32_t bucket):
        """Whether this member, as primary of the bucket, may answer a read without asking the replicas."""
        self.check(bucket)
        cdef bint may
        with nogil:
            may = wan_changelog_may_read(&self.changelog, bucket, wan_monotonic_us())
        return bool(may)

    def add_repl_link(self, uint32_t number, ReplLinkState repl_link not None):
        """Names a replication link. Repeated calls are allowed."""
        self.repl_links[number] = repl_link
        raise_for(wan_changelog_add_repl_link(&self.changelog, number, &repl_link.state), f"replication link {number}")

    def remove_repl_link(self, uint32_t number):
        """Forgets a replication link that no bucket uses any more."""
        with nogil:
            wan_changelog_remove_repl_link(&self.changelog, number)
        self.repl_links.pop(number, None)

    def set_lease(self, uint64_t until_us):
        """Sets until when the coordinator's lease runs, by `monotonic_us`."""
        wan_changelog_set_lease(&self.changelog, until_us)

    def set_primary_until(self, until_us):
        """Sets until when, by `monotonic_us`, the member takes changes, raises the high watermark and answers reads as
        a primary. If the time is not over, the high watermark now also covers changes that were held back. None: for
        ever."""
        cdef uint64_t until = NEVER if until_us is None else <uint64_t>until_us
        cdef uint32_t bucket
        with nogil:
            if wan_changelog_set_primary_until(&self.changelog, until):
                for bucket in range(self.changelog.bucket_count):
                    changelog_ready_events(&self.changelog, bucket)


cdef bint notification_next(wan_changelog *changelog, wan_buffer *notifications) noexcept nogil:
    """As `wan_notifications_next`, without a wait. The caller has the GIL, and most often a notification is pending."""
    cdef bint found
    gil_may_go()
    found = wan_notifications_next(changelog, notifications, 0)
    gil_back()
    return found


def monotonic_us():
    """Microseconds by the clock of leases and read leases."""
    return wan_monotonic_us()


def simulate_monotonic_us(uint64_t now_us):
    """Sets the result of `monotonic_us` in the whole process until the next call; 0: the system's time. For simulations
    in which nothing waits."""
    wan_set(&wan_simulated_us, now_us)
