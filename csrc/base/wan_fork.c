/* Owns the counting of forks. */
#include "base/wan_fork.h"

#include <pthread.h>

uint32_t wan_forks;

static void count_fork(void) { wan_forks++; }

int wan_forks_count(void)
{
    static int counts;
    if (!counts) counts = pthread_atfork((void *)0, (void *)0, count_fork) == 0;
    return counts;
}
