/* Owns nothing. These are the hashes of keys. wan_hash decides the bucket of a key, so it is part of the format, and
 * the tests hold golden values of it. It mixes by 64-bit multiply-and-fold in the manner of wyhash (Wang Yi), and is
 * written for keys of 4 to 64 bytes. */
#ifndef WAN_HASH_H
#define WAN_HASH_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Multiplies two words and folds the 128 bits of the product into 64. */
static inline uint64_t wan_hash_fold(uint64_t a, uint64_t b)
{
    __uint128_t product = (__uint128_t)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Loads of words that need not be aligned. */
static inline uint64_t wan_load64(const uint8_t *at)
{
    uint64_t v;
    memcpy(&v, at, 8);
    return v;
}
static inline uint64_t wan_load32(const uint8_t *at)
{
    uint32_t v;
    memcpy(&v, at, 4);
    return v;
}

#define WAN_HASH_A 0xa0761d6478bd642full
#define WAN_HASH_B 0xe7037ed1a0b428dbull
#define WAN_HASH_C 0x8ebc6af09c88c6e3ull

/* The hash of some bytes. It is part of the format. */
static inline uint64_t wan_hash(const void *bytes, size_t length, uint64_t seed)
{
    const uint8_t *at = (const uint8_t *)bytes;
    uint64_t a, b, state = seed ^ WAN_HASH_C;
    if (length <= 16) {
        if (length >= 4) {
            size_t middle = (length >> 3) << 2;
            a = wan_load32(at) << 32 | wan_load32(at + middle);
            b = wan_load32(at + length - 4) << 32 | wan_load32(at + length - 4 - middle);
        } else if (length > 0) {
            a = (uint64_t)at[0] << 16 | (uint64_t)at[length >> 1] << 8 | at[length - 1];
            b = 0;
        } else {
            a = b = 0;
        }
    } else {
        size_t left = length;
        for (; left > 16; left -= 16, at += 16)
            state = wan_hash_fold(wan_load64(at) ^ WAN_HASH_A, wan_load64(at + 8) ^ state);
        a = wan_load64(at + left - 16);
        b = wan_load64(at + left - 8);
    }
    return wan_hash_fold(WAN_HASH_A ^ length, wan_hash_fold(a ^ WAN_HASH_B, b ^ state));
}

/* The hash that decides where a key lies in an index of this process. It is the same function, with secrets instead of
 * its constants. The process draws the secrets when it begins. Everybody who knows wan_hash can make keys that collide
 * in it. Nobody outside can make keys that collide here. */
extern uint64_t wan_hash_secrets[4];
static inline uint64_t wan_secret_hash(const void *data, size_t length, uint64_t form)
{
    const uint8_t *at = data;
    const uint64_t *secret = wan_hash_secrets;
    uint64_t a = 0, b = 0, state = secret[2] ^ form;
    size_t left = length;
    for (; left > 16; left -= 16, at += 16)
        state = wan_hash_fold(wan_load64(at) ^ secret[0], wan_load64(at + 8) ^ state);
    if (left >= 8) {
        a = wan_load64(at);
        b = wan_load64(at + left - 8);
    } else {
        memcpy(&a, at, left);
    }
    return wan_hash_fold(secret[3] ^ length, wan_hash_fold(a ^ secret[1], b ^ state));
}

/* The same bytes in another form are another key: b"k" and "k" are two keys. */
static inline uint64_t wan_key_hash(const void *key, size_t length, uint8_t form)
{
    return wan_hash(key, length, form);
}

/* A number below `count`. It comes from the high bits of the hash, because the table uses the low bits inside a
 * bucket. */
static inline uint32_t wan_hash_bucket(uint64_t hash, uint32_t count)
{
    return (uint32_t)(((hash >> 32) * (uint64_t)count) >> 32);
}

#endif
