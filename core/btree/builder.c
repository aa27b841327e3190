/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Why this way: a commit replaces whole regions of a tree in key order, so the new tree is packed
 * from a stream, as if loaded in bulk, instead of by single inserts with splits. The stream is made
 * of items (level 0) and of nodes of the old tree that stay as they are (any level).
 *
 *	items ----> level 0: [full][cur]
 *	                        | emit: address, checksum, into the cache; final
 *	                        v
 *	old leaf -> level 1: [full][cur]
 *	                        v
 *	old node -> level 2: ...
 *
 * Normal path. Items go to `cur` of level 0 until it is full; then it becomes `full`, and the
 * `full` before it is emitted, which appends a child to level 1, and so on. An old node at level k
 * is appended as a child at level k + 1, after all below has been closed. An address is asked for
 * only when a node is emitted, so no node is ever allocated in vain, and addresses ascend with
 * keys.
 *
 * Slow paths, when a level is closed because an old node follows:
 *  - `cur` under a half and a `full` before it: both share their items evenly. So an insert into a
 *    full leaf gives two halves, and not a full one and a crumb that the next commit splits again.
 *    At the end of the tree they are left as they are: appending packs leaves to the brim.
 *  - `cur` under a quarter: the old node that follows is taken apart and its content appended
 *    (absorb), or that of the old node before it put in front (merge_left), if all fits into one
 *    node. Nodes that are full enough are linked unread.
 * At the end the lowest level that has a single node is the root; a root with one child is not
 * written, and one that was there already is skipped.
 *
 * Rejected: asking for the address when a node is begun (a node that is merged away, or would be
 * a root with one child, has been allocated in vain); merging by an average fill over a window
 * (reads neighbours in the normal path).
 */
#include "btree/btree-internal.h"

#include "lib/hooks.h"

#define HEADER	   ((uint32_t)sizeof(struct cpc_disk_node))
#define ITEM_SIZE  ((uint32_t)sizeof(struct cpc_disk_item))
#define CHILD_SIZE ((uint32_t)sizeof(struct cpc_disk_child))

static int add_child(struct cpc_builder *b, unsigned level, const struct cpc_disk_child *child);

/* --- one node in the making --- */

static inline uint32_t capacity(const struct cpc_builder *b)
{
	return b->nodesize - HEADER;
}

static inline uint32_t used(const struct cpc_builder *b, const struct cpc_build_node *node,
			    unsigned level)
{
	if (level)
		return node->nr * CHILD_SIZE;
	return node->nr * ITEM_SIZE + b->nodesize - node->tail;
}

static inline uint32_t room(const struct cpc_builder *b, const struct cpc_build_node *node,
			    unsigned level)
{
	return capacity(b) - used(b, node, level);
}

static inline struct cpc_disk_item *build_items(const struct cpc_build_node *node)
{
	return (void *)(node->data + HEADER);
}

static inline struct cpc_disk_child *build_children(const struct cpc_build_node *node)
{
	return (void *)(node->data + HEADER);
}

static void node_reset(const struct cpc_builder *b, struct cpc_build_node *node)
{
	node->nr = 0;
	node->tail = b->nodesize;
	node->sums.data_blocks = node->sums.nodes = 0;
}

/* Makes sure that the node has memory. */
static int node_prepare(struct cpc_builder *b, struct cpc_build_node *node)
{
	if (node->data)
		return 0;
	node->data = cpc_alloc_aligned(CPC_BLOCK_SIZE, b->nodesize);
	if (!node->data)
		return -ENOMEM;
	node_reset(b, node);
	return 0;
}

static void node_swap(struct cpc_build_node *a, struct cpc_build_node *b)
{
	struct cpc_build_node tmp = *a;

	*a = *b;
	*b = tmp;
}

static inline uint32_t run_bytes(const struct cpc_disk_item *items, uint32_t from, uint32_t to)
{
	return cpc_item_value_end(&items[from]) - cpc_item_value_start(&items[to - 1]);
}

/* The largest `end` in [from, to] such that items [from, end) need at most `space` bytes. */
static uint32_t run_fit(const struct cpc_disk_item *items, uint32_t from, uint32_t to,
			uint32_t space)
{
	uint32_t lo = from, hi = to;

	while (lo < hi) {
		uint32_t mid = hi - (hi - lo) / 2;

		if (run_bytes(items, from, mid) + (mid - from) * ITEM_SIZE <= space)
			lo = mid;
		else
			hi = mid - 1;
	}
	return lo;
}

/* Copies items that fit. The values are one run of bytes; the offsets all move by the same. */
static void node_copy_items(struct cpc_build_node *node, const uint8_t *src, uint32_t from,
			    uint32_t to)
{
	const struct cpc_disk_item *items = cpc_node_items(src);
	struct cpc_disk_item *dst = build_items(node) + node->nr;
	uint32_t bytes = run_bytes(items, from, to), nr = to - from;
	uint32_t delta = node->tail - cpc_item_value_end(&items[from]);

	node->tail -= bytes;
	memcpy(node->data + node->tail, src + cpc_item_value_start(&items[to - 1]), bytes);
	memcpy(dst, items + from, nr * sizeof(*dst));
	for (uint32_t i = 0; i < nr && delta; i++)
		cpc_put_le16(&dst[i].offset, (uint16_t)(cpc_get_le16(&dst[i].offset) + delta));
	node->nr += nr;
}

static void node_copy_children(struct cpc_build_node *node, const uint8_t *src, uint32_t from,
			       uint32_t to)
{
	memcpy(build_children(node) + node->nr, cpc_node_children(src) + from,
	       (to - from) * CHILD_SIZE);
	node->nr += to - from;
}

/* Appends what fits of slots [from, to). Return: the first slot that did not. */
static uint32_t node_append(const struct cpc_builder *b, struct cpc_build_node *node,
			    unsigned level, const uint8_t *src, uint32_t from, uint32_t to)
{
	uint32_t space = room(b, node, level);
	struct cpc_node_sums sums;

	if (level)
		to = (uint32_t)cpc_min_u64(to, from + space / CHILD_SIZE);
	else
		to = run_fit(cpc_node_items(src), from, to, space);
	if (to == from)
		return from;
	cpc_node_sum(src, b->owner, level, from, to, &sums);
	node->sums.data_blocks += sums.data_blocks;
	node->sums.nodes += sums.nodes;
	if (level)
		node_copy_children(node, src, from, to);
	else
		node_copy_items(node, src, from, to);
	return to;
}

/* Takes away all slots from `nr` on. */
static void node_truncate(const struct cpc_builder *b, struct cpc_build_node *node, unsigned level,
			  uint32_t nr)
{
	struct cpc_node_sums sums;

	cpc_node_sum(node->data, b->owner, level, nr, node->nr, &sums);
	node->sums.data_blocks -= sums.data_blocks;
	node->sums.nodes -= sums.nodes;
	node->nr = nr;
	if (level == 0)
		node->tail = nr ? cpc_item_value_start(&build_items(node)[nr - 1]) : b->nodesize;
}

/* Slots [from, nr) of `left` followed by all of `cur` become the new `cur`. */
static int node_prepend(struct cpc_builder *b, struct cpc_build_node *cur, unsigned level,
			const uint8_t *left, uint32_t from, uint32_t nr)
{
	int ret = node_prepare(b, &b->spare);

	if (ret)
		return ret;
	node_reset(b, &b->spare);
	node_append(b, &b->spare, level, left, from, nr);
	node_append(b, &b->spare, level, cur->data, 0, cur->nr);
	cpc_assert(b->spare.nr == nr - from + cur->nr);
	node_swap(cur, &b->spare);
	return 0;
}

/* --- emitting --- */

/* Completes the bytes but for what the cache fills in: the number of items, zeroes between. */
static void complete(const struct cpc_build_node *node, unsigned level)
{
	struct cpc_disk_node *header = (void *)node->data;
	uint32_t end = HEADER + node->nr * (level ? CHILD_SIZE : ITEM_SIZE);

	cpc_put_le32(&header->nritems, node->nr);
	memset(node->data + end, 0, node->tail - end);
}

/* Gives a node its address and hands its memory to the cache. The node is empty afterwards. */
static int node_write(struct cpc_builder *b, struct cpc_build_node *node, unsigned level,
		      struct cpc_node_ptr *ptr)
{
	struct cpc_node_sums sums = node->sums;
	struct cpc_eb *eb;
	uint64_t bytenr[2];
	int ret;

	if (sums.nodes >= UINT32_MAX)
		return -EUCLEAN;
	ret = b->txn->alloc_node(b->txn->ctx, bytenr);
	if (ret)
		return ret;
	complete(node, level);
	ret = cpc_eb_alloc_data(b->txn->cache, bytenr, b->owner, (uint8_t)level, b->txn->transid,
				node->data, &eb);
	if (ret)
		return ret;
	node->data = NULL;
	node_reset(b, node);
	ret = cpc_eb_finish(eb, ptr);
	cpc_eb_put(eb);
	ptr->data_blocks = sums.data_blocks;
	ptr->nodes = (uint32_t)sums.nodes + 1;
	return ret;
}

static int emit(struct cpc_builder *b, struct cpc_build_node *node, unsigned level)
{
	uint64_t key = cpc_node_key(node->data, level, 0);
	struct cpc_disk_child child;
	struct cpc_node_ptr ptr;
	int ret = node_write(b, node, level, &ptr);

	if (ret)
		return ret;
	cpc_put_le64(&child.key, key);
	cpc_ptr_encode(&child.ptr, &ptr);
	return add_child(b, level + 1, &child);
}

/* `cur` takes no more: the node before it is final, `cur` steps back, a fresh one comes. */
static int advance(struct cpc_builder *b, unsigned level)
{
	struct cpc_build_level *lv = &b->level[level];
	int ret = 0;

	if (lv->full.nr)
		ret = emit(b, &lv->full, level);
	if (ret)
		return ret;
	node_swap(&lv->full, &lv->cur);
	return node_prepare(b, &lv->cur);
}

/* Makes room for `bytes` in `cur` of a level. */
static int make_room(struct cpc_builder *b, unsigned level, uint32_t bytes)
{
	int ret;

	if (level > CPC_MAX_LEVEL)
		return -EFBIG;
	ret = node_prepare(b, &b->level[level].cur);
	if (ret || room(b, &b->level[level].cur, level) >= bytes)
		return ret;
	return advance(b, level);
}

/* Appends slots of a node that is not changed meanwhile. */
static int add_run(struct cpc_builder *b, unsigned level, const void *src, uint32_t from,
		   uint32_t to)
{
	int ret = 0;

	if (level > CPC_MAX_LEVEL)
		return -EFBIG;
	ret = node_prepare(b, &b->level[level].cur);
	while (!ret) {
		from = node_append(b, &b->level[level].cur, level, src, from, to);
		if (from == to)
			break;
		ret = advance(b, level);
	}
	return ret;
}

static int add_child(struct cpc_builder *b, unsigned level, const struct cpc_disk_child *child)
{
	struct cpc_build_node *cur;
	int ret = make_room(b, level, CHILD_SIZE);

	if (ret)
		return ret;
	cur = &b->level[level].cur;
	build_children(cur)[cur->nr++] = *child;
	cur->sums.data_blocks += cpc_get_le64(&child->ptr.data_blocks);
	cur->sums.nodes += cpc_get_le32(&child->ptr.nodes);
	return 0;
}

/* --- closing a level --- */

/* Size of a slot and its value. */
static uint32_t slot_bytes(const struct cpc_build_node *node, unsigned level, uint32_t slot)
{
	return level ? CHILD_SIZE : ITEM_SIZE + cpc_get_le16(&build_items(node)[slot].size);
}

/* Moves the last slots of `full` to `cur` as long as that makes them more equal. */
static int share(struct cpc_builder *b, unsigned level)
{
	struct cpc_build_level *lv = &b->level[level];
	uint32_t left = used(b, &lv->full, level), right = used(b, &lv->cur, level);
	uint32_t keep = lv->full.nr;
	int ret;

	while (keep > 1) {
		uint32_t bytes = slot_bytes(&lv->full, level, keep - 1);

		if (right + bytes >= left)
			break;
		left -= bytes;
		right += bytes;
		keep--;
	}
	if (keep == lv->full.nr)
		return 0;
	ret = node_prepend(b, &lv->cur, level, lv->full.data, keep, lv->full.nr);
	if (!ret)
		node_truncate(b, &lv->full, level, keep);
	return ret;
}

/* The node linked just before `cur`, if it is one of the old tree under the same parent. */
static bool left_neighbour(const struct cpc_builder *b, unsigned level, struct cpc_child *child)
{
	const struct cpc_build_node *up;

	if (level == CPC_MAX_LEVEL)
		return false;
	up = &b->level[level + 1].cur;
	if (up->nr == 0)
		return false;
	cpc_node_child(up->data, up->nr - 1, &child->key, &child->ptr);
	child->upper = cpc_node_key(b->level[level].cur.data, level, 0);
	child->exact = true;
	return child->ptr.generation < b->txn->transid;
}

/* Puts the content of the old left neighbour in front of `cur` if both fit into one node. */
static int merge_left(struct cpc_builder *b, unsigned level)
{
	struct cpc_build_node *cur = &b->level[level].cur;
	struct cpc_child left;
	struct cpc_eb *eb;
	int ret;

	if (!left_neighbour(b, level, &left))
		return 0;
	ret = cpc_btree_read_sums(b->txn->cache, b->owner, &left, &eb);
	if (ret)
		return ret;
	if (cpc_node_used(eb->data, b->nodesize) <= room(b, cur, level)) {
		ret = node_prepend(b, cur, level, eb->data, 0, cpc_node_nritems(eb->data));
		if (!ret) {
			struct cpc_build_node *up = &b->level[level + 1].cur;

			node_truncate(b, up, level + 1, up->nr - 1);
			ret = b->txn->free_node(b->txn->ctx, &left.ptr);
		}
	}
	cpc_eb_put(eb);
	return ret;
}

static int close_level(struct cpc_builder *b, unsigned level, bool last)
{
	struct cpc_build_level *lv = &b->level[level];
	uint32_t bytes;
	int ret = 0;

	if (lv->cur.nr == 0)
		return 0;
	bytes = used(b, &lv->cur, level);
	if (lv->full.nr) {
		if (!last && bytes < capacity(b) / 2)
			ret = share(b, level);
		if (!ret)
			ret = emit(b, &lv->full, level);
	} else if (bytes < capacity(b) / 4) {
		ret = merge_left(b, level);
	}
	return ret ? ret : emit(b, &lv->cur, level);
}

/* --- items --- */

/* Room for one item in `cur` of level 0 and its header. Return: NULL, *err is set. */
static void *new_item(struct cpc_builder *b, uint64_t key, uint32_t size, int *err)
{
	struct cpc_build_node *cur = &b->level[0].cur;
	struct cpc_disk_item *item;

	*err = make_room(b, 0, ITEM_SIZE + size);
	if (*err)
		return NULL;
	cur->tail -= size;
	item = &build_items(cur)[cur->nr++];
	cpc_put_le64(&item->key, key);
	cpc_put_le16(&item->offset, (uint16_t)cur->tail);
	cpc_put_le16(&item->size, (uint16_t)size);
	return cur->data + cur->tail;
}

static int flush_extent(struct cpc_builder *b)
{
	struct cpc_build_extent *e = &b->extent;
	struct cpc_disk_extent *disk;
	int err;

	if (e->nr == 0)
		return 0;
	disk = new_item(b, e->key, cpc_extent_value_size(e->nr), &err);
	if (!disk)
		return err;
	cpc_put_le64(&disk->bytenr, e->bytenr);
	cpc_put_le64(&disk->birth, e->birth);
	memcpy(disk->csum, e->csum, e->nr * sizeof(e->csum[0]));
	b->level[0].cur.sums.data_blocks += e->nr;
	e->nr = 0;
	return 0;
}

static bool extent_continues(const struct cpc_build_extent *e, uint64_t key, uint64_t bytenr,
			     uint64_t birth, uint32_t nr)
{
	return e->nr && e->key + e->nr == key && e->birth == birth &&
	       e->bytenr + ((uint64_t)e->nr << CPC_BLOCK_SHIFT) == bytenr &&
	       e->nr + nr <= CPC_EXTENT_MAX_BLOCKS;
}

int cpc_builder_extent(struct cpc_builder *b, uint64_t key, uint64_t bytenr, uint64_t birth,
		       const cpc_le32 *csum, uint32_t nr)
{
	struct cpc_build_extent *e = &b->extent;

	if (!extent_continues(e, key, bytenr, birth, nr)) {
		int ret = flush_extent(b);

		if (ret)
			return ret;
		e->key = key;
		e->bytenr = bytenr;
		e->birth = birth;
	}
	memcpy(e->csum + e->nr, csum, nr * sizeof(*csum));
	e->nr += nr;
	return 0;
}

int cpc_builder_item(struct cpc_builder *b, uint64_t key, const void *value, uint32_t size)
{
	const struct cpc_disk_extent *disk = value;
	void *dst;
	int err;

	if (cpc_owner_maps_data(b->owner))
		return cpc_builder_extent(b, key, cpc_get_le64(&disk->bytenr),
					  cpc_get_le64(&disk->birth), disk->csum,
					  (uint32_t)cpc_item_len(b->owner, size));
	dst = new_item(b, key, size, &err);
	if (dst)
		memcpy(dst, value, size);
	return err;
}

static int item_of(struct cpc_builder *b, const void *leaf, uint32_t slot)
{
	const void *value;
	uint64_t key;
	uint32_t size;

	cpc_node_item(leaf, slot, &key, &value, &size);
	return cpc_builder_item(b, key, value, size);
}

/* The first and the last item of the run may continue what stands beside it. */
static int extents_of(struct cpc_builder *b, const void *leaf, uint32_t from, uint32_t to)
{
	int ret = item_of(b, leaf, from++);

	if (ret || from == to)
		return ret;
	ret = flush_extent(b);
	if (!ret && from + 1 < to)
		ret = add_run(b, 0, leaf, from, to - 1);
	return ret ? ret : item_of(b, leaf, to - 1);
}

int cpc_builder_items(struct cpc_builder *b, const void *leaf, uint32_t from, uint32_t to)
{
	if (from == to)
		return 0;
	if (cpc_owner_maps_data(b->owner))
		return extents_of(b, leaf, from, to);
	return add_run(b, 0, leaf, from, to);
}

/* --- old nodes --- */

static bool anything_open(const struct cpc_builder *b, unsigned level)
{
	if (b->extent.nr)
		return true;
	for (unsigned i = 0; i <= level; i++) {
		if (b->level[i].cur.nr)
			return true;
	}
	return false;
}

/* Bytes that level `level` will hold at least when all below it has been closed. */
static uint32_t used_when_closed(const struct cpc_builder *b, unsigned level)
{
	const struct cpc_build_node *cur = &b->level[level].cur;
	uint32_t bytes = cur->data ? used(b, cur, level) : 0;

	if (level == 0)
		return bytes + (b->extent.nr ? ITEM_SIZE + cpc_extent_value_size(b->extent.nr) : 0);
	return bytes + (anything_open(b, level - 1) ? 2 * CHILD_SIZE : 0);
}

static int absorb_children(struct cpc_builder *b, const struct cpc_child *child, const void *node)
{
	uint32_t nr = cpc_node_nritems(node);
	int ret;

	if (child->ptr.level)
		ret = cpc_builder_link(b, node, child->ptr.level, 0, nr, child->upper);
	else
		ret = cpc_builder_items(b, node, 0, nr);
	return ret ? ret : b->txn->free_node(b->txn->ctx, &child->ptr);
}

/* Appends the content of an old node when what stands before it is small and both fit into one.
 * Return: 1 done, 0 not, negative errno. */
static int absorb(struct cpc_builder *b, const struct cpc_child *child)
{
	unsigned level = child->ptr.level;
	uint32_t before = used_when_closed(b, level);
	struct cpc_eb *eb;
	int ret;

	if (b->level[level].full.nr || before >= capacity(b) / 4)
		return 0;
	ret = cpc_btree_read_sums(b->txn->cache, b->owner, child, &eb);
	if (ret)
		return ret;
	if (before + cpc_node_used(eb->data, b->nodesize) <= capacity(b)) {
		ret = absorb_children(b, child, eb->data);
		ret = ret ? ret : 1;
	}
	cpc_eb_put(eb);
	return ret;
}

static int close_up_to(struct cpc_builder *b, unsigned level)
{
	int ret = flush_extent(b);

	for (unsigned i = 0; i <= level && !ret; i++)
		ret = close_level(b, i, false);
	return ret;
}

int cpc_builder_link(struct cpc_builder *b, const void *node, unsigned level, uint32_t from,
		     uint32_t to, uint64_t upper)
{
	while (from < to && anything_open(b, level - 1)) {
		struct cpc_child child;
		int ret;

		cpc_node_get_child(node, from, upper, &child);
		ret = absorb(b, &child);
		if (ret < 0)
			return ret;
		from += (uint32_t)ret;
		if (ret == 0)
			ret = close_up_to(b, level - 1);
		if (ret < 0)
			return ret;
	}
	return from < to ? add_run(b, level, node, from, to) : 0;
}

/* --- the end --- */

static bool anything_above(const struct cpc_builder *b, unsigned level)
{
	for (unsigned i = level + 1; i <= CPC_MAX_LEVEL; i++) {
		if (b->level[i].cur.nr)
			return true;
	}
	return false;
}

/* Steps down from a would-be root as long as it is an old node with a single child. */
static int collapse(struct cpc_builder *b, struct cpc_child *root)
{
	int ret = 0;

	while (!ret && root->ptr.level && root->ptr.generation < b->txn->transid) {
		struct cpc_node_ptr old = root->ptr;
		struct cpc_eb *eb;
		bool single;

		ret = cpc_btree_read_sums(b->txn->cache, b->owner, root, &eb);
		if (ret)
			return ret;
		single = cpc_node_nritems(eb->data) == 1;
		if (single)
			cpc_node_get_child(eb->data, 0, root->upper, root);
		cpc_eb_put(eb);
		if (!single)
			break;
		ret = b->txn->free_node(b->txn->ctx, &old);
	}
	return ret;
}

static int finish_root(struct cpc_builder *b, unsigned level, struct cpc_node_ptr *root)
{
	struct cpc_build_node *cur = &b->level[level].cur;
	struct cpc_child child;
	int ret;

	if (level == 0 || cur->nr > 1)
		return node_write(b, cur, level, root);
	cpc_node_child(cur->data, 0, &child.key, &child.ptr);
	child.upper = UINT64_MAX;
	child.exact = true;
	ret = collapse(b, &child);
	*root = child.ptr;
	return ret;
}

int cpc_builder_finish(struct cpc_builder *b, struct cpc_node_ptr *root)
{
	int ret = flush_extent(b);

	memset(root, 0, sizeof(*root));
	for (unsigned level = 0; level <= CPC_MAX_LEVEL && !ret; level++) {
		struct cpc_build_level *lv = &b->level[level];

		if (anything_above(b, level) || lv->full.nr)
			ret = close_level(b, level, true);
		else if (lv->cur.nr)
			return finish_root(b, level, root);
		else
			return 0;
	}
	return ret ? ret : -EFBIG;
}

/* --- life --- */

void cpc_builder_init(struct cpc_builder *b, struct cpc_tree_txn *txn, uint64_t owner)
{
	memset(b, 0, sizeof(*b));
	b->txn = txn;
	b->owner = owner;
	b->nodesize = cpc_eb_geometry(txn->cache)->nodesize;
}

void cpc_builder_destroy(struct cpc_builder *b)
{
	for (unsigned level = 0; level <= CPC_MAX_LEVEL; level++) {
		cpc_free(b->level[level].full.data);
		cpc_free(b->level[level].cur.data);
	}
	cpc_free(b->spare.data);
}
