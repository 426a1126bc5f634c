/* Owns how a fixed-point decimal is written in the tagged form: digits, E and an exponent. wan_form.c reads the
 * same. */
#ifndef WAN_DECIMAL_H
#define WAN_DECIMAL_H
#include <stdint.h>

#define WAN_DECIMAL_BYTES_MAX 32u /* The most bytes of the number that is given. */
#define WAN_DECIMAL_TEXT_MAX  96u /* The most characters: a sign, 78 digits, E, and an exponent of 32 bits. */

/* Writes `number` times 10 to the power -scale. The number has `bytes` bytes (4, 8, 16 or 32), little-endian, two's
 * complement. Returns how many characters it wrote. */
unsigned wan_decimal_write(char to[WAN_DECIMAL_TEXT_MAX], const uint8_t *number, unsigned bytes, int32_t scale);

#endif
