/* SPDX-License-Identifier: BSD-3-Clause */
/* What a scrub sees of the log: every record, both copies, and only sources that are good. */
#include "log/test-log-rig.h"

#include "lib/hooks.h"

struct told {
	unsigned nr;
	struct cpc_log_bad_copy bad[4];
};

static void note(void *ctx, const struct cpc_log_bad_copy *bad)
{
	struct told *told = ctx;

	assert_true(told->nr < CPC_ARRAY_SIZE(told->bad));
	told->bad[told->nr++] = *bad;
}

static void records_behind_the_end_of_the_ring_are_looked_at(void **state)
{
	struct told told = {.nr = 0};
	struct cpc_log_scrub at = {.damage = note, .ctx = &told};
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	log_rig_close_store(&f);
	log_rig_start(&f, SMALL_RING - 2 * CPC_BLOCK_SIZE);
	log_rig_log_holes(&f, 1);
	log_rig_log_holes(&f, 200); /* two blocks, of which one is left: it stands at the start */
	log_rig_log_holes(&f, 1);
	assert_int_equal(cpc_log_scrub(f.log, &at), 0);
	assert_true(at.records == 3 && told.nr == 0);
	log_rig_spoil(&f, 1, SMALL_RING + CPC_BLOCK_SIZE);
	log_rig_spoil(&f, 1, SMALL_RING);
	at.seq = 0;
	assert_int_equal(cpc_log_scrub(f.log, &at), 0);
	assert_int_equal(told.nr, 1);
	assert_true(told.bad[0].seq == 2 && told.bad[0].copy == 1 && told.bad[0].good);
	assert_int_equal(told.bad[0].len, 2 * CPC_BLOCK_SIZE);
	assert_int_equal(told.bad[0].bytenr, log_rig_device_of(&f, 1, SMALL_RING));
	log_rig_destroy(&f);
}

/* Record 2 of 4, with the first copy gone. */
static void expect_no_source(struct log_rig *f, struct cpc_log_scrub *at, const struct told *told)
{
	at->seq = 0;
	at->records = 0;
	assert_int_equal(cpc_log_scrub(f->log, at), 0);
	assert_int_equal(at->records, 2);
	assert_int_equal(told->nr, 2);
	for (unsigned copy = 0; copy < 2; copy++) {
		assert_true(told->bad[copy].seq == 2 && !told->bad[copy].good);
		assert_int_equal(told->bad[copy].bytenr,
				 log_rig_device_of(f, copy, CPC_BLOCK_SIZE));
	}
}

static void a_record_without_a_copy_that_stays_good_has_no_source(void **state)
{
	const uint32_t again = 2; /* both copies have been read; now the good one once more */
	struct told told = {.nr = 0};
	struct cpc_log_scrub at = {.damage = note, .ctx = &told};
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 4; i++)
		log_rig_log_holes(&f, 1);
	log_rig_spoil(&f, 0, CPC_BLOCK_SIZE);
	cpc_powercut_add_fault(f.pc, &(struct cpc_powercut_fault){
					 .op = CPC_POWERCUT_READ,
					 .nth = again,
					 .sticky = true,
					 .bytenr = log_rig_device_of(&f, 1, CPC_BLOCK_SIZE),
					 .len = CPC_BLOCK_SIZE,
					 .error = -EIO,
				     });
	expect_no_source(&f, &at, &told);
	cpc_powercut_clear_faults(f.pc);
	log_rig_spoil(&f, 1, CPC_BLOCK_SIZE);
	told.nr = 0;
	expect_no_source(&f, &at, &told);
	log_rig_destroy(&f);
}

/* A write that the device has lost leaves a record of another life, or nothing at the start. */
static void what_stood_there_before_is_a_bad_copy(void **state)
{
	struct told told = {.nr = 0};
	struct cpc_log_scrub at = {.damage = note, .ctx = &told};
	struct log_rig f;
	uint8_t *old;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	log_rig_log_holes(&f, 1);
	old = log_rig_peek_record(&f, 0, CPC_BLOCK_SIZE);
	log_rig_close_store(&f);
	log_rig_start(&f, 0);
	log_rig_log_holes(&f, 1);
	cpc_powercut_poke(f.pc, log_rig_device_of(&f, 0, 0), old, CPC_BLOCK_SIZE);
	assert_int_equal(cpc_log_scrub(f.log, &at), 0);
	assert_int_equal(told.nr, 1);
	assert_true(told.bad[0].seq == 1 && told.bad[0].copy == 0 && told.bad[0].good);
	cpc_powercut_poke(f.pc, log_rig_device_of(&f, 1, 0), old, CPC_BLOCK_SIZE);
	at.seq = 0;
	assert_int_equal(cpc_log_scrub(f.log, &at), 0);
	assert_int_equal(told.nr, 3);
	assert_true(!told.bad[1].good && !told.bad[2].good);
	cpc_free(old);
	log_rig_destroy(&f);
}

static void a_long_log_is_looked_at_in_batches_that_follow_the_commits(void **state)
{
	struct told told = {.nr = 0};
	struct cpc_log_scrub at = {.damage = note, .ctx = &told};
	uint64_t first, seq;
	struct log_rig f;

	log_rig_make(&f, 8 * POOL_SIZE, 8 * MIB);
	for (unsigned i = 0; i < 30; i++)
		log_rig_log_holes(&f, 5000);
	assert_int_equal(cpc_log_scrub(f.log, &at), 1);
	first = at.records;
	assert_true(first > 0 && first < 30);
	assert_int_equal(cpc_log_scrub(f.log, &at), 0);
	assert_int_equal(at.records, 30);
	/* what the trees contain meanwhile is not looked for any more: its place may be used again
	 */
	at = (struct cpc_log_scrub){.damage = note, .ctx = &told};
	assert_int_equal(cpc_log_scrub(f.log, &at), 1);
	log_rig_commit_all(&f, &seq);
	assert_int_equal(seq, 30);
	log_rig_spoil(&f, 0, at.position);
	log_rig_log_holes(&f, 1);
	assert_int_equal(cpc_log_scrub(f.log, &at), 0);
	assert_int_equal(at.records, first + 1);
	assert_int_equal(told.nr, 0);
	log_rig_destroy(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(records_behind_the_end_of_the_ring_are_looked_at),
	    cmocka_unit_test(a_record_without_a_copy_that_stays_good_has_no_source),
	    cmocka_unit_test(what_stood_there_before_is_a_bad_copy),
	    cmocka_unit_test(a_long_log_is_looked_at_in_batches_that_follow_the_commits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
