# Owns the receiving end of a replication link: applies the bytes of a primary to this member's replicas and their
# change logs, and lays out the answers with their read lease. `ReplReceiverSession` knows no socket and no clock.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove, memset
from pywan._core.c_base cimport *
from pywan._core.c_names cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_store cimport wan_exception
from pywan._core.c_system cimport *
from pywan._core.base.limit cimport MemoryLimit
from pywan._core.replication.repl_news cimport NEWS_BUCKETS, NEWS_SNAPSHOT, News
from pywan._core.replication.repl_removals cimport (
    REMOVAL_NOT_BELIEVED, REMOVAL_TAKEN, REMOVAL_WAITS, removals_apply, removal_receive)
from pywan._core.queue.queue cimport removal_news
from pywan._core.region.region cimport RegionCore
from pywan._core.region.region_state cimport region_core
from pywan._core.wire.session cimport ENDED_CLOSED, ENDED_TOLD, GOES_AGAIN, GOES_ON, Session
from pywan._core.base.status cimport report_unraisable
from pywan._core.wire.stream cimport buffer_close_frame, buffer_frame, buffer_open_frame
from pywan._core.region.follow cimport (
    followed_begin, followed_entries, look_at_stamp, region_follow, region_learn, region_learn_events)
from pywan._core.region.put cimport region_relieve
from pywan._core.region.changelog cimport changelog_ready_events


cdef enum:
    LOOK_AGAIN_US = 20000       # The pause before a region that was not found is looked up again.
    LOOK_US = 5000              # The pause before removals that wait for the high watermark are looked at again.


cdef class ReadLease:
    """The read lease for another member: until then this member adopts no later epoch without saying so. The lease
    outlives the connections."""

    def left_us(self, uint64_t now_us=0):
        """Returns the rest of the read lease at `now_us`; 0: now."""
        cdef uint64_t until = wan_read(&self.until_us)
        now_us = now_us if now_us else wan_monotonic_us()
        return until - now_us if until > now_us else 0


cdef inline void set_answer(wan_repl_answer *answer, uint8_t kind, uint64_t timeline, uint64_t epoch,
                            uint64_t sequence) noexcept nogil:
    answer.kind, answer.timeline, answer.epoch, answer.sequence = kind, timeline, epoch, sequence


cdef bint may_take(wan_changelog_bucket *at, uint32_t member, uint64_t timeline, uint64_t epoch, uint64_t transfer,
                   uint64_t first, wan_repl_answer *answer) noexcept nogil:
    """Whether this member takes a section of the bucket from `member`. If not, `answer` gives the reason."""
    cdef int order
    cdef bint takes
    wan_lock_take(&at.lock)
    order = wan_epoch_order(at.timeline, at.epoch, timeline, epoch)
    # A learner with a whole snapshot may receive a section from a primary that regards the learner as an in-sync
    # replica, before the learner itself has the metadata record; the opposite order is possible too. A replica that
    # must learn again, and has not yet received the record, takes no section: the replica will drop its content, and
    # its primary would rely on the content.
    if at.role == WAN_REPLICA_IN_SYNC:
        takes = order == 0 and (transfer == 0 or at.learned == transfer)
    else:
        takes = order == 0 and at.role == WAN_REPLICA_LEARNER and (
            at.transfer == transfer or transfer == 0 and at.learned == at.transfer)
    takes = takes and (at.leader == member or at.leader == 0 or member == 0)
    if takes and at.role == WAN_REPLICA_LEARNER and at.log_end == 0 and first > 1:
        # The stream of a learner begins anywhere.
        wan_set(&at.log_end, first - 1)
        wan_set(&at.high_watermark, first - 1)
        at.first = first
    if order > 0:
        set_answer(answer, WAN_ANSWER_REFUSED, at.timeline, at.epoch, 0)
    else:
        set_answer(answer, WAN_ANSWER_LATER, timeline, epoch, 0)
    wan_lock_release(&at.lock)
    return takes


cdef wan_status learn_shrunk(region_core *core, uint32_t bucket, const wan_shrunk *items,
                             uint32_t count) noexcept nogil:
    """Keeps the shrunk tombstones of a snapshot, which arrive shard by shard."""
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


cdef class ReplReceiverSession(Session):
    """The receiving end of a replication link. `find_region(name)` returns a RegionCore, or None."""

    def __cinit__(self, find_region, ReadLease read_lease not None, News news not None, MemoryLimit memory=None):
        self.find_region, self.read_lease, self.news, self.memory = find_region, read_lease, news, memory
        self.names, self.cores = {}, {}
        self.regions.item_bytes = sizeof(received_region)
        self.speaks_last = True
        self.wake_file = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.wake_file < 0:
            raise OSError("no file descriptor is left for a replication link; raise the limit (ulimit -n)")

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
        wan_buffer_empty(&self.denied)      # On a new connection each bucket is checked again.
        wan_lock_release(&self.lock)
        wan_buffer_empty(&self.kept)        # All removals are sent again.
        self.has_lost_removals, self.look_us = False, NEVER
        wan_contact_end(self.contact)
        self.contact = wan_contact_begin()

    # Memory.

    cdef uint32_t shortness(self) noexcept nogil:
        """The state of the member's memory in each answer (WAN_REPL_SHORT). While the flag is set, a primary refuses
        changes that need memory. Changes already on their way are applied."""
        if self.memory is None or not wan_limit_is_short(&self.memory.limit):
            return 0
        return WAN_REPL_SHORT

    cdef bint waits_for_memory(self, const wan_changelog_bucket *at) noexcept nogil:
        """Whether the member is above its limit of memory, so that no replica is made at present."""
        return at.role == WAN_REPLICA_LEARNER and self.shortness() != 0

    # Regions.

    cdef int learn_regions(self, const wan_frame *frame) noexcept nogil:
        cdef const uint8_t *at = <const uint8_t *>(frame + 1)
        cdef const uint8_t *end = at + frame.length
        cdef const wan_repl_region *region
        while at < end:
            region = <const wan_repl_region *>at
            if not self.learn_region(region.number, region.buckets, <const uint8_t *>(region + 1), region.name_length):
                return ENDED_TOLD
            at += sizeof(wan_repl_region) + wan_align8(region.name_length)
        return GOES_ON

    cdef int learn_region(self, uint32_t number, uint32_t buckets, const uint8_t *name,
                          uint32_t length) noexcept with gil:
        cdef received_region *region
        try:
            text = (<const char *>name)[:length].decode()
            region = <received_region *>wan_pages_put(&self.regions, number)
            if region == NULL:
                wan_note(WAN_CORRUPT, "no memory for region number %u of a replication link", number)
                return 0
            self.names[number] = text
            self.cores.pop(number, None)
            region.core, region.looked_us, region.buckets = NULL, 0, buckets
            return 1
        except BaseException as error:
            wan_note(WAN_CORRUPT, "region number %u of a replication link has a name that is not text", number)
            return 0

    cdef region_core *region_of(self, uint32_t number) noexcept nogil:
        """Returns the region of this number, if the region has a change log. NULL: not at this member now."""
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
            if core.state.region.closed or core.state.region.changelog == NULL:
                return NULL
            if core.state.region.changelog.bucket_count != region.buckets:
                with nogil:
                    self.news.tell(NEWS_BUCKETS, number, core.state.region.changelog.bucket_count, region.buckets)
                return NULL
            region.core = &core.state.region
        except BaseException as error:
            report_unraisable("the look-up of a region of a replication link", error)
        return region.core

    # Changes.

    cdef int apply_changes(self, const wan_frame *frame) noexcept nogil:
        """Applies a frame of sections, and lays out the answer."""
        cdef const wan_repl_head *head = <const wan_repl_head *>(frame + 1)
        cdef const wan_repl_section *section = <const wan_repl_section *>(head + 1)
        cdef uint64_t bytes = sizeof(wan_repl_head) + head.count * sizeof(wan_repl_answer)
        cdef wan_frame *answer
        cdef uint32_t n
        if not self.grant_read_lease():
            return ENDED_TOLD
        answer = buffer_open_frame(&self.out, WAN_FRAME_REPL_ANSWER, frame.id, self.shortness(), bytes)
        if answer == NULL:
            return ENDED_TOLD
        (<wan_repl_head *>(answer + 1)).count = head.count
        for n in range(head.count):
            if self.apply_section(section, <wan_repl_answer *>(<wan_repl_head *>(answer + 1) + 1) + n) != GOES_ON:
                return ENDED_TOLD
            section = <const wan_repl_section *>(<const uint8_t *>(section + 1) + section.bytes)
        buffer_close_frame(&self.out, answer)
        return GOES_ON

    cdef int apply_section(self, const wan_repl_section *section, wan_repl_answer *answer) noexcept nogil:
        cdef region_core *core = self.region_of(section.region)
        cdef wan_changelog_bucket *at
        cdef wan_status status = WAN_OK
        cdef followed_entries entries
        cdef uint64_t ahead_ms = 0
        answer.region, answer.bucket = section.region, section.bucket
        set_answer(answer, WAN_ANSWER_LATER, section.timeline, section.epoch, 0)
        if core == NULL or section.bucket >= core.changelog.bucket_count:
            return GOES_ON
        at = &core.changelog.buckets[section.bucket]
        if not may_take(at, self.member, section.timeline, section.epoch, section.transfer, section.first, answer):
            return GOES_ON
        if self.waits_for_memory(at):
            set_answer(answer, WAN_ANSWER_LATER, section.timeline, section.epoch, 0)
            return GOES_ON
        if (wan_changelog_notifications(core.changelog) != NULL
                and wan_notifications_are_full(wan_changelog_notifications(core.changelog))):
            # Listeners are far behind. The replication link itself never waits for listeners.
            wan_changelog_told(core.changelog, section.bucket, section.timeline, section.epoch,
                               min(section.high_watermark, section.first - 1), section.notified, self.contact)
            changelog_ready_events(core.changelog, section.bucket)
            region_relieve(core)
            if wan_notifications_are_full(wan_changelog_notifications(core.changelog)):
                set_answer(answer, WAN_ANSWER_LATER, section.timeline, section.epoch, 0)
                return GOES_ON
        if section.first > wan_read(&at.log_end) + 1:
            return self.end_at_gap(section.bucket, section.first, wan_read(&at.log_end))
        followed_begin(&entries, <const wan_changelog_entry *>(section + 1), section.first, section.count)
        while entries.done < section.count and (status == WAN_OK or status == WAN_EMPTY):
            status = region_follow(core, section.bucket, section.timeline, section.epoch, &entries, &ahead_ms)
        if ahead_ms:
            wan_set(&self.ahead_ms, max(ahead_ms, wan_read(&self.ahead_ms)))
        if status == WAN_NOT_PRIMARY:         # The member has just adopted another epoch, or dropped the replica.
            may_take(at, self.member, section.timeline, section.epoch, section.transfer, 0, answer)
            return GOES_ON
        if status == WAN_INVALID:
            return self.end_at_gap(section.bucket, section.first, wan_read(&at.log_end))
        if status != WAN_OK and status != WAN_EMPTY:
            return ENDED_TOLD
        wan_changelog_told(core.changelog, section.bucket, section.timeline, section.epoch,
                           min(section.high_watermark, section.first + section.count - 1), section.notified,
                           self.contact)
        changelog_ready_events(core.changelog, section.bucket)
        set_answer(answer, WAN_ANSWER_APPLIED, section.timeline, section.epoch, section.first + section.count - 1)
        return GOES_ON

    cdef int end_at_gap(self, uint32_t bucket, uint64_t first, uint64_t last) noexcept nogil:
        wan_note(WAN_CORRUPT, "a gap in bucket %u: sequence %llu comes where %llu was the last one", bucket,
                 <unsigned long long>first, <unsigned long long>last)
        return ENDED_TOLD

    cdef int apply_snapshot(self, const wan_frame *frame) noexcept nogil:
        """Applies a piece of a snapshot, and lays out the answer."""
        cdef const wan_repl_snapshot *snapshot = <const wan_repl_snapshot *>(frame + 1)
        cdef region_core *core = self.region_of(snapshot.region)
        cdef wan_repl_answer answer[1]
        cdef wan_frame *laid
        cdef wan_status status = WAN_OK
        memset(answer, 0, sizeof(answer))
        answer[0].region, answer[0].bucket = snapshot.region, snapshot.bucket
        set_answer(answer, WAN_ANSWER_LATER, snapshot.timeline, snapshot.epoch, 0)
        if not self.grant_read_lease():
            return ENDED_TOLD
        if core != NULL and snapshot.bucket < core.changelog.bucket_count:
            status = self.apply_piece(core, snapshot, answer)
        if status != WAN_OK:
            return ENDED_TOLD
        laid = buffer_open_frame(&self.out, WAN_FRAME_REPL_ANSWER, frame.id, self.shortness(),
                                 sizeof(wan_repl_head) + sizeof(wan_repl_answer))
        if laid == NULL:
            return ENDED_TOLD
        (<wan_repl_head *>(laid + 1)).count = 1
        memcpy(<wan_repl_head *>(laid + 1) + 1, answer, sizeof(wan_repl_answer))
        buffer_close_frame(&self.out, laid)
        return GOES_ON

    cdef wan_status apply_piece(self, region_core *core, const wan_repl_snapshot *snapshot,
                                wan_repl_answer *answer) noexcept nogil:
        cdef wan_changelog_bucket *at = &core.changelog.buckets[snapshot.bucket]
        cdef const wan_changelog_entry *entry = <const wan_changelog_entry *>(snapshot + 1)
        cdef wan_status status
        cdef uint64_t last
        cdef uint32_t _n
        if not may_take(at, self.member, snapshot.timeline, snapshot.epoch, snapshot.transfer, snapshot.through + 1,
                        answer):
            return WAN_OK
        if self.waits_for_memory(at):
            set_answer(answer, WAN_ANSWER_LATER, snapshot.timeline, snapshot.epoch, 0)
            return WAN_OK
        last = wan_read(&at.log_end)
        if last != snapshot.through and at.role == WAN_REPLICA_LEARNER:
            wan_note(WAN_CORRUPT, "a snapshot of bucket %u at sequence %llu comes where the stream is at %llu",
                     snapshot.bucket, <unsigned long long>snapshot.through, <unsigned long long>last)
            return WAN_CORRUPT
        if at.role == WAN_REPLICA_LEARNER and snapshot.part == WAN_SNAPSHOT_SHRUNK:
            status = learn_shrunk(core, snapshot.bucket, <const wan_shrunk *>(snapshot + 1), snapshot.count)
            if status != WAN_OK:
                return status
        elif at.role == WAN_REPLICA_LEARNER and snapshot.part == WAN_SNAPSHOT_EVENTS:
            status = region_learn_events(core, snapshot.bucket, <wan_snapshot_event *>(snapshot + 1), snapshot.count)
            removals_apply(core, snapshot.bucket)
            if status != WAN_OK:
                return status
        elif at.role == WAN_REPLICA_LEARNER and snapshot.part == WAN_SNAPSHOT_ANSWERS:
            wan_lock_take(&at.lock)
            status = wan_answers_unpack(&at.answers, <const wan_answer_item *>(snapshot + 1), snapshot.count)
            wan_changelog_charge(core.changelog, at)
            wan_lock_release(&at.lock)
            if status != WAN_OK:
                return status
        elif at.role == WAN_REPLICA_LEARNER:
            for _n in range(snapshot.count):
                status = region_learn(core, snapshot.bucket, entry)
                if status != WAN_OK:
                    return status
                entry = <const wan_changelog_entry *>(<const uint8_t *>entry + entry.length)
        if not snapshot.is_last:
            set_answer(answer, WAN_ANSWER_APPLIED, snapshot.timeline, snapshot.epoch, last)
            return WAN_OK
        wan_lock_take(&at.lock)
        at.learned = snapshot.transfer
        wan_lock_release(&at.lock)
        set_answer(answer, WAN_ANSWER_SNAPSHOT, snapshot.timeline, snapshot.epoch, snapshot.transfer)
        self.news.tell(NEWS_SNAPSHOT, snapshot.region, snapshot.bucket, snapshot.transfer)
        return WAN_OK

    # Removals.

    cdef int take_removals(self, const wan_frame *frame) noexcept nogil:
        cdef const wan_repl_head *head = <const wan_repl_head *>(frame + 1)
        cdef const wan_repl_removal *item = <const wan_repl_removal *>(head + 1)
        cdef uint32_t _n
        if self.look_at_removals() != GOES_ON:
            return ENDED_TOLD
        for _n in range(head.count):
            if (self.region_of(item.region) != NULL and not self.take_removal(item)
                    and self.keep_removal(item) != GOES_ON):
                return ENDED_TOLD
            item = <const wan_repl_removal *>(<const wan_exception *>(item + 1) + item.exceptions)
        return GOES_ON

    cdef bint take_removal(self, const wan_repl_removal *item) noexcept nogil:
        """False: the removal is to be kept. Behind one that waits all later ones of the connection wait: those of the
        same queue do not repeat its reasons."""
        cdef region_core *core = self.region_of(item.region)
        cdef int how = REMOVAL_NOT_BELIEVED
        if core != NULL and self.look_us == NEVER:
            how = removal_receive(core, item, self.member)
        if how == REMOVAL_WAITS:
            self.look_us = self.now_us + LOOK_US
        return how == REMOVAL_TAKEN

    cdef int keep_removal(self, const wan_repl_removal *item) noexcept nogil:
        """Keeps a removal until newer metadata arrive, or the high watermark has risen. If there is no room, the
        connection ends when the metadata arrive: all removals are sent again on the next connection."""
        cdef uint64_t bytes = sizeof(item[0]) + item.exceptions * sizeof(wan_exception)
        if self.has_lost_removals or self.kept.used + bytes > KEPT_BYTES:
            wan_buffer_close(&self.kept)
            self.has_lost_removals = True
            return GOES_ON
        return GOES_ON if wan_buffer_add(&self.kept, item, bytes) == WAN_OK else ENDED_TOLD

    cdef int look_at_removals(self) noexcept nogil:
        """Checks the kept removals again, if the metadata have changed since the last check, or if it is time."""
        cdef uint64_t news = removal_news(), at = 0, stays = 0, bytes
        cdef const wan_repl_removal *item
        if news == self.removals_seen and self.now_us < self.look_us:
            return GOES_ON
        self.removals_seen, self.look_us = news, NEVER
        if self.has_lost_removals:
            wan_note(WAN_CORRUPT, "the cluster metadata have changed: the member has to send again the removals that"
                     " were dropped meanwhile")
            return ENDED_TOLD
        while at < self.kept.used:
            item = <const wan_repl_removal *>(self.kept.bytes + at)
            bytes = sizeof(item[0]) + item.exceptions * sizeof(wan_exception)
            if not self.take_removal(item):
                memmove(self.kept.bytes + stays, item, bytes)
                stays += bytes
            at += bytes
        self.kept.used = stays
        return GOES_ON

    # Read leases.

    cdef int refuse_denied(self) noexcept nogil:
        """Lays out the refusals requested by other threads. Under the lock. 0: no memory."""
        cdef wan_frame *frame
        cdef uint32_t count = min(self.denied.count, <uint32_t>WAN_REPL_SECTIONS_MAX)
        if count == 0:
            return 1
        frame = buffer_open_frame(&self.out, WAN_FRAME_REPL_ANSWER, 0, self.shortness(),
                                  sizeof(wan_repl_head) + count * sizeof(wan_repl_answer))
        if frame == NULL:
            return 0
        (<wan_repl_head *>(frame + 1)).count = count
        memcpy(<wan_repl_head *>(frame + 1) + 1, self.denied.bytes, count * sizeof(wan_repl_answer))
        buffer_close_frame(&self.out, frame)
        wan_buffer_empty(&self.denied)
        return 1

    cdef int grant_read_lease(self) noexcept nogil:
        """Lays out the pending refusals, and extends the read lease. The caller lays out the answer that carries the
        lease. 0: no memory."""
        cdef int done
        wan_lock_take(&self.lock)
        done = self.refuse_denied()
        if done:
            wan_set(&self.read_lease.until_us, max(self.read_lease.until_us, self.work_us() + WAN_READ_LEASE_KEPT_US))
        wan_lock_release(&self.lock)
        return done

    cdef bint deny(self, uint32_t number, uint32_t bucket, uint64_t timeline, uint64_t epoch) noexcept nogil:
        """As `ReplReceiver.deny`, for the region with this number. False: no memory."""
        cdef wan_repl_answer answer
        cdef wan_status status = WAN_NO_MEMORY
        memset(&answer, 0, sizeof(answer))
        answer.region, answer.bucket = number, bucket
        set_answer(&answer, WAN_ANSWER_REFUSED, timeline, epoch, 0)
        wan_lock_take(&self.lock)
        if self.denied.count < WAN_REPL_SECTIONS_MAX:
            status = wan_buffer_add(&self.denied, &answer, sizeof(answer))
        wan_lock_release(&self.lock)
        self.wake()
        return status == WAN_OK

    cdef void wake(self) noexcept nogil:
        eventfd_write(self.wake_file, 1)

    def stop(self):
        """Makes `run` return soon. Applied changes without an answer are sent again on the next connection."""
        wan_flag_set(&self.stop_flag, 1)
        self.wake()

    def run(self, sock):
        """Receives over a connected socket, until the connection closes or breaks, or until `stop`. Returns "stopped",
        "closed", or the reason of the end. The GIL is free meanwhile."""
        try:
            return self.run_over_socket(sock)
        finally:
            wan_contact_end(self.contact)

    cdef void note_contact(self, const wan_frame *frame) noexcept nogil:
        """Notes when this question is answered, and that the sender has received the answer named in the question. So
        the sender was in contact after the answer left, however long this frame was on its way."""
        cdef uint64_t before = <uint32_t>(<uint32_t>frame.id - frame.count)
        if frame.id == 0:               # Region names are no question.
            return
        self.answered_us[frame.id % ANSWERS_KEPT] = wan_monotonic_us()
        if 0 < before < ANSWERS_KEPT and before < frame.id:
            wan_contact_received(self.contact, self.answered_us[(frame.id - before) % ANSWERS_KEPT])

    # The connection.

    cdef int take_frame(self, wan_frame *frame) noexcept nogil:
        if frame.flags == 0 and (frame.type == WAN_FRAME_REPL_CHANGES or frame.type == WAN_FRAME_REPL_SNAPSHOT
                                 or frame.type == WAN_FRAME_REPL_REGIONS or frame.type == WAN_FRAME_REPL_REMOVAL
                                 or frame.type == WAN_FRAME_PING):
            if wan_repl_check(frame.type, <const uint8_t *>(frame + 1), frame.length) != WAN_OK:
                return ENDED_TOLD
            self.note_contact(frame)
            if frame.type == WAN_FRAME_REPL_CHANGES:
                return self.apply_changes(frame)
            if frame.type == WAN_FRAME_REPL_SNAPSHOT:
                return self.apply_snapshot(frame)
            if frame.type == WAN_FRAME_REPL_REGIONS:
                return self.learn_regions(frame)
            if frame.type == WAN_FRAME_REPL_REMOVAL:
                return self.take_removals(frame)
            if self.grant_read_lease() and buffer_frame(&self.out, WAN_FRAME_PONG, frame.id, self.shortness(), NULL, 0):
                return GOES_ON
            return ENDED_TOLD
        if frame.type == WAN_FRAME_BYE:
            return ENDED_CLOSED
        wan_note(WAN_CORRUPT, "frame of type %u with flags %u from the sender of a replication link", frame.type,
                 frame.flags)
        return ENDED_TOLD

    cdef int step(self, uint64_t now_us) noexcept nogil:
        cdef bint is_denied
        if now_us > self.alive_until():
            wan_note(WAN_CORRUPT, "the member said nothing, or took nothing, for %.1f s",
                     wan_read(&self.receive_timeout_us) / 1e6)
            return ENDED_TOLD
        if self.look_at_removals() != GOES_ON:
            return ENDED_TOLD
        wan_lock_take(&self.lock)
        is_denied = self.denied.used != 0
        if is_denied and not self.refuse_denied():
            wan_lock_release(&self.lock)
            return ENDED_TOLD
        wan_lock_release(&self.lock)
        return GOES_AGAIN if is_denied else GOES_ON

    cdef uint64_t alive_until(self) noexcept nogil:
        """When the sender is given up, because the sender sends no frame, or reads no answer."""
        cdef uint64_t received_us = min(self.last_received_us,
                                        self.waiting_us) if self.waiting_us else self.last_received_us
        return received_us + wan_read(&self.receive_timeout_us)

    cdef uint64_t due_us(self, uint64_t now_us) noexcept nogil:
        return min(self.alive_until() + 1, self.look_us)
