/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * verify: how far above the durable mark the log holds.
 *
 * From the newest record to the oldest, data that nothing newer replaces is read and compared. What
 * does not verify was not written, or not all of it: its cut goes, and all behind it. What cannot
 * be read does not say whether it was written. If an older cut does not verify, it does not matter
 * either; else the scan fails, for a flush may have been answered for it.
 *
 * What newer records have said of a volume is kept in runs of which each is at least twice as long
 * as the one added behind it, so that an entry is copied O(log n) times.
 */
#include "log/log-internal.h"

#include "lib/hooks.h"
#include "lib/mutation.h"

#define COVER_RUNS 48u /* each twice as long as the next: more never come together */

/* What newer entries of the window have already said of a volume. */
struct cover {
	uint64_t volume;
	uint64_t from; /* everything at or above is covered: deleted or shrunk */
	unsigned nr;
	struct cpc_run *run[COVER_RUNS];
};

struct covers {
	struct cover **cover; /* sorted by volume */
	size_t nr, cap;
	uint8_t *data;
	bool unreadable; /* of the record that is looked at */
};

static size_t find_cover(const struct covers *c, uint64_t volume)
{
	size_t low = 0, high = c->nr;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (c->cover[mid]->volume < volume)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static bool make_room(struct covers *c)
{
	size_t cap = c->cap ? 2 * c->cap : 16;
	struct cover **bigger;

	if (c->nr < c->cap)
		return true;
	bigger = cpc_alloc_array(cap, sizeof(*bigger));
	if (!bigger)
		return false;
	if (c->nr)
		memcpy(bigger, c->cover, c->nr * sizeof(*bigger));
	cpc_free(c->cover);
	c->cover = bigger;
	c->cap = cap;
	return true;
}

/* NULL: out of memory. */
static struct cover *cover_of(struct covers *c, uint64_t volume)
{
	size_t at = find_cover(c, volume);
	struct cover *cover;

	if (at < c->nr && c->cover[at]->volume == volume)
		return c->cover[at];
	if (!make_room(c))
		return NULL;
	cover = cpc_zalloc(sizeof(*cover));
	if (!cover)
		return NULL;
	cover->volume = volume;
	cover->from = UINT64_MAX;
	memmove(&c->cover[at + 1], &c->cover[at], (c->nr - at) * sizeof(struct cover *));
	c->cover[at] = cover;
	c->nr++;
	return cover;
}

static void covers_destroy(struct covers *c)
{
	for (size_t i = 0; i < c->nr; i++) {
		for (unsigned k = 0; k < c->cover[i]->nr; k++)
			cpc_run_put(c->cover[i]->run[k]);
		cpc_free(c->cover[i]);
	}
	cpc_free(c->cover);
	cpc_free(c->data);
}

static bool too_short(const struct cover *cover)
{
	const struct cpc_run *last = cover->run[cover->nr - 1], *before;

	if (cover->nr < 2)
		return false;
	before = cover->run[cover->nr - 2];
	return cover->nr == COVER_RUNS || before->nr_entries < 2 * last->nr_entries;
}

static int cover_run(struct cover *cover, struct cpc_run *run)
{
	cover->run[cover->nr++] = cpc_run_get(run);
	while (too_short(cover)) {
		struct cpc_run **pair = &cover->run[cover->nr - 2], *merged;
		int ret = cpc_run_merge(pair, 2, &merged, NULL, NULL);

		if (ret)
			return ret;
		cpc_run_put(pair[0]);
		cpc_run_put(pair[1]);
		pair[0] = merged;
		cover->nr--;
	}
	return 0;
}

/* Return: whether `block` is covered; *nr becomes how many blocks from it on are as it is. */
static bool is_covered(const struct cover *cover, uint64_t block, uint64_t *nr)
{
	struct cpc_mapping m = {.nr = *nr};
	bool covered = false;

	for (unsigned i = 0; i < cover->nr && !covered; i++)
		covered = cpc_run_lookup(cover->run[i], block, m.nr, &m);
	*nr = m.nr;
	return covered;
}

/* One block that cannot be read does not hide the others. Return: 0; -EIO: *bad is the first such
 * block; -ENOMEM. */
static int read_data(struct cpc_log_replay *r, struct covers *c, uint64_t bytenr, uint64_t nr,
		     uint64_t *bad)
{
	int ret = cpc_log_read(r, bytenr, c->data, nr << CPC_BLOCK_SHIFT);

	if (ret != -EIO)
		return ret;
	for (*bad = 0; *bad < nr; (*bad)++) {
		uint64_t at = *bad << CPC_BLOCK_SHIFT;

		ret = cpc_log_read(r, bytenr + at, c->data + at, CPC_BLOCK_SIZE);
		if (ret)
			return ret;
	}
	return 0;
}

/* Reads and verifies a range of data of a volume. Return: 1 it does not verify, 0 (it does, or
 * r->unreadable says that nobody knows), -ENOMEM. */
static int verify_data(struct cpc_log_replay *r, struct covers *c, uint64_t volume,
		       const struct cpc_mapping *m)
{
	uint64_t bad;
	int ret = read_data(r, c, m->bytenr, m->nr, &bad);

	if (ret == -EIO && CPC_MUTANT(unreadable_counts_as_torn))
		return 1;
	if (ret == -EIO) {
		c->unreadable = true;
		r->unreadable.volume = volume;
		r->unreadable.block = m->block + bad;
		r->unreadable.bytenr = m->bytenr + (bad << CPC_BLOCK_SHIFT);
		return 0;
	}
	if (ret)
		return ret;
	for (uint64_t i = 0; i < m->nr; i++) {
		if (cpc_csum(c->data + i * CPC_BLOCK_SIZE, CPC_BLOCK_SIZE) != m->csums[i] &&
		    !CPC_MUTANT(replay_believes_data))
			return 1;
	}
	return cpc_blockset_add(&r->verified, m->bytenr >> CPC_BLOCK_SHIFT, m->nr);
}

/* Verifies the parts of an entry that nothing newer covers. */
static int verify_entry(struct cpc_log_replay *r, struct covers *c, const struct cover *cover,
			const struct cpc_run *run, const struct cpc_run_entry *e)
{
	uint64_t done = 0;
	int ret = 0;

	while (e->bytenr && done < e->nr && e->block + done < cover->from && !ret) {
		struct cpc_mapping m = {.block = e->block + done,
					.bytenr = e->bytenr + (done << CPC_BLOCK_SHIFT),
					.csums = &run->csums[e->csum + done]};

		m.nr = cpc_min_u64(e->nr - done, cover->from - m.block);
		if (!is_covered(cover, m.block, &m.nr))
			ret = verify_data(r, c, cover->volume, &m);
		done += m.nr;
	}
	return ret;
}

static int verify_run(struct cpc_log_replay *r, struct covers *c, struct cpc_log_record_run *rr)
{
	struct cover *cover = cover_of(c, rr->volume);
	int ret = cover ? 0 : -ENOMEM;

	for (size_t i = 0; !ret && i < rr->run->nr_entries; i++)
		ret = verify_entry(r, c, cover, rr->run, &rr->run->entries[i]);
	return ret ? ret : cover_run(cover, rr->run);
}

static int cover_name(struct covers *c, const struct cpc_log_record_run *rr)
{
	struct cover *cover = cover_of(c, rr->volume);

	if (!cover)
		return -ENOMEM;
	if (rr->name->type == CPC_LOG_DELETE)
		cover->from = 0;
	if (rr->name->type == CPC_LOG_RESIZE)
		cover->from = cpc_min_u64(
		    cover->from, cpc_div_round_up(cpc_get_le64(&rr->name->block), CPC_BLOCK_SIZE));
	return 0;
}

static int verify_record(struct cpc_log_replay *r, struct covers *c,
			 const struct cpc_log_found *found)
{
	struct cpc_log_runs runs;
	int ret = cpc_log_load_runs(r, found, &runs);

	if (ret)
		return ret;
	for (size_t i = runs.nr; i > 0 && !ret; i--) {
		struct cpc_log_record_run *rr = &runs.run[i - 1];

		ret = rr->name ? cover_name(c, rr) : verify_run(r, c, rr);
	}
	cpc_log_runs_destroy(&runs);
	return ret;
}

/* Record i names what cannot be read. */
static void note_unreadable(struct cpc_log_replay *r, size_t i)
{
	while (i && !(r->found[i - 1].flags & CPC_LOG_ENDS_CUT))
		i--;
	r->unreadable.seq = r->found[i].seq;
	r->unreadable.position = r->found[i].position;
	r->unreadable.records = r->nr - i;
}

/* Return: 0 all of (durable, end] holds, or cannot be read; 1: *bad is a record that does not hold;
 * negative errno. */
static int verify_window(struct cpc_log_replay *r, size_t *bad)
{
	struct covers c = {
	    .data = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_EXTENT_MAX_BLOCKS * CPC_BLOCK_SIZE)};
	int ret = c.data ? 0 : -ENOMEM;

	cpc_blockset_destroy(&r->verified);
	memset(&r->unreadable, 0, sizeof(r->unreadable));
	for (size_t i = r->nr; !ret && i > 0 && r->found[i - 1].seq > r->durable; i--) {
		*bad = i - 1;
		c.unreadable = false;
		ret = verify_record(r, &c, &r->found[i - 1]);
		if (c.unreadable)
			note_unreadable(r, i - 1);
	}
	covers_destroy(&c);
	return ret;
}

int cpc_log_choose_end(struct cpc_log_replay *r)
{
	size_t bad = 0;
	int ret;

	while ((ret = verify_window(r, &bad)) == 1)
		cpc_log_cut_chain(r, bad);
	return !ret && r->unreadable.bytenr ? -EIO : ret;
}
