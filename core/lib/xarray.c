/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Why this way: the caches look up every block of every request here, so a lookup reads one word
 * of each level and nothing else. The root word holds the number of levels beside the address, and
 * a slot's level says whether it holds a node or an entry: no tag bits, no header to read.
 *
 *	root -> node/levels
 *		level 2:  mask[NR_MARKS], slot[64]
 *		level 1:  mask[NR_MARKS], slot[64]
 *		level 0:  mask[NR_MARKS], slot[64] -> entries
 *
 * "Present" is one of the masks, kept upward like a mark, so that walking over all entries and
 * over marked ones is the same code, and "node empty" is one comparison with 0. Nodes have no
 * parent pointer: a writer remembers the path it came down.
 *
 * Normal path. Store and erase descend once, change the slot, and go up as long as a mask
 * becomes non-zero or zero. Slow paths: store without a leaf first makes sure that all nodes it
 * needs are in reserve (only this can fail), then raises the root and hangs in nodes; erase
 * unhooks empty nodes and lowers the root.
 *
 * Readers without the lock. Each word is atomic, one writer changes it; slots and root are
 * published with release. A node taken out of the tree is not changed any more, except that a root
 * that was lowered still points to its only child, through which a late reader reaches the living
 * tree. Every other node is empty when it leaves. A reader may find a mask's bit whose slot is
 * NULL: it goes on with the next slot.
 *
 * Rejected: entries in the root word for index 0 alone (a special case in each function); a count
 * in each node (the present mask tells); compressed paths (less memory for single far keys, a
 * header to read at each level, and a second way to split).
 */
#include "lib/xarray.h"

#include "lib/epoch.h"
#include "lib/hooks.h"

#define SLOT_SHIFT 6
#define NR_SLOTS   (1u << SLOT_SHIFT)
#define SLOT_MASK  (NR_SLOTS - 1)
#define MAX_LEVELS ((64 + SLOT_SHIFT - 1) / SLOT_SHIFT)

/* The root word: nodes are aligned to 16, the low bits hold the number of levels. */
#define LEVELS_MASK ((uintptr_t)15)
#define NODE_ALIGN  16

/* The highest root above one with a single level, and a whole branch below it. */
#define MAX_NODES_PER_STORE ((MAX_LEVELS - 1) + (MAX_LEVELS - 1))

struct cpc_xa_node {
	/* Atomic, written under the lock. */
	_Atomic(uint64_t) mask[CPC_XA_NR_MARKS];
	_Atomic(void *) slot[NR_SLOTS];
	struct cpc_epoch_entry retired; /* links the spare list, too */
};

_Static_assert(sizeof(struct cpc_xa_node) <= CPC_XA_NODE_SIZE, "node size");
_Static_assert(MAX_LEVELS <= LEVELS_MASK, "levels do not fit into the root word");
_Static_assert(CPC_MARK_NONE == 0, "mask 0 is the present mask");

/* The nodes from the root (levels - 1) down to a leaf (0), along one index. */
struct path {
	struct cpc_xa_node *node[MAX_LEVELS];
	unsigned int levels;
};

/* Words of a node */

static inline unsigned int offset_of(uint64_t index, unsigned int level)
{
	return (unsigned int)(index >> (level * SLOT_SHIFT)) & SLOT_MASK;
}

static inline uint64_t bit_of(uint64_t index, unsigned int level)
{
	return UINT64_C(1) << offset_of(index, level);
}

static inline void *slot_get(const struct cpc_xa_node *node, unsigned int offset)
{
	return atomic_load_explicit(&node->slot[offset], memory_order_acquire);
}

static inline void slot_set(struct cpc_xa_node *node, unsigned int offset, void *value)
{
	atomic_store_explicit(&node->slot[offset], value, memory_order_release);
}

static inline uint64_t mask_get(const struct cpc_xa_node *node, unsigned int mark)
{
	return atomic_load_explicit(&node->mask[mark], memory_order_relaxed);
}

static inline void mask_put(struct cpc_xa_node *node, unsigned int mark, uint64_t mask)
{
	atomic_store_explicit(&node->mask[mark], mask, memory_order_relaxed);
}

/* Root */

static inline struct cpc_xa_node *root_get(const struct cpc_xarray *xa, unsigned int *levels)
{
	uintptr_t root = atomic_load_explicit(&xa->root, memory_order_acquire);

	*levels = (unsigned int)(root & LEVELS_MASK);
	return (struct cpc_xa_node *)(root & ~LEVELS_MASK);
}

static void root_put(struct cpc_xarray *xa, struct cpc_xa_node *node, unsigned int levels)
{
	atomic_store_explicit(&xa->root, (uintptr_t)node | levels, memory_order_release);
}

/* Says whether a tree of that many levels has a place for the index; none has one if 0. */
static inline bool index_fits(uint64_t index, unsigned int levels)
{
	return levels == MAX_LEVELS || (levels > 0 && index >> (levels * SLOT_SHIFT) == 0);
}

static unsigned int levels_for(uint64_t index)
{
	return index ? (63u - (unsigned int)__builtin_clzll(index)) / SLOT_SHIFT + 1 : 1;
}

/* Nodes */

static void nodes_changed(struct cpc_xarray *xa, ssize_t by)
{
	size_t nr = atomic_load_explicit(&xa->nr_nodes, memory_order_relaxed);

	atomic_store_explicit(&xa->nr_nodes, nr + (size_t)by, memory_order_relaxed);
}

static void node_free(struct cpc_epoch_entry *entry)
{
	cpc_free(cpc_container_of(entry, struct cpc_xa_node, retired));
}

static void node_retire(struct cpc_xarray *xa, struct cpc_xa_node *node)
{
	nodes_changed(xa, -1);
	cpc_epoch_retire(&node->retired, node_free);
}

static void spare_push(struct cpc_xarray *xa, struct cpc_xa_node *node)
{
	node->retired.next = xa->spare ? &xa->spare->retired : NULL;
	xa->spare = node;
	xa->nr_spare++;
}

static struct cpc_xa_node *spare_pop(struct cpc_xarray *xa)
{
	struct cpc_xa_node *node = xa->spare;
	struct cpc_epoch_entry *next;

	cpc_assert(node);
	next = node->retired.next;
	xa->spare = next ? cpc_container_of(next, struct cpc_xa_node, retired) : NULL;
	xa->nr_spare--;
	return node;
}

static void spare_shrink(struct cpc_xarray *xa, unsigned int nr)
{
	while (xa->nr_spare > nr) {
		cpc_free(spare_pop(xa));
		nodes_changed(xa, -1);
	}
}

/* Brings the reserve to `nr` nodes. Return: 0; -ENOMEM, and it is as before. */
static int spare_fill(struct cpc_xarray *xa, unsigned int nr)
{
	unsigned int before = xa->nr_spare;

	while (xa->nr_spare < nr) {
		struct cpc_xa_node *node = cpc_alloc_aligned(NODE_ALIGN, sizeof(*node));

		if (cpc_unlikely(!node)) {
			spare_shrink(xa, before);
			return -ENOMEM;
		}
		cpc_assert(((uintptr_t)node & LEVELS_MASK) == 0);
		memset(node, 0, sizeof(*node));
		spare_push(xa, node);
		nodes_changed(xa, 1);
	}
	return 0;
}

/* Paths and masks, for writers */

/* Follows the index down. Returns the lowest level reached (0: a leaf), MAX_LEVELS if none. */
static unsigned int descend(const struct cpc_xarray *xa, uint64_t index, struct path *path)
{
	struct cpc_xa_node *node = root_get(xa, &path->levels);
	unsigned int level = path->levels;

	if (!index_fits(index, level))
		return MAX_LEVELS;
	while (node) {
		path->node[--level] = node;
		if (level == 0)
			break;
		node = slot_get(node, offset_of(index, level));
	}
	return level;
}

/* Sets the mark's bit in the slot at `level` and in those above it. */
static void mask_set_up(const struct path *path, uint64_t index, unsigned int level,
			unsigned int mark)
{
	for (; level < path->levels; level++) {
		uint64_t mask = mask_get(path->node[level], mark);

		if (mask & bit_of(index, level))
			break;
		mask_put(path->node[level], mark, mask | bit_of(index, level));
	}
}

/* Clears the mark's bit at `level`, and above as far as nothing else below has it. */
static void mask_clear_up(const struct path *path, uint64_t index, unsigned int level,
			  unsigned int mark)
{
	for (; level < path->levels; level++) {
		uint64_t mask = mask_get(path->node[level], mark);

		if (!(mask & bit_of(index, level)))
			break;
		mask &= ~bit_of(index, level);
		mask_put(path->node[level], mark, mask);
		if (mask)
			break;
	}
}

static void clear_marks(const struct path *path, uint64_t index)
{
	for (unsigned int mark = CPC_MARK_NONE + 1; mark < CPC_XA_NR_MARKS; mark++)
		mask_clear_up(path, index, 0, mark);
}

/* Life */

void cpc_xa_init(struct cpc_xarray *xa)
{
	atomic_init(&xa->root, 0);
	atomic_init(&xa->nr_nodes, 0);
	xa->spare = NULL;
	xa->nr_spare = 0;
}

static void retire_below(struct cpc_xarray *xa, struct cpc_xa_node *node, unsigned int level)
{
	if (level > 0)
		for (uint64_t left = mask_get(node, CPC_MARK_NONE); left; left &= left - 1)
			retire_below(xa, slot_get(node, (unsigned int)__builtin_ctzll(left)),
				     level - 1);
	node_retire(xa, node);
}

void cpc_xa_destroy(struct cpc_xarray *xa)
{
	unsigned int levels;
	struct cpc_xa_node *root = root_get(xa, &levels);

	root_put(xa, NULL, 0);
	if (root)
		retire_below(xa, root, levels - 1);
	cpc_xa_drop_spare(xa);
	cpc_assert(cpc_xa_nodes(xa) == 0);
}

/* Store */

/* Puts new roots above the old one until there are `levels`; an empty tree gets just one. */
static void raise_root(struct cpc_xarray *xa, unsigned int levels)
{
	unsigned int level;
	struct cpc_xa_node *node = root_get(xa, &level);

	if (!node)
		node = spare_pop(xa);
	else
		for (; level < levels; level++) {
			struct cpc_xa_node *above = spare_pop(xa);

			slot_set(above, 0, node);
			for (unsigned int mark = 0; mark < CPC_XA_NR_MARKS; mark++)
				mask_put(above, mark, mask_get(node, mark) != 0);
			node = above;
		}
	root_put(xa, node, levels);
}

/*
 * Makes a path to the leaf of the index. `level` is what descend() returned, not 0.
 * Return: 0; -ENOMEM, and nothing has changed.
 */
static int add_path(struct cpc_xarray *xa, uint64_t index, struct path *path, unsigned int level)
{
	unsigned int nr = level;

	if (level == MAX_LEVELS) {
		unsigned int levels = levels_for(index);

		nr = (path->levels ? levels - path->levels : 1) + levels - 1;
		if (spare_fill(xa, nr))
			return -ENOMEM;
		raise_root(xa, levels);
		path->node[levels - 1] = root_get(xa, &path->levels);
		level = levels - 1;
	} else if (spare_fill(xa, nr)) {
		return -ENOMEM;
	}
	for (; level > 0; level--) {
		path->node[level - 1] = spare_pop(xa);
		slot_set(path->node[level], offset_of(index, level), path->node[level - 1]);
	}
	return 0;
}

int cpc_xa_store(struct cpc_xarray *xa, uint64_t index, void *entry, void **old)
{
	struct path path;
	unsigned int level;
	void *before;

	cpc_assert(entry && ((uintptr_t)entry & 3) == 0);
	level = descend(xa, index, &path);
	if (level && cpc_unlikely(add_path(xa, index, &path, level)))
		return -ENOMEM;
	before = slot_get(path.node[0], offset_of(index, 0));
	if (before)
		clear_marks(&path, index);
	slot_set(path.node[0], offset_of(index, 0), entry);
	if (!before)
		mask_set_up(&path, index, 0, CPC_MARK_NONE);
	if (old)
		*old = before;
	return 0;
}

int cpc_xa_prealloc(struct cpc_xarray *xa)
{
	return spare_fill(xa, MAX_NODES_PER_STORE);
}

void cpc_xa_drop_spare(struct cpc_xarray *xa)
{
	spare_shrink(xa, 0);
}

/* Erase */

/* Takes roots away that have a child in slot 0 only. */
static void lower_root(struct cpc_xarray *xa)
{
	unsigned int levels;
	struct cpc_xa_node *root = root_get(xa, &levels);

	while (levels > 1 && mask_get(root, CPC_MARK_NONE) == 1) {
		struct cpc_xa_node *child = slot_get(root, 0);

		root_put(xa, child, --levels);
		node_retire(xa, root);
		root = child;
	}
}

/* Unhooks the nodes of a path that have become empty. Returns the number of levels that have. */
static unsigned int unhook_empty(struct cpc_xarray *xa, const struct path *path, uint64_t index)
{
	unsigned int level = 0;

	while (mask_get(path->node[level], CPC_MARK_NONE) == 0) {
		if (++level == path->levels) {
			root_put(xa, NULL, 0);
			break;
		}
		slot_set(path->node[level], offset_of(index, level), NULL);
	}
	return level;
}

void *cpc_xa_erase(struct cpc_xarray *xa, uint64_t index)
{
	struct path path;
	unsigned int empty;
	void *entry;

	if (descend(xa, index, &path))
		return NULL;
	entry = slot_get(path.node[0], offset_of(index, 0));
	if (!entry)
		return NULL;
	slot_set(path.node[0], offset_of(index, 0), NULL);
	clear_marks(&path, index);
	mask_clear_up(&path, index, 0, CPC_MARK_NONE);
	empty = unhook_empty(xa, &path, index);
	lower_root(xa);
	while (empty)
		node_retire(xa, path.node[--empty]);
	return entry;
}

/* Marks */

bool cpc_xa_set_mark(struct cpc_xarray *xa, uint64_t index, enum cpc_xa_mark mark)
{
	struct path path;

	cpc_assert(mark > CPC_MARK_NONE && mark < CPC_XA_NR_MARKS);
	if (descend(xa, index, &path))
		return false;
	/* Both masks are in one cache line, the slot would be in another. */
	if (!(mask_get(path.node[0], CPC_MARK_NONE) & ~mask_get(path.node[0], mark) &
	      bit_of(index, 0)))
		return false;
	mask_set_up(&path, index, 0, mark);
	return true;
}

bool cpc_xa_clear_mark(struct cpc_xarray *xa, uint64_t index, enum cpc_xa_mark mark)
{
	struct path path;

	cpc_assert(mark > CPC_MARK_NONE && mark < CPC_XA_NR_MARKS);
	if (descend(xa, index, &path))
		return false;
	if (!(mask_get(path.node[0], mark) & bit_of(index, 0)))
		return false;
	mask_clear_up(&path, index, 0, mark);
	return true;
}

/* Readers */

static inline const struct cpc_xa_node *leaf_of(const struct cpc_xarray *xa, uint64_t index)
{
	unsigned int level;
	const struct cpc_xa_node *node = root_get(xa, &level);

	if (cpc_unlikely(!index_fits(index, level)))
		return NULL;
	while (--level && cpc_likely(node != NULL))
		node = slot_get(node, offset_of(index, level));
	return node;
}

void *cpc_xa_load(const struct cpc_xarray *xa, uint64_t index)
{
	const struct cpc_xa_node *leaf = leaf_of(xa, index);

	return cpc_likely(leaf != NULL) ? slot_get(leaf, offset_of(index, 0)) : NULL;
}

bool cpc_xa_get_mark(const struct cpc_xarray *xa, uint64_t index, enum cpc_xa_mark mark)
{
	const struct cpc_xa_node *leaf = leaf_of(xa, index);

	return leaf && mask_get(leaf, mark) & bit_of(index, 0);
}

bool cpc_xa_marked(const struct cpc_xarray *xa, enum cpc_xa_mark mark)
{
	unsigned int levels;
	const struct cpc_xa_node *root = root_get(xa, &levels);

	return root && mask_get(root, mark);
}

size_t cpc_xa_nodes(const struct cpc_xarray *xa)
{
	return atomic_load_explicit(&xa->nr_nodes, memory_order_relaxed);
}

/* Walks */

/* A place in the tree: `index`, and the nodes that lead to it down to `level`. */
struct walk {
	struct path path;
	unsigned int level;
	uint64_t index;
};

/* Goes to the root. Returns false if nothing at or after the index can be in the tree. */
static bool walk_start(const struct cpc_xarray *xa, uint64_t index, struct walk *w)
{
	struct cpc_xa_node *root = root_get(xa, &w->path.levels);

	if (!index_fits(index, w->path.levels))
		return false;
	w->level = w->path.levels - 1;
	w->path.node[w->level] = root;
	w->index = index;
	return true;
}

/* Goes to the first index after the slot at `level`, up if that is in another node. */
static bool walk_skip(struct walk *w, unsigned int level)
{
	if (level >= w->path.levels)
		return false;
	w->index = ((w->index >> (level * SLOT_SHIFT)) + 1) << (level * SLOT_SHIFT);
	/* An index that has become 0, behind the last one, leads up to the end, too. */
	while (offset_of(w->index, level) == 0) {
		if (++level == w->path.levels)
			return false;
	}
	w->level = level;
	return true;
}

/*
 * Goes to the first leaf slot with the mark at or after the index.
 * Return: the leaf, w->index is the slot's; NULL if there is none up to `max`.
 */
static struct cpc_xa_node *walk_leaf(struct walk *w, uint64_t max, unsigned int mark)
{
	while (w->index <= max) {
		struct cpc_xa_node *node = w->path.node[w->level];
		unsigned int shift = w->level * SLOT_SHIFT;
		uint64_t bits = mask_get(node, mark) >> offset_of(w->index, w->level);
		struct cpc_xa_node *child;
		unsigned int ahead;

		if (!bits) {
			if (!walk_skip(w, w->level + 1))
				return NULL;
			continue;
		}
		ahead = (unsigned int)__builtin_ctzll(bits);
		if (ahead)
			w->index = ((w->index >> shift) + ahead) << shift;
		if (w->level == 0)
			return w->index <= max ? node : NULL;
		child = slot_get(node, offset_of(w->index, w->level));
		if (child)
			w->path.node[--w->level] = child;
		else if (!walk_skip(w, w->level))
			return NULL;
	}
	return NULL;
}

/* The mark's bits of a leaf for indices from `index` to `max`. */
static uint64_t leaf_bits(const struct cpc_xa_node *leaf, uint64_t index, uint64_t max,
			  unsigned int mark)
{
	uint64_t bits = mask_get(leaf, mark) & (~UINT64_C(0) << offset_of(index, 0));

	if ((max >> SLOT_SHIFT) == (index >> SLOT_SHIFT))
		bits &= ~UINT64_C(0) >> (SLOT_MASK - offset_of(max, 0));
	return bits;
}

unsigned int cpc_xa_find_batch(const struct cpc_xarray *xa, uint64_t *index, uint64_t max,
			       enum cpc_xa_mark mark, void **out, uint64_t *out_index,
			       unsigned int nr)
{
	unsigned int found = 0;
	struct cpc_xa_node *leaf;
	uint64_t at = *index;
	struct walk w;

	if (!walk_start(xa, *index, &w))
		return 0;
	while ((leaf = walk_leaf(&w, max, mark))) {
		uint64_t bits = leaf_bits(leaf, w.index, max, mark);

		for (; bits && found < nr; bits &= bits - 1) {
			unsigned int offset = (unsigned int)__builtin_ctzll(bits);

			out[found] = slot_get(leaf, offset);
			if (cpc_unlikely(!out[found]))
				continue;
			at = (w.index & ~(uint64_t)SLOT_MASK) | offset;
			if (out_index)
				out_index[found] = at;
			found++;
		}
		if (found == nr || !walk_skip(&w, 1))
			break;
	}
	if (found)
		*index = at + 1;
	return found;
}

void *cpc_xa_find_marked(const struct cpc_xarray *xa, uint64_t *index, uint64_t max,
			 enum cpc_xa_mark mark)
{
	uint64_t at = *index;
	void *entry;

	return cpc_xa_find_batch(xa, &at, max, mark, &entry, index, 1) ? entry : NULL;
}

void *cpc_xa_find(const struct cpc_xarray *xa, uint64_t *index, uint64_t max)
{
	return cpc_xa_find_marked(xa, index, max, CPC_MARK_NONE);
}

/* Keeps the lowest `nr` (> 0) bits that are set. */
static uint64_t lowest_bits(uint64_t bits, unsigned int nr)
{
	uint64_t rest = bits;

	while (rest && nr--)
		rest &= rest - 1;
	return bits & ~rest;
}

unsigned int cpc_xa_tag_range(struct cpc_xarray *xa, uint64_t *index, uint64_t max,
			      enum cpc_xa_mark from, enum cpc_xa_mark to, unsigned int limit)
{
	struct cpc_xa_node *leaf;
	unsigned int seen = 0;
	struct walk w;

	cpc_assert(limit && to > CPC_MARK_NONE && to < CPC_XA_NR_MARKS);
	if (!walk_start(xa, *index, &w))
		return 0;
	while ((leaf = walk_leaf(&w, max, from))) {
		uint64_t bits = leaf_bits(leaf, w.index, max, from);
		uint64_t before = mask_get(leaf, to);

		bits = lowest_bits(bits, limit - seen);
		mask_put(leaf, to, before | bits);
		if (!before)
			mask_set_up(&w.path, w.index, 1, to);
		seen += (unsigned int)__builtin_popcountll(bits);
		*index = ((w.index | SLOT_MASK) - (unsigned int)__builtin_clzll(bits)) + 1;
		if (seen == limit || !walk_skip(&w, 1))
			break;
	}
	return seen;
}

/* Tests */

static void check_node(const struct cpc_xa_node *node, unsigned int level, uint64_t *nr_entries,
		       size_t *nr_nodes)
{
	uint64_t present = mask_get(node, CPC_MARK_NONE);

	cpc_assert(present != 0);
	for (unsigned int mark = 0; mark < CPC_XA_NR_MARKS; mark++)
		cpc_assert((mask_get(node, mark) & ~present) == 0);
	for (unsigned int i = 0; i < NR_SLOTS; i++) {
		const struct cpc_xa_node *child = slot_get(node, i);

		cpc_assert((child != NULL) == (present >> i & 1));
		if (!child || level == 0)
			continue;
		for (unsigned int mark = 0; mark < CPC_XA_NR_MARKS; mark++)
			cpc_assert((mask_get(child, mark) != 0) == (mask_get(node, mark) >> i & 1));
		check_node(child, level - 1, nr_entries, nr_nodes);
	}
	if (level == 0)
		*nr_entries += (uint64_t)__builtin_popcountll(present);
	++*nr_nodes;
}

uint64_t cpc_xa_check(const struct cpc_xarray *xa)
{
	unsigned int levels, nr_spare = 0;
	const struct cpc_xa_node *root = root_get(xa, &levels);
	uint64_t nr_entries = 0;
	size_t nr_nodes = 0;

	cpc_assert((root != NULL) == (levels > 0));
	cpc_assert(levels <= MAX_LEVELS);
	if (root) {
		check_node(root, levels - 1, &nr_entries, &nr_nodes);
		cpc_assert(levels == 1 || mask_get(root, CPC_MARK_NONE) != 1);
	}
	for (const struct cpc_epoch_entry *e = xa->spare ? &xa->spare->retired : NULL; e;
	     e = e->next)
		nr_spare++;
	cpc_assert(nr_spare == xa->nr_spare);
	cpc_assert(nr_nodes + nr_spare == cpc_xa_nodes(xa));
	return nr_entries;
}
