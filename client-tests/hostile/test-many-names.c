/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Pools of very many volumes, in an order that is the worst for a sorted table.
 *
 * test-many-names refused: one that names a million is refused like any other hostile one: soon, in
 * bounded memory, and without a write.
 * test-many-names most: one of as many as there may be is opened, used and listed in the same time
 * and memory.
 */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "device.h"
#include "format/format.h"
#include "lib/hooks.h"
#include "pool/pool.h"
#include "transaction/store.h"
#include "volume/volume.h"

#define POOL_BYTES  (256ull << 20)
#define NODE_BYTES  CPC_NODESIZE_MAX
#define NR_NAMES    1000000u
#define NAME_LEN    7u
#define VALUE_BYTES ((uint32_t)sizeof(struct cpc_disk_volume) + NAME_LEN)
#define PER_LEAF                                                                                   \
	((NODE_BYTES - (uint32_t)sizeof(struct cpc_disk_node)) /                                   \
	 ((uint32_t)sizeof(struct cpc_disk_item) + VALUE_BYTES))
#define PER_NODE                                                                                   \
	((NODE_BYTES - (uint32_t)sizeof(struct cpc_disk_node)) /                                   \
	 (uint32_t)sizeof(struct cpc_disk_child))
#define MEMORY_MAX (64ll << 20)
#define CPU_MAX_S  2.0

#ifdef __SANITIZE_ADDRESS__
#define SLOWER 5
#else
#define SLOWER 1
#endif

static uint8_t *base;
static struct cpc_geometry geo;
static uint64_t next_place; /* bytes */
static int64_t in_use, peak;

static void expect(bool right, const char *what)
{
	if (right)
		return;
	fprintf(stderr, "FAILED: %s\n", what);
	exit(1);
}

/* --- memory --- */

static void *counted_alloc(size_t align, size_t size)
{
	void *p = cpc_hooks_default.alloc(align, size);

	in_use += p ? (int64_t)malloc_usable_size(p) : 0;
	peak = in_use > peak ? in_use : peak;
	return p;
}

static void counted_free(void *p)
{
	in_use -= (int64_t)malloc_usable_size(p);
	cpc_hooks_default.free(p);
}

/* --- the image --- */

static struct cpc_disk_node *new_node(uint32_t nr, uint8_t level)
{
	struct cpc_disk_node *node = (void *)(base + next_place);

	cpc_put_le32(&node->magic, CPC_NODE_MAGIC);
	cpc_put_le64(&node->bytenr, next_place);
	cpc_put_le64(&node->generation, 1);
	cpc_put_le64(&node->owner, CPC_TREE_ROOT);
	cpc_put_le32(&node->nritems, nr);
	node->level = level;
	next_place += NODE_BYTES;
	return node;
}

/* Fills the pointer that leads to it. */
static void finish_node(struct cpc_disk_node *node, uint64_t nodes, struct cpc_disk_ptr *ptr)
{
	struct cpc_node_ptr p = {.bytenr = {cpc_get_le64(&node->bytenr), 0},
				 .generation = 1,
				 .nodes = (uint32_t)nodes,
				 .level = node->level};

	p.csum = cpc_csum_without_field(node, NODE_BYTES, offsetof(struct cpc_disk_node, csum));
	cpc_put_le32(&node->csum, p.csum);
	cpc_ptr_encode(ptr, &p);
}

/* Volume ids ascend, so names that descend go to the front of a sorted table each time. */
static void make_leaf(uint32_t first, uint32_t nr, struct cpc_disk_child *child)
{
	struct cpc_disk_node *node = new_node(nr, 0);
	struct cpc_disk_item *item = (void *)(node + 1);
	uint32_t tail = NODE_BYTES;

	for (uint32_t i = 0; i < nr; i++) {
		struct cpc_disk_volume *v;
		char name[NAME_LEN + 1];

		tail -= VALUE_BYTES;
		v = (void *)((uint8_t *)node + tail);
		cpc_put_le64(&item[i].key, cpc_root_key(CPC_ITEM_VOLUME, first + i));
		cpc_put_le16(&item[i].offset, (uint16_t)tail);
		cpc_put_le16(&item[i].size, (uint16_t)VALUE_BYTES);
		cpc_put_le64(&v->size, 1 << 20);
		v->name_len = NAME_LEN;
		snprintf(name, sizeof(name), "%07u", NR_NAMES - (first + i));
		memcpy(v->name, name, NAME_LEN);
	}
	cpc_put_le64(&child->key, cpc_root_key(CPC_ITEM_VOLUME, first));
	finish_node(node, 1, &child->ptr);
}

/* Return: the children one level up. */
static uint32_t make_level(struct cpc_disk_child *child, uint32_t nr, uint8_t level)
{
	uint32_t made = 0;

	for (uint32_t at = 0; at < nr; at += PER_NODE, made++) {
		uint32_t here = (uint32_t)cpc_min_u64(nr - at, PER_NODE);
		struct cpc_disk_node *node = new_node(here, level);
		uint64_t nodes = 1;

		memcpy(node + 1, child + at, here * sizeof(*child));
		for (uint32_t i = 0; i < here; i++)
			nodes += cpc_get_le32(&child[at + i].ptr.nodes);
		child[made].key = child[at].key;
		finish_node(node, nodes, &child[made].ptr);
	}
	return made;
}

static void make_image(void)
{
	struct cpc_disk_child *child = calloc(NR_NAMES / PER_LEAF + 1, sizeof(*child));
	struct cpc_super super = {.transid = 1,
				  .total_bytes = POOL_BYTES,
				  .nonce = 1,
				  .nodesize = NODE_BYTES,
				  .log_size = CPC_LOG_SIZE_MIN,
				  .next_volume = NR_NAMES + 1,
				  .next_drop = 1,
				  .next_free_log = 1};
	uint32_t nr = 0;
	uint8_t level = 1;

	base = aligned_alloc(CPC_BLOCK_SIZE, POOL_BYTES);
	cpc_assert(child && base);
	memset(base, 0, POOL_BYTES);
	cpc_assert(!cpc_geometry_init(&geo, POOL_BYTES, CPC_LOG_SIZE_MIN, NODE_BYTES, false));
	next_place = geo.data_start << CPC_BLOCK_SHIFT;
	for (uint32_t first = 1; first <= NR_NAMES; first += PER_LEAF)
		make_leaf(first, (uint32_t)cpc_min_u64(PER_LEAF, NR_NAMES + 1 - first),
			  &child[nr++]);
	while (nr > 1)
		nr = make_level(child, nr, level++);
	cpc_ptr_decode(&super.root, &child[0].ptr);
	for (unsigned ring = 0; ring < 2; ring++)
		cpc_super_encode((void *)(base + cpc_geometry_super(&geo, ring, 0)), &super);
	free(child);
}

/* --- a pool of as many as there may be, made by the engine --- */

static void name_them(struct cpc_commit_volume *volumes)
{
	for (uint32_t i = 0; i < CPC_MAX_VOLUMES; i++) {
		struct cpc_volume_item *item = &volumes[i].item;

		item->id = i + 1;
		item->size = 1 << 20;
		snprintf(item->name, sizeof(item->name), "%07u", CPC_MAX_VOLUMES - i);
	}
}

static void make_most(struct device *device)
{
	struct cpc_commit_volume *volumes = calloc(CPC_MAX_VOLUMES, sizeof(*volumes));
	struct cpc_commit_request req = {.volumes = volumes,
					 .nr_volumes = CPC_MAX_VOLUMES,
					 .next_volume = CPC_MAX_VOLUMES + 1,
					 .clean = true};
	struct cpc_format_options fo = {.nodesize = 4096};
	struct cpc_backing *backing = device_open(device);
	struct cpc_error err = {""};
	struct cpc_store *store;
	const char *why;

	cpc_assert(volumes);
	name_them(volumes);
	cpc_assert(!cpc_pool_format_backing(backing, &fo, &err));
	cpc_assert(!cpc_store_open(backing, false, 1 << 20, NULL, NULL, &store, &why));
	cpc_assert(!cpc_store_commit(store, &req));
	cpc_pins_put(req.pins);
	cpc_store_close(store);
	cpc_backing_close(backing);
	free(volumes);
}

/* --- opening --- */

static int open_it(struct device *device, struct cpc_pool **pool, struct cpc_error *err)
{
	struct cpc_pool_options opts;

	cpc_hooks.alloc = counted_alloc;
	cpc_hooks.free = counted_free;
	cpc_pool_options_init(&opts);
	opts.cache = CPC_CACHE_MIN;
	opts.no_threads = true;
	return cpc_pool_open_backing(device_open(device), &opts, pool, err);
}

/* After the pool has gone. */
static void expect_cheap(clock_t start)
{
	double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;

	printf("%.2f s, %lld MiB\n", seconds, (long long)(peak >> 20));
	expect(in_use == 0, "memory is left");
	expect(peak <= (int64_t)CPC_CACHE_MIN + MEMORY_MAX, "more than 64 MiB above the cache");
	expect(seconds <= CPU_MAX_S * SLOWER, "more than 2 s of processor time");
}

static void a_million_names_are_refused(void)
{
	struct cpc_error err = {""};
	struct device device;
	struct cpc_pool *pool;
	clock_t start;

	make_image();
	device_init(&device, base, POOL_BYTES);
	start = clock();
	expect(open_it(&device, &pool, &err) == -EUCLEAN,
	       "a pool with a million names is not refused as damaged");
	printf("a million names: %s; ", err.text);
	expect(device.writes == 0, "a refused pool was written");
	expect_cheap(start);
	device_destroy(&device);
	free(base);
}

static int count(void *ctx, const struct cpc_volume_info *info)
{
	++*(uint32_t *)ctx;
	return 0;
}

static void use_one(struct cpc_pool *pool)
{
	static _Alignas(CPC_BLOCK_SIZE) uint8_t buf[CPC_BLOCK_SIZE] = {1};
	struct cpc_volume *vol;

	expect(!cpc_pool_open_volume(pool, "0050000", &vol), "a volume does not open");
	expect(!cpc_volume_write(vol, buf, sizeof(buf), 0, CPC_FUA), "a volume takes no write");
	cpc_pool_close_volume(pool, vol);
	expect(!cpc_pool_rename(pool, "0000001", "first", NULL), "no name changes");
	expect(!cpc_pool_commit(pool), "commit");
}

static void the_most_names_cost_little(void)
{
	struct cpc_error err = {""};
	struct device device;
	struct cpc_pool *pool;
	uint32_t nr = 0;
	clock_t start;

	base = calloc(1, POOL_BYTES);
	cpc_assert(base);
	device_init(&device, base, POOL_BYTES);
	make_most(&device);
	start = clock();
	expect(!open_it(&device, &pool, &err), err.text);
	use_one(pool);
	expect(!cpc_pool_list(pool, count, &nr) && nr == CPC_MAX_VOLUMES, "names are missing");
	expect(!cpc_pool_shutdown(pool), "shutdown");
	cpc_pool_close(pool);
	printf("%u names: ", nr);
	expect_cheap(start);
	device_destroy(&device);
	free(base);
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "refused"))
		a_million_names_are_refused();
	else if (argc == 2 && !strcmp(argv[1], "most"))
		the_most_names_cost_little();
	else
		expect(false, "usage: test-many-names refused|most");
	return 0;
}
