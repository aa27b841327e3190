/* SPDX-License-Identifier: BSD-3-Clause */
#include "pool/test-pool-rig.h"

#include <stdio.h>

struct cpc_error pool_rig_err;

_Atomic unsigned pool_rig_errors_logged;

static void no_message(enum cpc_log_level level, const char *line)
{
	pool_rig_errors_logged += level == CPC_LOG_ERROR;
}

void pool_rig_open(struct pool_rig *f)
{
	struct cpc_backing *backing;

	assert_int_equal(cpc_powercut_reopen(f->pc, &backing), 0);
	if (cpc_pool_open_backing(backing, &f->opts, &f->pool, &pool_rig_err))
		fail_msg("%s", pool_rig_err.text);
	assert_int_equal(cpc_pool_start(f->pool, &pool_rig_err), 0);
}

void pool_rig_make(struct pool_rig *f, uint64_t size)
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
	assert_int_equal(cpc_pool_format_backing(backing, &fo, &pool_rig_err), 0);
	cpc_backing_close(backing);
	pool_rig_open(f);
}

void pool_rig_reopen(struct pool_rig *f)
{
	assert_int_equal(cpc_pool_shutdown(f->pool), 0);
	cpc_pool_close(f->pool);
	pool_rig_open(f);
}

static void print_line(void *ctx, const char *line)
{
	print_message("  %s\n", line);
}

/* Shuts down, checks and frees. */
void pool_rig_finish(struct pool_rig *f)
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

int pool_rig_create(struct pool_rig *f, const char *name, uint64_t size)
{
	pool_rig_err.text[0] = '\0';
	return cpc_pool_create_volume(f->pool, name, size, &pool_rig_err);
}

uint64_t pool_rig_size_of(struct pool_rig *f, const char *name)
{
	struct cpc_volume_info info;

	return cpc_pool_volume_info(f->pool, name, &info) ? 0 : info.size;
}

/* One line that says something. */
void pool_rig_assert_one_line(void)
{
	assert_true(pool_rig_err.text[0] != '\0');
	assert_null(strchr(pool_rig_err.text, '\n'));
}

int pool_rig_quiet(void **state)
{
	cpc_log_set_sink(no_message);
	return 0;
}
