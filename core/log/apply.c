/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * apply: what an opening does with the records that replay.c has accepted. Each is read again, one
 * at a time, and taken apart into runs and changes of names; before that, data that may stand in a
 * cache only is copied to new places, and the runs name those.
 */
#include "log/log-internal.h"

#include "lib/hooks.h"
#include "lib/mutation.h"

/* --- runs of a record --- */

void cpc_log_runs_destroy(struct cpc_log_runs *runs)
{
	for (size_t i = 0; i < runs->nr; i++)
		cpc_run_put(runs->run[i].run);
	cpc_free(runs->run);
	memset(runs, 0, sizeof(*runs));
}

static int runs_add(struct cpc_log_runs *runs, struct cpc_log_record_run run)
{
	if (runs->nr == runs->cap) {
		size_t cap = runs->cap ? 2 * runs->cap : 16;
		struct cpc_log_record_run *bigger = cpc_alloc_array(cap, sizeof(*bigger));

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
	struct cpc_log_runs *runs;
	struct cpc_run_builder builder;
	bool open;
	uint64_t volume, end; /* where the open run ends */
};

static const struct cpc_log_move *find_move(const struct cpc_log_replay *r, uint64_t block);

static int close_run(struct run_maker *m)
{
	struct cpc_log_record_run run = {.volume = m->volume};
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
		   : runs_add(m->runs, (struct cpc_log_record_run){
					   .volume = cpc_get_le32(&e->volume), .name = e});
}

int cpc_log_load_runs(struct cpc_log_replay *r, const struct cpc_log_found *found,
		      struct cpc_log_runs *runs)
{
	const struct cpc_disk_log_record *record = (const void *)r->buf;
	struct run_maker m = {.replay = r, .runs = runs};
	uint32_t at = sizeof(*record);
	int ret = cpc_log_read_found(r, found);

	memset(runs, 0, sizeof(*runs));
	for (uint32_t i = 0; !ret && i < cpc_get_le32(&record->nr_entries); i++) {
		const struct cpc_disk_log_entry *e =
		    cpc_log_next_entry(r, r->buf, found->length, &at);

		ret = e ? add_entry(&m, e) : -EIO;
	}
	if (!ret)
		ret = close_run(&m);
	else if (m.open)
		cpc_run_builder_abort(&m.builder);
	if (ret)
		cpc_log_runs_destroy(runs);
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
	ret = cpc_log_read(r, block << CPC_BLOCK_SHIFT, data, (size_t)got << CPC_BLOCK_SHIFT);
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
	struct cpc_log_runs runs;
	int ret = cpc_log_load_runs(r, found, &runs);

	if (ret)
		return ret;
	for (size_t i = 0; i < runs.nr && !ret; i++) {
		const struct cpc_log_record_run *rr = &runs.run[i];

		if (!rr->name)
			ret = h->run(h->ctx, rr->volume, rr->run);
		else
			ret = h->name(h->ctx, (enum cpc_log_entry_type)rr->name->type, rr->volume,
				      cpc_get_le64(&rr->name->block), rr->name + 1,
				      (uint32_t)cpc_get_le64(&rr->name->nr_blocks));
	}
	cpc_log_runs_destroy(&runs);
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
