/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * hooks: everything the engine takes from its surroundings besides device I/O (which is
 * core/backing): memory, time and randomness. Tests replace the table to fail the N-th
 * allocation, to move the clock, to make a run repeatable.
 *
 * The table is set while no other engine call runs; it is read without a lock.
 * Allocation functions return NULL on failure, and every caller handles it.
 */
#ifndef CPC_LIB_HOOKS_H
#define CPC_LIB_HOOKS_H

#include "lib/base.h"

struct cpc_hooks {
	/* `align` is 0 or a power of two, `size` > 0. Memory is not zeroed. */
	void *(*alloc)(size_t align, size_t size);
	void (*free)(void *ptr);
	uint64_t (*monotonic_ns)(void);	      /* never used for ordering what is durable */
	int64_t (*realtime_s)(void);	      /* shown to users only */
	int (*random)(void *buf, size_t len); /* 0 or negative errno */
};

extern struct cpc_hooks cpc_hooks;
extern const struct cpc_hooks cpc_hooks_default;

static inline void *cpc_alloc(size_t size)
{
	return cpc_hooks.alloc(0, size);
}

static inline void *cpc_alloc_aligned(size_t align, size_t size)
{
	return cpc_hooks.alloc(align, size);
}

static inline void *cpc_zalloc(size_t size)
{
	void *p = cpc_hooks.alloc(0, size);

	if (p)
		memset(p, 0, size);
	return p;
}

/* Allocates an array; NULL also when nr * size overflows. nr and size are not 0. */
static inline void *cpc_alloc_array(size_t nr, size_t size)
{
	size_t bytes;

	if (__builtin_mul_overflow(nr, size, &bytes))
		return NULL;
	return cpc_hooks.alloc(0, bytes);
}

/* Frees what a cpc_alloc function returned; NULL is allowed. */
static inline void cpc_free(void *ptr)
{
	if (ptr)
		cpc_hooks.free(ptr);
}

static inline uint64_t cpc_now_ns(void)
{
	return cpc_hooks.monotonic_ns();
}

#endif
