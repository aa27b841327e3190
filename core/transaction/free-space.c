/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * free-space: makes core/space durable.
 *
 * A group's bitmap has two homes, written in turn; its item in the root tree names the current one
 * with its checksum. Writing every changed bitmap at every commit would cost 8 KiB a touched group,
 * so most changes go to the free log, a tree with the key counting up; a group is folded when its
 * share of the log has grown past what a home costs, or when it holds the log's oldest entries.
 *
 * A fold of transaction N writes the bitmap as of N - 1 with what N did up to the fold (phase 0);
 * what N does afterwards (phase 1: the root tree itself) is logged. Replay therefore applies the
 * log's entries of N and later in order, and each bit ends with what was done to it last.
 *
 * The free-log tree's own nodes are in no bitmap and no entry, else each commit would have to log
 * the logging. They are found at open by walking the tree (walk_free_log).
 *
 * Rejected: a free-space B-tree by address, which turns random frees into random node writes; and
 * bitmaps as tree items, which would copy a node for each bitmap.
 */
#include "transaction/store-internal.h"

#include <stdlib.h>

#include "lib/hooks.h"
#include "lib/log.h"
#include "lib/mutation.h"

/* Entries of one group in the log that cost about what its two home copies do. */
#define FOLD_ENTRIES 340u
/* Folds of a commit that changes little. */
#define FOLD_LEAST 16u
/* Transactions in the log before its oldest groups are folded, so many at a time. */
#define FOLD_TAILS  16u
#define FOLD_OLDEST 8u

#define ENTRIES_PER_ITEM                                                                           \
	((CPC_ITEM_MAX_SIZE - sizeof(struct cpc_disk_free_log)) /                                  \
	 sizeof(struct cpc_disk_free_entry))

/* Blocks in use in a group that nothing was ever allocated in. */
static uint32_t fresh_used(const struct cpc_store *store, uint64_t group)
{
	uint64_t start = group * CPC_GROUP_BLOCKS;
	uint64_t end = start + cpc_geometry_group_blocks(&store->geo, group);
	uint64_t low = cpc_max_u64(start, store->geo.data_start);
	uint64_t high = cpc_min_u64(end, store->geo.data_end);

	return (uint32_t)(end - start - (low < high ? high - low : 0));
}

static struct cpc_group_meta *group_meta(struct cpc_store *store, uint64_t group)
{
	struct cpc_group_meta *meta = store->groups[group];

	if (meta)
		return meta;
	meta = cpc_zalloc(sizeof(*meta));
	if (!meta)
		return NULL;
	meta->used = fresh_used(store, group);
	cpc_mutex_lock(&store->lock);
	store->groups[group] = meta;
	cpc_mutex_unlock(&store->lock);
	return meta;
}

void cpc_free_space_destroy(struct cpc_store *store)
{
	if (store->groups) {
		for (uint64_t g = 0; g < store->geo.nr_groups; g++) {
			if (store->groups[g])
				cpc_free(store->groups[g]->unapplied);
			cpc_free(store->groups[g]);
		}
	}
	cpc_free(store->groups);
	cpc_free(store->tails);
}

/* --- reading a group's bitmap --- */

static int read_home(struct cpc_store *store, uint64_t group, const struct cpc_group_meta *meta,
		     uint8_t *buf)
{
	int ret = -EUCLEAN;

	for (unsigned copy = 0; copy < store->geo.copies; copy++) {
		uint64_t bytenr = cpc_geometry_home(&store->geo, copy, group, meta->home);
		int err = cpc_backing_read(store->backing, bytenr, buf, CPC_BLOCK_SIZE);

		if (err) {
			ret = err;
			continue;
		}
		if (cpc_bitmap_csum(store->uuid, group, meta->generation, buf) == meta->csum)
			return 0;
		cpc_error("bitmap of group %llu at %llu: checksum does not match",
			  (unsigned long long)group, (unsigned long long)bytenr);
		ret = -EUCLEAN;
	}
	return ret;
}

static void apply_entry(uint8_t *bitmap, const struct cpc_disk_free_entry *entry)
{
	uint32_t start = cpc_get_le64(&entry->block) % CPC_GROUP_BLOCKS;
	uint32_t count = cpc_get_le32(&entry->count);
	bool freed = count & CPC_FREE_ENTRY_FREED;

	count &= ~CPC_FREE_ENTRY_FREED;
	for (uint32_t bit = start; bit < start + count; bit++) {
		if (freed)
			bitmap[bit / 8] &= (uint8_t) ~(1u << bit % 8);
		else
			bitmap[bit / 8] |= (uint8_t)(1u << bit % 8);
	}
}

/* Reads a group's home, or makes up the bitmap of one never folded. */
static int load_home(struct cpc_store *store, uint64_t group, const struct cpc_group_meta *meta,
		     uint8_t *bitmap)
{
	uint8_t *buf;
	int ret;

	if (meta->rebuilt) {
		memcpy(bitmap, meta->rebuilt, CPC_BLOCK_SIZE);
		return 0;
	}
	if (!meta->has_item) {
		cpc_space_fresh_bitmap(&store->geo, group, bitmap);
		return 0;
	}
	buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);
	if (!buf)
		return -ENOMEM;
	ret = read_home(store, group, meta, buf);
	if (!ret)
		memcpy(bitmap, buf, CPC_BLOCK_SIZE);
	cpc_free(buf);
	return ret;
}

/* Applies what the free log says beyond `meta`'s home. False: the group has been folded since. */
static bool apply_log(struct cpc_store *store, uint64_t group, const struct cpc_group_meta *meta,
		      uint8_t *bitmap)
{
	const struct cpc_group_meta *now;
	bool same;

	cpc_mutex_lock(&store->lock);
	now = store->groups[group];
	same = !now || (now->has_item == meta->has_item && now->generation == meta->generation);
	for (uint32_t i = 0; same && now && i < now->nr_unapplied; i++)
		apply_entry(bitmap, &now->unapplied[i]);
	cpc_mutex_unlock(&store->lock);
	return same;
}

int cpc_group_load(void *ctx, uint64_t group, uint8_t bitmap[CPC_BLOCK_SIZE])
{
	struct cpc_store *store = ctx;
	struct cpc_group_meta meta = {0};
	int ret;

	do {
		cpc_mutex_lock(&store->lock);
		if (store->groups[group])
			meta = *store->groups[group];
		cpc_mutex_unlock(&store->lock);
		ret = load_home(store, group, &meta, bitmap);
		if (ret)
			return ret;
	} while (!apply_log(store, group, &meta, bitmap));
	return 0;
}

/* --- open --- */

static int add_tail(struct cpc_store *store, uint64_t transid, uint64_t key)
{
	if (store->nr_tails && store->tails[store->nr_tails - 1].transid == transid)
		return 0;
	if (store->nr_tails == store->cap_tails) {
		size_t cap = store->cap_tails ? 2 * store->cap_tails : 64;
		struct cpc_free_tail *bigger = cpc_alloc_array(cap, sizeof(*bigger));

		if (!bigger)
			return -ENOMEM;
		if (store->nr_tails)
			memcpy(bigger, store->tails, store->nr_tails * sizeof(*bigger));
		cpc_free(store->tails);
		store->tails = bigger;
		store->cap_tails = cap;
	}
	store->tails[store->nr_tails++] = (struct cpc_free_tail){transid, key};
	return 0;
}

static int keep_unapplied(struct cpc_group_meta *meta, const struct cpc_disk_free_entry *entry)
{
	if (meta->nr_unapplied == meta->cap_unapplied) {
		uint32_t cap = meta->cap_unapplied ? 2 * meta->cap_unapplied : 8;
		struct cpc_disk_free_entry *bigger = cpc_alloc_array(cap, sizeof(*bigger));

		if (!bigger)
			return -ENOMEM;
		if (meta->nr_unapplied)
			memcpy(bigger, meta->unapplied, meta->nr_unapplied * sizeof(*bigger));
		cpc_free(meta->unapplied);
		meta->unapplied = bigger;
		meta->cap_unapplied = cap;
	}
	meta->unapplied[meta->nr_unapplied++] = *entry;
	return 0;
}

static int load_entry(struct cpc_store *store, uint64_t transid,
		      const struct cpc_disk_free_entry *entry)
{
	uint64_t block = cpc_get_le64(&entry->block);
	uint32_t count = cpc_get_le32(&entry->count);
	bool freed = count & CPC_FREE_ENTRY_FREED;
	struct cpc_group_meta *meta;

	count &= ~CPC_FREE_ENTRY_FREED;
	if (count == 0 || block >= store->geo.nr_blocks ||
	    !cpc_geometry_in_data(&store->geo, block << CPC_BLOCK_SHIFT,
				  (uint64_t)count << CPC_BLOCK_SHIFT) ||
	    block % CPC_GROUP_BLOCKS + count > CPC_GROUP_BLOCKS)
		return -EUCLEAN;
	meta = group_meta(store, block / CPC_GROUP_BLOCKS);
	if (!meta)
		return -ENOMEM;
	if (meta->has_item && transid < meta->generation)
		return 0;
	if (meta->rebuilt) {
		meta->oldest = meta->oldest ? meta->oldest : transid;
		return 0;
	}
	if (freed ? meta->used < count
		  : cpc_geometry_group_blocks(&store->geo, block / CPC_GROUP_BLOCKS) - meta->used <
			count)
		return -EUCLEAN;
	meta->used += freed ? -count : count;
	meta->nr_pending++;
	if (!meta->oldest)
		meta->oldest = transid;
	return keep_unapplied(meta, entry);
}

struct free_log_walk {
	struct cpc_store *store;
	bool mark;
	struct cpc_blockset seen; /* blocks of the nodes so far */
	uint8_t bitmap[CPC_BLOCK_SIZE];
};

static int load_item(struct cpc_store *store, uint64_t key, const void *value, uint32_t size)
{
	const struct cpc_disk_free_log *disk = value;
	uint64_t transid = cpc_get_le64(&disk->transid);
	size_t nr = (size - sizeof(*disk)) / sizeof(disk->entry[0]);
	int ret;

	if (transid > store->super.transid || key >= store->super.next_free_log ||
	    (store->nr_tails && store->tails[store->nr_tails - 1].transid > transid))
		return -EUCLEAN;
	ret = add_tail(store, transid, key);
	for (size_t i = 0; !ret && i < nr; i++)
		ret = load_entry(store, transid, &disk->entry[i]);
	return ret;
}

/*
 * A node of the free log is in no bitmap. One that claims to stand where something else does would
 * be freed from under it, so it is refused. In a bad group nothing is known, and nothing is freed.
 */
static int mark_blocks(struct free_log_walk *walk, uint64_t block, uint64_t nr)
{
	struct cpc_space *space = walk->store->space;
	uint64_t group = block / CPC_GROUP_BLOCKS;
	uint32_t used;
	int ret = 0;

	for (uint64_t b = block; !ret && b < block + nr; b++) {
		if (b == block || b % CPC_GROUP_BLOCKS == 0) {
			group = b / CPC_GROUP_BLOCKS;
			ret = cpc_space_get_used(space, group, walk->bitmap, &used);
			if (ret && ret != -ENOMEM) {
				memset(walk->bitmap, 0, sizeof(walk->bitmap));
				ret = 0;
			}
		}
		if (!ret && (walk->bitmap[b % CPC_GROUP_BLOCKS / 8] >> b % 8 & 1 ||
			     cpc_blockset_test(&walk->seen, b)))
			ret = -EUCLEAN;
	}
	if (ret == -EUCLEAN)
		cpc_error("free log: a node at block %llu stands on blocks in use",
			  (unsigned long long)block);
	if (!ret)
		ret = cpc_blockset_add(&walk->seen, block, nr);
	return ret ? ret : cpc_space_mark_busy(space, block, nr);
}

/* Reads the items (mark false) or marks the nodes busy (mark true). */
static int walk_node(struct free_log_walk *walk, const struct cpc_node_ptr *ptr)
{
	struct cpc_store *store = walk->store;
	struct cpc_eb *eb;
	int ret = cpc_store_read_node(store, ptr, CPC_TREE_FREE_LOG, &eb);

	if (ret)
		return ret;
	for (unsigned i = 0; walk->mark && !ret && i < store->geo.copies; i++)
		ret = mark_blocks(walk, ptr->bytenr[i] >> CPC_BLOCK_SHIFT,
				  store->geo.nodesize >> CPC_BLOCK_SHIFT);
	for (uint32_t i = 0; !ret && i < cpc_node_nritems(eb->data); i++) {
		struct cpc_node_ptr child;
		const void *value;
		uint32_t size;
		uint64_t key;

		if (ptr->level) {
			cpc_node_child(eb->data, i, &key, &child);
			ret = walk_node(walk, &child);
		} else if (!walk->mark) {
			cpc_node_item(eb->data, i, &key, &value, &size);
			ret = load_item(store, key, value, size);
		}
	}
	cpc_eb_put(eb);
	return ret;
}

static int walk_free_log(struct cpc_store *store, bool mark)
{
	const struct cpc_node_ptr *root = &store->super.free_log;
	struct free_log_walk *walk;
	int ret;

	if (cpc_node_ptr_empty(root))
		return 0;
	if (cpc_ptr_blocks(store, root) > store->geo.nr_blocks)
		return -EUCLEAN;
	walk = cpc_zalloc(sizeof(*walk));
	if (!walk)
		return -ENOMEM;
	walk->store = store;
	walk->mark = mark;
	cpc_blockset_init(&walk->seen, store->geo.nr_groups);
	ret = walk_node(walk, root);
	cpc_blockset_destroy(&walk->seen);
	cpc_free(walk);
	return ret;
}

static int load_group_item(struct cpc_store *store, uint64_t group, const void *value)
{
	const struct cpc_disk_group *disk = value;
	struct cpc_group_meta *meta;

	if (group >= store->geo.nr_groups)
		return -EUCLEAN;
	meta = group_meta(store, group);
	if (!meta)
		return -ENOMEM;
	meta->has_item = true;
	meta->home = disk->home;
	meta->csum = cpc_get_le32(&disk->csum);
	meta->generation = cpc_get_le64(&disk->generation);
	if (meta->rebuilt)
		return 0;
	meta->used = cpc_get_le32(&disk->used);
	return meta->used <= cpc_geometry_group_blocks(&store->geo, group) ? 0 : -EUCLEAN;
}

static int load_group_items(struct cpc_store *store)
{
	uint64_t end = cpc_root_key(CPC_ITEM_GROUP + 1, 0);
	struct cpc_cursor c;
	int ret;

	cpc_cursor_init(&c, store->ebc, CPC_TREE_ROOT, &store->super.root);
	ret = cpc_cursor_seek(&c, cpc_root_key(CPC_ITEM_GROUP, 0));
	while (!ret && c.valid && c.key < end) {
		ret = load_group_item(store, c.key & CPC_KEY_ID_MASK, c.value);
		if (!ret)
			ret = cpc_cursor_next(&c);
	}
	cpc_cursor_release(&c);
	return ret;
}

static uint64_t popcount(const uint8_t *bitmap)
{
	const uint64_t *words = (const uint64_t *)(const void *)bitmap;
	uint64_t sum = 0;

	for (unsigned i = 0; i < CPC_BLOCK_SIZE / 8; i++)
		sum += (uint64_t)__builtin_popcountll(words[i]);
	return sum;
}

/* Bits set in a bitmap, those beyond the pool's end not counted. */
static uint64_t count_used(const struct cpc_store *store, uint64_t group, const uint8_t *bitmap)
{
	return popcount(bitmap) -
	       (CPC_GROUP_BLOCKS - cpc_geometry_group_blocks(&store->geo, group));
}

/* Groups whose bitmaps come from a walk of the trees: neither home nor free log is asked. */
static int take_rebuilt(struct cpc_store *store)
{
	const struct cpc_rebuilt *rebuilt = store->rebuilt;

	for (size_t i = 0; rebuilt && i < rebuilt->nr; i++) {
		const struct cpc_rebuilt_group *g = &rebuilt->groups[i];
		struct cpc_group_meta *meta = group_meta(store, g->group);

		if (!meta)
			return -ENOMEM;
		meta->rebuilt = g->bitmap;
		meta->used = (uint32_t)count_used(store, g->group, g->bitmap);
	}
	if (rebuilt && rebuilt->free_log_lost)
		memset(&store->super.free_log, 0, sizeof(store->super.free_log));
	return 0;
}

/* Tells core/space how full each group is. Return: blocks in use in all of them. */
static uint64_t set_groups(struct cpc_store *store)
{
	uint64_t used = 0;

	for (uint64_t g = 0; g < store->geo.nr_groups; g++) {
		if (store->groups[g]) {
			cpc_space_set_group(store->space, g, store->groups[g]->used);
			used += store->groups[g]->used;
		} else {
			used += fresh_used(store, g);
		}
	}
	return used;
}

int cpc_free_space_load(struct cpc_store *store)
{
	int ret;

	store->groups = cpc_alloc_array(store->geo.nr_groups, sizeof(*store->groups));
	if (!store->groups)
		return -ENOMEM;
	memset(store->groups, 0, store->geo.nr_groups * sizeof(*store->groups));
	ret = take_rebuilt(store);
	if (!ret)
		ret = load_group_items(store);
	if (!ret)
		ret = walk_free_log(store, false);
	if (ret)
		return ret;
	store->used_blocks = set_groups(store);
	if (store->used_blocks != store->super.used_blocks)
		cpc_warn("the superblock counts %llu blocks in use, the groups %llu",
			 (unsigned long long)store->super.used_blocks,
			 (unsigned long long)store->used_blocks);
	return store->read_only ? 0 : walk_free_log(store, true);
}

/* --- folding --- */

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
	struct cpc_group_meta *meta = group_meta(c->store, group);
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
	fold->used = count_used(c->store, group, bitmap);
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

/* --- the free log of this commit --- */

struct log_writer {
	struct cpc_commit *c;
	struct cpc_root_ops ops;
	uint8_t item[CPC_ITEM_MAX_SIZE];
	uint32_t nr;
};

static bool folded(const struct cpc_commit *c, uint64_t group)
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

static int log_item(struct log_writer *w)
{
	struct cpc_disk_free_log *disk = (void *)w->item;
	uint32_t size = (uint32_t)(sizeof(*disk) + w->nr * sizeof(disk->entry[0]));
	uint64_t key = w->c->super.next_free_log;
	int ret;

	if (!w->nr)
		return 0;
	if (!w->c->tail.transid)
		w->c->tail = (struct cpc_free_tail){w->c->transid, key};
	cpc_put_le64(&disk->transid, w->c->transid);
	ret = cpc_root_ops_put(&w->ops, key, disk, size);
	w->c->super.next_free_log++;
	w->nr = 0;
	return ret;
}

static int log_set(struct log_writer *w, const struct cpc_blockset *set, uint32_t flag,
		   bool skip_folded)
{
	struct cpc_disk_free_log *disk = (void *)w->item;
	uint64_t block, nr;
	int ret = 0;

	cpc_blockset_for_each(set, block, nr)
	{
		if (skip_folded && folded(w->c, block / CPC_GROUP_BLOCKS))
			continue;
		cpc_put_le64(&disk->entry[w->nr].block, block);
		cpc_put_le32(&disk->entry[w->nr].count, (uint32_t)nr | flag);
		if (++w->nr == ENTRIES_PER_ITEM)
			ret = log_item(w);
		if (ret)
			return ret;
	}
	return 0;
}

int cpc_commit_free_log_drop(struct cpc_commit *c, const struct cpc_node_ptr *ptr)
{
	struct cpc_eb *eb;
	int ret = 0;

	if (ptr->level) {
		ret = cpc_store_read_node(c->store, ptr, CPC_TREE_FREE_LOG, &eb);
		if (ret)
			return ret;
		for (uint32_t i = 0; !ret && i < cpc_node_nritems(eb->data); i++) {
			struct cpc_node_ptr child;
			uint64_t key;

			cpc_node_child(eb->data, i, &key, &child);
			ret = cpc_commit_free_log_drop(c, &child);
		}
		cpc_eb_put(eb);
	}
	return ret ? ret : c->txn.free_node(c, ptr);
}

/* The first key that must stay: of the oldest change in a group that is not folded. */
static uint64_t first_needed_key(struct cpc_commit *c)
{
	struct cpc_store *store = c->store;
	uint64_t oldest = UINT64_MAX;

	for (uint64_t g = 0; g < store->geo.nr_groups; g++) {
		const struct cpc_group_meta *meta = store->groups[g];

		if (meta && meta->oldest && meta->oldest < oldest && !folded(c, g))
			oldest = meta->oldest;
	}
	for (size_t i = 0; i < store->nr_tails; i++) {
		if (store->tails[i].transid >= oldest)
			return store->tails[i].first;
	}
	return c->store->super.next_free_log;
}

int cpc_commit_free_log(struct cpc_commit *c)
{
	struct log_writer *w = cpc_zalloc(sizeof(*w));
	int ret;

	if (!w)
		return -ENOMEM;
	w->c = c;
	c->free_log_from = first_needed_key(c);
	ret = c->free_log_from ? cpc_root_ops_delete(&w->ops, 0, c->free_log_from) : 0;
	if (!ret)
		ret = log_set(w, &c->alloc[0], 0, true);
	if (!ret)
		ret = log_set(w, &c->freed[0], CPC_FREE_ENTRY_FREED, true);
	if (!ret)
		ret = log_set(w, &c->alloc[1], 0, false);
	if (!ret)
		ret = log_set(w, &c->freed[1], CPC_FREE_ENTRY_FREED, false);
	if (!ret)
		ret = log_item(w);
	if (!ret) {
		cpc_root_ops_sort(&w->ops);
		c->in_free_log = true;
		ret = cpc_btree_apply(&c->txn, CPC_TREE_FREE_LOG, &c->store->super.free_log,
				      cpc_root_ops_next, &w->ops, &c->super.free_log);
		c->in_free_log = false;
	}
	/* room for publish, which cannot fail */
	if (!ret)
		ret = add_tail(c->store, UINT64_MAX, 0);
	if (!ret)
		c->store->nr_tails--;
	cpc_root_ops_destroy(&w->ops);
	cpc_free(w);
	return ret;
}

/* --- becoming durable --- */

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
		if (!group_meta(c->store, block / CPC_GROUP_BLOCKS))
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

		bool counted = !logged_if_folded && folded(c, block / CPC_GROUP_BLOCKS);

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
