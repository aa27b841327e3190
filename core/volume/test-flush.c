/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a flush promises, with the whole engine over a device that loses power: whatever commits do,
 * however full the pool is, in whatever order data and names change, and when what was flushed
 * rots. The legality oracle stands in front of the device.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>

#include "backing/powercut.h"
#include "check/check.h"
#include "check/oracle.h"
#include "lib/hooks.h"
#include "lib/log.h"
#include "log/log.h"
#include "pool/pool.h"
#include "volume/volume-internal.h"

#define MIB (1024ull * 1024)

struct fixture {
	struct cpc_powercut *pc;
	struct cpc_oracle *oracle;
	struct cpc_pool *pool;
	struct cpc_pool_options opts;
	struct cpc_error err;
	uint64_t rng;
	bool unwatched; /* rot breaks the oracle's rules, and is not the engine's fault */
};

static uint64_t draw(struct fixture *f, uint64_t below)
{
	f->rng = f->rng * 6364136223846793005ull + 1442695040888963407ull;
	return (f->rng >> 20) % below;
}

static void no_message(enum cpc_log_level level, const char *line)
{
}

static int try_open(struct fixture *f)
{
	struct cpc_backing *backing;
	int ret;

	assert_int_equal(f->unwatched ? cpc_powercut_reopen(f->pc, &backing)
				      : cpc_oracle_reopen(f->oracle, &backing),
			 0);
	ret = cpc_pool_open_backing(backing, &f->opts, &f->pool, &f->err);
	if (!ret)
		assert_int_equal(cpc_pool_start(f->pool, &f->err), 0);
	return ret;
}

static void open_pool(struct fixture *f)
{
	if (try_open(f))
		fail_msg("%s", f->err.text);
}

static void make(struct fixture *f, uint64_t size, uint64_t log_size, uint64_t cache)
{
	struct cpc_format_options fo = {.nodesize = 4096, .log_size = log_size};
	struct cpc_backing *backing;

	memset(f, 0, sizeof(*f));
	f->rng = 1;
	cpc_log_set_sink(no_message);
	cpc_pool_options_init(&f->opts);
	f->opts.cache = cache;
	f->opts.no_threads = true;
	f->opts.commit_interval = 0;
	assert_int_equal(cpc_powercut_create(size, &f->pc), 0);
	cpc_oracle_create(f->pc, NULL, NULL, &f->oracle);
	assert_int_equal(cpc_oracle_reopen(f->oracle, &backing), 0);
	assert_int_equal(cpc_pool_format_backing(backing, &fo, &f->err), 0);
	cpc_backing_close(backing);
	open_pool(f);
}

static void destroy_device(struct fixture *f)
{
	cpc_oracle_destroy(f->oracle);
	cpc_powercut_destroy(f->pc);
}

static void print_line(void *ctx, const char *line)
{
	print_message("  %s\n", line);
}

static void check(struct fixture *f, bool quiet, struct cpc_check_result *result)
{
	struct cpc_check_options opts = {.data = true, .report = quiet ? NULL : print_line};
	struct cpc_backing *backing;

	assert_int_equal(cpc_powercut_reopen(f->pc, &backing), 0);
	assert_int_equal(cpc_check(backing, &opts, result), 0);
	cpc_backing_close(backing);
}

static void finish(struct fixture *f)
{
	struct cpc_check_result result;

	assert_int_equal(cpc_pool_shutdown(f->pool), 0);
	cpc_pool_close(f->pool);
	check(f, false, &result);
	assert_int_equal(result.errors, 0);
	destroy_device(f);
}

/* The power goes, with one fate for all that was not flushed. */
static void cut_power(struct fixture *f, enum cpc_crash_fate fate)
{
	struct cpc_crash_choice choice;

	cpc_crash_choice_all(f->pc, fate, &choice);
	cpc_powercut_crash(f->pc, &choice);
	cpc_crash_choice_free(&choice);
}

static void create(struct fixture *f, const char *name, uint64_t size)
{
	if (cpc_pool_create_volume(f->pool, name, size, &f->err))
		fail_msg("%s", f->err.text);
}

static struct cpc_volume *open_volume(struct fixture *f, const char *name)
{
	struct cpc_volume *vol;

	assert_int_equal(cpc_pool_open_volume(f->pool, name, &vol), 0);
	return vol;
}

static int write_value(struct cpc_volume *vol, uint64_t block, uint32_t value, unsigned flags)
{
	uint32_t buf[1024];

	for (unsigned i = 0; i < 1024; i++)
		buf[i] = value;
	return cpc_volume_write(vol, buf, sizeof(buf), block * 4096, flags);
}

/* The value of a block; UINT32_MAX: it cannot be read, or is mixed. */
static uint32_t read_value(struct cpc_volume *vol, uint64_t block)
{
	uint32_t buf[1024];

	if (cpc_volume_read(vol, buf, sizeof(buf), block * 4096))
		return UINT32_MAX;
	return memcmp(buf, buf + 1, sizeof(buf) - 4) ? UINT32_MAX : buf[0];
}

/* --- commits --- */

#define NR_VOLUMES 3u
#define NR_BLOCKS  200u

static void *run_commit(void *arg)
{
	return (void *)(intptr_t)cpc_pool_commit(arg);
}

static void flush_all(struct fixture *f, struct cpc_volume *vol[NR_VOLUMES], unsigned nr,
		      uint32_t value[NR_VOLUMES][NR_BLOCKS])
{
	for (unsigned i = 0; i < nr; i++) {
		for (unsigned v = 0; v < NR_VOLUMES; v++) {
			uint64_t block = draw(f, NR_BLOCKS);

			value[v][block] = 1 + (uint32_t)draw(f, 1u << 30);
			assert_int_equal(write_value(vol[v], block, value[v][block], 0), 0);
			assert_int_equal(cpc_volume_flush(vol[v]), 0);
		}
	}
}

static void compare_all(struct cpc_volume *vol[NR_VOLUMES], uint32_t value[NR_VOLUMES][NR_BLOCKS])
{
	for (unsigned v = 0; v < NR_VOLUMES; v++) {
		for (unsigned b = 0; b < NR_BLOCKS; b++)
			assert_int_equal(read_value(vol[v], b), value[v][b]);
	}
}

static void open_all(struct fixture *f, struct cpc_volume *vol[NR_VOLUMES])
{
	static const char *const names[NR_VOLUMES] = {"a", "b", "c"};

	for (unsigned v = 0; v < NR_VOLUMES; v++)
		vol[v] = open_volume(f, names[v]);
}

/* A thousand flushes on every volume while a commit cannot write its nodes. */
static void flushes_do_not_wait_for_a_commit(void **state)
{
	for (unsigned crash = 0; crash < 2; crash++) {
		uint32_t value[NR_VOLUMES][NR_BLOCKS] = {{0}};
		struct cpc_volume *vol[NR_VOLUMES];
		struct fixture f;
		pthread_t thread;
		void *result;

		make(&f, 512 * MIB, 64 * MIB, 64 * MIB);
		create(&f, "a", MIB);
		create(&f, "b", MIB);
		create(&f, "c", MIB);
		open_all(&f, vol);
		flush_all(&f, vol, 10, value);
		cpc_powercut_hold(f.pc, CPC_HOLD_WRITE(CPC_CAUSE_METADATA));
		assert_int_equal(cpc_thread_start(&thread, "commit", run_commit, f.pool), 0);
		cpc_powercut_wait_held(f.pc, 1);
		flush_all(&f, vol, 1000, value);
		if (crash)
			cut_power(&f, CPC_FATE_LOST);
		else
			cpc_powercut_release(f.pc);
		pthread_join(thread, &result);
		assert_true(crash ? result != NULL : result == NULL);
		if (!crash)
			compare_all(vol, value);
		for (unsigned v = 0; v < NR_VOLUMES; v++)
			cpc_pool_close_volume(f.pool, vol[v]);
		cpc_pool_close(f.pool);
		cut_power(&f, CPC_FATE_LOST);
		open_pool(&f);
		open_all(&f, vol);
		compare_all(vol, value);
		for (unsigned v = 0; v < NR_VOLUMES; v++)
			cpc_pool_close_volume(f.pool, vol[v]);
		finish(&f);
	}
}

struct committer {
	struct fixture *f;
	_Atomic bool stop;
	unsigned failed;
};

/* Each commit fails somewhere else: at a node, at a superblock, at one of its flushes. */
static void *run_failing_commits(void *arg)
{
	static const unsigned causes[] = {CPC_CAUSE_METADATA, CPC_CAUSE_SUPER};
	struct committer *c = arg;

	for (unsigned i = 0; !atomic_load(&c->stop); i++) {
		struct cpc_powercut_fault fault = {.op = CPC_POWERCUT_WRITE,
						   .cause_mask = 1u << causes[i % 2],
						   .nth = 1 + i / 2 % 3,
						   .error = -EIO};

		cpc_powercut_add_fault(c->f->pc, &fault);
		c->failed += cpc_pool_commit(c->f->pool) != 0;
		cpc_powercut_clear_faults(c->f->pc);
		/* three in a row would end the pool */
		if (i % 2)
			cpc_pool_commit(c->f->pool);
	}
	return NULL;
}

static void commits_that_fail_beside_flushes_harm_none(void **state)
{
	uint32_t value[NR_VOLUMES][NR_BLOCKS] = {{0}};
	struct cpc_volume *vol[NR_VOLUMES];
	struct committer c = {0};
	struct fixture f;
	pthread_t thread;

	/* the ring has room for all of it: no write needs a commit */
	make(&f, 64 * MIB, 8 * MIB, 8 * MIB);
	create(&f, "a", MIB);
	create(&f, "b", MIB);
	create(&f, "c", MIB);
	open_all(&f, vol);
	c.f = &f;
	assert_int_equal(cpc_thread_start(&thread, "commit", run_failing_commits, &c), 0);
	flush_all(&f, vol, 500, value);
	atomic_store(&c.stop, true);
	pthread_join(thread, NULL);
	assert_true(c.failed > 0);
	compare_all(vol, value);
	for (unsigned v = 0; v < NR_VOLUMES; v++)
		cpc_pool_close_volume(f.pool, vol[v]);
	cpc_pool_close(f.pool);
	cut_power(&f, CPC_FATE_LOST);
	open_pool(&f);
	open_all(&f, vol);
	compare_all(vol, value);
	for (unsigned v = 0; v < NR_VOLUMES; v++)
		cpc_pool_close_volume(f.pool, vol[v]);
	finish(&f);
}

/* --- a full pool --- */

/* Takes all room that ordinary writes may have. */
static void fill_pool(struct cpc_volume *vol, bool synthetic)
{
	struct cpc_space *space = vol->engine->store->space;
	uint64_t block = 100;

	while (synthetic) {
		struct cpc_space_info info;
		uint64_t at;
		uint32_t got;

		cpc_space_info(space, &info);
		if (info.free < 32768 + 256 ||
		    cpc_space_alloc(space, CPC_SPACE_DATA, 256, 1, &at, &got))
			break;
	}
	while (!write_value(vol, block, 1, 0))
		block++;
	assert_int_equal(write_value(vol, block, 1, 0), -ENOSPC);
}

static void a_full_pool_takes_flushes_without_end(void **state)
{
	static const struct {
		uint64_t pool, log;
		bool synthetic;
	} cases[] = {{8 * MIB, 128 << 10, false}, {2048 * MIB, 256 * MIB, true}};

	for (unsigned c = 0; c < CPC_ARRAY_SIZE(cases); c++) {
		uint32_t value[50] = {0};
		struct cpc_volume *vol;
		struct fixture f;

		make(&f, cases[c].pool, cases[c].log, 8 * MIB);
		create(&f, "a", cases[c].pool);
		vol = open_volume(&f, "a");
		for (unsigned b = 0; b < 50; b++)
			assert_int_equal(write_value(vol, b, 1, 0), 0);
		fill_pool(vol, cases[c].synthetic);
		for (uint32_t i = 1; i <= 10000; i++) {
			uint64_t block = draw(&f, 50);

			value[block] = i;
			assert_int_equal(write_value(vol, block, i, 0), 0);
			assert_int_equal(cpc_volume_flush(vol), 0);
		}
		cpc_pool_close_volume(f.pool, vol);
		cpc_pool_close(f.pool);
		cut_power(&f, CPC_FATE_LOST);
		open_pool(&f);
		vol = open_volume(&f, "a");
		for (unsigned b = 0; b < 50; b++)
			assert_int_equal(read_value(vol, b), value[b]);
		cpc_pool_close_volume(f.pool, vol);
		finish(&f);
	}
}

/* Cuts that nobody flushes drop blocks of flushed ones, in a pool that is short of blocks. */
static void what_a_merge_drops_is_kept_for_a_crash(void **state)
{
	struct cpc_volume *vol;
	struct fixture f;
	uint32_t value;

	make(&f, 8 * MIB, MIB, MIB);
	create(&f, "a", 8 * MIB);
	vol = open_volume(&f, "a");
	fill_pool(vol, false);
	for (unsigned b = 0; b < 4; b++)
		assert_int_equal(write_value(vol, 100 + b, 2, 0), 0);
	assert_int_equal(cpc_volume_flush(vol), 0);
	for (uint32_t i = 3; i < 400; i++) {
		for (unsigned b = 0; b < 4; b++)
			assert_int_equal(write_value(vol, 100 + b, i, 0), 0);
		assert_int_equal(cpc_cut(vol), 0);
	}
	cpc_pool_close_volume(f.pool, vol);
	cpc_pool_close(f.pool);
	cut_power(&f, CPC_FATE_LOST);
	open_pool(&f);
	vol = open_volume(&f, "a");
	value = read_value(vol, 100);
	assert_in_range(value, 2, 399);
	for (unsigned b = 1; b < 4; b++)
		assert_int_equal(read_value(vol, 100 + b), value);
	cpc_pool_close_volume(f.pool, vol);
	finish(&f);
}

/* --- orders of operations --- */

enum op { WRITE, TRIM, ZERO, RESIZE, CREATE, RENAME, DELETE, NR_OPS };

#define MAX_OPS	   4u /* the first writes to both volumes */
#define MAX_VOLS   6u
#define VOL_BLOCKS 8u

struct vol_state {
	char name[8]; /* empty: it does not exist */
	uint64_t blocks;
	uint32_t value[VOL_BLOCKS];
};

/* Everything that has been, by number of operations done. */
struct history {
	struct vol_state state[MAX_OPS + 1][MAX_VOLS];
	unsigned now, nr_vols;
	/* Not older than this: content with size, and name. A change of names writes no data. */
	unsigned floor[MAX_VOLS], name_floor[MAX_VOLS];
	char names[32][8]; /* ever used */
	unsigned owner[32], nr_names;
};

static void name_freshly(struct history *h, unsigned v, char name[8])
{
	snprintf(name, sizeof(h->names[0]), "n%u", h->nr_names % 32);
	memcpy(h->names[h->nr_names], name, sizeof(h->names[0]));
	h->owner[h->nr_names++] = v;
}

static struct vol_state *state_of(struct history *h, unsigned v)
{
	return &h->state[h->now][v];
}

static int target(struct history *h)
{
	for (unsigned v = 0; v < h->nr_vols; v++) {
		if (state_of(h, v)->name[0])
			return (int)v;
	}
	return -1;
}

static void begin_op(struct history *h)
{
	memcpy(h->state[h->now + 1], h->state[h->now], sizeof(h->state[0]));
	h->now++;
}

static int change_data(struct fixture *f, struct vol_state *s, enum op op, uint32_t value)
{
	struct cpc_volume *vol = open_volume(f, s->name);
	uint64_t block = draw(f, s->blocks), nr = 1 + draw(f, s->blocks - block);
	int ret = 0;

	for (uint64_t b = block; b < block + nr; b++)
		s->value[b] = op == WRITE ? value : 0;
	if (op == TRIM) {
		ret = cpc_volume_trim(vol, nr * 4096, block * 4096, 0);
	} else if (op == ZERO) {
		ret = cpc_volume_zero(vol, nr * 4096, block * 4096, draw(f, 2) ? CPC_NO_HOLE : 0);
	} else {
		uint32_t *buf = malloc(nr * 4096);

		for (uint64_t i = 0; i < nr * 1024; i++)
			buf[i] = value;
		ret = cpc_volume_write(vol, buf, nr * 4096, block * 4096, 0);
		free(buf);
	}
	cpc_pool_close_volume(f->pool, vol);
	return ret;
}

static int change_name(struct fixture *f, struct history *h, enum op op, unsigned v)
{
	struct vol_state *s = state_of(h, v), old = *s;
	int ret;

	if (op == RESIZE) {
		s->blocks = s->blocks == VOL_BLOCKS ? VOL_BLOCKS / 2 : VOL_BLOCKS;
		for (uint64_t b = s->blocks; b < VOL_BLOCKS; b++)
			s->value[b] = 0;
		ret = cpc_pool_resize(f->pool, s->name, s->blocks * 4096, true, &f->err);
	} else if (op == RENAME) {
		name_freshly(h, v, s->name);
		ret = cpc_pool_rename(f->pool, old.name, s->name, &f->err);
	} else {
		memset(s, 0, sizeof(*s));
		ret = cpc_pool_delete(f->pool, old.name, &f->err);
	}
	if (!ret)
		h->name_floor[v] = h->now;
	if (!ret && op == RESIZE)
		h->floor[v] = h->now;
	return ret;
}

static int change_create(struct fixture *f, struct history *h)
{
	unsigned v = h->nr_vols++;
	struct vol_state *s = state_of(h, v);
	int ret;

	name_freshly(h, v, s->name);
	s->blocks = VOL_BLOCKS;
	ret = cpc_pool_create_volume(f->pool, s->name, s->blocks * 4096, &f->err);
	if (!ret)
		h->floor[v] = h->name_floor[v] = h->now;
	return ret;
}

static int do_op(struct fixture *f, struct history *h, enum op op)
{
	int v = target(h);

	if (v < 0 && op != CREATE)
		return 0;
	begin_op(h);
	if (op == CREATE)
		return change_create(f, h);
	if (op <= ZERO)
		return change_data(f, state_of(h, (unsigned)v), op, 100 + h->now);
	return change_name(f, h, op, (unsigned)v);
}

/* On the volume that was changed, or on the last one there is. */
static int do_flush(struct fixture *f, struct history *h, bool other)
{
	struct cpc_volume *vol;
	int v = target(h), ret;

	for (unsigned i = 0; other && i < h->nr_vols; i++) {
		if (state_of(h, i)->name[0])
			v = (int)i;
	}
	if (v < 0)
		return 0;
	vol = open_volume(f, state_of(h, (unsigned)v)->name);
	ret = cpc_volume_flush(vol);
	if (!ret)
		h->floor[v] = h->name_floor[v] = h->now;
	cpc_pool_close_volume(f->pool, vol);
	return ret;
}

static bool content_is(struct cpc_volume *vol, const struct vol_state *s)
{
	bool same = cpc_volume_size(vol) == s->blocks * 4096;

	for (uint64_t b = 0; same && b < s->blocks; b++)
		same = read_value(vol, b) == s->value[b];
	return same;
}

static bool content_fits(struct fixture *f, const struct history *h, unsigned v, const char *name)
{
	struct cpc_volume *vol;
	bool found = false;

	if (cpc_pool_open_volume(f->pool, name, &vol))
		return false;
	for (unsigned i = h->floor[v]; i <= h->now && !found; i++)
		found = h->state[i][v].name[0] && content_is(vol, &h->state[i][v]);
	cpc_pool_close_volume(f->pool, vol);
	return found;
}

/* Empty: it is there under none. */
static bool has_name(struct fixture *f, const struct history *h, unsigned v, const char *name)
{
	struct cpc_volume_info info;

	for (unsigned i = 0; i < h->nr_names; i++) {
		if (h->owner[i] == v && strcmp(h->names[i], name) != 0 &&
		    !cpc_pool_volume_info(f->pool, h->names[i], &info))
			return false;
	}
	return !*name || !cpc_pool_volume_info(f->pool, name, &info);
}

static void judge(struct fixture *f, const struct history *h, const char *what)
{
	for (unsigned v = 0; v < h->nr_vols; v++) {
		const char *name = NULL;

		for (unsigned i = h->name_floor[v]; i <= h->now && !name; i++) {
			if (has_name(f, h, v, h->state[i][v].name))
				name = h->state[i][v].name;
		}
		if (!name)
			fail_msg("%s: volume %u has no name from %u to %u", what, v,
				 h->name_floor[v], h->now);
		if (*name && !content_fits(f, h, v, name))
			fail_msg("%s: volume %u is at no instant from %u to %u", what, v,
				 h->floor[v], h->now);
	}
}

/* Two volumes with some content, all of it committed. */
static void make_base(struct fixture *f, struct history *h)
{
	make(f, 4 * MIB, 128 << 10, MIB);
	memset(h, 0, sizeof(*h));
	for (unsigned v = 0; v < 2; v++) {
		struct vol_state *s = &h->state[0][v];
		struct cpc_volume *vol;

		name_freshly(h, v, s->name);
		create(f, s->name, VOL_BLOCKS * 4096);
		s->blocks = VOL_BLOCKS;
		vol = open_volume(f, s->name);
		for (unsigned b = 0; b < VOL_BLOCKS; b += 1 + v) {
			s->value[b] = 10 + v;
			assert_int_equal(write_value(vol, b, s->value[b], 0), 0);
		}
		cpc_pool_close_volume(f->pool, vol);
	}
	h->nr_vols = 2;
	assert_int_equal(cpc_pool_shutdown(f->pool), 0);
	cpc_pool_close(f->pool);
}

struct attempt {
	unsigned order;
	bool other;
	uint64_t round, nth;
};

/* Return: false when the device wrote fewer than `nth` times. */
static bool try_order(struct fixture *f, const struct history *base,
		      const struct cpc_powercut_saved *saved, const struct attempt *a)
{
	struct history h = *base;
	uint64_t writes;
	char what[96];
	bool cut;
	int ret = 0;

	snprintf(what, sizeof(what), "order %u%s, round %llu, write %llu", a->order,
		 a->other ? " other" : "", (unsigned long long)a->round,
		 (unsigned long long)a->nth);
	cpc_powercut_restore(f->pc, saved);
	f->rng = a->order * 1000003ull + a->nth + a->round * 1000000007ull;
	open_pool(f);
	writes = cpc_powercut_count(f->pc, CPC_POWERCUT_WRITE);
	cpc_powercut_fail(f->pc, CPC_POWERCUT_WRITE, a->nth, true, -EIO);
	/* both have something that was not flushed */
	begin_op(&h);
	for (unsigned v = 0; v < 2 && !ret; v++)
		ret = change_data(f, state_of(&h, v), WRITE, 50 + v);
	for (unsigned rest = a->order; rest && !ret; rest /= NR_OPS + 1)
		ret = do_op(f, &h, (enum op)(rest % (NR_OPS + 1) - 1));
	if (!ret)
		ret = do_flush(f, &h, a->other);
	cut = cpc_powercut_count(f->pc, CPC_POWERCUT_WRITE) - writes >= a->nth;
	assert_true(ret == 0 || cut);
	cpc_pool_close(f->pool);
	cpc_powercut_crash_random(f->pc, f->rng);
	cpc_powercut_clear_faults(f->pc);
	open_pool(f);
	judge(f, &h, what);
	cpc_pool_close(f->pool);
	return cut;
}

/* Digits 1 to NR_OPS, as many as there are operations, and no zero between them. */
static bool is_order(unsigned n)
{
	for (; n; n /= NR_OPS + 1) {
		if (n % (NR_OPS + 1) == 0)
			return false;
	}
	return true;
}

static uint64_t env(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 0) : otherwise;
}

/*
 * All orders of up to three operations, then a flush on the same or on another volume, and the
 * power goes at any device write. CPC_TEST_OPS: about how many instants are tried in all; each at
 * least once, then again with other fates.
 */
static void every_order_of_changes_survives_a_cut_at_any_write(void **state)
{
	uint64_t wanted = env("CPC_TEST_OPS", 6000), tried = 0;
	struct cpc_powercut_saved *saved;
	struct history base;
	struct fixture f;

	make_base(&f, &base);
	saved = cpc_powercut_save(f.pc);
	for (uint64_t round = 0; !round || tried < wanted; round++) {
		for (unsigned order = 1; order < 512; order++) {
			for (unsigned other = 0; other < 2 && is_order(order); other++) {
				struct attempt a = {order, other, round, 1};

				for (; try_order(&f, &base, saved, &a); a.nth++)
					tried++;
			}
		}
	}
	assert_true(tried > 2 * 2 * 399);
	cpc_powercut_restore(f.pc, saved);
	cpc_powercut_saved_free(saved);
	destroy_device(&f);
}

/* --- rot --- */

/* Two flushed blocks and, if wanted, a mark behind them. Return: the newest record that is none. */
static struct cpc_log_found flushed_and_cut(struct fixture *f, bool mark, uint64_t *data)
{
	struct cpc_log_replay r;
	struct cpc_log_found found;
	struct cpc_volume *vol;
	struct cpc_mapping m;
	struct timespec quiet = {.tv_nsec = 12000000};
	const char *why;
	uint64_t wait;

	make(f, 8 * MIB, 128 << 10, MIB);
	create(f, "a", MIB);
	vol = open_volume(f, "a");
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(write_value(vol, i, 7 + i, 0), 0);
		assert_int_equal(cpc_volume_flush(vol), 0);
	}
	assert_true(cpc_run_lookup(vol->view->runs[0].run, 1, 1, &m));
	*data = m.bytenr;
	nanosleep(&quiet, NULL);
	if (mark)
		cpc_log_mark(vol->engine->log, &wait);
	cpc_pool_close_volume(f->pool, vol);
	assert_int_equal(cpc_log_scan(vol->engine->store, &r, &why), 0);
	found = r.found[r.nr - (mark ? 2 : 1)];
	cpc_log_replay_destroy(&r);
	cpc_pool_close(f->pool);
	cut_power(f, CPC_FATE_KEPT);
	return found;
}

static uint64_t ring_place(struct fixture *f, unsigned copy, uint64_t position)
{
	struct cpc_geometry geo;

	assert_int_equal(cpc_geometry_init(&geo, 8 * MIB, 128 << 10, 4096, true), 0);
	return (geo.log[copy] << CPC_BLOCK_SHIFT) + position;
}

static void a_rotten_copy_of_a_flushed_record_is_made_good(void **state)
{
	for (unsigned copy = 0; copy < 2; copy++) {
		struct cpc_check_result result;
		struct cpc_log_found found;
		struct cpc_volume *vol;
		struct fixture f;
		uint64_t data;

		found = flushed_and_cut(&f, true, &data);
		check(&f, false, &result);
		assert_true(result.errors == 0 && result.log_records == 4);
		cpc_powercut_flip(f.pc, ring_place(&f, copy, found.position) + 100, 1);
		check(&f, true, &result);
		assert_true(result.errors == 1 && result.log_bad == 1);
		open_pool(&f);
		vol = open_volume(&f, "a");
		assert_int_equal(read_value(vol, 0), 7);
		assert_int_equal(read_value(vol, 1), 8);
		cpc_pool_close_volume(f.pool, vol);
		finish(&f);
	}
}

static void a_flushed_record_that_is_gone_refuses_the_pool(void **state)
{
	struct cpc_check_result result;
	struct cpc_log_found found;
	struct fixture f;
	uint64_t data;

	found = flushed_and_cut(&f, true, &data);
	for (unsigned copy = 0; copy < 2; copy++)
		cpc_powercut_flip(f.pc, ring_place(&f, copy, found.position) + 100, 1);
	check(&f, true, &result);
	assert_true(result.log_bad == 1);
	for (unsigned read_only = 0; read_only < 2; read_only++) {
		f.opts.read_only = read_only;
		assert_int_equal(try_open(&f), -EUCLEAN);
		assert_non_null(strstr(f.err.text, "had been made durable"));
	}
	destroy_device(&f);
}

static void flushed_data_that_rots_is_an_error_of_that_block_only(void **state)
{
	struct cpc_check_result result;
	struct cpc_volume *vol;
	struct fixture f;
	uint64_t data;

	flushed_and_cut(&f, true, &data);
	cpc_powercut_flip(f.pc, data + 1000, 1);
	f.unwatched = true;
	check(&f, true, &result);
	assert_true(result.errors == 1 && result.data_bad == 1);
	open_pool(&f);
	vol = open_volume(&f, "a");
	assert_int_equal(read_value(vol, 0), 7);
	assert_int_equal(read_value(vol, 1), UINT32_MAX);
	assert_int_equal(write_value(vol, 1, 9, CPC_FUA), 0);
	assert_int_equal(read_value(vol, 1), 9);
	cpc_pool_close_volume(f.pool, vol);
	finish(&f);
}

/* Before its mark, a record and its data are as good as torn: the state before it. */
static void what_has_no_mark_yet_counts_as_torn(void **state)
{
	for (unsigned i = 0; i < 2; i++) {
		struct cpc_check_result result;
		struct cpc_log_found found;
		struct cpc_volume *vol;
		struct fixture f;
		uint64_t data;

		found = flushed_and_cut(&f, false, &data);
		if (i)
			cpc_powercut_flip(f.pc, data + 1000, 1);
		for (unsigned copy = 0; !i && copy < 2; copy++)
			cpc_powercut_flip(f.pc, ring_place(&f, copy, found.position) + 100, 1);
		check(&f, false, &result);
		assert_int_equal(result.errors, 0);
		open_pool(&f);
		vol = open_volume(&f, "a");
		assert_int_equal(read_value(vol, 0), 7);
		assert_int_equal(read_value(vol, 1), 0);
		cpc_pool_close_volume(f.pool, vol);
		finish(&f);
	}
}

/* Whatever the pool shows, it is not the disk from before the last answered flush. */
static void judge_rot(struct fixture *f, bool refused, bool data_gone)
{
	struct cpc_volume *vol;
	int ret = try_open(f);

	if (refused) {
		assert_int_equal(ret, -EUCLEAN);
		return;
	}
	assert_int_equal(ret, 0);
	vol = open_volume(f, "a");
	assert_int_equal(read_value(vol, 0), 7);
	assert_int_equal(read_value(vol, 1), data_gone ? UINT32_MAX : 8);
	cpc_pool_close_volume(f->pool, vol);
	cpc_pool_close(f->pool);
}

/* Bits of the newest record, in either copy and in both, and of its data. CPC_TEST_OPS=100000:
 * every bit. */
static void no_bit_that_rots_brings_back_an_older_disk(void **state)
{
	struct cpc_powercut_saved *saved;
	struct cpc_log_found found;
	struct fixture f;
	unsigned step = env("CPC_TEST_OPS", 0) < 100000 ? 21 : 1;
	uint64_t data;

	found = flushed_and_cut(&f, true, &data);
	assert_int_equal(found.length, 4096);
	saved = cpc_powercut_save(f.pc);
	f.unwatched = true;
	for (unsigned bit = 0; bit < 8 * 4096; bit += step) {
		uint64_t place[2] = {ring_place(&f, 0, found.position) + bit / 8,
				     ring_place(&f, 1, found.position) + bit / 8};

		/* an opening that writes takes longer: now and then */
		f.opts.read_only = bit % 105 != 0;
		for (unsigned copies = 1; copies < 4; copies++) {
			cpc_powercut_restore(f.pc, saved);
			for (unsigned copy = 0; copy < 2; copy++) {
				if (copies & 1u << copy)
					cpc_powercut_flip(f.pc, place[copy], bit % 8);
			}
			judge_rot(&f, copies == 3, false);
		}
		cpc_powercut_restore(f.pc, saved);
		cpc_powercut_flip(f.pc, data + bit / 8, bit % 8);
		judge_rot(&f, false, true);
	}
	cpc_powercut_restore(f.pc, saved);
	cpc_powercut_saved_free(saved);
	destroy_device(&f);
}

/* The device has dropped what it shows, and says that all is well from the next life on. */
static void what_a_cache_only_holds_is_copied_before_it_is_served(void **state)
{
	struct cpc_powercut_fault fault = {
	    .op = CPC_POWERCUT_FLUSH, .action = CPC_FAULT_DROP_CACHED, .nth = 1, .error = -EIO};
	struct cpc_volume *vol;
	struct fixture f;

	make(&f, 8 * MIB, 128 << 10, MIB);
	create(&f, "a", MIB);
	vol = open_volume(&f, "a");
	assert_int_equal(write_value(vol, 0, 7, CPC_FUA), 0);
	cpc_powercut_add_fault(f.pc, &fault);
	assert_int_equal(write_value(vol, 1, 8, CPC_FUA), -EIO);
	cpc_pool_close_volume(f.pool, vol);
	cpc_pool_close(f.pool);
	cpc_powercut_kill(f.pc);
	for (unsigned life = 0; life < 3; life++) {
		open_pool(&f);
		vol = open_volume(&f, "a");
		assert_int_equal(read_value(vol, 0), 7);
		assert_int_equal(read_value(vol, 1), 8);
		assert_int_equal(cpc_volume_flush(vol), 0);
		cpc_pool_close_volume(f.pool, vol);
		if (life == 2)
			break;
		cpc_pool_close(f.pool);
		cut_power(&f, CPC_FATE_LOST);
	}
	finish(&f);
}

/* --- dump --- */

static void find_lines(void *ctx, const char *line)
{
	static const char *const parts[] = {"map volume 1 blocks 1+1 at", "create volume 1",
					    "replay: records 1 to 3"};
	unsigned *found = ctx;

	for (unsigned i = 0; i < CPC_ARRAY_SIZE(parts); i++)
		*found |= strstr(line, parts[i]) ? 1u << i : 0;
}

static void dump_prints_records_and_their_entries(void **state)
{
	struct cpc_backing *backing;
	unsigned found = 0;
	struct fixture f;
	uint64_t data;

	flushed_and_cut(&f, false, &data);
	assert_int_equal(cpc_powercut_reopen(f.pc, &backing), 0);
	assert_int_equal(cpc_dump(backing, "log", NULL, find_lines, &found), 0);
	assert_int_equal(found, 7);
	cpc_backing_close(backing);
	destroy_device(&f);
}

/* --- a long log and little memory --- */

static uint64_t commits_of_open(struct fixture *f, bool durable)
{
	struct cpc_volume *vol;
	struct fixture small;
	uint64_t commits;

	make(f, 256 * MIB, 0, 64 * MIB);
	create(f, "a", 128 * MIB);
	vol = open_volume(f, "a");
	for (uint32_t i = 0; i < 12000; i++)
		assert_int_equal(write_value(vol, 2 * i, 1 + i, 0), 0);
	if (durable) {
		assert_int_equal(cpc_volume_flush(vol), 0);
		assert_int_equal(write_value(vol, 1, 1, CPC_FUA), 0);
	} else {
		assert_int_equal(cpc_cut(vol), 0);
	}
	cpc_pool_close_volume(f->pool, vol);
	cpc_pool_close(f->pool);
	cut_power(f, CPC_FATE_KEPT);
	f->opts.cache = 2 * MIB;
	open_pool(f);
	vol = open_volume(f, "a");
	commits = atomic_load(&vol->engine->store->commits);
	for (uint32_t i = 0; i < 12000; i += 7)
		assert_int_equal(read_value(vol, 2 * i), 1 + i);
	cpc_pool_close_volume(f->pool, vol);
	small = *f;
	finish(&small);
	return commits;
}

static void a_long_log_is_committed_in_steps_up_to_its_mark_only(void **state)
{
	struct fixture f;

	assert_true(commits_of_open(&f, true) > 1);
	assert_int_equal(commits_of_open(&f, false), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(flushes_do_not_wait_for_a_commit),
	    cmocka_unit_test(commits_that_fail_beside_flushes_harm_none),
	    cmocka_unit_test(a_full_pool_takes_flushes_without_end),
	    cmocka_unit_test(what_a_merge_drops_is_kept_for_a_crash),
	    cmocka_unit_test(every_order_of_changes_survives_a_cut_at_any_write),
	    cmocka_unit_test(a_rotten_copy_of_a_flushed_record_is_made_good),
	    cmocka_unit_test(a_flushed_record_that_is_gone_refuses_the_pool),
	    cmocka_unit_test(flushed_data_that_rots_is_an_error_of_that_block_only),
	    cmocka_unit_test(no_bit_that_rots_brings_back_an_older_disk),
	    cmocka_unit_test(what_has_no_mark_yet_counts_as_torn),
	    cmocka_unit_test(what_a_cache_only_holds_is_copied_before_it_is_served),
	    cmocka_unit_test(dump_prints_records_and_their_entries),
	    cmocka_unit_test(a_long_log_is_committed_in_steps_up_to_its_mark_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
