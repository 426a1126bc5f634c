# Owns the put path: from a change to the region's table and, under the same entry lock, into the queues of the
# attached senders. Everything here that is `nogil` is also the receiver's way in.

cdef enum:
    MAX_ATTACHED = 128

cdef struct attachment:
    # Immutable once published in region_core.attached; replaced as a whole and freed after every entry lock has
    # been held once by the replacer, so a holder of any entry lock may use what it read.
    uint32_t count
    uint32_t recipient_count
    uint8_t recipients[256]             # Remote sites of the attached senders that run: whom an event will reach.
    gateway_queue *queues[MAX_ATTACHED] # In ascending address order: several locks are taken in this order.

cdef struct region_core:
    wan_table table
    attachment *attached
    wan_clock *clock
    uint32_t member
    uint16_t number
    uint8_t site
    uint32_t buckets        # Of a partitioned region; 0: it has none.
    uint8_t stores          # 0: a proxy, which holds no entries and only forwards.
    uint8_t forwards        # 0: LOCAL or NORMAL, never queued.
    int slow                # User's Python is on the way (filter, resolver, listener): the receiver goes through Python.
    int closed
    int durable             # An attached queue, or the region's own log, is synchronous: a change is done when it is on the disk.
    region_log *log         # NULL unless the region is persistent.
    uint64_t conflicts      # Changes that lost against a later version.
    uint64_t applied        # Remote changes that took effect.

cdef struct origin:
    # Where a change comes from. Local: recipients empty, event ids of this thread.
    uint8_t site
    uint8_t recipient_count
    const uint8_t *recipients
    uint32_t event_member
    uint32_t event_thread
    uint64_t event_sequence
    const uint8_t *callback
    uint16_t callback_length
    uint8_t callback_form
    uint8_t possible_duplicate

cdef struct decision:
    # What user's Python decided about one attached sender's copy.
    uint8_t filtered
    uint8_t substituted
    uint8_t value_form
    uint32_t value_length
    const uint8_t *value

cdef struct region_names:
    char *text
    uint16_t length
    uint32_t buckets        # Of the region of that name made last: for events that come back to a queue without their region.

# Numbers of region names in this process: written into records, announced by name on every connection.
cdef region_names *region_name_table = <region_names *>calloc(65536, sizeof(region_names))
cdef dict region_numbers = {}


cdef int region_number(str name) except -1:
    number = region_numbers.get(name)
    if number is None:
        number = len(region_numbers) + 1
        data = name.encode()
        if number > 65535 or len(data) > 1024:
            from pywan.errors import ConfigurationError
            raise ConfigurationError(f"region {name[:80]!r}: at most 65535 regions, with names of at most 1024 bytes")
        region_name_table[number].text = <char *>malloc(len(data) + 1)
        memcpy(region_name_table[number].text, <char *>data, len(data))
        region_name_table[number].length = <uint16_t>len(data)
        region_numbers[name] = number
    return number


cdef inline bint already_there(const origin *from_, uint8_t site, uint8_t own) noexcept nogil:
    # Loop control: the remote site made the event, has it, or will get it from somebody.
    if from_.site == site and from_.site != own:
        return True
    for n in range(from_.recipient_count):
        if from_.recipients[n] == site:
            return True
    return False


cdef inline uint32_t union_recipients(const origin *from_, const attachment *attached, uint8_t own, uint8_t *out) noexcept nogil:
    cdef uint32_t count = from_.recipient_count, known
    cdef uint32_t n, k
    cdef uint8_t site
    if count:
        memcpy(out, from_.recipients, count)
    for n in range(attached.recipient_count):
        site = attached.recipients[n]
        for k in range(count):
            if out[k] == site:
                break
        else:
            out[count] = site
            count += 1
    return count


cdef inline void write_record(uint8_t *at, uint64_t length, const region_core *r, const wan_change *c, uint8_t operation,
                              const origin *from_, const uint8_t *recipients, uint32_t recipient_count,
                              const uint8_t *value, uint32_t value_length, uint8_t value_form) noexcept nogil:
    cdef wan_record *record = <wan_record *>at
    cdef uint8_t *to
    (<uint64_t *>(at + length - 8))[0] = 0      # The padding; what is not padding is written over it.
    record.length = <uint32_t>length
    record.value_length = value_length
    record.stamp = c.stamp
    record.event_sequence = from_.event_sequence
    record.event_member = from_.event_member
    record.event_thread = from_.event_thread
    record.region = r.number
    record.key_length = c.key_length
    record.callback_length = from_.callback_length
    record.operation = operation
    record.flags = 0
    record.stamp_site = c.stamp_site
    record.origin_site = from_.site
    record.recipients_count = <uint8_t>recipient_count
    record.key_form = c.key_form
    record.value_form = value_form
    record.callback_form = from_.callback_form
    to = <uint8_t *>(record + 1)
    wan_copy_small(to, c.key, c.key_length)
    to += c.key_length
    wan_copy_small(to, value, value_length)
    to += value_length
    if from_.callback_length:
        wan_copy_small(to, from_.callback, from_.callback_length)
        to += from_.callback_length
    wan_copy_small(to, recipients, recipient_count)


cdef wan_status region_change(region_core *r, wan_change *c, const origin *from_, const decision *decisions,
                              wan_outcome *outcome) noexcept nogil:
    """Applies one change and enqueues it, as one step for its key. WAN_OK: *outcome says what it did.
    Anything else (no room in a queue): nothing was changed."""
    cdef wan_shard *shard = wan_table_shard(&r.table, c.hash)
    cdef attachment *attached
    cdef gateway_queue *g
    cdef wan_status status = WAN_OK
    cdef wan_reservation reservations[MAX_ATTACHED]
    cdef uint8_t takes[MAX_ATTACHED]
    cdef uint8_t drops[MAX_ATTACHED]
    cdef int wake_files[MAX_ATTACHED]
    cdef uint8_t recipients[512]
    cdef uint32_t recipient_count, n, taken = 0, done, partition
    cdef uint64_t length
    cdef uint8_t operation
    cdef const uint8_t *value
    cdef uint32_t value_length
    cdef uint8_t value_form
    cdef bint forwards

    c.waits = 0
    wan_lock_take(&shard.lock)
    attached = r.attached
    if attached == NULL or attached.count == 0 or not r.forwards:
        status = region_apply(r, shard, c, outcome)
        if status == WAN_OK and attached != NULL and outcome[0] <= WAN_DESTROYED:
            for n in range(attached.count):
                queue_note_not_queued(attached.queues[n])
        wan_lock_release(&shard.lock)
        return status

    recipient_count = union_recipients(from_, attached, r.site, recipients)
    if recipient_count > 255:
        recipient_count = 255
    for n in range(attached.count):
        g = attached.queues[n]
        takes[n] = drops[n] = 0
        if already_there(from_, g.remote_site, r.site) or not wan_flag_read(&g.running):
            continue
        if decisions != NULL and decisions[n].filtered:
            continue
        value_length = decisions[n].value_length if decisions != NULL and decisions[n].substituted else c.value_length
        length = wan_record_size(c.key_length, value_length, from_.callback_length, recipient_count)
        partition = queue_partition(g, r.buckets, c.hash, from_.event_member, from_.event_thread)
        wan_lock_take(&g.lock)
        status = queue_reserve(g, partition, length, &reservations[n])
        if status != WAN_OK:
            drops[n] = status == WAN_FULL and g.full_policy == FULL_DROP_NEWEST and not durable_is_behind(g, length)
            wan_lock_release(&g.lock)
            if drops[n]:
                status = WAN_OK
                continue
            break
        takes[n] = 1
        taken += 1
    else:
        status = region_apply(r, shard, c, outcome)
        n = attached.count
    done = n
    if status != WAN_OK:
        for n in range(done):
            if takes[n]:
                wan_queue_cancel(&attached.queues[n].queue, &reservations[n])
                wan_lock_release(&attached.queues[n].lock)
        wan_lock_release(&shard.lock)
        return status

    # Applied before, and sent again because nobody knows how far it came: it may not have reached our queues then.
    forwards = outcome[0] <= WAN_DESTROYED or (outcome[0] == WAN_SAME and from_.possible_duplicate)
    operation = WAN_CREATE if outcome[0] == WAN_CREATED else (WAN_UPDATE if outcome[0] == WAN_UPDATED else WAN_DESTROY)
    if outcome[0] == WAN_SAME:
        operation = c.operation
    for n in range(attached.count):
        g = attached.queues[n]
        wake_files[n] = -1
        if not forwards:
            if takes[n]:
                wan_queue_cancel(&g.queue, &reservations[n])
                wan_lock_release(&g.lock)
            continue
        if not takes[n]:
            continue
        value, value_length, value_form = c.value, c.value_length, c.value_form
        if decisions != NULL and decisions[n].substituted:
            value, value_length, value_form = decisions[n].value, decisions[n].value_length, decisions[n].value_form
        write_record(reservations[n].at, reservations[n].length, r, c, operation, from_, recipients, recipient_count,
                     value, value_length, value_form)
        wake_files[n] = queue_commit(g, &reservations[n], c.hash)
        g.counts.received += 1
        g.counts.queued += 1
        if g.durable != NULL and g.durable.synchronous:
            c.waits = 1
        wan_lock_release(&g.lock)
    # Those that do not take it are told when no other queue's lock is held: one may stand before a taken one in the order.
    if forwards:
        for n in range(attached.count):
            if not takes[n]:
                g = attached.queues[n]
                wan_lock_take(&g.lock)
                g.counts.received += 1
                if drops[n]:
                    g.counts.dropped_newest += 1
                elif already_there(from_, g.remote_site, r.site):
                    g.counts.not_queued_loop += 1
                elif decisions != NULL and decisions[n].filtered:
                    g.counts.filtered_enqueue += 1
                else:
                    g.counts.dropped_stopped += 1
                wan_lock_release(&g.lock)
    wan_lock_release(&shard.lock)
    if forwards and taken:
        for n in range(attached.count):
            if wake_files[n] >= 0:
                eventfd_write(wake_files[n], 1)
    return WAN_OK


cdef void sum_shards(const wan_table *table, uint64_t *used, uint64_t *tombstones, uint64_t *memory_bytes) noexcept nogil:
    """Each shard's numbers as of one moment. memory_bytes may be NULL."""
    cdef wan_shard *shard
    cdef uint64_t total = 0
    used[0] = tombstones[0] = 0
    for n in range(WAN_TABLE_SHARDS):
        shard = &table.shards[n]
        wan_lock_take(&shard.lock)
        used[0] += shard.used
        tombstones[0] += shard.tombstones
        total += shard.bytes
        if shard.slots != NULL:
            total += (shard.mask + 1) * sizeof(wan_slot)
        wan_lock_release(&shard.lock)
    if memory_bytes != NULL:
        memory_bytes[0] = total


cdef wan_status region_apply(region_core *r, wan_shard *shard, wan_change *c, wan_outcome *outcome) noexcept nogil:
    """The change to the table and, for a persistent region, to its log: both or neither. Under the entry lock."""
    cdef uint64_t proposed = c.stamp
    cdef wan_status status
    if not r.stores:
        outcome[0] = WAN_DESTROYED if c.operation == WAN_DESTROY else (WAN_CREATED if c.operation == WAN_CREATE else WAN_UPDATED)
        return WAN_OK
    if r.log == NULL:
        outcome[0] = wan_table_apply(shard, c)
    else:
        wan_lock_take(&r.log.lock)
        status = region_log_reserve(r.log, c)
        if status == WAN_OK:
            outcome[0] = wan_table_apply(shard, c)
            if outcome[0] <= WAN_DESTROYED:
                region_log_stage(r.log, c, 0)
        wan_lock_release(&r.log.lock)
        if status != WAN_OK:
            return status
    if c.stamp != proposed:
        wan_clock_see(r.clock, c.stamp)
    return WAN_OK


cdef wan_status region_change_here(region_core *r, wan_change *c, uint8_t flag, bint *found) noexcept nogil:
    """Takes the entry of a key out (WAN_FLAG_FORGET), or its value (WAN_FLAG_INVALID), on this member only: its version stays. The
    table and the log, both or neither. `found`: there was one, no tombstone. Takes and releases the entry lock."""
    cdef wan_shard *shard = wan_table_shard(&r.table, c.hash)
    cdef wan_entry *entry
    cdef wan_status status = WAN_OK
    wan_lock_take(&shard.lock)
    entry = wan_table_find(shard, c.hash, c.key, c.key_length, c.key_form)
    found[0] = entry != NULL and entry.state != WAN_ENTRY_TOMBSTONE
    if found[0] and not (flag == WAN_FLAG_INVALID and entry.state == WAN_ENTRY_INVALID):
        c.stamp, c.stamp_site = entry.stamp, entry.stamp_site
        if r.log != NULL:
            wan_lock_take(&r.log.lock)
            status = region_log_reserve(r.log, c)
        if status == WAN_OK:
            if flag == WAN_FLAG_FORGET:
                wan_table_forget(shard, c.hash, c.key, c.key_length, c.key_form)
            elif wan_table_invalidate(shard, c) == WAN_OUT_OF_MEMORY:
                status = WAN_NO_MEMORY
            if status == WAN_OK and r.log != NULL:
                region_log_stage(r.log, c, flag)
        if r.log != NULL:
            wan_lock_release(&r.log.lock)
    wan_lock_release(&shard.lock)
    return status


cdef wan_status region_copy(const region_core *r, region_core *to, uint64_t *cursor) noexcept nogil:
    """Every entry from shard `cursor` on, with its version and whatever its state, gets into another region and its log. Where that has no
    room, the same cursor goes on: what is there already is known by its version."""
    cdef wan_shard *shard
    cdef wan_entry *entry
    cdef wan_change c
    cdef wan_outcome outcome
    cdef uint64_t at
    cdef bint found
    cdef wan_status status = WAN_OK
    while cursor[0] < WAN_TABLE_SHARDS and status == WAN_OK:
        shard = &r.table.shards[cursor[0]]
        wan_lock_take(&shard.lock)
        for at in range(shard.mask + 1 if shard.slots != NULL else 0):
            entry = shard.slots[at].entry
            if entry == NULL or status != WAN_OK:
                continue
            memset(&c, 0, sizeof(c))
            c.key, c.key_length, c.key_form, c.hash = entry.bytes, entry.key_length, entry.key_form, shard.slots[at].hash
            c.stamp, c.stamp_site, c.operation, c.value_form = entry.stamp, entry.stamp_site, WAN_UPDATE, WAN_FORM_NONE
            if entry.state == WAN_ENTRY_TOMBSTONE:
                c.operation = WAN_DESTROY
            elif entry.state == WAN_ENTRY_LIVE:
                c.value, c.value_length, c.value_form = wan_entry_value(entry), entry.value_length, entry.value_form
            wan_lock_take(&to.table.shards[cursor[0]].lock)
            status = region_apply(to, &to.table.shards[cursor[0]], &c, &outcome)
            wan_lock_release(&to.table.shards[cursor[0]].lock)
            if status == WAN_OK and outcome == WAN_OUT_OF_MEMORY:
                status = WAN_NO_MEMORY
            if status == WAN_OK and entry.state == WAN_ENTRY_INVALID:
                status = region_change_here(to, &c, WAN_FLAG_INVALID, &found)
        wan_lock_release(&shard.lock)
        cursor[0] += status == WAN_OK
    return status


cdef inline void origin_local(origin *from_, const region_core *r) noexcept nogil:
    memset(from_, 0, sizeof(origin))
    from_.site = r.site
    from_.event_member = r.member
    from_.event_thread = wan_thread_number()
    from_.event_sequence = wan_thread_next_event()
    from_.callback_form = WAN_FORM_NONE


cdef inline void change_from_record(wan_change *c, const wan_record *record, uint64_t hash) noexcept nogil:
    c.key = wan_record_key(record)
    c.value = wan_record_value(record)
    c.value_length = record.value_length
    c.key_length = record.key_length
    c.key_form = record.key_form
    c.value_form = record.value_form
    c.operation = record.operation
    c.stamp_site = record.stamp_site
    c.hash = hash
    c.stamp = record.stamp
    c.local = 0
    c.ask = 0
    c.keep = 0


cdef inline void origin_from_record(origin *from_, const wan_record *record) noexcept nogil:
    from_.site = record.origin_site
    from_.recipient_count = record.recipients_count
    from_.recipients = wan_record_recipients(record)
    from_.event_member = record.event_member
    from_.event_thread = record.event_thread
    from_.event_sequence = record.event_sequence
    from_.callback = wan_record_callback(record)
    from_.callback_length = record.callback_length
    from_.callback_form = record.callback_form
    from_.possible_duplicate = record.flags & WAN_FLAG_POSSIBLE_DUPLICATE
