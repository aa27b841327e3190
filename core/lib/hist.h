/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * hist: a histogram of latencies (nanoseconds, or any 64-bit values), cheap enough for every call
 * of a hot function.
 *
 * Terms. Values below 16 have a bucket each; above, each power of two is cut into 16 equal
 * buckets, so a bucket's width is at most a sixteenth of its lowest value.
 *
 * Invariants
 *  1. Each value belongs to one bucket (bucket_of() in hist.c; test-hist asserts it).
 *  2. p50 <= p90 <= p99 <= max in a summary (follows from how it is taken; test-hist).
 *  3. `below` never falls from one power to the next and ends at or under count (likewise).
 *
 * Locks: none. Adding is atomic; a summary taken meanwhile may have part of a value being added.
 * Ownership: the caller's memory, zeroed memory is an empty histogram. Errors: none.
 */
#ifndef CPC_LIB_HIST_H
#define CPC_LIB_HIST_H

#include <stdatomic.h>
#include "lib/base.h"

#define CPC_HIST_SUB_SHIFT  4
#define CPC_HIST_SUB	    (1u << CPC_HIST_SUB_SHIFT)
#define CPC_HIST_NR_BUCKETS ((64 - CPC_HIST_SUB_SHIFT + 1) * CPC_HIST_SUB)
#define CPC_HIST_NR_POWERS  64

struct cpc_hist {
	_Atomic(uint64_t) sum; /* wraps after 584 years of nanoseconds */
	_Atomic(uint64_t) max;
	_Atomic(uint64_t) bucket[CPC_HIST_NR_BUCKETS];
};

/*
 * Sum, mean, max and `below` are exact; a percentile is the highest value of its bucket, never
 * above max. below[i] counts the values that are less than 2^i.
 */
struct cpc_hist_summary {
	uint64_t count, sum, mean, p50, p90, p99, max;
	uint64_t below[CPC_HIST_NR_POWERS];
};

void cpc_hist_init(struct cpc_hist *h);
void cpc_hist_add(struct cpc_hist *h, uint64_t value);

/* All zero if nothing was added. */
void cpc_hist_summary(const struct cpc_hist *h, struct cpc_hist_summary *summary);

#endif
