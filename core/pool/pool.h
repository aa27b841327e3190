/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pool: the door of the library. Opens and closes a pool, owns its names and its threads, and ties
 * the modules together. I/O on an open volume is in volume/volume.h.
 *
 * Called by server/plugin, server/control, server/cli and tests; calls every other core module.
 *
 * Life: cpc_pool_open (single-threaded, may run before a fork: reads, validates, takes ownership,
 * starts no thread) -> cpc_pool_start (after the fork: starts the threads) -> any calls from any
 * threads -> cpc_pool_shutdown (last commit; later requests get -ESHUTDOWN) -> cpc_pool_close (no
 * request is running). Tools use open, start and close as well.
 *
 * Invariants
 *  1. One owner: a second open for writing is refused, with -EBUSY and the owner's pid; the lock is
 *     the kernel's and dies with its process. Read-only openers exclude a writer and the reverse.
 *  2. Nothing is written before what was read has been validated; read_only never writes at all.
 *  3. Names are changed by one transaction; when a function that changes names returns 0, the
 *     change is durable.
 *  4. A pool that met an inconsistency of its own, or whose device no longer takes writes, is
 *     "read-only by error": reads go on, everything else is -EIO, cpc_pool_health says why.
 *
 * Errors: 0 or negative errno, and, where `struct cpc_error *err` is given, one line that says
 * what, where and what to do. Threads: every function may be called from any thread after start.
 */
#ifndef CPC_POOL_POOL_H
#define CPC_POOL_POOL_H

#include "backing/backing.h"
#include "check/scrub.h"
#include "format/format.h"
#include "lib/base.h"
#include "lib/hist.h"

struct cpc_pool;
struct cpc_volume;
struct cpc_backing;

struct cpc_error {
	char text[512];
};

/* --- format ---------------------------------------------------------------------------------- */

struct cpc_format_options {
	uint64_t size;	   /* create a file of this size; 0: path exists, use all of it */
	uint64_t log_size; /* 0: cpc_default_log_size */
	uint32_t nodesize; /* 0: CPC_NODESIZE_DEFAULT */
	bool sparse;	   /* do not allocate the file */
	bool single;	   /* one copy of metadata */
	bool force;	   /* overwrite what is recognized there */
	const char *label; /* NULL or up to CPC_LABEL_MAX bytes */
};

#define CPC_NODESIZE_DEFAULT 4096u

/* Makes a pool on a device or file. Durable on return. -EEXIST: something recognizable is there. */
int cpc_pool_format(const char *path, const struct cpc_format_options *opts, struct cpc_error *err);
/* The same on an open backing (tests); size, sparse and force are not looked at. */
int cpc_pool_format_backing(struct cpc_backing *backing, const struct cpc_format_options *opts,
			    struct cpc_error *err);

/* --- life ------------------------------------------------------------------------------------ */

struct cpc_pool_options {
	uint64_t cache;		  /* bytes for data, nodes and maps together */
	uint64_t dirty;		  /* bound on dirty data, 0: half of cache */
	uint32_t commit_interval; /* seconds, 0: only when needed */
	bool read_only;
	enum cpc_direct direct;
	bool stats_detail; /* keep io_tree.clear_ns and set_ns */
	bool no_threads;   /* tests: no background thread, the caller's calls do all work */
	/* tests: caches of so many bytes instead of their shares of `cache`, however small; 0:
	 * shares */
	uint64_t data_bytes, node_bytes;
};

#define CPC_CACHE_DEFAULT	    (256ull << 20)
#define CPC_CACHE_MIN		    (1ull << 20)
#define CPC_COMMIT_INTERVAL_DEFAULT 5u

void cpc_pool_options_init(struct cpc_pool_options *opts);

int cpc_pool_open(const char *path, const struct cpc_pool_options *opts, struct cpc_pool **out,
		  struct cpc_error *err);
/* The same on an open backing, which the pool then owns (closed also on failure). */
int cpc_pool_open_backing(struct cpc_backing *backing, const struct cpc_pool_options *opts,
			  struct cpc_pool **out, struct cpc_error *err);
int cpc_pool_start(struct cpc_pool *pool, struct cpc_error *err);
/* Commits what was answered and refuses later requests. Idempotent. */
int cpc_pool_shutdown(struct cpc_pool *pool);
/* Frees everything. Without shutdown before, what was not flushed is lost, as in a crash. */
void cpc_pool_close(struct cpc_pool *pool);

/* --- names ----------------------------------------------------------------------------------- */

struct cpc_volume_info {
	char name[CPC_NAME_MAX + 1];
	uint64_t id;
	uint64_t size;	    /* bytes */
	uint64_t used;	    /* bytes mapped, data not yet written out included */
	uint64_t exclusive; /* bytes that deleting it would free */
	int64_t created;    /* seconds since 1970 */
	uint32_t open;	    /* handles held by clients */
	bool read_only;
	uint8_t uuid[CPC_UUID_SIZE];
};

struct cpc_pool_info {
	uint8_t uuid[CPC_UUID_SIZE];
	char uuid_text[37];
	char label[CPC_LABEL_MAX + 1];
	uint64_t capacity, used, free, pinned, reserved; /* bytes; pinned are not free yet */
	uint64_t generation;
	uint64_t volumes;
	uint32_t nodesize, copies;
	uint64_t log_size;
	bool read_only;
	char health[256]; /* "ok", or why not */
};

/* size: 1 to 2^63; more than CPC_VOLUME_SIZE_MAX is rounded down to it.
 * -EEXIST, -EINVAL (name or size), -ENOSPC, -EROFS. */
int cpc_pool_create_volume(struct cpc_pool *pool, const char *name, uint64_t size,
			   struct cpc_error *err);
/* -ENOENT, -EEXIST, -EINVAL. Works while clients are attached. */
int cpc_pool_rename(struct cpc_pool *pool, const char *old_name, const char *new_name,
		    struct cpc_error *err);
/* -EBUSY while a client has it open. */
int cpc_pool_delete(struct cpc_pool *pool, const char *name, struct cpc_error *err);
/* Growing works at any time; new handles see it. Shrinking needs `shrink` and no open handle. */
int cpc_pool_resize(struct cpc_pool *pool, const char *name, uint64_t size, bool shrink,
		    struct cpc_error *err);

/* Commits if something waits for it: space figures are exact only then (what is not committed
 * counts twice, or not yet). Call it before list and info when they are meant for a person. */
void cpc_pool_settle(struct cpc_pool *pool);
/* Calls fn for each volume in order of name; stops when fn returns non-zero and returns that. */
int cpc_pool_list(struct cpc_pool *pool, int (*fn)(void *ctx, const struct cpc_volume_info *info),
		  void *ctx);
/* -ENOENT. */
int cpc_pool_volume_info(struct cpc_pool *pool, const char *name, struct cpc_volume_info *info);
void cpc_pool_info(struct cpc_pool *pool, struct cpc_pool_info *info);

/* --- volumes --------------------------------------------------------------------------------- */

/* Cheap; may be called many times. -ENOENT, -ESHUTDOWN. */
int cpc_pool_open_volume(struct cpc_pool *pool, const char *name, struct cpc_volume **out);
void cpc_pool_close_volume(struct cpc_pool *pool, struct cpc_volume *volume);

/* --- scrub (scrub.c) ------------------------------------------------------------------------- */

enum cpc_scrub_state { CPC_SCRUB_NONE, CPC_SCRUB_RUNNING, CPC_SCRUB_DONE, CPC_SCRUB_STOPPED };

#define CPC_SCRUB_MAX_DAMAGE 10000u /* that is kept; more is only counted */

struct cpc_scrub_status {
	enum cpc_scrub_state state;
	uint64_t done, total; /* blocks */
	struct cpc_scrub_result result;
	uint64_t nr_damage; /* kept so far */
	int error;	    /* why it ended before the end; 0 */
};

/*
 * Verifies every copy of everything that the pool holds and heals what has a good copy, in a
 * thread, while clients go on; commits first. In a pool that is read-only it only reports. While
 * one runs another start joins it. It ends with the shutdown. -ESHUTDOWN, -ENOMEM.
 */
int cpc_pool_scrub_start(struct cpc_pool *pool, struct cpc_error *err);
void cpc_pool_scrub_stop(struct cpc_pool *pool); /* waits for its end */
/* How far the running or last one is; calls `damage` for what was found, from number `from` on. */
void cpc_pool_scrub_status(struct cpc_pool *pool, struct cpc_scrub_status *status, uint64_t from,
			   void (*damage)(void *ctx, const struct cpc_damage *damage), void *ctx);
/* Waits for its end, for at most `ns`. */
void cpc_pool_scrub_wait(struct cpc_pool *pool, uint64_t ns);
/* The same in the calling thread, without pauses; -EBUSY while the other runs. */
int cpc_pool_scrub(struct cpc_pool *pool,
		   void (*damage)(void *ctx, const struct cpc_damage *damage), void *ctx,
		   struct cpc_scrub_result *result);

/* --- maintenance ----------------------------------------------------------------------------- */

/* Commits everything answered so far; durable on return. */
int cpc_pool_commit(struct cpc_pool *pool);

enum cpc_stat_kind {
	CPC_STAT_COUNTER, /* only grows while the pool is open */
	CPC_STAT_GAUGE,	  /* a value as it is now */
	CPC_STAT_HISTOGRAM,
};

/* Valid until emit returns, the texts for ever. */
struct cpc_stat {
	const char *name; /* "client.reads" */
	const char *help; /* one line without quotes */
	enum cpc_stat_kind kind;
	uint64_t value;				  /* counters and gauges */
	const struct cpc_hist_summary *histogram; /* histograms, the unit is in the name */
};

/* Calls emit for each counter of the stats list (docs/statistics.md), in that order. */
void cpc_pool_stats(struct cpc_pool *pool, void (*emit)(void *ctx, const struct cpc_stat *stat),
		    void *ctx);

/* True when the pool still accepts writes. `why` may be NULL. */
bool cpc_pool_healthy(struct cpc_pool *pool, char *why, size_t len);

#endif
