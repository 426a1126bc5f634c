# Owns the decision which queues an event enters: one step, with one result. The decision depends on the running
# senders, the sites of the event, and the result of `before_enqueue`. Only this file reads these facts. Code that acts
# on the result does not check again.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset
from pywan._core.c_base cimport *
from pywan._core.c_system cimport *
from pywan._core.queue.queue cimport gateway_queue
from pywan._core.region.region_state cimport MAX_ATTACHED, PATH_CALLBACKS, PATH_STRAIGHT, attachment, decision, origin

# The verdict about an event at one queue. The numbers are part of the entries of a change log.
cdef enum:
    ENQUEUE_ENTERS = 0
    ENQUEUE_LOOP = 1        # The sender's remote site made the event, has or gets the event.
    ENQUEUE_FILTERED = 2    # `before_enqueue` said no.
    ENQUEUE_STOPPED = 3     # The sender does not run.
    ENQUEUE_WITHHELD = 4    # The substitution filter failed; the unfiltered value must not leave.
    # The event should enter, but the queue is full, and the queue's policy drops new events. Known only after the
    # decision.
    ENQUEUE_NO_ROOM = 5
    # The event may enter, but the sender's filters were not asked yet. The filters are asked, and then the decision is
    # made again. Until then the event enters no queue.
    ENQUEUE_ASK = 6
    # The queue has taken the event before, as the event's place in its stream says. Known only after the decision, and
    # only in a region of one member.
    ENQUEUE_KNOWN = 7

cdef struct enqueue_decision:
    uint32_t count
    uint8_t verdicts[MAX_ATTACHED]      # ENQUEUE_* for each attached queue, in the order of the attachment.

cdef inline bint already_there(const origin *from_, const gateway_queue *gateway, uint8_t own) noexcept nogil:
    """Loop control: whether the remote site made the event, has the event, or will get the event from a third site."""
    cdef uint8_t site = gateway.remote_site
    if gateway.stays_here:
        return False
    if from_.site == site and from_.site != own:
        return True
    for n in range(from_.recipient_count):
        if from_.recipients[n] == site:
            return True
    return False


cdef inline bint decide_enqueue(const attachment *attached, const origin *from_, uint8_t own_site,
                                const decision *known, enqueue_decision *decided) noexcept nogil:
    """Decides about all attached queues, under the entry lock. `known`: the answers of filters for each queue; NULL:
    none. False: some verdicts are ENQUEUE_ASK."""
    cdef gateway_queue *gateway
    cdef uint32_t n
    cdef bint is_whole = True
    decided.count = attached.count
    for n in range(attached.count):
        gateway = attached.queues[n]
        if already_there(from_, gateway, own_site):
            decided.verdicts[n] = ENQUEUE_LOOP
        elif known != NULL and known[n].filtered:
            decided.verdicts[n] = ENQUEUE_FILTERED
        elif known != NULL and known[n].withheld:
            decided.verdicts[n] = ENQUEUE_WITHHELD
        elif not wan_flag_read(&gateway.running):
            decided.verdicts[n] = ENQUEUE_STOPPED
        elif attached.path == PATH_CALLBACKS and attached.asks[n] and (known == NULL or not known[n].asked):
            decided.verdicts[n] = ENQUEUE_ASK
            is_whole = False
        else:
            decided.verdicts[n] = ENQUEUE_ENTERS
    return is_whole


cdef inline bint enters_straight(const gateway_queue *gateway, const origin *from_, uint8_t own_site) noexcept nogil:
    """The decision about a change on the fast path, directly from the maker. No filter was asked, because the sender
    has no filters."""
    return not already_there(from_, gateway, own_site) and wan_flag_read(&gateway.running)


cdef inline gateway_queue *only_queue(const attachment *attached, uint8_t own_site) noexcept nogil:
    """The single queue for a change of this site on the fast path. NULL: no queue or several. Under an entry lock."""
    cdef origin made_here
    if attached == NULL or attached.path != PATH_STRAIGHT or attached.count != 1:
        return NULL
    memset(&made_here, 0, sizeof(made_here))
    made_here.site = own_site
    return attached.queues[0] if enters_straight(attached.queues[0], &made_here, own_site) else NULL


cdef inline void note_not_entered(gateway_queue *gateway, uint8_t verdict) noexcept nogil:
    """Counts an event that does not enter. Takes and releases the queue's lock."""
    wan_lock_take(&gateway.lock)
    count_not_entered(gateway, verdict)
    wan_lock_release(&gateway.lock)


cdef inline void count_not_entered(gateway_queue *gateway, uint8_t verdict) noexcept nogil:
    """As `note_not_entered`, under the queue's lock."""
    gateway.counts.received += 1
    if verdict == ENQUEUE_NO_ROOM:
        gateway.counts.dropped_newest += 1
    elif verdict == ENQUEUE_LOOP:
        gateway.counts.not_queued_loop += 1
    elif verdict == ENQUEUE_FILTERED:
        gateway.counts.filtered_enqueue += 1
    elif verdict == ENQUEUE_WITHHELD:
        gateway.counts.withheld += 1
    else:
        gateway.counts.dropped_stopped += 1


# The functions of `enqueue.pyx`.

cdef decision *known_decisions(decisions, tuple queues, str region, key) except NULL
cdef int read_origin(made, origin *from_, uint8_t *flags) except -1
