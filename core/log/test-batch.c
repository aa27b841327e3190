/* SPDX-License-Identifier: BSD-3-Clause */
/* What a batch holds: packing, room, numbers, and no memory for it. */
#include "log/test-log-rig.h"

#include "lib/hooks.h"

static uint32_t count_entries(const struct cpc_log_batch *b, size_t start, size_t len)
{
	const struct cpc_disk_log_record *record = (const void *)(b->buf + start);
	uint32_t nr = cpc_get_le32(&record->nr_entries);
	size_t at = sizeof(*record);

	assert_int_equal(cpc_get_le32(&record->length), len);
	for (uint32_t i = 0; i < nr; i++) {
		const struct cpc_disk_log_entry *e = (const void *)(b->buf + start + at);

		at += cpc_get_le16(&e->size);
		assert_true(at <= len);
	}
	for (; at < len; at++)
		assert_int_equal(b->buf[start + at], 0);
	return nr;
}

static void entries_are_packed_into_whole_blocks(void **state)
{
	static const struct {
		unsigned holes, pieces;
		size_t len;
	} cases[] = {
	    {1, 1, 4096},     {124, 1, 4096},	  {125, 1, 4096},  {126, 1, 8192},
	    {508, 1, 16384},  {509, 1, 16384},	  {510, 2, 20480}, {1018, 2, 32768},
	    {1019, 3, 36864}, {5090, 10, 163840},
	};
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	assert_int_equal(f.log->max_record, 16384);
	for (unsigned i = 0; i < CPC_ARRAY_SIZE(cases); i++) {
		struct cpc_log_batch b;
		unsigned nr = 0;

		log_rig_holes(&f, &b, cases[i].holes);
		assert_int_equal(b.nr_pieces, cases[i].pieces);
		assert_int_equal(b.len, cases[i].len);
		for (unsigned k = 0; k < b.nr_pieces; k++) {
			assert_true(b.piece[k].len <= f.log->max_record);
			assert_int_equal(b.piece[k].len % CPC_BLOCK_SIZE, 0);
			nr += count_entries(&b, b.piece[k].start, b.piece[k].len);
		}
		assert_int_equal(nr, cases[i].holes);
		cpc_log_batch_destroy(&b);
	}
	log_rig_destroy(&f);
}

static void a_batch_without_entries_is_no_record(void **state)
{
	struct cpc_log_batch b;
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	cpc_log_batch_init(&b, f.log);
	assert_int_equal(cpc_log_batch_end(&b), 0);
	assert_int_equal(b.nr_pieces, 0);
	cpc_log_batch_destroy(&b);
	log_rig_destroy(&f);
}

/* Whatever a cut holds, what its changes have reserved is enough. */
static void what_changes_reserve_is_enough_for_their_records(void **state)
{
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned round = 0; round < 60; round++) {
		unsigned nr = 1 + (unsigned)log_rig_draw(900),
			 max = 1 + (unsigned)log_rig_draw(300);
		uint64_t room = CPC_LOG_BATCH_BYTES, at = f.next_data, block = 0;
		struct cpc_log_batch b;

		cpc_log_batch_init(&b, f.log);
		for (unsigned done = 0, part; done < nr; done += part) {
			part = (unsigned)cpc_min_u64(nr - done, 1 + log_rig_draw(max));
			log_rig_add_run(&b, 1, block, part, at + 100);
			block += part + 1;
		}
		room += (uint64_t)nr * CPC_LOG_BLOCK_BYTES;
		assert_int_equal(cpc_log_batch_end(&b), 0);
		assert_true(b.len <= room);
		cpc_log_batch_destroy(&b);
	}
	log_rig_destroy(&f);
}

static _Atomic unsigned allocs_left;

static void *failing_alloc(size_t align, size_t size)
{
	/* one only: what follows must remember it */
	return allocs_left-- == 0 ? NULL : cpc_hooks_default.alloc(align, size);
}

/* Entries of every kind, enough for several records. */
static int build_long_batch(struct log_rig *f, struct cpc_log_batch *b, struct cpc_run *run)
{
	cpc_log_batch_init(b, f->log);
	for (unsigned i = 0; i < 1200; i++) {
		cpc_log_batch_run(b, 1, run);
		if (i % 100 == 0)
			cpc_log_batch_name(b, CPC_LOG_RENAME, 2, 0, "name", 4);
	}
	return cpc_log_batch_end(b);
}

static void without_memory_a_batch_says_so_and_takes_no_number(void **state)
{
	struct cpc_run_builder builder;
	struct cpc_log_batch b;
	struct cpc_run *run;
	int ret = -ENOMEM;
	struct log_rig f;
	unsigned n = 0;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	cpc_run_builder_init(&builder, 1, 1);
	cpc_run_builder_hole(&builder, 3, 1);
	assert_int_equal(cpc_run_builder_finish(&builder, &run), 0);
	cpc_hooks.alloc = failing_alloc;
	for (; ret; n++) {
		allocs_left = n;
		ret = build_long_batch(&f, &b, run);
		assert_true(ret == 0 || ret == -ENOMEM);
		if (ret)
			cpc_log_batch_destroy(&b);
	}
	cpc_hooks.alloc = cpc_hooks_default.alloc;
	assert_true(n > 5);
	assert_true(b.total_entries == 1212 && b.nr_pieces > 1);
	assert_int_equal(cpc_log_add(f.log, &b), 0);
	assert_int_equal(b.first_seq, 1);
	cpc_log_batch_destroy(&b);
	cpc_run_put(run);
	log_rig_destroy(&f);
}

static void only_a_batch_of_the_same_shape_takes_the_numbers_of_another(void **state)
{
	static const struct {
		unsigned holes;
		int result;
	} cases[] = {{509, -EUCLEAN}, {700, -EUCLEAN}, {511, 0}};
	struct cpc_log_batch first, b;
	struct log_rig f;

	log_rig_make(&f, POOL_SIZE, SMALL_RING);
	log_rig_holes(&f, &first, 510); /* two records */
	assert_int_equal(cpc_log_append(f.log, &first), 0);
	for (unsigned i = 0; i < CPC_ARRAY_SIZE(cases); i++) {
		log_rig_holes(&f, &b, cases[i].holes);
		assert_int_equal(cpc_log_batch_renumber(&b, &first), cases[i].result);
		if (!cases[i].result) {
			assert_int_equal(cpc_log_write(f.log, &b), 0);
			cpc_log_complete(f.log, &b, 0);
			assert_int_equal(cpc_log_flush(f.log, 2), 0);
		}
		cpc_log_batch_destroy(&b);
	}
	cpc_log_batch_destroy(&first);
	log_rig_crash(&f, CPC_FATE_LOST);
	log_rig_assert_replays_to(&f, 2);
	log_rig_destroy(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(entries_are_packed_into_whole_blocks),
	    cmocka_unit_test(a_batch_without_entries_is_no_record),
	    cmocka_unit_test(what_changes_reserve_is_enough_for_their_records),
	    cmocka_unit_test(without_memory_a_batch_says_so_and_takes_no_number),
	    cmocka_unit_test(only_a_batch_of_the_same_shape_takes_the_numbers_of_another),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
