/* Owns the number of each thread that makes events, and its count of them: two thirds of an event's identity. */
#ifndef WAN_THREAD_H
#define WAN_THREAD_H
#include <stdatomic.h>
#include <stdint.h>

extern _Atomic uint32_t wan_thread_count;
extern _Thread_local uint32_t wan_thread_own;
extern _Thread_local uint64_t wan_thread_events;

static inline uint32_t wan_thread_number(void)
{
    if (__builtin_expect(wan_thread_own == 0, 0)) wan_thread_own = atomic_fetch_add(&wan_thread_count, 1) + 1;
    return wan_thread_own;
}
static inline uint64_t wan_thread_next_event(void) { return ++wan_thread_events; }
/* For many events at once: the number of the first of them; they count when they are told. */
static inline uint64_t wan_thread_first_event(void) { return wan_thread_events + 1; }
static inline void wan_thread_count_events(uint64_t count) { wan_thread_events += count; }

static inline void wan_count(uint64_t *counter, uint64_t by) { __atomic_fetch_add(counter, by, __ATOMIC_RELAXED); }
/* A number with one writer at a time (under its lock), which others read without the lock by wan_read. */
static inline void wan_tally(uint64_t *counter, uint64_t by) { __atomic_store_n(counter, *counter + by, __ATOMIC_RELAXED); }
static inline void wan_set(uint64_t *counter, uint64_t value) { __atomic_store_n(counter, value, __ATOMIC_RELAXED); }
static inline uint64_t wan_read(const uint64_t *counter) { return __atomic_load_n(counter, __ATOMIC_RELAXED); }
static inline int wan_flag_read(const int *flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }
static inline void wan_flag_set(int *flag, int value) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); }

#endif
