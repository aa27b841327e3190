/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Writing out, from the side of the engine: writers are slowed down before they stop, a flush finds
 * little to drain, what is being written does not change, and a commit whose nodes cannot be
 * written fails and harms nothing.
 */
#include "volume/test-rig.h"

#define US 1000u

/* --- pace --- */

static struct cpc_engine *paced_engine(struct rig *r)
{
	struct cpc_engine *e;

	rig_make(r);
	e = r->vol->engine;
	assert_true(e->dirty_start < e->pace_start && e->pace_start < e->dirty_limit);
	atomic_store(&e->block_ns, 10 * US);
	return e;
}

static void end_paced(struct rig *r)
{
	atomic_store(&r->vol->engine->dirty_blocks, 0);
	rig_finish(r);
}

/* What the turn of one block costs who comes next, at a level between no pace (0) and stop (16). */
static uint64_t turn_at(struct cpc_engine *e, unsigned sixteenths)
{
	uint64_t now = atomic_load(&e->pace_turn) + 1000 * US;

	atomic_store(&e->dirty_blocks,
		     e->pace_start + (e->dirty_limit - e->pace_start) * sixteenths / 16);
	assert_int_equal(cpc_pace(e, 1, now), 0); /* nobody is before it */
	return cpc_pace(e, 1, now);
}

static void writers_slow_down_smoothly_before_they_stop(void **state)
{
	struct rig r = {0};
	struct cpc_engine *e = paced_engine(&r);
	uint64_t last = turn_at(e, 0);

	assert_int_equal(last, 0);
	for (unsigned i = 1; i <= 16; i++) {
		uint64_t turn = turn_at(e, i);

		/* no step is larger than an eighth of what writing out a block takes, and a bit */
		assert_true(turn > last && turn - last <= 10 * US / 8 + US / 2);
		last = turn;
	}
	assert_int_equal(last, 2 * 10 * US); /* half as fast as blocks are written out */
	assert_in_range(turn_at(e, 8), 10 * US - US / 2, 10 * US);
	end_paced(&r);
}

static void writers_come_one_behind_the_other(void **state)
{
	struct rig r = {0};
	struct cpc_engine *e = paced_engine(&r);
	uint64_t now = 1000000 * US;

	atomic_store(&e->dirty_blocks, e->dirty_limit);
	for (unsigned i = 0; i < 64; i++)
		assert_int_equal(cpc_pace(e, 1, now), 20 * US * i);
	/* who asks for more pays more, and time that passes is forgiven, but not saved */
	assert_int_equal(cpc_pace(e, 5, now), 20 * US * 64);
	assert_int_equal(cpc_pace(e, 1, now), 20 * US * 69);
	now += 20 * US * 70;
	assert_int_equal(cpc_pace(e, 1, now), 0);
	now += 1000000 * US;
	assert_int_equal(cpc_pace(e, 1, now), 0);
	assert_int_equal(cpc_pace(e, 1, now), 20 * US);
	/* a wrong idea of the device's speed costs little */
	atomic_store(&e->block_ns, 1000000000);
	for (unsigned i = 0; i < 10; i++)
		assert_true(cpc_pace(e, 1, now) <= 20000 * US);
	end_paced(&r);
}

/* Each request's time is paid, but by one sleep for 64 blocks. */
static void a_thread_sleeps_once_for_a_row_of_its_turns(void **state)
{
	struct rig r = {0};
	struct cpc_engine *e = paced_engine(&r);
	uint64_t now = 1000000 * US, slept;

	atomic_store(&e->dirty_blocks, e->dirty_limit);
	e->pace_row = 64;
	assert_int_equal(cpc_pace(e, 100, now), 0);
	for (unsigned row = 1; row <= 3; row++) {
		for (unsigned i = 1; i < 64; i++)
			assert_int_equal(cpc_pace_sleep(e, 1, now), 0);
		slept = cpc_pace_sleep(e, 1, now);
		assert_int_equal(slept, 20 * US * (100 + 64 * row - 1));
	}
	assert_int_equal(cpc_pace_sleep(e, 63, now), 0);
	assert_int_not_equal(cpc_pace_sleep(e, 1, now), 0);
	assert_int_not_equal(cpc_pace_sleep(e, 64, now), 0);
	/* nobody sleeps, and no row begins, where nobody is to be waited for */
	now += 1000000 * US;
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(cpc_pace_sleep(e, 1, now), 0);
	/* a small cache has short rows */
	assert_int_equal(cpc_pace_row(16384), 64);
	assert_int_equal(cpc_pace_row(512), 32);
	assert_int_equal(cpc_pace_row(2), 1);
	end_paced(&r);
}

static void the_speed_is_learned_from_long_cuts(void **state)
{
	struct rig r = {0};
	struct cpc_engine *e = paced_engine(&r);

	atomic_store(&e->block_ns, 0);
	cpc_pace_learn(e, 10, 1000000000);
	assert_int_equal(atomic_load(&e->block_ns), 0);
	cpc_pace_learn(e, 1000, 1000 * 8 * US);
	assert_int_equal(atomic_load(&e->block_ns), 8 * US);
	for (unsigned i = 0; i < 50; i++)
		cpc_pace_learn(e, 1000, 1000 * 40 * US);
	assert_in_range(atomic_load(&e->block_ns), 39 * US, 40 * US);
	atomic_store(&e->block_ns, 0);
	for (uint64_t block = 0; block < 300; block++)
		rig_write(&r, block * CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);
	assert_int_equal(cpc_write_out(e), 0);
	assert_true(atomic_load(&e->block_ns) > 0);
	rig_finish(&r);
}

/* --- draining --- */

static uint64_t pressure_flushes(struct cpc_engine *e)
{
	struct cpc_flush_epoch_stats stats;

	cpc_flush_epoch_get_stats(&e->store->fe, &stats);
	return stats.flushes[CPC_FLUSH_PRESSURE];
}

static void the_background_flushes_before_much_has_to_be_drained(void **state)
{
	struct rig r = {0};
	struct cpc_flush_epoch *fe;
	struct cpc_engine *e;

	rig_make(&r);
	e = r.vol->engine;
	fe = &e->store->fe;
	rig_flush(&r);
	fe->pressure_bytes = 16 * MIB; /* so that 1 MiB is much */
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned part = 0; part < 4; part++) {
			rig_write(&r, part * 200000, 200000);
			assert_int_equal(pressure_flushes(e), round);
			assert_int_equal(cpc_writeback_turn(e), 0);
		}
		assert_int_equal(pressure_flushes(e), round);
		rig_write(&r, MIB, 250000);
		rig_write(&r, 2 * MIB, 250000);
		assert_int_equal(cpc_writeback_turn(e), 0);
		assert_int_equal(pressure_flushes(e), round + 1);
		assert_true(atomic_load(&fe->unflushed_bytes) < 100000);
	}
	rig_finish(&r);
}

/* --- what is in flight --- */

#define HOT_BLOCKS 16u

struct watcher {
	struct cpc_backing backing;
	struct cpc_backing *inner;
	struct rig *r;
	bool overwrite;
	uint64_t writes[CPC_NR_CAUSES], changed;
};

static struct watcher watcher;

static uint32_t csum_of(const struct iovec *iov, unsigned nr)
{
	uint32_t csum = 0;

	for (unsigned i = 0; i < nr; i++)
		csum = csum * 31 + cpc_csum(iov[i].iov_base, iov[i].iov_len);
	return csum;
}

/* Not with the rig's buffer: a request of the rig may be on its way. */
static void overwrite_hot_blocks(struct rig *r)
{
	static uint8_t stamp;
	uint8_t data[CPC_BLOCK_SIZE];

	for (uint64_t block = 0; block < HOT_BLOCKS; block++) {
		uint64_t offset = block * CPC_BLOCK_SIZE + block % 3,
			 len = sizeof(data) - block % 3;

		memset(data, ++stamp, sizeof(data));
		assert_int_equal(cpc_volume_write(r->vol, data, len, offset, 0), 0);
		memcpy(r->ref + offset, data, len);
	}
}

static int watched_writev(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov,
			  unsigned nr, enum cpc_cause cause)
{
	bool overwrite = watcher.overwrite && cause == CPC_CAUSE_DATA;
	uint32_t before = csum_of(iov, nr);
	int ret;

	if (overwrite)
		overwrite_hot_blocks(watcher.r);
	ret = cpc_backing_writev(watcher.inner, bytenr, iov, nr, cause);
	if (overwrite)
		overwrite_hot_blocks(watcher.r);
	watcher.writes[cause]++;
	watcher.changed += csum_of(iov, nr) != before;
	return ret;
}

static int watched_readv(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov,
			 unsigned nr)
{
	return cpc_backing_readv(watcher.inner, bytenr, iov, nr);
}

static int watched_flush(struct cpc_backing *b)
{
	return cpc_backing_flush(watcher.inner);
}

static int watched_discard(struct cpc_backing *b, uint64_t bytenr, uint64_t len)
{
	return cpc_backing_discard(watcher.inner, bytenr, len);
}

static int watched_size(struct cpc_backing *b, uint64_t *size)
{
	return cpc_backing_current_size(watcher.inner, size);
}

static void watched_close(struct cpc_backing *b)
{
	cpc_backing_close(watcher.inner);
}

static struct cpc_backing *watch(struct rig *r, struct cpc_backing *inner)
{
	static const struct cpc_backing_ops ops = {"watched",	  watched_readv,   watched_writev,
						   watched_flush, watched_discard, watched_size,
						   watched_close};

	memset(&watcher, 0, sizeof(watcher));
	watcher.inner = inner;
	watcher.r = r;
	cpc_backing_init(&watcher.backing, &ops, cpc_backing_size(inner), -1, false);
	return &watcher.backing;
}

/* Each data write has its blocks overwritten while it is on its way; nodes and records are looked
 * at as well. */
static void what_is_being_written_does_not_change(void **state)
{
	struct rig r = {.wrap = watch};

	rig_make(&r);
	watcher.overwrite = true;
	for (unsigned i = 0; i < 30; i++) {
		overwrite_hot_blocks(&r);
		if (i % 3 == 0)
			rig_write(&r, MIB, MIB / 2); /* large: around the cache */
		if (i % 3 == 1)
			rig_flush(&r);
		else
			assert_int_equal(cpc_pool_commit(r.pool), 0);
		assert_int_equal(watcher.changed, 0);
		rig_compare_all(&r);
	}
	watcher.overwrite = false;
	assert_true(watcher.writes[CPC_CAUSE_DATA] >= 30);
	assert_true(watcher.writes[CPC_CAUSE_METADATA] >= 20);
	assert_true(watcher.writes[CPC_CAUSE_LOG] >= 20);
	rig_reopen(&r);
	assert_int_equal(watcher.changed, 0);
	rig_finish(&r);
}

/* --- nodes that cannot be written --- */

/* More blocks than the caches hold, so that reads ask trees and nodes on the device. */
static void make_volume_of_many_nodes(struct rig *r)
{
	r->cache = MIB;
	r->pool_size = 64 * MIB;
	r->volume_size = 16 * MIB;
	rig_make(r);
	for (uint64_t block = 0; block + 1 < r->volume_size / CPC_BLOCK_SIZE; block += 2)
		rig_write(r, block * CPC_BLOCK_SIZE, 5000);
	assert_int_equal(cpc_pool_commit(r->pool), 0);
	for (uint64_t block = 0; block + 1 < r->volume_size / CPC_BLOCK_SIZE; block += 3)
		rig_write(r, block * CPC_BLOCK_SIZE + 7, 4000);
	rig_flush(r);
}

static void fail_node_write(struct rig *r, unsigned nth, bool for_ever)
{
	cpc_powercut_add_fault(r->pc, &(struct cpc_powercut_fault){
					  .op = CPC_POWERCUT_WRITE,
					  .nth = nth,
					  .sticky = for_ever,
					  .cause_mask = 1u << CPC_CAUSE_METADATA,
					  .error = -EIO,
				      });
}

static uint64_t device_errors(struct rig *r)
{
	struct cpc_backing_stats stats;

	cpc_backing_get_stats(r->vol->engine->store->backing, &stats);
	return stats.errors;
}

static void a_commit_fails_with_any_node_write_and_the_next_one_succeeds(void **state)
{
	int ret = -EIO;
	unsigned nth;

	for (nth = 1; ret; nth++) {
		struct rig r = {0};

		make_volume_of_many_nodes(&r);
		fail_node_write(&r, nth, false);
		ret = cpc_pool_commit(r.pool);
		cpc_powercut_clear_faults(r.pc);
		assert_int_equal(ret, device_errors(&r) ? -EIO : 0); /* no false success */
		assert_true(cpc_pool_healthy(r.pool, NULL, 0));
		rig_compare_all(&r);
		assert_int_equal(cpc_pool_commit(r.pool), 0);
		rig_compare_all(&r);
		rig_check_accounts(&r);
		rig_close(&r); /* nothing is left to be made good */
		rig_open(&r);
		rig_compare_all(&r);
		rig_finish(&r);
	}
	assert_true(nth > 8);
}

static void a_pool_whose_nodes_cannot_be_written_is_read_only_and_readable(void **state)
{
	int ret = -EIO;
	unsigned nth;

	for (nth = 1; ret; nth++) {
		struct rig r = {0};

		make_volume_of_many_nodes(&r);
		fail_node_write(&r, nth, true);
		ret = cpc_pool_commit(r.pool);
		assert_int_equal(ret, device_errors(&r) ? -EIO : 0); /* no false success */
		/* Later ones may need fewer nodes, but not none. */
		for (unsigned i = 0; ret && i < 2; i++)
			assert_int_equal(cpc_pool_commit(r.pool), -EIO);
		if (ret) {
			assert_false(cpc_pool_healthy(r.pool, NULL, 0));
			assert_int_equal(cpc_volume_write(r.vol, r.buf, 4096, 0, 0), -EIO);
			assert_int_equal(cpc_volume_flush(r.vol), -EIO);
			assert_int_equal(cpc_pool_commit(r.pool), -EIO);
		}
		rig_compare_all(&r);
		rig_close(&r);
		cpc_powercut_clear_faults(r.pc);
		rig_open(&r); /* the log has what was flushed */
		rig_compare_all(&r);
		rig_finish(&r);
	}
	assert_true(nth > 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(writers_slow_down_smoothly_before_they_stop),
	    cmocka_unit_test(writers_come_one_behind_the_other),
	    cmocka_unit_test(a_thread_sleeps_once_for_a_row_of_its_turns),
	    cmocka_unit_test(the_speed_is_learned_from_long_cuts),
	    cmocka_unit_test(the_background_flushes_before_much_has_to_be_drained),
	    cmocka_unit_test(what_is_being_written_does_not_change),
	    cmocka_unit_test(a_commit_fails_with_any_node_write_and_the_next_one_succeeds),
	    cmocka_unit_test(a_pool_whose_nodes_cannot_be_written_is_read_only_and_readable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
