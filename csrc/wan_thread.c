/* Thread numbers. */
#include "wan_thread.h"

_Atomic uint32_t wan_thread_count;
_Thread_local uint32_t wan_thread_own;
_Thread_local uint64_t wan_thread_events;
