/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * client: what the libnbd programs of the client tests share: an end with a message, random
 * numbers, locks on ranges of a disk, connections.
 *
 * Called by the programs beside it; calls libnbd. Offsets and lengths are bytes of the
 * disk unless a program says otherwise; ranges are start + len.
 */
#ifndef CLIENT_H
#define CLIENT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <libnbd.h>

/* Prints "FAILED: ..." and ends the process with 1, whatever other threads do. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* --- random numbers: splitmix64, the same sequence for the same seed ------------------------- */

struct rng {
	uint64_t state;
};

uint64_t rng_next(struct rng *rng);
/* 0 to below - 1; below is not 0. */
uint64_t rng_below(struct rng *rng, uint64_t below);
bool rng_percent(struct rng *rng, unsigned percent);
void rng_fill(struct rng *rng, void *buf, size_t len);

/* --- range locks: a range has one writer or any number of readers ---------------------------- */

#define RANGE_LOCKS_MAX 256 /* ranges held at once, so also threads */

struct range_lock {
	uint64_t start, len; /* len 0: free slot */
	bool shared;
};

struct range_locks {
	pthread_mutex_t mutex;
	pthread_cond_t released;
	struct range_lock held[RANGE_LOCKS_MAX]; /* under mutex */
};

void range_locks_init(struct range_locks *locks);
/* Waits until the range can be had. Return: the lock, for range_unlock. One lock a thread. */
struct range_lock *range_lock(struct range_locks *locks, uint64_t start, uint64_t len, bool shared);
void range_unlock(struct range_locks *locks, struct range_lock *lock);

/* --- connections ----------------------------------------------------------------------------- */

/* A connection with base:allocation negotiated; fails the program when there is none to be had. */
struct nbd_handle *client_connect(const char *uri);
/* The same, trying again for up to `seconds` while nobody listens. */
struct nbd_handle *client_connect_wait(const char *uri, unsigned seconds);

#endif
