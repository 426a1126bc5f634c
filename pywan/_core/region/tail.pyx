# Owns `Tail`, the tails of a region that several members hold, and `LaneState`, what a tail knows of a lane.
cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy, memset
from pywan._core.c_base cimport *
from pywan._core.c_copies cimport *
from pywan._core.c_record cimport wan_record, wan_record_length
from pywan._core.c_system cimport *
from pywan._core.c_store cimport *
from pywan._core.queue.queue cimport gateway_queue, queue_count, settled_news_came, wake_dispatchers
from pywan._core.base.budget cimport MemoryBudget
from pywan._core.base.gil cimport gil_back, gil_may_go, lock_take_with_gil
from pywan._core.base.status cimport raise_for

cdef enum:
    COPY_QUEUES = 2             # Added to the state of a copy that holds the queued events alone.
    MOVED_TOGETHER = 4096       # So many queued events are moved at a time, under the queue's lock.

TAIL_ABSENT, TAIL_LEARNER, TAIL_COPY = WAN_TAIL_ABSENT, WAN_TAIL_LEARNER, WAN_TAIL_COPY
TAIL_TAKING_OVER, TAIL_PRIMARY = WAN_TAIL_TAKING_OVER, WAN_TAIL_PRIMARY
TAIL_LANES_MAX = WAN_TAIL_LANES_MAX
COPY_LEARNING, COPY_WAITED = WAN_COPY_LEARNING, WAN_COPY_WAITED
COPY_QUEUE_ONLY = COPY_QUEUES

cdef tuple OPERATIONS = ("create", "update", "destroy")     # By the outcome of a change.
cdef tuple ROLES = ("absent", "learner", "copy", "taking over", "primary")


cdef void tail_count_events(wan_tail *tail, uint32_t bucket) noexcept nogil:
    """Makes the events of a bucket ready whose changes count, in the queues that it feeds, if they are sent from here.
    A learner has no whole queue yet."""
    cdef wan_tail_bucket *at = &tail.buckets[bucket]
    cdef wan_feeds *feeds
    cdef uint32_t n
    cdef int wake
    if wan_tail_feeds(tail) == NULL:
        return
    wan_lock_take(&at.lock)
    feeds = wan_tail_feeds(tail)
    if feeds != NULL and at.role >= WAN_TAIL_COPY:
        for n in range(feeds.count):
            wake = queue_count(<gateway_queue *>feeds.items[n].owner, feeds.items[n].first + bucket)
            if wake >= 0:
                eventfd_write(wake, 1)
    wan_lock_release(&at.lock)


cdef void tail_keep_events(wan_tail *tail, uint32_t bucket, uint64_t *kept, uint64_t *lost) noexcept nogil:
    """As `Tail.keep_events`. The lock of the bucket is held from the moment at which it takes no more changes until
    its streams are empty: so no event is left behind, and nobody is told that these are settled."""
    cdef wan_tail_bucket *at = &tail.buckets[bucket]
    cdef wan_feeds *feeds
    cdef gateway_queue *gateway
    cdef wan_status status
    cdef uint32_t n, partition
    wan_lock_take(&at.lock)
    feeds = wan_tail_feeds(tail)
    wan_tail_end_copy(at)
    for n in range(feeds.count if feeds != NULL else 0):
        gateway, status = <gateway_queue *>feeds.items[n].owner, WAN_EMPTY
        partition = feeds.items[n].first + bucket
        while status == WAN_EMPTY:
            wan_lock_take(&gateway.lock)
            status = wan_queue_move_from_run(&gateway.queue, partition, MOVED_TOGETHER, gateway.lowest_copied, kept)
            if status != WAN_EMPTY:
                lost[0] += wan_queue_begin_anew(&gateway.queue, partition, at.life)
                wake_dispatchers(gateway)
            wan_lock_release(&gateway.lock)
    wan_lock_release(&at.lock)


cdef class LaneState:
    """What the tails of all regions know of the lane to one other member. `LaneSender` extends it."""

    def __cinit__(self, *arguments, **named):
        self.state.rest_file = -1
        self.state.wake_file = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.state.wake_file >= 0:
            self.state.rest_file = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.state.rest_file < 0:
            raise OSError("no file descriptor is left for a lane between members; raise the limit (ulimit -n)")

    def promise(self, uint64_t until_us):
        """Until then (`monotonic_us`) the other member adopts no later epoch without saying so."""
        wan_set(&self.state.promised_until_us, until_us)

    def answered(self, uint64_t at_us):
        """The other member has answered something then (`monotonic_us`)."""
        wan_set(&self.state.answered_us, at_us)

    def __dealloc__(self):
        if self.state.wake_file >= 0:
            close_file(self.state.wake_file)
        if self.state.rest_file >= 0:
            close_file(self.state.rest_file)


@cython.no_gc_clear      # `__dealloc__` gives back to the budget what the tail holds.
cdef class Tail:
    """The last changes of each bucket of one region, which some copies may lack. `epoch` is one word everywhere.
    `budget`: the member's, which counts what the tail holds."""

    def __cinit__(self, uint32_t buckets, uint32_t shards, uint32_t min_copies=1, MemoryBudget budget=None):
        self.lanes, self.fed = {}, ()
        if buckets == 0 or shards == 0 or shards % buckets:
            raise ValueError(f"{shards} shards cannot be divided among {buckets} buckets")
        raise_for(wan_tail_init(&self.tail, buckets, shards, min_copies), "the tails of a region")
        if budget is not None:
            self.budget, self.tail.budget = budget, &budget.budget

    def __dealloc__(self):
        wan_tail_close(&self.tail)
        wan_buffer_close(&self.heard)

    cdef int check(self, bucket) except -1:
        if not 0 <= bucket < self.tail.bucket_count:
            raise ValueError(f"bucket {bucket}: there are {self.tail.bucket_count}")
        return 0

    def set_role(self, uint32_t bucket, uint8_t role, uint64_t life, uint64_t epoch, uint64_t transfer=0,
                 uint32_t leader=0, bint queue_only=False):
        """Sets what this member is for a bucket (TAIL_*). It adopts the epoch: older ones are refused from now on.
        `leader`: the number of the primary's incarnation, whose lane alone brings changes; 0: it is not known.
        `queue_only`: as a copy or learner it holds the queued events alone."""
        self.check(bucket)
        with nogil:
            wan_tail_set_leader(&self.tail, bucket, leader, queue_only)
            wan_tail_set_role(&self.tail, bucket, role, life, epoch, transfer)
            tail_count_events(&self.tail, bucket)

    def set_holders(self, uint32_t bucket, members):
        """Sets which incarnations, by their numbers, hold the bucket in sync, or are about to leave, as the tables say.
        They alone are believed that queued events have left."""
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
            wan_tail_set_holders(&self.tail, bucket, holders, count)
        settled_news_came()

    def keep_events(self, uint32_t bucket):
        """The bucket is lost, and this member is no primary of it: what its queues have of it leaves from their own
        partitions. `set_role` follows. Returns how many events are kept, and how many are not, for want of memory."""
        self.check(bucket)
        cdef uint64_t kept = 0, lost = 0
        with nogil:
            tail_keep_events(&self.tail, bucket, &kept, &lost)
        return kept, lost

    def set_copies(self, uint32_t bucket, copies):
        """Sets whom a primary sends to: (lane, COPY_*, transfer, acknowledged) for each copy. One that holds the queued
        events alone has COPY_QUEUE_ONLY added. What is known of a copy that stays is kept."""
        self.check(bucket)
        cdef uint32_t n, count = <uint32_t>len(copies)
        cdef wan_tail_copy *given = <wan_tail_copy *>calloc(count + 1, sizeof(wan_tail_copy))
        cdef wan_status status
        if given == NULL:
            raise MemoryError("no memory for the copies of a bucket; nothing was changed")
        try:
            for n in range(count):
                given[n].lane, given[n].state, given[n].transfer, given[n].acked = copies[n]
                given[n].queue_only = given[n].state & COPY_QUEUES
                given[n].state &= ~<uint8_t>COPY_QUEUES
            with nogil:
                status = wan_tail_set_copies(&self.tail, bucket, given, count)
                if status == WAN_OK:
                    tail_count_events(&self.tail, bucket)
            raise_for(status, f"the copies of bucket {bucket}")
        finally:
            free(given)

    def hear(self, bint by_primary=False, bint says=False):
        """From now on the changes that are made or followed here wait for listeners (`next_heard`). `by_primary`: those
        of a bucket are told by the member that leads it, and not by each one that has a copy. `says`: each one that
        has a copy tells them, and the one that leads the bucket says how far it is, as other members may not be told
        of what they follow."""
        cdef wan_hears which = WAN_HEARS_LED if by_primary else WAN_HEARS_AND_SAYS if says else WAN_HEARS_COPIES
        raise_for(wan_tail_hear(&self.tail, which), "the changes that wait for listeners")

    def set_heard_limit(self, uint64_t limit_us):
        """Sets how long a listener may stand still before changes that wait for it are dropped. It holds as soon as 64
        MiB of them wait."""
        wan_set(&self.tail.heard_limit_us, limit_us)

    def next_heard(self, uint32_t timeout_ms):
        """The next change that listeners are to be told, which counts: (operation, the value before, the record,
        whether another member may have told it too). The change that was returned before was told. The operation is
        "create", "update" or "destroy"; the value is (form, bytes), or None where there was none. Waits up to
        `timeout_ms` for it. None: there is none. One thread calls this."""
        cdef const wan_heard_item *item
        cdef const wan_tail_entry *entry
        cdef const uint8_t *old
        cdef const uint8_t *record
        cdef bint found
        if wan_tail_heard(&self.tail) == NULL:
            return None
        found = heard_next(&self.tail, &self.heard)
        if not found and timeout_ms:
            with nogil:
                found = wan_heard_next(&self.tail, &self.heard, timeout_ms)
        if not found:
            return None
        item = <const wan_heard_item *>self.heard.bytes
        old = <const uint8_t *>(item + 1)
        entry = <const wan_tail_entry *>(old + wan_align8(item.old_length))
        record = <const uint8_t *>wan_tail_entry_record(entry)
        return (OPERATIONS[entry.outcome], (item.old_form, <bytes>old[:item.old_length]) if item.has_old else None,
                <bytes>record[:wan_record_length(<const wan_record *>record)], bool(item.may_repeat))

    def heard_state(self):
        """What waits for listeners. `bytes` of changes wait. `dropped`: changes that were dropped because a listener
        stood still for too long. `forgotten`: of other members, dropped for the same reason; they are not told after a
        takeover. `standing_us`: how long the listeners have been at one change; `stood_us`: how long that was when
        changes were dropped last."""
        cdef wan_heard_state state
        memset(&state, 0, sizeof(state))
        if wan_tail_heard(&self.tail) != NULL:
            wan_heard_look(self.tail.heard, &state)
        return {"bytes": state.bytes, "dropped": state.dropped, "forgotten": state.forgotten,
                "standing_us": state.standing_us, "stood_us": state.stood_us}

    def relieve(self):
        """Drops the oldest changes that wait for a listener which stands still, if callers wait for that."""
        with nogil:
            wan_heard_relieve(&self.tail)

    @property
    def heard_dropped(self):
        """How many changes were dropped because listeners stood still, here or at another member."""
        cdef wan_heard *heard = wan_tail_heard(&self.tail)
        return wan_read(&heard.dropped) + wan_read(&heard.forgotten) if heard != NULL else 0

    def heard_waits(self, uint32_t bucket, uint64_t after=0):
        """Returns the changes of a bucket that wait for listeners: their sequences in order, and the records behind
        sequence `after`. For simulations that check each change."""
        cdef const wan_buffer *items
        cdef const wan_heard_item *item
        cdef const uint8_t *record
        cdef uint64_t at
        cdef list sequences = [], records = []
        self.check(bucket)
        if wan_tail_heard(&self.tail) == NULL:
            return sequences, records
        lock_take_with_gil(&self.tail.buckets[bucket].lock)
        try:                    # There may be no memory for them.
            items = &self.tail.heard.kept[bucket].items
            at = items.start
            while at < items.used:
                item = <const wan_heard_item *>(items.bytes + at)
                sequences.append(item.sequence)
                if item.sequence > after:
                    record = <const uint8_t *>wan_tail_entry_record(
                        <const wan_tail_entry *>(<const uint8_t *>(item + 1) + wan_align8(item.old_length)))
                    records.append(<bytes>record[:wan_record_length(<const wan_record *>record)])
                at += item.length
        finally:
            wan_lock_release(&self.tail.buckets[bucket].lock)
        return sequences, records

    def end_hearing(self):
        """Nobody tells changes any more. Returns how many of them this member was to tell."""
        cdef uint64_t dropped = 0
        with nogil:
            if wan_tail_heard(&self.tail) != NULL:
                dropped = wan_heard_end(&self.tail)
        return dropped

    def last(self, uint32_t bucket):
        """The sequence of the newest change of a bucket. 0: there is none."""
        self.check(bucket)
        return wan_read(&self.tail.buckets[bucket].last)

    def fetch(self, uint32_t bucket, uint64_t after):
        """The changes of a bucket behind sequence `after`, as lanes carry them. The first of them has the sequence
        `after` + 1; ValueError if it is not there any more."""
        self.check(bucket)
        cdef wan_tail_bucket *held = &self.tail.buckets[bucket]
        cdef uint64_t sequence, start, length
        cdef bytes found
        lock_take_with_gil(&held.lock)
        try:                    # There may be no memory for the copy.
            start, sequence = held.changes.start, held.first
            while sequence <= after and start < held.changes.used:
                start += (<const wan_tail_entry *>(held.changes.bytes + start)).length
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
        """What the member knows of a bucket, and of its copies if it leads it."""
        self.check(bucket)
        cdef wan_tail_bucket *held = &self.tail.buckets[bucket]
        cdef wan_tail_copy *copies
        cdef wan_tail_copy copy
        cdef uint32_t n, count, refused, kept_answers, waiters
        cdef uint64_t life, epoch, transfer, last, counted, waits
        cdef uint8_t role
        with nogil:
            wan_lock_take(&held.lock)
            count = held.copy_count
            copies = <wan_tail_copy *>calloc(count + 1, sizeof(wan_tail_copy))
            if copies != NULL and count:
                memcpy(copies, held.copies, count * sizeof(wan_tail_copy))
            role, life, epoch, transfer = held.role, held.life, held.epoch, held.transfer
            last, counted, waits = held.last, held.counted, held.changes.used - held.changes.start
            waiters = held.waiters
            kept_answers, refused = held.answers.count, held.answers.refused_count
            wan_lock_release(&held.lock)
        if copies == NULL:
            raise MemoryError("no memory for the state of a bucket")
        told = []
        for n in range(count):
            copy = copies[n]
            told.append({"lane": copy.lane, "waited": copy.state == WAN_COPY_WAITED, "transfer": copy.transfer,
                         "sent": copy.sent, "acked": copy.acked, "confirmed": bool(copy.confirmed),
                         "queue_only": bool(copy.queue_only)})
        free(copies)
        return {"role": ROLES[role], "life": life, "epoch": epoch, "transfer": transfer, "last": last,
                "counted": counted, "bytes": waits, "answers": kept_answers, "refused": refused,
                "waiters": waiters, "copies": told}

    def callers(self, uint32_t bucket):
        """The callers of which a bucket remembers calls, as a set."""
        self.check(bucket)
        cdef wan_tail_bucket *held = &self.tail.buckets[bucket]
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
        """Forgets the calls of a caller that is gone, and refuses it from now on, here and at all copies. Returns
        whether that is under way: this member must be primary, and may have no room now."""
        self.check(bucket)
        cdef wan_status status
        with nogil:
            status = wan_tail_forget(&self.tail, bucket, caller)
        return status == WAN_OK

    def states(self):
        """The state of each bucket that this member has, by number."""
        return {n: self.state(n) for n in range(self.tail.bucket_count)
                if self.tail.buckets[n].role != WAN_TAIL_ABSENT}

    def acknowledged(self, uint32_t bucket, uint32_t lane, uint64_t life, uint64_t epoch, uint64_t sequence):
        """The copy at the end of a lane has all changes of the bucket through `sequence`. Returns whether more counts
        now."""
        self.check(bucket)
        cdef bint grew
        with nogil:
            grew = wan_tail_acknowledged(&self.tail, bucket, lane, life, epoch, sequence) & WAN_TAIL_GREW
            if grew:
                tail_count_events(&self.tail, bucket)
        return grew

    def told(self, uint32_t bucket, uint64_t life, uint64_t epoch, uint64_t counted, uint64_t heard=0):
        """The primary says through which sequence the changes of the bucket count, and listeners heard them. It was
        heard now. For drivers that have no lanes."""
        self.check(bucket)
        self.contact = self.contact or wan_contact_begin()
        wan_contact_heard(self.contact, wan_monotonic_us())
        with nogil:
            wan_tail_told(&self.tail, bucket, life, epoch, counted, heard, self.contact)
            tail_count_events(&self.tail, bucket)

    def tell_settled(self, uint32_t bucket):
        """Tells all lanes once more what has left the queues that the bucket feeds, and why. A member that has begun to
        hold the bucket did not heed what was told before."""
        self.check(bucket)
        with nogil:
            wan_tail_tell_again(&self.tail, bucket)

    def heard_through(self, uint32_t bucket):
        """Through which sequence listeners were told at this member, the primary of a bucket."""
        self.check(bucket)
        cdef wan_tail_bucket *held = &self.tail.buckets[bucket]
        cdef uint64_t through
        with nogil:
            wan_lock_take(&held.lock)
            through = wan_heard_through(wan_tail_heard(&self.tail), bucket, held.counted)
            wan_lock_release(&held.lock)
        return through

    def behind(self):
        """By lane: how many bytes of changes the copy at its end has yet to acknowledge. Copies that have everything
        are left out."""
        cdef uint32_t number
        cdef uint64_t bytes
        found = {}
        for number in self.lanes:
            with nogil:
                bytes = wan_tail_behind(&self.tail, number)
            if bytes:
                found[number] = bytes
        return found

    def may_read(self, uint32_t bucket):
        """Whether this member, as primary of the bucket, may answer a read without asking the copies."""
        self.check(bucket)
        cdef bint may
        with nogil:
            may = wan_tail_may_read(&self.tail, bucket, wan_monotonic_us())
        return bool(may)

    def add_lane(self, uint32_t number, LaneState lane not None):
        """Names a lane. It may be called again."""
        self.lanes[number] = lane
        raise_for(wan_tail_add_lane(&self.tail, number, &lane.state), f"lane {number}")

    def remove_lane(self, uint32_t number):
        """Forgets a lane that no bucket uses any more."""
        with nogil:
            wan_tail_remove_lane(&self.tail, number)
        self.lanes.pop(number, None)

    def set_lease(self, uint64_t until_us):
        """Sets until when the coordinator's lease runs, by `monotonic_us`."""
        wan_tail_set_lease(&self.tail, until_us)

    def set_primary_until(self, until_us):
        """Sets until when, by `monotonic_us`, the member takes changes, counts them and answers reads as a primary.
        Changes that were held back count, if it is not over. None: for ever."""
        cdef uint64_t until = NEVER if until_us is None else <uint64_t>until_us
        cdef uint32_t bucket
        with nogil:
            if wan_tail_set_primary_until(&self.tail, until):
                for bucket in range(self.tail.bucket_count):
                    tail_count_events(&self.tail, bucket)


cdef bint heard_next(wan_tail *tail, wan_buffer *heard) noexcept nogil:
    """As `wan_heard_next`, without a wait. The caller has the GIL, and most often there is something."""
    cdef bint found
    gil_may_go()
    found = wan_heard_next(tail, heard, 0)
    gil_back()
    return found


def monotonic_us():
    """Microseconds by the clock that leases and promises are counted in."""
    return wan_monotonic_us()


def simulate_monotonic_us(uint64_t now_us):
    """Sets what `monotonic_us` returns in the whole process until the next call; 0: the system's time. For simulations
    in which nothing waits."""
    wan_set(&wan_simulated_us, now_us)
