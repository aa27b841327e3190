/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test-tree: a pool in memory, a tree in it, and a plain array that says what the tree must hold.
 * Used by the tests and the benchmark of this folder.
 *
 * The array has one slot a key: for volume trees the block it is mapped to, for others the seed and
 * size of its value. Every node and every data block has a state, so that a node freed twice,
 * lost, or still reachable after it was freed is noticed at once.
 */
#ifndef CPC_BTREE_TEST_TREE_H
#define CPC_BTREE_TEST_TREE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "backing/flush-epoch.h"
#include "backing/powercut.h"
#include "btree/btree.h"

#define TT_NODE_UNITS  16384u
#define TT_DATA_BLOCKS (1u << 20)
#define TT_KEYS	       20000u

enum tt_state { TT_FREE, TT_LIVE, TT_PINNED };

/* What a key must hold. */
struct tt_slot {
	uint64_t block; /* data block, or seed of the value; 0: nothing */
	uint64_t birth;
	uint32_t csum; /* or size of the value */
};

struct tt_op {
	uint64_t start, end;
	uint32_t nr;	/* keys that the value covers, 0: only remove */
	uint32_t value; /* offset in tt_ops.values */
	uint32_t size;
};

struct tt_ops {
	struct tt_op *op;
	size_t nr, cap, at;
	uint8_t *values;
	size_t len, values_cap;
	uint8_t scratch[CPC_ITEM_MAX_SIZE];
};

struct tt {
	uint32_t nodesize;
	bool dup;
	uint64_t owner;
	uint64_t base; /* key of slot 0 */
	uint64_t rng;
	struct cpc_powercut *pc;
	struct cpc_backing *backing;
	struct cpc_flush_epoch fe;
	struct cpc_geometry geo;
	struct cpc_eb_params params;
	struct cpc_eb_cache *cache;
	struct cpc_tree_txn txn;
	struct cpc_node_ptr root;
	struct tt_slot *slot; /* TT_KEYS */

	uint8_t *node_state; /* by unit */
	uint32_t *pinned;    /* units freed and not yet reusable */
	size_t nr_pinned;
	uint32_t next_unit;
	uint8_t *data_state; /* by block of the data area */
	uint32_t next_data;
	uint64_t data_first; /* block */

	/* since the last tt_apply began */
	uint64_t nr_alloc, nr_free, nr_free_data, nr_drop;
	unsigned take_drops; /* 0: NULL, 1: always, 2: at random, 3: always, unread */
	uint64_t fail_at;    /* the N-th callback fails; 0: none */
	int fail_error;
	uint64_t nr_calls;
};

/* One node that the walk has seen. */
struct tt_walk {
	uint64_t nodes, data_blocks, leaves;
	uint64_t bytes;	       /* of content */
	uint64_t crumbs;       /* new nodes that break invariant 5 */
	uint64_t crumbs_among; /* new nodes looked at */
};

uint64_t tt_random(struct tt *t);
/* Evenly from [0, n). */
uint64_t tt_below(struct tt *t, uint64_t n);

void tt_create(struct tt *t, uint32_t nodesize, bool dup, uint64_t owner, uint64_t seed);
void tt_destroy(struct tt *t);
/* Writes everything and starts with an empty cache. */
void tt_reopen(struct tt *t, size_t limit);

/* --- changes, in rising order --- */
void tt_ops_init(struct tt_ops *ops);
void tt_ops_reset(struct tt_ops *ops);
void tt_ops_free(struct tt_ops *ops);
/* Removes slots [at, at + nr); the model too. */
void tt_op_remove(struct tt *t, struct tt_ops *ops, uint64_t at, uint64_t nr);
/* Puts a new value on slots [at, at + nr) (one slot in trees without data), removing [at, at +
 * span).
 */
void tt_op_put(struct tt *t, struct tt_ops *ops, uint64_t at, uint32_t nr, uint64_t span);
/* Any range of keys, inside the slots or not; the model follows. */
void tt_op_remove_keys(struct tt *t, struct tt_ops *ops, uint64_t start, uint64_t end);

/* Applies them; on success t->root is the new root. */
int tt_apply(struct tt *t, struct tt_ops *ops);
/* Makes the pinned nodes reusable: no older root is read any more. */
void tt_unpin(struct tt *t);

/* Walks a whole tree and compares it with `slot`; asserts everything. */
void tt_check(struct tt *t, const struct cpc_node_ptr *root, const struct tt_slot *slot,
	      struct tt_walk *walk);
/* The nodes counted by a walk of the newest root are exactly the live ones. */
void tt_check_accounts(struct tt *t, const struct tt_walk *walk);

/* Number from the environment. */
uint64_t tt_env(const char *name, uint64_t otherwise);

#endif
