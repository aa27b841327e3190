/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * After a failed flush: write again what the kernel or the device may have dropped.
 *
 * All completed records are expanded to *entries*, one for each block, sorted by address, and only
 * the newest of each block is kept; voids remove what is older than they are. Entries of suspect
 * records are then read back in runs of up to RUN_BLOCKS, verified and written again. Records that
 * complete meanwhile stay on fe->completed; if one of them is suspect, the caller comes again.
 *
 * A block that is being written right now, or was since we collected, is left alone: its new
 * content counts. The range under work is closed to new writes for as long as its read and write
 * take (invariant 5), and the repair waits for nobody, so nothing can wait in a circle.
 */
#include <stdlib.h>

#include "backing/flush-epoch-internal.h"
#include "lib/crc32c.h"
#include "lib/hooks.h"
#include "lib/log.h"

#define RUN_BLOCKS 256u

struct entry {
	uint64_t bytenr, seq;
	uint32_t csum;
	bool suspect;
};

struct repair {
	struct cpc_flush_epoch *fe;
	struct cpc_list records; /* collected, go back to fe->completed */
	uint64_t nr_records;
	struct entry *entries;
	size_t nr_entries;
	struct cpc_fe_record **voids; /* by bytenr */
	size_t nr_voids;
	void *buf; /* RUN_BLOCKS blocks */
};

/* ---- what to repair ---- */

static int compare_entries(const void *pa, const void *pb)
{
	const struct entry *a = pa, *b = pb;

	if (a->bytenr != b->bytenr)
		return a->bytenr < b->bytenr ? -1 : 1;
	return a->seq > b->seq ? -1 : a->seq < b->seq;
}

static int compare_voids(const void *pa, const void *pb)
{
	const struct cpc_fe_record *a = *(struct cpc_fe_record *const *)pa;
	const struct cpc_fe_record *b = *(struct cpc_fe_record *const *)pb;

	return a->bytenr < b->bytenr ? -1 : a->bytenr > b->bytenr;
}

static void add_entries(struct repair *rp, struct cpc_fe_record *r)
{
	bool suspect = cpc_fe_suspect(rp->fe, r);

	for (uint64_t i = 0; i < r->len / CPC_BLOCK_SIZE; i++) {
		struct entry *e = &rp->entries[rp->nr_entries++];

		e->bytenr = r->bytenr + i * CPC_BLOCK_SIZE;
		e->seq = r->seq;
		e->csum = r->csums[i];
		e->suspect = suspect;
	}
}

static size_t count_blocks(const struct cpc_list *records)
{
	struct cpc_list *pos;
	size_t nr = 0;

	cpc_list_for_each (pos, records) {
		struct cpc_fe_record *r = cpc_list_entry(pos, struct cpc_fe_record, node);

		nr += r->is_void ? 0 : r->len / CPC_BLOCK_SIZE;
	}
	return nr;
}

static int collect(struct repair *rp)
{
	struct cpc_list *pos;

	rp->entries = cpc_alloc_array(count_blocks(&rp->records) + 1, sizeof(*rp->entries));
	rp->voids = cpc_alloc_array(rp->nr_records + 1, sizeof(*rp->voids));
	rp->buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, (size_t)RUN_BLOCKS * CPC_BLOCK_SIZE);
	if (!rp->entries || !rp->voids || !rp->buf)
		return -ENOMEM;
	cpc_list_for_each (pos, &rp->records) {
		struct cpc_fe_record *r = cpc_list_entry(pos, struct cpc_fe_record, node);

		if (r->is_void)
			rp->voids[rp->nr_voids++] = r;
		else
			add_entries(rp, r);
	}
	qsort(rp->entries, rp->nr_entries, sizeof(*rp->entries), compare_entries);
	qsort(rp->voids, rp->nr_voids, sizeof(*rp->voids), compare_voids);
	return 0;
}

/* The voids that reach over the block being looked at stand in voids[0, nr_active). */
struct void_sweep {
	size_t next, nr_active;
};

static bool is_voided(struct repair *rp, struct void_sweep *s, const struct entry *e)
{
	bool voided = false;
	size_t kept = 0;

	while (s->next < rp->nr_voids && rp->voids[s->next]->bytenr <= e->bytenr)
		rp->voids[s->nr_active++] = rp->voids[s->next++];
	for (size_t i = 0; i < s->nr_active; i++) {
		struct cpc_fe_record *r = rp->voids[i];

		if (r->bytenr + r->len <= e->bytenr)
			continue;
		rp->voids[kept++] = r;
		voided = voided || r->seq > e->seq;
	}
	s->nr_active = kept;
	return voided;
}

/* Leaves the suspect entries that are the newest word on their block. */
static void select_entries(struct repair *rp)
{
	struct void_sweep sweep = {0, 0};
	uint64_t last = UINT64_MAX;
	size_t kept = 0;

	for (size_t i = 0; i < rp->nr_entries; i++) {
		struct entry e = rp->entries[i];

		if (e.bytenr == last)
			continue;
		last = e.bytenr;
		if (!is_voided(rp, &sweep, &e) && e.suspect)
			rp->entries[kept++] = e;
	}
	rp->nr_entries = kept;
}

/* ---- one run ---- */

static bool overlaps(uint64_t a, uint64_t a_len, uint64_t b, uint64_t b_len)
{
	return a < b + b_len && b < a + a_len;
}

/* Somebody writes there now, or has since we collected. */
static bool superseded_locked(struct cpc_flush_epoch *fe, uint64_t bytenr, uint64_t len)
{
	struct cpc_list *pos;

	cpc_list_for_each (pos, &fe->in_flight) {
		struct cpc_fe_write *w = cpc_list_entry(pos, struct cpc_fe_write, node);

		if (overlaps(bytenr, len, w->bytenr, w->len))
			return true;
	}
	cpc_list_for_each (pos, &fe->completed) {
		struct cpc_fe_record *r = cpc_list_entry(pos, struct cpc_fe_record, node);

		if (overlaps(bytenr, len, r->bytenr, r->len))
			return true;
	}
	return false;
}

/* Length in blocks of the run of adjacent entries that starts at `e`. */
static size_t adjacent(const struct entry *e, size_t nr)
{
	size_t n = 1;

	while (n < nr && n < RUN_BLOCKS && e[n].bytenr == e[n - 1].bytenr + CPC_BLOCK_SIZE)
		n++;
	return n;
}

/* Closes as much of the run as nobody has superseded. Return: blocks closed, perhaps 0. */
static size_t close_run_locked(struct cpc_flush_epoch *fe, const struct entry *e, size_t n)
{
	size_t i;

	if (superseded_locked(fe, e->bytenr, n * CPC_BLOCK_SIZE)) {
		for (i = 0; i < n; i++)
			if (superseded_locked(fe, e[i].bytenr, CPC_BLOCK_SIZE))
				break;
		n = i;
	}
	fe->repair_bytenr = e->bytenr;
	fe->repair_len = n * CPC_BLOCK_SIZE;
	return n;
}

static void open_run_locked(struct cpc_flush_epoch *fe)
{
	fe->repair_len = 0;
	cpc_cond_broadcast(&fe->repair_cond);
}

static int verify_run(const struct repair *rp, const struct entry *e, size_t n)
{
	const char *block = rp->buf;

	for (size_t i = 0; i < n; i++, block += CPC_BLOCK_SIZE) {
		uint32_t got = cpc_crc32c(0, block, CPC_BLOCK_SIZE);

		if (got == e[i].csum)
			continue;
		cpc_error("block at %llu was lost in a failed flush: crc32c %08x, expected %08x",
			  (unsigned long long)e[i].bytenr, got, e[i].csum);
		return -EUCLEAN;
	}
	return 0;
}

static int rewrite_run(struct repair *rp, const struct entry *e, size_t n)
{
	struct cpc_backing *b = rp->fe->backing;
	size_t len = n * CPC_BLOCK_SIZE;
	int ret = cpc_backing_read(b, e->bytenr, rp->buf, len);

	if (ret) {
		cpc_error("block at %llu cannot be read back after a failed flush: %s",
			  (unsigned long long)e->bytenr, strerror(-ret));
		return -EUCLEAN;
	}
	ret = verify_run(rp, e, n);
	if (ret)
		return ret;
	return cpc_backing_write(b, e->bytenr, rp->buf, len, CPC_CAUSE_REPAIR);
}

/* Return: entries done (1 if the first was superseded), or negative errno. */
static int repair_run(struct repair *rp, const struct entry *e, size_t nr)
{
	struct cpc_flush_epoch *fe = rp->fe;
	size_t n = adjacent(e, nr);
	int ret;

	cpc_mutex_lock(&fe->lock);
	n = close_run_locked(fe, e, n);
	cpc_mutex_unlock(&fe->lock);
	if (!n)
		return 1;
	ret = rewrite_run(rp, e, n);
	cpc_mutex_lock(&fe->lock);
	open_run_locked(fe);
	if (!ret)
		fe->stats.repaired_blocks += n;
	cpc_mutex_unlock(&fe->lock);
	return ret ? ret : (int)n;
}

static int repair_all(struct repair *rp)
{
	size_t i = 0;
	int ret;

	ret = collect(rp);
	if (ret)
		return ret;
	select_entries(rp);
	while (i < rp->nr_entries) {
		ret = repair_run(rp, rp->entries + i, rp->nr_entries - i);
		if (ret < 0)
			return ret;
		i += (size_t)ret;
	}
	return 0;
}

/* ---- the whole ---- */

static void take_records_locked(struct cpc_flush_epoch *fe, struct repair *rp)
{
	cpc_list_init(&rp->records);
	cpc_list_splice_tail(&rp->records, &fe->completed);
	rp->nr_records = fe->nr_completed;
	fe->nr_completed = 0;
	fe->nr_suspect = 0;
}

/*
 * Only the leader makes a flush fail, so fe->failures is what it was when we collected. After a
 * repair that failed the flush fails too, and all are suspect again.
 */
static void return_records_locked(struct cpc_flush_epoch *fe, struct repair *rp, bool repaired)
{
	struct cpc_list *pos;

	cpc_list_for_each (pos, &rp->records) {
		struct cpc_fe_record *r = cpc_list_entry(pos, struct cpc_fe_record, node);

		if (repaired)
			r->stamp = atomic_load(&fe->failures);
	}
	cpc_list_splice_tail(&fe->completed, &rp->records);
	fe->nr_completed += rp->nr_records;
}

int cpc_fe_repair_locked(struct cpc_flush_epoch *fe)
{
	struct repair rp = {.fe = fe};
	int ret;

	take_records_locked(fe, &rp);
	cpc_mutex_unlock(&fe->lock);
	ret = repair_all(&rp);
	cpc_free(rp.entries);
	cpc_free(rp.voids);
	cpc_free(rp.buf);
	cpc_mutex_lock(&fe->lock);
	return_records_locked(fe, &rp, !ret);
	return ret;
}
