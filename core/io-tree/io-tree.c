/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The calls. Each begins (takes tree->lock, checks the range), finds the first record of its
 * range (one search, or none with a cached record), reserves the spares that it will need, does its
 * work (io-change.c), and finishes (drops tree->lock, then wakes and frees).
 *
 * Slow paths: too few spares (the lock is dropped for an allocation, then the call looks again
 * from the start), a locked range (io-wait.c), a broken tree.
 */
#include <sys/sdt.h>
#include "lib/hist.h"
#include "io-tree/io-clock.h"
#include "io-tree/io-finger.h"
#include "io-tree/io-tree-internal.h"

/* A no-op until somebody attaches, see configs/io-tree-clear.bt. */
#define PROBE_ENTRY(tree, start, len) DTRACE_PROBE3(coppice, io_tree_clear_entry, tree, start, len)
#define PROBE_RETURN(tree, start, err)                                                             \
	DTRACE_PROBE3(coppice, io_tree_clear_return, tree, start, err)

static uint64_t timer_start(struct cpc_hist *const *histp)
{
	return cpc_unlikely(__atomic_load_n(histp, __ATOMIC_RELAXED)) ? cpc_io_ticks() : 0;
}

static void timer_stop(struct cpc_hist *const *histp, uint64_t began)
{
	struct cpc_hist *hist = __atomic_load_n(histp, __ATOMIC_RELAXED);

	if (cpc_unlikely(hist && began))
		cpc_hist_add(hist, cpc_io_ticks_to_ns(cpc_io_ticks() - began));
}

int cpc_io_begin(struct cpc_io_op *op, struct cpc_io_tree *tree, const char *name, uint64_t start,
		 uint64_t len)
{
	if (cpc_unlikely(!len || start > CPC_IO_TREE_END || len > CPC_IO_TREE_END - start))
		return -EINVAL;

	op->tree = tree;
	op->name = name;
	op->start = start;
	op->end = start + len;
	op->set = op->clear = 0;
	op->cs = NULL;
	op->gap = false;
	op->first = op->released = NULL;
	cpc_list_init(&op->woken);

	cpc_mutex_lock(&tree->lock);
	if (cpc_unlikely(tree->stopped)) {
		cpc_mutex_unlock(&tree->lock);
		return -EIO;
	}
	return 0;
}

int cpc_io_finish(struct cpc_io_op *op, int err)
{
	struct cpc_io_tree *tree = op->tree;
	bool fatal = tree->fatal_pending;

	tree->fatal_pending = false;
	cpc_mutex_unlock(&tree->lock);
	if (cpc_unlikely(!cpc_list_empty(&op->woken)))
		cpc_io_wake_chosen(op);
	if (op->released)
		cpc_io_record_free_released(op);
	if (cpc_unlikely(fatal))
		cpc_io_call_fatal(tree);
	return err;
}

static bool bits_valid(uint32_t bits)
{
	return bits && !(bits & ~(uint32_t)CPC_IO_ALL);
}

/* LOCKED is set by lock and trylock alone. */
static bool settable(uint32_t bits)
{
	return bits_valid(bits) && !(bits & CPC_IO_LOCKED);
}

/* The first record that ends after the range's start. */
static struct cpc_io_state *seek(struct cpc_io_op *op, struct cpc_io_state *const *cached)
{
	struct cpc_io_state *rec = cached ? *cached : NULL;

	if (rec && (rec->flags & CPC_IO_REC_IN_TREE) && rec->start <= op->start &&
	    op->start < rec->end) {
		op->tree->stats.cached_hits++;
		return rec;
	}
	return cpc_io_record_seek(op->tree, op->start);
}

/* Takes the caller's reference back, if any. */
static int put_cached(struct cpc_io_op *op, struct cpc_io_state **cached)
{
	struct cpc_io_state *rec = cached ? *cached : NULL;

	if (!rec)
		return 0;
	*cached = NULL;
	return cpc_io_record_put(op, rec);
}

/* Finds the first record of the range and reserves what the change of the range needs. */
static int prepare(struct cpc_io_op *op, struct cpc_io_state *const *cached,
		   struct cpc_io_state **recp)
{
	bool dropped = true;
	int err = 0;

	while (!err && dropped) {
		uint64_t need = 2; /* all that clearing can take */

		*recp = seek(op, cached);
		if (op->set || op->tree->stats.spares < need)
			need = cpc_io_change_need(op, *recp);
		err = cpc_io_record_reserve(op, need, &dropped);
	}
	return err;
}

static int modify(struct cpc_io_op *op, struct cpc_io_state **cached)
{
	struct cpc_io_state *rec;
	int err = prepare(op, cached, &rec);

	if (cpc_likely(!err))
		err = cpc_io_change(op, rec);
	if (cpc_likely(!err) && (op->clear & CPC_IO_LOCKED))
		err = put_cached(op, cached);
	return err;
}

/* The first record with some of the bits from `rec` on in the range. */
static struct cpc_io_state *first_with(const struct cpc_io_op *op, struct cpc_io_state *rec,
				       uint32_t bits)
{
	for (; rec && rec->start < op->end; rec = rec->next) {
		if (rec->bits & bits)
			return rec;
	}
	return NULL;
}

/* Locks the range, or says in `w` what is in the way and returns -EAGAIN. */
static int lock_attempt(struct cpc_io_op *op, struct cpc_io_waiter *w, struct cpc_io_state **cached)
{
	struct cpc_io_state *rec = NULL;
	bool dropped = true;
	int err = 0;

	while (!err && dropped) {
		w->behind = cpc_io_goes_first(op, w);
		rec = seek(op, cached);
		w->record = w->behind ? NULL : first_with(op, rec, CPC_IO_LOCKED);
		if (cpc_unlikely(w->behind || w->record))
			return -EAGAIN;
		err = cpc_io_record_reserve(op, cpc_io_change_need(op, rec), &dropped);
	}
	if (cpc_likely(!err))
		err = cpc_io_change(op, rec);
	if (cpc_unlikely(err) || !cached)
		return err;
	err = put_cached(op, cached);
	op->first->refs++;
	*cached = op->first;
	return err;
}

static int lock_common(struct cpc_io_tree *tree, const char *name, uint64_t start, uint64_t len,
		       struct cpc_io_state **cached, bool sleep)
{
	struct cpc_io_op op;
	struct cpc_io_waiter w;
	int err = cpc_io_begin(&op, tree, name, start, len);

	if (cpc_unlikely(err))
		return err;
	op.set = w.bits = CPC_IO_LOCKED;
	w.start = op.start;
	w.end = op.end;
	w.rounds = 0;
	w.impatient = false;
	w.locks = true;

	err = lock_attempt(&op, &w, cached);
	while (cpc_unlikely(err == -EAGAIN) && sleep) {
		err = cpc_io_sleep(&op, &w);
		if (!err)
			err = lock_attempt(&op, &w, cached);
	}
	if (cpc_unlikely(w.impatient))
		cpc_io_calm(&op, &w);
	return cpc_io_finish(&op, err);
}

int cpc_io_tree_lock(struct cpc_io_tree *tree, uint64_t start, uint64_t len,
		     struct cpc_io_state **cached)
{
	return lock_common(tree, "lock", start, len, cached, true);
}

int cpc_io_tree_trylock(struct cpc_io_tree *tree, uint64_t start, uint64_t len,
			struct cpc_io_state **cached)
{
	return lock_common(tree, "trylock", start, len, cached, false);
}

/* Invariant 5: the range is locked to its last byte, from a record's start to a record's end. */
static int verify_locked(struct cpc_io_op *op, const struct cpc_io_state *rec)
{
	uint64_t pos = op->start;

	for (;; rec = rec->next) {
		if (cpc_unlikely(!rec || rec->start != pos || !(rec->bits & CPC_IO_LOCKED)))
			return cpc_io_fatal(op, rec, "unlock of bytes that are not locked");
		pos = rec->end;
		if (cpc_unlikely(pos > op->end))
			return cpc_io_fatal(op, rec, "unlock ends inside a locked record");
		if (pos == op->end)
			return 0;
	}
}

static int unlock(struct cpc_io_op *op, struct cpc_io_state **cached)
{
	struct cpc_io_state *rec = seek(op, cached);
	int err = verify_locked(op, rec);

	op->clear = CPC_IO_LOCKED;
	if (cpc_likely(!err))
		err = cpc_io_change(op, rec);
	if (cpc_likely(!err))
		err = put_cached(op, cached);
	return err;
}

void cpc_io_tree_unlock(struct cpc_io_tree *tree, uint64_t start, uint64_t len,
			struct cpc_io_state **cached)
{
	uint64_t began = timer_start(&tree->config.clear_hist);
	struct cpc_io_op op;
	int err;

	PROBE_ENTRY(tree, start, len);
	err = cpc_io_begin(&op, tree, "unlock", start, len);
	cpc_assert(err != -EINVAL);
	if (cpc_likely(!err))
		err = cpc_io_finish(&op, unlock(&op, cached));
	if (cached)
		*cached = NULL;
	PROBE_RETURN(tree, start, err);
	timer_stop(&tree->config.clear_hist, began);
}

int cpc_io_tree_wait(struct cpc_io_tree *tree, uint64_t start, uint64_t len, enum cpc_io_bits bits)
{
	struct cpc_io_op op;
	struct cpc_io_waiter w = {.bits = bits};
	int err;

	if (cpc_unlikely(!bits_valid(bits)))
		return -EINVAL;
	err = cpc_io_begin(&op, tree, "wait", start, len);
	if (cpc_unlikely(err))
		return err;

	w.start = op.start;
	w.end = op.end;
	while (!err) {
		w.record = first_with(&op, cpc_io_record_seek(tree, w.start), bits);
		if (!w.record)
			break;
		w.start = cpc_max_u64(w.start, w.record->start);
		err = cpc_io_sleep(&op, &w);
	}
	return cpc_io_finish(&op, err);
}

int cpc_io_tree_set(struct cpc_io_tree *tree, uint64_t start, uint64_t len, enum cpc_io_bits bits,
		    struct cpc_io_state **cached, struct cpc_changeset *cs)
{
	uint64_t began = timer_start(&tree->config.set_hist);
	struct cpc_io_op op;
	int err;

	if (cpc_unlikely(!settable(bits)))
		return -EINVAL;
	err = cpc_io_begin(&op, tree, "set", start, len);
	if (cpc_unlikely(err))
		return err;
	op.set = bits;
	op.cs = cs;
	err = cpc_io_finish(&op, modify(&op, cached));
	timer_stop(&tree->config.set_hist, began);
	return err;
}

/* Clear and convert, timed. */
static int clear_common(struct cpc_io_tree *tree, const char *name, uint64_t start, uint64_t len,
			uint32_t set, uint32_t clear, struct cpc_io_state **cached,
			struct cpc_changeset *cs)
{
	uint64_t began = timer_start(&tree->config.clear_hist);
	struct cpc_io_op op;
	int err;

	PROBE_ENTRY(tree, start, len);
	err = cpc_io_begin(&op, tree, name, start, len);
	if (cpc_likely(!err)) {
		op.set = set;
		op.clear = clear;
		op.cs = cs;
		err = cpc_io_finish(&op, modify(&op, cached));
	}
	PROBE_RETURN(tree, start, err);
	timer_stop(&tree->config.clear_hist, began);
	return err;
}

int cpc_io_tree_clear(struct cpc_io_tree *tree, uint64_t start, uint64_t len, enum cpc_io_bits bits,
		      struct cpc_io_state **cached, struct cpc_changeset *cs)
{
	if (cpc_unlikely(!bits_valid(bits)))
		return -EINVAL;
	return clear_common(tree, "clear", start, len, 0, bits, cached, cs);
}

int cpc_io_tree_convert(struct cpc_io_tree *tree, uint64_t start, uint64_t len,
			enum cpc_io_bits set, enum cpc_io_bits clear, struct cpc_io_state **cached,
			struct cpc_changeset *cs)
{
	if (cpc_unlikely(!settable(set) || !bits_valid(clear)))
		return -EINVAL;
	return clear_common(tree, "convert", start, len, set, clear, cached, cs);
}

void cpc_io_tree_release(struct cpc_io_tree *tree, struct cpc_io_state **cached)
{
	struct cpc_io_op op;

	if (!*cached)
		return;
	if (!cpc_io_begin(&op, tree, "release", 0, CPC_IO_TREE_END))
		cpc_io_finish(&op, put_cached(&op, cached));
	*cached = NULL;
}

/* Every byte of the range has all of the bits. */
static bool all_have(const struct cpc_io_op *op, const struct cpc_io_state *rec, uint32_t bits)
{
	uint64_t pos = op->start;

	for (; pos < op->end; pos = rec->end, rec = rec->next) {
		if (!rec || rec->start > pos || (rec->bits & bits) != bits)
			return false;
	}
	return true;
}

int cpc_io_tree_test(struct cpc_io_tree *tree, uint64_t start, uint64_t len, enum cpc_io_bits bits,
		     enum cpc_io_match match, bool *result)
{
	struct cpc_io_op op;
	struct cpc_io_state *rec;
	int err;

	if (cpc_unlikely(!bits_valid(bits)))
		return -EINVAL;
	err = cpc_io_begin(&op, tree, "test", start, len);
	if (cpc_unlikely(err))
		return err;
	rec = cpc_io_record_seek(tree, start);
	*result = match == CPC_IO_MATCH_ALL ? all_have(&op, rec, bits)
					    : first_with(&op, rec, bits) != NULL;
	return cpc_io_finish(&op, 0);
}

int cpc_io_tree_find_first(struct cpc_io_tree *tree, uint64_t start, uint64_t len,
			   enum cpc_io_bits bits, uint64_t *found_start, uint64_t *found_len)
{
	struct cpc_io_op op;
	struct cpc_io_state *rec;
	uint64_t end;
	int err;

	if (cpc_unlikely(!bits_valid(bits)))
		return -EINVAL;
	err = cpc_io_begin(&op, tree, "find_first", start, len);
	if (cpc_unlikely(err))
		return err;
	rec = first_with(&op, cpc_io_record_seek(tree, start), bits);
	if (!rec)
		return cpc_io_finish(&op, -ENOENT);

	*found_start = cpc_max_u64(rec->start, start);
	do {
		end = rec->end;
		rec = rec->next;
	} while (end < op.end && rec && rec->start == end && (rec->bits & bits));
	*found_len = cpc_min_u64(end, op.end) - *found_start;
	return cpc_io_finish(&op, 0);
}

int cpc_io_tree_count(struct cpc_io_tree *tree, uint64_t start, uint64_t len, enum cpc_io_bits bits,
		      uint64_t max, uint64_t *bytes)
{
	struct cpc_io_op op;
	struct cpc_io_state *rec;
	uint64_t sum = 0;
	int err;

	if (cpc_unlikely(!bits_valid(bits)))
		return -EINVAL;
	err = cpc_io_begin(&op, tree, "count", start, len);
	if (cpc_unlikely(err))
		return err;
	rec = cpc_io_record_seek(tree, start);
	for (; rec && rec->start < op.end && sum < max; rec = rec->next) {
		if (rec->bits & bits)
			sum += cpc_min_u64(rec->end, op.end) - cpc_max_u64(rec->start, start);
	}
	*bytes = cpc_min_u64(sum, max);
	return cpc_io_finish(&op, 0);
}

void cpc_io_tree_get_stats(struct cpc_io_tree *tree, struct cpc_io_tree_stats *stats)
{
	cpc_mutex_lock(&tree->lock);
	*stats = tree->stats;
	cpc_mutex_unlock(&tree->lock);
}

void cpc_io_tree_stop(struct cpc_io_tree *tree)
{
	struct cpc_io_op op;

	if (cpc_io_begin(&op, tree, "stop", 0, CPC_IO_TREE_END))
		return;
	tree->stopped = true;
	cpc_io_wake_all(&op);
	cpc_io_finish(&op, 0);
}

void cpc_io_tree_set_hists(struct cpc_io_tree *tree, struct cpc_hist *clear_hist,
			   struct cpc_hist *set_hist)
{
	if (clear_hist || set_hist)
		cpc_io_clock_init();
	__atomic_store_n(&tree->config.clear_hist, clear_hist, __ATOMIC_RELEASE);
	__atomic_store_n(&tree->config.set_hist, set_hist, __ATOMIC_RELEASE);
}

void cpc_io_tree_init(struct cpc_io_tree *tree, const struct cpc_io_tree_config *config)
{
	memset(tree, 0, sizeof(*tree));
	cpc_mutex_init(&tree->lock, "io-tree", CPC_RANK_IO_TREE);
	cpc_list_init(&tree->sleepers);
	cpc_list_init(&tree->impatient);
	tree->dice = cpc_now_ns() | 1;
	tree->sweep_records = CPC_IO_SWEEP_RECORDS;
	tree->fingers_at = CPC_IO_FINGERS_RECORDS;
	tree->config = *config;
	cpc_io_tree_set_hists(tree, config->clear_hist, config->set_hist);
}

void cpc_io_tree_destroy(struct cpc_io_tree *tree)
{
	cpc_assert(cpc_list_empty(&tree->sleepers));
	cpc_io_record_free_chunks(tree);
	cpc_mutex_destroy(&tree->lock);
}
