/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * model: random operations on several volumes of one pool, compared with a reference in memory.
 *
 *   model [--seed N] [--ops N] [--rounds N] [--threads N] [--verbose] [--json]
 *
 * A round makes a pool (size, nodesize, copies, cache and threads drawn from its seed), works on it
 * through many lives (closed in order, or killed), deletes everything at the end and wants all
 * space back. --ops counts operations of all rounds; CPC_TEST_OPS is its default. With --threads
 * the rounds are those of threads.c.
 *
 * What is compared: each read with the reference; each answer of extents with what is known to be
 * other than zero; names and sizes after each open; after a kill each volume as a whole with the
 * states it may be in. Offline check after each life. Errors are part of the model: -ENOSPC only
 * from what stores something, and not where a small mapped range is overwritten.
 */
#include "model.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "lib/hooks.h"

#define MIB	    (1ull << 20)
#define MAX_VOLUMES 6u
#define NR_NAMES    9u
#define ROUND_OPS   6000u
#define BUF_BYTES   (8 * MIB)

struct volume {
	unsigned name; /* index in names */
	struct ref ref;
	struct cpc_volume *handle;
};

struct model {
	struct rig rig;
	struct rnd rnd;
	uint64_t clock; /* stamps */
	unsigned nr;
	struct volume volume[MAX_VOLUMES];
	uint8_t *buf, *buf2;
	uint64_t max_io;
	uint64_t used_fresh; /* bytes in use of the empty pool */
	uint64_t counts[32];
};

static const char *const names[NR_NAMES] = {
    "a", "B", "disk-0", "disk.1", "x_y", "0", "longer-name-with-many-letters", "z9", "q"};

static const char *name_of(const struct volume *v)
{
	return names[v->name];
}

/* --- ranges --- */

static uint64_t pick_len(struct model *m, uint64_t max)
{
	static const struct {
		unsigned percent;
		uint64_t limit;
	} classes[] = {{45, 8192}, {70, 65536}, {88, 262144}, {97, MIB}, {100, BUF_BYTES}};
	uint64_t p = rnd_below(&m->rnd, 100);
	unsigned i = 0;

	while (p >= classes[i].percent)
		i++;
	return 1 + rnd_below(&m->rnd, cpc_min_u64(classes[i].limit, cpc_min_u64(max, m->max_io)));
}

static uint64_t pick_base(struct model *m, uint64_t size)
{
	uint64_t window = cpc_min_u64(size, m->rig.size / 2), p = rnd_below(&m->rnd, 100);

	if (p < 70)
		return rnd_below(&m->rnd, window);
	if (p < 85)
		return size - window + rnd_below(&m->rnd, window);
	return size / 7 * rnd_below(&m->rnd, 7);
}

/* A range within the volume, aligned to blocks, sectors or nothing. */
static void pick_range(struct model *m, const struct volume *v, uint64_t *offset, uint64_t *len)
{
	static const uint64_t aligns[] = {4096, 512, 1};
	uint64_t align = aligns[rnd_below(&m->rnd, 3)], size = v->ref.size;

	*offset = pick_base(m, size);
	*len = pick_len(m, size);
	if (align <= size) {
		*offset = cpc_align_down(*offset, align);
		*len = cpc_align_up(*len, align);
	}
	*len = cpc_min_u64(*len, cpc_min_u64(size - *offset, m->max_io));
}

static struct volume *pick_volume(struct model *m)
{
	return &m->volume[rnd_below(&m->rnd, m->nr)];
}

/* --- comparing --- */

static void compare(struct model *m, struct volume *v, uint64_t offset, uint64_t len)
{
	int ret = cpc_volume_read(v->handle, m->buf2, len, offset);
	uint64_t bad;

	rig_expect(ret == 0, "volume %s: read of %llu+%llu: %s", name_of(v),
		   (unsigned long long)offset, (unsigned long long)len, strerror(-ret));
	if (!ref_equals(&v->ref, m->buf2, len, offset, &bad))
		rig_fail("volume %s: byte %llu (block %llu) of a read of %llu+%llu is wrong",
			 name_of(v), (unsigned long long)bad,
			 (unsigned long long)(bad >> CPC_BLOCK_SHIFT), (unsigned long long)offset,
			 (unsigned long long)len);
}

/* After a failed change each byte is old or new; what it is now becomes the reference. */
static void adopt(struct model *m, struct volume *v, const uint8_t *new, uint64_t offset,
		  uint64_t len)
{
	uint8_t *old = malloc(len);
	int ret = cpc_volume_read(v->handle, m->buf2, len, offset);

	rig_expect(ret == 0, "volume %s: read after -ENOSPC: %s", name_of(v), strerror(-ret));
	ref_read(&v->ref, old, len, offset);
	for (uint64_t i = 0; i < len; i++)
		rig_expect(m->buf2[i] == old[i] || m->buf2[i] == (new ? new[i] : 0),
			   "volume %s: byte %llu is neither old nor new after -ENOSPC", name_of(v),
			   (unsigned long long)(offset + i));
	if (memcmp(old, m->buf2, len)) {
		ref_write(&v->ref, m->buf2, len, offset, ++m->clock);
		ref_answered(&v->ref, m->clock);
	}
	free(old);
}

struct mapped {
	bool all;
};

static int see_hole(void *ctx, uint64_t offset, uint64_t len, bool hole)
{
	struct mapped *mapped = ctx;

	mapped->all &= !hole;
	return 0;
}

/* True when all blocks that a request touches are mapped: then a full pool must take it. */
static bool all_mapped(struct volume *v, uint64_t offset, uint64_t len)
{
	uint64_t from = cpc_align_down(offset, CPC_BLOCK_SIZE);
	uint64_t to = cpc_min_u64(cpc_align_up(offset + len, CPC_BLOCK_SIZE), v->ref.size);
	struct mapped mapped = {true};

	rig_expect(cpc_volume_extents(v->handle, from, to - from, see_hole, &mapped) == 0,
		   "extents");
	return mapped.all;
}

static void judge_enospc(struct model *m, struct volume *v, uint64_t offset, uint64_t len)
{
	if (len <= m->rig.size / 64 && all_mapped(v, offset, len))
		rig_fail("volume %s: overwriting %llu+%llu, all mapped, gives -ENOSPC", name_of(v),
			 (unsigned long long)offset, (unsigned long long)len);
}

static unsigned pick_flags(struct model *m)
{
	return rnd_percent(&m->rnd, 3) ? CPC_FUA : 0;
}

static void all_durable(struct model *m)
{
	for (unsigned i = 0; i < m->nr; i++)
		ref_durable(&m->volume[i].ref);
}

static void answered(struct model *m, struct volume *v, unsigned flags)
{
	ref_answered(&v->ref, ++m->clock);
	if (flags & CPC_FUA)
		ref_durable(&v->ref);
}

/* --- operations on data --- */

static void op_write(struct model *m)
{
	struct volume *v = pick_volume(m);
	unsigned flags = pick_flags(m);
	uint64_t offset, len;
	int ret;

	pick_range(m, v, &offset, &len);
	rnd_fill(++m->clock, m->buf, len);
	if (rnd_percent(&m->rnd, 3))
		memset(m->buf, 0, len);
	ret = cpc_volume_write(v->handle, m->buf, len, offset, flags);
	if (ret == -ENOSPC) {
		judge_enospc(m, v, offset, len);
		adopt(m, v, m->buf, offset, len);
		m->counts[31]++;
		return;
	}
	rig_expect(ret == 0, "volume %s: write of %llu+%llu: %s", name_of(v),
		   (unsigned long long)offset, (unsigned long long)len, strerror(-ret));
	ref_write(&v->ref, m->buf, len, offset, m->clock);
	answered(m, v, flags);
}

static void op_read(struct model *m)
{
	struct volume *v = pick_volume(m);
	uint64_t offset, len;

	pick_range(m, v, &offset, &len);
	compare(m, v, offset, len);
}

/* Trims and zeroes may be as large as the volume. */
static void pick_hole(struct model *m, const struct volume *v, uint64_t *offset, uint64_t *len)
{
	pick_range(m, v, offset, len);
	if (rnd_percent(&m->rnd, 10))
		*len = 1 + rnd_below(&m->rnd, v->ref.size - *offset);
	if (rnd_percent(&m->rnd, 10))
		*len = v->ref.size - *offset;
}

static void op_trim(struct model *m)
{
	struct volume *v = pick_volume(m);
	unsigned flags = pick_flags(m);
	uint64_t offset, len;
	int ret;

	pick_hole(m, v, &offset, &len);
	ret = cpc_volume_trim(v->handle, len, offset, flags);
	rig_expect(ret == 0, "volume %s: trim of %llu+%llu: %s", name_of(v),
		   (unsigned long long)offset, (unsigned long long)len, strerror(-ret));
	ref_trim(&v->ref, len, offset, ++m->clock);
	answered(m, v, flags);
}

static void op_zero(struct model *m)
{
	struct volume *v = pick_volume(m);
	unsigned flags = pick_flags(m);
	uint64_t offset, len;
	int ret;

	pick_hole(m, v, &offset, &len);
	if (rnd_percent(&m->rnd, 30))
		flags |= CPC_FAST_ZERO;
	if (rnd_percent(&m->rnd, 40)) {
		flags |= CPC_NO_HOLE;
		len = cpc_min_u64(len, m->max_io);
	}
	ret = cpc_volume_zero(v->handle, len, offset, flags);
	if (ret == -EOPNOTSUPP && flags & CPC_FAST_ZERO)
		return;
	if (ret == -ENOSPC) {
		/* only the ends of what is to be a hole need room */
		if (len <= m->max_io) {
			judge_enospc(m, v, offset, len);
			adopt(m, v, NULL, offset, len);
		}
		m->counts[31]++;
		return;
	}
	rig_expect(ret == 0, "volume %s: zero of %llu+%llu, flags %u: %s", name_of(v),
		   (unsigned long long)offset, (unsigned long long)len, flags, strerror(-ret));
	ref_zero(&v->ref, len, offset, ++m->clock);
	answered(m, v, flags);
}

static void op_flush(struct model *m)
{
	struct volume *v = pick_volume(m);
	int ret = cpc_volume_flush(v->handle);

	rig_expect(ret == 0, "volume %s: flush: %s", name_of(v), strerror(-ret));
	ref_durable(&v->ref);
}

static void op_cache(struct model *m)
{
	struct volume *v = pick_volume(m);
	uint64_t offset, len;
	int ret;

	pick_range(m, v, &offset, &len);
	ret = cpc_volume_cache(v->handle, len, offset);
	rig_expect(ret == 0, "volume %s: cache: %s", name_of(v), strerror(-ret));
}

struct extents {
	const struct volume *v;
	uint64_t at;
	bool any, last_hole;
	unsigned left; /* pieces to take before we stop it */
};

static int see_extent(void *ctx, uint64_t offset, uint64_t len, bool hole)
{
	struct extents *e = ctx;

	rig_expect(offset == e->at && len, "extents: piece at %llu, expected %llu",
		   (unsigned long long)offset, (unsigned long long)e->at);
	rig_expect(!e->any || hole != e->last_hole, "extents: two pieces of one kind at %llu",
		   (unsigned long long)offset);
	if (hole)
		rig_expect(ref_is_zero(&e->v->ref, len, offset),
			   "volume %s: extents call %llu+%llu a hole, but there is data",
			   name_of(e->v), (unsigned long long)offset, (unsigned long long)len);
	e->at = offset + len;
	e->any = true;
	e->last_hole = hole;
	return e->left-- == 1;
}

static void op_extents(struct model *m)
{
	struct extents e = {.v = pick_volume(m)};
	uint64_t offset, len;
	int ret;

	pick_hole(m, e.v, &offset, &len);
	e.at = offset;
	e.left = rnd_percent(&m->rnd, 20) ? 1 + (unsigned)rnd_below(&m->rnd, 4) : UINT32_MAX;
	ret = cpc_volume_extents(e.v->handle, offset, len, see_extent, &e);
	rig_expect(ret == 0, "extents: %s", strerror(-ret));
	rig_expect(e.any && e.at <= offset + len, "extents: the answer leaves the range");
}

/* Requests that leave the volume are refused and change nothing. */
static void op_beyond(struct model *m)
{
	struct volume *v = pick_volume(m);
	uint64_t offset = v->ref.size - rnd_below(&m->rnd, cpc_min_u64(v->ref.size, 5000));
	uint64_t len = v->ref.size - offset + 1 + rnd_below(&m->rnd, 5000);

	rig_expect(cpc_volume_read(v->handle, m->buf2, len, offset) == -EINVAL, "read beyond");
	rig_expect(cpc_volume_write(v->handle, m->buf2, len, offset, 0) == -ENOSPC, "write beyond");
	rig_expect(cpc_volume_trim(v->handle, len, offset, 0) == -EINVAL, "trim beyond");
	rig_expect(cpc_volume_zero(v->handle, len, offset, 0) == -ENOSPC, "zero beyond");
	rig_expect(cpc_volume_read(v->handle, m->buf2, UINT64_MAX, offset) == -EINVAL,
		   "read of everything");
}

/* --- names --- */

static struct volume *find_volume(struct model *m, unsigned name)
{
	for (unsigned i = 0; i < m->nr; i++) {
		if (m->volume[i].name == name)
			return &m->volume[i];
	}
	return NULL;
}

static void open_handle(struct model *m, struct volume *v)
{
	int ret = cpc_pool_open_volume(m->rig.pool, name_of(v), &v->handle);

	rig_expect(ret == 0, "volume %s does not open: %s", name_of(v), strerror(-ret));
	rig_expect(cpc_volume_size(v->handle) == v->ref.size, "volume %s has %llu bytes, not %llu",
		   name_of(v), (unsigned long long)cpc_volume_size(v->handle),
		   (unsigned long long)v->ref.size);
}

static void close_handle(struct model *m, struct volume *v)
{
	cpc_pool_close_volume(m->rig.pool, v->handle);
	v->handle = NULL;
}

static uint64_t pick_size(struct model *m)
{
	uint64_t p = rnd_below(&m->rnd, 100), size;

	if (p < 20)
		return 1 + rnd_below(&m->rnd, 100000);
	if (p < 85) {
		size = 1 + rnd_below(&m->rnd, 2 * m->rig.size);
		return p < 60 ? cpc_align_up(size, 4096) : size;
	}
	return p < 95 ? 1ull << (40 + rnd_below(&m->rnd, 20)) : CPC_VOLUME_SIZE_MAX;
}

static void op_create(struct model *m)
{
	unsigned name = (unsigned)rnd_below(&m->rnd, NR_NAMES);
	struct cpc_error err = {""};
	uint64_t size = pick_size(m);
	struct volume *v;
	int ret;

	if (m->nr == MAX_VOLUMES)
		return;
	ret = cpc_pool_create_volume(m->rig.pool, names[name], size, &err);
	if (find_volume(m, name)) {
		rig_expect(ret == -EEXIST, "creating %s twice: %d %s", names[name], ret, err.text);
		return;
	}
	if (ret == -ENOSPC && m->nr)
		return;
	rig_expect(ret == 0, "create %s: %s", names[name], err.text);
	v = &m->volume[m->nr++];
	v->name = name;
	ref_init(&v->ref, size);
	open_handle(m, v);
}

static void forget_volume(struct model *m, struct volume *v)
{
	ref_destroy(&v->ref);
	*v = m->volume[--m->nr];
}

static void op_delete(struct model *m)
{
	struct volume *v = pick_volume(m);
	struct cpc_error err = {""};
	int ret;

	rig_expect(cpc_pool_delete(m->rig.pool, name_of(v), &err) == -EBUSY,
		   "deleting an open volume");
	close_handle(m, v);
	ret = cpc_pool_delete(m->rig.pool, name_of(v), &err);
	rig_expect(ret == 0, "delete %s: %s", name_of(v), err.text);
	forget_volume(m, v);
}

static void op_rename(struct model *m)
{
	unsigned name = (unsigned)rnd_below(&m->rnd, NR_NAMES);
	struct volume *v = pick_volume(m);
	struct cpc_error err = {""};
	int ret = cpc_pool_rename(m->rig.pool, name_of(v), names[name], &err);

	if (find_volume(m, name)) {
		rig_expect(ret == -EEXIST, "renaming to %s, which exists: %d", names[name], ret);
		return;
	}
	rig_expect(ret == 0, "rename %s: %s", name_of(v), err.text);
	v->name = name;
}

static void op_resize(struct model *m)
{
	struct volume *v = pick_volume(m);
	struct cpc_error err = {""};
	uint64_t size = pick_size(m);
	int ret;

	close_handle(m, v);
	ret = cpc_pool_resize(m->rig.pool, name_of(v), size, true, &err);
	if (ret == -ENOSPC && size > v->ref.size) {
		open_handle(m, v);
		return;
	}
	rig_expect(ret == 0, "resize %s from %llu to %llu: %s", name_of(v),
		   (unsigned long long)v->ref.size, (unsigned long long)size, err.text);
	if (size != v->ref.size) {
		/* what was written before a resize comes before it */
		ref_durable(&v->ref);
		ref_resize(&v->ref, size);
	}
	open_handle(m, v);
}

static void op_commit(struct model *m)
{
	int ret = cpc_pool_commit(m->rig.pool);

	rig_expect(ret == 0, "commit: %s", strerror(-ret));
	all_durable(m);
}

static void op_info(struct model *m)
{
	struct cpc_pool_info info;

	cpc_pool_info(m->rig.pool, &info);
	rig_expect(info.used + info.free == info.capacity, "info: used and free are no whole");
	rig_expect(info.volumes == m->nr, "info: %llu volumes", (unsigned long long)info.volumes);
	rig_expect(!strcmp(info.health, "ok"), "info: %s", info.health);
}

/* --- lives --- */

struct listed {
	struct model *m;
	unsigned nr;
};

static int see_listed(void *ctx, const struct cpc_volume_info *info)
{
	struct listed *l = ctx;

	for (unsigned i = 0; i < l->m->nr; i++) {
		const struct volume *v = &l->m->volume[i];

		if (strcmp(info->name, name_of(v)))
			continue;
		rig_expect(info->size == v->ref.size, "list: size of %s", info->name);
		l->nr++;
		return 0;
	}
	rig_fail("list: volume %s is not expected", info->name);
}

/* Each volume is in the state that the reference has, or after a kill in one that it may have. */
static void compare_volume(struct model *m, struct volume *v, bool killed)
{
	struct cpc_page_map actual;
	struct ref_match match;

	rig_read_volume(v->handle, &v->ref, &actual);
	if (!killed)
		ref_durable(&v->ref);
	if (!ref_match(&v->ref, &actual, &match))
		rig_fail("volume %s: %s: %llu blocks differ, as block %llu does, at best",
			 name_of(v), killed ? "killed, and at no one instant" : "closed in order",
			 (unsigned long long)match.nr_bad, (unsigned long long)match.bad);
	ref_durable(&v->ref);
	cpc_page_map_clear(&actual);
}

static void begin_life(struct model *m, bool killed)
{
	struct listed listed = {m, 0};

	rig_open(&m->rig);
	rig_expect(cpc_pool_list(m->rig.pool, see_listed, &listed) == 0, "list");
	rig_expect(listed.nr == m->nr, "list: %u volumes, not %u", listed.nr, m->nr);
	for (unsigned i = 0; i < m->nr; i++) {
		open_handle(m, &m->volume[i]);
		compare_volume(m, &m->volume[i], killed);
	}
}

static void end_life(struct model *m, bool kill)
{
	int ret = 0;

	for (unsigned i = 0; i < m->nr; i++)
		close_handle(m, &m->volume[i]);
	if (kill)
		rig_kill(&m->rig);
	else
		ret = rig_close(&m->rig);
	rig_expect(ret == 0, "shutdown: %s", strerror(-ret));
	rig_check(&m->rig, false, NULL);
}

static void draw_options(struct model *m)
{
	static const uint64_t caches[] = {1, 1, 2, 8};
	struct cpc_pool_options *o = &m->rig.opts;

	cpc_pool_options_init(o);
	o->cache = caches[rnd_below(&m->rnd, CPC_ARRAY_SIZE(caches))] * MIB;
	o->dirty = rnd_percent(&m->rnd, 30) ? 65536 : 0;
	o->commit_interval = rnd_percent(&m->rnd, 50) ? 0 : 1;
	o->no_threads = rnd_percent(&m->rnd, 50);
	if (rnd_percent(&m->rnd, 20)) {
		o->data_bytes = 16 * CPC_BLOCK_SIZE;
		o->node_bytes = 8ull * m->rig.nodesize;
	}
}

static void new_life(struct model *m, bool kill)
{
	end_life(m, kill);
	draw_options(m);
	begin_life(m, kill);
}

static void op_reopen(struct model *m)
{
	new_life(m, false);
}

static void op_kill(struct model *m)
{
	new_life(m, true);
}

/* --- rounds --- */

static const struct {
	const char *name;
	void (*run)(struct model *m);
	unsigned weight; /* of 1000 */
} ops[] = {
    {"write", op_write, 410},  {"read", op_read, 280},	  {"trim", op_trim, 50},
    {"zero", op_zero, 70},     {"flush", op_flush, 40},	  {"extents", op_extents, 80},
    {"cache", op_cache, 20},   {"beyond", op_beyond, 10}, {"create", op_create, 9},
    {"delete", op_delete, 5},  {"rename", op_rename, 5},  {"resize", op_resize, 6},
    {"commit", op_commit, 10}, {"info", op_info, 3},	  {"reopen", op_reopen, 1},
    {"kill", op_kill, 1},
};

static void step(struct model *m)
{
	uint64_t p = rnd_below(&m->rnd, 1000);
	unsigned i = 0;

	while (p >= ops[i].weight)
		p -= ops[i++].weight;
	if (!m->nr)
		i = 8; /* create */
	ops[i].run(m);
	m->counts[i]++;
}

static void draw_pool(struct model *m)
{
	static const uint64_t sizes[] = {4, 4, 5, 8, 16, 32};
	static const uint32_t nodesizes[] = {4096, 4096, 8192, 16384, 16384, 32768, 65536};

	m->rig.size = sizes[rnd_below(&m->rnd, CPC_ARRAY_SIZE(sizes))] * MIB;
	m->rig.nodesize = nodesizes[rnd_below(&m->rnd, CPC_ARRAY_SIZE(nodesizes))];
	m->rig.single = rnd_percent(&m->rnd, 30);
	m->rig.watch = rnd_percent(&m->rnd, 40);
	if (m->rig.nodesize >= 32768)
		m->rig.size = cpc_max_u64(m->rig.size, (m->rig.single ? 5 : 8) * MIB);
	m->max_io = m->rig.size >= 16 * MIB ? BUF_BYTES : 2 * MIB;
}

/* Deletes everything, and wants all space back. */
static void empty_pool(struct model *m)
{
	struct cpc_check_result result;
	struct cpc_pool_info info;
	uint64_t most;

	while (m->nr)
		op_delete(m);
	for (unsigned i = 0; i < 8; i++)
		op_commit(m);
	cpc_pool_info(m->rig.pool, &info);
	most = m->used_fresh + 3ull * info.copies * info.nodesize;
	rig_expect(info.pinned == 0, "empty pool: %llu bytes pinned",
		   (unsigned long long)info.pinned);
	rig_expect(info.reserved == 0, "empty pool: %llu bytes reserved",
		   (unsigned long long)info.reserved);
	rig_expect(info.used <= most, "empty pool: %llu bytes used, %llu when it was new",
		   (unsigned long long)info.used, (unsigned long long)m->used_fresh);
	rig_expect(rig_close(&m->rig) == 0, "shutdown");
	rig_check(&m->rig, false, &result);
	rig_expect(result.volumes == 0 && result.data_blocks == 0 && result.nodes < 8,
		   "empty pool: %llu volumes, %llu blocks of data, %llu nodes",
		   (unsigned long long)result.volumes, (unsigned long long)result.data_blocks,
		   (unsigned long long)result.nodes);
}

static uint64_t run_round(struct model *m, uint64_t seed, uint64_t nr_ops)
{
	struct cpc_pool_info info;

	rig_init(seed);
	m->rnd.state = seed;
	draw_pool(m);
	draw_options(m);
	rig_create(&m->rig);
	rig_open(&m->rig);
	cpc_pool_info(m->rig.pool, &info);
	m->used_fresh = info.used;
	for (uint64_t i = 0; i < nr_ops; i++)
		step(m);
	empty_pool(m);
	rig_destroy(&m->rig);
	return nr_ops;
}

/* --- the program --- */

struct options {
	uint64_t seed, ops, rounds;
	unsigned threads;
	bool verbose, json;
};

static void usage(void)
{
	fprintf(stderr, "usage: model [--seed N] [--ops N] [--rounds N] [--threads N] "
			"[--verbose] [--json]\n");
	exit(2);
}

static void parse(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
	    {"seed", 1, 0, 's'},    {"ops", 1, 0, 'o'},	    {"rounds", 1, 0, 'r'},
	    {"threads", 1, 0, 't'}, {"verbose", 0, 0, 'v'}, {"json", 0, 0, 'j'},
	    {NULL, 0, 0, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 's') {
			o->seed = rig_number(optarg, "--seed");
		} else if (c == 'o') {
			o->ops = rig_number(optarg, "--ops");
		} else if (c == 'r') {
			o->rounds = rig_number(optarg, "--rounds");
		} else if (c == 't') {
			o->threads = (unsigned)rig_number(optarg, "--threads");
		} else if (c == 'v') {
			o->verbose = true;
		} else if (c == 'j') {
			o->json = true;
		} else {
			usage();
		}
	}
	if (optind != argc || o->threads > MODEL_MAX_THREADS)
		usage();
}

static void print_counts(const struct model *m, const struct options *o, uint64_t done,
			 uint64_t rounds)
{
	if (o->json) {
		printf("{\"program\":\"model\",\"threads\":%u,\"operations\":%llu,\"rounds\":%llu,"
		       "\"checks\":%llu,\"superblocks\":%llu}\n",
		       o->threads, (unsigned long long)done, (unsigned long long)rounds,
		       (unsigned long long)m->rig.checks, (unsigned long long)m->rig.oracle_roots);
		return;
	}
	printf("model: %llu operations in %llu rounds", (unsigned long long)done,
	       (unsigned long long)rounds);
	if (!o->threads) {
		for (unsigned i = 0; i < CPC_ARRAY_SIZE(ops); i++)
			printf(", %llu %s", (unsigned long long)m->counts[i], ops[i].name);
		printf("; %llu refused with -ENOSPC", (unsigned long long)m->counts[31]);
	}
	printf("; %llu checks, %llu superblocks watched\n", (unsigned long long)m->rig.checks,
	       (unsigned long long)m->rig.oracle_roots);
}

int main(int argc, char **argv)
{
	struct options o = {.seed = rig_env("CPC_TEST_SEED", (uint64_t)time(NULL) * 1000003),
			    .ops = rig_env("CPC_TEST_OPS", 1000000)};
	static struct model m;
	uint64_t done = 0, round = 0, nr;

	parse(argc, argv, &o);
	if (!o.json)
		printf("model: seed %llu\n", (unsigned long long)o.seed);
	m.buf = malloc(BUF_BYTES);
	m.buf2 = malloc(BUF_BYTES + 16384);
	for (; done < o.ops && (!o.rounds || round < o.rounds); round++) {
		uint64_t seed = o.seed + round;

		nr = cpc_min_u64(ROUND_OPS, o.ops - done);
		rig_set_rerun("%s --threads %u --seed %llu --rounds 1 --ops %llu", argv[0],
			      o.threads, (unsigned long long)seed, (unsigned long long)nr);
		if (o.verbose)
			printf("round with seed %llu\n", (unsigned long long)seed);
		done += o.threads ? model_threads(&m.rig, seed, o.threads, nr)
				  : run_round(&m, seed, nr);
	}
	print_counts(&m, &o, done, round);
	free(m.buf);
	free(m.buf2);
	return 0;
}
