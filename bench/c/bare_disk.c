/* One thread that writes and syncs: blocks of `bytes` bytes, with one fdatasync each, into a file whose room was
 * reserved. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>

/* Returns 0 or errno. */
int bare_write_sync(const char *path, const uint8_t *block, uint64_t bytes, uint64_t blocks)
{
    int file = open(path, O_CREAT | O_TRUNC | O_RDWR, 0600), reason = 0;
    if (file < 0) return errno;
    if ((reason = posix_fallocate(file, 0, (off_t)(bytes * blocks))) == 0)
        for (uint64_t n = 0; n < blocks && reason == 0; n++)
            if (pwrite(file, block, bytes, (off_t)(n * bytes)) != (ssize_t)bytes || fdatasync(file) != 0)
                reason = errno ? errno : EIO;
    close(file);
    unlink(path);
    return reason;
}
