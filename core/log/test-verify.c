/* SPDX-License-Identifier: BSD-3-Clause */
/* Above the durable mark: which data is looked at, what becomes of what cannot be read, the cost.
 */
#include "log/test-log-rig.h"

#include "lib/hooks.h"

/* --- reads that fail --- */

static void fail_reads(struct log_rig *f, uint64_t bytenr, uint64_t nth, bool sticky)
{
	const struct cpc_powercut_fault fault = {.op = CPC_POWERCUT_READ,
						 .nth = nth,
						 .sticky = sticky,
						 .bytenr = bytenr,
						 .len = bytenr ? CPC_BLOCK_SIZE : 0,
						 .error = -EIO};

	cpc_powercut_add_fault(f->pc, &fault);
}

/* Each read of a scan fails, and when it is tried again, once more. */
static void reads_that_fail_twice_take_back_no_flush(void **state)
{
	uint64_t reads, at;
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(cpc_log_flush(f.log, log_rig_log_block(&f, i, &at)), 0);
	log_rig_crash(&f, CPC_FATE_LOST);
	reads = cpc_powercut_count(f.pc, CPC_POWERCUT_READ);
	log_rig_assert_replays_to(&f, 4);
	reads = cpc_powercut_count(f.pc, CPC_POWERCUT_READ) - reads;
	for (uint64_t n = 1; n <= reads; n++) {
		fail_reads(&f, 0, n, false);
		fail_reads(&f, 0, n + 1, false);
		log_rig_assert_replays_to(&f, 4);
		cpc_powercut_clear_faults(f.pc);
	}
	log_rig_destroy(&f);
}

/* A range that fails as often as it is tried: then block by block. */
static void a_range_that_fails_is_read_block_by_block(void **state)
{
	struct cpc_log_batch b;
	struct log_rig f;
	uint64_t at;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	at = f.next_data;
	for (unsigned i = 0; i < 4; i++)
		log_rig_write_block(&f, f.next_data++);
	cpc_log_batch_init(&b, f.log);
	log_rig_add_run(&b, 1, 10, 4, at);
	assert_int_equal(cpc_log_batch_end(&b), 0);
	assert_int_equal(cpc_log_add(f.log, &b), 0);
	cpc_log_batch_destroy(&b);
	log_rig_crash(&f, CPC_FATE_KEPT);
	for (unsigned n = 1; n <= 3; n++)
		fail_reads(&f, (at + 2) << CPC_BLOCK_SHIFT, n, false);
	log_rig_assert_replays_to(&f, 1);
	log_rig_destroy(&f);
}

static void data_that_cannot_be_read_refuses_until_it_can(void **state)
{
	struct cpc_log_replay r;
	struct log_rig f;
	uint64_t at[4];

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(cpc_log_flush(f.log, log_rig_log_block(&f, i, &at[i])), 0);
	log_rig_crash(&f, CPC_FATE_LOST);
	fail_reads(&f, at[3] << CPC_BLOCK_SHIFT, 1, true);
	assert_int_equal(log_rig_scan(&f, &r), -EIO);
	assert_int_equal(r.unreadable.bytenr, at[3] << CPC_BLOCK_SHIFT);
	assert_int_equal(r.unreadable.block, 3);
	assert_int_equal(r.unreadable.volume, 1);
	assert_int_equal(r.unreadable.seq, 4);
	assert_int_equal(r.unreadable.records, 1);
	cpc_powercut_clear_faults(f.pc);
	log_rig_assert_replays_to(&f, 4);
	/* below the mark it is an error of the block, when somebody reads it */
	fail_reads(&f, at[2] << CPC_BLOCK_SHIFT, 1, true);
	log_rig_assert_replays_to(&f, 4);
	log_rig_destroy(&f);
}

static void data_that_nobody_needs_may_be_unreadable(void **state)
{
	struct log_rig f;
	uint64_t at[5];

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 5; i++)
		log_rig_log_block(&f, i == 4 ? 1 : i, &at[i]); /* the last replaces the second */
	log_rig_crash(&f, CPC_FATE_KEPT);
	fail_reads(&f, at[1] << CPC_BLOCK_SHIFT, 1, true);
	log_rig_assert_replays_to(&f, 5);
	/* an older cut was never written: no flush was answered for what stands behind it */
	fail_reads(&f, at[3] << CPC_BLOCK_SHIFT, 1, true);
	cpc_powercut_flip(f.pc, at[2] << CPC_BLOCK_SHIFT, 0);
	cpc_powercut_flip(f.pc, at[0] << CPC_BLOCK_SHIFT, 0);
	log_rig_assert_replays_to(&f, 0);
	log_rig_destroy(&f);
}

static void write_blocks(struct log_rig *f, uint64_t nr, uint64_t *at)
{
	*at = f->next_data;
	for (uint64_t i = 0; i < nr; i++)
		log_rig_write_block(f, f->next_data++);
}

/* Blocks 4000 to 4002 stand at `at`, in the last record of a cut of several. */
static void log_long_cut(struct log_rig *f, uint64_t at, uint64_t *first, uint64_t *last)
{
	struct cpc_log_batch b;

	cpc_log_batch_init(&b, f->log);
	for (unsigned i = 0; i < 1100; i++)
		log_rig_add_run(&b, 1, 2 * i, 1, 0);
	log_rig_add_run(&b, 1, 4000, 3, at);
	assert_int_equal(cpc_log_batch_end(&b), 0);
	assert_int_equal(cpc_log_add(f->log, &b), 0);
	*first = b.first_seq;
	*last = b.last_seq;
	cpc_log_batch_destroy(&b);
}

static void what_cannot_be_read_is_named_to_the_block_with_its_whole_cut(void **state)
{
	uint64_t at[3], first, last;
	struct cpc_log_replay r;
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	log_rig_log_block(&f, 1, &at[0]);
	write_blocks(&f, 3, &at[1]);
	log_long_cut(&f, at[1], &first, &last);
	assert_true(first == 2 && last > 3);
	log_rig_log_block(&f, 2, &at[2]);
	log_rig_crash(&f, CPC_FATE_KEPT);
	fail_reads(&f, (at[1] + 1) << CPC_BLOCK_SHIFT, 1, true);
	assert_int_equal(log_rig_scan(&f, &r), -EIO);
	assert_int_equal(r.unreadable.bytenr, (at[1] + 1) << CPC_BLOCK_SHIFT);
	assert_int_equal(r.unreadable.block, 4001);
	assert_int_equal(r.unreadable.seq, first);
	assert_int_equal(r.unreadable.position, CPC_BLOCK_SIZE);
	assert_int_equal(r.unreadable.records, last - first + 2);
	/* of several such cuts the oldest one counts: nothing behind it can stay */
	fail_reads(&f, at[2] << CPC_BLOCK_SHIFT, 1, true);
	assert_int_equal(log_rig_scan(&f, &r), -EIO);
	assert_int_equal(r.unreadable.seq, first);
	fail_reads(&f, at[0] << CPC_BLOCK_SHIFT, 1, true);
	assert_int_equal(log_rig_scan(&f, &r), -EIO);
	assert_true(r.unreadable.seq == 1 && r.unreadable.records == last + 1);
	log_rig_destroy(&f);
}

static void only_what_nothing_newer_replaces_is_looked_at(void **state)
{
	struct cpc_log_batch b;
	struct log_rig f;
	uint64_t at[2];

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 2; i++) {
		/* blocks 10 to 14, then 11 and 12 of them */
		write_blocks(&f, 5 - 3 * i, &at[i]);
		cpc_log_batch_init(&b, f.log);
		log_rig_add_run(&b, 1, 10 + i, 5 - 3 * i, at[i]);
		assert_int_equal(cpc_log_batch_end(&b), 0);
		assert_int_equal(cpc_log_add(f.log, &b), 0);
		cpc_log_batch_destroy(&b);
	}
	log_rig_crash(&f, CPC_FATE_KEPT);
	cpc_powercut_flip(f.pc, (at[0] + 1) << CPC_BLOCK_SHIFT, 0);
	fail_reads(&f, (at[0] + 2) << CPC_BLOCK_SHIFT, 1, true);
	log_rig_assert_replays_to(&f, 2);
	/* what is left on either side counts */
	for (unsigned side = 0; side < 2; side++) {
		cpc_powercut_flip(f.pc, (at[0] + 3 * side) << CPC_BLOCK_SHIFT, 0);
		log_rig_assert_replays_to(&f, 0);
		cpc_powercut_flip(f.pc, (at[0] + 3 * side) << CPC_BLOCK_SHIFT, 0);
	}
	log_rig_destroy(&f);
}

/* Wherever reading ends, the log is whole or refused. */
static void a_device_that_reads_no_more_makes_no_older_log(void **state)
{
	uint64_t reads, at, refused = 0;
	struct log_replayed p;
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 3; i++)
		log_rig_log_block(&f, i, &at);
	log_rig_log_holes(&f, 200); /* longer than what is read to see that it is there */
	log_rig_crash(&f, CPC_FATE_KEPT);
	reads = cpc_powercut_count(f.pc, CPC_POWERCUT_READ);
	log_rig_assert_replays_to(&f, 4);
	reads = cpc_powercut_count(f.pc, CPC_POWERCUT_READ) - reads;
	for (uint64_t n = 1; n <= reads; n++) {
		int ret;

		fail_reads(&f, 0, n, true);
		ret = log_rig_replay(&f, &p);
		cpc_powercut_clear_faults(f.pc);
		refused += ret != 0;
		assert_true(ret == -EIO || (ret == 0 && p.last_seq == 4));
	}
	assert_true(refused >= 10);
	log_rig_destroy(&f);
}

/* Only somebody who wants to harm writes a mark that stands within its own cut. */
static void a_mark_within_a_cut_that_does_not_hold_refuses_the_pool(void **state)
{
	struct cpc_disk_log_record *record;
	uint64_t at, first, last;
	struct cpc_log_replay r;
	struct log_rig f;
	uint8_t *buf;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	write_blocks(&f, 3, &at);
	log_long_cut(&f, at, &first, &last);
	log_rig_crash(&f, CPC_FATE_KEPT);
	buf = log_rig_peek_record(&f, 0, 16384);
	record = (void *)buf;
	cpc_put_le64(&record->durable, first);
	log_rig_poke_record(&f, 3, 0, buf, 16384);
	log_rig_assert_replays_to(&f, last);
	cpc_powercut_flip(f.pc, (at + 2) << CPC_BLOCK_SHIFT, 0);
	assert_int_equal(log_rig_scan(&f, &r), -EUCLEAN);
	cpc_free(buf);
	log_rig_destroy(&f);
}

/* --- proportional to the log --- */

static uint64_t bytes_allocated;

static void *counting_alloc(size_t align, size_t size)
{
	bytes_allocated += size;
	return cpc_hooks_default.alloc(align, size);
}

/* What a scan of so many records above the mark, with one block each, allocates. */
static uint64_t cost_of(unsigned nr)
{
	struct cpc_log_replay r;
	struct log_rig f;
	uint64_t at;

	log_rig_make(&f, 16 * POOL_SIZE, 8 * MIB);
	for (unsigned i = 0; i < nr; i++)
		log_rig_log_block(&f, i * 7919 % nr, &at);
	log_rig_crash(&f, CPC_FATE_KEPT);
	bytes_allocated = 0;
	cpc_hooks.alloc = counting_alloc;
	assert_int_equal(log_rig_scan(&f, &r), 0);
	cpc_hooks.alloc = cpc_hooks_default.alloc;
	assert_int_equal(r.nr, nr);
	cpc_log_replay_destroy(&r);
	log_rig_destroy(&f);
	return bytes_allocated;
}

static void verifying_four_times_as_many_records_copies_six_times_as_much_at_most(void **state)
{
	assert_true(cost_of(1600) < 6 * cost_of(400));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(reads_that_fail_twice_take_back_no_flush),
	    cmocka_unit_test(a_range_that_fails_is_read_block_by_block),
	    cmocka_unit_test(data_that_cannot_be_read_refuses_until_it_can),
	    cmocka_unit_test(data_that_nobody_needs_may_be_unreadable),
	    cmocka_unit_test(what_cannot_be_read_is_named_to_the_block_with_its_whole_cut),
	    cmocka_unit_test(only_what_nothing_newer_replaces_is_looked_at),
	    cmocka_unit_test(a_device_that_reads_no_more_makes_no_older_log),
	    cmocka_unit_test(a_mark_within_a_cut_that_does_not_hold_refuses_the_pool),
	    cmocka_unit_test(verifying_four_times_as_many_records_copies_six_times_as_much_at_most),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
