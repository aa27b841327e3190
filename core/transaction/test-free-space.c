/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Free space of a pool with many groups: bitmaps, folds and free log say after each opening what
 * they said before. The data is never written, only its places are allocated, so that 8 GiB fit
 * into memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "backing/powercut.h"
#include "check/check.h"
#include "lib/hooks.h"
#include "lib/log.h"
#include "transaction/store-internal.h"

#define GIB	(1ull << 30)
#define EXTENTS 7000u /* of 1 MiB, at most */

struct rig {
	struct cpc_powercut *pc;
	struct cpc_backing *backing;
	struct cpc_store *store;
	struct cpc_volume_item item;
	uint64_t nr_extents; /* most of the pool */
	bool mapped[EXTENTS];
	uint8_t used[64][CPC_BLOCK_SIZE];
	uint64_t fold[64]; /* generation of each group's last fold, */
	uint8_t home[64];  /* and the home that it went to */
	unsigned folds;
};

static uint64_t rng = 1;

static uint64_t draw(uint64_t below)
{
	rng = rng * 6364136223846793005ull + 1442695040888963407ull;
	return (rng >> 20) % below;
}

static void no_message(enum cpc_log_level level, const char *line)
{
}

static int note_volume(void *ctx, const struct cpc_volume_item *item)
{
	struct rig *r = ctx;

	r->item = *item;
	return 1; /* the first */
}

static void rig_open(struct rig *r)
{
	const char *why;

	assert_int_equal(cpc_powercut_reopen(r->pc, &r->backing), 0);
	assert_int_equal(cpc_store_open(r->backing, false, 64 << 20, NULL, NULL, &r->store, &why),
			 0);
	cpc_store_for_each_volume(r->store, note_volume, r);
}

static void rig_close(struct rig *r)
{
	cpc_store_close(r->store);
	cpc_backing_close(r->backing);
}

static void rig_commit(struct rig *r, const struct cpc_run *run)
{
	struct cpc_commit_volume v = {.item = r->item, .run = run};
	struct cpc_commit_request req = {
	    .volumes = &v, .nr_volumes = 1, .next_volume = 100, .drop_budget = 100};

	assert_int_equal(cpc_store_commit(r->store, &req), 0);
	cpc_pins_put(req.pins);
	r->item.root = v.new_root;
}

static void rig_make(struct rig *r, uint64_t size, bool single)
{
	struct cpc_super super = {
	    .incompat = single ? 0 : CPC_INCOMPAT_DUP,
	    .transid = 1,
	    .total_bytes = size,
	    .nodesize = 4096,
	    .log_size = cpc_default_log_size(size),
	    .next_volume = 1,
	};

	cpc_log_set_sink(no_message);
	memset(r, 0, sizeof(*r));
	r->nr_extents = cpc_min_u64(EXTENTS, (size >> 20) * 7 / 8);
	assert_int_equal(cpc_powercut_create(size, &r->pc), 0);
	assert_int_equal(cpc_powercut_reopen(r->pc, &r->backing), 0);
	assert_int_equal(cpc_store_format(r->backing, &super), 0);
	cpc_backing_close(r->backing);
	rig_open(r);
	/* Volumes that only make the root tree larger, then the one that is used. */
	for (uint64_t id = 100; id-- > 1;) {
		r->item = (struct cpc_volume_item){.id = id, .size = 1ull << 40};
		snprintf(r->item.name, sizeof(r->item.name), "v%u", (unsigned)id);
		rig_commit(r, NULL);
	}
}

static void rig_destroy(struct rig *r)
{
	rig_close(r);
	cpc_powercut_destroy(r->pc);
}

/* Maps or unmaps some extents and commits. Pieces of extents are cut out as well. */
static void change(struct rig *r, unsigned nr)
{
	static uint32_t csums[CPC_EXTENT_MAX_BLOCKS];
	uint64_t first = draw(r->nr_extents);
	struct cpc_run_builder b;
	struct cpc_run *run;

	cpc_run_builder_init(&b, nr, 0);
	for (uint64_t i = first; i < cpc_min_u64(r->nr_extents, first + nr); i++) {
		uint64_t block;
		uint32_t got;

		if (r->mapped[i]) {
			cpc_run_builder_hole(&b, i * 256 + draw(100), 1 + draw(156));
			r->mapped[i] = draw(4);
			continue;
		}
		if (draw(8) == 0)
			continue;
		if (cpc_space_alloc(r->store->space, CPC_SPACE_DATA, 256, 1, &block, &got))
			continue;
		cpc_run_builder_map(&b, i * 256, got, block << CPC_BLOCK_SHIFT, csums);
		r->mapped[i] = true;
	}
	assert_int_equal(cpc_run_builder_finish(&b, &run), 0);
	rig_commit(r, run);
	cpc_run_put(run);
}

/* Homes alternate with each fold. */
static void watch_folds(struct rig *r)
{
	for (uint64_t g = 0; g < r->store->geo.nr_groups; g++) {
		const struct cpc_group_meta *meta = r->store->groups[g];

		if (!meta || !meta->has_item || meta->generation == r->fold[g])
			continue;
		if (r->fold[g])
			assert_int_equal(meta->home, !r->home[g]);
		r->fold[g] = meta->generation;
		r->home[g] = meta->home;
		r->folds++;
	}
}

static void read_used(struct rig *r, uint8_t (*bitmap)[CPC_BLOCK_SIZE], uint64_t *sum)
{
	*sum = 0;
	for (uint64_t g = 0; g < r->store->geo.nr_groups; g++) {
		uint32_t used;

		assert_int_equal(cpc_space_get_used(r->store->space, g, bitmap[g], &used), 0);
		*sum += used;
	}
}

static void reopen_and_compare(struct rig *r)
{
	static uint8_t now[64][CPC_BLOCK_SIZE];
	uint64_t before, after;

	memset(now, 0, sizeof(now));
	read_used(r, r->used, &before);
	assert_int_equal(before, r->store->super.used_blocks);
	rig_close(r);
	rig_open(r);
	read_used(r, now, &after);
	assert_int_equal(after, before);
	assert_memory_equal(now, r->used, sizeof(now));
	cpc_space_check(r->store->space);
}

static void print_line(void *ctx, const char *line)
{
	print_message("  %s\n", line);
}

static void check_clean(struct rig *r)
{
	struct cpc_check_options opts = {.report = print_line};
	struct cpc_check_result result;

	assert_int_equal(cpc_check(r->backing, &opts, &result), 0);
	assert_int_equal(result.errors, 0);
}

/* With few bitmaps in memory, those that hold what the device does not are never thrown away. */
static void bitmaps_are_the_same_after_opening(void **state)
{
	for (unsigned round = 0; round < 3; round++) {
		static struct rig r;
		uint64_t most_nodes = 0;

		rig_make(&r, 8 * GIB, round == 2);
		assert_int_equal(r.store->geo.nr_groups, 64);
		for (unsigned i = 0; i < 300; i++) {
			if (round)
				cpc_space_set_max_loaded(r.store->space, 2);
			change(&r, i < 60 ? 150 : 1 + (unsigned)draw(40));
			watch_folds(&r);
			most_nodes = cpc_max_u64(most_nodes, r.store->super.free_log.nodes);
			if (i % 50 == 49)
				reopen_and_compare(&r);
			if (i % 100 == 99)
				check_clean(&r);
		}
		assert_true(r.folds > 200);
		/* 64 groups of 340 entries, and what 16 commits add before the oldest go */
		assert_true(most_nodes < 64 * 340 * 12 / 2000 + 80);
		rig_destroy(&r);
	}
}

static void the_free_log_does_not_grow_with_the_number_of_commits(void **state)
{
	static struct rig r;
	uint64_t nodes = 0;

	rig_make(&r, 8 * GIB, false);
	for (unsigned i = 0; i < 40; i++)
		change(&r, 150);
	for (unsigned i = 0; i < 600; i++) {
		change(&r, 2);
		nodes = cpc_max_u64(nodes, r.store->super.free_log.nodes);
		/* everything that is older than the oldest change still needed is gone */
		assert_true(r.store->nr_tails <= 16 + 64 / 8 + 2);
	}
	assert_true(nodes <= 40);
	assert_true(r.store->super.next_free_log > 600);
	reopen_and_compare(&r);
	check_clean(&r);
	rig_destroy(&r);
}

static void a_crash_at_any_time_finds_bitmaps_that_fit(void **state)
{
	static struct rig r;

	rig_make(&r, 2 * GIB, false);
	for (unsigned i = 0; i < 60; i++) {
		for (unsigned n = draw(8); n--;)
			change(&r, 1 + (unsigned)draw(60));
		rig_close(&r);
		cpc_powercut_crash_random(r.pc, i);
		rig_open(&r);
		check_clean(&r);
	}
	rig_destroy(&r);
}

/* A bitmap whose both copies are gone: the group is full for ever, the rest goes on. */
static void a_lost_bitmap_costs_its_group_only(void **state)
{
	static const uint8_t zeroes[CPC_BLOCK_SIZE] __attribute__((aligned(4096)));
	struct cpc_space_info info;
	struct cpc_geometry geo;
	static struct rig r;
	uint64_t bad = 0;
	uint32_t used;

	rig_make(&r, 2 * GIB, false);
	for (unsigned i = 0; i < 60; i++)
		change(&r, 60);
	geo = r.store->geo;
	while (!r.store->groups[bad] || !r.store->groups[bad]->has_item)
		bad++;
	rig_close(&r);
	for (unsigned copy = 0; copy < 2; copy++) {
		for (unsigned home = 0; home < 2; home++)
			cpc_powercut_poke(r.pc, cpc_geometry_home(&geo, copy, bad, home), zeroes,
					  sizeof(zeroes));
	}
	rig_open(&r);
	assert_true(cpc_space_get_used(r.store->space, bad, r.used[0], &used) < 0);
	for (unsigned i = 0; i < 100; i++)
		change(&r, 30);
	cpc_space_info(r.store->space, &info);
	assert_int_equal(info.bad_groups, 1);
	rig_destroy(&r);
}

static void one_copy_of_a_bitmap_is_enough(void **state)
{
	static const uint8_t zeroes[CPC_BLOCK_SIZE] __attribute__((aligned(4096)));
	static struct rig r;

	rig_make(&r, 2 * GIB, false);
	for (unsigned i = 0; i < 60; i++)
		change(&r, 60);
	for (uint64_t g = 0; g < r.store->geo.nr_groups; g++) {
		for (unsigned home = 0; home < 2; home++)
			cpc_powercut_poke(r.pc, cpc_geometry_home(&r.store->geo, g % 2, g, home),
					  zeroes, sizeof(zeroes));
	}
	reopen_and_compare(&r);
	rig_destroy(&r);
}

static void one_copy_of_a_bitmap_that_can_be_read_is_enough(void **state)
{
	static struct rig r;

	rig_make(&r, 2 * GIB, false);
	for (unsigned i = 0; i < 60; i++)
		change(&r, 60);
	for (unsigned copy = 0; copy < 2; copy++) {
		const struct cpc_geometry *geo = &r.store->geo;
		uint64_t start = cpc_geometry_home(geo, copy, 0, 0);

		cpc_powercut_add_fault(
		    r.pc, &(struct cpc_powercut_fault){
			      .op = CPC_POWERCUT_READ,
			      .nth = 1,
			      .sticky = true,
			      .bytenr = start,
			      .len = cpc_geometry_home(geo, copy, geo->nr_groups - 1, 1) +
				     CPC_BLOCK_SIZE - start,
			      .error = -EIO,
			  });
		reopen_and_compare(&r);
		cpc_powercut_clear_faults(r.pc);
	}
	rig_destroy(&r);
}

static int sum_sizes(void *ctx, const struct cpc_volume_item *item)
{
	uint64_t *sum = ctx;

	*sum += item->size >> 20;
	return 0;
}

static void one_commit_may_name_every_volume(void **state)
{
	static struct cpc_commit_volume v[99];
	struct cpc_commit_request req = {.volumes = v, .nr_volumes = 99, .next_volume = 100};
	uint64_t sum = 0;
	static struct rig r;

	rig_make(&r, 2 * GIB, false);
	for (uint64_t i = 0; i < 99; i++) {
		v[i].item = (struct cpc_volume_item){.id = i + 1, .size = (i + 1) << 20};
		snprintf(v[i].item.name, sizeof(v[i].item.name), "v%u", (unsigned)i + 1);
	}
	assert_int_equal(cpc_store_commit(r.store, &req), 0);
	cpc_pins_put(req.pins);
	rig_close(&r);
	rig_open(&r);
	assert_int_equal(cpc_store_for_each_volume(r.store, sum_sizes, &sum), 0);
	assert_int_equal(sum, 99 * 100 / 2);
	rig_destroy(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(bitmaps_are_the_same_after_opening),
	    cmocka_unit_test(the_free_log_does_not_grow_with_the_number_of_commits),
	    cmocka_unit_test(a_crash_at_any_time_finds_bitmaps_that_fit),
	    cmocka_unit_test(a_lost_bitmap_costs_its_group_only),
	    cmocka_unit_test(one_copy_of_a_bitmap_is_enough),
	    cmocka_unit_test(one_copy_of_a_bitmap_that_can_be_read_is_enough),
	    cmocka_unit_test(one_commit_may_name_every_volume),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
