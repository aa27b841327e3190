/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * tap: a backing in front of another that calls a function before each write, discard and flush,
 * with no lock held: what the device holds at that instant can be saved there, or its power cut. It
 * then says so in `dead`, and nothing reaches the device any more.
 */
#ifndef CPC_POWERCUT_TAP_H
#define CPC_POWERCUT_TAP_H

#include "backing/backing.h"

struct tap {
	void (*before)(void *ctx, char what); /* 'w', 'd', 'f'; NULL: off */
	void *ctx;
	bool dead; /* every call is -EIO */
};

/* The handle owns `inner`; the tap stays the caller's. */
struct cpc_backing *tap_wrap(void *tap, struct cpc_backing *inner);

#endif
