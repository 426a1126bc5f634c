/* Owns nothing: CRC32C (Castagnoli, reflected polynomial 0x82f63b78) of a run of bytes. */
#ifndef WAN_CRC32C_H
#define WAN_CRC32C_H
#include <stddef.h>
#include <stdint.h>

/* Continues `crc` (0 to start) over `length` bytes. Standard form: crc of "123456789" is 0xe3069283.
 * Uses the SSE4.2 or ARMv8 instruction where the processor has it, else eight tables. */
uint32_t wan_crc32c(uint32_t crc, const void *bytes, size_t length);

/* The form with tables, on every processor. Tests compare the instruction with it. */
uint32_t wan_crc32c_portable(uint32_t crc, const void *bytes, size_t length);

#endif
