/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * btree: copy-on-write B-trees with 64-bit keys, changed by applying a sorted stream of changes.
 *
 * Called by core/transaction (apply), core/volume (lookups), core/check (walks). Calls
 * core/extent-buffer, core/format. Blocks come from and go to a transaction handle whose
 * functions are filled in from above.
 *
 * A tree is named by its root pointer and never changes: apply reads the old tree and the changes
 * and writes a new tree that shares every node the changes did not touch. So readers need no
 * locks, and a failed apply leaves nothing to undo but the blocks it allocated.
 *
 * Terms: an item is a key and a value of up to CPC_ITEM_MAX_SIZE bytes. An item covers keys
 * [key, key + len): len is 1 in the root and free-log trees; in a volume's tree (owner >=
 * CPC_TREE_VOLUME_BASE) a value is cpc_disk_extent and len the number of its checksums.
 *
 * Invariants
 *  1. Keys ascend within and across nodes, items do not overlap; a child's key is exactly the
 *     first key below it (cpc_tree_check_node per node; cursors and apply verify across levels).
 *  2. No node is empty; the empty tree is the empty pointer. All leaves are at level 0; a root
 *     with one child does not exist.
 *  3. A pointer's data_blocks and nodes are the sums over its subtree.
 *  4. apply frees every node that it replaces exactly once and every data block that it unmaps
 *     exactly once, or hands whole subtrees to drop_subtree.
 *  5. Apart from the last on its level, no node that apply writes is under a quarter full if its
 *     neighbours under the same parent could take its content.
 *
 * Locks: none. Memory: two nodes per level and a path. Errors: -EUCLEAN, -EIO, -ENOMEM, -ENOSPC.
 */
#ifndef CPC_BTREE_BTREE_H
#define CPC_BTREE_BTREE_H

#include "extent-buffer/extent-buffer.h"

/* --- reading --- */
struct cpc_cursor {
	struct cpc_eb_cache *cache;
	uint64_t owner;
	struct cpc_node_ptr root;
	struct cpc_eb *path[CPC_MAX_LEVEL + 1]; /* by level */
	uint32_t slot[CPC_MAX_LEVEL + 1];
	uint64_t upper[CPC_MAX_LEVEL + 1]; /* keys below path[level] are smaller than this */
	/* the item stood on; borrowed, lives until the next call */
	bool valid;
	uint64_t key;
	const void *value;
	uint32_t size;
};

void cpc_cursor_init(struct cpc_cursor *c, struct cpc_eb_cache *cache, uint64_t owner,
		     const struct cpc_node_ptr *root);
/* Stands on the item that covers `key`, or else the first one above it; valid = false if none. */
int cpc_cursor_seek(struct cpc_cursor *c, uint64_t key);
int cpc_cursor_next(struct cpc_cursor *c);
void cpc_cursor_release(struct cpc_cursor *c);

/* Keys that a value covers. */
static inline uint64_t cpc_item_len(uint64_t owner, uint32_t size)
{
	if (owner < CPC_TREE_VOLUME_BASE)
		return 1;
	return (size - sizeof(struct cpc_disk_extent)) / sizeof(cpc_le32);
}

/* --- changing --- */
struct cpc_tree_txn {
	uint64_t transid;
	struct cpc_eb_cache *cache;
	void *ctx;
	int (*alloc_node)(void *ctx, uint64_t bytenr[2]);
	/* The node is no longer part of the new tree. Called only for nodes of the old tree. */
	int (*free_node)(void *ctx, const struct cpc_node_ptr *ptr);
	/* Blocks no longer mapped by the new tree; volume trees only. */
	int (*free_data)(void *ctx, uint64_t bytenr, uint64_t nr_blocks, uint64_t birth);
	/* A subtree unlinked whole (its nodes and data are the callee's now). Return: 0 taken; 1
	 * not taken: walk it and free what is in it; negative errno. NULL: never taken. */
	int (*drop_subtree)(void *ctx, const struct cpc_node_ptr *ptr, uint64_t owner);
};

/*
 * One change, start < end: everything in [start, end) goes; then, if value is not NULL, one item
 * with key `start` that covers exactly [start, end) or less comes.
 */
struct cpc_tree_op {
	uint64_t start, end;
	const void *value; /* borrowed until the next call of next */
	uint32_t size;
};

/* Gives the next op, ascending and disjoint. Return: 1, 0 at the end, negative errno. */
typedef int (*cpc_tree_op_next)(void *ctx, struct cpc_tree_op *op);

/*
 * Applies changes to the tree `root` and gives the new root. On error the caller forgets the nodes
 * of this transaction (cpc_eb_abort) and what the callbacks told it.
 * In a volume's tree, items that end up side by side on the pool with the same birth are joined.
 */
int cpc_btree_apply(struct cpc_tree_txn *txn, uint64_t owner, const struct cpc_node_ptr *root,
		    cpc_tree_op_next next, void *next_ctx, struct cpc_node_ptr *new_root);

/* --- tree-checker --- */
/* All that can be said of a node alone: header, counts, order, overlap, bounds, values by owner,
 * zero padding. Return: NULL or what is wrong. Used as cpc_eb_checker. */
const char *cpc_tree_check_node(const void *node, uint32_t nodesize,
				const struct cpc_geometry *geo);

/* Accessors for walkers (core/check): node must be checked. */
static inline const struct cpc_disk_node *cpc_node_header(const void *node)
{
	return node;
}
uint32_t cpc_node_nritems(const void *node);
void cpc_node_child(const void *node, uint32_t slot, uint64_t *key, struct cpc_node_ptr *ptr);
void cpc_node_item(const void *node, uint32_t slot, uint64_t *key, const void **value,
		   uint32_t *size);

#endif
