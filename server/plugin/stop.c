/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugin/stop.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lib/hooks.h"
#include "lib/lock.h"
#include "lib/log.h"

#define SECOND_NS   1000000000ull
#define STEP_NS	    (SECOND_NS / 10)
#define SHUTDOWN_NS (4 * SECOND_NS - SECOND_NS / 4 - STEP_NS)
#define GRACE_NS    (1 * SECOND_NS)

static struct {
	const struct cpc_stop_actions *actions; /* immutable, as the next three, once watching */
	int fd;
	bool watching;
	pthread_t thread;
	struct cpc_mutex lock;
	struct cpc_cond changed;
	atomic_bool signaled; /* these only ever become true */
	bool stopped;	      /* lock, as the next */
	bool gone;	      /* nbdkit has let go of the plugin: the process ends by itself */
} stop = {.fd = -1};

static const int stop_signals[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP};
static struct sigaction old_actions[CPC_ARRAY_SIZE(stop_signals)]; /* immutable once watching */

/* Wakes the thread that watches. */
static void wake(void)
{
	const uint64_t one = 1;

	(void)!write(stop.fd, &one, sizeof(one));
}

/* --- signals ------------------------------------------------------------------------------- */

static void call_old(int sig, siginfo_t *info, void *context)
{
	const struct sigaction *old;

	for (size_t i = 0; i < CPC_ARRAY_SIZE(stop_signals); i++) {
		if (stop_signals[i] != sig)
			continue;
		old = &old_actions[i];
		if (old->sa_flags & SA_SIGINFO)
			old->sa_sigaction(sig, info, context);
		else
			old->sa_handler(sig);
	}
}

/* Only what is allowed in a signal handler: a store, write, and nbdkit's own handler. */
static void on_signal(int sig, siginfo_t *info, void *context)
{
	int saved = errno;

	atomic_store(&stop.signaled, true);
	wake();
	errno = saved;
	call_old(sig, info, context);
}

/* A signal that nbdkit ignores or leaves alone is left alone. */
static void chain_signal(size_t i)
{
	struct sigaction action = {.sa_sigaction = on_signal};

	if (sigaction(stop_signals[i], NULL, &old_actions[i]) != 0)
		return;
	if (!(old_actions[i].sa_flags & SA_SIGINFO) &&
	    (old_actions[i].sa_handler == SIG_DFL || old_actions[i].sa_handler == SIG_IGN))
		return;
	action.sa_mask = old_actions[i].sa_mask;
	action.sa_flags = old_actions[i].sa_flags | SA_SIGINFO;
	sigaction(stop_signals[i], &action, NULL);
}

/* --- threads ------------------------------------------------------------------------------- */

static void *shutdown_main(void *arg)
{
	stop.actions->shutdown();
	cpc_mutex_lock(&stop.lock);
	stop.stopped = true;
	cpc_cond_broadcast(&stop.changed);
	cpc_mutex_unlock(&stop.lock);
	return NULL;
}

/* Has the pool shut down by a thread of its own, so that this one can watch the clock. */
static void begin_shutdown(void)
{
	pthread_t thread;

	if (cpc_thread_start(&thread, "coppice-stop", shutdown_main, NULL) == 0)
		pthread_detach(thread);
	else
		shutdown_main(NULL);
}

/* Waits until *flag or until the time has come. Return: the flag. */
static bool wait_flag(const bool *flag, uint64_t until_ns)
{
	uint64_t now = cpc_now_ns();
	bool set;

	cpc_mutex_lock(&stop.lock);
	while (!*flag && now < until_ns) {
		cpc_cond_wait_ns(&stop.changed, &stop.lock, until_ns - now);
		now = cpc_now_ns();
	}
	set = *flag;
	cpc_mutex_unlock(&stop.lock);
	return set;
}

static _Noreturn void leave(int status)
{
	stop.actions->leave();
	_exit(status);
}

/* Without a limit until a signal comes, which may be later than the end. */
static bool wait_stopped(void)
{
	uint64_t now = cpc_now_ns(), limit = UINT64_MAX;

	while (!wait_flag(&stop.stopped, cpc_min_u64(limit, now + STEP_NS))) {
		now = cpc_now_ns();
		if (now >= limit)
			return false;
		if (limit == UINT64_MAX && atomic_load(&stop.signaled))
			limit = now + SHUTDOWN_NS;
	}
	return true;
}

/* Returns when nbdkit ends the process. */
static void stop_process(void)
{
	begin_shutdown();
	if (!wait_stopped()) {
		cpc_error("the pool could not be closed in time; leaving without. What was flushed "
			  "is safe");
		leave(1);
	}
	if (wait_flag(&stop.gone, cpc_now_ns() + GRACE_NS))
		return;
	cpc_info("the pool is closed; leaving without waiting for clients any longer");
	leave(0);
}

static void wait_for_wake(void)
{
	struct pollfd p = {.fd = stop.fd, .events = POLLIN};

	while (poll(&p, 1, -1) < 0 && errno == EINTR)
		;
}

static void *watch_main(void *arg)
{
	wait_for_wake();
	stop_process();
	return NULL;
}

int cpc_stop_watch(const struct cpc_stop_actions *actions)
{
	int ret;

	stop.actions = actions;
	cpc_mutex_init(&stop.lock, "stop", CPC_RANK_LEAF);
	cpc_cond_init(&stop.changed);
	stop.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (stop.fd < 0)
		return -errno;
	ret = cpc_thread_start(&stop.thread, "coppice-watch", watch_main, NULL);
	if (ret)
		return ret;
	for (size_t i = 0; i < CPC_ARRAY_SIZE(stop_signals); i++)
		chain_signal(i);
	stop.watching = true;
	return 0;
}

bool cpc_stop_join(void)
{
	if (!stop.watching)
		return false;
	wake();
	cpc_mutex_lock(&stop.lock);
	while (!stop.stopped)
		cpc_cond_wait(&stop.changed, &stop.lock);
	cpc_mutex_unlock(&stop.lock);
	return true;
}

void cpc_stop_end(void)
{
	if (!stop.watching)
		return;
	cpc_mutex_lock(&stop.lock);
	stop.gone = true;
	cpc_cond_broadcast(&stop.changed);
	cpc_mutex_unlock(&stop.lock);
	pthread_join(stop.thread, NULL);
}
