/* Owns the number of each thread that makes events, and the thread's count of its events. These are two of the three
 * parts of an event's identity. The file also has the ways in which threads share counters and flags. */
#ifndef WAN_THREAD_H
#define WAN_THREAD_H
#include <stdatomic.h>
#include <stdint.h>

extern _Atomic uint32_t wan_thread_count; /* The highest number that a thread has. */
typedef struct {
    uint64_t events; /* Events that the thread has made. */
    uint32_t number; /* The thread's number. 0: it has none yet. */
} wan_thread;
extern _Thread_local wan_thread wan_thread_own __attribute__((visibility("hidden")));

/* The data of this thread; it has a number after this call. A caller asks once and keeps the pointer, because each
 * access is a call into the dynamic linker. */
static inline wan_thread *wan_thread_self(void)
{
    wan_thread *self = &wan_thread_own;
    /* Without this the compiler, which knows what `self` points to, asks the dynamic linker again instead of keeping
     * `self`. */
    __asm__("" : "+r"(self));
    if (__builtin_expect(self->number == 0, 0)) self->number = atomic_fetch_add(&wan_thread_count, 1) + 1;
    return self;
}
static inline uint32_t wan_thread_number(void) { return wan_thread_self()->number; }
/* Counts one more event of this thread, which has its number, and returns the count. */
static inline uint64_t wan_thread_next_event(void) { return ++wan_thread_own.events; }

/* Adds to a number that several threads change without a lock. */
static inline void wan_add_shared(uint64_t *counter, uint64_t by) { __atomic_fetch_add(counter, by, __ATOMIC_RELAXED); }
/* Adds to a number that has one writer at a time, under a lock. Other threads read it without the lock, by wan_read. */
static inline void wan_add_guarded(uint64_t *counter, uint64_t by)
{
    __atomic_store_n(counter, *counter + by, __ATOMIC_RELAXED);
}
/* Sets and reads a number that other threads read without a lock. An old value is as good as a new one there. */
static inline void wan_set(uint64_t *counter, uint64_t value) { __atomic_store_n(counter, value, __ATOMIC_RELAXED); }
static inline uint64_t wan_read(const uint64_t *counter) { return __atomic_load_n(counter, __ATOMIC_RELAXED); }
/* Takes `by` from a number. Returns whether the number fell below 0 by that. */
static inline int wan_falls_short(int64_t *number, int64_t by)
{
    int64_t before = __atomic_fetch_sub(number, by, __ATOMIC_RELAXED);
    return before >= 0 && before < by;
}
/* These read and set a flag. A thread that sees the flag set also sees everything that was written before it was set.
 */
static inline int wan_flag_read(const int *flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }
static inline void wan_flag_set(int *flag, int value) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); }

#endif
