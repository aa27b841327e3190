/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * history: what a small volume may hold after some of its changes have failed.
 *
 * A change that failed has happened, or not, or in pieces: until something else is written there,
 * each of its bytes is the old or the new one. A state is the content after a change, with those
 * bytes marked as *unsure*. What comes back after a crash is, as a whole, one state at or after the
 * last one that was answered as durable.
 *
 * All states are kept as a whole, so a volume has HISTORY_BYTES and a script few changes. Memory
 * comes from libc. Not for several threads.
 */
#ifndef CPC_FAULTS_HISTORY_H
#define CPC_FAULTS_HISTORY_H

#include "lib/base.h"

#define HISTORY_BYTES (96u << 10) /* capacity; what lies beyond a volume's size is zero */

struct history_state {
	uint8_t *bytes;
	uint8_t *unsure; /* one a byte, NULL: none */
	/* the change that led here */
	bool failed;
	uint64_t offset, len;
	uint8_t *data; /* NULL: zeroes */
};

struct history {
	struct history_state *state;
	size_t nr, cap;
	size_t floor; /* states before it are no more allowed */
};

void history_init(struct history *h);
void history_destroy(struct history *h);

/* A change that is on its way; data NULL: zeroes. It has succeeded unless the next call says no. */
void history_change(struct history *h, const uint8_t *data, uint64_t len, uint64_t offset);
/* The newest change failed. */
void history_failed(struct history *h);
/* The newest state is durable. */
void history_durable(struct history *h);

/* Return: true when a read of the range may give `buf` now; false with *bad = an offset. */
bool history_reads(const struct history *h, const uint8_t *buf, uint64_t len, uint64_t offset,
		   uint64_t *bad);
/* Return: true when a volume of `size` bytes may have come back as `buf`; it starts a new life. */
bool history_came_back(struct history *h, const uint8_t *buf, uint64_t size);

#endif
