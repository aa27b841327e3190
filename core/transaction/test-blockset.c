/* SPDX-License-Identifier: BSD-3-Clause */
/* A set of blocks behaves like an array of bits, whatever is done to it and in whichever order. */
#include "transaction/blockset.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "lib/hooks.h"

#define GROUPS 3u
#define BLOCKS (GROUPS * (uint64_t)CPC_GROUP_BLOCKS)

static uint64_t rng;

static uint64_t draw(uint64_t below)
{
	rng = rng * 6364136223846793005ull + 1442695040888963407ull;
	return (rng >> 20) % below;
}

static void seed(void)
{
	const char *text = getenv("CPC_TEST_SEED");

	rng = text ? strtoull(text, NULL, 0) : 3605134638u;
	print_message("CPC_TEST_SEED=%llu\n", (unsigned long long)rng);
}

/* --- against a plain array --- */

struct model {
	struct cpc_blockset set;
	bool bit[BLOCKS];
};

static void model_init(struct model *m)
{
	memset(m->bit, 0, sizeof(m->bit));
	cpc_blockset_init(&m->set, GROUPS);
}

/* Ranges of one block, of a few, of a word's size and of more than a group; often at an edge. */
static void draw_range(uint64_t *block, uint64_t *nr)
{
	static const uint64_t lens[] = {1, 3, 63, 64, 65, 500, CPC_GROUP_BLOCKS + 70};
	static const uint64_t steps[] = {1, 1, 64, CPC_GROUP_BLOCKS};

	*block = draw(BLOCKS) / steps[draw(4)];
	*block = cpc_min_u64(BLOCKS - 1, *block * steps[draw(4)] % BLOCKS);
	*nr = cpc_min_u64(1 + draw(lens[draw(CPC_ARRAY_SIZE(lens))]), BLOCKS - *block);
}

static void model_change(struct model *m, uint64_t block, uint64_t nr, bool add)
{
	if (add)
		assert_int_equal(cpc_blockset_add(&m->set, block, nr), 0);
	else
		cpc_blockset_remove(&m->set, block, nr);
	for (uint64_t b = block; b < block + nr; b++)
		m->bit[b] = add;
}

static uint64_t model_count(const struct model *m)
{
	uint64_t count = 0;

	for (uint64_t b = 0; b < BLOCKS; b++)
		count += m->bit[b];
	return count;
}

static void assert_walk_equals(const struct model *m)
{
	uint64_t block, nr, at = 0;

	cpc_blockset_for_each(&m->set, block, nr)
	{
		for (; at < block; at++)
			assert_false(m->bit[at]);
		assert_int_equal(block / CPC_GROUP_BLOCKS, (block + nr - 1) / CPC_GROUP_BLOCKS);
		for (; at < block + nr; at++)
			assert_true(m->bit[at]);
		/* ranges are joined within a group */
		assert_true(at == BLOCKS || at % CPC_GROUP_BLOCKS == 0 || !m->bit[at]);
	}
	for (; at < BLOCKS; at++)
		assert_false(m->bit[at]);
}

static void assert_equal(const struct model *m)
{
	assert_int_equal(m->set.nr_blocks, model_count(m));
	assert_walk_equals(m);
	for (unsigned i = 0; i < 1000; i++) {
		uint64_t b = draw(BLOCKS), g = b / CPC_GROUP_BLOCKS, bit = b % CPC_GROUP_BLOCKS;
		const uint8_t *bitmap = (const void *)cpc_blockset_group(&m->set, g);

		assert_int_equal(cpc_blockset_test(&m->set, b), m->bit[b]);
		assert_int_equal(bitmap && bitmap[bit / 8] >> bit % 8 & 1, m->bit[b]);
	}
}

static void random_changes_equal_a_plain_array(void **state)
{
	static struct model m;

	for (unsigned round = 0; round < 20; round++) {
		model_init(&m);
		for (unsigned i = 0; i < 60; i++) {
			uint64_t block, nr;

			draw_range(&block, &nr);
			model_change(&m, block, nr, draw(3) != 0);
			if (i % 6 == 5)
				assert_equal(&m);
		}
		cpc_blockset_destroy(&m.set);
	}
}

static void a_walk_from_any_block_finds_the_next_range(void **state)
{
	static struct model m;
	uint64_t block, nr;

	model_init(&m);
	model_change(&m, CPC_GROUP_BLOCKS + 100, 50, true);
	assert_true(cpc_blockset_next(&m.set, 0, &block, &nr));
	assert_int_equal(block, CPC_GROUP_BLOCKS + 100);
	assert_true(cpc_blockset_next(&m.set, CPC_GROUP_BLOCKS + 120, &block, &nr));
	assert_int_equal(block, CPC_GROUP_BLOCKS + 120);
	assert_int_equal(nr, 30);
	assert_false(cpc_blockset_next(&m.set, CPC_GROUP_BLOCKS + 150, &block, &nr));
	assert_false(cpc_blockset_next(&m.set, BLOCKS, &block, &nr));
	cpc_blockset_destroy(&m.set);
}

static void moving_joins_two_sets_and_empties_one(void **state)
{
	static struct model a, b;

	for (unsigned round = 0; round < 10; round++) {
		model_init(&a);
		model_init(&b);
		for (uint64_t at = 0; at + 400 < BLOCKS; at += 1 + draw(3000)) {
			struct model *m = draw(2) && round ? &a : &b;
			uint64_t nr = 1 + draw(300);

			model_change(m, at, nr, true);
			at += nr;
		}
		assert_int_equal(cpc_blockset_move(&a.set, &b.set), 0);
		for (uint64_t i = 0; i < BLOCKS; i++)
			a.bit[i] |= b.bit[i];
		memset(b.bit, 0, sizeof(b.bit));
		assert_equal(&a);
		assert_equal(&b);
		model_change(&b, 5, 5, true); /* an emptied set can be used again */
		assert_equal(&b);
		cpc_blockset_destroy(&a.set);
		cpc_blockset_destroy(&b.set);
	}
}

/* --- without memory --- */

static unsigned allocs_left;

static void *failing_alloc(size_t align, size_t size)
{
	if (allocs_left == 0)
		return NULL;
	allocs_left--;
	return cpc_hooks_default.alloc(align, size);
}

static void without_memory_nothing_changes(void **state)
{
	static struct model m, other;
	int ret = -ENOMEM;

	cpc_hooks.alloc = failing_alloc;
	for (unsigned n = 0; ret; n++) {
		model_init(&m);
		allocs_left = 10;
		model_change(&m, 10, 10, true);
		allocs_left = n;
		ret = cpc_blockset_add(&m.set, 5, BLOCKS - 5);
		if (ret)
			assert_equal(&m);
		cpc_blockset_destroy(&m.set);
	}
	ret = -ENOMEM;
	for (unsigned n = 0; ret; n++) {
		model_init(&m);
		model_init(&other);
		allocs_left = 10;
		model_change(&m, 10, 10, true);
		model_change(&other, CPC_GROUP_BLOCKS, 10, true);
		model_change(&other, 2 * CPC_GROUP_BLOCKS, 10, true);
		allocs_left = n;
		ret = cpc_blockset_move(&m.set, &other.set);
		if (ret) {
			assert_equal(&m);
			assert_equal(&other);
		}
		cpc_blockset_destroy(&m.set);
		cpc_blockset_destroy(&other.set);
	}
	cpc_hooks = cpc_hooks_default;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(random_changes_equal_a_plain_array),
	    cmocka_unit_test(a_walk_from_any_block_finds_the_next_range),
	    cmocka_unit_test(moving_joins_two_sets_and_empties_one),
	    cmocka_unit_test(without_memory_nothing_changes),
	};

	seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
