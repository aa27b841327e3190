/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * space: the doors of the allocator, and what a commit does to it.
 *
 * A block's life is three bits, used, busy and freeing:
 *
 *                  alloc, mark_busy             set_used               prepare_free
 *      free 0/0/0 ------------------> 0/1/0 ------------------> 1/1/0 <------------> 1/1/1
 *           ^                          |  ^                            unprepare       |
 *           '-------- release ---------'  '----------------- clear_used --------------'
 *
 * An allocation changes memory only; what a commit made durable is told by set_used and clear_used.
 * They come after the point of no return, so they cannot fail: whatever may fail about a free has
 * been tried by prepare_free while the commit could still be given up. Preparing twice is refused,
 * because a damaged tree may name a block twice and it must not be freed twice.
 *
 * Reservations are two numbers. Blocks of data are compared with the free blocks, nodes with the
 * free slots as well; alloc.c keeps data out of slots that nodes have reserved.
 *
 * Rejected: reservations by group (a writer would need to know where its blocks will stand); a lock
 * a group (an allocation takes well under a microsecond of the one lock there is).
 */
#include "space/space-internal.h"

#include "lib/hooks.h"

/* --- life ----------------------------------------------------------------------------------- */

/* Nodes go up from the start of the data area, second copies from its middle, data between. */
static void init_cursors(struct cpc_space *space)
{
	uint64_t start = space->geo.data_start, len = space->geo.data_end - start;

	space->cursor[CPC_SPACE_NODE] = start;
	space->cursor[CPC_SPACE_DATA] = start + len / 4;
	space->cursor[CPC_SPACE_NODE2] = start + len / 2;
}

/* A piece of a range that lies in one group: [start, start + len) within it. */
struct piece {
	uint64_t group;
	uint32_t start, len;
};

static struct piece first_piece(uint64_t block, uint64_t nr)
{
	struct piece p = {.group = block / CPC_GROUP_BLOCKS, .start = block % CPC_GROUP_BLOCKS};

	p.len = (uint32_t)cpc_min_u64(nr, CPC_GROUP_BLOCKS - p.start);
	return p;
}

/* For each piece `p` of [block, block + nr); changes both. */
#define for_each_piece(p, block, nr)                                                               \
	for (; (nr) > 0 && ((p) = first_piece(block, nr), true);                                   \
	     (block) += (p).len, (nr) -= (p).len)

static int init_groups(struct cpc_space *space)
{
	uint64_t nr = space->geo.nr_groups;

	space->groups = cpc_alloc_array(nr, sizeof(*space->groups));
	if (!space->groups)
		return -ENOMEM;
	memset(space->groups, 0, nr * sizeof(*space->groups));
	for (unsigned i = 0; i < CPC_NR_SETS; i++) {
		int err = cpc_group_set_init(&space->sets[i], nr);

		if (err)
			return err;
	}
	space->nr_used = space->geo.nr_blocks;
	for (uint64_t group = 0; group < nr; group++) {
		uint32_t lo, hi;

		cpc_space_data_range(&space->geo, group, &lo, &hi);
		cpc_space_group_reset(space, group, hi - lo);
	}
	return 0;
}

int cpc_space_create(const struct cpc_geometry *geo, cpc_space_load_fn load, void *ctx,
		     struct cpc_space **out)
{
	struct cpc_space *space = cpc_zalloc(sizeof(*space));

	if (!space)
		return -ENOMEM;
	space->geo = *geo;
	space->load = load;
	space->ctx = ctx;
	space->order = (unsigned)__builtin_ctz(geo->nodesize >> CPC_BLOCK_SHIFT);
	space->max_loaded = CPC_SPACE_MAX_LOADED;
	cpc_list_init(&space->lru);
	cpc_mutex_init(&space->lock, "space", CPC_RANK_SPACE);
	cpc_cond_init(&space->loaded);
	init_cursors(space);
	if (init_groups(space)) {
		cpc_space_destroy(space);
		return -ENOMEM;
	}
	*out = space;
	return 0;
}

void cpc_space_destroy(struct cpc_space *space)
{
	if (!space)
		return;
	for (uint64_t group = 0; space->groups && group < space->geo.nr_groups; group++)
		cpc_space_group_free(space, group);
	for (unsigned i = 0; i < CPC_NR_SETS; i++)
		cpc_group_set_destroy(&space->sets[i]);
	cpc_free(space->groups);
	cpc_cond_destroy(&space->loaded);
	cpc_mutex_destroy(&space->lock);
	cpc_free(space);
}

void cpc_space_set_group(struct cpc_space *space, uint64_t group, uint32_t used)
{
	uint32_t blocks = cpc_geometry_group_blocks(&space->geo, group), lo, hi;

	cpc_mutex_lock(&space->lock);
	cpc_space_data_range(&space->geo, group, &lo, &hi);
	if (used > blocks || blocks - used > hi - lo)
		cpc_space_group_mark_bad(space, group, -EUCLEAN);
	else
		cpc_space_group_reset(space, group, blocks - used);
	cpc_mutex_unlock(&space->lock);
}

void cpc_space_fresh_bitmap(const struct cpc_geometry *geo, uint64_t group,
			    uint8_t bitmap[CPC_BLOCK_SIZE])
{
	uint32_t lo, hi;

	cpc_space_data_range(geo, group, &lo, &hi);
	memset(bitmap, 0xff, CPC_BLOCK_SIZE);
	for (uint32_t i = lo; i < hi; i++) {
		if (i % 8 == 0 && i + 8 <= hi) {
			bitmap[i / 8] = 0;
			i += 7;
		} else {
			bitmap[i / 8] &= (uint8_t) ~(1u << i % 8);
		}
	}
}

void cpc_space_set_max_loaded(struct cpc_space *space, uint32_t max)
{
	cpc_mutex_lock(&space->lock);
	space->max_loaded = max;
	cpc_space_evict(space, max);
	cpc_mutex_unlock(&space->lock);
}

/* Ends an operation after which groups may be evicted. */
static void unlock_and_evict(struct cpc_space *space)
{
	cpc_space_evict(space, space->max_loaded);
	cpc_mutex_unlock(&space->lock);
}

/* --- allocation ----------------------------------------------------------------------------- */

int cpc_space_alloc(struct cpc_space *space, enum cpc_space_kind kind, uint32_t want, uint32_t min,
		    uint64_t *block, uint32_t *got)
{
	int err;

	cpc_mutex_lock(&space->lock);
	err = cpc_space_alloc_locked(space, kind, want, min, block, got);
	if (!err && kind != CPC_SPACE_DATA && space->kept_nodes > 0)
		space->kept_nodes--;
	cpc_mutex_unlock(&space->lock);
	return err;
}

int cpc_space_alloc_reserved(struct cpc_space *space, enum cpc_space_kind kind, uint32_t want,
			     uint32_t min, uint64_t *block, uint32_t *got)
{
	uint64_t *reserved = kind == CPC_SPACE_DATA ? &space->reserved : &space->reserved_nodes;
	uint64_t nr;
	int err;

	cpc_mutex_lock(&space->lock);
	err = cpc_space_alloc_locked(space, kind, want, min, block, got);
	if (!err) {
		nr = kind == CPC_SPACE_DATA ? *got : 1;
		cpc_assert(*reserved >= nr);
		*reserved -= nr;
	}
	cpc_mutex_unlock(&space->lock);
	return err;
}

/* True when the range lies in the data area; it may come from a damaged tree. */
static bool in_data(const struct cpc_space *space, uint64_t block, uint64_t nr)
{
	return block >= space->geo.data_start && block <= space->geo.data_end &&
	       nr <= space->geo.data_end - block;
}

int cpc_space_mark_busy(struct cpc_space *space, uint64_t block, uint64_t nr)
{
	struct piece p;
	int err = 0;

	if (!in_data(space, block, nr))
		return -EUCLEAN;
	cpc_mutex_lock(&space->lock);
	for_each_piece (p, block, nr) {
		err = cpc_space_group_load(space, p.group);
		if (err == -ENOMEM)
			break;
		if (!err) {
			cpc_space_group_set_busy(space, p.group, p.start, p.len, true);
			cpc_space_group_update(space, p.group);
		}
		err = 0;
	}
	cpc_mutex_unlock(&space->lock);
	return err;
}

int cpc_space_claim(struct cpc_space *space, uint64_t block, uint64_t nr)
{
	struct piece p;
	int err = 0;

	if (!in_data(space, block, nr))
		return -EUCLEAN;
	cpc_mutex_lock(&space->lock);
	for_each_piece (p, block, nr) {
		err = cpc_space_group_load(space, p.group);
		if (err)
			break;
		if (cpc_bitmap_count_range(space->groups[p.group].bitmaps->busy, p.start, p.len)) {
			err = -EUCLEAN;
			break;
		}
		cpc_space_group_set_busy(space, p.group, p.start, p.len, true);
		cpc_space_group_update(space, p.group);
	}
	cpc_mutex_unlock(&space->lock);
	return err;
}

/* False for a bad group, where nothing is done; any other has been loaded by an earlier call. */
static bool group_counts(const struct cpc_space *space, uint64_t group)
{
	const struct cpc_group *g = &space->groups[group];

	if (g->bad)
		return false;
	cpc_assert(g->bitmaps);
	return true;
}

void cpc_space_release(struct cpc_space *space, uint64_t block, uint64_t nr)
{
	struct piece p;

	cpc_assert(in_data(space, block, nr));
	cpc_mutex_lock(&space->lock);
	for_each_piece (p, block, nr) {
		uint32_t changed;

		if (!group_counts(space, p.group))
			continue;
		cpc_assert(cpc_bitmap_count_range(space->groups[p.group].bitmaps->used, p.start,
						  p.len) == 0);
		changed = cpc_space_group_set_busy(space, p.group, p.start, p.len, false);
		cpc_assert(changed == p.len);
		cpc_space_group_update(space, p.group);
	}
	unlock_and_evict(space);
}

/* --- at the end of a commit ----------------------------------------------------------------- */

void cpc_space_set_used(struct cpc_space *space, uint64_t block, uint64_t nr)
{
	struct piece p;

	cpc_assert(in_data(space, block, nr));
	cpc_mutex_lock(&space->lock);
	for_each_piece (p, block, nr) {
		if (!group_counts(space, p.group))
			continue;
		cpc_assert(cpc_bitmap_count_range(space->groups[p.group].bitmaps->busy, p.start,
						  p.len) == p.len);
		cpc_space_group_set_used(space, p.group, p.start, p.len, true);
		cpc_space_group_update(space, p.group);
	}
	unlock_and_evict(space);
}

/* Changes the prepared bits of a piece, none of which is as asked already. A slice of the drop list
 * prepares blocks of nearly every group: who has none left keeps no bitmap for them. */
static void set_freeing(struct cpc_space *space, const struct piece *p, bool freeing)
{
	struct cpc_group_bitmaps *b = space->groups[p->group].bitmaps;

	cpc_assert(b->freeing &&
		   cpc_bitmap_count_range(b->freeing, p->start, p->len) == (freeing ? 0 : p->len));
	for (uint32_t i = p->start / 64; i <= (p->start + p->len - 1) / 64; i++)
		b->freeing[i] ^= cpc_bitmap_mask(i, p->start, p->len);
	b->nr_freeing = freeing ? b->nr_freeing + p->len : b->nr_freeing - p->len;
	if (b->nr_freeing)
		return;
	cpc_free(b->freeing);
	b->freeing = NULL;
}

void cpc_space_clear_used(struct cpc_space *space, uint64_t block, uint64_t nr)
{
	struct piece p;

	cpc_assert(in_data(space, block, nr));
	cpc_mutex_lock(&space->lock);
	for_each_piece (p, block, nr) {
		if (!group_counts(space, p.group))
			continue;
		set_freeing(space, &p, false);
		cpc_space_group_set_used(space, p.group, p.start, p.len, false);
		cpc_space_group_update(space, p.group);
	}
	unlock_and_evict(space);
}

static int prepare_piece(struct cpc_space *space, const struct piece *p)
{
	struct cpc_group_bitmaps *b;
	int err = cpc_space_group_load(space, p->group);

	if (err)
		return err;
	b = space->groups[p->group].bitmaps;
	if (cpc_bitmap_count_range(b->used, p->start, p->len) != p->len)
		return -EUCLEAN;
	if (b->freeing && cpc_bitmap_count_range(b->freeing, p->start, p->len) != 0)
		return -EUCLEAN;
	if (!b->freeing)
		b->freeing = cpc_zalloc(CPC_BITMAP_WORDS * sizeof(uint64_t));
	if (!b->freeing)
		return -ENOMEM;
	set_freeing(space, p, true);
	cpc_space_group_update(space, p->group);
	return 0;
}

static void unprepare_locked(struct cpc_space *space, uint64_t block, uint64_t nr)
{
	struct piece p;

	for_each_piece (p, block, nr) {
		if (!group_counts(space, p.group))
			continue;
		set_freeing(space, &p, false);
		cpc_space_group_update(space, p.group);
	}
}

int cpc_space_prepare_free(struct cpc_space *space, uint64_t block, uint64_t nr)
{
	uint64_t first = block;
	struct piece p;
	int err = 0;

	if (!in_data(space, block, nr))
		return -EUCLEAN;
	cpc_mutex_lock(&space->lock);
	for_each_piece (p, block, nr) {
		err = prepare_piece(space, &p);
		if (err)
			break;
	}
	if (err)
		unprepare_locked(space, first, block - first);
	cpc_mutex_unlock(&space->lock);
	return err;
}

void cpc_space_unprepare(struct cpc_space *space, uint64_t block, uint64_t nr)
{
	cpc_assert(in_data(space, block, nr));
	cpc_mutex_lock(&space->lock);
	unprepare_locked(space, block, nr);
	unlock_and_evict(space);
}

bool cpc_space_is_loaded(struct cpc_space *space, uint64_t group)
{
	bool loaded = false;

	cpc_mutex_lock(&space->lock);
	if (group < space->geo.nr_groups)
		loaded = space->groups[group].bitmaps || space->groups[group].bad;
	cpc_mutex_unlock(&space->lock);
	return loaded;
}

int cpc_space_get_used(struct cpc_space *space, uint64_t group, uint8_t bitmap[CPC_BLOCK_SIZE],
		       uint32_t *used)
{
	int err;

	cpc_assert(group < space->geo.nr_groups);
	cpc_mutex_lock(&space->lock);
	err = cpc_space_group_load(space, group);
	if (!err) {
		cpc_bitmap_to_disk(bitmap, space->groups[group].bitmaps->used);
		*used = space->groups[group].bitmaps->nr_used;
	}
	cpc_mutex_unlock(&space->lock);
	return err;
}

void cpc_space_set_dirty(struct cpc_space *space, uint64_t group, bool dirty)
{
	cpc_assert(group < space->geo.nr_groups);
	cpc_mutex_lock(&space->lock);
	space->groups[group].dirty = dirty;
	cpc_space_group_update(space, group);
	unlock_and_evict(space);
}

/* --- reservations --------------------------------------------------------------------------- */

/* True when `nr` more blocks can be reserved beside `held` slots, and `keep` remain. */
static bool blocks_left(const struct cpc_space *space, uint64_t nr, uint64_t held, uint64_t keep)
{
	uint64_t all = space->reserved;

	return held <= space->nr_free && !__builtin_add_overflow(all, held << space->order, &all) &&
	       !__builtin_add_overflow(all, nr, &all) && !__builtin_add_overflow(all, keep, &all) &&
	       all <= space->nr_free;
}

/*
 * Reserves `nr` blocks of data and `more` nodes and keeps at least `kept` slots. Learning of slots
 * drops the lock, so everything is looked at again after each group. Return: 0; -ENOSPC; -ENOMEM.
 */
static int reserve_locked(struct cpc_space *space, uint64_t nr, uint64_t keep, uint64_t kept,
			  uint64_t more)
{
	uint64_t held;
	int err;

	if (kept > space->geo.nr_blocks || more > space->geo.nr_blocks)
		return -ENOSPC;
	for (;;) {
		kept = cpc_max_u64(kept, space->kept_nodes);
		held = kept + space->reserved_nodes + more;
		if (!blocks_left(space, nr, held, keep))
			return -ENOSPC;
		if (space->nr_slots >= held || held == cpc_space_held_slots(space))
			break;
		err = cpc_space_learn(space);
		if (err)
			return err;
	}
	space->reserved += nr;
	space->reserved_nodes += more;
	space->kept_nodes = kept;
	return 0;
}

static int reserve(struct cpc_space *space, uint64_t nr, uint64_t keep, uint64_t kept,
		   uint64_t more)
{
	int err;

	cpc_mutex_lock(&space->lock);
	err = reserve_locked(space, nr, keep, kept, more);
	cpc_mutex_unlock(&space->lock);
	return err;
}

int cpc_space_reserve(struct cpc_space *space, uint64_t nr, uint64_t keep)
{
	return reserve(space, nr, keep, 0, 0);
}

int cpc_space_reserve_keeping(struct cpc_space *space, uint64_t nr, uint64_t keep, uint64_t nodes)
{
	return reserve(space, nr, keep, nodes, 0);
}

void cpc_space_keep_at_most(struct cpc_space *space, uint64_t nodes)
{
	cpc_mutex_lock(&space->lock);
	space->kept_nodes = cpc_min_u64(space->kept_nodes, nodes);
	cpc_mutex_unlock(&space->lock);
}

int cpc_space_reserve_nodes(struct cpc_space *space, uint64_t nr, uint64_t keep)
{
	return reserve(space, 0, keep, 0, nr);
}

void cpc_space_unreserve(struct cpc_space *space, uint64_t nr)
{
	cpc_mutex_lock(&space->lock);
	cpc_assert(space->reserved >= nr);
	space->reserved -= nr;
	cpc_mutex_unlock(&space->lock);
}

void cpc_space_unreserve_nodes(struct cpc_space *space, uint64_t nr)
{
	cpc_mutex_lock(&space->lock);
	cpc_assert(space->reserved_nodes >= nr);
	space->reserved_nodes -= nr;
	cpc_mutex_unlock(&space->lock);
}

/* --- looking -------------------------------------------------------------------------------- */

void cpc_space_info(struct cpc_space *space, struct cpc_space_info *info)
{
	cpc_mutex_lock(&space->lock);
	info->total = space->geo.nr_blocks;
	info->free = space->nr_free;
	info->used = space->nr_used;
	info->reserved = space->reserved + (space->reserved_nodes << space->order);
	info->kept_nodes = space->kept_nodes;
	info->node_slots = space->nr_slots;
	info->loaded_groups = space->nr_loaded;
	info->bad_groups = space->nr_bad;
	cpc_mutex_unlock(&space->lock);
}

void cpc_space_check(struct cpc_space *space)
{
	uint64_t nr_free = 0, nr_slots = 0, used = space->bad_used, loaded = 0;

	cpc_mutex_lock(&space->lock);
	for (uint64_t group = 0; group < space->geo.nr_groups; group++) {
		const struct cpc_group *g = &space->groups[group];

		cpc_space_group_check(space, group);
		nr_free += g->nr_free;
		nr_slots += g->nr_slots;
		loaded += g->bitmaps != NULL;
		if (g->bitmaps)
			used += g->bitmaps->nr_used;
		else if (!g->bad)
			used += cpc_geometry_group_blocks(&space->geo, group) - g->nr_free;
	}
	cpc_assert(nr_free == space->nr_free && nr_slots == space->nr_slots);
	cpc_assert(used == space->nr_used && loaded == space->nr_loaded);
	cpc_mutex_unlock(&space->lock);
}
