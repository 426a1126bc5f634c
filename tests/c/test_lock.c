/* Owns the tests of the lock and of the role: no thread gets in while another one holds it, and no thread goes on
 * sleeping when it is free. */
#include <pthread.h>

#include "harness.h"
#include "base/wan_clock.h"
#include "base/wan_lock.h"
#include "base/wan_role.h"
#include "base/wan_thread.h"

#define TEST_US     500000u
#define PATIENCE_US 20000000u /* Longer than a thread ever waits for a processor. */

static wan_lock lock;
static uint64_t counted, rounds;

static void *count_alone(void *context)
{
    (void)context;
    for (uint64_t end = wan_monotonic_us() + TEST_US, n = 0; wan_monotonic_us() < end; n++) {
        wan_lock_take(&lock);
        uint64_t seen = counted;
        /* Now and then the lock is held so long that the others go to sleep. */
        for (volatile uint64_t hold = 0; hold < (n % 64 ? 10 : 20000); hold++) {}
        counted = seen + 1;
        wan_lock_release(&lock);
        wan_add_shared(&rounds, 1);
    }
    return NULL;
}

static void no_two_threads_are_in_at_once(void)
{
    pthread_t threads[4];
    counted = rounds = 0;
    for (int n = 0; n < 4; n++) EXPECT_EQUAL(pthread_create(&threads[n], NULL, count_alone, NULL), 0);
    for (int n = 0; n < 4; n++) pthread_join(threads[n], NULL);
    EXPECT(rounds > 0);
    EXPECT_EQUAL(counted, rounds);
    EXPECT(lock.state == 0 && lock.sleepers == 0);
}

static uint64_t offered, taken; /* Rounds that were offered, and taken. */
static int over;

static void *take_what_is_offered(void *context)
{
    (void)context;
    for (uint64_t seen = 0;;) {
        while (wan_read(&offered) == seen)
            if (wan_flag_read(&over)) return NULL;
        seen++;
        wan_lock_take(&lock);
        wan_set(&taken, seen);
        wan_lock_release(&lock);
    }
}

/* The holder releases the lock just when the other thread has spun enough and goes to sleep, and does not touch the
 * lock again. A wake that is lost then is lost for good. */
static void who_goes_to_sleep_as_the_lock_becomes_free_is_woken(void)
{
    pthread_t other;
    random_source source = {.state = 11};
    int woken = 1;
    offered = taken = 0;
    over = 0;
    EXPECT_EQUAL(pthread_create(&other, NULL, take_what_is_offered, NULL), 0);
    for (uint64_t end = wan_monotonic_us() + 2 * TEST_US; woken && wan_monotonic_us() < end;) {
        uint64_t hold = random_next(&source) % 20000;
        wan_lock_take(&lock);
        wan_set(&offered, offered + 1);
        for (volatile uint64_t n = 0; n < hold; n++) {}
        wan_lock_release(&lock);
        for (uint64_t patience = wan_monotonic_us() + PATIENCE_US; woken && wan_read(&taken) != offered;)
            woken = wan_monotonic_us() < patience;
    }
    EXPECT(woken);
    EXPECT(offered > 0);
    if (!woken) wan_lock_wake(&lock);
    wan_flag_set(&over, 1);
    pthread_join(other, NULL);
}

static int is_there;       /* What a sleeper lets go of. */
static uint64_t let_go_of; /* How often it did. */

static void *let_go(void)
{
    wan_add_shared(&let_go_of, 1);
    return &is_there;
}

static void *sleep_twice(void *context)
{
    (void)context;
    wan_lock_sleeper_own.let_go = let_go;
    for (uint64_t n = 0; n < 2; n++) {
        wan_lock_take(&lock);
        wan_lock_release(&lock);
        wan_set(&taken, n + 1);
        while (wan_read(&offered) == n + 1) {}
    }
    EXPECT(wan_lock_sleeper_own.gone == &is_there && !wan_lock_sleeper_own.let_go);
    return NULL;
}

/* What the thread has is gone when it sleeps, and not before: another thread may need it to release the lock. */
static void who_goes_to_sleep_lets_go_first_and_once(void)
{
    pthread_t other;
    taken = let_go_of = 0;
    wan_lock_take(&lock);
    wan_set(&offered, 1);
    EXPECT(!wan_lock_spin(&lock));
    EXPECT_EQUAL(let_go_of, 0);
    EXPECT_EQUAL(pthread_create(&other, NULL, sleep_twice, NULL), 0);
    while (wan_read(&let_go_of) == 0) {}
    wan_lock_release(&lock);
    while (wan_read(&taken) != 1) {}
    wan_lock_take(&lock);
    wan_set(&offered, 2);
    while (atomic_load(&lock.sleepers) == 0) {}
    wan_lock_release(&lock);
    while (wan_read(&taken) != 2) {}
    wan_set(&offered, 3);
    pthread_join(other, NULL);
    EXPECT_EQUAL(let_go_of, 1);
    EXPECT(!wan_lock_sleeper_own.gone);
}

static wan_role role;
/* The word that threads sleep on after they asked for the role in vain. */
static uint32_t released;
static uint64_t longest_us; /* The longest sleep for the role. */

static void *play_the_role(void *context)
{
    (void)context;
    for (uint64_t end = wan_monotonic_us() + TEST_US, n = 0; wan_monotonic_us() < end; n++) {
        for (;;) {
            uint32_t seen_word = __atomic_load_n(&released, __ATOMIC_ACQUIRE);
            if (wan_role_take(&role)) break;
            uint64_t began = wan_monotonic_us();
            wan_wait_change(&released, seen_word, PATIENCE_US / 1000);
            uint64_t slept = wan_monotonic_us() - began;
            if (slept > wan_read(&longest_us)) wan_set(&longest_us, slept);
        }
        uint64_t seen = counted;
        for (volatile uint64_t hold = 0; hold < (n % 8 ? 10 : 20000); hold++) {}
        counted = seen + 1;
        wan_role_release(&role, &released);
        wan_add_shared(&rounds, 1);
    }
    return NULL;
}

static void one_thread_has_the_role_and_its_release_wakes_the_others(void)
{
    pthread_t threads[4];
    counted = rounds = longest_us = 0;
    for (int n = 0; n < 4; n++) EXPECT_EQUAL(pthread_create(&threads[n], NULL, play_the_role, NULL), 0);
    for (int n = 0; n < 4; n++) pthread_join(threads[n], NULL);
    EXPECT(rounds > 0);
    EXPECT_EQUAL(counted, rounds);
    EXPECT_EQUAL(role.state, WAN_ROLE_FREE);
    /* A wake that is lost costs the whole patience. */
    EXPECT(longest_us < PATIENCE_US / 2);
}

static void the_release_of_a_role_that_nobody_asked_for_wakes_nobody(void)
{
    uint32_t before = released;
    EXPECT(wan_role_take(&role));
    wan_role_release(&role, &released);
    EXPECT_EQUAL(released, before);
    EXPECT(wan_role_take(&role));
    EXPECT(!wan_role_take(&role));
    EXPECT(!wan_role_take(&role));
    wan_role_release(&role, &released);
    EXPECT_EQUAL(released, before + 1);
}

const test_case lock_tests[] = {
    {"no two threads are in at once", no_two_threads_are_in_at_once},
    {"who goes to sleep as the lock becomes free is woken", who_goes_to_sleep_as_the_lock_becomes_free_is_woken},
    {"who goes to sleep lets go first, and once", who_goes_to_sleep_lets_go_first_and_once},
    {"one thread has the role, and its release wakes the others",
     one_thread_has_the_role_and_its_release_wakes_the_others},
    {"the release of a role that nobody asked for wakes nobody",
     the_release_of_a_role_that_nobody_asked_for_wakes_nobody},
    {0},
};
