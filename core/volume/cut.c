/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cut: a volume's dirty state as of one instant, and its way to the pool.
 *
 *            freeze()           gather()            write            publish()
 *   (dirty) ---------> FROZEN ---------> GATHERED ---------> WRITTEN ---------> (clean, mapped)
 *
 * Freeze is a barrier: new tickets wait, running ones end (they are memory operations only), the
 * epoch goes up by one, and all DELALLOC, with the space and memory it is charged, moves to
 * the cut. From then on a write to a block of the cut brings a fresh buffer; the cut's buffer stays
 * as it is. So the cut is exact, and its writing holds nobody up.
 *
 * A step that fails leaves the cut where it is, attached to the volume, and the next cpc_cut goes
 * on from there; no other cut can pass it, so cuts are published in order. What it holds can be
 * read all the time: its buffers stay in the index until something newer replaces them.
 */
#include "volume/volume-internal.h"

#include <stdlib.h>

#define FREEZE	     (1ull << 63)
#define GATHER_BATCH 256u

enum cut_state { CUT_FROZEN, CUT_GATHERED, CUT_WRITTEN };

struct cpc_cut {
	struct cpc_data_writer writer;
	struct cpc_volume *vol;
	uint64_t epoch;
	enum cut_state state;
	size_t nr, cap; /* buffers; cap is enough for all that may be dirty */
	struct cpc_buf **bufs;
};

/* --- tickets --- */

void cpc_ticket_release(struct cpc_volume *vol)
{
	if (atomic_fetch_sub(&vol->tickets, 1) != (FREEZE | 1))
		return;
	cpc_mutex_lock(&vol->ticket_lock);
	cpc_cond_broadcast(&vol->ticket_cond);
	cpc_mutex_unlock(&vol->ticket_lock);
}

uint64_t cpc_ticket_take(struct cpc_volume *vol)
{
	while (cpc_unlikely(atomic_fetch_add(&vol->tickets, 1) & FREEZE)) {
		cpc_ticket_release(vol);
		cpc_mutex_lock(&vol->ticket_lock);
		while (atomic_load(&vol->tickets) & FREEZE)
			cpc_cond_wait(&vol->ticket_cond, &vol->ticket_lock);
		cpc_mutex_unlock(&vol->ticket_lock);
	}
	return atomic_load(&vol->epoch);
}

static void stop_tickets(struct cpc_volume *vol)
{
	atomic_fetch_or(&vol->tickets, FREEZE);
	cpc_mutex_lock(&vol->ticket_lock);
	while (atomic_load(&vol->tickets) != FREEZE)
		cpc_cond_wait(&vol->ticket_cond, &vol->ticket_lock);
	cpc_mutex_unlock(&vol->ticket_lock);
}

static void allow_tickets(struct cpc_volume *vol)
{
	cpc_mutex_lock(&vol->ticket_lock);
	atomic_fetch_and(&vol->tickets, ~FREEZE);
	cpc_cond_broadcast(&vol->ticket_cond);
	cpc_mutex_unlock(&vol->ticket_lock);
}

/* --- a cut's memory, all of it taken before the freeze --- */

static void cut_free(struct cpc_cut *cut)
{
	if (!cut)
		return;
	cpc_free(cut->bufs);
	cpc_free(cut->writer.bytenr);
	cpc_free(cut->writer.csums);
	cpc_free(cut);
}

static const void *cut_data(struct cpc_data_writer *w, size_t i)
{
	struct cpc_cut *cut = cpc_container_of(w, struct cpc_cut, writer);

	return cpc_buf_data(&w->engine->memory, cut->bufs[i]);
}

/* What is on the device is no longer charged; its buffers stay until the cut is published. */
static void cut_written(struct cpc_data_writer *w, uint32_t nr)
{
	struct cpc_cut *cut = cpc_container_of(w, struct cpc_cut, writer);

	atomic_fetch_sub(&cut->vol->dirty_blocks, nr);
	cpc_dirty_release(w->engine, nr);
}

static struct cpc_cut *cut_new(struct cpc_volume *vol)
{
	struct cpc_cut *cut = cpc_zalloc(sizeof(*cut));

	if (!cut)
		return NULL;
	/* Whoever dirties a block has reserved it within the limit. */
	cut->cap = vol->engine->dirty_limit;
	cut->vol = vol;
	cut->writer.engine = vol->engine;
	cut->writer.data = cut_data;
	cut->writer.written = cut_written;
	cut->bufs = cpc_alloc_array(cut->cap, sizeof(*cut->bufs));
	cut->writer.bytenr = cpc_alloc_array(cut->cap, sizeof(*cut->writer.bytenr));
	cut->writer.csums = cpc_alloc_array(cut->cap, sizeof(*cut->writer.csums));
	if (!cut->bufs || !cut->writer.bytenr || !cut->writer.csums) {
		cut_free(cut);
		return NULL;
	}
	return cut;
}

/* --- the steps --- */

static int freeze(struct cpc_volume *vol, struct cpc_cut *cut)
{
	struct cpc_changeset cs = {0};
	int ret;

	stop_tickets(vol);
	cut->epoch = atomic_load(&vol->epoch);
	ret = cpc_io_tree_clear(&vol->io_tree, 0, CPC_IO_TREE_END, CPC_IO_DELALLOC, NULL, &cs);
	if (!ret)
		atomic_store(&vol->epoch, cut->epoch + 1);
	allow_tickets(vol);
	if (ret)
		return ret;
	cut->nr = cs.cleared_bytes >> CPC_BLOCK_SHIFT;
	cpc_assert(cut->nr <= cut->cap);
	cut->writer.nr = cut->writer.reserved = cut->nr;
	memset(cut->writer.bytenr, 0, cut->nr * sizeof(*cut->writer.bytenr));
	cut->state = CUT_FROZEN;
	vol->cut = cut;
	return 0;
}

static int compare(const void *a, const void *b)
{
	const struct cpc_buf *x = *(struct cpc_buf *const *)a, *y = *(struct cpc_buf *const *)b;

	return x->block < y->block ? -1 : x->block > y->block;
}

static size_t take_displaced(struct cpc_cut *cut, size_t nr)
{
	struct cpc_volume *vol = cut->vol;

	cpc_mutex_lock(&vol->cache_lock);
	while (!cpc_list_empty(&vol->displaced)) {
		struct cpc_buf *buf = cpc_list_first(&vol->displaced, struct cpc_buf, node);

		cpc_list_del(&buf->node);
		cpc_assert(buf->epoch == cut->epoch && nr < cut->nr);
		buf->flags = CPC_BUF_WRITEBACK;
		cut->bufs[nr++] = buf;
	}
	cpc_mutex_unlock(&vol->cache_lock);
	return nr;
}

static void gather(struct cpc_cut *cut)
{
	struct cpc_volume *vol = cut->vol;
	uint64_t block = 0;
	size_t nr = 0, in_order;
	unsigned got;

	do {
		unsigned max = (unsigned)cpc_min_u64(GATHER_BATCH, cut->nr - nr);

		got = max ? cpc_cache_gather(vol, cut->epoch, &block, cut->bufs + nr, max) : 0;
		nr += got;
	} while (got);
	in_order = nr;
	nr = take_displaced(cut, nr);
	cpc_assert(nr == cut->nr);
	if (nr != in_order)
		qsort(cut->bufs, nr, sizeof(*cut->bufs), compare);
	cut->state = CUT_GATHERED;
}

static int build_run(struct cpc_cut *cut, struct cpc_run **run)
{
	struct cpc_run_builder b;

	cpc_run_builder_init(&b, cut->nr, cut->nr);
	for (size_t i = 0; i < cut->nr; i++)
		cpc_run_builder_map(&b, cut->bufs[i]->block, 1, cut->writer.bytenr[i],
				    &cut->writer.csums[i]);
	return cpc_run_builder_finish(&b, run);
}

static int link_run(struct cpc_cut *cut)
{
	struct cpc_view *next = cpc_view_alloc();
	struct cpc_run *run = NULL;
	int ret = next ? build_run(cut, &run) : -ENOMEM;

	if (!ret)
		ret = cpc_view_reserve(cut->vol);
	if (ret) {
		cpc_run_put(run);
		cpc_free(next);
		return ret;
	}
	cpc_view_link(cut->vol, next, run, cut->epoch, true);
	return 0;
}

/* Published before anything of it can be evicted. */
static int publish(struct cpc_cut *cut)
{
	struct cpc_volume *vol = cut->vol;
	int ret = cut->nr ? link_run(cut) : 0;

	if (ret)
		return ret;
	atomic_store(&vol->published, cut->epoch);
	for (size_t i = 0; i < cut->nr; i += GATHER_BATCH)
		cpc_cache_written(vol, cut->bufs + i, cpc_min_u64(GATHER_BATCH, cut->nr - i));
	vol->cut = NULL;
	cut_free(cut);
	/* Without memory there are just more runs. */
	cpc_view_compact(vol);
	return 0;
}

static int finish(struct cpc_cut *cut)
{
	int ret = 0;

	if (cut->state == CUT_FROZEN)
		gather(cut);
	if (cut->state == CUT_GATHERED) {
		if (cut->nr)
			ret = cpc_data_write_all(&cut->writer);
		if (ret)
			return ret;
		cut->state = CUT_WRITTEN;
	}
	return publish(cut);
}

int cpc_cut(struct cpc_volume *vol)
{
	struct cpc_cut *cut;
	int ret = 0;

	cpc_mutex_lock(&vol->writeback_lock);
	if (vol->cut)
		ret = finish(vol->cut);
	if (!ret && !cpc_volume_clean(vol)) {
		cut = cut_new(vol);
		ret = cut ? freeze(vol, cut) : -ENOMEM;
		if (ret)
			cut_free(cut);
		else
			ret = finish(cut);
	}
	cpc_mutex_unlock(&vol->writeback_lock);
	return ret;
}

/* The engine ends; what the cut held is lost, as in a crash. */
void cpc_cut_destroy(struct cpc_volume *vol)
{
	struct cpc_cut *cut = vol->cut;

	if (!cut)
		return;
	if (cut->state == CUT_FROZEN)
		gather(cut);
	cpc_cache_written(vol, cut->bufs, cut->nr);
	vol->cut = NULL;
	cut_free(cut);
}
