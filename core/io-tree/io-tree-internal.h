/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * io-tree-internal: what the files of io-tree share, and what its tests break on purpose.
 *
 *   io-tree.c    the calls: begin, find, reserve spares, change, finish
 *   io-change.c  the change of one range, record by record; the trims
 *   io-record.c  records: chunks and spares, list and index, split and merge
 *   io-search.c  search; fingers (io-finger.h), where a search begins
 *   io-wait.c    sleepers, wake-ups, the fatal stop
 *   io-check.c   the structural check
 */
#ifndef CPC_IO_TREE_IO_TREE_INTERNAL_H
#define CPC_IO_TREE_IO_TREE_INTERNAL_H

#include "io-tree/io-tree.h"

/* How often a lock is overtaken before it goes first. */
#define CPC_IO_PATIENCE 8

/* Of so many records one is indexed; a power of two. */
#define CPC_IO_INDEX_EVERY 16

/*
 * With fewer records a clear of everything walks the list; so it does with few among many spares,
 * since a sweep meets those too, but so many times as quickly.
 */
#define CPC_IO_SWEEP_RECORDS 1024
#define CPC_IO_SWEEP_SPARES  16

enum cpc_io_record_flags {
	CPC_IO_REC_IN_TREE = 1 << 0,
	CPC_IO_REC_RED = 1 << 1,
	CPC_IO_REC_WAITERS = 1 << 2, /* some sleeper's `record` */
	CPC_IO_REC_INDEXED = 1 << 3,
};

/* A record; one cache line. All fields: tree->lock. */
struct cpc_io_state {
	uint64_t start, end;
	struct cpc_io_state *child[2], *parent; /* index, if INDEXED */
	struct cpc_io_state *prev, *next;	/* list by address; `next` also links spares */
	uint32_t refs;				/* one for the tree, one for each `cached` */
	uint16_t bits;
	uint16_t flags;
};

_Static_assert(sizeof(struct cpc_io_state) == 64, "a record fills a cache line");

/* A chunk of records; the header takes a record's place. */
struct cpc_io_chunk {
	struct cpc_io_chunk *next;
	size_t size;
};

static inline struct cpc_io_state *cpc_io_chunk_end(struct cpc_io_chunk *chunk)
{
	return (struct cpc_io_state *)chunk + chunk->size / sizeof(struct cpc_io_state);
}

/* All records in the tree, as they lie in memory; `rec` may leave the tree meanwhile. */
#define cpc_io_for_each_record(tree, chunk, rec)                                                   \
	for ((chunk) = (tree)->chunks; (chunk); (chunk) = (chunk)->next)                           \
		for ((rec) = (struct cpc_io_state *)(chunk) + 1; (rec) < cpc_io_chunk_end(chunk);  \
		     (rec)++)                                                                      \
			if ((rec)->flags & CPC_IO_REC_IN_TREE)

/* A sleeper, on its thread's stack. All fields: tree->lock, `woken`: atomic. */
struct cpc_io_waiter {
	struct cpc_list node;	    /* tree->sleepers, or the waker's list */
	struct cpc_list impatience; /* tree->impatient */
	struct cpc_io_state *record;
	struct cpc_io_waiter *behind; /* or an impatient sleeper that goes first */
	uint64_t start, end;
	uint32_t bits;
	uint32_t rounds;
	uint32_t woken; /* futex */
	bool locks;	/* wants to lock, not only to see the bits gone */
	bool impatient;
};

/* One call in progress. */
struct cpc_io_op {
	struct cpc_io_tree *tree;
	const char *name;
	uint64_t start, end;
	uint32_t set, clear;
	struct cpc_changeset *cs;
	bool gap;		       /* what was changed last has no bits any more */
	struct cpc_io_state *first;    /* the record at `start` after a lock */
	struct cpc_io_state *released; /* to be freed after tree->lock is dropped */
	struct cpc_list woken;	       /* to be woken after tree->lock is dropped */
};

/*
 * io-wait.c. Stops the tree because it is broken, and keeps where that was found: `rec` (may be
 * NULL) is what was being looked at. Returns -EIO. The fatal function is called by
 * cpc_io_finish(), without tree->lock.
 */
#define cpc_io_fatal(op, rec, what) cpc_io_fatal_at(op, rec, what, __FILE__, __LINE__, __func__)
int cpc_io_fatal_at(struct cpc_io_op *op, const struct cpc_io_state *rec, const char *what,
		    const char *file, int line, const char *func);

/* Wakes whom this call has chosen, and tells of a fatal inconsistency; without tree->lock. */
void cpc_io_wake_chosen(struct cpc_io_op *op);
void cpc_io_call_fatal(struct cpc_io_tree *tree);

/* io-tree.c. Takes tree->lock for a call, or returns -EIO (stopped), -EINVAL (range) without it. */
int cpc_io_begin(struct cpc_io_op *op, struct cpc_io_tree *tree, const char *name, uint64_t start,
		 uint64_t len);

/* Drops tree->lock, then wakes, frees, reports. Returns `err`. */
int cpc_io_finish(struct cpc_io_op *op, int err);

/* io-wait.c. Sleeps for w->record or w->behind; tree->lock is dropped meanwhile. Returns 0 or -EIO.
 */
int cpc_io_sleep(struct cpc_io_op *op, struct cpc_io_waiter *w);

struct cpc_io_waiter *cpc_io_find_elder(const struct cpc_io_op *op, const struct cpc_io_waiter *w);

/* The impatient sleeper that `w` must let go first, or NULL. */
static inline struct cpc_io_waiter *cpc_io_goes_first(const struct cpc_io_op *op,
						      const struct cpc_io_waiter *w)
{
	return cpc_likely(cpc_list_empty(&op->tree->impatient)) ? NULL : cpc_io_find_elder(op, w);
}

/* Ends the impatience of a sleeper and lets those behind it try again. */
void cpc_io_calm(struct cpc_io_op *op, struct cpc_io_waiter *w);

unsigned cpc_io_choose_sleepers(struct cpc_io_op *op, struct cpc_io_state *rec, uint64_t start,
				uint64_t end, uint32_t cleared);

/* Chooses whom to wake because [start, end) of `rec` loses the bits `cleared`. */
static inline void cpc_io_wake(struct cpc_io_op *op, struct cpc_io_state *rec, uint64_t start,
			       uint64_t end, uint32_t cleared)
{
	unsigned nr = 0;

	if (cpc_unlikely(rec->flags & CPC_IO_REC_WAITERS))
		nr = cpc_io_choose_sleepers(op, rec, start, end, cleared);
	op->tree->stats.wakeups += nr;
	op->tree->stats.wakeups_skipped += !nr;
}

/* Hands the sleepers on `from` that overlap [start, end) over to `to`. */
void cpc_io_move_sleepers(struct cpc_io_tree *tree, struct cpc_io_state *from,
			  struct cpc_io_state *to, uint64_t start, uint64_t end);

/* Wakes every sleeper of a stopped tree. */
void cpc_io_wake_all(struct cpc_io_op *op);

/* io-search.c. The first record that ends after `pos`, or NULL. */
struct cpc_io_state *cpc_io_record_seek(struct cpc_io_tree *tree, uint64_t pos);
/* The same by the index alone. */
struct cpc_io_state *cpc_io_record_descend(const struct cpc_io_tree *tree, uint64_t pos);

/* io-record.c. */
int cpc_io_record_refill(struct cpc_io_op *op, uint64_t need, bool *dropped);

/* Gets `need` spares together; may drop tree->lock meanwhile, then *dropped = true. */
static inline int cpc_io_record_reserve(struct cpc_io_op *op, uint64_t need, bool *dropped)
{
	*dropped = false;
	if (cpc_likely(op->tree->stats.spares >= need))
		return 0;
	return cpc_io_record_refill(op, need, dropped);
}

/* Puts a spare in as [start, end) with `bits` before `next` (NULL: at the end). */
int cpc_io_record_insert(struct cpc_io_op *op, struct cpc_io_state *next, uint64_t start,
			 uint64_t end, uint32_t bits, struct cpc_io_state **recp);

int cpc_io_record_erase(struct cpc_io_op *op, struct cpc_io_state *rec);

/*
 * Calls `change` for every record, in no order; it gives the record the bits that it shall have, or
 * 0 to have it erased. For a clear of everything, which has no use for the order.
 */
int cpc_io_record_sweep(struct cpc_io_op *op,
			int (*change)(struct cpc_io_op *op, struct cpc_io_state *rec));

/* Cuts `rec` at `pos`; the part from `pos` on becomes a record of its own, *tailp. */
int cpc_io_record_split(struct cpc_io_op *op, struct cpc_io_state *rec, uint64_t pos,
			struct cpc_io_state **tailp);

int cpc_io_record_join(struct cpc_io_op *op, struct cpc_io_state *rec);

/* Joins `rec` to its left neighbour if they touch, are equal and not LOCKED. */
static inline int cpc_io_record_merge_left(struct cpc_io_op *op, struct cpc_io_state *rec)
{
	const struct cpc_io_state *prev = rec->prev;

	if (!prev || prev->end != rec->start || prev->bits != rec->bits ||
	    (rec->bits & CPC_IO_LOCKED))
		return 0;
	return cpc_io_record_join(op, rec);
}

/* Drops a cached reference; a record without any goes to op->released. */
int cpc_io_record_put(struct cpc_io_op *op, struct cpc_io_state *rec);
/* Makes op->released a spare again; without tree->lock. */
void cpc_io_record_free_released(struct cpc_io_op *op);
void cpc_io_record_free_chunks(struct cpc_io_tree *tree);

/* io-change.c. The spares that cpc_io_change() will need at most; `rec` as there. */
uint64_t cpc_io_change_need(const struct cpc_io_op *op, const struct cpc_io_state *rec);

/*
 * Clears op->clear and sets op->set over the range; `rec` is the first record that ends after
 * op->start. Everything it needs was reserved: fails only by being fatal.
 */
int cpc_io_change(struct cpc_io_op *op, struct cpc_io_state *rec);

#endif
