/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * control: the control socket of a server, a Unix socket on which the tool asks for what
 * verbs/verbs.h lists: one JSON object a line in, one a line out, in order.
 *
 * Called by server/plugin. Calls a handler that it is given, and libev; it knows nothing of pools.
 *
 * Threads. One loop thread (libev) owns all clients and runs *quick* requests itself; one worker
 * thread runs the others, one at a time, so that a change that waits for the device holds up
 * other changes and not `stats`.
 *
 * Invariants
 *  1. Every line gets one reply line, garbage included; replies of one client are in the order of
 *     its requests (client_pump() takes a line only when the previous one is answered).
 *  2. A client costs at most CPC_REQUEST_MAX bytes of input and one reply: nothing is read from it
 *     while a reply waits to be sent. Who does not take his reply within 30 s, or says
 *     nothing for 5 minutes, is closed.
 *  3. There are at most CPC_CONTROL_MAX_CLIENTS clients; one more gets an error and is closed.
 *  4. The socket has mode 0600 from the moment it exists (socket_bind()).
 *
 * Locks: `lock` (CPC_RANK_LEAF) protects the two job queues and nothing else; handlers run without
 * it. Ownership: the control owns its socket, the file of it, and its clients.
 *
 * Errors: negative errno and one line of text from listen; a client's errors end that client.
 */
#ifndef CPC_CONTROL_CONTROL_H
#define CPC_CONTROL_CONTROL_H

#include <json-c/json.h>

#include "lib/base.h"

#define CPC_CONTROL_MAX_CLIENTS 128

struct cpc_control;

struct cpc_control_handler {
	void *ctx;
	/* Any thread. Returns the reply, which the control then owns; NULL: no memory. */
	struct json_object *(*run)(void *ctx, struct json_object *request);
	/* Loop thread. True when `run` does not wait for long. */
	bool (*quick)(void *ctx, struct json_object *request);
};

/*
 * Binds the socket; nothing is answered yet. May be called before a fork. A socket file that nobody
 * listens on is replaced.
 * Return: 0; -EADDRINUSE when somebody listens there, -EEXIST when it is no socket; another errno.
 */
int cpc_control_listen(const char *path, struct cpc_control **out, char *err, size_t errlen);

/* Starts the threads. The handler lives until stop. Return: 0 or negative errno. */
int cpc_control_start(struct cpc_control *control, const struct cpc_control_handler *handler);

/* Removes the socket's file, for a process that leaves in a hurry. Any thread, more than once. */
void cpc_control_unlink(struct cpc_control *control);

/*
 * Waits for the request being run, stops the threads, removes the socket's file and frees all. NULL
 * is allowed, as is a control that was not started.
 */
void cpc_control_stop(struct cpc_control *control);

#endif
