/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * extent-sink: between the engine, which reports what a range holds, and nbdkit, which wants to be
 * told with care. Pieces are cut to the range asked for (nbdkit before 1.42 aborts on an extent
 * that ends beyond a block status of 2^32 - 1 bytes), neighbours of one kind are joined, and the
 * answer ends after `max` extents (nbdkit sends each in a system call of its own).
 *
 * Invariants
 *  1. What is added touches: the first at `offset`, each next one at the end of the one before
 *     (cpc_extent_sink_emit()).
 *  2. Nothing is added beyond offset + len, and at most `max` extents (flush_run()).
 *
 * Locks: none, the sink belongs to one request. Errors: what `add` returned; -EIO when the engine
 * left a gap.
 */
#ifndef CPC_PLUGIN_EXTENT_SINK_H
#define CPC_PLUGIN_EXTENT_SINK_H

#include "lib/base.h"

struct cpc_extent_sink {
	/* Takes one finished extent. Returns 0 or negative errno. */
	int (*add)(void *ctx, uint64_t offset, uint64_t len, bool hole);
	void *ctx;
	uint64_t end;
	unsigned max;
	/* the run being joined */
	uint64_t run_offset, run_len;
	bool run_hole;
	unsigned added;
	int error;
};

#define CPC_EXTENTS_MAX 1024u

/* offset + len does not overflow, max is at least 1. */
void cpc_extent_sink_init(struct cpc_extent_sink *sink, uint64_t offset, uint64_t len,
			  unsigned max);

/* A cpc_extent_fn: non-zero when no more is wanted. */
int cpc_extent_sink_emit(void *ctx, uint64_t offset, uint64_t len, bool hole);

/* Adds what is left. Return: 0, or the first error; -EIO when nothing was reported at all. */
int cpc_extent_sink_finish(struct cpc_extent_sink *sink);

#endif
