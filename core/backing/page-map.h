/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * page-map: the sparse images of the power-cut device (powercut.h): a hash table from block number
 * to a page of 4096 bytes, shared by reference count and never changed once it is in a map. Memory
 * comes from libc; without it the program stops. No locks: the device's.
 */
#ifndef CPC_BACKING_PAGE_MAP_H
#define CPC_BACKING_PAGE_MAP_H

#include "lib/base.h"

struct cpc_page {
	size_t refs;
	uint8_t data[CPC_BLOCK_SIZE];
};

/* Stands for a discarded block over an older image. Shared, not counted; it has no bytes. */
extern struct cpc_page cpc_page_hole;

struct cpc_page_slot {
	uint64_t block;
	struct cpc_page *page; /* NULL: empty */
};

struct cpc_page_map {
	struct cpc_page_slot *slots;
	size_t nr_slots; /* 0 or a power of two */
	size_t nr_used;
};

void *cpc_page_xalloc(size_t size);

/* A page with these bytes and one reference; all zeroes give a shared page. */
struct cpc_page *cpc_page_new(const void *data);
struct cpc_page *cpc_page_get(struct cpc_page *page);
void cpc_page_put(struct cpc_page *page); /* NULL is allowed */

/* NULL if there is none. The reference stays the map's. */
struct cpc_page *cpc_page_map_find(const struct cpc_page_map *map, uint64_t block);
/* Takes a reference of its own. */
void cpc_page_map_set(struct cpc_page_map *map, uint64_t block, struct cpc_page *page);
void cpc_page_map_del(struct cpc_page_map *map, uint64_t block);
void cpc_page_map_del_range(struct cpc_page_map *map, uint64_t block, uint64_t nr);
void cpc_page_map_clear(struct cpc_page_map *map);
void cpc_page_map_copy(struct cpc_page_map *to, const struct cpc_page_map *from);

/* Calls fn for each page in the range; fn may replace pages of this map and not add to it. */
void cpc_page_map_each(const struct cpc_page_map *map, uint64_t block, uint64_t nr,
		       void (*fn)(void *ctx, uint64_t block), void *ctx);

#endif
