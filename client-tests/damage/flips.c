/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * flips: one bit at a time.
 *
 * Online: a pool is open, a bit is flipped below it, and a scrub must name the block that holds it
 * and, where there is another copy, leave the device as it was. Three in four cases go to every
 * byte of every block of metadata, one after the other (padding too), with a bit drawn for each;
 * the others to every bit of the newest superblock, and to data.
 *
 * Offline, one case in sixteen: the pool was killed with records in its log. It must open with the
 * right content or an error for a block, a check must find the bit, and --repair must leave nothing
 * but what has no second copy.
 */
#include "damage.h"

#include <stdio.h>

#define STRIDE 2654435761u /* prime, so that each place is met once a pass */

struct flip {
	uint64_t byte; /* on the device */
	unsigned bit;
	bool one_copy; /* data */
};

static void set_rerun(uint64_t seed, uint64_t i)
{
	rig_set_rerun("damage --seed %llu --writes 0 --flips %llu", (unsigned long long)seed,
		      (unsigned long long)i + 1);
}

static struct flip at_byte(const uint64_t *blocks, size_t nr, uint64_t i)
{
	uint64_t bytes = nr * CPC_BLOCK_SIZE, at = i % bytes * STRIDE % bytes;

	return (struct flip){.byte = (blocks[at / CPC_BLOCK_SIZE] << CPC_BLOCK_SHIFT) +
				     at % CPC_BLOCK_SIZE,
			     .bit = (unsigned)((i / bytes + at * 5) % 8)};
}

/* Every bit, in another order. */
static struct flip at_bit(const uint64_t *blocks, size_t nr, uint64_t i)
{
	uint64_t bits = nr * CPC_BLOCK_SIZE * 8, at = i % bits * STRIDE % bits;

	return (struct flip){.byte = (blocks[at / 8 / CPC_BLOCK_SIZE] << CPC_BLOCK_SHIFT) +
				     at / 8 % CPC_BLOCK_SIZE,
			     .bit = at % 8};
}

static struct flip choose(const struct places *at, uint64_t i)
{
	struct flip f;

	if (i % 4 == 0 && i % 16)
		return at_bit(at->super_slot, 2, i / 4);
	if (i % 16)
		return at_byte(at->meta, at->nr_meta, i - i / 4);
	f = at_byte(at->data, at->nr_data, i / 16);
	f.one_copy = true;
	return f;
}

/* --- online --- */

struct heard {
	uint64_t block; /* of the flip */
	unsigned lines, right, repaired;
};

static void hear(void *ctx, const struct cpc_damage *d)
{
	struct heard *h = ctx;

	h->lines++;
	h->right += d->bytenr >> CPC_BLOCK_SHIFT == h->block;
	h->repaired += d->repaired;
}

static bool device_bit(struct subject *s, const struct flip *f)
{
	uint8_t buf[CPC_BLOCK_SIZE];

	cpc_powercut_peek(s->rig.pc, cpc_align_down(f->byte, CPC_BLOCK_SIZE), buf, sizeof(buf));
	return buf[f->byte % CPC_BLOCK_SIZE] >> f->bit & 1;
}

static void flip_online(struct subject *s, const struct flip *f, struct counts *c)
{
	struct heard h = {.block = f->byte >> CPC_BLOCK_SHIFT};
	struct cpc_scrub_result result;
	bool before = device_bit(s, f);

	cpc_powercut_flip(s->rig.pc, f->byte, f->bit);
	rig_expect(cpc_pool_scrub(s->rig.pool, hear, &h, &result) == 0, "scrub");
	rig_expect(h.lines == 1 && h.right == 1,
		   "bit %u of byte %llu: scrub reports %u blocks, %u of them the right one", f->bit,
		   (unsigned long long)f->byte, h.lines, h.right);
	if (f->one_copy) {
		rig_expect(!h.repaired && result.unrepaired == 1, "data cannot be repaired");
		cpc_powercut_flip(s->rig.pc, f->byte, f->bit);
		c->flips_eio++;
	} else {
		rig_expect(h.repaired == 1 && device_bit(s, f) == before,
			   "bit %u of byte %llu is not repaired", f->bit,
			   (unsigned long long)f->byte);
		c->flips_repaired++;
	}
	c->flips++;
}

/* --- offline --- */

static void expect_found(struct subject *s, const struct flip *f)
{
	struct cpc_check_options opts = {.data = true};
	struct cpc_check_result result;

	rig_expect(cpc_check(subject_peek(s), &opts, &result) == 0, "check");
	rig_expect(result.errors, "bit %u of byte %llu: check finds nothing", f->bit,
		   (unsigned long long)f->byte);
}

static void open_and_read(struct subject *s, bool read_only, struct counts *c)
{
	struct cpc_error err;
	int ret;

	s->rig.opts.read_only = read_only;
	ret = rig_try_open(&s->rig, &err);
	s->rig.opts.read_only = false;
	if (ret) {
		c->offline_refused++;
		return;
	}
	c->flips_eio += subject_read(s, true);
	rig_kill(&s->rig);
}

static void repair_and_open(struct subject *s, const struct flip *f, struct counts *c)
{
	struct cpc_repair_options opts = {.check = {.data = true}};
	struct cpc_repair_result result;
	struct cpc_backing *b;

	rig_expect(cpc_powercut_reopen(s->rig.pc, &b) == 0, "no device");
	rig_expect(cpc_repair(b, &opts, &result) == 0, "repair");
	cpc_backing_close(b);
	rig_expect(result.after.errors == result.after.data_bad && result.after.data_bad <= 1,
		   "bit %u of byte %llu: %llu errors after the repair", f->bit,
		   (unsigned long long)f->byte, (unsigned long long)result.after.errors);
	rig_open(&s->rig);
	rig_expect(subject_read(s, true) <= f->one_copy, "blocks give errors after the repair");
	rig_kill(&s->rig);
	c->offline_repaired += result.repaired > 0;
}

static void flip_offline(struct subject *s, const struct cpc_powercut_saved *base,
			 const struct places *at, uint64_t i, struct counts *c)
{
	struct flip f = i % 3 == 0 ? at_byte(at->log, at->nr_log, i / 3) : choose(at, i);

	for (unsigned step = 0; step < 2; step++) {
		cpc_powercut_restore(s->rig.pc, base);
		cpc_powercut_flip(s->rig.pc, f.byte, f.bit);
		if (step) {
			expect_found(s, &f);
			repair_and_open(s, &f, c);
		} else {
			open_and_read(s, i % 2, c);
		}
	}
	c->offline++;
}

/* --- both --- */

void sweep_flips(uint64_t seed, uint64_t nr, uint64_t until_ns, struct counts *c)
{
	struct cpc_powercut_saved *base;
	struct subject online, offline;
	struct cpc_scrub_result result;
	struct places at, off;

	subject_create(&offline, seed, false);
	places_find(&offline, &off);
	base = cpc_powercut_save(offline.rig.pc);
	subject_create(&online, seed + 1, false);
	rig_open(&online.rig);
	rig_expect(cpc_pool_scrub(online.rig.pool, NULL, NULL, &result) == 0 && !result.repaired,
		   "a scrub of an intact pool finds something");
	places_find(&online, &at);
	for (uint64_t i = 0; i < nr && !time_is_up(until_ns); i++) {
		struct flip f = choose(&at, i);

		set_rerun(seed, i);
		flip_online(&online, &f, c);
		if (i % 16 == 0)
			flip_offline(&offline, base, &off, i / 16, c);
	}
	rig_expect(subject_read(&online, true) == 0, "blocks give errors");
	rig_kill(&online.rig);
	cpc_powercut_saved_free(base);
	places_free(&at);
	places_free(&off);
	rig_destroy(&offline.rig);
	rig_destroy(&online.rig);
}
