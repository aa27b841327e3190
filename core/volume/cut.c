/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cut: a volume's dirty state as of one instant, and its way to the pool.
 *
 *            freeze()           gather()            write            publish()
 *   (dirty) ---------> FROZEN ---------> GATHERED ---------> WRITTEN ---------> (logged, mapped)
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

#include "lib/mutation.h"

#include <stdlib.h>

#define FREEZE (1ull << 63)

/* Up to so many blocks data and record are written together; more would hold up the flushes of
 * others, which wait for every record numbered before theirs. */
#define SMALL_BLOCKS 64u

enum cut_state { CUT_FROZEN, CUT_GATHERED, CUT_WRITTEN };

struct cpc_cut {
	struct cpc_data_writer writer;
	struct cpc_volume *vol;
	uint64_t epoch;
	uint64_t started; /* when it was frozen */
	enum cut_state state;
	bool numbered;	    /* its record has a sequence number */
	uint64_t log_bytes; /* of the ring, promised to its changes */
	size_t nr, cap;	    /* buffers; cap is enough for all that may be dirty */
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
	cpc_mutex_lock(&vol->ticket_lock);
	while (atomic_load(&vol->tickets) & FREEZE)
		cpc_cond_wait(&vol->ticket_cond, &vol->ticket_lock);
	atomic_fetch_or(&vol->tickets, FREEZE);
	while (atomic_load(&vol->tickets) != FREEZE && !CPC_MUTANT(cut_waits_for_no_request))
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

/* Kept for the next cut: one follows another, and this is a lot of memory to take and touch. */
static void cut_done(struct cpc_cut *cut)
{
	struct cpc_volume *vol = cut->vol;

	if (vol->spare_cut)
		cut_free(cut);
	else
		vol->spare_cut = cut;
}

static const void *cut_data(struct cpc_data_writer *w, size_t i)
{
	struct cpc_cut *cut = cpc_container_of(w, struct cpc_cut, writer);

	return cpc_buf_data(&w->engine->memory, cut->bufs[i]);
}

static uint32_t cut_csum(struct cpc_data_writer *w, size_t i)
{
	return cpc_container_of(w, struct cpc_cut, writer)->bufs[i]->csum;
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
	struct cpc_cut *cut = vol->spare_cut;

	vol->spare_cut = NULL;
	if (cut)
		return cut;
	cut = cpc_zalloc(sizeof(*cut));
	if (!cut)
		return NULL;
	/* Whoever dirties a block has reserved it within the limit. */
	cut->cap = vol->engine->dirty_limit;
	cut->vol = vol;
	cut->writer.engine = vol->engine;
	cut->writer.data = cut_data;
	cut->writer.csum = cut_csum;
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
	if (!ret) {
		atomic_store(&vol->epoch, cut->epoch + 1);
		cut->log_bytes = atomic_exchange(&vol->log_bytes, 0);
		atomic_store(&vol->has_direct, false);
	}
	allow_tickets(vol);
	if (ret)
		return ret;
	cut->nr = cs.cleared_bytes >> CPC_BLOCK_SHIFT;
	cpc_assert(cut->nr <= cut->cap);
	cut->writer.nr = cut->writer.reserved = cut->nr;
	memset(cut->writer.bytenr, 0, cut->nr * sizeof(*cut->writer.bytenr));
	cut->state = CUT_FROZEN;
	cut->started = cpc_now_ns();
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
		unsigned max = (unsigned)cpc_min_u64(CPC_CACHE_BATCH, cut->nr - nr);

		got = max ? cpc_cache_gather(vol, cut->epoch, &block, cut->bufs + nr, max) : 0;
		nr += got;
	} while (got);
	in_order = nr;
	nr = take_displaced(cut, nr);
	cpc_assert(nr == cut->nr);
	if (nr != in_order || !cpc_find_in_order)
		qsort(cut->bufs, nr, sizeof(*cut->bufs), compare);
	cut->state = CUT_GATHERED;
}

static int build_run(struct cpc_cut *cut, struct cpc_run **run)
{
	struct cpc_run_builder b;

	cpc_run_builder_init(&b, cut->nr, cut->nr);
	for (size_t i = CPC_MUTANT(cut_without_its_first_block); i < cut->nr; i++)
		cpc_run_builder_map(&b, cut->bufs[i]->block, 1, cut->writer.bytenr[i],
				    &cut->writer.csums[i]);
	return cpc_run_builder_finish(&b, run);
}

/* Never goes back: who was first may come last. */
static void raise(_Atomic uint64_t *value, uint64_t to)
{
	uint64_t now = atomic_load(value);

	while (now < to && !atomic_compare_exchange_weak(value, &now, to))
		;
}

/* What it takes to publish, all of it taken before the record has a number. */
struct publication {
	struct cpc_view *next;
	struct cpc_run *run; /* NULL: only direct runs */
	struct cpc_log_batch batch;
};

/* Direct runs of the cut's epoch, oldest first, then its own: later entries win. */
static void log_runs(struct cpc_cut *cut, struct publication *p)
{
	struct cpc_view *view = cpc_view_get(cut->vol);
	uint64_t id = cut->vol->item.id;

	for (unsigned i = view->nr; i > 0; i--) {
		const struct cpc_view_run *r =
		    &view->runs[CPC_MUTANT(older_changes_logged_last) ? view->nr - i : i - 1];

		if (r->epoch == cut->epoch && !r->cut && !CPC_MUTANT(log_forgets_large_writes))
			cpc_log_batch_run(&p->batch, id, r->run);
	}
	cpc_view_put(cut->vol, view);
	if (p->run)
		cpc_log_batch_run(&p->batch, id, p->run);
}

static void publication_abort(struct cpc_cut *cut, struct publication *p)
{
	if (p->next)
		cpc_view_unreserve(cut->vol);
	cpc_free(p->next);
	cpc_run_put(p->run);
	cpc_log_batch_destroy(&p->batch);
}

static int prepare(struct cpc_cut *cut, struct publication *p)
{
	int ret = 0;

	memset(p, 0, sizeof(*p));
	cpc_log_batch_init(&p->batch, cut->vol->engine->log);
	if (cut->nr)
		ret = build_run(cut, &p->run);
	if (!ret && cut->nr) {
		p->next = cpc_view_alloc();
		ret = p->next ? cpc_view_reserve(cut->vol) : -ENOMEM;
		if (ret) {
			cpc_free(p->next);
			p->next = NULL;
		}
	}
	if (!ret) {
		log_runs(cut, p);
		ret = cpc_log_batch_end(&p->batch);
	}
	if (ret)
		publication_abort(cut, p);
	return ret;
}

/* Published before anything of it can be evicted, and before the log counts it as completed. */
static void link_cut(struct cpc_cut *cut, struct publication *p)
{
	struct cpc_volume *vol = cut->vol;

	if (p->run)
		cpc_view_link(vol, p->next, p->run, cut->epoch, true);
	/* an empty cut may end behind a shrink that came later */
	raise(&vol->published, cut->epoch);
	if (p->batch.nr_pieces)
		atomic_store(&vol->last_seq, p->batch.last_seq);
}

static void end_cut(struct cpc_cut *cut)
{
	struct cpc_volume *vol = cut->vol;

	cpc_log_unreserve(vol->engine->log, cut->log_bytes);
	for (size_t i = 0; i < cut->nr; i += CPC_CACHE_BATCH)
		cpc_cache_written(vol, cut->bufs + i, cpc_min_u64(CPC_CACHE_BATCH, cut->nr - i));
	vol->cut = NULL;
	cpc_pace_learn(vol->engine, cut->nr, cpc_now_ns() - cut->started);
	cut_done(cut);
	/* Without memory there are just more runs. */
	cpc_view_compact(vol);
	if (cpc_log_wants_commit(vol->engine->log))
		cpc_kick_commit(vol->engine);
}

/* The record has been written, or not: view, log, done. */
static int conclude(struct cpc_cut *cut, struct publication *p, int ret)
{
	struct cpc_engine *e = cut->vol->engine;

	link_cut(cut, p);
	if (p->batch.nr_pieces)
		cpc_log_complete(e->log, &p->batch, ret);
	if (ret)
		cpc_engine_break(e, "a log record cannot be written");
	cpc_log_batch_destroy(&p->batch);
	end_cut(cut);
	return ret;
}

/* The data is there. A record that has a number must be written. */
static int publish(struct cpc_cut *cut)
{
	struct cpc_engine *e = cut->vol->engine;
	struct publication p;
	int ret = prepare(cut, &p);

	if (ret)
		return ret;
	if (p.batch.nr_pieces) {
		cpc_assert(p.batch.len <= cut->log_bytes);
		ret = cpc_log_append(e->log, &p.batch);
		if (ret) {
			publication_abort(cut, &p);
			return ret;
		}
		ret = cpc_log_write(e->log, &p.batch);
	}
	return conclude(cut, &p, ret);
}

/*
 * Data and record of a small cut go out together: who waits for a flush waits for one round trip
 * less. Replay verifies the data, so the order in which they land does not matter; the log counts
 * the record as completed only when both are there.
 */
static int write_both(struct cpc_cut *cut, struct cpc_ioq *ioq, struct publication *p)
{
	struct cpc_engine *e = cut->vol->engine;
	int result = 0, ret = prepare(cut, p);

	if (!ret) {
		cpc_assert(p->batch.len <= cut->log_bytes);
		ret = cpc_log_append(e->log, &p->batch);
		if (ret)
			publication_abort(cut, p);
	}
	if (ret) {
		cpc_ioq_wait(ioq);
		return ret;
	}
	cut->numbered = true;
	cpc_log_submit(e->log, &p->batch, ioq, &result);
	cpc_ioq_wait(ioq);
	return result;
}

/* The data did not land where the numbered record says: once more elsewhere, same record. */
static int rewrite_both(struct cpc_cut *cut, struct publication *p)
{
	struct publication again;
	int ret;

	memset(cut->writer.bytenr, 0, cut->nr * sizeof(*cut->writer.bytenr));
	ret = cpc_data_write_all(&cut->writer);
	if (!ret)
		ret = prepare(cut, &again);
	if (ret)
		return ret;
	ret = cpc_log_batch_renumber(&again.batch, &p->batch);
	if (ret) {
		publication_abort(cut, &again);
		return ret;
	}
	publication_abort(cut, p);
	*p = again;
	return cpc_log_write(cut->vol->engine->log, &p->batch);
}

/* A numbered record names data that is nowhere: nothing more is written. The cut's buffers stay,
 * and what they hold can be read. */
static int give_up(struct cpc_cut *cut, struct publication *p, int ret)
{
	cpc_log_complete(cut->vol->engine->log, &p->batch, ret);
	cpc_engine_break(cut->vol->engine, "data of a logged change cannot be written");
	publication_abort(cut, p);
	return ret;
}

/* Return: 1 when the cut is not one for this way, nothing done. */
static int finish_small(struct cpc_cut *cut)
{
	struct cpc_backing *backing = cut->vol->engine->store->backing;
	struct cpc_ioq *ioq = cpc_ioq_get(backing);
	struct publication p;
	int ret;

	if (!ioq || cpc_data_write_begin(&cut->writer, ioq)) {
		if (ioq)
			cpc_ioq_put(backing, ioq);
		return 1;
	}
	cut->numbered = false;
	ret = write_both(cut, ioq, &p);
	cpc_ioq_put(backing, ioq);
	if (!cut->numbered) {
		/* the data may be there; what is not will be written by the next call */
		if (cut->writer.error)
			memset(cut->writer.bytenr, 0, cut->nr * sizeof(*cut->writer.bytenr));
		else
			cut->state = CUT_WRITTEN;
		return ret;
	}
	if (cut->writer.error && !CPC_MUTANT(failed_data_counts_as_written)) {
		ret = rewrite_both(cut, &p);
		if (ret)
			return give_up(cut, &p, ret);
	} else if (ret) {
		ret = cpc_log_write(cut->vol->engine->log, &p.batch);
	}
	return conclude(cut, &p, ret);
}

static int finish(struct cpc_cut *cut)
{
	int ret = 1;

	if (cut->state == CUT_FROZEN)
		gather(cut);
	if (cut->state == CUT_GATHERED && cut->nr && cut->nr <= SMALL_BLOCKS &&
	    cut->writer.reserved == cut->nr)
		ret = finish_small(cut);
	if (ret <= 0)
		return ret;
	if (cut->state == CUT_GATHERED) {
		ret = cut->nr ? cpc_data_write_all(&cut->writer) : 0;
		if (ret)
			return ret;
		cut->state = CUT_WRITTEN;
	}
	return publish(cut);
}

/* dirty is looked at before published: what has left the one is in the other */
bool cpc_nothing_to_cut(struct cpc_volume *vol)
{
	return !atomic_load(&vol->dirty_blocks) && !atomic_load(&vol->has_direct) &&
	       atomic_load(&vol->published) + 1 == atomic_load(&vol->epoch);
}

int cpc_cut(struct cpc_volume *vol)
{
	struct cpc_cut *cut;
	int ret = 0;

	cpc_mutex_lock(&vol->writeback_lock);
	if (vol->cut)
		ret = finish(vol->cut);
	if (!ret && !cpc_nothing_to_cut(vol)) {
		cut = cut_new(vol);
		ret = cut ? freeze(vol, cut) : -ENOMEM;
		if (ret && cut)
			cut_done(cut);
		else if (!ret)
			ret = finish(cut);
	}
	cpc_mutex_unlock(&vol->writeback_lock);
	return ret;
}

void cpc_cut_link(struct cpc_volume *vol, struct cpc_view *next, struct cpc_run *run)
{
	uint64_t epoch;

	stop_tickets(vol);
	epoch = atomic_load(&vol->epoch);
	cpc_view_link(vol, next, run, epoch, true);
	atomic_store(&vol->epoch, epoch + 1);
	raise(&vol->published, epoch);
	allow_tickets(vol);
}

int cpc_log_change(struct cpc_volume *vol, struct cpc_log_batch *batch, void (*apply)(void *ctx),
		   void *ctx, uint64_t *seq)
{
	struct cpc_engine *e = vol->engine;
	int ret = cpc_log_append(e->log, batch);

	if (ret)
		return ret;
	ret = CPC_MUTANT(log_forgets_names) ? 0 : cpc_log_write(e->log, batch);
	if (!ret)
		apply(ctx);
	if (!ret)
		raise(&e->names_seq, batch->last_seq);
	cpc_log_complete(e->log, batch, ret);
	if (ret)
		cpc_engine_break(e, "a log record cannot be written");
	*seq = batch->last_seq;
	return ret;
}

/* The engine ends; what the cut held is lost, as in a crash. */
void cpc_cut_destroy(struct cpc_volume *vol)
{
	struct cpc_cut *cut = vol->cut;

	cut_free(vol->spare_cut);
	vol->spare_cut = NULL;
	if (!cut)
		return;
	if (cut->state == CUT_FROZEN)
		gather(cut);
	cpc_cache_written(vol, cut->bufs, cut->nr);
	cpc_log_unreserve(vol->engine->log, cut->log_bytes);
	vol->cut = NULL;
	cut_free(cut);
}
