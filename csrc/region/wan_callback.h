/* Owns which region's callbacks this thread runs. */
#ifndef WAN_CALLBACK_H
#define WAN_CALLBACK_H

/* The innermost callback lock that this thread holds. NULL: the thread holds none. */
extern _Thread_local void *wan_callback_held;

#endif
