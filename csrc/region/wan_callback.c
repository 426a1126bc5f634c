/* Owns the variable of a thread that runs callbacks. */
#include "region/wan_callback.h"

#include <stddef.h>

_Thread_local void *wan_callback_held;
