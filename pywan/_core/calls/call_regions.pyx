# Owns the regions that a client has named: the name behind each number, this member's region of the name, and the
# answer if the member has no such region, or is not primary.
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint64_t
from libc.string cimport memcpy
from pywan._core.c_base cimport *
from pywan._core.c_session cimport *
from pywan._core.base.status cimport report_unraisable
from pywan._core.region.compiled_region cimport CompiledRegion
from pywan._core.region.region_changes cimport RegionCalls


@cython.no_gc_clear
cdef class CallRegions(PendingCalls):
    """A session that finds the regions of calls."""

    def __cinit__(self):
        self.names, self.states, self.former = {}, {}, []
        self.regions.item_bytes = sizeof(region_core *)

    def __dealloc__(self):
        with nogil:
            self.drop_pending()     # While `states` and `former` keep the change logs with the pending calls alive.
        wan_pages_close(&self.regions)

    cdef region_core *known(self, uint16_t number) noexcept nogil:
        """The region with the client's number, as of the last look-up. NULL: no look-up was made, or found no
        region."""
        cdef region_core **found = <region_core **>wan_pages_find(&self.regions, number)
        return NULL if found == NULL else found[0]

    cdef int set_known(self, uint16_t number, region_core *region) except -1:
        cdef region_core **to = <region_core **>wan_pages_put(&self.regions, number)
        if to == NULL:
            raise MemoryError(f"no memory for region number {number} of a caller")
        to[0] = region
        return 0

    cdef bint name_region(self, const wan_call *call) noexcept nogil:
        with gil:
            try:
                name = (<const uint8_t *>(call + 1))[:call.length].decode("utf-8")
                self.set_known(call.region, NULL)
                self.names[call.region] = name
            except UnicodeDecodeError:
                wan_note(WAN_CORRUPT, "a region's name that is not UTF-8")
                return False
            except MemoryError:
                wan_note(WAN_NO_MEMORY, "no memory for a region's name")
                return False
        return True

    cdef region_core *region_of(self, uint16_t number) noexcept nogil:
        """The region with the client's number. NULL: this member has no such region, or the client did not name the
        region."""
        cdef region_core *region = self.known(number)
        if region == NULL or wan_flag_read(&region.closed):
            with gil:
                self.look_up(number)
        return self.known(number)

    cdef int look_up(self, uint16_t number) except? -1:
        """Looks for the region of the name: the region may have been created since the last look-up."""
        cdef RegionCalls core
        cdef CompiledRegion state
        if self.known(number) != NULL:
            self.set_known(number, NULL)
        before = self.states.pop(number, None)
        if before is not None and self.pending:
            self.former.append(before)
        elif self.former and not self.pending:
            self.former.clear()
        try:
            # A session for the member's own calls has no `find_region`.
            core = self.find_region(self.names[number]) if self.find_region and number in self.names else None
            if core is not None and not core.state.region.closed:
                state = self.states[number] = core.state
                self.set_known(number, &state.region)
        except BaseException as error:
            report_unraisable("the search for the region of a call", error)
        return 0

    cdef bint no_region(self, const wan_call *call) noexcept nogil:
        with gil:
            return self.fail_with(call, self.not_there(call.region), 0) != NULL

    cdef object not_there(self, uint16_t number):
        from pywan.errors import RegionNotFoundError
        if number not in self.names:
            return RegionNotFoundError(f"nobody has named region number {number}")
        return RegionNotFoundError(f"region {self.names[number]!r} is not at this member, or is not open yet")

    cdef wan_answer *say_not_primary(self, const wan_call *call, region_core *region) noexcept nogil:
        """The answer to a call that was not done, because this member is not primary. The answer names the primary, if
        the name may be news for the client."""
        cdef wan_answer *answer
        cdef const char *words = NULL
        cdef uint64_t length = 0
        if region.changelog != NULL:
            with gil:
                told = self.known_primary(call)
                words, length = told, len(told)
                answer = self.answer(call, WAN_ANSWER_NOT_PRIMARY, length)
                if answer != NULL and length:
                    memcpy(answer + 1, words, length)
        else:
            answer = self.answer(call, WAN_ANSWER_NOT_PRIMARY, 0)
        if answer != NULL and region.changelog != NULL:
            answer.number = wan_read(&region.changelog.buckets[call.bucket].epoch)
        return answer

    cdef bytes known_primary(self, const wan_call *call):
        """Returns the primary of the call's bucket, as the route encodes a primary. Empty: no news for the client."""
        cdef CompiledRegion state = self.states[call.region]
        try:
            return b"" if state.route is None else state.route.tell_primary(call.bucket, call.epoch)
        except BaseException as error:
            report_unraisable("the search for the primary of a bucket", error)
            return b""
