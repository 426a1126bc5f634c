# Owns `RegionCore`, the compiled half of a region as Python sees the region, and `RegionFace`, the facade that users
# hold.
cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from pywan._core.c_base cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_region cimport *
from pywan._core.base.clock cimport Clock
from pywan._core.base.limit cimport MemoryLimit
from pywan._core.region.follow cimport followed_begin, followed_entries, region_follow
from pywan._core.region.bulk cimport region_get_all, region_put_all, region_remove_all
from pywan._core.region.compiled_region cimport OneDeadline, OneWait, CompiledRegion
from pywan._core.region.region_changes cimport RegionCalls
from pywan._core.region.region_persistence cimport PersistentRegion
from pywan._core.region.region_state cimport region_core
from pywan._core.region.changelog cimport Changelog


cdef class RegionCore(PersistentRegion):
    """The compiled half of a region: its table and versions. The core also puts events into the attached senders'
    queues."""

    def __cinit__(self, str name, Clock clock not None, *args, int site=0, uint32_t member=0, bint stores=True,
                  bint forwards=True, uint32_t buckets=0, **kwargs):
        self.state = CompiledRegion(name, clock, <uint8_t>site, member, stores, forwards, buckets)

    def attach(self, queues, callback_change=..., asking=()):
        """Replaces the attached senders by these EventQueues, and recomputes which sites new events will reach: the
        remote sites of the running senders. Call the method again when a sender starts or stops; one caller at a time.
        `callback_change`: as for `set_callback_path`; the path takes effect in one step with the queues. `asking`: the
        queues whose senders have filters; no event enters these queues before the filters were asked about the event.
        When the method returns, no change uses the old queues or the old path. A queue that is
        attached no more keeps its events of a shared region; `end_feeds` tells when all of these are replicated."""
        self.state.attach(queues, callback_change, asking)

    def end_feeds(self, bint now=False):
        """Returns whether the queues that are attached no more have only replicated events of a shared region. Such a
        queue sends its events from now on. `now`: these queues forget the events that are not replicated yet. One
        caller at a time, as for `attach`."""
        return self.state.end_feeds(now)

    def limit_memory(self, MemoryLimit memory not None):
        """Counts the memory of the region for this limit of the member. While the member is above the limit, changes
        that need memory are refused. Call the method before the first put."""
        self.state.limit_memory(memory)

    @property
    def free_bytes(self):
        """The bytes that the region has from the system, free for new entries."""
        cdef uint64_t free
        with nogil:
            free = wan_table_free_bytes(&self.state.region.table)
        return free

    def share(self, Changelog changelog not None, route, bint reads_replicas=False, bint content=False):
        """From now on several members hold the region: its changes go into `changelog`, and are replicated when all
        in-sync replicas have the changes. `route` makes the calls for buckets that this member does not lead.
        `reads_replicas`: an in-sync replica answers reads too. `content`: until now this member alone had the region,
        and the entries of the region become the content of the buckets. Then the queued events for senders are in the
        buckets' streams afterwards. When the method returns, no change is under way that is not in the change log."""
        self.state.share(changelog, route, reads_replicas, content)

    @property
    def is_shared(self):
        """Whether several members hold the region: the next change goes into a change log."""
        return self.state.region.changelog != NULL

    @property
    def shards(self):
        """How many shards the region's table has."""
        return self.state.region.table.shard_count

    def extend(self, uint32_t bucket, uint64_t timeline, uint64_t epoch, uint64_t first_sequence,
               bytes entries not None):
        """Applies changes that a remote replica of the bucket has, as `Changelog.fetch` returned the changes. Changes
        that this member already has are left out. Returns how many changes were applied. ProtocolError: the bytes are
        not whole, or an earlier change is missing."""
        from pywan.errors import ProtocolError
        cdef region_core *region = &self.state.region
        cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(entries)
        cdef uint64_t length = <uint64_t>PyBytes_GET_SIZE(entries), done = 0, sequence = first_sequence, ahead_ms = 0
        cdef followed_entries entry
        cdef wan_status status = WAN_OK
        if region.changelog == NULL or bucket >= region.table.bucket_count:
            raise ValueError(f"region {self.state.name!r} has no bucket {bucket} that members share")
        with nogil:
            while length:
                status = wan_changelog_entry_check(at, length, False)
                if status == WAN_OK:
                    followed_begin(&entry, <const wan_changelog_entry *>at, sequence, 1)
                    status = region_follow(region, bucket, timeline, epoch, &entry, &ahead_ms)
                if status != WAN_OK and status != WAN_EMPTY:
                    break
                done += status == WAN_OK
                sequence += 1
                length -= (<const wan_changelog_entry *>at).length
                at += (<const wan_changelog_entry *>at).length
                status = WAN_OK
        if status == WAN_NO_MEMORY:
            raise MemoryError(f"region {self.state.name!r}: no memory for the changes of bucket {bucket}")
        if status != WAN_OK:
            raise ProtocolError(f"region {self.state.name!r}: change {sequence} of bucket {bucket} cannot follow"
                                " the ones that are here, or is damaged")
        return done

    @property
    def queues(self):
        """The attached queues."""
        return self.state.attached_queues

    def set_callback_path(self, change):
        """From now on changes go through `change(operation, key, value, callback_argument)`, which calls the user's
        Python. None: changes take the fast path, directly into the table and the queues."""
        self.state.attach(self.state.attached_queues, change, self.state.asking)

    @property
    def has_callback_path(self):
        """Whether changes go through the user's Python."""
        return self.state.seems_by_callbacks

    def close(self):
        """Refuses every operation from now on. The receiver then answers that the region does not exist. When the
        method returns, the rest of a bulk call under way is refused too."""
        self.state.close()

    @property
    def is_inherited(self):
        """Whether another process made the region, and this process was forked from it."""
        return self.state.born != wan_forks

    def one_wait(self):
        """A context for many changes: this thread's changes in the region are waited for once, at the end of the
        context."""
        return OneWait(self.state)

    def one_deadline(self):
        """A context for a call that makes several calls in this thread: all of the inner calls end by the deadline of
        the outer call."""
        return OneDeadline(self.state)


@cython.auto_pickle(False)
cdef class RegionFace(RegionCalls):
    """The facade of a region, which users hold: the compiled calls. The remaining calls are in Python, in
    `pywan.Region`."""
    cdef RegionCore core

    def __cinit__(self, RegionCore core not None):
        self.core, self.state = core, core.state

    def put_all(self, entries, callback_argument=None):
        """Puts every entry of a mapping or of pairs, in order, as an event of its own."""
        region_put_all(self.state, entries, None, callback_argument)

    def get_all(self, keys):
        """Returns a dict with the value of each given key, in order; None for a key without a value."""
        return region_get_all(self.state, keys)

    def update(self, entries=(), /, **more):
        """Puts every entry of a mapping or of pairs, and the keyword arguments, as `put_all` does."""
        region_put_all(self.state, entries, more, None)

    def remove_all(self, keys, callback_argument=None):
        """Destroys every given key that is present, in order, and returns the number of destroyed keys."""
        return region_remove_all(self.state, keys, callback_argument)


def core_of_face(RegionFace face not None):
    """The core behind a facade, for the member that holds the region."""
    return face.core


cdef class _Nothing:
    """Does nothing when called: the baseline for the benchmarks of single calls."""

    def put(self, key, value, callback_argument=None):
        pass
