/* SPDX-License-Identifier: BSD-3-Clause */
/* reachable: the blocks that one superblock needs, for the legality oracle. */
#include "check/check-internal.h"

#include <inttypes.h>

#include "lib/hooks.h"

/* Return: false when a block was set before. */
static bool set_bits(struct cpc_reach *r, uint64_t bytenr, uint64_t nr)
{
	uint64_t block = bytenr >> CPC_BLOCK_SHIFT;
	bool fresh = true;

	for (uint64_t i = block; i < block + nr; i++) {
		fresh &= !(r->bitmap[i / 8] & 1u << i % 8);
		r->bitmap[i / 8] |= (uint8_t)(1u << i % 8);
	}
	if (!fresh)
		cpc_finding(r->findings, "blocks at %" PRIu64 " are named twice", bytenr);
	return fresh;
}

static bool visit_node(void *ctx, uint64_t owner, const struct cpc_node_ptr *ptr)
{
	struct cpc_reach *r = ctx;
	bool fresh = true;

	for (unsigned i = 0; i < r->geo.copies; i++)
		fresh &= set_bits(r, ptr->bytenr[i], r->geo.nodesize >> CPC_BLOCK_SHIFT);
	return fresh;
}

static int visit_extent(void *ctx, const struct cpc_extent_ref *ref)
{
	struct cpc_reach *r = ctx;

	set_bits(r, ref->bytenr, ref->nr);
	if (r->verify && !ref->dropped && ref->birth > r->since)
		cpc_data_batch_add(&r->data, ref);
	return 0;
}

static void verify_home(struct cpc_reach *r, uint64_t group, const struct cpc_disk_group *item,
			uint64_t bytenr)
{
	if (cpc_backing_read(r->backing, bytenr, r->data.buf, CPC_BLOCK_SIZE) ||
	    cpc_bitmap_csum(r->super->uuid, group, cpc_get_le64(&item->generation), r->data.buf) !=
		cpc_get_le32(&item->csum))
		cpc_finding(r->findings,
			    "bitmap of group %" PRIu64 " at %" PRIu64 " does not verify", group,
			    bytenr);
}

static int visit_group(void *ctx, uint64_t group, const struct cpc_disk_group *item)
{
	struct cpc_reach *r = ctx;

	for (unsigned i = 0; i < r->geo.copies; i++) {
		uint64_t bytenr = cpc_geometry_home(&r->geo, i, group, item->home);

		set_bits(r, bytenr, 1);
		if (r->verify)
			verify_home(r, group, item, bytenr);
	}
	return 0;
}

int cpc_reach_walk(struct cpc_reach *r)
{
	static const struct cpc_pool_visitor visitor = {
	    .node = visit_node,
	    .extent = visit_extent,
	    .group = visit_group,
	};
	struct cpc_pool_walk w = {
	    .backing = r->backing,
	    .super = r->super,
	    .geo = &r->geo,
	    .visitor = &visitor,
	    .ctx = r,
	    .findings = r->findings,
	    .both_copies = r->verify,
	};
	int ret = cpc_geometry_init(&r->geo, r->super->total_bytes, r->super->log_size,
				    r->super->nodesize, r->super->incompat & CPC_INCOMPAT_DUP);

	if (ret || r->geo.nr_blocks > r->nr_blocks)
		return -EINVAL;
	memset(r->bitmap, 0, (r->nr_blocks + 7) / 8);
	ret = r->verify ? cpc_data_batch_init(&r->data, r->backing, r->findings) : 0;
	if (ret)
		return ret;
	ret = cpc_walk_pool(&w);
	if (r->verify) {
		cpc_data_batch_run(&r->data);
		cpc_data_batch_destroy(&r->data);
	}
	if (ret)
		return ret;
	return r->findings->errors ? -EUCLEAN : 0;
}

int cpc_check_reachable(struct cpc_backing *backing, const struct cpc_super *super, uint8_t *bitmap,
			uint64_t nr_blocks)
{
	struct cpc_findings findings = {0};
	struct cpc_reach r = {
	    .backing = backing,
	    .super = super,
	    .bitmap = bitmap,
	    .nr_blocks = nr_blocks,
	    .findings = &findings,
	};

	return cpc_reach_walk(&r);
}
