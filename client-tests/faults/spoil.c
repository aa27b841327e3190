/* SPDX-License-Identifier: BSD-3-Clause */
#include "spoil.h"

#include <string.h>

static bool newest_super(struct cpc_powercut *pc, uint64_t size, struct cpc_super *newest)
{
	bool found = false;

	for (uint32_t slot = 0; slot < CPC_SUPER_SLOTS; slot++) {
		struct cpc_disk_super disk;
		struct cpc_super super;
		const char *why;

		cpc_powercut_peek(pc, (uint64_t)slot * CPC_BLOCK_SIZE, &disk, sizeof(disk));
		if (cpc_super_decode(&super, &disk, slot, size, &why) ||
		    (found && super.transid < newest->transid))
			continue;
		*newest = super;
		found = true;
	}
	return found;
}

static void spoil_block(struct spoilt *sp, struct cpc_powercut *pc, uint64_t bytenr)
{
	unsigned i = sp->nr++;

	sp->block[i].bytenr = bytenr;
	cpc_powercut_peek(pc, bytenr, sp->block[i].before, CPC_BLOCK_SIZE);
	cpc_powercut_flip(pc, bytenr + 100, 3);
	cpc_powercut_peek(pc, bytenr, sp->block[i].after, CPC_BLOCK_SIZE);
}

void spoil(struct spoilt *sp, struct cpc_powercut *pc, uint64_t size, enum spoil what)
{
	struct cpc_super super;

	sp->nr = 0;
	if (!newest_super(pc, size, &super))
		return;
	if (what == SPOIL_SUPER)
		spoil_block(sp, pc,
			    size - (uint64_t)(CPC_SUPER_SLOTS - super.slot) * CPC_BLOCK_SIZE);
	else if (what == SPOIL_NODE && super.root.bytenr[1])
		spoil_block(sp, pc, super.root.bytenr[1]);
	for (unsigned copy = 0; what == SPOIL_FREE_LOG && copy < 2; copy++) {
		if (super.free_log.bytenr[copy])
			spoil_block(sp, pc, super.free_log.bytenr[copy]);
	}
}

static bool is(const struct spoilt *sp, struct cpc_powercut *pc, unsigned i, const uint8_t *content)
{
	uint8_t now[CPC_BLOCK_SIZE];

	cpc_powercut_peek(pc, sp->block[i].bytenr, now, sizeof(now));
	return memcmp(now, content, sizeof(now)) == 0;
}

bool spoil_is_gone(const struct spoilt *sp, struct cpc_powercut *pc, unsigned i)
{
	return !is(sp, pc, i, sp->block[i].after);
}

void spoil_undo(const struct spoilt *sp, struct cpc_powercut *pc)
{
	for (unsigned i = 0; i < sp->nr; i++) {
		if (is(sp, pc, i, sp->block[i].after) || is(sp, pc, i, sp->block[i].before))
			cpc_powercut_poke(pc, sp->block[i].bytenr, sp->block[i].before,
					  CPC_BLOCK_SIZE);
	}
}
