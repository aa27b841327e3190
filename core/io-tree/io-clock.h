/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * io-clock: the time a call takes, for the histograms: the processor's cycle counter where there
 * is one, since a clock read costs as much as what is measured. Never used for anything else.
 */
#ifndef CPC_IO_TREE_IO_CLOCK_H
#define CPC_IO_TREE_IO_CLOCK_H

#include "lib/hooks.h"

/* Measures the cycle counter against the clock (2 ms, once). Before the first cpc_io_ticks(). */
void cpc_io_clock_init(void);

extern uint64_t cpc_io_ns_per_tick_32; /* nanoseconds of a tick, times 2^32; set once */

static inline uint64_t cpc_io_ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#else
	return cpc_hooks_default.monotonic_ns();
#endif
}

static inline uint64_t cpc_io_ticks_to_ns(uint64_t ticks)
{
	return (uint64_t)(((unsigned __int128)ticks * cpc_io_ns_per_tick_32) >> 32);
}

#endif
