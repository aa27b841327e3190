/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * lock: mutexes with a rank. A thread may take a mutex only if its rank is higher than that of
 * every ranked mutex it holds; CPC_DEBUG_LOCKS builds check this and the owner at each call and
 * abort with both names. docs/locking.md shows the table below with what each lock protects.
 */
#ifndef CPC_LIB_LOCK_H
#define CPC_LIB_LOCK_H

#include <pthread.h>
#include "lib/base.h"

/* Outermost first. A gap is left between ranks for locks to come. */
enum cpc_lock_rank {
	CPC_RANK_POOL = 10,	   /* names, open and close */
	CPC_RANK_COMMIT = 20,	   /* one commit at a time */
	CPC_RANK_FLUSH = 22,	   /* the line of flushes of a volume */
	CPC_RANK_WRITEBACK = 25,   /* one cut in writeback per volume */
	CPC_RANK_SUPER = 27,	   /* slots of the superblock rings, over I/O */
	CPC_RANK_MERGE = 28,	   /* one compaction of a volume's runs */
	CPC_RANK_MERGE_GATE = 29,  /* merges against a commit's freeze */
	CPC_RANK_TRANSACTION = 30, /* commit state, waiters */
	CPC_RANK_VOLUME = 40,	   /* epochs, tickets, open cut */
	CPC_RANK_LOG = 42,	   /* head of the log, batches in flight */
	CPC_RANK_VIEW = 45,	   /* current view, retired views */
	CPC_RANK_IO_TREE = 50,
	CPC_RANK_CACHE = 55, /* data cache index of one volume */
	CPC_RANK_EXTENT_BUFFER = 65,
	CPC_RANK_SPACE = 70,
	CPC_RANK_THROTTLE = 73, /* writers that wait for memory */
	CPC_RANK_MEMORY = 75,	/* free buffers, budgets */
	CPC_RANK_FLUSH_EPOCH = 80,
	CPC_RANK_BACKING = 85,
	CPC_RANK_STATS = 90,
	CPC_RANK_LEAF = 100,   /* takes nothing but the next */
	CPC_RANK_MESSAGE = 110 /* where messages go, so that one can be given under any lock */
};

struct cpc_mutex {
	pthread_mutex_t mutex;
#ifdef CPC_DEBUG_LOCKS
	const char *name;
	int rank;
	pthread_t owner;
	bool held;
#endif
};

struct cpc_cond {
	pthread_cond_t cond; /* on CLOCK_MONOTONIC */
};

void cpc_mutex_init(struct cpc_mutex *m, const char *name, enum cpc_lock_rank rank);
void cpc_mutex_destroy(struct cpc_mutex *m);
void cpc_cond_init(struct cpc_cond *c);
void cpc_cond_destroy(struct cpc_cond *c);

#ifdef CPC_DEBUG_LOCKS
void cpc_mutex_lock(struct cpc_mutex *m);
bool cpc_mutex_trylock(struct cpc_mutex *m);
void cpc_mutex_unlock(struct cpc_mutex *m);
void cpc_mutex_assert_held(const struct cpc_mutex *m);
#else
static inline void cpc_mutex_lock(struct cpc_mutex *m)
{
	pthread_mutex_lock(&m->mutex);
}

static inline bool cpc_mutex_trylock(struct cpc_mutex *m)
{
	return pthread_mutex_trylock(&m->mutex) == 0;
}

static inline void cpc_mutex_unlock(struct cpc_mutex *m)
{
	pthread_mutex_unlock(&m->mutex);
}

static inline void cpc_mutex_assert_held(const struct cpc_mutex *m)
{
	(void)m;
}
#endif

/* Releases `m` while waiting and holds it again on return. May wake for no reason. */
void cpc_cond_wait(struct cpc_cond *c, struct cpc_mutex *m);
/* As above, for at most `ns` from now. Returns false when the time has run out. */
bool cpc_cond_wait_ns(struct cpc_cond *c, struct cpc_mutex *m, uint64_t ns);
void cpc_cond_signal(struct cpc_cond *c);
void cpc_cond_broadcast(struct cpc_cond *c);

/* Starts a thread with all signals blocked. Returns 0 or negative errno. */
int cpc_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg);

#endif
