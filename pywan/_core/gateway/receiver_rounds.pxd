# The interface of receiver_rounds.pyx.
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_session cimport *
from pywan._core.calls.call_events cimport failed_event, shared_out
from pywan._core.gateway.receiver_streams cimport ReceiverStreams, connection_partition, partition_at

cdef enum:
    # A round ends before its bytes for other members exceed this limit. A single event may be longer, and then goes
    # alone.
    ROUND_BYTES = 8 << 20

cdef struct event_round:
    # Events of shared regions, or of regions with logs, with a common wait, and all events between them.
    wan_buffer waiting          # The partitions whose `handled` of the round is not 0, uint32_t.
    uint64_t events             # Number of events for shared or logged regions.
    uint64_t bytes              # Bytes of events for other members.
    bint is_unacknowledged      # A completely handled batch is acknowledged with the round.
    uint64_t newest_id          # The newest completed batch, the start of its work, and its last event's number.
    uint64_t newest_began_us
    uint64_t newest_number
    uint64_t sent_us            # When the round was sent.
    wan_receiver_counts held    # Added to `own` when the events of the round are replicated.

cdef class ReceiverRounds(ReceiverStreams):
    cdef event_round rounds[2]
    cdef int current                # The round in work.
    cdef bint is_sent               # The previous round waits for members, replicas or logs.
    cdef list marks                 # By round: ends of the logs with the round's events. None: no wait for logs.
    cdef list shared_calls          # Two EventCalls, by round, for each shared region.
    cdef wan_buffer shares[2]       # By round: pointers to the shared_out of all shared regions.
    cdef uint64_t handled_events    # Number of handled events of this connection.

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
    cdef void note_handled(self, int at, uint32_t number) noexcept nogil
    cdef int end_rounds(self) noexcept nogil
    cdef int end_rounds_of(self, uint64_t partition) noexcept nogil
    cdef void forget_round(self, int at) noexcept nogil
    cdef void forget_rounds(self) noexcept nogil


cdef inline int begin_to_wait(ReceiverRounds session, uint32_t partition) noexcept nogil:
    """Events of the partition wait for the end of this round from now on. 0: no memory."""
    cdef uint64_t *handled = partition_at(session, partition).handled
    if handled[session.current]:
        return 1
    if wan_buffer_add(&session.rounds[session.current].waiting, &partition, sizeof(partition)) != WAN_OK:
        session.no_memory_to_share()
        return 0
    # The caller sets the sequence when an event is handled. All earlier events are in an earlier round.
    handled[session.current] = max(<uint64_t>1, handled[session.current ^ 1])
    return 1


cdef inline bint is_round_full(ReceiverRounds session, uint32_t length) noexcept nogil:
    """Returns whether an event of this length is too long to join the round's events for other members."""
    cdef uint64_t bytes = session.rounds[session.current].bytes
    return bytes != 0 and bytes + length > <uint64_t>ROUND_BYTES


cdef inline bint has_round(ReceiverRounds session) noexcept nogil:
    """Returns whether the round in work has events to wait for, or a batch to acknowledge."""
    return session.rounds[session.current].waiting.used != 0 or session.rounds[session.current].is_unacknowledged
