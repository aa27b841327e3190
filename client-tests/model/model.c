/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * model: random operations on several volumes of one pool, compared with a reference in memory.
 *
 *   model [--seed N] [--ops N] [--rounds N] [--threads N] [--verbose] [--json]
 *
 * A round makes a pool (size, nodesize, copies, cache and threads drawn from its seed), works on it
 * through many lives (closed in order, or killed), deletes everything at the end and wants all
 * space back. --ops counts operations of all rounds; CPC_TEST_OPS is its default. With --threads
 * the rounds are those of threads.c.
 *
 * What is compared: each read with the reference; each answer of extents with what is known to be
 * other than zero; names and sizes after each open; after a kill each volume as a whole with the
 * states it may be in. Offline check after each life. Errors are part of the model: -ENOSPC only
 * from what stores something, and not where a small mapped range is overwritten.
 */
#include "model-internal.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "lib/hooks.h"

#define ROUND_OPS 6000u

static const char *const names[NR_NAMES] = {
    "a", "B", "disk-0", "disk.1", "x_y", "0", "longer-name-with-many-letters", "z9", "q"};

const char *model_name(const struct volume *v)
{
	return names[v->name];
}

/* --- names --- */

static struct volume *find_volume(struct model *m, unsigned name)
{
	for (unsigned i = 0; i < m->nr; i++) {
		if (m->volume[i].name == name)
			return &m->volume[i];
	}
	return NULL;
}

static void open_handle(struct model *m, struct volume *v)
{
	int ret = cpc_pool_open_volume(m->rig.pool, model_name(v), &v->handle);

	rig_expect(ret == 0, "volume %s does not open: %s", model_name(v), strerror(-ret));
	rig_expect(cpc_volume_size(v->handle) == v->ref.size, "volume %s has %llu bytes, not %llu",
		   model_name(v), (unsigned long long)cpc_volume_size(v->handle),
		   (unsigned long long)v->ref.size);
}

static void close_handle(struct model *m, struct volume *v)
{
	cpc_pool_close_volume(m->rig.pool, v->handle);
	v->handle = NULL;
}

static uint64_t pick_size(struct model *m)
{
	uint64_t p = rnd_below(&m->rnd, 100), size;

	if (p < 20)
		return 1 + rnd_below(&m->rnd, 100000);
	if (p < 85) {
		size = 1 + rnd_below(&m->rnd, 2 * m->rig.size);
		return p < 60 ? cpc_align_up(size, 4096) : size;
	}
	return p < 95 ? 1ull << (40 + rnd_below(&m->rnd, 20)) : CPC_VOLUME_SIZE_MAX;
}

static void op_create(struct model *m)
{
	unsigned name = (unsigned)rnd_below(&m->rnd, NR_NAMES);
	struct cpc_error err = {""};
	uint64_t size = pick_size(m);
	struct volume *v;
	int ret;

	if (m->nr == MAX_VOLUMES)
		return;
	ret = cpc_pool_create_volume(m->rig.pool, names[name], size, &err);
	if (find_volume(m, name)) {
		rig_expect(ret == -EEXIST, "creating %s twice: %d %s", names[name], ret, err.text);
		return;
	}
	if (ret == -ENOSPC && m->nr)
		return;
	rig_expect(ret == 0, "create %s: %s", names[name], err.text);
	v = &m->volume[m->nr++];
	v->name = name;
	ref_init(&v->ref, size);
	open_handle(m, v);
}

static void forget_volume(struct model *m, struct volume *v)
{
	ref_destroy(&v->ref);
	*v = m->volume[--m->nr];
}

static void op_delete(struct model *m)
{
	struct volume *v = model_pick_volume(m);
	struct cpc_error err = {""};
	int ret;

	rig_expect(cpc_pool_delete(m->rig.pool, model_name(v), &err) == -EBUSY,
		   "deleting an open volume");
	close_handle(m, v);
	ret = cpc_pool_delete(m->rig.pool, model_name(v), &err);
	rig_expect(ret == 0, "delete %s: %s", model_name(v), err.text);
	forget_volume(m, v);
}

static void op_rename(struct model *m)
{
	unsigned name = (unsigned)rnd_below(&m->rnd, NR_NAMES);
	struct volume *v = model_pick_volume(m);
	struct cpc_error err = {""};
	int ret = cpc_pool_rename(m->rig.pool, model_name(v), names[name], &err);

	if (find_volume(m, name)) {
		rig_expect(ret == -EEXIST, "renaming to %s, which exists: %d", names[name], ret);
		return;
	}
	rig_expect(ret == 0, "rename %s: %s", model_name(v), err.text);
	v->name = name;
}

static void op_resize(struct model *m)
{
	struct volume *v = model_pick_volume(m);
	struct cpc_error err = {""};
	uint64_t size = pick_size(m);
	int ret;

	close_handle(m, v);
	ret = cpc_pool_resize(m->rig.pool, model_name(v), size, true, &err);
	if (ret == -ENOSPC && size > v->ref.size) {
		open_handle(m, v);
		return;
	}
	rig_expect(ret == 0, "resize %s from %llu to %llu: %s", model_name(v),
		   (unsigned long long)v->ref.size, (unsigned long long)size, err.text);
	if (size != v->ref.size) {
		/* what was written before a resize comes before it */
		ref_durable(&v->ref);
		ref_resize(&v->ref, size);
	}
	open_handle(m, v);
}

static void op_commit(struct model *m)
{
	int ret = cpc_pool_commit(m->rig.pool);

	rig_expect(ret == 0, "commit: %s", strerror(-ret));
	model_all_durable(m);
}

static void op_info(struct model *m)
{
	struct cpc_pool_info info;

	cpc_pool_info(m->rig.pool, &info);
	rig_expect(info.used + info.free == info.capacity, "info: used and free are no whole");
	rig_expect(info.volumes == m->nr, "info: %llu volumes", (unsigned long long)info.volumes);
	rig_expect(!strcmp(info.health, "ok"), "info: %s", info.health);
}

/* --- lives --- */

struct listed {
	struct model *m;
	unsigned nr;
};

static int see_listed(void *ctx, const struct cpc_volume_info *info)
{
	struct listed *l = ctx;

	for (unsigned i = 0; i < l->m->nr; i++) {
		const struct volume *v = &l->m->volume[i];

		if (strcmp(info->name, model_name(v)))
			continue;
		rig_expect(info->size == v->ref.size, "list: size of %s", info->name);
		l->nr++;
		return 0;
	}
	rig_fail("list: volume %s is not expected", info->name);
}

/* Each volume is in the state that the reference has, or after a kill in one that it may have. */
static void compare_volume(struct model *m, struct volume *v, bool killed)
{
	struct cpc_page_map actual;
	struct ref_match match;

	rig_read_volume(v->handle, &v->ref, &actual);
	if (!killed)
		ref_durable(&v->ref);
	if (!ref_match(&v->ref, &actual, &match))
		rig_fail("volume %s: %s: %llu blocks differ, as block %llu does, at best",
			 model_name(v),
			 killed ? "killed, and at no one instant" : "closed in order",
			 (unsigned long long)match.nr_bad, (unsigned long long)match.bad);
	ref_durable(&v->ref);
	cpc_page_map_clear(&actual);
}

static void begin_life(struct model *m, bool killed)
{
	struct listed listed = {m, 0};

	rig_open(&m->rig);
	rig_expect(cpc_pool_list(m->rig.pool, see_listed, &listed) == 0, "list");
	rig_expect(listed.nr == m->nr, "list: %u volumes, not %u", listed.nr, m->nr);
	for (unsigned i = 0; i < m->nr; i++) {
		open_handle(m, &m->volume[i]);
		compare_volume(m, &m->volume[i], killed);
	}
}

static void end_life(struct model *m, bool kill)
{
	int ret = 0;

	for (unsigned i = 0; i < m->nr; i++)
		close_handle(m, &m->volume[i]);
	if (kill)
		rig_kill(&m->rig);
	else
		ret = rig_close(&m->rig);
	rig_expect(ret == 0, "shutdown: %s", strerror(-ret));
	/* a kill may fall between the two copies of a superblock that a thread was writing */
	rig_check(&m->rig, kill, NULL);
}

static void draw_options(struct model *m)
{
	static const uint64_t caches[] = {1, 1, 2, 8};
	struct cpc_pool_options *o = &m->rig.opts;

	cpc_pool_options_init(o);
	o->cache = caches[rnd_below(&m->rnd, CPC_ARRAY_SIZE(caches))] * MIB;
	o->dirty = rnd_percent(&m->rnd, 30) ? 65536 : 0;
	o->commit_interval = rnd_percent(&m->rnd, 50) ? 0 : 1;
	o->no_threads = rnd_percent(&m->rnd, 50);
	if (rnd_percent(&m->rnd, 20)) {
		o->data_bytes = 16 * CPC_BLOCK_SIZE;
		o->node_bytes = 8ull * m->rig.nodesize;
	}
}

static void new_life(struct model *m, bool kill)
{
	end_life(m, kill);
	draw_options(m);
	begin_life(m, kill);
}

static void op_reopen(struct model *m)
{
	new_life(m, false);
}

static void op_kill(struct model *m)
{
	new_life(m, true);
}

/* --- rounds --- */

static const struct {
	const char *name;
	void (*run)(struct model *m);
	unsigned weight; /* of 1000 */
} ops[] = {
    {"write", model_write, 410}, {"read", model_read, 280},    {"trim", model_trim, 50},
    {"zero", model_zero, 70},	 {"flush", model_flush, 40},   {"extents", model_extents, 80},
    {"cache", model_cache, 20},	 {"beyond", model_beyond, 10}, {"create", op_create, 9},
    {"delete", op_delete, 5},	 {"rename", op_rename, 5},     {"resize", op_resize, 6},
    {"commit", op_commit, 10},	 {"info", op_info, 3},	       {"reopen", op_reopen, 1},
    {"kill", op_kill, 1},
};

static void step(struct model *m)
{
	uint64_t p = rnd_below(&m->rnd, 1000);
	unsigned i = 0;

	while (p >= ops[i].weight)
		p -= ops[i++].weight;
	if (!m->nr)
		i = 8; /* create */
	ops[i].run(m);
	m->counts[i]++;
}

static void draw_pool(struct model *m)
{
	static const uint64_t sizes[] = {4, 4, 5, 8, 16, 32};
	static const uint32_t nodesizes[] = {4096, 4096, 8192, 16384, 16384, 32768, 65536};

	m->rig.size = sizes[rnd_below(&m->rnd, CPC_ARRAY_SIZE(sizes))] * MIB;
	m->rig.nodesize = nodesizes[rnd_below(&m->rnd, CPC_ARRAY_SIZE(nodesizes))];
	m->rig.single = rnd_percent(&m->rnd, 30);
	m->rig.watch = rnd_percent(&m->rnd, 40);
	if (m->rig.nodesize >= 32768)
		m->rig.size = cpc_max_u64(m->rig.size, (m->rig.single ? 5 : 8) * MIB);
	m->max_io = m->rig.size >= 16 * MIB ? BUF_BYTES : 2 * MIB;
}

/* Deletes everything, and wants all space back. */
static void empty_pool(struct model *m)
{
	struct cpc_check_result result;
	struct cpc_pool_info info;
	uint64_t most;

	while (m->nr)
		op_delete(m);
	for (unsigned i = 0; i < 8; i++)
		op_commit(m);
	cpc_pool_info(m->rig.pool, &info);
	most = m->used_fresh + 3ull * info.copies * info.nodesize;
	rig_expect(info.pinned == 0, "empty pool: %llu bytes pinned",
		   (unsigned long long)info.pinned);
	rig_expect(info.reserved == 0, "empty pool: %llu bytes reserved",
		   (unsigned long long)info.reserved);
	rig_expect(info.used <= most, "empty pool: %llu bytes used, %llu when it was new",
		   (unsigned long long)info.used, (unsigned long long)m->used_fresh);
	rig_expect(rig_close(&m->rig) == 0, "shutdown");
	rig_check(&m->rig, false, &result);
	rig_expect(result.volumes == 0 && result.data_blocks == 0 && result.nodes < 8,
		   "empty pool: %llu volumes, %llu blocks of data, %llu nodes",
		   (unsigned long long)result.volumes, (unsigned long long)result.data_blocks,
		   (unsigned long long)result.nodes);
}

static uint64_t run_round(struct model *m, uint64_t seed, uint64_t nr_ops)
{
	struct cpc_pool_info info;

	rig_init(seed);
	m->rnd.state = seed;
	draw_pool(m);
	draw_options(m);
	rig_create(&m->rig);
	rig_open(&m->rig);
	cpc_pool_info(m->rig.pool, &info);
	m->used_fresh = info.used;
	for (uint64_t i = 0; i < nr_ops; i++)
		step(m);
	empty_pool(m);
	rig_destroy(&m->rig);
	return nr_ops;
}

/* --- the program --- */

struct options {
	uint64_t seed, ops, rounds;
	unsigned threads;
	bool verbose, json;
};

static void usage(void)
{
	fprintf(stderr, "usage: model [--seed N] [--ops N] [--rounds N] [--threads N] "
			"[--verbose] [--json]\n");
	exit(2);
}

static void parse(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
	    {"seed", 1, 0, 's'},    {"ops", 1, 0, 'o'},	    {"rounds", 1, 0, 'r'},
	    {"threads", 1, 0, 't'}, {"verbose", 0, 0, 'v'}, {"json", 0, 0, 'j'},
	    {NULL, 0, 0, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 's') {
			o->seed = rig_number(optarg, "--seed");
		} else if (c == 'o') {
			o->ops = rig_number(optarg, "--ops");
		} else if (c == 'r') {
			o->rounds = rig_number(optarg, "--rounds");
		} else if (c == 't') {
			o->threads = (unsigned)rig_number(optarg, "--threads");
		} else if (c == 'v') {
			o->verbose = true;
		} else if (c == 'j') {
			o->json = true;
		} else {
			usage();
		}
	}
	if (optind != argc || o->threads > MODEL_MAX_THREADS)
		usage();
}

static void print_counts(const struct model *m, const struct options *o, uint64_t done,
			 uint64_t rounds)
{
	if (o->json) {
		printf("{\"program\":\"model\",\"threads\":%u,\"operations\":%llu,\"rounds\":%llu,"
		       "\"checks\":%llu,\"superblocks\":%llu}\n",
		       o->threads, (unsigned long long)done, (unsigned long long)rounds,
		       (unsigned long long)m->rig.checks, (unsigned long long)m->rig.oracle_roots);
		return;
	}
	printf("model: %llu operations in %llu rounds", (unsigned long long)done,
	       (unsigned long long)rounds);
	if (!o->threads) {
		for (unsigned i = 0; i < CPC_ARRAY_SIZE(ops); i++)
			printf(", %llu %s", (unsigned long long)m->counts[i], ops[i].name);
		printf("; %llu refused with -ENOSPC", (unsigned long long)m->counts[31]);
	}
	printf("; %llu checks, %llu superblocks watched\n", (unsigned long long)m->rig.checks,
	       (unsigned long long)m->rig.oracle_roots);
}

int main(int argc, char **argv)
{
	struct options o = {.seed = rig_env("CPC_TEST_SEED", (uint64_t)time(NULL) * 1000003),
			    .ops = rig_env("CPC_TEST_OPS", 1000000)};
	static struct model m;
	uint64_t done = 0, round = 0, nr;

	parse(argc, argv, &o);
	if (!o.json)
		printf("model: seed %llu\n", (unsigned long long)o.seed);
	m.buf = malloc(BUF_BYTES);
	m.buf2 = malloc(BUF_BYTES + 16384);
	for (; done < o.ops && (!o.rounds || round < o.rounds); round++) {
		uint64_t seed = o.seed + round;

		nr = cpc_min_u64(ROUND_OPS, o.ops - done);
		rig_set_rerun("%s --threads %u --seed %llu --rounds 1 --ops %llu", argv[0],
			      o.threads, (unsigned long long)seed, (unsigned long long)nr);
		if (o.verbose)
			printf("round with seed %llu\n", (unsigned long long)seed);
		done += o.threads ? model_threads(&m.rig, seed, o.threads, nr)
				  : run_round(&m, seed, nr);
	}
	print_counts(&m, &o, done, round);
	free(m.buf);
	free(m.buf2);
	return 0;
}
