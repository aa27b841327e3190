/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Requests of the model on its volumes: each is drawn, sent, and compared with the reference, or
 * noted there; what a full pool refuses leaves old or new bytes.
 */
#include "model-internal.h"

#include <stdlib.h>

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

struct volume *model_pick_volume(struct model *m)
{
	return &m->volume[rnd_below(&m->rnd, m->nr)];
}

/* --- comparing --- */

static void compare(struct model *m, struct volume *v, uint64_t offset, uint64_t len)
{
	int ret = cpc_volume_read(v->handle, m->buf2, len, offset);
	uint64_t bad;

	rig_expect(ret == 0, "volume %s: read of %llu+%llu: %s", model_name(v),
		   (unsigned long long)offset, (unsigned long long)len, strerror(-ret));
	if (!ref_equals(&v->ref, m->buf2, len, offset, &bad))
		rig_fail("volume %s: byte %llu (block %llu) of a read of %llu+%llu is wrong",
			 model_name(v), (unsigned long long)bad,
			 (unsigned long long)(bad >> CPC_BLOCK_SHIFT), (unsigned long long)offset,
			 (unsigned long long)len);
}

/* After a failed change each byte is old or new; what it is now becomes the reference. */
static void adopt(struct model *m, struct volume *v, const uint8_t *new, uint64_t offset,
		  uint64_t len)
{
	uint8_t *old = malloc(len);
	int ret = cpc_volume_read(v->handle, m->buf2, len, offset);

	rig_expect(ret == 0, "volume %s: read after -ENOSPC: %s", model_name(v), strerror(-ret));
	ref_read(&v->ref, old, len, offset);
	for (uint64_t i = 0; i < len; i++)
		rig_expect(m->buf2[i] == old[i] || m->buf2[i] == (new ? new[i] : 0),
			   "volume %s: byte %llu is neither old nor new after -ENOSPC",
			   model_name(v), (unsigned long long)(offset + i));
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
		rig_fail("volume %s: overwriting %llu+%llu, all mapped, gives -ENOSPC",
			 model_name(v), (unsigned long long)offset, (unsigned long long)len);
}

static unsigned pick_flags(struct model *m)
{
	return rnd_percent(&m->rnd, 3) ? CPC_FUA : 0;
}

void model_all_durable(struct model *m)
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

void model_write(struct model *m)
{
	struct volume *v = model_pick_volume(m);
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
	rig_expect(ret == 0, "volume %s: write of %llu+%llu: %s", model_name(v),
		   (unsigned long long)offset, (unsigned long long)len, strerror(-ret));
	ref_write(&v->ref, m->buf, len, offset, m->clock);
	answered(m, v, flags);
}

void model_read(struct model *m)
{
	struct volume *v = model_pick_volume(m);
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

void model_trim(struct model *m)
{
	struct volume *v = model_pick_volume(m);
	unsigned flags = pick_flags(m);
	uint64_t offset, len;
	int ret;

	pick_hole(m, v, &offset, &len);
	ret = cpc_volume_trim(v->handle, len, offset, flags);
	rig_expect(ret == 0, "volume %s: trim of %llu+%llu: %s", model_name(v),
		   (unsigned long long)offset, (unsigned long long)len, strerror(-ret));
	ref_trim(&v->ref, len, offset, ++m->clock);
	answered(m, v, flags);
}

void model_zero(struct model *m)
{
	struct volume *v = model_pick_volume(m);
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
	rig_expect(ret == 0, "volume %s: zero of %llu+%llu, flags %u: %s", model_name(v),
		   (unsigned long long)offset, (unsigned long long)len, flags, strerror(-ret));
	ref_zero(&v->ref, len, offset, ++m->clock);
	answered(m, v, flags);
}

void model_flush(struct model *m)
{
	struct volume *v = model_pick_volume(m);
	int ret = cpc_volume_flush(v->handle);

	rig_expect(ret == 0, "volume %s: flush: %s", model_name(v), strerror(-ret));
	ref_durable(&v->ref);
}

void model_cache(struct model *m)
{
	struct volume *v = model_pick_volume(m);
	uint64_t offset, len;
	int ret;

	pick_range(m, v, &offset, &len);
	ret = cpc_volume_cache(v->handle, len, offset);
	rig_expect(ret == 0, "volume %s: cache: %s", model_name(v), strerror(-ret));
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
			   model_name(e->v), (unsigned long long)offset, (unsigned long long)len);
	e->at = offset + len;
	e->any = true;
	e->last_hole = hole;
	return e->left-- == 1;
}

void model_extents(struct model *m)
{
	struct extents e = {.v = model_pick_volume(m)};
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
void model_beyond(struct model *m)
{
	struct volume *v = model_pick_volume(m);
	uint64_t offset = v->ref.size - rnd_below(&m->rnd, cpc_min_u64(v->ref.size, 5000));
	uint64_t len = v->ref.size - offset + 1 + rnd_below(&m->rnd, 5000);

	rig_expect(cpc_volume_read(v->handle, m->buf2, len, offset) == -EINVAL, "read beyond");
	rig_expect(cpc_volume_write(v->handle, m->buf2, len, offset, 0) == -ENOSPC, "write beyond");
	rig_expect(cpc_volume_trim(v->handle, len, offset, 0) == -EINVAL, "trim beyond");
	rig_expect(cpc_volume_zero(v->handle, len, offset, 0) == -ENOSPC, "zero beyond");
	rig_expect(cpc_volume_read(v->handle, m->buf2, UINT64_MAX, offset) == -EINVAL,
		   "read of everything");
}
