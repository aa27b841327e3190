/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The on-disk structures: superblocks survive encoding and refuse every flipped bit, the fixed
 * areas of a pool of any size are disjoint and inside it, names are valid or not, and
 * docs/on-disk-format.md says the same as the compiler about every field.
 */
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "format/format.h"

#define DOCUMENT CPC_DOCS_DIR "/on-disk-format.md"

static uint64_t rng = 1;

static uint64_t next_random(void)
{
	rng = rng * 6364136223846793005ull + 1442695040888963407ull;
	return rng >> 16;
}

/* --- superblocks --- */

static void fill_ptr(struct cpc_node_ptr *ptr, uint64_t seed)
{
	ptr->bytenr[0] = (64ull << 20) + seed * 65536;
	ptr->bytenr[1] = (512ull << 20) + seed * 65536;
	ptr->generation = 77 - seed;
	ptr->data_blocks = 0;
	ptr->nodes = (uint32_t)(10 + seed);
	ptr->csum = 0x12345678;
	ptr->level = 2;
}

static void fill_super(struct cpc_super *super)
{
	memset(super, 0, sizeof(*super));
	memset(super->uuid, 0x42, sizeof(super->uuid));
	super->compat = CPC_COMPAT_SPARSE;
	super->incompat = CPC_INCOMPAT_DUP;
	super->transid = 77;
	super->total_bytes = 1ull << 30;
	super->nonce = 0xfedcba9876543210;
	super->nodesize = 16384;
	super->slot = 5;
	super->log_size = 32u << 20;
	super->log_position = 123 * 4096;
	super->log_seq = 12;
	super->log_durable = 11;
	super->next_volume = 9;
	super->next_drop = 8;
	super->next_free_log = 7;
	super->used_blocks = 20000;
	super->created = 1700000000;
	fill_ptr(&super->root, 1);
	fill_ptr(&super->free_log, 2);
	strcpy(super->label, "a label");
	super->flags = CPC_SUPER_CLEAN;
}

static int decode(struct cpc_super *super, const struct cpc_disk_super *disk, const char **why)
{
	return cpc_super_decode(super, disk, 5, 1ull << 30, why);
}

static void a_superblock_survives_encoding(void **state)
{
	struct cpc_super in, out;
	struct cpc_disk_super disk;
	const char *why = NULL;

	fill_super(&in);
	cpc_super_encode(&disk, &in);
	assert_int_equal(decode(&out, &disk, &why), 0);
	assert_memory_equal(&in, &out, sizeof(in));
	memset(in.label, 'x', CPC_LABEL_MAX);
	memset(&in.root, 0, sizeof(in.root));
	cpc_super_encode(&disk, &in);
	assert_int_equal(decode(&out, &disk, &why), 0);
	assert_memory_equal(&in, &out, sizeof(in));
}

static void every_flipped_bit_of_a_superblock_is_refused(void **state)
{
	struct cpc_super in, out;
	struct cpc_disk_super disk;
	uint8_t *bytes = (uint8_t *)&disk;

	fill_super(&in);
	cpc_super_encode(&disk, &in);
	for (unsigned bit = 0; bit < sizeof(disk) * 8; bit++) {
		const char *why = NULL;

		bytes[bit / 8] ^= 1u << bit % 8;
		assert_int_not_equal(decode(&out, &disk, &why), 0);
		assert_non_null(why);
		bytes[bit / 8] ^= 1u << bit % 8;
	}
}

/* Encodes a superblock with one field changed. */
#define EXPECT_REFUSED(field, value, error)                                                        \
	do {                                                                                       \
		struct cpc_super in_, out_;                                                        \
		struct cpc_disk_super disk_;                                                       \
		const char *why_ = NULL;                                                           \
		fill_super(&in_);                                                                  \
		in_.field = (value);                                                               \
		cpc_super_encode(&disk_, &in_);                                                    \
		assert_int_equal(decode(&out_, &disk_, &why_), (error));                           \
		assert_non_null(why_);                                                             \
	} while (0)

static void impossible_superblocks_are_refused(void **state)
{
	EXPECT_REFUSED(incompat, CPC_INCOMPAT_DUP | 1ull << 60, -ENOTSUP);
	EXPECT_REFUSED(incompat, CPC_INCOMPAT_DUP | CPC_INCOMPAT_DELTA, -ENOTSUP);
	EXPECT_REFUSED(slot, 4, -EUCLEAN);
	EXPECT_REFUSED(transid, 0, -EUCLEAN);
	EXPECT_REFUSED(transid, UINT64_MAX, -EUCLEAN);
	EXPECT_REFUSED(total_bytes, (1ull << 30) + 4096, -EUCLEAN);
	EXPECT_REFUSED(total_bytes, 0, -EUCLEAN);
	EXPECT_REFUSED(total_bytes, 4096, -EUCLEAN);
	EXPECT_REFUSED(nodesize, 0, -EUCLEAN);
	EXPECT_REFUSED(nodesize, 12288, -EUCLEAN);
	EXPECT_REFUSED(nodesize, 131072, -EUCLEAN);
	EXPECT_REFUSED(log_size, 0, -EUCLEAN);
	EXPECT_REFUSED(log_size, 1ull << 40, -EUCLEAN);
	EXPECT_REFUSED(log_size, (1u << 20) + 1, -EUCLEAN);
	EXPECT_REFUSED(log_position, 512, -EUCLEAN);
	EXPECT_REFUSED(log_position, 1ull << 62, -EUCLEAN);
	EXPECT_REFUSED(root.bytenr[0], 4096, -EUCLEAN);
	EXPECT_REFUSED(root.bytenr[0], (64ull << 20) + 1, -EUCLEAN);
	EXPECT_REFUSED(root.bytenr[1], 0, -EUCLEAN);
	EXPECT_REFUSED(root.bytenr[0], UINT64_MAX - 4095, -EUCLEAN);
	EXPECT_REFUSED(root.level, CPC_MAX_LEVEL + 1, -EUCLEAN);
	EXPECT_REFUSED(root.generation, 78, -EUCLEAN);
	EXPECT_REFUSED(free_log.bytenr[1], 1ull << 30, -EUCLEAN);
	EXPECT_REFUSED(used_blocks, (1u << 18) + 1, -EUCLEAN);
	EXPECT_REFUSED(next_volume, 1ull << 32, -EUCLEAN);
}

static void what_is_no_superblock_is_told_apart(void **state)
{
	struct cpc_disk_super disk;
	struct cpc_super in, out;
	const char *why;

	memset(&disk, 0, sizeof(disk));
	assert_int_equal(decode(&out, &disk, &why), -EINVAL);
	fill_super(&in);
	cpc_super_encode(&disk, &in);
	cpc_put_le32(&disk.version, 2);
	cpc_put_le32(&disk.csum, cpc_csum_without_field(&disk, sizeof(disk), 8));
	assert_int_equal(decode(&out, &disk, &why), -ENOTSUP);
}

static void pointers_survive_encoding(void **state)
{
	struct cpc_node_ptr in, out;
	struct cpc_disk_ptr disk;

	memset(&in, 0, sizeof(in));
	memset(&out, 0, sizeof(out));
	fill_ptr(&in, 3);
	in.data_blocks = 1ull << 40;
	cpc_ptr_encode(&disk, &in);
	cpc_ptr_decode(&out, &disk);
	assert_memory_equal(&in, &out, sizeof(in));
}

/* --- geometry --- */

static void area(uint64_t *end, uint64_t first, uint64_t blocks)
{
	assert_true(first >= *end);
	assert_true(blocks > 0 && first + blocks > first);
	*end = first + blocks;
}

static void check_geometry(const struct cpc_geometry *geo, uint64_t total, uint64_t log)
{
	uint64_t end = 0, last = geo->nr_groups - 1;

	area(&end, geo->super[0], CPC_SUPER_SLOTS);
	area(&end, geo->homes[0], 2 * geo->nr_groups);
	area(&end, geo->log[0], log / 4096);
	area(&end, geo->data_start, geo->data_end - geo->data_start);
	area(&end, geo->log[1], log / 4096);
	if (geo->copies == 2)
		area(&end, geo->homes[1], 2 * geo->nr_groups);
	area(&end, geo->super[1], CPC_SUPER_SLOTS);
	assert_true(end == total / 4096);
	assert_true((geo->data_end - geo->data_start) * 2 > total / 4096);
	assert_true(cpc_geometry_home(geo, 0, last, 1) / 4096 + 1 == geo->log[0]);
	assert_true(cpc_geometry_super(geo, 1, CPC_SUPER_SLOTS - 1) + 4096 == total);
	assert_true(last * CPC_GROUP_BLOCKS + cpc_geometry_group_blocks(geo, last) == total / 4096);
	assert_true(cpc_geometry_group_blocks(geo, last) > 0);
}

static void check_data_area(const struct cpc_geometry *geo)
{
	uint64_t start = geo->data_start * 4096, end = geo->data_end * 4096;

	assert_true(cpc_geometry_in_data(geo, start, end - start));
	assert_true(cpc_geometry_in_data(geo, end - 4096, 4096));
	assert_false(cpc_geometry_in_data(geo, start, end - start + 4096));
	assert_false(cpc_geometry_in_data(geo, start - 4096, 4096));
	assert_false(cpc_geometry_in_data(geo, end, 4096));
	assert_false(cpc_geometry_in_data(geo, start, 0));
	assert_false(cpc_geometry_in_data(geo, start + 1, 4096));
	assert_false(cpc_geometry_in_data(geo, start, 4095));
	assert_false(cpc_geometry_in_data(geo, start, UINT64_MAX - 4095));
	assert_false(cpc_geometry_in_data(geo, UINT64_MAX - 4095, 4096));
}

static void fixed_areas_are_disjoint_and_inside(void **state)
{
	struct cpc_geometry geo;

	for (unsigned i = 0; i < 100000; i++) {
		uint64_t total = next_random() << 4 >> next_random() % 40;
		uint64_t log;

		total = (total & (CPC_POOL_SIZE_MAX - 1)) & ~4095ull;
		log =
		    i % 2 ? cpc_default_log_size(total) : (next_random() % (total + 1)) & ~4095ull;
		if (cpc_geometry_init(&geo, total, log, 4096u << i % 5, i % 3))
			continue;
		check_geometry(&geo, total, log);
		check_data_area(&geo);
	}
}

static void the_default_log_fits_every_pool(void **state)
{
	struct cpc_geometry geo;

	for (uint64_t total = CPC_POOL_SIZE_MIN; total <= CPC_POOL_SIZE_MAX; total *= 2) {
		uint64_t log = cpc_default_log_size(total);

		assert_int_equal(cpc_geometry_init(&geo, total, log, 65536, true), 0);
		check_geometry(&geo, total, log);
		assert_int_equal(cpc_geometry_init(&geo, total + 4096, log, 4096, false),
				 total == CPC_POOL_SIZE_MAX ? -EINVAL : 0);
	}
	assert_int_equal(
	    cpc_geometry_init(&geo, CPC_POOL_SIZE_MIN - 4096, CPC_LOG_SIZE_MIN, 4096, true),
	    -EINVAL);
}

/* --- names and checksums --- */

static void names_are_valid_or_not(void **state)
{
	static const char *const good[] = {"a", "0", "_", "disk0", "a.b-c_d", "A.", "x-"};
	static const char *const bad[] = {"",	".",   "..",  "-",   "-a",
					  ".a", "a b", "a/b", "a@b", "\xc3\xa4"};
	char name[CPC_NAME_MAX + 1];

	for (unsigned i = 0; i < CPC_ARRAY_SIZE(good); i++)
		assert_true(cpc_name_valid(good[i], strlen(good[i])));
	for (unsigned i = 0; i < CPC_ARRAY_SIZE(bad); i++)
		assert_false(cpc_name_valid(bad[i], strlen(bad[i])));
	memset(name, 'n', sizeof(name));
	assert_true(cpc_name_valid(name, CPC_NAME_MAX));
	assert_false(cpc_name_valid(name, CPC_NAME_MAX + 1));
	for (unsigned c = 0; c < 256; c++) {
		name[1] = (char)c;
		assert_int_equal(cpc_name_valid(name, 3),
				 c < 128 && (isalnum((int)c) || (c && strchr("._-", (int)c))));
	}
}

static void a_bitmap_knows_its_place(void **state)
{
	uint8_t bitmap[CPC_BLOCK_SIZE] = {1, 2, 3}, uuid[CPC_UUID_SIZE] = {4};
	uint32_t csum = cpc_bitmap_csum(uuid, 5, 6, bitmap);

	assert_int_not_equal(csum, cpc_bitmap_csum(uuid, 6, 6, bitmap));
	assert_int_not_equal(csum, cpc_bitmap_csum(uuid, 5, 7, bitmap));
	bitmap[4095] = 1;
	assert_int_not_equal(csum, cpc_bitmap_csum(uuid, 5, 6, bitmap));
	bitmap[4095] = 0;
	uuid[0] = 5;
	assert_int_not_equal(csum, cpc_bitmap_csum(uuid, 5, 6, bitmap));
	assert_int_equal(cpc_csum("123456789", 9), 0xe3069283);
}

static void a_uuid_is_printed_in_five_parts(void **state)
{
	uint8_t uuid[CPC_UUID_SIZE];
	char text[37];

	for (unsigned i = 0; i < CPC_UUID_SIZE; i++)
		uuid[i] = (uint8_t)(i * 17);
	cpc_uuid_format(uuid, text);
	assert_string_equal(text, "00112233-4455-6677-8899-aabbccddeeff");
}

/* --- the document --- */

/* One row: a field of a structure, or the structure itself (field ""). */
struct row {
	char type[32], field[32];
	unsigned long offset, size;
	bool repeated; /* a flexible array, size is one element's */
};

#define STRUCT(type)                                                                               \
	{                                                                                          \
#type, "", 0, sizeof(struct type), false                                           \
	}
#define FIELD(type, name)                                                                          \
	{                                                                                          \
#type, #name, offsetof(struct type, name), sizeof(((struct type *)0)->name), false \
	}
#define ARRAY(type, name)                                                                          \
	{                                                                                          \
#type, #name, offsetof(struct type, name), sizeof(((struct type *)0)->name[0]),    \
		    true                                                                           \
	}

static const struct row rows[] = {
    STRUCT(cpc_disk_super),
    FIELD(cpc_disk_super, magic),
    FIELD(cpc_disk_super, csum),
    FIELD(cpc_disk_super, version),
    FIELD(cpc_disk_super, uuid),
    FIELD(cpc_disk_super, compat),
    FIELD(cpc_disk_super, compat_ro),
    FIELD(cpc_disk_super, incompat),
    FIELD(cpc_disk_super, transid),
    FIELD(cpc_disk_super, total_bytes),
    FIELD(cpc_disk_super, nonce),
    FIELD(cpc_disk_super, nodesize),
    FIELD(cpc_disk_super, slot),
    FIELD(cpc_disk_super, log_size),
    FIELD(cpc_disk_super, log_position),
    FIELD(cpc_disk_super, log_seq),
    FIELD(cpc_disk_super, log_durable),
    FIELD(cpc_disk_super, next_volume),
    FIELD(cpc_disk_super, next_drop),
    FIELD(cpc_disk_super, next_free_log),
    FIELD(cpc_disk_super, used_blocks),
    FIELD(cpc_disk_super, created),
    FIELD(cpc_disk_super, root),
    FIELD(cpc_disk_super, free_log),
    FIELD(cpc_disk_super, label_len),
    FIELD(cpc_disk_super, label),
    FIELD(cpc_disk_super, flags),
    FIELD(cpc_disk_super, reserved),
    STRUCT(cpc_disk_ptr),
    FIELD(cpc_disk_ptr, bytenr),
    FIELD(cpc_disk_ptr, bytenr2),
    FIELD(cpc_disk_ptr, generation),
    FIELD(cpc_disk_ptr, data_blocks),
    FIELD(cpc_disk_ptr, nodes),
    FIELD(cpc_disk_ptr, csum),
    FIELD(cpc_disk_ptr, level),
    FIELD(cpc_disk_ptr, reserved),
    STRUCT(cpc_disk_node),
    FIELD(cpc_disk_node, csum),
    FIELD(cpc_disk_node, magic),
    FIELD(cpc_disk_node, uuid),
    FIELD(cpc_disk_node, bytenr),
    FIELD(cpc_disk_node, generation),
    FIELD(cpc_disk_node, owner),
    FIELD(cpc_disk_node, nritems),
    FIELD(cpc_disk_node, level),
    FIELD(cpc_disk_node, reserved),
    STRUCT(cpc_disk_child),
    FIELD(cpc_disk_child, key),
    FIELD(cpc_disk_child, ptr),
    STRUCT(cpc_disk_item),
    FIELD(cpc_disk_item, key),
    FIELD(cpc_disk_item, offset),
    FIELD(cpc_disk_item, size),
    STRUCT(cpc_disk_extent),
    FIELD(cpc_disk_extent, bytenr),
    FIELD(cpc_disk_extent, birth),
    ARRAY(cpc_disk_extent, csum),
    STRUCT(cpc_disk_volume),
    FIELD(cpc_disk_volume, size),
    FIELD(cpc_disk_volume, flags),
    FIELD(cpc_disk_volume, created),
    FIELD(cpc_disk_volume, generation),
    FIELD(cpc_disk_volume, limit),
    FIELD(cpc_disk_volume, origin),
    FIELD(cpc_disk_volume, snapshot_of),
    FIELD(cpc_disk_volume, dead_blocks),
    FIELD(cpc_disk_volume, root),
    FIELD(cpc_disk_volume, uuid),
    FIELD(cpc_disk_volume, reserved),
    FIELD(cpc_disk_volume, name_len),
    ARRAY(cpc_disk_volume, name),
    STRUCT(cpc_disk_group),
    FIELD(cpc_disk_group, generation),
    FIELD(cpc_disk_group, csum),
    FIELD(cpc_disk_group, used),
    FIELD(cpc_disk_group, home),
    FIELD(cpc_disk_group, reserved),
    STRUCT(cpc_disk_drop),
    FIELD(cpc_disk_drop, ptr),
    FIELD(cpc_disk_drop, owner),
    FIELD(cpc_disk_drop, limit),
    FIELD(cpc_disk_drop, dead_to),
    STRUCT(cpc_disk_dead),
    FIELD(cpc_disk_dead, birth_min),
    FIELD(cpc_disk_dead, birth_max),
    FIELD(cpc_disk_dead, blocks),
    FIELD(cpc_disk_dead, root),
    STRUCT(cpc_disk_dead_run),
    FIELD(cpc_disk_dead_run, blocks),
    STRUCT(cpc_disk_delta),
    FIELD(cpc_disk_delta, entries),
    FIELD(cpc_disk_delta, root),
    STRUCT(cpc_disk_free_log),
    FIELD(cpc_disk_free_log, transid),
    ARRAY(cpc_disk_free_log, entry),
    STRUCT(cpc_disk_free_entry),
    FIELD(cpc_disk_free_entry, block),
    FIELD(cpc_disk_free_entry, count),
    STRUCT(cpc_disk_log_record),
    FIELD(cpc_disk_log_record, csum),
    FIELD(cpc_disk_log_record, magic),
    FIELD(cpc_disk_log_record, uuid),
    FIELD(cpc_disk_log_record, nonce),
    FIELD(cpc_disk_log_record, seq),
    FIELD(cpc_disk_log_record, transid),
    FIELD(cpc_disk_log_record, durable),
    FIELD(cpc_disk_log_record, position),
    FIELD(cpc_disk_log_record, length),
    FIELD(cpc_disk_log_record, nr_entries),
    FIELD(cpc_disk_log_record, flags),
    FIELD(cpc_disk_log_record, reserved),
    STRUCT(cpc_disk_log_entry),
    FIELD(cpc_disk_log_entry, type),
    FIELD(cpc_disk_log_entry, reserved),
    FIELD(cpc_disk_log_entry, size),
    FIELD(cpc_disk_log_entry, volume),
    FIELD(cpc_disk_log_entry, block),
    FIELD(cpc_disk_log_entry, nr_blocks),
    FIELD(cpc_disk_log_entry, bytenr),
};

#define CONSTANT(name)                                                                             \
	{                                                                                          \
#name, name                                                                        \
	}

static const struct {
	const char *name;
	unsigned long long value;
} constants[] = {
    CONSTANT(CPC_FORMAT_VERSION),  CONSTANT(CPC_NODE_MAGIC),	    CONSTANT(CPC_LOG_MAGIC),
    CONSTANT(CPC_NODESIZE_MIN),	   CONSTANT(CPC_NODESIZE_MAX),	    CONSTANT(CPC_MAX_LEVEL),
    CONSTANT(CPC_ITEM_MAX_SIZE),   CONSTANT(CPC_EXTENT_MAX_BLOCKS), CONSTANT(CPC_GROUP_BLOCKS),
    CONSTANT(CPC_SUPER_SLOTS),	   CONSTANT(CPC_LOG_SIZE_MIN),	    CONSTANT(CPC_LOG_SIZE_MAX),
    CONSTANT(CPC_POOL_SIZE_MIN),   CONSTANT(CPC_POOL_SIZE_MAX),	    CONSTANT(CPC_VOLUME_SIZE_MAX),
    CONSTANT(CPC_NAME_MAX),	   CONSTANT(CPC_LABEL_MAX),	    CONSTANT(CPC_TREE_ROOT),
    CONSTANT(CPC_TREE_FREE_LOG),   CONSTANT(CPC_TREE_DEAD),	    CONSTANT(CPC_TREE_VOLUME_BASE),
    CONSTANT(CPC_ITEM_VOLUME),	   CONSTANT(CPC_ITEM_GROUP),	    CONSTANT(CPC_ITEM_DROP),
    CONSTANT(CPC_ITEM_DEAD),	   CONSTANT(CPC_ITEM_DELTA),	    CONSTANT(CPC_KEY_TYPE_SHIFT),
    CONSTANT(CPC_VOLUME_READONLY), CONSTANT(CPC_FREE_ENTRY_FREED),  CONSTANT(CPC_LOG_ENDS_CUT),
    CONSTANT(CPC_LOG_MARK),	   CONSTANT(CPC_LOG_MAP),	    CONSTANT(CPC_LOG_HOLE),
    CONSTANT(CPC_LOG_CREATE),	   CONSTANT(CPC_LOG_RENAME),	    CONSTANT(CPC_LOG_DELETE),
    CONSTANT(CPC_LOG_RESIZE),	   CONSTANT(CPC_INCOMPAT_DUP),	    CONSTANT(CPC_INCOMPAT_DELTA),
    CONSTANT(CPC_COMPAT_SPARSE),   CONSTANT(CPC_SUPER_CLEAN),
};

/* Reads "### `type`, N bytes". */
static bool parse_heading(const char *line, struct row *row)
{
	row->field[0] = '\0';
	row->offset = 0;
	row->repeated = false;
	return sscanf(line, "### `%31[a-z_]`, %lu bytes", row->type, &row->size) == 2;
}

/* Reads "| offset | size | `field` |"; keeps row->type. */
static bool parse_row(const char *line, struct row *row)
{
	char size[32];

	if (sscanf(line, "| %lu | %31[0-9*] | `%31[a-z_0-9]` |", &row->offset, size, row->field) !=
	    3)
		return false;
	row->size = strtoul(size, NULL, 10);
	row->repeated = strchr(size, '*') != NULL;
	return true;
}

static void compare_row(const struct row *doc, size_t i)
{
	const struct row *code = &rows[i];

	if (i >= CPC_ARRAY_SIZE(rows))
		fail_msg("the document has %s.%s, which this test does not know", doc->type,
			 doc->field);
	if (strcmp(doc->type, code->type) || strcmp(doc->field, code->field) ||
	    doc->offset != code->offset || doc->size != code->size ||
	    doc->repeated != code->repeated)
		fail_msg("document: %s.%s at %lu, size %lu; code: %s.%s at %lu, size %lu",
			 doc->type, doc->field, doc->offset, doc->size, code->type, code->field,
			 code->offset, code->size);
}

static FILE *open_document(void)
{
	FILE *f = fopen(DOCUMENT, "r");

	if (!f)
		fail_msg("cannot read %s", DOCUMENT);
	return f;
}

static void the_document_has_every_field_as_it_is(void **state)
{
	char line[512];
	struct row row = {"", "", 0, 0, false};
	FILE *f = open_document();
	size_t i = 0;

	while (fgets(line, sizeof(line), f)) {
		if (parse_heading(line, &row) || parse_row(line, &row))
			compare_row(&row, i++);
	}
	fclose(f);
	assert_int_equal(i, CPC_ARRAY_SIZE(rows));
}

static void the_document_has_every_constant_as_it_is(void **state)
{
	char line[512], name[64], value[64];
	FILE *f = open_document();
	size_t i = 0;

	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "| `CPC_%59[A-Z_0-9]` | %63s |", name, value) != 2)
			continue;
		assert_true(i < CPC_ARRAY_SIZE(constants));
		assert_string_equal(name, constants[i].name + strlen("CPC_"));
		if (strtoull(value, NULL, 0) != constants[i].value)
			fail_msg("CPC_%s is %s in the document", name, value);
		i++;
	}
	fclose(f);
	assert_int_equal(i, CPC_ARRAY_SIZE(constants));
}

/* The rows know every byte of each structure: a field left out of both would be seen here. */
static void the_fields_leave_no_gap(void **state)
{
	unsigned long end = 0, size = 0;

	for (size_t i = 0; i < CPC_ARRAY_SIZE(rows); i++) {
		if (!rows[i].field[0]) {
			assert_int_equal(end, size);
			end = 0;
			size = rows[i].size;
			continue;
		}
		assert_int_equal(rows[i].offset, end);
		end += rows[i].repeated ? 0 : rows[i].size;
	}
	assert_int_equal(end, size);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_superblock_survives_encoding),
	    cmocka_unit_test(every_flipped_bit_of_a_superblock_is_refused),
	    cmocka_unit_test(impossible_superblocks_are_refused),
	    cmocka_unit_test(what_is_no_superblock_is_told_apart),
	    cmocka_unit_test(pointers_survive_encoding),
	    cmocka_unit_test(fixed_areas_are_disjoint_and_inside),
	    cmocka_unit_test(the_default_log_fits_every_pool),
	    cmocka_unit_test(names_are_valid_or_not),
	    cmocka_unit_test(a_bitmap_knows_its_place),
	    cmocka_unit_test(a_uuid_is_printed_in_five_parts),
	    cmocka_unit_test(the_document_has_every_field_as_it_is),
	    cmocka_unit_test(the_document_has_every_constant_as_it_is),
	    cmocka_unit_test(the_fields_leave_no_gap),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
