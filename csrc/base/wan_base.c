/* The error detail of a thread, and the stop of a process that found a bug in itself. */
#include "base/wan_base.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

_Thread_local char wan_detail[WAN_DETAIL_BYTES];
_Thread_local wan_status wan_detail_status;

wan_status wan_fail(wan_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(wan_detail, sizeof wan_detail, format, arguments);
    va_end(arguments);
    wan_detail_status = status;
    return status;
}

_Noreturn void wan_check_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "pywan: internal check failed at %s:%d: %s\n", file, line, condition);
    abort();
}
