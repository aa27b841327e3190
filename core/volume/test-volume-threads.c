/* SPDX-License-Identifier: BSD-3-Clause */
/* Requests side by side: with each other, with cuts that are being written, with commits. */
#include "volume/test-rig.h"

#include <sched.h>
#include <stdio.h>
#include <unistd.h>

/* --- one other thread, stopped at the device --- */

static void *flush_volume(void *arg)
{
	struct rig *r = arg;

	return (void *)(intptr_t)cpc_volume_flush(r->vol);
}

static pthread_t start(void *(*fn)(void *arg), void *arg)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, fn, arg), 0);
	return thread;
}

static int join(pthread_t thread)
{
	void *ret;

	assert_int_equal(pthread_join(thread, &ret), 0);
	return (int)(intptr_t)ret;
}

/* A cut of [0, 256 KiB) whose data writes do not come back. */
static pthread_t hold_a_cut(struct rig *r)
{
	pthread_t thread;

	for (uint64_t at = 0; at < MIB / 4; at += 50000)
		rig_write(r, at, 50000);
	cpc_powercut_hold(r->pc, CPC_HOLD_WRITE(CPC_CAUSE_DATA));
	thread = start(flush_volume, r);
	cpc_powercut_wait_held(r->pc, 1);
	return thread;
}

static void a_cut_being_written_is_not_changed_by_later_writes(void **state)
{
	struct rig r = {0};
	pthread_t thread;
	uint8_t *cut;

	rig_make(&r);
	cut = calloc(1, r.volume_size);
	thread = hold_a_cut(&r);
	memcpy(cut, r.ref, r.volume_size);
	for (unsigned i = 0; i < 20; i++)
		rig_write(&r, rig_draw(&r, MIB / 4), 1 + rig_draw(&r, 20000));
	rig_compare_all(&r);
	rig_compare_extents(&r);
	cpc_powercut_release(r.pc);
	assert_int_equal(join(thread), 0);
	rig_compare_all(&r);
	rig_check_accounts(&r);
	rig_close(&r);
	cpc_powercut_crash_random(r.pc, 1);
	rig_open(&r);
	memcpy(r.ref, cut, r.volume_size);
	rig_compare_all(&r);
	free(cut);
	rig_finish(&r);
}

/* --- flushes side by side --- */

#define IN_LINE 8u

static uint64_t log_flushes(struct rig *r)
{
	struct cpc_flush_epoch_stats stats;

	cpc_flush_epoch_get_stats(&r->vol->engine->store->fe, &stats);
	return stats.flushes[CPC_FLUSH_LOG];
}

static void wait_in_line(struct rig *r, size_t nr)
{
	size_t found = 0;

	while (found < nr) {
		struct cpc_list *pos;

		sched_yield();
		found = 0;
		cpc_mutex_lock(&r->vol->flush_lock);
		cpc_list_for_each (pos, &r->vol->flushers)
			found++;
		cpc_mutex_unlock(&r->vol->flush_lock);
	}
}

/* One flush whose cut is held at its data, more data, and a line of others behind it. */
static pthread_t hold_a_line(struct rig *r, pthread_t *line)
{
	pthread_t first = hold_a_cut(r);

	rig_write(r, MIB, 5000);
	for (unsigned i = 0; i < IN_LINE; i++)
		line[i] = start(flush_volume, r);
	wait_in_line(r, IN_LINE);
	return first;
}

static void flushes_that_wait_in_line_share_one_cut_and_one_device_flush(void **state)
{
	struct rig r = {0};
	struct cpc_log_stats before, after;
	pthread_t first, line[IN_LINE];
	uint64_t flushes;

	rig_make(&r);
	rig_flush(&r);
	cpc_log_get_stats(r.vol->engine->log, &before);
	flushes = log_flushes(&r);
	first = hold_a_line(&r, line);
	cpc_powercut_release(r.pc);
	assert_int_equal(join(first), 0);
	for (unsigned i = 0; i < IN_LINE; i++)
		assert_int_equal(join(line[i]), 0);
	cpc_log_get_stats(r.vol->engine->log, &after);
	assert_int_equal(after.records - before.records, 2);
	assert_int_equal(r.vol->last_batch, IN_LINE);
	/* the first may find that the second has covered it */
	assert_in_range(log_flushes(&r) - flushes, 1, 2);
	rig_close(&r);
	cpc_powercut_crash_random(r.pc, 1);
	rig_open(&r);
	rig_compare_all(&r);
	rig_finish(&r);
}

static void all_in_line_get_the_error_of_their_cut_and_of_their_device_flush(void **state)
{
	static const enum cpc_powercut_op ops[] = {CPC_POWERCUT_FLUSH, CPC_POWERCUT_WRITE};

	for (unsigned i = 0; i < CPC_ARRAY_SIZE(ops); i++) {
		struct rig r = {0};
		pthread_t first, line[IN_LINE];

		rig_make(&r);
		first = hold_a_line(&r, line);
		/* the held writes have passed; of what follows, all fails */
		cpc_powercut_fail(r.pc, ops[i], 1, true, -EIO);
		cpc_powercut_release(r.pc);
		assert_int_equal(join(first), -EIO);
		for (unsigned j = 0; j < IN_LINE; j++)
			assert_int_equal(join(line[j]), -EIO);
		rig_compare_all(&r);
		cpc_powercut_clear_faults(r.pc);
		rig_close(&r);
		rig_open(&r);
		rig_finish(&r);
	}
}

static int add_hole(void *ctx, uint64_t offset, uint64_t len, bool hole)
{
	*(uint64_t *)ctx += hole ? len : 0;
	return 0;
}

/* Data of a direct write needs the device, so only whole holes come past a cut that is held there.
 */
static void a_hole_over_a_cut_being_written_is_newer(void **state)
{
	struct rig r = {0};
	uint64_t holes = 0;
	pthread_t thread;

	rig_make(&r);
	rig_write(&r, 0, MIB);
	thread = hold_a_cut(&r);
	rig_trim(&r, 0, 100000);
	rig_zero(&r, 151552, 20480, 0);
	rig_write(&r, 155000, 3);
	rig_compare_all(&r);
	assert_int_equal(cpc_volume_extents(r.vol, 0, 98304, add_hole, &holes), 0);
	assert_int_equal(holes, 98304);
	cpc_powercut_release(r.pc);
	assert_int_equal(join(thread), 0);
	rig_compare_all(&r);
	rig_compare_extents(&r);
	rig_check_accounts(&r);
	rig_reopen(&r);
	rig_finish(&r);
}

static void *write_large(void *arg)
{
	struct rig *r = arg;

	return (void *)(intptr_t)cpc_volume_write(r->vol, r->buf, MIB, 1000, 0);
}

static void a_large_write_over_a_cut_being_written_is_newer(void **state)
{
	struct rig r = {0};
	pthread_t cut, large;
	uint8_t *at_cut;

	rig_make(&r);
	at_cut = calloc(1, r.volume_size);
	cut = hold_a_cut(&r);
	memcpy(at_cut, r.ref, r.volume_size);
	rig_fill(&r, MIB);
	large = start(write_large, &r);
	cpc_powercut_wait_held(r.pc, 2);
	rig_compare_all(&r); /* not answered: nothing of it is seen */
	cpc_powercut_release(r.pc);
	assert_int_equal(join(cut), 0);
	assert_int_equal(join(large), 0);
	memcpy(r.ref + 1000, r.buf, MIB);
	rig_compare_all(&r);
	rig_check_accounts(&r);
	rig_close(&r);
	cpc_powercut_crash_random(r.pc, 1);
	rig_open(&r);
	/* whole, or not at all */
	assert_int_equal(cpc_volume_read(r.vol, r.back, r.volume_size, 0), 0);
	assert_true(!memcmp(r.back, r.ref, r.volume_size) ||
		    !memcmp(r.back, at_cut, r.volume_size));
	memcpy(r.ref, r.back, r.volume_size);
	free(at_cut);
	rig_finish(&r);
}

struct read_job {
	struct rig *r;
	uint64_t offset, len;
	uint8_t *buf;
};

static void *read_range(void *arg)
{
	struct read_job *job = arg;

	return (void *)(intptr_t)cpc_volume_read(job->r->vol, job->buf, job->len, job->offset);
}

/* A read of [0, 40000) has its placeholders in the cache and waits for the device. */
static pthread_t hold_a_read(struct rig *r, struct read_job *job)
{
	pthread_t thread;

	rig_write(r, 0, 100000);
	rig_reopen(r);
	rig_close(r);
	rig_open(r);
	*job = (struct read_job){r, 0, 40000, calloc(1, 40000)};
	/* the nodes are in memory: the next read of the device is one of data */
	rig_compare(r, 90000, 10000);
	cpc_powercut_hold(r->pc, CPC_HOLD_READ);
	thread = start(read_range, job);
	cpc_powercut_wait_held(r->pc, 1);
	return thread;
}

static void let_read(struct rig *r, struct read_job *job, pthread_t thread, const uint8_t *old)
{
	cpc_powercut_release(r->pc);
	assert_int_equal(join(thread), 0);
	for (uint64_t i = 0; i < job->len; i++)
		assert_true(job->buf[i] == old[i] || job->buf[i] == r->ref[i]);
	rig_compare_all(r); /* and nothing old stays in the cache */
	free(job->buf);
}

static void a_slow_read_does_not_install_what_has_become_old(void **state)
{
	for (unsigned way = 0; way < 3; way++) {
		struct rig r = {0};
		uint8_t *old;
		struct read_job job;
		pthread_t thread;

		rig_make(&r);
		old = malloc(r.volume_size);
		thread = hold_a_read(&r, &job);
		memcpy(old, r.ref, r.volume_size);
		if (way == 0)
			rig_write(&r, 8192, 8192);
		else if (way == 1)
			rig_trim(&r, 4096, 8192);
		else
			rig_write(&r, 0, MIB);
		let_read(&r, &job, thread, old);
		free(old);
		rig_finish(&r);
	}
}

static void a_reader_keeps_the_blocks_that_it_reads(void **state)
{
	struct rig r = {0};
	struct read_job job;
	pthread_t thread;
	uint8_t *old;

	rig_make(&r);
	old = malloc(r.volume_size);
	thread = hold_a_read(&r, &job);
	memcpy(old, r.ref, r.volume_size);
	cpc_powercut_release(r.pc);
	join(thread);
	free(job.buf);
	/* around the cache, so that nothing is there */
	job = (struct read_job){&r, 0, 100000, calloc(1, 100000)};
	rig_close(&r);
	rig_open(&r);
	rig_compare(&r, 90000, 10000);
	cpc_powercut_hold(r.pc, CPC_HOLD_READ);
	thread = start(read_range, &job);
	cpc_powercut_wait_held(r.pc, 1);
	for (unsigned i = 0; i < 8; i++) {
		rig_zero(&r, 0, 102400, CPC_NO_HOLE);
		rig_flush(&r);
	}
	let_read(&r, &job, thread, old);
	free(old);
	rig_finish(&r);
}

static void a_second_reader_does_not_see_a_block_that_is_being_read(void **state)
{
	struct rig r = {0};
	struct read_job first, second;
	pthread_t threads[2];

	rig_make(&r);
	threads[0] = hold_a_read(&r, &first);
	second = (struct read_job){&r, 4096, 20000, calloc(1, 20000)};
	threads[1] = start(read_range, &second);
	usleep(20000);
	cpc_powercut_release(r.pc);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(join(threads[i]), 0);
	assert_memory_equal(first.buf, r.ref, first.len);
	assert_memory_equal(second.buf, r.ref + 4096, second.len);
	free(first.buf);
	free(second.buf);
	rig_compare_all(&r);
	rig_finish(&r);
}

/* Stops the thread that calls it at its n-th allocation. */
static _Thread_local unsigned stop_at;
static _Atomic bool stopped, go_on;

static void *stopping_alloc(size_t align, size_t size)
{
	if (stop_at && --stop_at == 0) {
		stopped = true;
		while (!go_on)
			usleep(1000);
	}
	return cpc_hooks_default.alloc(align, size);
}

static void *commit_slowly(void *arg)
{
	struct rig *r = arg;

	stop_at = 3; /* the list of volumes, the request, then the cut of the second volume */
	return (void *)(intptr_t)cpc_pool_commit(r->pool);
}

/* A merge drops a block that only a held view knows; a commit that has nothing of the volume comes
 * by. */
static void a_commit_without_a_volume_keeps_what_its_readers_need(void **state)
{
	struct rig r = {0};
	struct cpc_error err;
	struct cpc_pool_info info;
	struct cpc_volume *other;
	struct cpc_view *view;
	pthread_t thread;

	rig_make(&r);
	assert_int_equal(cpc_pool_create_volume(r.pool, "w", MIB, &err), 0);
	assert_int_equal(cpc_pool_open_volume(r.pool, "w", &other), 0);
	assert_int_equal(cpc_volume_write(other, r.buf, 4096, 0, 0), 0);
	stopped = go_on = false;
	cpc_hooks.alloc = stopping_alloc;
	thread = start(commit_slowly, &r);
	while (!stopped)
		usleep(1000);
	rig_write(&r, 0, MIB);
	view = cpc_view_get(r.vol);
	rig_write(&r, 0, MIB);
	go_on = true;
	assert_int_equal(join(thread), 0);
	cpc_hooks = cpc_hooks_default;
	cpc_pool_info(r.pool, &info);
	assert_true(info.pinned >= MIB);
	cpc_view_put(r.vol, view);
	cpc_pool_info(r.pool, &info);
	assert_int_equal(info.pinned, 0);
	cpc_pool_close_volume(r.pool, other);
	rig_compare_all(&r);
	rig_finish(&r);
}

static void *zero_range(void *arg)
{
	struct rig *r = arg;

	return (void *)(intptr_t)cpc_volume_zero(r->vol, 8192, 40960, 0);
}

/* While a zero looks up what is there, a cut takes it from the cache to a newer view. */
static void a_zero_sees_what_a_cut_publishes_meanwhile(void **state)
{
	struct rig r = {0};
	pthread_t thread;

	rig_make(&r);
	rig_write(&r, 0, 4096);
	rig_reopen(&r);
	rig_close(&r);
	rig_open(&r);
	rig_write(&r, 40960, 8192);
	cpc_powercut_hold(r.pc, CPC_HOLD_READ);
	thread = start(zero_range, &r);
	cpc_powercut_wait_held(r.pc, 1); /* in the tree, with the old view */
	assert_int_equal(cpc_write_out(r.vol->engine), 0);
	cpc_powercut_release(r.pc);
	assert_int_equal(join(thread), 0);
	memset(r.ref + 40960, 0, 8192);
	rig_compare_all(&r);
	rig_finish(&r);
}

/* --- many threads --- */

#define WRITERS 8u
#define PAIRS	64u /* a writer's own pairs of blocks */

struct load {
	struct rig *r;
	unsigned nr;
	_Atomic bool stop;
	_Atomic uint64_t requests;
};

struct writer_thread {
	struct load *load;
	unsigned nr;
	uint64_t written[PAIRS]; /* newest stamp answered */
};

static uint64_t pair_at(unsigned writer, unsigned pair)
{
	return ((uint64_t)writer * PAIRS + pair) * 2 * CPC_BLOCK_SIZE;
}

/* Two blocks with the same stamp, in one request; now and then both are in a large one. */
static void *write_pairs(void *arg)
{
	struct writer_thread *w = arg;
	struct rig *r = w->load->r;
	static _Thread_local uint64_t buf[2 * CPC_BLOCK_SIZE / 8 * PAIRS];
	uint64_t stamp = 1;

	while (!w->load->stop) {
		unsigned pair = (unsigned)(stamp * 7 % PAIRS);
		unsigned nr = stamp % 16 == 0 ? PAIRS - pair : 1;
		uint64_t len = (uint64_t)nr * 2 * CPC_BLOCK_SIZE;

		for (uint64_t i = 0; i < len / 8; i++)
			buf[i] = stamp;
		if (cpc_volume_write(r->vol, buf, len, pair_at(w->nr, pair), 0))
			return (void *)1;
		for (unsigned i = 0; i < nr; i++)
			w->written[pair + i] = stamp;
		if (stamp % 64 == w->nr && cpc_volume_flush(r->vol))
			return (void *)1;
		stamp++;
		atomic_fetch_add(&w->load->requests, 1);
	}
	return NULL;
}

/* Every pair of what is read has one stamp all over. */
static void assert_pairs(struct rig *r, struct writer_thread *writers, bool newest)
{
	uint64_t buf[2 * CPC_BLOCK_SIZE / 8];

	for (unsigned w = 0; w < WRITERS; w++) {
		for (unsigned p = 0; p < PAIRS; p++) {
			assert_int_equal(cpc_volume_read(r->vol, buf, sizeof(buf), pair_at(w, p)),
					 0);
			for (unsigned i = 1; i < CPC_ARRAY_SIZE(buf); i++)
				assert_int_equal(buf[i], buf[0]);
			if (newest)
				assert_int_equal(buf[0], writers[w].written[p]);
		}
	}
}

static void run_load(struct rig *r, struct writer_thread *writers, unsigned requests,
		     void (*meanwhile)(struct rig *r))
{
	struct load load = {.r = r};
	pthread_t threads[WRITERS];

	for (unsigned w = 0; w < WRITERS; w++) {
		writers[w].load = &load;
		writers[w].nr = w;
		threads[w] = start(write_pairs, &writers[w]);
	}
	while (load.requests < requests) {
		if (meanwhile)
			meanwhile(r);
		usleep(1000);
	}
	load.stop = true;
	for (unsigned w = 0; w < WRITERS; w++)
		assert_int_equal(join(threads[w]), 0);
}

static void read_something(struct rig *r)
{
	static uint64_t buf[2 * CPC_BLOCK_SIZE / 8 * 4];
	uint64_t at = pair_at((unsigned)rig_draw(r, WRITERS), (unsigned)rig_draw(r, PAIRS - 4));

	assert_int_equal(cpc_volume_read(r->vol, buf, sizeof(buf), at), 0);
}

static void a_cut_under_load_is_one_instant(void **state)
{
	static const uint64_t caches[] = {MIB, 8 * MIB};

	for (unsigned i = 0; i < 6; i++) {
		struct rig r = {.threads = true, .cache = caches[i % 2], .volume_size = 8 * MIB};
		static struct writer_thread writers[WRITERS];

		memset(writers, 0, sizeof(writers));
		rig_make(&r);
		run_load(&r, writers, 800, read_something);
		assert_pairs(&r, writers, true);
		/* as a power cut finds it: what commits have made durable, nothing else */
		rig_close(&r);
		cpc_powercut_crash_random(r.pc, i);
		rig_open(&r);
		assert_pairs(&r, writers, false);
		rig_finish(&r);
	}
}

static void commits_under_load_lose_nothing(void **state)
{
	struct rig r = {.threads = true, .cache = 2 * MIB, .dirty = 65536, .volume_size = 8 * MIB};
	static struct writer_thread writers[WRITERS];

	memset(writers, 0, sizeof(writers));
	rig_make(&r);
	run_load(&r, writers, 3000, NULL);
	assert_pairs(&r, writers, true);
	assert_int_equal(cpc_volume_flush(r.vol), 0);
	rig_check_accounts(&r);
	assert_pairs(&r, writers, true);
	rig_close(&r);
	cpc_powercut_crash_random(r.pc, 3);
	rig_open(&r);
	assert_pairs(&r, writers, true);
	rig_finish(&r);
}

/* Blocks go from buffered to direct to hole and back; a reader never sees an older stamp. */
struct monotone {
	struct rig *r;
	_Atomic uint64_t answered;
	_Atomic bool stop;
};

static void *read_monotone(void *arg)
{
	struct monotone *m = arg;
	uint64_t buf[CPC_BLOCK_SIZE / 8];

	while (!m->stop) {
		uint64_t least = m->answered;

		if (cpc_volume_read(m->r->vol, buf, sizeof(buf), 16384) || buf[0] < least)
			return (void *)1;
	}
	return NULL;
}

static void *cut_all_the_time(void *arg)
{
	struct monotone *m = arg;

	while (!m->stop) {
		if (cpc_volume_flush(m->r->vol))
			return (void *)1;
	}
	return NULL;
}

static void readers_never_go_back(void **state)
{
	struct rig r = {.cache = MIB, .threads = true};
	struct monotone m = {.r = &r};
	pthread_t threads[4];

	rig_make(&r);
	for (unsigned i = 0; i < 3; i++)
		threads[i] = start(read_monotone, &m);
	threads[3] = start(cut_all_the_time, &m);
	for (uint64_t stamp = 1; stamp < 1500; stamp++) {
		uint64_t *buf = (uint64_t *)(void *)r.buf;
		uint64_t len = stamp % 3 ? 4096 : 300000;

		for (uint64_t i = 0; i < len / 8; i++)
			buf[i] = stamp;
		assert_int_equal(cpc_volume_write(r.vol, buf, len, len > 4096 ? 0 : 16384, 0), 0);
		m.answered = stamp;
	}
	m.stop = true;
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(join(threads[i]), 0);
	rig_finish(&r);
}

/* Zeroes of what a cut is just publishing must not be lost. */
static void a_zero_after_an_answered_write_is_a_zero(void **state)
{
	struct rig r = {.cache = 4 * MIB, .threads = true};
	struct monotone m = {.r = &r};
	pthread_t thread;
	uint8_t buf[8192];

	rig_make(&r);
	thread = start(cut_all_the_time, &m);
	for (unsigned i = 0; i < 1500; i++) {
		uint64_t at = i % 100 * 8192;

		memset(buf, 1, sizeof(buf));
		assert_int_equal(cpc_volume_write(r.vol, buf, sizeof(buf), at, 0), 0);
		if (i % 3 == 0)
			usleep(rig_draw(&r, 200));
		assert_int_equal(cpc_volume_zero(r.vol, sizeof(buf), at, 0), 0);
		assert_int_equal(cpc_volume_read(r.vol, buf, sizeof(buf), at), 0);
		for (unsigned n = 0; n < sizeof(buf); n++)
			assert_int_equal(buf[n], 0);
	}
	m.stop = true;
	assert_int_equal(join(thread), 0);
	rig_finish(&r);
}

/* Writers of parts of the same blocks lose nothing to each other. */
struct part {
	struct rig *r;
	unsigned nr;
};

static void *write_parts(void *arg)
{
	struct part *p = arg;
	uint8_t buf[512];

	for (unsigned i = 0; i < 300; i++) {
		memset(buf, (int)(i + 1), sizeof(buf));
		if (cpc_volume_write(p->r->vol, buf, 512, i % 10 * 4096 + p->nr * 512, 0))
			return (void *)1;
		if (cpc_volume_read(p->r->vol, buf, 512, i % 10 * 4096 + p->nr * 512) ||
		    buf[0] != (uint8_t)(i + 1) || buf[511] != (uint8_t)(i + 1))
			return (void *)1;
	}
	return NULL;
}

static void writers_of_parts_of_a_block_lose_nothing(void **state)
{
	struct rig r = {.cache = MIB, .threads = true};
	struct part parts[WRITERS];
	pthread_t threads[WRITERS];

	rig_make(&r);
	for (unsigned i = 0; i < WRITERS; i++) {
		parts[i] = (struct part){&r, i};
		threads[i] = start(write_parts, &parts[i]);
	}
	for (unsigned i = 0; i < WRITERS; i++)
		assert_int_equal(join(threads[i]), 0);
	rig_check_accounts(&r);
	rig_finish(&r);
}

static void *write_until_refused(void *arg)
{
	struct writer_thread *w = arg;
	struct rig *r = w->load->r;
	uint8_t buf[9000] = {1};

	for (;;) {
		int ret = cpc_volume_write(r->vol, buf, sizeof(buf), w->nr * 10000, 0);

		if (ret)
			return (void *)(intptr_t)ret;
	}
}

static void a_shutdown_under_load_refuses_what_comes_later(void **state)
{
	struct rig r = {.threads = true};
	struct load load = {.r = &r};
	struct writer_thread writers[WRITERS];
	pthread_t threads[WRITERS];

	rig_make(&r);
	for (unsigned w = 0; w < WRITERS; w++) {
		writers[w] = (struct writer_thread){.load = &load, .nr = w};
		threads[w] = start(write_until_refused, &writers[w]);
	}
	usleep(20000);
	assert_int_equal(cpc_pool_shutdown(r.pool), 0);
	for (unsigned w = 0; w < WRITERS; w++)
		assert_int_equal(join(threads[w]), -ESHUTDOWN);
	rig_finish(&r);
}

/* The background threads: a failing device, then broken, and readers go on. */
static void a_device_that_takes_no_data_makes_the_pool_read_only(void **state)
{
	struct rig r = {.threads = true, .cache = MIB};
	int ret = 0;

	rig_make(&r);
	rig_write(&r, 0, 100000);
	rig_flush(&r);
	cpc_powercut_add_fault(r.pc, &(struct cpc_powercut_fault){
					 .op = CPC_POWERCUT_WRITE,
					 .cause_mask = 1u << CPC_CAUSE_DATA,
					 .nth = 1,
					 .sticky = true,
					 .error = -EIO,
				     });
	for (uint64_t at = 0; !ret; at = (at + 8192) % (4 * MIB)) {
		rig_fill(&r, 8192);
		ret = cpc_volume_write(r.vol, r.buf, 8192, at, 0);
		if (!ret)
			memcpy(r.ref + at, r.buf, 8192);
	}
	assert_int_equal(ret, -EIO);
	assert_false(cpc_pool_healthy(r.pool, NULL, 0));
	assert_int_equal(cpc_volume_flush(r.vol), -EIO);
	rig_compare_all(&r);
	cpc_powercut_clear_faults(r.pc);
	rig_close(&r);
	rig_open(&r);
	rig_finish(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_cut_being_written_is_not_changed_by_later_writes),
	    cmocka_unit_test(flushes_that_wait_in_line_share_one_cut_and_one_device_flush),
	    cmocka_unit_test(all_in_line_get_the_error_of_their_cut_and_of_their_device_flush),
	    cmocka_unit_test(a_hole_over_a_cut_being_written_is_newer),
	    cmocka_unit_test(a_large_write_over_a_cut_being_written_is_newer),
	    cmocka_unit_test(a_slow_read_does_not_install_what_has_become_old),
	    cmocka_unit_test(a_reader_keeps_the_blocks_that_it_reads),
	    cmocka_unit_test(a_second_reader_does_not_see_a_block_that_is_being_read),
	    cmocka_unit_test(a_commit_without_a_volume_keeps_what_its_readers_need),
	    cmocka_unit_test(a_zero_sees_what_a_cut_publishes_meanwhile),
	    cmocka_unit_test(a_cut_under_load_is_one_instant),
	    cmocka_unit_test(commits_under_load_lose_nothing),
	    cmocka_unit_test(readers_never_go_back),
	    cmocka_unit_test(a_zero_after_an_answered_write_is_a_zero),
	    cmocka_unit_test(writers_of_parts_of_a_block_lose_nothing),
	    cmocka_unit_test(a_shutdown_under_load_refuses_what_comes_later),
	    cmocka_unit_test(a_device_that_takes_no_data_makes_the_pool_read_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
