/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * repair: check --repair.
 *
 *   check (writes nothing) -> copies -> flush -> wipes -> flush -> rebuilt groups -> check again
 *
 * Second copies are written in place: only over what has been found bad, with what verified a
 * moment ago, so a crash at any write leaves every good copy. Bitmaps and the free log are not
 * written in place: the pool is opened with the bitmaps that the trees ask for, and a commit folds
 * them into the other homes, so a crash leaves the old state. That commit allocates nodes, so it
 * first claims the blocks that only the log names, and it says of the log what the old superblock
 * says: the next opening replays it.
 *
 * With `roll_back` data above the log's mark that cannot be read is written over: then it does not
 * verify, and an opening takes the log up to there. The mark stays.
 *
 * Not repaired: what has no good copy (a node, a data block: the volume gives EIO there), a log
 * that lost what had been durable, blocks with two owners.
 */
#include "check/check-internal.h"

#include <inttypes.h>
#include <stdio.h>

#include "lib/hooks.h"
#include "lib/mutation.h"

#define ROUNDS	   64u
#define NODE_BYTES (8u << 20)

struct repair {
	struct cpc_backing *backing;
	const struct cpc_repair_options *opts;
	struct cpc_repair_result *result;
	struct cpc_super found;
	bool use_found;
	uint64_t changed; /* in this round */
};

static void say(struct repair *r, enum cpc_damage_kind kind, uint64_t bytenr, const char *where,
		const char *what, const char *failed)
{
	struct cpc_damage d = {.kind = kind,
			       .bytenr = bytenr,
			       .what = what,
			       .action = failed ? failed : "repaired",
			       .repaired = !failed};

	snprintf(d.where, sizeof(d.where), "%s", where);
	if (!failed) {
		r->result->repaired++;
		r->changed++;
	}
	if (r->opts->damage)
		r->opts->damage(r->opts->check.ctx, &d);
}

/* --- in place --- */

/* Reads what is to be written. Return: false: it is not what the check has seen. */
static bool load(struct repair *r, const struct cpc_fix *fix, uint8_t *buf)
{
	if (fix->from == CPC_FIX_WIPE) {
		memset(buf, 0, fix->len);
		return true;
	}
	return cpc_backing_read(r->backing, fix->from, buf, fix->len) == 0 &&
	       cpc_csum(buf, fix->len) == fix->csum;
}

/* Return: NULL, or why it could not be written. */
static const char *apply(struct repair *r, const struct cpc_fix *fix, uint8_t *buf)
{
	if (!load(r, fix, buf))
		return "not repaired: the good copy cannot be read again";
	if (cpc_backing_write(r->backing, CPC_MUTANT(repair_copies_backwards) ? fix->from : fix->to,
			      buf, fix->len, CPC_CAUSE_REPAIR))
		return "not repaired: cannot be written";
	return NULL;
}

/* After a flush: does the device have it? */
static const char *look_again(struct repair *r, const struct cpc_fix *fix, uint8_t *buf)
{
	bool good = cpc_backing_read(r->backing, fix->to, buf, fix->len) == 0;

	if (CPC_MUTANT(repair_reads_nothing_back))
		return NULL;
	if (good && fix->from == CPC_FIX_WIPE)
		good = cpc_all_zero(buf, fix->len);
	else if (good)
		good = cpc_csum(buf, fix->len) == fix->csum;
	return good ? NULL : "not repaired: the device does not keep what is written";
}

static int apply_fixes(struct repair *r, struct cpc_fixes *fixes, bool wipes)
{
	uint8_t *buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, 256u << 10); /* the longest log record */
	const char **failed = cpc_alloc_array(fixes->nr + 1, sizeof(*failed));
	int ret = buf && failed ? 0 : -ENOMEM;

	for (size_t i = 0; !ret && i < fixes->nr; i++) {
		if ((fixes->fix[i].from == CPC_FIX_WIPE) == wipes)
			failed[i] = apply(r, &fixes->fix[i], buf);
	}
	if (!ret)
		ret = cpc_backing_flush(r->backing);
	for (size_t i = 0; !ret && i < fixes->nr; i++) {
		struct cpc_fix *fix = &fixes->fix[i];

		if ((fix->from == CPC_FIX_WIPE) != wipes)
			continue;
		if (!failed[i])
			failed[i] = look_again(r, fix, buf);
		say(r, fix->kind, fix->to, fix->where ? fix->where : "?", fix->what, failed[i]);
	}
	cpc_free(buf);
	cpc_free(failed);
	return ret;
}

/* --- rebuilding --- */

/* What the log names is taken before anything is allocated. */
static int claim_log(struct cpc_store *store)
{
	struct cpc_log_replay replay;
	const char *why;
	int ret = cpc_log_scan(store, &replay, &why);

	if (ret)
		return ret;
	ret = cpc_log_claim(&replay);
	cpc_log_replay_destroy(&replay);
	return ret;
}

static int commit_rebuilt(struct cpc_store *store)
{
	struct cpc_commit_request req = {
	    .next_volume = store->super.next_volume,
	    .nonce = store->super.nonce,
	    .log_seq = store->super.log_seq,
	    .log_position = store->super.log_position,
	};
	int ret = CPC_MUTANT(repair_claims_nothing) ? 0 : claim_log(store);

	if (!ret)
		ret = cpc_store_commit(store, &req);
	if (!ret)
		cpc_pins_put(req.pins);
	return ret;
}

static int rebuild(struct repair *r, const struct cpc_check_collect *collect)
{
	struct cpc_store *store;
	const char *why = NULL;
	char where[64], failed[128];
	int ret = cpc_store_open_rebuilt(r->backing, &collect->rebuilt, NODE_BYTES, &store, &why);

	if (!ret) {
		ret = commit_rebuilt(store);
		cpc_store_close(store);
	}
	snprintf(failed, sizeof(failed), "not repaired: %s", strerror(-ret));
	for (size_t i = 0; i < collect->rebuilt.nr; i++) {
		uint64_t group = collect->rebuilt.groups[i].group;

		snprintf(where, sizeof(where), "group %" PRIu64, group);
		say(r, CPC_DAMAGE_BITMAP, group * CPC_GROUP_BLOCKS * CPC_BLOCK_SIZE, where,
		    "free space does not fit the trees", ret ? failed : NULL);
	}
	if (!collect->rebuilt.nr)
		say(r, CPC_DAMAGE_SUPER, 0, "superblock", "counts do not fit the bitmaps",
		    ret ? failed : NULL);
	return ret == -ENOMEM ? ret : 0;
}

/* --- the whole --- */

/* One round. Return: 0, r->changed says whether anything has been written; or negative errno. */
static int round_of(struct repair *r, bool first)
{
	struct cpc_check_collect collect = {.found = r->use_found ? &r->found : NULL,
					    .roll_back = r->opts->roll_back};
	struct cpc_check_options quiet = r->opts->check;
	struct cpc_check_result result;
	int ret;

	quiet.report = NULL;
	r->changed = 0;
	ret = cpc_check_and_collect(r->backing, &quiet, &result, &collect);
	if (first)
		r->result->before = result;
	if (!ret && collect.fixes.nr)
		ret = apply_fixes(r, &collect.fixes, false);
	if (!ret && collect.fixes.nr)
		ret = apply_fixes(r, &collect.fixes, true);
	/* Copies first: what they heal is not to be rebuilt. */
	if (!ret && collect.rebuild && !collect.fixes.nr &&
	    (!collect.cannot_rebuild || CPC_MUTANT(rebuilt_without_a_node)))
		ret = rebuild(r, &collect);
	cpc_check_collect_destroy(&collect);
	return ret;
}

/* With features that this program does not know, a pool may only be read. */
static bool may_write(const struct cpc_super *super)
{
	return !(super->compat_ro & ~CPC_COMPAT_RO_KNOWN) ||
	       CPC_MUTANT(repair_writes_what_it_may_not);
}

/* Where neither end of the device has a superblock, ring 1 is searched for. Return: 0, also when
 * there is none: the check says what is wrong; or -ENOTSUP. */
static int find_super(struct repair *r)
{
	struct cpc_super super;
	const char *why;
	int ret = cpc_super_find(r->backing, &super, &why);

	if (ret == -EINVAL || ret == -EUCLEAN) {
		ret = cpc_super_scan(r->backing, &r->found, r->opts->check.progress,
				     r->opts->check.ctx);
		r->use_found = r->result->ring0_found = !ret;
		super = r->found;
	}
	return ret || may_write(&super) ? 0 : -ENOTSUP;
}

int cpc_repair(struct cpc_backing *backing, const struct cpc_repair_options *opts,
	       struct cpc_repair_result *result)
{
	struct repair r = {.backing = backing, .opts = opts, .result = result};
	int ret;

	memset(result, 0, sizeof(*result));
	ret = find_super(&r);
	for (unsigned i = 0; !ret && i < ROUNDS && (i == 0 || r.changed); i++)
		ret = round_of(&r, i == 0);
	return ret ? ret : cpc_check(backing, &opts->check, &result->after);
}
