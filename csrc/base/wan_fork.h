/* Owns the count of forks between the process that loaded the core and this process. An object notes the count when it
 * is made. One comparison then tells whether the process that uses the object also made it. */
#ifndef WAN_FORK_H
#define WAN_FORK_H
#include <stdint.h>

/* It changes only while the process has one thread: in a child, before fork returns there. */
extern uint32_t wan_forks;

/* Begins to count forks. Another call has no effect. Returns 0 where the system has no memory for it. */
int wan_forks_count(void);

#endif
