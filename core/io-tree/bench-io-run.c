/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include "lib/hooks.h"
#include "io-tree/bench-io-run.h"
#include "io-tree/io-clock.h"

enum { BLOCK = 4096, PIECES = 16, MAX_THREADS = 64 };

#define SPACE (UINT64_C(8) << 30)

struct range {
	uint64_t start, end;
	struct cpc_io_state *cached;
};

/* What took longer was interrupted. */
enum { CAP_NS = 1000 };

struct mean {
	uint64_t ticks, nr;
};

struct bench {
	const struct bench_io_params *params;
	struct cpc_io_tree tree;
	struct cpc_hist hist, tree_clear, tree_set;
};

struct worker {
	struct bench *b;
	pthread_t thread;
	uint64_t rng;
	struct range *ranges;
	unsigned depth;
	struct mean clears, nothings;
};

static uint64_t rnd(struct worker *me, uint64_t below)
{
	me->rng ^= me->rng >> 12;
	me->rng ^= me->rng << 25;
	me->rng ^= me->rng >> 27;
	return (me->rng * 0x2545f4914f6cdd1dULL >> 24) % below;
}

static void check(int err)
{
	cpc_assert(err == 0);
}

/* Writes somewhere where nothing is outstanding. */
static void write_range(struct worker *me, struct range *r)
{
	struct cpc_io_tree *tree = &me->b->tree;
	enum bench_io_pattern pattern = me->b->params->pattern;
	uint64_t len = pattern == BENCH_IO_RANDOM ? BLOCK : BLOCK * PIECES;
	struct cpc_io_state **cached = pattern == BENCH_IO_PARTIAL_CACHED ? NULL : &r->cached;
	struct cpc_changeset cs = {0};

	for (;;) {
		r->start = rnd(me, SPACE / len) * len;
		r->end = r->start + len;
		check(cpc_io_tree_lock(tree, r->start, len, &r->cached));
		cs.set_bytes = 0;
		check(cpc_io_tree_convert(tree, r->start, len, CPC_IO_DELALLOC, CPC_IO_LOCKED,
					  cached, &cs));
		if (cs.set_bytes == len)
			return;
	}
}

static void mean_add(struct mean *mean, uint64_t ticks)
{
	if (cpc_io_ticks_to_ns(ticks) > CAP_NS)
		return;
	mean->ticks += ticks;
	mean->nr++;
}

/* What the timer itself takes; beside each clear, since the machine's speed changes. */
static void timed_nothing(struct worker *me)
{
	uint64_t began = cpc_io_ticks();

	__asm__ volatile("" ::: "memory");
	mean_add(&me->nothings, cpc_io_ticks() - began);
}

static void timed_clear(struct worker *me, uint64_t start, uint64_t len,
			struct cpc_io_state **cached)
{
	uint64_t began, ticks;
	struct cpc_changeset cs = {0};

	timed_nothing(me);
	began = cpc_io_ticks();
	check(cpc_io_tree_clear(&me->b->tree, start, len, CPC_IO_DELALLOC, cached, &cs));
	ticks = cpc_io_ticks() - began;
	cpc_assert(cs.cleared_bytes == len);
	cpc_hist_add(&me->b->hist, cpc_io_ticks_to_ns(ticks));
	mean_add(&me->clears, ticks);
}

/* Clears a piece at either end; refills the range when it is down to its last piece. */
static void clear_piece(struct worker *me, struct range *r)
{
	bool front = rnd(me, 2);

	if (r->end - r->start == BLOCK) {
		check(cpc_io_tree_clear(&me->b->tree, r->start, BLOCK, CPC_IO_ALL, NULL, NULL));
		write_range(me, r);
	}
	timed_clear(me, front ? r->start : r->end - BLOCK, BLOCK, &r->cached);
	*(front ? &r->start : &r->end) += front ? BLOCK : -(uint64_t)BLOCK;
}

static void *worker_run(void *arg)
{
	struct worker *me = arg;
	uint64_t i, ops = me->b->params->ops / me->b->params->threads;

	for (i = 0; i < me->depth; i++)
		write_range(me, &me->ranges[i]);
	for (i = 0; i < ops; i++) {
		struct range *r = &me->ranges[i % me->depth];

		if (me->b->params->pattern != BENCH_IO_RANDOM) {
			clear_piece(me, r);
			continue;
		}
		timed_clear(me, r->start, BLOCK, NULL);
		write_range(me, r);
	}
	return NULL;
}

static uint64_t mean_ns_x1000(const struct mean *mean)
{
	return mean->nr ? cpc_io_ticks_to_ns(mean->ticks) * 1000 / mean->nr : 0;
}

static void mean_join(struct mean *to, const struct mean *from)
{
	to->ticks += from->ticks;
	to->nr += from->nr;
}

static void run_workers(struct bench *b, struct bench_io_result *result)
{
	static struct worker workers[MAX_THREADS];
	unsigned i, nr = b->params->threads;
	struct mean clears = {0}, nothings = {0};

	cpc_assert(nr <= MAX_THREADS);
	for (i = 0; i < nr; i++) {
		struct worker *me = &workers[i];

		*me = (struct worker){
		    .b = b, .rng = 0x9e3779b97f4a7c15ULL * (i + 1), .depth = b->params->depth / nr};
		me->ranges = calloc(me->depth, sizeof(*me->ranges));
		cpc_assert(me->ranges);
		check(cpc_thread_start(&me->thread, "bench", worker_run, me));
	}
	for (i = 0; i < nr; i++) {
		pthread_join(workers[i].thread, NULL);
		free(workers[i].ranges);
		mean_join(&clears, &workers[i].clears);
		mean_join(&nothings, &workers[i].nothings);
	}
	result->mean_ns_x1000 = mean_ns_x1000(&clears);
	result->timer_ns_x1000 = mean_ns_x1000(&nothings);
}

void bench_io_run(const struct bench_io_params *params, struct bench_io_result *result)
{
	struct bench *b = aligned_alloc(64, (sizeof(*b) + 63) / 64 * 64);
	struct cpc_io_tree_config config = {0};

	cpc_assert(b);
	memset(b, 0, sizeof(*b));
	cpc_io_clock_init();
	b->params = params;
	if (params->tree_hists) {
		config.clear_hist = &b->tree_clear;
		config.set_hist = &b->tree_set;
	}
	cpc_io_tree_init(&b->tree, &config);
	result->wall_ns = cpc_now_ns();
	run_workers(b, result);
	result->wall_ns = cpc_now_ns() - result->wall_ns;
	cpc_hist_summary(params->tree_hists ? &b->tree_clear : &b->hist, &result->clear);
	cpc_io_tree_get_stats(&b->tree, &result->stats);
	cpc_io_tree_destroy(&b->tree);
	free(b);
}

static void lock_unlock(struct worker *me, bool cached)
{
	struct cpc_io_state *state = NULL;
	uint64_t start = rnd(me, SPACE / BLOCK) * BLOCK;

	check(cpc_io_tree_lock(&me->b->tree, start, BLOCK, cached ? &state : NULL));
	cpc_io_tree_unlock(&me->b->tree, start, BLOCK, cached ? &state : NULL);
}

uint64_t bench_io_pair_ns_x1000(unsigned records, bool cached, bool tree_hists)
{
	enum { ROUNDS = 40, PAIRS = 25000 };
	static struct bench b;
	struct bench_io_params params = {.pattern = BENCH_IO_RANDOM};
	struct cpc_io_tree_config config = {0};
	struct worker me = {.b = &b, .rng = 42};
	uint64_t i, round, ns, best = UINT64_MAX;

	if (tree_hists)
		config.clear_hist = &b.tree_clear;
	b.params = &params;
	cpc_io_tree_init(&b.tree, &config);
	for (i = 0; i < records; i++) {
		struct range r = {.cached = NULL};

		write_range(&me, &r);
	}
	for (round = 0; round < ROUNDS; round++) {
		ns = cpc_now_ns();
		for (i = 0; i < PAIRS; i++)
			lock_unlock(&me, cached);
		best = cpc_min_u64(best, cpc_now_ns() - ns);
	}
	cpc_io_tree_destroy(&b.tree);
	return best * 1000 / PAIRS;
}
