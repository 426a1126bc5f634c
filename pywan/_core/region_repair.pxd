# The interface of region_repair.pyx.
from pywan._core.c_base cimport wan_buffer
from pywan._core.repair_stamps cimport RepairStamps

cdef enum:
    REPAIR_PATIENCE_US = 10000000   # How long a queue may have no room.

cdef class RegionRepair(RepairStamps):
    cdef wan_buffer scratch         # Copy of what is in hand.
