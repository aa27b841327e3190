/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * extent-buffer: nodes in memory, found by address in a tagged index, written back in order of
 * address.
 *
 * Called by core/btree (reads nodes, builds new ones) and core/transaction (writeback, sync).
 * Calls core/backing (through the flush epoch), core/format, core/lib (xarray). The tree-checker
 * comes from above as a function pointer.
 *
 * Life of a node: alloc (private to its builder, may change) -> finish (checked, checksummed,
 * final: never changes again; DIRTY) -> writeback (WRITEBACK) -> clean (may be evicted once a
 * device flush has covered it) -> freed. A node read from the pool starts clean.
 *
 * Invariants
 *  1. A node in the index is final; its content does not change until it is freed (rule: the
 *     checksum is taken from a frozen buffer).
 *  2. The index marks DIRTY and WRITEBACK of a slot equal the node's flags (eb_check).
 *  3. A node that is dirty, under writeback, failed to be written, or not yet covered by a good
 *     device flush is not evicted; a node whose write failed is never read again from the device.
 *  4. cpc_eb_read returns only nodes whose checksum, uuid, address, generation, owner and level are
 *     what the pointer says and that the checker accepts; else -EUCLEAN (damage) or -EIO.
 *  5. Clean nodes are evicted by a clock so that all nodes' bytes stay within the limit, as far as
 *     referenced ones allow. Dirty nodes are bounded as well: before one more is added to a quarter
 *     of the limit, all of them are written, and when the cache is full a device flush makes them
 *     evictable (cpc_eb_make_room). So a commit needs no more memory than the limit, however many
 *     nodes it makes.
 *
 * Locks: CPC_RANK_EXTENT_BUFFER protects index writes, flags and the clock; lookups are lock-free
 * (epoch section, reference taken only if not being freed, slot checked again).
 * Ownership: every cpc_eb from read/alloc holds a reference, given back by cpc_eb_put.
 */
#ifndef CPC_EXTENT_BUFFER_EXTENT_BUFFER_H
#define CPC_EXTENT_BUFFER_EXTENT_BUFFER_H

#include <stdatomic.h>
#include "format/format.h"
#include "lib/base.h"
#include "lib/epoch.h"
#include "lib/list.h"

struct cpc_eb_cache;
struct cpc_flush_epoch;
struct cpc_backing;

struct cpc_eb {
	uint64_t bytenr[2];
	uint64_t generation, owner;
	void *data; /* nodesize bytes, 4096-aligned */
	uint32_t csum;
	uint8_t level;
	/* the rest belongs to the cache */
	struct cpc_eb_cache *cache; /* immutable */
	_Atomic uint32_t refs;	    /* the index holds one; none is taken once it is 0 */
	_Atomic uint32_t flags;	    /* written under the lock, but for "used lately" */
	/* under the lock */
	int error;	     /* of reading it, or of the write in flight */
	uint8_t writes_left; /* copies in flight */
	uint64_t flush_seq;  /* the flush that covers its write */
	struct cpc_list clock;
	struct cpc_epoch_entry retired; /* when refs is 0 */
};

/* Looks at a final node (header and content, nodesize bytes). Return: NULL, or what is wrong. */
typedef const char *(*cpc_eb_checker)(const void *node, uint32_t nodesize,
				      const struct cpc_geometry *geo);

struct cpc_eb_params {
	struct cpc_backing *backing;
	struct cpc_flush_epoch *fe; /* NULL: the cache is read-only (check, dump): never writes */
	const struct cpc_geometry *geo;
	uint8_t uuid[CPC_UUID_SIZE];
	size_t limit; /* bytes of cached nodes */
	cpc_eb_checker checker;
};

int cpc_eb_cache_create(const struct cpc_eb_params *params, struct cpc_eb_cache **out);
/* No references are held. Dirty nodes are dropped. */
void cpc_eb_cache_destroy(struct cpc_eb_cache *cache);
/* Lives as long as the cache. */
const struct cpc_geometry *cpc_eb_geometry(const struct cpc_eb_cache *cache);

/*
 * Gets the node that `ptr` names, in a tree `owner`, from memory or the pool. A bad first copy is
 * repaired from the second (counted as healed; rewritten in place only if the cache is writable).
 * Context: may read the device. Return: 0; -EUCLEAN, logged once with owner, address, got and
 * expected; -EIO; -ENOMEM.
 */
int cpc_eb_read(struct cpc_eb_cache *cache, const struct cpc_node_ptr *ptr, uint64_t owner,
		struct cpc_eb **out);
void cpc_eb_put(struct cpc_eb *eb); /* NULL is allowed */

/* A new node at an address that nobody uses: zeroed, header filled except nritems and csum. A
 * cached node of the same address (freed earlier) is dropped first. */
int cpc_eb_alloc(struct cpc_eb_cache *cache, const uint64_t bytenr[2], uint64_t owner,
		 uint8_t level, uint64_t generation, struct cpc_eb **out);
/* The same in the caller's memory: `data` is nodesize bytes from cpc_alloc_aligned(4096), filled
 * but for the header, which is written here except for nritems. It is the cache's if this returns
 * 0. */
int cpc_eb_alloc_data(struct cpc_eb_cache *cache, const uint64_t bytenr[2], uint64_t owner,
		      uint8_t level, uint64_t generation, void *data, struct cpc_eb **out);
/* The node is complete: checks it, sets the checksum, puts it into the index, DIRTY. Fills ptr
 * except data_blocks and nodes. In a read-only cache it stays in memory for ever. Context: may
 * write and flush, see invariant 5. Return: 0; -EUCLEAN our own bug, found before it reaches the
 * pool; -ENOMEM; the error of a node write since the last sync or abort, for the transaction is
 * lost; the node is still private then. */
int cpc_eb_finish(struct cpc_eb *eb, struct cpc_node_ptr *ptr);
/* Drops a node from memory whatever its state, without writing (its address was freed in the
 * running transaction, or the transaction failed). Waits for its writeback. */
void cpc_eb_forget(struct cpc_eb_cache *cache, uint64_t bytenr);

/* --- writeback --- */
/* Writes the nodes that are dirty now, in order of address, neighbours in one device write, both
 * copies; waits for them. What becomes dirty meanwhile is not waited for (TOWRITE).
 * Return: 0, or the first error of any node write since the last cpc_eb_sync (also of a background
 * write); nodes that failed stay in memory, dirty. -ENOMEM: some were not written. -EROFS in a
 * read-only cache with dirty nodes. Durable: nothing before the next device flush. */
int cpc_eb_sync(struct cpc_eb_cache *cache);
/* Forgets all nodes of this generation that are not clean, and write errors: their transaction
 * failed. */
void cpc_eb_abort(struct cpc_eb_cache *cache, uint64_t generation);

struct cpc_eb_stats {
	uint64_t dirty_bytes, writeback_bytes, cached_bytes; /* now */
	uint64_t written, batches;			     /* nodes, device writes */
	uint64_t errors, healed;			     /* bad copies found, repaired */
};
void cpc_eb_stats(struct cpc_eb_cache *cache, struct cpc_eb_stats *stats);
void cpc_eb_set_limit(struct cpc_eb_cache *cache, size_t limit);
/* Asserts invariant 2 over the whole index. For tests. */
void cpc_eb_check(struct cpc_eb_cache *cache);

#endif
