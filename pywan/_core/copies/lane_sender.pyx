# Owns the sending end of a lane: which buckets have something for the other member, what of it leaves next, and what
# the answers mean for the tails. `LaneSenderSession` knows no socket and no clock. The images are in lane_image.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove, memset
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from pywan._core.c_base cimport *
from pywan._core.c_copies cimport *
from pywan._core.c_lane cimport *
from pywan._core.c_record cimport *
from pywan._core.c_system cimport *
from pywan._core.copies.lane_image cimport (
    copy_of, image_begin, image_copy, image_is_next, image_lay, image_stays, lane_bucket, lane_image)
from pywan._core.copies.lane_settled cimport SETTLED_FULL, SETTLED_NO_MEMORY, settled_collect
from pywan._core.copies.lane_news cimport NEWS_LEARNED, NEWS_REFUSED, NEWS_SLOW, News
from pywan._core.region.region_state cimport region_core
from pywan._core.wire.byte_stream cimport OTHER_READY, WOKEN, ByteStream
from pywan._core.wire.session cimport (
    ENDED_CLOSED, ENDED_STOPPED, ENDED_TOLD, GOES_AGAIN, GOES_ON, Session, session_turn)
from pywan._core.base.status cimport detail_text, raise_for
from pywan._core.wire.stream cimport buffer_frame, buffer_reserve
from pywan._core.wire.tls_stream cimport stream_of
from pywan._core.region.tail cimport LaneState, tail_count_events


cdef enum:
    FRAME_BYTES = 256 << 10         # A frame is closed behind so many bytes. A larger entry has a frame of its own.
    BUCKET_BYTES = 64 << 10         # The share of one bucket in a frame.
    WINDOW_BYTES = 4 << 20          # Changes and images that may be on their way.
    # Images that may be: between these, as `pace_image` finds. A put waits until they are applied.
    IMAGE_LEAST_BYTES = 32 << 10
    IMAGE_OWED_BYTES = IMAGE_LEAST_BYTES // 2     # What an image is owed leaves when it is so much.
    IMAGE_WINDOW_BYTES = 2 << 20
    IMAGE_REST_US = 50000           # The longest pause between two pieces of an image.
    PERIOD_US = 5000000             # The shortest time of an answer is looked for in so long.
    PING_US = 100000                # At most a quarter of the member time-out, so that silence means something.
    LATER_US = 50000                # A copy that said "later" is asked again after so long.
    REST_LOOK_US = 10000            # While another thread runs the lane, the lane's thread looks so often.
    SETTLED_US = 10000              # What is settled is told again after so long.
    TELL_US = 2000                  # A copy that gets no changes is told what counts after so long.
    # What became of a bucket's turn.
    LAID = 1, HAS_MORE = 2, NO_ROOM = 4
    HEAD_BYTES = sizeof(wan_frame) + sizeof(wan_lane_head)


cdef uint8_t *find_entry(wan_tail_bucket *at, wan_tail_copy *copy, uint64_t sequence) noexcept nogil:
    """The entry with this sequence, first <= sequence <= last. It goes on where the copy's place is, if that is known.
    Under the bucket's lock."""
    cdef uint8_t *entry = at.changes.bytes + at.changes.start
    cdef uint64_t here = at.first
    # A place at the very front is also the place of whatever came there when all else was dropped.
    if copy.place_sequence < sequence and copy.place_sequence + 1 >= at.first and (
            copy.place > at.dropped_bytes or (copy.place == at.dropped_bytes and copy.place_sequence + 1 == at.first)):
        entry += copy.place - at.dropped_bytes
        here = copy.place_sequence + 1
    while here < sequence:
        entry += (<wan_tail_entry *>entry).length
        here += 1
    return entry


cdef void run_lane(void *runner, const wan_lane_wait *wait) noexcept nogil:
    (<LaneSenderSession>runner).run_for(wait)


cdef class LaneSenderSession(Session):
    """The sending end of lane `number`. Its owner keeps it, and the state that the tails know. All times are those of
    wan_monotonic_us."""

    def __cinit__(self, uint32_t number, LaneState owner not None, News news not None):
        self.number, self.state, self.news = number, &owner.state, news
        self.state.run, self.state.runner = run_lane, <void *>self
        self.wake_file = owner.state.wake_file
        self.reads_while_writing = True
        self.oldest = self.next_id = 1

    def __dealloc__(self):
        free(self.regions)
        wan_buffer_close(&self.names)
        wan_buffer_close(&self.later)
        wan_buffer_close(&self.to_tell)
        wan_buffer_close(&self.settled)
        wan_buffer_close(&self.learners)
        wan_buffer_close(&self.image.entries)
        wan_buffer_close(&self.image.shrunk)
        wan_buffer_close(&self.image.answers)

    # Regions. The caller holds the lock.

    cdef wan_tail *tail_of(self, uint32_t number) noexcept nogil:
        """The tail of a region, if this lane is in it. NULL: it is not."""
        cdef wan_tail *tail
        if number >= self.region_count or self.regions[number].core == NULL:
            return NULL
        tail = self.regions[number].core.tail
        return tail if tail != NULL and tail.to_send[self.number] != NULL else NULL

    cdef void set_bit(self, uint32_t number, uint32_t bucket) noexcept nogil:
        """Has the bucket looked at again."""
        cdef wan_tail *tail = self.tail_of(number)
        if tail != NULL and bucket < tail.bucket_count:
            wan_lane_set_bit(tail.to_send[self.number], bucket)

    cdef void rewind(self, uint32_t number) noexcept nogil:
        """The connection is new for this region: everything that was not acknowledged is sent again."""
        cdef wan_tail *tail = self.tail_of(number)
        if tail != NULL:
            wan_tail_rewind(tail, self.number)

    cdef int add_region(self, uint32_t number, bytes name, region_core *core) except -1:
        """As `LaneSender.add_region`. The caller keeps the region alive until it is removed."""
        cdef wan_lane_region told
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
                grown = realloc(self.regions, count * sizeof(lane_region))
                if grown == NULL:
                    status = WAN_NO_MEMORY
                else:
                    self.regions = <lane_region *>grown
                    memset(self.regions + self.region_count, 0, (count - self.region_count) * sizeof(lane_region))
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
        return raise_for(status, "a region of a lane")

    cdef void remove_region(self, uint32_t number) noexcept nogil:
        """When this returns, the lane's thread does not use the region any more."""
        cdef uint64_t at = 0, length
        cdef wan_lane_region *told
        wan_lock_take(&self.lock)
        self.regions[number].core = NULL
        while at < self.names.used:
            told = <wan_lane_region *>(self.names.bytes + at)
            length = sizeof(wan_lane_region) + wan_align8(told.name_length)
            if told.number == number:
                memmove(told, <uint8_t *>told + length, self.names.used - at - length)
                self.names.used -= length
                if self.names_told > at:
                    self.names_told -= length
            else:
                at += length
        wan_lock_release(&self.lock)

    # What other threads call.

    cdef void wake(self) noexcept nogil:
        """Whoever runs the lane looks at everything again."""
        eventfd_write(self.state.wake_file, 1)
        wan_lane_wake(self.state)

    def stop(self):
        """Makes `run` return soon, also a later one."""
        wan_flag_set(&self.stop_flag, 1)
        self.wake()

    # A connection begins.

    def connected(self):
        """The connection is a new one. It begins when its driver tells the time."""
        self.forget_bytes()
        self.now_us = 0
        self.ended = GOES_ON

    def run(self, sock):
        """Sends over a connected socket until it breaks, or until `stop`. Returns "stopped", or why it ended. The GIL
        is free meanwhile."""
        self.connected()
        self.stream, self.ended_beside = stream_of(sock), GOES_ON
        wan_lane_set_connected(self.state, 1)
        try:
            ended = self.run_over(self.stream)
            return {ENDED_STOPPED: "stopped", ENDED_CLOSED: "closed"}.get(ended) or detail_text()
        finally:
            wan_lane_set_connected(self.state, 0)
            self.stream = None

    # Who runs the lane.

    cdef int wait(self, ByteStream stream, bint to_read, bint to_write, uint64_t until_us) noexcept nogil:
        """As `Session.wait`. If nothing is on its way, the lane's thread leaves the lane to whoever has work for it."""
        if self.stream is None or self.oldest != self.next_id or to_write:
            return Session.wait(self, stream, to_read, to_write, until_us)
        wan_set(&self.rest_until_us, until_us)
        if not wan_lane_change(self.state, WAN_LANE_WAITS, WAN_LANE_RESTS):     # There is work by now.
            return Session.wait(self, stream, to_read, to_write, until_us)
        return self.rest(until_us)

    cdef int rest(self, uint64_t until_us) noexcept nogil:
        """Waits until this thread has to run the lane again."""
        cdef int ready = 0
        if wan_flag_read(&self.stop_flag):      # Perhaps since just before the lane rested.
            until_us = 0
        while True:
            if until_us:
                ready = self.stream.wait_for_end(self.state.rest_file, until_us)
            if ready & WOKEN or wan_lane_change(self.state, WAN_LANE_RESTS, WAN_LANE_RUNS):
                return ready
            # Another thread runs the lane. It writes to the file, or leaves the lane at rest.
            until_us = self.stream.now_us() + REST_LOOK_US

    cdef void run_for(self, const wan_lane_wait *wait) noexcept nogil:
        """As `wan_lane_state.run`."""
        cdef wan_tail_bucket *at = &wait.tail.buckets[wait.bucket]
        cdef uint64_t now = 0, due
        cdef int how, ready = 0
        self.runs_beside += 1
        while True:
            how = session_turn(self, self.stream, &now)
            if how == GOES_AGAIN:
                continue
            if (how != GOES_ON or ready & OTHER_READY or self.oldest == self.next_id or now >= wait.until_us
                    or wan_read(&at.counted) >= wait.sequence or wan_read(&at.era) != wait.era):
                break
            due = min(self.due_us(now), wait.until_us)
            ready = self.stream.wait_beside(not self.all_left(), self.wake_file, wait.other_file, due)
            self.woken(now, self.stream.now_us())
        self.hand_back(how)

    cdef void hand_back(self, int how) noexcept nogil:
        """Leaves the lane at rest if its thread has nothing to do before it looks anyway; otherwise that runs it."""
        # The flag is looked at first: whoever sets it makes the state WAN_LANE_RUNS afterwards. As soon as the lane
        # rests its thread may end, and this object go. Nothing is touched then.
        if (how == GOES_ON and self.oldest == self.next_id and self.all_left()
                and self.due_us(self.now_us) >= wan_read(&self.rest_until_us) and not wan_flag_read(&self.stop_flag)
                and wan_lane_change(self.state, WAN_LANE_WAITS, WAN_LANE_RESTS)):
            return
        if how != GOES_ON:
            self.ended_beside = how
            memcpy(self.end_detail, wan_detail, WAN_DETAIL_BYTES)
        wan_lane_set_asleep(self.state, WAN_LANE_RUNS)
        eventfd_write(self.state.rest_file, 1)

    cdef void begin(self, uint64_t now_us) noexcept nogil:
        cdef uint32_t n
        Session.begin(self, now_us)
        wan_lock_take(&self.lock)
        self.names_told = 0
        self.oldest = self.next_id = 1
        self.bytes_on_way = self.image_bytes_on_way = 0
        self.asked_us = self.settled_us = 0
        self.answered_us = now_us
        wan_set(&self.state.answered_us, now_us)
        self.is_slow = self.is_telling = self.image_turn = self.has_changes = False
        self.image_window, self.image_next_us, self.image_owed = IMAGE_LEAST_BYTES, 0, 0
        self.shortest_us = self.shortest_before_us = NEVER
        self.period_us = now_us
        wan_buffer_empty(&self.later)
        wan_buffer_empty(&self.to_tell)
        wan_buffer_empty(&self.learners)
        self.drop_image()
        for n in range(self.region_count):
            self.rewind(n)
        wan_lock_release(&self.lock)

    # What leaves.

    cdef bint has_room(self) noexcept nogil:
        return self.bytes_on_way < WINDOW_BYTES and self.next_id - self.oldest < QUESTIONS_MAX

    cdef bint has_room_for_changes(self) noexcept nogil:
        """While there is an image, a third of the window is left for it."""
        cdef uint64_t changes = self.bytes_on_way - self.image_bytes_on_way
        return not self.image.is_active or changes < WINDOW_BYTES - WINDOW_BYTES // 3

    cdef uint64_t image_limit(self) noexcept nogil:
        """How many bytes of images may be on their way: what `pace_image` found, but a third of all at least. So an
        image is whole after three times the time that the lane takes for its bytes, whatever changes there are."""
        return max(self.image_window, (self.bytes_on_way - self.image_bytes_on_way) // 2)

    cdef bint may_image(self, uint64_t now_us) noexcept nogil:
        """Whether a piece of an image may leave: there is room for it and it does not rest, or it has too little."""
        return self.image_owed >= IMAGE_OWED_BYTES or self.is_paced(now_us)

    cdef bint is_paced(self, uint64_t now_us) noexcept nogil:
        return self.image_bytes_on_way < self.image_limit() and (now_us == 0 or now_us >= self.image_next_us)

    cdef bint has_work(self) noexcept nogil:
        """Whether there is something to lay out now. It takes no lock of a bucket."""
        cdef uint32_t n, word
        cdef wan_tail *tail
        cdef bint found = self.names_told < self.names.used or (
            wan_lane_has_settled(self.state) and self.now_us >= self.settled_us)
        wan_lock_take(&self.lock)
        for n in range(self.region_count if not found else 0):
            tail = self.tail_of(n)
            if tail == NULL:
                continue
            for word in range((tail.bucket_count + 63) // 64):
                if wan_lane_bits(&tail.to_send[self.number][word]):
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
        wan_lane_set_asleep(self.state, WAN_LANE_RUNS)
        if self.oldest < self.next_id:
            if not self.is_slow and now_us > self.slow_from():
                self.is_slow = True
                self.news.tell(NEWS_SLOW, 0, 0, self.questions[self.oldest % QUESTIONS_MAX].sent_us)
            if now_us > self.alive_until():
                wan_note(WAN_CORRUPT, "the member gave no answer for %.1f s", wan_read(&self.silence_us) / 1e6)
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
        wan_lane_set_asleep(self.state, WAN_LANE_WAITS)
        if self.has_work():
            wan_lane_set_asleep(self.state, WAN_LANE_RUNS)
            return GOES_AGAIN
        if self.oldest == self.next_id and (wan_lane_take_wish(self.state) or now_us >= self.ping_from()):
            wan_lane_set_asleep(self.state, WAN_LANE_RUNS)
            if not buffer_frame(&self.out, WAN_FRAME_PING, self.next_id, self.answered(), NULL, 0):
                return ENDED_TOLD
            self.begin_question(sizeof(wan_frame), False, False, now_us)
            return GOES_AGAIN
        return GOES_ON

    cdef uint64_t alive_until(self) noexcept nogil:
        return max(self.questions[self.oldest % QUESTIONS_MAX].sent_us, self.answered_us) + wan_read(&self.silence_us)

    cdef uint64_t slow_from(self) noexcept nogil:
        return self.questions[self.oldest % QUESTIONS_MAX].sent_us + wan_read(&self.silence_us)

    cdef uint64_t ping_from(self) noexcept nogil:
        return self.asked_us + min(<uint64_t>PING_US, wan_read(&self.silence_us) // 4)

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
        if wan_lane_has_settled(self.state):
            due = min(due, self.settled_us)
        if self.image.is_copied and self.image_next_us > now_us:
            due = min(due, self.image_next_us)
        return due

    cdef void woken(self, uint64_t since_us, uint64_t now_us) noexcept nogil:
        wan_lane_set_asleep(self.state, WAN_LANE_RUNS)

    cdef uint32_t answered(self) noexcept nogil:
        """The number of the newest question whose answer has come, in its low 32 bits. Each question says it: so the
        receiver knows that this end had heard it after that answer."""
        return <uint32_t>(self.oldest - 1)

    cdef void begin_question(self, uint32_t bytes, bint of_changes, bint of_image, uint64_t now_us) noexcept nogil:
        cdef lane_question *question = &self.questions[self.next_id % QUESTIONS_MAX]
        question.sent_us, question.bytes, question.of_changes, question.of_image = now_us, bytes, of_changes, of_image
        self.next_id += 1
        self.bytes_on_way += bytes
        if of_image:
            self.image_bytes_on_way += bytes
        self.asked_us = now_us

    cdef void put_off(self, wan_buffer *to, uint64_t *due_us, uint64_t at_us, uint32_t number,
                      uint32_t bucket) noexcept nogil:
        """Has the bucket looked at again at `at_us`, or a little earlier."""
        cdef lane_bucket where
        where.region, where.bucket = number, bucket
        if to.used == 0:
            due_us[0] = at_us
        if wan_buffer_add(to, &where, sizeof(where)) != WAN_OK:
            self.set_bit(number, bucket)

    cdef void look_again(self, wan_buffer *at) noexcept nogil:
        cdef lane_bucket *where = <lane_bucket *>at.bytes
        cdef uint32_t n
        wan_lock_take(&self.lock)
        for n in range(at.count):
            self.set_bit(where[n].region, where[n].bucket)
        wan_lock_release(&self.lock)
        wan_buffer_empty(at)

    cdef int lay_next(self, uint64_t now_us) noexcept nogil:
        """Lays out one frame. 1: it did; 0: there is none to be laid out now; -1: the detail says why it failed."""
        cdef int laid = 0, named = 0, told = 0
        if self.names_told < self.names.used:
            # Not a question. The window does not count it.
            if not buffer_frame(&self.out, WAN_FRAME_LANE_REGIONS, 0, 0, self.names.bytes + self.names_told,
                                self.names.used - self.names_told):
                return -1
            self.names_told = self.names.used
            named = 1
        if wan_lane_has_settled(self.state) and now_us >= self.settled_us:
            told = self.lay_settled(now_us)
            if told < 0:
                return -1
        while laid == 0 and self.has_room():
            if self.copy_image() < 0:
                return -1
            # Changes and pieces of an image take turns.
            if self.image_turn:
                laid = self.lay_image(now_us) or self.lay_changes(now_us)
            else:
                laid = self.lay_changes(now_us) or self.lay_image(now_us)
            self.image_turn = not self.image_turn
            if (self.image.is_active or self.learners.start == self.learners.used
                    or not self.may_image(0)):
                break                       # Otherwise a bucket was found whose image is to be sent.
        return laid or named or told

    cdef int lay_settled(self, uint64_t now_us) noexcept nogil:
        """Lays out what is settled and was not told, as `lay_next`. It is not a question. The window does not count
        it."""
        cdef wan_lane_head head
        cdef wan_tail *tail
        cdef uint32_t n
        cdef int found = 0
        self.settled_us = now_us + SETTLED_US
        wan_lane_take_settled(self.state)       # Before the look: whatever is settled after that wakes the lane again.
        memset(&head, 0, sizeof(head))
        wan_buffer_empty(&self.settled)
        if wan_buffer_add(&self.settled, &head, sizeof(head)) != WAN_OK:
            found = SETTLED_NO_MEMORY
        for n in range(self.region_count):
            tail = self.tail_of(n)
            if tail != NULL and not found & (SETTLED_FULL | SETTLED_NO_MEMORY):
                found |= settled_collect(tail, self.number, n, &self.settled)
        if found & SETTLED_NO_MEMORY:
            wan_note(WAN_NO_MEMORY, "no memory for what a lane tells as settled")
            return -1
        if found:                               # There is more, or some of it has to wait for what counts.
            wan_lane_note_settled(self.state)
        if found & SETTLED_FULL:
            self.settled_us = now_us
        if self.settled.count == 1:
            return 0
        (<wan_lane_head *>self.settled.bytes).count = self.settled.count - 1
        if not buffer_frame(&self.out, WAN_FRAME_LANE_SETTLED, 0, 0, self.settled.bytes, self.settled.used):
            return -1
        wan_buffer_trim(&self.settled, FRAME_BYTES)
        return 1

    cdef int lay_changes(self, uint64_t now_us) noexcept nogil:
        """Lays out one frame of what the buckets have, as `lay_next`. It goes round and begins behind the bucket that
        was the last one in the frame before."""
        cdef uint64_t frame_at, bits
        cdef uint64_t *words
        cdef uint32_t sections = 0, _tried, word, bucket
        cdef wan_frame *frame
        cdef wan_tail *tail
        cdef int laid = 0
        if self.region_count == 0 or not self.has_room_for_changes():
            return 0
        if not buffer_reserve(&self.out, HEAD_BYTES + FRAME_BYTES + BUCKET_BYTES):
            wan_note(WAN_NO_MEMORY, "no memory for a frame of a lane")
            return -1
        frame_at = self.out.used - self.out.start
        memset(self.out.bytes + self.out.used, 0, HEAD_BYTES)
        self.out.used += HEAD_BYTES
        if self.at_region >= self.region_count:
            self.at_region = self.at_bucket = 0
        if self.image.is_copied:            # A piece of its image waits for the stream of this bucket.
            tail = self.tail_of(self.image.where.region)
            if tail != NULL and not image_is_next(&self.image, &tail.buckets[self.image.where.bucket], self.number):
                laid = self.lay_bucket(self.image.where.region, self.image.where.bucket, frame_at, sections, now_us)
                if laid < 0:
                    return -1
                if laid & HAS_MORE:
                    wan_lane_set_bit(tail.to_send[self.number], self.image.where.bucket)
                sections += laid & LAID
                laid = 0
        # The region in which the round began is looked at twice: behind the bucket, and up to it.
        for _tried in range(self.region_count + 1):
            tail = self.tail_of(self.at_region)
            while tail != NULL and self.at_bucket < tail.bucket_count and laid == 0:
                words = tail.to_send[self.number]
                word = self.at_bucket // 64
                bits = wan_lane_bits(&words[word]) >> self.at_bucket % 64
                if bits == 0:
                    self.at_bucket = (word + 1) * 64
                    continue
                bucket = self.at_bucket + wan_lowest_bit(bits)
                if bucket >= tail.bucket_count:
                    break
                wan_lane_clear_bit(words, bucket)
                laid = self.lay_bucket(self.at_region, bucket, frame_at, sections, now_us)
                if laid < 0:
                    return -1
                self.at_bucket = bucket
                if laid == NO_ROOM:         # It begins the next frame.
                    wan_lane_set_bit(words, bucket)
                    break
                self.at_bucket += 1
                if laid & HAS_MORE:
                    wan_lane_set_bit(words, bucket)
                if laid & LAID:
                    sections += 1
                laid = 0
                if self.out.used - self.out.start - frame_at >= FRAME_BYTES or sections == WAN_LANE_SECTIONS_MAX:
                    laid = NO_ROOM
            if laid == NO_ROOM:
                break
            self.at_region, self.at_bucket = (self.at_region + 1) % self.region_count, 0
        self.is_telling = False
        frame = <wan_frame *>(self.out.bytes + self.out.start + frame_at)
        if sections == 0:
            self.out.used = self.out.start + frame_at
            return 0
        frame.magic, frame.type, frame.id = WAN_FRAME_MAGIC, WAN_FRAME_LANE_CHANGES, self.next_id
        frame.count = self.answered()
        (<wan_lane_head *>(frame + 1)).count = sections
        frame.length = frame.raw_length = <uint32_t>(self.out.used - self.out.start - frame_at - sizeof(wan_frame))
        frame.crc = wan_frame_crc(frame, frame + 1, frame.length)
        self.begin_question(<uint32_t>sizeof(wan_frame) + frame.length, True, False, now_us)
        if self.image.is_active:
            self.image_owed = min(<uint64_t>FRAME_BYTES, self.image_owed + frame.length // 2)
        return 1

    cdef int lay_bucket(self, uint32_t number, uint32_t bucket, uint64_t frame_at, uint32_t sections,
                        uint64_t now_us) noexcept nogil:
        """Lays out what one bucket has for the copy. LAID: a section was added. HAS_MORE: the bucket has more now.
        NO_ROOM: nothing was added, because the frame has no room. -1: no memory."""
        cdef wan_tail *tail = self.tail_of(number)
        cdef wan_tail_bucket *at = &tail.buckets[bucket]
        cdef wan_tail_copy *copy
        cdef wan_lane_section section
        cdef wan_tail_entry *entry
        cdef uint8_t *begin = NULL
        cdef uint64_t limit, bytes = 0, first, room, heard
        cdef int done = LAID
        wan_lock_take(&at.lock)
        copy = copy_of(at, self.number)
        if copy == NULL or copy.refused or (copy.asked and not copy.confirmed):
            wan_lock_release(&at.lock)
            return 0
        if copy.retry_us > now_us:
            wan_lock_release(&at.lock)
            self.put_off(&self.later, &self.later_us, now_us + LATER_US, number, bucket)
            return 0
        if copy.state == WAN_COPY_LEARNING and copy.confirmed and copy.image_shard == 0 and not copy.queued:
            self.queue_image(copy, number, bucket)
        limit = at.last
        if self.image.is_copied and self.image.where.region == number and self.image.where.bucket == bucket:
            limit = min(limit, self.image.through)
        first = max(copy.sent + 1, at.first)
        heard = wan_heard_through(wan_tail_heard(tail), bucket, at.counted)
        memset(&section, 0, sizeof(section))
        if first <= limit:
            begin = find_entry(at, copy, first)
            room = FRAME_BYTES - min(<uint64_t>FRAME_BYTES, self.out.used - self.out.start - frame_at)
            while first + section.count <= limit:
                entry = <wan_tail_entry *>(begin + bytes)
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
        elif copy.confirmed and copy.told >= at.counted and copy.heard >= heard:
            wan_lock_release(&at.lock)
            return 0
        elif copy.confirmed and sections == 0 and not self.is_telling:
            wan_lock_release(&at.lock)
            self.put_off(&self.to_tell, &self.tell_us, now_us + TELL_US, number, bucket)
            return 0
        if not buffer_reserve(&self.out, sizeof(section) + bytes):
            wan_lock_release(&at.lock)
            wan_note(WAN_NO_MEMORY, "no memory for %llu bytes of a bucket's changes", <unsigned long long>bytes)
            return -1
        section.region, section.bucket = number, bucket
        section.life, section.epoch, section.transfer = at.life, at.epoch, copy.transfer
        section.first, section.counted, section.bytes = first, at.counted, <uint32_t>bytes
        section.heard = heard
        memcpy(self.out.bytes + self.out.used, &section, sizeof(section))
        self.out.used += sizeof(section)
        if bytes:
            memcpy(self.out.bytes + self.out.used, begin, bytes)
            self.out.used += bytes
            copy.place = at.dropped_bytes + <uint64_t>(begin - (at.changes.bytes + at.changes.start)) + bytes
            copy.place_sequence = first + section.count - 1
        copy.sent = first + section.count - 1
        copy.told, copy.heard = at.counted, heard
        copy.asked = not copy.confirmed
        wan_lock_release(&at.lock)
        return done

    # What the receiver answers.

    cdef int take_frame(self, wan_frame *frame) noexcept nogil:
        cdef int how
        if frame.flags == 0 and (frame.type == WAN_FRAME_LANE_ANSWER or frame.type == WAN_FRAME_PONG):
            if wan_lane_check(frame.type, <const uint8_t *>(frame + 1), frame.length) != WAN_OK:
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
            wan_note(WAN_CORRUPT, "frame of type %u from the receiver of a lane", frame.type)
        return ENDED_TOLD

    cdef int take_answer(self, const wan_frame *frame) noexcept nogil:
        cdef const wan_lane_head *head = <const wan_lane_head *>(frame + 1)
        cdef const wan_lane_answer *answer = <const wan_lane_answer *>(head + 1)
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
        wan_flag_set(<int *>&self.state.is_short, frame.count & WAN_LANE_SHORT)
        for n in range(head.count if frame.type == WAN_FRAME_LANE_ANSWER else 0):
            if self.take_one(&answer[n]) != GOES_ON:
                return ENDED_TOLD
        # After the refusals: a read must not trust this promise for a bucket that is refused.
        if sent_us:
            wan_set(&self.state.promised_until_us, sent_us + WAN_PROMISE_US)
        return GOES_ON

    cdef bint end_question(self, const wan_frame *frame) noexcept nogil:
        cdef lane_question *question = &self.questions[self.oldest % QUESTIONS_MAX]
        if (frame.type == WAN_FRAME_PONG) != (not question.of_changes and not question.of_image):
            wan_note(WAN_CORRUPT, "an answer of type %u to question %llu", frame.type, <unsigned long long>frame.id)
            return False
        self.bytes_on_way -= question.bytes
        self.pace_image(question)
        self.oldest += 1
        self.answered_us = self.now_us
        self.is_slow = False
        wan_set(&self.state.answered_us, self.now_us)
        return True

    cdef void pace_image(self, const lane_question *question) noexcept nogil:
        """Takes how long an answer took, and finds how fast the image goes on.

        A put waits for what is before it on the lane. The window grows with each piece while answers take at most twice
        as long as without an image, and becomes smaller while they take longer: so a put takes at most twice as long.
        Where a piece alone takes longer than that, the image rests after it as long as the other end worked for it, if
        there are puts. It has half of the lane then, and a whole image takes twice the time that it takes alone."""
        cdef uint64_t took = self.now_us - question.sent_us, shortest
        if self.now_us - self.period_us > <uint64_t>PERIOD_US:
            self.shortest_before_us = self.shortest_us
            if self.now_us - self.period_us > 2 * <uint64_t>PERIOD_US:
                self.shortest_before_us = NEVER
            self.shortest_us, self.period_us = NEVER, self.now_us
        self.shortest_us = min(self.shortest_us, took)
        if not question.of_image:
            self.has_changes = self.has_changes or question.of_changes
            return
        self.image_bytes_on_way -= question.bytes
        shortest = min(self.shortest_us, self.shortest_before_us)
        if took <= 2 * shortest:
            self.image_window = min(<uint64_t>IMAGE_WINDOW_BYTES, self.image_window + question.bytes)
        else:
            self.image_window -= min(<uint64_t>question.bytes, self.image_window) // 2
            self.image_window = max(<uint64_t>IMAGE_LEAST_BYTES, self.image_window)
        self.image_next_us = 0
        if self.has_changes:
            took = self.now_us - max(question.sent_us, self.answered_us)
            took = min(took, <uint64_t>IMAGE_REST_US)
            self.image_next_us = self.now_us + took
        self.has_changes = False

    cdef int take_one(self, const wan_lane_answer *answer) noexcept nogil:
        """Takes the answer of one section, or of a piece of an image."""
        cdef wan_tail *tail = self.tail_of(answer.region)
        cdef wan_tail_bucket *at
        cdef wan_tail_copy *copy
        cdef bint applied = False, was_asked = False, refused = False, later = False
        cdef uint64_t last, acked, transfer
        cdef int order, became = 0
        if tail == NULL or answer.bucket >= tail.bucket_count:
            return GOES_ON              # The region is gone from this lane.
        at = &tail.buckets[answer.bucket]
        wan_lock_take(&at.lock)
        copy = copy_of(at, self.number)
        if copy == NULL:
            wan_lock_release(&at.lock)
            return GOES_ON
        last, acked, transfer = at.last, copy.acked, copy.transfer
        order = wan_epoch_order(answer.life, answer.epoch, at.life, at.epoch)
        if answer.kind == WAN_ANSWER_REFUSED:
            if order > 0 and not copy.refused:
                copy.refused, copy.confirmed, copy.asked, refused = 1, 0, 0, True
        elif order == 0 and not copy.refused:
            was_asked, copy.asked = copy.asked, 0
            if answer.kind == WAN_ANSWER_LATER:
                copy.confirmed, copy.queued, later = 0, 0, True
                if copy.state == WAN_COPY_LEARNING:
                    copy.image_shard = 0
                copy.sent, copy.retry_us = copy.acked, self.now_us + LATER_US
            elif answer.kind == WAN_ANSWER_APPLIED:
                applied, acked = answer.sequence <= last, answer.sequence
        wan_lock_release(&at.lock)
        if answer.kind == WAN_ANSWER_APPLIED and order == 0 and answer.sequence > last:
            wan_note(WAN_CORRUPT, "the member acknowledges sequence %llu of bucket %u, where %llu is the last one",
                     <unsigned long long>answer.sequence, answer.bucket, <unsigned long long>last)
            return ENDED_TOLD
        if order == 0 and answer.kind == WAN_ANSWER_IMAGE:      # It may have all that counts already.
            applied = wan_tail_image_acked(tail, answer.bucket, self.number, answer.life, answer.epoch, answer.sequence)
        if applied:
            became = wan_tail_acknowledged(tail, answer.bucket, self.number, answer.life, answer.epoch, acked)
            if became & WAN_TAIL_GREW:
                tail_count_events(tail, answer.bucket)
            if was_asked:                   # More may have come meanwhile.
                wan_lane_set_bit(tail.to_send[self.number], answer.bucket)
        if refused:
            self.news.tell(NEWS_REFUSED, answer.region, answer.bucket, answer.epoch)
        if became & WAN_TAIL_CAUGHT_UP:
            self.news.tell(NEWS_LEARNED, answer.region, answer.bucket, transfer)
        if later:
            if self.image.is_active and (self.image.where.region == answer.region
                                         and self.image.where.bucket == answer.bucket):
                self.drop_image()
            self.put_off(&self.later, &self.later_us, self.now_us + LATER_US, answer.region, answer.bucket)
        return GOES_ON

    cdef int closed(self, bint while_reading) noexcept nogil:
        if while_reading:
            wan_note(WAN_CORRUPT, "the member closed the lane")
        else:
            wan_note(WAN_CORRUPT, "the lane to the member broke")
        return ENDED_TOLD

    # Images.

    cdef void queue_image(self, wan_tail_copy *copy, uint32_t number, uint32_t bucket) noexcept nogil:
        """Notes that the image of a bucket is to be sent. Under the bucket's lock."""
        cdef lane_bucket where
        where.region, where.bucket = number, bucket
        if wan_buffer_add(&self.learners, &where, sizeof(where)) == WAN_OK:
            copy.queued = 1

    cdef void drop_image(self) noexcept nogil:
        wan_buffer_trim(&self.image.events, FRAME_BYTES * 4)
        wan_buffer_trim(&self.image.entries, FRAME_BYTES * 4)
        wan_buffer_trim(&self.image.shrunk, FRAME_BYTES)
        wan_buffer_trim(&self.image.answers, FRAME_BYTES)
        self.image.is_active = self.image.is_copied = 0

    cdef int copy_image(self) noexcept nogil:
        """Copies the next shards of an image, if there is one and nothing that was copied waits. -1: no memory."""
        cdef lane_image *image = &self.image
        cdef wan_tail *tail
        cdef int copied
        if image.is_copied or not self.may_image(0):
            return 0
        while not image.is_active and self.learners.start < self.learners.used:
            memcpy(&image.where, self.learners.bytes + self.learners.start, sizeof(lane_bucket))
            self.learners.start += sizeof(lane_bucket)
            if self.learners.start == self.learners.used:
                wan_buffer_empty(&self.learners)
            tail = self.tail_of(image.where.region)
            if tail != NULL:
                image.is_active = image_begin(image, &tail.buckets[image.where.bucket], self.number)
        if not image.is_active:
            return 0
        tail = self.tail_of(image.where.region)
        copied = 0 if tail == NULL else image_copy(image, self.regions[image.where.region].core, self.number)
        if copied < 0:
            if wan_detail_status != WAN_IO:     # A file of a queue cannot be read: the detail names it.
                wan_note(WAN_NO_MEMORY, "no memory for the image of bucket %u", image.where.bucket)
            return -1
        if copied == 0:                     # The copy does not learn any more.
            self.drop_image()
        else:
            self.set_bit(image.where.region, image.where.bucket)
        return 0

    cdef int lay_image(self, uint64_t now_us) noexcept nogil:
        """Lays out a piece of the image if the stream is where the image is, as `lay_next`."""
        cdef lane_image *image = &self.image
        cdef wan_tail *tail
        cdef uint64_t most = self.image_owed, laid
        if not image.is_copied or not self.may_image(now_us):
            return 0
        tail = self.tail_of(image.where.region)
        if tail == NULL or not image_stays(image, &tail.buckets[image.where.bucket], self.number):
            self.drop_image()
            return 0
        if not image_is_next(image, &tail.buckets[image.where.bucket], self.number):
            return 0
        if not buffer_reserve(&self.out, 2 * FRAME_BYTES + image.largest):
            wan_note(WAN_NO_MEMORY, "no memory for a piece of the image of bucket %u", image.where.bucket)
            return -1
        if self.is_paced(now_us):
            most = min(<uint64_t>FRAME_BYTES, max(most, self.image_limit() // 2))
        laid = image_lay(image, &self.out, self.next_id, self.answered(), most)
        self.image_owed -= min(self.image_owed, laid)
        if not image.is_copied:
            if image.is_whole:
                self.drop_image()
            self.set_bit(image.where.region, image.where.bucket)    # The stream of the bucket was held.
        if laid:
            self.begin_question(<uint32_t>laid, False, True, now_us)
        return 1
