/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench-io-run: the workloads of bench-io-tree. Compiled twice: with the io tree as it is, and,
 * as bench_io_run_untrimmed(), into a library with an io tree that has no trims.
 */
#ifndef CPC_IO_TREE_BENCH_IO_RUN_H
#define CPC_IO_TREE_BENCH_IO_RUN_H

#include "lib/hist.h"
#include "io-tree/io-tree.h"

enum bench_io_pattern {
	/*
	 * 4 KiB writes at random in 8 GiB, `depth` outstanding: lock, dirty and unlock; later,
	 * oldest first, clear all bits (timed). The pattern of the kernel series.
	 */
	BENCH_IO_RANDOM,
	/* As above, with 64 KiB; each is cleared in 4 KiB pieces from either end (timed). */
	BENCH_IO_PARTIAL,
	/* As above, with the cached record of the lock as a hint: no search. */
	BENCH_IO_PARTIAL_CACHED,
};

struct bench_io_params {
	enum bench_io_pattern pattern;
	unsigned threads;
	unsigned depth;	 /* outstanding ranges, all threads together */
	uint64_t ops;	 /* clears, all threads together */
	bool tree_hists; /* the result is the tree's own histogram: clears, converts */
};

struct bench_io_result {
	struct cpc_hist_summary clear; /* nanoseconds, the timer included */
	/* Means, in thousandths, of clears and of a timed nothing; those up to a microsecond. */
	uint64_t mean_ns_x1000, timer_ns_x1000;
	uint64_t wall_ns;
	struct cpc_io_tree_stats stats;
};

#define BENCH_EXPORT __attribute__((visibility("default")))

BENCH_EXPORT void bench_io_run(const struct bench_io_params *params,
			       struct bench_io_result *result);
#ifndef CPC_IO_TREE_NO_TRIM
void bench_io_run_untrimmed(const struct bench_io_params *params, struct bench_io_result *result);
#endif

/*
 * Thousandths of nanoseconds of an uncontended lock and unlock, with `records` in the tree: the
 * best of 40 rounds of 25,000.
 */
uint64_t bench_io_pair_ns_x1000(unsigned records, bool cached, bool tree_hists);

#endif
