/* SPDX-License-Identifier: BSD-3-Clause */
#include "lib/hooks.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

static void *default_alloc(size_t align, size_t size)
{
	void *p;

	if (align <= sizeof(max_align_t))
		return malloc(size);
	return posix_memalign(&p, align, size) ? NULL : p;
}

static uint64_t default_monotonic_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int64_t default_realtime_s(void)
{
	return time(NULL);
}

static int default_random(void *buf, size_t len)
{
	ssize_t n = getrandom(buf, len, 0);

	if (n < 0)
		return -errno;
	return (size_t)n == len ? 0 : -EIO;
}

const struct cpc_hooks cpc_hooks_default = {
    .alloc = default_alloc,
    .free = free,
    .monotonic_ns = default_monotonic_ns,
    .realtime_s = default_realtime_s,
    .random = default_random,
};

struct cpc_hooks cpc_hooks = {
    .alloc = default_alloc,
    .free = free,
    .monotonic_ns = default_monotonic_ns,
    .realtime_s = default_realtime_s,
    .random = default_random,
};

void cpc_assert_failed(const char *cond, const char *file, int line, const char *func)
{
	fprintf(stderr, "coppice: %s:%d: %s: invariant broken: %s\n", file, line, func, cond);
	abort();
}
