# Owns one connection's path from bytes to the region tables. `ReceiverSession` has no socket and no clock: bytes and
# `now` come in, bytes and the next deadline go out.
#
# The session consists of classes, one unit each, every class with its own state. Each class is the base of the next,
# and calls only earlier classes: receiver_report, receiver_regions, receiver_streams, receiver_rounds, receiver_apply.
# This unit has the frames, the batches, and the deadlines after which the sender is given up.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from cpython.bytes cimport PyBytes_FromStringAndSize
from pywan._core.c_base cimport *
from pywan._core.c_names cimport *
from pywan._core.c_record cimport *
from pywan._core.base.status cimport end_if_strayed, report_unraisable
from pywan._core.gateway.receiver_apply cimport ReceiverApply
from pywan._core.gateway.receiver_rounds cimport has_round
from pywan._core.gateway.receiver_streams cimport connection_partition
from pywan._core.gateway.source_memory cimport ReceiverCounts, SourceMemory
from pywan._core.wire.lz4 cimport lz4_load, lz4_unpack
from pywan._core.wire.session cimport ENDED_CLOSED, ENDED_STOPPED, ENDED_TOLD, GOES_AGAIN, GOES_ON
from pywan._core.wire.stream cimport buffer_frame, buffer_reserve, buffer_trim

cdef enum:
    STUCK_US = 30000000         # Limit for a sender that does not read its replies.
    # Limit of silence after another process opened the sender's queue: the sender's heartbeat, 5 s at most, and its
    # transfer time.
    CONTESTED_US = 8000000


cdef class ReceiverSession(ReceiverApply):
    """One sender's connection.

    `find_region(name)` returns a RegionCore or None. `callback_apply(region, record, (partition, sequence, whether the
    event may have been applied before))` is called for regions with user callbacks in Python. `max_drift_ms`: stamps
    further ahead of our clock are refused. `may_write(name)` returns whether the sender's user may write a region;
    None: all regions."""
    cdef object on_floors
    cdef wan_buffer unpacked
    cdef uint64_t expected_id       # The id of the next batch on this connection.
    cdef int contested_flag
    cdef uint64_t receive_timeout_us        # Limit of time without a byte; 0: no limit.

    def __cinit__(self, SourceMemory memory not None, ReceiverCounts counts not None, find_region, callback_apply, *,
                  uint64_t credit_bytes=64 << 20, uint64_t max_drift_ms=300000, uint64_t mount=0, on_floors=None,
                  on_failure=None, may_write=None):
        cdef connection_partition *partition
        self.mount = mount
        self.memory, self.counts, self.find_region, self.callback_apply = memory, counts, find_region, callback_apply
        self.on_floors, self.on_failure, self.may_write = on_floors, on_failure, may_write
        self.credit_bytes, self.max_drift_ms = credit_bytes, max_drift_ms
        self.speaks_last = True
        for n in range(memory.partitions):
            partition = self.make_partition(n)
            partition.slot = &memory.slots[n]
            partition.place.source = memory.source
            partition.place.partition, partition.place.timeline = n, mount
        lz4_load()

    def __dealloc__(self):
        wan_buffer_close(&self.unpacked)

    def stop(self):
        """Makes `run` return soon, after the event in work. A batch applied only in part is not acknowledged."""
        wan_flag_set(&self.stop_flag, 1)

    def contest(self):
        """Notes that another process opened the sender's queue. Unless the sender sends bytes soon, the sender is given
        up: a machine that lost power ends no connection."""
        wan_flag_set(&self.contested_flag, 1)

    # Batches and tombstone watermarks

    cdef int apply_batch(self, wan_frame *frame) noexcept nogil:
        cdef uint8_t *payload = <uint8_t *>(frame + 1)
        cdef const wan_batch_head *head
        cdef const wan_section *section
        cdef const uint8_t *at
        cdef uint32_t _n
        cdef bint is_applied
        cdef wan_buffer *pack = &self.unpacked
        cdef uint64_t began
        if self.shares[0].used and not self.wait_for_room():
            return 0
        began = self.work_us()
        if frame.flags & WAN_FRAME_LZ4:
            pack.start = pack.used = 0
            if not buffer_reserve(pack, frame.raw_length + 8):
                wan_note(WAN_CORRUPT, "no memory to unpack a batch of %u bytes", frame.raw_length)
                return 0
            if lz4_unpack(payload, frame.length, pack.bytes, frame.raw_length) != <int>frame.raw_length:
                wan_note(WAN_CORRUPT, "batch %llu cannot be unpacked", <unsigned long long>frame.id)
                return 0
            payload = pack.bytes
        if wan_batch_check(payload, frame.raw_length, frame.count) != WAN_OK:
            return 0
        if frame.id != self.expected_id:
            self.own.out_of_order_batches += 1
            wan_note(WAN_CORRUPT, "batch %llu where %llu should come", <unsigned long long>frame.id,
                     <unsigned long long>self.expected_id)
            return 0
        self.expected_id += 1
        self.begin_batch()
        if not self.is_sent and not has_round(self):
            self.failure_count = 0
        self.own.batches_received += 1
        self.own.bytes_received += frame.length
        head = <const wan_batch_head *>payload
        section = <const wan_section *>(head + 1)
        at = <const uint8_t *>(section + head.sections)
        for _n in range(head.sections):
            is_applied = self.apply_section(section, at)
            self.add_applied()
            if not is_applied:
                if self.refused_code:
                    self.apply_destroys(section, at, head.sections - _n)
                return 0
            at += section.bytes
            section += 1
        buffer_trim(pack)
        if self.is_sent or has_round(self) or wan_flag_read(&self.memory.streams.must_wait):
            return self.end_batch(frame.id, began)
        # The acknowledgement names all failures. All other events are in the tables.
        return self.acknowledge(frame.id, self.handled_events,
                                <uint32_t>min(self.work_us() - began, <uint64_t>0xffffffff))

    cdef int take_floors(self, const wan_frame *frame) noexcept nogil:
        cdef const wan_floor *floor = <const wan_floor *>(frame + 1)
        cdef uint32_t n, count = frame.length // sizeof(wan_floor)
        if frame.length % sizeof(wan_floor) or frame.flags or count > 256:
            wan_note(WAN_CORRUPT, "a ping with %u bytes of floors", frame.length)
            return 0
        for n in range(1, count):
            if floor[n].origin <= floor[n - 1].origin:
                wan_note(WAN_CORRUPT, "a ping with the floors of its origins out of order")
                return 0
        return self.tell_floors(frame)

    cdef int tell_floors(self, const wan_frame *frame) noexcept with gil:
        try:
            if self.on_floors is not None:
                self.on_floors(PyBytes_FromStringAndSize(<const char *>(frame + 1), frame.length))
            return 1
        except BaseException as error:
            report_unraisable("a sender's floors", error)
            wan_note(WAN_CORRUPT, "the floors of a sender cannot be kept")
            return 0
        finally:
            end_if_strayed(self.born, "a gateway receiver")

    # Frames and deadlines

    cdef int take_frame(self, wan_frame *frame) noexcept nogil:
        if frame.type == WAN_FRAME_BATCH:
            return GOES_ON if self.apply_batch(frame) else ENDED_TOLD
        if frame.type == WAN_FRAME_REGION:
            return GOES_ON if self.learn_region(frame) else ENDED_TOLD
        if frame.type == WAN_FRAME_STREAM:
            return GOES_ON if self.end_rounds_of(frame.id) and self.learn_stream(frame) else ENDED_TOLD
        if frame.type == WAN_FRAME_PING:
            if frame.length and not self.take_floors(frame):
                return ENDED_TOLD
            return GOES_ON if buffer_frame(&self.out, WAN_FRAME_PONG, frame.id, 0, NULL, 0) else ENDED_TOLD
        if frame.type == WAN_FRAME_BYE:
            return ENDED_CLOSED
        wan_note(WAN_CORRUPT, "frame of type %u from a sender", frame.type)
        return ENDED_TOLD

    cdef int received(self) noexcept nogil:
        cdef int how
        wan_flag_set(&self.contested_flag, 0)
        how = self.take_frames()
        self.tell_counts()
        if how != GOES_ON:
            self.forget_rounds()
        if how == GOES_ON and self.into.start < self.into.used:
            # The rest of a frame is in transit, for minutes on a slow link.
            self.steps += 1
            how = GOES_ON if self.tell_progress() else ENDED_TOLD
        return ENDED_STOPPED if how == ENDED_TOLD and wan_flag_read(&self.stop_flag) else how

    cdef int step(self, uint64_t now_us) noexcept nogil:
        cdef int is_done
        if self.waiting_us and now_us > self.waiting_us + STUCK_US:
            wan_note(WAN_CORRUPT, "the sender took nothing of what it is told for %.1f s", STUCK_US / 1e6)
            # Acknowledgements are small. If even acknowledgements do not fit, the sender does not read.
            return ENDED_CLOSED
        if wan_flag_read(&self.contested_flag) and now_us > self.last_received_us + CONTESTED_US:
            wan_note(WAN_CORRUPT, "the sender was silent for more than %d ms, and its queue has been opened elsewhere",
                     <int>(CONTESTED_US // 1000))
            return ENDED_TOLD
        if self.receive_timeout_us and now_us > self.last_received_us + self.receive_timeout_us:
            wan_note(WAN_CORRUPT, "the sender was silent for more than maximum-time-between-pings = %llu ms",
                     <unsigned long long>(self.receive_timeout_us // 1000))
            return ENDED_TOLD
        if self.is_sent or has_round(self):
            # No more bytes can be read. The round in work leaves; if the round has left, wait for its end.
            is_done = self.turn_over() if has_round(self) else self.end_round()
            self.tell_counts()
            if not is_done:
                self.forget_rounds()
                if wan_flag_read(&self.stop_flag):
                    return ENDED_STOPPED
                self.say_why()
                return ENDED_TOLD
            return GOES_AGAIN
        return GOES_ON

    cdef uint64_t due_us(self, uint64_t now_us) noexcept nogil:
        cdef uint64_t due = now_us if self.is_sent or has_round(self) else NEVER
        if self.waiting_us:
            due = min(due, self.waiting_us + STUCK_US + 1)
        if wan_flag_read(&self.contested_flag):
            due = min(due, self.last_received_us + CONTESTED_US + 1)
        if self.receive_timeout_us:
            due = min(due, self.last_received_us + self.receive_timeout_us + 1)
        return due

    def connected(self, uint64_t now_us, int receive_timeout_ms=0):
        """Begins the connection, which exists since `now_us`; 0: since the start of `run`. The sender is given up after
        `receive_timeout_ms` without a byte; 0: never."""
        self.receive_timeout_us = <uint64_t>max(0, receive_timeout_ms) * 1000
        self.begin(now_us)

    def run(self, sock, int receive_timeout_ms):
        """Takes batches from a connected socket until the socket closes, breaks, is silent for `receive_timeout_ms`, or
        the session is told to stop. Returns "closed", "stopped", or the reason of the end. The GIL is free
        meanwhile."""
        self.connected(0, receive_timeout_ms)
        try:
            return self.run_over_socket(sock)
        finally:
            self.forget_rounds()
