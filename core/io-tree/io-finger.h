/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * io-finger: where a search begins, if not at the root of the index.
 *
 * A tree of some size has a table of fingers. The volume is cut into regions of equal size, and
 * region number r uses slot r modulo the number of slots. From a record in the region, or in the
 * one beside it, what is looked for is a few steps along the list, while the root is a dozen
 * dependent loads away. Two levels: small regions for the many records of a tree before its next
 * cut, and coarse ones, which have a record when few have been written since the last. The table
 * is a help and no more: without one (few records, or no memory for it), or where it does not
 * help, a search goes through the index and leaves a finger on what it finds.
 *
 * How large a region is best depends on how dense the records are, so the tree finds out: searches
 * that found no finger speak for larger regions, those that had too far to walk for smaller ones.
 * When one sort is ahead by as many as there are slots the sizes change and the table starts empty.
 * A tree with more records than its table is good for gets a larger one.
 *
 * A write waits for the memory of each of these steps, slot, record, neighbour, unless it has been
 * fetched. So a slot also keeps who the record's neighbours were when it was entered, and
 * cpc_io_tree_prefetch_*() has all of it fetched while a write copies its data. They look without
 * tree->lock, so slots and sizes are written atomically, and follow none of the pointers.
 *
 * Invariant 10 of io-tree.h: the record of a slot is NULL, or in the tree, and its start uses the
 * slot. So whoever erases a record or moves its start out of its region takes it from its slot.
 * The neighbours of a slot are past knowledge, for the processor's cache only.
 */
#ifndef CPC_IO_TREE_IO_FINGER_H
#define CPC_IO_TREE_IO_FINGER_H

#include "io-tree/io-tree-internal.h"

enum {
	CPC_IO_FINGERS = 8192,	      /* slots of small regions in a tree's first table */
	CPC_IO_FINGERS_MAX = 1 << 20, /* no table has more */
	CPC_IO_FINGERS_GROW = 4,      /* a table has so many times the slots of the one before */
	CPC_IO_FINGERS_RECORDS = 512, /* with so many records a tree gets the first */
	CPC_IO_FINGERS_FULL = 4,      /* with so many for each slot the next */
	CPC_IO_FINGER_STEPS = 6,      /* then the root is nearer */
	CPC_IO_FINGER_SHIFT = 20,     /* a small region has 2^shift bytes; at first */
	CPC_IO_FINGER_SHIFT_MAX = 56,
	CPC_IO_FINGER_WIDER = 4, /* a coarse region is 2^wider small ones */
	CPC_IO_FINGER_LEVELS = 2 /* small regions, coarse ones */
};

/* Written under tree->lock, atomically. */
struct cpc_io_finger {
	struct cpc_io_state *rec;
	const struct cpc_io_state *prev, *next; /* of `rec`, once; may be anything by now */
};

/* The fingers for regions of one size. */
struct cpc_io_finger_level {
	struct cpc_io_finger *slots;
	uint64_t mask;	/* slots - 1 */
	unsigned shift; /* a region has 2^shift bytes; written atomically */
};

/* A table. Those that a larger one has replaced stay, for hints, as long as the tree. */
struct cpc_io_fingers {
	struct cpc_io_fingers *replaced;
	uint64_t memory; /* bytes */
	struct cpc_io_finger_level level[CPC_IO_FINGER_LEVELS];
	struct cpc_io_finger slots[];
};

/* A table of empty slots, a power of two of small regions; NULL without memory. */
struct cpc_io_fingers *cpc_io_fingers_alloc(uint64_t slots, unsigned shift);

/* Takes the table and enters all records, some ten nanoseconds each, under tree->lock. */
void cpc_io_fingers_install(struct cpc_io_tree *tree, struct cpc_io_fingers *fingers);

/* The slots of the table that the tree should have now, and their `shift`; 0: what it has will do.
 */
uint64_t cpc_io_fingers_wanted(struct cpc_io_tree *tree, unsigned *shift);

void cpc_io_fingers_empty(struct cpc_io_tree *tree);
void cpc_io_fingers_free(struct cpc_io_tree *tree);

#define cpc_io_for_each_level(fingers, l)                                                          \
	for ((l) = (fingers) ? (fingers)->level : NULL;                                            \
	     (l) && (l) < (fingers)->level + CPC_IO_FINGER_LEVELS; (l)++)

static inline bool cpc_io_finger_same(const struct cpc_io_finger_level *l, uint64_t a, uint64_t b)
{
	return !((a ^ b) >> l->shift);
}

static inline struct cpc_io_finger *cpc_io_finger(const struct cpc_io_finger_level *l, uint64_t pos)
{
	return &l->slots[(pos >> l->shift) & l->mask];
}

static inline void cpc_io_finger_set(struct cpc_io_finger *slot, struct cpc_io_state *rec)
{
	__atomic_store_n(&slot->rec, rec, __ATOMIC_RELAXED);
	if (!rec)
		return;
	__atomic_store_n(&slot->prev, rec->prev, __ATOMIC_RELAXED);
	__atomic_store_n(&slot->next, rec->next, __ATOMIC_RELAXED);
}

/* `rec` has come into the tree. */
static inline void cpc_io_finger_enter(struct cpc_io_tree *tree, struct cpc_io_state *rec)
{
	const struct cpc_io_finger_level *l;

	cpc_io_for_each_level (tree->fingers, l)
		cpc_io_finger_set(cpc_io_finger(l, rec->start), rec);
}

/* `rec` leaves its region: a neighbour there takes over its slot, if it has it. */
static inline void cpc_io_finger_leave_region(const struct cpc_io_finger_level *l,
					      const struct cpc_io_state *rec)
{
	struct cpc_io_finger *slot = cpc_io_finger(l, rec->start);
	struct cpc_io_state *heir = NULL;

	if (slot->rec != rec)
		return;
	if (rec->next && cpc_io_finger_same(l, rec->start, rec->next->start))
		heir = rec->next;
	else if (rec->prev && cpc_io_finger_same(l, rec->start, rec->prev->start))
		heir = rec->prev;
	cpc_io_finger_set(slot, heir);
}

/* `rec` leaves the tree. */
static inline void cpc_io_finger_leave(struct cpc_io_tree *tree, const struct cpc_io_state *rec)
{
	const struct cpc_io_finger_level *l;

	cpc_io_for_each_level (tree->fingers, l)
		cpc_io_finger_leave_region(l, rec);
}

/* Moves the start of a record that stays between its neighbours. */
static inline void cpc_io_finger_move_start(struct cpc_io_tree *tree, struct cpc_io_state *rec,
					    uint64_t start)
{
	const struct cpc_io_finger_level *l;

	cpc_io_for_each_level (tree->fingers, l) {
		if (!cpc_io_finger_same(l, rec->start, start))
			cpc_io_finger_leave_region(l, rec);
	}
	rec->start = start;
}

#endif
