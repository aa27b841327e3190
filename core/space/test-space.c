/* SPDX-License-Identifier: BSD-3-Clause */
/* test-space: each promise of space.h by itself. */
#include "space/test-disk-internal.h"

static struct disk disk;

/* --- the beginning -------------------------------------------------------------------------- */

static void test_fresh_bitmap_is_the_geometry(void **state)
{
	const uint64_t sizes[] = {1024, 32768, 32769, 40000, 65536 + 7, 6 * 32768 - 100};

	for (size_t i = 0; i < CPC_ARRAY_SIZE(sizes); i++) {
		disk_init(&disk, sizes[i], 16384, i % 2);
		for (uint64_t b = 0; b < disk.geo.nr_groups * CPC_GROUP_BLOCKS; b++) {
			bool data = b >= disk.geo.data_start && b < disk.geo.data_end;

			assert_int_equal(
			    bitmap_get(disk.bitmaps[b / CPC_GROUP_BLOCKS], b % CPC_GROUP_BLOCKS),
			    !data);
		}
	}
}

static void test_fresh_pool_has_all_its_data_area_free(void **state)
{
	struct cpc_space_info info;
	struct cpc_space *space;

	disk_init(&disk, 5 * 32768 - 77, 16384, true);
	assert_int_equal(cpc_space_create(&disk.geo, disk_load, &disk, &space), 0);
	info = info_of(space);
	assert_int_equal(info.total, disk.geo.nr_blocks);
	assert_int_equal(info.free, disk.geo.data_end - disk.geo.data_start);
	assert_int_equal(info.used, info.total - info.free);
	assert_int_equal(info.node_slots,
			 disk.geo.data_end / 4 - cpc_div_round_up(disk.geo.data_start, 4));
	assert_int_equal(disk.nr_loads, 0);
	cpc_space_destroy(space);
	cpc_space_destroy(NULL);
}

static void test_create_without_memory_fails_cleanly(void **state)
{
	struct cpc_space *space = NULL;
	int err = -ENOMEM;

	disk_init(&disk, 3 * 32768, 16384, true);
	for (long n = 0; err; n++) {
		fail_countdown = n;
		err = cpc_space_create(&disk.geo, disk_load, &disk, &space);
		if (err)
			assert_int_equal(err, -ENOMEM);
		if (err)
			assert_int_equal(nr_live, 0);
		assert_true(n < 50);
	}
	fail_countdown = -1;
	cpc_space_destroy(space);
}

/* --- where things go ------------------------------------------------------------------------ */

static void test_empty_pool_gives_long_ascending_runs(void **state)
{
	struct cpc_space *space;
	uint64_t block, last = 0, jumps = 0;
	uint32_t got;

	disk_init(&disk, 8 * 32768, 16384, true);
	space = disk_open(&disk);
	for (int i = 0; i < 400; i++) {
		assert_int_equal(cpc_space_alloc(space, CPC_SPACE_DATA, 256, 1, &block, &got), 0);
		assert_true(block >= last);
		jumps += block != last;
		last = block + got;
	}
	assert_true(jumps <= 5); /* the first, and the node groups that it passes */
	cpc_space_check(space);
	cpc_space_destroy(space);
}

static void test_nodes_are_aligned_and_apart(void **state)
{
	uint64_t block[3], half, middle;
	struct cpc_space *space;
	uint32_t got;

	for (uint32_t nodesize = 4096; nodesize <= 65536; nodesize *= 2) {
		uint32_t n = nodesize / 4096;

		disk_init(&disk, 16 * 32768, nodesize, true);
		space = disk_open(&disk);
		half = (disk.geo.data_end - disk.geo.data_start) / 2;
		middle = disk.geo.data_start + half;
		for (int i = 0; i < 3000; i++) {
			for (int k = 0; k < CPC_SPACE_NR_KINDS; k++) {
				uint32_t want = k == CPC_SPACE_DATA ? 3 : n;

				assert_int_equal(cpc_space_alloc(space, (enum cpc_space_kind)k,
								 want, want, &block[k], &got),
						 0);
				assert_true(k == CPC_SPACE_DATA || block[k] % n == 0);
			}
			assert_true(block[CPC_SPACE_NODE] < middle);
			assert_true(block[CPC_SPACE_NODE2] >= middle);
			assert_true(block[CPC_SPACE_NODE] / 32768 != block[CPC_SPACE_DATA] / 32768);
			assert_true(block[CPC_SPACE_NODE2] / 32768 !=
				    block[CPC_SPACE_DATA] / 32768);
		}
		cpc_space_check(space);
		cpc_space_destroy(space);
	}
}

/* Marks the group of an allocation as one of a kind. */
static void note_group(uint8_t *kinds, uint64_t block, enum cpc_space_kind kind)
{
	kinds[block / CPC_GROUP_BLOCKS] |= (uint8_t)(1u << kind);
}

/* Nodes come and go a hundred times over, data comes and stays: they do not mix. */
static void test_nodes_stay_apart_when_they_are_rewritten(void **state)
{
	enum { WINDOW = 500 };
	uint64_t ring[WINDOW] = {0}, block;
	uint8_t kinds[MAX_GROUPS] = {0};
	struct cpc_space *space;
	unsigned node_groups = 0;
	uint32_t got;

	disk_init(&disk, 16 * 32768, 16384, true);
	space = disk_open(&disk);
	for (int i = 0; i < 100 * WINDOW; i++) {
		enum cpc_space_kind kind = i % 2 ? CPC_SPACE_NODE : CPC_SPACE_NODE2;

		if (ring[i % WINDOW])
			cpc_space_release(space, ring[i % WINDOW], 4);
		assert_int_equal(cpc_space_alloc(space, kind, 4, 4, &ring[i % WINDOW], &got), 0);
		note_group(kinds, ring[i % WINDOW], kind);
		assert_int_equal(cpc_space_alloc(space, CPC_SPACE_DATA, 8, 8, &block, &got), 0);
		note_group(kinds, block, CPC_SPACE_DATA);
	}
	for (uint64_t g = 0; g < disk.geo.nr_groups; g++) {
		node_groups += (kinds[g] & 6) != 0;
		assert_true((kinds[g] & (kinds[g] - 1)) == 0); /* one kind */
	}
	assert_true(node_groups <= 3); /* the first group is small */
	cpc_space_check(space);
	cpc_space_destroy(space);
}

/* Everything can be allocated, by any kind, and nothing twice. */
static void test_tiny_pool_is_shared_to_the_last_block(void **state)
{
	struct cpc_space *space;
	uint8_t seen[2048] = {0};
	uint64_t block, total = 0;
	uint32_t got;
	int kind;

	disk_init(&disk, 2048, 16384, true);
	space = disk_open(&disk);
	for (kind = CPC_SPACE_NODE2; kind >= 0;) {
		uint32_t want = kind == CPC_SPACE_DATA ? 7 : 4, min = kind ? 4 : 1;
		int err =
		    cpc_space_alloc(space, (enum cpc_space_kind)kind, want, min, &block, &got);

		if (err) {
			assert_int_equal(err, -ENOSPC);
			kind--;
			continue;
		}
		for (uint32_t i = 0; i < got; i++)
			assert_int_equal(seen[block + i]++, 0);
		total += got;
		if (kind > 0 && total > 600)
			kind--;
	}
	assert_int_equal(total, disk.geo.data_end - disk.geo.data_start);
	assert_int_equal(info_of(space).free, 0);
	cpc_space_destroy(space);
}

static int load_fresh(void *ctx, uint64_t group, uint8_t bitmap[CPC_BLOCK_SIZE])
{
	struct disk *d = ctx;

	d->nr_loads++;
	cpc_space_fresh_bitmap(&d->geo, group, bitmap);
	return 0;
}

/* 64 TiB with every group full but one. */
static void test_full_groups_are_passed_over_unread(void **state)
{
	const uint64_t open_group = 400000;
	struct cpc_geometry *geo = &disk.geo;
	struct cpc_space *space;
	uint64_t block;
	uint32_t got;

	memset(&disk, 0, sizeof(disk));
	assert_int_equal(cpc_geometry_init(geo, 1ull << 46, 1u << 30, 16384, true), 0);
	assert_int_equal(cpc_space_create(geo, load_fresh, &disk, &space), 0);
	for (uint64_t g = 0; g < geo->nr_groups; g++)
		cpc_space_set_group(space, g, cpc_geometry_group_blocks(geo, g));
	assert_int_equal(cpc_space_alloc(space, CPC_SPACE_DATA, 256, 1, &block, &got), -ENOSPC);
	assert_int_equal(cpc_space_alloc(space, CPC_SPACE_NODE, 4, 4, &block, &got), -ENOSPC);
	assert_int_equal(disk.nr_loads, 0);
	cpc_space_set_group(space, open_group, 0);
	assert_int_equal(cpc_space_alloc(space, CPC_SPACE_DATA, 256, 1, &block, &got), 0);
	assert_int_equal(got, 256);
	assert_int_equal(block / CPC_GROUP_BLOCKS, open_group);
	assert_int_equal(cpc_space_alloc(space, CPC_SPACE_NODE, 4, 4, &block, &got), 0);
	assert_int_equal(disk.nr_loads, 1);
	cpc_space_check(space);
	cpc_space_destroy(space);
}

/* --- loading -------------------------------------------------------------------------------- */

static void test_unreadable_group_is_full_for_ever(void **state)
{
	struct cpc_space_info before, after;
	struct cpc_space *space;
	uint8_t bitmap[CPC_BLOCK_SIZE];
	uint64_t block, total = 0;
	uint32_t got;

	disk_init(&disk, 4 * 32768, 16384, false);
	space = disk_open(&disk);
	before = info_of(space);
	disk.load_error[2] = -EIO;
	assert_int_equal(cpc_space_get_used(space, 2, bitmap, &got), -EUCLEAN);
	after = info_of(space);
	assert_int_equal(after.free, before.free - CPC_GROUP_BLOCKS);
	assert_int_equal(after.used, before.used);
	assert_int_equal(after.bad_groups, 1);
	disk.load_error[2] = 0;
	while (cpc_space_alloc(space, CPC_SPACE_DATA, 256, 1, &block, &got) == 0) {
		assert_true(block / CPC_GROUP_BLOCKS != 2);
		total += got;
	}
	assert_int_equal(total, after.free);
	assert_int_equal(cpc_space_prepare_free(space, 2 * CPC_GROUP_BLOCKS + 5, 1), -EUCLEAN);
	assert_int_equal(cpc_space_mark_busy(space, 2 * CPC_GROUP_BLOCKS + 5, 1), 0);
	cpc_space_set_used(space, 2 * CPC_GROUP_BLOCKS + 5, 1);
	assert_int_equal(nr_warnings, 1);
	cpc_space_check(space);
	cpc_space_destroy(space);
}

static void test_load_without_memory_is_tried_again(void **state)
{
	struct cpc_space *space;
	uint64_t block;
	uint32_t got;

	disk_init(&disk, 32768, 16384, false);
	space = disk_open(&disk);
	disk.load_error[0] = -ENOMEM;
	assert_int_equal(cpc_space_alloc(space, CPC_SPACE_DATA, 1, 1, &block, &got), -ENOMEM);
	disk.load_error[0] = 0;
	assert_int_equal(cpc_space_alloc(space, CPC_SPACE_DATA, 1, 1, &block, &got), 0);
	assert_int_equal(nr_warnings, 0);
	cpc_space_destroy(space);
}

/* A bitmap that frees a fixed area, or has another number of bits than was said, is refused. */
static void test_contradictory_bitmap_is_bad(void **state)
{
	struct cpc_space *space;
	uint8_t bitmap[CPC_BLOCK_SIZE];
	uint32_t got;

	for (int i = 0; i < 4; i++) {
		disk_init(&disk, 32768 * 2 - 50, 16384, false);
		space = disk_open(&disk);
		if (i == 0) { /* the superblock, and one more to keep the number */
			bitmap_set(disk.bitmaps[0], 0, false);
			bitmap_set(disk.bitmaps[0], 9000, true);
		} else if (i == 1) { /* beyond the end */
			bitmap_set(disk.bitmaps[1], 32767, false);
			bitmap_set(disk.bitmaps[1], 9000, true);
		} else if (i == 2) {
			bitmap_set(disk.bitmaps[0], 9000, true);
		} else {
			cpc_space_set_group(space, 0, 3);
		}
		assert_int_equal(cpc_space_get_used(space, i == 1, bitmap, &got), -EUCLEAN);
		assert_int_equal(cpc_space_get_used(space, i != 1, bitmap, &got), 0);
		assert_int_equal(info_of(space).bad_groups, 1);
		cpc_space_destroy(space);
	}
	disk_init(&disk, 32768 * 2 - 50, 16384, false);
	space = disk_open(&disk);
	cpc_space_set_group(space, 1, UINT32_MAX);
	assert_int_equal(info_of(space).bad_groups, 1);
	cpc_space_destroy(space);
}

static void test_clean_groups_are_evicted_and_read_back_equal(void **state)
{
	uint8_t bitmap[CPC_BLOCK_SIZE];
	struct cpc_space *space;
	uint32_t got;

	seed(__func__);
	disk_init(&disk, 20 * 32768, 16384, false);
	for (int i = 0; i < 30000; i++)
		disk_set(&disk, disk.geo.data_start + rnd(disk.geo.data_end - disk.geo.data_start),
			 true);
	space = disk_open(&disk);
	cpc_space_set_max_loaded(space, 4);
	for (int round = 0; round < 2; round++) {
		for (uint64_t g = 0; g < 20; g++) {
			assert_int_equal(cpc_space_get_used(space, g, bitmap, &got), 0);
			assert_memory_equal(bitmap, disk.bitmaps[g], CPC_BLOCK_SIZE);
			assert_int_equal(got, disk_used(&disk, g));
			assert_true(info_of(space).loaded_groups <= 4);
		}
	}
	assert_int_equal(disk.nr_loads, 40);
	cpc_space_destroy(space);
}

static void test_groups_in_use_are_not_evicted(void **state)
{
	struct cpc_space *space;
	uint8_t bitmap[CPC_BLOCK_SIZE];
	const uint64_t g1 = 1 * 32768, g2 = 2 * 32768, g3 = 3 * 32768;
	uint64_t loads;
	uint32_t used;

	disk_init(&disk, 6 * 32768, 16384, false);
	disk_set(&disk, g2 + 8, true);
	space = disk_open(&disk);
	cpc_space_set_max_loaded(space, 0);
	assert_int_equal(cpc_space_mark_busy(space, g1, 1), 0);
	assert_int_equal(cpc_space_prepare_free(space, g2 + 8, 1), 0);
	cpc_space_set_dirty(space, 3, true);
	assert_int_equal(cpc_space_get_used(space, 3, bitmap, &used), 0);
	loads = disk.nr_loads;
	assert_int_equal(cpc_space_get_used(space, 4, bitmap, &used), 0);
	assert_int_equal(cpc_space_get_used(space, 5, bitmap, &used), 0);
	for (uint64_t g = 1; g < 4; g++)
		assert_int_equal(cpc_space_get_used(space, g, bitmap, &used), 0);
	assert_int_equal(disk.nr_loads, loads + 2);
	cpc_space_set_used(space, g1, 1);
	cpc_space_set_dirty(space, 1, true);
	disk_set(&disk, g1, true);
	cpc_space_set_dirty(space, 1, false);
	cpc_space_unprepare(space, g2 + 8, 1);
	assert_int_equal(info_of(space).loaded_groups, 1);
	cpc_space_set_dirty(space, 3, false);
	assert_int_equal(info_of(space).loaded_groups, 0);
	assert_int_equal(cpc_space_get_used(space, 1, bitmap, &used), 0);
	assert_int_equal(used, 1);
	assert_int_equal(cpc_space_mark_busy(space, g3, 0), 0);
	cpc_space_check(space);
	cpc_space_destroy(space);
}

/* --- a commit ------------------------------------------------------------------------------- */

static void test_freed_blocks_stay_pinned_until_released(void **state)
{
	const uint64_t block = 32768 - 3; /* across two groups */
	struct cpc_space_info info;
	struct cpc_space *space;
	uint64_t free_before;

	disk_init(&disk, 3 * 32768, 16384, false);
	space = disk_open(&disk);
	free_before = info_of(space).free;
	assert_int_equal(cpc_space_prepare_free(space, block, 6), -EUCLEAN); /* not in use */
	assert_int_equal(cpc_space_mark_busy(space, block, 6), 0);
	assert_int_equal(cpc_space_mark_busy(space, block + 1, 2), 0); /* again: no change */
	assert_int_equal(cpc_space_prepare_free(space, block, 6), -EUCLEAN);
	cpc_space_set_used(space, block, 6);
	cpc_space_set_used(space, block, 6);
	info = info_of(space);
	assert_int_equal(info.free, free_before - 6);
	assert_int_equal(cpc_space_prepare_free(space, block, 7), -EUCLEAN);
	assert_int_equal(cpc_space_prepare_free(space, block, 6), 0);
	assert_int_equal(cpc_space_prepare_free(space, block + 5, 1), -EUCLEAN); /* twice */
	cpc_space_unprepare(space, block + 5, 1);
	assert_int_equal(cpc_space_prepare_free(space, block + 5, 1), 0);
	cpc_space_clear_used(space, block, 6);
	assert_int_equal(info_of(space).free, free_before - 6);
	assert_int_equal(info_of(space).used, info.used - 6);
	cpc_space_release(space, block, 6);
	assert_int_equal(info_of(space).free, free_before);
	cpc_space_destroy(space);
}

static void test_what_is_prepared_takes_memory_only_until_it_is_freed(void **state)
{
	struct cpc_space *space;
	uint8_t bitmap[CPC_BLOCK_SIZE];
	uint32_t used;
	int before;

	disk_init(&disk, 8 * 32768, 16384, false);
	for (uint64_t g = 1; g < 8; g++) {
		disk_set(&disk, g * CPC_GROUP_BLOCKS + 8, true);
		disk_set(&disk, g * CPC_GROUP_BLOCKS + 9, true);
	}
	space = disk_open(&disk);
	for (uint64_t g = 1; g < 8; g++)
		assert_int_equal(cpc_space_get_used(space, g, bitmap, &used), 0);
	before = nr_live;
	for (uint64_t g = 1; g < 8; g++)
		assert_int_equal(cpc_space_prepare_free(space, g * CPC_GROUP_BLOCKS + 8, 2), 0);
	assert_true(nr_live > before);
	for (uint64_t g = 1; g < 8; g++)
		cpc_space_clear_used(space, g * CPC_GROUP_BLOCKS + 8, 2);
	assert_int_equal(nr_live, before);
	cpc_space_check(space);
	cpc_space_destroy(space);
}

static void test_addresses_outside_the_data_area_are_damage(void **state)
{
	struct cpc_space *space;
	uint64_t end;

	disk_init(&disk, 32768, 16384, true);
	space = disk_open(&disk);
	end = disk.geo.data_end;
	assert_int_equal(cpc_space_mark_busy(space, 0, 1), -EUCLEAN);
	assert_int_equal(cpc_space_mark_busy(space, end - 1, 2), -EUCLEAN);
	assert_int_equal(cpc_space_mark_busy(space, end, 1), -EUCLEAN);
	assert_int_equal(cpc_space_mark_busy(space, UINT64_MAX, 2), -EUCLEAN);
	assert_int_equal(cpc_space_mark_busy(space, end - 1, UINT64_MAX), -EUCLEAN);
	assert_int_equal(cpc_space_prepare_free(space, disk.geo.data_start - 1, 1), -EUCLEAN);
	assert_int_equal(cpc_space_prepare_free(space, 1ull << 60, 1), -EUCLEAN);
	assert_int_equal(cpc_space_mark_busy(space, end - 1, 1), 0);
	cpc_space_check(space);
	cpc_space_destroy(space);
}

/* --- reservations --------------------------------------------------------------------------- */

static void test_reservations_are_bounded_by_free_blocks(void **state)
{
	struct cpc_space *space;
	uint64_t nr_free, slots, block;
	uint32_t got;

	disk_init(&disk, 32768, 16384, false);
	space = disk_open(&disk);
	nr_free = info_of(space).free;
	slots = info_of(space).node_slots;
	assert_int_equal(cpc_space_reserve(space, nr_free + 1, 0), -ENOSPC);
	assert_int_equal(cpc_space_reserve(space, nr_free, 1), -ENOSPC);
	assert_int_equal(cpc_space_reserve(space, 1, UINT64_MAX), -ENOSPC);
	assert_int_equal(cpc_space_reserve(space, UINT64_MAX, 1), -ENOSPC);
	assert_int_equal(cpc_space_reserve_nodes(space, UINT64_MAX / 4, 0), -ENOSPC);
	assert_int_equal(cpc_space_reserve_nodes(space, slots + 1, 0), -ENOSPC);
	assert_int_equal(cpc_space_reserve_nodes(space, slots, 0), 0);
	assert_int_equal(cpc_space_reserve(space, nr_free - slots * 4 + 1, 0), -ENOSPC);
	assert_int_equal(cpc_space_reserve(space, nr_free - slots * 4, 0), 0);
	assert_int_equal(info_of(space).reserved, nr_free);
	cpc_space_unreserve(space, nr_free - slots * 4);
	cpc_space_unreserve_nodes(space, slots);
	assert_int_equal(cpc_space_reserve(space, 100, nr_free - 100), 0);
	assert_int_equal(cpc_space_alloc_reserved(space, CPC_SPACE_DATA, 60, 1, &block, &got), 0);
	assert_int_equal(info_of(space).reserved, 40);
	cpc_space_unreserve(space, 40);
	cpc_space_destroy(space);
}

/* Uses half of the blocks so that no slot is left but in one group. */
static void fragment_disk(uint64_t whole_group)
{
	for (uint64_t b = disk.geo.data_start; b < disk.geo.data_end; b++)
		disk_set(&disk, b, b / CPC_GROUP_BLOCKS != whole_group && b % 2);
}

static void test_data_leaves_slots_that_nodes_reserved(void **state)
{
	struct cpc_space *space;
	uint64_t block, data, nodes = 8000;
	uint32_t got;

	disk_init(&disk, 6 * 32768, 16384, false);
	fragment_disk(4);
	space = disk_open(&disk);
	assert_int_equal(cpc_space_reserve_nodes(space, 8192 + 1, 0), -ENOSPC);
	assert_int_equal(cpc_space_reserve_nodes(space, nodes, 0), 0);
	assert_int_equal(info_of(space).node_slots, 8192);
	data = info_of(space).free - nodes * 4;
	assert_int_equal(cpc_space_reserve(space, data, 0), 0);
	while (data > 0) {
		uint32_t want = (uint32_t)cpc_min_u64(data, 256);

		assert_int_equal(
		    cpc_space_alloc_reserved(space, CPC_SPACE_DATA, want, 1, &block, &got), 0);
		data -= got;
	}
	assert_int_equal(cpc_space_alloc(space, CPC_SPACE_DATA, 1, 1, &block, &got), -ENOSPC);
	for (uint64_t i = 0; i < nodes; i++)
		assert_int_equal(cpc_space_alloc_reserved(space,
							  i % 2 ? CPC_SPACE_NODE : CPC_SPACE_NODE2,
							  4, 4, &block, &got),
				 0);
	assert_int_equal(info_of(space).free, 0);
	assert_int_equal(info_of(space).reserved, 0);
	cpc_space_destroy(space);
}

static void test_kept_slots_are_spent_by_nodes_only(void **state)
{
	struct cpc_space *space;
	uint64_t block, data;
	uint32_t got;

	disk_init(&disk, 6 * 32768, 16384, false);
	fragment_disk(4);
	space = disk_open(&disk);
	assert_int_equal(cpc_space_reserve_keeping(space, 1, 0, 8193), -ENOSPC);
	assert_int_equal(cpc_space_reserve_keeping(space, 1, 0, UINT64_MAX), -ENOSPC);
	assert_int_equal(info_of(space).reserved, 0);
	assert_int_equal(cpc_space_reserve_nodes(space, 192, 0), 0);
	assert_int_equal(cpc_space_reserve_keeping(space, 1, 0, 8001), -ENOSPC);
	assert_int_equal(cpc_space_reserve_keeping(space, 1, 0, 8000), 0);
	data = info_of(space).free - 4 * 8192;
	assert_int_equal(cpc_space_reserve_keeping(space, data, 0, 500), -ENOSPC);
	assert_int_equal(cpc_space_reserve_keeping(space, data - 1, 0, 500), 0);
	for (; data > 0; data -= got)
		assert_int_equal(
		    cpc_space_alloc_reserved(space, CPC_SPACE_DATA, 1, 1, &block, &got), 0);
	assert_int_equal(cpc_space_alloc(space, CPC_SPACE_DATA, 1, 1, &block, &got), -ENOSPC);
	assert_int_equal(cpc_space_alloc(space, CPC_SPACE_NODE, 4, 4, &block, &got), 0);
	assert_int_equal(info_of(space).kept_nodes, 7999);
	cpc_space_keep_at_most(space, 9000);
	assert_int_equal(info_of(space).kept_nodes, 7999);
	cpc_space_keep_at_most(space, 7998);
	assert_int_equal(cpc_space_alloc(space, CPC_SPACE_DATA, 9, 1, &block, &got), 0);
	assert_int_equal(got, 4);
	assert_int_equal(cpc_space_alloc(space, CPC_SPACE_DATA, 9, 1, &block, &got), -ENOSPC);
	cpc_space_destroy(space);
}

static struct cpc_space *racing_space;

/* Somebody reserves nodes at the moment when the lock is dropped for a load. */
static int load_and_reserve(void *ctx, uint64_t group, uint8_t bitmap[CPC_BLOCK_SIZE])
{
	struct cpc_space *space = racing_space;

	racing_space = NULL;
	if (space)
		assert_int_equal(cpc_space_reserve_nodes(space, 8192, 0), 0);
	return disk_load(ctx, group, bitmap);
}

static void test_slots_reserved_during_a_load_are_left(void **state)
{
	struct cpc_space *space;
	uint64_t block;
	uint32_t got;

	disk_init(&disk, 6 * 32768, 16384, false);
	fragment_disk(4);
	assert_int_equal(cpc_space_create(&disk.geo, load_and_reserve, &disk, &space), 0);
	for (uint64_t g = 0; g < disk.geo.nr_groups; g++)
		cpc_space_set_group(space, g, disk_used(&disk, g));
	racing_space = space;
	assert_int_equal(cpc_space_alloc(space, CPC_SPACE_DATA, 16, 8, &block, &got), -ENOSPC);
	assert_null(racing_space);
	assert_int_equal(info_of(space).node_slots, 8192);
	assert_int_equal(cpc_space_alloc(space, CPC_SPACE_DATA, 16, 1, &block, &got), 0);
	assert_int_equal(got, 1);
	cpc_space_destroy(space);
}

/* Sprinkles used blocks: whole stretches of every density. */
static void random_disk(void)
{
	for (uint64_t b = disk.geo.data_start; b < disk.geo.data_end;) {
		uint64_t len = cpc_min_u64(1 + rnd(3000), disk.geo.data_end - b), of = 1 + rnd(9);

		for (; len > 0; len--, b++)
			disk_set(&disk, b, rnd(of) != 0);
	}
}

/* Spends both reservations in a random order to the last block. */
static void spend_reservations(struct cpc_space *space, uint64_t data, uint64_t nodes)
{
	uint64_t block;
	uint32_t got;

	while (data + nodes > 0) {
		if (rnd(data / 16 + nodes + 1) < nodes) {
			enum cpc_space_kind kind = rnd(2) ? CPC_SPACE_NODE : CPC_SPACE_NODE2;
			uint32_t n = disk.geo.nodesize / CPC_BLOCK_SIZE;

			assert_int_equal(cpc_space_alloc_reserved(space, kind, n, n, &block, &got),
					 0);
			nodes--;
		} else if (data > 0) {
			uint32_t want = (uint32_t)cpc_min_u64(data, 1 + rnd(256));

			assert_int_equal(
			    cpc_space_alloc_reserved(space, CPC_SPACE_DATA, want, 1, &block, &got),
			    0);
			data -= got;
		}
	}
}

static void test_reserved_allocations_never_fail(void **state)
{
	uint64_t ops = nr_ops(60);

	seed(__func__);
	for (uint64_t i = 0; i < ops; i++) {
		uint32_t nodesize = 4096u << rnd(5);
		uint64_t data, nodes = 0, slots;
		struct cpc_space *space;

		disk_init(&disk, 4096 + rnd(3 * 32768), nodesize, rnd(2));
		random_disk();
		space = disk_open(&disk);
		cpc_space_set_max_loaded(space, (uint32_t)rnd(3));
		/* All that there is, or little: then most groups have not been looked at yet. */
		for (slots = rnd(2) ? 1u << 16 : 8; slots > 0; slots /= 2) {
			if (cpc_space_reserve_nodes(space, slots, 0) == 0)
				nodes += slots;
		}
		if (rnd(2) && nodes > 0) {
			cpc_space_unreserve_nodes(space, nodes / 3);
			nodes -= nodes / 3;
		}
		data = info_of(space).free - info_of(space).reserved;
		assert_int_equal(cpc_space_reserve(space, data, 0), 0);
		spend_reservations(space, data, nodes);
		assert_int_equal(info_of(space).free, 0);
		cpc_space_destroy(space);
	}
}

/* Whatever allocation of memory fails, the counts hold and the next try succeeds. */
static void test_operations_without_memory_change_nothing(void **state)
{
	struct cpc_space *space;
	uint64_t block;
	uint32_t got;
	uint8_t bitmap[CPC_BLOCK_SIZE];

	for (long n = 0; n < 12; n++) {
		int errs = 0, err;

		disk_init(&disk, 6 * 32768, 16384, false);
		fragment_disk(4);
		space = disk_open(&disk);
		cpc_space_set_max_loaded(space, 1);
		fail_countdown = n;
#define TRY(call)                                                                                  \
	do {                                                                                       \
		err = (call);                                                                      \
		cpc_space_check(space);                                                            \
		assert_true(err == 0 || err == -ENOMEM);                                           \
		errs += err != 0;                                                                  \
	} while (err)
		TRY(cpc_space_reserve_nodes(space, 100, 0));
		TRY(cpc_space_alloc_reserved(space, CPC_SPACE_NODE, 4, 4, &block, &got));
		TRY(cpc_space_alloc(space, CPC_SPACE_DATA, 9, 1, &block, &got));
		TRY(cpc_space_mark_busy(space, 32768 * 2 - 4, 8));
		TRY(cpc_space_prepare_free(space, 32768 + 1, 1));
		TRY(cpc_space_get_used(space, 5, bitmap, &got));
		assert_true(errs <= 1);
		fail_countdown = -1;
		cpc_space_destroy(space);
		assert_int_equal(nr_live, 0);
	}
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(test_fresh_bitmap_is_the_geometry),
	    TEST(test_fresh_pool_has_all_its_data_area_free),
	    TEST(test_create_without_memory_fails_cleanly),
	    TEST(test_empty_pool_gives_long_ascending_runs),
	    TEST(test_nodes_are_aligned_and_apart),
	    TEST(test_nodes_stay_apart_when_they_are_rewritten),
	    TEST(test_tiny_pool_is_shared_to_the_last_block),
	    TEST(test_full_groups_are_passed_over_unread),
	    TEST(test_unreadable_group_is_full_for_ever),
	    TEST(test_load_without_memory_is_tried_again),
	    TEST(test_contradictory_bitmap_is_bad),
	    TEST(test_clean_groups_are_evicted_and_read_back_equal),
	    TEST(test_groups_in_use_are_not_evicted),
	    TEST(test_freed_blocks_stay_pinned_until_released),
	    TEST(test_what_is_prepared_takes_memory_only_until_it_is_freed),
	    TEST(test_addresses_outside_the_data_area_are_damage),
	    TEST(test_reservations_are_bounded_by_free_blocks),
	    TEST(test_data_leaves_slots_that_nodes_reserved),
	    TEST(test_kept_slots_are_spent_by_nodes_only),
	    TEST(test_slots_reserved_during_a_load_are_left),
	    TEST(test_reserved_allocations_never_fail),
	    TEST(test_operations_without_memory_change_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
