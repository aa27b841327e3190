/* SPDX-License-Identifier: BSD-3-Clause */
#include "transaction/blockset.h"

#include "lib/hooks.h"

#define WORD_BITS   64u
#define GROUP_WORDS (CPC_GROUP_BLOCKS / WORD_BITS)

_Static_assert(CPC_GROUP_BLOCKS / 8 == CPC_BLOCK_SIZE, "a group's bitmap fills one block");

void cpc_blockset_init(struct cpc_blockset *set, uint64_t nr_groups)
{
	memset(set, 0, sizeof(*set));
	set->nr_groups = nr_groups;
	set->low = nr_groups;
}

void cpc_blockset_destroy(struct cpc_blockset *set)
{
	if (set->bitmaps) {
		for (uint64_t g = set->low; g < set->high; g++)
			cpc_free(set->bitmaps[g]);
		cpc_free(set->bitmaps);
	}
	cpc_blockset_init(set, set->nr_groups);
}

static uint64_t *group_bitmap(struct cpc_blockset *set, uint64_t group)
{
	cpc_assert(group < set->nr_groups);
	if (!set->bitmaps) {
		set->bitmaps = cpc_alloc_array(set->nr_groups, sizeof(*set->bitmaps));
		if (!set->bitmaps)
			return NULL;
		memset(set->bitmaps, 0, set->nr_groups * sizeof(*set->bitmaps));
	}
	if (!set->bitmaps[group]) {
		set->bitmaps[group] = cpc_zalloc(CPC_BLOCK_SIZE);
		if (!set->bitmaps[group])
			return NULL;
		set->low = cpc_min_u64(set->low, group);
		set->high = cpc_max_u64(set->high, group + 1);
	}
	return set->bitmaps[group];
}

/* Bits [from, to) of a word. */
static uint64_t word_mask(unsigned from, unsigned to)
{
	uint64_t high = to == WORD_BITS ? ~0ull : (1ull << to) - 1;

	return high & (~0ull << from);
}

/* Sets or clears bits of one group's bitmap. Return: how many changed. */
static uint64_t change_bits(uint64_t *bitmap, uint32_t start, uint32_t nr, bool set)
{
	uint64_t changed = 0;
	uint32_t end = start + nr;

	while (start < end) {
		unsigned from = start % WORD_BITS;
		unsigned to = (unsigned)cpc_min_u64(WORD_BITS, from + (end - start));
		uint64_t mask = word_mask(from, to), *word = &bitmap[start / WORD_BITS];

		if (set) {
			changed += (uint64_t)__builtin_popcountll(mask & ~*word);
			*word |= mask;
		} else {
			changed += (uint64_t)__builtin_popcountll(mask & *word);
			*word &= ~mask;
		}
		start += to - from;
	}
	return changed;
}

int cpc_blockset_add(struct cpc_blockset *set, uint64_t block, uint64_t nr)
{
	/* First the memory for all of it, so that a failure changes nothing. */
	for (uint64_t b = block; b < block + nr; b += CPC_GROUP_BLOCKS - b % CPC_GROUP_BLOCKS) {
		if (!group_bitmap(set, b / CPC_GROUP_BLOCKS))
			return -ENOMEM;
	}
	while (nr) {
		uint32_t start = block % CPC_GROUP_BLOCKS;
		uint32_t part = (uint32_t)cpc_min_u64(nr, CPC_GROUP_BLOCKS - start);

		set->nr_blocks +=
		    change_bits(set->bitmaps[block / CPC_GROUP_BLOCKS], start, part, true);
		block += part;
		nr -= part;
	}
	return 0;
}

void cpc_blockset_remove(struct cpc_blockset *set, uint64_t block, uint64_t nr)
{
	while (nr) {
		uint32_t start = block % CPC_GROUP_BLOCKS;
		uint32_t part = (uint32_t)cpc_min_u64(nr, CPC_GROUP_BLOCKS - start);
		uint64_t group = block / CPC_GROUP_BLOCKS;

		if (set->bitmaps && set->bitmaps[group])
			set->nr_blocks -= change_bits(set->bitmaps[group], start, part, false);
		block += part;
		nr -= part;
	}
}

const uint64_t *cpc_blockset_group(const struct cpc_blockset *set, uint64_t group)
{
	return set->bitmaps ? set->bitmaps[group] : NULL;
}

bool cpc_blockset_test(const struct cpc_blockset *set, uint64_t block)
{
	const uint64_t *bitmap = cpc_blockset_group(set, block / CPC_GROUP_BLOCKS);
	uint32_t bit = block % CPC_GROUP_BLOCKS;

	return bitmap && bitmap[bit / WORD_BITS] >> (bit % WORD_BITS) & 1;
}

/* First bit at or after `from` that is set (or clear); GROUP_BLOCKS if none. */
static uint32_t find_bit(const uint64_t *bitmap, uint32_t from, bool set)
{
	while (from < CPC_GROUP_BLOCKS) {
		uint64_t word = bitmap[from / WORD_BITS];

		if (!set)
			word = ~word;
		word &= ~0ull << (from % WORD_BITS);
		if (word)
			return from / WORD_BITS * WORD_BITS + (uint32_t)__builtin_ctzll(word);
		from = (from / WORD_BITS + 1) * WORD_BITS;
	}
	return CPC_GROUP_BLOCKS;
}

bool cpc_blockset_next(const struct cpc_blockset *set, uint64_t from, uint64_t *block, uint64_t *nr)
{
	uint64_t group = from / CPC_GROUP_BLOCKS;
	uint32_t bit = from % CPC_GROUP_BLOCKS;

	if (!set->bitmaps)
		return false;
	if (group < set->low) {
		group = set->low;
		bit = 0;
	}
	for (; group < set->high; group++, bit = 0) {
		if (!set->bitmaps[group])
			continue;
		bit = find_bit(set->bitmaps[group], bit, true);
		if (bit == CPC_GROUP_BLOCKS)
			continue;
		*block = group * CPC_GROUP_BLOCKS + bit;
		*nr = find_bit(set->bitmaps[group], bit, false) - bit;
		return true;
	}
	return false;
}

int cpc_blockset_move(struct cpc_blockset *to, struct cpc_blockset *from)
{
	uint64_t block, nr;

	if (!to->nr_blocks) {
		struct cpc_blockset empty = *to;

		*to = *from;
		*from = empty;
		cpc_blockset_destroy(from);
		return 0;
	}
	/* Memory first: the second pass cannot fail. */
	cpc_blockset_for_each(from, block, nr)
	{
		if (!group_bitmap(to, block / CPC_GROUP_BLOCKS))
			return -ENOMEM;
	}
	cpc_blockset_for_each(from, block, nr) cpc_assert(cpc_blockset_add(to, block, nr) == 0);
	cpc_blockset_destroy(from);
	return 0;
}
