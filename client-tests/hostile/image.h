/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * image: small valid pools, and what makes them hostile.
 *
 * A *base* is a pool as the engine leaves it: trees of some levels, several volumes, a drop list, a
 * log that nobody has applied. A *change* sets one field of one structure in it. image_seal() then
 * makes all checksums right again, from the leaves up, in both copies, bitmaps, log and superblock
 * included, so that nothing but the validation of values stands between the bytes and the engine.
 *
 * A description of a hostile image is a few bytes: which base, and changes of eight bytes each. Any
 * bytes are a valid description; describe.h makes those that change fields.
 */
#ifndef CPC_HOSTILE_IMAGE_H
#define CPC_HOSTILE_IMAGE_H

#include "device.h"
#include "format/format.h"

#define IMAGE_BYTES CPC_POOL_SIZE_MIN
#define IMAGE_BASES 4u
#define IMAGE_NODES 512u

/* What a change is made to; the low three bits of image_change.what. */
enum image_structure {
	IMAGE_SUPER,
	IMAGE_HEADER, /* of a node */
	IMAGE_SLOT,   /* of a node: an item or a child */
	IMAGE_BITMAP, /* a group's current home */
	IMAGE_VALUE,  /* of an item */
	IMAGE_GROUP,  /* the value that names the bitmap */
	IMAGE_RECORD, /* of the log: its header */
	IMAGE_ENTRY,  /* in a record */
	IMAGE_STRUCTURES
};

/* A node that the base's newest superblock leads to; parents before children. */
struct image_node {
	uint64_t bytenr[2];
	uint64_t owner;
};

struct image {
	struct device device;
	struct cpc_super super; /* the base's newest */
	struct cpc_geometry geo;
	struct image_node node[IMAGE_NODES];
	unsigned nr_nodes;
	uint64_t *record; /* addresses of the log's records, copy 0 */
	unsigned nr_records;
	uint64_t group, bitmap; /* addresses of the first group's item and home; 0: there is none */
	uint8_t *base;
	unsigned seal_flags; /* of the sealing that runs */
};

/* One change, as it stands in a description. */
struct image_change {
	uint8_t what;	  /* structure; width and part of the place of the field */
	uint8_t instance; /* of the structure */
	uint8_t slot;	  /* item, child or entry in it */
	uint8_t how;	  /* the value: given, as another has it, one more ...; more of the place */
	uint8_t value[4]; /* the last: the rest of the place */
};

/* The field of a change. */
#define IMAGE_OFFSET_MAX 32767u
void image_change_at(struct image_change *change, unsigned offset, unsigned width);

/* What image_seal() makes agree with what pointers name. */
#define IMAGE_SEAL_POINTERS 1u /* generation and checksum of what the pointer names now */
#define IMAGE_SEAL_DATA	    2u /* checksums of mapped blocks */
#define IMAGE_SEAL_BITMAPS  4u /* checksums of bitmaps, and their second copies */

/* Makes base `nr`; `image` is zero. */
void image_init(struct image *image, unsigned nr);
void image_destroy(struct image *image);
void image_reset(struct image *image);
void image_change(struct image *image, const struct image_change *change);
/* Puts entries in place of those of the log's first record. */
void image_put_entries(struct image *image, const uint8_t *entries, size_t len, uint32_t nr);
/* Puts the first bytes of the newest superblock, behind its checksum. */
void image_put_super(struct image *image, const uint8_t *fields, size_t len);
void image_seal(struct image *image, unsigned flags);

#endif
