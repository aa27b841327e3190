/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The library computes. Where it uses AVX-512 it leaves the upper halves of the vector registers in
 * use: then the next instruction of the older kind (any SSE code, as compilers make of small
 * structures) stalls, and every context switch saves them. So they are cleared here.
 */
#include "lib/crc32c.h"

#include <isa-l/crc.h>

/* The library's length is an int. */
#define MAX_PIECE (1u << 30)

static void clear_upper_halves(void)
{
#ifdef __x86_64__
	if (cpc_likely(__builtin_cpu_supports("avx")))
		__asm__ volatile("vzeroupper");
#endif
}

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
	clear_upper_halves();
	return ~crc;
}
