/* SPDX-License-Identifier: BSD-3-Clause */
/* The power-cut device keeps its own promises: without that no crash test means anything. */
#include "backing/test-util.h"

struct fixture {
	struct cpc_powercut *pc;
	struct cpc_backing *b;
};

static int setup(void **state)
{
	static struct fixture f;

	assert_int_equal(cpc_powercut_create(64 * MIB, &f.pc), 0);
	assert_int_equal(cpc_powercut_reopen(f.pc, &f.b), 0);
	*state = &f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	cpc_backing_close(f->b);
	cpc_powercut_destroy(f->pc);
	return 0;
}

static void reopen(struct fixture *f)
{
	cpc_backing_close(f->b);
	assert_int_equal(cpc_powercut_reopen(f->pc, &f->b), 0);
}

static void crash_all(struct fixture *f, enum cpc_crash_fate fate)
{
	struct cpc_crash_choice c;

	cpc_crash_choice_all(f->pc, fate, &c);
	cpc_powercut_crash(f->pc, &c);
	cpc_crash_choice_free(&c);
	reopen(f);
}

static void flushed_writes_survive_and_others_may_not(void **state)
{
	struct fixture *f = *state;

	test_put(f->b, 1, 'a');
	test_put(f->b, 2, 'a');
	assert_int_equal(cpc_backing_flush(f->b), 0);
	test_put(f->b, 2, 'b');
	test_put(f->b, 3, 'b');
	assert_int_equal(test_get(f->b, 2), 'b');
	assert_int_equal(cpc_powercut_nr_pending(f->pc), 2);
	crash_all(f, CPC_FATE_LOST);
	assert_int_equal(test_get(f->b, 1), 'a');
	assert_int_equal(test_get(f->b, 2), 'a');
	assert_int_equal(test_get(f->b, 3), 0);
}

static void kept_writes_land_in_order(void **state)
{
	struct fixture *f = *state;

	test_put(f->b, 1, 'a');
	test_put(f->b, 1, 'b');
	crash_all(f, CPC_FATE_KEPT);
	assert_int_equal(test_get(f->b, 1), 'b');
}

static void a_dead_handle_answers_eio(void **state)
{
	struct fixture *f = *state;

	test_put(f->b, 1, 'a');
	cpc_powercut_kill(f->pc);
	assert_int_equal(test_get(f->b, 1), -EIO);
	assert_int_equal(test_put(f->b, 1, 'b'), -EIO);
	assert_int_equal(cpc_backing_flush(f->b), -EIO);
	reopen(f);
	assert_int_equal(test_get(f->b, 1), 'a');
	assert_int_equal(cpc_powercut_nr_pending(f->pc), 1);
}

static void tears_keep_the_chosen_sectors(void **state)
{
	static const enum cpc_crash_fate fates[] = {CPC_FATE_PREFIX, CPC_FATE_SUFFIX,
						    CPC_FATE_GARBAGE};
	struct fixture *f = *state;
	char *buf = test_buf(CPC_BLOCK_SIZE);

	for (size_t i = 0; i < CPC_ARRAY_SIZE(fates); i++) {
		struct cpc_crash_choice c;

		test_put(f->b, 1, 'a');
		cpc_backing_flush(f->b);
		test_put(f->b, 1, 'b');
		cpc_crash_choice_all(f->pc, fates[i], &c);
		c.writes[0].sectors = 3;
		cpc_powercut_crash(f->pc, &c);
		cpc_crash_choice_free(&c);
		cpc_powercut_peek(f->pc, BLOCK(1), buf, CPC_BLOCK_SIZE);
		assert_int_equal(buf[0], fates[i] == CPC_FATE_SUFFIX ? 'a' : 'b');
		assert_int_equal(buf[3 * 512 - 1], fates[i] == CPC_FATE_SUFFIX ? 'a' : 'b');
		if (fates[i] == CPC_FATE_GARBAGE)
			assert_int_not_equal(memcmp(buf + 3 * 512, buf, 512), 0);
		else
			assert_int_equal(buf[3 * 512], 'a');
		assert_int_equal(buf[5 * 512], fates[i] == CPC_FATE_SUFFIX ? 'b' : 'a');
		reopen(f);
	}
	cpc_free(buf);
}

static void all_subsets_of_few_writes_are_tried(void **state)
{
	struct fixture *f = *state;
	struct cpc_powercut_saved *saved;
	bool seen[8] = {false};
	uint64_t nr;

	for (int i = 0; i < 3; i++)
		test_put(f->b, (uint64_t)i, 'x');
	saved = cpc_powercut_save(f->pc);
	nr = cpc_crash_nr_states(f->pc);
	assert_true(nr > 8);
	for (uint64_t i = 0; i < nr; i++) {
		struct cpc_crash_choice c;
		int set = 0;

		cpc_powercut_restore(f->pc, saved);
		cpc_crash_state(f->pc, i, &c);
		cpc_powercut_crash(f->pc, &c);
		cpc_crash_choice_free(&c);
		reopen(f);
		for (int w = 0; w < 3; w++)
			set |= test_get(f->b, (uint64_t)w) == 'x' ? 1 << w : 0;
		seen[set] = true;
	}
	for (int i = 0; i < 8; i++)
		assert_true(seen[i]);
	cpc_powercut_saved_free(saved);
}

/* Notes at which boundaries write `which` is torn, and that no other one is. */
static void note_tear(const struct cpc_crash_choice *c, size_t which, bool prefix[], bool suffix[])
{
	for (size_t w = 0; w < c->nr; w++) {
		const struct cpc_crash_write *write = &c->writes[w];

		if (write->fate == CPC_FATE_PREFIX && w == which)
			prefix[write->sectors] = true;
		if (write->fate == CPC_FATE_SUFFIX && w == which)
			suffix[write->sectors] = true;
		assert_true(write->fate <= CPC_FATE_KEPT || c->writes[!w].fate <= CPC_FATE_KEPT);
	}
}

static void each_write_is_torn_at_each_sector_from_either_side(void **state)
{
	char *two_blocks = test_buf(8192);
	struct fixture *f = *state;

	test_put(f->b, 5, 'x');
	memset(two_blocks, 'y', 8192);
	assert_int_equal(cpc_backing_write(f->b, 0, two_blocks, 8192, CPC_CAUSE_DATA), 0);
	cpc_free(two_blocks);
	for (size_t which = 0; which < 2; which++) {
		size_t sectors = which ? 16 : 8;
		bool prefix[16] = {false}, suffix[16] = {false};

		for (uint64_t i = cpc_crash_nr_whole(f->pc); i < cpc_crash_nr_states(f->pc); i++) {
			struct cpc_crash_choice c;

			cpc_crash_state(f->pc, i, &c);
			note_tear(&c, which, prefix, suffix);
			cpc_crash_choice_free(&c);
		}
		for (size_t s = 1; s < sectors; s++)
			assert_true(prefix[s] && suffix[s]);
	}
}

/* Counts the states in which exactly `nr_lost` writes are lost and none is torn. */
static unsigned count_states(struct fixture *f, size_t nr_lost)
{
	unsigned found = 0;

	for (uint64_t i = 0; i < cpc_crash_nr_states(f->pc); i++) {
		struct cpc_crash_choice c;
		size_t lost = 0, torn = 0;

		cpc_crash_state(f->pc, i, &c);
		for (size_t w = 0; w < c.nr; w++) {
			lost += c.writes[w].fate == CPC_FATE_LOST;
			torn += c.writes[w].fate > CPC_FATE_KEPT;
		}
		found += !torn && lost == nr_lost;
		cpc_crash_choice_free(&c);
	}
	return found;
}

static void single_losses_and_pairs_of_many_writes_are_tried(void **state)
{
	struct fixture *f = *state;

	for (uint64_t i = 0; i < 20; i++)
		test_put(f->b, i, 'x');
	assert_true(count_states(f, 0) >= 1);
	assert_true(count_states(f, 1) >= 20);
	assert_true(count_states(f, 2) >= 190);
	assert_true(count_states(f, 18) >= 190);
	assert_true(count_states(f, 19) >= 20);
}

static void the_same_seed_gives_the_same_crash(void **state)
{
	struct fixture *f = *state;
	struct cpc_crash_choice a, b;
	char text_a[256], text_b[256];

	for (uint64_t i = 0; i < 30; i++)
		test_put(f->b, i, 'x');
	cpc_crash_choice_random(f->pc, 7, &a);
	cpc_crash_choice_random(f->pc, 7, &b);
	cpc_crash_choice_print(&a, text_a, sizeof(text_a));
	cpc_crash_choice_print(&b, text_b, sizeof(text_b));
	assert_string_equal(text_a, text_b);
	cpc_crash_choice_free(&b);
	cpc_crash_choice_random(f->pc, 8, &b);
	cpc_crash_choice_print(&b, text_b, sizeof(text_b));
	assert_string_not_equal(text_a, text_b);
	cpc_crash_choice_free(&a);
	cpc_crash_choice_free(&b);
}

static void save_and_restore_bring_back_image_and_pending(void **state)
{
	struct fixture *f = *state;
	struct cpc_powercut_saved *saved;

	test_put(f->b, 1, 'a');
	cpc_backing_flush(f->b);
	test_put(f->b, 1, 'b');
	saved = cpc_powercut_save(f->pc);
	test_put(f->b, 1, 'c');
	cpc_backing_flush(f->b);
	cpc_powercut_restore(f->pc, saved);
	reopen(f);
	assert_int_equal(test_get(f->b, 1), 'b');
	crash_all(f, CPC_FATE_LOST);
	assert_int_equal(test_get(f->b, 1), 'a');
	cpc_powercut_saved_free(saved);
}

static void a_discard_hides_at_once_and_lands_with_a_flush(void **state)
{
	struct fixture *f = *state;

	cpc_powercut_set_fill(f->pc, 0xee);
	test_put(f->b, 1, 'a');
	cpc_backing_flush(f->b);
	test_put(f->b, 2, 'a');
	assert_int_equal(cpc_backing_discard(f->b, 0, 64 * MIB), 0);
	assert_int_equal(test_get(f->b, 1), 0xee);
	assert_int_equal(test_get(f->b, 2), 0xee);
	test_put(f->b, 2, 'b');
	crash_all(f, CPC_FATE_LOST);
	assert_int_equal(test_get(f->b, 1), 'a');
	assert_int_equal(cpc_backing_discard(f->b, BLOCK(1), BLOCK(1)), 0);
	cpc_backing_flush(f->b);
	crash_all(f, CPC_FATE_LOST);
	assert_int_equal(test_get(f->b, 1), 0xee);
}

static void faults_fire_at_the_nth_matching_call(void **state)
{
	struct fixture *f = *state;
	struct cpc_powercut_fault fault = {.op = CPC_POWERCUT_WRITE,
					   .action = CPC_FAULT_FAIL,
					   .nth = 2,
					   .bytenr = BLOCK(5),
					   .len = BLOCK(1),
					   .error = -ENOSPC};

	cpc_powercut_add_fault(f->pc, &fault);
	assert_int_equal(test_put(f->b, 4, 'a'), 0);
	assert_int_equal(test_put(f->b, 5, 'a'), 0);
	assert_int_equal(test_put(f->b, 5, 'b'), -ENOSPC);
	assert_int_equal(test_get(f->b, 5), 'a');
	assert_int_equal(test_put(f->b, 5, 'c'), 0);
	cpc_powercut_fail(f->pc, CPC_POWERCUT_READ, 1, true, -EIO);
	assert_int_equal(test_get(f->b, 5), -EIO);
	assert_int_equal(test_get(f->b, 5), -EIO);
	cpc_powercut_clear_faults(f->pc);
	assert_int_equal(test_get(f->b, 5), 'c');
	assert_int_equal(cpc_powercut_count(f->pc, CPC_POWERCUT_WRITE), 4);
}

static void lost_and_misdirected_writes_are_acked(void **state)
{
	struct fixture *f = *state;
	struct cpc_powercut_fault fault = {
	    .op = CPC_POWERCUT_WRITE, .action = CPC_FAULT_LOSE, .nth = 1};

	cpc_powercut_add_fault(f->pc, &fault);
	assert_int_equal(test_put(f->b, 1, 'a'), 0);
	assert_int_equal(test_get(f->b, 1), 0);
	fault.action = CPC_FAULT_MISDIRECT;
	fault.target = BLOCK(9);
	cpc_powercut_add_fault(f->pc, &fault);
	assert_int_equal(test_put(f->b, 1, 'a'), 0);
	assert_int_equal(test_get(f->b, 1), 0);
	assert_int_equal(test_get(f->b, 9), 'a');
}

static void a_failed_flush_can_drop_what_was_pending(void **state)
{
	struct fixture *f = *state;
	struct cpc_powercut_fault fault = {
	    .op = CPC_POWERCUT_FLUSH, .action = CPC_FAULT_DROP, .nth = 1, .error = -EIO};

	test_put(f->b, 1, 'a');
	cpc_powercut_add_fault(f->pc, &fault);
	assert_int_equal(cpc_backing_flush(f->b), -EIO);
	assert_int_equal(test_get(f->b, 1), 0);
	test_put(f->b, 1, 'b');
	fault.action = CPC_FAULT_DROP_CACHED;
	cpc_powercut_add_fault(f->pc, &fault);
	assert_int_equal(cpc_backing_flush(f->b), -EIO);
	assert_int_equal(test_get(f->b, 1), 'b');
	assert_int_equal(cpc_backing_flush(f->b), 0);
	assert_int_equal(test_get(f->b, 1), 'b');
	crash_all(f, CPC_FATE_KEPT);
	assert_int_equal(test_get(f->b, 1), 0);
}

static void rot_and_stale_blocks_reach_reader_and_medium(void **state)
{
	struct fixture *f = *state;
	char *old = test_buf(CPC_BLOCK_SIZE), *buf = test_buf(CPC_BLOCK_SIZE);

	test_put(f->b, 1, 'a');
	cpc_backing_flush(f->b);
	cpc_powercut_peek(f->pc, BLOCK(1), old, CPC_BLOCK_SIZE);
	test_put(f->b, 1, 'c');
	cpc_powercut_flip(f->pc, BLOCK(1) + 7, 1);
	cpc_powercut_peek(f->pc, BLOCK(1), buf, CPC_BLOCK_SIZE);
	assert_int_equal(buf[7], 'a');
	assert_int_equal(buf[8], 'c');
	cpc_backing_flush(f->b);
	cpc_powercut_peek_stable(f->pc, BLOCK(1), buf, CPC_BLOCK_SIZE);
	assert_int_equal(buf[7], 'a');
	cpc_powercut_poke(f->pc, BLOCK(1), old, CPC_BLOCK_SIZE);
	assert_int_equal(test_get(f->b, 1), 'a');
	cpc_free(old);
	cpc_free(buf);
}

static void *put_in_thread(void *arg)
{
	struct fixture *f = arg;

	return (void *)(intptr_t)test_put(f->b, 1, 'h');
}

static void a_flush_does_not_cover_a_held_write(void **state)
{
	struct fixture *f = *state;
	pthread_t thread;
	void *ret;

	cpc_powercut_hold(f->pc, CPC_HOLD_WRITES);
	assert_int_equal(cpc_thread_start(&thread, "put", put_in_thread, f), 0);
	cpc_powercut_wait_held(f->pc, 1);
	assert_int_equal(cpc_backing_flush(f->b), 0);
	assert_int_equal(cpc_powercut_nr_pending(f->pc), 1);
	assert_int_equal(test_get(f->b, 1), 0);
	cpc_powercut_release(f->pc);
	pthread_join(thread, &ret);
	assert_null(ret);
	assert_int_equal(cpc_powercut_nr_pending(f->pc), 1);
	assert_int_equal(cpc_backing_flush(f->b), 0);
	assert_int_equal(cpc_powercut_nr_pending(f->pc), 0);
}

static void *flush_in_thread(void *arg)
{
	struct fixture *f = arg;

	return (void *)(intptr_t)cpc_backing_flush(f->b);
}

static void a_flush_covers_only_what_was_acked_when_it_began(void **state)
{
	struct fixture *f = *state;
	pthread_t thread;
	void *ret;

	test_put(f->b, 1, 'a');
	cpc_powercut_hold(f->pc, CPC_HOLD_FLUSH);
	assert_int_equal(cpc_thread_start(&thread, "flush", flush_in_thread, f), 0);
	cpc_powercut_wait_held(f->pc, 1);
	test_put(f->b, 2, 'a');
	cpc_powercut_release(f->pc);
	pthread_join(thread, &ret);
	assert_null(ret);
	crash_all(f, CPC_FATE_LOST);
	assert_int_equal(test_get(f->b, 1), 'a');
	assert_int_equal(test_get(f->b, 2), 0);
}

static void a_crash_frees_held_calls(void **state)
{
	struct fixture *f = *state;
	struct cpc_crash_choice c;
	pthread_t thread;
	void *ret;

	cpc_powercut_hold(f->pc, CPC_HOLD_WRITES);
	assert_int_equal(cpc_thread_start(&thread, "put", put_in_thread, f), 0);
	cpc_powercut_wait_held(f->pc, 1);
	cpc_crash_choice_all(f->pc, CPC_FATE_KEPT, &c);
	assert_int_equal(c.nr, 1);
	cpc_powercut_crash(f->pc, &c);
	cpc_crash_choice_free(&c);
	pthread_join(thread, &ret);
	assert_int_equal((intptr_t)ret, -EIO);
	reopen(f);
	assert_int_equal(test_get(f->b, 1), 'h');
}

struct seen {
	unsigned writes, discards, flush_begins, flush_ends;
};

static void saw_write(void *ctx, uint64_t bytenr, uint64_t len, enum cpc_cause cause)
{
	((struct seen *)ctx)->writes++;
	cpc_assert(bytenr == BLOCK(1) && len == BLOCK(1) && cause == CPC_CAUSE_DATA);
}

static void saw_discard(void *ctx, uint64_t bytenr, uint64_t len)
{
	((struct seen *)ctx)->discards++;
}

static void saw_flush_begin(void *ctx)
{
	((struct seen *)ctx)->flush_begins++;
}

static void saw_flush_end(void *ctx)
{
	((struct seen *)ctx)->flush_ends++;
}

static void hooks_see_every_call_and_only_good_flushes_end(void **state)
{
	struct cpc_powercut_hooks hooks = {saw_write, saw_discard, saw_flush_begin, saw_flush_end};
	struct fixture *f = *state;
	struct seen seen = {0};

	cpc_powercut_set_hooks(f->pc, &hooks, &seen);
	cpc_powercut_fail(f->pc, CPC_POWERCUT_FLUSH, 1, false, -EIO);
	test_put(f->b, 1, 'a');
	cpc_backing_discard(f->b, BLOCK(1), BLOCK(1));
	cpc_backing_flush(f->b);
	cpc_backing_flush(f->b);
	cpc_powercut_set_hooks(f->pc, NULL, NULL);
	test_put(f->b, 1, 'a');
	assert_int_equal(seen.writes, 1);
	assert_int_equal(seen.discards, 1);
	assert_int_equal(seen.flush_begins, 2);
	assert_int_equal(seen.flush_ends, 1);
}

static void a_terabyte_costs_only_what_was_written(void **state)
{
	const uint64_t size = 1ull << 40;
	struct cpc_powercut *pc;
	struct cpc_backing *b;

	assert_int_equal(cpc_powercut_create(size, &pc), 0);
	assert_int_equal(cpc_powercut_reopen(pc, &b), 0);
	for (uint64_t i = 0; i < 1000; i++)
		assert_int_equal(test_put(b, i * (size >> 12) / 1000, 'a' + (int)i % 8), 0);
	for (uint64_t i = 0; i < 1000; i++)
		assert_int_equal(test_get(b, i * (size >> 12) / 1000), 'a' + (int)i % 8);
	assert_int_equal(cpc_backing_flush(b), 0);
	assert_int_equal(cpc_backing_discard(b, size / 2, size / 2), 0);
	assert_int_equal(cpc_backing_flush(b), 0);
	assert_int_equal(test_get(b, 499 * (size >> 12) / 1000), 'a' + 499 % 8);
	assert_int_equal(test_get(b, 501 * (size >> 12) / 1000), 0);
	assert_int_equal(cpc_backing_write(b, size, NULL, CPC_BLOCK_SIZE, CPC_CAUSE_DATA), -EIO);
	cpc_backing_close(b);
	cpc_powercut_destroy(pc);
}

/* The device against an array, with random writes, discards, flushes, kills and crashes. */
static void random_histories_match_a_plain_model(void **state)
{
	enum { BLOCKS = 64 };
	struct fixture *f = *state;
	int newest[BLOCKS] = {0}, stable[BLOCKS] = {0};

	srandom(1);
	for (int step = 0; step < 20000; step++) {
		uint64_t block = (uint64_t)random() % BLOCKS;
		int what = (int)(random() % 100);

		if (what < 60) {
			newest[block] = 1 + (int)(random() % 200);
			test_put(f->b, block, newest[block]);
		} else if (what < 70) {
			uint64_t nr = 1 + (uint64_t)random() % (BLOCKS - block);

			cpc_backing_discard(f->b, BLOCK(block), BLOCK(nr));
			memset(&newest[block], 0, nr * sizeof(newest[0]));
		} else if (what < 90) {
			assert_int_equal(test_get(f->b, block), newest[block]);
		} else if (what < 98) {
			cpc_backing_flush(f->b);
			memcpy(stable, newest, sizeof(stable));
			assert_int_equal(cpc_powercut_nr_pending(f->pc), 0);
		} else if (what < 99) {
			reopen(f);
		} else {
			crash_all(f, CPC_FATE_LOST);
			memcpy(newest, stable, sizeof(newest));
		}
	}
	for (uint64_t i = 0; i < BLOCKS; i++)
		assert_int_equal(test_get(f->b, i), newest[i]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(flushed_writes_survive_and_others_may_not),
	    TEST(kept_writes_land_in_order),
	    TEST(a_dead_handle_answers_eio),
	    TEST(tears_keep_the_chosen_sectors),
	    TEST(all_subsets_of_few_writes_are_tried),
	    TEST(single_losses_and_pairs_of_many_writes_are_tried),
	    TEST(each_write_is_torn_at_each_sector_from_either_side),
	    TEST(the_same_seed_gives_the_same_crash),
	    TEST(save_and_restore_bring_back_image_and_pending),
	    TEST(a_discard_hides_at_once_and_lands_with_a_flush),
	    TEST(faults_fire_at_the_nth_matching_call),
	    TEST(lost_and_misdirected_writes_are_acked),
	    TEST(a_failed_flush_can_drop_what_was_pending),
	    TEST(rot_and_stale_blocks_reach_reader_and_medium),
	    TEST(a_flush_does_not_cover_a_held_write),
	    TEST(a_flush_covers_only_what_was_acked_when_it_began),
	    TEST(a_crash_frees_held_calls),
	    TEST(hooks_see_every_call_and_only_good_flushes_end),
	    TEST(a_terabyte_costs_only_what_was_written),
	    TEST(random_histories_match_a_plain_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
