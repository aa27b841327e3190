/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * worker: what the files of one worker share: its volumes, its connections, and their requests.
 * One thread a worker; nothing here is shared with another.
 */
#ifndef STRESS_WORKER_H
#define STRESS_WORKER_H

#include <ev.h>
#include <sys/queue.h>

#include "../programs/client.h"
#include "history.h"
#include "stress.h"

#define BLOCK 4096u

struct worker;
struct connection;

/* A request in flight, or one of a connection that vanished. */
struct op {
	struct flight flight;
	struct connection *connection;
	struct volume *volume;
	enum count kind;
	uint64_t start, len;
	struct change *change; /* write, trim, zero; or of a read: what it settles */
	unsigned char *buf;
	TAILQ_ENTRY(op) link; /* the connection's, the ghost's, or the volume's list */
};
TAILQ_HEAD(op_list, op);

struct volume {
	struct worker *worker;
	struct history *history;
	char uri[512];
	char name[64];
	struct op_list unsettled; /* changes of vanished clients that the server is done with */
	struct op_list haunted;	  /* those that it may still do */
	uint64_t haunted_bytes;
};

struct connection {
	struct worker *worker;
	struct volume *volume;
	struct nbd_handle *nbd; /* NULL: waiting for the timer */
	ev_io io;
	ev_timer retry;
	struct op_list ops;
	unsigned nr_ops;
	bool touched, connected, leaving, goodbye; /* leaving: no new requests; goodbye: said */
	double since;				   /* when it first tried to connect */
	TAILQ_ENTRY(connection) link;		   /* worker->touched */
};

/* What is left of a connection that closed its sending half. */
struct ghost {
	ev_io io;
	struct worker *worker;
	struct volume *volume;
	struct op_list ops;
	TAILQ_ENTRY(ghost) link;
};

struct worker {
	const struct options *options;
	struct shared *shared;
	struct worker_state *state;
	struct ev_loop *loop;
	ev_prepare prepare;
	ev_timer poll;
	struct rng rng;
	struct volume *volumes;
	unsigned nr_volumes;
	struct connection *connections;
	unsigned nr_connections;
	TAILQ_HEAD(, connection) touched;
	TAILQ_HEAD(, ghost) ghosts;
};

/* --- worker.c --- */

void worker_count(struct worker *worker, enum count what, uint64_t n);
/* Whether the server is being killed, or a life is not judged yet: connections may be lost. */
bool worker_ending(const struct worker *worker);
/* Has the connection pumped before the loop sleeps. */
void worker_touch(struct connection *connection);

/* --- request.c --- */

/* Draws a request and sends it; a read of what a vanished client has left comes first.
 * Context: not in a callback of this connection. */
void request_issue(struct connection *connection);
/* Takes an op out of its connection; its flight is over. */
void request_remove(struct op *op);
void request_free(struct op *op);
/* Write, trim or zero. */
bool request_changes(enum count kind);

#endif
