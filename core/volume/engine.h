/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * engine: what all volumes of a pool share: memory, reservations, cuts, the commit that covers
 * them, and the background threads.
 *
 * Called by core/pool, which owns names and life. Calls core/transaction. The door for I/O on one
 * volume is volume.h.
 *
 * Life: cpc_engine_create -> cpc_engine_count_volume for each volume found -> cpc_engine_start ->
 * ... -> cpc_engine_stop (threads end; nothing is committed by it) -> cpc_engine_destroy.
 *
 * Invariants
 *  1. `broken` is set once, with a reason, and never cleared: then nothing is written any more,
 *     reads go on, everything else is -EIO. `halted` comes on top of it when not the device but our
 *     own memory cannot be trusted: every request is -EIO, reads included, whoever waits for a
 *     range is woken, and not even a cut or commit that runs writes one more block.
 *  2. A commit covers, for each volume, exactly its cuts up to one instant (commit_freeze).
 *  3. At most one commit runs; callers of cpc_engine_commit that arrive while one runs share the
 *     next one and its result.
 */
#ifndef CPC_VOLUME_ENGINE_H
#define CPC_VOLUME_ENGINE_H

#include "lib/hist.h"
#include "lib/lock.h"
#include "log/log.h"
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
/* Stops everything, see invariant 1. Context: locks below TRANSACTION only. */
void cpc_engine_halt(struct cpc_engine *e, const char *why);
bool cpc_engine_broken(struct cpc_engine *e, char *why, size_t len);

/* Later requests get -ESHUTDOWN. */
void cpc_engine_refuse(struct cpc_engine *e);

/* Commits everything answered before the call. Return: 0: it is durable. */
int cpc_engine_commit(struct cpc_engine *e, bool clean);
/* Whether a commit could bring blocks back: pinned, dropped, or overwritten ones. */
bool cpc_engine_commit_may_help(struct cpc_engine *e);
/* The same, unless nothing waits for a commit. */
int cpc_engine_commit_if_dirty(struct cpc_engine *e);

/* --- volumes of the engine --- */

/* Counts a volume that the pool contains, and its tree; what they may cost is reserved by that. */
void cpc_engine_count_volume(struct cpc_engine *e, const struct cpc_node_ptr *root);
/* Makes a counted volume ready for requests. Safe from any thread. */
int cpc_engine_wake_volume(struct cpc_engine *e, const struct cpc_volume_item *item,
			   struct cpc_volume **out);
/* Frees such a volume of which nobody has made use; it stays counted. May wait for a commit. */
void cpc_engine_put_to_sleep(struct cpc_volume *vol);

/* The pool calls the next ones with its names lock held. */

/*
 * Changes of names and sizes. Each is one entry of the log and one device flush. *applied says
 * whether the change has been made in memory, also on error: then the flush failed, and a later
 * one, or a crash, decides. On an error that has broken the engine a change that was not made may
 * be on the device all the same, in one copy of its record: the next opening decides.
 */
int cpc_engine_create_volume(struct cpc_engine *e, const struct cpc_volume_item *item,
			     struct cpc_volume **out, bool *applied);
int cpc_engine_rename(struct cpc_volume *vol, const char *name, bool *applied);
/* No handle is open and none is opened any more. Once applied the volume is not the caller's any
 * more: the commit that makes its deletion durable frees it. */
int cpc_engine_delete(struct cpc_volume *vol, bool *applied);
/* No handle is open. The hole for the tail and the size are one change. */
int cpc_engine_truncate(struct cpc_volume *vol, uint64_t size, bool *applied);
/* What becomes visible reads as zeroes. */
int cpc_engine_grow(struct cpc_volume *vol, uint64_t size, bool *applied);

/* --- replay: before the log is started, single-threaded --- */
/* A commit from now on says that the trees contain the old log up to here. */
void cpc_engine_replay_to(struct cpc_engine *e, uint64_t nonce, uint64_t seq, uint64_t position);
/* Keeps places for the nodes of a commit of so many changes. False: the pool is too full to use
 * more than that commit needs. */
bool cpc_engine_replay_room(struct cpc_engine *e, uint64_t entries);
int cpc_engine_replay_run(struct cpc_volume *vol, struct cpc_run *run);
/* Blocks of the pool, or of a run that belongs to nobody, become free with the next commit. */
void cpc_engine_replay_free(struct cpc_engine *e, uint64_t block, uint64_t nr);
void cpc_engine_replay_drop(struct cpc_engine *e, const struct cpc_run *run);
void cpc_engine_replay_name(struct cpc_volume *vol, const char *name);
int cpc_engine_replay_size(struct cpc_volume *vol, uint64_t size);
/* A created volume's item is written by the next commit; a deleted one's goes with it. */
void cpc_engine_replay_created(struct cpc_volume *vol);
void cpc_engine_replay_deleted(struct cpc_volume *vol);
/* True when extent maps are over their bound: commit, then go on. */
bool cpc_engine_maps_full(struct cpc_engine *e);
/* From now on changes are logged, behind what the newest superblock contains. */
int cpc_engine_start_log(struct cpc_engine *e);

void cpc_engine_get_item(struct cpc_volume *vol, struct cpc_volume_item *item);
/* Bytes mapped or dirty. */
uint64_t cpc_engine_volume_used(struct cpc_volume *vol);
void cpc_engine_set_next_volume(struct cpc_engine *e, uint64_t id);

/* NULL: read-only, or not started. */
struct cpc_log *cpc_engine_log(struct cpc_engine *e);

/* --- counters --- */
struct cpc_engine_stats {
	uint64_t reads, writes, bytes_written, trims, zeroes, flushes, fua_writes;
	uint64_t cache_hits, cache_misses, read_ahead, dirty_bytes, map_bytes, memory_bytes;
	uint64_t pinned_blocks, reserved_blocks;
	uint64_t lost_groups; /* their bitmap could not be read: full until the next opening */
	uint64_t data_errors;
	uint64_t write_wait_us;
	uint64_t io_trims, io_wakeups, io_wakeups_skipped;
	struct cpc_log_stats log;
	struct cpc_hist_summary read_us, write_us, flush_us, clear_ns, set_ns;
};
void cpc_engine_get_stats(struct cpc_engine *e, struct cpc_engine_stats *stats);

#endif
