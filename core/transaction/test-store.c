/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A commit moves the pool from one state to the next, whole or not at all, whatever fails on the
 * way. All of it runs over the power-cut device with the legality oracle in front.
 */
#include "check/test-pool.h"

#include <stdio.h>

#include "transaction/store-internal.h"

#define BLOCKS 2048u /* of a volume, that the model knows */

static const struct test_geometry geometries[] = {
    {32 * MIB, 4096, false},
    {32 * MIB, 16384, false},
    {64 * MIB, 65536, true},
};

/* What each volume maps. */
struct model {
	bool mapped[2][BLOCKS];
};

static uint64_t rng = 1;

static uint64_t draw(uint64_t below)
{
	rng = rng * 6364136223846793005ull + 1442695040888963407ull;
	return (rng >> 20) % below;
}

static void make(struct test_pool *p, const struct test_geometry *g)
{
	test_pool_create(p, g);
	test_pool_add_volume(p, 0, "a", 64 * MIB);
	test_pool_add_volume(p, 1, "b", 64 * MIB);
}

/* --- model --- */

static void change(struct test_pool *p, struct model *m)
{
	unsigned v = (unsigned)draw(2);
	uint64_t block = draw(BLOCKS), nr = cpc_min_u64(1 + draw(40), BLOCKS - block);
	bool map = draw(3) != 0;

	if (map)
		assert_int_equal(test_pool_map(p, v, block, (uint32_t)nr), 0);
	else
		assert_int_equal(test_pool_unmap(p, v, block, nr), 0);
	for (uint64_t b = block; b < block + nr; b++)
		m->mapped[v][b] = map;
}

/* True when the tree of volume v maps exactly what the model says. */
static bool volume_equals(struct test_pool *p, unsigned v, const bool *mapped)
{
	uint64_t owner = CPC_TREE_VOLUME_BASE + p->item[v].id, at = 0;
	bool same = true;
	struct cpc_cursor c;

	cpc_cursor_init(&c, p->store->ebc, owner, &p->item[v].root);
	assert_int_equal(cpc_cursor_seek(&c, 0), 0);
	while (c.valid && same) {
		uint64_t end = c.key + cpc_item_len(owner, c.size);

		for (; at < c.key; at++)
			same = same && !mapped[at];
		for (; at < end; at++)
			same = same && at < BLOCKS && mapped[at];
		assert_int_equal(cpc_cursor_next(&c), 0);
	}
	cpc_cursor_release(&c);
	for (; at < BLOCKS; at++)
		same = same && !mapped[at];
	return same;
}

static bool pool_equals(struct test_pool *p, const struct model *m)
{
	return volume_equals(p, 0, m->mapped[0]) && volume_equals(p, 1, m->mapped[1]);
}

static void reopen(struct test_pool *p)
{
	test_pool_close(p);
	test_pool_open(p);
}

/* --- commits --- */

static void commits_are_found_again_with_every_nodesize(void **state)
{
	for (unsigned g = 0; g < CPC_ARRAY_SIZE(geometries); g++) {
		static struct model m;
		struct test_pool p;

		memset(&m, 0, sizeof(m));
		make(&p, &geometries[g]);
		for (unsigned i = 0; i < 120; i++) {
			change(&p, &m);
			if (i % 20 != 19)
				continue;
			assert_true(pool_equals(&p, &m));
			reopen(&p);
			assert_true(pool_equals(&p, &m));
			test_pool_check_clean(&p);
			cpc_space_check(p.store->space);
		}
		test_pool_destroy(&p);
	}
}

static void an_empty_commit_changes_the_transid_only(void **state)
{
	struct test_pool p;
	uint64_t used, transid;

	make(&p, &geometries[0]);
	test_pool_fill(&p, 20);
	used = p.store->super.used_blocks;
	transid = p.store->super.transid;
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(test_pool_commit(&p, 0), 0);
	assert_int_equal(p.store->super.used_blocks, used);
	assert_int_equal(p.store->super.transid, transid + 20);
	test_pool_check_clean(&p);
	test_pool_destroy(&p);
}

static uint64_t free_blocks(struct test_pool *p)
{
	struct cpc_space_info info;

	cpc_space_info(p->store->space, &info);
	return info.free;
}

static void freed_blocks_wait_for_their_pins(void **state)
{
	struct cpc_commit_volume v = {.deleted = false};
	struct cpc_commit_request req = {.volumes = &v, .nr_volumes = 1};
	struct cpc_pins *second;
	struct cpc_store_info info;
	struct cpc_run_builder b;
	struct cpc_run *run;
	struct test_pool p;
	uint64_t before;

	make(&p, &geometries[0]);
	assert_int_equal(test_pool_map(&p, 0, 0, 200), 0);
	cpc_run_builder_init(&b, 1, 0);
	cpc_run_builder_hole(&b, 0, 200);
	assert_int_equal(cpc_run_builder_finish(&b, &run), 0);
	before = free_blocks(&p);
	v.item = p.item[0];
	v.run = run;
	req.next_volume = p.next_volume;
	assert_int_equal(cpc_store_commit(p.store, &req), 0);
	cpc_store_info(p.store, &info);
	assert_true(info.pinned_blocks >= 200);
	assert_true(free_blocks(&p) < before);
	second = cpc_pins_get(req.pins);
	cpc_pins_put(req.pins);
	assert_true(free_blocks(&p) < before);
	cpc_pins_put(second);
	assert_true(free_blocks(&p) >= before + 200 - 20);
	cpc_store_info(p.store, &info);
	assert_int_equal(info.pinned_blocks, 0);
	cpc_run_put(run);
	test_pool_check_clean(&p);
	test_pool_destroy(&p);
}

static void a_read_only_store_commits_nothing_and_writes_nothing(void **state)
{
	struct cpc_commit_request req = {.next_volume = 1};
	struct test_pool p;
	uint64_t writes;
	const char *why;

	make(&p, &geometries[0]);
	test_pool_fill(&p, 30);
	test_pool_close(&p);
	writes = cpc_powercut_count(p.pc, CPC_POWERCUT_WRITE);
	assert_int_equal(cpc_powercut_reopen(p.pc, &p.backing), 0);
	assert_int_equal(cpc_store_open(p.backing, true, MIB, NULL, NULL, &p.store, &why), 0);
	assert_int_equal(cpc_store_commit(p.store, &req), -EROFS);
	assert_true(volume_equals(&p, 0, (const bool[BLOCKS]){false}) == false);
	test_pool_close(&p);
	assert_int_equal(cpc_powercut_count(p.pc, CPC_POWERCUT_WRITE), writes);
	test_pool_open(&p);
	test_pool_destroy(&p);
}

/* The root tree changes after the folds, in a group that may just have been folded. */
static void what_changes_after_a_fold_is_in_the_log(void **state)
{
	struct test_pool p;

	make(&p, &geometries[0]);
	for (uint64_t id = 10; id < 90; id++) {
		struct cpc_volume_item item = {.id = id, .size = MIB};

		snprintf(item.name, sizeof(item.name), "volume-%u", (unsigned)id);
		p.next_volume = id + 1;
		assert_int_equal(test_pool_commit_item(&p, &item, false), 0);
	}
	assert_true(p.store->super.root.nodes > 2);
	for (unsigned i = 0; i < 60; i++) {
		assert_int_equal(test_pool_map(&p, 0, i * 3, 1), 0);
		test_pool_check_clean(&p);
	}
	test_pool_destroy(&p);
}

/* --- drop list --- */

static uint64_t used_blocks(struct test_pool *p, uint64_t *drops)
{
	struct cpc_store_info info;

	cpc_store_info(p->store, &info);
	*drops = info.nr_drops;
	return info.used_blocks;
}

static void a_deleted_tree_is_freed_in_slices_and_counts_as_free_at_once(void **state)
{
	uint64_t before, after, drops, nodes, commits = 0, really_used;
	static struct model m;
	struct test_pool p;

	memset(&m, 0, sizeof(m));
	make(&p, &geometries[0]);
	before = used_blocks(&p, &drops);
	for (unsigned i = 0; i < 600; i += 2)
		assert_int_equal(test_pool_map(&p, 0, i * 3, 1), 0);
	nodes = p.item[0].root.nodes;
	assert_true(nodes > 3);
	assert_int_equal(test_pool_delete(&p, 0), 0);
	after = used_blocks(&p, &drops);
	assert_true(drops >= 1);
	assert_true(after <= before + 8);
	test_pool_check_clean(&p);
	while (used_blocks(&p, &drops), drops) {
		really_used = p.store->super.used_blocks;
		assert_int_equal(test_pool_commit(&p, 2), 0);
		/* two nodes with both copies, and the extents of two leaves, at most */
		assert_true(really_used - p.store->super.used_blocks < 2 * (2 + 200));
		assert_true(++commits <= nodes);
		if (commits % 2)
			reopen(&p);
		test_pool_check_clean(&p);
	}
	assert_true(commits >= nodes / 2);
	assert_int_equal(p.store->super.used_blocks, used_blocks(&p, &drops));
	test_pool_destroy(&p);
}

/* Its nodes are in no bitmap, so nothing but the commit that replaces them gives them back. */
static void old_nodes_of_the_free_log_are_given_back_at_once(void **state)
{
	uint64_t longest = 0, node;
	struct cpc_space_info space;
	struct cpc_store_info info;
	static struct model m;
	struct test_pool p;

	memset(&m, 0, sizeof(m));
	make(&p, &geometries[0]);
	node = p.store->geo.nodesize / 4096 * p.store->geo.copies;
	/* two volumes, block by block, so that one leaves as many pieces as it had blocks */
	for (unsigned i = 0; i < 600; i++)
		assert_int_equal(test_pool_map(&p, i % 2, i, 1), 0);
	assert_int_equal(test_pool_delete(&p, 0), 0);
	for (unsigned i = 0; i < 60; i++) {
		assert_int_equal(test_pool_commit(&p, 3), 0);
		longest = cpc_max_u64(longest, p.store->super.free_log.nodes);
		cpc_store_info(p.store, &info);
		cpc_space_info(p.store->space, &space);
		assert_true(!info.nr_drops || i < 10);
		assert_int_equal(space.total - space.free,
				 info.used_blocks + info.dropped_blocks +
				     node * p.store->super.free_log.nodes);
	}
	assert_int_equal(p.store->super.free_log.nodes, 1);
	assert_true(longest > 2);
	test_pool_check_clean(&p);
	test_pool_destroy(&p);
}

static void a_budget_of_nothing_frees_nothing(void **state)
{
	struct test_pool p;
	uint64_t drops;

	make(&p, &geometries[0]);
	test_pool_fill(&p, 60);
	assert_int_equal(test_pool_delete(&p, 0), 0);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(test_pool_commit(&p, 0), 0);
	used_blocks(&p, &drops);
	assert_int_equal(drops, 1);
	test_pool_check_clean(&p);
	test_pool_destroy(&p);
}

static void a_dropped_node_that_cannot_be_read_stays_listed(void **state)
{
	struct cpc_powercut_fault fault = {
	    .op = CPC_POWERCUT_READ, .nth = 1, .sticky = true, .error = -EIO};
	struct cpc_node_ptr root;
	struct test_pool p;
	uint64_t drops;

	make(&p, &geometries[0]);
	test_pool_fill(&p, 60);
	root = p.item[0].root;
	assert_int_equal(test_pool_delete(&p, 0), 0);
	reopen(&p); /* nothing of it is in memory */
	for (unsigned copy = 0; copy < 2; copy++) {
		fault.bytenr = root.bytenr[copy];
		fault.len = 4096;
		cpc_powercut_add_fault(p.pc, &fault);
	}
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(test_pool_commit(&p, 100), 0);
	used_blocks(&p, &drops);
	assert_int_equal(drops, 1);
	cpc_powercut_clear_faults(p.pc);
	assert_int_equal(test_pool_commit(&p, 100), 0);
	used_blocks(&p, &drops);
	assert_int_equal(drops, 0);
	test_pool_check_clean(&p);
	test_pool_destroy(&p);
}

static void a_damaged_dropped_node_is_left_out(void **state)
{
	uint8_t zero[4096] __attribute__((aligned(4096))) = {0};
	struct cpc_check_result result;
	struct cpc_node_ptr root;
	struct test_pool p;
	uint64_t drops;

	make(&p, &geometries[0]);
	test_pool_fill(&p, 60);
	root = p.item[0].root;
	assert_int_equal(test_pool_delete(&p, 0), 0);
	reopen(&p);
	for (unsigned copy = 0; copy < 2; copy++)
		cpc_powercut_poke(p.pc, root.bytenr[copy], zero, sizeof(zero));
	assert_int_equal(test_pool_commit(&p, 100), 0);
	used_blocks(&p, &drops);
	assert_int_equal(drops, 0);
	test_pool_check(&p, true, &result);
	assert_int_equal(result.nodes_bad, 0);
	assert_true(result.leaked_blocks > 0);
	test_pool_destroy(&p);
}

/* --- failures --- */

/* A change of volume 0 whose data is on the device, to be committed again and again. */
static struct cpc_run *prepare(struct test_pool *p, uint64_t block, uint32_t nr)
{
	uint8_t *buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);
	uint32_t csums[CPC_EXTENT_MAX_BLOCKS], got;
	struct cpc_run_builder b;
	struct cpc_run *run;
	uint64_t at;

	memset(buf, (int)block, CPC_BLOCK_SIZE);
	assert_int_equal(cpc_space_alloc(p->store->space, CPC_SPACE_DATA, nr, nr, &at, &got), 0);
	for (uint32_t i = 0; i < nr; i++) {
		csums[i] = cpc_csum(buf, CPC_BLOCK_SIZE);
		assert_int_equal(cpc_fe_write(&p->store->fe, (at + i) << CPC_BLOCK_SHIFT, buf,
					      CPC_BLOCK_SIZE, CPC_CAUSE_DATA, NULL),
				 0);
	}
	cpc_run_builder_init(&b, 1, nr);
	cpc_run_builder_map(&b, block, nr, at << CPC_BLOCK_SHIFT, csums);
	assert_int_equal(cpc_run_builder_finish(&b, &run), 0);
	cpc_free(buf);
	return run;
}

static int commit_prepared(struct test_pool *p, const struct cpc_run *run)
{
	struct cpc_commit_volume v = {.item = p->item[0], .run = run};
	struct cpc_commit_request req = {
	    .volumes = &v,
	    .nr_volumes = 1,
	    .next_volume = p->next_volume,
	    .drop_budget = 4,
	};
	int ret = cpc_store_commit(p->store, &req);

	if (ret)
		assert_null(req.pins);
	else
		p->item[0].root = v.new_root;
	cpc_pins_put(req.pins);
	return ret;
}

static unsigned allocs_left = UINT32_MAX;

static void *failing_alloc(size_t align, size_t size)
{
	if (allocs_left == 0)
		return NULL;
	if (allocs_left != UINT32_MAX)
		allocs_left--;
	return cpc_hooks_default.alloc(align, size);
}

/* Volume 0 has a run to come, volume 1 stands on the drop list, groups want to be folded. */
static void make_busy(struct test_pool *p)
{
	make(p, &geometries[0]);
	test_pool_fill(p, 60);
	assert_int_equal(test_pool_delete(p, 1), 0);
}

static void a_commit_that_fails_at_any_allocation_can_be_repeated(void **state)
{
	uint64_t before = 0;
	struct test_pool p;
	int ret = -1;

	make_busy(&p);
	cpc_hooks.alloc = failing_alloc;
	for (unsigned n = 0; ret; n++) {
		struct cpc_run *run = prepare(&p, n % 500, 3);

		before = free_blocks(&p);
		allocs_left = n;
		ret = commit_prepared(&p, run);
		allocs_left = UINT32_MAX;
		if (ret) {
			assert_int_equal(ret, -ENOMEM);
			assert_int_equal(free_blocks(&p), before);
			assert_int_equal(commit_prepared(&p, run), 0);
		}
		cpc_run_put(run);
		cpc_space_check(p.store->space);
		if (n % 16 == 0)
			test_pool_check_clean(&p);
	}
	cpc_hooks = cpc_hooks_default;
	test_pool_check_clean(&p);
	reopen(&p);
	test_pool_check_clean(&p);
	test_pool_destroy(&p);
}

/* Fails the n-th call of a kind for n = 1, 2, ... until a commit gets along without it. */
static void fail_every(enum cpc_powercut_op op, enum cpc_powercut_action action)
{
	struct cpc_powercut_fault fault = {.op = op, .action = action, .error = -EIO};
	struct test_pool p;
	int ret = -1;

	make_busy(&p);
	for (unsigned n = 1; ret; n++) {
		struct cpc_run *run = prepare(&p, n * 5 % 500, 3);

		assert_true(n < 200);
		fault.nth = n;
		cpc_powercut_add_fault(p.pc, &fault);
		ret = commit_prepared(&p, run);
		cpc_powercut_clear_faults(p.pc);
		if (ret)
			assert_int_equal(commit_prepared(&p, run), 0);
		cpc_run_put(run);
		cpc_space_check(p.store->space);
		test_pool_check_clean(&p);
	}
	reopen(&p);
	test_pool_check_clean(&p);
	test_pool_destroy(&p);
}

static void a_commit_that_fails_at_any_write_can_be_repeated(void **state)
{
	fail_every(CPC_POWERCUT_WRITE, CPC_FAULT_FAIL);
	fail_every(CPC_POWERCUT_WRITE, CPC_FAULT_FAIL_LANDED);
	fail_every(CPC_POWERCUT_WRITE, CPC_FAULT_FAIL_TORN);
}

static void a_commit_that_fails_at_any_flush_can_be_repeated(void **state)
{
	fail_every(CPC_POWERCUT_FLUSH, CPC_FAULT_FAIL);
	fail_every(CPC_POWERCUT_FLUSH, CPC_FAULT_FAIL_LANDED);
	fail_every(CPC_POWERCUT_FLUSH, CPC_FAULT_DROP_CACHED);
}

static void set_flag(void *ctx)
{
	*(bool *)ctx = true;
}

/* What a flush has thrown away cannot be written again: no later commit may say it is there. */
static void a_device_that_drops_writes_ends_all_commits(void **state)
{
	static struct model m;
	struct test_pool p;
	bool broken = false;
	struct cpc_run *run;

	memset(&m, 0, sizeof(m));
	make(&p, &geometries[0]);
	for (unsigned i = 0; i < 30; i++)
		change(&p, &m);
	p.store->fe.on_broken = set_flag;
	p.store->fe.ctx = &broken;
	run = prepare(&p, 100, 7);
	cpc_powercut_add_fault(
	    p.pc, &(struct cpc_powercut_fault){
		      .op = CPC_POWERCUT_FLUSH, .action = CPC_FAULT_DROP, .nth = 1, .error = -EIO});
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(commit_prepared(&p, run), -EIO);
	assert_true(broken);
	cpc_run_put(run);
	reopen(&p);
	assert_true(pool_equals(&p, &m));
	test_pool_check_clean(&p);
	test_pool_destroy(&p);
}

/* --- burned superblocks --- */

/* The flush after the superblock fails. */
static void burn(struct test_pool *p, const struct cpc_run *run)
{
	uint64_t transid = p->store->last_transid;

	cpc_powercut_fail(p->pc, CPC_POWERCUT_FLUSH, 2, false, -EIO);
	assert_int_equal(commit_prepared(p, run), -EIO);
	assert_int_equal(p->store->last_transid, transid + 1);
	assert_true(p->store->burned_super);
	cpc_powercut_clear_faults(p->pc);
}

static void a_burned_transid_is_never_used_again(void **state)
{
	struct test_pool p;
	struct cpc_run *run;
	uint64_t burned;

	make(&p, &geometries[0]);
	run = prepare(&p, 1, 3);
	burn(&p, run);
	burned = p.store->last_transid;
	burn(&p, run);
	assert_int_equal(commit_prepared(&p, run), 0);
	assert_int_equal(p.store->super.transid, burned + 2);
	assert_false(p.store->burned_super);
	cpc_run_put(run);
	test_pool_check_clean(&p);
	test_pool_destroy(&p);
}

static void blocks_of_both_states_stay_taken_until_the_next_good_commit(void **state)
{
	static uint8_t durable[1 << 16], burned[1 << 16];
	struct cpc_run *run;
	struct cpc_super super;
	struct test_pool p;
	uint64_t nr;
	const char *why;

	make_busy(&p);
	nr = p.store->geo.nr_blocks;
	run = prepare(&p, 7, 30);
	assert_int_equal(cpc_check_reachable(p.backing, &p.store->super, durable, nr), 0);
	burn(&p, run);
	assert_int_equal(cpc_super_find(p.backing, &super, &why), 0);
	assert_int_equal(super.transid, p.store->last_transid);
	assert_int_equal(cpc_check_reachable(p.backing, &super, burned, nr), 0);
	for (uint64_t i = 0;; i++) {
		uint64_t block;
		uint32_t got;

		if (cpc_space_alloc(p.store->space, CPC_SPACE_DATA, 1, 1, &block, &got))
			break;
		assert_false((durable[block / 8] | burned[block / 8]) >> block % 8 & 1);
		assert_true(i < nr);
	}
	cpc_run_put(run);
	test_pool_destroy(&p);
}

struct homes {
	struct test_pool *p;
	unsigned writes;
};

static void note_home(void *ctx, uint64_t bytenr, uint64_t len, enum cpc_cause cause)
{
	struct homes *h = ctx;
	const struct cpc_geometry *geo = &h->p->store->geo;

	for (unsigned copy = 0; copy < 2; copy++) {
		uint64_t first = geo->homes[copy] << CPC_BLOCK_SHIFT;

		h->writes +=
		    bytenr >= first && bytenr < first + 2 * geo->nr_groups * CPC_BLOCK_SIZE;
	}
}

static void no_bitmap_is_folded_while_a_superblock_is_burned(void **state)
{
	const struct cpc_powercut_hooks hooks = {.before_write = note_home};
	struct homes h = {0};
	struct cpc_run *run;
	struct test_pool p;

	make(&p, &geometries[0]);
	h.p = &p;
	cpc_powercut_set_hooks(p.pc, &hooks, &h);
	run = prepare(&p, 1, 3);
	test_pool_fill(&p, 60);
	assert_true(h.writes > 0);
	/* go on until the next fold is due */
	while (p.store->nr_tails < 17)
		assert_int_equal(test_pool_map(&p, 1, 900, 1), 0);
	h.writes = 0;
	burn(&p, run); /* this one may fold: nothing is burned before it */
	assert_true(h.writes > 0);
	h.writes = 0;
	for (unsigned i = 0; i < 20; i++)
		burn(&p, run);
	assert_int_equal(h.writes, 0);
	assert_int_equal(commit_prepared(&p, run), 0);
	assert_int_equal(h.writes, 0);
	test_pool_fill(&p, 40);
	assert_true(h.writes > 0);
	cpc_powercut_set_hooks(p.pc, NULL, NULL);
	cpc_run_put(run);
	test_pool_check_clean(&p);
	test_pool_destroy(&p);
}

static void the_slot_of_the_last_durable_superblock_is_never_written(void **state)
{
	struct cpc_run *run;
	struct test_pool p;

	make(&p, &geometries[0]);
	run = prepare(&p, 1, 3);
	for (unsigned i = 0; i < 20; i++) {
		/* the superblock is lost, so the last durable one stays where it is */
		cpc_powercut_add_fault(p.pc, &(struct cpc_powercut_fault){.op = CPC_POWERCUT_FLUSH,
									  .action = CPC_FAULT_DROP,
									  .nth = 2,
									  .error = -EIO});
		assert_int_equal(commit_prepared(&p, run), -EIO);
	}
	assert_int_equal(commit_prepared(&p, run), 0);
	cpc_run_put(run);
	test_pool_check_clean(&p);
	test_pool_destroy(&p);
}

struct commit_job {
	struct test_pool *p;
	struct cpc_run *run;
};

static void *run_commit(void *arg)
{
	struct commit_job *job = arg;

	return (void *)(intptr_t)commit_prepared(job->p, job->run);
}

/* Rule 2: whoever issued the flush that failed. */
static void a_flush_of_somebody_else_burns_a_superblock_too(void **state)
{
	struct commit_job job;
	struct test_pool p;
	pthread_t thread;
	void *ret;

	make(&p, &geometries[0]);
	job = (struct commit_job){&p, prepare(&p, 1, 3)};
	cpc_powercut_hold(p.pc, CPC_HOLD_WRITE(CPC_CAUSE_SUPER));
	assert_int_equal(pthread_create(&thread, NULL, run_commit, &job), 0);
	cpc_powercut_wait_held(p.pc, 1);
	cpc_powercut_fail(p.pc, CPC_POWERCUT_FLUSH, 1, false, -EIO);
	assert_int_equal(cpc_flush_epoch_flush(&p.store->fe, CPC_FLUSH_PRESSURE), -EIO);
	cpc_powercut_release(p.pc);
	assert_int_equal(pthread_join(thread, &ret), 0);
	assert_int_equal((intptr_t)ret, -EIO);
	assert_true(p.store->burned_super);
	assert_int_equal(commit_prepared(&p, job.run), 0);
	cpc_run_put(job.run);
	test_pool_check_clean(&p);
	test_pool_destroy(&p);
}

static void after_a_burned_superblock_failing_commits_give_their_blocks_back(void **state)
{
	struct cpc_run *run;
	struct test_pool p;
	uint64_t before;

	make_busy(&p);
	run = prepare(&p, 3, 3);
	burn(&p, run);
	before = free_blocks(&p);
	for (unsigned i = 0; i < 100; i++) {
		cpc_powercut_fail(p.pc, CPC_POWERCUT_WRITE, 1, false, -EIO);
		assert_int_equal(commit_prepared(&p, run), -EIO);
		assert_int_equal(free_blocks(&p), before);
	}
	assert_int_equal(commit_prepared(&p, run), 0);
	cpc_run_put(run);
	test_pool_check_clean(&p);
	test_pool_destroy(&p);
}

/* Every crash gives one of the two states, whole. */
static void crash_everywhere(struct test_pool *p, const struct model *old, const struct model *new,
			     unsigned seen[2])
{
	struct cpc_powercut_saved *saved = cpc_powercut_save(p->pc);
	uint64_t nr = cpc_crash_nr_states(p->pc), step = nr / 150 + 1;

	for (uint64_t i = 0; i < nr; i += step) {
		struct cpc_check_result result;
		struct cpc_crash_choice choice;
		bool is_new;

		cpc_powercut_restore(p->pc, saved);
		cpc_crash_state(p->pc, i, &choice);
		cpc_powercut_crash(p->pc, &choice);
		cpc_crash_choice_free(&choice);
		test_pool_open(p);
		is_new = pool_equals(p, new);
		assert_true(is_new || pool_equals(p, old));
		seen[is_new]++;
		test_pool_check(p, false, &result);
		assert_int_equal(result.errors, result.supers_bad);
		assert_int_equal(test_pool_map(p, 1, 2, 5), 0);
		test_pool_close(p);
	}
	cpc_powercut_restore(p->pc, saved);
	cpc_powercut_saved_free(saved);
	test_pool_open(p);
}

static void crash_after(enum cpc_powercut_action action)
{
	static struct model old, new;
	unsigned seen[2] = {0, 0};
	struct cpc_run *run;
	struct test_pool p;

	memset(&old, 0, sizeof(old));
	make(&p, &geometries[0]);
	for (unsigned i = 0; i < 30; i++)
		change(&p, &old);
	new = old;
	memset(&new.mapped[0][100], 1, 7);
	run = prepare(&p, 100, 7);
	cpc_powercut_add_fault(
	    p.pc, &(struct cpc_powercut_fault){
		      .op = CPC_POWERCUT_FLUSH, .action = action, .nth = 2, .error = -EIO});
	assert_int_equal(commit_prepared(&p, run), -EIO);
	cpc_run_put(run);
	test_pool_close(&p);
	crash_everywhere(&p, &old, &new, seen);
	assert_true(seen[0] || action == CPC_FAULT_FAIL_LANDED);
	assert_true(seen[1] || action == CPC_FAULT_DROP || action == CPC_FAULT_DROP_CACHED);
	test_pool_destroy(&p);
}

static void a_crash_after_a_burned_superblock_gives_one_of_both_states(void **state)
{
	crash_after(CPC_FAULT_FAIL);
	crash_after(CPC_FAULT_FAIL_LANDED);
	crash_after(CPC_FAULT_DROP);
	crash_after(CPC_FAULT_DROP_CACHED);
}

/* Failing flushes, kills and crashes in any order: the oracle sees what must not be touched. */
static void failures_and_crashes_never_touch_what_may_be_needed(void **state)
{
	static struct model m;
	struct test_pool p;

	memset(&m, 0, sizeof(m));
	make(&p, &geometries[1]);
	for (unsigned i = 0; i < 400; i++) {
		struct cpc_run *run = prepare(&p, draw(BLOCKS - 8), 1 + (uint32_t)draw(8));
		enum cpc_powercut_op op = draw(2) ? CPC_POWERCUT_FLUSH : CPC_POWERCUT_WRITE;

		if (draw(3) == 0)
			cpc_powercut_fail(p.pc, op, 1 + draw(8), false, -EIO);
		commit_prepared(&p, run);
		cpc_powercut_clear_faults(p.pc);
		cpc_run_put(run);
		if (draw(12))
			continue;
		test_pool_close(&p);
		if (draw(2))
			cpc_powercut_crash_random(p.pc, i);
		test_pool_open(&p);
	}
	if (p.violations)
		fail_msg("%s", p.violation);
	test_pool_destroy(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(commits_are_found_again_with_every_nodesize),
	    cmocka_unit_test(an_empty_commit_changes_the_transid_only),
	    cmocka_unit_test(freed_blocks_wait_for_their_pins),
	    cmocka_unit_test(a_read_only_store_commits_nothing_and_writes_nothing),
	    cmocka_unit_test(what_changes_after_a_fold_is_in_the_log),
	    cmocka_unit_test(a_deleted_tree_is_freed_in_slices_and_counts_as_free_at_once),
	    cmocka_unit_test(old_nodes_of_the_free_log_are_given_back_at_once),
	    cmocka_unit_test(a_budget_of_nothing_frees_nothing),
	    cmocka_unit_test(a_dropped_node_that_cannot_be_read_stays_listed),
	    cmocka_unit_test(a_damaged_dropped_node_is_left_out),
	    cmocka_unit_test(a_commit_that_fails_at_any_allocation_can_be_repeated),
	    cmocka_unit_test(a_commit_that_fails_at_any_write_can_be_repeated),
	    cmocka_unit_test(a_commit_that_fails_at_any_flush_can_be_repeated),
	    cmocka_unit_test(a_device_that_drops_writes_ends_all_commits),
	    cmocka_unit_test(a_burned_transid_is_never_used_again),
	    cmocka_unit_test(blocks_of_both_states_stay_taken_until_the_next_good_commit),
	    cmocka_unit_test(no_bitmap_is_folded_while_a_superblock_is_burned),
	    cmocka_unit_test(the_slot_of_the_last_durable_superblock_is_never_written),
	    cmocka_unit_test(a_flush_of_somebody_else_burns_a_superblock_too),
	    cmocka_unit_test(after_a_burned_superblock_failing_commits_give_their_blocks_back),
	    cmocka_unit_test(a_crash_after_a_burned_superblock_gives_one_of_both_states),
	    cmocka_unit_test(failures_and_crashes_never_touch_what_may_be_needed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
