/* SPDX-License-Identifier: BSD-3-Clause */
/* bench-space: prints what allocations cost in empty, worn and almost full pools. */
#include <stdio.h>
#include <stdlib.h>

#include "lib/hooks.h"
#include "space/space.h"

static uint64_t state = 88172645463325252ull;

static uint64_t rnd(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/* Every group looks like this one, but for the fixed areas. */
static uint8_t pattern[CPC_BLOCK_SIZE];
static struct cpc_geometry geo;

static int load(void *ctx, uint64_t group, uint8_t bitmap[CPC_BLOCK_SIZE])
{
	cpc_space_fresh_bitmap(&geo, group, bitmap);
	for (uint32_t i = 0; i < CPC_BLOCK_SIZE; i++)
		bitmap[i] |= pattern[i];
	return 0;
}

static uint32_t count_used(uint64_t group)
{
	uint8_t bitmap[CPC_BLOCK_SIZE];
	uint32_t n = 0;

	load(NULL, group, bitmap);
	for (uint32_t i = 0; i < cpc_geometry_group_blocks(&geo, group); i++)
		n += bitmap[i / 8] >> i % 8 & 1;
	return n;
}

/* A block is used with this probability, in runs of `run` blocks. */
static void make_pattern(double density, uint32_t run)
{
	memset(pattern, 0, sizeof(pattern));
	for (uint32_t i = 0; i < CPC_GROUP_BLOCKS; i += run) {
		if ((double)(rnd() >> 11) / (double)(1ull << 53) >= density)
			continue;
		for (uint32_t j = i; j < i + run && j < CPC_GROUP_BLOCKS; j++)
			pattern[j / 8] |= (uint8_t)(1u << j % 8);
	}
}

static struct cpc_space *make_pool(uint64_t bytes)
{
	struct cpc_space *space;
	uint64_t t = cpc_now_ns();
	uint32_t first;

	if (cpc_geometry_init(&geo, bytes, 64u << 20, 16384, true) ||
	    cpc_space_create(&geo, load, NULL, &space))
		abort();
	printf("pool of %llu groups, created in %.1f ms\n", (unsigned long long)geo.nr_groups,
	       (double)(cpc_now_ns() - t) / 1e6);
	first = count_used(geo.nr_groups / 3); /* has no fixed areas */
	t = cpc_now_ns();
	for (uint64_t g = 0; g < geo.nr_groups; g++) {
		bool edge =
		    g <= geo.data_start / CPC_GROUP_BLOCKS || g >= geo.data_end / CPC_GROUP_BLOCKS;

		cpc_space_set_group(space, g, edge ? count_used(g) : first);
	}
	printf("  counts set in %.1f ms\n", (double)(cpc_now_ns() - t) / 1e6);
	return space;
}

static void bench_alloc(struct cpc_space *space, enum cpc_space_kind kind, uint32_t want,
			uint32_t min, uint64_t loops)
{
	uint64_t t = cpc_now_ns(), block, n = 0, blocks = 0;
	uint32_t got;

	for (; n < loops && cpc_space_alloc(space, kind, want, min, &block, &got) == 0; n++)
		blocks += got;
	t = cpc_now_ns() - t;
	if (n == 0) {
		printf("  no room for %u blocks\n", min);
		return;
	}
	printf("  %s want %3u: %7llu allocations, %6.1f blocks each, %7.1f ns each, %6.1f ns a "
	       "block\n",
	       kind == CPC_SPACE_DATA ? "data" : "node", want, (unsigned long long)n,
	       (double)blocks / (double)n, (double)t / (double)n, (double)t / (double)blocks);
}

static void bench_pool(const char *name, uint64_t bytes, double density, uint32_t run)
{
	struct cpc_space *space;

	make_pattern(density, run);
	printf("%s: ", name);
	space = make_pool(bytes);
	bench_alloc(space, CPC_SPACE_DATA, 256, 1, 20000);
	bench_alloc(space, CPC_SPACE_DATA, 1, 1, 200000);
	bench_alloc(space, CPC_SPACE_NODE, 4, 4, 100000);
	cpc_space_destroy(space);
}

int main(void)
{
	bench_pool("empty, 1 TiB", 1ull << 40, 0, 1);
	bench_pool("half used in runs of 64, 1 TiB", 1ull << 40, 0.5, 64);
	bench_pool("half used in single blocks, 1 TiB", 1ull << 40, 0.5, 1);
	bench_pool("95 % used in single blocks, 1 TiB", 1ull << 40, 0.95, 1);
	bench_pool("99.9 % used in single blocks, 64 TiB", 1ull << 46, 0.999, 1);
	return 0;
}
