/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The workloads, the fault, and the way through a script. What is done to volumes stands in
 * volumes.c, what ends a life or looks after damage in lives.c.
 */
#include "script.h"

#include <stdlib.h>

#include "memory.h"
#include "plugin/nbd-errno.h"
#include "script-internal.h"

#define POOL_BYTES (6u << 20)
#define PROLOGUE   6u
#define OPERATIONS 8u

/* Weights of the operations, in the order above. */
static const struct {
	const char *name;
	uint8_t weight[NR_OPS];
} workloads[] = {
    {"writes", {8, 0, 0, 3, 2}},
    {"trims", {3, 5, 0, 2, 2}},
    {"zeroes", {3, 0, 5, 2, 2}},
    {"flushes", {5, 1, 1, 0, 6}},
    {"commits", {5, 1, 1, 1, 1, 4}},
    {"names", {2, 0, 0, 0, 0, 1, 4, 3, 4}},
    {"resizes", {4, 0, 0, 2, 1, 1, 0, 0, 0, 5}},
    {"reopenings", {4, 1, 1, 1, 1, 0, 0, 0, 0, 0, 4}},
    {"recoveries", {4, 1, 1, 0, 2, 0, 1, 1, 1, 1, 0, 5}},
    {"checks", {2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5}},
    {"scrubs", {2, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 5}},
    {"repairs", {2, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 5}},
    {"all", {6, 2, 2, 2, 3, 1, 1, 1, 1, 1, 1, 1, 1}},
};

const char *script_workload(unsigned i)
{
	return i < CPC_ARRAY_SIZE(workloads) ? workloads[i].name : NULL;
}

const char *fault_kind_name(enum fault_kind kind)
{
	static const char *const names[NR_FAULT_KINDS] = {
	    [FAULT_READ] = "read",	 [FAULT_WRITE] = "write", [FAULT_FLUSH] = "flush",
	    [FAULT_DISCARD] = "discard", [FAULT_ALLOC] = "alloc",
	};

	return names[kind];
}

/* --- the fault --- */

static void arm(struct script *s)
{
	const struct fault *f = &s->fault;

	s->armed = true;
	if (f->kind == FAULT_ALLOC) {
		memory_fail(f->nth, f->sticky);
		return;
	}
	s->calls = cpc_powercut_count(s->rig.pc, (enum cpc_powercut_op)f->kind);
	cpc_powercut_fail(s->rig.pc, (enum cpc_powercut_op)f->kind, f->nth, f->sticky, f->error);
}

static void heal(struct script *s)
{
	memory_heal();
	cpc_powercut_clear_faults(s->rig.pc);
}

uint64_t script_fired(const struct script *s)
{
	uint64_t nr;

	if (s->fault.kind == FAULT_ALLOC)
		return memory_failures();
	nr = cpc_powercut_count(s->rig.pc, (enum cpc_powercut_op)s->fault.kind) - s->calls;
	if (!s->armed || nr < s->fault.nth)
		return 0;
	return s->fault.sticky ? nr - s->fault.nth + 1 : 1;
}

/* A bitmap that could not be read costs the free blocks of its group until the pool is opened again
 * (space.h). */
static void note_lost_groups(void *ctx, const struct cpc_stat *stat)
{
	if (!strcmp(stat->name, "space.lost_groups"))
		*(bool *)ctx = stat->value;
}

static bool group_is_lost(struct script *s)
{
	bool lost = false;

	cpc_pool_stats(s->rig.pool, note_lost_groups, &lost);
	return lost;
}

/* Whether the fault, or what it has done to the pool, explains an error. */
static bool explained(struct script *s, int ret)
{
	if (!s->armed)
		return ret == -ENOSPC && s->fault.kind == FAULT_READ && group_is_lost(s);
	if (ret == -EIO)
		return s->fault.kind != FAULT_ALLOC || !s->alive ||
		       !cpc_pool_healthy(s->rig.pool, NULL, 0);
	if (s->fault.kind == FAULT_ALLOC)
		return ret == -ENOMEM;
	return ret == -ENOSPC && (s->fault.error == -ENOSPC || s->fault.kind == FAULT_READ);
}

bool script_succeeded(struct script *s, int ret, const char *what)
{
	int shown = cpc_nbd_errno(ret, false);

	if (ret == 0)
		return true;
	rig_expect(explained(s, ret), "%s: %s, which the fault does not explain", what,
		   strerror(-ret));
	rig_expect(shown == EIO || shown == ENOSPC || shown == ENOMEM, "%s: a client is told %s",
		   what, strerror(shown));
	s->failed++;
	return false;
}

/* --- the whole --- */

static enum op draw_op(struct script *s)
{
	const uint8_t *weight = workloads[s->workload].weight;
	unsigned sum = 0, i = 0;
	uint64_t p;

	while (i < NR_OPS)
		sum += weight[i++];
	p = rnd_below(&s->rnd, sum);
	for (i = 0; p >= weight[i]; i++)
		p -= weight[i];
	return i;
}

static void step(struct script *s, enum op op)
{
	unsigned i = (unsigned)rnd_below(&s->rnd, SCRIPT_VOLUMES);

	if (op == SCRUB)
		script_scrub(s);
	else if (op >= REOPEN)
		script_reopen(s, op);
	else if (op == COMMIT)
		script_commit(s);
	else
		script_operate(s, op, i);
}

static void begin(struct script *s)
{
	static const uint32_t nodesizes[] = {4096, 4096, 16384};

	s->rnd.state = s->seed;
	s->table = calloc(SCRIPT_TABLES, sizeof(*s->table));
	s->nr_tables = 1;
	s->tables_floor = 0;
	s->buf = malloc(HISTORY_BYTES);
	for (unsigned i = 0; i < SCRIPT_VOLUMES; i++)
		history_init(&s->history[i]);
	s->rig = (struct rig){.size = POOL_BYTES,
			      .nodesize = nodesizes[rnd_below(&s->rnd, 3)],
			      .single = rnd_percent(&s->rnd, 25),
			      /* nor can the oracle follow a repair, which has no pool */
			      .watch = s->fault.kind != FAULT_ALLOC &&
				       !workloads[s->workload].weight[REPAIR]};
	cpc_pool_options_init(&s->rig.opts);
	s->rig.opts.cache = CPC_CACHE_MIN;
	s->rig.opts.dirty = rnd_percent(&s->rnd, 50) ? 65536 : 0;
	s->rig.opts.no_threads = true;
	rig_create(&s->rig);
	rig_open(&s->rig);
	s->alive = true;
}

/* Healthy: what makes a pool that has something in it. */
static void prologue(struct script *s)
{
	static const enum op ops[PROLOGUE] = {WRITE, WRITE, FLUSH, WRITE, COMMIT, WRITE};

	script_create(s, 0);
	script_create(s, 1);
	for (unsigned i = 0; i < PROLOGUE; i++)
		step(s, ops[i]);
}

static void under_fault(struct script *s)
{
	arm(s);
	for (unsigned i = 0; i < OPERATIONS && s->alive; i++)
		step(s, draw_op(s));
	heal(s);
	s->fired = script_fired(s);
}

/* A pool that is still healthy takes what comes, and makes it durable. */
static void use(struct script *s)
{
	s->armed = false;
	for (unsigned i = 0; i < SCRIPT_VOLUMES; i++) {
		if (!script_exists(s, i))
			continue;
		script_write(s, i);
		script_read(s, i);
		script_flush(s, i);
	}
}

static void finish(struct script *s)
{
	struct cpc_check_result result;

	if (s->alive && cpc_pool_healthy(s->rig.pool, NULL, 0))
		use(s);
	if (s->alive && rnd_percent(&s->rnd, 50)) {
		s->armed = true; /* a pool that is not healthy does not end in order */
		script_close_pool(s);
	} else if (s->alive) {
		s->broke |= !cpc_pool_healthy(s->rig.pool, NULL, 0);
		script_crash(s);
	}
	s->armed = false;
	rig_expect(script_open_pool(s), "a healthy device cannot be read");
	use(s);
	script_close_pool(s);
	if (s->repair_again)
		script_repair_again(s);
	rig_check(&s->rig, true, &result);
}

static void end(struct script *s)
{
	rig_destroy(&s->rig);
	for (unsigned i = 0; i < SCRIPT_VOLUMES; i++)
		history_destroy(&s->history[i]);
	free(s->table);
	free(s->buf);
}

void script_run(struct script *s)
{
	uint64_t live = memory_live();

	begin(s);
	prologue(s);
	under_fault(s);
	finish(s);
	end(s);
	rig_expect(memory_live() == live, "%llu allocations have not been freed",
		   (unsigned long long)(memory_live() - live));
}
