/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * flush-epoch: the one object of a pool through which every write completes and every device
 * flush goes. It knows what has been written since the last good flush, lets callers join one
 * flush, and makes a failed flush good: after one, the kernel or the device may have dropped any
 * of these writes and then answer the next flush with success. Called by every module that writes
 * and by ioq.h; calls backing.h.
 *
 * Terms: an *epoch* is the number of a device flush; a write belongs to the first flush that begins
 * after its completion. A write is *covered* when that flush, or a later one, was good. A *record*
 * is what we remember of a tracked write until it is covered: place, and crc32c of each block. A
 * record is *suspect* when a flush has failed since the write began. *Repair* reads each suspect
 * block back from the device, verifies it, and writes the same bytes again.
 *
 * Invariants:
 *  1. One device flush is in flight at most (lead_flush() asserts).
 *  2. A flush covers only writes that had completed before it began, and no suspect one that has
 *     not been repaired (begin_flush()).
 *  3. A caller gets the result of a flush that began after its call, the same as all who joined.
 *  4. Of records for the same block the one begun last counts. A write that failed, and a discard,
 *     void the earlier records: nobody relies on such a block until it is written again.
 *  5. No write starts in a range that repair is working on (cpc_fe_write_begin() waits; repair
 *     itself waits for nobody, so a thread may begin a write while it has others in flight).
 *  6. Once broken, no flush succeeds. Once stopped, no write or discard reaches the device either.
 *
 * Locks: fe->lock, CPC_RANK_FLUSH_EPOCH, never held during device I/O. Functions take it
 * themselves; all are safe from any thread. on_broken() is called once, with no lock of ours
 * held, in the thread that led the flush, after those who joined it have their results; that thread
 * may hold locks of its own, so it sets a flag and returns.
 *
 * Ownership: init/destroy by the pool. struct cpc_fe_write lives in the caller's memory from begin
 * to complete, untouched by the caller between them.
 *
 * Errors: a failed device flush is reported to all who joined it, and the next one repairs first.
 * A block that cannot be read back or does not verify, or CPC_FE_MAX_FAILURES flushes failed in a
 * row, make the object broken. Tracking itself never fails a write: without memory for a record
 * the write goes on, and a flush that fails before it is covered makes the object broken.
 *
 * Durable: when cpc_flush_epoch_flush() returns 0, everything completed before the call.
 */
#ifndef CPC_BACKING_FLUSH_EPOCH_H
#define CPC_BACKING_FLUSH_EPOCH_H

#include "backing/backing.h"

#define CPC_FE_MAX_FAILURES	3
#define CPC_FE_DEFAULT_PRESSURE (1ull << 30)

enum cpc_flush_cause {
	CPC_FLUSH_LOG,
	CPC_FLUSH_COMMIT,
	CPC_FLUSH_PRESSURE,
	CPC_FLUSH_OPEN,
	CPC_FLUSH_REPAIR, /* also any flush that had to repair first */
	CPC_NR_FLUSH_CAUSES
};

struct cpc_flush_epoch_stats {
	uint64_t flushes[CPC_NR_FLUSH_CAUSES]; /* device flushes, by the cause of their leader */
	uint64_t joined;		       /* callers served by somebody else's flush */
	uint64_t failures;		       /* device flushes and repairs that failed */
	uint64_t repaired_blocks;	       /* written again after a failure */
	uint64_t unflushed_bytes;	       /* tracked, not yet covered */
};

struct cpc_fe_record;

/* A write between begin and complete. Private to flush-epoch.c. */
struct cpc_fe_write {
	struct cpc_list node; /* in fe->in_flight; under fe->lock */
	uint64_t bytenr, len;
	uint64_t stamp;		      /* fe->failures when it began */
	struct cpc_fe_record *record; /* NULL: untracked, or no memory */
	bool tracked;
};

struct cpc_flush_epoch {
	struct cpc_backing *backing;  /* immutable */
	void (*on_broken)(void *ctx); /* immutable; may be NULL */
	void *ctx;		      /* immutable */
	uint64_t pressure_bytes;      /* immutable after init; set it before the first write */

	struct cpc_mutex lock;
	/* under lock */
	struct cpc_list in_flight;			/* cpc_fe_write */
	struct cpc_list completed;			/* cpc_fe_record, for the next flush */
	struct cpc_list flushing;			/* cpc_fe_record, of the flush in flight */
	struct cpc_list waiters;			/* callers of the next flush */
	uint64_t nr_completed, nr_flushing, nr_suspect; /* records; suspect ones are completed */
	uint64_t write_seq;				/* of the newest write begun */
	uint64_t untracked_epoch; /* newest epoch with a write that had no memory for a record */
	bool has_leader;	  /* a thread flushes, repairs, or has been told to */
	bool device_flush;	  /* the device call is running */
	bool lost;		  /* what cannot be repaired has to be: the next flush breaks */
	unsigned failures_in_row;
	uint64_t repair_bytenr, repair_len; /* range closed to writers; len 0: none */
	struct cpc_cond repair_cond;	    /* the range above was opened */
	struct cpc_flush_epoch_stats stats;

	/* written under lock, read without */
	_Atomic uint64_t started;	  /* number of the newest flush begun */
	_Atomic uint64_t good;		  /* number of the newest good flush */
	_Atomic uint64_t failures;	  /* flushes failed so far */
	_Atomic uint64_t unflushed_bytes; /* of all records */
	_Atomic bool broken, stopped;
};

void cpc_flush_epoch_init(struct cpc_flush_epoch *fe, struct cpc_backing *b,
			  void (*on_broken)(void *ctx), void *ctx);

/* No write is in flight and no flush runs. Forgets what is not covered. */
void cpc_flush_epoch_destroy(struct cpc_flush_epoch *fe);

/*
 * Registers a write about to be submitted. `tracked` writes are made good after a failed flush;
 * a superblock is not tracked, its writer compares cpc_flush_epoch_failures() instead. The block
 * checksums come from `csums` (one crc32c per 4096 bytes with seed 0, copied) or, if that is NULL,
 * are computed from `iov`, whose content must not change until the write has completed.
 * Context: may wait for a repair of an overlapping range (one read and one write).
 */
void cpc_fe_write_begin(struct cpc_flush_epoch *fe, struct cpc_fe_write *w, uint64_t bytenr,
			const struct iovec *iov, unsigned nr_iov, const uint32_t *csums,
			bool tracked);

/* Ends it with its result, 0 or negative errno. Return: the epoch the write belongs to. */
uint64_t cpc_fe_write_complete(struct cpc_flush_epoch *fe, struct cpc_fe_write *w, int result);

/* Begin, write and complete in one call; CPC_CAUSE_SUPER is not tracked. `csums` as above. */
int cpc_fe_write(struct cpc_flush_epoch *fe, uint64_t bytenr, const void *buf, size_t len,
		 enum cpc_cause cause, const uint32_t *csums);
int cpc_fe_writev(struct cpc_flush_epoch *fe, uint64_t bytenr, const struct iovec *iov,
		  unsigned nr_iov, enum cpc_cause cause, const uint32_t *csums);
/* Discards, and forgets what was written there. */
int cpc_fe_discard(struct cpc_flush_epoch *fe, uint64_t bytenr, uint64_t len);

/*
 * Makes everything completed before the call durable: leads a device flush, or joins the next one.
 * Context: blocks for at most the flush in flight and one more, and a repair.
 * Return: 0; -EIO when broken; the device's errno.
 */
int cpc_flush_epoch_flush(struct cpc_flush_epoch *fe, enum cpc_flush_cause cause);

/* Flushes failed so far: unchanged over an interval means that none failed in it. */
static inline uint64_t cpc_flush_epoch_failures(struct cpc_flush_epoch *fe)
{
	return atomic_load(&fe->failures);
}

/* The number of the last good flush: every write of an epoch up to it is durable. */
static inline uint64_t cpc_flush_epoch_seq(struct cpc_flush_epoch *fe)
{
	return atomic_load(&fe->good);
}

/* True when a write of that epoch has been covered by a good flush. */
static inline bool cpc_flush_epoch_covered(struct cpc_flush_epoch *fe, uint64_t epoch)
{
	return cpc_flush_epoch_seq(fe) >= epoch;
}

/* True when a background thread should flush with CPC_FLUSH_PRESSURE, so that the next flush that
 * somebody waits for finds little to drain: at a sixteenth of the pressure. */
static inline bool cpc_flush_epoch_wants_drain(struct cpc_flush_epoch *fe)
{
	return atomic_load_explicit(&fe->unflushed_bytes, memory_order_relaxed) >
	       fe->pressure_bytes / 16;
}

/* True when the caller should flush with CPC_FLUSH_PRESSURE before it writes more. */
static inline bool cpc_flush_epoch_pressure(struct cpc_flush_epoch *fe)
{
	return atomic_load_explicit(&fe->unflushed_bytes, memory_order_relaxed) >
	       fe->pressure_bytes;
}

/* From now on every write, discard and flush is -EIO; what is in flight may still land. */
void cpc_flush_epoch_stop(struct cpc_flush_epoch *fe);

static inline bool cpc_flush_epoch_stopped(struct cpc_flush_epoch *fe)
{
	return atomic_load_explicit(&fe->stopped, memory_order_acquire);
}

static inline bool cpc_flush_epoch_broken(struct cpc_flush_epoch *fe)
{
	return atomic_load(&fe->broken);
}

void cpc_flush_epoch_get_stats(struct cpc_flush_epoch *fe, struct cpc_flush_epoch_stats *stats);

#endif
