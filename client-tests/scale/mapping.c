/* SPDX-License-Identifier: BSD-3-Clause */
#include "mapping.h"

#include <stdlib.h>

#include "lib/crc32c.h"
#include "transaction/store.h"

#define PARTS	    32u /* commits, for a large volume */
#define PART_MIN    (256u << 10)
#define NODE_MEMORY (64u << 20)

/* A permutation of [0, nr): one of the next power of two, walked until it falls below nr. */
struct permutation {
	uint64_t nr, mask, seed;
	unsigned shift;
};

static void permutation_init(struct permutation *p, uint64_t nr, uint64_t seed)
{
	unsigned bits = 1;

	while (1ull << bits < nr)
		bits++;
	p->nr = nr;
	p->mask = (1ull << bits) - 1;
	p->shift = (bits + 1) / 2;
	p->seed = seed;
}

/* Each step can be undone, so no two numbers become the same. */
static uint64_t scramble(const struct permutation *p, uint64_t x)
{
	for (unsigned round = 0; round < 3; round++) {
		x = (x * 0x9e3779b97f4a7c15ull + p->seed) & p->mask;
		x ^= x >> p->shift;
	}
	return x;
}

static uint64_t permute(const struct permutation *p, uint64_t x)
{
	do {
		x = scramble(p, x);
	} while (x >= p->nr);
	return x;
}

struct maker {
	const struct mapping *m;
	struct cpc_store *store;
	struct permutation places;
	struct cpc_commit_volume volume;
	uint32_t csums[CPC_EXTENT_MAX_BLOCKS];
};

/* Block of the pool where an extent stands. */
static uint64_t place(const struct maker *k, uint64_t extent)
{
	return k->store->geo.data_start + permute(&k->places, extent) * k->m->run;
}

/* All at once, so that no node comes in between. */
static int claim(struct maker *k, uint64_t nr_extents)
{
	int ret = 0;

	for (uint64_t i = 0; !ret && i < nr_extents; i++)
		ret = cpc_space_claim(k->store->space, place(k, i), k->m->run);
	return ret;
}

static int make_run(struct maker *k, uint64_t from, uint64_t to, struct cpc_run **run)
{
	struct cpc_run_builder b;

	cpc_run_builder_init(&b, to - from, (to - from) * k->m->run);
	for (uint64_t i = from; i < to; i++)
		cpc_run_builder_map(&b, i * k->m->run, k->m->run, place(k, i) << CPC_BLOCK_SHIFT,
				    k->csums);
	return cpc_run_builder_finish(&b, run);
}

static int commit_part(struct maker *k, uint64_t from, uint64_t to)
{
	struct cpc_commit_request req = {
	    .volumes = &k->volume,
	    .nr_volumes = 1,
	    .next_volume = k->volume.item.id + 1,
	    .clean = true,
	};
	struct cpc_run *run;
	int ret = make_run(k, from, to, &run);

	if (ret)
		return ret;
	k->volume.run = run;
	ret = cpc_store_commit(k->store, &req);
	cpc_run_put(run);
	if (ret)
		return ret;
	cpc_pins_put(req.pins);
	k->volume.item.root = k->volume.new_root;
	return 0;
}

static int fill(struct maker *k, const char **why)
{
	const struct mapping *m = k->m;
	uint64_t bytes = (uint64_t)m->run << CPC_BLOCK_SHIFT, spread = m->spread ?: m->size;
	uint64_t nr = m->size / bytes, part = cpc_max_u64(nr / PARTS + 1, PART_MIN);
	int ret;

	permutation_init(&k->places, spread / bytes, m->seed);
	*why = "the pool has no room for it";
	ret = claim(k, nr);
	*why = "commit";
	for (uint64_t at = 0; !ret && at < nr; at += part)
		ret = commit_part(k, at, cpc_min_u64(at + part, nr));
	return ret;
}

static void init_volume(struct maker *k)
{
	static const uint8_t zero[CPC_BLOCK_SIZE];
	struct cpc_volume_item *item = &k->volume.item;

	for (unsigned i = 0; i < CPC_EXTENT_MAX_BLOCKS; i++)
		k->csums[i] = cpc_crc32c(0, zero, sizeof(zero));
	item->id = k->store->super.next_volume;
	item->size = k->m->size;
	memcpy(item->name, k->m->name, strlen(k->m->name) + 1);
	memcpy(item->uuid, &k->m->seed, sizeof(k->m->seed));
}

int mapping_make(struct cpc_backing *backing, const struct mapping *m, const char **why)
{
	uint64_t bytes = (uint64_t)m->run << CPC_BLOCK_SHIFT;
	struct maker *k;
	int ret;

	*why = "size and spread must be multiples of the run, spread not below size";
	if (!m->run || m->run > CPC_EXTENT_MAX_BLOCKS || !m->size || m->size % bytes ||
	    m->spread % bytes || (m->spread && m->spread < m->size) ||
	    !cpc_name_valid(m->name, strlen(m->name)))
		return -EINVAL;
	*why = "out of memory";
	k = calloc(1, sizeof(*k));
	if (!k)
		return -ENOMEM;
	k->m = m;
	ret = cpc_store_open(backing, false, NODE_MEMORY, NULL, NULL, &k->store, why);
	if (!ret) {
		init_volume(k);
		ret = fill(k, why);
		cpc_store_close(k->store);
	}
	free(k);
	return ret;
}
