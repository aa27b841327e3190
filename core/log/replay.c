/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * replay: what of the ring belongs to the pool's present state.
 *
 * The chain: records of the life that wrote the newest superblock, numbered without a gap from the
 * one behind it, valid in at least one copy. D is the highest durable mark in any of them or in
 * the superblock. Up to D everything had been made durable: a record missing there is damage, and
 * nothing is rolled back. Above D nothing was promised: the newest end of a cut E is taken such
 * that the data that (D, E] names and that is still mapped at E verifies. When a block of cut C
 * does not, every candidate from C on maps it too, so the search goes on below C.
 *
 * A record of which both copies have rotted ends the chain, and what says that it had been durable
 * stands behind it. So the search for D goes on behind the chain's end, as long as there is another
 * record of this life within reach: the longest record and what wrapping wastes.
 *
 * A valid record that names a newer transaction than the newest superblock, of whatever life, where
 * the chain starts or ends: then a superblock has been lost, and going on would silently go back.
 *
 * What lies above D may be visible only because it is in some cache, which a failed flush of the
 * last life has already given up on: a later flush would not write it. So data there is copied to
 * new places before the state that names it is committed. Rejected: writing it again where it is; a
 * power cut in the middle of that may spoil the one copy of what had been made durable.
 *
 * Memory: a few bytes a record, one record, and the mapping of (D, E].
 */
#include "log/log-internal.h"

#include "lib/hooks.h"
#include "lib/log.h"
#include "lib/mutation.h"

/* --- reading a record --- */

static bool header_sane(const struct cpc_log_replay *r, const struct cpc_disk_log_record *record,
			uint64_t position)
{
	uint32_t length = cpc_get_le32(&record->length);
	uint64_t size = r->store->super.log_size;

	return cpc_get_le32(&record->magic) == CPC_LOG_MAGIC &&
	       !memcmp(record->uuid, r->store->uuid, CPC_UUID_SIZE) && length >= CPC_BLOCK_SIZE &&
	       length <= r->max_record && length % CPC_BLOCK_SIZE == 0 &&
	       length <= size - position % size;
}

static bool entry_sane(const struct cpc_log_replay *r, const struct cpc_disk_log_entry *e,
		       uint32_t size)
{
	uint64_t block = cpc_get_le64(&e->block), nr = cpc_get_le64(&e->nr_blocks);
	uint64_t bytenr = cpc_get_le64(&e->bytenr);
	uint32_t payload = size - (uint32_t)sizeof(*e);

	switch (e->type) {
	case CPC_LOG_MAP:
		return nr && nr <= CPC_EXTENT_MAX_BLOCKS && payload == 4 * nr &&
		       block < CPC_MAX_VOLUME_BLOCKS && nr <= CPC_MAX_VOLUME_BLOCKS - block &&
		       cpc_geometry_in_data(&r->store->geo, bytenr, nr << CPC_BLOCK_SHIFT);
	case CPC_LOG_HOLE:
		return nr && !payload && !bytenr && block < CPC_MAX_VOLUME_BLOCKS &&
		       nr <= CPC_MAX_VOLUME_BLOCKS - block;
	case CPC_LOG_CREATE:
	case CPC_LOG_RENAME:
		return nr && nr <= payload;
	case CPC_LOG_DELETE:
		return !nr && !payload;
	case CPC_LOG_RESIZE:
		return !nr && !payload && block && block <= CPC_VOLUME_SIZE_MAX;
	default:
		return false;
	}
}

/* The entry at *at, which moves on; NULL when it is not sane. */
static const struct cpc_disk_log_entry *
next_entry(const struct cpc_log_replay *r, const uint8_t *record, uint32_t length, uint32_t *at)
{
	const struct cpc_disk_log_entry *e = (const void *)(record + *at);
	uint32_t size;

	if (length - *at < sizeof(*e))
		return NULL;
	size = cpc_get_le16(&e->size);
	if (size < sizeof(*e) || size % 4 || size > length - *at || !entry_sane(r, e, size))
		return NULL;
	*at += size;
	return e;
}

static bool entries_sane(const struct cpc_log_replay *r, const struct cpc_disk_log_record *record)
{
	uint32_t nr = cpc_get_le32(&record->nr_entries), length = cpc_get_le32(&record->length);
	uint32_t at = sizeof(*record);

	for (uint32_t i = 0; i < nr; i++) {
		if (!next_entry(r, (const uint8_t *)record, length, &at))
			return false;
	}
	return true;
}

int cpc_log_read_copy(struct cpc_log_replay *r, uint64_t position, unsigned copy)
{
	struct cpc_disk_log_record *record = (void *)r->buf;
	uint64_t bytenr = cpc_log_bytenr(r->store, copy, position);
	uint32_t length;
	int ret = cpc_backing_read(r->store->backing, bytenr, r->buf, CPC_BLOCK_SIZE);

	if (ret)
		return ret;
	if (!header_sane(r, record, position))
		return -EUCLEAN;
	length = cpc_get_le32(&record->length);
	if (length > CPC_BLOCK_SIZE)
		ret = cpc_backing_read(r->store->backing, bytenr, r->buf, length);
	if (ret)
		return ret;
	if (cpc_get_le32(&record->csum) !=
		cpc_csum_without_field(record, length,
				       offsetof(struct cpc_disk_log_record, csum)) &&
	    !CPC_MUTANT(records_not_verified))
		return -EUCLEAN;
	return entries_sane(r, record) ? 0 : -EUCLEAN;
}

/* --- the chain --- */

static bool is_next(const struct cpc_log_replay *r, uint64_t seq, uint64_t position)
{
	const struct cpc_disk_log_record *record = (const void *)r->buf;

	return (cpc_get_le64(&record->nonce) == r->store->super.nonce ||
		CPC_MUTANT(replay_takes_another_life)) &&
	       cpc_get_le64(&record->seq) == seq && cpc_get_le64(&record->position) == position;
}

static bool names_newer_super(const struct cpc_log_replay *r)
{
	const struct cpc_disk_log_record *record = (const void *)r->buf;

	return cpc_get_le64(&record->transid) > r->store->super.transid &&
	       !CPC_MUTANT(lost_superblock_unnoticed);
}

static int keep(struct cpc_log_replay *r, const struct cpc_log_found *found)
{
	if (r->nr == r->cap) {
		size_t cap = r->cap ? 2 * r->cap : 64;
		struct cpc_log_found *bigger = cpc_alloc_array(cap, sizeof(*bigger));

		if (!bigger)
			return -ENOMEM;
		if (r->nr)
			memcpy(bigger, r->found, r->nr * sizeof(*bigger));
		cpc_free(r->found);
		r->found = bigger;
		r->cap = cap;
	}
	r->found[r->nr++] = *found;
	return 0;
}

/*
 * Looks for record `seq` at a position. Return: 1 found, 0 not there, negative errno (-EUCLEAN: a
 * superblock has been lost).
 */
static int look(struct cpc_log_replay *r, uint64_t seq, uint64_t position,
		struct cpc_log_found *found)
{
	const struct cpc_disk_log_record *record = (const void *)r->buf;
	unsigned unreadable = 0;
	int io_error = 0;
	bool ok = false;

	memset(found, 0, sizeof(*found));
	for (unsigned copy = 0; copy < 2; copy++) {
		int ret = cpc_log_read_copy(r, position, copy);

		if (!ret && names_newer_super(r))
			return -EUCLEAN;
		if (!ret && is_next(r, seq, position)) {
			ok = true;
			found->seq = seq;
			found->position = position;
			found->durable = cpc_get_le64(&record->durable);
			found->length = cpc_get_le32(&record->length);
			found->flags = cpc_get_le32(&record->flags);
			found->entries = cpc_get_le32(&record->nr_entries);
			continue;
		}
		found->bad[copy] = true;
		if (ret && ret != -EUCLEAN) {
			io_error = ret;
			unreadable++;
		}
	}
	if (ok)
		return 1;
	/* had there been a record, the copy that can be read would have it */
	return unreadable == 2 ? io_error : 0;
}

/* --- behind the chain's end --- */

struct beyond {
	uint64_t seq; /* of the last record found, or of the chain's end */
	uint64_t end; /* position up to which to search */
	uint8_t *window;
};

/* What a block behind the chain's end says, if a good record begins there. */
static int judge_beyond(struct cpc_log_replay *r, struct beyond *b, const uint8_t *block,
			uint64_t position, unsigned copy)
{
	const struct cpc_disk_log_record *record = (const void *)block;
	uint64_t seq = cpc_get_le64(&record->seq);
	bool ours = cpc_get_le64(&record->nonce) == r->store->super.nonce &&
		    cpc_get_le64(&record->position) == position && seq > b->seq;
	bool newer = cpc_get_le64(&record->transid) > r->store->super.transid;

	if ((!ours && !newer) || !header_sane(r, record, position) ||
	    cpc_log_read_copy(r, position, copy) || memcmp(r->buf, block, CPC_BLOCK_SIZE) != 0)
		return 0;
	if (newer)
		return -EUCLEAN;
	r->durable = cpc_max_u64(r->durable, cpc_get_le64(&record->durable));
	b->seq = seq;
	b->end = position + cpc_get_le32(&record->length) + 2 * (uint64_t)r->max_record;
	return 0;
}

static int search_window(struct cpc_log_replay *r, struct beyond *b, uint64_t position, size_t len)
{
	int ret = 0;

	for (unsigned copy = 0; copy < 2 && !ret; copy++) {
		uint64_t bytenr = cpc_log_bytenr(r->store, copy, position);
		bool all = !cpc_backing_read(r->store->backing, bytenr, b->window, len);

		for (size_t at = 0; at < len && !ret; at += CPC_BLOCK_SIZE) {
			uint8_t *block = b->window + at;

			/* one bad block does not hide the others */
			if (all || !cpc_backing_read(r->store->backing, bytenr + at, block,
						     CPC_BLOCK_SIZE))
				ret = judge_beyond(r, b, block, position + at, copy);
		}
	}
	return ret;
}

static int search_beyond(struct cpc_log_replay *r, uint64_t seq, uint64_t position)
{
	uint64_t size = r->store->super.log_size, stop = r->store->super.log_position + size;
	struct beyond b = {.seq = seq, .end = position + 2 * (uint64_t)r->max_record};
	size_t len;
	int ret = 0;

	b.window = cpc_alloc_aligned(CPC_BLOCK_SIZE, r->max_record);
	if (!b.window)
		return -ENOMEM;
	for (; !ret && position < cpc_min_u64(b.end, stop); position += len) {
		len = cpc_min_u64(r->max_record, size - position % size);
		ret = search_window(r, &b, position, len);
	}
	cpc_free(b.window);
	return ret;
}

/* Behind the last record of the chain. */
static uint64_t end_position(const struct cpc_log_replay *r)
{
	const struct cpc_log_found *last = r->nr ? &r->found[r->nr - 1] : NULL;

	return last ? last->position + last->length : r->store->super.log_position;
}

static int build_chain(struct cpc_log_replay *r)
{
	uint64_t position = r->store->super.log_position, seq = r->store->super.log_seq + 1;
	uint64_t size = r->store->super.log_size;
	struct cpc_log_found found;

	/* once around the ring at most */
	while (position - r->store->super.log_position < size) {
		int ret = look(r, seq, position, &found);

		if (!ret && position % size) {
			position += size - position % size;
			ret = look(r, seq, position, &found);
		}
		if (!ret && CPC_MUTANT(replay_ends_at_rot))
			return 0;
		if (!ret)
			return search_beyond(r, seq - 1, end_position(r));
		if (ret < 0)
			return ret;
		ret = keep(r, &found);
		if (ret)
			return ret;
		r->durable = cpc_max_u64(r->durable, found.durable);
		r->entries += found.entries;
		position += found.length;
		seq++;
	}
	return 0;
}

static void cut_chain_to(struct cpc_log_replay *r, size_t nr)
{
	while (nr && !(r->found[nr - 1].flags & CPC_LOG_ENDS_CUT) &&
	       !CPC_MUTANT(replay_takes_half_a_cut))
		nr--;
	r->nr = nr;
}

static uint64_t last_seq(const struct cpc_log_replay *r)
{
	return r->nr ? r->found[r->nr - 1].seq : r->store->super.log_seq;
}

/* --- runs of a record --- */

struct record_run {
	uint64_t volume;
	const struct cpc_disk_log_entry *name; /* a change of names instead of a run */
	struct cpc_run *run;
};

struct record_runs {
	struct record_run *run;
	size_t nr, cap;
};

static void runs_destroy(struct record_runs *runs)
{
	for (size_t i = 0; i < runs->nr; i++)
		cpc_run_put(runs->run[i].run);
	cpc_free(runs->run);
	memset(runs, 0, sizeof(*runs));
}

static int runs_add(struct record_runs *runs, struct record_run run)
{
	if (runs->nr == runs->cap) {
		size_t cap = runs->cap ? 2 * runs->cap : 16;
		struct record_run *bigger = cpc_alloc_array(cap, sizeof(*bigger));

		if (!bigger)
			return -ENOMEM;
		if (runs->nr)
			memcpy(bigger, runs->run, runs->nr * sizeof(*bigger));
		cpc_free(runs->run);
		runs->run = bigger;
		runs->cap = cap;
	}
	runs->run[runs->nr++] = run;
	return 0;
}

struct run_maker {
	const struct cpc_log_replay *replay;
	struct record_runs *runs;
	struct cpc_run_builder builder;
	bool open;
	uint64_t volume, end; /* where the open run ends */
};

static const struct cpc_log_move *find_move(const struct cpc_log_replay *r, uint64_t block);

static int close_run(struct run_maker *m)
{
	struct record_run run = {.volume = m->volume};
	int ret;

	if (!m->open)
		return 0;
	m->open = false;
	ret = cpc_run_builder_finish(&m->builder, &run.run);
	if (!ret)
		ret = runs_add(m->runs, run);
	if (ret)
		cpc_run_put(run.run);
	return ret;
}

/* Maps blocks to where cpc_log_move_data has put them. */
static void map_moved(struct run_maker *m, uint64_t block, uint64_t nr, uint64_t at,
		      const uint32_t *csums)
{
	for (uint64_t done = 0, part; done < nr; done += part) {
		const struct cpc_log_move *move = find_move(m->replay, at + done);
		uint64_t to = at + done;

		part = nr - done;
		if (move && move->from > to) {
			part = cpc_min_u64(part, move->from - to);
		} else if (move) {
			part = cpc_min_u64(part, move->from + move->nr - to);
			to = move->to + (to - move->from);
		}
		cpc_run_builder_map(&m->builder, block + done, part, to << CPC_BLOCK_SHIFT,
				    csums + done);
	}
}

static int add_mapping(struct run_maker *m, const struct cpc_disk_log_entry *e)
{
	uint64_t block = cpc_get_le64(&e->block), nr = cpc_get_le64(&e->nr_blocks);
	uint64_t volume = cpc_get_le32(&e->volume);
	const cpc_le32 *disk = (const void *)(e + 1);
	uint32_t csums[CPC_EXTENT_MAX_BLOCKS];
	int ret = 0;

	if (m->open && (m->volume != volume || block < m->end))
		ret = close_run(m);
	if (ret)
		return ret;
	if (!m->open) {
		cpc_run_builder_init(&m->builder, 64, 64);
		m->open = true;
		m->volume = volume;
	}
	m->end = block + nr;
	if (e->type == CPC_LOG_HOLE && CPC_MUTANT(replay_forgets_trims))
		return 0;
	if (e->type == CPC_LOG_HOLE) {
		cpc_run_builder_hole(&m->builder, block, nr);
		return 0;
	}
	for (uint64_t i = 0; i < nr; i++)
		csums[i] = cpc_get_le32(&disk[i]);
	map_moved(m, block, nr, cpc_get_le64(&e->bytenr) >> CPC_BLOCK_SHIFT, csums);
	return 0;
}

static int add_entry(struct run_maker *m, const struct cpc_disk_log_entry *e)
{
	int ret;

	if (e->type == CPC_LOG_MAP || e->type == CPC_LOG_HOLE)
		return add_mapping(m, e);
	ret = close_run(m);
	return ret ? ret
		   : runs_add(m->runs,
			      (struct record_run){.volume = cpc_get_le32(&e->volume), .name = e});
}

/* Reads an accepted record again and takes it apart. Names point into r->buf. */
static int load_runs(struct cpc_log_replay *r, const struct cpc_log_found *found,
		     struct record_runs *runs)
{
	const struct cpc_disk_log_record *record = (const void *)r->buf;
	struct run_maker m = {.replay = r, .runs = runs};
	uint32_t at = sizeof(*record);
	int ret = cpc_log_read_copy(r, found->position, found->bad[0] ? 1 : 0);

	if (!ret && !is_next(r, found->seq, found->position))
		ret = -EIO; /* it was there a moment ago */
	memset(runs, 0, sizeof(*runs));
	for (uint32_t i = 0; !ret && i < cpc_get_le32(&record->nr_entries); i++) {
		const struct cpc_disk_log_entry *e = next_entry(r, r->buf, found->length, &at);

		ret = e ? add_entry(&m, e) : -EIO;
	}
	if (!ret)
		ret = close_run(&m);
	else if (m.open)
		cpc_run_builder_abort(&m.builder);
	if (ret)
		runs_destroy(runs);
	return ret;
}

/* --- verifying what lies above the durable mark --- */

/* What newer entries of the window have already said of a volume. */
struct cover {
	uint64_t volume;
	struct cpc_run *run;
	uint64_t from; /* everything at or above is covered: deleted or shrunk */
};

struct covers {
	struct cover *cover;
	size_t nr, cap;
	uint8_t *data;
};

static struct cover *cover_of(struct covers *c, uint64_t volume)
{
	for (size_t i = 0; i < c->nr; i++) {
		if (c->cover[i].volume == volume)
			return &c->cover[i];
	}
	if (c->nr == c->cap) {
		size_t cap = c->cap ? 2 * c->cap : 16;
		struct cover *bigger = cpc_alloc_array(cap, sizeof(*bigger));

		if (!bigger)
			return NULL;
		if (c->nr)
			memcpy(bigger, c->cover, c->nr * sizeof(*bigger));
		cpc_free(c->cover);
		c->cover = bigger;
		c->cap = cap;
	}
	c->cover[c->nr] = (struct cover){.volume = volume, .from = UINT64_MAX};
	return &c->cover[c->nr++];
}

/*
 * Reads data above the mark. A flush may have been answered for it though its mark has not been
 * written, so an error that passes, or a device that fails as a whole, must not take that back. A
 * block that cannot be read where others can was being written when the power went: it is not
 * there. Return: 0, 1 it is not there, negative errno.
 */
static int read_data(struct cpc_log_replay *r, uint64_t bytenr, void *data, size_t len)
{
	struct cpc_backing *backing = r->store->backing;

	if (!cpc_backing_read(backing, bytenr, data, len) ||
	    !cpc_backing_read(backing, bytenr, data, len))
		return 0;
	return cpc_backing_read(backing, cpc_log_bytenr(r->store, 0, 0), data, CPC_BLOCK_SIZE) ?: 1;
}

/* Reads and verifies one range of data. Return: 1 it does not verify, 0, negative errno. */
static int verify_data(struct cpc_log_replay *r, struct covers *c, uint64_t bytenr, uint64_t nr,
		       const uint32_t *csums)
{
	int ret = read_data(r, bytenr, c->data, nr << CPC_BLOCK_SHIFT);

	if (ret)
		return ret;
	for (uint64_t i = 0; i < nr; i++) {
		if (cpc_csum(c->data + i * CPC_BLOCK_SIZE, CPC_BLOCK_SIZE) != csums[i] &&
		    !CPC_MUTANT(replay_believes_data))
			return 1;
	}
	return cpc_blockset_add(&r->verified, bytenr >> CPC_BLOCK_SHIFT, nr);
}

/* Verifies the parts of an entry that nothing newer covers. */
static int verify_entry(struct cpc_log_replay *r, struct covers *c, const struct cover *cover,
			const struct cpc_run *run, const struct cpc_run_entry *e)
{
	uint64_t done = 0;
	int ret = 0;

	while (e->bytenr && done < e->nr && !ret) {
		uint64_t block = e->block + done;
		struct cpc_mapping m = {.nr = e->nr - done};

		if (block >= cover->from)
			break;
		m.nr = cpc_min_u64(m.nr, cover->from - block);
		if (!cover->run || !cpc_run_lookup(cover->run, block, m.nr, &m))
			ret = verify_data(r, c, e->bytenr + (done << CPC_BLOCK_SHIFT), m.nr,
					  &run->csums[e->csum + done]);
		done += m.nr;
	}
	return ret;
}

static int verify_run(struct cpc_log_replay *r, struct covers *c, struct record_run *rr)
{
	struct cover *cover = cover_of(c, rr->volume);
	struct cpc_run *merged;
	int ret = cover ? 0 : -ENOMEM;

	for (size_t i = 0; !ret && i < rr->run->nr_entries; i++)
		ret = verify_entry(r, c, cover, rr->run, &rr->run->entries[i]);
	if (ret)
		return ret;
	if (!cover->run) {
		cover->run = cpc_run_get(rr->run);
		return 0;
	}
	ret = cpc_run_merge((struct cpc_run *[]){cover->run, rr->run}, 2, &merged, NULL, NULL);
	if (ret)
		return ret;
	cpc_run_put(cover->run);
	cover->run = merged;
	return 0;
}

static int cover_name(struct covers *c, const struct record_run *rr)
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
	struct record_runs runs;
	int ret = load_runs(r, found, &runs);

	if (ret)
		return ret;
	for (size_t i = runs.nr; i > 0 && !ret; i--) {
		struct record_run *rr = &runs.run[i - 1];

		ret = rr->name ? cover_name(c, rr) : verify_run(r, c, rr);
	}
	runs_destroy(&runs);
	return ret;
}

/* Return: 0 all of (durable, end] holds; 1: *bad is a record that does not; negative errno. */
static int verify_window(struct cpc_log_replay *r, size_t *bad)
{
	struct covers c = {
	    .data = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_EXTENT_MAX_BLOCKS * CPC_BLOCK_SIZE)};
	int ret = c.data ? 0 : -ENOMEM;

	cpc_blockset_destroy(&r->verified);
	for (size_t i = r->nr; !ret && i > 0 && r->found[i - 1].seq > r->durable; i--) {
		*bad = i - 1;
		ret = verify_record(r, &c, &r->found[i - 1]);
	}
	for (size_t i = 0; i < c.nr; i++)
		cpc_run_put(c.cover[i].run);
	cpc_free(c.cover);
	cpc_free(c.data);
	return ret;
}

static int choose_end(struct cpc_log_replay *r)
{
	size_t bad = 0;
	int ret;

	while ((ret = verify_window(r, &bad)) == 1)
		cut_chain_to(r, bad);
	return ret;
}

/* --- the doors --- */

static int scan(struct cpc_log_replay *r, const char **why)
{
	int ret;

	*why = "log: out of memory";
	r->buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, r->max_record);
	if (!r->buf)
		return -ENOMEM;
	*why = "the log names a newer state than any superblock that is left";
	ret = build_chain(r);
	if (ret)
		return ret;
	cut_chain_to(r, r->nr);
	*why = "log: a record that had been made durable is gone";
	if (last_seq(r) < r->durable && !CPC_MUTANT(replay_rolls_back))
		return -EUCLEAN;
	*why = "log: data cannot be verified";
	ret = choose_end(r);
	/* only a forged mark stands within a cut */
	if (!ret && last_seq(r) < r->durable && !CPC_MUTANT(replay_rolls_back))
		ret = -EUCLEAN;
	r->end_position = end_position(r);
	return ret;
}

int cpc_log_scan(struct cpc_store *store, struct cpc_log_replay *r, const char **why)
{
	int ret;

	memset(r, 0, sizeof(*r));
	r->store = store;
	r->max_record = cpc_log_max_record(store->super.log_size);
	r->durable = store->super.log_durable;
	r->end_position = store->super.log_position;
	cpc_blockset_init(&r->verified, store->geo.nr_groups);
	ret = scan(r, why);
	if (ret)
		cpc_log_replay_destroy(r);
	return ret;
}

void cpc_log_replay_destroy(struct cpc_log_replay *r)
{
	cpc_free(r->found);
	cpc_free(r->move);
	cpc_free(r->buf);
	cpc_blockset_destroy(&r->verified);
	r->found = NULL;
	r->move = NULL;
	r->buf = NULL;
	r->nr = r->cap = r->nr_moves = r->cap_moves = 0;
}

int cpc_log_claim(struct cpc_log_replay *r)
{
	int ret = 0;

	for (size_t i = 0; i < r->nr && !ret && !CPC_MUTANT(replay_claims_nothing); i++) {
		const struct cpc_disk_log_record *record = (const void *)r->buf;
		uint32_t at = sizeof(*record);

		ret = cpc_log_read_copy(r, r->found[i].position, r->found[i].bad[0] ? 1 : 0);
		for (uint32_t k = 0; !ret && k < cpc_get_le32(&record->nr_entries); k++) {
			const struct cpc_disk_log_entry *e =
			    next_entry(r, r->buf, r->found[i].length, &at);

			if (e && e->type == CPC_LOG_MAP)
				ret = cpc_space_claim(r->store->space,
						      cpc_get_le64(&e->bytenr) >> CPC_BLOCK_SHIFT,
						      cpc_get_le64(&e->nr_blocks));
		}
	}
	return ret;
}

/* --- moving what may be in a cache only --- */

static int add_move(struct cpc_log_replay *r, struct cpc_log_move move)
{
	if (r->nr_moves == r->cap_moves) {
		size_t cap = r->cap_moves ? 2 * r->cap_moves : 64;
		struct cpc_log_move *bigger = cpc_alloc_array(cap, sizeof(*bigger));

		if (!bigger)
			return -ENOMEM;
		if (r->nr_moves)
			memcpy(bigger, r->move, r->nr_moves * sizeof(*bigger));
		cpc_free(r->move);
		r->move = bigger;
		r->cap_moves = cap;
	}
	r->move[r->nr_moves++] = move;
	return 0;
}

/* Copies up to *nr blocks to a new place, or writes them again where they are if there is none. */
static int move_some(struct cpc_log_replay *r, uint64_t block, uint32_t *nr, bool in_place,
		     uint8_t *data)
{
	enum cpc_cause cause = CPC_CAUSE_DATA;
	uint64_t to;
	uint32_t got;
	int ret = in_place ? -ENOSPC
			   : cpc_space_alloc(r->store->space, CPC_SPACE_DATA, *nr, 1, &to, &got);

	if (ret == -ENOSPC) {
		cause = CPC_CAUSE_REPAIR;
		to = block;
		got = *nr;
	} else if (ret) {
		return ret;
	} else {
		ret = add_move(r, (struct cpc_log_move){block, to, got});
		if (ret) {
			cpc_space_release(r->store->space, to, got);
			return ret;
		}
	}
	*nr = got;
	ret = cpc_backing_read(r->store->backing, block << CPC_BLOCK_SHIFT, data,
			       (size_t)got << CPC_BLOCK_SHIFT);
	return ret ? ret
		   : cpc_fe_write(&r->store->fe, to << CPC_BLOCK_SHIFT, data,
				  (size_t)got << CPC_BLOCK_SHIFT, cause, NULL);
}

int cpc_log_move_data(struct cpc_log_replay *r, bool in_place)
{
	uint8_t *data = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_EXTENT_MAX_BLOCKS * CPC_BLOCK_SIZE);
	uint64_t block, nr;
	int ret = data ? 0 : -ENOMEM;

	if (CPC_MUTANT(replay_trusts_the_cache))
		cpc_blockset_destroy(&r->verified);
	cpc_blockset_for_each(&r->verified, block, nr)
	{
		for (uint64_t done = 0; !ret && done < nr;) {
			uint32_t part = (uint32_t)cpc_min_u64(CPC_EXTENT_MAX_BLOCKS, nr - done);

			ret = move_some(r, block + done, &part, in_place, data);
			done += part;
		}
	}
	cpc_free(data);
	return ret;
}

/* Moves are in order of the old block. */
static const struct cpc_log_move *find_move(const struct cpc_log_replay *r, uint64_t block)
{
	size_t low = 0, high = r->nr_moves;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (r->move[mid].from + r->move[mid].nr <= block)
			low = mid + 1;
		else
			high = mid;
	}
	return low < r->nr_moves ? &r->move[low] : NULL;
}

static int handle_record(struct cpc_log_replay *r, const struct cpc_log_found *found,
			 const struct cpc_log_handler *h)
{
	struct record_runs runs;
	int ret = load_runs(r, found, &runs);

	if (ret)
		return ret;
	for (size_t i = 0; i < runs.nr && !ret; i++) {
		const struct record_run *rr = &runs.run[i];

		if (!rr->name)
			ret = h->run(h->ctx, rr->volume, rr->run);
		else
			ret = h->name(h->ctx, (enum cpc_log_entry_type)rr->name->type, rr->volume,
				      cpc_get_le64(&rr->name->block), rr->name + 1,
				      (uint32_t)cpc_get_le64(&rr->name->nr_blocks));
	}
	runs_destroy(&runs);
	if (!ret && found->flags & CPC_LOG_ENDS_CUT)
		ret = h->batch(h->ctx, found->seq, found->position + found->length);
	return ret;
}

int cpc_log_replay_run(struct cpc_log_replay *r, const struct cpc_log_handler *handler)
{
	int ret = 0;

	for (size_t i = 0; i < r->nr && !ret; i++)
		ret = handle_record(r, &r->found[i], handler);
	return ret;
}
