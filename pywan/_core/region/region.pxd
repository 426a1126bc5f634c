# The interface of region.pyx.
from pywan._core.region.region_persistence cimport PersistentRegion

cdef class RegionCore(PersistentRegion):
    pass
