# Owns the put path: from a change to the region's table and, under the same entry lock, into the queues of the
# attached senders. Everything here that is `nogil` is also the receiver's way in.

cdef enum:
    MAX_ATTACHED = 128
    STAMPS_SAMPLED = 10000

cdef struct tombstone_counts:
    uint64_t whole, shrunk, bytes

cdef enum:
    WAY_STRAIGHT = 0    # From the caller into table and queues.
    WAY_CALLBACKS = 1   # Through the user's Python (filters, listeners, a resolver): only changes that come from there are taken.
    WAY_CLOSED = 2      # No change is taken any more.

cdef struct attachment:
    # Immutable once published in region_core.attached; replaced as a whole and freed after every entry lock has
    # been held once by the replacer, so a holder of any entry lock may use what it read. When the replacer is done no change goes by the
    # old one any more: the way changes together with the queues, for every row.
    uint8_t way                         # WAY_*
    uint32_t count
    uint32_t recipient_count
    uint8_t recipients[256]             # Remote sites of the attached senders that run: whom an event will reach.
    gateway_queue *queues[MAX_ATTACHED] # In the order of their places: several locks are taken in this order.

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
    int closed              # Once set, every attachment that is published has WAY_CLOSED.
    int durable             # An attached queue, or the region's own log, is synchronous: a change is done when it is on the disk.
    region_log *log         # NULL unless the region is persistent.
    uint64_t mark           # Destroys with stamps up to here may have been forgotten, with senders that can send older events; 0: none was.
    uint64_t let_go         # Destroys with stamps up to here may not be remembered, for whatever reason; never falls. Both are raised before.
    int64_t tombstone_room  # Bytes that tombstones may still take before the bell rings. Atomic.
    uint32_t *bell          # Of the housekeeper; NULL: nobody wants to know.
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

cdef enum:
    IF_ABSENT = 1   # The key has no value: it is not there, or was invalidated.
    IF_VALUE = 2    # It has one;
    IF_EQUAL = 3    # of this form, these bytes.
    IF_THERE = 4    # It is there, with a value or without.

cdef struct condition:
    # What a change asks for, and what was there.
    uint8_t kind            # IF_*
    uint8_t form            # IF_EQUAL.
    uint32_t length
    const uint8_t *value
    uint8_t holds
    uint8_t found_value     # There was a value. Unless IF_EQUAL, it is copied:
    uint8_t found_form
    wan_stage found

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


cdef inline wan_status way_of(const attachment *attached, bint by_callbacks) noexcept nogil:
    """Under an entry lock: WAN_OK if a change may go on from here."""
    if attached == NULL or attached.way == WAY_STRAIGHT:
        return WAN_OK
    if attached.way == WAY_CLOSED:
        return WAN_CLOSED
    return WAN_OK if by_callbacks else WAN_SLOW


cdef inline bint already_there(const origin *from_, uint8_t site, uint8_t own) noexcept nogil:
    # Loop control: the remote site made the event, has it, or will get it from somebody.
    if from_.site == site and from_.site != own:
        return True
    for n in range(from_.recipient_count):
        if from_.recipients[n] == site:
            return True
    return False


cdef inline const uint8_t *union_recipients(const origin *from_, const attachment *attached, uint8_t *space, uint32_t *count) noexcept nogil:
    """Whom the event has reached or will reach. `space`: for as many sites as there can be."""
    cdef uint32_t n, k, found = from_.recipient_count
    cdef uint8_t site
    count[0] = attached.recipient_count
    if found == 0:
        return attached.recipients
    memcpy(space, from_.recipients, found)
    for n in range(attached.recipient_count):
        site = attached.recipients[n]
        for k in range(found):
            if space[k] == site:
                break
        else:
            space[found] = site
            found += 1
    count[0] = found
    return space


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
    record.flags = c.flags & (WAN_FLAG_GIVEN | WAN_FLAG_FORCED)
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


cdef inline uint64_t absent_below(const region_core *r, uint8_t flags) noexcept nogil:
    # Under an entry lock: what is not remembered under it is below this. Of what was let go nothing older can come from a sender that was known
    # then; who sends it was not, or speaks for another one. Stamps that callers give were not waited for.
    cdef uint64_t mark = wan_read(&r.mark if flags & WAN_FLAG_GIVEN else &r.let_go)
    return mark + 1 if mark else 0


cdef wan_status region_change(region_core *r, wan_change *c, const origin *from_, const decision *decisions,
                              wan_outcome *outcome) noexcept nogil:
    """Applies one change and enqueues it, as one step for its key. WAN_OK: *outcome says what it did.
    Anything else (no room in a queue, WAN_SLOW, WAN_CLOSED): nothing was changed. `decisions`: MAX_ATTACHED of them, from a change that
    comes through the user's callbacks; NULL: it comes straight from its maker."""
    cdef wan_shard *shard = wan_table_shard(&r.table, c.hash)
    wan_lock_take(&shard.lock)
    cdef wan_status status = region_change_held(r, shard, c, from_, decisions, outcome)
    wan_lock_release(&shard.lock)
    return status


cdef wan_status region_change_if(region_core *r, wan_change *c, const origin *from_, const decision *decisions, condition *wanted,
                                 wan_outcome *outcome) noexcept nogil:
    """`region_change` of a local change if what is there is as `wanted`, as one step for its key; else *outcome is WAN_UNMET. `wanted` gets a copy of
    the value that is there."""
    cdef wan_shard *shard = wan_table_shard(&r.table, c.hash)
    cdef wan_status status
    c.waits = 0
    wan_lock_take(&shard.lock)
    status = way_of(r.attached, decisions != NULL)
    if status == WAN_OK:
        status = condition_look(wanted, wan_table_find(shard, c.hash, c.key, c.key_length, c.key_form))
    if status == WAN_OK:
        outcome[0] = WAN_UNMET
        if wanted.holds:
            status = region_change_held(r, shard, c, from_, decisions, outcome)
    wan_lock_release(&shard.lock)
    return status


cdef wan_status condition_look(condition *wanted, const wan_entry *entry) noexcept nogil:
    """Under the entry lock. WAN_NO_MEMORY: for the copy."""
    cdef bint is_there = entry != NULL and entry.state != WAN_ENTRY_TOMBSTONE
    cdef bint has_value = is_there and entry.state == WAN_ENTRY_LIVE
    wan_stage_empty(&wanted.found)
    wanted.found_value = has_value
    if wanted.kind == IF_ABSENT:
        wanted.holds = not has_value
    elif wanted.kind == IF_VALUE:
        wanted.holds = has_value
    elif wanted.kind == IF_THERE:
        wanted.holds = is_there
    else:
        wanted.holds = (has_value and entry.value_form == wanted.form and entry.value_length == wanted.length
                        and (wanted.length == 0 or memcmp(wan_entry_value(entry), wanted.value, wanted.length) == 0))
        return WAN_OK
    if not has_value:
        return WAN_OK
    wanted.found_form = entry.value_form
    return wan_stage_add(&wanted.found, wan_entry_value(entry), entry.value_length) if entry.value_length else WAN_OK


cdef inline wan_status region_change_held(region_core *r, wan_shard *shard, wan_change *c, const origin *from_, const decision *decisions,
                                          wan_outcome *outcome) noexcept nogil:
    """`region_change`, by who has the entry lock."""
    cdef attachment *attached = r.attached
    cdef wan_status status
    c.waits = 0
    if not c.local:
        c.absent_below = absent_below(r, c.flags)
    else:
        c.absent_below = 0
        if c.stamp < wan_clock_low(r.clock) and not c.flags & WAN_FLAG_GIVEN:
            c.stamp = wan_clock_take(r.clock, wan_clock_now_ms(r.clock), 1)     # It took its stamp, and waited: floors have been told since.
    status = way_of(attached, decisions != NULL)
    if status != WAN_OK:
        return status
    if attached != NULL and attached.count and r.forwards:
        return region_enqueue(r, shard, c, from_, attached, decisions, outcome)
    status = region_apply(r, shard, c, outcome)
    if attached != NULL and status == WAN_OK and outcome[0] <= WAN_DESTROYED:
        for n in range(attached.count):
            queue_note_not_queued(attached.queues[n])
    return status


cdef wan_status region_enqueue(region_core *r, wan_shard *shard, wan_change *c, const origin *from_, attachment *attached, const decision *decisions,
                               wan_outcome *outcome) noexcept nogil:
    """`region_change` of a region that has senders."""
    cdef gateway_queue *g
    cdef wan_status status = WAN_OK
    cdef wan_reservation reservations[MAX_ATTACHED]
    cdef uint8_t takes[MAX_ATTACHED]
    cdef uint8_t drops[MAX_ATTACHED]
    cdef int wake_files[MAX_ATTACHED]
    cdef uint8_t space[512]
    cdef const uint8_t *recipients
    cdef uint32_t recipient_count, n, taken = 0, done, partition
    cdef uint64_t length
    cdef uint8_t operation
    cdef const uint8_t *value
    cdef uint32_t value_length
    cdef uint8_t value_form
    cdef bint forwards
    recipients = union_recipients(from_, attached, space, &recipient_count)
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
        wake_files[n] = queue_commit(g, &reservations[n])
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
    # Under the entry lock: without it the attachment, and a queue with its files, may be gone.
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
    cdef uint64_t proposed = c.stamp, replaced
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
            replaced = region_log_replaced(r.log, shard, c)
            outcome[0] = wan_table_apply(shard, c)
            if outcome[0] <= WAN_DESTROYED:
                region_log_stage(r.log, c, 0, replaced)
        wan_lock_release(&r.log.lock)
        if status != WAN_OK:
            return status
    if outcome[0] == WAN_DESTROYED and r.bell != NULL:
        region_note_tombstone(r, shard, c.tombstone_bytes)
    if c.stamp != proposed:
        wan_clock_see(r.clock, c.stamp)
    return WAN_OK


cdef inline void region_note_tombstone(region_core *r, wan_shard *shard, int64_t bytes) noexcept nogil:
    """Under the entry lock: tombstones take so many bytes more. Where they take too many, who destroys shrinks those that lie beside his, so that no bulk
    destroy outruns the housekeeper."""
    cdef uint64_t before
    if wan_falls_short(&r.tombstone_room, bytes):
        wan_signal_change(r.bell)
    if <int64_t>wan_read(<uint64_t *>&r.tombstone_room) < 0 and wan_table_is_worth_shrinking(shard):
        before = shard.tombstone_bytes + shard.shrunk_count * sizeof(wan_shrunk)
        if wan_table_shrink(shard) == WAN_OK:       # Without memory for it the housekeeper tries.
            wan_count(<uint64_t *>&r.tombstone_room, before - shard.shrunk_count * sizeof(wan_shrunk))


cdef wan_status region_change_here(region_core *r, wan_change *c, uint8_t flag, bint *found) noexcept nogil:
    """Takes the entry of a key out (WAN_FLAG_FORGET), or its value (WAN_FLAG_INVALID), on this member only: its version stays. The
    table and the log, both or neither. `found`: there was one, no tombstone. Takes and releases the entry lock."""
    cdef wan_shard *shard = wan_table_shard(&r.table, c.hash)
    cdef wan_entry *entry
    cdef wan_status status = WAN_OK
    wan_lock_take(&shard.lock)
    status = way_of(r.attached, True)
    if status != WAN_OK:
        found[0] = False
        wan_lock_release(&shard.lock)
        return status
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
                region_log_stage(r.log, c, flag, 0)
        if r.log != NULL:
            wan_lock_release(&r.log.lock)
    wan_lock_release(&shard.lock)
    return status


cdef void pass_entry_locks(const wan_table *table) noexcept nogil:
    """Under all entry locks in turn: after that nobody can hold what was read before."""
    for n in range(WAN_TABLE_SHARDS):
        wan_lock_take(&table.shards[n].lock)
        wan_lock_release(&table.shards[n].lock)


cdef wan_status region_copy(const region_core *r, region_core *to, uint64_t *cursor) noexcept nogil:
    """Every entry from shard `cursor` on, with its version and whatever its state, gets into another region and its log. Where that has no
    room, the same cursor goes on: what is there already is known by its version."""
    cdef wan_shard *shard
    cdef wan_entry *entry
    cdef wan_change c
    cdef wan_outcome outcome
    cdef uint64_t at
    cdef bint found
    cdef wan_status status = region_raise_mark(to, r.mark, 0) if r.mark > to.mark else WAN_OK
    if status == WAN_OK and r.let_go > to.let_go:
        status = region_raise_mark(to, r.let_go, WAN_FLAG_LET_GO)
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


cdef wan_status region_scan(const wan_table *table, uint64_t *cursor, uint64_t limit, wan_stage *packed) noexcept nogil:
    """Copies what is in the next shards, as RegionCore.scan says, until there are `limit` entries. Not WAN_OK: what is packed is in part."""
    cdef wan_shard *shard
    cdef wan_entry *entry
    cdef wan_status status = WAN_OK
    cdef uint8_t head[32]
    cdef uint64_t at
    cdef bint is_live
    while cursor[0] < WAN_TABLE_SHARDS and packed.count < limit and status == WAN_OK:
        shard = &table.shards[cursor[0]]
        wan_lock_take(&shard.lock)
        for at in range(shard.mask + 1 if shard.slots != NULL else 0):
            entry = shard.slots[at].entry
            if entry == NULL or entry.state == WAN_ENTRY_TOMBSTONE:
                continue
            status = wan_stage_reserve(packed, 32 + entry.key_length)
            if status != WAN_OK:
                break
            is_live = entry.state == WAN_ENTRY_LIVE
            memset(head, 0, 32)
            (<uint16_t *>head)[0] = entry.key_length
            head[2] = entry.key_form
            head[3] = entry.value_form
            (<uint32_t *>(head + 4))[0] = entry.value_length if is_live else 0xffffffff
            (<uint64_t *>(head + 8))[0] = wan_hash(wan_entry_value(entry), entry.value_length, 0) if is_live else 0
            (<uint64_t *>(head + 16))[0] = entry.stamp
            head[24] = entry.stamp_site
            wan_stage_put(packed, head, 32)
            wan_stage_put(packed, entry.bytes, entry.key_length)
            packed.count -= 1               # The two of them are one entry.
        wan_lock_release(&shard.lock)
        cursor[0] += 1
    return status


cdef wan_status region_raise_mark(region_core *r, uint64_t mark, uint8_t flag) noexcept nogil:
    """Destroys up to there are about to be forgotten, or let go (WAN_FLAG_LET_GO): from now on it is known that they may have been, and once its log is
    written on the disk too."""
    cdef wan_change c
    cdef wan_status status = WAN_OK
    memset(&c, 0, sizeof(c))
    c.stamp, c.operation, c.key_form, c.value_form = mark, WAN_DESTROY, WAN_FORM_BYTES, WAN_FORM_NONE
    if r.log != NULL:
        wan_lock_take(&r.log.lock)
        status = region_log_reserve(r.log, &c)
        if status == WAN_OK:
            region_log_stage(r.log, &c, WAN_FLAG_MARK | flag, 0)
        wan_lock_release(&r.log.lock)
    if status == WAN_OK:
        wan_set(&r.let_go, max(mark, r.let_go))
        if not flag:
            wan_set(&r.mark, mark)
    return status


cdef uint64_t region_newest_to_expire(const wan_table *table, uint64_t before_ms, uint64_t below) noexcept nogil:
    """The highest stamp of the tombstones that would go; 0: none would."""
    cdef uint64_t newest = 0
    for n in range(WAN_TABLE_SHARDS):
        wan_lock_take(&table.shards[n].lock)
        newest = max(newest, wan_table_newest_to_expire(&table.shards[n], before_ms, below))
        wan_lock_release(&table.shards[n].lock)
    return newest


cdef wan_status region_sample_stamps(const wan_table *table, wan_stage *stamps) noexcept nogil:
    """Of shrunk tombstones, shard by shard until there are enough: keys are spread over the shards by their hashes."""
    cdef wan_shard *shard
    cdef wan_status status = WAN_OK
    cdef uint64_t at
    for n in range(WAN_TABLE_SHARDS):
        shard = &table.shards[n]
        wan_lock_take(&shard.lock)
        for at in range(shard.shrunk_count):
            if status == WAN_OK:
                status = wan_stage_add(stamps, &shard.shrunk[at].stamp, 8)
        wan_lock_release(&shard.lock)
        if status != WAN_OK or stamps.count >= STAMPS_SAMPLED:
            break
    return status


cdef void region_tombstones(const wan_table *table, tombstone_counts *found) noexcept nogil:
    cdef wan_shard *shard
    memset(found, 0, sizeof(tombstone_counts))
    for n in range(WAN_TABLE_SHARDS):
        shard = &table.shards[n]
        wan_lock_take(&shard.lock)
        found.whole += shard.tombstones
        found.shrunk += shard.shrunk_count
        found.bytes += shard.tombstone_bytes + shard.shrunk_count * sizeof(wan_shrunk)
        wan_lock_release(&shard.lock)


cdef inline void origin_local(origin *from_, const region_core *r, wan_thread *maker) noexcept nogil:
    memset(from_, 0, sizeof(origin))
    from_.site = r.site
    from_.event_member = r.member
    maker.events += 1
    from_.event_thread, from_.event_sequence = maker.number, maker.events
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
    c.absent_below = 0
    c.flags = record.flags
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
