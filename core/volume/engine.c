/* SPDX-License-Identifier: BSD-3-Clause */
/* engine: what the volumes of a pool share. Here: life, the list of volumes, counters. */
#include "volume/volume-internal.h"

#include <stdio.h>

/* --- broken --- */

static void set_broken(struct cpc_engine *e, const char *what, const char *why)
{
	bool first;

	cpc_mutex_lock(&e->why_lock);
	first = !atomic_load(&e->broken);
	if (first)
		snprintf(e->why, sizeof(e->why), "%s", why);
	atomic_store(&e->broken, true);
	cpc_mutex_unlock(&e->why_lock);
	/* without the lock: where the message goes there may be locks of the same rank */
	if (first)
		cpc_error("%s from now on: %s", what, why);
}

void cpc_engine_break(struct cpc_engine *e, const char *why)
{
	set_broken(e, "pool is read-only", why);
}

/* The device before the message, the message before the others that will see stopped trees. */
void cpc_engine_halt(struct cpc_engine *e, const char *why)
{
	struct cpc_volume *vol = NULL;

	cpc_flush_epoch_stop(&e->store->fe);
	atomic_store(&e->halted, true);
	set_broken(e, "pool has stopped, every request is an error", why);
	while ((vol = cpc_volume_next(e, vol)))
		cpc_io_tree_stop(&vol->io_tree);
}

bool cpc_engine_broken(struct cpc_engine *e, char *why, size_t len)
{
	bool broken = atomic_load_explicit(&e->broken, memory_order_acquire);

	if (broken && why) {
		cpc_mutex_lock(&e->why_lock);
		snprintf(why, len, "%s", e->why);
		cpc_mutex_unlock(&e->why_lock);
	}
	return broken;
}

void cpc_engine_refuse(struct cpc_engine *e)
{
	atomic_store(&e->refuse, true);
}

int cpc_engine_may_write(struct cpc_engine *e)
{
	if (cpc_unlikely(atomic_load_explicit(&e->refuse, memory_order_acquire)))
		return -ESHUTDOWN;
	if (cpc_unlikely(e->opts.read_only))
		return -EROFS;
	return cpc_unlikely(atomic_load_explicit(&e->broken, memory_order_acquire)) ? -EIO : 0;
}

static void io_tree_broken(void *arg, const char *message)
{
	cpc_engine_halt(arg, message);
}

/* --- volumes --- */

/* The next volume of the list, held until the following call; NULL at the end. */
struct cpc_volume *cpc_volume_next(struct cpc_engine *e, struct cpc_volume *prev)
{
	struct cpc_list *pos;
	struct cpc_volume *next = NULL;

	cpc_mutex_lock(&e->volumes_lock);
	pos = prev ? prev->node.next : e->volumes.next;
	while (pos != &e->volumes && cpc_list_entry(pos, struct cpc_volume, node)->apart)
		pos = pos->next;
	if (pos != &e->volumes) {
		next = cpc_list_entry(pos, struct cpc_volume, node);
		next->users++;
	}
	if (prev && --prev->users == 0)
		cpc_cond_broadcast(&e->volumes_cond);
	cpc_mutex_unlock(&e->volumes_lock);
	return next;
}

/* Ends a walk before its end. */
void cpc_volume_walk_end(struct cpc_engine *e, struct cpc_volume *at)
{
	if (!at)
		return;
	cpc_mutex_lock(&e->volumes_lock);
	if (--at->users == 0)
		cpc_cond_broadcast(&e->volumes_cond);
	cpc_mutex_unlock(&e->volumes_lock);
}

static struct cpc_volume *volume_new(struct cpc_engine *e, const struct cpc_volume_item *item)
{
	struct cpc_io_tree_config config = {
	    .fatal = io_tree_broken,
	    .fatal_arg = e,
	    .clear_hist = e->opts.stats_detail ? &e->clear_ns : NULL,
	    .set_hist = e->opts.stats_detail ? &e->set_ns : NULL,
	};
	struct cpc_volume *vol = cpc_alloc_aligned(64, sizeof(*vol));
	struct cpc_view *view;

	if (!vol)
		return NULL;
	memset(vol, 0, sizeof(*vol));
	view = cpc_view_alloc();
	if (!view) {
		cpc_free(vol);
		return NULL;
	}
	vol->engine = e;
	vol->item = *item;
	atomic_init(&vol->size, item->size);
	atomic_init(&vol->epoch, 1);
	cpc_mutex_init(&vol->item_lock, "item", CPC_RANK_LEAF);
	cpc_mutex_init(&vol->ticket_lock, "tickets", CPC_RANK_VOLUME);
	cpc_cond_init(&vol->ticket_cond);
	cpc_mutex_init(&vol->cache_lock, "data cache", CPC_RANK_CACHE);
	cpc_mutex_init(&vol->writeback_lock, "writeback", CPC_RANK_WRITEBACK);
	cpc_mutex_init(&vol->merge_lock, "merge", CPC_RANK_MERGE);
	cpc_mutex_init(&vol->view_lock, "view", CPC_RANK_VIEW);
	cpc_mutex_init(&vol->flush_lock, "flush", CPC_RANK_FLUSH);
	cpc_list_init(&vol->flushers);
	cpc_xa_init(&vol->cache);
	cpc_list_init(&vol->displaced);
	cpc_list_init(&vol->views);
	cpc_io_tree_init(&vol->io_tree, &config);
	view->root = item->root;
	vol->view = view;
	cpc_list_add_tail(&vol->views, &view->node);
	return vol;
}

void cpc_count_tree(struct cpc_engine *e, const struct cpc_node_ptr *ptr, int sign)
{
	uint32_t level = atomic_load(&e->max_level);

	if (cpc_node_ptr_empty(ptr))
		return;
	if (sign > 0) {
		atomic_fetch_add(&e->tree_nodes, ptr->nodes);
		atomic_fetch_add(&e->mapped_blocks, ptr->data_blocks);
		atomic_fetch_add(&e->nr_trees, 1);
	} else {
		atomic_fetch_sub(&e->tree_nodes, ptr->nodes);
		atomic_fetch_sub(&e->mapped_blocks, ptr->data_blocks);
		atomic_fetch_sub(&e->nr_trees, 1);
	}
	if (ptr->level > level)
		atomic_store(&e->max_level, ptr->level);
}

void cpc_engine_count_volume(struct cpc_engine *e, const struct cpc_node_ptr *root)
{
	cpc_count_tree(e, root, 1);
	atomic_fetch_add(&e->nr_volumes, 1);
}

static void uncount(struct cpc_engine *e, const struct cpc_node_ptr *root)
{
	cpc_count_tree(e, root, -1);
	atomic_fetch_sub(&e->nr_volumes, 1);
}

int cpc_engine_wake_volume(struct cpc_engine *e, const struct cpc_volume_item *item,
			   struct cpc_volume **out)
{
	struct cpc_volume *vol = volume_new(e, item);

	if (!vol)
		return -ENOMEM;
	cpc_mutex_lock(&e->volumes_lock);
	cpc_list_add_tail(&e->volumes, &vol->node);
	cpc_mutex_unlock(&e->volumes_lock);
	/* after the list: a halt that has not seen it has said so before */
	if (atomic_load(&e->halted))
		cpc_io_tree_stop(&vol->io_tree);
	*out = vol;
	return 0;
}

static void volume_free(struct cpc_epoch_entry *entry)
{
	struct cpc_volume *vol = cpc_container_of(entry, struct cpc_volume, retired);

	cpc_mutex_destroy(&vol->cache_lock);
	cpc_free(vol);
}

static void volume_destroy(struct cpc_volume *vol)
{
	cpc_read_ahead_drop(vol);
	cpc_cut_destroy(vol);
	if (vol->engine->log)
		cpc_log_unreserve(vol->engine->log, atomic_load(&vol->log_bytes));
	/* What is still dirty is lost: the volume is gone, or the engine ends without a commit. */
	cpc_cache_remove(vol, 0, 1ull << 52, UINT64_MAX);
	while (!cpc_list_empty(&vol->displaced)) {
		struct cpc_buf *buf = cpc_list_first(&vol->displaced, struct cpc_buf, node);

		cpc_list_del(&buf->node);
		cpc_buf_put(vol->engine, buf);
	}
	cpc_view_destroy_all(vol);
	cpc_xa_destroy(&vol->cache);
	cpc_io_tree_destroy(&vol->io_tree);
	cpc_mutex_destroy(&vol->item_lock);
	cpc_mutex_destroy(&vol->ticket_lock);
	cpc_cond_destroy(&vol->ticket_cond);
	cpc_mutex_destroy(&vol->writeback_lock);
	cpc_mutex_destroy(&vol->merge_lock);
	cpc_mutex_destroy(&vol->view_lock);
	cpc_mutex_destroy(&vol->flush_lock);
	/* The clock of the data cache may still look at it. */
	cpc_epoch_retire(&vol->retired, volume_free);
}

/* Keeps commits and walks away from a volume, and waits for those that have it. */
static void part(struct cpc_volume *vol)
{
	struct cpc_engine *e = vol->engine;

	cpc_mutex_lock(&e->volumes_lock);
	vol->apart = true;
	while (vol->users)
		cpc_cond_wait(&e->volumes_cond, &e->volumes_lock);
	cpc_mutex_unlock(&e->volumes_lock);
}

/* It has been parted from. */
static void leave(struct cpc_volume *vol)
{
	struct cpc_engine *e = vol->engine;

	cpc_mutex_lock(&e->volumes_lock);
	cpc_list_del(&vol->node);
	cpc_mutex_unlock(&e->volumes_lock);
	volume_destroy(vol);
}

void cpc_engine_put_to_sleep(struct cpc_volume *vol)
{
	part(vol);
	leave(vol);
}

void cpc_engine_remove_volume(struct cpc_volume *vol)
{
	part(vol); /* no commit changes its root any more */
	uncount(vol->engine, &vol->item.root);
	leave(vol);
}

void cpc_engine_get_item(struct cpc_volume *vol, struct cpc_volume_item *item)
{
	cpc_mutex_lock(&vol->item_lock);
	*item = vol->item;
	cpc_mutex_unlock(&vol->item_lock);
}

uint64_t cpc_volume_size(struct cpc_volume *vol)
{
	return atomic_load(&vol->size);
}

bool cpc_volume_read_only(struct cpc_volume *vol)
{
	return vol->engine->opts.read_only || vol->item.flags & CPC_VOLUME_READONLY;
}

uint64_t cpc_engine_volume_used(struct cpc_volume *vol)
{
	struct cpc_view *view = cpc_view_get(vol);
	uint64_t blocks = view->root.data_blocks + atomic_load(&vol->dirty_blocks);

	for (unsigned i = 0; i < view->nr; i++)
		blocks += view->runs[i].run->data_blocks;
	cpc_view_put(vol, view);
	return blocks << CPC_BLOCK_SHIFT;
}

/*
 * The order of the three looks matters: what was answered is dirty, then in a cut that is not yet
 * published, then in a run, then committed; each look comes after the one it could have left.
 */
bool cpc_volume_clean(struct cpc_volume *vol)
{
	bool clean;

	if (atomic_load(&vol->dirty_blocks) ||
	    atomic_load(&vol->published) + 1 != atomic_load(&vol->epoch))
		return false;
	cpc_mutex_lock(&vol->view_lock);
	clean = vol->view->nr == 0;
	cpc_mutex_unlock(&vol->view_lock);
	return clean;
}

/* --- life --- */

static void init_locks(struct cpc_engine *e)
{
	cpc_mutex_init(&e->volumes_lock, "volumes", CPC_RANK_TRANSACTION);
	cpc_cond_init(&e->volumes_cond);
	cpc_mutex_init(&e->why_lock, "why", CPC_RANK_LEAF);
	cpc_mutex_init(&e->commit_lock, "commit", CPC_RANK_COMMIT);
	cpc_cond_init(&e->commit_cond);
	cpc_mutex_init(&e->dropped_lock, "dropped", CPC_RANK_LEAF);
	cpc_mutex_init(&e->bounce_lock, "bounce", CPC_RANK_MEMORY);
	cpc_cond_init(&e->bounce_cond);
	cpc_mutex_init(&e->ahead_lock, "read ahead", CPC_RANK_LEAF);
	cpc_mutex_init(&e->throttle_lock, "throttle", CPC_RANK_THROTTLE);
	cpc_cond_init(&e->throttle_cond);
	cpc_mutex_init(&e->thread_lock, "threads", CPC_RANK_LEAF);
	cpc_cond_init(&e->writeback_cond);
	cpc_cond_init(&e->committer_cond);
	cpc_cond_init(&e->marker_cond);
	cpc_mutex_init(&e->merge_gate, "merge gate", CPC_RANK_MERGE_GATE);
	cpc_cond_init(&e->merge_cond);
}

int cpc_engine_create(struct cpc_store *store, const struct cpc_engine_options *opts,
		      struct cpc_engine **out)
{
	struct cpc_engine *e = cpc_zalloc(sizeof(*e));
	size_t most = opts->data_bytes / CPC_BLOCK_SIZE * 2 / 3;
	int ret;

	if (!e)
		return -ENOMEM;
	e->store = store;
	e->opts = *opts;
	e->dirty_limit = cpc_max_u64(4, cpc_min_u64(opts->dirty_bytes / CPC_BLOCK_SIZE, most));
	e->dirty_start = e->dirty_limit / 8;
	e->pace_start = e->dirty_limit / 2;
	e->pace_row = cpc_pace_row(e->dirty_limit - e->pace_start);
	init_locks(e);
	cpc_list_init(&e->volumes);
	cpc_list_init(&e->aheads);
	cpc_blockset_init(&e->dropped, store->geo.nr_groups);
	atomic_init(&e->next_volume, store->super.next_volume);
	cpc_engine_replay_to(e, store->super.nonce, store->super.log_seq,
			     store->super.log_position);
	ret = cpc_memory_init(&e->memory, opts->data_bytes);
	if (ret) {
		cpc_engine_destroy(e);
		return ret;
	}
	*out = e;
	return 0;
}

void cpc_engine_destroy(struct cpc_engine *e)
{
	cpc_engine_stop(e);
	while (!cpc_list_empty(&e->volumes))
		cpc_engine_remove_volume(cpc_list_first(&e->volumes, struct cpc_volume, node));
	cpc_epoch_drain();
	cpc_memory_destroy(&e->memory);
	while (e->nr_bounce_idle)
		cpc_free(e->bounce_idle[--e->nr_bounce_idle]);
	cpc_blockset_destroy(&e->dropped);
	if (e->log)
		cpc_log_destroy(e->log);
	cpc_free(e);
}

void cpc_engine_replay_to(struct cpc_engine *e, uint64_t nonce, uint64_t seq, uint64_t position)
{
	e->replay.nonce = nonce;
	e->replay.seq = seq;
	e->replay.position = position;
}

int cpc_engine_replay_run(struct cpc_volume *vol, struct cpc_run *run)
{
	struct cpc_view *next = cpc_view_alloc();
	int ret = next ? cpc_view_reserve(vol) : -ENOMEM;

	if (ret) {
		cpc_free(next);
		return ret;
	}
	cpc_cut_link(vol, next, cpc_run_get(run));
	return cpc_view_compact(vol);
}

void cpc_engine_replay_free(struct cpc_engine *e, uint64_t block, uint64_t nr)
{
	cpc_view_drop(e, block << CPC_BLOCK_SHIFT, nr);
}

void cpc_engine_replay_drop(struct cpc_engine *e, const struct cpc_run *run)
{
	for (size_t i = 0; i < run->nr_entries; i++) {
		if (run->entries[i].bytenr)
			cpc_view_drop(e, run->entries[i].bytenr, run->entries[i].nr);
	}
}

bool cpc_engine_maps_full(struct cpc_engine *e)
{
	return atomic_load(&e->map_bytes) > e->opts.map_bytes;
}

int cpc_engine_start_log(struct cpc_engine *e)
{
	return cpc_log_create(e->store, &e->log);
}

void cpc_engine_set_next_volume(struct cpc_engine *e, uint64_t id)
{
	atomic_store(&e->next_volume, id);
}

/* --- counters --- */

static void sum_io_trees(struct cpc_engine *e, struct cpc_engine_stats *s)
{
	struct cpc_volume *vol = NULL;

	while ((vol = cpc_volume_next(e, vol))) {
		struct cpc_io_tree_stats t;

		cpc_io_tree_get_stats(&vol->io_tree, &t);
		s->io_trims += t.trims;
		s->io_wakeups += t.wakeups;
		s->io_wakeups_skipped += t.wakeups_skipped;
		s->memory_bytes += t.memory + cpc_xa_nodes(&vol->cache) * CPC_XA_NODE_SIZE;
	}
}

void cpc_engine_get_stats(struct cpc_engine *e, struct cpc_engine_stats *s)
{
	struct cpc_space_info space;

	memset(s, 0, sizeof(*s));
	s->reads = atomic_load(&e->reads);
	s->writes = atomic_load(&e->writes);
	s->bytes_written = atomic_load(&e->bytes_written);
	s->trims = atomic_load(&e->trims);
	s->zeroes = atomic_load(&e->zeroes);
	s->flushes = atomic_load(&e->flushes);
	s->fua_writes = atomic_load(&e->fua_writes);
	s->cache_hits = atomic_load(&e->cache_hits);
	s->cache_misses = atomic_load(&e->cache_misses);
	s->read_ahead = atomic_load(&e->read_ahead);
	s->dirty_bytes = atomic_load(&e->dirty_blocks) << CPC_BLOCK_SHIFT;
	s->map_bytes = atomic_load(&e->map_bytes);
	s->data_errors = atomic_load(&e->data_errors);
	s->write_wait_us = atomic_load(&e->write_wait_us);
	s->pinned_blocks = atomic_load(&e->store->pinned_blocks) + cpc_dropped_blocks(e);
	cpc_space_info(e->store->space, &space);
	s->reserved_blocks = space.reserved;
	s->lost_groups = space.bad_groups;
	s->memory_bytes = e->memory.nr * (CPC_BLOCK_SIZE + sizeof(struct cpc_buf)) + s->map_bytes;
	cpc_mutex_lock(&e->bounce_lock);
	s->memory_bytes += e->nr_bounce * (uint64_t)CPC_BOUNCE_SIZE;
	cpc_mutex_unlock(&e->bounce_lock);
	sum_io_trees(e, s);
	if (e->log)
		cpc_log_get_stats(e->log, &s->log);
	cpc_hist_summary(&e->read_us, &s->read_us);
	cpc_hist_summary(&e->write_us, &s->write_us);
	cpc_hist_summary(&e->flush_us, &s->flush_us);
	cpc_hist_summary(&e->clear_ns, &s->clear_ns);
	cpc_hist_summary(&e->set_ns, &s->set_ns);
}

struct cpc_log *cpc_engine_log(struct cpc_engine *e)
{
	return e->log;
}
