/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * reserve: who may dirty how much, and whether the pool has room for it.
 *
 * Space. A write reserves a block of the pool for each block it may dirty, before it is answered.
 * Beyond that the pool keeps
 *   - places for the nodes of two commits (one may be running while the next collects) of what is
 *     pending, commit_nodes();
 *   - unless the write only replaces mapped blocks: as many places at least as the commit of the
 *     largest overwrite needs, those of all nodes that the trees will have when every mapped block
 *     stands alone, worst_nodes(), and the overwrite reserve, a sixteenth of the pool up to 64
 * MiB. So what is kept from new data is what overwriting a full pool needs later, and there it may
 * be used, for the old blocks come back with the next commit. Places, not blocks: data would leave
 * no room for a node in a pool that is half free. When that is not there, commits may bring it back
 * (pinned, dropped, overwritten blocks); when they have brought nothing, it is -ENOSPC. Whether
 * blocks are mapped is looked up only then.
 *
 * Memory. Dirty blocks count from their reservation to their arrival on the device, against
 * dirty_limit; extent maps against map_bytes. Writeback starts at an eighth of the limit. Where
 * writers are faster than the device all the same, they are slowed down from half of the limit on,
 * the more the nearer it is: each takes turns one behind the other, as long as writing its blocks
 * out takes (block_ns) times a factor that grows from 0 to 2. So in a steady overload dirty data
 * settles at three quarters of the limit, each writer waits about as long as the next, and what is
 * left takes up the pauses of the device. A thread sleeps once for a row of its turns: a client
 * that has many requests under way gets them done together, with one wake-up on either side. Only
 * who meets the limit itself has to wait for a device write; with many threads, whose rows together
 * are longer than the longest sleep, the limit is what holds them. Without an overload all of this
 * is one comparison.
 */
#include "volume/volume-internal.h"

#include <time.h>

#include "lib/mutation.h"

#define OVERWRITE_SHARE 16u
#define OVERWRITE_MAX	((64ull << 20) >> CPC_BLOCK_SHIFT)
#define COMMIT_TRIES	6
#define PIN_WAITS	2000u /* of a millisecond */
#define PIN_WAIT_NS	1000000u
#define LOG_TRIES	100 /* others may take what a commit has freed */

/* A leaf entry of one block, item header included. */
#define ENTRY_BYTES 32u

static uint64_t half_leaf(const struct cpc_store *store)
{
	return (store->geo.nodesize - sizeof(struct cpc_disk_node)) / ENTRY_BYTES / 2;
}

static uint64_t tree_nodes(struct cpc_engine *e)
{
	return atomic_load_explicit(&e->tree_nodes, memory_order_relaxed);
}

/* Nodes, each copy counted, of two commits of `others` changes anywhere and `nr` in a row, to trees
 * of `nodes` nodes. */
static uint64_t commit_nodes(struct cpc_engine *e, uint64_t nodes, uint64_t others, uint64_t nr)
{
	const struct cpc_store *store = e->store;
	uint64_t level = atomic_load_explicit(&e->max_level, memory_order_relaxed);
	uint64_t in_a_row = 2 * (nr / half_leaf(store) + 1) + level + 2;
	uint64_t by_path = others * (level + 2) + in_a_row;
	uint64_t by_tree = nodes + 2 * ((others + nr) / half_leaf(store) + 1);
	uint64_t free_entries = cpc_min_u64(2 * (others + nr), 340 * store->geo.nr_groups);
	uint64_t log = free_entries * sizeof(struct cpc_disk_free_entry) / store->geo.nodesize;

	return 2 * (cpc_min_u64(by_path, by_tree) + log + level + 8) * store->geo.copies;
}

/* Trees that `entries` changes may begin. */
static uint64_t new_trees(struct cpc_engine *e, uint64_t entries)
{
	uint64_t volumes = atomic_load_explicit(&e->nr_volumes, memory_order_relaxed);
	uint64_t trees = atomic_load_explicit(&e->nr_trees, memory_order_relaxed);

	return volumes > trees ? cpc_min_u64(volumes - trees, entries) : 0;
}

/* Nodes that the trees will have at most, with `entries` more blocks. */
static uint64_t worst_nodes(struct cpc_engine *e, uint64_t entries)
{
	uint64_t mapped = atomic_load_explicit(&e->mapped_blocks, memory_order_relaxed) + entries;
	uint64_t worst = mapped / half_leaf(e->store);

	worst += worst / 32;						   /* inner nodes */
	worst += atomic_load_explicit(&e->nr_trees, memory_order_relaxed); /* a last leaf each */
	return cpc_max_u64(worst + new_trees(e, entries), tree_nodes(e));
}

static uint64_t overwrite_blocks(const struct cpc_engine *e)
{
	return cpc_min_u64(e->store->geo.nr_blocks / OVERWRITE_SHARE, OVERWRITE_MAX);
}

/* Changes that the next commit has to take. */
static uint64_t pending_entries(struct cpc_engine *e)
{
	return atomic_load_explicit(&e->map_entries, memory_order_relaxed) +
	       atomic_load_explicit(&e->dirty_blocks, memory_order_relaxed);
}

/* Places for two commits to trees that have grown to `nodes`, and for growing so. */
static uint64_t grown(struct cpc_engine *e, uint64_t nodes, uint64_t others, uint64_t nr)
{
	return commit_nodes(e, nodes, others, nr) +
	       (nodes - cpc_min_u64(nodes, tree_nodes(e))) * e->store->geo.copies;
}

/* Places to keep while there is no need to live on what is kept. */
static uint64_t places(struct cpc_engine *e, uint64_t others, uint64_t nr)
{
	uint64_t nodes = worst_nodes(e, others + nr);

	return cpc_max_u64(grown(e, nodes, others, nr), grown(e, nodes, 0, overwrite_blocks(e)));
}

/* Places without which what is pending, and an overwrite of `nr`, could not be committed. */
static uint64_t least_places(struct cpc_engine *e, uint64_t others, uint64_t nr)
{
	uint64_t nodes = tree_nodes(e) + new_trees(e, others) + others / half_leaf(e->store);

	return grown(e, nodes, others, nr);
}

/* `dirty`: of what is pending, the caller's own. */
static int try_reserve(struct cpc_engine *e, uint64_t nr, uint64_t dirty, bool overwrite)
{
	uint64_t pending = pending_entries(e), others = pending > dirty ? pending - dirty : 0;
	struct cpc_space *space = e->store->space;
	uint64_t least;

	if (CPC_MUTANT(commits_keep_no_room))
		return cpc_space_reserve(space, nr, 0);
	if (!overwrite)
		return cpc_space_reserve_keeping(space, nr, overwrite_blocks(e),
						 places(e, others, nr));
	least = least_places(e, others, nr);
	cpc_space_keep_at_most(space, least);
	return cpc_space_reserve_keeping(space, nr, 0, least);
}

/* The commit took its nodes out of the kept places; those that it freed instead are kept again,
 * before data that has been reserved long ago breaks them. */
void cpc_reserve_committed(struct cpc_engine *e)
{
	uint64_t pending = pending_entries(e), all = places(e, pending, 0);
	struct cpc_space *space = e->store->space;

	cpc_space_keep_at_most(space, all);
	if (cpc_space_reserve_keeping(space, 0, 0, all))
		cpc_space_reserve_keeping(space, 0, 0, least_places(e, pending, 0));
}

bool cpc_engine_replay_room(struct cpc_engine *e, uint64_t entries)
{
	return !cpc_space_reserve_keeping(e->store->space, 0, 0, least_places(e, entries, 0));
}

static bool may_help(struct cpc_engine *e, uint64_t own_dirty)
{
	struct cpc_store_info info;

	cpc_store_info(e->store, &info);
	return info.pinned_blocks || info.nr_drops || cpc_dropped_blocks(e) ||
	       atomic_load(&e->map_entries) || atomic_load(&e->dirty_blocks) > own_dirty ||
	       cpc_anything_to_commit(e);
}

bool cpc_engine_commit_may_help(struct cpc_engine *e)
{
	return may_help(e, 0);
}

/* Blocks that wait for a commit are more than a quarter of what is free: time for one. */
void cpc_commit_when_tight(struct cpc_engine *e)
{
	struct cpc_space_info info;

	cpc_space_info(e->store->space, &info);
	if (atomic_load(&e->store->pinned_blocks) + cpc_dropped_blocks(e) > info.free / 4)
		cpc_kick_commit(e);
}

/* Return: 0; -ENOSPC not now; another errno. */
static int try_both_ways(struct cpc_volume *vol, uint64_t block, uint64_t nr, uint64_t dirty)
{
	struct cpc_engine *e = vol->engine;
	int ret, mapped;

	/* writers that are gone may have asked for more places than are needed now */
	cpc_reserve_committed(e);
	ret = try_reserve(e, nr, dirty, false);
	if (ret != -ENOSPC)
		return ret;
	mapped = cpc_range_mapped(vol, block, nr);
	if (mapped < 0)
		return mapped;
	return mapped ? try_reserve(e, nr, dirty, true) : -ENOSPC;
}

/* What a commit has freed may be pinned by readers of older views: requests, which end. */
static bool wait_for_readers(struct cpc_engine *e, unsigned *waits)
{
	if (!atomic_load(&e->store->pinned_blocks) || *waits == PIN_WAITS)
		return false;
	++*waits;
	cpc_mutex_lock(&e->throttle_lock);
	cpc_cond_wait_ns(&e->throttle_cond, &e->throttle_lock, PIN_WAIT_NS);
	cpc_mutex_unlock(&e->throttle_lock);
	return true;
}

int cpc_reserve(struct cpc_volume *vol, uint64_t block, uint64_t nr, uint64_t dirty)
{
	struct cpc_engine *e = vol->engine;
	int ret = try_reserve(e, nr, dirty, false);
	unsigned waits = 0;

	for (int i = 0; ret == -ENOSPC && i < COMMIT_TRIES; i++) {
		bool helps = may_help(e, dirty);

		ret = try_both_ways(vol, block, nr, dirty);
		if (ret != -ENOSPC || !helps)
			break;
		ret = cpc_engine_commit(e, false);
		if (ret)
			return ret;
		do {
			ret = try_both_ways(vol, block, nr, dirty);
		} while (ret == -ENOSPC && wait_for_readers(e, &waits));
	}
	return ret;
}

void cpc_unreserve(struct cpc_engine *e, uint64_t nr)
{
	if (nr)
		cpc_space_unreserve(e->store->space, nr);
}

/* --- pace --- */

/* Cuts of fewer blocks say little about how long one takes. */
#define PACE_LEARN_BLOCKS 256u
/* A writer sleeps only when its turn is farther away than this, and never longer than that. */
#define PACE_SLEEP_MIN_NS 100000u
#define PACE_SLEEP_MAX_NS 20000000u
/*
 * A row has so many blocks at most, and so small a part of what lies between the start of pacing
 * and the limit that 16 threads can do one each. 64 clients, 16 deep, on 8 volumes, two processors:
 * 31 k writes/s with 1 block, 44 with 6, 53 with 32, 56 with 64, 61 with 128.
 */
#define PACE_ROW_MAX   64u
#define PACE_ROW_SHARE 16u

uint64_t cpc_pace_row(uint64_t band)
{
	return cpc_max_u64(1, cpc_min_u64(PACE_ROW_MAX, band / PACE_ROW_SHARE));
}

void cpc_pace_learn(struct cpc_engine *e, uint64_t nr, uint64_t ns)
{
	uint64_t old = atomic_load_explicit(&e->block_ns, memory_order_relaxed);

	if (nr < PACE_LEARN_BLOCKS)
		return;
	atomic_store_explicit(&e->block_ns, old ? (3 * old + ns / nr) / 4 : ns / nr,
			      memory_order_relaxed);
}

uint64_t cpc_pace(struct cpc_engine *e, uint64_t nr, uint64_t now)
{
	uint64_t level = atomic_load_explicit(&e->dirty_blocks, memory_order_relaxed);
	uint64_t ns, begin, last = atomic_load_explicit(&e->pace_turn, memory_order_relaxed);

	if (level <= e->pace_start)
		return 0;
	ns = nr * atomic_load_explicit(&e->block_ns, memory_order_relaxed) * 2 *
	     (level - e->pace_start) / (e->dirty_limit - e->pace_start);
	do {
		begin = cpc_min_u64(cpc_max_u64(last, now), now + PACE_SLEEP_MAX_NS);
	} while (!atomic_compare_exchange_weak(&e->pace_turn, &last, begin + ns));
	return begin - now;
}

uint64_t cpc_pace_sleep(struct cpc_engine *e, uint64_t nr, uint64_t now)
{
	static _Thread_local uint64_t row; /* blocks since the thread slept */
	uint64_t ns = cpc_pace(e, nr, now);

	if (ns < PACE_SLEEP_MIN_NS)
		return 0;
	row += nr;
	if (row < e->pace_row)
		return 0;
	row = 0;
	return ns;
}

/* The writer holds nothing that another one waits for, but its reservation of ring bytes. */
static void keep_pace(struct cpc_engine *e, uint64_t nr)
{
	uint64_t ns;

	if (e->opts.no_threads)
		return;
	ns = cpc_pace_sleep(e, nr, cpc_now_ns());
	if (!ns)
		return;
	nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
	atomic_fetch_add_explicit(&e->write_wait_us, ns / 1000, memory_order_relaxed);
}

/* --- memory --- */

/* Counts nr unless that would pass the limit. Callers ask for less than half of it. */
static bool try_dirty(struct cpc_engine *e, uint64_t nr)
{
	uint64_t now = atomic_load_explicit(&e->dirty_blocks, memory_order_relaxed);

	do {
		if (now + nr > e->dirty_limit)
			return false;
	} while (!atomic_compare_exchange_weak(&e->dirty_blocks, &now, now + nr));
	if (now + nr > e->dirty_start)
		cpc_kick_writeback(e);
	if (cpc_unlikely(now + nr > e->pace_start))
		keep_pace(e, nr);
	return true;
}

int cpc_dirty_reserve(struct cpc_engine *e, uint64_t nr)
{
	uint64_t start;

	if (cpc_likely(try_dirty(e, nr)))
		return 0;
	start = cpc_now_ns();
	while (!try_dirty(e, nr)) {
		if (cpc_engine_broken(e, NULL, 0))
			return -EIO;
		if (e->opts.no_threads) {
			int ret = cpc_write_out(e);

			if (ret)
				return ret;
			continue;
		}
		cpc_kick_writeback(e);
		cpc_mutex_lock(&e->throttle_lock);
		if (atomic_load(&e->dirty_blocks) + nr > e->dirty_limit)
			cpc_cond_wait_ns(&e->throttle_cond, &e->throttle_lock, 20000000);
		cpc_mutex_unlock(&e->throttle_lock);
	}
	atomic_fetch_add_explicit(&e->write_wait_us, (cpc_now_ns() - start) / 1000,
				  memory_order_relaxed);
	return 0;
}

void cpc_dirty_release(struct cpc_engine *e, uint64_t nr)
{
	if (!nr)
		return;
	cpc_assert(atomic_fetch_sub(&e->dirty_blocks, nr) >= nr);
	cpc_mutex_lock(&e->throttle_lock);
	cpc_cond_broadcast(&e->throttle_cond);
	cpc_mutex_unlock(&e->throttle_lock);
}

int cpc_log_room(struct cpc_engine *e, uint64_t bytes)
{
	int ret = cpc_log_reserve(e->log, bytes);

	for (int i = 0; ret && i < LOG_TRIES; i++) {
		ret = cpc_engine_commit(e, false);
		if (ret)
			return ret;
		ret = cpc_log_reserve(e->log, bytes);
	}
	return ret;
}

int cpc_map_throttle(struct cpc_engine *e)
{
	uint64_t bytes = atomic_load_explicit(&e->map_bytes, memory_order_relaxed);

	if (bytes > e->opts.map_bytes / 2)
		cpc_kick_commit(e);
	if (bytes <= e->opts.map_bytes)
		return 0;
	return cpc_engine_commit(e, false);
}
