/* Owns the rows of the counter tables as data, and the layout of a queue's counters in the queue's log. */
#include "session/wan_counts.h"

#include <string.h>

#define ROW(number, field, statistic, entry, part_of, about) {number, #field, statistic, entry, part_of, about},
const wan_counter_row wan_queue_counter_rows[WAN_QUEUE_COUNTERS_COUNT] = {WAN_QUEUE_COUNTERS(ROW)};
#undef ROW
#define ROW(field, statistic, about) {0, #field, statistic, "", "", about},
const wan_counter_row wan_receiver_counter_rows[WAN_RECEIVER_COUNTERS_COUNT] = {WAN_RECEIVER_COUNTERS(ROW)};
#undef ROW

static uint64_t *counter_of(wan_queue_counts *counts, uint64_t number)
{
    switch (number) { /* The compiler refuses two counters with the same number. */
#define FIELD(number, field, ...)                                                                                      \
    case number: return &counts->field;
        WAN_QUEUE_COUNTERS(FIELD)
#undef FIELD
    default: return NULL;
    }
}

uint32_t wan_queue_counts_save(const wan_queue_counts *counts, wan_counter *saved)
{
    uint32_t count = 0;
#define SAVE(number, field, ...)                                                                                       \
    if (counts->field) saved[count++] = (wan_counter){number, counts->field};
    WAN_QUEUE_COUNTERS(SAVE)
#undef SAVE
    return count;
}

wan_status wan_queue_counts_load(wan_queue_counts *counts, const wan_counter *saved, uint32_t count)
{
    memset(counts, 0, sizeof *counts);
    for (uint32_t n = 0; n < count; n++) {
        uint64_t *counter = counter_of(counts, saved[n].number);
        if (counter == NULL)
            return WAN_FAIL(WAN_CORRUPT,
                            "the queue's state in the log has a counter with number %" PRIu64 ", which this version"
                            " does not know; upgrade before opening it",
                            saved[n].number);
        if (*counter)
            return WAN_FAIL(WAN_CORRUPT, "the queue's state in the log has the counter with number %" PRIu64 " twice",
                            saved[n].number);
        *counter = saved[n].value;
    }
    return WAN_OK;
}
