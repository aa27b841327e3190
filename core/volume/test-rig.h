/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test-rig: a pool on a power-cut device with one open volume and a copy of its content in memory,
 * for the tests of core/volume.
 */
#ifndef CPC_VOLUME_TEST_RIG_H
#define CPC_VOLUME_TEST_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "backing/powercut.h"
#include "check/check.h"
#include "pool/pool.h"
#include "volume/volume-internal.h"

#define MIB (1024ull * 1024)

struct rig {
	uint64_t pool_size, volume_size;
	uint64_t log_size;     /* 0: the default for the pool */
	uint64_t cache, dirty; /* 0: 4 MiB, half of it */
	bool threads;
	/* puts something in front of the device at each opening; NULL: nothing */
	struct cpc_backing *(*wrap)(struct rig *r, struct cpc_backing *inner);
	struct cpc_powercut *pc;
	struct cpc_pool *pool;
	struct cpc_volume *vol;
	uint8_t *ref;	     /* what the volume must hold */
	uint8_t *buf, *back; /* volume_size each */
	uint64_t rng;
};

/* Makes all of it; sizes that are 0 become 32 MiB and 4 MiB + 1000. */
void rig_make(struct rig *r);
/* Shuts down, checks that the pool is clean, frees. */
void rig_finish(struct rig *r);
void rig_open(struct rig *r);
/* Closes without a commit, as a crash does. */
void rig_close(struct rig *r);
/* Closes in order, opens again and compares everything. */
void rig_reopen(struct rig *r);

uint64_t rig_draw(struct rig *r, uint64_t below);
/* Fills buf with fresh random content. */
void rig_fill(struct rig *r, uint64_t len);

/* Requests that succeed, and their effect on the reference. */
void rig_write(struct rig *r, uint64_t offset, uint64_t len);
void rig_trim(struct rig *r, uint64_t offset, uint64_t len);
void rig_zero(struct rig *r, uint64_t offset, uint64_t len, unsigned flags);
void rig_flush(struct rig *r);
/* Reads and compares. */
void rig_compare(struct rig *r, uint64_t offset, uint64_t len);
void rig_compare_all(struct rig *r);
/* Extents must cover the volume, and holes must be zeroes in the reference. */
void rig_compare_extents(struct rig *r);
/* Nothing is in flight: what is charged is what is dirty, everywhere. */
void rig_check_accounts(struct rig *r);

/* cpc_hooks.alloc that fails after `rig_allocs_left` successes; UINT32_MAX: never. */
extern _Atomic unsigned rig_allocs_left;
void *rig_failing_alloc(size_t align, size_t size);

#endif
