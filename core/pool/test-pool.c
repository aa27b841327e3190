/* SPDX-License-Identifier: BSD-3-Clause */
/* What the door of the library promises: opening, formatting, counters. Names: test-pool-names. */
#include "pool/test-pool-rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* --- opening --- */

static void a_read_only_pool_is_not_written(void **state)
{
	struct pool_rig f = {0};
	struct cpc_volume *vol;
	uint64_t writes;
	char buf[4096];

	pool_rig_make(&f, 16 * MIB);
	assert_int_equal(pool_rig_create(&f, "a", MIB), 0);
	assert_int_equal(cpc_pool_shutdown(f.pool), 0);
	cpc_pool_close(f.pool);
	writes = cpc_powercut_count(f.pc, CPC_POWERCUT_WRITE);
	f.opts.read_only = true;
	pool_rig_open(&f);
	assert_int_equal(pool_rig_create(&f, "b", MIB), -EROFS);
	assert_int_equal(cpc_pool_delete(f.pool, "a", &pool_rig_err), -EROFS);
	assert_int_equal(cpc_pool_rename(f.pool, "a", "b", &pool_rig_err), -EROFS);
	assert_int_equal(cpc_pool_resize(f.pool, "a", 5 * MIB, true, &pool_rig_err), -EROFS);
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
	pool_rig_open(&f);
	pool_rig_finish(&f);
}

static void a_shut_down_pool_refuses_requests(void **state)
{
	struct pool_rig f = {0};
	struct cpc_volume *vol, *other;
	char buf[512] = {0};

	pool_rig_make(&f, 16 * MIB);
	assert_int_equal(pool_rig_create(&f, "a", MIB), 0);
	assert_int_equal(cpc_pool_open_volume(f.pool, "a", &vol), 0);
	assert_int_equal(cpc_pool_shutdown(f.pool), 0);
	assert_int_equal(cpc_pool_shutdown(f.pool), 0);
	assert_int_equal(pool_rig_create(&f, "b", MIB), -ESHUTDOWN);
	assert_int_equal(cpc_pool_open_volume(f.pool, "a", &other), -ESHUTDOWN);
	assert_int_equal(cpc_volume_write(vol, buf, 512, 0, 0), -ESHUTDOWN);
	assert_int_equal(cpc_volume_read(vol, buf, 512, 0), -ESHUTDOWN);
	assert_int_equal(cpc_volume_trim(vol, 4096, 0, 0), -ESHUTDOWN);
	assert_int_equal(cpc_volume_zero(vol, 4096, 0, 0), -ESHUTDOWN);
	assert_int_equal(cpc_volume_flush(vol), -ESHUTDOWN);
	cpc_pool_close_volume(f.pool, vol);
	pool_rig_finish(&f);
}

static void too_little_memory_is_refused(void **state)
{
	struct cpc_backing *backing;
	struct pool_rig f = {0};
	struct cpc_pool *pool;

	pool_rig_make(&f, 16 * MIB);
	assert_int_equal(cpc_pool_shutdown(f.pool), 0);
	cpc_pool_close(f.pool);
	f.opts.cache = CPC_CACHE_MIN - 1;
	assert_int_equal(cpc_powercut_reopen(f.pc, &backing), 0);
	assert_int_equal(cpc_pool_open_backing(backing, &f.opts, &pool, &pool_rig_err), -EINVAL);
	pool_rig_assert_one_line();
	f.opts.cache = CPC_CACHE_MIN;
	f.opts.dirty = 1;
	pool_rig_open(&f);
	assert_int_equal(pool_rig_create(&f, "a", MIB), 0);
	pool_rig_finish(&f);
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
	struct pool_rig f = {0};
	int ret = -ENOMEM;

	pool_rig_make(&f, 16 * MIB);
	for (unsigned i = 0; i < 5; i++) {
		char name[2] = {(char)('a' + i)};

		assert_int_equal(pool_rig_create(&f, name, MIB), 0);
	}
	cpc_pool_close(f.pool);
	cpc_hooks.alloc = failing_alloc;
	for (unsigned n = 0; ret; n++) {
		assert_int_equal(cpc_powercut_reopen(f.pc, &backing), 0);
		allocs_left = n;
		ret = cpc_pool_open_backing(backing, &f.opts, &f.pool, &pool_rig_err);
		allocs_left = UINT32_MAX;
		if (ret) {
			assert_int_equal(ret, -ENOMEM);
			pool_rig_assert_one_line();
		}
	}
	cpc_hooks = cpc_hooks_default;
	assert_int_equal(pool_rig_size_of(&f, "e"), MIB);
	pool_rig_finish(&f);
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
		assert_int_equal(cpc_pool_format(path, &opts, &pool_rig_err), -EEXIST);
		if (!strstr(pool_rig_err.text, signatures[i].what) ||
		    !strstr(pool_rig_err.text, "--force"))
			fail_msg("%s", pool_rig_err.text);
		pool_rig_assert_one_line();
		opts.force = true;
		assert_int_equal(cpc_pool_format(path, &opts, &pool_rig_err), 0);
		opts.force = false;
		/* now it is a pool */
		assert_int_equal(cpc_pool_format(path, &opts, &pool_rig_err), -EEXIST);
		assert_non_null(strstr(pool_rig_err.text, "a Coppice pool"));
		unlink(path);
	}
}

static void a_pool_is_recognized_by_its_second_ring(void **state)
{
	static const char zeroes[8 * 4096];
	struct cpc_format_options opts = {.sparse = true};
	FILE *file;

	make_file(8 * MIB);
	assert_int_equal(cpc_pool_format(path, &opts, &pool_rig_err), 0);
	file = fopen(path, "r+");
	assert_int_equal(fwrite(zeroes, sizeof(zeroes), 1, file), 1);
	fclose(file);
	assert_int_equal(cpc_pool_format(path, &opts, &pool_rig_err), -EEXIST);
	unlink(path);
}

static int format_with(uint64_t size, const struct cpc_format_options *opts)
{
	int ret;

	make_file(size);
	ret = cpc_pool_format(path, opts, &pool_rig_err);
	if (ret)
		pool_rig_assert_one_line();
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
	assert_int_equal(cpc_pool_format("/nonexistent/pool", &opts, &pool_rig_err), -ENOENT);
	opts.size = 8 * MIB;
	assert_true(cpc_pool_format("/nonexistent/pool", &opts, &pool_rig_err) < 0);
	pool_rig_assert_one_line();
}

static void a_file_is_made_whole_and_not_resized(void **state)
{
	struct cpc_format_options opts = {.size = 8 * MIB};
	struct cpc_pool_options po;
	struct cpc_pool *pool, *second;

	make_file(8 * MIB);
	unlink(path);
	assert_int_equal(cpc_pool_format(path, &opts, &pool_rig_err), 0);
	opts.size = 16 * MIB;
	opts.force = true;
	assert_int_equal(cpc_pool_format(path, &opts, &pool_rig_err), -EEXIST);
	cpc_pool_options_init(&po);
	po.cache = CPC_CACHE_MIN;
	assert_int_equal(cpc_pool_open(path, &po, &pool, &pool_rig_err), 0);
	assert_int_equal(cpc_pool_open(path, &po, &second, &pool_rig_err), -EBUSY);
	pool_rig_assert_one_line();
	opts.size = 0;
	assert_int_equal(cpc_pool_format(path, &opts, &pool_rig_err), -EBUSY);
	cpc_pool_close(pool);
	unlink(path);
}

static void foreign_and_empty_files_are_not_pools(void **state)
{
	struct cpc_pool_options po;
	struct cpc_pool *pool;

	cpc_pool_options_init(&po);
	make_file(8 * MIB);
	assert_int_equal(cpc_pool_open(path, &po, &pool, &pool_rig_err), -EINVAL);
	assert_non_null(strstr(pool_rig_err.text, "not a Coppice pool"));
	put(0, "CoppiceP");
	assert_int_equal(cpc_pool_open(path, &po, &pool, &pool_rig_err), -EUCLEAN);
	pool_rig_assert_one_line();
	unlink(path);
	assert_true(cpc_pool_open(path, &po, &pool, &pool_rig_err) < 0);
	pool_rig_assert_one_line();
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
	struct pool_rig f = {0};

	pool_rig_make(&f, 16 * MIB);
	cpc_pool_stats(f.pool, note_stat, &have);
	read_document(&documented);
	for (unsigned i = 0; i < have.nr && i < documented.nr; i++) {
		assert_string_equal(have.name[i], documented.name[i]);
		if (have.kind[i] != documented.kind[i])
			fail_msg("%s is of another kind in the document", have.name[i]);
	}
	assert_int_equal(have.nr, documented.nr);
	pool_rig_finish(&f);
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
	struct pool_rig f = {0};
	struct cpc_volume *vol;
	char buf[5000] = {1};

	pool_rig_make(&f, 16 * MIB);
	assert_int_equal(pool_rig_create(&f, "a", MIB), 0);
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
	pool_rig_finish(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
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

	return cmocka_run_group_tests(tests, pool_rig_quiet, NULL);
}
