/* Owns the hybrid logical clock of a member: 48 bits of milliseconds, 16 of counter (Kulkarni et al., "Logical
 * Physical Clocks"). Invariant: never hands out a stamp twice, nor one that is not above all it has seen. */
#ifndef WAN_CLOCK_H
#define WAN_CLOCK_H
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

typedef struct {
    _Atomic uint64_t last;
    _Atomic uint64_t set_ms;    /* The time as a simulation set it; 0: the system's. */
} wan_clock;

/* Milliseconds since 1970. The coarse clock: it moves once a timer tick (1-4 ms) and costs no more than a load. */
static inline uint64_t wan_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static inline uint64_t wan_monotonic_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static inline uint64_t wan_stamp_ms(uint64_t stamp) { return stamp >> 16; }

/* The member's time: what physical half of a stamp is made of. */
static inline uint64_t wan_clock_now_ms(wan_clock *clock)
{
    uint64_t set_ms = atomic_load_explicit(&clock->set_ms, memory_order_relaxed);
    return __builtin_expect(set_ms == 0, 1) ? wan_now_ms() : set_ms;
}

/* The first of `count` consecutive stamps that nobody else gets, at or after `now_ms`. */
static inline uint64_t wan_clock_take(wan_clock *clock, uint64_t now_ms, uint64_t count)
{
    uint64_t last = atomic_load_explicit(&clock->last, memory_order_relaxed), first;
    do {
        first = now_ms << 16 > last ? now_ms << 16 : last + 1;
    } while (!atomic_compare_exchange_weak_explicit(&clock->last, &last, first + count - 1, memory_order_relaxed,
                                                    memory_order_relaxed));
    return first;
}

/* The highest stamp handed out or seen. */
static inline uint64_t wan_clock_last(wan_clock *clock) { return atomic_load_explicit(&clock->last, memory_order_relaxed); }

/* Sees a stamp of another site (or one raised over a stored stamp), so that the next local one is above it. */
static inline void wan_clock_see(wan_clock *clock, uint64_t stamp)
{
    uint64_t last = atomic_load_explicit(&clock->last, memory_order_relaxed);
    while (last < stamp
           && !atomic_compare_exchange_weak_explicit(&clock->last, &last, stamp, memory_order_relaxed, memory_order_relaxed))
        ;
}

#endif
