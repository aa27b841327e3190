/* SPDX-License-Identifier: BSD-3-Clause */
/* find: the marks of the index lead to dirty buffers, as they do to nodes (extent-buffer/find.c).
 */
#include "volume/volume-internal.h"

const bool cpc_find_in_order = true;

void cpc_find_note(struct cpc_volume *vol, struct cpc_buf *buf)
{
	cpc_xa_set_mark(&vol->cache, buf->block, CPC_MARK_DIRTY);
}

unsigned cpc_find_take(struct cpc_volume *vol, uint64_t epoch, uint64_t *block,
		       struct cpc_buf **out, unsigned max)
{
	void *found[CPC_CACHE_BATCH];
	unsigned nr = 0, got;

	do {
		got = cpc_xa_find_batch(&vol->cache, block, UINT64_MAX, CPC_MARK_DIRTY, found, NULL,
					max - nr);
		for (unsigned i = 0; i < got; i++) {
			struct cpc_buf *buf = found[i];

			if (buf->epoch != epoch)
				continue;
			cpc_xa_clear_mark(&vol->cache, buf->block, CPC_MARK_DIRTY);
			out[nr++] = buf;
		}
	} while (got && nr < max);
	return nr;
}
