/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Linear probing in a table that is at most half full; deletion moves the followers back, so there
 * are no tombstones. Ranges larger than the table are done by walking the table.
 */
#include "backing/page-map.h"

#include <stdlib.h>

#define MIN_SLOTS 64u

struct cpc_page cpc_page_hole;
static struct cpc_page zero_page;

void *cpc_page_xalloc(size_t size)
{
	void *p = malloc(size);

	cpc_assert(p);
	return p;
}

static bool counted(const struct cpc_page *page)
{
	return page != &cpc_page_hole && page != &zero_page;
}

struct cpc_page *cpc_page_new(const void *data)
{
	struct cpc_page *page;

	if (cpc_all_zero(data, CPC_BLOCK_SIZE))
		return &zero_page;
	page = cpc_page_xalloc(sizeof(*page));
	page->refs = 1;
	memcpy(page->data, data, CPC_BLOCK_SIZE);
	return page;
}

struct cpc_page *cpc_page_get(struct cpc_page *page)
{
	if (counted(page))
		page->refs++;
	return page;
}

void cpc_page_put(struct cpc_page *page)
{
	if (page && counted(page) && !--page->refs)
		free(page);
}

static size_t home(const struct cpc_page_map *map, uint64_t block)
{
	return (size_t)((block * 0x9e3779b97f4a7c15u) >> 20) & (map->nr_slots - 1);
}

/* The slot of the block, or the empty one where it would go. The table is not full. */
static struct cpc_page_slot *probe(const struct cpc_page_map *map, uint64_t block)
{
	size_t i = home(map, block);

	while (map->slots[i].page && map->slots[i].block != block)
		i = (i + 1) & (map->nr_slots - 1);
	return &map->slots[i];
}

struct cpc_page *cpc_page_map_find(const struct cpc_page_map *map, uint64_t block)
{
	return map->nr_slots ? probe(map, block)->page : NULL;
}

static void resize(struct cpc_page_map *map, size_t nr_slots)
{
	struct cpc_page_map old = *map;

	map->slots = cpc_page_xalloc(nr_slots * sizeof(*map->slots));
	memset(map->slots, 0, nr_slots * sizeof(*map->slots));
	map->nr_slots = nr_slots;
	for (size_t i = 0; i < old.nr_slots; i++)
		if (old.slots[i].page)
			*probe(map, old.slots[i].block) = old.slots[i];
	free(old.slots);
}

void cpc_page_map_set(struct cpc_page_map *map, uint64_t block, struct cpc_page *page)
{
	struct cpc_page_slot *slot;

	if (map->nr_used * 2 >= map->nr_slots)
		resize(map, map->nr_slots ? map->nr_slots * 2 : MIN_SLOTS);
	slot = probe(map, block);
	if (!slot->page)
		map->nr_used++;
	cpc_page_get(page);
	cpc_page_put(slot->page);
	slot->block = block;
	slot->page = page;
}

/* Moves back what was pushed past the hole at `i`. */
static void close_gap(struct cpc_page_map *map, size_t i)
{
	size_t mask = map->nr_slots - 1;

	for (size_t j = (i + 1) & mask; map->slots[j].page; j = (j + 1) & mask) {
		size_t distance = (j - home(map, map->slots[j].block)) & mask;

		if (distance < ((j - i) & mask))
			continue;
		map->slots[i] = map->slots[j];
		i = j;
	}
	map->slots[i].page = NULL;
}

void cpc_page_map_del(struct cpc_page_map *map, uint64_t block)
{
	struct cpc_page_slot *slot;

	if (!map->nr_slots)
		return;
	slot = probe(map, block);
	if (!slot->page)
		return;
	cpc_page_put(slot->page);
	map->nr_used--;
	close_gap(map, (size_t)(slot - map->slots));
}

/* Drops the range without closing gaps, then puts the rest into a fresh table. */
static void del_by_walk(struct cpc_page_map *map, uint64_t block, uint64_t nr)
{
	for (size_t i = 0; i < map->nr_slots; i++) {
		struct cpc_page_slot *slot = &map->slots[i];

		if (!slot->page || slot->block - block >= nr)
			continue;
		cpc_page_put(slot->page);
		slot->page = NULL;
		map->nr_used--;
	}
	resize(map, map->nr_slots);
}

void cpc_page_map_del_range(struct cpc_page_map *map, uint64_t block, uint64_t nr)
{
	if (!map->nr_used)
		return;
	if (nr > map->nr_slots) {
		del_by_walk(map, block, nr);
		return;
	}
	for (uint64_t i = 0; i < nr; i++)
		cpc_page_map_del(map, block + i);
}

void cpc_page_map_clear(struct cpc_page_map *map)
{
	for (size_t i = 0; i < map->nr_slots; i++)
		cpc_page_put(map->slots[i].page);
	free(map->slots);
	memset(map, 0, sizeof(*map));
}

void cpc_page_map_copy(struct cpc_page_map *to, const struct cpc_page_map *from)
{
	*to = *from;
	if (!from->nr_slots)
		return;
	to->slots = cpc_page_xalloc(from->nr_slots * sizeof(*to->slots));
	memcpy(to->slots, from->slots, from->nr_slots * sizeof(*to->slots));
	for (size_t i = 0; i < to->nr_slots; i++)
		if (to->slots[i].page)
			cpc_page_get(to->slots[i].page);
}

void cpc_page_map_each(const struct cpc_page_map *map, uint64_t block, uint64_t nr,
		       void (*fn)(void *ctx, uint64_t block), void *ctx)
{
	if (nr <= map->nr_slots) {
		for (uint64_t i = 0; i < nr; i++)
			if (cpc_page_map_find(map, block + i))
				fn(ctx, block + i);
		return;
	}
	for (size_t i = 0; i < map->nr_slots; i++)
		if (map->slots[i].page && map->slots[i].block - block < nr)
			fn(ctx, map->slots[i].block);
}
