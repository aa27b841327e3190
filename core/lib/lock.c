/* SPDX-License-Identifier: BSD-3-Clause */
#include "lib/lock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/*
 * Adaptive: who finds it held spins for some microseconds before he sleeps. What our mutexes
 * protect mostly takes a fraction of that, while going to sleep and being woken takes a hundred
 * times as long, with hundreds of runnable threads more: that was the 99th percentile of the
 * io tree. The C library keeps the number of spins small where spinning did not help.
 */
void cpc_mutex_init(struct cpc_mutex *m, const char *name, enum cpc_lock_rank rank)
{
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
	pthread_mutex_init(&m->mutex, &attr);
	pthread_mutexattr_destroy(&attr);
#ifdef CPC_DEBUG_LOCKS
	m->name = name;
	m->rank = rank;
	m->held = false;
#else
	(void)name;
	(void)rank;
#endif
}

void cpc_mutex_destroy(struct cpc_mutex *m)
{
	pthread_mutex_destroy(&m->mutex);
}

void cpc_cond_init(struct cpc_cond *c)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&c->cond, &attr);
	pthread_condattr_destroy(&attr);
}

void cpc_cond_destroy(struct cpc_cond *c)
{
	pthread_cond_destroy(&c->cond);
}

#ifdef CPC_DEBUG_LOCKS

#define MAX_HELD 16

static _Thread_local const struct cpc_mutex *held_locks[MAX_HELD];
static _Thread_local int nr_held;

static void held_push(struct cpc_mutex *m)
{
	cpc_assert(nr_held < MAX_HELD);
	held_locks[nr_held++] = m;
	m->owner = pthread_self();
	m->held = true;
}

static void held_pop(struct cpc_mutex *m)
{
	int i;

	cpc_mutex_assert_held(m);
	for (i = nr_held - 1; i >= 0 && held_locks[i] != m; i--)
		;
	cpc_assert(i >= 0);
	for (; i + 1 < nr_held; i++)
		held_locks[i] = held_locks[i + 1];
	nr_held--;
	m->held = false;
}

static void check_rank(const struct cpc_mutex *m)
{
	for (int i = 0; i < nr_held; i++) {
		if (held_locks[i]->rank < m->rank)
			continue;
		fprintf(stderr, "coppice: lock order: %s (%d) taken while holding %s (%d)\n",
			m->name, m->rank, held_locks[i]->name, held_locks[i]->rank);
		abort();
	}
}

void cpc_mutex_lock(struct cpc_mutex *m)
{
	check_rank(m);
	pthread_mutex_lock(&m->mutex);
	held_push(m);
}

bool cpc_mutex_trylock(struct cpc_mutex *m)
{
	if (pthread_mutex_trylock(&m->mutex) != 0)
		return false;
	held_push(m);
	return true;
}

void cpc_mutex_unlock(struct cpc_mutex *m)
{
	held_pop(m);
	pthread_mutex_unlock(&m->mutex);
}

void cpc_mutex_assert_held(const struct cpc_mutex *m)
{
	if (m->held && pthread_equal(m->owner, pthread_self()))
		return;
	fprintf(stderr, "coppice: lock %s is not held by this thread\n", m->name);
	abort();
}

#define BEFORE_WAIT(m) held_pop(m)
#define AFTER_WAIT(m)  held_push(m)
#else
#define BEFORE_WAIT(m) ((void)0)
#define AFTER_WAIT(m)  ((void)0)
#endif

void cpc_cond_wait(struct cpc_cond *c, struct cpc_mutex *m)
{
	BEFORE_WAIT(m);
	pthread_cond_wait(&c->cond, &m->mutex);
	AFTER_WAIT(m);
}

bool cpc_cond_wait_ns(struct cpc_cond *c, struct cpc_mutex *m, uint64_t ns)
{
	struct timespec ts;
	int ret;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	ns += (uint64_t)ts.tv_nsec;
	ts.tv_sec += (time_t)(ns / 1000000000u);
	ts.tv_nsec = (long)(ns % 1000000000u);
	BEFORE_WAIT(m);
	ret = pthread_cond_timedwait(&c->cond, &m->mutex, &ts);
	AFTER_WAIT(m);
	return ret != ETIMEDOUT;
}

void cpc_cond_signal(struct cpc_cond *c)
{
	pthread_cond_signal(&c->cond);
}

void cpc_cond_broadcast(struct cpc_cond *c)
{
	pthread_cond_broadcast(&c->cond);
}

int cpc_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg)
{
	sigset_t all, old;
	int ret;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	ret = pthread_create(thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (ret)
		return -ret;
	pthread_setname_np(*thread, name);
	return 0;
}
