/* SPDX-License-Identifier: BSD-3-Clause */
#include "image.h"

#include <stdlib.h>

#include "backing/powercut.h"
#include "btree/btree.h"
#include "pool/pool.h"
#include "transaction/store.h"
#include "volume/volume.h"

#define KIB 1024u

/* --- bases --- */

static const struct {
	uint32_t nodesize;
	bool single, deleted, log, folded;
} bases[IMAGE_BASES] = {
    {4096, false, false, false, true},
    {4096, false, true, true, true},
    {4096, true, true, true, true},
    {16384, false, false, true, false},
};

static void must(int ret)
{
	cpc_assert(ret == 0);
}

/* Single blocks with holes between them: an item each. */
static void scatter(struct cpc_pool *pool, const char *name, unsigned nr, unsigned first)
{
	static uint8_t block[CPC_BLOCK_SIZE];
	struct cpc_volume *vol;

	must(cpc_pool_open_volume(pool, name, &vol));
	for (unsigned i = 0; i < nr; i++) {
		memset(block, (int)(first + i), sizeof(block));
		must(cpc_volume_write(vol, block, sizeof(block), (first + i * 2) * 4096ull, 0));
	}
	must(cpc_volume_flush(vol));
	cpc_pool_close_volume(pool, vol);
}

/* Left behind the last commit, so that it stands in the log alone. */
static void fill_log(struct cpc_pool *pool)
{
	struct cpc_volume *vol;

	must(cpc_pool_create_volume(pool, "logged", 300000, NULL));
	scatter(pool, "logged", 30, 1);
	scatter(pool, "big", 20, 1);
	must(cpc_pool_open_volume(pool, "big", &vol));
	must(cpc_volume_trim(vol, 64 * KIB, 128 * KIB, 0));
	must(cpc_volume_flush(vol));
	cpc_pool_close_volume(pool, vol);
	must(cpc_pool_rename(pool, "small", "renamed", NULL));
	must(cpc_pool_resize(pool, "big", 4 << 20, true, NULL));
	must(cpc_pool_resize(pool, "big", 200 * KIB, true, NULL));
	must(cpc_pool_create_volume(pool, "shortlived", 4096, NULL));
	must(cpc_pool_delete(pool, "shortlived", NULL));
}

/* Commits until the bitmap has been written to a home, which the free log's age brings about. */
static void age(struct cpc_pool *pool)
{
	for (unsigned i = 0; i < 20; i++) {
		scatter(pool, "small", 2, 0);
		must(cpc_pool_commit(pool));
	}
}

static void fill(struct cpc_pool *pool, unsigned nr)
{
	must(cpc_pool_create_volume(pool, "big", 8 << 20, NULL));
	must(cpc_pool_create_volume(pool, "small", 12345, NULL));
	scatter(pool, "big", 200, 0);
	scatter(pool, "small", 2, 0);
	must(cpc_pool_commit(pool));
	if (bases[nr].folded)
		age(pool);
	if (bases[nr].deleted) {
		must(cpc_pool_create_volume(pool, "gone", 8 << 20, NULL));
		scatter(pool, "gone", 160, 0);
		must(cpc_pool_commit(pool));
		must(cpc_pool_delete(pool, "gone", NULL));
		must(cpc_pool_commit(pool));
	}
	scatter(pool, "big", 10, 301);
	must(cpc_pool_commit(pool));
	if (bases[nr].log)
		fill_log(pool);
}

static void make_base(struct image *image, unsigned nr)
{
	struct cpc_format_options opts = {.nodesize = bases[nr].nodesize,
					  .single = bases[nr].single};
	struct cpc_pool_options pool_opts;
	struct cpc_powercut *pc;
	struct cpc_backing *b;
	struct cpc_pool *pool;

	must(cpc_powercut_create(IMAGE_BYTES, &pc));
	must(cpc_powercut_reopen(pc, &b));
	must(cpc_pool_format_backing(b, &opts, NULL));
	cpc_pool_options_init(&pool_opts);
	pool_opts.cache = CPC_CACHE_MIN;
	pool_opts.no_threads = true;
	must(cpc_pool_open_backing(b, &pool_opts, &pool, NULL));
	must(cpc_pool_start(pool, NULL));
	fill(pool, nr);
	cpc_powercut_kill(pc);
	cpc_pool_close(pool);
	cpc_powercut_peek(pc, 0, image->base, IMAGE_BYTES);
	cpc_powercut_destroy(pc);
}

/* --- what stands where --- */

static uint8_t *at(struct image *image, uint64_t bytenr)
{
	return image->device.bytes + bytenr;
}

static void find_nodes_below(struct image *image, unsigned parent);

static void add_node(struct image *image, uint64_t owner, const struct cpc_disk_ptr *disk)
{
	struct cpc_node_ptr ptr;

	cpc_ptr_decode(&ptr, disk);
	if (cpc_node_ptr_empty(&ptr))
		return;
	cpc_assert(image->nr_nodes < IMAGE_NODES);
	image->node[image->nr_nodes++] = (struct image_node){{ptr.bytenr[0], ptr.bytenr[1]}, owner};
	find_nodes_below(image, image->nr_nodes - 1);
}

/* The pointer in a value of the root tree, and the tree it belongs to. */
static struct cpc_disk_ptr *pointer_in(uint64_t key, uint8_t *value, uint32_t size, uint64_t *owner)
{
	uint64_t type = key >> CPC_KEY_TYPE_SHIFT;

	if (type == CPC_ITEM_VOLUME && size >= sizeof(struct cpc_disk_volume)) {
		*owner = CPC_TREE_VOLUME_BASE + (key & CPC_KEY_ID_MASK);
		return &((struct cpc_disk_volume *)value)->root;
	}
	if (type == CPC_ITEM_DROP && size >= sizeof(struct cpc_disk_drop)) {
		*owner = cpc_get_le64(&((struct cpc_disk_drop *)value)->owner);
		return &((struct cpc_disk_drop *)value)->ptr;
	}
	return NULL;
}

/* Item i of a leaf, whatever its bytes say. Return: its value, NULL when it is not in the node. */
static uint8_t *item_at(struct image *image, uint8_t *node, uint32_t i, uint64_t *key,
			uint32_t *size)
{
	struct cpc_disk_item *item = (struct cpc_disk_item *)(node + sizeof(struct cpc_disk_node));
	uint32_t offset;

	if (sizeof(struct cpc_disk_node) + (i + 1) * sizeof(*item) > image->geo.nodesize)
		return NULL;
	offset = cpc_get_le16(&item[i].offset);
	*key = cpc_get_le64(&item[i].key);
	*size = cpc_get_le16(&item[i].size);
	return offset + *size <= image->geo.nodesize ? node + offset : NULL;
}

static struct cpc_disk_child *child_at(struct image *image, uint8_t *node, uint32_t i)
{
	size_t offset = sizeof(struct cpc_disk_node) + i * sizeof(struct cpc_disk_child);

	return offset + sizeof(struct cpc_disk_child) > image->geo.nodesize
		   ? NULL
		   : (struct cpc_disk_child *)(node + offset);
}

static void for_each_pointer(struct image *image, uint8_t *node,
			     void (*fn)(struct image *image, uint64_t owner,
					struct cpc_disk_ptr *ptr))
{
	struct cpc_disk_node *header = (struct cpc_disk_node *)node;
	uint64_t owner = cpc_get_le64(&header->owner), key;
	uint32_t nr = cpc_get_le32(&header->nritems), size;

	for (uint32_t i = 0; i < nr; i++) {
		struct cpc_disk_child *child = header->level ? child_at(image, node, i) : NULL;
		uint8_t *value = header->level ? NULL : item_at(image, node, i, &key, &size);
		struct cpc_disk_ptr *ptr = child ? &child->ptr : NULL;

		if (!child && !value)
			return;
		if (value && owner == CPC_TREE_ROOT)
			ptr = pointer_in(key, value, size, &owner);
		if (ptr)
			fn(image, owner, ptr);
		owner = cpc_get_le64(&header->owner);
	}
}

static void add_child(struct image *image, uint64_t owner, struct cpc_disk_ptr *ptr)
{
	add_node(image, owner, ptr);
}

static void find_nodes_below(struct image *image, unsigned parent)
{
	for_each_pointer(image, at(image, image->node[parent].bytenr[0]), add_child);
}

static struct cpc_disk_super *super_at(struct image *image, unsigned ring)
{
	return (void *)at(image, cpc_geometry_super(&image->geo, ring, image->super.slot));
}

/* In a leaf of the root tree, calls fn for each group that there is. */
static void for_each_group(struct image *image, uint8_t *leaf,
			   void (*fn)(struct image *image, uint64_t group, uint8_t *value))
{
	uint32_t nr = cpc_get_le32(&((struct cpc_disk_node *)leaf)->nritems), size;
	uint64_t key;

	for (uint32_t i = 0; i < nr; i++) {
		uint8_t *value = item_at(image, leaf, i, &key, &size);

		if (!value)
			return;
		if (key >> CPC_KEY_TYPE_SHIFT == CPC_ITEM_GROUP &&
		    (key & CPC_KEY_ID_MASK) < image->geo.nr_groups &&
		    size >= sizeof(struct cpc_disk_group))
			fn(image, key & CPC_KEY_ID_MASK, value);
	}
}

static bool is_root_leaf(struct image *image, unsigned nr)
{
	const struct cpc_disk_node *header = (const void *)at(image, image->node[nr].bytenr[0]);

	return image->node[nr].owner == CPC_TREE_ROOT && header->level == 0;
}

static void note_group(struct image *image, uint64_t group, uint8_t *value)
{
	const struct cpc_disk_group *item = (const void *)value;

	image->group = (uint64_t)(value - image->device.bytes);
	image->bitmap = cpc_geometry_home(&image->geo, 0, group, item->home);
}

static void find_groups(struct image *image)
{
	for (unsigned i = 0; i < image->nr_nodes; i++) {
		if (is_root_leaf(image, i))
			for_each_group(image, at(image, image->node[i].bytenr[0]), note_group);
	}
}

static void find_records(struct image *image)
{
	uint64_t start = image->geo.log[0] << CPC_BLOCK_SHIFT;

	image->record = calloc(image->geo.log_blocks, sizeof(*image->record));
	cpc_assert(image->record);
	for (uint64_t i = 0; i < image->geo.log_blocks; i++) {
		struct cpc_disk_log_record *r = (void *)at(image, start + i * CPC_BLOCK_SIZE);

		if (cpc_get_le32(&r->magic) == CPC_LOG_MAGIC &&
		    cpc_get_le64(&r->nonce) == image->super.nonce &&
		    cpc_get_le64(&r->seq) > image->super.log_seq)
			image->record[image->nr_records++] = start + i * CPC_BLOCK_SIZE;
	}
}

void image_init(struct image *image, unsigned nr)
{
	struct cpc_backing *b;
	const char *why;

	image->base = aligned_alloc(CPC_BLOCK_SIZE, IMAGE_BYTES);
	cpc_assert(image->base);
	make_base(image, nr);
	device_init(&image->device, image->base, IMAGE_BYTES);
	b = device_open(&image->device);
	must(cpc_super_find(b, &image->super, &why));
	cpc_backing_close(b);
	must(cpc_geometry_init(&image->geo, image->super.total_bytes, image->super.log_size,
			       image->super.nodesize, image->super.incompat & CPC_INCOMPAT_DUP));
	add_node(image, CPC_TREE_ROOT, &super_at(image, 0)->root);
	add_node(image, CPC_TREE_FREE_LOG, &super_at(image, 0)->free_log);
	find_groups(image);
	cpc_assert(!bases[nr].folded == !image->group);
	find_records(image);
}

void image_destroy(struct image *image)
{
	device_destroy(&image->device);
	free(image->record);
	free(image->base);
}

void image_reset(struct image *image)
{
	device_reset(&image->device);
}

/* --- changes --- */

/* Where a structure stands, and how many bytes of it there are. */
typedef uint8_t *(*find_fn)(struct image *image, const struct image_change *c, size_t *len);

static uint8_t *find_super(struct image *image, const struct image_change *c, size_t *len)
{
	*len = 328;
	return (uint8_t *)super_at(image, 0);
}

static uint8_t *node_of(struct image *image, const struct image_change *c)
{
	return at(image, image->node[c->instance % image->nr_nodes].bytenr[0]);
}

static uint8_t *find_header(struct image *image, const struct image_change *c, size_t *len)
{
	*len = sizeof(struct cpc_disk_node);
	return node_of(image, c);
}

static uint32_t slot_in(const uint8_t *node, uint8_t slot)
{
	uint32_t nr = cpc_get_le32(&((const struct cpc_disk_node *)node)->nritems);

	return nr ? slot % nr : 0;
}

/* An item of a leaf or a child of an inner node. */
static uint8_t *find_slot(struct image *image, const struct image_change *c, size_t *len)
{
	uint8_t *node = node_of(image, c);
	bool inner = ((struct cpc_disk_node *)node)->level;
	uint32_t slot = slot_in(node, c->slot);

	*len = inner ? sizeof(struct cpc_disk_child) : sizeof(struct cpc_disk_item);
	if ((slot + 1) * *len > image->geo.nodesize - sizeof(struct cpc_disk_node))
		slot = 0;
	return node + sizeof(struct cpc_disk_node) + slot * *len;
}

static uint8_t *find_value(struct image *image, const struct image_change *c, size_t *len)
{
	uint8_t *node = node_of(image, c), *value;
	uint32_t size = 0;
	uint64_t key;

	value = item_at(image, node, slot_in(node, c->slot), &key, &size);
	if (!value || size < 8)
		return find_slot(image, c, len);
	*len = size;
	return value;
}

static uint8_t *find_bitmap(struct image *image, const struct image_change *c, size_t *len)
{
	if (!image->group)
		return find_super(image, c, len);
	*len = CPC_BLOCK_SIZE;
	return at(image, image->bitmap);
}

static uint8_t *find_group(struct image *image, const struct image_change *c, size_t *len)
{
	if (!image->group)
		return find_super(image, c, len);
	*len = sizeof(struct cpc_disk_group);
	return at(image, image->group);
}

static uint8_t *find_record(struct image *image, const struct image_change *c, size_t *len)
{
	if (!image->nr_records)
		return find_super(image, c, len);
	*len = sizeof(struct cpc_disk_log_record);
	return at(image, image->record[c->instance % image->nr_records]);
}

static uint8_t *find_entry(struct image *image, const struct image_change *c, size_t *len)
{
	uint8_t *record = find_record(image, c, len), *entry = record + *len;

	if (!image->nr_records)
		return record;
	for (unsigned i = 0; i < c->slot % 16u; i++) {
		uint32_t size = cpc_get_le16(&((struct cpc_disk_log_entry *)entry)->size);

		if (!size ||
		    entry + size + sizeof(struct cpc_disk_log_entry) > record + CPC_BLOCK_SIZE)
			break;
		entry += size;
	}
	*len = sizeof(struct cpc_disk_log_entry);
	return entry;
}

static const find_fn finders[IMAGE_STRUCTURES] = {
    [IMAGE_SUPER] = find_super,	  [IMAGE_HEADER] = find_header, [IMAGE_SLOT] = find_slot,
    [IMAGE_BITMAP] = find_bitmap, [IMAGE_VALUE] = find_value,	[IMAGE_GROUP] = find_group,
    [IMAGE_RECORD] = find_record, [IMAGE_ENTRY] = find_entry,
};

static uint64_t get(const uint8_t *p, unsigned width)
{
	uint64_t v = 0;

	memcpy(&v, p, width);
	return le64toh(v);
}

static void put(uint8_t *p, unsigned width, uint64_t v)
{
	v = htole64(v);
	memcpy(p, &v, width);
}

static uint64_t interesting(struct image *image, uint32_t v)
{
	const uint64_t values[] = {
	    0,
	    1,
	    UINT64_MAX,
	    1ull << 63,
	    (1ull << 63) - 4096,
	    1ull << 62,
	    1ull << 51,
	    UINT32_MAX,
	    1ull << 31,
	    65535,
	    256,
	    257,
	    IMAGE_BYTES,
	    IMAGE_BYTES - 4096,
	    image->geo.data_start << CPC_BLOCK_SHIFT,
	    image->geo.data_end << CPC_BLOCK_SHIFT,
	    (image->geo.data_end - 1) << CPC_BLOCK_SHIFT,
	    image->geo.log[0] << CPC_BLOCK_SHIFT,
	    image->geo.super[1] << CPC_BLOCK_SHIFT,
	    image->super.transid,
	    image->super.transid + 1,
	};

	return values[v % CPC_ARRAY_SIZE(values)];
}

/* `other`: the same field of the structure that `value` names. */
static uint64_t new_value(struct image *image, const struct image_change *c, uint64_t old,
			  uint64_t other)
{
	uint32_t v = (uint32_t)get(c->value, 4);

	switch (c->how % 8) {
	case 0:
		return v;
	case 1:
		return interesting(image, v);
	case 2:
		return old + 1;
	case 3:
		return old - 1;
	case 4:
		return old ^ 1ull << v % 64;
	case 5:
		return (uint64_t)v << CPC_BLOCK_SHIFT;
	case 6:
		return old + (int64_t)(int32_t)v * CPC_BLOCK_SIZE;
	default:
		return other;
	}
}

/* Bits of a change: `what` is structure (3), log2 of the width (2), place (2), 0; `how` is value
 * (3), place (5); the last byte of `value` is the highest part of the place. */
static unsigned width_of(const struct image_change *c)
{
	return 1u << c->what / 8 % 4;
}

static unsigned offset_of(const struct image_change *c)
{
	return c->value[3] * 128u + c->how / 8u * 4 + c->what / 32u % 4;
}

void image_change_at(struct image_change *c, unsigned offset, unsigned width)
{
	cpc_assert(offset <= IMAGE_OFFSET_MAX);
	c->what =
	    (uint8_t)(c->what % IMAGE_STRUCTURES | __builtin_ctz(width) << 3 | offset % 4 << 5);
	c->how = (uint8_t)(c->how % 8 | offset / 4 % 32 << 3);
	c->value[3] = (uint8_t)(offset / 128);
}

void image_change(struct image *image, const struct image_change *c)
{
	find_fn find = finders[c->what % IMAGE_STRUCTURES];
	unsigned width = width_of(c);
	struct image_change that = *c;
	size_t len, other_len, offset;
	uint8_t *p, *other;

	p = find(image, c, &len);
	that.instance = c->value[0];
	that.slot = c->value[1];
	other = find(image, &that, &other_len);
	offset = offset_of(c) % (len - width + 1);
	if (offset + width > other_len)
		other = p;
	device_touch(&image->device, (uint64_t)(p - image->device.bytes), len);
	if (c->how % 8 == 7 && c->value[2] % 2 && other_len >= len)
		memmove(p, other, len); /* all of it */
	else
		put(p + offset, width,
		    new_value(image, c, get(p + offset, width), get(other + offset, width)));
}

void image_put_entries(struct image *image, const uint8_t *entries, size_t len, uint32_t nr)
{
	struct cpc_disk_log_record *r;
	uint64_t bytenr = image->record[0];

	device_touch(&image->device, bytenr, CPC_BLOCK_SIZE);
	r = (void *)at(image, bytenr);
	memset(r + 1, 0, CPC_BLOCK_SIZE - sizeof(*r));
	memcpy(r + 1, entries, cpc_min_u64(len, CPC_BLOCK_SIZE - sizeof(*r)));
	cpc_put_le32(&r->length, CPC_BLOCK_SIZE);
	cpc_put_le32(&r->nr_entries, nr);
}

void image_put_super(struct image *image, const uint8_t *fields, size_t len)
{
	struct cpc_disk_super *disk = super_at(image, 0);

	device_touch(&image->device, (uint64_t)((uint8_t *)disk - image->device.bytes),
		     sizeof(*disk));
	memcpy(&disk->version, fields, cpc_min_u64(len, sizeof(*disk) - 12));
}

/* --- sealing --- */

static const uint8_t *named_node(struct image *image, uint64_t bytenr)
{
	if (bytenr % CPC_BLOCK_SIZE || bytenr > IMAGE_BYTES - image->geo.nodesize)
		return NULL;
	return at(image, bytenr);
}

static void seal_pointer(struct image *image, uint64_t owner, struct cpc_disk_ptr *ptr)
{
	const struct cpc_disk_node *header =
	    (const void *)named_node(image, cpc_get_le64(&ptr->bytenr));

	if (!header)
		return;
	ptr->csum = header->csum;
	if (image->seal_flags & IMAGE_SEAL_POINTERS)
		ptr->generation = header->generation;
}

/* Gives each block of a mapping the checksum of what stands there. */
static void seal_data(struct image *image, uint8_t *node)
{
	struct cpc_disk_node *header = (struct cpc_disk_node *)node;
	uint32_t nr = cpc_get_le32(&header->nritems), size;
	uint64_t key;

	for (uint32_t i = 0; i < nr; i++) {
		struct cpc_disk_extent *e = (void *)item_at(image, node, i, &key, &size);
		uint64_t bytenr;

		if (!e || size < sizeof(*e))
			return;
		bytenr = cpc_get_le64(&e->bytenr);
		for (uint32_t k = 0; k < (size - sizeof(*e)) / 4; k++, bytenr += CPC_BLOCK_SIZE) {
			if (bytenr % CPC_BLOCK_SIZE || bytenr >= IMAGE_BYTES)
				break;
			cpc_put_le32(&e->csum[k], cpc_csum(at(image, bytenr), CPC_BLOCK_SIZE));
		}
	}
}

/* Gives a group's item the checksum of the bitmap that it names. */
static void seal_group(struct image *image, uint64_t group, uint8_t *value)
{
	struct cpc_disk_group *item = (struct cpc_disk_group *)value;
	uint64_t home[2];

	if (item->home > 1)
		return;
	for (unsigned copy = 0; copy < image->geo.copies; copy++)
		home[copy] = cpc_geometry_home(&image->geo, copy, group, item->home);
	cpc_put_le32(&item->csum,
		     cpc_bitmap_csum(image->super.uuid, group, cpc_get_le64(&item->generation),
				     at(image, home[0])));
	if (image->geo.copies == 1)
		return;
	device_touch(&image->device, home[1], CPC_BLOCK_SIZE);
	memcpy(at(image, home[1]), at(image, home[0]), CPC_BLOCK_SIZE);
}

static void seal_node(struct image *image, unsigned nr, unsigned flags)
{
	const struct image_node *n = &image->node[nr];
	struct cpc_disk_node *header = (void *)at(image, n->bytenr[0]);
	uint32_t size = image->geo.nodesize;

	device_touch(&image->device, n->bytenr[0], size);
	for_each_pointer(image, (uint8_t *)header, seal_pointer);
	if (flags & IMAGE_SEAL_DATA && !header->level && n->owner >= CPC_TREE_VOLUME_BASE)
		seal_data(image, (uint8_t *)header);
	if (flags & IMAGE_SEAL_BITMAPS && is_root_leaf(image, nr))
		for_each_group(image, (uint8_t *)header, seal_group);
	cpc_put_le32(&header->csum,
		     cpc_csum_without_field(header, size, offsetof(struct cpc_disk_node, csum)));
	if (!n->bytenr[1])
		return;
	device_touch(&image->device, n->bytenr[1], size);
	memcpy(at(image, n->bytenr[1]), header, size);
}

static void seal_record(struct image *image, uint64_t bytenr)
{
	uint64_t ring = image->geo.log_blocks << CPC_BLOCK_SHIFT;
	uint64_t offset = bytenr - (image->geo.log[0] << CPC_BLOCK_SHIFT);
	uint64_t second = (image->geo.log[1] << CPC_BLOCK_SHIFT) + offset;
	struct cpc_disk_log_record *r = (void *)at(image, bytenr);
	uint64_t len = cpc_get_le32(&r->length);

	len = cpc_min_u64(cpc_max_u64(len, sizeof(*r)), ring - offset);
	device_touch(&image->device, bytenr, len);
	device_touch(&image->device, second, len);
	cpc_put_le32(&r->csum,
		     cpc_csum_without_field(r, len, offsetof(struct cpc_disk_log_record, csum)));
	memcpy(at(image, second), r, len);
}

static void seal_super(struct image *image)
{
	struct cpc_disk_super *disk = super_at(image, 0), *second = super_at(image, 1);

	device_touch(&image->device, (uint64_t)((uint8_t *)disk - image->device.bytes),
		     sizeof(*disk));
	device_touch(&image->device, (uint64_t)((uint8_t *)second - image->device.bytes),
		     sizeof(*disk));
	seal_pointer(image, CPC_TREE_ROOT, &disk->root);
	seal_pointer(image, CPC_TREE_FREE_LOG, &disk->free_log);
	cpc_put_le32(&disk->csum, cpc_csum_without_field(disk, sizeof(*disk),
							 offsetof(struct cpc_disk_super, csum)));
	memcpy(second, disk, sizeof(*disk));
}

void image_seal(struct image *image, unsigned flags)
{
	image->seal_flags = flags;
	for (unsigned i = 0; i < image->nr_records; i++)
		seal_record(image, image->record[i]);
	for (unsigned i = image->nr_nodes; i-- > 0;)
		seal_node(image, i, flags);
	seal_super(image);
}
