/* Owns the index of the parked events of a sender that several members have: what each event is called, where it lies
 * in the queue of parked events, and which events have left (docs/decisions/0108). It is not thread-safe. */
#ifndef WAN_PARKED_H
#define WAN_PARKED_H
#include "record/wan_record.h"

/* The name of an event: a digest of the event id, the version and the key. All members compute the same mark, and tell
 * each other marks, so the digest is a format. A mark is never all zeros. */
typedef struct {
    uint64_t low, high;
} wan_event_mark;
_Static_assert(sizeof(wan_event_mark) == 16, "a mark is a format");

enum {
    WAN_PARKED_FREE = 0,
    WAN_PARKED_HERE,     /* The event is parked. */
    WAN_PARKED_REPLAYED, /* It is parked still, and queued again too. */
    WAN_PARKED_LEFT,     /* It was replayed or dropped: it does not come back. */
};

typedef struct {
    wan_event_mark mark;
    uint64_t key_hash, stamp;
    uint64_t sequence; /* Its record's, in `partition` of the queue of parked events. WAN_PARKED_LEFT: its turn. */
    uint64_t replayed; /* WAN_PARKED_REPLAYED: it has left the queue with this sequence of `replayed_partition`. */
    uint16_t region, replayed_partition;
    uint8_t partition, state; /* `state`: WAN_PARKED_* */
    uint8_t stamp_site;
    uint8_t reserved;
} wan_parked_event;

#define WAN_PARKED_LEFT_MAX 65536u /* So many events are remembered as left: the newest. */

/* Zeros are an empty one. */
typedef struct {
    wan_parked_event *events; /* By the low half of the mark. `capacity` of them, a power of two. */
    uint64_t capacity, used;
    uint64_t here, replayed, left; /* By their states. */
    wan_event_mark *turns;         /* The marks that left, by their turns, in a ring. */
    uint64_t turn;                 /* The turn of the next event that leaves. */
} wan_parked;

wan_event_mark wan_mark_of(const wan_record *record, uint64_t key_hash);
/* Returns the event, whatever its state. NULL: the index does not have the event. The pointer is valid until another
 * function than this one is called. */
wan_parked_event *wan_parked_find(const wan_parked *parked, const wan_event_mark *mark);
/* Makes room for one event more. WAN_NO_MEMORY: nothing changed. */
wan_status wan_parked_reserve(wan_parked *parked);
/* Adds an event that is not known as WAN_PARKED_HERE. There is room for it. The caller fills it. */
wan_parked_event *wan_parked_add(wan_parked *parked, const wan_event_mark *mark);
void wan_parked_set(wan_parked *parked, wan_parked_event *event, uint8_t state);
/* Remembers an event as left, known or not, and forgets the oldest one that left beyond WAN_PARKED_LEFT_MAX.
 * WAN_NO_MEMORY: nothing changed. */
wan_status wan_parked_leave(wan_parked *parked, const wan_event_mark *mark);
/* Forgets an event: nothing is known of it. */
void wan_parked_forget(wan_parked *parked, wan_parked_event *event);
void wan_parked_close(wan_parked *parked);

#endif
