/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One io_uring per queue. Submissions are batched: the kernel is entered when BATCH operations are
 * queued, when the caller asks, and before waiting. What the kernel does not finish (a short
 * transfer, EINTR, EAGAIN, a submitter that has ended) is finished with the synchronous call of the
 * backing, which loops.
 *
 * If the kernel refuses the ring (ENOSYS, EPERM under a seccomp filter, ENOMEM for locked memory)
 * the queue is synchronous from the start. If a submission fails later, for a reason that waiting
 * does not cure, what is in the kernel is reaped, the ring is given up, and the queue goes on
 * synchronously: no operation is lost or run twice.
 *
 * One ring for all threads was rejected: its two locks are what io_uring exists to avoid, and
 * completions would run in somebody else's thread.
 */
#include "backing/ioq.h"

#include <liburing.h>

#include "backing/backing-internal.h"
#include "lib/hooks.h"
#include "lib/log.h"

#define BATCH	 32
#define MAX_IDLE 8

struct cpc_ioq {
	struct cpc_backing *backing;
	struct io_uring ring;
	bool have_ring;
	bool in_done;
	unsigned depth;
	unsigned nr_queued;	/* on the queued list: in the ring, unknown to the kernel */
	unsigned nr_kernel;	/* the kernel has these */
	struct cpc_list queued; /* cpc_io */
	struct cpc_list node;	/* in the backing's idle_ioqs */
};

/* ---- completion ---- */

static void finish(struct cpc_ioq *q, struct cpc_io *io, int result)
{
	if (io->op == CPC_IO_READ)
		cpc_backing_count_read(q->backing, io->len, result);
	else
		cpc_backing_count_write(q->backing, io->len, io->cause, result);
	if (io->op == CPC_IO_WRITE && io->fe)
		io->epoch = cpc_fe_write_complete(io->fe, &io->fe_write, result);
	io->result = result;
	q->in_done = true;
	io->done(io);
	q->in_done = false;
}

/* Does what is left after the first `skip` bytes. */
static int transfer_rest(struct cpc_ioq *q, struct cpc_io *io, size_t skip)
{
	struct cpc_backing *b = q->backing;
	struct iovec iov[CPC_BACKING_MAX_IOV];
	unsigned nr = cpc_iov_tail(iov, io->iov, io->nr_iov, skip);

	if (io->op == CPC_IO_READ)
		return b->ops->readv(b, io->bytenr + skip, iov, nr);
	return b->ops->writev(b, io->bytenr + skip, iov, nr, io->cause);
}

/* `res` is what the kernel says: a byte count or a negative errno. */
static void complete(struct cpc_ioq *q, struct cpc_io *io, int res)
{
	/* the last two: the thread that submitted it has ended; a true one comes again */
	if (res == -EINTR || res == -EAGAIN || res == -ECANCELED || res == -EFAULT)
		res = 0;
	if (res < 0)
		finish(q, io, res);
	else if ((size_t)res == io->len)
		finish(q, io, 0);
	else
		finish(q, io, transfer_rest(q, io, cpc_align_down((size_t)res, CPC_BLOCK_SIZE)));
}

/* Takes one completion, if `wait` is set by blocking for it. */
static bool reap_one(struct cpc_ioq *q, bool wait)
{
	struct io_uring_cqe *cqe;
	struct cpc_io *io;
	int ret, res;

	do {
		ret = wait ? io_uring_wait_cqe(&q->ring, &cqe) : io_uring_peek_cqe(&q->ring, &cqe);
	} while (ret == -EINTR);
	if (ret) {
		cpc_assert(!wait);
		return false;
	}
	io = io_uring_cqe_get_data(cqe);
	res = cqe->res;
	io_uring_cqe_seen(&q->ring, cqe);
	q->nr_kernel--;
	complete(q, io, res);
	return true;
}

/* ---- submission ---- */

/* The kernel has taken the first `nr` of the queued ones. */
static void move_to_kernel(struct cpc_ioq *q, unsigned nr)
{
	cpc_assert(nr <= q->nr_queued);
	q->nr_queued -= nr;
	q->nr_kernel += nr;
	while (nr--)
		cpc_list_del(q->queued.next);
}

static void give_up_ring(struct cpc_ioq *q, int error)
{
	cpc_warn("io_uring: %s; going on with synchronous I/O", strerror(-error));
	while (q->nr_kernel)
		reap_one(q, true);
	io_uring_queue_exit(&q->ring);
	q->have_ring = false;
	while (!cpc_list_empty(&q->queued)) {
		struct cpc_io *io = cpc_list_first(&q->queued, struct cpc_io, node);

		cpc_list_del(&io->node);
		q->nr_queued--;
		complete(q, io, 0);
	}
}

void cpc_ioq_flush_submissions(struct cpc_ioq *q)
{
	cpc_assert(!q->in_done);
	while (q->nr_queued && q->have_ring) {
		int ret = io_uring_submit(&q->ring);

		if (ret > 0)
			move_to_kernel(q, (unsigned)ret);
		else if ((ret == -EAGAIN || ret == -EBUSY) && q->nr_kernel)
			reap_one(q, true);
		else if (ret != -EINTR)
			give_up_ring(q, ret ? ret : -EIO);
	}
}

static void queue_io(struct cpc_ioq *q, struct cpc_io *io)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&q->ring);

	cpc_assert(sqe); /* the ring has `depth` entries */
	if (io->op == CPC_IO_READ)
		io_uring_prep_readv(sqe, q->backing->fd, io->iov, io->nr_iov, io->bytenr);
	else
		io_uring_prep_writev(sqe, q->backing->fd, io->iov, io->nr_iov, io->bytenr);
	io_uring_sqe_set_data(sqe, io);
	cpc_list_add_tail(&q->queued, &io->node);
	if (++q->nr_queued >= BATCH)
		cpc_ioq_flush_submissions(q);
}

static void make_room(struct cpc_ioq *q)
{
	while (q->have_ring && cpc_ioq_in_flight(q) >= q->depth)
		cpc_ioq_reap(q, 1);
}

static int check_io(struct cpc_ioq *q, struct cpc_io *io)
{
	int ret;

	io->len = cpc_iov_len(io->iov, io->nr_iov);
	cpc_assert(io->len <= INT32_MAX);
	ret = cpc_backing_check_range(q->backing, io->bytenr, io->len);
	if (io->op == CPC_IO_WRITE && q->backing->read_only)
		ret = -EROFS;
	return ret;
}

void cpc_ioq_submit(struct cpc_ioq *q, struct cpc_io *io)
{
	int ret = check_io(q, io);

	cpc_assert(!q->in_done);
	if (!ret && io->op == CPC_IO_WRITE && io->fe && cpc_flush_epoch_stopped(io->fe))
		ret = -EIO;
	if (ret)
		io->fe = NULL; /* never written: not for the flush epoch */
	if (io->op == CPC_IO_WRITE && io->fe)
		cpc_fe_write_begin(io->fe, &io->fe_write, io->bytenr, io->iov, io->nr_iov,
				   io->csums, io->cause != CPC_CAUSE_SUPER);
	make_room(q);
	if (ret)
		finish(q, io, ret);
	else if (q->have_ring)
		queue_io(q, io);
	else
		complete(q, io, 0);
}

unsigned cpc_ioq_reap(struct cpc_ioq *q, unsigned min)
{
	unsigned n = 0;

	cpc_ioq_flush_submissions(q);
	while (q->have_ring && q->nr_kernel && reap_one(q, n < min))
		n++;
	return n;
}

void cpc_ioq_wait(struct cpc_ioq *q)
{
	while (cpc_ioq_in_flight(q))
		cpc_ioq_reap(q, 1);
}

unsigned cpc_ioq_in_flight(const struct cpc_ioq *q)
{
	return q->nr_queued + q->nr_kernel;
}

bool cpc_ioq_is_sync(const struct cpc_ioq *q)
{
	return !q->have_ring;
}

/* ---- life ---- */

static void open_ring(struct cpc_ioq *q)
{
	unsigned flags = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;

	if (q->backing->fd < 0)
		return;
	if (!io_uring_queue_init(q->depth, &q->ring, flags) ||
	    !io_uring_queue_init(q->depth, &q->ring, 0))
		q->have_ring = true;
}

int cpc_ioq_open(struct cpc_backing *b, unsigned depth, struct cpc_ioq **out)
{
	struct cpc_ioq *q;

	cpc_assert(depth && depth <= 4096);
	q = cpc_zalloc(sizeof(*q));
	if (!q)
		return -ENOMEM;
	q->backing = b;
	q->depth = depth;
	cpc_list_init(&q->queued);
	cpc_list_init(&q->node);
	open_ring(q);
	*out = q;
	return 0;
}

void cpc_ioq_close(struct cpc_ioq *q)
{
	cpc_ioq_wait(q);
	if (q->have_ring)
		io_uring_queue_exit(&q->ring);
	cpc_free(q);
}

static struct cpc_ioq *pop_idle(struct cpc_backing *b)
{
	struct cpc_ioq *q = NULL;

	cpc_mutex_lock(&b->ioq_lock);
	if (!cpc_list_empty(&b->idle_ioqs)) {
		q = cpc_list_first(&b->idle_ioqs, struct cpc_ioq, node);
		cpc_list_del(&q->node);
		b->nr_idle_ioqs--;
	}
	cpc_mutex_unlock(&b->ioq_lock);
	return q;
}

struct cpc_ioq *cpc_ioq_get(struct cpc_backing *b)
{
	struct cpc_ioq *q = pop_idle(b);

	if (!q && cpc_ioq_open(b, CPC_IOQ_DEFAULT_DEPTH, &q))
		return NULL;
	return q;
}

void cpc_ioq_put(struct cpc_backing *b, struct cpc_ioq *q)
{
	bool keep;

	cpc_ioq_wait(q);
	cpc_mutex_lock(&b->ioq_lock);
	/* one that got no ring, for a lack that may be over, is not kept */
	keep = b->nr_idle_ioqs < MAX_IDLE && (q->have_ring || b->fd < 0);
	if (keep) {
		cpc_list_add(&b->idle_ioqs, &q->node);
		b->nr_idle_ioqs++;
	}
	cpc_mutex_unlock(&b->ioq_lock);
	if (!keep)
		cpc_ioq_close(q);
}

void cpc_ioq_close_idle(struct cpc_backing *b)
{
	struct cpc_ioq *q;

	while ((q = pop_idle(b)))
		cpc_ioq_close(q);
}
