/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Why this way: a node is used where it lies, as it was read. Values are packed without a gap in
 * the order of their items, so that a run of items is two runs of bytes, and everything about a
 * run (its size, its data blocks) follows from its first and its last item: apply copies runs and
 * never looks at the items inside.
 *
 * All functions here expect a node that the tree-checker has accepted.
 *
 * Rejected: a free list or gaps inside leaves (a node is written once and never edited); prefix
 * compression of keys (a leaf of mappings is mostly checksums).
 */
#include "btree/btree-internal.h"

uint32_t cpc_node_nritems(const void *node)
{
	return cpc_get_le32(&cpc_node_header(node)->nritems);
}

void cpc_node_child(const void *node, uint32_t slot, uint64_t *key, struct cpc_node_ptr *ptr)
{
	const struct cpc_disk_child *child = &cpc_node_children(node)[slot];

	*key = cpc_get_le64(&child->key);
	cpc_ptr_decode(ptr, &child->ptr);
}

void cpc_node_item(const void *node, uint32_t slot, uint64_t *key, const void **value,
		   uint32_t *size)
{
	const struct cpc_disk_item *item = &cpc_node_items(node)[slot];

	*key = cpc_get_le64(&item->key);
	*value = (const uint8_t *)node + cpc_item_value_start(item);
	*size = cpc_get_le16(&item->size);
}

uint32_t cpc_node_search(const void *node, unsigned level, uint32_t from, uint32_t nr, uint64_t key)
{
	uint32_t lo = from, hi, step = 1;

	/* Changes are often dense: look near `from` first, with growing steps. */
	for (hi = from; hi < nr && cpc_node_key(node, level, hi) < key; step *= 2) {
		lo = hi + 1;
		hi = nr - hi > step ? hi + step : nr;
	}
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (cpc_node_key(node, level, mid) < key)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

uint32_t cpc_node_child_of(const void *node, uint32_t from, uint32_t nr, uint64_t key)
{
	uint32_t slot = cpc_node_search(node, 1, from, nr, key);

	if (slot < nr && cpc_node_key(node, 1, slot) == key)
		return slot;
	return slot > from ? slot - 1 : from;
}

uint32_t cpc_node_used(const void *node, uint32_t nodesize)
{
	uint32_t nr = cpc_node_nritems(node);

	if (cpc_node_header(node)->level)
		return nr * (uint32_t)sizeof(struct cpc_disk_child);
	return nr * (uint32_t)sizeof(struct cpc_disk_item) + nodesize -
	       cpc_item_value_start(&cpc_node_items(node)[nr - 1]);
}

uint64_t cpc_node_end_key(const void *node)
{
	const struct cpc_disk_node *header = cpc_node_header(node);
	uint32_t last = cpc_node_nritems(node) - 1;
	const struct cpc_disk_item *item;

	if (header->level)
		return cpc_node_key(node, 1, last) + 1;
	item = &cpc_node_items(node)[last];
	return cpc_get_le64(&item->key) +
	       cpc_item_len(cpc_get_le64(&header->owner), cpc_get_le16(&item->size));
}

static void leaf_sum(const void *node, uint64_t owner, uint32_t from, uint32_t to,
		     struct cpc_node_sums *sums)
{
	const struct cpc_disk_item *items = cpc_node_items(node);
	uint32_t bytes;

	sums->data_blocks = sums->nodes = 0;
	if (from == to || !cpc_owner_maps_data(owner))
		return;
	bytes = cpc_item_value_end(&items[from]) - cpc_item_value_start(&items[to - 1]);
	bytes -= (to - from) * (uint32_t)sizeof(struct cpc_disk_extent);
	sums->data_blocks = bytes / sizeof(cpc_le32);
}

void cpc_node_sum(const void *node, uint64_t owner, unsigned level, uint32_t from, uint32_t to,
		  struct cpc_node_sums *sums)
{
	const struct cpc_disk_child *child = cpc_node_children(node);

	if (level == 0) {
		leaf_sum(node, owner, from, to, sums);
		return;
	}
	sums->data_blocks = sums->nodes = 0;
	for (uint32_t i = from; i < to; i++) {
		sums->data_blocks += cpc_get_le64(&child[i].ptr.data_blocks);
		sums->nodes += cpc_get_le32(&child[i].ptr.nodes);
	}
}
