/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The tree-checker against hostile nodes: nodes of every kind are damaged, byte by byte and at
 * random, with good checksums. A node is refused, or everything later code does with it is safe:
 * that is tried by walking, seeking and applying, and the address sanitizer looks on.
 *
 * CPC_TEST_OPS sets the number of random damages a node, CPC_TEST_SEED the seed.
 */
#include "btree/test-tree.h"

#include <inttypes.h>

#include "lib/log.h"

#define VOLUME_TREE (CPC_TREE_VOLUME_BASE + 7)

static uint64_t base_seed;

static void quiet(enum cpc_log_level level, const char *line)
{
	(void)level;
	(void)line;
}

/* --- a tree with one node of interest --- */

struct victim {
	struct tt t;
	struct cpc_node_ptr ptr;
	uint8_t *good, *bad;
	uint64_t accepted, refused;
};

static void victim_init(struct victim *v, const struct cpc_node_ptr *ptr)
{
	v->ptr = *ptr;
	v->accepted = v->refused = 0;
	v->good = malloc(v->t.nodesize);
	v->bad = malloc(v->t.nodesize);
	tt_reopen(&v->t, SIZE_MAX);
	cpc_powercut_peek(v->t.pc, ptr->bytenr[0], v->good, v->t.nodesize);
	assert_null(cpc_tree_check_node(v->good, v->t.nodesize, &v->t.geo));
}

static void victim_destroy(struct victim *v)
{
	free(v->good);
	free(v->bad);
	tt_destroy(&v->t);
}

static int next_removal(void *ctx, struct cpc_tree_op *op)
{
	bool *done = ctx;

	if (*done)
		return 0;
	*done = true;
	memset(op, 0, sizeof(*op));
	op->start = 3;
	op->end = UINT64_MAX;
	return 1;
}

static int no_alloc(void *ctx, uint64_t bytenr[2])
{
	return -ENOSPC;
}

static int no_free(void *ctx, const struct cpc_node_ptr *ptr)
{
	return 0;
}

static int no_free_data(void *ctx, uint64_t bytenr, uint64_t nr_blocks, uint64_t birth)
{
	const struct tt *t = ctx;

	assert_true(nr_blocks > 0 && nr_blocks <= CPC_EXTENT_MAX_BLOCKS);
	assert_true(cpc_geometry_in_data(&t->geo, bytenr, nr_blocks << CPC_BLOCK_SHIFT));
	return 0;
}

/* Everything that reads trees, over the damaged node as a root. */
static void use_tree(struct victim *v, const struct cpc_node_ptr *root, uint64_t owner)
{
	struct cpc_tree_txn txn = {.transid = UINT64_MAX,
				   .cache = v->t.cache,
				   .ctx = &v->t,
				   .alloc_node = no_alloc,
				   .free_node = no_free,
				   .free_data = no_free_data};
	struct cpc_node_ptr new_root;
	struct cpc_cursor c;
	uint64_t last = 0;
	bool done = false;
	unsigned steps = 0;
	int ret;

	cpc_cursor_init(&c, v->t.cache, owner, root);
	for (ret = cpc_cursor_seek(&c, 0); !ret && c.valid; ret = cpc_cursor_next(&c)) {
		assert_true(steps++ == 0 || c.key >= last);
		last = c.key + cpc_item_len(owner, c.size);
		assert_true(last > c.key);
	}
	assert_true(ret == 0 || ret == -EUCLEAN);
	cpc_cursor_release(&c);
	ret = cpc_btree_apply(&txn, owner, root, next_removal, &done, &new_root);
	assert_true(ret == 0 || ret == -EUCLEAN || ret == -ENOSPC);
}

/* The damaged node is in v->bad. */
static void try_damage(struct victim *v)
{
	struct cpc_disk_node *header = (void *)v->bad;
	struct cpc_node_ptr root = v->ptr;

	cpc_put_le32(&header->csum, cpc_csum_without_field(v->bad, v->t.nodesize,
							   offsetof(struct cpc_disk_node, csum)));
	if (cpc_tree_check_node(v->bad, v->t.nodesize, &v->t.geo)) {
		v->refused++;
		return;
	}
	v->accepted++;
	/* The pointer says what the node says; its address must be where it is. */
	cpc_put_le64(&header->bytenr, v->ptr.bytenr[0]);
	memcpy(header->uuid, v->t.params.uuid, CPC_UUID_SIZE);
	cpc_put_le32(&header->csum, cpc_csum_without_field(v->bad, v->t.nodesize,
							   offsetof(struct cpc_disk_node, csum)));
	root.csum = cpc_get_le32(&header->csum);
	root.generation = cpc_get_le64(&header->generation);
	root.level = header->level;
	for (unsigned copy = 0; copy < v->t.geo.copies; copy++)
		cpc_powercut_poke(v->t.pc, v->ptr.bytenr[copy], v->bad, v->t.nodesize);
	cpc_eb_forget(v->t.cache, v->ptr.bytenr[0]);
	use_tree(v, &root, cpc_get_le64(&header->owner));
}

/* --- damages --- */

static void damage_every_byte(struct victim *v)
{
	static const uint8_t flips[] = {0x01, 0x80, 0xff, 0x10};

	for (uint32_t i = 0; i < v->t.nodesize; i++) {
		for (unsigned k = 0; k < CPC_ARRAY_SIZE(flips); k++) {
			memcpy(v->bad, v->good, v->t.nodesize);
			v->bad[i] ^= flips[k];
			try_damage(v);
		}
	}
}

/* Damages several bytes near each other, preferably where the structure is. */
static void damage_at_random(struct victim *v, uint64_t nr)
{
	for (uint64_t i = 0; i < nr; i++) {
		struct tt *t = &v->t;
		uint32_t range = tt_below(t, 2) ? 256 : t->nodesize;
		uint32_t at = (uint32_t)tt_below(t, range), count = 1 + (uint32_t)tt_below(t, 8);

		memcpy(v->bad, v->good, t->nodesize);
		for (uint32_t k = 0; k < count; k++) {
			uint32_t where = (at + (uint32_t)tt_below(t, 32)) % t->nodesize;

			v->bad[where] = tt_below(t, 3) ? (uint8_t)tt_random(t) : 0;
		}
		try_damage(v);
	}
}

static void damage(struct victim *v, const char *name)
{
	damage_every_byte(v);
	damage_at_random(v, tt_env("CPC_TEST_OPS", 3000));
	assert_true(v->refused > 0);
	print_message("%s: %" PRIu64 " refused, %" PRIu64 " accepted and used\n", name, v->refused,
		      v->accepted);
	victim_destroy(v);
}

/* --- nodes of each kind --- */

static void build_tree(struct tt *t, uint64_t owner, uint64_t nr)
{
	struct tt_ops ops;

	tt_create(t, 4096, true, owner, base_seed);
	tt_ops_init(&ops);
	for (uint64_t at = 0; at < nr; at++) {
		uint32_t len = owner >= CPC_TREE_VOLUME_BASE ? 1 + (uint32_t)tt_below(t, 20) : 1;

		tt_op_put(t, &ops, at * 25, len, len);
	}
	assert_int_equal(tt_apply(t, &ops), 0);
	tt_ops_free(&ops);
}

static void leaf_of_a_volume(void **state)
{
	struct victim v;

	build_tree(&v.t, VOLUME_TREE, 30);
	assert_int_equal(v.t.root.level, 0);
	victim_init(&v, &v.t.root);
	damage(&v, "volume leaf");
}

static void inner_node(void **state)
{
	struct victim v;

	build_tree(&v.t, VOLUME_TREE, 800);
	assert_int_equal(v.t.root.level, 1);
	victim_init(&v, &v.t.root);
	damage(&v, "inner node");
}

static void leaf_of_the_free_log(void **state)
{
	struct victim v;

	build_tree(&v.t, CPC_TREE_FREE_LOG, 4);
	victim_init(&v, &v.t.root);
	damage(&v, "free-log leaf");
}

/* The items of all types, made by hand. */
struct items {
	struct cpc_tree_op op[16];
	uint8_t value[16][512];
	unsigned nr, at;
};

static void *new_item(struct items *items, uint64_t key, uint32_t size)
{
	struct cpc_tree_op *op = &items->op[items->nr];

	op->start = key;
	op->end = key + 1;
	op->size = size;
	op->value = items->value[items->nr];
	return items->value[items->nr++];
}

static int next_item(void *ctx, struct cpc_tree_op *op)
{
	struct items *items = ctx;

	if (items->at == items->nr)
		return 0;
	*op = items->op[items->at++];
	return 1;
}

static void some_ptr(const struct tt *t, struct cpc_disk_ptr *disk, unsigned i,
		     uint64_t data_blocks)
{
	struct cpc_node_ptr ptr = {
	    .generation = 3, .data_blocks = data_blocks, .nodes = 5, .level = 1};

	ptr.bytenr[0] = (t->geo.data_start + 1000 + 10 * i) << CPC_BLOCK_SHIFT;
	ptr.bytenr[1] = ptr.bytenr[0] + (1u << 20);
	cpc_ptr_encode(disk, &ptr);
}

static void fill_volume(const struct tt *t, struct items *items)
{
	struct cpc_disk_volume *v =
	    new_item(items, cpc_root_key(CPC_ITEM_VOLUME, 3), sizeof(*v) + 5);

	cpc_put_le64(&v->size, 123456789);
	cpc_put_le64(&v->flags, CPC_VOLUME_READONLY);
	cpc_put_le64(&v->generation, 4);
	cpc_put_le64(&v->limit, 2);
	cpc_put_le64(&v->origin, 1);
	cpc_put_le64(&v->snapshot_of, 2);
	some_ptr(t, &v->root, 0, 100);
	v->name_len = 5;
	memcpy(v->name, "disk1", 5);
}

static void fill_others(const struct tt *t, struct items *items)
{
	struct cpc_disk_group *g = new_item(items, cpc_root_key(CPC_ITEM_GROUP, 2), sizeof(*g));
	struct cpc_disk_drop *drop = new_item(items, cpc_root_key(CPC_ITEM_DROP, 9), sizeof(*drop));
	struct cpc_disk_dead *dead =
	    new_item(items, cpc_root_key(CPC_ITEM_DEAD, 3u << 16 | 1), sizeof(*dead));
	struct cpc_disk_delta *delta =
	    new_item(items, cpc_root_key(CPC_ITEM_DELTA, 3), sizeof(*delta));

	cpc_put_le64(&g->generation, 4);
	cpc_put_le32(&g->csum, 77);
	cpc_put_le32(&g->used, 1234);
	g->home = 1;
	some_ptr(t, &drop->ptr, 1, 50);
	cpc_put_le64(&drop->owner, VOLUME_TREE);
	cpc_put_le64(&dead->birth_min, 1);
	cpc_put_le64(&dead->birth_max, 2);
	cpc_put_le64(&dead->blocks, 9);
	some_ptr(t, &dead->root, 2, 0);
	cpc_put_le64(&delta->entries, 3);
	some_ptr(t, &delta->root, 3, 10);
}

static void build_items(struct victim *v, uint64_t owner, struct items *items)
{
	v->t.owner = owner;
	assert_int_equal(
	    cpc_btree_apply(&v->t.txn, owner, &v->t.root, next_item, items, &v->t.root), 0);
	victim_init(v, &v->t.root);
}

static void leaf_of_the_root_tree(void **state)
{
	struct items *items = calloc(1, sizeof(*items));
	struct victim v;

	tt_create(&v.t, 4096, true, CPC_TREE_ROOT, base_seed);
	fill_volume(&v.t, items);
	fill_others(&v.t, items);
	build_items(&v, CPC_TREE_ROOT, items);
	damage(&v, "root-tree leaf");
	free(items);
}

static void leaf_of_a_dead_bucket(void **state)
{
	struct items *items = calloc(1, sizeof(*items));
	struct victim v;

	tt_create(&v.t, 4096, true, CPC_TREE_DEAD, base_seed);
	for (unsigned i = 0; i < 10; i++) {
		struct cpc_disk_dead_run *run =
		    new_item(items, v.t.geo.data_start + 100 * i, sizeof(*run));

		cpc_put_le32(&run->blocks, 1 + i);
	}
	build_items(&v, CPC_TREE_DEAD, items);
	damage(&v, "dead-bucket leaf");
	free(items);
}

/* --- single claims --- */

/* Changes a good node by `edit` and expects these words. */
static void expect_refused(struct victim *v, void (*edit)(uint8_t *node), const char *words)
{
	const char *why;

	memcpy(v->bad, v->good, v->t.nodesize);
	edit(v->bad);
	why = cpc_tree_check_node(v->bad, v->t.nodesize, &v->t.geo);
	assert_non_null(why);
	if (!strstr(why, words))
		fail_msg("refused for \"%s\", expected \"%s\"", why, words);
}

static struct cpc_disk_item *item_of(uint8_t *node, unsigned i)
{
	return (struct cpc_disk_item *)(node + sizeof(struct cpc_disk_node)) + i;
}

static struct cpc_disk_child *child_of(uint8_t *node, unsigned i)
{
	return (struct cpc_disk_child *)(node + sizeof(struct cpc_disk_node)) + i;
}

static struct cpc_disk_extent *extent_of(uint8_t *node, unsigned i)
{
	return (void *)(node + cpc_get_le16(&item_of(node, i)->offset));
}

static void edit_padding(uint8_t *node)
{
	node[64 + 12 * cpc_node_nritems(node)] = 1;
}

static void edit_overlap(uint8_t *node)
{
	uint64_t len = cpc_item_len(VOLUME_TREE, cpc_get_le16(&item_of(node, 0)->size));

	cpc_put_le64(&item_of(node, 1)->key, cpc_get_le64(&item_of(node, 0)->key) + len - 1);
}

static void edit_key_overflow(uint8_t *node)
{
	cpc_put_le64(&item_of(node, cpc_node_nritems(node) - 1)->key, UINT64_MAX - 1);
}

static void edit_gap(uint8_t *node)
{
	struct cpc_disk_item *item = item_of(node, 0);

	cpc_put_le16(&item->offset, (uint16_t)(cpc_get_le16(&item->offset) - 4));
}

/* One item more than there is room for: the last values stand in the table. */
static void edit_table(uint8_t *node)
{
	uint32_t size = cpc_extent_value_size(1), tail = 4096;
	uint32_t nr = (tail - 64) / (12 + size) + 1;
	struct cpc_disk_extent e = *extent_of(node, 0);

	for (uint32_t i = 0; i < nr; i++)
		memcpy(node + tail - (i + 1) * size, &e, sizeof(e));
	for (uint32_t i = 0; i < nr; i++) {
		cpc_put_le64(&item_of(node, i)->key, i);
		cpc_put_le16(&item_of(node, i)->offset, (uint16_t)(tail - (i + 1) * size));
		cpc_put_le16(&item_of(node, i)->size, (uint16_t)size);
	}
	cpc_put_le32(&((struct cpc_disk_node *)node)->nritems, nr);
}

static void edit_no_bytes(uint8_t *node)
{
	struct cpc_disk_item *item = item_of(node, 0);

	cpc_put_le16(&item->offset, 4096);
	cpc_put_le16(&item->size, 0);
}

static void edit_address(uint8_t *node)
{
	cpc_put_le64(&extent_of(node, 0)->bytenr, CPC_BLOCK_SIZE);
}

static void edit_address_unaligned(uint8_t *node)
{
	cpc_put_le64(&extent_of(node, 0)->bytenr, cpc_get_le64(&extent_of(node, 0)->bytenr) + 512);
}

static void edit_birth(uint8_t *node)
{
	cpc_put_le64(&extent_of(node, 0)->birth,
		     cpc_get_le64(&cpc_node_header(node)->generation) + 1);
}

static void edit_count(uint8_t *node)
{
	cpc_put_le32(&((struct cpc_disk_node *)node)->nritems, 0xffffffff);
}

static void edit_empty(uint8_t *node)
{
	cpc_put_le32(&((struct cpc_disk_node *)node)->nritems, 0);
}

static void damaged_leaves_are_refused_with_the_reason(void **state)
{
	struct victim v;

	build_tree(&v.t, VOLUME_TREE, 30);
	victim_init(&v, &v.t.root);
	expect_refused(&v, edit_padding, "bytes between");
	expect_refused(&v, edit_overlap, "keys");
	expect_refused(&v, edit_key_overflow, "beyond the largest volume");
	expect_refused(&v, edit_gap, "place of a value");
	expect_refused(&v, edit_table, "place of a value");
	expect_refused(&v, edit_no_bytes, "item size");
	expect_refused(&v, edit_address, "outside the data area");
	expect_refused(&v, edit_address_unaligned, "outside the data area");
	expect_refused(&v, edit_birth, "birth");
	expect_refused(&v, edit_count, "number of items");
	expect_refused(&v, edit_empty, "number of items");
	victim_destroy(&v);
}

/* In a leaf of the free log: one item, right but for its size. */
static void edit_size(uint8_t *node)
{
	const uint32_t nr = CPC_ITEM_MAX_SIZE / sizeof(struct cpc_disk_free_entry) + 1;
	const uint32_t offset =
	    4096 - sizeof(struct cpc_disk_free_log) - nr * sizeof(struct cpc_disk_free_entry);
	struct cpc_disk_free_log *log = (void *)(node + offset);
	struct cpc_disk_free_entry entry;
	cpc_le64 transid;

	memcpy(&transid, node + cpc_get_le16(&item_of(node, 0)->offset), sizeof(transid));
	memcpy(&entry, node + cpc_get_le16(&item_of(node, 0)->offset) + sizeof(*log),
	       sizeof(entry));
	memset(item_of(node, 1), 0, 4096 - 64 - 12);
	log->transid = transid;
	for (uint32_t i = 0; i < nr; i++)
		memcpy(&log->entry[i], &entry, sizeof(entry));
	cpc_put_le16(&item_of(node, 0)->offset, (uint16_t)offset);
	cpc_put_le16(&item_of(node, 0)->size, (uint16_t)(4096 - offset));
	cpc_put_le32(&((struct cpc_disk_node *)node)->nritems, 1);
}

static void values_larger_than_the_limit_are_refused(void **state)
{
	struct victim v;

	build_tree(&v.t, CPC_TREE_FREE_LOG, 4);
	victim_init(&v, &v.t.root);
	expect_refused(&v, edit_size, "place of a value");
	victim_destroy(&v);
}

static void edit_child_level(uint8_t *node)
{
	child_of(node, 0)->ptr.level = 1;
}

static void edit_child_order(uint8_t *node)
{
	child_of(node, 1)->key = child_of(node, 0)->key;
}

static void edit_child_generation(uint8_t *node)
{
	cpc_put_le64(&child_of(node, 0)->ptr.generation,
		     cpc_get_le64(&cpc_node_header(node)->generation) + 1);
}

static void edit_child_copy(uint8_t *node)
{
	child_of(node, 0)->ptr.bytenr2 = child_of(node, 0)->ptr.bytenr;
}

static void edit_child_copy_outside(uint8_t *node)
{
	cpc_put_le64(&child_of(node, 0)->ptr.bytenr2, 0);
}

static void edit_child_nodes(uint8_t *node)
{
	cpc_put_le32(&child_of(node, 0)->ptr.nodes, 2);
}

static void edit_child_data(uint8_t *node)
{
	cpc_put_le64(&child_of(node, 0)->ptr.data_blocks, UINT64_MAX);
}

static void damaged_inner_nodes_are_refused_with_the_reason(void **state)
{
	struct victim v;

	build_tree(&v.t, VOLUME_TREE, 800);
	victim_init(&v, &v.t.root);
	expect_refused(&v, edit_child_level, "level of a child");
	expect_refused(&v, edit_child_order, "keys not ascending");
	expect_refused(&v, edit_child_generation, "generation");
	expect_refused(&v, edit_child_copy, "copies overlap");
	expect_refused(&v, edit_child_copy_outside, "second address");
	expect_refused(&v, edit_child_nodes, "number of nodes");
	expect_refused(&v, edit_child_data, "number of data blocks");
	expect_refused(&v, edit_count, "number of items");
	victim_destroy(&v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(leaf_of_a_volume),
	    cmocka_unit_test(inner_node),
	    cmocka_unit_test(leaf_of_the_free_log),
	    cmocka_unit_test(leaf_of_the_root_tree),
	    cmocka_unit_test(leaf_of_a_dead_bucket),
	    cmocka_unit_test(damaged_leaves_are_refused_with_the_reason),
	    cmocka_unit_test(values_larger_than_the_limit_are_refused),
	    cmocka_unit_test(damaged_inner_nodes_are_refused_with_the_reason),
	};

	cpc_log_set_sink(quiet);
	base_seed = tt_env("CPC_TEST_SEED", 1);
	print_message("CPC_TEST_SEED=%" PRIu64 "\n", base_seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
