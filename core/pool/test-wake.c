/* SPDX-License-Identifier: BSD-3-Clause */
/* Volumes that sleep until they are asked for: nobody sees a difference, whoever comes first. */
#include "pool/test-pool-rig.h"

#include <pthread.h>

#define ROUNDS 20u

static uint32_t allocs_left = UINT32_MAX;

static void *failing_alloc(size_t align, size_t size)
{
	if (allocs_left == 0)
		return NULL;
	allocs_left -= allocs_left != UINT32_MAX;
	return cpc_hooks_default.alloc(align, size);
}

static struct cpc_volume *open_a(struct pool_rig *f)
{
	struct cpc_volume *vol;

	assert_int_equal(cpc_pool_open_volume(f->pool, "a", &vol), 0);
	return vol;
}

static void write_block(struct cpc_volume *vol, uint64_t block)
{
	char buf[4096];

	memset(buf, (int)block + 1, sizeof(buf));
	assert_int_equal(cpc_volume_write(vol, buf, sizeof(buf), block * sizeof(buf), 0), 0);
}

static void expect_block(struct cpc_volume *vol, uint64_t block)
{
	char buf[4096], want[4096];

	memset(want, (int)block + 1, sizeof(want));
	assert_int_equal(cpc_volume_read(vol, buf, sizeof(buf), block * sizeof(buf)), 0);
	assert_memory_equal(buf, want, sizeof(buf));
}

static void a_volume_asleep_shows_what_it_shows_awake(void **state)
{
	struct cpc_volume_info before, asleep, awake;
	struct pool_rig f = {0};
	struct cpc_volume *vol;

	pool_rig_make(&f, 16 * MIB);
	assert_int_equal(pool_rig_create(&f, "a", MIB + 1), 0);
	vol = open_a(&f);
	for (unsigned i = 0; i < 5; i++)
		write_block(vol, i);
	cpc_pool_close_volume(f.pool, vol);
	assert_int_equal(cpc_pool_commit(f.pool), 0);
	assert_int_equal(cpc_pool_volume_info(f.pool, "a", &before), 0);
	pool_rig_reopen(&f);
	assert_int_equal(cpc_pool_volume_info(f.pool, "a", &asleep), 0);
	assert_memory_equal(&asleep, &before, sizeof(before));
	assert_int_equal(asleep.used, 5 * 4096);
	vol = open_a(&f);
	expect_block(vol, 4);
	cpc_pool_close_volume(f.pool, vol);
	assert_int_equal(cpc_pool_volume_info(f.pool, "a", &awake), 0);
	assert_memory_equal(&awake, &before, sizeof(before));
	pool_rig_finish(&f);
}

static void read_only_is_seen_asleep(void **state)
{
	struct cpc_volume_info info;
	struct pool_rig f = {0};

	pool_rig_make(&f, 16 * MIB);
	assert_int_equal(pool_rig_create(&f, "a", MIB), 0);
	f.opts.read_only = true;
	pool_rig_reopen(&f);
	assert_int_equal(cpc_pool_volume_info(f.pool, "a", &info), 0);
	assert_true(info.read_only);
	f.opts.read_only = false;
	pool_rig_reopen(&f);
	assert_int_equal(cpc_pool_volume_info(f.pool, "a", &info), 0);
	assert_false(info.read_only);
	pool_rig_finish(&f);
}

/* Each change is the first that anybody wants of the volume. */
static void names_and_sizes_of_volumes_asleep_change(void **state)
{
	struct pool_rig f = {0};
	struct cpc_volume *vol;

	pool_rig_make(&f, 16 * MIB);
	assert_int_equal(pool_rig_create(&f, "x", MIB), 0);
	pool_rig_reopen(&f);
	assert_int_equal(cpc_pool_rename(f.pool, "x", "a", &pool_rig_err), 0);
	write_block(vol = open_a(&f), 0);
	cpc_pool_close_volume(f.pool, vol);
	pool_rig_reopen(&f);
	assert_int_equal(cpc_pool_resize(f.pool, "a", 8192, false, &pool_rig_err), -EINVAL);
	assert_int_equal(cpc_pool_resize(f.pool, "a", 4096, true, &pool_rig_err), 0);
	pool_rig_reopen(&f);
	assert_int_equal(cpc_pool_resize(f.pool, "a", 3 * MIB, false, &pool_rig_err), 0);
	pool_rig_reopen(&f);
	assert_int_equal(pool_rig_size_of(&f, "a"), 3 * MIB);
	expect_block(vol = open_a(&f), 0);
	cpc_pool_close_volume(f.pool, vol);
	pool_rig_reopen(&f);
	assert_int_equal(cpc_pool_delete(f.pool, "a", &pool_rig_err), 0);
	pool_rig_reopen(&f);
	assert_int_equal(pool_rig_size_of(&f, "a"), 0);
	pool_rig_finish(&f);
}

static void a_volume_that_cannot_be_woken_stays_asleep(void **state)
{
	struct pool_rig f = {0};
	struct cpc_volume *vol;
	uint32_t failed = 0;

	pool_rig_make(&f, 16 * MIB);
	assert_int_equal(pool_rig_create(&f, "a", MIB), 0);
	pool_rig_reopen(&f);
	cpc_hooks.alloc = failing_alloc;
	allocs_left = 0;
	while (cpc_pool_open_volume(f.pool, "a", &vol)) { /* its nth allocation is refused */
		assert_int_equal(allocs_left, 0);
		allocs_left = ++failed;
	}
	cpc_hooks.alloc = cpc_hooks_default.alloc;
	allocs_left = UINT32_MAX;
	assert_true(failed > 0);
	write_block(vol, 1);
	assert_int_equal(cpc_pool_delete(f.pool, "a", &pool_rig_err), -EBUSY);
	cpc_pool_close_volume(f.pool, vol);
	/* what failed has left no handle */
	assert_int_equal(cpc_pool_delete(f.pool, "a", &pool_rig_err), 0);
	pool_rig_finish(&f);
}

/* --- at the same time --- */

/*
 * Two that wake the same volume meet in the middle of it: each waits in an allocation, when it has
 * seen the volume asleep, for the other.
 */
static pthread_barrier_t both;
static _Thread_local unsigned meet_at; /* in its nth allocation; 0: not */

static void *meeting_alloc(size_t align, size_t size)
{
	if (meet_at && --meet_at == 0)
		pthread_barrier_wait(&both);
	return cpc_hooks_default.alloc(align, size);
}

static void *open_and_write(void *arg)
{
	struct pool_rig *f = arg;
	struct cpc_volume *vol;

	meet_at = 1;
	vol = open_a(f);
	write_block(vol, 7);
	return vol;
}

/* Its first allocation is the new name. */
static void *rename_to_b(void *arg)
{
	struct pool_rig *f = arg;

	meet_at = 2;
	return (void *)(intptr_t)cpc_pool_rename(f->pool, "a", "b", &pool_rig_err);
}

static void *run_both(struct pool_rig *f, void *(*other)(void *), void **result)
{
	pthread_t first, second;
	void *vol;

	pthread_barrier_init(&both, NULL, 2);
	assert_int_equal(pthread_create(&first, NULL, open_and_write, f), 0);
	assert_int_equal(pthread_create(&second, NULL, other, f), 0);
	assert_int_equal(pthread_join(first, &vol), 0);
	assert_int_equal(pthread_join(second, result), 0);
	pthread_barrier_destroy(&both);
	return vol;
}

static void two_who_open_at_once_get_the_same_volume(void **state)
{
	struct pool_rig f = {.threads = true};

	cpc_hooks.alloc = meeting_alloc; /* before there are threads */
	pool_rig_make(&f, 32 * MIB);
	assert_int_equal(pool_rig_create(&f, "a", MIB), 0);
	for (unsigned round = 0; round < ROUNDS; round++) {
		void *first, *second;

		pool_rig_reopen(&f);
		first = run_both(&f, open_and_write, &second);
		assert_ptr_equal(first, second);
		cpc_pool_close_volume(f.pool, first);
		cpc_pool_close_volume(f.pool, second);
	}
	pool_rig_finish(&f);
	cpc_hooks.alloc = cpc_hooks_default.alloc;
}

static void a_rename_reaches_the_volume_that_an_opening_gets(void **state)
{
	struct pool_rig f = {.threads = true};

	cpc_hooks.alloc = meeting_alloc; /* before there are threads */
	pool_rig_make(&f, 32 * MIB);
	for (unsigned round = 0; round < ROUNDS; round++) {
		struct cpc_volume *vol;
		void *ret;

		assert_int_equal(pool_rig_create(&f, "a", MIB), 0);
		pool_rig_reopen(&f);
		vol = run_both(&f, rename_to_b, &ret);
		assert_int_equal((intptr_t)ret, 0);
		cpc_pool_close_volume(f.pool, vol);
		pool_rig_reopen(&f);
		assert_int_equal(pool_rig_size_of(&f, "a"), 0);
		assert_int_equal(cpc_pool_open_volume(f.pool, "b", &vol), 0);
		expect_block(vol, 7);
		cpc_pool_close_volume(f.pool, vol);
		assert_int_equal(cpc_pool_delete(f.pool, "b", &pool_rig_err), 0);
	}
	pool_rig_finish(&f);
	cpc_hooks.alloc = cpc_hooks_default.alloc;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_volume_asleep_shows_what_it_shows_awake),
	    cmocka_unit_test(read_only_is_seen_asleep),
	    cmocka_unit_test(names_and_sizes_of_volumes_asleep_change),
	    cmocka_unit_test(a_volume_that_cannot_be_woken_stays_asleep),
	    cmocka_unit_test(two_who_open_at_once_get_the_same_volume),
	    cmocka_unit_test(a_rename_reaches_the_volume_that_an_opening_gets),
	};

	return cmocka_run_group_tests(tests, pool_rig_quiet, NULL);
}
