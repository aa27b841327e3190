/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * histories: short random histories of a pool over several lives, against the rules of a flush.
 *
 *   histories [--seed N] [--histories N] [--json]
 *
 * In each life a few volumes are written, trimmed, zeroed, resized, made, renamed, deleted and
 * flushed, on a device whose flushes and writes may fail. A life ends in order, by kill -9, or by a
 * power cut at any device call, where what was not flushed is lost, kept or torn; then one copy of
 * something may rot, and the next opening may be cut as well. After each life the pool must open
 * and show one instant (past.h). The legality oracle watches every write. CPC_TEST_OPS: histories.
 *
 * Without threads, so a seed is always the same history. See docs/testing.md.
 */
#include "past.h"
#include "tap.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define KIB 1024ull
#define MIB (1024 * KIB)

#define POOL_SIZE (4 * MIB)
#define LOG_SIZE  (128 * KIB)
#define MAX_LIVES 4u
#define MAX_OPS	  14u
#define LONG_LIFE 200u /* operations: more records than the ring has room for */
#define OPEN_CUTS 3u   /* of openings in a row */

struct history {
	struct rig rig;
	struct tap tap;
	struct rnd rnd;
	struct past past;
	uint64_t calls; /* device calls until the power goes; 0: it does not */
	bool faulty;	/* the device may fail in this history */
	bool long_lives, many_commits, crowded;
	bool life_ended; /* what the pool holds is not known any more, or it has given up */
};

static bool verbose;
static struct {
	uint64_t lives, operations, cuts, cuts_in_open, kills, faults, failed, rotten;
} counts;

/* With CPC_TEST_VERBOSE, to see what happened in a history that failed. */
static void tell(struct history *h, const char *what)
{
	if (!verbose)
		return;
	fprintf(stderr, "%s", what);
	for (unsigned v = 0; v < h->past.nr_volumes; v++)
		fprintf(stderr, "  %s: %u-%u", past_table(&h->past)->name[v],
			h->past.volume[v].floor, h->past.volume[v].nr - 1);
	fprintf(stderr, "%s\n", h->life_ended ? "  life ends" : "");
}

/* --- the device --- */

static void cut_power(struct history *h)
{
	cpc_powercut_crash_random(h->rig.pc, rnd_u64(&h->rnd));
	h->tap.dead = true;
	counts.cuts++;
}

static void before_call(void *ctx, char what)
{
	struct history *h = ctx;

	if (h->calls && --h->calls == 0)
		cut_power(h);
}

static void arm_fault(struct history *h)
{
	static const enum cpc_powercut_action flush[] = {CPC_FAULT_FAIL, CPC_FAULT_FAIL_LANDED,
							 CPC_FAULT_DROP, CPC_FAULT_DROP_CACHED};
	static const enum cpc_powercut_action write[] = {CPC_FAULT_FAIL, CPC_FAULT_FAIL_LANDED,
							 CPC_FAULT_FAIL_TORN};
	struct cpc_powercut_fault f = {.error = -EIO, .nth = 1 + rnd_below(&h->rnd, 3)};

	if (rnd_percent(&h->rnd, 60)) {
		f.op = CPC_POWERCUT_FLUSH;
		f.action = flush[rnd_below(&h->rnd, CPC_ARRAY_SIZE(flush))];
	} else {
		f.op = CPC_POWERCUT_WRITE;
		f.action = write[rnd_below(&h->rnd, CPC_ARRAY_SIZE(write))];
	}
	cpc_powercut_add_fault(h->rig.pc, &f);
	counts.faults++;
	tell(h, f.op == CPC_POWERCUT_FLUSH ? "(flush will fail)" : "(write will fail)");
}

/* One copy of records or superblocks: the other one is as good. */
static void let_rot(struct history *h)
{
	unsigned copy = (unsigned)rnd_below(&h->rnd, 2);
	struct cpc_geometry geo;
	uint64_t start, len;

	cpc_assert(!cpc_geometry_init(&geo, POOL_SIZE, LOG_SIZE, h->rig.nodesize, !h->rig.single));
	if (rnd_percent(&h->rnd, 70)) {
		start = geo.log[copy] << CPC_BLOCK_SHIFT;
		len = LOG_SIZE;
	} else {
		start = cpc_geometry_super(&geo, copy, 0);
		len = CPC_SUPER_SLOTS * CPC_BLOCK_SIZE;
	}
	for (uint64_t at = 0; at < len; at += CPC_BLOCK_SIZE)
		cpc_powercut_flip(h->rig.pc, start + at + rnd_below(&h->rnd, CPC_BLOCK_SIZE),
				  (unsigned)rnd_below(&h->rnd, 8));
	counts.rotten++;
	tell(h, "rot");
}

/* --- operations --- */

static struct cpc_volume *open_volume(struct history *h, unsigned v)
{
	struct cpc_volume *vol;
	int ret = cpc_pool_open_volume(h->rig.pool, past_table(&h->past)->name[v], &vol);

	rig_expect(ret == 0, "open: %d", ret);
	return vol;
}

static int pick_volume(struct history *h)
{
	unsigned start = (unsigned)rnd_below(&h->rnd, PAST_VOLUMES);

	for (unsigned i = 0; i < PAST_VOLUMES; i++) {
		if (past_exists(&h->past, (start + i) % PAST_VOLUMES))
			return (int)((start + i) % PAST_VOLUMES);
	}
	return -1;
}

/* What fails without power, or stops the pool, has happened or not; the life ends. */
static void failed(struct history *h, int ret)
{
	counts.failed++;
	h->life_ended |= h->tap.dead || !cpc_pool_healthy(h->rig.pool, NULL, 0);
	if (h->tap.dead)
		return;
	rig_expect(ret == -EIO || ret == -EUCLEAN || ret == -ENOSPC, "operation: %d", ret);
	rig_expect(h->faulty || (h->crowded && ret == -ENOSPC), "operation: %d without a fault",
		   ret);
}

static void look_up_data(struct history *h, unsigned v)
{
	struct cpc_volume *vol = open_volume(h, v);
	struct volume_past *vp = &h->past.volume[v];
	struct content now;

	if (past_read(&h->past, vol, &now)) {
		h->life_ended = true; /* a flush that failed has dropped what is there */
	} else if (!past_same(&now, past_content(&h->past, v))) {
		rig_expect(past_same(&now, &vp->state[vp->nr - 2]),
			   "a request that failed has happened in part");
		past_pop(&h->past, v);
	}
	cpc_pool_close_volume(h->rig.pool, vol);
}

/* A change of data that failed: the volume is as before, or as after. */
static void data_failed(struct history *h, unsigned v, int ret)
{
	failed(h, ret);
	if (!h->life_ended)
		look_up_data(h, v);
}

static void change_range(struct history *h, struct content *c, char kind, uint32_t *first,
			 uint32_t *nr, uint32_t stamp)
{
	uint32_t grain = rnd_percent(&h->rnd, 70) ? 8 : 1;

	*first = (uint32_t)rnd_below(&h->rnd, c->sectors) / grain * grain;
	*nr = grain * (1 + (uint32_t)rnd_below(&h->rnd, rnd_percent(&h->rnd, 60) ? 2 : 64));
	*nr = (uint32_t)cpc_min_u64(*nr, c->sectors - *first);
	for (uint32_t i = *first; i < *first + *nr; i++) {
		uint32_t block = i / 8 * 8, end = *first + *nr;
		bool whole = block >= *first && (block + 8 <= end || end == c->sectors);

		if (kind != 't' || whole)
			c->stamp[i] = stamp;
	}
}

static int issue(struct history *h, struct cpc_volume *vol, char kind, uint32_t first, uint32_t nr,
		 uint32_t stamp, unsigned flags)
{
	static uint8_t data[PAST_SECTORS * 512];

	if (kind == 't')
		return cpc_volume_trim(vol, nr * 512, first * 512, flags);
	if (kind == 'z')
		return cpc_volume_zero(vol, nr * 512, first * 512,
				       flags | (rnd_percent(&h->rnd, 40) ? CPC_NO_HOLE : 0));
	for (uint32_t i = 0; i < nr; i++)
		past_fill(stamp, data + 512 * i);
	return cpc_volume_write(vol, data, nr * 512, first * 512, flags);
}

static void flushed(struct history *h, unsigned v)
{
	past_durable(&h->past, v);
	past_names_durable(&h->past);
}

static void op_data(struct history *h, char kind)
{
	int v = pick_volume(h), ret;
	unsigned flags = rnd_percent(&h->rnd, 10) ? CPC_FUA : 0;
	uint32_t first, nr, stamp;
	struct cpc_volume *vol;

	if (v < 0)
		return;
	vol = open_volume(h, (unsigned)v);
	stamp = kind == 'w' ? past_stamp(&h->past, (unsigned)v) : 0;
	change_range(h, past_push(&h->past, (unsigned)v), kind, &first, &nr, stamp);
	ret = issue(h, vol, kind, first, nr, stamp, flags);
	cpc_pool_close_volume(h->rig.pool, vol);
	if (!ret && flags & CPC_FUA)
		flushed(h, (unsigned)v);
	if (ret)
		data_failed(h, (unsigned)v, ret);
}

static void op_write(struct history *h)
{
	op_data(h, 'w');
}

static void op_trim(struct history *h)
{
	op_data(h, 't');
}

static void op_zero(struct history *h)
{
	op_data(h, 'z');
}

static void op_flush(struct history *h)
{
	int v = pick_volume(h), ret;
	struct cpc_volume *vol;

	if (v < 0)
		return;
	vol = open_volume(h, (unsigned)v);
	ret = cpc_volume_flush(vol);
	cpc_pool_close_volume(h->rig.pool, vol);
	if (!ret)
		flushed(h, (unsigned)v);
	else
		failed(h, ret);
	rig_expect(ret != -ENOSPC, "a flush needs room");
}

static void op_commit(struct history *h)
{
	int ret = cpc_pool_commit(h->rig.pool);

	if (!ret)
		past_all_durable(&h->past);
	else
		failed(h, ret);
}

/* All volumes are read, from the cache or from the device. */
static void op_read(struct history *h)
{
	for (unsigned v = 0; v < h->past.nr_volumes && !h->life_ended; v++) {
		struct cpc_volume *vol;
		struct content now;
		int ret;

		if (!past_exists(&h->past, v))
			continue;
		vol = open_volume(h, v);
		ret = past_read(&h->past, vol, &now);
		cpc_pool_close_volume(h->rig.pool, vol);
		if (ret)
			failed(h, ret);
		else
			rig_expect(past_same(&now, past_content(&h->past, v)),
				   "a volume reads as it has not been written");
		h->life_ended |= ret != 0;
	}
}

/* Takes all room that ordinary writes may have. */
static void fill_pool(struct history *h)
{
	static uint8_t data[16 * KIB];
	struct cpc_error err = {""};
	struct cpc_volume *vol;
	uint64_t at = 0;
	int ret = cpc_pool_create_volume(h->rig.pool, PAST_FILLER, POOL_SIZE, &err);

	rig_expect(ret == 0, "create: %s", err.text);
	rig_expect(cpc_pool_open_volume(h->rig.pool, PAST_FILLER, &vol) == 0, "open");
	memset(data, 1, sizeof(data));
	while (!ret) {
		ret = cpc_volume_write(vol, data, sizeof(data), at, 0);
		at += sizeof(data);
	}
	rig_expect(ret == -ENOSPC, "filling: %d", ret);
	rig_expect(cpc_volume_flush(vol) == 0, "flush");
	cpc_pool_close_volume(h->rig.pool, vol);
}

/* --- names --- */

static void pick_name(struct history *h, char name[4])
{
	bool used = true;

	memset(name, 0, 4);
	while (used) {
		snprintf(name, 4, "n%u", (unsigned)rnd_below(&h->rnd, PAST_VOLUMES + 2));
		used = false;
		for (unsigned v = 0; v < h->past.nr_volumes; v++)
			used |= !strcmp(past_table(&h->past)->name[v], name);
	}
}

/* The table was pushed before the call. Return: whether the change is there. */
static bool names_answered(struct history *h, int ret)
{
	struct table now;

	if (!ret) {
		past_list(&h->past, h->rig.pool, &now);
		rig_expect(!memcmp(&now, past_table(&h->past), sizeof(now)), "other names");
		past_names_durable(&h->past);
		return true;
	}
	failed(h, ret);
	if (h->life_ended)
		return true;
	past_list(&h->past, h->rig.pool, &now);
	if (!memcmp(&now, past_table(&h->past), sizeof(now)))
		return true;
	past_pop_table(&h->past);
	rig_expect(!memcmp(&now, past_table(&h->past), sizeof(now)),
		   "names are neither as before nor as after an error");
	return false;
}

static void op_create(struct history *h)
{
	struct cpc_error err;
	uint32_t sectors = 1 + (uint32_t)rnd_below(&h->rnd, PAST_SECTORS);
	char name[4];
	unsigned v;
	int ret;

	pick_name(h, name);
	v = past_add_volume(&h->past, sectors);
	memcpy(past_push_table(&h->past)->name[v], name, sizeof(name));
	ret = cpc_pool_create_volume(h->rig.pool, name, sectors * 512ull, &err);
	if (!names_answered(h, ret))
		h->past.nr_volumes--;
}

static void op_rename(struct history *h)
{
	int v = pick_volume(h);
	struct cpc_error err;
	char old[4], name[4];

	if (v < 0)
		return;
	pick_name(h, name);
	memcpy(old, past_table(&h->past)->name[v], sizeof(old));
	memcpy(past_push_table(&h->past)->name[v], name, sizeof(name));
	names_answered(h, cpc_pool_rename(h->rig.pool, old, name, &err));
}

static void op_delete(struct history *h)
{
	int v = pick_volume(h);
	struct cpc_error err;
	char old[4];

	if (v < 0)
		return;
	memcpy(old, past_table(&h->past)->name[v], sizeof(old));
	memset(past_push_table(&h->past)->name[v], 0, sizeof(old));
	names_answered(h, cpc_pool_delete(h->rig.pool, old, &err));
}

static void op_resize(struct history *h)
{
	uint32_t sectors = 1 + (uint32_t)rnd_below(&h->rnd, PAST_SECTORS), old;
	unsigned at;
	int v = pick_volume(h), ret;
	struct cpc_error err;
	struct content *c;

	if (v < 0 || past_content(&h->past, (unsigned)v)->sectors == sectors)
		return;
	c = past_push(&h->past, (unsigned)v);
	old = c->sectors;
	c->sectors = sectors;
	for (uint32_t i = cpc_min_u64(sectors, old); i < PAST_SECTORS; i++)
		c->stamp[i] = 0;
	ret = cpc_pool_resize(h->rig.pool, past_table(&h->past)->name[v], sectors * 512ull, true,
			      &err);
	at = h->past.volume[v].nr - 1;
	if (!ret)
		past_durable(&h->past, (unsigned)v);
	else
		data_failed(h, (unsigned)v, ret);
	if (h->past.volume[v].nr - 1 == at)
		h->past.volume[v].resized = at;
}

enum { COMMIT = 4 };

static const struct {
	void (*run)(struct history *h);
	const char *name;
	unsigned weight; /* of 100 */
} ops[] = {
    {op_write, "write", 45},  {op_trim, "trim", 7},	{op_zero, "zero", 6},
    {op_flush, "flush", 16},  {op_commit, "commit", 5}, {op_read, "read", 5},
    {op_create, "create", 5}, {op_rename, "rename", 4}, {op_delete, "delete", 3},
    {op_resize, "resize", 4},
};

static void step(struct history *h)
{
	uint64_t p = rnd_below(&h->rnd, 100);
	unsigned i = 0;

	while (p >= ops[i].weight)
		p -= ops[i++].weight;
	if (h->many_commits && rnd_percent(&h->rnd, 30))
		i = COMMIT;
	if (h->faulty && rnd_percent(&h->rnd, 12))
		arm_fault(h);
	ops[i].run(h);
	counts.operations++;
	h->life_ended |= h->tap.dead || !cpc_pool_healthy(h->rig.pool, NULL, 0);
	tell(h, ops[i].name);
}

/* --- lives --- */

/* Return: false when the power went while it was opened. */
static bool try_open(struct history *h, bool may_be_cut)
{
	struct cpc_error err = {""};
	int ret;

	h->tap.dead = false;
	h->calls = may_be_cut ? 1 + rnd_below(&h->rnd, 20) : 0;
	ret = rig_try_open(&h->rig, &err);
	h->calls = 0;
	if (!h->tap.dead) {
		rig_expect(ret == 0, "the pool does not open: %s (%d)", err.text, ret);
		return true;
	}
	rig_expect(ret != 0, "a pool whose device is gone is open");
	counts.cuts_in_open++;
	return false;
}

static void count_call(void *ctx, char what)
{
	rig_fail("a pool that is open for reading calls the device to change it: %c", what);
}

static void look_read_only(struct history *h)
{
	h->rig.opts.read_only = true;
	h->tap.before = count_call;
	try_open(h, false);
	past_judge(&h->past, h->rig.pool, false);
	rig_abandon(&h->rig);
	h->tap.before = before_call;
	h->rig.opts.read_only = false;
}

static void open_again(struct history *h)
{
	unsigned cuts = 0;

	if (rnd_percent(&h->rnd, 15))
		look_read_only(h);
	while (!try_open(h, cuts < OPEN_CUTS && rnd_percent(&h->rnd, 25)))
		cuts++;
	past_judge(&h->past, h->rig.pool, true);
	tell(h, "opened");
}

static void end_life(struct history *h)
{
	cpc_powercut_clear_faults(h->rig.pc);
	if (!h->life_ended && rnd_percent(&h->rnd, 15)) {
		int ret = rig_close(&h->rig);

		rig_expect(ret == 0 || h->faulty, "shutdown: %d", ret);
		if (!ret)
			past_all_durable(&h->past);
	} else if (!h->tap.dead && rnd_percent(&h->rnd, 25)) {
		counts.kills++;
		rig_kill(&h->rig);
	} else {
		if (!h->tap.dead)
			cut_power(h);
		rig_abandon(&h->rig);
		if (rnd_percent(&h->rnd, 20))
			let_rot(h);
	}
}

static void live(struct history *h)
{
	unsigned nr = 1 + (unsigned)rnd_below(&h->rnd, h->long_lives ? LONG_LIFE : MAX_OPS);

	h->life_ended = false;
	h->calls = rnd_percent(&h->rnd, 70) ? 1 + rnd_below(&h->rnd, 3 * nr + 10) : 0;
	for (unsigned i = 0; i < nr && !h->life_ended && !past_full(&h->past); i++)
		step(h);
	h->calls = 0;
	end_life(h);
	counts.lives++;
	tell(h, h->tap.dead ? "power cut" : "closed or killed");
}

static void draw(struct history *h)
{
	struct rig *rig = &h->rig;

	rig->size = POOL_SIZE;
	rig->log_size = LOG_SIZE;
	rig->nodesize = 4096;
	rig->single = rnd_percent(&h->rnd, 25);
	rig->watch = true;
	rig->wrap = tap_wrap;
	rig->wrap_ctx = &h->tap;
	cpc_pool_options_init(&rig->opts);
	rig->opts.cache = MIB;
	rig->opts.dirty = rnd_percent(&h->rnd, 50) ? 4 * CPC_BLOCK_SIZE : 0;
	rig->opts.no_threads = true;
	h->faulty = rnd_percent(&h->rnd, 40);
	h->long_lives = rnd_percent(&h->rnd, 4);
	h->many_commits = rnd_percent(&h->rnd, 30);
	h->crowded = rnd_percent(&h->rnd, 10);
}

static void run_history(const char *program, uint64_t seed)
{
	struct history *h = calloc(1, sizeof(*h));
	unsigned lives;

	cpc_assert(h);
	rig_set_rerun("%s --seed %llu --histories 1", program, (unsigned long long)seed);
	rig_seed_engine(seed);
	h->rnd.state = seed;
	past_init(&h->past);
	draw(h);
	rig_create(&h->rig);
	h->tap.before = before_call;
	h->tap.ctx = h;
	rig_open(&h->rig);
	op_create(h);
	op_create(h);
	if (h->crowded)
		fill_pool(h);
	lives = 1 + (unsigned)rnd_below(&h->rnd, MAX_LIVES);
	for (unsigned i = 0; i < lives; i++) {
		live(h);
		open_again(h);
	}
	rig_expect(rig_close(&h->rig) == 0, "shutdown");
	rig_check(&h->rig, false, NULL);
	rig_destroy(&h->rig);
	free(h);
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
	    {"seed", 1, 0, 's'}, {"histories", 1, 0, 'n'}, {"json", 0, 0, 'j'}, {NULL, 0, 0, 0}};
	bool json = false;
	uint64_t seed = rig_env("CPC_TEST_SEED", (uint64_t)time(NULL) * 1009);
	uint64_t nr = rig_env("CPC_TEST_OPS", 200000) / 20;
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 's') {
			seed = rig_number(optarg, "--seed");
		} else if (c == 'n') {
			nr = rig_number(optarg, "--histories");
		} else if (c == 'j') {
			json = true;
		} else {
			fprintf(stderr, "usage: histories [--seed N] [--histories N] [--json]\n");
			return 2;
		}
	}
	if (!json)
		printf("histories: seed %llu\n", (unsigned long long)seed);
	rig_init(seed);
	verbose = getenv("CPC_TEST_VERBOSE");
	for (uint64_t i = 0; i < nr; i++)
		run_history(argv[0], seed + i);
	printf(json ? "{\"program\":\"histories\",\"histories\":%llu,\"lives\":%llu,"
		      "\"operations\":%llu,\"cuts\":%llu,\"cuts_in_opening\":%llu,\"kills\":%llu,"
		      "\"io_faults\":%llu,\"failed_operations\":%llu,\"rotten\":%llu}\n"
		    : "histories: %llu of %llu lives and %llu operations, as promised; %llu power "
		      "cuts, %llu of them inside an opening, %llu kills, %llu device errors "
		      "injected, %llu operations failed, %llu times a copy has rotten\n",
	       (unsigned long long)nr, (unsigned long long)counts.lives,
	       (unsigned long long)counts.operations, (unsigned long long)counts.cuts,
	       (unsigned long long)counts.cuts_in_open, (unsigned long long)counts.kills,
	       (unsigned long long)counts.faults, (unsigned long long)counts.failed,
	       (unsigned long long)counts.rotten);
	return 0;
}
