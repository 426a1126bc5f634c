# The interface of budget.pyx.
from pywan._core.c_base cimport wan_budget

cdef class MemoryBudget:
    cdef wan_budget budget
