/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * script: a few operations on a small pool, drawn from a seed, during which one kind of call
 * fails; and the judgement of every answer and of what the pool holds afterwards.
 *
 *   a healthy prologue -> the fault is armed -> operations -> it is taken away -> the pool works
 *   -> it is closed, killed or loses power -> it opens, holds what was promised, is clean
 *   -> is used
 *
 * An operation's error must be one that the fault explains. The pool need not stay healthy, but a
 * read-only one must say so. A change of names that failed has happened if the pool says so, and
 * then may or may not come back; so may one that has not, if the pool became read-only by it.
 *
 * Without threads, and with the rig's time and randomness: the n-th call is the same each time.
 */
#ifndef CPC_FAULTS_SCRIPT_H
#define CPC_FAULTS_SCRIPT_H

#include "history.h"
#include "rig.h"

#define SCRIPT_VOLUMES 3u

enum fault_kind {
	FAULT_READ = CPC_POWERCUT_READ,
	FAULT_WRITE = CPC_POWERCUT_WRITE,
	FAULT_FLUSH = CPC_POWERCUT_FLUSH,
	FAULT_DISCARD = CPC_POWERCUT_DISCARD,
	FAULT_ALLOC,
	NR_FAULT_KINDS
};

struct fault {
	enum fault_kind kind;
	uint64_t nth;
	bool sticky;
	int error; /* negative errno of the device; alloc: not used */
};

struct table {
	struct {
		char name[16]; /* "": does not exist */
		uint64_t size;
	} volume[SCRIPT_VOLUMES];
};

struct script {
	unsigned workload; /* index of script_workload() */
	uint64_t seed;
	struct fault fault;

	/* private */
	struct rig rig;
	struct rnd rnd;
	uint64_t clock;
	struct history history[SCRIPT_VOLUMES];
	struct cpc_volume *handle[SCRIPT_VOLUMES]; /* NULL: not open */
	struct table *table;			   /* states of the names, the newest last */
	size_t nr_tables, tables_floor;
	bool may_come_back; /* table[nr_tables]: a change that failed, and broke the pool */
	bool armed;	    /* the fault is, or has been */
	uint64_t calls;	    /* of the device, of the fault's kind, before it was armed */
	bool repair_again;  /* one was interrupted */
	bool alive;	    /* the pool answers, as far as known */
	uint8_t *buf;

	/* results */
	uint64_t fired, failed; /* calls that failed; operations that did */
	bool broke;		/* the pool became read-only */
};

/* NULL behind the last. */
const char *script_workload(unsigned i);
const char *fault_kind_name(enum fault_kind kind);

/* Runs and judges; the outcome is in `fired`, 0 when the workload has fewer calls than nth. */
void script_run(struct script *s);

#endif
