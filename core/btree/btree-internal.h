/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * btree-internal: what the files of this folder share.
 *
 * node.c knows the layout of a node, reading.c checks a node against the pointer that led to it,
 * builder.c packs a stream of items and nodes into a new tree, apply.c makes that stream out of
 * an old tree and changes.
 */
#ifndef CPC_BTREE_BTREE_INTERNAL_H
#define CPC_BTREE_BTREE_INTERNAL_H

#include "btree/btree.h"

/* --- node.c: layout --- */

static inline const struct cpc_disk_item *cpc_node_items(const void *node)
{
	return (const void *)((const uint8_t *)node + sizeof(struct cpc_disk_node));
}

static inline const struct cpc_disk_child *cpc_node_children(const void *node)
{
	return (const void *)((const uint8_t *)node + sizeof(struct cpc_disk_node));
}

static inline bool cpc_owner_maps_data(uint64_t owner)
{
	return owner >= CPC_TREE_VOLUME_BASE;
}

/* Key of any slot, in nodes of `level`. */
static inline uint64_t cpc_node_key(const void *node, unsigned level, uint32_t slot)
{
	return level ? cpc_get_le64(&cpc_node_children(node)[slot].key)
		     : cpc_get_le64(&cpc_node_items(node)[slot].key);
}

/* Byte just above the value of an item, and its first byte. */
static inline uint32_t cpc_item_value_end(const struct cpc_disk_item *item)
{
	return (uint32_t)cpc_get_le16(&item->offset) + cpc_get_le16(&item->size);
}

static inline uint32_t cpc_item_value_start(const struct cpc_disk_item *item)
{
	return cpc_get_le16(&item->offset);
}

/* First slot in [from, nr) whose key is at least `key`, else nr. Fast for near ones. */
uint32_t cpc_node_search(const void *node, unsigned level, uint32_t from, uint32_t nr,
			 uint64_t key);
/* The slot of the child that `key` belongs to: the last one whose key is not above it, or 0. */
uint32_t cpc_node_child_of(const void *node, uint32_t from, uint32_t nr, uint64_t key);
/* Bytes of a node's content, header not counted. */
uint32_t cpc_node_used(const void *node, uint32_t nodesize);
/* First key that nothing in the node covers and that is above all that it covers. */
uint64_t cpc_node_end_key(const void *node);

struct cpc_node_sums {
	uint64_t data_blocks, nodes;
};
/* Sums of slots [from, to): of a leaf its data blocks, of an inner node its children's. */
void cpc_node_sum(const void *node, uint64_t owner, unsigned level, uint32_t from, uint32_t to,
		  struct cpc_node_sums *sums);

/* --- reading.c --- */

/* A node and where it must lie: [key, upper), `key` exactly its first key if `exact`. */
struct cpc_child {
	struct cpc_node_ptr ptr;
	uint64_t key, upper;
	bool exact; /* false: a root */
};

/* The child at `slot` of a node whose own upper bound is `upper`. */
void cpc_node_get_child(const void *node, uint32_t slot, uint64_t upper, struct cpc_child *child);
/* Reads it and compares it with its place. Return: 0, -EUCLEAN (logged), -EIO, -ENOMEM. */
int cpc_btree_read(struct cpc_eb_cache *cache, uint64_t owner, const struct cpc_child *child,
		   struct cpc_eb **out);
/* The same, and compares the pointer's sums. */
int cpc_btree_read_sums(struct cpc_eb_cache *cache, uint64_t owner, const struct cpc_child *child,
			struct cpc_eb **out);

/* --- builder.c --- */

/* A node in the making: the layout of a node, its header not filled. */
struct cpc_build_node {
	uint8_t *data; /* nodesize bytes, NULL before first use */
	uint32_t nr;
	uint32_t tail; /* first byte of the lowest value; inner nodes: nodesize */
	struct cpc_node_sums sums;
};

/* Two nodes: only when `cur` is complete is it certain that `full` need not give it items. */
struct cpc_build_level {
	struct cpc_build_node full, cur;
};

/* The last mapping, not yet in a leaf: the next one may continue it. */
struct cpc_build_extent {
	uint64_t key, bytenr, birth;
	uint32_t nr; /* 0: none */
	cpc_le32 csum[CPC_EXTENT_MAX_BLOCKS];
};

struct cpc_builder {
	struct cpc_tree_txn *txn;
	uint64_t owner;
	uint32_t nodesize;
	struct cpc_build_level level[CPC_MAX_LEVEL + 1];
	struct cpc_build_node spare; /* for moving items between two nodes */
	struct cpc_build_extent extent;
};

void cpc_builder_init(struct cpc_builder *b, struct cpc_tree_txn *txn, uint64_t owner);
void cpc_builder_destroy(struct cpc_builder *b);
/* Appends one item above everything appended before. */
int cpc_builder_item(struct cpc_builder *b, uint64_t key, const void *value, uint32_t size);
/* Appends blocks [key, key + nr) at bytenr. */
int cpc_builder_extent(struct cpc_builder *b, uint64_t key, uint64_t bytenr, uint64_t birth,
		       const cpc_le32 *csum, uint32_t nr);
/* Appends items [from, to) of a leaf of the old tree. */
int cpc_builder_items(struct cpc_builder *b, const void *leaf, uint32_t from, uint32_t to);
/* Appends children [from, to) of a node of the old tree, whose upper bound is `upper`, as they are;
 * the first ones are taken apart when what stands before them needs filling up. */
int cpc_builder_link(struct cpc_builder *b, const void *node, unsigned level, uint32_t from,
		     uint32_t to, uint64_t upper);
/* Writes out what is left. */
int cpc_builder_finish(struct cpc_builder *b, struct cpc_node_ptr *root);

#endif
