/* SPDX-License-Identifier: BSD-3-Clause */
/* Tests of epoch, each named by its claim. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <pthread.h>
#include <sched.h>
#include <cmocka.h>
#include "lib/epoch.h"

#define ALIVE 0x616c697665u
#define DEAD  0x64656164u

struct object {
	struct cpc_epoch_entry retired;
	_Atomic(unsigned long) state;
};

static _Atomic(size_t) nr_freed;

static unsigned long nr_ops(unsigned long by_default)
{
	const char *s = getenv("CPC_TEST_OPS");

	return s ? strtoul(s, NULL, 0) : by_default;
}

static void object_free(struct cpc_epoch_entry *entry)
{
	struct object *o = cpc_container_of(entry, struct object, retired);

	atomic_store_explicit(&o->state, DEAD, memory_order_relaxed);
	free(o);
	atomic_fetch_add(&nr_freed, 1);
}

static struct object *object_new(void)
{
	struct object *o = malloc(sizeof(*o));

	assert_non_null(o);
	atomic_init(&o->state, ALIVE);
	return o;
}

static int setup(void **state)
{
	cpc_epoch_drain();
	atomic_store(&nr_freed, 0);
	return 0;
}

static void drain_frees_what_was_retired(void **state)
{
	for (int i = 0; i < 5; i++)
		cpc_epoch_retire(&object_new()->retired, object_free);
	assert_int_equal(cpc_epoch_outstanding(), 5);
	cpc_epoch_drain();
	assert_int_equal(nr_freed, 5);
	assert_int_equal(cpc_epoch_outstanding(), 0);
}

static void reclaim_frees_at_once_without_readers(void **state)
{
	cpc_epoch_retire(&object_new()->retired, object_free);
	cpc_epoch_reclaim();
	assert_int_equal(nr_freed, 1);
}

static void nothing_is_freed_before_the_outermost_exit(void **state)
{
	cpc_epoch_enter();
	cpc_epoch_enter();
	cpc_epoch_retire(&object_new()->retired, object_free);
	for (int i = 0; i < 10; i++)
		cpc_epoch_reclaim();
	cpc_epoch_exit();
	assert_true(cpc_epoch_inside());
	for (int i = 0; i < 10; i++)
		cpc_epoch_reclaim();
	assert_int_equal(nr_freed, 0);
	cpc_epoch_exit();
	assert_false(cpc_epoch_inside());
	cpc_epoch_reclaim();
	assert_int_equal(nr_freed, 1);
}

static void retiring_alone_keeps_the_backlog_bounded(void **state)
{
	for (int i = 0; i < 10000; i++) {
		cpc_epoch_retire(&object_new()->retired, object_free);
		assert_true(cpc_epoch_outstanding() <= 64);
	}
	/* A long section lets it grow, and its end lets it shrink again. */
	cpc_epoch_enter();
	for (int i = 0; i < 10000; i++)
		cpc_epoch_retire(&object_new()->retired, object_free);
	cpc_epoch_exit();
	for (int i = 0; i < 20000; i++)
		cpc_epoch_retire(&object_new()->retired, object_free);
	assert_true(cpc_epoch_outstanding() <= 128);
}

static void retire_again(struct cpc_epoch_entry *entry)
{
	object_free(entry);
	for (int i = 0; i < 40; i++)
		cpc_epoch_retire(&object_new()->retired, object_free);
}

static void free_function_may_retire(void **state)
{
	for (int i = 0; i < 100; i++)
		cpc_epoch_retire(&object_new()->retired, retire_again);
	cpc_epoch_drain();
	cpc_epoch_drain();
	assert_int_equal(nr_freed, 100 + 100 * 40);
}

/* A reader that stays in its section until it is told to leave. */
struct holder {
	_Atomic(int) stage; /* 1: inside, 2: may leave */
	_Atomic(struct object *) shared;
};

static void *hold(void *arg)
{
	struct holder *h = arg;
	struct object *o;

	cpc_epoch_enter();
	o = atomic_load(&h->shared);
	atomic_store(&h->stage, 1);
	while (atomic_load(&h->stage) != 2)
		sched_yield();
	if (o->state != ALIVE)
		abort();
	atomic_store(&h->stage, 3);
	cpc_epoch_exit();
	return NULL;
}

static void *release_later(void *arg)
{
	struct holder *h = arg;

	for (int i = 0; i < 100; i++)
		sched_yield();
	atomic_store(&h->stage, 2);
	return NULL;
}

static void drain_waits_for_a_reader_of_another_thread(void **state)
{
	struct holder h = {.shared = object_new()};
	pthread_t reader, releaser;
	struct object *o;

	assert_int_equal(pthread_create(&reader, NULL, hold, &h), 0);
	while (atomic_load(&h.stage) != 1)
		sched_yield();
	o = atomic_exchange(&h.shared, NULL);
	cpc_epoch_retire(&o->retired, object_free);
	for (int i = 0; i < 10; i++)
		cpc_epoch_reclaim();
	assert_int_equal(nr_freed, 0);
	assert_int_equal(pthread_create(&releaser, NULL, release_later, &h), 0);
	cpc_epoch_drain();
	assert_int_equal(atomic_load(&h.stage), 3);
	assert_int_equal(nr_freed, 1);
	pthread_join(reader, NULL);
	pthread_join(releaser, NULL);
}

static void *enter_and_end(void *arg)
{
	cpc_epoch_enter();
	cpc_epoch_exit();
	return NULL;
}

static void ended_threads_leave_the_registry(void **state)
{
	for (int i = 0; i < 200; i++) {
		pthread_t thread;

		assert_int_equal(pthread_create(&thread, NULL, enter_and_end, NULL), 0);
		cpc_epoch_retire(&object_new()->retired, object_free);
		pthread_join(thread, NULL);
		cpc_epoch_drain();
	}
	assert_int_equal(nr_freed, 200);
}

#define NR_SHARED  16
#define NR_READERS 3
#define NR_WRITERS 2

struct stress {
	_Atomic(struct object *) shared[NR_SHARED];
	_Atomic(bool) stop;
	unsigned long ops;
};

static void *stress_read(void *arg)
{
	struct stress *s = arg;
	unsigned long bad = 0;

	for (unsigned int i = 0; !atomic_load_explicit(&s->stop, memory_order_relaxed); i++) {
		struct object *o;

		cpc_epoch_enter();
		o = atomic_load_explicit(&s->shared[i % NR_SHARED], memory_order_acquire);
		if (i % 64 == 0)
			sched_yield();
		bad += atomic_load_explicit(&o->state, memory_order_relaxed) != ALIVE;
		cpc_epoch_exit();
	}
	return (void *)bad;
}

static void *stress_write(void *arg)
{
	struct stress *s = arg;

	for (unsigned long i = 0; i < s->ops; i++) {
		struct object *o = malloc(sizeof(*o));

		if (!o)
			abort();
		atomic_init(&o->state, ALIVE);
		o = atomic_exchange_explicit(&s->shared[i % NR_SHARED], o, memory_order_acq_rel);
		cpc_epoch_retire(&o->retired, object_free);
		if (i % 1024 == 0)
			cpc_epoch_drain();
	}
	return NULL;
}

static void no_reader_sees_freed_memory(void **state)
{
	pthread_t readers[NR_READERS], writers[NR_WRITERS];
	struct stress s = {.ops = nr_ops(50000)};

	for (int i = 0; i < NR_SHARED; i++)
		atomic_init(&s.shared[i], object_new());
	for (int i = 0; i < NR_READERS; i++)
		assert_int_equal(pthread_create(&readers[i], NULL, stress_read, &s), 0);
	for (int i = 0; i < NR_WRITERS; i++)
		assert_int_equal(pthread_create(&writers[i], NULL, stress_write, &s), 0);
	for (int i = 0; i < NR_WRITERS; i++)
		pthread_join(writers[i], NULL);
	atomic_store(&s.stop, true);
	for (int i = 0; i < NR_READERS; i++) {
		void *bad;

		pthread_join(readers[i], &bad);
		assert_null(bad);
	}
	for (int i = 0; i < NR_SHARED; i++)
		cpc_epoch_retire(&s.shared[i]->retired, object_free);
	cpc_epoch_drain();
	assert_int_equal(nr_freed, NR_WRITERS * s.ops + NR_SHARED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup(drain_frees_what_was_retired, setup),
	    cmocka_unit_test_setup(reclaim_frees_at_once_without_readers, setup),
	    cmocka_unit_test_setup(nothing_is_freed_before_the_outermost_exit, setup),
	    cmocka_unit_test_setup(retiring_alone_keeps_the_backlog_bounded, setup),
	    cmocka_unit_test_setup(free_function_may_retire, setup),
	    cmocka_unit_test_setup(drain_waits_for_a_reader_of_another_thread, setup),
	    cmocka_unit_test_setup(ended_threads_leave_the_registry, setup),
	    cmocka_unit_test_setup(no_reader_sees_freed_memory, setup),
	};

	return cmocka_run_group_tests_name("epoch", tests, NULL, NULL);
}
