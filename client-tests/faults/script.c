/* SPDX-License-Identifier: BSD-3-Clause */
#include "script.h"

#include <stdio.h>
#include <stdlib.h>

#include "memory.h"
#include "plugin/nbd-errno.h"
#include "spoil.h"

#define KIB	    1024u
#define POOL_BYTES  (6u << 20)
#define MAX_TABLES  64u
#define PROLOGUE    6u
#define OPERATIONS  8u
#define WRITE_BYTES (40 * KIB)

enum op {
	WRITE,
	TRIM,
	ZERO,
	READ,
	FLUSH,
	COMMIT,
	CREATE,
	DELETE,
	RENAME,
	RESIZE,
	REOPEN,
	CRASH,
	CHECK,
	SCRUB,
	REPAIR,
	NR_OPS
};

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

/* How often the fault has fired. */
static uint64_t fired(const struct script *s)
{
	uint64_t nr;

	if (s->fault.kind == FAULT_ALLOC)
		return memory_failures();
	nr = cpc_powercut_count(s->rig.pc, (enum cpc_powercut_op)s->fault.kind) - s->calls;
	if (!s->armed || nr < s->fault.nth)
		return 0;
	return s->fault.sticky ? nr - s->fault.nth + 1 : 1;
}

/* Whether the fault, or what it has done to the pool, explains an error. */
static bool explained(struct script *s, int ret)
{
	if (!s->armed)
		return false;
	if (ret == -EIO)
		return s->fault.kind != FAULT_ALLOC || !s->alive ||
		       !cpc_pool_healthy(s->rig.pool, NULL, 0);
	if (s->fault.kind == FAULT_ALLOC)
		return ret == -ENOMEM;
	return ret == -ENOSPC && s->fault.error == -ENOSPC;
}

/* Return: true when it succeeded. */
static bool succeeded(struct script *s, int ret, const char *what)
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

/* --- names --- */

static struct table *names_now(struct script *s)
{
	return &s->table[s->nr_tables - 1];
}

static struct table *names_next(struct script *s)
{
	rig_expect(s->nr_tables + 1 < MAX_TABLES, "too many changes of names for a script");
	s->table[s->nr_tables] = *names_now(s);
	return &s->table[s->nr_tables];
}

static int add_to_table(void *ctx, const struct cpc_volume_info *info)
{
	struct table *t = ctx;
	unsigned i = (unsigned)strtoul(info->name + 1, NULL, 10) % SCRIPT_VOLUMES;

	rig_expect(!t->volume[i].name[0], "volume %u has two names", i);
	snprintf(t->volume[i].name, sizeof(t->volume[i].name), "%.15s", info->name);
	t->volume[i].size = info->size;
	return 0;
}

/* What the pool says; asking is not what is tested. */
static void read_table(struct script *s, struct table *t)
{
	int ret;

	memset(t, 0, sizeof(*t));
	memory_pause(true);
	ret = cpc_pool_list(s->rig.pool, add_to_table, t);
	memory_pause(false);
	rig_expect(ret == 0, "the volumes cannot be listed: %s", strerror(-ret));
}

static bool table_equal(const struct table *a, const struct table *b)
{
	bool equal = true;

	for (unsigned i = 0; i < SCRIPT_VOLUMES; i++)
		equal &= strcmp(a->volume[i].name, b->volume[i].name) == 0 &&
			 (!a->volume[i].name[0] || a->volume[i].size == b->volume[i].size);
	return equal;
}

/* The change that names_next() began has been answered. Return: whether the pool shows it. */
static bool names_answered(struct script *s, int ret, const char *what)
{
	struct table now;
	bool changed;

	read_table(s, &now);
	changed = table_equal(&now, &s->table[s->nr_tables]);
	rig_expect(changed || table_equal(&now, names_now(s)),
		   "%s: the names are neither the old nor the new ones", what);
	if (succeeded(s, ret, what)) {
		rig_expect(changed, "%s: answered, and not there", what);
		s->tables_floor = s->nr_tables;
	}
	s->nr_tables += changed;
	/* A write that failed may have landed: the next opening decides. */
	s->may_come_back = !changed && !cpc_pool_healthy(s->rig.pool, NULL, 0);
	return changed;
}

static bool exists(struct script *s, unsigned i)
{
	return names_now(s)->volume[i].name[0];
}

static void open_handle(struct script *s, unsigned i)
{
	int ret = cpc_pool_open_volume(s->rig.pool, names_now(s)->volume[i].name, &s->handle[i]);

	rig_expect(ret == 0, "opening volume %u: %s", i, strerror(-ret));
}

static void close_handle(struct script *s, unsigned i)
{
	if (s->handle[i])
		cpc_pool_close_volume(s->rig.pool, s->handle[i]);
	s->handle[i] = NULL;
}

/* The number of the volume can be told from its name. */
static void fresh_name(struct script *s, unsigned i, char name[16])
{
	snprintf(name, 16, "v%llu", (unsigned long long)(++s->clock * SCRIPT_VOLUMES + i));
}

static uint64_t draw_size(struct script *s)
{
	return (1 + rnd_below(&s->rnd, HISTORY_BYTES / CPC_BLOCK_SIZE)) * CPC_BLOCK_SIZE;
}

static void op_create(struct script *s, unsigned i)
{
	struct cpc_error err = {""};
	struct table *t;
	int ret;

	/* One that was deleted may be back after a crash. */
	if (exists(s, i) || s->tables_floor + 1 != s->nr_tables || s->may_come_back)
		return;
	t = names_next(s);
	history_destroy(&s->history[i]);
	history_init(&s->history[i]);
	fresh_name(s, i, t->volume[i].name);
	t->volume[i].size = draw_size(s);
	ret = cpc_pool_create_volume(s->rig.pool, t->volume[i].name, t->volume[i].size, &err);
	rig_expect(!ret || err.text[0], "no text for a creation that failed");
	if (names_answered(s, ret, "create"))
		open_handle(s, i);
}

static void op_delete(struct script *s, unsigned i)
{
	struct cpc_error err = {""};
	const char *name = names_now(s)->volume[i].name;
	int ret;

	names_next(s)->volume[i].name[0] = '\0';
	close_handle(s, i);
	ret = cpc_pool_delete(s->rig.pool, name, &err);
	if (!names_answered(s, ret, "delete"))
		open_handle(s, i);
}

static void op_rename(struct script *s, unsigned i)
{
	struct cpc_error err = {""};
	const char *name = names_now(s)->volume[i].name;
	struct table *t = names_next(s);

	fresh_name(s, i, t->volume[i].name);
	names_answered(s, cpc_pool_rename(s->rig.pool, name, t->volume[i].name, &err), "rename");
}

/* What a shrink cuts off is a change of content like any other. */
static void op_resize(struct script *s, unsigned i)
{
	struct cpc_error err = {""};
	struct table *t = names_next(s);
	uint64_t size = draw_size(s);
	int ret;

	if (size == t->volume[i].size)
		return;
	t->volume[i].size = size;
	close_handle(s, i);
	history_change(&s->history[i], NULL, HISTORY_BYTES - size, size);
	ret = cpc_pool_resize(s->rig.pool, t->volume[i].name, size, true, &err);
	if (!names_answered(s, ret, "resize"))
		history_failed(&s->history[i]);
	open_handle(s, i);
}

/* --- data --- */

static uint64_t size_of(struct script *s, unsigned i)
{
	return names_now(s)->volume[i].size;
}

static void draw_range(struct script *s, unsigned i, uint64_t align, uint64_t *offset,
		       uint64_t *len)
{
	uint64_t units = size_of(s, i) / align;

	*offset = rnd_below(&s->rnd, units);
	*len = 1 + rnd_below(&s->rnd, cpc_min_u64(units - *offset, WRITE_BYTES / align));
	*offset *= align;
	*len *= align;
}

static void changed(struct script *s, unsigned i, int ret, unsigned flags, const char *what)
{
	if (!succeeded(s, ret, what))
		history_failed(&s->history[i]);
	else if (flags & CPC_FUA)
		history_durable(&s->history[i]);
}

static unsigned draw_flags(struct script *s)
{
	return rnd_percent(&s->rnd, 10) ? CPC_FUA : 0;
}

static void op_write(struct script *s, unsigned i)
{
	static const unsigned aligns[] = {1, 512, 4096, 4096};
	unsigned flags = draw_flags(s);
	uint64_t offset, len;

	draw_range(s, i, aligns[rnd_below(&s->rnd, 4)], &offset, &len);
	rnd_fill(++s->clock, s->buf, len);
	history_change(&s->history[i], s->buf, len, offset);
	changed(s, i, cpc_volume_write(s->handle[i], s->buf, len, offset, flags), flags, "write");
}

static void op_trim(struct script *s, unsigned i)
{
	unsigned flags = draw_flags(s);
	uint64_t offset, len;

	draw_range(s, i, CPC_BLOCK_SIZE, &offset, &len);
	history_change(&s->history[i], NULL, len, offset);
	changed(s, i, cpc_volume_trim(s->handle[i], len, offset, flags), flags, "trim");
}

static void op_zero(struct script *s, unsigned i)
{
	unsigned flags = draw_flags(s) | (rnd_percent(&s->rnd, 40) ? CPC_NO_HOLE : 0u);
	uint64_t offset, len;

	draw_range(s, i, rnd_percent(&s->rnd, 50) ? 512 : CPC_BLOCK_SIZE, &offset, &len);
	history_change(&s->history[i], NULL, len, offset);
	changed(s, i, cpc_volume_zero(s->handle[i], len, offset, flags), flags, "zero");
}

static void op_read(struct script *s, unsigned i)
{
	uint64_t offset, len, bad;

	draw_range(s, i, 512, &offset, &len);
	if (succeeded(s, cpc_volume_read(s->handle[i], s->buf, len, offset), "read"))
		rig_expect(history_reads(&s->history[i], s->buf, len, offset, &bad),
			   "volume %u: byte %llu reads wrong", i, (unsigned long long)bad);
}

static void op_flush(struct script *s, unsigned i)
{
	if (succeeded(s, cpc_volume_flush(s->handle[i]), "flush"))
		history_durable(&s->history[i]);
}

static void all_durable(struct script *s)
{
	for (unsigned i = 0; i < SCRIPT_VOLUMES; i++)
		history_durable(&s->history[i]);
	s->tables_floor = s->nr_tables - 1;
}

static bool op_commit(struct script *s)
{
	if (!succeeded(s, cpc_pool_commit(s->rig.pool), "commit"))
		return false;
	all_durable(s);
	return true;
}

/* --- lives --- */

static void close_handles(struct script *s)
{
	for (unsigned i = 0; i < SCRIPT_VOLUMES; i++)
		close_handle(s, i);
}

static void close_pool(struct script *s)
{
	int ret;

	close_handles(s);
	s->broke |= !cpc_pool_healthy(s->rig.pool, NULL, 0);
	ret = rig_close(&s->rig);
	s->alive = false;
	if (succeeded(s, ret, "shutdown"))
		all_durable(s);
}

static void crash(struct script *s)
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

	read_table(s, &now);
	while (t > s->tables_floor && !table_equal(&now, &s->table[t - 1]))
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
	uint64_t size = size_of(s, i);

	if (!succeeded(s, cpc_volume_read(s->handle[i], s->buf, size, 0), "read after opening"))
		return false;
	rig_expect(history_came_back(&s->history[i], s->buf, size),
		   "volume %u is at no instant that it may be at", i);
	return true;
}

/* Return: whether the pool is open, and all that it holds has been judged. */
static bool open_pool(struct script *s)
{
	struct cpc_error err = {""};
	int ret = rig_try_open(&s->rig, &err);
	bool read = true;

	if (ret)
		rig_expect(err.text[0], "no text for an opening that failed");
	if (!succeeded(s, ret, err.text[0] ? err.text : "open"))
		return false;
	s->alive = true;
	judge_names(s);
	for (unsigned i = 0; i < SCRIPT_VOLUMES; i++) {
		if (exists(s, i))
			open_handle(s, i);
	}
	for (unsigned i = 0; i < SCRIPT_VOLUMES; i++)
		read &= !exists(s, i) || judge_content(s, i);
	return read;
}

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

	close_pool(s);
	failures = memory_failures();
	if (succeeded(s, check_device(s, &result), "check") && s->fault.kind == FAULT_ALLOC)
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

static void op_scrub(struct script *s)
{
	struct cpc_scrub_result result;
	struct spoilt sp = {.nr = 0};
	struct told told = {.sp = &sp};
	uint64_t failures;
	int ret;

	/* what a failed commit has left is not the state that a scrub goes by */
	if (op_commit(s))
		spoil(&sp, s->rig.pc, s->rig.size, (enum spoil)rnd_below(&s->rnd, SPOIL_FREE_LOG));
	failures = fired(s);
	ret = cpc_pool_scrub(s->rig.pool, note_damage, &told, &result);
	if (succeeded(s, ret, "scrub"))
		judge_healing(s, &told, fired(s) == failures, "scrub");
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

	close_pool(s);
	spoil(&sp, s->rig.pc, s->rig.size, what);
	failures = fired(s);
	done = succeeded(s, repair_device(s, &told, &result), "repair");
	if (done) {
		healthy = fired(s) == failures;
		rig_expect(!healthy || result.after.errors == 0, "repair: %llu errors are left",
			   (unsigned long long)result.after.errors);
		if (what != SPOIL_FREE_LOG)
			judge_healing(s, &told, healthy, "repair");
	}
	s->repair_again |= !done || result.after.errors > 0;
	spoil_undo(&sp, s->rig.pc);
}

static void repair_again(struct script *s)
{
	struct spoilt sp = {.nr = 0};
	struct told told = {.sp = &sp};
	struct cpc_repair_result result;
	int ret = repair_device(s, &told, &result);

	rig_expect(ret == 0 && result.after.errors == 0, "a repair after one that was interrupted");
}

static void reopen(struct script *s, enum op op)
{
	if (op == REOPEN)
		close_pool(s);
	else if (op == CRASH)
		crash(s);
	else if (op == CHECK)
		op_check(s);
	else
		op_repair(s);
	if (!open_pool(s) && s->alive) {
		close_handles(s);
		rig_kill(&s->rig);
		s->alive = false;
	}
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
	static void (*const run[])(struct script * s, unsigned i) = {
	    [WRITE] = op_write, [TRIM] = op_trim,     [ZERO] = op_zero,	    [READ] = op_read,
	    [FLUSH] = op_flush, [DELETE] = op_delete, [RENAME] = op_rename, [RESIZE] = op_resize,
	};
	unsigned i = (unsigned)rnd_below(&s->rnd, SCRIPT_VOLUMES);

	if (op == SCRUB)
		op_scrub(s);
	else if (op >= REOPEN)
		reopen(s, op);
	else if (op == COMMIT)
		op_commit(s);
	else if (op == CREATE || !exists(s, i))
		op_create(s, i);
	else if (op >= DELETE && s->may_come_back)
		return;
	else
		run[op](s, i);
}

static void begin(struct script *s)
{
	static const uint32_t nodesizes[] = {4096, 4096, 16384};

	s->rnd.state = s->seed;
	s->table = calloc(MAX_TABLES, sizeof(*s->table));
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

	op_create(s, 0);
	op_create(s, 1);
	for (unsigned i = 0; i < PROLOGUE; i++)
		step(s, ops[i]);
}

static void under_fault(struct script *s)
{
	arm(s);
	for (unsigned i = 0; i < OPERATIONS && s->alive; i++)
		step(s, draw_op(s));
	heal(s);
	s->fired = fired(s);
}

/* A pool that is still healthy takes what comes, and makes it durable. */
static void use(struct script *s)
{
	s->armed = false;
	for (unsigned i = 0; i < SCRIPT_VOLUMES; i++) {
		if (!exists(s, i))
			continue;
		op_write(s, i);
		op_read(s, i);
		op_flush(s, i);
	}
}

static void finish(struct script *s)
{
	struct cpc_check_result result;

	if (s->alive && cpc_pool_healthy(s->rig.pool, NULL, 0))
		use(s);
	if (s->alive && rnd_percent(&s->rnd, 50)) {
		s->armed = true; /* a pool that is not healthy does not end in order */
		close_pool(s);
	} else if (s->alive) {
		s->broke |= !cpc_pool_healthy(s->rig.pool, NULL, 0);
		crash(s);
	}
	s->armed = false;
	rig_expect(open_pool(s), "a healthy device cannot be read");
	use(s);
	close_pool(s);
	if (s->repair_again)
		repair_again(s);
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
