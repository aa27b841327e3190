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
 * Here: reading a bitmap, and opening. fold.c writes bitmaps, free-log.c the log of a commit,
 * publish.c makes in memory what has become durable.
 *
 * Rejected: a free-space B-tree by address, which turns random frees into random node writes; and
 * bitmaps as tree items, which would copy a node for each bitmap.
 */
#include "transaction/store-internal.h"

#include "lib/hooks.h"
#include "lib/log.h"

/* Blocks in use in a group that nothing was ever allocated in. */
static uint32_t fresh_used(const struct cpc_store *store, uint64_t group)
{
	uint64_t start = group * CPC_GROUP_BLOCKS;
	uint64_t end = start + cpc_geometry_group_blocks(&store->geo, group);
	uint64_t low = cpc_max_u64(start, store->geo.data_start);
	uint64_t high = cpc_min_u64(end, store->geo.data_end);

	return (uint32_t)(end - start - (low < high ? high - low : 0));
}

struct cpc_group_meta *cpc_group_meta(struct cpc_store *store, uint64_t group)
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

int cpc_free_tail_add(struct cpc_store *store, uint64_t transid, uint64_t key)
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

/* That it lies in the data area, the tree checker has seen to. */
static int load_entry(struct cpc_store *store, uint64_t transid,
		      const struct cpc_disk_free_entry *entry)
{
	uint64_t block = cpc_get_le64(&entry->block);
	uint32_t count = cpc_get_le32(&entry->count);
	bool freed = count & CPC_FREE_ENTRY_FREED;
	struct cpc_group_meta *meta;

	count &= ~CPC_FREE_ENTRY_FREED;
	if (block % CPC_GROUP_BLOCKS + count > CPC_GROUP_BLOCKS)
		return -EUCLEAN;
	meta = cpc_group_meta(store, block / CPC_GROUP_BLOCKS);
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
	ret = cpc_free_tail_add(store, transid, key);
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

/* That there is such a group, and how much of it can be used, the tree checker has seen to. */
static int load_group_item(struct cpc_store *store, uint64_t group, const void *value)
{
	const struct cpc_disk_group *disk = value;
	struct cpc_group_meta *meta = cpc_group_meta(store, group);

	if (!meta)
		return -ENOMEM;
	meta->has_item = true;
	meta->home = disk->home;
	meta->csum = cpc_get_le32(&disk->csum);
	meta->generation = cpc_get_le64(&disk->generation);
	if (!meta->rebuilt)
		meta->used = cpc_get_le32(&disk->used);
	return 0;
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
uint64_t cpc_group_count_used(const struct cpc_store *store, uint64_t group, const uint8_t *bitmap)
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
		struct cpc_group_meta *meta = cpc_group_meta(store, g->group);

		if (!meta)
			return -ENOMEM;
		meta->rebuilt = g->bitmap;
		meta->used = (uint32_t)cpc_group_count_used(store, g->group, g->bitmap);
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
