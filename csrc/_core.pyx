# pywan._core: the compiled core as one module. Each included file owns one piece of state and says which lock
# guards it; they are included in the order in which they build on each other.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t

cdef extern from "base/wan_crc32c.h" nogil:
    uint32_t wan_crc32c(uint32_t crc, const void *data, size_t length)
    uint32_t wan_crc32c_portable(uint32_t crc, const void *data, size_t length)

include "base.pxi"
include "codec.pxi"
include "columnviews.pxi"
include "columns.pxi"
include "rowmaps.pxi"
include "tagged.pxi"
include "operations.pxi"
include "budget.pxi"
include "eventqueue.pxi"
include "durable.pxi"
include "regionpath.pxi"
include "regionrows.pxi"
include "region.pxi"
include "regionlog.pxi"
include "lz4.pxi"
include "stream.pxi"
include "sender.pxi"
include "receiver.pxi"
include "client.pxi"
include "clockrepair.pxi"
include "message.pxi"


def crc32c(const uint8_t[::1] data, uint32_t crc=0):
    """CRC32C (Castagnoli) of a contiguous buffer, continued from `crc`."""
    cdef size_t n = data.shape[0]
    return wan_crc32c(crc, &data[0] if n else NULL, n)


def crc32c_portable(const uint8_t[::1] data, uint32_t crc=0):
    """The table form of `crc32c`: its oracle in tests."""
    cdef size_t n = data.shape[0]
    return wan_crc32c_portable(crc, &data[0] if n else NULL, n)
