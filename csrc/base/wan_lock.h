/* Owns nothing. This is a small lock for critical sections of some tens of nanoseconds. A waiter spins for a short time
 * and then sleeps in the kernel, so that a holder that lost its processor does not cost its waiters theirs.
 *
 * To release the lock is a plain store and a look for sleepers, with no atomic operation and no fence. A thread that is
 * about to sleep pays instead: it makes every thread of the process pass a barrier (membarrier(2)). After that either
 * the sleeper sees the lock free, or the holder sees the sleeper.
 *
 * The C primitives do not take locks that guard their callers' data. The layer above says which lock guards what. A
 * thread that releases a lock keeps the lock's memory alive until wan_lock_release has returned. */
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
    _Atomic uint32_t sleepers; /* Threads that sleep until the lock is free, or are about to. */
} wan_lock;

/* A thread may have something for which other threads wait, and which it does not need while it holds locks. It lets go
 * of that before it sleeps for a lock, once, and gets it back when it holds no lock any more. The layer above sets
 * `let_go` and looks at `gone`. */
typedef struct {
    void *(*let_go)(void); /* NULL: there is nothing of which to let go. */
    void *gone;            /* What `let_go` returned. NULL: the thread has what it had. */
} wan_lock_sleeper;
extern _Thread_local wan_lock_sleeper wan_lock_sleeper_own __attribute__((visibility("hidden")));

/* Asks the system for barriers, once for the process. While the process has one thread that takes no time. Later the
 * system waits until every processor has switched tasks, 10 to 40 ms under load: without this call, the first thread
 * that sleeps for a lock waits so long. */
void wan_lock_prepare(void);
/* Tries for about ten microseconds to take a lock that another thread holds. Returns whether it did. */
int wan_lock_spin(wan_lock *lock);
void wan_lock_wait(wan_lock *lock); /* Takes a lock that another thread holds. */
/* Wakes one sleeper. */
void wan_lock_wake(wan_lock *lock);

/* Takes the lock if it is free. Returns whether it did. */
static inline int wan_lock_try(wan_lock *lock)
{
    uint32_t free_state = 0;
    return atomic_compare_exchange_strong_explicit(&lock->state, &free_state, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

/* Waits until the lock is free, and takes it. */
static inline void wan_lock_take(wan_lock *lock)
{
    if (__builtin_expect(!wan_lock_try(lock), 0)) wan_lock_wait(lock);
}

/* Releases the lock, and wakes a sleeper if there is one. */
static inline void wan_lock_release(wan_lock *lock)
{
    atomic_store_explicit(&lock->state, 0, memory_order_release);
    /* This orders the compiler only. The processor may look for sleepers before others see the store. */
    atomic_signal_fence(memory_order_seq_cst);
    if (__builtin_expect(atomic_load_explicit(&lock->sleepers, memory_order_relaxed) != 0, 0)) wan_lock_wake(lock);
}

/* Waits until *word is not `seen` any more, but no longer than `timeout_ms`. */
static inline void wan_wait_change(uint32_t *word, uint32_t seen, uint32_t timeout_ms)
{
    struct timespec limit = {timeout_ms / 1000, (long)(timeout_ms % 1000) * 1000000};
    if (__atomic_load_n(word, __ATOMIC_ACQUIRE) == seen)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &limit, (void *)0, 0);
}

/* Changes *word and wakes all threads that wait for it. */
static inline void wan_signal_change(uint32_t *word)
{
    __atomic_fetch_add(word, 1, __ATOMIC_ACQ_REL);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 0x7fffffff, (void *)0, (void *)0, 0);
}

#endif
