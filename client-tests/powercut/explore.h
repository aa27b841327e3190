/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * explore: cuts the power at the events of a workload, opens what is left, and judges it.
 *
 * A state is an event and what becomes of each write that was not flushed then. Each must open; its
 * table of volumes is the one before or after the change in flight; each volume is as a whole at
 * one instant, between the last operation whose durability was answered and the one in flight; the
 * check finds nothing but, perhaps, torn superblocks. Some states are used afterwards and emptied,
 * and some lose power again while they are opened.
 *
 * A state is named by a path: "E12s5" = event 12, state 5 of cpc_crash_state(); "E12r5" = random
 * fates from seed 5; what follows a '/' happens while that state is opened.
 */
#ifndef CPC_POWERCUT_EXPLORE_H
#define CPC_POWERCUT_EXPLORE_H

#include "workload.h"

#define MAX_DEPTH 3u

struct seen {
	uint64_t *slot;
	size_t nr, cap;
};

struct explorer {
	const char *program; /* for the line that reruns a state */
	/* States of each kind tried at a write; before a flush, a discard, at the end. */
	unsigned per_instant, per_epoch;
	struct seen seen;
	struct rnd rnd;
	/* counts: states in all, those not seen before, torn, by depth, used afterwards */
	uint64_t states, distinct, torn, by_depth[MAX_DEPTH + 1], used, events;
	uint64_t sequences;	 /* of one or two operations */
	uint64_t faults, failed; /* injected into workloads; operations that failed for it */
};

/* Runs a workload; a failure names it. */
void explorer_run(struct explorer *x, struct workload *w);
/* Tries states at each saved event. Uses up the workload's history. */
void explore(struct explorer *x, struct workload *w);
/* Tries one state. */
void explore_path(struct explorer *x, struct workload *w, const char *path);
void explorer_free(struct explorer *x);

#endif
