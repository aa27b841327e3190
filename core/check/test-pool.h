/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test-pool: a pool of core/transaction on a power-cut device, without volumes in memory: the test
 * says which blocks each commit maps.
 */
#ifndef CPC_CHECK_TEST_POOL_H
#define CPC_CHECK_TEST_POOL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "backing/powercut.h"
#include "check/check.h"
#include "check/oracle.h"
#include "lib/hooks.h"
#include "transaction/store.h"

#define MIB (1024u * 1024u)

struct test_pool {
	struct cpc_powercut *pc;
	struct cpc_oracle *oracle;
	struct cpc_backing *backing;
	struct cpc_store *store;
	struct cpc_volume_item item[4]; /* id 0: none */
	uint64_t next_volume;
	unsigned violations;
	char violation[768]; /* the first */
};

struct test_geometry {
	uint64_t size;
	uint32_t nodesize;
	bool single;
};

void test_pool_create(struct test_pool *p, const struct test_geometry *g);
void test_pool_destroy(struct test_pool *p);
void test_pool_open(struct test_pool *p);
void test_pool_close(struct test_pool *p);

void test_pool_add_volume(struct test_pool *p, unsigned v, const char *name, uint64_t size);
/* Writes `nr` blocks of data at new places, maps [block, block + nr) to them and commits. */
int test_pool_map(struct test_pool *p, unsigned v, uint64_t block, uint32_t nr);
/* Unmaps and commits. */
int test_pool_unmap(struct test_pool *p, unsigned v, uint64_t block, uint64_t nr);
/* Commits this item as it is, or its deletion, whatever the pool holds. */
int test_pool_commit_item(struct test_pool *p, const struct cpc_volume_item *item, bool deleted);
int test_pool_delete(struct test_pool *p, unsigned v);
/* Commits nothing in particular; budget for the drop list. */
int test_pool_commit(struct test_pool *p, uint32_t drop_budget);
/* Maps scattered blocks until the trees are a few nodes large. */
void test_pool_fill(struct test_pool *p, unsigned nr_commits);

/* Checks and prints findings unless `quiet`. */
void test_pool_check(struct test_pool *p, bool quiet, struct cpc_check_result *result);
/* Asserts that nothing is wrong. */
void test_pool_check_clean(struct test_pool *p);

#endif
