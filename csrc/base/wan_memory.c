/* Owns the trimming of the heap. */
#include "base/wan_memory.h"

#include <malloc.h>

uint64_t wan_memory_freed;

int wan_memory_trim(uint64_t least)
{
    if (__atomic_load_n(&wan_memory_freed, __ATOMIC_RELAXED) < least) return 0;
    __atomic_store_n(&wan_memory_freed, 0, __ATOMIC_RELAXED);
    malloc_trim(0);
    return 1;
}
