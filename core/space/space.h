/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * space: which blocks of the pool may be handed out. Memory only; core/transaction makes it
 * durable.
 *
 * Called by core/transaction (nodes, commit, open) and core/volume (data, reservations). Calls
 * core/format (geometry) and, through `load`, the owner, who reads a group's bitmap.
 *
 * Terms: all positions are block numbers of the pool. A group is CPC_GROUP_BLOCKS blocks and has
 * two bitmaps: `used` = in use as of the last commit (what a fold writes to the device), `busy` =
 * not to be handed out: used, or allocated since, or freed but still pinned. Counts of used blocks
 * include the fixed areas but not the bits that a bitmap has beyond the pool's end. A slot is a
 * free, node-sized and node-aligned place; a fragment is a free block outside of slots.
 *
 * Invariants
 *  1. used is a subset of busy (cpc_space_check); a block is handed out only when it is not busy.
 *  2. nr_free is exactly the number of blocks not busy, over loaded and unloaded groups
 *     (cpc_space_check). The number of slots is a lower bound until every group has been looked at.
 *  3. reserved <= nr_free at every successful reservation; data is never placed so that fewer slots
 *     remain than nodes are reserved. So an allocation made against a reservation (data: with
 *     min = 1) never fails for lack of space, however fragmented the pool is (but may for lack of
 *     memory or a bad bitmap).
 *  4. A group whose bitmap cannot be read is full for ever: never allocated from, never folded. It
 *     is warned of once; what is marked, released or set in it is ignored.
 *
 * Locks: one mutex (CPC_RANK_SPACE), dropped while `load` runs; who needs the same group meanwhile
 * waits. Memory: per group a summary of 16 bytes; the bitmaps of loaded groups, at most
 * CPC_SPACE_MAX_LOADED beside those with blocks whose two bitmaps differ, prepared frees, or
 * changes not yet folded.
 */
#ifndef CPC_SPACE_SPACE_H
#define CPC_SPACE_SPACE_H

#include "format/format.h"
#include "lib/lock.h"

struct cpc_space;

#define CPC_SPACE_MAX_LOADED 1024u

/*
 * Reads the `used` bitmap of a group as of the last commit, bits beyond the pool's end set. It must
 * hold as many used blocks as cpc_space_set_group said, or as the group had when it was evicted.
 * Context: no lock of this module; may block. Return: 0; -ENOMEM is passed on and tried again
 * later; anything else makes the group bad.
 */
typedef int (*cpc_space_load_fn)(void *ctx, uint64_t group, uint8_t bitmap[CPC_BLOCK_SIZE]);

/* All groups start unloaded with only the fixed areas in use. */
int cpc_space_create(const struct cpc_geometry *geo, cpc_space_load_fn load, void *ctx,
		     struct cpc_space **out);
void cpc_space_destroy(struct cpc_space *space);
/* At open, before anything else: the group has `used` blocks in use (all kinds, fixed areas too).
 * An impossible number makes the group bad. */
void cpc_space_set_group(struct cpc_space *space, uint64_t group, uint32_t used);
/* The bitmap of a fresh group: fixed areas and what lies beyond the pool's end are set. */
void cpc_space_fresh_bitmap(const struct cpc_geometry *geo, uint64_t group,
			    uint8_t bitmap[CPC_BLOCK_SIZE]);

/* Bounds the loaded groups that could be evicted; for tests and for small caches. */
void cpc_space_set_max_loaded(struct cpc_space *space, uint32_t max);

/*
 * Allocates a run of free blocks: at least `min`, at most `want`, next-fit from where the last
 * allocation of this kind ended, so that successive calls give ascending addresses. Nodes (min =
 * want = blocks of a node) are aligned to their size; nodes and data are kept apart where there is
 * room. For the second copy of a node pass CPC_SPACE_NODE2: it prefers the other half of the pool.
 * Data with min > 1 may have to look at the whole pool, and in a pool that is almost full its runs
 * are not longer than a node.
 * Context: may block in `load`. Return: 0; -ENOSPC no such run; -ENOMEM.
 */
enum cpc_space_kind { CPC_SPACE_DATA, CPC_SPACE_NODE, CPC_SPACE_NODE2, CPC_SPACE_NR_KINDS };
int cpc_space_alloc(struct cpc_space *space, enum cpc_space_kind kind, uint32_t want, uint32_t min,
		    uint64_t *block, uint32_t *got);
/*
 * The same against a reservation of at least `want` blocks of data (one node): what it gets, it
 * takes out of the reservation at the same instant. Allocating first and unreserving afterwards
 * counts blocks twice in between, and another reservation may fail for it.
 */
int cpc_space_alloc_reserved(struct cpc_space *space, enum cpc_space_kind kind, uint32_t want,
			     uint32_t min, uint64_t *block, uint32_t *got);
/* Marks blocks busy that are not yet (open: nodes of the free log, blocks the log names). Return:
 * 0; -EUCLEAN outside the data area; -ENOMEM (what comes before may be marked). */
int cpc_space_mark_busy(struct cpc_space *space, uint64_t block, uint64_t nr);
/* The same for blocks that nobody else can have (those that the log names): -EUCLEAN also when one
 * is busy already, or its group is bad. */
int cpc_space_claim(struct cpc_space *space, uint64_t block, uint64_t nr);
/* busy -> free. The blocks are busy and not used. */
void cpc_space_release(struct cpc_space *space, uint64_t block, uint64_t nr);

/* --- at the end of a commit that is durable --- */
/* busy -> used, used -> busy (pinned until cpc_space_release). Cannot fail: the groups have been
 * loaded by the allocation; freed blocks' groups by cpc_space_prepare_free. Setting what is used
 * already changes nothing (a replayed log may name it). */
void cpc_space_set_used(struct cpc_space *space, uint64_t block, uint64_t nr);
void cpc_space_clear_used(struct cpc_space *space, uint64_t block, uint64_t nr);
/* Loads the groups of [block, block + nr) and keeps them loaded until clear_used. The hold
 * counts blocks, so that clear_used and unprepare (the commit failed) may be called for the same
 * blocks in other ranges than prepare_free was. Return: 0; -EUCLEAN when a block
 * is not in use or the group is bad (the caller then leaks it and says so); -ENOMEM. */
int cpc_space_prepare_free(struct cpc_space *space, uint64_t block, uint64_t nr);
void cpc_space_unprepare(struct cpc_space *space, uint64_t block, uint64_t nr);
/* Whether the group's bitmaps are in memory, so that nothing has to be read to change them. */
bool cpc_space_is_loaded(struct cpc_space *space, uint64_t group);
/* Copies the used bitmap of a group (loads it). Return: 0; -EUCLEAN bad group; -ENOMEM. */
int cpc_space_get_used(struct cpc_space *space, uint64_t group, uint8_t bitmap[CPC_BLOCK_SIZE],
		       uint32_t *used);
/* A dirty group is not evicted: it has changes that only its loaded bitmap holds. Only a flag: an
 * unloaded group may be set too. The transaction sets it before cpc_space_set_used or
 * cpc_space_clear_used (after them the group might be evicted and read back without the change)
 * and clears it when the group is folded. */
void cpc_space_set_dirty(struct cpc_space *space, uint64_t group, bool dirty);

/* --- reservations --- */
/* Reserves blocks for data. `keep` = blocks that must remain unreserved and free beyond it.
 * Return: 0 or -ENOSPC. */
int cpc_space_reserve(struct cpc_space *space, uint64_t nr, uint64_t keep);
void cpc_space_unreserve(struct cpc_space *space, uint64_t nr);
/*
 * The same, and at least `nodes` slots are kept for nodes from now on, beside those reserved one by
 * one below (`keep` does not count them again): how many a commit needs follows from the whole of
 * what is reserved and unwritten, so that each writer says the new total. cpc_space_alloc takes
 * nodes out of the kept ones.
 * Context: may block in `load`. Return: 0; -ENOSPC and -ENOMEM, nothing changed.
 */
int cpc_space_reserve_keeping(struct cpc_space *space, uint64_t nr, uint64_t keep, uint64_t nodes);
/* Keeps at most `nodes` slots from now on, after a commit. */
void cpc_space_keep_at_most(struct cpc_space *space, uint64_t nodes);
/*
 * Reserves room for `nr` nodes, each copy counted. Enough free blocks are not enough: a node needs
 * consecutive ones, so this counts slots; data is kept out of the last ones.
 * Context: may block in `load` (looks at groups until it knows enough slots). Return: 0; -ENOSPC;
 * -ENOMEM.
 */
int cpc_space_reserve_nodes(struct cpc_space *space, uint64_t nr, uint64_t keep);
void cpc_space_unreserve_nodes(struct cpc_space *space, uint64_t nr);

struct cpc_space_info {
	uint64_t total;	     /* blocks of the pool */
	uint64_t free;	     /* not busy */
	uint64_t used;	     /* as of the last commit */
	uint64_t reserved;   /* of the free ones, for data and nodes */
	uint64_t kept_nodes; /* slots */
	uint64_t node_slots; /* nodes that fit, as far as is known */
	uint64_t loaded_groups, bad_groups;
};
void cpc_space_info(struct cpc_space *space, struct cpc_space_info *info);
/* Recounts everything loaded and asserts invariants 1 and 2. For tests. */
void cpc_space_check(struct cpc_space *space);

#endif
