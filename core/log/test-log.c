/* SPDX-License-Identifier: BSD-3-Clause */
/* The log by itself: order, flushes, room, marks. */
#include "log/test-log-rig.h"

#include <time.h>

#include "lib/hooks.h"

#define THREADS 8u

/* --- order --- */

static void names_and_mappings_come_back_in_their_order(void **state)
{
	struct log_replayed p;
	struct cpc_log_batch b;
	struct log_rig f;
	uint64_t at;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	log_rig_log_block(&f, 7, &at);
	cpc_log_batch_init(&b, f.log);
	cpc_log_batch_name(&b, CPC_LOG_CREATE, 2, 0, "payload", 7);
	cpc_log_batch_name(&b, CPC_LOG_RENAME, 2, 0, "new", 3);
	cpc_log_batch_name(&b, CPC_LOG_RESIZE, 2, 12345, NULL, 0);
	log_rig_add_run(&b, 1, 7, 3, 0);
	log_rig_add_run(&b, 1, 8, 1, at);
	cpc_log_batch_name(&b, CPC_LOG_DELETE, 2, 0, NULL, 0);
	assert_int_equal(cpc_log_batch_end(&b), 0);
	assert_int_equal(cpc_log_add(f.log, &b), 0);
	assert_int_equal(cpc_log_flush(f.log, b.last_seq), 0);
	cpc_log_batch_destroy(&b);
	log_rig_crash(&f, CPC_FATE_LOST);
	assert_int_equal(log_rig_replay(&f, &p), 0);
	assert_string_equal(p.order, "crsd");
	assert_int_equal(p.batches, 2);
	assert_true(p.at[7] == UINT64_MAX && p.at[8] == at && p.at[9] == UINT64_MAX);
	log_rig_destroy(&f);
}

static void completed_has_no_gap_whatever_the_order(void **state)
{
	struct cpc_log_batch b[6];
	bool done[6] = {false};
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned round = 0; round < 2; round++) {
		uint64_t base = f.log->next_seq - 1;

		memset(done, 0, sizeof(done));
		for (unsigned i = 0; i < 6; i++) {
			log_rig_holes(&f, &b[i], i == 2 ? 510 : 1); /* one has two records */
			assert_int_equal(cpc_log_append(f.log, &b[i]), 0);
			assert_int_equal(cpc_log_write(f.log, &b[i]), 0);
		}
		for (unsigned n = 0; n < 6;) {
			unsigned i = (unsigned)log_rig_draw(6);
			uint64_t expected = base;

			if (done[i])
				continue;
			cpc_log_complete(f.log, &b[i], 0);
			done[i] = true;
			n++;
			for (unsigned k = 0; k < 6 && done[k]; k++)
				expected = b[k].last_seq;
			assert_int_equal(atomic_load(&f.log->completed), expected);
		}
		for (unsigned i = 0; i < 6; i++)
			cpc_log_batch_destroy(&b[i]);
	}
	log_rig_destroy(&f);
}

struct flusher {
	struct log_rig *f;
	pthread_t thread;
	uint64_t seq;
	int result;
	_Atomic bool done;
};

static void *run_flush(void *arg)
{
	struct flusher *fl = arg;

	fl->result = cpc_log_flush(fl->f->log, fl->seq);
	fl->done = true;
	return NULL;
}

static void *run_add(void *arg)
{
	struct flusher *fl = arg;
	struct cpc_log_batch b;

	log_rig_holes(fl->f, &b, 1);
	fl->result = cpc_log_add(fl->f->log, &b);
	fl->seq = b.last_seq;
	cpc_log_batch_destroy(&b);
	fl->done = true;
	return NULL;
}

static void *run_freeze(void *arg)
{
	struct flusher *fl = arg;
	uint64_t position;

	cpc_log_freeze(fl->f->log, &fl->seq, &position);
	fl->done = true;
	cpc_log_thaw(fl->f->log);
	return NULL;
}

static void go(struct flusher *fl, struct log_rig *f, void *(*run)(void *))
{
	fl->f = f;
	fl->done = false;
	assert_int_equal(cpc_thread_start(&fl->thread, "test", run, fl), 0);
}

static void pause_ms(unsigned ms)
{
	struct timespec t = {.tv_nsec = ms * 1000000l};

	nanosleep(&t, NULL);
}

static void a_flush_waits_for_the_records_before_its_own(void **state)
{
	struct cpc_log_batch first, second;
	struct flusher fl = {.seq = 2};
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	log_rig_holes(&f, &first, 1);
	log_rig_holes(&f, &second, 1);
	assert_int_equal(cpc_log_append(f.log, &first), 0);
	assert_int_equal(cpc_log_add(f.log, &second), 0);
	go(&fl, &f, run_flush);
	pause_ms(20);
	assert_false(fl.done);
	assert_int_equal(cpc_log_write(f.log, &first), 0);
	cpc_log_complete(f.log, &first, 0);
	pthread_join(fl.thread, NULL);
	assert_int_equal(fl.result, 0);
	assert_int_equal(cpc_log_durable(f.log), 2);
	cpc_log_batch_destroy(&first);
	cpc_log_batch_destroy(&second);
	log_rig_destroy(&f);
}

static void a_freeze_waits_for_batches_and_keeps_new_ones_out(void **state)
{
	struct flusher fl = {0};
	struct cpc_log_batch b;
	uint64_t seq, position;
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	log_rig_log_holes(&f, 1);
	cpc_log_freeze(f.log, &seq, &position);
	assert_true(seq == 1 && position == 4096);
	go(&fl, &f, run_add);
	pause_ms(20);
	assert_false(fl.done);
	assert_int_equal(f.log->next_seq, 2);
	cpc_log_thaw(f.log);
	pthread_join(fl.thread, NULL);
	assert_true(fl.result == 0 && fl.seq == 2);
	log_rig_holes(&f, &b, 1);
	assert_int_equal(cpc_log_append(f.log, &b), 0);
	fl.done = false;
	go(&fl, &f, run_freeze);
	pause_ms(20);
	assert_false(fl.done);
	cpc_log_complete(f.log, &b, 0);
	pthread_join(fl.thread, NULL);
	assert_true(fl.seq == 3);
	cpc_log_batch_destroy(&b);
	log_rig_destroy(&f);
}

static void a_batch_too_many_waits_for_one_to_complete(void **state)
{
	static struct cpc_log_batch b[CPC_LOG_MAX_OPEN];
	struct flusher fl = {0};
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, 8 * SMALL_RING);
	for (unsigned i = 0; i < CPC_LOG_MAX_OPEN; i++) {
		log_rig_holes(&f, &b[i], 1);
		assert_int_equal(cpc_log_append(f.log, &b[i]), 0);
		assert_int_equal(cpc_log_write(f.log, &b[i]), 0);
	}
	go(&fl, &f, run_add);
	pause_ms(20);
	assert_false(fl.done);
	cpc_log_complete(f.log, &b[7], 0);
	pthread_join(fl.thread, NULL);
	assert_true(fl.result == 0 && fl.seq == CPC_LOG_MAX_OPEN + 1);
	for (unsigned i = 0; i < CPC_LOG_MAX_OPEN; i++) {
		if (i != 7)
			cpc_log_complete(f.log, &b[i], 0);
		cpc_log_batch_destroy(&b[i]);
	}
	assert_int_equal(cpc_log_flush(f.log, fl.seq), 0);
	log_rig_destroy(&f);
}

static void a_record_that_cannot_be_written_ends_the_log(void **state)
{
	struct cpc_log_batch b;
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	log_rig_log_holes(&f, 1);
	/* the second try is taken */
	cpc_powercut_fail(f.pc, CPC_POWERCUT_WRITE, 2, false, -EIO);
	log_rig_log_holes(&f, 1);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_WRITE, 1, true, -EIO);
	log_rig_holes(&f, &b, 1);
	assert_int_equal(cpc_log_add(f.log, &b), -EIO);
	cpc_log_batch_destroy(&b);
	cpc_powercut_clear_faults(f.pc);
	assert_int_equal(cpc_log_flush(f.log, 2), 0); /* they had been written */
	assert_int_equal(cpc_log_flush(f.log, 3), -EIO);
	log_rig_holes(&f, &b, 1);
	assert_int_equal(cpc_log_add(f.log, &b), -EIO);
	cpc_log_batch_destroy(&b);
	log_rig_destroy(&f);
}

/* --- joined flushes --- */

/* One flush is held, and seven more wait for the next one. */
static void flush_together(struct log_rig *f, struct flusher fl[THREADS],
			   const struct cpc_powercut_fault *fault)
{
	for (unsigned i = 0; i < THREADS; i++) {
		struct cpc_log_batch b;

		log_rig_holes(f, &b, 1);
		assert_int_equal(cpc_log_add(f->log, &b), 0);
		fl[i].seq = b.last_seq;
		cpc_log_batch_destroy(&b);
		if (i == 0) {
			cpc_powercut_hold(f->pc, CPC_HOLD_FLUSH);
			go(&fl[i], f, run_flush);
			cpc_powercut_wait_held(f->pc, 1);
		}
	}
	for (unsigned i = 1; i < THREADS; i++)
		go(&fl[i], f, run_flush);
	pause_ms(50); /* they have joined */
	if (fault)
		cpc_powercut_add_fault(f->pc, fault);
	cpc_powercut_release(f->pc);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(fl[i].thread, NULL);
}

static void flushes_that_come_while_one_runs_share_the_next(void **state)
{
	struct flusher fl[THREADS] = {0};
	struct log_rig f;
	uint64_t before;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	before = cpc_powercut_count(f.pc, CPC_POWERCUT_FLUSH);
	flush_together(&f, fl, NULL);
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(fl[i].result, 0);
	assert_int_equal(cpc_powercut_count(f.pc, CPC_POWERCUT_FLUSH) - before, 2);
	log_rig_crash(&f, CPC_FATE_LOST);
	log_rig_assert_replays_to(&f, THREADS);
	log_rig_destroy(&f);
}

static void every_waiter_sees_a_failed_flush_and_later_success_is_true(void **state)
{
	static const enum cpc_powercut_action actions[] = {CPC_FAULT_FAIL, CPC_FAULT_DROP_CACHED};

	for (unsigned a = 0; a < CPC_ARRAY_SIZE(actions); a++) {
		struct cpc_powercut_fault fault = {
		    .op = CPC_POWERCUT_FLUSH, .action = actions[a], .nth = 1, .error = -EIO};
		struct flusher fl[THREADS] = {0};
		struct log_rig f;

		log_rig_make(&f, POOL_SIZE, SMALL_RING);
		flush_together(&f, fl, &fault);
		assert_int_equal(fl[0].result, 0); /* had begun before */
		for (unsigned i = 1; i < THREADS; i++)
			assert_int_equal(fl[i].result, -EIO);
		assert_int_equal(cpc_log_durable(f.log), 1);
		assert_int_equal(cpc_log_flush(f.log, THREADS), 0);
		assert_int_equal(cpc_log_durable(f.log), THREADS);
		log_rig_crash(&f, CPC_FATE_LOST);
		log_rig_assert_replays_to(&f, THREADS);
		log_rig_destroy(&f);
	}
}

/* The device drops what it was given, then says that all is well. */
static void a_device_that_fails_then_says_ok_gets_no_success_past_it(void **state)
{
	struct cpc_powercut_fault fault = {
	    .op = CPC_POWERCUT_FLUSH, .action = CPC_FAULT_DROP, .nth = 1, .error = -EIO};
	struct flusher fl[THREADS] = {0};
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	flush_together(&f, fl, &fault);
	for (unsigned i = 1; i < THREADS; i++)
		assert_int_equal(fl[i].result, -EIO);
	/* the old bytes are read back: no success any more */
	assert_int_equal(cpc_log_flush(f.log, THREADS), -EIO);
	assert_int_equal(cpc_log_flush(f.log, 2), -EIO);
	assert_int_equal(cpc_log_flush(f.log, 1), 0);
	assert_int_equal(cpc_log_durable(f.log), 1);
	log_rig_destroy(&f);
}

static void a_device_that_flushes_no_more_gets_errors_only(void **state)
{
	struct cpc_powercut_fault fault = {.op = CPC_POWERCUT_FLUSH,
					   .action = CPC_FAULT_FAIL,
					   .nth = 1,
					   .sticky = true,
					   .error = -EIO};
	struct flusher fl[THREADS] = {0};
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	flush_together(&f, fl, &fault);
	for (unsigned i = 1; i < THREADS; i++)
		assert_int_equal(fl[i].result, -EIO);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(cpc_log_flush(f.log, THREADS), -EIO);
	assert_int_equal(cpc_log_durable(f.log), 1);
	log_rig_destroy(&f);
}

/* --- room --- */

static void what_is_reserved_can_be_written_and_no_more_is_given(void **state)
{
	struct log_rig f;
	uint64_t given = 0;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	assert_false(cpc_log_wants_commit(f.log));
	while (!cpc_log_reserve(f.log, 20000))
		given += 20000;
	assert_true(given >= 60000 && given < SMALL_RING);
	assert_true(cpc_log_wants_commit(f.log));
	assert_int_equal(cpc_log_reserve(f.log, 20000), -ENOSPC);
	cpc_log_unreserve(f.log, 20000);
	assert_int_equal(cpc_log_reserve(f.log, 20000), 0);
	/* the most that it can mean: one record after the other of the largest size */
	for (uint64_t done = 0; done + 16384 <= given; done += 16384)
		log_rig_log_holes(&f, 509);
	cpc_log_unreserve(f.log, given);
	assert_int_equal(cpc_log_reserve(f.log, 20000), -ENOSPC);
	log_rig_destroy(&f);
}

static void a_commit_makes_room(void **state)
{
	struct cpc_log_stats stats;
	uint64_t seq, position;
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 5; i++)
		log_rig_log_holes(&f, 509);
	assert_true(cpc_log_wants_commit(f.log));
	assert_int_equal(cpc_log_reserve(f.log, 20000), -ENOSPC);
	cpc_log_freeze(f.log, &seq, &position);
	cpc_log_thaw(f.log);
	log_rig_log_holes(&f, 1);
	log_rig_commit(&f, seq, position);
	cpc_log_committed(f.log, seq, position);
	cpc_log_get_stats(f.log, &stats);
	assert_int_equal(stats.used, 4096); /* what came after the freeze is still needed */
	assert_int_equal(cpc_log_reserve(f.log, 20000), 0);
	assert_false(cpc_log_wants_commit(f.log));
	assert_int_equal(cpc_log_durable(f.log), seq);
	log_rig_crash(&f, CPC_FATE_KEPT);
	log_rig_assert_replays_to(&f, seq + 1);
	log_rig_destroy(&f);
}

/* One batch of random size, with a commit where there is no room. Return: its last record. */
static uint64_t log_somehow(struct log_rig *f, uint64_t *committed)
{
	unsigned nr = 1 + (unsigned)(log_rig_draw(4) ? log_rig_draw(100) : log_rig_draw(1500));
	uint64_t room = CPC_LOG_BATCH_BYTES + nr * CPC_LOG_BLOCK_BYTES, seq;
	struct cpc_log_batch b;

	if (cpc_log_reserve(f->log, room)) {
		log_rig_commit_all(f, committed);
		assert_int_equal(cpc_log_reserve(f->log, room), 0);
	}
	log_rig_holes(f, &b, nr);
	assert_true(b.len <= room);
	assert_int_equal(cpc_log_add(f->log, &b), 0);
	seq = b.last_seq;
	cpc_log_batch_destroy(&b);
	cpc_log_unreserve(f->log, room);
	return seq;
}

static void a_small_ring_goes_round_many_times_and_every_life_is_replayed(void **state)
{
	struct log_replayed p;
	struct log_rig f;
	uint64_t wraps = 0;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned life = 0; life < 60; life++) {
		uint64_t committed = 0, last = 0, flushed = 0;
		unsigned nr = 1 + (unsigned)log_rig_draw(20);

		for (unsigned i = 0; i < nr; i++) {
			last = log_somehow(&f, &committed);
			if (log_rig_draw(3) == 0) {
				assert_int_equal(cpc_log_flush(f.log, last), 0);
				flushed = last;
			}
		}
		log_rig_close_store(&f);
		cpc_powercut_crash_random(f.pc, life);
		log_rig_open_store(&f, true);
		assert_int_equal(log_rig_replay(&f, &p), 0);
		assert_true(cpc_max_u64(p.last_seq, committed) >= flushed);
		assert_true(p.last_seq <= last);
		wraps = p.position / SMALL_RING;
		log_rig_close_store(&f);
		log_rig_start(&f, p.position);
	}
	assert_true(wraps >= 20);
	log_rig_destroy(&f);
}

/* --- marks --- */

static void a_mark_is_written_after_quiet_and_asks_for_no_other(void **state)
{
	struct log_replayed p;
	uint64_t wait, at;
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	cpc_hooks.monotonic_ns = log_rig_fake_clock;
	cpc_log_mark(f.log, &wait);
	assert_true(wait == UINT64_MAX && f.log->next_seq == 1);
	assert_int_equal(cpc_log_flush(f.log, log_rig_log_block(&f, 1, &at)), 0);
	cpc_log_mark(f.log, &wait);
	assert_true(wait == 10000000 && f.log->next_seq == 2);
	log_rig_ns += 4000000;
	cpc_log_mark(f.log, &wait);
	assert_true(wait == 6000000 && f.log->next_seq == 2);
	log_rig_ns += 6000000;
	cpc_log_mark(f.log, &wait);
	assert_int_equal(f.log->next_seq, 3);
	for (unsigned i = 0; i < 3; i++) {
		log_rig_ns += 20000000;
		assert_int_equal(cpc_log_flush(f.log, 2), 0);
		cpc_log_mark(f.log, &wait);
		assert_true(wait == UINT64_MAX && f.log->next_seq == 3);
	}
	cpc_hooks.monotonic_ns = cpc_hooks_default.monotonic_ns;
	log_rig_crash(&f, CPC_FATE_LOST);
	/* from its mark on, damage to the data rolls nothing back */
	cpc_powercut_flip(f.pc, at << CPC_BLOCK_SHIFT, 0);
	assert_int_equal(log_rig_replay(&f, &p), 0);
	assert_int_equal(p.last_seq, 2);
	assert_int_equal(p.at[1], at);
	log_rig_destroy(&f);
}

static void the_next_record_carries_what_is_durable(void **state)
{
	struct log_rig f;
	uint64_t wait, at;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	assert_int_equal(cpc_log_flush(f.log, log_rig_log_block(&f, 1, &at)), 0);
	log_rig_log_holes(&f, 1);
	/* it is not flushed, so it owes no mark; the first one has its own */
	cpc_hooks.monotonic_ns = log_rig_fake_clock;
	log_rig_ns = f.log->append_ns + 20000000;
	cpc_log_mark(f.log, &wait);
	assert_true(wait == UINT64_MAX && f.log->next_seq == 3);
	cpc_hooks.monotonic_ns = cpc_hooks_default.monotonic_ns;
	log_rig_crash(&f, CPC_FATE_KEPT);
	cpc_powercut_flip(f.pc, at << CPC_BLOCK_SHIFT, 0);
	log_rig_assert_replays_to(&f, 2);
	log_rig_destroy(&f);
}

static void no_mark_takes_the_room_of_a_flush(void **state)
{
	struct log_rig f;
	uint64_t wait, given = 0;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	log_rig_log_holes(&f, 1);
	assert_int_equal(cpc_log_flush(f.log, 1), 0);
	while (!cpc_log_reserve(f.log, 4096))
		given += 4096;
	cpc_hooks.monotonic_ns = log_rig_fake_clock;
	log_rig_ns = f.log->append_ns + 20000000;
	cpc_log_mark(f.log, &wait);
	assert_true(wait == 10000000 && f.log->next_seq == 2);
	cpc_hooks.monotonic_ns = cpc_hooks_default.monotonic_ns;
	cpc_log_unreserve(f.log, given);
	log_rig_destroy(&f);
}

static void a_log_that_is_broken_writes_no_mark(void **state)
{
	struct cpc_log_batch b;
	uint64_t wait, writes;
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	log_rig_log_holes(&f, 1);
	assert_int_equal(cpc_log_flush(f.log, 1), 0);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_WRITE, 1, true, -EIO);
	log_rig_holes(&f, &b, 1);
	assert_int_equal(cpc_log_add(f.log, &b), -EIO);
	cpc_log_batch_destroy(&b);
	cpc_powercut_clear_faults(f.pc);
	writes = cpc_powercut_count(f.pc, CPC_POWERCUT_WRITE);
	cpc_hooks.monotonic_ns = log_rig_fake_clock;
	log_rig_ns = f.log->append_ns + 20000000;
	cpc_log_mark(f.log, &wait);
	cpc_hooks.monotonic_ns = cpc_hooks_default.monotonic_ns;
	assert_int_equal(cpc_powercut_count(f.pc, CPC_POWERCUT_WRITE), writes);
	assert_int_equal(f.log->next_seq, 3);
	log_rig_destroy(&f);
}

static void *no_alloc(size_t align, size_t size)
{
	return NULL;
}

static void a_mark_that_cannot_be_written_is_not_counted(void **state)
{
	struct cpc_log_stats s;
	struct log_rig f;
	uint64_t wait;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	log_rig_log_holes(&f, 1);
	assert_int_equal(cpc_log_flush(f.log, 1), 0);
	cpc_hooks.monotonic_ns = log_rig_fake_clock;
	log_rig_ns = f.log->append_ns + 20000000;
	cpc_hooks.alloc = no_alloc;
	cpc_log_mark(f.log, &wait);
	cpc_hooks.alloc = cpc_hooks_default.alloc;
	cpc_log_get_stats(f.log, &s);
	assert_true(s.marks == 0 && s.last_seq == 1);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_WRITE, 1, true, -EIO);
	cpc_log_mark(f.log, &wait);
	cpc_powercut_clear_faults(f.pc);
	cpc_log_get_stats(f.log, &s);
	assert_true(s.marks == 0 && s.last_seq == 2);
	assert_int_equal(cpc_log_flush(f.log, 2), -EIO);
	assert_int_equal(cpc_log_flush(f.log, 1), 0);
	cpc_hooks.monotonic_ns = cpc_hooks_default.monotonic_ns;
	log_rig_destroy(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(names_and_mappings_come_back_in_their_order),
	    cmocka_unit_test(completed_has_no_gap_whatever_the_order),
	    cmocka_unit_test(a_flush_waits_for_the_records_before_its_own),
	    cmocka_unit_test(a_freeze_waits_for_batches_and_keeps_new_ones_out),
	    cmocka_unit_test(a_batch_too_many_waits_for_one_to_complete),
	    cmocka_unit_test(a_record_that_cannot_be_written_ends_the_log),
	    cmocka_unit_test(flushes_that_come_while_one_runs_share_the_next),
	    cmocka_unit_test(every_waiter_sees_a_failed_flush_and_later_success_is_true),
	    cmocka_unit_test(a_device_that_fails_then_says_ok_gets_no_success_past_it),
	    cmocka_unit_test(a_device_that_flushes_no_more_gets_errors_only),
	    cmocka_unit_test(what_is_reserved_can_be_written_and_no_more_is_given),
	    cmocka_unit_test(a_commit_makes_room),
	    cmocka_unit_test(a_small_ring_goes_round_many_times_and_every_life_is_replayed),
	    cmocka_unit_test(a_mark_is_written_after_quiet_and_asks_for_no_other),
	    cmocka_unit_test(the_next_record_carries_what_is_durable),
	    cmocka_unit_test(no_mark_takes_the_room_of_a_flush),
	    cmocka_unit_test(a_log_that_is_broken_writes_no_mark),
	    cmocka_unit_test(a_mark_that_cannot_be_written_is_not_counted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
