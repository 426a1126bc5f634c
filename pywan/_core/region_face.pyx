# Owns `RegionFace`: what of a region users call that is compiled. It has a core, and shows nothing of it.
cimport cython
from libc.stdint cimport uint8_t
from pywan._core.region cimport RegionCore


@cython.auto_pickle(False)
cdef class RegionFace:
    """What users hold of a region: the calls that are compiled. All else is in Python, in `pywan.Region`."""
    cdef RegionCore core

    def __cinit__(self, RegionCore core not None):
        self.core = core

    @property
    def name(self):
        return self.core.name

    @property
    def is_closed(self):
        """Whether it was destroyed, or its cache closed."""
        return self.core.is_closed

    @property
    def applied(self):
        """Remote changes that took effect."""
        return self.core.applied

    @property
    def conflicts(self):
        """Remote changes that lost against a later version."""
        return self.core.conflicts

    @property
    def memory_bytes(self):
        """Bytes allocated for entries and slots."""
        return self.core.memory_bytes

    @property
    def tombstones(self):
        """Destroyed keys that are remembered."""
        return self.core.tombstones

    def __len__(self):
        return len(self.core)

    def __contains__(self, key):
        cdef uint8_t form
        cdef bint live
        self.core.find_bytes(key, &form, &live)
        return live

    def put(self, key, value, callback_argument=None):
        """Stores `value` under `key` and hands the event to the attached senders. Raises QueueFullError,
        EventTooLargeError or SerializationError; then nothing was stored and nothing will be sent."""
        self.core.put_one(key, value, callback_argument)

    def get(self, key, default=None):
        """The value under `key`, or `default`. SerializationError for a value that is no object in this process."""
        return self.core.get_one(key, default)

    def destroy(self, key, callback_argument=None):
        """Removes `key` everywhere. KeyError if it is not there."""
        self.core.destroy(key, callback_argument)

    def local_destroy(self, key):
        """Removes the entry on this member only; nothing is sent. KeyError if it is not there."""
        self.core.local_destroy(key)

    def invalidate(self, key):
        """Drops the value and keeps the key with its version; not sent to other sites. KeyError if the key is not there."""
        self.core.invalidate(key)

    def put_columns(self, keys, values, *, operations=None, timestamps=None):
        """Changes row by row from two columns, in one call without the GIL.

        `keys`, `values`: Arrow arrays, fixed-width numpy arrays, (offsets, data) pairs, lists of bytes or str, or Column.
        `operations`: create/update/destroy per row (default update). `timestamps`: milliseconds since 1970 per row.
        Returns the number of rows that took effect (a destroy of a key that is not there has none).
        BatchError lists the rows that were refused; all others were done.
        """
        return self.core.put_columns(keys, values, operations=operations, timestamps=timestamps)

    def wait_durable(self):
        """Returns when what has been changed and enqueued so far is on the disk, where that is synchronous."""
        self.core.wait_durable()


def core_of_face(RegionFace face not None):
    """What a region has: for the member that holds it."""
    return face.core
