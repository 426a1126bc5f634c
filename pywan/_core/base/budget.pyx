# Owns `MemoryBudget`, the count of a member's memory that others decide about, as Python sees it.
from libc.stdint cimport uint64_t
from pywan._core.c_base cimport *


cdef class MemoryBudget:
    """The memory of one member that waits for other members and for listeners, at most `limit` bytes. All change logs
    and connections of callers of the member have it. While it is full the member takes no more changes from callers."""

    def __cinit__(self, uint64_t limit):
        wan_budget_init(&self.budget, limit)

    @property
    def limit(self):
        return self.budget.limit

    @property
    def is_full(self):
        return bool(wan_budget_is_full(&self.budget))

    @property
    def waits(self):
        """How often a caller, or a connection of callers, had to wait because it was full."""
        return wan_read(&self.budget.waits)

    def used(self):
        """The bytes in use: of changes that copies have yet to acknowledge, of calls that wait, of changes that
        listeners are still to be told, and of what is remembered of calls. What is remembered counts up to half of the
        limit."""
        return {"changes": wan_read(&self.budget.used[WAN_BUDGET_CHANGES]),
                "calls": wan_read(&self.budget.used[WAN_BUDGET_CALLS]),
                "notifications": wan_read(&self.budget.used[WAN_BUDGET_NOTIFICATIONS]),
                "remembered": wan_read(&self.budget.used[WAN_BUDGET_REMEMBERED])}
