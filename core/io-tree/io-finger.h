/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * io-finger: where a search begins, if not at the root.
 *
 * A tree of some size has a table of fingers. The volume is cut into regions of equal size, and
 * region number r uses slot r modulo the number of slots. From a record in the region, or in the
 * one beside it, what is looked for is a few steps along the list, while the root is a dozen
 * dependent loads away. The table is a help and no more: without one (few records, or no memory for
 * it), or where it does not help, a search begins at the root and leaves a finger on what it finds.
 *
 * How large a region is best depends on how dense the records are, so the tree finds out: searches
 * that found no finger speak for larger regions, those that had too far to walk for smaller ones.
 * When one sort is ahead by as many as there are slots the size changes and the table starts empty.
 *
 * Invariant 10 of io-tree.h: a slot is NULL, or points to a record in the tree whose start uses
 * the slot. So whoever erases a record or moves its start out of its region takes it from its slot.
 * All under tree->lock.
 */
#ifndef CPC_IO_TREE_IO_FINGER_H
#define CPC_IO_TREE_IO_FINGER_H

#include "io-tree/io-tree-internal.h"

enum {
	CPC_IO_FINGERS = 4096,	      /* slots */
	CPC_IO_FINGERS_RECORDS = 512, /* with so many records a tree gets them */
	CPC_IO_FINGER_STEPS = 4,      /* then the root is nearer */
	CPC_IO_FINGER_SHIFT = 21,     /* a region has 2^shift bytes; at first */
	CPC_IO_FINGER_SHIFT_MAX = 62,
};

static inline bool cpc_io_finger_same(const struct cpc_io_tree *tree, uint64_t a, uint64_t b)
{
	return !((a ^ b) >> tree->finger_shift);
}

static inline struct cpc_io_state **cpc_io_finger(const struct cpc_io_tree *tree, uint64_t pos)
{
	return &tree->fingers[(pos >> tree->finger_shift) & tree->finger_mask];
}

/* `rec` has come into the tree. */
static inline void cpc_io_finger_enter(struct cpc_io_tree *tree, struct cpc_io_state *rec)
{
	if (tree->fingers)
		*cpc_io_finger(tree, rec->start) = rec;
}

/* `rec` leaves its region: a neighbour there takes over its slot, if it has it. */
static inline void cpc_io_finger_leave(struct cpc_io_tree *tree, const struct cpc_io_state *rec)
{
	struct cpc_io_state **slot, *heir = NULL;

	if (!tree->fingers)
		return;
	slot = cpc_io_finger(tree, rec->start);
	if (*slot != rec)
		return;
	if (rec->next && cpc_io_finger_same(tree, rec->start, rec->next->start))
		heir = rec->next;
	else if (rec->prev && cpc_io_finger_same(tree, rec->start, rec->prev->start))
		heir = rec->prev;
	*slot = heir;
}

/* Moves the start of a record that stays between its neighbours. */
static inline void cpc_io_finger_move_start(struct cpc_io_tree *tree, struct cpc_io_state *rec,
					    uint64_t start)
{
	if (!cpc_io_finger_same(tree, rec->start, start))
		cpc_io_finger_leave(tree, rec);
	rec->start = start;
}

#endif
