# Owns a multiplexed connection to another member: many threads make calls over the connection at once. The connection
# has no thread of its own. A waiting caller reads for all callers, and a sending caller writes for all callers.
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free as free_memory
from libc.string cimport memcpy, memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_session cimport *
from pywan._core.wire.byte_stream cimport READY_TO_READ
from pywan._core.wire.stream cimport (
    STREAM_BROKEN, STREAM_MEMORY, STREAM_OK, STREAM_WAIT, buffer_reserve, buffer_trim)
from pywan._core.wire.tls_stream cimport stream_of

cdef enum:
    SLOT_BITS = 10
    NO_SLOT = 0xffffffff
    SLICE_MS = 100              # A wait returns so often, so that the process can handle signals.
    STUCK_US = 1000000          # If no byte leaves for so long, a call whose time is over ends the connection.
    ANSWER_KEPT_BYTES = 65536   # A slot keeps so much memory for the next answer.
    LEFT_MAX = 256              # Calls without a caller. The connection ends if there are more.
    REGION_WORDS = 65536 >> 3


@cython.no_gc_clear
cdef class CallLine:
    """An open multiplexed connection, over which no call was sent yet. `sock` is a blocking socket whose receiving ends
    after a tenth of a second without bytes (SO_RCVTIMEO). The CallLine closes the socket. None: the owner moves the
    bytes (`data_to_send`, `receive_data`), and no thread waits for answers."""

    def __cinit__(self, sock):
        cdef int n
        self.sock, self.stream = sock, None if sock is None else stream_of(sock)
        self.slots = <call_slot *>calloc(LINE_SLOTS, sizeof(call_slot))
        self.named = <uint8_t *>calloc(REGION_WORDS, 1)
        if self.slots == NULL or self.named == NULL:
            raise MemoryError("no memory for a connection to another member")
        for n in range(LINE_SLOTS):
            self.slots[n].behind = n + 1 if n + 1 < LINE_SLOTS else NO_SLOT
        self.first_sleeper = NO_SLOT
        self.wanted = sizeof(wan_answer)
        self.why = "it was closed on this side"

    def __dealloc__(self):
        cdef int n
        if self.slots != NULL:
            for n in range(LINE_SLOTS):
                wan_buffer_close(&self.slots[n].answer)
        free_memory(self.slots)
        free_memory(self.named)
        wan_buffer_close(&self.out)
        wan_buffer_close(&self.leaving)
        wan_buffer_close(&self.into)

    @property
    def is_broken(self):
        """Whether the connection accepts no more calls."""
        return bool(wan_flag_read(&self.broken))

    @property
    def reason(self):
        """Why the connection broke, in words."""
        return self.why

    @property
    def on_their_way(self):
        """Calls without an answer, or with an answer that the caller has not read yet."""
        return self.taken

    def close(self):
        """Ends the connection. Calls under way end as unknown. All threads may call `close`."""
        with nogil:
            self.break_off(b"it was closed on this side")
        if self.users == 0 and self.sock is not None:
            self.sock.close()

    def data_to_send(self):
        """Returns the bytes to send, for a connection without a socket."""
        found = b""
        if self.out.start < self.out.used:
            found = (<const uint8_t *>self.out.bytes)[self.out.start:self.out.used]
        wan_buffer_empty(&self.out)
        self.out.start = 0
        return found

    def receive_data(self, const uint8_t[::1] data):
        """Adopts bytes that arrived for a connection without a socket. Wrong bytes break the connection."""
        cdef size_t length = data.shape[0]
        if length and buffer_reserve(&self.into, length):
            memcpy(self.into.bytes + self.into.used, &data[0], length)
            self.into.used += length
            with nogil:
                self.take_answers()

    cdef bint enter(self):
        """Begins a call. False: the connection is broken."""
        if wan_flag_read(&self.broken):
            return False
        self.users += 1
        return True

    cdef int leave(self) except -1:
        self.users -= 1
        if self.users == 0 and wan_flag_read(&self.broken) and self.sock is not None:
            self.sock.close()
        return 0

    # The calls. Their callers have entered.

    cdef call_slot *take_slot(self, uint64_t until_us) noexcept nogil:
        """A slot for a call. NULL: the connection broke, or no slot became free in time."""
        cdef call_slot *slot
        cdef uint32_t seen
        cdef uint64_t now
        wan_lock_take(&self.lock)
        while self.free_slot == NO_SLOT and not self.broken:
            seen = self.room
            self.room_waiters += 1
            wan_lock_release(&self.lock)
            now = wan_monotonic_us()
            if now < until_us:
                wan_wait_change(&self.room, seen, SLICE_MS)
            wan_lock_take(&self.lock)
            self.room_waiters -= 1
            if now >= until_us:
                break
        if self.free_slot == NO_SLOT or self.broken:
            wan_lock_release(&self.lock)
            return NULL
        slot = &self.slots[self.free_slot]
        self.free_slot = slot.behind
        self.taken += 1
        slot.is_taken, slot.is_left, slot.sleeps, slot.state = 1, 0, 0, CALL_WAITS
        slot.use += 1
        slot.use += slot.use << SLOT_BITS == 0      # No call has the id 0.
        wan_lock_release(&self.lock)
        return slot

    cdef int submit(self, call_slot *slot, wan_call *head, const void *first, uint64_t first_length,
                    const void *second, uint64_t second_length) noexcept nogil:
        """Lays out a call with a payload of two parts. The call leaves with `flush`. CALL_WAITS, or CALL_NOT_SENT: the
        connection is broken, or memory is short."""
        cdef uint64_t length = first_length + second_length, whole = sizeof(wan_call) + wan_align8(length)
        cdef uint8_t *to
        cdef wan_region_name *name
        cdef int state = CALL_NOT_SENT
        head.magic, head.length, head.crc = WAN_CALL_MAGIC, <uint32_t>length, 0
        head.id = <uint32_t>(slot - self.slots) | slot.use << SLOT_BITS
        head.crc = wan_crc32c(0, head, sizeof(wan_call))
        if first_length:
            head.crc = wan_crc32c(head.crc, first, first_length)
        if second_length:
            head.crc = wan_crc32c(head.crc, second, second_length)
        wan_lock_take(&self.lock)
        if not self.broken:
            if not self.named[head.region >> 3] >> (head.region & 7) & 1:
                name = &wan_region_names[head.region]
                self.name_region(head.region, name.text, name.length)
            if buffer_reserve(&self.out, whole):
                to = self.out.bytes + self.out.used
                memcpy(to, head, sizeof(wan_call))
                if length:
                    memset(to + whole - 8, 0, 8)
                if first_length:
                    memcpy(to + sizeof(wan_call), first, first_length)
                if second_length:
                    memcpy(to + sizeof(wan_call) + first_length, second, second_length)
                self.out.used += whole
                state = CALL_WAITS
        wan_lock_release(&self.lock)
        return state

    cdef void name_region(self, uint16_t number, const char *name, uint32_t length) noexcept nogil:
        """Lays out the name of a region, once. The caller holds the lock."""
        cdef wan_call *call
        cdef uint64_t whole = sizeof(wan_call) + wan_align8(length)
        if not buffer_reserve(&self.out, whole):
            return          # The next call names the region again; the present call is refused in words.
        call = <wan_call *>(self.out.bytes + self.out.used)
        memset(call, 0, whole)
        call.magic, call.kind, call.length, call.region = WAN_CALL_MAGIC, WAN_CALL_REGION, length, number
        memcpy(call + 1, name, length)
        call.crc = wan_call_crc(call)
        self.out.used += whole
        self.named[number >> 3] |= <uint8_t>(1 << (number & 7))

    cdef void flush(self, uint64_t until_us) noexcept nogil:
        """Sends the bytes in `out`, unless another thread is sending: then that thread sends these bytes too. Returns
        also if the other end accepts nothing for a while. So a thread that waits for an answer calls `flush` again and
        again."""
        cdef wan_buffer full
        cdef bint goes_on = True
        wan_lock_take(&self.lock)
        if self.is_written:
            wan_lock_release(&self.lock)
            return
        self.is_written = True
        while goes_on and not self.broken:
            if self.leaving.start == self.leaving.used:
                if self.out.start == self.out.used:
                    break
                buffer_trim(&self.leaving)
                full = self.out
                self.out = self.leaving
                self.leaving = full
                self.moved_us = wan_monotonic_us()
            wan_lock_release(&self.lock)
            goes_on = self.write_leaving(until_us)
            wan_lock_take(&self.lock)
        self.is_written = False
        wan_lock_release(&self.lock)

    cdef bint write_leaving(self, uint64_t until_us) noexcept nogil:
        """Sends the bytes in `leaving`. False: the other end accepted nothing for a while, or the connection broke."""
        cdef uint64_t before
        cdef bint reads
        cdef int state, ready
        while self.leaving.start < self.leaving.used and not wan_flag_read(&self.broken):
            before = self.leaving.start
            state = self.stream.write(&self.leaving)
            if state == STREAM_OK or self.leaving.start != before:
                self.moved_us = wan_monotonic_us()
            if state == STREAM_WAIT:
                if wan_monotonic_us() > max(until_us, self.moved_us + STUCK_US):
                    self.break_off(b"it took nothing for too long")
                    return False
                # The other end may wait for a reader of its answers.
                reads = self.try_to_read()
                ready = self.stream.wait(reads, True, -1, wan_monotonic_us() + SLICE_MS * 1000)
                if reads:
                    if ready & READY_TO_READ:
                        self.read_once(False)
                    self.read_no_more()
                if ready == 0:
                    return False
            elif state == STREAM_BROKEN:
                self.break_off(wan_detail)
            elif state != STREAM_OK:
                self.break_off(b"it broke while a call was being sent")
        return not wan_flag_read(&self.broken)

    cdef int wait(self, call_slot *slot, uint64_t until_us) noexcept nogil:
        """Waits for the answer. CALL_ANSWERED, CALL_UNKNOWN, CALL_LATE, or CALL_INTERRUPTED: the thread may have a
        signal; wait again."""
        cdef int state = CALL_WAITS
        cdef uint32_t seen
        cdef uint64_t now
        wan_lock_take(&self.lock)
        while slot.state == CALL_WAITS:
            if state != CALL_WAITS:
                break
            now = wan_monotonic_us()
            if now >= until_us:
                state = CALL_LATE
                break
            if not self.is_read:
                self.is_read = True
                wan_lock_release(&self.lock)
                while not wan_flag_read(&self.broken):
                    if not self.read_once(True):
                        state = CALL_INTERRUPTED
                        break
                    # Answers to other callers may arrive all the time.
                    if wan_flag_read(&slot.state) != CALL_WAITS or wan_monotonic_us() >= until_us:
                        break
                wan_lock_take(&self.lock)
                self.is_read = False
                continue
            self.add_sleeper(slot)
            seen = slot.word
            wan_lock_release(&self.lock)
            wan_wait_change(&slot.word, seen, min(<uint64_t>SLICE_MS, (until_us - now) // 1000 + 1))
            wan_lock_take(&self.lock)
            if slot.sleeps:
                self.remove_sleeper(slot)
                state = CALL_INTERRUPTED
        if slot.state != CALL_WAITS:
            state = slot.state
        self.release_and_hand_on()
        return state

    cdef void free(self, call_slot *slot) noexcept nogil:
        """Returns the slot of a call. A slot without an answer remains for the reader of the answer."""
        cdef bint too_many = False
        wan_lock_take(&self.lock)
        if slot.state == CALL_WAITS and not self.broken:
            slot.is_left = 1
            self.left += 1
            too_many = self.left > LEFT_MAX
        else:
            self.put_back(slot)
        wan_lock_release(&self.lock)
        if too_many:
            self.break_off(b"too many calls had no answer in time")

    # The caller holds the lock.

    cdef void put_back(self, call_slot *slot) noexcept nogil:
        self.left -= slot.is_left
        slot.is_taken = slot.is_left = 0
        wan_buffer_trim(&slot.answer, ANSWER_KEPT_BYTES)
        slot.behind = self.free_slot
        self.free_slot = <uint32_t>(slot - self.slots)
        self.taken -= 1
        if self.room_waiters:
            wan_signal_change(&self.room)

    cdef void add_sleeper(self, call_slot *slot) noexcept nogil:
        """Puts the slot into the list of slots with sleeping callers."""
        cdef uint32_t number = <uint32_t>(slot - self.slots)
        slot.before, slot.behind, slot.sleeps = NO_SLOT, self.first_sleeper, 1
        if self.first_sleeper != NO_SLOT:
            self.slots[self.first_sleeper].before = number
        self.first_sleeper = number

    cdef void remove_sleeper(self, call_slot *slot) noexcept nogil:
        """Removes the slot from the list of sleepers. The caller wakes up, or is awake."""
        if slot.before != NO_SLOT:
            self.slots[slot.before].behind = slot.behind
        else:
            self.first_sleeper = slot.behind
        if slot.behind != NO_SLOT:
            self.slots[slot.behind].before = slot.before
        slot.sleeps = 0

    cdef void release_and_hand_on(self) noexcept nogil:
        """Releases the lock. If no thread reads, a sleeping caller is woken to read."""
        cdef call_slot *next_reader = NULL
        if not self.is_read and self.first_sleeper != NO_SLOT and not self.broken:
            next_reader = &self.slots[self.first_sleeper]
            self.remove_sleeper(next_reader)
        wan_lock_release(&self.lock)
        if next_reader != NULL:
            wan_signal_change(&next_reader.word)

    # Reading. A single thread at a time.

    cdef bint try_to_read(self) noexcept nogil:
        cdef bint taken
        wan_lock_take(&self.lock)
        taken = not self.is_read
        self.is_read = True
        wan_lock_release(&self.lock)
        return taken

    cdef void read_no_more(self) noexcept nogil:
        wan_lock_take(&self.lock)
        self.is_read = False
        self.release_and_hand_on()

    cdef bint read_once(self, bint waits) noexcept nogil:
        """Reads bytes, and delivers each answer to the caller. False: no bytes came for a while, or a signal came."""
        cdef int state
        if waits:
            state = self.stream.await_read(&self.into, self.wanted)
        else:
            state = self.stream.read(&self.into, self.wanted)
        if state == STREAM_OK:
            self.take_answers()
        elif state == STREAM_MEMORY:
            self.break_off(b"no memory for its answers")
        elif state == STREAM_BROKEN:
            self.break_off(wan_detail)
        elif state != STREAM_WAIT:
            self.break_off(b"the other end closed it, or is gone")
        return state != STREAM_WAIT

    cdef void take_answers(self) noexcept nogil:
        cdef wan_status status
        cdef uint64_t length = 0
        cdef const wan_answer *answer
        self.wanted = sizeof(wan_answer)
        while True:
            status = wan_answer_next(self.into.bytes + self.into.start, self.into.used - self.into.start, &length)
            if status == WAN_EMPTY:
                self.wanted = length
                return
            if status != WAN_OK:
                self.break_off(wan_detail)
                return
            answer = <const wan_answer *>(self.into.bytes + self.into.start)
            if not self.deliver(answer, length):
                return
            self.into.start += length
            if self.into.start == self.into.used:
                buffer_trim(&self.into)

    cdef bint deliver(self, const wan_answer *answer, uint64_t length) noexcept nogil:
        """Delivers an answer to the caller. False: the connection is broken."""
        cdef call_slot *slot = &self.slots[answer.id & (LINE_SLOTS - 1)]
        cdef bint wakes = False, is_ours, has_memory = True
        if answer.id == 0:
            with gil:
                self.last_words = (<const uint8_t *>(answer + 1))[:answer.length]
            self.break_off(b"the other end refused a call")
            return False
        wan_lock_take(&self.lock)
        is_ours = (slot.is_taken and slot.state == CALL_WAITS
                   and answer.id >> SLOT_BITS == (slot.use & (NO_SLOT >> SLOT_BITS)))
        if is_ours and slot.is_left:
            self.put_back(slot)
        elif is_ours:
            wan_buffer_empty(&slot.answer)
            has_memory = wan_buffer_add(&slot.answer, answer, length) == WAN_OK
            if has_memory:
                wan_flag_set(&slot.state, CALL_ANSWERED)
                wakes = slot.sleeps
                if wakes:
                    self.remove_sleeper(slot)
        wan_lock_release(&self.lock)
        if wakes:
            wan_signal_change(&slot.word)
        if not has_memory:
            self.break_off(b"no memory for an answer")
        elif not is_ours:
            self.break_off(b"an answer came that nobody had asked for")
        return is_ours and has_memory

    cdef void break_off(self, const char *why) noexcept nogil:
        """Ends the connection. All calls under way end as unknown."""
        cdef call_slot *slot
        cdef int n
        cdef bint is_first
        wan_lock_take(&self.lock)
        is_first = not self.broken
        if is_first:
            wan_flag_set(&self.broken, 1)
            self.first_sleeper = NO_SLOT
            for n in range(LINE_SLOTS):
                slot = &self.slots[n]
                if not slot.is_taken or slot.state != CALL_WAITS:
                    continue
                wan_flag_set(&slot.state, CALL_UNKNOWN)
                if slot.is_left:
                    self.put_back(slot)
                elif slot.sleeps:
                    slot.sleeps = 0
                    wan_signal_change(&slot.word)
            if self.room_waiters:
                wan_signal_change(&self.room)
        wan_lock_release(&self.lock)
        if is_first:
            with gil:
                self.tell_why(why)

    cdef int tell_why(self, const char *why) except? -1:
        self.why = (<bytes>why).decode("utf-8", "replace")
        if self.last_words is not None:
            self.why = self.last_words.decode("utf-8", "replace")
        if self.sock is None:
            return 0
        try:
            self.sock.shutdown(2)       # Both directions: the reading thread wakes up.
        except OSError:
            pass                        # The connection is gone already.
        return 0
