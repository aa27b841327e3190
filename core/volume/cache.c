/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cache: the index of one volume's buffers.
 *
 * A buffer in the index is immutable, so the index lock covers pointers and marks only. States of
 * a slot: absent; FILLING (a reader is fetching it: a writer simply replaces it, and the reader
 * sees that it did); clean; DIRTY of the open epoch; DIRTY of a frozen one (its cut has not come by
 * yet); WRITEBACK. The index marks DIRTY and WRITEBACK equal the flags.
 *
 * When a frozen dirty buffer is replaced before its cut has gathered it, the index's reference
 * moves to vol->displaced, where the cut finds it.
 */
#include "volume/volume-internal.h"

struct cpc_buf *cpc_cache_get(struct cpc_volume *vol, uint64_t block)
{
	struct cpc_buf *buf;

	cpc_mutex_lock(&vol->cache_lock);
	buf = cpc_xa_load(&vol->cache, block);
	if (buf && buf->flags & CPC_BUF_FILLING)
		buf = NULL;
	if (buf)
		atomic_fetch_add_explicit(&buf->refs, 1, memory_order_relaxed);
	cpc_mutex_unlock(&vol->cache_lock);
	if (buf)
		atomic_store_explicit(&buf->referenced, 1, memory_order_relaxed);
	return buf;
}

static int store(struct cpc_volume *vol, struct cpc_buf *buf, uint64_t block, struct cpc_buf **old)
{
	void *replaced;
	int ret = cpc_xa_store(&vol->cache, block, buf, &replaced);

	if (ret)
		return ret;
	*old = replaced;
	buf->block = block;
	atomic_store_explicit(&buf->referenced, 0, memory_order_relaxed);
	atomic_store_explicit(&buf->vol, vol, memory_order_release);
	return 0;
}

bool cpc_cache_add_filling(struct cpc_volume *vol, struct cpc_buf *buf, uint64_t block)
{
	struct cpc_buf *old;
	bool ok = false;

	cpc_mutex_lock(&vol->cache_lock);
	if (!cpc_xa_load(&vol->cache, block) && !store(vol, buf, block, &old)) {
		buf->flags = CPC_BUF_FILLING;
		atomic_fetch_add_explicit(&buf->refs, 1, memory_order_relaxed);
		ok = true;
	}
	cpc_mutex_unlock(&vol->cache_lock);
	return ok;
}

/* Takes the index's reference away: to the cut that has yet to come, or for good. */
static void let_go(struct cpc_volume *vol, struct cpc_buf *buf, uint64_t epoch,
		   struct cpc_list *gone)
{
	atomic_store_explicit(&buf->vol, NULL, memory_order_relaxed);
	if (buf->flags & CPC_BUF_DIRTY && buf->epoch != epoch)
		cpc_list_add_tail(&vol->displaced, &buf->node);
	else if (atomic_fetch_sub_explicit(&buf->refs, 1, memory_order_acq_rel) == 1)
		cpc_list_add(gone, &buf->node);
}

/* Gives buffers whose last reference has gone back, without the index lock. */
static void free_gone(struct cpc_volume *vol, struct cpc_list *gone)
{
	while (!cpc_list_empty(gone)) {
		struct cpc_buf *buf = cpc_list_first(gone, struct cpc_buf, node);

		cpc_list_del(&buf->node);
		atomic_store_explicit(&buf->refs, 1, memory_order_relaxed);
		cpc_buf_put(vol->engine, buf);
	}
}

void cpc_cache_filled(struct cpc_volume *vol, struct cpc_buf *buf, bool ok)
{
	cpc_mutex_lock(&vol->cache_lock);
	if (buf->flags & CPC_BUF_FILLING &&
	    atomic_load_explicit(&buf->vol, memory_order_relaxed) == vol) {
		buf->flags &= ~(uint32_t)CPC_BUF_FILLING;
		if (!ok) {
			cpc_assert(cpc_xa_erase(&vol->cache, buf->block) == buf);
			atomic_store_explicit(&buf->vol, NULL, memory_order_relaxed);
			atomic_fetch_sub_explicit(&buf->refs, 1, memory_order_relaxed);
		}
	}
	cpc_mutex_unlock(&vol->cache_lock);
}

/* Makes sure that storing in [block, block + nr) cannot fail: the leaves of both ends exist. */
static int make_slots(struct cpc_volume *vol, struct cpc_buf **bufs, uint64_t block, uint64_t nr)
{
	uint64_t last = block + nr - 1;
	bool made = false;
	int ret = 0;

	if (nr == 1) /* the store itself changes nothing if it fails */
		return 0;
	cpc_assert(nr <= 64); /* slots of a leaf: the range lies in two of them */
	if (!cpc_xa_load(&vol->cache, block)) {
		ret = cpc_xa_store(&vol->cache, block, bufs[0], NULL);
		made = !ret;
	}
	if (!ret && !cpc_xa_load(&vol->cache, last))
		ret = cpc_xa_store(&vol->cache, last, bufs[nr - 1], NULL);
	if (ret && made)
		cpc_xa_erase(&vol->cache, block);
	return ret;
}

int cpc_cache_store_dirty(struct cpc_volume *vol, struct cpc_buf **bufs, uint64_t block,
			  uint64_t nr, uint64_t epoch, uint64_t *again)
{
	struct cpc_list gone;
	int ret;

	*again = 0;
	cpc_list_init(&gone);
	cpc_mutex_lock(&vol->cache_lock);
	ret = make_slots(vol, bufs, block, nr);
	for (uint64_t i = 0; i < nr && !ret; i++) {
		struct cpc_buf *old;

		ret = store(vol, bufs[i], block + i, &old);
		cpc_assert(ret == 0 || nr == 1);
		if (ret)
			break;
		bufs[i]->flags = CPC_BUF_DIRTY;
		bufs[i]->epoch = epoch;
		cpc_find_note(vol, bufs[i]);
		if (!old || old == bufs[i])
			continue;
		*again += old->flags & CPC_BUF_DIRTY && old->epoch == epoch;
		let_go(vol, old, epoch, &gone);
	}
	cpc_mutex_unlock(&vol->cache_lock);
	free_gone(vol, &gone);
	return ret;
}

void cpc_cache_add_clean(struct cpc_volume *vol, struct cpc_buf **bufs, uint64_t block, uint64_t nr)
{
	struct cpc_list gone;
	struct cpc_buf *old;

	cpc_list_init(&gone);
	cpc_mutex_lock(&vol->cache_lock);
	for (uint64_t i = 0; i < nr; i++) {
		if (cpc_xa_load(&vol->cache, block + i) || store(vol, bufs[i], block + i, &old))
			cpc_list_add(&gone, &bufs[i]->node);
	}
	cpc_mutex_unlock(&vol->cache_lock);
	free_gone(vol, &gone);
}

void cpc_cache_remove(struct cpc_volume *vol, uint64_t block, uint64_t nr, uint64_t epoch)
{
	struct cpc_list gone;
	struct cpc_buf *buf;
	uint64_t at = block;

	cpc_list_init(&gone);
	cpc_mutex_lock(&vol->cache_lock);
	while ((buf = cpc_xa_find(&vol->cache, &at, block + nr - 1))) {
		cpc_xa_erase(&vol->cache, at);
		let_go(vol, buf, epoch, &gone);
		if (at == block + nr - 1)
			break;
		at++;
	}
	cpc_mutex_unlock(&vol->cache_lock);
	free_gone(vol, &gone);
}

unsigned cpc_cache_gather(struct cpc_volume *vol, uint64_t epoch, uint64_t *block,
			  struct cpc_buf **out, unsigned max)
{
	unsigned nr;

	cpc_mutex_lock(&vol->cache_lock);
	nr = cpc_find_take(vol, epoch, block, out, max < CPC_CACHE_BATCH ? max : CPC_CACHE_BATCH);
	for (unsigned i = 0; i < nr; i++) {
		out[i]->flags = CPC_BUF_WRITEBACK;
		cpc_xa_set_mark(&vol->cache, out[i]->block, CPC_MARK_WRITEBACK);
		atomic_fetch_add_explicit(&out[i]->refs, 1, memory_order_relaxed);
	}
	cpc_mutex_unlock(&vol->cache_lock);
	return nr;
}

void cpc_cache_written(struct cpc_volume *vol, struct cpc_buf **bufs, size_t nr)
{
	cpc_mutex_lock(&vol->cache_lock);
	for (size_t i = 0; i < nr; i++) {
		struct cpc_buf *buf = bufs[i];

		buf->flags = 0;
		if (atomic_load_explicit(&buf->vol, memory_order_relaxed) == vol)
			cpc_xa_clear_mark(&vol->cache, buf->block, CPC_MARK_WRITEBACK);
	}
	cpc_mutex_unlock(&vol->cache_lock);
	for (size_t i = 0; i < nr; i++)
		cpc_buf_put(vol->engine, bufs[i]);
}

bool cpc_cache_find_dirty(struct cpc_volume *vol, uint64_t *block, uint64_t end)
{
	uint64_t dirty = *block, writeback = *block;
	bool found;

	if (*block >= end)
		return false;
	cpc_mutex_lock(&vol->cache_lock);
	if (!cpc_xa_find_marked(&vol->cache, &dirty, end - 1, CPC_MARK_DIRTY))
		dirty = UINT64_MAX;
	if (!cpc_xa_find_marked(&vol->cache, &writeback, end - 1, CPC_MARK_WRITEBACK))
		writeback = UINT64_MAX;
	cpc_mutex_unlock(&vol->cache_lock);
	found = cpc_min_u64(dirty, writeback) != UINT64_MAX;
	if (found)
		*block = cpc_min_u64(dirty, writeback);
	return found;
}
