/* Owns, for each replication link, the age of the peer's last message. A replica answers reads alone only if its
 * primary was in contact a moment ago, on the connection of the bucket's last accepted section. Each connection of a
 * replication link is one contact. A bucket keeps the number of its contact, and no pointer: an ended contact, or a
 * contact whose place was given away, is not fresh. */
#ifndef WAN_CONTACT_H
#define WAN_CONTACT_H
#include "base/wan_base.h"
#include "base/wan_clock.h"

/* A primary sends a frame at least every tenth of a second. The rest of the time allows for threads that do not run,
 * and for slow replication links. */
#define WAN_CONTACT_FRESH_US 500000u

/* Begins the contact of a new connection, without any message yet. Returns the number of the contact, which is not
 * 0. */
uint64_t wan_contact_begin(void);
/* The peer sent a message after this moment (wan_monotonic_us). The message may have been on its way for long, so
 * `after_us` is not the time of arrival: at `after_us` this member sent the newest answer known to the peer. */
void wan_contact_received(uint64_t contact, uint64_t after_us);
void wan_contact_end(uint64_t contact);
/* Whether the peer has sent a message in the last WAN_CONTACT_FRESH_US. 0 is never fresh. */
int wan_contact_is_fresh(uint64_t contact);

#endif
