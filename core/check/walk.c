/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * walk: from a superblock to everything that it names.
 *
 * Why not through the extent-buffer cache: it stops at the first good copy and heals; here each
 * copy is judged and nothing is kept. So a node is read into the buffer of its level and verified
 * against the pointer that named it, then by the tree-checker, then against its place: the keys of
 * its parent, and the sums in the pointer. What does not verify is a finding, its subtree is left
 * out, and the walk goes on beside it.
 *
 * It ends on any image: levels go down by one at each step (tree-checker), and the visitor refuses
 * nodes that have been named before, without which twelve levels of shared children are 70^12.
 *
 * Rejected: collecting all trees first and walking them in parallel (one node a level is the bound
 * on memory); a queue sorted by address (the same).
 */
#include "check/check-internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "lib/hooks.h"

/* --- findings --- */

void cpc_finding(struct cpc_findings *f, const char *fmt, ...)
{
	char line[512];
	va_list ap;

	f->errors++;
	if (!f->report || f->lines >= CPC_CHECK_MAX_LINES)
		return;
	if (++f->lines == CPC_CHECK_MAX_LINES) {
		f->report(f->ctx, "too many findings: the rest is only counted");
		return;
	}
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	f->report(f->ctx, line);
}

/* --- one node --- */

/* A tree that is being walked. */
struct tree {
	struct cpc_pool_walk *walk;
	uint64_t owner;
	bool dropped; /* a subtree from the drop list */
	int (*item)(struct tree *t, uint64_t key, const void *value, uint32_t size);
	uint8_t *node[CPC_MAX_LEVEL + 1]; /* one a level, made when needed */
};

/* A pointer, and where its node must lie: [key, upper), `key` exactly its first key if `exact`. */
struct place {
	struct cpc_node_ptr ptr;
	uint64_t key, upper;
	bool exact;
};

struct sums {
	uint64_t data_blocks, nodes;
	bool complete; /* no part of the subtree was left out */
};

const char *cpc_node_verify(const void *node, const struct cpc_node_ptr *ptr, uint64_t owner,
			    const struct cpc_super *super)
{
	const struct cpc_disk_node *header = node;
	uint32_t csum =
	    cpc_csum_without_field(node, super->nodesize, offsetof(struct cpc_disk_node, csum));

	if (csum != cpc_get_le32(&header->csum))
		return "checksum does not match";
	if (csum != ptr->csum)
		return "not the node that was written last (checksum in its parent)";
	if (memcmp(header->uuid, super->uuid, CPC_UUID_SIZE) != 0)
		return "belongs to another pool";
	if (cpc_get_le64(&header->bytenr) != ptr->bytenr[0])
		return "belongs to another address";
	if (cpc_get_le64(&header->generation) != ptr->generation)
		return "wrong generation";
	if (cpc_get_le64(&header->owner) != owner)
		return "belongs to another tree";
	return header->level == ptr->level ? NULL : "wrong level";
}

static void node_finding(struct tree *t, const struct cpc_node_ptr *ptr, const char *what)
{
	cpc_finding(t->walk->findings, "tree %" PRIu64 ": node at %" PRIu64 " level %u: %s",
		    t->owner, ptr->bytenr[0], ptr->level, what);
}

static const char *read_copy(struct tree *t, const struct cpc_node_ptr *ptr, unsigned copy,
			     uint8_t *buf)
{
	struct cpc_pool_walk *w = t->walk;

	if (cpc_backing_read(w->backing, ptr->bytenr[copy], buf, w->geo->nodesize))
		return "cannot be read";
	return cpc_node_verify(buf, ptr, t->owner, w->super);
}

/* `node` is good content, NULL: there is none. */
static void bad_copy(struct tree *t, const struct cpc_node_ptr *ptr, unsigned copy, const char *why,
		     const uint8_t *node)
{
	struct cpc_fix fix = {
	    .kind = CPC_DAMAGE_NODE,
	    .to = ptr->bytenr[copy],
	    .from = ptr->bytenr[!copy],
	    .len = t->walk->geo->nodesize,
	    .what = why,
	};

	t->walk->nodes_bad++;
	if (node)
		cpc_finding_fix(t->walk->findings, t->walk->fixes, &fix, node,
				"tree %" PRIu64 ": node at %" PRIu64 " level %u, copy %u", t->owner,
				ptr->bytenr[0], ptr->level, copy + 1);
	else
		cpc_finding(t->walk->findings,
			    "tree %" PRIu64 ": node at %" PRIu64 " level %u, copy %u at %" PRIu64
			    ": %s",
			    t->owner, ptr->bytenr[0], ptr->level, copy + 1, ptr->bytenr[copy], why);
}

/* The first good copy goes to `buf`. Return: false: there is none, or it makes no sense. */
static bool read_node(struct tree *t, const struct cpc_node_ptr *ptr, uint8_t *buf)
{
	struct cpc_pool_walk *w = t->walk;
	const char *bad[2] = {NULL, NULL}, *why;
	bool good = false;

	for (unsigned copy = 0; copy < w->geo->copies; copy++) {
		if (good && !w->both_copies)
			break;
		bad[copy] = read_copy(t, ptr, copy, good ? w->second_copy : buf);
		good |= !bad[copy];
	}
	for (unsigned copy = 0; copy < w->geo->copies; copy++) {
		if (bad[copy])
			bad_copy(t, ptr, copy, bad[copy], good ? buf : NULL);
	}
	if (!good)
		return false;
	why = cpc_tree_check_node(buf, w->geo->nodesize, w->geo);
	if (why)
		node_finding(t, ptr, why);
	return !why;
}

static uint64_t slot_key(const struct tree *t, const void *node, unsigned level, uint32_t slot,
			 uint64_t *end)
{
	struct cpc_node_ptr ptr;
	const void *value;
	uint64_t key;
	uint32_t size;

	if (level) {
		cpc_node_child(node, slot, &key, &ptr);
		*end = key + 1;
	} else {
		cpc_node_item(node, slot, &key, &value, &size);
		*end = key + cpc_item_len(t->owner, size);
	}
	return key;
}

static bool check_place(struct tree *t, const struct place *at, const void *node)
{
	uint32_t nr = cpc_node_nritems(node);
	uint64_t end, first = slot_key(t, node, at->ptr.level, 0, &end);

	slot_key(t, node, at->ptr.level, nr - 1, &end);
	if (at->exact && first != at->key) {
		node_finding(t, &at->ptr, "its first key is not its parent's");
		return false;
	}
	if (end > at->upper) {
		node_finding(t, &at->ptr, "its keys overlap its neighbour's");
		return false;
	}
	if (!at->exact && !t->dropped && at->ptr.level && nr == 1)
		node_finding(t, &at->ptr, "a root with a single child");
	return true;
}

static void check_sums(struct tree *t, const struct cpc_node_ptr *ptr, const struct sums *sums)
{
	if (!sums->complete)
		return;
	if (sums->data_blocks != ptr->data_blocks)
		node_finding(t, ptr, "the pointer's number of data blocks is wrong");
	if (sums->nodes != ptr->nodes)
		node_finding(t, ptr, "the pointer's number of nodes is wrong");
}

/* --- one tree --- */

static int walk_node(struct tree *t, const struct place *at, struct sums *sums);

static int walk_leaf(struct tree *t, const void *node, struct sums *sums)
{
	int ret = 0;

	for (uint32_t i = 0; !ret && i < cpc_node_nritems(node); i++) {
		const void *value;
		uint64_t key;
		uint32_t size;

		cpc_node_item(node, i, &key, &value, &size);
		if (t->owner >= CPC_TREE_VOLUME_BASE)
			sums->data_blocks += cpc_item_len(t->owner, size);
		ret = t->item(t, key, value, size);
	}
	return ret;
}

static int walk_children(struct tree *t, const struct place *at, const void *node,
			 struct sums *sums)
{
	uint32_t nr = cpc_node_nritems(node);
	int ret = 0;

	for (uint32_t i = 0; !ret && i < nr; i++) {
		struct place child = {.upper = at->upper, .exact = true};
		struct sums below = {0, 0, true};
		struct cpc_node_ptr next;

		cpc_node_child(node, i, &child.key, &child.ptr);
		if (i + 1 < nr)
			cpc_node_child(node, i + 1, &child.upper, &next);
		ret = walk_node(t, &child, &below);
		sums->data_blocks += below.data_blocks;
		sums->nodes += below.nodes;
		sums->complete &= below.complete;
	}
	return ret;
}

static int walk_node(struct tree *t, const struct place *at, struct sums *sums)
{
	uint8_t **buf = &t->node[at->ptr.level];
	int ret;

	sums->nodes = 1;
	if (!*buf)
		*buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, t->walk->geo->nodesize);
	if (!*buf)
		return -ENOMEM;
	if (!t->walk->visitor->node(t->walk->ctx, t->owner, &at->ptr) ||
	    !read_node(t, &at->ptr, *buf) || !check_place(t, at, *buf)) {
		sums->complete = false;
		if (t->owner == CPC_TREE_FREE_LOG)
			t->walk->free_log_incomplete = true;
		else
			t->walk->incomplete = true;
		return 0;
	}
	ret = at->ptr.level ? walk_children(t, at, *buf, sums) : walk_leaf(t, *buf, sums);
	if (!ret)
		check_sums(t, &at->ptr, sums);
	return ret;
}

static int walk_tree(struct tree *t, const struct cpc_node_ptr *root)
{
	struct place at = {.ptr = *root, .upper = UINT64_MAX};
	struct sums sums = {0, 0, true};
	int ret;

	if (cpc_node_ptr_empty(root))
		return 0;
	ret = walk_node(t, &at, &sums);
	for (unsigned i = 0; i <= CPC_MAX_LEVEL; i++)
		cpc_free(t->node[i]);
	return ret;
}

/* --- the trees below the root tree --- */

static int extent_item(struct tree *t, uint64_t key, const void *value, uint32_t size)
{
	const struct cpc_disk_extent *disk = value;
	struct cpc_extent_ref ref = {
	    .owner = t->owner,
	    .key = key,
	    .bytenr = cpc_get_le64(&disk->bytenr),
	    .birth = cpc_get_le64(&disk->birth),
	    .nr = (uint32_t)cpc_item_len(t->owner, size),
	    .csum = disk->csum,
	    .dropped = t->dropped,
	};

	return t->walk->visitor->extent ? t->walk->visitor->extent(t->walk->ctx, &ref) : 0;
}

/* Blocks of a dead run are mapped by a snapshot and found there. */
static int dead_item(struct tree *t, uint64_t key, const void *value, uint32_t size)
{
	return 0;
}

static int walk_subtree(struct cpc_pool_walk *w, uint64_t owner, const struct cpc_node_ptr *root,
			bool dropped)
{
	struct tree t = {
	    .walk = w,
	    .owner = owner,
	    .dropped = dropped,
	    .item = owner == CPC_TREE_DEAD ? dead_item : extent_item,
	};

	return walk_tree(&t, root);
}

static int volume_item(struct cpc_pool_walk *w, uint64_t id, const void *value, uint32_t size)
{
	struct cpc_volume_item item;
	int ret = 0;

	if (cpc_volume_item_decode(&item, id, value, size)) {
		cpc_finding(w->findings, "volume %" PRIu64 ": its item is damaged", id);
		w->incomplete = true;
		return 0;
	}
	if (id >= w->super->next_volume)
		cpc_finding(w->findings, "volume %" PRIu64 ": its id has not been given out", id);
	if (w->visitor->volume)
		ret = w->visitor->volume(w->ctx, &item);
	return ret ? ret : walk_subtree(w, CPC_TREE_VOLUME_BASE + id, &item.root, false);
}

static int drop_item(struct cpc_pool_walk *w, uint64_t id, const struct cpc_disk_drop *disk)
{
	uint64_t owner = cpc_get_le64(&disk->owner);
	struct cpc_node_ptr ptr;

	cpc_ptr_decode(&ptr, &disk->ptr);
	if (id >= w->super->next_drop)
		cpc_finding(w->findings, "drop item %" PRIu64 ": its number has not been given out",
			    id);
	return walk_subtree(w, owner, &ptr, true);
}

static int dead_bucket(struct cpc_pool_walk *w, const struct cpc_disk_dead *disk)
{
	struct cpc_node_ptr root;

	cpc_ptr_decode(&root, &disk->root);
	return walk_subtree(w, CPC_TREE_DEAD, &root, false);
}

static int root_item(struct tree *t, uint64_t key, const void *value, uint32_t size)
{
	const struct cpc_pool_visitor *v = t->walk->visitor;
	uint64_t id = key & CPC_KEY_ID_MASK;

	switch (key >> CPC_KEY_TYPE_SHIFT) {
	case CPC_ITEM_VOLUME:
		return volume_item(t->walk, id, value, size);
	case CPC_ITEM_GROUP:
		return v->group ? v->group(t->walk->ctx, id, value) : 0;
	case CPC_ITEM_DROP:
		return drop_item(t->walk, id, value);
	case CPC_ITEM_DEAD:
		return dead_bucket(t->walk, value);
	default:
		t->walk->incomplete = true;
		cpc_finding(t->walk->findings, "root tree: item %#" PRIx64 " of an unused type",
			    key);
		return 0;
	}
}

static int free_log_item(struct tree *t, uint64_t key, const void *value, uint32_t size)
{
	const struct cpc_disk_free_log *item = value;
	uint32_t nr = (uint32_t)((size - sizeof(*item)) / sizeof(item->entry[0]));

	return t->walk->visitor->free_log ? t->walk->visitor->free_log(t->walk->ctx, key, item, nr)
					  : 0;
}

int cpc_walk_pool(struct cpc_pool_walk *w)
{
	struct tree root = {.walk = w, .owner = CPC_TREE_ROOT, .item = root_item};
	struct tree log = {.walk = w, .owner = CPC_TREE_FREE_LOG, .item = free_log_item};
	int ret;

	w->nodes_bad = 0;
	w->incomplete = w->free_log_incomplete = false;
	w->second_copy = cpc_alloc_aligned(CPC_BLOCK_SIZE, w->geo->nodesize);
	if (!w->second_copy)
		return -ENOMEM;
	ret = walk_tree(&root, &w->super->root);
	if (!ret)
		ret = walk_tree(&log, &w->super->free_log);
	cpc_free(w->second_copy);
	return ret;
}
