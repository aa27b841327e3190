/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What one client says and hears.
 *
 *	   line complete, quick            reply made
 *	READING ----------------------------> SENDING --+
 *	  ^  \                                  ^       | all sent
 *	  |   \ line complete, not quick        |       v
 *	  |    +----------> BUSY ---------------+    (closing or end of input: gone)
 *	  |                  worker is done             |
 *	  +---------------------------------------------+
 *
 * BUSY is `busy`, SENDING is `out` not NULL; client_check() asserts that they exclude each
 * other. Only READING reads, so that a client that sends faster than it takes answers is slowed by
 * its own socket. A client whose connection breaks while BUSY stays until the worker has answered.
 */
#include "control-internal.h"

#include <sys/socket.h>
#include <unistd.h>

#include "lib/hooks.h"
#include "protocol/reply.h"

#define IDLE_TIMEOUT 300.0
#define SEND_TIMEOUT 30.0

static void client_check(const struct cpc_client *client)
{
	cpc_assert(!(client->busy && client->out));
	cpc_assert(client->in_len <= CPC_REQUEST_MAX);
}

static void client_free(struct cpc_client *client)
{
	cpc_list_del(&client->node);
	client->control->nr_clients--;
	cpc_free(client->in);
	cpc_free(client->out);
	cpc_free(client);
}

/* Ends the connection; the client itself goes now, or when the worker gives its job back. */
static void client_close(struct cpc_client *client)
{
	struct ev_loop *loop = client->control->loop;

	ev_io_stop(loop, &client->readable);
	ev_io_stop(loop, &client->writable);
	ev_timer_stop(loop, &client->timeout);
	if (client->fd >= 0)
		close(client->fd);
	client->fd = -1;
	if (!client->busy)
		client_free(client);
}

void cpc_client_destroy(struct cpc_client *client)
{
	client->busy = false;
	client_close(client);
}

static void set_timeout(struct cpc_client *client, double seconds)
{
	client->timeout.repeat = seconds;
	ev_timer_again(client->control->loop, &client->timeout);
}

/* Waits for what the client's state asks for. */
static void client_watch(struct cpc_client *client)
{
	struct ev_loop *loop = client->control->loop;

	client_check(client);
	if (client->out) {
		ev_io_stop(loop, &client->readable);
		ev_io_start(loop, &client->writable);
		set_timeout(client, SEND_TIMEOUT);
	} else if (client->busy) {
		ev_io_stop(loop, &client->readable);
		ev_io_stop(loop, &client->writable);
		ev_timer_stop(loop, &client->timeout);
	} else {
		ev_io_stop(loop, &client->writable);
		ev_io_start(loop, &client->readable);
		set_timeout(client, IDLE_TIMEOUT);
	}
}

/* Makes `reply` (taken over, NULL: no memory) the output. Return: 0 or -ENOMEM. */
static int set_reply(struct cpc_client *client, struct json_object *reply)
{
	const char *text;
	size_t len;

	if (!reply)
		return -ENOMEM;
	text = json_object_to_json_string_length(reply, JSON_C_TO_STRING_PLAIN, &len);
	client->out = text ? cpc_alloc(len + 1) : NULL;
	if (client->out) {
		memcpy(client->out, text, len);
		client->out[len] = '\n';
		client->out_len = len + 1;
		client->out_pos = 0;
	}
	json_object_put(reply);
	return client->out ? 0 : -ENOMEM;
}

/* Sends what the socket takes. Return: 0; an errno when the client is gone. */
static int send_some(struct cpc_client *client)
{
	ssize_t n;

	while (client->out && client->out_pos < client->out_len) {
		n = send(client->fd, client->out + client->out_pos,
			 client->out_len - client->out_pos, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0)
			return errno == EAGAIN || errno == EINTR ? 0 : -errno;
		client->out_pos += (size_t)n;
	}
	cpc_free(client->out);
	client->out = NULL;
	return client->closing ? -ESHUTDOWN : 0;
}

/* Runs one request line, or hands it to the worker. Return: 0 or -ENOMEM. */
static int run_line(struct cpc_client *client, const char *line, size_t len)
{
	const struct cpc_control_handler *handler = &client->control->handler;
	struct json_object *request, *reply;
	const char *why;
	int ret;

	request = cpc_json_parse(line, len, &why);
	if (!request)
		return set_reply(client, cpc_reply_error(EINVAL, "bad request: %s", why));
	if (handler->quick(handler->ctx, request)) {
		reply = handler->run(handler->ctx, request);
		json_object_put(request);
		return set_reply(client, reply);
	}
	ret = cpc_worker_submit(client, request);
	client->busy = ret == 0;
	return ret;
}

/* Takes the first line out of the input and runs it. Return: 1 done, 0 no full line, or errno. */
static int take_line(struct cpc_client *client)
{
	char *end = memchr(client->in, '\n', client->in_len);
	size_t len;
	int ret;

	if (!end && client->in_len < CPC_REQUEST_MAX)
		return 0;
	if (!end) {
		client->closing = true;
		ret = set_reply(client, cpc_reply_error(EMSGSIZE, "request is longer than %u bytes",
							CPC_REQUEST_MAX));
		return ret ? ret : 1;
	}
	len = (size_t)(end - client->in) + 1;
	ret = run_line(client, client->in, len);
	memmove(client->in, client->in + len, client->in_len - len);
	client->in_len -= len;
	return ret ? ret : 1;
}

/* Goes on with a client until it has to wait for something, or is gone. */
static void client_pump(struct cpc_client *client)
{
	int ret = 0;

	while (!client->busy) {
		ret = send_some(client);
		if (ret || client->out)
			break;
		ret = take_line(client);
		if (ret <= 0)
			break;
	}
	if (ret < 0 || (client->eof && !client->busy && !client->out))
		client_close(client);
	else
		client_watch(client);
}

void cpc_client_answered(struct cpc_client *client, struct json_object *reply)
{
	client->busy = false;
	if (client->fd < 0) {
		json_object_put(reply);
		client_free(client);
	} else if (set_reply(client, reply) != 0) {
		client_close(client);
	} else {
		client_pump(client);
	}
}

static void on_readable(struct ev_loop *loop, ev_io *w, int events)
{
	struct cpc_client *client = w->data;
	ssize_t n = recv(client->fd, client->in + client->in_len, CPC_REQUEST_MAX - client->in_len,
			 MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n < 0) {
		client_close(client);
		return;
	}
	client->eof = n == 0;
	client->in_len += (size_t)n;
	client_pump(client);
}

static void on_writable(struct ev_loop *loop, ev_io *w, int events)
{
	client_pump(w->data);
}

static void on_timeout(struct ev_loop *loop, ev_timer *w, int events)
{
	client_close(w->data);
}

/* Takes over a connected socket. */
void cpc_client_new(struct cpc_control *control, int fd)
{
	struct cpc_client *client = cpc_zalloc(sizeof(*client));

	if (client)
		client->in = cpc_alloc(CPC_REQUEST_MAX);
	if (!client || !client->in) {
		cpc_free(client);
		close(fd);
		return;
	}
	client->control = control;
	client->fd = fd;
	ev_io_init(&client->readable, on_readable, fd, EV_READ);
	ev_io_init(&client->writable, on_writable, fd, EV_WRITE);
	ev_timer_init(&client->timeout, on_timeout, 0., IDLE_TIMEOUT);
	client->readable.data = client->writable.data = client->timeout.data = client;
	cpc_list_add_tail(&control->clients, &client->node);
	control->nr_clients++;
	client_watch(client);
}
