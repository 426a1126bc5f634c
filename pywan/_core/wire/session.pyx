# Owns the one loop around a session, which moves the bytes of a connection over a stream, and what all sessions do
# alike. A session knows no stream and no clock: bytes and the time come in, bytes and the next deadline go out.
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy, strlen
from cpython.bytes cimport PyBytes_FromStringAndSize
from pywan._core.c_base cimport *
from pywan._core.c_names cimport *
from pywan._core.c_record cimport *
from pywan._core.base.status cimport detail_text, raise_for, report_unraisable
from pywan._core.wire.byte_stream cimport READY_TO_READ, ByteStream, Driver
from pywan._core.wire.stream cimport (
    STREAM_BROKEN, STREAM_CLOSED, STREAM_MEMORY, STREAM_OK, STREAM_WAIT, buffer_frame, buffer_reserve,
    stream_next_frame, stream_take)
from pywan._core.wire.tls_stream cimport stream_of


cdef enum:
    WAIT_US_MAX = 3600000000        # A loop waits at most so long.
    # The last words are given up after so long: an end that takes nothing does not read.
    LAST_WORDS_US = 30000000
    LOOK_US = 250000                # A session without a wake file looks so often whether it is to stop.


cdef class GivenDriver(Driver):
    """A driver whose clock and sending are Python functions."""

    def __cinit__(self, clock, send):
        self.clock, self.send = clock, send

    cdef uint64_t now_us(self) noexcept nogil:
        with gil:
            try:
                self.last_us = self.clock()
            except BaseException as error:
                report_unraisable("a driver's clock", error)
            return self.last_us

    cdef int push(self, wan_buffer *out) noexcept nogil:
        if self.send is None:
            return STREAM_WAIT
        with gil:
            try:
                self.send(taken_out(out))
                return STREAM_OK
            except BaseException as error:
                report_unraisable("a driver's way out", error)
                return STREAM_CLOSED


cdef bytes taken_out(wan_buffer *out):
    data = PyBytes_FromStringAndSize(<char *>out.bytes + out.start, out.used - out.start)
    out.start = out.used = 0
    return data


cdef class Session:
    """One end of a connection. Its driver calls `receive_data` with the bytes that came, `data_to_send` after that, and
    `data_to_send` again at `next_us`. `run` of each session does the same over a socket."""

    def __cinit__(self, *args, **kwargs):
        self.wake_file = -1
        self.wanted = sizeof(wan_frame)

    def __dealloc__(self):
        wan_buffer_close(&self.into)
        wan_buffer_close(&self.out)

    cdef void begin(self, uint64_t now_us) noexcept nogil:
        """Begins the connection: it is there from now on."""
        self.now_us = self.last_received_us = now_us
        self.waiting_us = self.unsent = 0
        self.ended = GOES_ON

    cdef int received(self) noexcept nogil:
        """Handles every whole frame in `into`, after bytes came. Returns GOES_ON, or how the session ended."""
        return self.take_frames()

    cdef void received_nothing(self) noexcept nogil:
        """Notes that no bytes lie in the socket."""

    cdef int take_frame(self, wan_frame *frame) noexcept nogil:
        """Handles one frame, whose checksum is right. Returns GOES_ON, or how the session ended."""
        return ENDED_CLOSED

    cdef int step(self, uint64_t now_us) noexcept nogil:
        """Lays out what is due. GOES_ON: the next call is when bytes came, or at `due_us`. GOES_AGAIN: the next call is
        at once, with what was laid out on its way. Otherwise it returns how the session ended."""
        return GOES_ON

    cdef uint64_t due_us(self, uint64_t now_us) noexcept nogil:
        """When `step` is to be called next though no bytes come in: the first of all deadlines. NEVER: there is
        none."""
        return NEVER

    cdef void sent(self, uint64_t now_us) noexcept nogil:
        """Notes that bytes have left."""

    cdef void woken(self, uint64_t since_us, uint64_t now_us) noexcept nogil:
        """Notes that the session waited since `since_us`."""

    cdef void keep_alive(self) noexcept nogil:
        """Tells the other end that we live, if it waits for that. The user's Python is running, perhaps for long."""

    cdef int closed(self, bint while_reading) noexcept nogil:
        """Notes that the other end closed the connection, or that it broke. Returns how the session ended."""
        return ENDED_CLOSED

    # What all sessions do alike.

    cdef uint64_t work_us(self) noexcept nogil:
        """The time now, asked in the middle of work."""
        if self.driver is not None:
            self.now_us = max(self.now_us, self.driver.now_us())
        return self.now_us

    cdef int push(self) noexcept nogil:
        """Sends what is laid out, in the middle of work. STREAM_CLOSED: the other end does not wait for it any more."""
        return STREAM_WAIT if self.driver is None else self.driver.push(&self.out)

    cdef bint all_left(self) noexcept nogil:
        return self.out.start == self.out.used and not self.unsent

    cdef int receive(self, uint64_t now_us) noexcept nogil:
        """Handles the bytes in `into` that came now."""
        cdef int how
        if self.now_us == 0 and now_us:
            self.begin(now_us)
        self.now_us = self.last_received_us = now_us
        how = self.received()
        if how == ENDED_TOLD and self.speaks_last:
            self.say_why()
        return how

    cdef void say_why(self) noexcept nogil:
        """Lays out an error frame with the detail, behind all that is laid out."""
        buffer_frame(&self.out, WAN_FRAME_ERROR, 0, 0, wan_detail, strlen(wan_detail))

    cdef void look(self, uint64_t now_us) noexcept nogil:
        """Notes the time before a step, and since when bytes wait to leave."""
        if self.now_us == 0 and now_us:
            self.begin(now_us)
        self.now_us = now_us
        if self.all_left():
            self.waiting_us = 0
        elif self.waiting_us == 0:
            self.waiting_us = now_us

    cdef int wait(self, ByteStream stream, bint to_read, bint to_write, uint64_t until_us) noexcept nogil:
        """Waits as `ByteStream.wait`, when there is nothing to do."""
        return stream.wait(to_read, to_write, self.wake_file, until_us)

    cdef int take_frames(self) noexcept nogil:
        """Takes every whole frame out of `into`. Returns GOES_ON, or how the session ended. If a frame is not in order,
        the detail says why."""
        cdef wan_frame *frame
        cdef int state, how
        while True:
            state = stream_next_frame(&self.into, &frame, &self.wanted)
            if state == STREAM_WAIT:
                return GOES_ON
            if state != STREAM_OK:
                return ENDED_TOLD
            how = self.take_frame(frame)
            if how != GOES_ON:
                return how
            stream_take(&self.into, frame)

    cdef void forget_bytes(self) noexcept nogil:
        """Forgets the bytes of a connection that is gone."""
        self.into.start = self.into.used = self.out.start = self.out.used = 0

    # A driver that has a stream.

    cdef int run_over(self, ByteStream stream):
        """Moves bytes until the session ends, and returns how it ended. The GIL is free meanwhile."""
        cdef int ended
        self.driver = stream
        try:
            with nogil:
                if self.now_us == 0:
                    self.begin(stream.now_us())
                ended = session_loop(self, stream)
                if self.speaks_last and ended != ENDED_STOPPED:
                    speak_last(self, stream)
            self.ended = ended
        finally:
            with nogil:
                stream.give_back(&self.out)
            self.driver = Driver()      # The stream may soon be that of another connection.
        return ended

    cdef str run_over_socket(self, sock):
        """Runs over a connected socket, plain or encrypted, until the session ends. Returns "stopped", "closed",
        "done", or why the connection was given up."""
        cdef int ended = self.run_over(stream_of(sock))
        return {ENDED_STOPPED: "stopped", ENDED_CLOSED: "closed", ENDED_DONE: "done"}.get(ended) or detail_text()

    # Any other driver: an event loop, a simulator, tests.

    cdef object error_of_end(self):
        """The exception for a connection that is to be given up. The detail says why."""
        from pywan.errors import ProtocolError
        if wan_detail_status == WAN_BROKEN or wan_detail_status == WAN_NO_MEMORY:
            raise_for(wan_detail_status, "")
        return ProtocolError(detail_text())

    def driven_by(self, clock, send=None):
        """Gives the session what it asks of its driver in the middle of long work. `clock()` returns microseconds as in
        `now_us`. `send(data)` takes what the other end is to hear before the work is done. Without `send` that waits
        for
        `data_to_send`. Without this call no time passes in the middle of work."""
        self.driver = GivenDriver(clock, send)

    def receive_data(self, const uint8_t[::1] data, uint64_t now_us=0):
        """Takes bytes that arrived at `now_us`, in microseconds of a clock that only runs forward (0: the time told
        last). False: these were the last ones; send `data_to_send`, then close the connection. An error says why the
        connection is to be given up: send `data_to_send`, then close it."""
        cdef size_t length = data.shape[0]
        cdef int how
        if length == 0:
            return True
        if not buffer_reserve(&self.into, length):
            raise MemoryError()
        memcpy(self.into.bytes + self.into.used, &data[0], length)
        self.into.used += length
        with nogil:
            how = self.receive(now_us if now_us else self.now_us)
        self.ended = how
        if how == ENDED_TOLD:
            raise self.error_of_end()
        return how == GOES_ON

    def data_to_send(self, uint64_t now_us=0, uint64_t unsent=0):
        """Returns bytes that should leave now, at `now_us` (0: the time told last). Call it again until there are none.
        `unsent`: so many of the bytes given before could not leave yet; then nothing more is given. An error says why
        the connection is to be given up: the other end shows no life, or takes nothing."""
        cdef int how = GOES_ON
        now_us = now_us if now_us else self.now_us
        if unsent < self.unsent:
            self.sent(now_us)
        self.unsent = unsent
        if unsent == 0:
            self.waiting_us = 0
        with nogil:
            self.look(now_us)
            while self.ended == GOES_ON and not wan_flag_read(&self.stop_flag):
                how = self.step(now_us)
                if how != GOES_AGAIN or not self.all_left():
                    break
        if how == ENDED_TOLD or how == ENDED_CLOSED:
            self.ended = how
            raise self.error_of_end()
        if unsent or self.out.start == self.out.used:
            return b""
        self.waiting_us = self.now_us       # The work may have taken long.
        self.sent(self.now_us)
        return taken_out(&self.out)

    def next_us(self, uint64_t now_us=0):
        """When to call `data_to_send` again, though no bytes come in and none wait to leave. None: never."""
        cdef uint64_t due
        now_us = now_us if now_us else self.now_us
        if self.now_us == 0 and now_us:
            self.begin(now_us)
        if self.out.start < self.out.used and not self.unsent:
            return now_us
        due = NEVER if self.ended != GOES_ON else self.due_us(now_us)
        return None if due == NEVER else due


cdef int session_turn(Session session, ByteStream stream, uint64_t *now_us) noexcept nogil:
    """Reads what has come, sends what fits, lays out what is due. Returns GOES_AGAIN: another turn comes at once;
    GOES_ON: there is nothing to do now; otherwise how the session ended. `now_us` gets the time when it began."""
    cdef uint64_t now
    cdef size_t drained
    cdef int state = STREAM_WAIT, how
    cdef bint is_empty
    if wan_flag_read(&session.stop_flag):
        return ENDED_STOPPED
    now = now_us[0] = stream.now_us()
    if (session.reads_while_writing or session.out.start == session.out.used) and not session.reads_nothing:
        state = stream.read(&session.into, session.wanted)
        if state == STREAM_CLOSED:
            return session.closed(True)
        if state == STREAM_MEMORY or state == STREAM_BROKEN:
            if state == STREAM_MEMORY and session.speaks_last:
                session.say_why()
            return ENDED_TOLD
        if state == STREAM_OK:
            how = session.receive(now)
            if how != GOES_ON:
                return how
        else:
            session.received_nothing()
    is_empty = session.out.start == session.out.used
    if not is_empty:
        drained = session.out.start
        how = stream.write(&session.out)
        if how == STREAM_CLOSED:
            return session.closed(False)
        if how == STREAM_BROKEN:
            return ENDED_TOLD
        is_empty = how == STREAM_OK
        if is_empty or session.out.start != drained:
            session.sent(now)
    if state == STREAM_OK and is_empty and not session.reads_while_writing:
        return GOES_AGAIN                   # There may be more bytes, and there is nothing else to do.
    session.look(now)
    return session.step(now)


cdef int session_loop(Session session, ByteStream stream) noexcept nogil:
    """Runs a session over a stream until it ends. Returns how it ended."""
    cdef uint64_t now = 0, until
    cdef int state, how
    if session.into.start < session.into.used:       # Bytes of an earlier run.
        how = session.receive(stream.now_us())
        if how != GOES_ON:
            return how
    while True:
        how = session_turn(session, stream, &now)
        if how == GOES_AGAIN:
            continue
        if how != GOES_ON:
            return how
        until = min(session.due_us(now), now + WAIT_US_MAX)
        if session.wake_file < 0:
            until = min(until, now + LOOK_US)
        state = session.wait(stream, (session.reads_while_writing or session.out.start == session.out.used)
                             and not session.reads_nothing, session.out.start < session.out.used, until)
        session.woken(now, stream.now_us())
        if session.reads_nothing and state & READY_TO_READ:
            return session.closed(False)        # It broke. Nobody reads what would say so.


cdef void speak_last(Session session, ByteStream stream) noexcept nogil:
    cdef uint64_t until = stream.now_us() + LAST_WORDS_US
    while (session.out.start < session.out.used and stream.write(&session.out) == STREAM_WAIT
           and stream.now_us() < until and not wan_flag_read(&session.stop_flag)):
        stream.wait(False, True, -1, min(until, stream.now_us() + LOOK_US))
