/* Owns the waiting for a lock that another thread holds. */
#include "base/wan_lock.h"

#include <errno.h>
#include <linux/membarrier.h>

/* A sleep costs about ten microseconds: for the sleeper, the other threads of the process and the thread that wakes it
 * together. So a waiter spins as long before it sleeps. One pause takes 10 to 50 ns, depending on the processor.
 * Therefore the clock says how long the waiter spins, and not a count. */
#define SPIN_NS      10000
#define SPINS_A_LOOK 16

static const struct timespec LOOK_AGAIN = {0, 1000000};

/* Makes every running thread of the process pass a full barrier before it returns. Returns 0 if the system does not
 * offer that. */
static int order_all_threads(void)
{
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0) return 1;
    return errno == EPERM && syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0
           && syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
}

void wan_lock_prepare(void) { order_all_threads(); }

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

_Thread_local wan_lock_sleeper wan_lock_sleeper_own;

int wan_lock_spin(wan_lock *lock)
{
    uint64_t now = 0, until = 0;
    do {
        for (int spin = 0; spin < SPINS_A_LOOK; spin++) {
            if (atomic_load_explicit(&lock->state, memory_order_relaxed) == 0 && wan_lock_try(lock)) return 1;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        now = now_ns();
        if (until == 0) until = now + SPIN_NS;
    } while (now < until);
    return 0;
}

void wan_lock_wait(wan_lock *lock)
{
    if (wan_lock_spin(lock)) return;
    wan_lock_sleeper *self = &wan_lock_sleeper_own;
    if (self->let_go) {
        self->gone = self->let_go();
        self->let_go = NULL;
    }
    atomic_fetch_add(&lock->sleepers, 1);
    /* If the holder released the lock before the barrier, we see that the lock is free. If the holder releases it after
     * the barrier, the holder sees a sleeper and wakes it. */
    int ordered = order_all_threads();
    while (!wan_lock_try(lock))
        syscall(SYS_futex, &lock->state, FUTEX_WAIT_PRIVATE, 1, ordered ? (void *)0 : (void *)&LOOK_AGAIN, (void *)0,
                0);
    atomic_fetch_sub(&lock->sleepers, 1);
}

void wan_lock_wake(wan_lock *lock) { syscall(SYS_futex, &lock->state, FUTEX_WAKE_PRIVATE, 1, (void *)0, (void *)0, 0); }
