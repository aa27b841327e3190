/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench-io-tree [--json] [--ops=N] [--depth=N]: what the io tree's calls cost, with and without
 * the trims, with 1, 2 and 12 threads. Times in nanoseconds; each clear is timed by the cycle
 * counter, whose own cost (`timer`) is included there and taken off for the speedup. That is
 * the median of ROUNDS rounds by turns, of each the ratio of the means (of clears up to a
 * microsecond): other work on the machine comes and goes within a run.
 */
#include <stdio.h>
#include <stdlib.h>
#include "io-tree/bench-io-run.h"

enum { ROUNDS = 9 };

static const char *const pattern_names[] = {"random", "partial", "partial-cached"};
static const unsigned thread_counts[] = {1, 2, 12};
static bool json;
static const char *separator = "";

#define ull(x) ((unsigned long long)(x))

static void print_run(const struct bench_io_params *p, const char *trim,
		      const struct bench_io_result *r)
{
	const struct cpc_hist_summary *c = &r->clear;
	const char *format =
	    json ? "%s\n  {\"pattern\": \"%s\", \"trims\": %s, \"threads\": %u, \"depth\": %u, "
		   "\"clear_ns\": {\"count\": %llu, \"mean\": %llu, \"p50\": %llu, "
		   "\"p90\": %llu, \"p99\": %llu, \"max\": %llu}, \"timer_ns\": %.1f, "
		   "\"trim_count\": %llu, \"inserts\": %llu, \"erases\": %llu, "
		   "\"wakeups\": %llu, \"wakeups_skipped\": %llu}"
		 : "%s%-14s trims=%-5s threads=%-2u depth=%u clear: n %llu mean %llu p50 %llu "
		   "p90 %llu p99 %llu max %llu (timer %.1f) trims %llu inserts %llu "
		   "erases %llu wakeups %llu skipped %llu\n";

	printf(format, separator, p->tree_hists ? "tree-histogram" : pattern_names[p->pattern],
	       trim, p->threads, p->depth, ull(c->count), ull(c->mean), ull(c->p50), ull(c->p90),
	       ull(c->p99), ull(c->max), (double)r->timer_ns_x1000 / 1000, ull(r->stats.trims),
	       ull(r->stats.inserts), ull(r->stats.erases), ull(r->stats.wakeups),
	       ull(r->stats.wakeups_skipped));
	if (json)
		separator = ",";
}

static double net_mean(const struct bench_io_result *r)
{
	return ((double)r->mean_ns_x1000 - (double)r->timer_ns_x1000) / 1000;
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Runs a pattern with and without trims. Returns how many times faster it is with. */
static double compare(enum bench_io_pattern pattern, unsigned threads, unsigned depth, uint64_t ops)
{
	struct bench_io_params p = {
	    .pattern = pattern, .threads = threads, .depth = depth, .ops = ops};
	struct bench_io_result with, without;
	double times[ROUNDS];
	unsigned i;

	bench_io_run(&p, &with);
	print_run(&p, "true", &with);
	bench_io_run_untrimmed(&p, &without);
	print_run(&p, "false", &without);

	p.ops /= 4;
	for (i = 0; i < ROUNDS; i++) {
		bench_io_run(&p, &with);
		bench_io_run_untrimmed(&p, &without);
		times[i] = net_mean(&without) / net_mean(&with);
	}
	qsort(times, ROUNDS, sizeof(times[0]), compare_doubles);
	return times[ROUNDS / 2];
}

/* The random pattern as a server with detailed statistics sees it. */
static void run_with_tree_hists(unsigned threads, unsigned depth, uint64_t ops)
{
	struct bench_io_params p = {.pattern = BENCH_IO_RANDOM,
				    .threads = threads,
				    .depth = depth,
				    .ops = ops,
				    .tree_hists = true};
	struct bench_io_result result;

	bench_io_run(&p, &result);
	print_run(&p, "true", &result);
}

static void print_pairs(void)
{
	static const unsigned records[] = {0, 768, 100000};
	unsigned i;

	printf(json ? "\"lock_unlock_ns\": [" : "");
	separator = "";
	for (i = 0; i < CPC_ARRAY_SIZE(records); i++) {
		double plain = (double)bench_io_pair_ns_x1000(records[i], false, false) / 1000;
		double cached = (double)bench_io_pair_ns_x1000(records[i], true, false) / 1000;
		double hists = (double)bench_io_pair_ns_x1000(records[i], true, true) / 1000;

		printf(json ? "%s\n  {\"records\": %u, \"plain\": %.1f, \"cached\": %.1f, "
			      "\"cached_with_histogram\": %.1f}"
			    : "%slock+unlock, %u records: %.1f, cached %.1f, with histogram %.1f\n",
		       separator, records[i], plain, cached, hists);
		if (json)
			separator = ",";
	}
	printf(json ? "\n]}\n" : "");
}

static void usage(void)
{
	fprintf(stderr, "usage: bench-io-tree [--json] [--ops=N] [--depth=N]\n");
	exit(2);
}

int main(int argc, char **argv)
{
	uint64_t ops = 1000000;
	unsigned depth = 768, t;
	double speedup[CPC_ARRAY_SIZE(thread_counts)][2];
	int i;

	for (i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--json"))
			json = true;
		else if (!strncmp(argv[i], "--ops=", 6))
			ops = strtoull(argv[i] + 6, NULL, 0);
		else if (!strncmp(argv[i], "--depth=", 8))
			depth = (unsigned)strtoul(argv[i] + 8, NULL, 0);
		else
			usage();
	}
	if (depth < 12 || ops < 1000)
		usage();

	printf(json ? "{\"runs\": [" : "");
	for (t = 0; t < CPC_ARRAY_SIZE(thread_counts); t++) {
		compare(BENCH_IO_RANDOM, thread_counts[t], depth, ops);
		run_with_tree_hists(thread_counts[t], depth, ops);
		speedup[t][0] = compare(BENCH_IO_PARTIAL, thread_counts[t], depth, ops);
		speedup[t][1] = compare(BENCH_IO_PARTIAL_CACHED, thread_counts[t], depth, ops);
	}
	printf(json ? "\n],\n\"partial_speedup\": [" : "");
	for (t = 0; t < CPC_ARRAY_SIZE(thread_counts); t++)
		printf(json ? "%s{\"threads\": %u, \"times\": %.2f, \"times_cached\": %.2f}"
			    : "%spartial clears, %u threads: %.2f times faster with trims, %.2f "
			      "with cached records\n",
		       json && t ? ", " : "", thread_counts[t], speedup[t][0], speedup[t][1]);
	printf(json ? "],\n" : "");
	print_pairs();
	return 0;
}
