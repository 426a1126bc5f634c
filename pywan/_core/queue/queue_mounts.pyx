# Owns the identity of a persistent queue: its numbering, and the mounts under it. Each opening of a log is a mount. A
# receiver may have applied events of a mount that is not in the past of this one, or events beyond the sequence where
# the next mount began. Then another copy of the log sent them.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *
from pywan._core.log.committer cimport committer_wake_waiters
from pywan._core.log.log_pending cimport swap_buffers
from pywan._core.queue.queue cimport durable_log, gateway_queue
from pywan._core.base.status cimport corrupt


cdef enum:
    MOUNT_BYTES_KEPT = 64 << 10     # A queue remembers mounts up to so many bytes, and at least two.


cdef inline uint64_t mount_bytes(const gateway_queue *gateway) noexcept nogil:
    return 8 + 8 * <uint64_t>gateway.queue.partition_count


cdef inline uint64_t *mount_at(const gateway_queue *gateway, uint32_t n) noexcept nogil:
    cdef uint8_t *identity = gateway.durable.committer.log.identity.bytes
    return <uint64_t *>(identity + sizeof(wan_queue_identity) + n * mount_bytes(gateway))


cdef wan_status check_identity(const gateway_queue *gateway) noexcept nogil:
    """Checks the identity that the manifest holds. A new log holds none."""
    cdef const wan_buffer *found = &gateway.durable.committer.log.identity
    cdef const wan_queue_identity *head = <const wan_queue_identity *>found.bytes
    if found.used == 0:
        return WAN_OK
    if (found.used < sizeof(wan_queue_identity) or head.partitions != gateway.queue.partition_count
            or (found.used - sizeof(wan_queue_identity)) % mount_bytes(gateway)
            or (found.used - sizeof(wan_queue_identity)) // mount_bytes(gateway) != head.mounts):
        return corrupt("the queue's identity in the manifest does not fit its length")
    return WAN_OK


cdef wan_status add_mount(gateway_queue *gateway, wan_buffer *identity, uint64_t numbering,
                          uint32_t skipped) noexcept nogil:
    """Lays out the identity with this mount as the newest, behind the known ones without the `skipped` oldest."""
    cdef wan_queue_identity head
    cdef uint32_t known = 0, p
    cdef uint64_t length = mount_bytes(gateway)
    cdef wan_buffer *now = &gateway.durable.committer.log.identity
    cdef wan_status status
    if now.used:
        known = (<wan_queue_identity *>now.bytes).mounts - skipped
    head.numbering, head.mounts, head.partitions = numbering, known + 1, gateway.queue.partition_count
    memset(identity, 0, sizeof(wan_buffer))
    status = wan_buffer_reserve(identity, sizeof(head) + (known + 1) * length)
    if status != WAN_OK:
        return status
    wan_buffer_put(identity, &head, sizeof(head))
    if known:
        wan_buffer_put(identity, mount_at(gateway, skipped), known * length)
    wan_buffer_put(identity, &gateway.durable.mount, 8)
    for p in range(gateway.queue.partition_count):
        wan_buffer_put(identity, &gateway.queue.partitions[p].appended, 8)
    return WAN_OK


cdef wan_status durable_mount(gateway_queue *gateway) noexcept nogil:
    """Adds this opening as a mount, after recovery. The manifest knows it before a new event is on the disk, and so
    before one is sent."""
    cdef durable_log *durable = gateway.durable
    cdef wan_buffer fresh
    cdef uint32_t kept, known = 0
    cdef wan_status status = check_identity(gateway)
    if status != WAN_OK:
        return status
    durable.numbering = durable.committer.log.id
    if durable.committer.log.identity.used:
        durable.numbering = (<wan_queue_identity *>durable.committer.log.identity.bytes).numbering
        known = (<wan_queue_identity *>durable.committer.log.identity.bytes).mounts
    kept = <uint32_t>max(<uint64_t>1, MOUNT_BYTES_KEPT // mount_bytes(gateway))
    status = add_mount(gateway, &fresh, durable.numbering, known - min(known, kept))
    if status != WAN_OK:
        return status
    swap_buffers(&durable.committer.log.identity, &fresh)
    wan_buffer_close(&fresh)
    # Written now, so that the manifest has all mounts told to receivers after a crash. If the disk does not take it,
    # the manifest of the first block has it.
    if durable.committer.log.has_manifest:
        wan_log_write_identity(&durable.committer.log, durable.state.bytes, durable.state.used)
    return WAN_OK


cdef bint is_of_this_past(const gateway_queue *gateway, uint64_t mount, uint32_t partition,
                          uint64_t last) noexcept nogil:
    """Whether this queue has or had, under these sequences, what was sent in `mount` up to `last`. Under the queue's
    lock."""
    cdef const wan_queue_identity *head = <const wan_queue_identity *>gateway.durable.committer.log.identity.bytes
    cdef uint32_t n
    if mount == gateway.durable.mount:
        return True
    for n in range(head.mounts):
        if mount_at(gateway, n)[0] == mount:
            return n + 1 < head.mounts and last <= mount_at(gateway, n + 1)[1 + partition]
    return False


cdef wan_status durable_renew(gateway_queue *gateway) noexcept nogil:
    """Takes the numbering that is wanted, if there is one. The committer calls it. The events in the queue keep their
    sequences, and may be known under the old numbering."""
    cdef durable_log *durable = gateway.durable
    cdef wan_buffer fresh
    cdef wan_status status
    cdef uint64_t wanted
    cdef uint32_t p
    wan_lock_take(&gateway.lock)
    wanted = durable.wanted_numbering
    status = add_mount(gateway, &fresh, wanted,
                       (<wan_queue_identity *>durable.committer.log.identity.bytes).mounts) if wanted else WAN_OK
    if wanted and status == WAN_OK:
        swap_buffers(&durable.committer.log.identity, &fresh)
    wan_lock_release(&gateway.lock)
    if wanted == 0 or status != WAN_OK:
        return status
    status = wan_log_write_identity(&durable.committer.log, durable.state.bytes, durable.state.used)
    wan_lock_take(&gateway.lock)
    if status != WAN_OK:
        swap_buffers(&durable.committer.log.identity, &fresh)
    else:
        durable.numbering, durable.wanted_numbering = wanted, 0
        for p in range(gateway.queue.partition_count):
            gateway.queue.partitions[p].duplicate_through = gateway.queue.partitions[p].appended
    wan_lock_release(&gateway.lock)
    wan_buffer_close(&fresh)
    committer_wake_waiters(&durable.committer)
    return status
