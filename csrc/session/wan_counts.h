/* Owns the tables of counters: for a sender's queue, also stored in the queue's log, and for a receiver. A row says
 * everything about a counter. The struct, the names in Python, the ledger and the tables of the documents are made from
 * the rows (docs/recipes.md).
 *
 * X(number, field, statistic, entry, part_of, about)
 *   number     the counter's number in the state of a log. No later counter ever gets it, so every log stays readable
 *   field      the field of the struct, and the name in `EventQueue.counts()`
 *   statistic  the statistic of the sender to which the counter is added ("": none)
 *   entry      the entry of the ledger to which the counter is added: "entry" or "entry/part" ("": none)
 *   part_of    the total of the ledger that includes the entry: "received" or "queued" ("": none)
 *   about      the meaning of the counter */
#ifndef WAN_COUNTS_H
#define WAN_COUNTS_H
#include "base/wan_base.h"

#define WAN_QUEUE_COUNTERS(X)                                                                                          \
    X(1, received, "events_received", "received", "", "happened in regions that this sender is attached to")           \
    X(2, queued, "events_queued", "queued", "received", "were put in the queue")                                       \
    X(3, not_queued, "not_queued_event", "not_queued", "received",                                                     \
      "made on this member only, or in a region that does not feed gateways")                                          \
    X(4, not_queued_loop, "events_not_queued_already_there", "not_queued", "received",                                 \
      "loop control: the remote site made it, has it, or will get it from another")                                    \
    X(5, filtered_enqueue, "events_filtered", "filtered_before_enqueue", "received",                                   \
      "a filter's `before_enqueue` refused")                                                                           \
    X(25, withheld, "events_withheld", "withheld", "received",                                                         \
      "the substitution filter failed: parked or dropped, as `substitution-on-error` says")                            \
    X(6, dropped_stopped, "events_dropped_due_to_primary_sender_not_running", "dropped/sender not running",            \
      "received", "came while the sender was stopped")                                                                 \
    X(7, dropped_newest, "", "dropped/queue full, newest", "received",                                                 \
      "found the queue full, with `full-policy=drop-newest`")                                                          \
    X(10, distributed, "events_distributed", "distributed", "queued",                                                  \
      "the remote site acknowledged: it applied or knew the event, or found it older than what it has")                \
    X(11, conflated_batch, "events_conflated_from_batches", "conflated", "queued", "replaced in a batch")              \
    X(12, filtered_transmit, "events_filtered", "filtered_before_transmit", "queued",                                  \
      "a filter's `before_transmit` refused")                                                                          \
    X(13, parked, "events_parked", "parked", "queued",                                                                 \
      "the remote site refused; kept until replayed or dropped, and counted here still when dropped")                  \
    X(23, restamped, "", "restamped", "queued",                                                                        \
      "were ahead of the time, and gave way to what `repair clock` queued instead")                                    \
    X(8, dropped_oldest, "", "dropped_from_queue/queue full, oldest", "queued",                                        \
      "made room for newer ones, with `full-policy=drop-oldest`")                                                      \
    X(9, dropped_cleared, "", "dropped_from_queue/cleared", "queued", "an operator removed")                           \
    X(14, batches_distributed, "batches_distributed", "", "",                                                          \
      "batches that were acknowledged, with at least one event")                                                       \
    X(15, batches_redistributed, "batches_redistributed", "", "",                                                      \
      "batches in flight when a connection broke; sent again")                                                         \
    X(16, batches_resized, "batches_resized", "", "", "always 0 here: batches are bounded before they are built")      \
    X(17, bytes_distributed, "bytes_distributed", "", "", "payload of acknowledged batches, before compression")       \
    X(18, possible_duplicates, "possible_duplicates_sent", "", "", "events sent as possible duplicates")               \
    X(19, acknowledgements, "", "", "", "acknowledgements that removed events")                                        \
    X(20, wire_bytes, "wire_bytes_sent", "", "", "bytes sent, with headers, after compression, repeats included")      \
    X(21, exceeding_alert_threshold, "events_exceeding_alert_threshold", "", "",                                       \
      "acknowledged older than `alert-threshold` ms (0: not counted)")                                                 \
    X(22, newest_stamp, "", "", "",                                                                                    \
      "no counter: with persistence, nothing that the queue ever held has a later stamp")                              \
    X(24, clock_repairs, "", "", "", "no counter of events: how often the newest stamp was set back")

/* X(field, statistic, about): the counters of a receiver, over all connections and restarts. The counters are
 * not on disk. */
#define WAN_RECEIVER_COUNTERS(X)                                                                                       \
    X(events_received, "events_received", "taken up once each: applied, lost a conflict, or failed")                   \
    X(create_requests, "create_requests", "creates among them")                                                        \
    X(update_requests, "update_requests", "updates among them")                                                        \
    X(destroy_requests, "destroy_requests", "destroys among them")                                                     \
    X(batches_received, "batches_received", "with repeats")                                                            \
    X(duplicate_batches, "duplicate_batches_received", "sections that were known as a whole")                          \
    X(duplicates_skipped, "duplicate_events_skipped", "events in batches that were known")                             \
    X(out_of_order_batches, "out_of_order_batches_received",                                                           \
      "gaps: refused, the sender rewinds. Not 0 at rest: report it")                                                   \
    X(exceptions_occurred, "exceptions_occurred", "events refused (they are parked at their sender)")                  \
    X(possible_duplicates, "possible_duplicate_events_received", "possible duplicates that were new here")             \
    X(conflicts, "conflicts_lost",                                                                                     \
      "events older than what is stored. Regions with user callbacks count theirs in `region.conflicts` only")         \
    X(bytes_received, "bytes_received", "as sent, with repeats")

/* The queue's lock guards the counters, so the ledger balances at every moment. */
typedef struct {
#define WAN_FIELD(number, field, ...) uint64_t field;
    WAN_QUEUE_COUNTERS(WAN_FIELD)
#undef WAN_FIELD
} wan_queue_counts;

/* All counters are atomic. */
typedef struct {
#define WAN_FIELD(field, ...) uint64_t field;
    WAN_RECEIVER_COUNTERS(WAN_FIELD)
#undef WAN_FIELD
} wan_receiver_counts;

enum {
    WAN_QUEUE_COUNTERS_COUNT = sizeof(wan_queue_counts) / 8,
    WAN_RECEIVER_COUNTERS_COUNT = sizeof(wan_receiver_counts) / 8
};

typedef struct {
    int number;
    const char *field, *statistic, *entry, *part_of, *about;
} wan_counter_row;

extern const wan_counter_row wan_queue_counter_rows[WAN_QUEUE_COUNTERS_COUNT];
/* Rows with empty number, entry and part_of. */
extern const wan_counter_row wan_receiver_counter_rows[WAN_RECEIVER_COUNTERS_COUNT];

typedef struct {
    uint64_t number, value;
} wan_counter; /* A counter in the state of a log. */

_Static_assert(sizeof(wan_counter) == 16, "a counter in a log is a format");

/* Writes the counters above 0 to `saved`, with room for all counters. Returns the number of written counters. */
uint32_t wan_queue_counts_save(const wan_queue_counts *counts, wan_counter *saved);
/* Reads the counters back. Counters that are missing in `saved` become 0. WAN_CORRUPT: this version does not know a
 * number, or a number comes twice. */
wan_status wan_queue_counts_load(wan_queue_counts *counts, const wan_counter *saved, uint32_t count);

#endif
