/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Operations on the volumes of a script: each writes down what may hold now before it is issued,
 * and by the answer what does.
 *
 * The states that the names have had stand in s->table: those from tables_floor on may come back
 * after a crash, and the last is the present one. A change that failed is looked up in the pool.
 */
#include <stdio.h>
#include <stdlib.h>

#include "memory.h"
#include "script-internal.h"

#define WRITE_BYTES (40u << 10)

/* --- names --- */

static struct table *names_now(struct script *s)
{
	return &s->table[s->nr_tables - 1];
}

static struct table *names_next(struct script *s)
{
	rig_expect(s->nr_tables + 1 < SCRIPT_TABLES, "too many changes of names for a script");
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

void script_read_names(struct script *s, struct table *t)
{
	int ret;

	memset(t, 0, sizeof(*t));
	memory_pause(true);
	ret = cpc_pool_list(s->rig.pool, add_to_table, t);
	memory_pause(false);
	rig_expect(ret == 0, "the volumes cannot be listed: %s", strerror(-ret));
}

bool script_names_equal(const struct table *a, const struct table *b)
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

	script_read_names(s, &now);
	changed = script_names_equal(&now, &s->table[s->nr_tables]);
	rig_expect(changed || script_names_equal(&now, names_now(s)),
		   "%s: the names are neither the old nor the new ones", what);
	if (script_succeeded(s, ret, what)) {
		rig_expect(changed, "%s: answered, and not there", what);
		s->tables_floor = s->nr_tables;
	}
	s->nr_tables += changed;
	/* A write that failed may have landed: the next opening decides. */
	s->may_come_back = !changed && !cpc_pool_healthy(s->rig.pool, NULL, 0);
	return changed;
}

bool script_exists(struct script *s, unsigned i)
{
	return names_now(s)->volume[i].name[0];
}

/* Waking a volume takes memory. What failed for want of it has left nothing. */
void script_open_handle(struct script *s, unsigned i)
{
	const char *name = names_now(s)->volume[i].name;
	int ret = cpc_pool_open_volume(s->rig.pool, name, &s->handle[i]);

	if (script_succeeded(s, ret, "opening a volume"))
		return;
	memory_pause(true);
	ret = cpc_pool_open_volume(s->rig.pool, name, &s->handle[i]);
	memory_pause(false);
	rig_expect(ret == 0, "opening volume %u again: %s", i, strerror(-ret));
}

void script_close_handle(struct script *s, unsigned i)
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

void script_create(struct script *s, unsigned i)
{
	struct cpc_error err = {""};
	struct table *t;
	int ret;

	/* One that was deleted may be back after a crash. */
	if (script_exists(s, i) || s->tables_floor + 1 != s->nr_tables || s->may_come_back)
		return;
	t = names_next(s);
	history_destroy(&s->history[i]);
	history_init(&s->history[i]);
	fresh_name(s, i, t->volume[i].name);
	t->volume[i].size = draw_size(s);
	ret = cpc_pool_create_volume(s->rig.pool, t->volume[i].name, t->volume[i].size, &err);
	rig_expect(!ret || err.text[0], "no text for a creation that failed");
	if (names_answered(s, ret, "create"))
		script_open_handle(s, i);
}

static void op_delete(struct script *s, unsigned i)
{
	struct cpc_error err = {""};
	const char *name = names_now(s)->volume[i].name;
	int ret;

	names_next(s)->volume[i].name[0] = '\0';
	script_close_handle(s, i);
	ret = cpc_pool_delete(s->rig.pool, name, &err);
	if (!names_answered(s, ret, "delete"))
		script_open_handle(s, i);
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
	script_close_handle(s, i);
	history_change(&s->history[i], NULL, HISTORY_BYTES - size, size);
	ret = cpc_pool_resize(s->rig.pool, t->volume[i].name, size, true, &err);
	if (!names_answered(s, ret, "resize"))
		history_failed(&s->history[i]);
	script_open_handle(s, i);
}

/* --- data --- */

uint64_t script_size(struct script *s, unsigned i)
{
	return names_now(s)->volume[i].size;
}

static void draw_range(struct script *s, unsigned i, uint64_t align, uint64_t *offset,
		       uint64_t *len)
{
	uint64_t units = script_size(s, i) / align;

	*offset = rnd_below(&s->rnd, units);
	*len = 1 + rnd_below(&s->rnd, cpc_min_u64(units - *offset, WRITE_BYTES / align));
	*offset *= align;
	*len *= align;
}

static void changed(struct script *s, unsigned i, int ret, unsigned flags, const char *what)
{
	if (!script_succeeded(s, ret, what))
		history_failed(&s->history[i]);
	else if (flags & CPC_FUA)
		history_durable(&s->history[i]);
}

static unsigned draw_flags(struct script *s)
{
	return rnd_percent(&s->rnd, 10) ? CPC_FUA : 0;
}

void script_write(struct script *s, unsigned i)
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

void script_read(struct script *s, unsigned i)
{
	uint64_t offset, len, bad;

	draw_range(s, i, 512, &offset, &len);
	if (script_succeeded(s, cpc_volume_read(s->handle[i], s->buf, len, offset), "read"))
		rig_expect(history_reads(&s->history[i], s->buf, len, offset, &bad),
			   "volume %u: byte %llu reads wrong", i, (unsigned long long)bad);
}

void script_flush(struct script *s, unsigned i)
{
	if (script_succeeded(s, cpc_volume_flush(s->handle[i]), "flush"))
		history_durable(&s->history[i]);
}

void script_all_durable(struct script *s)
{
	for (unsigned i = 0; i < SCRIPT_VOLUMES; i++)
		history_durable(&s->history[i]);
	s->tables_floor = s->nr_tables - 1;
}

bool script_commit(struct script *s)
{
	if (!script_succeeded(s, cpc_pool_commit(s->rig.pool), "commit"))
		return false;
	script_all_durable(s);
	return true;
}

void script_operate(struct script *s, enum op op, unsigned i)
{
	static void (*const run[])(struct script * s, unsigned i) = {
	    [WRITE] = script_write, [TRIM] = op_trim,	    [ZERO] = op_zero,
	    [READ] = script_read,   [FLUSH] = script_flush, [DELETE] = op_delete,
	    [RENAME] = op_rename,   [RESIZE] = op_resize,
	};

	if (op == CREATE || !script_exists(s, i))
		script_create(s, i);
	else if (op < DELETE || !s->may_come_back)
		run[op](s, i);
}
