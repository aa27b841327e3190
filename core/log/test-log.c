/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The log by itself, over a store on a power-cut device: packing, order, flushes, room, marks, and
 * what replay accepts of a ring that somebody has damaged.
 *
 * Data of a test stands in blocks that nothing else uses; block b of the pool holds what
 * fill(b) says, so that a checksum needs no table.
 */
#include "log/log-internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>

#include "backing/powercut.h"
#include "lib/hooks.h"
#include "lib/log.h"

#define MIB	   (1024u * 1024u)
#define POOL_SIZE  (8 * MIB)
#define SMALL_RING (128u << 10)
#define THREADS	   8u

struct fixture {
	struct cpc_powercut *pc;
	struct cpc_backing *backing;
	struct cpc_store *store;
	struct cpc_log *log;
	uint64_t next_data; /* block of the pool */
};

static _Atomic uint64_t fake_ns = 1;

static uint64_t fake_clock(void)
{
	return fake_ns;
}

static void no_message(enum cpc_log_level level, const char *line)
{
}

static uint64_t rng = 1;

static uint64_t draw(uint64_t below)
{
	rng = rng * 6364136223846793005ull + 1442695040888963407ull;
	return (rng >> 20) % below;
}

/* --- a pool with a log --- */

static void open_store(struct fixture *f, bool read_only)
{
	const char *why;

	assert_int_equal(cpc_powercut_reopen(f->pc, &f->backing), 0);
	assert_int_equal(cpc_store_open(f->backing, read_only, MIB, NULL, NULL, &f->store, &why),
			 0);
}

static void close_store(struct fixture *f)
{
	if (f->log)
		cpc_log_destroy(f->log);
	f->log = NULL;
	cpc_store_close(f->store);
	cpc_backing_close(f->backing);
}

static void commit(struct fixture *f, uint64_t seq, uint64_t position)
{
	struct cpc_commit_request req = {
	    .nonce = f->store->nonce,
	    .log_seq = seq,
	    .log_position = position,
	    .next_volume = 2,
	};

	assert_int_equal(cpc_store_commit(f->store, &req), 0);
	cpc_pins_put(req.pins);
}

/* A new life whose log begins at `position`. */
static void start(struct fixture *f, uint64_t position)
{
	open_store(f, false);
	commit(f, 0, position);
	assert_int_equal(cpc_log_create(f->store, &f->log), 0);
}

static void make(struct fixture *f, uint64_t pool_size, uint64_t log_size)
{
	struct cpc_super super = {
	    .incompat = CPC_INCOMPAT_DUP,
	    .transid = 1,
	    .total_bytes = pool_size,
	    .nodesize = 4096,
	    .log_size = log_size,
	    .next_volume = 1,
	};

	memset(f, 0, sizeof(*f));
	cpc_log_set_sink(no_message);
	memset(super.uuid, 0x5a, sizeof(super.uuid));
	assert_int_equal(cpc_powercut_create(pool_size, &f->pc), 0);
	assert_int_equal(cpc_powercut_reopen(f->pc, &f->backing), 0);
	assert_int_equal(cpc_store_format(f->backing, &super), 0);
	cpc_backing_close(f->backing);
	start(f, 0);
	f->next_data = f->store->geo.data_start + 64;
}

static void destroy(struct fixture *f)
{
	close_store(f);
	cpc_powercut_destroy(f->pc);
}

/* Ends the life; what was not flushed has this fate. The store is open read-only afterwards. */
static void crash(struct fixture *f, enum cpc_crash_fate fate)
{
	struct cpc_crash_choice choice;

	close_store(f);
	cpc_crash_choice_all(f->pc, fate, &choice);
	cpc_powercut_crash(f->pc, &choice);
	cpc_crash_choice_free(&choice);
	open_store(f, true);
}

static void reopen_read_only(struct fixture *f)
{
	close_store(f);
	open_store(f, true);
}

/* --- entries --- */

static void fill(uint64_t block, uint8_t *buf)
{
	for (unsigned i = 0; i < CPC_BLOCK_SIZE; i++)
		buf[i] = (uint8_t)(block * 131 + i * 7 + i / 256);
}

static void write_block(struct fixture *f, uint64_t block)
{
	uint8_t *buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);

	fill(block, buf);
	assert_int_equal(cpc_fe_write(&f->store->fe, block << CPC_BLOCK_SHIFT, buf, CPC_BLOCK_SIZE,
				      CPC_CAUSE_DATA, NULL),
			 0);
	cpc_free(buf);
}

/* Blocks [block, block + nr) of the volume, mapped to `at`; 0: a hole. Data is not written. */
static struct cpc_run *run_of(uint64_t block, uint64_t nr, uint64_t at)
{
	uint8_t *buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);
	struct cpc_run_builder b;
	struct cpc_run *run;

	cpc_run_builder_init(&b, 1, nr);
	for (uint64_t i = 0; at && i < nr; i++) {
		uint32_t csum;

		fill(at + i, buf);
		csum = cpc_csum(buf, CPC_BLOCK_SIZE);
		cpc_run_builder_map(&b, block + i, 1, (at + i) << CPC_BLOCK_SHIFT, &csum);
	}
	if (!at)
		cpc_run_builder_hole(&b, block, nr);
	assert_int_equal(cpc_run_builder_finish(&b, &run), 0);
	cpc_free(buf);
	return run;
}

static void add_run(struct cpc_log_batch *b, uint64_t volume, uint64_t block, uint64_t nr,
		    uint64_t at)
{
	struct cpc_run *run = run_of(block, nr, at);

	cpc_log_batch_run(b, volume, run);
	cpc_run_put(run);
}

/* A batch of `nr` holes, each an entry of its own. */
static void holes(struct fixture *f, struct cpc_log_batch *b, unsigned nr)
{
	cpc_log_batch_init(b, f->log);
	for (unsigned i = 0; i < nr; i++)
		add_run(b, 1, 2 * i, 1, 0);
	assert_int_equal(cpc_log_batch_end(b), 0);
}

/* Logs one block of volume 1, data first. Return: its sequence number. */
static uint64_t log_block(struct fixture *f, uint64_t block, uint64_t *at)
{
	struct cpc_log_batch b;
	uint64_t seq;

	*at = f->next_data++;
	write_block(f, *at);
	cpc_log_batch_init(&b, f->log);
	add_run(&b, 1, block, 1, *at);
	assert_int_equal(cpc_log_batch_end(&b), 0);
	assert_int_equal(cpc_log_add(f->log, &b), 0);
	seq = b.last_seq;
	cpc_log_batch_destroy(&b);
	return seq;
}

static void log_holes(struct fixture *f, unsigned nr)
{
	struct cpc_log_batch b;

	holes(f, &b, nr);
	assert_int_equal(cpc_log_add(f->log, &b), 0);
	cpc_log_batch_destroy(&b);
}

/* --- replay --- */

#define MODEL_BLOCKS 512u

struct replayed {
	uint64_t at[MODEL_BLOCKS]; /* of volume 1; 0: nothing, UINT64_MAX: hole */
	unsigned runs, names, batches;
	uint64_t last_seq, position;
	char order[64]; /* of names */
};

static int on_run(void *ctx, uint64_t volume, struct cpc_run *run)
{
	struct replayed *p = ctx;

	cpc_run_check(run);
	p->runs++;
	for (size_t i = 0; volume == 1 && i < run->nr_entries; i++) {
		const struct cpc_run_entry *e = &run->entries[i];

		for (uint64_t k = 0; k < cpc_run_entry_len(e) && e->block + k < MODEL_BLOCKS; k++)
			p->at[e->block + k] =
			    e->bytenr ? (e->bytenr >> CPC_BLOCK_SHIFT) + k : UINT64_MAX;
	}
	return 0;
}

static int on_name(void *ctx, enum cpc_log_entry_type type, uint64_t volume, uint64_t size,
		   const void *payload, uint32_t len)
{
	static const char letters[] = "??? crds";
	struct replayed *p = ctx;
	const uint8_t *bytes = payload;
	uint8_t sum = 0;

	for (uint32_t i = 0; i < len; i++)
		sum ^= bytes[i]; /* all of it can be read */
	if (p->names < sizeof(p->order) - 1)
		p->order[p->names] = letters[type + 1];
	p->names++;
	return sum == 0 && len == 1 ? -EUCLEAN : 0;
}

static int on_batch(void *ctx, uint64_t seq, uint64_t position)
{
	struct replayed *p = ctx;

	p->batches++;
	p->last_seq = seq;
	p->position = position;
	return 0;
}

static int scan(struct fixture *f, struct cpc_log_replay *r)
{
	const char *why;

	return cpc_log_scan(f->store, r, &why);
}

/* Scans and collects. Return: what the scan says. */
static int replay(struct fixture *f, struct replayed *p)
{
	struct cpc_log_handler handler = {on_run, on_name, on_batch, p};
	struct cpc_log_replay r;
	int ret;

	memset(p, 0, sizeof(*p));
	ret = scan(f, &r);
	if (ret)
		return ret;
	ret = cpc_log_replay_run(&r, &handler);
	p->position = r.end_position;
	cpc_log_replay_destroy(&r);
	return ret;
}

static void assert_replays_to(struct fixture *f, uint64_t seq)
{
	struct replayed p;

	assert_int_equal(replay(f, &p), 0);
	assert_int_equal(p.last_seq, seq);
}

/* --- damage --- */

static uint64_t device_of(struct fixture *f, unsigned copy, uint64_t position)
{
	return cpc_log_bytenr(f->store, copy, position);
}

static void spoil(struct fixture *f, unsigned copy, uint64_t position)
{
	cpc_powercut_flip(f->pc, device_of(f, copy, position) + 200, 3);
}

/* Puts a record there again, with a checksum that fits. */
static void poke_record(struct fixture *f, unsigned copies, uint64_t position, uint8_t *buf,
			uint32_t length)
{
	struct cpc_disk_log_record *record = (void *)buf;

	cpc_put_le32(
	    &record->csum,
	    cpc_csum_without_field(record, length, offsetof(struct cpc_disk_log_record, csum)));
	for (unsigned copy = 0; copy < 2; copy++) {
		if (copies & 1u << copy)
			cpc_powercut_poke(f->pc, device_of(f, copy, position), buf, length);
	}
}

static uint8_t *peek_record(struct fixture *f, uint64_t position, uint32_t length)
{
	uint8_t *buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, length);

	cpc_powercut_peek(f->pc, device_of(f, 0, position), buf, length);
	return buf;
}

/* --- batches --- */

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
	struct fixture f;

	make(&f, POOL_SIZE, SMALL_RING);
	assert_int_equal(f.log->max_record, 16384);
	for (unsigned i = 0; i < CPC_ARRAY_SIZE(cases); i++) {
		struct cpc_log_batch b;
		unsigned nr = 0;

		holes(&f, &b, cases[i].holes);
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
	destroy(&f);
}

static void a_batch_without_entries_is_no_record(void **state)
{
	struct cpc_log_batch b;
	struct fixture f;

	make(&f, POOL_SIZE, SMALL_RING);
	cpc_log_batch_init(&b, f.log);
	assert_int_equal(cpc_log_batch_end(&b), 0);
	assert_int_equal(b.nr_pieces, 0);
	cpc_log_batch_destroy(&b);
	destroy(&f);
}

/* Whatever a cut holds, what its changes have reserved is enough. */
static void what_changes_reserve_is_enough_for_their_records(void **state)
{
	struct fixture f;

	make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned round = 0; round < 60; round++) {
		unsigned nr = 1 + (unsigned)draw(900), max = 1 + (unsigned)draw(300);
		uint64_t room = CPC_LOG_BATCH_BYTES, at = f.next_data, block = 0;
		struct cpc_log_batch b;

		cpc_log_batch_init(&b, f.log);
		for (unsigned done = 0, part; done < nr; done += part) {
			part = (unsigned)cpc_min_u64(nr - done, 1 + draw(max));
			add_run(&b, 1, block, part, at + 100);
			block += part + 1;
		}
		room += (uint64_t)nr * CPC_LOG_BLOCK_BYTES;
		assert_int_equal(cpc_log_batch_end(&b), 0);
		assert_true(b.len <= room);
		cpc_log_batch_destroy(&b);
	}
	destroy(&f);
}

static void names_and_mappings_come_back_in_their_order(void **state)
{
	struct replayed p;
	struct cpc_log_batch b;
	struct fixture f;
	uint64_t at;

	make(&f, POOL_SIZE, SMALL_RING);
	log_block(&f, 7, &at);
	cpc_log_batch_init(&b, f.log);
	cpc_log_batch_name(&b, CPC_LOG_CREATE, 2, 0, "payload", 7);
	cpc_log_batch_name(&b, CPC_LOG_RENAME, 2, 0, "new", 3);
	cpc_log_batch_name(&b, CPC_LOG_RESIZE, 2, 12345, NULL, 0);
	add_run(&b, 1, 7, 3, 0);
	add_run(&b, 1, 8, 1, at);
	cpc_log_batch_name(&b, CPC_LOG_DELETE, 2, 0, NULL, 0);
	assert_int_equal(cpc_log_batch_end(&b), 0);
	assert_int_equal(cpc_log_add(f.log, &b), 0);
	assert_int_equal(cpc_log_flush(f.log, b.last_seq), 0);
	cpc_log_batch_destroy(&b);
	crash(&f, CPC_FATE_LOST);
	assert_int_equal(replay(&f, &p), 0);
	assert_string_equal(p.order, "crsd");
	assert_int_equal(p.batches, 2);
	assert_true(p.at[7] == UINT64_MAX && p.at[8] == at && p.at[9] == UINT64_MAX);
	destroy(&f);
}

/* --- order --- */

static void completed_has_no_gap_whatever_the_order(void **state)
{
	struct cpc_log_batch b[6];
	bool done[6] = {false};
	struct fixture f;

	make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned round = 0; round < 2; round++) {
		uint64_t base = f.log->next_seq - 1;

		memset(done, 0, sizeof(done));
		for (unsigned i = 0; i < 6; i++) {
			holes(&f, &b[i], i == 2 ? 510 : 1); /* one has two records */
			assert_int_equal(cpc_log_append(f.log, &b[i]), 0);
			assert_int_equal(cpc_log_write(f.log, &b[i]), 0);
		}
		for (unsigned n = 0; n < 6;) {
			unsigned i = (unsigned)draw(6);
			uint64_t expected = base;

			if (done[i])
				continue;
			cpc_log_complete(f.log, &b[i], 0);
			done[i] = true;
			n++;
			for (unsigned k = 0; k < 6 && done[k]; k++)
				expected = b[k].last_seq;
			assert_int_equal(atomic_load(&f.log->completed), expected);
		}
		for (unsigned i = 0; i < 6; i++)
			cpc_log_batch_destroy(&b[i]);
	}
	destroy(&f);
}

struct flusher {
	struct fixture *f;
	pthread_t thread;
	uint64_t seq;
	int result;
	_Atomic bool done;
};

static void *run_flush(void *arg)
{
	struct flusher *fl = arg;

	fl->result = cpc_log_flush(fl->f->log, fl->seq);
	fl->done = true;
	return NULL;
}

static void *run_add(void *arg)
{
	struct flusher *fl = arg;
	struct cpc_log_batch b;

	holes(fl->f, &b, 1);
	fl->result = cpc_log_add(fl->f->log, &b);
	fl->seq = b.last_seq;
	cpc_log_batch_destroy(&b);
	fl->done = true;
	return NULL;
}

static void *run_freeze(void *arg)
{
	struct flusher *fl = arg;
	uint64_t position;

	cpc_log_freeze(fl->f->log, &fl->seq, &position);
	fl->done = true;
	cpc_log_thaw(fl->f->log);
	return NULL;
}

static void go(struct flusher *fl, struct fixture *f, void *(*run)(void *))
{
	fl->f = f;
	fl->done = false;
	assert_int_equal(cpc_thread_start(&fl->thread, "test", run, fl), 0);
}

static void pause_ms(unsigned ms)
{
	struct timespec t = {.tv_nsec = ms * 1000000l};

	nanosleep(&t, NULL);
}

static void a_flush_waits_for_the_records_before_its_own(void **state)
{
	struct cpc_log_batch first, second;
	struct flusher fl = {.seq = 2};
	struct fixture f;

	make(&f, POOL_SIZE, SMALL_RING);
	holes(&f, &first, 1);
	holes(&f, &second, 1);
	assert_int_equal(cpc_log_append(f.log, &first), 0);
	assert_int_equal(cpc_log_add(f.log, &second), 0);
	go(&fl, &f, run_flush);
	pause_ms(20);
	assert_false(fl.done);
	assert_int_equal(cpc_log_write(f.log, &first), 0);
	cpc_log_complete(f.log, &first, 0);
	pthread_join(fl.thread, NULL);
	assert_int_equal(fl.result, 0);
	assert_int_equal(cpc_log_durable(f.log), 2);
	cpc_log_batch_destroy(&first);
	cpc_log_batch_destroy(&second);
	destroy(&f);
}

static void a_freeze_waits_for_batches_and_keeps_new_ones_out(void **state)
{
	struct flusher fl = {0};
	struct cpc_log_batch b;
	uint64_t seq, position;
	struct fixture f;

	make(&f, POOL_SIZE, SMALL_RING);
	log_holes(&f, 1);
	cpc_log_freeze(f.log, &seq, &position);
	assert_true(seq == 1 && position == 4096);
	go(&fl, &f, run_add);
	pause_ms(20);
	assert_false(fl.done);
	assert_int_equal(f.log->next_seq, 2);
	cpc_log_thaw(f.log);
	pthread_join(fl.thread, NULL);
	assert_true(fl.result == 0 && fl.seq == 2);
	holes(&f, &b, 1);
	assert_int_equal(cpc_log_append(f.log, &b), 0);
	fl.done = false;
	go(&fl, &f, run_freeze);
	pause_ms(20);
	assert_false(fl.done);
	cpc_log_complete(f.log, &b, 0);
	pthread_join(fl.thread, NULL);
	assert_true(fl.seq == 3);
	cpc_log_batch_destroy(&b);
	destroy(&f);
}

static void a_record_that_cannot_be_written_ends_the_log(void **state)
{
	struct cpc_log_batch b;
	struct fixture f;

	make(&f, POOL_SIZE, SMALL_RING);
	log_holes(&f, 1);
	/* the second try is taken */
	cpc_powercut_fail(f.pc, CPC_POWERCUT_WRITE, 2, false, -EIO);
	log_holes(&f, 1);
	cpc_powercut_fail(f.pc, CPC_POWERCUT_WRITE, 1, true, -EIO);
	holes(&f, &b, 1);
	assert_int_equal(cpc_log_add(f.log, &b), -EIO);
	cpc_log_batch_destroy(&b);
	cpc_powercut_clear_faults(f.pc);
	assert_int_equal(cpc_log_flush(f.log, 2), 0); /* they had been written */
	assert_int_equal(cpc_log_flush(f.log, 3), -EIO);
	holes(&f, &b, 1);
	assert_int_equal(cpc_log_add(f.log, &b), -EIO);
	cpc_log_batch_destroy(&b);
	destroy(&f);
}

/* --- joined flushes --- */

/* One flush is held, and seven more wait for the next one. */
static void flush_together(struct fixture *f, struct flusher fl[THREADS],
			   const struct cpc_powercut_fault *fault)
{
	for (unsigned i = 0; i < THREADS; i++) {
		struct cpc_log_batch b;

		holes(f, &b, 1);
		assert_int_equal(cpc_log_add(f->log, &b), 0);
		fl[i].seq = b.last_seq;
		cpc_log_batch_destroy(&b);
		if (i == 0) {
			cpc_powercut_hold(f->pc, CPC_HOLD_FLUSH);
			go(&fl[i], f, run_flush);
			cpc_powercut_wait_held(f->pc, 1);
		}
	}
	for (unsigned i = 1; i < THREADS; i++)
		go(&fl[i], f, run_flush);
	pause_ms(50); /* they have joined */
	if (fault)
		cpc_powercut_add_fault(f->pc, fault);
	cpc_powercut_release(f->pc);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(fl[i].thread, NULL);
}

static void flushes_that_come_while_one_runs_share_the_next(void **state)
{
	struct flusher fl[THREADS] = {0};
	struct fixture f;
	uint64_t before;

	make(&f, POOL_SIZE, SMALL_RING);
	before = cpc_powercut_count(f.pc, CPC_POWERCUT_FLUSH);
	flush_together(&f, fl, NULL);
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(fl[i].result, 0);
	assert_int_equal(cpc_powercut_count(f.pc, CPC_POWERCUT_FLUSH) - before, 2);
	crash(&f, CPC_FATE_LOST);
	assert_replays_to(&f, THREADS);
	destroy(&f);
}

static void every_waiter_sees_a_failed_flush_and_later_success_is_true(void **state)
{
	static const enum cpc_powercut_action actions[] = {CPC_FAULT_FAIL, CPC_FAULT_DROP_CACHED};

	for (unsigned a = 0; a < CPC_ARRAY_SIZE(actions); a++) {
		struct cpc_powercut_fault fault = {
		    .op = CPC_POWERCUT_FLUSH, .action = actions[a], .nth = 1, .error = -EIO};
		struct flusher fl[THREADS] = {0};
		struct fixture f;

		make(&f, POOL_SIZE, SMALL_RING);
		flush_together(&f, fl, &fault);
		assert_int_equal(fl[0].result, 0); /* had begun before */
		for (unsigned i = 1; i < THREADS; i++)
			assert_int_equal(fl[i].result, -EIO);
		assert_int_equal(cpc_log_durable(f.log), 1);
		assert_int_equal(cpc_log_flush(f.log, THREADS), 0);
		assert_int_equal(cpc_log_durable(f.log), THREADS);
		crash(&f, CPC_FATE_LOST);
		assert_replays_to(&f, THREADS);
		destroy(&f);
	}
}

/* The device drops what it was given, then says that all is well. */
static void a_device_that_fails_then_says_ok_gets_no_success_past_it(void **state)
{
	struct cpc_powercut_fault fault = {
	    .op = CPC_POWERCUT_FLUSH, .action = CPC_FAULT_DROP, .nth = 1, .error = -EIO};
	struct flusher fl[THREADS] = {0};
	struct fixture f;

	make(&f, POOL_SIZE, SMALL_RING);
	flush_together(&f, fl, &fault);
	for (unsigned i = 1; i < THREADS; i++)
		assert_int_equal(fl[i].result, -EIO);
	/* the old bytes are read back: no success any more */
	assert_int_equal(cpc_log_flush(f.log, THREADS), -EIO);
	assert_int_equal(cpc_log_flush(f.log, 2), -EIO);
	assert_int_equal(cpc_log_flush(f.log, 1), 0);
	assert_int_equal(cpc_log_durable(f.log), 1);
	destroy(&f);
}

static void a_device_that_flushes_no_more_gets_errors_only(void **state)
{
	struct cpc_powercut_fault fault = {.op = CPC_POWERCUT_FLUSH,
					   .action = CPC_FAULT_FAIL,
					   .nth = 1,
					   .sticky = true,
					   .error = -EIO};
	struct flusher fl[THREADS] = {0};
	struct fixture f;

	make(&f, POOL_SIZE, SMALL_RING);
	flush_together(&f, fl, &fault);
	for (unsigned i = 1; i < THREADS; i++)
		assert_int_equal(fl[i].result, -EIO);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(cpc_log_flush(f.log, THREADS), -EIO);
	assert_int_equal(cpc_log_durable(f.log), 1);
	destroy(&f);
}

/* --- room --- */

static void what_is_reserved_can_be_written_and_no_more_is_given(void **state)
{
	struct fixture f;
	uint64_t given = 0;

	make(&f, POOL_SIZE, SMALL_RING);
	assert_false(cpc_log_wants_commit(f.log));
	while (!cpc_log_reserve(f.log, 20000))
		given += 20000;
	assert_true(given >= 60000 && given < SMALL_RING);
	assert_true(cpc_log_wants_commit(f.log));
	assert_int_equal(cpc_log_reserve(f.log, 20000), -ENOSPC);
	cpc_log_unreserve(f.log, 20000);
	assert_int_equal(cpc_log_reserve(f.log, 20000), 0);
	/* the most that it can mean: one record after the other of the largest size */
	for (uint64_t done = 0; done + 16384 <= given; done += 16384)
		log_holes(&f, 509);
	cpc_log_unreserve(f.log, given);
	assert_int_equal(cpc_log_reserve(f.log, 20000), -ENOSPC);
	destroy(&f);
}

static void a_commit_makes_room(void **state)
{
	struct cpc_log_stats stats;
	uint64_t seq, position;
	struct fixture f;

	make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 5; i++)
		log_holes(&f, 509);
	assert_true(cpc_log_wants_commit(f.log));
	assert_int_equal(cpc_log_reserve(f.log, 20000), -ENOSPC);
	cpc_log_freeze(f.log, &seq, &position);
	cpc_log_thaw(f.log);
	log_holes(&f, 1);
	commit(&f, seq, position);
	cpc_log_committed(f.log, seq, position);
	cpc_log_get_stats(f.log, &stats);
	assert_int_equal(stats.used, 4096); /* what came after the freeze is still needed */
	assert_int_equal(cpc_log_reserve(f.log, 20000), 0);
	assert_false(cpc_log_wants_commit(f.log));
	assert_int_equal(cpc_log_durable(f.log), seq);
	crash(&f, CPC_FATE_KEPT);
	assert_replays_to(&f, seq + 1);
	destroy(&f);
}

static void commit_all(struct fixture *f, uint64_t *seq)
{
	uint64_t position;

	cpc_log_freeze(f->log, seq, &position);
	cpc_log_thaw(f->log);
	commit(f, *seq, position);
	cpc_log_committed(f->log, *seq, position);
}

/* One batch of random size, with a commit where there is no room. Return: its last record. */
static uint64_t log_somehow(struct fixture *f, uint64_t *committed)
{
	unsigned nr = 1 + (unsigned)(draw(4) ? draw(100) : draw(1500));
	uint64_t room = CPC_LOG_BATCH_BYTES + nr * CPC_LOG_BLOCK_BYTES, seq;
	struct cpc_log_batch b;

	if (cpc_log_reserve(f->log, room)) {
		commit_all(f, committed);
		assert_int_equal(cpc_log_reserve(f->log, room), 0);
	}
	holes(f, &b, nr);
	assert_true(b.len <= room);
	assert_int_equal(cpc_log_add(f->log, &b), 0);
	seq = b.last_seq;
	cpc_log_batch_destroy(&b);
	cpc_log_unreserve(f->log, room);
	return seq;
}

static void a_small_ring_goes_round_many_times_and_every_life_is_replayed(void **state)
{
	struct replayed p;
	struct fixture f;
	uint64_t wraps = 0;

	make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned life = 0; life < 60; life++) {
		uint64_t committed = 0, last = 0, flushed = 0;
		unsigned nr = 1 + (unsigned)draw(20);

		for (unsigned i = 0; i < nr; i++) {
			last = log_somehow(&f, &committed);
			if (draw(3) == 0) {
				assert_int_equal(cpc_log_flush(f.log, last), 0);
				flushed = last;
			}
		}
		close_store(&f);
		cpc_powercut_crash_random(f.pc, life);
		open_store(&f, true);
		assert_int_equal(replay(&f, &p), 0);
		assert_true(cpc_max_u64(p.last_seq, committed) >= flushed);
		assert_true(p.last_seq <= last);
		wraps = p.position / SMALL_RING;
		close_store(&f);
		start(&f, p.position);
	}
	assert_true(wraps >= 20);
	destroy(&f);
}

/* --- marks --- */

static void a_mark_is_written_after_quiet_and_asks_for_no_other(void **state)
{
	struct replayed p;
	uint64_t wait, at;
	struct fixture f;

	make(&f, POOL_SIZE, SMALL_RING);
	cpc_hooks.monotonic_ns = fake_clock;
	cpc_log_mark(f.log, &wait);
	assert_true(wait == UINT64_MAX && f.log->next_seq == 1);
	assert_int_equal(cpc_log_flush(f.log, log_block(&f, 1, &at)), 0);
	cpc_log_mark(f.log, &wait);
	assert_true(wait == 10000000 && f.log->next_seq == 2);
	fake_ns += 4000000;
	cpc_log_mark(f.log, &wait);
	assert_true(wait == 6000000 && f.log->next_seq == 2);
	fake_ns += 6000000;
	cpc_log_mark(f.log, &wait);
	assert_int_equal(f.log->next_seq, 3);
	for (unsigned i = 0; i < 3; i++) {
		fake_ns += 20000000;
		assert_int_equal(cpc_log_flush(f.log, 2), 0);
		cpc_log_mark(f.log, &wait);
		assert_true(wait == UINT64_MAX && f.log->next_seq == 3);
	}
	cpc_hooks.monotonic_ns = cpc_hooks_default.monotonic_ns;
	crash(&f, CPC_FATE_LOST);
	/* from its mark on, damage to the data rolls nothing back */
	cpc_powercut_flip(f.pc, at << CPC_BLOCK_SHIFT, 0);
	assert_int_equal(replay(&f, &p), 0);
	assert_int_equal(p.last_seq, 2);
	assert_int_equal(p.at[1], at);
	destroy(&f);
}

static void the_next_record_carries_what_is_durable(void **state)
{
	struct fixture f;
	uint64_t wait, at;

	make(&f, POOL_SIZE, SMALL_RING);
	assert_int_equal(cpc_log_flush(f.log, log_block(&f, 1, &at)), 0);
	log_holes(&f, 1);
	/* it is not flushed, so it owes no mark; the first one has its own */
	cpc_hooks.monotonic_ns = fake_clock;
	fake_ns = f.log->append_ns + 20000000;
	cpc_log_mark(f.log, &wait);
	assert_true(wait == UINT64_MAX && f.log->next_seq == 3);
	cpc_hooks.monotonic_ns = cpc_hooks_default.monotonic_ns;
	crash(&f, CPC_FATE_KEPT);
	cpc_powercut_flip(f.pc, at << CPC_BLOCK_SHIFT, 0);
	assert_replays_to(&f, 2);
	destroy(&f);
}

static void no_mark_takes_the_room_of_a_flush(void **state)
{
	struct fixture f;
	uint64_t wait, given = 0;

	make(&f, POOL_SIZE, SMALL_RING);
	log_holes(&f, 1);
	assert_int_equal(cpc_log_flush(f.log, 1), 0);
	while (!cpc_log_reserve(f.log, 4096))
		given += 4096;
	cpc_hooks.monotonic_ns = fake_clock;
	fake_ns = f.log->append_ns + 20000000;
	cpc_log_mark(f.log, &wait);
	assert_true(wait == 10000000 && f.log->next_seq == 2);
	cpc_hooks.monotonic_ns = cpc_hooks_default.monotonic_ns;
	cpc_log_unreserve(f.log, given);
	destroy(&f);
}

/* --- what replay accepts --- */

static void records_of_another_life_are_not_the_log(void **state)
{
	struct replayed p;
	struct fixture f;

	make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 5; i++)
		log_holes(&f, 1);
	assert_int_equal(cpc_log_flush(f.log, 5), 0);
	close_store(&f);
	/* the next life begins where this one did, and its numbers are the same */
	start(&f, 0);
	reopen_read_only(&f);
	assert_replays_to(&f, 0);
	close_store(&f);
	start(&f, 0);
	log_holes(&f, 1);
	assert_int_equal(cpc_log_flush(f.log, 1), 0);
	crash(&f, CPC_FATE_LOST);
	assert_int_equal(replay(&f, &p), 0);
	assert_int_equal(p.last_seq, 1);
	assert_int_equal(p.position, 4096);
	destroy(&f);
}

static void replay_ends_at_the_first_gap(void **state)
{
	struct fixture f;

	make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 5; i++)
		log_holes(&f, 1);
	crash(&f, CPC_FATE_KEPT);
	assert_replays_to(&f, 5);
	spoil(&f, 0, 2 * 4096);
	spoil(&f, 1, 2 * 4096);
	assert_replays_to(&f, 2);
	destroy(&f);
}

static void one_good_copy_of_each_record_is_enough(void **state)
{
	struct fixture f;

	make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 6; i++) {
		log_holes(&f, i % 3 ? 1 : 200);
		assert_int_equal(cpc_log_flush(f.log, i + 1), 0);
	}
	crash(&f, CPC_FATE_LOST);
	for (unsigned copy = 0; copy < 2; copy++) {
		static const uint64_t positions[] = {0, 8192, 12288, 16384, 24576, 28672};
		struct cpc_log_replay r;

		for (unsigned i = 0; i < 6; i++) {
			spoil(&f, (copy + i) % 2, positions[i]);
			assert_replays_to(&f, 6);
		}
		assert_int_equal(scan(&f, &r), 0);
		for (unsigned i = 0; i < 6; i++) {
			assert_int_equal(r.found[i].position, positions[i]);
			assert_true(r.found[i].bad[(copy + i) % 2]);
			assert_false(r.found[i].bad[(copy + i + 1) % 2]);
			spoil(&f, (copy + i) % 2, positions[i]); /* flips it back */
		}
		cpc_log_replay_destroy(&r);
	}
	destroy(&f);
}

static void a_copy_that_cannot_be_read_is_a_bad_one(void **state)
{
	struct cpc_powercut_fault fault = {
	    .op = CPC_POWERCUT_READ, .nth = 1, .sticky = true, .len = 4096, .error = -EIO};
	struct cpc_log_replay r;
	struct fixture f;

	make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 3; i++)
		log_holes(&f, 1);
	assert_int_equal(cpc_log_flush(f.log, 3), 0);
	crash(&f, CPC_FATE_LOST);
	for (unsigned i = 0; i < 8; i++) {
		/* the last place is behind the end */
		fault.bytenr = device_of(&f, i % 2, i / 2 * 4096);
		cpc_powercut_add_fault(f.pc, &fault);
		assert_replays_to(&f, 3);
		cpc_powercut_clear_faults(f.pc);
	}
	/* both: something had been there, and it may come back */
	for (unsigned i = 0; i < 2; i++) {
		fault.bytenr = device_of(&f, i, 2 * 4096);
		cpc_powercut_add_fault(f.pc, &fault);
	}
	assert_int_equal(scan(&f, &r), -EIO);
	destroy(&f);
}

/* Where nothing verifies in either copy of record i. */
static int scan_without(struct fixture *f, unsigned i, uint64_t *last)
{
	struct replayed p;
	int ret;

	spoil(f, 0, i * 4096ull);
	spoil(f, 1, i * 4096ull);
	ret = replay(f, &p);
	*last = p.last_seq;
	spoil(f, 0, i * 4096ull);
	spoil(f, 1, i * 4096ull);
	return ret;
}

static void a_durable_record_that_is_gone_refuses_the_pool(void **state)
{
	struct fixture f;
	uint64_t last;

	make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 5; i++) {
		log_holes(&f, 1);
		if (i < 4)
			assert_int_equal(cpc_log_flush(f.log, i + 1), 0);
	}
	crash(&f, CPC_FATE_KEPT);
	/* record 5, which says that 4 was durable, stands behind each gap */
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(scan_without(&f, i, &last), -EUCLEAN);
	/* nobody says so of record 5 */
	assert_int_equal(scan_without(&f, 4, &last), 0);
	assert_int_equal(last, 4);
	destroy(&f);
}

/* A gap of the longest record just before the ring's end, and the word of it just behind. */
static void what_says_so_is_found_behind_the_longest_gap(void **state)
{
	struct cpc_log_replay r;
	struct fixture f;
	uint64_t seq;

	make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 5; i++)
		log_holes(&f, 509);
	for (unsigned i = 0; i < 5; i++)
		log_holes(&f, 1);
	commit_all(&f, &seq);
	/* 28 KiB are left: 16 KiB, then 12 KiB that are too few for the next */
	log_holes(&f, 509);
	assert_int_equal(cpc_log_flush(f.log, seq + 1), 0);
	log_holes(&f, 509);
	crash(&f, CPC_FATE_KEPT);
	assert_int_equal(scan(&f, &r), 0);
	assert_int_equal(r.nr, 2);
	assert_int_equal(r.found[1].position, SMALL_RING);
	spoil(&f, 0, r.found[0].position);
	spoil(&f, 1, r.found[0].position);
	cpc_log_replay_destroy(&r);
	assert_int_equal(scan(&f, &r), -EUCLEAN);
	destroy(&f);
}

static void half_a_batch_at_the_end_is_not_taken(void **state)
{
	struct replayed p;
	struct fixture f;

	make(&f, POOL_SIZE, SMALL_RING);
	log_holes(&f, 1);
	log_holes(&f, 1019); /* three records */
	crash(&f, CPC_FATE_KEPT);
	assert_replays_to(&f, 4);
	for (unsigned n = 3; n > 0; n--) {
		unsigned i = n - 1;

		/* the records stand at 4096, 20480 and 36864 */
		spoil(&f, 0, 4096 + i * 16384ull);
		spoil(&f, 1, 4096 + i * 16384ull);
		assert_int_equal(replay(&f, &p), 0);
		assert_true(p.last_seq == 1 && p.runs == 1 && p.position == 4096);
	}
	destroy(&f);
}

static void data_that_does_not_verify_ends_the_replay_before_its_cut(void **state)
{
	struct replayed p;
	struct fixture f;
	uint64_t at[6];

	make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 6; i++)
		log_block(&f, i == 5 ? 1 : i, &at[i]); /* the last one replaces the second */
	crash(&f, CPC_FATE_KEPT);
	/* not mapped any more: nobody needs it */
	cpc_powercut_flip(f.pc, at[1] << CPC_BLOCK_SHIFT, 0);
	assert_replays_to(&f, 6);
	/* but without the last record it would be */
	cpc_powercut_flip(f.pc, at[5] << CPC_BLOCK_SHIFT, 0);
	assert_int_equal(replay(&f, &p), 0);
	assert_int_equal(p.last_seq, 1);
	assert_true(p.at[0] == at[0] && !p.at[1] && !p.at[2]);
	cpc_powercut_flip(f.pc, at[1] << CPC_BLOCK_SHIFT, 0);
	assert_replays_to(&f, 5);
	cpc_powercut_flip(f.pc, at[3] << CPC_BLOCK_SHIFT, 0);
	assert_replays_to(&f, 3);
	destroy(&f);
}

static void data_below_the_mark_is_not_looked_at(void **state)
{
	struct fixture f;
	uint64_t at[4];

	make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(cpc_log_flush(f.log, log_block(&f, i, &at[i])), 0);
	crash(&f, CPC_FATE_LOST);
	for (unsigned i = 0; i < 3; i++)
		cpc_powercut_flip(f.pc, at[i] << CPC_BLOCK_SHIFT, 0);
	assert_replays_to(&f, 4);
	/* the newest has no mark yet: its rot is a torn write */
	cpc_powercut_flip(f.pc, at[3] << CPC_BLOCK_SHIFT, 0);
	assert_replays_to(&f, 3);
	destroy(&f);
}

static void a_deleted_or_shrunk_volume_needs_no_data(void **state)
{
	struct cpc_log_batch b;
	struct fixture f;
	uint64_t at[2];

	make(&f, POOL_SIZE, SMALL_RING);
	log_block(&f, 3, &at[0]);
	log_block(&f, 7, &at[1]);
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
	crash(&f, CPC_FATE_KEPT);
	cpc_powercut_flip(f.pc, at[1] << CPC_BLOCK_SHIFT, 0);
	assert_replays_to(&f, 4);
	/* the delete goes, the resize stays */
	spoil(&f, 0, 3 * 4096);
	spoil(&f, 1, 3 * 4096);
	assert_replays_to(&f, 3);
	cpc_powercut_flip(f.pc, at[0] << CPC_BLOCK_SHIFT, 0);
	assert_replays_to(&f, 0);
	destroy(&f);
}

static void a_record_that_names_a_lost_superblock_refuses_the_pool(void **state)
{
	static const uint64_t positions[] = {0, 4096, 2 * 4096, 3 * 4096, 5 * 4096};
	struct cpc_log_replay r;
	struct fixture f;

	for (unsigned i = 0; i < CPC_ARRAY_SIZE(positions); i++) {
		struct cpc_disk_log_record *record;
		uint8_t *buf;

		make(&f, POOL_SIZE, SMALL_RING);
		for (unsigned k = 0; k < 3; k++)
			log_holes(&f, 1);
		assert_int_equal(cpc_log_flush(f.log, 3), 0);
		crash(&f, CPC_FATE_LOST);
		buf = peek_record(&f, 0, 4096);
		record = (void *)buf;
		cpc_put_le64(&record->transid, f.store->super.transid + 1);
		cpc_put_le64(&record->nonce, 12345);
		poke_record(&f, 1 + i % 2, positions[i], buf, 4096);
		assert_int_equal(scan(&f, &r), -EUCLEAN);
		/* another pool's says nothing */
		record->uuid[3] ^= 1;
		poke_record(&f, 1 + i % 2, positions[i], buf, 4096);
		assert_replays_to(&f, 3);
		cpc_free(buf);
		destroy(&f);
	}
}

static void named_blocks_are_claimed_before_anything_is_allocated(void **state)
{
	struct cpc_log_replay r;
	struct fixture f;
	uint64_t at[3], block;
	uint32_t got;

	make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 3; i++)
		log_block(&f, 1, &at[i]);
	assert_int_equal(cpc_log_flush(f.log, 3), 0);
	close_store(&f);
	open_store(&f, false);
	assert_int_equal(scan(&f, &r), 0);
	assert_int_equal(cpc_log_claim(&r), 0);
	while (!cpc_space_alloc(f.store->space, CPC_SPACE_DATA, 256, 1, &block, &got)) {
		for (unsigned i = 0; i < 3; i++)
			assert_true(at[i] < block || at[i] >= block + got);
	}
	assert_int_equal(cpc_log_claim(&r), -EUCLEAN); /* nobody else may have them */
	cpc_log_replay_destroy(&r);
	destroy(&f);
}

static void data_above_the_mark_moves_and_replay_says_where(void **state)
{
	struct cpc_log_replay r;
	struct cpc_log_handler h = {on_run, on_name, on_batch, NULL};
	struct replayed p;
	uint8_t *data = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);
	uint8_t *expected = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);
	struct fixture f;
	uint64_t at[12];

	make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 12; i++) {
		if (i % 3 == 0)
			f.next_data += 5;
		log_block(&f, i, &at[i]);
		if (i == 4)
			assert_int_equal(cpc_log_flush(f.log, 5), 0);
	}
	close_store(&f);
	open_store(&f, false);
	assert_int_equal(scan(&f, &r), 0);
	assert_int_equal(cpc_log_claim(&r), 0);
	assert_int_equal(cpc_log_move_data(&r, false), 0);
	memset(&p, 0, sizeof(p));
	h.ctx = &p;
	assert_int_equal(cpc_log_replay_run(&r, &h), 0);
	for (unsigned i = 0; i < 12; i++) {
		assert_true(i < 5 ? p.at[i] == at[i] : p.at[i] != at[i]);
		fill(at[i], expected);
		cpc_powercut_peek(f.pc, p.at[i] << CPC_BLOCK_SHIFT, data, CPC_BLOCK_SIZE);
		assert_memory_equal(data, expected, CPC_BLOCK_SIZE);
		cpc_powercut_peek(f.pc, at[i] << CPC_BLOCK_SHIFT, data, CPC_BLOCK_SIZE);
		assert_memory_equal(data, expected, CPC_BLOCK_SIZE);
	}
	cpc_log_replay_destroy(&r);
	cpc_free(data);
	cpc_free(expected);
	destroy(&f);
}

/* --- records made to harm --- */

/* A record with an entry of each kind. */
static void log_all_kinds(struct fixture *f)
{
	struct cpc_volume_item item = {.id = 2, .size = MIB, .name = "volume"};
	uint8_t value[CPC_VOLUME_VALUE_MAX];
	struct cpc_log_batch b;
	uint64_t at = f->next_data;

	for (unsigned i = 0; i < 3; i++)
		write_block(f, f->next_data++);
	cpc_log_batch_init(&b, f->log);
	add_run(&b, 1, 5, 3, at);
	add_run(&b, 1, 9, 2, 0);
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
static void try_record(struct fixture *f, uint8_t *buf)
{
	uint64_t writes = cpc_powercut_count(f->pc, CPC_POWERCUT_WRITE);
	struct cpc_log_replay r;
	struct replayed p;
	struct cpc_log_handler h = {on_run, on_name, on_batch, &p};

	memset(&p, 0, sizeof(p));
	poke_record(f, 3, 4096, buf, 4096);
	if (!scan(f, &r)) {
		if (!cpc_log_claim(&r))
			cpc_log_replay_run(&r, &h);
		cpc_log_replay_destroy(&r);
	}
	assert_int_equal(cpc_powercut_count(f->pc, CPC_POWERCUT_WRITE), writes);
	reopen_read_only(f);
}

static void records_made_to_harm_do_none(void **state)
{
	static const uint8_t masks[] = {0x01, 0x80, 0xff};
	struct fixture f;
	uint8_t *good, *buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);

	make(&f, POOL_SIZE, SMALL_RING);
	log_holes(&f, 1);
	log_all_kinds(&f);
	log_holes(&f, 1);
	crash(&f, CPC_FATE_KEPT);
	good = peek_record(&f, 4096, 4096);
	for (unsigned at = 0; at < 560; at++) {
		for (unsigned i = 0; i < CPC_ARRAY_SIZE(masks); i++) {
			memcpy(buf, good, CPC_BLOCK_SIZE);
			buf[at] ^= masks[i];
			try_record(&f, buf);
		}
	}
	for (unsigned i = 0; i < 3000; i++) {
		memcpy(buf, good, CPC_BLOCK_SIZE);
		for (unsigned k = 0; k < 1 + draw(4); k++)
			buf[24 + draw(540)] = (uint8_t)draw(256);
		try_record(&f, buf);
	}
	poke_record(&f, 3, 4096, good, 4096);
	assert_replays_to(&f, 3);
	cpc_free(good);
	cpc_free(buf);
	destroy(&f);
}

static void a_ring_full_of_noise_is_an_empty_log(void **state)
{
	uint8_t *buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);
	struct fixture f;

	make(&f, POOL_SIZE, SMALL_RING);
	crash(&f, CPC_FATE_KEPT);
	for (unsigned i = 0; i < 2 * SMALL_RING / CPC_BLOCK_SIZE; i++) {
		for (unsigned k = 0; k < CPC_BLOCK_SIZE; k++)
			buf[k] = (uint8_t)draw(256);
		cpc_powercut_poke(f.pc, device_of(&f, i % 2, i / 2 * CPC_BLOCK_SIZE), buf,
				  CPC_BLOCK_SIZE);
	}
	assert_replays_to(&f, 0);
	cpc_free(buf);
	destroy(&f);
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
	struct cpc_log_handler h = {on_run, on_name, on_batch, NULL};
	struct cpc_log_replay r;
	struct replayed p;
	struct fixture f;
	int ret = -ENOMEM;
	const char *why;
	uint64_t at;

	make(&f, POOL_SIZE, SMALL_RING);
	for (unsigned i = 0; i < 28; i++)
		log_block(&f, i, &at);
	crash(&f, CPC_FATE_KEPT);
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
	destroy(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(entries_are_packed_into_whole_blocks),
	    cmocka_unit_test(a_batch_without_entries_is_no_record),
	    cmocka_unit_test(what_changes_reserve_is_enough_for_their_records),
	    cmocka_unit_test(names_and_mappings_come_back_in_their_order),
	    cmocka_unit_test(completed_has_no_gap_whatever_the_order),
	    cmocka_unit_test(a_flush_waits_for_the_records_before_its_own),
	    cmocka_unit_test(a_freeze_waits_for_batches_and_keeps_new_ones_out),
	    cmocka_unit_test(a_record_that_cannot_be_written_ends_the_log),
	    cmocka_unit_test(flushes_that_come_while_one_runs_share_the_next),
	    cmocka_unit_test(every_waiter_sees_a_failed_flush_and_later_success_is_true),
	    cmocka_unit_test(a_device_that_fails_then_says_ok_gets_no_success_past_it),
	    cmocka_unit_test(a_device_that_flushes_no_more_gets_errors_only),
	    cmocka_unit_test(what_is_reserved_can_be_written_and_no_more_is_given),
	    cmocka_unit_test(a_commit_makes_room),
	    cmocka_unit_test(a_small_ring_goes_round_many_times_and_every_life_is_replayed),
	    cmocka_unit_test(a_mark_is_written_after_quiet_and_asks_for_no_other),
	    cmocka_unit_test(the_next_record_carries_what_is_durable),
	    cmocka_unit_test(no_mark_takes_the_room_of_a_flush),
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
	    cmocka_unit_test(records_made_to_harm_do_none),
	    cmocka_unit_test(a_ring_full_of_noise_is_an_empty_log),
	    cmocka_unit_test(without_memory_a_batch_or_a_replay_fails_and_can_be_repeated),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
