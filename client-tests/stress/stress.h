/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * stress: what the processes of the program share. stress.c starts workers and the server, kills
 * the server, and shows progress; each worker (worker.c) has its own volumes, connections and libev
 * loop.
 *
 * The memory behind `shared` is mapped before the fork. Lives: the server's life counts up each
 * time it is started. `ending` is set before the server is killed, so that a worker whose
 * connection ends while it is clear knows of a fault.
 */
#ifndef STRESS_STRESS_H
#define STRESS_STRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PROCESSES_MAX 64u
#define VOLUMES_MAX   64u

struct options {
	const char *unix_socket; /* or: */
	const char *host, *port;
	const char *prefix; /* volumes are prefix0, prefix1, ... */
	unsigned volumes, connections, processes, depth;
	uint64_t requests; /* of all processes; 0: no bound */
	uint64_t max_len;  /* bytes */
	double seconds;
	uint64_t seed;
};

enum count {
	COUNT_READ,
	COUNT_WRITE,
	COUNT_TRIM,
	COUNT_ZERO,
	COUNT_FLUSH,
	COUNT_STATUS,
	COUNT_KINDS, /* requests end here */
	COUNT_FUA = COUNT_KINDS,
	COUNT_BYTES,
	COUNT_CONNECTS,
	COUNT_VANISHED, /* connections that went with requests in flight */
	COUNT_SETTLED,	/* of their changes: looked at on the living server */
	COUNT_MISSING,	/* changes that a killed server had not kept, rightly */
	COUNTS
};

extern const char *const count_names[COUNTS];

struct worker_state {
	atomic_uint_fast64_t count[COUNTS];
	atomic_uint judged; /* the life whose disks have been looked at, and whose load runs */
};

struct shared {
	atomic_uint life;
	atomic_bool ending; /* the server is being killed */
	atomic_bool stop;   /* time or requests are over: settle, look at all disks, end */
	struct worker_state workers[PROCESSES_MAX];
};

/* One worker process, from the fork to its end; it returns when its last look found no fault. */
void worker_main(const struct options *options, struct shared *shared, unsigned index);

#endif
