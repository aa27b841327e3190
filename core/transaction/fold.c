/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fold: groups of which a commit writes the bitmap into the other home, and which those are: see
 * free-space.c for why.
 */
#include "transaction/store-internal.h"

#include <stdlib.h>

#include "lib/hooks.h"
#include "lib/mutation.h"

/* Entries of one group in the log that cost about what its two home copies do. */
#define FOLD_ENTRIES 340u
/* Folds of a commit that changes little. */
#define FOLD_LEAST 16u
/* Transactions in the log before its oldest groups are folded, so many at a time. */
#define FOLD_TAILS  16u
#define FOLD_OLDEST 8u

static uint32_t count_ranges(const struct cpc_blockset *set, uint64_t group)
{
	uint64_t at = group * CPC_GROUP_BLOCKS, end = at + CPC_GROUP_BLOCKS, block, nr;
	uint32_t count = 0;

	while (cpc_blockset_next(set, at, &block, &nr) && block < end && count <= FOLD_ENTRIES) {
		count++;
		at = block + nr;
	}
	return count;
}

static int write_home(struct cpc_commit *c, struct cpc_fold *fold, const uint8_t *bitmap)
{
	struct cpc_store *store = c->store;
	int ret = 0;

	for (unsigned copy = 0; !ret && copy < store->geo.copies; copy++)
		ret = cpc_fe_write(&store->fe,
				   cpc_geometry_home(&store->geo, copy, fold->group, fold->home),
				   bitmap, CPC_BLOCK_SIZE, CPC_CAUSE_METADATA, NULL);
	return ret;
}

static void apply_phase(struct cpc_commit *c, uint64_t group, uint8_t *bitmap)
{
	const uint64_t *alloc = cpc_blockset_group(&c->alloc[0], group);
	const uint64_t *freed = cpc_blockset_group(&c->freed[0], group);
	uint64_t *words = (uint64_t *)(void *)bitmap;

	for (unsigned i = 0; i < CPC_BLOCK_SIZE / 8; i++) {
		if (alloc)
			words[i] |= alloc[i];
		if (freed)
			words[i] &= ~freed[i];
	}
}

static int put_group_item(struct cpc_commit *c, const struct cpc_fold *fold)
{
	struct cpc_disk_group disk;

	memset(&disk, 0, sizeof(disk));
	cpc_put_le64(&disk.generation, c->transid);
	cpc_put_le32(&disk.csum, fold->csum);
	cpc_put_le32(&disk.used, (uint32_t)fold->used);
	disk.home = fold->home;
	return cpc_root_ops_put(&c->root_ops, cpc_root_key(CPC_ITEM_GROUP, fold->group), &disk,
				sizeof(disk));
}

static int fold_group(struct cpc_commit *c, uint64_t group, uint8_t *bitmap)
{
	struct cpc_group_meta *meta = cpc_group_meta(c->store, group);
	struct cpc_fold *fold = &c->folds[c->nr_folds];
	uint32_t used;
	int ret;

	if (!meta)
		return -ENOMEM;
	ret = cpc_space_get_used(c->store->space, group, bitmap, &used);
	if (ret)
		return ret == -ENOMEM ? ret : 0; /* a bad group is never folded */
	apply_phase(c, group, bitmap);
	fold->group = group;
	fold->home = meta->has_item ? !meta->home != CPC_MUTANT(current_bitmap_overwritten) : 0;
	fold->used = cpc_group_count_used(c->store, group, bitmap);
	fold->csum = cpc_bitmap_csum(c->store->uuid, group, c->transid, bitmap);
	ret = write_home(c, fold, bitmap);
	if (!ret)
		ret = put_group_item(c, fold);
	if (!ret)
		c->nr_folds++;
	return ret;
}

static uint64_t oldest_pending(struct cpc_store *store)
{
	uint64_t oldest = UINT64_MAX;

	for (uint64_t g = 0; g < store->geo.nr_groups; g++) {
		if (store->groups[g] && store->groups[g]->oldest)
			oldest = cpc_min_u64(oldest, store->groups[g]->oldest);
	}
	return oldest;
}

/* Entries that this commit would add to the log for a group, counted up to what a fold costs. */
static uint32_t new_entries(const struct cpc_commit *c, uint64_t group)
{
	return count_ranges(&c->alloc[0], group) + count_ranges(&c->freed[0], group);
}

static bool wants_fold(struct cpc_commit *c, uint64_t group, uint64_t oldest, uint32_t *left)
{
	const struct cpc_group_meta *meta = c->store->groups[group];
	uint32_t entries = meta ? meta->nr_pending : 0;

	if (meta && meta->rebuilt)
		return true;
	if (meta && meta->oldest == oldest && *left) {
		--*left;
		return true;
	}
	return entries + new_entries(c, group) > FOLD_ENTRIES;
}

/* Rule: while a burned superblock may name either home, neither is written; nor is one that a held
 * superblock names. */
static bool fold_allowed(struct cpc_store *store)
{
	return (!store->burned_super || CPC_MUTANT(bitmaps_folded_while_burned)) &&
	       (!cpc_store_held(store) || CPC_MUTANT(bitmaps_folded_while_held));
}

/*
 * Groups that a commit folds at most: what its changes pay for, twice, so that the log does not
 * grow. Without a bound random changes to the whole pool would fill up the shares of all groups at
 * about the same time, and one commit in many would write every bitmap there is. What a repair has
 * rebuilt is all folded by its one commit.
 */
static uint64_t fold_budget(const struct cpc_commit *c)
{
	uint64_t entries = 0;

	if (c->store->rebuilt)
		return c->store->geo.nr_groups;

	for (uint64_t g = 0; g < c->store->geo.nr_groups; g++)
		entries += new_entries(c, g);
	return FOLD_LEAST + 2 * entries / FOLD_ENTRIES;
}

static int compare_groups(const void *a, const void *b)
{
	const struct cpc_fold *x = a, *y = b;

	return x->group < y->group ? -1 : x->group > y->group;
}

/* Chooses what to fold, from where the last commit stopped. Return: how many, in ascending order.
 */
static size_t choose_folds(struct cpc_commit *c)
{
	struct cpc_store *store = c->store;
	uint64_t oldest = store->nr_tails > FOLD_TAILS ? oldest_pending(store) : UINT64_MAX;
	uint32_t left = oldest == UINT64_MAX ? 0 : FOLD_OLDEST;
	uint64_t budget = fold_budget(c), nr_groups = store->geo.nr_groups;
	size_t nr = 0;

	for (uint64_t i = 0; i < nr_groups && nr < budget; i++) {
		uint64_t group = (store->fold_from + i) % nr_groups;

		if (!wants_fold(c, group, oldest, &left))
			continue;
		c->folds[nr++].group = group;
		if (nr == budget)
			store->fold_from = group + 1;
	}
	qsort(c->folds, nr, sizeof(*c->folds), compare_groups);
	return nr;
}

int cpc_commit_fold(struct cpc_commit *c)
{
	struct cpc_store *store = c->store;
	uint8_t *bitmap;
	size_t nr;
	int ret = 0;

	if (!fold_allowed(store))
		return 0;
	c->folds = cpc_alloc_array(store->geo.nr_groups, sizeof(*c->folds));
	bitmap = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);
	if (!c->folds || !bitmap) {
		cpc_free(bitmap);
		return -ENOMEM;
	}
	nr = choose_folds(c);
	/* the folds that are made stand at the front: fewer when a bitmap turns out to be bad */
	for (size_t i = 0; !ret && i < nr; i++)
		ret = fold_group(c, c->folds[i].group, bitmap);
	cpc_free(bitmap);
	return ret;
}

bool cpc_commit_folded(const struct cpc_commit *c, uint64_t group)
{
	size_t low = 0, high = c->nr_folds;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (c->folds[mid].group == group)
			return true;
		if (c->folds[mid].group < group)
			low = mid + 1;
		else
			high = mid;
	}
	return false;
}
