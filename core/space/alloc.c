/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * alloc: where to allocate.
 *
 * Three streams (data, nodes, second copies of nodes) go round the pool, each with a cursor: a
 * stream's writes are ascending, and what is freed behind it is met one round later, when it has
 * gathered. Groups have a zone. All begin as data; the node streams claim a group when those that
 * they have are worn, and all take from each other's zones when their own have nothing. So nodes
 * stay together, without a size to choose at format, and a tiny pool shares its one group.
 *
 * Normal path: the cursor's group is loaded and has what is wanted; one look at the bitmap.
 *
 * Slow paths. The group is exhausted: the next one comes from a set that holds only candidates, so
 * a full pool is not walked. The pool is almost full: data is kept to fragments, so that the slots
 * that are reserved for nodes remain. A commit thus finds its nodes in a pool where every second
 * block is used: an allocator that only counts blocks would fail there, at the one moment when
 * failing loses what was answered. Slots in groups that have never been looked at are not counted
 * yet; a group that may have fragments is in that set until it has been loaded, so when no fragment
 * is left, everything is known, and a slot is broken if one can be spared.
 *
 * Rejected: fixed areas for metadata (a size to guess, ENOSPC with half the pool empty); reserving
 * node places by address (a reservation is a number that two comparisons check); first fit
 * (rewrites the same blocks, and every allocation passes over the full beginning).
 */
#include "space/space-internal.h"

/* How a group is searched. */
enum search_mode {
	SEARCH_RUN,	 /* a run of any free blocks */
	SEARCH_FRAGMENT, /* a run outside of slots */
	SEARCH_SLOT,	 /* a slot; for data, a part of it */
};

struct request {
	enum cpc_space_kind kind;
	enum search_mode mode;
	uint32_t want, min;
	uint64_t block; /* answer */
	uint32_t got;
};

/* How many slots data may still break. */
static uint64_t slot_budget(const struct cpc_space *space)
{
	uint64_t held = cpc_space_held_slots(space);

	return space->nr_slots > held ? space->nr_slots - held : 0;
}

/* The most slots that a run of this length can touch. */
static uint64_t slots_touched(const struct cpc_space *space, uint32_t len)
{
	return (len >> space->order) + 2;
}

int cpc_space_learn(struct cpc_space *space)
{
	uint64_t group = cpc_group_set_next(&space->sets[CPC_SET_UNKNOWN], 0);

	if (group == CPC_GROUP_NONE)
		return -ENOSPC;
	return cpc_space_group_load(space, group) == -ENOMEM ? -ENOMEM : 0;
}

/* Searches the bitmap of a loaded group. */
static bool find_in_group(const struct cpc_space *space, uint64_t group, uint32_t from,
			  const struct request *req, struct cpc_bitmap_search *s)
{
	const uint64_t *busy = space->groups[group].bitmaps->busy;

	*s = (struct cpc_bitmap_search){.from = from,
					.want = req->want,
					.min = req->min,
					.order = space->order,
					.fragments = req->mode == SEARCH_FRAGMENT};
	if (req->mode != SEARCH_SLOT)
		return cpc_bitmap_find_run(busy, s);
	if (!cpc_bitmap_find_slot(busy, s))
		return false;
	s->len = (uint32_t)cpc_min_u64(s->len, req->want);
	return true;
}

/* True when taking `len` blocks leaves the slots that are reserved. Nodes may take them. */
static bool leaves_slots(const struct cpc_space *space, const struct request *req, uint32_t len)
{
	if (req->kind != CPC_SPACE_DATA || req->mode == SEARCH_FRAGMENT)
		return true;
	if (req->mode == SEARCH_SLOT)
		return slot_budget(space) > 0;
	return slot_budget(space) >= slots_touched(space, len);
}

static void take(struct cpc_space *space, uint64_t group, uint32_t start, uint32_t len,
		 struct request *req)
{
	uint32_t changed = cpc_space_group_set_busy(space, group, start, len, true);

	cpc_assert(changed == len);
	cpc_space_group_update(space, group);
	req->block = group * CPC_GROUP_BLOCKS + start;
	req->got = len;
	space->cursor[req->kind] = req->block + len;
}

/*
 * Tries one group from block `from` on. Return: 0; -ENOSPC not here; -EAGAIN the pool has become
 * too full for this mode while the lock was dropped; -ENOMEM.
 */
static int try_group(struct cpc_space *space, uint64_t group, uint32_t from, struct request *req)
{
	struct cpc_bitmap_search s;
	int err = cpc_space_group_load(space, group);

	if (err)
		return err == -ENOMEM ? err : -ENOSPC;
	if (!find_in_group(space, group, from, req, &s))
		return -ENOSPC;
	if (!leaves_slots(space, req, s.len))
		return -EAGAIN;
	take(space, group, s.start, s.len, req);
	return 0;
}

/* Tries the groups of a set, one round from the cursor. Return: as try_group. */
static int try_set(struct cpc_space *space, unsigned which, struct request *req)
{
	const struct cpc_group_set *set = &space->sets[which];
	uint64_t cursor = space->cursor[req->kind];
	uint64_t first = cursor / CPC_GROUP_BLOCKS, group;
	int err = -ENOSPC;

	for (group = cpc_group_set_next(set, first); group != CPC_GROUP_NONE && err == -ENOSPC;
	     group = cpc_group_set_next(set, group + 1))
		err = try_group(space, group, group == first ? cursor % CPC_GROUP_BLOCKS : 0, req);
	for (group = cpc_group_set_next(set, 0); group <= first && err == -ENOSPC;
	     group = cpc_group_set_next(set, group + 1))
		err = try_group(space, group, 0, req);
	return err;
}

/* The pool is almost full: fragments, then a slot if one can be spared. */
static int alloc_data_tight(struct cpc_space *space, struct request *req)
{
	int err;

	req->mode = SEARCH_FRAGMENT;
	err = try_set(space, CPC_SET_FRAGMENTS, req);
	if (err != -ENOSPC || slot_budget(space) == 0 || req->min > cpc_space_node_blocks(space))
		return err;
	req->mode = SEARCH_SLOT;
	return try_set(space, CPC_SET_SLOTS, req);
}

/* Learns how many slots the next group has; that is often enough to leave the tight mode. */
static int look_at_cursor(struct cpc_space *space)
{
	uint64_t group = space->cursor[CPC_SPACE_DATA] / CPC_GROUP_BLOCKS;

	if (group >= space->geo.nr_groups || !space->groups[group].unknown)
		return 0;
	return cpc_space_group_load(space, group) == -ENOMEM ? -ENOMEM : 0;
}

static int alloc_data_once(struct cpc_space *space, struct request *req)
{
	uint64_t need = slots_touched(space, req->want);
	int err = slot_budget(space) < need ? look_at_cursor(space) : 0;

	if (err)
		return err;
	if (slot_budget(space) < need)
		return alloc_data_tight(space, req);
	req->mode = SEARCH_RUN;
	err = try_set(space, CPC_SET_FREE + CPC_SPACE_DATA, req);
	if (err == -ENOSPC)
		err = try_set(space, CPC_SET_FREE + CPC_SPACE_NODE, req);
	if (err == -ENOSPC)
		err = try_set(space, CPC_SET_FREE + CPC_SPACE_NODE2, req);
	return err;
}

static int alloc_data(struct cpc_space *space, struct request *req)
{
	int err;

	do {
		err = alloc_data_once(space, req);
	} while (err == -EAGAIN);
	return err;
}

/* Goes on in the group where the last node went, however worn it is. */
static int try_current(struct cpc_space *space, struct request *req)
{
	uint64_t cursor = space->cursor[req->kind], group = cursor / CPC_GROUP_BLOCKS;

	if (group >= space->geo.nr_groups || space->groups[group].zone != req->kind ||
	    !cpc_group_set_has(&space->sets[CPC_SET_SLOTS], group))
		return -ENOSPC;
	return try_group(space, group, cursor % CPC_GROUP_BLOCKS, req);
}

static int alloc_node(struct cpc_space *space, struct request *req)
{
	int err;

	cpc_assert(req->want == cpc_space_node_blocks(space) && req->min == req->want);
	req->mode = SEARCH_SLOT;
	err = try_current(space, req);
	if (err == -ENOSPC)
		err = try_set(space, CPC_SET_RICH + req->kind, req);
	if (err == -ENOSPC) {
		err = try_set(space, CPC_SET_RICH + CPC_SPACE_DATA, req);
		if (!err) { /* claim it */
			uint64_t group = req->block / CPC_GROUP_BLOCKS;

			space->groups[group].zone = req->kind & 3;
			cpc_space_group_update(space, group);
		}
	}
	return err == -ENOSPC ? try_set(space, CPC_SET_SLOTS, req) : err;
}

int cpc_space_alloc_locked(struct cpc_space *space, enum cpc_space_kind kind, uint32_t want,
			   uint32_t min, uint64_t *block, uint32_t *got)
{
	struct request req = {.kind = kind, .want = want, .min = min};
	int err;

	cpc_assert(min > 0 && want >= min && want <= CPC_GROUP_BLOCKS);
	err = kind == CPC_SPACE_DATA ? alloc_data(space, &req) : alloc_node(space, &req);
	if (err)
		return err;
	*block = req.block;
	*got = req.got;
	return 0;
}
