/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * group-set: a set of block groups that finds its next member fast: a bit a group, and above them a
 * bit for each word that is not empty. A pool of 64 TiB has 524288 groups: 64 KiB and 1 KiB.
 * No locks: the caller's.
 */
#ifndef CPC_SPACE_GROUP_SET_INTERNAL_H
#define CPC_SPACE_GROUP_SET_INTERNAL_H

#include "lib/base.h"

#define CPC_GROUP_NONE UINT64_MAX

struct cpc_group_set {
	uint64_t *words;   /* a bit a group */
	uint64_t *summary; /* a bit a word */
	uint64_t nr_words, nr_summary;
};

/* Return: 0 and an empty set, or -ENOMEM. */
int cpc_group_set_init(struct cpc_group_set *set, uint64_t nr_groups);
void cpc_group_set_destroy(struct cpc_group_set *set);
/* The first member at or after `from`, or CPC_GROUP_NONE. */
uint64_t cpc_group_set_next(const struct cpc_group_set *set, uint64_t from);

static inline bool cpc_group_set_has(const struct cpc_group_set *set, uint64_t group)
{
	return set->words[group / 64] >> group % 64 & 1;
}

static inline void cpc_group_set_assign(struct cpc_group_set *set, uint64_t group, bool member)
{
	uint64_t word = group / 64, bit = 1ull << group % 64;

	if (member == !!(set->words[word] & bit))
		return;
	set->words[word] ^= bit;
	if (set->words[word])
		set->summary[word / 64] |= 1ull << word % 64;
	else
		set->summary[word / 64] &= ~(1ull << word % 64);
}

#endif
