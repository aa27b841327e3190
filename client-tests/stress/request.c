/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Requests: drawn, sent, and compared with the history when they are answered.
 *
 * Callbacks run inside libnbd with the handle locked, so they only touch the history and mark the
 * connection. A change is in the history from before it is sent; a read of an unsettled change says
 * what became of it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "worker.h"

static uint64_t pick_length(struct worker *worker)
{
	static const struct {
		unsigned permille;
		uint64_t most;
	} kinds[] = {{450, 4096}, {350, 16384}, {150, 65536}, {45, 512 << 10}, {5, 4 << 20}};
	uint64_t dice = rng_below(&worker->rng, 1000), most = 0;

	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		most = kinds[i].most;
		if (dice < kinds[i].permille)
			break;
		dice -= kinds[i].permille;
	}
	if (most > worker->options->max_len)
		most = worker->options->max_len;
	return 1 + rng_below(&worker->rng, most);
}

/* Any range; half of them of whole sectors, a quarter of whole blocks. */
static void pick_range(struct worker *worker, const struct volume *volume, uint64_t *start,
		       uint64_t *len)
{
	static const uint64_t units[] = {1, SECTOR, SECTOR, BLOCK};
	uint64_t unit = units[rng_below(&worker->rng, 4)];
	uint64_t size = history_size(volume->history), n = pick_length(worker);

	*len = (n + unit - 1) / unit * unit;
	if (*len > size)
		*len = size;
	*start = rng_below(&worker->rng, size - *len + 1) / unit * unit;
}

static enum count pick_kind(struct worker *worker)
{
	uint64_t dice = rng_below(&worker->rng, 100);

	return dice < 38   ? COUNT_READ
	       : dice < 80 ? COUNT_WRITE
	       : dice < 84 ? COUNT_TRIM
	       : dice < 89 ? COUNT_ZERO
	       : dice < 95 ? COUNT_FLUSH
			   : COUNT_STATUS;
}

bool request_changes(enum count kind)
{
	return kind == COUNT_WRITE || kind == COUNT_TRIM || kind == COUNT_ZERO;
}

static struct op *new_op(struct connection *connection, enum count kind, uint64_t start,
			 uint64_t len)
{
	struct op *op = calloc(1, sizeof(*op));

	if (!op)
		fail("out of memory");
	op->connection = connection;
	op->volume = connection->volume;
	op->kind = kind;
	op->start = start;
	op->len = len;
	if (kind == COUNT_READ || kind == COUNT_WRITE) {
		op->buf = malloc(len);
		if (!op->buf)
			fail("out of memory");
	}
	return op;
}

void request_free(struct op *op)
{
	free(op->buf);
	free(op);
}

void request_remove(struct op *op)
{
	history_end(op->volume->history, &op->flight);
	TAILQ_REMOVE(&op->connection->ops, op, link);
	op->connection->nr_ops--;
}

/*
 * A callback with an error: the connection died, or is about to, and what becomes of the op is
 * decided when it is lost. An error of a server that lives is a fault.
 */
static bool completed(const struct op *op, int error)
{
	if (error == 0)
		return true;
	if (error != ENOTCONN && error != ESHUTDOWN && !worker_ending(op->connection->worker))
		fail("%s of %s at %" PRIu64 " + %" PRIu64 ": %s", count_names[op->kind],
		     op->volume->name, op->start, op->len, strerror(error));
	return false;
}

static void settle(struct op *op)
{
	history_resolve(op->volume->history, op->change, op->buf);
	worker_count(op->connection->worker, COUNT_SETTLED, 1);
}

static int op_done(void *opaque, int *error)
{
	struct op *op = opaque;
	struct worker *worker = op->connection->worker;
	struct history *history = op->volume->history;

	worker_touch(op->connection);
	if (!completed(op, *error))
		return 1;
	if (request_changes(op->kind) && op->change)
		history_answered(history, op->change);
	else if (op->kind == COUNT_FLUSH)
		history_flushed(history, op->flight.issued);
	else if (op->kind == COUNT_READ)
		history_check_read(history, op->flight.issued, op->start, op->len, op->buf);
	if (op->kind == COUNT_READ && op->change)
		settle(op);
	worker_count(worker, op->kind, 1);
	worker_count(worker, COUNT_BYTES, op->buf ? op->len : 0);
	request_remove(op);
	request_free(op);
	return 1;
}

/* Block status: pairs of length and flags from the op's start on. */
static int op_extents(void *opaque, const char *context, uint64_t offset, uint32_t *entries,
		      size_t nr_entries, int *error)
{
	struct op *op = opaque;
	uint64_t end = op->start + op->len;

	if (*error || strcmp(context, LIBNBD_CONTEXT_BASE_ALLOCATION) != 0)
		return 0;
	if (offset != op->start || nr_entries < 2)
		fail("block status of %s at %" PRIu64 ": %zu entries from %" PRIu64,
		     op->volume->name, op->start, nr_entries, offset);
	for (size_t i = 0; i + 1 < nr_entries && offset < end; i += 2) {
		uint64_t len = entries[i] < end - offset ? entries[i] : end - offset;

		if (entries[i] == 0)
			fail("block status of %s: an extent of no bytes at %" PRIu64,
			     op->volume->name, offset);
		if (entries[i + 1] & LIBNBD_STATE_ZERO)
			history_check_zeroes(op->volume->history, op->flight.issued, offset, len);
		offset += len;
	}
	return 0;
}

static int64_t send_op(struct op *op, uint32_t flags)
{
	struct nbd_handle *nbd = op->connection->nbd;
	nbd_completion_callback done = {.callback = op_done, .user_data = op};
	nbd_extent_callback extents = {.callback = op_extents, .user_data = op};

	switch (op->kind) {
	case COUNT_READ:
		return nbd_aio_pread(nbd, op->buf, op->len, op->start, done, 0);
	case COUNT_WRITE:
		return nbd_aio_pwrite(nbd, op->buf, op->len, op->start, done, flags);
	case COUNT_TRIM:
		return nbd_aio_trim(nbd, op->len, op->start, done, flags);
	case COUNT_ZERO:
		return nbd_aio_zero(nbd, op->len, op->start, done, flags);
	case COUNT_FLUSH:
		return nbd_aio_flush(nbd, done, 0);
	default:
		return nbd_aio_block_status(nbd, op->len, op->start, extents, done, 0);
	}
}

/* Makes the change of an op. Of a trim the server promises zeroes for whole blocks alone. */
static void make_change(struct op *op, bool fua)
{
	struct history *history = op->volume->history;
	uint64_t start = op->start, end = op->start + op->len;

	if (op->kind == COUNT_TRIM) {
		start = (start + BLOCK - 1) / BLOCK * BLOCK;
		end = end / BLOCK * BLOCK;
	}
	if (start < end)
		op->change =
		    history_issue(history, start, end - start, op->kind != COUNT_WRITE, fua);
	if (op->kind == COUNT_WRITE)
		history_fill(history, op->change, op->buf);
}

/* Context: not in a callback of this connection. */
static void issue(struct op *op)
{
	struct connection *connection = op->connection;
	struct worker *worker = connection->worker;
	struct history *history = op->volume->history;
	uint32_t flags = 0;

	if (request_changes(op->kind)) {
		bool fua = rng_percent(&worker->rng, 5);

		make_change(op, fua);
		flags = fua ? LIBNBD_CMD_FLAG_FUA : 0;
		worker_count(worker, COUNT_FUA, fua);
	}
	history_begin(history, &op->flight);
	TAILQ_INSERT_TAIL(&connection->ops, op, link);
	connection->nr_ops++;
	if (send_op(op, flags) == -1 && !nbd_aio_is_dead(connection->nbd) &&
	    !nbd_aio_is_closed(connection->nbd))
		fail("%s of %s: %s", count_names[op->kind], op->volume->name, nbd_get_error());
}

void request_issue(struct connection *connection)
{
	struct worker *worker = connection->worker;
	struct op *unsettled = TAILQ_FIRST(&connection->volume->unsettled);
	enum count kind = pick_kind(worker);
	uint64_t start, len;

	if (unsettled) {
		struct op *op = new_op(connection, COUNT_READ, change_start(unsettled->change),
				       change_len(unsettled->change));

		op->change = unsettled->change;
		TAILQ_REMOVE(&connection->volume->unsettled, unsettled, link);
		request_free(unsettled);
		issue(op);
		return;
	}
	for (unsigned tries = 0; tries < 4; tries++) {
		pick_range(worker, connection->volume, &start, &len);
		if (!request_changes(kind) ||
		    history_writable(connection->volume->history, start, len)) {
			issue(new_op(connection, kind, start, len));
			return;
		}
	}
	issue(new_op(connection, COUNT_READ, start, len));
}
