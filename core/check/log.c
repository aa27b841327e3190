/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * log: what the ring holds behind the superblock, judged and printed.
 *
 * What counts is what an opening of the pool would accept, so that is asked for first
 * (cpc_log_scan). Above the durable mark a power cut leaves records behind of which a copy, or
 * their data, is torn: that is no damage. At or below it both copies must be good.
 */
#include "check/check-internal.h"

#include <inttypes.h>
#include <stdio.h>

#include "lib/hooks.h"
#include "lib/mutation.h"

/* What cpc_log_scan looks at of a store; it needs none that is open. */
static struct cpc_store *bare_store(struct cpc_backing *backing, const struct cpc_super *super,
				    const struct cpc_geometry *geo)
{
	struct cpc_store *store = cpc_zalloc(sizeof(*store));

	if (!store)
		return NULL;
	store->backing = backing;
	store->read_only = true;
	store->super = *super;
	store->geo = *geo;
	memcpy(store->uuid, super->uuid, CPC_UUID_SIZE);
	return store;
}

int cpc_log_peek(struct cpc_backing *backing, const struct cpc_super *super,
		 const struct cpc_geometry *geo, struct cpc_log_replay *r, const char **why)
{
	struct cpc_store *store = bare_store(backing, super, geo);
	int ret = store ? cpc_log_scan(store, r, why) : -ENOMEM;

	if (ret)
		cpc_free(store);
	return ret;
}

void cpc_log_peek_end(struct cpc_log_replay *r)
{
	struct cpc_store *store = r->store;

	cpc_log_replay_destroy(r);
	cpc_free(store);
}

/* --- check --- */

/* Blocks named by the log are in no tree, and named once: an opening claims them. */
static int judge_data(struct cpc_log_check *lc, uint64_t volume, const struct cpc_run *run,
		      const struct cpc_run_entry *e)
{
	cpc_le32 csum[CPC_EXTENT_MAX_BLOCKS];
	struct cpc_extent_ref ref = {
	    .owner = CPC_TREE_VOLUME_BASE + volume,
	    .key = e->block,
	    .bytenr = e->bytenr,
	    .nr = e->nr,
	    .csum = csum,
	};
	uint64_t before = lc->named->nr_blocks;
	int ret = cpc_blockset_add(lc->named, e->bytenr >> CPC_BLOCK_SHIFT, e->nr);

	if (ret)
		return ret;
	if (lc->named->nr_blocks - before != e->nr)
		cpc_finding(lc->findings,
			    "log: volume %" PRIu64 ": blocks at %" PRIu64 " are named twice",
			    volume, e->bytenr);
	for (uint32_t i = 0; i < e->nr; i++)
		cpc_put_le32(&csum[i], run->csums[e->csum + i]);
	if (lc->data && lc->below_mark)
		cpc_data_batch_add(lc->data, &ref);
	return 0;
}

static int check_run(void *ctx, uint64_t volume, struct cpc_run *run)
{
	struct cpc_log_check *lc = ctx;
	int ret = 0;

	if (volume >= lc->next_volume)
		cpc_finding(lc->findings, "log: volume %" PRIu64 " was never created", volume);
	for (size_t i = 0; i < run->nr_entries && !ret; i++) {
		if (run->entries[i].bytenr)
			ret = judge_data(lc, volume, run, &run->entries[i]);
	}
	return ret;
}

static int check_name(void *ctx, enum cpc_log_entry_type type, uint64_t volume, uint64_t size,
		      const void *payload, uint32_t len)
{
	struct cpc_log_check *lc = ctx;
	struct cpc_volume_item item;

	if (type == CPC_LOG_CREATE) {
		if (cpc_volume_item_decode(&item, volume, payload, len))
			cpc_finding(lc->findings, "log: creation of volume %" PRIu64 " is damaged",
				    volume);
		lc->next_volume = cpc_max_u64(lc->next_volume, volume + 1);
	} else if (volume >= lc->next_volume) {
		cpc_finding(lc->findings, "log: volume %" PRIu64 " was never created", volume);
	}
	if (type == CPC_LOG_RENAME && !cpc_name_valid(payload, len))
		cpc_finding(lc->findings, "log: volume %" PRIu64 " gets no valid name", volume);
	return 0;
}

static int check_batch(void *ctx, uint64_t seq, uint64_t position)
{
	struct cpc_log_check *lc = ctx;

	lc->below_mark = seq < lc->durable;
	return 0;
}

/* Reads the good copy of a record. Return: false: it is not there any more. */
static bool read_record(const struct cpc_log_replay *r, const struct cpc_log_found *found)
{
	uint64_t bytenr = cpc_log_bytenr(r->store, found->bad[0] ? 1 : 0, found->position);

	return cpc_backing_read(r->store->backing, bytenr, r->buf, found->length) == 0;
}

static void bad_copy(struct cpc_log_check *lc, const struct cpc_log_replay *r,
		     const struct cpc_log_found *found, unsigned copy)
{
	struct cpc_fix fix = {
	    .kind = CPC_DAMAGE_LOG,
	    .to = cpc_log_bytenr(r->store, copy, found->position),
	    .from = cpc_log_bytenr(r->store, !copy, found->position),
	    .len = found->length,
	    .what = "does not verify",
	};

	lc->bad++;
	if (read_record(r, found))
		cpc_finding_fix(lc->findings, lc->fixes, &fix, r->buf,
				"log: record %" PRIu64 " at position %" PRIu64 ", copy %u",
				found->seq, found->position, copy + 1);
	else
		cpc_finding(lc->findings, "log: record %" PRIu64 ": cannot be read", found->seq);
}

static void check_copies(struct cpc_log_check *lc, const struct cpc_log_replay *r)
{
	for (size_t i = 0; i < r->nr && r->found[i].seq <= r->durable; i++) {
		for (unsigned copy = 0; copy < 2; copy++) {
			if (r->found[i].bad[copy])
				bad_copy(lc, r, &r->found[i], copy);
		}
	}
}

/* Why an opening would be refused. A block that is written can be read again, and does not verify:
 * then an opening takes the log up to its cut. No tree names it: it is not older than the log. */
static void note_lost(struct cpc_log_check *lc, const struct cpc_log_replay *r, int ret,
		      const char *why)
{
	const struct cpc_log_unreadable *u = &r->unreadable;
	const struct cpc_fix fix = {
	    .kind = CPC_DAMAGE_DATA,
	    .to = u->bytenr,
	    .from = CPC_FIX_WIPE,
	    .len = CPC_BLOCK_SIZE,
	    .what = "cannot be read, and is given up with what came after it",
	};

	lc->bad++;
	lc->lost = true;
	if (ret != -EIO || !u->bytenr)
		cpc_finding(lc->findings, "%s", ret == -EUCLEAN ? why : "log: cannot be read");
	else if ((lc->roll_back || CPC_MUTANT(repair_rolls_back_unasked)) &&
		 !cpc_blockset_test(lc->named, u->bytenr >> CPC_BLOCK_SHIFT))
		cpc_finding_fix(lc->findings, lc->fixes, &fix, NULL,
				"volume %" PRIu64 " block %" PRIu64 ", log record %" PRIu64
				" of %" PRIu64 " to go",
				u->volume, u->block, u->seq, u->records);
	else
		cpc_finding(lc->findings,
			    "%s: volume %" PRIu64 " block %" PRIu64 " at %" PRIu64
			    "; check --repair --roll-back gives up %" PRIu64
			    " records of the log, from %" PRIu64 " on",
			    why, u->volume, u->block, u->bytenr, u->records, u->seq);
}

int cpc_check_log(struct cpc_log_check *lc, struct cpc_backing *backing,
		  const struct cpc_super *super, const struct cpc_geometry *geo)
{
	const struct cpc_log_handler handler = {check_run, check_name, check_batch, lc};
	struct cpc_log_replay r;
	const char *why;
	int ret = cpc_log_peek(backing, super, geo, &r, &why);

	if (ret == -ENOMEM)
		return ret;
	if (ret) {
		note_lost(lc, &r, ret, why);
		return 0;
	}
	lc->records = r.nr;
	lc->next_volume = super->next_volume;
	lc->durable = r.durable;
	lc->below_mark = super->log_seq < r.durable;
	check_copies(lc, &r);
	ret = cpc_log_replay_run(&r, &handler);
	cpc_log_peek_end(&r);
	if (ret == -ENOMEM || !ret)
		return ret;
	lc->lost = true;
	cpc_finding(lc->findings, "log: cannot be read");
	return 0;
}
