/* SPDX-License-Identifier: BSD-3-Clause */
/* The check finds nothing in a good pool, and every kind of damage in a bad one. */
#include "check/test-pool.h"

#include <inttypes.h>
#include <stdio.h>

static const struct test_geometry geometries[] = {
    {8 * MIB, 4096, false},
    {8 * MIB, 16384, false},
    {16 * MIB, 65536, true},
};

static void make(struct test_pool *p, const struct test_geometry *g)
{
	test_pool_create(p, g);
	test_pool_add_volume(p, 0, "a", 64 * MIB);
	test_pool_add_volume(p, 1, "b", 64 * MIB);
	test_pool_fill(p, 120);
}

static void result_of(struct test_pool *p, struct cpc_check_result *r)
{
	test_pool_check(p, true, r);
}

/* --- good pools --- */

static void an_empty_pool_is_clean(void **state)
{
	struct test_pool p;

	for (unsigned i = 0; i < CPC_ARRAY_SIZE(geometries); i++) {
		test_pool_create(&p, &geometries[i]);
		test_pool_check_clean(&p);
		test_pool_destroy(&p);
	}
}

static void a_used_pool_is_clean_after_every_commit(void **state)
{
	struct cpc_check_result r;
	struct test_pool p;

	for (unsigned g = 0; g < CPC_ARRAY_SIZE(geometries); g++) {
		test_pool_create(&p, &geometries[g]);
		test_pool_add_volume(&p, 0, "a", 64 * MIB);
		test_pool_add_volume(&p, 1, "b", 64 * MIB);
		for (unsigned i = 0; i < 150; i++) {
			assert_int_equal(test_pool_map(&p, i % 2, i * 37 % 512 * 3, 1 + i % 3), 0);
			if (i % 11 == 10)
				assert_int_equal(test_pool_unmap(&p, 0, i, 40), 0);
			if (i % 50 == 49) {
				test_pool_close(&p);
				test_pool_open(&p);
			}
			test_pool_check_clean(&p);
		}
		result_of(&p, &r);
		assert_int_equal(r.volumes, 2);
		assert_true(r.nodes > 3 && r.data_blocks > 100);
		test_pool_destroy(&p);
	}
}

static void a_deleted_volume_is_clean_while_it_is_freed(void **state)
{
	struct cpc_check_result r;
	struct test_pool p;

	make(&p, &geometries[0]);
	assert_int_equal(test_pool_delete(&p, 0), 0);
	test_pool_check_clean(&p);
	for (unsigned i = 0; i < 20; i++) {
		assert_int_equal(test_pool_commit(&p, 2), 0);
		test_pool_check_clean(&p);
	}
	assert_int_equal(test_pool_delete(&p, 1), 0);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(test_pool_commit(&p, 100), 0);
	test_pool_check_clean(&p);
	result_of(&p, &r);
	assert_int_equal(r.data_blocks, 0);
	test_pool_destroy(&p);
}

/* --- damage --- */

/* Where things stand, from a walk of our own over the dump. */
struct places {
	struct test_pool *p;
	uint64_t node[1000], copy2[1000];
	unsigned nr;
	uint64_t data;
	uint64_t home[2]; /* current, both copies; 0: none */
};

static void note_line(void *ctx, const char *line)
{
	struct places *at = ctx;
	uint64_t a, b, c;
	const char *ptr = strstr(line, ": bytenr ");
	unsigned home;

	if (ptr && sscanf(ptr, ": bytenr %" SCNu64 " and %" SCNu64, &a, &b) == 2 && at->nr < 1000) {
		at->node[at->nr] = a;
		at->copy2[at->nr++] = b;
	}
	if (sscanf(line, "  blocks %" SCNu64 "+%" SCNu64 " at %" SCNu64, &a, &b, &c) == 3)
		at->data = c;
	if (sscanf(line, "  group %" SCNu64 " generation %" SCNu64 " home %u", &a, &b, &home) ==
	    3) {
		for (unsigned copy = 0; copy < at->p->store->geo.copies; copy++)
			at->home[copy] = cpc_geometry_home(&at->p->store->geo, copy, a, home);
	}
}

static void find_places(struct test_pool *p, struct places *at)
{
	static const char *const trees[] = {"root", "free-log", "a", "b"};
	char transid[64];

	memset(at, 0, sizeof(*at));
	at->p = p;
	snprintf(transid, sizeof(transid), "%" PRIu64, p->store->super.transid);
	for (unsigned i = 0; i < 2; i++) {
		const struct cpc_node_ptr *ptr =
		    i ? &p->store->super.free_log : &p->store->super.root;

		at->node[at->nr] = ptr->bytenr[0];
		at->copy2[at->nr++] = ptr->bytenr[1];
	}
	for (unsigned i = 0; i < CPC_ARRAY_SIZE(trees); i++) {
		int ret = cpc_dump(p->backing, "tree", trees[i], note_line, at);

		assert_true(ret == 0 || ret == -ENOENT);
	}
}

static void expect_damage(struct test_pool *p, uint64_t byte, unsigned bit, const char *what)
{
	struct cpc_check_result r;

	cpc_powercut_flip(p->pc, byte, bit);
	result_of(p, &r);
	if (!r.errors)
		fail_msg("a flipped bit in %s at %" PRIu64 " goes unnoticed", what, byte);
	cpc_powercut_flip(p->pc, byte, bit);
}

static void a_flipped_bit_in_any_node_copy_is_found(void **state)
{
	uint32_t seed = 1;
	struct places at;
	struct test_pool p;

	for (unsigned g = 0; g < CPC_ARRAY_SIZE(geometries); g++) {
		make(&p, &geometries[g]);
		find_places(&p, &at);
		assert_true(at.nr > 3);
		for (unsigned i = 0; i < at.nr; i++) {
			for (unsigned n = 0; n < 3; n++) {
				uint32_t byte = (seed = seed * 1103515245 + 12345) >> 8;

				byte %= geometries[g].nodesize;
				expect_damage(&p, at.node[i] + byte, n, "a node");
				if (!geometries[g].single)
					expect_damage(&p, at.copy2[i] + byte, n, "a second copy");
			}
		}
		test_pool_check_clean(&p);
		test_pool_destroy(&p);
	}
}

static void every_byte_of_a_node_counts(void **state)
{
	struct cpc_check_result r;
	struct places at;
	struct test_pool p;

	make(&p, &geometries[0]);
	find_places(&p, &at);
	for (unsigned byte = 0; byte < 4096; byte += 3) {
		cpc_powercut_flip(p.pc, at.copy2[0] + byte, byte % 8);
		result_of(&p, &r);
		assert_int_equal(r.nodes_bad, 1);
		assert_int_equal(r.errors, 1);
		cpc_powercut_flip(p.pc, at.copy2[0] + byte, byte % 8);
	}
	test_pool_destroy(&p);
}

static void a_flipped_bit_in_data_is_found_with_the_data_option(void **state)
{
	struct cpc_check_options quick = {.data = false};
	struct cpc_check_result r;
	struct places at;
	struct test_pool p;

	make(&p, &geometries[1]);
	find_places(&p, &at);
	cpc_powercut_flip(p.pc, at.data + 4095, 7);
	result_of(&p, &r);
	assert_int_equal(r.errors, 1);
	assert_int_equal(r.data_bad, 1);
	assert_int_equal(cpc_check(p.backing, &quick, &r), 0);
	assert_int_equal(r.errors, 0);
	test_pool_destroy(&p);
}

static void a_flipped_bit_in_either_copy_of_a_bitmap_is_found(void **state)
{
	struct cpc_check_result r;
	struct places at;
	struct test_pool p;

	make(&p, &geometries[0]);
	find_places(&p, &at);
	assert_true(at.home[0] && at.home[1]);
	expect_damage(&p, at.home[0] + 17, 3, "a bitmap");
	expect_damage(&p, at.home[1] + 4000, 3, "a bitmap's second copy");
	cpc_powercut_flip(p.pc, at.home[0], 0);
	cpc_powercut_flip(p.pc, at.home[1], 0);
	result_of(&p, &r);
	assert_int_equal(r.errors, 2); /* both copies; what they say is then unknown */
	assert_int_equal(r.leaked_blocks, 0);
	test_pool_destroy(&p);
}

static void any_damaged_superblock_is_found(void **state)
{
	struct cpc_check_result r;
	struct test_pool p;

	make(&p, &geometries[0]);
	for (unsigned ring = 0; ring < 2; ring++) {
		for (unsigned slot = 0; slot < CPC_SUPER_SLOTS; slot++) {
			uint64_t at = cpc_geometry_super(&p.store->geo, ring, slot);

			for (unsigned byte = 0; byte < 4096; byte += 61) {
				cpc_powercut_flip(p.pc, at + byte, byte % 8);
				result_of(&p, &r);
				assert_int_equal(r.supers_bad, 1);
				assert_int_equal(r.errors, 1);
				cpc_powercut_flip(p.pc, at + byte, byte % 8);
			}
		}
	}
	test_pool_check_clean(&p);
	test_pool_destroy(&p);
}

static void a_lost_superblock_of_one_ring_is_found(void **state)
{
	uint8_t old[CPC_BLOCK_SIZE];
	struct cpc_check_result r;
	struct test_pool p;
	uint64_t at;

	make(&p, &geometries[0]);
	at = cpc_geometry_super(&p.store->geo, 1, (p.store->super.slot + 1) % CPC_SUPER_SLOTS);
	cpc_powercut_peek(p.pc, at, old, sizeof(old));
	assert_int_equal(test_pool_commit(&p, 0), 0);
	cpc_powercut_poke(p.pc, at, old, sizeof(old));
	result_of(&p, &r);
	assert_int_equal(r.supers_bad, 1);
	test_pool_destroy(&p);
}

/* --- wrong books, with good checksums --- */

static void leaked_blocks_are_found_and_counted(void **state)
{
	struct cpc_check_result r;
	struct test_pool p;

	make(&p, &geometries[1]);
	/* The volume is empty, its item says: what its tree held is in use and without a name. */
	memset(&p.item[0].root, 0, sizeof(p.item[0].root));
	assert_int_equal(test_pool_commit_item(&p, &p.item[0], false), 0);
	result_of(&p, &r);
	assert_true(r.leaked_blocks > 40);
	assert_true(r.errors > 0);
	assert_int_equal(r.nodes_bad, 0);
	test_pool_destroy(&p);
}

static void a_block_named_twice_is_found(void **state)
{
	struct cpc_check_result r;
	struct test_pool p;

	make(&p, &geometries[1]);
	/* Deleted, so that the drop list has its tree, and there again with the same tree. */
	assert_int_equal(test_pool_commit_item(&p, &p.item[0], true), 0);
	test_pool_check_clean(&p);
	assert_int_equal(test_pool_commit_item(&p, &p.item[0], false), 0);
	result_of(&p, &r);
	assert_true(r.errors > 0);
	test_pool_destroy(&p);
}

static void two_volumes_of_one_name_are_found(void **state)
{
	struct cpc_check_result r;
	struct test_pool p;

	make(&p, &geometries[0]);
	test_pool_add_volume(&p, 2, "a", MIB);
	result_of(&p, &r);
	assert_int_equal(r.errors, 1);
	test_pool_destroy(&p);
}

static void a_mapping_beyond_the_end_is_found(void **state)
{
	struct cpc_check_result r;
	struct test_pool p;

	make(&p, &geometries[0]);
	assert_int_equal(test_pool_map(&p, 0, 64 * MIB / 4096, 1), 0);
	result_of(&p, &r);
	assert_int_equal(r.errors, 1);
	test_pool_destroy(&p);
}

static void a_volume_id_that_was_never_given_out_is_found(void **state)
{
	struct cpc_check_result r;
	struct test_pool p;

	make(&p, &geometries[0]);
	p.next_volume = 2; /* ids 1 and 2 are in use */
	assert_int_equal(test_pool_commit(&p, 0), 0);
	result_of(&p, &r);
	assert_int_equal(r.errors, 1);
	test_pool_destroy(&p);
}

/* Rewrites the newest superblock in both rings. */
static void poke_super(struct test_pool *p, const struct cpc_super *super)
{
	struct cpc_disk_super disk;

	cpc_super_encode(&disk, super);
	for (unsigned ring = 0; ring < 2; ring++)
		cpc_powercut_poke(p->pc, cpc_geometry_super(&p->store->geo, ring, super->slot),
				  &disk, sizeof(disk));
}

static void a_wrong_count_of_used_blocks_is_found(void **state)
{
	struct cpc_check_result r;
	struct cpc_super super;
	struct test_pool p;

	make(&p, &geometries[0]);
	super = p.store->super;
	super.used_blocks++;
	poke_super(&p, &super);
	result_of(&p, &r);
	assert_int_equal(r.errors, 1);
	test_pool_destroy(&p);
}

static void a_superblock_over_an_old_state_is_found(void **state)
{
	struct cpc_super old;
	struct cpc_check_result r;
	struct test_pool p;

	/* The roots of the state before stand in the newest superblock: their blocks are used. */
	make(&p, &geometries[0]);
	old = p.store->super;
	assert_int_equal(test_pool_map(&p, 0, 7, 1), 0);
	old.transid = p.store->super.transid;
	old.slot = p.store->super.slot;
	old.free_log = p.store->super.free_log;
	old.next_free_log = p.store->super.next_free_log;
	poke_super(&p, &old);
	result_of(&p, &r);
	assert_true(r.errors > 0 && r.leaked_blocks > 0);
	test_pool_destroy(&p);
}

/* --- hostile bytes --- */

/* Sets a byte of a node and mends the checksums of all that leads to it: root tree only. */
static void poke_root_leaf(struct test_pool *p, uint32_t at, uint8_t value)
{
	struct cpc_super super = p->store->super;
	uint32_t nodesize = p->store->geo.nodesize;
	struct cpc_disk_node *node = cpc_alloc_aligned(4096, nodesize);

	cpc_powercut_peek(p->pc, super.root.bytenr[0], node, nodesize);
	((uint8_t *)node)[at] = value;
	super.root.csum =
	    cpc_csum_without_field(node, nodesize, offsetof(struct cpc_disk_node, csum));
	cpc_put_le32(&node->csum, super.root.csum);
	for (unsigned i = 0; i < p->store->geo.copies; i++)
		cpc_powercut_poke(p->pc, super.root.bytenr[i], node, nodesize);
	poke_super(p, &super);
	cpc_free(node);
}

static void no_byte_of_a_root_leaf_makes_the_check_crash(void **state)
{
	uint8_t *before = malloc(4096);
	struct cpc_check_result r;
	struct test_pool p;

	make(&p, &geometries[0]);
	cpc_powercut_peek(p.pc, p.store->super.root.bytenr[0], before, 4096);
	for (uint32_t at = 4; at < 4096; at++) {
		struct cpc_check_options opts = {.data = true};

		poke_root_leaf(&p, at, before[at] ^ (uint8_t)(1u << at % 8));
		cpc_check(p.backing, &opts, &r);
		poke_root_leaf(&p, at, before[at]);
	}
	test_pool_check_clean(&p);
	free(before);
	test_pool_destroy(&p);
}

/* Makes all checksums good again, from the leaves up, whatever the nodes hold. */
struct seal {
	struct test_pool *p;
	uint32_t nodesize;
	unsigned left; /* nodes to visit, at most */
};

static void seal_ptr(struct seal *s, struct cpc_disk_ptr *disk, uint64_t owner, unsigned depth);

/* The pointer in a value of the root tree, or NULL. */
static struct cpc_disk_ptr *value_ptr(uint8_t *value, uint32_t size, uint64_t key, uint64_t *owner)
{
	struct cpc_disk_volume *volume = (void *)value;
	struct cpc_disk_drop *drop = (void *)value;
	struct cpc_disk_dead *dead = (void *)value;

	switch (key >> CPC_KEY_TYPE_SHIFT) {
	case CPC_ITEM_VOLUME:
		*owner = CPC_TREE_VOLUME_BASE + (key & CPC_KEY_ID_MASK);
		return size >= sizeof(*volume) ? &volume->root : NULL;
	case CPC_ITEM_DROP:
		if (size < sizeof(*drop))
			return NULL;
		*owner = cpc_get_le64(&drop->owner);
		return &drop->ptr;
	case CPC_ITEM_DEAD:
		*owner = CPC_TREE_DEAD;
		return size >= sizeof(*dead) ? &dead->root : NULL;
	default:
		return NULL;
	}
}

static void seal_leaf(struct seal *s, uint8_t *node, unsigned depth)
{
	struct cpc_disk_item *item = (void *)(node + sizeof(struct cpc_disk_node));
	uint32_t nr = cpc_get_le32(&((struct cpc_disk_node *)node)->nritems);

	for (uint32_t i = 0; i < cpc_min_u64(nr, s->nodesize / sizeof(*item) - 8); i++) {
		uint32_t offset = cpc_get_le16(&item[i].offset);
		uint32_t size = cpc_get_le16(&item[i].size);
		struct cpc_disk_ptr *ptr = NULL;
		uint64_t owner;

		if (offset + size <= s->nodesize)
			ptr = value_ptr(node + offset, size, cpc_get_le64(&item[i].key), &owner);
		if (ptr)
			seal_ptr(s, ptr, owner, depth);
	}
}

static void seal_children(struct seal *s, uint8_t *node, uint64_t owner, unsigned depth)
{
	struct cpc_disk_child *child = (void *)(node + sizeof(struct cpc_disk_node));
	uint32_t nr = cpc_get_le32(&((struct cpc_disk_node *)node)->nritems);

	for (uint32_t i = 0; i < cpc_min_u64(nr, s->nodesize / sizeof(*child) - 2); i++)
		seal_ptr(s, &child[i].ptr, owner, depth);
}

static void seal_ptr(struct seal *s, struct cpc_disk_ptr *disk, uint64_t owner, unsigned depth)
{
	const struct cpc_geometry *geo = &s->p->store->geo;
	struct cpc_disk_node *node;
	struct cpc_node_ptr ptr;

	cpc_ptr_decode(&ptr, disk);
	if (!s->left || depth > CPC_MAX_LEVEL ||
	    !cpc_geometry_in_data(geo, ptr.bytenr[0], s->nodesize))
		return;
	s->left--;
	node = malloc(s->nodesize);
	cpc_powercut_peek(s->p->pc, ptr.bytenr[0], node, s->nodesize);
	if (node->level)
		seal_children(s, (uint8_t *)node, owner, depth + 1);
	else if (owner == CPC_TREE_ROOT)
		seal_leaf(s, (uint8_t *)node, depth + 1);
	cpc_put_le32(&node->csum, cpc_csum_without_field(node, s->nodesize,
							 offsetof(struct cpc_disk_node, csum)));
	disk->csum = node->csum;
	for (unsigned i = 0; i < geo->copies; i++) {
		if (cpc_geometry_in_data(geo, ptr.bytenr[i], s->nodesize))
			cpc_powercut_poke(s->p->pc, ptr.bytenr[i], node, s->nodesize);
	}
	free(node);
}

static void seal(struct test_pool *p)
{
	struct seal s = {p, p->store->geo.nodesize, 500};
	struct cpc_super super = p->store->super;
	struct cpc_disk_super disk;

	cpc_super_encode(&disk, &super);
	seal_ptr(&s, &disk.root, CPC_TREE_ROOT, 0);
	s.left = 500;
	seal_ptr(&s, &disk.free_log, CPC_TREE_FREE_LOG, 0);
	cpc_ptr_decode(&super.root, &disk.root);
	cpc_ptr_decode(&super.free_log, &disk.free_log);
	poke_super(p, &super);
}

static uint64_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return *state >> 33;
}

/* Puts something into a random place of a node: a bit, a small or large number, another's bytes. */
static void mutate(struct test_pool *p, const struct places *at, uint64_t *rnd)
{
	static const uint64_t numbers[] = {0, 1, 255, 65535, UINT32_MAX, UINT64_MAX, 1ull << 63};
	uint32_t nodesize = p->store->geo.nodesize;
	uint8_t *node = malloc(nodesize), *other = malloc(nodesize);
	uint64_t bytenr = at->node[next_random(rnd) % at->nr];
	uint64_t number = numbers[next_random(rnd) % CPC_ARRAY_SIZE(numbers)];
	uint32_t end = next_random(rnd) % 3 ? 256 : nodesize - 8;
	uint32_t place = (uint32_t)(next_random(rnd) % end);

	cpc_powercut_peek(p->pc, bytenr, node, nodesize);
	cpc_powercut_peek(p->pc, at->node[next_random(rnd) % at->nr], other, nodesize);
	switch (next_random(rnd) % 4) {
	case 0:
		node[place] ^= (uint8_t)(1u << next_random(rnd) % 8);
		break;
	case 1:
		memcpy(node + place, &number, 1u << next_random(rnd) % 4);
		break;
	case 2:
		number = at->node[next_random(rnd) % at->nr];
		memcpy(node + (place & ~7u), &number, 8);
		break;
	default:
		memcpy(node + place, other + next_random(rnd) % end, 8);
	}
	cpc_powercut_poke(p->pc, bytenr, node, nodesize);
	free(node);
	free(other);
}

static void ignore_line(void *ctx, const char *line)
{
}

static void no_mutated_node_makes_check_or_dump_crash(void **state)
{
	static const char *const trees[] = {"root", "free-log", "a", "b"};
	struct cpc_check_options opts = {.data = true, .report = ignore_line};
	struct cpc_powercut_saved *saved;
	struct cpc_check_result r;
	uint64_t rnd = 42, found = 0;
	struct places at;
	struct test_pool p;

	make(&p, &geometries[0]);
	assert_int_equal(test_pool_delete(&p, 1), 0);
	find_places(&p, &at);
	saved = cpc_powercut_save(p.pc);
	for (unsigned round = 0; round < 1500; round++) {
		struct cpc_backing *b;

		cpc_powercut_restore(p.pc, saved);
		for (uint64_t i = 0; i <= next_random(&rnd) % 3; i++)
			mutate(&p, &at, &rnd);
		seal(&p);
		assert_int_equal(cpc_powercut_reopen(p.pc, &b), 0);
		assert_int_equal(cpc_check(b, &opts, &r), 0);
		found += r.errors != 0;
		for (unsigned i = 0; i < CPC_ARRAY_SIZE(trees); i++)
			cpc_dump(b, "tree", trees[i], ignore_line, NULL);
		cpc_backing_close(b);
	}
	assert_true(found > 1000);
	cpc_powercut_saved_free(saved);
	test_pool_destroy(&p);
}

static void a_root_over_its_own_copy_is_found(void **state)
{
	struct cpc_check_result r;
	struct cpc_super super;
	struct test_pool p;

	make(&p, &geometries[0]);
	super = p.store->super;
	super.root.bytenr[1] = super.root.bytenr[0];
	poke_super(&p, &super);
	result_of(&p, &r);
	assert_true(r.errors > 0);
	test_pool_destroy(&p);
}

static void what_is_not_a_pool_is_refused(void **state)
{
	struct cpc_check_options opts = {.data = true};
	struct cpc_check_result r;
	struct cpc_powercut *pc;
	struct cpc_backing *b;

	assert_int_equal(cpc_powercut_create(8 * MIB, &pc), 0);
	assert_int_equal(cpc_powercut_reopen(pc, &b), 0);
	assert_int_equal(cpc_check(b, &opts, &r), -EINVAL);
	assert_int_equal(cpc_dump(b, "super", NULL, note_line, NULL), -EINVAL);
	cpc_backing_close(b);
	cpc_powercut_destroy(pc);
}

/* --- I/O errors --- */

static void no_read_error_ends_the_check(void **state)
{
	struct cpc_check_options opts = {.data = true};
	struct cpc_check_result r;
	struct test_pool p;
	uint64_t reads;

	make(&p, &geometries[0]);
	reads = cpc_powercut_count(p.pc, CPC_POWERCUT_READ);
	result_of(&p, &r);
	reads = cpc_powercut_count(p.pc, CPC_POWERCUT_READ) - reads;
	for (uint64_t n = 1; n <= reads; n++) {
		cpc_powercut_fail(p.pc, CPC_POWERCUT_READ, n, false, -EIO);
		assert_int_equal(cpc_check(p.backing, &opts, &r), 0);
		cpc_powercut_clear_faults(p.pc);
	}
	test_pool_destroy(&p);
}

static uint64_t allocations, fail_at;

static void *failing_alloc(size_t align, size_t size)
{
	if (++allocations == fail_at)
		return NULL;
	return cpc_hooks_default.alloc(align, size);
}

static void no_failed_allocation_leaks_or_crashes(void **state)
{
	struct cpc_check_options opts = {.data = true};
	struct cpc_check_result r;
	struct test_pool p;
	int ret = -ENOMEM;

	make(&p, &geometries[0]);
	cpc_hooks.alloc = failing_alloc;
	for (fail_at = 1; ret == -ENOMEM; fail_at++) {
		allocations = 0;
		ret = cpc_check(p.backing, &opts, &r);
	}
	assert_int_equal(ret, 0);
	assert_true(fail_at > 5);
	ret = -ENOMEM;
	for (fail_at = 1; ret == -ENOMEM; fail_at++) {
		allocations = 0;
		ret = cpc_dump(p.backing, "tree", "a", (void (*)(void *, const char *))note_line,
			       &(struct places){.p = &p});
	}
	cpc_hooks = cpc_hooks_default;
	test_pool_destroy(&p);
}

/* --- dump --- */

struct text {
	size_t lines;
	char all[1 << 16];
};

static void add_line(void *ctx, const char *line)
{
	struct text *t = ctx;

	t->lines++;
	strncat(t->all, line, sizeof(t->all) - strlen(t->all) - 1);
	strncat(t->all, "\n", sizeof(t->all) - strlen(t->all) - 1);
}

static void expect_dump(struct test_pool *p, const char *what, const char *arg, const char *part)
{
	struct text *t = calloc(1, sizeof(*t));

	assert_int_equal(cpc_dump(p->backing, what, arg, add_line, t), 0);
	if (!strstr(t->all, part))
		fail_msg("dump %s %s lacks \"%s\":\n%s", what, arg ? arg : "", part, t->all);
	free(t);
}

static void dump_prints_each_structure(void **state)
{
	struct test_pool p;
	char arg[32];

	make(&p, &geometries[0]);
	expect_dump(&p, "super", NULL, "(newest)");
	expect_dump(&p, "tree", "1", "volume 1 \"a\"");
	expect_dump(&p, "tree", "root", "volume 2 \"b\"");
	expect_dump(&p, "tree", "2", "transid");
	expect_dump(&p, "tree", "b", "birth");
	expect_dump(&p, "tree", "257", "birth");
	expect_dump(&p, "log", NULL, "no records");
	expect_dump(&p, "block", "0", "ring 0 slot 0");
	snprintf(arg, sizeof(arg), "%" PRIu64, p.store->super.root.bytenr[1]);
	expect_dump(&p, "block", arg, "owner 1");
	snprintf(arg, sizeof(arg), "%" PRIu64, cpc_geometry_home(&p.store->geo, 1, 0, 1));
	expect_dump(&p, "block", arg, "home 1 of group 0, copy 2");
	assert_int_equal(cpc_dump(p.backing, "tree", "nobody", note_line, NULL), -ENOENT);
	assert_int_equal(cpc_dump(p.backing, "block", "x", note_line, NULL), -EINVAL);
	assert_int_equal(cpc_dump(p.backing, "bock", "0", note_line, NULL), -EINVAL);
	test_pool_destroy(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(an_empty_pool_is_clean),
	    cmocka_unit_test(a_used_pool_is_clean_after_every_commit),
	    cmocka_unit_test(a_deleted_volume_is_clean_while_it_is_freed),
	    cmocka_unit_test(a_flipped_bit_in_any_node_copy_is_found),
	    cmocka_unit_test(every_byte_of_a_node_counts),
	    cmocka_unit_test(a_flipped_bit_in_data_is_found_with_the_data_option),
	    cmocka_unit_test(a_flipped_bit_in_either_copy_of_a_bitmap_is_found),
	    cmocka_unit_test(any_damaged_superblock_is_found),
	    cmocka_unit_test(a_lost_superblock_of_one_ring_is_found),
	    cmocka_unit_test(leaked_blocks_are_found_and_counted),
	    cmocka_unit_test(a_block_named_twice_is_found),
	    cmocka_unit_test(two_volumes_of_one_name_are_found),
	    cmocka_unit_test(a_mapping_beyond_the_end_is_found),
	    cmocka_unit_test(a_volume_id_that_was_never_given_out_is_found),
	    cmocka_unit_test(a_wrong_count_of_used_blocks_is_found),
	    cmocka_unit_test(a_superblock_over_an_old_state_is_found),
	    cmocka_unit_test(no_byte_of_a_root_leaf_makes_the_check_crash),
	    cmocka_unit_test(no_mutated_node_makes_check_or_dump_crash),
	    cmocka_unit_test(a_root_over_its_own_copy_is_found),
	    cmocka_unit_test(what_is_not_a_pool_is_refused),
	    cmocka_unit_test(no_read_error_ends_the_check),
	    cmocka_unit_test(no_failed_allocation_leaks_or_crashes),
	    cmocka_unit_test(dump_prints_each_structure),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
