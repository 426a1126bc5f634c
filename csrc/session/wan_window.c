/* Owns the changes of the window. The window grows at once. The window shrinks slowly, and only after a recent
 * measurement of the round trip. */
#include "session/wan_window.h"
#include "base/wan_thread.h"

#include <string.h>

static uint64_t at_most(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t at_least(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t base_us(const wan_window *window) { return at_least(window->round_trip_us, WAN_WINDOW_HICCUP_US); }

static void begin_period(wan_window *window, uint64_t best_before, uint64_t now_us)
{
    window->best_before = best_before;
    window->best = 0;
    window->telling_batches = 0;
    window->period_at_us = now_us;
}

static void set_bytes(wan_window *window, uint64_t bytes)
{
    wan_set(&window->bytes, at_most(at_least(bytes, WAN_WINDOW_FLOOR), window->limit));
}

void wan_window_init(wan_window *window, uint64_t limit, uint64_t now_us)
{
    memset(window, 0, sizeof *window);
    window->limit = limit;
    set_bytes(window, WAN_WINDOW_START);
    begin_period(window, 0, now_us);
}

void wan_window_set_limit(wan_window *window, uint64_t limit)
{
    if (limit == window->limit) return;
    window->limit = limit;
    set_bytes(window, window->bytes);
}

wan_window_sending wan_window_sent(const wan_window *window, uint64_t flight, uint64_t bytes, uint64_t now_us)
{
    return (wan_window_sending){
        .sent_us = now_us, .flight = flight, .was_full = flight >= window->bytes, .was_alone = flight == bytes};
}

static void end_period(wan_window *window, uint64_t now_us)
{
    uint64_t wanted = at_least(window->best, window->best_before);
    int is_too_large = wanted < window->bytes - window->bytes / 4;
    /* A longer link looks like a slower link, until a batch crosses the link with nothing ahead. So the window shrinks
     * only if the round trip was measured in the present period. */
    if (is_too_large && window->round_trip_at_us >= window->period_at_us) set_bytes(window, wanted);
    else if (is_too_large || now_us - window->round_trip_at_us > WAN_WINDOW_TRIP_AGE_US) window->measuring = 1;
    begin_period(window, window->best, now_us);
}

void wan_window_acknowledged(wan_window *window, const wan_window_sending *sending, uint64_t now_us)
{
    uint64_t round_trip = now_us > sending->sent_us ? now_us - sending->sent_us : 1;
    int is_old = window->round_trip_at_us < window->period_at_us;
    if (!window->round_trip_us || round_trip <= window->round_trip_us
        || (sending->was_alone && (is_old || window->measuring))) {
        wan_set(&window->round_trip_us, round_trip);
        window->round_trip_at_us = now_us;
    }
    if (window->measuring) {
        if (!sending->was_alone) return; /* The batch left before the measurement. */
        window->measuring = 0;
        /* The best windows so far were computed from the old round trip. */
        begin_period(window, 0, now_us);
        return;
    }
    /* The bytes that the rate of the batch carries in twice the shortest round trip. */
    uint64_t wanted = (uint64_t)(2.0 * (double)sending->flight * (double)base_us(window) / (double)round_trip);
    if (wanted > window->best) window->best = wanted;
    if (wanted > window->bytes) set_bytes(window, wanted);
    /* All remaining batches tell nothing about the link: there were fewer bytes to send than the link carries. */
    window->telling_batches += sending->was_full || wanted <= sending->flight;
    if (window->telling_batches >= WAN_WINDOW_PERIOD_TRIPS
        && now_us - window->period_at_us >= at_least(WAN_WINDOW_PERIOD_US, WAN_WINDOW_PERIOD_TRIPS * base_us(window)))
        end_period(window, now_us);
}
