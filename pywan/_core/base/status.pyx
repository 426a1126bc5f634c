# Owns the errors behind statuses, the reports of failures that cannot be raised, and the count of this process's forks.
from libc.stdint cimport uint32_t, uint64_t
from cpython.pycapsule cimport PyCapsule_GetPointer
from pywan._core.c_base cimport *
from pywan._core.c_names cimport *


cdef const wan_env *environment_of(object capsule) except NULL:
    """The functions that stand in for the operating system's files: the `wan_env` in a capsule of that name. None: the
    real ones."""
    return &wan_env_posix if capsule is None else <const wan_env *>PyCapsule_GetPointer(capsule, "wan_env")


cdef object error_for(wan_status status, str during):
    """The exception for a status that is not WAN_OK, with this thread's detail."""
    from pywan import errors
    detail = (<bytes>wan_detail).decode("utf-8", "replace")
    message = f"{during}: {detail}" if during else detail
    kind = {
        WAN_TOO_LARGE: errors.EventTooLargeError, WAN_CORRUPT: errors.ProtocolError,
        WAN_IO: errors.DiskError, WAN_INVALID: errors.ConfigurationError, WAN_CLOSED: errors.IllegalStateError,
        WAN_TOO_FEW: errors.ConnectivityError,
    }.get(status, errors.InternalError)
    if status == WAN_NO_MEMORY:
        return MemoryError(message)
    return full_error(message) if status == WAN_FULL else kind(message)


cdef object full_error(str message):
    """The exception for a change that just found no room: the core has noted why in this thread. What waits for memory
    and is not made at all has another one: an earlier note would be taken for its reason."""
    from pywan import errors
    if wan_detail_status == WAN_LOW_MEMORY:
        return errors.LowMemoryError(message)
    return (errors.DiskAccessError if log_fails() else errors.QueueFullError)(message)

if not wan_forks_count():
    raise MemoryError("no memory to notice forks")
wan_lock_prepare()


# True in debug and sanitizer builds. Otherwise a failed check breaks only the handle that it is about.
checks_stop_the_process = bool(WAN_CHECKS_STOP)


def forks():
    """How often the process that loaded this module was forked until it became this one. 0: this is that process."""
    return wan_forks


cdef object error_of_child(str what):
    """The exception for a call in a child of the process that made the object."""
    from pywan.forks import error
    return error(what)


cdef int raise_for(wan_status status, str during) except -1:
    if status != WAN_OK:
        raise error_for(status, during)
    return 0


def trim_memory(uint64_t least=0):
    """Gives free pages of the heap back to the system, if regions and logs have freed at least `least` bytes since the
    last time. Returns whether it did."""
    cdef bint done
    with nogil:
        done = wan_memory_trim(least)
    return done


cdef str detail_text():
    return (<bytes>wan_detail).decode("utf-8", "replace")


cdef int end_if_strayed(uint32_t born, str where) except -1:
    """Ends a process that one of our callbacks forked, and that returned out of the callback."""
    if born != wan_forks:
        from pywan.forks import end_strayed_child
        end_strayed_child(where)
    return 0


cdef object report_unraisable(str where, object error):
    import logging
    logging.getLogger("pywan").error("%s failed: %s: %s", where, type(error).__name__, error, exc_info=error)


def crc32c(const uint8_t[::1] data, uint32_t crc=0):
    """CRC32C (Castagnoli) of a contiguous buffer, continued from `crc`."""
    cdef size_t n = data.shape[0]
    return wan_crc32c(crc, &data[0] if n else NULL, n)


def crc32c_portable(const uint8_t[::1] data, uint32_t crc=0):
    """The table form of `crc32c`: its oracle in tests."""
    cdef size_t n = data.shape[0]
    return wan_crc32c_portable(crc, &data[0] if n else NULL, n)
