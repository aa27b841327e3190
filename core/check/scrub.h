/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * scrub: reads every copy of everything that an open pool's committed state names, compares it
 * with its checksum, and heals what has a good copy, while clients go on.
 *
 * Called by core/pool. Calls core/transaction (holds the committed state), core/log, btree, and the
 * device.
 *
 * Invariants
 *  1. A block is judged, and a copy written, only while the state that names it is held
 *     (cpc_store_hold): no block is in its next life, so there is no false alarm and no stale
 *     content is written over new.
 *  2. A hold lasts for one batch: SCRUB_NODES nodes or SCRUB_BLOCKS blocks of data. Between two,
 *     `pause` is called with nothing held. The next batch goes on behind the last one in the
 *     newest state; what was written meanwhile is newer than the scrub and need not be seen.
 *  3. A copy counts as repaired when it has been written, flushed and read back.
 *
 * Locks: takes CPC_RANK_SUPER over the reads of the superblock slots. One scrub at a time.
 * Durable: what it reports as repaired.
 */
#ifndef CPC_CHECK_SCRUB_H
#define CPC_CHECK_SCRUB_H

#include "check/check.h"

struct cpc_log;
struct cpc_store;

struct cpc_scrub_options {
	bool heal; /* false: only report */
	/* Each may be NULL. Blocks done and in all; damage is borrowed. */
	void (*progress)(void *ctx, uint64_t done, uint64_t total);
	void (*damage)(void *ctx, const struct cpc_damage *damage);
	/* Between batches, with how long the last one took. True: stop. */
	bool (*pause)(void *ctx, uint64_t busy_ns);
	void *ctx;
};

struct cpc_scrub_result {
	uint64_t supers, nodes, bitmaps, log_records, data_blocks; /* looked at, copies as one */
	uint64_t repaired, unrepaired;				   /* blocks, or copies of them */
	bool stopped;						   /* by `pause` */
};

/* `log` NULL: the pool is read-only, and the log as it was found is looked at. The caller commits
 * before, if what is not in the trees yet shall be looked at. Return: 0; -ENOMEM. */
int cpc_scrub(struct cpc_store *store, struct cpc_log *log, const struct cpc_scrub_options *opts,
	      struct cpc_scrub_result *result);

#endif
