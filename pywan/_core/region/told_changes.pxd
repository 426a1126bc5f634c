# The interface of told_changes.pyx.
from libc.stdint cimport int64_t
from pywan._core.values.codec cimport encoded
from pywan._core.c_base cimport *
from pywan._core.c_region cimport *
from pywan._core.region.compiled_region cimport CompiledRegion
from pywan._core.region.region_callbacks cimport RegionCallbacks
from pywan._core.region.region_state cimport condition, origin, region_core

cdef RegionCallbacks callbacks_of(CompiledRegion self)
cdef object outcome_name(wan_outcome outcome)
cdef str change_through_path(CompiledRegion self, int operation, key, value, callback_argument, int64_t timestamp_ms,
                             condition *wanted, object condition_)
cdef wan_status apply_and_tell(region_core *region, RegionCallbacks callbacks, wan_change *change, origin *from_,
                               wan_outcome *outcome) except *
cdef object encode_callback(argument, encoded *out)
cdef RegionCallbacks begin_list(CompiledRegion self)
cdef int end_list(RegionCallbacks callbacks) except -1
