/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * publish: what a commit has allocated, freed and folded becomes true in memory, when its
 * superblock is durable. That cannot fail: whatever needs memory or a bitmap is prepared before.
 */
#include "transaction/store-internal.h"

#include "lib/hooks.h"
#include "lib/log.h"

/* Takes ranges out of `set` that turn out not to be in use: damage; they are left alone. */
static int prepare_set(struct cpc_commit *c, struct cpc_blockset *set)
{
	uint64_t block, nr;

	cpc_blockset_for_each(set, block, nr)
	{
		int ret = cpc_space_prepare_free(c->store->space, block, nr);

		if (ret == -EUCLEAN) {
			cpc_error("blocks %llu+%llu are freed but not in use: damaged, run "
				  "coppice check",
				  (unsigned long long)block, (unsigned long long)nr);
			cpc_blockset_remove(set, block, nr);
			continue;
		}
		if (ret)
			return ret;
		ret = cpc_blockset_add(&c->prepared, block, nr);
		if (ret) {
			cpc_space_unprepare(c->store->space, block, nr);
			return ret;
		}
	}
	return 0;
}

static int make_metas(struct cpc_commit *c, const struct cpc_blockset *set)
{
	uint64_t block, nr;

	cpc_blockset_for_each(set, block, nr)
	{
		if (!cpc_group_meta(c->store, block / CPC_GROUP_BLOCKS))
			return -ENOMEM;
	}
	return 0;
}

int cpc_commit_prepare(struct cpc_commit *c)
{
	int ret = make_metas(c, &c->alloc[c->phase]);

	if (!ret)
		ret = make_metas(c, &c->freed[c->phase]);
	return ret ? ret : prepare_set(c, &c->freed[c->phase]);
}

void cpc_commit_unprepare(struct cpc_commit *c)
{
	uint64_t block, nr;

	cpc_blockset_for_each(&c->prepared, block, nr)
	    cpc_space_unprepare(c->store->space, block, nr);
}

static void publish_set(struct cpc_commit *c, const struct cpc_blockset *set, bool freed,
			bool logged_if_folded)
{
	uint64_t block, nr;

	cpc_blockset_for_each(set, block, nr)
	{
		struct cpc_group_meta *meta = c->store->groups[block / CPC_GROUP_BLOCKS];

		bool counted = !logged_if_folded && cpc_commit_folded(c, block / CPC_GROUP_BLOCKS);

		/* before the bitmaps differ from what an eviction would read back */
		if (!counted)
			cpc_space_set_dirty(c->store->space, block / CPC_GROUP_BLOCKS, true);
		if (freed)
			cpc_space_clear_used(c->store->space, block, nr);
		else
			cpc_space_set_used(c->store->space, block, nr);
		if (counted)
			continue; /* by the fold */
		meta->used += freed ? -(uint32_t)nr : (uint32_t)nr;
		meta->nr_pending++;
		if (!meta->oldest)
			meta->oldest = c->transid;
	}
}

static void publish_folds(struct cpc_commit *c)
{
	for (size_t i = 0; i < c->nr_folds; i++) {
		const struct cpc_fold *fold = &c->folds[i];
		struct cpc_group_meta *meta = c->store->groups[fold->group];
		struct cpc_disk_free_entry *applied;

		cpc_mutex_lock(&c->store->lock);
		applied = meta->unapplied;
		meta->has_item = true;
		meta->home = fold->home;
		meta->csum = fold->csum;
		meta->generation = c->transid;
		meta->used = (uint32_t)fold->used;
		meta->oldest = 0;
		meta->nr_pending = meta->nr_unapplied = meta->cap_unapplied = 0;
		meta->unapplied = NULL;
		meta->rebuilt = NULL;
		cpc_mutex_unlock(&c->store->lock);
		cpc_free(applied);
		cpc_space_set_dirty(c->store->space, fold->group, false);
	}
}

void cpc_commit_publish_space(struct cpc_commit *c)
{
	struct cpc_store *store = c->store;
	size_t gone = 0;

	publish_folds(c);
	publish_set(c, &c->alloc[0], false, false);
	publish_set(c, &c->freed[0], true, false);
	publish_set(c, &c->alloc[1], false, true);
	publish_set(c, &c->freed[1], true, true);
	while (gone < store->nr_tails && store->tails[gone].first < c->free_log_from)
		gone++;
	memmove(store->tails, store->tails + gone,
		(store->nr_tails - gone) * sizeof(*store->tails));
	store->nr_tails -= gone;
	if (c->tail.transid)
		store->tails[store->nr_tails++] = c->tail;
}
