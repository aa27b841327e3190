/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test-space-threads: several threads allocate, commit and free in a pool of which hardly any group
 * stays loaded. No block may have two owners. Meant for ThreadSanitizer as well.
 */
#include <sched.h>

#include "space/test-disk-internal.h"

#define NR_THREADS 4
#define MAX_OWNED  300

static struct disk disk;
static struct cpc_space *space;
static _Atomic uint8_t *owners;	     /* 1: some thread has the block */
static struct cpc_mutex commit_lock; /* held over changes of used bits and folds */

struct extent {
	uint64_t block;
	uint32_t nr;
	bool used;
};

struct worker {
	pthread_t thread;
	uint64_t seed, ops;
	struct extent owned[MAX_OWNED];
	uint32_t nr_owned;
	uint64_t nr_got;
};

/* Slow, and sometimes out of memory. */
static int slow_load(void *ctx, uint64_t group, uint8_t bitmap[CPC_BLOCK_SIZE])
{
	static _Atomic uint64_t calls;

	sched_yield();
	if (calls++ % 17 == 0)
		return -ENOMEM;
	return disk_load(ctx, group, bitmap);
}

static void set_owner(const struct extent *e, uint8_t from, uint8_t to)
{
	for (uint32_t i = 0; i < e->nr; i++)
		cpc_assert(atomic_exchange(&owners[e->block + i], to) == from);
}

static void work_alloc(struct worker *w)
{
	enum cpc_space_kind kind = (enum cpc_space_kind)rnd_from(&w->seed, CPC_SPACE_NR_KINDS);
	uint32_t want = kind == CPC_SPACE_DATA ? 1 + (uint32_t)rnd_from(&w->seed, 300) : 4;
	struct extent *e = &w->owned[w->nr_owned];
	uint64_t res = kind == CPC_SPACE_DATA ? want : 1;
	int err;

	if (w->nr_owned == MAX_OWNED)
		return;
	err = kind == CPC_SPACE_DATA ? cpc_space_reserve(space, res, 5)
				     : cpc_space_reserve_nodes(space, res, 5);
	if (err)
		return;
	err = cpc_space_alloc_reserved(space, kind, want, kind == CPC_SPACE_DATA ? 1 : 4, &e->block,
				       &e->nr);
	cpc_assert(err == 0 || err == -ENOMEM);
	if (kind != CPC_SPACE_DATA)
		cpc_space_unreserve_nodes(space, err ? 1 : 0);
	else
		cpc_space_unreserve(space, err ? want : want - e->nr);
	if (err)
		return;
	set_owner(e, 0, 1);
	e->used = false;
	w->nr_owned++;
	w->nr_got += e->nr;
}

static void set_dirty(const struct extent *e)
{
	cpc_space_set_dirty(space, e->block / CPC_GROUP_BLOCKS, true);
}

static void work_commit(struct worker *w)
{
	struct extent *e;

	if (w->nr_owned == 0)
		return;
	e = &w->owned[rnd_from(&w->seed, w->nr_owned)];
	cpc_mutex_lock(&commit_lock);
	if (!e->used) {
		set_dirty(e);
		cpc_space_set_used(space, e->block, e->nr);
		e->used = true;
	} else if (cpc_space_prepare_free(space, e->block, e->nr) == 0) {
		set_dirty(e);
		if (rnd_from(&w->seed, 4)) {
			cpc_space_clear_used(space, e->block, e->nr);
			e->used = false;
		} else {
			cpc_space_unprepare(space, e->block, e->nr);
		}
	}
	cpc_mutex_unlock(&commit_lock);
}

static void work_release(struct worker *w)
{
	struct extent *e;

	if (w->nr_owned == 0)
		return;
	e = &w->owned[rnd_from(&w->seed, w->nr_owned)];
	if (e->used)
		return;
	set_owner(e, 1, 0);
	cpc_space_release(space, e->block, e->nr);
	*e = w->owned[--w->nr_owned];
}

static void work_fold(struct worker *w)
{
	uint64_t group = rnd_from(&w->seed, disk.geo.nr_groups);
	uint8_t bitmap[CPC_BLOCK_SIZE];
	uint32_t used;

	cpc_mutex_lock(&commit_lock);
	cpc_space_set_dirty(space, group, true);
	if (cpc_space_get_used(space, group, bitmap, &used) == 0) {
		memcpy(disk.bitmaps[group], bitmap, CPC_BLOCK_SIZE);
		cpc_space_set_dirty(space, group, false);
	}
	cpc_mutex_unlock(&commit_lock);
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct cpc_space_info info;

	for (uint64_t i = 0; i < w->ops; i++) {
		switch (rnd_from(&w->seed, 8)) {
		case 0:
		case 1:
		case 2:
			work_alloc(w);
			break;
		case 3:
		case 4:
			work_commit(w);
			break;
		case 5:
			work_fold(w);
			break;
		case 6:
			cpc_space_info(space, &info);
			cpc_assert(info.free <= info.total);
			break;
		default:
			work_release(w);
			break;
		}
		if (i % 500 == 0)
			cpc_space_check(space);
	}
	return NULL;
}

static uint64_t count_owned(void)
{
	uint64_t n = 0;

	for (uint64_t b = 0; b < disk.geo.nr_blocks; b++)
		n += owners[b];
	return n;
}

static void test_no_block_has_two_owners(void **state)
{
	static struct worker workers[NR_THREADS];
	uint64_t ops = nr_ops(120000);

	seed(__func__);
	disk_init(&disk, 5 * 32768 + 4000, 16384, true);
	owners = calloc(disk.geo.nr_blocks, 1);
	cpc_mutex_init(&commit_lock, "test commit", CPC_RANK_COMMIT);
	assert_int_equal(cpc_space_create(&disk.geo, slow_load, &disk, &space), 0);
	cpc_space_set_max_loaded(space, 1);
	for (int i = 0; i < NR_THREADS; i++) {
		workers[i].seed = rnd(UINT32_MAX);
		workers[i].ops = ops / NR_THREADS;
		assert_int_equal(cpc_thread_start(&workers[i].thread, "space", work, &workers[i]),
				 0);
	}
	for (int i = 0; i < NR_THREADS; i++) {
		pthread_join(workers[i].thread, NULL);
		assert_true(workers[i].nr_got > 0);
	}
	assert_int_equal(info_of(space).free,
			 disk.geo.data_end - disk.geo.data_start - count_owned());
	assert_int_equal(info_of(space).reserved, 0);
	assert_int_equal(nr_warnings, 0);
	cpc_space_destroy(space);
	cpc_mutex_destroy(&commit_lock);
	free((void *)owners);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(test_no_block_has_two_owners, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
