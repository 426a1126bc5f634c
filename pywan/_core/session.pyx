# Owns what moves the bytes of a connection: a stream of them (over a socket; TLS would be another one), and the one
# loop around a session, with what all sessions do alike. A session knows neither: bytes and the time come in, bytes and
# the next deadline go out.
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy
from libc.errno cimport EAGAIN, EINTR, errno
from cpython.bytes cimport PyBytes_FromStringAndSize
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_system cimport *
from pywan._core.status cimport detail_text
from pywan._core.stream cimport (
    RECEIVE_BYTES, STREAM_CLOSED, STREAM_MEMORY, STREAM_OK, STREAM_WAIT, buffer_reserve, buffer_trim, stream_next_frame,
    stream_take)


cdef enum:
    WAIT_US_MAX = 3600000000        # A loop looks up at least so often.
    LAST_WORDS_US = 30000000        # Who takes nothing for so long does not read.
    LOOK_US = 250000                # So often a session without a wake file looks whether it is to stop.


cdef class ByteStream:
    """Bytes of a connection: what is there, what fits, and waiting for either. One thread at a time."""

    cdef int read(self, wan_buffer *into, size_t missing) noexcept nogil:
        """Takes what is there now of the `missing` bytes of a frame, or more. STREAM_OK, STREAM_WAIT, STREAM_CLOSED,
        STREAM_MEMORY."""
        return STREAM_CLOSED

    cdef int write(self, wan_buffer *out) noexcept nogil:
        """Sends what fits now. STREAM_OK: all of it; STREAM_WAIT, STREAM_CLOSED."""
        return STREAM_CLOSED

    cdef int wait(self, bint to_read, bint to_write, int wake_file, uint64_t until_us) noexcept nogil:
        """Until there are bytes, or room for some, or the wake file (-1: none) says so, or it is time. Returns
        READY_TO_READ, WOKEN, both, or 0."""
        return 0


cdef class SocketStream(ByteStream):
    """Over a connected socket, which stays its owner's."""

    def __cinit__(self, int file):
        self.file = file

    cdef int read(self, wan_buffer *into, size_t missing) noexcept nogil:
        # Room is made as bytes come, twice what is there at most: memory is taken for what was sent, not for what a
        # header says will be.
        cdef ssize_t got
        cdef size_t here = into.used - into.start, room = max(<size_t>RECEIVE_BYTES, min(missing, here))
        if not buffer_reserve(into, room):
            wan_tell(WAN_CORRUPT, "no memory for a frame: %llu bytes of it are here, %llu are to come",
                     <unsigned long long>here, <unsigned long long>missing)
            return STREAM_MEMORY
        while True:
            got = recv(self.file, into.bytes + into.used, into.capacity - into.used, MSG_DONTWAIT)
            if got > 0:
                into.used += <size_t>got
                return STREAM_OK
            if got < 0 and errno == EINTR:
                continue
            return STREAM_WAIT if got < 0 and errno == EAGAIN else STREAM_CLOSED

    cdef int write(self, wan_buffer *out) noexcept nogil:
        cdef ssize_t went
        while out.start < out.used:
            went = send(self.file, out.bytes + out.start, out.used - out.start, MSG_DONTWAIT | MSG_NOSIGNAL)
            if went > 0:
                out.start += <size_t>went
            elif went < 0 and errno == EINTR:
                continue
            else:
                return STREAM_WAIT if went < 0 and errno == EAGAIN else STREAM_CLOSED
        buffer_trim(out)
        return STREAM_OK

    cdef int wait(self, bint to_read, bint to_write, int wake_file, uint64_t until_us) noexcept nogil:
        cdef pollfd files[2]
        cdef uint64_t now = wan_monotonic_us(), drained
        cdef int ready = 0
        if until_us <= now:
            return 0
        files[0].fd, files[0].events, files[0].revents = self.file, (POLLIN if to_read else 0) | (POLLOUT if to_write else 0), 0
        files[1].fd, files[1].events, files[1].revents = wake_file, POLLIN, 0       # poll passes over -1.
        poll(files, 2, <int>((min(until_us - now, <uint64_t>WAIT_US_MAX) + 999) // 1000))
        if files[0].revents & (POLLIN | POLLERR | POLLHUP):
            ready |= READY_TO_READ
        if files[1].revents & POLLIN:
            eventfd_read(wake_file, &drained)
            ready |= WOKEN
        return ready


cdef class Session:
    """One end of a connection, as its loop sees it."""

    def __cinit__(self, *args, **kwargs):
        self.wake_file = -1
        self.reads = True
        self.wanted = sizeof(wan_frame)

    def __dealloc__(self):
        wan_buffer_close(&self.into)
        wan_buffer_close(&self.out)

    cdef int heard(self, uint64_t now_us) noexcept nogil:
        """Handles every whole frame in `into`, of which bytes came now. GOES_ON, or how it ended."""
        return self.take_frames()

    cdef int take_frame(self, wan_frame *frame) noexcept nogil:
        """Handles one frame, whose checksum is right. GOES_ON, or how it ended."""
        return ENDED_CLOSED

    cdef int step(self, uint64_t now_us, uint64_t *until_us) noexcept nogil:
        """Lays out what is due. GOES_ON: it is to be called again when bytes came, or at *until_us; GOES_AGAIN: at
        once, with what was laid out on its way; else how it ended."""
        return GOES_ON

    cdef void sent(self, uint64_t now_us) noexcept nogil:
        """Bytes have left."""

    cdef void woken(self, uint64_t since_us, int ready) noexcept nogil:
        """It waited."""

    cdef void keep_alive(self) noexcept nogil:
        """The user's Python has it in hand, perhaps for long: the other end hears that we live, where it waits for
        that."""

    cdef int closed(self, bint while_reading) noexcept nogil:
        """The other end closed the connection, or it broke. How it ended."""
        return ENDED_CLOSED

    # What all of them do alike

    cdef int take_frames(self) noexcept nogil:
        """Takes every whole frame out of `into`. GOES_ON, or how it ended: the detail tells of a frame that is not in
        order."""
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
        """Those of a connection that is gone."""
        self.into.start = self.into.used = self.out.start = self.out.used = 0

    cdef str run_over(self, int file):
        """Over a connected socket until it ends. Returns "stopped", "closed", "done", or why it was given up."""
        cdef int ended = run_session(self, SocketStream(file))
        return {ENDED_STOPPED: "stopped", ENDED_CLOSED: "closed", ENDED_DONE: "done"}.get(ended) or detail_text()

    # What a driver without a socket uses

    cdef object error_of_end(self):
        """The exception for a connection that is to be given up; the detail says why."""
        from pywan.errors import ProtocolError
        return ProtocolError(detail_text())

    cdef int take_in(self, const uint8_t[::1] data, uint64_t now_us) except -1:
        """Bytes that arrived at `now_us`."""
        cdef size_t length = data.shape[0]
        cdef int how
        if length == 0:
            return 0
        if not buffer_reserve(&self.into, length):
            raise MemoryError()
        memcpy(self.into.bytes + self.into.used, &data[0], length)
        self.into.used += length
        with nogil:
            how = self.heard(now_us)
        if how == ENDED_TOLD:
            raise self.error_of_end()
        return 0

    cdef bytes take_out(self):
        data = PyBytes_FromStringAndSize(<char *>self.out.bytes + self.out.start, self.out.used - self.out.start)
        self.out.start = self.out.used = 0
        return data


cdef int run_session(Session session, ByteStream stream):
    """Moves bytes until the session ends, and returns how. The GIL is free meanwhile."""
    cdef int ended
    session.stream = stream
    try:
        with nogil:
            ended = session_loop(session, stream)
            if session.speaks_last and ended != ENDED_STOPPED:
                speak_last(session, stream)
    finally:
        session.stream = None
    return ended


cdef int session_loop(Session s, ByteStream stream) noexcept nogil:
    """`run_session`, without the last words."""
    cdef uint64_t now, until
    cdef size_t drained
    cdef int state, how
    cdef bint is_empty
    if s.into.start < s.into.used:       # Of an earlier run.
        how = s.heard(wan_monotonic_us())
        if how != GOES_ON:
            return how
    while True:
        if wan_flag_read(&s.stop_flag):
            return ENDED_STOPPED
        now = wan_monotonic_us()
        if s.reads and (s.reads_while_writing or s.out.start == s.out.used):
            state = stream.read(&s.into, s.wanted)
            if state == STREAM_CLOSED:
                return s.closed(True)
            if state == STREAM_MEMORY:
                return ENDED_TOLD
            if state == STREAM_OK:
                how = s.heard(now)
                if how != GOES_ON:
                    return how
        else:
            state = STREAM_WAIT
        is_empty = s.out.start == s.out.used
        if not is_empty:
            drained = s.out.start
            how = stream.write(&s.out)
            if how == STREAM_CLOSED:
                return s.closed(False)
            is_empty = how == STREAM_OK
            if is_empty or s.out.start != drained:
                s.sent(now)
        if state == STREAM_OK and is_empty and not s.reads_while_writing:
            continue                    # There may be more, and nothing else is to be done.
        until = now + WAIT_US_MAX
        how = s.step(now, &until)
        if how == GOES_AGAIN:
            continue
        if how != GOES_ON:
            return how
        if s.wake_file < 0:
            until = min(until, now + LOOK_US)
        # Who does not read wants to know that the other end speaks.
        state = stream.wait(s.reads_while_writing or s.out.start == s.out.used or not s.reads, s.out.start < s.out.used,
                            s.wake_file, until)
        s.woken(now, state)


cdef void speak_last(Session s, ByteStream stream) noexcept nogil:
    cdef uint64_t until = wan_monotonic_us() + LAST_WORDS_US
    while s.out.start < s.out.used and stream.write(&s.out) == STREAM_WAIT and wan_monotonic_us() < until and not wan_flag_read(&s.stop_flag):
        stream.wait(False, True, -1, min(until, wan_monotonic_us() + LOOK_US))
