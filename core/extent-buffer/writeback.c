/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Why this way: a commit has to write some thousands of nodes out of a cache of many more. The
 * marks lead straight to them, in order of address, and the allocator gives new nodes ascending
 * addresses: so neighbours in the index are neighbours on the device, and a few large writes do.
 *
 * Normal path. Sync turns the mark DIRTY into TOWRITE, a bit at a time without holding the lock
 * for long; what becomes dirty later has no TOWRITE and is not waited for. Then batches: find
 * marked nodes, move each from DIRTY to WRITEBACK, join neighbours into writes of up to MAX_WRITE
 * bytes (first copies by their addresses, second copies by theirs), queue them all, wait. Last,
 * wait for what another thread had in writeback.
 *
 *	tag_dirty    fill_batch           submit_copy           write_done
 *	DIRTY ------> TOWRITE -------------> WRITEBACK -----> device -----> clean, flush_seq known
 *	  ^                                                       |
 *	  +------------------------------------------------------+ any copy failed: dirty again
 *
 * Writing before the sync takes the same way with DIRTY in the place of TOWRITE: whoever makes
 * nodes writes them as soon as they are a quarter of the cache (make_room), for nothing else will,
 * and a commit may make more nodes than there is memory. A failed write is remembered in
 * write_error until a sync has returned it, or the transaction has been given up: the commit that
 * relies on the node hears of it, whoever issued the write.
 *
 * Rejected: one write a node (the second copy alone would double the number of device writes);
 * waiting with a counter of writes in flight (sync would wait for writes that began after it).
 */
#include "extent-buffer/extent-buffer-internal.h"

#include <stdlib.h>

#include "backing/flush-epoch.h"
#include "backing/ioq.h"
#include "lib/hooks.h"

#define MAX_WRITE   (1u << 20)
#define BATCH_NODES 256u
/* This part of the cache may be dirty. */
#define DIRTY_SHARE 4u

/* One device write: nodes [first, first + nr) of the batch in the order of its copy. */
struct eb_write {
	struct cpc_io io;
	struct cpc_eb **nodes;
};

struct batch {
	struct cpc_eb_cache *cache;
	struct cpc_ioq *queue;
	unsigned nr;
	struct cpc_eb *node[2][BATCH_NODES]; /* the same ones, by the address of each copy */
	struct iovec iov[2][BATCH_NODES];
	struct eb_write write[2][BATCH_NODES];
};

/* --- completion --- */

static void node_written_locked(struct cpc_eb *eb)
{
	struct cpc_eb_cache *cache = eb->cache;

	cpc_eb_set_writeback_locked(eb, false);
	if (eb->error)
		cpc_eb_set_dirty_locked(eb, true);
	else
		cache->stats.written++;
	cpc_cond_broadcast(&cache->changed);
}

/* One copy of some nodes has been written, or not. */
static void write_done(struct cpc_io *io)
{
	struct eb_write *w = cpc_container_of(io, struct eb_write, io);
	struct cpc_eb_cache *cache = io->priv;

	cpc_mutex_lock(&cache->lock);
	cache->stats.batches++;
	if (io->result && !cache->write_error)
		cache->write_error = io->result;
	for (unsigned i = 0; i < io->nr_iov; i++) {
		struct cpc_eb *eb = w->nodes[i];

		if (io->result)
			eb->error = io->result;
		eb->flush_seq = cpc_max_u64(eb->flush_seq, io->epoch);
		if (--eb->writes_left == 0)
			node_written_locked(eb);
	}
	cpc_mutex_unlock(&cache->lock);
}

/* --- a batch --- */

/* Moves a node into the batch if it is still dirty; anybody may have taken it meanwhile. */
static void take_node_locked(struct batch *batch, struct cpc_eb *eb)
{
	if (!(cpc_eb_flags(eb) & EB_DIRTY))
		return;
	cpc_eb_get(eb);
	cpc_eb_set_dirty_locked(eb, false);
	cpc_eb_set_writeback_locked(eb, true);
	eb->error = 0;
	eb->flush_seq = 0;
	eb->writes_left = (uint8_t)batch->cache->p.geo->copies;
	batch->node[0][batch->nr++] = eb;
}

/* Collects dirty nodes from *index on. */
static void fill_batch(struct batch *batch, uint64_t *index, bool frozen)
{
	struct cpc_eb_cache *cache = batch->cache;
	unsigned nr;

	batch->nr = 0;
	cpc_mutex_lock(&cache->lock);
	nr = cpc_eb_find_dirty_locked(cache, frozen, index, batch->node[1], BATCH_NODES);
	for (unsigned i = 0; i < nr; i++)
		take_node_locked(batch, batch->node[1][i]);
	cpc_mutex_unlock(&cache->lock);
}

static int by_second_copy(const void *a, const void *b)
{
	uint64_t x = (*(struct cpc_eb *const *)a)->bytenr[1];
	uint64_t y = (*(struct cpc_eb *const *)b)->bytenr[1];

	return (x > y) - (x < y);
}

/* Nodes from `first` on whose copies follow each other on the device. */
static unsigned count_neighbours(const struct batch *batch, unsigned copy, unsigned first)
{
	struct cpc_eb *const *node = batch->node[copy];
	uint32_t nodesize = batch->cache->nodesize;
	unsigned max = MAX_WRITE / nodesize, nr = 1;

	while (nr < max && first + nr < batch->nr &&
	       node[first + nr]->bytenr[copy] == node[first + nr - 1]->bytenr[copy] + nodesize)
		nr++;
	return nr;
}

static void submit_write(struct batch *batch, unsigned copy, unsigned first, unsigned nr)
{
	struct eb_write *w = &batch->write[copy][first];

	for (unsigned i = first; i < first + nr; i++) {
		batch->iov[copy][i].iov_base = batch->node[copy][i]->data;
		batch->iov[copy][i].iov_len = batch->cache->nodesize;
	}
	memset(w, 0, sizeof(*w));
	w->nodes = &batch->node[copy][first];
	w->io.op = CPC_IO_WRITE;
	w->io.cause = CPC_CAUSE_METADATA;
	w->io.bytenr = batch->node[copy][first]->bytenr[copy];
	w->io.iov = &batch->iov[copy][first];
	w->io.nr_iov = nr;
	w->io.fe = batch->cache->p.fe;
	w->io.done = write_done;
	w->io.priv = batch->cache;
	cpc_ioq_submit(batch->queue, &w->io);
}

static void submit_copy(struct batch *batch, unsigned copy)
{
	unsigned nr;

	for (unsigned i = 0; i < batch->nr; i += nr) {
		nr = count_neighbours(batch, copy, i);
		submit_write(batch, copy, i, nr);
	}
}

/* Writes both copies of the batch's nodes and waits for them. */
static void write_batch(struct batch *batch)
{
	if (batch->cache->p.geo->copies == 2) {
		memcpy(batch->node[1], batch->node[0], batch->nr * sizeof(batch->node[0][0]));
		qsort(batch->node[1], batch->nr, sizeof(batch->node[1][0]), by_second_copy);
	}
	for (unsigned copy = 0; copy < batch->cache->p.geo->copies; copy++)
		submit_copy(batch, copy);
	cpc_ioq_wait(batch->queue);
	for (unsigned i = 0; i < batch->nr; i++)
		cpc_eb_put(batch->node[0][i]);
}

static struct batch *batch_get(struct cpc_eb_cache *cache)
{
	struct batch *batch = cpc_alloc(sizeof(*batch));

	if (!batch)
		return NULL;
	batch->cache = cache;
	batch->queue = cpc_ioq_get(cache->p.backing);
	if (!batch->queue) {
		cpc_free(batch);
		return NULL;
	}
	return batch;
}

static void batch_put(struct batch *batch)
{
	cpc_ioq_put(batch->cache->p.backing, batch->queue);
	cpc_free(batch);
}

/* Writes the nodes that are dirty (or frozen); those that fail are not tried again. */
static int write_dirty(struct cpc_eb_cache *cache, bool frozen)
{
	struct batch *batch = batch_get(cache);
	uint64_t index = 0;

	if (!batch)
		return -ENOMEM;
	do {
		fill_batch(batch, &index, frozen);
		write_batch(batch);
	} while (batch->nr && index);
	batch_put(batch);
	return 0;
}

/* --- sync --- */

static void tag_dirty(struct cpc_eb_cache *cache)
{
	uint64_t index = 0;
	bool more;

	do {
		cpc_mutex_lock(&cache->lock);
		more = cpc_eb_freeze_some_locked(cache, &index);
		cpc_mutex_unlock(&cache->lock);
	} while (more);
}

/* Waits for nodes that are in writeback now. Those that come behind the walk are not seen. */
static void wait_writeback_locked(struct cpc_eb_cache *cache)
{
	struct cpc_eb *eb;

	for (uint64_t index = 0;
	     (eb = cpc_xa_find_marked(&cache->index, &index, UINT64_MAX, CPC_MARK_WRITEBACK));
	     index++) {
		cpc_eb_get(eb);
		cpc_eb_wait_locked(eb);
		cpc_eb_put(eb);
	}
}

int cpc_eb_sync(struct cpc_eb_cache *cache)
{
	int ret = 0, error;

	if (!cache->p.fe)
		return cpc_eb_any_dirty(cache) ? -EROFS : 0;
	if (cpc_eb_any_dirty(cache)) {
		tag_dirty(cache);
		ret = write_dirty(cache, true);
	}
	cpc_mutex_lock(&cache->lock);
	wait_writeback_locked(cache);
	error = cache->write_error;
	cache->write_error = 0;
	cpc_eb_evict_locked(cache, BATCH_NODES);
	cpc_mutex_unlock(&cache->lock);
	return error ? error : ret;
}

/* --- room --- */

/* Return: the error of a write since the last sync. *over: the cache is beyond its limit. */
static int look_at_room(struct cpc_eb_cache *cache, bool *dirty, bool *over)
{
	int error;

	cpc_mutex_lock(&cache->lock);
	*dirty = cache->stats.dirty_bytes > 0 &&
		 cache->stats.dirty_bytes >= cache->p.limit / DIRTY_SHARE;
	*over = cache->stats.cached_bytes >= cache->p.limit;
	error = cache->write_error;
	cpc_mutex_unlock(&cache->lock);
	return error;
}

int cpc_eb_make_room(struct cpc_eb_cache *cache)
{
	bool dirty, over;
	int error = look_at_room(cache, &dirty, &over);

	if (!cache->p.fe || error || !dirty)
		return error;
	/* Without memory the nodes stay; sync will write them. */
	(void)write_dirty(cache, false);
	error = look_at_room(cache, &dirty, &over);
	if (error || !over)
		return error;
	/* What failed here is made good before the next flush is good, or that one fails. */
	(void)cpc_flush_epoch_flush(cache->p.fe, CPC_FLUSH_PRESSURE);
	cpc_mutex_lock(&cache->lock);
	cpc_eb_evict_locked(cache, 2 * cache->stats.cached_bytes / cache->nodesize);
	cpc_mutex_unlock(&cache->lock);
	return 0;
}

/* --- abort --- */

/* Waits for writes of this generation. Return: true if there was one. */
static bool wait_generation_locked(struct cpc_eb_cache *cache, uint64_t generation)
{
	bool waited = false;
	struct cpc_eb *eb;

	for (uint64_t index = 0;
	     (eb = cpc_xa_find_marked(&cache->index, &index, UINT64_MAX, CPC_MARK_WRITEBACK));
	     index++) {
		if (eb->generation != generation)
			continue;
		cpc_eb_get(eb);
		cpc_eb_wait_locked(eb);
		cpc_eb_put(eb);
		waited = true;
	}
	return waited;
}

void cpc_eb_abort(struct cpc_eb_cache *cache, uint64_t generation)
{
	struct cpc_eb *eb;

	cpc_mutex_lock(&cache->lock);
	/* A write that fails makes its node dirty again, so look again after each wait. */
	while (wait_generation_locked(cache, generation))
		;
	for (uint64_t index = 0;
	     (eb = cpc_xa_find_marked(&cache->index, &index, UINT64_MAX, CPC_MARK_DIRTY));
	     index++) {
		if (eb->generation == generation)
			cpc_eb_drop_locked(eb);
	}
	cache->write_error = 0;
	cpc_mutex_unlock(&cache->lock);
}
