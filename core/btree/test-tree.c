/* SPDX-License-Identifier: BSD-3-Clause */
#include "btree/test-tree.h"

#include <inttypes.h>

#include "lib/hooks.h"

#define POOL_SIZE (16ull << 30)

uint64_t tt_env(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 0) : otherwise;
}

uint64_t tt_random(struct tt *t)
{
	uint64_t x = t->rng += 0x9e3779b97f4a7c15ull;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

uint64_t tt_below(struct tt *t, uint64_t n)
{
	return tt_random(t) % n;
}

/* --- addresses --- */

static uint64_t unit_bytenr(const struct tt *t, unsigned copy, uint32_t unit)
{
	uint64_t index = (uint64_t)copy * TT_NODE_UNITS + unit;

	return (t->geo.data_start << CPC_BLOCK_SHIFT) + index * t->nodesize;
}

static uint32_t unit_of(const struct tt *t, uint64_t bytenr)
{
	uint64_t from = bytenr - (t->geo.data_start << CPC_BLOCK_SHIFT);

	assert_true(from % t->nodesize == 0);
	assert_true(from / t->nodesize < TT_NODE_UNITS);
	return (uint32_t)(from / t->nodesize);
}

/* --- callbacks --- */

static int maybe_fail(struct tt *t)
{
	return ++t->nr_calls == t->fail_at ? t->fail_error : 0;
}

static int alloc_node(void *ctx, uint64_t bytenr[2])
{
	struct tt *t = ctx;
	int ret = maybe_fail(t);

	if (ret)
		return ret;
	for (unsigned i = 0; t->node_state[t->next_unit] != TT_FREE; i++) {
		assert_true(i < TT_NODE_UNITS);
		t->next_unit = (t->next_unit + 1) % TT_NODE_UNITS;
	}
	t->node_state[t->next_unit] = TT_LIVE;
	bytenr[0] = unit_bytenr(t, 0, t->next_unit);
	bytenr[1] = t->dup ? unit_bytenr(t, 1, t->next_unit) : 0;
	t->nr_alloc++;
	return 0;
}

static void retire_node(struct tt *t, const struct cpc_node_ptr *ptr)
{
	uint32_t unit = unit_of(t, ptr->bytenr[0]);

	assert_int_equal(t->node_state[unit], TT_LIVE);
	assert_true(ptr->generation < t->txn.transid);
	t->node_state[unit] = TT_PINNED;
	t->pinned[t->nr_pinned++] = unit;
	t->nr_free++;
}

static int free_node(void *ctx, const struct cpc_node_ptr *ptr)
{
	struct tt *t = ctx;
	int ret = maybe_fail(t);

	if (!ret)
		retire_node(t, ptr);
	return ret;
}

static int free_data(void *ctx, uint64_t bytenr, uint64_t nr_blocks, uint64_t birth)
{
	struct tt *t = ctx;
	uint64_t first = (bytenr >> CPC_BLOCK_SHIFT) - t->data_first;
	int ret = maybe_fail(t);

	if (ret)
		return ret;
	assert_true(birth > 0 && birth <= t->txn.transid);
	assert_true(bytenr >> CPC_BLOCK_SHIFT >= t->data_first);
	assert_true(nr_blocks > 0 && first + nr_blocks <= TT_DATA_BLOCKS);
	for (uint64_t i = first; i < first + nr_blocks; i++) {
		assert_int_equal(t->data_state[i], TT_PINNED);
		t->data_state[i] = TT_FREE;
	}
	t->nr_free_data += nr_blocks;
	return 0;
}

static void drop_node(struct tt *t, const struct cpc_node_ptr *ptr, uint64_t owner)
{
	struct cpc_eb *eb;

	assert_int_equal(cpc_eb_read(t->cache, ptr, owner, &eb), 0);
	for (uint32_t i = 0; i < cpc_node_nritems(eb->data); i++) {
		uint64_t key;

		if (ptr->level) {
			struct cpc_node_ptr child;

			cpc_node_child(eb->data, i, &key, &child);
			drop_node(t, &child, owner);
		} else if (owner >= CPC_TREE_VOLUME_BASE) {
			const struct cpc_disk_extent *e;
			const void *value;
			uint32_t size;

			cpc_node_item(eb->data, i, &key, &value, &size);
			e = value;
			t->nr_calls--;
			assert_int_equal(free_data(t, cpc_get_le64(&e->bytenr),
						   cpc_item_len(owner, size),
						   cpc_get_le64(&e->birth)),
					 0);
		}
	}
	retire_node(t, ptr);
	cpc_eb_put(eb);
}

static int drop_subtree(void *ctx, const struct cpc_node_ptr *ptr, uint64_t owner)
{
	struct tt *t = ctx;
	uint64_t before = t->nr_free;
	int ret = maybe_fail(t);

	if (ret)
		return ret;
	if (t->take_drops == 2 && tt_below(t, 2))
		return 1;
	t->nr_drop++;
	if (t->take_drops == 3)
		return 0;
	t->fail_at += t->fail_at ? 1000000 : 0;
	drop_node(t, ptr, owner);
	t->fail_at -= t->fail_at ? 1000000 : 0;
	assert_int_equal(t->nr_free - before, ptr->nodes);
	return 0;
}

/* --- life --- */

static void *get(size_t nr, size_t size)
{
	void *p = calloc(nr, size);

	assert_non_null(p);
	return p;
}

static void create_pool(struct tt *t)
{
	int ret = cpc_geometry_init(&t->geo, POOL_SIZE, 1u << 20, t->nodesize, t->dup);

	assert_int_equal(ret, 0);
	t->data_first = (unit_bytenr(t, 1, TT_NODE_UNITS - 1) + t->nodesize) >> CPC_BLOCK_SHIFT;
	assert_true(t->data_first + TT_DATA_BLOCKS < t->geo.data_end);
	assert_int_equal(cpc_powercut_create(POOL_SIZE, &t->pc), 0);
	assert_int_equal(cpc_powercut_reopen(t->pc, &t->backing), 0);
	cpc_flush_epoch_init(&t->fe, t->backing, NULL, NULL);
	t->params.backing = t->backing;
	t->params.fe = &t->fe;
	t->params.geo = &t->geo;
	memset(t->params.uuid, 0x5a, sizeof(t->params.uuid));
	t->params.limit = SIZE_MAX;
	t->params.checker = cpc_tree_check_node;
	assert_int_equal(cpc_eb_cache_create(&t->params, &t->cache), 0);
}

void tt_create(struct tt *t, uint32_t nodesize, bool dup, uint64_t owner, uint64_t seed)
{
	memset(t, 0, sizeof(*t));
	t->nodesize = nodesize;
	t->dup = dup;
	t->owner = owner;
	t->rng = seed;
	t->base = owner == CPC_TREE_ROOT ? cpc_root_key(CPC_ITEM_VOLUME, 1) : 100;
	t->slot = get(TT_KEYS, sizeof(*t->slot));
	t->node_state = get(TT_NODE_UNITS, 1);
	t->pinned = get(TT_NODE_UNITS, sizeof(*t->pinned));
	t->data_state = get(TT_DATA_BLOCKS, 1);
	create_pool(t);
	t->txn.transid = 10;
	t->txn.cache = t->cache;
	t->txn.ctx = t;
	t->txn.alloc_node = alloc_node;
	t->txn.free_node = free_node;
	t->txn.free_data = free_data;
}

void tt_destroy(struct tt *t)
{
	cpc_eb_cache_destroy(t->cache);
	cpc_flush_epoch_destroy(&t->fe);
	cpc_backing_close(t->backing);
	cpc_powercut_destroy(t->pc);
	free(t->slot);
	free(t->node_state);
	free(t->pinned);
	free(t->data_state);
}

void tt_reopen(struct tt *t, size_t limit)
{
	assert_int_equal(cpc_eb_sync(t->cache), 0);
	assert_int_equal(cpc_flush_epoch_flush(&t->fe, CPC_FLUSH_COMMIT), 0);
	cpc_eb_cache_destroy(t->cache);
	t->params.limit = limit;
	assert_int_equal(cpc_eb_cache_create(&t->params, &t->cache), 0);
	t->txn.cache = t->cache;
}

/* --- changes --- */

void tt_ops_init(struct tt_ops *ops)
{
	memset(ops, 0, sizeof(*ops));
}

void tt_ops_reset(struct tt_ops *ops)
{
	ops->nr = ops->at = ops->len = 0;
}

void tt_ops_free(struct tt_ops *ops)
{
	free(ops->op);
	free(ops->values);
}

static struct tt_op *new_op(struct tt_ops *ops, uint64_t start, uint64_t end)
{
	struct tt_op *op;

	if (ops->nr == ops->cap) {
		ops->cap = ops->cap ? 2 * ops->cap : 1024;
		ops->op = realloc(ops->op, ops->cap * sizeof(*ops->op));
		assert_non_null(ops->op);
	}
	op = &ops->op[ops->nr++];
	memset(op, 0, sizeof(*op));
	op->start = start;
	op->end = end;
	return op;
}

static uint8_t *new_value(struct tt_ops *ops, struct tt_op *op, uint32_t size)
{
	if (ops->len + size > ops->values_cap) {
		ops->values_cap = 2 * (ops->values_cap + size);
		ops->values = realloc(ops->values, ops->values_cap);
		assert_non_null(ops->values);
	}
	op->value = (uint32_t)ops->len;
	op->size = size;
	ops->len += size;
	memset(ops->values + op->value, 0, size);
	return ops->values + op->value;
}

/* A value of the right kind, which follows from seed and size. */
static void fill_value(const struct tt *t, uint8_t *value, uint64_t seed, uint32_t size)
{
	if (t->owner == CPC_TREE_ROOT) {
		struct cpc_disk_volume *v = (void *)value;

		cpc_put_le64(&v->size, 1 + seed % CPC_VOLUME_SIZE_MAX);
		v->name_len = (uint8_t)(size - sizeof(*v));
		memset(v->name, 'a' + (int)(seed % 26), v->name_len);
	} else {
		struct cpc_disk_free_log *log = (void *)value;
		uint64_t nr = (size - sizeof(*log)) / sizeof(log->entry[0]);

		cpc_put_le64(&log->transid, 1 + seed % 10);
		for (uint64_t i = 0; i < nr; i++) {
			cpc_put_le64(&log->entry[i].block, t->geo.data_start + (seed + i) % 100000);
			cpc_put_le32(&log->entry[i].count, 1 + (uint32_t)(seed % 1000));
		}
	}
}

static uint32_t random_size(struct tt *t)
{
	if (t->owner == CPC_TREE_ROOT)
		return (uint32_t)(sizeof(struct cpc_disk_volume) + 1 + tt_below(t, CPC_NAME_MAX));
	return (uint32_t)(sizeof(struct cpc_disk_free_log) +
			  sizeof(struct cpc_disk_free_entry) * (1 + tt_below(t, 110)));
}

/* A run of free data blocks, index in the data area. */
static uint32_t alloc_data(struct tt *t, uint32_t nr)
{
	uint32_t run = 0;

	for (uint32_t tries = 0; run < nr; tries++) {
		assert_true(tries < 2 * TT_DATA_BLOCKS);
		if (t->next_data == TT_DATA_BLOCKS) {
			t->next_data = 0;
			run = 0;
		}
		run = t->data_state[t->next_data++] == TT_FREE ? run + 1 : 0;
	}
	memset(t->data_state + t->next_data - nr, TT_LIVE, nr);
	return t->next_data - nr;
}

/* Data that the ops unmap waits as PINNED for free_data to say so. */
static void model_remove(struct tt *t, uint64_t at, uint64_t nr)
{
	for (uint64_t i = at; i < at + nr && i < TT_KEYS; i++) {
		if (t->slot[i].block && t->owner >= CPC_TREE_VOLUME_BASE)
			t->data_state[t->slot[i].block - t->data_first] = TT_PINNED;
		memset(&t->slot[i], 0, sizeof(t->slot[i]));
	}
}

void tt_op_remove(struct tt *t, struct tt_ops *ops, uint64_t at, uint64_t nr)
{
	new_op(ops, t->base + at, t->base + at + nr);
	model_remove(t, at, nr);
}

void tt_op_remove_keys(struct tt *t, struct tt_ops *ops, uint64_t start, uint64_t end)
{
	uint64_t from = start > t->base ? start - t->base : 0;
	uint64_t to = end > t->base ? end - t->base : 0;

	new_op(ops, start, end);
	to = cpc_min_u64(to, TT_KEYS);
	if (from < to)
		model_remove(t, from, to - from);
}

static void put_extent(struct tt *t, struct tt_ops *ops, struct tt_op *op, uint64_t at, uint32_t nr)
{
	uint32_t block = alloc_data(t, nr);
	struct cpc_disk_extent *e = (void *)new_value(ops, op, cpc_extent_value_size(nr));
	/* Mostly one birth in a transaction; others stand for data published before it. */
	uint64_t birth = tt_below(t, 20) ? t->txn.transid : 1 + tt_below(t, t->txn.transid);

	cpc_put_le64(&e->bytenr, (t->data_first + block) << CPC_BLOCK_SHIFT);
	cpc_put_le64(&e->birth, birth);
	for (uint32_t i = 0; i < nr; i++) {
		struct tt_slot *slot = &t->slot[at + i];

		slot->block = t->data_first + block + i;
		slot->birth = birth;
		slot->csum = (uint32_t)tt_random(t);
		cpc_put_le32(&e->csum[i], slot->csum);
	}
}

void tt_op_put(struct tt *t, struct tt_ops *ops, uint64_t at, uint32_t nr, uint64_t span)
{
	struct tt_op *op = new_op(ops, t->base + at, t->base + at + span);

	model_remove(t, at, span);
	op->nr = nr;
	if (t->owner >= CPC_TREE_VOLUME_BASE) {
		put_extent(t, ops, op, at, nr);
		return;
	}
	t->slot[at].block = 1 + tt_below(t, 1u << 30);
	t->slot[at].csum = random_size(t);
	fill_value(t, new_value(ops, op, t->slot[at].csum), t->slot[at].block, t->slot[at].csum);
}

/* The value lives in one place that each call overwrites. */
static int next_op(void *ctx, struct cpc_tree_op *op)
{
	struct tt_ops *ops = ctx;
	const struct tt_op *from;

	memset(ops->scratch, 0xee, sizeof(ops->scratch));
	if (ops->at == ops->nr)
		return 0;
	from = &ops->op[ops->at++];
	op->start = from->start;
	op->end = from->end;
	op->value = NULL;
	op->size = 0;
	if (from->nr) {
		memcpy(ops->scratch, ops->values + from->value, from->size);
		op->value = ops->scratch;
		op->size = from->size;
	}
	return 1;
}

int tt_apply(struct tt *t, struct tt_ops *ops)
{
	struct cpc_node_ptr root;
	int ret;

	t->nr_alloc = t->nr_free = t->nr_free_data = t->nr_drop = t->nr_calls = 0;
	t->txn.drop_subtree = t->take_drops ? drop_subtree : NULL;
	ops->at = 0;
	ret = cpc_btree_apply(&t->txn, t->owner, &t->root, next_op, ops, &root);
	if (!ret)
		t->root = root;
	return ret;
}

void tt_unpin(struct tt *t)
{
	for (size_t i = 0; i < t->nr_pinned; i++)
		t->node_state[t->pinned[i]] = TT_FREE;
	t->nr_pinned = 0;
}

/* --- walking --- */

struct walker {
	struct tt *t;
	const struct tt_slot *slot;
	struct tt_walk *walk;
	uint64_t at; /* next slot to compare */
	uint64_t nr[CPC_MAX_LEVEL + 1];
};

static void expect_hole(struct walker *w, uint64_t to)
{
	for (; w->at < to; w->at++)
		assert_true(w->at >= TT_KEYS || w->slot[w->at].block == 0);
}

static void check_extent(struct walker *w, const void *value, uint64_t nr)
{
	const struct cpc_disk_extent *e = value;

	for (uint64_t i = 0; i < nr; i++) {
		const struct tt_slot *slot = &w->slot[w->at + i];

		assert_true(slot->block << CPC_BLOCK_SHIFT ==
			    cpc_get_le64(&e->bytenr) + (i << CPC_BLOCK_SHIFT));
		assert_true(slot->birth == cpc_get_le64(&e->birth));
		assert_true(slot->csum == cpc_get_le32(&e->csum[i]));
	}
	w->walk->data_blocks += nr;
}

static void check_item(struct walker *w, uint64_t key, const void *value, uint32_t size)
{
	uint64_t len = cpc_item_len(w->t->owner, size);
	uint8_t expected[CPC_ITEM_MAX_SIZE] = {0};

	assert_true(key >= w->t->base && key - w->t->base + len <= TT_KEYS);
	expect_hole(w, key - w->t->base);
	if (w->t->owner >= CPC_TREE_VOLUME_BASE) {
		check_extent(w, value, len);
	} else {
		assert_true(w->slot[w->at].csum == size);
		fill_value(w->t, expected, w->slot[w->at].block, size);
		assert_memory_equal(expected, value, size);
	}
	w->at += len;
}

static uint32_t used_bytes(const struct tt *t, const void *node)
{
	const struct cpc_disk_node *header = cpc_node_header(node);
	uint32_t nr = cpc_node_nritems(node), bytes = 0;

	if (header->level)
		return nr * (uint32_t)sizeof(struct cpc_disk_child);
	for (uint32_t i = 0; i < nr; i++) {
		const void *value;
		uint64_t key;
		uint32_t size;

		cpc_node_item(node, i, &key, &value, &size);
		bytes += size + (uint32_t)sizeof(struct cpc_disk_item);
	}
	return bytes;
}

/* Invariant 5 over the children of one node. */
static void count_crumbs(struct walker *w, const void *node)
{
	uint32_t nr = cpc_node_nritems(node), capacity = w->t->nodesize - 64;
	uint32_t *used = get(nr + 1, sizeof(*used));
	bool *fresh = get(nr + 1, sizeof(*fresh));

	for (uint32_t i = 0; i < nr; i++) {
		struct cpc_node_ptr ptr;
		struct cpc_eb *eb;
		uint64_t key;

		cpc_node_child(node, i, &key, &ptr);
		assert_int_equal(cpc_eb_read(w->t->cache, &ptr, w->t->owner, &eb), 0);
		used[i] = used_bytes(w->t, eb->data);
		fresh[i] = ptr.generation == w->t->txn.transid;
		cpc_eb_put(eb);
	}
	for (uint32_t i = 0; i + 1 < nr; i++) {
		w->walk->crumbs_among += fresh[i];
		if (fresh[i] && used[i] < capacity / 4 &&
		    ((i > 0 && used[i - 1] + used[i] <= capacity) ||
		     used[i + 1] + used[i] <= capacity))
			w->walk->crumbs++;
	}
	free(used);
	free(fresh);
}

static void walk_node(struct walker *w, const struct cpc_node_ptr *ptr, const uint64_t *first,
		      uint64_t upper, bool is_root);

static void walk_children(struct walker *w, const void *node, uint64_t upper)
{
	uint32_t nr = cpc_node_nritems(node);

	count_crumbs(w, node);
	for (uint32_t i = 0; i < nr; i++) {
		struct cpc_node_ptr child, next_child;
		uint64_t key, next = upper;

		cpc_node_child(node, i, &key, &child);
		if (i + 1 < nr)
			cpc_node_child(node, i + 1, &next, &next_child);
		assert_true(next > key);
		walk_node(w, &child, &key, next, false);
	}
}

static void walk_items(struct walker *w, const void *node, uint64_t upper)
{
	for (uint32_t i = 0; i < cpc_node_nritems(node); i++) {
		const void *value;
		uint64_t key;
		uint32_t size;

		cpc_node_item(node, i, &key, &value, &size);
		assert_true(key + cpc_item_len(w->t->owner, size) <= upper);
		check_item(w, key, value, size);
	}
	w->walk->leaves++;
}

static uint64_t first_key(const void *node)
{
	struct cpc_node_ptr ptr;
	const void *value;
	uint32_t size;
	uint64_t key;

	if (cpc_node_header(node)->level)
		cpc_node_child(node, 0, &key, &ptr);
	else
		cpc_node_item(node, 0, &key, &value, &size);
	return key;
}

static void walk_node(struct walker *w, const struct cpc_node_ptr *ptr, const uint64_t *first,
		      uint64_t upper, bool is_root)
{
	uint64_t nodes = w->walk->nodes, data = w->walk->data_blocks;
	struct cpc_eb *eb;

	assert_int_equal(cpc_eb_read(w->t->cache, ptr, w->t->owner, &eb), 0);
	assert_null(cpc_tree_check_node(eb->data, w->t->nodesize, &w->t->geo));
	assert_int_not_equal(w->t->node_state[unit_of(w->t, ptr->bytenr[0])], TT_FREE);
	assert_true(!first || *first == first_key(eb->data));
	assert_true(!is_root || !ptr->level || cpc_node_nritems(eb->data) > 1);
	w->walk->nodes++;
	w->walk->bytes += used_bytes(w->t, eb->data);
	if (ptr->level)
		walk_children(w, eb->data, upper);
	else
		walk_items(w, eb->data, upper);
	assert_true(w->walk->nodes - nodes == ptr->nodes);
	assert_true(w->walk->data_blocks - data == ptr->data_blocks);
	cpc_eb_put(eb);
}

void tt_check(struct tt *t, const struct cpc_node_ptr *root, const struct tt_slot *slot,
	      struct tt_walk *walk)
{
	struct walker w = {.t = t, .slot = slot, .walk = walk};

	memset(walk, 0, sizeof(*walk));
	if (!cpc_node_ptr_empty(root))
		walk_node(&w, root, NULL, UINT64_MAX, true);
	expect_hole(&w, TT_KEYS);
}

void tt_check_accounts(struct tt *t, const struct tt_walk *walk)
{
	uint64_t live = 0, mapped = 0;

	for (uint32_t i = 0; i < TT_NODE_UNITS; i++)
		live += t->node_state[i] == TT_LIVE;
	assert_true(live == walk->nodes);
	if (t->owner < CPC_TREE_VOLUME_BASE)
		return;
	for (uint32_t i = 0; i < TT_DATA_BLOCKS; i++) {
		/* What the ops unmapped has been reported. */
		assert_int_not_equal(t->data_state[i], TT_PINNED);
		mapped += t->data_state[i] == TT_LIVE;
	}
	assert_true(mapped == walk->data_blocks);
}
