/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * blockset: a set of pool blocks, one bitmap per block group that has any. What a transaction
 * allocates and frees is collected here: adding is O(1) a block in any order, and walking gives
 * ascending ranges, joined.
 *
 * Called by core/transaction and core/volume (through pinset). Locks: the caller's. Errors:
 * -ENOMEM, with the set as before.
 */
#ifndef CPC_TRANSACTION_BLOCKSET_H
#define CPC_TRANSACTION_BLOCKSET_H

#include "format/format.h"
#include "lib/base.h"

struct cpc_blockset {
	uint64_t nr_groups;
	uint64_t nr_blocks; /* in the set */
	uint64_t **bitmaps; /* by group, NULL: none; array made by the first add */
	uint64_t low, high; /* groups that may have any: [low, high) */
};

void cpc_blockset_init(struct cpc_blockset *set, uint64_t nr_groups);
void cpc_blockset_destroy(struct cpc_blockset *set); /* leaves it empty and usable */
/* Adds [block, block + nr); what was in it already stays. */
int cpc_blockset_add(struct cpc_blockset *set, uint64_t block, uint64_t nr);
/* Takes [block, block + nr) out. */
void cpc_blockset_remove(struct cpc_blockset *set, uint64_t block, uint64_t nr);
bool cpc_blockset_test(const struct cpc_blockset *set, uint64_t block);
/* The bitmap of a group (CPC_BLOCK_SIZE bytes, bit i of byte i / 8 as on disk), NULL: none. */
const uint64_t *cpc_blockset_group(const struct cpc_blockset *set, uint64_t group);
/* Finds the first range at or after `from`, within one group. Return: false at the end. */
bool cpc_blockset_next(const struct cpc_blockset *set, uint64_t from, uint64_t *block,
		       uint64_t *nr);
/* Moves everything of `from` into `to`; they share no block. */
int cpc_blockset_move(struct cpc_blockset *to, struct cpc_blockset *from);

#define cpc_blockset_for_each(set, block, nr)                                                      \
	for (uint64_t block##_at = 0; cpc_blockset_next(set, block##_at, &(block), &(nr));         \
	     block##_at = (block) + (nr))

#endif
