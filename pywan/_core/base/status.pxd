# The interface of status.pyx.
from libc.stdint cimport uint32_t
from pywan._core.c_base cimport *

cdef const wan_env *environment_of(object capsule) except NULL
cdef object full_error(str message)


cdef inline bint log_fails() noexcept nogil:
    """Whether a change found no room because a log is not written. Then dropping events makes no room for it."""
    return wan_detail_status == WAN_IO or wan_detail_status == WAN_NO_MEMORY


cdef object error_of_child(str what)
cdef int raise_for(wan_status status, str during) except -1


cdef inline wan_status corrupt(const char *what) noexcept nogil:
    wan_note(WAN_CORRUPT, "%s", what)
    return WAN_CORRUPT


cdef str detail_text()
cdef int end_if_strayed(uint32_t born, str where) except -1
cdef object report_unraisable(str where, object error)
