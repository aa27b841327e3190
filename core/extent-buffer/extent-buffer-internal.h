/* SPDX-License-Identifier: BSD-3-Clause */
/* extent-buffer-internal: what the files of this folder share. */
#ifndef CPC_EXTENT_BUFFER_EXTENT_BUFFER_INTERNAL_H
#define CPC_EXTENT_BUFFER_EXTENT_BUFFER_INTERNAL_H

#include "extent-buffer/extent-buffer.h"
#include "lib/lock.h"
#include "lib/xarray.h"

/* Flags of a node. DIRTY and WRITEBACK equal the index's marks. */
#define EB_LOADING   (1u << 0) /* in the index, being read: wait */
#define EB_UPTODATE  (1u << 1) /* content is final */
#define EB_DIRTY     (1u << 2)
#define EB_WRITEBACK (1u << 3)
#define EB_INDEXED   (1u << 4)
#define EB_USED	     (1u << 5) /* used since the clock last passed; set without the lock */

struct cpc_eb_cache {
	struct cpc_eb_params p; /* immutable, but for p.limit */
	uint32_t nodesize;	/* immutable */
	struct cpc_mutex lock;
	struct cpc_cond changed; /* a node has left LOADING or WRITEBACK */
	/* under the lock */
	struct cpc_xarray index; /* read without it */
	struct cpc_list clock;	 /* indexed nodes neither dirty, in writeback nor being read */
	int write_error;	 /* first one since the last sync */
	struct cpc_eb_stats stats;
};

static inline uint64_t cpc_eb_index(uint64_t bytenr)
{
	return bytenr >> CPC_BLOCK_SHIFT;
}

static inline uint32_t cpc_eb_flags(const struct cpc_eb *eb)
{
	return atomic_load_explicit(&eb->flags, memory_order_acquire);
}

static inline void cpc_eb_set_flag(struct cpc_eb *eb, uint32_t flag)
{
	atomic_fetch_or_explicit(&eb->flags, flag, memory_order_release);
}

static inline void cpc_eb_clear_flag(struct cpc_eb *eb, uint32_t flag)
{
	atomic_fetch_and_explicit(&eb->flags, ~flag, memory_order_release);
}

/* Takes a reference to a node that is known to have one. */
static inline void cpc_eb_get(struct cpc_eb *eb)
{
	atomic_fetch_add_explicit(&eb->refs, 1, memory_order_relaxed);
}

/* Flag, mark and byte count together. */
void cpc_eb_set_dirty_locked(struct cpc_eb *eb, bool on);
void cpc_eb_set_writeback_locked(struct cpc_eb *eb, bool on);
/* Takes a node out of the index; it is not in writeback. */
void cpc_eb_drop_locked(struct cpc_eb *eb);
/* Waits until the node is not being read or written. The caller holds a reference. */
void cpc_eb_wait_locked(struct cpc_eb *eb);
/* Drops what the clock finds until the limit is kept, looking at `scan` nodes at most. */
void cpc_eb_evict_locked(struct cpc_eb_cache *cache, size_t scan);

/*
 * find.c: how dirty nodes are found. bench-writeback links other ways in its place.
 */
/* A node becomes dirty, or is dirty no more (then it is not frozen either). */
void cpc_eb_note_dirty_locked(struct cpc_eb *eb, bool on);
bool cpc_eb_any_dirty(struct cpc_eb_cache *cache); /* without the lock */
/* Freezes a part of what is dirty now, from *index on. Return: whether there may be more. */
bool cpc_eb_freeze_some_locked(struct cpc_eb_cache *cache, uint64_t *index);
/* Finds up to `max` dirty (and frozen) nodes from *index on. Return: how many; there may be more
 * if that is not 0 and *index has not become 0. */
unsigned cpc_eb_find_dirty_locked(struct cpc_eb_cache *cache, bool frozen, uint64_t *index,
				  struct cpc_eb **out, unsigned max);

/* writeback.c: before one more dirty node is added. Return: 0, or the error of a node write. */
int cpc_eb_make_room(struct cpc_eb_cache *cache);

/* read.c: fills a node from the first copy that is what `ptr` says, heals the one before it. */
int cpc_eb_load(struct cpc_eb *eb, const struct cpc_node_ptr *ptr);
/* Compares a cached node with a pointer. Return: 0 or -EUCLEAN, logged. */
int cpc_eb_compare(const struct cpc_eb *eb, const struct cpc_node_ptr *ptr, uint64_t owner);

#endif
