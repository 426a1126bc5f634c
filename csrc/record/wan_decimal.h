/* Owns how a decimal of fixed point is written in the tagged form: digits, E and an exponent, as wan_form.c reads them.
 */
#ifndef WAN_DECIMAL_H
#define WAN_DECIMAL_H
#include <stdint.h>

#define WAN_DECIMAL_BYTES_MAX 32u /* Of the number that is given. */
#define WAN_DECIMAL_TEXT_MAX  96u /* A sign, 78 digits, E, and an exponent of 32 bits. */

/* Writes the number of `bytes` bytes (4, 8, 16 or 32; little-endian, two's complement) times 10 to the power -scale.
 * Returns how many characters that took. */
unsigned wan_decimal_write(char to[WAN_DECIMAL_TEXT_MAX], const uint8_t *number, unsigned bytes, int32_t scale);

#endif
