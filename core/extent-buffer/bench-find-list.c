/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * In the place of find.c, for bench-writeback only: finds what is dirty in a
 * plain list, in the order in which it became so.
 */
#include "extent-buffer/extent-buffer-internal.h"

/* --- nodes: linked by their place in the clock, which they do not have while they are dirty --- */

#define MAX_CACHES 4u

struct node_lists {
	struct cpc_eb_cache *cache;
	struct cpc_list dirty, frozen;
};

static struct node_lists node_lists[MAX_CACHES];

static struct node_lists *lists_of(struct cpc_eb_cache *cache)
{
	struct node_lists *l = node_lists;

	while (l->cache && l->cache != cache)
		cpc_assert(++l < node_lists + MAX_CACHES);
	if (!l->cache) {
		l->cache = cache;
		cpc_list_init(&l->dirty);
		cpc_list_init(&l->frozen);
	}
	return l;
}

void cpc_eb_note_dirty_locked(struct cpc_eb *eb, bool on)
{
	if (on)
		cpc_list_add_tail(&lists_of(eb->cache)->dirty, &eb->clock);
	else
		cpc_list_del(&eb->clock);
}

bool cpc_eb_any_dirty(struct cpc_eb_cache *cache)
{
	return true;
}

bool cpc_eb_freeze_some_locked(struct cpc_eb_cache *cache, uint64_t *index)
{
	struct node_lists *l = lists_of(cache);

	cpc_list_splice_tail(&l->frozen, &l->dirty);
	return false;
}

unsigned cpc_eb_find_dirty_locked(struct cpc_eb_cache *cache, bool frozen, uint64_t *index,
				  struct cpc_eb **out, unsigned max)
{
	struct node_lists *l = lists_of(cache);
	struct cpc_list *pos;
	unsigned nr = 0;

	*index = 1;
	cpc_list_for_each (pos, frozen ? &l->frozen : &l->dirty) {
		if (nr == max)
			break;
		out[nr++] = cpc_list_entry(pos, struct cpc_eb, clock);
	}
	return nr;
}
