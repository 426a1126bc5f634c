/* Owns which bulk call this thread makes: its changes do not wait for the disk each, but together at its end. */
#ifndef WAN_BULK_H
#define WAN_BULK_H

enum { WAN_BULK_CHANGED = 1, WAN_BULK_QUEUED = 2 };

extern _Thread_local const void *wan_bulk_region; /* The region of the call; NULL: there is none. */
extern _Thread_local int wan_bulk_waits;          /* WAN_BULK_*: what its end is to wait for. */

#endif
