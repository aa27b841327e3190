/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * In the place of find.c, for bench-writeback only: finds what is dirty by
 * looking at everything that is cached. It gives the lock away as often as the marks do.
 */
#include "extent-buffer/extent-buffer-internal.h"

#define LOOKS 1024u

void cpc_eb_note_dirty_locked(struct cpc_eb *eb, bool on)
{
}

bool cpc_eb_any_dirty(struct cpc_eb_cache *cache)
{
	return true;
}

/* A walk over all ends by itself. */
bool cpc_eb_freeze_some_locked(struct cpc_eb_cache *cache, uint64_t *index)
{
	return false;
}

unsigned cpc_eb_find_dirty_locked(struct cpc_eb_cache *cache, bool frozen, uint64_t *index,
				  struct cpc_eb **out, unsigned max)
{
	unsigned nr = 0, looked = 0;
	struct cpc_eb *eb;

	while (nr < max && (eb = cpc_xa_find(&cache->index, index, UINT64_MAX))) {
		++*index;
		if (cpc_eb_flags(eb) & EB_DIRTY)
			out[nr++] = eb;
		if (++looked % LOOKS || nr)
			continue;
		cpc_mutex_unlock(&cache->lock);
		cpc_mutex_lock(&cache->lock);
	}
	return nr;
}
