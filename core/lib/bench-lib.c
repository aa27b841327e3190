/* SPDX-License-Identifier: BSD-3-Clause */
/* Prints what the functions of lib cost that run on every request, in nanoseconds a call. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "lib/epoch.h"
#include "lib/hist.h"
#include "lib/xarray.h"

#define NR_ENTRIES (UINT64_C(1) << 20)
#define NR_CALLS   (UINT64_C(4) << 20)

static struct cpc_xarray xa;
static uint64_t array[NR_ENTRIES];
static struct cpc_hist hist;
static uint64_t sink;

/* A number that looks random and costs next to nothing. */
static uint64_t scatter(uint64_t i)
{
	return (i * UINT64_C(0x9e3779b97f4a7c15)) >> 20 & (NR_ENTRIES - 1);
}

static void *entry_of(uint64_t n)
{
	return (void *)(uintptr_t)((n + 1) * 4);
}

static void bench_scatter(uint64_t i)
{
	sink += scatter(i);
}

static void bench_enter_exit(uint64_t i)
{
	cpc_epoch_enter();
	cpc_epoch_exit();
}

static void bench_hist_add(uint64_t i)
{
	cpc_hist_add(&hist, scatter(i));
}

static void bench_store(uint64_t i)
{
	if (cpc_xa_store(&xa, scatter(i), entry_of(i), NULL))
		abort();
}

static void bench_load(uint64_t i)
{
	sink += (uintptr_t)cpc_xa_load(&xa, scatter(i));
}

/* Each index depends on the entry before: nothing overlaps. */
static void bench_load_chained(uint64_t i)
{
	static uint64_t at;

	at = scatter(((uintptr_t)cpc_xa_load(&xa, at) & 1) + i);
}

static void bench_array_chained(uint64_t i)
{
	static uint64_t at;

	at = scatter((array[at] & 1) + i);
}

static void bench_load_in_section(uint64_t i)
{
	cpc_epoch_enter();
	bench_load(i);
	cpc_epoch_exit();
}

static void bench_set_mark(uint64_t i)
{
	cpc_xa_set_mark(&xa, scatter(i), CPC_MARK_DIRTY);
}

static void bench_clear_mark(uint64_t i)
{
	cpc_xa_clear_mark(&xa, scatter(i), CPC_MARK_DIRTY);
}

static void bench_set_clear_mark(uint64_t i)
{
	bench_set_mark(i);
	bench_clear_mark(i);
}

static void bench_find_marked(uint64_t i)
{
	uint64_t index = scatter(i);

	sink += (uintptr_t)cpc_xa_find_marked(&xa, &index, UINT64_MAX, CPC_MARK_DIRTY);
}

static void bench_walk(uint64_t i)
{
	static uint64_t index;
	void *out[64];

	if (i % 64 == 0 &&
	    cpc_xa_find_batch(&xa, &index, UINT64_MAX, CPC_MARK_NONE, out, NULL, 64) < 64)
		index = 0;
}

static void bench_erase(uint64_t i)
{
	sink += (uintptr_t)cpc_xa_erase(&xa, scatter(i));
}

static double cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

/* Prints the best of 16 parts: others may be using the machine. */
static void run(const char *name, void (*fn)(uint64_t i), uint64_t nr)
{
	double best = 1e18;
	uint64_t i = 0;

	for (unsigned int part = 1; part <= 16; part++) {
		uint64_t first = i, end = nr / 16 * part;
		double start = cpu_ns(), each;

		for (; i < end; i++)
			fn(i);
		each = (cpu_ns() - start) / (double)(end - first);
		best = each < best ? each : best;
	}
	printf("%-44s %6.1f ns\n", name, best);
}

int main(void)
{
	cpc_xa_init(&xa);
	memset(array, 2, sizeof(array));
	printf("tagged index of %llu dense entries, random order\n",
	       (unsigned long long)NR_ENTRIES);
	run("(choosing an index)", bench_scatter, NR_CALLS);
	run("epoch enter + exit", bench_enter_exit, NR_CALLS);
	run("histogram add", bench_hist_add, NR_CALLS);
	for (uint64_t i = 0; i < NR_ENTRIES; i++)
		if (cpc_xa_store(&xa, i, entry_of(i), NULL))
			abort();
	run("store (replace)", bench_store, NR_CALLS);
	run("load", bench_load, NR_CALLS);
	run("load, each after the one before", bench_load_chained, NR_CALLS);
	run("(the same from a plain array)", bench_array_chained, NR_CALLS);
	run("enter + load + exit", bench_load_in_section, NR_CALLS);
	run("set + clear a mark, the only one", bench_set_clear_mark, NR_CALLS);
	run("set a mark", bench_set_mark, NR_ENTRIES / 2);
	run("find next marked", bench_find_marked, NR_CALLS);
	run("clear a mark", bench_clear_mark, NR_ENTRIES / 2);
	run("walk in batches of 64, an entry", bench_walk, NR_CALLS);
	run("erase", bench_erase, NR_ENTRIES);
	for (uint64_t i = 0; i < NR_ENTRIES; i++)
		cpc_xa_erase(&xa, i);
	run("store (new)", bench_store, NR_ENTRIES);
	cpc_xa_destroy(&xa);
	cpc_epoch_drain();
	return sink == 1;
}
