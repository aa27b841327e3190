/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Why this way: a checksum says that a node is what somebody wrote, not that it makes sense; a
 * hostile image has good checksums. So every count, offset, size, address and sum is compared
 * with its limits here, once, when a node enters memory and before one leaves it. After that all
 * code uses nodes without a second look: it cannot run out of a node, overflow a key, or be sent to
 * an address outside the pool's data area.
 *
 * Normal path. Header, then the slots in one pass: each key must be at least the end of what the
 * slot before covers, each value must end where the one before begins. Then the bytes that nothing
 * uses must be zero. What is compared with other nodes (keys of the parent, sums) is not known
 * here: see reading.c.
 *
 * Rejected: a message with numbers (the cache logs the address, and a node is easily dumped);
 * checking values when they are used (many places, and each would need an error path).
 */
#include "btree/btree-internal.h"

#include "lib/mutation.h"

struct check {
	const uint8_t *node;
	uint32_t nodesize;
	uint32_t nr;
	const struct cpc_geometry *geo;
	uint64_t data_start, data_end; /* bytes */
	uint64_t generation, owner;
};

#define ALL_ZERO(array) cpc_all_zero(array, sizeof(array))

/* True when [bytenr, bytenr + len) may be handed out by the allocator. len is not 0. */
static inline bool in_data(const struct check *c, uint64_t bytenr, uint64_t len)
{
	return bytenr % CPC_BLOCK_SIZE == 0 && bytenr >= c->data_start && bytenr < c->data_end &&
	       len <= c->data_end - bytenr;
}

static bool volume_id_valid(uint64_t id)
{
	return id >= 1 && id <= UINT32_MAX;
}

/* --- pointers --- */

static const char *check_copies(const struct check *c, const struct cpc_node_ptr *ptr)
{
	uint64_t low = cpc_min_u64(ptr->bytenr[0], ptr->bytenr[1]);
	uint64_t high = cpc_max_u64(ptr->bytenr[0], ptr->bytenr[1]);

	if (!in_data(c, ptr->bytenr[0], c->nodesize))
		return "pointer: address outside the data area";
	if (c->geo->copies == 1)
		return ptr->bytenr[1] ? "pointer: second address with one copy" : NULL;
	if (!in_data(c, ptr->bytenr[1], c->nodesize))
		return "pointer: second address outside the data area";
	return high - low < c->nodesize ? "pointer: copies overlap" : NULL;
}

static const char *check_sums(const struct check *c, const struct cpc_node_ptr *ptr, bool maps_data)
{
	if (ptr->nodes < ptr->level + 1u || ptr->nodes > c->geo->nr_blocks ||
	    (ptr->level == 0 && ptr->nodes != 1))
		return "pointer: number of nodes";
	if (ptr->data_blocks > c->geo->nr_blocks || (ptr->data_blocks > 0) != maps_data)
		return "pointer: number of data blocks";
	return NULL;
}

static const char *check_ptr(const struct check *c, const struct cpc_disk_ptr *disk, bool maps_data)
{
	struct cpc_node_ptr ptr;
	const char *why;

	cpc_ptr_decode(&ptr, disk);
	if (!ALL_ZERO(disk->reserved))
		return "pointer: reserved bytes";
	if (ptr.level > CPC_MAX_LEVEL)
		return "pointer: level";
	if (ptr.generation == 0 || ptr.generation > c->generation)
		return "pointer: generation";
	why = check_copies(c, &ptr);
	return why ? why : check_sums(c, &ptr, maps_data);
}

/* A tree's root: may be empty, all zero. */
static const char *check_root(const struct check *c, const struct cpc_disk_ptr *disk,
			      bool maps_data)
{
	if (cpc_all_zero((const uint8_t *)disk, sizeof(*disk)))
		return NULL;
	return check_ptr(c, disk, maps_data);
}

/* --- values of the root tree --- */

static const char *check_volume_sizes(const struct check *c, const struct cpc_disk_volume *v)
{
	uint64_t size = cpc_get_le64(&v->size), gen = c->generation;

	if (size == 0 || size > CPC_VOLUME_SIZE_MAX)
		return "volume: size";
	if (cpc_get_le64(&v->flags) & ~(uint64_t)CPC_VOLUME_READONLY)
		return "volume: unknown flags";
	if (cpc_get_le64(&v->generation) > gen || cpc_get_le64(&v->limit) > gen ||
	    cpc_get_le64(&v->snapshot_of) > gen)
		return "volume: generation";
	if (cpc_get_le64(&v->origin) > UINT32_MAX)
		return "volume: origin";
	if (cpc_get_le64(&v->dead_blocks) > c->geo->nr_blocks)
		return "volume: dead blocks";
	return NULL;
}

static const char *check_volume(const struct check *c, uint64_t id, const void *value,
				uint32_t size)
{
	const struct cpc_disk_volume *v = value;
	const char *why;

	if (!volume_id_valid(id))
		return "volume: id";
	if (size < sizeof(*v) || size != sizeof(*v) + v->name_len)
		return "volume: item size";
	if (!cpc_name_valid((const char *)v->name, v->name_len))
		return "volume: name";
	if (!ALL_ZERO(v->reserved))
		return "volume: reserved bytes";
	why = check_volume_sizes(c, v);
	return why ? why : check_root(c, &v->root, true);
}

static const char *check_group(const struct check *c, uint64_t id, const void *value, uint32_t size)
{
	const struct cpc_disk_group *g = value;
	uint64_t generation;

	if (id >= c->geo->nr_groups)
		return "group: index";
	if (size != sizeof(*g))
		return "group: item size";
	generation = cpc_get_le64(&g->generation);
	if (generation == 0 || generation > c->generation)
		return "group: generation";
	if (g->home > 1)
		return "group: home";
	if (cpc_get_le32(&g->used) > cpc_geometry_group_blocks(c->geo, id))
		return "group: used blocks";
	return ALL_ZERO(g->reserved) ? NULL : "group: reserved bytes";
}

static const char *check_drop(const struct check *c, const void *value, uint32_t size)
{
	const struct cpc_disk_drop *d = value;
	uint64_t owner;

	if (size != sizeof(*d))
		return "drop: item size";
	owner = cpc_get_le64(&d->owner);
	if (owner != CPC_TREE_DEAD &&
	    (owner <= CPC_TREE_VOLUME_BASE || !volume_id_valid(owner - CPC_TREE_VOLUME_BASE)))
		return "drop: owner";
	if (cpc_get_le64(&d->limit) > c->generation)
		return "drop: limit";
	if (cpc_get_le64(&d->dead_to) > UINT32_MAX)
		return "drop: volume of the dead list";
	return check_ptr(c, &d->ptr, cpc_owner_maps_data(owner));
}

static const char *check_dead(const struct check *c, uint64_t id, const void *value, uint32_t size)
{
	const struct cpc_disk_dead *d = value;

	if (!volume_id_valid(id >> 16))
		return "dead bucket: volume id";
	if (size != sizeof(*d))
		return "dead bucket: item size";
	if (cpc_get_le64(&d->birth_min) > cpc_get_le64(&d->birth_max))
		return "dead bucket: birth interval";
	if (cpc_get_le64(&d->blocks) > c->geo->nr_blocks)
		return "dead bucket: blocks";
	return check_root(c, &d->root, false);
}

static const char *check_delta(const struct check *c, uint64_t id, const void *value, uint32_t size)
{
	const struct cpc_disk_delta *d = value;

	if (!volume_id_valid(id))
		return "delta: volume id";
	if (size != sizeof(*d))
		return "delta: item size";
	if (cpc_get_le64(&d->entries) == 0)
		return "delta: no entries";
	return check_ptr(c, &d->root, true);
}

static const char *check_root_item(const struct check *c, uint64_t key, const void *value,
				   uint32_t size)
{
	uint64_t id = key & CPC_KEY_ID_MASK;

	switch (key >> CPC_KEY_TYPE_SHIFT) {
	case CPC_ITEM_VOLUME:
		return check_volume(c, id, value, size);
	case CPC_ITEM_GROUP:
		return check_group(c, id, value, size);
	case CPC_ITEM_DROP:
		return check_drop(c, value, size);
	case CPC_ITEM_DEAD:
		return check_dead(c, id, value, size);
	case CPC_ITEM_DELTA:
		return check_delta(c, id, value, size);
	default:
		return "unknown type of item";
	}
}

/* --- values of the other trees --- */

static const char *check_free_log(const struct check *c, const void *value, uint32_t size)
{
	const struct cpc_disk_free_log *log = value;
	uint64_t transid;
	uint32_t nr;

	if (size <= sizeof(*log) || (size - sizeof(*log)) % sizeof(log->entry[0]))
		return "free log: item size";
	transid = cpc_get_le64(&log->transid);
	if (transid == 0 || transid > c->generation)
		return "free log: transid";
	nr = (uint32_t)((size - sizeof(*log)) / sizeof(log->entry[0]));
	for (uint32_t i = 0; i < nr; i++) {
		uint64_t block = cpc_get_le64(&log->entry[i].block);
		uint32_t count = cpc_get_le32(&log->entry[i].count) & ~CPC_FREE_ENTRY_FREED;

		if (block < c->geo->data_start || block >= c->geo->data_end || count == 0 ||
		    count > c->geo->data_end - block)
			return "free log: entry outside the data area";
	}
	return NULL;
}

static const char *check_dead_run(const struct check *c, uint64_t key, const void *value,
				  uint32_t size)
{
	const struct cpc_disk_dead_run *run = value;
	uint32_t blocks;

	if (size != sizeof(*run))
		return "dead run: item size";
	blocks = cpc_get_le32(&run->blocks);
	if (key < c->geo->data_start || key >= c->geo->data_end || blocks == 0 ||
	    blocks > CPC_GROUP_BLOCKS || blocks > c->geo->data_end - key)
		return "dead run: outside the data area";
	return NULL;
}

static inline const char *check_extent(const struct check *c, uint64_t key, const void *value,
				       uint32_t size)
{
	const struct cpc_disk_extent *e = value;
	uint64_t birth, nr;

	if (size <= sizeof(*e) || size % sizeof(e->csum[0]) ||
	    size > cpc_extent_value_size(CPC_EXTENT_MAX_BLOCKS))
		return "extent: item size";
	nr = cpc_item_len(c->owner, size);
	if (key > (CPC_VOLUME_SIZE_MAX >> CPC_BLOCK_SHIFT) - nr)
		return "extent: beyond the largest volume";
	if (!in_data(c, cpc_get_le64(&e->bytenr), nr << CPC_BLOCK_SHIFT))
		return "extent: outside the data area";
	birth = cpc_get_le64(&e->birth);
	return birth == 0 || birth > c->generation ? "extent: birth" : NULL;
}

static const char *check_value(const struct check *c, uint64_t key, const void *value,
			       uint32_t size)
{
	switch (c->owner) {
	case CPC_TREE_ROOT:
		return check_root_item(c, key, value, size);
	case CPC_TREE_FREE_LOG:
		return check_free_log(c, value, size);
	case CPC_TREE_DEAD:
		return check_dead_run(c, key, value, size);
	default:
		return check_extent(c, key, value, size);
	}
}

/* --- nodes --- */

/*
 * A value ends where the one before begins, and not in the table: what follows reads it, and the
 * bytes between, unseen. The limit is what the free log's could break, whose number of entries has
 * no other. That a value is not empty, each kind of value sees to.
 */
static inline bool place_is_right(uint32_t offset, uint32_t size, uint32_t table, uint32_t tail)
{
	return (offset + size == tail || CPC_MUTANT(values_stand_anywhere)) &&
	       (offset >= table || CPC_MUTANT(values_over_the_table)) &&
	       (size <= CPC_ITEM_MAX_SIZE || CPC_MUTANT(values_of_any_size));
}

static const char *check_leaf(const struct check *c)
{
	const struct cpc_disk_item *items = cpc_node_items(c->node);
	uint32_t table = sizeof(struct cpc_disk_node) + c->nr * (uint32_t)sizeof(*items);
	uint32_t tail = c->nodesize;
	uint64_t low = 0;

	for (uint32_t i = 0; i < c->nr; i++) {
		uint64_t key = cpc_get_le64(&items[i].key);
		uint32_t offset = cpc_get_le16(&items[i].offset);
		uint32_t size = cpc_get_le16(&items[i].size);
		const char *why;

		if (key < low || key == UINT64_MAX)
			return "leaf: keys not ascending or overlapping";
		if (!place_is_right(offset, size, table, tail))
			return "leaf: place of a value";
		why = cpc_owner_maps_data(c->owner) ? check_extent(c, key, c->node + offset, size)
						    : check_value(c, key, c->node + offset, size);
		if (why)
			return why;
		low = key + cpc_item_len(c->owner, size);
		tail = offset;
	}
	return cpc_all_zero(c->node + table, tail - table) ? NULL
							   : "leaf: bytes between table and values";
}

static const char *check_inner(const struct check *c, unsigned level)
{
	const struct cpc_disk_child *child = cpc_node_children(c->node);
	uint32_t end = sizeof(struct cpc_disk_node) + c->nr * (uint32_t)sizeof(*child);
	bool maps_data = cpc_owner_maps_data(c->owner);
	uint64_t low = 0;

	for (uint32_t i = 0; i < c->nr; i++) {
		uint64_t key = cpc_get_le64(&child[i].key);
		const char *why;

		if (key < low || key == UINT64_MAX)
			return "node: keys not ascending";
		if (child[i].ptr.level != level - 1)
			return "node: level of a child";
		why = check_ptr(c, &child[i].ptr, maps_data);
		if (why)
			return why;
		low = key + 1;
	}
	return cpc_all_zero(c->node + end, c->nodesize - end) ? NULL
							      : "node: bytes after the children";
}

static const char *check_header(struct check *c)
{
	const struct cpc_disk_node *header = cpc_node_header(c->node);
	uint32_t slot =
	    header->level ? sizeof(struct cpc_disk_child) : sizeof(struct cpc_disk_item);

	c->nr = cpc_get_le32(&header->nritems);
	c->generation = cpc_get_le64(&header->generation);
	c->owner = cpc_get_le64(&header->owner);
	if (cpc_get_le32(&header->magic) != CPC_NODE_MAGIC)
		return "header: magic";
	if (!ALL_ZERO(header->reserved))
		return "header: reserved bytes";
	if (header->level > CPC_MAX_LEVEL)
		return "header: level";
	if (c->generation == 0)
		return "header: generation";
	if ((c->owner < CPC_TREE_ROOT || c->owner > CPC_TREE_DEAD) &&
	    (c->owner <= CPC_TREE_VOLUME_BASE || !volume_id_valid(c->owner - CPC_TREE_VOLUME_BASE)))
		return "header: owner";
	if (!in_data(c, cpc_get_le64(&header->bytenr), c->nodesize))
		return "header: address";
	if (c->nr == 0 || c->nr > (c->nodesize - sizeof(*header)) / slot)
		return "header: number of items";
	return NULL;
}

const char *cpc_tree_check_node(const void *node, uint32_t nodesize, const struct cpc_geometry *geo)
{
	struct check c = {
	    .node = node,
	    .nodesize = nodesize,
	    .geo = geo,
	    .data_start = geo->data_start << CPC_BLOCK_SHIFT,
	    .data_end = geo->data_end << CPC_BLOCK_SHIFT,
	};
	const char *why = check_header(&c);

	if (why)
		return why;
	return cpc_node_header(node)->level ? check_inner(&c, cpc_node_header(node)->level)
					    : check_leaf(&c);
}
