/* SPDX-License-Identifier: BSD-3-Clause */
#include "volume/test-rig.h"

#include "lib/hooks.h"
#include "lib/log.h"

_Atomic unsigned rig_allocs_left = UINT32_MAX;

void *rig_failing_alloc(size_t align, size_t size)
{
	if (rig_allocs_left == 0)
		return NULL;
	if (rig_allocs_left != UINT32_MAX)
		rig_allocs_left--;
	return cpc_hooks_default.alloc(align, size);
}

static void no_message(enum cpc_log_level level, const char *line)
{
}

void rig_open(struct rig *r)
{
	struct cpc_pool_options opts;
	struct cpc_backing *backing;
	struct cpc_error err;

	cpc_pool_options_init(&opts);
	opts.cache = r->cache;
	opts.dirty = r->dirty;
	opts.commit_interval = 0;
	opts.no_threads = !r->threads;
	assert_int_equal(cpc_powercut_reopen(r->pc, &backing), 0);
	if (r->wrap)
		backing = r->wrap(r, backing);
	if (cpc_pool_open_backing(backing, &opts, &r->pool, &err))
		fail_msg("%s", err.text);
	assert_int_equal(cpc_pool_start(r->pool, &err), 0);
	assert_int_equal(cpc_pool_open_volume(r->pool, "v", &r->vol), 0);
}

void rig_close(struct rig *r)
{
	cpc_pool_close_volume(r->pool, r->vol);
	cpc_pool_close(r->pool);
}

static void make_volume(struct rig *r)
{
	struct cpc_pool_options opts;
	struct cpc_backing *backing;
	struct cpc_error err;
	struct cpc_pool *pool;

	cpc_pool_options_init(&opts);
	opts.cache = r->cache;
	opts.no_threads = true;
	assert_int_equal(cpc_powercut_reopen(r->pc, &backing), 0);
	assert_int_equal(cpc_pool_open_backing(backing, &opts, &pool, &err), 0);
	assert_int_equal(cpc_pool_create_volume(pool, "v", r->volume_size, &err), 0);
	cpc_pool_close(pool);
}

void rig_make(struct rig *r)
{
	struct cpc_format_options fo = {.nodesize = 4096, .log_size = r->log_size};
	struct cpc_backing *backing;
	struct cpc_error err;

	cpc_log_set_sink(no_message);
	r->pool_size = r->pool_size ? r->pool_size : 32 * MIB;
	r->volume_size = r->volume_size ? r->volume_size : 4 * MIB + 1000;
	r->cache = r->cache ? r->cache : 4 * MIB;
	r->rng = 1;
	r->ref = calloc(1, r->volume_size);
	r->buf = calloc(1, r->volume_size);
	r->back = calloc(1, r->volume_size);
	assert_true(r->ref && r->buf && r->back);
	assert_int_equal(cpc_powercut_create(r->pool_size, &r->pc), 0);
	assert_int_equal(cpc_powercut_reopen(r->pc, &backing), 0);
	assert_int_equal(cpc_pool_format_backing(backing, &fo, &err), 0);
	cpc_backing_close(backing);
	make_volume(r);
	rig_open(r);
}

static void print_line(void *ctx, const char *line)
{
	print_message("  %s\n", line);
}

void rig_finish(struct rig *r)
{
	struct cpc_check_options opts = {.data = true, .report = print_line};
	struct cpc_check_result result;
	struct cpc_backing *backing;

	assert_int_equal(cpc_pool_shutdown(r->pool), 0);
	rig_close(r);
	assert_int_equal(cpc_powercut_reopen(r->pc, &backing), 0);
	assert_int_equal(cpc_check(backing, &opts, &result), 0);
	assert_int_equal(result.errors, 0);
	cpc_backing_close(backing);
	cpc_powercut_destroy(r->pc);
	free(r->ref);
	free(r->buf);
	free(r->back);
}

void rig_reopen(struct rig *r)
{
	assert_int_equal(cpc_pool_shutdown(r->pool), 0);
	rig_close(r);
	rig_open(r);
	rig_compare_all(r);
}

uint64_t rig_draw(struct rig *r, uint64_t below)
{
	r->rng = r->rng * 6364136223846793005ull + 1442695040888963407ull;
	return (r->rng >> 20) % below;
}

void rig_fill(struct rig *r, uint64_t len)
{
	uint64_t x = r->rng = r->rng * 6364136223846793005ull + 1442695040888963407ull;

	for (uint64_t i = 0; i < len; i++) {
		x = x * 0x9e3779b97f4a7c15ull + 1;
		r->buf[i] = (uint8_t)(x >> 56 | 1); /* never zero */
	}
}

void rig_write(struct rig *r, uint64_t offset, uint64_t len)
{
	rig_fill(r, len);
	assert_int_equal(cpc_volume_write(r->vol, r->buf, len, offset, 0), 0);
	memcpy(r->ref + offset, r->buf, len);
}

void rig_trim(struct rig *r, uint64_t offset, uint64_t len)
{
	uint64_t from = cpc_align_up(offset, CPC_BLOCK_SIZE);
	uint64_t to = cpc_align_down(offset + len, CPC_BLOCK_SIZE);

	if (offset + len == r->volume_size)
		to = offset + len;
	assert_int_equal(cpc_volume_trim(r->vol, len, offset, 0), 0);
	if (from < to)
		memset(r->ref + from, 0, to - from);
}

void rig_zero(struct rig *r, uint64_t offset, uint64_t len, unsigned flags)
{
	assert_int_equal(cpc_volume_zero(r->vol, len, offset, flags), 0);
	memset(r->ref + offset, 0, len);
}

void rig_flush(struct rig *r)
{
	assert_int_equal(cpc_volume_flush(r->vol), 0);
}

void rig_compare(struct rig *r, uint64_t offset, uint64_t len)
{
	assert_int_equal(cpc_volume_read(r->vol, r->back, len, offset), 0);
	if (memcmp(r->back, r->ref + offset, len) == 0)
		return;
	for (uint64_t i = 0; i < len; i++) {
		if (r->back[i] != r->ref[offset + i])
			fail_msg("byte %llu is %02x instead of %02x",
				 (unsigned long long)(offset + i), r->back[i], r->ref[offset + i]);
	}
}

void rig_compare_all(struct rig *r)
{
	rig_compare(r, 0, r->volume_size);
}

struct extents {
	struct rig *r;
	uint64_t at;
	unsigned nr;
	bool hole;
};

static int note_extent(void *ctx, uint64_t offset, uint64_t len, bool hole)
{
	struct extents *e = ctx;

	assert_int_equal(offset, e->at);
	assert_true(len > 0);
	assert_true(e->nr == 0 || hole != e->hole);
	for (uint64_t i = offset; hole && i < offset + len; i++)
		assert_int_equal(e->r->ref[i], 0);
	e->at += len;
	e->nr++;
	e->hole = hole;
	return 0;
}

void rig_compare_extents(struct rig *r)
{
	struct extents e = {.r = r};

	while (e.at < r->volume_size) {
		uint64_t before = e.at;

		e.nr = 0;
		assert_int_equal(
		    cpc_volume_extents(r->vol, e.at, r->volume_size - e.at, note_extent, &e), 0);
		assert_true(e.at > before);
	}
	assert_int_equal(e.at, r->volume_size);
}

void rig_check_accounts(struct rig *r)
{
	struct cpc_engine *e = r->vol->engine;
	struct cpc_volume *vol = NULL;
	struct cpc_space_info space;
	uint64_t sum = 0;

	/* Background threads are at rest only when there is nothing for them to do. */
	if (r->threads)
		assert_int_equal(cpc_pool_commit(r->pool), 0);
	while ((vol = cpc_volume_next(e, vol))) {
		uint64_t delalloc, cut = vol->cut ? atomic_load(&vol->dirty_blocks) : 0;

		assert_int_equal(cpc_io_tree_count(&vol->io_tree, 0, CPC_IO_TREE_END,
						   CPC_IO_DELALLOC, UINT64_MAX, &delalloc),
				 0);
		if (!cut)
			assert_int_equal(atomic_load(&vol->dirty_blocks),
					 delalloc >> CPC_BLOCK_SHIFT);
		sum += atomic_load(&vol->dirty_blocks);
	}
	assert_int_equal(atomic_load(&e->dirty_blocks), sum);
	cpc_space_info(e->store->space, &space);
	assert_true(space.reserved >= sum);
	cpc_space_check(e->store->space);
}
