/* SPDX-License-Identifier: BSD-3-Clause */
/* check --repair writes what has a good source, and never makes matters worse. */
#include "check/test-pool.h"

#include <inttypes.h>
#include <stdio.h>

/* Where things stand in the newest state, as dump prints it. */
struct places {
	struct test_pool *p;
	uint64_t node[512][2];
	size_t nr;
	uint64_t home[2];
	uint64_t free_log[2];
};

static void note_line(void *ctx, const char *line)
{
	struct places *at = ctx;
	uint64_t a, b;
	const char *ptr = strstr(line, ": bytenr ");
	unsigned home;

	if (ptr && sscanf(ptr, ": bytenr %" SCNu64 " and %" SCNu64, &a, &b) == 2 && at->nr < 512) {
		at->node[at->nr][0] = a;
		at->node[at->nr++][1] = b;
	}
	if (sscanf(line, "  group %" SCNu64 " generation %" SCNu64 " home %u", &a, &b, &home) ==
	    3) {
		for (unsigned copy = 0; copy < 2; copy++)
			at->home[copy] = cpc_geometry_home(&at->p->store->geo, copy, a, home);
	}
}

static void make(struct test_pool *p, struct places *at, unsigned commits)
{
	static const char *const trees[] = {"root", "a", "b"};
	const struct test_geometry g = {8 * MIB, 4096, false};

	test_pool_create(p, &g);
	test_pool_add_volume(p, 0, "a", 64 * MIB);
	test_pool_add_volume(p, 1, "b", 64 * MIB);
	test_pool_fill(p, commits);
	memset(at, 0, sizeof(*at));
	at->p = p;
	for (unsigned copy = 0; copy < 2; copy++) {
		at->node[0][copy] = p->store->super.root.bytenr[copy];
		at->free_log[copy] = p->store->super.free_log.bytenr[copy];
	}
	at->nr = 1;
	for (unsigned i = 0; i < CPC_ARRAY_SIZE(trees); i++)
		assert_int_equal(cpc_dump(p->backing, "tree", trees[i], note_line, at), 0);
	assert_true(at->home[0] && at->home[1]);
}

struct told {
	unsigned lines, repaired;
	uint64_t last; /* bytenr */
};

static void note_damage(void *ctx, const struct cpc_damage *d)
{
	struct told *told = ctx;

	told->lines++;
	told->repaired += d->repaired;
	told->last = d->bytenr;
	if (getenv("CPC_TEST_VERBOSE")) {
		char line[CPC_DAMAGE_LINE];

		cpc_damage_line(d, line);
		print_message("  %s\n", line);
	}
}

/* Repairs the device as it is, in a life of its own; the store is closed. */
static int repair(struct cpc_powercut *pc, struct told *told, struct cpc_repair_result *result)
{
	struct cpc_repair_options opts = {.check = {.data = true, .ctx = told},
					  .damage = note_damage};
	struct cpc_backing *b;
	int ret;

	memset(told, 0, sizeof(*told));
	assert_int_equal(cpc_powercut_reopen(pc, &b), 0);
	ret = cpc_repair(b, &opts, result);
	cpc_backing_close(b);
	return ret;
}

/* The pool is whole again, the store opens, and its free space is what the trees say. */
static void end_clean(struct test_pool *p)
{
	test_pool_open(p);
	test_pool_check_clean(p);
	test_pool_fill(p, 10);
	test_pool_check_clean(p);
	test_pool_destroy(p);
}

static void a_copy_is_repaired_from_the_other(void **state)
{
	struct cpc_repair_result r;
	struct places at;
	struct test_pool p;
	struct told told;

	make(&p, &at, 120);
	for (size_t i = 0; i < at.nr; i++)
		cpc_powercut_flip(p.pc, at.node[i][i % 2] + i * 97 % 4096, i % 8);
	cpc_powercut_flip(p.pc, at.home[1] + 99, 1);
	cpc_powercut_flip(p.pc, cpc_geometry_super(&p.store->geo, 0, p.store->super.slot) + 5, 1);
	test_pool_close(&p);
	assert_int_equal(repair(p.pc, &told, &r), 0);
	assert_int_equal(r.before.errors, at.nr + 2);
	assert_int_equal(r.after.errors, 0);
	assert_int_equal(told.lines, at.nr + 2);
	assert_int_equal(told.repaired, told.lines);
	end_clean(&p);
}

static void what_the_device_does_not_keep_is_not_called_repaired(void **state)
{
	const struct cpc_powercut_fault lose = {.op = CPC_POWERCUT_WRITE,
						.action = CPC_FAULT_LOSE,
						.nth = 1,
						.sticky = true,
						.cause_mask = 1u << CPC_CAUSE_REPAIR};
	struct cpc_repair_result r;
	struct places at;
	struct test_pool p;
	struct told told;

	make(&p, &at, 120);
	cpc_powercut_flip(p.pc, at.node[0][1] + 97, 2);
	cpc_powercut_flip(
	    p.pc, cpc_geometry_super(&p.store->geo, 1, (p.store->super.slot + 3) % CPC_SUPER_SLOTS),
	    1);
	test_pool_close(&p);
	cpc_powercut_add_fault(p.pc, &lose);
	assert_int_equal(repair(p.pc, &told, &r), 0);
	assert_int_equal(told.lines, 2);
	assert_int_equal(told.repaired, 0);
	assert_int_equal(r.after.errors, 2);
	cpc_powercut_clear_faults(p.pc);
	assert_int_equal(repair(p.pc, &told, &r), 0);
	assert_int_equal(told.repaired, 2);
	end_clean(&p);
}

static void pieces_of_a_superblock_are_wiped(void **state)
{
	struct cpc_repair_result r;
	struct places at;
	struct test_pool p;
	struct told told;
	uint64_t slot;

	make(&p, &at, 120);
	slot = cpc_geometry_super(&p.store->geo, 1, (p.store->super.slot + 3) % CPC_SUPER_SLOTS);
	cpc_powercut_flip(p.pc, slot + 200, 1);
	test_pool_close(&p);
	assert_int_equal(repair(p.pc, &told, &r), 0);
	assert_int_equal(r.after.errors, 0);
	assert_int_equal(told.repaired, 1);
	assert_int_equal(told.last, slot);
	end_clean(&p);
}

static void a_lost_bitmap_is_rebuilt_from_the_trees(void **state)
{
	struct cpc_repair_result r;
	struct places at;
	struct test_pool p;
	struct told told;

	make(&p, &at, 120);
	cpc_powercut_flip(p.pc, at.home[0], 0);
	cpc_powercut_flip(p.pc, at.home[1], 0);
	test_pool_close(&p);
	assert_int_equal(repair(p.pc, &told, &r), 0);
	assert_int_equal(r.before.errors, 2);
	assert_int_equal(r.after.errors, 0);
	assert_int_equal(told.repaired, 1);
	end_clean(&p);
}

static void a_lost_free_log_is_rebuilt_from_the_trees(void **state)
{
	struct cpc_repair_result r;
	struct places at;
	struct test_pool p;
	struct told told;

	make(&p, &at, 120);
	cpc_powercut_flip(p.pc, at.free_log[0] + 70, 0);
	cpc_powercut_flip(p.pc, at.free_log[1] + 70, 0);
	test_pool_close(&p);
	assert_int_equal(repair(p.pc, &told, &r), 0);
	assert_true(r.before.errors > 0);
	assert_int_equal(r.after.errors, 0);
	assert_int_equal(r.after.leaked_blocks, 0);
	end_clean(&p);
}

static void leaked_blocks_are_given_back(void **state)
{
	struct cpc_repair_result r;
	struct places at;
	struct test_pool p;
	struct told told;

	make(&p, &at, 120);
	memset(&p.item[0].root, 0, sizeof(p.item[0].root));
	assert_int_equal(test_pool_commit_item(&p, &p.item[0], false), 0);
	test_pool_close(&p);
	assert_int_equal(repair(p.pc, &told, &r), 0);
	assert_true(r.before.leaked_blocks > 40);
	assert_int_equal(r.after.errors, 0);
	assert_int_equal(r.after.leaked_blocks, 0);
	end_clean(&p);
}

/* What a lost node names is not known, so its blocks must not be given away. */
static void nothing_is_rebuilt_while_a_node_is_missing(void **state)
{
	uint8_t before[CPC_BLOCK_SIZE], after[CPC_BLOCK_SIZE];
	struct cpc_repair_result r;
	struct places at;
	struct test_pool p;
	struct told told;

	make(&p, &at, 120);
	for (unsigned copy = 0; copy < 2; copy++)
		cpc_powercut_flip(p.pc, at.node[at.nr - 1][copy] + 70, 0);
	cpc_powercut_peek(p.pc, at.home[0], before, sizeof(before));
	test_pool_close(&p);
	assert_int_equal(repair(p.pc, &told, &r), 0);
	assert_int_equal(told.lines, 0);
	assert_true(r.after.leaked_blocks > 0);
	assert_int_equal(r.after.transid, r.before.transid);
	cpc_powercut_peek(p.pc, at.home[0], after, sizeof(after));
	assert_memory_equal(before, after, sizeof(after));
	test_pool_open(&p);
	test_pool_destroy(&p);
}

static void an_intact_pool_is_not_written(void **state)
{
	struct cpc_repair_result r;
	struct places at;
	struct test_pool p;
	struct told told;
	uint64_t writes;

	make(&p, &at, 120);
	test_pool_close(&p);
	writes = cpc_powercut_count(p.pc, CPC_POWERCUT_WRITE);
	assert_int_equal(repair(p.pc, &told, &r), 0);
	assert_int_equal(r.repaired, 0);
	assert_int_equal(cpc_powercut_count(p.pc, CPC_POWERCUT_WRITE), writes);
	end_clean(&p);
}

static void poke_compat_ro(struct test_pool *p, struct cpc_super super, uint64_t compat_ro)
{
	struct cpc_disk_super disk;
	struct cpc_geometry geo;

	assert_int_equal(cpc_geometry_init(&geo, super.total_bytes, super.log_size, super.nodesize,
					   super.incompat & CPC_INCOMPAT_DUP),
			 0);
	super.compat_ro = compat_ro;
	cpc_super_encode(&disk, &super);
	for (unsigned ring = 0; ring < 2; ring++)
		cpc_powercut_poke(p->pc, cpc_geometry_super(&geo, ring, super.slot), &disk,
				  sizeof(disk));
}

/* A feature that this program does not know, of a pool that it may only read. */
static void a_pool_that_may_only_be_read_is_not_written(void **state)
{
	struct cpc_repair_result r;
	struct cpc_super super;
	struct places at;
	struct test_pool p;
	struct told told;
	uint64_t writes;

	make(&p, &at, 120);
	super = p.store->super;
	test_pool_close(&p);
	cpc_powercut_flip(p.pc, at.node[0][1] + 99, 1);
	poke_compat_ro(&p, super, 1ull << 40);
	writes = cpc_powercut_count(p.pc, CPC_POWERCUT_WRITE);
	assert_int_equal(repair(p.pc, &told, &r), -ENOTSUP);
	assert_int_equal(cpc_powercut_count(p.pc, CPC_POWERCUT_WRITE), writes);
	poke_compat_ro(&p, super, 0);
	assert_int_equal(repair(p.pc, &told, &r), 0);
	assert_int_equal(r.repaired, 1);
	end_clean(&p);
}

/* --- a device that is larger than its pool --- */

struct grown {
	struct cpc_powercut *pc;
	struct cpc_backing *b;
	uint64_t pool_size, size;
};

/* Copies a pool of half the size to the start of a device. */
static void grow(struct grown *g, struct test_pool *p)
{
	uint8_t buf[CPC_BLOCK_SIZE];

	g->pool_size = p->store->super.total_bytes;
	g->size = 2 * g->pool_size;
	assert_int_equal(cpc_powercut_create(g->size, &g->pc), 0);
	for (uint64_t at = 0; at < g->pool_size; at += sizeof(buf)) {
		cpc_powercut_peek(p->pc, at, buf, sizeof(buf));
		cpc_powercut_poke(g->pc, at, buf, sizeof(buf));
	}
}

static void lose_ring0(struct grown *g)
{
	const uint8_t zero[CPC_BLOCK_SIZE] = {0};

	for (unsigned slot = 0; slot < CPC_SUPER_SLOTS; slot++)
		cpc_powercut_poke(g->pc, slot * CPC_BLOCK_SIZE, zero, sizeof(zero));
}

static void ring_1_is_found_on_a_device_that_has_grown(void **state)
{
	struct cpc_check_options opts = {.data = true};
	struct cpc_check_result check;
	struct cpc_repair_result r;
	struct places at;
	struct test_pool p;
	struct grown g;
	struct told told;

	make(&p, &at, 120);
	grow(&g, &p);
	lose_ring0(&g);
	assert_int_equal(cpc_powercut_reopen(g.pc, &g.b), 0);
	assert_int_equal(cpc_check(g.b, &opts, &check), -EINVAL);
	cpc_backing_close(g.b);
	assert_int_equal(repair(g.pc, &told, &r), 0);
	assert_true(r.ring0_found);
	assert_int_equal(r.after.errors, 0);
	assert_int_equal(r.after.transid, p.store->super.transid);
	cpc_powercut_destroy(g.pc);
	test_pool_destroy(&p);
}

/* A client may write what looks like a superblock, but never behind the pool's end. */
static void a_clients_superblock_is_not_taken_for_the_pools(void **state)
{
	uint64_t forged_size = 4 * MIB, slot_at;
	struct cpc_disk_super *disk = cpc_alloc_aligned(CPC_BLOCK_SIZE, sizeof(*disk));
	struct cpc_super super;
	struct places at;
	struct test_pool p;
	struct grown g;
	const char *why;

	make(&p, &at, 120);
	grow(&g, &p);
	lose_ring0(&g);
	super = p.store->super;
	super.total_bytes = forged_size;
	super.log_size = cpc_default_log_size(forged_size);
	super.transid += 1000;
	memset(&super.root, 0, sizeof(super.root));
	memset(&super.free_log, 0, sizeof(super.free_log));
	super.slot = 3;
	slot_at = forged_size - (CPC_SUPER_SLOTS - 3) * CPC_BLOCK_SIZE;
	cpc_super_encode(disk, &super);
	assert_int_equal(cpc_super_decode(&super, disk, 3, g.size, &why), 0);
	cpc_powercut_poke(g.pc, slot_at, disk, sizeof(*disk));
	assert_int_equal(cpc_powercut_reopen(g.pc, &g.b), 0);
	assert_int_equal(cpc_super_scan(g.b, &super, NULL, NULL), 0);
	cpc_backing_close(g.b);
	assert_int_equal(super.total_bytes, g.pool_size);
	assert_int_equal(super.transid, p.store->super.transid);
	cpc_free(disk);
	cpc_powercut_destroy(g.pc);
	test_pool_destroy(&p);
}

static void pieces_of_another_pool_in_ring_0_refuse_the_search(void **state)
{
	struct cpc_super super;
	struct places at;
	struct test_pool p;
	struct grown g;

	make(&p, &at, 120);
	grow(&g, &p);
	for (unsigned slot = 0; slot < CPC_SUPER_SLOTS; slot++) {
		cpc_powercut_flip(g.pc, slot * CPC_BLOCK_SIZE + 20, 0); /* uuid */
		cpc_powercut_flip(g.pc, slot * CPC_BLOCK_SIZE + 300, 0);
	}
	assert_int_equal(cpc_powercut_reopen(g.pc, &g.b), 0);
	assert_int_equal(cpc_super_scan(g.b, &super, NULL, NULL), -EUCLEAN);
	cpc_backing_close(g.b);
	cpc_powercut_destroy(g.pc);
	test_pool_destroy(&p);
}

static int scan(struct grown *g, struct cpc_super *super,
		void (*progress)(void *ctx, uint64_t done, uint64_t total), void *ctx)
{
	int ret;

	assert_int_equal(cpc_powercut_reopen(g->pc, &g->b), 0);
	ret = cpc_super_scan(g->b, super, progress, ctx);
	cpc_backing_close(g->b);
	return ret;
}

static void fail_reads(struct grown *g, uint64_t bytenr, uint64_t end)
{
	const struct cpc_powercut_fault fault = {.op = CPC_POWERCUT_READ,
						 .nth = 1,
						 .sticky = true,
						 .bytenr = bytenr,
						 .len = end - bytenr,
						 .error = -EIO};

	if (end > bytenr)
		cpc_powercut_add_fault(g->pc, &fault);
}

static void ring_1_is_found_beside_blocks_that_cannot_be_read(void **state)
{
	uint64_t ring, newest;
	struct cpc_super super;
	struct places at;
	struct test_pool p;
	struct grown g;

	make(&p, &at, 120);
	grow(&g, &p);
	lose_ring0(&g);
	ring = cpc_geometry_super(&p.store->geo, 1, 0);
	newest = cpc_geometry_super(&p.store->geo, 1, p.store->super.slot);
	fail_reads(&g, 0, CPC_SUPER_SLOTS * CPC_BLOCK_SIZE);
	fail_reads(&g, ring - CPC_BLOCK_SIZE, newest);
	fail_reads(&g, newest + CPC_BLOCK_SIZE, g.pool_size + CPC_BLOCK_SIZE);
	assert_int_equal(scan(&g, &super, NULL, NULL), 0);
	assert_int_equal(super.transid, p.store->super.transid);
	cpc_powercut_destroy(g.pc);
	test_pool_destroy(&p);
}

static void pieces_of_the_pool_itself_in_ring_0_do_not_hinder_the_search(void **state)
{
	struct cpc_disk_super disk;
	struct cpc_super super;
	struct places at;
	struct test_pool p;
	struct grown g;

	make(&p, &at, 120);
	grow(&g, &p);
	for (unsigned slot = 0; slot < CPC_SUPER_SLOTS; slot++) {
		cpc_powercut_peek(g.pc, slot * CPC_BLOCK_SIZE, &disk, sizeof(disk));
		cpc_put_le64(&disk.transid, 0);
		if (slot % 2) /* torn before the uuid */
			memset(disk.uuid, 0, sizeof(disk.uuid));
		cpc_powercut_poke(g.pc, slot * CPC_BLOCK_SIZE, &disk, sizeof(disk));
	}
	assert_int_equal(scan(&g, &super, NULL, NULL), 0);
	assert_int_equal(super.transid, p.store->super.transid);
	cpc_powercut_destroy(g.pc);
	test_pool_destroy(&p);
}

static void note_progress(void *ctx, uint64_t done, uint64_t total)
{
	uint64_t *last = ctx;

	assert_true(done > *last && done <= total);
	*last = done;
}

static void a_device_without_any_ring_is_searched_to_its_start(void **state)
{
	const uint8_t zero[CPC_BLOCK_SIZE] = {0};
	struct cpc_super super;
	uint64_t done = 0;
	struct places at;
	struct test_pool p;
	struct grown g;

	make(&p, &at, 120);
	grow(&g, &p);
	lose_ring0(&g);
	for (unsigned slot = 0; slot < CPC_SUPER_SLOTS; slot++)
		cpc_powercut_poke(g.pc, cpc_geometry_super(&p.store->geo, 1, slot), zero,
				  sizeof(zero));
	assert_int_equal(scan(&g, &super, note_progress, &done), -EINVAL);
	assert_int_equal(done, g.size >> CPC_BLOCK_SHIFT);
	cpc_powercut_destroy(g.pc);
	test_pool_destroy(&p);
}

static void two_pools_in_one_ring_are_for_the_user_to_tell_apart(void **state)
{
	struct cpc_disk_super *disk = cpc_alloc_aligned(CPC_BLOCK_SIZE, sizeof(*disk));
	struct cpc_super super;
	struct places at;
	struct test_pool p;
	struct grown g;

	make(&p, &at, 120);
	grow(&g, &p);
	lose_ring0(&g);
	super = p.store->super;
	super.slot = (super.slot + 3) % CPC_SUPER_SLOTS;
	memcpy(super.uuid, p.store->uuid, CPC_UUID_SIZE);
	super.uuid[5] ^= 1;
	cpc_super_encode(disk, &super);
	cpc_powercut_poke(g.pc, cpc_geometry_super(&p.store->geo, 1, super.slot), disk,
			  sizeof(*disk));
	assert_int_equal(scan(&g, &super, NULL, NULL), -EUCLEAN);
	cpc_free(disk);
	cpc_powercut_destroy(g.pc);
	test_pool_destroy(&p);
}

/* --- power cuts --- */

static void spoil(struct test_pool *p, const struct places *at)
{
	for (size_t i = 0; i < at->nr; i++)
		cpc_powercut_flip(p->pc, at->node[i][i % 2] + 70, 3);
	cpc_powercut_flip(p->pc, at->home[0], 0);
	cpc_powercut_flip(p->pc, at->home[1], 0);
	cpc_powercut_flip(p->pc, cpc_geometry_super(&p->store->geo, 1, p->store->super.slot), 1);
}

/* Data and nodes that could be read before can be read after, whatever the cut has left. */
static void expect_no_worse(struct test_pool *p, const struct cpc_check_result *before)
{
	struct cpc_check_options opts = {.data = true};
	struct cpc_check_result r;
	struct cpc_backing *b;

	assert_int_equal(cpc_powercut_reopen(p->pc, &b), 0);
	assert_int_equal(cpc_check(b, &opts, &r), 0);
	cpc_backing_close(b);
	assert_int_equal(r.data_bad, 0);
	assert_int_equal(r.data_blocks, before->data_blocks);
	assert_true(r.nodes + 20 >= before->nodes);
	assert_true(r.nodes_bad <= before->nodes_bad);
	assert_int_equal(r.volumes, before->volumes);
	assert_true(r.transid >= before->transid);
}

static void a_power_cut_in_a_repair_makes_nothing_worse(void **state)
{
	struct cpc_powercut_saved *spoilt, *cut;
	struct cpc_repair_result r, whole;
	struct places at;
	struct test_pool p;
	struct told told;
	unsigned instants = 0, states = 0;

	make(&p, &at, 120);
	spoil(&p, &at);
	test_pool_close(&p);
	spoilt = cpc_powercut_save(p.pc);
	assert_int_equal(repair(p.pc, &told, &whole), 0);
	assert_int_equal(whole.after.errors, 0);
	for (bool done = false; !done; instants++) {
		cpc_powercut_restore(p.pc, spoilt);
		cpc_powercut_fail(p.pc, CPC_POWERCUT_WRITE, instants + 1, true, -EIO);
		done = repair(p.pc, &told, &r) == 0 && !r.after.errors;
		cpc_powercut_clear_faults(p.pc);
		cut = cpc_powercut_save(p.pc);
		for (unsigned seed = 0; seed < 12; seed++, states++) {
			cpc_powercut_restore(p.pc, cut);
			cpc_powercut_crash_random(p.pc, instants * 100 + seed);
			expect_no_worse(&p, &whole.before);
			assert_int_equal(repair(p.pc, &told, &r), 0);
			assert_int_equal(r.after.errors, 0);
		}
		cpc_powercut_saved_free(cut);
	}
	assert_true(instants > at.nr);
	print_message("  %u instants, %u states\n", instants, states);
	cpc_powercut_saved_free(spoilt);
	end_clean(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_copy_is_repaired_from_the_other),
	    cmocka_unit_test(what_the_device_does_not_keep_is_not_called_repaired),
	    cmocka_unit_test(pieces_of_a_superblock_are_wiped),
	    cmocka_unit_test(a_lost_bitmap_is_rebuilt_from_the_trees),
	    cmocka_unit_test(a_lost_free_log_is_rebuilt_from_the_trees),
	    cmocka_unit_test(leaked_blocks_are_given_back),
	    cmocka_unit_test(nothing_is_rebuilt_while_a_node_is_missing),
	    cmocka_unit_test(an_intact_pool_is_not_written),
	    cmocka_unit_test(a_pool_that_may_only_be_read_is_not_written),
	    cmocka_unit_test(ring_1_is_found_on_a_device_that_has_grown),
	    cmocka_unit_test(a_clients_superblock_is_not_taken_for_the_pools),
	    cmocka_unit_test(pieces_of_another_pool_in_ring_0_refuse_the_search),
	    cmocka_unit_test(pieces_of_the_pool_itself_in_ring_0_do_not_hinder_the_search),
	    cmocka_unit_test(ring_1_is_found_beside_blocks_that_cannot_be_read),
	    cmocka_unit_test(a_device_without_any_ring_is_searched_to_its_start),
	    cmocka_unit_test(two_pools_in_one_ring_are_for_the_user_to_tell_apart),
	    cmocka_unit_test(a_power_cut_in_a_repair_makes_nothing_worse),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
