# The interface of region_scans.pyx.
from pywan._core.region.region_changes cimport RegionChanges

cdef class RegionScans(RegionChanges):
    pass
