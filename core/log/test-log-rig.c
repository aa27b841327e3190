/* SPDX-License-Identifier: BSD-3-Clause */
#include "log/test-log-rig.h"

#include "lib/hooks.h"
#include "lib/log.h"

_Atomic uint64_t log_rig_ns = 1;

uint64_t log_rig_fake_clock(void)
{
	return log_rig_ns;
}

static void no_message(enum cpc_log_level level, const char *line)
{
}

static uint64_t rng = 1;

uint64_t log_rig_draw(uint64_t below)
{
	rng = rng * 6364136223846793005ull + 1442695040888963407ull;
	return (rng >> 20) % below;
}

/* --- a pool with a log --- */

void log_rig_open_store(struct log_rig *f, bool read_only)
{
	const char *why;

	assert_int_equal(cpc_powercut_reopen(f->pc, &f->backing), 0);
	assert_int_equal(cpc_store_open(f->backing, read_only, MIB, NULL, NULL, &f->store, &why),
			 0);
}

void log_rig_close_store(struct log_rig *f)
{
	if (f->log)
		cpc_log_destroy(f->log);
	f->log = NULL;
	cpc_store_close(f->store);
	cpc_backing_close(f->backing);
}

void log_rig_commit(struct log_rig *f, uint64_t seq, uint64_t position)
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

void log_rig_start(struct log_rig *f, uint64_t position)
{
	log_rig_open_store(f, false);
	log_rig_commit(f, 0, position);
	assert_int_equal(cpc_log_create(f->store, &f->log), 0);
}

void log_rig_make(struct log_rig *f, uint64_t pool_size, uint64_t log_size)
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
	log_rig_start(f, 0);
	f->next_data = f->store->geo.data_start + 64;
}

void log_rig_destroy(struct log_rig *f)
{
	log_rig_close_store(f);
	cpc_powercut_destroy(f->pc);
}

void log_rig_crash(struct log_rig *f, enum cpc_crash_fate fate)
{
	struct cpc_crash_choice choice;

	log_rig_close_store(f);
	cpc_crash_choice_all(f->pc, fate, &choice);
	cpc_powercut_crash(f->pc, &choice);
	cpc_crash_choice_free(&choice);
	log_rig_open_store(f, true);
}

void log_rig_reopen_read_only(struct log_rig *f)
{
	log_rig_close_store(f);
	log_rig_open_store(f, true);
}

/* --- entries --- */

void log_rig_fill(uint64_t block, uint8_t *buf)
{
	for (unsigned i = 0; i < CPC_BLOCK_SIZE; i++)
		buf[i] = (uint8_t)(block * 131 + i * 7 + i / 256);
}

void log_rig_write_block(struct log_rig *f, uint64_t block)
{
	uint8_t *buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);

	log_rig_fill(block, buf);
	assert_int_equal(cpc_fe_write(&f->store->fe, block << CPC_BLOCK_SHIFT, buf, CPC_BLOCK_SIZE,
				      CPC_CAUSE_DATA, NULL),
			 0);
	cpc_free(buf);
}

static struct cpc_run *run_of(uint64_t block, uint64_t nr, uint64_t at)
{
	uint8_t *buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);
	struct cpc_run_builder b;
	struct cpc_run *run;

	cpc_run_builder_init(&b, 1, nr);
	for (uint64_t i = 0; at && i < nr; i++) {
		uint32_t csum;

		log_rig_fill(at + i, buf);
		csum = cpc_csum(buf, CPC_BLOCK_SIZE);
		cpc_run_builder_map(&b, block + i, 1, (at + i) << CPC_BLOCK_SHIFT, &csum);
	}
	if (!at)
		cpc_run_builder_hole(&b, block, nr);
	assert_int_equal(cpc_run_builder_finish(&b, &run), 0);
	cpc_free(buf);
	return run;
}

void log_rig_add_run(struct cpc_log_batch *b, uint64_t volume, uint64_t block, uint64_t nr,
		     uint64_t at)
{
	struct cpc_run *run = run_of(block, nr, at);

	cpc_log_batch_run(b, volume, run);
	cpc_run_put(run);
}

void log_rig_holes(struct log_rig *f, struct cpc_log_batch *b, unsigned nr)
{
	cpc_log_batch_init(b, f->log);
	for (unsigned i = 0; i < nr; i++)
		log_rig_add_run(b, 1, 2 * i, 1, 0);
	assert_int_equal(cpc_log_batch_end(b), 0);
}

uint64_t log_rig_log_block(struct log_rig *f, uint64_t block, uint64_t *at)
{
	struct cpc_log_batch b;
	uint64_t seq;

	*at = f->next_data++;
	log_rig_write_block(f, *at);
	cpc_log_batch_init(&b, f->log);
	log_rig_add_run(&b, 1, block, 1, *at);
	assert_int_equal(cpc_log_batch_end(&b), 0);
	assert_int_equal(cpc_log_add(f->log, &b), 0);
	seq = b.last_seq;
	cpc_log_batch_destroy(&b);
	return seq;
}

void log_rig_log_holes(struct log_rig *f, unsigned nr)
{
	struct cpc_log_batch b;

	log_rig_holes(f, &b, nr);
	assert_int_equal(cpc_log_add(f->log, &b), 0);
	cpc_log_batch_destroy(&b);
}

/* --- replay --- */

int log_rig_on_run(void *ctx, uint64_t volume, struct cpc_run *run)
{
	struct log_replayed *p = ctx;

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

int log_rig_on_name(void *ctx, enum cpc_log_entry_type type, uint64_t volume, uint64_t size,
		    const void *payload, uint32_t len)
{
	static const char letters[] = "??? crds";
	struct log_replayed *p = ctx;
	const uint8_t *bytes = payload;
	uint8_t sum = 0;

	for (uint32_t i = 0; i < len; i++)
		sum ^= bytes[i]; /* all of it can be read */
	if (p->names < sizeof(p->order) - 1)
		p->order[p->names] = letters[type + 1];
	p->names++;
	return sum == 0 && len == 1 ? -EUCLEAN : 0;
}

int log_rig_on_batch(void *ctx, uint64_t seq, uint64_t position)
{
	struct log_replayed *p = ctx;

	p->batches++;
	p->last_seq = seq;
	p->position = position;
	return 0;
}

int log_rig_scan(struct log_rig *f, struct cpc_log_replay *r)
{
	const char *why;

	return cpc_log_scan(f->store, r, &why);
}

int log_rig_replay(struct log_rig *f, struct log_replayed *p)
{
	struct cpc_log_handler handler = {log_rig_on_run, log_rig_on_name, log_rig_on_batch, p};
	struct cpc_log_replay r;
	int ret;

	memset(p, 0, sizeof(*p));
	ret = log_rig_scan(f, &r);
	if (ret)
		return ret;
	ret = cpc_log_replay_run(&r, &handler);
	p->position = r.end_position;
	cpc_log_replay_destroy(&r);
	return ret;
}

void log_rig_assert_replays_to(struct log_rig *f, uint64_t seq)
{
	struct log_replayed p;

	assert_int_equal(log_rig_replay(f, &p), 0);
	assert_int_equal(p.last_seq, seq);
}

/* --- damage --- */

uint64_t log_rig_device_of(struct log_rig *f, unsigned copy, uint64_t position)
{
	return cpc_log_bytenr(f->store, copy, position);
}

void log_rig_spoil(struct log_rig *f, unsigned copy, uint64_t position)
{
	cpc_powercut_flip(f->pc, log_rig_device_of(f, copy, position) + 200, 3);
}

void log_rig_poke_record(struct log_rig *f, unsigned copies, uint64_t position, uint8_t *buf,
			 uint32_t length)
{
	struct cpc_disk_log_record *record = (void *)buf;

	cpc_put_le32(
	    &record->csum,
	    cpc_csum_without_field(record, length, offsetof(struct cpc_disk_log_record, csum)));
	for (unsigned copy = 0; copy < 2; copy++) {
		if (copies & 1u << copy)
			cpc_powercut_poke(f->pc, log_rig_device_of(f, copy, position), buf, length);
	}
}

uint8_t *log_rig_peek_record(struct log_rig *f, uint64_t position, uint32_t length)
{
	uint8_t *buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, length);

	cpc_powercut_peek(f->pc, log_rig_device_of(f, 0, position), buf, length);
	return buf;
}

void log_rig_commit_all(struct log_rig *f, uint64_t *seq)
{
	uint64_t position;

	cpc_log_freeze(f->log, seq, &position);
	cpc_log_thaw(f->log);
	log_rig_commit(f, *seq, position);
	cpc_log_committed(f->log, *seq, position);
}
