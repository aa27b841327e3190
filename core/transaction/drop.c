/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * drop: the persistent list of subtrees that nothing names any more.
 *
 * Deleting or trimming a large range unlinks whole subtrees, each an item of the root tree; every
 * later commit frees a bounded number of their nodes with what they map. A subtree that a slice
 * does not finish is replaced by the children that are left, so that the list grows by at most one
 * fan-out a level. Rejected: a cursor kept in the item, which needs a second way to walk a tree.
 *
 * What bounds a slice is device reads, which come one after the other: one for each node, and one
 * for each group whose bitmap has to be loaded to free what the node names. In a volume of single
 * blocks all over the pool the first leaves need many bitmaps, and later ones find them loaded. So
 * a slice may end inside a leaf: the entries that are left are written as a leaf of their own,
 * which takes the old one's place on the list.
 *
 * A node that cannot be read for damage is left out with a message: its blocks stay in use
 * (leaked) and core/check reports them. Guessing what it mapped could free somebody's data. The
 * sums of each node are compared with its pointer, so that a list which names some node again and
 * again, in an image that wants to keep us busy, ends after as many nodes as the pool has.
 */
#include "transaction/store-internal.h"

#include "lib/log.h"
#include "lib/mutation.h"

static void drop_decode(const void *value, struct cpc_node_ptr *ptr, uint64_t *owner)
{
	const struct cpc_disk_drop *disk = value;

	cpc_ptr_decode(ptr, &disk->ptr);
	*owner = cpc_get_le64(&disk->owner);
}

int cpc_drop_load(struct cpc_store *store)
{
	uint64_t end = cpc_root_key(CPC_ITEM_DROP + 1, 0);
	struct cpc_cursor c;
	int ret;

	cpc_cursor_init(&c, store->ebc, CPC_TREE_ROOT, &store->super.root);
	ret = cpc_cursor_seek(&c, cpc_root_key(CPC_ITEM_DROP, 0));
	while (!ret && c.valid && c.key < end) {
		struct cpc_node_ptr ptr;
		uint64_t owner;

		drop_decode(c.value, &ptr, &owner);
		store->dropped_blocks += cpc_ptr_blocks(store, &ptr);
		store->nr_drops++;
		/* The sums bound what freeing will read; keys to come must be new. */
		if (store->dropped_blocks > store->used_blocks ||
		    (c.key & CPC_KEY_ID_MASK) >= store->super.next_drop)
			ret = -EUCLEAN;
		if (!ret)
			ret = cpc_cursor_next(&c);
	}
	cpc_cursor_release(&c);
	return ret;
}

int cpc_commit_drop_add(struct cpc_commit *c, const struct cpc_node_ptr *ptr, uint64_t owner)
{
	struct cpc_disk_drop disk;
	int ret;

	if (CPC_MUTANT(dropped_trees_forgotten))
		return 0;
	memset(&disk, 0, sizeof(disk));
	cpc_ptr_encode(&disk.ptr, ptr);
	cpc_put_le64(&disk.owner, owner);
	ret = cpc_root_ops_put(&c->root_ops, cpc_root_key(CPC_ITEM_DROP, c->next_drop), &disk,
			       sizeof(disk));
	if (ret)
		return ret;
	c->next_drop++;
	c->drop_delta_blocks += (int64_t)cpc_ptr_blocks(c->store, ptr);
	c->drop_delta_items++;
	return 0;
}

/* Pays for the bitmap of a group that this commit has not freed anything in. Return: false: the
 * budget has been spent. */
static bool pay_for_group(struct cpc_commit *c, uint64_t bytenr, uint32_t *budget)
{
	uint64_t group = (bytenr >> CPC_BLOCK_SHIFT) / CPC_GROUP_BLOCKS;

	if (cpc_blockset_group(&c->freed[c->phase], group) ||
	    cpc_space_is_loaded(c->store->space, group))
		return true;
	if (*budget == 0)
		return false;
	--*budget;
	return true;
}

/* The entries of a leaf from one on. */
struct rest {
	const void *leaf;
	uint64_t owner;
	uint32_t at;
};

static int rest_next(void *ctx, struct cpc_tree_op *op)
{
	struct rest *rest = ctx;

	if (rest->at == cpc_node_nritems(rest->leaf))
		return 0;
	cpc_node_item(rest->leaf, rest->at++, &op->start, &op->value, &op->size);
	op->end = op->start + cpc_item_len(rest->owner, op->size);
	return 1;
}

static int keep_rest(struct cpc_commit *c, struct rest *rest)
{
	const struct cpc_node_ptr empty = {.nodes = 0};
	struct cpc_node_ptr leaf;
	int ret = cpc_btree_apply(&c->txn, rest->owner, &empty, rest_next, rest, &leaf);

	return ret ? ret : cpc_commit_drop_add(c, &leaf, rest->owner);
}

/* Frees what a leaf maps, at least one entry of it, so that every slice gets on. */
static int drop_leaf(struct cpc_commit *c, const void *leaf, uint64_t owner, uint32_t *budget)
{
	struct rest rest = {.leaf = leaf, .owner = owner};
	struct cpc_tree_op op;
	int ret = 0;

	while (!ret && rest_next(&rest, &op) == 1) {
		const struct cpc_disk_extent *extent = op.value;
		uint64_t bytenr = cpc_get_le64(&extent->bytenr);

		if (!pay_for_group(c, bytenr, budget) && rest.at > 1) {
			rest.at--;
			return keep_rest(c, &rest);
		}
		ret = c->txn.free_data(c, bytenr, op.end - op.start, cpc_get_le64(&extent->birth));
	}
	return ret;
}

/* Frees a subtree as far as the budget goes; what is left becomes items of its own. */
static int drop_subtree(struct cpc_commit *c, const struct cpc_node_ptr *ptr, uint64_t owner,
			uint32_t *budget)
{
	struct cpc_eb *eb;
	int ret;

	if (*budget == 0)
		return cpc_commit_drop_add(c, ptr, owner);
	--*budget;
	ret = cpc_store_read_node(c->store, ptr, owner, &eb);
	if (ret == -EUCLEAN) {
		cpc_error("a dropped node at %llu is damaged: its blocks stay in use, run "
			  "coppice check",
			  (unsigned long long)ptr->bytenr[0]);
		return 0;
	}
	/* A device error may pass, and no commit shall fail for it: it stays on the list. */
	if (ret == -EIO)
		return cpc_commit_drop_add(c, ptr, owner);
	if (ret)
		return ret;
	if (ptr->level == 0) {
		ret = drop_leaf(c, eb->data, owner, budget);
	} else {
		for (uint32_t i = 0; !ret && i < cpc_node_nritems(eb->data); i++) {
			struct cpc_node_ptr child;
			uint64_t key;

			cpc_node_child(eb->data, i, &key, &child);
			ret = drop_subtree(c, &child, owner, budget);
		}
	}
	cpc_eb_put(eb);
	return ret ? ret : c->txn.free_node(c, ptr);
}

int cpc_commit_drop_slice(struct cpc_commit *c)
{
	uint64_t end = cpc_root_key(CPC_ITEM_DROP + 1, 0);
	uint32_t budget = c->req->drop_budget;
	struct cpc_store *store = c->store;
	struct cpc_cursor cursor;
	int ret;

	if (!store->nr_drops || !budget)
		return 0;
	cpc_cursor_init(&cursor, store->ebc, CPC_TREE_ROOT, &store->super.root);
	ret = cpc_cursor_seek(&cursor, cpc_root_key(CPC_ITEM_DROP, 0));
	while (!ret && budget && cursor.valid && cursor.key < end) {
		struct cpc_node_ptr ptr;
		uint64_t owner;

		drop_decode(cursor.value, &ptr, &owner);
		ret = drop_subtree(c, &ptr, owner, &budget);
		if (ret)
			break;
		ret = cpc_root_ops_delete(&c->root_ops, cursor.key, cursor.key + 1);
		if (ret)
			break;
		c->drop_delta_blocks -= (int64_t)cpc_ptr_blocks(store, &ptr);
		c->drop_delta_items--;
		ret = cpc_cursor_next(&cursor);
	}
	cpc_cursor_release(&cursor);
	return ret;
}
