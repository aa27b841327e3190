/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * threads: what goes on without a client's call.
 *
 *   writeback  cuts the volumes when an eighth of the dirty bound is dirty, and every second;
 *              flushes the device when much has been written since its last flush
 *   commit     commits on time, when extent maps, log or free space ask for it, and as long as the
 *              drop list is not empty
 *   mark       writes the log's durable mark when the log has been quiet for a while
 *
 * Each sleeps on its own condition; a kick is one atomic load when another has come before it.
 */
#include "volume/volume-internal.h"

#define FAILURES_MAX 3u

/*
 * A mark: who kicks has made it due, and the thread takes the kick back before it looks, both in
 * one order for all; so either the kick is seen to be needed or the mark is.
 */
static void kick(struct cpc_engine *e, struct cpc_cond *cond, _Atomic bool *want)
{
	if (atomic_load(want) || atomic_exchange(want, true))
		return;
	cpc_mutex_lock(&e->thread_lock);
	cpc_cond_signal(cond);
	cpc_mutex_unlock(&e->thread_lock);
}

void cpc_kick_writeback(struct cpc_engine *e)
{
	kick(e, &e->writeback_cond, &e->want_writeback);
}

void cpc_kick_commit(struct cpc_engine *e)
{
	kick(e, &e->committer_cond, &e->want_commit);
}

void cpc_kick_mark(struct cpc_engine *e)
{
	kick(e, &e->marker_cond, &e->want_mark);
}

/* Waits for a kick, at most `ns`. Return: false when the thread shall end. */
static bool wait_for_work(struct cpc_engine *e, struct cpc_cond *cond, _Atomic bool *want,
			  uint64_t ns)
{
	bool go_on;

	cpc_mutex_lock(&e->thread_lock);
	if (!e->stop && !atomic_load(want))
		cpc_cond_wait_ns(cond, &e->thread_lock, ns);
	atomic_store(want, false);
	go_on = !e->stop;
	cpc_mutex_unlock(&e->thread_lock);
	return go_on;
}

/* Waits for `ns`; a kick meanwhile is kept for wait_for_work(). Return: as above. */
static bool sleep_through(struct cpc_engine *e, struct cpc_cond *cond, uint64_t ns)
{
	uint64_t now = cpc_now_ns(), end = now + ns;
	bool go_on;

	cpc_mutex_lock(&e->thread_lock);
	for (; !e->stop && now < end; now = cpc_now_ns())
		cpc_cond_wait_ns(cond, &e->thread_lock, end - now);
	go_on = !e->stop;
	cpc_mutex_unlock(&e->thread_lock);
	return go_on;
}

int cpc_write_out(struct cpc_engine *e)
{
	struct cpc_volume *vol = NULL;
	int ret = 0;

	while ((vol = cpc_volume_next(e, vol))) {
		if (!atomic_load(&vol->dirty_blocks))
			continue;
		ret = cpc_cut(vol);
		if (ret)
			break;
	}
	cpc_volume_walk_end(e, vol);
	cpc_commit_when_tight(e);
	return ret;
}

/* One turn of the writeback thread. A flush that fails is everybody's: the next one makes good. */
int cpc_writeback_turn(struct cpc_engine *e)
{
	struct cpc_flush_epoch *fe = &e->store->fe;
	int ret = cpc_write_out(e);

	if (!ret && cpc_flush_epoch_wants_drain(fe))
		(void)cpc_flush_epoch_flush(fe, CPC_FLUSH_PRESSURE);
	return ret;
}

#define WRITEBACK_IDLE_NS 1000000000ull
#define RETRY_NS	  100000000ull
#define MARK_IDLE_NS	  3600000000000ull
#define MARK_REST_NS	  10000000ull

static void *run_writeback(void *arg)
{
	struct cpc_engine *e = arg;
	unsigned failures = 0;

	while (wait_for_work(e, &e->writeback_cond, &e->want_writeback,
			     failures ? RETRY_NS : WRITEBACK_IDLE_NS)) {
		int ret = atomic_load(&e->broken) ? 0 : cpc_writeback_turn(e);

		if (!ret) {
			failures = 0;
			continue;
		}
		cpc_error("writing out data failed: %s", strerror(-ret));
		if (ret != -ENOMEM && ++failures >= FAILURES_MAX)
			cpc_engine_break(e, "data cannot be written to the device");
	}
	return NULL;
}

static bool item_is_dirty(struct cpc_volume *vol)
{
	bool dirty;

	cpc_mutex_lock(&vol->item_lock);
	dirty = (vol->item_dirty || vol->deleted) && !vol->gone;
	cpc_mutex_unlock(&vol->item_lock);
	return dirty;
}

bool cpc_anything_to_commit(struct cpc_engine *e)
{
	struct cpc_store_info info;
	struct cpc_volume *vol = NULL;
	bool found = false;

	cpc_store_info(e->store, &info);
	if (info.nr_drops)
		return true;
	while (!found && (vol = cpc_volume_next(e, vol)))
		found = !cpc_volume_clean(vol) || item_is_dirty(vol);
	cpc_volume_walk_end(e, vol);
	return found;
}

int cpc_engine_commit_if_dirty(struct cpc_engine *e)
{
	return cpc_anything_to_commit(e) ? cpc_engine_commit(e, false) : 0;
}

/*
 * Sleeps until a flush asks for a mark, then until the log has been quiet for long enough; and
 * rests after each look, so that a client that flushes all the time does not wake it with every
 * flush.
 */
static void *run_marks(void *arg)
{
	struct cpc_engine *e = arg;
	uint64_t wait_ns;
	bool go_on = true;

	while (go_on && wait_for_work(e, &e->marker_cond, &e->want_mark, MARK_IDLE_NS)) {
		do {
			wait_ns = UINT64_MAX;
			if (!atomic_load(&e->broken))
				cpc_log_mark(e->log, &wait_ns);
			go_on =
			    sleep_through(e, &e->marker_cond, cpc_min_u64(wait_ns, MARK_REST_NS));
		} while (go_on && wait_ns != UINT64_MAX);
	}
	return NULL;
}

static void *run_commits(void *arg)
{
	struct cpc_engine *e = arg;
	uint64_t interval = e->opts.commit_interval ? e->opts.commit_interval * 1000000000ull
						    : 3600 * 1000000000ull;
	struct cpc_store_info info = {0};
	bool dropping = false;

	/* A drop list goes on being freed at once, a slice a commit, as long as that gets on. */
	while (wait_for_work(e, &e->committer_cond, &e->want_commit,
			     dropping ? RETRY_NS / 10 : interval)) {
		uint64_t before = info.dropped_blocks;

		dropping = false;
		if (atomic_load(&e->broken) || !cpc_anything_to_commit(e))
			continue;
		cpc_engine_commit(e, false);
		cpc_store_info(e->store, &info);
		dropping = info.nr_drops && info.dropped_blocks != before;
	}
	return NULL;
}

static void stop_threads(struct cpc_engine *e, unsigned nr)
{
	cpc_mutex_lock(&e->thread_lock);
	e->stop = true;
	cpc_cond_signal(&e->writeback_cond);
	cpc_cond_signal(&e->committer_cond);
	cpc_cond_signal(&e->marker_cond);
	cpc_mutex_unlock(&e->thread_lock);
	while (nr)
		pthread_join(e->thread[--nr], NULL);
}

int cpc_engine_start(struct cpc_engine *e)
{
	static const struct {
		const char *name;
		void *(*run)(void *);
	} threads[CPC_ENGINE_THREADS] = {
	    {"cpc-writeback", run_writeback}, {"cpc-commit", run_commits}, {"cpc-mark", run_marks}};

	if (e->opts.no_threads || e->opts.read_only || e->started)
		return 0;
	for (unsigned i = 0; i < CPC_ENGINE_THREADS; i++) {
		int ret = cpc_thread_start(&e->thread[i], threads[i].name, threads[i].run, e);

		if (ret) {
			stop_threads(e, i);
			return ret;
		}
	}
	e->started = true;
	return 0;
}

void cpc_engine_stop(struct cpc_engine *e)
{
	if (!e->started)
		return;
	stop_threads(e, CPC_ENGINE_THREADS);
	e->started = false;
}
