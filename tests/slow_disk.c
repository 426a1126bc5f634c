/* Owns a slow disk for a real process: loaded before the C library, it holds up every sync while the file named by SLOW_DISK exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

int fdatasync(int file)
{
    const char *slow = getenv("SLOW_DISK");
    while (slow && access(slow, F_OK) == 0) usleep(1000);
    int (*sync)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return sync(file);
}
