/* SPDX-License-Identifier: BSD-3-Clause */
#include "workload.h"

#include <stdio.h>
#include <stdlib.h>

#define KIB	  1024ull
#define MIB	  (1024 * KIB)
#define BUF_BYTES (600 * KIB)

/* --- events --- */

void event_free(struct event *e)
{
	if (e->saved)
		cpc_powercut_saved_free(e->saved);
	e->saved = NULL;
}

static bool wanted(struct workload *w)
{
	if (w->only_event != UINT64_MAX)
		return w->nr_events == w->only_event;
	return w->save_one_in == 1 ||
	       rnd_below(&(struct rnd){w->seed ^ (w->nr_events << 20)}, w->save_one_in) == 0;
}

static void note_event(void *ctx, char what)
{
	struct workload *w = ctx;
	struct event *e;

	if (w->nr_events == w->cap_events) {
		w->cap_events = w->cap_events ? 2 * w->cap_events : 256;
		w->event = realloc(w->event, w->cap_events * sizeof(*w->event));
		cpc_assert(w->event);
	}
	e = &w->event[w->nr_events];
	*e = (struct event){.what = what, .names = w->nr_names - 1, .changing = w->changing};
	memcpy(e->floor, w->floor, sizeof(e->floor));
	for (unsigned i = 0; i < w->nr_objects; i++)
		e->issued[i] = w->ref[i].nr_ops;
	if (wanted(w))
		e->saved = cpc_powercut_save(w->rig.pc);
	w->nr_events++;
}

/* An operation was refused: what was saved in it promises what is not meant. */
static void drop_events(struct workload *w, size_t from)
{
	for (size_t i = from; i < w->nr_events; i++)
		event_free(&w->event[i]);
}

/* --- the table of volumes --- */

static struct names *last_names(struct workload *w)
{
	return &w->names[w->nr_names - 1];
}

static struct names *next_names(struct workload *w)
{
	if (w->nr_names + 1 >= w->cap_names) {
		w->cap_names = 2 * w->cap_names + 8;
		w->names = realloc(w->names, w->cap_names * sizeof(*w->names));
		cpc_assert(w->names);
	}
	w->names[w->nr_names] = *last_names(w);
	return &w->names[w->nr_names];
}

static bool exists(struct workload *w, unsigned object)
{
	return object < w->nr_objects && last_names(w)->object[object].name[0];
}

static unsigned nr_existing(struct workload *w)
{
	unsigned nr = 0;

	for (unsigned i = 0; i < w->nr_objects; i++)
		nr += exists(w, i);
	return nr;
}

static unsigned pick_object(struct workload *w)
{
	unsigned i;

	do {
		i = (unsigned)rnd_below(&w->rnd, w->nr_objects);
	} while (!exists(w, i));
	return i;
}

static void all_durable(struct workload *w)
{
	for (unsigned i = 0; i < w->nr_objects; i++)
		w->floor[i] = w->ref[i].nr_ops;
}

/* The change of names[nr_names] has been answered: it is durable; it says nothing of data. */
static void names_answered(struct workload *w, int ret, const struct cpc_error *err,
			   const char *what)
{
	rig_expect(ret == 0, "%s: %s", what, err->text);
	w->nr_names++;
	w->changing = false;
}

static void open_handle(struct workload *w, unsigned object)
{
	int ret = cpc_pool_open_volume(w->rig.pool, last_names(w)->object[object].name,
				       &w->handle[object]);

	rig_expect(ret == 0, "open %s: %d", last_names(w)->object[object].name, ret);
}

static void close_handle(struct workload *w, unsigned object)
{
	cpc_pool_close_volume(w->rig.pool, w->handle[object]);
	w->handle[object] = NULL;
}

static void fresh_name(struct workload *w, char name[16])
{
	snprintf(name, 16, "v%llu", (unsigned long long)++w->clock);
}

static uint64_t pick_size(struct workload *w)
{
	uint64_t size = w->sequence.nr ? 400 * KIB + rnd_below(&w->rnd, 100 * KIB)
				       : 1 + rnd_below(&w->rnd, 900 * KIB);

	return rnd_percent(&w->rnd, 50) ? cpc_align_up(size, 4096) : size;
}

static void op_create(struct workload *w)
{
	unsigned object = w->nr_objects;
	struct cpc_error err = {""};
	struct names *names;
	int ret;

	if (object == MAX_OBJECTS || nr_existing(w) == MAX_VOLUMES)
		return;
	names = next_names(w);
	fresh_name(w, names->object[object].name);
	names->object[object].size = pick_size(w);
	ref_init(&w->ref[object], names->object[object].size);
	w->nr_objects++;
	w->changing = true;
	ret = cpc_pool_create_volume(w->rig.pool, names->object[object].name,
				     names->object[object].size, &err);
	names_answered(w, ret, &err, "create");
	open_handle(w, object);
}

static void op_delete(struct workload *w)
{
	unsigned object = pick_object(w);
	struct cpc_error err = {""};
	int ret;

	if (nr_existing(w) < 2)
		return;
	next_names(w)->object[object].name[0] = '\0';
	close_handle(w, object);
	w->changing = true;
	ret = cpc_pool_delete(w->rig.pool, last_names(w)->object[object].name, &err);
	names_answered(w, ret, &err, "delete");
}

static void op_rename(struct workload *w)
{
	unsigned object = pick_object(w);
	struct cpc_error err = {""};
	struct names *names = next_names(w);
	int ret;

	fresh_name(w, names->object[object].name);
	w->changing = true;
	ret = cpc_pool_rename(w->rig.pool, last_names(w)->object[object].name,
			      names->object[object].name, &err);
	names_answered(w, ret, &err, "rename");
}

/* The tail that a shrink cuts off is an operation of the volume like any other. */
static void resize(struct workload *w, unsigned object, uint64_t size)
{
	struct cpc_error err = {""};
	struct names *names = next_names(w);
	uint64_t old = w->ref[object].size;
	int ret;

	if (size == old)
		return;
	names->object[object].size = size;
	close_handle(w, object);
	if (size < old)
		ref_zero(&w->ref[object], cpc_align_up(old, 4096) - size, size, ++w->clock);
	w->changing = true;
	ret = cpc_pool_resize(w->rig.pool, last_names(w)->object[object].name, size, true, &err);
	w->ref[object].size = size;
	names_answered(w, ret, &err, "resize");
	/* what was written before a resize comes before it */
	w->floor[object] = w->ref[object].nr_ops;
	open_handle(w, object);
}

static void op_resize(struct workload *w)
{
	unsigned object = pick_object(w);

	resize(w, object, pick_size(w));
}

static void op_grow(struct workload *w)
{
	unsigned object = pick_object(w);

	resize(w, object, w->ref[object].size + 1 + rnd_below(&w->rnd, 100 * KIB));
}

static void op_shrink(struct workload *w)
{
	unsigned object = pick_object(w);

	resize(w, object, 1 + rnd_below(&w->rnd, w->ref[object].size));
}

/* --- data --- */

static void pick_range(struct workload *w, unsigned object, uint64_t *offset, uint64_t *len)
{
	static const uint64_t limits[] = {4096, 20000, 100000, BUF_BYTES};
	static const uint64_t aligns[] = {4096, 512, 1};
	uint64_t size = w->ref[object].size, align = aligns[rnd_below(&w->rnd, 3)];

	*offset = rnd_below(&w->rnd, size);
	*len = 1 + rnd_below(&w->rnd, limits[rnd_below(&w->rnd, CPC_ARRAY_SIZE(limits))]);
	if (w->shape.len) { /* close together, so that each meets what the one before has made */
		align = w->shape.align;
		*offset %= 32 * KIB;
		*len = w->shape.len;
	}
	if (align < size) {
		*offset = cpc_align_down(*offset, align);
		*len = cpc_align_up(*len, align);
	}
	*len = cpc_min_u64(*len, cpc_min_u64(size - *offset, BUF_BYTES));
}

/* A change that failed has happened, or not, or in pieces: each byte is old or new. */
static void adopt(struct workload *w, unsigned object, const uint8_t *new, uint64_t len,
		  uint64_t offset)
{
	struct ref *ref = &w->ref[object];
	uint8_t *now = malloc(len), *old = malloc(len);

	ref_undo(ref);
	ref_read(ref, old, len, offset);
	if (cpc_volume_read(w->handle[object], now, len, offset)) {
		w->ended = true; /* what the device has dropped can be read after the next flush */
	} else {
		for (uint64_t i = 0; i < len; i++)
			rig_expect(now[i] == old[i] || now[i] == (new ? new[i] : 0),
				   "byte %llu is neither old nor new after an error",
				   (unsigned long long)(offset + i));
		ref_write(ref, now, len, offset, ++w->clock);
	}
	free(now);
	free(old);
}

struct change {
	unsigned object, flags;
	uint64_t offset, len;
	const uint8_t *data; /* NULL: zeroes */
	size_t from;	     /* events before the call */
};

/* An operation that found no room has not happened. */
static void answered(struct workload *w, const struct change *c, int ret)
{
	struct ref *ref = &w->ref[c->object];

	if (ret)
		drop_events(w, c->from);
	if (ret == -ENOSPC) {
		ref_undo(ref);
	} else if ((ret == -EIO || ret == -EUCLEAN) && w->faulty) {
		/* damaged: a flush that failed has dropped what is there */
		w->nr_failed++;
		adopt(w, c->object, c->data, c->len, c->offset);
	} else {
		rig_expect(ret == 0, "operation on %s: %s", last_names(w)->object[c->object].name,
			   strerror(-ret));
		if (c->flags & CPC_FUA)
			w->floor[c->object] = ref->nr_ops;
	}
}

static unsigned pick_flags(struct workload *w)
{
	if (w->shape.len)
		return w->shape.flags;
	return rnd_percent(&w->rnd, 5) ? CPC_FUA : 0;
}

static void pick_change(struct workload *w, struct change *c)
{
	*c =
	    (struct change){.object = pick_object(w), .flags = pick_flags(w), .from = w->nr_events};
	pick_range(w, c->object, &c->offset, &c->len);
	w->clock++;
}

static void op_write(struct workload *w)
{
	struct change c;

	pick_change(w, &c);
	rnd_fill(w->clock, w->buf, c.len);
	c.data = w->buf;
	ref_write(&w->ref[c.object], w->buf, c.len, c.offset, w->clock);
	answered(w, &c, cpc_volume_write(w->handle[c.object], w->buf, c.len, c.offset, c.flags));
}

static void op_trim(struct workload *w)
{
	struct change c;

	pick_change(w, &c);
	ref_trim(&w->ref[c.object], c.len, c.offset, w->clock);
	answered(w, &c, cpc_volume_trim(w->handle[c.object], c.len, c.offset, c.flags));
}

static void op_zero(struct workload *w)
{
	struct change c;

	pick_change(w, &c);
	c.flags |= !w->shape.len && rnd_percent(&w->rnd, 40) ? CPC_NO_HOLE : 0;
	ref_zero(&w->ref[c.object], c.len, c.offset, w->clock);
	answered(w, &c, cpc_volume_zero(w->handle[c.object], c.len, c.offset, c.flags));
}

/* A flush that fails makes nothing durable, and the next one that succeeds makes up for it. */
static bool flushed(struct workload *w, int ret, const char *what)
{
	w->nr_failed += ret != 0;
	rig_expect(ret == 0 || (ret == -EIO && w->faulty), "%s: %s", what, strerror(-ret));
	return ret == 0;
}

static void op_flush(struct workload *w)
{
	unsigned object = pick_object(w);
	size_t issued = w->ref[object].nr_ops;

	if (flushed(w, cpc_volume_flush(w->handle[object]), "flush"))
		w->floor[object] = issued;
}

static void op_commit(struct workload *w)
{
	if (flushed(w, cpc_pool_commit(w->rig.pool), "commit"))
		all_durable(w);
}

/* --- device errors --- */

static void arm_fault(struct workload *w)
{
	static const enum cpc_powercut_action flush[] = {CPC_FAULT_FAIL, CPC_FAULT_FAIL_LANDED,
							 CPC_FAULT_DROP, CPC_FAULT_DROP_CACHED};
	static const enum cpc_powercut_action write[] = {CPC_FAULT_FAIL, CPC_FAULT_FAIL_LANDED,
							 CPC_FAULT_FAIL_TORN};
	struct cpc_powercut_fault f = {.error = -EIO, .nth = 1 + rnd_below(&w->rnd, 6)};

	if (rnd_percent(&w->rnd, 50)) {
		f.op = CPC_POWERCUT_FLUSH;
		f.nth = 1 + f.nth % 2;
		f.action = flush[rnd_below(&w->rnd, CPC_ARRAY_SIZE(flush))];
	} else {
		f.op = CPC_POWERCUT_WRITE;
		f.action = write[rnd_below(&w->rnd, CPC_ARRAY_SIZE(write))];
		f.cause_mask = 1u << rnd_below(&w->rnd, CPC_NR_CAUSES);
	}
	cpc_powercut_add_fault(w->rig.pc, &f);
	w->armed = FAULT_OPS;
	w->nr_faults++;
}

static void inject(struct workload *w)
{
	if (w->armed && --w->armed == 0)
		cpc_powercut_clear_faults(w->rig.pc);
	if (!w->armed && rnd_percent(&w->rnd, 35))
		arm_fault(w);
}

/* --- sequences --- */

static const struct {
	const char *name;
	void (*run)(struct workload *w);
	struct shape shape;
} sequence_ops[] = {
    {"write-part", op_write, {700, 1, 0}},
    {"write-block", op_write, {4096, 4096, 0}},
    {"write-many", op_write, {50000, 512, 0}},
    {"write-large", op_write, {300 * KIB, 4096, 0}}, /* goes to its place at once */
    {"write-fua", op_write, {5000, 1, CPC_FUA}},
    {"trim", op_trim, {40000, 1, 0}},
    {"zero", op_zero, {20000, 1, 0}},
    {"zero-no-hole", op_zero, {20000, 1, CPC_NO_HOLE}},
    {"flush", op_flush, {0}},
    {"commit", op_commit, {0}},
    {"create", op_create, {0}},
    {"delete", op_delete, {0}},
    {"rename", op_rename, {0}},
    {"grow", op_grow, {0}},
    {"shrink", op_shrink, {0}},
};

const unsigned nr_sequence_ops = CPC_ARRAY_SIZE(sequence_ops);

struct sequence sequence_numbered(unsigned nr, uint64_t i)
{
	struct sequence s = {.nr = nr};

	for (unsigned n = 0; n < nr; n++) {
		s.op[n] = (unsigned)(i % nr_sequence_ops);
		i /= nr_sequence_ops;
	}
	return s;
}

bool sequence_parse(const char *text, struct sequence *s)
{
	for (s->nr = 0; *text && s->nr < MAX_SEQUENCE; s->nr++) {
		size_t len = strcspn(text, ",");
		unsigned op = 0;

		while (op < nr_sequence_ops && (strlen(sequence_ops[op].name) != len ||
						strncmp(sequence_ops[op].name, text, len)))
			op++;
		if (op == nr_sequence_ops)
			return false;
		s->op[s->nr] = op;
		text += len + (text[len] == ',');
	}
	return s->nr && !*text;
}

void sequence_print(const struct sequence *s, char *text, size_t len)
{
	*text = '\0';
	for (unsigned n = 0; n < s->nr; n++) {
		size_t used = strlen(text);

		snprintf(text + used, len - used, "%s%s", n ? "," : "",
			 sequence_ops[s->op[n]].name);
	}
}

/* What the sequence finds: two volumes with data of which some has been committed. */
static void prepare(struct workload *w)
{
	op_create(w);
	op_create(w);
	for (unsigned i = 0; i < 2; i++) {
		w->shape = (struct shape){60000, 4096, 0};
		op_write(w);
		op_write(w);
		op_commit(w);
	}
}

static void run_sequence(struct workload *w)
{
	for (unsigned n = 0; n < w->sequence.nr; n++) {
		w->shape = sequence_ops[w->sequence.op[n]].shape;
		sequence_ops[w->sequence.op[n]].run(w);
	}
	/* what a client does that wants it all to last */
	for (unsigned i = 0; i < w->nr_objects; i++) {
		if (exists(w, i) && flushed(w, cpc_volume_flush(w->handle[i]), "flush"))
			w->floor[i] = w->ref[i].nr_ops;
	}
}

/* --- the whole --- */

static const struct {
	void (*run)(struct workload *w);
	unsigned weight; /* of 100 */
} ops[] = {
    {op_write, 55}, {op_trim, 9},   {op_zero, 9},   {op_flush, 17}, {op_commit, 2},
    {op_create, 3}, {op_delete, 1}, {op_rename, 2}, {op_resize, 2},
};

static void step(struct workload *w)
{
	uint64_t p = rnd_below(&w->rnd, 100);
	unsigned i = 0;

	while (p >= ops[i].weight)
		p -= ops[i++].weight;
	if (w->faulty) {
		if (i > 4)
			return;
		inject(w);
	}
	ops[i].run(w);
	w->ended |= !cpc_pool_healthy(w->rig.pool, NULL, 0);
}

static void draw(struct workload *w)
{
	static const uint32_t nodesizes[] = {4096, 4096, 16384, 65536};
	struct rig *rig = &w->rig;

	rig->nodesize = nodesizes[rnd_below(&w->rnd, CPC_ARRAY_SIZE(nodesizes))];
	rig->single = rnd_percent(&w->rnd, 25);
	rig->size = (rig->nodesize == 65536 ? 16 : rig->nodesize == 16384 ? 8 : 4) * MIB;
	rig->fill = rnd_percent(&w->rnd, 50) ? 0xa5 : 0;
	w->faulty = !w->sequence.nr && rnd_percent(&w->rnd, 33);
	rig->watch = true;
	rig->wrap = tap_wrap;
	rig->wrap_ctx = &w->tap;
	cpc_pool_options_init(&rig->opts);
	rig->opts.cache = MIB;
	rig->opts.dirty = rnd_percent(&w->rnd, 50) ? 65536 : 0;
	rig->opts.no_threads = true;
}

/* --- what the device holds before --- */

/* A pool that has lived: its log and trees hold what another life must not believe. */
static void live(struct rig *rig, struct cpc_pool_info *info)
{
	struct cpc_error err = {""};
	struct cpc_volume *vol;
	uint8_t data[20000];

	rig_create(rig);
	rig_seed_engine(rig->size);
	rig_open(rig);
	rig_expect(cpc_pool_create_volume(rig->pool, "v1", 500 * KIB, &err) == 0, "%s", err.text);
	rig_expect(cpc_pool_open_volume(rig->pool, "v1", &vol) == 0, "open");
	for (unsigned i = 0; i < 20; i++) {
		rnd_fill(0xdead + i, data, sizeof(data));
		rig_expect(!cpc_volume_write(vol, data, sizeof(data), i * sizeof(data), CPC_FUA),
			   "write to the older pool");
		if (i % 7 == 6)
			rig_expect(cpc_pool_commit(rig->pool) == 0, "commit");
	}
	cpc_pool_close_volume(rig->pool, vol);
	cpc_pool_info(rig->pool, info);
	rig_kill(rig);
}

/* Blocks that the pool has not written yet hold what they held in the older one. */
static void lay_under(struct rig *rig, struct rig *older)
{
	static const uint8_t zero[CPC_BLOCK_SIZE];
	uint8_t block[CPC_BLOCK_SIZE];

	for (uint64_t at = 0; at < rig->size; at += sizeof(block)) {
		cpc_powercut_peek(rig->pc, at, block, sizeof(block));
		if (memcmp(block, zero, sizeof(block)))
			continue;
		cpc_powercut_peek(older->pc, at, block, sizeof(block));
		cpc_powercut_poke(rig->pc, at, block, sizeof(block));
	}
}

/*
 * Both pools draw the same uuid, and what they draw later differs. Ours gets to a newer transaction
 * before the older one is laid under it: records that name a newer superblock than there is mean
 * that one has been lost, and no pool opens then.
 */
static void make_pool_over_older(struct workload *w)
{
	struct cpc_pool_info info = {.generation = 0}, past;
	struct rig older = {.size = w->rig.size,
			    .nodesize = w->rig.nodesize,
			    .single = w->rig.single,
			    .opts = w->rig.opts};

	live(&older, &past);
	rig_seed_engine(w->seed);
	rig_create(&w->rig);
	while (info.generation <= past.generation) {
		rig_open(&w->rig);
		cpc_pool_info(w->rig.pool, &info);
		rig_expect(rig_close(&w->rig) == 0, "shutdown");
	}
	rig_expect(!memcmp(info.uuid, past.uuid, sizeof(info.uuid)), "two uuids");
	lay_under(&w->rig, &older);
	rig_destroy(&older);
}

static void make_pool(struct workload *w)
{
	if (w->rig.fill)
		rig_create(&w->rig);
	else
		make_pool_over_older(w);
	rig_open(&w->rig);
}

static void begin(struct workload *w)
{
	w->rnd.state = w->seed;
	w->buf = malloc(BUF_BYTES + 8192);
	w->cap_names = 8;
	w->names = calloc(w->cap_names, sizeof(*w->names));
	w->nr_names = 1;
	draw(w);
	make_pool(w);
	if (w->sequence.nr)
		prepare(w);
	w->tap = (struct tap){.before = note_event, .ctx = w};
	if (w->sequence.nr)
		return;
	op_create(w);
	if (w->faulty)
		op_create(w);
}

/* In order, or as it is where the pool does not go on. */
static void end(struct workload *w)
{
	cpc_powercut_clear_faults(w->rig.pc);
	for (unsigned i = 0; i < w->nr_objects; i++) {
		if (exists(w, i))
			close_handle(w, i);
	}
	if (w->ended) {
		rig_kill(&w->rig);
	} else if (rig_close(&w->rig) == 0) {
		all_durable(w);
	} else {
		rig_expect(w->faulty, "shutdown");
	}
	note_event(w, 'e');
	w->tap.before = NULL;
	rig_check(&w->rig, w->faulty, NULL);
}

void workload_run(struct workload *w)
{
	rig_init(w->seed);
	begin(w);
	if (w->sequence.nr)
		run_sequence(w);
	for (unsigned i = 0; !w->sequence.nr && i < w->nr_ops && !w->ended; i++)
		step(w);
	end(w);
}

void workload_free(struct workload *w)
{
	for (size_t i = 0; i < w->nr_events; i++)
		event_free(&w->event[i]);
	rig_destroy(&w->rig);
	for (unsigned i = 0; i < w->nr_objects; i++)
		ref_destroy(&w->ref[i]);
	free(w->event);
	free(w->names);
	free(w->buf);
}
