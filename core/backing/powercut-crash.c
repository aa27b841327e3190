/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a power cut leaves: fates of pending writes, the enumeration of states worth trying, saving
 * and restoring.
 *
 * The states are a row of families, each with a size and a function that fills a choice from an
 * index inside the family; a state number is looked up by walking the row.
 */
#include <stdio.h>
#include <stdlib.h>

#include "backing/powercut-internal.h"

#define ALL_SUBSETS_MAX 10
#define MAX_PAIRS	1000
#define NR_RANDOM	64
#define MAX_CUTS	127

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static uint64_t next_random(uint64_t *state)
{
	*state = mix(*state);
	return *state;
}

/* ---- pending list ---- */

size_t cpc_powercut_nr_pending(struct cpc_powercut *pc)
{
	size_t nr;

	cpc_mutex_lock(&pc->lock);
	nr = pc->nr_pending;
	cpc_mutex_unlock(&pc->lock);
	return nr;
}

static struct cpc_pending *nth_locked(struct cpc_powercut *pc, size_t i)
{
	struct cpc_list *pos = pc->pending.next;

	if (i >= pc->nr_pending)
		return NULL;
	while (i--)
		pos = pos->next;
	return cpc_list_entry(pos, struct cpc_pending, node);
}

bool cpc_powercut_pending(struct cpc_powercut *pc, size_t i, struct cpc_powercut_pending *p)
{
	struct cpc_pending *found;

	cpc_mutex_lock(&pc->lock);
	found = nth_locked(pc, i);
	if (found)
		*p = found->info;
	cpc_mutex_unlock(&pc->lock);
	return found;
}

static uint64_t nr_sectors(const struct cpc_pending *p)
{
	return p->info.len / CPC_SECTOR_SIZE;
}

/* ---- choices ---- */

/* Sets the fate of all writes in [from, to). */
static void set_fates(struct cpc_crash_choice *c, size_t from, size_t to, enum cpc_crash_fate fate)
{
	for (size_t i = from; i < to; i++)
		c->writes[i] = (struct cpc_crash_write){fate, 0, 0};
}

static void choice_init(struct cpc_crash_choice *c, size_t nr, enum cpc_crash_fate fate)
{
	c->nr = nr;
	c->writes = cpc_page_xalloc((nr + 1) * sizeof(*c->writes));
	set_fates(c, 0, nr, fate);
}

void cpc_crash_choice_free(struct cpc_crash_choice *choice)
{
	free(choice->writes);
	choice->writes = NULL;
	choice->nr = 0;
}

void cpc_crash_choice_all(struct cpc_powercut *pc, enum cpc_crash_fate fate,
			  struct cpc_crash_choice *choice)
{
	choice_init(choice, cpc_powercut_nr_pending(pc), fate);
}

static void random_tear(struct cpc_crash_write *w, uint64_t sectors, uint64_t *rnd)
{
	static const enum cpc_crash_fate kinds[] = {CPC_FATE_PREFIX, CPC_FATE_SUFFIX,
						    CPC_FATE_SECTORS, CPC_FATE_GARBAGE};

	w->fate = kinds[next_random(rnd) % CPC_ARRAY_SIZE(kinds)];
	w->sectors = 1 + next_random(rnd) % (sectors - 1);
	w->seed = next_random(rnd);
}

/* How many survive differs from seed to seed: few, half, most. */
static void random_fates(struct cpc_powercut *pc, uint64_t seed, struct cpc_crash_choice *c)
{
	static const unsigned survive_percent[] = {10, 50, 90};
	uint64_t rnd = mix(seed);
	unsigned survive = survive_percent[next_random(&rnd) % CPC_ARRAY_SIZE(survive_percent)];
	struct cpc_list *pos;
	size_t i = 0;

	cpc_list_for_each (pos, &pc->pending) {
		struct cpc_pending *p = cpc_list_entry(pos, struct cpc_pending, node);
		struct cpc_crash_write *w = &c->writes[i++];

		if (next_random(&rnd) % 100 < 15)
			random_tear(w, nr_sectors(p), &rnd);
		else if (next_random(&rnd) % 100 < survive)
			w->fate = CPC_FATE_KEPT;
	}
}

void cpc_crash_choice_random(struct cpc_powercut *pc, uint64_t seed,
			     struct cpc_crash_choice *choice)
{
	cpc_mutex_lock(&pc->lock);
	choice_init(choice, pc->nr_pending, CPC_FATE_LOST);
	random_fates(pc, seed, choice);
	cpc_mutex_unlock(&pc->lock);
}

void cpc_crash_choice_print(const struct cpc_crash_choice *choice, char *buf, size_t len)
{
	static const char letters[] = "LKpsxg";
	size_t used = 0;

	buf[0] = 0;
	for (size_t i = 0; i < choice->nr && used + 24 < len; i++) {
		const struct cpc_crash_write *w = &choice->writes[i];

		buf[used++] = letters[w->fate];
		buf[used] = 0;
		if (w->fate != CPC_FATE_LOST && w->fate != CPC_FATE_KEPT)
			used += (size_t)snprintf(buf + used, len - used, "%llu",
						 (unsigned long long)w->sectors);
	}
}

/* ---- crash ---- */

enum source { SECTOR_OLD, SECTOR_NEW, SECTOR_NOISE };

/* What sector `i` of a write of `nr` sectors holds afterwards. */
static enum source sector_source(const struct cpc_crash_write *w, uint64_t i, uint64_t nr)
{
	switch (w->fate) {
	case CPC_FATE_KEPT:
		return SECTOR_NEW;
	case CPC_FATE_PREFIX:
		return i < w->sectors ? SECTOR_NEW : SECTOR_OLD;
	case CPC_FATE_SUFFIX:
		return i + w->sectors >= nr ? SECTOR_NEW : SECTOR_OLD;
	case CPC_FATE_SECTORS:
		return mix(w->seed ^ i) & 1 ? SECTOR_NEW : SECTOR_OLD;
	case CPC_FATE_GARBAGE:
		if (i == w->sectors)
			return SECTOR_NOISE;
		return i < w->sectors ? SECTOR_NEW : SECTOR_OLD;
	default:
		return SECTOR_OLD;
	}
}

static void fill_noise(uint8_t *data, uint64_t seed)
{
	for (size_t i = 0; i < CPC_SECTOR_SIZE; i++)
		data[i] = (uint8_t)next_random(&seed);
}

static void land_torn_block(struct cpc_powercut *pc, const struct cpc_pending *p,
			    const struct cpc_crash_write *w, uint64_t i)
{
	const uint64_t per_block = CPC_BLOCK_SIZE / CPC_SECTOR_SIZE;
	uint64_t block = p->info.bytenr / CPC_BLOCK_SIZE + i;
	uint8_t data[CPC_BLOCK_SIZE];
	struct cpc_page *page;

	cpc_powercut_stable_block(pc, block, data);
	for (uint64_t s = 0; s < per_block; s++) {
		enum source from = sector_source(w, i * per_block + s, nr_sectors(p));
		size_t at = (size_t)s * CPC_SECTOR_SIZE;

		if (from == SECTOR_NEW)
			memcpy(data + at, p->pages[i]->data + at, CPC_SECTOR_SIZE);
		else if (from == SECTOR_NOISE)
			fill_noise(data + at, w->seed);
	}
	page = cpc_page_new(data);
	cpc_page_map_set(&pc->stable, block, page);
	cpc_page_put(page);
}

/* A discard tears between blocks: the first or last ones, or all or nothing by a coin. */
static void land_torn_discard(struct cpc_powercut *pc, const struct cpc_pending *p,
			      const struct cpc_crash_write *w)
{
	uint64_t block = p->info.bytenr / CPC_BLOCK_SIZE, nr = p->info.len / CPC_BLOCK_SIZE;
	uint64_t part = cpc_min_u64(w->sectors * CPC_SECTOR_SIZE / CPC_BLOCK_SIZE, nr);

	if (w->fate == CPC_FATE_SUFFIX)
		block += nr - part;
	else if (w->fate != CPC_FATE_PREFIX)
		part = mix(w->seed) & 1 ? nr : 0;
	cpc_page_map_del_range(&pc->stable, block, part);
}

static void apply_fate(struct cpc_powercut *pc, const struct cpc_pending *p,
		       const struct cpc_crash_write *w)
{
	if (w->fate == CPC_FATE_LOST)
		return;
	if (w->fate == CPC_FATE_KEPT) {
		cpc_powercut_land(pc, p);
	} else if (p->info.discard) {
		land_torn_discard(pc, p, w);
	} else {
		for (uint64_t i = 0; i < p->info.len / CPC_BLOCK_SIZE; i++)
			land_torn_block(pc, p, w, i);
	}
}

static void crash_locked(struct cpc_powercut *pc, const struct cpc_crash_choice *choice)
{
	struct cpc_list *pos;
	size_t i = 0;

	cpc_assert(choice->nr == pc->nr_pending);
	cpc_powercut_end_life(pc);
	cpc_list_for_each (pos, &pc->pending)
		apply_fate(pc, cpc_list_entry(pos, struct cpc_pending, node), &choice->writes[i++]);
	cpc_powercut_drop_pending(pc);
	cpc_page_map_clear(&pc->current);
}

void cpc_powercut_crash(struct cpc_powercut *pc, const struct cpc_crash_choice *choice)
{
	cpc_mutex_lock(&pc->lock);
	crash_locked(pc, choice);
	cpc_mutex_unlock(&pc->lock);
}

void cpc_powercut_crash_random(struct cpc_powercut *pc, uint64_t seed)
{
	struct cpc_crash_choice choice;

	cpc_mutex_lock(&pc->lock);
	choice_init(&choice, pc->nr_pending, CPC_FATE_LOST);
	random_fates(pc, seed, &choice);
	crash_locked(pc, &choice);
	cpc_mutex_unlock(&pc->lock);
	cpc_crash_choice_free(&choice);
}

/* ---- enumeration ---- */

/* `nr` writes are pending. All have been set to LOST; `i` is the index in the family. */
typedef uint64_t (*family_size)(struct cpc_powercut *pc, uint64_t nr);
typedef void (*family_fill)(struct cpc_powercut *pc, uint64_t i, struct cpc_crash_choice *c);

static uint64_t nr_subsets(struct cpc_powercut *pc, uint64_t nr)
{
	return nr <= ALL_SUBSETS_MAX ? 1ull << nr : 0;
}

static void fill_subset(struct cpc_powercut *pc, uint64_t i, struct cpc_crash_choice *c)
{
	for (size_t w = 0; w < c->nr; w++)
		if (i & (1ull << w))
			c->writes[w].fate = CPC_FATE_KEPT;
}

static uint64_t nr_prefixes(struct cpc_powercut *pc, uint64_t nr)
{
	return nr <= ALL_SUBSETS_MAX ? 0 : nr + 1;
}

static void fill_prefix(struct cpc_powercut *pc, uint64_t i, struct cpc_crash_choice *c)
{
	set_fates(c, 0, (size_t)i, CPC_FATE_KEPT);
}

static uint64_t nr_singles(struct cpc_powercut *pc, uint64_t nr)
{
	return nr <= ALL_SUBSETS_MAX ? 0 : nr;
}

static void fill_single_lost(struct cpc_powercut *pc, uint64_t i, struct cpc_crash_choice *c)
{
	set_fates(c, 0, c->nr, CPC_FATE_KEPT);
	c->writes[i].fate = CPC_FATE_LOST;
}

static void fill_single_kept(struct cpc_powercut *pc, uint64_t i, struct cpc_crash_choice *c)
{
	c->writes[i].fate = CPC_FATE_KEPT;
}

static uint64_t all_pairs(uint64_t nr)
{
	return nr * (nr - 1) / 2;
}

static uint64_t nr_pairs(struct cpc_powercut *pc, uint64_t nr)
{
	return nr <= ALL_SUBSETS_MAX ? 0 : cpc_min_u64(all_pairs(nr), MAX_PAIRS);
}

/* Gives both writes of the i-th pair, or of an evenly spread sample, that fate. */
static void set_pair(struct cpc_powercut *pc, struct cpc_crash_choice *c, uint64_t i,
		     enum cpc_crash_fate fate)
{
	uint64_t k = (uint64_t)((__uint128_t)i * all_pairs(c->nr) / nr_pairs(pc, c->nr));
	uint64_t second = 1;

	while (k >= second)
		k -= second++;
	c->writes[second].fate = fate;
	c->writes[k].fate = fate;
}

static void fill_pair_lost(struct cpc_powercut *pc, uint64_t i, struct cpc_crash_choice *c)
{
	set_fates(c, 0, c->nr, CPC_FATE_KEPT);
	set_pair(pc, c, i, CPC_FATE_LOST);
}

static void fill_pair_kept(struct cpc_powercut *pc, uint64_t i, struct cpc_crash_choice *c)
{
	set_pair(pc, c, i, CPC_FATE_KEPT);
}

static uint64_t nr_random(struct cpc_powercut *pc, uint64_t nr)
{
	return nr <= ALL_SUBSETS_MAX ? 0 : NR_RANDOM;
}

static void fill_random(struct cpc_powercut *pc, uint64_t i, struct cpc_crash_choice *c)
{
	random_fates(pc, i, c);
}

/* Boundaries between sectors at which a write is torn: each, of a long one a spread sample. */
static uint64_t nr_cuts(const struct cpc_pending *p)
{
	return cpc_min_u64(nr_sectors(p) - 1, MAX_CUTS);
}

/* From either side at each boundary, and once with noise. */
static uint64_t nr_torn_of(const struct cpc_pending *p)
{
	return 2 * nr_cuts(p) + 1;
}

static uint64_t nr_torn(struct cpc_powercut *pc, uint64_t nr)
{
	struct cpc_list *pos;
	uint64_t torn = 0;

	cpc_list_for_each (pos, &pc->pending)
		torn += nr_torn_of(cpc_list_entry(pos, struct cpc_pending, node));
	return torn;
}

/* One write torn, those before it kept, those behind it lost. */
static void fill_torn(struct cpc_powercut *pc, uint64_t i, struct cpc_crash_choice *c)
{
	struct cpc_pending *p = cpc_list_first(&pc->pending, struct cpc_pending, node);
	struct cpc_crash_write *w = c->writes;

	for (; i >= nr_torn_of(p); p = cpc_list_entry(p->node.next, struct cpc_pending, node)) {
		i -= nr_torn_of(p);
		(w++)->fate = CPC_FATE_KEPT;
	}
	w->seed = i;
	if (i == 2 * nr_cuts(p)) {
		w->fate = CPC_FATE_GARBAGE;
		w->sectors = nr_sectors(p) / 2;
		return;
	}
	w->fate = i % 2 ? CPC_FATE_SUFFIX : CPC_FATE_PREFIX;
	w->sectors = nr_sectors(p) * (i / 2 + 1) / (nr_cuts(p) + 1);
}

static const struct {
	family_size size;
	family_fill fill;
} families[] = {
    {nr_subsets, fill_subset},	    {nr_prefixes, fill_prefix}, {nr_singles, fill_single_lost},
    {nr_singles, fill_single_kept}, {nr_pairs, fill_pair_lost}, {nr_pairs, fill_pair_kept},
    {nr_random, fill_random},	    {nr_torn, fill_torn}, /* the last */
};

static uint64_t nr_states(struct cpc_powercut *pc, size_t nr_families)
{
	uint64_t nr = 0;

	cpc_mutex_lock(&pc->lock);
	for (size_t f = 0; f < nr_families; f++)
		nr += families[f].size(pc, pc->nr_pending);
	cpc_mutex_unlock(&pc->lock);
	return nr;
}

uint64_t cpc_crash_nr_states(struct cpc_powercut *pc)
{
	return nr_states(pc, CPC_ARRAY_SIZE(families));
}

uint64_t cpc_crash_nr_whole(struct cpc_powercut *pc)
{
	return nr_states(pc, CPC_ARRAY_SIZE(families) - 1);
}

static void fill_state_locked(struct cpc_powercut *pc, uint64_t i, struct cpc_crash_choice *c)
{
	for (size_t f = 0; f < CPC_ARRAY_SIZE(families); f++) {
		uint64_t size = families[f].size(pc, c->nr);

		if (i < size) {
			families[f].fill(pc, i, c);
			return;
		}
		i -= size;
	}
	cpc_assert(!"no such crash state");
}

void cpc_crash_state(struct cpc_powercut *pc, uint64_t i, struct cpc_crash_choice *choice)
{
	cpc_mutex_lock(&pc->lock);
	choice_init(choice, pc->nr_pending, CPC_FATE_LOST);
	fill_state_locked(pc, i, choice);
	cpc_mutex_unlock(&pc->lock);
}

/* ---- save and restore ---- */

struct cpc_powercut_saved {
	struct cpc_powercut *pc;
	struct cpc_page_map stable, current;
	struct cpc_list pending;
	size_t nr_pending;
};

static void copy_pending(struct cpc_list *to, const struct cpc_list *from)
{
	struct cpc_list *pos;

	cpc_list_init(to);
	cpc_list_for_each (pos, from) {
		struct cpc_pending *p = cpc_list_entry(pos, struct cpc_pending, node), *copy;
		size_t nr = p->info.discard ? 0 : (size_t)(p->info.len / CPC_BLOCK_SIZE);
		size_t size = sizeof(*p) + nr * sizeof(p->pages[0]);

		copy = cpc_page_xalloc(size);
		memcpy(copy, p, size);
		for (size_t i = 0; i < nr; i++)
			cpc_page_get(copy->pages[i]);
		cpc_list_add_tail(to, &copy->node);
	}
}

struct cpc_powercut_saved *cpc_powercut_save(struct cpc_powercut *pc)
{
	struct cpc_powercut_saved *saved = cpc_page_xalloc(sizeof(*saved));

	cpc_mutex_lock(&pc->lock);
	saved->pc = pc;
	cpc_page_map_copy(&saved->stable, &pc->stable);
	cpc_page_map_copy(&saved->current, &pc->current);
	copy_pending(&saved->pending, &pc->pending);
	saved->nr_pending = pc->nr_pending;
	cpc_mutex_unlock(&pc->lock);
	return saved;
}

void cpc_powercut_restore(struct cpc_powercut *pc, const struct cpc_powercut_saved *saved)
{
	cpc_mutex_lock(&pc->lock);
	cpc_powercut_end_life(pc);
	cpc_powercut_drop_pending(pc);
	cpc_page_map_clear(&pc->stable);
	cpc_page_map_clear(&pc->current);
	cpc_page_map_copy(&pc->stable, &saved->stable);
	cpc_page_map_copy(&pc->current, &saved->current);
	copy_pending(&pc->pending, &saved->pending);
	pc->nr_pending = saved->nr_pending;
	cpc_powercut_ack_all(pc);
	cpc_mutex_unlock(&pc->lock);
}

void cpc_powercut_saved_free(struct cpc_powercut_saved *saved)
{
	struct cpc_list *pos, *tmp;

	cpc_mutex_lock(&saved->pc->lock);
	cpc_list_for_each_safe (pos, tmp, &saved->pending)
		cpc_pending_free(cpc_list_entry(pos, struct cpc_pending, node));
	cpc_page_map_clear(&saved->stable);
	cpc_page_map_clear(&saved->current);
	cpc_mutex_unlock(&saved->pc->lock);
	free(saved);
}
