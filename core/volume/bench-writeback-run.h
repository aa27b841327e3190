/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench-writeback-run: one measurement of bench-writeback. It is compiled three times, each time
 * with another way to find what is dirty (see CMakeLists.txt).
 */
#ifndef CPC_VOLUME_BENCH_WRITEBACK_RUN_H
#define CPC_VOLUME_BENCH_WRITEBACK_RUN_H

#include "lib/base.h"
#include "lib/hist.h"

#define BENCH_SHARES 4u

struct bench_writeback_params {
	unsigned nodes, blocks;		  /* cached */
	unsigned per_mille[BENCH_SHARES]; /* of them are dirty */
	unsigned rounds[BENCH_SHARES];	  /* commits */
	unsigned writers;
};

struct bench_writeback_result {
	uint64_t commit_mean_us, commit_max_us;
	uint64_t writeback_mib_s; /* bytes to the device during commits, by their time */
	uint64_t write_mib_s;	  /* what the writers wrote meanwhile, by the time of both */
	uint64_t device_writes;	  /* a commit */
	struct cpc_hist_summary write_ns;
	uint64_t dirty_blocks, find_us; /* finding them alone */
};

/* One result a share. In the libraries the first name stands for the one that they show. */
__attribute__((visibility("default"))) void
bench_writeback_run(const struct bench_writeback_params *p, struct bench_writeback_result *r);
void bench_writeback_run_walk(const struct bench_writeback_params *p,
			      struct bench_writeback_result *r);
void bench_writeback_run_list(const struct bench_writeback_params *p,
			      struct bench_writeback_result *r);

#endif
