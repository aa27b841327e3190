/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test-flush-rig: a whole pool over a device that loses power, without threads: calls do all work.
 * The legality oracle stands in front of the device.
 */
#ifndef CPC_VOLUME_TEST_FLUSH_RIG_H
#define CPC_VOLUME_TEST_FLUSH_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "backing/powercut.h"
#include "check/check.h"
#include "check/oracle.h"
#include "log/log.h"
#include "pool/pool.h"
#include "volume/volume-internal.h"

#define MIB (1024ull * 1024)

struct flush_rig {
	struct cpc_powercut *pc;
	struct cpc_oracle *oracle;
	struct cpc_pool *pool;
	struct cpc_pool_options opts;
	struct cpc_error err;
	uint64_t rng;
	bool unwatched; /* rot breaks the oracle's rules, and is not the engine's fault */
};

/* Formats a new device and opens the pool. */
void flush_rig_make(struct flush_rig *f, uint64_t size, uint64_t log_size, uint64_t cache);
/* Opens what stands on the device; f->err says why not. */
int flush_rig_try_open(struct flush_rig *f);
/* ... which must succeed. */
void flush_rig_open(struct flush_rig *f);
/* The power goes, with one fate for all that was not flushed. The pool is still to be closed. */
void flush_rig_cut_power(struct flush_rig *f, enum cpc_crash_fate fate);
/* Checks the device, data too. */
void flush_rig_check(struct flush_rig *f, bool quiet, struct cpc_check_result *result);
/* Shuts the pool down; a check must find nothing. */
void flush_rig_finish(struct flush_rig *f);
/* The device and its oracle; the pool is closed. */
void flush_rig_destroy(struct flush_rig *f);

void flush_rig_create(struct flush_rig *f, const char *name, uint64_t size);
struct cpc_volume *flush_rig_open_volume(struct flush_rig *f, const char *name);
/* Fills a block with one value. Return: as cpc_volume_write. */
int flush_rig_write_value(struct cpc_volume *vol, uint64_t block, uint32_t value, unsigned flags);
/* The value of a block; UINT32_MAX: it cannot be read, or is mixed. */
uint32_t flush_rig_read_value(struct cpc_volume *vol, uint64_t block);
uint64_t flush_rig_draw(struct flush_rig *f, uint64_t below);

/* Two flushed blocks and, if wanted, a mark behind them. Return: the newest record that is none. */
struct cpc_log_found flush_rig_flush_and_cut(struct flush_rig *f, bool mark, uint64_t *data);

/* A number from the environment. */
uint64_t flush_rig_env(const char *name, uint64_t otherwise);

#endif
