/* SPDX-License-Identifier: BSD-3-Clause */
/* The oracle is silent while the rules are kept, and names each of them when it is broken. */
#include "check/test-pool.h"

#include <stdio.h>

#include "log/log.h"

static const struct test_geometry geometry = {8 * MIB, 4096, false};

static void make(struct test_pool *p)
{
	test_pool_create(p, &geometry);
	test_pool_add_volume(p, 0, "a", 64 * MIB);
	test_pool_add_volume(p, 1, "b", 64 * MIB);
	test_pool_fill(p, 60);
}

static void finish(struct test_pool *p)
{
	test_pool_destroy(p);
}

static void expect_violation(struct test_pool *p, const char *part)
{
	if (!p->violations)
		fail_msg("no violation where \"%s\" was expected", part);
	if (!strstr(p->violation, part))
		fail_msg("\"%s\" instead of \"%s\"", p->violation, part);
}

static void write_block(struct test_pool *p, uint64_t bytenr, int fill, enum cpc_cause cause)
{
	uint8_t *buf = cpc_alloc_aligned(4096, 4096);

	memset(buf, fill, 4096);
	cpc_backing_write(p->backing, bytenr, buf, 4096, cause);
	cpc_free(buf);
}

/* Encodes a superblock and writes it to one ring. */
static void write_super(struct test_pool *p, struct cpc_super *super, uint32_t slot)
{
	struct cpc_disk_super *disk = cpc_alloc_aligned(4096, sizeof(*disk));

	super->slot = slot;
	cpc_super_encode(disk, super);
	cpc_backing_write(p->backing, cpc_geometry_super(&p->store->geo, 0, slot), disk,
			  sizeof(*disk), CPC_CAUSE_SUPER);
	cpc_free(disk);
}

static void commits_crashes_and_failures_break_no_rule(void **state)
{
	struct cpc_oracle_stats stats;
	struct test_pool p;

	make(&p);
	for (unsigned i = 0; i < 300; i++) {
		if (i % 3 == 0)
			cpc_powercut_fail(p.pc, i % 2 ? CPC_POWERCUT_FLUSH : CPC_POWERCUT_WRITE,
					  1 + i % 7, false, -EIO);
		test_pool_map(&p, i % 2, i * 37 % 512 * 3, 1 + i % 3);
		cpc_powercut_clear_faults(p.pc);
		if (i % 20 == 19) {
			test_pool_close(&p);
			if (i % 40 == 19)
				cpc_powercut_kill(p.pc);
			else
				cpc_powercut_crash_random(p.pc, i);
			test_pool_open(&p);
		}
	}
	cpc_oracle_get_stats(p.oracle, &stats);
	if (p.violations)
		fail_msg("%s", p.violation);
	assert_true(stats.roots > 20 && stats.writes > 200);
	finish(&p);
}

static void overwriting_a_node_is_seen(void **state)
{
	struct test_pool p;

	make(&p);
	write_block(&p, p.store->super.root.bytenr[1], 1, CPC_CAUSE_METADATA);
	expect_violation(&p, "is overwritten");
	finish(&p);
}

static void overwriting_a_node_of_the_free_log_is_seen(void **state)
{
	struct test_pool p;

	make(&p);
	write_block(&p, p.store->super.free_log.bytenr[0], 1, CPC_CAUSE_METADATA);
	expect_violation(&p, "is overwritten");
	finish(&p);
}

static void writing_the_same_bytes_or_a_repair_is_allowed(void **state)
{
	uint8_t *buf = cpc_alloc_aligned(4096, 4096);
	struct test_pool p;

	make(&p);
	cpc_powercut_peek(p.pc, p.store->super.root.bytenr[0], buf, 4096);
	cpc_backing_write(p.backing, p.store->super.root.bytenr[0], buf, 4096, CPC_CAUSE_METADATA);
	write_block(&p, p.store->super.root.bytenr[0], 1, CPC_CAUSE_REPAIR);
	assert_int_equal(p.violations, 0);
	cpc_free(buf);
	finish(&p);
}

static uint64_t data_place;

static void note_data(void *ctx, const char *line)
{
	unsigned long long key, nr, at;

	if (sscanf(line, "  blocks %llu+%llu at %llu", &key, &nr, &at) == 3)
		data_place = at;
}

static void touching_data_is_seen(void **state)
{
	struct test_pool p;

	make(&p);
	assert_int_equal(cpc_dump(p.backing, "tree", "a", note_data, NULL), 0);
	write_block(&p, data_place, 1, CPC_CAUSE_DATA);
	expect_violation(&p, "is overwritten");
	p.violations = 0;
	cpc_backing_discard(p.backing, data_place, 4096);
	expect_violation(&p, "is discarded");
	finish(&p);
}

static void discarding_outside_the_data_area_is_seen(void **state)
{
	struct test_pool p;

	make(&p);
	cpc_backing_discard(p.backing, p.store->geo.log[0] << CPC_BLOCK_SHIFT, 4096);
	expect_violation(&p, "leaves the data area");
	finish(&p);
}

static void overwriting_the_current_home_is_seen_and_the_other_is_free(void **state)
{
	struct test_pool p;

	make(&p);
	/* At least one fold has happened: one of the homes is current, the other is not. */
	for (unsigned home = 0; home < 2; home++)
		write_block(&p, cpc_geometry_home(&p.store->geo, 1, 0, home), 1,
			    CPC_CAUSE_METADATA);
	assert_int_equal(p.violations, 1);
	expect_violation(&p, "is overwritten");
	finish(&p);
}

static void writing_the_slot_of_the_newest_stable_superblock_is_seen(void **state)
{
	struct cpc_super super;
	struct test_pool p;

	make(&p);
	super = p.store->super;
	super.transid++;
	write_super(&p, &super, super.slot);
	expect_violation(&p, "is that of the newest stable");
	finish(&p);
}

static void using_a_transid_twice_is_seen(void **state)
{
	struct cpc_super super;
	struct test_pool p;

	make(&p);
	super = p.store->super;
	super.nonce++;
	write_super(&p, &super, (super.slot + 1) % CPC_SUPER_SLOTS);
	expect_violation(&p, "has been used before");
	finish(&p);
}

static void a_superblock_before_its_flush_is_seen(void **state)
{
	struct test_pool p;

	make(&p);
	/* A flush that says good and does nothing would do; here the first of the two is gone. */
	cpc_powercut_add_fault(p.pc, &(struct cpc_powercut_fault){
					 .op = CPC_POWERCUT_WRITE,
					 .action = CPC_FAULT_LOSE,
					 .nth = 1,
					 .cause_mask = 1u << CPC_CAUSE_METADATA,
				     });
	test_pool_map(&p, 0, 5, 1);
	expect_violation(&p, "names what is not stable");
	finish(&p);
}

static void data_that_is_not_stable_is_seen(void **state)
{
	struct test_pool p;

	make(&p);
	cpc_powercut_add_fault(p.pc, &(struct cpc_powercut_fault){
					 .op = CPC_POWERCUT_WRITE,
					 .action = CPC_FAULT_LOSE,
					 .nth = 1,
					 .cause_mask = 1u << CPC_CAUSE_DATA,
				     });
	test_pool_map(&p, 0, 5, 1);
	expect_violation(&p, "names what is not stable");
	finish(&p);
}

/* The blocks of the state before last are free; those of a burned superblock are not. */
static void a_burned_superblock_stays_acceptable(void **state)
{
	struct cpc_node_ptr before, burned;
	struct test_pool p;
	struct cpc_super s;
	const char *why;

	make(&p);
	before = p.store->super.root;
	cpc_powercut_fail(p.pc, CPC_POWERCUT_FLUSH, 2, false, -EIO);
	assert_int_not_equal(test_pool_map(&p, 0, 5, 1), 0);
	assert_int_equal(cpc_super_find(p.backing, &s, &why), 0);
	burned = s.root;
	assert_int_not_equal(burned.bytenr[0], before.bytenr[0]);
	write_block(&p, before.bytenr[0], 1, CPC_CAUSE_METADATA);
	assert_int_equal(p.violations, 1);
	write_block(&p, burned.bytenr[0], 1, CPC_CAUSE_METADATA);
	assert_int_equal(p.violations, 2);
	finish(&p);
}

static void a_new_life_starts_from_what_is_there(void **state)
{
	struct test_pool p;

	make(&p);
	test_pool_close(&p);
	cpc_powercut_crash_random(p.pc, 7);
	test_pool_open(&p);
	write_block(&p, p.store->super.root.bytenr[0], 1, CPC_CAUSE_METADATA);
	expect_violation(&p, "is overwritten");
	finish(&p);
}

/* --- the log --- */

/* A life whose log has two flushed records of one block each, the second over the first. */
static struct cpc_log *make_log(struct test_pool *p, uint64_t data[2])
{
	struct cpc_commit_request req = {0};
	struct cpc_log *log;

	make(p);
	req.next_volume = p->next_volume;
	req.nonce = p->store->nonce;
	assert_int_equal(cpc_store_commit(p->store, &req), 0);
	cpc_pins_put(req.pins);
	assert_int_equal(cpc_log_create(p->store, &log), 0);
	for (unsigned i = 0; i < 2; i++) {
		uint8_t *buf = cpc_alloc_aligned(4096, 4096);
		struct cpc_run_builder builder;
		struct cpc_log_batch b;
		struct cpc_run *run;
		uint32_t csum, got;

		memset(buf, 0x10 + (int)i, 4096);
		csum = cpc_csum(buf, 4096);
		assert_int_equal(
		    cpc_space_alloc(p->store->space, CPC_SPACE_DATA, 1, 1, &data[i], &got), 0);
		data[i] <<= CPC_BLOCK_SHIFT;
		cpc_run_builder_init(&builder, 1, 1);
		cpc_run_builder_map(&builder, 9, 1, data[i], &csum);
		assert_int_equal(cpc_run_builder_finish(&builder, &run), 0);
		cpc_log_batch_init(&b, log);
		cpc_log_batch_run(&b, p->item[0].id, run);
		assert_int_equal(cpc_log_batch_end(&b), 0);
		/* the record may be there before its data */
		assert_int_equal(cpc_log_append(log, &b), 0);
		assert_int_equal(cpc_log_write(log, &b), 0);
		assert_int_equal(cpc_flush_epoch_flush(&p->store->fe, CPC_FLUSH_LOG), 0);
		assert_int_equal(
		    cpc_fe_write(&p->store->fe, data[i], buf, 4096, CPC_CAUSE_DATA, NULL), 0);
		cpc_log_complete(log, &b, 0);
		assert_int_equal(cpc_log_flush(log, b.last_seq), 0);
		cpc_log_batch_destroy(&b);
		cpc_run_put(run);
		cpc_free(buf);
	}
	if (p->violations)
		fail_msg("%s", p->violation);
	return log;
}

static void commit_log(struct test_pool *p, struct cpc_log *log)
{
	struct cpc_commit_request req = {.next_volume = p->next_volume, .nonce = p->store->nonce};

	cpc_log_freeze(log, &req.log_seq, &req.log_position);
	cpc_log_thaw(log);
	assert_int_equal(cpc_store_commit(p->store, &req), 0);
	cpc_pins_put(req.pins);
	cpc_log_committed(log, req.log_seq, req.log_position);
}

static void overwriting_what_the_log_names_is_seen_until_a_commit_contains_it(void **state)
{
	for (unsigned i = 0; i < 3; i++) {
		struct test_pool p;
		uint64_t data[2];
		struct cpc_log *log = make_log(&p, data);

		write_block(&p, data[i % 2], 0x10 + (int)i % 2,
			    CPC_CAUSE_DATA); /* the same bytes */
		if (i == 2)
			commit_log(&p, log);
		assert_int_equal(p.violations, 0);
		write_block(&p, data[i % 2], 1, CPC_CAUSE_DATA);
		if (i == 2)
			assert_int_equal(p.violations, 0);
		else
			expect_violation(&p, "is overwritten");
		cpc_log_destroy(log);
		finish(&p);
	}
}

static void a_new_life_knows_what_the_old_log_names(void **state)
{
	struct test_pool p;
	uint64_t data[2];

	cpc_log_destroy(make_log(&p, data));
	test_pool_close(&p);
	cpc_powercut_crash_random(p.pc, 7);
	test_pool_open(&p);
	assert_int_equal(p.violations, 0);
	assert_int_equal(cpc_backing_discard(p.backing, data[1], 4096), 0);
	expect_violation(&p, "is discarded");
	finish(&p);
}

static void overwriting_a_record_is_seen_until_a_commit_contains_it(void **state)
{
	for (unsigned i = 0; i < 2; i++) {
		struct test_pool p;
		uint64_t data[2];
		struct cpc_log *log = make_log(&p, data);
		struct cpc_log_batch b;

		if (i)
			commit_log(&p, log);
		log->head = log->size; /* once around, to the place of record 1 */
		atomic_store(&log->tail, log->head);
		cpc_log_batch_init(&b, log);
		assert_int_equal(cpc_log_batch_mark(&b), 0);
		assert_int_equal(cpc_log_add(log, &b), 0);
		cpc_log_batch_destroy(&b);
		if (i)
			assert_int_equal(p.violations, 0);
		else
			expect_violation(&p, "log record 1 is overwritten by 3");
		cpc_log_destroy(log);
		finish(&p);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(commits_crashes_and_failures_break_no_rule),
	    cmocka_unit_test(overwriting_a_node_is_seen),
	    cmocka_unit_test(overwriting_a_node_of_the_free_log_is_seen),
	    cmocka_unit_test(writing_the_same_bytes_or_a_repair_is_allowed),
	    cmocka_unit_test(touching_data_is_seen),
	    cmocka_unit_test(discarding_outside_the_data_area_is_seen),
	    cmocka_unit_test(overwriting_the_current_home_is_seen_and_the_other_is_free),
	    cmocka_unit_test(writing_the_slot_of_the_newest_stable_superblock_is_seen),
	    cmocka_unit_test(using_a_transid_twice_is_seen),
	    cmocka_unit_test(a_superblock_before_its_flush_is_seen),
	    cmocka_unit_test(data_that_is_not_stable_is_seen),
	    cmocka_unit_test(a_burned_superblock_stays_acceptable),
	    cmocka_unit_test(a_new_life_starts_from_what_is_there),
	    cmocka_unit_test(overwriting_what_the_log_names_is_seen_until_a_commit_contains_it),
	    cmocka_unit_test(a_new_life_knows_what_the_old_log_names),
	    cmocka_unit_test(overwriting_a_record_is_seen_until_a_commit_contains_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
