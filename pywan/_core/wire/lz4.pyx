# Owns the way to lz4. The public functions of the lz4 package need the GIL at both ends of each batch. So this unit
# looks once for the C functions inside the compiled module of the package, and tries them out against the public ones.
# If one is missing or differs, it uses the public functions, one call per batch (docs/decisions/0044).
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy, memmove
from pywan._core.c_python cimport *
from pywan._core.c_system cimport *

ctypedef int (*lz4_compress_fast)(const char *source, char *to, int size, int capacity, int acceleration) noexcept nogil
ctypedef int (*lz4_decompress_safe)(const char *source, char *to, int size, int capacity) noexcept nogil


cdef enum:
    # It takes a tenth less time than 1, for one percent more bytes, with the bench's records and a real change stream.
    LZ4_ACCELERATION = 2
    LZ4_TRIAL_BYTES = 4096

cdef lz4_compress_fast lz4_compress = NULL
cdef lz4_decompress_safe lz4_decompress = NULL
cdef bint lz4_looked = False
cdef object lz4_block = None


cdef int lz4_load() except -1:
    """Finds the functions, before the first batch. ImportError without the package."""
    global lz4_looked, lz4_block
    if lz4_looked:
        return 0
    import lz4.block
    lz4_block = lz4.block
    lz4_find_direct()
    lz4_looked = True
    return 0


cdef int lz4_find_direct() except -1:
    """Takes the addresses of the C functions, if they are there and do what the public ones do."""
    global lz4_compress, lz4_decompress
    cdef void *handle
    try:
        from lz4.block import _block
        path = _block.__file__.encode()
    except (ImportError, AttributeError):
        return 0
    handle = dlopen(path, RTLD_NOW)
    if handle == NULL:
        return 0
    lz4_compress = <lz4_compress_fast>dlsym(handle, "LZ4_compress_fast")
    lz4_decompress = <lz4_decompress_safe>dlsym(handle, "LZ4_decompress_safe")
    if lz4_compress == NULL or lz4_decompress == NULL or not lz4_agrees():
        lz4_compress, lz4_decompress = NULL, NULL
    return 0


cdef bint lz4_agrees() except -1:
    """Whether the public functions read what the C functions pack, and the other way round."""
    cdef bytes text = bytes(range(256)) * 4 + bytes(LZ4_TRIAL_BYTES - 1024)
    cdef uint8_t packed[LZ4_TRIAL_BYTES * 2]
    cdef uint8_t raw[LZ4_TRIAL_BYTES]
    cdef int length = lz4_compress(<const char *>text, <char *>packed, LZ4_TRIAL_BYTES, LZ4_TRIAL_BYTES * 2,
                                   LZ4_ACCELERATION)
    cdef bytes public = lz4_block.compress(text, mode="fast", acceleration=LZ4_ACCELERATION, store_size=False)
    if length <= 0 or length > LZ4_TRIAL_BYTES:
        return False
    try:
        if lz4_block.decompress((<char *>packed)[:length], uncompressed_size=LZ4_TRIAL_BYTES) != text:
            return False
    except lz4_block.LZ4BlockError:
        return False
    return (lz4_decompress(<const char *>public, <char *>raw, <int>len(public), LZ4_TRIAL_BYTES) == LZ4_TRIAL_BYTES
            and (<char *>raw)[:LZ4_TRIAL_BYTES] == text)


cdef int lz4_pack(const uint8_t *source, uint32_t size, uint8_t *to, uint32_t capacity) noexcept nogil:
    """Packs. Returns the bytes written, or 0 if they do not fit. Then the batch travels as it is."""
    if lz4_compress != NULL:
        return lz4_compress(<const char *>source, <char *>to, <int>size, <int>capacity, LZ4_ACCELERATION)
    with gil:
        try:
            packed = lz4_block.compress(PyMemoryView_FromMemory(<char *>source, size, PyBUF_READ), mode="fast",
                                        acceleration=LZ4_ACCELERATION,
                                        store_size=False)
        except Exception:
            return 0
        if <uint32_t>len(packed) > capacity:
            return 0
        memcpy(to, <char *>packed, len(packed))
        return <int>len(packed)


cdef bint lz4_is_direct() noexcept nogil:
    """Whether `lz4_pack_behind` can be called."""
    return lz4_compress != NULL


cdef int lz4_pack_behind(const uint8_t *head, uint32_t head_size, const uint8_t *source, uint32_t size, uint8_t *to,
                         uint32_t capacity) noexcept nogil:
    """Packs a head and a source as one block, although they lie apart: nothing is copied to lay them out together.
    `capacity` is lz4_bound of both; 8 more bytes are there. Returns the bytes written, or 0 where it does not fit.

    A block begins with a token, then the number of its first literals beyond 15, then these literals. The source is
    packed alone, and the head is put in front of its first literals, as literals too. The rest of the block stays as it
    is, because it names matches by their distance."""
    cdef uint8_t *packed = to + head_size       # The first literals mostly need not be moved from here.
    cdef int length = lz4_compress(<const char *>source, <char *>packed, <int>size, <int>(capacity - head_size),
                                   LZ4_ACCELERATION)
    cdef uint8_t *literals = packed + 1
    cdef uint8_t *rest
    cdef uint32_t count
    cdef uint8_t match
    if length <= 0:
        return 0
    count, match = packed[0] >> 4, packed[0] & 15
    if count == 15:
        while literals[0] == 255:
            count += 255
            literals += 1
        count += literals[0]
        literals += 1
    length -= <int>(literals - packed)
    count += head_size
    rest = to + 1 + ((count - 15) // 255 + 1 if count >= 15 else 0) + head_size
    if rest != literals:
        memmove(rest, literals, <size_t>length)
    memcpy(rest - head_size, head, head_size)
    length += <int>(rest - to)
    to[0] = <uint8_t>(min(count, <uint32_t>15) << 4 | match)
    if count >= 15:
        count -= 15
        while count >= 255:
            to += 1
            to[0] = 255
            count -= 255
        to[1] = <uint8_t>count
    return length


cdef int lz4_unpack(const uint8_t *source, uint32_t size, uint8_t *to, uint32_t raw_size) noexcept nogil:
    """Unpacks. Returns the bytes written, or a negative number for damaged input."""
    if lz4_decompress != NULL:
        return lz4_decompress(<const char *>source, <char *>to, <int>size, <int>raw_size)
    with gil:
        try:
            raw = lz4_block.decompress(PyMemoryView_FromMemory(<char *>source, size, PyBUF_READ),
                                       uncompressed_size=raw_size)
        except Exception:
            return -1
        if <uint32_t>len(raw) != raw_size:
            return -1
        memcpy(to, <char *>raw, len(raw))
        return <int>len(raw)


def lz4_without_gil():
    """Whether batches are packed by lz4's C functions. If not, each batch takes one call of its public functions."""
    lz4_load()
    return lz4_compress != NULL
