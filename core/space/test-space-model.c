/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test-space-model: random operations against an array that knows the state of every block.
 *
 * CPC_TEST_SEED repeats a run, CPC_TEST_OPS sets its length.
 */
#include "space/test-disk-internal.h"

enum state { FREE, BUSY, USED, FREEING, NR_STATES };

/* Extents that the test owns, by state. */
struct extent {
	uint64_t block;
	uint32_t nr;
};

struct extents {
	struct extent *list;
	size_t nr, capacity;
};

static struct disk disk;
static uint8_t *states; /* enum state of every block */
static struct extents owned[NR_STATES];
static uint64_t nr_in[NR_STATES]; /* blocks of the data area */
static struct cpc_space *space;
static uint32_t node_blocks;

/* --- the model ------------------------------------------------------------------------------ */

static void own(enum state s, uint64_t block, uint32_t nr)
{
	struct extents *e = &owned[s];

	if (e->nr == e->capacity) {
		e->capacity = e->capacity * 2 + 64;
		e->list = realloc(e->list, e->capacity * sizeof(*e->list));
	}
	e->list[e->nr++] = (struct extent){block, nr};
}

/* Takes a random extent of a state, sometimes only the first part of it. */
static bool disown(enum state s, struct extent *out)
{
	struct extents *e = &owned[s];
	size_t i;

	if (e->nr == 0)
		return false;
	i = rnd(e->nr);
	*out = e->list[i];
	e->list[i] = e->list[--e->nr];
	if (out->nr > 1 && rnd(3) == 0) {
		uint32_t nr = 1 + (uint32_t)rnd(out->nr - 1);

		own(s, out->block + nr, out->nr - nr);
		out->nr = nr;
	}
	return true;
}

static void change(uint64_t block, uint32_t nr, enum state from, enum state to)
{
	for (uint32_t i = 0; i < nr; i++) {
		assert_int_equal(states[block + i], from);
		states[block + i] = (uint8_t)to;
	}
	nr_in[from] -= nr;
	nr_in[to] += nr;
}

static bool slot_at(uint64_t block)
{
	for (uint32_t i = 0; i < node_blocks; i++) {
		if (block + i < disk.geo.data_start || block + i >= disk.geo.data_end ||
		    states[block + i] != FREE)
			return false;
	}
	return true;
}

static uint64_t count_slots(void)
{
	uint64_t n = 0;

	for (uint64_t b = 0; b < disk.geo.nr_blocks; b += node_blocks)
		n += slot_at(b);
	return n;
}

static void check_counts(void)
{
	struct cpc_space_info info;

	cpc_space_info(space, &info);
	assert_int_equal(info.free, nr_in[FREE]);
	assert_int_equal(info.used, nr_in[USED] + nr_in[FREEING] + disk.geo.nr_blocks -
					(disk.geo.data_end - disk.geo.data_start));
}

/* --- operations ----------------------------------------------------------------------------- */

static void op_alloc_data(void)
{
	uint32_t want = 1 + (uint32_t)rnd(256), min = rnd(8) ? 1 : 1 + (uint32_t)rnd(want), got;
	uint64_t block;
	int err = cpc_space_alloc(space, CPC_SPACE_DATA, want, min, &block, &got);

	if (err) {
		assert_int_equal(err, -ENOSPC);
		assert_true(min > 1 || nr_in[FREE] == 0);
		return;
	}
	assert_true(got >= min && got <= want);
	change(block, got, FREE, BUSY);
	own(BUSY, block, got);
}

static void op_alloc_node(void)
{
	enum cpc_space_kind kind = rnd(2) ? CPC_SPACE_NODE : CPC_SPACE_NODE2;
	uint64_t block;
	uint32_t got;
	int err = cpc_space_alloc(space, kind, node_blocks, node_blocks, &block, &got);

	if (err) {
		assert_int_equal(err, -ENOSPC);
		assert_int_equal(count_slots(), 0);
		return;
	}
	assert_int_equal(got, node_blocks);
	assert_int_equal(block % node_blocks, 0);
	change(block, got, FREE, BUSY);
	own(BUSY, block, got);
}

static void op_release(void)
{
	struct extent e;

	if (!disown(BUSY, &e))
		return;
	change(e.block, e.nr, BUSY, FREE);
	cpc_space_release(space, e.block, e.nr);
}

static void set_dirty(const struct extent *e)
{
	for (uint64_t g = e->block / CPC_GROUP_BLOCKS;
	     g <= (e->block + e->nr - 1) / CPC_GROUP_BLOCKS; g++)
		cpc_space_set_dirty(space, g, true);
}

static void op_set_used(void)
{
	struct extent e;

	if (!disown(BUSY, &e))
		return;
	change(e.block, e.nr, BUSY, USED);
	own(USED, e.block, e.nr);
	set_dirty(&e);
	cpc_space_set_used(space, e.block, e.nr);
}

static void op_prepare(void)
{
	struct extent e;

	if (!disown(USED, &e))
		return;
	assert_int_equal(cpc_space_prepare_free(space, e.block, e.nr), 0);
	change(e.block, e.nr, USED, FREEING);
	own(FREEING, e.block, e.nr);
}

static void op_unprepare(void)
{
	struct extent e;

	if (!disown(FREEING, &e))
		return;
	change(e.block, e.nr, FREEING, USED);
	own(USED, e.block, e.nr);
	cpc_space_unprepare(space, e.block, e.nr);
}

static void op_clear_used(void)
{
	struct extent e;

	if (!disown(FREEING, &e))
		return;
	change(e.block, e.nr, FREEING, BUSY);
	own(BUSY, e.block, e.nr);
	set_dirty(&e);
	cpc_space_clear_used(space, e.block, e.nr);
}

/* Any range: refused unless all of it is in use and not prepared. */
static void op_prepare_anything(void)
{
	uint64_t block = rnd(disk.geo.nr_blocks + 10), nr = 1 + rnd(300);
	bool ok = block >= disk.geo.data_start && block + nr <= disk.geo.data_end;

	for (uint64_t i = 0; i < nr && ok; i++)
		ok = states[block + i] == USED;
	assert_int_equal(cpc_space_prepare_free(space, block, nr), ok ? 0 : -EUCLEAN);
	if (ok)
		cpc_space_unprepare(space, block, nr);
}

static void op_mark_busy(void)
{
	uint64_t data = disk.geo.data_end - disk.geo.data_start;
	uint64_t block = disk.geo.data_start + rnd(data);
	uint64_t end = cpc_min_u64(block + 1 + rnd(60), disk.geo.data_end);

	assert_int_equal(cpc_space_mark_busy(space, block, end - block), 0);
	for (; block < end; block++) {
		if (states[block] != FREE)
			continue;
		change(block, 1, FREE, BUSY);
		own(BUSY, block, 1);
	}
}

static void fold(uint64_t group)
{
	uint8_t bitmap[CPC_BLOCK_SIZE];
	uint32_t used, expect = 0, blocks = cpc_geometry_group_blocks(&disk.geo, group);

	assert_int_equal(cpc_space_get_used(space, group, bitmap, &used), 0);
	for (uint32_t i = 0; i < CPC_GROUP_BLOCKS; i++) {
		uint64_t b = group * CPC_GROUP_BLOCKS + i;
		bool set = b < disk.geo.data_start || b >= disk.geo.data_end || states[b] == USED ||
			   states[b] == FREEING;

		assert_int_equal(bitmap_get(bitmap, i), set);
		expect += set && i < blocks;
	}
	assert_int_equal(used, expect);
	memcpy(disk.bitmaps[group], bitmap, CPC_BLOCK_SIZE);
	cpc_space_set_dirty(space, group, false);
}

static void op_fold(void)
{
	if (rnd(10) == 0)
		fold(rnd(disk.geo.nr_groups));
}

static void op_reserve(void)
{
	uint64_t nr = rnd(nr_in[FREE] * 2 + 1), keep = rnd(nr_in[FREE] + 1);
	int err = cpc_space_reserve(space, nr, keep);

	assert_int_equal(err, nr + keep <= nr_in[FREE] ? 0 : -ENOSPC);
	if (!err)
		cpc_space_unreserve(space, nr);
}

static void op_reserve_nodes(void)
{
	uint64_t slots = rnd(50) ? 0 : count_slots();

	if (!slots)
		return;
	assert_int_equal(cpc_space_reserve_nodes(space, slots + 1, 0), -ENOSPC);
	assert_int_equal(cpc_space_reserve_nodes(space, slots, 0), 0);
	cpc_space_unreserve_nodes(space, slots);
}

/* --- lives ---------------------------------------------------------------------------------- */

/* The end of a life: what is folded stays, what was only busy is gone. */
static void close_pool(void)
{
	for (uint64_t g = 0; g < disk.geo.nr_groups; g++)
		fold(g);
	cpc_space_check(space);
	cpc_space_destroy(space);
}

static void reopen(void)
{
	struct extent e;

	close_pool();
	space = disk_open(&disk);
	cpc_space_set_max_loaded(space, (uint32_t)rnd(4));
	while (disown(BUSY, &e))
		change(e.block, e.nr, BUSY, FREE);
	while (disown(FREEING, &e)) {
		change(e.block, e.nr, FREEING, USED);
		own(USED, e.block, e.nr);
	}
}

static void first_life(void)
{
	node_blocks = 1u << rnd(5);
	disk_init(&disk, 4 * 32768 - rnd(40000), node_blocks * CPC_BLOCK_SIZE, rnd(2));
	states = calloc(disk.geo.nr_blocks, 1);
	memset(nr_in, 0, sizeof(nr_in));
	nr_in[FREE] = disk.geo.data_end - disk.geo.data_start;
	for (int s = 0; s < NR_STATES; s++)
		owned[s].nr = 0;
	space = disk_open(&disk);
	cpc_space_set_max_loaded(space, (uint32_t)rnd(4));
}

static void (*const ops[])(void) = {
    op_alloc_data, op_alloc_data, op_alloc_node,       op_alloc_node, op_release,
    op_set_used,   op_set_used,	  op_prepare,	       op_unprepare,  op_clear_used,
    op_mark_busy,  op_fold,	  op_prepare_anything, op_reserve,    op_reserve_nodes,
};

/* The pool fills in one phase and drains in the next. */
static void one_op(bool filling)
{
	if (filling && rnd(2))
		ops[rnd(4)]();
	else if (!filling && rnd(2))
		ops[rnd(2) ? 4 : 7 + rnd(3)]();
	else
		ops[rnd(CPC_ARRAY_SIZE(ops))]();
	check_counts();
}

static void test_random_operations_are_what_the_array_says(void **state)
{
	uint64_t nr = nr_ops(400000), lives = 4;

	seed(__func__);
	for (uint64_t life = 0; life < lives; life++) {
		first_life();
		for (uint64_t i = 0; i < nr / lives; i++) {
			one_op(i % 12000 < 7000);
			if (i % 1000 == 0)
				cpc_space_check(space);
			if (rnd(10000) == 0)
				reopen();
		}
		close_pool();
		free(states);
	}
	for (int s = 0; s < NR_STATES; s++)
		free(owned[s].list);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(test_random_operations_are_what_the_array_says, setup,
					    teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
