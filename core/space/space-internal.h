/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * space-internal: the state behind space.h, shared by space.c (doors), alloc.c (where to allocate)
 * and group.c (bitmaps in memory and the counts and sets that follow from them).
 */
#ifndef CPC_SPACE_SPACE_INTERNAL_H
#define CPC_SPACE_SPACE_INTERNAL_H

#include "lib/list.h"
#include "space/bitmap-internal.h"
#include "space/group-set-internal.h"
#include "space/space.h"

/* What is known of a group whether its bitmaps are in memory or not. */
struct cpc_group {
	struct cpc_group_bitmaps *bitmaps; /* NULL: not loaded */
	uint32_t nr_free : 17;		   /* blocks not busy; 0 in a bad group */
	uint32_t zone : 2;		   /* enum cpc_space_kind that it is kept for */
	uint32_t bad : 1;
	uint32_t loading : 1; /* a thread is in `load`, the lock dropped */
	uint32_t dirty : 1;   /* changes not yet folded */
	uint32_t unknown : 1; /* nr_slots is a lower bound */
	uint32_t nr_slots : 17;
};
_Static_assert(sizeof(struct cpc_group) == 16, "a summary of 16 bytes");

struct cpc_group_bitmaps {
	struct cpc_list lru; /* linked when the group may be evicted */
	uint64_t group;
	uint32_t nr_used; /* of the blocks that exist */
	uint32_t nr_freeing;
	uint64_t *freeing; /* prepared to be freed; NULL: none */
	uint64_t used[CPC_BITMAP_WORDS], busy[CPC_BITMAP_WORDS];
};

/* Sets of groups. The first two are three each, one a zone. */
enum cpc_space_set {
	CPC_SET_FREE = 0,      /* with free blocks */
	CPC_SET_RICH = 3,      /* with enough slots to begin a stream of nodes */
	CPC_SET_SLOTS = 6,     /* with slots, perhaps */
	CPC_SET_FRAGMENTS = 7, /* with fragments, perhaps */
	CPC_SET_UNKNOWN = 8,   /* never looked at */
	CPC_NR_SETS = 9
};

struct cpc_space {
	struct cpc_geometry geo; /* immutable, as the next three */
	cpc_space_load_fn load;
	void *ctx;
	unsigned order; /* of a slot: nodesize is 2^order blocks */

	struct cpc_mutex lock;	/* CPC_RANK_SPACE; protects everything below */
	struct cpc_cond loaded; /* a group is not `loading` any more */
	struct cpc_group *groups;
	struct cpc_group_set sets[CPC_NR_SETS];
	struct cpc_list lru; /* of bitmaps that may be evicted, oldest first */
	uint32_t nr_loaded, max_loaded;
	uint64_t nr_free, nr_used, nr_slots; /* sums over groups; nr_used with bad groups */
	uint64_t nr_bad, bad_used;
	uint64_t reserved, reserved_nodes, kept_nodes; /* blocks of data, nodes, nodes */
	uint64_t cursor[CPC_SPACE_NR_KINDS];	       /* where the last allocation ended */
};

/* --- group.c; all with the lock held --- */

/* The part of a group that the allocator may hand out: [*lo, *hi) within the group. */
void cpc_space_data_range(const struct cpc_geometry *geo, uint64_t group, uint32_t *lo,
			  uint32_t *hi);
/* Makes a group that has never been loaded have `nr_free` free blocks. */
void cpc_space_group_reset(struct cpc_space *space, uint64_t group, uint32_t nr_free);
void cpc_space_group_mark_bad(struct cpc_space *space, uint64_t group, int err);
/*
 * Makes sure that the group is in memory; it stays there while the lock is held. Drops the lock
 * when it has to load. Return: 0; -EUCLEAN bad group; -ENOMEM.
 */
int cpc_space_group_load(struct cpc_space *space, uint64_t group);
/* Puts the group into the sets and the list where it belongs after its counts have changed. */
void cpc_space_group_update(struct cpc_space *space, uint64_t group);
/* Evicts until the bound holds or nothing may be evicted. */
void cpc_space_evict(struct cpc_space *space, uint32_t max);
/* Sets or clears busy bits; some may be as asked already. Return: how many changed. */
uint32_t cpc_space_group_set_busy(struct cpc_space *space, uint64_t group, uint32_t start,
				  uint32_t len, bool busy);
uint32_t cpc_space_group_set_used(struct cpc_space *space, uint64_t group, uint32_t start,
				  uint32_t len, bool used);
/* Asserts that the group's counts are what its bitmaps say. */
void cpc_space_group_check(struct cpc_space *space, uint64_t group);
void cpc_space_group_free(struct cpc_space *space, uint64_t group);

/* --- alloc.c; with the lock held, may drop it --- */
int cpc_space_alloc_locked(struct cpc_space *space, enum cpc_space_kind kind, uint32_t want,
			   uint32_t min, uint64_t *block, uint32_t *got);
/* Looks at a group whose slots are not known. Return: 0; -ENOSPC all are known; -ENOMEM. */
int cpc_space_learn(struct cpc_space *space);

/* Slots that data may not break. */
static inline uint64_t cpc_space_held_slots(const struct cpc_space *space)
{
	return space->reserved_nodes + space->kept_nodes;
}

static inline uint32_t cpc_space_node_blocks(const struct cpc_space *space)
{
	return 1u << space->order;
}

#endif
