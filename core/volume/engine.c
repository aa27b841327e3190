/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * engine: what the volumes of a pool share. Here: life, the list of volumes, the commit that covers
 * all of them, and the two threads.
 *
 * A commit first lets every volume cut, then freezes all finished runs and hands them with the
 * changed records to the store; when the new state is durable, each volume gets a view without
 * them. A failed one leaves the runs where they are: the next commit takes them again. So a commit
 * has nothing to undo here.
 *
 * Leader and followers: who finds no commit running leads one; who finds one running waits for the
 * next, because the running one may have passed what the caller wrote.
 */
#include "volume/volume-internal.h"

#include <stdio.h>

#define FAILURES_MAX 3u

/* --- broken --- */

void cpc_engine_break(struct cpc_engine *e, const char *why)
{
	cpc_mutex_lock(&e->why_lock);
	if (!atomic_load(&e->broken)) {
		snprintf(e->why, sizeof(e->why), "%s", why);
		cpc_error("pool is read-only from now on: %s", why);
	}
	atomic_store(&e->broken, true);
	cpc_mutex_unlock(&e->why_lock);
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
	cpc_engine_break(arg, message);
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
	cpc_cond_init(&vol->flush_cond);
	cpc_xa_init(&vol->cache);
	cpc_list_init(&vol->displaced);
	cpc_list_init(&vol->views);
	cpc_io_tree_init(&vol->io_tree, &config);
	view->root = item->root;
	vol->view = view;
	cpc_list_add_tail(&vol->views, &view->node);
	return vol;
}

static void count_tree(struct cpc_engine *e, const struct cpc_node_ptr *ptr, int sign)
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

int cpc_engine_add_volume(struct cpc_engine *e, const struct cpc_volume_item *item,
			  struct cpc_volume **out)
{
	struct cpc_volume *vol = volume_new(e, item);

	if (!vol)
		return -ENOMEM;
	count_tree(e, &item->root, 1);
	cpc_mutex_lock(&e->volumes_lock);
	cpc_list_add_tail(&e->volumes, &vol->node);
	cpc_mutex_unlock(&e->volumes_lock);
	atomic_fetch_add(&e->nr_volumes, 1);
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
	cpc_cond_destroy(&vol->flush_cond);
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

void cpc_engine_remove_volume(struct cpc_volume *vol)
{
	struct cpc_engine *e = vol->engine;

	part(vol);
	cpc_mutex_lock(&e->volumes_lock);
	cpc_list_del(&vol->node);
	cpc_mutex_unlock(&e->volumes_lock);
	atomic_fetch_sub(&e->nr_volumes, 1);
	count_tree(e, &vol->item.root, -1);
	volume_destroy(vol);
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

/* --- commit --- */

struct commit_volume {
	struct cpc_volume *vol;
	struct cpc_view *next;
	struct cpc_run *run;
	/* as of the mark */
	struct cpc_volume_item item;
	uint64_t version;
	bool deleted, dirty;

	bool changed; /* part of the request */
	bool remove;  /* deleted for good, and nobody else will free it */
};

struct commit {
	struct cpc_engine *e;
	struct cpc_commit_request req;
	struct commit_volume *vols;
	size_t nr, cap;
	struct cpc_blockset dropped;
};

uint64_t cpc_dropped_blocks(struct cpc_engine *e)
{
	uint64_t nr;

	cpc_mutex_lock(&e->dropped_lock);
	nr = e->dropped.nr_blocks;
	cpc_mutex_unlock(&e->dropped_lock);
	return nr;
}

static int alloc_volumes(struct commit *c)
{
	c->vols = cpc_alloc_array(c->cap, sizeof(*c->vols));
	c->req.volumes = cpc_alloc_array(c->cap, sizeof(*c->req.volumes));
	if (!c->vols || !c->req.volumes)
		return -ENOMEM;
	memset(c->vols, 0, c->cap * sizeof(*c->vols));
	memset(c->req.volumes, 0, c->cap * sizeof(*c->req.volumes));
	return 0;
}

static int cut_all(struct cpc_engine *e)
{
	struct cpc_volume *vol = NULL;
	int ret = 0;

	while (!ret && (vol = cpc_volume_next(e, vol)))
		ret = cpc_cut(vol);
	cpc_volume_walk_end(e, vol);
	return ret;
}

/* Notes one volume's state at the instant of the freeze. */
static void mark_volume(struct commit *c, struct cpc_volume *vol)
{
	struct commit_volume *cv = &c->vols[c->nr++];

	cv->vol = vol;
	vol->users++;
	vol->freeze_epoch = atomic_load(&vol->published);
	cpc_mutex_lock(&vol->item_lock);
	cv->version = vol->item_version;
	cv->item = vol->item;
	cv->deleted = vol->deleted;
	cv->dirty = (vol->item_dirty || vol->deleted) && !vol->gone;
	cpc_mutex_unlock(&vol->item_lock);
}

static void take_dropped(struct commit *c)
{
	cpc_mutex_lock(&c->e->dropped_lock);
	c->dropped = c->e->dropped;
	cpc_blockset_init(&c->e->dropped, c->dropped.nr_groups);
	cpc_mutex_unlock(&c->e->dropped_lock);
}

/* Everything up to one place in the log, and nothing behind it. */
static int mark_all(struct commit *c)
{
	struct cpc_engine *e = c->e;
	struct cpc_list *pos;
	int ret;

	cpc_mutex_lock(&e->volumes_lock);
	c->cap = 1;
	cpc_list_for_each (pos, &e->volumes)
		c->cap++;
	ret = alloc_volumes(c);
	if (!ret) {
		cpc_list_for_each (pos, &e->volumes) {
			struct cpc_volume *vol = cpc_list_entry(pos, struct cpc_volume, node);

			if (!vol->apart)
				mark_volume(c, vol);
		}
		take_dropped(c);
		c->req.next_volume = atomic_load(&e->next_volume);
	}
	cpc_mutex_unlock(&e->volumes_lock);
	return ret;
}

/* No batch is in flight and no merge runs meanwhile: flushes wait for a few microseconds. */
static int commit_mark(struct commit *c)
{
	struct cpc_engine *e = c->e;
	int ret;

	cpc_merges_hold(e);
	if (e->log) {
		cpc_log_freeze(e->log, &c->req.log_seq, &c->req.log_position);
		c->req.nonce = e->store->nonce;
	} else {
		c->req.log_seq = e->replay.seq;
		c->req.log_position = e->replay.position;
		c->req.nonce = e->replay.nonce;
	}
	ret = mark_all(c);
	if (e->log)
		cpc_log_thaw(e->log);
	cpc_merges_allow(e);
	return ret;
}

/* What the merge of runs that are all taken drops, no record behind the mark names. */
static void drop_taken(void *ctx, uint64_t bytenr, uint64_t nr_blocks)
{
	struct commit *c = ctx;

	if (cpc_blockset_add(&c->dropped, bytenr >> CPC_BLOCK_SHIFT, nr_blocks))
		cpc_warn("out of memory: %llu blocks stay unused until the next open",
			 (unsigned long long)nr_blocks);
}

static int freeze_volume(struct commit *c, struct commit_volume *cv)
{
	struct cpc_commit_volume *req = &c->req.volumes[c->req.nr_volumes];
	int ret;

	cv->next = cpc_view_alloc();
	ret = cv->next ? cpc_view_freeze(cv->vol, drop_taken, c, &cv->run) : -ENOMEM;
	if (ret)
		return ret;
	req->item = cv->item;
	req->deleted = cv->deleted;
	req->run = cv->deleted ? NULL : cv->run;
	cv->changed = cv->dirty || (cv->run && !cv->deleted);
	if (cv->changed)
		c->req.nr_volumes++;
	return 0;
}

static void give_back_dropped(struct commit *c)
{
	cpc_mutex_lock(&c->e->dropped_lock);
	if (cpc_blockset_move(&c->e->dropped, &c->dropped))
		cpc_warn("out of memory: some blocks stay unused until the next open");
	cpc_mutex_unlock(&c->e->dropped_lock);
}

/* What uncommitted runs of a deleted volume named goes with it. */
static void drop_run(struct commit *c, const struct cpc_run *run)
{
	for (size_t i = 0; i < run->nr_entries; i++) {
		const struct cpc_run_entry *entry = &run->entries[i];

		if (entry->bytenr &&
		    cpc_blockset_add(&c->dropped, entry->bytenr >> CPC_BLOCK_SHIFT, entry->nr))
			cpc_warn("out of memory: %u blocks stay unused until the next open",
				 entry->nr);
	}
}

static void pin_dropped(struct commit *c)
{
	uint64_t block, nr;

	cpc_blockset_for_each(&c->dropped, block, nr)
	{
		if (cpc_pins_add(c->req.pins, block, nr))
			cpc_warn("out of memory: %llu blocks stay unused until the next open",
				 (unsigned long long)nr);
	}
}

static void item_committed(struct commit_volume *cv, const struct cpc_commit_volume *req)
{
	struct cpc_volume *vol = cv->vol;

	cpc_mutex_lock(&vol->item_lock);
	if (vol->item_version == cv->version)
		vol->item_dirty = false;
	if (req->deleted) {
		vol->gone = true;
		cv->remove = vol->orphan;
	} else {
		vol->item.root = req->new_root;
	}
	cpc_mutex_unlock(&vol->item_lock);
}

static void publish_volume(struct commit *c, struct commit_volume *cv,
			   const struct cpc_commit_volume *req)
{
	struct cpc_node_ptr root = req->deleted ? req->item.root : req->new_root;

	if (!req->deleted) {
		count_tree(c->e, &req->item.root, -1);
		count_tree(c->e, &root, 1);
	}
	item_committed(cv, req);
	cpc_view_thaw(cv->vol, cv->next, cv->run, true, &root, cpc_pins_get(c->req.pins));
	cv->next = NULL;
	cv->run = NULL;
}

/* Merged runs may have dropped blocks of its open cut, which readers of an old view still need. */
static void pin_to_unchanged(struct commit *c, struct commit_volume *cv)
{
	struct cpc_node_ptr root = cv->vol->item.root; /* only commits change it */

	cpc_view_thaw(cv->vol, cv->next, NULL, true, &root, cpc_pins_get(c->req.pins));
	cv->next = NULL;
}

static void publish(struct commit *c)
{
	bool dropped = c->dropped.nr_blocks > 0;
	size_t at = 0;

	for (size_t i = 0; i < c->nr; i++) {
		if (c->vols[i].changed && c->req.volumes[at].deleted && c->vols[i].run)
			drop_run(c, c->vols[i].run);
		at += c->vols[i].changed;
	}
	pin_dropped(c);
	at = 0;
	for (size_t i = 0; i < c->nr; i++) {
		if (c->vols[i].changed)
			publish_volume(c, &c->vols[i], &c->req.volumes[at++]);
		else if (dropped && !c->vols[i].run)
			pin_to_unchanged(c, &c->vols[i]);
	}
	cpc_pins_put(c->req.pins);
}

/* Ends the freeze where publish has not, and lets the volumes go. */
static void commit_end(struct commit *c)
{
	struct cpc_engine *e = c->e;

	for (size_t i = 0; i < c->nr; i++) {
		struct commit_volume *cv = &c->vols[i];

		cpc_view_thaw(cv->vol, NULL, cv->run, false, NULL, NULL);
		cpc_free(cv->next);
	}
	cpc_mutex_lock(&e->volumes_lock);
	for (size_t i = 0; i < c->nr; i++)
		c->vols[i].vol->users--;
	cpc_cond_broadcast(&e->volumes_cond);
	cpc_mutex_unlock(&e->volumes_lock);
	for (size_t i = 0; i < c->nr; i++) {
		if (c->vols[i].remove)
			cpc_engine_remove_volume(c->vols[i].vol);
	}
	cpc_blockset_destroy(&c->dropped);
	cpc_free(c->vols);
	cpc_free(c->req.volumes);
}

static int commit_once(struct cpc_engine *e, bool clean)
{
	struct commit c = {.e = e};
	int ret = e->log ? cut_all(e) : 0;

	cpc_blockset_init(&c.dropped, e->store->geo.nr_groups);
	c.req.clean = clean;
	c.req.drop_budget = CPC_DROP_BUDGET;
	if (!ret)
		ret = commit_mark(&c);
	for (size_t i = 0; i < c.nr && !ret; i++)
		ret = freeze_volume(&c, &c.vols[i]);
	if (!ret)
		ret = cpc_store_commit(e->store, &c.req);
	/* Freeing what is on the drop list needs room for the log of it: in small slices, or later.
	 */
	for (uint32_t budget = CPC_DROP_BUDGET; ret == -ENOSPC && budget; budget /= 32) {
		c.req.drop_budget = budget / 32;
		ret = cpc_store_commit(e->store, &c.req);
	}
	if (ret)
		give_back_dropped(&c);
	else
		publish(&c);
	commit_end(&c);
	if (!ret && e->log)
		cpc_log_committed(e->log, c.req.log_seq, c.req.log_position);
	if (!ret)
		cpc_reserve_committed(e);
	return ret;
}

/* A device that fails again and again will not get better: stop before memory is full. Memory and
 * room may come back. */
static void count_failure(struct cpc_engine *e, int ret)
{
	char why[128];

	if (!ret || ret == -ENOMEM || ret == -ENOSPC) {
		if (!ret)
			e->failures_in_row = 0;
		return;
	}
	cpc_error("commit failed: %s", strerror(-ret));
	if (++e->failures_in_row < FAILURES_MAX)
		return;
	snprintf(why, sizeof(why), "%u commits in a row failed, the last with: %s",
		 e->failures_in_row, strerror(-ret));
	cpc_engine_break(e, why);
}

/* Waits until no commit runs, or one covers the caller, and leads the next. True: leads. */
static bool lead_or_wait(struct cpc_engine *e, uint64_t target)
{
	while (e->commit_running && e->commits_finished < target)
		cpc_cond_wait(&e->commit_cond, &e->commit_lock);
	if (e->commits_finished >= target)
		return false;
	e->commit_running = true;
	e->commits_started++;
	return true;
}

static void end_lead(struct cpc_engine *e, int ret)
{
	count_failure(e, ret);
	e->commit_running = false;
	e->commits_finished = e->commits_started;
	e->commit_error = ret;
	if (!ret)
		e->last_good = e->commits_started;
	cpc_cond_broadcast(&e->commit_cond);
}

int cpc_engine_commit(struct cpc_engine *e, bool clean)
{
	uint64_t target;
	int ret;

	if (e->opts.read_only)
		return -EROFS;
	cpc_mutex_lock(&e->commit_lock);
	target = e->commits_started + 1;
	if (lead_or_wait(e, target)) {
		cpc_mutex_unlock(&e->commit_lock);
		ret = atomic_load(&e->broken) ? -EIO : commit_once(e, clean);
		cpc_mutex_lock(&e->commit_lock);
		end_lead(e, ret);
	} else {
		ret = e->last_good >= target ? 0 : e->commit_error;
	}
	cpc_mutex_unlock(&e->commit_lock);
	return ret;
}

/* --- threads --- */

void cpc_kick_writeback(struct cpc_engine *e)
{
	if (atomic_load_explicit(&e->want_writeback, memory_order_relaxed) ||
	    atomic_exchange(&e->want_writeback, true))
		return;
	cpc_mutex_lock(&e->thread_lock);
	cpc_cond_signal(&e->writeback_cond);
	cpc_mutex_unlock(&e->thread_lock);
}

void cpc_kick_commit(struct cpc_engine *e)
{
	if (atomic_load_explicit(&e->want_commit, memory_order_relaxed) ||
	    atomic_exchange(&e->want_commit, true))
		return;
	cpc_mutex_lock(&e->thread_lock);
	cpc_cond_signal(&e->committer_cond);
	cpc_mutex_unlock(&e->thread_lock);
}

void cpc_kick_mark(struct cpc_engine *e)
{
	if (atomic_load_explicit(&e->want_mark, memory_order_relaxed) ||
	    atomic_exchange(&e->want_mark, true))
		return;
	cpc_mutex_lock(&e->thread_lock);
	cpc_cond_signal(&e->marker_cond);
	cpc_mutex_unlock(&e->thread_lock);
}

/* Waits for a kick, at most `ns`. Return: false when the thread shall end. */
static bool wait_for_work(struct cpc_engine *e, struct cpc_cond *cond, _Atomic bool *want,
			  uint64_t ns)
{
	bool go_on;

	cpc_mutex_lock(&e->thread_lock);
	if (!e->stop && !atomic_load(want))
		cpc_cond_wait_ns(cond, &e->thread_lock, ns);
	atomic_store(want, false);
	go_on = !e->stop;
	cpc_mutex_unlock(&e->thread_lock);
	return go_on;
}

int cpc_write_out(struct cpc_engine *e)
{
	struct cpc_volume *vol = NULL;
	int ret = 0;

	while ((vol = cpc_volume_next(e, vol))) {
		if (!atomic_load(&vol->dirty_blocks))
			continue;
		ret = cpc_cut(vol);
		if (ret)
			break;
	}
	cpc_volume_walk_end(e, vol);
	cpc_commit_when_tight(e);
	return ret;
}

#define WRITEBACK_IDLE_NS 1000000000ull
#define RETRY_NS	  100000000ull
#define MARK_IDLE_NS	  3600000000000ull

static void *run_writeback(void *arg)
{
	struct cpc_engine *e = arg;
	unsigned failures = 0;

	while (wait_for_work(e, &e->writeback_cond, &e->want_writeback,
			     failures ? RETRY_NS : WRITEBACK_IDLE_NS)) {
		int ret = atomic_load(&e->broken) ? 0 : cpc_write_out(e);

		if (!ret) {
			failures = 0;
			continue;
		}
		cpc_error("writing out data failed: %s", strerror(-ret));
		if (ret != -ENOMEM && ++failures >= FAILURES_MAX)
			cpc_engine_break(e, "data cannot be written to the device");
	}
	return NULL;
}

static bool item_is_dirty(struct cpc_volume *vol)
{
	bool dirty;

	cpc_mutex_lock(&vol->item_lock);
	dirty = (vol->item_dirty || vol->deleted) && !vol->gone;
	cpc_mutex_unlock(&vol->item_lock);
	return dirty;
}

bool cpc_anything_to_commit(struct cpc_engine *e)
{
	struct cpc_store_info info;
	struct cpc_volume *vol = NULL;
	bool found = false;

	cpc_store_info(e->store, &info);
	if (info.nr_drops)
		return true;
	while (!found && (vol = cpc_volume_next(e, vol)))
		found = !cpc_volume_clean(vol) || item_is_dirty(vol);
	cpc_volume_walk_end(e, vol);
	return found;
}

int cpc_engine_commit_if_dirty(struct cpc_engine *e)
{
	return cpc_anything_to_commit(e) ? cpc_engine_commit(e, false) : 0;
}

/* Sleeps until a flush asks for a mark, then until the log has been quiet for long enough. */
static void *run_marks(void *arg)
{
	struct cpc_engine *e = arg;
	uint64_t wait_ns = UINT64_MAX;

	while (
	    wait_for_work(e, &e->marker_cond, &e->want_mark, cpc_min_u64(wait_ns, MARK_IDLE_NS))) {
		wait_ns = UINT64_MAX;
		if (!atomic_load(&e->broken))
			cpc_log_mark(e->log, &wait_ns);
	}
	return NULL;
}

static void *run_commits(void *arg)
{
	struct cpc_engine *e = arg;
	uint64_t interval = e->opts.commit_interval ? e->opts.commit_interval * 1000000000ull
						    : 3600 * 1000000000ull;
	struct cpc_store_info info = {0};
	bool dropping = false;

	/* A drop list goes on being freed at once, a slice a commit, as long as that gets on. */
	while (wait_for_work(e, &e->committer_cond, &e->want_commit,
			     dropping ? RETRY_NS / 10 : interval)) {
		uint64_t before = info.dropped_blocks;

		dropping = false;
		if (atomic_load(&e->broken) || !cpc_anything_to_commit(e))
			continue;
		cpc_engine_commit(e, false);
		cpc_store_info(e->store, &info);
		dropping = info.nr_drops && info.dropped_blocks != before;
	}
	return NULL;
}

static void stop_threads(struct cpc_engine *e, unsigned nr)
{
	cpc_mutex_lock(&e->thread_lock);
	e->stop = true;
	cpc_cond_signal(&e->writeback_cond);
	cpc_cond_signal(&e->committer_cond);
	cpc_cond_signal(&e->marker_cond);
	cpc_mutex_unlock(&e->thread_lock);
	while (nr)
		pthread_join(e->thread[--nr], NULL);
}

int cpc_engine_start(struct cpc_engine *e)
{
	static const struct {
		const char *name;
		void *(*run)(void *);
	} threads[CPC_ENGINE_THREADS] = {
	    {"cpc-writeback", run_writeback}, {"cpc-commit", run_commits}, {"cpc-mark", run_marks}};

	if (e->opts.no_threads || e->opts.read_only || e->started)
		return 0;
	for (unsigned i = 0; i < CPC_ENGINE_THREADS; i++) {
		int ret = cpc_thread_start(&e->thread[i], threads[i].name, threads[i].run, e);

		if (ret) {
			stop_threads(e, i);
			return ret;
		}
	}
	e->started = true;
	return 0;
}

void cpc_engine_stop(struct cpc_engine *e)
{
	if (!e->started)
		return;
	stop_threads(e, CPC_ENGINE_THREADS);
	e->started = false;
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
	init_locks(e);
	cpc_list_init(&e->volumes);
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
	s->dirty_bytes = atomic_load(&e->dirty_blocks) << CPC_BLOCK_SHIFT;
	s->map_bytes = atomic_load(&e->map_bytes);
	s->data_errors = atomic_load(&e->data_errors);
	s->write_wait_us = atomic_load(&e->write_wait_us);
	s->pinned_blocks = atomic_load(&e->store->pinned_blocks) + cpc_dropped_blocks(e);
	cpc_space_info(e->store->space, &space);
	s->reserved_blocks = space.reserved;
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
