/* Owns the variables of a thread's bulk call. */
#include "region/wan_bulk.h"

#include <stddef.h>

_Thread_local const void *wan_bulk_region;
_Thread_local int wan_bulk_waits;
