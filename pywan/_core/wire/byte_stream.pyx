# Owns what a session, or a line for calls, needs of a connection: a stream of bytes, and the one over a plain socket.
# The one over an encrypted socket is in tls_stream.
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy
from libc.errno cimport EAGAIN, EINTR, errno
from pywan._core.c_base cimport *
from pywan._core.c_system cimport *
from pywan._core.wire.stream cimport (
    FIRST_BYTES, RECEIVE_BYTES, STREAM_BROKEN, STREAM_CLOSED, STREAM_MEMORY, STREAM_OK, STREAM_WAIT, buffer_reserve,
    buffer_trim)


cdef enum:
    POLL_US_MAX = 3600000000        # A wait takes at most so long.


cdef class Driver:
    """What a session asks of its driver in the middle of long work, and nowhere else. This driver has the system's
    clock, and sends nothing before the work is done."""

    def __cinit__(self, *args, **kwargs):
        self.took_all = True

    cdef uint64_t now_us(self) noexcept nogil:
        return wan_monotonic_us()

    cdef int push(self, wan_buffer *out) noexcept nogil:
        """Sends what fits now. STREAM_CLOSED: the other end does not wait for it any more."""
        return STREAM_WAIT


cdef class ByteStream(Driver):
    """The bytes of a connection: reading what is there, writing what fits, and waiting for either. One thread at a time
    uses it."""

    cdef int read(self, wan_buffer *into, size_t missing) noexcept nogil:
        """Takes what is there now of the `missing` bytes of a frame, or more. STREAM_OK: bytes came from the network.
        Of an encrypted connection they may be no bytes of a frame yet. Otherwise it returns STREAM_WAIT, STREAM_CLOSED,
        or STREAM_MEMORY or STREAM_BROKEN, of which the detail says more."""
        return STREAM_CLOSED

    cdef int await_read(self, wan_buffer *into, size_t missing) noexcept nogil:
        """As `read`, but it waits for bytes as long as the socket's own limit (SO_RCVTIMEO) says. STREAM_WAIT: none
        came, or a signal came."""
        return STREAM_CLOSED

    cdef int write(self, wan_buffer *out) noexcept nogil:
        """Sends what fits now, and takes it out. STREAM_OK: all of it was sent. Otherwise it returns STREAM_WAIT,
        STREAM_CLOSED, or STREAM_BROKEN: the detail says why. What was not sent stays as it is, in `out` of the next
        call."""
        return STREAM_CLOSED

    cdef int wait(self, bint to_read, bint to_write, int wake_file, uint64_t until_us) noexcept nogil:
        """Waits until there are bytes to read, or room to write, or the wake file (-1: none) is written, or it is
        `until_us`. Returns those of READY_TO_READ, READY_TO_WRITE and WOKEN that hold, or 0."""
        return 0

    cdef int wait_beside(self, bint to_write, int wake_file, int other_file, uint64_t until_us) noexcept nogil:
        """As `wait` for bytes to read, or until there are some in another file: OTHER_READY."""
        return 0

    cdef int wait_for_end(self, int wake_file, uint64_t until_us) noexcept nogil:
        """As `wait`, but READY_TO_READ is returned only when the other end has closed the connection. Another thread
        may use the stream meanwhile."""
        return 0

    cdef void give_back(self, wan_buffer *out) noexcept nogil:
        """Ends the use of the stream. From now on its owner moves the bytes, and `out` has what was not sent."""

    cdef int push(self, wan_buffer *out) noexcept nogil:
        cdef int state = self.write(out)
        return STREAM_CLOSED if state == STREAM_BROKEN else state


cdef class SocketStream(ByteStream):
    """A stream over a connected socket. The caller owns the socket and closes it."""

    def __cinit__(self, int file):
        self.file = file

    cdef int read(self, wan_buffer *into, size_t missing) noexcept nogil:
        return self.receive(into, missing, MSG_DONTWAIT)

    cdef int await_read(self, wan_buffer *into, size_t missing) noexcept nogil:
        return self.receive(into, missing, 0)

    cdef int receive(self, wan_buffer *into, size_t missing, int flags) noexcept nogil:
        cdef uint8_t first[FIRST_BYTES]
        cdef uint8_t *to = first
        cdef ssize_t got
        cdef size_t room = FIRST_BYTES
        if into.capacity:
            if not make_room(into, missing):
                return STREAM_MEMORY
            to, room = into.bytes + into.used, into.capacity - into.used
        got = receive_from(self.file, to, room, flags)
        if got <= 0:
            return STREAM_WAIT if got < 0 and (errno == EAGAIN or errno == EINTR) else STREAM_CLOSED
        self.took_all = <size_t>got < room
        return took_first(into, first, <size_t>got) if to == first else took(into, <size_t>got)

    cdef int write(self, wan_buffer *out) noexcept nogil:
        cdef int state = send_from(self.file, out)
        if state == STREAM_OK:
            buffer_trim(out)
        return state

    cdef int wait(self, bint to_read, bint to_write, int wake_file, uint64_t until_us) noexcept nogil:
        return wait_for_files(self.file, (POLLIN if to_read else 0) | (POLLOUT if to_write else 0), wake_file, -1,
                              until_us)

    cdef int wait_beside(self, bint to_write, int wake_file, int other_file, uint64_t until_us) noexcept nogil:
        return wait_for_files(self.file, POLLIN | (POLLOUT if to_write else 0), wake_file, other_file, until_us)

    cdef int wait_for_end(self, int wake_file, uint64_t until_us) noexcept nogil:
        return wait_for_files(self.file, POLLRDHUP, wake_file, -1, until_us)


cdef bint make_room(wan_buffer *into, size_t missing) noexcept nogil:
    """Makes room for bytes that come: at most twice what is there. So memory is taken for bytes that were sent, not for
    bytes that a header announces. A connection on which nothing came has no buffer. False: there is no memory."""
    cdef size_t here = into.used - into.start
    if ((into.capacity >= RECEIVE_BYTES or into.used == into.capacity)
            and not buffer_reserve(into, max(<size_t>RECEIVE_BYTES, min(missing, here)))):
        # Without a number: each attempt of the other end gives the same words, which are logged once a minute.
        wan_note(WAN_CORRUPT, "out of memory for a frame that is on its way")
        return False
    return True


cdef int took_first(wan_buffer *into, const uint8_t *first, size_t length) noexcept nogil:
    """Takes the first bytes of a connection, at most FIRST_BYTES."""
    if wan_buffer_begin(into, FIRST_BYTES) != WAN_OK:
        return STREAM_MEMORY
    memcpy(into.bytes, first, length)
    return took(into, length)


cdef ssize_t receive_from(int file, uint8_t *to, size_t room, int flags) noexcept nogil:
    """As recv. A signal ends it only if it waits."""
    cdef ssize_t got
    while True:
        got = recv(file, to, room, flags)
        if got >= 0 or errno != EINTR or flags == 0:
            return got


cdef int send_from(int file, wan_buffer *out) noexcept nogil:
    """Sends what fits now. STREAM_OK: all of it was sent."""
    cdef ssize_t went
    while out.start < out.used:
        went = send(file, out.bytes + out.start, out.used - out.start, MSG_DONTWAIT | MSG_NOSIGNAL)
        if went > 0:
            out.start += <size_t>went
        elif not (went < 0 and errno == EINTR):
            return STREAM_WAIT if went < 0 and errno == EAGAIN else STREAM_CLOSED
    return STREAM_OK


cdef int wait_for_files(int file, short events, int wake_file, int other_file, uint64_t until_us) noexcept nogil:
    """Waits for these events of the first file, or until the others can be read; poll ignores the file -1."""
    cdef pollfd files[3]
    cdef uint64_t now = wan_monotonic_us(), drained
    cdef int ready = 0
    if until_us <= now:
        return 0
    files[0].fd, files[0].events, files[0].revents = file, events, 0
    files[1].fd, files[1].events, files[1].revents = wake_file, POLLIN, 0
    files[2].fd, files[2].events, files[2].revents = other_file, POLLIN, 0
    poll(files, 3, <int>((min(until_us - now, <uint64_t>POLL_US_MAX) + 999) // 1000))
    if files[0].revents & (POLLIN | POLLERR | POLLHUP | POLLRDHUP):
        ready |= READY_TO_READ
    if files[0].revents & POLLOUT:
        ready |= READY_TO_WRITE
    if files[1].revents & POLLIN:
        eventfd_read(wake_file, &drained)
        ready |= WOKEN
    if files[2].revents:
        ready |= OTHER_READY
    return ready
