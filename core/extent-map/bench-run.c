/* SPDX-License-Identifier: BSD-3-Clause */
/* bench-run: prints what lookups and merges of runs cost. */
#include <stdio.h>
#include <stdlib.h>

#include "extent-map/run.h"
#include "lib/hooks.h"

static uint64_t state = 88172645463325252ull;

static uint64_t rnd(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/* `nr` single blocks, every one of them `step` blocks apart on average. */
static struct cpc_run *make_run(size_t nr, uint64_t step)
{
	struct cpc_run_builder b;
	struct cpc_run *run;
	uint64_t block = 0, bytenr = 1ull << 30;

	cpc_run_builder_init(&b, nr, nr);
	for (size_t i = 0; i < nr; i++) {
		uint32_t csum = (uint32_t)i;

		block += 1 + rnd() % (2 * step - 1);
		cpc_run_builder_map(&b, block, 1, bytenr, &csum);
		bytenr += 2 * CPC_BLOCK_SIZE; /* never joins */
	}
	if (cpc_run_builder_finish(&b, &run))
		abort();
	return run;
}

static void bench_lookup(size_t nr)
{
	struct cpc_run *run = make_run(nr, 16);
	uint64_t last = run->entries[nr - 1].block, t, sum = 0;
	const int loops = 1000000;
	struct cpc_mapping m;

	t = cpc_now_ns();
	for (int i = 0; i < loops; i++) {
		cpc_run_lookup(run, rnd() % last, 1, &m);
		sum += m.nr;
	}
	t = cpc_now_ns() - t;
	printf("lookup in %8zu entries: %5.1f ns (%llu)\n", nr, (double)t / loops,
	       (unsigned long long)sum);
	cpc_run_put(run);
}

static void count_drop(void *ctx, uint64_t bytenr, uint64_t nr)
{
	*(uint64_t *)ctx += nr;
}

static void bench_merge(size_t nr_runs, size_t nr, uint64_t step)
{
	struct cpc_run *runs[16], *out;
	uint64_t best = UINT64_MAX, drops = 0;

	for (size_t i = 0; i < nr_runs; i++)
		runs[i] = make_run(nr, step);
	for (int i = 0; i < 5; i++) {
		uint64_t t = cpc_now_ns();

		drops = 0;
		if (cpc_run_merge(runs, nr_runs, &out, count_drop, &drops))
			abort();
		best = cpc_min_u64(best, cpc_now_ns() - t);
		cpc_run_put(out);
	}
	printf("merge %2zu runs of %7zu entries, 1 in %4llu blocks: %6.2f ms, %llu drops\n",
	       nr_runs, nr, (unsigned long long)step, (double)best / 1e6,
	       (unsigned long long)drops);
	for (size_t i = 0; i < nr_runs; i++)
		cpc_run_put(runs[i]);
}

int main(void)
{
	bench_lookup(1000);
	bench_lookup(50000);
	bench_lookup(500000);
	bench_lookup(5000000);
	bench_merge(2, 500000, 500);
	bench_merge(2, 500000, 4);
	bench_merge(4, 125000, 500);
	bench_merge(8, 125000, 500);
	bench_merge(16, 31250, 500);
	return 0;
}
