/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Trimming, shrinking and deleting a volume that is full to the last block, with every block
 * somewhere else: what it costs each commit, what `info` says at once, and what a power cut leaves.
 * Nothing is measured by time: device operations are counted, and priced by a plain drive.
 */
#include "mapping.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "../powercut/tap.h"
#include "priced.h"
#include "rig.h"
#include "volume/volume.h"

#define MIB	    (1ull << 20)
#define GIB	    (1ull << 30)
#define COMMITS_MAX 100000u /* then something never ends */
#define COMMIT_MAX  80000u  /* us of a plain drive, of the 100 ms that are allowed */

struct scale {
	struct rig rig;
	struct tap tap;
	struct cpc_backing *device; /* of the open pool */
	struct mapping mapping;
	uint64_t empty; /* bytes in use without the volume */
};

static struct cpc_backing *wrap(void *ctx, struct cpc_backing *inner)
{
	struct scale *s = ctx;

	return s->device = tap_wrap(&s->tap, inner);
}

static void make(struct scale *s, uint64_t pool, uint32_t nodesize)
{
	struct cpc_backing *backing;
	struct cpc_pool_info info;
	const char *why;

	s->rig.size = pool;
	s->rig.nodesize = nodesize;
	s->rig.wrap = wrap;
	s->rig.wrap_ctx = s;
	rig_init(1);
	cpc_pool_options_init(&s->rig.opts);
	s->rig.opts.cache = 64 * MIB;
	s->rig.opts.commit_interval = 0;
	s->rig.opts.no_threads = true;
	rig_create(&s->rig);
	rig_open(&s->rig);
	cpc_pool_info(s->rig.pool, &info);
	s->empty = info.used;
	assert_int_equal(rig_close(&s->rig), 0);
	assert_int_equal(cpc_powercut_reopen(s->rig.pc, &backing), 0);
	s->mapping.name = "full";
	s->mapping.run = 1;
	s->mapping.seed = 7;
	if (mapping_make(backing, &s->mapping, &why))
		fail_msg("%s", why);
	cpc_backing_close(backing);
	rig_open(&s->rig);
}

static void finish(struct scale *s)
{
	if (s->rig.pool)
		assert_int_equal(rig_close(&s->rig), 0);
	rig_check(&s->rig, false, NULL);
	rig_destroy(&s->rig);
}

static uint64_t used(struct scale *s)
{
	struct cpc_pool_info info;

	cpc_pool_info(s->rig.pool, &info);
	return info.used;
}

/* --- a synthetic volume is a real one --- */

static void a_synthetic_volume_is_whole_and_reads_as_zeroes(void **state)
{
	static const uint32_t runs[] = {1, 3, 256};

	for (unsigned i = 0; i < CPC_ARRAY_SIZE(runs); i++) {
		struct scale s = {.mapping = {.size = runs[i] * 20 * MIB, .seed = i}};
		struct cpc_check_result result;
		struct cpc_volume_info info;
		struct cpc_volume *vol;
		static uint8_t buf[MIB];

		s.mapping.run = runs[i];
		make(&s, 8 * GIB, 4096);
		assert_int_equal(cpc_pool_volume_info(s.rig.pool, "full", &info), 0);
		assert_int_equal(info.size, s.mapping.size);
		assert_int_equal(info.used, s.mapping.size);
		assert_int_equal(cpc_pool_open_volume(s.rig.pool, "full", &vol), 0);
		memset(buf, 1, sizeof(buf));
		assert_int_equal(cpc_volume_read(vol, buf, sizeof(buf), MIB), 0);
		assert_true(cpc_all_zero(buf, sizeof(buf)));
		cpc_pool_close_volume(s.rig.pool, vol);
		assert_int_equal(rig_close(&s.rig), 0);
		rig_check(&s.rig, false, &result);
		assert_int_equal(result.data_blocks, s.mapping.size / 4096);
		rig_destroy(&s.rig);
	}
}

/* --- dropping --- */

enum drop { TRIM, SHRINK, DELETE, NR_DROPS };

static void drop(struct scale *s, enum drop how)
{
	struct cpc_error err = {""};
	struct cpc_volume *vol;
	int ret;

	if (how == TRIM) {
		assert_int_equal(cpc_pool_open_volume(s->rig.pool, "full", &vol), 0);
		ret = cpc_volume_trim(vol, s->mapping.size, 0, CPC_FUA);
		cpc_pool_close_volume(s->rig.pool, vol);
	} else if (how == SHRINK) {
		ret = cpc_pool_resize(s->rig.pool, "full", 4096, true, &err);
	} else {
		ret = cpc_pool_delete(s->rig.pool, "full", &err);
	}
	if (ret)
		fail_msg("%s", err.text);
}

/* Commits what waits for it. Return: whether anything did. */
static bool commit(struct scale *s, uint64_t *worst_us)
{
	uint64_t us;
	bool more = priced_commit(s->rig.pool, s->device, &us);

	*worst_us = cpc_max_u64(*worst_us, us);
	return more;
}

/* Commits until nothing is left to commit. Return: commits. */
static unsigned drain(struct scale *s, uint64_t *worst_us)
{
	unsigned commits = 0;

	while (commit(s, worst_us))
		assert_true(++commits < COMMITS_MAX);
	return commits;
}

static void dropping_a_full_volume_never_makes_a_commit_long(void **state)
{
	static const struct {
		uint32_t nodesize;
		enum drop how;
		uint64_t gib; /* of the volume, scattered over 2048 groups */
	} cases[] = {{4096, TRIM, 2}, {4096, SHRINK, 2}, {16384, DELETE, 4}, {65536, DELETE, 4}};
	/* by hand: how many times as much of all; 4 is a terabyte of groups */
	uint64_t times = rig_env("CPC_TEST_OPS", 1);

	for (unsigned i = 0; i < CPC_ARRAY_SIZE(cases); i++) {
		struct scale s = {
		    .mapping = {.size = times * cases[i].gib * GIB, .spread = times * 256 * GIB}};
		uint64_t worst = 0, least;
		unsigned commits;

		make(&s, times * 320 * GIB, cases[i].nodesize);
		least = used(&s) - s.mapping.size;
		drop(&s, cases[i].how);
		/* the commit that unlinks it is the one that counts it as free */
		assert_true(commit(&s, &worst));
		assert_true(used(&s) <= least + 64 * cases[i].nodesize);
		commits = drain(&s, &worst);
		print_message("nodesize %u: %u commits, the longest %llu us of I/O\n",
			      cases[i].nodesize, commits, (unsigned long long)worst);
		assert_true(commits > 3);
		assert_true(worst < COMMIT_MAX);
		finish(&s);
	}
}

/* --- power cuts --- */

#define MAX_EVENTS 4000u

struct history {
	struct scale *s;
	struct cpc_powercut_saved *saved[MAX_EVENTS];
	unsigned nr;
	unsigned answered; /* events before the drop was answered */
};

static void save(void *ctx, char what)
{
	struct history *h = ctx;

	assert_true(h->nr < MAX_EVENTS);
	h->saved[h->nr++] = cpc_powercut_save(h->s->rig.pc);
}

/* 1: dropped, 0: as if nothing had happened. Anything between is wrong. */
static bool was_dropped(struct scale *s, enum drop how)
{
	struct cpc_volume_info info;
	bool there = !cpc_pool_volume_info(s->rig.pool, "full", &info);
	uint64_t left = how == SHRINK ? 4096 : 0;

	if (!there) {
		assert_int_equal(how, DELETE);
		return true;
	}
	if (info.used == s->mapping.size) {
		assert_int_equal(info.size, s->mapping.size);
		return false;
	}
	assert_true(how != DELETE);
	assert_int_equal(info.used, left);
	assert_int_equal(info.size, how == SHRINK ? 4096 : s->mapping.size);
	return true;
}

static void cut_at(struct history *h, unsigned event, enum drop how, uint64_t seed)
{
	struct scale *s = h->s;
	uint64_t worst = 0, before;
	bool dropped;

	cpc_powercut_restore(s->rig.pc, h->saved[event]);
	cpc_powercut_crash_random(s->rig.pc, seed);
	rig_check(&s->rig, true, NULL);
	rig_open(&s->rig);
	before = used(s);
	drain(s, &worst);
	dropped = was_dropped(s, how);
	assert_true(dropped || event < h->answered);
	if (dropped)
		assert_true(used(s) < s->empty + MIB);
	else
		assert_int_equal(used(s), before);
	assert_int_equal(rig_close(&s->rig), 0);
	rig_check(&s->rig, false, NULL);
}

static void try_cuts(struct history *h, enum drop how)
{
	uint64_t want = rig_env("CPC_TEST_STATES", 60);
	struct rnd rnd = {how + 1};

	for (uint64_t i = 0; i < want; i++) {
		unsigned event = (unsigned)rnd_below(&rnd, h->nr);
		uint64_t seed = rnd_u64(&rnd);

		rig_set_rerun("event %u, fates %llu", event, (unsigned long long)seed);
		cut_at(h, event, how, seed);
	}
}

static void a_power_cut_while_dropping_leaves_a_whole_pool(void **state)
{
	/* the larger one needs more bitmaps than a commit may read: its leaves are freed in parts
	 */
	static const struct {
		uint32_t nodesize;
		uint64_t pool;
	} cases[NR_DROPS] = {{4096, GIB}, {4096, GIB}, {65536, 40 * GIB}};

	for (enum drop how = TRIM; how < NR_DROPS; how++) {
		struct scale s = {
		    .rig.watch = true,
		    .mapping = {.size = 256 * MIB, .spread = cases[how].pool / 4 * 3}};
		struct history *h = calloc(1, sizeof(*h));
		uint64_t worst = 0;

		assert_non_null(h);
		h->s = &s;
		make(&s, cases[how].pool, cases[how].nodesize);
		s.tap = (struct tap){.before = save, .ctx = h};
		drop(&s, how);
		h->answered = h->nr;
		assert_true(drain(&s, &worst) > 2);
		s.tap.before = NULL;
		assert_int_equal(rig_close(&s.rig), 0);
		try_cuts(h, how);
		for (unsigned i = 0; i < h->nr; i++)
			cpc_powercut_saved_free(h->saved[i]);
		print_message("%u device writes, discards and flushes\n", h->nr);
		finish(&s);
		free(h);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_synthetic_volume_is_whole_and_reads_as_zeroes),
	    cmocka_unit_test(dropping_a_full_volume_never_makes_a_commit_long),
	    cmocka_unit_test(a_power_cut_while_dropping_leaves_a_whole_pool),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
