/* SPDX-License-Identifier: BSD-3-Clause */
#include "client.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	flockfile(stdout);
	fputs("FAILED: ", stdout);
	vfprintf(stdout, format, args);
	putc('\n', stdout);
	fflush(stdout);
	_exit(1);
}

uint64_t rng_next(struct rng *rng)
{
	uint64_t x = rng->state += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

uint64_t rng_below(struct rng *rng, uint64_t below)
{
	return rng_next(rng) % below;
}

bool rng_percent(struct rng *rng, unsigned percent)
{
	return rng_below(rng, 100) < percent;
}

void rng_fill(struct rng *rng, void *buf, size_t len)
{
	unsigned char *p = buf;

	while (len > 0) {
		uint64_t word = rng_next(rng);
		size_t n = len < sizeof(word) ? len : sizeof(word);

		memcpy(p, &word, n);
		p += n;
		len -= n;
	}
}

void range_locks_init(struct range_locks *locks)
{
	memset(locks, 0, sizeof(*locks));
	pthread_mutex_init(&locks->mutex, NULL);
	pthread_cond_init(&locks->released, NULL);
}

/* Returns a free slot, or NULL while somebody holds a part of the range. Context: mutex held. */
static struct range_lock *try_lock_locked(struct range_locks *locks, uint64_t start, uint64_t len,
					  bool shared)
{
	struct range_lock *slot = NULL;

	for (int i = 0; i < RANGE_LOCKS_MAX; i++) {
		struct range_lock *held = &locks->held[i];

		if (held->len == 0)
			slot = held;
		else if (start < held->start + held->len && held->start < start + len &&
			 !(shared && held->shared))
			return NULL;
	}
	return slot;
}

struct range_lock *range_lock(struct range_locks *locks, uint64_t start, uint64_t len, bool shared)
{
	struct range_lock *lock;

	pthread_mutex_lock(&locks->mutex);
	while (!(lock = try_lock_locked(locks, start, len, shared)))
		pthread_cond_wait(&locks->released, &locks->mutex);
	*lock = (struct range_lock){.start = start, .len = len, .shared = shared};
	pthread_mutex_unlock(&locks->mutex);
	return lock;
}

void range_unlock(struct range_locks *locks, struct range_lock *lock)
{
	pthread_mutex_lock(&locks->mutex);
	lock->len = 0;
	pthread_cond_broadcast(&locks->released);
	pthread_mutex_unlock(&locks->mutex);
}

static struct nbd_handle *try_connect(const char *uri)
{
	struct nbd_handle *nbd = nbd_create();

	if (!nbd)
		fail("nbd_create: %s", nbd_get_error());
	if (nbd_add_meta_context(nbd, LIBNBD_CONTEXT_BASE_ALLOCATION) == 0 &&
	    nbd_connect_uri(nbd, uri) == 0)
		return nbd;
	nbd_close(nbd);
	return NULL;
}

struct nbd_handle *client_connect(const char *uri)
{
	struct nbd_handle *nbd = try_connect(uri);

	if (!nbd)
		fail("%s: %s", uri, nbd_get_error());
	return nbd;
}

struct nbd_handle *client_connect_wait(const char *uri, unsigned seconds)
{
	for (unsigned tries = 0; tries < seconds * 50; tries++) {
		struct nbd_handle *nbd = try_connect(uri);

		if (nbd)
			return nbd;
		usleep(20000);
	}
	fail("%s: no server within %u s: %s", uri, seconds, nbd_get_error());
}
