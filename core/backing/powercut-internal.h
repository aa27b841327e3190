/* SPDX-License-Identifier: BSD-3-Clause */
/* powercut-internal: what powercut.c and powercut-crash.c share. */
#ifndef CPC_BACKING_POWERCUT_INTERNAL_H
#define CPC_BACKING_POWERCUT_INTERNAL_H

#include "backing/page-map.h"
#include "backing/powercut.h"

#define CPC_POWERCUT_MAX_FAULTS 16

/* A write or discard that no good flush has covered. */
struct cpc_pending {
	struct cpc_list node;
	struct cpc_powercut_pending info;
	uint64_t acked_tick;	  /* valid when info.acked */
	struct cpc_page *pages[]; /* one for each block of a write, none for a discard */
};

struct cpc_armed_fault {
	struct cpc_powercut_fault fault;
	uint64_t seen;
	bool armed;
};

/* All under lock. */
struct cpc_powercut {
	struct cpc_mutex lock;
	uint64_t size; /* immutable */
	uint8_t fill;
	uint64_t life; /* handles of other lives are dead */
	unsigned nr_handles;

	struct cpc_page_map stable;
	struct cpc_page_map current; /* what differs from stable for a reader; holes too */
	struct cpc_list pending;     /* cpc_pending, in the order of issue */
	size_t nr_pending;
	uint64_t tick; /* orders acks and the beginnings of flushes */

	struct cpc_powercut_hooks hooks;
	void *hooks_ctx;
	struct cpc_armed_fault faults[CPC_POWERCUT_MAX_FAULTS];
	uint64_t counts[CPC_POWERCUT_NR_OPS];

	unsigned hold; /* CPC_HOLD_ bits */
	unsigned nr_held;
	struct cpc_cond released; /* hold or life has changed */
	struct cpc_cond held;	  /* nr_held has grown */
	unsigned flush_delay_us;
};

/* The content of a block in the stable image, copied to `data`. */
void cpc_powercut_stable_block(struct cpc_powercut *pc, uint64_t block, void *data);

/* Frees one pending write that is on no list. */
void cpc_pending_free(struct cpc_pending *p);
void cpc_powercut_drop_pending(struct cpc_powercut *pc);

/* Makes the pending write or discard part of the stable image. */
void cpc_powercut_land(struct cpc_powercut *pc, const struct cpc_pending *p);

/* Takes all that is still held as landed in the device's cache. */
void cpc_powercut_ack_all(struct cpc_powercut *pc);

/* Ends the life: handles die, held calls return. */
void cpc_powercut_end_life(struct cpc_powercut *pc);

#endif
