/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * control-internal: the parts of control. control.c has the socket and the loop, client.c what one
 * client says and hears, worker.c the thread for requests that may wait.
 */
#ifndef CPC_CONTROL_INTERNAL_H
#define CPC_CONTROL_INTERNAL_H

#include <ev.h>
#include <sys/un.h>

#include "control/control.h"
#include "lib/list.h"
#include "lib/lock.h"

/* One request on its way through the worker. */
struct cpc_job {
	struct cpc_list node; /* `lock` while queued */
	struct cpc_client *client;
	struct json_object *request;
	struct json_object *reply; /* NULL until run; may stay NULL */
};

struct cpc_control {
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* immutable, as the next three */
	int fd;
	uint64_t dev, ino;		    /* of the socket's file */
	struct cpc_control_handler handler; /* immutable after start */
	bool started;
	pthread_t loop_thread, worker_thread;

	/* Loop thread only. */
	struct ev_loop *loop;
	ev_io accept_watcher;
	ev_timer accept_timer; /* pause after accept has failed */
	struct cpc_list clients;
	unsigned nr_clients;

	ev_async wake; /* worker to loop: something is done; or stop */

	struct cpc_mutex lock;
	struct cpc_cond work;
	struct cpc_list queue; /* lock, as the rest */
	struct cpc_list done;
	bool stopping;
};

struct cpc_client {
	struct cpc_control *control;
	struct cpc_list node;
	int fd; /* -1: gone, but the worker still has its request */
	ev_io readable, writable;
	ev_timer timeout;
	char *in;
	size_t in_len; /* at most CPC_REQUEST_MAX */
	char *out;     /* reply being sent, NULL: none */
	size_t out_len, out_pos;
	bool busy;    /* a job is with the worker */
	bool eof;     /* will say no more */
	bool closing; /* close when `out` is sent */
};

/* client.c; loop thread only */
void cpc_client_new(struct cpc_control *control, int fd);
void cpc_client_answered(struct cpc_client *client, struct json_object *reply);
void cpc_client_destroy(struct cpc_client *client);

/* worker.c */
int cpc_worker_start(struct cpc_control *control);
void cpc_worker_stop(struct cpc_control *control);
/* Hands a request over; it is the worker's then. Return: 0 or -ENOMEM (request is freed). */
int cpc_worker_submit(struct cpc_client *client, struct json_object *request);
/* Takes one finished job, or NULL. Loop thread. */
struct cpc_job *cpc_worker_take_done(struct cpc_control *control);
void cpc_job_free(struct cpc_job *job);

#endif
