/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * mapping: a pool with a volume that is full, without its data being written. What a terabyte costs
 * is in its metadata; so this makes the trees, bitmaps and superblock of a volume every block of
 * which is mapped, and leaves the blocks themselves as they are: holes of the device, which read as
 * zeroes and have the checksum of zeroes.
 *
 * The volume is made of extents of `run` blocks at places in random order, as random overwrites of
 * that size leave it; run = 1 is a volume of which every single block has been overwritten at
 * random. The places are scattered over the first `spread` bytes of the data area.
 *
 * All of it goes through cpc_store_commit, a part of the volume a commit in order of its blocks, so
 * what is on the device is what the engine would have written. Memory: 28 bytes an extent of one
 * part, 8 KiB a block group.
 */
#ifndef SCALE_MAPPING_H
#define SCALE_MAPPING_H

#include "backing/backing.h"

struct mapping {
	const char *name;
	uint64_t size;	 /* of the volume, a multiple of run blocks */
	uint64_t spread; /* bytes; 0: as much as the volume */
	uint32_t run;	 /* blocks, at most CPC_EXTENT_MAX_BLOCKS */
	uint64_t seed;
};

/* Makes the volume in a formatted pool without volumes. Return: 0 or negative errno, with a reason
 * in *why. Durable. */
int mapping_make(struct cpc_backing *backing, const struct mapping *m, const char **why);

#endif
