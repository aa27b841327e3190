/* SPDX-License-Identifier: BSD-3-Clause */
#include "check/test-pool.h"

#include <stdio.h>

#include "lib/log.h"

static void note_violation(void *ctx, const char *what)
{
	struct test_pool *p = ctx;

	if (!p->violations++)
		snprintf(p->violation, sizeof(p->violation), "%s", what);
}

static void no_message(enum cpc_log_level level, const char *line)
{
}

void test_pool_create(struct test_pool *p, const struct test_geometry *g)
{
	struct cpc_super super = {
	    .incompat = g->single ? 0 : CPC_INCOMPAT_DUP,
	    .transid = 1,
	    .total_bytes = g->size,
	    .nodesize = g->nodesize,
	    .log_size = cpc_default_log_size(g->size),
	    .next_volume = 1,
	    .label = "test",
	};

	memset(p, 0, sizeof(*p));
	cpc_log_set_sink(no_message);
	memset(super.uuid, 0x5a, sizeof(super.uuid));
	assert_int_equal(cpc_powercut_create(g->size, &p->pc), 0);
	cpc_oracle_create(p->pc, note_violation, p, &p->oracle);
	assert_int_equal(cpc_oracle_reopen(p->oracle, &p->backing), 0);
	assert_int_equal(cpc_store_format(p->backing, &super), 0);
	p->next_volume = 1;
	cpc_backing_close(p->backing);
	test_pool_open(p);
}

static int find_volume(void *ctx, const struct cpc_volume_item *item)
{
	struct test_pool *p = ctx;

	for (unsigned i = 0; i < CPC_ARRAY_SIZE(p->item); i++) {
		if (p->item[i].id == item->id)
			p->item[i] = *item;
	}
	return 0;
}

void test_pool_open(struct test_pool *p)
{
	const char *why;

	assert_int_equal(cpc_oracle_reopen(p->oracle, &p->backing), 0);
	assert_int_equal(cpc_store_open(p->backing, false, MIB, NULL, NULL, &p->store, &why), 0);
	assert_int_equal(cpc_store_settle(p->store), 0);
	assert_int_equal(cpc_store_for_each_volume(p->store, find_volume, p), 0);
}

void test_pool_close(struct test_pool *p)
{
	cpc_store_close(p->store);
	cpc_backing_close(p->backing);
}

void test_pool_destroy(struct test_pool *p)
{
	test_pool_close(p);
	cpc_oracle_destroy(p->oracle);
	cpc_powercut_destroy(p->pc);
}

static int commit(struct test_pool *p, struct cpc_commit_volume *v, size_t nr, uint32_t drop_budget)
{
	struct cpc_commit_request req = {
	    .volumes = v,
	    .nr_volumes = nr,
	    .next_volume = p->next_volume,
	    .drop_budget = drop_budget,
	};
	int ret = cpc_store_commit(p->store, &req);

	cpc_pins_put(req.pins);
	return ret;
}

int test_pool_commit(struct test_pool *p, uint32_t drop_budget)
{
	return commit(p, NULL, 0, drop_budget);
}

static int commit_run(struct test_pool *p, unsigned v, const struct cpc_run *run)
{
	struct cpc_commit_volume cv = {.item = p->item[v], .run = run};
	int ret = commit(p, &cv, 1, 2);

	if (!ret)
		p->item[v].root = cv.new_root;
	return ret;
}

void test_pool_add_volume(struct test_pool *p, unsigned v, const char *name, uint64_t size)
{
	p->item[v] = (struct cpc_volume_item){.id = p->next_volume++, .size = size};
	snprintf(p->item[v].name, sizeof(p->item[v].name), "%s", name);
	assert_int_equal(commit_run(p, v, NULL), 0);
}

static int write_data(struct test_pool *p, uint64_t block, uint32_t nr, uint64_t seed,
		      uint32_t *csums)
{
	uint8_t *buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);
	int ret = 0;

	for (uint32_t i = 0; !ret && i < nr; i++) {
		for (size_t at = 0; at < CPC_BLOCK_SIZE; at++)
			buf[at] = (uint8_t)((seed + i) * 7 + at);
		csums[i] = cpc_csum(buf, CPC_BLOCK_SIZE);
		ret = cpc_fe_write(&p->store->fe, (block + i) << CPC_BLOCK_SHIFT, buf,
				   CPC_BLOCK_SIZE, CPC_CAUSE_DATA, NULL);
	}
	cpc_free(buf);
	return ret;
}

int test_pool_map(struct test_pool *p, unsigned v, uint64_t block, uint32_t nr)
{
	uint32_t csums[CPC_EXTENT_MAX_BLOCKS], got;
	struct cpc_run_builder b;
	struct cpc_run *run;
	uint64_t at;
	int ret;

	assert_int_equal(cpc_space_alloc(p->store->space, CPC_SPACE_DATA, nr, nr, &at, &got), 0);
	ret = write_data(p, at, nr, block, csums);
	if (ret)
		return ret;
	cpc_run_builder_init(&b, 1, nr);
	cpc_run_builder_map(&b, block, nr, at << CPC_BLOCK_SHIFT, csums);
	assert_int_equal(cpc_run_builder_finish(&b, &run), 0);
	ret = commit_run(p, v, run);
	cpc_run_put(run);
	return ret;
}

int test_pool_unmap(struct test_pool *p, unsigned v, uint64_t block, uint64_t nr)
{
	struct cpc_run_builder b;
	struct cpc_run *run;
	int ret;

	cpc_run_builder_init(&b, 1, 0);
	cpc_run_builder_hole(&b, block, nr);
	assert_int_equal(cpc_run_builder_finish(&b, &run), 0);
	ret = commit_run(p, v, run);
	cpc_run_put(run);
	return ret;
}

int test_pool_commit_item(struct test_pool *p, const struct cpc_volume_item *item, bool deleted)
{
	struct cpc_commit_volume cv = {.item = *item, .deleted = deleted};

	return commit(p, &cv, 1, 0);
}

int test_pool_delete(struct test_pool *p, unsigned v)
{
	int ret = test_pool_commit_item(p, &p->item[v], true);

	if (!ret)
		p->item[v].id = 0;
	return ret;
}

void test_pool_fill(struct test_pool *p, unsigned nr_commits)
{
	for (unsigned i = 0; i < nr_commits; i++)
		assert_int_equal(test_pool_map(p, i % 2, i * 37 % 512 * 3, 1 + i % 3), 0);
}

static void print_line(void *ctx, const char *line)
{
	print_message("  %s\n", line);
}

void test_pool_check(struct test_pool *p, bool quiet, struct cpc_check_result *result)
{
	struct cpc_check_options opts = {.data = true, .report = quiet ? NULL : print_line};

	assert_int_equal(cpc_check(p->backing, &opts, result), 0);
}

void test_pool_check_clean(struct test_pool *p)
{
	struct cpc_check_result result;

	test_pool_check(p, false, &result);
	assert_int_equal(result.errors, 0);
	assert_int_equal(result.leaked_blocks, 0);
	if (p->violations)
		fail_msg("%s", p->violation);
}
