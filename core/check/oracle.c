/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * oracle: see oracle.h.
 *
 * Normal path: a write outside superblock slots costs a bit test for each block and root, and
 * there are one or two roots. A superblock's write costs a walk of the pool it names; each of
 * its two writes (one a ring) carries the same bytes, the second finds the root already there.
 *
 * Which superblock is the newest stable one is not followed through acks and epochs but read from
 * the stable image after each flush that may have changed it: that is what a crash would find,
 * whatever faults were injected.
 *
 * The log: a record is seen when it is written. The data that it names may land later, so it counts
 * as needed from the flush on after which it is stable and as the record says. For which
 * roots: those of its life (nonce) whose trees do not contain it. Only the life of the newest
 * stable superblock has any: a new one writes no record before its first superblock is stable.
 */
#include "check/oracle.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "check/check-internal.h"

#define SLOTS (2u * CPC_SUPER_SLOTS)

struct root {
	struct cpc_list node;
	struct cpc_super super;
	struct cpc_disk_super disk;
	uint8_t needs[]; /* one bit a block */
};

/* A block of the pool that a log record names. */
struct logged {
	uint64_t seq; /* 0: none */
	uint32_t csum;
	bool landed; /* stable, as the record says */
};

struct cpc_oracle {
	struct cpc_powercut *pc;
	cpc_oracle_fail_fn fail;
	void *ctx;
	uint64_t nr_blocks;	   /* of the device */
	struct cpc_backing stable; /* read-only view of the stable image */

	struct cpc_mutex lock;
	/* under lock */
	struct cpc_list roots;	 /* ascending transid; the first is the newest stable one */
	bool stable_known;	 /* there is a stable one at all: the pool is formatted */
	bool supers_written;	 /* since the stable image was looked at */
	uint64_t last_transid;	 /* the highest seen */
	struct cpc_geometry geo; /* of the roots */
	struct cpc_oracle_stats stats;
	/* the log of the newest stable superblock's life */
	uint64_t log_nonce;
	struct logged *logged; /* by block */
	uint64_t *ring_seq[2]; /* of what stands there, by block of the ring */
	uint64_t *fresh;       /* blocks that have not landed */
	size_t nr_fresh, cap_fresh;
};

struct handle {
	struct cpc_backing backing;
	struct cpc_oracle *oracle;
	struct cpc_backing *inner;
};

static void *xalloc(size_t size)
{
	void *p = calloc(1, size);

	if (!p)
		abort();
	return p;
}

/* --- failing --- */

static void violation(struct cpc_oracle *o, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void violation(struct cpc_oracle *o, const char *fmt, ...)
{
	char text[768];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	o->stats.violations++;
	if (o->fail) {
		o->fail(o->ctx, text);
		return;
	}
	fprintf(stderr, "legality oracle: %s\n", text);
	abort();
}

/* --- the view of the stable image --- */

static int stable_readv(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov,
			unsigned nr)
{
	struct cpc_oracle *o = cpc_container_of(b, struct cpc_oracle, stable);

	for (unsigned i = 0; i < nr; i++) {
		cpc_powercut_peek_stable(o->pc, bytenr, iov[i].iov_base, iov[i].iov_len);
		bytenr += iov[i].iov_len;
	}
	return 0;
}

static const struct cpc_backing_ops stable_ops = {.name = "stable", .readv = stable_readv};

/* --- roots --- */

static void forget_below(struct cpc_oracle *o, uint64_t transid)
{
	struct cpc_list *pos, *tmp;

	cpc_list_for_each_safe (pos, tmp, &o->roots) {
		struct root *r = cpc_list_entry(pos, struct root, node);

		if (r->super.transid < transid) {
			cpc_list_del(&r->node);
			free(r);
		}
	}
}

static struct root *find_root(struct cpc_oracle *o, uint64_t transid)
{
	struct cpc_list *pos;

	cpc_list_for_each (pos, &o->roots) {
		struct root *r = cpc_list_entry(pos, struct root, node);

		if (r->super.transid == transid)
			return r;
	}
	return NULL;
}

static void first_line(void *ctx, const char *line)
{
	char *text = ctx;

	if (!*text)
		snprintf(text, 512, "%s", line);
}

/* Finds what the root needs, and whether all of it is stable. */
static void walk_root(struct cpc_oracle *o, struct root *r, uint64_t since)
{
	char text[512] = "";
	struct cpc_findings findings = {.report = first_line, .ctx = text};
	struct cpc_reach reach = {
	    .backing = &o->stable,
	    .super = &r->super,
	    .bitmap = r->needs,
	    .nr_blocks = o->nr_blocks,
	    .findings = &findings,
	    .verify = true,
	    .since = since,
	};
	int ret = cpc_reach_walk(&reach);

	if (ret == -ENOMEM)
		ret = cpc_reach_walk(&reach);
	if (ret == -ENOMEM)
		o->stats.unwatched++;
	else if (ret)
		violation(o, "superblock %" PRIu64 " names what is not stable: %s",
			  r->super.transid, text);
}

/* Adds it behind all others, which are older. */
static void add_root(struct cpc_oracle *o, const struct cpc_super *super,
		     const struct cpc_disk_super *disk, uint64_t since)
{
	struct root *r = xalloc(sizeof(*r) + (o->nr_blocks + 7) / 8);

	r->super = *super;
	r->disk = *disk;
	walk_root(o, r, since);
	cpc_list_add_tail(&o->roots, &r->node);
	o->last_transid = cpc_max_u64(o->last_transid, super->transid);
	o->stats.roots++;
}

typedef void (*peek_fn)(struct cpc_powercut *pc, uint64_t bytenr, void *buf, size_t len);

static uint64_t slot_bytenr(const struct cpc_oracle *o, unsigned i)
{
	uint64_t ring1 = o->stable_known ? o->geo.super[1] : o->nr_blocks - CPC_SUPER_SLOTS;
	uint64_t block = i < CPC_SUPER_SLOTS ? i : ring1 + i - CPC_SUPER_SLOTS;

	return block << CPC_BLOCK_SHIFT;
}

/* The newest superblock in one of the two images. Return: false: none. */
static bool newest_super(struct cpc_oracle *o, peek_fn peek, struct cpc_super *super,
			 struct cpc_disk_super *disk)
{
	struct cpc_disk_super here;
	struct cpc_super s;
	const char *why;

	super->transid = 0;
	for (unsigned i = 0; i < SLOTS; i++) {
		peek(o->pc, slot_bytenr(o, i), &here, sizeof(here));
		if (cpc_super_decode(&s, &here, i % CPC_SUPER_SLOTS,
				     o->nr_blocks << CPC_BLOCK_SHIFT, &why) ||
		    s.transid <= super->transid)
			continue;
		*super = s;
		*disk = here;
	}
	return super->transid != 0;
}

static void set_geometry(struct cpc_oracle *o, const struct cpc_super *super)
{
	cpc_assert(cpc_geometry_init(&o->geo, super->total_bytes, super->log_size, super->nodesize,
				     super->incompat & CPC_INCOMPAT_DUP) == 0);
	o->stable_known = true;
}

/* --- log --- */

static void forget_log(struct cpc_oracle *o, uint64_t nonce)
{
	o->log_nonce = nonce;
	o->nr_fresh = 0;
	memset(o->logged, 0, o->nr_blocks * sizeof(*o->logged));
	for (unsigned copy = 0; copy < 2; copy++)
		memset(o->ring_seq[copy], 0, o->nr_blocks * sizeof(**o->ring_seq));
}

static void add_fresh(struct cpc_oracle *o, uint64_t block)
{
	if (o->nr_fresh == o->cap_fresh) {
		o->cap_fresh = o->cap_fresh ? 2 * o->cap_fresh : 256;
		o->fresh = realloc(o->fresh, o->cap_fresh * sizeof(*o->fresh));
		if (!o->fresh)
			abort();
	}
	o->fresh[o->nr_fresh++] = block;
}

static void note_named(struct cpc_oracle *o, uint64_t seq, uint64_t block, uint32_t csum)
{
	struct logged *l = &o->logged[block];

	if (l->seq == seq && l->csum == csum)
		return;
	if (!l->seq || l->landed)
		add_fresh(o, block);
	*l = (struct logged){.seq = seq, .csum = csum};
}

/* After a flush: what of the named data is stable now. */
static void note_landed(struct cpc_oracle *o)
{
	uint8_t data[CPC_BLOCK_SIZE];
	size_t left = 0;

	for (size_t i = 0; i < o->nr_fresh; i++) {
		struct logged *l = &o->logged[o->fresh[i]];

		cpc_powercut_peek_stable(o->pc, o->fresh[i] << CPC_BLOCK_SHIFT, data, sizeof(data));
		l->landed = cpc_csum(data, sizeof(data)) == l->csum;
		if (!l->landed)
			o->fresh[left++] = o->fresh[i];
	}
	o->nr_fresh = left;
}

static void note_entry(struct cpc_oracle *o, uint64_t seq, const struct cpc_disk_log_entry *e)
{
	uint64_t block = cpc_get_le64(&e->bytenr) >> CPC_BLOCK_SHIFT;
	const cpc_le32 *csum = (const void *)(e + 1);

	if (e->type != CPC_LOG_MAP)
		return;
	for (uint64_t i = 0; i < cpc_get_le64(&e->nr_blocks); i++) {
		if (block + i >= o->nr_blocks) {
			violation(o, "log record %" PRIu64 " names what is outside the pool", seq);
			return;
		}
		note_named(o, seq, block + i, cpc_get_le32(&csum[i]));
	}
}

static const struct root *stable_root(const struct cpc_oracle *o)
{
	return cpc_list_first(&o->roots, struct root, node);
}

/* A record is about to be written to one copy of the ring. */
static void judge_record(struct cpc_oracle *o, unsigned copy, uint64_t place, const uint8_t *data,
			 size_t len)
{
	const struct cpc_disk_log_record *record = (const void *)data;
	uint64_t seq = cpc_get_le64(&record->seq), newest = stable_root(o)->super.log_seq;
	uint32_t at = sizeof(*record);

	if (cpc_get_le32(&record->length) != len || cpc_get_le64(&record->nonce) != o->log_nonce) {
		violation(o, "a write to the log ring is not one record of this life");
		return;
	}
	for (size_t i = 0; i < len >> CPC_BLOCK_SHIFT; i++) {
		uint64_t *there = &o->ring_seq[copy][place + i];

		if (*there > newest && *there != seq)
			violation(o,
				  "log record %" PRIu64 " is overwritten by %" PRIu64
				  " but superblock %" PRIu64 " needs it",
				  *there, seq, stable_root(o)->super.transid);
		*there = seq;
	}
	for (uint32_t i = 0; i < cpc_get_le32(&record->nr_entries); i++) {
		const struct cpc_disk_log_entry *e = (const void *)(data + at);

		note_entry(o, seq, e);
		at += cpc_get_le16(&e->size);
	}
}

/* Whether a root may be the base of a replay that takes the record naming this block. */
static bool logged_for(const struct cpc_oracle *o, const struct root *r, uint64_t block)
{
	const struct logged *l = &o->logged[block];

	return l->landed && r->super.nonce == o->log_nonce && r->super.log_seq < l->seq;
}

static int note_replayed_run(void *ctx, uint64_t volume, struct cpc_run *run)
{
	struct cpc_oracle *o = ctx;

	for (size_t i = 0; i < run->nr_entries; i++) {
		const struct cpc_run_entry *e = &run->entries[i];

		for (uint32_t k = 0; e->bytenr && k < e->nr; k++)
			note_named(o, UINT64_MAX, (e->bytenr >> CPC_BLOCK_SHIFT) + k,
				   run->csums[e->csum + k]);
	}
	return 0;
}

static int note_replayed_name(void *ctx, enum cpc_log_entry_type type, uint64_t volume,
			      uint64_t size, const void *payload, uint32_t len)
{
	return 0;
}

static int note_replayed_batch(void *ctx, uint64_t seq, uint64_t position)
{
	struct cpc_oracle *o = ctx;

	for (size_t i = 0; i < o->nr_fresh; i++) {
		if (o->logged[o->fresh[i]].seq == UINT64_MAX)
			o->logged[o->fresh[i]].seq = seq;
	}
	return 0;
}

/* What an opening would take of the ring now. */
static void look_at_ring(struct cpc_oracle *o)
{
	const struct cpc_log_handler h = {note_replayed_run, note_replayed_name,
					  note_replayed_batch, o};
	struct cpc_log_replay r;
	const char *why;

	forget_log(o, stable_root(o)->super.nonce);
	if (cpc_log_peek(&o->stable, &stable_root(o)->super, &o->geo, &r, &why))
		return;
	cpc_log_replay_run(&r, &h);
	cpc_log_peek_end(&r);
	note_landed(o);
}

/* --- the newest superblock --- */

/* Looks which superblock is the newest stable one now. */
static void look(struct cpc_oracle *o)
{
	struct cpc_disk_super disk;
	struct cpc_super super;

	o->supers_written = false;
	if (!newest_super(o, cpc_powercut_peek_stable, &super, &disk))
		return;
	if (!o->stable_known)
		set_geometry(o, &super);
	forget_below(o, super.transid);
	if (!find_root(o, super.transid))
		add_root(o, &super, &disk, super.transid);
	if (super.nonce != o->log_nonce)
		forget_log(o, super.nonce);
	/* One that is not stable yet: its write had not ended when this flush began. */
	o->supers_written = o->roots.next->next != &o->roots;
}

/* Starts from what is on the device. */
static void look_afresh(struct cpc_oracle *o)
{
	struct cpc_disk_super disk;
	struct cpc_super super;

	forget_below(o, UINT64_MAX);
	o->stable_known = false;
	o->last_transid = 0;
	o->log_nonce = 0;
	look(o);
	if (o->stable_known)
		look_at_ring(o);
	if (newest_super(o, cpc_powercut_peek, &super, &disk) && !find_root(o, super.transid))
		add_root(o, &super, &disk, o->last_transid);
}

/* --- judging --- */

static const struct root *needed_by(struct cpc_oracle *o, uint64_t block)
{
	struct cpc_list *pos;

	cpc_list_for_each (pos, &o->roots) {
		const struct root *r = cpc_list_entry(pos, struct root, node);

		if (r->needs[block / 8] & 1u << block % 8 || logged_for(o, r, block))
			return r;
	}
	return NULL;
}

/* Which copy of the ring a block belongs to, or -1. */
static int ring_of(const struct cpc_oracle *o, uint64_t block)
{
	for (int copy = 0; copy < 2; copy++) {
		if (block - o->geo.log[copy] < o->geo.log_blocks)
			return copy;
	}
	return -1;
}

static int slot_of(const struct cpc_oracle *o, uint64_t block)
{
	for (unsigned ring = 0; ring < 2; ring++) {
		if (block - o->geo.super[ring] < CPC_SUPER_SLOTS)
			return (int)(block - o->geo.super[ring]);
	}
	return -1;
}

static void judge_super(struct cpc_oracle *o, int slot, const uint8_t *data)
{
	const struct root *stable = cpc_list_first(&o->roots, struct root, node);
	const struct cpc_disk_super *disk = (const void *)data;
	struct cpc_super super;
	const struct root *same;
	const char *why;

	o->supers_written = true;
	if ((uint32_t)slot == stable->super.slot && memcmp(data, &stable->disk, sizeof(*disk))) {
		violation(o, "superblock slot %d is that of the newest stable superblock %" PRIu64,
			  slot, stable->super.transid);
		return;
	}
	if (cpc_all_zero(data, CPC_BLOCK_SIZE)) /* an open wipes the pieces of a torn one */
		return;
	if (cpc_super_decode(&super, disk, (uint32_t)slot, o->nr_blocks << CPC_BLOCK_SHIFT, &why)) {
		violation(o, "a superblock written to slot %d is damaged: %s", slot, why);
		return;
	}
	same = find_root(o, super.transid);
	if (same && memcmp(&same->disk, disk, sizeof(*disk)) == 0)
		return;
	if (super.transid <= o->last_transid)
		violation(o, "superblock transid %" PRIu64 " has been used before", super.transid);
	else
		add_root(o, &super, disk, stable->super.transid);
}

static void judge_block(struct cpc_oracle *o, uint64_t block, const uint8_t *data,
			enum cpc_cause cause)
{
	uint8_t stable[CPC_BLOCK_SIZE];
	const struct root *r;
	int slot = slot_of(o, block);

	if (slot >= 0) {
		judge_super(o, slot, data);
		return;
	}
	r = needed_by(o, block);
	if (!r || cause == CPC_CAUSE_REPAIR)
		return;
	cpc_powercut_peek_stable(o->pc, block << CPC_BLOCK_SHIFT, stable, sizeof(stable));
	if (memcmp(stable, data, sizeof(stable)) != 0)
		violation(o,
			  "block %" PRIu64 " is overwritten (cause %d) but superblock %" PRIu64
			  " needs it",
			  block, (int)cause, r->super.transid);
}

static void judge_write(struct cpc_oracle *o, uint64_t bytenr, const struct iovec *iov, unsigned nr,
			enum cpc_cause cause)
{
	uint64_t block = bytenr >> CPC_BLOCK_SHIFT;
	int copy;

	cpc_mutex_lock(&o->lock);
	o->stats.writes++;
	copy = o->stable_known ? ring_of(o, block) : -1;
	if (!o->stable_known) {
		o->supers_written = true;
		nr = 0;
	} else if (copy >= 0 && cause != CPC_CAUSE_REPAIR) {
		judge_record(o, (unsigned)copy, block - o->geo.log[copy], iov[0].iov_base,
			     iov[0].iov_len);
		nr = 0;
	}
	for (unsigned i = 0; i < nr; i++) {
		for (size_t at = 0; at < iov[i].iov_len; at += CPC_BLOCK_SIZE)
			judge_block(o, block++, (const uint8_t *)iov[i].iov_base + at, cause);
	}
	cpc_mutex_unlock(&o->lock);
}

static void judge_discard(struct cpc_oracle *o, uint64_t bytenr, uint64_t len)
{
	uint64_t block = bytenr >> CPC_BLOCK_SHIFT, nr = len >> CPC_BLOCK_SHIFT;

	cpc_mutex_lock(&o->lock);
	o->stats.discards++;
	if (o->stable_known && !cpc_geometry_in_data(&o->geo, bytenr, len))
		violation(o, "discard of %" PRIu64 " blocks at %" PRIu64 " leaves the data area",
			  nr, block);
	for (uint64_t i = block; i < block + nr; i++) {
		const struct root *r = needed_by(o, i);

		if (!r)
			continue;
		violation(o, "block %" PRIu64 " is discarded but superblock %" PRIu64 " needs it",
			  i, r->super.transid);
		break;
	}
	cpc_mutex_unlock(&o->lock);
}

/* --- the table --- */

static struct handle *to_handle(struct cpc_backing *b)
{
	return cpc_container_of(b, struct handle, backing);
}

static int oracle_readv(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov,
			unsigned nr)
{
	return cpc_backing_readv(to_handle(b)->inner, bytenr, iov, nr);
}

static int oracle_writev(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov,
			 unsigned nr, enum cpc_cause cause)
{
	struct handle *h = to_handle(b);

	judge_write(h->oracle, bytenr, iov, nr, cause);
	return cpc_backing_writev(h->inner, bytenr, iov, nr, cause);
}

static int oracle_flush(struct cpc_backing *b)
{
	struct handle *h = to_handle(b);
	int ret = cpc_backing_flush(h->inner);

	cpc_mutex_lock(&h->oracle->lock);
	if (h->oracle->supers_written)
		look(h->oracle);
	note_landed(h->oracle);
	cpc_mutex_unlock(&h->oracle->lock);
	return ret;
}

static int oracle_discard(struct cpc_backing *b, uint64_t bytenr, uint64_t len)
{
	struct handle *h = to_handle(b);

	judge_discard(h->oracle, bytenr, len);
	return cpc_backing_discard(h->inner, bytenr, len);
}

static int oracle_current_size(struct cpc_backing *b, uint64_t *size)
{
	return cpc_backing_current_size(to_handle(b)->inner, size);
}

static void oracle_close(struct cpc_backing *b)
{
	struct handle *h = to_handle(b);

	cpc_backing_close(h->inner);
	free(h);
}

static const struct cpc_backing_ops oracle_ops = {
    .name = "oracle",
    .readv = oracle_readv,
    .writev = oracle_writev,
    .flush = oracle_flush,
    .discard = oracle_discard,
    .current_size = oracle_current_size,
    .close = oracle_close,
};

/* --- life --- */

void cpc_oracle_create(struct cpc_powercut *pc, cpc_oracle_fail_fn fail, void *ctx,
		       struct cpc_oracle **out)
{
	struct cpc_oracle *o = xalloc(sizeof(*o));

	o->pc = pc;
	o->fail = fail;
	o->ctx = ctx;
	cpc_mutex_init(&o->lock, "oracle", (enum cpc_lock_rank)(CPC_RANK_BACKING - 1));
	cpc_list_init(&o->roots);
	*out = o;
}

void cpc_oracle_destroy(struct cpc_oracle *o)
{
	forget_below(o, UINT64_MAX);
	if (o->nr_blocks)
		cpc_mutex_destroy(&o->stable.ioq_lock);
	free(o->logged);
	free(o->ring_seq[0]);
	free(o->ring_seq[1]);
	free(o->fresh);
	cpc_mutex_destroy(&o->lock);
	free(o);
}

static void init_images(struct cpc_oracle *o, uint64_t size)
{
	cpc_backing_init(&o->stable, &stable_ops, size, -1, true);
	o->nr_blocks = size >> CPC_BLOCK_SHIFT;
	o->logged = xalloc(o->nr_blocks * sizeof(*o->logged));
	for (unsigned copy = 0; copy < 2; copy++)
		o->ring_seq[copy] = xalloc(o->nr_blocks * sizeof(**o->ring_seq));
}

int cpc_oracle_reopen(struct cpc_oracle *o, struct cpc_backing **b)
{
	struct handle *h = xalloc(sizeof(*h));
	int ret = cpc_powercut_reopen(o->pc, &h->inner);

	if (ret) {
		free(h);
		return ret;
	}
	h->oracle = o;
	cpc_backing_init(&h->backing, &oracle_ops, h->inner->size, -1, false);
	cpc_mutex_lock(&o->lock);
	if (!o->nr_blocks)
		init_images(o, h->inner->size);
	look_afresh(o);
	cpc_mutex_unlock(&o->lock);
	*b = &h->backing;
	return 0;
}

void cpc_oracle_get_stats(struct cpc_oracle *o, struct cpc_oracle_stats *stats)
{
	cpc_mutex_lock(&o->lock);
	*stats = o->stats;
	cpc_mutex_unlock(&o->lock);
}
