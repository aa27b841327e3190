/* SPDX-License-Identifier: BSD-3-Clause */
#include "io-tree/io-clock.h"
#include <pthread.h>

uint64_t cpc_io_ns_per_tick_32;

static void measure(void)
{
	uint64_t ns = cpc_hooks_default.monotonic_ns(), ticks = cpc_io_ticks();
	uint64_t passed;

	do {
		passed = cpc_hooks_default.monotonic_ns() - ns;
	} while (passed < 2000000);
	ticks = cpc_io_ticks() - ticks;
	cpc_io_ns_per_tick_32 = (uint64_t)(((unsigned __int128)passed << 32) / ticks);
}

void cpc_io_clock_init(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, measure);
}
