/* SPDX-License-Identifier: BSD-3-Clause */
#include "past.h"

#include <stdio.h>

void past_init(struct past *p)
{
	memset(p, 0, sizeof(*p));
	p->nr_tables = 1;
}

/* --- states --- */

struct content *past_content(struct past *p, unsigned v)
{
	return &p->volume[v].state[p->volume[v].nr - 1];
}

struct table *past_table(struct past *p)
{
	return &p->table[p->nr_tables - 1];
}

bool past_exists(struct past *p, unsigned v)
{
	return v < p->nr_volumes && past_table(p)->name[v][0];
}

bool past_full(const struct past *p)
{
	bool full = p->nr_tables == PAST_STATES || p->nr_volumes == PAST_VOLUMES;

	for (unsigned v = 0; v < p->nr_volumes; v++)
		full |= p->volume[v].nr == PAST_STATES && !p->volume[v].floor;
	return full;
}

/* Forgets what a crash cannot bring back any more. */
static void forget_old(struct volume_past *vp)
{
	vp->nr -= vp->floor;
	vp->resized -= cpc_min_u64(vp->resized, vp->floor);
	memmove(vp->state, vp->state + vp->floor, vp->nr * sizeof(vp->state[0]));
	vp->floor = 0;
}

struct content *past_push(struct past *p, unsigned v)
{
	struct volume_past *vp = &p->volume[v];

	if (vp->nr == PAST_STATES)
		forget_old(vp);
	cpc_assert(vp->nr < PAST_STATES);
	vp->state[vp->nr] = vp->state[vp->nr - 1];
	return &vp->state[vp->nr++];
}

struct table *past_push_table(struct past *p)
{
	cpc_assert(p->nr_tables < PAST_STATES);
	p->table[p->nr_tables] = p->table[p->nr_tables - 1];
	return &p->table[p->nr_tables++];
}

void past_pop(struct past *p, unsigned v)
{
	p->volume[v].nr--;
}

void past_pop_table(struct past *p)
{
	p->nr_tables--;
}

unsigned past_add_volume(struct past *p, uint32_t sectors)
{
	struct volume_past *vp = &p->volume[p->nr_volumes];

	cpc_assert(p->nr_volumes < PAST_VOLUMES);
	memset(&vp->state[0], 0, sizeof(vp->state[0]));
	vp->state[0].sectors = sectors;
	vp->id = 0;
	vp->nr = 1;
	vp->floor = vp->resized = 0;
	return p->nr_volumes++;
}

void past_durable(struct past *p, unsigned v)
{
	p->volume[v].floor = p->volume[v].nr - 1;
}

void past_names_durable(struct past *p)
{
	p->floor = p->nr_tables - 1;
	for (unsigned v = 0; v < p->nr_volumes; v++) {
		struct volume_past *vp = &p->volume[v];

		p->last_id = cpc_max_u64(p->last_id, vp->id);
		vp->floor = (unsigned)cpc_max_u64(vp->floor, vp->resized);
	}
}

void past_all_durable(struct past *p)
{
	past_names_durable(p);
	for (unsigned v = 0; v < p->nr_volumes; v++)
		past_durable(p, v);
}

/* --- sectors --- */

uint32_t past_stamp(struct past *p, unsigned v)
{
	return ++p->clock << 3 | v;
}

void past_fill(uint32_t stamp, void *sector)
{
	uint32_t *word = sector;

	for (uint32_t i = 0; i < 512 / sizeof(*word); i++)
		word[i] = stamp + stamp * i * 2654435761u;
}

static uint32_t stamp_of(const void *sector)
{
	uint32_t stamp, whole[512 / sizeof(stamp)];

	memcpy(&stamp, sector, sizeof(stamp));
	past_fill(stamp, whole);
	rig_expect(!memcmp(whole, sector, sizeof(whole)), "a sector that nobody has written");
	return stamp;
}

/* --- looking --- */

int past_read(struct past *p, struct cpc_volume *vol, struct content *content)
{
	uint8_t data[PAST_SECTORS * 512];
	uint64_t size = cpc_volume_size(vol);
	int ret;

	rig_expect(size && size <= sizeof(data) && size % 512 == 0, "a size that was never asked");
	ret = cpc_volume_read(vol, data, size, 0);
	if (ret)
		return ret;
	memset(content, 0, sizeof(*content));
	content->sectors = (uint32_t)(size / 512);
	for (uint32_t i = 0; i < content->sectors; i++)
		content->stamp[i] = stamp_of(data + 512 * i);
	return 0;
}

bool past_same(const struct content *a, const struct content *b)
{
	return a->sectors == b->sectors &&
	       !memcmp(a->stamp, b->stamp, a->sectors * sizeof(a->stamp[0]));
}

struct listing {
	struct past *past;
	struct table *table;
};

/* Ids grow; one that is greater than all that were durable is the volume's that has none yet. */
static unsigned find_volume(struct past *p, uint64_t id)
{
	unsigned none = PAST_VOLUMES;

	for (unsigned v = 0; v < p->nr_volumes; v++) {
		if (p->volume[v].id == id)
			return v;
		if (!p->volume[v].id)
			none = v;
	}
	rig_expect(none < PAST_VOLUMES && id > p->last_id, "volume %llu was never made",
		   (unsigned long long)id);
	p->volume[none].id = id;
	return none;
}

static int see(void *ctx, const struct cpc_volume_info *info)
{
	struct listing *l = ctx;
	unsigned v;

	if (!strcmp(info->name, PAST_FILLER))
		return 0;
	v = find_volume(l->past, info->id);
	rig_expect(strlen(info->name) < sizeof(l->table->name[v]), "volume %s was never made",
		   info->name);
	memcpy(l->table->name[v], info->name, strlen(info->name));
	return 0;
}

void past_list(struct past *p, struct cpc_pool *pool, struct table *table)
{
	struct listing l = {p, table};

	memset(table, 0, sizeof(*table));
	rig_expect(cpc_pool_list(pool, see, &l) == 0, "list");
}

/* --- judging --- */

static void judge_table(struct past *p, const struct table *table)
{
	unsigned i = p->nr_tables;

	while (i > p->floor && memcmp(&p->table[i - 1], table, sizeof(*table)) != 0)
		i--;
	rig_expect(i > p->floor, "the names are those of no instant from %u to %u", p->floor,
		   p->nr_tables - 1);
}

static void explain(const struct volume_past *vp, const struct content *content)
{
	fprintf(stderr, "  found, %u sectors:", content->sectors);
	for (uint32_t i = 0; i < content->sectors; i++)
		fprintf(stderr, " %u", content->stamp[i] >> 3);
	for (unsigned s = vp->floor; s < vp->nr; s++) {
		fprintf(stderr, "\n  state %u, %u sectors:", s, vp->state[s].sectors);
		for (uint32_t i = 0; i < vp->state[s].sectors; i++)
			fprintf(stderr, " %u", vp->state[s].stamp[i] >> 3);
	}
	fprintf(stderr, "\n");
}

static void judge_content(struct past *p, struct cpc_pool *pool, unsigned v, const char *name,
			  struct content *content)
{
	struct volume_past *vp = &p->volume[v];
	struct cpc_volume *vol;
	unsigned i = vp->nr;
	int ret;

	rig_expect(cpc_pool_open_volume(pool, name, &vol) == 0, "open %s", name);
	ret = past_read(p, vol, content);
	cpc_pool_close_volume(pool, vol);
	rig_expect(ret == 0, "volume %s cannot be read: %d", name, ret);
	while (i > vp->floor && !past_same(&vp->state[i - 1], content))
		i--;
	if (i > vp->floor)
		return;
	explain(vp, content);
	rig_fail("volume %s is at no instant from %u to %u", name, vp->floor, vp->nr - 1);
}

/* Forgets volumes that are gone, and all states but what has been found. */
static void collapse(struct past *p, const struct table *table, const struct content *content)
{
	unsigned nr = 0;

	memset(&p->table[0], 0, sizeof(p->table[0]));
	for (unsigned v = 0; v < p->nr_volumes; v++) {
		if (!table->name[v][0])
			continue;
		memcpy(p->table[0].name[nr], table->name[v], sizeof(table->name[v]));
		p->volume[nr].id = p->volume[v].id;
		p->volume[nr].nr = 1;
		p->volume[nr].floor = p->volume[nr].resized = 0;
		p->volume[nr++].state[0] = content[v];
	}
	p->nr_volumes = nr;
	p->nr_tables = 1;
	past_names_durable(p);
}

void past_judge(struct past *p, struct cpc_pool *pool, bool settled)
{
	struct content content[PAST_VOLUMES];
	struct table table;

	past_list(p, pool, &table);
	judge_table(p, &table);
	for (unsigned v = 0; v < p->nr_volumes; v++) {
		if (table.name[v][0])
			judge_content(p, pool, v, table.name[v], &content[v]);
	}
	if (settled)
		collapse(p, &table, content);
}
