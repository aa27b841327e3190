/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * read: from the cache, or from where the view says, verified.
 *
 * A reader looks into the cache first and loads the view after it missed: what was evicted between
 * had been published before. For blocks that it will cache it puts FILLING placeholders into the
 * index before it loads the view; a writer that comes by replaces them, so that a slow read never
 * installs what has become old. Large reads go around the cache (read-large.c).
 *
 * Each block is verified against the checksum in its mapping. The view is held until then
 * (for what was read ahead: has been the same all the time), so the blocks cannot have been given
 * to anybody else: a mismatch is damage (or a bad transfer: one more try), never a race.
 */
#include "volume/volume-internal.h"

#include "lib/mutation.h"

/* Reads of so many blocks and more are not cached. */
#define BYPASS_BLOCKS 64u

/* --- blocks from the pool --- */

struct fetch {
	struct cpc_volume *vol;
	uint64_t first;		/* block in the volume that pages[0] is */
	uint8_t *buf;		/* consecutive memory, or NULL: */
	struct cpc_buf **pages; /* buffers by block */
	bool *holes;		/* out by block, may be NULL */
};

static uint8_t *page(const struct fetch *f, uint64_t block)
{
	uint64_t i = block - f->first;

	return f->buf ? f->buf + i * CPC_BLOCK_SIZE
		      : cpc_buf_data(&f->vol->engine->memory, f->pages[i]);
}

static int read_pages(const struct fetch *f, const struct cpc_mapping *m)
{
	struct iovec iov[CPC_BACKING_MAX_IOV];
	unsigned nr = 0;

	for (uint64_t i = 0; i < m->nr; i++) {
		uint8_t *data = page(f, m->block + i);

		if (nr && (uint8_t *)iov[nr - 1].iov_base + iov[nr - 1].iov_len == data)
			iov[nr - 1].iov_len += CPC_BLOCK_SIZE;
		else
			iov[nr++] = (struct iovec){data, CPC_BLOCK_SIZE};
	}
	return cpc_backing_readv(f->vol->engine->store->backing, m->bytenr, iov, nr);
}

bool cpc_block_matches(const void *data, uint32_t csum)
{
	return CPC_MUTANT(data_not_verified) || cpc_csum(data, CPC_BLOCK_SIZE) == csum;
}

/* The first block that does not match, m->nr if all do. */
static uint64_t verify(const struct fetch *f, const struct cpc_mapping *m)
{
	uint64_t i = 0;

	while (i < m->nr && cpc_block_matches(page(f, m->block + i), m->csums[i]))
		i++;
	return i;
}

static int read_mapping(const struct fetch *f, const struct cpc_mapping *m)
{
	struct cpc_engine *e = f->vol->engine;
	struct cpc_volume_item item;
	uint64_t bad = 0;
	int ret = 0;

	for (int tries = 0; tries < 2; tries++) {
		ret = read_pages(f, m);
		if (ret)
			continue;
		bad = verify(f, m);
		if (bad == m->nr)
			return 0;
		ret = -EUCLEAN;
	}
	atomic_fetch_add(&e->data_errors, 1);
	cpc_engine_get_item(f->vol, &item);
	cpc_error("volume %s: block at offset %llu (pool address %llu): %s", item.name,
		  (unsigned long long)((m->block + bad) << CPC_BLOCK_SHIFT),
		  (unsigned long long)(m->bytenr + (bad << CPC_BLOCK_SHIFT)),
		  ret == -EUCLEAN ? "checksum does not match" : strerror(-ret));
	return ret;
}

static int fetch_mapping(void *ctx, const struct cpc_mapping *m)
{
	struct fetch *f = ctx;

	if (m->bytenr)
		return read_mapping(f, m);
	for (uint64_t i = 0; i < m->nr; i++) {
		memset(page(f, m->block + i), 0, CPC_BLOCK_SIZE);
		if (f->holes)
			f->holes[m->block + i - f->first] = true;
	}
	return 0;
}

static int fetch(struct fetch *f, uint64_t nr)
{
	struct cpc_view *view = cpc_view_get(f->vol);
	int ret = cpc_view_map(f->vol, view, f->first, nr, fetch_mapping, f);

	cpc_view_put(f->vol, view);
	return ret;
}

int cpc_read_mapping(struct cpc_volume *vol, const struct cpc_mapping *m, void *buf)
{
	struct fetch f = {.vol = vol, .first = m->block, .buf = buf};

	return read_mapping(&f, m);
}

int cpc_read_one(struct cpc_volume *vol, uint64_t block, void *buf)
{
	struct cpc_buf *cached = cpc_cache_get(vol, block);
	struct fetch f = {.vol = vol, .first = block, .buf = buf};

	if (!cached)
		return fetch(&f, 1);
	memcpy(buf, cpc_buf_data(&vol->engine->memory, cached), CPC_BLOCK_SIZE);
	cpc_buf_put(vol->engine, cached);
	return 0;
}

/* --- a client's read --- */

/* Gets placeholders into the index. Return: how many; fewer when memory or a race says so. */
static uint64_t add_placeholders(struct cpc_volume *vol, uint64_t block, uint64_t nr,
				 struct cpc_buf **bufs)
{
	uint64_t i;

	for (i = 0; i < nr; i++) {
		bufs[i] = cpc_buf_try_alloc(vol->engine);
		if (!bufs[i])
			break;
		if (!cpc_cache_add_filling(vol, bufs[i], block + i)) {
			cpc_buf_put(vol->engine, bufs[i]);
			break;
		}
	}
	return i;
}

static int read_into_cache(const struct cpc_reader *r, uint64_t block, uint64_t nr)
{
	struct cpc_buf *bufs[BYPASS_BLOCKS];
	bool holes[BYPASS_BLOCKS] = {false};
	struct fetch f = {.vol = r->vol, .first = block, .pages = bufs, .holes = holes};
	uint64_t got = add_placeholders(r->vol, block, nr, bufs);
	int ret;

	if (!got)
		return cpc_read_large(r, block, nr);
	ret = fetch(&f, got);
	for (uint64_t i = 0; i < got; i++) {
		if (!ret)
			cpc_copy_out(r, block + i, cpc_buf_data(&r->vol->engine->memory, bufs[i]));
		/* Zeroes are cheaper made than kept. */
		cpc_cache_filled(r->vol, bufs[i], !ret && !holes[i]);
		cpc_buf_put(r->vol->engine, bufs[i]);
	}
	if (ret || got == nr)
		return ret;
	return cpc_read_large(r, block + got, nr - got);
}

static int read_missing(const struct cpc_reader *r, uint64_t block, uint64_t nr)
{
	atomic_fetch_add_explicit(&r->vol->engine->cache_misses, nr, memory_order_relaxed);
	if (nr >= BYPASS_BLOCKS)
		return cpc_read_large(r, block, nr);
	return read_into_cache(r, block, nr);
}

static int read_range(const struct cpc_reader *r)
{
	struct cpc_engine *e = r->vol->engine;
	uint64_t block = r->offset >> CPC_BLOCK_SHIFT;
	uint64_t end = ((r->offset + r->len - 1) >> CPC_BLOCK_SHIFT) + 1;
	uint64_t missing = 0, hits = 0;
	int ret = 0;

	for (; block < end && !ret; block++) {
		struct cpc_buf *buf = cpc_cache_get(r->vol, block);

		if (!buf) {
			missing++;
			continue;
		}
		if (missing)
			ret = read_missing(r, block - missing, missing);
		missing = 0;
		cpc_copy_out(r, block, cpc_buf_data(&e->memory, buf));
		cpc_buf_put(e, buf);
		hits++;
	}
	if (missing && !ret)
		ret = read_missing(r, block - missing, missing);
	atomic_fetch_add_explicit(&e->cache_hits, hits, memory_order_relaxed);
	return ret;
}

static int check_range(struct cpc_volume *vol, uint64_t len, uint64_t offset)
{
	uint64_t size = atomic_load(&vol->size);

	if (atomic_load(&vol->engine->refuse))
		return -ESHUTDOWN;
	if (atomic_load(&vol->engine->halted))
		return -EIO;
	return offset > size || len > size - offset ? -EINVAL : 0;
}

int cpc_volume_read(struct cpc_volume *vol, void *buf, uint64_t len, uint64_t offset)
{
	struct cpc_reader r = {vol, buf, offset, len};
	uint64_t start = cpc_now_ns();
	int ret = check_range(vol, len, offset);

	if (!ret && len)
		ret = read_range(&r);
	if (!ret && cpc_unlikely(atomic_load(&vol->engine->halted)))
		ret = -EIO;
	atomic_fetch_add_explicit(&vol->engine->reads, 1, memory_order_relaxed);
	cpc_hist_add(&vol->engine->read_us, (cpc_now_ns() - start) / 1000);
	return ret;
}

int cpc_volume_cache(struct cpc_volume *vol, uint64_t len, uint64_t offset)
{
	uint64_t end = offset + len;
	int ret = check_range(vol, len, offset);

	/* In pieces that are small enough to be cached. */
	while (!ret && offset < end) {
		uint64_t next =
		    cpc_align_down(offset, CPC_BLOCK_SIZE) + (BYPASS_BLOCKS - 1) * CPC_BLOCK_SIZE;
		struct cpc_reader r = {vol, NULL, offset, cpc_min_u64(next, end) - offset};

		ret = read_range(&r);
		offset = next;
	}
	return ret;
}

/* --- what is where --- */

struct survey {
	struct cpc_volume *vol;
	bool want_hole;
};

static int survey_mapping(void *ctx, const struct cpc_mapping *m)
{
	struct survey *s = ctx;
	uint64_t at = m->block;

	if (s->want_hole)
		return m->bytenr || cpc_cache_find_dirty(s->vol, &at, m->block + m->nr) ? 1 : 0;
	/* A hole is fine where every block of it is dirty. */
	for (; !m->bytenr && at < m->block + m->nr; at++) {
		uint64_t dirty = at;

		if (!cpc_cache_find_dirty(s->vol, &dirty, at + 1))
			return 1;
	}
	return 0;
}

static bool still_current(struct cpc_volume *vol, const struct cpc_view *view)
{
	bool same;

	cpc_mutex_lock(&vol->view_lock);
	same = vol->view == view;
	cpc_mutex_unlock(&vol->view_lock);
	return same;
}

/*
 * Lets fn look at a range through one view and at the cache. A cut that is published between the
 * two has left the cache and is not in that view: then once more. Return: as cpc_view_map.
 */
static int map_with_cache(struct cpc_volume *vol, uint64_t block, uint64_t nr, cpc_mapping_fn fn,
			  void *ctx, void (*restart)(void *ctx))
{
	for (;;) {
		struct cpc_view *view = cpc_view_get(vol);
		bool same;
		int ret;

		if (restart)
			restart(ctx);
		ret = cpc_view_map(vol, view, block, nr, fn, ctx);
		same = still_current(vol, view);
		cpc_view_put(vol, view);
		if (ret < 0 || same)
			return ret;
	}
}

static int survey(struct cpc_volume *vol, uint64_t block, uint64_t nr, bool want_hole)
{
	struct survey s = {vol, want_hole};
	int ret = map_with_cache(vol, block, nr, survey_mapping, &s, NULL);

	return ret < 0 ? ret : !ret;
}

int cpc_range_mapped(struct cpc_volume *vol, uint64_t block, uint64_t nr)
{
	return survey(vol, block, nr, false);
}

int cpc_range_hole(struct cpc_volume *vol, uint64_t block, uint64_t nr)
{
	return survey(vol, block, nr, true);
}

/* --- extents --- */

#define MAX_PIECES 1024u

struct piece {
	uint64_t block, nr;
	bool hole;
};

struct pieces {
	struct cpc_volume *vol;
	unsigned nr;
	struct piece piece[MAX_PIECES];
};

/* Return: 1 when there is no more room. */
static int add_piece(struct pieces *p, uint64_t block, uint64_t nr, bool hole)
{
	struct piece *last = p->nr ? &p->piece[p->nr - 1] : NULL;

	if (!nr)
		return 0;
	if (last && last->hole == hole) {
		last->nr += nr;
		return 0;
	}
	if (p->nr == MAX_PIECES)
		return 1;
	p->piece[p->nr++] = (struct piece){block, nr, hole};
	return 0;
}

static int extent_mapping(void *ctx, const struct cpc_mapping *m)
{
	struct pieces *p = ctx;
	uint64_t at = m->block, end = m->block + m->nr, dirty = at;
	int ret = 0;

	if (m->bytenr)
		return add_piece(p, m->block, m->nr, false);
	while (!ret && at < end) {
		if (!cpc_cache_find_dirty(p->vol, &dirty, end))
			return add_piece(p, at, end - at, true);
		ret = add_piece(p, at, dirty - at, true);
		if (!ret)
			ret = add_piece(p, dirty, 1, false);
		at = ++dirty;
	}
	return ret;
}

static void no_pieces(void *ctx)
{
	struct pieces *p = ctx;

	p->nr = 0;
}

static int collect(struct cpc_volume *vol, uint64_t block, uint64_t nr, struct pieces *p)
{
	int ret;

	p->vol = vol;
	ret = map_with_cache(vol, block, nr, extent_mapping, p, no_pieces);
	return ret < 0 ? ret : 0;
}

int cpc_volume_extents(struct cpc_volume *vol, uint64_t offset, uint64_t len, cpc_extent_fn emit,
		       void *ctx)
{
	uint64_t block = offset >> CPC_BLOCK_SHIFT;
	uint64_t end = offset + len;
	int ret = check_range(vol, len, offset);
	struct pieces *p;

	if (ret || !len)
		return ret;
	p = cpc_alloc(sizeof(*p));
	if (!p)
		return -ENOMEM;
	ret = collect(vol, block, ((end - 1) >> CPC_BLOCK_SHIFT) + 1 - block, p);
	for (unsigned i = 0; !ret && i < p->nr; i++) {
		uint64_t start, stop;

		cpc_clip(p->piece[i].block, p->piece[i].nr, offset, len, &start, &stop);
		if (emit(ctx, start, stop - start, p->piece[i].hole))
			break;
	}
	cpc_free(p);
	return ret;
}
