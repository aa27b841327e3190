/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * check: looks at a pool without opening it, the way a stranger would: superblocks, every node,
 * every mapping, space; with `data` every data block. And prints structures (dump).
 *
 * Called by server/cli and tests; calls core/btree, extent-buffer, format, backing. Writes nothing.
 *
 * Ownership: the caller holds the backing, opened exclusively or read-only.
 */
#ifndef CPC_CHECK_CHECK_H
#define CPC_CHECK_CHECK_H

#include "format/format.h"
#include "lib/base.h"

struct cpc_backing;

struct cpc_check_options {
	bool data; /* read and verify every data block */
	/* Called now and then with work done and the total (blocks); may be NULL. */
	void (*progress)(void *ctx, uint64_t done, uint64_t total);
	/* One line per finding; may be NULL. */
	void (*report)(void *ctx, const char *line);
	void *ctx;
};

struct cpc_check_result {
	uint64_t errors;	  /* findings of any kind */
	uint64_t supers_bad;	  /* slots that hold a damaged superblock */
	uint64_t nodes, nodes_bad; /* nodes read; copies that do not verify */
	uint64_t data_blocks, data_bad;
	uint64_t volumes;
	uint64_t leaked_blocks;	   /* in use but reachable from nothing */
	uint64_t transid;
};

/* Return: 0 looked at everything (result.errors may be > 0); -EINVAL not a pool; -ENOTSUP; -EIO,
 * -ENOMEM. */
int cpc_check(struct cpc_backing *backing, const struct cpc_check_options *opts,
	      struct cpc_check_result *result);

/*
 * The blocks that the newest superblock, or the one in (ring, slot), needs: bit set = must not be
 * overwritten or discarded. For the legality oracle. `bitmap` has one bit per block of the pool.
 */
int cpc_check_reachable(struct cpc_backing *backing, const struct cpc_super *super,
			uint8_t *bitmap, uint64_t nr_blocks);

/* Reads all slots and gives the newest valid superblock. */
int cpc_super_find(struct cpc_backing *backing, struct cpc_super *super, const char **why);

/* Prints "super", "tree ID", "log" or "block BYTENR" as text lines through out. */
int cpc_dump(struct cpc_backing *backing, const char *what, const char *arg,
	     void (*out)(void *ctx, const char *line), void *ctx);

#endif
