/* Owns how old what the other ends of lanes have said is: a copy answers reads alone only as long as its primary was
 * there a moment ago, on the connection on which it took a section of the bucket. Each connection of a lane is one
 * contact. A bucket keeps the number of its contact, and no pointer: a contact that has ended, or whose place was given
 * to a later one, is not fresh. */
#ifndef WAN_CONTACT_H
#define WAN_CONTACT_H
#include "base/wan_base.h"
#include "base/wan_clock.h"

/* A primary says something at least every tenth of a second. The rest is for threads that do not run, and for
 * slow lanes. */
#define WAN_CONTACT_FRESH_US 500000u

/* A new connection. Returns the number of the contact, which is not 0. Nothing was heard yet. */
uint64_t wan_contact_begin(void);
/* The other end has said something after this moment (wan_monotonic_us). What it said may have been on its way for
 * long, so the moment is not that at which it came: it is when this member sent the newest answer of which the other
 * end knows. */
void wan_contact_heard(uint64_t contact, uint64_t after_us);
void wan_contact_end(uint64_t contact);
/* Whether the other end has said something in the last WAN_CONTACT_FRESH_US. 0 is never fresh. */
int wan_contact_is_fresh(uint64_t contact);

#endif
