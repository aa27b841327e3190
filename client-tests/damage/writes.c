/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * writes: device writes that do not do what the device says.
 *
 *   lost         a write of a life is answered and never lands
 *   misdirected  it lands on another block
 *   stale        a block goes back to what it held at an earlier time
 *   swapped      two blocks change places
 *
 * A life writes, flushes and ends, in order or killed. Then the pool must open and give right bytes
 * or errors; only the last flush of the last volume may have been taken back, since its mark was
 * never written. A pool may also be refused. In any case a check before must find the damage,
 * unless nothing that is still needed was touched: then everything reads right.
 */
#include "damage.h"

enum kind { LOST, MISDIRECTED, STALE, SWAPPED, NR_KINDS };

struct trial {
	struct subject *s;
	const struct cpc_powercut_saved *base;
	struct rnd rnd;
	enum kind kind;
	bool killed;  /* the life did not end in order */
	bool noticed; /* an operation of the life has failed: what it left may be old or new */
};

/* A write, commit or flush may notice the damage itself; then the life ends there. */
static bool step(struct trial *t, unsigned i)
{
	struct subject *s = t->s;
	unsigned v = (unsigned)rnd_below(&t->rnd, VOLUMES - 1);
	int ret;

	if (i % 5 == 4)
		ret = cpc_pool_commit(s->rig.pool);
	else if (i % 3 == 2)
		ret = cpc_volume_flush(subject_volume(s, v));
	else
		ret = subject_try_write(s, v, rnd_below(&t->rnd, VOLUME_BLOCKS));
	return ret == 0;
}

static void arm(struct trial *t)
{
	struct cpc_powercut_fault fault = {
	    .op = CPC_POWERCUT_WRITE,
	    .action = t->kind == LOST ? CPC_FAULT_LOSE : CPC_FAULT_MISDIRECT,
	    .nth = 1 + rnd_below(&t->rnd, 40),
	    .target = rnd_below(&t->rnd, t->s->rig.size >> CPC_BLOCK_SHIFT) << CPC_BLOCK_SHIFT,
	};

	if (t->kind == LOST || t->kind == MISDIRECTED)
		cpc_powercut_add_fault(t->s->rig.pc, &fault);
}

static bool end_of_life(struct trial *t)
{
	struct subject *s = t->s;
	bool ok = true;

	for (unsigned v = 0; ok && v < VOLUMES - 1; v++)
		ok = cpc_volume_flush(subject_volume(s, v)) == 0;
	if (!t->killed || !ok)
		return ok;
	/* The last record but one carries the mark of all before. */
	for (unsigned i = 0; ok && i < 2; i++) {
		memcpy(s->content.before, s->content.stamp[VOLUMES - 1], sizeof(s->content.before));
		ok = subject_try_write(s, VOLUMES - 1, i) == 0 &&
		     cpc_volume_flush(subject_volume(s, VOLUMES - 1)) == 0;
	}
	return ok;
}

static void run_life(struct trial *t)
{
	struct subject *s = t->s;
	bool ok = true;

	rig_open(&s->rig);
	arm(t);
	for (unsigned i = 0; i < 16 && ok; i++)
		ok = step(t, i);
	if (ok)
		ok = end_of_life(t);
	if (ok && !t->killed)
		ok = cpc_pool_shutdown(s->rig.pool) == 0;
	t->noticed = !ok;
	cpc_powercut_clear_faults(s->rig.pc);
	rig_kill(&s->rig);
}

/* --- blocks that change by themselves --- */

/* A block that the newest state needs. */
static uint64_t draw_block(struct trial *t, const struct places *at)
{
	size_t nr = at->nr_meta + at->nr_data;
	uint64_t i = rnd_below(&t->rnd, nr + 2);

	if (i < at->nr_meta)
		return at->meta[i];
	return i < nr ? at->data[i - at->nr_meta] : at->super_slot[i - nr];
}

static void spoil(struct trial *t)
{
	struct cpc_powercut *pc = t->s->rig.pc;
	uint8_t a[CPC_BLOCK_SIZE], b[CPC_BLOCK_SIZE];
	struct places at;
	uint64_t x, y;

	places_find(t->s, &at);
	x = draw_block(t, &at) << CPC_BLOCK_SHIFT;
	y = draw_block(t, &at) << CPC_BLOCK_SHIFT;
	cpc_powercut_peek(pc, x, a, sizeof(a));
	cpc_powercut_peek(pc, y, b, sizeof(b));
	if (t->kind == SWAPPED) {
		cpc_powercut_poke(pc, x, b, sizeof(b));
		cpc_powercut_poke(pc, y, a, sizeof(a));
	} else {
		struct cpc_powercut_saved *now = cpc_powercut_save(pc);

		cpc_powercut_restore(pc, t->base);
		cpc_powercut_peek(pc, x, b, sizeof(b));
		cpc_powercut_restore(pc, now);
		cpc_powercut_saved_free(now);
		cpc_powercut_poke(pc, x, b, sizeof(b));
	}
	places_free(&at);
}

/* --- judging --- */

static bool check_finds(struct trial *t)
{
	struct cpc_check_options opts = {.data = true};
	struct cpc_check_result result;

	return cpc_check(subject_peek(t->s), &opts, &result) != 0 || result.errors > 0;
}

/* An operation that failed may have left its own block old or new; it is no longer judged. */
static void judge(struct trial *t, struct counts *c)
{
	bool found = check_finds(t);
	struct cpc_error err;
	uint64_t errors = 0;

	if (rig_try_open(&t->s->rig, &err)) {
		rig_expect(found, "the pool is refused, but check finds nothing: %s", err.text);
		c->writes_refused++;
	} else {
		if (!t->noticed)
			errors = subject_read(t->s, t->killed);
		rig_expect(found || !errors, "blocks give errors that check did not find");
		rig_kill(&t->s->rig);
	}
	c->writes_eio += errors;
	c->writes += found || t->noticed;
	c->writes_without_effect += !found && !t->noticed;
	c->lost += t->kind == LOST;
	c->misdirected += t->kind == MISDIRECTED;
	c->stale += t->kind == STALE;
	c->swapped += t->kind == SWAPPED;
}

static void try(struct subject *s, const struct cpc_powercut_saved *base, uint64_t seed,
		struct counts *c)
{
	struct trial t = {.s = s, .base = base, .rnd = {seed}};
	struct content content = s->content;

	t.kind = (enum kind)rnd_below(&t.rnd, NR_KINDS);
	t.killed = rnd_percent(&t.rnd, 50);
	s->rnd.state = seed + 1;
	rig_seed_engine(seed);
	cpc_powercut_restore(s->rig.pc, base);
	run_life(&t);
	if (t.kind == STALE || t.kind == SWAPPED)
		spoil(&t);
	judge(&t, c);
	s->content = content;
}

void sweep_writes(uint64_t seed, uint64_t from, uint64_t nr, uint64_t until_ns, struct counts *c)
{
	struct subject s;
	struct cpc_powercut_saved *base;

	subject_create(&s, seed + 2, false);
	base = cpc_powercut_save(s.rig.pc);
	for (uint64_t i = from; c->writes < nr && !time_is_up(until_ns); i++) {
		rig_set_rerun("damage --flips 0 --writes 1 --seed %llu --from %llu",
			      (unsigned long long)seed, (unsigned long long)i);
		try(&s, base, (seed + i) * 0x9e3779b97f4a7c15u, c);
	}
	cpc_powercut_saved_free(base);
	rig_destroy(&s.rig);
}
