/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * log: the durable form of what volumes changed since the last commit. One ring of records in two
 * copies, one in each half of the device.
 *
 * Called by core/volume: every cut appends its entries when its data is written, a flush makes
 * what was appended durable, a commit says how much of it the trees contain. Called at open by
 * core/pool (replay). Calls core/transaction (store), backing, format.
 *
 *   builder: entries  ->  append: sequence number and place  ->  both copies written  ->  complete
 *                                                                                          |
 *   durable mark  <-  device flush (joined by all who wait)  <-  flush(seq)  <-------------+
 *
 * Terms
 *   seq        number of a record, 1, 2, 3, ... within one open of the pool
 *   position   byte position in the ring, counted without wrapping; position % size is the place
 *   batch      the records of one cut or one change of names, consecutive, the last says so
 *   completed  every record up to here has been written, and so has all data that it names
 *   durable    every record up to here, and its data, had completed before a good flush began
 *   tail       up to here the newest durable superblock's trees contain the log
 *
 * Invariants
 *  1. A batch is appended only when all its data has been written (so `completed` needs no look at
 *     data), or when the caller completes it only after both are.
 *  2. Nothing between tail and head is overwritten (cpc_log_append asserts); room for a batch has
 * been reserved before its first change was answered, so a flush always has room.
 *  3. `durable` grows only from what had completed before the good flush was asked for.
 *  4. A record's copies are two device writes; both must succeed.
 *  5. While a freeze stands no batch is appended, and none is between append and complete.
 *
 * Locks: log->lock, CPC_RANK_LOG, never held during I/O.
 * Errors: a record that cannot be written, after one more try, breaks the log for ever: every later
 * append and flush is -EIO (the pool turns read-only). Memory is taken before the append.
 * Durable: cpc_log_flush(seq) == 0: everything up to seq.
 */
#ifndef CPC_LOG_LOG_H
#define CPC_LOG_LOG_H

#include <stdatomic.h>
#include "backing/ioq.h"
#include "extent-map/run.h"
#include "lib/lock.h"
#include "transaction/store.h"

/* Bytes of the ring; constant, unlike store->super, which a commit replaces. */
static inline uint64_t cpc_log_ring_bytes(const struct cpc_store *store)
{
	return store->geo.log_blocks << CPC_BLOCK_SHIFT;
}

/* Device address of a position in copy 0 or 1 of the ring. */
static inline uint64_t cpc_log_bytenr(const struct cpc_store *store, unsigned copy,
				      uint64_t position)
{
	return (store->geo.log[copy] << CPC_BLOCK_SHIFT) + position % cpc_log_ring_bytes(store);
}

/* Batches in flight at once; more wait. */
#define CPC_LOG_MAX_OPEN 64u

struct cpc_log {
	struct cpc_store *store;
	uint64_t size;	     /* of the ring */
	uint32_t max_record; /* bytes; longer batches are several records */

	struct cpc_mutex lock;
	struct cpc_cond cond; /* completed, freezing or in_flight changed */
	/* under lock */
	uint64_t head; /* position of the next record */
	uint64_t next_seq;
	bool freezing;
	/* batches between append and complete, unordered */
	struct cpc_log_open {
		uint64_t first_seq;
	} open[CPC_LOG_MAX_OPEN];
	unsigned nr_open;
	uint64_t marked; /* the highest durable that a completed record or a superblock carries */
	uint64_t last_change; /* seq of the newest record that is not a mark */
	uint64_t append_ns;   /* time of the newest append */

	_Atomic uint64_t tail;		     /* position */
	_Atomic uint64_t held;		     /* ... not given away by a scrub; UINT64_MAX: none */
	_Atomic uint64_t reserved;	     /* bytes promised, not yet appended */
	_Atomic uint64_t completed, durable; /* seqs */
	_Atomic uint64_t head_copy;	     /* of head, for readers without the lock */
	_Atomic bool broken;

	/* counters */
	_Atomic uint64_t records, entries, bytes, marks, flushes_joined;
};

/* Starts an empty log behind what the newest superblock contains. */
int cpc_log_create(struct cpc_store *store, struct cpc_log **out);
void cpc_log_destroy(struct cpc_log *log);

/* --- building a batch --- */

struct cpc_log_batch {
	struct cpc_log *log;
	uint8_t *buf; /* records one after the other, block-aligned */
	size_t len, cap;
	bool open;	     /* a record is */
	size_t record;	     /* where it starts */
	uint32_t nr_entries; /* in the open record */
	uint64_t total_entries;
	int error; /* first; sticky */
	/* after append */
	uint64_t first_seq, last_seq;
	uint64_t end_position; /* of the log behind it */
	uint64_t durable;      /* that its records carry */
	struct cpc_log_piece {
		uint64_t position;
		size_t start, len;
	} * piece;
	unsigned nr_pieces, cap_pieces;
	struct cpc_log_write *write; /* two a piece, made by batch_end */
};

/* One device write of a record's copy. */
struct cpc_log_write {
	struct cpc_io io;
	struct iovec iov;
	int *result;
};

void cpc_log_batch_init(struct cpc_log_batch *b, struct cpc_log *log);
void cpc_log_batch_destroy(struct cpc_log_batch *b);
/* Adds a run's entries; later ones win over earlier ones. */
void cpc_log_batch_run(struct cpc_log_batch *b, uint64_t volume, const struct cpc_run *run);
/* Changes of names; value as in the root tree for CREATE, the name for RENAME. */
void cpc_log_batch_name(struct cpc_log_batch *b, enum cpc_log_entry_type type, uint64_t volume,
			uint64_t size, const void *payload, uint32_t len);
/* A record without entries, that only carries `durable`. Ends the batch. */
int cpc_log_batch_mark(struct cpc_log_batch *b);
/* Return: 0 or the first error. The batch is complete, its records' lengths are known. */
int cpc_log_batch_end(struct cpc_log_batch *b);

/* What a run may need in the ring at most, headers and padding not counted. */
uint64_t cpc_log_run_bytes(const struct cpc_run *run);
#define CPC_LOG_BLOCK_BYTES 40u	  /* of one dirty block */
#define CPC_LOG_BATCH_BYTES 8192u /* of a batch itself */

/* --- writing --- */

/* Takes over the numbers and places of `from`, to be written in its place. -EUCLEAN: they do not
 * have the same shape. */
int cpc_log_batch_renumber(struct cpc_log_batch *b, const struct cpc_log_batch *from);
/* Gives the batch its sequence numbers and places. Waits while a freeze stands. */
int cpc_log_append(struct cpc_log *log, struct cpc_log_batch *b);
/* Queues the writes of both copies; *result takes the first error. The caller waits on the queue.
 */
void cpc_log_submit(struct cpc_log *log, struct cpc_log_batch *b, struct cpc_ioq *ioq, int *result);
/* Writes both copies of all records and waits. */
int cpc_log_write(struct cpc_log *log, struct cpc_log_batch *b);
/* The batch and its data have been written (result 0), or the log is broken. */
void cpc_log_complete(struct cpc_log *log, struct cpc_log_batch *b, int result);
/* All three for a batch whose data is there. */
int cpc_log_add(struct cpc_log *log, struct cpc_log_batch *b);

/* Makes everything up to seq durable: waits until it has completed, then leads or joins a device
 * flush; returns at once when it is durable already. */
int cpc_log_flush(struct cpc_log *log, uint64_t seq);
static inline uint64_t cpc_log_durable(struct cpc_log *log)
{
	return atomic_load(&log->durable);
}

/* --- room --- */
/* Promises ring bytes; -ENOSPC: not now, a commit makes room. */
int cpc_log_reserve(struct cpc_log *log, uint64_t bytes);
void cpc_log_unreserve(struct cpc_log *log, uint64_t bytes);
/* True when half of the ring is in use: time for a commit. */
bool cpc_log_wants_commit(struct cpc_log *log);

/* --- commit --- */
/* Waits until no batch is in flight and keeps new ones out. */
void cpc_log_freeze(struct cpc_log *log, uint64_t *seq, uint64_t *position);
void cpc_log_thaw(struct cpc_log *log);
/* A superblock that contains everything up to (seq, position) is durable. */
void cpc_log_committed(struct cpc_log *log, uint64_t seq, uint64_t position);

/* --- marks --- */
/* Writes the durable mark in a record of its own if it is on the device nowhere yet and the log has
 * been quiet for 10 ms. *wait_ns: when to ask again, UINT64_MAX: not before the next append. */
void cpc_log_mark(struct cpc_log *log, uint64_t *wait_ns);

/* --- scrub (scrub.c) --- */

/* A copy of a completed record that does not verify. */
struct cpc_log_bad_copy {
	uint64_t seq, bytenr;
	unsigned copy;
	const void *good; /* what must stand there; NULL: nobody knows */
	uint32_t len;
};

struct cpc_log_scrub {
	/* While it runs the record is neither written by others nor written over. */
	void (*damage)(void *ctx, const struct cpc_log_bad_copy *bad);
	void *ctx;
	uint64_t records; /* out: looked at */
	/* private: the next record */
	uint64_t seq, position;
};
/* Looks at a batch of the records that the trees do not contain. Return: 1: there are more; 0;
 * -ENOMEM. */
int cpc_log_scrub(struct cpc_log *log, struct cpc_log_scrub *at);

struct cpc_log_stats {
	uint64_t size, used;
	uint64_t records, entries, bytes, marks, flushes_joined;
	uint64_t last_seq, durable_seq;
};
void cpc_log_get_stats(struct cpc_log *log, struct cpc_log_stats *stats);

/* --- replay --- */

struct cpc_log_handler {
	/* In the order of the log; `run` is borrowed. */
	int (*run)(void *ctx, uint64_t volume, struct cpc_run *run);
	int (*name)(void *ctx, enum cpc_log_entry_type type, uint64_t volume, uint64_t size,
		    const void *payload, uint32_t len);
	/* After the last entry of a batch: its last seq, and the position behind it. */
	int (*batch)(void *ctx, uint64_t seq, uint64_t position);
	void *ctx;
};

/* A valid record of the ring. */
struct cpc_log_found {
	uint64_t seq, position, durable;
	uint32_t length, flags, entries;
	bool bad[2]; /* copies */
};

/* Blocks of the pool that have been copied. */
struct cpc_log_move {
	uint64_t from, to, nr;
};

/* Data above the durable mark that the device does not give out: of the oldest such cut. */
struct cpc_log_unreadable {
	uint64_t volume, block, bytenr; /* bytenr 0: there is none */
	uint64_t seq, position;		/* of the first record of the cut that names it */
	uint64_t records;		/* of that cut and behind it */
};

struct cpc_log_replay {
	struct cpc_store *store;
	struct cpc_log_found *found; /* accepted records, gapless */
	size_t nr, cap;
	struct cpc_log_move *move; /* by from */
	size_t nr_moves, cap_moves;
	uint64_t durable;      /* seq */
	uint64_t end_position; /* behind the last accepted record */
	uint64_t entries;      /* of the chain */
	uint8_t *buf;	       /* one record */
	uint32_t max_record;
	struct cpc_blockset verified; /* data above `durable` that is still mapped */
	struct cpc_log_unreadable unreadable;
};

/*
 * Reads the ring behind the newest superblock and decides how much of it holds. Writes nothing.
 * Return: 0 (also when there is nothing); -EUCLEAN with *why: something that had been durable is
 * gone, or a newer superblock is; -ENOMEM; -EIO: what decides it cannot be read, several times
 * over; when that is data, replay->unreadable says which, also after this error.
 */
int cpc_log_scan(struct cpc_store *store, struct cpc_log_replay *replay, const char **why);
/* Marks every block that accepted records name busy, before anything is allocated. -EUCLEAN when
 * one is in use already: no pool of ours writes such a log. */
int cpc_log_claim(struct cpc_log_replay *replay);
/* Copies the data that accepted records above the durable mark name, and that is still mapped, to
 * new places; replay_run then gives runs that name those. After the commit `move[].from` are free.
 * in_place: the pool has no room for that, and the data is written again where it is. */
int cpc_log_move_data(struct cpc_log_replay *r, bool in_place);
/* Calls the handler for what was accepted. */
int cpc_log_replay_run(struct cpc_log_replay *replay, const struct cpc_log_handler *handler);
void cpc_log_replay_destroy(struct cpc_log_replay *replay);

#endif
