/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * metrics: the counters of a server over HTTP, for a Prometheus collector on the same host.
 *
 * Called by server/plugin. Calls libmicrohttpd and a function that gives the text; it knows nothing
 * of pools.
 *
 * GET or HEAD of /metrics is answered with the text, any other path with 404, any other method
 * with 405. It listens on 127.0.0.1 only: there is no access control, and whoever has an account
 * here may read. Another host reads through a proxy that the administrator chooses.
 *
 * Invariants
 *  1. At most CPC_METRICS_MAX_CLIENTS connections; more of them wait in the socket's queue. One
 *     that is silent for 10 s is closed. A connection costs at most 16 KiB and one text.
 *  2. Requests for disks never wait for it: one thread of its own answers all.
 *
 * Locks: none. Errors: negative errno and one line of text from listen.
 */
#ifndef CPC_METRICS_METRICS_H
#define CPC_METRICS_METRICS_H

#include "lib/base.h"

#define CPC_METRICS_MAX_CLIENTS 16

struct cpc_metrics;

struct cpc_metrics_source {
	void *ctx;
	char *(*text)(
	    void *ctx); /* to be given to free(); NULL: no memory. The own thread calls. */
};

/* Binds the port; nothing is answered yet. May be called before a fork. */
int cpc_metrics_listen(uint16_t port, struct cpc_metrics **out, char *err, size_t errlen);

/* Starts the thread. The source lives until stop. Return: 0 or -ENOMEM. */
int cpc_metrics_start(struct cpc_metrics *metrics, const struct cpc_metrics_source *source);

/* Waits for the answer being made, ends all connections, frees all. NULL is allowed. */
void cpc_metrics_stop(struct cpc_metrics *metrics);

#endif
