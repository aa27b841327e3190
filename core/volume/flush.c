/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * flush: the flushes of one volume go together: one cut and one wait for the device for all who
 * stand in line when the cut begins.
 *
 * Every caller stands in vol->flushers with a struct on its stack. The first to come while nobody
 * leads becomes the leader; when its cut begins it takes the whole line, which is the set of
 * callers whose calls came before the cut, and gives all of them its result. The lead goes on to
 * the first of those who came meanwhile as soon as the cut has ended: the next cut is written while
 * the device flushes this one.
 *
 * After a batch of several the next leader first yields the processor, so that clients who are
 * about to flush can get in line; a client alone never waits for others. Rejected: a timed wait,
 * which on an idle server only adds to what the client sees.
 */
#include "lib/mutation.h"
#include "volume/volume-internal.h"

#include <sched.h>

/* 16 clients that flush each 4 writes, two processors: 48 k writes/s without, 54 k with 4. */
#define YIELDS 4u

struct flusher {
	struct cpc_list node;
	struct cpc_cond cond;
	bool lead; /* this thread has to lead; flush_lock, as the rest */
	bool done;
	int result;
};

/* Gives way to those who will flush soon, if the last batch says that there are some. */
static void let_others_join(struct cpc_volume *vol)
{
	unsigned yields = vol->last_batch > 1 ? YIELDS : 0;

	while (yields--)
		sched_yield();
}

static void take_line(struct cpc_volume *vol, struct cpc_list *batch)
{
	struct cpc_list *pos;

	cpc_mutex_lock(&vol->flush_lock);
	cpc_list_splice_tail(batch, &vol->flushers);
	vol->last_batch = 0;
	cpc_list_for_each (pos, batch)
		vol->last_batch++;
	cpc_mutex_unlock(&vol->flush_lock);
}

static void hand_over(struct cpc_volume *vol)
{
	struct flusher *next;

	cpc_mutex_lock(&vol->flush_lock);
	vol->has_flush_leader = !cpc_list_empty(&vol->flushers);
	if (vol->has_flush_leader) {
		next = cpc_list_first(&vol->flushers, struct flusher, node);
		next->lead = true;
		cpc_cond_signal(&next->cond);
	}
	cpc_mutex_unlock(&vol->flush_lock);
}

/* The leader's own is one of them. */
static void finish_batch(struct cpc_volume *vol, struct cpc_list *batch, int result)
{
	cpc_mutex_lock(&vol->flush_lock);
	while (!cpc_list_empty(batch)) {
		struct flusher *f = cpc_list_first(batch, struct flusher, node);

		cpc_list_del(&f->node);
		f->result = result;
		f->done = true;
		cpc_cond_signal(&f->cond);
	}
	cpc_mutex_unlock(&vol->flush_lock);
}

/* Up to here the log must be durable: the last cut, and a change of names whose own flush failed.
 */
static uint64_t unflushed_seq(struct cpc_volume *vol)
{
	return cpc_max_u64(atomic_load(&vol->last_seq), atomic_load(&vol->engine->names_seq));
}

static void lead(struct cpc_volume *vol)
{
	struct cpc_list batch;
	uint64_t seq;
	int ret;

	cpc_list_init(&batch);
	let_others_join(vol);
	take_line(vol, &batch);
	ret = cpc_cut(vol);
	if (CPC_MUTANT(flush_shares_the_running_cut))
		take_line(vol, &batch);
	seq = unflushed_seq(vol);
	hand_over(vol);
	if (!ret)
		ret = cpc_log_flush(vol->engine->log, seq);
	finish_batch(vol, &batch, ret);
}

/* Gets in line. Return: true when this thread leads, false when another has done its work. */
static bool wait_in_line(struct cpc_volume *vol, struct flusher *f)
{
	cpc_mutex_lock(&vol->flush_lock);
	cpc_list_add_tail(&vol->flushers, &f->node);
	f->lead = !vol->has_flush_leader;
	vol->has_flush_leader = true;
	while (!f->done && !f->lead)
		cpc_cond_wait(&f->cond, &vol->flush_lock);
	cpc_mutex_unlock(&vol->flush_lock);
	return !f->done;
}

int cpc_flush(struct cpc_volume *vol)
{
	struct flusher f = {.done = false};

	if (cpc_nothing_to_cut(vol))
		return cpc_log_flush(vol->engine->log, unflushed_seq(vol));
	cpc_cond_init(&f.cond);
	if (wait_in_line(vol, &f))
		lead(vol);
	cpc_cond_destroy(&f.cond);
	return f.result;
}
