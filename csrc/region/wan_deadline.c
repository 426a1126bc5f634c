/* Owns the variable of a thread's deadline. */
#include "region/wan_deadline.h"

_Thread_local uint64_t wan_deadline_us;
_Thread_local uint32_t wan_call_depth;
