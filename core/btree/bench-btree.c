/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How long a commit's work on one volume tree takes: random and sequential single-block changes
 * applied to trees of several sizes, in memory, and the writeback of what they made. All times are
 * of the processor: what other programs do meanwhile does not count.
 *
 * CPC_BENCH_CASE=N runs one case only.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "backing/flush-epoch.h"
#include "backing/powercut.h"
#include "btree/btree.h"

#define POOL_SIZE (64ull << 30)
#define OWNER	  (CPC_TREE_VOLUME_BASE + 1)

struct bench {
	struct cpc_powercut *pc;
	struct cpc_backing *backing;
	struct cpc_flush_epoch fe;
	struct cpc_geometry geo;
	struct cpc_eb_cache *cache;
	struct cpc_tree_txn txn;
	struct cpc_node_ptr root;
	uint64_t next_node[2], next_data; /* bytenr */
	uint64_t allocated, freed;
	uint64_t rng;
};

/* A sorted stream of changes, made while it is read. */
struct stream {
	struct bench *b;
	uint64_t left, at;
	uint32_t step, len; /* mean distance, blocks of each */
	uint8_t value[sizeof(struct cpc_disk_extent) + 4 * CPC_EXTENT_MAX_BLOCKS];
};

static void must(int ret)
{
	if (ret) {
		fprintf(stderr, "bench-btree: %s\n", strerror(-ret));
		exit(1);
	}
}

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int alloc_node(void *ctx, uint64_t bytenr[2])
{
	struct bench *b = ctx;

	for (unsigned copy = 0; copy < 2; copy++) {
		bytenr[copy] = b->next_node[copy];
		b->next_node[copy] += b->geo.nodesize;
	}
	b->allocated++;
	return 0;
}

static int free_node(void *ctx, const struct cpc_node_ptr *ptr)
{
	struct bench *b = ctx;

	b->freed++;
	return 0;
}

static int free_data(void *ctx, uint64_t bytenr, uint64_t nr_blocks, uint64_t birth)
{
	return 0;
}

static uint32_t next_random(struct bench *b)
{
	b->rng = b->rng * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(b->rng >> 33);
}

static int next_op(void *ctx, struct cpc_tree_op *op)
{
	struct stream *s = ctx;
	struct cpc_disk_extent *e = (void *)s->value;

	if (s->left-- == 0)
		return 0;
	op->start = s->at;
	op->end = s->at + s->len;
	op->value = e;
	op->size = cpc_extent_value_size(s->len);
	cpc_put_le64(&e->bytenr, s->b->next_data);
	cpc_put_le64(&e->birth, s->b->txn.transid);
	s->b->next_data += (uint64_t)s->len << CPC_BLOCK_SHIFT;
	s->at += s->len + (s->step > 1 ? next_random(s->b) % (2 * s->step - 1) : 0);
	return 1;
}

static void create(struct bench *b, uint32_t nodesize)
{
	struct cpc_eb_params params = {.checker = cpc_tree_check_node, .limit = SIZE_MAX};

	memset(b, 0, sizeof(*b));
	must(cpc_geometry_init(&b->geo, POOL_SIZE, 1u << 20, nodesize, true));
	must(cpc_powercut_create(POOL_SIZE, &b->pc));
	must(cpc_powercut_reopen(b->pc, &b->backing));
	cpc_flush_epoch_init(&b->fe, b->backing, NULL, NULL);
	params.backing = b->backing;
	params.fe = &b->fe;
	params.geo = &b->geo;
	must(cpc_eb_cache_create(&params, &b->cache));
	b->txn = (struct cpc_tree_txn){.cache = b->cache,
				       .ctx = b,
				       .alloc_node = alloc_node,
				       .free_node = free_node,
				       .free_data = free_data};
	b->next_node[0] = b->geo.data_start << CPC_BLOCK_SHIFT;
	b->next_node[1] = POOL_SIZE / 4;
}

static void destroy(struct bench *b)
{
	cpc_eb_cache_destroy(b->cache);
	cpc_flush_epoch_destroy(&b->fe);
	cpc_backing_close(b->backing);
	cpc_powercut_destroy(b->pc);
}

/* Applies `nr` changes. Return: milliseconds. */
static double apply(struct bench *b, uint64_t nr, uint32_t step, uint32_t len)
{
	struct stream s = {.b = b, .left = nr, .step = step, .len = len};
	uint64_t start;

	b->txn.transid++;
	b->next_data = POOL_SIZE / 2;
	b->allocated = b->freed = 0;
	start = cpu_ns();
	must(cpc_btree_apply(&b->txn, OWNER, &b->root, next_op, &s, &b->root));
	return (double)(cpu_ns() - start) / 1e6;
}

static double sync_nodes(struct bench *b)
{
	uint64_t start = cpu_ns();

	must(cpc_eb_sync(b->cache));
	return (double)(cpu_ns() - start) / 1e6;
}

/* One apply and its writeback; what is no longer needed is evicted. */
static void round_of(struct bench *b, uint64_t changes, uint32_t step, bool print)
{
	double ms = apply(b, changes, step, 1), sync = sync_nodes(b);

	must(cpc_flush_epoch_flush(&b->fe, CPC_FLUSH_COMMIT));
	if (print)
		printf("; apply %" PRIu64 ": %6.1f ms, %5.0f ns each, %6" PRIu64
		       " nodes new %6" PRIu64 " old, write %6.1f ms\n",
		       changes, ms, ms * 1e6 / (double)changes, b->allocated, b->freed, sync);
}

static void run(uint32_t nodesize, uint32_t extent, uint64_t leaves, uint64_t changes)
{
	uint64_t per_leaf = (nodesize - 64) / (12 + 16 + 4 * extent);
	uint64_t extents = leaves * per_leaf;
	uint32_t gap = extent == 1 ? 2 : 1;
	struct bench b;
	double build;

	create(&b, nodesize);
	build = apply(&b, extents, gap, extent);
	printf("nodesize %5u, extents of %3u: build %6u nodes %6.1f ms", nodesize, extent,
	       b.root.nodes, build);
	sync_nodes(&b);
	cpc_eb_set_limit(b.cache, 3ull * b.root.nodes * nodesize);
	/* The first rounds get fresh memory from the kernel, later ones what was evicted. */
	for (unsigned i = 0; i < 4; i++)
		round_of(&b, changes, (uint32_t)(extents * extent * gap / changes), i == 3);
	destroy(&b);
}

int main(void)
{
	static const struct {
		uint32_t nodesize, extent;
		uint64_t leaves, changes;
	} cases[] = {
	    {16384, 256, 1000, 500000}, {16384, 1, 1000, 500000}, {16384, 1, 10000, 500000},
	    {4096, 1, 10000, 500000},	{65536, 1, 2000, 500000}, {16384, 1, 1000, 1000},
	};
	const char *only = getenv("CPC_BENCH_CASE");

	for (unsigned i = 0; i < CPC_ARRAY_SIZE(cases); i++) {
		if (!only || (unsigned)atoi(only) == i)
			run(cases[i].nodesize, cases[i].extent, cases[i].leaves, cases[i].changes);
	}
	return 0;
}
