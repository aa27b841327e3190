/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The socket and the loop. The socket is bound early, where errors are still seen by the user; the
 * loop and its threads come after the fork. A socket file left by a killed server is found out by
 * connecting to it: nobody listens. Two servers that start on one path at the same time are kept
 * apart by what they serve, a pool has one owner; with a path given by hand one of them can
 * lose its file, not more.
 */
#include "control-internal.h"

#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/hooks.h"
#include "protocol/reply.h"

static int fail(char *err, size_t errlen, const char *path, const char *what, int code)
{
	snprintf(err, errlen, "control socket %s: %s", path, what);
	return code;
}

/* --- bind ---------------------------------------------------------------------------------- */

static bool somebody_listens(const struct sockaddr_un *addr)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	bool listens;

	if (fd < 0)
		return true;
	listens = connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0 ||
		  (errno != ECONNREFUSED && errno != ENOENT);
	close(fd);
	return listens;
}

/* Removes a socket that a dead server left. Return: 0 or negative errno. */
static int remove_stale(const struct sockaddr_un *addr, char *err, size_t errlen)
{
	const char *path = addr->sun_path;
	struct stat st;

	if (lstat(path, &st) != 0)
		return errno == ENOENT ? 0 : fail(err, errlen, path, strerror(errno), -errno);
	if (!S_ISSOCK(st.st_mode))
		return fail(err, errlen, path, "this is no socket; give another path", -EEXIST);
	if (somebody_listens(addr))
		return fail(
		    err, errlen, path,
		    "another process listens there; give another path with control=", -EADDRINUSE);
	if (unlink(path) != 0 && errno != ENOENT)
		return fail(err, errlen, path, strerror(errno), -errno);
	return 0;
}

static int socket_bind(struct cpc_control *control, const struct sockaddr_un *addr)
{
	mode_t mask = umask(0177);
	int ret = bind(control->fd, (const struct sockaddr *)addr, sizeof(*addr)) ? -errno : 0;
	struct stat st;

	umask(mask);
	if (ret == 0 && listen(control->fd, 64) != 0)
		ret = -errno;
	if (ret == 0 && stat(addr->sun_path, &st) != 0)
		ret = -errno;
	if (ret == 0) {
		control->dev = st.st_dev;
		control->ino = st.st_ino;
	}
	return ret;
}

static struct cpc_control *control_alloc(const char *path)
{
	struct cpc_control *control = cpc_zalloc(sizeof(*control));

	if (!control)
		return NULL;
	memcpy(control->path, path, strlen(path) + 1);
	cpc_mutex_init(&control->lock, "control", CPC_RANK_LEAF);
	cpc_cond_init(&control->work);
	cpc_list_init(&control->clients);
	cpc_list_init(&control->queue);
	cpc_list_init(&control->done);
	control->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	return control;
}

static void control_free(struct cpc_control *control)
{
	if (control->fd >= 0)
		close(control->fd);
	cpc_cond_destroy(&control->work);
	cpc_mutex_destroy(&control->lock);
	cpc_free(control);
}

int cpc_control_listen(const char *path, struct cpc_control **out, char *err, size_t errlen)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct cpc_control *control;
	int ret;

	if (strlen(path) >= sizeof(addr.sun_path))
		return fail(err, errlen, path, "the path is too long for a Unix socket",
			    -ENAMETOOLONG);
	memcpy(addr.sun_path, path, strlen(path));
	ret = remove_stale(&addr, err, errlen);
	if (ret)
		return ret;
	control = control_alloc(path);
	if (!control)
		return fail(err, errlen, path, "out of memory", -ENOMEM);
	ret = control->fd < 0 ? -EMFILE : socket_bind(control, &addr);
	if (ret) {
		control_free(control);
		return fail(err, errlen, path, strerror(-ret), ret);
	}
	*out = control;
	return 0;
}

void cpc_control_unlink(struct cpc_control *control)
{
	struct stat st;

	if (lstat(control->path, &st) == 0 && st.st_dev == control->dev &&
	    st.st_ino == control->ino)
		unlink(control->path);
}

/* --- loop ---------------------------------------------------------------------------------- */

static void turn_away(int fd)
{
	struct json_object *reply = cpc_reply_error(EBUSY, "too many control clients; try later");
	const char *text =
	    reply ? json_object_to_json_string_ext(reply, JSON_C_TO_STRING_PLAIN) : NULL;

	if (text && send(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
		(void)!send(fd, "\n", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	json_object_put(reply);
	close(fd);
}

static void on_accept(struct ev_loop *loop, ev_io *w, int events)
{
	struct cpc_control *control = w->data;
	int fd = accept4(control->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0) {
		if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS)
			return;
		/* The connection stays in the queue and would wake us at once: pause. */
		ev_io_stop(loop, &control->accept_watcher);
		ev_timer_start(loop, &control->accept_timer);
		return;
	}
	if (control->nr_clients >= CPC_CONTROL_MAX_CLIENTS)
		turn_away(fd);
	else
		cpc_client_new(control, fd);
}

static void on_accept_timer(struct ev_loop *loop, ev_timer *w, int events)
{
	struct cpc_control *control = w->data;

	ev_timer_set(&control->accept_timer, 1., 0.);
	ev_io_start(loop, &control->accept_watcher);
}

static void on_wake(struct ev_loop *loop, ev_async *w, int events)
{
	struct cpc_control *control = w->data;
	struct cpc_job *job;
	bool stopping;

	while ((job = cpc_worker_take_done(control))) {
		struct json_object *reply = job->reply;

		job->reply = NULL;
		cpc_client_answered(job->client, reply);
		cpc_job_free(job);
	}
	cpc_mutex_lock(&control->lock);
	stopping = control->stopping;
	cpc_mutex_unlock(&control->lock);
	if (stopping)
		ev_break(loop, EVBREAK_ALL);
}

static void *loop_main(void *arg)
{
	struct cpc_control *control = arg;

	ev_run(control->loop, 0);
	return NULL;
}

static int loop_init(struct cpc_control *control)
{
	control->loop = ev_loop_new(EVFLAG_NOENV);
	if (!control->loop)
		return -ENOMEM;
	ev_io_init(&control->accept_watcher, on_accept, control->fd, EV_READ);
	ev_timer_init(&control->accept_timer, on_accept_timer, 1., 0.);
	ev_async_init(&control->wake, on_wake);
	control->accept_watcher.data = control->accept_timer.data = control->wake.data = control;
	ev_io_start(control->loop, &control->accept_watcher);
	ev_async_start(control->loop, &control->wake);
	return 0;
}

/* --- life ---------------------------------------------------------------------------------- */

static void set_stopping(struct cpc_control *control)
{
	cpc_mutex_lock(&control->lock);
	control->stopping = true;
	cpc_cond_broadcast(&control->work);
	cpc_mutex_unlock(&control->lock);
}

int cpc_control_start(struct cpc_control *control, const struct cpc_control_handler *handler)
{
	int ret;

	control->handler = *handler;
	ret = loop_init(control);
	if (ret)
		return ret;
	ret = cpc_worker_start(control);
	if (ret)
		goto fail_loop;
	ret = cpc_thread_start(&control->loop_thread, "coppice-control", loop_main, control);
	if (ret)
		goto fail_worker;
	control->started = true;
	return 0;

fail_worker:
	set_stopping(control);
	cpc_worker_stop(control);
fail_loop:
	ev_loop_destroy(control->loop);
	control->loop = NULL;
	return ret;
}

/* The loop ends first, so that no job is submitted behind the worker's back. */
static void stop_threads(struct cpc_control *control)
{
	struct cpc_list *pos, *tmp;

	set_stopping(control);
	ev_async_send(control->loop, &control->wake);
	pthread_join(control->loop_thread, NULL);
	cpc_worker_stop(control);
	cpc_list_for_each_safe (pos, tmp, &control->clients)
		cpc_client_destroy(cpc_list_entry(pos, struct cpc_client, node));
	ev_loop_destroy(control->loop);
}

void cpc_control_stop(struct cpc_control *control)
{
	if (!control)
		return;
	if (control->started)
		stop_threads(control);
	cpc_control_unlink(control);
	control_free(control);
}
