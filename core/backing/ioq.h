/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * ioq: a queue of asynchronous reads and writes that one thread drives at a time, its own io_uring
 * with the file backing. Where io_uring is not allowed, and with other backings, an operation runs
 * in cpc_ioq_submit(). Called by writeback, commit and large reads; calls backing.h and
 * flush-epoch.h.
 *
 * Terms: *queued* = handed over, not yet seen by the kernel; *in flight* = queued or in the kernel;
 * *reap* = take completions and call done().
 *
 * Invariants:
 *  1. A queue is used by one thread at a time. Queues move between threads through the pool of
 *     cpc_ioq_get/put, and also with reads in flight when the owner hands one over under a lock,
 *     nothing of it queued. Such a read is reaped once the thread that passed it to the kernel has
 *     left the kernel or sleeps interruptibly: it may wait for that thread's device flush.
 *  2. done() runs exactly once for each submitted io, in the thread that drives the queue, from
 *     within submit, flush_submissions, reap, wait or put, in any order. It may free the io. It
 *     does not call the queue (asserted) and does not block for another io of this queue.
 *  3. No more than `depth` are in flight, so completions never overflow.
 *  4. A write completes in its flush epoch before done() is called; a device flush that begins
 *     while it is in flight or unreaped does not cover it.
 *
 * Locks: none. Ownership: the io, its iov array and its buffers belong to the queue from submit to
 * done(). `csums` is read only during submit. Errors: in io->result. Durable: nothing.
 *
 * A queue must not be carried over fork().
 */
#ifndef CPC_BACKING_IOQ_H
#define CPC_BACKING_IOQ_H

#include "backing/backing.h"
#include "backing/flush-epoch.h"

#define CPC_IOQ_DEFAULT_DEPTH 64

enum cpc_io_op { CPC_IO_READ, CPC_IO_WRITE };

struct cpc_io {
	/* set by the caller; unused fields are zero */
	enum cpc_io_op op;
	enum cpc_cause cause; /* writes */
	uint64_t bytenr;
	struct iovec *iov; /* 1 to CPC_BACKING_MAX_IOV segments, aligned as backing.h says */
	unsigned nr_iov;
	struct cpc_flush_epoch *fe; /* writes; NULL: a raw write */
	const uint32_t *csums;	    /* writes with fe; NULL: computed */
	void (*done)(struct cpc_io *io);
	void *priv;
	/* valid in done() */
	int result;	/* 0 or negative errno */
	uint64_t epoch; /* writes with fe: see cpc_fe_write_complete() */
	/* private to ioq.c */
	size_t len;
	struct cpc_fe_write fe_write;
	struct cpc_list node;
};

struct cpc_ioq;

/* Opens a queue for up to `depth` (1 to 4096) in flight. Return: 0 or negative errno. */
int cpc_ioq_open(struct cpc_backing *b, unsigned depth, struct cpc_ioq **q);

/* Waits for all, then frees the queue. */
void cpc_ioq_close(struct cpc_ioq *q);

/* Takes an idle queue of the default depth or opens one. NULL: no memory. */
struct cpc_ioq *cpc_ioq_get(struct cpc_backing *b);

/* Waits for all and gives the queue back; a few are kept idle until the backing is closed. */
void cpc_ioq_put(struct cpc_backing *b, struct cpc_ioq *q);

/* Closes the idle queues: before a fork, which none may be carried over. */
void cpc_ioq_close_idle(struct cpc_backing *b);

/* Starts an operation. Context: reaps until there is room when `depth` are in flight. */
void cpc_ioq_submit(struct cpc_ioq *q, struct cpc_io *io);

/* Passes queued operations to the kernel now; reap and wait do it too. */
void cpc_ioq_flush_submissions(struct cpc_ioq *q);

/* Reaps what has completed, and waits until at least `min` (or all in flight) have. */
unsigned cpc_ioq_reap(struct cpc_ioq *q, unsigned min);

/* Reaps until none is in flight. */
void cpc_ioq_wait(struct cpc_ioq *q);

unsigned cpc_ioq_in_flight(const struct cpc_ioq *q);

/* True when operations run in submit. */
bool cpc_ioq_is_sync(const struct cpc_ioq *q);

#endif
