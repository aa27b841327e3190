/* SPDX-License-Identifier: BSD-3-Clause */
/* Data and names in every order, a flush of this or another volume, a cut at any device write. */
#include "volume/test-flush-rig.h"

#include <stdio.h>
#include <time.h>

#include "lib/hooks.h"

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

static int change_data(struct flush_rig *f, struct vol_state *s, enum op op, uint32_t value)
{
	struct cpc_volume *vol = flush_rig_open_volume(f, s->name);
	uint64_t block = flush_rig_draw(f, s->blocks),
		 nr = 1 + flush_rig_draw(f, s->blocks - block);
	int ret = 0;

	for (uint64_t b = block; b < block + nr; b++)
		s->value[b] = op == WRITE ? value : 0;
	if (op == TRIM) {
		ret = cpc_volume_trim(vol, nr * 4096, block * 4096, 0);
	} else if (op == ZERO) {
		ret = cpc_volume_zero(vol, nr * 4096, block * 4096,
				      flush_rig_draw(f, 2) ? CPC_NO_HOLE : 0);
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

static int change_name(struct flush_rig *f, struct history *h, enum op op, unsigned v)
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

static int change_create(struct flush_rig *f, struct history *h)
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

static int do_op(struct flush_rig *f, struct history *h, enum op op)
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
static int do_flush(struct flush_rig *f, struct history *h, bool other)
{
	struct cpc_volume *vol;
	int v = target(h), ret;

	for (unsigned i = 0; other && i < h->nr_vols; i++) {
		if (state_of(h, i)->name[0])
			v = (int)i;
	}
	if (v < 0)
		return 0;
	vol = flush_rig_open_volume(f, state_of(h, (unsigned)v)->name);
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
		same = flush_rig_read_value(vol, b) == s->value[b];
	return same;
}

static bool content_fits(struct flush_rig *f, const struct history *h, unsigned v, const char *name)
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
static bool has_name(struct flush_rig *f, const struct history *h, unsigned v, const char *name)
{
	struct cpc_volume_info info;

	for (unsigned i = 0; i < h->nr_names; i++) {
		if (h->owner[i] == v && strcmp(h->names[i], name) != 0 &&
		    !cpc_pool_volume_info(f->pool, h->names[i], &info))
			return false;
	}
	return !*name || !cpc_pool_volume_info(f->pool, name, &info);
}

static void judge(struct flush_rig *f, const struct history *h, const char *what)
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
static void make_base(struct flush_rig *f, struct history *h)
{
	flush_rig_make(f, 4 * MIB, 128 << 10, MIB);
	memset(h, 0, sizeof(*h));
	for (unsigned v = 0; v < 2; v++) {
		struct vol_state *s = &h->state[0][v];
		struct cpc_volume *vol;

		name_freshly(h, v, s->name);
		flush_rig_create(f, s->name, VOL_BLOCKS * 4096);
		s->blocks = VOL_BLOCKS;
		vol = flush_rig_open_volume(f, s->name);
		for (unsigned b = 0; b < VOL_BLOCKS; b += 1 + v) {
			s->value[b] = 10 + v;
			assert_int_equal(flush_rig_write_value(vol, b, s->value[b], 0), 0);
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
static bool try_order(struct flush_rig *f, const struct history *base,
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
	flush_rig_open(f);
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
	flush_rig_open(f);
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

/*
 * All orders of up to three operations, then a flush on the same or on another volume, and the
 * power goes at any device write. CPC_TEST_OPS: about how many instants are tried in all; each at
 * least once, then again with other fates.
 */
static void every_order_of_changes_survives_a_cut_at_any_write(void **state)
{
	uint64_t wanted = flush_rig_env("CPC_TEST_OPS", 6000), tried = 0;
	struct cpc_powercut_saved *saved;
	struct history base;
	struct flush_rig f;

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
	flush_rig_destroy(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_order_of_changes_survives_a_cut_at_any_write),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
