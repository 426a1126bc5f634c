# Owns the news of a replication link: the messages of its thread to Python threads, sent without the GIL.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_system cimport *


cdef enum:
    NEWS_MAX = 65536        # More news is lost: no thread has taken news for long.


cdef class News:
    """News in the order of arrival. One thread adds news, and any thread takes all."""

    def __cinit__(self):
        self.file = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.file < 0:
            raise OSError("no eventfd for the news of a replication link: the process has too many open files")

    def __dealloc__(self):
        if self.file >= 0:
            close_file(self.file)
        wan_buffer_close(&self.items)

    cdef bint tell(self, uint32_t kind, uint32_t region, uint64_t bucket, uint64_t value) noexcept nogil:
        """Adds one item. False: no memory, or too many items wait."""
        cdef repl_news item
        cdef bint told
        item.kind, item.region, item.bucket, item.value = kind, region, bucket, value
        wan_lock_take(&self.lock)
        told = self.items.count < NEWS_MAX and wan_buffer_add(&self.items, &item, sizeof(item)) == WAN_OK
        wan_lock_release(&self.lock)
        eventfd_write(self.file, 1)
        return told

    cdef list take(self):
        """Returns all news since the last call: (kind, number of the region, bucket, value)."""
        cdef uint64_t drained
        cdef wan_buffer taken
        cdef repl_news *item
        cdef uint32_t n
        eventfd_read(self.file, &drained)
        with nogil:
            wan_lock_take(&self.lock)
            taken, self.items.bytes, self.items.capacity = self.items, NULL, 0
            wan_buffer_empty(&self.items)
            wan_lock_release(&self.lock)
        try:
            item = <repl_news *>taken.bytes
            return [(item[n].kind, item[n].region, item[n].bucket, item[n].value) for n in range(taken.count)]
        finally:
            wan_buffer_close(&taken)
