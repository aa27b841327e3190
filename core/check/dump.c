/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * dump: prints structures for people who look for a bug.
 *
 * Trees are read through a small read-only node cache, so what is printed is what the engine
 * would see: the first copy that verifies. Single blocks are printed as they stand, verified or
 * not: that is what one looks at when something does not verify.
 */
#include "check/check-internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/hooks.h"

#define CACHE_BYTES (1u << 20)

struct dump {
	struct cpc_backing *backing;
	void (*out)(void *ctx, const char *line);
	void *ctx;
	struct cpc_super super;
	struct cpc_geometry geo;
	struct cpc_eb_cache *cache;
	struct cpc_blockset seen; /* nodes printed, so that a tree of shared nodes ends */
	uint8_t *block;		  /* 4096 bytes */
};

static void say(struct dump *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void say(struct dump *d, const char *fmt, ...)
{
	char line[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	d->out(d->ctx, line);
}

/* "name: bytenr 1+2 generation 3 level 4 nodes 5 data 6 csum 7" */
static void say_ptr(struct dump *d, const char *indent, const char *name,
		    const struct cpc_node_ptr *ptr)
{
	if (cpc_node_ptr_empty(ptr)) {
		say(d, "%s%s: empty", indent, name);
		return;
	}
	say(d,
	    "%s%s: bytenr %" PRIu64 " and %" PRIu64 " generation %" PRIu64
	    " level %u nodes %u data_blocks %" PRIu64 " csum %#x",
	    indent, name, ptr->bytenr[0], ptr->bytenr[1], ptr->generation, ptr->level, ptr->nodes,
	    ptr->data_blocks, ptr->csum);
}

/* --- superblocks --- */

static void dump_super_fields(struct dump *d, const struct cpc_super *s)
{
	char uuid[37];

	cpc_uuid_format(s->uuid, uuid);
	say(d, "  uuid %s label \"%s\" flags %#x", uuid, s->label, s->flags);
	say(d, "  compat %#" PRIx64 " compat_ro %#" PRIx64 " incompat %#" PRIx64, s->compat,
	    s->compat_ro, s->incompat);
	say(d, "  total_bytes %" PRIu64 " nodesize %u log_size %" PRIu64 " created %" PRIu64,
	    s->total_bytes, s->nodesize, s->log_size, s->created);
	say(d, "  nonce %#" PRIx64 " used_blocks %" PRIu64, s->nonce, s->used_blocks);
	say(d, "  next_volume %" PRIu64 " next_drop %" PRIu64 " next_free_log %" PRIu64,
	    s->next_volume, s->next_drop, s->next_free_log);
	say(d, "  log_position %" PRIu64 " log_seq %" PRIu64 " log_durable %" PRIu64,
	    s->log_position, s->log_seq, s->log_durable);
	say_ptr(d, "  ", "root", &s->root);
	say_ptr(d, "  ", "free_log", &s->free_log);
}

static void dump_slot(struct dump *d, unsigned ring, uint32_t slot, bool in_full)
{
	uint64_t bytenr = cpc_geometry_super(&d->geo, ring, slot);
	const char *why = "cannot be read";
	struct cpc_super super;
	int ret = cpc_backing_read(d->backing, bytenr, d->block, CPC_BLOCK_SIZE);

	if (!ret)
		ret = cpc_super_decode(&super, (const void *)d->block, slot,
				       cpc_backing_size(d->backing), &why);
	if (ret) {
		say(d, "ring %u slot %u at %" PRIu64 ": %s", ring, slot, bytenr, why);
		return;
	}
	say(d, "ring %u slot %u at %" PRIu64 ": transid %" PRIu64 "%s", ring, slot, bytenr,
	    super.transid, super.transid == d->super.transid ? " (newest)" : "");
	if (in_full)
		dump_super_fields(d, &super);
}

static int dump_supers(struct dump *d)
{
	for (unsigned ring = 0; ring < 2; ring++) {
		for (uint32_t slot = 0; slot < CPC_SUPER_SLOTS; slot++)
			dump_slot(d, ring, slot, slot == d->super.slot);
	}
	return 0;
}

/* --- items --- */

static void dump_volume(struct dump *d, uint64_t id, const struct cpc_disk_volume *v)
{
	struct cpc_node_ptr root;
	char uuid[37];

	cpc_uuid_format(v->uuid, uuid);
	say(d, "  volume %" PRIu64 " \"%.*s\" size %" PRIu64 " flags %#" PRIx64 " uuid %s", id,
	    (int)v->name_len, (const char *)v->name, cpc_get_le64(&v->size),
	    cpc_get_le64(&v->flags), uuid);
	say(d,
	    "    created %" PRIu64 " generation %" PRIu64 " limit %" PRIu64 " origin %" PRIu64
	    " snapshot_of %" PRIu64 " dead_blocks %" PRIu64,
	    cpc_get_le64(&v->created), cpc_get_le64(&v->generation), cpc_get_le64(&v->limit),
	    cpc_get_le64(&v->origin), cpc_get_le64(&v->snapshot_of), cpc_get_le64(&v->dead_blocks));
	cpc_ptr_decode(&root, &v->root);
	say_ptr(d, "    ", "root", &root);
}

static void dump_drop(struct dump *d, uint64_t id, const struct cpc_disk_drop *drop)
{
	struct cpc_node_ptr ptr;

	say(d, "  drop %" PRIu64 " owner %" PRIu64 " limit %" PRIu64 " dead_to %" PRIu64, id,
	    cpc_get_le64(&drop->owner), cpc_get_le64(&drop->limit), cpc_get_le64(&drop->dead_to));
	cpc_ptr_decode(&ptr, &drop->ptr);
	say_ptr(d, "    ", "subtree", &ptr);
}

static void dump_dead(struct dump *d, uint64_t id, const struct cpc_disk_dead *dead)
{
	struct cpc_node_ptr ptr;

	say(d,
	    "  dead bucket %" PRIu64 " of volume %" PRIu64 " births %" PRIu64 " to %" PRIu64
	    " blocks %" PRIu64,
	    id & 0xffff, id >> 16, cpc_get_le64(&dead->birth_min), cpc_get_le64(&dead->birth_max),
	    cpc_get_le64(&dead->blocks));
	cpc_ptr_decode(&ptr, &dead->root);
	say_ptr(d, "    ", "root", &ptr);
}

static void dump_root_item(struct dump *d, uint64_t key, const void *value)
{
	const struct cpc_disk_group *group = value;
	uint64_t id = key & CPC_KEY_ID_MASK;

	switch (key >> CPC_KEY_TYPE_SHIFT) {
	case CPC_ITEM_VOLUME:
		dump_volume(d, id, value);
		break;
	case CPC_ITEM_GROUP:
		say(d, "  group %" PRIu64 " generation %" PRIu64 " home %u used %u csum %#x", id,
		    cpc_get_le64(&group->generation), group->home, cpc_get_le32(&group->used),
		    cpc_get_le32(&group->csum));
		break;
	case CPC_ITEM_DROP:
		dump_drop(d, id, value);
		break;
	case CPC_ITEM_DEAD:
		dump_dead(d, id, value);
		break;
	default:
		say(d, "  key %#" PRIx64, key);
	}
}

static void dump_free_log_item(struct dump *d, uint64_t key, const struct cpc_disk_free_log *log,
			       uint32_t size)
{
	size_t nr = (size - sizeof(*log)) / sizeof(log->entry[0]);

	say(d, "  item %" PRIu64 " transid %" PRIu64, key, cpc_get_le64(&log->transid));
	for (size_t i = 0; i < nr; i++) {
		uint32_t count = cpc_get_le32(&log->entry[i].count);

		say(d, "    %s blocks %" PRIu64 "+%u",
		    count & CPC_FREE_ENTRY_FREED ? "freed" : "allocated",
		    cpc_get_le64(&log->entry[i].block), count & ~CPC_FREE_ENTRY_FREED);
	}
}

static void dump_item(struct dump *d, uint64_t owner, uint64_t key, const void *value,
		      uint32_t size)
{
	const struct cpc_disk_extent *extent = value;
	const struct cpc_disk_dead_run *run = value;

	if (owner == CPC_TREE_ROOT)
		dump_root_item(d, key, value);
	else if (owner == CPC_TREE_FREE_LOG)
		dump_free_log_item(d, key, value, size);
	else if (owner == CPC_TREE_DEAD)
		say(d, "  pool blocks %" PRIu64 "+%u", key, cpc_get_le32(&run->blocks));
	else
		say(d, "  blocks %" PRIu64 "+%" PRIu64 " at %" PRIu64 " birth %" PRIu64, key,
		    cpc_item_len(owner, size), cpc_get_le64(&extent->bytenr),
		    cpc_get_le64(&extent->birth));
}

/* --- nodes and trees --- */

/* Prints a node that the tree-checker has accepted. */
static void dump_node(struct dump *d, const void *node)
{
	const struct cpc_disk_node *h = cpc_node_header(node);
	uint64_t owner = cpc_get_le64(&h->owner);
	uint32_t nr = cpc_node_nritems(node);

	say(d,
	    "node at %" PRIu64 " owner %" PRIu64 " level %u generation %" PRIu64
	    " items %u csum %#x",
	    cpc_get_le64(&h->bytenr), owner, h->level, cpc_get_le64(&h->generation), nr,
	    cpc_get_le32(&h->csum));
	for (uint32_t i = 0; i < nr; i++) {
		struct cpc_node_ptr ptr;
		const void *value;
		char name[32];
		uint32_t size;
		uint64_t key;

		if (h->level) {
			cpc_node_child(node, i, &key, &ptr);
			snprintf(name, sizeof(name), "key %" PRIu64, key);
			say_ptr(d, "  ", name, &ptr);
		} else {
			cpc_node_item(node, i, &key, &value, &size);
			dump_item(d, owner, key, value, size);
		}
	}
}

static int dump_subtree(struct dump *d, uint64_t owner, const struct cpc_node_ptr *ptr)
{
	uint64_t block = ptr->bytenr[0] >> CPC_BLOCK_SHIFT;
	struct cpc_eb *eb;
	int ret;

	if (cpc_blockset_test(&d->seen, block)) {
		say(d, "node at %" PRIu64 ": printed before", ptr->bytenr[0]);
		return 0;
	}
	ret = cpc_blockset_add(&d->seen, block, 1);
	if (!ret)
		ret = cpc_eb_read(d->cache, ptr, owner, &eb);
	if (ret == -EUCLEAN || ret == -EIO) {
		say(d, "node at %" PRIu64 ": cannot be read", ptr->bytenr[0]);
		return 0;
	}
	if (ret)
		return ret;
	dump_node(d, eb->data);
	for (uint32_t i = 0; !ret && ptr->level && i < cpc_node_nritems(eb->data); i++) {
		struct cpc_node_ptr child;
		uint64_t key;

		cpc_node_child(eb->data, i, &key, &child);
		ret = dump_subtree(d, owner, &child);
	}
	cpc_eb_put(eb);
	return ret;
}

/* Finds a volume by tree id, or by name where `name` is not NULL. */
static int find_volume(struct dump *d, const char *name, uint64_t id, struct cpc_volume_item *item)
{
	struct cpc_cursor c;
	int ret;

	cpc_cursor_init(&c, d->cache, CPC_TREE_ROOT, &d->super.root);
	ret = cpc_cursor_seek(&c, cpc_root_key(CPC_ITEM_VOLUME, 0));
	while (!ret && c.valid && c.key < cpc_root_key(CPC_ITEM_VOLUME + 1, 0)) {
		ret = cpc_volume_item_decode(item, c.key & CPC_KEY_ID_MASK, c.value, c.size);
		if (!ret &&
		    (name ? !strcmp(name, item->name) : item->id + CPC_TREE_VOLUME_BASE == id)) {
			cpc_cursor_release(&c);
			return 0;
		}
		if (!ret)
			ret = cpc_cursor_next(&c);
	}
	cpc_cursor_release(&c);
	return ret ? ret : -ENOENT;
}

static int dump_one_tree(struct dump *d, uint64_t owner, const struct cpc_node_ptr *root)
{
	if (cpc_node_ptr_empty(root)) {
		say(d, "tree %" PRIu64 ": empty", owner);
		return 0;
	}
	return dump_subtree(d, owner, root);
}

static int dump_tree(struct dump *d, const char *arg)
{
	struct cpc_volume_item item;
	uint64_t id = 0;
	char *end;
	int ret;

	if (!arg || !*arg)
		return -EINVAL;
	id = strtoull(arg, &end, 10);
	if (*end)
		id = 0;
	if (id == CPC_TREE_ROOT || !strcmp(arg, "root"))
		return dump_one_tree(d, CPC_TREE_ROOT, &d->super.root);
	if (id == CPC_TREE_FREE_LOG || !strcmp(arg, "free-log"))
		return dump_one_tree(d, CPC_TREE_FREE_LOG, &d->super.free_log);
	ret = find_volume(d, arg, 0, &item);
	if (ret == -ENOENT && id)
		ret = find_volume(d, NULL, id, &item);
	return ret ? ret : dump_one_tree(d, CPC_TREE_VOLUME_BASE + item.id, &item.root);
}

/* --- log --- */

static void dump_record(struct dump *d, uint64_t bytenr, const struct cpc_disk_log_record *r)
{
	say(d,
	    "record at %" PRIu64 ": nonce %#" PRIx64 " seq %" PRIu64 " transid %" PRIu64
	    " durable %" PRIu64 " position %" PRIu64 " length %u entries %u flags %#x",
	    bytenr, cpc_get_le64(&r->nonce), cpc_get_le64(&r->seq), cpc_get_le64(&r->transid),
	    cpc_get_le64(&r->durable), cpc_get_le64(&r->position), cpc_get_le32(&r->length),
	    cpc_get_le32(&r->nr_entries), cpc_get_le32(&r->flags));
}

static void dump_entry(struct dump *d, const struct cpc_disk_log_entry *e, uint32_t size)
{
	static const char *const names[] = {"?",      "map",	"hole",	 "create",
					    "rename", "delete", "resize"};
	uint64_t block = cpc_get_le64(&e->block), nr = cpc_get_le64(&e->nr_blocks);
	const char *name = names[e->type < CPC_ARRAY_SIZE(names) ? e->type : 0];
	uint32_t volume = cpc_get_le32(&e->volume), payload = size - (uint32_t)sizeof(*e);

	if (e->type == CPC_LOG_MAP)
		say(d, "    map volume %u blocks %" PRIu64 "+%" PRIu64 " at %" PRIu64, volume,
		    block, nr, cpc_get_le64(&e->bytenr));
	else if (e->type == CPC_LOG_HOLE)
		say(d, "    hole volume %u blocks %" PRIu64 "+%" PRIu64, volume, block, nr);
	else if (e->type == CPC_LOG_RENAME)
		say(d, "    rename volume %u \"%.*s\"", volume,
		    (int)cpc_min_u64(cpc_min_u64(nr, payload), CPC_NAME_MAX),
		    (const char *)(e + 1));
	else if (e->type == CPC_LOG_RESIZE)
		say(d, "    resize volume %u to %" PRIu64, volume, block);
	else
		say(d, "    %s volume %u (type %u)", name, volume, e->type);
}

static void dump_entries(struct dump *d, const uint8_t *buf, uint32_t length)
{
	const struct cpc_disk_log_record *r = (const void *)buf;
	uint32_t at = sizeof(*r), size;

	for (uint32_t i = 0; i < cpc_get_le32(&r->nr_entries); i++, at += size) {
		const struct cpc_disk_log_entry *e = (const void *)(buf + at);

		size = length - at < sizeof(*e) ? 0 : cpc_get_le16(&e->size);
		if (size < sizeof(*e) || size > length - at) {
			say(d, "    entry %u is damaged", i);
			return;
		}
		dump_entry(d, e, size);
	}
}

/* Prints a record whose header stands in d->block. */
static void dump_whole_record(struct dump *d, uint64_t bytenr, uint64_t left)
{
	const struct cpc_disk_log_record *r = (const void *)d->block;
	uint32_t length = cpc_get_le32(&r->length);
	uint8_t *buf;

	dump_record(d, bytenr, r);
	if (length < CPC_BLOCK_SIZE || length % CPC_BLOCK_SIZE || length > left ||
	    length > d->super.log_size / 8) {
		say(d, "    its length is damaged");
		return;
	}
	buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, length);
	if (!buf || cpc_backing_read(d->backing, bytenr, buf, length)) {
		say(d, "    cannot be read");
	} else if (cpc_get_le32(&((struct cpc_disk_log_record *)buf)->csum) !=
		   cpc_csum_without_field(buf, length,
					  offsetof(struct cpc_disk_log_record, csum))) {
		say(d, "    its checksum does not match");
	} else {
		dump_entries(d, buf, length);
	}
	cpc_free(buf);
}

static void dump_replay(struct dump *d)
{
	struct cpc_log_replay r;
	const char *why;
	int ret = cpc_log_peek(d->backing, &d->super, &d->geo, &r, &why);

	if (ret) {
		say(d, "replay: %s", ret == -EUCLEAN ? why : strerror(-ret));
		return;
	}
	if (r.nr)
		say(d,
		    "replay: records %" PRIu64 " to %" PRIu64 ", %" PRIu64
		    " entries, durable %" PRIu64 ", ends at position %" PRIu64,
		    r.found[0].seq, r.found[r.nr - 1].seq, r.entries, r.durable, r.end_position);
	else
		say(d, "replay: nothing");
	cpc_log_peek_end(&r);
}

static int dump_log(struct dump *d)
{
	const struct cpc_disk_log_record *r = (const void *)d->block;
	uint64_t found = 0;

	say(d, "log of %" PRIu64 " bytes at %" PRIu64 " and %" PRIu64, d->super.log_size,
	    d->geo.log[0] << CPC_BLOCK_SHIFT, d->geo.log[1] << CPC_BLOCK_SHIFT);
	say(d, "  position %" PRIu64 " seq %" PRIu64 " durable %" PRIu64 " nonce %#" PRIx64,
	    d->super.log_position, d->super.log_seq, d->super.log_durable, d->super.nonce);
	for (unsigned copy = 0; copy < 2; copy++) {
		for (uint64_t i = 0; i < d->geo.log_blocks; i++) {
			uint64_t bytenr = (d->geo.log[copy] + i) << CPC_BLOCK_SHIFT;

			if (cpc_backing_read(d->backing, bytenr, d->block, CPC_BLOCK_SIZE) ||
			    cpc_get_le32(&r->magic) != CPC_LOG_MAGIC ||
			    memcmp(r->uuid, d->super.uuid, CPC_UUID_SIZE) != 0)
				continue;
			dump_whole_record(d, bytenr, (d->geo.log_blocks - i) << CPC_BLOCK_SHIFT);
			found++;
		}
	}
	if (!found)
		say(d, "no records");
	dump_replay(d);
	return 0;
}

/* --- single blocks --- */

static void say_area(struct dump *d, uint64_t bytenr)
{
	const struct cpc_geometry *g = &d->geo;
	uint64_t block = bytenr >> CPC_BLOCK_SHIFT, at;

	for (unsigned i = 0; i < 2; i++) {
		if (block - g->super[i] < CPC_SUPER_SLOTS)
			say(d, "ring %u slot %" PRIu64 " of the superblocks", i,
			    block - g->super[i]);
		at = block - g->homes[i];
		if (i < g->copies && at < 2 * g->nr_groups)
			say(d, "home %" PRIu64 " of group %" PRIu64 ", copy %u", at % 2, at / 2,
			    i + 1);
		if (block - g->log[i] < g->log_blocks)
			say(d, "log, copy %u", i + 1);
	}
	if (block >= g->data_start && block < g->data_end)
		say(d, "data area");
	if (block >= g->nr_blocks)
		say(d, "beyond the pool");
}

static void hex_line(struct dump *d, uint32_t at, const uint8_t *p)
{
	char text[16 * 3 + 1];

	for (unsigned i = 0; i < 16; i++)
		snprintf(text + 3 * i, 4, " %02x", p[i]);
	say(d, "%04x%s", at, text);
}

/* Lines of zeroes are left out. */
static void dump_hex(struct dump *d)
{
	static const uint8_t zero[16];

	for (uint32_t at = 0; at < CPC_BLOCK_SIZE; at += 16) {
		if (memcmp(d->block + at, zero, sizeof(zero)) != 0)
			hex_line(d, at, d->block + at);
	}
}

/* Prints the node at `bytenr` if there is one whose content makes sense. */
static bool dump_raw_node(struct dump *d, uint64_t bytenr)
{
	const struct cpc_disk_node *h = (const void *)d->block;
	const char *why;
	uint8_t *node;
	bool is_node = false;

	if (cpc_get_le32(&h->magic) != CPC_NODE_MAGIC ||
	    !cpc_geometry_in_data(&d->geo, bytenr, d->geo.nodesize))
		return false;
	node = cpc_alloc_aligned(CPC_BLOCK_SIZE, d->geo.nodesize);
	if (node && !cpc_backing_read(d->backing, bytenr, node, d->geo.nodesize)) {
		h = cpc_node_header(node);
		if (cpc_get_le32(&h->csum) !=
		    cpc_csum_without_field(node, d->geo.nodesize,
					   offsetof(struct cpc_disk_node, csum)))
			say(d, "a node whose checksum does not match");
		why = cpc_tree_check_node(node, d->geo.nodesize, &d->geo);
		if (why)
			say(d, "a damaged node: %s", why);
		is_node = !why;
	}
	if (is_node)
		dump_node(d, node);
	cpc_free(node);
	return is_node;
}

static int dump_block(struct dump *d, const char *arg)
{
	const struct cpc_disk_log_record *r = (const void *)d->block;
	struct cpc_super super;
	uint64_t bytenr, size = cpc_backing_size(d->backing);
	const char *why;
	char *end;
	int ret;

	if (!arg || *arg < '0' || *arg > '9')
		return -EINVAL;
	errno = 0;
	bytenr = strtoull(arg, &end, 0);
	if (*end || errno || bytenr >= size)
		return -EINVAL;
	bytenr = cpc_align_down(bytenr, CPC_BLOCK_SIZE);
	ret = cpc_backing_read(d->backing, bytenr, d->block, CPC_BLOCK_SIZE);
	if (ret)
		return ret;
	say(d, "block %" PRIu64 " at %" PRIu64 ": crc32c %#x", bytenr >> CPC_BLOCK_SHIFT, bytenr,
	    cpc_csum(d->block, CPC_BLOCK_SIZE));
	say_area(d, bytenr);
	if (dump_raw_node(d, bytenr))
		return 0;
	for (uint32_t slot = 0; slot < CPC_SUPER_SLOTS; slot++) {
		if (!cpc_super_decode(&super, (const void *)d->block, slot, size, &why)) {
			say(d, "superblock of slot %u, transid %" PRIu64, slot, super.transid);
			dump_super_fields(d, &super);
			return 0;
		}
	}
	if (cpc_get_le32(&r->magic) == CPC_LOG_MAGIC)
		dump_record(d, bytenr, r);
	dump_hex(d);
	return 0;
}

/* --- the whole --- */

static int dump_what(struct dump *d, const char *what, const char *arg)
{
	if (!strcmp(what, "super"))
		return dump_supers(d);
	if (!strcmp(what, "log"))
		return dump_log(d);
	if (!strcmp(what, "tree"))
		return dump_tree(d, arg);
	if (!strcmp(what, "block"))
		return dump_block(d, arg);
	return -EINVAL;
}

static int dump_open(struct dump *d)
{
	struct cpc_eb_params params = {
	    .backing = d->backing,
	    .geo = &d->geo,
	    .limit = CACHE_BYTES,
	    .checker = cpc_tree_check_node,
	};
	const char *why;
	int ret = cpc_super_find(d->backing, &d->super, &why);

	if (!ret)
		ret = cpc_geometry_init(&d->geo, d->super.total_bytes, d->super.log_size,
					d->super.nodesize, d->super.incompat & CPC_INCOMPAT_DUP);
	if (ret)
		return ret;
	memcpy(params.uuid, d->super.uuid, CPC_UUID_SIZE);
	cpc_blockset_init(&d->seen, d->geo.nr_groups);
	d->block = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);
	if (!d->block)
		return -ENOMEM;
	ret = cpc_eb_cache_create(&params, &d->cache);
	if (ret)
		cpc_free(d->block);
	return ret;
}

int cpc_dump(struct cpc_backing *backing, const char *what, const char *arg,
	     void (*out)(void *ctx, const char *line), void *ctx)
{
	struct dump d = {.backing = backing, .out = out, .ctx = ctx};
	int ret = dump_open(&d);

	if (ret)
		return ret;
	ret = dump_what(&d, what, arg);
	cpc_eb_cache_destroy(d.cache);
	cpc_blockset_destroy(&d.seen);
	cpc_free(d.block);
	return ret;
}
