/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * run: an immutable, sorted array of mapping changes of one volume; the extent map of a volume is
 * a short list of runs, newest first, above its committed tree.
 *
 * Called by core/volume (a finished cut, a large write, a trim become a run) and core/transaction
 * (merges runs and applies them to the tree). Calls core/lib and core/format (limits).
 *
 * Terms: all positions are block numbers in the volume. An entry maps [block, block + nr) to
 * consecutive blocks of the pool at bytenr, with one checksum each, or is a hole (bytenr 0).
 *
 * Invariants
 *  1. Entries are ascending and disjoint, and a run is never changed once built (run_check, on
 *     in debug builds and called by the tests).
 *  2. A data entry has at most CPC_EXTENT_MAX_BLOCKS blocks; a hole has any length.
 *  3. Where two runs overlap, the newer one holds; a merge reports each pool block that it drops
 *     exactly once, and none that the result still maps at the same place (a newer run may repeat
 *     an older mapping: that replaces nothing).
 *
 * Ownership: runs are reference counted; pointers into a run live as long as the reference.
 * Errors: -ENOMEM, nothing changed.
 */
#ifndef CPC_EXTENT_MAP_RUN_H
#define CPC_EXTENT_MAP_RUN_H

#include <stdatomic.h>
#include "lib/base.h"

struct cpc_run_entry {
	uint64_t block;	 /* first block in the volume */
	uint64_t bytenr; /* first byte in the pool, 0: hole */
	uint32_t nr;	 /* blocks; holes: low half of the length */
	uint32_t csum;	 /* index of the first checksum; holes: high half of the length */
};
_Static_assert(sizeof(struct cpc_run_entry) == 24, "run entries are packed");

struct cpc_run {
	_Atomic uint32_t refs; /* everything below: immutable once built */
	size_t nr_entries, nr_csums;
	struct cpc_run_entry *entries;
	uint32_t *csums;
	uint64_t data_blocks; /* sum over data entries */
	size_t bytes;	      /* of memory, unused capacity included */
};

/* One piece of an answer: [block, block + nr) has one kind. */
struct cpc_mapping {
	uint64_t block, nr;
	uint64_t bytenr;       /* 0: hole */
	const uint32_t *csums; /* nr of them, borrowed from the run or node; NULL for holes */
};

static inline uint64_t cpc_run_entry_len(const struct cpc_run_entry *e)
{
	return e->bytenr ? e->nr : ((uint64_t)e->csum << 32 | e->nr);
}

struct cpc_run *cpc_run_get(struct cpc_run *run);
void cpc_run_put(struct cpc_run *run); /* NULL is allowed */
/* Bytes of memory that the run holds. */
size_t cpc_run_bytes(const struct cpc_run *run);

/*
 * Finds what the run says about `block`. Return: true, *m starts at `block` and is cut to the
 * entry's end and to at most `max` blocks; false, *m is the gap from `block` to the next entry
 * (or `max` blocks), bytenr 0.
 */
bool cpc_run_lookup(const struct cpc_run *run, uint64_t block, uint64_t max, struct cpc_mapping *m);
/* The same through `nr` runs, runs[0] the newest: true when any of them knows `block`. */
bool cpc_runs_lookup(struct cpc_run *const *runs, size_t nr, uint64_t block, uint64_t max,
		     struct cpc_mapping *m);

/* Walks a run in ascending order. The caller holds a reference to the run meanwhile. */
struct cpc_run_iter {
	const struct cpc_run *run;
	size_t next;	/* entry */
	uint64_t start; /* what lies below is left out */
};
/* Starts with the mapping that holds `block` (cut to begin there), else with the next one. */
void cpc_run_iter_init(struct cpc_run_iter *it, const struct cpc_run *run, uint64_t block);
/* Return: true and *m (holes too, gaps not), or false at the end. */
bool cpc_run_iter_next(struct cpc_run_iter *it, struct cpc_mapping *m);

/* --- building --- */
struct cpc_run_builder {
	struct cpc_run *run;
	size_t entry_capacity, csum_capacity;
	int error; /* first error; sticky, later calls do nothing */
};

/* The capacities are hints. Errors are kept for finish. Either finish or abort ends the builder. */
void cpc_run_builder_init(struct cpc_run_builder *b, size_t entries, size_t csums);
/* Adds blocks above everything added before; joins the previous entry where both continue and
 * the joined one stays within CPC_EXTENT_MAX_BLOCKS; splits what is longer. */
void cpc_run_builder_map(struct cpc_run_builder *b, uint64_t block, uint64_t nr, uint64_t bytenr,
			 const uint32_t *csums);
void cpc_run_builder_hole(struct cpc_run_builder *b, uint64_t block, uint64_t nr);
/* Return: 0 and *out with one reference (also when nothing was added), or the first error. */
int cpc_run_builder_finish(struct cpc_run_builder *b, struct cpc_run **out);
void cpc_run_builder_abort(struct cpc_run_builder *b);

/*
 * Merges `nr` runs, runs[0] the newest, into one (which may be one of them, referenced once more).
 * `drop` (may be NULL) is told every range of pool blocks that an older run named and a newer one
 * replaced, after the merge can no longer fail.
 */
typedef void (*cpc_run_drop_fn)(void *ctx, uint64_t bytenr, uint64_t nr_blocks);
int cpc_run_merge(struct cpc_run *const *runs, size_t nr, struct cpc_run **out,
		  cpc_run_drop_fn drop, void *ctx);

/* Asserts invariants 1 and 2. */
void cpc_run_check(const struct cpc_run *run);

#endif
