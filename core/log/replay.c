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
 * A read that fails says nothing about what was written. It is tried again; if the answer is the
 * same, what is missing may have been answered as flushed, and the pool is refused: nothing is
 * lost, and a later opening may read it.
 *
 * Here: the chain and D. verify.c finds E, apply.c takes records apart and applies them.
 *
 * Memory: a few bytes a record, one record, and the mapping of (D, E].
 */
#include "log/log-internal.h"

#include "lib/hooks.h"
#include "lib/log.h"
#include "lib/mutation.h"

#define READ_TRIES 3u

/* --- reading a record --- */

int cpc_log_read(struct cpc_log_replay *r, uint64_t bytenr, void *buf, size_t len)
{
	for (unsigned i = 0; i < READ_TRIES; i++) {
		int ret = cpc_backing_read(r->store->backing, bytenr, buf, len);

		if (!ret || ret == -ENOMEM)
			return ret;
	}
	return -EIO;
}

static bool header_sane(const struct cpc_log_replay *r, const struct cpc_disk_log_record *record,
			uint64_t position)
{
	uint32_t length = cpc_get_le32(&record->length);
	uint64_t size = cpc_log_ring_bytes(r->store);

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

const struct cpc_disk_log_entry *cpc_log_next_entry(const struct cpc_log_replay *r,
						    const uint8_t *record, uint32_t length,
						    uint32_t *at)
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
		if (!cpc_log_next_entry(r, (const uint8_t *)record, length, &at))
			return false;
	}
	return true;
}

int cpc_log_read_copy(struct cpc_log_replay *r, uint64_t position, unsigned copy)
{
	struct cpc_disk_log_record *record = (void *)r->buf;
	uint64_t bytenr = cpc_log_bytenr(r->store, copy, position);
	uint32_t length;
	int ret = cpc_log_read(r, bytenr, r->buf, CPC_BLOCK_SIZE);

	if (ret)
		return ret;
	if (!header_sane(r, record, position))
		return -EUCLEAN;
	length = cpc_get_le32(&record->length);
	if (length > CPC_BLOCK_SIZE)
		ret = cpc_log_read(r, bytenr, r->buf, length);
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

int cpc_log_read_found(struct cpc_log_replay *r, const struct cpc_log_found *found)
{
	int ret = -EIO;

	for (unsigned copy = 0; copy < 2 && ret; copy++) {
		if (found->bad[copy])
			continue;
		ret = cpc_log_read_copy(r, found->position, copy);
		if (!ret && !is_next(r, found->seq, found->position))
			ret = -EIO; /* it was there a moment ago */
	}
	return ret;
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
			if (all || !cpc_log_read(r, bytenr + at, block, CPC_BLOCK_SIZE))
				ret = judge_beyond(r, b, block, position + at, copy);
		}
	}
	return ret;
}

static int search_beyond(struct cpc_log_replay *r, uint64_t seq, uint64_t position)
{
	uint64_t size = cpc_log_ring_bytes(r->store), stop = r->store->super.log_position + size;
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
	uint64_t size = cpc_log_ring_bytes(r->store);
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

void cpc_log_cut_chain(struct cpc_log_replay *r, size_t nr)
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
	cpc_log_cut_chain(r, r->nr);
	*why = "log: a record that had been made durable is gone";
	if (last_seq(r) < r->durable && !CPC_MUTANT(replay_rolls_back))
		return -EUCLEAN;
	*why = "log: data that may have been flushed cannot be read";
	ret = cpc_log_choose_end(r);
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

		ret = cpc_log_read_found(r, &r->found[i]);
		for (uint32_t k = 0; !ret && k < cpc_get_le32(&record->nr_entries); k++) {
			const struct cpc_disk_log_entry *e =
			    cpc_log_next_entry(r, r->buf, r->found[i].length, &at);

			if (e && e->type == CPC_LOG_MAP)
				ret = cpc_space_claim(r->store->space,
						      cpc_get_le64(&e->bytenr) >> CPC_BLOCK_SHIFT,
						      cpc_get_le64(&e->nr_blocks));
		}
	}
	return ret;
}
