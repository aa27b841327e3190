/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * oracle: the legality oracle over a power-cut device. It knows every root that a crash at this
 * instant could bring back, and fails a test at the very write or discard that touches a block one
 * of them needs, without any crash being played.
 *
 * Called by tests. Calls the walk of core/check and backing/powercut.h.
 *
 * The oracle is a backing of its own in front of the power-cut device's handle, not a user of the
 * device's hooks: those run under the device's mutex, so that nothing can be read from there, and
 * do not see what is written. Here a superblock is known by its content before the device has it,
 * and what it names is walked at that moment, in the *stable* image, for that is where it must be
 * already. So a superblock that is written before the flush of its nodes is found too.
 *
 * Terms: a *root* is a superblock with the set of blocks that it needs: nodes, data, the current
 * bitmap homes. *Acceptable* are the newest superblock in the stable image, and every one written
 * since, whether its write came back with success or not, until a newer one is stable.
 *
 * What is judged
 *  1. No write or discard touches a block that an acceptable root needs, unless it writes the bytes
 *     that are stable there already, or is a repair (CPC_CAUSE_REPAIR). A root needs the data that
 *     log records behind it name as well, once that is stable.
 *  2. All that a superblock names is stable and verifies when its write is issued: every node, the
 *     current bitmap homes, and the data that was born since the last stable superblock.
 *  3. A superblock's transid is new, or its bytes are those written before. It goes to no slot of
 *     the newest stable superblock, unless it is that superblock.
 *  4. A discard stays within the data area.
 *  5. No log record behind the newest stable superblock is overwritten, but by itself.
 *
 * Locks: one mutex, below the device's; it is not held while the device works. Handles may be used
 * from any number of threads.
 * Ownership: the caller keeps the power-cut device and destroys it after the oracle. Memory comes
 * from libc, as the device's does; the walk's comes from cpc_hooks: where that fails, the root is
 * watched from its next write on (stats.unwatched).
 */
#ifndef CPC_CHECK_ORACLE_H
#define CPC_CHECK_ORACLE_H

#include "backing/powercut.h"

struct cpc_oracle;

/* Something illegal is about to happen. With no lock held but the oracle's own. */
typedef void (*cpc_oracle_fail_fn)(void *ctx, const char *what);

/* `fail` NULL: prints the line to stderr and aborts. */
void cpc_oracle_create(struct cpc_powercut *pc, cpc_oracle_fail_fn fail, void *ctx,
		       struct cpc_oracle **out);
/* All its handles have been closed. */
void cpc_oracle_destroy(struct cpc_oracle *o);

/* Starts a life of the device as cpc_powercut_reopen() does, with a handle that is watched. */
int cpc_oracle_reopen(struct cpc_oracle *o, struct cpc_backing **b);

struct cpc_oracle_stats {
	uint64_t writes, discards; /* judged */
	uint64_t roots;		   /* superblocks seen */
	uint64_t violations;
	uint64_t unwatched; /* superblocks without memory to walk them */
};
void cpc_oracle_get_stats(struct cpc_oracle *o, struct cpc_oracle_stats *stats);

#endif
