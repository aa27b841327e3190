/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Why this way: every lookup in every tree ends here, and nearly all find their node in memory. So
 * a hit takes no lock: the index may be read in an epoch section, and a reference is taken by
 * adding one to a count that is not zero. A node that is in the index never changes, so there is
 * nothing else to protect.
 *
 *	         alloc            finish          writeback        writes done
 *	(none) -------> private --------> DIRTY ------------> WRITEBACK ---------> clean
 *	   \                                ^                     |                 ^  \
 *	    \                               +---- write failed ---+                 |   evict,
 *	     +---- read: LOADING ---------------------------------------------------+   drop
 *
 * Normal path. lookup(): load from the index, take the reference, look again: if the slot is still
 * the node's, it had not been dropped. Slow path: a miss puts an empty LOADING node into the index,
 * so that later readers of the same node wait for the one read instead of starting another.
 *
 * Dropping. The index owns one reference. The clock takes only nodes whose count is exactly that
 * one, by exchanging it for 0, after which no reader can take it. Dropping a node that is in use
 * (its address was freed) only takes it out of the index; the last user frees it. Memory is given
 * back after an epoch.
 *
 * The clock knows only clean nodes, so it does not search among dirty ones; a clean one that
 * no device flush has covered yet is passed over.
 *
 * Rejected: a lock per node (nothing to lock); a hash table (no marks, no order of addresses); an
 * LRU list (a write to shared memory at each hit).
 */
#include "extent-buffer/extent-buffer-internal.h"

#include <inttypes.h>

#include "backing/flush-epoch.h"
#include "lib/hooks.h"
#include "lib/log.h"

/* Nodes that one insertion looks at to make room. */
#define EVICT_SCAN 32

/* --- memory --- */

static struct cpc_eb *eb_new(struct cpc_eb_cache *cache, const uint64_t bytenr[2], uint64_t owner,
			     uint8_t level, uint64_t generation)
{
	struct cpc_eb *eb = cpc_zalloc(sizeof(*eb));

	if (!eb)
		return NULL;
	eb->bytenr[0] = bytenr[0];
	eb->bytenr[1] = bytenr[1];
	eb->owner = owner;
	eb->level = level;
	eb->generation = generation;
	eb->cache = cache;
	atomic_init(&eb->refs, 1);
	cpc_list_init(&eb->clock);
	return eb;
}

static int eb_new_data(struct cpc_eb *eb)
{
	eb->data = cpc_alloc_aligned(CPC_BLOCK_SIZE, eb->cache->nodesize);
	if (eb->data)
		return 0;
	cpc_free(eb);
	return -ENOMEM;
}

static void eb_free(struct cpc_epoch_entry *entry)
{
	struct cpc_eb *eb = cpc_container_of(entry, struct cpc_eb, retired);

	cpc_free(eb->data);
	cpc_free(eb);
}

static bool eb_tryget(struct cpc_eb *eb)
{
	uint32_t refs = atomic_load_explicit(&eb->refs, memory_order_relaxed);

	do {
		if (refs == 0)
			return false;
	} while (!atomic_compare_exchange_weak_explicit(
	    &eb->refs, &refs, refs + 1, memory_order_acquire, memory_order_relaxed));
	return true;
}

void cpc_eb_put(struct cpc_eb *eb)
{
	if (!eb)
		return;
	if (atomic_fetch_sub_explicit(&eb->refs, 1, memory_order_acq_rel) == 1)
		cpc_epoch_retire(&eb->retired, eb_free);
}

/* --- state --- */

/* The clock holds a node exactly as long as it is indexed and clean. */
static void clock_update(struct cpc_eb *eb)
{
	uint32_t flags = cpc_eb_flags(eb);
	bool clean = (flags & EB_INDEXED) && !(flags & (EB_DIRTY | EB_WRITEBACK | EB_LOADING));

	if (clean == !cpc_list_empty(&eb->clock))
		return;
	if (clean)
		cpc_list_add_tail(&eb->cache->clock, &eb->clock);
	else
		cpc_list_del(&eb->clock);
}

static void set_state(struct cpc_eb *eb, uint32_t flag, uint64_t *bytes, bool on)
{
	if (on) {
		cpc_eb_set_flag(eb, flag);
		*bytes += eb->cache->nodesize;
	} else {
		cpc_eb_clear_flag(eb, flag);
		*bytes -= eb->cache->nodesize;
	}
	clock_update(eb);
}

void cpc_eb_set_dirty_locked(struct cpc_eb *eb, bool on)
{
	struct cpc_eb_cache *cache = eb->cache;

	cpc_mutex_assert_held(&cache->lock);
	if (on == !!(cpc_eb_flags(eb) & EB_DIRTY))
		return;
	if (!on)
		cpc_eb_note_dirty_locked(eb, false);
	set_state(eb, EB_DIRTY, &cache->stats.dirty_bytes, on);
	if (on)
		cpc_eb_note_dirty_locked(eb, true);
}

void cpc_eb_set_writeback_locked(struct cpc_eb *eb, bool on)
{
	struct cpc_eb_cache *cache = eb->cache;
	uint64_t index = cpc_eb_index(eb->bytenr[0]);

	cpc_mutex_assert_held(&cache->lock);
	if (on == !!(cpc_eb_flags(eb) & EB_WRITEBACK))
		return;
	set_state(eb, EB_WRITEBACK, &cache->stats.writeback_bytes, on);
	if (on)
		cpc_xa_set_mark(&cache->index, index, CPC_MARK_WRITEBACK);
	else
		cpc_xa_clear_mark(&cache->index, index, CPC_MARK_WRITEBACK);
}

void cpc_eb_wait_locked(struct cpc_eb *eb)
{
	while (cpc_eb_flags(eb) & (EB_LOADING | EB_WRITEBACK))
		cpc_cond_wait(&eb->cache->changed, &eb->cache->lock);
}

/* --- index --- */

/* The index takes its own reference. Nothing is indexed there. */
static int index_add_locked(struct cpc_eb *eb, uint32_t flags)
{
	struct cpc_eb_cache *cache = eb->cache;
	int ret;

	cpc_eb_set_flag(eb, flags | EB_INDEXED);
	ret = cpc_xa_store(&cache->index, cpc_eb_index(eb->bytenr[0]), eb, NULL);
	if (ret) {
		cpc_eb_clear_flag(eb, flags | EB_INDEXED);
		return ret;
	}
	cpc_eb_get(eb);
	cache->stats.cached_bytes += cache->nodesize;
	clock_update(eb);
	return 0;
}

/* Takes it out; the index's reference becomes the caller's. */
static void index_remove_locked(struct cpc_eb *eb)
{
	struct cpc_eb_cache *cache = eb->cache;

	cpc_assert(!(cpc_eb_flags(eb) & EB_WRITEBACK));
	cpc_eb_set_dirty_locked(eb, false);
	cpc_eb_clear_flag(eb, EB_INDEXED);
	cpc_xa_erase(&cache->index, cpc_eb_index(eb->bytenr[0]));
	cache->stats.cached_bytes -= cache->nodesize;
	clock_update(eb);
}

void cpc_eb_drop_locked(struct cpc_eb *eb)
{
	index_remove_locked(eb);
	cpc_eb_put(eb);
}

static bool flush_covers(const struct cpc_eb *eb)
{
	const struct cpc_eb_cache *cache = eb->cache;

	return !eb->flush_seq || cpc_flush_epoch_covered(cache->p.fe, eb->flush_seq);
}

/* Drops a node that nobody uses. */
static bool evict_one_locked(struct cpc_eb *eb)
{
	uint32_t expected = 1;

	if (cpc_eb_flags(eb) & EB_USED) {
		cpc_eb_clear_flag(eb, EB_USED);
		return false;
	}
	if (!flush_covers(eb) ||
	    !atomic_compare_exchange_strong_explicit(&eb->refs, &expected, 0, memory_order_acquire,
						     memory_order_relaxed))
		return false;
	index_remove_locked(eb);
	cpc_epoch_retire(&eb->retired, eb_free);
	return true;
}

void cpc_eb_evict_locked(struct cpc_eb_cache *cache, size_t scan)
{
	while (scan-- > 0 && cache->stats.cached_bytes > cache->p.limit &&
	       !cpc_list_empty(&cache->clock)) {
		struct cpc_eb *eb = cpc_list_first(&cache->clock, struct cpc_eb, clock);

		if (evict_one_locked(eb))
			continue;
		cpc_list_del(&eb->clock);
		cpc_list_add_tail(&cache->clock, &eb->clock);
	}
}

/* --- reading --- */

/* A complete node with a reference, or NULL: not there, or not complete. */
static struct cpc_eb *lookup(struct cpc_eb_cache *cache, uint64_t index)
{
	struct cpc_eb *eb;

	cpc_epoch_enter();
	eb = cpc_xa_load(&cache->index, index);
	if (eb && (!(cpc_eb_flags(eb) & EB_UPTODATE) || !eb_tryget(eb)))
		eb = NULL;
	if (eb && cpc_unlikely(cpc_xa_load(&cache->index, index) != eb)) {
		cpc_eb_put(eb);
		eb = NULL;
	}
	cpc_epoch_exit();
	return eb;
}

/* Waits for whoever reads this node, and takes the result. */
static int join_load_locked(struct cpc_eb *eb, struct cpc_eb **out)
{
	int ret;

	cpc_eb_get(eb);
	while (cpc_eb_flags(eb) & EB_LOADING)
		cpc_cond_wait(&eb->cache->changed, &eb->cache->lock);
	ret = cpc_eb_flags(eb) & EB_UPTODATE ? 0 : eb->error;
	if (ret)
		cpc_eb_put(eb);
	else
		*out = eb;
	return ret;
}

static void end_load(struct cpc_eb *eb, int result)
{
	struct cpc_eb_cache *cache = eb->cache;

	cpc_mutex_lock(&cache->lock);
	eb->error = result;
	if (result == 0)
		cpc_eb_set_flag(eb, EB_UPTODATE);
	cpc_eb_clear_flag(eb, EB_LOADING);
	clock_update(eb);
	if (result)
		cpc_eb_drop_locked(eb);
	cpc_cond_broadcast(&cache->changed);
	cpc_mutex_unlock(&cache->lock);
}

/* Puts a LOADING node into the index, or finds that somebody else has put one.
 * Return: 0 it is ours to read; 1 *out is there; negative errno. */
static int begin_load(struct cpc_eb *fresh, struct cpc_eb **out)
{
	struct cpc_eb_cache *cache = fresh->cache;
	struct cpc_eb *eb;
	int ret;

	cpc_mutex_lock(&cache->lock);
	eb = cpc_xa_load(&cache->index, cpc_eb_index(fresh->bytenr[0]));
	if (eb) {
		ret = join_load_locked(eb, out);
		ret = ret ? ret : 1;
	} else {
		cpc_eb_evict_locked(cache, EVICT_SCAN);
		ret = index_add_locked(fresh, EB_LOADING);
	}
	cpc_mutex_unlock(&cache->lock);
	return ret;
}

static int load(struct cpc_eb_cache *cache, const struct cpc_node_ptr *ptr, uint64_t owner,
		struct cpc_eb **out)
{
	struct cpc_eb *eb = eb_new(cache, ptr->bytenr, owner, ptr->level, ptr->generation);
	int ret;

	if (!eb || eb_new_data(eb))
		return -ENOMEM;
	eb->csum = ptr->csum;
	ret = begin_load(eb, out);
	if (ret == 0) {
		ret = cpc_eb_load(eb, ptr);
		end_load(eb, ret);
		*out = eb;
		if (ret == 0)
			return 0;
	}
	cpc_eb_put(eb);
	return ret < 0 ? ret : 0;
}

int cpc_eb_read(struct cpc_eb_cache *cache, const struct cpc_node_ptr *ptr, uint64_t owner,
		struct cpc_eb **out)
{
	struct cpc_eb *eb = lookup(cache, cpc_eb_index(ptr->bytenr[0]));
	int ret = 0;

	/* Only the second use counts: what is read once in passing does not push out the rest. */
	if (!eb)
		ret = load(cache, ptr, owner, &eb);
	else if (!(cpc_eb_flags(eb) & EB_USED))
		cpc_eb_set_flag(eb, EB_USED);
	if (ret)
		return ret;
	ret = cpc_eb_compare(eb, ptr, owner);
	if (ret)
		cpc_eb_put(eb);
	else
		*out = eb;
	return ret;
}

/* --- new nodes --- */

/* Takes whatever is indexed there out of memory, when it is not being read or written. */
static void forget_locked(struct cpc_eb_cache *cache, uint64_t index)
{
	struct cpc_eb *eb;

	while ((eb = cpc_xa_load(&cache->index, index))) {
		cpc_eb_get(eb);
		cpc_eb_wait_locked(eb);
		if (cpc_eb_flags(eb) & EB_INDEXED)
			cpc_eb_drop_locked(eb);
		cpc_eb_put(eb);
	}
}

void cpc_eb_forget(struct cpc_eb_cache *cache, uint64_t bytenr)
{
	cpc_mutex_lock(&cache->lock);
	forget_locked(cache, cpc_eb_index(bytenr));
	cpc_mutex_unlock(&cache->lock);
}

static bool indexed(struct cpc_eb_cache *cache, uint64_t index)
{
	bool found;

	cpc_epoch_enter();
	found = cpc_xa_load(&cache->index, index);
	cpc_epoch_exit();
	return found;
}

static void fill_header(const struct cpc_eb *eb)
{
	struct cpc_disk_node *header = eb->data;

	memset(header, 0, offsetof(struct cpc_disk_node, nritems));
	cpc_put_le32(&header->magic, CPC_NODE_MAGIC);
	memcpy(header->uuid, eb->cache->p.uuid, CPC_UUID_SIZE);
	cpc_put_le64(&header->bytenr, eb->bytenr[0]);
	cpc_put_le64(&header->generation, eb->generation);
	cpc_put_le64(&header->owner, eb->owner);
	header->level = eb->level;
	memset(header->reserved, 0, sizeof(header->reserved));
}

int cpc_eb_alloc_data(struct cpc_eb_cache *cache, const uint64_t bytenr[2], uint64_t owner,
		      uint8_t level, uint64_t generation, void *data, struct cpc_eb **out)
{
	struct cpc_eb *eb = eb_new(cache, bytenr, owner, level, generation);

	if (!eb)
		return -ENOMEM;
	if (indexed(cache, cpc_eb_index(bytenr[0])))
		cpc_eb_forget(cache, bytenr[0]);
	eb->data = data;
	fill_header(eb);
	*out = eb;
	return 0;
}

int cpc_eb_alloc(struct cpc_eb_cache *cache, const uint64_t bytenr[2], uint64_t owner,
		 uint8_t level, uint64_t generation, struct cpc_eb **out)
{
	void *data = cpc_alloc_aligned(CPC_BLOCK_SIZE, cache->nodesize);
	int ret;

	if (!data)
		return -ENOMEM;
	memset(data, 0, cache->nodesize);
	ret = cpc_eb_alloc_data(cache, bytenr, owner, level, generation, data, out);
	if (ret)
		cpc_free(data);
	return ret;
}

static int index_new(struct cpc_eb *eb)
{
	struct cpc_eb_cache *cache = eb->cache;
	int ret;

	cpc_mutex_lock(&cache->lock);
	forget_locked(cache, cpc_eb_index(eb->bytenr[0]));
	cpc_eb_evict_locked(cache, EVICT_SCAN);
	ret = index_add_locked(eb, EB_UPTODATE | EB_USED);
	if (ret == 0)
		cpc_eb_set_dirty_locked(eb, true);
	cpc_mutex_unlock(&cache->lock);
	return ret;
}

int cpc_eb_finish(struct cpc_eb *eb, struct cpc_node_ptr *ptr)
{
	struct cpc_eb_cache *cache = eb->cache;
	struct cpc_disk_node *header = eb->data;
	const char *why = NULL;
	int ret;

	if (cache->p.checker)
		why = cache->p.checker(eb->data, cache->nodesize, cache->p.geo);
	if (why) {
		cpc_error("tree %" PRIu64 ": new node for %" PRIu64 " level %u: %s", eb->owner,
			  eb->bytenr[0], eb->level, why);
		return -EUCLEAN;
	}
	eb->csum =
	    cpc_csum_without_field(eb->data, cache->nodesize, offsetof(struct cpc_disk_node, csum));
	cpc_put_le32(&header->csum, eb->csum);
	ret = cpc_eb_make_room(cache);
	if (!ret)
		ret = index_new(eb);
	if (ret)
		return ret;
	memset(ptr, 0, sizeof(*ptr));
	ptr->bytenr[0] = eb->bytenr[0];
	ptr->bytenr[1] = eb->bytenr[1];
	ptr->generation = eb->generation;
	ptr->csum = eb->csum;
	ptr->level = eb->level;
	return 0;
}

/* --- the cache --- */

int cpc_eb_cache_create(const struct cpc_eb_params *params, struct cpc_eb_cache **out)
{
	struct cpc_eb_cache *cache = cpc_zalloc(sizeof(*cache));

	if (!cache)
		return -ENOMEM;
	cache->p = *params;
	cache->nodesize = params->geo->nodesize;
	cpc_mutex_init(&cache->lock, "extent-buffer", CPC_RANK_EXTENT_BUFFER);
	cpc_cond_init(&cache->changed);
	cpc_xa_init(&cache->index);
	cpc_list_init(&cache->clock);
	*out = cache;
	return 0;
}

void cpc_eb_cache_destroy(struct cpc_eb_cache *cache)
{
	uint64_t index = 0;
	struct cpc_eb *eb;

	if (!cache)
		return;
	cpc_mutex_lock(&cache->lock);
	while ((eb = cpc_xa_find(&cache->index, &index, UINT64_MAX))) {
		cpc_assert(atomic_load(&eb->refs) == 1);
		cpc_eb_drop_locked(eb);
	}
	cpc_mutex_unlock(&cache->lock);
	cpc_xa_destroy(&cache->index);
	cpc_epoch_drain();
	cpc_cond_destroy(&cache->changed);
	cpc_mutex_destroy(&cache->lock);
	cpc_free(cache);
}

const struct cpc_geometry *cpc_eb_geometry(const struct cpc_eb_cache *cache)
{
	return cache->p.geo;
}

void cpc_eb_stats(struct cpc_eb_cache *cache, struct cpc_eb_stats *stats)
{
	cpc_mutex_lock(&cache->lock);
	*stats = cache->stats;
	cpc_mutex_unlock(&cache->lock);
}

void cpc_eb_set_limit(struct cpc_eb_cache *cache, size_t limit)
{
	cpc_mutex_lock(&cache->lock);
	cache->p.limit = limit;
	/* Twice around: the first time may only find them used. */
	cpc_eb_evict_locked(cache, 2 * cache->stats.cached_bytes / cache->nodesize);
	cpc_mutex_unlock(&cache->lock);
}

static void check_node(const struct cpc_eb *eb, uint64_t index, struct cpc_eb_stats *sum)
{
	const struct cpc_eb_cache *cache = eb->cache;
	uint32_t flags = cpc_eb_flags(eb);
	bool dirty = cpc_xa_get_mark(&cache->index, index, CPC_MARK_DIRTY);
	bool writeback = cpc_xa_get_mark(&cache->index, index, CPC_MARK_WRITEBACK);

	cpc_assert(cpc_eb_index(eb->bytenr[0]) == index);
	cpc_assert(flags & EB_INDEXED);
	cpc_assert(atomic_load(&eb->refs) > 0);
	cpc_assert(!!(flags & EB_DIRTY) == dirty);
	cpc_assert(!!(flags & EB_WRITEBACK) == writeback);
	cpc_assert(dirty || !cpc_xa_get_mark(&cache->index, index, CPC_MARK_TOWRITE));
	cpc_assert(!(dirty || writeback || flags & EB_LOADING) == !cpc_list_empty(&eb->clock));
	sum->cached_bytes += cache->nodesize;
	sum->dirty_bytes += dirty ? cache->nodesize : 0;
	sum->writeback_bytes += writeback ? cache->nodesize : 0;
}

void cpc_eb_check(struct cpc_eb_cache *cache)
{
	struct cpc_eb_stats sum = {0};
	const struct cpc_eb *eb;

	cpc_mutex_lock(&cache->lock);
	cpc_xa_check(&cache->index);
	for (uint64_t index = 0; (eb = cpc_xa_find(&cache->index, &index, UINT64_MAX)); index++)
		check_node(eb, index, &sum);
	cpc_assert(sum.cached_bytes == cache->stats.cached_bytes);
	cpc_assert(sum.dirty_bytes == cache->stats.dirty_bytes);
	cpc_assert(sum.writeback_bytes == cache->stats.writeback_bytes);
	cpc_mutex_unlock(&cache->lock);
}
