/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Flush epochs over the power-cut device: who is covered by which flush, what all who joined see,
 * and that no failed flush is ever forgotten.
 */
#include "backing/test-util.h"

#include <unistd.h>

#include "backing/flush-epoch.h"
#include "backing/ioq.h"
#include "lib/crc32c.h"
#include "lib/log.h"

struct fixture {
	struct cpc_powercut *pc;
	struct cpc_backing *b;
	struct cpc_flush_epoch fe;
	_Atomic unsigned broken_calls;
};

static void on_broken(void *ctx)
{
	struct fixture *f = ctx;

	atomic_fetch_add(&f->broken_calls, 1);
}

static int setup(void **state)
{
	static struct fixture f;

	f.broken_calls = 0;
	assert_int_equal(cpc_powercut_create(64 * MIB, &f.pc), 0);
	assert_int_equal(cpc_powercut_reopen(f.pc, &f.b), 0);
	cpc_flush_epoch_init(&f.fe, f.b, on_broken, &f);
	*state = &f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	cpc_flush_epoch_destroy(&f->fe);
	cpc_backing_close(f->b);
	cpc_powercut_destroy(f->pc);
	return 0;
}

static int write_tag(struct fixture *f, uint64_t block, int tag, enum cpc_cause cause)
{
	char *buf = test_buf(CPC_BLOCK_SIZE);
	int ret;

	memset(buf, tag, CPC_BLOCK_SIZE);
	ret = cpc_fe_write(&f->fe, BLOCK(block), buf, CPC_BLOCK_SIZE, cause, NULL);
	cpc_free(buf);
	return ret;
}

static int write_data(struct fixture *f, uint64_t block, int tag)
{
	return write_tag(f, block, tag, CPC_CAUSE_DATA);
}

static int flush(struct fixture *f)
{
	return cpc_flush_epoch_flush(&f->fe, CPC_FLUSH_LOG);
}

static int stable_tag(struct fixture *f, uint64_t block)
{
	char *buf = test_buf(CPC_BLOCK_SIZE);
	int tag;

	cpc_powercut_peek_stable(f->pc, BLOCK(block), buf, CPC_BLOCK_SIZE);
	tag = memcmp(buf, buf + 1, CPC_BLOCK_SIZE - 1) ? -1 : (unsigned char)buf[0];
	cpc_free(buf);
	return tag;
}

static void fail_flush(struct fixture *f, uint64_t nth, enum cpc_powercut_action action)
{
	struct cpc_powercut_fault fault = {
	    .op = CPC_POWERCUT_FLUSH, .action = action, .nth = nth, .error = -EIO};

	cpc_powercut_add_fault(f->pc, &fault);
}

static struct cpc_flush_epoch_stats stats_of(struct fixture *f)
{
	struct cpc_flush_epoch_stats s;

	cpc_flush_epoch_get_stats(&f->fe, &s);
	return s;
}

/* ---- good flushes ---- */

static void a_good_flush_covers_what_had_completed(void **state)
{
	struct fixture *f = *state;
	uint64_t seq = cpc_flush_epoch_seq(&f->fe);

	assert_int_equal(write_data(f, 1, 'a'), 0);
	assert_int_equal(stats_of(f).unflushed_bytes, CPC_BLOCK_SIZE);
	assert_int_equal(flush(f), 0);
	assert_int_equal(stable_tag(f, 1), 'a');
	assert_int_equal(cpc_flush_epoch_seq(&f->fe), seq + 1);
	assert_int_equal(stats_of(f).unflushed_bytes, 0);
	assert_int_equal(cpc_flush_epoch_flush(&f->fe, CPC_FLUSH_COMMIT), 0);
	assert_int_equal(stats_of(f).flushes[CPC_FLUSH_LOG], 1);
	assert_int_equal(stats_of(f).flushes[CPC_FLUSH_COMMIT], 1);
	assert_int_equal(cpc_flush_epoch_failures(&f->fe), 0);
}

static void pressure_is_told_above_the_bound(void **state)
{
	struct fixture *f = *state;

	f->fe.pressure_bytes = 2 * CPC_BLOCK_SIZE;
	write_data(f, 1, 'a');
	write_data(f, 2, 'a');
	assert_false(cpc_flush_epoch_pressure(&f->fe));
	write_data(f, 3, 'a');
	assert_true(cpc_flush_epoch_pressure(&f->fe));
	assert_int_equal(cpc_flush_epoch_flush(&f->fe, CPC_FLUSH_PRESSURE), 0);
	assert_false(cpc_flush_epoch_pressure(&f->fe));
}

struct call {
	struct fixture *f;
	pthread_t thread;
	int result;
	_Atomic bool returned;
};

static void *flush_in_thread(void *arg)
{
	struct call *c = arg;

	c->result = flush(c->f);
	atomic_store(&c->returned, true);
	return NULL;
}

static void start_flush(struct fixture *f, struct call *c)
{
	c->f = f;
	c->returned = false;
	assert_int_equal(cpc_thread_start(&c->thread, "flush", flush_in_thread, c), 0);
}

/* Waits until `nr` callers stand behind the flush in flight. */
static void wait_for_waiters(struct fixture *f, unsigned nr)
{
	unsigned found = 0;

	while (found < nr) {
		struct cpc_list *pos;

		usleep(100);
		found = 0;
		cpc_mutex_lock(&f->fe.lock);
		cpc_list_for_each (pos, &f->fe.waiters)
			found++;
		cpc_mutex_unlock(&f->fe.lock);
	}
}

static void a_caller_never_joins_a_flush_that_has_started(void **state)
{
	struct fixture *f = *state;
	struct call first, second;

	cpc_powercut_hold(f->pc, CPC_HOLD_FLUSH);
	start_flush(f, &first);
	cpc_powercut_wait_held(f->pc, 1);
	write_data(f, 1, 'a');
	start_flush(f, &second);
	wait_for_waiters(f, 1);
	cpc_powercut_release(f->pc);
	pthread_join(first.thread, NULL);
	pthread_join(second.thread, NULL);
	assert_int_equal(first.result, 0);
	assert_int_equal(second.result, 0);
	assert_int_equal(cpc_powercut_count(f->pc, CPC_POWERCUT_FLUSH), 2);
	assert_int_equal(stable_tag(f, 1), 'a');
}

static void many_callers_share_one_flush(void **state)
{
	struct fixture *f = *state;
	struct call first, calls[8];

	cpc_powercut_hold(f->pc, CPC_HOLD_FLUSH);
	start_flush(f, &first);
	cpc_powercut_wait_held(f->pc, 1);
	for (int i = 0; i < 8; i++)
		start_flush(f, &calls[i]);
	wait_for_waiters(f, 8);
	cpc_powercut_release(f->pc);
	pthread_join(first.thread, NULL);
	for (int i = 0; i < 8; i++) {
		pthread_join(calls[i].thread, NULL);
		assert_int_equal(calls[i].result, 0);
	}
	assert_int_equal(cpc_powercut_count(f->pc, CPC_POWERCUT_FLUSH), 2);
	assert_int_equal(stats_of(f).joined, 7);
}

static void all_who_joined_a_failed_flush_see_the_error(void **state)
{
	struct fixture *f = *state;
	struct call first, calls[8];

	fail_flush(f, 2, CPC_FAULT_FAIL);
	cpc_powercut_hold(f->pc, CPC_HOLD_FLUSH);
	start_flush(f, &first);
	cpc_powercut_wait_held(f->pc, 1);
	for (int i = 0; i < 8; i++)
		start_flush(f, &calls[i]);
	wait_for_waiters(f, 8);
	cpc_powercut_release(f->pc);
	pthread_join(first.thread, NULL);
	assert_int_equal(first.result, 0);
	for (int i = 0; i < 8; i++) {
		pthread_join(calls[i].thread, NULL);
		assert_int_equal(calls[i].result, -EIO);
	}
	assert_int_equal(cpc_flush_epoch_failures(&f->fe), 1);
	assert_int_equal(flush(f), 0);
}

static void *write_in_thread(void *arg)
{
	struct call *c = arg;

	c->result = write_data(c->f, 1, 'w');
	return NULL;
}

static void start_write(struct fixture *f, struct call *c)
{
	c->f = f;
	assert_int_equal(cpc_thread_start(&c->thread, "write", write_in_thread, c), 0);
}

static void a_write_in_flight_is_not_covered(void **state)
{
	struct fixture *f = *state;
	struct iovec iov = {test_buf(CPC_BLOCK_SIZE), CPC_BLOCK_SIZE};
	struct cpc_fe_write w;
	uint64_t epoch;

	cpc_fe_write_begin(&f->fe, &w, BLOCK(1), &iov, 1, NULL, true);
	assert_int_equal(flush(f), 0);
	epoch = cpc_fe_write_complete(&f->fe, &w, 0);
	assert_false(cpc_flush_epoch_covered(&f->fe, epoch));
	assert_int_equal(stats_of(f).unflushed_bytes, CPC_BLOCK_SIZE);
	assert_int_equal(flush(f), 0);
	assert_true(cpc_flush_epoch_covered(&f->fe, epoch));
	cpc_free(iov.iov_base);
}

/* ---- failed flushes ---- */

static void a_failed_flush_is_repaired_by_the_next(void **state)
{
	struct fixture *f = *state;

	for (uint64_t i = 0; i < 600; i++)
		write_data(f, i, 'a' + (int)(i % 20));
	fail_flush(f, 1, CPC_FAULT_DROP_CACHED);
	assert_int_equal(flush(f), -EIO);
	assert_int_equal(cpc_flush_epoch_failures(&f->fe), 1);
	assert_int_equal(cpc_powercut_nr_pending(f->pc), 0);
	assert_int_equal(stable_tag(f, 1), 0);
	assert_int_equal(flush(f), 0);
	for (uint64_t i = 0; i < 600; i++)
		assert_int_equal(stable_tag(f, i), 'a' + (int)(i % 20));
	assert_int_equal(stats_of(f).repaired_blocks, 600);
	assert_int_equal(stats_of(f).flushes[CPC_FLUSH_REPAIR], 1);
	assert_int_equal(f->broken_calls, 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(stats_of(f).repaired_blocks, 600);
}

static void writes_after_the_failure_need_no_repair(void **state)
{
	struct fixture *f = *state;

	write_data(f, 1, 'a');
	fail_flush(f, 1, CPC_FAULT_DROP_CACHED);
	assert_int_equal(flush(f), -EIO);
	write_data(f, 2, 'b');
	assert_int_equal(flush(f), 0);
	assert_int_equal(stats_of(f).repaired_blocks, 1);
	assert_int_equal(stable_tag(f, 1), 'a');
	assert_int_equal(stable_tag(f, 2), 'b');
}

static void lost_bytes_break_the_pool(void **state)
{
	struct fixture *f = *state;

	write_data(f, 1, 'a');
	fail_flush(f, 1, CPC_FAULT_DROP);
	assert_int_equal(flush(f), -EIO);
	assert_false(cpc_flush_epoch_broken(&f->fe));
	assert_int_equal(flush(f), -EIO);
	assert_true(cpc_flush_epoch_broken(&f->fe));
	assert_int_equal(f->broken_calls, 1);
	assert_int_equal(flush(f), -EIO);
	assert_int_equal(f->broken_calls, 1);
	assert_int_equal(cpc_powercut_count(f->pc, CPC_POWERCUT_FLUSH), 1);
}

static void an_unreadable_block_breaks_the_pool(void **state)
{
	struct fixture *f = *state;

	write_data(f, 1, 'a');
	fail_flush(f, 1, CPC_FAULT_FAIL);
	assert_int_equal(flush(f), -EIO);
	cpc_powercut_fail(f->pc, CPC_POWERCUT_READ, 1, false, -EIO);
	assert_int_equal(flush(f), -EIO);
	assert_true(cpc_flush_epoch_broken(&f->fe));
}

static void a_repair_that_cannot_write_is_tried_again(void **state)
{
	struct fixture *f = *state;

	write_data(f, 1, 'a');
	fail_flush(f, 1, CPC_FAULT_DROP_CACHED);
	assert_int_equal(flush(f), -EIO);
	cpc_powercut_fail(f->pc, CPC_POWERCUT_WRITE, 1, false, -ENOSPC);
	assert_int_equal(flush(f), -ENOSPC);
	assert_int_equal(cpc_flush_epoch_failures(&f->fe), 2);
	assert_int_equal(flush(f), 0);
	assert_int_equal(stable_tag(f, 1), 'a');
	assert_false(cpc_flush_epoch_broken(&f->fe));
}

static void three_failures_in_a_row_break_the_pool(void **state)
{
	struct fixture *f = *state;

	fail_flush(f, 1, CPC_FAULT_FAIL);
	fail_flush(f, 2, CPC_FAULT_FAIL);
	assert_int_equal(flush(f), -EIO);
	assert_int_equal(flush(f), -EIO);
	assert_int_equal(flush(f), 0);
	cpc_powercut_fail(f->pc, CPC_POWERCUT_FLUSH, 1, true, -EIO);
	assert_int_equal(flush(f), -EIO);
	assert_int_equal(flush(f), -EIO);
	assert_false(cpc_flush_epoch_broken(&f->fe));
	assert_int_equal(flush(f), -EIO);
	assert_true(cpc_flush_epoch_broken(&f->fe));
	cpc_powercut_clear_faults(f->pc);
	assert_int_equal(flush(f), -EIO);
	assert_int_equal(f->broken_calls, 1);
}

static void the_newest_write_of_a_block_counts(void **state)
{
	struct fixture *f = *state;
	struct cpc_powercut_fault fail = {
	    .op = CPC_POWERCUT_WRITE, .action = CPC_FAULT_FAIL_TORN, .nth = 1, .error = -EIO};

	write_data(f, 1, 'a');
	write_data(f, 1, 'b');
	write_data(f, 2, 'a');
	write_data(f, 3, 'a');
	write_data(f, 4, 'a');
	assert_int_equal(cpc_fe_discard(&f->fe, BLOCK(2), BLOCK(2)), 0);
	write_data(f, 3, 'c');
	cpc_powercut_add_fault(f->pc, &fail);
	assert_int_equal(write_data(f, 4, 'd'), -EIO);
	fail_flush(f, 1, CPC_FAULT_DROP_CACHED);
	assert_int_equal(flush(f), -EIO);
	write_data(f, 1, 'e');
	assert_int_equal(flush(f), 0);
	assert_int_equal(stable_tag(f, 1), 'e');
	assert_int_equal(stable_tag(f, 3), 'c');
	assert_int_equal(stats_of(f).repaired_blocks, 1);
}

static void a_write_in_flight_over_a_failed_flush_is_repaired_later(void **state)
{
	struct fixture *f = *state;
	struct cpc_powercut_fault drop = {
	    .op = CPC_POWERCUT_FLUSH, .action = CPC_FAULT_DROP_CACHED, .nth = 1, .error = -EIO};
	struct iovec iov = {test_buf(CPC_BLOCK_SIZE), CPC_BLOCK_SIZE};
	struct cpc_fe_write w;
	uint64_t epoch;

	memset(iov.iov_base, 'a', CPC_BLOCK_SIZE);
	cpc_fe_write_begin(&f->fe, &w, BLOCK(1), &iov, 1, NULL, true);
	assert_int_equal(test_put(f->b, 1, 'a'), 0); /* done, but not yet reaped */
	cpc_powercut_add_fault(f->pc, &drop);
	assert_int_equal(flush(f), -EIO);
	assert_int_equal(flush(f), 0);
	epoch = cpc_fe_write_complete(&f->fe, &w, 0);
	assert_false(cpc_flush_epoch_covered(&f->fe, epoch));
	assert_int_equal(stable_tag(f, 1), 0);
	assert_int_equal(flush(f), 0);
	assert_true(cpc_flush_epoch_covered(&f->fe, epoch));
	assert_int_equal(stable_tag(f, 1), 'a');
	cpc_free(iov.iov_base);
}

static void a_repair_leaves_blocks_being_written_alone(void **state)
{
	struct fixture *f = *state;
	struct call writer;

	write_data(f, 0, 'a');
	write_data(f, 1, 'a');
	write_data(f, 2, 'a');
	fail_flush(f, 1, CPC_FAULT_DROP_CACHED);
	assert_int_equal(flush(f), -EIO);
	cpc_powercut_hold(f->pc, CPC_HOLD_WRITE(CPC_CAUSE_DATA));
	start_write(f, &writer);
	cpc_powercut_wait_held(f->pc, 1);
	assert_int_equal(flush(f), 0);
	assert_int_equal(stats_of(f).repaired_blocks, 2);
	cpc_powercut_release(f->pc);
	pthread_join(writer.thread, NULL);
	assert_int_equal(flush(f), 0);
	assert_int_equal(stable_tag(f, 0), 'a');
	assert_int_equal(stable_tag(f, 1), 'w');
	assert_int_equal(stable_tag(f, 2), 'a');
}

static void a_write_waits_while_its_block_is_repaired(void **state)
{
	struct fixture *f = *state;
	struct call flusher, writer;

	write_data(f, 1, 'a');
	fail_flush(f, 1, CPC_FAULT_DROP_CACHED);
	assert_int_equal(flush(f), -EIO);
	cpc_powercut_hold(f->pc, CPC_HOLD_WRITE(CPC_CAUSE_REPAIR));
	start_flush(f, &flusher);
	cpc_powercut_wait_held(f->pc, 1);
	start_write(f, &writer);
	usleep(20000);
	assert_int_equal(test_get(f->b, 1), 'a'); /* the write has not overtaken */
	assert_int_equal(write_data(f, 2, 'b'), 0);
	cpc_powercut_release(f->pc);
	pthread_join(flusher.thread, NULL);
	pthread_join(writer.thread, NULL);
	assert_int_equal(flusher.result, 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(stable_tag(f, 1), 'w');
	assert_int_equal(stable_tag(f, 2), 'b');
}

static void superblocks_are_not_tracked(void **state)
{
	struct fixture *f = *state;
	uint64_t failures = cpc_flush_epoch_failures(&f->fe);

	assert_int_equal(write_tag(f, 1, 's', CPC_CAUSE_SUPER), 0);
	fail_flush(f, 1, CPC_FAULT_DROP);
	assert_int_equal(flush(f), -EIO);
	assert_int_not_equal(cpc_flush_epoch_failures(&f->fe), failures);
	assert_int_equal(flush(f), 0);
	assert_int_equal(stable_tag(f, 1), 0);
}

static void checksums_may_come_from_the_caller(void **state)
{
	struct fixture *f = *state;
	char *buf = test_buf(2 * CPC_BLOCK_SIZE);
	uint32_t csums[2];

	memset(buf + CPC_BLOCK_SIZE, 'z', CPC_BLOCK_SIZE);
	csums[0] = cpc_crc32c(0, buf, CPC_BLOCK_SIZE);
	csums[1] = cpc_crc32c(0, buf + CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);
	cpc_fe_write(&f->fe, BLOCK(1), buf, 2 * CPC_BLOCK_SIZE, CPC_CAUSE_LOG, csums);
	fail_flush(f, 1, CPC_FAULT_DROP_CACHED);
	assert_int_equal(flush(f), -EIO);
	assert_int_equal(flush(f), 0);
	assert_int_equal(stable_tag(f, 2), 'z');
	csums[1]++;
	cpc_fe_write(&f->fe, BLOCK(1), buf, 2 * CPC_BLOCK_SIZE, CPC_CAUSE_LOG, csums);
	fail_flush(f, 1, CPC_FAULT_DROP_CACHED);
	assert_int_equal(flush(f), -EIO);
	assert_int_equal(flush(f), -EIO);
	assert_true(cpc_flush_epoch_broken(&f->fe));
	cpc_free(buf);
}

/* ---- no memory ---- */

static void *no_alloc(size_t align, size_t size)
{
	return NULL;
}

static void write_without_memory(struct fixture *f, uint64_t block, int tag)
{
	char *buf = test_buf(CPC_BLOCK_SIZE);

	memset(buf, tag, CPC_BLOCK_SIZE);
	cpc_hooks.alloc = no_alloc;
	assert_int_equal(
	    cpc_fe_write(&f->fe, BLOCK(block), buf, CPC_BLOCK_SIZE, CPC_CAUSE_DATA, NULL), 0);
	cpc_hooks.alloc = cpc_hooks_default.alloc;
	cpc_free(buf);
}

static void without_memory_writes_go_on_until_a_flush_fails(void **state)
{
	struct fixture *f = *state;

	write_without_memory(f, 1, 'a');
	assert_int_equal(flush(f), 0);
	assert_int_equal(stable_tag(f, 1), 'a');
	fail_flush(f, 1, CPC_FAULT_FAIL);
	assert_int_equal(flush(f), -EIO);
	assert_int_equal(flush(f), 0);
	write_without_memory(f, 1, 'b');
	fail_flush(f, 1, CPC_FAULT_FAIL);
	assert_int_equal(flush(f), -EIO);
	assert_true(cpc_flush_epoch_broken(&f->fe));
	assert_int_equal(f->broken_calls, 1);
}

static void a_repair_without_memory_is_tried_again(void **state)
{
	struct fixture *f = *state;

	write_data(f, 1, 'a');
	fail_flush(f, 1, CPC_FAULT_DROP_CACHED);
	assert_int_equal(flush(f), -EIO);
	cpc_hooks.alloc = no_alloc;
	assert_int_equal(flush(f), -ENOMEM);
	cpc_hooks.alloc = cpc_hooks_default.alloc;
	assert_int_equal(flush(f), 0);
	assert_int_equal(stable_tag(f, 1), 'a');
}

/* ---- through a queue ---- */

static void count_done(struct cpc_io *io)
{
	cpc_assert(io->result == 0);
	(*(unsigned *)io->priv)++;
}

static void queued_writes_complete_in_their_epoch(void **state)
{
	struct fixture *f = *state;
	struct cpc_ioq *q = cpc_ioq_get(f->b);
	struct iovec iov = {test_buf(CPC_BLOCK_SIZE), CPC_BLOCK_SIZE};
	unsigned done = 0;
	struct cpc_io io = {.op = CPC_IO_WRITE,
			    .bytenr = BLOCK(3),
			    .iov = &iov,
			    .nr_iov = 1,
			    .fe = &f->fe,
			    .done = count_done,
			    .priv = &done};

	memset(iov.iov_base, 'q', CPC_BLOCK_SIZE);
	assert_true(cpc_ioq_is_sync(q));
	cpc_ioq_submit(q, &io);
	cpc_ioq_wait(q);
	assert_int_equal(done, 1);
	assert_false(cpc_flush_epoch_covered(&f->fe, io.epoch));
	fail_flush(f, 1, CPC_FAULT_DROP_CACHED);
	assert_int_equal(flush(f), -EIO);
	assert_int_equal(flush(f), 0);
	assert_true(cpc_flush_epoch_covered(&f->fe, io.epoch));
	assert_int_equal(stable_tag(f, 3), 'q');
	cpc_ioq_put(f->b, q);
	cpc_free(iov.iov_base);
}

/* ---- many threads ---- */

#define STRESS_THREADS 6
#define STRESS_BLOCKS  16
#define STRESS_ROUNDS  150 /* at least as many device flushes, all failures among them */
#define NR_FAILURES    12

struct stress {
	struct fixture *f;
	unsigned number;
	pthread_t thread;
	int promised[STRESS_BLOCKS]; /* tags that a good flush has answered */
	_Atomic unsigned *failures;
};

/* Writes its own blocks; after a good flush the medium has to hold them. */
static void *stress_run(void *arg)
{
	struct stress *s = arg;
	unsigned seed = s->number;
	int written[STRESS_BLOCKS] = {0};

	for (int round = 0; round < STRESS_ROUNDS; round++) {
		for (int i = 0; i < 4; i++) {
			int block = rand_r(&seed) % STRESS_BLOCKS;

			written[block] = 1 + rand_r(&seed) % 250;
			cpc_assert(!write_data(s->f, s->number * STRESS_BLOCKS + (unsigned)block,
					       written[block]));
		}
		if (flush(s->f)) {
			atomic_fetch_add(s->failures, 1);
			continue;
		}
		for (unsigned i = 0; i < STRESS_BLOCKS; i++)
			cpc_assert(stable_tag(s->f, s->number * STRESS_BLOCKS + i) == written[i]);
	}
	return NULL;
}

static void no_answered_flush_is_lost_under_failures(void **state)
{
	struct fixture *f = *state;
	struct stress threads[STRESS_THREADS];
	_Atomic unsigned failures = 0;

	cpc_powercut_set_flush_delay(f->pc, 50);
	for (unsigned i = 0; i < NR_FAILURES; i++)
		fail_flush(f, 5 + 9 * i, CPC_FAULT_DROP_CACHED);
	for (unsigned i = 0; i < CPC_ARRAY_SIZE(threads); i++) {
		threads[i] = (struct stress){.f = f, .number = i, .failures = &failures};
		assert_int_equal(
		    cpc_thread_start(&threads[i].thread, "stress", stress_run, &threads[i]), 0);
	}
	for (unsigned i = 0; i < CPC_ARRAY_SIZE(threads); i++)
		pthread_join(threads[i].thread, NULL);
	assert_false(cpc_flush_epoch_broken(&f->fe));
	assert_int_equal(cpc_flush_epoch_failures(&f->fe), NR_FAILURES);
	assert_true(failures >= NR_FAILURES);
}

static void quiet(enum cpc_log_level level, const char *line)
{
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_good_flush_covers_what_had_completed),
	    TEST(pressure_is_told_above_the_bound),
	    TEST(a_caller_never_joins_a_flush_that_has_started),
	    TEST(many_callers_share_one_flush),
	    TEST(all_who_joined_a_failed_flush_see_the_error),
	    TEST(a_write_in_flight_is_not_covered),
	    TEST(a_failed_flush_is_repaired_by_the_next),
	    TEST(writes_after_the_failure_need_no_repair),
	    TEST(lost_bytes_break_the_pool),
	    TEST(an_unreadable_block_breaks_the_pool),
	    TEST(a_repair_that_cannot_write_is_tried_again),
	    TEST(three_failures_in_a_row_break_the_pool),
	    TEST(the_newest_write_of_a_block_counts),
	    TEST(a_write_in_flight_over_a_failed_flush_is_repaired_later),
	    TEST(a_repair_leaves_blocks_being_written_alone),
	    TEST(a_write_waits_while_its_block_is_repaired),
	    TEST(superblocks_are_not_tracked),
	    TEST(checksums_may_come_from_the_caller),
	    TEST(without_memory_writes_go_on_until_a_flush_fails),
	    TEST(a_repair_without_memory_is_tried_again),
	    TEST(queued_writes_complete_in_their_epoch),
	    TEST(no_answered_flush_is_lost_under_failures),
	};

	cpc_log_set_sink(quiet);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
