/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * free-log: what a commit adds to the free log and takes out of it. Changes of groups that it folds
 * are not logged, but for those made after the fold.
 */
#include "transaction/store-internal.h"

#include "lib/hooks.h"

#define ENTRIES_PER_ITEM                                                                           \
	((CPC_ITEM_MAX_SIZE - sizeof(struct cpc_disk_free_log)) /                                  \
	 sizeof(struct cpc_disk_free_entry))

struct log_writer {
	struct cpc_commit *c;
	struct cpc_root_ops ops;
	uint8_t item[CPC_ITEM_MAX_SIZE];
	uint32_t nr;
};

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
		if (skip_folded && cpc_commit_folded(w->c, block / CPC_GROUP_BLOCKS))
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

		if (meta && meta->oldest && meta->oldest < oldest && !cpc_commit_folded(c, g))
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
		ret = cpc_free_tail_add(c->store, UINT64_MAX, 0);
	if (!ret)
		c->store->nr_tails--;
	cpc_root_ops_destroy(&w->ops);
	cpc_free(w);
	return ret;
}
