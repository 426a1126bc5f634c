# Owns the callbacks of a region as compiled code calls them: the lock under which the callbacks run, the bound methods
# of the listeners, and the event that listeners get (docs/decisions/0117).
cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport (
    NOWAIT_LOCK, PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_get_thread_ident,
    PyThread_release_lock)
from pywan._core.c_base cimport *
from pywan._core.c_python cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_replication cimport *
from pywan._core.base.gil cimport gil_back, gil_may_go
from pywan._core.region.changelog cimport Changelog
from pywan._core.region.put cimport write_record
from pywan._core.region.region_state cimport origin, region_core
from pywan._core.values.codec cimport encode, encode_key, encoded
from pywan._core.values.tagged cimport show

cdef tuple OPERATIONS = ("create", "update", "destroy")
cdef tuple METHODS = ("after_create", "after_update", "after_destroy")


# The event.

@cython.freelist(64)
@cython.auto_pickle(False)
cdef class EntryEvent:
    """The event that a `CacheListener` gets after a change.

    Key, values and callback argument are decoded when they are read. The event owns its bytes: it may be kept after the
    listener has returned, and read in any thread.
    """

    def __init__(self, region, str operation not None, key, old_value=None, new_value=None, callback_argument=None,
                 bint is_origin_remote=False, int origin_site=0, event_id=(0, 0, 0), bint possible_duplicate=False):
        cdef encoded key_, old_, new_, argument_
        cdef wan_record *record
        cdef uint32_t member, thread
        cdef uint64_t sequence
        member, thread, sequence = event_id
        number = OPERATIONS.index(operation)
        _key_holder = encode_key(key, &key_)
        _new_holder = encode(None if number == WAN_DESTROY else new_value, &new_)
        _argument_holder = encode(callback_argument, &argument_)
        _old_holder = encode(old_value, &old_)
        if self.record != NULL:     # Behind the code of users that encodes values.
            raise TypeError("an event does not change")
        event_allocate(self, wan_record_size(key_.length, new_.length, argument_.length, 0))
        record = wan_record_begin(<uint8_t *>self.record, self.bytes, &wan_no_head)
        record.key_length, record.key_form = <uint16_t>key_.length, key_.form
        record.value_length, record.value_form = new_.length, new_.form
        record.callback_length, record.callback_form = <uint16_t>argument_.length, argument_.form
        record.operation, record.origin_site = <uint8_t>number, <uint8_t>origin_site
        record.event_member, record.event_thread, record.event_sequence = member, thread, sequence
        record.flags = WAN_FLAG_REPEATED if possible_duplicate else 0
        wan_record_fill(<uint8_t *>record, key_.data, new_.data, argument_.data, NULL)
        if old_value is not None and not keep_old(&self.old, old_.data, old_.length, old_.form):
            raise MemoryError("no memory for an event")
        self.own_site = record.origin_site ^ is_origin_remote
        self.face = region

    def __dealloc__(self):
        free(self.record)
        free(self.old.bytes)

    @property
    def region(self):
        """The `Region`."""
        return self.face

    @property
    def operation(self):
        """The operation: "create", "update" or "destroy"."""
        return OPERATIONS[head_of(self).operation]

    @property
    def key(self):
        """The key."""
        if self.seen_key is None:
            self.seen_key = show(head_of(self).key_form, wan_record_key(head_of(self)), head_of(self).key_length)
        return self.seen_key

    @property
    def old_value(self):
        """The value before the change. None: there was none."""
        if self.seen_old is None and self.old.has_value:
            self.seen_old = show(self.old.form, self.old.bytes, self.old.length)
        return self.seen_old

    @property
    def new_value(self):
        """The value after the change. None for a destroy."""
        if self.seen_new is None and head_of(self).operation != WAN_DESTROY:
            self.seen_new = show(head_of(self).value_form, wan_record_value(head_of(self)), head_of(self).value_length)
        return self.seen_new

    @property
    def callback_argument(self):
        """The object that the caller gave with the change."""
        if self.seen_argument is None:
            self.seen_argument = show(head_of(self).callback_form, wan_record_callback(head_of(self)),
                                      head_of(self).callback_length)
        return self.seen_argument

    @property
    def is_origin_remote(self):
        """Whether another site made the change."""
        return head_of(self).origin_site != self.own_site

    @property
    def origin_site(self):
        """The id of the site that made the change."""
        return head_of(self).origin_site

    @property
    def event_id(self):
        """The event's identity, an `EventSequenceID`. Filters and listeners get the same one, at every site."""
        from pywan.events import EventSequenceID
        return EventSequenceID(head_of(self).event_member, head_of(self).event_thread, head_of(self).event_sequence)

    @property
    def possible_duplicate(self):
        """Whether a listener may have been told of the change before, at this member or another one."""
        return head_of(self).flags & WAN_FLAG_REPEATED != 0

    def __repr__(self):
        return f"<{self.operation} of {self.key!r:.80} in {getattr(self.face, 'name', '?')}>"


cdef inline wan_record *head_of(EntryEvent event) except NULL:
    if event.record == NULL:
        raise TypeError("the event was not initialised")
    return event.record


cdef int event_allocate(EntryEvent event, uint64_t bytes) except -1:
    event.record = <wan_record *>malloc(bytes)
    if event.record == NULL:
        raise MemoryError("no memory for an event")
    event.bytes = bytes
    return 0


cdef bint keep_old(old_value *old, const uint8_t *value, uint32_t length, uint8_t form) noexcept nogil:
    """Copies a value. False: no memory."""
    if length:
        old.bytes = <uint8_t *>malloc(length)
        if old.bytes == NULL:
            return False
        memcpy(old.bytes, value, length)
    old.length, old.form, old.has_value, old.is_there = length, form, True, True
    return True


cdef EntryEvent new_event(object face, uint8_t own_site, uint64_t bytes):
    """An event with room for a record of so many bytes. The caller writes the record."""
    cdef EntryEvent event = EntryEvent.__new__(EntryEvent)
    event_allocate(event, bytes)
    event.face, event.own_site = face, own_site
    return event


cdef void write_event(EntryEvent event, const region_core *region, const wan_change *change, const origin *from_,
                      uint32_t operation) noexcept:
    """Writes the record of an event that `event_for` has made for this change."""
    write_record(<uint8_t *>event.record, event.bytes, region, change, operation, from_, NULL, 0, change.value,
                 change.value_length, change.value_form)


# The lock.

cdef class CallbackLock:
    """A region's callbacks run under the lock, so they handle one change at a time. The lock is re-entrant."""

    def __cinit__(self, str region not None):
        self.region = region
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError(f"region {region!r}: no memory for a lock")

    def __dealloc__(self):
        if self.lock != NULL:
            PyThread_free_lock(self.lock)
        wan_buffer_close(&self.outer)

    cdef int enter(self) except -1:
        global wan_callback_held
        cdef unsigned long me = <unsigned long>PyThread_get_thread_ident()
        if self.depth == 0 or self.owner != me:
            if not PyThread_acquire_lock(self.lock, NOWAIT_LOCK):
                self.wait()
            self.owner = me
        if wan_buffer_add(&self.outer, &wan_callback_held, sizeof(void *)) != WAN_OK:
            if self.depth == 0:
                PyThread_release_lock(self.lock)
            raise MemoryError(f"region {self.region!r}: no memory to enter its callbacks; nothing was changed")
        self.depth += 1
        wan_callback_held = <void *>self
        return 0

    cdef int wait(self) except -1:
        """Waits for the lock without the GIL. Ctrl-C ends the wait."""
        cdef int state
        while True:
            with nogil:
                state = PyThread_acquire_lock_timed(self.lock, -1, 1)
            if state == PY_LOCK_ACQUIRED:
                return 0
            PyErr_CheckSignals()

    cdef void leave(self) noexcept:
        global wan_callback_held
        self.outer.used -= sizeof(void *)
        wan_callback_held = (<void **>(self.outer.bytes + self.outer.used))[0]
        self.depth -= 1
        if self.depth == 0:
            PyThread_release_lock(self.lock)

    def __enter__(self):
        self.enter()

    def __exit__(self, kind, error, trace):
        if self.depth == 0 or self.owner != <unsigned long>PyThread_get_thread_ident():
            raise RuntimeError(f"region {self.region!r}: this thread does not hold the callback lock")
        self.leave()


def region_of_callback():
    """The name of the region whose callbacks this thread runs, the innermost one. None: the thread runs none."""
    return (<CallbackLock>wan_callback_held).region if wan_callback_held != NULL else None


# The listeners.

cdef class RegionCallbacks:
    """The compiled half of the path that a region's changes take through user code. `region` has the `face` that events
    show."""

    def __cinit__(self, region not None, int site, *args):
        self.region, self.site = region, <uint8_t>site
        self.lock = CallbackLock(region.name)
        self.listeners, self.list_methods, self.methods = (), (), ((), (), ())
        self.listed = []

    def set_listeners(self, listeners, is_own):
        """Replaces the listeners, and looks up their methods. `is_own(listener, name)` returns whether the listener has
        a method of its own: the methods of the base class do nothing, and are not called. The caller holds the lock."""
        cdef list methods = [[], [], []], lists = []
        for listener in listeners:
            if is_own(listener, "after_events"):
                lists += (listener, listener.after_events)
                continue
            for n in range(3):
                if is_own(listener, METHODS[n]):
                    methods[n] += (listener, getattr(listener, METHODS[n]))
        self.methods, self.list_methods = tuple(map(tuple, methods)), tuple(lists)
        self.listeners = tuple(listeners)

    cdef EntryEvent event_for(self, const wan_change *change, const origin *from_):
        """An event with room for the record of a change. None: no listener will be told of the change."""
        if change.operation == WAN_DESTROY:
            if not hears(self, WAN_DESTROY):
                return None
        elif not (hears(self, WAN_UPDATE) or hears(self, WAN_CREATE)):
            return None
        return new_event(self.region.face, self.site,
                         wan_record_size(change.key_length, change.value_length, from_.callback_length, 0))

    def tell_event(self, EntryEvent event not None):
        """Calls the listeners for an event. The caller holds the lock, unless members share the region."""
        head_of(event)
        self.tell(event)

    cdef int tell(self, EntryEvent event) except -1:
        cdef tuple methods = self.methods[event.record.operation]
        cdef Py_ssize_t n
        if self.list_methods:       # First: the change that a listener makes is behind this one.
            self.listed.append(event)
        try:
            for n in range(0, len(methods), 2):
                self.call(methods[n], methods[n + 1], event, event)
        finally:
            if self.listed and (self.lists == 0 or len(self.listed) >= EVENTS_TOGETHER):
                self.tell_listed()
        return 0

    cdef int call(self, object listener, object method, object argument, EntryEvent event) except -1:
        """Calls a method of a listener. If the method fails, the log names `event`."""
        self.told = listener
        try:
            method(argument)
        except BaseException as error:
            self.log_listener_failure(error, listener, event, argument)
        finally:
            self.told = None
        return 0

    cdef int tell_list(self, list events) except -1:
        cdef tuple methods = self.list_methods
        cdef Py_ssize_t n
        for n in range(0, len(methods), 2):
            self.call(methods[n], methods[n + 1], list(events), events[0])
        return 0

    cdef int open_list(self) except -1:
        """From now on events are told in lists. The caller holds the lock until `close_list`."""
        self.lists += 1
        return 0

    cdef int tell_listed(self) except -1:
        """Tells the events of the open list, and then those that listeners make meanwhile: each listener gets the lists
        in one order."""
        cdef list events
        if self.is_telling:
            return 0
        self.is_telling = True
        try:
            while self.listed:
                events, self.listed = self.listed, []
                self.tell_list(events)
        finally:
            self.is_telling = False
        return 0

    cdef int close_list(self) except -1:
        try:
            if self.lists == 1:
                self.tell_listed()
        finally:
            self.lists -= 1
        return 0

    def notify_listeners(self, Changelog changelog not None, uint32_t timeout_ms):
        """Notifies the listeners of replicated changes that this member made or followed, as long as changes are due,
        up to a limit. Returns how many. Waits up to `timeout_ms` for the first one. A single thread calls the method,
        without the lock: a listener may wait for a second member, and a listener of the second member for the first."""
        cdef const wan_notification *item
        cdef const wan_changelog_entry *entry
        cdef const wan_record *record
        cdef const uint8_t *old
        cdef EntryEvent event
        cdef uint32_t told = 0
        cdef bint found
        if wan_changelog_notifications(&changelog.changelog) == NULL:
            return 0
        while told < EVENTS_TOGETHER:
            if not notification_next(changelog):
                if told or not timeout_ms:
                    break
                with nogil:
                    found = wan_notifications_next(&changelog.changelog, &changelog.notifications, timeout_ms)
                if not found:
                    break
            told += 1
            item = <const wan_notification *>changelog.notifications.bytes
            old = <const uint8_t *>(item + 1)
            entry = <const wan_changelog_entry *>(old + wan_align8(item.old_length))
            if not hears(self, entry.outcome):
                continue
            record = <const wan_record *>wan_changelog_entry_record(entry)
            event = new_event(self.region.face, self.site, wan_record_length(record))
            memcpy(event.record, record, event.bytes)
            event.record.operation = entry.outcome
            event.record.flags = WAN_FLAG_REPEATED if item.may_repeat else 0
            if item.has_old and not keep_old(&event.old, old, item.old_length, item.old_form):
                raise MemoryError("no memory for an event")
            self.tell(event)
        return told


cdef bint notification_next(Changelog changelog) noexcept nogil:
    """As `wan_notifications_next`, without a wait. The caller has the GIL, and most often a notification is pending."""
    cdef bint found
    gil_may_go()
    found = wan_notifications_next(&changelog.changelog, &changelog.notifications, 0)
    gil_back()
    return found
