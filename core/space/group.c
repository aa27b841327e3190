/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * group: the bitmaps of block groups in memory, and the counts and sets that follow from them.
 *
 * A pool may have hundreds of thousands of groups; memory has room for the bitmaps of a few. For
 * the others a summary says how many blocks are free, and that is all an allocation needs to choose
 * a group. Every change of bits goes through cpc_space_group_set_busy or _set_used, which keep the
 * counts word by word, and is followed by one cpc_space_group_update, which keeps the sets.
 *
 *                     load                       first difference between used and busy,
 *      not loaded ------------> loaded, in lru ------------------------------> loaded, pinned
 *          |   ^----- evict ------/      ^---- bitmaps equal, nothing prepared, folded ----/
 *          '--- load fails ---> bad, for ever
 *
 * Slow paths: a load drops the lock; the group is marked `loading` and whoever wants the same one
 * waits. A failed load or a bitmap that contradicts the count or leaves a fixed area free makes the
 * group bad: its blocks leave the counts. Out of memory does not: the next caller tries again.
 *
 * The number of slots of a group that is neither loaded nor empty is not known: `used` used blocks
 * may spoil anything between used / slot size and used slots. The lower bound is counted, and the
 * group is `unknown`, until it has been loaded once; evicting it keeps the exact number.
 *
 * Rejected: a third bitmap for pinned blocks (busy and not used says it); counting references to
 * loaded groups (the lock is held from the load to the end of the use).
 */
#include "space/space-internal.h"

#include "lib/hooks.h"
#include "lib/log.h"

void cpc_space_data_range(const struct cpc_geometry *geo, uint64_t group, uint32_t *lo,
			  uint32_t *hi)
{
	uint64_t first = group * CPC_GROUP_BLOCKS;
	uint64_t start = cpc_max_u64(first, geo->data_start);
	uint64_t end = cpc_min_u64(first + CPC_GROUP_BLOCKS, geo->data_end);

	*lo = *hi = 0;
	if (start >= end)
		return;
	*lo = (uint32_t)(start - first);
	*hi = (uint32_t)(end - first);
}

/* --- counts and sets ------------------------------------------------------------------------ */

/* The least number of slots that a group with this many free blocks can have. */
static uint32_t slots_at_least(const struct cpc_space *space, uint64_t group, uint32_t nr_free)
{
	uint32_t lo, hi, first, end, used;

	cpc_space_data_range(&space->geo, group, &lo, &hi);
	first = (lo + cpc_space_node_blocks(space) - 1) >> space->order;
	end = hi >> space->order;
	used = hi - lo - nr_free; /* each spoils one slot at most */
	return end > first + used ? end - first - used : 0;
}

static void update_sets(struct cpc_space *space, uint64_t group)
{
	const struct cpc_group *g = &space->groups[group];
	uint32_t maybe = g->unknown ? g->nr_free >> space->order : g->nr_slots;
	uint32_t rich = cpc_max_u64(CPC_GROUP_BLOCKS >> space->order >> 3, 1);

	for (unsigned zone = 0; zone < CPC_SPACE_NR_KINDS; zone++) {
		cpc_group_set_assign(&space->sets[CPC_SET_FREE + zone], group,
				     g->zone == zone && g->nr_free > 0);
		cpc_group_set_assign(&space->sets[CPC_SET_RICH + zone], group,
				     g->zone == zone && maybe >= rich);
	}
	cpc_group_set_assign(&space->sets[CPC_SET_SLOTS], group, maybe > 0);
	cpc_group_set_assign(&space->sets[CPC_SET_FRAGMENTS], group,
			     g->nr_free > g->nr_slots << space->order);
	cpc_group_set_assign(&space->sets[CPC_SET_UNKNOWN], group, g->unknown);
}

static bool may_evict(const struct cpc_space *space, const struct cpc_group_bitmaps *b)
{
	const struct cpc_group *g = &space->groups[b->group];
	uint32_t blocks = cpc_geometry_group_blocks(&space->geo, b->group);

	return g->nr_free + b->nr_used == blocks && b->nr_freeing == 0 && !g->dirty;
}

void cpc_space_group_update(struct cpc_space *space, uint64_t group)
{
	struct cpc_group_bitmaps *b = space->groups[group].bitmaps;

	update_sets(space, group);
	if (!b)
		return;
	cpc_list_del(&b->lru);
	if (may_evict(space, b))
		cpc_list_add_tail(&space->lru, &b->lru);
}

static void set_counts(struct cpc_space *space, uint64_t group, uint32_t nr_free, uint32_t nr_slots)
{
	struct cpc_group *g = &space->groups[group];

	space->nr_free = space->nr_free - g->nr_free + nr_free;
	space->nr_slots = space->nr_slots - g->nr_slots + nr_slots;
	g->nr_free = nr_free & 0x1ffff;
	g->nr_slots = nr_slots & 0x1ffff;
}

void cpc_space_group_reset(struct cpc_space *space, uint64_t group, uint32_t nr_free)
{
	struct cpc_group *g = &space->groups[group];
	uint32_t lo, hi;

	cpc_space_data_range(&space->geo, group, &lo, &hi);
	cpc_assert(!g->bitmaps && nr_free <= hi - lo);
	space->nr_used += (uint64_t)g->nr_free - nr_free; /* may wrap on the way */
	set_counts(space, group, nr_free, slots_at_least(space, group, nr_free));
	g->unknown = nr_free < hi - lo && g->nr_slots < nr_free >> space->order;
	cpc_space_group_update(space, group);
}

void cpc_space_group_mark_bad(struct cpc_space *space, uint64_t group, int err)
{
	struct cpc_group *g = &space->groups[group];

	cpc_warn("block group %llu cannot be used, %u free blocks are lost: bitmap: %s",
		 (unsigned long long)group, (unsigned)g->nr_free, strerror(-err));
	space->nr_bad++;
	space->bad_used += cpc_geometry_group_blocks(&space->geo, group) - g->nr_free;
	set_counts(space, group, 0, 0);
	g->bad = 1;
	g->unknown = 0;
	cpc_space_group_update(space, group);
}

/* --- loading and evicting ------------------------------------------------------------------- */

static void bitmaps_free(struct cpc_group_bitmaps *b)
{
	if (b)
		cpc_free(b->freeing);
	cpc_free(b);
}

void cpc_space_group_free(struct cpc_space *space, uint64_t group)
{
	struct cpc_group *g = &space->groups[group];

	if (!g->bitmaps)
		return;
	cpc_list_del(&g->bitmaps->lru);
	bitmaps_free(g->bitmaps);
	g->bitmaps = NULL;
	space->nr_loaded--;
}

void cpc_space_evict(struct cpc_space *space, uint32_t max)
{
	while (space->nr_loaded > max && !cpc_list_empty(&space->lru)) {
		struct cpc_group_bitmaps *b =
		    cpc_list_first(&space->lru, struct cpc_group_bitmaps, lru);

		cpc_space_group_free(space, b->group);
	}
}

/* Context: no lock. Return: as cpc_space_load_fn. */
static int read_bitmaps(struct cpc_space *space, uint64_t group, struct cpc_group_bitmaps **out)
{
	struct cpc_group_bitmaps *b = cpc_zalloc(sizeof(*b));
	int err;

	*out = NULL;
	if (!b)
		return -ENOMEM;
	err = space->load(space->ctx, group, (uint8_t *)b->busy);
	if (err) {
		cpc_free(b);
		return err;
	}
	cpc_bitmap_from_disk(b->used, (const uint8_t *)b->busy);
	memcpy(b->busy, b->used, sizeof(b->busy));
	cpc_list_init(&b->lru);
	b->group = group;
	*out = b;
	return 0;
}

/* Return: 0, or -EUCLEAN when the bitmap cannot be this group's. */
static int validate_bitmaps(const struct cpc_space *space, struct cpc_group_bitmaps *b)
{
	uint32_t blocks = cpc_geometry_group_blocks(&space->geo, b->group), lo, hi;

	cpc_space_data_range(&space->geo, b->group, &lo, &hi);
	if (cpc_bitmap_count_range(b->used, 0, lo) != lo ||
	    cpc_bitmap_count_range(b->used, hi, CPC_GROUP_BLOCKS - hi) != CPC_GROUP_BLOCKS - hi)
		return -EUCLEAN;
	b->nr_used = cpc_bitmap_count(b->used) - (CPC_GROUP_BLOCKS - blocks);
	return b->nr_used + space->groups[b->group].nr_free == blocks ? 0 : -EUCLEAN;
}

/* Loads a group that nobody is loading; drops the lock meanwhile. */
static int load_group(struct cpc_space *space, uint64_t group)
{
	struct cpc_group *g = &space->groups[group];
	struct cpc_group_bitmaps *b;
	int err;

	g->loading = 1;
	cpc_mutex_unlock(&space->lock);
	err = read_bitmaps(space, group, &b);
	cpc_mutex_lock(&space->lock);
	g->loading = 0;
	cpc_cond_broadcast(&space->loaded);
	if (!err)
		err = validate_bitmaps(space, b);
	if (err) {
		bitmaps_free(b);
		if (err == -ENOMEM)
			return err;
		cpc_space_group_mark_bad(space, group, err);
		return -EUCLEAN;
	}
	cpc_space_evict(space, space->max_loaded ? space->max_loaded - 1 : 0);
	g->bitmaps = b;
	space->nr_loaded++;
	set_counts(space, group, g->nr_free, cpc_bitmap_count_slots(b->busy, space->order));
	g->unknown = 0;
	cpc_space_group_update(space, group);
	return 0;
}

int cpc_space_group_load(struct cpc_space *space, uint64_t group)
{
	struct cpc_group *g = &space->groups[group];

	while (g->loading)
		cpc_cond_wait(&space->loaded, &space->lock);
	if (g->bad)
		return -EUCLEAN;
	return g->bitmaps ? 0 : load_group(space, group);
}

/* --- bits ----------------------------------------------------------------------------------- */

uint32_t cpc_space_group_set_busy(struct cpc_space *space, uint64_t group, uint32_t start,
				  uint32_t len, bool busy)
{
	struct cpc_group *g = &space->groups[group];
	uint32_t changed = 0, slots = g->nr_slots;

	for (uint32_t i = start / 64; i <= (start + len - 1) / 64; i++) {
		uint64_t *word = &g->bitmaps->busy[i], mask = cpc_bitmap_mask(i, start, len);

		mask &= busy ? ~*word : *word;
		changed += (uint32_t)__builtin_popcountll(mask);
		slots -= (uint32_t)__builtin_popcountll(cpc_bitmap_slots(~*word, space->order));
		*word ^= mask;
		slots += (uint32_t)__builtin_popcountll(cpc_bitmap_slots(~*word, space->order));
	}
	set_counts(space, group, busy ? g->nr_free - changed : g->nr_free + changed, slots);
	return changed;
}

uint32_t cpc_space_group_set_used(struct cpc_space *space, uint64_t group, uint32_t start,
				  uint32_t len, bool used)
{
	struct cpc_group_bitmaps *b = space->groups[group].bitmaps;
	uint32_t changed = 0;

	for (uint32_t i = start / 64; i <= (start + len - 1) / 64; i++) {
		uint64_t mask = cpc_bitmap_mask(i, start, len);

		mask &= used ? ~b->used[i] : b->used[i];
		changed += (uint32_t)__builtin_popcountll(mask);
		b->used[i] ^= mask;
	}
	b->nr_used = used ? b->nr_used + changed : b->nr_used - changed;
	space->nr_used = used ? space->nr_used + changed : space->nr_used - changed;
	return changed;
}

/* --- checks --------------------------------------------------------------------------------- */

static void check_bitmaps(struct cpc_space *space, const struct cpc_group_bitmaps *b)
{
	const struct cpc_group *g = &space->groups[b->group];
	uint32_t blocks = cpc_geometry_group_blocks(&space->geo, b->group);
	uint32_t beyond = CPC_GROUP_BLOCKS - blocks;

	for (uint32_t i = 0; i < CPC_BITMAP_WORDS; i++) {
		cpc_assert((b->used[i] & ~b->busy[i]) == 0);
		cpc_assert(!b->freeing || (b->freeing[i] & ~b->used[i]) == 0);
	}
	cpc_assert(cpc_bitmap_count(b->used) == b->nr_used + beyond);
	cpc_assert(cpc_bitmap_count(b->busy) + g->nr_free == blocks + beyond);
	cpc_assert(cpc_bitmap_count_slots(b->busy, space->order) == g->nr_slots && !g->unknown);
	cpc_assert((b->freeing ? cpc_bitmap_count(b->freeing) : 0) == b->nr_freeing);
	cpc_assert(cpc_list_empty(&b->lru) == !may_evict(space, b));
}

void cpc_space_group_check(struct cpc_space *space, uint64_t group)
{
	const struct cpc_group *g = &space->groups[group];
	uint32_t lo, hi;

	cpc_space_data_range(&space->geo, group, &lo, &hi);
	cpc_assert(g->nr_free <= hi - lo && g->nr_slots << space->order <= g->nr_free);
	cpc_assert(!g->bad || (g->nr_free == 0 && !g->bitmaps));
	cpc_assert(cpc_group_set_has(&space->sets[CPC_SET_FREE + g->zone], group) ==
		   (g->nr_free > 0));
	if (g->bitmaps)
		check_bitmaps(space, g->bitmaps);
}
