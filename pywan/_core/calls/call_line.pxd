# The interface of call_line.pyx.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_session cimport wan_answer, wan_call
from pywan._core.wire.byte_stream cimport ByteStream

cdef enum:
    LINE_SLOTS = 1024       # Calls that may be under way over a connection.

cdef enum:
    # The state of a call.
    CALL_WAITS = 0          # The call is under way.
    CALL_ANSWERED = 1
    CALL_UNKNOWN = 2        # The connection broke: the call may have been done.
    CALL_NOT_SENT = 3       # The connection was broken or full: the call was not sent.
    CALL_LATE = 4           # The time is over.
    CALL_INTERRUPTED = 5    # A signal came.

cdef struct call_slot:
    # A call under way. The connection's lock guards the slot; only the caller uses `answer` of a finished call.
    uint32_t word           # A futex: changes when the call ends, or when the caller is to read.
    int state               # CALL_WAITS, CALL_ANSWERED, CALL_UNKNOWN. The caller also reads it unlocked.
    uint8_t is_taken
    uint8_t is_left         # The caller has given up: the reader of the answer frees the slot.
    uint8_t sleeps          # The caller sleeps on `word`, and is in the list of sleepers.
    uint32_t use            # Counts the calls in the slot: a part of the id.
    uint32_t before, behind  # In the list of sleepers; `behind` also the next free slot.
    wan_buffer answer       # The wan_answer and its payload.

cdef class CallLine:
    cdef readonly object sock
    cdef ByteStream stream  # None: the owner moves the bytes.
    cdef wan_lock lock      # Guards all fields below.
    cdef call_slot *slots
    cdef uint32_t free_slot, first_sleeper, taken, left
    cdef uint32_t room      # A futex: changes when a slot becomes free for a waiting thread.
    cdef uint32_t room_waiters
    cdef bint is_read, is_written  # A thread reads; a thread writes.
    cdef int broken         # Atomic.
    cdef uint32_t users     # Threads within a call.
    cdef wan_buffer out
    cdef wan_buffer leaving  # The writer's alone, like `moved_us`, the time of the last progress.
    cdef uint64_t moved_us
    cdef wan_buffer into    # The reader's alone, like `wanted`.
    cdef uint64_t wanted
    cdef uint8_t *named     # A bit for each region number that the other end knows.
    cdef str why
    cdef bytes last_words

    cdef bint enter(self)
    cdef int leave(self) except -1
    cdef call_slot *take_slot(self, uint64_t until_us) noexcept nogil
    cdef int submit(self, call_slot *slot, wan_call *head, const void *first, uint64_t first_length,
                    const void *second, uint64_t second_length) noexcept nogil
    cdef int wait(self, call_slot *slot, uint64_t until_us) noexcept nogil
    cdef void free(self, call_slot *slot) noexcept nogil
    cdef void name_region(self, uint16_t number, const char *name, uint32_t length) noexcept nogil
    cdef void flush(self, uint64_t until_us) noexcept nogil
    cdef bint write_leaving(self, uint64_t until_us) noexcept nogil
    cdef void break_off(self, const char *why) noexcept nogil
    cdef void put_back(self, call_slot *slot) noexcept nogil
    cdef void add_sleeper(self, call_slot *slot) noexcept nogil
    cdef void remove_sleeper(self, call_slot *slot) noexcept nogil
    cdef void release_and_hand_on(self) noexcept nogil
    cdef bint try_to_read(self) noexcept nogil
    cdef void read_no_more(self) noexcept nogil
    cdef bint read_once(self, bint waits) noexcept nogil
    cdef void take_answers(self) noexcept nogil
    cdef bint deliver(self, const wan_answer *answer, uint64_t length) noexcept nogil
    cdef int tell_why(self, const char *why) except? -1
