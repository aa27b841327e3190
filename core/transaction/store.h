/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * store: the durable half of a pool: superblocks, root tree, volume trees, free space; and the
 * commit that moves them from one state to the next.
 *
 * Called by core/volume (commits what volumes changed) and core/pool (open, close, names). Calls
 * core/btree, extent-buffer, space, extent-map, backing, format.
 *
 * A commit takes the frozen changes of any number of volumes and writes a new pool state beside the
 * old one: new nodes at free places, a device flush, the superblock into the next slot of both
 * rings, a device flush. Until the second flush is good the old state is the pool's.
 *
 *   cpc_store_commit:  volumes' trees -> a slice of the drop list -> bitmap folds -> root tree
 *                      -> free log -> node writeback -> flush -> superblocks -> flush -> publish
 *
 * Terms: `burned`: a superblock that was handed to the device but whose flush was not good; it may
 * or may not be there after a crash. `fold`: writing a group's bitmap to its other home. `pins`:
 * blocks that are free in the new state, but that views of the old one may still read.
 *
 * Invariants
 *  1. Nothing that the newest durable superblock (or a burned one after it) reaches is overwritten:
 *     freed blocks stay busy in core/space until the commit is durable and their pins are put;
 *     what a burned commit allocated stays busy until a later one is durable; no home is written
 *     while a burned superblock stands (fold_allowed).
 *  2. A transid is used once; a superblock never goes into the slot of the last durable one
 *     (next_slot).
 *  3. A failed commit changes nothing but transids: the caller's runs and roots are as before.
 *  4. The bitmaps, with the free log on top, describe exactly the blocks reachable from the root
 *     tree and its subtrees and the fixed areas; the nodes of the free-log tree are found by
 *     walking it (core/check compares).
 *
 * Locks: commits are serialized by the caller. `lock` (CPC_RANK_LEAF) protects what the
 * group loader and the info functions share with a commit.
 * Errors: 0 or negative errno; after -EIO, -ENOSPC, -ENOMEM the commit may be tried again.
 * Durable: everything given to cpc_store_commit when it returns 0.
 */
#ifndef CPC_TRANSACTION_STORE_H
#define CPC_TRANSACTION_STORE_H

#include <stdatomic.h>
#include "backing/backing.h"
#include "backing/flush-epoch.h"
#include "btree/btree.h"
#include "extent-buffer/extent-buffer.h"
#include "extent-map/run.h"
#include "format/format.h"
#include "lib/hist.h"
#include "lib/lock.h"
#include "space/space.h"
#include "transaction/blockset.h"

/* A volume's record in memory. */
struct cpc_volume_item {
	uint64_t id, size, flags, created, generation, limit, origin, snapshot_of, dead_blocks;
	struct cpc_node_ptr root;
	uint8_t uuid[CPC_UUID_SIZE];
	char name[CPC_NAME_MAX + 1];
};

struct cpc_group_meta;
struct cpc_free_tail;
struct cpc_store_hold;

struct cpc_store {
	struct cpc_backing *backing;
	struct cpc_flush_epoch fe;
	struct cpc_geometry geo;
	struct cpc_eb_cache *ebc;
	struct cpc_space *space;
	bool read_only;
	uint8_t uuid[CPC_UUID_SIZE];
	uint64_t nonce; /* of this open */

	struct cpc_mutex lock;
	struct cpc_super super;	     /* newest durable; lock, written by commit */
	uint64_t used_blocks;	     /* in all bitmaps; super.used_blocks if that was right; lock */
	uint64_t dropped_blocks;     /* under the drop list, lock */
	uint64_t nr_drops;	     /* lock */
	struct cpc_store_hold *hold; /* NULL: none; lock */
	_Atomic uint64_t pinned_blocks;
	struct cpc_mutex super_lock; /* CPC_RANK_SUPER: slots of both rings */

	/* commit only */
	uint64_t last_transid;
	uint32_t last_slot, durable_slot;
	struct cpc_blockset burned; /* allocated by burned commits */
	bool burned_super;
	struct cpc_group_meta **groups; /* by group, NULL: fresh; lock */
	struct cpc_free_tail *tails;	/* first free-log key of each unfolded transid */
	uint64_t fold_from;		/* group where the next commit begins to look for folds */
	size_t nr_tails, cap_tails;
	const struct cpc_rebuilt *rebuilt; /* at open only */

	/* counters */
	_Atomic uint64_t commits, commit_failures;
	_Atomic uint64_t scrub_errors, scrub_healed; /* copies of metadata */
	struct cpc_hist commit_us;
};

/* Blocks that wait until nobody can read them any more. Freed by the last put. */
struct cpc_pins {
	struct cpc_store *store;
	_Atomic uint32_t refs;
	struct cpc_blockset blocks;
	struct cpc_pins *next_held; /* of a cpc_store_hold; store->lock */
};

/* --- life --- */

/* Finds the newest superblock on a device. Return: 0; -EINVAL not a pool, -EUCLEAN, -ENOTSUP with
 * *why; -EIO, -ENOMEM. */
int cpc_super_find(struct cpc_backing *backing, struct cpc_super *super, const char **why);
/* Writes the superblocks of an empty pool into both rings, zeroes all other slots, flushes. */
int cpc_store_format(struct cpc_backing *backing, struct cpc_super *super);

/*
 * Opens the store over a backing that it borrows: newest superblock, free log, group summaries.
 * Writes nothing. on_broken: the device no longer takes writes.
 */
int cpc_store_open(struct cpc_backing *backing, bool read_only, size_t node_bytes,
		   void (*on_broken)(void *ctx), void *ctx, struct cpc_store **out,
		   const char **why);
/*
 * Writes the newest superblock again where it stands and flushes, so that what was found is durable
 * (the last life may have died before its flush), and wipes pieces of others. Before anything else
 * is written; after all that an opening validates, the log as well: a pool that is refused is left
 * as it is.
 */
int cpc_store_settle(struct cpc_store *store);
void cpc_store_close(struct cpc_store *store);

/* What a walk of all trees has found to be in use, to take the place of bitmaps and free log. */
struct cpc_rebuilt {
	/* The tree cannot be read; every group that has blocks in use is here. */
	bool free_log_lost;
	size_t nr;
	struct cpc_rebuilt_group {
		uint64_t group;
		uint8_t *bitmap; /* as a fold writes it: CPC_BLOCK_SIZE bytes */
	} * groups;		 /* ascending */
};
/* Opens for writing; the first commit folds these groups. `rebuilt` lives as long as the store. */
int cpc_store_open_rebuilt(struct cpc_backing *backing, const struct cpc_rebuilt *rebuilt,
			   size_t node_bytes, struct cpc_store **out, const char **why);

/*
 * Looks on the whole device for the ring that ends a pool which is smaller than its device, for
 * when ring 0 is lost. From the end: behind the pool's end stands nothing that a client has
 * written, before it may stand anything. Progress in blocks; may be NULL.
 * Return: 0; -EINVAL there is none; -EUCLEAN the one nearest to the end, or what is left of ring 0,
 * does not fit; -EIO, -ENOMEM.
 */
int cpc_super_scan(struct cpc_backing *backing, struct cpc_super *super,
		   void (*progress)(void *ctx, uint64_t done, uint64_t total), void *ctx);

/* Calls fn for each volume in order of id. What fn returns other than 0 ends the walk. */
int cpc_store_for_each_volume(struct cpc_store *store,
			      int (*fn)(void *ctx, const struct cpc_volume_item *item), void *ctx);

/* Decodes a volume's value of the root tree. Return: 0 or -EUCLEAN. */
int cpc_volume_item_decode(struct cpc_volume_item *item, uint64_t id, const void *value,
			   uint32_t size);

#define CPC_VOLUME_VALUE_MAX (sizeof(struct cpc_disk_volume) + CPC_NAME_MAX)
/* Fills a volume's value; `generation` is that of the transaction. Return: its size. */
uint32_t cpc_volume_item_encode(const struct cpc_volume_item *item, uint64_t generation,
				uint8_t value[CPC_VOLUME_VALUE_MAX]);

/* --- commit --- */

struct cpc_commit_volume {
	struct cpc_volume_item item; /* as it shall be; root: as it is */
	bool deleted;
	const struct cpc_run *run;    /* changes of the mapping, NULL: none */
	struct cpc_node_ptr new_root; /* out */
};

struct cpc_commit_request {
	struct cpc_commit_volume *volumes;
	size_t nr_volumes;
	uint64_t next_volume;		/* next volume id to put into the superblock */
	uint64_t nonce;			/* of the log that log_seq counts in */
	uint64_t log_seq, log_position; /* the trees contain the log up to here */
	bool clean;			/* the last commit before a close */
	uint32_t drop_budget;		/* device reads for freeing what is on the drop list */
	/* out */
	uint64_t transid;
	struct cpc_pins *pins; /* one reference, the caller's; NULL: nothing freed */
};

/*
 * What keeps a commit short while a terabyte is being dropped: so many device reads, of nodes and
 * of bitmaps, one after the other. What they free is logged and folded with a few MiB of writes.
 */
#define CPC_DROP_BUDGET 256u
#define CPC_DROP_BYTES	(4u << 20)

/* Reads for the drop list in one commit. */
static inline uint32_t cpc_drop_budget(uint32_t nodesize)
{
	return (uint32_t)cpc_min_u64(CPC_DROP_BUDGET, CPC_DROP_BYTES / nodesize);
}

int cpc_store_commit(struct cpc_store *store, struct cpc_commit_request *req);

/* --- pins --- */
struct cpc_pins *cpc_pins_new(struct cpc_store *store);
struct cpc_pins *cpc_pins_get(struct cpc_pins *pins);
/* Adds blocks that are busy and not in use as of the last commit. */
int cpc_pins_add(struct cpc_pins *pins, uint64_t block, uint64_t nr);
void cpc_pins_put(struct cpc_pins *pins); /* NULL is allowed */

/* --- holding a committed state (hold.c) --- */

/*
 * Keeps all that the newest durable superblock names as it is, while commits go on: what they free
 * is not released, and no home of a bitmap that it names is rewritten. So who reads the committed
 * state beside commits sees no block in its next life, and may write a copy over another.
 * To be short, for it costs space and lets the free log grow. One at a time (asserted).
 */
struct cpc_store_hold {
	struct cpc_super super;
	struct cpc_pins *pins; /* of commits since; store->lock */
};
void cpc_store_hold(struct cpc_store *store, struct cpc_store_hold *hold);
void cpc_store_unhold(struct cpc_store *store, struct cpc_store_hold *hold);

/* Nodes and blocks of metadata of the committed state, for reservations: whole trees. */
struct cpc_store_info {
	uint64_t transid;
	uint64_t used_blocks;	 /* in use, those under the drop list not counted */
	uint64_t dropped_blocks; /* under the drop list */
	uint64_t pinned_blocks;
	uint64_t root_nodes; /* root tree and free-log tree */
	uint64_t nr_drops;
};
void cpc_store_info(struct cpc_store *store, struct cpc_store_info *info);
/* Of the newest durable superblock. Context: any thread. */
uint64_t cpc_store_transid(struct cpc_store *store);

#endif
