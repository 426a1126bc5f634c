# The interface of receiver_apply.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_record cimport *
from pywan._core.c_store cimport wan_source_place
from pywan._core.gateway.applied_slot cimport applied_slot
from pywan._core.gateway.receiver_rounds cimport ReceiverRounds
from pywan._core.gateway.receiver_streams cimport connection_partition
from pywan._core.region.region_state cimport region_core

cdef class ReceiverApply(ReceiverRounds):
    cdef object callback_apply
    cdef uint64_t mount             # The mount of the sender's log.

    cdef int apply_one(self, region_core *core, const wan_record *record, uint64_t hash, uint32_t partition,
                       uint64_t sequence,
                       bint possible_duplicate) noexcept nogil
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
