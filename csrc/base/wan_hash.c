/* Owns the secrets of wan_secret_hash, which decides where keys lie in an index. */
#include "base/wan_hash.h"

#include <sys/random.h>
#include <time.h>
#include <unistd.h>

uint64_t wan_hash_secrets[4];

__attribute__((constructor)) static void draw(void)
{
    if (getrandom(wan_hash_secrets, sizeof wan_hash_secrets, 0) != sizeof wan_hash_secrets) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        /* The system draws no random numbers. These are at least not the same in every process. */
        for (int n = 0; n < 4; n++)
            wan_hash_secrets[n] = wan_hash_fold((uint64_t)now.tv_nsec ^ (uintptr_t)&now ^ WAN_HASH_A,
                                                (uint64_t)now.tv_sec ^ (uint64_t)getpid() << 32 ^ WAN_HASH_B << n);
    }
    for (int n = 0; n < 4; n++) wan_hash_secrets[n] |= 1;
}
