/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Search: from a record near by, if a finger points to one (io-finger.h); else by the index to the
 * last indexed record before the place, and from there along the list. A call searches once, or
 * not at all with a cached record.
 */
#include <stdlib.h>
#include "lib/hooks.h"
#include "io-tree/io-finger.h"
#include "io-tree/io-tree-internal.h"

struct cpc_io_state *cpc_io_record_descend(const struct cpc_io_tree *tree, uint64_t pos)
{
	struct cpc_io_state *node = tree->root, *rec = tree->first;

	while (node) {
		bool right = node->start <= pos;

		rec = right ? node : rec;
		node = node->child[right];
	}
	while (rec && rec->end <= pos)
		rec = rec->next;
	return rec;
}

/* The same from `rec`, in a few steps. Returns false if it is further. */
static bool walk(struct cpc_io_state *rec, uint64_t pos, struct cpc_io_state **found)
{
	unsigned steps = CPC_IO_FINGER_STEPS;

	if (rec->end <= pos) {
		do {
			rec = rec->next;
		} while (rec && rec->end <= pos && --steps);
	} else if (rec->start > pos) {
		for (; rec->prev && rec->prev->end > pos && steps; steps--)
			rec = rec->prev;
	}
	*found = rec;
	return steps;
}

/* Makes all slots empty, of small regions of 2^shift bytes. */
static void empty(struct cpc_io_fingers *fingers, unsigned shift)
{
	struct cpc_io_finger_level *l;
	uint64_t i;

	cpc_io_for_each_level (fingers, l) {
		__atomic_store_n(&l->shift, shift, __ATOMIC_RELAXED);
		for (i = 0; i <= l->mask; i++)
			cpc_io_finger_set(&l->slots[i], NULL);
		shift += CPC_IO_FINGER_WIDER;
	}
}

/* Larger or smaller regions, after enough searches that a finger did not help. */
static void adapt_fingers(struct cpc_io_tree *tree, bool too_far)
{
	const struct cpc_io_finger_level *small = &tree->fingers->level[0];
	unsigned shift = small->shift;

	tree->finger_balance += too_far ? 1 : -1;
	if (cpc_likely((uint64_t)labs(tree->finger_balance) <= small->mask))
		return;
	tree->finger_balance = 0;
	if (too_far && shift > 0)
		shift--;
	else if (!too_far && shift < CPC_IO_FINGER_SHIFT_MAX)
		shift++;
	empty(tree->fingers, shift);
}

/* A record in the region of `pos` or the next or the previous one, or NULL. */
static struct cpc_io_state *nearby(const struct cpc_io_finger_level *l, uint64_t pos)
{
	uint64_t size = UINT64_C(1) << l->shift;
	const uint64_t at[] = {pos, pos + size, pos - size};
	unsigned i;

	for (i = 0; i < CPC_ARRAY_SIZE(at); i++) {
		struct cpc_io_state *rec = cpc_io_finger(l, at[i])->rec;

		if (rec && cpc_io_finger_same(l, rec->start, at[i]))
			return rec;
	}
	return NULL;
}

struct cpc_io_state *cpc_io_record_seek(struct cpc_io_tree *tree, uint64_t pos)
{
	const struct cpc_io_fingers *fingers = tree->fingers;
	struct cpc_io_state *near, *found;

	if (!fingers)
		return cpc_io_record_descend(tree, pos);
	near = cpc_io_finger(&fingers->level[0], pos)->rec;
	if (near && near->start <= pos && pos < near->end) {
		tree->stats.finger_hits++;
		return near;
	}
	near = nearby(&fingers->level[0], pos);
	if (!near)
		near = nearby(&fingers->level[1], pos);
	if (cpc_likely(near && walk(near, pos, &found))) {
		tree->stats.finger_hits++;
		return found;
	}
	tree->stats.finger_misses++;
	found = cpc_io_record_descend(tree, pos);
	if (found)
		cpc_io_finger_enter(tree, found);
	adapt_fingers(tree, near);
	return found;
}

void cpc_io_tree_prefetch_fingers(const struct cpc_io_tree *tree, uint64_t start)
{
	const struct cpc_io_fingers *fingers = __atomic_load_n(&tree->fingers, __ATOMIC_ACQUIRE);
	const struct cpc_io_finger_level *l;
	uint64_t region;

	if (!fingers)
		return;
	l = &fingers->level[0];
	region = start >> __atomic_load_n(&l->shift, __ATOMIC_RELAXED);
	/* the slot between them is in the cache line of one of them, or nearly so */
	__builtin_prefetch(&l->slots[(region - 1) & l->mask], 1);
	__builtin_prefetch(&l->slots[(region + 1) & l->mask], 1);
	l++;
	__builtin_prefetch(&l->slots[(region >> CPC_IO_FINGER_WIDER) & l->mask], 1);
}

#define prefetch(pointer) __builtin_prefetch(__atomic_load_n(&(pointer), __ATOMIC_RELAXED), 1)

/* Of the first slot that nearby() would look into and that has a record, and the spare that an
 * insertion would take. */
void cpc_io_tree_prefetch_records(const struct cpc_io_tree *tree, uint64_t start)
{
	const struct cpc_io_fingers *fingers = __atomic_load_n(&tree->fingers, __ATOMIC_ACQUIRE);
	const struct cpc_io_finger_level *l;
	unsigned i;

	prefetch(tree->spares);
	cpc_io_for_each_level (fingers, l) {
		uint64_t region = start >> __atomic_load_n(&l->shift, __ATOMIC_RELAXED);
		const uint64_t at[] = {region, region + 1, region - 1};

		for (i = 0; i < CPC_ARRAY_SIZE(at); i++) {
			const struct cpc_io_finger *slot = &l->slots[at[i] & l->mask];

			if (!__atomic_load_n(&slot->rec, __ATOMIC_RELAXED))
				continue;
			prefetch(slot->rec);
			prefetch(slot->prev);
			prefetch(slot->next);
			return;
		}
	}
}

/* --- tables --- */

struct cpc_io_fingers *cpc_io_fingers_alloc(uint64_t slots, unsigned shift)
{
	uint64_t coarse = cpc_max_u64(slots >> CPC_IO_FINGER_WIDER, 1);
	uint64_t memory =
	    sizeof(struct cpc_io_fingers) + (slots + coarse) * sizeof(struct cpc_io_finger);
	struct cpc_io_fingers *f = cpc_zalloc(memory);

	if (!f)
		return NULL;
	f->memory = memory;
	f->level[0] = (struct cpc_io_finger_level){f->slots, slots - 1, shift};
	f->level[1] =
	    (struct cpc_io_finger_level){f->slots + slots, coarse - 1, shift + CPC_IO_FINGER_WIDER};
	return f;
}

void cpc_io_fingers_install(struct cpc_io_tree *tree, struct cpc_io_fingers *fingers)
{
	struct cpc_io_state *rec;
	struct cpc_io_chunk *chunk;

	fingers->replaced = tree->fingers;
	__atomic_store_n(&tree->fingers, fingers, __ATOMIC_RELEASE);
	tree->finger_balance = 0;
	tree->stats.memory += fingers->memory;
	cpc_io_for_each_record (tree, chunk, rec)
		cpc_io_finger_enter(tree, rec);
}

void cpc_io_fingers_empty(struct cpc_io_tree *tree)
{
	if (tree->fingers)
		empty(tree->fingers, tree->fingers->level[0].shift);
}

void cpc_io_fingers_free(struct cpc_io_tree *tree)
{
	struct cpc_io_fingers *fingers;

	while ((fingers = tree->fingers)) {
		tree->fingers = fingers->replaced;
		cpc_free(fingers);
	}
}

uint64_t cpc_io_fingers_wanted(struct cpc_io_tree *tree, unsigned *shift)
{
	const unsigned less = __builtin_ctz(CPC_IO_FINGERS_GROW);
	uint64_t slots = CPC_IO_FINGERS;

	if (cpc_likely(tree->stats.records < tree->fingers_at))
		return 0;
	*shift = CPC_IO_FINGER_SHIFT;
	if (tree->fingers) {
		slots = (tree->fingers->level[0].mask + 1) * CPC_IO_FINGERS_GROW;
		*shift = tree->fingers->level[0].shift;
		*shift = *shift > less ? *shift - less : 0;
	}
	/* asks again when that one would be full, whether it gets it or not */
	tree->fingers_at =
	    cpc_max_u64(tree->fingers_at * CPC_IO_FINGERS_GROW, slots * CPC_IO_FINGERS_FULL);
	return slots <= CPC_IO_FINGERS_MAX ? slots : 0;
}
