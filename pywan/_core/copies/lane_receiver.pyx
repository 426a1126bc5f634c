# Owns the receiving end of a lane: from the bytes of a primary to this member's copies and their tails, what is
# answered, and what is promised with the answers. `LaneReceiverSession` knows no socket and no clock.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove, memset
from pywan._core.c_base cimport *
from pywan._core.c_copies cimport *
from pywan._core.c_lane cimport *
from pywan._core.c_store cimport wan_exception
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_system cimport *
from pywan._core.base.limit cimport MemoryLimit
from pywan._core.copies.lane_news cimport NEWS_BUCKETS, NEWS_IMAGE, News
from pywan._core.copies.lane_settled cimport settled_go_on, settled_hear
from pywan._core.queue.queue cimport settled_news
from pywan._core.region.region cimport RegionCore
from pywan._core.region.region_state cimport region_core
from pywan._core.wire.session cimport ENDED_CLOSED, ENDED_TOLD, GOES_AGAIN, GOES_ON, Session
from pywan._core.base.status cimport report_unraisable
from pywan._core.wire.stream cimport buffer_close_frame, buffer_frame, buffer_open_frame
from pywan._core.region.follow cimport (
    followed_begin, followed_entries, look_at_stamp, region_follow, region_learn, region_learn_events)
from pywan._core.region.put cimport region_relieve
from pywan._core.region.tail cimport tail_count_events


cdef enum:
    LOOK_AGAIN_US = 20000       # A region that was not found is looked for again after so long.


cdef class Promise:
    """Until when this member has promised another one to adopt no later epoch without saying so. It outlives the
    connections."""

    def left_us(self, uint64_t now_us=0):
        """How much of the promise is left at `now_us`; 0: now."""
        cdef uint64_t until = wan_read(&self.until_us)
        now_us = now_us if now_us else wan_monotonic_us()
        return until - now_us if until > now_us else 0


cdef inline void set_answer(wan_lane_answer *answer, uint8_t kind, uint64_t life, uint64_t epoch,
                            uint64_t sequence) noexcept nogil:
    answer.kind, answer.life, answer.epoch, answer.sequence = kind, life, epoch, sequence


cdef bint may_take(wan_tail_bucket *at, uint32_t member, uint64_t life, uint64_t epoch, uint64_t transfer,
                   uint64_t first, wan_lane_answer *answer) noexcept nogil:
    """Whether this member takes a section of the bucket from `member`. If it does not, the answer says why."""
    cdef int order
    cdef bint takes
    wan_lock_take(&at.lock)
    order = wan_epoch_order(at.life, at.epoch, life, epoch)
    # A learner whose image is whole may hear from a primary that counts it as a copy in sync, before it knows that
    # itself; and the other way round. A copy that is to learn again, and has not heard of it, takes nothing: it will
    # drop what it has, and its primary would count on that.
    if at.role == WAN_TAIL_COPY:
        takes = order == 0 and (transfer == 0 or at.learned == transfer)
    else:
        takes = order == 0 and at.role == WAN_TAIL_LEARNER and (
            at.transfer == transfer or transfer == 0 and at.learned == at.transfer)
    takes = takes and (at.leader == member or at.leader == 0 or member == 0)
    if takes and at.role == WAN_TAIL_LEARNER and at.last == 0 and first > 1:
        # The stream of a learner begins anywhere.
        wan_set(&at.last, first - 1)
        wan_set(&at.counted, first - 1)
        at.first = first
    if order > 0:
        set_answer(answer, WAN_ANSWER_REFUSED, at.life, at.epoch, 0)
    else:
        set_answer(answer, WAN_ANSWER_LATER, life, epoch, 0)
    wan_lock_release(&at.lock)
    return takes


cdef wan_status learn_shrunk(region_core *core, uint32_t bucket, const wan_shrunk *items,
                             uint32_t count) noexcept nogil:
    """Keeps the shrunk tombstones of an image. They come shard by shard."""
    cdef uint32_t begin = 0, end
    cdef wan_shard *shard
    cdef uint64_t ahead_ms
    cdef wan_status status = WAN_OK
    for end in range(count):
        status = look_at_stamp(core, items[end].stamp, &ahead_ms)
        if status != WAN_OK:
            return status
        if wan_table_bucket(&core.table, items[end].hash).number != bucket:
            wan_note(WAN_CORRUPT, "a tombstone comes with bucket %u, and belongs to another one", bucket)
            return WAN_CORRUPT
    while begin < count and status == WAN_OK:
        shard = wan_table_shard(&core.table, items[begin].hash)
        end = begin + 1
        while end < count and wan_table_shard(&core.table, items[end].hash) == shard:
            end += 1
        wan_lock_take(&shard.lock)
        status = wan_table_learn_shrunk(shard, items + begin, end - begin)
        wan_lock_release(&shard.lock)
        begin = end
    return status


cdef class LaneReceiverSession(Session):
    """The receiving end of a lane. `find_region(name)` returns a RegionCore, or None."""

    def __cinit__(self, find_region, Promise promise not None, News news not None, MemoryLimit memory=None):
        self.find_region, self.promise, self.news, self.memory = find_region, promise, news, memory
        self.names, self.cores = {}, {}
        self.regions.item_bytes = sizeof(received_region)
        self.speaks_last = True
        self.wake_file = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.wake_file < 0:
            raise OSError("no file descriptor is left for a lane between members; raise the limit (ulimit -n)")

    def __dealloc__(self):
        wan_contact_end(self.contact)
        if self.wake_file >= 0:
            close_file(self.wake_file)
        wan_pages_close(&self.regions)
        wan_buffer_close(&self.denied)
        wan_buffer_close(&self.kept)

    cdef void begin(self, uint64_t now_us) noexcept nogil:
        Session.begin(self, now_us)
        wan_lock_take(&self.lock)
        wan_buffer_empty(&self.denied)      # Every bucket is asked about anew on this connection.
        wan_lock_release(&self.lock)
        wan_buffer_empty(&self.kept)        # All that is settled is told again.
        self.has_lost_settled = False
        wan_contact_end(self.contact)
        self.contact = wan_contact_begin()

    # Memory.

    cdef uint32_t shortness(self) noexcept nogil:
        """What each answer says of the member's memory (WAN_LANE_SHORT). A primary refuses what needs memory then, but
        what is on its way here is taken."""
        if self.memory is None or not wan_limit_is_short(&self.memory.limit):
            return 0
        return WAN_LANE_SHORT

    cdef bint waits_for_memory(self, const wan_tail_bucket *at) noexcept nogil:
        """Whether a copy is not made at present, because the member is above its limit."""
        return at.role == WAN_TAIL_LEARNER and self.shortness() != 0

    # Regions.

    cdef int learn_regions(self, const wan_frame *frame) noexcept nogil:
        cdef const uint8_t *at = <const uint8_t *>(frame + 1)
        cdef const uint8_t *end = at + frame.length
        cdef const wan_lane_region *region
        while at < end:
            region = <const wan_lane_region *>at
            if not self.learn_region(region.number, region.buckets, <const uint8_t *>(region + 1), region.name_length):
                return ENDED_TOLD
            at += sizeof(wan_lane_region) + wan_align8(region.name_length)
        return GOES_ON

    cdef int learn_region(self, uint32_t number, uint32_t buckets, const uint8_t *name,
                          uint32_t length) noexcept with gil:
        cdef received_region *region
        try:
            text = (<const char *>name)[:length].decode()
            region = <received_region *>wan_pages_put(&self.regions, number)
            if region == NULL:
                wan_note(WAN_CORRUPT, "no memory for region number %u of a lane", number)
                return 0
            self.names[number] = text
            self.cores.pop(number, None)
            region.core, region.looked_us, region.buckets = NULL, 0, buckets
            return 1
        except BaseException as error:
            wan_note(WAN_CORRUPT, "region number %u of a lane has a name that is not text", number)
            return 0

    cdef region_core *region_of(self, uint32_t number) noexcept nogil:
        """The region of this number, if it has a tail. NULL: it is not here now."""
        cdef received_region *region = <received_region *>wan_pages_find(&self.regions, number)
        if region == NULL or region.buckets == 0:
            return NULL
        if region.core != NULL and not wan_flag_read(&region.core.closed):
            return region.core
        if region.looked_us and self.now_us < region.looked_us + LOOK_AGAIN_US:
            return NULL
        return self.look_up(region, number)

    cdef region_core *look_up(self, received_region *region, uint32_t number) noexcept with gil:
        cdef RegionCore core
        try:
            region.looked_us, region.core = self.now_us, NULL
            found = self.find_region(self.names[number])
            self.cores[number] = found
            if found is None:
                return NULL
            core = <RegionCore?>found
            if core.state.region.closed or core.state.region.tail == NULL:
                return NULL
            if core.state.region.tail.bucket_count != region.buckets:
                with nogil:
                    self.news.tell(NEWS_BUCKETS, number, core.state.region.tail.bucket_count, region.buckets)
                return NULL
            region.core = &core.state.region
        except BaseException as error:
            report_unraisable("the look-up of a region of a lane", error)
        return region.core

    # Changes.

    cdef int apply_changes(self, const wan_frame *frame) noexcept nogil:
        """Applies a frame of sections, and lays out the answer."""
        cdef const wan_lane_head *head = <const wan_lane_head *>(frame + 1)
        cdef const wan_lane_section *section = <const wan_lane_section *>(head + 1)
        cdef uint64_t bytes = sizeof(wan_lane_head) + head.count * sizeof(wan_lane_answer)
        cdef wan_frame *answer
        cdef uint32_t n
        if not self.give_promise():
            return ENDED_TOLD
        answer = buffer_open_frame(&self.out, WAN_FRAME_LANE_ANSWER, frame.id, self.shortness(), bytes)
        if answer == NULL:
            return ENDED_TOLD
        (<wan_lane_head *>(answer + 1)).count = head.count
        for n in range(head.count):
            if self.apply_section(section, <wan_lane_answer *>(<wan_lane_head *>(answer + 1) + 1) + n) != GOES_ON:
                return ENDED_TOLD
            section = <const wan_lane_section *>(<const uint8_t *>(section + 1) + section.bytes)
        buffer_close_frame(&self.out, answer)
        return GOES_ON

    cdef int apply_section(self, const wan_lane_section *section, wan_lane_answer *answer) noexcept nogil:
        cdef region_core *core = self.region_of(section.region)
        cdef wan_tail_bucket *at
        cdef wan_status status = WAN_OK
        cdef followed_entries entries
        cdef uint64_t ahead_ms = 0
        answer.region, answer.bucket = section.region, section.bucket
        set_answer(answer, WAN_ANSWER_LATER, section.life, section.epoch, 0)
        if core == NULL or section.bucket >= core.tail.bucket_count:
            return GOES_ON
        at = &core.tail.buckets[section.bucket]
        if not may_take(at, self.member, section.life, section.epoch, section.transfer, section.first, answer):
            return GOES_ON
        if self.waits_for_memory(at):
            set_answer(answer, WAN_ANSWER_LATER, section.life, section.epoch, 0)
            return GOES_ON
        if wan_tail_heard(core.tail) != NULL and wan_heard_is_full(wan_tail_heard(core.tail)):
            # Listeners are far behind. The lane itself never waits for them.
            wan_tail_told(core.tail, section.bucket, section.life, section.epoch,
                          min(section.counted, section.first - 1), section.heard, self.contact)
            tail_count_events(core.tail, section.bucket)
            region_relieve(core)
            if wan_heard_is_full(wan_tail_heard(core.tail)):
                set_answer(answer, WAN_ANSWER_LATER, section.life, section.epoch, 0)
                return GOES_ON
        if section.first > wan_read(&at.last) + 1:
            return self.end_at_gap(section.bucket, section.first, wan_read(&at.last))
        followed_begin(&entries, <const wan_tail_entry *>(section + 1), section.first, section.count)
        while entries.done < section.count and (status == WAN_OK or status == WAN_EMPTY):
            status = region_follow(core, section.bucket, section.life, section.epoch, &entries, &ahead_ms)
        if ahead_ms:
            wan_set(&self.ahead_ms, max(ahead_ms, wan_read(&self.ahead_ms)))
        if status == WAN_ELSEWHERE:         # The member has just adopted another epoch, or dropped the copy.
            may_take(at, self.member, section.life, section.epoch, section.transfer, 0, answer)
            return GOES_ON
        if status == WAN_INVALID:
            return self.end_at_gap(section.bucket, section.first, wan_read(&at.last))
        if status != WAN_OK and status != WAN_EMPTY:
            return ENDED_TOLD
        wan_tail_told(core.tail, section.bucket, section.life, section.epoch,
                      min(section.counted, section.first + section.count - 1), section.heard,
                      self.contact)
        tail_count_events(core.tail, section.bucket)
        set_answer(answer, WAN_ANSWER_APPLIED, section.life, section.epoch, section.first + section.count - 1)
        return GOES_ON

    cdef int end_at_gap(self, uint32_t bucket, uint64_t first, uint64_t last) noexcept nogil:
        wan_note(WAN_CORRUPT, "a gap in bucket %u: sequence %llu comes where %llu was the last one", bucket,
                 <unsigned long long>first, <unsigned long long>last)
        return ENDED_TOLD

    cdef int apply_image(self, const wan_frame *frame) noexcept nogil:
        """Applies a piece of an image, and lays out the answer."""
        cdef const wan_lane_image *image = <const wan_lane_image *>(frame + 1)
        cdef region_core *core = self.region_of(image.region)
        cdef wan_lane_answer answer[1]
        cdef wan_frame *laid
        cdef wan_status status = WAN_OK
        memset(answer, 0, sizeof(answer))
        answer[0].region, answer[0].bucket = image.region, image.bucket
        set_answer(answer, WAN_ANSWER_LATER, image.life, image.epoch, 0)
        if not self.give_promise():
            return ENDED_TOLD
        if core != NULL and image.bucket < core.tail.bucket_count:
            status = self.apply_piece(core, image, answer)
        if status != WAN_OK:
            return ENDED_TOLD
        laid = buffer_open_frame(&self.out, WAN_FRAME_LANE_ANSWER, frame.id, self.shortness(),
                                 sizeof(wan_lane_head) + sizeof(wan_lane_answer))
        if laid == NULL:
            return ENDED_TOLD
        (<wan_lane_head *>(laid + 1)).count = 1
        memcpy(<wan_lane_head *>(laid + 1) + 1, answer, sizeof(wan_lane_answer))
        buffer_close_frame(&self.out, laid)
        return GOES_ON

    cdef wan_status apply_piece(self, region_core *core, const wan_lane_image *image,
                                wan_lane_answer *answer) noexcept nogil:
        cdef wan_tail_bucket *at = &core.tail.buckets[image.bucket]
        cdef const wan_tail_entry *entry = <const wan_tail_entry *>(image + 1)
        cdef wan_status status
        cdef uint64_t last
        cdef uint32_t _n
        if not may_take(at, self.member, image.life, image.epoch, image.transfer, image.through + 1, answer):
            return WAN_OK
        if self.waits_for_memory(at):
            set_answer(answer, WAN_ANSWER_LATER, image.life, image.epoch, 0)
            return WAN_OK
        last = wan_read(&at.last)
        if last != image.through and at.role == WAN_TAIL_LEARNER:
            wan_note(WAN_CORRUPT, "an image of bucket %u at sequence %llu comes where the stream is at %llu",
                     image.bucket, <unsigned long long>image.through, <unsigned long long>last)
            return WAN_CORRUPT
        if at.role == WAN_TAIL_LEARNER and image.part == WAN_IMAGE_SHRUNK:
            status = learn_shrunk(core, image.bucket, <const wan_shrunk *>(image + 1), image.count)
            if status != WAN_OK:
                return status
        elif at.role == WAN_TAIL_LEARNER and image.part == WAN_IMAGE_EVENTS:
            status = region_learn_events(core, image.bucket, <wan_image_event *>(image + 1), image.count)
            settled_go_on(core, image.bucket)
            if status != WAN_OK:
                return status
        elif at.role == WAN_TAIL_LEARNER and image.part == WAN_IMAGE_ANSWERS:
            wan_lock_take(&at.lock)
            status = wan_answers_unpack(&at.answers, <const wan_answer_item *>(image + 1), image.count)
            wan_tail_charge(core.tail, at)
            wan_lock_release(&at.lock)
            if status != WAN_OK:
                return status
        elif at.role == WAN_TAIL_LEARNER:
            for _n in range(image.count):
                status = region_learn(core, image.bucket, entry)
                if status != WAN_OK:
                    return status
                entry = <const wan_tail_entry *>(<const uint8_t *>entry + entry.length)
        if not image.is_last:
            set_answer(answer, WAN_ANSWER_APPLIED, image.life, image.epoch, last)
            return WAN_OK
        wan_lock_take(&at.lock)
        at.learned = image.transfer
        wan_lock_release(&at.lock)
        set_answer(answer, WAN_ANSWER_IMAGE, image.life, image.epoch, image.transfer)
        self.news.tell(NEWS_IMAGE, image.region, image.bucket, image.transfer)
        return WAN_OK

    # What is settled.

    cdef int take_settled(self, const wan_frame *frame) noexcept nogil:
        cdef const wan_lane_head *head = <const wan_lane_head *>(frame + 1)
        cdef const wan_lane_settled *item = <const wan_lane_settled *>(head + 1)
        cdef region_core *core
        cdef uint32_t _n
        if self.look_at_settled() != GOES_ON:
            return ENDED_TOLD
        for _n in range(head.count):
            core = self.region_of(item.region)
            if core != NULL and not settled_hear(core, item, self.member):
                if self.keep_settled(item) != GOES_ON:
                    return ENDED_TOLD
            item = <const wan_lane_settled *>(<const wan_exception *>(item + 1) + item.exceptions)
        return GOES_ON

    cdef int keep_settled(self, const wan_lane_settled *item) noexcept nogil:
        """Keeps what was told until there are newer tables. Without room for it the connection ends when they come: all
        that is settled is told again on the next one."""
        cdef uint64_t bytes = sizeof(item[0]) + item.exceptions * sizeof(wan_exception)
        if self.has_lost_settled or self.kept.used + bytes > KEPT_BYTES:
            wan_buffer_close(&self.kept)
            self.has_lost_settled = True
            return GOES_ON
        return GOES_ON if wan_buffer_add(&self.kept, item, bytes) == WAN_OK else ENDED_TOLD

    cdef int look_at_settled(self) noexcept nogil:
        """Looks again at what was kept, if the tables have changed since the last look."""
        cdef uint64_t news = settled_news(), at = 0, stays = 0, bytes
        cdef const wan_lane_settled *item
        cdef region_core *core
        if news == self.settled_seen:
            return GOES_ON
        self.settled_seen = news
        if self.has_lost_settled:
            wan_note(WAN_CORRUPT, "the tables have changed: what the member told as settled meanwhile is to be told"
                     " again")
            return ENDED_TOLD
        while at < self.kept.used:
            item = <const wan_lane_settled *>(self.kept.bytes + at)
            bytes = sizeof(item[0]) + item.exceptions * sizeof(wan_exception)
            core = self.region_of(item.region)
            if core == NULL or not settled_hear(core, item, self.member):
                memmove(self.kept.bytes + stays, item, bytes)
                stays += bytes
            at += bytes
        self.kept.used = stays
        return GOES_ON

    # Promises.

    cdef int refuse_denied(self) noexcept nogil:
        """Lays out the refusals that other threads asked for. Under the lock. 0: no memory."""
        cdef wan_frame *frame
        cdef uint32_t count = min(self.denied.count, <uint32_t>WAN_LANE_SECTIONS_MAX)
        if count == 0:
            return 1
        frame = buffer_open_frame(&self.out, WAN_FRAME_LANE_ANSWER, 0, self.shortness(),
                                  sizeof(wan_lane_head) + count * sizeof(wan_lane_answer))
        if frame == NULL:
            return 0
        (<wan_lane_head *>(frame + 1)).count = count
        memcpy(<wan_lane_head *>(frame + 1) + 1, self.denied.bytes, count * sizeof(wan_lane_answer))
        buffer_close_frame(&self.out, frame)
        wan_buffer_empty(&self.denied)
        return 1

    cdef int give_promise(self) noexcept nogil:
        """Refuses what is denied, and promises. The caller lays out the answer that carries the promise. 0: no
        memory."""
        cdef int done
        wan_lock_take(&self.lock)
        done = self.refuse_denied()
        if done:
            wan_set(&self.promise.until_us, max(self.promise.until_us, self.work_us() + WAN_PROMISE_KEPT_US))
        wan_lock_release(&self.lock)
        return done

    cdef bint deny(self, uint32_t number, uint32_t bucket, uint64_t life, uint64_t epoch) noexcept nogil:
        """As `LaneReceiver.deny`, for a region of this number. False: no memory."""
        cdef wan_lane_answer answer
        cdef wan_status status = WAN_NO_MEMORY
        memset(&answer, 0, sizeof(answer))
        answer.region, answer.bucket = number, bucket
        set_answer(&answer, WAN_ANSWER_REFUSED, life, epoch, 0)
        wan_lock_take(&self.lock)
        if self.denied.count < WAN_LANE_SECTIONS_MAX:
            status = wan_buffer_add(&self.denied, &answer, sizeof(answer))
        wan_lock_release(&self.lock)
        self.wake()
        return status == WAN_OK

    cdef void wake(self) noexcept nogil:
        eventfd_write(self.wake_file, 1)

    def stop(self):
        """Makes `run` return soon. What was applied and not answered is sent again on the next connection."""
        wan_flag_set(&self.stop_flag, 1)
        self.wake()

    def run(self, sock):
        """Takes what comes over a connected socket, until it closes or breaks, or until `stop`. Returns "stopped",
        "closed", or why it ended. The GIL is free meanwhile."""
        try:
            return self.run_over_socket(sock)
        finally:
            wan_contact_end(self.contact)

    cdef void note_contact(self, const wan_frame *frame) noexcept nogil:
        """Notes when this question is answered, and that the sender has the answer that it names. It was there after
        that one left: however long this frame was on its way."""
        cdef uint64_t before = <uint32_t>(<uint32_t>frame.id - frame.count)
        if frame.id == 0:               # The names of regions are no question.
            return
        self.answered_us[frame.id % ANSWERS_KEPT] = wan_monotonic_us()
        if 0 < before < ANSWERS_KEPT and before < frame.id:
            wan_contact_heard(self.contact, self.answered_us[(frame.id - before) % ANSWERS_KEPT])

    # The connection.

    cdef int take_frame(self, wan_frame *frame) noexcept nogil:
        if frame.flags == 0 and (frame.type == WAN_FRAME_LANE_CHANGES or frame.type == WAN_FRAME_LANE_IMAGE
                                 or frame.type == WAN_FRAME_LANE_REGIONS or frame.type == WAN_FRAME_LANE_SETTLED
                                 or frame.type == WAN_FRAME_PING):
            if wan_lane_check(frame.type, <const uint8_t *>(frame + 1), frame.length) != WAN_OK:
                return ENDED_TOLD
            self.note_contact(frame)
            if frame.type == WAN_FRAME_LANE_CHANGES:
                return self.apply_changes(frame)
            if frame.type == WAN_FRAME_LANE_IMAGE:
                return self.apply_image(frame)
            if frame.type == WAN_FRAME_LANE_REGIONS:
                return self.learn_regions(frame)
            if frame.type == WAN_FRAME_LANE_SETTLED:
                return self.take_settled(frame)
            if self.give_promise() and buffer_frame(&self.out, WAN_FRAME_PONG, frame.id, self.shortness(), NULL, 0):
                return GOES_ON
            return ENDED_TOLD
        if frame.type == WAN_FRAME_BYE:
            return ENDED_CLOSED
        wan_note(WAN_CORRUPT, "frame of type %u with flags %u from the sender of a lane", frame.type, frame.flags)
        return ENDED_TOLD

    cdef int step(self, uint64_t now_us) noexcept nogil:
        cdef bint is_denied
        if now_us > self.alive_until():
            wan_note(WAN_CORRUPT, "the member said nothing, or took nothing, for %.1f s",
                     wan_read(&self.silence_us) / 1e6)
            return ENDED_TOLD
        if self.look_at_settled() != GOES_ON:
            return ENDED_TOLD
        wan_lock_take(&self.lock)
        is_denied = self.denied.used != 0
        if is_denied and not self.refuse_denied():
            wan_lock_release(&self.lock)
            return ENDED_TOLD
        wan_lock_release(&self.lock)
        return GOES_AGAIN if is_denied else GOES_ON

    cdef uint64_t alive_until(self) noexcept nogil:
        """When the sender is given up: it says nothing, or takes nothing."""
        cdef uint64_t heard_us = min(self.last_heard_us, self.waiting_us) if self.waiting_us else self.last_heard_us
        return heard_us + wan_read(&self.silence_us)

    cdef uint64_t due_us(self, uint64_t now_us) noexcept nogil:
        return self.alive_until() + 1
