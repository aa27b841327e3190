/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * priced: commits whose device operations are counted and priced by a plain NVMe drive, so that
 * what one costs is the same on every machine. The pool is open without threads.
 */
#ifndef SCALE_PRICED_H
#define SCALE_PRICED_H

#include "backing/backing.h"
#include "pool/pool.h"

/* Commits what waits. `device` is the pool's backing; *us: microseconds of its I/O. Return: whether
 * anything waited. */
bool priced_commit(struct cpc_pool *pool, struct cpc_backing *device, uint64_t *us);

#endif
