/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test-disk: what the tests of the allocator share: numbers that repeat, memory that fails on
 * demand, and a device that holds the bitmaps of a small pool. Included once by each test.
 */
#ifndef CPC_SPACE_TEST_DISK_INTERNAL_H
#define CPC_SPACE_TEST_DISK_INTERNAL_H

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "lib/hooks.h"
#include "lib/log.h"
#include "space/space.h"

static uint64_t seed_state;

static inline uint64_t rnd_from(uint64_t *state, uint64_t below)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (*state >> 33) % below;
}

static inline uint64_t rnd(uint64_t below)
{
	return rnd_from(&seed_state, below);
}

static inline void seed(const char *test)
{
	const char *env = getenv("CPC_TEST_SEED");

	seed_state = env ? strtoull(env, NULL, 0) : (uint64_t)time(NULL) * 1000003u;
	printf("%s: CPC_TEST_SEED=%" PRIu64 "\n", test, seed_state);
}

static inline uint64_t nr_ops(uint64_t usual)
{
	const char *env = getenv("CPC_TEST_OPS");

	return env ? strtoull(env, NULL, 0) : usual;
}

/* --- memory --- */

static _Atomic long fail_countdown = -1;
static _Atomic long nr_live;

static void *failing_alloc(size_t align, size_t size)
{
	void *p;

	if (fail_countdown >= 0 && fail_countdown-- == 0)
		return NULL;
	p = cpc_hooks_default.alloc(align, size);
	nr_live += p != NULL;
	return p;
}

static void counting_free(void *ptr)
{
	nr_live--;
	cpc_hooks_default.free(ptr);
}

static _Atomic int nr_warnings;

static void count_warning(enum cpc_log_level level, const char *line)
{
	nr_warnings += level == CPC_LOG_WARN;
}

static int setup(void **state)
{
	cpc_hooks.alloc = failing_alloc;
	cpc_hooks.free = counting_free;
	cpc_log_set_sink(count_warning);
	fail_countdown = -1;
	nr_live = 0;
	nr_warnings = 0;
	return 0;
}

static int teardown(void **state)
{
	cpc_hooks = cpc_hooks_default;
	cpc_log_set_sink(NULL);
	return nr_live != 0;
}

/* --- the device --- */

#define MAX_GROUPS 64u

struct disk {
	struct cpc_geometry geo;
	uint8_t bitmaps[MAX_GROUPS][CPC_BLOCK_SIZE];
	int load_error[MAX_GROUPS];
	_Atomic uint64_t nr_loads;
};

static int disk_load(void *ctx, uint64_t group, uint8_t bitmap[CPC_BLOCK_SIZE])
{
	struct disk *disk = ctx;

	disk->nr_loads++;
	if (disk->load_error[group])
		return disk->load_error[group];
	memcpy(bitmap, disk->bitmaps[group], CPC_BLOCK_SIZE);
	return 0;
}

static inline bool bitmap_get(const uint8_t *bitmap, uint32_t bit)
{
	return bitmap[bit / 8] >> bit % 8 & 1;
}

static inline void bitmap_set(uint8_t *bitmap, uint32_t bit, bool value)
{
	if (value)
		bitmap[bit / 8] |= (uint8_t)(1u << bit % 8);
	else
		bitmap[bit / 8] &= (uint8_t) ~(1u << bit % 8);
}

/* A fresh pool of `blocks` blocks. */
static inline void disk_init(struct disk *disk, uint64_t blocks, uint32_t nodesize, bool dup)
{
	memset(disk, 0, sizeof(*disk));
	assert_int_equal(
	    cpc_geometry_init(&disk->geo, blocks << CPC_BLOCK_SHIFT, 256u << 10, nodesize, dup), 0);
	assert_true(disk->geo.nr_groups <= MAX_GROUPS);
	for (uint64_t g = 0; g < disk->geo.nr_groups; g++)
		cpc_space_fresh_bitmap(&disk->geo, g, disk->bitmaps[g]);
}

static inline void disk_set(struct disk *disk, uint64_t block, bool used)
{
	bitmap_set(disk->bitmaps[block / CPC_GROUP_BLOCKS], block % CPC_GROUP_BLOCKS, used);
}

static inline uint32_t disk_used(const struct disk *disk, uint64_t group)
{
	uint32_t blocks = cpc_geometry_group_blocks(&disk->geo, group), n = 0;

	for (uint32_t i = 0; i < blocks; i++)
		n += bitmap_get(disk->bitmaps[group], i);
	return n;
}

/* Opens the pool as it stands on the device. */
static inline struct cpc_space *disk_open(struct disk *disk)
{
	struct cpc_space *space;

	assert_int_equal(cpc_space_create(&disk->geo, disk_load, disk, &space), 0);
	for (uint64_t g = 0; g < disk->geo.nr_groups; g++)
		cpc_space_set_group(space, g, disk_used(disk, g));
	return space;
}

static inline struct cpc_space_info info_of(struct cpc_space *space)
{
	struct cpc_space_info info;

	cpc_space_check(space);
	cpc_space_info(space, &info);
	return info;
}

#endif
