/* Owns which bulk call this thread makes. The changes of a bulk call do not wait for the disk one by one. The call
 * waits once at its end. */
#ifndef WAN_BULK_H
#define WAN_BULK_H

/* A bulk call waits until its changes are on the disk, and the events that queues took. */
enum { WAN_BULK_CHANGED = 1, WAN_BULK_QUEUED = 2 };

/* The region of the call. NULL: the thread makes no bulk call. */
extern _Thread_local const void *wan_bulk_region;
/* WAN_BULK_*: what the call has to wait for at its end. */
extern _Thread_local int wan_bulk_waits;

#endif
