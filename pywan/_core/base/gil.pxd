# Owns how a thread that has the GIL takes locks of the core. It keeps the GIL while it spins, and lets go of the GIL
# before it sleeps. It never waits for the GIL while it holds a lock (docs/decisions/0099).
from pywan._core.c_base cimport *
from pywan._core.c_python cimport wan_come_back_to_gil, wan_leave_gil


cdef inline void gil_may_go() noexcept nogil:
    """The caller has the GIL and no lock of the core. Until `gil_back` it runs code that does not need the GIL, and the
    GIL goes if that code has to sleep for a lock. A function between the two is compiled as nogil."""
    wan_lock_sleeper_own.let_go = wan_leave_gil


cdef inline void gil_back() noexcept nogil:
    """The caller has released all locks that it took since `gil_may_go`. It has the GIL when this returns."""
    cdef wan_lock_sleeper *self = &wan_lock_sleeper_own
    cdef void *gone = self.gone
    self.let_go = self.gone = NULL
    if gone != NULL:
        wan_come_back_to_gil(gone)


cdef inline void lock_take_with_gil(wan_lock *lock) noexcept:
    """Takes a lock for a few lines that need the GIL. They take no other lock, and none is held. If the lock is not
    free soon, the GIL goes until it was free: it is taken again before the lock is."""
    while not (wan_lock_try(lock) or wan_lock_spin(lock)):
        with nogil:
            wan_lock_take(lock)
            wan_lock_release(lock)
