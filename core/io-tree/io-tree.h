/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * io-tree: state bits and locks of byte ranges of one volume, in one tree of records.
 *
 * Called by core/volume (every write, trim, zero and read-modify-write locks its range; the
 * changeset of DELALLOC charges and releases space) and by the pool, which stops when a tree
 * is found broken. Calls core/lib only.
 *
 * Terms
 *   range      [start, start + len), len > 0, start + len <= 2^63. Else -EINVAL.
 *   record     a maximal run of bytes with equal, nonzero state bits. Bytes without a record
 *              have no bits. Records with LOCKED are not merged, so that the ends of a locked
 *              range stay ends of records as long as it is locked.
 *   trim       clearing the last bits of one end of a record: the record is shortened where it
 *              stands. Nothing is allocated, split, inserted or erased.
 *   spare      a record that is in no tree, on the tree's free list
 *   cached     a caller's reference to a record, a hint where a range begins. It saves the
 *              search; a stale one costs a search, never a wrong answer.
 *   index      the balanced tree of some of the records: of each the dice say, once in
 *              CPC_IO_INDEX_EVERY times, that it is indexed. From the last indexed record before a
 *              place the list leads there.
 *   finger     the tree's own pointer to a record, one for each region of the volume, from where a
 *              search takes a few steps instead of the way through the index. A tree with many
 *              records has them (204 KiB, 30 bytes for each record of very many), if there was
 *              memory.
 *   stopped    after a fatal inconsistency or cpc_io_tree_stop(): every call returns -EIO and
 *              touches nothing, every sleeper wakes with -EIO.
 *
 * Invariants (asserted by; cpc_io_tree_check() asserts 1 to 4, 6 and 10 for the whole tree)
 *   1. Records are not empty, sorted and disjoint.           (step, cpc_io_record_insert)
 *      Of a sweep: not empty, and those that stay disjoint.  (step, cpc_io_record_sweep)
 *   2. No record has bits 0.                                 (step)
 *   3. Neighbours that touch differ in bits or are LOCKED.   (cpc_io_tree_check)
 *   4. A record in the list is marked as in the tree, and no other record is; those of them that
 *      are marked as indexed are in the index, in the same order, and no others.
 *                    (step, cpc_io_record_insert, _erase, _split, _join, _sweep)
 *   5. What is unlocked is LOCKED to its last byte and ends where records end. (verify_locked)
 *   6. Who sleeps on a record overlaps it and waits for a bit that it has; the record says
 *      that it has sleepers.                                 (cpc_io_record_erase)
 *   7. A byte's LOCKED bit goes from 0 to 1 in lock and trylock only.   (settable)
 *   8. A changeset that could not take a change stops the tree.         (report)
 *   9. A reference is dropped once.                          (cpc_io_record_put)
 *   10. A finger is NULL or points to a record in the tree whose start uses that slot.
 *                                                            (cpc_io_tree_check)
 *
 * Locks. tree->lock, CPC_RANK_IO_TREE, protects all of the tree, its records and its sleepers.
 * No allocation and no system call is made while it is held; changeset callbacks run under it.
 * Range locks are exclusive and unfair at first; who has lost CPC_IO_PATIENCE times goes before
 * everybody who comes later. A thread that holds a range must not sleep for another range of the
 * same tree (trylock is allowed). Context: lock and wait sleep, trylock, set, clear, convert and
 * the queries do not.
 *
 * Memory. Spares come from chunks, taken outside tree->lock before anything is changed, and go
 * back to the allocator in cpc_io_tree_destroy(). A call that needs more spares than it can get
 * returns -ENOMEM with nothing changed. These never need a spare and so never return -ENOMEM:
 *   - unlock;
 *   - set, clear and convert of exactly a range that the caller has locked;
 *   - clear of all bits of a range that begins or ends a record, or covers records (trim).
 *
 * Ownership. A record reference in `cached` belongs to the caller until unlock (or a clear or
 * convert that clears LOCKED, or cpc_io_tree_release()) takes it back and leaves NULL.
 *
 * Errors. 0 or negative errno: -EINVAL bad range or bits, -ENOMEM, -EAGAIN (trylock: somebody
 * has it), -EIO stopped. After any error but -EIO the tree is unchanged.
 */
#ifndef CPC_IO_TREE_IO_TREE_H
#define CPC_IO_TREE_IO_TREE_H

#include "lib/base.h"
#include "lib/list.h"
#include "lib/lock.h"

#define CPC_IO_TREE_END (UINT64_C(1) << 63)

/* State of a byte. */
enum cpc_io_bits {
	CPC_IO_NONE = 0,
	CPC_IO_LOCKED = 1 << 0,	   /* a request owns it */
	CPC_IO_DELALLOC = 1 << 1,  /* dirty in memory, space charged, no block yet */
	CPC_IO_WRITEBACK = 1 << 2, /* being written to the backing */
	CPC_IO_ALL = (1 << 3) - 1,
};

/* How cpc_io_tree_test() is meant; never a state bit. */
enum cpc_io_match {
	CPC_IO_MATCH_ANY = 0x100, /* some byte has some of the bits */
	CPC_IO_MATCH_ALL = 0x200, /* every byte has all of the bits */
};

struct cpc_hist;
struct cpc_io_state;
struct cpc_io_chunk;
struct cpc_io_fingers;

/*
 * What a call has changed, exactly. LOCKED is not reported: a convert may set DELALLOC and
 * unlock, and only the first is a change. The caller zeroes it (and sets `add`) beforehand; calls
 * add up.
 */
struct cpc_changeset {
	uint64_t set_bytes;	/* bytes that got a bit they did not have */
	uint64_t cleared_bytes; /* bytes that lost a bit they had */
	/*
	 * Optional: called for each changed piece in ascending order, under tree->lock. Must not
	 * call the tree. Returns 0, or a negative errno, which is fatal.
	 */
	int (*add)(struct cpc_changeset *cs, uint64_t start, uint64_t len, enum cpc_io_bits set,
		   enum cpc_io_bits cleared);
};

/*
 * Called once, without locks of the tree, when it is found broken. Does not return to the
 * broken operation in a way that it would go on: the call that found it returns -EIO. `message` is
 * valid during the call.
 */
typedef void (*cpc_io_fatal_fn)(void *arg, const char *message);

struct cpc_io_tree_config {
	cpc_io_fatal_fn fatal; /* NULL: log and abort() */
	void *fatal_arg;
	/*
	 * Optional, nanoseconds of each call: clear_hist of clear, convert and unlock (cached frees
	 * included), set_hist of set. They outlive the tree.
	 */
	struct cpc_hist *clear_hist, *set_hist;
};

struct cpc_io_tree_stats {
	uint64_t records;	  /* in the tree now */
	uint64_t spares;	  /* on the free list now */
	uint64_t memory;	  /* bytes taken from the allocator now */
	uint64_t inserts, erases; /* of records, into the tree and out of it */
	uint64_t splits, merges;
	uint64_t trims;
	uint64_t sweeps;	  /* clears of everything by chunks */
	uint64_t chunks;	  /* allocations of memory, ever */
	uint64_t finger_hits;	  /* searches that a finger answered */
	uint64_t finger_misses;	  /* searches through the index in a tree with fingers */
	uint64_t cached_hits;	  /* searches saved by a cached record */
	uint64_t lock_waits;	  /* times that lock or wait went to sleep */
	uint64_t wakeups;	  /* sleepers woken because bits were cleared */
	uint64_t wakeups_skipped; /* records that lost bits and had nobody to wake */
};

struct cpc_io_tree {
	struct cpc_mutex lock;
	/* All below: tree->lock, unless said otherwise. */
	bool stopped;
	bool fatal_pending;		   /* found broken, `fatal` not called yet */
	struct cpc_io_state *root;	   /* of the index */
	struct cpc_io_state *first, *last; /* of the list */
	struct cpc_io_state *spares;	   /* written atomically, for the hints */
	uint64_t dice;			   /* state of the random numbers; never 0 */
	uint64_t sweep_records;		   /* with so many a clear of everything goes by chunks */
	int finger_balance;		   /* searches that want smaller regions - larger ones */
	uint64_t fingers_at;	   /* with so many records it wants a table, or a larger one */
	struct cpc_list sleepers;  /* asleep, in the order of going to sleep */
	struct cpc_list impatient; /* lost too often, in the order of losing patience */
	struct cpc_io_chunk *chunks;
	struct cpc_io_tree_stats stats;
	/* NULL: none. Seldom written, atomically; read by hints without the lock. */
	_Alignas(64) struct cpc_io_fingers *fingers;
	struct cpc_io_tree_config config; /* immutable, but for the histograms (atomic) */
	char message[512];
	/* Records whose last reference was dropped after tree->lock: atomic, a stack. */
	_Alignas(64) struct cpc_io_state *returned;
};

/* Makes an empty tree. Takes no memory yet. */
void cpc_io_tree_init(struct cpc_io_tree *tree, const struct cpc_io_tree_config *config);

/* Frees everything. Nobody sleeps in the tree and nobody calls it any more. */
void cpc_io_tree_destroy(struct cpc_io_tree *tree);

/* Turns the histograms on or off (NULL), at any time. */
void cpc_io_tree_set_hists(struct cpc_io_tree *tree, struct cpc_hist *clear_hist,
			   struct cpc_hist *set_hist);

/*
 * Hints: a call for bytes from `start` on comes soon. The first has the fingers of that place
 * fetched into the processor's cache; the second, a few hundred nanoseconds later, the records
 * that they point to. No lock, no waiting; they change nothing. Any `start`.
 */
void cpc_io_tree_prefetch_fingers(const struct cpc_io_tree *tree, uint64_t start);
void cpc_io_tree_prefetch_records(const struct cpc_io_tree *tree, uint64_t start);

/* Makes every later call return -EIO and wakes all sleepers, without calling `fatal`. */
void cpc_io_tree_stop(struct cpc_io_tree *tree);

/*
 * Locks a range that nobody else holds any byte of; sleeps until then. `cached` is NULL or points
 * to a pointer that is NULL or was cached before, and receives a reference to the first record.
 */
int cpc_io_tree_lock(struct cpc_io_tree *tree, uint64_t start, uint64_t len,
		     struct cpc_io_state **cached);

/* As above, -EAGAIN instead of sleeping (also when an impatient sleeper wants the range). */
int cpc_io_tree_trylock(struct cpc_io_tree *tree, uint64_t start, uint64_t len,
			struct cpc_io_state **cached);

/*
 * Unlocks exactly a range that was locked in one call; other bits stay. Never fails. (Part of
 * a locked range: clear LOCKED, which may need a spare.) A range that is not locked is fatal, one
 * that is no range is an assertion.
 */
void cpc_io_tree_unlock(struct cpc_io_tree *tree, uint64_t start, uint64_t len,
			struct cpc_io_state **cached);

/*
 * Sleeps until every byte has been seen without any of the bits at some time since the call, in
 * ascending order: bits that come back behind its back do not hold it up.
 */
int cpc_io_tree_wait(struct cpc_io_tree *tree, uint64_t start, uint64_t len, enum cpc_io_bits bits);

/* Sets bits other than LOCKED. `cached` is a hint and may be NULL, `cs` may be NULL. */
int cpc_io_tree_set(struct cpc_io_tree *tree, uint64_t start, uint64_t len, enum cpc_io_bits bits,
		    struct cpc_io_state **cached, struct cpc_changeset *cs);

/* Clears bits. With LOCKED among them it unlocks, and takes the reference in `cached`. */
int cpc_io_tree_clear(struct cpc_io_tree *tree, uint64_t start, uint64_t len, enum cpc_io_bits bits,
		      struct cpc_io_state **cached, struct cpc_changeset *cs);

/*
 * Clears some bits and sets others at once, also where there was none to clear; a bit in both
 * is set. `convert(DELALLOC, LOCKED)` dirties a locked range and unlocks it in one pass.
 */
int cpc_io_tree_convert(struct cpc_io_tree *tree, uint64_t start, uint64_t len,
			enum cpc_io_bits set, enum cpc_io_bits clear, struct cpc_io_state **cached,
			struct cpc_changeset *cs);

/* Gives a cached reference back (also of a stopped tree) and leaves NULL. */
void cpc_io_tree_release(struct cpc_io_tree *tree, struct cpc_io_state **cached);

/* Asks whether some byte has any, or every byte has all of the bits. */
int cpc_io_tree_test(struct cpc_io_tree *tree, uint64_t start, uint64_t len, enum cpc_io_bits bits,
		     enum cpc_io_match match, bool *result);

/*
 * Finds the first byte of the range that has any of the bits, and how many from there on,
 * inside the range and without a gap, have too. Returns -ENOENT if there is none.
 */
int cpc_io_tree_find_first(struct cpc_io_tree *tree, uint64_t start, uint64_t len,
			   enum cpc_io_bits bits, uint64_t *found_start, uint64_t *found_len);

/* Counts the bytes of the range that have any of the bits, and stops at `max`. */
int cpc_io_tree_count(struct cpc_io_tree *tree, uint64_t start, uint64_t len, enum cpc_io_bits bits,
		      uint64_t max, uint64_t *bytes);

void cpc_io_tree_get_stats(struct cpc_io_tree *tree, struct cpc_io_tree_stats *stats);

/* Looks for a broken invariant in the whole tree. Returns 0, or -EUCLEAN and says why. */
int cpc_io_tree_check(struct cpc_io_tree *tree, char *why, size_t size);

#endif
