/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Why this way: a cursor keeps the path it came down, so the next item is usually in the same
 * leaf and the next leaf one step aside. Trees are immutable, so the path stays right for as long
 * as somebody keeps the tree from being freed.
 *
 * Normal path. seek starts at the lowest node of the path whose keys enclose the wanted one: a
 * request that continues where the last one ended does not touch the inner nodes. Slow path: a
 * fresh cursor goes down from the root. Any error empties the cursor, so that it never stands on
 * half a path.
 *
 * Rejected: parent pointers in nodes (a shared node has many parents); leaf-to-leaf links
 * (copy-on-write would have to rewrite the neighbours).
 */
#include "btree/btree-internal.h"

void cpc_cursor_init(struct cpc_cursor *c, struct cpc_eb_cache *cache, uint64_t owner,
		     const struct cpc_node_ptr *root)
{
	memset(c, 0, sizeof(*c));
	c->cache = cache;
	c->owner = owner;
	c->root = *root;
}

void cpc_cursor_release(struct cpc_cursor *c)
{
	for (unsigned level = 0; level <= CPC_MAX_LEVEL; level++) {
		cpc_eb_put(c->path[level]);
		c->path[level] = NULL;
	}
	c->valid = false;
}

static int fail(struct cpc_cursor *c, int err)
{
	cpc_cursor_release(c);
	return err;
}

/* Reads a node into the path; what stood below the place is no longer part of it. */
static int enter(struct cpc_cursor *c, const struct cpc_child *child)
{
	unsigned level = child->ptr.level;
	struct cpc_eb *eb;
	int ret = cpc_btree_read(c->cache, c->owner, child, &eb);

	if (ret)
		return ret;
	for (unsigned i = 0; i <= level; i++) {
		cpc_eb_put(c->path[i]);
		c->path[i] = NULL;
	}
	c->path[level] = eb;
	c->upper[level] = child->upper;
	c->slot[level] = 0;
	return 0;
}

static int enter_root(struct cpc_cursor *c)
{
	const struct cpc_child root = {.ptr = c->root, .upper = UINT64_MAX};

	return enter(c, &root);
}

/* From `level`, whose slot is set, to the child in that slot. */
static int enter_child(struct cpc_cursor *c, unsigned level)
{
	struct cpc_child child;

	cpc_node_get_child(c->path[level]->data, c->slot[level], c->upper[level], &child);
	return enter(c, &child);
}

/* Takes over the item at slot[0]. */
static void stand(struct cpc_cursor *c)
{
	cpc_node_item(c->path[0]->data, c->slot[0], &c->key, &c->value, &c->size);
	c->valid = true;
}

/* The first item of the next leaf, if there is one. */
static int next_leaf(struct cpc_cursor *c)
{
	unsigned level = 1;
	int ret = 0;

	c->valid = false;
	while (level <= c->root.level &&
	       c->slot[level] + 1 >= cpc_node_nritems(c->path[level]->data))
		level++;
	if (level > c->root.level)
		return 0;
	c->slot[level]++;
	for (; level > 0 && !ret; level--)
		ret = enter_child(c, level);
	if (ret)
		return fail(c, ret);
	stand(c);
	return 0;
}

static bool encloses(const struct cpc_cursor *c, unsigned level, uint64_t key)
{
	return c->path[level] && key < c->upper[level] &&
	       key >= cpc_node_key(c->path[level]->data, level, 0);
}

static int descend(struct cpc_cursor *c, uint64_t key)
{
	unsigned level = 0;
	int ret = 0;

	while (level < c->root.level && !encloses(c, level, key))
		level++;
	if (!c->path[level])
		ret = enter_root(c);
	for (; level > 0 && !ret; level--) {
		const void *node = c->path[level]->data;

		c->slot[level] = cpc_node_child_of(node, 0, cpc_node_nritems(node), key);
		ret = enter_child(c, level);
	}
	return ret;
}

/* The slot of the item that covers `key`, else of the first one above it, else nritems. */
static uint32_t leaf_slot(uint64_t owner, const void *leaf, uint64_t key)
{
	uint32_t nr = cpc_node_nritems(leaf), slot = cpc_node_search(leaf, 0, 0, nr, key);
	const void *value;
	uint32_t size;
	uint64_t start;

	if (slot == 0 || (slot < nr && cpc_node_key(leaf, 0, slot) == key))
		return slot;
	cpc_node_item(leaf, slot - 1, &start, &value, &size);
	return key - start < cpc_item_len(owner, size) ? slot - 1 : slot;
}

int cpc_cursor_seek(struct cpc_cursor *c, uint64_t key)
{
	int ret;

	c->valid = false;
	if (cpc_node_ptr_empty(&c->root))
		return 0;
	if (c->root.level > CPC_MAX_LEVEL)
		return -EUCLEAN;
	ret = descend(c, key);
	if (ret)
		return fail(c, ret);
	c->slot[0] = leaf_slot(c->owner, c->path[0]->data, key);
	if (c->slot[0] == cpc_node_nritems(c->path[0]->data))
		return next_leaf(c);
	stand(c);
	return 0;
}

int cpc_cursor_next(struct cpc_cursor *c)
{
	if (!c->valid)
		return 0;
	if (++c->slot[0] == cpc_node_nritems(c->path[0]->data))
		return next_leaf(c);
	stand(c);
	return 0;
}
