/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Records move along three lists:
 *
 *	           complete()              begin_flush()              end_flush(good)
 *	in_flight ------------> completed ---------------> flushing -----------------> freed
 *	                            ^                          |
 *	                            +--------------------------+
 *	                              end_flush(failed): suspect
 *
 * Every caller of a flush stands in `waiters` with a struct on its stack. The first one to come
 * while nobody leads becomes the leader; at begin_flush() it takes the whole list, which is the
 * set of callers whose calls came before its device flush, and gives all of them its result. Then
 * it hands the lead to the first of those who came meanwhile. Each waiter sleeps on a condition of
 * its own, so a finished flush wakes only whom it has served, and the next leader.
 *
 * The slow path is a failed flush: see repair.c. Rejected: keeping the buffers of unflushed writes
 * in memory to write them again (1 GiB of them); asking writers to do it (each would need to know
 * of flushes that others led).
 */
#include "backing/flush-epoch.h"

#include "backing/backing-internal.h"
#include "backing/flush-epoch-internal.h"
#include "lib/crc32c.h"
#include "lib/hooks.h"
#include "lib/log.h"
#include "lib/mutation.h"

struct waiter {
	struct cpc_list node;
	struct cpc_cond cond;
	bool lead; /* this thread has to lead; under fe->lock, as the rest */
	bool done;
	int result;
};

/* ---- life ---- */

void cpc_flush_epoch_init(struct cpc_flush_epoch *fe, struct cpc_backing *b,
			  void (*on_broken)(void *ctx), void *ctx)
{
	memset(fe, 0, sizeof(*fe));
	fe->backing = b;
	fe->on_broken = on_broken;
	fe->ctx = ctx;
	fe->pressure_bytes = CPC_FE_DEFAULT_PRESSURE;
	cpc_mutex_init(&fe->lock, "flush epoch", CPC_RANK_FLUSH_EPOCH);
	cpc_list_init(&fe->in_flight);
	cpc_list_init(&fe->completed);
	cpc_list_init(&fe->flushing);
	cpc_list_init(&fe->waiters);
	cpc_cond_init(&fe->repair_cond);
}

static void free_records(struct cpc_list *records)
{
	struct cpc_list *pos, *tmp;

	cpc_list_for_each_safe (pos, tmp, records)
		cpc_free(cpc_list_entry(pos, struct cpc_fe_record, node));
	cpc_list_init(records);
}

void cpc_flush_epoch_destroy(struct cpc_flush_epoch *fe)
{
	cpc_assert(cpc_list_empty(&fe->in_flight) && !fe->has_leader);
	free_records(&fe->completed);
	free_records(&fe->flushing);
	cpc_cond_destroy(&fe->repair_cond);
	cpc_mutex_destroy(&fe->lock);
}

/* ---- writes ---- */

static void checksum_iov(uint32_t *csums, const struct iovec *iov, unsigned nr_iov)
{
	for (unsigned i = 0; i < nr_iov; i++) {
		const char *p = iov[i].iov_base;

		for (size_t done = 0; done < iov[i].iov_len; done += CPC_BLOCK_SIZE)
			*csums++ = cpc_crc32c(0, p + done, CPC_BLOCK_SIZE);
	}
}

/* NULL: no memory. */
static struct cpc_fe_record *record_alloc(uint64_t bytenr, uint64_t len, uint64_t nr_csums)
{
	struct cpc_fe_record *r = cpc_alloc(sizeof(*r) + nr_csums * sizeof(r->csums[0]));

	if (!r)
		return NULL;
	r->bytenr = bytenr;
	r->len = len;
	r->is_void = !nr_csums;
	return r;
}

static bool in_repair_locked(struct cpc_flush_epoch *fe, uint64_t bytenr, uint64_t len)
{
	return fe->repair_len && bytenr < fe->repair_bytenr + fe->repair_len &&
	       fe->repair_bytenr < bytenr + len;
}

static void begin(struct cpc_flush_epoch *fe, struct cpc_fe_write *w, uint64_t bytenr, uint64_t len)
{
	w->bytenr = bytenr;
	w->len = len;
	cpc_mutex_lock(&fe->lock);
	while (in_repair_locked(fe, bytenr, len))
		cpc_cond_wait(&fe->repair_cond, &fe->lock);
	w->stamp = atomic_load(&fe->failures);
	fe->write_seq++;
	if (w->record) {
		w->record->seq = fe->write_seq;
		w->record->stamp = w->stamp;
	}
	cpc_list_add_tail(&fe->in_flight, &w->node);
	cpc_mutex_unlock(&fe->lock);
}

void cpc_fe_write_begin(struct cpc_flush_epoch *fe, struct cpc_fe_write *w, uint64_t bytenr,
			const struct iovec *iov, unsigned nr_iov, const uint32_t *csums,
			bool tracked)
{
	size_t len = cpc_iov_len(iov, nr_iov);
	size_t nr = len / CPC_BLOCK_SIZE;

	w->tracked = tracked;
	w->record = tracked ? record_alloc(bytenr, len, nr) : NULL;
	if (w->record && csums)
		memcpy(w->record->csums, csums, nr * sizeof(*csums));
	else if (w->record)
		checksum_iov(w->record->csums, iov, nr_iov);
	begin(fe, w, bytenr, len);
}

/* A write that should have a record has none: fine as long as no flush fails. */
static void note_untracked_locked(struct cpc_flush_epoch *fe, struct cpc_fe_write *w,
				  uint64_t epoch)
{
	if (w->stamp < atomic_load(&fe->failures))
		fe->lost = true;
	fe->untracked_epoch = epoch;
}

static void add_record_locked(struct cpc_flush_epoch *fe, struct cpc_fe_record *r, int result)
{
	if (result)
		r->is_void = true;
	if (!r->is_void)
		atomic_fetch_add(&fe->unflushed_bytes, r->len);
	if (cpc_fe_suspect(fe, r))
		fe->nr_suspect++;
	fe->nr_completed++;
	cpc_list_add_tail(&fe->completed, &r->node);
}

uint64_t cpc_fe_write_complete(struct cpc_flush_epoch *fe, struct cpc_fe_write *w, int result)
{
	uint64_t epoch;

	cpc_mutex_lock(&fe->lock);
	cpc_list_del(&w->node);
	epoch = atomic_load(&fe->started) + 1;
	if (w->record)
		add_record_locked(fe, w->record, result);
	else if (w->tracked)
		note_untracked_locked(fe, w, epoch);
	w->record = NULL;
	cpc_mutex_unlock(&fe->lock);
	return epoch;
}

int cpc_fe_writev(struct cpc_flush_epoch *fe, uint64_t bytenr, const struct iovec *iov,
		  unsigned nr_iov, enum cpc_cause cause, const uint32_t *csums)
{
	struct cpc_fe_write w;
	int ret = cpc_backing_check_range(fe->backing, bytenr, cpc_iov_len(iov, nr_iov));

	if (ret || cpc_flush_epoch_stopped(fe))
		return ret ? ret : -EIO;
	cpc_fe_write_begin(fe, &w, bytenr, iov, nr_iov, csums, cause != CPC_CAUSE_SUPER);
	ret = cpc_backing_writev(fe->backing, bytenr, iov, nr_iov, cause);
	cpc_fe_write_complete(fe, &w, ret);
	return ret;
}

int cpc_fe_write(struct cpc_flush_epoch *fe, uint64_t bytenr, const void *buf, size_t len,
		 enum cpc_cause cause, const uint32_t *csums)
{
	struct iovec iov = {(void *)(uintptr_t)buf, len};

	return cpc_fe_writev(fe, bytenr, &iov, 1, cause, csums);
}

int cpc_fe_discard(struct cpc_flush_epoch *fe, uint64_t bytenr, uint64_t len)
{
	struct cpc_fe_write w = {.tracked = true};
	int ret = cpc_backing_check_range(fe->backing, bytenr, len);

	if (ret || cpc_flush_epoch_stopped(fe))
		return ret ? ret : -EIO;
	w.record = record_alloc(bytenr, len, 0);
	begin(fe, &w, bytenr, len);
	ret = cpc_backing_discard(fe->backing, bytenr, len);
	cpc_fe_write_complete(fe, &w, ret);
	return ret;
}

/* ---- flush ---- */

/* Invariant 2: what it covers has completed, and what was suspect has been written again. */
static void begin_flush_locked(struct cpc_flush_epoch *fe, struct cpc_list *joined)
{
	cpc_assert(!fe->nr_flushing && !fe->device_flush);
	atomic_fetch_add(&fe->started, 1);
	cpc_list_splice_tail(joined, &fe->waiters);
	cpc_list_splice_tail(&fe->flushing, &fe->completed);
	fe->nr_flushing = fe->nr_completed;
	fe->nr_completed = 0;
}

static uint64_t record_bytes(const struct cpc_list *records)
{
	uint64_t bytes = 0;
	struct cpc_list *pos;

	cpc_list_for_each (pos, records) {
		struct cpc_fe_record *r = cpc_list_entry(pos, struct cpc_fe_record, node);

		bytes += r->is_void ? 0 : r->len;
	}
	return bytes;
}

static void flush_succeeded_locked(struct cpc_flush_epoch *fe, struct cpc_list *covered)
{
	atomic_store(&fe->good, atomic_load(&fe->started));
	fe->failures_in_row = 0;
	cpc_list_splice_tail(covered, &fe->flushing);
	fe->nr_flushing = 0;
}

/* Everything that has completed by now is suspect, and so is what is in flight (by its stamp). */
static void flush_failed_locked(struct cpc_flush_epoch *fe, int error)
{
	struct cpc_list later;

	atomic_fetch_add(&fe->failures, 1);
	fe->failures_in_row++;
	cpc_list_init(&later);
	cpc_list_splice_tail(&later, &fe->completed);
	cpc_list_splice_tail(&fe->completed, &fe->flushing);
	cpc_list_splice_tail(&fe->completed, &later);
	fe->nr_completed += fe->nr_flushing;
	fe->nr_flushing = 0;
	fe->nr_suspect = fe->nr_completed;
	if (fe->untracked_epoch > atomic_load(&fe->good))
		fe->lost = true;
	if (error == -EUCLEAN || fe->lost || fe->failures_in_row >= CPC_FE_MAX_FAILURES)
		atomic_store(&fe->broken, true);
}

/* Gives the result to all who joined; their structs may be gone when the lock is. */
static void wake_joined_locked(struct cpc_list *joined, int result)
{
	struct cpc_list *pos, *tmp;

	cpc_list_for_each_safe (pos, tmp, joined) {
		struct waiter *w = cpc_list_entry(pos, struct waiter, node);

		w->result = result;
		w->done = true;
		cpc_cond_signal(&w->cond);
	}
}

static void hand_over_locked(struct cpc_flush_epoch *fe)
{
	struct waiter *next;

	fe->has_leader = !cpc_list_empty(&fe->waiters);
	if (!fe->has_leader)
		return;
	next = cpc_list_first(&fe->waiters, struct waiter, node);
	next->lead = true;
	cpc_cond_signal(&next->cond);
}

static int device_flush_locked(struct cpc_flush_epoch *fe, enum cpc_flush_cause cause)
{
	int ret;

	fe->stats.flushes[cause]++;
	fe->device_flush = true;
	cpc_mutex_unlock(&fe->lock);
	ret = CPC_MUTANT(device_flush_dropped) ? 0 : cpc_backing_flush(fe->backing);
	cpc_mutex_lock(&fe->lock);
	fe->device_flush = false;
	return ret;
}

/* Repairs, takes all who wait by then, and flushes for them. Return: the result for all. */
static int run_flush_locked(struct cpc_flush_epoch *fe, enum cpc_flush_cause cause,
			    struct cpc_list *joined, struct cpc_list *covered)
{
	int ret = 0;

	while (!ret && fe->nr_suspect && !fe->lost && !CPC_MUTANT(failed_flush_not_repaired)) {
		cause = CPC_FLUSH_REPAIR;
		ret = cpc_fe_repair_locked(fe);
	}
	if (fe->lost)
		ret = -EUCLEAN;
	begin_flush_locked(fe, joined);
	if (!ret)
		ret = device_flush_locked(fe, cause);
	if (CPC_MUTANT(flush_error_swallowed))
		ret = 0;
	if (ret)
		flush_failed_locked(fe, ret);
	else
		flush_succeeded_locked(fe, covered);
	return ret == -EUCLEAN ? -EIO : ret;
}

static void finish_covered(struct cpc_flush_epoch *fe, struct cpc_list *covered)
{
	atomic_fetch_sub(&fe->unflushed_bytes, record_bytes(covered));
	free_records(covered);
}

static void report_failure(struct cpc_flush_epoch *fe, int error, bool broke)
{
	cpc_error("device flush failed: %s", strerror(-error));
	if (!broke)
		return;
	cpc_error("writes since the last good flush may be lost; no flush will succeed any more");
	if (fe->on_broken)
		fe->on_broken(fe->ctx);
}

/* Called and returns with the lock held; the caller's own waiter is one of those served. */
static void lead_flush_locked(struct cpc_flush_epoch *fe, enum cpc_flush_cause cause)
{
	struct cpc_list joined, covered;
	bool broke = false;
	int ret = -EIO;

	cpc_assert(fe->has_leader && !fe->device_flush);
	cpc_list_init(&joined);
	cpc_list_init(&covered);
	if (atomic_load(&fe->broken)) {
		cpc_list_splice_tail(&joined, &fe->waiters);
	} else {
		ret = run_flush_locked(fe, cause, &joined, &covered);
		broke = atomic_load(&fe->broken);
	}
	wake_joined_locked(&joined, CPC_MUTANT(joined_flush_always_succeeds) ? 0 : ret);
	hand_over_locked(fe);
	cpc_mutex_unlock(&fe->lock);
	finish_covered(fe, &covered);
	if (ret && (broke || !atomic_load(&fe->broken)))
		report_failure(fe, ret, broke);
	cpc_mutex_lock(&fe->lock);
}

static int join_locked(struct cpc_flush_epoch *fe, enum cpc_flush_cause cause, struct waiter *w)
{
	cpc_list_add_tail(&fe->waiters, &w->node);
	w->lead = !fe->has_leader;
	if (w->lead)
		fe->has_leader = true;
	while (!w->done && !w->lead)
		cpc_cond_wait(&w->cond, &fe->lock);
	if (w->lead)
		lead_flush_locked(fe, cause);
	else
		fe->stats.joined++;
	cpc_assert(w->done);
	return w->result;
}

int cpc_flush_epoch_flush(struct cpc_flush_epoch *fe, enum cpc_flush_cause cause)
{
	struct waiter w = {.done = false};
	int ret = -EIO;

	cpc_cond_init(&w.cond);
	cpc_mutex_lock(&fe->lock);
	if (!atomic_load(&fe->broken))
		ret = join_locked(fe, cause, &w);
	cpc_mutex_unlock(&fe->lock);
	cpc_cond_destroy(&w.cond);
	return ret;
}

void cpc_flush_epoch_stop(struct cpc_flush_epoch *fe)
{
	atomic_store(&fe->stopped, true);
	atomic_store(&fe->broken, true);
}

void cpc_flush_epoch_get_stats(struct cpc_flush_epoch *fe, struct cpc_flush_epoch_stats *stats)
{
	cpc_mutex_lock(&fe->lock);
	*stats = fe->stats;
	cpc_mutex_unlock(&fe->lock);
	stats->failures = atomic_load(&fe->failures);
	stats->unflushed_bytes = atomic_load(&fe->unflushed_bytes);
}
