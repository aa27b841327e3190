/* SPDX-License-Identifier: BSD-3-Clause */
#include "volume/test-flush-rig.h"

#include <time.h>

#include "lib/hooks.h"
#include "lib/log.h"

uint64_t flush_rig_draw(struct flush_rig *f, uint64_t below)
{
	f->rng = f->rng * 6364136223846793005ull + 1442695040888963407ull;
	return (f->rng >> 20) % below;
}

static void no_message(enum cpc_log_level level, const char *line)
{
}

int flush_rig_try_open(struct flush_rig *f)
{
	struct cpc_backing *backing;
	int ret;

	assert_int_equal(f->unwatched ? cpc_powercut_reopen(f->pc, &backing)
				      : cpc_oracle_reopen(f->oracle, &backing),
			 0);
	ret = cpc_pool_open_backing(backing, &f->opts, &f->pool, &f->err);
	if (!ret)
		assert_int_equal(cpc_pool_start(f->pool, &f->err), 0);
	return ret;
}

void flush_rig_open(struct flush_rig *f)
{
	if (flush_rig_try_open(f))
		fail_msg("%s", f->err.text);
}

void flush_rig_make(struct flush_rig *f, uint64_t size, uint64_t log_size, uint64_t cache)
{
	struct cpc_format_options fo = {.nodesize = 4096, .log_size = log_size};
	struct cpc_backing *backing;

	memset(f, 0, sizeof(*f));
	f->rng = 1;
	cpc_log_set_sink(no_message);
	cpc_pool_options_init(&f->opts);
	f->opts.cache = cache;
	f->opts.no_threads = true;
	f->opts.commit_interval = 0;
	assert_int_equal(cpc_powercut_create(size, &f->pc), 0);
	cpc_oracle_create(f->pc, NULL, NULL, &f->oracle);
	assert_int_equal(cpc_oracle_reopen(f->oracle, &backing), 0);
	assert_int_equal(cpc_pool_format_backing(backing, &fo, &f->err), 0);
	cpc_backing_close(backing);
	flush_rig_open(f);
}

void flush_rig_destroy(struct flush_rig *f)
{
	cpc_oracle_destroy(f->oracle);
	cpc_powercut_destroy(f->pc);
}

static void print_line(void *ctx, const char *line)
{
	print_message("  %s\n", line);
}

void flush_rig_check(struct flush_rig *f, bool quiet, struct cpc_check_result *result)
{
	struct cpc_check_options opts = {.data = true, .report = quiet ? NULL : print_line};
	struct cpc_backing *backing;

	assert_int_equal(cpc_powercut_reopen(f->pc, &backing), 0);
	assert_int_equal(cpc_check(backing, &opts, result), 0);
	cpc_backing_close(backing);
}

void flush_rig_finish(struct flush_rig *f)
{
	struct cpc_check_result result;

	assert_int_equal(cpc_pool_shutdown(f->pool), 0);
	cpc_pool_close(f->pool);
	flush_rig_check(f, false, &result);
	assert_int_equal(result.errors, 0);
	flush_rig_destroy(f);
}

/* The power goes, with one fate for all that was not flushed. */
void flush_rig_cut_power(struct flush_rig *f, enum cpc_crash_fate fate)
{
	struct cpc_crash_choice choice;

	cpc_crash_choice_all(f->pc, fate, &choice);
	cpc_powercut_crash(f->pc, &choice);
	cpc_crash_choice_free(&choice);
}

void flush_rig_create(struct flush_rig *f, const char *name, uint64_t size)
{
	if (cpc_pool_create_volume(f->pool, name, size, &f->err))
		fail_msg("%s", f->err.text);
}

struct cpc_volume *flush_rig_open_volume(struct flush_rig *f, const char *name)
{
	struct cpc_volume *vol;

	assert_int_equal(cpc_pool_open_volume(f->pool, name, &vol), 0);
	return vol;
}

int flush_rig_write_value(struct cpc_volume *vol, uint64_t block, uint32_t value, unsigned flags)
{
	uint32_t buf[1024];

	for (unsigned i = 0; i < 1024; i++)
		buf[i] = value;
	return cpc_volume_write(vol, buf, sizeof(buf), block * 4096, flags);
}

/* The value of a block; UINT32_MAX: it cannot be read, or is mixed. */
uint32_t flush_rig_read_value(struct cpc_volume *vol, uint64_t block)
{
	uint32_t buf[1024];

	if (cpc_volume_read(vol, buf, sizeof(buf), block * 4096))
		return UINT32_MAX;
	return memcmp(buf, buf + 1, sizeof(buf) - 4) ? UINT32_MAX : buf[0];
}

struct cpc_log_found flush_rig_flush_and_cut(struct flush_rig *f, bool mark, uint64_t *data)
{
	struct cpc_log_replay r;
	struct cpc_log_found found;
	struct cpc_volume *vol;
	struct cpc_mapping m;
	struct timespec quiet = {.tv_nsec = 12000000};
	const char *why;
	uint64_t wait;

	flush_rig_make(f, 8 * MIB, 128 << 10, MIB);
	flush_rig_create(f, "a", MIB);
	vol = flush_rig_open_volume(f, "a");
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(flush_rig_write_value(vol, i, 7 + i, 0), 0);
		assert_int_equal(cpc_volume_flush(vol), 0);
	}
	assert_true(cpc_run_lookup(vol->view->runs[0].run, 1, 1, &m));
	*data = m.bytenr;
	nanosleep(&quiet, NULL);
	if (mark)
		cpc_log_mark(vol->engine->log, &wait);
	cpc_pool_close_volume(f->pool, vol);
	assert_int_equal(cpc_log_scan(vol->engine->store, &r, &why), 0);
	found = r.found[r.nr - (mark ? 2 : 1)];
	cpc_log_replay_destroy(&r);
	cpc_pool_close(f->pool);
	flush_rig_cut_power(f, CPC_FATE_KEPT);
	return found;
}

uint64_t flush_rig_env(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 0) : otherwise;
}
