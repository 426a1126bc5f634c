/* Owns nothing. This is SipHash-2-4 (Aumasson, Bernstein), a keyed hash of short inputs. Without the key nobody can
 * make bytes that fit a hash. */
#ifndef WAN_SIPHASH_H
#define WAN_SIPHASH_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The hash of `length` bytes under a key of 128 bits. */
static inline uint64_t wan_siphash(const uint64_t key[2], const void *bytes, size_t length)
{
    uint64_t a = key[0] ^ 0x736f6d6570736575u, b = key[1] ^ 0x646f72616e646f6du;
    uint64_t c = key[0] ^ 0x6c7967656e657261u, d = key[1] ^ 0x7465646279746573u;
#define WAN_SIP_TURN(x, n) ((x) << (n) | (x) >> (64 - (n)))
#define WAN_SIP_ROUND()                                                                                                \
    do {                                                                                                               \
        a += b;                                                                                                        \
        b = WAN_SIP_TURN(b, 13) ^ a;                                                                                   \
        a = WAN_SIP_TURN(a, 32);                                                                                       \
        c += d;                                                                                                        \
        d = WAN_SIP_TURN(d, 16) ^ c;                                                                                   \
        a += d;                                                                                                        \
        d = WAN_SIP_TURN(d, 21) ^ a;                                                                                   \
        c += b;                                                                                                        \
        b = WAN_SIP_TURN(b, 17) ^ c;                                                                                   \
        c = WAN_SIP_TURN(c, 32);                                                                                       \
    } while (0)
    const uint8_t *at = bytes;
    for (size_t left = length;; left -= 8, at += 8) {
        uint64_t word = left < 8 ? (uint64_t)length << 56 : 0;
        memcpy(&word, at, left < 8 ? left : 8);
        d ^= word;
        WAN_SIP_ROUND();
        WAN_SIP_ROUND();
        a ^= word;
        if (left < 8) break;
    }
    c ^= 0xff;
    WAN_SIP_ROUND();
    WAN_SIP_ROUND();
    WAN_SIP_ROUND();
    WAN_SIP_ROUND();
#undef WAN_SIP_ROUND
#undef WAN_SIP_TURN
    return a ^ b ^ c ^ d;
}

#endif
