/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Why this way: the tree-checker sees one node, the extent buffer compares it with its pointer;
 * what remains is that the node belongs between its parent's keys. It is checked here, once per
 * step down, by comparing the first key and the end of the last: two comparisons, so lookups pay
 * next to nothing for never leaving the order of keys, whatever is on the device. Loops are
 * impossible: a child's level is its parent's less one.
 *
 * The sums of a pointer are compared only by apply, which will base new sums on them, and by the
 * offline check: a lookup does not use them.
 */
#include "btree/btree-internal.h"

#include <inttypes.h>

#include "lib/log.h"

void cpc_node_get_child(const void *node, uint32_t slot, uint64_t upper, struct cpc_child *child)
{
	cpc_node_child(node, slot, &child->key, &child->ptr);
	child->upper = slot + 1 < cpc_node_nritems(node) ? cpc_node_key(node, 1, slot + 1) : upper;
	child->exact = true;
}

static int misplaced(uint64_t owner, const struct cpc_child *child, const char *what, uint64_t got,
		     uint64_t expected)
{
	cpc_error("tree %" PRIu64 ": node at %" PRIu64 " level %u: %s is %" PRIu64
		  ", expected %" PRIu64,
		  owner, child->ptr.bytenr[0], child->ptr.level, what, got, expected);
	return -EUCLEAN;
}

static int check_place(uint64_t owner, const struct cpc_child *child, const void *node)
{
	uint64_t first = cpc_node_key(node, child->ptr.level, 0);
	uint64_t end = cpc_node_end_key(node);

	if (child->exact && first != child->key)
		return misplaced(owner, child, "first key", first, child->key);
	if (end > child->upper)
		return misplaced(owner, child, "end of the last key", end, child->upper);
	return 0;
}

int cpc_btree_read(struct cpc_eb_cache *cache, uint64_t owner, const struct cpc_child *child,
		   struct cpc_eb **out)
{
	int ret;

	if (child->ptr.level > CPC_MAX_LEVEL)
		return misplaced(owner, child, "level", child->ptr.level, CPC_MAX_LEVEL);
	ret = cpc_eb_read(cache, &child->ptr, owner, out);
	if (ret)
		return ret;
	ret = check_place(owner, child, (*out)->data);
	if (ret) {
		cpc_eb_put(*out);
		*out = NULL;
	}
	return ret;
}

static int check_sums(uint64_t owner, const struct cpc_child *child, const void *node)
{
	struct cpc_node_sums sums;

	cpc_node_sum(node, owner, child->ptr.level, 0, cpc_node_nritems(node), &sums);
	if (sums.data_blocks != child->ptr.data_blocks)
		return misplaced(owner, child, "number of data blocks", child->ptr.data_blocks,
				 sums.data_blocks);
	if (sums.nodes + 1 != child->ptr.nodes)
		return misplaced(owner, child, "number of nodes", child->ptr.nodes, sums.nodes + 1);
	return 0;
}

int cpc_btree_read_sums(struct cpc_eb_cache *cache, uint64_t owner, const struct cpc_child *child,
			struct cpc_eb **out)
{
	int ret = cpc_btree_read(cache, owner, child, out);

	if (ret)
		return ret;
	ret = check_sums(owner, child, (*out)->data);
	if (ret) {
		cpc_eb_put(*out);
		*out = NULL;
	}
	return ret;
}
