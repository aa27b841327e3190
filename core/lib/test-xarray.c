/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Tests of the tagged index, each named by its claim: random operations against an array that
 * does the same the slow way, failing allocations, readers without a lock.
 * CPC_TEST_OPS sets the number of random operations, CPC_TEST_SEED repeats a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <cmocka.h>
#include "lib/epoch.h"
#include "lib/hooks.h"
#include "lib/lock.h"
#include "lib/xarray.h"

#define DEFAULT_OPS 6000000u

static uint64_t seed;

/* xorshift64*: repeatable, good enough for choosing. */
static uint64_t next_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * UINT64_C(0x2545f4914f6cdd1d);
}

static uint64_t below(uint64_t *state, uint64_t limit)
{
	return (next_random(state) >> 16) % limit;
}

static uint64_t env_u64(const char *name, uint64_t by_default)
{
	const char *s = getenv(name);

	return s ? strtoull(s, NULL, 0) : by_default;
}

static int print_seed(void **state)
{
	print_message("CPC_TEST_SEED=%llu\n", (unsigned long long)seed);
	return 0;
}

/* Memory: counts what is alive, fails what it is told to fail */

static _Atomic(long) nr_live;
static _Atomic(long) fail_in; /* the n-th allocation from now fails, as all after it; 0: none */

static void *counting_alloc(size_t align, size_t size)
{
	void *p;

	if (atomic_load(&fail_in) > 0) {
		if (atomic_load(&fail_in) == 1)
			return NULL;
		atomic_fetch_sub(&fail_in, 1);
	}
	p = cpc_hooks_default.alloc(align, size);
	if (p)
		atomic_fetch_add(&nr_live, 1);
	return p;
}

static void counting_free(void *p)
{
	atomic_fetch_sub(&nr_live, 1);
	cpc_hooks_default.free(p);
}

static void assert_no_memory_left(void)
{
	cpc_epoch_drain();
	assert_int_equal(atomic_load(&nr_live), 0);
}

/* Entries are never looked into by the tree: any aligned number does. */
static void *entry_of(uint64_t n)
{
	return (void *)(uintptr_t)((n + 1) * 4);
}

/* The reference: sorted keys, chosen in advance; for each an entry or NULL, and its marks */

#define MAX_KEYS 1024u

struct reference {
	unsigned int nr;
	uint64_t key[MAX_KEYS];
	void *entry[MAX_KEYS];
	bool mark[CPC_XA_NR_MARKS][MAX_KEYS]; /* [CPC_MARK_NONE]: present */
};

enum shape { DENSE, DENSE_HIGH, SPARSE, HUGE_KEYS, STRIDES, POWERS, NR_SHAPES };

static uint64_t random_key(uint64_t *rnd, enum shape shape, uint64_t n)
{
	switch (shape) {
	case DENSE:
		return n;
	case DENSE_HIGH:
		return (UINT64_C(1) << 52) - MAX_KEYS / 2 + n;
	case SPARSE:
		return next_random(rnd) >> below(rnd, 64);
	case HUGE_KEYS:
		return UINT64_MAX - (below(rnd, 4) ? n : next_random(rnd) >> below(rnd, 64));
	case STRIDES:
		return below(rnd, 80) << (6 * below(rnd, 10));
	default:
		return (UINT64_C(1) << below(rnd, 64)) + below(rnd, 5) - 2;
	}
}

static int compare_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void reference_init(struct reference *ref, uint64_t *rnd, enum shape shape)
{
	unsigned int nr = (unsigned int)below(rnd, MAX_KEYS) + 1, n = 1;

	memset(ref, 0, sizeof(*ref));
	for (unsigned int i = 0; i < nr; i++)
		ref->key[i] = random_key(rnd, shape, i);
	if (shape != DENSE)
		ref->key[0] = below(rnd, 2) ? 0 : UINT64_MAX;
	qsort(ref->key, nr, sizeof(ref->key[0]), compare_u64);
	for (unsigned int i = 1; i < nr; i++)
		if (ref->key[i] != ref->key[n - 1])
			ref->key[n++] = ref->key[i];
	ref->nr = n;
}

/* Returns the first key's number at or after `index` with the mark, up to `max`; nr if none. */
static unsigned int reference_find(const struct reference *ref, uint64_t index, uint64_t max,
				   unsigned int mark)
{
	unsigned int i = 0, end = ref->nr;

	while (i < end) {
		unsigned int middle = (i + end) / 2;

		if (ref->key[middle] < index)
			i = middle + 1;
		else
			end = middle;
	}
	while (i < ref->nr && !ref->mark[mark][i])
		i++;
	return i < ref->nr && ref->key[i] <= max ? i : ref->nr;
}

static uint64_t reference_count(const struct reference *ref, unsigned int mark)
{
	uint64_t nr = 0;

	for (unsigned int i = 0; i < ref->nr; i++)
		nr += ref->mark[mark][i];
	return nr;
}

static void reference_put(struct reference *ref, unsigned int i, void *entry)
{
	ref->entry[i] = entry;
	for (unsigned int mark = 0; mark < CPC_XA_NR_MARKS; mark++)
		ref->mark[mark][i] = mark == CPC_MARK_NONE && entry;
}

static void assert_same(const struct cpc_xarray *xa, const struct reference *ref)
{
	assert_int_equal(cpc_xa_check(xa), reference_count(ref, CPC_MARK_NONE));
	for (unsigned int mark = 0; mark < CPC_XA_NR_MARKS; mark++)
		assert_int_equal(cpc_xa_marked(xa, mark), reference_count(ref, mark) > 0);
	for (unsigned int i = 0; i < ref->nr; i++) {
		assert_ptr_equal(cpc_xa_load(xa, ref->key[i]), ref->entry[i]);
		for (unsigned int mark = 0; mark < CPC_XA_NR_MARKS; mark++)
			assert_int_equal(cpc_xa_get_mark(xa, ref->key[i], mark),
					 ref->mark[mark][i]);
	}
}

/* Random operations, each done on both sides */

struct model {
	struct cpc_xarray xa;
	struct reference ref;
	uint64_t rnd;
};

static enum cpc_xa_mark some_mark(struct model *m)
{
	return (enum cpc_xa_mark)(1 + below(&m->rnd, CPC_XA_NR_MARKS - 1));
}

static void op_store(struct model *m, unsigned int i)
{
	void *entry = entry_of(below(&m->rnd, 1000)), *old;

	assert_int_equal(cpc_xa_store(&m->xa, m->ref.key[i], entry, &old), 0);
	assert_ptr_equal(old, m->ref.entry[i]);
	reference_put(&m->ref, i, entry);
}

static void op_erase(struct model *m, unsigned int i)
{
	assert_ptr_equal(cpc_xa_erase(&m->xa, m->ref.key[i]), m->ref.entry[i]);
	reference_put(&m->ref, i, NULL);
}

static void op_mark(struct model *m, unsigned int i, bool set)
{
	enum cpc_xa_mark mark = some_mark(m);
	bool *now = &m->ref.mark[mark][i], changes = m->ref.entry[i] && *now != set;

	if (set)
		assert_int_equal(cpc_xa_set_mark(&m->xa, m->ref.key[i], mark), changes);
	else
		assert_int_equal(cpc_xa_clear_mark(&m->xa, m->ref.key[i], mark), changes);
	if (changes)
		*now = set;
}

/* A range that begins and ends at, before or after keys, or goes to the end. */
static void some_range(struct model *m, uint64_t *index, uint64_t *max)
{
	uint64_t a = m->ref.key[below(&m->rnd, m->ref.nr)] + below(&m->rnd, 3) - 1;
	uint64_t b = m->ref.key[below(&m->rnd, m->ref.nr)] + below(&m->rnd, 3) - 1;

	*index = cpc_min_u64(a, b);
	*max = below(&m->rnd, 4) ? cpc_max_u64(a, b) : UINT64_MAX;
}

static void op_find(struct model *m)
{
	enum cpc_xa_mark mark = (enum cpc_xa_mark)below(&m->rnd, CPC_XA_NR_MARKS);
	uint64_t index, max, before;
	unsigned int i;
	void *entry;

	some_range(m, &index, &max);
	before = index;
	entry = cpc_xa_find_marked(&m->xa, &index, max, mark);
	i = reference_find(&m->ref, before, max, mark);
	assert_ptr_equal(entry, i < m->ref.nr ? m->ref.entry[i] : NULL);
	assert_int_equal(index, i < m->ref.nr ? m->ref.key[i] : before);
}

static void op_find_batches(struct model *m)
{
	enum cpc_xa_mark mark = (enum cpc_xa_mark)below(&m->rnd, CPC_XA_NR_MARKS);
	unsigned int nr = (unsigned int)below(&m->rnd, 40) + 1, n, i;
	uint64_t index, max, keys[40], at;
	void *entries[40];

	some_range(m, &index, &max);
	at = index;
	do {
		n = cpc_xa_find_batch(&m->xa, &index, max, mark, entries, keys, nr);
		for (unsigned int k = 0; k < n; k++) {
			i = reference_find(&m->ref, at, max, mark);
			assert_true(i < m->ref.nr);
			assert_int_equal(keys[k], m->ref.key[i]);
			assert_ptr_equal(entries[k], m->ref.entry[i]);
			at = keys[k] + 1;
			if (at == 0)
				assert_int_equal(k, n - 1);
		}
	} while (n == nr && index != 0 && index <= max);
	if (at != 0)
		assert_int_equal(reference_find(&m->ref, at, max, mark), m->ref.nr);
}

static void op_tag_range(struct model *m)
{
	enum cpc_xa_mark from = (enum cpc_xa_mark)below(&m->rnd, CPC_XA_NR_MARKS);
	enum cpc_xa_mark to = some_mark(m);
	unsigned int limit = (unsigned int)below(&m->rnd, 200) + 1, n;
	uint64_t index, max, start, seen = 0;

	some_range(m, &index, &max);
	start = index;
	do {
		n = cpc_xa_tag_range(&m->xa, &index, max, from, to, limit);
		assert_true(n <= limit);
		seen += n;
	} while (n == limit && index != 0 && index <= max);
	for (unsigned int i = 0; i < m->ref.nr; i++)
		if (m->ref.key[i] >= start && m->ref.key[i] <= max && m->ref.mark[from][i]) {
			m->ref.mark[to][i] = true;
			seen--;
		}
	assert_int_equal(seen, 0);
}

static void op_query(struct model *m, unsigned int i)
{
	enum cpc_xa_mark mark = (enum cpc_xa_mark)below(&m->rnd, CPC_XA_NR_MARKS);

	assert_ptr_equal(cpc_xa_load(&m->xa, m->ref.key[i]), m->ref.entry[i]);
	assert_int_equal(cpc_xa_get_mark(&m->xa, m->ref.key[i], mark), m->ref.mark[mark][i]);
}

/* `fill` in percent: how often a store rather than an erase. */
static void random_op(struct model *m, unsigned int fill)
{
	unsigned int i = (unsigned int)below(&m->rnd, m->ref.nr);
	uint64_t what = below(&m->rnd, 1000);

	if (what < 400)
		(below(&m->rnd, 100) < fill ? op_store : op_erase)(m, i);
	else if (what < 600)
		op_mark(m, i, below(&m->rnd, 2));
	else if (what < 850)
		op_query(m, i);
	else if (what < 985)
		op_find(m);
	else if (what < 998)
		op_find_batches(m);
	else
		op_tag_range(m);
}

static void erase_all(struct model *m)
{
	for (unsigned int i = 0; i < m->ref.nr; i++)
		op_erase(m, i);
	assert_int_equal(cpc_xa_check(&m->xa), 0);
	assert_int_equal(cpc_xa_nodes(&m->xa), 0);
}

static void random_operations_equal_the_reference(void **state)
{
	static const unsigned int fills[] = {50, 90, 50, 20, 5};
	uint64_t ops = env_u64("CPC_TEST_OPS", DEFAULT_OPS), done = 0;
	struct model *m = malloc(sizeof(*m));

	assert_non_null(m);
	m->rnd = seed;
	while (done < ops) {
		cpc_xa_init(&m->xa);
		reference_init(&m->ref, &m->rnd, (enum shape)below(&m->rnd, NR_SHAPES));
		for (unsigned int phase = 0; phase < CPC_ARRAY_SIZE(fills); phase++) {
			for (unsigned int i = 0; i < 4000; i++) {
				random_op(m, fills[phase]);
				if (i % 500 == 0)
					cpc_xa_check(&m->xa);
			}
			assert_same(&m->xa, &m->ref);
			done += 4000;
		}
		erase_all(m);
		cpc_xa_destroy(&m->xa);
	}
	free(m);
	assert_no_memory_left();
}

/* Claims on their own */

static void a_mark_shows_at_every_level(void **state)
{
	struct cpc_xarray xa;
	void *old;

	cpc_xa_init(&xa);
	for (unsigned int shift = 0; shift < 64; shift++) {
		assert_int_equal(cpc_xa_store(&xa, UINT64_C(1) << shift, entry_of(shift), &old), 0);
		assert_null(old);
	}
	for (unsigned int shift = 0; shift < 64; shift++) {
		assert_true(cpc_xa_set_mark(&xa, UINT64_C(1) << shift, CPC_MARK_DIRTY));
		assert_false(cpc_xa_set_mark(&xa, UINT64_C(1) << shift, CPC_MARK_DIRTY));
		assert_int_equal(cpc_xa_check(&xa), 64);
		assert_true(cpc_xa_marked(&xa, CPC_MARK_DIRTY));
		assert_false(cpc_xa_marked(&xa, CPC_MARK_WRITEBACK));
		assert_true(cpc_xa_clear_mark(&xa, UINT64_C(1) << shift, CPC_MARK_DIRTY));
		assert_int_equal(cpc_xa_check(&xa), 64);
		assert_false(cpc_xa_marked(&xa, CPC_MARK_DIRTY));
	}
	cpc_xa_destroy(&xa);
	assert_no_memory_left();
}

static void replacing_clears_the_marks(void **state)
{
	struct cpc_xarray xa;
	void *old;

	cpc_xa_init(&xa);
	assert_int_equal(cpc_xa_store(&xa, 5000, entry_of(1), NULL), 0);
	assert_true(cpc_xa_set_mark(&xa, 5000, CPC_MARK_TOWRITE));
	assert_int_equal(cpc_xa_store(&xa, 5000, entry_of(2), &old), 0);
	assert_ptr_equal(old, entry_of(1));
	assert_false(cpc_xa_get_mark(&xa, 5000, CPC_MARK_TOWRITE));
	assert_false(cpc_xa_marked(&xa, CPC_MARK_TOWRITE));
	assert_false(cpc_xa_set_mark(&xa, 5001, CPC_MARK_TOWRITE));
	cpc_xa_destroy(&xa);
	assert_no_memory_left();
}

static void a_raised_root_keeps_the_marks(void **state)
{
	struct cpc_xarray xa;

	cpc_xa_init(&xa);
	assert_int_equal(cpc_xa_store(&xa, 3, entry_of(1), NULL), 0);
	assert_true(cpc_xa_set_mark(&xa, 3, CPC_MARK_DIRTY));
	assert_int_equal(cpc_xa_nodes(&xa), 1);
	assert_int_equal(cpc_xa_store(&xa, UINT64_MAX, entry_of(2), NULL), 0);
	assert_int_equal(cpc_xa_nodes(&xa), 21);
	assert_int_equal(cpc_xa_check(&xa), 2);
	assert_true(cpc_xa_get_mark(&xa, 3, CPC_MARK_DIRTY));
	assert_ptr_equal(cpc_xa_erase(&xa, UINT64_MAX), entry_of(2));
	assert_int_equal(cpc_xa_nodes(&xa), 1);
	assert_true(cpc_xa_marked(&xa, CPC_MARK_DIRTY));
	cpc_xa_destroy(&xa);
	assert_no_memory_left();
}

static void tagging_pauses_at_the_limit_and_resumes(void **state)
{
	struct cpc_xarray xa;
	uint64_t index = 0;

	cpc_xa_init(&xa);
	for (uint64_t i = 0; i < 1000; i++) {
		assert_int_equal(cpc_xa_store(&xa, i, entry_of(i), NULL), 0);
		if (i % 2)
			cpc_xa_set_mark(&xa, i, CPC_MARK_DIRTY);
	}
	assert_int_equal(cpc_xa_tag_range(&xa, &index, 899, CPC_MARK_DIRTY, CPC_MARK_TOWRITE, 100),
			 100);
	assert_int_equal(index, 200);
	/* Dirtied behind the place: a later cut's. Dirtied before it: still of this one. */
	cpc_xa_set_mark(&xa, 100, CPC_MARK_DIRTY);
	cpc_xa_set_mark(&xa, 300, CPC_MARK_DIRTY);
	assert_int_equal(cpc_xa_tag_range(&xa, &index, 899, CPC_MARK_DIRTY, CPC_MARK_TOWRITE, 1000),
			 351);
	cpc_xa_check(&xa);
	for (uint64_t i = 0; i < 1000; i++)
		assert_int_equal(cpc_xa_get_mark(&xa, i, CPC_MARK_TOWRITE),
				 i < 900 && (i % 2 || i == 300));
	cpc_xa_destroy(&xa);
	assert_no_memory_left();
}

static void a_walk_ends_at_the_last_index(void **state)
{
	struct cpc_xarray xa;
	uint64_t index = UINT64_MAX - 1;
	void *out[2];

	cpc_xa_init(&xa);
	assert_int_equal(cpc_xa_store(&xa, UINT64_MAX, entry_of(1), NULL), 0);
	assert_int_equal(cpc_xa_find_batch(&xa, &index, UINT64_MAX, CPC_MARK_NONE, out, NULL, 1),
			 1);
	assert_int_equal(index, 0);
	index = UINT64_MAX;
	assert_int_equal(cpc_xa_find_batch(&xa, &index, UINT64_MAX, CPC_MARK_NONE, out, NULL, 2),
			 1);
	index = UINT64_MAX;
	assert_ptr_equal(cpc_xa_find(&xa, &index, UINT64_MAX), entry_of(1));
	assert_int_equal(index, UINT64_MAX);
	index = 0;
	assert_null(cpc_xa_find(&xa, &index, UINT64_MAX - 1));
	cpc_xa_destroy(&xa);
	assert_no_memory_left();
}

static void a_failed_store_changes_nothing(void **state)
{
	uint64_t ops = env_u64("CPC_TEST_OPS", DEFAULT_OPS) / 2000;
	struct model *m = malloc(sizeof(*m));
	unsigned long nr_failed = 0;

	assert_non_null(m);
	m->rnd = seed;
	for (uint64_t round = 0; round < ops / 200 + 1; round++) {
		cpc_xa_init(&m->xa);
		reference_init(&m->ref, &m->rnd, (enum shape)below(&m->rnd, NR_SHAPES));
		for (unsigned int op = 0; op < 200; op++) {
			unsigned int i = (unsigned int)below(&m->rnd, m->ref.nr);
			void *old = entry_of(7);

			for (long n = 1;; n++) {
				size_t nodes = cpc_xa_nodes(&m->xa);
				int ret;

				atomic_store(&fail_in, n);
				ret = cpc_xa_store(&m->xa, m->ref.key[i], entry_of(op), &old);
				atomic_store(&fail_in, 0);
				if (!ret)
					break;
				nr_failed++;
				assert_int_equal(ret, -ENOMEM);
				assert_ptr_equal(old, entry_of(7));
				assert_int_equal(cpc_xa_nodes(&m->xa), nodes);
				assert_same(&m->xa, &m->ref);
			}
			assert_ptr_equal(old, m->ref.entry[i]);
			reference_put(&m->ref, i, entry_of(op));
			op_mark(m, (unsigned int)below(&m->rnd, m->ref.nr), true);
			op_erase(m, (unsigned int)below(&m->rnd, m->ref.nr));
			assert_same(&m->xa, &m->ref);
		}
		erase_all(m);
		cpc_xa_destroy(&m->xa);
	}
	assert_true(nr_failed > 0);
	free(m);
	assert_no_memory_left();
}

static void a_store_after_prealloc_cannot_fail(void **state)
{
	static const uint64_t keys[] = {0, UINT64_MAX, 64, UINT64_C(1) << 60, 4096};
	struct cpc_xarray xa;

	cpc_xa_init(&xa);
	for (long n = 1; n <= 20; n++) {
		atomic_store(&fail_in, n);
		assert_int_equal(cpc_xa_prealloc(&xa), -ENOMEM);
		assert_int_equal(cpc_xa_nodes(&xa), 0);
	}
	for (unsigned int i = 0; i < CPC_ARRAY_SIZE(keys); i++) {
		atomic_store(&fail_in, 0);
		assert_int_equal(cpc_xa_prealloc(&xa), 0);
		atomic_store(&fail_in, 1);
		assert_int_equal(cpc_xa_store(&xa, keys[i], entry_of(i), NULL), 0);
		assert_int_equal(cpc_xa_check(&xa), i + 1);
	}
	atomic_store(&fail_in, 0);
	for (unsigned int i = 0; i < CPC_ARRAY_SIZE(keys); i++)
		assert_ptr_equal(cpc_xa_erase(&xa, keys[i]), entry_of(i));
	cpc_xa_drop_spare(&xa);
	assert_int_equal(cpc_xa_nodes(&xa), 0);
	assert_no_memory_left();
	cpc_xa_destroy(&xa);
}

static void destroy_frees_the_nodes_of_what_is_left(void **state)
{
	struct cpc_xarray xa;
	uint64_t rnd = seed;

	cpc_xa_init(&xa);
	for (unsigned int i = 0; i < 1000; i++)
		assert_int_equal(cpc_xa_store(&xa, random_key(&rnd, SPARSE, i), entry_of(i), NULL),
				 0);
	cpc_xa_destroy(&xa);
	assert_int_equal(cpc_xa_nodes(&xa), 0);
	assert_false(cpc_xa_marked(&xa, CPC_MARK_NONE));
	assert_no_memory_left();
}

/* Readers without the lock */

#define NR_READERS  2
#define NR_PLACES   700u /* every 7th place is never erased */
#define ITEM_ALIVE  0x6974656du
#define STABLE(i)   ((i) % 7 == 0)
#define PLACE(i)    ((uint64_t)(i) * (i) * (i)*11)
#define NR_STABLE   (NR_PLACES / 7)
#define MARK_STABLE CPC_MARK_WRITEBACK /* set on the stable ones for ever */

struct item {
	struct cpc_epoch_entry retired;
	uint64_t index;
	uint64_t magic;
};

struct shared {
	struct cpc_xarray xa;
	struct cpc_mutex lock;
	_Atomic(bool) stop;
	_Atomic(unsigned long) nr_bad;
	uint64_t ops;
};

static void item_free(struct cpc_epoch_entry *entry)
{
	struct item *item = cpc_container_of(entry, struct item, retired);

	item->magic = 0;
	cpc_free(item);
}

static struct item *item_new(uint64_t index)
{
	struct item *item = cpc_alloc(sizeof(*item));

	if (!item)
		abort();
	item->index = index;
	item->magic = ITEM_ALIVE;
	return item;
}

static bool item_good(const struct item *item, uint64_t index)
{
	return item->magic == ITEM_ALIVE && item->index == index;
}

/* Returns the number of faults seen in one walk over everything with the mark. */
static unsigned long read_all(struct shared *s, enum cpc_xa_mark mark)
{
	unsigned long bad = 0, nr_stable = 0;
	uint64_t index = 0, keys[64], last = 0;
	unsigned int n, total = 0;
	void *items[64];

	do {
		n = cpc_xa_find_batch(&s->xa, &index, UINT64_MAX, mark, items, keys, 64);
		for (unsigned int k = 0; k < n; k++) {
			bad += !item_good(items[k], keys[k]);
			bad += total++ && keys[k] <= last;
			last = keys[k];
			nr_stable += cpc_xa_get_mark(&s->xa, keys[k], MARK_STABLE);
		}
	} while (n == 64);
	/* A mark of stable entries only is seen on all of them, whatever else goes on. */
	return bad + (nr_stable != NR_STABLE);
}

static void *reader(void *arg)
{
	struct shared *s = arg;
	uint64_t rnd = seed ^ (uintptr_t)&rnd;
	unsigned long bad = 0;

	while (!atomic_load_explicit(&s->stop, memory_order_relaxed)) {
		uint64_t i = below(&rnd, NR_PLACES);
		struct item *item;

		cpc_epoch_enter();
		item = cpc_xa_load(&s->xa, PLACE(i));
		bad += item ? !item_good(item, PLACE(i)) : STABLE(i);
		if (below(&rnd, 50) == 0)
			bad += read_all(s, below(&rnd, 2) ? CPC_MARK_NONE : MARK_STABLE);
		cpc_epoch_exit();
	}
	atomic_fetch_add(&s->nr_bad, bad);
	return NULL;
}

static void put_item(struct shared *s, uint64_t i)
{
	void *old;

	if (cpc_xa_store(&s->xa, PLACE(i), item_new(PLACE(i)), &old))
		abort();
	if (old)
		cpc_epoch_retire(&((struct item *)old)->retired, item_free);
}

static void remove_item(struct shared *s, uint64_t i)
{
	struct item *old = cpc_xa_erase(&s->xa, PLACE(i));

	if (old)
		cpc_epoch_retire(&old->retired, item_free);
}

/* Changes what is not stable; now and then empties nearly all, so that the root goes down. */
static void *writer(void *arg)
{
	struct shared *s = arg;
	uint64_t rnd = seed + 1;

	for (uint64_t op = 0; op < s->ops; op++) {
		uint64_t i = below(&rnd, NR_PLACES);

		cpc_mutex_lock(&s->lock);
		if (STABLE(i))
			(below(&rnd, 2) ? cpc_xa_set_mark : cpc_xa_clear_mark)(&s->xa, PLACE(i),
									       CPC_MARK_DIRTY);
		else if (below(&rnd, 2 + op / 1000 % 3) == 0)
			put_item(s, i);
		else
			remove_item(s, i);
		if (op % 5000 == 0)
			cpc_xa_check(&s->xa);
		cpc_mutex_unlock(&s->lock);
	}
	return NULL;
}

static void run_readers_and_writers(struct shared *s)
{
	pthread_t threads[NR_READERS + 2];

	for (int i = 0; i < NR_READERS + 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, i < 2 ? writer : reader, s), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	atomic_store(&s->stop, true);
	for (int i = 2; i < NR_READERS + 2; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(atomic_load(&s->nr_bad), 0);
}

static void readers_need_no_lock(void **state)
{
	struct shared s = {.ops = env_u64("CPC_TEST_OPS", DEFAULT_OPS) / 40};

	cpc_xa_init(&s.xa);
	cpc_mutex_init(&s.lock, "test", CPC_RANK_CACHE);
	for (uint64_t i = 0; i < NR_PLACES; i++)
		if (STABLE(i)) {
			put_item(&s, i);
			assert_true(cpc_xa_set_mark(&s.xa, PLACE(i), MARK_STABLE));
		}
	run_readers_and_writers(&s);
	for (uint64_t i = 0; i < NR_PLACES; i++)
		remove_item(&s, i);
	assert_int_equal(cpc_xa_nodes(&s.xa), 0);
	cpc_xa_destroy(&s.xa);
	cpc_mutex_destroy(&s.lock);
	assert_no_memory_left();
}

/* The root goes up and down all the time while entries below it are read. */
static void *root_mover(void *arg)
{
	static const uint64_t far[] = {64, 5000, 1u << 20, UINT64_MAX};
	struct shared *s = arg;
	void *entry = entry_of(1);

	for (uint64_t op = 0; op < s->ops; op++) {
		cpc_mutex_lock(&s->lock);
		if (cpc_xa_store(&s->xa, far[op % 4], entry, NULL))
			abort();
		if (cpc_xa_erase(&s->xa, far[op % 4]) != entry)
			abort();
		cpc_mutex_unlock(&s->lock);
	}
	atomic_store(&s->stop, true);
	return NULL;
}

static void a_moving_root_hides_nothing_below(void **state)
{
	struct shared s = {.ops = env_u64("CPC_TEST_OPS", DEFAULT_OPS) / 40};
	pthread_t thread;
	bool found = true;

	cpc_xa_init(&s.xa);
	cpc_mutex_init(&s.lock, "test", CPC_RANK_CACHE);
	assert_int_equal(cpc_xa_store(&s.xa, 9, entry_of(9), NULL), 0);
	assert_true(cpc_xa_set_mark(&s.xa, 9, CPC_MARK_DIRTY));
	assert_int_equal(pthread_create(&thread, NULL, root_mover, &s), 0);
	while (found && !atomic_load(&s.stop)) {
		uint64_t index = 0;

		cpc_epoch_enter();
		found =
		    cpc_xa_load(&s.xa, 9) == entry_of(9) && cpc_xa_marked(&s.xa, CPC_MARK_DIRTY) &&
		    cpc_xa_find_marked(&s.xa, &index, UINT64_MAX, CPC_MARK_DIRTY) == entry_of(9) &&
		    index == 9;
		cpc_epoch_exit();
	}
	pthread_join(thread, NULL);
	assert_true(found);
	assert_ptr_equal(cpc_xa_erase(&s.xa, 9), entry_of(9));
	cpc_xa_destroy(&s.xa);
	cpc_mutex_destroy(&s.lock);
	assert_no_memory_left();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_mark_shows_at_every_level),
	    cmocka_unit_test(replacing_clears_the_marks),
	    cmocka_unit_test(a_raised_root_keeps_the_marks),
	    cmocka_unit_test(tagging_pauses_at_the_limit_and_resumes),
	    cmocka_unit_test(a_walk_ends_at_the_last_index),
	    cmocka_unit_test(a_store_after_prealloc_cannot_fail),
	    cmocka_unit_test(destroy_frees_the_nodes_of_what_is_left),
	    cmocka_unit_test(a_failed_store_changes_nothing),
	    cmocka_unit_test(random_operations_equal_the_reference),
	    cmocka_unit_test(readers_need_no_lock),
	    cmocka_unit_test(a_moving_root_hides_nothing_below),
	};

	seed = env_u64("CPC_TEST_SEED", (uint64_t)time(NULL) * 2654435761u) | 1;
	cpc_hooks.alloc = counting_alloc;
	cpc_hooks.free = counting_free;
	return cmocka_run_group_tests_name("xarray", tests, print_seed, NULL);
}
