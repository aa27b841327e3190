/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test-run: runs against plain arrays that say for every block what the newest run says.
 *
 * CPC_TEST_SEED repeats a random test, CPC_TEST_OPS sets how many rounds it takes.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "extent-map/run.h"
#include "format/format.h"
#include "lib/hooks.h"

#define NR_BLOCKS 1024u	  /* of the volume */
#define NR_POOL	  262144u /* blocks of the pool */
#define MAX_RUNS  6u

/* --- a repeatable source of numbers --------------------------------------------------------- */

static uint64_t seed_state;

static uint64_t rnd(uint64_t below)
{
	seed_state = seed_state * 6364136223846793005ull + 1442695040888963407ull;
	return (seed_state >> 33) % below;
}

static void seed(const char *test)
{
	const char *env = getenv("CPC_TEST_SEED");

	seed_state = env ? strtoull(env, NULL, 0) : (uint64_t)time(NULL) * 1000003u;
	printf("%s: CPC_TEST_SEED=%" PRIu64 "\n", test, seed_state);
}

static uint64_t nr_ops(uint64_t usual)
{
	const char *env = getenv("CPC_TEST_OPS");

	return env ? strtoull(env, NULL, 0) : usual;
}

/* --- memory that fails on demand ------------------------------------------------------------ */

static long fail_countdown = -1;
static long nr_live;

static void *failing_alloc(size_t align, size_t size)
{
	void *p;

	if (fail_countdown >= 0 && fail_countdown-- == 0)
		return NULL;
	p = cpc_hooks_default.alloc(align, size);
	nr_live += p != NULL;
	return p;
}

static void counting_free(void *ptr)
{
	nr_live--;
	cpc_hooks_default.free(ptr);
}

static int setup(void **state)
{
	cpc_hooks.alloc = failing_alloc;
	cpc_hooks.free = counting_free;
	fail_countdown = -1;
	nr_live = 0;
	return 0;
}

static int teardown(void **state)
{
	cpc_hooks = cpc_hooks_default;
	return nr_live != 0;
}

/* --- the reference -------------------------------------------------------------------------- */

/* What one run says about one block; pool 0: hole. */
struct cell {
	bool known;
	uint32_t pool, csum;
};

struct model {
	struct cell cells[NR_BLOCKS];
};

static uint32_t next_pool;

/* The checksum that stands for a pool block in these tests. */
static uint32_t csum_of(uint32_t pool)
{
	return pool * 2654435761u + 1;
}

static void add_data(struct model *model, struct cpc_run_builder *b, uint32_t block, uint32_t nr,
		     uint32_t pool)
{
	uint32_t csums[NR_BLOCKS];

	for (uint32_t i = 0; i < nr; i++) {
		csums[i] = csum_of(pool + i);
		model->cells[block + i] = (struct cell){true, pool + i, csums[i]};
	}
	cpc_run_builder_map(b, block, nr, (uint64_t)pool << CPC_BLOCK_SHIFT, csums);
}

static void add_hole(struct model *model, struct cpc_run_builder *b, uint32_t block, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++)
		model->cells[block + i] = (struct cell){.known = true};
	cpc_run_builder_hole(b, block, nr);
}

/* Repeats what `older` maps at `block`, as far as it is consecutive. Returns the blocks taken. */
static uint32_t add_repeat(struct model *model, struct cpc_run_builder *b,
			   const struct model *older, uint32_t block, uint32_t nr)
{
	const struct cell *c = &older->cells[block];
	uint32_t i = 0;

	if (!c->known || !c->pool)
		return 0;
	while (i < nr && c[i].known && c[i].pool == c[0].pool + i)
		i++;
	add_data(model, b, block, i, c[0].pool);
	return i;
}

/* Builds a random run; `density` in 1/8. `older` (or NULL) is sometimes repeated. */
static struct cpc_run *random_run(struct model *model, const struct model *older, unsigned density,
				  uint32_t max_len)
{
	struct cpc_run_builder b;
	struct cpc_run *run;

	memset(model, 0, sizeof(*model));
	cpc_run_builder_init(&b, rnd(20), rnd(200));
	for (uint32_t block = (uint32_t)rnd(8), nr; block < NR_BLOCKS; block += nr) {
		nr = 1 + (uint32_t)rnd(cpc_min_u64(max_len, NR_BLOCKS - block));
		if (rnd(8) >= density)
			continue;
		if (older && rnd(4) == 0) {
			uint32_t taken = add_repeat(model, &b, older, block, nr);

			if (taken) {
				nr = taken;
				continue;
			}
		}
		if (rnd(4) == 0) {
			add_hole(model, &b, block, nr);
			continue;
		}
		if (rnd(2)) /* else it may join the one before */
			next_pool++;
		add_data(model, &b, block, nr, next_pool);
		next_pool += nr;
	}
	assert_int_equal(cpc_run_builder_finish(&b, &run), 0);
	cpc_run_check(run);
	return run;
}

static void check_mapping(const struct model *model, const struct cpc_mapping *m)
{
	for (uint64_t i = 0; i < m->nr; i++) {
		const struct cell *c = &model->cells[m->block + i];

		assert_true(c->known);
		if (!c->pool) {
			assert_true(m->bytenr == 0 && !m->csums);
			continue;
		}
		assert_true(m->bytenr + (i << CPC_BLOCK_SHIFT) == (uint64_t)c->pool
								      << CPC_BLOCK_SHIFT);
		assert_int_equal(m->csums[i], c->csum);
	}
}

static void check_lookup(const struct model *model, const struct cpc_run *run, uint32_t block,
			 uint64_t max)
{
	struct cpc_mapping m;
	bool found = cpc_run_lookup(run, block, max, &m);

	assert_int_equal(found, model->cells[block].known);
	assert_true(m.block == block && m.nr > 0 && m.nr <= max);
	if (found) {
		assert_true(m.block + m.nr <= NR_BLOCKS);
		check_mapping(model, &m);
		return;
	}
	assert_true(m.bytenr == 0 && !m.csums);
	for (uint64_t i = block; i < block + m.nr && i < NR_BLOCKS; i++)
		assert_false(model->cells[i].known);
	if (m.nr < max)
		assert_true(model->cells[block + m.nr].known);
}

/* Every block by lookup, and all of it by the iterator from a random start. */
static void check_run(const struct model *model, const struct cpc_run *run)
{
	struct cpc_run_iter it;
	struct cpc_mapping m;
	uint32_t from = (uint32_t)rnd(NR_BLOCKS), pos = from;

	for (uint32_t block = 0; block < NR_BLOCKS; block++)
		check_lookup(model, run, block, rnd(4) ? UINT64_MAX - block : 1 + rnd(40));
	cpc_run_iter_init(&it, run, from);
	while (cpc_run_iter_next(&it, &m)) {
		for (; pos < m.block; pos++)
			assert_false(model->cells[pos].known);
		assert_true(m.block == pos);
		check_mapping(model, &m);
		pos += (uint32_t)m.nr;
	}
	for (; pos < NR_BLOCKS; pos++)
		assert_false(model->cells[pos].known);
}

/* --- merge ---------------------------------------------------------------------------------- */

static uint8_t dropped[NR_POOL], expect_dropped[NR_POOL];
static uint64_t nr_drop_calls;

static void note_drop(void *ctx, uint64_t bytenr, uint64_t nr)
{
	assert_ptr_equal(ctx, dropped);
	assert_true(nr > 0 && bytenr % CPC_BLOCK_SIZE == 0);
	nr_drop_calls++;
	for (uint64_t i = 0; i < nr; i++)
		dropped[(bytenr >> CPC_BLOCK_SHIFT) + i]++;
}

/* models[0] is the newest. Fills the merged model and expect_dropped. */
static void merge_models(const struct model *models, size_t nr, struct model *merged)
{
	memset(merged, 0, sizeof(*merged));
	memset(expect_dropped, 0, sizeof(expect_dropped));
	memset(dropped, 0, sizeof(dropped));
	nr_drop_calls = 0;
	for (size_t i = nr; i-- > 0;) {
		for (uint32_t block = 0; block < NR_BLOCKS; block++) {
			const struct cell *c = &models[i].cells[block];
			struct cell *out = &merged->cells[block];

			if (!c->known)
				continue;
			if (out->known && out->pool && out->pool != c->pool)
				expect_dropped[out->pool] = 1;
			*out = *c;
		}
	}
}

static uint64_t count_known_data(const struct model *model)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < NR_BLOCKS; i++)
		n += model->cells[i].known && model->cells[i].pool;
	return n;
}

static void check_runs_lookup(const struct model *merged, struct cpc_run *const *runs, size_t nr)
{
	struct cpc_mapping m;

	for (uint32_t block = 0; block < NR_BLOCKS; block += (uint32_t)m.nr) {
		bool found = cpc_runs_lookup(runs, nr, block, NR_BLOCKS - block, &m);

		assert_true(m.block == block && m.nr > 0 && m.nr <= NR_BLOCKS - block);
		if (found)
			check_mapping(merged, &m);
		for (uint64_t i = 0; !found && i < m.nr; i++)
			assert_false(merged->cells[block + i].known);
	}
}

static void merge_once(void)
{
	static struct model models[MAX_RUNS], merged;
	struct cpc_run *runs[MAX_RUNS], *out;
	size_t nr = rnd(MAX_RUNS + 1);
	unsigned density = 1 + (unsigned)rnd(8);
	uint32_t max_len = rnd(2) ? 6 : 400;

	next_pool = 1;
	for (size_t i = nr; i-- > 0;)
		runs[i] =
		    random_run(&models[i], i + 1 < nr ? &models[i + 1] : NULL, density, max_len);
	merge_models(models, nr, &merged);
	check_runs_lookup(&merged, runs, nr);
	assert_int_equal(cpc_run_merge(runs, nr, &out, rnd(8) ? note_drop : NULL, dropped), 0);
	cpc_run_check(out);
	check_run(&merged, out);
	assert_int_equal(out->data_blocks, count_known_data(&merged));
	if (nr_drop_calls)
		assert_memory_equal(dropped, expect_dropped, sizeof(dropped));
	for (size_t i = 0; i < nr; i++)
		cpc_run_put(runs[i]);
	cpc_run_put(out);
}

static void test_merge_is_what_the_newest_run_says(void **state)
{
	uint64_t ops = nr_ops(1500);

	seed(__func__);
	for (uint64_t i = 0; i < ops; i++)
		merge_once();
}

static struct cpc_run *one_map(uint64_t block, uint64_t nr, uint64_t bytenr)
{
	struct cpc_run_builder b;
	struct cpc_run *run;
	uint32_t *csums = calloc(nr, sizeof(*csums));

	for (uint64_t i = 0; i < nr; i++)
		csums[i] = (uint32_t)(bytenr >> CPC_BLOCK_SHIFT) + (uint32_t)i;
	cpc_run_builder_init(&b, 0, 0);
	cpc_run_builder_map(&b, block, nr, bytenr, csums);
	assert_int_equal(cpc_run_builder_finish(&b, &run), 0);
	free(csums);
	return run;
}

static struct cpc_run *one_hole(uint64_t block, uint64_t nr)
{
	struct cpc_run_builder b;
	struct cpc_run *run;

	cpc_run_builder_init(&b, 0, 0);
	cpc_run_builder_hole(&b, block, nr);
	assert_int_equal(cpc_run_builder_finish(&b, &run), 0);
	return run;
}

/* Each drop exactly once: random rounds whose drops are always looked at, also when there are
 * none. */
static void test_drops_are_told_exactly_once(void **state)
{
	static struct model models[MAX_RUNS], merged;
	struct cpc_run *runs[MAX_RUNS], *out;
	uint64_t ops = nr_ops(1500);

	seed(__func__);
	for (uint64_t op = 0; op < ops; op++) {
		size_t nr = 2 + rnd(MAX_RUNS - 1);

		next_pool = 1;
		for (size_t i = nr; i-- > 0;)
			runs[i] = random_run(&models[i], i + 1 < nr ? &models[i + 1] : NULL,
					     1 + (unsigned)rnd(4), 12);
		merge_models(models, nr, &merged);
		assert_int_equal(cpc_run_merge(runs, nr, &out, note_drop, dropped), 0);
		assert_memory_equal(dropped, expect_dropped, sizeof(dropped));
		for (size_t i = 0; i < nr; i++)
			cpc_run_put(runs[i]);
		cpc_run_put(out);
	}
}

static void test_repeated_mapping_is_not_dropped(void **state)
{
	struct cpc_run *runs[3] = {one_map(10, 4, 16 * 4096), one_hole(10, 2),
				   one_map(10, 4, 16 * 4096)};
	struct cpc_run *out;

	memset(dropped, 0, sizeof(dropped));
	nr_drop_calls = 0;
	assert_int_equal(cpc_run_merge(runs, 3, &out, note_drop, dropped), 0);
	assert_int_equal(nr_drop_calls, 0);
	assert_int_equal(out->nr_entries, 1);
	cpc_run_put(out);
	for (int i = 0; i < 3; i++)
		cpc_run_put(runs[i]);
}

/* Data that is dropped at the start, then a hole that 200 blocks cut into more pieces than either
 * run has entries: memory can run out after drops have been met. */
static void make_growing_merge(struct cpc_run *runs[2])
{
	struct cpc_run_builder b;
	uint32_t csums[30] = {0};

	cpc_run_builder_init(&b, 0, 0);
	cpc_run_builder_map(&b, 0, 30, 1 << 20, csums);
	cpc_run_builder_hole(&b, 30, 100000);
	assert_int_equal(cpc_run_builder_finish(&b, &runs[1]), 0);
	cpc_run_builder_init(&b, 0, 0);
	for (uint64_t i = 0; i < 200; i++)
		cpc_run_builder_map(&b, 5 + i * 10, 1, (1 << 30) + i * 8192, csums);
	assert_int_equal(cpc_run_builder_finish(&b, &runs[0]), 0);
}

static void test_merge_without_memory_tells_no_drop(void **state)
{
	struct cpc_run *runs[2], *out = NULL;
	int err = -ENOMEM;
	long n;

	make_growing_merge(runs);
	memset(dropped, 0, sizeof(dropped));
	for (n = 0; err; n++) {
		long live = nr_live;

		nr_drop_calls = 0;
		fail_countdown = n;
		err = cpc_run_merge(runs, 2, &out, note_drop, dropped);
		if (err) {
			assert_int_equal(err, -ENOMEM);
			assert_int_equal(nr_drop_calls, 0);
			assert_int_equal(nr_live, live);
		}
		assert_true(n < 100);
	}
	fail_countdown = -1;
	assert_true(n > 5); /* it did have to grow */
	assert_int_equal(nr_drop_calls, 3);
	cpc_run_put(out);
	cpc_run_put(runs[0]);
	cpc_run_put(runs[1]);
}

/* --- building ------------------------------------------------------------------------------- */

static void test_builder_without_memory_fails_once_and_for_all(void **state)
{
	struct cpc_run_builder b;
	struct cpc_run *run = NULL;
	uint32_t csums[300] = {0};
	int err = -ENOMEM;

	for (long n = 0; err; n++) {
		fail_countdown = n;
		cpc_run_builder_init(&b, 1, 1);
		for (uint64_t i = 0; i < 100; i++) {
			cpc_run_builder_map(&b, i * 1000, 300, 4096 + i * 4096000, csums);
			cpc_run_builder_hole(&b, i * 1000 + 500, 10);
		}
		err = cpc_run_builder_finish(&b, &run);
		assert_true(err == 0 || err == -ENOMEM);
		if (err)
			assert_int_equal(nr_live, 0);
		assert_true(n < 100);
	}
	fail_countdown = -1;
	assert_int_equal(run->nr_entries, 300);
	cpc_run_put(run);
	cpc_run_builder_init(&b, 10, 10);
	cpc_run_builder_abort(&b);
}

static void test_builder_joins_and_splits(void **state)
{
	struct cpc_run_builder b;
	struct cpc_run *run;
	uint32_t csums[1000] = {0};

	cpc_run_builder_init(&b, 0, 0);
	cpc_run_builder_map(&b, 0, 100, 4096, csums);
	cpc_run_builder_map(&b, 100, 156, 101 * 4096, csums); /* joins: 256 */
	cpc_run_builder_map(&b, 256, 1, 257 * 4096, csums);   /* too long to join */
	cpc_run_builder_map(&b, 257, 600, 258 * 4096, csums); /* 256, 256, 88 */
	cpc_run_builder_map(&b, 857, 1, 4096 * 4096, csums);  /* elsewhere in the pool */
	cpc_run_builder_hole(&b, 858, 1);
	cpc_run_builder_hole(&b, 859, 0);
	cpc_run_builder_hole(&b, 859, 1ull << 40); /* joins */
	assert_int_equal(cpc_run_builder_finish(&b, &run), 0);
	cpc_run_check(run);
	assert_int_equal(run->nr_entries, 7);
	assert_int_equal(run->entries[0].nr, 256);
	assert_int_equal(run->entries[1].nr, 1);
	assert_int_equal(run->entries[4].nr, 88);
	assert_true(cpc_run_entry_len(&run->entries[6]) == (1ull << 40) + 1);
	assert_int_equal(run->data_blocks, 858);
	cpc_run_put(run);
}

static void test_unused_capacity_is_given_back(void **state)
{
	struct cpc_run_builder b;
	struct cpc_run *run;
	uint32_t csum = 7;

	cpc_run_builder_init(&b, 100000, 100000);
	cpc_run_builder_map(&b, 5, 1, 4096, &csum);
	assert_int_equal(cpc_run_builder_finish(&b, &run), 0);
	assert_int_equal(cpc_run_bytes(run),
			 sizeof(*run) + sizeof(struct cpc_run_entry) + sizeof(uint32_t));
	cpc_run_put(run);
	cpc_run_put(NULL);
}

/* --- holes of any length -------------------------------------------------------------------- */

static void test_holes_as_long_as_a_volume(void **state)
{
	const uint64_t all = 1ull << 51, mid = (1ull << 50) + 12345;
	struct cpc_run *runs[2] = {one_map(mid, 3, 1ull << 40), one_hole(0, all)}, *out;
	struct cpc_mapping m;

	assert_true(cpc_run_lookup(runs[1], mid, UINT64_MAX, &m));
	assert_true(m.nr == all - mid && m.bytenr == 0);
	assert_false(cpc_run_lookup(runs[1], all, 10, &m));
	assert_int_equal(m.nr, 10);
	assert_int_equal(cpc_run_merge(runs, 2, &out, note_drop, dropped), 0);
	cpc_run_check(out);
	assert_int_equal(out->nr_entries, 3);
	assert_true(cpc_run_lookup(out, 0, UINT64_MAX, &m));
	assert_true(m.nr == mid && m.bytenr == 0);
	assert_true(cpc_run_lookup(out, mid + 1, UINT64_MAX, &m));
	assert_true(m.nr == 2 && m.bytenr == (1ull << 40) + 4096);
	assert_true(cpc_run_lookup(out, mid + 3, UINT64_MAX, &m));
	assert_true(m.nr == all - mid - 3);
	cpc_run_put(out);
	for (int i = 0; i < 2; i++)
		cpc_run_put(runs[i]);
}

static void test_hole_over_data_drops_all_of_it(void **state)
{
	struct cpc_run *runs[2] = {one_hole(1, (1ull << 51) - 1), one_map(0, 1000, 4096)}, *out;

	memset(dropped, 0, sizeof(dropped));
	nr_drop_calls = 0;
	assert_int_equal(cpc_run_merge(runs, 2, &out, note_drop, dropped), 0);
	assert_int_equal(out->data_blocks, 1);
	assert_int_equal(nr_drop_calls, 1); /* told as one range */
	for (uint32_t i = 1; i < 1010; i++)
		assert_int_equal(dropped[i], i > 1 && i <= 1000);
	cpc_run_put(out);
	for (int i = 0; i < 2; i++)
		cpc_run_put(runs[i]);
}

static void test_merge_of_none_is_empty(void **state)
{
	struct cpc_run *out;
	struct cpc_mapping m;

	assert_int_equal(cpc_run_merge(NULL, 0, &out, NULL, NULL), 0);
	assert_int_equal(out->nr_entries, 0);
	assert_false(cpc_run_lookup(out, 5, 7, &m));
	assert_true(m.block == 5 && m.nr == 7);
	cpc_run_put(out);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(test_merge_is_what_the_newest_run_says),
	    TEST(test_drops_are_told_exactly_once),
	    TEST(test_repeated_mapping_is_not_dropped),
	    TEST(test_merge_without_memory_tells_no_drop),
	    TEST(test_builder_without_memory_fails_once_and_for_all),
	    TEST(test_builder_joins_and_splits),
	    TEST(test_unused_capacity_is_given_back),
	    TEST(test_holes_as_long_as_a_volume),
	    TEST(test_hole_over_data_drops_all_of_it),
	    TEST(test_merge_of_none_is_empty),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
