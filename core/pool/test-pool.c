/* SPDX-License-Identifier: BSD-3-Clause */
/* What the door of the library promises: formatting, opening, names, sizes, counters. */
#include "pool/pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "backing/powercut.h"
#include "check/check.h"
#include "lib/hooks.h"
#include "lib/log.h"
#include "volume/volume.h"

#define MIB (1024ull * 1024)

static struct cpc_error err;

struct fixture {
	struct cpc_powercut *pc;
	struct cpc_pool *pool;
	struct cpc_pool_options opts;
	bool threads;
	_Atomic bool stop; /* commit_all_the_time */
};

static _Atomic unsigned errors_logged;

static void no_message(enum cpc_log_level level, const char *line)
{
	errors_logged += level == CPC_LOG_ERROR;
}

static void open_pool(struct fixture *f)
{
	struct cpc_backing *backing;

	assert_int_equal(cpc_powercut_reopen(f->pc, &backing), 0);
	if (cpc_pool_open_backing(backing, &f->opts, &f->pool, &err))
		fail_msg("%s", err.text);
	assert_int_equal(cpc_pool_start(f->pool, &err), 0);
}

static void make(struct fixture *f, uint64_t size)
{
	struct cpc_format_options fo = {.nodesize = 4096, .label = "a label"};
	struct cpc_backing *backing;

	f->pool = NULL;
	cpc_pool_options_init(&f->opts);
	f->opts.cache = 4 * MIB;
	f->opts.no_threads = !f->threads;
	f->opts.commit_interval = 0;
	assert_int_equal(cpc_powercut_create(size, &f->pc), 0);
	assert_int_equal(cpc_powercut_reopen(f->pc, &backing), 0);
	assert_int_equal(cpc_pool_format_backing(backing, &fo, &err), 0);
	cpc_backing_close(backing);
	open_pool(f);
}

static void reopen(struct fixture *f)
{
	assert_int_equal(cpc_pool_shutdown(f->pool), 0);
	cpc_pool_close(f->pool);
	open_pool(f);
}

static void print_line(void *ctx, const char *line)
{
	print_message("  %s\n", line);
}

/* Shuts down, checks and frees. */
static void finish(struct fixture *f)
{
	struct cpc_check_options opts = {.data = true, .report = print_line};
	struct cpc_check_result result;
	struct cpc_backing *backing;

	assert_int_equal(cpc_pool_shutdown(f->pool), 0);
	cpc_pool_close(f->pool);
	assert_int_equal(cpc_powercut_reopen(f->pc, &backing), 0);
	assert_int_equal(cpc_check(backing, &opts, &result), 0);
	assert_int_equal(result.errors, 0);
	cpc_backing_close(backing);
	cpc_powercut_destroy(f->pc);
}

static int create(struct fixture *f, const char *name, uint64_t size)
{
	err.text[0] = '\0';
	return cpc_pool_create_volume(f->pool, name, size, &err);
}

static uint64_t size_of(struct fixture *f, const char *name)
{
	struct cpc_volume_info info;

	return cpc_pool_volume_info(f->pool, name, &info) ? 0 : info.size;
}

/* One line that says something. */
static void assert_one_line(void)
{
	assert_true(err.text[0] != '\0');
	assert_null(strchr(err.text, '\n'));
}

/* --- names --- */

static void names_are_checked_and_listed_in_order(void **state)
{
	static const char *const bad[] = {"", "-a", ".a", "a/b", "a b", "a@b", "\xc3\xa4"};
	char longest[257];
	struct fixture f = {0};

	memset(longest, 'x', 256);
	longest[256] = '\0';
	make(&f, 16 * MIB);
	for (unsigned i = 0; i < CPC_ARRAY_SIZE(bad); i++) {
		assert_int_equal(create(&f, bad[i], MIB), -EINVAL);
		assert_one_line();
	}
	assert_int_equal(create(&f, longest, MIB), -EINVAL);
	longest[255] = '\0';
	assert_int_equal(create(&f, longest, MIB), 0);
	assert_int_equal(create(&f, "b", MIB), 0);
	assert_int_equal(create(&f, "B-1.x_", MIB), 0);
	assert_int_equal(create(&f, "a", MIB), 0);
	assert_int_equal(create(&f, "a", MIB), -EEXIST);
	assert_one_line();
	reopen(&f);
	assert_int_equal(size_of(&f, longest), MIB);
	finish(&f);
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
	struct fixture f = {0};
	char name[16];

	make(&f, 16 * MIB);
	for (unsigned i = 0; i < 40; i++) {
		snprintf(name, sizeof(name), "v%u", i * 7 % 40);
		assert_int_equal(create(&f, name, 1 + i), 0);
	}
	for (unsigned round = 0; round < 2; round++) {
		memset(&list, 0, sizeof(list));
		assert_int_equal(cpc_pool_list(f.pool, note_name, &list), 0);
		assert_int_equal(list.nr, 40);
		for (unsigned i = 1; i < list.nr; i++)
			assert_true(strcmp(list.names[i - 1], list.names[i]) < 0);
		reopen(&f);
	}
	memset(&list, 0, sizeof(list));
	list.stop = 3;
	assert_int_equal(cpc_pool_list(f.pool, note_name, &list), 7);
	assert_int_equal(list.nr, 3);
	finish(&f);
}

static void a_name_moves_with_its_volume(void **state)
{
	struct cpc_volume_info before, after;
	struct cpc_volume *vol;
	struct fixture f = {0};
	char buf[4] = "abcd";

	make(&f, 16 * MIB);
	assert_int_equal(create(&f, "a", MIB), 0);
	assert_int_equal(create(&f, "c", MIB), 0);
	assert_int_equal(cpc_pool_volume_info(f.pool, "a", &before), 0);
	assert_int_equal(cpc_pool_open_volume(f.pool, "a", &vol), 0);
	assert_int_equal(cpc_volume_write(vol, buf, 4, 10, 0), 0);
	assert_int_equal(cpc_pool_rename(f.pool, "x", "y", &err), -ENOENT);
	assert_int_equal(cpc_pool_rename(f.pool, "a", "c", &err), -EEXIST);
	assert_int_equal(cpc_pool_rename(f.pool, "a", "a", &err), -EEXIST);
	assert_int_equal(cpc_pool_rename(f.pool, "a", "-", &err), -EINVAL);
	assert_int_equal(cpc_pool_rename(f.pool, "a", "z", &err), 0);
	assert_int_equal(cpc_pool_volume_info(f.pool, "a", &after), -ENOENT);
	assert_int_equal(create(&f, "a", 2 * MIB), 0);
	cpc_pool_close_volume(f.pool, vol);
	reopen(&f);
	assert_int_equal(cpc_pool_volume_info(f.pool, "z", &after), 0);
	assert_int_equal(after.id, before.id);
	assert_memory_equal(after.uuid, before.uuid, CPC_UUID_SIZE);
	assert_int_equal(cpc_pool_open_volume(f.pool, "z", &vol), 0);
	memset(buf, 0, sizeof(buf));
	assert_int_equal(cpc_volume_read(vol, buf, 4, 10), 0);
	assert_memory_equal(buf, "abcd", 4);
	cpc_pool_close_volume(f.pool, vol);
	finish(&f);
}

static void open_volumes_are_not_deleted_or_shrunk_but_grow(void **state)
{
	struct cpc_volume *vol, *second;
	struct cpc_volume_info info;
	struct fixture f = {0};

	make(&f, 16 * MIB);
	assert_int_equal(create(&f, "a", MIB), 0);
	assert_int_equal(cpc_pool_open_volume(f.pool, "b", &vol), -ENOENT);
	assert_int_equal(cpc_pool_open_volume(f.pool, "a", &vol), 0);
	assert_int_equal(cpc_pool_open_volume(f.pool, "a", &second), 0);
	assert_int_equal(cpc_pool_volume_info(f.pool, "a", &info), 0);
	assert_int_equal(info.open, 2);
	cpc_pool_close_volume(f.pool, second);
	assert_int_equal(cpc_pool_delete(f.pool, "a", &err), -EBUSY);
	assert_non_null(strstr(err.text, "1 client connection has it open"));
	assert_int_equal(cpc_pool_resize(f.pool, "a", 4096, true, &err), -EBUSY);
	assert_int_equal(cpc_pool_resize(f.pool, "a", 2 * MIB, false, &err), 0);
	assert_int_equal(cpc_volume_size(vol), 2 * MIB);
	cpc_pool_close_volume(f.pool, vol);
	assert_int_equal(cpc_pool_resize(f.pool, "a", 4096, false, &err), -EINVAL);
	assert_non_null(strstr(err.text, "--shrink"));
	assert_int_equal(cpc_pool_resize(f.pool, "a", 4096, true, &err), 0);
	assert_int_equal(cpc_pool_delete(f.pool, "a", &err), 0);
	assert_int_equal(cpc_pool_delete(f.pool, "a", &err), -ENOENT);
	finish(&f);
}

static void deleting_gives_back_everything(void **state)
{
	struct cpc_pool_info before, after;
	struct fixture f = {0};
	struct cpc_volume *vol;
	char *buf = calloc(1, MIB);

	make(&f, 64 * MIB);
	memset(buf, 1, MIB);
	cpc_pool_info(f.pool, &before);
	for (unsigned round = 0; round < 20; round++) {
		assert_int_equal(create(&f, "a", 64 * MIB), 0);
		assert_int_equal(cpc_pool_open_volume(f.pool, "a", &vol), 0);
		for (unsigned i = 0; i < 8; i++)
			assert_int_equal(cpc_volume_write(vol, buf, MIB, i * 3 * MIB, 0), 0);
		cpc_pool_close_volume(f.pool, vol);
		assert_int_equal(cpc_pool_delete(f.pool, "a", &err), 0);
	}
	cpc_pool_settle(f.pool);
	cpc_pool_info(f.pool, &after);
	assert_true(after.used < before.used + 64 * 4096);
	free(buf);
	finish(&f);
}

/* --- sizes --- */

static void sizes_have_limits_and_are_exact(void **state)
{
	static const uint64_t sizes[] = {1, 511, 4095, 4097, 1000000007, 1ull << 62};
	struct fixture f = {0};
	char name[8];

	make(&f, 16 * MIB);
	assert_int_equal(create(&f, "v", 0), -EINVAL);
	assert_int_equal(create(&f, "v", (1ull << 63) + 1), -EINVAL);
	assert_int_equal(create(&f, "v", UINT64_MAX), -EINVAL);
	assert_one_line();
	assert_int_equal(create(&f, "max", 1ull << 63), 0);
	assert_int_equal(create(&f, "max1", (1ull << 63) - 1), 0);
	for (unsigned i = 0; i < CPC_ARRAY_SIZE(sizes); i++) {
		snprintf(name, sizeof(name), "v%u", i);
		assert_int_equal(create(&f, name, sizes[i]), 0);
	}
	assert_int_equal(cpc_pool_resize(f.pool, "v0", 0, true, &err), -EINVAL);
	assert_int_equal(cpc_pool_resize(f.pool, "v0", UINT64_MAX, true, &err), -EINVAL);
	reopen(&f);
	assert_int_equal(size_of(&f, "max"), (1ull << 63) - 4096);
	assert_int_equal(size_of(&f, "max1"), (1ull << 63) - 4096);
	for (unsigned i = 0; i < CPC_ARRAY_SIZE(sizes); i++) {
		snprintf(name, sizeof(name), "v%u", i);
		assert_int_equal(size_of(&f, name), sizes[i]);
	}
	finish(&f);
}

static void resize(struct fixture *f, uint64_t size)
{
	if (cpc_pool_resize(f->pool, "a", size, true, &err))
		fail_msg("%s", err.text);
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
	struct fixture f = {0};
	struct cpc_volume *vol;
	char *buf = malloc(MIB);

	memset(buf, 0xaa, MIB);
	make(&f, 32 * MIB);
	assert_int_equal(create(&f, "a", MIB), 0);
	for (unsigned round = 0; round < 4; round++) {
		for (unsigned i = 0; i < CPC_ARRAY_SIZE(to); i++) {
			assert_int_equal(cpc_pool_open_volume(f.pool, "a", &vol), 0);
			assert_int_equal(cpc_volume_write(vol, buf, MIB, 0, 0), 0);
			if (round & 1)
				assert_int_equal(cpc_volume_flush(vol), 0);
			cpc_pool_close_volume(f.pool, vol);
			resize(&f, to[i]);
			if (round & 2)
				reopen(&f);
			resize(&f, MIB);
			assert_int_equal(cpc_pool_open_volume(f.pool, "a", &vol), 0);
			assert_true(zero_from(vol, to[i], MIB - to[i]));
			assert_false(zero_from(vol, to[i] - 1, 1));
			cpc_pool_close_volume(f.pool, vol);
		}
	}
	free(buf);
	finish(&f);
}

/* --- durable names, and not --- */

static void a_change_of_names_survives_a_crash(void **state)
{
	struct fixture f = {0};

	make(&f, 16 * MIB);
	for (unsigned i = 0; i < 30; i++) {
		assert_int_equal(create(&f, "a", MIB + i), 0);
		assert_int_equal(cpc_pool_rename(f.pool, "a", "b", &err), 0);
		cpc_pool_close(f.pool);
		cpc_powercut_crash_random(f.pc, i);
		open_pool(&f);
		assert_int_equal(size_of(&f, "b"), MIB + i);
		assert_int_equal(size_of(&f, "a"), 0);
		assert_int_equal(cpc_pool_delete(f.pool, "b", &err), 0);
	}
	finish(&f);
}

/* The record is there, its flush failed: the change is in force, and durable with the next flush.
 */
static void a_change_of_names_that_was_not_flushed_says_so_and_stays(void **state)
{
	struct fixture f = {0};

	make(&f, 16 * MIB);
	assert_int_equal(create(&f, "b", MIB), 0);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_FLUSH, 1, false, -EIO);
	assert_int_equal(create(&f, "a", MIB), -EIO);
	assert_one_line();
	assert_non_null(strstr(err.text, "could not be made durable"));
	assert_int_equal(size_of(&f, "a"), MIB);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_FLUSH, 1, false, -EIO);
	assert_int_equal(cpc_pool_rename(f.pool, "b", "c", &err), -EIO);
	assert_int_equal(size_of(&f, "c"), MIB);
	assert_int_equal(cpc_pool_resize(f.pool, "a", 2 * MIB, false, &err), 0);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_FLUSH, 1, false, -EIO);
	assert_int_equal(cpc_pool_delete(f.pool, "c", &err), -EIO);
	assert_int_equal(size_of(&f, "c"), 0);
	assert_int_equal(cpc_pool_commit(f.pool), 0);
	cpc_pool_close(f.pool);
	cpc_powercut_crash_random(f.pc, 1);
	open_pool(&f);
	assert_int_equal(size_of(&f, "a"), 2 * MIB);
	assert_int_equal(size_of(&f, "b"), 0);
	assert_int_equal(size_of(&f, "c"), 0);
	finish(&f);
}

static uint64_t id_of(struct fixture *f, const char *name)
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
		struct fixture f = {0};
		bool found = false;

		make(&f, 16 * MIB);
		assert_int_equal(create(&f, "a", MIB), 0);
		assert_int_equal(create(&f, "b", MIB), 0);
		cpc_powercut_fail(f.pc, CPC_POWERCUT_WRITE, nth, true, -EIO);
		done = 0;
		done += !cpc_pool_rename(f.pool, "a", "t", &err);
		done += done == 1 && !cpc_pool_rename(f.pool, "b", "a", &err);
		done += done == 2 && !create(&f, "b", MIB);
		cpc_pool_close(f.pool);
		cpc_powercut_crash_random(f.pc, nth);
		cpc_powercut_clear_faults(f.pc);
		open_pool(&f);
		for (unsigned i = done; i < CPC_ARRAY_SIZE(ids) && i < done + 2; i++)
			found |= id_of(&f, "a") == ids[i][0] && id_of(&f, "b") == ids[i][1] &&
				 id_of(&f, "t") == ids[i][2];
		assert_true(found);
		finish(&f);
	}
}

static void a_later_flush_of_any_volume_makes_up_for_a_failed_one(void **state)
{
	struct cpc_crash_choice choice;
	struct fixture f = {0};
	struct cpc_volume *vol;

	make(&f, 16 * MIB);
	assert_int_equal(create(&f, "a", MIB), 0);
	assert_int_equal(create(&f, "b", MIB), 0);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_FLUSH, 1, false, -EIO);
	assert_int_equal(cpc_pool_rename(f.pool, "a", "c", &err), -EIO);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_FLUSH, 1, false, -EIO);
	assert_int_equal(cpc_pool_resize(f.pool, "c", MIB / 2, true, &err), -EIO);
	assert_int_equal(cpc_pool_open_volume(f.pool, "b", &vol), 0);
	assert_int_equal(cpc_volume_flush(vol), 0);
	cpc_pool_close_volume(f.pool, vol);
	cpc_pool_close(f.pool);
	cpc_crash_choice_all(f.pc, CPC_FATE_LOST, &choice);
	cpc_powercut_crash(f.pc, &choice);
	cpc_crash_choice_free(&choice);
	open_pool(&f);
	assert_int_equal(size_of(&f, "a"), 0);
	assert_int_equal(size_of(&f, "c"), MIB / 2);
	finish(&f);
}

static void a_change_of_names_that_cannot_be_logged_is_no_change(void **state)
{
	struct fixture f = {0};

	make(&f, 16 * MIB);
	assert_int_equal(create(&f, "b", MIB), 0);
	cpc_powercut_add_fault(f.pc, &(struct cpc_powercut_fault){
					 .op = CPC_POWERCUT_WRITE,
					 .cause_mask = 1u << CPC_CAUSE_LOG,
					 .nth = 1,
					 .sticky = true,
					 .error = -EIO,
				     });
	assert_int_equal(create(&f, "a", MIB), -EIO);
	assert_one_line();
	assert_int_equal(size_of(&f, "a"), 0);
	/* the ring cannot be written: nothing is promised any more */
	assert_false(cpc_pool_healthy(f.pool, NULL, 0));
	assert_int_equal(cpc_pool_rename(f.pool, "b", "c", &err), -EIO);
	assert_int_equal(size_of(&f, "b"), MIB);
	cpc_powercut_clear_faults(f.pc);
	cpc_pool_close(f.pool);
	cpc_powercut_kill(f.pc);
	open_pool(&f);
	assert_int_equal(size_of(&f, "a"), 0);
	assert_int_equal(size_of(&f, "b"), MIB);
	finish(&f);
}

/* Commits that run already take volumes that are being created and deleted. */
static void *commit_all_the_time(void *arg)
{
	struct fixture *f = arg;

	while (!f->stop)
		cpc_pool_commit(f->pool);
	return NULL;
}

static void names_change_while_commits_run(void **state)
{
	struct fixture f = {.threads = true};
	struct cpc_volume *vol;
	pthread_t thread;
	char buf[8192];

	make(&f, 32 * MIB);
	memset(buf, 3, sizeof(buf));
	cpc_powercut_set_flush_delay(f.pc, 100);
	assert_int_equal(pthread_create(&thread, NULL, commit_all_the_time, &f), 0);
	errors_logged = 0;
	for (unsigned i = 0; i < 200; i++) {
		assert_int_equal(create(&f, "a", MIB), 0);
		assert_int_equal(cpc_pool_open_volume(f.pool, "a", &vol), 0);
		for (unsigned at = 0; at < 8; at++)
			assert_int_equal(cpc_volume_write(vol, buf, sizeof(buf), at * 16384, 0), 0);
		cpc_pool_close_volume(f.pool, vol);
		assert_int_equal(cpc_pool_rename(f.pool, "a", "b", &err), 0);
		assert_int_equal(cpc_pool_delete(f.pool, "b", &err), 0);
	}
	f.stop = true;
	pthread_join(thread, NULL);
	assert_int_equal(errors_logged, 0); /* of blocks that are freed twice */
	finish(&f);
}

static void *delete_a(void *arg)
{
	struct fixture *f = arg;

	return (void *)(intptr_t)cpc_pool_delete(f->pool, "a", &err);
}

static void *commit_once(void *arg)
{
	struct fixture *f = arg;

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
	struct fixture f = {.threads = true};
	struct cpc_volume *a, *b;
	pthread_t commit, delete;
	char buf[8192] = {1};

	make(&f, 32 * MIB);
	assert_int_equal(create(&f, "a", MIB), 0);
	assert_int_equal(create(&f, "b", MIB), 0);
	assert_int_equal(cpc_pool_open_volume(f.pool, "a", &a), 0);
	assert_int_equal(cpc_volume_write(a, buf, sizeof(buf), 0, CPC_FUA), 0);
	cpc_pool_close_volume(f.pool, a);
	assert_int_equal(cpc_pool_open_volume(f.pool, "b", &b), 0);
	assert_int_equal(cpc_volume_write(b, buf, sizeof(buf), 0, 0), 0);
	errors_logged = 0;
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
	assert_int_equal(errors_logged, 0);
	cpc_pool_close_volume(f.pool, b);
	finish(&f);
}

static void volumes_have_uuids_of_version_4(void **state)
{
	struct cpc_volume_info info[2];
	struct cpc_pool_info pi;
	struct fixture f = {0};

	make(&f, 16 * MIB);
	assert_int_equal(create(&f, "a", MIB), 0);
	assert_int_equal(create(&f, "b", MIB), 0);
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
	finish(&f);
}

/* --- opening --- */

static void a_read_only_pool_is_not_written(void **state)
{
	struct fixture f = {0};
	struct cpc_volume *vol;
	uint64_t writes;
	char buf[4096];

	make(&f, 16 * MIB);
	assert_int_equal(create(&f, "a", MIB), 0);
	assert_int_equal(cpc_pool_shutdown(f.pool), 0);
	cpc_pool_close(f.pool);
	writes = cpc_powercut_count(f.pc, CPC_POWERCUT_WRITE);
	f.opts.read_only = true;
	open_pool(&f);
	assert_int_equal(create(&f, "b", MIB), -EROFS);
	assert_int_equal(cpc_pool_delete(f.pool, "a", &err), -EROFS);
	assert_int_equal(cpc_pool_rename(f.pool, "a", "b", &err), -EROFS);
	assert_int_equal(cpc_pool_resize(f.pool, "a", 5 * MIB, true, &err), -EROFS);
	assert_int_equal(cpc_pool_open_volume(f.pool, "a", &vol), 0);
	assert_true(cpc_volume_read_only(vol));
	assert_int_equal(cpc_volume_read(vol, buf, sizeof(buf), 0), 0);
	assert_int_equal(cpc_volume_write(vol, buf, sizeof(buf), 0, 0), -EROFS);
	assert_int_equal(cpc_volume_trim(vol, 4096, 0, 0), -EROFS);
	assert_int_equal(cpc_volume_zero(vol, 4096, 0, 0), -EROFS);
	assert_int_equal(cpc_volume_flush(vol), 0);
	cpc_pool_close_volume(f.pool, vol);
	cpc_pool_settle(f.pool);
	assert_int_equal(cpc_pool_shutdown(f.pool), 0);
	cpc_pool_close(f.pool);
	assert_int_equal(cpc_powercut_count(f.pc, CPC_POWERCUT_WRITE), writes);
	f.opts.read_only = false;
	open_pool(&f);
	finish(&f);
}

static void a_shut_down_pool_refuses_requests(void **state)
{
	struct fixture f = {0};
	struct cpc_volume *vol, *other;
	char buf[512] = {0};

	make(&f, 16 * MIB);
	assert_int_equal(create(&f, "a", MIB), 0);
	assert_int_equal(cpc_pool_open_volume(f.pool, "a", &vol), 0);
	assert_int_equal(cpc_pool_shutdown(f.pool), 0);
	assert_int_equal(cpc_pool_shutdown(f.pool), 0);
	assert_int_equal(create(&f, "b", MIB), -ESHUTDOWN);
	assert_int_equal(cpc_pool_open_volume(f.pool, "a", &other), -ESHUTDOWN);
	assert_int_equal(cpc_volume_write(vol, buf, 512, 0, 0), -ESHUTDOWN);
	assert_int_equal(cpc_volume_read(vol, buf, 512, 0), -ESHUTDOWN);
	assert_int_equal(cpc_volume_trim(vol, 4096, 0, 0), -ESHUTDOWN);
	assert_int_equal(cpc_volume_zero(vol, 4096, 0, 0), -ESHUTDOWN);
	assert_int_equal(cpc_volume_flush(vol), -ESHUTDOWN);
	cpc_pool_close_volume(f.pool, vol);
	finish(&f);
}

static void too_little_memory_is_refused(void **state)
{
	struct cpc_backing *backing;
	struct fixture f = {0};
	struct cpc_pool *pool;

	make(&f, 16 * MIB);
	assert_int_equal(cpc_pool_shutdown(f.pool), 0);
	cpc_pool_close(f.pool);
	f.opts.cache = CPC_CACHE_MIN - 1;
	assert_int_equal(cpc_powercut_reopen(f.pc, &backing), 0);
	assert_int_equal(cpc_pool_open_backing(backing, &f.opts, &pool, &err), -EINVAL);
	assert_one_line();
	f.opts.cache = CPC_CACHE_MIN;
	f.opts.dirty = 1;
	open_pool(&f);
	assert_int_equal(create(&f, "a", MIB), 0);
	finish(&f);
}

static unsigned allocs_left = UINT32_MAX;

static void *failing_alloc(size_t align, size_t size)
{
	if (allocs_left == 0)
		return NULL;
	if (allocs_left != UINT32_MAX)
		allocs_left--;
	return cpc_hooks_default.alloc(align, size);
}

static void without_memory_opening_fails_and_leaves_nothing(void **state)
{
	struct cpc_backing *backing;
	struct fixture f = {0};
	int ret = -ENOMEM;

	make(&f, 16 * MIB);
	for (unsigned i = 0; i < 5; i++) {
		char name[2] = {(char)('a' + i)};

		assert_int_equal(create(&f, name, MIB), 0);
	}
	cpc_pool_close(f.pool);
	cpc_hooks.alloc = failing_alloc;
	for (unsigned n = 0; ret; n++) {
		assert_int_equal(cpc_powercut_reopen(f.pc, &backing), 0);
		allocs_left = n;
		ret = cpc_pool_open_backing(backing, &f.opts, &f.pool, &err);
		allocs_left = UINT32_MAX;
		if (ret) {
			assert_int_equal(ret, -ENOMEM);
			assert_one_line();
		}
	}
	cpc_hooks = cpc_hooks_default;
	assert_int_equal(size_of(&f, "e"), MIB);
	finish(&f);
}

/* --- formatting --- */

struct signature {
	unsigned offset;
	const char *magic;
	const char *what;
};

static const struct signature signatures[] = {
    {0x438, "\x53\xef", "ext"},	 {0, "XFSB", "XFS"},	   {0x10040, "_BHRfS_M", "btrfs"},
    {0, "LUKS\xba\xbe", "LUKS"}, {512, "EFI PART", "GPT"}, {510, "\x55\xaa", "partition"},
    {536, "LVM2 001", "LVM"},	 {0, "QFI\xfb", "qcow2"},  {4086, "SWAPSPACE2", "swap"},
    {3, "NTFS", "NTFS"},	 {32769, "CD001", "ISO"},
};

static char path[64];

static void make_file(uint64_t size)
{
	int fd;

	snprintf(path, sizeof(path), "/tmp/cpc-test-pool.XXXXXX");
	fd = mkstemp(path);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	close(fd);
}

static void put(unsigned offset, const char *bytes)
{
	FILE *file = fopen(path, "r+");

	assert_non_null(file);
	assert_int_equal(fseek(file, offset, SEEK_SET), 0);
	assert_int_equal(fwrite(bytes, 1, strlen(bytes), file), strlen(bytes));
	fclose(file);
}

static void what_is_recognized_is_not_overwritten(void **state)
{
	struct cpc_format_options opts = {.sparse = true};

	for (unsigned i = 0; i < CPC_ARRAY_SIZE(signatures); i++) {
		make_file(8 * MIB);
		put(signatures[i].offset, signatures[i].magic);
		assert_int_equal(cpc_pool_format(path, &opts, &err), -EEXIST);
		if (!strstr(err.text, signatures[i].what) || !strstr(err.text, "--force"))
			fail_msg("%s", err.text);
		assert_one_line();
		opts.force = true;
		assert_int_equal(cpc_pool_format(path, &opts, &err), 0);
		opts.force = false;
		/* now it is a pool */
		assert_int_equal(cpc_pool_format(path, &opts, &err), -EEXIST);
		assert_non_null(strstr(err.text, "a Coppice pool"));
		unlink(path);
	}
}

static void a_pool_is_recognized_by_its_second_ring(void **state)
{
	static const char zeroes[8 * 4096];
	struct cpc_format_options opts = {.sparse = true};
	FILE *file;

	make_file(8 * MIB);
	assert_int_equal(cpc_pool_format(path, &opts, &err), 0);
	file = fopen(path, "r+");
	assert_int_equal(fwrite(zeroes, sizeof(zeroes), 1, file), 1);
	fclose(file);
	assert_int_equal(cpc_pool_format(path, &opts, &err), -EEXIST);
	unlink(path);
}

static int format_with(uint64_t size, const struct cpc_format_options *opts)
{
	int ret;

	make_file(size);
	ret = cpc_pool_format(path, opts, &err);
	if (ret)
		assert_one_line();
	unlink(path);
	return ret;
}

static void impossible_shapes_are_refused(void **state)
{
	struct cpc_format_options opts = {.sparse = true};

	assert_int_equal(format_with(4 * MIB - 4096, &opts), -EINVAL);
	assert_int_equal(format_with(0, &opts), -EINVAL);
	opts.nodesize = 4096;
	assert_int_equal(format_with(4 * MIB, &opts), 0);
	for (unsigned i = 0; i < 5; i++) {
		static const uint32_t bad[] = {2048, 5000, 12288, 131072, 1u << 31};

		opts.nodesize = bad[i];
		assert_int_equal(format_with(64 * MIB, &opts), -EINVAL);
	}
	opts.nodesize = 65536;
	assert_int_equal(format_with(4 * MIB, &opts), -EINVAL);
	assert_int_equal(format_with(64 * MIB, &opts), 0);
	for (unsigned i = 0; i < 4; i++) {
		static const uint64_t bad[] = {4096, 130000, 32 * MIB, 1ull << 40};

		opts.log_size = bad[i];
		assert_int_equal(format_with(64 * MIB, &opts), -EINVAL);
	}
	opts = (struct cpc_format_options){0};
	assert_int_equal(cpc_pool_format("/nonexistent/pool", &opts, &err), -ENOENT);
	opts.size = 8 * MIB;
	assert_true(cpc_pool_format("/nonexistent/pool", &opts, &err) < 0);
	assert_one_line();
}

static void a_file_is_made_whole_and_not_resized(void **state)
{
	struct cpc_format_options opts = {.size = 8 * MIB};
	struct cpc_pool_options po;
	struct cpc_pool *pool, *second;

	make_file(8 * MIB);
	unlink(path);
	assert_int_equal(cpc_pool_format(path, &opts, &err), 0);
	opts.size = 16 * MIB;
	opts.force = true;
	assert_int_equal(cpc_pool_format(path, &opts, &err), -EEXIST);
	cpc_pool_options_init(&po);
	po.cache = CPC_CACHE_MIN;
	assert_int_equal(cpc_pool_open(path, &po, &pool, &err), 0);
	assert_int_equal(cpc_pool_open(path, &po, &second, &err), -EBUSY);
	assert_one_line();
	opts.size = 0;
	assert_int_equal(cpc_pool_format(path, &opts, &err), -EBUSY);
	cpc_pool_close(pool);
	unlink(path);
}

static void foreign_and_empty_files_are_not_pools(void **state)
{
	struct cpc_pool_options po;
	struct cpc_pool *pool;

	cpc_pool_options_init(&po);
	make_file(8 * MIB);
	assert_int_equal(cpc_pool_open(path, &po, &pool, &err), -EINVAL);
	assert_non_null(strstr(err.text, "not a Coppice pool"));
	put(0, "CoppiceP");
	assert_int_equal(cpc_pool_open(path, &po, &pool, &err), -EUCLEAN);
	assert_one_line();
	unlink(path);
	assert_true(cpc_pool_open(path, &po, &pool, &err) < 0);
	assert_one_line();
}

/* --- counters --- */

struct names {
	unsigned nr;
	char name[128][48];
	enum cpc_stat_kind kind[128];
};

static void note_stat(void *ctx, const struct cpc_stat *stat)
{
	struct names *names = ctx;

	assert_true(names->nr < 128);
	snprintf(names->name[names->nr], sizeof(names->name[0]), "%s", stat->name);
	names->kind[names->nr++] = stat->kind;
	assert_true(stat->help && *stat->help && !strpbrk(stat->help, "\\\"\n"));
	assert_int_equal(stat->histogram != NULL, stat->kind == CPC_STAT_HISTOGRAM);
}

/* The rows "| `name` | unit | meaning |" of the document, in order. */
static void read_document(struct names *names)
{
	FILE *file = fopen(CPC_DOCS_DIR "/statistics.md", "r");
	char line[512], name[48], unit[32];

	assert_non_null(file);
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "| `%47[a-z_.]` | %31[^|]", name, unit) != 2)
			continue;
		assert_true(names->nr < 128);
		snprintf(names->name[names->nr], sizeof(name), "%s", name);
		names->kind[names->nr++] = strstr(unit, "histogram") ? CPC_STAT_HISTOGRAM
					   : strstr(unit, "gauge")   ? CPC_STAT_GAUGE
								     : CPC_STAT_COUNTER;
	}
	fclose(file);
}

static void counters_are_those_of_the_document(void **state)
{
	static struct names have, documented;
	struct fixture f = {0};

	make(&f, 16 * MIB);
	cpc_pool_stats(f.pool, note_stat, &have);
	read_document(&documented);
	for (unsigned i = 0; i < have.nr && i < documented.nr; i++) {
		assert_string_equal(have.name[i], documented.name[i]);
		if (have.kind[i] != documented.kind[i])
			fail_msg("%s is of another kind in the document", have.name[i]);
	}
	assert_int_equal(have.nr, documented.nr);
	finish(&f);
}

static void note_value(void *ctx, const struct cpc_stat *stat)
{
	uint64_t *values = ctx;

	if (!strcmp(stat->name, "client.writes"))
		values[0] = stat->value;
	if (!strcmp(stat->name, "client.bytes_written"))
		values[1] = stat->value;
	if (!strcmp(stat->name, "log.records"))
		values[2] = stat->value;
	if (!strcmp(stat->name, "cache.dirty_bytes"))
		values[3] = stat->value;
	if (!strcmp(stat->name, "space.total"))
		values[4] = stat->value;
}

static void counters_count(void **state)
{
	uint64_t before[5], after[5];
	struct fixture f = {0};
	struct cpc_volume *vol;
	char buf[5000] = {1};

	make(&f, 16 * MIB);
	assert_int_equal(create(&f, "a", MIB), 0);
	assert_int_equal(cpc_pool_open_volume(f.pool, "a", &vol), 0);
	cpc_pool_stats(f.pool, note_value, before);
	assert_int_equal(cpc_volume_write(vol, buf, 5000, 0, 0), 0);
	assert_int_equal(cpc_volume_write(vol, buf, 5000, MIB, 0), -ENOSPC);
	cpc_pool_stats(f.pool, note_value, after);
	assert_int_equal(after[0], before[0] + 2);
	assert_int_equal(after[1], before[1] + 5000);
	assert_int_equal(after[2], before[2]);
	assert_int_equal(after[3], 8192);
	assert_int_equal(after[4], 16 * MIB);
	assert_int_equal(cpc_volume_flush(vol), 0);
	cpc_pool_stats(f.pool, note_value, after);
	assert_int_equal(after[2], before[2] + 1);
	assert_int_equal(after[3], 0);
	cpc_pool_close_volume(f.pool, vol);
	finish(&f);
}

static int quiet(void **state)
{
	cpc_log_set_sink(no_message);
	return 0;
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
	    cmocka_unit_test(volumes_have_uuids_of_version_4),
	    cmocka_unit_test(a_read_only_pool_is_not_written),
	    cmocka_unit_test(a_shut_down_pool_refuses_requests),
	    cmocka_unit_test(too_little_memory_is_refused),
	    cmocka_unit_test(without_memory_opening_fails_and_leaves_nothing),
	    cmocka_unit_test(what_is_recognized_is_not_overwritten),
	    cmocka_unit_test(a_pool_is_recognized_by_its_second_ring),
	    cmocka_unit_test(impossible_shapes_are_refused),
	    cmocka_unit_test(a_file_is_made_whole_and_not_resized),
	    cmocka_unit_test(foreign_and_empty_files_are_not_pools),
	    cmocka_unit_test(counters_are_those_of_the_document),
	    cmocka_unit_test(counters_count),
	};

	return cmocka_run_group_tests(tests, quiet, NULL);
}
