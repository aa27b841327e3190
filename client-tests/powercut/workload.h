/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * workload: operations on a few volumes of one pool, run once on a power-cut device. Either all are
 * drawn from a seed, or a sequence says which come one after the other on two volumes that hold
 * data, and only their details are drawn. At device writes, discards and flushes the device is
 * saved, with what was promised at that instant; explore.h cuts the power there.
 *
 * What the pool has not written yet holds poison, or what an older pool with the same uuid has
 * left there: nodes, records of the log, superblocks and data, all of which verify.
 *
 * Without threads the engine works in the caller's calls only, so that a seed gives the same device
 * writes each time, and an instant inside a call is one of its device writes.
 */
#ifndef CPC_POWERCUT_WORKLOAD_H
#define CPC_POWERCUT_WORKLOAD_H

#include "rig.h"
#include "tap.h"

#define MAX_OBJECTS 12u /* volumes ever made in one workload */
#define MAX_VOLUMES 4u	/* at a time */

/* One state of the table of volumes. */
struct names {
	struct {
		char name[16]; /* "": does not exist */
		uint64_t size;
	} object[MAX_OBJECTS];
};

/* What is drawn for a workload beside its operations. */
enum {
	FAULT_OPS = 3, /* operations that an injected fault waits for a device call */
};

/* How large, how aligned, and with what flags an operation on data is. */
struct shape {
	uint64_t len, align;
	unsigned flags;
};

#define MAX_SEQUENCE 3u

/* Operations by number, below nr_sequence_ops. */
struct sequence {
	unsigned nr;
	unsigned op[MAX_SEQUENCE];
};

extern const unsigned nr_sequence_ops;

/* The i-th of all sequences of nr operations. */
struct sequence sequence_numbered(unsigned nr, uint64_t i);
/* "write-part,trim,flush" and back. Return: false when the text is none. */
bool sequence_parse(const char *text, struct sequence *s);
void sequence_print(const struct sequence *s, char *text, size_t len);

/* An instant at which the power may go, and what must be there then. */
struct event {
	struct cpc_powercut_saved *saved;
	char what;		    /* 'w', 'd', 'f': before that call; 'e': at the end */
	size_t issued[MAX_OBJECTS]; /* operations, the one in flight included */
	size_t floor[MAX_OBJECTS];  /* operations that are durable by an answer */
	size_t names;		    /* the table is names[names] ... */
	bool changing;		    /* ... or the one after it */
};

struct workload {
	uint64_t seed;
	unsigned nr_ops;
	struct sequence sequence; /* instead of nr_ops random operations, unless it is empty */
	struct shape shape;	  /* of the data operation of a sequence; len 0: drawn */
	unsigned save_one_in;	  /* of the device calls */
	uint64_t only_event;	  /* save no other; UINT64_MAX: all */

	/* A third of the workloads meets device errors; these do not change the table of volumes.
	 */
	bool faulty;
	unsigned armed; /* operations until the fault is taken away */
	uint64_t nr_faults, nr_failed;
	bool ended; /* the pool has given up, or content cannot be known any more */

	struct rig rig;
	struct tap tap;
	struct rnd rnd;
	uint64_t clock;

	struct ref ref[MAX_OBJECTS]; /* by object: all operations, none forgotten */
	struct cpc_volume *handle[MAX_OBJECTS];
	size_t floor[MAX_OBJECTS];
	unsigned nr_objects;
	struct names *names;
	size_t nr_names, cap_names;
	bool changing;

	struct event *event; /* those saved: saved is NULL for others */
	size_t nr_events, cap_events;
	uint8_t *buf;
};

/* Draws the pool from the seed and runs; `w` has seed, nr_ops or sequence, save_one_in and
 * only_event. */
void workload_run(struct workload *w);
void workload_free(struct workload *w);
/* Drops what was saved for an event. */
void event_free(struct event *e);

#endif
