/* SPDX-License-Identifier: BSD-3-Clause */
/* Names and sizes: what is made, moved, resized and deleted, and what of it a crash leaves. */
#include "pool/test-pool-rig.h"
#include "transaction/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* --- names --- */

static void names_are_checked_and_listed_in_order(void **state)
{
	static const char *const bad[] = {"", "-a", ".a", "a/b", "a b", "a@b", "\xc3\xa4"};
	char longest[257];
	struct pool_rig f = {0};

	memset(longest, 'x', 256);
	longest[256] = '\0';
	pool_rig_make(&f, 16 * MIB);
	for (unsigned i = 0; i < CPC_ARRAY_SIZE(bad); i++) {
		assert_int_equal(pool_rig_create(&f, bad[i], MIB), -EINVAL);
		pool_rig_assert_one_line();
	}
	assert_int_equal(pool_rig_create(&f, longest, MIB), -EINVAL);
	longest[255] = '\0';
	assert_int_equal(pool_rig_create(&f, longest, MIB), 0);
	assert_int_equal(pool_rig_create(&f, "b", MIB), 0);
	assert_int_equal(pool_rig_create(&f, "B-1.x_", MIB), 0);
	assert_int_equal(pool_rig_create(&f, "a", MIB), 0);
	assert_int_equal(pool_rig_create(&f, "a", MIB), -EEXIST);
	pool_rig_assert_one_line();
	pool_rig_reopen(&f);
	assert_int_equal(pool_rig_size_of(&f, longest), MIB);
	pool_rig_finish(&f);
}

struct list {
	unsigned nr, stop;
	char names[64][CPC_NAME_MAX + 1];
};

static int note_name(void *ctx, const struct cpc_volume_info *info)
{
	struct list *list = ctx;

	snprintf(list->names[list->nr++], sizeof(list->names[0]), "%s", info->name);
	return list->nr == list->stop ? 7 : 0;
}

static void a_list_is_sorted_and_can_be_stopped(void **state)
{
	static struct list list;
	struct pool_rig f = {0};
	char name[16];

	pool_rig_make(&f, 16 * MIB);
	for (unsigned i = 0; i < 40; i++) {
		snprintf(name, sizeof(name), "v%u", i * 7 % 40);
		assert_int_equal(pool_rig_create(&f, name, 1 + i), 0);
	}
	for (unsigned round = 0; round < 2; round++) {
		memset(&list, 0, sizeof(list));
		assert_int_equal(cpc_pool_list(f.pool, note_name, &list), 0);
		assert_int_equal(list.nr, 40);
		for (unsigned i = 1; i < list.nr; i++)
			assert_true(strcmp(list.names[i - 1], list.names[i]) < 0);
		pool_rig_reopen(&f);
	}
	memset(&list, 0, sizeof(list));
	list.stop = 3;
	assert_int_equal(cpc_pool_list(f.pool, note_name, &list), 7);
	assert_int_equal(list.nr, 3);
	pool_rig_finish(&f);
}

static void a_name_moves_with_its_volume(void **state)
{
	struct cpc_volume_info before, after;
	struct cpc_volume *vol;
	struct pool_rig f = {0};
	char buf[4] = "abcd";

	pool_rig_make(&f, 16 * MIB);
	assert_int_equal(pool_rig_create(&f, "a", MIB), 0);
	assert_int_equal(pool_rig_create(&f, "c", MIB), 0);
	assert_int_equal(cpc_pool_volume_info(f.pool, "a", &before), 0);
	assert_int_equal(cpc_pool_open_volume(f.pool, "a", &vol), 0);
	assert_int_equal(cpc_volume_write(vol, buf, 4, 10, 0), 0);
	assert_int_equal(cpc_pool_rename(f.pool, "x", "y", &pool_rig_err), -ENOENT);
	assert_int_equal(cpc_pool_rename(f.pool, "a", "c", &pool_rig_err), -EEXIST);
	assert_int_equal(cpc_pool_rename(f.pool, "a", "a", &pool_rig_err), -EEXIST);
	assert_int_equal(cpc_pool_rename(f.pool, "a", "-", &pool_rig_err), -EINVAL);
	assert_int_equal(cpc_pool_rename(f.pool, "a", "z", &pool_rig_err), 0);
	assert_int_equal(cpc_pool_volume_info(f.pool, "a", &after), -ENOENT);
	assert_int_equal(pool_rig_create(&f, "a", 2 * MIB), 0);
	cpc_pool_close_volume(f.pool, vol);
	pool_rig_reopen(&f);
	assert_int_equal(cpc_pool_volume_info(f.pool, "z", &after), 0);
	assert_int_equal(after.id, before.id);
	assert_memory_equal(after.uuid, before.uuid, CPC_UUID_SIZE);
	assert_int_equal(cpc_pool_open_volume(f.pool, "z", &vol), 0);
	memset(buf, 0, sizeof(buf));
	assert_int_equal(cpc_volume_read(vol, buf, 4, 10), 0);
	assert_memory_equal(buf, "abcd", 4);
	cpc_pool_close_volume(f.pool, vol);
	pool_rig_finish(&f);
}

static void open_volumes_are_not_deleted_or_shrunk_but_grow(void **state)
{
	struct cpc_volume *vol, *second;
	struct cpc_volume_info info;
	struct pool_rig f = {0};

	pool_rig_make(&f, 16 * MIB);
	assert_int_equal(pool_rig_create(&f, "a", MIB), 0);
	assert_int_equal(cpc_pool_open_volume(f.pool, "b", &vol), -ENOENT);
	assert_int_equal(cpc_pool_open_volume(f.pool, "a", &vol), 0);
	assert_int_equal(cpc_pool_open_volume(f.pool, "a", &second), 0);
	assert_int_equal(cpc_pool_volume_info(f.pool, "a", &info), 0);
	assert_int_equal(info.open, 2);
	cpc_pool_close_volume(f.pool, second);
	assert_int_equal(cpc_pool_delete(f.pool, "a", &pool_rig_err), -EBUSY);
	assert_non_null(strstr(pool_rig_err.text, "1 client connection has it open"));
	assert_int_equal(cpc_pool_resize(f.pool, "a", 4096, true, &pool_rig_err), -EBUSY);
	assert_int_equal(cpc_pool_resize(f.pool, "a", 2 * MIB, false, &pool_rig_err), 0);
	assert_int_equal(cpc_volume_size(vol), 2 * MIB);
	cpc_pool_close_volume(f.pool, vol);
	assert_int_equal(cpc_pool_resize(f.pool, "a", 4096, false, &pool_rig_err), -EINVAL);
	assert_non_null(strstr(pool_rig_err.text, "--shrink"));
	assert_int_equal(cpc_pool_resize(f.pool, "a", 4096, true, &pool_rig_err), 0);
	assert_int_equal(cpc_pool_delete(f.pool, "a", &pool_rig_err), 0);
	assert_int_equal(cpc_pool_delete(f.pool, "a", &pool_rig_err), -ENOENT);
	pool_rig_finish(&f);
}

static void deleting_gives_back_everything(void **state)
{
	struct cpc_pool_info before, after;
	struct pool_rig f = {0};
	struct cpc_volume *vol;
	char *buf = calloc(1, MIB);

	pool_rig_make(&f, 64 * MIB);
	memset(buf, 1, MIB);
	cpc_pool_info(f.pool, &before);
	for (unsigned round = 0; round < 20; round++) {
		assert_int_equal(pool_rig_create(&f, "a", 64 * MIB), 0);
		assert_int_equal(cpc_pool_open_volume(f.pool, "a", &vol), 0);
		for (unsigned i = 0; i < 8; i++)
			assert_int_equal(cpc_volume_write(vol, buf, MIB, i * 3 * MIB, 0), 0);
		cpc_pool_close_volume(f.pool, vol);
		assert_int_equal(cpc_pool_delete(f.pool, "a", &pool_rig_err), 0);
	}
	cpc_pool_settle(f.pool);
	cpc_pool_info(f.pool, &after);
	assert_true(after.used < before.used + 64 * 4096);
	free(buf);
	pool_rig_finish(&f);
}

/* --- sizes --- */

static void sizes_have_limits_and_are_exact(void **state)
{
	static const uint64_t sizes[] = {1, 511, 4095, 4097, 1000000007, 1ull << 62};
	struct pool_rig f = {0};
	char name[8];

	pool_rig_make(&f, 16 * MIB);
	assert_int_equal(pool_rig_create(&f, "v", 0), -EINVAL);
	assert_int_equal(pool_rig_create(&f, "v", (1ull << 63) + 1), -EINVAL);
	assert_int_equal(pool_rig_create(&f, "v", UINT64_MAX), -EINVAL);
	pool_rig_assert_one_line();
	assert_int_equal(pool_rig_create(&f, "max", 1ull << 63), 0);
	assert_int_equal(pool_rig_create(&f, "max1", (1ull << 63) - 1), 0);
	for (unsigned i = 0; i < CPC_ARRAY_SIZE(sizes); i++) {
		snprintf(name, sizeof(name), "v%u", i);
		assert_int_equal(pool_rig_create(&f, name, sizes[i]), 0);
	}
	assert_int_equal(cpc_pool_resize(f.pool, "v0", 0, true, &pool_rig_err), -EINVAL);
	assert_int_equal(cpc_pool_resize(f.pool, "v0", UINT64_MAX, true, &pool_rig_err), -EINVAL);
	pool_rig_reopen(&f);
	assert_int_equal(pool_rig_size_of(&f, "max"), (1ull << 63) - 4096);
	assert_int_equal(pool_rig_size_of(&f, "max1"), (1ull << 63) - 4096);
	for (unsigned i = 0; i < CPC_ARRAY_SIZE(sizes); i++) {
		snprintf(name, sizeof(name), "v%u", i);
		assert_int_equal(pool_rig_size_of(&f, name), sizes[i]);
	}
	pool_rig_finish(&f);
}

static void resize(struct pool_rig *f, uint64_t size)
{
	if (cpc_pool_resize(f->pool, "a", size, true, &pool_rig_err))
		fail_msg("%s", pool_rig_err.text);
}

static bool zero_from(struct cpc_volume *vol, uint64_t from, uint64_t len)
{
	uint8_t *buf = malloc(len);
	bool zero = true;

	memset(buf, 1, len);
	assert_int_equal(cpc_volume_read(vol, buf, len, from), 0);
	for (uint64_t i = 0; i < len; i++)
		zero = zero && buf[i] == 0;
	free(buf);
	return zero;
}

static void what_comes_back_by_growing_is_zero(void **state)
{
	static const uint64_t to[] = {1, 100, 4095, 4096, 4097, 8192, 300000, 777777};
	struct pool_rig f = {0};
	struct cpc_volume *vol;
	char *buf = malloc(MIB);

	memset(buf, 0xaa, MIB);
	pool_rig_make(&f, 32 * MIB);
	assert_int_equal(pool_rig_create(&f, "a", MIB), 0);
	for (unsigned round = 0; round < 4; round++) {
		for (unsigned i = 0; i < CPC_ARRAY_SIZE(to); i++) {
			assert_int_equal(cpc_pool_open_volume(f.pool, "a", &vol), 0);
			assert_int_equal(cpc_volume_write(vol, buf, MIB, 0, 0), 0);
			if (round & 1)
				assert_int_equal(cpc_volume_flush(vol), 0);
			cpc_pool_close_volume(f.pool, vol);
			resize(&f, to[i]);
			if (round & 2)
				pool_rig_reopen(&f);
			resize(&f, MIB);
			assert_int_equal(cpc_pool_open_volume(f.pool, "a", &vol), 0);
			assert_true(zero_from(vol, to[i], MIB - to[i]));
			assert_false(zero_from(vol, to[i] - 1, 1));
			cpc_pool_close_volume(f.pool, vol);
		}
	}
	free(buf);
	pool_rig_finish(&f);
}

/* --- durable names, and not --- */

static void a_change_of_names_survives_a_crash(void **state)
{
	struct pool_rig f = {0};

	pool_rig_make(&f, 16 * MIB);
	for (unsigned i = 0; i < 30; i++) {
		assert_int_equal(pool_rig_create(&f, "a", MIB + i), 0);
		assert_int_equal(cpc_pool_rename(f.pool, "a", "b", &pool_rig_err), 0);
		cpc_pool_close(f.pool);
		cpc_powercut_crash_random(f.pc, i);
		pool_rig_open(&f);
		assert_int_equal(pool_rig_size_of(&f, "b"), MIB + i);
		assert_int_equal(pool_rig_size_of(&f, "a"), 0);
		assert_int_equal(cpc_pool_delete(f.pool, "b", &pool_rig_err), 0);
	}
	pool_rig_finish(&f);
}

/* The record is there, its flush failed: the change is in force, and durable with the next flush.
 */
static void a_change_of_names_that_was_not_flushed_says_so_and_stays(void **state)
{
	struct pool_rig f = {0};

	pool_rig_make(&f, 16 * MIB);
	assert_int_equal(pool_rig_create(&f, "b", MIB), 0);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_FLUSH, 1, false, -EIO);
	assert_int_equal(pool_rig_create(&f, "a", MIB), -EIO);
	pool_rig_assert_one_line();
	assert_non_null(strstr(pool_rig_err.text, "could not be made durable"));
	assert_int_equal(pool_rig_size_of(&f, "a"), MIB);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_FLUSH, 1, false, -EIO);
	assert_int_equal(cpc_pool_rename(f.pool, "b", "c", &pool_rig_err), -EIO);
	assert_int_equal(pool_rig_size_of(&f, "c"), MIB);
	assert_int_equal(cpc_pool_resize(f.pool, "a", 2 * MIB, false, &pool_rig_err), 0);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_FLUSH, 1, false, -EIO);
	assert_int_equal(cpc_pool_delete(f.pool, "c", &pool_rig_err), -EIO);
	assert_int_equal(pool_rig_size_of(&f, "c"), 0);
	assert_int_equal(cpc_pool_commit(f.pool), 0);
	cpc_pool_close(f.pool);
	cpc_powercut_crash_random(f.pc, 1);
	pool_rig_open(&f);
	assert_int_equal(pool_rig_size_of(&f, "a"), 2 * MIB);
	assert_int_equal(pool_rig_size_of(&f, "b"), 0);
	assert_int_equal(pool_rig_size_of(&f, "c"), 0);
	pool_rig_finish(&f);
}

static uint64_t id_of(struct pool_rig *f, const char *name)
{
	struct cpc_volume_info info;

	return cpc_pool_volume_info(f->pool, name, &info) ? 0 : info.id;
}

/* a -> t, b -> a, a new b: whenever the power goes, each name is the volume's that had it then. */
static void names_that_change_hands_find_their_volumes(void **state)
{
	static const uint64_t ids[][3] = {{1, 2, 0}, {0, 2, 1}, {2, 0, 1}, {2, 3, 1}};
	unsigned done = 0;

	for (unsigned nth = 1; done < 3; nth++) {
		struct pool_rig f = {0};
		bool found = false;

		pool_rig_make(&f, 16 * MIB);
		assert_int_equal(pool_rig_create(&f, "a", MIB), 0);
		assert_int_equal(pool_rig_create(&f, "b", MIB), 0);
		cpc_powercut_fail(f.pc, CPC_POWERCUT_WRITE, nth, true, -EIO);
		done = 0;
		done += !cpc_pool_rename(f.pool, "a", "t", &pool_rig_err);
		done += done == 1 && !cpc_pool_rename(f.pool, "b", "a", &pool_rig_err);
		done += done == 2 && !pool_rig_create(&f, "b", MIB);
		cpc_pool_close(f.pool);
		cpc_powercut_crash_random(f.pc, nth);
		cpc_powercut_clear_faults(f.pc);
		pool_rig_open(&f);
		for (unsigned i = done; i < CPC_ARRAY_SIZE(ids) && i < done + 2; i++)
			found |= id_of(&f, "a") == ids[i][0] && id_of(&f, "b") == ids[i][1] &&
				 id_of(&f, "t") == ids[i][2];
		assert_true(found);
		pool_rig_finish(&f);
	}
}

static void a_later_flush_of_any_volume_makes_up_for_a_failed_one(void **state)
{
	struct cpc_crash_choice choice;
	struct pool_rig f = {0};
	struct cpc_volume *vol;

	pool_rig_make(&f, 16 * MIB);
	assert_int_equal(pool_rig_create(&f, "a", MIB), 0);
	assert_int_equal(pool_rig_create(&f, "b", MIB), 0);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_FLUSH, 1, false, -EIO);
	assert_int_equal(cpc_pool_rename(f.pool, "a", "c", &pool_rig_err), -EIO);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_FLUSH, 1, false, -EIO);
	assert_int_equal(cpc_pool_resize(f.pool, "c", MIB / 2, true, &pool_rig_err), -EIO);
	assert_int_equal(cpc_pool_open_volume(f.pool, "b", &vol), 0);
	assert_int_equal(cpc_volume_flush(vol), 0);
	cpc_pool_close_volume(f.pool, vol);
	cpc_pool_close(f.pool);
	cpc_crash_choice_all(f.pc, CPC_FATE_LOST, &choice);
	cpc_powercut_crash(f.pc, &choice);
	cpc_crash_choice_free(&choice);
	pool_rig_open(&f);
	assert_int_equal(pool_rig_size_of(&f, "a"), 0);
	assert_int_equal(pool_rig_size_of(&f, "c"), MIB / 2);
	pool_rig_finish(&f);
}

static void a_change_of_names_that_cannot_be_logged_is_no_change(void **state)
{
	struct pool_rig f = {0};

	pool_rig_make(&f, 16 * MIB);
	assert_int_equal(pool_rig_create(&f, "b", MIB), 0);
	cpc_powercut_add_fault(f.pc, &(struct cpc_powercut_fault){
					 .op = CPC_POWERCUT_WRITE,
					 .cause_mask = 1u << CPC_CAUSE_LOG,
					 .nth = 1,
					 .sticky = true,
					 .error = -EIO,
				     });
	assert_int_equal(pool_rig_create(&f, "a", MIB), -EIO);
	pool_rig_assert_one_line();
	assert_int_equal(pool_rig_size_of(&f, "a"), 0);
	/* the ring cannot be written: nothing is promised any more */
	assert_false(cpc_pool_healthy(f.pool, NULL, 0));
	assert_int_equal(cpc_pool_rename(f.pool, "b", "c", &pool_rig_err), -EIO);
	assert_int_equal(pool_rig_size_of(&f, "b"), MIB);
	cpc_powercut_clear_faults(f.pc);
	cpc_pool_close(f.pool);
	cpc_powercut_kill(f.pc);
	pool_rig_open(&f);
	assert_int_equal(pool_rig_size_of(&f, "a"), 0);
	assert_int_equal(pool_rig_size_of(&f, "b"), MIB);
	pool_rig_finish(&f);
}

/* Commits that run already take volumes that are being created and deleted. */
static void *commit_all_the_time(void *arg)
{
	struct pool_rig *f = arg;

	while (!f->stop)
		cpc_pool_commit(f->pool);
	return NULL;
}

static void names_change_while_commits_run(void **state)
{
	struct pool_rig f = {.threads = true};
	struct cpc_volume *vol;
	pthread_t thread;
	char buf[8192];

	pool_rig_make(&f, 32 * MIB);
	memset(buf, 3, sizeof(buf));
	cpc_powercut_set_flush_delay(f.pc, 100);
	assert_int_equal(pthread_create(&thread, NULL, commit_all_the_time, &f), 0);
	pool_rig_errors_logged = 0;
	for (unsigned i = 0; i < 200; i++) {
		assert_int_equal(pool_rig_create(&f, "a", MIB), 0);
		assert_int_equal(cpc_pool_open_volume(f.pool, "a", &vol), 0);
		for (unsigned at = 0; at < 8; at++)
			assert_int_equal(cpc_volume_write(vol, buf, sizeof(buf), at * 16384, 0), 0);
		cpc_pool_close_volume(f.pool, vol);
		assert_int_equal(cpc_pool_rename(f.pool, "a", "b", &pool_rig_err), 0);
		assert_int_equal(cpc_pool_delete(f.pool, "b", &pool_rig_err), 0);
	}
	f.stop = true;
	pthread_join(thread, NULL);
	assert_int_equal(pool_rig_errors_logged, 0); /* of blocks that are freed twice */
	pool_rig_finish(&f);
}

static void *delete_a(void *arg)
{
	struct pool_rig *f = arg;

	return (void *)(intptr_t)cpc_pool_delete(f->pool, "a", &pool_rig_err);
}

static void *commit_once(void *arg)
{
	struct pool_rig *f = arg;

	return (void *)(intptr_t)cpc_pool_commit(f->pool);
}

static int join(pthread_t thread)
{
	void *ret;

	assert_int_equal(pthread_join(thread, &ret), 0);
	return (int)(intptr_t)ret;
}

/* A commit has begun when the volume is marked, deletes it, and the next one must not again. */
static void a_volume_is_deleted_once(void **state)
{
	struct pool_rig f = {.threads = true};
	struct cpc_volume *a, *b;
	pthread_t commit, delete;
	char buf[8192] = {1};

	pool_rig_make(&f, 32 * MIB);
	assert_int_equal(pool_rig_create(&f, "a", MIB), 0);
	assert_int_equal(pool_rig_create(&f, "b", MIB), 0);
	assert_int_equal(cpc_pool_open_volume(f.pool, "a", &a), 0);
	assert_int_equal(cpc_volume_write(a, buf, sizeof(buf), 0, CPC_FUA), 0);
	cpc_pool_close_volume(f.pool, a);
	assert_int_equal(cpc_pool_open_volume(f.pool, "b", &b), 0);
	assert_int_equal(cpc_volume_write(b, buf, sizeof(buf), 0, 0), 0);
	pool_rig_errors_logged = 0;
	cpc_powercut_hold(f.pc, CPC_HOLD_WRITE(CPC_CAUSE_DATA));
	assert_int_equal(pthread_create(&commit, NULL, commit_once, &f), 0);
	cpc_powercut_wait_held(f.pc, 1);
	assert_int_equal(pthread_create(&delete, NULL, delete_a, &f), 0);
	usleep(30000);
	cpc_powercut_release(f.pc);
	assert_int_equal(join(commit), 0);
	assert_int_equal(join(delete), 0);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(cpc_volume_write(b, buf, sizeof(buf), 0, 0), 0);
		assert_int_equal(cpc_pool_commit(f.pool), 0);
	}
	assert_int_equal(pool_rig_errors_logged, 0);
	cpc_pool_close_volume(f.pool, b);
	pool_rig_finish(&f);
}

/* Adds volumes to a pool that is closed, past all checks. */
static void commit_names(struct pool_rig *f, const char *const names[], unsigned nr)
{
	struct cpc_commit_volume volumes[3] = {0};
	struct cpc_commit_request req = {
	    .volumes = volumes, .nr_volumes = nr, .next_volume = nr + 1, .clean = true};
	struct cpc_backing *backing;
	struct cpc_store *store;
	const char *why;

	for (unsigned i = 0; i < nr; i++) {
		volumes[i].item.id = i + 1;
		volumes[i].item.size = MIB;
		snprintf(volumes[i].item.name, sizeof(volumes[i].item.name), "%s", names[i]);
	}
	assert_int_equal(cpc_powercut_reopen(f->pc, &backing), 0);
	assert_int_equal(cpc_store_open(backing, false, MIB, NULL, NULL, &store, &why), 0);
	assert_int_equal(cpc_store_commit(store, &req), 0);
	cpc_pins_put(req.pins);
	cpc_store_close(store);
	cpc_backing_close(backing);
}

static void a_pool_with_two_volumes_of_one_name_is_refused(void **state)
{
	static const char *const names[] = {"b", "a", "b"};
	struct cpc_backing *backing;
	struct pool_rig f = {0};

	for (unsigned nr = 2; nr <= 3; nr++) {
		int ret;

		pool_rig_make(&f, 16 * MIB);
		assert_int_equal(cpc_pool_shutdown(f.pool), 0);
		cpc_pool_close(f.pool);
		commit_names(&f, names, nr);
		assert_int_equal(cpc_powercut_reopen(f.pc, &backing), 0);
		ret = cpc_pool_open_backing(backing, &f.opts, &f.pool, &pool_rig_err);
		assert_int_equal(ret, nr == 3 ? -EUCLEAN : 0);
		if (ret) {
			pool_rig_assert_one_line();
			cpc_powercut_destroy(f.pc);
			continue;
		}
		assert_int_equal(pool_rig_size_of(&f, "a"), MIB);
		assert_int_equal(pool_rig_size_of(&f, "b"), MIB);
		pool_rig_finish(&f);
	}
}

static void volumes_have_uuids_of_version_4(void **state)
{
	struct cpc_volume_info info[2];
	struct cpc_pool_info pi;
	struct pool_rig f = {0};

	pool_rig_make(&f, 16 * MIB);
	assert_int_equal(pool_rig_create(&f, "a", MIB), 0);
	assert_int_equal(pool_rig_create(&f, "b", MIB), 0);
	assert_int_equal(cpc_pool_volume_info(f.pool, "a", &info[0]), 0);
	assert_int_equal(cpc_pool_volume_info(f.pool, "b", &info[1]), 0);
	cpc_pool_info(f.pool, &pi);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(info[i].uuid[6] >> 4, 4);
		assert_int_equal(info[i].uuid[8] >> 6, 2);
	}
	assert_memory_not_equal(info[0].uuid, info[1].uuid, CPC_UUID_SIZE);
	assert_int_equal(pi.uuid_text[14], '4');
	assert_string_equal(pi.label, "a label");
	pool_rig_finish(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(names_are_checked_and_listed_in_order),
	    cmocka_unit_test(a_list_is_sorted_and_can_be_stopped),
	    cmocka_unit_test(a_name_moves_with_its_volume),
	    cmocka_unit_test(open_volumes_are_not_deleted_or_shrunk_but_grow),
	    cmocka_unit_test(deleting_gives_back_everything),
	    cmocka_unit_test(sizes_have_limits_and_are_exact),
	    cmocka_unit_test(what_comes_back_by_growing_is_zero),
	    cmocka_unit_test(a_change_of_names_survives_a_crash),
	    cmocka_unit_test(a_change_of_names_that_was_not_flushed_says_so_and_stays),
	    cmocka_unit_test(names_that_change_hands_find_their_volumes),
	    cmocka_unit_test(a_later_flush_of_any_volume_makes_up_for_a_failed_one),
	    cmocka_unit_test(a_change_of_names_that_cannot_be_logged_is_no_change),
	    cmocka_unit_test(names_change_while_commits_run),
	    cmocka_unit_test(a_volume_is_deleted_once),
	    cmocka_unit_test(a_pool_with_two_volumes_of_one_name_is_refused),
	    cmocka_unit_test(volumes_have_uuids_of_version_4),
	};

	return cmocka_run_group_tests(tests, pool_rig_quiet, NULL);
}
