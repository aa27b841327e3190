/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a flush promises, with the whole engine over a device that loses power: whatever commits do,
 * however full the pool is, and however long the log.
 */
#include "volume/test-flush-rig.h"

#include <stdio.h>
#include <time.h>

#include "lib/hooks.h"

/* --- commits --- */

#define NR_VOLUMES 3u
#define NR_BLOCKS  200u

static void *run_commit(void *arg)
{
	return (void *)(intptr_t)cpc_pool_commit(arg);
}

static void flush_all(struct flush_rig *f, struct cpc_volume *vol[NR_VOLUMES], unsigned nr,
		      uint32_t value[NR_VOLUMES][NR_BLOCKS])
{
	for (unsigned i = 0; i < nr; i++) {
		for (unsigned v = 0; v < NR_VOLUMES; v++) {
			uint64_t block = flush_rig_draw(f, NR_BLOCKS);

			value[v][block] = 1 + (uint32_t)flush_rig_draw(f, 1u << 30);
			assert_int_equal(flush_rig_write_value(vol[v], block, value[v][block], 0),
					 0);
			assert_int_equal(cpc_volume_flush(vol[v]), 0);
		}
	}
}

static void compare_all(struct cpc_volume *vol[NR_VOLUMES], uint32_t value[NR_VOLUMES][NR_BLOCKS])
{
	for (unsigned v = 0; v < NR_VOLUMES; v++) {
		for (unsigned b = 0; b < NR_BLOCKS; b++)
			assert_int_equal(flush_rig_read_value(vol[v], b), value[v][b]);
	}
}

static void open_all(struct flush_rig *f, struct cpc_volume *vol[NR_VOLUMES])
{
	static const char *const names[NR_VOLUMES] = {"a", "b", "c"};

	for (unsigned v = 0; v < NR_VOLUMES; v++)
		vol[v] = flush_rig_open_volume(f, names[v]);
}

static void close_all(struct flush_rig *f, struct cpc_volume *vol[NR_VOLUMES])
{
	for (unsigned v = 0; v < NR_VOLUMES; v++)
		cpc_pool_close_volume(f->pool, vol[v]);
}

/* Nothing but what was flushed survives, and that is all there. */
static void finish_after_a_power_cut(struct flush_rig *f, struct cpc_volume *vol[NR_VOLUMES],
				     uint32_t value[NR_VOLUMES][NR_BLOCKS])
{
	close_all(f, vol);
	cpc_pool_close(f->pool);
	flush_rig_cut_power(f, CPC_FATE_LOST);
	flush_rig_open(f);
	open_all(f, vol);
	compare_all(vol, value);
	close_all(f, vol);
	flush_rig_finish(f);
}

/* A thousand flushes on every volume while a commit cannot write its nodes. */
static void flushes_do_not_wait_for_a_commit(void **state)
{
	for (unsigned crash = 0; crash < 2; crash++) {
		uint32_t value[NR_VOLUMES][NR_BLOCKS] = {{0}};
		struct cpc_volume *vol[NR_VOLUMES];
		struct flush_rig f;
		pthread_t thread;
		void *result;

		flush_rig_make(&f, 512 * MIB, 64 * MIB, 64 * MIB);
		flush_rig_create(&f, "a", MIB);
		flush_rig_create(&f, "b", MIB);
		flush_rig_create(&f, "c", MIB);
		open_all(&f, vol);
		flush_all(&f, vol, 10, value);
		cpc_powercut_hold(f.pc, CPC_HOLD_WRITE(CPC_CAUSE_METADATA));
		assert_int_equal(cpc_thread_start(&thread, "commit", run_commit, f.pool), 0);
		cpc_powercut_wait_held(f.pc, 1);
		flush_all(&f, vol, 1000, value);
		if (crash)
			flush_rig_cut_power(&f, CPC_FATE_LOST);
		else
			cpc_powercut_release(f.pc);
		pthread_join(thread, &result);
		assert_true(crash ? result != NULL : result == NULL);
		if (!crash)
			compare_all(vol, value);
		finish_after_a_power_cut(&f, vol, value);
	}
}

struct committer {
	struct flush_rig *f;
	_Atomic bool stop;
	unsigned failed;
};

/* Each commit fails somewhere else: at a node, at a superblock, at one of its flushes. */
static void *run_failing_commits(void *arg)
{
	static const unsigned causes[] = {CPC_CAUSE_METADATA, CPC_CAUSE_SUPER};
	struct committer *c = arg;

	for (unsigned i = 0; !atomic_load(&c->stop); i++) {
		struct cpc_powercut_fault fault = {.op = CPC_POWERCUT_WRITE,
						   .cause_mask = 1u << causes[i % 2],
						   .nth = 1 + i / 2 % 3,
						   .error = -EIO};

		cpc_powercut_add_fault(c->f->pc, &fault);
		c->failed += cpc_pool_commit(c->f->pool) != 0;
		cpc_powercut_clear_faults(c->f->pc);
		/* three in a row would end the pool */
		if (i % 2)
			cpc_pool_commit(c->f->pool);
	}
	return NULL;
}

static void commits_that_fail_beside_flushes_harm_none(void **state)
{
	uint32_t value[NR_VOLUMES][NR_BLOCKS] = {{0}};
	struct cpc_volume *vol[NR_VOLUMES];
	struct committer c = {0};
	struct flush_rig f;
	pthread_t thread;

	/* the ring has room for all of it: no write needs a commit */
	flush_rig_make(&f, 64 * MIB, 8 * MIB, 8 * MIB);
	flush_rig_create(&f, "a", MIB);
	flush_rig_create(&f, "b", MIB);
	flush_rig_create(&f, "c", MIB);
	open_all(&f, vol);
	c.f = &f;
	assert_int_equal(cpc_thread_start(&thread, "commit", run_failing_commits, &c), 0);
	flush_all(&f, vol, 500, value);
	atomic_store(&c.stop, true);
	pthread_join(thread, NULL);
	assert_true(c.failed > 0);
	compare_all(vol, value);
	finish_after_a_power_cut(&f, vol, value);
}

/* --- a full pool --- */

/* Takes all room that ordinary writes may have. */
static void fill_pool(struct cpc_volume *vol, bool synthetic)
{
	struct cpc_space *space = vol->engine->store->space;
	uint64_t block = 100;

	while (synthetic) {
		struct cpc_space_info info;
		uint64_t at;
		uint32_t got;

		cpc_space_info(space, &info);
		if (info.free < 32768 + 256 ||
		    cpc_space_alloc(space, CPC_SPACE_DATA, 256, 1, &at, &got))
			break;
	}
	while (!flush_rig_write_value(vol, block, 1, 0))
		block++;
	assert_int_equal(flush_rig_write_value(vol, block, 1, 0), -ENOSPC);
}

static void a_full_pool_takes_flushes_without_end(void **state)
{
	static const struct {
		uint64_t pool, log;
		bool synthetic;
	} cases[] = {{8 * MIB, 128 << 10, false}, {2048 * MIB, 256 * MIB, true}};

	for (unsigned c = 0; c < CPC_ARRAY_SIZE(cases); c++) {
		uint32_t value[50] = {0};
		struct cpc_volume *vol;
		struct flush_rig f;

		flush_rig_make(&f, cases[c].pool, cases[c].log, 8 * MIB);
		flush_rig_create(&f, "a", cases[c].pool);
		vol = flush_rig_open_volume(&f, "a");
		for (unsigned b = 0; b < 50; b++)
			assert_int_equal(flush_rig_write_value(vol, b, 1, 0), 0);
		fill_pool(vol, cases[c].synthetic);
		for (uint32_t i = 1; i <= 10000; i++) {
			uint64_t block = flush_rig_draw(&f, 50);

			value[block] = i;
			assert_int_equal(flush_rig_write_value(vol, block, i, 0), 0);
			assert_int_equal(cpc_volume_flush(vol), 0);
		}
		cpc_pool_close_volume(f.pool, vol);
		cpc_pool_close(f.pool);
		flush_rig_cut_power(&f, CPC_FATE_LOST);
		flush_rig_open(&f);
		vol = flush_rig_open_volume(&f, "a");
		for (unsigned b = 0; b < 50; b++)
			assert_int_equal(flush_rig_read_value(vol, b), value[b]);
		cpc_pool_close_volume(f.pool, vol);
		flush_rig_finish(&f);
	}
}

/* Cuts that nobody flushes drop blocks of flushed ones, in a pool that is short of blocks. */
static void what_a_merge_drops_is_kept_for_a_crash(void **state)
{
	struct cpc_volume *vol;
	struct flush_rig f;
	uint32_t value;

	flush_rig_make(&f, 8 * MIB, MIB, MIB);
	flush_rig_create(&f, "a", 8 * MIB);
	vol = flush_rig_open_volume(&f, "a");
	fill_pool(vol, false);
	for (unsigned b = 0; b < 4; b++)
		assert_int_equal(flush_rig_write_value(vol, 100 + b, 2, 0), 0);
	assert_int_equal(cpc_volume_flush(vol), 0);
	for (uint32_t i = 3; i < 400; i++) {
		for (unsigned b = 0; b < 4; b++)
			assert_int_equal(flush_rig_write_value(vol, 100 + b, i, 0), 0);
		assert_int_equal(cpc_cut(vol), 0);
	}
	cpc_pool_close_volume(f.pool, vol);
	cpc_pool_close(f.pool);
	flush_rig_cut_power(&f, CPC_FATE_LOST);
	flush_rig_open(&f);
	vol = flush_rig_open_volume(&f, "a");
	value = flush_rig_read_value(vol, 100);
	assert_in_range(value, 2, 399);
	for (unsigned b = 1; b < 4; b++)
		assert_int_equal(flush_rig_read_value(vol, 100 + b), value);
	cpc_pool_close_volume(f.pool, vol);
	flush_rig_finish(&f);
}

/* --- dump --- */

static void find_lines(void *ctx, const char *line)
{
	static const char *const parts[] = {"map volume 1 blocks 1+1 at", "create volume 1",
					    "replay: records 1 to 3"};
	unsigned *found = ctx;

	for (unsigned i = 0; i < CPC_ARRAY_SIZE(parts); i++)
		*found |= strstr(line, parts[i]) ? 1u << i : 0;
}

static void dump_prints_records_and_their_entries(void **state)
{
	struct cpc_backing *backing;
	unsigned found = 0;
	struct flush_rig f;
	uint64_t data;

	flush_rig_flush_and_cut(&f, false, &data);
	assert_int_equal(cpc_powercut_reopen(f.pc, &backing), 0);
	assert_int_equal(cpc_dump(backing, "log", NULL, find_lines, &found), 0);
	assert_int_equal(found, 7);
	cpc_backing_close(backing);
	flush_rig_destroy(&f);
}

/* --- a long log and little memory --- */

static uint64_t commits_of_open(struct flush_rig *f, bool durable)
{
	struct cpc_volume *vol;
	struct flush_rig small;
	uint64_t commits;

	flush_rig_make(f, 256 * MIB, 0, 64 * MIB);
	flush_rig_create(f, "a", 128 * MIB);
	vol = flush_rig_open_volume(f, "a");
	for (uint32_t i = 0; i < 12000; i++)
		assert_int_equal(flush_rig_write_value(vol, 2 * i, 1 + i, 0), 0);
	if (durable) {
		assert_int_equal(cpc_volume_flush(vol), 0);
		assert_int_equal(flush_rig_write_value(vol, 1, 1, CPC_FUA), 0);
	} else {
		assert_int_equal(cpc_cut(vol), 0);
	}
	cpc_pool_close_volume(f->pool, vol);
	cpc_pool_close(f->pool);
	flush_rig_cut_power(f, CPC_FATE_KEPT);
	f->opts.cache = 2 * MIB;
	flush_rig_open(f);
	vol = flush_rig_open_volume(f, "a");
	commits = atomic_load(&vol->engine->store->commits);
	for (uint32_t i = 0; i < 12000; i += 7)
		assert_int_equal(flush_rig_read_value(vol, 2 * i), 1 + i);
	cpc_pool_close_volume(f->pool, vol);
	small = *f;
	flush_rig_finish(&small);
	return commits;
}

static void a_long_log_is_committed_in_steps_up_to_its_mark_only(void **state)
{
	struct flush_rig f;

	assert_true(commits_of_open(&f, true) > 1);
	assert_int_equal(commits_of_open(&f, false), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(flushes_do_not_wait_for_a_commit),
	    cmocka_unit_test(commits_that_fail_beside_flushes_harm_none),
	    cmocka_unit_test(a_full_pool_takes_flushes_without_end),
	    cmocka_unit_test(what_a_merge_drops_is_kept_for_a_crash),
	    cmocka_unit_test(dump_prints_records_and_their_entries),
	    cmocka_unit_test(a_long_log_is_committed_in_steps_up_to_its_mark_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
