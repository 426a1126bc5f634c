/* Owns what a log says of an event: its region and its key. It is taken from the event's record under a lock, before
 * the record leaves its queue. */
#ifndef WAN_EVENT_NAME_H
#define WAN_EVENT_NAME_H
#include <string.h>

#include "record/wan_record.h"

#define WAN_NAMED_KEY_BYTES 256u /* A longer key is cut. */

typedef struct {
    uint32_t key_length; /* Of what is here of the key. 0 also if the record could not be read. */
    uint16_t region;
    uint8_t operation, key_form;
    uint8_t key[WAN_NAMED_KEY_BYTES];
} wan_event_name;

static inline void wan_name_event(wan_event_name *name, const wan_record *record)
{
    name->region = record->region;
    name->operation = record->operation;
    name->key_form = record->key_form;
    name->key_length = record->key_length < WAN_NAMED_KEY_BYTES ? record->key_length : WAN_NAMED_KEY_BYTES;
    memcpy(name->key, wan_record_key(record), name->key_length);
}

#endif
