# Owns nothing but names: what callbacks need of C, beside what Cython has: the variable of a thread that runs them, a
# lock of Python with a wait that Ctrl-C ends, and the GIL for a part of a thread's work.
from cpython.pythread cimport PyThread_type_lock

cdef extern from "region/wan_callback.h" nogil:
    void *wan_callback_held

cdef extern from "Python.h" nogil:
    enum: PY_LOCK_ACQUIRED
    int PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int may_be_interrupted)
    ctypedef enum PyGILState_STATE:
        pass
    PyGILState_STATE PyGILState_Ensure()
    void PyGILState_Release(PyGILState_STATE before)
