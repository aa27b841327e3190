/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * xarray: a tagged index, a radix tree from a 64-bit index to a pointer, whose inner slots
 * carry marks: "is anything below dirty?" is one bit, and a walk over marked entries touches
 * nothing else.
 *
 * Called by the data cache and by extent-buffer. Calls epoch and hooks.
 *
 * Terms. An *entry* is a pointer stored at an index: not NULL, aligned to 4 bytes or more (its two
 * low bits are kept for later). A *node* has 64 slots and for each mark a word with one bit
 * per slot. Ranges given as (index, max) are inclusive, the one exception to the half-open rule:
 * 2^64 - 1 is a valid index.
 *
 * Invariants, all asserted by cpc_xa_check()
 *  1. A slot is not NULL if and only if its CPC_MARK_NONE ("present") bit is set.
 *  2. A mark's bit is set in an inner slot if and only if it is set in a slot of the node below.
 *  3. An absent entry has no mark.
 *  4. No node is empty; the root has an entry that needs its height. So an empty tree has no
 *     node, and memory shrinks with the content.
 *  5. The node count is that of the nodes in the tree and in reserve.
 *
 * Locks. None inside. Functions under "Writers" are called under one lock of the caller, of any
 * rank below CPC_RANK_MEMORY (epoch.h says why). Functions under "Readers" are called under that
 * lock, or without it in a section of epoch. Without the lock each call answers as of some instant
 * during it for a single index. A walk returns each entry that is there (and marked, if
 * it asks for a mark) from its beginning to its end, no entry twice, in rising order; what
 * comes or goes meanwhile may or may not be returned. Whether an entry is still there, and still
 * marked, is checked by the caller under the lock.
 *
 * Ownership. Nodes are the tree's and freed through epoch. Entries are the caller's: who erases
 * or replaces one while there are readers without the lock retires it through epoch. An
 * entry found without the lock lives until the end of the section, unless a reference is taken.
 *
 * Errors. Only cpc_xa_store() and cpc_xa_prealloc() fail, with -ENOMEM, and then the tree is as
 * before.
 */
#ifndef CPC_LIB_XARRAY_H
#define CPC_LIB_XARRAY_H

#include <stdatomic.h>
#include "lib/base.h"

enum cpc_xa_mark {
	CPC_MARK_NONE, /* "every entry", where a function takes a mark to look for */
	CPC_MARK_DIRTY,
	CPC_MARK_WRITEBACK,
	CPC_MARK_TOWRITE,
	CPC_XA_NR_MARKS
};

struct cpc_xa_node;

struct cpc_xarray {
	_Atomic(uintptr_t) root;   /* node + number of levels, 0 if empty; written under the lock */
	_Atomic(size_t) nr_nodes;  /* in the tree and spare; written under the lock */
	struct cpc_xa_node *spare; /* caller's lock, as the next */
	unsigned int nr_spare;
};

/* Life */

void cpc_xa_init(struct cpc_xarray *xa);

/*
 * Frees the nodes (through epoch). Entries that are left are forgotten, not freed: the caller has
 * erased them, or knows them from elsewhere.
 */
void cpc_xa_destroy(struct cpc_xarray *xa);

/* Writers: under the caller's lock */

/*
 * Stores an entry, in place of another one if there is one. The new entry has no marks in either
 * case. `*old` (`old` may be NULL) becomes the entry replaced, or NULL.
 * Return: 0; -ENOMEM, and nothing has changed, `*old` neither.
 */
int cpc_xa_store(struct cpc_xarray *xa, uint64_t index, void *entry, void **old);

/* Removes the entry and its marks. Return: the entry, NULL if there was none. Cannot fail. */
void *cpc_xa_erase(struct cpc_xarray *xa, uint64_t index);

/*
 * Makes sure that the next cpc_xa_store(), at any index, does not fail. The nodes (at most 20 of
 * 560 bytes) stay in reserve until a store uses them or cpc_xa_drop_spare() frees them.
 * Return: 0 or -ENOMEM.
 */
int cpc_xa_prealloc(struct cpc_xarray *xa);
void cpc_xa_drop_spare(struct cpc_xarray *xa);

/*
 * Set or clear a mark (not CPC_MARK_NONE) of an entry.
 * Return: true if that changed it; false if it was so before, or there is no entry.
 */
bool cpc_xa_set_mark(struct cpc_xarray *xa, uint64_t index, enum cpc_xa_mark mark);
bool cpc_xa_clear_mark(struct cpc_xarray *xa, uint64_t index, enum cpc_xa_mark mark);

/*
 * Sets mark `to` on entries from `*index` to `max` that have mark `from`, `limit` (> 0) at most.
 * `*index` becomes where to go on: the caller may drop its lock, take it again and call again.
 * Return: how many entries with `from` were seen. The range is done if fewer than `limit`, or if
 * `*index` has become 0 or more than `max`.
 */
unsigned int cpc_xa_tag_range(struct cpc_xarray *xa, uint64_t *index, uint64_t max,
			      enum cpc_xa_mark from, enum cpc_xa_mark to, unsigned int limit);

/* Readers: under the caller's lock or in a section of epoch */

/* Return: the entry, or NULL. */
void *cpc_xa_load(const struct cpc_xarray *xa, uint64_t index);

/* CPC_MARK_NONE: is there an entry? */
bool cpc_xa_get_mark(const struct cpc_xarray *xa, uint64_t index, enum cpc_xa_mark mark);

/* Says whether any entry has the mark; with CPC_MARK_NONE, whether there is any entry. */
bool cpc_xa_marked(const struct cpc_xarray *xa, enum cpc_xa_mark mark);

/*
 * Find the first entry (with the mark) from `*index` to `max`.
 * Return: the entry, `*index` is its index; or NULL, `*index` is unchanged.
 */
void *cpc_xa_find_marked(const struct cpc_xarray *xa, uint64_t *index, uint64_t max,
			 enum cpc_xa_mark mark);
void *cpc_xa_find(const struct cpc_xarray *xa, uint64_t *index, uint64_t max);

/*
 * Finds the first `nr` (> 0) entries with the mark from `*index` to `max`, in rising order.
 * `out_index` may be NULL. `*index` becomes where to go on.
 * Return: how many. There are no more if fewer than `nr`, or if `*index` has become 0 or more than
 * `max` (0: index 2^64 - 1 was the last one).
 */
unsigned int cpc_xa_find_batch(const struct cpc_xarray *xa, uint64_t *index, uint64_t max,
			       enum cpc_xa_mark mark, void **out, uint64_t *out_index,
			       unsigned int nr);

/* Returns the number of nodes, spare ones included, of CPC_XA_NODE_SIZE bytes. Context: any. */
size_t cpc_xa_nodes(const struct cpc_xarray *xa);
#define CPC_XA_NODE_SIZE 560u

/* Tests */

/* Asserts all invariants. Context: the caller's lock. Return: the number of entries. */
uint64_t cpc_xa_check(const struct cpc_xarray *xa);

#endif
