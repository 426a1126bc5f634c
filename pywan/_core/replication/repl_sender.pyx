# Owns the sending end of a replication link: the buckets with something to send, the choice of the next frame, and the
# effect of answers on the change logs. `ReplSenderSession` knows no socket and no clock. The snapshots are in
# repl_snapshot.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove, memset
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from pywan._core.c_base cimport *
from pywan._core.c_names cimport *
from pywan._core.c_record cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_system cimport *
from pywan._core.replication.repl_snapshot cimport (
    replica_of, snapshot_begin, snapshot_copy, snapshot_is_next, snapshot_lay, snapshot_stays,
    repl_bucket, repl_snapshot)
from pywan._core.replication.repl_removals cimport REMOVALS_FULL, REMOVALS_NO_MEMORY, removals_collect
from pywan._core.replication.repl_news cimport NEWS_LEARNED, NEWS_REFUSED, NEWS_SLOW, News
from pywan._core.region.region_state cimport region_core
from pywan._core.wire.byte_stream cimport OTHER_READY, WOKEN, ByteStream
from pywan._core.wire.session cimport (
    ENDED_CLOSED, ENDED_STOPPED, ENDED_TOLD, GOES_AGAIN, GOES_ON, Session, session_turn)
from pywan._core.base.status cimport detail_text, raise_for
from pywan._core.wire.stream cimport buffer_frame, buffer_reserve
from pywan._core.wire.tls_stream cimport stream_of
from pywan._core.region.changelog cimport ReplLinkState, changelog_ready_events


cdef enum:
    FRAME_BYTES = 256 << 10         # A frame with this many bytes is closed. A larger entry has a frame of its own.
    BUCKET_BYTES = 64 << 10         # The share of one bucket in a frame.
    WINDOW_BYTES = 4 << 20          # Bytes of changes and snapshots that may be on their way.
    # The bounds for bytes of snapshots on their way, as `pace_snapshot` sets. A put waits until these bytes are
    # applied.
    SNAPSHOT_LEAST_BYTES = 32 << 10
    SNAPSHOT_OWED_BYTES = SNAPSHOT_LEAST_BYTES // 2     # Owed bytes of a snapshot leave in pieces of this size.
    SNAPSHOT_WINDOW_BYTES = 2 << 20
    SNAPSHOT_REST_US = 50000           # The longest pause between two pieces of a snapshot.
    PERIOD_US = 5000000             # The period in which the shortest time of an answer is measured.
    PING_US = 100000                # At most a quarter of the member time-out, so a missing answer is a sign.
    LATER_US = 50000                # The pause before a replica that answered "later" is asked again.
    # While another thread runs the replication link, the replication link's thread looks at this interval.
    REST_LOOK_US = 10000
    REMOVALS_US = 10000              # The interval between frames with removals.
    TELL_US = 2000                  # A replica without changes gets the high watermark after this time.
    # The result of a bucket's turn.
    LAID = 1, HAS_MORE = 2, NO_ROOM = 4
    HEAD_BYTES = sizeof(wan_frame) + sizeof(wan_repl_head)


cdef uint8_t *find_entry(wan_changelog_bucket *at, wan_changelog_replica *replica, uint64_t sequence) noexcept nogil:
    """Returns the entry with this sequence, first <= sequence <= last. The search starts at the replica's place, if
    that is known. Under the bucket's lock."""
    cdef uint8_t *entry = at.changes.bytes + at.changes.start
    cdef uint64_t here = at.first
    # A place at the very front may also be the place of a later entry, added after all earlier entries were dropped.
    if replica.place_sequence < sequence and replica.place_sequence + 1 >= at.first and (
            replica.place > at.dropped_bytes or (replica.place == at.dropped_bytes
                                                 and replica.place_sequence + 1 == at.first)):
        entry += replica.place - at.dropped_bytes
        here = replica.place_sequence + 1
    while here < sequence:
        entry += (<wan_changelog_entry *>entry).length
        here += 1
    return entry


cdef void run_repl_link(void *runner, const wan_repl_link_wait *wait) noexcept nogil:
    (<ReplSenderSession>runner).run_for(wait)


cdef class ReplSenderSession(Session):
    """The sending end of replication link `number`. The owner keeps this object, and the state in the change logs,
    alive. All times are times of wan_monotonic_us."""

    def __cinit__(self, uint32_t number, ReplLinkState owner not None, News news not None):
        self.number, self.state, self.news = number, &owner.state, news
        self.state.run, self.state.runner = run_repl_link, <void *>self
        self.wake_file = owner.state.wake_file
        self.reads_while_writing = True
        self.oldest = self.next_id = 1

    def __dealloc__(self):
        free(self.regions)
        wan_buffer_close(&self.names)
        wan_buffer_close(&self.later)
        wan_buffer_close(&self.to_tell)
        wan_buffer_close(&self.removals)
        wan_buffer_close(&self.learners)
        wan_buffer_close(&self.snapshot.entries)
        wan_buffer_close(&self.snapshot.shrunk)
        wan_buffer_close(&self.snapshot.answers)

    # Regions. The caller holds the lock.

    cdef wan_changelog *changelog_of(self, uint32_t number) noexcept nogil:
        """Returns the change log of a region that uses this replication link. NULL: no such region."""
        cdef wan_changelog *changelog
        if number >= self.region_count or self.regions[number].core == NULL:
            return NULL
        changelog = self.regions[number].core.changelog
        return changelog if changelog != NULL and changelog.to_send[self.number] != NULL else NULL

    cdef void set_bit(self, uint32_t number, uint32_t bucket) noexcept nogil:
        """Marks the bucket to be looked at again."""
        cdef wan_changelog *changelog = self.changelog_of(number)
        if changelog != NULL and bucket < changelog.bucket_count:
            wan_repl_link_set_bit(changelog.to_send[self.number], bucket)

    cdef void rewind(self, uint32_t number) noexcept nogil:
        """The connection is new for this region: everything without an acknowledgement is sent again."""
        cdef wan_changelog *changelog = self.changelog_of(number)
        if changelog != NULL:
            wan_changelog_rewind(changelog, self.number)

    cdef int add_region(self, uint32_t number, bytes name, region_core *core) except -1:
        """As `ReplSender.add_region`. The caller keeps the region alive until the region is removed."""
        cdef wan_repl_region told
        cdef uint64_t none = 0, length = <uint64_t>PyBytes_GET_SIZE(name)
        cdef const char *text = PyBytes_AS_STRING(name)
        cdef uint32_t count
        cdef void *grown
        cdef wan_status status = WAN_OK
        memset(&told, 0, sizeof(told))
        told.number, told.buckets, told.name_length = number, core.table.bucket_count, <uint32_t>length
        with nogil:
            wan_lock_take(&self.lock)
            if number >= self.region_count:
                count = max(<uint32_t>16, self.region_count)
                while count <= number:
                    count *= 2
                grown = realloc(self.regions, count * sizeof(repl_region))
                if grown == NULL:
                    status = WAN_NO_MEMORY
                else:
                    self.regions = <repl_region *>grown
                    memset(self.regions + self.region_count, 0, (count - self.region_count) * sizeof(repl_region))
                    self.region_count = count
            if status == WAN_OK:
                status = wan_buffer_reserve(&self.names, sizeof(told) + length + 8)
            if status == WAN_OK:
                wan_buffer_put(&self.names, &told, sizeof(told))
                wan_buffer_put(&self.names, text, length)
                wan_buffer_put(&self.names, &none, wan_align8(length) - length)
                self.regions[number].core = core
                self.rewind(number)
            wan_lock_release(&self.lock)
        self.wake()
        return raise_for(status, "a region of a replication link")

    cdef void remove_region(self, uint32_t number) noexcept nogil:
        """After the return the replication link's thread does not use the region any more."""
        cdef uint64_t at = 0, length
        cdef wan_repl_region *told
        wan_lock_take(&self.lock)
        self.regions[number].core = NULL
        while at < self.names.used:
            told = <wan_repl_region *>(self.names.bytes + at)
            length = sizeof(wan_repl_region) + wan_align8(told.name_length)
            if told.number == number:
                memmove(told, <uint8_t *>told + length, self.names.used - at - length)
                self.names.used -= length
                if self.names_told > at:
                    self.names_told -= length
            else:
                at += length
        wan_lock_release(&self.lock)

    # Calls of other threads.

    cdef void wake(self) noexcept nogil:
        """Makes the thread that runs the replication link look at everything again."""
        eventfd_write(self.state.wake_file, 1)
        wan_repl_link_wake(self.state)

    def stop(self):
        """Makes `run` return soon, also a later call."""
        wan_flag_set(&self.stop_flag, 1)
        self.wake()

    # A connection begins.

    def connected(self):
        """Resets the state for a new connection. The connection begins when its driver sets the time."""
        self.forget_bytes()
        self.now_us = 0
        self.ended = GOES_ON

    def run(self, sock):
        """Sends over a connected socket until the connection breaks, or until `stop`. Returns "stopped", or the reason
        of the end. The GIL is free meanwhile."""
        self.connected()
        self.stream, self.ended_beside = stream_of(sock), GOES_ON
        wan_repl_link_set_connected(self.state, 1)
        try:
            ended = self.run_over(self.stream)
            return {ENDED_STOPPED: "stopped", ENDED_CLOSED: "closed"}.get(ended) or detail_text()
        finally:
            wan_repl_link_set_connected(self.state, 0)
            self.stream = None

    # The thread that runs the replication link.

    cdef int wait(self, ByteStream stream, bint to_read, bint to_write, uint64_t until_us) noexcept nogil:
        """As `Session.wait`. If no question is on its way, the replication link's thread lets a thread with new work
        run the link."""
        if self.stream is None or self.oldest != self.next_id or to_write:
            return Session.wait(self, stream, to_read, to_write, until_us)
        wan_set(&self.rest_until_us, until_us)
        if not wan_repl_link_change(self.state, WAN_REPL_LINK_WAITS, WAN_REPL_LINK_RESTS):     # New work.
            return Session.wait(self, stream, to_read, to_write, until_us)
        return self.rest(until_us)

    cdef int rest(self, uint64_t until_us) noexcept nogil:
        """Waits until the link's own thread has to run the replication link again."""
        cdef int ready = 0
        if wan_flag_read(&self.stop_flag):      # Perhaps since just before the replication link rested.
            until_us = 0
        while True:
            if until_us:
                ready = self.stream.wait_for_end(self.state.rest_file, until_us)
            if ready & WOKEN or wan_repl_link_change(self.state, WAN_REPL_LINK_RESTS, WAN_REPL_LINK_RUNS):
                return ready
            # Another thread runs the link. That thread writes to the file, or leaves the link at rest.
            until_us = self.stream.now_us() + REST_LOOK_US

    cdef void run_for(self, const wan_repl_link_wait *wait) noexcept nogil:
        """As `wan_repl_link_state.run`."""
        cdef wan_changelog_bucket *at = &wait.changelog.buckets[wait.bucket]
        cdef uint64_t now = 0, due
        cdef int how, ready = 0
        self.runs_beside += 1
        while True:
            how = session_turn(self, self.stream, &now)
            if how == GOES_AGAIN:
                continue
            if (how != GOES_ON or ready & OTHER_READY or self.oldest == self.next_id or now >= wait.until_us
                    or wan_read(&at.high_watermark) >= wait.sequence or wan_read(&at.local_fence) != wait.local_fence):
                break
            due = min(self.due_us(now), wait.until_us)
            ready = self.stream.wait_beside(not self.all_left(), self.wake_file, wait.other_file, due)
            self.woken(now, self.stream.now_us())
        self.hand_back(how)

    cdef void hand_back(self, int how) noexcept nogil:
        """Leaves the replication link at rest if its thread has nothing to do before its next look; otherwise wakes the
        thread to run the link."""
        # The flag is read first: the thread that sets the flag sets WAN_REPL_LINK_RUNS afterwards. As soon as the
        # replication link rests, its thread may end, and this object may be freed. No field is used after that.
        if (how == GOES_ON and self.oldest == self.next_id and self.all_left()
                and self.due_us(self.now_us) >= wan_read(&self.rest_until_us) and not wan_flag_read(&self.stop_flag)
                and wan_repl_link_change(self.state, WAN_REPL_LINK_WAITS, WAN_REPL_LINK_RESTS)):
            return
        if how != GOES_ON:
            self.ended_beside = how
            memcpy(self.end_detail, wan_detail, WAN_DETAIL_BYTES)
        wan_repl_link_set_asleep(self.state, WAN_REPL_LINK_RUNS)
        eventfd_write(self.state.rest_file, 1)

    cdef void begin(self, uint64_t now_us) noexcept nogil:
        cdef uint32_t n
        Session.begin(self, now_us)
        wan_lock_take(&self.lock)
        self.names_told = 0
        self.oldest = self.next_id = 1
        self.bytes_on_way = self.snapshot_bytes_on_way = 0
        self.asked_us = self.removals_us = 0
        self.answered_us = now_us
        wan_set(&self.state.answered_us, now_us)
        self.is_slow = self.is_telling = self.snapshot_turn = self.has_changes = False
        self.snapshot_window, self.snapshot_next_us, self.snapshot_owed = SNAPSHOT_LEAST_BYTES, 0, 0
        self.shortest_us = self.shortest_before_us = NEVER
        self.period_us = now_us
        wan_buffer_empty(&self.later)
        wan_buffer_empty(&self.to_tell)
        wan_buffer_empty(&self.learners)
        self.drop_snapshot()
        for n in range(self.region_count):
            self.rewind(n)
        wan_lock_release(&self.lock)

    # The choice of the next frame.

    cdef bint has_room(self) noexcept nogil:
        return self.bytes_on_way < WINDOW_BYTES and self.next_id - self.oldest < QUESTIONS_MAX

    cdef bint has_room_for_changes(self) noexcept nogil:
        """Whether the window has room. During a snapshot, a third of the window is reserved for the snapshot."""
        cdef uint64_t changes = self.bytes_on_way - self.snapshot_bytes_on_way
        return not self.snapshot.is_active or changes < WINDOW_BYTES - WINDOW_BYTES // 3

    cdef uint64_t snapshot_limit(self) noexcept nogil:
        """Returns how many bytes of snapshots may be on their way: the window set by `pace_snapshot`, but at least a
        third of all bytes. So a snapshot is whole after three times the time that the replication link takes for its
        bytes, under any load of changes."""
        return max(self.snapshot_window, (self.bytes_on_way - self.snapshot_bytes_on_way) // 2)

    cdef bint may_snapshot(self, uint64_t now_us) noexcept nogil:
        """Whether a piece of a snapshot may leave: there is room and no pause, or the snapshot is owed a piece."""
        return self.snapshot_owed >= SNAPSHOT_OWED_BYTES or self.is_paced(now_us)

    cdef bint is_paced(self, uint64_t now_us) noexcept nogil:
        return self.snapshot_bytes_on_way < self.snapshot_limit() and (now_us == 0 or now_us >= self.snapshot_next_us)

    cdef bint has_work(self) noexcept nogil:
        """Whether a frame can be laid out now. Takes no lock of a bucket."""
        cdef uint32_t n, word
        cdef wan_changelog *changelog
        cdef bint found = self.names_told < self.names.used or (
            wan_repl_link_has_removals(self.state) and self.now_us >= self.removals_us)
        wan_lock_take(&self.lock)
        for n in range(self.region_count if not found else 0):
            changelog = self.changelog_of(n)
            if changelog == NULL:
                continue
            for word in range((changelog.bucket_count + 63) // 64):
                if wan_repl_link_bits(&changelog.to_send[self.number][word]):
                    found = True
                    break
            if found:
                break
        wan_lock_release(&self.lock)
        return found

    cdef int step(self, uint64_t now_us) noexcept nogil:
        cdef int laid
        if self.ended_beside != GOES_ON:
            wan_note(WAN_CORRUPT, "%s", self.end_detail)
            return self.ended_beside
        wan_repl_link_set_asleep(self.state, WAN_REPL_LINK_RUNS)
        if self.oldest < self.next_id:
            if not self.is_slow and now_us > self.slow_from():
                self.is_slow = True
                self.news.tell(NEWS_SLOW, 0, 0, self.questions[self.oldest % QUESTIONS_MAX].sent_us)
            if now_us > self.alive_until():
                wan_note(WAN_CORRUPT, "the member gave no answer for %.1f s", wan_read(&self.receive_timeout_us) / 1e6)
                return ENDED_TOLD
        if not self.all_left():
            return GOES_ON
        if self.later.used and now_us >= self.later_us:
            self.look_again(&self.later)
        if self.to_tell.used and now_us >= self.tell_us:
            self.look_again(&self.to_tell)
            self.is_telling = True
        wan_lock_take(&self.lock)
        laid = self.lay_next(now_us)
        wan_lock_release(&self.lock)
        if laid < 0:
            return ENDED_TOLD
        if laid:
            return GOES_AGAIN
        if not self.has_room() or not self.has_room_for_changes():
            return GOES_ON                  # An answer wakes the session.
        wan_repl_link_set_asleep(self.state, WAN_REPL_LINK_WAITS)
        if self.has_work():
            wan_repl_link_set_asleep(self.state, WAN_REPL_LINK_RUNS)
            return GOES_AGAIN
        if self.oldest == self.next_id and (wan_repl_link_take_wish(self.state) or now_us >= self.ping_from()):
            wan_repl_link_set_asleep(self.state, WAN_REPL_LINK_RUNS)
            if not buffer_frame(&self.out, WAN_FRAME_PING, self.next_id, self.answered(), NULL, 0):
                return ENDED_TOLD
            self.begin_question(sizeof(wan_frame), False, False, now_us)
            return GOES_AGAIN
        return GOES_ON

    cdef uint64_t alive_until(self) noexcept nogil:
        return max(self.questions[self.oldest % QUESTIONS_MAX].sent_us,
                   self.answered_us) + wan_read(&self.receive_timeout_us)

    cdef uint64_t slow_from(self) noexcept nogil:
        return self.questions[self.oldest % QUESTIONS_MAX].sent_us + wan_read(&self.receive_timeout_us)

    cdef uint64_t ping_from(self) noexcept nogil:
        return self.asked_us + min(<uint64_t>PING_US, wan_read(&self.receive_timeout_us) // 4)

    cdef uint64_t due_us(self, uint64_t now_us) noexcept nogil:
        cdef uint64_t due
        if self.oldest < self.next_id:
            due = self.alive_until() + 1
            if not self.is_slow:
                due = min(due, self.slow_from() + 1)
        else:
            due = self.ping_from()
        if not self.all_left():
            return due
        if self.later.used:
            due = min(due, self.later_us)
        if self.to_tell.used:
            due = min(due, self.tell_us)
        if wan_repl_link_has_removals(self.state):
            due = min(due, self.removals_us)
        if self.snapshot.is_copied and self.snapshot_next_us > now_us:
            due = min(due, self.snapshot_next_us)
        return due

    cdef void woken(self, uint64_t since_us, uint64_t now_us) noexcept nogil:
        wan_repl_link_set_asleep(self.state, WAN_REPL_LINK_RUNS)

    cdef uint32_t answered(self) noexcept nogil:
        """Returns the number of the newest question with a received answer, in its low 32 bits. Each question carries
        this number: so the receiver knows that the sender was in contact after sending that answer."""
        return <uint32_t>(self.oldest - 1)

    cdef void begin_question(self, uint32_t bytes, bint of_changes, bint of_snapshot, uint64_t now_us) noexcept nogil:
        cdef repl_question *question = &self.questions[self.next_id % QUESTIONS_MAX]
        question.sent_us, question.bytes = now_us, bytes
        question.of_changes, question.of_snapshot = of_changes, of_snapshot
        self.next_id += 1
        self.bytes_on_way += bytes
        if of_snapshot:
            self.snapshot_bytes_on_way += bytes
        self.asked_us = now_us

    cdef void put_off(self, wan_buffer *to, uint64_t *due_us, uint64_t at_us, uint32_t number,
                      uint32_t bucket) noexcept nogil:
        """Marks the bucket to be looked at again at `at_us`, or a little earlier."""
        cdef repl_bucket where
        where.region, where.bucket = number, bucket
        if to.used == 0:
            due_us[0] = at_us
        if wan_buffer_add(to, &where, sizeof(where)) != WAN_OK:
            self.set_bit(number, bucket)

    cdef void look_again(self, wan_buffer *at) noexcept nogil:
        cdef repl_bucket *where = <repl_bucket *>at.bytes
        cdef uint32_t n
        wan_lock_take(&self.lock)
        for n in range(at.count):
            self.set_bit(where[n].region, where[n].bucket)
        wan_lock_release(&self.lock)
        wan_buffer_empty(at)

    cdef int lay_next(self, uint64_t now_us) noexcept nogil:
        """Lays out one frame. 1: a frame was laid out; 0: no frame is due now; -1: the detail gives the reason of the
        failure."""
        cdef int laid = 0, named = 0, told = 0
        if self.names_told < self.names.used:
            # Not a question, and not counted in the window.
            if not buffer_frame(&self.out, WAN_FRAME_REPL_REGIONS, 0, 0, self.names.bytes + self.names_told,
                                self.names.used - self.names_told):
                return -1
            self.names_told = self.names.used
            named = 1
        if wan_repl_link_has_removals(self.state) and now_us >= self.removals_us:
            told = self.lay_removals(now_us)
            if told < 0:
                return -1
        while laid == 0 and self.has_room():
            if self.copy_snapshot() < 0:
                return -1
            # Changes and pieces of a snapshot take turns.
            if self.snapshot_turn:
                laid = self.lay_snapshot(now_us) or self.lay_changes(now_us)
            else:
                laid = self.lay_changes(now_us) or self.lay_snapshot(now_us)
            self.snapshot_turn = not self.snapshot_turn
            if (self.snapshot.is_active or self.learners.start == self.learners.used
                    or not self.may_snapshot(0)):
                break                       # Otherwise the round found a bucket with a snapshot to send.
        return laid or named or told

    cdef int lay_removals(self, uint64_t now_us) noexcept nogil:
        """Lays out removals that were not sent before, as `lay_next`. The frame is not a question, and is not counted
        in the window."""
        cdef wan_repl_head head
        cdef wan_changelog *changelog
        cdef uint32_t n
        cdef int found = 0
        self.removals_us = now_us + REMOVALS_US
        # Cleared before the look: a later removal wakes the replication link again.
        wan_repl_link_take_removals(self.state)
        memset(&head, 0, sizeof(head))
        wan_buffer_empty(&self.removals)
        if wan_buffer_add(&self.removals, &head, sizeof(head)) != WAN_OK:
            found = REMOVALS_NO_MEMORY
        for n in range(self.region_count):
            changelog = self.changelog_of(n)
            if changelog != NULL and not found & (REMOVALS_FULL | REMOVALS_NO_MEMORY):
                found |= removals_collect(changelog, self.number, n, &self.removals)
        if found & REMOVALS_NO_MEMORY:
            wan_note(WAN_NO_MEMORY, "no memory for the removals of a replication link")
            return -1
        if found:                               # More removals wait, or some have to wait for the high watermark.
            wan_repl_link_note_removals(self.state)
        if found & REMOVALS_FULL:
            self.removals_us = now_us
        if self.removals.count == 1:
            return 0
        (<wan_repl_head *>self.removals.bytes).count = self.removals.count - 1
        if not buffer_frame(&self.out, WAN_FRAME_REPL_REMOVAL, 0, 0, self.removals.bytes, self.removals.used):
            return -1
        wan_buffer_trim(&self.removals, FRAME_BYTES)
        return 1

    cdef int lay_changes(self, uint64_t now_us) noexcept nogil:
        """Lays out one frame with changes of the buckets, as `lay_next`. The round begins after the last bucket of the
        frame before."""
        cdef uint64_t frame_at, bits
        cdef uint64_t *words
        cdef uint32_t sections = 0, _tried, word, bucket
        cdef wan_frame *frame
        cdef wan_changelog *changelog
        cdef int laid = 0
        if self.region_count == 0 or not self.has_room_for_changes():
            return 0
        if not buffer_reserve(&self.out, HEAD_BYTES + FRAME_BYTES + BUCKET_BYTES):
            wan_note(WAN_NO_MEMORY, "no memory for a frame of a replication link")
            return -1
        frame_at = self.out.used - self.out.start
        memset(self.out.bytes + self.out.used, 0, HEAD_BYTES)
        self.out.used += HEAD_BYTES
        if self.at_region >= self.region_count:
            self.at_region = self.at_bucket = 0
        if self.snapshot.is_copied:            # A piece of the bucket's snapshot waits for this stream.
            changelog = self.changelog_of(self.snapshot.where.region)
            if changelog != NULL and not snapshot_is_next(&self.snapshot,
                                                          &changelog.buckets[self.snapshot.where.bucket], self.number):
                laid = self.lay_bucket(self.snapshot.where.region, self.snapshot.where.bucket, frame_at, sections,
                                       now_us)
                if laid < 0:
                    return -1
                if laid & HAS_MORE:
                    wan_repl_link_set_bit(changelog.to_send[self.number], self.snapshot.where.bucket)
                sections += laid & LAID
                laid = 0
        # The region at the start of the round is looked at twice: after the start bucket, and up to the start bucket.
        for _tried in range(self.region_count + 1):
            changelog = self.changelog_of(self.at_region)
            while changelog != NULL and self.at_bucket < changelog.bucket_count and laid == 0:
                words = changelog.to_send[self.number]
                word = self.at_bucket // 64
                bits = wan_repl_link_bits(&words[word]) >> self.at_bucket % 64
                if bits == 0:
                    self.at_bucket = (word + 1) * 64
                    continue
                bucket = self.at_bucket + wan_lowest_bit(bits)
                if bucket >= changelog.bucket_count:
                    break
                wan_repl_link_clear_bit(words, bucket)
                laid = self.lay_bucket(self.at_region, bucket, frame_at, sections, now_us)
                if laid < 0:
                    return -1
                self.at_bucket = bucket
                if laid == NO_ROOM:         # The bucket begins the next frame.
                    wan_repl_link_set_bit(words, bucket)
                    break
                self.at_bucket += 1
                if laid & HAS_MORE:
                    wan_repl_link_set_bit(words, bucket)
                if laid & LAID:
                    sections += 1
                laid = 0
                if self.out.used - self.out.start - frame_at >= FRAME_BYTES or sections == WAN_REPL_SECTIONS_MAX:
                    laid = NO_ROOM
            if laid == NO_ROOM:
                break
            self.at_region, self.at_bucket = (self.at_region + 1) % self.region_count, 0
        self.is_telling = False
        frame = <wan_frame *>(self.out.bytes + self.out.start + frame_at)
        if sections == 0:
            self.out.used = self.out.start + frame_at
            return 0
        frame.magic, frame.type, frame.id = WAN_FRAME_MAGIC, WAN_FRAME_REPL_CHANGES, self.next_id
        frame.count = self.answered()
        (<wan_repl_head *>(frame + 1)).count = sections
        frame.length = frame.raw_length = <uint32_t>(self.out.used - self.out.start - frame_at - sizeof(wan_frame))
        frame.crc = wan_frame_crc(frame, frame + 1, frame.length)
        self.begin_question(<uint32_t>sizeof(wan_frame) + frame.length, True, False, now_us)
        if self.snapshot.is_active:
            self.snapshot_owed = min(<uint64_t>FRAME_BYTES, self.snapshot_owed + frame.length // 2)
        return 1

    cdef int lay_bucket(self, uint32_t number, uint32_t bucket, uint64_t frame_at, uint32_t sections,
                        uint64_t now_us) noexcept nogil:
        """Lays out the changes of one bucket for the replica. LAID: a section was added. HAS_MORE: the bucket has more
        changes now. NO_ROOM: nothing was added, because the frame has no room. -1: no memory."""
        cdef wan_changelog *changelog = self.changelog_of(number)
        cdef wan_changelog_bucket *at = &changelog.buckets[bucket]
        cdef wan_changelog_replica *replica
        cdef wan_repl_section section
        cdef wan_changelog_entry *entry
        cdef uint8_t *begin = NULL
        cdef uint64_t limit, bytes = 0, first, room, notified
        cdef int done = LAID
        wan_lock_take(&at.lock)
        replica = replica_of(at, self.number)
        if replica == NULL or replica.refused or (replica.asked and not replica.confirmed):
            wan_lock_release(&at.lock)
            return 0
        if replica.retry_us > now_us:
            wan_lock_release(&at.lock)
            self.put_off(&self.later, &self.later_us, now_us + LATER_US, number, bucket)
            return 0
        if (replica.state == WAN_FOLLOWER_LEARNING and replica.confirmed and replica.snapshot_shard == 0
                and not replica.queued):
            self.queue_snapshot(replica, number, bucket)
        limit = at.log_end
        if self.snapshot.is_copied and self.snapshot.where.region == number and self.snapshot.where.bucket == bucket:
            limit = min(limit, self.snapshot.through)
        first = max(replica.sent + 1, at.first)
        notified = wan_notifications_through(wan_changelog_notifications(changelog), bucket, at.high_watermark)
        memset(&section, 0, sizeof(section))
        if first <= limit:
            begin = find_entry(at, replica, first)
            room = FRAME_BYTES - min(<uint64_t>FRAME_BYTES, self.out.used - self.out.start - frame_at)
            while first + section.count <= limit:
                entry = <wan_changelog_entry *>(begin + bytes)
                if bytes + entry.length > room and (section.count or sections):
                    break
                bytes += entry.length
                section.count += 1
                if bytes >= BUCKET_BYTES:
                    break
            if section.count == 0:
                wan_lock_release(&at.lock)
                return NO_ROOM
            if first + section.count <= limit:
                done |= HAS_MORE
        elif replica.confirmed and replica.told >= at.high_watermark and replica.notified >= notified:
            wan_lock_release(&at.lock)
            return 0
        elif replica.confirmed and sections == 0 and not self.is_telling:
            wan_lock_release(&at.lock)
            self.put_off(&self.to_tell, &self.tell_us, now_us + TELL_US, number, bucket)
            return 0
        if not buffer_reserve(&self.out, sizeof(section) + bytes):
            wan_lock_release(&at.lock)
            wan_note(WAN_NO_MEMORY, "no memory for %llu bytes of a bucket's changes", <unsigned long long>bytes)
            return -1
        section.region, section.bucket = number, bucket
        section.timeline, section.epoch, section.transfer = at.timeline, at.epoch, replica.transfer
        section.first, section.high_watermark, section.bytes = first, at.high_watermark, <uint32_t>bytes
        section.notified = notified
        memcpy(self.out.bytes + self.out.used, &section, sizeof(section))
        self.out.used += sizeof(section)
        if bytes:
            memcpy(self.out.bytes + self.out.used, begin, bytes)
            self.out.used += bytes
            replica.place = at.dropped_bytes + <uint64_t>(begin - (at.changes.bytes + at.changes.start)) + bytes
            replica.place_sequence = first + section.count - 1
        replica.sent = first + section.count - 1
        replica.told, replica.notified = at.high_watermark, notified
        replica.asked = not replica.confirmed
        wan_lock_release(&at.lock)
        return done

    # Answers of the receiver.

    cdef int take_frame(self, wan_frame *frame) noexcept nogil:
        cdef int how
        if frame.flags == 0 and (frame.type == WAN_FRAME_REPL_ANSWER or frame.type == WAN_FRAME_PONG):
            if wan_repl_check(frame.type, <const uint8_t *>(frame + 1), frame.length) != WAN_OK:
                return ENDED_TOLD
            wan_lock_take(&self.lock)
            how = self.take_answer(frame)
            wan_lock_release(&self.lock)
            return how
        if frame.type == WAN_FRAME_BYE:
            wan_note(WAN_CORRUPT, "the member is stopping")
        elif frame.type == WAN_FRAME_ERROR:
            wan_note(WAN_CORRUPT, "the member says: %.*s", <int>min(frame.length, 400), <const char *>(frame + 1))
        else:
            wan_note(WAN_CORRUPT, "frame of type %u from the receiver of a replication link", frame.type)
        return ENDED_TOLD

    cdef int take_answer(self, const wan_frame *frame) noexcept nogil:
        cdef const wan_repl_head *head = <const wan_repl_head *>(frame + 1)
        cdef const wan_repl_answer *answer = <const wan_repl_answer *>(head + 1)
        cdef uint64_t sent_us = 0
        cdef uint32_t n
        if frame.id:
            if frame.id != self.oldest or self.oldest == self.next_id:
                wan_note(WAN_CORRUPT, "an answer to question %llu, where %llu to %llu are open",
                         <unsigned long long>frame.id, <unsigned long long>self.oldest,
                         <unsigned long long>(self.next_id - 1))
                return ENDED_TOLD
            sent_us = self.questions[self.oldest % QUESTIONS_MAX].sent_us
            if not self.end_question(frame):
                return ENDED_TOLD
        wan_flag_set(<int *>&self.state.is_short, frame.count & WAN_REPL_SHORT)
        for n in range(head.count if frame.type == WAN_FRAME_REPL_ANSWER else 0):
            if self.take_one(&answer[n]) != GOES_ON:
                return ENDED_TOLD
        # After the refusals: a read must not trust this read lease for a refused bucket.
        if sent_us:
            wan_set(&self.state.read_lease_until_us, sent_us + WAN_READ_LEASE_US)
        return GOES_ON

    cdef bint end_question(self, const wan_frame *frame) noexcept nogil:
        cdef repl_question *question = &self.questions[self.oldest % QUESTIONS_MAX]
        if (frame.type == WAN_FRAME_PONG) != (not question.of_changes and not question.of_snapshot):
            wan_note(WAN_CORRUPT, "an answer of type %u to question %llu", frame.type, <unsigned long long>frame.id)
            return False
        self.bytes_on_way -= question.bytes
        self.pace_snapshot(question)
        self.oldest += 1
        self.answered_us = self.now_us
        self.is_slow = False
        wan_set(&self.state.answered_us, self.now_us)
        return True

    cdef void pace_snapshot(self, const repl_question *question) noexcept nogil:
        """Measures the time of an answer, and sets the speed of the snapshot.

        A put waits for all earlier bytes on the replication link. The window grows with each piece while answers take
        at most twice as long as without a snapshot, and shrinks while answers take longer: so a put takes at most twice
        as long. If a single piece takes longer than that, and there are puts, the snapshot pauses after the piece for
        as long as the receiver worked on the piece. The snapshot then has half of the replication link, and takes twice
        the time that it would take alone."""
        cdef uint64_t took = self.now_us - question.sent_us, shortest
        if self.now_us - self.period_us > <uint64_t>PERIOD_US:
            self.shortest_before_us = self.shortest_us
            if self.now_us - self.period_us > 2 * <uint64_t>PERIOD_US:
                self.shortest_before_us = NEVER
            self.shortest_us, self.period_us = NEVER, self.now_us
        self.shortest_us = min(self.shortest_us, took)
        if not question.of_snapshot:
            self.has_changes = self.has_changes or question.of_changes
            return
        self.snapshot_bytes_on_way -= question.bytes
        shortest = min(self.shortest_us, self.shortest_before_us)
        if took <= 2 * shortest:
            self.snapshot_window = min(<uint64_t>SNAPSHOT_WINDOW_BYTES, self.snapshot_window + question.bytes)
        else:
            self.snapshot_window -= min(<uint64_t>question.bytes, self.snapshot_window) // 2
            self.snapshot_window = max(<uint64_t>SNAPSHOT_LEAST_BYTES, self.snapshot_window)
        self.snapshot_next_us = 0
        if self.has_changes:
            took = self.now_us - max(question.sent_us, self.answered_us)
            took = min(took, <uint64_t>SNAPSHOT_REST_US)
            self.snapshot_next_us = self.now_us + took
        self.has_changes = False

    cdef int take_one(self, const wan_repl_answer *answer) noexcept nogil:
        """Handles the answer to one section, or to a piece of a snapshot."""
        cdef wan_changelog *changelog = self.changelog_of(answer.region)
        cdef wan_changelog_bucket *at
        cdef wan_changelog_replica *replica
        cdef bint applied = False, was_asked = False, refused = False, later = False
        cdef uint64_t last, acked, transfer
        cdef int order, became = 0
        if changelog == NULL or answer.bucket >= changelog.bucket_count:
            return GOES_ON              # The region was removed from this replication link.
        at = &changelog.buckets[answer.bucket]
        wan_lock_take(&at.lock)
        replica = replica_of(at, self.number)
        if replica == NULL:
            wan_lock_release(&at.lock)
            return GOES_ON
        last, acked, transfer = at.log_end, replica.acked, replica.transfer
        order = wan_epoch_order(answer.timeline, answer.epoch, at.timeline, at.epoch)
        if answer.kind == WAN_ANSWER_REFUSED:
            if order > 0 and not replica.refused:
                replica.refused, replica.confirmed, replica.asked, refused = 1, 0, 0, True
        elif order == 0 and not replica.refused:
            was_asked, replica.asked = replica.asked, 0
            if answer.kind == WAN_ANSWER_LATER:
                replica.confirmed, replica.queued, later = 0, 0, True
                if replica.state == WAN_FOLLOWER_LEARNING:
                    replica.snapshot_shard = 0
                replica.sent, replica.retry_us = replica.acked, self.now_us + LATER_US
            elif answer.kind == WAN_ANSWER_APPLIED:
                applied, acked = answer.sequence <= last, answer.sequence
        wan_lock_release(&at.lock)
        if answer.kind == WAN_ANSWER_APPLIED and order == 0 and answer.sequence > last:
            wan_note(WAN_CORRUPT, "the member acknowledges sequence %llu of bucket %u, where %llu is the last one",
                     <unsigned long long>answer.sequence, answer.bucket, <unsigned long long>last)
            return ENDED_TOLD
        # The learner may have all replicated changes already.
        if order == 0 and answer.kind == WAN_ANSWER_SNAPSHOT:
            applied = wan_changelog_snapshot_acked(changelog, answer.bucket, self.number, answer.timeline,
                                                   answer.epoch, answer.sequence)
        if applied:
            became = wan_changelog_acknowledged(changelog, answer.bucket, self.number, answer.timeline, answer.epoch,
                                                acked)
            if became & WAN_CHANGELOG_GREW:
                changelog_ready_events(changelog, answer.bucket)
            if was_asked:                   # More changes may wait by now.
                wan_repl_link_set_bit(changelog.to_send[self.number], answer.bucket)
        if refused:
            self.news.tell(NEWS_REFUSED, answer.region, answer.bucket, answer.epoch)
        if became & WAN_CHANGELOG_CAUGHT_UP:
            self.news.tell(NEWS_LEARNED, answer.region, answer.bucket, transfer)
        if later:
            if self.snapshot.is_active and (self.snapshot.where.region == answer.region
                                            and self.snapshot.where.bucket == answer.bucket):
                self.drop_snapshot()
            self.put_off(&self.later, &self.later_us, self.now_us + LATER_US, answer.region, answer.bucket)
        return GOES_ON

    cdef int closed(self, bint while_reading) noexcept nogil:
        if while_reading:
            wan_note(WAN_CORRUPT, "the member closed the replication link")
        else:
            wan_note(WAN_CORRUPT, "the replication link to the member broke")
        return ENDED_TOLD

    # Snapshots.

    cdef void queue_snapshot(self, wan_changelog_replica *replica, uint32_t number, uint32_t bucket) noexcept nogil:
        """Queues the snapshot of a bucket. Under the bucket's lock."""
        cdef repl_bucket where
        where.region, where.bucket = number, bucket
        if wan_buffer_add(&self.learners, &where, sizeof(where)) == WAN_OK:
            replica.queued = 1

    cdef void drop_snapshot(self) noexcept nogil:
        wan_buffer_trim(&self.snapshot.events, FRAME_BYTES * 4)
        wan_buffer_trim(&self.snapshot.entries, FRAME_BYTES * 4)
        wan_buffer_trim(&self.snapshot.shrunk, FRAME_BYTES)
        wan_buffer_trim(&self.snapshot.answers, FRAME_BYTES)
        self.snapshot.is_active = self.snapshot.is_copied = 0

    cdef int copy_snapshot(self) noexcept nogil:
        """Copies the next shards of a snapshot, if a snapshot is under way and no copied content waits. -1: no
        memory."""
        cdef repl_snapshot *snapshot = &self.snapshot
        cdef wan_changelog *changelog
        cdef int copied
        if snapshot.is_copied or not self.may_snapshot(0):
            return 0
        while not snapshot.is_active and self.learners.start < self.learners.used:
            memcpy(&snapshot.where, self.learners.bytes + self.learners.start, sizeof(repl_bucket))
            self.learners.start += sizeof(repl_bucket)
            if self.learners.start == self.learners.used:
                wan_buffer_empty(&self.learners)
            changelog = self.changelog_of(snapshot.where.region)
            if changelog != NULL:
                snapshot.is_active = snapshot_begin(snapshot, &changelog.buckets[snapshot.where.bucket], self.number)
        if not snapshot.is_active:
            return 0
        changelog = self.changelog_of(snapshot.where.region)
        copied = 0 if changelog == NULL else snapshot_copy(snapshot, self.regions[snapshot.where.region].core,
                                                           self.number)
        if copied < 0:
            if wan_detail_status != WAN_IO:     # A file of a queue is unreadable: the detail names the file.
                wan_note(WAN_NO_MEMORY, "no memory for the snapshot of bucket %u", snapshot.where.bucket)
            return -1
        if copied == 0:                     # The replica is no learner any more.
            self.drop_snapshot()
        else:
            self.set_bit(snapshot.where.region, snapshot.where.bucket)
        return 0

    cdef int lay_snapshot(self, uint64_t now_us) noexcept nogil:
        """Lays out a piece of the snapshot if the stream has reached the snapshot's sequence, as `lay_next`."""
        cdef repl_snapshot *snapshot = &self.snapshot
        cdef wan_changelog *changelog
        cdef uint64_t most = self.snapshot_owed, laid
        if not snapshot.is_copied or not self.may_snapshot(now_us):
            return 0
        changelog = self.changelog_of(snapshot.where.region)
        if changelog == NULL or not snapshot_stays(snapshot, &changelog.buckets[snapshot.where.bucket], self.number):
            self.drop_snapshot()
            return 0
        if not snapshot_is_next(snapshot, &changelog.buckets[snapshot.where.bucket], self.number):
            return 0
        if not buffer_reserve(&self.out, 2 * FRAME_BYTES + snapshot.largest):
            wan_note(WAN_NO_MEMORY, "no memory for a piece of the snapshot of bucket %u", snapshot.where.bucket)
            return -1
        if self.is_paced(now_us):
            most = min(<uint64_t>FRAME_BYTES, max(most, self.snapshot_limit() // 2))
        laid = snapshot_lay(snapshot, &self.out, self.next_id, self.answered(), most)
        self.snapshot_owed -= min(self.snapshot_owed, laid)
        if not snapshot.is_copied:
            if snapshot.is_whole:
                self.drop_snapshot()
            self.set_bit(snapshot.where.region, snapshot.where.bucket)    # The stream of the bucket was held.
        if laid:
            self.begin_question(<uint32_t>laid, False, True, now_us)
        return 1
