/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * spoil: damage for a scrub or a repair to find, that does not outlive it: what has not been healed
 * is put back, so that a script knows what its pool may hold.
 */
#ifndef CPC_FAULTS_SPOIL_H
#define CPC_FAULTS_SPOIL_H

#include "backing/powercut.h"
#include "format/format.h"

enum spoil {
	SPOIL_SUPER,	/* ring 1's newest slot */
	SPOIL_NODE,	/* the second copy of the root tree's root */
	SPOIL_FREE_LOG, /* both copies of the free log's root: for a repair, which rebuilds it */
	NR_SPOILS
};

struct spoilt {
	struct {
		uint64_t bytenr;
		uint8_t before[CPC_BLOCK_SIZE], after[CPC_BLOCK_SIZE];
	} block[2];
	unsigned nr;
};

/* Flips a bit in each block. What the pool does not have leaves nr = 0. */
void spoil(struct spoilt *sp, struct cpc_powercut *pc, uint64_t size, enum spoil what);
/* Whether the device has something else there now: the block as it was, or, of a superblock that
 * never became durable, nothing or its successor. */
bool spoil_is_gone(const struct spoilt *sp, struct cpc_powercut *pc, unsigned i);
/* Puts back what is still as spoil() left it, and makes stable what has been healed. */
void spoil_undo(const struct spoilt *sp, struct cpc_powercut *pc);

#endif
