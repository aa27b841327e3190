/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Why this way: the marks of the index lead to dirty nodes in order of address, in time that
 * depends on how many there are and not on how many are cached, and one more mark freezes a set
 * without a list of it. See writeback.c for what is done with them. bench-writeback compares with a
 * walk over all nodes and with a list, which stand in files of their own.
 */
#include "extent-buffer/extent-buffer-internal.h"

#define TAG_AT_A_TIME 1024u

void cpc_eb_note_dirty_locked(struct cpc_eb *eb, bool on)
{
	struct cpc_xarray *xa = &eb->cache->index;
	uint64_t index = cpc_eb_index(eb->bytenr[0]);

	if (on) {
		cpc_xa_set_mark(xa, index, CPC_MARK_DIRTY);
	} else {
		cpc_xa_clear_mark(xa, index, CPC_MARK_DIRTY);
		cpc_xa_clear_mark(xa, index, CPC_MARK_TOWRITE);
	}
}

bool cpc_eb_any_dirty(struct cpc_eb_cache *cache)
{
	bool any;

	cpc_epoch_enter();
	any = cpc_xa_marked(&cache->index, CPC_MARK_DIRTY);
	cpc_epoch_exit();
	return any;
}

bool cpc_eb_freeze_some_locked(struct cpc_eb_cache *cache, uint64_t *index)
{
	return cpc_xa_tag_range(&cache->index, index, UINT64_MAX, CPC_MARK_DIRTY, CPC_MARK_TOWRITE,
				TAG_AT_A_TIME) == TAG_AT_A_TIME &&
	       *index;
}

unsigned cpc_eb_find_dirty_locked(struct cpc_eb_cache *cache, bool frozen, uint64_t *index,
				  struct cpc_eb **out, unsigned max)
{
	return cpc_xa_find_batch(&cache->index, index, UINT64_MAX,
				 frozen ? CPC_MARK_TOWRITE : CPC_MARK_DIRTY, (void **)out, NULL,
				 max);
}
