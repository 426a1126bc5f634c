# Owns the batch for a listener: the events of one batch, as objects that decode a record on access, or as columns.
cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.values.codec cimport decode
from pywan._core.values.names import region_name

cdef tuple OPERATIONS = ("create", "update", "destroy")


# An event refers only to the memory, and the memory refers to no object. Otherwise each batch would start a collection.
@cython.no_gc
cdef class AsyncEvent:
    """An event that an asynchronous event queue hands to its listener. Key, value and callback argument are decoded at
    each access."""
    cdef BatchMemory memory         # Owns the record.
    cdef const wan_record *record
    cdef uint32_t place             # Position in the memory's events.

    @property
    def region(self):
        """The region's name."""
        return region_name(head_of(self).region)

    @property
    def operation(self):
        """"create", "update" or "destroy"."""
        return OPERATIONS[head_of(self).operation]

    @property
    def key(self):
        """The key."""
        return decode(head_of(self).key_form, wan_record_key(head_of(self)), head_of(self).key_length)

    @property
    def value(self):
        """The new value. None for a destroy."""
        return decode(head_of(self).value_form, wan_record_value(head_of(self)), head_of(self).value_length)

    @property
    def callback_argument(self):
        """The caller's callback argument of the change. None: no argument."""
        return decode(head_of(self).callback_form, wan_record_callback(head_of(self)), head_of(self).callback_length)

    @property
    def creation_timestamp(self):
        """Milliseconds since 1970, by the clock of the site that made the event."""
        return head_of(self).stamp >> 16

    @property
    def origin_site(self):
        """The id of the site that made the event."""
        return head_of(self).origin_site

    @property
    def possible_duplicate(self):
        """Whether the listener may have received the event before."""
        return memory_of(self).repeated[self.place] != 0

    @property
    def event_id(self):
        """The event's identity, an `EventSequenceID`, the same at every site."""
        from pywan.events import EventSequenceID
        return EventSequenceID(head_of(self).event_member, head_of(self).event_thread, head_of(self).event_sequence)

    @property
    def partition(self):
        """The event's partition of the queue: the bucket, in a parallel queue."""
        return memory_of(self).partitions[self.place]

    @property
    def sequence(self):
        """The event's sequence in its partition. Sequences grow within a partition, and a repeat has the same
        sequence."""
        return memory_of(self).sequences[self.place]

    def __repr__(self):
        return f"<{self.operation} of {self.key!r:.80} in {self.region}>"


cdef inline BatchMemory memory_of(AsyncEvent event):
    if event.memory is None:
        raise TypeError("the event was not initialised")
    return event.memory


cdef inline const wan_record *head_of(AsyncEvent event) except NULL:
    memory_of(event)
    return event.record


cdef class BatchMemory:
    """The memory with the records of a batch's events. The content does not change after creation."""

    def __dealloc__(self):
        free(self.bytes)
        free(self.records)
        free(self.sequences)
        free(self.partitions)
        free(self.repeated)


cdef class EventBatch:
    """The events of one batch, the oldest first: a sequence of `AsyncEvent`. The batch and its events do not change
    when the queue goes on."""

    def __init__(self):
        raise TypeError("batches are made by asynchronous event queues")

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        if isinstance(place, slice):
            first, end, step = place.indices(self.count)
            return self.part(first, max(first, end)) if step == 1 else self.events()[place]
        if place < 0:
            place += self.count
        if not 0 <= place < self.count:
            raise IndexError(f"event {place} of {self.count}")
        return event_of(self, place)

    def __iter__(self):
        return iter(self.events())

    def __repr__(self):
        return f"<{self.count} events of queue {self.queue}>"

    def events(self):
        """Returns the events as a new list."""
        cdef uint32_t n
        return [event_of(self, n) for n in range(self.count)]

    def part(self, uint32_t first, uint32_t end):
        """Returns the events from `first` up to `end` as a batch."""
        cdef EventBatch made = EventBatch.__new__(EventBatch)
        made.memory, made.queue, made.numbering = self.memory, self.queue, self.numbering
        made.first, made.count = self.first + first, end - first
        return made

    def marks(self):
        """Returns the end of the batch: a map from each partition of the queue to the sequence of the partition's last
        event in the batch."""
        cdef uint32_t n
        cdef dict last = {}
        for n in range(self.first, self.first + self.count):
            last[self.memory.partitions[n]] = self.memory.sequences[n]
        return last


cdef inline AsyncEvent event_of(EventBatch batch, uint32_t place):
    cdef AsyncEvent made = AsyncEvent.__new__(AsyncEvent)
    made.memory, made.place = batch.memory, batch.first + place
    made.record = batch.memory.records[made.place]
    return made


cdef EventBatch batch_of_frame(const wan_frame *frame, str queue, uint64_t numbering):
    """Returns the events of a batch frame, laid out by this process and not packed."""
    cdef BatchMemory memory = BatchMemory.__new__(BatchMemory)
    cdef EventBatch batch = EventBatch.__new__(EventBatch)
    cdef size_t room = max(frame.count, <uint32_t>1)
    memory.bytes = <uint8_t *>malloc(frame.length)
    memory.records = <const wan_record **>malloc(room * sizeof(void *))
    memory.sequences = <uint64_t *>malloc(room * sizeof(uint64_t))
    memory.partitions = <uint32_t *>malloc(room * sizeof(uint32_t))
    memory.repeated = <uint8_t *>malloc(room)
    if (memory.bytes == NULL or memory.records == NULL or memory.sequences == NULL or memory.partitions == NULL
            or memory.repeated == NULL):
        raise MemoryError(f"no memory for a batch of {frame.count} events")
    with nogil:
        memcpy(memory.bytes, frame + 1, frame.length)
        find_records(memory)
    batch.memory, batch.queue, batch.numbering = memory, queue, numbering
    batch.first, batch.count = 0, memory.count
    return batch


cdef void find_records(BatchMemory memory) noexcept nogil:
    cdef const wan_batch_head *head = <const wan_batch_head *>memory.bytes
    cdef const wan_section *section = <const wan_section *>(head + 1)
    cdef const uint8_t *at = <const uint8_t *>(section + head.sections)
    cdef const wan_record *record
    cdef uint32_t _s, n, done = 0
    for _s in range(head.sections):
        record = <const wan_record *>(at + wan_section_head_bytes(section))
        for n in range(section.count):
            memory.records[done], memory.partitions[done] = record, section.partition
            memory.sequences[done] = wan_section_sequence(section, at, n)
            memory.repeated[done] = n < section.duplicates or record.flags & WAN_FLAG_REPEATED
            record = <const wan_record *>(<const uint8_t *>record + wan_record_length(record))
            done += 1
        at += section.bytes
        section += 1
    memory.count = done
