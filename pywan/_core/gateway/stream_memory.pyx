# Owns the memory of applied events of the streams of a sender (`StreamMemory`), from any member of the sender's site.
cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy
from cpython.bytes cimport PyBytes_AS_STRING
from pywan._core.c_base cimport *
from pywan._core.gateway.applied_slot cimport forget_applied


cdef enum:
    # Limit of the remembered streams of a sender: the limit of the buckets of a site. A stream takes 64 bytes ...
    STREAMS_OF_SENDER = 131072
    STREAMS_KEPT_ALL = 4000000      # ... so this limit over all senders takes 256 MB.

cdef uint64_t streams_kept = 0      # Streams that this process remembers. Atomic.


cdef int source_digest(str name, uint64_t *source) except -1:
    """Computes the digest by which queues recognise a stream, also after a restart. Finding two names with one digest
    is infeasible. "": the stream has no name, and the digest is zeros."""
    from hashlib import blake2b     # The import loads OpenSSL, not needed in members without receiver.
    cdef bytes digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    source[0] = source[1] = 0
    if name:
        memcpy(source, PyBytes_AS_STRING(digest), 16)
    return 0


cdef void release_run(stream_run *run) noexcept:
    """Removes one user. The caller holds the GIL."""
    cdef uint32_t n
    run.users -= 1
    if run.users:
        return
    for n in range(run.buckets):
        forget_applied(&run.slots[n].applied)
    wan_add_shared(&streams_kept, -<uint64_t>run.buckets)
    free(run.slots)
    free(run)


cdef bint begin_section(stream_slot *stream, uint64_t timeline) noexcept nogil:
    """Begins a section of this timeline, under the stream's lock. A later timeline than before begins the sequences of
    the stream anew. False: the timeline is an earlier one, and no event of it is remembered."""
    if timeline > stream.timeline:
        forget_applied(&stream.applied)
        stream.timeline = timeline
    return timeline == stream.timeline


@cython.no_gc_clear         # The destructor needs `runs`.
cdef class StreamMemory:
    """The applied events of the streams of one sender of a site, by region and bucket: the last contiguous sequence of
    the newest timeline. All members of the site send the same streams. `name`: identifies the site and the sender."""

    def __cinit__(self, str name=""):
        self.name, self.runs, self.cores = name, {}, set()

    def __dealloc__(self):
        for address in self.runs.values():
            release_run(<stream_run *><size_t>address)

    cdef stream_run *hold(self, str region, uint32_t buckets) except NULL:
        """Returns the streams of a region. The streams stay until the caller calls `release_run`. ProtocolError: the
        limit of streams is reached."""
        cdef stream_run *run
        key = region, buckets
        known = self.runs.pop(key, None)
        if known is not None:
            run = <stream_run *><size_t>known
        else:
            make_room(self, region, buckets)
            run = <stream_run *>calloc(1, sizeof(stream_run))
            if run != NULL:
                run.slots = <stream_slot *>calloc(buckets, sizeof(stream_slot))
            if run == NULL or run.slots == NULL:
                free(run)
                raise MemoryError()
            run.buckets, run.users = buckets, 1
            source_digest(self.name and f"{self.name}/region/{buckets}/{region}", run.source)
            self.streams += buckets
            wan_add_shared(&streams_kept, buckets)
        self.runs[key] = <size_t>run
        run.users += 1
        return run

    def forget(self):
        """Forgets all streams that no connection has named. New events of the streams are applied under the rule of
        versions."""
        for key in list(self.runs):
            drop(self, key)

    def last(self, str region, uint32_t buckets):
        """Returns for each bucket of a region the newest timeline, and the timeline's last contiguous applied sequence.
        Empty: the region's streams are unknown."""
        cdef stream_run *run
        cdef uint64_t timeline, last
        found = []
        if (region, buckets) not in self.runs:
            return found
        run = <stream_run *><size_t>self.runs[region, buckets]
        run.users += 1
        for n in range(buckets):
            with nogil:             # A thread with a slot's lock may wait for the GIL.
                wan_lock_take(&run.slots[n].applied.lock)
                timeline, last = run.slots[n].timeline, run.slots[n].applied.last
                wan_lock_release(&run.slots[n].applied.lock)
            found.append((timeline, last))
        release_run(run)
        return found

    @property
    def failures(self):
        """The number of failed events of the streams that are remembered until the sender knows the failures."""
        cdef stream_run *run
        cdef uint64_t count = 0
        cdef uint32_t n
        for key in list(self.runs):
            if key not in self.runs:        # The region was forgotten while the GIL was free.
                continue
            run = <stream_run *><size_t>self.runs[key]
            run.users += 1
            with nogil:
                for n in range(run.buckets):
                    wan_lock_take(&run.slots[n].applied.lock)
                    count += run.slots[n].applied.failure_count
                    wan_lock_release(&run.slots[n].applied.lock)
            release_run(run)
        return count


cdef bint has_room(StreamMemory self, uint32_t buckets):
    return self.streams + buckets <= STREAMS_OF_SENDER and wan_read(&streams_kept) + buckets <= STREAMS_KEPT_ALL


cdef int make_room(StreamMemory self, str region, uint32_t buckets) except -1:
    """Forgets streams of regions that no connection has named. The streams with the oldest naming are forgotten
    first."""
    if not has_room(self, buckets):
        for key in list(self.runs):
            if has_room(self, buckets):
                break
            drop(self, key)
    if not has_room(self, buckets):
        from pywan.errors import ProtocolError
        raise ProtocolError(
            f"region {region!r} with {buckets} streams: {self.streams} streams of this sender are connected, and "
            f"{streams_kept} of all; at most {<int>STREAMS_OF_SENDER} of a sender and {<int>STREAMS_KEPT_ALL} of all "
            "can be; use fewer regions or buckets")
    return 0


cdef void drop(StreamMemory self, object key):
    cdef stream_run *run = <stream_run *><size_t>self.runs[key]
    if run.users == 1:
        del self.runs[key]
        self.streams -= run.buckets
        release_run(run)


def remembered_streams():
    """Returns the number of streams that this process remembers, over all senders."""
    return wan_read(&streams_kept)
