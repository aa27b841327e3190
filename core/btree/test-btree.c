/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Trees against a plain array, over random streams of changes.
 *
 * CPC_TEST_OPS sets the number of rounds, CPC_TEST_SEED the seed; the seed is printed.
 */
#include "btree/test-tree.h"

#include <inttypes.h>

#include "lib/hooks.h"
#include "lib/log.h"

#define VOLUME_TREE (CPC_TREE_VOLUME_BASE + 7)
#define KEPT_ROOTS  3

static uint64_t base_seed;

static void quiet(enum cpc_log_level level, const char *line)
{
	(void)level;
	(void)line;
}

/* --- random streams --- */

struct stream {
	uint64_t step;	   /* mean distance of changes */
	uint64_t max_len;  /* of values */
	uint64_t max_hole; /* of removals */
	unsigned removals; /* percent */
	uint64_t from, to; /* slots */
};

/* Thins out a few neighbouring leaves. */
static void local_stream(struct tt *t, struct stream *s)
{
	static const uint64_t holes[] = {1, 5, 30};

	s->step = 1 + tt_below(t, 3);
	s->max_len = 1;
	s->max_hole = holes[tt_below(t, CPC_ARRAY_SIZE(holes))];
	s->removals = 80 + (unsigned)tt_below(t, 21);
	s->from = tt_below(t, TT_KEYS);
	s->to = s->from + tt_below(t, 600);
}

static void random_stream(struct tt *t, struct stream *s)
{
	static const uint64_t steps[] = {1, 3, 20, 200, 3000};
	static const uint64_t lens[] = {1, 1, 8, 256};
	static const uint64_t holes[] = {1, 5, 30, 300, 300, 5000};
	static const unsigned removals[] = {0, 10, 50, 70, 100};
	static const struct stream refill = {2, 1, 1, 0, 0, TT_KEYS};

	if (tt_below(t, 6) == 0) {
		*s = refill;
		return;
	}
	if (tt_below(t, 2)) {
		local_stream(t, s);
		return;
	}
	s->step = steps[tt_below(t, CPC_ARRAY_SIZE(steps))];
	s->max_len = t->owner >= CPC_TREE_VOLUME_BASE ? lens[tt_below(t, CPC_ARRAY_SIZE(lens))] : 1;
	s->max_hole = holes[tt_below(t, CPC_ARRAY_SIZE(holes))];
	s->removals = removals[tt_below(t, CPC_ARRAY_SIZE(removals))];
	s->from = tt_below(t, 3) ? tt_below(t, TT_KEYS) : 0;
	s->to = tt_below(t, 3) ? s->from + tt_below(t, TT_KEYS - s->from) : TT_KEYS;
}

/* One change at `at`. Return: its end. */
static uint64_t random_change(struct tt *t, const struct stream *s, struct tt_ops *ops, uint64_t at)
{
	uint64_t left = TT_KEYS - at, len, span;

	if (tt_below(t, 100) < s->removals) {
		len = 1 + tt_below(t, s->max_hole);
		tt_op_remove(t, ops, at, len);
		return at + len;
	}
	len = cpc_min_u64(1 + tt_below(t, s->max_len), left);
	span = tt_below(t, 4) ? len : cpc_min_u64(len + tt_below(t, 40), left);
	tt_op_put(t, ops, at, (uint32_t)len, span);
	return at + span;
}

static void fill_ops(struct tt *t, const struct stream *s, struct tt_ops *ops)
{
	uint64_t at = s->from;

	tt_ops_reset(ops);
	if (tt_below(t, 8) == 0 && s->from > 0)
		tt_op_remove_keys(t, ops, tt_below(t, t->base + 1), t->base + s->from);
	while (at < s->to && at < TT_KEYS) {
		at = random_change(t, s, ops, at);
		at += tt_below(t, 2 * s->step);
	}
	if (tt_below(t, 8) == 0)
		tt_op_remove_keys(t, ops, t->base + cpc_max_u64(at, TT_KEYS),
				  tt_below(t, 2) ? UINT64_MAX : t->base + 10 * TT_KEYS);
}

/* --- rounds --- */

struct kept {
	struct cpc_node_ptr root;
	struct tt_slot *slot;
};

static uint64_t count_pinned(const struct tt *t)
{
	uint64_t nr = 0;

	for (uint32_t i = 0; i < TT_DATA_BLOCKS; i++)
		nr += t->data_state[i] == TT_PINNED;
	return nr;
}

/* Applies one stream and compares everything. */
static void one_round(struct tt *t, struct tt_ops *ops, struct tt_walk *walk)
{
	struct stream s;
	uint64_t unmapped, live_before = t->root.nodes;

	t->txn.transid++;
	t->take_drops = (unsigned)tt_below(t, 3);
	random_stream(t, &s);
	fill_ops(t, &s, ops);
	unmapped = count_pinned(t);
	assert_int_equal(tt_apply(t, ops), 0);
	cpc_eb_check(t->cache);
	assert_true(t->nr_free_data == unmapped);
	tt_check(t, &t->root, t->slot, walk);
	tt_check_accounts(t, walk);
	assert_true(live_before + t->nr_alloc - t->nr_free == walk->nodes);
}

static void keep_root(struct tt *t, struct kept *kept)
{
	kept->root = t->root;
	memcpy(kept->slot, t->slot, TT_KEYS * sizeof(*t->slot));
}

/* Old roots read as they did, then their nodes may be used again. */
static void check_kept(struct tt *t, struct kept *kept, unsigned nr)
{
	struct tt_walk walk;
	uint64_t transid = t->txn.transid;

	for (unsigned i = 0; i < nr; i++)
		tt_check(t, &kept[i].root, kept[i].slot, &walk);
	t->txn.transid = transid;
	tt_unpin(t);
}

static void rounds(struct tt *t, uint64_t nr)
{
	struct kept kept[KEPT_ROOTS];
	struct tt_walk walk, sum = {0};
	struct tt_ops ops;

	tt_ops_init(&ops);
	for (unsigned i = 0; i < KEPT_ROOTS; i++)
		kept[i].slot = calloc(TT_KEYS, sizeof(struct tt_slot));
	for (uint64_t i = 0; i < nr; i++) {
		keep_root(t, &kept[i % KEPT_ROOTS]);
		one_round(t, &ops, &walk);
		sum.crumbs += walk.crumbs;
		sum.crumbs_among += walk.crumbs_among;
		if (i % KEPT_ROOTS == KEPT_ROOTS - 1)
			check_kept(t, kept, KEPT_ROOTS);
		if (tt_below(t, 10) == 0)
			tt_reopen(t, tt_below(t, 2) ? SIZE_MAX : 20 * t->nodesize);
	}
	if (getenv("CPC_TEST_VERBOSE"))
		print_message("nodesize %u: %" PRIu64 " crumbs of %" PRIu64 "\n", t->nodesize,
			      sum.crumbs, sum.crumbs_among);
	assert_true(sum.crumbs * 200 <= sum.crumbs_among + 200);
	for (unsigned i = 0; i < KEPT_ROOTS; i++)
		free(kept[i].slot);
	tt_ops_free(&ops);
}

static void random_rounds(uint32_t nodesize, bool dup, uint64_t owner)
{
	uint64_t nr = tt_env("CPC_TEST_OPS", 60);
	struct tt t;

	tt_create(&t, nodesize, dup, owner, base_seed ^ nodesize ^ owner);
	rounds(&t, nr);
	tt_destroy(&t);
}

static void random_streams_on_a_volume_tree(void **state)
{
	random_rounds(4096, true, VOLUME_TREE);
	random_rounds(16384, true, VOLUME_TREE);
	random_rounds(65536, false, VOLUME_TREE);
}

static void random_streams_on_the_root_tree(void **state)
{
	random_rounds(4096, false, CPC_TREE_ROOT);
	random_rounds(16384, true, CPC_TREE_ROOT);
}

static void random_streams_on_the_free_log_tree(void **state)
{
	random_rounds(4096, true, CPC_TREE_FREE_LOG);
	random_rounds(65536, true, CPC_TREE_FREE_LOG);
}

/* --- single claims --- */

/* A volume tree with every other key mapped by itself. */
static void create_sparse(struct tt *t, struct tt_ops *ops, uint32_t nodesize)
{
	tt_create(t, nodesize, true, VOLUME_TREE, base_seed);
	tt_ops_init(ops);
	for (uint64_t at = 0; at < TT_KEYS; at += 2)
		tt_op_put(t, ops, at, 1, 1);
	assert_int_equal(tt_apply(t, ops), 0);
	tt_ops_reset(ops);
	t->txn.transid++;
}

static void no_change_writes_nothing(void **state)
{
	struct cpc_node_ptr before;
	struct tt_ops ops;
	struct tt t;

	create_sparse(&t, &ops, 4096);
	before = t.root;
	for (uint64_t at = 1; at < TT_KEYS; at += 2)
		tt_op_remove(&t, &ops, at, 1);
	tt_op_remove_keys(&t, &ops, t.base + TT_KEYS, UINT64_MAX);
	assert_int_equal(tt_apply(&t, &ops), 0);
	assert_memory_equal(&before, &t.root, sizeof(before));
	assert_true(t.nr_alloc == 0 && t.nr_free == 0 && t.nr_free_data == 0);
	tt_ops_reset(&ops);
	assert_int_equal(tt_apply(&t, &ops), 0);
	assert_memory_equal(&before, &t.root, sizeof(before));
	tt_ops_free(&ops);
	tt_destroy(&t);
}

static void one_change_rewrites_one_path(void **state)
{
	struct tt_walk walk;
	struct tt_ops ops;
	struct tt t;

	create_sparse(&t, &ops, 4096);
	assert_true(t.root.level >= 2);
	tt_op_put(&t, &ops, 10000, 1, 1);
	assert_int_equal(tt_apply(&t, &ops), 0);
	assert_true(t.nr_alloc == t.root.level + 1u);
	assert_true(t.nr_free == t.root.level + 1u);
	assert_true(t.nr_free_data == 1);
	tt_check(&t, &t.root, t.slot, &walk);
	tt_ops_free(&ops);
	tt_destroy(&t);
}

static void an_insert_into_a_full_leaf_gives_two_halves(void **state)
{
	struct tt_walk walk;
	struct tt_ops ops;
	struct tt t;
	uint64_t leaves;

	create_sparse(&t, &ops, 4096);
	tt_check(&t, &t.root, t.slot, &walk);
	leaves = walk.leaves;
	for (uint64_t at = 10001; at < 10041; at += 2) {
		tt_ops_reset(&ops);
		t.txn.transid++;
		tt_op_put(&t, &ops, at, 1, 1);
		assert_int_equal(tt_apply(&t, &ops), 0);
		tt_check(&t, &t.root, t.slot, &walk);
		assert_true(walk.leaves == leaves + 1);
		assert_true(walk.crumbs == 0);
	}
	tt_ops_free(&ops);
	tt_destroy(&t);
}

/* Thins the leaf around slot `at` to a few items; `other` is first thinned to a half. */
static void thin_beside(uint64_t at, uint64_t other)
{
	struct tt_walk walk;
	struct tt_ops ops;
	struct tt t;
	uint64_t leaves;

	create_sparse(&t, &ops, 4096);
	for (uint64_t i = other; i < other + 252; i += 4)
		tt_op_remove(&t, &ops, i, 1);
	assert_int_equal(tt_apply(&t, &ops), 0);
	tt_check(&t, &t.root, t.slot, &walk);
	leaves = walk.leaves;
	tt_ops_reset(&ops);
	t.txn.transid++;
	tt_op_remove(&t, &ops, at, 230);
	assert_int_equal(tt_apply(&t, &ops), 0);
	tt_check(&t, &t.root, t.slot, &walk);
	tt_check_accounts(&t, &walk);
	assert_true(walk.leaves == leaves - 1);
	tt_ops_free(&ops);
	tt_destroy(&t);
}

/* create_sparse puts 126 items, 252 slots, into each leaf. */
static void a_crumb_takes_in_its_right_neighbour(void **state)
{
	thin_beside(252 * 10, 252 * 11);
}

static void a_crumb_joins_its_left_neighbour(void **state)
{
	thin_beside(252 * 10, 252 * 9);
}

static void removing_everything_leaves_the_empty_tree(void **state)
{
	for (unsigned drops = 0; drops < 3; drops++) {
		struct tt_walk walk;
		struct tt_ops ops;
		struct tt t;

		create_sparse(&t, &ops, 4096);
		t.take_drops = drops;
		tt_op_remove_keys(&t, &ops, 0, UINT64_MAX);
		assert_int_equal(tt_apply(&t, &ops), 0);
		assert_true(cpc_node_ptr_empty(&t.root));
		assert_true(t.nr_alloc == 0);
		assert_true(t.nr_free_data == TT_KEYS / 2);
		tt_check(&t, &t.root, t.slot, &walk);
		tt_check_accounts(&t, &walk);
		tt_ops_free(&ops);
		tt_destroy(&t);
	}
}

static void a_large_removal_reads_two_paths(void **state)
{
	struct tt_walk walk;
	struct tt_ops ops;
	struct tt t;
	uint64_t before;

	create_sparse(&t, &ops, 4096);
	assert_true(t.root.level == 2);
	tt_reopen(&t, SIZE_MAX);
	before = cpc_powercut_count(t.pc, CPC_POWERCUT_READ);
	t.take_drops = 3;
	tt_op_remove(&t, &ops, 1101, TT_KEYS - 2000);
	assert_int_equal(tt_apply(&t, &ops), 0);
	assert_true(t.nr_drop > 0);
	/* The root and two paths below it, and at most one neighbour for each to merge with. */
	assert_true(cpc_powercut_count(t.pc, CPC_POWERCUT_READ) - before <= 1 + 2 * 2 * 2);
	assert_true(t.nr_alloc <= 1 + 2 * 2);
	tt_check(&t, &t.root, t.slot, &walk);
	tt_ops_free(&ops);
	tt_destroy(&t);
}

static void a_single_child_left_becomes_the_root(void **state)
{
	struct tt_walk walk;
	struct tt_ops ops;
	struct tt t;
	uint8_t level;

	create_sparse(&t, &ops, 4096);
	level = t.root.level;
	t.take_drops = 1;
	tt_op_remove(&t, &ops, 100, TT_KEYS);
	assert_int_equal(tt_apply(&t, &ops), 0);
	assert_true(t.root.level < level);
	assert_true(t.nr_alloc <= 1);
	tt_check(&t, &t.root, t.slot, &walk);
	tt_check_accounts(&t, &walk);
	tt_ops_free(&ops);
	tt_destroy(&t);
}

/* The root's last child gets a single child; then all before it goes, and two old nodes with it. */
static void old_nodes_with_a_single_child_are_skipped(void **state)
{
	struct cpc_disk_child *child;
	struct tt_walk walk;
	struct cpc_eb *eb;
	struct tt_ops ops;
	uint64_t last;
	struct tt t;

	create_sparse(&t, &ops, 4096);
	assert_true(t.root.level == 2);
	assert_int_equal(cpc_eb_read(t.cache, &t.root, t.owner, &eb), 0);
	child = (void *)((uint8_t *)eb->data + sizeof(struct cpc_disk_node));
	last = cpc_get_le64(&child[cpc_node_nritems(eb->data) - 1].key) - t.base;
	cpc_eb_put(eb);
	tt_op_remove(&t, &ops, last + 2, TT_KEYS - last - 2);
	assert_int_equal(tt_apply(&t, &ops), 0);
	tt_check(&t, &t.root, t.slot, &walk);
	assert_true(t.root.level == 2);
	tt_ops_reset(&ops);
	t.txn.transid++;
	tt_op_remove(&t, &ops, 0, last);
	t.take_drops = 1;
	assert_int_equal(tt_apply(&t, &ops), 0);
	assert_true(t.root.level == 0 && t.nr_alloc == 0);
	tt_check(&t, &t.root, t.slot, &walk);
	tt_check_accounts(&t, &walk);
	tt_ops_free(&ops);
	tt_destroy(&t);
}

static void single_blocks_in_order_become_full_extents(void **state)
{
	struct cpc_cursor c;
	struct tt_walk walk;
	struct tt_ops ops;
	struct tt t;
	uint64_t nr = 0;

	tt_create(&t, 16384, true, VOLUME_TREE, base_seed);
	tt_ops_init(&ops);
	for (uint64_t at = 0; at < 1024; at++) {
		tt_op_put(&t, &ops, at, 1, 1);
		cpc_put_le64((cpc_le64 *)(ops.values + ops.op[at].value + 8), t.txn.transid);
		t.slot[at].birth = t.txn.transid;
	}
	assert_int_equal(tt_apply(&t, &ops), 0);
	tt_check(&t, &t.root, t.slot, &walk);
	cpc_cursor_init(&c, t.cache, t.owner, &t.root);
	for (int ret = cpc_cursor_seek(&c, 0); !ret && c.valid; ret = cpc_cursor_next(&c), nr++)
		assert_true(cpc_item_len(t.owner, c.size) == CPC_EXTENT_MAX_BLOCKS);
	assert_true(nr == 4);
	cpc_cursor_release(&c);
	tt_ops_free(&ops);
	tt_destroy(&t);
}

static void appending_packs_leaves_full(void **state)
{
	struct tt_walk walk;
	struct tt_ops ops;
	struct tt t;

	tt_create(&t, 4096, true, CPC_TREE_FREE_LOG, base_seed);
	tt_ops_init(&ops);
	for (uint64_t at = 0; at < 5000; at += 10) {
		tt_ops_reset(&ops);
		for (uint64_t i = at; i < at + 10; i++)
			tt_op_put(&t, &ops, i, 1, 1);
		assert_int_equal(tt_apply(&t, &ops), 0);
		t.txn.transid++;
		tt_unpin(&t);
	}
	tt_check(&t, &t.root, t.slot, &walk);
	/* Values are up to a third of a node: what is left at the end is a sixth on average. */
	assert_true(walk.bytes * 100 / (walk.nodes * 4032) > 75);
	tt_ops_free(&ops);
	tt_destroy(&t);
}

static void bad_streams_are_refused(void **state)
{
	struct tt_ops ops;
	struct tt t;

	create_sparse(&t, &ops, 4096);
	tt_op_remove(&t, &ops, 50, 1);
	tt_op_remove(&t, &ops, 50, 1);
	assert_int_equal(tt_apply(&t, &ops), -EINVAL);
	tt_ops_reset(&ops);
	tt_op_remove_keys(&t, &ops, 200, 200);
	assert_int_equal(tt_apply(&t, &ops), -EINVAL);
	tt_ops_reset(&ops);
	tt_op_put(&t, &ops, 50, 2, 2);
	ops.op[0].end--;
	assert_int_equal(tt_apply(&t, &ops), -EINVAL);
	cpc_eb_abort(t.cache, t.txn.transid);
	tt_ops_free(&ops);
	tt_destroy(&t);
}

/* --- cursors --- */

/* The slot that a seek must find: covering `at` or the first one above, or TT_KEYS. */
static uint64_t expected_slot(const struct tt *t, uint64_t at)
{
	while (at < TT_KEYS && !t->slot[at].block)
		at++;
	return at;
}

static void check_seek(struct tt *t, struct cpc_cursor *c, uint64_t at)
{
	uint64_t slot = expected_slot(t, at);

	assert_int_equal(cpc_cursor_seek(c, t->base + at), 0);
	assert_true(c->valid == (slot < TT_KEYS));
	if (!c->valid)
		return;
	assert_true(c->key <= t->base + slot);
	assert_true(c->key + cpc_item_len(t->owner, c->size) > t->base + slot);
}

static void seeks_find_what_covers_or_follows(void **state)
{
	struct cpc_cursor c;
	struct tt_ops ops;
	struct tt t;

	tt_create(&t, 4096, true, VOLUME_TREE, base_seed);
	tt_ops_init(&ops);
	for (uint64_t at = 5; at + 300 < TT_KEYS; at += 1 + tt_below(&t, 100)) {
		uint32_t nr = 1 + (uint32_t)tt_below(&t, 30);

		tt_op_put(&t, &ops, at, nr, nr);
		at += nr;
	}
	assert_int_equal(tt_apply(&t, &ops), 0);
	cpc_cursor_init(&c, t.cache, t.owner, &t.root);
	for (uint64_t i = 0; i < 20000; i++)
		check_seek(&t, &c, tt_below(&t, TT_KEYS + 100));
	for (uint64_t at = 0; at < TT_KEYS; at += 1 + tt_below(&t, 5))
		check_seek(&t, &c, at);
	assert_int_equal(cpc_cursor_seek(&c, UINT64_MAX), 0);
	assert_false(c.valid);
	assert_int_equal(cpc_cursor_next(&c), 0);
	assert_false(c.valid);
	cpc_cursor_release(&c);
	tt_ops_free(&ops);
	tt_destroy(&t);
}

static void a_root_of_impossible_height_is_refused(void **state)
{
	struct cpc_cursor c;
	struct tt_ops ops;
	struct tt t;

	create_sparse(&t, &ops, 4096);
	t.root.level = 255;
	cpc_cursor_init(&c, t.cache, t.owner, &t.root);
	assert_int_equal(cpc_cursor_seek(&c, 0), -EUCLEAN);
	cpc_cursor_release(&c);
	tt_op_remove(&t, &ops, 0, 1);
	assert_int_equal(tt_apply(&t, &ops), -EUCLEAN);
	tt_ops_free(&ops);
	tt_destroy(&t);
}

/* --- failures --- */

/* The state that a failed apply must leave as it was. */
struct saved {
	uint8_t *node_state, *data_state;
	size_t nr_pinned;
	struct cpc_node_ptr root;
};

static void save(const struct tt *t, struct saved *s)
{
	s->node_state = malloc(TT_NODE_UNITS);
	s->data_state = malloc(TT_DATA_BLOCKS);
	memcpy(s->node_state, t->node_state, TT_NODE_UNITS);
	memcpy(s->data_state, t->data_state, TT_DATA_BLOCKS);
	s->nr_pinned = t->nr_pinned;
	s->root = t->root;
}

static void restore(struct tt *t, const struct saved *s)
{
	cpc_eb_abort(t->cache, t->txn.transid);
	cpc_eb_check(t->cache);
	memcpy(t->node_state, s->node_state, TT_NODE_UNITS);
	memcpy(t->data_state, s->data_state, TT_DATA_BLOCKS);
	t->nr_pinned = s->nr_pinned;
	assert_memory_equal(&t->root, &s->root, sizeof(s->root));
}

static void free_saved(struct saved *s)
{
	free(s->node_state);
	free(s->data_state);
}

static uint64_t alloc_calls, alloc_fail_at;

static void *failing_alloc(size_t align, size_t size)
{
	if (++alloc_calls == alloc_fail_at)
		return NULL;
	return cpc_hooks_default.alloc(align, size);
}

/* A tree on the device, an empty cache, and a stream that does a bit of everything. */
static void prepare_failure(struct tt *t, struct tt_ops *ops, struct tt_slot *old)
{
	struct stream s = {40, 8, 400, 40, 0, TT_KEYS};

	create_sparse(t, ops, 4096);
	tt_reopen(t, SIZE_MAX);
	memcpy(old, t->slot, TT_KEYS * sizeof(*old));
	fill_ops(t, &s, ops);
	t->take_drops = 1;
}

static void finish_failure(struct tt *t, struct tt_ops *ops, const struct tt_slot *old)
{
	struct cpc_node_ptr before = t->root;
	struct tt_walk walk;

	assert_int_equal(tt_apply(t, ops), 0);
	tt_check(t, &t->root, t->slot, &walk);
	tt_check_accounts(t, &walk);
	tt_check(t, &before, old, &walk);
	tt_ops_free(ops);
	tt_destroy(t);
}

static void a_failing_callback_leaves_the_old_tree(void **state)
{
	static const int errors[] = {-ENOSPC, -EIO, -ENOMEM};
	struct tt_slot *old = malloc(TT_KEYS * sizeof(*old));
	struct tt_ops ops;
	struct saved s;
	struct tt t;

	prepare_failure(&t, &ops, old);
	save(&t, &s);
	for (uint64_t n = 1, ret = 1; ret; n += 1 + n / 8) {
		t.fail_at = n;
		t.fail_error = errors[n % 3];
		ret = (uint64_t)-tt_apply(&t, &ops);
		assert_true(!ret || (int)ret == -errors[n % 3]);
		t.root = s.root;
		restore(&t, &s);
	}
	t.fail_at = 0;
	finish_failure(&t, &ops, old);
	free_saved(&s);
	free(old);
}

static void no_memory_leaves_the_old_tree(void **state)
{
	struct tt_slot *old = malloc(TT_KEYS * sizeof(*old));
	struct tt_ops ops;
	struct saved s;
	struct tt t;
	int ret = 1;

	prepare_failure(&t, &ops, old);
	save(&t, &s);
	cpc_hooks.alloc = failing_alloc;
	t.take_drops = 0;
	for (uint64_t n = 1; ret; n += 1 + n / 8) {
		alloc_calls = 0;
		alloc_fail_at = n;
		ret = tt_apply(&t, &ops);
		assert_true(ret == 0 || ret == -ENOMEM);
		alloc_fail_at = 0;
		t.root = s.root;
		restore(&t, &s);
	}
	cpc_hooks = cpc_hooks_default;
	finish_failure(&t, &ops, old);
	free_saved(&s);
	free(old);
}

static void an_unreadable_node_leaves_the_old_tree(void **state)
{
	struct tt_slot *old = malloc(TT_KEYS * sizeof(*old));
	struct tt_ops ops;
	struct saved s;
	struct tt t;
	int ret = 1;

	prepare_failure(&t, &ops, old);
	save(&t, &s);
	t.take_drops = 0;
	for (uint64_t n = 1; ret; n += 1 + n / 8) {
		tt_reopen(&t, SIZE_MAX);
		cpc_powercut_fail(t.pc, CPC_POWERCUT_READ, n, true, -EIO);
		ret = tt_apply(&t, &ops);
		assert_true(ret == 0 || ret == -EIO);
		cpc_powercut_clear_faults(t.pc);
		t.root = s.root;
		restore(&t, &s);
	}
	finish_failure(&t, &ops, old);
	free_saved(&s);
	free(old);
}

/* --- nodes that do not fit their place --- */

/* Puts `node` with a new checksum at both places of ptr, and ptr's checksum to match. */
static void poke_node(struct tt *t, struct cpc_node_ptr *ptr, uint8_t *node)
{
	struct cpc_disk_node *header = (void *)node;

	cpc_put_le32(&header->csum, cpc_csum_without_field(node, t->nodesize, 0));
	ptr->csum = cpc_get_le32(&header->csum);
	for (unsigned copy = 0; copy < t->geo.copies; copy++)
		cpc_powercut_poke(t->pc, ptr->bytenr[copy], node, t->nodesize);
}

static int walk_all(struct tt *t)
{
	struct cpc_cursor c;
	int ret;

	cpc_cursor_init(&c, t->cache, t->owner, &t->root);
	for (ret = cpc_cursor_seek(&c, 0); !ret && c.valid; ret = cpc_cursor_next(&c))
		;
	cpc_cursor_release(&c);
	return ret;
}

/* Applies `edit` to the root node and expects the tree to be refused by walk and by apply. */
static void refuse_root_edit(void (*edit)(struct cpc_disk_child *child), bool by_walk)
{
	struct tt_ops ops;
	struct tt t;
	uint8_t *node;

	create_sparse(&t, &ops, 4096);
	tt_reopen(&t, SIZE_MAX);
	node = malloc(t.nodesize);
	cpc_powercut_peek(t.pc, t.root.bytenr[0], node, t.nodesize);
	edit((struct cpc_disk_child *)(node + sizeof(struct cpc_disk_node)));
	poke_node(&t, &t.root, node);
	free(node);
	assert_int_equal(walk_all(&t), by_walk ? -EUCLEAN : 0);
	t.take_drops = 0;
	tt_op_remove_keys(&t, &ops, 0, UINT64_MAX);
	assert_int_equal(tt_apply(&t, &ops), -EUCLEAN);
	tt_ops_free(&ops);
	tt_destroy(&t);
}

static void edit_pivot_down(struct cpc_disk_child *child)
{
	cpc_put_le64(&child[1].key, cpc_get_le64(&child[1].key) - 1);
}

static void edit_pivot_up(struct cpc_disk_child *child)
{
	cpc_put_le64(&child[1].key, cpc_get_le64(&child[1].key) + 1);
}

static void edit_swap(struct cpc_disk_child *child)
{
	struct cpc_disk_ptr tmp = child[0].ptr;

	child[0].ptr = child[1].ptr;
	child[1].ptr = tmp;
}

static void edit_nodes(struct cpc_disk_child *child)
{
	cpc_put_le32(&child[0].ptr.nodes, cpc_get_le32(&child[0].ptr.nodes) + 1);
}

static void edit_data_blocks(struct cpc_disk_child *child)
{
	cpc_put_le64(&child[0].ptr.data_blocks, 1);
}

static void nodes_that_do_not_fit_their_place_are_refused(void **state)
{
	refuse_root_edit(edit_pivot_down, true);
	refuse_root_edit(edit_pivot_up, true);
	refuse_root_edit(edit_swap, true);
	refuse_root_edit(edit_nodes, false);
	refuse_root_edit(edit_data_blocks, false);
}

/* The second leaf begins, as its parent says, before the first one ends. */
static void leaves_that_overlap_are_refused(void **state)
{
	struct cpc_disk_child *child;
	struct cpc_node_ptr ptr;
	struct tt_ops ops;
	struct tt t;
	uint8_t *root, *leaf;
	uint64_t key;

	tt_create(&t, 4096, true, VOLUME_TREE, base_seed);
	tt_ops_init(&ops);
	for (uint64_t at = 0; at < 1000; at += 2)
		tt_op_put(&t, &ops, at, 1, 1);
	assert_int_equal(tt_apply(&t, &ops), 0);
	assert_int_equal(t.root.level, 1);
	tt_reopen(&t, SIZE_MAX);
	root = malloc(t.nodesize);
	leaf = malloc(t.nodesize);
	cpc_powercut_peek(t.pc, t.root.bytenr[0], root, t.nodesize);
	child = (struct cpc_disk_child *)(root + sizeof(struct cpc_disk_node)) + 1;
	cpc_ptr_decode(&ptr, &child->ptr);
	cpc_powercut_peek(t.pc, ptr.bytenr[0], leaf, t.nodesize);
	key = cpc_get_le64(&child->key) - 3;
	cpc_put_le64(&((struct cpc_disk_item *)(leaf + sizeof(struct cpc_disk_node)))->key, key);
	poke_node(&t, &ptr, leaf);
	cpc_put_le64(&child->key, key);
	cpc_put_le32(&child->ptr.csum, ptr.csum);
	poke_node(&t, &t.root, root);
	assert_int_equal(walk_all(&t), -EUCLEAN);
	tt_ops_reset(&ops);
	tt_op_remove_keys(&t, &ops, 0, UINT64_MAX);
	assert_int_equal(tt_apply(&t, &ops), -EUCLEAN);
	free(root);
	free(leaf);
	tt_ops_free(&ops);
	tt_destroy(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(random_streams_on_a_volume_tree),
	    cmocka_unit_test(random_streams_on_the_root_tree),
	    cmocka_unit_test(random_streams_on_the_free_log_tree),
	    cmocka_unit_test(no_change_writes_nothing),
	    cmocka_unit_test(one_change_rewrites_one_path),
	    cmocka_unit_test(an_insert_into_a_full_leaf_gives_two_halves),
	    cmocka_unit_test(a_crumb_takes_in_its_right_neighbour),
	    cmocka_unit_test(a_crumb_joins_its_left_neighbour),
	    cmocka_unit_test(removing_everything_leaves_the_empty_tree),
	    cmocka_unit_test(a_large_removal_reads_two_paths),
	    cmocka_unit_test(a_single_child_left_becomes_the_root),
	    cmocka_unit_test(old_nodes_with_a_single_child_are_skipped),
	    cmocka_unit_test(single_blocks_in_order_become_full_extents),
	    cmocka_unit_test(appending_packs_leaves_full),
	    cmocka_unit_test(bad_streams_are_refused),
	    cmocka_unit_test(seeks_find_what_covers_or_follows),
	    cmocka_unit_test(a_root_of_impossible_height_is_refused),
	    cmocka_unit_test(a_failing_callback_leaves_the_old_tree),
	    cmocka_unit_test(no_memory_leaves_the_old_tree),
	    cmocka_unit_test(an_unreadable_node_leaves_the_old_tree),
	    cmocka_unit_test(leaves_that_overlap_are_refused),
	    cmocka_unit_test(nodes_that_do_not_fit_their_place_are_refused),
	};

	cpc_log_set_sink(quiet);
	base_seed = tt_env("CPC_TEST_SEED", 1);
	print_message("CPC_TEST_SEED=%" PRIu64 "\n", base_seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
