/* Owns the count of forks between the process that loaded the core and this one. An object that notes the count when it
 * is made can tell at the cost of one comparison whether it is used in the process that made it. */
#ifndef WAN_FORK_H
#define WAN_FORK_H
#include <stdint.h>

extern uint32_t wan_forks; /* Changes only while a process has one thread: in a child, before fork returns there. */

/* Begins to count. Again: no effect. Returns 0 where the system has no memory for it. */
int wan_forks_count(void);

#endif
