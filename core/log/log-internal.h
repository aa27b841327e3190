/* SPDX-License-Identifier: BSD-3-Clause */
/* log-internal: what the files of core/log share. */
#ifndef CPC_LOG_LOG_INTERNAL_H
#define CPC_LOG_LOG_INTERNAL_H

#include "log/log.h"

static inline uint32_t cpc_log_max_record(uint64_t ring_size)
{
	uint64_t max = cpc_min_u64(256u << 10, ring_size / 8);

	return (uint32_t)cpc_align_down(max, CPC_BLOCK_SIZE);
}

/* replay.c: reads one copy of whatever record stands at a place into r->buf. Of r it uses store,
 * max_record and buf. Return: 0; -EUCLEAN none; -EIO. */
int cpc_log_read_copy(struct cpc_log_replay *r, uint64_t position, unsigned copy);

#endif
