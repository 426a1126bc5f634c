# Owns the committer of a log: group commit by one thread, for a queue or a region. Here are the loop of that thread,
# its rounds, the role of the committer, the waits of callers, and what others see of the log. The owner supplies what a
# round writes (`log_owner`).
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset, strncpy
from cpython.exc cimport PyErr_CheckSignals
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *
from pywan._core.c_names cimport *
from pywan._core.log.disk_log cimport LogBudget
from pywan._core.log.log_pending cimport log_pending
from pywan._core.base.status cimport detail_text, raise_for


# Levels.

cdef uint8_t level_of(object synchronous) except 255:
    if synchronous == "written":
        return SYNCHRONOUS_WRITTEN
    return SYNCHRONOUS_SYNCED if synchronous else SYNCHRONOUS_NOT


cdef object level_name(uint8_t level):
    return "written" if level == SYNCHRONOUS_WRITTEN else level == SYNCHRONOUS_SYNCED


# Opening.

cdef void committer_init(log_committer *committer, const log_owner *owner, uint8_t synchronous,
                         uint32_t flush_ms) noexcept nogil:
    """Fills in what the owner says, before the log is opened. All other fields are zeros."""
    committer.owner = owner[0]
    committer.synchronous, committer.flush_ms = synchronous, flush_ms
    committer.pending_max = PENDING_BYTES_MAX
    committer.record_max = NO_LIMIT


cdef int committer_opened(log_committer *committer, wan_status status, str whose) except -1:
    """Shows the log to others after it was opened, or raises an error that says why it could not be opened."""
    if status == WAN_CORRUPT:
        from pywan.errors import DiskError
        raise DiskError(f"{whose}: the log is damaged: {detail_text()}; what is whole can be saved with `pywan "
                        "salvage disk-store --dir=STORE --to=NEW`, "
                        "nothing was changed")
    raise_for(status, whose)
    show(committer, WAN_OK)
    committer.record_max = wan_log_record_bytes(&committer.log)
    return 0


cdef int committer_share(log_committer *committer, LogBudget budget, uint64_t known, bint may_use_reserve) except -1:
    """Lets the log take its room out of a budget that counts `known` bytes of it already. None: the disk is its
    limit."""
    if budget is not None:
        committer.pending_max = min(<uint64_t>PENDING_BYTES_MAX, budget.budget.limit // PENDING_PART_OF_LIMIT)
        wan_log_share(&committer.log, &budget.budget, known, may_use_reserve)
        committer.record_max = wan_log_record_bytes(&committer.log)
    return 0


# The role.

cdef void committer_take_role(log_committer *committer) noexcept nogil:
    cdef uint32_t seen
    while True:
        seen = __atomic_load_n(&committer.changed, __ATOMIC_ACQUIRE)
        if committer_try_role(committer):
            return
        wan_wait_change(&committer.changed, seen, IDLE_MS)


cdef wan_status committer_round(log_committer *committer, uint32_t work) noexcept nogil:
    """Runs one round. The caller has the role. Not WAN_OK: the disk did not take all of it, and enqueues are refused
    until it does."""
    cdef wan_status status = committer.owner.round_of(committer.owner.itself, work)
    wan_lock_take(committer.owner.lock)
    show(committer, status)
    wan_lock_release(committer.owner.lock)
    if status != WAN_OK:
        committer_wake_waiters(committer)
    return status


cdef wan_status committer_write(log_committer *committer, const wan_part *parts, uint32_t count, bint syncs,
                                uint32_t *segment) noexcept nogil:
    """Writes a block for which there is room. `syncs`: it is durable when this returns, whatever the level."""
    if committer.synchronous == SYNCHRONOUS_WRITTEN and not syncs:
        return wan_log_write(&committer.log, parts, count, segment)
    return wan_log_commit(&committer.log, parts, count, segment)


cdef wan_status committer_write_now(log_committer *committer) noexcept nogil:
    """Writes what is pending, in a caller's thread, unless another thread has to do that."""
    cdef wan_status status
    if wan_flag_read(&committer.goes_first) or not committer_try_role(committer):
        return WAN_EMPTY
    # A caller that finds the thread ended must not touch the log: another process may have it.
    status = WAN_CLOSED if wan_flag_read(&committer.ended) else committer.owner.write_block_of(committer.owner.itself)
    committer_release_role(committer)
    if status != WAN_OK:
        committer_wake(committer)
    return status


cdef wan_status sync_now(log_committer *committer) noexcept nogil:
    """Brings onto the disk all that was written. The caller has the role."""
    cdef wan_status status = wan_log_sync(&committer.log)
    wan_lock_take(committer.owner.lock)
    show(committer, status)
    wan_lock_release(committer.owner.lock)
    committer_wake_waiters(committer)
    return status


cdef wan_status sync_behind(log_committer *committer) noexcept nogil:
    """The same in the committer's thread. Others have the role, and write, while the disk syncs. WAN_EMPTY: there was
    nothing to sync."""
    cdef wan_log_syncing sync
    cdef uint64_t through
    cdef wan_status status
    take_role_first(committer)
    status = wan_log_begin_sync(&committer.log, &sync)
    through = committer.durable
    if status == WAN_OK:
        committer.syncs_behind = True
        committer_release_role(committer)
        committer_wake_waiters(committer)
        status = wan_log_run_sync(&committer.log, &sync)
        take_role_first(committer)
        committer.syncs_behind = False
        status = wan_log_end_sync(&committer.log, &sync, status)
    if status != WAN_EMPTY:
        wan_lock_take(committer.owner.lock)
        if status == WAN_OK:
            committer.synced = max(committer.synced, through)
        show(committer, status)
        wan_lock_release(committer.owner.lock)
    committer_release_role(committer)
    if status != WAN_EMPTY:
        committer_wake_waiters(committer)
    return status


cdef void take_role_first(log_committer *committer) noexcept nogil:
    """Takes the role for the committer's thread. Callers that write leave the role to it meanwhile. Otherwise it might
    never get the role."""
    wan_flag_set(&committer.goes_first, 1)
    committer_take_role(committer)
    wan_flag_set(&committer.goes_first, 0)


cdef wan_status committer_once(log_committer *committer, uint32_t work) noexcept nogil:
    """Runs one round in the caller's thread."""
    cdef wan_status status
    cdef uint32_t seen
    committer_take_role(committer)
    while committer.syncs_behind:
        seen = __atomic_load_n(&committer.changed, __ATOMIC_ACQUIRE)
        committer_release_role(committer)
        wan_wait_change(&committer.changed, seen, IDLE_MS)        # The end of the sync changes `changed`.
        committer_take_role(committer)
    status = committer_round(committer, work)
    if status == WAN_OK and committer.synchronous == SYNCHRONOUS_WRITTEN:
        status = sync_now(committer)
    committer_release_role(committer)
    return status


# The thread.

cdef void committer_run(log_committer *committer) noexcept nogil:
    """The loop of the committer's thread. It runs a round whenever something is pending, after `flush_ms` where no
    caller waits. It returns when it was told to stop and there is nothing left to write, or the disk has taken nothing
    for long."""
    cdef uint32_t seen, work
    cdef uint64_t failing_since = 0
    cdef bint stopping, gives_up = False, syncs
    cdef wan_status status
    while True:
        seen = __atomic_load_n(&committer.work, __ATOMIC_ACQUIRE)
        stopping = wan_flag_read(&committer.stop) != 0
        wan_flag_set(&committer.asked, 0)
        status = WAN_OK
        take_role_first(committer)
        # Set before the look: then whatever becomes pending after the look signals the thread.
        wan_flag_set(&committer.waiting, 1)
        work = committer.owner.work_of(committer.owner.itself, stopping)
        syncs = (committer.synchronous == SYNCHRONOUS_WRITTEN
                 and (work & WORK_NOW or committer.log.synced_commit != committer.log.commit))
        if work & WORK_NOW or syncs:
            wan_flag_set(&committer.waiting, 0)
        if work & WORK_NOW:
            status = committer_round(committer, work)
        elif stopping:
            if syncs:
                status = sync_now(committer)
            if status == WAN_OK:
                committer.owner.seal(committer.owner.itself)           # If this fails, the log is as after a crash.
                gives_up = True
        else:
            if work & WORK_IDLE:
                committer_round(committer, work)
            committer.owner.rest(committer.owner.itself)
        if status != WAN_OK and stopping:
            gives_up = committer.log.broken != NULL or lost_patience(1, &failing_since, wan_monotonic_us())
        if gives_up:
            wan_flag_set(&committer.ended, 1)       # Before others can have the role: then they leave the log alone.
        committer_release_role(committer)
        if gives_up:
            break
        if committer.synchronous == SYNCHRONOUS_WRITTEN:
            committer_wake_waiters(committer)       # Callers that left the role to this thread did not ask for it.
        if syncs and status == WAN_OK:
            status = sync_behind(committer)
            if status == WAN_EMPTY:
                status = WAN_OK
        if status != WAN_OK:
            # The thread tries again after this, or when something comes that may pass what waits for room.
            seen = __atomic_load_n(&committer.work, __ATOMIC_ACQUIRE)
            wan_flag_set(&committer.waiting, 1)
            if committer.tried == 0 or committer_given(committer) == committer.tried:
                wan_wait_change(&committer.work, seen, IDLE_MS)
            wan_flag_set(&committer.waiting, 0)
            continue
        failing_since = 0
        if syncs:
            if not stopping and not wan_flag_read(&committer.asked):
                wan_wait_change(&committer.work, seen, committer.flush_ms)
        elif not work & WORK_NOW:
            wan_wait_change(&committer.work, seen, IDLE_MS)
            wan_flag_set(&committer.waiting, 0)
            if (committer.synchronous != SYNCHRONOUS_SYNCED
                    and __atomic_load_n(&committer.work, __ATOMIC_ACQUIRE) != seen
                    and not wan_flag_read(&committer.stop)
                    and not wan_flag_read(&committer.asked)):
                flush_later(committer)
    committer_wake_waiters(committer)


cdef void flush_later(log_committer *committer) noexcept nogil:
    """Gives other records `flush_ms` to join the first record of a group. Callers that write do that themselves
    meanwhile."""
    cdef uint32_t seen = __atomic_load_n(&committer.work, __ATOMIC_ACQUIRE)
    if not wan_flag_read(&committer.asked):         # A caller sets `asked` before it changes `work`.
        wan_wait_change(&committer.work, seen, committer.flush_ms)


cdef void committer_stop(log_committer *committer) noexcept nogil:
    """Makes the log take nothing more. The thread ends once everything is on the disk, or cannot get there."""
    wan_lock_take(committer.owner.lock)
    wan_flag_set(&committer.stop, 1)
    wan_lock_release(committer.owner.lock)
    committer_wake(committer)


cdef inline bint lost_patience(int failing, uint64_t *failing_since, uint64_t now) noexcept nogil:
    """Whether the disk has taken nothing for longer than a caller should wait for it."""
    if not failing:
        failing_since[0] = 0
    elif failing_since[0] == 0:
        failing_since[0] = now
    return failing_since[0] != 0 and now - failing_since[0] >= DISK_PATIENCE_US


# What others see of the log.

cdef void show(log_committer *committer, wan_status status) noexcept nogil:
    """Shows the state of the log to others. The caller has the role and the owner's lock. If `status` is not WAN_OK,
    the detail says why."""
    cdef log_view *view = &committer.view
    if committer.log.synced_commit == committer.log.commit:
        committer.synced = committer.durable
    view.bytes, view.commits, view.segments = committer.log.bytes, committer.log.commit, committer.log.count
    view.failing = <int>status
    if status == WAN_OK:
        view.failing_since_us = 0
    elif view.failing_since_us == 0:
        view.failing_since_us = wan_monotonic_us()
    if status == WAN_NO_MEMORY:     # Some of these come without a detail.
        strncpy(view.reason, b"out of memory while the log was written", sizeof(view.reason) - 1)
    elif status != WAN_OK:
        memcpy(view.reason, wan_detail, sizeof(view.reason))


cdef void committer_made_durable(log_committer *committer, uint64_t given) noexcept nogil:
    """Notes how many of the records given are durable, after a round. Under the owner's lock. The caller then calls
    `committer_wake_waiters` without the lock."""
    committer.durable = given
    committer.passed = committer.tried = 0
    wan_buffer_close(&committer.left)
    show(committer, WAN_OK)


cdef void committer_note_passed(log_committer *committer, uint64_t given, wan_buffer *left) noexcept nogil:
    """Notes that all records up to number `given` are on the disk, but for those whose numbers `left` has. It takes
    `left` over. Under the owner's lock; then as `committer_made_durable`."""
    wan_buffer_close(&committer.left)
    committer.left = left[0]
    memset(left, 0, sizeof(wan_buffer))
    committer.passed = given


cdef inline bint has_passed(const log_committer *committer, uint64_t first, uint64_t last) noexcept nogil:
    """Whether the records with the numbers `first` to `last` are on the disk, though others may not be. Under the
    owner's lock."""
    cdef const uint64_t *left = <const uint64_t *>committer.left.bytes
    cdef uint64_t low = 0, high = committer.left.used // sizeof(uint64_t), count = high, middle
    if last > committer.passed:
        return False
    while low < high:
        middle = (low + high) // 2
        if left[middle] < first:
            low = middle + 1
        else:
            high = middle
    return low == count or left[low] > last


cdef uint64_t committer_left(log_committer *committer) noexcept nogil:
    """How many records given are not as durable as the level says."""
    cdef uint64_t count
    wan_lock_take(committer.owner.lock)
    count = count_left(committer)
    wan_lock_release(committer.owner.lock)
    return count


cdef inline uint64_t count_left(const log_committer *committer) noexcept nogil:
    if committer.passed:
        return committer.left.used // sizeof(uint64_t) + committer.given - committer.passed
    return committer.given - committer.durable


cdef wan_status committer_refuse(const log_committer *committer, const log_pending *records,
                                 uint64_t length) noexcept nogil:
    """Says why `length` bytes cannot become pending. The log may take them later, unless the record is too long, or a
    check of our own failed. The detail says which."""
    cdef const log_view *view = &committer.view
    if wan_flag_read(&committer.stop):
        wan_note(WAN_CLOSED, "the log is closed")
        return WAN_CLOSED
    if view.failing == WAN_BROKEN:
        wan_note(WAN_BROKEN, "the log is not written any more: %s", view.reason)
        return WAN_BROKEN
    if view.failing:
        wan_note(<wan_status>view.failing if view.failing == WAN_FULL or view.failing == WAN_NO_MEMORY else WAN_IO,
                 "the log is not written now: %s", view.reason)
        return WAN_FULL
    if length > committer.record_max:
        wan_note(WAN_TOO_LARGE, "%llu bytes are over the %llu that a disk store of this size takes of one change; "
                                "give the disk store more room",
                 <unsigned long long>length, <unsigned long long>committer.record_max)
        return WAN_TOO_LARGE
    wan_note(WAN_FULL, "the disk is slower than the changes come; %llu bytes wait for it",
             <unsigned long long>records.pending.used)
    return WAN_FULL


cdef object failure_of(const log_view *view):
    """Why the disk takes nothing. None: it takes what comes."""
    return (<bytes>view.reason).decode("utf-8", "replace") if view.failing else None


cdef dict committer_state(log_committer *committer):
    """Sizes of the log, how many records are pending or wait for a sync, and why writing fails now (None: it does
    not)."""
    cdef log_view view
    cdef uint64_t waits, unsynced
    with nogil:
        wan_lock_take(committer.owner.lock)
        view = committer.view
        waits, unsynced = count_left(committer), committer.durable - committer.synced
        wan_lock_release(committer.owner.lock)
    return {"bytes": view.bytes, "segments": view.segments, "commits": view.commits, "pending": waits,
            "unsynced": unsynced, "failing": failure_of(&view)}


cdef uint64_t committer_failing_since(log_committer *committer, int but) noexcept nogil:
    """Since when the log takes nothing. 0: it takes what comes, or it fails with the status `but`."""
    cdef uint64_t since
    wan_lock_take(committer.owner.lock)
    since = committer.view.failing_since_us if committer.view.failing != but else 0
    wan_lock_release(committer.owner.lock)
    return since


cdef uint64_t committer_given(log_committer *committer) noexcept nogil:
    """How many records were given to the log so far: all that is pending now is on the disk once so many records
    are."""
    cdef uint64_t given
    wan_lock_take(committer.owner.lock)
    given = committer.given
    wan_lock_release(committer.owner.lock)
    return given


cdef bint committer_has_written(log_committer *committer, uint64_t given) noexcept nogil:
    """Whether `given` records are as durable as the level says."""
    cdef bint has
    wan_lock_take(committer.owner.lock)
    has = committer.durable >= given or has_passed(committer, given, given)
    wan_lock_release(committer.owner.lock)
    return has


# Callers that wait.

cdef disk_wait committer_begin_wait(log_committer *committer, int what, uint64_t limit_us) noexcept nogil:
    """Begins a wait for all that is pending now."""
    cdef disk_wait wait
    wait.what, wait.failing_since_us, wait.deadline_us = what, 0, wan_monotonic_us() + limit_us
    wait.wanted = wait.last = committer_given(committer)
    wait.first = 1
    return wait


cdef int wait_slice(log_committer *committer, disk_wait *wait) noexcept nogil:
    """One slice of a wait. WAIT_DONE: what the caller waits for is on the disk. WAIT_IN_VAIN: the deadline has passed,
    or the disk has taken nothing for long. If it is enough that the log is written, the caller writes it here."""
    cdef uint64_t now = wan_monotonic_us(), slice_end = now + WAIT_SLICE_US
    cdef int failing
    cdef uint32_t seen
    cdef bint done
    while True:
        seen = __atomic_load_n(&committer.changed, __ATOMIC_ACQUIRE)
        wan_lock_take(committer.owner.lock)
        if wait.what == FOR_EVENTS:
            done = committer.durable >= wait.wanted or has_passed(committer, wait.first, wait.last)
        elif wait.what == FOR_DISK:
            done = committer.synced >= wait.wanted or has_passed(committer, wait.first, wait.last)
        else:
            done = committer.owner.has_reached(committer.owner.itself, wait)
        failing = committer.view.failing
        wan_lock_release(committer.owner.lock)
        now = wan_monotonic_us()
        if done:
            return WAIT_DONE
        if (now >= wait.deadline_us or wan_flag_read(&committer.ended) or failing == WAN_BROKEN
                or lost_patience(failing, &wait.failing_since_us, now)):
            return WAIT_IN_VAIN
        if now >= slice_end:
            return WAIT_GOES_ON
        if committer.synchronous == SYNCHRONOUS_WRITTEN and not failing:
            if wait.what == FOR_DISK:
                committer_wake(committer)
            elif committer_write_now(committer) == WAN_OK:
                continue
        wan_wait_change(&committer.changed, seen, <uint32_t>(WAIT_SLICE_US // 1000))


cdef int committer_wait(log_committer *committer, disk_wait *wait, str whose, str meanwhile) except -1:
    """Returns when what the caller waits for is on the disk. Otherwise an error says `whose` log it is and what happens
    `meanwhile`. Ctrl-C ends the wait: what waits for the disk stays pending."""
    cdef int found = WAIT_GOES_ON
    while found == WAIT_GOES_ON:
        with nogil:
            found = wait_slice(committer, wait)
        if found == WAIT_GOES_ON:
            PyErr_CheckSignals()
    if found == WAIT_IN_VAIN:
        raise not_on_disk(committer, whose, meanwhile)
    return 0


cdef object not_on_disk(log_committer *committer, str whose, str meanwhile):
    from pywan.errors import DiskError, InternalError
    cdef log_view view
    with nogil:
        wan_lock_take(committer.owner.lock)
        view = committer.view
        wan_lock_release(committer.owner.lock)
    reason = failure_of(&view)
    if view.failing == WAN_BROKEN:
        return InternalError(f"{whose}: not on the disk, and never will be: {reason}")
    if reason is None:
        reason = "its log was closed" if wan_flag_read(&committer.ended) else "the disk did not answer"
    return DiskError(f"{whose}: not on the disk yet: {reason}; {meanwhile}")
