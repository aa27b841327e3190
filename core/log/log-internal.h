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

/* --- replay.c: the chain of records ------------------------------------------------------------
 */

/* Reads from the device, again if it fails: an error that passes must not decide what was written.
 * Return: 0, -EIO, -ENOMEM. */
int cpc_log_read(struct cpc_log_replay *r, uint64_t bytenr, void *buf, size_t len);
/* Reads one copy of whatever record stands at a place into r->buf. Of r it uses store, max_record
 * and buf. Return: 0; -EUCLEAN none; -EIO. */
int cpc_log_read_copy(struct cpc_log_replay *r, uint64_t position, unsigned copy);
/* Reads a record of the chain again, from any copy that was good. */
int cpc_log_read_found(struct cpc_log_replay *r, const struct cpc_log_found *found);
/* The entry at *at of a record, which moves on; NULL when it is not sane. */
const struct cpc_disk_log_entry *cpc_log_next_entry(const struct cpc_log_replay *r,
						    const uint8_t *record, uint32_t length,
						    uint32_t *at);
/* Cuts the chain to the last end of a cut within its first nr records. */
void cpc_log_cut_chain(struct cpc_log_replay *r, size_t nr);

/* --- verify.c: what lies above the durable mark ------------------------------------------------
 */

/* Cuts the chain to the newest end of which all data verifies, and fills r->verified.
 * Return: 0; -EIO with r->unreadable; -ENOMEM. */
int cpc_log_choose_end(struct cpc_log_replay *r);

/* --- apply.c: runs of a record -----------------------------------------------------------------
 */

struct cpc_log_record_run {
	uint64_t volume;
	const struct cpc_disk_log_entry *name; /* a change of names instead of a run */
	struct cpc_run *run;
};

struct cpc_log_runs {
	struct cpc_log_record_run *run;
	size_t nr, cap;
};

/* Reads an accepted record again and takes it apart. Names point into r->buf. */
int cpc_log_load_runs(struct cpc_log_replay *r, const struct cpc_log_found *found,
		      struct cpc_log_runs *runs);
void cpc_log_runs_destroy(struct cpc_log_runs *runs);

#endif
