# Owns the stream over an encrypted socket, and which stream a socket has. Python's ssl encrypts and decrypts in memory:
# its objects need the GIL, which is taken once for each chunk of bytes. Nothing waits for the network with the GIL.
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy
from libc.errno cimport EAGAIN, EINTR, errno
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_SetObject
from cpython.object cimport Py_TYPE
from cpython.ref cimport Py_DECREF, Py_INCREF
from pywan._core.c_base cimport *
from pywan._core.c_python cimport PyBUF_READ, PyBUF_WRITE, PyMemoryView_FromMemory, Py_AddPendingCall
from pywan._core.c_system cimport *
from pywan._core.base.status cimport report_unraisable
from pywan._core.wire.byte_stream cimport (
    READY_TO_READ, ByteStream, SocketStream, make_room, receive_from, send_from, took, took_first, wait_for_files)
from pywan._core.wire.stream cimport (
    FIRST_BYTES, STREAM_BROKEN, STREAM_CLOSED, STREAM_MEMORY, STREAM_OK, STREAM_WAIT, buffer_trim)


cdef enum:
    RECORD_HEAD_BYTES = 5       # A record of TLS begins so: its kind, the version, and the length of the rest.
    RECORD_BYTES = 16384        # The most plain bytes of a record.
    RECORD_ROOM = 17408         # The most encrypted bytes of one, and of a small record of TLS itself before it.
    # Bytes that are encrypted or decrypted at once: four records. They lie on the stack, so a connection at rest has no
    # buffer. To encrypt a byte costs a fifth less than by single records; with sixteen it would be a quarter.
    CHUNK_BYTES = 4 * RECORD_ROOM


cdef class TlsStream(ByteStream):
    """A stream over an encrypted connection. The caller owns the socket and closes it.

    One thread may read while another one writes. While the stream is used, nobody else uses the encryption. A thread
    takes `sending` before `lock`, and `lock` before the GIL: ssl lets go of the GIL in the middle of its work."""
    cdef int file
    cdef wan_lock lock          # Guards the objects of ssl, and the next three.
    cdef object decrypt, encrypt, incoming, outgoing
    cdef type wants_more        # The exception that says that a record is not whole.
    cdef bint has_answers       # TLS itself has something to say.
    cdef wan_lock sending       # Guards the next two. Its owner encrypts and sends: in this order, bytes leave.
    cdef wan_buffer sealed      # Encrypted bytes that had no room on the way.
    cdef size_t ahead           # Bytes of `out` of the last write that are among these, and not taken out yet.
    # The reader's alone.
    cdef bint is_new            # Bytes that came during the handshake may lie there.
    cdef size_t missing_of_record   # What is to come of the record that comes now, as far as is known.
    cdef uint8_t record_head[RECORD_HEAD_BYTES]
    cdef size_t record_head_used
    # How the connection ended: STREAM_OK (not yet), STREAM_CLOSED, STREAM_BROKEN; atomic. Whoever sets it has `lock`.
    cdef int end
    cdef bytes why

    def __cinit__(self, int file, tls):
        from ssl import SSLWantReadError
        self.file, self.wants_more, self.is_new = file, SSLWantReadError, True
        self.decrypt, self.encrypt = tls.object.read, tls.object.write
        self.incoming, self.outgoing = tls.incoming, tls.outgoing

    def __dealloc__(self):
        wan_buffer_close(&self.sealed)

    # Reading

    cdef int read(self, wan_buffer *into, size_t missing) noexcept nogil:
        return self.receive(into, missing, MSG_DONTWAIT)

    cdef int await_read(self, wan_buffer *into, size_t missing) noexcept nogil:
        return self.receive(into, missing, 0)

    cdef int receive(self, wan_buffer *into, size_t missing, int flags) noexcept nogil:
        cdef uint8_t came[CHUNK_BYTES]
        cdef ssize_t got = 0
        cdef int state
        if wan_flag_read(&self.end) != STREAM_OK:
            return self.tell_end()
        if self.is_new:
            state = self.open_first(into, missing)
            if state != STREAM_WAIT:
                return state
        got = receive_from(self.file, came, CHUNK_BYTES, flags)
        if got <= 0:
            return STREAM_WAIT if got < 0 and (errno == EAGAIN or errno == EINTR) else STREAM_CLOSED
        self.took_all = got < CHUNK_BYTES
        wan_lock_take(&self.lock)
        state = self.open(came, <size_t>got, into, missing)
        wan_lock_release(&self.lock)
        if self.has_answers and wan_lock_try(&self.sending):      # Otherwise they leave with what is sent now or next.
            if self.sealed.start == self.sealed.used:
                self.send_fresh(NULL)
            wan_lock_release(&self.sending)
        return state

    cdef int open_first(self, wan_buffer *into, size_t missing) noexcept nogil:
        """Decrypts what came before the stream was there. STREAM_WAIT: nothing did."""
        cdef int state
        self.is_new = False
        wan_lock_take(&self.lock)
        with gil:
            try:
                came = self.incoming.read()
                state = self.open(<const uint8_t *>PyBytes_AS_STRING(came), <size_t>PyBytes_GET_SIZE(came), into,
                                  missing)
                if state == STREAM_OK and into.start == into.used:
                    state = STREAM_WAIT
            except BaseException as error:
                self.broke(error)
                state = self.tell_end()
        wan_lock_release(&self.lock)
        return state

    cdef int open(self, const uint8_t *came, size_t length, wan_buffer *into, size_t missing) noexcept with gil:
        """Decrypts bytes that came. Under `lock`."""
        cdef size_t at = 0, part, before = into.used
        cdef bint is_whole
        cdef int state = STREAM_OK
        try:
            while state == STREAM_OK:
                is_whole = False
                part = self.part_of_record(came + at, length - at, &is_whole)
                if part:
                    self.incoming.write(PyMemoryView_FromMemory(<char *>came + at, part, PyBUF_READ))
                at += part
                # An attempt at a record that is not whole costs an exception. It is made where no more bytes lie there,
                # because nobody comes back before there are some: what is decrypted does not depend on our count.
                if is_whole or (at == length and self.took_all):
                    state = self.take_plain(into, missing)
                if at == length:
                    break
        except BaseException as error:
            self.broke(error)
        self.has_answers = self.outgoing.pending > 0        # Perhaps why it broke.
        if wan_flag_read(&self.end) != STREAM_OK and into.used == before:
            return self.tell_end()
        return state                # The end is told by the next call.

    cdef size_t part_of_record(self, const uint8_t *came, size_t length, bint *is_whole) noexcept:
        """How many of these bytes belong to the record that comes now."""
        cdef size_t at = 0, part
        while self.missing_of_record == 0 and at < length:
            self.record_head[self.record_head_used] = came[at]
            self.record_head_used += 1
            at += 1
            if self.record_head_used == RECORD_HEAD_BYTES:
                self.record_head_used = 0
                self.missing_of_record = <size_t>self.record_head[3] << 8 | self.record_head[4]
                if self.missing_of_record == 0:     # No record is empty. TLS says so.
                    is_whole[0] = True
                    return at
        part = min(length - at, self.missing_of_record)
        if part:
            self.missing_of_record -= part
            is_whole[0] = self.missing_of_record == 0
        return at + part

    cdef int take_plain(self, wan_buffer *into, size_t missing) except -1:
        """Takes all that ssl can decrypt of what it has."""
        cdef uint8_t first[FIRST_BYTES]
        cdef uint8_t *to
        cdef size_t room, got
        cdef int state
        while True:
            to, room = first, FIRST_BYTES
            if into.capacity:
                if not make_room(into, missing):
                    return STREAM_MEMORY
                to, room = into.bytes + into.used, into.capacity - into.used
            try:
                got = self.decrypt(room, PyMemoryView_FromMemory(<char *>to, room, PyBUF_WRITE))
            except self.wants_more:
                return STREAM_OK
            if got == 0:            # The other end has said that nothing more comes.
                wan_flag_set(&self.end, STREAM_CLOSED)
                return STREAM_OK
            state = took_first(into, first, got) if to == first else took(into, got)
            # A record is given whole where there is room.
            if state != STREAM_OK or got < room:
                return state

    # Writing

    cdef int write(self, wan_buffer *out) noexcept nogil:
        cdef int state
        wan_lock_take(&self.sending)
        state = self.send_sealed(out)
        while state == STREAM_OK and out.start < out.used:
            state = self.send_fresh(out)
        wan_lock_release(&self.sending)
        if state == STREAM_OK:
            buffer_trim(out)
        elif state == STREAM_BROKEN:
            return self.tell_end()
        return state

    cdef int send_sealed(self, wan_buffer *out) noexcept nogil:
        """Sends what was encrypted before, and takes it out of `out`. Under `sending`."""
        cdef int state = send_from(self.file, &self.sealed)
        cdef size_t left = min(self.ahead, self.sealed.used - self.sealed.start)
        # A byte has left when fewer encrypted ones are to leave than are behind it.
        out.start += self.ahead - left
        self.ahead = left
        if state == STREAM_OK and self.sealed.capacity:
            wan_buffer_close(&self.sealed)
        return state

    cdef int send_fresh(self, wan_buffer *out) noexcept nogil:
        """Encrypts bytes of `out`, or none (NULL), and sends them with what TLS itself has to say. Under `sending`;
        nothing is sealed."""
        cdef uint8_t fresh[CHUNK_BYTES]
        cdef wan_buffer leaving
        cdef size_t plain = 0, left
        cdef int state
        leaving.bytes, leaving.start, leaving.used = fresh, 0, 0
        wan_lock_take(&self.lock)
        state = self.seal(&leaving, out, &plain)
        wan_lock_release(&self.lock)
        if state != STREAM_OK:
            return state
        state = send_from(self.file, &leaving)
        left = leaving.used - leaving.start
        if state == STREAM_WAIT:
            if wan_buffer_begin(&self.sealed, left) != WAN_OK:
                wan_lock_take(&self.lock)
                self.no_memory()
                wan_lock_release(&self.lock)
                return STREAM_BROKEN
            memcpy(self.sealed.bytes, fresh + leaving.start, left)
            self.sealed.used = left
        self.ahead = min(plain, left)
        if out != NULL:
            out.start += plain - self.ahead
        return state

    cdef int seal(self, wan_buffer *leaving, wan_buffer *out, size_t *plain) noexcept with gil:
        """Encrypts as much of `out` as a chunk takes. `plain` gets how much that was. Under `lock`."""
        cdef size_t length = 0 if out == NULL else out.used - out.start
        try:
            self.drain(leaving)
            # One call makes several records, and ssl lets go of the GIL once for all of them.
            length = min(length, (CHUNK_BYTES - leaving.used) // RECORD_ROOM * RECORD_BYTES)
            if length:
                plain[0] = <size_t>self.encrypt(PyMemoryView_FromMemory(
                    <char *>out.bytes + out.start, length, PyBUF_READ))
                self.drain(leaving)
            self.has_answers = self.outgoing.pending > 0
            return STREAM_OK
        except BaseException as error:
            self.broke(error)
            return STREAM_BROKEN

    cdef int drain(self, wan_buffer *leaving) except -1:
        cdef bytes data = self.outgoing.read(CHUNK_BYTES - leaving.used)
        memcpy(leaving.bytes + leaving.used, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        leaving.used += <size_t>PyBytes_GET_SIZE(data)
        return 0

    cdef void give_back(self, wan_buffer *out) noexcept nogil:
        wan_lock_take(&self.sending)
        out.start += self.ahead     # They leave, but not by this stream.
        self.ahead = 0
        wan_lock_take(&self.lock)
        with gil:
            try:
                later = self.outgoing.read()
                self.outgoing.write(PyBytes_FromStringAndSize(<char *>self.sealed.bytes + self.sealed.start,
                                                              self.sealed.used - self.sealed.start))
                self.outgoing.write(later)
            except BaseException as error:      # Nothing can be sent any more. Whoever tries hears it.
                self.broke(error)
        wan_lock_release(&self.lock)
        wan_buffer_close(&self.sealed)
        wan_lock_release(&self.sending)

    # The end

    cdef int tell_end(self) noexcept nogil:
        """How the connection ended. Of a broken one the detail says why."""
        cdef int end = wan_flag_read(&self.end)
        if end == STREAM_BROKEN:
            with gil:
                wan_note(WAN_CORRUPT, "%s", <const char *>self.why)
        return end

    cdef void no_memory(self) noexcept with gil:
        self.broke(MemoryError())

    cdef int broke(self, error) except -1:
        """The encryption has failed. Under `lock`."""
        reason = str(error) or type(error).__name__
        if isinstance(error, MemoryError):
            reason = "no memory for its bytes"
        elif isinstance(error, self.wants_more):
            reason = "the other end wants to agree on the encryption anew"
        elif not isinstance(error, Exception):
            # ssl looks for signals when it has done its work, and then does not say how much that was.
            reason = f"{type(error).__name__} came in the middle of its work"
            raise_later(error)
        if wan_flag_read(&self.end) != STREAM_BROKEN:
            self.why = f"the encrypted connection broke: {reason}".encode()
            wan_flag_set(&self.end, STREAM_BROKEN)
        return 0

    # Waiting

    cdef int wait(self, bint to_read, bint to_write, int wake_file, uint64_t until_us) noexcept nogil:
        if to_read and (self.is_new or wan_flag_read(&self.end) != STREAM_OK):
            return READY_TO_READ
        return wait_for_files(self.file, (POLLIN if to_read else 0) | (POLLOUT if to_write else 0), wake_file, -1,
                              until_us)

    cdef int wait_beside(self, bint to_write, int wake_file, int other_file, uint64_t until_us) noexcept nogil:
        if self.is_new or wan_flag_read(&self.end) != STREAM_OK:
            return READY_TO_READ
        return wait_for_files(self.file, POLLIN | (POLLOUT if to_write else 0), wake_file, other_file, until_us)

    cdef int wait_for_end(self, int wake_file, uint64_t until_us) noexcept nogil:
        if wan_flag_read(&self.end) != STREAM_OK:
            return READY_TO_READ
        return wait_for_files(self.file, POLLRDHUP, wake_file, -1, until_us)


cdef int raise_later(error) except -1:
    """Raises an exception of a signal's handler in the main thread, as soon as Python code runs there."""
    Py_INCREF(error)
    if Py_AddPendingCall(raise_now, <void *>error):
        Py_DECREF(error)
        report_unraisable("a signal's handler", error)
    return 0


cdef int raise_now(void *error) noexcept:
    PyErr_SetObject(<object>Py_TYPE(<object>error), <object>error)
    Py_DECREF(<object>error)
    return -1


cdef ByteStream stream_of(object sock):
    """The stream of a connected socket: a plain one, or a Link that may be encrypted."""
    tls = getattr(sock, "tls", None)
    return SocketStream(sock.fileno()) if tls is None else TlsStream(sock.fileno(), tls)
