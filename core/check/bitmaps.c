/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bitmaps: what the pool says is in use, against what is reachable.
 *
 * A group's bitmap is its home (fresh, if it has never been folded) with the free log replayed on
 * top: entries of the fold's transaction and later, in order. The walk delivers all group items
 * before the first entry of the free log, because the root tree is walked first.
 *
 * An entry that allocates what is in use, or frees what is not, is a finding of its own: the
 * engine only counts entries at open, and its count would be wrong for ever.
 *
 * A group whose home cannot be read is left out of the comparison: its blocks are neither leaked
 * nor missing, they are unknown, and one finding has said so.
 */
#include "check/check-internal.h"

#include <inttypes.h>

#include "lib/hooks.h"

int cpc_bitmaps_init(struct cpc_bitmaps *b, struct cpc_backing *backing,
		     const struct cpc_super *super, const struct cpc_geometry *geo,
		     struct cpc_findings *findings)
{
	memset(b, 0, sizeof(*b));
	b->backing = backing;
	b->super = super;
	b->geo = geo;
	b->findings = findings;
	b->groups = cpc_alloc_array(geo->nr_groups, sizeof(*b->groups));
	b->buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);
	if (!b->groups || !b->buf) {
		cpc_free(b->groups);
		cpc_free(b->buf);
		return -ENOMEM;
	}
	memset(b->groups, 0, geo->nr_groups * sizeof(*b->groups));
	return 0;
}

void cpc_bitmaps_destroy(struct cpc_bitmaps *b)
{
	for (uint64_t g = 0; g < b->geo->nr_groups; g++)
		cpc_free(b->groups[g].bitmap);
	cpc_free(b->groups);
	cpc_free(b->buf);
}

/* The group's bitmap, made fresh at first use. NULL: no memory. */
static uint8_t *group_bitmap(struct cpc_bitmaps *b, uint64_t group)
{
	struct cpc_check_group *g = &b->groups[group];

	if (!g->bitmap) {
		g->bitmap = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);
		if (g->bitmap)
			cpc_space_fresh_bitmap(b->geo, group, g->bitmap);
	}
	return g->bitmap;
}

/* Bits set, those beyond the pool's end not counted. */
static uint64_t count_used(const struct cpc_bitmaps *b, uint64_t group, const uint8_t *bitmap)
{
	uint64_t sum = 0, word;

	for (size_t i = 0; i < CPC_BLOCK_SIZE; i += sizeof(word)) {
		memcpy(&word, bitmap + i, sizeof(word));
		sum += (uint64_t)__builtin_popcountll(word);
	}
	return sum - (CPC_GROUP_BLOCKS - cpc_geometry_group_blocks(b->geo, group));
}

/* --- homes --- */

/* Return: NULL, or what is wrong. */
static const char *read_home(struct cpc_bitmaps *b, uint64_t group,
			     const struct cpc_disk_group *item, unsigned copy)
{
	uint64_t bytenr = cpc_geometry_home(b->geo, copy, group, item->home);

	if (cpc_backing_read(b->backing, bytenr, b->buf, CPC_BLOCK_SIZE))
		return "cannot be read";
	if (cpc_bitmap_csum(b->super->uuid, group, cpc_get_le64(&item->generation), b->buf) !=
	    cpc_get_le32(&item->csum))
		return "checksum does not match";
	return NULL;
}

static void bad_home(struct cpc_bitmaps *b, uint64_t group, const struct cpc_disk_group *item,
		     unsigned copy, const char *why, const uint8_t *good)
{
	struct cpc_fix fix = {
	    .kind = CPC_DAMAGE_BITMAP,
	    .to = cpc_geometry_home(b->geo, copy, group, item->home),
	    .len = CPC_BLOCK_SIZE,
	    .what = why,
	};

	if (!good) {
		cpc_finding(b->findings, "bitmap of group %" PRIu64 ", copy %u at %" PRIu64 ": %s",
			    group, copy + 1, fix.to, why);
		return;
	}
	fix.from = cpc_geometry_home(b->geo, !copy, group, item->home);
	cpc_finding_fix(b->findings, b->fixes, &fix, good, "bitmap of group %" PRIu64 ", copy %u",
			group, copy + 1);
}

/* What a fold writes has at least the fresh bits set. */
static bool has_fresh_bits(const struct cpc_bitmaps *b, uint64_t group, const uint8_t *bitmap)
{
	uint8_t fresh[CPC_BLOCK_SIZE];

	cpc_space_fresh_bitmap(b->geo, group, fresh);
	for (size_t i = 0; i < CPC_BLOCK_SIZE; i++) {
		if (fresh[i] & ~bitmap[i])
			return false;
	}
	return true;
}

int cpc_bitmaps_load(struct cpc_bitmaps *b, uint64_t group, const struct cpc_disk_group *item)
{
	struct cpc_check_group *g = &b->groups[group];
	uint8_t *bitmap = group_bitmap(b, group);
	const char *bad[2] = {NULL, NULL};
	bool good = false;

	if (!bitmap)
		return -ENOMEM;
	g->generation = cpc_get_le64(&item->generation);
	for (unsigned copy = 0; copy < b->geo->copies; copy++) {
		bad[copy] = read_home(b, group, item, copy);
		if (bad[copy])
			continue;
		good = true;
		memcpy(bitmap, b->buf, CPC_BLOCK_SIZE);
	}
	for (unsigned copy = 0; copy < b->geo->copies; copy++) {
		if (bad[copy])
			bad_home(b, group, item, copy, bad[copy], good ? bitmap : NULL);
	}
	g->bad = !good;
	if (good && !has_fresh_bits(b, group, bitmap)) {
		g->wrong = true;
		cpc_finding(b->findings, "bitmap of group %" PRIu64 ": fixed areas are not in use",
			    group);
	} else if (good && count_used(b, group, bitmap) != cpc_get_le32(&item->used)) {
		g->wrong = true;
		cpc_finding(b->findings,
			    "bitmap of group %" PRIu64 ": its item says %u blocks in use", group,
			    cpc_get_le32(&item->used));
	}
	return 0;
}

/* --- free log --- */

/* Return: whether every bit was as the entry expects. */
static bool apply_bits(uint8_t *bitmap, uint32_t start, uint32_t count, bool freed)
{
	bool expected = true;

	for (uint32_t bit = start; bit < start + count; bit++) {
		uint8_t mask = (uint8_t)(1u << bit % 8);

		expected &= !(bitmap[bit / 8] & mask) != freed;
		bitmap[bit / 8] = freed ? bitmap[bit / 8] & (uint8_t)~mask : bitmap[bit / 8] | mask;
	}
	return expected;
}

static int replay_entry(struct cpc_bitmaps *b, uint64_t key, uint64_t transid,
			const struct cpc_disk_free_entry *entry)
{
	uint64_t block = cpc_get_le64(&entry->block), group = block / CPC_GROUP_BLOCKS;
	uint32_t count = cpc_get_le32(&entry->count), start = block % CPC_GROUP_BLOCKS;
	bool freed = count & CPC_FREE_ENTRY_FREED;
	uint8_t *bitmap;

	count &= ~CPC_FREE_ENTRY_FREED;
	if (start + (uint64_t)count > CPC_GROUP_BLOCKS) {
		b->groups[group].wrong = true;
		cpc_finding(b->findings,
			    "free log item %" PRIu64 ": blocks %" PRIu64 "+%u leave their group",
			    key, block, count);
		return 0;
	}
	if (b->groups[group].bad || transid < b->groups[group].generation)
		return 0;
	bitmap = group_bitmap(b, group);
	if (!bitmap)
		return -ENOMEM;
	if (!apply_bits(bitmap, start, count, freed)) {
		b->groups[group].wrong = true;
		cpc_finding(b->findings,
			    "free log item %" PRIu64 ": blocks %" PRIu64 "+%u are %s already", key,
			    block, count, freed ? "free" : "in use");
	}
	return 0;
}

int cpc_bitmaps_replay(struct cpc_bitmaps *b, uint64_t key, const struct cpc_disk_free_log *item,
		       uint32_t nr_entries)
{
	uint64_t transid = cpc_get_le64(&item->transid);
	int ret = 0;

	if (transid < b->last_transid || transid > b->super->transid)
		cpc_finding(b->findings,
			    "free log item %" PRIu64 ": transid %" PRIu64 " after %" PRIu64, key,
			    transid, b->last_transid);
	if (key >= b->super->next_free_log)
		cpc_finding(b->findings,
			    "free log item %" PRIu64 ": its key has not been given out", key);
	b->last_transid = transid;
	for (uint32_t i = 0; !ret && i < nr_entries; i++)
		ret = replay_entry(b, key, transid, &item->entry[i]);
	return ret;
}

/* --- comparison --- */

/* Collects neighbouring blocks into one finding. */
struct range {
	const char *what;
	uint64_t start, nr;
};

static void range_end(struct cpc_bitmaps *b, struct range *r)
{
	if (r->nr)
		cpc_finding(b->findings, "blocks %" PRIu64 "+%" PRIu64 " %s", r->start, r->nr,
			    r->what);
	r->nr = 0;
}

static void range_add(struct cpc_bitmaps *b, struct range *r, uint64_t block)
{
	if (r->nr && r->start + r->nr != block)
		range_end(b, r);
	if (!r->nr)
		r->start = block;
	r->nr++;
}

static void add_bits(struct cpc_bitmaps *b, struct range *r, uint64_t first, uint64_t bits)
{
	for (; bits; bits &= bits - 1)
		range_add(b, r, first + (uint64_t)__builtin_ctzll(bits));
}

static uint64_t word_of(const uint64_t *bitmap, size_t i)
{
	return bitmap ? le64toh(bitmap[i]) : 0;
}

void cpc_bitmaps_want(const struct cpc_geometry *geo, uint64_t group,
		      const struct cpc_blockset *reachable, const struct cpc_blockset *log_nodes,
		      uint8_t bitmap[CPC_BLOCK_SIZE])
{
	const uint64_t *named = cpc_blockset_group(reachable, group);
	const uint64_t *log = log_nodes ? cpc_blockset_group(log_nodes, group) : NULL;
	uint64_t *words = (uint64_t *)(void *)bitmap;

	cpc_space_fresh_bitmap(geo, group, bitmap);
	for (size_t i = 0; i < CPC_BLOCK_SIZE / 8; i++)
		words[i] |= htole64(word_of(named, i) & ~word_of(log, i));
}

static void compare_group(struct cpc_bitmaps *b, uint64_t group, const uint64_t *reachable,
			  const uint64_t *log_nodes)
{
	struct range leaked = {.what = "are leaked: in use, but nothing names them"};
	struct range missing = {.what = "are reachable, but free in their bitmap"};
	struct range doubled = {.what = "are nodes of the free log, but in a bitmap"};
	const uint64_t *used = (const uint64_t *)(const void *)b->groups[group].bitmap;
	uint64_t fresh[CPC_BLOCK_SIZE / 8], errors = b->findings->errors;

	cpc_space_fresh_bitmap(b->geo, group, (uint8_t *)fresh);
	for (size_t i = 0; i < CPC_ARRAY_SIZE(fresh); i++) {
		uint64_t fixed = word_of(fresh, i), log = word_of(log_nodes, i);
		uint64_t have = used ? word_of(used, i) : fixed;
		uint64_t want = fixed | (word_of(reachable, i) & ~log);
		uint64_t first = group * CPC_GROUP_BLOCKS + i * 64;

		b->leaked += (uint64_t)__builtin_popcountll(have & ~want & ~log);
		add_bits(b, &leaked, first, have & ~want & ~log);
		add_bits(b, &missing, first, want & ~have);
		add_bits(b, &doubled, first, have & log);
	}
	range_end(b, &leaked);
	range_end(b, &missing);
	range_end(b, &doubled);
	b->groups[group].wrong |= b->findings->errors != errors;
}

static uint64_t fresh_used(struct cpc_bitmaps *b, uint64_t group)
{
	cpc_space_fresh_bitmap(b->geo, group, b->buf);
	return count_used(b, group, b->buf);
}

void cpc_bitmaps_compare(struct cpc_bitmaps *b, const struct cpc_blockset *reachable,
			 const struct cpc_blockset *log_nodes)
{
	uint64_t used = 0;
	bool all = true;

	for (uint64_t g = 0; g < b->geo->nr_groups; g++) {
		if (b->groups[g].bad) {
			all = false;
			continue;
		}
		used +=
		    b->groups[g].bitmap ? count_used(b, g, b->groups[g].bitmap) : fresh_used(b, g);
		if (b->groups[g].bitmap || cpc_blockset_group(reachable, g))
			compare_group(b, g, cpc_blockset_group(reachable, g),
				      cpc_blockset_group(log_nodes, g));
	}
	b->used_wrong = all && used != b->super->used_blocks;
	if (b->used_wrong)
		cpc_finding(b->findings,
			    "the superblock says %" PRIu64 " blocks in use, the bitmaps %" PRIu64,
			    b->super->used_blocks, used);
}
