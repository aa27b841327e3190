/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * device: a backing over plain memory that is quickly what it was before. Reset copies back the
 * blocks that were touched. One thread. Memory comes from libc.
 */
#ifndef CPC_HOSTILE_DEVICE_H
#define CPC_HOSTILE_DEVICE_H

#include "backing/backing.h"

struct device {
	uint64_t size;
	uint8_t *bytes;	     /* what reads see */
	const uint8_t *base; /* what reset brings back; borrowed */
	uint64_t *touched;   /* block numbers, each once */
	size_t nr_touched;
	uint8_t *is_touched; /* by block */
	/* since the last device_open */
	uint64_t writes;
	bool changed; /* a write brought other bytes than were there */
};

void device_init(struct device *d, const uint8_t *base, uint64_t size);
void device_destroy(struct device *d);
void device_reset(struct device *d);
/* Must be called before bytes are changed from outside. */
void device_touch(struct device *d, uint64_t bytenr, uint64_t len);
/* A handle, which the pool owns; the device stays the caller's. */
struct cpc_backing *device_open(struct device *d);

#endif
