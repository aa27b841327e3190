/* SPDX-License-Identifier: BSD-3-Clause */
/* What replay accepts of a ring that a crash, or somebody, has damaged. */
#include "log/test-log-rig.h"

#include "lib/hooks.h"

/* --- what replay accepts --- */

static void records_of_another_life_are_not_the_log(void **state)
{
	struct log_replayed p;
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 5; i++)
		log_rig_log_holes(&f, 1);
	assert_int_equal(cpc_log_flush(f.log, 5), 0);
	log_rig_close_store(&f);
	/* the next life begins where this one did, and its numbers are the same */
	log_rig_start(&f, 0);
	log_rig_reopen_read_only(&f);
	log_rig_assert_replays_to(&f, 0);
	log_rig_close_store(&f);
	log_rig_start(&f, 0);
	log_rig_log_holes(&f, 1);
	assert_int_equal(cpc_log_flush(f.log, 1), 0);
	log_rig_crash(&f, CPC_FATE_LOST);
	assert_int_equal(log_rig_replay(&f, &p), 0);
	assert_int_equal(p.last_seq, 1);
	assert_int_equal(p.position, 4096);
	log_rig_destroy(&f);
}

static void replay_ends_at_the_first_gap(void **state)
{
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 5; i++)
		log_rig_log_holes(&f, 1);
	log_rig_crash(&f, CPC_FATE_KEPT);
	log_rig_assert_replays_to(&f, 5);
	log_rig_spoil(&f, 0, 2 * 4096);
	log_rig_spoil(&f, 1, 2 * 4096);
	log_rig_assert_replays_to(&f, 2);
	log_rig_destroy(&f);
}

static void one_good_copy_of_each_record_is_enough(void **state)
{
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 6; i++) {
		log_rig_log_holes(&f, i % 3 ? 1 : 200);
		assert_int_equal(cpc_log_flush(f.log, i + 1), 0);
	}
	log_rig_crash(&f, CPC_FATE_LOST);
	for (unsigned copy = 0; copy < 2; copy++) {
		static const uint64_t positions[] = {0, 8192, 12288, 16384, 24576, 28672};
		struct cpc_log_replay r;

		for (unsigned i = 0; i < 6; i++) {
			log_rig_spoil(&f, (copy + i) % 2, positions[i]);
			log_rig_assert_replays_to(&f, 6);
		}
		assert_int_equal(log_rig_scan(&f, &r), 0);
		for (unsigned i = 0; i < 6; i++) {
			assert_int_equal(r.found[i].position, positions[i]);
			assert_true(r.found[i].bad[(copy + i) % 2]);
			assert_false(r.found[i].bad[(copy + i + 1) % 2]);
			log_rig_spoil(&f, (copy + i) % 2, positions[i]); /* flips it back */
		}
		cpc_log_replay_destroy(&r);
	}
	log_rig_destroy(&f);
}

static void a_copy_that_cannot_be_read_is_a_bad_one(void **state)
{
	struct cpc_powercut_fault fault = {
	    .op = CPC_POWERCUT_READ, .nth = 1, .sticky = true, .len = 4096, .error = -EIO};
	struct cpc_log_replay r;
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 3; i++)
		log_rig_log_holes(&f, 1);
	assert_int_equal(cpc_log_flush(f.log, 3), 0);
	log_rig_crash(&f, CPC_FATE_LOST);
	for (unsigned i = 0; i < 8; i++) {
		/* the last place is behind the end */
		fault.bytenr = log_rig_device_of(&f, i % 2, i / 2 * 4096);
		cpc_powercut_add_fault(f.pc, &fault);
		log_rig_assert_replays_to(&f, 3);
		cpc_powercut_clear_faults(f.pc);
	}
	/* both: something had been there, and it may come back */
	for (unsigned i = 0; i < 2; i++) {
		fault.bytenr = log_rig_device_of(&f, i, 2 * 4096);
		cpc_powercut_add_fault(f.pc, &fault);
	}
	assert_int_equal(log_rig_scan(&f, &r), -EIO);
	log_rig_destroy(&f);
}

/* Where nothing verifies in either copy of record i. */
static int scan_without(struct log_rig *f, unsigned i, uint64_t *last)
{
	struct log_replayed p;
	int ret;

	log_rig_spoil(f, 0, i * 4096ull);
	log_rig_spoil(f, 1, i * 4096ull);
	ret = log_rig_replay(f, &p);
	*last = p.last_seq;
	log_rig_spoil(f, 0, i * 4096ull);
	log_rig_spoil(f, 1, i * 4096ull);
	return ret;
}

static void a_durable_record_that_is_gone_refuses_the_pool(void **state)
{
	struct log_rig f;
	uint64_t last;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 5; i++) {
		log_rig_log_holes(&f, 1);
		if (i < 4)
			assert_int_equal(cpc_log_flush(f.log, i + 1), 0);
	}
	log_rig_crash(&f, CPC_FATE_KEPT);
	/* record 5, which says that 4 was durable, stands behind each gap */
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(scan_without(&f, i, &last), -EUCLEAN);
	/* nobody says so of record 5 */
	assert_int_equal(scan_without(&f, 4, &last), 0);
	assert_int_equal(last, 4);
	log_rig_destroy(&f);
}

/* A gap of the longest record just before the ring's end, and the word of it just behind. */
static void what_says_so_is_found_behind_the_longest_gap(void **state)
{
	struct cpc_log_replay r;
	struct log_rig f;
	uint64_t seq;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 5; i++)
		log_rig_log_holes(&f, 509);
	for (unsigned i = 0; i < 5; i++)
		log_rig_log_holes(&f, 1);
	log_rig_commit_all(&f, &seq);
	/* 28 KiB are left: 16 KiB, then 12 KiB that are too few for the next */
	log_rig_log_holes(&f, 509);
	assert_int_equal(cpc_log_flush(f.log, seq + 1), 0);
	log_rig_log_holes(&f, 509);
	log_rig_crash(&f, CPC_FATE_KEPT);
	assert_int_equal(log_rig_scan(&f, &r), 0);
	assert_int_equal(r.nr, 2);
	assert_int_equal(r.found[1].position, SMALL_RING);
	log_rig_spoil(&f, 0, r.found[0].position);
	log_rig_spoil(&f, 1, r.found[0].position);
	cpc_log_replay_destroy(&r);
	assert_int_equal(log_rig_scan(&f, &r), -EUCLEAN);
	log_rig_destroy(&f);
}

static void half_a_batch_at_the_end_is_not_taken(void **state)
{
	struct log_replayed p;
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	log_rig_log_holes(&f, 1);
	log_rig_log_holes(&f, 1019); /* three records */
	log_rig_crash(&f, CPC_FATE_KEPT);
	log_rig_assert_replays_to(&f, 4);
	for (unsigned n = 3; n > 0; n--) {
		unsigned i = n - 1;

		/* the records stand at 4096, 20480 and 36864 */
		log_rig_spoil(&f, 0, 4096 + i * 16384ull);
		log_rig_spoil(&f, 1, 4096 + i * 16384ull);
		assert_int_equal(log_rig_replay(&f, &p), 0);
		assert_true(p.last_seq == 1 && p.runs == 1 && p.position == 4096);
	}
	log_rig_destroy(&f);
}

static void data_that_does_not_verify_ends_the_replay_before_its_cut(void **state)
{
	struct log_replayed p;
	struct log_rig f;
	uint64_t at[6];

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 6; i++)
		log_rig_log_block(&f, i == 5 ? 1 : i,
				  &at[i]); /* the last one replaces the second */
	log_rig_crash(&f, CPC_FATE_KEPT);
	/* not mapped any more: nobody needs it */
	cpc_powercut_flip(f.pc, at[1] << CPC_BLOCK_SHIFT, 0);
	log_rig_assert_replays_to(&f, 6);
	/* but without the last record it would be */
	cpc_powercut_flip(f.pc, at[5] << CPC_BLOCK_SHIFT, 0);
	assert_int_equal(log_rig_replay(&f, &p), 0);
	assert_int_equal(p.last_seq, 1);
	assert_true(p.at[0] == at[0] && !p.at[1] && !p.at[2]);
	cpc_powercut_flip(f.pc, at[1] << CPC_BLOCK_SHIFT, 0);
	log_rig_assert_replays_to(&f, 5);
	cpc_powercut_flip(f.pc, at[3] << CPC_BLOCK_SHIFT, 0);
	log_rig_assert_replays_to(&f, 3);
	log_rig_destroy(&f);
}

static void data_below_the_mark_is_not_looked_at(void **state)
{
	struct log_rig f;
	uint64_t at[4];

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(cpc_log_flush(f.log, log_rig_log_block(&f, i, &at[i])), 0);
	log_rig_crash(&f, CPC_FATE_LOST);
	for (unsigned i = 0; i < 3; i++)
		cpc_powercut_flip(f.pc, at[i] << CPC_BLOCK_SHIFT, 0);
	log_rig_assert_replays_to(&f, 4);
	/* the newest has no mark yet: its rot is a torn write */
	cpc_powercut_flip(f.pc, at[3] << CPC_BLOCK_SHIFT, 0);
	log_rig_assert_replays_to(&f, 3);
	log_rig_destroy(&f);
}

static void a_deleted_or_shrunk_volume_needs_no_data(void **state)
{
	struct cpc_log_batch b;
	struct log_rig f;
	uint64_t at[2];

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	log_rig_log_block(&f, 3, &at[0]);
	log_rig_log_block(&f, 7, &at[1]);
	for (unsigned i = 0; i < 2; i++) {
		cpc_log_batch_init(&b, f.log);
		if (i == 0)
			cpc_log_batch_name(&b, CPC_LOG_RESIZE, 1, 5 * 4096, NULL, 0);
		else
			cpc_log_batch_name(&b, CPC_LOG_DELETE, 1, 0, NULL, 0);
		assert_int_equal(cpc_log_batch_end(&b), 0);
		assert_int_equal(cpc_log_add(f.log, &b), 0);
		cpc_log_batch_destroy(&b);
	}
	log_rig_crash(&f, CPC_FATE_KEPT);
	cpc_powercut_flip(f.pc, at[1] << CPC_BLOCK_SHIFT, 0);
	log_rig_assert_replays_to(&f, 4);
	/* the delete goes, the resize stays */
	log_rig_spoil(&f, 0, 3 * 4096);
	log_rig_spoil(&f, 1, 3 * 4096);
	log_rig_assert_replays_to(&f, 3);
	cpc_powercut_flip(f.pc, at[0] << CPC_BLOCK_SHIFT, 0);
	log_rig_assert_replays_to(&f, 0);
	log_rig_destroy(&f);
}

static void a_record_that_names_a_lost_superblock_refuses_the_pool(void **state)
{
	static const uint64_t positions[] = {0, 4096, 2 * 4096, 3 * 4096, 5 * 4096};
	struct cpc_log_replay r;
	struct log_rig f;

	for (unsigned i = 0; i < CPC_ARRAY_SIZE(positions); i++) {
		struct cpc_disk_log_record *record;
		uint8_t *buf;

		log_rig_make(&f, POOL_SIZE, SMALL_RING);
		for (unsigned k = 0; k < 3; k++)
			log_rig_log_holes(&f, 1);
		assert_int_equal(cpc_log_flush(f.log, 3), 0);
		log_rig_crash(&f, CPC_FATE_LOST);
		buf = log_rig_peek_record(&f, 0, 4096);
		record = (void *)buf;
		cpc_put_le64(&record->transid, f.store->super.transid + 1);
		cpc_put_le64(&record->nonce, 12345);
		log_rig_poke_record(&f, 1 + i % 2, positions[i], buf, 4096);
		assert_int_equal(log_rig_scan(&f, &r), -EUCLEAN);
		/* another pool's says nothing */
		record->uuid[3] ^= 1;
		log_rig_poke_record(&f, 1 + i % 2, positions[i], buf, 4096);
		log_rig_assert_replays_to(&f, 3);
		cpc_free(buf);
		log_rig_destroy(&f);
	}
}

static void named_blocks_are_claimed_before_anything_is_allocated(void **state)
{
	struct cpc_log_replay r;
	struct log_rig f;
	uint64_t at[3], block;
	uint32_t got;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 3; i++)
		log_rig_log_block(&f, 1, &at[i]);
	assert_int_equal(cpc_log_flush(f.log, 3), 0);
	log_rig_close_store(&f);
	log_rig_open_store(&f, false);
	assert_int_equal(log_rig_scan(&f, &r), 0);
	assert_int_equal(cpc_log_claim(&r), 0);
	while (!cpc_space_alloc(f.store->space, CPC_SPACE_DATA, 256, 1, &block, &got)) {
		for (unsigned i = 0; i < 3; i++)
			assert_true(at[i] < block || at[i] >= block + got);
	}
	assert_int_equal(cpc_log_claim(&r), -EUCLEAN); /* nobody else may have them */
	cpc_log_replay_destroy(&r);
	log_rig_destroy(&f);
}

static void data_above_the_mark_moves_and_replay_says_where(void **state)
{
	struct cpc_log_replay r;
	struct cpc_log_handler h = {log_rig_on_run, log_rig_on_name, log_rig_on_batch, NULL};
	struct log_replayed p;
	uint8_t *data = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);
	uint8_t *expected = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);
	struct log_rig f;
	uint64_t at[12];

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 12; i++) {
		if (i % 3 == 0)
			f.next_data += 5;
		log_rig_log_block(&f, i, &at[i]);
		if (i == 4)
			assert_int_equal(cpc_log_flush(f.log, 5), 0);
	}
	log_rig_close_store(&f);
	log_rig_open_store(&f, false);
	assert_int_equal(log_rig_scan(&f, &r), 0);
	assert_int_equal(cpc_log_claim(&r), 0);
	assert_int_equal(cpc_log_move_data(&r, false), 0);
	memset(&p, 0, sizeof(p));
	h.ctx = &p;
	assert_int_equal(cpc_log_replay_run(&r, &h), 0);
	for (unsigned i = 0; i < 12; i++) {
		assert_true(i < 5 ? p.at[i] == at[i] : p.at[i] != at[i]);
		log_rig_fill(at[i], expected);
		cpc_powercut_peek(f.pc, p.at[i] << CPC_BLOCK_SHIFT, data, CPC_BLOCK_SIZE);
		assert_memory_equal(data, expected, CPC_BLOCK_SIZE);
		cpc_powercut_peek(f.pc, at[i] << CPC_BLOCK_SHIFT, data, CPC_BLOCK_SIZE);
		assert_memory_equal(data, expected, CPC_BLOCK_SIZE);
	}
	cpc_log_replay_destroy(&r);
	cpc_free(data);
	cpc_free(expected);
	log_rig_destroy(&f);
}

static void a_chain_may_fill_the_ring_to_its_last_byte(void **state)
{
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < SMALL_RING / CPC_BLOCK_SIZE; i++)
		log_rig_log_holes(&f, 1);
	log_rig_crash(&f, CPC_FATE_KEPT);
	log_rig_assert_replays_to(&f, SMALL_RING / CPC_BLOCK_SIZE);
	log_rig_destroy(&f);
}

/* More places than the first list of moves has room for, or none at all in the pool. */
static void data_in_many_places_moves_or_is_written_again_where_it_is(void **state)
{
	for (unsigned full = 0; full < 2; full++) {
		struct cpc_log_replay r;
		uint64_t at, to;
		struct log_rig f;
		uint32_t got;

		log_rig_make(&f, POOL_SIZE, 8 * SMALL_RING);
		for (unsigned i = 0; i < 200; i++) {
			log_rig_log_block(&f, i, &at);
			f.next_data++;
		}
		log_rig_close_store(&f);
		log_rig_open_store(&f, false);
		assert_int_equal(log_rig_scan(&f, &r), 0);
		assert_int_equal(cpc_log_claim(&r), 0);
		while (full && !cpc_space_alloc(f.store->space, CPC_SPACE_DATA, 64, 1, &to, &got))
			;
		assert_int_equal(cpc_log_move_data(&r, false), 0);
		assert_int_equal(r.nr_moves, full ? 0 : 200);
		for (size_t i = 0; i < r.nr_moves; i++)
			assert_true(!i || r.move[i].from > r.move[i - 1].from);
		cpc_log_replay_destroy(&r);
		log_rig_destroy(&f);
	}
}

static void a_record_of_many_volumes_comes_back_in_its_order(void **state)
{
	struct log_replayed p;
	struct cpc_log_batch b;
	struct log_rig f;
	uint64_t at;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	cpc_log_batch_init(&b, f.log);
	for (unsigned i = 0; i < 50; i++) {
		log_rig_write_block(&f, at = f.next_data++);
		log_rig_add_run(&b, 1 + i % 25, i, 1, at);
	}
	assert_int_equal(cpc_log_batch_end(&b), 0);
	assert_int_equal(b.nr_pieces, 1);
	assert_int_equal(cpc_log_add(f.log, &b), 0);
	cpc_log_batch_destroy(&b);
	log_rig_crash(&f, CPC_FATE_KEPT);
	assert_int_equal(log_rig_replay(&f, &p), 0);
	assert_true(p.runs == 50 && p.last_seq == 1);
	assert_int_equal(p.at[25], at - 24);
	log_rig_destroy(&f);
}

static void data_that_cannot_be_copied_fails_the_opening(void **state)
{
	static const enum cpc_powercut_op ops[] = {CPC_POWERCUT_READ, CPC_POWERCUT_WRITE};
	struct cpc_log_replay r;
	struct log_rig f;
	uint64_t at;

	for (unsigned i = 0; i < 2; i++) {
		log_rig_make(&f, POOL_SIZE, SMALL_RING);
		for (unsigned k = 0; k < 5; k++)
			log_rig_log_block(&f, 2 * k, &at);
		log_rig_close_store(&f);
		log_rig_open_store(&f, false);
		assert_int_equal(log_rig_scan(&f, &r), 0);
		assert_int_equal(cpc_log_claim(&r), 0);
		cpc_powercut_fail(f.pc, ops[i], 1, true, -EIO);
		assert_int_equal(cpc_log_move_data(&r, false), -EIO);
		cpc_powercut_clear_faults(f.pc);
		cpc_log_replay_destroy(&r);
		log_rig_destroy(&f);
	}
}

/* --- records made to harm --- */

/* A record with an entry of each kind. */
static void log_all_kinds(struct log_rig *f)
{
	struct cpc_volume_item item = {.id = 2, .size = MIB, .name = "volume"};
	uint8_t value[CPC_VOLUME_VALUE_MAX];
	struct cpc_log_batch b;
	uint64_t at = f->next_data;

	for (unsigned i = 0; i < 3; i++)
		log_rig_write_block(f, f->next_data++);
	cpc_log_batch_init(&b, f->log);
	log_rig_add_run(&b, 1, 5, 3, at);
	log_rig_add_run(&b, 1, 9, 2, 0);
	cpc_log_batch_name(&b, CPC_LOG_CREATE, 2, 0, value,
			   cpc_volume_item_encode(&item, 0, value));
	cpc_log_batch_name(&b, CPC_LOG_RENAME, 2, 0, "name", 4);
	cpc_log_batch_name(&b, CPC_LOG_RESIZE, 2, 4096, NULL, 0);
	cpc_log_batch_name(&b, CPC_LOG_DELETE, 2, 0, NULL, 0);
	assert_int_equal(cpc_log_batch_end(&b), 0);
	assert_int_equal(cpc_log_add(f->log, &b), 0);
	assert_int_equal(cpc_log_flush(f->log, b.last_seq), 0);
	cpc_log_batch_destroy(&b);
}

/* Whatever it says, it is read to its end or refused, and nothing is written. */
static void try_record(struct log_rig *f, uint8_t *buf)
{
	uint64_t writes = cpc_powercut_count(f->pc, CPC_POWERCUT_WRITE);
	struct cpc_log_replay r;
	struct log_replayed p;
	struct cpc_log_handler h = {log_rig_on_run, log_rig_on_name, log_rig_on_batch, &p};

	memset(&p, 0, sizeof(p));
	log_rig_poke_record(f, 3, 4096, buf, 4096);
	if (!log_rig_scan(f, &r)) {
		if (!cpc_log_claim(&r))
			cpc_log_replay_run(&r, &h);
		cpc_log_replay_destroy(&r);
	}
	assert_int_equal(cpc_powercut_count(f->pc, CPC_POWERCUT_WRITE), writes);
	log_rig_reopen_read_only(f);
}

static void records_made_to_harm_do_none(void **state)
{
	static const uint8_t masks[] = {0x01, 0x80, 0xff};
	struct log_rig f;
	uint8_t *good, *buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	log_rig_log_holes(&f, 1);
	log_all_kinds(&f);
	log_rig_log_holes(&f, 1);
	log_rig_crash(&f, CPC_FATE_KEPT);
	good = log_rig_peek_record(&f, 4096, 4096);
	for (unsigned at = 0; at < 560; at++) {
		for (unsigned i = 0; i < CPC_ARRAY_SIZE(masks); i++) {
			memcpy(buf, good, CPC_BLOCK_SIZE);
			buf[at] ^= masks[i];
			try_record(&f, buf);
		}
	}
	for (unsigned i = 0; i < 3000; i++) {
		memcpy(buf, good, CPC_BLOCK_SIZE);
		for (unsigned k = 0; k < 1 + log_rig_draw(4); k++)
			buf[24 + log_rig_draw(540)] = (uint8_t)log_rig_draw(256);
		try_record(&f, buf);
	}
	log_rig_poke_record(&f, 3, 4096, good, 4096);
	log_rig_assert_replays_to(&f, 3);
	cpc_free(good);
	cpc_free(buf);
	log_rig_destroy(&f);
}

/* Some claims of a record are not even true of itself. */
static void records_that_end_elsewhere_than_they_say_are_none(void **state)
{
	struct cpc_disk_log_record *record;
	struct cpc_disk_log_entry *e;
	struct log_rig f;
	uint8_t *buf;

	for (unsigned i = 0; i < 3; i++) {
		uint64_t place = i ? 0 : SMALL_RING - CPC_BLOCK_SIZE;

		log_rig_make(&f, POOL_SIZE, SMALL_RING);
		log_rig_close_store(&f);
		log_rig_start(&f, place);
		log_rig_log_holes(&f, 125); /* to the last byte */
		log_rig_crash(&f, CPC_FATE_KEPT);
		log_rig_assert_replays_to(&f, 1);
		buf = log_rig_peek_record(&f, place, 2 * CPC_BLOCK_SIZE);
		record = (void *)buf;
		e = (void *)(record + 1);
		if (i == 0) /* over the end of the ring, with a checksum of what stands there */
			cpc_put_le32(&record->length, 2 * CPC_BLOCK_SIZE);
		else if (i == 1)
			cpc_put_le32(&record->nr_entries, 126);
		else
			cpc_put_le64(&e->nr_blocks, 0);
		log_rig_poke_record(&f, 1, place, buf, cpc_get_le32(&record->length));
		log_rig_spoil(&f, 1, place);
		log_rig_assert_replays_to(&f, 0);
		cpc_free(buf);
		log_rig_destroy(&f);
	}
}

static void a_ring_full_of_noise_is_an_empty_log(void **state)
{
	uint8_t *buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	log_rig_crash(&f, CPC_FATE_KEPT);
	for (unsigned i = 0; i < 2 * SMALL_RING / CPC_BLOCK_SIZE; i++) {
		for (unsigned k = 0; k < CPC_BLOCK_SIZE; k++)
			buf[k] = (uint8_t)log_rig_draw(256);
		cpc_powercut_poke(f.pc, log_rig_device_of(&f, i % 2, i / 2 * CPC_BLOCK_SIZE), buf,
				  CPC_BLOCK_SIZE);
	}
	log_rig_assert_replays_to(&f, 0);
	cpc_free(buf);
	log_rig_destroy(&f);
}

/* --- memory --- */

static _Atomic unsigned allocs_left = UINT32_MAX;

static void *failing_alloc(size_t align, size_t size)
{
	if (allocs_left == 0)
		return NULL;
	if (allocs_left != UINT32_MAX)
		allocs_left--;
	return cpc_hooks_default.alloc(align, size);
}

static void without_memory_a_batch_or_a_replay_fails_and_can_be_repeated(void **state)
{
	struct cpc_log_handler h = {log_rig_on_run, log_rig_on_name, log_rig_on_batch, NULL};
	struct cpc_log_replay r;
	struct log_replayed p;
	struct log_rig f;
	int ret = -ENOMEM;
	const char *why;
	uint64_t at;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 28; i++)
		log_rig_log_block(&f, i, &at);
	log_rig_crash(&f, CPC_FATE_KEPT);
	cpc_hooks.alloc = failing_alloc;
	h.ctx = &p;
	for (unsigned n = 0; ret; n++) {
		memset(&p, 0, sizeof(p));
		allocs_left = n;
		ret = cpc_log_scan(f.store, &r, &why);
		if (!ret) {
			ret = cpc_log_replay_run(&r, &h);
			cpc_log_replay_destroy(&r);
		}
		assert_true(!ret || ret == -ENOMEM);
	}
	allocs_left = UINT32_MAX;
	assert_int_equal(p.last_seq, 28);
	cpc_hooks.alloc = cpc_hooks_default.alloc;
	log_rig_destroy(&f);
}

/* Scans, claims and moves in a store of its own. */
static int move_all(struct log_rig *f, unsigned allocs)
{
	struct log_replayed p = {.runs = 0};
	struct cpc_log_handler h = {log_rig_on_run, log_rig_on_name, log_rig_on_batch, &p};
	struct cpc_log_replay r;
	uint64_t moved = 0;
	int ret;

	log_rig_close_store(f);
	log_rig_open_store(f, false);
	allocs_left = allocs;
	ret = log_rig_scan(f, &r);
	if (!ret) {
		ret = cpc_log_claim(&r);
		if (!ret)
			ret = cpc_log_move_data(&r, false);
		if (!ret)
			ret = cpc_log_replay_run(&r, &h);
		for (size_t i = 0; i < r.nr_moves; i++)
			moved += r.move[i].nr;
		cpc_log_replay_destroy(&r);
	}
	allocs_left = UINT32_MAX;
	assert_true(ret || (moved == 4 && p.last_seq == 2 && p.names == 4));
	return ret;
}

static void without_memory_a_move_fails_and_can_be_repeated(void **state)
{
	int ret = -ENOMEM;
	struct log_rig f;
	uint64_t at;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	log_rig_log_block(&f, 400, &at);
	log_all_kinds(&f);
	cpc_hooks.alloc = failing_alloc;
	for (unsigned n = 0; ret; n++) {
		ret = move_all(&f, n);
		assert_true(!ret || ret == -ENOMEM);
	}
	cpc_hooks.alloc = cpc_hooks_default.alloc;
	log_rig_destroy(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(records_of_another_life_are_not_the_log),
	    cmocka_unit_test(replay_ends_at_the_first_gap),
	    cmocka_unit_test(one_good_copy_of_each_record_is_enough),
	    cmocka_unit_test(a_copy_that_cannot_be_read_is_a_bad_one),
	    cmocka_unit_test(a_durable_record_that_is_gone_refuses_the_pool),
	    cmocka_unit_test(what_says_so_is_found_behind_the_longest_gap),
	    cmocka_unit_test(half_a_batch_at_the_end_is_not_taken),
	    cmocka_unit_test(data_that_does_not_verify_ends_the_replay_before_its_cut),
	    cmocka_unit_test(data_below_the_mark_is_not_looked_at),
	    cmocka_unit_test(a_deleted_or_shrunk_volume_needs_no_data),
	    cmocka_unit_test(a_record_that_names_a_lost_superblock_refuses_the_pool),
	    cmocka_unit_test(named_blocks_are_claimed_before_anything_is_allocated),
	    cmocka_unit_test(data_above_the_mark_moves_and_replay_says_where),
	    cmocka_unit_test(a_chain_may_fill_the_ring_to_its_last_byte),
	    cmocka_unit_test(data_in_many_places_moves_or_is_written_again_where_it_is),
	    cmocka_unit_test(a_record_of_many_volumes_comes_back_in_its_order),
	    cmocka_unit_test(data_that_cannot_be_copied_fails_the_opening),
	    cmocka_unit_test(records_made_to_harm_do_none),
	    cmocka_unit_test(records_that_end_elsewhere_than_they_say_are_none),
	    cmocka_unit_test(a_ring_full_of_noise_is_an_empty_log),
	    cmocka_unit_test(without_memory_a_batch_or_a_replay_fails_and_can_be_repeated),
	    cmocka_unit_test(without_memory_a_move_fails_and_can_be_repeated),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
