/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * memory: the buffers of the data cache, one arena for all volumes of a pool.
 *
 * The arena is mapped and touched once, at start, so that the write path never faults. A free list
 * in the order last freed, first used keeps the hot ones in the processor's cache. When it is
 * empty a clock over the arena evicts clean buffers that only their index holds; a buffer seen
 * since the hand last passed gets another round.
 *
 * Rejected: a clock a volume (which volume to take from is then a second policy), and LRU lists (a
 * hit would have to take their lock).
 */
#include "volume/volume-internal.h"

#include <sys/mman.h>

/* Buffers freed by one walk of the clock, so that the next allocations need none; and how many
 * the hand looks at under one lock. */
#define EVICT_BATCH 32u
/* This part of the arena stays free for those who need a buffer. */
#define SPARE_SHARE 8u
#define HAND_STEP   64u

int cpc_memory_init(struct cpc_memory *m, size_t bytes)
{
	m->nr = bytes / CPC_BLOCK_SIZE;
	m->data = mmap(NULL, m->nr * CPC_BLOCK_SIZE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (m->data == MAP_FAILED) {
		m->data = NULL;
		return -ENOMEM;
	}
	m->bufs = cpc_alloc_array(m->nr, sizeof(*m->bufs));
	if (!m->bufs) {
		munmap(m->data, m->nr * CPC_BLOCK_SIZE);
		m->data = NULL;
		return -ENOMEM;
	}
	memset(m->bufs, 0, m->nr * sizeof(*m->bufs));
	cpc_mutex_init(&m->lock, "memory", CPC_RANK_MEMORY);
	cpc_cond_init(&m->freed);
	cpc_list_init(&m->free);
	for (size_t i = 0; i < m->nr; i++)
		cpc_list_add_tail(&m->free, &m->bufs[i].node);
	m->nr_free = m->nr;
	return 0;
}

void cpc_memory_destroy(struct cpc_memory *m)
{
	if (!m->data)
		return;
	munmap(m->data, m->nr * CPC_BLOCK_SIZE);
	cpc_free(m->bufs);
	cpc_mutex_destroy(&m->lock);
	cpc_cond_destroy(&m->freed);
}

static struct cpc_buf *take_free(struct cpc_memory *m)
{
	struct cpc_buf *buf = NULL;

	cpc_mutex_lock(&m->lock);
	if (m->nr_free) {
		buf = cpc_list_first(&m->free, struct cpc_buf, node);
		cpc_list_del(&buf->node);
		m->nr_free--;
	}
	cpc_mutex_unlock(&m->lock);
	if (buf) {
		atomic_store_explicit(&buf->refs, 1, memory_order_relaxed);
		buf->flags = 0;
	}
	return buf;
}

bool cpc_buf_take_spare(struct cpc_engine *e, struct cpc_buf **bufs, size_t nr)
{
	struct cpc_memory *m = &e->memory;
	bool ok;

	cpc_mutex_lock(&m->lock);
	ok = m->nr_free >= nr + m->nr / SPARE_SHARE;
	for (size_t i = 0; ok && i < nr; i++) {
		bufs[i] = cpc_list_first(&m->free, struct cpc_buf, node);
		cpc_list_del(&bufs[i]->node);
		atomic_store_explicit(&bufs[i]->refs, 1, memory_order_relaxed);
		bufs[i]->flags = 0;
	}
	m->nr_free -= ok ? nr : 0;
	cpc_mutex_unlock(&m->lock);
	return ok;
}

static void give_free(struct cpc_memory *m, struct cpc_buf *buf)
{
	cpc_mutex_lock(&m->lock);
	cpc_list_add(&m->free, &buf->node);
	m->nr_free++;
	cpc_cond_signal(&m->freed);
	cpc_mutex_unlock(&m->lock);
}

void cpc_buf_put(struct cpc_engine *e, struct cpc_buf *buf)
{
	if (atomic_fetch_sub_explicit(&buf->refs, 1, memory_order_acq_rel) == 1)
		give_free(&e->memory, buf);
}

/* Takes a clean buffer that only its index holds out of it; vol->cache_lock is held. */
static bool evict(struct cpc_volume *vol, struct cpc_buf *buf)
{
	/* acquire: what a reader did before it let go comes before what the next owner does */
	if (atomic_load_explicit(&buf->vol, memory_order_relaxed) != vol || buf->flags ||
	    atomic_load_explicit(&buf->refs, memory_order_acquire) != 1)
		return false;
	cpc_assert(cpc_xa_erase(&vol->cache, buf->block) == buf);
	atomic_store_explicit(&buf->vol, NULL, memory_order_relaxed);
	atomic_store_explicit(&buf->refs, 0, memory_order_relaxed);
	return true;
}

/* A buffer the hand may take: in an index and not seen since the last round. */
static struct cpc_volume *candidate(struct cpc_buf *buf)
{
	struct cpc_volume *vol = atomic_load_explicit(&buf->vol, memory_order_acquire);

	if (!vol || !atomic_load_explicit(&buf->referenced, memory_order_relaxed))
		return vol;
	atomic_store_explicit(&buf->referenced, 0, memory_order_relaxed);
	return NULL;
}

/* Moves what can be evicted of bufs[at, at + HAND_STEP) to `found`, one lock a volume's run. */
static unsigned evict_step(struct cpc_memory *m, size_t at, struct cpc_list *found)
{
	struct cpc_volume *locked = NULL;
	unsigned nr = 0;

	for (size_t i = at; i < at + HAND_STEP && i < m->nr; i++) {
		struct cpc_buf *buf = &m->bufs[i];
		struct cpc_volume *vol = candidate(buf);

		if (!vol)
			continue;
		if (vol != locked) {
			if (locked)
				cpc_mutex_unlock(&locked->cache_lock);
			cpc_mutex_lock(&vol->cache_lock);
			locked = vol;
		}
		if (evict(vol, buf)) {
			cpc_list_add_tail(found, &buf->node);
			nr++;
		}
	}
	if (locked)
		cpc_mutex_unlock(&locked->cache_lock);
	return nr;
}

static void give_free_list(struct cpc_memory *m, struct cpc_list *found, unsigned nr)
{
	cpc_mutex_lock(&m->lock);
	cpc_list_splice_tail(&m->free, found);
	m->nr_free += nr;
	cpc_cond_broadcast(&m->freed);
	cpc_mutex_unlock(&m->lock);
}

/* Looks at no more than two rounds of the arena: one takes the marks away, one finds. */
static void run_clock(struct cpc_engine *e)
{
	struct cpc_memory *m = &e->memory;
	size_t steps = cpc_div_round_up(m->nr, HAND_STEP);
	struct cpc_list found;
	unsigned nr = 0;

	cpc_list_init(&found);
	/* A volume is freed through epoch, so the pointer read from a buffer stays good. */
	cpc_epoch_enter();
	for (size_t i = 0; i < 2 * steps && nr < EVICT_BATCH; i++) {
		size_t at = atomic_fetch_add_explicit(&m->hand, 1, memory_order_relaxed) % steps;

		nr += evict_step(m, at * HAND_STEP, &found);
	}
	cpc_epoch_exit();
	if (nr)
		give_free_list(m, &found, nr);
}

struct cpc_buf *cpc_buf_try_alloc(struct cpc_engine *e)
{
	struct cpc_buf *buf = take_free(&e->memory);

	if (buf)
		return buf;
	run_clock(e);
	return take_free(&e->memory);
}

/* Everything is dirty, in writeback or in use: writeback makes room. */
struct cpc_buf *cpc_buf_alloc(struct cpc_engine *e)
{
	for (;;) {
		struct cpc_buf *buf = cpc_buf_try_alloc(e);

		if (buf || cpc_engine_broken(e, NULL, 0))
			return buf;
		if (e->opts.no_threads) {
			if (cpc_write_out(e))
				return NULL;
			continue;
		}
		cpc_kick_writeback(e);
		cpc_mutex_lock(&e->memory.lock);
		if (!e->memory.nr_free)
			cpc_cond_wait_ns(&e->memory.freed, &e->memory.lock, 10000000);
		cpc_mutex_unlock(&e->memory.lock);
	}
}
