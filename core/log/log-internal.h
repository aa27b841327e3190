/* SPDX-License-Identifier: BSD-3-Clause */
/* log-internal: what the files of core/log share. */
#ifndef CPC_LOG_LOG_INTERNAL_H
#define CPC_LOG_LOG_INTERNAL_H

#include "log/log.h"

/* Device address of a position in one copy of the ring. */
static inline uint64_t cpc_log_bytenr(const struct cpc_store *store, unsigned copy,
				      uint64_t position)
{
	return (store->geo.log[copy] << CPC_BLOCK_SHIFT) +
	       position % (store->geo.log_blocks << CPC_BLOCK_SHIFT);
}

static inline uint32_t cpc_log_max_record(uint64_t ring_size)
{
	uint64_t max = cpc_min_u64(256u << 10, ring_size / 8);

	return (uint32_t)cpc_align_down(max, CPC_BLOCK_SIZE);
}

#endif
