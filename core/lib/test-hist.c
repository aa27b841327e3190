/* SPDX-License-Identifier: BSD-3-Clause */
/* Tests of the latency histogram, each named by its claim. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <pthread.h>
#include <cmocka.h>
#include "lib/hist.h"

static struct cpc_hist hist;
static struct cpc_hist_summary sum;

static int setup(void **state)
{
	cpc_hist_init(&hist);
	return 0;
}

static unsigned int bucket_hit(void)
{
	unsigned int hit = CPC_HIST_NR_BUCKETS;

	for (unsigned int i = 0; i < CPC_HIST_NR_BUCKETS; i++)
		if (atomic_load(&hist.bucket[i])) {
			assert_int_equal(hit, CPC_HIST_NR_BUCKETS);
			hit = i;
		}
	assert_true(hit < CPC_HIST_NR_BUCKETS);
	return hit;
}

static void an_empty_histogram_is_all_zero(void **state)
{
	static const struct cpc_hist_summary zero;

	memset(&sum, 0xff, sizeof(sum));
	cpc_hist_summary(&hist, &sum);
	assert_memory_equal(&sum, &zero, sizeof(sum));
}

static void one_value_is_its_own_summary(void **state)
{
	static const uint64_t values[] = {0, 1, 15, 16, 17, 1000, 123456789, UINT64_MAX};

	for (unsigned int i = 0; i < CPC_ARRAY_SIZE(values); i++) {
		cpc_hist_init(&hist);
		cpc_hist_add(&hist, values[i]);
		cpc_hist_summary(&hist, &sum);
		assert_int_equal(sum.count, 1);
		assert_int_equal(sum.mean, values[i]);
		assert_int_equal(sum.p50, values[i]);
		assert_int_equal(sum.p99, values[i]);
		assert_int_equal(sum.max, values[i]);
	}
}

/* Neighbours are in the same bucket or in the next one, and the last bucket is the last used. */
static void buckets_follow_each_other(void **state)
{
	unsigned int before = 0, now;

	for (uint64_t v = 0; v < 5000; v++) {
		cpc_hist_init(&hist);
		cpc_hist_add(&hist, v);
		now = bucket_hit();
		assert_true(now == before || now == before + 1);
		before = now;
	}
	for (unsigned int shift = 5; shift < 64; shift++) {
		cpc_hist_init(&hist);
		cpc_hist_add(&hist, (UINT64_C(1) << shift) - 1);
		before = bucket_hit();
		cpc_hist_init(&hist);
		cpc_hist_add(&hist, UINT64_C(1) << shift);
		assert_int_equal(bucket_hit(), before + 1);
	}
	cpc_hist_init(&hist);
	cpc_hist_add(&hist, UINT64_MAX);
	assert_int_equal(bucket_hit(), CPC_HIST_NR_BUCKETS - 1);
}

/* Not below the true value, and above it by a sixteenth at most. */
static void assert_near(uint64_t got, uint64_t want)
{
	assert_true(got >= want);
	assert_true(got - want <= want / 16);
}

static void percentiles_are_within_a_sixteenth(void **state)
{
	for (uint64_t scale = 1; scale < UINT64_C(1) << 44; scale *= 37) {
		cpc_hist_init(&hist);
		for (uint64_t v = 1; v <= 1000; v++)
			cpc_hist_add(&hist, v * scale);
		cpc_hist_summary(&hist, &sum);
		assert_int_equal(sum.count, 1000);
		assert_int_equal(sum.mean, scale * 1001 / 2);
		assert_near(sum.p50, 500 * scale);
		assert_near(sum.p90, 900 * scale);
		assert_near(sum.p99, 990 * scale);
		assert_int_equal(sum.max, 1000 * scale);
		assert_true(sum.p50 <= sum.p90 && sum.p90 <= sum.p99 && sum.p99 <= sum.max);
	}
}

static void one_outlier_shows_in_max_only(void **state)
{
	for (int i = 0; i < 999; i++)
		cpc_hist_add(&hist, 10);
	cpc_hist_add(&hist, 5000000);
	cpc_hist_summary(&hist, &sum);
	assert_int_equal(sum.p99, 10);
	assert_int_equal(sum.max, 5000000);
}

/* For a collector that adds up buckets: exact at each power of two, whatever the buckets are. */
static void below_counts_the_values_under_each_power(void **state)
{
	static const uint64_t values[] = {0,  1,  1,	2,    15,	16,
					  16, 17, 1023, 1024, 1u << 20, UINT64_MAX};
	uint64_t expected, total = 0;

	for (unsigned int i = 0; i < CPC_ARRAY_SIZE(values); i++) {
		cpc_hist_add(&hist, values[i]);
		total += values[i];
	}
	cpc_hist_summary(&hist, &sum);
	for (unsigned int power = 0; power < CPC_HIST_NR_POWERS; power++) {
		expected = 0;
		for (unsigned int i = 0; i < CPC_ARRAY_SIZE(values); i++)
			expected += values[i] < 1ull << power;
		assert_int_equal(sum.below[power], expected);
	}
	assert_true(sum.sum == total);
}

#define NR_THREADS 4
#define NR_ADDS	   100000

static void *add_many(void *arg)
{
	for (uint64_t i = 1; i <= NR_ADDS; i++)
		cpc_hist_add(&hist, i);
	return NULL;
}

static void no_value_is_lost_between_threads(void **state)
{
	pthread_t threads[NR_THREADS];

	for (int i = 0; i < NR_THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, add_many, NULL), 0);
	for (int i = 0; i < 100; i++)
		cpc_hist_summary(&hist, &sum);
	for (int i = 0; i < NR_THREADS; i++)
		pthread_join(threads[i], NULL);
	cpc_hist_summary(&hist, &sum);
	assert_int_equal(sum.count, NR_THREADS * NR_ADDS);
	assert_int_equal(sum.mean, (NR_ADDS + 1) / 2);
	assert_int_equal(sum.max, NR_ADDS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup(an_empty_histogram_is_all_zero, setup),
	    cmocka_unit_test_setup(one_value_is_its_own_summary, setup),
	    cmocka_unit_test_setup(buckets_follow_each_other, setup),
	    cmocka_unit_test_setup(percentiles_are_within_a_sixteenth, setup),
	    cmocka_unit_test_setup(one_outlier_shows_in_max_only, setup),
	    cmocka_unit_test_setup(below_counts_the_values_under_each_power, setup),
	    cmocka_unit_test_setup(no_value_is_lost_between_threads, setup),
	};

	return cmocka_run_group_tests_name("hist", tests, NULL, NULL);
}
