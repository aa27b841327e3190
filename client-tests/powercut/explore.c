/* SPDX-License-Identifier: BSD-3-Clause */
#include "explore.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib/hooks.h"

#define PATH_LEN 128

/* What one state is judged with. */
struct trial {
	struct explorer *x;
	struct workload *w;
	const struct event *e;
	struct rig rig; /* the device that loses power, and the pool opened on it */
	struct tap tap;
	unsigned depth;
	uint64_t base; /* fingerprint of what is stable at the event; 0: not known */
	char path[PATH_LEN];
	const char *follow; /* the rest of a path that is given; NULL: draw */
	/* saved while the state was opened */
	struct cpc_powercut_saved *inner[32];
	size_t nr_inner;
};

/* --- states seen before --- */

static uint64_t mix(uint64_t x)
{
	return rnd_u64(&(struct rnd){x});
}

static void seen_grow(struct seen *s)
{
	struct seen old = *s;

	s->cap = s->cap ? 2 * s->cap : 4096;
	s->slot = calloc(s->cap, sizeof(*s->slot));
	cpc_assert(s->slot);
	for (size_t i = 0; i < old.cap; i++) {
		size_t at = old.slot[i] & (s->cap - 1);

		while (old.slot[i] && s->slot[at])
			at = (at + 1) & (s->cap - 1);
		if (old.slot[i])
			s->slot[at] = old.slot[i];
	}
	free(old.slot);
}

/* Return: true when the key is new. */
static bool seen_add(struct seen *s, uint64_t key)
{
	size_t at;

	key |= 1;
	if (2 * s->nr >= s->cap)
		seen_grow(s);
	for (at = key & (s->cap - 1); s->slot[at]; at = (at + 1) & (s->cap - 1)) {
		if (s->slot[at] == key)
			return false;
	}
	s->slot[at] = key;
	s->nr++;
	return true;
}

static uint64_t hash_stable(struct trial *t, uint64_t bytenr, uint64_t len, uint64_t sum)
{
	uint8_t buf[CPC_BLOCK_SIZE];

	for (uint64_t at = bytenr; at < bytenr + len; at += sizeof(buf)) {
		cpc_powercut_peek_stable(t->rig.pc, at, buf, sizeof(buf));
		sum = mix(sum ^ (at << 20) ^ cpc_csum(buf, sizeof(buf)));
	}
	return sum;
}

/* Of what is stable whatever the fates are, and of what must be there. Before the crash. */
static uint64_t base_fingerprint(struct trial *t)
{
	uint64_t sum = t->w->seed * 31 + t->e->names * 2 + t->e->changing;

	for (unsigned i = 0; i < t->w->nr_objects; i++)
		sum = mix(sum + t->e->floor[i] * 1000003 + t->e->issued[i]);
	return hash_stable(t, 0, t->rig.size, sum);
}

struct ranges {
	size_t nr;
	struct cpc_powercut_pending *range;
};

/* What the fates will decide about. */
static struct ranges pending_ranges(struct trial *t)
{
	struct ranges r = {.nr = cpc_powercut_nr_pending(t->rig.pc)};

	r.range = calloc(r.nr + 1, sizeof(*r.range));
	cpc_assert(r.range);
	for (size_t i = 0; i < r.nr; i++)
		cpc_assert(cpc_powercut_pending(t->rig.pc, i, &r.range[i]));
	return r;
}

/* Of the state after the crash. Uses the ranges up. */
static uint64_t fingerprint(struct trial *t, uint64_t base, struct ranges *r)
{
	for (size_t i = 0; i < r->nr; i++)
		base = hash_stable(t, r->range[i].bytenr, r->range[i].len, base);
	free(r->range);
	return base;
}

/* --- naming a state --- */

/* Sets what a failure prints to run it again; path NULL: the workload. */
static void set_rerun(const struct explorer *x, const struct workload *w, const char *path)
{
	char which[80] = "";

	if (w->sequence.nr) {
		strcpy(which, "--sequence ");
		sequence_print(&w->sequence, which + strlen(which), sizeof(which) - strlen(which));
	} else {
		snprintf(which, sizeof(which), "--ops %u", w->nr_ops);
	}
	rig_set_rerun("%s --seed %llu %s %s %s", x->program, (unsigned long long)w->seed, which,
		      path ? "--state" : "--states 1", path ? path : "");
}

/* Drawn from the path, so that a state alone is treated as it is among others. */
static struct rnd rnd_of_path(const struct trial *t)
{
	return (struct rnd){t->w->seed ^ cpc_csum(t->path, strlen(t->path))};
}

/* --- judging --- */

static const struct names *names_at(const struct trial *t, unsigned change)
{
	return &t->w->names[t->e->names + change];
}

/* The object of that name in a table, or -1. */
static int find_name(const struct names *names, unsigned nr, const char *name)
{
	for (unsigned i = 0; i < nr; i++) {
		if (!strcmp(names->object[i].name, name))
			return (int)i;
	}
	return -1;
}

struct listed {
	struct trial *t;
	const struct names *names;
	unsigned nr;
	bool fits;
};

static int see_listed(void *ctx, const struct cpc_volume_info *info)
{
	struct listed *l = ctx;
	int object = find_name(l->names, l->t->w->nr_objects, info->name);

	l->nr++;
	if (object < 0 || l->names->object[object].size != info->size)
		l->fits = false;
	return 0;
}

static bool table_fits(struct trial *t, const struct names *names)
{
	struct listed l = {t, names, 0, true};
	unsigned expected = 0;

	rig_expect(cpc_pool_list(t->rig.pool, see_listed, &l) == 0, "list");
	for (unsigned i = 0; i < t->w->nr_objects; i++)
		expected += names->object[i].name[0] != 0;
	return l.fits && l.nr == expected;
}

static const struct names *judge_table(struct trial *t)
{
	for (unsigned change = 0; change <= t->e->changing; change++) {
		if (table_fits(t, names_at(t, change)))
			return names_at(t, change);
	}
	rig_fail("the table of volumes is that of no instant");
}

static void judge_volume(struct trial *t, const struct names *names, unsigned object)
{
	const struct ref *ref = &t->w->ref[object];
	const char *name = names->object[object].name;
	struct cpc_page_map actual;
	struct cpc_volume *vol;
	struct ref_match m;

	rig_expect(cpc_pool_open_volume(t->rig.pool, name, &vol) == 0, "open %s", name);
	rig_read_volume(vol, ref, &actual);
	if (!ref_find(ref, &actual, t->e->floor[object], &m)) {
		ref_explain(ref, &actual, m.bad);
		rig_fail("volume %s is at no one instant from operation %llu to %llu: %llu blocks "
			 "differ, as block %llu does, at best",
			 name, (unsigned long long)t->e->floor[object],
			 (unsigned long long)ref->nr_ops, (unsigned long long)m.nr_bad,
			 (unsigned long long)m.bad);
	}
	cpc_page_map_clear(&actual);
	cpc_pool_close_volume(t->rig.pool, vol);
}

/* Writes, flushes, deletes everything, and wants all space back. */
static void use_and_empty(struct trial *t, const struct names *names)
{
	struct cpc_check_result result;
	struct cpc_error err = {""};
	struct cpc_pool_info info;
	struct cpc_volume *vol;
	uint8_t data[5000];

	rnd_fill(1, data, sizeof(data));
	for (unsigned i = 0; i < t->w->nr_objects; i++) {
		const char *name = names->object[i].name;

		if (!*name)
			continue;
		rig_expect(cpc_pool_open_volume(t->rig.pool, name, &vol) == 0, "open");
		rig_expect(cpc_volume_write(vol, data,
					    cpc_min_u64(sizeof(data), cpc_volume_size(vol)), 0,
					    CPC_FUA) == 0,
			   "write and flush after recovery");
		cpc_pool_close_volume(t->rig.pool, vol);
		rig_expect(cpc_pool_delete(t->rig.pool, name, &err) == 0, "delete: %s", err.text);
	}
	for (unsigned i = 0; i < 4; i++)
		rig_expect(cpc_pool_commit(t->rig.pool) == 0, "commit");
	cpc_pool_info(t->rig.pool, &info);
	rig_expect(info.pinned == 0 && info.reserved == 0, "emptied: pinned or reserved");
	rig_expect(rig_close(&t->rig) == 0, "shutdown");
	rig_check(&t->rig, false, &result);
	rig_expect(result.volumes == 0 && result.data_blocks == 0 && result.nodes < 8,
		   "emptied: %llu blocks of data, %llu nodes",
		   (unsigned long long)result.data_blocks, (unsigned long long)result.nodes);
	t->x->used++;
}

static void note_inner(void *ctx, char what)
{
	struct trial *t = ctx;

	if (t->nr_inner < CPC_ARRAY_SIZE(t->inner))
		t->inner[t->nr_inner++] = cpc_powercut_save(t->rig.pc);
}

static void open_recording(struct trial *t)
{
	struct cpc_error err = {""};
	int ret;

	t->tap = (struct tap){.before = note_inner, .ctx = t};
	ret = rig_try_open(&t->rig, &err);
	t->tap.before = NULL;
	rig_expect(ret == 0, "the pool does not open: %s (%d)", err.text, ret);
}

static void judge(struct trial *t)
{
	const struct names *names;

	rig_check(&t->rig, true, NULL);
	open_recording(t);
	names = judge_table(t);
	for (unsigned i = 0; i < t->w->nr_objects; i++) {
		if (names->object[i].name[0])
			judge_volume(t, names, i);
	}
	if (rnd_below(&(struct rnd){rnd_of_path(t).state}, 16) == 0)
		use_and_empty(t, names);
	else
		rig_abandon(&t->rig);
}

/* --- one state --- */

static bool is_torn(const struct cpc_crash_choice *choice)
{
	for (size_t i = 0; i < choice->nr; i++) {
		if (choice->writes[i].fate > CPC_FATE_KEPT)
			return true;
	}
	return false;
}

static void make_choice(struct trial *t, char kind, uint64_t number,
			struct cpc_crash_choice *choice)
{
	if (kind == 's')
		cpc_crash_state(t->rig.pc, number % cpc_crash_nr_states(t->rig.pc), choice);
	else
		cpc_crash_choice_random(t->rig.pc, number, choice);
}

static void explore_inner(struct trial *t);

static void forget_inner(struct trial *t)
{
	for (size_t i = 0; i < t->nr_inner; i++)
		cpc_powercut_saved_free(t->inner[i]);
	t->nr_inner = 0;
}

/* Return: false when the state has been tried before. */
static bool try_state(struct trial *t, const struct cpc_powercut_saved *saved, char kind,
		      uint64_t number)
{
	struct cpc_crash_choice choice;
	struct ranges ranges;
	uint64_t key;

	set_rerun(t->x, t->w, t->path);
	cpc_powercut_restore(t->rig.pc, saved);
	if (!t->base)
		t->base = base_fingerprint(t);
	ranges = pending_ranges(t);
	make_choice(t, kind, number, &choice);
	cpc_powercut_crash(t->rig.pc, &choice);
	t->x->states++;
	key = fingerprint(t, t->base, &ranges);
	if (!seen_add(&t->x->seen, key) && !t->follow) {
		cpc_crash_choice_free(&choice);
		return false;
	}
	t->x->distinct++;
	t->x->by_depth[t->depth]++;
	t->x->torn += is_torn(&choice);
	cpc_crash_choice_free(&choice);
	rig_seed_engine(number);
	judge(t);
	explore_inner(t);
	forget_inner(t);
	return true;
}

/* A state inside the opening of the state in `outer`. */
static void try_inner(struct trial *outer, size_t event, char kind, uint64_t number,
		      const char *follow)
{
	struct trial *t = calloc(1, sizeof(*t));

	cpc_assert(t);
	t->x = outer->x;
	t->w = outer->w;
	t->e = outer->e;
	t->rig = outer->rig;
	t->rig.wrap_ctx = &t->tap;
	t->depth = outer->depth + 1;
	t->follow = follow;
	snprintf(t->path, sizeof(t->path), "%.90s/E%zu%c%llu", outer->path, event, kind,
		 (unsigned long long)number);
	try_state(t, outer->inner[event], kind, number);
	outer->rig = t->rig;
	outer->rig.wrap_ctx = &outer->tap;
	free(t);
}

/* Reads "E12s5" and moves behind it. */
static bool parse_step(const char **path, uint64_t *event, char *kind, uint64_t *number)
{
	char *end;

	if (**path != 'E')
		return false;
	*event = strtoull(*path + 1, &end, 10);
	*kind = *end;
	if (*kind != 's' && *kind != 'r')
		return false;
	*number = strtoull(end + 1, &end, 10);
	*path = *end == '/' ? end + 1 : end;
	return *end == '\0' || *end == '/';
}

static void explore_inner(struct trial *t)
{
	struct rnd *rnd = &t->x->rnd;
	uint64_t event, number;
	char kind;

	if (t->follow) {
		if (parse_step(&t->follow, &event, &kind, &number) && event < t->nr_inner)
			try_inner(t, event, kind, number, t->follow);
		return;
	}
	if (t->depth == MAX_DEPTH || !t->nr_inner || rnd_below(rnd, 8))
		return;
	for (unsigned i = 0; i < 3; i++)
		try_inner(t, rnd_below(rnd, t->nr_inner), rnd_percent(rnd, 50) ? 's' : 'r',
			  rnd_below(rnd, 100000), NULL);
}

/* --- a workload --- */

static struct trial *trial_new(struct explorer *x, struct workload *w)
{
	struct trial *t = calloc(1, sizeof(*t));

	cpc_assert(t);
	t->x = x;
	t->w = w;
	t->depth = 1;
	t->rig = (struct rig){
	    .size = w->rig.size,
	    .nodesize = w->rig.nodesize,
	    .single = w->rig.single,
	    .fill = w->rig.fill,
	    .opts = w->rig.opts,
	    .watch = true,
	    .wrap = tap_wrap,
	    .wrap_ctx = &t->tap,
	};
	rig_create_device(&t->rig);
	return t;
}

static void trial_free(struct trial *t)
{
	rig_destroy(&t->rig);
	free(t);
}

/* Takes the references back to what had been issued at the event. */
static void go_back_to(struct trial *t, const struct event *e)
{
	t->e = e;
	t->base = 0;
	for (unsigned i = 0; i < t->w->nr_objects; i++) {
		while (t->w->ref[i].nr_ops > e->issued[i])
			ref_undo(&t->w->ref[i]);
	}
}

static void explore_numbered(struct trial *t, size_t event, char kind, uint64_t state)
{
	snprintf(t->path, sizeof(t->path), "E%zu%c%llu", event, kind, (unsigned long long)state);
	try_state(t, t->e->saved, kind, state);
}

/* All of the numbered states in [from, to) where they are at most `max`, else so many of them. */
static void explore_some(struct trial *t, size_t event, uint64_t from, uint64_t to, uint64_t max)
{
	uint64_t nr = to - from;

	for (uint64_t i = 0; i < cpc_min_u64(nr, max); i++)
		explore_numbered(t, event, 's', from + (nr <= max ? i : rnd_below(&t->x->rnd, nr)));
}

/*
 * Before a flush all writes of its epoch are pending: what the others of the epoch have is among
 * its states, but for what was promised then. So most are tried there.
 */
static void explore_event(struct trial *t, size_t event)
{
	const struct explorer *x = t->x;
	uint64_t max, whole, nr;

	go_back_to(t, &t->w->event[event]);
	t->x->events++;
	cpc_powercut_restore(t->rig.pc, t->e->saved);
	whole = cpc_crash_nr_whole(t->rig.pc);
	nr = cpc_crash_nr_states(t->rig.pc);
	max = t->e->what == 'w' ? x->per_instant : x->per_epoch;
	explore_some(t, event, 0, whole, max);
	explore_some(t, event, whole, nr, max / 2);
	for (uint64_t i = 0; nr > max && i < max / 4; i++)
		explore_numbered(t, event, 'r', rnd_below(&t->x->rnd, 1000000));
}

void explore(struct explorer *x, struct workload *w)
{
	struct trial *t = trial_new(x, w);

	/* From the last event to the first: the history is taken back on the way. */
	for (size_t i = w->nr_events; i--;) {
		if (w->event[i].saved)
			explore_event(t, i);
		event_free(&w->event[i]);
	}
	trial_free(t);
}

void explorer_run(struct explorer *x, struct workload *w)
{
	set_rerun(x, w, NULL);
	workload_run(w);
	x->faults += w->nr_faults;
	x->failed += w->nr_failed;
}

void explore_path(struct explorer *x, struct workload *w, const char *path)
{
	struct trial *t = trial_new(x, w);
	uint64_t event, number;
	char kind;

	snprintf(t->path, sizeof(t->path), "%s", path);
	if (!parse_step(&path, &event, &kind, &number) || event >= w->nr_events ||
	    !w->event[event].saved) {
		fprintf(stderr, "powercut: no such state: %s\n", t->path);
		exit(2);
	}
	t->follow = path;
	go_back_to(t, &w->event[event]);
	try_state(t, w->event[event].saved, kind, number);
	trial_free(t);
}

void explorer_free(struct explorer *x)
{
	free(x->seen.slot);
}
