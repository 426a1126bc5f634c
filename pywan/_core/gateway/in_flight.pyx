# Owns the batches in flight of a dispatcher on a connection: batches sent and not acknowledged. The unit also owns
# their numbers, the window that limits the bytes in flight, and the time since the receiver's last progress. The unit
# has no queue, no socket and no clock.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_session cimport *


cdef enum:
    IN_FLIGHT_BATCHES = 64              # Initial capacity; a power of two. The capacity doubles for a longer link.
    IN_FLIGHT_BATCHES_MAX = 16384       # Limit: 1.6 million events in flight in batches of 100.


cdef class InFlight:
    """The batches in flight of one dispatcher, over one connection after another. Only the dispatcher's thread changes
    the batches. Other threads read atomically."""

    def __cinit__(self):
        if not grow(self, IN_FLIGHT_BATCHES):
            raise MemoryError()
        wan_window_init(&self.window, 0, 0)

    def __dealloc__(self):
        for n in range(self.capacity):
            free(self.ring[n].section)
            free(self.ring[n].timelines)
        free(self.ring)

    cdef void begins_at(self, uint64_t now_us) noexcept nogil:
        """Notes the start of the connection."""
        self.progress_us = now_us
        wan_window_init(&self.window, self.window.limit, now_us)

    cdef void begin(self, uint32_t credit_events, uint64_t credit_bytes, uint64_t now_us) noexcept nogil:
        """Begins a new connection: batch ids start at 0, and the receiver's credit is known."""
        self.end()
        self.credit_events = credit_events
        wan_window_init(&self.window, credit_bytes, now_us)
        wan_set(&self.link_us, 0)
        self.steps = 0
        self.progress_us = now_us
        wan_flag_set(&self.has_progressed_flag, 0)

    cdef void end(self) noexcept nogil:
        """Forgets all batches in flight: the connection has ended."""
        wan_set(&self.next_batch, 0)
        wan_set(&self.oldest_batch, 0)
        wan_set(&self.events, 0)
        wan_set(&self.bytes, 0)

    cdef uint64_t batches(self) noexcept nogil:
        """Returns the number of batches sent and not acknowledged. Any thread may call."""
        cdef uint64_t oldest = wan_read(&self.oldest_batch)        # First: `next_batch` is never below.
        return wan_read(&self.next_batch) - oldest

    cdef bint has_room(self) noexcept nogil:
        """Returns whether another batch may leave now."""
        return self.next_batch == self.oldest_batch or (
            self.next_batch - self.oldest_batch < IN_FLIGHT_BATCHES_MAX and self.events < self.credit_events
            and wan_window_is_open(&self.window, self.bytes))

    # A batch leaves

    cdef flight *next(self, uint32_t sections) noexcept nogil:
        """Returns the batch that leaves next, with its id and space for `sections` sections. The batch is in flight
        after `left`. NULL: no memory."""
        cdef flight *batch
        cdef wan_section *held
        cdef uint64_t *timelines
        if self.next_batch - self.oldest_batch == self.capacity and not grow(self, self.capacity * 2):
            return NULL
        batch = &self.ring[self.next_batch & (self.capacity - 1)]
        if batch.capacity < sections:
            held = <wan_section *>realloc(batch.section, sections * sizeof(wan_section))
            if held == NULL:
                return NULL
            batch.section = held
            timelines = <uint64_t *>realloc(batch.timelines, sections * sizeof(uint64_t))
            if timelines == NULL:
                return NULL
            batch.timelines, batch.capacity = timelines, sections
        batch.id, batch.sections = self.next_batch, sections
        return batch

    cdef void left(self, flight *batch, uint64_t now_us) noexcept nogil:
        """Counts the batch in flight. The batch is laid out to be sent."""
        if self.next_batch == self.oldest_batch:
            wan_set(&self.answered_us, now_us)
            self.progress_us = now_us
        wan_add_guarded(&self.next_batch, 1)
        wan_add_guarded(&self.events, batch.events)
        wan_add_guarded(&self.bytes, batch.bytes)
        batch.sending = wan_window_sent(&self.window, self.bytes, batch.bytes, now_us)

    # The receiver answers

    cdef void note_steps(self, uint64_t steps, uint64_t now_us) noexcept nogil:
        """Notes the receiver's progress count."""
        if steps > self.steps:
            self.steps = steps
            note_progress(self, now_us)

    cdef bint receive(self, const wan_frame *frame, uint64_t now_us) noexcept nogil:
        """Takes the connection's data in an acknowledgement. The caller then calls `oldest` and `acknowledged` for each
        batch up to the acknowledged batch. False: the acknowledgement is invalid, and the detail has the reason."""
        cdef const wan_ack *ack = <const wan_ack *>(frame + 1)
        cdef const wan_failure *failures = <const wan_failure *>(ack + 1)
        cdef uint32_t n = 0, s
        cdef uint64_t batch, after
        if (frame.length < sizeof(wan_ack)
                or frame.length != sizeof(wan_ack) + <uint64_t>ack.failures * sizeof(wan_failure)):
            wan_note(WAN_CORRUPT, "acknowledgement of %u bytes", frame.length)
            return False
        if frame.id >= self.next_batch:
            wan_note(WAN_CORRUPT, "acknowledgement of batch %llu, which was not sent", <unsigned long long>frame.id)
            return False
        for batch in range(self.oldest_batch, frame.id + 1 if ack.failures else 0):
            s, after = 0, 0
            # The failures come in sending order, each failure once.
            while n < ack.failures and is_next_of_flight(&self.ring[batch & (self.capacity - 1)], &failures[n], &s,
                                                         &after):
                n += 1
        if n < ack.failures:
            wan_note(WAN_CORRUPT, "acknowledgement with a failure of event %u/%llu, which is not next in its batches",
                     failures[n].partition, <unsigned long long>failures[n].sequence)
            return False
        self.credit_events = ack.credit_events
        wan_window_set_limit(&self.window, ack.credit_bytes)
        wan_set(&self.answered_us, now_us)
        note_progress(self, now_us)
        wan_add_shared(&self.receiver_us, frame.count)
        return True

    cdef flight *oldest(self) noexcept nogil:
        """Returns the batch to handle next. There is a batch only if `batches` is not 0."""
        return &self.ring[self.oldest_batch & (self.capacity - 1)]

    cdef void acknowledged(self, uint32_t worked_us, uint64_t now_us) noexcept nogil:
        """Removes the oldest batch in flight. The receiver reports `worked_us` of work on the batch."""
        cdef const flight *batch = self.oldest()
        cdef uint64_t link_us
        wan_add_guarded(&self.events, -<uint64_t>batch.events)
        wan_add_guarded(&self.bytes, -batch.bytes)
        wan_add_guarded(&self.oldest_batch, 1)
        wan_window_acknowledged(&self.window, &batch.sending, now_us)
        link_us = max(now_us, batch.sending.sent_us + worked_us + 1) - batch.sending.sent_us - worked_us
        if self.link_us == 0 or link_us < self.link_us:
            wan_set(&self.link_us, link_us)

    cdef dict flow(self, uint64_t now):
        """Returns the numbers of `DispatcherSession.flow`. Any thread may call."""
        cdef uint64_t answered = wan_read(&self.answered_us)
        return {"window_bytes": wan_read(&self.window.bytes), "bytes_in_flight": wan_read(&self.bytes),
                "events_in_flight": wan_read(&self.events), "round_trip_us": wan_read(&self.window.round_trip_us),
                "link_us": wan_read(&self.link_us), "unanswered_us": now - answered if self.batches()
                and now > answered else 0}


cdef bint grow(InFlight self, uint32_t capacity) noexcept nogil:
    cdef flight *grown = <flight *>calloc(capacity, sizeof(flight))
    cdef uint32_t n
    if grown == NULL:
        return False
    for n in range(self.capacity):       # All slots of the ring are in flight: the ring was full.
        grown[(self.oldest_batch + n) & (capacity - 1)] = self.ring[(self.oldest_batch + n) & (self.capacity - 1)]
    free(self.ring)
    self.ring, self.capacity = grown, capacity
    return True


cdef inline void note_progress(InFlight self, uint64_t now_us) noexcept nogil:
    self.progress_us = now_us
    wan_flag_set(&self.has_progressed_flag, 1)


cdef uint32_t failures_of_flight(const flight *batch, const wan_failure *failures, uint32_t count) noexcept nogil:
    """Returns how many of the first failures belong to this batch."""
    cdef uint32_t n = 0
    while n < count and is_of_flight(batch, &failures[n]):
        n += 1
    return n


cdef bint is_of_flight(const flight *batch, const wan_failure *failure) noexcept nogil:
    cdef uint32_t s
    for s in range(batch.sections):
        if (batch.section[s].partition == failure.partition
                and batch.section[s].first <= failure.sequence <= batch.section[s].through):
            return True
    return False


cdef bint is_next_of_flight(const flight *batch, const wan_failure *failure, uint32_t *s,
                            uint64_t *after) noexcept nogil:
    """Returns whether the failure is in section *s or later, with a later sequence than *after. Then *s is the
    failure's section, and *after its sequence."""
    cdef const wan_section *section
    while s[0] < batch.sections:
        section = &batch.section[s[0]]
        if section.partition == failure.partition and section.first <= failure.sequence <= section.through:
            break
        s[0] += 1
        after[0] = 0
    if s[0] == batch.sections or failure.sequence <= after[0]:
        return False
    after[0] = failure.sequence
    return True
