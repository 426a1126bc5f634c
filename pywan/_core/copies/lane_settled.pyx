# Owns what the members that hold a stream tell each other about the events that have left it: what a lane says of its
# member's queues, and what the receiving end does with it. It is no right and no agreement, so it needs no epoch
# (docs/decisions/0091).
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset
from pywan._core.c_base cimport *
from pywan._core.c_copies cimport *
from pywan._core.c_lane cimport *
from pywan._core.c_store cimport *
from pywan._core.queue.queue cimport (
    gateway_queue, queue_dispatcher, queue_go_on_settling, queue_is_runner, queue_refresh_ready)
from pywan._core.region.region_state cimport region_core


cdef enum:
    ITEMS_BYTES = 256 << 10     # A frame is closed behind so many bytes.


cdef wan_status add_item(gateway_queue *gateway, uint32_t partition, uint32_t lane, wan_lane_settled *item,
                         wan_buffer *items) noexcept nogil:
    """Adds an item, with why the events left of which the lane has not told that. Under the queue's lock."""
    cdef uint64_t explained = wan_queue_explained(&gateway.queue, partition, lane)
    cdef wan_status status = wan_buffer_reserve(items, sizeof(item[0]) + WAN_EXCEPTIONS_MAX * sizeof(wan_exception))
    if status != WAN_OK:
        return status
    item.explained = min(max(explained, item.after), item.through)
    item.leads = gateway.queue.partitions[partition].leads
    item.exceptions = wan_queue_exceptions(&gateway.queue, partition, item.explained, item.through,
                                           <wan_exception *>(items.bytes + items.used + sizeof(item[0])))
    wan_buffer_put(items, item, sizeof(item[0]))
    items.used += item.exceptions * sizeof(wan_exception)
    wan_queue_set_told(&gateway.queue, partition, lane, item.through)
    return WAN_OK


cdef int collect_bucket(wan_tail *tail, uint32_t lane, uint32_t bucket, uint32_t region,
                        wan_buffer *items) noexcept nogil:
    """Adds what has left the queues that one bucket feeds, as `settled_collect`."""
    cdef bint again = wan_tail_take_again(tail, lane, bucket)
    cdef wan_tail_bucket *at = &tail.buckets[bucket]
    cdef const wan_feeds *feeds
    cdef gateway_queue *gateway
    cdef wan_lane_settled item
    cdef int waits = 0
    cdef uint32_t n
    cdef int found = 0
    memset(&item, 0, sizeof(item))
    item.region, item.bucket = region, bucket
    wan_lock_take(&at.lock)
    feeds = wan_tail_feeds(tail)
    item.life = at.life
    for n in range(feeds.count if feeds != NULL else 0):
        gateway = <gateway_queue *>feeds.items[n].owner
        item.sender = gateway.sender
        wan_lock_take(&gateway.lock)
        if again:
            wan_queue_set_told(&gateway.queue, feeds.items[n].first + bucket, lane, 0)
        item.after = gateway.queue.partitions[feeds.items[n].first + bucket].begun
        item.through = wan_queue_settled(&gateway.queue, feeds.items[n].first + bucket, &waits)
        if waits:
            found |= SETTLED_WAITS
        if item.through > item.after and add_item(gateway, feeds.items[n].first + bucket, lane, &item,
                                                  items) != WAN_OK:
            found |= SETTLED_NO_MEMORY
        wan_lock_release(&gateway.lock)
    wan_lock_release(&at.lock)
    return found


cdef int settled_collect(wan_tail *tail, uint32_t lane, uint32_t region, wan_buffer *items) noexcept nogil:
    """Adds an item for each queue of which more has left than lane `lane` has told. `region`: its number on the lane.
    Returns flags. SETTLED_WAITS: some of it cannot be told before more changes count. SETTLED_FULL: there is more, and
    the frame is long enough. SETTLED_NO_MEMORY."""
    cdef uint64_t *words = tail.settled[lane]
    cdef uint64_t bits
    cdef uint32_t word, bucket
    cdef int found = 0, here
    for word in range((tail.bucket_count + 63) // 64):
        bits = wan_lane_bits(&words[word])
        while bits:
            if items.used >= ITEMS_BYTES:
                return found | SETTLED_FULL
            bucket = word * 64 + wan_lowest_bit(bits)
            bits &= bits - 1
            wan_lane_clear_bit(words, bucket)       # Before the look: what leaves the queue after that sets it again.
            here = collect_bucket(tail, lane, bucket, region, items)
            if here:
                wan_lane_set_bit(words, bucket)
            found |= here
            if here & SETTLED_NO_MEMORY:
                return found
    return found


cdef bint settled_hear(region_core *core, const wan_lane_settled *item, uint32_t member) noexcept nogil:
    """Takes one item of `member` (0: of anybody), with its exceptions. It is ignored if the bucket has a later life
    here, or does not feed the queue of that sender. False: the tables do not say that this member holds the bucket, in
    this life, and runs the sender. Newer ones may."""
    cdef wan_tail_bucket *at
    cdef const wan_feeds *feeds
    cdef gateway_queue *gateway
    cdef wan_settled said
    cdef uint32_t n, partition
    cdef bint whole, believed
    said.after, said.through, said.explained, said.leads = item.after, item.through, item.explained, item.leads
    said.exceptions, said.count = <const wan_exception *>(item + 1), item.exceptions
    if item.bucket >= core.tail.bucket_count:
        return True
    at = &core.tail.buckets[item.bucket]
    wan_lock_take(&at.lock)
    feeds = wan_tail_feeds(core.tail)
    believed = at.role == WAN_TAIL_ABSENT or item.life < at.life or (
        item.life == at.life and (member == 0 or wan_tail_is_holder(at, member)))
    if at.life != item.life or at.role == WAN_TAIL_ABSENT or not believed:
        feeds = NULL
    if at.role != WAN_TAIL_LEARNER:     # A learner may hear of events before they come.
        said.through = min(said.through, at.last)
        said.explained = min(said.explained, at.last)
    for n in range(feeds.count if feeds != NULL else 0):
        gateway = <gateway_queue *>feeds.items[n].owner
        if gateway.sender != item.sender:
            continue
        whole = at.role != WAN_TAIL_LEARNER and item.after <= at.last
        partition = feeds.items[n].first + item.bucket
        wan_lock_take(&gateway.lock)
        if member == 0 or queue_is_runner(gateway, member):
            wan_queue_hear_settled(&gateway.queue, partition, &said, whole)
            if gateway.queue.partitions[partition].leads:
                queue_refresh_ready(gateway, queue_dispatcher(gateway, partition))
            queue_go_on_settling(gateway, partition)
        else:
            believed = False
        wan_lock_release(&gateway.lock)
    wan_lock_release(&at.lock)
    return believed


cdef void settled_go_on(region_core *core, uint32_t bucket) noexcept nogil:
    """After events came: those that were told as settled before go."""
    cdef wan_tail_bucket *at = &core.tail.buckets[bucket]
    cdef const wan_feeds *feeds
    cdef gateway_queue *gateway
    cdef uint32_t n
    if wan_tail_feeds(core.tail) == NULL:
        return
    wan_lock_take(&at.lock)
    feeds = wan_tail_feeds(core.tail)
    for n in range(feeds.count if feeds != NULL else 0):
        gateway = <gateway_queue *>feeds.items[n].owner
        wan_lock_take(&gateway.lock)
        queue_go_on_settling(gateway, feeds.items[n].first + bucket)
        wan_lock_release(&gateway.lock)
    wan_lock_release(&at.lock)
