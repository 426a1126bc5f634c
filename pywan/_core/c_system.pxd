# Owns nothing but names: what compiled code calls of the operating system, and of C beside what Cython has.
from libc.stdint cimport uint64_t

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned int initial, int flags)
    int eventfd_write(int file, uint64_t value)
    int eventfd_read(int file, uint64_t *value)
    enum: EFD_NONBLOCK, EFD_CLOEXEC

cdef extern from "<unistd.h>" nogil:
    int close_file "close"(int file)

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int file, void *to, size_t length, int flags)
    ssize_t send(int file, const void *data, size_t length, int flags)
    enum: MSG_DONTWAIT, MSG_NOSIGNAL

cdef extern from "<poll.h>" nogil:
    ctypedef struct pollfd "struct pollfd":
        int fd
        short events
        short revents
    int poll(pollfd *files, unsigned long count, int timeout_ms)
    enum: POLLIN, POLLOUT, POLLERR, POLLHUP, POLLRDHUP

cdef extern from "<dlfcn.h>" nogil:
    void *dlopen(const char *path, int flags)
    void *dlsym(void *handle, const char *name)
    enum: RTLD_NOW
