/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * threads: many threads on the volumes of one pool, over several lives that end in order, by a
 * kill or by a power cut in the middle of everything.
 *
 * Each thread has a slice of each volume to itself, with a reference; slices begin and end at odd
 * bytes, so that neighbours share blocks. In front of them is a region that all threads write, in
 * whole blocks that say who wrote them: each block must always be of one piece.
 *
 * After a kill or a cut every slice must be at one instant (reference.h), and all slices of a
 * volume together too: an operation that is there was not issued after one that is lost had been
 * answered, and nothing is lost that was answered before a flush, by whichever thread, that
 * succeeded.
 */
#include "model.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/hooks.h"

#define MIB	      (1ull << 20)
#define NR_VOLUMES    2u
#define SHARED_BLOCKS 64u
#define SHARED_BYTES  (SHARED_BLOCKS * CPC_BLOCK_SIZE)
#define SLICE_BYTES   (700001u)
#define MAX_LEN	      (300000u)
#define BLOCK_MAGIC   0x6b636f6c42637063u

enum ending { END_CLOSE, END_KILL, END_CUT };

struct shared_block {
	uint64_t magic, volume, block, stamp;
};

struct worker {
	struct team *team;
	unsigned index;
	struct rnd rnd;
	pthread_t thread;
	uint64_t ops;
	struct ref slice[NR_VOLUMES];
	uint8_t *buf;
};

struct team {
	struct rig *rig;
	unsigned nr;
	struct worker worker[MODEL_MAX_THREADS];
	struct cpc_volume *volume[NR_VOLUMES];
	_Atomic uint64_t clock;
	_Atomic uint64_t flushed[NR_VOLUMES]; /* when the last good flush was issued */
	_Atomic bool ended;		      /* the life has: errors are expected */
	uint64_t ops_each;
};

static uint64_t slice_start(unsigned index)
{
	return SHARED_BYTES + index * (uint64_t)SLICE_BYTES;
}

static uint64_t tick(struct team *t)
{
	return atomic_fetch_add(&t->clock, 1) + 1;
}

/* Return: true when the thread shall go on. */
static bool judge(struct worker *w, const char *what, unsigned v, int ret)
{
	if (ret == 0)
		return true;
	rig_expect(atomic_load(&w->team->ended) && (ret == -EIO || ret == -ENOSPC),
		   "thread %u, volume %u: %s: %s", w->index, v, what, strerror(-ret));
	return false;
}

static void pick(struct worker *w, uint64_t *offset, uint64_t *len)
{
	uint64_t at = rnd_below(&w->rnd, SLICE_BYTES), max = SLICE_BYTES - at;

	if (rnd_percent(&w->rnd, 15))
		at = 0;
	*len = 1 + rnd_below(&w->rnd, cpc_min_u64(max, rnd_percent(&w->rnd, 90) ? 20000 : MAX_LEN));
	if (rnd_percent(&w->rnd, 15))
		at = SLICE_BYTES - *len;
	*offset = slice_start(w->index) + at;
}

/* --- the thread's own slices --- */

static void note_flush(struct team *t, unsigned v, uint64_t issued)
{
	uint64_t seen = atomic_load(&t->flushed[v]);

	while (seen < issued && !atomic_compare_exchange_weak(&t->flushed[v], &seen, issued))
		;
}

/* The change stands in the reference already, so that it counts as issued if we never return. */
static bool answered(struct worker *w, unsigned v, const char *what, int ret, bool fua)
{
	struct ref *ref = &w->slice[v];

	if (!judge(w, what, v, ret))
		return false;
	ref_answered(ref, tick(w->team));
	if (fua)
		ref_durable(ref);
	return true;
}

static bool do_write(struct worker *w, unsigned v)
{
	unsigned flags = rnd_percent(&w->rnd, 4) ? CPC_FUA : 0;
	uint64_t offset, len, issued = tick(w->team);

	pick(w, &offset, &len);
	rnd_fill(issued, w->buf, len);
	ref_write(&w->slice[v], w->buf, len, offset, issued);
	return answered(w, v, "write",
			cpc_volume_write(w->team->volume[v], w->buf, len, offset, flags), flags);
}

static bool do_trim(struct worker *w, unsigned v)
{
	uint64_t offset, len, issued = tick(w->team);

	pick(w, &offset, &len);
	ref_trim(&w->slice[v], len, offset, issued);
	return answered(w, v, "trim", cpc_volume_trim(w->team->volume[v], len, offset, 0), false);
}

static bool do_zero(struct worker *w, unsigned v)
{
	unsigned flags = rnd_percent(&w->rnd, 40) ? CPC_NO_HOLE : 0;
	uint64_t offset, len, issued = tick(w->team);

	pick(w, &offset, &len);
	ref_zero(&w->slice[v], len, offset, issued);
	return answered(w, v, "zero", cpc_volume_zero(w->team->volume[v], len, offset, flags),
			false);
}

static bool do_read(struct worker *w, unsigned v)
{
	uint64_t offset, len, bad;

	pick(w, &offset, &len);
	if (!judge(w, "read", v, cpc_volume_read(w->team->volume[v], w->buf, len, offset)))
		return false;
	if (!ref_equals(&w->slice[v], w->buf, len, offset, &bad))
		rig_fail("thread %u, volume %u: byte %llu of a read of %llu+%llu is wrong: %u",
			 w->index, v, (unsigned long long)bad, (unsigned long long)offset,
			 (unsigned long long)len, w->buf[bad - offset]);
	return true;
}

static bool do_flush(struct worker *w, unsigned v)
{
	uint64_t issued = tick(w->team);

	if (!judge(w, "flush", v, cpc_volume_flush(w->team->volume[v])))
		return false;
	note_flush(w->team, v, issued);
	ref_durable(&w->slice[v]);
	return true;
}

struct extents {
	const struct ref *ref;
	uint64_t at;
	bool wrong;
};

static int see_extent(void *ctx, uint64_t offset, uint64_t len, bool hole)
{
	struct extents *e = ctx;

	e->wrong |= offset != e->at || !len || (hole && !ref_is_zero(e->ref, len, offset));
	e->at = offset + len;
	return 0;
}

static bool do_extents(struct worker *w, unsigned v)
{
	struct extents e = {.ref = &w->slice[v]};
	uint64_t offset, len;

	pick(w, &offset, &len);
	e.at = offset;
	if (!judge(w, "extents", v,
		   cpc_volume_extents(w->team->volume[v], offset, len, see_extent, &e)))
		return false;
	rig_expect(!e.wrong, "thread %u, volume %u: extents of %llu+%llu are wrong", w->index, v,
		   (unsigned long long)offset, (unsigned long long)len);
	return true;
}

/* --- the region that all share --- */

static void stamp_block(uint8_t *data, unsigned v, uint64_t block, uint64_t stamp)
{
	struct shared_block *all = (void *)data;

	for (unsigned i = 0; i < CPC_BLOCK_SIZE / sizeof(*all); i++)
		all[i] = (struct shared_block){BLOCK_MAGIC, v, block, stamp};
}

static void check_block(const uint8_t *data, unsigned v, uint64_t block)
{
	const struct shared_block *all = (const void *)data;

	for (unsigned i = 1; i < CPC_BLOCK_SIZE / sizeof(*all); i++)
		rig_expect(memcmp(&all[0], &all[i], sizeof(*all)) == 0,
			   "volume %u: shared block %llu is of two pieces", v,
			   (unsigned long long)block);
	if (all[0].magic == 0 && all[0].stamp == 0)
		return;
	rig_expect(all[0].magic == BLOCK_MAGIC && all[0].volume == v && all[0].block == block,
		   "volume %u: shared block %llu has the content of volume %llu block %llu", v,
		   (unsigned long long)block, (unsigned long long)all[0].volume,
		   (unsigned long long)all[0].block);
}

static bool do_shared(struct worker *w, unsigned v)
{
	struct cpc_volume *vol = w->team->volume[v];
	uint64_t block = rnd_below(&w->rnd, SHARED_BLOCKS);
	uint64_t nr = 1 + rnd_below(&w->rnd, SHARED_BLOCKS - block);
	uint64_t offset = block * CPC_BLOCK_SIZE, len = nr * CPC_BLOCK_SIZE;
	unsigned what = (unsigned)rnd_below(&w->rnd, 10);
	int ret;

	if (what == 0)
		return judge(w, "trim", v, cpc_volume_trim(vol, len, offset, 0));
	if (what < 5) {
		for (uint64_t i = 0; i < nr; i++)
			stamp_block(w->buf + i * CPC_BLOCK_SIZE, v, block + i, tick(w->team));
		return judge(w, "write", v, cpc_volume_write(vol, w->buf, len, offset, 0));
	}
	ret = cpc_volume_read(vol, w->buf, len, offset);
	if (!judge(w, "read", v, ret))
		return false;
	for (uint64_t i = 0; i < nr; i++)
		check_block(w->buf + i * CPC_BLOCK_SIZE, v, block + i);
	return true;
}

static bool work_once(struct worker *w)
{
	unsigned v = (unsigned)rnd_below(&w->rnd, NR_VOLUMES);
	uint64_t p = rnd_below(&w->rnd, 100);

	if (p < 35)
		return do_write(w, v);
	if (p < 55)
		return do_read(w, v);
	if (p < 60)
		return do_trim(w, v);
	if (p < 66)
		return do_zero(w, v);
	if (p < 70)
		return do_flush(w, v);
	if (p < 75)
		return do_extents(w, v);
	return do_shared(w, v);
}

static void *work(void *arg)
{
	struct worker *w = arg;

	for (uint64_t i = 0; i < w->team->ops_each; i++) {
		if (!work_once(w))
			break;
		w->ops++;
	}
	return NULL;
}

/* --- lives --- */

static void run_life(struct team *t, enum ending ending, struct rnd *rnd)
{
	atomic_store(&t->ended, false);
	for (unsigned i = 0; i < t->nr; i++)
		rig_expect(pthread_create(&t->worker[i].thread, NULL, work, &t->worker[i]) == 0,
			   "no thread");
	if (ending != END_CLOSE) {
		usleep((useconds_t)(1000 + rnd_below(rnd, 60000)));
		atomic_store(&t->ended, true);
	}
	if (ending == END_KILL)
		cpc_powercut_kill(t->rig->pc);
	if (ending == END_CUT)
		cpc_powercut_crash_random(t->rig->pc, rnd_u64(rnd));
	for (unsigned i = 0; i < t->nr; i++)
		pthread_join(t->worker[i].thread, NULL);
}

static void end_life(struct team *t, enum ending ending)
{
	for (unsigned v = 0; v < NR_VOLUMES; v++)
		cpc_pool_close_volume(t->rig->pool, t->volume[v]);
	if (ending == END_CLOSE)
		rig_expect(rig_close(t->rig) == 0, "shutdown");
	else
		rig_abandon(t->rig);
	rig_check(t->rig, ending != END_CLOSE, NULL);
}

static void open_volumes(struct team *t)
{
	for (unsigned v = 0; v < NR_VOLUMES; v++) {
		char name[8] = {(char)('a' + v), 0};

		rig_expect(cpc_pool_open_volume(t->rig->pool, name, &t->volume[v]) == 0, "open %s",
			   name);
	}
}

/* What of the volume is the thread's slice; bytes of others in the same blocks become zero. */
static void read_slice(struct team *t, unsigned v, struct worker *w, struct cpc_page_map *map)
{
	uint64_t start = slice_start(w->index), end = start + SLICE_BYTES;
	uint64_t from = cpc_align_down(start, CPC_BLOCK_SIZE);
	uint64_t to = cpc_align_up(end, CPC_BLOCK_SIZE);

	memset(map, 0, sizeof(*map));
	rig_expect(cpc_volume_read(t->volume[v], w->buf, to - from, from) == 0, "read");
	memset(w->buf, 0, start - from);
	memset(w->buf + (end - from), 0, to - end);
	for (uint64_t at = from; at < to; at += CPC_BLOCK_SIZE) {
		struct cpc_page *page = cpc_page_new(w->buf + (at - from));

		cpc_page_map_set(map, at >> CPC_BLOCK_SHIFT, page);
		cpc_page_put(page);
	}
}

static void match_slice(struct team *t, unsigned v, struct worker *w, enum ending ending,
			struct ref_match *m)
{
	static const char *const words[] = {"closed", "killed", "power cut"};
	struct cpc_page_map actual;
	struct ref copy;

	read_slice(t, v, w, &actual);
	if (ending == END_CLOSE)
		ref_durable(&w->slice[v]);
	ref_copy(&copy, &w->slice[v]);
	if (!ref_match(&w->slice[v], &actual, m)) {
		ref_explain(&copy, &actual, m->bad);
		rig_fail(
		    "%s: volume %u, slice of thread %u: at no one instant: %llu blocks differ, "
		    "as block %llu does, at best",
		    words[ending], v, w->index, (unsigned long long)m->nr_bad,
		    (unsigned long long)m->bad);
	}
	ref_destroy(&copy);
	cpc_page_map_clear(&actual);
}

static void check_volume(struct team *t, unsigned v, enum ending ending)
{
	uint64_t lost = UINT64_MAX, kept = 0, flushed = atomic_load(&t->flushed[v]);
	unsigned lost_by = 0, kept_by = 0;

	for (unsigned i = 0; i < t->nr; i++) {
		struct ref_match m;

		match_slice(t, v, &t->worker[i], ending, &m);
		if (m.lost && m.lost_answered < lost) {
			lost = m.lost_answered;
			lost_by = i;
		}
		if (m.kept_issued > kept) {
			kept = m.kept_issued;
			kept_by = i;
		}
	}
	rig_expect(
	    lost > flushed,
	    "volume %u: an operation of thread %u, answered at %llu, is lost, but a flush of "
	    "%llu was answered",
	    v, lost_by, (unsigned long long)lost, (unsigned long long)flushed);
	rig_expect(lost > kept,
		   "volume %u: an operation of thread %u, answered at %llu, is lost, but one of "
		   "thread %u, issued at %llu, is there",
		   v, lost_by, (unsigned long long)lost, kept_by, (unsigned long long)kept);
	rig_expect(cpc_volume_read(t->volume[v], t->worker[0].buf, SHARED_BYTES, 0) == 0, "read");
	for (unsigned b = 0; b < SHARED_BLOCKS; b++)
		check_block(t->worker[0].buf + b * CPC_BLOCK_SIZE, v, b);
}

/* --- the round --- */

static void draw(struct rig *rig, struct rnd *rnd)
{
	static const uint32_t nodesizes[] = {4096, 16384, 65536};

	rig->size = 48 * MIB;
	rig->nodesize = nodesizes[rnd_below(rnd, CPC_ARRAY_SIZE(nodesizes))];
	rig->single = rnd_percent(rnd, 30);
	rig->watch = rnd_percent(rnd, 50);
	cpc_pool_options_init(&rig->opts);
	rig->opts.cache = (1 + rnd_below(rnd, 8)) * MIB;
	rig->opts.dirty = rnd_percent(rnd, 30) ? 65536 : 0;
	rig->opts.commit_interval = (uint32_t)rnd_below(rnd, 2);
}

static void team_init(struct team *t, uint64_t seed)
{
	uint64_t size = slice_start(t->nr) + 12345;

	for (unsigned i = 0; i < t->nr; i++) {
		struct worker *w = &t->worker[i];

		w->team = t;
		w->index = i;
		w->rnd.state = seed * 31 + i;
		w->buf = malloc(MIB);
		for (unsigned v = 0; v < NR_VOLUMES; v++)
			ref_init(&w->slice[v], size);
	}
	for (unsigned v = 0; v < NR_VOLUMES; v++) {
		char name[8] = {(char)('a' + v), 0};
		struct cpc_error err;

		rig_expect(cpc_pool_create_volume(t->rig->pool, name, size, &err) == 0,
			   "create: %s", err.text);
	}
}

static uint64_t team_destroy(struct team *t)
{
	uint64_t ops = 0;

	for (unsigned i = 0; i < t->nr; i++) {
		ops += t->worker[i].ops;
		for (unsigned v = 0; v < NR_VOLUMES; v++)
			ref_destroy(&t->worker[i].slice[v]);
		free(t->worker[i].buf);
	}
	free(t);
	return ops;
}

uint64_t model_threads(struct rig *rig, uint64_t seed, unsigned nr_threads, uint64_t nr_ops)
{
	struct team *t = calloc(1, sizeof(*t));
	struct rnd rnd = {seed};
	uint64_t lives = 4;

	rig_init(seed);
	draw(rig, &rnd);
	rig_create(rig);
	rig_open(rig);
	t->rig = rig;
	t->nr = nr_threads;
	t->ops_each = nr_ops / (nr_threads * lives) + 1;
	team_init(t, seed);
	open_volumes(t);
	for (uint64_t life = 0; life < lives; life++) {
		enum ending ending = (enum ending)rnd_below(&rnd, 3);

		run_life(t, ending, &rnd);
		end_life(t, ending);
		rig_open(rig);
		open_volumes(t);
		for (unsigned v = 0; v < NR_VOLUMES; v++)
			check_volume(t, v, ending);
	}
	end_life(t, END_CLOSE);
	rig_destroy(rig);
	return team_destroy(t);
}
