/* SPDX-License-Identifier: BSD-3-Clause */
/* What the io tree promises call by call: trims, edges, references, memory, wake-ups. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>
#include "lib/hist.h"
#include "lib/hooks.h"
#include "io-tree/io-finger.h"
#include "io-tree/io-tree-internal.h"

#define DIRTY CPC_IO_DELALLOC
#define BOTH  ((enum cpc_io_bits)(CPC_IO_DELALLOC | CPC_IO_WRITEBACK))
#define LAST  (CPC_IO_TREE_END - 1)

static uint64_t allocs_left = UINT64_MAX;
static size_t no_alloc_of; /* bytes: this size is not to be had */
static int nr_allocs;

static void (*during_alloc)(void); /* once */

static void *counting_alloc(size_t align, size_t size)
{
	void (*interfere)(void) = during_alloc;

	during_alloc = NULL;
	if (interfere)
		interfere();
	if (!allocs_left || (no_alloc_of && size == no_alloc_of))
		return NULL;
	allocs_left--;
	nr_allocs++;
	return cpc_hooks_default.alloc(align, size);
}

static int setup(void **state)
{
	static const struct cpc_io_tree_config config;
	struct cpc_io_tree *tree = aligned_alloc(64, sizeof(*tree));

	assert_non_null(tree);
	cpc_hooks.alloc = counting_alloc;
	allocs_left = UINT64_MAX;
	cpc_io_tree_init(tree, &config);
	*state = tree;
	return 0;
}

static void check(struct cpc_io_tree *tree)
{
	char why[128];

	if (cpc_io_tree_check(tree, why, sizeof(why)))
		fail_msg("%s", why);
}

static int teardown(void **state)
{
	check(*state);
	cpc_io_tree_destroy(*state);
	free(*state);
	cpc_hooks = cpc_hooks_default;
	return 0;
}

static struct cpc_io_tree_stats stats_of(struct cpc_io_tree *tree)
{
	struct cpc_io_tree_stats stats;

	cpc_io_tree_get_stats(tree, &stats);
	return stats;
}

/* The records as text: "[start,end)bits " each. */
static const char *records_of(const struct cpc_io_tree *tree)
{
	static char text[4096];
	const struct cpc_io_state *rec;
	size_t used = 0;

	text[0] = 0;
	for (rec = tree->first; rec && used < sizeof(text); rec = rec->next)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "[%llu,%llu)%x ",
					 (unsigned long long)rec->start,
					 (unsigned long long)rec->end, rec->bits);
	return text;
}

/* A changeset that expects one piece. */
struct piece {
	struct cpc_changeset cs;
	uint64_t start, len;
	unsigned nr, cleared;
};

static int piece_add(struct cpc_changeset *cs, uint64_t start, uint64_t len, enum cpc_io_bits set,
		     enum cpc_io_bits cleared)
{
	struct piece *p = cpc_container_of(cs, struct piece, cs);

	p->nr++;
	p->start = start;
	p->len = len;
	p->cleared = cleared;
	return 0;
}

/* Clears [start, start + len), which must trim one record: nothing else may happen to the tree. */
static void expect_trim(struct cpc_io_tree *tree, uint64_t start, uint64_t len, uint64_t cut_start,
			uint64_t cut_len)
{
	struct piece piece = {.cs.add = piece_add};
	struct cpc_io_tree_stats before = stats_of(tree), after;
	struct cpc_io_state *spares = tree->spares;
	uint64_t nr = tree->stats.spares;

	tree->spares = NULL; /* taking one would be fatal, asking for one -ENOMEM */
	tree->stats.spares = 0;
	allocs_left = 0;
	assert_int_equal(cpc_io_tree_clear(tree, start, len, CPC_IO_ALL, NULL, &piece.cs), 0);
	allocs_left = UINT64_MAX;
	assert_null(tree->spares);
	tree->spares = spares;
	tree->stats.spares = nr;

	after = stats_of(tree);
	assert_int_equal(after.trims, before.trims + 1);
	assert_int_equal(after.inserts, before.inserts);
	assert_int_equal(after.erases, before.erases);
	assert_int_equal(after.splits, before.splits);
	assert_int_equal(after.chunks, before.chunks);
	assert_int_equal(piece.nr, 1);
	assert_int_equal(piece.start, cut_start);
	assert_int_equal(piece.len, cut_len);
	assert_int_equal(piece.cleared, BOTH);
	assert_int_equal(piece.cs.cleared_bytes, cut_len);
	assert_int_equal(piece.cs.set_bytes, 0);
}

static void clearing_over_the_end_of_a_record_trims_it_in_place(void **state)
{
	assert_int_equal(cpc_io_tree_set(*state, 100, 100, BOTH, NULL, NULL), 0);
	expect_trim(*state, 180, 100, 180, 20);
	assert_string_equal(records_of(*state), "[100,180)6 ");
	expect_trim(*state, 179, 1, 179, 1);
	assert_string_equal(records_of(*state), "[100,179)6 ");
}

static void clearing_over_the_start_of_a_record_trims_it_in_place(void **state)
{
	assert_int_equal(cpc_io_tree_set(*state, 100, 100, BOTH, NULL, NULL), 0);
	expect_trim(*state, 0, 120, 100, 20);
	assert_string_equal(records_of(*state), "[120,200)6 ");
	expect_trim(*state, 120, 1, 120, 1);
	assert_string_equal(records_of(*state), "[121,200)6 ");
}

static void clearing_the_middle_splits_with_one_spare(void **state)
{
	struct cpc_io_tree_stats before, after;

	assert_int_equal(cpc_io_tree_set(*state, 0, 100, DIRTY, NULL, NULL), 0);
	before = stats_of(*state);
	assert_int_equal(cpc_io_tree_clear(*state, 40, 20, CPC_IO_ALL, NULL, NULL), 0);
	after = stats_of(*state);
	assert_string_equal(records_of(*state), "[0,40)2 [60,100)2 ");
	assert_int_equal(after.inserts, before.inserts + 1);
	assert_int_equal(after.erases, before.erases);
	assert_int_equal(after.trims, before.trims);
}

static void equal_neighbours_merge_but_locked_ones_do_not(void **state)
{
	struct cpc_io_tree *tree = *state;

	assert_int_equal(cpc_io_tree_lock(tree, 0, 10, NULL), 0);
	assert_int_equal(cpc_io_tree_lock(tree, 10, 10, NULL), 0);
	assert_string_equal(records_of(tree), "[0,10)1 [10,20)1 ");
	assert_int_equal(cpc_io_tree_set(tree, 0, 20, DIRTY, NULL, NULL), 0);
	assert_string_equal(records_of(tree), "[0,10)3 [10,20)3 ");
	cpc_io_tree_unlock(tree, 0, 10, NULL);
	assert_string_equal(records_of(tree), "[0,10)2 [10,20)3 ");
	cpc_io_tree_unlock(tree, 10, 10, NULL);
	assert_string_equal(records_of(tree), "[0,20)2 ");
}

static void ranges_reach_from_0_to_the_last_byte(void **state)
{
	struct cpc_io_tree *tree = *state;
	uint64_t start, len;

	assert_int_equal(cpc_io_tree_set(tree, LAST, 1, DIRTY, NULL, NULL), 0);
	assert_int_equal(cpc_io_tree_set(tree, 0, 1, DIRTY, NULL, NULL), 0);
	assert_int_equal(cpc_io_tree_lock(tree, 0, CPC_IO_TREE_END, NULL), 0);
	assert_int_equal(cpc_io_tree_trylock(tree, LAST, 1, NULL), -EAGAIN);
	cpc_io_tree_unlock(tree, 0, CPC_IO_TREE_END, NULL);
	assert_int_equal(cpc_io_tree_find_first(tree, 1, LAST, DIRTY, &start, &len), 0);
	assert_true(start == LAST && len == 1);
	assert_int_equal(cpc_io_tree_set(tree, 0, CPC_IO_TREE_END, DIRTY, NULL, NULL), 0);
	assert_int_equal(cpc_io_tree_count(tree, 0, CPC_IO_TREE_END, DIRTY, UINT64_MAX, &len), 0);
	assert_true(len == CPC_IO_TREE_END);
}

static void bad_ranges_and_bits_are_refused(void **state)
{
	struct cpc_io_tree *tree = *state;
	enum cpc_io_bits unknown = (enum cpc_io_bits)(CPC_IO_ALL + 1);

	assert_int_equal(cpc_io_tree_set(tree, 0, 0, DIRTY, NULL, NULL), -EINVAL);
	assert_int_equal(cpc_io_tree_set(tree, LAST, 2, DIRTY, NULL, NULL), -EINVAL);
	assert_int_equal(cpc_io_tree_lock(tree, CPC_IO_TREE_END, 1, NULL), -EINVAL);
	assert_int_equal(cpc_io_tree_lock(tree, 1, UINT64_MAX, NULL), -EINVAL);
	assert_int_equal(cpc_io_tree_set(tree, 0, 1, CPC_IO_LOCKED, NULL, NULL), -EINVAL);
	assert_int_equal(cpc_io_tree_set(tree, 0, 1, unknown, NULL, NULL), -EINVAL);
	assert_int_equal(cpc_io_tree_clear(tree, 0, 1, CPC_IO_NONE, NULL, NULL), -EINVAL);
	assert_int_equal(cpc_io_tree_convert(tree, 0, 1, CPC_IO_LOCKED, DIRTY, NULL, NULL),
			 -EINVAL);
	assert_int_equal(cpc_io_tree_wait(tree, 0, 1, unknown), -EINVAL);
	assert_string_equal(records_of(tree), "");
}

static void convert_reports_what_changed_but_not_locked(void **state)
{
	struct cpc_io_tree *tree = *state;
	struct cpc_changeset cs = {0};

	assert_int_equal(cpc_io_tree_set(tree, 0, 10, DIRTY, NULL, NULL), 0);
	assert_int_equal(cpc_io_tree_lock(tree, 5, 20, NULL), 0);
	assert_int_equal(cpc_io_tree_convert(tree, 5, 20, DIRTY, CPC_IO_LOCKED, NULL, &cs), 0);
	assert_int_equal(cs.set_bytes, 15);
	assert_int_equal(cs.cleared_bytes, 0);
	assert_string_equal(records_of(tree), "[0,25)2 ");
}

static void a_cached_record_saves_the_search_and_may_go_stale(void **state)
{
	struct cpc_io_tree *tree = *state;
	struct cpc_io_state *cached = NULL, *stale = NULL;
	uint64_t hits;

	assert_int_equal(cpc_io_tree_lock(tree, 0, 10, &cached), 0);
	assert_ptr_equal(cached, tree->first);
	hits = stats_of(tree).cached_hits;
	assert_int_equal(cpc_io_tree_set(tree, 0, 10, DIRTY, &cached, NULL), 0);
	assert_int_equal(stats_of(tree).cached_hits, hits + 1);
	cpc_io_tree_unlock(tree, 0, 10, &cached);
	assert_int_equal(stats_of(tree).cached_hits, hits + 2);
	assert_null(cached);

	assert_int_equal(cpc_io_tree_lock(tree, 20, 10, &stale), 0);
	assert_int_equal(cpc_io_tree_clear(tree, 20, 10, CPC_IO_ALL, NULL, NULL), 0);
	assert_int_equal(cpc_io_tree_lock(tree, 20, 10, NULL), 0);
	assert_ptr_not_equal(stale, tree->last); /* not reused while referenced */
	cpc_io_tree_unlock(tree, 20, 10, &stale);
	assert_null(stale);
	assert_non_null(tree->returned); /* freed outside the lock, taken back later */
	assert_string_equal(records_of(tree), "[0,10)2 ");
}

/* A little of everything, over enough records for several chunks. */
static int scenario(struct cpc_io_tree *tree)
{
	struct cpc_changeset cs = {0};
	uint64_t i;
	int err = 0;

	for (i = 0; !err && i < 300; i++)
		err = cpc_io_tree_set(tree, i * 10, 5, DIRTY, NULL, &cs);
	if (!err)
		err = cpc_io_tree_lock(tree, 3, 2994, NULL);
	if (err)
		return err;
	err = cpc_io_tree_convert(tree, 3, 2994, CPC_IO_WRITEBACK, DIRTY, NULL, &cs);
	cpc_io_tree_unlock(tree, 3, 2994, NULL);
	for (i = 0; !err && i < 300; i++)
		err = cpc_io_tree_clear(tree, i * 10 + 2, 3, BOTH, NULL, &cs);
	return err;
}

static void every_failed_allocation_leaves_the_tree_as_it_was(void **state)
{
	struct cpc_io_tree *tree = *state;
	uint64_t n = 0, bytes;
	int err;

	do {
		allocs_left = n++;
		err = scenario(tree);
		assert_true(err == 0 || err == -ENOMEM);
		check(tree);
		allocs_left = UINT64_MAX;
		assert_int_equal(
		    cpc_io_tree_count(tree, 0, 1 << 20, CPC_IO_LOCKED, UINT64_MAX, &bytes), 0);
		assert_int_equal(bytes, 0);
		cpc_io_tree_destroy(tree);
		cpc_io_tree_init(tree, &(struct cpc_io_tree_config){0});
	} while (err);
	print_message("%llu allocations\n", (unsigned long long)n - 1);
	assert_true(n > 5);
}

static void a_lock_that_gets_no_memory_changes_nothing(void **state)
{
	struct cpc_io_tree *tree = *state;
	char before[4096];
	struct cpc_io_state *cached = NULL;
	uint64_t i;

	/* Uses up the first chunk, but for one. */
	for (i = 0; stats_of(tree).spares != 1; i++)
		assert_int_equal(cpc_io_tree_set(tree, i * 10, 5, DIRTY, NULL, NULL), 0);
	snprintf(before, sizeof(before), "%s", records_of(tree));
	allocs_left = 0;
	assert_int_equal(cpc_io_tree_lock(tree, 2, 100, &cached), -ENOMEM);
	assert_int_equal(cpc_io_tree_set(tree, 2, 100, CPC_IO_WRITEBACK, NULL, NULL), -ENOMEM);
	assert_int_equal(cpc_io_tree_clear(tree, 1, 1, DIRTY, NULL, NULL), 0); /* the last spare */
	assert_int_equal(cpc_io_tree_clear(tree, 12, 1, DIRTY, NULL, NULL), -ENOMEM);
	allocs_left = UINT64_MAX;
	assert_int_equal(cpc_io_tree_set(tree, 1, 1, DIRTY, NULL, NULL), 0);
	assert_string_equal(records_of(tree), before);
	assert_null(cached);
}

/* An allocation is made without the lock: others do this meanwhile. */
static struct cpc_io_tree *raced;

static void lock_meanwhile(void)
{
	assert_int_equal(cpc_io_tree_trylock(raced, 5, 10, NULL), 0);
}

static void erase_meanwhile(void)
{
	assert_int_equal(cpc_io_tree_clear(raced, 0, 100, CPC_IO_ALL, NULL, NULL), 0);
}

static void stop_meanwhile(void)
{
	cpc_io_tree_stop(raced);
}

static void use_up_spares(struct cpc_io_tree *tree)
{
	uint64_t i = 1000 + 10 * stats_of(tree).records;

	for (; stats_of(tree).spares; i += 10)
		assert_int_equal(cpc_io_tree_set(tree, i, 5, DIRTY, NULL, NULL), 0);
}

static void a_call_looks_again_after_an_allocation(void **state)
{
	struct cpc_io_tree *tree = raced = *state;
	struct cpc_io_state *cached = NULL;

	assert_int_equal(cpc_io_tree_set(tree, 50, 10, DIRTY, NULL, NULL), 0);
	use_up_spares(tree);
	during_alloc = lock_meanwhile;
	assert_int_equal(cpc_io_tree_trylock(tree, 0, 10, &cached), -EAGAIN);
	assert_null(cached);
	cpc_io_tree_unlock(tree, 5, 10, NULL);

	use_up_spares(tree);
	during_alloc = erase_meanwhile;
	assert_int_equal(cpc_io_tree_set(tree, 52, 2, CPC_IO_WRITEBACK, NULL, NULL), 0);
	check(tree);
	assert_non_null(strstr(records_of(tree), "[52,54)4 [10"));

	use_up_spares(tree);
	during_alloc = stop_meanwhile;
	assert_int_equal(cpc_io_tree_lock(tree, 0, 10, NULL), -EIO);
}

struct sleeper {
	pthread_t thread;
	struct cpc_io_tree *tree;
	uint64_t start, len;
	enum cpc_io_bits wait_for; /* NONE: lock */
	int err;
	bool done;
};

static void *sleeper_run(void *arg)
{
	struct sleeper *s = arg;

	if (s->wait_for)
		s->err = cpc_io_tree_wait(s->tree, s->start, s->len, s->wait_for);
	else
		s->err = cpc_io_tree_lock(s->tree, s->start, s->len, NULL);
	__atomic_store_n(&s->done, true, __ATOMIC_RELEASE);
	return NULL;
}

static void pause_until_asleep(struct cpc_io_tree *tree, uint64_t lock_waits)
{
	while (stats_of(tree).lock_waits < lock_waits)
		usleep(100);
}

static void sleeper_start(struct sleeper *s, struct cpc_io_tree *tree)
{
	uint64_t lock_waits = stats_of(tree).lock_waits;

	s->tree = tree;
	assert_int_equal(cpc_thread_start(&s->thread, "sleeper", sleeper_run, s), 0);
	pause_until_asleep(tree, lock_waits + 1);
}

static bool sleeper_done(struct sleeper *s)
{
	return __atomic_load_n(&s->done, __ATOMIC_ACQUIRE);
}

static void wakeups_go_to_sleepers_and_are_skipped_without(void **state)
{
	struct cpc_io_tree *tree = *state;
	struct sleeper s = {.start = 5, .len = 10};
	struct cpc_io_tree_stats before, after;

	assert_int_equal(cpc_io_tree_lock(tree, 0, 10, NULL), 0);
	before = stats_of(tree);
	cpc_io_tree_unlock(tree, 0, 10, NULL);
	after = stats_of(tree);
	assert_int_equal(after.wakeups, before.wakeups);
	assert_int_equal(after.wakeups_skipped, before.wakeups_skipped + 1);

	assert_int_equal(cpc_io_tree_lock(tree, 0, 10, NULL), 0);
	sleeper_start(&s, tree);
	before = stats_of(tree);
	cpc_io_tree_unlock(tree, 0, 10, NULL);
	pthread_join(s.thread, NULL);
	after = stats_of(tree);
	assert_int_equal(s.err, 0);
	assert_int_equal(after.wakeups, before.wakeups + 1);
	assert_int_equal(after.wakeups_skipped, before.wakeups_skipped);
	assert_string_equal(records_of(tree), "[5,15)1 ");
	cpc_io_tree_unlock(tree, 5, 10, NULL);
}

static void who_wakes_follows_from_the_bits_cleared(void **state)
{
	struct cpc_io_tree *tree = *state;
	struct sleeper dirty = {.start = 0, .len = 10, .wait_for = DIRTY};
	struct sleeper written = {.start = 5, .len = 10, .wait_for = CPC_IO_WRITEBACK};

	assert_int_equal(cpc_io_tree_set(tree, 0, 20, BOTH, NULL, NULL), 0);
	sleeper_start(&dirty, tree);
	sleeper_start(&written, tree);
	assert_int_equal(cpc_io_tree_clear(tree, 0, 20, CPC_IO_WRITEBACK, NULL, NULL), 0);
	pthread_join(written.thread, NULL);
	assert_false(sleeper_done(&dirty));
	assert_int_equal(stats_of(tree).wakeups, 1);
	assert_int_equal(cpc_io_tree_clear(tree, 0, 20, DIRTY, NULL, NULL), 0);
	pthread_join(dirty.thread, NULL);
	assert_int_equal(stats_of(tree).wakeups, 2);
	assert_true(!dirty.err && !written.err);
}

static void sleepers_follow_their_bytes_through_split_trim_and_merge(void **state)
{
	struct cpc_io_tree *tree = *state;
	struct sleeper left = {.start = 2, .len = 2, .wait_for = DIRTY};
	struct sleeper right = {.start = 95, .len = 3, .wait_for = DIRTY};

	assert_int_equal(cpc_io_tree_set(tree, 0, 100, DIRTY, NULL, NULL), 0);
	sleeper_start(&left, tree);
	sleeper_start(&right, tree);
	assert_int_equal(cpc_io_tree_clear(tree, 50, 10, CPC_IO_ALL, NULL, NULL), 0); /* split */
	assert_int_equal(cpc_io_tree_clear(tree, 99, 10, CPC_IO_ALL, NULL, NULL), 0); /* trim */
	assert_int_equal(cpc_io_tree_clear(tree, 0, 1, CPC_IO_ALL, NULL, NULL), 0);
	check(tree);
	assert_int_equal(cpc_io_tree_set(tree, 50, 10, DIRTY, NULL, NULL), 0); /* merge */
	check(tree);
	assert_int_equal(stats_of(tree).wakeups, 0);
	assert_int_equal(cpc_io_tree_clear(tree, 97, 1, DIRTY, NULL, NULL), 0);
	pause_until_asleep(tree, 3); /* woken, looked, 95 and 96 are still dirty */
	assert_int_equal(cpc_io_tree_clear(tree, 90, 7, DIRTY, NULL, NULL), 0);
	pthread_join(right.thread, NULL);
	assert_false(sleeper_done(&left));
	assert_int_equal(cpc_io_tree_clear(tree, 1, 10, DIRTY, NULL, NULL), 0);
	pthread_join(left.thread, NULL);
}

/* Goes over [0, 32) hand over hand: at any time some byte is locked. */
static void *overtaker_run(void *arg)
{
	struct sleeper *s = arg;
	uint64_t at = 0, next;

	cpc_io_tree_lock(s->tree, at, 1, NULL);
	while (!sleeper_done(s)) {
		next = (at + 1) % 32;
		if (!cpc_io_tree_trylock(s->tree, next, 1, NULL)) {
			cpc_io_tree_unlock(s->tree, at, 1, NULL);
		} else {
			cpc_io_tree_unlock(s->tree, at, 1, NULL);
			cpc_io_tree_lock(s->tree, next, 1, NULL);
		}
		at = next;
	}
	cpc_io_tree_unlock(s->tree, at, 1, NULL);
	return NULL;
}

static void a_large_range_is_not_overtaken_for_ever(void **state)
{
	struct sleeper small[2] = {{.tree = *state}, {.tree = *state}};
	unsigned i;

	alarm(120); /* it would be */
	for (i = 0; i < 2; i++)
		assert_int_equal(
		    cpc_thread_start(&small[i].thread, "small", overtaker_run, &small[i]), 0);
	for (i = 0; i < 200; i++) {
		assert_int_equal(cpc_io_tree_lock(*state, 0, 64, NULL), 0);
		cpc_io_tree_unlock(*state, 0, 64, NULL);
	}
	for (i = 0; i < 2; i++) {
		__atomic_store_n(&small[i].done, true, __ATOMIC_RELEASE);
		pthread_join(small[i].thread, NULL);
	}
	alarm(0);
}

static void the_impatient_go_before_newcomers(void **state)
{
	struct cpc_io_tree *tree = *state;
	struct sleeper large = {.start = 0, .len = 2}, late = {.start = 1, .len = 1};
	unsigned i;

	assert_int_equal(cpc_io_tree_lock(tree, 0, 1, NULL), 0);
	sleeper_start(&large, tree);
	for (i = 0; i < CPC_IO_PATIENCE; i++) {
		uint64_t waits = stats_of(tree).lock_waits;
		unsigned other = !(i & 1);

		assert_int_equal(cpc_io_tree_trylock(tree, other, 1, NULL), 0);
		cpc_io_tree_unlock(tree, !other, 1, NULL);
		pause_until_asleep(tree, waits + 1);
	}
	/* Byte 0 is held (PATIENCE is even), byte 1 is free, but promised. */
	assert_int_equal(cpc_io_tree_trylock(tree, 1, 1, NULL), -EAGAIN);
	assert_int_equal(cpc_io_tree_trylock(tree, 2, 1, NULL), 0);
	sleeper_start(&late, tree);
	cpc_io_tree_unlock(tree, 0, 1, NULL);
	pthread_join(large.thread, NULL);
	assert_false(sleeper_done(&late));
	cpc_io_tree_unlock(tree, 0, 2, NULL);
	pthread_join(late.thread, NULL);
	assert_string_equal(records_of(tree), "[1,2)1 [2,3)1 ");
	assert_true(cpc_list_empty(&tree->impatient));
}

static void stop_wakes_all_and_later_calls_touch_nothing(void **state)
{
	struct cpc_io_tree *tree = *state;
	struct sleeper s = {.start = 0, .len = 5}, w = {.start = 0, .len = 5, .wait_for = DIRTY};
	struct cpc_io_state *cached = NULL;
	bool result;
	uint64_t a, b;

	assert_int_equal(cpc_io_tree_set(tree, 0, 10, DIRTY, NULL, NULL), 0);
	assert_int_equal(cpc_io_tree_lock(tree, 0, 10, &cached), 0);
	sleeper_start(&s, tree);
	sleeper_start(&w, tree);
	cpc_io_tree_stop(tree);
	pthread_join(s.thread, NULL);
	pthread_join(w.thread, NULL);
	assert_true(s.err == -EIO && w.err == -EIO);

	cpc_io_tree_unlock(tree, 0, 10, &cached);
	assert_null(cached);
	assert_int_equal(cpc_io_tree_set(tree, 0, 1, DIRTY, NULL, NULL), -EIO);
	assert_int_equal(cpc_io_tree_clear(tree, 0, 1, DIRTY, NULL, NULL), -EIO);
	assert_int_equal(cpc_io_tree_convert(tree, 0, 1, DIRTY, DIRTY, NULL, NULL), -EIO);
	assert_int_equal(cpc_io_tree_lock(tree, 90, 1, NULL), -EIO);
	assert_int_equal(cpc_io_tree_trylock(tree, 90, 1, NULL), -EIO);
	assert_int_equal(cpc_io_tree_wait(tree, 90, 1, DIRTY), -EIO);
	assert_int_equal(cpc_io_tree_test(tree, 0, 1, DIRTY, CPC_IO_MATCH_ANY, &result), -EIO);
	assert_int_equal(cpc_io_tree_find_first(tree, 0, 1, DIRTY, &a, &b), -EIO);
	assert_int_equal(cpc_io_tree_count(tree, 0, 1, DIRTY, 1, &a), -EIO);
	assert_string_equal(records_of(tree), "[0,10)3 ");
	cpc_io_tree_stop(tree);
}

static void histograms_count_clears_and_sets_when_asked(void **state)
{
	struct cpc_io_tree *tree = *state;
	struct cpc_hist *hist = calloc(2, sizeof(*hist));
	struct cpc_hist_summary sum;

	assert_non_null(hist);
	assert_int_equal(cpc_io_tree_set(tree, 0, 10, DIRTY, NULL, NULL), 0);
	cpc_io_tree_set_hists(tree, &hist[0], &hist[1]);
	assert_int_equal(cpc_io_tree_set(tree, 0, 10, DIRTY, NULL, NULL), 0);
	assert_int_equal(cpc_io_tree_lock(tree, 0, 10, NULL), 0);
	cpc_io_tree_unlock(tree, 0, 10, NULL);
	assert_int_equal(cpc_io_tree_clear(tree, 0, 10, DIRTY, NULL, NULL), 0);
	cpc_io_tree_set_hists(tree, NULL, NULL);
	assert_int_equal(cpc_io_tree_set(tree, 0, 10, DIRTY, NULL, NULL), 0);
	cpc_hist_summary(&hist[0], &sum);
	assert_int_equal(sum.count, 2);
	assert_true(sum.max > 0 && sum.max < 1000000000);
	cpc_hist_summary(&hist[1], &sum);
	assert_int_equal(sum.count, 1);
	free(hist);
}

static void memory_goes_back_at_destroy(void **state)
{
	struct cpc_io_tree *tree = *state;
	uint64_t i;

	for (i = 0; i < 5000; i++)
		assert_int_equal(cpc_io_tree_set(tree, i * 2, 1, DIRTY, NULL, NULL), 0);
	assert_true(stats_of(tree).memory >= 5000 * sizeof(struct cpc_io_state));
	assert_int_equal(cpc_io_tree_clear(tree, 0, 10000, CPC_IO_ALL, NULL, NULL), 0);
	assert_int_equal(stats_of(tree).records, 0);
	nr_allocs = 0;
	for (i = 0; i < 5000; i++)
		assert_int_equal(cpc_io_tree_set(tree, i * 2, 1, DIRTY, NULL, NULL), 0);
	assert_int_equal(nr_allocs, 0); /* the second time takes no memory */
}

enum { REGION = 1 << CPC_IO_FINGER_SHIFT, MANY = 2000 };

/* `nr` records of one block each, `distance` bytes apart, and a look at each. */
static void fill_and_look(struct cpc_io_tree *tree, uint64_t nr, uint64_t distance)
{
	uint64_t i, start, len;

	for (i = 0; i < nr; i++)
		assert_int_equal(cpc_io_tree_set(tree, i * distance, 4096, DIRTY, NULL, NULL), 0);
	for (i = 0; i < nr; i++) {
		uint64_t at = i * 7 % nr * distance;

		assert_int_equal(
		    cpc_io_tree_find_first(tree, at + 4095, distance, DIRTY, &start, &len), 0);
		assert_true(start == at + 4095 && len == 1);
	}
}

static void many_records_are_found_by_fingers(void **state)
{
	struct cpc_io_tree *tree = *state;
	struct cpc_io_tree_stats stats;

	fill_and_look(tree, CPC_IO_FINGERS_RECORDS / 2, REGION / 2);
	assert_null(tree->fingers);
	fill_and_look(tree, MANY, REGION / 2);
	assert_non_null(tree->fingers);
	stats = stats_of(tree);
	assert_true(stats.memory > (MANY * sizeof(struct cpc_io_state)) + CPC_IO_FINGERS * 24);
	fill_and_look(tree, MANY, REGION / 2);
	assert_int_equal(stats_of(tree).finger_misses, stats.finger_misses);
	assert_int_equal(stats_of(tree).finger_hits, stats.finger_hits + 2 * MANY);
}

/* Bytes of a table with so many small regions. */
static size_t table_size(uint64_t slots)
{
	return sizeof(struct cpc_io_fingers) +
	       (slots + (slots >> CPC_IO_FINGER_WIDER)) * sizeof(struct cpc_io_finger);
}

/* All of them are in it, and found. Without memory for it the tree keeps what it has. */
static void very_many_records_get_a_larger_table(void **state)
{
	enum { VERY_MANY = CPC_IO_FINGERS_FULL * CPC_IO_FINGERS + 1024 };
	struct cpc_io_tree *tree = *state;
	uint64_t misses;

	fill_and_look(tree, VERY_MANY, REGION / 4);
	assert_int_equal(tree->fingers->level[0].mask, CPC_IO_FINGERS_GROW * CPC_IO_FINGERS - 1);
	assert_int_equal(tree->fingers->level[0].shift, CPC_IO_FINGER_SHIFT - 2);
	misses = stats_of(tree).finger_misses;
	assert_true(misses < CPC_IO_FINGERS_RECORDS);
	fill_and_look(tree, VERY_MANY, REGION / 4);
	assert_int_equal(stats_of(tree).finger_misses, misses);

	no_alloc_of = table_size(CPC_IO_FINGERS_GROW * CPC_IO_FINGERS_GROW * CPC_IO_FINGERS);
	fill_and_look(tree, CPC_IO_FINGERS_GROW * VERY_MANY, REGION / 4);
	no_alloc_of = 0;
	assert_int_equal(tree->fingers->level[0].mask, CPC_IO_FINGERS_GROW * CPC_IO_FINGERS - 1);
}

static void a_tree_without_memory_for_fingers_works(void **state)
{
	struct cpc_io_tree *tree = *state;

	no_alloc_of = table_size(CPC_IO_FINGERS);
	fill_and_look(tree, MANY, REGION / 2);
	no_alloc_of = 0;
	assert_null(tree->fingers);
	fill_and_look(tree, 2 * MANY, REGION / 2); /* it does not ask twice */
	assert_null(tree->fingers);
	assert_int_equal(stats_of(tree).finger_hits + stats_of(tree).finger_misses, 0);
}

/* Too sparse for the coarse regions of a new tree, then too dense for its small ones. */
static void regions_follow_the_density_of_records(void **state)
{
	struct cpc_io_tree *tree = *state;
	uint64_t hits, i;

	for (i = 0; i < 40; i++)
		fill_and_look(tree, MANY, 1024 * (uint64_t)REGION + 4096);
	assert_true(tree->fingers->level[0].shift > CPC_IO_FINGER_SHIFT);
	assert_int_equal(tree->fingers->level[1].shift,
			 tree->fingers->level[0].shift + CPC_IO_FINGER_WIDER);
	assert_int_equal(cpc_io_tree_clear(tree, 0, CPC_IO_TREE_END, CPC_IO_ALL, NULL, NULL), 0);
	for (i = 0; i < 200; i++)
		fill_and_look(tree, MANY, 8192);
	assert_true(tree->fingers->level[0].shift < CPC_IO_FINGER_SHIFT);
	hits = stats_of(tree).finger_hits;
	fill_and_look(tree, MANY, 8192);
	assert_true(stats_of(tree).finger_hits - hits > MANY);
}

/* A few records over a wide range, searched for from where the small regions are empty. */
static void the_few_of_a_new_cut_are_found_by_coarse_fingers(void **state)
{
	struct cpc_io_tree *tree = *state;
	const uint64_t distance = 16 * (uint64_t)REGION;
	struct cpc_io_tree_stats stats;
	uint64_t i, start, len;

	fill_and_look(tree, MANY, REGION);
	assert_int_equal(cpc_io_tree_clear(tree, 0, CPC_IO_TREE_END, CPC_IO_ALL, NULL, NULL), 0);
	fill_and_look(tree, 100, distance);
	stats = stats_of(tree);
	for (i = 0; i < 99; i++) {
		assert_int_equal(cpc_io_tree_find_first(tree, i * distance + distance / 2, distance,
							DIRTY, &start, &len),
				 0);
		assert_int_equal(start, (i + 1) * distance);
	}
	assert_int_equal(stats_of(tree).finger_misses, stats.finger_misses);
	assert_int_equal(stats_of(tree).finger_hits, stats.finger_hits + 99);
}

/* It is stretched into the region before; erased; trimmed into the region after. */
static void a_record_that_leaves_its_region_leaves_its_finger(void **state)
{
	struct cpc_io_tree *tree = *state;
	uint64_t at = 5 * (uint64_t)REGION, end = at + REGION;
	const struct cpc_io_finger *slot;

	fill_and_look(tree, MANY, REGION);
	assert_int_equal(cpc_io_tree_clear(tree, 0, CPC_IO_TREE_END, CPC_IO_ALL, NULL, NULL), 0);
	slot = cpc_io_finger(&tree->fingers->level[0], at);
	assert_null(slot[0].rec);
	fill_and_look(tree, MANY, REGION);
	assert_int_equal(slot[0].rec->start, at);
	assert_int_equal(slot[1].rec->start, end);

	assert_int_equal(cpc_io_tree_set(tree, end - 4096, 4096, DIRTY, NULL, NULL), 0);
	assert_null(slot[1].rec);
	assert_int_equal(cpc_io_tree_clear(tree, at, 2 * REGION, DIRTY, NULL, NULL), 0);
	assert_null(slot[0].rec);

	assert_int_equal(cpc_io_tree_set(tree, end - 4096, 8192, DIRTY, NULL, NULL), 0);
	assert_int_equal(slot[0].rec->start, end - 4096);
	assert_int_equal(cpc_io_tree_clear(tree, at, REGION, CPC_IO_ALL, NULL, NULL), 0);
	assert_int_equal(stats_of(tree).trims, 1);
	assert_null(slot[0].rec);
}

/* Hints for places with and without records, in a tree without fingers and with them. */
static void hints_change_nothing(void **state)
{
	struct cpc_io_tree *tree = *state;
	struct cpc_io_tree_stats before, after;
	uint64_t at, nr;

	for (nr = 0; nr <= MANY; nr += MANY) {
		if (nr)
			fill_and_look(tree, nr, REGION / 2);
		before = stats_of(tree);
		for (at = 0; at < MANY * (uint64_t)REGION; at += REGION / 3) {
			cpc_io_tree_prefetch_fingers(tree, at);
			cpc_io_tree_prefetch_records(tree, at);
		}
		cpc_io_tree_prefetch_fingers(tree, UINT64_MAX);
		cpc_io_tree_prefetch_records(tree, UINT64_MAX);
		after = stats_of(tree);
		assert_memory_equal(&before, &after, sizeof(before));
	}
}

/*
 * What a cut does. Every third record is locked, every fifth has another bit, and one that is
 * WRITEBACK touches one that becomes so.
 */
static void a_sweep_keeps_what_has_other_bits(void **state)
{
	struct cpc_io_tree *tree = *state;
	struct cpc_changeset cs = {0};
	struct cpc_io_state *stale = NULL;
	uint64_t i, bytes, locked = 0, other = 0;
	bool all;

	for (i = 0; i < MANY; i++) {
		uint64_t at = i * 8192;

		if (i % 3 == 0)
			assert_int_equal(cpc_io_tree_lock(tree, at, 4096, i ? NULL : &stale), 0);
		if (i % 5 == 0)
			assert_int_equal(
			    cpc_io_tree_set(tree, at, 8192, CPC_IO_WRITEBACK, NULL, NULL), 0);
		assert_int_equal(cpc_io_tree_set(tree, at, 4096, DIRTY, NULL, NULL), 0);
		locked += i % 3 == 0;
		other += i % 5 == 0;
	}
	assert_int_equal(cpc_io_tree_clear(tree, 0, CPC_IO_TREE_END, DIRTY, NULL, &cs), 0);
	assert_int_equal(stats_of(tree).sweeps, 1);
	assert_int_equal(cs.cleared_bytes, MANY * 4096);
	check(tree);
	assert_int_equal(cpc_io_tree_count(tree, 0, CPC_IO_TREE_END, DIRTY, UINT64_MAX, &bytes), 0);
	assert_int_equal(bytes, 0);
	assert_int_equal(
	    cpc_io_tree_count(tree, 0, CPC_IO_TREE_END, CPC_IO_LOCKED, UINT64_MAX, &bytes), 0);
	assert_int_equal(bytes, locked * 4096);
	assert_int_equal(
	    cpc_io_tree_count(tree, 0, CPC_IO_TREE_END, CPC_IO_WRITEBACK, UINT64_MAX, &bytes), 0);
	assert_int_equal(bytes, other * 8192);
	for (i = 0; i < MANY; i += 5) {
		assert_int_equal(cpc_io_tree_test(tree, i * 8192, 8192, CPC_IO_WRITEBACK,
						  CPC_IO_MATCH_ALL, &all),
				 0);
		assert_true(all);
	}
	for (i = 0; i < MANY; i += 3)
		cpc_io_tree_unlock(tree, i * 8192, 4096, i ? NULL : &stale);
	assert_int_equal(stats_of(tree).records, other);
	check(tree);
}

/* More sweeps than one takes nothing from the allocator, and each search still has its answer. */
static void a_tree_breathes_in_the_memory_it_has(void **state)
{
	struct cpc_io_tree *tree = *state;
	unsigned breath;

	fill_and_look(tree, MANY, REGION / 2);
	for (breath = 0; breath < 3; breath++) {
		assert_int_equal(
		    cpc_io_tree_clear(tree, 0, CPC_IO_TREE_END, CPC_IO_ALL, NULL, NULL), 0);
		check(tree);
		assert_int_equal(stats_of(tree).sweeps, breath + 1);
		assert_int_equal(stats_of(tree).records, 0);
		nr_allocs = 0;
		fill_and_look(tree, MANY, REGION / 2);
		assert_int_equal(nr_allocs, 0);
	}
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(clearing_over_the_end_of_a_record_trims_it_in_place),
	    TEST(clearing_over_the_start_of_a_record_trims_it_in_place),
	    TEST(clearing_the_middle_splits_with_one_spare),
	    TEST(equal_neighbours_merge_but_locked_ones_do_not),
	    TEST(ranges_reach_from_0_to_the_last_byte),
	    TEST(bad_ranges_and_bits_are_refused),
	    TEST(convert_reports_what_changed_but_not_locked),
	    TEST(a_cached_record_saves_the_search_and_may_go_stale),
	    TEST(every_failed_allocation_leaves_the_tree_as_it_was),
	    TEST(a_lock_that_gets_no_memory_changes_nothing),
	    TEST(a_call_looks_again_after_an_allocation),
	    TEST(wakeups_go_to_sleepers_and_are_skipped_without),
	    TEST(who_wakes_follows_from_the_bits_cleared),
	    TEST(sleepers_follow_their_bytes_through_split_trim_and_merge),
	    TEST(a_large_range_is_not_overtaken_for_ever),
	    TEST(the_impatient_go_before_newcomers),
	    TEST(stop_wakes_all_and_later_calls_touch_nothing),
	    TEST(histograms_count_clears_and_sets_when_asked),
	    TEST(memory_goes_back_at_destroy),
	    TEST(many_records_are_found_by_fingers),
	    TEST(very_many_records_get_a_larger_table),
	    TEST(a_tree_without_memory_for_fingers_works),
	    TEST(regions_follow_the_density_of_records),
	    TEST(the_few_of_a_new_cut_are_found_by_coarse_fingers),
	    TEST(a_record_that_leaves_its_region_leaves_its_finger),
	    TEST(hints_change_nothing),
	    TEST(a_sweep_keeps_what_has_other_bits),
	    TEST(a_tree_breathes_in_the_memory_it_has),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
