# Owns the exchange of removals between the holders of a stream: a replication link sends the removals from its member's
# queues, and the receiving end applies the removals. A removal is no right and no agreement, so no epoch is needed
# (docs/decisions/0091).
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset
from pywan._core.c_base cimport *
from pywan._core.c_names cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_store cimport *
from pywan._core.queue.queue cimport (
    gateway_queue, queue_dispatcher, queue_apply_removal, queue_is_runner, queue_refresh_ready)
from pywan._core.region.region_state cimport region_core


cdef enum:
    ITEMS_BYTES = 256 << 10     # A frame with this many bytes is closed.


cdef wan_status add_item(gateway_queue *gateway, uint32_t partition, uint32_t repl_link, wan_repl_removal *item,
                         wan_buffer *items) noexcept nogil:
    """Adds an item, with the reasons of removals that the replication link has not sent before. Under the queue's
    lock."""
    cdef uint64_t explained = wan_queue_explained(&gateway.queue, partition, repl_link)
    cdef wan_status status = wan_buffer_reserve(items, sizeof(item[0]) + WAN_EXCEPTIONS_MAX * sizeof(wan_exception))
    if status != WAN_OK:
        return status
    item.explained = min(max(explained, item.after), item.through)
    item.leads = gateway.queue.partitions[partition].leads
    item.exceptions = wan_queue_exceptions(&gateway.queue, partition, item.explained, item.through,
                                           <wan_exception *>(items.bytes + items.used + sizeof(item[0])))
    wan_buffer_put(items, item, sizeof(item[0]))
    items.used += item.exceptions * sizeof(wan_exception)
    wan_queue_set_told(&gateway.queue, partition, repl_link, item.through)
    return WAN_OK


cdef int collect_bucket(wan_changelog *changelog, uint32_t repl_link, uint32_t bucket, uint32_t region,
                        wan_buffer *items) noexcept nogil:
    """Adds the removals from the queues that one bucket feeds, as `removals_collect`."""
    cdef bint again = wan_changelog_take_again(changelog, repl_link, bucket)
    cdef wan_changelog_bucket *at = &changelog.buckets[bucket]
    cdef const wan_feeds *feeds
    cdef gateway_queue *gateway
    cdef wan_repl_removal item
    cdef int waits = 0
    cdef uint32_t n
    cdef int found = 0
    memset(&item, 0, sizeof(item))
    item.region, item.bucket = region, bucket
    wan_lock_take(&at.lock)
    feeds = wan_changelog_feeds(changelog)
    item.timeline = at.timeline
    for n in range(feeds.count if feeds != NULL else 0):
        gateway = <gateway_queue *>feeds.items[n].owner
        item.sender = gateway.sender
        wan_lock_take(&gateway.lock)
        if again:
            wan_queue_set_told(&gateway.queue, feeds.items[n].first + bucket, repl_link, 0)
        item.after = gateway.queue.partitions[feeds.items[n].first + bucket].begun
        item.through = wan_queue_removed_through(&gateway.queue, feeds.items[n].first + bucket, &waits)
        if waits:
            found |= REMOVALS_WAIT
        if item.through > item.after and add_item(gateway, feeds.items[n].first + bucket, repl_link, &item,
                                                  items) != WAN_OK:
            found |= REMOVALS_NO_MEMORY
        wan_lock_release(&gateway.lock)
    wan_lock_release(&at.lock)
    return found


cdef int removals_collect(wan_changelog *changelog, uint32_t repl_link, uint32_t region,
                          wan_buffer *items) noexcept nogil:
    """Adds an item for each queue with unsent removals of the replication link. `region`: its number on the replication
    link. Returns flags. REMOVALS_WAIT: some removals have to wait until more changes are replicated. REMOVALS_FULL:
    more removals wait, and the frame is long enough. REMOVALS_NO_MEMORY."""
    cdef uint64_t *words = changelog.removals[repl_link]
    cdef uint64_t bits
    cdef uint32_t word, bucket
    cdef int found = 0, here
    for word in range((changelog.bucket_count + 63) // 64):
        bits = wan_repl_link_bits(&words[word])
        while bits:
            if items.used >= ITEMS_BYTES:
                return found | REMOVALS_FULL
            bucket = word * 64 + wan_lowest_bit(bits)
            bits &= bits - 1
            # Cleared before the look: a later removal from the queue sets the bit again.
            wan_repl_link_clear_bit(words, bucket)
            here = collect_bucket(changelog, repl_link, bucket, region, items)
            if here:
                wan_repl_link_set_bit(words, bucket)
            found |= here
            if here & REMOVALS_NO_MEMORY:
                return found
    return found


cdef bint parks_beyond(const wan_removal *said, uint64_t high_watermark) noexcept nogil:
    """Whether an event was parked that is not known as replicated here."""
    cdef uint32_t n
    cdef const wan_exception *each
    if said.through <= high_watermark:
        return False
    for n in range(said.count):
        each = &said.exceptions[n]
        if (WAN_HOLE_KIND(each.reason) == WAN_HOLE_PARKED and each.first <= said.through
                and each.first + each.count - 1 > high_watermark):
            return True
    return False


cdef int removal_receive(region_core *core, const wan_repl_removal *item, uint32_t member) noexcept nogil:
    """Applies one item of `member` (0: any member), with its exceptions. The item is ignored if the bucket has a later
    timeline at this member, or does not feed the queue of the sender. REMOVAL_NOT_BELIEVED: by the local metadata,
    `member` does not hold the bucket in this timeline, or does not run the sender. Newer metadata may change the
    result. REMOVAL_WAITS: behind the high watermark an event was parked. An event with its sequence that is here may be
    another one, and is not parked before the high watermark has passed it: the item is applied up to there. The caller
    comes again with the whole item, before a later one of the same queue."""
    cdef wan_changelog_bucket *at
    cdef const wan_feeds *feeds
    cdef gateway_queue *gateway
    cdef wan_removal said
    cdef uint32_t n, partition
    cdef bint whole, believed, waits = False
    said.after, said.through, said.explained, said.leads = item.after, item.through, item.explained, item.leads
    said.exceptions, said.count = <const wan_exception *>(item + 1), item.exceptions
    if item.bucket >= core.changelog.bucket_count:
        return REMOVAL_TAKEN
    at = &core.changelog.buckets[item.bucket]
    wan_lock_take(&at.lock)
    feeds = wan_changelog_feeds(core.changelog)
    believed = at.role == WAN_REPLICA_ABSENT or item.timeline < at.timeline or (
        item.timeline == at.timeline and (member == 0 or wan_changelog_is_holder(at, member)))
    if at.timeline != item.timeline or at.role == WAN_REPLICA_ABSENT or not believed:
        feeds = NULL
    if at.role != WAN_REPLICA_LEARNER:     # A learner may receive removals before the events.
        said.through = min(said.through, at.log_end)
        waits = feeds != NULL and parks_beyond(&said, at.high_watermark)
        if waits:
            said.through = at.high_watermark
        said.explained = min(said.explained, said.through)
    for n in range(feeds.count if feeds != NULL else 0):
        gateway = <gateway_queue *>feeds.items[n].owner
        if gateway.sender != item.sender:
            continue
        whole = at.role != WAN_REPLICA_LEARNER and item.after <= at.log_end
        partition = feeds.items[n].first + item.bucket
        wan_lock_take(&gateway.lock)
        if member == 0 or queue_is_runner(gateway, member):
            wan_queue_receive_removal(&gateway.queue, partition, &said, whole)
            if gateway.queue.partitions[partition].leads:
                queue_refresh_ready(gateway, queue_dispatcher(gateway, partition))
            queue_apply_removal(gateway, partition)
        else:
            believed = False
        wan_lock_release(&gateway.lock)
    wan_lock_release(&at.lock)
    if not believed:
        return REMOVAL_NOT_BELIEVED
    return REMOVAL_WAITS if waits else REMOVAL_TAKEN


cdef void removals_apply(region_core *core, uint32_t bucket) noexcept nogil:
    """Applies earlier received removals after events have arrived."""
    cdef wan_changelog_bucket *at = &core.changelog.buckets[bucket]
    cdef const wan_feeds *feeds
    cdef gateway_queue *gateway
    cdef uint32_t n
    if wan_changelog_feeds(core.changelog) == NULL:
        return
    wan_lock_take(&at.lock)
    feeds = wan_changelog_feeds(core.changelog)
    for n in range(feeds.count if feeds != NULL else 0):
        gateway = <gateway_queue *>feeds.items[n].owner
        wan_lock_take(&gateway.lock)
        queue_apply_removal(gateway, feeds.items[n].first + bucket)
        wan_lock_release(&gateway.lock)
    wan_lock_release(&at.lock)
