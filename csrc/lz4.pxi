# Owns the way to lz4's block functions: the addresses of the C functions inside the lz4 package's compiled module,
# taken once, so that a batch is packed without the GIL. Where a build hides them: one Python call per batch.
cdef extern from "<dlfcn.h>" nogil:
    void *dlopen(const char *path, int flags)
    void *dlsym(void *handle, const char *name)
    enum: RTLD_NOW

ctypedef int (*lz4_compress_fast)(const char *source, char *to, int size, int capacity, int acceleration) noexcept nogil
ctypedef int (*lz4_decompress_safe)(const char *source, char *to, int size, int capacity) noexcept nogil

cdef enum:
    LZ4_ACCELERATION = 2        # A tenth less time than 1, for one percent more bytes, with the bench's records and with a real change stream.

cdef lz4_compress_fast lz4_compress = NULL
cdef lz4_decompress_safe lz4_decompress = NULL
cdef bint lz4_looked = False
cdef object lz4_block = None


cdef int lz4_load() except -1:
    global lz4_compress, lz4_decompress, lz4_looked, lz4_block
    if lz4_looked:
        return 0
    import lz4.block
    from lz4.block import _block
    lz4_block = lz4.block
    path = _block.__file__.encode()
    cdef void *handle = dlopen(path, RTLD_NOW)
    if handle != NULL:
        lz4_compress = <lz4_compress_fast>dlsym(handle, "LZ4_compress_fast")
        lz4_decompress = <lz4_decompress_safe>dlsym(handle, "LZ4_decompress_safe")
    lz4_looked = True
    return 0


cdef inline uint32_t lz4_bound(uint32_t size) noexcept nogil:
    return size + size // 255 + 16


cdef int lz4_pack(const uint8_t *source, uint32_t size, uint8_t *to, uint32_t capacity) noexcept nogil:
    """Bytes written, or 0 where it does not fit (then the batch goes as it is)."""
    if lz4_compress != NULL:
        return lz4_compress(<const char *>source, <char *>to, <int>size, <int>capacity, LZ4_ACCELERATION)
    with gil:
        try:
            packed = lz4_block.compress((<const char *>source)[:size], mode="fast", acceleration=LZ4_ACCELERATION, store_size=False)
        except Exception:
            return 0
        if <uint32_t>len(packed) > capacity:
            return 0
        memcpy(to, <char *>packed, len(packed))
        return <int>len(packed)


cdef int lz4_unpack(const uint8_t *source, uint32_t size, uint8_t *to, uint32_t raw_size) noexcept nogil:
    """Bytes written, or a negative number for damaged input."""
    if lz4_decompress != NULL:
        return lz4_decompress(<const char *>source, <char *>to, <int>size, <int>raw_size)
    with gil:
        try:
            raw = lz4_block.decompress((<const char *>source)[:size], uncompressed_size=raw_size)
        except Exception:
            return -1
        if <uint32_t>len(raw) != raw_size:
            return -1
        memcpy(to, <char *>raw, len(raw))
        return <int>len(raw)


def lz4_without_gil():
    """Whether lz4's C functions were found in the package (else: one Python call per batch)."""
    lz4_load()
    return lz4_compress != NULL and lz4_decompress != NULL
