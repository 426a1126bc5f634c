# Owns the layout of the answers to calls, in order of sending, and the words of the answers to calls that were not
# done.
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy, memset, strlen
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_session cimport *
from pywan._core.wire.stream cimport buffer_reserve


cdef class CallAnswers(Session):
    """A session that lays out answers. The answers to a call stay unsealed until their content is final."""

    cdef wan_answer *answer(self, const wan_call *call, uint8_t status, uint64_t length) noexcept nogil:
        """Lays out an answer with a payload of `length` bytes, the last 8 of them zero. NULL: no memory."""
        cdef wan_answer *answer
        cdef uint64_t whole = sizeof(wan_answer) + wan_align8(length)
        if not buffer_reserve(&self.out, whole):
            return NULL
        answer = <wan_answer *>(self.out.bytes + self.out.used)
        memset(answer, 0, sizeof(wan_answer))
        if length:
            memset(<uint8_t *>(answer + 1) + wan_align8(length) - 8, 0, 8)
        answer.magic, answer.kind, answer.status, answer.length = WAN_CALL_MAGIC, WAN_CALL_ANSWER, status, length
        answer.id = call.id if call != NULL else 0
        answer.form = WAN_FORM_NONE
        self.out.used += whole
        return answer

    cdef wan_answer *fail(self, const wan_call *call, uint8_t status, const char *kind, const char *words,
                          uint64_t done) noexcept nogil:
        """Lays out an answer with the reason of a failure in words: "[kind of the error] words"."""
        cdef uint64_t kind_length = strlen(kind), length = strlen(words)
        cdef wan_answer *answer = self.answer(call, status, kind_length + length + 3)
        cdef uint8_t *to
        if answer == NULL:
            return NULL
        to = <uint8_t *>(answer + 1)
        to[0] = c'['
        memcpy(to + 1, kind, kind_length)
        to[kind_length + 1], to[kind_length + 2] = c']', c' '
        memcpy(to + kind_length + 3, words, length)
        answer.done = done
        return answer

    cdef wan_answer *fail_with(self, const wan_call *call, object error, uint64_t done) noexcept:
        """Lays out an answer with the words of an exception."""
        from pywan.errors import PywanError
        kind = type(error).__name__ if isinstance(error, PywanError) else (
            "OutOfMemoryError" if isinstance(error, MemoryError) else "RemoteError")
        words = str(error) if isinstance(error, (PywanError, MemoryError)) else f"{type(error).__name__}: {error}"
        status = WAN_ANSWER_IN_DOUBT if getattr(error, "in_doubt", False) else WAN_ANSWER_FAILED
        return self.fail(call, status, kind.encode(), words.encode("utf-8", "replace")[:4000], done)

    cdef wan_answer *fail_status(self, const wan_call *call, wan_status status, uint64_t done) noexcept nogil:
        """The answer to a change that the region refused."""
        if status == WAN_IN_DOUBT:
            return self.fail(call, WAN_ANSWER_IN_DOUBT, b"ConnectivityError", wan_detail, done)
        if status == WAN_GIVEN_UP:
            return self.fail(call, WAN_ANSWER_GIVEN_UP, b"ConnectivityError", wan_detail, done)
        if status == WAN_CLOSED:
            return self.fail(call, WAN_ANSWER_FAILED, b"RegionNotFoundError",
                             b"the region was destroyed, or its cache closed", done)
        if status == WAN_FULL and wan_detail_status == WAN_LOW_MEMORY:
            return self.fail(call, WAN_ANSWER_FAILED, b"LowMemoryError", wan_detail, done)
        if status == WAN_FULL:
            return self.fail(call, WAN_ANSWER_FAILED, b"QueueFullError", wan_detail, done)
        if status == WAN_TOO_FEW:
            return self.fail(call, WAN_ANSWER_FAILED, b"ConnectivityError", wan_detail, done)
        if status == WAN_NO_MEMORY:
            return self.fail(call, WAN_ANSWER_FAILED, b"OutOfMemoryError", b"no memory for the change", done)
        return self.fail(call, WAN_ANSWER_FAILED, b"InternalError", wan_detail, done)

    cdef wan_answer *say_wrong_bucket(self, const wan_call *call, uint64_t done) noexcept nogil:
        return self.fail(call, WAN_ANSWER_FAILED, b"IllegalStateError",
                         b"the key lies in another bucket here: the members differ about the number of buckets", done)

    cdef wan_answer *say_not_remembered(self, const wan_call *call) noexcept nogil:
        return self.fail(call, WAN_ANSWER_IN_DOUBT, b"ConnectivityError",
                         b"an earlier attempt may have made the change, and this member, which has the region alone,"
                         b" remembers no calls", 0)

    cdef uint64_t last_answer(self) noexcept nogil:
        """The position of the answer that is laid out next."""
        return self.out.used - self.out.start

    cdef void seal(self, uint64_t begin) noexcept nogil:
        """Writes the checksums of the answers from `begin` on."""
        cdef uint64_t at = self.out.start + begin
        cdef wan_answer *answer
        while at < self.out.used:
            answer = <wan_answer *>(self.out.bytes + at)
            answer.crc = wan_answer_crc(answer)
            at += sizeof(wan_answer) + wan_align8(answer.length)
