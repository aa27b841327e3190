/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The io tree against a plain array of bytes' bits: random calls of all kinds, everything compared
 * after each, allocation failing now and then. The tree has fingers, few and for small regions.
 *
 * CPC_TEST_SEED repeats a run, CPC_TEST_OPS says how many calls (all bases together).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>
#include "lib/hooks.h"
#include "io-tree/io-finger.h"
#include "io-tree/io-tree-internal.h"

enum { SIZE = 160, NR_LOCKS = 8, LOG = SIZE, DEFAULT_OPS = 3000000, FINGERS = 16 };

/* A range that the model has locked. */
struct held {
	unsigned start, len;
	struct cpc_io_state *cached;
};

struct model {
	struct cpc_io_tree tree;
	uint64_t base;
	uint8_t bits[SIZE];
	struct held held[NR_LOCKS];
	unsigned nr_held;
	struct cpc_io_state *hint; /* a cached reference that goes stale */
	uint64_t charged;	   /* DELALLOC bytes by changeset */
	uint64_t seed, op;
	const char *name;
	unsigned start, len, set, clear;
	bool unordered; /* the caller does not ask for the pieces */
};

/* A changeset that keeps, for each byte, what it was told. */
struct log {
	struct cpc_changeset cs;
	const struct model *m;
	uint64_t last;
	uint8_t set[SIZE], cleared[SIZE];
};

static uint64_t rng;
static bool fail_alloc;

static uint64_t rnd(uint64_t below)
{
	rng ^= rng >> 12;
	rng ^= rng << 25;
	rng ^= rng >> 27;
	return (rng * 0x2545f4914f6cdd1dULL >> 33) % below;
}

static void *test_alloc(size_t align, size_t size)
{
	return fail_alloc ? NULL : cpc_hooks_default.alloc(align, size);
}

static void die(const struct model *m, const char *what)
{
	print_error("%s: seed %llu base 0x%llx op %llu: %s start %u len %u set %x clear %x\n", what,
		    (unsigned long long)m->seed, (unsigned long long)m->base,
		    (unsigned long long)m->op, m->name, m->start, m->len, m->set, m->clear);
	fail();
}

#define want(m, cond)                                                                              \
	do {                                                                                       \
		if (!(cond))                                                                       \
			die(m, #cond);                                                             \
	} while (0)

static int log_add(struct cpc_changeset *cs, uint64_t start, uint64_t len, enum cpc_io_bits set,
		   enum cpc_io_bits cleared)
{
	struct log *log = cpc_container_of(cs, struct log, cs);
	uint64_t i;

	want(log->m, start >= log->last && len > 0 && (set | cleared));
	log->last = start + len;
	for (i = start; i < start + len; i++) {
		want(log->m, i - log->m->base < SIZE);
		log->set[i - log->m->base] = (uint8_t)set;
		log->cleared[i - log->m->base] = (uint8_t)cleared;
	}
	return 0;
}

static void log_init(struct log *log, const struct model *m)
{
	memset(log, 0, sizeof(*log));
	log->cs.add = log_add;
	log->m = m;
}

/* Compares every byte with the records, and the sum of charges with the DELALLOC bytes. */
static void compare(struct model *m)
{
	const struct cpc_io_state *rec;
	uint8_t seen[SIZE] = {0};
	uint64_t delalloc = 0, i;
	char why[128];

	if (cpc_io_tree_check(&m->tree, why, sizeof(why)))
		die(m, why);
	for (rec = m->tree.first; rec; rec = rec->next) {
		want(m, rec->start >= m->base && rec->end <= m->base + SIZE);
		memset(seen + (rec->start - m->base), rec->bits, rec->end - rec->start);
	}
	want(m, !memcmp(seen, m->bits, SIZE));
	for (i = 0; i < SIZE; i++)
		delalloc += !!(m->bits[i] & CPC_IO_DELALLOC);
	want(m, m->charged == delalloc);
}

static void pick_range(struct model *m)
{
	unsigned max = rnd(4) ? 12 : SIZE;

	m->start = (unsigned)rnd(SIZE);
	if (!rnd(16))
		m->start = 0;
	m->len = 1 + (unsigned)rnd(cpc_min_u64(max, SIZE - m->start));
	if (!rnd(16))
		m->len = SIZE - m->start;
}

static bool model_any(const struct model *m, unsigned bits)
{
	unsigned i;

	for (i = m->start; i < m->start + m->len; i++) {
		if (m->bits[i] & bits)
			return true;
	}
	return false;
}

static bool model_all(const struct model *m, unsigned bits)
{
	unsigned i;

	for (i = m->start; i < m->start + m->len; i++) {
		if ((m->bits[i] & bits) != bits)
			return false;
	}
	return true;
}

static void model_change(struct model *m, unsigned set, unsigned clear)
{
	unsigned i;

	for (i = m->start; i < m->start + m->len; i++)
		m->bits[i] = (uint8_t)((m->bits[i] & ~clear) | set);
}

/* The changeset says of each byte exactly what changed, and the sums are right. */
static void compare_log(struct model *m, const struct log *log, const uint8_t *before)
{
	uint64_t set_bytes = 0, cleared_bytes = 0;
	unsigned i;

	for (i = 0; i < SIZE; i++) {
		unsigned set = m->bits[i] & ~before[i] & ~CPC_IO_LOCKED;
		unsigned cleared = before[i] & ~m->bits[i] & ~CPC_IO_LOCKED;

		want(m, !log->cs.add || (log->set[i] == set && log->cleared[i] == cleared));
		set_bytes += !!set;
		cleared_bytes += !!cleared;
		m->charged += !!(set & CPC_IO_DELALLOC);
		m->charged -= !!(cleared & CPC_IO_DELALLOC);
	}
	want(m, log->cs.set_bytes == set_bytes && log->cs.cleared_bytes == cleared_bytes);
}

/* Is [start, start + len) exactly a range that the model holds? */
static bool is_held(const struct model *m)
{
	unsigned i;

	for (i = 0; i < m->nr_held; i++) {
		if (m->held[i].start == m->start && m->held[i].len == m->len)
			return true;
	}
	return false;
}

/* Does the change need no spare, by promise of the header? */
static bool never_fails(const struct model *m)
{
	unsigned end = m->start + m->len;
	bool at_end, at_start;

	if (is_held(m))
		return true;
	if (m->set || (m->clear & CPC_IO_ALL) != CPC_IO_ALL)
		return false;
	at_start = m->start == 0 || m->bits[m->start - 1] != m->bits[m->start];
	at_end = end == SIZE || m->bits[end - 1] != m->bits[end];
	return at_start || at_end;
}

/* Hides the spares and lets allocation fail. */
static struct cpc_io_state *starve(struct model *m, uint64_t *nr)
{
	struct cpc_io_state *spares = m->tree.spares;

	fail_alloc = true;
	*nr = m->tree.stats.spares;
	m->tree.spares = NULL;
	m->tree.stats.spares = 0;
	return spares;
}

static void feed(struct model *m, struct cpc_io_state *spares, uint64_t nr)
{
	struct cpc_io_state *last = spares;

	fail_alloc = false;
	while (last && last->next)
		last = last->next;
	if (last) {
		last->next = m->tree.spares;
		m->tree.spares = spares;
	}
	m->tree.stats.spares += nr;
}

/* Runs set, clear or convert in tree and model. Clearing LOCKED is not done here. */
static void do_change(struct model *m, unsigned kind)
{
	struct cpc_io_state **hint = rnd(2) ? &m->hint : NULL, *spares = NULL;
	enum cpc_io_bits set = (enum cpc_io_bits)m->set, clear = (enum cpc_io_bits)m->clear;
	bool starved = !rnd(8), safe = never_fails(m);
	uint8_t before[SIZE];
	uint64_t nr = 0, at = m->base + m->start;
	struct log log;
	int err;

	memcpy(before, m->bits, SIZE);
	log_init(&log, m);
	if (m->unordered)
		log.cs.add = NULL;
	if (starved)
		spares = starve(m, &nr);
	if (kind == 0)
		err = cpc_io_tree_set(&m->tree, at, m->len, set, hint, &log.cs);
	else if (kind == 1)
		err = cpc_io_tree_clear(&m->tree, at, m->len, clear, hint, &log.cs);
	else
		err = cpc_io_tree_convert(&m->tree, at, m->len, set, clear, hint, &log.cs);
	if (starved)
		feed(m, spares, nr);
	want(m, err == 0 || (err == -ENOMEM && starved && !safe));
	if (!err)
		model_change(m, m->set, m->clear);
	compare_log(m, &log, before);
}

static unsigned pick_bits(void)
{
	return 2 * (1 + (unsigned)rnd(CPC_IO_ALL / 2)); /* any but LOCKED */
}

static void op_set(struct model *m)
{
	m->name = "set";
	m->set = pick_bits();
	do_change(m, 0);
}

static void op_clear(struct model *m)
{
	m->name = "clear";
	m->clear = rnd(2) ? pick_bits() : CPC_IO_ALL & ~CPC_IO_LOCKED;
	do_change(m, 1);
}

/* Clears some bits, or with no lock held all of them, everywhere: a sweep, of many records. */
static void op_sweep(struct model *m)
{
	m->name = "sweep";
	m->start = 0;
	m->len = SIZE;
	m->clear = rnd(2) || m->nr_held ? pick_bits() : CPC_IO_ALL;
	m->unordered = true;
	do_change(m, 1);
	m->unordered = false;
}

/* Clears everything, which trims; of a range that nobody has locked. */
static void op_clear_all(struct model *m)
{
	m->name = "clear all";
	if (model_any(m, CPC_IO_LOCKED))
		return;
	m->clear = CPC_IO_ALL;
	do_change(m, 1);
}

static void op_convert(struct model *m)
{
	m->name = "convert";
	m->set = pick_bits();
	m->clear = pick_bits();
	do_change(m, 2);
}

static void op_lock(struct model *m)
{
	struct held *h = &m->held[m->nr_held];
	bool busy = model_any(m, CPC_IO_LOCKED);
	int err;

	m->name = "lock";
	if (m->nr_held == NR_LOCKS)
		return;
	h->cached = NULL;
	if (busy || rnd(2))
		err = cpc_io_tree_trylock(&m->tree, m->base + m->start, m->len, &h->cached);
	else
		err = cpc_io_tree_lock(&m->tree, m->base + m->start, m->len, &h->cached);
	want(m, err == (busy ? -EAGAIN : 0));
	want(m, busy == !h->cached);
	if (err)
		return;
	h->start = m->start;
	h->len = m->len;
	m->nr_held++;
	model_change(m, CPC_IO_LOCKED, 0);
}

/* Unlocks, or dirties and unlocks, or cleans and unlocks, without memory. */
static void op_unlock(struct model *m)
{
	struct held *h;
	struct cpc_io_state **cached, *spares;
	uint8_t before[SIZE];
	struct log log;
	uint64_t nr;
	int err = 0;

	m->name = "unlock";
	m->set = 0;
	if (!m->nr_held)
		return;
	h = &m->held[rnd(m->nr_held)];
	m->start = h->start;
	m->len = h->len;
	cached = rnd(4) ? &h->cached : NULL;
	if (!cached)
		cpc_io_tree_release(&m->tree, &h->cached);
	memcpy(before, m->bits, SIZE);
	log_init(&log, m);
	m->clear = CPC_IO_LOCKED;
	spares = starve(m, &nr);
	if (rnd(2)) {
		cpc_io_tree_unlock(&m->tree, m->base + m->start, m->len, cached);
	} else if (rnd(2)) {
		m->set = CPC_IO_DELALLOC;
		err = cpc_io_tree_convert(&m->tree, m->base + m->start, m->len, CPC_IO_DELALLOC,
					  CPC_IO_LOCKED, cached, &log.cs);
	} else {
		m->clear |= CPC_IO_DELALLOC;
		err = cpc_io_tree_clear(&m->tree, m->base + m->start, m->len,
					CPC_IO_LOCKED | CPC_IO_DELALLOC, cached, &log.cs);
	}
	feed(m, spares, nr);
	want(m, !err && !h->cached);
	model_change(m, m->set, m->clear);
	compare_log(m, &log, before);
	*h = m->held[--m->nr_held];
}

/* Unlocks the first or last part of a range that is held. */
static void op_unlock_part(struct model *m)
{
	struct held *h;
	unsigned part;

	m->name = "unlock part";
	if (!m->nr_held)
		return;
	h = &m->held[rnd(m->nr_held)];
	if (h->len < 2)
		return;
	part = 1 + (unsigned)rnd(h->len - 1);
	m->start = rnd(2) ? h->start : h->start + h->len - part;
	m->len = part;
	want(m, !cpc_io_tree_clear(&m->tree, m->base + m->start, part, CPC_IO_LOCKED, &h->cached,
				   NULL));
	model_change(m, 0, CPC_IO_LOCKED);
	if (m->start == h->start)
		h->start += part;
	h->len -= part;
}

static void op_test(struct model *m)
{
	enum cpc_io_bits bits = (enum cpc_io_bits)(1 + rnd(CPC_IO_ALL));
	bool result;

	m->name = "test";
	want(m, !cpc_io_tree_test(&m->tree, m->base + m->start, m->len, bits, CPC_IO_MATCH_ANY,
				  &result));
	want(m, result == model_any(m, bits));
	want(m, !cpc_io_tree_test(&m->tree, m->base + m->start, m->len, bits, CPC_IO_MATCH_ALL,
				  &result));
	want(m, result == model_all(m, bits));
	if (!model_any(m, bits))
		want(m, !cpc_io_tree_wait(&m->tree, m->base + m->start, m->len, bits));
}

static void op_find(struct model *m)
{
	enum cpc_io_bits bits = (enum cpc_io_bits)(1 + rnd(CPC_IO_ALL));
	unsigned i = m->start, end = m->start + m->len, j;
	uint64_t start, len;
	int err;

	m->name = "find_first";
	while (i < end && !(m->bits[i] & bits))
		i++;
	for (j = i; j < end && (m->bits[j] & bits);)
		j++;
	err = cpc_io_tree_find_first(&m->tree, m->base + m->start, m->len, bits, &start, &len);
	want(m, err == (i == end ? -ENOENT : 0));
	if (!err)
		want(m, start == m->base + i && len == j - i);
}

static void op_count(struct model *m)
{
	enum cpc_io_bits bits = (enum cpc_io_bits)(1 + rnd(CPC_IO_ALL));
	uint64_t max = rnd(2) ? UINT64_MAX : rnd(SIZE), expected = 0, bytes;
	unsigned i;

	m->name = "count";
	for (i = m->start; i < m->start + m->len; i++)
		expected += !!(m->bits[i] & bits);
	want(m, !cpc_io_tree_count(&m->tree, m->base + m->start, m->len, bits, max, &bytes));
	want(m, bytes == cpc_min_u64(expected, max));
}

/* Keeps a reference to some record, which others then trim, merge and erase. */
static void op_hint(struct model *m)
{
	m->name = "hint";
	if (model_any(m, CPC_IO_LOCKED))
		return;
	want(m, !cpc_io_tree_lock(&m->tree, m->base + m->start, m->len, &m->hint));
	cpc_io_tree_unlock(&m->tree, m->base + m->start, m->len, NULL);
	if (!rnd(4))
		cpc_io_tree_release(&m->tree, &m->hint);
}

static void step(struct model *m)
{
	static void (*const ops[])(struct model *) = {
	    op_set,    op_set,	       op_clear, op_clear_all, op_convert, op_lock, op_unlock,
	    op_unlock, op_unlock_part, op_test,	 op_find,      op_count,   op_hint};

	m->set = m->clear = 0;
	pick_range(m);
	if (rnd(50))
		ops[rnd(CPC_ARRAY_SIZE(ops))](m);
	else
		op_sweep(m);
	compare(m);
	m->op++;
}

/*
 * Slots are shared by regions, and the first size of regions is wrong: smaller than a byte's
 * neighbourhood or larger than all, so that the tree has to find a better one. Now and then it
 * gets a wrong one again, and sweeps from another number of records on.
 */
static void give_fingers(struct model *m)
{
	struct cpc_io_fingers *fingers = cpc_io_fingers_alloc(FINGERS, (unsigned)rnd(9));

	assert_non_null(fingers);
	cpc_io_fingers_install(&m->tree, fingers);
	m->tree.sweep_records = 1 + rnd(20);
}

static void run_model(uint64_t base, uint64_t seed, uint64_t ops)
{
	struct cpc_io_tree_config config = {0};
	struct cpc_io_tree_stats stats;
	struct model *m = calloc(1, sizeof(*m));

	assert_non_null(m);
	rng = (seed * 0x9e3779b97f4a7c15ULL) | 1;
	m->base = base;
	m->seed = seed;
	m->name = "init";
	cpc_io_tree_init(&m->tree, &config);
	m->tree.dice = rng;
	while (m->op < ops) {
		if (m->op % 1000 == 0)
			give_fingers(m);
		step(m);
	}
	while (m->nr_held)
		op_unlock(m);
	if (m->hint)
		cpc_io_tree_release(&m->tree, &m->hint);
	cpc_io_tree_get_stats(&m->tree, &stats);
	print_message("base 0x%llx: %llu ops, trims %llu splits %llu merges %llu chunks %llu "
		      "sweeps %llu finger hits %llu misses %llu\n",
		      (unsigned long long)base, (unsigned long long)ops,
		      (unsigned long long)stats.trims, (unsigned long long)stats.splits,
		      (unsigned long long)stats.merges, (unsigned long long)stats.chunks,
		      (unsigned long long)stats.sweeps, (unsigned long long)stats.finger_hits,
		      (unsigned long long)stats.finger_misses);
	assert_true(ops < 1000 || (stats.trims && stats.splits && stats.merges && stats.sweeps &&
				   stats.finger_hits && stats.finger_misses));
	cpc_io_tree_destroy(&m->tree);
	free(m);
}

static void tree_equals_bit_array(void **state)
{
	const char *ops_env = getenv("CPC_TEST_OPS"), *seed_env = getenv("CPC_TEST_SEED");
	uint64_t ops = ops_env ? strtoull(ops_env, NULL, 0) : DEFAULT_OPS;
	uint64_t seed = seed_env ? strtoull(seed_env, NULL, 0) : (uint64_t)time(NULL);

	cpc_hooks.alloc = test_alloc;
	print_message("CPC_TEST_SEED=%llu CPC_TEST_OPS=%llu\n", (unsigned long long)seed,
		      (unsigned long long)ops);
	run_model(0, seed, ops / 3);
	run_model(UINT64_C(1) << 40, seed + 1, ops / 3);
	run_model(CPC_IO_TREE_END - SIZE, seed + 2, ops / 3);
	cpc_hooks = cpc_hooks_default;
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(tree_equals_bit_array)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
