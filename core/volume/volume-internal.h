/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * volume-internal: what the files of core/volume share.
 *
 * Three places hold a volume's content, newest first; a reader looks in this order:
 *
 *   data cache   buffers by block number: dirty (of the open epoch, or of a cut being written out)
 *                or clean copies
 *   view         {runs, newest first; committed root}, one immutable object, replaced as a whole
 *   pool         where the view says
 *
 * Buffers are immutable once they are in the index: a write fills fresh buffers first and then
 * swaps them in. So nothing is copied under a lock, a checksum is always taken of a frozen buffer,
 * and a reader needs no more than a reference.
 *
 * The life of a change:
 *
 *   write()  reserve -> fill buffers -> lock range -> ticket { swap in, DELALLOC } -> unlock
 *   cut      freeze: no tickets, epoch + 1, DELALLOC moves to the cut -> gather its buffers ->
 *            write them to new places -> one run -> linked into the view -> buffers clean
 *   commit   all runs of finished cuts become one -> applied to the tree -> durable -> view
 *            {newer runs; new root}
 *
 * Large writes, trims and zeroes skip the cache: data to new places first, then, under a ticket,
 * the covered buffers leave the index and a run of the open epoch is linked into the view.
 *
 * Order of runs in a view, newest first: by epoch descending; within an epoch the cut's own run
 * (dirty buffers that no direct run displaced, so newer than each of them) before direct runs,
 * these latest first.
 */
#ifndef CPC_VOLUME_VOLUME_INTERNAL_H
#define CPC_VOLUME_VOLUME_INTERNAL_H

#include <stdatomic.h>
#include "io-tree/io-tree.h"
#include "lib/epoch.h"
#include "lib/hooks.h"
#include "lib/list.h"
#include "lib/log.h"
#include "lib/xarray.h"
#include "backing/ioq.h"
#include "log/log.h"
#include "volume/engine.h"

/* --- buffers (memory.c) --- */

enum cpc_buf_flags {
	CPC_BUF_DIRTY = 1,     /* waits for its cut */
	CPC_BUF_WRITEBACK = 2, /* owned by a cut that is written out */
	CPC_BUF_FILLING = 4,   /* placeholder of a read from the pool */
};

struct cpc_buf {
	_Atomic uint32_t refs;		/* the index, a cut and each user hold one */
	uint32_t flags;			/* vol->cache_lock */
	_Atomic uint32_t referenced;	/* for the clock */
	struct cpc_volume *_Atomic vol; /* NULL: not in an index */
	uint64_t block;			/* in the volume; set before it enters the index */
	uint32_t csum;			/* written ones: of the content, taken while it was hot */
	uint64_t epoch;			/* dirty: of which cut */
	struct cpc_list node;		/* free list, or a cut's displaced list */
};

struct cpc_memory {
	struct cpc_buf *bufs;
	uint8_t *data;
	size_t nr;
	struct cpc_mutex lock; /* CPC_RANK_MEMORY */
	struct cpc_list free;  /* lock */
	size_t nr_free;	       /* lock */
	struct cpc_cond freed; /* a buffer became free */
	_Atomic size_t hand;   /* of the clock, in steps */
};

int cpc_memory_init(struct cpc_memory *m, size_t bytes);
void cpc_memory_destroy(struct cpc_memory *m);
static inline void *cpc_buf_data(const struct cpc_memory *m, const struct cpc_buf *buf)
{
	return m->data + (size_t)(buf - m->bufs) * CPC_BLOCK_SIZE;
}
/* Takes a free buffer with one reference, evicting a clean one if it must; NULL: none now. */
struct cpc_buf *cpc_buf_try_alloc(struct cpc_engine *e);
/* Waits until one can be had. NULL: the engine broke. */
struct cpc_buf *cpc_buf_alloc(struct cpc_engine *e);
/* Takes nr buffers if many more are free: for what it is only nice to have in the cache. */
bool cpc_buf_take_spare(struct cpc_engine *e, struct cpc_buf **bufs, size_t nr);
void cpc_buf_put(struct cpc_engine *e, struct cpc_buf *buf);

/* --- views (view.c) --- */

#define CPC_VIEW_RUNS 64u

struct cpc_view_run {
	struct cpc_run *run;
	uint64_t epoch;
	bool cut; /* the run of a cut, not a direct one */
};

struct cpc_view {
	struct cpc_list node;  /* in vol->views, oldest first; view_lock */
	uint32_t refs;	       /* view_lock */
	bool retired;	       /* view_lock */
	uint64_t seq;	       /* counts the volume's views; immutable once current */
	struct cpc_pins *pins; /* put when this and all older views are gone */
	struct cpc_node_ptr root;
	unsigned nr;
	struct cpc_view_run runs[CPC_VIEW_RUNS];
};

struct cpc_cut;
struct cpc_data_writer;

struct cpc_volume {
	struct cpc_engine *engine;
	struct cpc_list node; /* in engine->volumes; engine->volumes_lock */
	struct cpc_epoch_entry retired;

	/* the record; item_lock (CPC_RANK_LEAF) */
	struct cpc_mutex item_lock;
	struct cpc_volume_item item;
	bool item_dirty, deleted;
	bool gone;	       /* its deletion is durable */
	bool orphan;	       /* its owner is done with it: the commit that deletes it frees it */
	uint64_t item_version; /* counts changes, so that a commit knows which it has */
	unsigned users;	       /* walks and commits that have it; engine->volumes_lock */
	bool apart;	       /* no new ones; engine->volumes_lock */
	_Atomic uint64_t size; /* bytes, = item.size */

	/* tickets: number of holders, top bit: a freeze is waiting or running */
	_Atomic uint64_t tickets;
	struct cpc_mutex ticket_lock; /* CPC_RANK_VOLUME; for the conds only */
	struct cpc_cond ticket_cond;

	_Atomic uint64_t epoch;	    /* open epoch; changed by freeze only */
	_Atomic uint64_t published; /* every cut up to this epoch is in the view */
	struct cpc_io_tree io_tree;

	struct cpc_mutex cache_lock; /* CPC_RANK_CACHE */
	struct cpc_xarray cache;     /* by block number; cache_lock */
	struct cpc_list displaced;   /* frozen dirty buffers that left the index; cache_lock */

	struct cpc_mutex writeback_lock; /* CPC_RANK_WRITEBACK: one cut at a time */
	struct cpc_cut *cut;		 /* frozen and not yet published; writeback_lock */
	struct cpc_cut *spare_cut;	 /* memory for the next one; writeback_lock */
	struct cpc_mutex merge_lock;	 /* CPC_RANK_MERGE: one compaction at a time */
	struct cpc_mutex view_lock;	 /* CPC_RANK_VIEW */
	struct cpc_list views;
	struct cpc_view *view;	       /* the current one */
	unsigned reserved_runs;	       /* slots promised to direct requests; view_lock */
	struct cpc_run *frozen;	       /* being committed: not to be merged; merge_lock */
	_Atomic uint64_t dirty_blocks; /* DELALLOC and of the cut in writeback */
	uint64_t freeze_epoch; /* runs up to here are being committed; 0: none; merge_lock */

	/* log: ring bytes promised to the open epoch (changed under a ticket, taken by freeze);
	 * whether it has direct runs; the last record of a finished cut */
	_Atomic uint64_t log_bytes;
	_Atomic bool has_direct;
	_Atomic uint64_t last_seq;

	/* the large read that began last: where it ends, and the view's seq (read-large.c) */
	_Atomic uint64_t large_end, large_seq;

	/* flushes of this volume, see flush.c; flush_lock */
	struct cpc_mutex flush_lock; /* CPC_RANK_FLUSH */
	struct cpc_list flushers;    /* in line for the next cut */
	bool has_flush_leader;
	unsigned last_batch; /* callers that the last cut served */
};

/* Readers and writers get the current view; it and all it names stay until the put. */
struct cpc_view *cpc_view_get(struct cpc_volume *vol);
void cpc_view_put(struct cpc_volume *vol, struct cpc_view *view);
struct cpc_view *cpc_view_alloc(void);
/* Makes `next` (filled from the current one by `edit`) the current view. */
typedef void (*cpc_view_edit)(struct cpc_view *next, void *ctx);
void cpc_view_replace(struct cpc_volume *vol, struct cpc_view *next, cpc_view_edit edit, void *ctx,
		      struct cpc_pins *pins);
/* Promises a slot for a later cpc_view_link; compacts when there is none. */
int cpc_view_reserve(struct cpc_volume *vol);
void cpc_view_unreserve(struct cpc_volume *vol);
/* Links a run (takes the reference) into a slot promised before; `next` is consumed. Cannot fail.
 */
void cpc_view_link(struct cpc_volume *vol, struct cpc_view *next, struct cpc_run *run,
		   uint64_t epoch, bool cut);
/* Merges runs until each is at least twice as long as the newer one beside it. */
int cpc_view_compact(struct cpc_volume *vol);
/* Pool blocks that uncommitted runs no longer name, for the next commit to release; ctx: engine. */
void cpc_view_drop(void *ctx, uint64_t bytenr, uint64_t nr_blocks);
/* Between these two no merge runs, so that vol->freeze_epoch can be set. */
void cpc_merges_hold(struct cpc_engine *e);
void cpc_merges_allow(struct cpc_engine *e);
/* Merges all runs up to vol->freeze_epoch into one (a reference; NULL if none), marks it frozen;
 * `drop` is told what the merge drops: nothing behind the commit's place in the log names it. */
int cpc_view_freeze(struct cpc_volume *vol, cpc_run_drop_fn drop, void *ctx, struct cpc_run **run);
/* Ends the freeze: durable: the run leaves the view, the root is the new one. */
void cpc_view_thaw(struct cpc_volume *vol, struct cpc_view *next, struct cpc_run *run, bool durable,
		   const struct cpc_node_ptr *root, struct cpc_pins *pins);
void cpc_view_destroy_all(struct cpc_volume *vol);

/* Walks what a view says of [block, block + nr), in touching pieces. Stops on non-zero, which it
 * returns; errors are negative. */
typedef int (*cpc_mapping_fn)(void *ctx, const struct cpc_mapping *m);
int cpc_view_map(struct cpc_volume *vol, struct cpc_view *view, uint64_t block, uint64_t nr,
		 cpc_mapping_fn fn, void *ctx);

/* --- cache (cache.c) --- */
/* The buffer of a block with a reference, NULL if there is none or it is being filled. */
struct cpc_buf *cpc_cache_get(struct cpc_volume *vol, uint64_t block);
/* Puts a FILLING placeholder where there is nothing. Takes over one reference on success. */
bool cpc_cache_add_filling(struct cpc_volume *vol, struct cpc_buf *buf, uint64_t block);
/* The placeholder is filled, or (ok = false) taken out; also when a writer has cancelled it. */
void cpc_cache_filled(struct cpc_volume *vol, struct cpc_buf *buf, bool ok);
/* Swaps dirty buffers in for [block, block + nr), nr <= 64 (their references go to the index).
 * Under a ticket. *again: how many took the place of a buffer dirty in the same epoch. Return: 0;
 * -ENOMEM, nothing changed. */
int cpc_cache_store_dirty(struct cpc_volume *vol, struct cpc_buf **bufs, uint64_t block,
			  uint64_t nr, uint64_t epoch, uint64_t *again);
/* Puts clean copies where there is nothing. Takes all references. The content is that of the view.
 */
void cpc_cache_add_clean(struct cpc_volume *vol, struct cpc_buf **bufs, uint64_t block,
			 uint64_t nr);
/* Takes all buffers of [block, block + nr) out of the index. Under a ticket of `epoch`. */
void cpc_cache_remove(struct cpc_volume *vol, uint64_t block, uint64_t nr, uint64_t epoch);
/* Buffers that are looked at under one hold of the index lock: short, writers wait for it. */
#define CPC_CACHE_BATCH 64u
/* Collects up to `max` dirty buffers of `epoch` from *block on as WRITEBACK, with a reference. */
unsigned cpc_cache_gather(struct cpc_volume *vol, uint64_t epoch, uint64_t *block,
			  struct cpc_buf **out, unsigned max);
/*
 * find.c: how dirty buffers are found, under the index lock. bench-writeback links other ways in
 * its place.
 */
void cpc_find_note(struct cpc_volume *vol, struct cpc_buf *buf); /* it is dirty from now on */
/* Takes up to `max` that are dirty for `epoch`, from *block on, off what is known to be dirty. */
unsigned cpc_find_take(struct cpc_volume *vol, uint64_t epoch, uint64_t *block,
		       struct cpc_buf **out, unsigned max);
extern const bool cpc_find_in_order; /* they come in order of blocks */
/* Their cut is published: they are clean. Puts the cut's references. */
void cpc_cache_written(struct cpc_volume *vol, struct cpc_buf **bufs, size_t nr);
/* True when some block of the range is dirty; *next: where that ends. */
bool cpc_cache_find_dirty(struct cpc_volume *vol, uint64_t *block, uint64_t end);

/* --- tickets and cuts (cut.c) --- */
uint64_t cpc_ticket_take(struct cpc_volume *vol); /* returns the open epoch */
void cpc_ticket_release(struct cpc_volume *vol);
/* Freezes what is dirty, writes it out, logs it and publishes it; first finishes a cut that failed.
 * After an error the cut is kept and the next call goes on with it. */
int cpc_cut(struct cpc_volume *vol);
/* Nothing has changed since the last finished cut. */
bool cpc_nothing_to_cut(struct cpc_volume *vol);
/* Logs a change of the volume's record, for which there is room, and applies it in memory with
 * `apply`, as one with respect to commits. Return: 0, *seq is what must be flushed. */
int cpc_log_change(struct cpc_volume *vol, struct cpc_log_batch *batch, void (*apply)(void *ctx),
		   void *ctx, uint64_t *seq);
/* Makes everything answered before the call durable, together with other callers (flush.c).
 * Return: 0 or the negative errno that all of them get. */
int cpc_flush(struct cpc_volume *vol);
/* Adds a run as a finished cut of its own, without logging it: replay, and the hole of a shrink.
 * The view and its slot have been taken before. Takes the run's reference. */
void cpc_cut_link(struct cpc_volume *vol, struct cpc_view *next, struct cpc_run *run);
void cpc_cut_destroy(struct cpc_volume *vol);

/* --- device writes of data (data-write.c) --- */

/* Blocks of a device write, and device writes of a sequence in flight at once. One MiB keeps a
 * device busy; a flush's small writes queue behind all of it (docs/performance.md, "Neighbours").
 */
#define CPC_DATA_RUN	64u
#define CPC_DATA_WRITES 4u

/* One device write. */
struct cpc_data_write {
	struct cpc_io io;
	struct cpc_data_writer *writer;
	struct iovec iov[CPC_DATA_RUN];
	uint64_t block; /* in the pool */
	size_t first;	/* index of its first block in the writer's arrays */
	uint32_t nr;
	bool busy;
};

/*
 * Writes a sequence of blocks to new places, runs as long as space allows. `bytenr` of a block is
 * 0 until it is written; a second call of cpc_data_write_all writes what failed, elsewhere.
 */
struct cpc_data_writer {
	struct cpc_engine *engine;
	struct cpc_ioq *ioq;
	const void *(*data)(struct cpc_data_writer *w, size_t i); /* 4096-aligned, frozen */
	uint32_t (*csum)(struct cpc_data_writer *w, size_t i);	  /* NULL: computed */
	void (*written)(struct cpc_data_writer *w, uint32_t nr);  /* blocks, may be NULL */
	uint64_t reserved; /* blocks of the caller's reservation not yet used */
	uint64_t *bytenr;  /* by index, 0: not written */
	uint32_t *csums;   /* by index */
	size_t nr;
	int error; /* first of this round */
	struct cpc_data_write slot[CPC_DATA_WRITES];
};

/* Return: 0: all written; else the first error, and what is not written has bytenr 0. */
int cpc_data_write_all(struct cpc_data_writer *w);

/*
 * Starts one device write of all blocks (at most CPC_DATA_RUN, all reserved) at one new
 * place and says at once where: bytenr and csums are set. The caller waits on the queue and then
 * looks at w->error. -ENOSPC: there is no such place.
 */
int cpc_data_write_begin(struct cpc_data_writer *w, struct cpc_ioq *ioq);

/* Aligned memory of 1 MiB for large requests, a bounded number of them. */
#define CPC_BOUNCE_SIZE	  (1u << 20)
#define CPC_BOUNCE_BLOCKS (CPC_BOUNCE_SIZE / CPC_BLOCK_SIZE)
void *cpc_bounce_get(struct cpc_engine *e); /* waits for one; NULL: no memory */
void cpc_bounce_put(struct cpc_engine *e, void *bounce);

/* --- reading blocks (read.c) --- */
/* Reads the blocks of a mapping, whose view is held, into `buf` (4096-aligned), verified. */
int cpc_read_mapping(struct cpc_volume *vol, const struct cpc_mapping *m, void *buf);
/* Fills one whole block from cache or pool, for a partial write. */
int cpc_read_one(struct cpc_volume *vol, uint64_t block, void *buf);

/* What a client wants: bytes. */
struct cpc_reader {
	struct cpc_volume *vol;
	uint8_t *buf; /* of the client; NULL: only into the cache */
	uint64_t offset, len;
};

/* The part of `nr` blocks that a request for bytes covers. */
static inline void cpc_clip(uint64_t block, uint64_t nr, uint64_t offset, uint64_t len,
			    uint64_t *start, uint64_t *end)
{
	*start = cpc_max_u64(block << CPC_BLOCK_SHIFT, offset);
	*end = cpc_min_u64((block + nr) << CPC_BLOCK_SHIFT, offset + len);
}

/* Copies the part of a block that the client asked for. */
static inline void cpc_copy_out(const struct cpc_reader *r, uint64_t block, const void *data)
{
	uint64_t start, end;

	cpc_clip(block, 1, r->offset, r->len, &start, &end);
	if (r->buf)
		memcpy(r->buf + (start - r->offset),
		       (const uint8_t *)data + (start & (CPC_BLOCK_SIZE - 1)), end - start);
}

/* What is read is what was written, as far as its checksum tells. */
bool cpc_block_matches(const void *data, uint32_t csum);

/* Reads blocks for the client and leaves the cache alone (read-large.c). */
int cpc_read_large(const struct cpc_reader *r, uint64_t block, uint64_t nr);
/* Throws away what has been read ahead: the volume goes. Waits for the device. */
void cpc_read_ahead_drop(struct cpc_volume *vol);

/* 1: every block of the range is dirty or mapped; 0: not; negative errno. */
int cpc_range_mapped(struct cpc_volume *vol, uint64_t block, uint64_t nr);
/* 1: no block of the range is dirty or mapped; 0: some is; negative errno. */
int cpc_range_hole(struct cpc_volume *vol, uint64_t block, uint64_t nr);

/* --- reservations (reserve.c) --- */
/* Reserves blocks for `nr` blocks of data of which all may be new. May commit and wait. `dirty`:
 * how many of the dirty blocks are the caller's own, which no commit brings back. */
int cpc_reserve(struct cpc_volume *vol, uint64_t block, uint64_t nr, uint64_t dirty);
void cpc_unreserve(struct cpc_engine *e, uint64_t nr);
/* After a commit: fewer places need to be kept for nodes. */
void cpc_reserve_committed(struct cpc_engine *e);
/* Waits until `nr` more dirty blocks are allowed, and counts them. */
int cpc_dirty_reserve(struct cpc_engine *e, uint64_t nr);
void cpc_dirty_release(struct cpc_engine *e, uint64_t nr);
/* Blocks of a row of turns, where so many may be dirty beyond where pacing starts. */
uint64_t cpc_pace_row(uint64_t band);
/* Takes a turn of writing out for `nr` blocks. Return: nanoseconds from `now` until it comes. */
uint64_t cpc_pace(struct cpc_engine *e, uint64_t nr, uint64_t now);
/* The same for a thread that sleeps once a row of turns: 0 within one, at its end how far the last
 * turn is away. */
uint64_t cpc_pace_sleep(struct cpc_engine *e, uint64_t nr, uint64_t now);
/* A cut of `nr` blocks took so long from its freeze to its end. */
void cpc_pace_learn(struct cpc_engine *e, uint64_t nr, uint64_t ns);
/* Promises ring bytes; waits for commits to make room. */
int cpc_log_room(struct cpc_engine *e, uint64_t bytes);
/* Starts a commit when extent maps pass half their bound, and waits for one at the bound. */
int cpc_map_throttle(struct cpc_engine *e);
/* Starts a commit when too many blocks wait for one. Called once a cut. */
void cpc_commit_when_tight(struct cpc_engine *e);

/* --- engine (engine.c) --- */
#define CPC_ENGINE_THREADS 3u

struct cpc_engine {
	struct cpc_store *store;
	struct cpc_log *log; /* NULL: read-only, or still replaying */
	/* while replaying: what a commit may say of the old log */
	struct {
		uint64_t nonce, seq, position;
	} replay;
	struct cpc_engine_options opts;
	struct cpc_memory memory;

	/* A commit's freeze must not cross a merge: merge_gate (CPC_RANK_MERGE_GATE) */
	struct cpc_mutex merge_gate;
	struct cpc_cond merge_cond;
	bool hold_merges;
	unsigned merging;

	struct cpc_mutex volumes_lock; /* CPC_RANK_TRANSACTION */
	struct cpc_list volumes;
	struct cpc_cond volumes_cond; /* a volume has no users any more */

	_Atomic bool broken, halted, refuse;
	struct cpc_mutex why_lock; /* CPC_RANK_LEAF */
	char why[256];

	/* commit, CPC_RANK_COMMIT for the work, CPC_RANK_TRANSACTION for the hand-over */
	struct cpc_mutex commit_lock;
	struct cpc_cond commit_cond;
	bool commit_running;
	uint64_t commits_started, commits_finished, last_good;
	int commit_error;
	unsigned failures_in_row; /* commit only */
	_Atomic uint64_t next_volume;
	_Atomic uint64_t names_seq;		    /* the last record of a change of names */
	_Atomic uint64_t tree_nodes, mapped_blocks; /* of all volumes, as committed */
	_Atomic uint64_t nr_volumes, nr_trees;	    /* of them, how many have a tree */
	_Atomic uint32_t max_level;

	/* blocks that uncommitted runs no longer name; released with the next commit */
	struct cpc_mutex dropped_lock; /* CPC_RANK_LEAF */
	struct cpc_blockset dropped;

	/* 1 MiB buffers of large requests; bounce_lock CPC_RANK_MEMORY */
	struct cpc_mutex bounce_lock;
	struct cpc_cond bounce_cond;
	void *bounce_idle[8];
	unsigned nr_bounce_idle, nr_bounce;

	/* what large reads have read ahead, the oldest first; ahead_lock CPC_RANK_LEAF */
	struct cpc_mutex ahead_lock;
	struct cpc_list aheads;
	unsigned nr_aheads;

	/* throttling; throttle_lock CPC_RANK_THROTTLE */
	struct cpc_mutex throttle_lock;
	struct cpc_cond throttle_cond;
	_Atomic uint64_t dirty_blocks;	   /* reserved, dirty, being written */
	uint64_t dirty_limit, dirty_start; /* immutable, as the next */
	uint64_t pace_start;		   /* dirty blocks from which writers are slowed down */
	uint64_t pace_row;		   /* blocks that a thread writes between two sleeps */
	_Atomic uint64_t block_ns;  /* what writing out one block takes, smoothed; 0: not known */
	_Atomic uint64_t pace_turn; /* when the last turn given to a writer ends */
	_Atomic uint64_t map_bytes, map_entries;

	/* threads */
	bool started, stop; /* thread_lock */
	_Atomic bool want_writeback, want_commit,
	    want_mark;		      /* set without, cleared with thread_lock */
	struct cpc_mutex thread_lock; /* CPC_RANK_LEAF */
	struct cpc_cond writeback_cond, committer_cond, marker_cond;
	pthread_t thread[CPC_ENGINE_THREADS];

	/* counters */
	_Atomic uint64_t reads, writes, bytes_written, trims, zeroes, flushes, fua_writes;
	_Atomic uint64_t cache_hits, cache_misses, read_ahead, data_errors, write_wait_us;
	struct cpc_hist read_us, write_us, flush_us, clear_ns, set_ns;
};

/* Counts a volume's committed tree in (sign 1) or out (-1) of the engine's sums. */
void cpc_count_tree(struct cpc_engine *e, const struct cpc_node_ptr *ptr, int sign);
/* Walks the volumes; each is held until the next call or cpc_volume_walk_end. */
struct cpc_volume *cpc_volume_next(struct cpc_engine *e, struct cpc_volume *prev);
void cpc_volume_walk_end(struct cpc_engine *e, struct cpc_volume *at);
/* Unlinks and frees a volume: its deletion is durable, it was never logged, or the engine ends. */
void cpc_engine_remove_volume(struct cpc_volume *vol);
/* Cuts every volume that has dirty data. */
int cpc_write_out(struct cpc_engine *e);
int cpc_writeback_turn(struct cpc_engine *e);
int cpc_zero_tail(struct cpc_volume *vol);
uint64_t cpc_dropped_blocks(struct cpc_engine *e);
void cpc_kick_writeback(struct cpc_engine *e);
void cpc_kick_commit(struct cpc_engine *e);
void cpc_kick_mark(struct cpc_engine *e);
/* Changes of data or names, or a drop list, wait for a commit. */
bool cpc_anything_to_commit(struct cpc_engine *e);
/* 0, or why no request is taken now: -EIO, -ESHUTDOWN. */
int cpc_engine_may_write(struct cpc_engine *e);
/* True when nothing of the volume waits for a commit. */
bool cpc_volume_clean(struct cpc_volume *vol);

#endif
