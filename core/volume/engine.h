/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * engine: what all volumes of a pool share: memory, reservations, cuts, the commit that covers
 * them, and the background threads.
 *
 * Called by core/pool, which owns names and life. Calls core/transaction. The door for I/O on one
 * volume is volume.h.
 *
 * Life: cpc_engine_create -> cpc_engine_add_volume for each volume found -> cpc_engine_start ->
 * ... -> cpc_engine_stop (threads end; nothing is committed by it) -> cpc_engine_destroy.
 *
 * Invariants
 *  1. `broken` is set once, with a reason, and never cleared: then nothing is written any more,
 *     reads go on, everything else is -EIO.
 *  2. A commit covers, for each volume, exactly its cuts up to one instant (commit_freeze).
 *  3. At most one commit runs; callers of cpc_engine_commit that arrive while one runs share the
 *     next one and its result.
 */
#ifndef CPC_VOLUME_ENGINE_H
#define CPC_VOLUME_ENGINE_H

#include "lib/hist.h"
#include "lib/lock.h"
#include "transaction/store.h"
#include "volume/volume.h"

struct cpc_engine;

struct cpc_engine_options {
	size_t data_bytes;	  /* of the data cache */
	size_t dirty_bytes;	  /* bound on dirty data */
	size_t map_bytes;	  /* bound on extent maps */
	uint32_t commit_interval; /* seconds, 0: only when needed */
	bool no_threads;	  /* callers do all work */
	bool stats_detail;
	bool read_only;
};

int cpc_engine_create(struct cpc_store *store, const struct cpc_engine_options *opts,
		      struct cpc_engine **out);
int cpc_engine_start(struct cpc_engine *e);
void cpc_engine_stop(struct cpc_engine *e);
void cpc_engine_destroy(struct cpc_engine *e);

/* Stops all writing, see invariant 1. Safe from any thread and under any lock below STATS. */
void cpc_engine_break(struct cpc_engine *e, const char *why);
bool cpc_engine_broken(struct cpc_engine *e, char *why, size_t len);

/* Later requests get -ESHUTDOWN. */
void cpc_engine_refuse(struct cpc_engine *e);

/* Commits everything answered before the call. Return: 0: it is durable. */
int cpc_engine_commit(struct cpc_engine *e, bool clean);
/* Whether a commit could bring blocks back: pinned, dropped, or overwritten ones. */
bool cpc_engine_commit_may_help(struct cpc_engine *e);
/* The same, unless nothing waits for a commit. */
int cpc_engine_commit_if_dirty(struct cpc_engine *e);

/* --- volumes of the engine: pool calls these with its names lock held --- */

/* Makes the volume known; is_new: its item is written by the next commit. */
int cpc_engine_add_volume(struct cpc_engine *e, const struct cpc_volume_item *item, bool is_new,
			  struct cpc_volume **out);
/* The next commit deletes it. No handle is open and none is opened any more. */
void cpc_engine_mark_deleted(struct cpc_volume *vol);
/*
 * Take back what could not be committed: a volume added as new, which is then forgotten, and a
 * mark. Return: false: too late, a commit that was running has made it durable, and it stays; the
 * volume has been deleted. Context: waits for a running commit.
 */
bool cpc_engine_withdraw(struct cpc_volume *vol);
bool cpc_engine_undelete(struct cpc_volume *vol);
/* Forgets a volume: its deletion is durable, or the engine ends. */
void cpc_engine_remove_volume(struct cpc_volume *vol);
/* Changes name or size in memory; the next commit writes the item. */
void cpc_engine_set_name(struct cpc_volume *vol, const char *name);
void cpc_engine_set_size(struct cpc_volume *vol, uint64_t size);
/* Shrinks and commits: the hole for the tail and the size are one change. No handle is open. On
 * error the size is the old one, the tail may be gone. */
int cpc_engine_truncate(struct cpc_volume *vol, uint64_t size);
/* Grows and commits; what becomes visible reads as zeroes. */
int cpc_engine_grow(struct cpc_volume *vol, uint64_t size);
void cpc_engine_get_item(struct cpc_volume *vol, struct cpc_volume_item *item);
/* Bytes mapped or dirty. */
uint64_t cpc_engine_volume_used(struct cpc_volume *vol);
void cpc_engine_set_next_volume(struct cpc_engine *e, uint64_t id);

/* --- counters --- */
struct cpc_engine_stats {
	uint64_t reads, writes, bytes_written, trims, zeroes, flushes, fua_writes;
	uint64_t cache_hits, cache_misses, dirty_bytes, map_bytes, memory_bytes;
	uint64_t pinned_blocks, reserved_blocks;
	uint64_t data_errors;
	uint64_t write_wait_us;
	uint64_t io_trims, io_wakeups, io_wakeups_skipped;
	struct cpc_hist_summary read_us, write_us, flush_us, clear_ns, set_ns;
};
void cpc_engine_get_stats(struct cpc_engine *e, struct cpc_engine_stats *stats);

#endif
