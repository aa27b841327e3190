/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * scrub: looks at both copies of the records that the newest superblock does not contain, beside
 * those who write more.
 *
 * Only completed records are looked at, so nobody writes them any more; and while a batch runs the
 * room behind `held` is not given away, so nobody writes over them. The tail may move on meanwhile.
 */
#include "log/log-internal.h"

#include "lib/hooks.h"

#define BATCH_BYTES (4u << 20)

/* Keeps what is not in the trees now. Return: the last record to look at. */
static uint64_t hold(struct cpc_log *log)
{
	cpc_mutex_lock(&log->lock);
	atomic_store(&log->held, atomic_load(&log->tail));
	cpc_mutex_unlock(&log->lock);
	return atomic_load(&log->completed);
}

static void release(struct cpc_log *log)
{
	atomic_store(&log->held, UINT64_MAX);
}

/* Starts over where the newest superblock ends, unless the scrub is further. */
static void catch_up(struct cpc_log *log, struct cpc_log_scrub *at)
{
	cpc_mutex_lock(&log->store->lock);
	if (at->seq <= log->store->super.log_seq || !at->seq) {
		at->seq = log->store->super.log_seq + 1;
		at->position = log->store->super.log_position;
	}
	cpc_mutex_unlock(&log->store->lock);
}

/* Return: whether this copy of the record is good; it is in r->buf then. */
static bool read_record(struct cpc_log_replay *r, const struct cpc_log_scrub *at, uint64_t position,
			unsigned copy)
{
	const struct cpc_disk_log_record *record = (const void *)r->buf;

	return cpc_log_read_copy(r, position, copy) == 0 &&
	       cpc_get_le64(&record->nonce) == r->store->nonce &&
	       cpc_get_le64(&record->seq) == at->seq && cpc_get_le64(&record->position) == position;
}

static void tell(struct cpc_log_replay *r, struct cpc_log_scrub *at, unsigned copy,
		 uint64_t position, const void *good, uint32_t len)
{
	struct cpc_log_bad_copy bad = {
	    .seq = at->seq,
	    .copy = copy,
	    .bytenr = cpc_log_bytenr(r->store, copy, position),
	    .good = good,
	    .len = len,
	};

	at->damage(at->ctx, &bad);
}

/* Looks at a place. Return: length of the record, 0: there is no good copy of it. */
static uint32_t look(struct cpc_log_replay *r, struct cpc_log_scrub *at, uint64_t position)
{
	const struct cpc_disk_log_record *record = (const void *)r->buf;
	bool second = read_record(r, at, position, 1), first = read_record(r, at, position, 0);
	uint32_t length;

	if (!first && second && !read_record(r, at, position, 1))
		second = false;
	if (!first && !second)
		return 0;
	length = cpc_get_le32(&record->length);
	if (!first || !second)
		tell(r, at, first, position, r->buf, length);
	return length;
}

/* Return: bytes to the end of the record; 0: it is gone. */
static uint64_t scrub_record(struct cpc_log_replay *r, struct cpc_log_scrub *at)
{
	uint64_t size = cpc_log_ring_bytes(r->store), left = size - at->position % size;
	uint32_t length = look(r, at, at->position);

	if (length)
		return length;
	if (left < size)
		length = look(r, at, at->position + left);
	if (length)
		return left + length;
	tell(r, at, 0, at->position, NULL, 0);
	tell(r, at, 1, at->position, NULL, 0);
	return 0;
}

int cpc_log_scrub(struct cpc_log *log, struct cpc_log_scrub *at)
{
	struct cpc_log_replay r = {.store = log->store, .max_record = log->max_record};
	uint64_t last = hold(log), bytes = 0, len;
	int ret = 0;

	catch_up(log, at);
	r.buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, log->max_record);
	if (!r.buf)
		ret = -ENOMEM;
	while (!ret && at->seq <= last && bytes < BATCH_BYTES) {
		len = scrub_record(&r, at);
		at->records++;
		at->seq++;
		at->position += len;
		bytes += len;
		/* where the next one begins is not known any more */
		if (!len)
			break;
	}
	if (!ret)
		ret = bytes >= BATCH_BYTES;
	release(log);
	cpc_free(r.buf);
	return ret;
}
