/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench-writeback [--json] [--nodes=N] [--blocks=N] [--rounds=N]: the writeback of a commit, with
 * what is dirty found by the marks of the index, by a walk over everything cached, and in a plain
 * list; 0.1, 1, 10 and 100 % dirty, 4 writers going on. bench-writeback-run.c says what is done and
 * on which device. Last, what a lookup costs in an index of a million entries.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "lib/epoch.h"
#include "lib/hooks.h"
#include "lib/xarray.h"
#include "volume/bench-writeback-run.h"

#define LOOKUP_ENTRIES (1ull << 20)
#define ull(x)	       ((unsigned long long)(x))

typedef void (*run_fn)(const struct bench_writeback_params *p, struct bench_writeback_result *r);

static const struct {
	const char *name;
	run_fn run;
} ways[] = {{"marks", bench_writeback_run},
	    {"walk", bench_writeback_run_walk},
	    {"list", bench_writeback_run_list}};

#define NR_WAYS CPC_ARRAY_SIZE(ways)

static bool json;

static void print_result(const struct bench_writeback_params *p, unsigned way, unsigned share,
			 const struct bench_writeback_result *r)
{
	const char *format =
	    json ? "%s  {\"way\": \"%s\", \"dirty_percent\": %.1f, \"commit_mean_us\": %llu, "
		   "\"commit_max_us\": %llu, \"writeback_mib_s\": %llu, \"write_mib_s\": %llu, "
		   "\"write_p50_ns\": %llu, \"write_p99_ns\": %llu, \"device_writes\": %llu, "
		   "\"find_us\": %llu, \"found_blocks\": %llu}"
		 : "%s%-5s %5.1f %%: commit mean %7llu us max %7llu us, writeback %5llu MiB/s, "
		   "writers %5llu MiB/s, write p50 %5llu ns p99 %7llu ns, device writes %6llu, "
		   "find %7llu us for %llu blocks\n";

	printf(format, json && (way || share) ? ",\n" : "", ways[way].name,
	       (double)p->per_mille[share] / 10, ull(r->commit_mean_us), ull(r->commit_max_us),
	       ull(r->writeback_mib_s), ull(r->write_mib_s), ull(r->write_ns.p50),
	       ull(r->write_ns.p99), ull(r->device_writes), ull(r->find_us), ull(r->dirty_blocks));
}

static void print_ratios(const struct bench_writeback_params *p,
			 struct bench_writeback_result r[NR_WAYS][BENCH_SHARES])
{
	for (unsigned share = 0; share < BENCH_SHARES; share++) {
		const struct bench_writeback_result *marks = &r[0][share];

		for (unsigned way = 1; way < NR_WAYS; way++)
			printf(json ? "%s  {\"dirty_percent\": %.1f, \"against\": \"%s\", "
				      "\"commit_shorter\": %.2f, \"write_bandwidth\": %.2f}"
				    : "%sat %.1f %% dirty, against the %s: commits %.2f times "
				      "shorter, write bandwidth %.2f times\n",
			       json && (share || way > 1) ? ",\n" : "",
			       (double)p->per_mille[share] / 10, ways[way].name,
			       (double)r[way][share].commit_mean_us / (double)marks->commit_mean_us,
			       (double)marks->write_mib_s / (double)r[way][share].write_mib_s);
	}
}

/* Nanoseconds a lookup as a reader does it, in random order. */
static double lookup_ns(void)
{
	static struct cpc_xarray xa;
	uint64_t start, sum = 0;

	cpc_xa_init(&xa);
	for (uint64_t i = 0; i < LOOKUP_ENTRIES; i++)
		if (cpc_xa_store(&xa, i, (void *)(uintptr_t)((i + 1) * 4), NULL))
			exit(1);
	start = cpc_now_ns();
	for (uint64_t i = 0; i < 4 * LOOKUP_ENTRIES; i++) {
		cpc_epoch_enter();
		sum += (uintptr_t)cpc_xa_load(&xa, (i * 0x9e3779b97f4a7c15ull) >> 44);
		cpc_epoch_exit();
	}
	start = cpc_now_ns() - start;
	cpc_xa_destroy(&xa);
	cpc_epoch_drain();
	return sum ? (double)start / (4 * LOOKUP_ENTRIES) : 0;
}

/* In a process of its own, so that each way begins with the same memory. */
static void run_apart(unsigned way, const struct bench_writeback_params *p,
		      struct bench_writeback_result *r)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		ways[way].run(p, r);
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
		exit(1);
}

static void usage(void)
{
	fprintf(stderr, "usage: bench-writeback [--json] [--nodes=N] [--blocks=N] [--rounds=N]\n");
	exit(2);
}

int main(int argc, char **argv)
{
	struct bench_writeback_params p = {.nodes = 100000,
					   .blocks = 500000,
					   .per_mille = {1, 10, 100, 1000},
					   .rounds = {20, 20, 4, 2},
					   .writers = 4};
	struct bench_writeback_result(*r)[BENCH_SHARES];

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--json"))
			json = true;
		else if (!strncmp(argv[i], "--nodes=", 8))
			p.nodes = (unsigned)strtoul(argv[i] + 8, NULL, 0);
		else if (!strncmp(argv[i], "--blocks=", 9))
			p.blocks = (unsigned)strtoul(argv[i] + 9, NULL, 0);
		else if (!strncmp(argv[i], "--rounds=", 9))
			p.rounds[0] = p.rounds[1] = p.rounds[2] = p.rounds[3] =
			    (unsigned)strtoul(argv[i] + 9, NULL, 0);
		else
			usage();
	}
	if (p.nodes < 1000 || p.blocks < 1000 || p.blocks > 1000000 || !p.rounds[0])
		usage();
	r = mmap(NULL, NR_WAYS * sizeof(*r), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		 0);
	if (r == MAP_FAILED)
		return 1;
	printf(json ? "{\"runs\": [\n" : "");
	fflush(stdout);
	for (unsigned way = 0; way < NR_WAYS; way++) {
		run_apart(way, &p, r[way]);
		for (unsigned share = 0; share < BENCH_SHARES; share++)
			print_result(&p, way, share, &r[way][share]);
		fflush(stdout);
	}
	printf(json ? "\n],\n\"ratios\": [\n" : "");
	print_ratios(&p, r);
	printf(json ? "\n],\n\"lookup_ns\": %.1f}\n" : "lookup in a million entries: %.1f ns\n",
	       lookup_ns());
	return 0;
}
