# Owns the decision which queues an event enters: one step, with one result. What it depends on (which senders run, where the event has
# been, what `before_enqueue` said) is read here and nowhere else; what acts on the result does not ask again.
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset
from pywan._core.c_base cimport *
from pywan._core.c_system cimport *
from pywan._core.queue cimport gateway_queue
from pywan._core.region_state cimport MAX_ATTACHED, WAY_STRAIGHT, attachment, decision, origin

cdef enum:                  # What becomes of an event at one queue.
    ENQUEUE_ENTERS = 0
    ENQUEUE_LOOP = 1        # Its site made the event, has it, or gets it from somebody.
    ENQUEUE_FILTERED = 2    # `before_enqueue` said no.
    ENQUEUE_STOPPED = 3     # The sender does not run.
    ENQUEUE_NO_ROOM = 4     # It enters, but the queue is full, and its policy is to drop what is new. Known after the decision.

cdef struct enqueue_decision:
    # Plain bytes, no pointers: it can be kept or sent with the record, and whoever applies the record elsewhere appends it to the same queues.
    uint32_t count
    uint8_t verdicts[MAX_ATTACHED]      # ENQUEUE_*, of each attached queue, in the order of the attachment.


cdef inline bint already_there(const origin *from_, uint8_t site, uint8_t own) noexcept nogil:
    """Loop control: the remote site made the event, has it, or will get it from somebody."""
    if from_.site == site and from_.site != own:
        return True
    for n in range(from_.recipient_count):
        if from_.recipients[n] == site:
            return True
    return False


cdef inline void decide_enqueue(const attachment *attached, const origin *from_, uint8_t own_site, const decision *filters,
                                enqueue_decision *decided) noexcept nogil:
    """Under the entry lock. `filters`: what the user's filters said of each attached queue; NULL: there are none."""
    cdef gateway_queue *g
    cdef uint32_t n
    decided.count = attached.count
    for n in range(attached.count):
        g = attached.queues[n]
        if already_there(from_, g.remote_site, own_site):
            decided.verdicts[n] = ENQUEUE_LOOP
        elif filters != NULL and filters[n].filtered:
            decided.verdicts[n] = ENQUEUE_FILTERED
        elif not wan_flag_read(&g.running):
            decided.verdicts[n] = ENQUEUE_STOPPED
        else:
            decided.verdicts[n] = ENQUEUE_ENTERS


cdef inline gateway_queue *only_queue(const attachment *attached, uint8_t own_site) noexcept nogil:
    """Under an entry lock: the queue that a change made at this site enters, straight from its maker, where there is one queue and it does.
    NULL: there are more, or none, or it does not."""
    cdef enqueue_decision decided
    cdef origin made_here
    if attached == NULL or attached.way != WAY_STRAIGHT or attached.count != 1:
        return NULL
    memset(&made_here, 0, sizeof(made_here))
    made_here.site = own_site
    decide_enqueue(attached, &made_here, own_site, NULL, &decided)
    return attached.queues[0] if decided.verdicts[0] == ENQUEUE_ENTERS else NULL


cdef inline void note_not_entered(gateway_queue *g, uint8_t verdict) noexcept nogil:
    """Counts an event that does not enter. Takes and releases the queue's lock."""
    wan_lock_take(&g.lock)
    g.counts.received += 1
    if verdict == ENQUEUE_NO_ROOM:
        g.counts.dropped_newest += 1
    elif verdict == ENQUEUE_LOOP:
        g.counts.not_queued_loop += 1
    elif verdict == ENQUEUE_FILTERED:
        g.counts.filtered_enqueue += 1
    else:
        g.counts.dropped_stopped += 1
    wan_lock_release(&g.lock)
