# The interface of receiver_rounds.pyx.
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_tables cimport *
from pywan._core.calls.call_events cimport failed_event, shared_out
from pywan._core.gateway.receiver_streams cimport ReceiverStreams, connection_partition, partition_at

cdef enum:
    # A round ends before it has more bytes that go to other members. One event may be longer; then it goes alone.
    ROUND_BYTES = 8 << 20

cdef struct event_round:
    # Events of shared regions, or of regions with logs, that are waited for together, with all that came between them.
    wan_buffer waiting          # The partitions whose `handled` of the round is not 0, uint32_t.
    uint64_t events             # So many of them are for such regions.
    uint64_t bytes              # Of those that go to other members.
    bint is_unacknowledged      # A batch that was handled as a whole is acknowledged with the round.
    uint64_t newest_id          # The newest one of them, when the work on it began, and the number of its last event.
    uint64_t newest_began_us
    uint64_t newest_number
    uint64_t sent_us            # When the round was sent.
    wan_receiver_counts held    # What its events add to `own` when they count.

cdef class ReceiverRounds(ReceiverStreams):
    cdef event_round rounds[2]
    cdef int current                # The round that is being handled.
    cdef bint is_sent               # The other one is on its way, or waits for copies.
    cdef list marks                 # By round: where the logs end that its events went to. None: no log is waited for.
    cdef list shared_calls          # Two EventCalls, by round, for each shared region.
    cdef wan_buffer shares[2]       # By round: the shared_out of each, a pointer.
    cdef uint64_t handled_events    # Events of this connection: numbers them in their order.

    cdef int begin_sharing(self, uint16_t number) noexcept with gil
    cdef void no_memory_to_share(self) noexcept nogil
    cdef int wait_for_room(self) noexcept nogil
    cdef int end_batch(self, uint64_t id, uint64_t began_us) noexcept nogil
    cdef int turn_over(self) noexcept nogil
    cdef int turn_over_unlocked(self, const connection_partition *partition) noexcept nogil
    cdef int mark_round(self) noexcept with gil
    cdef int wait_for_logs(self) noexcept with gil
    cdef int send_round(self) noexcept with gil
    cdef int wait_for_others(self) noexcept with gil
    cdef int end_round(self) noexcept nogil
    cdef int take_failures(self, event_round *round, shared_out *out) noexcept nogil
    cdef int note_failed(self, int at, const failed_event *failed) noexcept nogil
    cdef void note_settled(self, int at, uint32_t number) noexcept nogil
    cdef int end_rounds(self) noexcept nogil
    cdef int end_rounds_of(self, uint64_t partition) noexcept nogil
    cdef void forget_round(self, int at) noexcept nogil
    cdef void forget_rounds(self) noexcept nogil


cdef inline int begin_to_wait(ReceiverRounds session, uint32_t partition) noexcept nogil:
    """Events of the partition wait for the end of this round from now on. 0: there is no memory."""
    cdef uint64_t *handled = partition_at(session, partition).handled
    if handled[session.current]:
        return 1
    if wan_buffer_add(&session.rounds[session.current].waiting, &partition, sizeof(partition)) != WAN_OK:
        session.no_memory_to_share()
        return 0
    # The caller says through which sequence, when an event is handled. All before is in an earlier round.
    handled[session.current] = max(<uint64_t>1, handled[session.current ^ 1])
    return 1


cdef inline bint is_round_full(ReceiverRounds session, uint32_t length) noexcept nogil:
    """Whether an event of this length must not go to other members with those of the round."""
    cdef uint64_t bytes = session.rounds[session.current].bytes
    return bytes != 0 and bytes + length > <uint64_t>ROUND_BYTES


cdef inline bint has_round(ReceiverRounds session) noexcept nogil:
    """Whether the round that is being handled has anything to wait for, or to acknowledge."""
    return session.rounds[session.current].waiting.used != 0 or session.rounds[session.current].is_unacknowledged
