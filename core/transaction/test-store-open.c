/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Opening: which superblock is taken, what is written before anything else is, and what an image
 * that is damaged, or made to harm, can do: be refused, or be wrong, but nothing worse.
 */
#include "check/test-pool.h"

#include <stdio.h>

#include "transaction/store-internal.h"

static const struct test_geometry geometry = {16 * MIB, 4096, false};

static uint64_t rng = 1;

static unsigned rounds = 400;

static uint64_t draw(uint64_t below)
{
	rng = rng * 6364136223846793005ull + 1442695040888963407ull;
	return (rng >> 20) % below;
}

/* A closed pool with two volumes, a drop list and a free log. */
static void make(struct test_pool *p)
{
	test_pool_create(p, &geometry);
	test_pool_add_volume(p, 0, "a", 64 * MIB);
	test_pool_add_volume(p, 1, "b", 64 * MIB);
	test_pool_fill(p, 60);
	assert_int_equal(test_pool_delete(p, 1), 0);
	test_pool_close(p);
}

static void destroy(struct test_pool *p)
{
	cpc_oracle_destroy(p->oracle);
	cpc_powercut_destroy(p->pc);
}

/* Opens without the oracle, which would refuse the image itself. Closes again if that worked. */
static int try_open(struct test_pool *p, bool read_only, const char **why)
{
	int ret;

	assert_int_equal(cpc_powercut_reopen(p->pc, &p->backing), 0);
	ret = cpc_store_open(p->backing, read_only, MIB, NULL, NULL, &p->store, why);
	if (!ret) {
		ret = read_only ? 0 : cpc_store_settle(p->store);
		cpc_store_close(p->store);
	}
	cpc_backing_close(p->backing);
	return ret;
}

static void newest(struct test_pool *p, struct cpc_super *super)
{
	const char *why;

	assert_int_equal(cpc_powercut_reopen(p->pc, &p->backing), 0);
	assert_int_equal(cpc_super_find(p->backing, super, &why), 0);
	cpc_backing_close(p->backing);
}

static uint64_t slot_at(const struct cpc_geometry *geo, unsigned ring, unsigned slot)
{
	return cpc_geometry_super(geo, ring, slot);
}

static void geometry_of(const struct cpc_super *s, struct cpc_geometry *geo)
{
	assert_int_equal(cpc_geometry_init(geo, s->total_bytes, s->log_size, s->nodesize,
					   s->incompat & CPC_INCOMPAT_DUP),
			 0);
}

static void poke_super(struct test_pool *p, const struct cpc_super *super, unsigned ring)
{
	struct cpc_disk_super *disk = cpc_alloc_aligned(4096, sizeof(*disk));
	struct cpc_geometry geo;

	geometry_of(super, &geo);
	cpc_super_encode(disk, super);
	cpc_powercut_poke(p->pc, slot_at(&geo, ring, super->slot), disk, sizeof(*disk));
	cpc_free(disk);
}

static void wipe(struct test_pool *p, uint64_t bytenr)
{
	static const uint8_t zeroes[4096] __attribute__((aligned(4096)));

	cpc_powercut_poke(p->pc, bytenr, zeroes, sizeof(zeroes));
}

/* --- making one --- */

static void a_format_that_fails_says_so_and_can_be_repeated(void **state)
{
	static const enum cpc_powercut_op ops[] = {CPC_POWERCUT_WRITE, CPC_POWERCUT_FLUSH};
	const char *why;

	for (unsigned i = 0; i < 2; i++) {
		int ret = -EIO;

		for (unsigned n = 1; ret; n++) {
			struct cpc_super super;
			struct test_pool p;

			make(&p);
			newest(&p, &super);
			super = (struct cpc_super){.incompat = CPC_INCOMPAT_DUP,
						   .transid = 1,
						   .total_bytes = super.total_bytes,
						   .nodesize = 4096,
						   .log_size = super.log_size,
						   .next_volume = 1};
			assert_int_equal(cpc_powercut_reopen(p.pc, &p.backing), 0);
			cpc_powercut_fail(p.pc, ops[i], n, false, -EIO);
			ret = cpc_store_format(p.backing, &super);
			cpc_powercut_clear_faults(p.pc);
			assert_true(ret == 0 || ret == -EIO);
			assert_true(!ret || !cpc_store_format(p.backing, &super));
			cpc_backing_close(p.backing);
			assert_int_equal(try_open(&p, false, &why), 0);
			newest(&p, &super);
			assert_int_equal(super.transid, 1);
			destroy(&p);
			assert_true(ret || n == (i ? 3 : 2 * CPC_SUPER_SLOTS + 3));
		}
	}
}

/* --- which superblock --- */

static void either_ring_is_enough(void **state)
{
	for (unsigned ring = 0; ring < 2; ring++) {
		struct cpc_super before, after;
		struct cpc_geometry geo;
		struct test_pool p;
		const char *why;

		make(&p);
		newest(&p, &before);
		geometry_of(&before, &geo);
		for (unsigned slot = 0; slot < CPC_SUPER_SLOTS; slot++)
			wipe(&p, slot_at(&geo, ring, slot));
		newest(&p, &after);
		assert_int_equal(after.transid, before.transid);
		assert_int_equal(try_open(&p, false, &why), 0);
		/* and opening has written the other one again */
		for (unsigned slot = 0; slot < CPC_SUPER_SLOTS; slot++)
			wipe(&p, slot_at(&geo, !ring, slot));
		newest(&p, &after);
		assert_int_equal(after.transid, before.transid);
		destroy(&p);
	}
}

static void the_newest_of_all_slots_wins(void **state)
{
	struct cpc_super before, after;
	struct cpc_geometry geo;
	struct test_pool p;

	make(&p);
	newest(&p, &before);
	geometry_of(&before, &geo);
	/* the newest only in ring 1 */
	wipe(&p, slot_at(&geo, 0, before.slot));
	newest(&p, &after);
	assert_int_equal(after.transid, before.transid);
	/* nowhere: the one before */
	wipe(&p, slot_at(&geo, 1, before.slot));
	newest(&p, &after);
	assert_int_equal(after.transid, before.transid - 1);
	/* a copy of it in another slot does not count */
	after = before;
	poke_super(&p, &after, 0);
	newest(&p, &after);
	assert_int_equal(after.transid, before.transid);
	destroy(&p);
}

static void a_larger_device_is_no_other_pool_and_a_smaller_one_is_refused(void **state)
{
	static const uint64_t sizes[] = {24 * MIB, 16 * MIB - 4096};
	static uint8_t image[16 * MIB] __attribute__((aligned(4096)));
	struct test_pool p;

	make(&p);
	cpc_powercut_peek(p.pc, 0, image, sizeof(image));
	for (unsigned i = 0; i < 2; i++) {
		struct cpc_backing *backing;
		struct cpc_powercut *pc;
		struct cpc_super super;
		const char *why;

		assert_int_equal(cpc_powercut_create(sizes[i], &pc), 0);
		cpc_powercut_poke(pc, 0, image, cpc_min_u64(sizes[i], sizeof(image)));
		assert_int_equal(cpc_powercut_reopen(pc, &backing), 0);
		assert_int_equal(cpc_super_find(backing, &super, &why), i ? -EUCLEAN : 0);
		if (i)
			assert_string_equal(why, "device is smaller than the pool");
		else
			assert_int_equal(super.total_bytes, 16 * MIB);
		cpc_backing_close(backing);
		cpc_powercut_destroy(pc);
	}
	destroy(&p);
}

/* The older superblock that can be read is not known to be the newest. */
static void a_newest_superblock_that_cannot_be_read_is_not_passed_over(void **state)
{
	struct cpc_super super, newest_one;
	struct cpc_geometry geo;
	struct test_pool p;
	const char *why;

	make(&p);
	newest(&p, &newest_one);
	assert_int_equal(cpc_geometry_init(&geo, newest_one.total_bytes, newest_one.log_size,
					   newest_one.nodesize, true),
			 0);
	assert_int_equal(cpc_powercut_reopen(p.pc, &p.backing), 0);
	for (unsigned rings = 1; rings <= 3; rings++) {
		for (unsigned ring = 0; ring < 2; ring++) {
			struct cpc_powercut_fault f = {
			    .op = CPC_POWERCUT_READ,
			    .nth = 1,
			    .sticky = true,
			    .bytenr = cpc_geometry_super(&geo, ring, newest_one.slot),
			    .len = 4096,
			    .error = -EIO};

			if (rings & 1u << ring)
				cpc_powercut_add_fault(p.pc, &f);
		}
		assert_int_equal(cpc_super_find(p.backing, &super, &why), rings == 3 ? -EIO : 0);
		if (rings < 3)
			assert_int_equal(super.transid, newest_one.transid);
		else
			assert_string_equal(why, "superblock cannot be read");
		cpc_powercut_clear_faults(p.pc);
	}
	/* a damaged one does not speak for one that cannot be read */
	for (unsigned ring = 0; ring < 2; ring++) {
		cpc_powercut_flip(p.pc, cpc_geometry_super(&geo, ring, newest_one.slot) + 300, 0);
		cpc_powercut_add_fault(
		    p.pc, &(struct cpc_powercut_fault){
			      .op = CPC_POWERCUT_READ,
			      .nth = 1,
			      .sticky = true,
			      .bytenr = cpc_geometry_super(&geo, !ring, newest_one.slot),
			      .len = 4096,
			      .error = -EIO});
		assert_int_equal(cpc_super_find(p.backing, &super, &why), -EIO);
		cpc_powercut_clear_faults(p.pc);
		cpc_powercut_flip(p.pc, cpc_geometry_super(&geo, ring, newest_one.slot) + 300, 0);
	}
	cpc_backing_close(p.backing);
	destroy(&p);
}

static void poke_version(struct test_pool *p, const struct cpc_super *super, unsigned ring)
{
	struct cpc_disk_super *disk = cpc_alloc_aligned(4096, sizeof(*disk));
	struct cpc_geometry geo;

	geometry_of(super, &geo);
	cpc_super_encode(disk, super);
	cpc_put_le32(&disk->version, CPC_FORMAT_VERSION + 1);
	cpc_put_le32(&disk->csum, cpc_csum_without_field(disk, sizeof(*disk),
							 offsetof(struct cpc_disk_super, csum)));
	cpc_powercut_poke(p->pc, slot_at(&geo, ring, super->slot), disk, sizeof(*disk));
	cpc_free(disk);
}

static void a_newer_format_in_any_slot_is_refused(void **state)
{
	for (unsigned ring = 0; ring < 2; ring++) {
		struct cpc_super super;
		struct test_pool p;
		const char *why;

		make(&p);
		newest(&p, &super);
		super.transid++;
		super.slot = (super.slot + 1) % CPC_SUPER_SLOTS;
		poke_version(&p, &super, ring);
		assert_int_equal(try_open(&p, false, &why), -ENOTSUP);
		assert_non_null(strstr(why, "newer"));
		assert_int_equal(try_open(&p, true, &why), -ENOTSUP);
		destroy(&p);
	}
}

static void unknown_features_are_refused_as_far_as_they_say(void **state)
{
	struct cpc_super super;
	struct test_pool p;
	const char *why;

	make(&p);
	newest(&p, &super);
	super.transid++;
	super.slot = (super.slot + 1) % CPC_SUPER_SLOTS;
	super.compat = 1ull << 40;
	poke_super(&p, &super, 0);
	assert_int_equal(try_open(&p, true, &why), 0);
	super.compat_ro = 1ull << 40;
	poke_super(&p, &super, 0);
	assert_int_equal(try_open(&p, true, &why), 0);
	assert_int_equal(try_open(&p, false, &why), -ENOTSUP);
	super.incompat |= 1ull << 40;
	poke_super(&p, &super, 0);
	assert_int_equal(try_open(&p, true, &why), -ENOTSUP);
	destroy(&p);
}

/* --- settling --- */

struct writes {
	unsigned nr, others;
};

static void note_write(void *ctx, uint64_t bytenr, uint64_t len, enum cpc_cause cause)
{
	struct writes *w = ctx;

	w->nr++;
	w->others += cause != CPC_CAUSE_SUPER || len != 4096;
}

static void opening_writes_the_superblock_and_nothing_else_byte_for_byte(void **state)
{
	static uint8_t before[2][4096] __attribute__((aligned(4096)));
	static uint8_t after[4096] __attribute__((aligned(4096)));
	const struct cpc_powercut_hooks hooks = {.before_write = note_write};
	struct writes w = {0};
	struct cpc_super super;
	struct cpc_geometry geo;
	struct test_pool p;
	const char *why;

	make(&p);
	newest(&p, &super);
	geometry_of(&super, &geo);
	for (unsigned ring = 0; ring < 2; ring++)
		cpc_powercut_peek(p.pc, slot_at(&geo, ring, super.slot), before[ring], 4096);
	cpc_powercut_set_hooks(p.pc, &hooks, &w);
	assert_int_equal(try_open(&p, true, &why), 0);
	assert_int_equal(w.nr, 0);
	assert_int_equal(try_open(&p, false, &why), 0);
	assert_true(w.nr >= 2);
	assert_int_equal(w.others, 0);
	cpc_powercut_set_hooks(p.pc, NULL, NULL);
	for (unsigned ring = 0; ring < 2; ring++) {
		cpc_powercut_peek_stable(p.pc, slot_at(&geo, ring, super.slot), after, 4096);
		assert_memory_equal(after, before[ring], 4096);
	}
	destroy(&p);
}

static void a_superblock_that_cannot_be_settled_is_not_served(void **state)
{
	struct test_pool p;
	const char *why;

	make(&p);
	cpc_powercut_fail(p.pc, CPC_POWERCUT_FLUSH, 1, false, -EIO);
	assert_int_equal(try_open(&p, false, &why), -EIO);
	cpc_powercut_clear_faults(p.pc);
	cpc_powercut_fail(p.pc, CPC_POWERCUT_WRITE, 1, false, -EIO);
	assert_int_equal(try_open(&p, false, &why), -EIO);
	cpc_powercut_clear_faults(p.pc);
	assert_int_equal(try_open(&p, false, &why), 0);
	destroy(&p);
}

/* --- images made to harm --- */

/* Writes a node's block with a good checksum, and all pointers to it up to the superblock. */
static void reseal(struct test_pool *p, struct cpc_super *super, struct cpc_node_ptr *ptr,
		   uint8_t *node)
{
	struct cpc_disk_node *disk = (void *)node;

	ptr->csum =
	    cpc_csum_without_field(node, super->nodesize, offsetof(struct cpc_disk_node, csum));
	cpc_put_le32(&disk->csum, ptr->csum);
	for (unsigned copy = 0; copy < 2; copy++)
		cpc_powercut_poke(p->pc, ptr->bytenr[copy], node, super->nodesize);
	for (unsigned ring = 0; ring < 2; ring++)
		poke_super(p, super, ring);
}

/* Opens, and if that works lets some commits do all they can. */
static bool live(struct test_pool *p)
{
	const char *why;
	bool opened;
	int ret;

	assert_int_equal(cpc_powercut_reopen(p->pc, &p->backing), 0);
	ret = cpc_store_open(p->backing, false, MIB, NULL, NULL, &p->store, &why);
	if (!ret)
		ret = cpc_store_settle(p->store);
	opened = !ret;
	for (unsigned i = 0; !ret && i < 8; i++) {
		struct cpc_commit_request req = {.next_volume = 50, .drop_budget = 20};

		ret = cpc_store_commit(p->store, &req);
		if (!ret)
			cpc_pins_put(req.pins);
		cpc_space_check(p->store->space);
	}
	if (opened)
		cpc_store_close(p->store);
	cpc_backing_close(p->backing);
	return opened;
}

static void change_bytes(uint8_t *node, uint32_t nodesize)
{
	static const uint64_t values[] = {0, 1, UINT64_MAX, 1ull << 63, 4096, UINT32_MAX};
	uint64_t at = draw(2) ? draw(nodesize - 8) : 64 + draw(400);

	if (draw(3) == 0) {
		memcpy(node + at, &values[draw(CPC_ARRAY_SIZE(values))], 8);
		return;
	}
	node[at] = (uint8_t)draw(256);
}

static void harm(uint64_t which)
{
	static uint8_t node[65536] __attribute__((aligned(4096)));
	struct cpc_powercut_saved *saved;
	unsigned opened = 0;
	struct cpc_super super;
	struct test_pool p;

	make(&p);
	newest(&p, &super);
	saved = cpc_powercut_save(p.pc);
	for (unsigned i = 0; i < rounds; i++) {
		struct cpc_super copy = super;
		struct cpc_node_ptr *ptr = which ? &copy.free_log : &copy.root;

		cpc_powercut_restore(p.pc, saved);
		cpc_powercut_peek(p.pc, ptr->bytenr[0], node, super.nodesize);
		for (uint64_t n = 1 + draw(3); n--;)
			change_bytes(node, super.nodesize);
		reseal(&p, &copy, ptr, node);
		opened += live(&p);
	}
	assert_true(opened < rounds);
	cpc_powercut_restore(p.pc, saved);
	cpc_powercut_saved_free(saved);
	assert_true(live(&p));
	destroy(&p);
}

static void random_changes_of_the_root_tree_do_no_harm(void **state)
{
	harm(0);
}

static void random_changes_of_the_free_log_do_no_harm(void **state)
{
	harm(1);
}

static void random_superblocks_do_no_harm(void **state)
{
	static struct cpc_disk_super disk __attribute__((aligned(4096)));
	struct cpc_powercut_saved *saved;
	struct cpc_super super;
	struct cpc_geometry geo;
	struct test_pool p;

	make(&p);
	newest(&p, &super);
	geometry_of(&super, &geo);
	super.transid++;
	super.slot = (super.slot + 1) % CPC_SUPER_SLOTS;
	saved = cpc_powercut_save(p.pc);
	for (unsigned i = 0; i < rounds; i++) {
		cpc_powercut_restore(p.pc, saved);
		cpc_super_encode(&disk, &super);
		for (uint64_t n = 1 + draw(3); n--;)
			((uint8_t *)&disk)[12 + draw(340)] = (uint8_t)draw(256);
		cpc_put_le32(&disk.csum,
			     cpc_csum_without_field(&disk, sizeof(disk),
						    offsetof(struct cpc_disk_super, csum)));
		for (unsigned ring = 0; ring < 2; ring++)
			cpc_powercut_poke(p.pc, slot_at(&geo, ring, super.slot), &disk,
					  sizeof(disk));
		live(&p);
	}
	cpc_powercut_saved_free(saved);
	destroy(&p);
}

/* Finds an item of the root leaf. */
static uint8_t *find_item(uint8_t *node, enum cpc_item_type type)
{
	for (uint32_t i = 0; i < cpc_node_nritems(node); i++) {
		const void *value;
		uint32_t size;
		uint64_t key;

		cpc_node_item(node, i, &key, &value, &size);
		if (key >> CPC_KEY_TYPE_SHIFT == type)
			return node + ((const uint8_t *)value - node);
	}
	fail_msg("no such item");
	return NULL;
}

static void read_root(struct test_pool *p, struct cpc_super *super, uint8_t *node)
{
	newest(p, super);
	assert_int_equal(super->root.level, 0);
	cpc_powercut_peek(p->pc, super->root.bytenr[0], node, super->nodesize);
}

static void sums_of_a_dropped_tree_that_lie_are_refused(void **state)
{
	static uint8_t node[65536] __attribute__((aligned(4096)));
	struct cpc_disk_drop *drop;
	struct cpc_super super;
	struct test_pool p;
	const char *why;

	make(&p);
	read_root(&p, &super, node);
	drop = (void *)find_item(node, CPC_ITEM_DROP);
	cpc_put_le64(&drop->ptr.data_blocks, super.used_blocks + 1);
	reseal(&p, &super, &super.root, node);
	assert_int_equal(try_open(&p, false, &why), -EUCLEAN);
	assert_string_equal(why, "drop list");
	destroy(&p);
}

static void a_dropped_tree_whose_sums_lie_a_little_is_left_out(void **state)
{
	static uint8_t node[65536] __attribute__((aligned(4096)));
	struct cpc_disk_drop *drop;
	struct cpc_store_info info;
	struct cpc_super super;
	struct test_pool p;

	make(&p);
	read_root(&p, &super, node);
	drop = (void *)find_item(node, CPC_ITEM_DROP);
	cpc_put_le64(&drop->ptr.data_blocks, cpc_get_le64(&drop->ptr.data_blocks) + 1);
	reseal(&p, &super, &super.root, node);
	test_pool_open(&p);
	assert_int_equal(test_pool_commit(&p, 100), 0);
	cpc_store_info(p.store, &info);
	assert_int_equal(info.nr_drops, 0);
	test_pool_close(&p);
	destroy(&p);
}

static void drop_keys_that_are_yet_to_come_are_refused(void **state)
{
	struct cpc_super super;
	struct test_pool p;
	const char *why;

	make(&p);
	newest(&p, &super);
	super.next_drop = 0;
	for (unsigned ring = 0; ring < 2; ring++)
		poke_super(&p, &super, ring);
	assert_int_equal(try_open(&p, false, &why), -EUCLEAN);
	assert_string_equal(why, "drop list");
	destroy(&p);
}

static void free_log_keys_that_are_yet_to_come_are_refused(void **state)
{
	struct cpc_super super;
	struct test_pool p;
	const char *why;

	make(&p);
	newest(&p, &super);
	super.next_free_log = 1;
	for (unsigned ring = 0; ring < 2; ring++)
		poke_super(&p, &super, ring);
	assert_int_equal(try_open(&p, false, &why), -EUCLEAN);
	assert_string_equal(why, "free space");
	destroy(&p);
}

/* Change n of the only leaf of the free log. Return: whether there is such a change. */
static bool lie_in_free_log(const struct test_pool *p, const struct cpc_super *super, uint8_t *node,
			    unsigned n)
{
	const void *value;
	struct cpc_disk_free_log *log;
	struct cpc_disk_free_entry *e;
	uint32_t size;
	uint64_t key;

	assert_int_equal(super->free_log.level, 0);
	cpc_powercut_peek(p->pc, super->free_log.bytenr[0], node, super->nodesize);
	cpc_node_item(node, 0, &key, &value, &size);
	log = (void *)(node + ((const uint8_t *)value - node));
	e = &log->entry[0];
	switch (n) {
	case 0:
		cpc_put_le32(&e->count, 0);
		return true;
	case 1:
		cpc_put_le64(&e->block, super->total_bytes >> CPC_BLOCK_SHIFT);
		return true;
	case 2: /* the superblock's own */
		cpc_put_le64(&e->block, 0);
		return true;
	case 3:
		cpc_put_le32(&e->count, CPC_GROUP_BLOCKS);
		return true;
	case 4: /* more than the group has in use */
		cpc_put_le32(&e->count, 3000 | CPC_FREE_ENTRY_FREED);
		return true;
	case 5: /* of a transaction that is yet to come, or later than the item behind it */
		cpc_put_le64(&log->transid, super->transid + 1);
		return true;
	case 6:
		cpc_put_le64(&log->transid, super->transid);
		return true;
	default:
		return false;
	}
}

static void what_the_free_log_cannot_say_is_refused(void **state)
{
	static uint8_t node[65536] __attribute__((aligned(4096)));
	struct cpc_powercut_saved *saved;
	struct cpc_super super;
	struct test_pool p;
	const char *why;

	make(&p);
	newest(&p, &super);
	saved = cpc_powercut_save(p.pc);
	for (unsigned n = 0; lie_in_free_log(&p, &super, node, n); n++) {
		struct cpc_super copy = super;

		reseal(&p, &copy, &copy.free_log, node);
		assert_int_equal(try_open(&p, false, &why), -EUCLEAN);
		cpc_powercut_restore(p.pc, saved);
	}
	assert_int_equal(try_open(&p, false, &why), 0);
	cpc_powercut_saved_free(saved);
	destroy(&p);
}

static void a_volume_item_that_lies_is_damage(void **state)
{
	const struct cpc_volume_item good = {.id = 7, .size = MIB, .name = "disk"};
	uint8_t value[CPC_VOLUME_VALUE_MAX];
	struct cpc_disk_volume *disk = (void *)value;
	struct cpc_volume_item item;
	uint32_t size = cpc_volume_item_encode(&good, 1, value);

	assert_int_equal(cpc_volume_item_decode(&item, 7, value, size), 0);
	assert_string_equal(item.name, "disk");
	assert_int_equal(cpc_volume_item_decode(&item, 7, value, sizeof(*disk) - 1), -EUCLEAN);
	assert_int_equal(cpc_volume_item_decode(&item, 7, value, size - 1), -EUCLEAN);
	cpc_put_le64(&disk->size, 0);
	assert_int_equal(cpc_volume_item_decode(&item, 7, value, size), -EUCLEAN);
	cpc_put_le64(&disk->size, CPC_VOLUME_SIZE_MAX + 1);
	assert_int_equal(cpc_volume_item_decode(&item, 7, value, size), -EUCLEAN);
	cpc_put_le64(&disk->size, CPC_VOLUME_SIZE_MAX);
	assert_int_equal(cpc_volume_item_decode(&item, 7, value, size), 0);
	disk->name[1] = '/';
	assert_int_equal(cpc_volume_item_decode(&item, 7, value, size), -EUCLEAN);
}

/* A node of the free log that stands where the root of another tree does would be freed twice. */
static void a_free_log_on_blocks_in_use_is_refused(void **state)
{
	static uint8_t node[65536] __attribute__((aligned(4096)));
	struct cpc_disk_node *disk = (void *)node;
	struct cpc_super super;
	struct test_pool p;
	const char *why;

	make(&p);
	newest(&p, &super);
	cpc_powercut_peek(p.pc, super.free_log.bytenr[0], node, super.nodesize);
	super.free_log.bytenr[1] = super.root.bytenr[1];
	cpc_put_le64(&disk->bytenr, super.free_log.bytenr[0]);
	reseal(&p, &super, &super.free_log, node);
	assert_int_equal(try_open(&p, false, &why), -EUCLEAN);
	destroy(&p);
}

static void a_wrong_count_of_used_blocks_is_corrected(void **state)
{
	struct cpc_check_result result;
	struct cpc_store_info info;
	struct cpc_super super;
	struct test_pool p;
	uint64_t right;

	make(&p);
	newest(&p, &super);
	right = super.used_blocks;
	super.used_blocks = 1;
	for (unsigned ring = 0; ring < 2; ring++)
		poke_super(&p, &super, ring);
	test_pool_open(&p);
	cpc_store_info(p.store, &info);
	assert_int_equal(info.used_blocks + info.dropped_blocks, right);
	test_pool_check(&p, true, &result);
	assert_true(result.errors > 0);
	assert_int_equal(test_pool_map(&p, 0, 3, 1), 0);
	test_pool_check_clean(&p);
	test_pool_close(&p);
	destroy(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_format_that_fails_says_so_and_can_be_repeated),
	    cmocka_unit_test(either_ring_is_enough),
	    cmocka_unit_test(the_newest_of_all_slots_wins),
	    cmocka_unit_test(a_newest_superblock_that_cannot_be_read_is_not_passed_over),
	    cmocka_unit_test(a_larger_device_is_no_other_pool_and_a_smaller_one_is_refused),
	    cmocka_unit_test(a_newer_format_in_any_slot_is_refused),
	    cmocka_unit_test(unknown_features_are_refused_as_far_as_they_say),
	    cmocka_unit_test(opening_writes_the_superblock_and_nothing_else_byte_for_byte),
	    cmocka_unit_test(a_superblock_that_cannot_be_settled_is_not_served),
	    cmocka_unit_test(random_changes_of_the_root_tree_do_no_harm),
	    cmocka_unit_test(random_changes_of_the_free_log_do_no_harm),
	    cmocka_unit_test(random_superblocks_do_no_harm),
	    cmocka_unit_test(sums_of_a_dropped_tree_that_lie_are_refused),
	    cmocka_unit_test(a_dropped_tree_whose_sums_lie_a_little_is_left_out),
	    cmocka_unit_test(drop_keys_that_are_yet_to_come_are_refused),
	    cmocka_unit_test(free_log_keys_that_are_yet_to_come_are_refused),
	    cmocka_unit_test(what_the_free_log_cannot_say_is_refused),
	    cmocka_unit_test(a_volume_item_that_lies_is_damage),
	    cmocka_unit_test(a_free_log_on_blocks_in_use_is_refused),
	    cmocka_unit_test(a_wrong_count_of_used_blocks_is_corrected),
	};

	if (getenv("CPC_TEST_SEED"))
		rng = strtoull(getenv("CPC_TEST_SEED"), NULL, 0);
	if (getenv("CPC_TEST_OPS"))
		rounds = (unsigned)strtoul(getenv("CPC_TEST_OPS"), NULL, 0);
	print_message("CPC_TEST_SEED=%llu\n", (unsigned long long)rng);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
