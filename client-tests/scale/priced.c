/* SPDX-License-Identifier: BSD-3-Clause */
#include "priced.h"

/* Reads one after the other, writes into the drive's cache. */
static uint64_t price_us(const struct cpc_backing_stats *from, const struct cpc_backing_stats *to)
{
	return 100 * (to->reads - from->reads) + 20 * (to->writes - from->writes) +
	       1000 * (to->flushes - from->flushes) +
	       (to->bytes_read - from->bytes_read + to->bytes_written - from->bytes_written) / 1000;
}

bool priced_commit(struct cpc_pool *pool, struct cpc_backing *device, uint64_t *us)
{
	struct cpc_backing_stats before, after;
	struct cpc_pool_info was, now;

	cpc_pool_info(pool, &was);
	cpc_backing_get_stats(device, &before);
	cpc_pool_settle(pool);
	cpc_backing_get_stats(device, &after);
	cpc_pool_info(pool, &now);
	*us = price_us(&before, &after);
	return now.generation != was.generation;
}
