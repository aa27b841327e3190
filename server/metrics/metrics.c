/* SPDX-License-Identifier: BSD-3-Clause */
/* The port is bound early, where errors are still seen by the user; the thread comes after the
 * fork. */
#include "metrics.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/hooks.h"

#define BACKLOG		  16
#define SILENCE_SECONDS	  10u
#define CONNECTION_MEMORY ((size_t)16 << 10)

struct cpc_metrics {
	int fd; /* the daemon's once there is one */
	struct cpc_metrics_source source;
	struct MHD_Daemon *daemon; /* NULL: not started */
};

/* --- answers ------------------------------------------------------------------------------- */

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned int status, char *text,
			      enum MHD_ResponseMemoryMode memory)
{
	struct MHD_Response *response = MHD_create_response_from_buffer(strlen(text), text, memory);
	enum MHD_Result ret = MHD_NO;

	if (!response) {
		if (memory == MHD_RESPMEM_MUST_FREE)
			free(text);
		return MHD_NO;
	}
	if (MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE,
				    "text/plain; version=0.0.4; charset=utf-8") == MHD_YES)
		ret = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return ret;
}

static enum MHD_Result refuse(struct MHD_Connection *connection, unsigned int status,
			      const char *text)
{
	return answer(connection, status, (char *)text, MHD_RESPMEM_PERSISTENT);
}

/* Closes the connection by MHD_NO. */
static enum MHD_Result on_request(void *ctx, struct MHD_Connection *connection, const char *url,
				  const char *method, const char *version, const char *upload,
				  size_t *upload_size, void **state)
{
	const struct cpc_metrics *metrics = ctx;
	char *text;

	if (strcmp(url, "/metrics") != 0)
		return refuse(connection, MHD_HTTP_NOT_FOUND, "only /metrics is here\n");
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return refuse(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n");
	text = metrics->source.text(metrics->source.ctx);
	if (!text)
		return refuse(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "out of memory\n");
	return answer(connection, MHD_HTTP_OK, text, MHD_RESPMEM_MUST_FREE);
}

/* --- life ---------------------------------------------------------------------------------- */

/* Return: the listening socket or negative errno. */
static int listen_on(uint16_t port)
{
	struct sockaddr_in addr = {
	    .sin_family = AF_INET,
	    .sin_port = htons(port),
	    .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), yes = 1, ret;

	if (fd < 0)
		return -errno;
	/* A port of connections that have just ended may be taken again, one in use may not. */
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
	    bind(fd, (const struct sockaddr *)&addr, sizeof(addr)) == 0 && listen(fd, BACKLOG) == 0)
		return fd;
	ret = -errno;
	close(fd);
	return ret;
}

int cpc_metrics_listen(uint16_t port, struct cpc_metrics **out, char *err, size_t errlen)
{
	struct cpc_metrics *metrics = cpc_zalloc(sizeof(*metrics));
	int ret;

	if (!metrics) {
		snprintf(err, errlen, "metrics=%u: out of memory", port);
		return -ENOMEM;
	}
	ret = metrics->fd = listen_on(port);
	if (ret < 0) {
		snprintf(err, errlen, "metrics=%u: cannot listen on 127.0.0.1: %s%s", port,
			 strerror(-ret), ret == -EADDRINUSE ? "; choose another port" : "");
		cpc_free(metrics);
		return ret;
	}
	*out = metrics;
	return 0;
}

/*
 * Signals are for nbdkit's threads: the library's inherits that it takes none. ITC: while all
 * connections are taken the library does not look at the listening socket, whose end it would
 * otherwise notice a stop by.
 */
int cpc_metrics_start(struct cpc_metrics *metrics, const struct cpc_metrics_source *source)
{
	sigset_t all, old;

	metrics->source = *source;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	metrics->daemon = MHD_start_daemon(
	    MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ITC, 0, NULL, NULL, on_request,
	    metrics, MHD_OPTION_LISTEN_SOCKET, metrics->fd, MHD_OPTION_CONNECTION_LIMIT,
	    CPC_METRICS_MAX_CLIENTS, MHD_OPTION_CONNECTION_TIMEOUT, SILENCE_SECONDS,
	    MHD_OPTION_CONNECTION_MEMORY_LIMIT, CONNECTION_MEMORY, MHD_OPTION_END);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return metrics->daemon ? 0 : -ENOMEM;
}

void cpc_metrics_stop(struct cpc_metrics *metrics)
{
	if (!metrics)
		return;
	if (metrics->daemon)
		MHD_stop_daemon(metrics->daemon);
	else
		close(metrics->fd);
	cpc_free(metrics);
}
