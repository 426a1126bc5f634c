/* Owns the two ways to compute CRC32C. The fast one runs three independent streams, because the instruction takes three
 * cycles and a new one can start every cycle. It joins the streams with the zero-shift operator of Adler's crc32c.c:
 * crc(A || B) = shift(crc(A), |B|) xor crc(B). */
#include "base/wan_crc32c.h"

#include <pthread.h>
#include <string.h>

#define POLYNOMIAL 0x82f63b78u
/* Bytes of each of the three streams. Together they are 3 KB, which is well below a batch and fits into the L1
 * cache. */
#define STREAM_BYTES ((size_t)1024)

static uint32_t byte_table[8][256];
/* Moves a crc over STREAM_BYTES zero bytes, one byte of the crc at a time. */
static uint32_t shift_table[4][256];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static uint32_t matrix_times(const uint32_t *matrix, uint32_t vector)
{
    uint32_t sum = 0;
    for (; vector; vector >>= 1, matrix++)
        if (vector & 1) sum ^= *matrix;
    return sum;
}

static void matrix_square(uint32_t *square, const uint32_t *matrix)
{
    for (int n = 0; n < 32; n++) square[n] = matrix_times(matrix, matrix[n]);
}

static void build_tables(void)
{
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t crc = n;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >> 1) ^ POLYNOMIAL : crc >> 1;
        byte_table[0][n] = crc;
    }
    for (uint32_t n = 0; n < 256; n++)
        for (int k = 1; k < 8; k++)
            byte_table[k][n] = byte_table[0][byte_table[k - 1][n] & 0xff] ^ (byte_table[k - 1][n] >> 8);

    uint32_t odd[32], even[32];
    odd[0] = POLYNOMIAL; /* The operator for one zero bit. */
    for (int n = 1; n < 32; n++) odd[n] = 1u << (n - 1);
    matrix_square(even, odd); /* For two bits. */
    matrix_square(odd, even); /* For four bits. */
    /* Each square doubles the number of zero bits, from 4 bits to STREAM_BYTES * 8 bits. */
    uint32_t *now = odd, *next = even;
    for (uint64_t bits = 4; bits < (uint64_t)STREAM_BYTES * 8; bits *= 2) {
        matrix_square(next, now);
        uint32_t *swap = now;
        now = next;
        next = swap;
    }
    for (uint32_t n = 0; n < 256; n++)
        for (int k = 0; k < 4; k++) shift_table[k][n] = matrix_times(now, n << (8 * k));
}

uint32_t wan_crc32c_portable(uint32_t crc, const void *bytes, size_t length)
{
    pthread_once(&tables_once, build_tables);
    const uint8_t *next = bytes;
    crc = ~crc;
    for (; length >= 8; length -= 8, next += 8) {
        uint64_t word;
        memcpy(&word, next, 8);
        word ^= crc;
        crc = byte_table[7][word & 0xff] ^ byte_table[6][(word >> 8) & 0xff] ^ byte_table[5][(word >> 16) & 0xff]
              ^ byte_table[4][(word >> 24) & 0xff] ^ byte_table[3][(word >> 32) & 0xff]
              ^ byte_table[2][(word >> 40) & 0xff] ^ byte_table[1][(word >> 48) & 0xff] ^ byte_table[0][word >> 56];
    }
    for (; length; length--) crc = byte_table[0][(crc ^ *next++) & 0xff] ^ (crc >> 8);
    return ~crc;
}

#if defined(__x86_64__)
#    include <nmmintrin.h>
#    define WAN_CRC_TARGET      __attribute__((target("sse4.2")))
#    define crc_word(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#    define crc_byte(crc, byte) _mm_crc32_u8((crc), (byte))
static int have_instruction(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__linux__)
#    include <arm_acle.h>
#    include <sys/auxv.h>
#    define WAN_CRC_TARGET      __attribute__((target("+crc")))
#    define crc_word(crc, word) __crc32cd((crc), (word))
#    define crc_byte(crc, byte) __crc32cb((crc), (byte))
static int have_instruction(void) { return (getauxval(AT_HWCAP) & (1 << 7)) != 0; }
#endif

#ifdef WAN_CRC_TARGET
static inline uint32_t shift_stream(uint32_t crc)
{
    return shift_table[0][crc & 0xff] ^ shift_table[1][(crc >> 8) & 0xff] ^ shift_table[2][(crc >> 16) & 0xff]
           ^ shift_table[3][crc >> 24];
}

static inline uint64_t load_word(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

WAN_CRC_TARGET static uint32_t crc32c_instruction(uint32_t crc, const void *bytes, size_t length)
{
    const uint8_t *next = bytes;
    uint32_t a = ~crc;
    for (; length >= 3 * STREAM_BYTES; length -= 3 * STREAM_BYTES, next += 3 * STREAM_BYTES) {
        uint32_t b = 0, c = 0;
        for (size_t at = 0; at < STREAM_BYTES; at += 8) {
            a = crc_word(a, load_word(next + at));
            b = crc_word(b, load_word(next + STREAM_BYTES + at));
            c = crc_word(c, load_word(next + 2 * STREAM_BYTES + at));
        }
        a = shift_stream(shift_stream(a) ^ b) ^ c;
    }
    for (; length >= 8; length -= 8, next += 8) a = crc_word(a, load_word(next));
    for (; length; length--) a = crc_byte(a, *next++);
    return ~a;
}
#endif

uint32_t wan_crc32c(uint32_t crc, const void *bytes, size_t length)
{
#ifdef WAN_CRC_TARGET
    if (have_instruction()) {
        pthread_once(&tables_once, build_tables);
        return crc32c_instruction(crc, bytes, length);
    }
#endif
    return wan_crc32c_portable(crc, bytes, length);
}
