/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Why this way: lookups in the caches take tens of nanoseconds and run on every core; a lock or
 * a shared reference count would cost more than the lookup. Here a reader writes one word of
 * its own cache line with one locked instruction.
 *
 * Normal path. Retiring pushes on one lock-free stack. One thread at a time, the *owner*, moves
 * objects on:
 *
 *	retire        start_grace_period     grace_period_over         free_some
 *	  -> pending ----------------> waiting ----------------> ready ----------> freed
 *
 * A grace period takes all that is pending and gives itself the next generation number. It is
 * over when each registered thread has been seen outside a section or in one that began at
 * this generation or later. Waiting and ready hold one batch each, so no list needs a tail.
 *
 * Why readers are seen. Enter is an atomic exchange on the thread's word, the scan an atomic
 * fetch_or(0) on the same word: one of the two comes first. If the exchange, the scan sees the
 * section. If the scan, the exchange reads what the scan wrote and so synchronizes with it, and
 * the section sees every unlinking that the scan knows of. A section whose number is not lower
 * than that of the grace period has read the number after it was published, and synchronizes
 * through it. No fence is involved, and ThreadSanitizer understands all of it.
 *
 * Slow paths: a thread's first section registers its record; drain yields, later sleeps.
 *
 * Rejected: a fence in enter (TSan knows none, the cost is the same); membarrier(2) (no cost for
 * readers, but microseconds for each scan, and scans run inside erase); hazard pointers (a fence
 * for each level of a tree); queues per thread (who empties them when the thread sleeps?).
 */
#include "lib/epoch.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#define RECLAIM_EVERY	 32u /* retire calls */
#define RECLAIM_BUDGET	 64u /* objects freed by one reclaim; more than RECLAIM_EVERY */
#define DRAIN_YIELDS	 64u /* before drain sleeps between looks */
#define DRAIN_SLEEP_NS	 50000
#define GENERATION_FIRST 1 /* 0 means "outside" in a thread's record */

_Thread_local struct cpc_epoch_thread cpc_epoch_self;
_Atomic(uint64_t) cpc_epoch_generation = GENERATION_FIRST;

static _Atomic(struct cpc_epoch_entry *) pending;
static _Atomic(size_t) outstanding; /* pending + waiting + ready */

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t owner_left = PTHREAD_COND_INITIALIZER;
static struct cpc_epoch_thread *threads; /* registry_lock */
static bool owned;			 /* registry_lock */

/* The owner's. */
static struct cpc_epoch_entry *waiting, *ready;
static uint64_t grace_period; /* generation that `waiting` waits for */

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool key_valid; /* written once before threads use it, and at unload */

static void thread_unregister(void *arg)
{
	struct cpc_epoch_thread *self = arg;

	cpc_assert(self->nest == 0);
	pthread_mutex_lock(&registry_lock);
	if (self->prev)
		self->prev->next = self->next;
	else
		threads = self->next;
	if (self->next)
		self->next->prev = self->prev;
	pthread_mutex_unlock(&registry_lock);
	self->registered = false;
}

static void key_create(void)
{
	key_valid = pthread_key_create(&key, thread_unregister) == 0;
	cpc_assert(key_valid);
}

/* When the plugin is unloaded, threads that live on must not call into it as they end. */
__attribute__((destructor)) static void key_delete(void)
{
	if (key_valid)
		pthread_key_delete(key);
}

/* Enters this thread in the registry. Context: called by cpc_epoch_enter() only. */
void cpc_epoch_register(void)
{
	struct cpc_epoch_thread *self = cpc_epoch_this_thread();
	int ret;

	pthread_once(&key_once, key_create);
	ret = pthread_setspecific(key, self);
	cpc_assert(ret == 0);
	self->passed = 0;
	self->prev = NULL;
	pthread_mutex_lock(&registry_lock);
	self->next = threads;
	if (threads)
		threads->prev = self;
	threads = self;
	pthread_mutex_unlock(&registry_lock);
	self->registered = true;
}

/* Becomes the owner. Returns false if `wait` is not set and there is one. */
static bool own(bool wait)
{
	bool got;

	if (wait)
		pthread_mutex_lock(&registry_lock);
	else if (pthread_mutex_trylock(&registry_lock) != 0)
		return false;
	while (owned && wait)
		pthread_cond_wait(&owner_left, &registry_lock);
	got = !owned;
	owned = true;
	pthread_mutex_unlock(&registry_lock);
	return got;
}

static void disown(void)
{
	pthread_mutex_lock(&registry_lock);
	owned = false;
	pthread_cond_signal(&owner_left);
	pthread_mutex_unlock(&registry_lock);
}

/* Takes what is pending. Context: owner, nothing waits. */
static void start_grace_period(void)
{
	waiting = atomic_exchange_explicit(&pending, NULL, memory_order_acquire);
	if (waiting)
		grace_period =
		    atomic_fetch_add_explicit(&cpc_epoch_generation, 1, memory_order_acq_rel) + 1;
}

/* Says whether no reader can see what waits. Context: owner. */
static bool grace_period_over(void)
{
	bool over = true;

	pthread_mutex_lock(&registry_lock);
	for (struct cpc_epoch_thread *t = threads; t; t = t->next) {
		uint64_t section;

		if (t->passed == grace_period)
			continue;
		section = atomic_fetch_or_explicit(&t->section, 0, memory_order_acq_rel);
		if (section == 0 || section >= grace_period)
			t->passed = grace_period;
		else
			over = false;
	}
	pthread_mutex_unlock(&registry_lock);
	return over;
}

/* Frees at most `budget` of what is ready. Context: owner. */
static void free_some(size_t budget)
{
	struct cpc_epoch_thread *self = cpc_epoch_this_thread();
	size_t nr = 0;

	self->freeing = true;
	while (ready && nr < budget) {
		struct cpc_epoch_entry *entry = ready;

		ready = entry->next;
		entry->free_fn(entry);
		nr++;
	}
	self->freeing = false;
	atomic_fetch_sub_explicit(&outstanding, nr, memory_order_relaxed);
}

void cpc_epoch_reclaim(void)
{
	if (cpc_epoch_outstanding() == 0 || cpc_epoch_this_thread()->freeing || !own(false))
		return;
	if (!waiting)
		start_grace_period();
	if (waiting && !ready && grace_period_over()) {
		ready = waiting;
		start_grace_period();
	}
	free_some(RECLAIM_BUDGET);
	disown();
}

void cpc_epoch_retire(struct cpc_epoch_entry *entry, void (*free_fn)(struct cpc_epoch_entry *entry))
{
	struct cpc_epoch_entry *head = atomic_load_explicit(&pending, memory_order_relaxed);
	size_t nr = atomic_fetch_add_explicit(&outstanding, 1, memory_order_relaxed) + 1;

	entry->free_fn = free_fn;
	do {
		entry->next = head;
	} while (!atomic_compare_exchange_weak_explicit(
	    &pending, &head, entry, memory_order_release, memory_order_relaxed));
	if (nr % RECLAIM_EVERY == 0)
		cpc_epoch_reclaim();
}

static void wait_for_readers(void)
{
	static const struct timespec pause = {.tv_nsec = DRAIN_SLEEP_NS};

	for (unsigned int i = 0; !grace_period_over(); i++) {
		if (i < DRAIN_YIELDS)
			sched_yield();
		else
			nanosleep(&pause, NULL);
	}
}

void cpc_epoch_drain(void)
{
	cpc_assert(!cpc_epoch_inside() && !cpc_epoch_this_thread()->freeing);
	own(true);
	free_some(SIZE_MAX);
	/* What waits, then what is pending. */
	for (int i = 0; i < 2; i++) {
		if (!waiting)
			start_grace_period();
		if (!waiting)
			break;
		wait_for_readers();
		ready = waiting;
		waiting = NULL;
		free_some(SIZE_MAX);
	}
	disown();
}

size_t cpc_epoch_outstanding(void)
{
	return atomic_load_explicit(&outstanding, memory_order_relaxed);
}
