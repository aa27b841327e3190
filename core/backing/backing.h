/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * backing: the block device or file that holds a pool, behind one small function table. Called by
 * flush-epoch.h and ioq.h, which is where all of the engine's writes and flushes go, and by every
 * module that reads. Calls the kernel (file.c) or plain memory (memory.c, the power-cut device).
 *
 * Terms: `bytenr` and `len` are bytes, both multiples of 4096; a *cause* says what a write is for
 * and feeds the counters backing.bytes_written_*.
 *
 * Invariants:
 *  1. bytenr, len, and every buffer address and length are multiples of 4096, len is not 0
 *     (check_range() and cpc_ioq_submit() assert).
 *  2. `size` does not change while the backing is open, is a multiple of 4096, and no call reaches
 *     beyond it: such a range is -EIO, as is a read that a truncated file cannot fill.
 *  3. An operation does all of its range or returns an error (short transfers and EINTR are
 *     continued inside). After a failed write the range holds old bytes, new bytes or a mix.
 *
 * Locks: none held across a call. `ioq_lock` (CPC_RANK_BACKING) protects idle_ioqs. All functions
 * except close may be called from any number of threads at once.
 *
 * Ownership: open gives one reference, cpc_backing_close() takes it; all queues have been put
 * back by then. Buffers belong to the caller and are not kept after a call returns.
 *
 * Errors: negative errno of the device, counted in `errors`. -EROFS for a write or a discard on a
 * backing opened read-only. A discard that the device does not know succeeds and does nothing.
 *
 * Durable: nothing but what had completed before a flush that returned 0 began. After a failed
 * flush nothing is known about anything written since the last good one: see flush-epoch.h.
 */
#ifndef CPC_BACKING_BACKING_H
#define CPC_BACKING_BACKING_H

#include <stdatomic.h>
#include <sys/uio.h>

#include "lib/list.h"
#include "lib/lock.h"

/* Most segments in one vectored call. */
#define CPC_BACKING_MAX_IOV 256u

enum cpc_cause {
	CPC_CAUSE_DATA,
	CPC_CAUSE_METADATA,
	CPC_CAUSE_LOG,
	CPC_CAUSE_SUPER,
	CPC_CAUSE_REPAIR, /* the same bytes in the same place once more */
	CPC_NR_CAUSES
};

enum cpc_direct { CPC_DIRECT_AUTO, CPC_DIRECT_ON, CPC_DIRECT_OFF };

/* Flags of cpc_backing_open_file. */
#define CPC_BACKING_READONLY (1u << 0)
/* A discard on a regular file punches a hole; without it the file keeps its blocks. */
#define CPC_BACKING_SPARSE (1u << 1)

/* The counters named backing.* in `coppice stats`; a failed call counts in `errors` as well. */
struct cpc_backing_stats {
	uint64_t reads, writes, flushes, discards;
	uint64_t bytes_read, bytes_written;
	uint64_t bytes_written_by[CPC_NR_CAUSES];
	uint64_t errors;
};

struct cpc_backing_counters {
	_Atomic uint64_t reads, writes, flushes, discards;
	_Atomic uint64_t bytes_read;
	_Atomic uint64_t bytes_written_by[CPC_NR_CAUSES];
	_Atomic uint64_t errors;
};

struct cpc_backing;

/* What a kind of backing implements. Arguments have been checked by the callers in backing.c. */
struct cpc_backing_ops {
	const char *name;
	/* At most CPC_BACKING_MAX_IOV segments; the whole vector or an error. */
	int (*readv)(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov, unsigned nr);
	int (*writev)(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov, unsigned nr,
		      enum cpc_cause cause);
	int (*flush)(struct cpc_backing *b);
	int (*discard)(struct cpc_backing *b, uint64_t bytenr, uint64_t len);
	/* The size that the device has now, which may differ from `size`. */
	int (*current_size)(struct cpc_backing *b, uint64_t *size);
	void (*close)(struct cpc_backing *b); /* frees b */
};

struct cpc_backing {
	const struct cpc_backing_ops *ops; /* immutable */
	uint64_t size;			   /* immutable */
	int fd;				   /* immutable; for io_uring, -1 if there is none */
	bool read_only;			   /* immutable */
	bool direct;			   /* immutable; O_DIRECT is on */
	struct cpc_backing_counters counters;
	struct cpc_mutex ioq_lock;
	struct cpc_list idle_ioqs; /* under ioq_lock */
	unsigned nr_idle_ioqs;	   /* under ioq_lock */
};

/*
 * Opens a block device or a regular file and takes its ownership: exclusive, or shared with
 * CPC_BACKING_READONLY. The lock belongs to the open file, so it survives the fork of a daemon
 * and goes with the last process that has it open, however that dies.
 * Return: 0; -EBUSY when somebody else owns it; another errno. `err` then holds one line for the
 * user, with the holder's pid where it can be found. size < 4096 is -EINVAL.
 */
int cpc_backing_open_file(const char *path, unsigned flags, enum cpc_direct direct,
			  struct cpc_backing **b, char *err, size_t errlen);

/*
 * Creates a regular file of `size` bytes, a multiple of 4096, allocated in full unless `sparse`.
 * Return: 0, or errno with a line in `err` and no file left; -EEXIST leaves the existing one alone.
 * Durable: the file and its name.
 */
int cpc_backing_create_file(const char *path, uint64_t size, bool sparse, char *err, size_t errlen);

/* For implementations: sets up the common part. `fd` -1 if io_uring cannot be used. */
void cpc_backing_init(struct cpc_backing *b, const struct cpc_backing_ops *ops, uint64_t size,
		      int fd, bool read_only);

/* NULL is allowed. Does not flush. */
void cpc_backing_close(struct cpc_backing *b);

static inline uint64_t cpc_backing_size(const struct cpc_backing *b)
{
	return b->size;
}

/* Asks the device again, for a check that it has not shrunk. Rounded down to 4096. */
int cpc_backing_current_size(struct cpc_backing *b, uint64_t *size);

int cpc_backing_read(struct cpc_backing *b, uint64_t bytenr, void *buf, size_t len);
int cpc_backing_readv(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov, unsigned nr);

/*
 * Raw writes, discard and flush, which no failed flush is made good for: for formatting tools and
 * for flush-epoch.c. The engine uses cpc_fe_write(), cpc_fe_discard(), cpc_flush_epoch_flush().
 */
int cpc_backing_write(struct cpc_backing *b, uint64_t bytenr, const void *buf, size_t len,
		      enum cpc_cause cause);
int cpc_backing_writev(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov, unsigned nr,
		       enum cpc_cause cause);
int cpc_backing_discard(struct cpc_backing *b, uint64_t bytenr, uint64_t len);
int cpc_backing_flush(struct cpc_backing *b);

void cpc_backing_get_stats(struct cpc_backing *b, struct cpc_backing_stats *stats);

#endif
