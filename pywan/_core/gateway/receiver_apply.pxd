# The interface of receiver_apply.pyx.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from pywan._core.c_base cimport wan_status
from pywan._core.c_python cimport PyGILState_STATE
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_store cimport wan_source_place
from pywan._core.gateway.applied_slot cimport applied_slot
from pywan._core.gateway.receiver_rounds cimport ReceiverRounds
from pywan._core.gateway.receiver_streams cimport connection_partition
from pywan._core.region.region_callbacks cimport RegionCallbacks
from pywan._core.region.region_state cimport origin, region_core

cdef class ReceiverApply(ReceiverRounds):
    cdef object callback_apply
    cdef uint64_t mount             # The mount of the sender's log.
    # While the thread runs the callbacks of a section: whether it has the GIL, its state before, the events since then,
    # the region of these events, and whether the listeners get a list.
    cdef bint holds_gil, has_list
    cdef PyGILState_STATE gil
    cdef uint32_t held_events
    cdef region_core *told_core
    cdef RegionCallbacks told

    cdef int apply_one(self, region_core *core, const wan_record *record, uint64_t hash, uint32_t partition,
                       uint64_t sequence,
                       bint possible_duplicate) noexcept nogil
    cdef void begin_callbacks(self) noexcept nogil
    cdef void end_callbacks(self) noexcept nogil
    cdef void end_list(self) noexcept with gil
    cdef bint begin_region(self, region_core *core, uint16_t region) except -1
    cdef wan_status apply_told(self, region_core *core, uint16_t region, wan_change *change, origin *from_,
                               wan_outcome *outcome) noexcept with gil
    cdef const wan_source_place *place_of(self, uint32_t partition, uint64_t sequence) noexcept nogil
    cdef int apply_shared(self, region_core *core, const wan_record *record, uint64_t hash, uint32_t partition,
                          uint64_t sequence, bint possible_duplicate) noexcept nogil
    cdef void note_too_large(self) noexcept with gil
    cdef int apply_by_callbacks(self, const wan_record *record, uint32_t partition, uint64_t sequence,
                                bint possible_duplicate) noexcept with gil
    cdef int apply_section(self, const wan_section *section, const uint8_t *at) noexcept nogil
    cdef int apply_run(self, const wan_section *section, const uint8_t *at, connection_partition *partition,
                       applied_slot *slot, applied_slot *unremembered, uint64_t expected) noexcept nogil
    cdef void apply_destroys(self, const wan_section *section, const uint8_t *at, uint32_t count) noexcept nogil
    cdef void note_stranger(self, const wan_section *section, uint64_t sequence) noexcept nogil
