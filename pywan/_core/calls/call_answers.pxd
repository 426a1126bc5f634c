# The interface of call_answers.pyx.
from libc.stdint cimport uint8_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_session cimport *
from pywan._core.wire.session cimport Session

cdef class CallAnswers(Session):
    cdef readonly uint64_t served   # Calls with an answer.
    cdef readonly uint64_t rounds   # How often a group of answers was sent.

    cdef wan_answer *answer(self, const wan_call *call, uint8_t status, uint64_t length) noexcept nogil
    cdef wan_answer *fail(self, const wan_call *call, uint8_t status, const char *kind, const char *words,
                          uint64_t done) noexcept nogil
    cdef wan_answer *fail_with(self, const wan_call *call, object error, uint64_t done) noexcept
    cdef wan_answer *fail_status(self, const wan_call *call, wan_status status, uint64_t done) noexcept nogil
    cdef wan_answer *say_wrong_bucket(self, const wan_call *call, uint64_t done) noexcept nogil
    cdef wan_answer *say_not_remembered(self, const wan_call *call) noexcept nogil
    cdef uint64_t last_answer(self) noexcept nogil
    cdef void seal(self, uint64_t begin) noexcept nogil
