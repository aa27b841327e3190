/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How a life of the pool ends and the next one begins, what comes back being judged; checks, scrubs
 * and repairs, which look after damage.
 */
#include "memory.h"
#include "script-internal.h"
#include "spoil.h"

static void close_handles(struct script *s)
{
	for (unsigned i = 0; i < SCRIPT_VOLUMES; i++)
		script_close_handle(s, i);
}

void script_close_pool(struct script *s)
{
	int ret;

	close_handles(s);
	s->broke |= !cpc_pool_healthy(s->rig.pool, NULL, 0);
	ret = rig_close(&s->rig);
	s->alive = false;
	if (script_succeeded(s, ret, "shutdown"))
		script_all_durable(s);
}

void script_crash(struct script *s)
{
	close_handles(s);
	s->alive = false;
	if (rnd_percent(&s->rnd, 50)) {
		rig_kill(&s->rig);
		return;
	}
	cpc_powercut_crash_random(s->rig.pc, rnd_u64(&s->rnd));
	rig_abandon(&s->rig);
}

/* The names are those of one state, and each volume is one of its own. */
static void judge_names(struct script *s)
{
	struct table now;
	size_t t = s->nr_tables + s->may_come_back;

	script_read_names(s, &now);
	while (t > s->tables_floor && !script_names_equal(&now, &s->table[t - 1]))
		t--;
	rig_expect(t > s->tables_floor, "the names that came back have never been");
	s->table[0] = now;
	s->nr_tables = 1;
	s->tables_floor = 0;
	s->may_come_back = false;
}

/* Return: whether all of it could be read. */
static bool judge_content(struct script *s, unsigned i)
{
	uint64_t size = script_size(s, i);

	if (!script_succeeded(s, cpc_volume_read(s->handle[i], s->buf, size, 0),
			      "read after opening"))
		return false;
	rig_expect(history_came_back(&s->history[i], s->buf, size),
		   "volume %u is at no instant that it may be at", i);
	return true;
}

bool script_open_pool(struct script *s)
{
	struct cpc_error err = {""};
	int ret = rig_try_open(&s->rig, &err);
	bool read = true;

	if (ret)
		rig_expect(err.text[0], "no text for an opening that failed");
	if (!script_succeeded(s, ret, err.text[0] ? err.text : "open"))
		return false;
	s->alive = true;
	judge_names(s);
	for (unsigned i = 0; i < SCRIPT_VOLUMES; i++) {
		if (script_exists(s, i))
			script_open_handle(s, i);
	}
	for (unsigned i = 0; i < SCRIPT_VOLUMES; i++)
		read &= !script_exists(s, i) || judge_content(s, i);
	return read;
}

/* --- damage --- */

static int check_device(struct script *s, struct cpc_check_result *result)
{
	struct cpc_check_options opts = {.data = true};
	struct cpc_backing *b;
	int ret;

	rig_expect(cpc_powercut_reopen(s->rig.pc, &b) == 0, "the device cannot be opened");
	ret = cpc_check(b, &opts, result);
	cpc_backing_close(b);
	return ret;
}

/* A check under faults: it says so, one way or the other. */
static void op_check(struct script *s)
{
	struct cpc_check_result result;
	uint64_t failures;

	script_close_pool(s);
	failures = memory_failures();
	if (script_succeeded(s, check_device(s, &result), "check") && s->fault.kind == FAULT_ALLOC)
		rig_expect(failures == memory_failures(), "a check without memory looks complete");
}

struct told {
	const struct spoilt *sp;
	bool repaired[2]; /* the blocks that were spoilt */
};

static void note_damage(void *ctx, const struct cpc_damage *damage)
{
	struct told *told = ctx;

	for (unsigned i = 0; i < told->sp->nr; i++)
		told->repaired[i] |=
		    damage->repaired && damage->bytenr == told->sp->block[i].bytenr;
}

/* What a healthy device has been told to heal is healed, and what is called repaired is. */
static void judge_healing(struct script *s, const struct told *told, bool healthy, const char *what)
{
	for (unsigned i = 0; i < told->sp->nr; i++) {
		rig_expect(told->repaired[i] || !healthy, "%s: no word of the block at %llu", what,
			   (unsigned long long)told->sp->block[i].bytenr);
		rig_expect(!told->repaired[i] || spoil_is_gone(told->sp, s->rig.pc, i),
			   "%s: the block at %llu is called repaired", what,
			   (unsigned long long)told->sp->block[i].bytenr);
	}
}

void script_scrub(struct script *s)
{
	struct cpc_scrub_result result;
	struct spoilt sp = {.nr = 0};
	struct told told = {.sp = &sp};
	uint64_t failures;
	int ret;

	/* what a failed commit has left is not the state that a scrub goes by */
	if (script_commit(s))
		spoil(&sp, s->rig.pc, s->rig.size, (enum spoil)rnd_below(&s->rnd, SPOIL_FREE_LOG));
	failures = script_fired(s);
	ret = cpc_pool_scrub(s->rig.pool, note_damage, &told, &result);
	if (script_succeeded(s, ret, "scrub"))
		judge_healing(s, &told, script_fired(s) == failures, "scrub");
	spoil_undo(&sp, s->rig.pc);
}

static int repair_device(struct script *s, struct told *told, struct cpc_repair_result *result)
{
	struct cpc_repair_options opts = {.check = {.data = true, .ctx = told},
					  .damage = note_damage};
	struct cpc_backing *b;
	int ret;

	rig_expect(cpc_powercut_reopen(s->rig.pc, &b) == 0, "the device cannot be opened");
	ret = cpc_repair(b, &opts, result);
	cpc_backing_close(b);
	return ret;
}

/* What has no copy is built anew elsewhere, so only copies are compared. One that was interrupted
 * may leave blocks that nothing names: the next one gives them back. */
static void op_repair(struct script *s)
{
	enum spoil what = (enum spoil)rnd_below(&s->rnd, NR_SPOILS);
	struct cpc_repair_result result;
	struct spoilt sp;
	struct told told = {.sp = &sp};
	uint64_t failures;
	bool healthy, done;

	script_close_pool(s);
	spoil(&sp, s->rig.pc, s->rig.size, what);
	failures = script_fired(s);
	done = script_succeeded(s, repair_device(s, &told, &result), "repair");
	if (done) {
		healthy = script_fired(s) == failures;
		rig_expect(!healthy || result.after.errors == 0, "repair: %llu errors are left",
			   (unsigned long long)result.after.errors);
		if (what != SPOIL_FREE_LOG)
			judge_healing(s, &told, healthy, "repair");
	}
	s->repair_again |= !done || result.after.errors > 0;
	spoil_undo(&sp, s->rig.pc);
}

void script_repair_again(struct script *s)
{
	struct spoilt sp = {.nr = 0};
	struct told told = {.sp = &sp};
	struct cpc_repair_result result;
	int ret = repair_device(s, &told, &result);

	rig_expect(ret == 0 && result.after.errors == 0, "a repair after one that was interrupted");
}

void script_reopen(struct script *s, enum op op)
{
	if (op == REOPEN)
		script_close_pool(s);
	else if (op == CRASH)
		script_crash(s);
	else if (op == CHECK)
		op_check(s);
	else
		op_repair(s);
	if (!script_open_pool(s) && s->alive) {
		close_handles(s);
		rig_kill(&s->rig);
		s->alive = false;
	}
}
