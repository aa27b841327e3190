/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What one volume answers is what was written to it: at every alignment and size, through cache,
 * cut, commit and crash, with a device that fails, without memory and without room.
 */
#include "volume/test-rig.h"

#include <stdio.h>

/* --- sizes and alignments --- */

/* Lengths around the limits at which requests change their way. */
static void write_around(struct rig *r, uint64_t blocks)
{
	static const int64_t deltas[] = {-4097, -4096, -1, 0, 1, 4096};

	for (unsigned i = 0; i < CPC_ARRAY_SIZE(deltas); i++) {
		for (unsigned shift = 0; shift < 3; shift++) {
			static const uint64_t starts[] = {0, 1, 4095};
			uint64_t len = blocks * CPC_BLOCK_SIZE + (uint64_t)deltas[i];
			uint64_t room = r->volume_size - len - 8192;
			uint64_t at = cpc_align_down(rig_draw(r, room), 4096) + starts[shift];

			if ((int64_t)len <= 0 || len > r->volume_size)
				continue;
			rig_write(r, at, len);
			rig_compare(r, at ? at - 1 : 0, len + 2);
		}
	}
}

static void writes_at_the_limits_of_buffered_and_direct_are_read_back(void **state)
{
	static const uint64_t caches[] = {MIB, 4 * MIB, 32 * MIB};

	for (unsigned i = 0; i < CPC_ARRAY_SIZE(caches); i++) {
		struct rig r = {.cache = caches[i]};
		uint64_t limit;

		rig_make(&r);
		limit = r.vol->engine->dirty_limit / 8;
		for (unsigned round = 0; round < 3; round++) {
			write_around(&r, 1);
			write_around(&r, 2);
			write_around(&r, 64);
			write_around(&r, limit);
			write_around(&r, 256);
			write_around(&r, 600);
			rig_check_accounts(&r);
			rig_compare_all(&r);
			rig_flush(&r);
			rig_compare_all(&r);
		}
		rig_compare_extents(&r);
		rig_reopen(&r);
		rig_finish(&r);
	}
}

static void the_last_block_may_be_a_part_of_one(void **state)
{
	static const uint64_t sizes[] = {1, 100, 4095, 4096, 4097, 8191, 300001};

	for (unsigned i = 0; i < CPC_ARRAY_SIZE(sizes); i++) {
		struct rig r = {.volume_size = sizes[i]};
		uint8_t byte = 0;

		rig_make(&r);
		rig_compare_all(&r);
		rig_write(&r, sizes[i] - 1, 1);
		rig_compare_all(&r);
		rig_write(&r, 0, sizes[i]);
		rig_flush(&r);
		rig_compare_all(&r);
		rig_compare_extents(&r);
		rig_zero(&r, sizes[i] / 2, sizes[i] - sizes[i] / 2, 0);
		rig_compare_all(&r);
		rig_trim(&r, 0, sizes[i]);
		rig_compare_all(&r);
		assert_int_equal(cpc_volume_write(r.vol, &byte, 1, sizes[i], 0), -ENOSPC);
		assert_int_equal(cpc_volume_zero(r.vol, 1, sizes[i], 0), -ENOSPC);
		assert_int_equal(cpc_volume_read(r.vol, &byte, 1, sizes[i]), -EINVAL);
		assert_int_equal(cpc_volume_trim(r.vol, 1, sizes[i], 0), -EINVAL);
		assert_int_equal(cpc_volume_write(r.vol, &byte, UINT64_MAX, 1, 0), -ENOSPC);
		assert_int_equal(cpc_volume_read(r.vol, &byte, UINT64_MAX - 1, 2), -EINVAL);
		assert_int_equal(cpc_volume_write(r.vol, &byte, 0, sizes[i], 0), 0);
		rig_reopen(&r);
		rig_finish(&r);
	}
}

static void holes_of_every_alignment_are_zero_and_nothing_else_is(void **state)
{
	static const uint64_t starts[] = {0, 1, 511, 4095, 4096, 4097, 8191};
	static const uint64_t lens[] = {1, 4095, 4096, 4097, 8192, 12287, 70000, 300000};
	static const unsigned flags[] = {0, CPC_NO_HOLE, CPC_FAST_ZERO};
	struct rig r = {.volume_size = 400001};

	rig_make(&r);
	for (unsigned s = 0; s < CPC_ARRAY_SIZE(starts); s++) {
		for (unsigned l = 0; l < CPC_ARRAY_SIZE(lens); l++) {
			for (unsigned f = 0; f < 4; f++) {
				rig_write(&r, 0, r.volume_size);
				if (rig_draw(&r, 2))
					rig_flush(&r);
				if (f < 3)
					rig_zero(&r, starts[s], lens[l], flags[f]);
				else
					rig_trim(&r, starts[s], lens[l]);
				rig_compare_all(&r);
				rig_compare_extents(&r);
				rig_check_accounts(&r);
			}
		}
	}
	rig_zero(&r, 5, r.volume_size - 5, 0);
	rig_reopen(&r);
	assert_int_equal(cpc_volume_zero(r.vol, r.volume_size, 0, CPC_NO_HOLE | CPC_FAST_ZERO),
			 -EOPNOTSUPP);
	rig_finish(&r);
}

static int note_holes(void *ctx, uint64_t offset, uint64_t len, bool hole)
{
	*(uint64_t *)ctx += hole ? len : 0;
	return 0;
}

static uint64_t holes(struct rig *r)
{
	uint64_t sum = 0;

	assert_int_equal(cpc_volume_extents(r->vol, 0, r->volume_size, note_holes, &sum), 0);
	return sum;
}

static void no_hole_keeps_the_range_provisioned(void **state)
{
	struct rig r = {0};

	rig_make(&r);
	assert_int_equal(holes(&r), r.volume_size);
	rig_zero(&r, 0, r.volume_size, CPC_NO_HOLE);
	assert_int_equal(holes(&r), 0);
	rig_zero(&r, 0, r.volume_size, 0);
	assert_int_equal(holes(&r), r.volume_size);
	rig_write(&r, 10000, 1);
	assert_int_equal(holes(&r), r.volume_size - 4096);
	rig_flush(&r);
	assert_int_equal(holes(&r), r.volume_size - 4096);
	rig_compare_all(&r);
	rig_finish(&r);
}

static void more_pieces_than_fit_are_reported_in_part(void **state)
{
	struct rig r = {.volume_size = 16 * MIB};
	struct cpc_volume_info info;

	rig_make(&r);
	for (uint64_t at = 0; at < r.volume_size; at += 8192)
		rig_write(&r, at, 100);
	rig_compare_extents(&r);
	rig_flush(&r);
	rig_compare_extents(&r);
	assert_int_equal(cpc_pool_volume_info(r.pool, "v", &info), 0);
	assert_int_equal(info.used, r.volume_size / 2);
	rig_finish(&r);
}

static void eight_exbibytes_work_at_both_ends(void **state)
{
	struct rig r = {0};
	struct cpc_volume *vol;
	struct cpc_error err;
	uint64_t size, holes_seen = 0;
	char buf[4096] = {7}, back[4096];

	rig_make(&r);
	assert_int_equal(cpc_pool_create_volume(r.pool, "huge", 1ull << 63, &err), 0);
	assert_int_equal(cpc_pool_open_volume(r.pool, "huge", &vol), 0);
	size = cpc_volume_size(vol);
	for (unsigned shift = 0; shift < 63; shift += 3) {
		uint64_t at = shift ? (1ull << shift) - 1 : 0;

		assert_int_equal(cpc_volume_write(vol, buf, 4096, at, 0), 0);
		assert_int_equal(cpc_volume_read(vol, back, 4096, at), 0);
		assert_memory_equal(buf, back, 4096);
	}
	assert_int_equal(cpc_volume_write(vol, buf, 4096, size - 4096, CPC_FUA), 0);
	assert_int_equal(cpc_volume_read(vol, back, 4096, size - 4096), 0);
	assert_memory_equal(buf, back, 4096);
	assert_int_equal(cpc_volume_extents(vol, 0, size, note_holes, &holes_seen), 0);
	assert_true(holes_seen > size - MIB);
	assert_int_equal(cpc_volume_trim(vol, size, 0, 0), 0);
	assert_int_equal(cpc_volume_zero(vol, size - 3, 3, 0), 0);
	holes_seen = 0;
	assert_int_equal(cpc_volume_extents(vol, 0, size, note_holes, &holes_seen), 0);
	assert_true(holes_seen >= size - 8192);
	cpc_pool_close_volume(r.pool, vol);
	rig_finish(&r);
}

/* --- random --- */

static void random_request(struct rig *r)
{
	static const uint64_t lens[] = {512, 9000, 100000, 2000000};
	uint64_t at = rig_draw(r, r->volume_size);
	uint64_t len = cpc_min_u64(1 + rig_draw(r, lens[rig_draw(r, 4)]), r->volume_size - at);

	switch (rig_draw(r, 12)) {
	case 0:
		rig_trim(r, at, len);
		break;
	case 1:
		rig_zero(r, at, len, rig_draw(r, 2) ? CPC_NO_HOLE : 0);
		break;
	case 2:
		rig_flush(r);
		break;
	case 3:
		assert_int_equal(cpc_volume_cache(r->vol, len, at), 0);
		break;
	case 4:
	case 5:
		rig_compare(r, at, len);
		break;
	default:
		rig_write(r, at, len);
	}
}

static void any_sequence_of_requests_reads_back(void **state)
{
	static const uint64_t caches[] = {MIB, 16 * MIB};
	static const uint64_t dirties[] = {1, 100000, 0};

	for (unsigned i = 0; i < 6; i++) {
		struct rig r = {.cache = caches[i % 2], .dirty = dirties[i / 2]};

		rig_make(&r);
		r.rng = i + 1;
		for (unsigned n = 0; n < 400; n++) {
			random_request(&r);
			if (n % 50 == 49) {
				rig_check_accounts(&r);
				rig_compare_extents(&r);
			}
			if (n % 100 == 99)
				rig_reopen(&r);
		}
		rig_finish(&r);
	}
}

/* --- damage --- */

static int note_first(void *ctx, const struct cpc_mapping *m)
{
	*(uint64_t *)ctx = m->bytenr;
	return 1;
}

static uint64_t place_of(struct rig *r, uint64_t block)
{
	struct cpc_view *view = cpc_view_get(r->vol);
	uint64_t bytenr = 0;

	assert_int_equal(cpc_view_map(r->vol, view, block, 1, note_first, &bytenr), 1);
	cpc_view_put(r->vol, view);
	return bytenr;
}

static void a_large_write_is_kept_while_the_cache_is_empty(void **state)
{
	struct cpc_engine_stats before, after;
	struct rig r = {0};

	rig_make(&r);
	rig_write(&r, 4096, 70 * 4096);
	cpc_engine_get_stats(r.vol->engine, &before);
	rig_compare(&r, 4096, 70 * 4096);
	cpc_engine_get_stats(r.vol->engine, &after);
	assert_int_equal(after.cache_hits, before.cache_hits + 70);
	/* newer content takes its place, partly and whole */
	rig_write(&r, 5000, 100);
	rig_write(&r, 10 * 4096, 66 * 4096);
	rig_compare_all(&r);
	rig_reopen(&r);
	rig_finish(&r);
}

static void damage_is_an_error_for_that_block_only(void **state)
{
	struct rig r = {0};
	uint8_t before[4096];

	for (unsigned committed = 0; committed < 2; committed++) {
		memset(&r, 0, sizeof(r));
		rig_make(&r);
		rig_write(&r, 0, MIB);
		if (committed)
			rig_reopen(&r);
		cpc_powercut_flip(r.pc, place_of(&r, 100) + 7, 3);
		/* Nothing of it may be in memory. */
		if (committed) {
			rig_close(&r);
			rig_open(&r);
		} else {
			cpc_cache_remove(r.vol, 0, MIB / 4096, atomic_load(&r.vol->epoch));
		}
		assert_int_equal(cpc_volume_read(r.vol, r.back, 4096, 100 * 4096), -EUCLEAN);
		assert_int_equal(cpc_volume_read(r.vol, r.back, 3 * 4096, 99 * 4096), -EUCLEAN);
		assert_int_equal(cpc_volume_read(r.vol, r.back, MIB - 4196, 100), -EUCLEAN);
		rig_compare(&r, 99 * 4096, 4096);
		rig_compare(&r, 101 * 4096, 4096);
		/* a part of it cannot be written: what would the rest be? */
		assert_int_equal(cpc_volume_write(r.vol, r.buf, 10, 100 * 4096 + 5, 0), -EUCLEAN);
		assert_int_equal(cpc_volume_read(r.vol, before, 4096, 100 * 4096), -EUCLEAN);
		rig_write(&r, 100 * 4096, 4096);
		rig_compare_all(&r);
		rig_check_accounts(&r);
		rig_finish(&r);
	}
}

/* --- a device that fails --- */

static void a_failed_data_write_goes_elsewhere(void **state)
{
	struct cpc_powercut_fault fault = {
	    .op = CPC_POWERCUT_WRITE, .cause_mask = 1u << CPC_CAUSE_DATA, .error = -EIO};
	/* room for all of it: what a failed write used up is not reserved a second time */
	struct rig r = {.pool_size = 128 * MIB};

	rig_make(&r);
	for (unsigned i = 0; i < 40; i++) {
		fault.action = i % 2 ? CPC_FAULT_FAIL : CPC_FAULT_FAIL_TORN;
		fault.nth = 1 + i % 3;
		cpc_powercut_add_fault(r.pc, &fault);
		for (unsigned n = 0; n < 10; n++)
			rig_write(&r, rig_draw(&r, MIB), 1 + rig_draw(&r, 400000));
		rig_flush(&r);
		cpc_powercut_clear_faults(r.pc);
		rig_compare_all(&r);
		rig_check_accounts(&r);
	}
	rig_reopen(&r);
	/* the places of failed writes come back with the next opening */
	rig_finish(&r);
}

static void fail_data(struct rig *r)
{
	cpc_powercut_add_fault(r->pc, &(struct cpc_powercut_fault){
					  .op = CPC_POWERCUT_WRITE,
					  .cause_mask = 1u << CPC_CAUSE_DATA,
					  .nth = 1,
					  .sticky = true,
					  .error = -EIO,
				      });
}

static void a_cut_that_cannot_be_written_is_kept_and_resumed(void **state)
{
	struct rig r = {0};

	rig_make(&r);
	rig_write(&r, 0, 100000);
	rig_flush(&r);
	/* more than goes out together with its record */
	rig_write(&r, 50000, 200000);
	rig_write(&r, 400000, 200000);
	fail_data(&r);
	assert_int_equal(cpc_volume_flush(r.vol), -EIO);
	rig_compare_all(&r);
	rig_write(&r, 60000, 1000); /* newer than the cut */
	rig_write(&r, 300000, 1000);
	rig_compare_all(&r);
	rig_compare_extents(&r);
	/* a request that has to be written before it is answered says no and changes nothing */
	assert_int_equal(cpc_volume_write(r.vol, r.buf, 2 * MIB, 0, 0), -EIO);
	rig_compare_all(&r);
	rig_trim(&r, 70000, 20000);
	rig_compare_all(&r);
	cpc_powercut_clear_faults(r.pc);
	rig_flush(&r);
	rig_compare_all(&r);
	rig_check_accounts(&r);
	rig_reopen(&r);
	rig_finish(&r);
}

/* Its record has a number and names data that is nowhere: nothing can be written behind it. */
static void a_logged_cut_without_its_data_stops_the_pool(void **state)
{
	struct rig r = {0};

	rig_make(&r);
	rig_write(&r, 0, 100000);
	rig_flush(&r);
	rig_write(&r, 50000, 100000);
	fail_data(&r);
	assert_int_equal(cpc_volume_flush(r.vol), -EIO);
	cpc_powercut_clear_faults(r.pc);
	assert_false(cpc_pool_healthy(r.pool, NULL, 0));
	assert_int_equal(cpc_volume_flush(r.vol), -EIO);
	assert_int_equal(cpc_volume_write(r.vol, r.buf, 10, 0, 0), -EIO);
	rig_compare_all(&r);
	/* the next life stands at the flush, or at the cut if its data did land */
	rig_close(&r);
	rig_open(&r);
	rig_compare(&r, 0, 50000);
	assert_int_equal(cpc_volume_read(r.vol, r.ref + 50000, 100000, 50000), 0);
	rig_finish(&r);
}

static void a_logged_cut_whose_data_fails_once_finds_another_place(void **state)
{
	struct rig r = {0};

	rig_make(&r);
	rig_write(&r, 50000, 100000);
	cpc_powercut_add_fault(r.pc, &(struct cpc_powercut_fault){
					 .op = CPC_POWERCUT_WRITE,
					 .action = CPC_FAULT_FAIL_TORN,
					 .cause_mask = 1u << CPC_CAUSE_DATA,
					 .nth = 1,
					 .error = -EIO,
				     });
	rig_flush(&r);
	assert_true(cpc_pool_healthy(r.pool, NULL, 0));
	rig_compare_all(&r);
	rig_close(&r); /* without shutdown: as after kill -9 */
	rig_open(&r);
	rig_compare_all(&r);
	rig_finish(&r);
}

static void after_three_failed_commits_the_pool_can_be_read_only(void **state)
{
	struct cpc_pool_info info;
	struct rig r = {0};

	rig_make(&r);
	rig_write(&r, 0, 100000);
	rig_flush(&r);
	rig_write(&r, 0, 50000);
	fail_data(&r);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(cpc_volume_flush(r.vol), -EIO);
	cpc_powercut_clear_faults(r.pc);
	assert_false(cpc_pool_healthy(r.pool, NULL, 0));
	cpc_pool_info(r.pool, &info);
	assert_string_not_equal(info.health, "ok");
	assert_int_equal(cpc_volume_flush(r.vol), -EIO);
	assert_int_equal(cpc_volume_write(r.vol, r.buf, 1, 0, 0), -EIO);
	assert_int_equal(cpc_volume_write(r.vol, r.buf, MIB, 0, 0), -EIO);
	assert_int_equal(cpc_volume_trim(r.vol, 4096, 0, 0), -EIO);
	assert_int_equal(cpc_volume_zero(r.vol, 4096, 0, 0), -EIO);
	rig_compare_all(&r); /* what was answered is still read */
	rig_close(&r);
	rig_open(&r);
	rig_compare(&r, 50000, 50000); /* what was flushed is there */
	assert_int_equal(cpc_volume_read(r.vol, r.ref, 50000, 0), 0);
	rig_compare_all(&r);
	rig_finish(&r);
}

/* Of a commit whose cuts could not be written no superblock may come, whatever it would say. */
static void a_commit_without_room_on_the_device_writes_no_superblock(void **state)
{
	struct cpc_powercut_fault full = {.op = CPC_POWERCUT_WRITE,
					  .nth = 1,
					  .sticky = true,
					  .cause_mask = 1u << CPC_CAUSE_DATA,
					  .error = -ENOSPC};
	struct rig r = {0};
	const struct cpc_super *super;
	uint64_t transid;

	rig_make(&r);
	rig_write(&r, 0, 100000);
	super = &r.vol->engine->store->super;
	transid = super->transid;
	cpc_powercut_add_fault(r.pc, &full);
	assert_int_not_equal(cpc_pool_commit(r.pool), 0);
	assert_int_equal(super->transid, transid);
	cpc_powercut_clear_faults(r.pc);
	rig_compare_all(&r);
	rig_close(&r);
	rig_open(&r);
	assert_int_equal(cpc_volume_read(r.vol, r.ref, 100000, 0), 0);
	rig_finish(&r);
}

static void a_failed_read_is_an_error_and_passes(void **state)
{
	struct rig r = {0};

	rig_make(&r);
	rig_write(&r, 0, MIB);
	rig_reopen(&r);
	rig_close(&r);
	rig_open(&r);
	cpc_powercut_add_fault(r.pc, &(struct cpc_powercut_fault){
					 .op = CPC_POWERCUT_READ,
					 .nth = 1,
					 .sticky = true,
					 .bytenr = place_of(&r, 10),
					 .len = 4096,
					 .error = -EIO,
				     });
	assert_int_equal(cpc_volume_read(r.vol, r.back, 4096, 10 * 4096), -EIO);
	assert_int_equal(cpc_volume_write(r.vol, r.buf, 5, 10 * 4096, 0), -EIO);
	rig_compare(&r, 4 * MIB, 1000);
	assert_int_equal(cpc_volume_read(r.vol, r.back, MIB, 0), -EIO);
	cpc_powercut_clear_faults(r.pc);
	rig_compare_all(&r);
	rig_check_accounts(&r);
	rig_finish(&r);
}

static void a_large_read_survives_a_device_read_that_fails_once(void **state)
{
	struct rig r = {0};

	rig_make(&r);
	rig_write(&r, 0, 3 * MIB);
	rig_reopen(&r);
	for (uint64_t block = 1; block < 3 * MIB / 4096; block += 37) {
		rig_close(&r);
		rig_open(&r);
		cpc_powercut_add_fault(r.pc, &(struct cpc_powercut_fault){
						 .op = CPC_POWERCUT_READ,
						 .nth = 1,
						 .bytenr = place_of(&r, block),
						 .len = 4096,
						 .error = -EIO,
					     });
		rig_compare(&r, 777, 3 * MIB - 1000);
		rig_compare(&r, 3 * MIB - 1000, MIB); /* its end is a hole */
		cpc_powercut_clear_faults(r.pc);
	}
	rig_finish(&r);
}

/* --- a full pool --- */

/* Writes single blocks from `at` until there is no room. Return: where it ended. */
static uint64_t fill_up(struct rig *r, uint64_t at, uint64_t len)
{
	for (; at + len <= r->volume_size; at += len) {
		int ret;

		rig_fill(r, len);
		ret = cpc_volume_write(r->vol, r->buf, len, at, 0);
		if (ret) {
			assert_int_equal(ret, -ENOSPC);
			return at;
		}
		memcpy(r->ref + at, r->buf, len);
	}
	fail_msg("the pool is never full");
	return at;
}

static void a_full_pool_refuses_first_and_goes_on(void **state)
{
	static const uint64_t lens[] = {4096, 20000, MIB};

	for (unsigned i = 0; i < CPC_ARRAY_SIZE(lens); i++) {
		struct rig r = {.pool_size = 16 * MIB, .volume_size = 24 * MIB};
		uint64_t end, again;

		rig_make(&r);
		end = fill_up(&r, 0, lens[i]);
		assert_true(end > 8 * MIB);
		rig_compare_all(&r);
		rig_flush(&r);
		for (unsigned n = 0; n < 300; n++) {
			uint64_t len = 1 + rig_draw(&r, 60000);

			rig_write(&r, rig_draw(&r, end - len), len);
			if (n % 30 == 0)
				rig_flush(&r);
		}
		rig_compare_all(&r);
		rig_trim(&r, 0, end / 2);
		again = fill_up(&r, 0, lens[i]);
		assert_true(again > end / 2 - 3 * MIB);
		rig_compare_all(&r);
		rig_check_accounts(&r);
		rig_reopen(&r);
		rig_finish(&r);
	}
}

static void a_refused_write_does_not_cost_commits(void **state)
{
	struct rig r = {.pool_size = 16 * MIB, .volume_size = 24 * MIB};
	uint64_t commits;

	rig_make(&r);
	fill_up(&r, 0, 4096);
	rig_flush(&r);
	assert_int_equal(cpc_volume_write(r.vol, r.buf, 4096, 20 * MIB, 0), -ENOSPC);
	commits = atomic_load(&r.vol->engine->store->commits);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(cpc_volume_write(r.vol, r.buf, 4096, 20 * MIB, 0), -ENOSPC);
	assert_int_equal(atomic_load(&r.vol->engine->store->commits), commits);
	rig_finish(&r);
}

/* --- without memory --- */

enum request { WRITE_SMALL, WRITE_LARGE, TRIM, ZERO_EDGES, READ, FLUSH, EXTENTS, NR_REQUESTS };

static int note_nothing(void *ctx, uint64_t offset, uint64_t len, bool hole)
{
	return 0;
}

static int request(struct rig *r, enum request what)
{
	uint64_t at = 8192 + 5;

	switch (what) {
	case WRITE_SMALL:
		return cpc_volume_write(r->vol, r->buf, 50000, at, 0);
	case WRITE_LARGE:
		return cpc_volume_write(r->vol, r->buf, MIB + 5, at, 0);
	case TRIM:
		return cpc_volume_trim(r->vol, MIB, at, 0);
	case ZERO_EDGES:
		return cpc_volume_zero(r->vol, MIB, at, 0);
	case READ:
		return cpc_volume_read(r->vol, r->back, MIB, at);
	case FLUSH:
		return cpc_volume_flush(r->vol);
	default:
		return cpc_volume_extents(r->vol, 0, r->volume_size, note_nothing, NULL);
	}
}

/* The n-th allocation fails, for every n: the request fails or not, and nothing else happens. */
static void without_memory(enum request what)
{
	struct rig r = {0};
	int ret = -ENOMEM;

	rig_make(&r);
	cpc_hooks.alloc = rig_failing_alloc;
	for (unsigned n = 0; ret || n < 5; n++) {
		rig_write(&r, 0, 3 * MIB);
		for (unsigned i = 0; i < 20; i++)
			rig_write(&r, rig_draw(&r, 2 * MIB), 5000);
		if (n % 3 == 0)
			rig_flush(&r);
		rig_write(&r, 4096, 20000);
		rig_fill(&r, 2 * MIB);
		rig_allocs_left = n;
		ret = request(&r, what);
		rig_allocs_left = UINT32_MAX;
		assert_true(ret == 0 || ret == -ENOMEM);
		assert_true(cpc_pool_healthy(r.pool, NULL, 0));
		assert_int_equal(cpc_volume_read(r.vol, r.back, r.volume_size, 0), 0);
		if (what == READ || what == FLUSH || what == EXTENTS || ret)
			rig_compare_all(&r);
		else
			memcpy(r.ref, r.back, r.volume_size);
		rig_check_accounts(&r);
		assert_true(n < 3000);
	}
	rig_flush(&r);
	cpc_hooks = cpc_hooks_default;
	rig_reopen(&r);
	rig_finish(&r);
}

static void without_memory_requests_change_all_or_nothing(void **state)
{
	for (unsigned what = 0; what < NR_REQUESTS; what++)
		without_memory(what);
}

/* --- views --- */

struct old_block {
	uint64_t bytenr;
	uint32_t csum;
};

static int note_blocks(void *ctx, const struct cpc_mapping *m)
{
	struct old_block **next = ctx;

	for (uint64_t i = 0; m->bytenr && i < m->nr; i++)
		*(*next)++ = (struct old_block){m->bytenr + i * 4096, m->csums[i]};
	return 0;
}

static void a_held_view_keeps_its_blocks(void **state)
{
	static struct old_block blocks[1024];
	uint8_t data[4096] __attribute__((aligned(4096)));
	struct old_block *end = blocks;
	struct cpc_pool_info info;
	struct rig r = {.pool_size = 128 * MIB};
	struct cpc_view *view;

	rig_make(&r);
	rig_write(&r, 0, 2 * MIB);
	rig_flush(&r);
	for (unsigned i = 0; i < 100; i++)
		rig_write(&r, rig_draw(&r, 2 * MIB), 3000);
	rig_write(&r, MIB, 400000);
	assert_int_equal(cpc_write_out(r.vol->engine), 0);
	view = cpc_view_get(r.vol);
	assert_int_equal(cpc_view_map(r.vol, view, 0, 512, note_blocks, &end), 0);
	assert_int_equal(end - blocks, 512);
	for (unsigned i = 0; i < 60; i++) {
		rig_write(&r, rig_draw(&r, MIB), MIB);
		if (i % 3 == 0)
			assert_int_equal(cpc_pool_commit(r.pool), 0);
		if (i % 20 == 0)
			rig_trim(&r, 0, 3 * MIB);
	}
	assert_int_equal(cpc_pool_commit(r.pool), 0);
	end = blocks;
	assert_int_equal(cpc_view_map(r.vol, view, 0, 512, note_blocks, &end), 0);
	for (const struct old_block *b = blocks; b < end; b++) {
		cpc_powercut_peek(r.pc, b->bytenr, data, sizeof(data));
		assert_int_equal(cpc_csum(data, sizeof(data)), b->csum);
	}
	cpc_pool_info(r.pool, &info);
	assert_true(info.pinned >= 2 * MIB);
	cpc_view_put(r.vol, view);
	cpc_pool_info(r.pool, &info);
	assert_int_equal(info.pinned, 0);
	rig_finish(&r);
}

/* --- durable --- */

static void what_was_flushed_survives_a_crash_and_the_rest_is_whole(void **state)
{
	struct rig r = {0};
	uint8_t *flushed;

	rig_make(&r);
	flushed = calloc(1, r.volume_size);
	for (unsigned i = 0; i < 40; i++) {
		for (unsigned n = 0; n < 10; n++)
			random_request(&r);
		if (i % 2)
			rig_flush(&r);
		else
			assert_int_equal(cpc_volume_write(r.vol, r.buf, 10, 0, CPC_FUA), 0);
		if (i % 2 == 0)
			memcpy(r.ref, r.buf, 10);
		memcpy(flushed, r.ref, r.volume_size);
		rig_write(&r, rig_draw(&r, MIB), 1000);
		rig_close(&r);
		cpc_powercut_crash_random(r.pc, i);
		rig_open(&r);
		memcpy(r.ref, flushed, r.volume_size);
		rig_compare_all(&r);
	}
	free(flushed);
	rig_finish(&r);
}

static void a_flush_of_nothing_writes_nothing(void **state)
{
	struct rig r = {0};
	uint64_t writes;

	rig_make(&r);
	rig_write(&r, 0, 10000);
	rig_flush(&r);
	writes = cpc_powercut_count(r.pc, CPC_POWERCUT_WRITE);
	for (unsigned i = 0; i < 10; i++)
		rig_flush(&r);
	rig_trim(&r, MIB, MIB); /* of nothing */
	rig_zero(&r, MIB, MIB, 0);
	rig_flush(&r);
	assert_int_equal(cpc_powercut_count(r.pc, CPC_POWERCUT_WRITE), writes);
	rig_finish(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(writes_at_the_limits_of_buffered_and_direct_are_read_back),
	    cmocka_unit_test(the_last_block_may_be_a_part_of_one),
	    cmocka_unit_test(holes_of_every_alignment_are_zero_and_nothing_else_is),
	    cmocka_unit_test(no_hole_keeps_the_range_provisioned),
	    cmocka_unit_test(more_pieces_than_fit_are_reported_in_part),
	    cmocka_unit_test(eight_exbibytes_work_at_both_ends),
	    cmocka_unit_test(any_sequence_of_requests_reads_back),
	    cmocka_unit_test(a_large_write_is_kept_while_the_cache_is_empty),
	    cmocka_unit_test(damage_is_an_error_for_that_block_only),
	    cmocka_unit_test(a_failed_data_write_goes_elsewhere),
	    cmocka_unit_test(a_cut_that_cannot_be_written_is_kept_and_resumed),
	    cmocka_unit_test(a_logged_cut_without_its_data_stops_the_pool),
	    cmocka_unit_test(a_logged_cut_whose_data_fails_once_finds_another_place),
	    cmocka_unit_test(after_three_failed_commits_the_pool_can_be_read_only),
	    cmocka_unit_test(a_commit_without_room_on_the_device_writes_no_superblock),
	    cmocka_unit_test(a_failed_read_is_an_error_and_passes),
	    cmocka_unit_test(a_large_read_survives_a_device_read_that_fails_once),
	    cmocka_unit_test(a_full_pool_refuses_first_and_goes_on),
	    cmocka_unit_test(a_refused_write_does_not_cost_commits),
	    cmocka_unit_test(without_memory_requests_change_all_or_nothing),
	    cmocka_unit_test(a_held_view_keeps_its_blocks),
	    cmocka_unit_test(what_was_flushed_survives_a_crash_and_the_rest_is_whole),
	    cmocka_unit_test(a_flush_of_nothing_writes_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
