/* Owns the hybrid logical clock of a member: 48 bits of milliseconds and 16 bits of counter (Kulkarni et al., "Logical
 * Physical Clocks"). Invariant: it hands out no stamp twice, and each stamp is above all stamps that it has seen, until
 * an operator lowers the clock. It does not follow a wall clock that jumps ahead. */
#ifndef WAN_CLOCK_H
#define WAN_CLOCK_H
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

/* The clock believes the wall clock as long as the wall clock is not further ahead of the time that has really passed.
 * This is several steps of a time service, and far below the 300 s that receivers let a stamp be ahead. */
#define WAN_CLOCK_TRUST_MS 60000
/* A stamp of another member of the site that is further ahead of the time does not move the clock: that member's clock
 * was wrong. It is the limit that receivers have for stamps of other sites. */
#define WAN_CLOCK_AHEAD_MS 300000
/* No stamp is further ahead of the time than a year: clocks are not so wrong, so it is damaged or made up. */
#define WAN_CLOCK_WRONG_MS (366ull * 24 * 60 * 60 * 1000)

typedef struct {
    _Atomic uint64_t last;   /* The highest stamp that was handed out or seen. */
    _Atomic uint64_t set_ms; /* The time as a simulation set it. 0: the system's time counts. */
    /* The same for the clock that only runs forward. If it is 0 and `set_ms` is not, the wall clock is always
     * believed. */
    _Atomic uint64_t set_boot_ms;
    /* The wall clock minus the clock that only runs forward, at the moment when the wall clock was last believed. 0:
     * not compared yet. */
    _Atomic uint64_t base_ms;
    _Atomic uint64_t good_until_ms; /* A wall clock up to this time is believed without a look at the other clock. */
    /* See wan_clock_low. It lies in another cache line than `last`, which every change writes. */
    _Alignas(64) _Atomic uint64_t low;
} wan_clock;

/* Milliseconds since 1970, by the coarse clock: it moves once in a timer tick (1-4 ms) and costs no more than a
 * load. */
static inline uint64_t wan_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* What wan_monotonic_us returns, as a simulation of several members sets it before it runs anything of one of them. 0:
 * the system's time. Atomic. */
extern uint64_t wan_simulated_us;

/* Microseconds by a clock that only runs forward, and that goes on while the machine is suspended: leases count by it.
 */
static inline uint64_t wan_monotonic_us(void)
{
    uint64_t set_us = __atomic_load_n(&wan_simulated_us, __ATOMIC_RELAXED);
    if (__builtin_expect(set_us != 0, 0)) return set_us;
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* The physical half of a stamp: milliseconds since 1970. */
static inline uint64_t wan_stamp_ms(uint64_t stamp) { return stamp >> 16; }

/* The wall clock, whether it is right or wrong. */
static inline uint64_t wan_clock_wall_ms(wan_clock *clock)
{
    uint64_t set_ms = atomic_load_explicit(&clock->set_ms, memory_order_relaxed);
    return __builtin_expect(set_ms == 0, 1) ? wan_now_ms() : set_ms;
}

/* Whether only the wall clock is simulated. Such a wall clock is believed whatever it says. */
static inline int wan_clock_is_always_believed(wan_clock *clock)
{
    return atomic_load_explicit(&clock->set_ms, memory_order_relaxed) != 0
           && atomic_load_explicit(&clock->set_boot_ms, memory_order_relaxed) == 0;
}

/* Milliseconds by a clock that nobody can set, and that goes on while the machine is suspended. */
static inline uint64_t wan_clock_boot_ms(wan_clock *clock)
{
    uint64_t set_ms = atomic_load_explicit(&clock->set_boot_ms, memory_order_relaxed);
    if (set_ms != 0) return set_ms;
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Does the work of `wan_clock_now_ms` for a wall clock that is past `good_until_ms`. The base stays the same when the
 * wall clock goes back, because the wall clock may come forward again. */
static __attribute__((noinline, unused)) uint64_t wan_clock_check_wall(wan_clock *clock, uint64_t wall_ms)
{
    if (wan_clock_is_always_believed(clock)) return wall_ms;
    uint64_t boot_ms = wan_clock_boot_ms(clock), base_ms = 0;
    if (atomic_compare_exchange_strong_explicit(&clock->base_ms, &base_ms, wall_ms - boot_ms, memory_order_relaxed,
                                                memory_order_relaxed))
        base_ms = wall_ms - boot_ms;
    uint64_t passed_ms = base_ms + boot_ms;
    if (wall_ms > passed_ms + WAN_CLOCK_TRUST_MS) return passed_ms;
    atomic_store_explicit(&clock->good_until_ms, passed_ms + WAN_CLOCK_TRUST_MS, memory_order_relaxed);
    return wall_ms;
}

/* The member's time, which is the physical half of a stamp. It is the wall clock. If the wall clock has jumped ahead,
 * it is the time that has passed since the wall clock was last believed. */
static inline uint64_t wan_clock_now_ms(wan_clock *clock)
{
    uint64_t wall_ms = wan_clock_wall_ms(clock);
    return __builtin_expect(wall_ms <= atomic_load_explicit(&clock->good_until_ms, memory_order_relaxed), 1)
               ? wall_ms
               : wan_clock_check_wall(clock, wall_ms);
}

/* The time by which a receiver decides how far a stamp is ahead. */
static inline uint64_t wan_clock_receiving_ms(wan_clock *clock)
{
    return wan_clock_is_always_believed(clock) ? wan_now_ms() : wan_clock_now_ms(clock);
}

/* Takes notice of a stamp that the clock of another site gave a short while ago. If the stamp agrees with our wall
 * clock, our wall clock is right, and the clock follows it again. */
static inline void wan_clock_receive(wan_clock *clock, uint64_t stamp)
{
    uint64_t wall_ms = wan_clock_wall_ms(clock), received_ms = wan_stamp_ms(stamp);
    if (wan_clock_now_ms(clock) == wall_ms || received_ms + WAN_CLOCK_TRUST_MS < wall_ms
        || received_ms > wall_ms + WAN_CLOCK_TRUST_MS)
        return;
    atomic_store_explicit(&clock->base_ms, wall_ms - wan_clock_boot_ms(clock), memory_order_relaxed);
    atomic_store_explicit(&clock->good_until_ms, wall_ms + WAN_CLOCK_TRUST_MS, memory_order_relaxed);
}

/* By how many milliseconds a stamp of another member of the site is ahead of the time, if that is more than
 * WAN_CLOCK_AHEAD_MS. 0: it is not, and the clock may see it. The stamp is first taken as a word about our own clock.
 */
static inline uint64_t wan_clock_ahead_ms(wan_clock *clock, uint64_t stamp)
{
    if (stamp <= atomic_load_explicit(&clock->last, memory_order_relaxed)) return 0;
    uint64_t stamp_ms = wan_stamp_ms(stamp);
    if (__builtin_expect(stamp_ms <= wan_clock_now_ms(clock) + WAN_CLOCK_AHEAD_MS, 1)) return 0;
    wan_clock_receive(clock, stamp);
    uint64_t now_ms = wan_clock_now_ms(clock);
    return stamp_ms > now_ms + WAN_CLOCK_AHEAD_MS ? stamp_ms - now_ms : 0;
}

/* Takes `count` consecutive stamps at or after `now_ms`, which nobody else gets. Returns the first. */
static inline uint64_t wan_clock_take(wan_clock *clock, uint64_t now_ms, uint64_t count)
{
    uint64_t last = atomic_load_explicit(&clock->last, memory_order_relaxed), first;
    do {
        first = now_ms << 16 > last ? now_ms << 16 : last + 1;
    } while (!atomic_compare_exchange_weak_explicit(&clock->last, &last, first + count - 1, memory_order_relaxed,
                                                    memory_order_relaxed));
    return first;
}

/* The highest stamp that was handed out or seen. */
static inline uint64_t wan_clock_last(wan_clock *clock)
{
    return atomic_load_explicit(&clock->last, memory_order_relaxed);
}

/* No local change is made any more with a stamp below this one, except with a stamp that a caller gave. A thread that
 * holds an entry lock and finds that its stamp is lower takes another stamp. */
static inline uint64_t wan_clock_low(wan_clock *clock)
{
    return atomic_load_explicit(&clock->low, memory_order_relaxed);
}

/* Raises that limit to the present time, and returns it. It holds for a region as soon as every entry lock was held
 * once since then. */
static inline uint64_t wan_clock_raise_low(wan_clock *clock)
{
    uint64_t low = wan_clock_take(clock, wan_clock_now_ms(clock), 1);
    atomic_store_explicit(&clock->low, low, memory_order_relaxed);
    return low;
}

/* Sets the clock back to the member's time if its stamps are more than `most_ms` ahead of it. Returns whether it did.
 * The wall clock is taken as right. The caller gives a new stamp to everything that has a stamp ahead of it
 * (pywan/_core/region/clock_repair.pyx). */
static inline int wan_clock_lower(wan_clock *clock, uint64_t most_ms)
{
    uint64_t last = atomic_load_explicit(&clock->last, memory_order_relaxed), now;
    if (wan_stamp_ms(last) <= wan_clock_now_ms(clock) + most_ms) return 0;
    atomic_store_explicit(&clock->good_until_ms, 0, memory_order_relaxed);
    atomic_store_explicit(&clock->base_ms, 0, memory_order_relaxed);
    do {
        now = wan_clock_now_ms(clock);
        if (wan_stamp_ms(last) <= now + most_ms) return 0;
    } while (!atomic_compare_exchange_weak_explicit(&clock->last, &last, now << 16, memory_order_relaxed,
                                                    memory_order_relaxed));
    uint64_t low = atomic_load_explicit(&clock->low, memory_order_relaxed);
    while (low > now << 16
           && !atomic_compare_exchange_weak_explicit(&clock->low, &low, now << 16, memory_order_relaxed,
                                                     memory_order_relaxed));
    return 1;
}

/* Sees a stamp, so that the next local stamp is above it. */
static inline void wan_clock_see(wan_clock *clock, uint64_t stamp)
{
    uint64_t last = atomic_load_explicit(&clock->last, memory_order_relaxed);
    while (last < stamp
           && !atomic_compare_exchange_weak_explicit(&clock->last, &last, stamp, memory_order_relaxed,
                                                     memory_order_relaxed));
}

/* As wan_clock_see, for a local stamp that was raised over a stored one. If it is ahead of the time, the clock stays
 * where it is. Otherwise one change of such an entry would make all later changes ahead. */
static inline void wan_clock_see_raised(wan_clock *clock, uint64_t stamp)
{
    if (wan_stamp_ms(stamp) <= wan_clock_now_ms(clock) + WAN_CLOCK_AHEAD_MS) wan_clock_see(clock, stamp);
}

#endif
