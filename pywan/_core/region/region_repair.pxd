# The interface of region_repair.pyx.
from pywan._core.c_base cimport wan_buffer
from pywan._core.region.repair_stamps cimport RepairStamps

cdef enum:
    REPAIR_PATIENCE_US = 10000000   # A repair fails when a queue has no room for so long.

cdef class RegionRepair(RepairStamps):
    cdef wan_buffer scratch         # A copy of the entry that is being changed.
