/* Owns nothing: a small lock for critical sections of tens of nanoseconds. Spins briefly, then sleeps in the kernel, so
 * that a holder that lost its processor does not cost its waiters theirs. Releasing it is a plain store and a look for
 * sleepers, with no atomic operation and no fence: who is about to sleep pays instead, by having every thread of the
 * process pass a barrier (membarrier(2)), so that either he sees the lock free or its holder sees him. The primitives
 * take no locks themselves: the layer above says which lock guards what; and whoever releases a lock keeps what it lies
 * in alive until that has returned. */
#ifndef WAN_LOCK_H
#define WAN_LOCK_H
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    _Atomic uint32_t state;    /* 1: held. */
    _Atomic uint32_t sleepers; /* Who sleeps until it is free, or is about to. */
} wan_lock;

void wan_lock_wait(wan_lock *lock); /* Takes a lock that is held. */
void wan_lock_wake(wan_lock *lock);

static inline int wan_lock_try(wan_lock *lock)
{
    uint32_t free_state = 0;
    return atomic_compare_exchange_strong_explicit(&lock->state, &free_state, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

static inline void wan_lock_take(wan_lock *lock)
{
    if (__builtin_expect(!wan_lock_try(lock), 0)) wan_lock_wait(lock);
}

static inline void wan_lock_release(wan_lock *lock)
{
    atomic_store_explicit(&lock->state, 0, memory_order_release);
    atomic_signal_fence(
        memory_order_seq_cst); /* For the compiler; the processor may look before others see the store. */
    if (__builtin_expect(atomic_load_explicit(&lock->sleepers, memory_order_relaxed) != 0, 0)) wan_lock_wake(lock);
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
