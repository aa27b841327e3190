/* SPDX-License-Identifier: BSD-3-Clause */
#include "lib/crc32c.h"

#include <isa-l/crc.h>

/* The library's length is an int. */
#define MAX_PIECE (1u << 30)

uint32_t cpc_crc32c(uint32_t seed, const void *buf, size_t len)
{
	unsigned char *p = (unsigned char *)(uintptr_t)buf; /* only read */
	uint32_t crc = ~seed;

	while (len) {
		size_t piece = len < MAX_PIECE ? len : MAX_PIECE;

		crc = crc32_iscsi(p, (int)piece, crc);
		p += piece;
		len -= piece;
	}
	return ~crc;
}
