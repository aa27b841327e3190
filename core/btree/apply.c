/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Why this way: a commit has thousands of changes in key order. One walk over the old tree merges
 * them into it: each node that a change touches is read once and replaced once, however many
 * changes it gets, and all else is linked unread.
 *
 * Normal path. The walk goes down to the leaf that the next change belongs to, passing over
 * children without changes. A leaf is merged with its changes into the builder: runs of untouched
 * items are copied, items that a change overlaps are cut, the dropped blocks reported. Back up, the
 * walk continues with the next child that has a change.
 *
 * Nothing is given to the builder before a change is known to have an effect (touch()). Until then
 * every node on the path counts as unchanged, and its parent will link it as it is; so removing
 * what does not exist writes nothing. touch() appends, from the root down, the children that the
 * path has already passed: they stand before the change in key order.
 *
 *	path:      root            untouched children 0..s-1: appended by touch()
 *	             \ s
 *	              node         the same
 *	                \ s
 *	                 leaf      items before the change: appended by leaf_keep()
 *
 * Slow paths. A removal that covers all keys of a child unlinks it unread where drop_subtree takes
 * it; else it is walked, and its nodes and data are freed one by one. A change that reaches beyond
 * a leaf leaves a removal for the next one.
 *
 * Rejected: single inserts with node splits (each change walks from the root, nodes are final only
 * at the end); collecting the new leaves of a parent before writing (memory grows with the change).
 */
#include "btree/btree-internal.h"

#include "lib/hooks.h"

/* A node on the way down. */
struct frame {
	struct cpc_eb *eb;
	struct cpc_child place;
	uint32_t slot;	/* first slot not passed */
	uint32_t nr;	/* slots */
	uint64_t start; /* leaf: what is left of the item at `slot` begins here */
	bool dirty;	/* it is being replaced */
};

struct apply {
	struct cpc_tree_txn *txn;
	uint64_t owner;
	cpc_tree_op_next next;
	void *next_ctx;
	struct cpc_tree_op op; /* what is left of it */
	bool more;	       /* op is valid */
	uint64_t last_end;     /* of the last op */
	unsigned top;	       /* level of the old root */
	struct frame path[CPC_MAX_LEVEL + 1];
	struct cpc_builder builder;
};

/* --- ops --- */

static bool value_fits(uint64_t owner, const struct cpc_tree_op *op)
{
	if (!op->value)
		return true;
	if (op->size == 0 || op->size > CPC_ITEM_MAX_SIZE)
		return false;
	if (cpc_owner_maps_data(owner) &&
	    (op->size <= sizeof(struct cpc_disk_extent) || op->size % sizeof(cpc_le32) ||
	     cpc_item_len(owner, op->size) > CPC_EXTENT_MAX_BLOCKS))
		return false;
	return cpc_item_len(owner, op->size) <= op->end - op->start;
}

static int next_op(struct apply *a)
{
	int ret = a->next(a->next_ctx, &a->op);

	a->more = ret > 0;
	if (ret <= 0)
		return ret;
	if (a->op.start < a->last_end || a->op.end <= a->op.start || !value_fits(a->owner, &a->op))
		return -EINVAL;
	a->last_end = a->op.end;
	return 0;
}

/* The op has been done below `upper`. */
static int pass_op(struct apply *a, uint64_t upper)
{
	if (a->op.end <= upper)
		return next_op(a);
	a->op.start = upper;
	a->op.value = NULL;
	return 0;
}

static bool op_below(const struct apply *a, uint64_t upper)
{
	return a->more && a->op.start < upper;
}

/* --- the path --- */

/* All nodes from the root down to `level` are going to be replaced. */
static int touch(struct apply *a, unsigned level)
{
	for (unsigned i = a->top + 1; i-- > level;) {
		struct frame *f = &a->path[i];
		int ret = 0;

		if (f->dirty)
			continue;
		f->dirty = true;
		if (i)
			ret = cpc_builder_link(&a->builder, f->eb->data, i, 0, f->slot,
					       f->place.upper);
		if (ret)
			return ret;
	}
	return 0;
}

static int frame_open(struct apply *a, const struct cpc_child *place)
{
	struct frame *f = &a->path[place->ptr.level];
	int ret = cpc_btree_read_sums(a->txn->cache, a->owner, place, &f->eb);

	if (ret)
		return ret;
	f->place = *place;
	f->slot = 0;
	f->nr = cpc_node_nritems(f->eb->data);
	f->start = cpc_node_key(f->eb->data, place->ptr.level, 0);
	f->dirty = false;
	return 0;
}

static int frame_close(struct apply *a, struct frame *f)
{
	cpc_eb_put(f->eb);
	f->eb = NULL;
	return f->dirty ? a->txn->free_node(a->txn->ctx, &f->place.ptr) : 0;
}

/* --- leaves --- */

/* The item at a leaf's slot, what is left of it. */
struct piece {
	uint64_t start, end;
	const uint8_t *value;
	uint64_t skip; /* keys of the item before start */
};

static void leaf_piece(const struct apply *a, const struct frame *f, struct piece *p)
{
	const void *value;
	uint64_t key;
	uint32_t size;

	cpc_node_item(f->eb->data, f->slot, &key, &value, &size);
	p->start = f->start;
	p->end = key + cpc_item_len(a->owner, size);
	p->value = value;
	p->skip = f->start - key;
}

/* The slot's item has been dealt with below `key`. */
static void leaf_pass(struct frame *f, const struct piece *p, uint64_t key)
{
	if (key < p->end) {
		f->start = key;
		return;
	}
	if (++f->slot < f->nr)
		f->start = cpc_node_key(f->eb->data, 0, f->slot);
}

/* Appends the part of a cut item below `key`. Only mappings can be cut. */
static int keep_part(struct apply *a, struct frame *f, const struct piece *p, uint64_t key)
{
	const struct cpc_disk_extent *e = (const void *)p->value;
	uint32_t nr = (uint32_t)(cpc_min_u64(p->end, key) - p->start);
	uint64_t bytenr = cpc_get_le64(&e->bytenr) + (p->skip << CPC_BLOCK_SHIFT);
	int ret = cpc_builder_extent(&a->builder, p->start, bytenr, cpc_get_le64(&e->birth),
				     e->csum + p->skip, nr);

	leaf_pass(f, p, key);
	return ret;
}

/* Appends whole items, those that begin and end below `key`. */
static int keep_run(struct apply *a, struct frame *f, uint64_t key)
{
	uint32_t to = cpc_node_search(f->eb->data, 0, f->slot, f->nr, key), from = f->slot;
	struct piece p;

	if (to == from)
		return 0;
	f->slot = to - 1;
	f->start = cpc_node_key(f->eb->data, 0, f->slot);
	leaf_piece(a, f, &p);
	if (p.end > key)
		return cpc_builder_items(&a->builder, f->eb->data, from, to - 1);
	leaf_pass(f, &p, p.end);
	return cpc_builder_items(&a->builder, f->eb->data, from, to);
}

/* Appends all that is left of the leaf below `key`. */
static int leaf_keep(struct apply *a, struct frame *f, uint64_t key)
{
	struct piece p;
	int ret = 0;

	if (f->slot == f->nr || f->start >= key)
		return 0;
	leaf_piece(a, f, &p);
	if (p.skip)
		ret = keep_part(a, f, &p, key);
	if (ret || f->slot == f->nr || f->start >= key)
		return ret;
	ret = keep_run(a, f, key);
	if (ret || f->slot == f->nr || f->start >= key)
		return ret;
	leaf_piece(a, f, &p);
	return keep_part(a, f, &p, key);
}

static int drop_part(struct apply *a, const struct piece *p, uint64_t end)
{
	const struct cpc_disk_extent *e = (const void *)p->value;
	uint64_t bytenr;

	if (!cpc_owner_maps_data(a->owner))
		return 0;
	bytenr = cpc_get_le64(&e->bytenr) + (p->skip << CPC_BLOCK_SHIFT);
	return a->txn->free_data(a->txn->ctx, bytenr, end - p->start, cpc_get_le64(&e->birth));
}

/* Drops all that is left of the leaf below `key`. */
static int leaf_drop(struct apply *a, struct frame *f, uint64_t key)
{
	int ret = 0;

	while (!ret && f->slot < f->nr && f->start < key) {
		struct piece p;

		leaf_piece(a, f, &p);
		ret = drop_part(a, &p, cpc_min_u64(p.end, key));
		leaf_pass(f, &p, key);
	}
	return ret;
}

/* True when the op removes something of this leaf. */
static bool leaf_overlaps(const struct apply *a, const struct frame *f)
{
	struct frame at = *f;
	struct piece p;

	if (at.slot == at.nr || at.start >= a->op.end)
		return false;
	if (at.start >= a->op.start)
		return true;
	at.slot = cpc_node_search(f->eb->data, 0, f->slot + 1, f->nr, a->op.start);
	if (at.slot < at.nr && cpc_node_key(f->eb->data, 0, at.slot) < a->op.end)
		return true;
	at.slot--;
	at.start = at.slot == f->slot ? f->start : cpc_node_key(f->eb->data, 0, at.slot);
	leaf_piece(a, &at, &p);
	return p.end > a->op.start;
}

static int leaf_change(struct apply *a, struct frame *f)
{
	int ret = touch(a, 0);

	if (!ret)
		ret = leaf_keep(a, f, a->op.start);
	if (!ret && a->op.value)
		ret = cpc_builder_item(&a->builder, a->op.start, a->op.value, a->op.size);
	if (!ret)
		ret = leaf_drop(a, f, a->op.end);
	return ret;
}

static int apply_leaf(struct apply *a, struct frame *f)
{
	int ret = 0;

	while (!ret && op_below(a, f->place.upper)) {
		if (a->op.value || leaf_overlaps(a, f))
			ret = leaf_change(a, f);
		if (!ret)
			ret = pass_op(a, f->place.upper);
	}
	if (!ret && f->dirty)
		ret = leaf_keep(a, f, UINT64_MAX);
	return ret;
}

/* --- inner nodes --- */

static int apply_child(struct apply *a, const struct cpc_child *place);

/* Passes children up to `slot` that stay as they are. */
static int keep_children(struct apply *a, struct frame *f, uint32_t slot)
{
	int ret = 0;

	if (f->dirty)
		ret = cpc_builder_link(&a->builder, f->eb->data, f->place.ptr.level, f->slot, slot,
				       f->place.upper);
	f->slot = slot;
	return ret;
}

/* Unlinks a child that the op removes whole. Return: 1 done, 0 it has to be walked, or errno. */
static int unlink_child(struct apply *a, struct frame *f, const struct cpc_child *child)
{
	int ret;

	if (!a->txn->drop_subtree || a->op.value || a->op.start > child->key ||
	    a->op.end < child->upper)
		return 0;
	ret = touch(a, f->place.ptr.level);
	if (!ret)
		ret = a->txn->drop_subtree(a->txn->ctx, &child->ptr, a->owner);
	if (ret)
		return ret < 0 ? ret : 0;
	ret = pass_op(a, child->upper);
	return ret ? ret : 1;
}

/* The child at f->slot has a change. */
static int change_child(struct apply *a, struct frame *f)
{
	struct cpc_child child;
	int ret;

	cpc_node_get_child(f->eb->data, f->slot, f->place.upper, &child);
	ret = unlink_child(a, f, &child);
	if (ret == 0) {
		ret = apply_child(a, &child);
		if (ret < 0)
			return ret;
		if (!a->path[child.ptr.level].dirty)
			return keep_children(a, f, f->slot + 1);
	}
	f->slot++;
	return ret < 0 ? ret : 0;
}

static int apply_inner(struct apply *a, struct frame *f)
{
	int ret = 0;

	while (!ret && f->slot < f->nr && op_below(a, f->place.upper)) {
		ret = keep_children(a, f,
				    cpc_node_child_of(f->eb->data, f->slot, f->nr, a->op.start));
		if (!ret)
			ret = change_child(a, f);
	}
	if (!ret && f->dirty)
		ret = keep_children(a, f, f->nr);
	return ret;
}

/* Applies all ops that belong below `place`. */
static int apply_child(struct apply *a, const struct cpc_child *place)
{
	struct frame *f = &a->path[place->ptr.level];
	int ret = frame_open(a, place);

	if (ret)
		return ret;
	ret = place->ptr.level ? apply_inner(a, f) : apply_leaf(a, f);
	if (!ret)
		return frame_close(a, f);
	cpc_eb_put(f->eb);
	f->eb = NULL;
	return ret;
}

/* --- whole trees --- */

static int apply_to_empty(struct apply *a)
{
	int ret = 0;

	while (!ret && a->more) {
		if (a->op.value)
			ret = cpc_builder_item(&a->builder, a->op.start, a->op.value, a->op.size);
		if (!ret)
			ret = next_op(a);
	}
	return ret;
}

static int apply_to_tree(struct apply *a, const struct cpc_node_ptr *root,
			 struct cpc_node_ptr *new_root)
{
	const struct cpc_child place = {.ptr = *root, .upper = UINT64_MAX};
	int ret;

	if (root->level > CPC_MAX_LEVEL)
		return -EUCLEAN;
	a->top = root->level;
	ret = apply_child(a, &place);
	if (ret)
		return ret;
	if (a->path[a->top].dirty)
		return cpc_builder_finish(&a->builder, new_root);
	*new_root = *root;
	return 0;
}

static int apply_run(struct apply *a, const struct cpc_node_ptr *root,
		     struct cpc_node_ptr *new_root)
{
	int ret = next_op(a);

	if (ret)
		return ret;
	if (!cpc_node_ptr_empty(root))
		return apply_to_tree(a, root, new_root);
	ret = apply_to_empty(a);
	return ret ? ret : cpc_builder_finish(&a->builder, new_root);
}

int cpc_btree_apply(struct cpc_tree_txn *txn, uint64_t owner, const struct cpc_node_ptr *root,
		    cpc_tree_op_next next, void *next_ctx, struct cpc_node_ptr *new_root)
{
	struct apply *a = cpc_zalloc(sizeof(*a));
	struct cpc_node_ptr result;
	int ret;

	if (!a)
		return -ENOMEM;
	a->txn = txn;
	a->owner = owner;
	a->next = next;
	a->next_ctx = next_ctx;
	cpc_builder_init(&a->builder, txn, owner);
	ret = apply_run(a, root, &result);
	cpc_builder_destroy(&a->builder);
	cpc_free(a);
	if (!ret)
		*new_root = result;
	return ret;
}
