/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * scrub-tree: one tree, a batch at a time.
 *
 * A batch looks its tree's root up in the state that it holds and goes down to where the last one
 * ended. The nodes on the way are judged again; they may be new ones. A node without a good copy
 * costs the keys below it, and the batch goes on behind them.
 */
#include "check/scrub-internal.h"

#include <inttypes.h>
#include <stdio.h>

#include "lib/hooks.h"
#include "lib/mutation.h"

struct batch {
	struct scrub *s;
	uint64_t owner;
	bool data;		/* of a volume, not of the drop list */
	uint64_t start;		/* keys before it have been looked at */
	uint64_t next;		/* out: where to go on; UINT64_MAX: the end */
	unsigned nodes, blocks; /* so far */
};

/* --- one node --- */

/* A transfer may go wrong once. */
static const char *read_copy(struct scrub *s, const struct cpc_node_ptr *ptr, uint64_t owner,
			     unsigned copy, uint8_t *buf)
{
	const char *why = NULL;

	for (int tries = 0; tries < 2; tries++) {
		if (cpc_backing_read(s->store->backing, ptr->bytenr[copy], buf,
				     s->store->geo.nodesize))
			why = "cannot be read";
		else
			why = CPC_MUTANT(scrub_verifies_no_node)
				  ? NULL
				  : cpc_node_verify(buf, ptr, owner, &s->hold.super);
		if (!why)
			break;
	}
	return why;
}

/* What no copy on the device has may still be in memory. */
static bool copy_from_memory(struct scrub *s, const struct cpc_node_ptr *ptr, uint64_t owner,
			     uint8_t *buf)
{
	struct cpc_eb *eb;

	if (cpc_eb_read(s->store->ebc, ptr, owner, &eb))
		return false;
	memcpy(buf, eb->data, s->store->geo.nodesize);
	cpc_eb_put(eb);
	return true;
}

static void node_damage(struct scrub *s, const struct cpc_node_ptr *ptr, uint64_t owner,
			unsigned copy, const char *what, const uint8_t *good)
{
	struct cpc_damage d = {.kind = CPC_DAMAGE_NODE, .bytenr = ptr->bytenr[copy], .what = what};

	snprintf(d.where, sizeof(d.where), "tree %" PRIu64 " level %u, copy %u", owner, ptr->level,
		 copy + 1);
	cpc_scrub_heal(s, &d, good, s->store->geo.nodesize);
}

/* Return: false: there is no good copy. */
static bool load_node(struct scrub *s, const struct cpc_node_ptr *ptr, uint64_t owner, uint8_t *buf)
{
	unsigned copies = CPC_MUTANT(scrub_reads_one_node) ? 1 : s->store->geo.copies;
	const char *bad[2] = {NULL, NULL}, *why;
	bool good = false;

	for (unsigned copy = 0; copy < copies; copy++) {
		bad[copy] = read_copy(s, ptr, owner, copy, good ? s->copy : buf);
		good |= !bad[copy];
	}
	if (!good)
		good = copy_from_memory(s, ptr, owner, buf);
	for (unsigned copy = 0; copy < copies; copy++) {
		if (bad[copy])
			node_damage(s, ptr, owner, copy, bad[copy], good ? buf : NULL);
	}
	s->result->nodes++;
	cpc_scrub_advance(s, (uint64_t)copies * (s->store->geo.nodesize >> CPC_BLOCK_SHIFT));
	if (!good)
		return false;
	why = cpc_tree_check_node(buf, s->store->geo.nodesize, &s->store->geo);
	if (why)
		node_damage(s, ptr, owner, 0, why, NULL);
	return !why;
}

/* --- the batch --- */

static int walk(struct batch *b, const struct cpc_node_ptr *ptr, uint64_t upper);

static int walk_leaf(struct batch *b, const uint8_t *node, uint64_t upper)
{
	struct scrub *s = b->s;

	for (uint32_t i = 0; b->data && i < cpc_node_nritems(node); i++) {
		struct cpc_extent_ref ref = {.owner = b->owner};
		const struct cpc_disk_extent *extent;
		const void *value;
		uint32_t size;

		cpc_node_item(node, i, &ref.key, &value, &size);
		extent = value;
		ref.nr = (uint32_t)cpc_item_len(b->owner, size);
		if (ref.key + ref.nr <= b->start)
			continue;
		ref.bytenr = cpc_get_le64(&extent->bytenr);
		ref.csum = extent->csum;
		cpc_data_batch_add(&s->data, &ref);
		s->result->data_blocks += ref.nr;
		cpc_scrub_advance(s, ref.nr);
		b->blocks += ref.nr;
		if (b->blocks >= SCRUB_BLOCKS) {
			b->next = ref.key + ref.nr;
			return 1;
		}
	}
	b->next = upper;
	return b->nodes >= SCRUB_NODES;
}

static int walk_children(struct batch *b, const uint8_t *node, uint64_t upper)
{
	uint32_t nr = cpc_node_nritems(node);
	int ret = 0;

	for (uint32_t i = 0; !ret && i < nr; i++) {
		struct cpc_node_ptr ptr, next;
		uint64_t key, end = upper;

		cpc_node_child(node, i, &key, &ptr);
		if (i + 1 < nr)
			cpc_node_child(node, i + 1, &end, &next);
		if (end > b->start)
			ret = walk(b, &ptr, end);
	}
	return ret;
}

/* Return: 1: the batch is full, and `next` is where to go on; 0: all of it has been looked at. */
static int walk(struct batch *b, const struct cpc_node_ptr *ptr, uint64_t upper)
{
	uint8_t *node = b->s->node[ptr->level];

	b->nodes++;
	if (!load_node(b->s, ptr, b->owner, node)) {
		b->next = upper;
		return b->nodes >= SCRUB_NODES;
	}
	return ptr->level ? walk_children(b, node, upper) : walk_leaf(b, node, upper);
}

/* The tree's root in the held state. Return: 1; 0: there is no such tree any more. */
static int find_root(struct scrub *s, uint64_t root_key, struct cpc_node_ptr *ptr)
{
	struct cpc_volume_item volume;
	struct cpc_cursor c;
	int ret;

	if (root_key == SCRUB_ROOT || root_key == SCRUB_FREE_LOG) {
		*ptr = root_key == SCRUB_ROOT ? s->hold.super.root : s->hold.super.free_log;
		return 1;
	}
	cpc_cursor_init(&c, s->store->ebc, CPC_TREE_ROOT, &s->hold.super.root);
	ret = cpc_cursor_seek(&c, root_key);
	if (!ret && c.valid && c.key == root_key) {
		ret = 1;
		if (root_key >> CPC_KEY_TYPE_SHIFT == CPC_ITEM_DROP)
			cpc_ptr_decode(ptr, &((const struct cpc_disk_drop *)c.value)->ptr);
		else if (root_key >> CPC_KEY_TYPE_SHIFT == CPC_ITEM_DEAD)
			cpc_ptr_decode(ptr, &((const struct cpc_disk_dead *)c.value)->root);
		else if (cpc_volume_item_decode(&volume, 0, c.value, c.size))
			ret = 0;
		else
			*ptr = volume.root;
	}
	cpc_cursor_release(&c);
	return ret;
}

int cpc_scrub_tree(struct scrub *s, uint64_t root_key, uint64_t owner)
{
	struct batch b = {
	    .s = s,
	    .owner = owner,
	    .data = root_key >> CPC_KEY_TYPE_SHIFT == CPC_ITEM_VOLUME,
	};
	struct cpc_node_ptr root;
	int ret;

	while (b.start != UINT64_MAX && !s->stop) {
		b.nodes = b.blocks = 0;
		b.next = UINT64_MAX;
		cpc_scrub_hold(s);
		ret = find_root(s, root_key, &root);
		if (ret == 1 && !cpc_node_ptr_empty(&root) && !walk(&b, &root, UINT64_MAX))
			b.next = UINT64_MAX;
		cpc_data_batch_run(&s->data);
		cpc_scrub_release(s);
		if (ret < 0)
			return ret == -ENOMEM ? ret : 0;
		b.start = b.next;
	}
	return 0;
}
