/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * store: opening and closing the durable half of a pool; superblock search; pins.
 */
#include "transaction/store-internal.h"

#include "lib/hooks.h"
#include "lib/log.h"
#include "lib/mutation.h"

/* --- superblocks --- */

/* Where a ring's slot stands, before the geometry is known: ring 1 ends the device or the pool. */
static int read_slot(struct cpc_backing *backing, uint64_t bytenr, uint32_t slot,
		     struct cpc_disk_super *disk, struct cpc_super *best, const char **why)
{
	struct cpc_super super;
	int ret;

	if (bytenr + sizeof(*disk) > cpc_backing_size(backing))
		return -EINVAL;
	ret = cpc_backing_read(backing, bytenr, disk, sizeof(*disk));
	if (ret) {
		*why = "superblock cannot be read";
		return ret;
	}
	ret = cpc_super_decode(&super, disk, slot, cpc_backing_size(backing), why);
	if (!ret && super.transid > best->transid)
		*best = super;
	return ret;
}

/* Of two reasons why there is no pool, the one that tells the user more. */
static int worse(int a, int b)
{
	static const int order[] = {-ENOTSUP, -EIO, -EUCLEAN, -EINVAL};

	for (unsigned i = 0; i < CPC_ARRAY_SIZE(order); i++) {
		if (a == order[i] || b == order[i])
			return order[i];
	}
	return a;
}

/* What a search has met. */
struct search {
	struct cpc_backing *backing;
	struct cpc_disk_super *disk;
	struct cpc_super *best;
	int result; /* the worst that a slot said */
	const char *why;
	int said[2][CPC_SUPER_SLOTS]; /* by ring and slot */
};

static void search_ring(struct search *s, unsigned ring, uint64_t start)
{
	for (uint32_t slot = 0; slot < CPC_SUPER_SLOTS; slot++) {
		const char *text = s->why;
		int ret = read_slot(s->backing, start + slot * CPC_BLOCK_SIZE, slot, s->disk,
				    s->best, &text);

		s->said[ring][slot] = ret;
		if (ret && worse(ret, s->result) != s->result) {
			s->result = ret;
			s->why = text;
		}
	}
}

static bool was_read(int said)
{
	return said == 0 || said == -EUCLEAN || said == -EINVAL || said == -ENOTSUP;
}

/*
 * Whether a durable superblock may stand where the device did not let us look. It stands in the
 * same slot of both rings, so one that could be read speaks for the other. A damaged one does
 * not: then the older one that was found is not known to be the newest, and to go on from it would
 * undo what has been answered.
 */
static bool may_miss_newest(const struct search *s)
{
	for (uint32_t slot = 0; slot < CPC_SUPER_SLOTS; slot++) {
		int a = s->said[0][slot], b = s->said[1][slot];

		if ((!was_read(a) && (!was_read(b) || b == -EUCLEAN)) ||
		    (a == -EUCLEAN && !was_read(b)))
			return true;
	}
	return false;
}

int cpc_super_find(struct cpc_backing *backing, struct cpc_super *super, const char **why)
{
	uint64_t size = cpc_backing_size(backing);
	uint64_t ring_bytes = (uint64_t)CPC_SUPER_SLOTS * CPC_BLOCK_SIZE;
	struct search s = {
	    .backing = backing, .best = super, .result = -EINVAL, .why = "no superblock"};

	memset(super, 0, sizeof(*super));
	*why = "too small for a pool";
	if (size < CPC_POOL_SIZE_MIN)
		return -EINVAL;
	*why = "out of memory";
	s.disk = cpc_alloc_aligned(CPC_BLOCK_SIZE, sizeof(*s.disk));
	if (!s.disk)
		return -ENOMEM;
	search_ring(&s, 0, 0);
	/* The pool may be smaller than its device: then ring 0 says where ring 1 is. */
	if (super->transid)
		size = super->total_bytes;
	search_ring(&s, 1, size - ring_bytes);
	cpc_free(s.disk);
	*why = s.why;
	if (super->transid && may_miss_newest(&s)) {
		*why = "superblock cannot be read";
		return -EIO;
	}
	/* A newer format may stand in one slot only: never go back behind it. */
	return super->transid && s.result != -ENOTSUP ? 0 : s.result;
}

int cpc_store_format(struct cpc_backing *backing, struct cpc_super *super)
{
	struct cpc_geometry geo;
	struct cpc_disk_super *disk;
	int ret;

	ret = cpc_geometry_init(&geo, super->total_bytes, super->log_size, super->nodesize,
				super->incompat & CPC_INCOMPAT_DUP);
	if (ret)
		return ret;
	disk = cpc_alloc_aligned(CPC_BLOCK_SIZE, sizeof(*disk));
	if (!disk)
		return -ENOMEM;
	super->used_blocks = geo.nr_blocks - (geo.data_end - geo.data_start);
	/* First every old superblock goes, durably; then comes the new one. */
	memset(disk, 0, sizeof(*disk));
	for (unsigned i = 0; !ret && i < 2 * CPC_SUPER_SLOTS; i++)
		ret = cpc_backing_write(
		    backing, cpc_geometry_super(&geo, i / CPC_SUPER_SLOTS, i % CPC_SUPER_SLOTS),
		    disk, sizeof(*disk), CPC_CAUSE_SUPER);
	if (!ret)
		ret = cpc_backing_flush(backing);
	cpc_super_encode(disk, super);
	for (unsigned ring = 0; !ret && ring < 2; ring++)
		ret = cpc_backing_write(backing, cpc_geometry_super(&geo, ring, super->slot), disk,
					sizeof(*disk), CPC_CAUSE_SUPER);
	if (!ret)
		ret = cpc_backing_flush(backing);
	cpc_free(disk);
	return ret;
}

/* --- open and close --- */

static int init_parts(struct cpc_store *store, size_t node_bytes)
{
	struct cpc_eb_params params = {
	    .backing = store->backing,
	    .fe = store->read_only ? NULL : &store->fe,
	    .geo = &store->geo,
	    .limit = node_bytes,
	    .checker = cpc_tree_check_node,
	};
	int ret;

	memcpy(params.uuid, store->uuid, CPC_UUID_SIZE);
	ret = cpc_eb_cache_create(&params, &store->ebc);
	if (ret)
		return ret;
	return cpc_space_create(&store->geo, cpc_group_load, store, &store->space);
}

static bool ring_holds(struct cpc_store *store, unsigned ring, const struct cpc_disk_super *disk,
		       struct cpc_disk_super *buf)
{
	uint64_t bytenr = cpc_geometry_super(&store->geo, ring, store->super.slot);

	return !cpc_backing_read(store->backing, bytenr, buf, sizeof(*buf)) &&
	       !memcmp(buf, disk, sizeof(*buf));
}

/*
 * What was found may be in a cache only: written again and flushed, it is durable. One ring after
 * the other, first one that does not hold it: a sector that is being written when the power goes
 * may be lost even where the bytes are the same, and this may be the only copy of what was
 * answered.
 */
static int write_settled(struct cpc_store *store, struct cpc_disk_super *disk)
{
	unsigned first =
	    ring_holds(store, 0, &disk[0], &disk[1]) && !ring_holds(store, 1, &disk[0], &disk[1]);
	int ret = 0;

	for (unsigned i = 0; !ret && i < 2; i++) {
		ret = cpc_store_write_ring(store, first ^ i, &disk[0]);
		if (!ret)
			ret = cpc_flush_epoch_flush(&store->fe, CPC_FLUSH_OPEN);
	}
	return ret;
}

/*
 * A slot that holds pieces of a superblock: of a commit that never became durable, whose transid is
 * about to be used again. A torn write over the pieces could make that superblock whole, after the
 * nodes that it names have been overwritten. So they go before anything is allocated.
 */
static int wipe_slot(struct cpc_store *store, unsigned ring, uint32_t slot,
		     struct cpc_disk_super *buf, bool *wiped)
{
	uint64_t bytenr = cpc_geometry_super(&store->geo, ring, slot);
	struct cpc_super super;
	const char *why;

	if (slot == store->super.slot ||
	    cpc_backing_read(store->backing, bytenr, buf, sizeof(*buf)))
		return 0;
	if (cpc_all_zero(buf, sizeof(*buf)) ||
	    !cpc_super_decode(&super, buf, slot, cpc_backing_size(store->backing), &why))
		return 0;
	*wiped = true;
	memset(buf, 0, sizeof(*buf));
	return cpc_fe_write(&store->fe, bytenr, buf, sizeof(*buf), CPC_CAUSE_SUPER, NULL);
}

static int wipe_pieces(struct cpc_store *store, struct cpc_disk_super *buf)
{
	bool wiped = false;
	int ret = 0;

	for (unsigned i = 0; !ret && i < 2 * CPC_SUPER_SLOTS; i++)
		ret = wipe_slot(store, i / CPC_SUPER_SLOTS, i % CPC_SUPER_SLOTS, buf, &wiped);
	if (!ret && wiped)
		ret = cpc_flush_epoch_flush(&store->fe, CPC_FLUSH_OPEN);
	return ret;
}

int cpc_store_settle(struct cpc_store *store)
{
	/* the second one to read into */
	struct cpc_disk_super *disk = cpc_alloc_aligned(CPC_BLOCK_SIZE, 2 * sizeof(*disk));
	int ret;

	if (!disk)
		return -ENOMEM;
	cpc_super_encode(&disk[0], &store->super);
	ret = CPC_MUTANT(superblock_not_settled) ? 0 : write_settled(store, disk);
	if (!ret && !CPC_MUTANT(superblock_pieces_kept))
		ret = wipe_pieces(store, &disk[1]);
	cpc_free(disk);
	return ret;
}

static int load(struct cpc_store *store, size_t node_bytes, const char **why)
{
	int ret = init_parts(store, node_bytes);

	if (ret) {
		*why = "out of memory";
		return ret;
	}
	*why = "free space";
	ret = cpc_free_space_load(store);
	if (ret)
		return ret;
	*why = "drop list";
	return cpc_drop_load(store);
}

static int open_store(struct cpc_backing *backing, bool read_only,
		      const struct cpc_rebuilt *rebuilt, size_t node_bytes,
		      void (*on_broken)(void *ctx), void *ctx, struct cpc_store **out,
		      const char **why)
{
	struct cpc_store *store = cpc_zalloc(sizeof(*store));
	int ret;

	*why = "out of memory";
	if (!store)
		return -ENOMEM;
	store->backing = backing;
	store->read_only = read_only;
	store->rebuilt = rebuilt;
	cpc_mutex_init(&store->lock, "store", CPC_RANK_LEAF);
	cpc_mutex_init(&store->super_lock, "superblocks", CPC_RANK_SUPER);
	cpc_flush_epoch_init(&store->fe, backing, on_broken, ctx);
	ret = cpc_super_find(backing, &store->super, why);
	if (!ret && !read_only && store->super.compat_ro & ~CPC_COMPAT_RO_KNOWN) {
		*why = "unknown feature: only reading is possible";
		ret = -ENOTSUP;
	}
	if (!ret) {
		memcpy(store->uuid, store->super.uuid, CPC_UUID_SIZE);
		cpc_assert(cpc_geometry_init(&store->geo, store->super.total_bytes,
					     store->super.log_size, store->super.nodesize,
					     store->super.incompat & CPC_INCOMPAT_DUP) == 0);
		store->last_transid = store->super.transid;
		store->last_slot = store->durable_slot = store->super.slot;
		cpc_blockset_init(&store->burned, store->geo.nr_groups);
		ret = cpc_hooks.random(&store->nonce, sizeof(store->nonce));
		if (ret)
			*why = "no random numbers";
	}
	if (!ret)
		ret = load(store, node_bytes, why);
	if (ret) {
		cpc_store_close(store);
		return ret;
	}
	*out = store;
	return 0;
}

int cpc_store_open(struct cpc_backing *backing, bool read_only, size_t node_bytes,
		   void (*on_broken)(void *ctx), void *ctx, struct cpc_store **out,
		   const char **why)
{
	return open_store(backing, read_only, NULL, node_bytes, on_broken, ctx, out, why);
}

int cpc_store_open_rebuilt(struct cpc_backing *backing, const struct cpc_rebuilt *rebuilt,
			   size_t node_bytes, struct cpc_store **out, const char **why)
{
	return open_store(backing, false, rebuilt, node_bytes, NULL, NULL, out, why);
}

void cpc_store_close(struct cpc_store *store)
{
	if (store->ebc)
		cpc_eb_cache_destroy(store->ebc);
	if (store->space)
		cpc_space_destroy(store->space);
	cpc_free_space_destroy(store);
	cpc_blockset_destroy(&store->burned);
	cpc_flush_epoch_destroy(&store->fe);
	cpc_mutex_destroy(&store->lock);
	cpc_mutex_destroy(&store->super_lock);
	cpc_free(store);
}

/* --- nodes --- */

static void sum_children(const void *node, const struct cpc_node_ptr *ptr, uint64_t owner,
			 uint64_t *nodes, uint64_t *data_blocks)
{
	for (uint32_t i = 0; i < cpc_node_nritems(node); i++) {
		struct cpc_node_ptr child;
		const void *value;
		uint32_t size;
		uint64_t key;

		if (ptr->level) {
			cpc_node_child(node, i, &key, &child);
			*nodes += child.nodes;
			*data_blocks += child.data_blocks;
		} else if (owner >= CPC_TREE_VOLUME_BASE) {
			cpc_node_item(node, i, &key, &value, &size);
			*data_blocks += cpc_item_len(owner, size);
		}
	}
}

int cpc_store_read_node(struct cpc_store *store, const struct cpc_node_ptr *ptr, uint64_t owner,
			struct cpc_eb **out)
{
	uint64_t nodes = 1, data_blocks = 0;
	int ret = cpc_eb_read(store->ebc, ptr, owner, out);

	if (ret)
		return ret;
	sum_children((*out)->data, ptr, owner, &nodes, &data_blocks);
	if (nodes == ptr->nodes && data_blocks == ptr->data_blocks)
		return 0;
	cpc_error("tree %llu: node at %llu: sums do not match those in its parent",
		  (unsigned long long)owner, (unsigned long long)ptr->bytenr[0]);
	cpc_eb_put(*out);
	return -EUCLEAN;
}

/* --- volumes --- */

int cpc_volume_item_decode(struct cpc_volume_item *item, uint64_t id, const void *value,
			   uint32_t size)
{
	const struct cpc_disk_volume *disk = value;

	if (size < sizeof(*disk) || size != sizeof(*disk) + disk->name_len ||
	    !cpc_name_valid((const char *)disk->name, disk->name_len))
		return -EUCLEAN;
	memset(item, 0, sizeof(*item));
	item->id = id;
	item->size = cpc_get_le64(&disk->size);
	item->flags = cpc_get_le64(&disk->flags);
	item->created = cpc_get_le64(&disk->created);
	item->generation = cpc_get_le64(&disk->generation);
	item->limit = cpc_get_le64(&disk->limit);
	item->origin = cpc_get_le64(&disk->origin);
	item->snapshot_of = cpc_get_le64(&disk->snapshot_of);
	item->dead_blocks = cpc_get_le64(&disk->dead_blocks);
	cpc_ptr_decode(&item->root, &disk->root);
	memcpy(item->uuid, disk->uuid, CPC_UUID_SIZE);
	memcpy(item->name, disk->name, disk->name_len);
	return item->size == 0 || item->size > CPC_VOLUME_SIZE_MAX ? -EUCLEAN : 0;
}

uint32_t cpc_volume_item_encode(const struct cpc_volume_item *item, uint64_t generation,
				uint8_t value[CPC_VOLUME_VALUE_MAX])
{
	struct cpc_disk_volume *disk = (void *)value;
	size_t len = strlen(item->name);

	memset(value, 0, CPC_VOLUME_VALUE_MAX);
	cpc_put_le64(&disk->size, item->size);
	cpc_put_le64(&disk->flags, item->flags);
	cpc_put_le64(&disk->created, item->created);
	cpc_put_le64(&disk->generation, generation);
	cpc_put_le64(&disk->limit, item->limit);
	cpc_put_le64(&disk->origin, item->origin);
	cpc_put_le64(&disk->snapshot_of, item->snapshot_of);
	cpc_put_le64(&disk->dead_blocks, item->dead_blocks);
	cpc_ptr_encode(&disk->root, &item->root);
	memcpy(disk->uuid, item->uuid, CPC_UUID_SIZE);
	disk->name_len = (uint8_t)len;
	memcpy(disk->name, item->name, len);
	return (uint32_t)(sizeof(*disk) + len);
}

int cpc_store_for_each_volume(struct cpc_store *store,
			      int (*fn)(void *ctx, const struct cpc_volume_item *item), void *ctx)
{
	uint64_t end = cpc_root_key(CPC_ITEM_VOLUME + 1, 0);
	struct cpc_volume_item item;
	struct cpc_cursor c;
	int ret;

	cpc_cursor_init(&c, store->ebc, CPC_TREE_ROOT, &store->super.root);
	ret = cpc_cursor_seek(&c, cpc_root_key(CPC_ITEM_VOLUME, 0));
	while (!ret && c.valid && c.key < end) {
		uint64_t id = c.key & CPC_KEY_ID_MASK;

		ret = id < store->super.next_volume
			  ? cpc_volume_item_decode(&item, id, c.value, c.size)
			  : -EUCLEAN;
		if (!ret)
			ret = fn(ctx, &item);
		if (!ret)
			ret = cpc_cursor_next(&c);
	}
	cpc_cursor_release(&c);
	return ret;
}

/* --- pins --- */

struct cpc_pins *cpc_pins_new(struct cpc_store *store)
{
	struct cpc_pins *pins = cpc_zalloc(sizeof(*pins));

	if (!pins)
		return NULL;
	pins->store = store;
	atomic_init(&pins->refs, 1);
	cpc_blockset_init(&pins->blocks, store->geo.nr_groups);
	return pins;
}

struct cpc_pins *cpc_pins_get(struct cpc_pins *pins)
{
	atomic_fetch_add_explicit(&pins->refs, 1, memory_order_relaxed);
	return pins;
}

int cpc_pins_add(struct cpc_pins *pins, uint64_t block, uint64_t nr)
{
	uint64_t before = pins->blocks.nr_blocks;
	int ret = cpc_blockset_add(&pins->blocks, block, nr);

	if (!ret)
		atomic_fetch_add(&pins->store->pinned_blocks, pins->blocks.nr_blocks - before);
	return ret;
}

void cpc_pins_put(struct cpc_pins *pins)
{
	uint64_t block, nr;

	if (!pins || atomic_fetch_sub_explicit(&pins->refs, 1, memory_order_acq_rel) != 1)
		return;
	atomic_fetch_sub(&pins->store->pinned_blocks, pins->blocks.nr_blocks);
	cpc_blockset_for_each(&pins->blocks, block, nr)
	    cpc_space_release(pins->store->space, block, nr);
	cpc_blockset_destroy(&pins->blocks);
	cpc_free(pins);
}

uint64_t cpc_store_transid(struct cpc_store *store)
{
	uint64_t transid;

	cpc_mutex_lock(&store->lock);
	transid = store->super.transid;
	cpc_mutex_unlock(&store->lock);
	return transid;
}

void cpc_store_info(struct cpc_store *store, struct cpc_store_info *info)
{
	cpc_mutex_lock(&store->lock);
	info->transid = store->super.transid;
	info->dropped_blocks = store->dropped_blocks;
	info->used_blocks = store->used_blocks - store->dropped_blocks;
	info->root_nodes = (uint64_t)store->super.root.nodes + store->super.free_log.nodes;
	info->nr_drops = store->nr_drops;
	cpc_mutex_unlock(&store->lock);
	info->pinned_blocks = atomic_load(&store->pinned_blocks);
}
