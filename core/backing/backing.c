/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The common half of every backing: argument checks, counters, and the idle queues. What a device
 * can get wrong (a range beyond its end) is an error; what only our code can get wrong (alignment)
 * is asserted.
 */
#include "backing/backing.h"

#include "backing/backing-internal.h"
#include "backing/ioq.h"

static void count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static uint64_t load(_Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

static bool aligned(uint64_t v)
{
	return v % CPC_BLOCK_SIZE == 0;
}

static int count_error(struct cpc_backing *b, int result)
{
	if (result)
		count(&b->counters.errors, 1);
	return result;
}

int cpc_backing_check_range(const struct cpc_backing *b, uint64_t bytenr, uint64_t len)
{
	cpc_assert(aligned(bytenr) && aligned(len) && len);
	return len <= b->size && bytenr <= b->size - len ? 0 : -EIO;
}

size_t cpc_iov_len(const struct iovec *iov, unsigned nr)
{
	size_t len = 0;

	cpc_assert(nr && nr <= CPC_BACKING_MAX_IOV);
	for (unsigned i = 0; i < nr; i++) {
		cpc_assert(aligned((uintptr_t)iov[i].iov_base) && aligned(iov[i].iov_len));
		cpc_assert(iov[i].iov_len);
		len += iov[i].iov_len;
	}
	return len;
}

unsigned cpc_iov_tail(struct iovec *out, const struct iovec *iov, unsigned nr, size_t skip)
{
	unsigned n = 0;

	for (unsigned i = 0; i < nr; i++) {
		size_t used = skip < iov[i].iov_len ? skip : iov[i].iov_len;

		skip -= used;
		if (used == iov[i].iov_len)
			continue;
		out[n].iov_base = (char *)iov[i].iov_base + used;
		out[n++].iov_len = iov[i].iov_len - used;
	}
	return n;
}

void cpc_backing_count_read(struct cpc_backing *b, size_t len, int result)
{
	count(&b->counters.reads, 1);
	if (!count_error(b, result))
		count(&b->counters.bytes_read, len);
}

void cpc_backing_count_write(struct cpc_backing *b, size_t len, enum cpc_cause cause, int result)
{
	count(&b->counters.writes, 1);
	if (!count_error(b, result))
		count(&b->counters.bytes_written_by[cause], len);
}

void cpc_backing_init(struct cpc_backing *b, const struct cpc_backing_ops *ops, uint64_t size,
		      int fd, bool read_only)
{
	cpc_assert(aligned(size));
	memset(b, 0, sizeof(*b));
	b->ops = ops;
	b->size = size;
	b->fd = fd;
	b->read_only = read_only;
	cpc_mutex_init(&b->ioq_lock, "ioq pool", CPC_RANK_BACKING);
	cpc_list_init(&b->idle_ioqs);
}

void cpc_backing_close(struct cpc_backing *b)
{
	if (!b)
		return;
	cpc_ioq_close_idle(b);
	cpc_mutex_destroy(&b->ioq_lock);
	b->ops->close(b);
}

int cpc_backing_current_size(struct cpc_backing *b, uint64_t *size)
{
	int ret = b->ops->current_size(b, size);

	if (!ret)
		*size = cpc_align_down(*size, CPC_BLOCK_SIZE);
	return ret;
}

int cpc_backing_readv(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov, unsigned nr)
{
	size_t len = cpc_iov_len(iov, nr);
	int ret = cpc_backing_check_range(b, bytenr, len);

	if (!ret)
		ret = b->ops->readv(b, bytenr, iov, nr);
	cpc_backing_count_read(b, len, ret);
	return ret;
}

int cpc_backing_read(struct cpc_backing *b, uint64_t bytenr, void *buf, size_t len)
{
	struct iovec iov = {buf, len};

	return cpc_backing_readv(b, bytenr, &iov, 1);
}

int cpc_backing_writev(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov, unsigned nr,
		       enum cpc_cause cause)
{
	size_t len = cpc_iov_len(iov, nr);
	int ret = cpc_backing_check_range(b, bytenr, len);

	if (b->read_only)
		ret = -EROFS;
	if (!ret)
		ret = b->ops->writev(b, bytenr, iov, nr, cause);
	cpc_backing_count_write(b, len, cause, ret);
	return ret;
}

int cpc_backing_write(struct cpc_backing *b, uint64_t bytenr, const void *buf, size_t len,
		      enum cpc_cause cause)
{
	struct iovec iov = {(void *)(uintptr_t)buf, len};

	return cpc_backing_writev(b, bytenr, &iov, 1, cause);
}

int cpc_backing_discard(struct cpc_backing *b, uint64_t bytenr, uint64_t len)
{
	int ret = cpc_backing_check_range(b, bytenr, len);

	if (b->read_only)
		ret = -EROFS;
	if (!ret)
		ret = b->ops->discard(b, bytenr, len);
	count(&b->counters.discards, 1);
	return count_error(b, ret);
}

int cpc_backing_flush(struct cpc_backing *b)
{
	count(&b->counters.flushes, 1);
	return count_error(b, b->read_only ? -EROFS : b->ops->flush(b));
}

void cpc_backing_get_stats(struct cpc_backing *b, struct cpc_backing_stats *stats)
{
	memset(stats, 0, sizeof(*stats));
	stats->reads = load(&b->counters.reads);
	stats->writes = load(&b->counters.writes);
	stats->flushes = load(&b->counters.flushes);
	stats->discards = load(&b->counters.discards);
	stats->bytes_read = load(&b->counters.bytes_read);
	stats->errors = load(&b->counters.errors);
	for (int i = 0; i < CPC_NR_CAUSES; i++) {
		stats->bytes_written_by[i] = load(&b->counters.bytes_written_by[i]);
		stats->bytes_written += stats->bytes_written_by[i];
	}
}
