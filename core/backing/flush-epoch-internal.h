/* SPDX-License-Identifier: BSD-3-Clause */
/* flush-epoch-internal: what flush-epoch.c and repair.c share. */
#ifndef CPC_BACKING_FLUSH_EPOCH_INTERNAL_H
#define CPC_BACKING_FLUSH_EPOCH_INTERNAL_H

#include "backing/flush-epoch.h"

/*
 * A completed write that is not covered. Owned by the list it is on; all fields but stamp are
 * immutable once it is.
 */
struct cpc_fe_record {
	struct cpc_list node;
	uint64_t seq; /* order of begin */
	uint64_t bytenr, len;
	uint64_t stamp;	  /* fe->failures when the bytes were last sent; under fe->lock */
	bool is_void;	  /* a discard or a failed write: nobody relies on these blocks */
	uint32_t csums[]; /* one for each block, none if it was a discard */
};

/* A flush has failed since the bytes were sent. */
static inline bool cpc_fe_suspect(struct cpc_flush_epoch *fe, const struct cpc_fe_record *r)
{
	return r->stamp < atomic_load_explicit(&fe->failures, memory_order_relaxed);
}

/*
 * Writes all suspect completed records again. Context: the leader, fe->lock held; released during
 * I/O. Return: 0; -EUCLEAN when bytes are lost; another errno when it may be tried again.
 */
int cpc_fe_repair_locked(struct cpc_flush_epoch *fe);

#endif
