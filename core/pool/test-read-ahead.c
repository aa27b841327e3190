/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What large sequential reads read ahead never shows anything but what was written last. On a real
 * file, for devices in memory have no reads in flight; CPC_TEST_SEED repeats a run.
 */
#include "pool/test-pool-rig.h"

#include <liburing.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define VOLUME_BYTES (24 * MIB)
#define ROUNDS	     400u

struct rig {
	char path[64];
	struct cpc_pool *pool;
	struct cpc_volume *vol;
	uint8_t *content, *buf;
	uint64_t state;
};

static uint64_t rnd(struct rig *r, uint64_t below)
{
	r->state = r->state * 6364136223846793005ull + 1442695040888963407ull;
	return (r->state >> 33) % below;
}

static uint64_t seed(void)
{
	const char *env = getenv("CPC_TEST_SEED");
	uint64_t value = env ? strtoull(env, NULL, 0) : (uint64_t)time(NULL);

	print_message("CPC_TEST_SEED=%llu\n", (unsigned long long)value);
	return value;
}

static void need_uring(void)
{
	struct io_uring ring;

	if (io_uring_queue_init(8, &ring, 0))
		skip();
	io_uring_queue_exit(&ring);
}

static void add_read_ahead(void *ctx, const struct cpc_stat *stat)
{
	if (!strcmp(stat->name, "cache.read_ahead"))
		*(uint64_t *)ctx = stat->value;
}

static uint64_t read_ahead(struct rig *r)
{
	uint64_t blocks = UINT64_MAX;

	cpc_pool_stats(r->pool, add_read_ahead, &blocks);
	assert_true(blocks != UINT64_MAX);
	return blocks;
}

/* --- requests, and what they should do --- */

static void write_at(struct rig *r, uint64_t offset, uint64_t len)
{
	for (uint64_t i = 0; i < len; i++)
		r->content[offset + i] = (uint8_t)(rnd(r, 255) + 1);
	assert_int_equal(cpc_volume_write(r->vol, r->content + offset, len, offset, 0), 0);
}

static void clear_at(struct rig *r, uint64_t offset, uint64_t len, bool trim)
{
	assert_int_equal(trim ? cpc_volume_trim(r->vol, len, offset, 0)
			      : cpc_volume_zero(r->vol, len, offset, 0),
			 0);
	memset(r->content + offset, 0, len);
}

static void read_at(struct rig *r, uint64_t offset, uint64_t len)
{
	memset(r->buf, 0xa5, len);
	assert_int_equal(cpc_volume_read(r->vol, r->buf, len, offset), 0);
	if (memcmp(r->buf, r->content + offset, len))
		fail_msg("%llu bytes at %llu are not what was written", (unsigned long long)len,
			 (unsigned long long)offset);
}

static void open_pool(struct rig *r)
{
	struct cpc_pool_options opts;

	cpc_pool_options_init(&opts);
	opts.cache = CPC_CACHE_MIN;
	assert_int_equal(cpc_pool_open(r->path, &opts, &r->pool, &pool_rig_err), 0);
	assert_int_equal(cpc_pool_start(r->pool, &pool_rig_err), 0);
}

static void close_pool(struct rig *r)
{
	cpc_pool_close_volume(r->pool, r->vol);
	assert_int_equal(cpc_pool_shutdown(r->pool), 0);
	cpc_pool_close(r->pool);
}

/* Nothing is in the cache then; large reads put nothing into it. */
static void reopen(struct rig *r)
{
	close_pool(r);
	open_pool(r);
	assert_int_equal(cpc_pool_open_volume(r->pool, "a", &r->vol), 0);
}

static void make(struct rig *r)
{
	struct cpc_format_options format = {.size = 64 * MIB, .force = true};
	int fd;

	need_uring();
	snprintf(r->path, sizeof(r->path), "/tmp/cpc-test-ahead.XXXXXX");
	fd = mkstemp(r->path);
	assert_true(fd >= 0);
	close(fd);
	unlink(r->path); /* formatting makes it */
	r->content = calloc(1, VOLUME_BYTES);
	r->buf = malloc(VOLUME_BYTES);
	assert_true(r->content && r->buf);
	assert_int_equal(cpc_pool_format(r->path, &format, &pool_rig_err), 0);
	open_pool(r);
	assert_int_equal(cpc_pool_create_volume(r->pool, "a", VOLUME_BYTES, &pool_rig_err), 0);
	assert_int_equal(cpc_pool_open_volume(r->pool, "a", &r->vol), 0);
}

static void finish(struct rig *r)
{
	close_pool(r);
	unlink(r->path);
	free(r->content);
	free(r->buf);
}

/* --- tests --- */

static void a_sequential_reader_gets_what_was_read_ahead(void **state)
{
	struct rig r = {.state = 1};
	uint64_t at, len;

	make(&r);
	write_at(&r, 0, 20 * MIB); /* and a hole */
	reopen(&r);
	for (at = 0; at < VOLUME_BYTES; at += MIB)
		read_at(&r, at, MIB);
	assert_int_equal(read_ahead(&r), 19 * 256); /* all but the first */
	for (at = 0, len = 300 << 10; at + len <= VOLUME_BYTES; at += len)
		read_at(&r, at, len);
	assert_true(read_ahead(&r) > 19 * 256);
	for (at = 0, len = 3 * MIB; at < VOLUME_BYTES; at += len)
		read_at(&r, at, len);
	/* somewhere else, and backwards: nothing */
	len = read_ahead(&r);
	for (at = 18 * MIB; at; at -= MIB)
		read_at(&r, at, MIB);
	assert_int_equal(read_ahead(&r), len);
	finish(&r);
}

static void change(struct rig *r, uint64_t offset, unsigned kind)
{
	switch (kind) {
	case 0:
		write_at(r, offset + 8 * 4096, 4096);
		break;
	case 1:
		write_at(r, offset + 123456, 512);
		break;
	case 2:
		write_at(r, offset, MIB);
		break;
	case 3:
		/* whole blocks: of others a trim takes nothing */
		clear_at(r, cpc_align_down(offset, 4096) + 65536, 131072, true);
		break;
	default:
		clear_at(r, offset, MIB, false);
	}
}

/* `kept`: 0 in memory, 1 flushed and out of the cache, 2 committed, too, and its old blocks used
 * for something else. */
static void keep(struct rig *r, unsigned kept)
{
	if (!kept)
		return;
	assert_int_equal(cpc_volume_flush(r->vol), 0);
	assert_int_equal(cpc_volume_cache(r->vol, 4 * MIB, 8 * MIB), 0);
	if (kept < 2)
		return;
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(cpc_pool_commit(r->pool), 0);
		write_at(r, 16 * MIB, 8 * MIB);
		assert_int_equal(cpc_volume_flush(r->vol), 0);
	}
}

static void what_changes_after_it_was_read_ahead_is_read_as_it_is(void **state)
{
	struct rig r = {.state = 2};

	make(&r);
	write_at(&r, 0, VOLUME_BYTES);
	for (unsigned kind = 0; kind < 5; kind++) {
		for (unsigned kept = 0; kept < 3; kept++) {
			reopen(&r);
			read_at(&r, 0, MIB);
			read_at(&r, MIB, MIB);
			change(&r, 2 * MIB, kind);
			keep(&r, kept);
			read_at(&r, 2 * MIB, MIB);
			write_at(&r, 2 * MIB, MIB);
		}
	}
	finish(&r);
}

/* Streams, each going on, starting over or jumping, with changes between. */
static void random_streams_and_changes_agree(void **state)
{
	struct rig r = {.state = seed()};
	uint64_t at = 0, len;

	make(&r);
	write_at(&r, 0, VOLUME_BYTES);
	reopen(&r);
	for (unsigned i = 0; i < ROUNDS; i++) {
		len = (256 << 10) + rnd(&r, 3 * MIB / 4);
		if (rnd(&r, 100) < 60)
			len = MIB;
		if (rnd(&r, 100) < 8 || at + len > VOLUME_BYTES)
			at = rnd(&r, VOLUME_BYTES - 2 * MIB);
		read_at(&r, at, len);
		at += len;
		if (rnd(&r, 100) < 30 && at + MIB <= VOLUME_BYTES)
			change(&r, at, (unsigned)rnd(&r, 5));
		if (rnd(&r, 100) < 20)
			assert_int_equal(cpc_volume_flush(r.vol), 0);
		if (rnd(&r, 100) < 10)
			assert_int_equal(cpc_pool_commit(r.pool), 0);
	}
	assert_true(read_ahead(&r) > 0);
	finish(&r);
}

/* A clock on which nothing is old before the test says so. */
static _Atomic uint64_t clock_shift;

static uint64_t slow_clock(void)
{
	return cpc_hooks_default.monotonic_ns() / 1000 + atomic_load(&clock_shift);
}

#define STREAMS 12u
#define KEPT	8u

static void open_streams(struct rig *r, struct cpc_volume **vol)
{
	char name[8];

	write_at(r, 0, 3 * MIB);
	for (unsigned i = 0; i < STREAMS; i++) {
		snprintf(name, sizeof(name), "v%u", i);
		assert_int_equal(cpc_pool_create_volume(r->pool, name, 3 * MIB, &pool_rig_err), 0);
		assert_int_equal(cpc_pool_open_volume(r->pool, name, &vol[i]), 0);
		assert_int_equal(cpc_volume_write(vol[i], r->content, 3 * MIB, 0, 0), 0);
		cpc_pool_close_volume(r->pool, vol[i]);
	}
	reopen(r);
	for (unsigned i = 0; i < STREAMS; i++) {
		snprintf(name, sizeof(name), "v%u", i);
		assert_int_equal(cpc_pool_open_volume(r->pool, name, &vol[i]), 0);
	}
}

/* Return: blocks of it that had been read ahead. */
static uint64_t read_stream(struct rig *r, struct cpc_volume *vol, uint64_t at)
{
	uint64_t before = read_ahead(r);

	assert_int_equal(cpc_volume_read(vol, r->buf, MIB, at), 0);
	assert_memory_equal(r->buf, r->content + at, MIB);
	return read_ahead(r) - before;
}

static void streams_take_no_place_from_each_other_until_they_are_old(void **state)
{
	struct rig r = {.state = 3};
	struct cpc_volume *vol[STREAMS];
	char name[8];

	cpc_hooks.monotonic_ns = slow_clock;
	make(&r);
	open_streams(&r, vol);
	for (uint64_t at = 0; at < 3 * MIB; at += MIB) {
		for (unsigned i = 0; i < STREAMS; i++)
			assert_int_equal(read_stream(&r, vol[i], at), at && i < KEPT ? 256 : 0);
	}
	for (uint64_t at = 0; at < 2 * MIB; at += MIB) {
		for (unsigned i = 0; i < STREAMS; i++)
			read_stream(&r, vol[i], at);
	}
	/* the first is the oldest, and old enough now */
	atomic_fetch_add(&clock_shift, 2000000000u);
	read_stream(&r, vol[KEPT], 0);
	read_stream(&r, vol[KEPT], MIB);
	assert_int_equal(read_stream(&r, vol[0], 2 * MIB), 0);
	assert_int_equal(read_stream(&r, vol[1], 2 * MIB), 256);
	assert_int_equal(read_stream(&r, vol[KEPT], 2 * MIB), 256);
	/* those of volumes that go are thrown away */
	for (unsigned i = 0; i < STREAMS; i++) {
		snprintf(name, sizeof(name), "v%u", i);
		cpc_pool_close_volume(r.pool, vol[i]);
		if (i % 2)
			assert_int_equal(cpc_pool_delete(r.pool, name, &pool_rig_err), 0);
	}
	finish(&r);
	cpc_hooks.monotonic_ns = cpc_hooks_default.monotonic_ns;
}

/* --- several threads --- */

#define REGIONS	     8u /* of a MiB */
#define WRITER_TURNS 1500u

struct crowd {
	struct rig *r;
	_Atomic uint32_t
	    answered[REGIONS]; /* the last number whose write of the region was answered */
	_Atomic bool done;
	_Atomic uint64_t passes;
};

/* One pass over the regions: no block is older than what was answered before its read began. */
static void *read_pass(void *arg)
{
	struct crowd *c = arg;
	uint8_t *buf = malloc(MIB);
	uint32_t number, least;

	assert_non_null(buf);
	for (uint64_t region = 0; region < REGIONS; region++) {
		least = atomic_load(&c->answered[region]);
		assert_int_equal(cpc_volume_read(c->r->vol, buf, MIB, region * MIB), 0);
		for (uint64_t at = 0; at < MIB; at += 4096) {
			memcpy(&number, buf + at, sizeof(number));
			if (number < least)
				fail_msg("a block says %u after %u was answered", number, least);
		}
	}
	atomic_fetch_add(&c->passes, 1);
	free(buf);
	return NULL;
}

/* Each pass in a thread that ends: reads it has begun ahead outlive it. */
static void *reader(void *arg)
{
	struct crowd *c = arg;
	pthread_t thread;

	while (!atomic_load(&c->done)) {
		assert_int_equal(pthread_create(&thread, NULL, read_pass, c), 0);
		pthread_join(thread, NULL);
	}
	return NULL;
}

/* Volumes that come, are read, and go. */
static void *passer_by(void *arg)
{
	struct crowd *c = arg;
	uint8_t *buf = calloc(1, MIB);
	struct cpc_volume *vol;
	struct cpc_error err;

	assert_non_null(buf);
	while (!atomic_load(&c->done)) {
		assert_int_equal(cpc_pool_create_volume(c->r->pool, "t", 3 * MIB, &err), 0);
		assert_int_equal(cpc_pool_open_volume(c->r->pool, "t", &vol), 0);
		assert_int_equal(cpc_volume_write(vol, buf, MIB, MIB, 0), 0);
		assert_int_equal(cpc_volume_read(vol, buf, MIB, 0), 0);
		cpc_pool_close_volume(c->r->pool, vol);
		assert_int_equal(cpc_pool_delete(c->r->pool, "t", &err), 0);
	}
	free(buf);
	return NULL;
}

/* Numbers each block of a region, in one large write or many small ones. */
static void write_region(struct crowd *c, uint64_t region, uint32_t number, bool large)
{
	uint64_t step = large ? MIB : 32768;
	uint8_t *buf = calloc(1, MIB);

	assert_non_null(buf);
	for (uint64_t at = 0; at < MIB; at += 4096)
		memcpy(buf + at, &number, sizeof(number));
	for (uint64_t at = 0; at < MIB; at += step)
		assert_int_equal(cpc_volume_write(c->r->vol, buf + at, step, region * MIB + at, 0),
				 0);
	free(buf);
	atomic_store(&c->answered[region], number);
}

static void readers_see_no_older_block_than_was_answered(void **state)
{
	struct rig r = {.state = seed()};
	struct crowd c = {.r = &r};
	pthread_t thread[3];

	make(&r);
	for (uint64_t region = 0; region < REGIONS; region++)
		write_region(&c, region, 1, true);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, i < 2 ? reader : passer_by, &c),
				 0);
	for (uint32_t turn = 2; turn < WRITER_TURNS || atomic_load(&c.passes) < 20; turn++) {
		/* mostly pauses, in which reading ahead begins */
		if (rnd(&r, 100) < 95) {
			sched_yield();
			continue;
		}
		write_region(&c, rnd(&r, REGIONS), turn, rnd(&r, 2));
		if (rnd(&r, 100) < 30)
			assert_int_equal(cpc_volume_flush(r.vol), 0);
		if (rnd(&r, 100) < 20)
			assert_int_equal(cpc_pool_commit(r.pool), 0);
	}
	atomic_store(&c.done, true);
	for (unsigned i = 0; i < 3; i++)
		pthread_join(thread[i], NULL);
	finish(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_sequential_reader_gets_what_was_read_ahead),
	    cmocka_unit_test(what_changes_after_it_was_read_ahead_is_read_as_it_is),
	    cmocka_unit_test(random_streams_and_changes_agree),
	    cmocka_unit_test(streams_take_no_place_from_each_other_until_they_are_old),
	    cmocka_unit_test(readers_see_no_older_block_than_was_answered),
	};

	return cmocka_run_group_tests(tests, pool_rig_quiet, NULL);
}
