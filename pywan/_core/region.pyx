# Owns `RegionCore`, the compiled half of a region as Python sees it, and `RegionFace`, the part of it that users hold.
cimport cython
from libc.stdint cimport uint8_t, uint32_t
from pywan._core.c_base cimport *
from pywan._core.clock cimport Clock
from pywan._core.region_base cimport OneWait, RegionBase
from pywan._core.region_changes cimport RegionCalls
from pywan._core.region_persistence cimport PersistentRegion


cdef class RegionCore(PersistentRegion):
    """The compiled half of a region: its table and versions. It also puts events into the attached senders' queues."""

    def __cinit__(self, str name, Clock clock not None, *args, int site=0, uint32_t member=0, bint stores=True,
                  bint forwards=True, uint32_t buckets=0, **kwargs):
        self.state = RegionBase(name, clock, <uint8_t>site, member, stores, forwards, buckets)

    def attach(self, queues, callback_change=..., asking=()):
        """Replaces the attached senders by these EventQueues, and recomputes which sites new events will reach: the
        remote sites of the senders that run. Call it again when a sender starts or stops; one caller at a time.
        `callback_change`: as for `set_callback_route`; it takes effect in one step with the queues. `asking`: the
        queues whose senders have filters; no event enters them before the filters were asked about it. When this
        returns, no change uses the old queues or the old route."""
        self.state.attach(queues, callback_change, asking)

    @property
    def queues(self):
        """The attached queues."""
        return self.state.attached_queues

    def set_callback_route(self, change):
        """From now on changes go through `change(operation, key, value, callback_argument)`, which calls the user's
        Python. None: they go straight into the table and the queues."""
        self.state.attach(self.state.attached_queues, change, self.state.asking)

    @property
    def has_callback_route(self):
        """Whether changes go through the user's Python."""
        return self.state.seems_by_callbacks

    def close(self):
        """Refuses every operation from now on. The receiver then answers that the region is not there. When this
        returns, the rest of a bulk call that is running is refused too."""
        self.state.close()

    @property
    def is_inherited(self):
        """Whether another process made the region, and this process was forked from it."""
        return self.state.born != wan_forks

    def one_wait(self):
        """A context for many changes: the changes that this thread makes in the region while the context is entered are
        waited for once, at its end."""
        return OneWait(self.state)


@cython.auto_pickle(False)
cdef class RegionFace(RegionCalls):
    """The part of a region that users hold: the compiled calls. The other calls are in Python, in `pywan.Region`."""
    cdef RegionCore core

    def __cinit__(self, RegionCore core not None):
        self.core, self.state = core, core.state


def core_of_face(RegionFace face not None):
    """What a region has: for the member that holds it."""
    return face.core


cdef class _Nothing:
    """Does nothing when called: what the benchmarks of single calls are measured against."""

    def put(self, key, value, callback_argument=None):
        pass
