/* SPDX-License-Identifier: BSD-3-Clause */
/* scrub-fixed: superblock slots, homes of bitmaps, and the log. */
#include "check/scrub-internal.h"

#include <inttypes.h>
#include <stdio.h>

#include "lib/hooks.h"
#include "lib/mutation.h"

/* --- superblocks --- */

struct slot {
	struct scrub *s;
	struct cpc_disk_super *want; /* the newest durable one, as it stands in its slot */
	struct cpc_disk_super *have;
	struct cpc_super super; /* of want */
};

/* Return: NULL, or what is wrong. */
static const char *judge_slot(struct slot *at, unsigned ring, uint32_t slot)
{
	struct cpc_backing *backing = at->s->store->backing;
	bool newest = slot == at->super.slot;
	const char *why = NULL;
	struct cpc_super super;

	if (cpc_backing_read(backing, cpc_geometry_super(&at->s->store->geo, ring, slot), at->have,
			     sizeof(*at->have)))
		return "cannot be read";
	if (newest && memcmp(at->have, at->want, sizeof(*at->have)) == 0)
		return NULL;
	if (cpc_all_zero(at->have, sizeof(*at->have)))
		return newest ? "the newest superblock is not here" : NULL;
	if (cpc_super_decode(&super, at->have, slot, cpc_backing_size(backing), &why))
		return why;
	if (memcmp(super.uuid, at->super.uuid, CPC_UUID_SIZE) != 0)
		return "belongs to another pool";
	return newest && super.transid != at->super.transid ? "the newest superblock is not here"
							    : NULL;
}

/* A slot that holds pieces is wiped, unless a commit has just failed and may own them. */
static void mend_slot(struct slot *at, unsigned ring, uint32_t slot, const char *why)
{
	struct cpc_damage d = {
	    .kind = CPC_DAMAGE_SUPER,
	    .bytenr = cpc_geometry_super(&at->s->store->geo, ring, slot),
	    .what = why,
	};

	snprintf(d.where, sizeof(d.where), "ring %u slot %u", ring, slot);
	if (slot == at->super.slot) {
		cpc_scrub_heal(at->s, &d, at->want, sizeof(*at->want));
		return;
	}
	if (at->s->store->burned_super && !CPC_MUTANT(scrub_wipes_a_burned_superblock))
		return;
	memset(at->have, 0, sizeof(*at->have));
	cpc_scrub_heal(at->s, &d, at->have, sizeof(*at->have));
}

int cpc_scrub_supers(struct scrub *s)
{
	const bool lock = !CPC_MUTANT(scrub_beside_a_superblock_being_written);
	struct slot at = {.s = s};
	int ret = -ENOMEM;

	at.want = cpc_alloc_aligned(CPC_BLOCK_SIZE, sizeof(*at.want));
	at.have = cpc_alloc_aligned(CPC_BLOCK_SIZE, sizeof(*at.have));
	if (at.want && at.have) {
		if (lock)
			cpc_mutex_lock(&s->store->super_lock);
		cpc_mutex_lock(&s->store->lock);
		at.super = s->store->super;
		cpc_mutex_unlock(&s->store->lock);
		cpc_super_encode(at.want, &at.super);
		for (unsigned i = 0; i < 2 * CPC_SUPER_SLOTS; i++) {
			const char *why = judge_slot(&at, i / CPC_SUPER_SLOTS, i % CPC_SUPER_SLOTS);

			s->result->supers++;
			if (why)
				mend_slot(&at, i / CPC_SUPER_SLOTS, i % CPC_SUPER_SLOTS, why);
		}
		if (lock)
			cpc_mutex_unlock(&s->store->super_lock);
		ret = 0;
	}
	cpc_free(at.want);
	cpc_free(at.have);
	return ret;
}

/* --- bitmaps --- */

void cpc_scrub_home(struct scrub *s, uint64_t group, const struct cpc_disk_group *item)
{
	const struct cpc_geometry *geo = &s->store->geo;
	const char *bad[2] = {NULL, NULL};
	uint8_t *buf = s->node[0], *good = NULL;

	for (unsigned copy = 0; copy < (CPC_MUTANT(scrub_reads_one_bitmap) ? 1 : geo->copies);
	     copy++) {
		uint8_t *into = good ? s->copy : buf;

		if (cpc_backing_read(s->store->backing,
				     cpc_geometry_home(geo, copy, group, item->home), into,
				     CPC_BLOCK_SIZE))
			bad[copy] = "cannot be read";
		else if (!CPC_MUTANT(scrub_verifies_no_bitmap) &&
			 cpc_bitmap_csum(s->store->uuid, group, cpc_get_le64(&item->generation),
					 into) != cpc_get_le32(&item->csum))
			bad[copy] = "checksum does not match";
		else
			good = good ? good : buf;
	}
	s->result->bitmaps++;
	for (unsigned copy = 0; copy < geo->copies; copy++) {
		struct cpc_damage d = {
		    .kind = CPC_DAMAGE_BITMAP,
		    .bytenr = cpc_geometry_home(geo, copy, group, item->home),
		    .what = bad[copy],
		};

		if (!bad[copy])
			continue;
		snprintf(d.where, sizeof(d.where), "group %" PRIu64 ", copy %u", group, copy + 1);
		cpc_scrub_heal(s, &d, good, CPC_BLOCK_SIZE);
	}
}

/* --- log --- */

static void bad_record(void *ctx, const struct cpc_log_bad_copy *bad)
{
	struct scrub *s = ctx;
	struct cpc_damage d = {
	    .kind = CPC_DAMAGE_LOG, .bytenr = bad->bytenr, .what = "does not verify"};

	snprintf(d.where, sizeof(d.where), "record %" PRIu64 ", copy %u", bad->seq, bad->copy + 1);
	cpc_scrub_heal(s, &d, bad->good, bad->len);
}

/* Nobody writes to it: what an opening for writing would find. */
static int scrub_found_log(struct scrub *s)
{
	struct cpc_log_replay r;
	const char *why;
	int ret = cpc_log_scan(s->store, &r, &why);

	if (ret)
		return ret == -ENOMEM ? ret : 0; /* the opening has refused it */
	for (size_t i = 0; i < r.nr && r.found[i].seq <= r.durable; i++) {
		s->result->log_records++;
		for (unsigned copy = 0; copy < 2; copy++) {
			struct cpc_log_bad_copy bad = {
			    .seq = r.found[i].seq,
			    .copy = copy,
			    .bytenr = cpc_log_bytenr(s->store, copy, r.found[i].position),
			    .good = r.buf,
			    .len = r.found[i].length,
			};

			if (r.found[i].bad[copy])
				bad_record(s, &bad);
		}
	}
	cpc_log_replay_destroy(&r);
	return 0;
}

int cpc_scrub_log(struct scrub *s)
{
	struct cpc_log_scrub at = {.damage = bad_record, .ctx = s};
	int ret = 1;

	if (!s->log)
		return scrub_found_log(s);
	while (ret == 1 && !s->stop) {
		cpc_scrub_hold(s);
		ret = cpc_log_scrub(s->log, &at);
		cpc_scrub_release(s);
	}
	s->result->log_records = at.records;
	return ret < 0 ? ret : 0;
}
