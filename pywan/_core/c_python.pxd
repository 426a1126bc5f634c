# Owns nothing but names: what compiled code calls of Python, beside what Cython has.
from cpython.pythread cimport PyThread_type_lock

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    bint PyBytes_CheckExact(object obj)
    bint PyUnicode_CheckExact(object obj)
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    const void *PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    object PyMemoryView_FromMemory(char *at, Py_ssize_t size, int flags)
    enum: PyBUF_READ, PyBUF_WRITE
    int Py_AddPendingCall(int (*call)(void *) noexcept, void *argument)

cdef extern from "Python.h" nogil:
    enum: PY_LOCK_ACQUIRED
    int PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int may_be_interrupted)
    ctypedef enum PyGILState_STATE:
        pass
    PyGILState_STATE PyGILState_Ensure()
    void PyGILState_Release(PyGILState_STATE before)

cdef extern from *:
    """
    static inline void *wan_leave_gil(void) { return PyEval_SaveThread(); }
    static inline void wan_come_back_to_gil(void *left) { PyEval_RestoreThread((PyThreadState *)left); }
    """
    void *wan_leave_gil() noexcept nogil
    void wan_come_back_to_gil(void *left) noexcept nogil
