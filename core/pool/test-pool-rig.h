/* SPDX-License-Identifier: BSD-3-Clause */
/* test-pool-rig: a whole pool over a power-cut device, through the door of the library. */
#ifndef CPC_POOL_TEST_POOL_RIG_H
#define CPC_POOL_TEST_POOL_RIG_H

#include "pool/pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "backing/powercut.h"
#include "check/check.h"
#include "lib/hooks.h"
#include "lib/log.h"
#include "volume/volume.h"

#define MIB (1024ull * 1024)

struct pool_rig {
	struct cpc_powercut *pc;
	struct cpc_pool *pool;
	struct cpc_pool_options opts;
	bool threads;
	_Atomic bool stop; /* commit_all_the_time */
};

/* What the last call that failed said, and how many errors have been logged. */
extern struct cpc_error pool_rig_err;
extern _Atomic unsigned pool_rig_errors_logged;

/* Formats a device of so many bytes and opens the pool; `threads` is set before, else zeroes. */
void pool_rig_make(struct pool_rig *f, uint64_t size);
void pool_rig_open(struct pool_rig *f);
/* Closes in order and opens again. */
void pool_rig_reopen(struct pool_rig *f);
/* Closes in order and wants a clean check. */
void pool_rig_finish(struct pool_rig *f);
/* Return: as cpc_pool_create_volume. */
int pool_rig_create(struct pool_rig *f, const char *name, uint64_t size);
uint64_t pool_rig_size_of(struct pool_rig *f, const char *name);
/* There is an error, and it is one line. */
void pool_rig_assert_one_line(void);
/* Group setup: messages are counted, not printed. */
int pool_rig_quiet(void **state);

#endif
