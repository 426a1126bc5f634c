/* Owns the writing of numbers of up to 256 bits in decimal digits. */
#include "record/wan_decimal.h"

#include <string.h>

#define LIMBS     (WAN_DECIMAL_BYTES_MAX / 8)
#define TEN_TO_18 1000000000000000000ull

/* Writes `number` so that it ends before `end`, with leading zeros up to `least` digits. Returns its first digit. */
static char *digits_before(char *end, uint64_t number, unsigned least)
{
    char *at = end;
    for (; number || at > end - least; number /= 10) *--at = (char)('0' + number % 10);
    return at;
}

/* Divides a number by 10 to the power 18, and returns the remainder. The number has `count` limbs, the lowest first. */
static uint64_t divide(uint64_t *limbs, unsigned count)
{
    unsigned __int128 rest = 0;
    for (unsigned n = count; n-- > 0;) {
        const unsigned __int128 part = rest << 64 | limbs[n];
        limbs[n] = (uint64_t)(part / TEN_TO_18);
        rest = part % TEN_TO_18;
    }
    return (uint64_t)rest;
}

unsigned wan_decimal_write(char to[WAN_DECIMAL_TEXT_MAX], const uint8_t *number, unsigned bytes, int32_t scale)
{
    uint64_t limbs[LIMBS];
    char text[WAN_DECIMAL_TEXT_MAX], *end = text + sizeof text, *at = end, *out = to;
    const int is_negative = number[bytes - 1] >> 7;
    unsigned count = LIMBS;
    memset(limbs, is_negative ? 0xff : 0, sizeof limbs);
    memcpy(limbs, number, bytes);
    if (is_negative) {
        uint64_t carry = 1;
        for (unsigned n = 0; n < LIMBS; n++) {
            limbs[n] = ~limbs[n] + carry;
            carry = carry && limbs[n] == 0;
        }
        *out++ = '-';
    }
    while (count > 1 && limbs[count - 1] == 0) count--;
    while (count > 1) {
        at = digits_before(at, divide(limbs, count), 18);
        while (count > 1 && limbs[count - 1] == 0) count--;
    }
    at = digits_before(at, limbs[0], at == end);
    memcpy(out, at, (size_t)(end - at));
    out += end - at;
    *out++ = 'E';
    if (scale > 0) *out++ = '-';
    at = digits_before(end, scale < 0 ? (uint64_t)(-(int64_t)scale) : (uint64_t)scale, 1);
    memcpy(out, at, (size_t)(end - at));
    return (unsigned)(out + (end - at) - to);
}
