/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One worker: a libev loop over the libnbd handles of its connections to its volumes.
 *
 * Normal path: a watcher for each handle tells libnbd to read or write; a prepare watcher, before
 * the loop sleeps, pumps each connection that was touched: it issues requests up to the depth and
 * asks libnbd what to wait for next. Requests and their answers: request.c.
 *
 * A connection's life:
 *
 *     waiting --timer--> connecting --> working --> leaving (disconnect when all is answered)
 *        ^                   |             |------> vanished, see below
 *        '------- lost <-----+-------------'        lost: allowed only while the
 *                                                        server is being killed
 *
 * A connection that vanishes leaves changes that nobody answers and that the server may still do.
 * Most close only their sending half; when the server closes its own it is done with them, and a
 * read settles what they did. The rest close at once; their sectors take no changes until the
 * server dies.
 *
 * When the server has been killed, each connection is lost, the disks of the next life are read and
 * judged, and the load goes on.
 */
#include "worker.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define POLL_SECONDS	0.01
#define RETRY_SECONDS	0.02
#define CONNECT_SECONDS 60.0
#define JUDGE_BYTES	(1u << 20)

void worker_count(struct worker *worker, enum count what, uint64_t n)
{
	atomic_fetch_add_explicit(&worker->state->count[what], n, memory_order_relaxed);
}

bool worker_ending(const struct worker *worker)
{
	return atomic_load(&worker->shared->ending) ||
	       atomic_load(&worker->shared->life) != atomic_load(&worker->state->judged);
}

void worker_touch(struct connection *connection)
{
	if (connection->touched)
		return;
	connection->touched = true;
	TAILQ_INSERT_TAIL(&connection->worker->touched, connection, link);
}

/* --- connections ----------------------------------------------------------------------------- */

static void forget_handle(struct connection *connection)
{
	ev_io_stop(connection->worker->loop, &connection->io);
	nbd_close(connection->nbd);
	connection->nbd = NULL;
	connection->connected = connection->leaving = connection->goodbye = false;
}

/* What was in flight when its connection ended: changes go to a list, the rest is over. */
static void abandon_ops(struct connection *connection, struct op_list *changes)
{
	struct op *op;

	while ((op = TAILQ_FIRST(&connection->ops))) {
		request_remove(op);
		if (op->change)
			TAILQ_INSERT_TAIL(op->kind == COUNT_READ ? &op->volume->unsettled : changes,
					  op, link);
		else
			request_free(op);
	}
}

static void wait_to_connect(struct connection *connection, double seconds)
{
	ev_timer_set(&connection->retry, seconds, 0);
	ev_timer_start(connection->worker->loop, &connection->retry);
}

static void lost(struct connection *connection)
{
	struct worker *worker = connection->worker;

	if (connection->connected && !connection->leaving && !worker_ending(worker))
		fail("%s: the server closed a connection: %s", connection->volume->name,
		     nbd_get_error());
	if (!connection->connected && ev_time() - connection->since > CONNECT_SECONDS)
		fail("%s: no connection within %.0f s: %s", connection->volume->name,
		     CONNECT_SECONDS, nbd_get_error());
	if (connection->connected)
		connection->since = ev_time();
	forget_handle(connection);
	abandon_ops(connection, &connection->volume->haunted);
	wait_to_connect(connection, RETRY_SECONDS);
}

static void ghost_ready(struct ev_loop *loop, ev_io *io, int events)
{
	struct ghost *ghost = io->data;
	char replies[65536];
	ssize_t n = recv(io->fd, replies, sizeof(replies), MSG_DONTWAIT);

	(void)events;
	if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
		return;
	ev_io_stop(loop, io);
	close(io->fd);
	TAILQ_CONCAT(&ghost->volume->unsettled, &ghost->ops, link);
	TAILQ_REMOVE(&ghost->worker->ghosts, ghost, link);
	free(ghost);
}

static void become_ghost(struct connection *connection)
{
	struct ghost *ghost = calloc(1, sizeof(*ghost));
	int fd = dup(nbd_aio_get_fd(connection->nbd));

	if (!ghost || fd < 0)
		fail("vanish: %s", strerror(errno));
	shutdown(fd, SHUT_WR);
	ghost->worker = connection->worker;
	ghost->volume = connection->volume;
	TAILQ_INIT(&ghost->ops);
	TAILQ_INSERT_TAIL(&ghost->worker->ghosts, ghost, link);
	forget_handle(connection);
	abandon_ops(connection, &ghost->ops);
	ev_io_init(&ghost->io, ghost_ready, fd, EV_READ);
	ghost->io.data = ghost;
	ev_io_start(ghost->worker->loop, &ghost->io);
}

static void vanish(struct connection *connection)
{
	struct volume *volume = connection->volume;
	struct op *op;

	worker_count(connection->worker, COUNT_VANISHED, 1);
	connection->since = ev_time();
	if (nbd_aio_is_ready(connection->nbd) && rng_percent(&connection->worker->rng, 75)) {
		become_ghost(connection);
	} else {
		TAILQ_FOREACH(op, &connection->ops, link)
		volume->haunted_bytes += request_changes(op->kind) ? op->len : 0;
		forget_handle(connection);
		abandon_ops(connection, &volume->haunted);
	}
	wait_to_connect(connection, RETRY_SECONDS);
}

static void connect_again(struct ev_loop *loop, ev_timer *timer, int events)
{
	struct connection *connection = timer->data;
	struct worker *worker = connection->worker;

	(void)loop;
	(void)events;
	if (atomic_load(&worker->shared->stop))
		return;
	if (worker_ending(worker)) {
		connection->since = ev_time();
		wait_to_connect(connection, RETRY_SECONDS);
		return;
	}
	connection->nbd = nbd_create();
	if (!connection->nbd)
		fail("nbd_create: %s", nbd_get_error());
	if (nbd_add_meta_context(connection->nbd, LIBNBD_CONTEXT_BASE_ALLOCATION) != 0)
		fail("meta context: %s", nbd_get_error());
	nbd_aio_connect_uri(connection->nbd, connection->volume->uri); /* if it fails: dead */
	worker_touch(connection);
}

/* Now and then a client leaves, in order or not. */
static bool leave_sometimes(struct connection *connection)
{
	uint64_t dice = rng_below(&connection->worker->rng, 1000);

	if (dice == 0 && connection->nr_ops > 0 &&
	    connection->volume->haunted_bytes < history_size(connection->volume->history) / 8) {
		vanish(connection);
		return true;
	}
	connection->leaving = dice == 1;
	return connection->leaving;
}

static void work(struct connection *connection)
{
	struct worker *worker = connection->worker;
	bool stop = atomic_load(&worker->shared->stop);

	if (!connection->connected) {
		connection->connected = true;
		worker_count(worker, COUNT_CONNECTS, 1);
	}
	while (!stop && !worker_ending(worker) && !connection->leaving &&
	       connection->nr_ops < worker->options->depth && !nbd_aio_is_dead(connection->nbd) &&
	       !nbd_aio_is_closed(connection->nbd)) {
		if (leave_sometimes(connection))
			break;
		request_issue(connection);
	}
	if (connection->nbd && connection->nr_ops == 0 && !connection->goodbye &&
	    (stop || connection->leaving)) {
		connection->leaving = connection->goodbye = true;
		nbd_aio_disconnect(connection->nbd, 0);
	}
}

/* Lets a connection do what it can, then waits for what libnbd wants. */
static void pump(struct connection *connection)
{
	struct nbd_handle *nbd = connection->nbd;
	unsigned direction;
	int events = 0;

	if (!nbd)
		return;
	if (nbd_aio_is_ready(nbd) || nbd_aio_is_processing(nbd))
		work(connection);
	if (!connection->nbd) /* vanished */
		return;
	if (nbd_aio_is_dead(nbd) || nbd_aio_is_closed(nbd) || nbd_aio_is_created(nbd)) {
		lost(connection);
		return;
	}
	direction = nbd_aio_get_direction(nbd);
	events |= direction & LIBNBD_AIO_DIRECTION_READ ? EV_READ : 0;
	events |= direction & LIBNBD_AIO_DIRECTION_WRITE ? EV_WRITE : 0;
	ev_io_stop(connection->worker->loop, &connection->io);
	ev_io_set(&connection->io, nbd_aio_get_fd(nbd), events);
	ev_io_start(connection->worker->loop, &connection->io);
}

static void handle_ready(struct ev_loop *loop, ev_io *io, int events)
{
	struct connection *connection = io->data;

	(void)loop;
	if (events & EV_READ)
		nbd_aio_notify_read(connection->nbd);
	else if (events & EV_WRITE)
		nbd_aio_notify_write(connection->nbd);
	worker_touch(connection);
}

static void pump_touched(struct ev_loop *loop, ev_prepare *prepare, int events)
{
	struct worker *worker = prepare->data;
	struct connection *connection;

	(void)loop;
	(void)events;
	while ((connection = TAILQ_FIRST(&worker->touched))) {
		TAILQ_REMOVE(&worker->touched, connection, link);
		connection->touched = false;
		pump(connection);
	}
}

/* --- lives ----------------------------------------------------------------------------------- */

typedef void look_fn(struct volume *volume, uint64_t issued, uint64_t start, uint64_t len,
		     const void *buf);

static void look_judge(struct volume *volume, uint64_t issued, uint64_t start, uint64_t len,
		       const void *buf)
{
	(void)issued;
	history_judge(volume->history, start, len, buf);
}

static void look_check(struct volume *volume, uint64_t issued, uint64_t start, uint64_t len,
		       const void *buf)
{
	history_check_read(volume->history, issued, start, len, buf);
}

/* Reads a whole volume over a connection of its own. */
static void look_at(struct volume *volume, look_fn *look)
{
	struct nbd_handle *nbd = client_connect_wait(volume->uri, (unsigned)CONNECT_SECONDS);
	unsigned char *buf = malloc(JUDGE_BYTES);
	uint64_t size = history_size(volume->history);
	struct flight flight;

	if (!buf)
		fail("out of memory");
	history_begin(volume->history, &flight);
	for (uint64_t start = 0; start < size; start += JUDGE_BYTES) {
		uint64_t len = size - start < JUDGE_BYTES ? size - start : JUDGE_BYTES;

		if (nbd_pread(nbd, buf, len, start, 0) != 0)
			fail("%s: %s", volume->name, nbd_get_error());
		look(volume, flight.issued, start, len, buf);
	}
	history_end(volume->history, &flight);
	nbd_shutdown(nbd, 0);
	nbd_close(nbd);
	free(buf);
}

static void free_ops(struct op_list *list)
{
	struct op *op;

	while ((op = TAILQ_FIRST(list))) {
		TAILQ_REMOVE(list, op, link);
		request_free(op);
	}
}

static bool all_closed(const struct worker *worker)
{
	for (unsigned i = 0; i < worker->nr_connections; i++)
		if (worker->connections[i].nbd)
			return false;
	return TAILQ_EMPTY(&worker->ghosts);
}

static void judge_life(struct worker *worker, unsigned life)
{
	for (unsigned i = 0; i < worker->nr_volumes; i++) {
		struct volume *volume = &worker->volumes[i];

		look_at(volume, look_judge);
		free_ops(&volume->haunted);
		free_ops(&volume->unsettled);
		volume->haunted_bytes = 0;
		worker_count(worker, COUNT_MISSING, history_judge_life(volume->history));
	}
	ev_now_update(worker->loop);
	atomic_store(&worker->state->judged, life);
}

/* Between lives and at the end the loop has to be told by the clock. */
static void poll_shared(struct ev_loop *loop, ev_timer *timer, int events)
{
	struct worker *worker = timer->data;
	unsigned life = atomic_load(&worker->shared->life);

	(void)events;
	if (life != atomic_load(&worker->state->judged) || atomic_load(&worker->shared->stop))
		for (unsigned i = 0; i < worker->nr_connections; i++)
			worker_touch(&worker->connections[i]);
	if (!all_closed(worker))
		return;
	if (life != atomic_load(&worker->state->judged))
		judge_life(worker, life);
	else if (atomic_load(&worker->shared->stop))
		ev_break(loop, EVBREAK_ALL);
}

/* --- the worker ------------------------------------------------------------------------------ */

static void make_volume(struct worker *worker, struct volume *volume, unsigned number)
{
	const struct options *options = worker->options;
	struct nbd_handle *nbd;
	int64_t size;

	volume->worker = worker;
	TAILQ_INIT(&volume->unsettled);
	TAILQ_INIT(&volume->haunted);
	snprintf(volume->name, sizeof(volume->name), "%s%u", options->prefix, number);
	if (options->unix_socket)
		snprintf(volume->uri, sizeof(volume->uri), "nbd+unix:///%s?socket=%s", volume->name,
			 options->unix_socket);
	else
		snprintf(volume->uri, sizeof(volume->uri), "nbd://%s:%s/%s", options->host,
			 options->port, volume->name);
	nbd = client_connect_wait(volume->uri, (unsigned)CONNECT_SECONDS);
	size = nbd_get_size(nbd);
	if (size < (int64_t)SECTOR || size % SECTOR != 0)
		fail("%s: its size, %" PRId64 ", is no multiple of %u", volume->name, size, SECTOR);
	volume->history = history_new(number, (uint64_t)size);
	/* whatever the volume held before is taken as zeroes only after it has been zeroed */
	if (nbd_zero(nbd, (uint64_t)size, 0, 0) != 0 || nbd_flush(nbd, 0) != 0)
		fail("%s: %s", volume->name, nbd_get_error());
	nbd_shutdown(nbd, 0);
	nbd_close(nbd);
}

static void make_connection(struct worker *worker, struct connection *connection, unsigned number)
{
	connection->worker = worker;
	connection->volume = &worker->volumes[number % worker->nr_volumes];
	connection->since = ev_time();
	TAILQ_INIT(&connection->ops);
	ev_init(&connection->io, handle_ready);
	connection->io.data = connection;
	ev_init(&connection->retry, connect_again);
	connection->retry.data = connection;
	wait_to_connect(connection, 0);
}

/* Volume v and connection c belong to worker v, c modulo the number of workers. */
static unsigned share(unsigned all, unsigned workers, unsigned index)
{
	return all / workers + (index < all % workers);
}

void worker_main(const struct options *options, struct shared *shared, unsigned index)
{
	struct worker worker = {.options = options,
				.shared = shared,
				.state = &shared->workers[index],
				.loop = ev_loop_new(EVFLAG_AUTO),
				.rng = {options->seed + index * 0x51ed2701u}};

	worker.nr_volumes = share(options->volumes, options->processes, index);
	worker.nr_connections = share(options->connections, options->processes, index);
	worker.volumes = calloc(worker.nr_volumes, sizeof(*worker.volumes));
	worker.connections = calloc(worker.nr_connections, sizeof(*worker.connections));
	if (!worker.loop || !worker.volumes || !worker.connections)
		fail("out of memory");
	TAILQ_INIT(&worker.touched);
	TAILQ_INIT(&worker.ghosts);
	for (unsigned i = 0; i < worker.nr_volumes; i++)
		make_volume(&worker, &worker.volumes[i], i * options->processes + index);
	atomic_store(&worker.state->judged, atomic_load(&shared->life));
	for (unsigned i = 0; i < worker.nr_connections; i++)
		make_connection(&worker, &worker.connections[i], i);
	ev_prepare_init(&worker.prepare, pump_touched);
	worker.prepare.data = &worker;
	ev_prepare_start(worker.loop, &worker.prepare);
	ev_timer_init(&worker.poll, poll_shared, POLL_SECONDS, POLL_SECONDS);
	worker.poll.data = &worker;
	ev_timer_start(worker.loop, &worker.poll);
	ev_run(worker.loop, 0);
	for (unsigned i = 0; i < worker.nr_volumes; i++)
		look_at(&worker.volumes[i], look_check);
	free(worker.connections);
	free(worker.volumes);
	ev_loop_destroy(worker.loop);
}
