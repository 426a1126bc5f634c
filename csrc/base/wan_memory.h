/* Owns the number of bytes that were freed in bulk since the heap was last trimmed. The C library keeps freed pieces
 * for later. Without a trim the process stays as large as it ever was. */
#ifndef WAN_MEMORY_H
#define WAN_MEMORY_H
#include <stdint.h>

extern uint64_t wan_memory_freed;

static inline void wan_memory_note_freed(uint64_t bytes)
{
    __atomic_fetch_add(&wan_memory_freed, bytes, __ATOMIC_RELAXED);
}

/* Gives free pages of the heap back to the system if at least `least` bytes were noted since the last trim. Returns
 * whether it did. Meanwhile allocations of other threads wait, for a time that grows with the freed bytes. */
int wan_memory_trim(uint64_t least);

#endif
