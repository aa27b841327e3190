/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * commit: of all volumes at once.
 *
 * A commit first lets every volume cut. Then it marks one place in the log and, for each volume,
 * the runs and the record as of that place; while it does so no batch is on its way into the
 * log and no merge runs. What is marked goes to the store; when the new state is durable, each
 * volume gets a view without those runs. A failed commit leaves the runs where they are: the next
 * one takes them again. So a commit has nothing to undo here.
 *
 * Leader and followers: who finds no commit running leads one; who finds one running waits for the
 * next, because the running one may have passed what the caller wrote.
 */
#include "volume/volume-internal.h"

#include "lib/mutation.h"

#include <stdio.h>

#define FAILURES_MAX 3u

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
		c->req.next_volume = CPC_MUTANT(volume_ids_used_again)
					 ? e->store->super.next_volume
					 : atomic_load(&e->next_volume);
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
	cv->changed = (cv->dirty && !CPC_MUTANT(commit_forgets_names)) || (cv->run && !cv->deleted);
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
		cpc_count_tree(c->e, &req->item.root, -1);
		cpc_count_tree(c->e, &root, 1);
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

/* Freeing what is on the drop list needs room for the log of it: in small slices, or later. */
static int store_commit(struct commit *c)
{
	uint32_t budget = cpc_drop_budget(c->e->store->geo.nodesize);
	int ret;

	c->req.drop_budget = budget;
	ret = cpc_store_commit(c->e->store, &c->req);
	for (; ret == -ENOSPC && budget; budget /= 32) {
		c->req.drop_budget = budget / 32;
		ret = cpc_store_commit(c->e->store, &c->req);
	}
	return ret;
}

static int commit_once(struct cpc_engine *e, bool clean)
{
	struct commit c = {.e = e};
	int ret = e->log ? cut_all(e) : 0;

	cpc_blockset_init(&c.dropped, e->store->geo.nr_groups);
	c.req.clean = clean;
	if (!ret)
		ret = commit_mark(&c);
	for (size_t i = 0; i < c.nr && !ret; i++)
		ret = freeze_volume(&c, &c.vols[i]);
	if (!ret)
		ret = store_commit(&c);
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
	target = e->commits_started + !CPC_MUTANT(commit_shares_the_running_one);
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
