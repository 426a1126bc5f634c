# Owns the regions named by a sender on one connection: the meaning of each number, the present region of this member,
# and the clock for judging the events.
from libc.stdint cimport uint16_t, uint32_t
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.base.status cimport report_unraisable
from pywan._core.values.names cimport region_name
from pywan._core.values.tagged cimport Encoded
from pywan._core.gateway.stream_memory cimport StreamMemory
from pywan._core.region.log_marks cimport log_marks
from pywan._core.region.region cimport RegionCore

cdef tuple OPERATIONS = ("create", "update", "destroy")

cdef enum:
    REGION_NAME_BYTES = 1024
    FAILURES_TOLD = 10              # So many unapplied events of a connection are logged first ...
    FAILURES_BETWEEN = 10000        # ... and later one event in so many.


cdef class ReceiverRegions(ReceiverReport):
    """A session that finds the regions of events."""

    def __cinit__(self):
        self.names, self.cores, self.replaced = {}, {}, []
        self.regions.item_bytes = sizeof(region_slot)

    def __dealloc__(self):
        wan_pages_close(&self.regions)

    cdef void begin_batch(self) noexcept nogil:
        """Begins a batch: missing regions are looked up once more."""
        self.batch += 1
        if wan_flag_read(&self.look_flag):
            self.look_at_permissions()
        self.now_ms = wan_clock_receiving_ms(self.clock) if self.clock != NULL else wan_now_ms()

    def look_again(self):
        """Asks `may_write` again before the next batch. Any thread may call."""
        wan_flag_set(&self.look_flag, 1)

    cdef void look_at_permissions(self) noexcept with gil:
        """Removes the regions that the sender's user may not write any more. All other regions stay unchanged, because
        their events may be in flight to other members. A removed region is looked up again in every later batch."""
        wan_flag_set(&self.look_flag, 0)
        for number in list(self.names):
            if slot_of(self, number).core != NULL and not self.is_permitted(number):
                self.forbid(number)

    cdef bint is_permitted(self, uint16_t number) noexcept:
        """Returns whether the sender's user may write the region with this number. An error means no."""
        try:
            return self.may_write is None or self.may_write(self.names[number]) is True
        except BaseException as error:
            report_unraisable("a look at a permission", error)
            return False

    cdef void forbid(self, uint16_t number) noexcept:
        cdef region_slot *slot = slot_of(self, number)
        slot.core = NULL
        slot.looked_batch = self.batch
        slot.shared[0] = slot.shared[1] = NULL
        slot.is_forbidden = True

    cdef int learn_region(self, const wan_frame *frame) noexcept with gil:
        cdef uint32_t number = <uint32_t>frame.id
        cdef region_slot *slot
        if frame.id > 65535:
            wan_note(WAN_CORRUPT, "region number %llu", <unsigned long long>frame.id)
            return 0
        if frame.length > REGION_NAME_BYTES:
            wan_note(WAN_CORRUPT, "region number %u has a name of %u bytes; at most %d are possible", number,
                     frame.length, REGION_NAME_BYTES)
            return 0
        try:
            name = (<const char *>(frame + 1))[:frame.length].decode()
            slot = <region_slot *>wan_pages_put(&self.regions, number)
            if slot == NULL:
                wan_note(WAN_CORRUPT, "no memory for region number %u", number)
                return 0
            self.names[number] = name
            memset(slot, 0, sizeof(region_slot))
            return 1
        except BaseException as error:
            wan_note(WAN_CORRUPT, "region number %u has a name that is not text", number)
            return 0

    cdef region_core *look_up(self, uint16_t number) noexcept with gil:
        cdef RegionCore core
        cdef StreamMemory streams
        cdef region_slot *slot = slot_of(self, number)
        try:
            slot.looked_batch = self.batch
            slot.shared[0] = slot.shared[1] = NULL
            slot.is_forbidden = not self.is_permitted(number)
            found = None if slot.is_forbidden else self.find_region(self.names[number])
            if self.replaced_batch != self.batch:
                self.replaced_batch = self.batch
                self.replaced.clear()
            self.replaced.append(self.cores.get(number))    # Records of this batch may point to the old region.
            self.cores[number] = found
            core = <RegionCore?>found if found is not None else None
            slot.core = &core.state.region if core is not None and not core.state.region.closed else NULL
            if core is not None:
                self.clock, self.clock_holder = core.state.region.clock, core.state.clock
                self.now_ms = wan_clock_receiving_ms(self.clock)
                streams = self.memory.streams
                streams.cores = {c for c in streams.cores if not (<RegionCore>c).state.region.closed} | {core}
        except BaseException as error:
            report_unraisable("region look-up", error)
            slot.core = NULL
        return slot.core

    cdef void note_refused(self, const wan_record *record, uint32_t reason, const region_core *core) noexcept nogil:
        """Reports an event that is not applied, for the log. Many events do not make many lines. `core`: the region.
        NULL: the region of the number in `record`, as the sender named the region."""
        self.failed_events += 1
        if self.failed_events <= FAILURES_TOLD or self.failed_events % FAILURES_BETWEEN == 0:
            self.tell_refused(record, reason, core)

    cdef void tell_refused(self, const wan_record *record, uint32_t reason, const region_core *core) noexcept with gil:
        cdef wan_event_name name
        try:
            if self.on_failure is None:
                return
            wan_name_event(&name, record)
            self.on_failure(region_name(core.number) if core != NULL else self.names.get(record.region, "?"),
                            OPERATIONS[name.operation],
                            Encoded(name.key_form, PyBytes_FromStringAndSize(<const char *>name.key, name.key_length)),
                            reason)
        except MemoryError:
            pass                    # No memory for the report. The sender parks the event with its reason.
        except BaseException as error:
            report_unraisable("on_failure", error)

    cdef bint is_named(self, uint16_t number) noexcept with gil:
        return number in self.names

    cdef dict mark_logs(self, bint hurry):
        """Returns the present ends of the logs that have events of the source, over all connections. The events of a
        completely known batch are included: an old connection may have applied the batch and still wait."""
        return log_marks(self.memory.streams.cores, hurry)
