/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The node cache over the power-cut device: nothing but the right node is ever returned, bad copies
 * are healed, what a sync has promised is on the device, and threads may read at once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "backing/flush-epoch.h"
#include "backing/powercut.h"
#include "extent-buffer/extent-buffer.h"
#include "lib/hooks.h"
#include "lib/lock.h"
#include "lib/log.h"

#define POOL_SIZE (256ull << 20)
#define OWNER	  300u
#define NODES	  64u

struct fixture {
	struct cpc_powercut *pc;
	struct cpc_backing *backing;
	struct cpc_flush_epoch fe;
	struct cpc_geometry geo;
	struct cpc_eb_params params;
	struct cpc_eb_cache *cache;
	struct cpc_node_ptr ptr[NODES];
};

static _Atomic unsigned errors_logged;

static void count_errors(enum cpc_log_level level, const char *line)
{
	if (level == CPC_LOG_ERROR)
		errors_logged++;
}

/* A checker that only knows one thing. */
static const char *check(const void *node, uint32_t nodesize, const struct cpc_geometry *geo)
{
	const struct cpc_disk_node *header = node;

	return cpc_get_le32(&header->nritems) ? NULL : "no items";
}

static void open_cache(struct fixture *f, struct cpc_flush_epoch *fe, size_t limit)
{
	f->params.fe = fe;
	f->params.limit = limit;
	assert_int_equal(cpc_eb_cache_create(&f->params, &f->cache), 0);
}

static void create(struct fixture *f, uint32_t nodesize, bool dup)
{
	memset(f, 0, sizeof(*f));
	assert_int_equal(cpc_geometry_init(&f->geo, POOL_SIZE, 1u << 20, nodesize, dup), 0);
	assert_int_equal(cpc_powercut_create(POOL_SIZE, &f->pc), 0);
	assert_int_equal(cpc_powercut_reopen(f->pc, &f->backing), 0);
	cpc_flush_epoch_init(&f->fe, f->backing, NULL, NULL);
	f->params.backing = f->backing;
	f->params.geo = &f->geo;
	memset(f->params.uuid, 7, CPC_UUID_SIZE);
	f->params.checker = check;
	open_cache(f, &f->fe, SIZE_MAX);
	errors_logged = 0;
}

static void destroy(struct fixture *f)
{
	cpc_eb_check(f->cache);
	cpc_eb_cache_destroy(f->cache);
	cpc_flush_epoch_destroy(&f->fe);
	cpc_backing_close(f->backing);
	cpc_powercut_destroy(f->pc);
}

static void reopen(struct fixture *f, size_t limit)
{
	cpc_eb_cache_destroy(f->cache);
	open_cache(f, &f->fe, limit);
}

/* First copies stand side by side, second ones too, elsewhere. */
static void address(const struct fixture *f, unsigned i, uint64_t bytenr[2])
{
	bytenr[0] = (f->geo.data_start << CPC_BLOCK_SHIFT) + (uint64_t)i * f->geo.nodesize;
	bytenr[1] = f->geo.copies == 2 ? bytenr[0] + POOL_SIZE / 2 : 0;
}

static uint8_t tag_of(const struct cpc_eb *eb)
{
	return ((const uint8_t *)eb->data)[100];
}

/* Makes a node with a byte of its own at the place of node `i`, which need not be below NODES. */
static int make_at(struct fixture *f, unsigned i, uint64_t generation, struct cpc_node_ptr *ptr)
{
	uint64_t bytenr[2];
	struct cpc_eb *eb;
	int ret;

	address(f, i, bytenr);
	ret = cpc_eb_alloc(f->cache, bytenr, OWNER, 1, generation, &eb);
	if (ret)
		return ret;
	cpc_put_le32(&((struct cpc_disk_node *)eb->data)->nritems, 1);
	((uint8_t *)eb->data)[100] = (uint8_t)(i + 1);
	ret = cpc_eb_finish(eb, ptr);
	cpc_eb_put(eb);
	return ret;
}

static int make(struct fixture *f, unsigned i, uint64_t generation)
{
	return make_at(f, i, generation, &f->ptr[i]);
}

static void make_all(struct fixture *f, uint64_t generation)
{
	for (unsigned i = 0; i < NODES; i++)
		assert_int_equal(make(f, i, generation), 0);
}

static int flush(struct fixture *f)
{
	return cpc_flush_epoch_flush(&f->fe, CPC_FLUSH_COMMIT);
}

/* All nodes on the device, none in memory. */
static void make_stored(struct fixture *f)
{
	make_all(f, 5);
	assert_int_equal(cpc_eb_sync(f->cache), 0);
	assert_int_equal(flush(f), 0);
	reopen(f, SIZE_MAX);
}

static int read_node(struct fixture *f, unsigned i)
{
	struct cpc_eb *eb;
	int ret = cpc_eb_read(f->cache, &f->ptr[i], OWNER, &eb);

	if (ret)
		return ret;
	assert_int_equal(tag_of(eb), i + 1);
	assert_true(eb->generation == f->ptr[i].generation);
	cpc_eb_put(eb);
	return 0;
}

static struct cpc_eb_stats stats_of(struct fixture *f)
{
	struct cpc_eb_stats stats;

	cpc_eb_stats(f->cache, &stats);
	return stats;
}

static uint64_t reads(struct fixture *f)
{
	return cpc_powercut_count(f->pc, CPC_POWERCUT_READ);
}

static uint64_t writes(struct fixture *f)
{
	return cpc_powercut_count(f->pc, CPC_POWERCUT_WRITE);
}

/* --- life --- */

static void nodes_written_read_back(void **state)
{
	static const uint32_t sizes[] = {4096, 16384, 65536};

	for (unsigned k = 0; k < 6; k++) {
		struct fixture f;

		create(&f, sizes[k / 2], k % 2);
		make_all(&f, 5);
		for (unsigned i = 0; i < NODES; i++)
			assert_int_equal(read_node(&f, i), 0);
		assert_true(reads(&f) == 0);
		assert_true(stats_of(&f).dirty_bytes == NODES * sizes[k / 2]);
		cpc_eb_check(f.cache);
		assert_int_equal(cpc_eb_sync(f.cache), 0);
		assert_true(stats_of(&f).dirty_bytes == 0 && stats_of(&f).writeback_bytes == 0);
		assert_true(stats_of(&f).written == NODES);
		reopen(&f, SIZE_MAX);
		for (unsigned i = 0; i < NODES; i++)
			assert_int_equal(read_node(&f, i), 0);
		assert_true(reads(&f) == NODES);
		destroy(&f);
	}
}

static void neighbours_are_one_write(void **state)
{
	struct fixture f;

	create(&f, 16384, true);
	make_all(&f, 5);
	assert_int_equal(cpc_eb_sync(f.cache), 0);
	/* 64 nodes of 16 KiB are 1 MiB. */
	assert_true(writes(&f) == 2);
	assert_true(stats_of(&f).batches == 2);
	for (unsigned i = 0; i < NODES; i += 2)
		assert_int_equal(make(&f, i, 6), 0);
	assert_int_equal(cpc_eb_sync(f.cache), 0);
	assert_true(writes(&f) == 2 + NODES);
	assert_int_equal(cpc_eb_sync(f.cache), 0);
	assert_true(writes(&f) == 2 + NODES);
	destroy(&f);
}

static void a_bad_new_node_never_enters(void **state)
{
	struct cpc_node_ptr ptr;
	uint64_t bytenr[2];
	struct cpc_eb *eb;
	struct fixture f;

	create(&f, 4096, true);
	address(&f, 0, bytenr);
	assert_int_equal(cpc_eb_alloc(f.cache, bytenr, OWNER, 1, 5, &eb), 0);
	assert_int_equal(cpc_eb_finish(eb, &ptr), -EUCLEAN);
	cpc_eb_put(eb);
	assert_true(stats_of(&f).cached_bytes == 0);
	destroy(&f);
}

static void allocation_drops_what_was_cached_there(void **state)
{
	struct cpc_node_ptr old;
	struct cpc_eb *held, *eb;
	struct fixture f;

	create(&f, 4096, true);
	assert_int_equal(make(&f, 3, 5), 0);
	old = f.ptr[3];
	assert_int_equal(cpc_eb_read(f.cache, &old, OWNER, &held), 0);
	assert_int_equal(make(&f, 3, 6), 0);
	assert_int_equal(read_node(&f, 3), 0);
	assert_int_equal(cpc_eb_read(f.cache, &old, OWNER, &eb), -EUCLEAN);
	assert_int_equal(tag_of(held), 4);
	cpc_eb_put(held);
	cpc_eb_forget(f.cache, f.ptr[3].bytenr[0]);
	assert_true(stats_of(&f).cached_bytes == 0);
	destroy(&f);
}

static void abort_forgets_one_generation(void **state)
{
	struct fixture f;

	create(&f, 4096, true);
	for (unsigned i = 0; i < NODES; i++)
		assert_int_equal(make(&f, i, 5 + i % 2), 0);
	cpc_eb_abort(f.cache, 6);
	cpc_eb_check(f.cache);
	assert_true(stats_of(&f).dirty_bytes == NODES / 2 * 4096);
	for (unsigned i = 0; i < NODES; i++)
		assert_int_equal(read_node(&f, i), i % 2 ? -EUCLEAN : 0);
	assert_int_equal(cpc_eb_sync(f.cache), 0);
	assert_true(stats_of(&f).written == NODES / 2);
	destroy(&f);
}

static void a_read_only_cache_never_writes(void **state)
{
	struct fixture f;

	create(&f, 4096, true);
	make_stored(&f);
	cpc_eb_cache_destroy(f.cache);
	open_cache(&f, NULL, SIZE_MAX);
	cpc_powercut_flip(f.pc, f.ptr[2].bytenr[0] + 200, 3);
	assert_int_equal(read_node(&f, 2), 0);
	assert_true(stats_of(&f).errors == 1 && stats_of(&f).healed == 0);
	assert_int_equal(cpc_eb_sync(f.cache), 0);
	assert_int_equal(make(&f, 10, 9), 0);
	assert_int_equal(read_node(&f, 10), 0);
	assert_int_equal(cpc_eb_sync(f.cache), -EROFS);
	assert_true(writes(&f) == 2);
	destroy(&f);
}

/* --- damage --- */

static void a_bad_copy_is_healed(void **state)
{
	struct fixture f;

	create(&f, 4096, true);
	make_stored(&f);
	cpc_powercut_flip(f.pc, f.ptr[2].bytenr[0] + 200, 3);
	assert_int_equal(read_node(&f, 2), 0);
	assert_true(stats_of(&f).errors == 1 && stats_of(&f).healed == 1);
	assert_true(errors_logged == 0);
	/* Now the other one goes, and the healed one serves. */
	assert_int_equal(flush(&f), 0);
	reopen(&f, SIZE_MAX);
	cpc_powercut_flip(f.pc, f.ptr[2].bytenr[1] + 200, 3);
	assert_int_equal(read_node(&f, 2), 0);
	assert_true(stats_of(&f).errors == 0);
	destroy(&f);
}

static void an_unreadable_copy_is_healed(void **state)
{
	struct fixture f;

	create(&f, 4096, true);
	make_stored(&f);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_READ, 1, false, -EIO);
	assert_int_equal(read_node(&f, 2), 0);
	assert_true(stats_of(&f).healed == 1);
	destroy(&f);
}

static void two_bad_copies_are_damage(void **state)
{
	struct fixture f;

	create(&f, 4096, true);
	make_stored(&f);
	for (unsigned copy = 0; copy < 2; copy++)
		cpc_powercut_flip(f.pc, f.ptr[2].bytenr[copy] + 200, 3);
	assert_int_equal(read_node(&f, 2), -EUCLEAN);
	assert_true(errors_logged == 1);
	assert_int_equal(read_node(&f, 3), 0);
	assert_true(stats_of(&f).cached_bytes == 4096);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_READ, 1, true, -EIO);
	assert_int_equal(read_node(&f, 4), -EIO);
	cpc_powercut_clear_faults(f.pc);
	assert_int_equal(read_node(&f, 4), 0);
	destroy(&f);
}

static void every_flipped_bit_is_noticed(void **state)
{
	struct fixture f;

	create(&f, 4096, false);
	make_stored(&f);
	for (unsigned bit = 0; bit < 4096 * 8; bit += 1 + bit % 7) {
		cpc_powercut_flip(f.pc, f.ptr[0].bytenr[0] + bit / 8, bit % 8);
		assert_int_equal(read_node(&f, 0), -EUCLEAN);
		cpc_powercut_flip(f.pc, f.ptr[0].bytenr[0] + bit / 8, bit % 8);
	}
	assert_int_equal(read_node(&f, 0), 0);
	destroy(&f);
}

/* Puts another good node where node 0 should be, in both copies. */
static void expect_foreign(struct fixture *f, const uint8_t *node)
{
	for (unsigned copy = 0; copy < 2; copy++)
		cpc_powercut_poke(f->pc, f->ptr[0].bytenr[copy], node, f->geo.nodesize);
	assert_int_equal(read_node(f, 0), -EUCLEAN);
}

static void recompute(uint8_t *node)
{
	struct cpc_disk_node *header = (void *)node;

	cpc_put_le32(&header->csum, cpc_csum_without_field(node, 4096, 0));
}

static void stale_and_misdirected_nodes_are_refused(void **state)
{
	uint8_t *stale = cpc_alloc_aligned(4096, 4096), *node = cpc_alloc_aligned(4096, 4096);
	struct cpc_disk_node *header = (void *)node;
	struct cpc_node_ptr ptr;
	struct cpc_eb *eb;
	struct fixture f;

	create(&f, 4096, true);
	make_stored(&f);
	cpc_powercut_peek(f.pc, f.ptr[0].bytenr[0], stale, 4096);
	assert_int_equal(make(&f, 0, 6), 0);
	assert_int_equal(cpc_eb_sync(f.cache), 0);
	reopen(&f, SIZE_MAX);
	expect_foreign(&f, stale);
	/* Even where the parent's checksum would match: another address, another pool. */
	cpc_powercut_peek(f.pc, f.ptr[1].bytenr[0], node, 4096);
	cpc_put_le64(&header->generation, 6);
	recompute(node);
	f.ptr[0].csum = cpc_get_le32(&header->csum);
	expect_foreign(&f, node);
	cpc_put_le64(&header->bytenr, f.ptr[0].bytenr[0]);
	header->uuid[0] ^= 1;
	recompute(node);
	f.ptr[0].csum = cpc_get_le32(&header->csum);
	expect_foreign(&f, node);
	/* What the pointer says has to match, too: on the device and in memory. */
	for (unsigned in_memory = 0; in_memory < 2; in_memory++) {
		assert_int_equal(cpc_eb_read(f.cache, &f.ptr[5], OWNER + 1, &eb), -EUCLEAN);
		ptr = f.ptr[5];
		ptr.level++;
		assert_int_equal(cpc_eb_read(f.cache, &ptr, OWNER, &eb), -EUCLEAN);
		ptr = f.ptr[5];
		ptr.generation--;
		assert_int_equal(cpc_eb_read(f.cache, &ptr, OWNER, &eb), -EUCLEAN);
		ptr = f.ptr[5];
		ptr.csum ^= 1;
		assert_int_equal(cpc_eb_read(f.cache, &ptr, OWNER, &eb), -EUCLEAN);
		assert_int_equal(read_node(&f, 5), 0);
	}
	cpc_free(stale);
	cpc_free(node);
	destroy(&f);
}

/* --- failing writes --- */

static void a_failed_write_is_told_once_and_tried_again(void **state)
{
	struct fixture f;

	create(&f, 16384, true);
	make_all(&f, 5);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_WRITE, 2, false, -EIO);
	assert_int_equal(cpc_eb_sync(f.cache), -EIO);
	cpc_eb_check(f.cache);
	assert_true(stats_of(&f).dirty_bytes == NODES * 16384);
	for (unsigned i = 0; i < NODES; i++)
		assert_int_equal(read_node(&f, i), 0);
	assert_true(reads(&f) == 0);
	assert_int_equal(cpc_eb_sync(f.cache), 0);
	assert_true(stats_of(&f).dirty_bytes == 0);
	assert_int_equal(flush(&f), 0);
	reopen(&f, SIZE_MAX);
	for (unsigned i = 0; i < NODES; i++)
		assert_int_equal(read_node(&f, i), 0);
	destroy(&f);
}

/* A quarter of the cache is dirty, and one more node is made. */
static void fill_up(struct fixture *f)
{
	cpc_eb_set_limit(f->cache, NODES * f->geo.nodesize);
	for (unsigned i = 0; i < NODES / 4; i++)
		assert_int_equal(make(f, i, 5), 0);
	assert_true(writes(f) == 0);
}

static void a_failed_early_write_fails_the_next_node_and_the_sync(void **state)
{
	struct fixture f;

	create(&f, 16384, true);
	fill_up(&f);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_WRITE, 1, false, -ENOSPC);
	assert_int_equal(make(&f, NODES / 4, 5), -ENOSPC);
	assert_true(stats_of(&f).dirty_bytes == NODES / 4 * 16384);
	assert_int_equal(make(&f, NODES / 4, 5), -ENOSPC);
	assert_int_equal(cpc_eb_sync(f.cache), -ENOSPC);
	assert_true(stats_of(&f).dirty_bytes == 0);
	assert_int_equal(make(&f, NODES / 4, 5), 0);
	assert_int_equal(cpc_eb_sync(f.cache), 0);
	destroy(&f);
}

static void a_write_error_goes_with_its_transaction(void **state)
{
	struct fixture f;

	create(&f, 16384, true);
	fill_up(&f);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_WRITE, 1, false, -EIO);
	assert_int_equal(make(&f, NODES / 4, 5), -EIO);
	cpc_eb_abort(f.cache, 5);
	assert_true(stats_of(&f).cached_bytes == 0);
	assert_int_equal(make(&f, 0, 6), 0);
	assert_int_equal(cpc_eb_sync(f.cache), 0);
	destroy(&f);
}

/* However many nodes are made, and whatever their size: no more are dirty than a quarter of the
 * cache, and the cache keeps to its limit because it flushes. */
static void nodes_are_written_as_they_are_made(void **state)
{
	static const uint32_t sizes[] = {4096, 16384, 65536};

	for (unsigned k = 0; k < CPC_ARRAY_SIZE(sizes); k++) {
		struct cpc_flush_epoch_stats flushes;
		uint64_t most = 8ull * sizes[k];
		struct fixture f;

		create(&f, sizes[k], true);
		cpc_eb_set_limit(f.cache, most);
		for (unsigned i = 0; i < NODES; i++) {
			assert_int_equal(make(&f, i, 5), 0);
			assert_true(stats_of(&f).dirty_bytes <= most / 4);
			assert_true(stats_of(&f).cached_bytes <= most + sizes[k]);
		}
		cpc_flush_epoch_get_stats(&f.fe, &flushes);
		assert_true(flushes.flushes[CPC_FLUSH_PRESSURE] > 0);
		assert_true(flushes.flushes[CPC_FLUSH_PRESSURE] <= NODES / 2);
		assert_int_equal(cpc_eb_sync(f.cache), 0);
		assert_int_equal(flush(&f), 0);
		for (unsigned i = 0; i < NODES; i++)
			assert_int_equal(read_node(&f, i), 0);
		destroy(&f);
	}
}

static void a_node_that_was_never_written_stays(void **state)
{
	struct fixture f;

	create(&f, 4096, true);
	make_all(&f, 5);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_WRITE, 1, true, -EIO);
	assert_int_equal(cpc_eb_sync(f.cache), -EIO);
	assert_int_equal(flush(&f), 0);
	cpc_eb_set_limit(f.cache, 0);
	for (unsigned i = 0; i < NODES; i++)
		assert_int_equal(read_node(&f, i), 0);
	assert_true(reads(&f) == 0);
	destroy(&f);
}

/* --- eviction --- */

static void only_covered_nodes_are_evicted(void **state)
{
	struct fixture f;

	create(&f, 4096, true);
	make_all(&f, 5);
	cpc_eb_set_limit(f.cache, 0);
	assert_true(stats_of(&f).cached_bytes == NODES * 4096);
	assert_int_equal(cpc_eb_sync(f.cache), 0);
	cpc_eb_set_limit(f.cache, 0);
	assert_true(stats_of(&f).cached_bytes == NODES * 4096);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_FLUSH, 1, false, -EIO);
	assert_int_equal(flush(&f), -EIO);
	cpc_eb_set_limit(f.cache, 0);
	assert_true(stats_of(&f).cached_bytes == NODES * 4096);
	assert_int_equal(flush(&f), 0);
	cpc_eb_set_limit(f.cache, 0);
	assert_true(stats_of(&f).cached_bytes == 0);
	destroy(&f);
}

static void a_tiny_cache_stays_tiny(void **state)
{
	struct cpc_eb *held;
	struct fixture f;

	create(&f, 4096, true);
	make_stored(&f);
	cpc_eb_set_limit(f.cache, 4 * 4096);
	assert_int_equal(cpc_eb_read(f.cache, &f.ptr[0], OWNER, &held), 0);
	for (unsigned i = 0; i < 10 * NODES; i++) {
		assert_int_equal(read_node(&f, i * 7 % NODES), 0);
		assert_true(stats_of(&f).cached_bytes <= 6 * 4096);
	}
	cpc_eb_check(f.cache);
	assert_int_equal(tag_of(held), 1);
	cpc_eb_put(held);
	destroy(&f);
}

static void used_nodes_outlive_unused_ones(void **state)
{
	struct fixture f;

	create(&f, 4096, true);
	make_stored(&f);
	cpc_eb_set_limit(f.cache, 8 * 4096);
	for (unsigned i = 1; i < NODES; i++) {
		assert_int_equal(read_node(&f, 0), 0);
		assert_int_equal(read_node(&f, i), 0);
	}
	assert_true(reads(&f) == NODES);
	destroy(&f);
}

/* --- no memory --- */

static uint64_t alloc_calls, alloc_fail_at;

static void *failing_alloc(size_t align, size_t size)
{
	return ++alloc_calls == alloc_fail_at ? NULL : cpc_hooks_default.alloc(align, size);
}

static void no_memory_is_survived(void **state)
{
	struct fixture f;

	create(&f, 4096, true);
	make_stored(&f);
	cpc_hooks.alloc = failing_alloc;
	for (unsigned n = 1; n < 12; n++) {
		int made, read, synced;

		alloc_calls = 0;
		alloc_fail_at = n;
		made = make(&f, 1, 6 + n);
		read = read_node(&f, 2);
		synced = cpc_eb_sync(f.cache);
		assert_true(made == 0 || made == -ENOMEM);
		assert_true(read == 0 || read == -ENOMEM);
		assert_true(synced == 0 || synced == -ENOMEM);
		alloc_fail_at = 0;
		assert_int_equal(read_node(&f, 2), 0);
		assert_int_equal(cpc_eb_sync(f.cache), 0);
		cpc_eb_forget(f.cache, f.ptr[2].bytenr[0]);
		cpc_eb_check(f.cache);
	}
	cpc_hooks = cpc_hooks_default;
	destroy(&f);
}

/* --- threads --- */

#define THREADS 4

struct reader {
	struct fixture *f;
	pthread_t thread;
	uint64_t rng;
	unsigned rounds, nodes; /* reads of the first ones */
	int first_error;
};

static uint64_t next_random(uint64_t *rng)
{
	*rng = *rng * 6364136223846793005ull + 1442695040888963407ull;
	return *rng >> 33;
}

static void *read_at_random(void *arg)
{
	struct reader *r = arg;

	for (unsigned k = 0; k < r->rounds && !r->first_error; k++) {
		unsigned i = (unsigned)(next_random(&r->rng) % r->nodes);
		struct cpc_eb *eb;

		r->first_error = cpc_eb_read(r->f->cache, &r->f->ptr[i], OWNER, &eb);
		if (r->first_error)
			break;
		if (tag_of(eb) != i + 1)
			r->first_error = -1;
		cpc_eb_put(eb);
	}
	return NULL;
}

static void start_readers(struct fixture *f, struct reader *r, unsigned rounds, unsigned nodes)
{
	for (unsigned i = 0; i < THREADS; i++) {
		r[i] = (struct reader){.f = f, .rng = i + 1, .rounds = rounds, .nodes = nodes};
		assert_int_equal(cpc_thread_start(&r[i].thread, "reader", read_at_random, &r[i]),
				 0);
	}
}

static void join_readers(struct reader *r)
{
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(r[i].thread, NULL);
		assert_int_equal(r[i].first_error, 0);
	}
}

/* Readers of the lower half, a tiny cache, and a writer that remakes the upper half. */
static void readers_and_a_writer_at_once(void **state)
{
	struct reader r[THREADS];
	struct fixture f;

	create(&f, 4096, true);
	make_stored(&f);
	cpc_eb_set_limit(f.cache, 8 * 4096);
	start_readers(&f, r, 5000, NODES / 2);
	for (uint64_t generation = 6; generation < 60; generation++) {
		for (unsigned i = NODES / 2; i < NODES; i++)
			assert_int_equal(make(&f, i, generation), 0);
		if (generation % 3 == 0)
			cpc_eb_abort(f.cache, generation);
		if (generation % 3 == 2)
			assert_int_equal(cpc_eb_sync(f.cache), 0);
		assert_int_equal(flush(&f), 0);
		cpc_eb_check(f.cache);
	}
	join_readers(r);
	destroy(&f);
}

static void many_readers_of_one_node_read_it_once(void **state)
{
	struct reader r[THREADS];
	struct fixture f;

	create(&f, 4096, true);
	make_stored(&f);
	cpc_powercut_hold(f.pc, CPC_HOLD_READ);
	start_readers(&f, r, 1, 1);
	cpc_powercut_wait_held(f.pc, 1);
	cpc_powercut_release(f.pc);
	join_readers(r);
	assert_true(reads(&f) == 1);
	destroy(&f);
}

static void *sync_in_thread(void *arg)
{
	struct reader *r = arg;

	r->first_error = cpc_eb_sync(r->f->cache);
	return NULL;
}

static void what_becomes_dirty_during_a_sync_is_not_waited_for(void **state)
{
	struct fixture f;
	struct reader r = {.f = &f};

	create(&f, 4096, true);
	for (unsigned i = 0; i < NODES / 2; i++)
		assert_int_equal(make(&f, i, 5), 0);
	cpc_powercut_hold(f.pc, CPC_HOLD_WRITES);
	assert_int_equal(cpc_thread_start(&r.thread, "sync", sync_in_thread, &r), 0);
	cpc_powercut_wait_held(f.pc, 1);
	assert_true(stats_of(&f).writeback_bytes == NODES / 2 * 4096);
	for (unsigned i = NODES / 2; i < NODES; i++)
		assert_int_equal(make(&f, i, 5), 0);
	cpc_eb_check(f.cache);
	for (unsigned i = 0; i < NODES; i++)
		assert_int_equal(read_node(&f, i), 0);
	cpc_powercut_release(f.pc);
	pthread_join(r.thread, NULL);
	assert_int_equal(r.first_error, 0);
	assert_true(stats_of(&f).dirty_bytes == NODES / 2 * 4096);
	destroy(&f);
}

/* A device that makes a node dirty, behind all others, before each write that it does. */
struct dirtying_device {
	struct cpc_backing backing;
	struct cpc_backing *inner;
	struct fixture *f;
	unsigned next;
};

static int dirtying_writev(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov,
			   unsigned nr, enum cpc_cause cause)
{
	struct dirtying_device *d = cpc_container_of(b, struct dirtying_device, backing);
	struct cpc_node_ptr ptr;

	if (d->next < 100 * NODES)
		assert_int_equal(make_at(d->f, d->next++, 5, &ptr), 0);
	return cpc_backing_writev(d->inner, bytenr, iov, nr, cause);
}

static void dirtying_close(struct cpc_backing *b)
{
}

static void a_sync_ends_however_fast_nodes_become_dirty(void **state)
{
	static const struct cpc_backing_ops ops = {
	    .name = "dirtying", .writev = dirtying_writev, .close = dirtying_close};
	struct dirtying_device d = {.next = 10 * NODES};
	struct fixture f;

	create(&f, 4096, true);
	cpc_eb_cache_destroy(f.cache);
	d.f = &f;
	d.inner = f.backing;
	cpc_backing_init(&d.backing, &ops, POOL_SIZE, -1, false);
	f.params.backing = &d.backing;
	open_cache(&f, &f.fe, SIZE_MAX);
	f.fe.backing = &d.backing;
	/* Every other one: each copy of each is a write. */
	for (unsigned i = 0; i < NODES; i += 2)
		assert_int_equal(make(&f, i, 5), 0);
	assert_int_equal(cpc_eb_sync(f.cache), 0);
	assert_int_equal(stats_of(&f).written, NODES / 2);
	assert_int_equal(d.next, 10 * NODES + NODES);
	assert_int_equal(stats_of(&f).dirty_bytes, NODES * 4096);
	f.fe.backing = f.backing;
	cpc_eb_cache_destroy(f.cache);
	cpc_backing_close(&d.backing);
	f.params.backing = f.backing;
	open_cache(&f, &f.fe, SIZE_MAX);
	destroy(&f);
}

/* What a thread does while a write is held; it must not return before the write has. */
enum what { FORGET, ABORT, SYNC };

struct waiter {
	struct fixture *f;
	pthread_t thread;
	enum what what;
	bool early;
};

static void *wait_in_thread(void *arg)
{
	struct waiter *w = arg;

	if (w->what == FORGET)
		cpc_eb_forget(w->f->cache, w->f->ptr[0].bytenr[0]);
	else if (w->what == ABORT)
		cpc_eb_abort(w->f->cache, 5);
	else
		cpc_eb_sync(w->f->cache);
	w->early = stats_of(w->f).writeback_bytes > 0;
	return NULL;
}

static void forget_abort_and_sync_wait_for_another_threads_write(void **state)
{
	for (enum what what = FORGET; what <= SYNC; what++) {
		struct fixture f;
		struct reader sync = {.f = &f};
		struct waiter w = {.f = &f, .what = what};

		create(&f, 4096, true);
		assert_int_equal(make(&f, 0, 5), 0);
		cpc_powercut_hold(f.pc, CPC_HOLD_WRITES);
		assert_int_equal(cpc_thread_start(&sync.thread, "sync", sync_in_thread, &sync), 0);
		cpc_powercut_wait_held(f.pc, 1);
		assert_int_equal(cpc_thread_start(&w.thread, "waiter", wait_in_thread, &w), 0);
		usleep(30000);
		cpc_powercut_release(f.pc);
		pthread_join(sync.thread, NULL);
		pthread_join(w.thread, NULL);
		assert_false(w.early);
		assert_true(stats_of(&f).cached_bytes == (what == FORGET ? 0 : 4096));
		destroy(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(nodes_written_read_back),
	    cmocka_unit_test(neighbours_are_one_write),
	    cmocka_unit_test(a_bad_new_node_never_enters),
	    cmocka_unit_test(allocation_drops_what_was_cached_there),
	    cmocka_unit_test(abort_forgets_one_generation),
	    cmocka_unit_test(a_read_only_cache_never_writes),
	    cmocka_unit_test(a_bad_copy_is_healed),
	    cmocka_unit_test(an_unreadable_copy_is_healed),
	    cmocka_unit_test(two_bad_copies_are_damage),
	    cmocka_unit_test(every_flipped_bit_is_noticed),
	    cmocka_unit_test(stale_and_misdirected_nodes_are_refused),
	    cmocka_unit_test(a_failed_write_is_told_once_and_tried_again),
	    cmocka_unit_test(a_failed_early_write_fails_the_next_node_and_the_sync),
	    cmocka_unit_test(a_write_error_goes_with_its_transaction),
	    cmocka_unit_test(nodes_are_written_as_they_are_made),
	    cmocka_unit_test(a_node_that_was_never_written_stays),
	    cmocka_unit_test(only_covered_nodes_are_evicted),
	    cmocka_unit_test(a_tiny_cache_stays_tiny),
	    cmocka_unit_test(used_nodes_outlive_unused_ones),
	    cmocka_unit_test(no_memory_is_survived),
	    cmocka_unit_test(readers_and_a_writer_at_once),
	    cmocka_unit_test(many_readers_of_one_node_read_it_once),
	    cmocka_unit_test(what_becomes_dirty_during_a_sync_is_not_waited_for),
	    cmocka_unit_test(a_sync_ends_however_fast_nodes_become_dirty),
	    cmocka_unit_test(forget_abort_and_sync_wait_for_another_threads_write),
	};

	cpc_log_set_sink(count_errors);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
