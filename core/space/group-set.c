/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * group-set: two levels. A third one would only matter above 64 TiB, where a search still reads no
 * more than a few thousand words of summary.
 */
#include "space/group-set-internal.h"

#include "lib/hooks.h"

int cpc_group_set_init(struct cpc_group_set *set, uint64_t nr_groups)
{
	size_t words;

	set->nr_words = cpc_div_round_up(nr_groups, 64);
	set->nr_summary = cpc_div_round_up(set->nr_words, 64);
	words = set->nr_words + set->nr_summary;
	set->words = cpc_alloc_array(words, sizeof(uint64_t));
	if (!set->words)
		return -ENOMEM;
	memset(set->words, 0, words * sizeof(uint64_t));
	set->summary = set->words + set->nr_words;
	return 0;
}

void cpc_group_set_destroy(struct cpc_group_set *set)
{
	cpc_free(set->words);
	set->words = NULL;
}

/* The first bit set at or after `from`, or CPC_GROUP_NONE. */
static uint64_t next_bit(const uint64_t *words, uint64_t nr_words, uint64_t from)
{
	uint64_t mask = ~0ull << from % 64;

	for (uint64_t i = from / 64; i < nr_words; i++, mask = ~0ull) {
		if (words[i] & mask)
			return i * 64 + (uint64_t)__builtin_ctzll(words[i] & mask);
	}
	return CPC_GROUP_NONE;
}

uint64_t cpc_group_set_next(const struct cpc_group_set *set, uint64_t from)
{
	uint64_t word = from / 64, bits;

	if (word >= set->nr_words)
		return CPC_GROUP_NONE;
	bits = set->words[word] & ~0ull << from % 64;
	if (!bits) {
		word = next_bit(set->summary, set->nr_summary, word + 1);
		if (word == CPC_GROUP_NONE)
			return CPC_GROUP_NONE;
		bits = set->words[word];
	}
	return word * 64 + (uint64_t)__builtin_ctzll(bits);
}
