/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bitmap: one bit a block, a word at a time.
 *
 * Normal path: in an empty pool the first word looked at holds the run. In a fragmented one a
 * search for a long run would read the group again and again to return a few blocks each time; so
 * it ends after MAX_RUNS runs or MAX_DISTANCE blocks once it has anything to return. What it leaves
 * behind is met when the allocation comes round again.
 *
 * Rejected: an index of run lengths (costs more memory than the bitmaps and every free has to keep
 * it); best fit over a group (the same scan without an end).
 */
#include "space/bitmap-internal.h"

#define MAX_RUNS     32u
#define MAX_DISTANCE 4096u

/* The bits of free blocks in a word, as the search sees them. */
static inline uint64_t free_word(const uint64_t *busy, uint32_t word,
				 const struct cpc_bitmap_search *s)
{
	uint64_t free = ~busy[word];

	return s->fragments ? free & ~cpc_bitmap_slot_blocks(free, s->order) : free;
}

/* The first free block at or after `from`, CPC_GROUP_BLOCKS if there is none. */
static uint32_t next_free(const uint64_t *busy, uint32_t from, const struct cpc_bitmap_search *s)
{
	uint32_t word = from / 64;
	uint64_t bits;

	if (from >= CPC_GROUP_BLOCKS)
		return CPC_GROUP_BLOCKS;
	bits = free_word(busy, word, s) & ~0ull << from % 64;
	while (!bits) {
		if (++word == CPC_BITMAP_WORDS)
			return CPC_GROUP_BLOCKS;
		bits = free_word(busy, word, s);
	}
	return word * 64 + (uint32_t)__builtin_ctzll(bits);
}

/* Where the free run that holds `from` ends, at most `limit`. */
static uint32_t run_end(const uint64_t *busy, uint32_t from, uint32_t limit,
			const struct cpc_bitmap_search *s)
{
	uint32_t word = from / 64;
	uint64_t bits = ~free_word(busy, word, s) & ~0ull << from % 64;

	while (!bits) {
		if (++word * 64 >= limit)
			return limit;
		bits = ~free_word(busy, word, s);
	}
	return (uint32_t)cpc_min_u64(limit, word * 64 + (uint32_t)__builtin_ctzll(bits));
}

bool cpc_bitmap_find_run(const uint64_t *busy, struct cpc_bitmap_search *s)
{
	uint32_t pos, end, runs = 0;

	s->len = 0;
	for (pos = next_free(busy, s->from, s); pos < CPC_GROUP_BLOCKS;
	     pos = next_free(busy, end, s)) {
		end = run_end(busy, pos, (uint32_t)cpc_min_u64(pos + s->want, CPC_GROUP_BLOCKS), s);
		if (end - pos > s->len) {
			s->start = pos;
			s->len = end - pos;
		}
		if (s->len == s->want)
			break;
		if (s->len >= s->min && (++runs == MAX_RUNS || pos - s->from >= MAX_DISTANCE))
			break;
	}
	return s->len >= s->min;
}

bool cpc_bitmap_find_slot(const uint64_t *busy, struct cpc_bitmap_search *s)
{
	uint64_t above = ~0ull << s->from % 64;

	for (uint32_t word = s->from / 64; word < CPC_BITMAP_WORDS; word++, above = ~0ull) {
		uint64_t slots = cpc_bitmap_slots(~busy[word], s->order) & above;

		if (slots) {
			s->start = word * 64 + (uint32_t)__builtin_ctzll(slots);
			s->len = 1u << s->order;
			return true;
		}
	}
	return false;
}

uint32_t cpc_bitmap_count(const uint64_t *words)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < CPC_BITMAP_WORDS; i++)
		n += (uint32_t)__builtin_popcountll(words[i]);
	return n;
}

uint32_t cpc_bitmap_count_slots(const uint64_t *busy, unsigned order)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < CPC_BITMAP_WORDS; i++)
		n += (uint32_t)__builtin_popcountll(cpc_bitmap_slots(~busy[i], order));
	return n;
}

uint32_t cpc_bitmap_count_range(const uint64_t *words, uint32_t start, uint32_t len)
{
	uint32_t n = 0;

	for (uint32_t i = start / 64; len > 0 && i <= (start + len - 1) / 64; i++)
		n += (uint32_t)__builtin_popcountll(words[i] & cpc_bitmap_mask(i, start, len));
	return n;
}

void cpc_bitmap_from_disk(uint64_t *words, const uint8_t bitmap[CPC_BLOCK_SIZE])
{
	memcpy(words, bitmap, CPC_BLOCK_SIZE);
	for (uint32_t i = 0; i < CPC_BITMAP_WORDS; i++)
		words[i] = le64toh(words[i]);
}

void cpc_bitmap_to_disk(uint8_t bitmap[CPC_BLOCK_SIZE], const uint64_t *words)
{
	for (uint32_t i = 0; i < CPC_BITMAP_WORDS; i++) {
		uint64_t word = htole64(words[i]);

		memcpy(bitmap + i * sizeof(word), &word, sizeof(word));
	}
}
