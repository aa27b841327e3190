/* SPDX-License-Identifier: BSD-3-Clause */
/* What a flush costs the device, by its counters. */
#include "volume/test-rig.h"

#define LOG_SIZE (256 * MIB)

static struct cpc_backing_stats stats(struct rig *r)
{
	struct cpc_backing_stats s;

	cpc_backing_get_stats(r->vol->engine->store->backing, &s);
	return s;
}

/* Each write and flush adds at most one block of data and one record of a block, twice. */
static void write_and_flush(struct rig *r, unsigned times)
{
	for (unsigned i = 0; i < times; i++) {
		struct cpc_backing_stats before = stats(r), after;

		rig_write(r, rig_draw(r, r->volume_size / 4096) * 4096, 4096);
		rig_flush(r);
		after = stats(r);
		assert_int_equal(after.flushes - before.flushes, 1);
		assert_true(after.bytes_written - before.bytes_written <= 12288);
		assert_int_equal(after.bytes_written_by[CPC_CAUSE_LOG] -
				     before.bytes_written_by[CPC_CAUSE_LOG],
				 8192);
	}
}

static void a_write_and_its_flush_cost_one_block_one_record_and_one_device_flush(void **state)
{
	struct rig r = {0};

	rig_make(&r);
	write_and_flush(&r, 50);
	rig_reopen(&r);
	rig_finish(&r);
}

static void a_flush_costs_the_same_after_ten_thousand_without_a_commit(void **state)
{
	/* room for the old blocks, which stay until there is a commit */
	struct rig r = {.pool_size = 8 * LOG_SIZE, .cache = 64 * MIB, .log_size = LOG_SIZE};
	uint64_t commits;

	rig_make(&r);
	commits = atomic_load(&r.vol->engine->store->commits);
	write_and_flush(&r, 11000);
	assert_int_equal(atomic_load(&r.vol->engine->store->commits), commits);
	rig_compare_all(&r);
	/* and they are all there after a crash */
	cpc_powercut_crash_random(r.pc, 1);
	rig_close(&r);
	rig_open(&r);
	rig_compare_all(&r);
	rig_finish(&r);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_write_and_its_flush_cost_one_block_one_record_and_one_device_flush),
	    cmocka_unit_test(a_flush_costs_the_same_after_ten_thousand_without_a_commit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
