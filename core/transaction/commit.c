/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * commit: from one pool state to the next.
 *
 * All new nodes go to free places, so until the superblock is durable a failure at any step is
 * undone by forgetting: nodes are dropped from memory and their blocks released. Once a
 * superblock has been handed to the device (`burned` if its flush is not good) the pool may come
 * back with it: then nothing that it names may be reused until a later one is durable.
 *
 * Steps and their order: see store.h. The two phases of the block sets exist for the bitmap folds,
 * see free-space.c.
 */
#include "transaction/store-internal.h"

#include "lib/hooks.h"
#include "lib/log.h"
#include "lib/mutation.h"

/* --- callbacks of the tree changes --- */

static int alloc_copy(struct cpc_commit *c, enum cpc_space_kind kind, uint64_t *bytenr)
{
	uint32_t nr = c->store->geo.nodesize >> CPC_BLOCK_SHIFT, got;
	uint64_t block;
	int ret = cpc_space_alloc(c->store->space, kind, nr, nr, &block, &got);

	if (ret)
		return ret;
	ret = cpc_blockset_add(&c->nodes, block, nr);
	if (ret) {
		cpc_space_release(c->store->space, block, nr);
		return ret;
	}
	*bytenr = block << CPC_BLOCK_SHIFT;
	if (c->in_free_log)
		return 0;
	return cpc_blockset_add(&c->alloc[c->phase], block, nr);
}

static int alloc_node(void *ctx, uint64_t bytenr[2])
{
	struct cpc_commit *c = ctx;
	int ret = alloc_copy(c, CPC_SPACE_NODE, &bytenr[0]);

	bytenr[1] = 0;
	if (!ret && c->store->geo.copies == 2)
		ret = alloc_copy(c, CPC_SPACE_NODE2, &bytenr[1]);
	return ret;
}

static int free_node(void *ctx, const struct cpc_node_ptr *ptr)
{
	struct cpc_commit *c = ctx;
	uint64_t nr = c->store->geo.nodesize >> CPC_BLOCK_SHIFT;
	struct cpc_blockset *set = c->in_free_log ? &c->dropped : &c->freed[c->phase];
	int ret = 0;

	for (unsigned i = 0; !ret && i < c->store->geo.copies; i++)
		ret = cpc_blockset_add(set, ptr->bytenr[i] >> CPC_BLOCK_SHIFT, nr);
	return ret;
}

static int free_data(void *ctx, uint64_t bytenr, uint64_t nr_blocks, uint64_t birth)
{
	struct cpc_commit *c = ctx;

	return cpc_blockset_add(&c->freed[c->phase], bytenr >> CPC_BLOCK_SHIFT, nr_blocks);
}

/*
 * The list is part of the root tree, so it takes subtrees of volumes only, which are done before.
 * Those of the free log are freed at once.
 */
static int drop_subtree(void *ctx, const struct cpc_node_ptr *ptr, uint64_t owner)
{
	struct cpc_commit *c = ctx;

	if (c->in_free_log)
		return cpc_commit_free_log_drop(c, ptr);
	return c->phase ? 1 : cpc_commit_drop_add(c, ptr, owner);
}

/* --- volumes --- */

/* Turns a run into changes of a volume's tree. */
struct run_ops {
	struct cpc_commit *c;
	const struct cpc_run *run;
	size_t at;
	uint8_t value[sizeof(struct cpc_disk_extent) + 4 * CPC_EXTENT_MAX_BLOCKS];
};

static int run_ops_next(void *ctx, struct cpc_tree_op *op)
{
	struct run_ops *ops = ctx;
	struct cpc_disk_extent *extent = (void *)ops->value;
	const struct cpc_run_entry *e;

	if (ops->at == ops->run->nr_entries)
		return 0;
	e = &ops->run->entries[ops->at++];
	op->start = e->block;
	op->end = e->block + cpc_run_entry_len(e);
	op->value = NULL;
	op->size = 0;
	if (!e->bytenr)
		return 1;
	cpc_put_le64(&extent->bytenr, e->bytenr);
	cpc_put_le64(&extent->birth, ops->c->transid);
	for (uint32_t i = 0; i < e->nr; i++)
		cpc_put_le32(&extent->csum[i], ops->run->csums[e->csum + i]);
	op->value = extent;
	op->size = cpc_extent_value_size(e->nr);
	return cpc_blockset_add(&ops->c->alloc[0], e->bytenr >> CPC_BLOCK_SHIFT, e->nr) ? -ENOMEM
											: 1;
}

static int put_volume_item(struct cpc_commit *c, const struct cpc_volume_item *item)
{
	uint8_t value[CPC_VOLUME_VALUE_MAX];
	uint32_t size = cpc_volume_item_encode(item, c->transid, value);

	return cpc_root_ops_put(&c->root_ops, cpc_root_key(CPC_ITEM_VOLUME, item->id), value, size);
}

static int delete_volume(struct cpc_commit *c, struct cpc_commit_volume *v)
{
	uint64_t key = cpc_root_key(CPC_ITEM_VOLUME, v->item.id);
	int ret = 0;

	if (!cpc_node_ptr_empty(&v->item.root))
		ret = cpc_commit_drop_add(c, &v->item.root, CPC_TREE_VOLUME_BASE + v->item.id);
	return ret ? ret : cpc_root_ops_delete(&c->root_ops, key, key + 1);
}

static int commit_volume(struct cpc_commit *c, struct cpc_commit_volume *v)
{
	struct cpc_volume_item item = v->item;
	struct run_ops *ops;
	int ret;

	if (v->deleted)
		return delete_volume(c, v);
	v->new_root = v->item.root;
	if (v->run) {
		ops = cpc_alloc(sizeof(*ops));
		if (!ops)
			return -ENOMEM;
		ops->c = c;
		ops->run = v->run;
		ops->at = 0;
		ret = cpc_btree_apply(&c->txn, CPC_TREE_VOLUME_BASE + item.id, &v->item.root,
				      run_ops_next, ops, &v->new_root);
		cpc_free(ops);
		if (ret)
			return ret;
	}
	item.root = v->new_root;
	return put_volume_item(c, &item);
}

/* --- superblock --- */

static uint32_t next_slot(const struct cpc_store *store)
{
	uint32_t slot = (store->last_slot + 1) % CPC_SUPER_SLOTS;

	return slot == store->durable_slot && !CPC_MUTANT(durable_superblock_overwritten)
		   ? (slot + 1) % CPC_SUPER_SLOTS
		   : slot;
}

int cpc_store_write_ring(struct cpc_store *store, unsigned ring, const struct cpc_disk_super *disk)
{
	uint32_t slot = cpc_get_le32(&disk->slot);

	return cpc_fe_write(&store->fe, cpc_geometry_super(&store->geo, ring, slot), disk,
			    sizeof(*disk), CPC_CAUSE_SUPER, NULL);
}

/*
 * Under super_lock. From the first byte of the superblock on, a failure burns it. A device that has
 * no room for it is one that fails: to try again and again would go round the ring, over
 * superblocks that may have become durable.
 */
static int write_and_flush_super(struct cpc_commit *c)
{
	struct cpc_disk_super *disk = cpc_alloc_aligned(CPC_BLOCK_SIZE, sizeof(*disk));
	struct cpc_store *store = c->store;
	uint64_t failures = cpc_flush_epoch_failures(&store->fe);
	int ret;

	if (!disk)
		return -ENOMEM;
	c->super.slot = next_slot(store);
	cpc_super_encode(disk, &c->super);
	store->last_slot = c->super.slot;
	store->burned_super = c->super_written = true;
	ret = cpc_store_write_ring(store, 0, disk);
	if (!ret)
		ret = cpc_store_write_ring(store, 1, disk);
	cpc_free(disk);
	if (!ret && !CPC_MUTANT(superblock_not_flushed))
		ret = cpc_flush_epoch_flush(&store->fe, CPC_FLUSH_COMMIT);
	if (!ret && failures != cpc_flush_epoch_failures(&store->fe) &&
	    !CPC_MUTANT(superblock_spans_a_failed_flush))
		ret = -EIO;
	return ret ? -EIO : 0;
}

/* --- the whole --- */

static uint64_t new_used_blocks(const struct cpc_commit *c)
{
	return c->store->used_blocks + c->alloc[0].nr_blocks + c->alloc[1].nr_blocks -
	       c->freed[0].nr_blocks - c->freed[1].nr_blocks;
}

static int build(struct cpc_commit *c)
{
	int ret = 0;

	for (size_t i = 0; !ret && i < c->req->nr_volumes; i++)
		ret = commit_volume(c, &c->req->volumes[i]);
	if (!ret)
		ret = cpc_commit_drop_slice(c);
	if (!ret)
		ret = cpc_commit_prepare(c);
	if (!ret)
		ret = cpc_commit_fold(c);
	if (ret)
		return ret;
	c->phase = 1;
	cpc_root_ops_sort(&c->root_ops);
	ret = cpc_btree_apply(&c->txn, CPC_TREE_ROOT, &c->store->super.root, cpc_root_ops_next,
			      &c->root_ops, &c->super.root);
	if (!ret)
		ret = cpc_commit_prepare(c);
	return ret ? ret : cpc_commit_free_log(c);
}

/* Room for what publish must keep, taken while failing is still possible. */
static int make_pins(struct cpc_commit *c)
{
	struct cpc_pins *pins = cpc_pins_new(c->store);
	uint64_t block, nr;
	int ret = 0;
	struct cpc_blockset *sets[] = {&c->freed[0], &c->freed[1], &c->dropped, &c->store->burned};

	if (!pins)
		return -ENOMEM;
	for (unsigned i = 0; i < CPC_ARRAY_SIZE(sets); i++) {
		cpc_blockset_for_each(sets[i], block, nr)
		{
			if (!ret)
				ret = cpc_blockset_add(&pins->blocks, block, nr);
		}
	}
	if (ret) {
		cpc_blockset_destroy(&pins->blocks);
		cpc_pins_put(pins);
		return ret;
	}
	c->req->pins = pins;
	return 0;
}

static void drop_pins(struct cpc_commit *c)
{
	if (!c->req->pins)
		return;
	cpc_blockset_destroy(&c->req->pins->blocks);
	cpc_pins_put(c->req->pins);
	c->req->pins = NULL;
}

static void publish(struct cpc_commit *c)
{
	struct cpc_store *store = c->store;

	cpc_commit_publish_space(c);
	atomic_fetch_add(&store->pinned_blocks, c->req->pins->blocks.nr_blocks);
	cpc_blockset_destroy(&store->burned);
	cpc_mutex_lock(&store->lock);
	cpc_hold_pins_locked(store, c->req->pins);
	store->super = c->super;
	store->used_blocks = c->super.used_blocks;
	store->dropped_blocks += (uint64_t)c->drop_delta_blocks;
	store->nr_drops += (uint64_t)c->drop_delta_items;
	cpc_mutex_unlock(&store->lock);
	store->durable_slot = c->super.slot;
	store->burned_super = false;
	c->req->transid = c->transid;
	atomic_fetch_add(&store->commits, 1);
}

/*
 * Nodes, flush, superblock, flush, published. Who looks at the slots (a scrub) must not find a
 * newer superblock than the store names: it would take the newest for an old one.
 */
static int make_current(struct cpc_commit *c)
{
	struct cpc_store *store = c->store;
	int ret = cpc_eb_sync(store->ebc);

	if (!ret && !CPC_MUTANT(superblock_before_its_nodes))
		ret = cpc_flush_epoch_flush(&store->fe, CPC_FLUSH_COMMIT);
	if (ret)
		return ret;
	cpc_mutex_lock(&store->super_lock);
	ret = write_and_flush_super(c);
	if (!ret)
		publish(c);
	cpc_mutex_unlock(&store->super_lock);
	return ret;
}

static void undo(struct cpc_commit *c)
{
	struct cpc_store *store = c->store;
	uint64_t block, nr;

	cpc_eb_abort(store->ebc, c->transid);
	cpc_commit_unprepare(c);
	drop_pins(c);
	/* An earlier superblock may be burned, but it names nothing of this commit. */
	if (!c->super_written || CPC_MUTANT(burned_superblock_forgotten)) {
		cpc_blockset_for_each(&c->nodes, block, nr)
		    cpc_space_release(store->space, block, nr);
	} else if (cpc_blockset_move(&store->burned, &c->nodes)) {
		/* No memory to remember them: they stay busy until the pool is opened again. */
		cpc_warn("out of memory: %llu blocks stay unused until the next open",
			 (unsigned long long)c->nodes.nr_blocks);
	}
	atomic_fetch_add(&store->commit_failures, 1);
}

static void commit_init(struct cpc_commit *c, struct cpc_store *store,
			struct cpc_commit_request *req)
{
	uint64_t groups = store->geo.nr_groups;

	memset(c, 0, sizeof(*c));
	c->store = store;
	c->req = req;
	c->transid =
	    CPC_MUTANT(transid_used_again) ? store->super.transid + 1 : ++store->last_transid;
	c->txn = (struct cpc_tree_txn){
	    .transid = c->transid,
	    .cache = store->ebc,
	    .ctx = c,
	    .alloc_node = alloc_node,
	    .free_node = free_node,
	    .free_data = free_data,
	    .drop_subtree = drop_subtree,
	};
	for (unsigned i = 0; i < 2; i++) {
		cpc_blockset_init(&c->alloc[i], groups);
		cpc_blockset_init(&c->freed[i], groups);
	}
	cpc_blockset_init(&c->dropped, groups);
	cpc_blockset_init(&c->prepared, groups);
	cpc_blockset_init(&c->nodes, groups);
	c->super = store->super;
	c->next_drop = store->super.next_drop;
	req->pins = NULL;
}

static void commit_destroy(struct cpc_commit *c)
{
	for (unsigned i = 0; i < 2; i++) {
		cpc_blockset_destroy(&c->alloc[i]);
		cpc_blockset_destroy(&c->freed[i]);
	}
	cpc_blockset_destroy(&c->dropped);
	cpc_blockset_destroy(&c->prepared);
	cpc_blockset_destroy(&c->nodes);
	cpc_root_ops_destroy(&c->root_ops);
	cpc_free(c->folds);
}

int cpc_store_commit(struct cpc_store *store, struct cpc_commit_request *req)
{
	uint64_t start = cpc_now_ns();
	struct cpc_commit c;
	int ret;

	if (store->read_only)
		return -EROFS;
	commit_init(&c, store, req);
	ret = build(&c);
	if (!ret)
		ret = make_pins(&c);
	if (!ret) {
		c.super.transid = c.transid;
		c.super.nonce = req->nonce;
		c.super.log_seq = c.super.log_durable = req->log_seq;
		c.super.log_position = req->log_position;
		c.super.next_volume = req->next_volume;
		c.super.next_drop = c.next_drop;
		c.super.used_blocks = new_used_blocks(&c);
		c.super.flags = req->clean ? CPC_SUPER_CLEAN : 0;
		ret = make_current(&c);
	}
	if (ret)
		undo(&c);
	commit_destroy(&c);
	cpc_hist_add(&store->commit_us, (cpc_now_ns() - start) / 1000);
	return ret;
}
