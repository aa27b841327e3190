/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * scrub: the thread around core/check/scrub.h.
 *
 *   NONE --start--> RUNNING --the end--> DONE          start from DONE or STOPPED begins anew
 *                      '------stop-----> STOPPED
 *
 * The thread is joined by who stops it, or by the next start. Clients come first: when any asked
 * for something during a batch, the scrub sleeps as long as the batch took, so that it takes at
 * most half of the device.
 *
 * What was found is kept in memory, so that whoever asks later, or from another process, sees all
 * of it.
 */
#include "pool/pool-internal.h"

#include <stdio.h>

#include "lib/hooks.h"

#define PAUSE_MAX_NS 100000000ull

struct cpc_pool_scrubber {
	struct cpc_mutex lock; /* CPC_RANK_LEAF */
	struct cpc_cond wake;
	/* under lock */
	struct cpc_scrub_status status;
	struct cpc_damage *damage; /* volume is a copy that this owns */
	size_t cap;
	bool stop;   /* the pool is being closed: no more starts */
	bool joined; /* no thread to be joined */
	bool ending; /* somebody joins it */
	pthread_t thread;
	/* scrub's thread */
	uint64_t requests; /* of clients, at the last look */
};

struct cpc_pool_scrubber *cpc_pool_scrubber_new(void)
{
	struct cpc_pool_scrubber *sc = cpc_zalloc(sizeof(*sc));

	if (!sc)
		return NULL;
	cpc_mutex_init(&sc->lock, "scrub", CPC_RANK_LEAF);
	cpc_cond_init(&sc->wake);
	sc->joined = true;
	return sc;
}

static void forget_damage(struct cpc_pool_scrubber *sc)
{
	for (size_t i = 0; i < sc->status.nr_damage; i++)
		cpc_free((void *)(uintptr_t)sc->damage[i].volume);
	cpc_free(sc->damage);
	sc->damage = NULL;
	sc->cap = 0;
	memset(&sc->status, 0, sizeof(sc->status));
}

void cpc_pool_scrubber_free(struct cpc_pool_scrubber *sc)
{
	if (!sc)
		return;
	cpc_assert(sc->joined);
	forget_damage(sc);
	cpc_mutex_destroy(&sc->lock);
	cpc_cond_destroy(&sc->wake);
	cpc_free(sc);
}

/* --- what the scrub calls --- */

static bool make_room_locked(struct cpc_pool_scrubber *sc)
{
	size_t cap = sc->cap ? 2 * sc->cap : 16;
	struct cpc_damage *bigger;

	if (sc->status.nr_damage < sc->cap)
		return true;
	bigger = sc->status.nr_damage < CPC_SCRUB_MAX_DAMAGE ? cpc_alloc_array(cap, sizeof(*bigger))
							     : NULL;
	if (!bigger)
		return false;
	if (sc->status.nr_damage)
		memcpy(bigger, sc->damage, sc->status.nr_damage * sizeof(*bigger));
	cpc_free(sc->damage);
	sc->damage = bigger;
	sc->cap = cap;
	return true;
}

static void keep_damage(void *ctx, const struct cpc_damage *damage)
{
	struct cpc_pool *pool = ctx;
	struct cpc_pool_scrubber *sc = pool->scrubber;

	cpc_mutex_lock(&sc->lock);
	if (make_room_locked(sc)) {
		struct cpc_damage *kept = &sc->damage[sc->status.nr_damage++];

		*kept = *damage;
		kept->volume = damage->volume ? cpc_pool_copy_name(damage->volume) : NULL;
	}
	cpc_mutex_unlock(&sc->lock);
}

static void keep_progress(void *ctx, uint64_t done, uint64_t total)
{
	struct cpc_pool *pool = ctx;

	cpc_mutex_lock(&pool->scrubber->lock);
	pool->scrubber->status.done = done;
	pool->scrubber->status.total = total;
	cpc_mutex_unlock(&pool->scrubber->lock);
}

static uint64_t client_requests(struct cpc_pool *pool)
{
	struct cpc_engine_stats s;

	cpc_engine_get_stats(pool->engine, &s);
	return s.reads + s.writes + s.trims + s.zeroes + s.flushes;
}

static bool give_way(void *ctx, uint64_t busy_ns)
{
	struct cpc_pool *pool = ctx;
	struct cpc_pool_scrubber *sc = pool->scrubber;
	uint64_t requests = client_requests(pool);
	uint64_t end = cpc_now_ns() + cpc_min_u64(busy_ns, PAUSE_MAX_NS), now;
	bool quiet = requests == sc->requests, stop;

	sc->requests = requests;
	cpc_mutex_lock(&sc->lock);
	while (!quiet && !sc->stop && (now = cpc_now_ns()) < end)
		cpc_cond_wait_ns(&sc->wake, &sc->lock, end - now);
	stop = sc->stop;
	cpc_mutex_unlock(&sc->lock);
	return stop;
}

/* --- the thread --- */

/* First all that was answered gets into the trees. A pool that takes no writes is only looked at.
 */
static int run_scrub(struct cpc_pool *pool, const struct cpc_scrub_options *opts,
		     struct cpc_scrub_result *result)
{
	struct cpc_scrub_options o = *opts;

	o.heal = !pool->opts.read_only && !cpc_engine_broken(pool->engine, NULL, 0);
	if (o.heal)
		cpc_engine_commit_if_dirty(pool->engine);
	return cpc_scrub(pool->store, cpc_engine_log(pool->engine), &o, result);
}

static void *scrub_main(void *arg)
{
	struct cpc_pool *pool = arg;
	struct cpc_pool_scrubber *sc = pool->scrubber;
	const struct cpc_scrub_options opts = {
	    .progress = keep_progress, .damage = keep_damage, .pause = give_way, .ctx = pool};
	struct cpc_scrub_result result;
	int ret;

	sc->requests = client_requests(pool);
	ret = run_scrub(pool, &opts, &result);
	cpc_mutex_lock(&sc->lock);
	sc->status.result = result;
	sc->status.error = ret;
	sc->status.state = ret || result.stopped ? CPC_SCRUB_STOPPED : CPC_SCRUB_DONE;
	cpc_cond_broadcast(&sc->wake);
	cpc_mutex_unlock(&sc->lock);
	return NULL;
}

/* Joins the thread, with the lock dropped. */
static void join_locked(struct cpc_pool_scrubber *sc)
{
	while (sc->ending)
		cpc_cond_wait(&sc->wake, &sc->lock);
	if (sc->joined)
		return;
	sc->ending = true;
	cpc_mutex_unlock(&sc->lock);
	pthread_join(sc->thread, NULL);
	cpc_mutex_lock(&sc->lock);
	sc->ending = false;
	sc->joined = true;
	cpc_cond_broadcast(&sc->wake);
}

int cpc_pool_scrub_start(struct cpc_pool *pool, struct cpc_error *err)
{
	struct cpc_pool_scrubber *sc = pool->scrubber;
	int ret = 0;

	cpc_mutex_lock(&sc->lock);
	if (!sc->stop && sc->status.state != CPC_SCRUB_RUNNING)
		join_locked(sc);
	if (sc->stop) {
		ret = -ESHUTDOWN;
	} else if (sc->status.state != CPC_SCRUB_RUNNING) {
		forget_damage(sc);
		sc->status.state = CPC_SCRUB_RUNNING;
		ret = cpc_thread_start(&sc->thread, "coppice-scrub", scrub_main, pool);
		sc->joined = ret != 0;
		if (ret)
			sc->status.state = CPC_SCRUB_NONE;
	}
	cpc_mutex_unlock(&sc->lock);
	return ret ? cpc_pool_fail(err, ret, "scrub cannot be started: %s", strerror(-ret)) : 0;
}

void cpc_pool_scrub_stop(struct cpc_pool *pool)
{
	struct cpc_pool_scrubber *sc = pool->scrubber;

	cpc_mutex_lock(&sc->lock);
	sc->stop = true;
	cpc_cond_broadcast(&sc->wake);
	join_locked(sc);
	cpc_mutex_unlock(&sc->lock);
}

void cpc_pool_scrub_status(struct cpc_pool *pool, struct cpc_scrub_status *status, uint64_t from,
			   void (*damage)(void *ctx, const struct cpc_damage *damage), void *ctx)
{
	struct cpc_pool_scrubber *sc = pool->scrubber;

	cpc_mutex_lock(&sc->lock);
	*status = sc->status;
	for (uint64_t i = from; damage && i < sc->status.nr_damage; i++)
		damage(ctx, &sc->damage[i]);
	cpc_mutex_unlock(&sc->lock);
}

void cpc_pool_scrub_wait(struct cpc_pool *pool, uint64_t ns)
{
	struct cpc_pool_scrubber *sc = pool->scrubber;
	uint64_t end = cpc_now_ns() + ns, now;

	cpc_mutex_lock(&sc->lock);
	while (sc->status.state == CPC_SCRUB_RUNNING && (now = cpc_now_ns()) < end)
		cpc_cond_wait_ns(&sc->wake, &sc->lock, end - now);
	cpc_mutex_unlock(&sc->lock);
}

int cpc_pool_scrub(struct cpc_pool *pool,
		   void (*damage)(void *ctx, const struct cpc_damage *damage), void *ctx,
		   struct cpc_scrub_result *result)
{
	const struct cpc_scrub_options opts = {.damage = damage, .ctx = ctx};
	struct cpc_pool_scrubber *sc = pool->scrubber;
	bool busy;
	int ret;

	cpc_mutex_lock(&sc->lock);
	busy = sc->stop || sc->status.state == CPC_SCRUB_RUNNING;
	if (!busy)
		sc->status.state = CPC_SCRUB_RUNNING;
	cpc_mutex_unlock(&sc->lock);
	if (busy)
		return -EBUSY;
	ret = run_scrub(pool, &opts, result);
	cpc_mutex_lock(&sc->lock);
	sc->status.state = CPC_SCRUB_NONE;
	cpc_mutex_unlock(&sc->lock);
	return ret;
}
