/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * server: the plugin's own state and parts. nbdkit calls what plugin.c registers:
 *	config.c	the keys of the command line
 *	exports.c	connections, names: list, default, open, close, what an export can do
 *	requests.c	read, write, trim, zero, flush, cache, extents
 *	plugin.c	life: config_complete, get_ready, after_fork, cleanup, thread model
 *	stop.c		the end within 5 seconds of a signal
 *	log.c		the engine's messages to nbdkit's log
 * It calls core/pool, core/volume, server/control, server/metrics and server/verbs, and knows
 * nothing of the format.
 *
 * Invariants
 *  1. Who uses the pool is a user of it: each handle from open to close, each call without a
 *     handle while it runs, and the server from get_ready to cleanup. The last to go closes the
 *     pool.
 *  2. Nobody becomes a user once cleanup has begun. It shuts the pool down; what is still open then
 *     (a connection that nbdkit did not wait for: stop.h) is answered ESHUTDOWN.
 *  3. No control thread is left when the server's own use ends.
 *
 * nbdkit does not call close for clients that are connected when it ends: then the pool is shut
 * down and its memory is left to the end of the process.
 *
 * Locks: `users_lock` (CPC_RANK_LEAF). Immutable: `config` after config_complete; `pool`, and what
 * is made with it (metrics, verbs), after get_ready until the pool is closed.
 */
#ifndef CPC_PLUGIN_SERVER_H
#define CPC_PLUGIN_SERVER_H

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include <stdatomic.h>

#include "control/control.h"
#include "lib/lock.h"
#include "metrics/metrics.h"
#include "pool/pool.h"
#include "verbs/verbs.h"
#include "volume/volume.h"

enum cpc_parallel { CPC_PARALLEL_AUTO, CPC_PARALLEL_ON, CPC_PARALLEL_OFF };

/* Strings are owned. */
struct cpc_config {
	char *pool;
	char *control;	      /* NULL: derived from the uuid */
	char *default_export; /* NULL: the only volume */
	uint16_t metrics;     /* port, 0: none */
	enum cpc_parallel parallel;
	struct cpc_pool_options options;
};

struct cpc_server {
	struct cpc_config config;
	struct cpc_pool *pool;
	struct cpc_verbs verbs;
	_Atomic(struct cpc_control *) control; /* NULL: none, or taken by cleanup */
	struct cpc_metrics *metrics;	       /* NULL: none */
	struct cpc_mutex users_lock;
	unsigned users; /* users_lock, as the next */
	bool ended;	/* cleanup has begun */
};

extern struct cpc_server cpc_server;

/* One opening of an export by one connection. Immutable. */
struct cpc_handle {
	struct cpc_volume *volume;
	bool read_only;
};

/* config.c */
void cpc_config_init(struct cpc_config *config);
int cpc_config_set(struct cpc_config *config, const char *key, const char *value);
int cpc_config_complete(struct cpc_config *config);
void cpc_config_free(struct cpc_config *config);
extern const char cpc_config_help[];

/* plugin.c: to use the pool. False, with nbdkit's errno ESHUTDOWN: it is going, or gone. */
bool cpc_server_use(void);
void cpc_server_done(void);

/* exports.c */
int cpc_exports_preconnect(int readonly);
int cpc_exports_list(int readonly, int is_tls, struct nbdkit_exports *exports);
const char *cpc_exports_default(int readonly, int is_tls);
void *cpc_exports_open(int readonly);
void cpc_exports_close(void *handle);
const char *cpc_exports_description(void *handle);
int64_t cpc_exports_get_size(void *handle);
int cpc_exports_block_size(void *handle, uint32_t *minimum, uint32_t *preferred, uint32_t *maximum);
int cpc_exports_can_write(void *handle);

/* requests.c */
int cpc_request_pread(void *handle, void *buf, uint32_t count, uint64_t offset, uint32_t flags);
int cpc_request_pwrite(void *handle, const void *buf, uint32_t count, uint64_t offset,
		       uint32_t flags);
int cpc_request_flush(void *handle, uint32_t flags);
int cpc_request_trim(void *handle, uint32_t count, uint64_t offset, uint32_t flags);
int cpc_request_zero(void *handle, uint32_t count, uint64_t offset, uint32_t flags);
int cpc_request_cache(void *handle, uint32_t count, uint64_t offset, uint32_t flags);
int cpc_request_extents(void *handle, uint32_t count, uint64_t offset, uint32_t flags,
			struct nbdkit_extents *extents);

/* log.c */
void cpc_plugin_log_init(void);
/* A line for the user, held back when there are too many of its kind. Any thread. */
void cpc_plugin_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
