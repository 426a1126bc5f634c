# Owns the listener's end of a dispatcher's connection, in place of a socket and a remote receiver: the stream hands a
# sent batch to the listener, and returns the listener's result as an acknowledgement.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_system cimport *
from pywan._core.base.status cimport detail_text, report_unraisable
from pywan._core.gateway.event_batch cimport EventBatch, batch_of_frame
from pywan._core.wire.byte_stream cimport READY_TO_READ, WOKEN, ByteStream
from pywan._core.wire.session cimport ENDED_CLOSED, ENDED_DONE, ENDED_STOPPED, Session
from pywan._core.wire.stream cimport (
    STREAM_CLOSED, STREAM_MEMORY, STREAM_OK, STREAM_WAIT, buffer_frame, buffer_reserve, stream_next_frame, stream_take)

cdef enum:
    WAIT_MS_MAX = 3600000


cdef class ListenerStream(ByteStream):
    """The other end of one dispatcher. `deliver(batch)` hands a batch to the listener. The function returns the events
    to park, as pairs of position in the batch and reason; None: the batch is to be sent again."""
    cdef object deliver
    cdef str queue
    cdef uint64_t numbering
    cdef EventBatch batch           # A sent batch that the listener has not received yet.
    cdef bint has_batch
    cdef uint64_t id                # The id of the batch.
    cdef wan_buffer answers         # Frames for the dispatcher.
    cdef bint is_refused            # The listener failed: the next connection sends the batch again.

    def __cinit__(self, deliver, str queue, uint64_t numbering):
        self.deliver, self.queue, self.numbering = deliver, queue, numbering

    def __dealloc__(self):
        wan_buffer_close(&self.answers)

    cdef int write(self, wan_buffer *out) noexcept nogil:
        cdef wan_frame *frame
        cdef size_t missing
        cdef int state
        while True:
            state = stream_next_frame(out, &frame, &missing)
            if state != STREAM_OK:
                return STREAM_OK if state == STREAM_WAIT else STREAM_CLOSED
            if frame.type == WAN_FRAME_BATCH:
                if not self.keep(frame):
                    return STREAM_CLOSED
            elif frame.type == WAN_FRAME_PING:
                if not buffer_frame(&self.answers, WAN_FRAME_PONG, frame.id, 0, NULL, 0):
                    return STREAM_CLOSED
            stream_take(out, frame)

    cdef bint keep(self, const wan_frame *frame) noexcept with gil:
        try:
            self.batch, self.id = batch_of_frame(frame, self.queue, self.numbering), frame.id
            self.has_batch = True
            return True
        except BaseException as error:
            report_unraisable("a batch for a listener", error)
            return False

    cdef int read(self, wan_buffer *into, size_t missing) noexcept nogil:
        cdef size_t length = self.answers.used - self.answers.start
        if self.is_refused:
            return STREAM_CLOSED
        if length == 0:
            return STREAM_WAIT
        if not buffer_reserve(into, length):
            return STREAM_MEMORY
        memcpy(into.bytes + into.used, self.answers.bytes + self.answers.start, length)
        into.used += length
        self.answers.start = self.answers.used = 0
        return STREAM_OK

    cdef int wait(self, bint to_read, bint to_write, int wake_file, uint64_t until_us) noexcept nogil:
        cdef pollfd file
        cdef uint64_t now, drained
        if self.has_batch:
            self.hand_over()
            return READY_TO_READ
        if self.answers.used:
            return READY_TO_READ
        now = self.now_us()
        if until_us <= now:
            return 0
        file.fd, file.events, file.revents = wake_file, POLLIN, 0
        poll(&file, 1, <int>min((until_us - now + 999) // 1000, <uint64_t>WAIT_MS_MAX))
        if file.revents & POLLIN:
            eventfd_read(wake_file, &drained)
            return WOKEN
        return 0

    cdef void hand_over(self) noexcept with gil:
        """Hands the batch to the listener, and lays out the listener's result."""
        cdef EventBatch batch = self.batch
        cdef uint64_t began_us = self.now_us()
        self.batch, self.has_batch = None, False
        try:
            parked = self.deliver(batch)
            if parked is None:
                self.is_refused = True
            else:
                self.acknowledge(batch, parked, self.now_us() - began_us)
        except BaseException as error:
            report_unraisable("an asynchronous event queue", error)
            self.is_refused = True

    cdef int acknowledge(self, EventBatch batch, parked, uint64_t worked_us) except -1:
        cdef wan_ack ack
        cdef wan_failure failure
        cdef bytes failures = b""
        cdef uint32_t place
        for place, reason in sorted(parked):
            memset(&failure, 0, sizeof(failure))
            failure.partition = batch.memory.partitions[batch.first + place]
            failure.sequence = batch.memory.sequences[batch.first + place]
            failure.reason = reason
            failures += (<char *>&failure)[:sizeof(failure)]
        memset(&ack, 0, sizeof(ack))
        ack.credit_events, ack.credit_bytes, ack.failures = 1, 1, len(parked)     # One batch at a time.
        payload = (<char *>&ack)[:sizeof(ack)] + failures
        if not buffer_frame(&self.answers, WAN_FRAME_ACK, self.id, <uint32_t>min(worked_us, <uint64_t>0xffffffff),
                            <const char *>payload, len(payload)):
            raise MemoryError("no memory for an acknowledgement")
        return 0


def run_listener(Session session not None, deliver, str queue, uint64_t numbering):
    """Hands the batches of a dispatcher's session to `deliver(batch)`, until the session is told to stop or a batch is
    to be sent again. Returns "stopped", or the reason of the end. `queue` and `numbering` are values for the
    batches."""
    cdef int ended = session.run_over(ListenerStream(deliver, queue, numbering))
    return {ENDED_STOPPED: "stopped", ENDED_CLOSED: "closed", ENDED_DONE: "done"}.get(ended) or detail_text()
