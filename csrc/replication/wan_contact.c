/* Owns the places of contacts. */
#include "replication/wan_contact.h"

#define PLACES 4096u /* More connections of replication links than a process has at the same time. */

/* `number` names the contact of the place: a contact writes and trusts `received_us` only while the place is its own.
 * Both fields are atomic. */
static struct {
    uint64_t number, received_us;
} places[PLACES];
static uint64_t newest; /* The newest number of a contact. Atomic. */

uint64_t wan_contact_begin(void)
{
    uint64_t contact = __atomic_add_fetch(&newest, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&places[contact % PLACES].received_us, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&places[contact % PLACES].number, contact, __ATOMIC_RELEASE);
    return contact;
}

void wan_contact_received(uint64_t contact, uint64_t after_us)
{
    if (__atomic_load_n(&places[contact % PLACES].number, __ATOMIC_ACQUIRE) == contact)
        __atomic_store_n(&places[contact % PLACES].received_us, after_us, __ATOMIC_RELEASE);
}

void wan_contact_end(uint64_t contact)
{
    uint64_t expected = contact;
    if (contact)
        __atomic_compare_exchange_n(&places[contact % PLACES].number, &expected, 0, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED);
}

int wan_contact_is_fresh(uint64_t contact)
{
    if (contact == 0) return 0;
    uint64_t received_us = __atomic_load_n(&places[contact % PLACES].received_us, __ATOMIC_ACQUIRE);
    /* The number is read last: a later contact sets its time to 0 before it takes the place. */
    return __atomic_load_n(&places[contact % PLACES].number, __ATOMIC_ACQUIRE) == contact
           && wan_monotonic_us() <= received_us + WAN_CONTACT_FRESH_US;
}
