/* Owns nothing: a four-byte lock for critical sections of tens of nanoseconds. Free: 0, held: 1, held with
 * sleepers: 2 (Drepper, "Futexes are tricky", mutex 2). Spins briefly, then sleeps in the kernel, so that a
 * holder that lost its processor does not cost its waiters theirs. The primitives take no locks themselves:
 * the layer above says which lock guards what. */
#ifndef WAN_LOCK_H
#define WAN_LOCK_H
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct { _Atomic uint32_t state; } wan_lock;

static inline void wan_lock_wait(wan_lock *lock)
{
    for (int spin = 0; spin < 100; spin++) {
        uint32_t free_state = 0;
        if (atomic_load_explicit(&lock->state, memory_order_relaxed) == 0
            && atomic_compare_exchange_strong_explicit(&lock->state, &free_state, 1, memory_order_acquire,
                                                       memory_order_relaxed))
            return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    while (atomic_exchange_explicit(&lock->state, 2, memory_order_acquire) != 0)
        syscall(SYS_futex, &lock->state, FUTEX_WAIT_PRIVATE, 2, (void *)0, (void *)0, 0);
}

static inline void wan_lock_take(wan_lock *lock)
{
    uint32_t free_state = 0;
    if (__builtin_expect(!atomic_compare_exchange_strong_explicit(&lock->state, &free_state, 1, memory_order_acquire,
                                                                  memory_order_relaxed), 0))
        wan_lock_wait(lock);
}

static inline void wan_lock_release(wan_lock *lock)
{
    if (__builtin_expect(atomic_exchange_explicit(&lock->state, 0, memory_order_release) == 2, 0))
        syscall(SYS_futex, &lock->state, FUTEX_WAKE_PRIVATE, 1, (void *)0, (void *)0, 0);
}

/* Waits until *word is no longer `seen`, or for `timeout_ms`. */
static inline void wan_wait_change(uint32_t *word, uint32_t seen, uint32_t timeout_ms)
{
    struct timespec limit = {timeout_ms / 1000, (long)(timeout_ms % 1000) * 1000000};
    if (__atomic_load_n(word, __ATOMIC_ACQUIRE) == seen)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &limit, (void *)0, 0);
}

/* Changes *word and wakes all who wait for it. */
static inline void wan_signal_change(uint32_t *word)
{
    __atomic_fetch_add(word, 1, __ATOMIC_ACQ_REL);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 0x7fffffff, (void *)0, (void *)0, 0);
}

#endif
