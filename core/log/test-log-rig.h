/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test-log-rig: a log over a store on a power-cut device, and what its replay says.
 *
 * Data stands in blocks that nothing else uses; block b of the pool holds what log_rig_fill(b)
 * says, so that a checksum needs no table.
 */
#ifndef CPC_LOG_TEST_LOG_RIG_H
#define CPC_LOG_TEST_LOG_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "backing/powercut.h"
#include "log/log-internal.h"

#define MIB	     (1024u * 1024u)
#define POOL_SIZE    (8 * MIB)
#define SMALL_RING   (128u << 10)
#define MODEL_BLOCKS 512u

struct log_rig {
	struct cpc_powercut *pc;
	struct cpc_backing *backing;
	struct cpc_store *store;
	struct cpc_log *log;
	uint64_t next_data; /* block of the pool */
};

struct log_replayed {
	uint64_t at[MODEL_BLOCKS]; /* of volume 1; 0: nothing, UINT64_MAX: hole */
	unsigned runs, names, batches;
	uint64_t last_seq, position;
	char order[64]; /* of names */
};

/* What log_rig_fake_clock says. */
extern _Atomic uint64_t log_rig_ns;

uint64_t log_rig_fake_clock(void);
uint64_t log_rig_draw(uint64_t below);
void log_rig_open_store(struct log_rig *f, bool read_only);
void log_rig_close_store(struct log_rig *f);
void log_rig_commit(struct log_rig *f, uint64_t seq, uint64_t position);
/* A new life whose log begins at `position`. */
void log_rig_start(struct log_rig *f, uint64_t position);
void log_rig_make(struct log_rig *f, uint64_t pool_size, uint64_t log_size);
void log_rig_destroy(struct log_rig *f);
/* Ends the life; what was not flushed has this fate. The store is open read-only afterwards. */
void log_rig_crash(struct log_rig *f, enum cpc_crash_fate fate);
void log_rig_reopen_read_only(struct log_rig *f);
void log_rig_fill(uint64_t block, uint8_t *buf);
void log_rig_write_block(struct log_rig *f, uint64_t block);
/* Maps [block, block + nr) of a volume to `at`; 0: a hole. Data is not written. */
void log_rig_add_run(struct cpc_log_batch *b, uint64_t volume, uint64_t block, uint64_t nr,
		     uint64_t at);
/* A batch of `nr` holes, each an entry of its own. */
void log_rig_holes(struct log_rig *f, struct cpc_log_batch *b, unsigned nr);
/* Logs one block of volume 1, data first. Return: its sequence number. */
uint64_t log_rig_log_block(struct log_rig *f, uint64_t block, uint64_t *at);
void log_rig_log_holes(struct log_rig *f, unsigned nr);
int log_rig_on_run(void *ctx, uint64_t volume, struct cpc_run *run);
int log_rig_on_name(void *ctx, enum cpc_log_entry_type type, uint64_t volume, uint64_t size,
		    const void *payload, uint32_t len);
int log_rig_on_batch(void *ctx, uint64_t seq, uint64_t position);
int log_rig_scan(struct log_rig *f, struct cpc_log_replay *r);
/* Scans and collects. Return: what the scan says. */
int log_rig_replay(struct log_rig *f, struct log_replayed *p);
void log_rig_assert_replays_to(struct log_rig *f, uint64_t seq);
uint64_t log_rig_device_of(struct log_rig *f, unsigned copy, uint64_t position);
void log_rig_spoil(struct log_rig *f, unsigned copy, uint64_t position);
/* Puts a record there again, with a checksum that fits. */
void log_rig_poke_record(struct log_rig *f, unsigned copies, uint64_t position, uint8_t *buf,
			 uint32_t length);
uint8_t *log_rig_peek_record(struct log_rig *f, uint64_t position, uint32_t length);

/* Commits all of the log; *seq becomes its last number. */
void log_rig_commit_all(struct log_rig *f, uint64_t *seq);

#endif
