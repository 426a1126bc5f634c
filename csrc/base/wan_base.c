/* Owns the error detail of each thread, and what happens to a handle in which a check of ours failed. */
#include "base/wan_base.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

_Thread_local char wan_detail[WAN_DETAIL_BYTES];
_Thread_local wan_status wan_detail_status;

void wan_note(wan_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(wan_detail, sizeof wan_detail, format, arguments);
    va_end(arguments);
    wan_detail_status = status;
}

#ifdef WAN_DEBUG
int wan_stops_at_breakage = 1;
#endif

wan_status wan_break(const wan_breakage **broken, const wan_breakage *at)
{
    if (!*broken) {
        __atomic_store_n(broken, at, __ATOMIC_RELEASE);
        fprintf(stderr, "pywan: internal check failed at %s:%d: %s\n", at->file, at->line, at->condition);
    }
#ifdef WAN_DEBUG
    if (wan_stops_at_breakage) abort();
#endif
    return wan_refuse_broken(*broken);
}

wan_status wan_refuse_broken(const wan_breakage *broken)
{
    return WAN_FAIL(WAN_BROKEN,
                    "internal check failed at %s:%d: %s; please report it. This object is not used any more, the "
                    "others of the process are",
                    broken->file, broken->line, broken->condition);
}

#ifdef WAN_DEBUG
_Noreturn void wan_check_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "pywan: internal check failed at %s:%d: %s\n", file, line, condition);
    abort();
}
#endif
