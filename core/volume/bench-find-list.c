/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * In the place of find.c, for bench-writeback only: finds what is dirty in a
 * plain list, in the order in which it became so.
 */
#include "volume/volume-internal.h"

/* --- buffers: linked beside them, for a buffer's own link serves others when it is replaced --- */

const bool cpc_find_in_order = false;

static struct cpc_list *links; /* one a buffer */
static struct cpc_list dirty_bufs;

void cpc_find_note(struct cpc_volume *vol, struct cpc_buf *buf)
{
	struct cpc_memory *m = &vol->engine->memory;
	struct cpc_list *link;

	if (!links) {
		links = cpc_alloc_array(m->nr, sizeof(*links));
		cpc_assert(links);
		for (size_t i = 0; i < m->nr; i++)
			cpc_list_init(&links[i]);
		cpc_list_init(&dirty_bufs);
	}
	link = &links[buf - m->bufs];
	cpc_list_del(link);
	cpc_list_add_tail(&dirty_bufs, link);
}

unsigned cpc_find_take(struct cpc_volume *vol, uint64_t epoch, uint64_t *block,
		       struct cpc_buf **out, unsigned max)
{
	struct cpc_memory *m = &vol->engine->memory;
	unsigned nr = 0;

	while (links && nr < max && !cpc_list_empty(&dirty_bufs)) {
		struct cpc_list *link = dirty_bufs.next;
		struct cpc_buf *buf = &m->bufs[link - links];
		bool dirty = buf->flags & CPC_BUF_DIRTY &&
			     atomic_load_explicit(&buf->vol, memory_order_relaxed) == vol;

		if (dirty && buf->epoch != epoch)
			break; /* newer than the cut, as all behind it */
		cpc_list_del(link);
		if (dirty)
			out[nr++] = buf;
	}
	return nr;
}
