/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * base: words that every module uses.
 *
 * Ranges everywhere are half-open, [start, start + len). `bytenr` is a byte address in the
 * pool, `offset` a byte address in a volume, `block` = 4096 bytes. Functions return 0 or a
 * negative errno; damage found in what the device returned is -EUCLEAN.
 */
#ifndef CPC_LIB_BASE_H
#define CPC_LIB_BASE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#define CPC_BLOCK_SIZE	4096u
#define CPC_BLOCK_SHIFT 12

#define cpc_likely(x)	__builtin_expect(!!(x), 1)
#define cpc_unlikely(x) __builtin_expect(!!(x), 0)

#define CPC_ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

#define cpc_container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

static inline uint64_t cpc_min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t cpc_max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Divides rounding up; `b` is not 0, a + b does not overflow. */
static inline uint64_t cpc_div_round_up(uint64_t a, uint64_t b)
{
	return (a + b - 1) / b;
}

static inline uint64_t cpc_align_down(uint64_t v, uint64_t align)
{
	return v & ~(align - 1);
}

/* `align` is a power of two, v + align does not overflow. */
static inline uint64_t cpc_align_up(uint64_t v, uint64_t align)
{
	return (v + align - 1) & ~(align - 1);
}

/* Says whether all bytes are zero. */
static inline bool cpc_all_zero(const void *p, size_t len)
{
	const uint8_t *bytes = (const uint8_t *)p;

	return len == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, len - 1) == 0);
}

/*
 * An invariant of our own code. Stays on in release builds: stopping is better than serving
 * wrong data. Never used on bytes that came from a device or a client.
 */
#define cpc_assert(cond)                                                                           \
	do {                                                                                       \
		if (cpc_unlikely(!(cond)))                                                         \
			cpc_assert_failed(#cond, __FILE__, __LINE__, __func__);                    \
	} while (0)

_Noreturn void cpc_assert_failed(const char *cond, const char *file, int line, const char *func);

#endif
