/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * crc32c: the Castagnoli CRC (iSCSI, RFC 3720), as every checksum of the pool uses it. The
 * register is inverted before the first and after the last byte, so that cpc_crc32c(0, "123456789",
 * 9) is 0xe3069283 and a checksum can be continued: crc(crc(0, a), b) = crc(0, ab).
 */
#ifndef CPC_LIB_CRC32C_H
#define CPC_LIB_CRC32C_H

#include "lib/base.h"

/* Continues `seed`, which is 0 for the first piece, over `len` bytes; any length and alignment. */
uint32_t cpc_crc32c(uint32_t seed, const void *buf, size_t len);

#endif
