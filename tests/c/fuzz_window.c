/* Fuzzes the window. Batches leave and are acknowledged after random times, also by a clock that stands still or jumps,
 * while the receiver changes its credit. The window stays within its limits, and a batch may always leave sooner or
 * later. */
#include "fuzz.h"
#include "session/wan_window.h"

const char *const fuzz_name = "fuzz_window";

enum { BATCHES_MAX = 64 };

void fuzz_once(random_source *source)
{
    struct {
        wan_window_sending sending;
        uint64_t bytes;
    } sent[BATCHES_MAX];
    uint32_t first = 0, count = 0;
    uint64_t now = 1 + random_below(source, 1000000), flight = 0;
    wan_window window;
    wan_window_init(&window, (uint64_t)random_below(source, 64) << random_below(source, 26), now);
    for (uint32_t steps = 20 + random_below(source, 2000); steps; steps--) {
        switch (random_below(source, 8)) {
        case 0: wan_window_set_limit(&window, (uint64_t)random_below(source, 64) << random_below(source, 26)); break;
        case 1:
        case 2:
        case 3:
            if (!wan_window_is_open(&window, flight) || count == BATCHES_MAX) break;
            uint64_t bytes = 1 + random_below(source, 1u << random_below(source, 24));
            flight += bytes;
            sent[(first + count) % BATCHES_MAX].bytes = bytes;
            sent[(first + count++) % BATCHES_MAX].sending = wan_window_sent(&window, flight, bytes, now);
            break;
        case 4:
        case 5:
        case 6:
            if (!count) break;
            flight -= sent[first].bytes;
            wan_window_acknowledged(&window, &sent[first].sending, now);
            first = (first + 1) % BATCHES_MAX;
            count--;
            break;
        default: now += random_below(source, 1u << random_below(source, 31));
        }
        uint64_t floor = window.limit < WAN_WINDOW_FLOOR ? window.limit : WAN_WINDOW_FLOOR;
        FUZZ_CHECK(window.bytes >= floor && window.bytes <= window.limit);
        FUZZ_CHECK(flight || wan_window_is_open(&window, flight));
    }
}
