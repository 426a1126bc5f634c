/* Owns a disk that a power cut can be tried on, for a real process: the process loads it before the C library. What is
 * synced is noted in the folder named by POWER_CUT, under the number of its inode: the bytes of a file, or the names in
 * a folder with the inode and the kind of each. All else would be lost. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INODES_MAX 4096
#define BYTES_MAX  (1 << 20) /* What is larger is a log. */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    ino_t inode;
    int file;
} kept[INODES_MAX];
static int kept_count;

/* Opens an inode once, and never closes it. So no other file gets its number, and no lock of the process on it ends. */
static int keep(int file, ino_t inode)
{
    char path[64];
    for (int n = 0; n < kept_count; n++)
        if (kept[n].inode == inode) return kept[n].file;
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    int again = open(path, O_RDONLY | O_CLOEXEC);
    if (kept_count == INODES_MAX || again < 0) abort();
    kept[kept_count].inode = inode;
    return kept[kept_count++].file = again;
}

static void note_names(int folder, FILE *to)
{
    DIR *names = fdopendir(openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!names) abort();
    for (struct dirent *each; (each = readdir(names));)
        if (strcmp(each->d_name, ".") && strcmp(each->d_name, ".."))
            fprintf(to, "%llu %c %s\n", (unsigned long long)each->d_ino, each->d_type == DT_DIR ? 'd' : 'f',
                    each->d_name);
    closedir(names);
}

static void note_bytes(int file, off_t bytes, FILE *to)
{
    char *copy = malloc((size_t)bytes + 1);
    ssize_t got = pread(file, copy, (size_t)bytes, 0);
    if (got < 0) abort();
    fwrite(copy, 1, (size_t)got, to);
    free(copy);
}

static int note(int file)
{
    struct stat state;
    char fresh[4096], whole[4096];
    const char *noted = getenv("POWER_CUT");
    if (!noted || fstat(file, &state) < 0) return 0;
    pthread_mutex_lock(&lock);
    if (S_ISDIR(state.st_mode) || (S_ISREG(state.st_mode) && state.st_size <= BYTES_MAX)) {
        int again = keep(file, state.st_ino);
        snprintf(whole, sizeof whole, "%s/%llu", noted, (unsigned long long)state.st_ino);
        snprintf(fresh, sizeof fresh, "%s/new", noted);
        FILE *to = fopen(fresh, "we");
        if (!to) abort();
        if (S_ISDIR(state.st_mode)) note_names(again, to);
        else note_bytes(again, state.st_size, to);
        fclose(to);
        if (renameat(AT_FDCWD, fresh, AT_FDCWD, whole) < 0) abort();
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

int fsync(int file) { return note(file); }

int fdatasync(int file) { return note(file); }

/* Whether the disk would have the bytes of a file now, as they are. */
static int is_synced(int file, ino_t inode, off_t bytes)
{
    char noted[4096];
    snprintf(noted, sizeof noted, "%s/%llu", getenv("POWER_CUT"), (unsigned long long)inode);
    int same = 0, copy = open(noted, O_RDONLY | O_CLOEXEC);
    char *one = malloc((size_t)bytes + 1), *other = malloc((size_t)bytes + 1);
    if (copy >= 0)
        same = pread(file, one, (size_t)bytes, 0) == bytes && read(copy, other, (size_t)bytes + 1) == bytes
               && !memcmp(one, other, (size_t)bytes);
    if (copy >= 0) close(copy);
    free(one);
    free(other);
    return same;
}

/* The disk may have the new name of a file at once. So its bytes have to be there before. */
int rename(const char *from, const char *to)
{
    struct stat state;
    char list[4096];
    const char *noted = getenv("POWER_CUT");
    int file = noted ? open(from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (file >= 0 && fstat(file, &state) == 0 && S_ISREG(state.st_mode) && state.st_size <= BYTES_MAX) {
        pthread_mutex_lock(&lock);
        if (!is_synced(keep(file, state.st_ino), state.st_ino, state.st_size)) {
            snprintf(list, sizeof list, "%s/renamed", noted);
            FILE *renamed = fopen(list, "ae");
            if (!renamed) abort();
            fprintf(renamed, "%s\n", to);
            fclose(renamed);
        }
        pthread_mutex_unlock(&lock);
    }
    if (file >= 0) close(file);
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}
