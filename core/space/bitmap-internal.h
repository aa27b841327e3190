/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bitmap: searching and counting in the bitmap of one block group. Pure functions.
 *
 * A bitmap is CPC_GROUP_BLOCKS bits in 64-bit words in host order; a set bit means busy. A slot of
 * order n is 2^n free blocks at a multiple of 2^n, n <= 4, so that none crosses a word.
 */
#ifndef CPC_SPACE_BITMAP_INTERNAL_H
#define CPC_SPACE_BITMAP_INTERNAL_H

#include "format/format.h"

#define CPC_BITMAP_WORDS (CPC_GROUP_BLOCKS / 64)

/* The first blocks of the slots in a word whose set bits are free blocks. */
static inline uint64_t cpc_bitmap_slots(uint64_t free, unsigned order)
{
	static const uint64_t aligned[] = {~0ull, 0x5555555555555555ull, 0x1111111111111111ull,
					   0x0101010101010101ull, 0x0001000100010001ull};

	for (unsigned i = 0; i < order; i++)
		free &= free >> (1u << i);
	return free & aligned[order];
}

/* All blocks of those slots. */
static inline uint64_t cpc_bitmap_slot_blocks(uint64_t free, unsigned order)
{
	return cpc_bitmap_slots(free, order) * ((1ull << (1u << order)) - 1);
}

/* The bits of word `word` that lie in [start, start + len); len > 0. */
static inline uint64_t cpc_bitmap_mask(uint32_t word, uint32_t start, uint32_t len)
{
	uint32_t first = word * 64, end = start + len;
	uint64_t mask = ~0ull;

	if (start > first)
		mask &= ~0ull << (start - first);
	if (end < first + 64)
		mask &= ~0ull >> (first + 64 - end);
	return mask;
}

struct cpc_bitmap_search {
	uint32_t from;	     /* first block looked at */
	uint32_t want, min;  /* blocks; want >= min > 0 */
	unsigned order;	     /* of a slot */
	bool fragments;	     /* leave out the blocks of slots */
	uint32_t start, len; /* answer */
};

/*
 * Finds a free run: the first one of `want` blocks, or the longest of some, when a run of `min` has
 * been met and looking further would take long. Return: false when there is no run of `min`.
 */
bool cpc_bitmap_find_run(const uint64_t *busy, struct cpc_bitmap_search *s);
/* Finds the first slot at or after s->from. */
bool cpc_bitmap_find_slot(const uint64_t *busy, struct cpc_bitmap_search *s);

uint32_t cpc_bitmap_count(const uint64_t *words);
uint32_t cpc_bitmap_count_slots(const uint64_t *busy, unsigned order);
/* Number of bits of [start, start + len) that are set. */
uint32_t cpc_bitmap_count_range(const uint64_t *words, uint32_t start, uint32_t len);

void cpc_bitmap_from_disk(uint64_t *words, const uint8_t bitmap[CPC_BLOCK_SIZE]);
void cpc_bitmap_to_disk(uint8_t bitmap[CPC_BLOCK_SIZE], const uint64_t *words);

#endif
