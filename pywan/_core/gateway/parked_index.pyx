# Owns `ParkedIndex`: the index of a member over the parked events of a sender shared by several members. The index
# names events by marks, compares them with the events of another member, copies, adopts and replays events
# (docs/decisions/0108).
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport bsearch, qsort
from libc.string cimport memset
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_store cimport *
from pywan._core.queue.event_queue cimport EventQueue, check_whole
from pywan._core.queue.queue cimport gateway_queue, queue_append_copy, queue_can_read, queue_partition_of
from pywan._core.base.status cimport raise_for
from pywan._core.values.names cimport region_number


cdef enum:
    LOOKED_MAX = 256        # Limit of records read under one hold of the queue's lock.
    MARK_BYTES = 16

PARKED_MARK_BYTES = MARK_BYTES

cdef struct led_region:
    # The buckets of a region: one byte for each bucket, 1 if the member leads the bucket's parked events.
    uint16_t region
    uint32_t buckets
    const uint8_t *leads

cdef struct copied_head:
    # In front of each record between members. The layout is a format.
    uint32_t reason, reserved


cdef int mark_order(const void *a, const void *b) noexcept nogil:
    cdef const wan_event_mark *one = <const wan_event_mark *>a
    cdef const wan_event_mark *other = <const wan_event_mark *>b
    if one.low != other.low:
        return -1 if one.low < other.low else 1
    return -1 if one.high < other.high else one.high > other.high


cdef int event_order(const void *a, const void *b) noexcept nogil:
    # By version, so that the events of a key stay in order.
    cdef const wan_parked_event *one = <const wan_parked_event *>a
    cdef const wan_parked_event *other = <const wan_parked_event *>b
    cdef int order = wan_version_order(one.stamp, one.stamp_site, other.stamp, other.stamp_site)
    return order if order else mark_order(&one.mark, &other.mark)


cdef inline bytes bytes_of(const wan_buffer *buffer):
    return PyBytes_FromStringAndSize(<const char *>buffer.bytes, <Py_ssize_t>buffer.used)


cdef int check_marks(bytes marks) except -1:
    if len(marks) % MARK_BYTES:
        from pywan.errors import ProtocolError
        raise ProtocolError(f"{len(marks)} bytes of marks of parked events are no multiple of {MARK_BYTES}")
    return 0


cdef int check_buckets(bytes buckets) except -1:
    if not buckets or len(buckets) > 4096:
        from pywan.errors import ProtocolError
        raise ProtocolError(f"a region has no {len(buckets)} buckets")
    return len(buckets)


def of_region(bytes record, str region):
    """Returns the record of another member with the local number of the region. ProtocolError: the bytes are no
    record."""
    cdef bytes own = PyBytes_FromStringAndSize(PyBytes_AS_STRING(record), len(record))
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(own)
    if wan_record_check(at, len(own)) != WAN_OK:
        from pywan.errors import ProtocolError
        raise ProtocolError("what came of a parked event is no record")
    (<wan_record *>at).region = region_number(region)
    return own


def place_in_order(bytes record):
    """Returns the sort key of a record in the order of `ParkedIndex`: by version, and then by mark."""
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(record)
    raise_for(wan_record_check(at, len(record)), "parked events")
    cdef const wan_record *one = <const wan_record *>at
    cdef wan_event_mark mark = wan_mark_of(one, wan_key_hash(wan_record_key(one), one.key_length, one.key_form))
    return one.stamp, one.stamp_site, mark.low, mark.high


cdef class ParkedIndex:
    """An index of `parked`, the queue of the parked events of a sender. Only one thread at a time may call the index.
    Other threads may append to the queue meanwhile: `refresh` finds the appended events. No other thread removes events
    while the index works. Events removed before are noted as left.

    `led` is a list of (region, one byte for each bucket: 1 if the member leads the bucket's parked events). The member
    leads all parked events of regions outside the list. *Led events* are the events in these buckets and regions.
    """

    cdef EventQueue parked
    cdef gateway_queue *gateway
    cdef wan_parked table
    cdef uint64_t scanned[WAN_PARK_PARTITIONS]      # The table has the records through these sequences.

    def __cinit__(self, EventQueue parked not None):
        self.parked, self.gateway = parked, parked.gateway

    def __dealloc__(self):
        wan_parked_close(&self.table)

    @property
    def replayed(self):
        """The number of replayed events: queued again, and still parked until they have left the queue."""
        return self.table.replayed

    def refresh(self):
        """Adds the events parked since the last call. Events removed from the queue by other threads are noted as
        left."""
        cdef wan_status status = WAN_OK
        cdef bint is_whole = False
        check_whole(self.parked)
        with nogil:
            while status == WAN_OK and not is_whole:
                status = self.look(&is_whole)
        raise_for(status, f"parked events of queue {self.parked.name!r}")

    cdef wan_status look(self, bint *is_whole) noexcept nogil:
        """Reads some records. *is_whole: there are no more."""
        cdef wan_partition *partition
        cdef uint64_t sequence
        cdef uint32_t p, looked = 0
        cdef wan_status status = WAN_OK
        wan_lock_take(&self.gateway.lock)
        for p in range(<uint32_t>WAN_PARK_PARTITIONS):
            partition = &self.gateway.queue.partitions[p]
            while status == WAN_OK and looked < LOOKED_MAX:
                sequence = max(self.scanned[p], partition.removed)
                sequence = wan_queue_next_live(partition, sequence + 1, partition.appended)
                if sequence == 0:
                    self.scanned[p] = partition.appended
                    break
                looked += 1
                status = WAN_IO if not queue_can_read(self.gateway, p, sequence) else self.note(p, sequence)
                if status == WAN_OK:
                    self.scanned[p] = sequence
        is_whole[0] = looked < LOOKED_MAX
        if (status == WAN_OK and is_whole[0]
                and self.table.here + self.table.replayed != self.gateway.queue.events):
            status = self.note_gone()
        wan_lock_release(&self.gateway.lock)
        return status

    cdef bint is_there(self, const wan_parked_event *event) noexcept nogil:
        """Returns whether the queue still has the record of an event. The caller holds the queue's lock."""
        cdef const wan_partition *partition = &self.gateway.queue.partitions[event.partition]
        return (event.sequence > partition.removed
                and wan_queue_at(&self.gateway.queue, partition, event.sequence) != NULL)

    cdef wan_status note(self, uint32_t partition, uint64_t sequence) noexcept nogil:
        """Adds one record to the index. The caller holds the queue's lock. The second record of an event is removed
        from the queue, and so is every record of a left event."""
        cdef const wan_record *record = wan_queue_at(&self.gateway.queue, &self.gateway.queue.partitions[partition],
                                                     sequence)
        cdef uint64_t hash = wan_key_hash(wan_record_key(record), record.key_length, record.key_form)
        cdef wan_event_mark mark = wan_mark_of(record, hash)
        cdef wan_status status = wan_parked_reserve(&self.table)
        cdef wan_parked_event *event
        if status != WAN_OK:
            return status
        event = wan_parked_find(&self.table, &mark)
        if event != NULL and (event.state == WAN_PARKED_LEFT
                              or event.state == WAN_PARKED_HERE and self.is_there(event)):
            wan_queue_make_hole(&self.gateway.queue, partition, sequence, WAN_HOLE_DROPPED)
            return WAN_OK
        if event != NULL and self.is_there(event):      # A replayed event that failed again.
            wan_queue_make_hole(&self.gateway.queue, event.partition, event.sequence, WAN_HOLE_DROPPED)
        if event == NULL:
            event = wan_parked_add(&self.table, &mark)
        wan_parked_set(&self.table, event, WAN_PARKED_HERE)
        event.key_hash, event.stamp, event.stamp_site = hash, record.stamp, record.stamp_site
        event.region, event.partition, event.sequence = record.region, partition, sequence
        return WAN_OK

    cdef wan_status note_gone(self) noexcept nogil:
        """Notes events removed from the queue by other threads. Under the queue's lock."""
        cdef wan_buffer gone
        cdef wan_parked_event *event
        cdef wan_status status = WAN_OK
        cdef uint64_t n
        memset(&gone, 0, sizeof(gone))
        for n in range(self.table.capacity):
            event = &self.table.events[n]
            if ((event.state == WAN_PARKED_HERE or event.state == WAN_PARKED_REPLAYED) and not self.is_there(event)
                    and status == WAN_OK):
                status = wan_buffer_add(&gone, &event.mark, sizeof(event.mark))
        for n in range(gone.count):
            if status == WAN_OK:
                status = wan_parked_leave(&self.table, &(<const wan_event_mark *>gone.bytes)[n])
        wan_buffer_close(&gone)
        return status

    # Events parked in this member

    cdef list regions_of(self, led, wan_buffer *regions):
        """Puts `led` into `regions`, as one led_region for each region. Returns a list that keeps the bytes alive."""
        cdef led_region one
        kept = []
        for name, leads in led:
            one.region, one.buckets, one.leads = (
                region_number(name), len(leads), <const uint8_t *>PyBytes_AS_STRING(leads))
            if one.buckets:
                raise_for(wan_buffer_add(regions, &one, sizeof(one)), "parked events")
                kept.append(leads)
        return kept

    cdef wan_status select(self, const wan_buffer *regions, wan_buffer *events) noexcept nogil:
        """Copies the led parked events, in order."""
        cdef const wan_parked_event *event
        cdef wan_status status = WAN_OK
        cdef uint64_t n
        for n in range(self.table.capacity):
            event = &self.table.events[n]
            if status == WAN_OK and event.state == WAN_PARKED_HERE and is_led(event, regions):
                status = wan_buffer_add(events, event, sizeof(event[0]))
        if events.count > 1:
            qsort(events.bytes, events.count, sizeof(wan_parked_event), event_order)
        return status

    def count(self, led):
        """Returns the number of led parked events."""
        cdef wan_buffer regions
        cdef uint64_t count = 0, n
        if self.table.here == 0:
            return 0
        memset(&regions, 0, sizeof(regions))
        try:
            _kept = self.regions_of(led, &regions)
            with nogil:
                for n in range(self.table.capacity):
                    if self.table.events[n].state == WAN_PARKED_HERE and is_led(&self.table.events[n], &regions):
                        count += 1
            return count
        finally:
            wan_buffer_close(&regions)

    def shown(self, led, uint64_t limit):
        """Returns up to `limit` led parked events, in order, as (reason, record)."""
        cdef wan_buffer regions, events, copies
        cdef const wan_parked_event *event
        cdef wan_status status
        cdef uint64_t n
        found = []
        memset(&regions, 0, sizeof(regions))
        memset(&events, 0, sizeof(events))
        memset(&copies, 0, sizeof(copies))
        try:
            _kept = self.regions_of(led, &regions)
            with nogil:
                status = self.select(&regions, &events)
            raise_for(status, f"parked events of queue {self.parked.name!r}")
            for n in range(min(limit, events.count)):
                event = &(<const wan_parked_event *>events.bytes)[n]
                wan_buffer_empty(&copies)
                with nogil:
                    status = self.copy_record(event, &copies)
                raise_for(status, f"parked events of queue {self.parked.name!r}")
                if copies.used:
                    found.append((wan_parked_reason(event.partition), bytes_of(&copies)))
            return found
        finally:
            wan_buffer_close(&regions)
            wan_buffer_close(&events)
            wan_buffer_close(&copies)

    cdef wan_status copy_record(self, const wan_parked_event *event, wan_buffer *to) noexcept nogil:
        """Copies an event's record. No bytes are added if the event has left."""
        cdef wan_status status = WAN_OK
        cdef const wan_record *record
        wan_lock_take(&self.gateway.lock)
        if self.is_there(event):
            if queue_can_read(self.gateway, event.partition, event.sequence):
                record = wan_queue_at(&self.gateway.queue, &self.gateway.queue.partitions[event.partition],
                                      event.sequence)
                status = wan_buffer_add(to, record, wan_record_length(record))
            else:
                status = WAN_IO
        wan_lock_release(&self.gateway.lock)
        return status

    # Comparison of two members

    def sums(self, str region, uint32_t buckets):
        """Returns (bucket, count, sum of the marks) of each bucket with parked events."""
        cdef int number = region_number(region)
        cdef const wan_parked_event *event
        cdef wan_buffer sums
        cdef uint64_t *sum
        cdef uint64_t n
        memset(&sums, 0, sizeof(sums))
        if self.table.here + self.table.replayed == 0 or buckets == 0:
            return []
        try:
            raise_for(wan_buffer_reserve(&sums, 16 * <uint64_t>buckets), "parked events")
            memset(sums.bytes, 0, 16 * buckets)
            with nogil:
                for n in range(self.table.capacity):
                    event = &self.table.events[n]
                    if is_of(event, number):
                        sum = <uint64_t *>sums.bytes + 2 * wan_hash_bucket(event.key_hash, buckets)
                        sum[0] += 1
                        sum[1] += event.mark.low ^ event.mark.high
            sum = <uint64_t *>sums.bytes
            return [(b, sum[2 * b], sum[2 * b + 1] >> 2) for b in range(buckets) if sum[2 * b]]
        finally:
            wan_buffer_close(&sums)

    def marks(self, str region, bytes buckets, uint32_t part=0, uint32_t parts=1):
        """Returns the marks of the chosen buckets of a region (one byte for each bucket), or one of `parts` parts of
        the marks."""
        cdef wan_buffer marks
        cdef wan_status status
        cdef int number = region_number(region)
        cdef const uint8_t *wanted = <const uint8_t *>PyBytes_AS_STRING(buckets)
        cdef uint32_t count = check_buckets(buckets)
        memset(&marks, 0, sizeof(marks))
        try:
            with nogil:
                status = self.select_buckets(number, wanted, count, part, parts, NULL, 0, &marks)
            raise_for(status, "parked events")
            return bytes_of(&marks)
        finally:
            wan_buffer_close(&marks)

    cdef wan_status select_buckets(self, int region, const uint8_t *wanted, uint32_t buckets, uint32_t part,
                                   uint32_t parts, const wan_event_mark *known, uint64_t known_count,
                                   wan_buffer *marks) noexcept nogil:
        """Adds the marks of some buckets, or of one part of the marks, except marks in the sorted list `known`."""
        cdef const wan_parked_event *event
        cdef wan_status status = WAN_OK
        cdef uint64_t n
        for n in range(self.table.capacity):
            event = &self.table.events[n]
            if (status == WAN_OK and is_of(event, region) and wanted[wan_hash_bucket(event.key_hash, buckets)]
                    and event.mark.high // 2 % parts == part
                    and (known_count == 0
                         or bsearch(&event.mark, known, known_count, MARK_BYTES, mark_order) == NULL)):
                status = wan_buffer_add(marks, &event.mark, sizeof(event.mark))
        return status

    def compare(self, str region, bytes buckets, uint32_t part, uint32_t parts, bytes theirs):
        """Compares with the `marks` of another member. Returns three lists of marks: events known as left, events
        missing in this index, and events missing in the other member."""
        cdef wan_buffer known, more, left, lacking
        cdef wan_status status
        cdef int number = region_number(region)
        check_marks(theirs)
        cdef uint64_t count = len(theirs) // MARK_BYTES
        cdef const uint8_t *wanted = <const uint8_t *>PyBytes_AS_STRING(buckets)
        cdef uint32_t bucket_count = check_buckets(buckets)
        memset(&known, 0, sizeof(known))
        memset(&more, 0, sizeof(more))
        memset(&left, 0, sizeof(left))
        memset(&lacking, 0, sizeof(lacking))
        try:
            raise_for(wan_buffer_add(&known, PyBytes_AS_STRING(theirs), len(theirs)), "parked events")
            with nogil:
                status = self.sort_out(<const wan_event_mark *>known.bytes, count, &left, &lacking)
                if count > 1:
                    qsort(known.bytes, count, MARK_BYTES, mark_order)
                if status == WAN_OK:
                    status = self.select_buckets(number, wanted, bucket_count, part, parts,
                                                 <const wan_event_mark *>known.bytes, count, &more)
            raise_for(status, "parked events")
            return bytes_of(&left), bytes_of(&lacking), bytes_of(&more)
        finally:
            wan_buffer_close(&known)
            wan_buffer_close(&more)
            wan_buffer_close(&left)
            wan_buffer_close(&lacking)

    cdef wan_status sort_out(self, const wan_event_mark *marks, uint64_t count, wan_buffer *left,
                             wan_buffer *lacking) noexcept nogil:
        cdef const wan_parked_event *event
        cdef wan_status status = WAN_OK
        cdef uint64_t n
        for n in range(count):
            event = wan_parked_find(&self.table, &marks[n])
            if status == WAN_OK and (event == NULL or event.state == WAN_PARKED_LEFT):
                status = wan_buffer_add(lacking if event == NULL else left, &marks[n], MARK_BYTES)
        return status

    def lacking(self, bytes marks):
        """Returns two parts of the marks: events known as left, and events missing in the index."""
        cdef wan_buffer left, lacking
        cdef wan_status status
        check_marks(marks)
        cdef const wan_event_mark *each = <const wan_event_mark *>PyBytes_AS_STRING(marks)
        cdef uint64_t count = len(marks) // MARK_BYTES
        memset(&left, 0, sizeof(left))
        memset(&lacking, 0, sizeof(lacking))
        try:
            with nogil:
                status = self.sort_out(each, count, &left, &lacking)
            raise_for(status, "parked events")
            return bytes_of(&left), bytes_of(&lacking)
        finally:
            wan_buffer_close(&left)
            wan_buffer_close(&lacking)

    def copy(self, bytes marks, uint64_t most):
        """Returns the parked events with the given marks for `take`, about `most` bytes and one event at least, and the
        number of checked marks."""
        cdef wan_buffer copies
        check_marks(marks)
        cdef const wan_event_mark *each = <const wan_event_mark *>PyBytes_AS_STRING(marks)
        cdef uint64_t count = len(marks) // MARK_BYTES, n = 0
        cdef const wan_parked_event *event
        cdef copied_head head
        cdef wan_status status = WAN_OK
        cdef uint64_t before
        memset(&copies, 0, sizeof(copies))
        memset(&head, 0, sizeof(head))
        try:
            with nogil:
                while n < count and status == WAN_OK and copies.used < most:
                    event = wan_parked_find(&self.table, &each[n])
                    n += 1
                    if event == NULL or event.state == WAN_PARKED_LEFT:
                        continue
                    head.reason, before = wan_parked_reason(event.partition), copies.used
                    status = wan_buffer_add(&copies, &head, sizeof(head))
                    if status == WAN_OK:
                        status = self.copy_record(event, &copies)
                    if copies.used == before + sizeof(head):
                        copies.used = before
            raise_for(status, f"parked events of queue {self.parked.name!r}")
            return bytes_of(&copies), n
        finally:
            wan_buffer_close(&copies)

    def take(self, str region, bytes events):
        """Parks the events from another member's `copy`, except events known or left. Returns the number of parked
        events. ProtocolError: the bytes are no such events. QueueFullError, DiskError, MemoryError: the events before
        the failure were parked."""
        cdef wan_buffer copies
        cdef int number = region_number(region)
        cdef uint64_t at = 0, taken = 0, hash
        cdef const copied_head *head
        cdef wan_record *record
        cdef wan_event_mark mark
        cdef wan_status status = WAN_OK
        cdef bint is_whole = True
        memset(&copies, 0, sizeof(copies))
        try:
            raise_for(wan_buffer_add(&copies, PyBytes_AS_STRING(events), len(events)), "parked events")
            with nogil:
                while status == WAN_OK and is_whole and at < copies.used:
                    head = <const copied_head *>(copies.bytes + at)
                    is_whole = copies.used - at > sizeof(head[0])
                    if not is_whole:
                        break
                    at += sizeof(head[0])
                    record = <wan_record *>(copies.bytes + at)
                    is_whole = (head.reason > 0 and head.reason <= WAN_PARK_PARTITIONS
                                and wan_record_check(copies.bytes + at, copies.used - at) == WAN_OK)
                    if not is_whole:
                        break
                    at += wan_record_length(record)
                    record.region = number
                    hash = wan_key_hash(wan_record_key(record), record.key_length, record.key_form)
                    mark = wan_mark_of(record, hash)
                    if wan_parked_find(&self.table, &mark) == NULL:
                        status = queue_append_copy(self.gateway, wan_parked_partition(head.reason), record, False, 0)
                        taken += status == WAN_OK
            raise_for(status, f"parked events of queue {self.parked.name!r}")
        finally:
            wan_buffer_close(&copies)
            self.refresh()
        if not is_whole:
            from pywan.errors import ProtocolError
            raise ProtocolError(f"what came of parked events is cut off or damaged behind {at} bytes")
        return taken

    # Removal

    def leave(self, bytes marks):
        """Removes the replayed or dropped events with the given marks. The events do not return. Returns the number of
        removed events."""
        check_marks(marks)
        cdef const wan_event_mark *each = <const wan_event_mark *>PyBytes_AS_STRING(marks)
        cdef uint64_t count = len(marks) // MARK_BYTES, n, before = self.table.here + self.table.replayed
        cdef wan_status status = WAN_OK
        with nogil:
            for n in range(count):
                if status == WAN_OK:
                    status = self.take_out(&each[n], True)
        raise_for(status, "parked events")
        return before - self.table.here - self.table.replayed

    def forget(self, bytes marks):
        """Removes the events with the given marks, because another member keeps the events."""
        check_marks(marks)
        cdef const wan_event_mark *each = <const wan_event_mark *>PyBytes_AS_STRING(marks)
        cdef uint64_t count = len(marks) // MARK_BYTES, n
        with nogil:
            for n in range(count):
                self.take_out(&each[n], False)

    cdef wan_status take_out(self, const wan_event_mark *mark, bint leaves) noexcept nogil:
        """Removes an event's record from the queue, and remembers the event as left, or not at all."""
        cdef wan_parked_event *event = wan_parked_find(&self.table, mark)
        cdef wan_parked_event known
        cdef wan_status status = WAN_OK
        if event != NULL and event.state == WAN_PARKED_LEFT or event == NULL and not leaves:
            return WAN_OK
        if event != NULL:
            known = event[0]
        if leaves:
            status = wan_parked_leave(&self.table, mark)
        else:
            wan_parked_forget(&self.table, event)
        if event != NULL and status == WAN_OK:
            wan_lock_take(&self.gateway.lock)
            if self.is_there(&known):
                wan_queue_make_hole(&self.gateway.queue, known.partition, known.sequence, WAN_HOLE_DROPPED)
            wan_lock_release(&self.gateway.lock)
        return status

    def replace(self, bytes record, uint32_t reason):
        """Parks a record in place of the present record of the same event."""
        cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(record)
        raise_for(wan_record_check(at, len(record)), "parked events")
        cdef const wan_record *from_ = <const wan_record *>at
        cdef wan_event_mark mark = wan_mark_of(from_, wan_key_hash(wan_record_key(from_), from_.key_length,
                                                                   from_.key_form))
        cdef const wan_parked_event *event = wan_parked_find(&self.table, &mark)
        cdef wan_status status
        with nogil:
            status = queue_append_copy(self.gateway, reason, from_, False, 0)
            if status == WAN_OK and event != NULL:
                wan_lock_take(&self.gateway.lock)
                if self.is_there(event):
                    wan_queue_make_hole(&self.gateway.queue, event.partition, event.sequence, WAN_HOLE_DROPPED)
                wan_lock_release(&self.gateway.lock)
        raise_for(status, f"parked events of queue {self.parked.name!r}")
        self.refresh()

    def drop(self, led):
        """Removes all led parked events. Returns their marks."""
        cdef wan_buffer regions, events
        cdef uint64_t n
        cdef wan_status status
        memset(&regions, 0, sizeof(regions))
        memset(&events, 0, sizeof(events))
        try:
            _kept = self.regions_of(led, &regions)
            with nogil:
                status = self.select(&regions, &events)
                for n in range(events.count):
                    if status == WAN_OK:
                        status = self.take_out(&(<const wan_parked_event *>events.bytes)[n].mark, True)
            raise_for(status, "parked events")
            return b"".join([PyBytes_FromStringAndSize(<const char *>&(<const wan_parked_event *>events.bytes)[n].mark,
                                                       MARK_BYTES) for n in range(events.count)])
        finally:
            wan_buffer_close(&regions)
            wan_buffer_close(&events)

    def replay(self, EventQueue to not None, led, bint force=False, int stays=-1):
        """Queues all led parked events again in `to`, in order, except the events of partition `stays`. The events stay
        parked, unseen, until `finish` finds that they have left the queue. If `force`, a receiver applies the events
        even where the key may have been destroyed later. Returns the number of queued events. If the queue is full, the
        method raises after the fitting events are queued."""
        cdef wan_buffer regions, events, copy
        cdef wan_parked_event *event
        cdef wan_record *record
        cdef uint64_t n, count = 0
        cdef uint32_t partition
        cdef wan_status status
        cdef uint8_t flags = WAN_FLAG_FORCED if force else 0
        check_whole(self.parked)
        check_whole(to)
        memset(&regions, 0, sizeof(regions))
        memset(&events, 0, sizeof(events))
        memset(&copy, 0, sizeof(copy))
        try:
            _kept = self.regions_of(led, &regions)
            with nogil:
                status = self.select(&regions, &events)
                for n in range(events.count):
                    event = &(<wan_parked_event *>events.bytes)[n]
                    if status != WAN_OK:
                        break
                    if <int>event.partition == stays:
                        continue
                    wan_buffer_empty(&copy)
                    status = self.copy_record(event, &copy)
                    if status != WAN_OK or copy.used == 0:
                        continue
                    record = <wan_record *>copy.bytes
                    partition = queue_partition_of(to.gateway, record, event.key_hash)
                    status = queue_append_copy(to.gateway, partition, record, True, flags)
                    if status != WAN_OK:
                        break
                    event = wan_parked_find(&self.table, &event.mark)
                    wan_parked_set(&self.table, event, WAN_PARKED_REPLAYED)
                    wan_lock_take(&to.gateway.lock)
                    event.replayed_partition = partition
                    event.replayed = to.gateway.queue.partitions[partition].appended    # Not behind this sequence.
                    wan_lock_release(&to.gateway.lock)
                    count += 1
            raise_for(status, f"replay into queue {to.name!r} (after {count} events)")
            check_whole(to)
            return count
        finally:
            wan_buffer_close(&regions)
            wan_buffer_close(&events)
            wan_buffer_close(&copy)

    def finish(self, EventQueue to not None):
        """Removes all replayed events that have left `to` and did not fail again. Returns their marks."""
        cdef wan_buffer gone, left
        cdef const wan_parked_event *event
        cdef const wan_event_mark *mark
        cdef uint64_t n
        cdef wan_status status = WAN_OK
        if self.table.replayed == 0:
            return b""
        memset(&gone, 0, sizeof(gone))
        memset(&left, 0, sizeof(left))
        try:
            with nogil:
                wan_lock_take(&to.gateway.lock)
                for n in range(self.table.capacity):
                    event = &self.table.events[n]
                    if (status == WAN_OK and event.state == WAN_PARKED_REPLAYED
                            and to.gateway.queue.partitions[event.replayed_partition].removed >= event.replayed):
                        status = wan_buffer_add(&gone, &event.mark, MARK_BYTES)
                wan_lock_release(&to.gateway.lock)
            raise_for(status, "parked events")
            self.refresh()      # An event that failed again is parked again by now.
            with nogil:
                for n in range(gone.count):
                    mark = &(<const wan_event_mark *>gone.bytes)[n]
                    event = wan_parked_find(&self.table, mark)
                    if status == WAN_OK and event != NULL and event.state == WAN_PARKED_REPLAYED:
                        status = wan_buffer_add(&left, mark, MARK_BYTES)
                    if status == WAN_OK and event != NULL and event.state == WAN_PARKED_REPLAYED:
                        status = self.take_out(mark, True)
            raise_for(status, "parked events")
            return bytes_of(&left)
        finally:
            wan_buffer_close(&gone)
            wan_buffer_close(&left)


cdef inline bint is_of(const wan_parked_event *event, int region) noexcept nogil:
    """Returns whether the event is parked and belongs to the region."""
    return event.region == region and (event.state == WAN_PARKED_HERE or event.state == WAN_PARKED_REPLAYED)


cdef inline bint is_led(const wan_parked_event *event, const wan_buffer *regions) noexcept nogil:
    cdef const led_region *region = <const led_region *>regions.bytes
    cdef uint32_t n
    for n in range(regions.count):
        if region[n].region == event.region:
            return region[n].leads[wan_hash_bucket(event.key_hash, region[n].buckets)]
    return True
