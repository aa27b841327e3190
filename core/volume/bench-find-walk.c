/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * In the place of find.c, for bench-writeback only: finds what is dirty by
 * looking at everything that is cached. It gives the lock away as often as the marks do.
 */
#include "volume/volume-internal.h"

#define LOOKS 1024u

const bool cpc_find_in_order = true;

void cpc_find_note(struct cpc_volume *vol, struct cpc_buf *buf)
{
}

unsigned cpc_find_take(struct cpc_volume *vol, uint64_t epoch, uint64_t *block,
		       struct cpc_buf **out, unsigned max)
{
	unsigned nr = 0, looked = 0;
	struct cpc_buf *buf;

	while (nr < max && (buf = cpc_xa_find(&vol->cache, block, UINT64_MAX))) {
		++*block;
		if (buf->flags & CPC_BUF_DIRTY && buf->epoch == epoch)
			out[nr++] = buf;
		if (++looked % LOOKS || nr)
			continue;
		cpc_mutex_unlock(&vol->cache_lock);
		cpc_mutex_lock(&vol->cache_lock);
	}
	return nr;
}
