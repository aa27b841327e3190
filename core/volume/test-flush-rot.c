/* SPDX-License-Identifier: BSD-3-Clause */
/* What was flushed rots, or stands in a cache only: an error or the truth, never an older disk. */
#include "volume/test-flush-rig.h"

#include <stdio.h>

#include "lib/hooks.h"

static uint64_t ring_place(struct flush_rig *f, unsigned copy, uint64_t position)
{
	struct cpc_geometry geo;

	assert_int_equal(cpc_geometry_init(&geo, 8 * MIB, 128 << 10, 4096, true), 0);
	return (geo.log[copy] << CPC_BLOCK_SHIFT) + position;
}

static void a_rotten_copy_of_a_flushed_record_is_made_good(void **state)
{
	for (unsigned copy = 0; copy < 2; copy++) {
		struct cpc_check_result result;
		struct cpc_log_found found;
		struct cpc_volume *vol;
		struct flush_rig f;
		uint64_t data;

		found = flush_rig_flush_and_cut(&f, true, &data);
		flush_rig_check(&f, false, &result);
		assert_true(result.errors == 0 && result.log_records == 4);
		cpc_powercut_flip(f.pc, ring_place(&f, copy, found.position) + 100, 1);
		flush_rig_check(&f, true, &result);
		assert_true(result.errors == 1 && result.log_bad == 1);
		flush_rig_open(&f);
		vol = flush_rig_open_volume(&f, "a");
		assert_int_equal(flush_rig_read_value(vol, 0), 7);
		assert_int_equal(flush_rig_read_value(vol, 1), 8);
		cpc_pool_close_volume(f.pool, vol);
		flush_rig_finish(&f);
	}
}

static void a_flushed_record_that_is_gone_refuses_the_pool(void **state)
{
	struct cpc_check_result result;
	struct cpc_log_found found;
	struct flush_rig f;
	uint64_t data;

	found = flush_rig_flush_and_cut(&f, true, &data);
	for (unsigned copy = 0; copy < 2; copy++)
		cpc_powercut_flip(f.pc, ring_place(&f, copy, found.position) + 100, 1);
	flush_rig_check(&f, true, &result);
	assert_true(result.log_bad == 1);
	for (unsigned read_only = 0; read_only < 2; read_only++) {
		f.opts.read_only = read_only;
		assert_int_equal(flush_rig_try_open(&f), -EUCLEAN);
		assert_non_null(strstr(f.err.text, "had been made durable"));
	}
	flush_rig_destroy(&f);
}

static void flushed_data_that_rots_is_an_error_of_that_block_only(void **state)
{
	struct cpc_check_result result;
	struct cpc_volume *vol;
	struct flush_rig f;
	uint64_t data;

	flush_rig_flush_and_cut(&f, true, &data);
	cpc_powercut_flip(f.pc, data + 1000, 1);
	f.unwatched = true;
	flush_rig_check(&f, true, &result);
	assert_true(result.errors == 1 && result.data_bad == 1);
	flush_rig_open(&f);
	vol = flush_rig_open_volume(&f, "a");
	assert_int_equal(flush_rig_read_value(vol, 0), 7);
	assert_int_equal(flush_rig_read_value(vol, 1), UINT32_MAX);
	assert_int_equal(flush_rig_write_value(vol, 1, 9, CPC_FUA), 0);
	assert_int_equal(flush_rig_read_value(vol, 1), 9);
	cpc_pool_close_volume(f.pool, vol);
	flush_rig_finish(&f);
}

/* Before its mark, a record and its data are as good as torn: the state before it. */
static void what_has_no_mark_yet_counts_as_torn(void **state)
{
	for (unsigned i = 0; i < 2; i++) {
		struct cpc_check_result result;
		struct cpc_log_found found;
		struct cpc_volume *vol;
		struct flush_rig f;
		uint64_t data;

		found = flush_rig_flush_and_cut(&f, false, &data);
		if (i)
			cpc_powercut_flip(f.pc, data + 1000, 1);
		for (unsigned copy = 0; !i && copy < 2; copy++)
			cpc_powercut_flip(f.pc, ring_place(&f, copy, found.position) + 100, 1);
		flush_rig_check(&f, false, &result);
		assert_int_equal(result.errors, 0);
		flush_rig_open(&f);
		vol = flush_rig_open_volume(&f, "a");
		assert_int_equal(flush_rig_read_value(vol, 0), 7);
		assert_int_equal(flush_rig_read_value(vol, 1), 0);
		cpc_pool_close_volume(f.pool, vol);
		flush_rig_finish(&f);
	}
}

/* Whatever the pool shows, it is not the disk from before the last answered flush. */
static void judge_rot(struct flush_rig *f, bool refused, bool data_gone)
{
	struct cpc_volume *vol;
	int ret = flush_rig_try_open(f);

	if (refused) {
		assert_int_equal(ret, -EUCLEAN);
		return;
	}
	assert_int_equal(ret, 0);
	vol = flush_rig_open_volume(f, "a");
	assert_int_equal(flush_rig_read_value(vol, 0), 7);
	assert_int_equal(flush_rig_read_value(vol, 1), data_gone ? UINT32_MAX : 8);
	cpc_pool_close_volume(f->pool, vol);
	cpc_pool_close(f->pool);
}

/* Bits of the newest record, in either copy and in both, and of its data. CPC_TEST_OPS=100000:
 * every bit. */
static void no_bit_that_rots_brings_back_an_older_disk(void **state)
{
	struct cpc_powercut_saved *saved;
	struct cpc_log_found found;
	struct flush_rig f;
	unsigned step = flush_rig_env("CPC_TEST_OPS", 0) < 100000 ? 21 : 1;
	uint64_t data;

	found = flush_rig_flush_and_cut(&f, true, &data);
	assert_int_equal(found.length, 4096);
	saved = cpc_powercut_save(f.pc);
	f.unwatched = true;
	for (unsigned bit = 0; bit < 8 * 4096; bit += step) {
		uint64_t place[2] = {ring_place(&f, 0, found.position) + bit / 8,
				     ring_place(&f, 1, found.position) + bit / 8};

		/* an opening that writes takes longer: now and then */
		f.opts.read_only = bit % 105 != 0;
		for (unsigned copies = 1; copies < 4; copies++) {
			cpc_powercut_restore(f.pc, saved);
			for (unsigned copy = 0; copy < 2; copy++) {
				if (copies & 1u << copy)
					cpc_powercut_flip(f.pc, place[copy], bit % 8);
			}
			judge_rot(&f, copies == 3, false);
		}
		cpc_powercut_restore(f.pc, saved);
		cpc_powercut_flip(f.pc, data + bit / 8, bit % 8);
		judge_rot(&f, false, true);
	}
	cpc_powercut_restore(f.pc, saved);
	cpc_powercut_saved_free(saved);
	flush_rig_destroy(&f);
}

/* The device has dropped what it shows, and says that all is well from the next life on. */
static void what_a_cache_only_holds_is_copied_before_it_is_served(void **state)
{
	struct cpc_powercut_fault fault = {
	    .op = CPC_POWERCUT_FLUSH, .action = CPC_FAULT_DROP_CACHED, .nth = 1, .error = -EIO};
	struct cpc_volume *vol;
	struct flush_rig f;

	flush_rig_make(&f, 8 * MIB, 128 << 10, MIB);
	flush_rig_create(&f, "a", MIB);
	vol = flush_rig_open_volume(&f, "a");
	assert_int_equal(flush_rig_write_value(vol, 0, 7, CPC_FUA), 0);
	cpc_powercut_add_fault(f.pc, &fault);
	assert_int_equal(flush_rig_write_value(vol, 1, 8, CPC_FUA), -EIO);
	cpc_pool_close_volume(f.pool, vol);
	cpc_pool_close(f.pool);
	cpc_powercut_kill(f.pc);
	for (unsigned life = 0; life < 3; life++) {
		flush_rig_open(&f);
		vol = flush_rig_open_volume(&f, "a");
		assert_int_equal(flush_rig_read_value(vol, 0), 7);
		assert_int_equal(flush_rig_read_value(vol, 1), 8);
		assert_int_equal(cpc_volume_flush(vol), 0);
		cpc_pool_close_volume(f.pool, vol);
		if (life == 2)
			break;
		cpc_pool_close(f.pool);
		flush_rig_cut_power(&f, CPC_FATE_LOST);
	}
	flush_rig_finish(&f);
}

/* --- data that the device does not give out --- */

static int repair(struct flush_rig *f, bool roll_back, uint64_t *left)
{
	const struct cpc_repair_options opts = {.roll_back = roll_back};
	struct cpc_repair_result result;
	struct cpc_backing *backing;
	int ret;

	assert_int_equal(cpc_powercut_reopen(f->pc, &backing), 0);
	ret = cpc_repair(backing, &opts, &result);
	cpc_backing_close(backing);
	*left = result.after.errors;
	return ret;
}

/* As often as an opening tries to read a block. */
#define TRIES 6u

static void fail_reads(struct flush_rig *f, uint64_t bytenr, unsigned times)
{
	struct cpc_powercut_fault fault = {
	    .op = CPC_POWERCUT_READ, .bytenr = bytenr, .len = CPC_BLOCK_SIZE, .error = -EIO};

	cpc_powercut_clear_faults(f->pc);
	for (fault.nth = 1; fault.nth <= times; fault.nth++)
		cpc_powercut_add_fault(f->pc, &fault);
}

/* Block 1 was flushed, its mark is not written, and its data cannot be read for one opening. */
static uint64_t make_unreadable(struct flush_rig *f)
{
	uint64_t data;

	flush_rig_flush_and_cut(f, false, &data);
	f->unwatched = true;
	fail_reads(f, data, TRIES);
	assert_int_equal(flush_rig_try_open(f), -EIO);
	assert_non_null(strstr(f->err.text, "a new volume, offset 4096"));
	return data;
}

static void expect_values(struct flush_rig *f, uint32_t first, uint32_t second)
{
	struct cpc_volume *vol;

	flush_rig_open(f);
	vol = flush_rig_open_volume(f, "a");
	assert_int_equal(flush_rig_read_value(vol, 0), first);
	assert_int_equal(flush_rig_read_value(vol, 1), second);
	cpc_pool_close_volume(f->pool, vol);
	flush_rig_finish(f);
}

static void data_that_cannot_be_read_is_never_given_up_unasked(void **state)
{
	struct flush_rig f;
	uint64_t left, data = make_unreadable(&f);

	fail_reads(&f, data, 2 * TRIES);
	assert_int_equal(repair(&f, false, &left), 0);
	assert_int_equal(left, 1);
	expect_values(&f, 7, 8);
}

/* The device reads the block again when it has been written. */
static void a_repair_that_may_roll_back_opens_the_pool_again(void **state)
{
	struct flush_rig f;
	uint64_t left, data = make_unreadable(&f);

	fail_reads(&f, data, TRIES);
	assert_int_equal(repair(&f, true, &left), 0);
	assert_int_equal(left, 0);
	expect_values(&f, 7, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_rotten_copy_of_a_flushed_record_is_made_good),
	    cmocka_unit_test(a_flushed_record_that_is_gone_refuses_the_pool),
	    cmocka_unit_test(flushed_data_that_rots_is_an_error_of_that_block_only),
	    cmocka_unit_test(no_bit_that_rots_brings_back_an_older_disk),
	    cmocka_unit_test(what_has_no_mark_yet_counts_as_torn),
	    cmocka_unit_test(what_a_cache_only_holds_is_copied_before_it_is_served),
	    cmocka_unit_test(data_that_cannot_be_read_is_never_given_up_unasked),
	    cmocka_unit_test(a_repair_that_may_roll_back_opens_the_pool_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
