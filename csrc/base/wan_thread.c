/* Owns the variables behind wan_thread.h: the numbers of threads that make events. */
#include "base/wan_thread.h"

_Atomic uint32_t wan_thread_count;
_Thread_local wan_thread wan_thread_own;
