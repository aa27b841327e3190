/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Many threads in one tree: a locked byte has one owner, and no wake-up is lost. Run under
 * ThreadSanitizer too. CPC_TEST_OPS says how many lock/unlock pairs.
 *
 * A lost wake-up shows as a hang: a watchdog looks for five seconds without any progress.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "io-tree/io-tree-internal.h"

enum { NR_THREADS = 8, SIZE = 96, DEFAULT_PAIRS = 400000 };

struct world {
	struct cpc_io_tree tree;
	/* Plain memory, protected by the range locks alone: ThreadSanitizer sees if they do not. */
	unsigned owner[SIZE];
	uint64_t dirty[SIZE];
	uint64_t charged; /* atomic: DELALLOC bytes by changeset */
	uint64_t pairs;	  /* atomic */
	uint64_t goal;
	bool stop; /* atomic */
	bool narrow;
};

struct worker {
	struct world *w;
	pthread_t thread;
	uint64_t rng;
	unsigned id;
};

static uint64_t rnd(struct worker *me, uint64_t below)
{
	me->rng ^= me->rng >> 12;
	me->rng ^= me->rng << 25;
	me->rng ^= me->rng >> 27;
	return (me->rng * 0x2545f4914f6cdd1dULL >> 33) % below;
}

static void delay(struct worker *me)
{
	volatile unsigned spin;

	if (!rnd(me, 64))
		sched_yield();
	else if (!rnd(me, 2))
		for (spin = (unsigned)rnd(me, 200); spin > 0;)
			spin = spin - 1;
}

/* With the range locked: nobody else is in it. */
static void own(struct worker *me, uint64_t start, uint64_t len)
{
	uint64_t i;

	for (i = start; i < start + len; i++) {
		cpc_assert(me->w->owner[i] == 0);
		me->w->owner[i] = me->id;
	}
	delay(me);
	for (i = start; i < start + len; i++) {
		cpc_assert(me->w->owner[i] == me->id);
		me->w->owner[i] = 0;
	}
}

static void lock_somehow(struct worker *me, uint64_t start, uint64_t len,
			 struct cpc_io_state **cached)
{
	int err = -EAGAIN;

	if (!rnd(me, 4))
		err = cpc_io_tree_trylock(&me->w->tree, start, len, cached);
	if (err == -EAGAIN)
		err = cpc_io_tree_lock(&me->w->tree, start, len, cached);
	cpc_assert(!err);
}

/* Unlocks, alone or together with dirtying or cleaning; keeps the books. */
static void unlock_somehow(struct worker *me, uint64_t start, uint64_t len,
			   struct cpc_io_state **cached)
{
	struct cpc_io_tree *tree = &me->w->tree;
	struct cpc_changeset cs = {0};
	const enum cpc_io_bits both = CPC_IO_LOCKED | CPC_IO_DELALLOC;
	int err = 0;

	switch (rnd(me, 4)) {
	case 0:
		err = cpc_io_tree_convert(tree, start, len, CPC_IO_DELALLOC, CPC_IO_LOCKED, cached,
					  &cs);
		break;
	case 1:
		err = cpc_io_tree_clear(tree, start, len, both, cached, &cs);
		break;
	default:
		cpc_io_tree_unlock(tree, start, len, cached);
	}
	cpc_assert(!err);
	__atomic_fetch_add(&me->w->charged, cs.set_bytes - cs.cleared_bytes, __ATOMIC_RELAXED);
}

static void pair(struct worker *me)
{
	uint64_t start = rnd(me, me->w->narrow ? 4 : SIZE), len;
	struct cpc_io_state *cached = NULL;

	len = 1 + rnd(me, cpc_min_u64(SIZE - start, me->w->narrow ? 3 : 24));
	lock_somehow(me, start, len, rnd(me, 4) ? &cached : NULL);
	own(me, start, len);
	if (cached)
		unlock_somehow(me, start, len, &cached);
	else
		unlock_somehow(me, start, len, NULL);
	if (!rnd(me, 16))
		cpc_assert(!cpc_io_tree_wait(&me->w->tree, rnd(me, SIZE), 1, CPC_IO_LOCKED));
}

static void *worker_run(void *arg)
{
	struct worker *me = arg;

	while (__atomic_fetch_add(&me->w->pairs, 1, __ATOMIC_RELAXED) < me->w->goal)
		pair(me);
	return NULL;
}

/* Checks the structure while all goes on, and that it does go on. */
static void *watchdog_run(void *arg)
{
	struct world *w = arg;
	uint64_t last = 0, now;
	unsigned quiet = 0;
	char why[128];

	while (!__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE)) {
		if (cpc_io_tree_check(&w->tree, why, sizeof(why))) {
			fprintf(stderr, "%s\n", why);
			abort();
		}
		usleep(10000);
		now = __atomic_load_n(&w->pairs, __ATOMIC_RELAXED);
		quiet = now == last ? quiet + 1 : 0;
		last = now;
		cpc_assert(quiet < 500); /* a wake-up was lost */
	}
	return NULL;
}

static void run_world(bool narrow, uint64_t pairs)
{
	struct cpc_io_tree_config config = {0};
	struct cpc_io_tree_stats stats;
	struct world *w = aligned_alloc(64, (sizeof(*w) + 63) / 64 * 64);
	struct worker workers[NR_THREADS];
	const char *seed_env = getenv("CPC_TEST_SEED");
	uint64_t seed = seed_env ? strtoull(seed_env, NULL, 0) : (uint64_t)time(NULL), bytes;
	pthread_t watchdog;
	unsigned i;

	assert_non_null(w);
	print_message("CPC_TEST_SEED=%llu\n", (unsigned long long)seed);
	memset(w, 0, sizeof(*w));
	cpc_io_tree_init(&w->tree, &config);
	w->goal = pairs;
	w->narrow = narrow;
	for (i = 0; i < NR_THREADS; i++) {
		workers[i] = (struct worker){
		    .w = w, .id = i + 1, .rng = ((seed + i) * 0x9e3779b97f4a7c15ULL) | 1};
		assert_int_equal(
		    cpc_thread_start(&workers[i].thread, "worker", worker_run, &workers[i]), 0);
	}
	assert_int_equal(cpc_thread_start(&watchdog, "watchdog", watchdog_run, w), 0);
	for (i = 0; i < NR_THREADS; i++)
		pthread_join(workers[i].thread, NULL);
	__atomic_store_n(&w->stop, true, __ATOMIC_RELEASE);
	pthread_join(watchdog, NULL);

	assert_int_equal(cpc_io_tree_count(&w->tree, 0, SIZE, CPC_IO_LOCKED, 1000, &bytes), 0);
	assert_int_equal(bytes, 0);
	assert_int_equal(cpc_io_tree_count(&w->tree, 0, SIZE, CPC_IO_DELALLOC, 1000, &bytes), 0);
	assert_int_equal(bytes, w->charged);
	cpc_io_tree_get_stats(&w->tree, &stats);
	print_message("%llu pairs: slept %llu, wakeups %llu, skipped %llu\n",
		      (unsigned long long)pairs, (unsigned long long)stats.lock_waits,
		      (unsigned long long)stats.wakeups, (unsigned long long)stats.wakeups_skipped);
	assert_true(stats.lock_waits && stats.wakeups && stats.wakeups_skipped);
	cpc_io_tree_destroy(&w->tree);
	free(w);
}

static uint64_t pairs_wanted(void)
{
	const char *env = getenv("CPC_TEST_OPS");

	return env ? strtoull(env, NULL, 0) : DEFAULT_PAIRS;
}

static void a_locked_byte_has_one_owner(void **state)
{
	run_world(false, pairs_wanted());
}

static void no_wakeup_is_lost(void **state)
{
	run_world(true, pairs_wanted());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_locked_byte_has_one_owner),
	    cmocka_unit_test(no_wakeup_is_lost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
