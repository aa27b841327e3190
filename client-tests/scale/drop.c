/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * drop: what each single commit costs while a full volume is being dropped, whatever else the
 * machine does: the pool is opened without threads and commits one after the other.
 *
 *   drop PATH trim|shrink|delete [STEP-MIB]
 *
 * PATH is a pool that synthetic has made. A trim comes in requests of STEP-MIB, 2048 if not said.
 * Exit status 1 if a commit is dearer than 100 ms.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "priced.h"
#include "volume/volume.h"

#define LIMIT_US 100000u

static _Noreturn void die(const char *what, const char *why)
{
	fprintf(stderr, "drop: %s: %s\n", what, why);
	exit(2);
}

static void trim(struct cpc_pool *pool, uint64_t step)
{
	struct cpc_volume *vol;
	uint64_t size;
	int ret = cpc_pool_open_volume(pool, "disk", &vol);

	if (ret)
		die("disk", strerror(-ret));
	size = cpc_volume_size(vol);
	for (uint64_t at = 0; at < size && !ret; at += step)
		ret = cpc_volume_trim(vol, cpc_min_u64(step, size - at), at, 0);
	if (!ret)
		ret = cpc_volume_flush(vol);
	cpc_pool_close_volume(pool, vol);
	if (ret)
		die("trim", strerror(-ret));
}

static void drop(struct cpc_pool *pool, const char *how, uint64_t step)
{
	struct cpc_error err = {""};
	int ret = 0;

	if (!strcmp(how, "trim"))
		trim(pool, step);
	else if (!strcmp(how, "shrink"))
		ret = cpc_pool_resize(pool, "disk", CPC_BLOCK_SIZE, true, &err);
	else if (!strcmp(how, "delete"))
		ret = cpc_pool_delete(pool, "disk", &err);
	else
		die(how, "is not trim, shrink or delete");
	if (ret)
		die(how, err.text);
}

static uint64_t used_mib(struct cpc_pool *pool)
{
	struct cpc_pool_info info;

	cpc_pool_info(pool, &info);
	return info.used >> 20;
}

int main(int argc, char **argv)
{
	uint64_t step = argc > 3 ? strtoull(argv[3], NULL, 10) << 20 : 2ull << 30;
	uint64_t us, first_us = 0, worst_us = 0, sum_us = 0, was, counted = 0;
	struct cpc_pool_options opts;
	struct cpc_error err = {""};
	struct cpc_backing *device;
	struct cpc_pool *pool;
	struct rusage usage;
	unsigned nr = 0;

	if (argc < 3 || !step)
		die("usage", "drop PATH trim|shrink|delete [STEP-MIB]");
	cpc_pool_options_init(&opts);
	opts.no_threads = true;
	if (cpc_backing_open_file(argv[1], 0, opts.direct, &device, err.text, sizeof(err.text)) ||
	    cpc_pool_open_backing(device, &opts, &pool, &err))
		die(argv[1], err.text);
	was = used_mib(pool);
	drop(pool, argv[2], step);
	for (; priced_commit(pool, device, &us); nr++) {
		if (!nr) {
			first_us = us;
			counted = was - used_mib(pool);
		}
		worst_us = cpc_max_u64(worst_us, us);
		sum_us += us;
	}
	getrusage(RUSAGE_SELF, &usage);
	printf(
	    "%s: %llu MiB less in use with the first commit, %llu at last; %u commits, the first "
	    "%llu us of I/O, mean %llu, the longest %llu; %ld MiB of memory\n",
	    argv[2], (unsigned long long)counted, (unsigned long long)(was - used_mib(pool)), nr,
	    (unsigned long long)first_us, (unsigned long long)(nr ? sum_us / nr : 0),
	    (unsigned long long)worst_us, usage.ru_maxrss >> 10);
	if (cpc_pool_shutdown(pool))
		die(argv[1], "shutdown");
	cpc_pool_close(pool);
	return worst_us > LIMIT_US;
}
