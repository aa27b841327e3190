/* SPDX-License-Identifier: BSD-3-Clause */
/* A pool whose own memory is found broken: it stops, and nobody waits for what will not come. */
#include "volume/test-rig.h"

#include <sched.h>

enum { BLOCK = 4096, AT = 8 * BLOCK };

static struct rig r;
static struct cpc_volume *other;

struct request {
	struct cpc_volume *vol;
	uint64_t offset, len;
	pthread_t thread;
	int result;
};

static void *write_request(void *arg)
{
	struct request *q = arg;
	void *data = calloc(1, q->len);

	assert_non_null(data);
	q->result = cpc_volume_write(q->vol, data, q->len, q->offset, 0);
	free(data);
	return NULL;
}

static void *flush_request(void *arg)
{
	struct request *q = arg;

	q->result = cpc_volume_flush(q->vol);
	return NULL;
}

static void start(struct request *q, void *(*fn)(void *arg))
{
	q->result = 1;
	assert_int_equal(pthread_create(&q->thread, NULL, fn, q), 0);
}

static int join(struct request *q)
{
	assert_int_equal(pthread_join(q->thread, NULL), 0);
	return q->result;
}

static void setup(void)
{
	struct cpc_error err;

	r = (struct rig){.threads = true};
	rig_make(&r);
	assert_int_equal(cpc_pool_create_volume(r.pool, "w", MIB, &err), 0);
	assert_int_equal(cpc_pool_open_volume(r.pool, "w", &other), 0);
	rig_write(&r, 0, 100000);
	rig_flush(&r);
}

/* What was flushed is there, and the pool is whole, when a new server opens it. */
static void finish(void)
{
	cpc_pool_close_volume(r.pool, other);
	rig_close(&r);
	rig_open(&r);
	rig_compare(&r, 0, 100000);
	rig_finish(&r);
}

/* Finds the tree broken, as an unlock of what nobody has locked. */
static void break_tree(struct cpc_volume *vol)
{
	cpc_io_tree_unlock(&vol->io_tree, AT, BLOCK, NULL);
}

static void wait_for_sleepers(struct cpc_volume *vol, uint64_t nr)
{
	struct cpc_io_tree_stats stats;

	do {
		sched_yield();
		cpc_io_tree_get_stats(&vol->io_tree, &stats);
	} while (stats.lock_waits < nr);
}

static int stop_emit(void *ctx, uint64_t offset, uint64_t len, bool hole)
{
	return 0;
}

static void assert_all_refused(struct cpc_volume *vol)
{
	uint8_t buf[BLOCK] = {0};

	assert_int_equal(cpc_volume_read(vol, buf, BLOCK, 0), -EIO);
	assert_int_equal(cpc_volume_write(vol, buf, BLOCK, 0, 0), -EIO);
	assert_int_equal(cpc_volume_write(vol, buf, 512, 100, CPC_FUA), -EIO);
	assert_int_equal(cpc_volume_trim(vol, BLOCK, 0, 0), -EIO);
	assert_int_equal(cpc_volume_zero(vol, BLOCK, 0, 0), -EIO);
	assert_int_equal(cpc_volume_cache(vol, BLOCK, 0), -EIO);
	assert_int_equal(cpc_volume_extents(vol, 0, BLOCK, stop_emit, NULL), -EIO);
	assert_int_equal(cpc_volume_flush(vol), -EIO);
}

static void a_broken_io_tree_stops_every_volume_and_says_where(void **state)
{
	struct cpc_pool_info info;
	struct cpc_error err;
	uint64_t writes;

	setup();
	writes = cpc_powercut_count(r.pc, CPC_POWERCUT_WRITE);
	break_tree(r.vol);
	assert_all_refused(r.vol);
	assert_all_refused(other);
	assert_int_not_equal(cpc_pool_create_volume(r.pool, "x", MIB, &err), 0);
	assert_int_not_equal(cpc_pool_commit(r.pool), 0);
	cpc_pool_info(r.pool, &info);
	assert_non_null(strstr(info.health, "not locked at io-tree.c:"));
	assert_non_null(strstr(info.health, "verify_locked(): unlock of [32768, 36864): "));
	assert_int_equal(cpc_powercut_count(r.pc, CPC_POWERCUT_WRITE), writes);
	finish();
}

/* In the volume whose tree is broken and in the other, buffered and direct. */
static void who_waits_for_a_range_gets_an_error_when_the_pool_stops(void **state)
{
	struct request waits[] = {
	    {.offset = 0, .len = BLOCK}, {.offset = 0, .len = MIB}, {.offset = 512, .len = 512}};
	unsigned nr = CPC_ARRAY_SIZE(waits);

	setup();
	for (unsigned v = 0; v < 2; v++) {
		struct cpc_volume *vol = v ? other : r.vol;

		assert_int_equal(cpc_io_tree_lock(&vol->io_tree, 0, BLOCK, NULL), 0);
	}
	for (unsigned i = 0; i < nr; i++) {
		waits[i].vol = i == nr - 1 ? r.vol : other;
		start(&waits[i], write_request);
	}
	wait_for_sleepers(other, nr - 1);
	wait_for_sleepers(r.vol, 1);
	break_tree(r.vol);
	for (unsigned i = 0; i < nr; i++)
		assert_int_equal(join(&waits[i]), -EIO);
	finish();
}

/* Its data is on its way: neither its record nor anything else follows. */
static void a_cut_that_runs_when_the_pool_stops_writes_nothing_more(void **state)
{
	struct request q;
	uint64_t writes;

	setup();
	rig_fill(&r, MIB);
	assert_int_equal(cpc_volume_write(r.vol, r.buf, 200000, MIB, 0), 0);
	cpc_powercut_hold(r.pc, CPC_HOLD_WRITE(CPC_CAUSE_DATA));
	q = (struct request){.vol = r.vol};
	start(&q, flush_request);
	cpc_powercut_wait_held(r.pc, 1);
	writes = cpc_powercut_count(r.pc, CPC_POWERCUT_WRITE);
	break_tree(other);
	cpc_powercut_release(r.pc);
	assert_int_equal(join(&q), -EIO);
	assert_int_equal(cpc_pool_shutdown(r.pool) == 0, false);
	assert_int_equal(cpc_powercut_count(r.pc, CPC_POWERCUT_WRITE), writes);
	finish();
}

/* The change is in memory when the tree stops: the request is an error all the same. */
static void a_write_that_cannot_be_charged_is_an_error(void **state)
{
	static const uint64_t lengths[] = {BLOCK, MIB};

	for (unsigned i = 0; i < CPC_ARRAY_SIZE(lengths); i++) {
		struct request q;

		setup();
		/* a freeze that waits keeps writers, who hold their range, from their ticket */
		atomic_fetch_or(&r.vol->tickets, 1ull << 63);
		q = (struct request){.vol = r.vol, .offset = 0, .len = lengths[i]};
		start(&q, write_request);
		for (bool locked = false; !locked; sched_yield())
			assert_int_equal(cpc_io_tree_test(&r.vol->io_tree, 0, BLOCK, CPC_IO_LOCKED,
							  CPC_IO_MATCH_ANY, &locked),
					 0);
		break_tree(r.vol);
		cpc_mutex_lock(&r.vol->ticket_lock);
		atomic_fetch_and(&r.vol->tickets, ~(1ull << 63));
		cpc_cond_broadcast(&r.vol->ticket_cond);
		cpc_mutex_unlock(&r.vol->ticket_lock);
		assert_int_equal(join(&q), -EIO);
		finish();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_broken_io_tree_stops_every_volume_and_says_where),
	    cmocka_unit_test(who_waits_for_a_range_gets_an_error_when_the_pool_stops),
	    cmocka_unit_test(a_cut_that_runs_when_the_pool_stops_writes_nothing_more),
	    cmocka_unit_test(a_write_that_cannot_be_charged_is_an_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
