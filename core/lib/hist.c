/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Why this way: latencies span six powers of ten, and what we compare differs by a few percent.
 * Buckets that grow with the value keep the error of a percentile at a sixteenth, and the sum
 * beside them makes the mean exact. Adding costs two locked additions and one comparison.
 *
 * Rejected: a count of its own (the buckets tell); copies per thread (8 KiB for each
 * histogram and thread; measure contention first).
 */
#include "lib/hist.h"

#define SUB	  CPC_HIST_SUB
#define SUB_SHIFT CPC_HIST_SUB_SHIFT

static unsigned int bucket_of(uint64_t value)
{
	unsigned int shift;

	if (value < SUB)
		return (unsigned int)value;
	shift = 63u - (unsigned int)__builtin_clzll(value) - SUB_SHIFT;
	/* The top bit of value >> shift is SUB: it is what makes the rows follow each other. */
	return shift * SUB + (unsigned int)(value >> shift);
}

/* Returns the highest value that belongs to the bucket. */
static uint64_t bucket_end(unsigned int bucket)
{
	unsigned int shift;

	if (bucket < SUB)
		return bucket;
	shift = bucket / SUB - 1;
	return (((uint64_t)(bucket % SUB + SUB) + 1) << shift) - 1;
}

void cpc_hist_init(struct cpc_hist *h)
{
	atomic_init(&h->sum, 0);
	atomic_init(&h->max, 0);
	for (unsigned int i = 0; i < CPC_HIST_NR_BUCKETS; i++)
		atomic_init(&h->bucket[i], 0);
}

void cpc_hist_add(struct cpc_hist *h, uint64_t value)
{
	uint64_t max = atomic_load_explicit(&h->max, memory_order_relaxed);

	while (cpc_unlikely(value > max) &&
	       !atomic_compare_exchange_weak_explicit(&h->max, &max, value, memory_order_relaxed,
						      memory_order_relaxed))
		;
	atomic_fetch_add_explicit(&h->sum, value, memory_order_relaxed);
	atomic_fetch_add_explicit(&h->bucket[bucket_of(value)], 1, memory_order_relaxed);
}

/* Returns the value that `percent` of `count` values do not exceed. */
static uint64_t percentile(const uint64_t *bucket, uint64_t count, unsigned int percent)
{
	/* count * percent / 100, rounded up, without overflow. */
	uint64_t rank = count / 100 * percent + (count % 100 * percent + 99) / 100;
	uint64_t seen = 0;
	unsigned int i;

	for (i = 0; i < CPC_HIST_NR_BUCKETS - 1; i++) {
		seen += bucket[i];
		if (seen >= rank)
			break;
	}
	return bucket_end(i);
}

/* A power of two is always the lowest value of its bucket. */
static void count_below(const uint64_t *bucket, uint64_t below[CPC_HIST_NR_POWERS])
{
	uint64_t seen = 0;
	unsigned int i = 0;

	for (unsigned int power = 0; power < CPC_HIST_NR_POWERS; power++) {
		while (i < bucket_of(1ull << power))
			seen += bucket[i++];
		below[power] = seen;
	}
}

void cpc_hist_summary(const struct cpc_hist *h, struct cpc_hist_summary *summary)
{
	uint64_t bucket[CPC_HIST_NR_BUCKETS], count = 0;
	uint64_t max;

	memset(summary, 0, sizeof(*summary));
	for (unsigned int i = 0; i < CPC_HIST_NR_BUCKETS; i++) {
		bucket[i] = atomic_load_explicit(&h->bucket[i], memory_order_relaxed);
		count += bucket[i];
	}
	if (!count)
		return;
	max = atomic_load_explicit(&h->max, memory_order_relaxed);
	summary->count = count;
	summary->sum = atomic_load_explicit(&h->sum, memory_order_relaxed);
	summary->mean = summary->sum / count;
	summary->p50 = cpc_min_u64(percentile(bucket, count, 50), max);
	summary->p90 = cpc_min_u64(percentile(bucket, count, 90), max);
	summary->p99 = cpc_min_u64(percentile(bucket, count, 99), max);
	summary->max = max;
	count_below(bucket, summary->below);
}
