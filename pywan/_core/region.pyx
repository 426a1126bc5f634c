# Owns `RegionCore`, what Python sees of a region's compiled half, and `RegionFace`, what of it users hold.
cimport cython
from libc.stdint cimport uint8_t, uint32_t
from pywan._core.c_base cimport *
from pywan._core.clock cimport Clock
from pywan._core.region_base cimport OneWait, RegionBase
from pywan._core.region_changes cimport RegionCalls
from pywan._core.region_persistence cimport PersistentRegion


cdef class RegionCore(PersistentRegion):
    """The compiled half of a region: table, versions, and the way into the attached senders' queues."""

    def __cinit__(self, str name, Clock clock not None, *args, int site=0, uint32_t member=0, bint stores=True,
                  bint forwards=True,
                  uint32_t buckets=0, **kwargs):
        self.state = RegionBase(name, clock, <uint8_t>site, member, stores, forwards, buckets)

    def attach(self, queues, slow=..., asking=()):
        """Replaces the attached senders by these EventQueues, and recomputes whom new events will reach: the remote
        sites of those that run. Call it again when a sender starts or stops. `slow`: as `set_slow`, as one step with
        the queues; one caller at a time. `asking`: those of them whose senders have filters: no event enters them that
        these were not asked about. When it returns, no change goes by what was before."""
        self.state.attach(queues, slow, asking)

    @property
    def queues(self):
        """The attached queues."""
        return self.state.attached_queues

    def set_slow(self, change):
        """`change(operation, key, value, callback_argument)`: how changes go while user's Python is on the way; None:
        not at all."""
        self.state.attach(self.state.attached_queues, change, self.state.asking)

    @property
    def is_slow(self):
        return self.state.seems_slow

    def close(self):
        """Every operation is refused from now on; the receiver answers that the region is not there. That goes for the
        rest of bulk calls too, when it returns."""
        self.state.close()

    @property
    def is_inherited(self):
        """Whether another process made it, from which this one was forked."""
        return self.state.born != wan_forks

    def one_wait(self):
        """A context: what this thread changes in the region while it is entered is waited for at its end, once."""
        return OneWait(self.state)


@cython.auto_pickle(False)
cdef class RegionFace(RegionCalls):
    """What users hold of a region: the calls that are compiled. All else is in Python, in `pywan.Region`."""
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
