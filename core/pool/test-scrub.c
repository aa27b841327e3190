/* SPDX-License-Identifier: BSD-3-Clause */
/* A scrub beside clients: no false alarm, nothing stale, and what it finds is told and healed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "backing/powercut.h"
#include "check/check.h"
#include "check/oracle.h"
#include "lib/hooks.h"
#include "lib/log.h"
#include "pool/pool-internal.h"
#include "volume/volume.h"

#define MIB	  (1024ull * 1024)
#define BLOCKS	  1024u
#define POOL_SIZE (16 * MIB)

static struct cpc_error err;

struct fixture {
	struct cpc_powercut *pc;
	struct cpc_oracle *oracle; /* NULL: the test makes damage, which it would find */
	struct cpc_pool *pool;
	struct cpc_volume *vol;
	struct cpc_pool_options opts;
};

static void no_message(enum cpc_log_level level, const char *line)
{
	if (getenv("CPC_TEST_VERBOSE"))
		fprintf(stderr, "%s\n", line);
}

static void illegal(void *ctx, const char *what)
{
	fprintf(stderr, "legality oracle: %s\n", what);
	abort();
}

static struct cpc_backing *start_life(struct fixture *f)
{
	struct cpc_backing *b;

	if (f->oracle)
		assert_int_equal(cpc_oracle_reopen(f->oracle, &b), 0);
	else
		assert_int_equal(cpc_powercut_reopen(f->pc, &b), 0);
	return b;
}

static void open_pool(struct fixture *f)
{
	struct cpc_backing *b = start_life(f);

	if (cpc_pool_open_backing(b, &f->opts, &f->pool, &err))
		fail_msg("%s", err.text);
	assert_int_equal(cpc_pool_start(f->pool, &err), 0);
	if (cpc_pool_open_volume(f->pool, "v", &f->vol) == 0)
		cpc_pool_close_volume(f->pool, f->vol);
}

static void kill_pool(struct fixture *f)
{
	cpc_powercut_kill(f->pc);
	cpc_pool_close(f->pool);
}

static void write_block(struct fixture *f, uint64_t block, uint8_t value)
{
	uint8_t buf[CPC_BLOCK_SIZE];

	memset(buf, value, sizeof(buf));
	assert_int_equal(cpc_volume_write(f->vol, buf, sizeof(buf), block * CPC_BLOCK_SIZE, 0), 0);
}

static void make(struct fixture *f, bool threads, bool watch)
{
	struct cpc_format_options fo = {.nodesize = 4096};
	struct cpc_backing *b;

	memset(f, 0, sizeof(*f));
	cpc_log_set_sink(no_message);
	cpc_pool_options_init(&f->opts);
	f->opts.cache = 4 * MIB;
	f->opts.no_threads = !threads;
	f->opts.commit_interval = 0;
	assert_int_equal(cpc_powercut_create(POOL_SIZE, &f->pc), 0);
	if (watch)
		cpc_oracle_create(f->pc, illegal, f, &f->oracle);
	b = start_life(f);
	assert_int_equal(cpc_pool_format_backing(b, &fo, &err), 0);
	cpc_backing_close(b);
	open_pool(f);
	assert_int_equal(cpc_pool_create_volume(f->pool, "v", BLOCKS * CPC_BLOCK_SIZE, &err), 0);
	assert_int_equal(cpc_pool_open_volume(f->pool, "v", &f->vol), 0);
	cpc_pool_close_volume(f->pool, f->vol);
	for (unsigned i = 0; i < 300; i++)
		write_block(f, i * 37 % BLOCKS, (uint8_t)(1 + i % 250));
	assert_int_equal(cpc_pool_commit(f->pool), 0);
	cpc_pool_settle(f->pool);
}

static void destroy(struct fixture *f)
{
	if (f->oracle)
		cpc_oracle_destroy(f->oracle);
	cpc_powercut_destroy(f->pc);
}

static void expect_clean(struct fixture *f)
{
	struct cpc_check_options opts = {.data = true};
	struct cpc_check_result r;
	struct cpc_backing *b;

	assert_int_equal(cpc_powercut_reopen(f->pc, &b), 0);
	assert_int_equal(cpc_check(b, &opts, &r), 0);
	cpc_backing_close(b);
	assert_int_equal(r.errors, 0);
}

struct told {
	struct cpc_damage last;
	unsigned lines, repaired;
};

static void note(void *ctx, const struct cpc_damage *d)
{
	struct told *told = ctx;
	char line[CPC_DAMAGE_LINE];

	cpc_damage_line(d, line);
	if (getenv("CPC_TEST_VERBOSE"))
		fprintf(stderr, "%s\n", line);
	told->last = *d;
	told->lines++;
	told->repaired += d->repaired;
}

/* Both copies of the bitmap of the only group. */
static void find_home(struct fixture *f, uint64_t bytenr[2])
{
	struct cpc_store *store = f->pool->store;
	struct cpc_cursor c;

	cpc_cursor_init(&c, store->ebc, CPC_TREE_ROOT, &store->super.root);
	assert_int_equal(cpc_cursor_seek(&c, cpc_root_key(CPC_ITEM_GROUP, 0)), 0);
	assert_true(c.valid && c.key == cpc_root_key(CPC_ITEM_GROUP, 0));
	for (unsigned copy = 0; copy < 2; copy++)
		bytenr[copy] = cpc_geometry_home(&store->geo, copy, 0,
						 ((const struct cpc_disk_group *)c.value)->home);
	cpc_cursor_release(&c);
}

static void commit_until_folded(struct fixture *f)
{
	for (unsigned i = 0; i < 60; i++) {
		write_block(f, i * 3, 7);
		assert_int_equal(cpc_pool_commit(f->pool), 0);
	}
}

/* The only block of the device that is full of one value. */
static uint64_t find_block(struct fixture *f, uint8_t value)
{
	uint8_t want[CPC_BLOCK_SIZE], have[CPC_BLOCK_SIZE];
	uint64_t found = 0;

	memset(want, value, sizeof(want));
	for (uint64_t at = 0; at < POOL_SIZE; at += sizeof(have)) {
		cpc_powercut_peek(f->pc, at, have, sizeof(have));
		if (memcmp(want, have, sizeof(have)) != 0)
			continue;
		assert_int_equal(found, 0);
		found = at;
	}
	assert_true(found);
	return found;
}

/* --- one thread --- */

static void either_copy_of_a_bitmap_is_healed(void **state)
{
	struct cpc_scrub_result r;
	struct fixture f;
	uint64_t home[2];

	make(&f, false, false);
	commit_until_folded(&f);
	for (unsigned copy = 0; copy < 2; copy++) {
		struct told told = {.lines = 0};

		find_home(&f, home);
		cpc_powercut_flip(f.pc, home[copy] + 3, 1);
		assert_int_equal(cpc_pool_scrub(f.pool, note, &told, &r), 0);
		assert_int_equal(told.lines, 1);
		assert_int_equal(told.repaired, 1);
		assert_int_equal(told.last.kind, CPC_DAMAGE_BITMAP);
		assert_int_equal(told.last.bytenr, home[copy]);
	}
	kill_pool(&f);
	expect_clean(&f);
	destroy(&f);
}

static void a_bad_block_of_data_is_named(void **state)
{
	struct told told = {.lines = 0};
	struct cpc_scrub_result r;
	struct fixture f;
	uint64_t at;

	make(&f, false, false);
	write_block(&f, 5, 254);
	assert_int_equal(cpc_pool_commit(f.pool), 0);
	at = find_block(&f, 254);
	cpc_powercut_flip(f.pc, at + 3, 1);
	assert_int_equal(cpc_pool_scrub(f.pool, note, &told, &r), 0);
	assert_int_equal(told.lines, 1);
	assert_int_equal(told.last.kind, CPC_DAMAGE_DATA);
	assert_int_equal(told.last.bytenr, at);
	assert_int_equal(told.last.offset, 5 * CPC_BLOCK_SIZE);
	assert_int_equal(r.unrepaired, 1);
	kill_pool(&f);
	destroy(&f);
}

struct locked {
	struct fixture *f;
	unsigned asked, taken;
};

static void *try_to_write_a_superblock(void *arg)
{
	struct locked *l = arg;
	struct cpc_mutex *lock = &l->f->pool->store->super_lock;

	l->asked++;
	if (cpc_mutex_trylock(lock)) {
		l->taken++;
		cpc_mutex_unlock(lock);
	}
	return NULL;
}

static void ask_meanwhile(void *ctx, const struct cpc_damage *d)
{
	pthread_t thread;

	assert_int_equal(d->kind, CPC_DAMAGE_SUPER);
	assert_int_equal(cpc_thread_start(&thread, "commit", try_to_write_a_superblock, ctx), 0);
	pthread_join(thread, NULL);
}

static void no_commit_writes_a_superblock_while_one_is_healed(void **state)
{
	struct cpc_scrub_result r;
	struct fixture f;
	struct locked l = {.f = &f};

	make(&f, false, false);
	cpc_powercut_flip(
	    f.pc, cpc_geometry_super(&f.pool->store->geo, 1, f.pool->store->super.slot) + 900, 1);
	assert_int_equal(cpc_pool_scrub(f.pool, ask_meanwhile, &l, &r), 0);
	assert_int_equal(l.asked, 1);
	assert_int_equal(l.taken, 0);
	assert_int_equal(r.repaired, 1);
	kill_pool(&f);
	destroy(&f);
}

/* The pool may come back with it: what the device has of it is for the next commit to replace. */
static void pieces_of_a_superblock_that_has_just_failed_are_left(void **state)
{
	const struct cpc_powercut_fault landed = {.op = CPC_POWERCUT_WRITE,
						  .action = CPC_FAULT_FAIL_LANDED,
						  .error = -EIO,
						  .nth = 1,
						  .sticky = true,
						  .cause_mask = 1u << CPC_CAUSE_SUPER};
	struct told told = {.lines = 0};
	const struct cpc_scrub_options opts = {.heal = true, .damage = note, .ctx = &told};
	uint8_t before[CPC_BLOCK_SIZE], after[CPC_BLOCK_SIZE];
	struct cpc_scrub_result r;
	struct fixture f;
	uint64_t slot;

	make(&f, false, false);
	write_block(&f, 5, 254);
	cpc_powercut_add_fault(f.pc, &landed);
	assert_int_equal(cpc_pool_commit(f.pool), -EIO);
	cpc_powercut_clear_faults(f.pc);
	slot = cpc_geometry_super(&f.pool->store->geo, 0, f.pool->store->last_slot);
	cpc_powercut_flip(f.pc, slot + 900, 1);
	cpc_powercut_peek(f.pc, slot, before, sizeof(before));
	assert_int_equal(cpc_scrub(f.pool->store, cpc_engine_log(f.pool->engine), &opts, &r), 0);
	assert_int_equal(told.lines, 0);
	cpc_powercut_peek(f.pc, slot, after, sizeof(after));
	assert_memory_equal(before, after, sizeof(after));
	kill_pool(&f);
	destroy(&f);
}

static void records_that_the_trees_do_not_contain_are_healed(void **state)
{
	const struct cpc_scrub_options opts = {.heal = true, .damage = note, .ctx = NULL};
	struct cpc_scrub_options o = opts;
	struct cpc_scrub_result r;
	struct told told = {.lines = 0};
	struct fixture f;
	uint64_t at;

	make(&f, false, false);
	at = cpc_log_bytenr(f.pool->store, 1, f.pool->store->super.log_position);
	for (unsigned i = 0; i < 20; i++) {
		write_block(&f, i, 9);
		assert_int_equal(cpc_volume_flush(f.vol), 0);
	}
	cpc_powercut_flip(f.pc, at + 700, 2);
	o.ctx = &told;
	assert_int_equal(cpc_scrub(f.pool->store, cpc_engine_log(f.pool->engine), &o, &r), 0);
	assert_true(r.log_records >= 20);
	assert_int_equal(told.lines, 1);
	assert_int_equal(told.last.kind, CPC_DAMAGE_LOG);
	assert_int_equal(told.last.bytenr, at);
	assert_int_equal(r.repaired, 1);
	/* now the other copy may go */
	cpc_powercut_flip(f.pc, cpc_log_bytenr(f.pool->store, 0, f.pool->store->super.log_position),
			  2);
	kill_pool(&f);
	open_pool(&f);
	kill_pool(&f);
	expect_clean(&f);
	destroy(&f);
}

struct looker {
	struct fixture *f;
	uint64_t used; /* of the ring, after a commit that contains all of it */
};

static void commit_meanwhile(void *ctx, const struct cpc_damage *d)
{
	struct looker *l = ctx;
	struct cpc_log_stats s;

	assert_int_equal(cpc_pool_commit(l->f->pool), 0);
	cpc_log_get_stats(cpc_engine_log(l->f->pool->engine), &s);
	l->used = s.used;
}

static void the_ring_is_kept_while_its_records_are_looked_at(void **state)
{
	struct fixture f;
	struct looker l = {&f, 0};
	const struct cpc_scrub_options opts = {.heal = true, .damage = commit_meanwhile, .ctx = &l};
	struct cpc_scrub_result r;
	struct cpc_log_stats before, after;

	make(&f, false, false);
	for (unsigned i = 0; i < 20; i++) {
		write_block(&f, i, 9);
		assert_int_equal(cpc_volume_flush(f.vol), 0);
	}
	cpc_log_get_stats(cpc_engine_log(f.pool->engine), &before);
	cpc_powercut_flip(
	    f.pc, cpc_log_bytenr(f.pool->store, 1, f.pool->store->super.log_position) + 700, 2);
	assert_int_equal(cpc_scrub(f.pool->store, cpc_engine_log(f.pool->engine), &opts, &r), 0);
	cpc_log_get_stats(cpc_engine_log(f.pool->engine), &after);
	assert_int_equal(r.repaired, 1);
	assert_int_equal(l.used, before.used);
	assert_int_equal(after.used, 0);
	kill_pool(&f);
	destroy(&f);
}

static void a_node_without_a_good_copy_is_healed_from_memory(void **state)
{
	struct cpc_scrub_result r;
	struct told told = {.lines = 0};
	struct fixture f;
	struct cpc_node_ptr root;

	make(&f, false, false);
	root = f.pool->store->super.root;
	cpc_powercut_flip(f.pc, root.bytenr[0] + 100, 2);
	cpc_powercut_flip(f.pc, root.bytenr[1] + 200, 2);
	assert_int_equal(cpc_pool_scrub(f.pool, note, &told, &r), 0);
	assert_int_equal(told.repaired, 2);
	assert_int_equal(r.unrepaired, 0);
	assert_int_equal(cpc_pool_shutdown(f.pool), 0);
	cpc_pool_close(f.pool);
	expect_clean(&f);
	destroy(&f);
}

static void a_read_only_pool_is_reported_on_and_not_written(void **state)
{
	struct cpc_scrub_result r;
	struct told told = {.lines = 0};
	struct fixture f;
	uint64_t writes, node;

	make(&f, false, false);
	node = f.pool->store->super.root.bytenr[1];
	kill_pool(&f);
	cpc_powercut_flip(f.pc, node + 77, 2);
	f.opts.read_only = true;
	open_pool(&f);
	writes = cpc_powercut_count(f.pc, CPC_POWERCUT_WRITE);
	assert_int_equal(cpc_pool_scrub(f.pool, note, &told, &r), 0);
	assert_int_equal(told.lines, 1);
	assert_int_equal(told.last.bytenr, node);
	assert_int_equal(r.unrepaired, 1);
	assert_int_equal(cpc_powercut_count(f.pc, CPC_POWERCUT_WRITE), writes);
	cpc_pool_close(f.pool);
	destroy(&f);
}

static void what_the_device_does_not_keep_is_not_called_repaired(void **state)
{
	const struct cpc_powercut_fault lose = {.op = CPC_POWERCUT_WRITE,
						.action = CPC_FAULT_LOSE,
						.nth = 1,
						.sticky = true,
						.cause_mask = 1u << CPC_CAUSE_REPAIR};
	struct cpc_scrub_result r;
	struct told told = {.lines = 0};
	struct fixture f;

	make(&f, false, false);
	cpc_powercut_flip(f.pc, f.pool->store->super.root.bytenr[0] + 77, 2);
	cpc_powercut_add_fault(f.pc, &lose);
	assert_int_equal(cpc_pool_scrub(f.pool, note, &told, &r), 0);
	assert_int_equal(told.lines, 1);
	assert_int_equal(told.repaired, 0);
	assert_int_equal(r.unrepaired, 1);
	cpc_powercut_clear_faults(f.pc);
	assert_int_equal(cpc_pool_scrub(f.pool, note, &told, &r), 0);
	assert_int_equal(told.repaired, 1);
	kill_pool(&f);
	destroy(&f);
}

/* The log names blocks in the only group, whose bitmap is gone. */
static void a_pool_whose_log_names_a_bad_group_opens_after_the_repair(void **state)
{
	struct cpc_repair_options opts = {.check = {.data = true}};
	struct cpc_repair_result r;
	struct cpc_backing *b;
	struct fixture f;
	uint64_t home[2];
	uint8_t buf[CPC_BLOCK_SIZE];

	make(&f, false, false);
	commit_until_folded(&f);
	find_home(&f, home);
	/* most of what is free, so that the repair's commit would run into it */
	for (unsigned i = 0; i < 2 * BLOCKS; i++) {
		write_block(&f, i % BLOCKS, (uint8_t)(123 + i % BLOCKS));
		if (i % 64 == 63)
			assert_int_equal(cpc_volume_flush(f.vol), 0);
	}
	assert_int_equal(cpc_volume_flush(f.vol), 0);
	kill_pool(&f);
	cpc_powercut_flip(f.pc, home[0] + 3, 1);
	cpc_powercut_flip(f.pc, home[1] + 3, 1);
	assert_int_equal(cpc_powercut_reopen(f.pc, &b), 0);
	assert_int_equal(cpc_pool_open_backing(b, &f.opts, &f.pool, &err), -EUCLEAN);
	assert_int_equal(cpc_powercut_reopen(f.pc, &b), 0);
	assert_int_equal(cpc_repair(b, &opts, &r), 0);
	cpc_backing_close(b);
	assert_int_equal(r.after.errors, 0);
	open_pool(&f);
	for (unsigned i = 0; i < BLOCKS; i++) {
		assert_int_equal(cpc_volume_read(f.vol, buf, sizeof(buf), i * CPC_BLOCK_SIZE), 0);
		assert_int_equal(buf[0], (uint8_t)(123 + i));
	}
	assert_int_equal(cpc_pool_shutdown(f.pool), 0);
	cpc_pool_close(f.pool);
	expect_clean(&f);
	destroy(&f);
}

/* --- a held state --- */

/* Everything that it names verifies, however many commits come after it. */
static void expect_intact(struct fixture *f, const struct cpc_super *super)
{
	uint8_t bitmap[POOL_SIZE / CPC_BLOCK_SIZE / 8];
	const struct cpc_geometry *geo = &f->pool->store->geo;
	uint8_t before[CPC_BLOCK_SIZE];
	static uint8_t copy[POOL_SIZE];
	static bool have;

	assert_int_equal(cpc_check_reachable(f->pool->backing, super, bitmap, geo->nr_blocks), 0);
	for (uint64_t b = 0; b < geo->nr_blocks; b++) {
		if (!(bitmap[b / 8] & 1u << b % 8))
			continue;
		cpc_powercut_peek(f->pc, b * CPC_BLOCK_SIZE, before, sizeof(before));
		if (!have)
			memcpy(copy + b * CPC_BLOCK_SIZE, before, sizeof(before));
		else if (memcmp(copy + b * CPC_BLOCK_SIZE, before, sizeof(before)) != 0)
			fail_msg("block %llu has been written over", (unsigned long long)b);
	}
	have = !have;
}

static void commits_leave_a_held_state_as_it_is(void **state)
{
	struct cpc_store_hold hold;
	struct cpc_store_info info;
	struct fixture f;

	make(&f, false, true);
	for (unsigned i = 0; i < 40; i++) {
		write_block(&f, i, 3);
		assert_int_equal(cpc_pool_commit(f.pool), 0);
	}
	cpc_store_hold(f.pool->store, &hold);
	expect_intact(&f, &hold.super);
	for (unsigned i = 0; i < 60; i++) {
		for (unsigned k = 0; k < 10; k++)
			write_block(&f, (i * 10 + k) * 7 % BLOCKS, 4);
		assert_int_equal(cpc_pool_commit(f.pool), 0);
	}
	expect_intact(&f, &hold.super);
	cpc_store_info(f.pool->store, &info);
	assert_true(info.pinned_blocks > 600);
	cpc_store_unhold(f.pool->store, &hold);
	cpc_store_info(f.pool->store, &info);
	assert_int_equal(info.pinned_blocks, 0);
	assert_int_equal(cpc_pool_shutdown(f.pool), 0);
	cpc_pool_close(f.pool);
	expect_clean(&f);
	destroy(&f);
}

/* --- threads --- */

struct writer {
	struct fixture *f;
	unsigned id;
	_Atomic bool *stop;
	_Atomic unsigned *rounds;
};

/* Each has every fourth block; small and large writes, trims, flushes, commits. */
static void *write_all_the_time(void *arg)
{
	struct writer *w = arg;
	unsigned i = 0;

	while (!atomic_load(w->stop)) {
		unsigned block = (i * 41 + w->id) % BLOCKS;

		if (i % 17 == 3)
			cpc_volume_trim(w->f->vol, CPC_BLOCK_SIZE, block * CPC_BLOCK_SIZE, 0);
		else
			write_block(w->f, block, (uint8_t)(1 + i % 200));
		if (i % 5 == 0)
			assert_int_equal(cpc_volume_flush(w->f->vol), 0);
		if (i % 23 == 0)
			assert_int_equal(cpc_pool_commit(w->f->pool), 0);
		i++;
		atomic_fetch_add(w->rounds, 1);
	}
	return NULL;
}

static void scrub_beside_writers(unsigned scrubs, bool flip)
{
	_Atomic bool stop = false;
	_Atomic unsigned rounds = 0;
	struct writer w[3];
	pthread_t thread[3];
	struct cpc_scrub_result r;
	struct told told = {.lines = 0};
	struct fixture f;
	uint64_t nodes = 0;

	make(&f, true, true);
	for (unsigned i = 0; i < 3; i++) {
		w[i] = (struct writer){&f, i, &stop, &rounds};
		assert_int_equal(cpc_thread_start(&thread[i], "writer", write_all_the_time, &w[i]),
				 0);
	}
	for (unsigned i = 0; i < scrubs || atomic_load(&rounds) < 500; i++) {
		if (flip)
			cpc_powercut_flip(
			    f.pc, cpc_geometry_super(&f.pool->store->geo, 1, i % 8) + 900, 1);
		assert_int_equal(cpc_pool_scrub(f.pool, note, &told, &r), 0);
		nodes += r.nodes;
	}
	atomic_store(&stop, true);
	for (unsigned i = 0; i < 3; i++)
		pthread_join(thread[i], NULL);
	assert_true(nodes > scrubs);
	if (flip) {
		assert_int_equal(told.repaired, told.lines);
	} else if (told.lines) {
		char line[CPC_DAMAGE_LINE];

		cpc_damage_line(&told.last, line);
		fail_msg("%u false alarms: %s", told.lines, line);
	}
	assert_int_equal(cpc_pool_shutdown(f.pool), 0);
	cpc_pool_close(f.pool);
	expect_clean(&f);
	destroy(&f);
}

static void writers_give_a_scrub_no_false_alarm(void **state)
{
	const char *ops = getenv("CPC_TEST_OPS");

	scrub_beside_writers(ops ? (unsigned)atoi(ops) : 60, false);
}

static void superblocks_are_healed_beside_commits(void **state)
{
	scrub_beside_writers(30, true);
}

/* --- the thread of its own --- */

static void collect(void *ctx, const struct cpc_damage *d)
{
	note(ctx, d);
}

static void a_scrub_in_the_background_tells_all_it_found(void **state)
{
	struct cpc_scrub_status s;
	struct told told = {.lines = 0};
	struct fixture f;

	make(&f, true, false);
	cpc_powercut_flip(f.pc, f.pool->store->super.root.bytenr[0] + 77, 2);
	assert_int_equal(cpc_pool_scrub_start(f.pool, &err), 0);
	do {
		cpc_pool_scrub_wait(f.pool, 1000000000);
		cpc_pool_scrub_status(f.pool, &s, 0, NULL, NULL);
	} while (s.state == CPC_SCRUB_RUNNING);
	assert_int_equal(s.state, CPC_SCRUB_DONE);
	cpc_pool_scrub_status(f.pool, &s, 0, collect, &told);
	assert_int_equal(told.repaired, 1);
	assert_int_equal(s.result.repaired, 1);
	assert_int_equal(s.nr_damage, 1);
	assert_int_equal(s.done, s.total);
	/* a new one begins anew */
	assert_int_equal(cpc_pool_scrub_start(f.pool, &err), 0);
	assert_int_equal(cpc_pool_shutdown(f.pool), 0);
	cpc_pool_scrub_status(f.pool, &s, 0, NULL, NULL);
	assert_int_equal(s.nr_damage, 0);
	assert_true(s.state == CPC_SCRUB_DONE || s.state == CPC_SCRUB_STOPPED);
	assert_int_equal(cpc_pool_scrub_start(f.pool, &err), -ESHUTDOWN);
	cpc_pool_close(f.pool);
	destroy(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(either_copy_of_a_bitmap_is_healed),
	    cmocka_unit_test(a_bad_block_of_data_is_named),
	    cmocka_unit_test(no_commit_writes_a_superblock_while_one_is_healed),
	    cmocka_unit_test(pieces_of_a_superblock_that_has_just_failed_are_left),
	    cmocka_unit_test(records_that_the_trees_do_not_contain_are_healed),
	    cmocka_unit_test(the_ring_is_kept_while_its_records_are_looked_at),
	    cmocka_unit_test(a_node_without_a_good_copy_is_healed_from_memory),
	    cmocka_unit_test(a_read_only_pool_is_reported_on_and_not_written),
	    cmocka_unit_test(what_the_device_does_not_keep_is_not_called_repaired),
	    cmocka_unit_test(a_pool_whose_log_names_a_bad_group_opens_after_the_repair),
	    cmocka_unit_test(commits_leave_a_held_state_as_it_is),
	    cmocka_unit_test(writers_give_a_scrub_no_false_alarm),
	    cmocka_unit_test(superblocks_are_healed_beside_commits),
	    cmocka_unit_test(a_scrub_in_the_background_tells_all_it_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
